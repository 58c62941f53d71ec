"""A folder that travels: the files that a run may read, as one tar file, and a folder made from it elsewhere.

It has what a copy for commands has: of a checkout, what git does not ignore; regular files only, opened beneath the
folder. Links do not travel. The same files make the same bytes.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from ava_roles.errors import FolderReplaced, ToolFailed
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.workspace import repository_of
from ava_roles.sandbox.workspace_copy import copy_workspace

_MAX_FILES = 50_000
_PIECE = 1 << 20
_SEPARATORS = {"\0", *("\\:" if os.name == "nt" else "")}


def pack_folder(root: Root, home: Path, limit: int, aside: Path, path: Path) -> str | None:
    """Write the archive of a folder. Blocking.

    Args:
        root: The folder.
        home: The user's home folder, for the names that they ignore in every repository.
        limit: Most bytes of the files in it.
        aside: An empty folder.
        path: The new file.

    Returns:
        None, or why the folder does not travel.

    Raises:
        OSError: The archive cannot be written.
    """
    copy = aside / "copy"
    copy.mkdir()
    repository = repository_of(root.path.resolve(), home)
    try:
        report = copy_workspace(root, copy, repository=repository, home=home, most_bytes=limit)
    except ToolFailed as error:
        return str(error).partition(";")[0]
    if not report.whole:
        return f"it has {report.files:,} files with {report.size / 1e6:,.0f} MB"
    with tarfile.open(path, "x", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(_files(copy), key=os.fsencode):
            with (copy / name).open("rb") as file:
                status = os.fstat(file.fileno())
                member = tarfile.TarInfo(name)
                member.size, member.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
                tar.addfile(member, file)
    return None


def unpack_folder(archive: Path, place: Path, beneath: Path, limit: int) -> None:
    """Make the folder of an archive whose bytes were checked. Blocking; a folder that is complete is left as it is.

    Args:
        archive: The file.
        place: The new folder.
        beneath: The folder above it that has to exist.
        limit: Most bytes of the files in it.

    Raises:
        FolderReplaced: It is not an archive of a folder; nothing of it is left.
        OSError: The folder cannot be made.
    """
    if place.exists():
        return
    new = place.with_name(f"{place.name}.new")
    remove_tree(new)
    try:
        make_folders(new, beneath)
        with tarfile.open(archive, "r:") as tar:
            _unpack(tar, new, limit)
        new.rename(place)
    except (tarfile.TarError, ValueError, FileExistsError, NotADirectoryError) as error:
        raise FolderReplaced(f"the copy of the folder cannot be unpacked: {error}") from error
    finally:
        remove_tree(new)


def _files(folder: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(above, name), folder)  # noqa: PTH118 - a name may be no text
        for above, _folders, names in os.walk(folder)
        for name in names
        if not Path(above, name).is_symlink()
    ]


def _unpack(tar: tarfile.TarFile, into: Path, limit: int) -> None:
    """Write the members of an archive: regular files with plain names, and nothing else.

    Raises:
        ValueError: Another member, or more than the limits.
    """
    size = 0
    for number, member in enumerate(tar):
        parts = member.name.split("/")
        if not member.isreg() or any(part in ("", ".", "..") or _SEPARATORS & set(part) for part in parts):
            raise ValueError(f"it has {shown(member.name)}")
        size += member.size
        if size > limit or number >= _MAX_FILES:
            raise ValueError("it is larger than it may be")
        source = tar.extractfile(member)
        assert source is not None, "it is a regular file"
        target = into.joinpath(*parts)
        make_folders(target.parent, into, 0o755)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(target, flags, 0o755 if member.mode & 0o100 else 0o644), "wb") as file:
            while piece := source.read(_PIECE):
                file.write(piece)
