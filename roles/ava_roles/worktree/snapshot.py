"""Work on another machine: a commit that travels there as a snapshot, and its branch that comes back as a pack.

A snapshot is a tar file with the objects of one commit (no history), and how the owner's git writes files and names
them as the author. What is unpacked is a checkout without files whose only commit is the approved one, so work on it
leads to the same commits, byte for byte, as in the owner's repository. The branch comes back as a pack of its new
objects. Nothing of either is believed: digests are compared before, and git computes each object's name again.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ava_roles.errors import NoRepository, ToolFailed, WorktreeFailed
from ava_roles.sandbox.git import git_program
from ava_roles.sandbox.git_folders import NOTHING_OUTSIDE, Accept, only
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.worktree.publish import (
    changed_files,
    copy_objects,
    free_name,
    lines_of,
    list_branches,
    names_of,
    new_objects,
    update_branch,
)
from ava_roles.worktree.repository import NO_GIT, Git, UserRepository, temporary_folder, translate_os_errors
from ava_roles.worktree.spec import Branch, within

PACK = "commit.pack"
SETTINGS = "settings.json"
_MEMBERS = (PACK, SETTINGS, "exclude", "attributes", "ignore")
"""What a snapshot has: the objects, the settings, and the three files that say what git ignores and converts."""
_SMALL_BYTES = 1_000_000
_UNPACKED = 8
"""How much larger than its bound the content of a commit may be before it is compressed."""
_DEFAULTS: Mapping[str, str] = {
    "core.autocrlf": "false", "core.eol": "native", "core.ignorecase": "false",
    "user.name": "", "user.email": "", "author.name": "", "author.email": "",
    "committer.name": "", "committer.email": "", "commit.gpgsign": "false",
}  # fmt: skip
"""The settings that travel, all of them: otherwise those of the other machine's user would apply."""
_FORMAT = "extensions.objectformat"
_PACKING = ("pack-objects", "-q", "--window=0", "--no-reuse-object", "--threads=1")
"""Without deltas, so that the same objects always make the same file."""


def pack_snapshot(
    repository: Path, home: Path, commit: str, limit: int, path: Path, git_folder: str = ""
) -> str | None:
    """Write the snapshot of a commit, of at most `limit` bytes; return None, or why it does not travel. Blocking.

    It runs nothing of the repository's and changes nothing in it. The same commit and settings make the same bytes.
    `git_folder` is the approved one outside of the checkout. Raises NoRepository if the repository is gone;
    WorktreeFailed: the objects cannot be read, or the file not be written.
    """
    checkout = UserRepository.at(repository, home, accept=only(git_folder))
    with temporary_folder("packing the repository") as aside:
        git = checkout.git_folder(aside / "git", joined=False)  # git writes temporary files beside its objects
        objects = _objects_of(git, commit)
        sizes = git("cat-file", "--batch-check=%(objectsize)", stdin=lines_of(objects)).out.split()
        unpacked = sum(map(int, sizes))
        if unpacked > _UNPACKED * limit:
            return f"its files have {unpacked / 1e6:,.0f} MB"
        name = git.line("-c", "pack.compression=6", *_PACKING, str(aside / "pack"), stdin=lines_of(objects))
        pack = aside / f"pack-{name}.pack"
        size = pack.stat().st_size
        if size > limit:
            return f"it has {size / 1e6:,.0f} MB compressed"
        small = _small_members(checkout)
        with tarfile.open(path, "x", format=tarfile.USTAR_FORMAT) as tar:
            for member, data in small.items():
                tar.addfile(_member(member, len(data)), io.BytesIO(data))
            with pack.open("rb") as file:
                tar.addfile(_member(PACK, size), file)
    return None


def _small_members(checkout: UserRepository) -> dict[str, bytes]:
    """Return the content of a snapshot's files besides the pack."""
    settings = {name: checkout.settings.get(name, default) for name, default in _DEFAULTS.items()}
    object_format = checkout.settings.get(_FORMAT, "")
    if object_format:
        settings[_FORMAT] = object_format
    ignore = Path(checkout.excludes())
    return {
        SETTINGS: json.dumps(settings, sort_keys=True).encode(),
        "exclude": _info(checkout, "exclude"),
        "attributes": _info(checkout, "attributes"),
        "ignore": _read(ignore) if ignore.is_absolute() else b"",
    }


def unpack_snapshot(snapshot: Path, place: Path, beneath: Path, commit: str) -> None:
    """Make the repository of a snapshot whose bytes were checked, unless it is complete. Blocking."""
    if place.exists():
        return
    new = place.with_name(f"{place.name}.new")
    with translate_os_errors("unpacking the repository"):
        remove_tree(new)
        try:
            _check_complete(_unpack(snapshot, new / ".git", place / ".git", beneath, commit), commit)
            new.rename(place)
        except (tarfile.TarError, ValueError) as error:
            raise WorktreeFailed(f"the copy of the repository cannot be unpacked: {error}") from error
        finally:
            remove_tree(new)


def pack_branch(repository: Path, home: Path, branch: Branch, path: Path) -> None:
    """Write the new objects of a branch to a file. Blocking. Raises WorktreeFailed if this cannot be done."""
    with UserRepository.at(repository, home).joined() as git, temporary_folder("packing the branch") as aside:
        objects = new_objects(git, branch.base, branch.head)
        name = git.line(*_PACKING, str(aside / "pack"), stdin=lines_of(objects))
        shutil.copyfile(aside / f"pack-{name}.pack", path)


@dataclass(frozen=True)
class TravelledBranch:
    """A branch from another machine, as the log has it: one commit `head` on the approved `base`, in `namespace`."""

    run_id: str
    base: str
    head: str
    namespace: Sequence[str]


def has_commit(repository: Path, home: Path, commit: str, identity: tuple[str, ...] = (), git_folder: str = "") -> bool:
    """Tell whether a repository has a commit. Blocking. Raises FolderReplaced, NoRepository, WorktreeFailed."""
    with UserRepository.at(repository, home, identity, only(git_folder)).joined() as git:
        return git.run("cat-file", "-e", f"{commit}^{{commit}}").code == 0


def bring_branch(
    pack: Path,
    branch: TravelledBranch,
    repository: Path,
    home: Path,
    identity: tuple[str, ...] = (),
    accept: Accept = NOTHING_OUTSIDE,
) -> str:
    """Make a branch of a repository from a pack; return its name. Blocking; the checkout and the index stay.

    The bytes of the pack were checked. An existing branch is never changed: if it is another one, the new branch gets
    another name. `identity` is the approved one of the repository; empty accepts any that has the approved commit.
    `accept` decides about a git folder outside of the checkout. Raises FolderReplaced if the repository is not the
    approved one; NoRepository: it is gone, or lacks the commit that the branch begins at; WorktreeFailed: the pack is
    not that branch.
    """
    checkout = UserRepository.at(repository, home, identity, accept)
    with temporary_folder("bringing the branch") as aside:
        git = checkout.git_folder(aside / "git", joined=False)
        if git.run("cat-file", "-e", f"{branch.base}^{{commit}}").code != 0:
            raise NoRepository(f"{repository} lacks the commit {branch.base} that the branch begins at; fetch it first")
        _index(git, pack)
        _check_branch(git, branch)
        with checkout.joined() as joined:
            branches = list_branches(joined)
            for name in names_of(branch.run_id):
                if branches.get(name) == branch.head:
                    return name
            name = free_name(repository, branch.run_id, branches)
            copy_objects(checkout, joined, git, branch.base, branch.head)
            update_branch(checkout, joined, name, branch.head, None)
    return name


def _check_branch(git: Git, branch: TravelledBranch) -> None:
    """Raise WorktreeFailed unless a commit follows the approved one, and changes only what was approved."""
    if git.run("cat-file", "-e", f"{branch.head}^{{commit}}").code != 0:
        raise WorktreeFailed(f"what was stored as the branch of {branch.run_id} lacks its commit {branch.head}")
    parents = git.line("rev-parse", f"{branch.head}^@").split()
    if parents != [branch.base]:
        raise WorktreeFailed(f"the commit {branch.head} does not follow the approved commit {branch.base}")
    for file in changed_files(git, branch.base, branch.head):
        if not within(branch.namespace, file.path):
            raise WorktreeFailed(f"the branch changes {shown(file.path)}, which {branch.run_id} may not change")


def _objects_of(git: Git, commit: str) -> list[str]:
    objects: set[str] = set()
    for entry in git("ls-tree", "-r", "-t", "-z", "--full-tree", commit).names():
        _mode, kind, object_id = entry.partition("\t")[0].split()
        if kind != "commit":
            objects.add(object_id)
    return [commit, git.line("rev-parse", f"{commit}^{{tree}}"), *sorted(objects)]


def _info(checkout: UserRepository, name: str) -> bytes:
    with closing(Root.open(checkout.common)) as root, suppress(ToolFailed):
        return root.read(f"info/{name}", _SMALL_BYTES)[0]
    return b""


def _read(path: Path) -> bytes:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= _SMALL_BYTES:
            return path.read_bytes()
    return b""


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


def _unpack(snapshot: Path, own: Path, later: Path, beneath: Path, commit: str) -> Git:
    """Write the files of a snapshot into a new git directory, which is moved to `later` afterwards."""
    program = git_program(beneath)
    if program is None:
        raise WorktreeFailed(NO_GIT)
    for name in ("objects/pack", "info", "refs/heads"):
        make_folders(own / name, beneath)
    files: dict[str, bytes] = {}
    pack = own / "objects" / "pack" / f"pack-{commit}.pack"
    with tarfile.open(snapshot, "r:") as tar:
        for member in tar:
            is_expected = member.name in _MEMBERS and member.name not in files
            if not is_expected or not member.isreg():
                raise ValueError(f"it has {shown(member.name)}")
            source = tar.extractfile(member)
            assert source is not None, "it is a regular file"
            if member.name == PACK:
                with pack.open("xb") as file:
                    shutil.copyfileobj(source, file, _SMALL_BYTES)
                files[PACK] = b""
            else:
                files[member.name] = source.read(_SMALL_BYTES)
    if set(files) != set(_MEMBERS):
        raise ValueError(f"it lacks {min(set(_MEMBERS) - set(files))}")
    for name in ("exclude", "attributes"):
        (own / "info" / name).write_bytes(files[name])
    (own / "info" / "ignore").write_bytes(files["ignore"])
    (own / "shallow").write_text(f"{commit}\n")
    (own / "config").write_text(_config_text(json.loads(files[SETTINGS]), later / "info" / "ignore"), "utf-8")
    (own / "HEAD").write_text(f"{commit}\n")
    return Git(program, own)


def _config_text(settings_json: Any, ignore: Path) -> str:
    values: dict[str, Any] = {}
    if isinstance(settings_json, dict):
        values = cast("dict[str, Any]", settings_json)
    settings = {name: str(values.get(name, default)) for name, default in _DEFAULTS.items()}
    settings["core.excludesfile"] = str(ignore)
    version = 1 if values.get(_FORMAT) else 0
    lines = ["[core]", f"\trepositoryformatversion = {version}", "\tbare = false"]
    if str(values.get(_FORMAT, "")):
        object_format = "sha256" if values[_FORMAT] == "sha256" else "sha1"
        lines.append(f'[extensions]\n\tobjectformat = "{object_format}"')
    for name, value in settings.items():
        section, _dot, key = name.partition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("\0", "")
        lines.append(f'[{section}]\n\t{key} = "{escaped}"')
    return "\n".join(lines) + "\n"


def _index(git: Git, pack: Path) -> None:
    """Add a pack to a git directory; git computes the name of each object from its bytes."""
    folder = git.own / "objects" / "pack"
    make_folders(folder, git.own)
    place = folder / "pack-0.pack"
    with translate_os_errors("copying the pack"):
        shutil.copyfile(pack, place)
    git("index-pack", "--strict", str(place))


def _check_complete(git: Git, commit: str) -> None:
    git("index-pack", str(git.own / "objects" / "pack" / f"pack-{commit}.pack"))
    objects = _objects_of(git, commit)
    lines = git("cat-file", "--batch-check=%(objectname)", stdin=lines_of(objects)).out.split(b"\n")
    if any(line.endswith(b" missing") for line in lines):
        raise WorktreeFailed(f"the copy of the repository lacks files of the commit {commit}")
