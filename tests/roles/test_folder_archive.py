"""A folder that travels: what tools may read, the same bytes each time, and nothing that could lead elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from support.repositories.projects import checkout, write

from ava_roles.errors import FolderReplaced
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.workspace_copy import pack_folder, unpack_folder

LIMIT = 1_000_000


def packed(tmp: Path, folder: Path, name: str = "archive", limit: int = LIMIT) -> str | None:
    (tmp / "home").mkdir(exist_ok=True)
    aside = tmp / f"aside-{name}"
    aside.mkdir()
    root = Root.open(folder)
    try:
        return pack_folder(root, tmp / "home", limit, aside, tmp / name)
    finally:
        root.close()


def unpacked(tmp: Path, archive: Path, limit: int = LIMIT) -> Path:
    (tmp / "root").mkdir(exist_ok=True)
    unpack_folder(archive, tmp / "root" / "S-1" / "folder", tmp / "root", limit)
    return tmp / "root" / "S-1" / "folder"


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_what_tools_may_read_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    odd = os.fsdecode(b"odd-\xff.md")
    write(folder, {"a.md": "a", "deep/er/b.md": "b", "run": "#!/bin/sh\n", odd: "odd", "x" * 200 + ".md": "long"})
    write(tmp_path, {"outside.md": "secret"})
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    (folder / "inner").symlink_to("deep")
    os.link(tmp_path / "outside.md", folder / "hard.md")
    os.mkfifo(folder / "pipe")
    assert packed(tmp_path, folder) is None
    place = unpacked(tmp_path, tmp_path / "archive")
    assert names(place) == sorted(["a.md", "deep/er/b.md", "run", odd, "x" * 200 + ".md"])
    assert (place / "deep" / "er" / "b.md").read_text() == "b" and (place / odd).read_text() == "odd"
    assert os.access(place / "run", os.X_OK) and not os.access(place / "a.md", os.X_OK)


def test_of_a_checkout_neither_git_nor_what_it_ignores_travels(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "folder", {"a.md": "a", ".gitignore": "*.log\nnode_modules/\n"})
    write(folder, {"b.log": "ignored", "node_modules/x/y.js": "ignored", "new.md": "untracked"})
    assert packed(tmp_path, folder) is None
    assert names(unpacked(tmp_path, tmp_path / "archive")) == [".gitignore", "a.md", "new.md"]


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    for name, order in (("one", ("a", "b", "c/d")), ("two", ("c/d", "b", "a"))):
        for file in order:
            write(tmp_path / name, {file: file})
        assert packed(tmp_path, tmp_path / name, f"archive-{name}") is None
    os.utime(tmp_path / "two" / "a", (1, 1))
    assert (tmp_path / "archive-one").read_bytes() == (tmp_path / "archive-two").read_bytes()


@pytest.mark.parametrize("git", [False, True])
def test_a_folder_over_the_bound_does_not_travel(tmp_path: Path, git: bool) -> None:
    files = {f"{number}.md": "x" * 60_000 for number in range(20)}
    folder = tmp_path / "folder"
    if git:
        checkout(folder, files)
    else:
        write(folder, files)
    why = packed(tmp_path, folder)
    assert why is not None and ("more than 50,000 files or 1 MB" if git else "20 files with 1 MB") in why
    assert not (tmp_path / "archive").exists()


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([(tarfile.TarInfo("../evil"), b"x")], "it has ../evil"),
        ([(tarfile.TarInfo("/etc/evil"), b"x")], "it has"),
        ([(tarfile.TarInfo("a/./b"), b"x")], "it has"),
        ([(link("a", "/etc"), b"")], "it has a"),
        ([(link("a", "b", tarfile.LNKTYPE), b"")], "it has a"),
        ([(link("a", "", tarfile.FIFOTYPE), b"")], "it has a"),
        ([(tarfile.TarInfo("a"), b"x"), (tarfile.TarInfo("a"), b"y")], "exists"),
        ([(tarfile.TarInfo("a"), b"x"), (tarfile.TarInfo("a/b"), b"y")], "cannot be unpacked"),
        ([(tarfile.TarInfo("a"), b"x" * 2_000_000)], "larger than it may be"),
    ],
)
def test_an_archive_of_another_form_leaves_nothing(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], why: str
) -> None:
    archive_of(tmp_path / "archive", *members)
    with pytest.raises(FolderReplaced, match=why):
        unpacked(tmp_path, tmp_path / "archive")
    assert names(tmp_path / "root") == [] and not (tmp_path / "evil").exists()


def test_what_is_no_archive_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"no tar" * 1_000)
    with pytest.raises(FolderReplaced, match="cannot be unpacked"):
        unpacked(tmp_path, tmp_path / "archive")
    assert names(tmp_path / "root") == []
