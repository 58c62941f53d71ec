"""The workspace: what lies beneath it can be reached, and no name, link or race leads out."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.sandboxes.roots import WAYS, kernel, stepwise_root, swap_names

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox import path_access
from ava_roles.sandbox.linux import NotOnThisSystem
from ava_roles.sandbox.path_access import PlainPaths
from ava_roles.sandbox.paths import Root

SECRET = b"the secret outside"


HOSTILE = [
    "../outside/secret",
    "src/../../outside/secret",
    "..",
    "src/..",
    "./../outside/secret",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "link-out",
    "link-in",
    "folder-out/secret",
    "folder-in/main.py",
    "magic/etc/passwd",
    "self",
    "hard",
    "pipe",
    "socket",
    "src/main.py\0.txt",
    "a/" * 3000 + "b",
    "~/../../etc/passwd",
    "src/main.py/../../../outside/secret",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_refuses_to_read_a_hostile_path(root: Root, name: str) -> None:
    with pytest.raises(AccessRefused) as refused:
        root.read(name)
    assert SECRET.decode() not in str(refused.value)
    assert "\0" not in str(refused.value)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_refuses_to_write_a_hostile_path(root: Root, name: str) -> None:
    with pytest.raises(ToolFailed):
        root.replace(name, b"overwritten")
    assert (root.path.parent / "outside" / "secret").read_bytes() == SECRET
    assert sorted(each.name for each in (root.path.parent / "outside").iterdir()) == ["secret"]


@pytest.mark.parametrize("name", ["..", "folder-out", "folder-in", "magic", "/", "src/../.."])
def test_does_not_list_a_folder_outside_or_behind_a_link(root: Root, name: str) -> None:
    with pytest.raises(ToolFailed):
        root.entries(name)
    with pytest.raises(ToolFailed):
        if not list(root.walk(name)):
            raise ToolFailed("a link yields nothing")


def test_reads_a_file_by_relative_and_by_absolute_path(root: Root) -> None:
    assert root.read("src/main.py") == (b"print('hello')\n", False)
    assert root.read("./src//main.py") == (b"print('hello')\n", False)
    assert root.read(str(root.path / "src" / "main.py")) == (b"print('hello')\n", False)


def test_a_read_stops_at_its_limit_even_in_a_huge_sparse_file(root: Root) -> None:
    with (root.path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    assert root.read("sparse", cap=1000) == (bytes(1000), True)
    assert root.read("src/main.py", cap=15) == (b"print('hello')\n", False)


def test_the_error_for_a_missing_file_says_where_to_look(root: Root) -> None:
    with pytest.raises(ToolFailed, match=r"src/nothing.py does not exist.*'src'") as failed:
        root.read("src/nothing.py")
    assert not isinstance(failed.value, AccessRefused)


def test_a_folder_cannot_be_read_as_a_file(root: Root) -> None:
    for name in ("src", "", "."):
        with pytest.raises(ToolFailed, match="folder"):
            root.read(name)


def test_lists_entries_sorted_and_with_their_kind(root: Root) -> None:
    kinds = {entry.name: entry.kind for entry in root.entries()}
    assert list(kinds) == sorted(kinds)
    assert kinds["src"] == "folder"
    assert kinds["link-out"] == kinds["folder-out"] == "link"
    assert kinds["pipe"] == kinds["socket"] == "other"
    assert [(entry.name, entry.size) for entry in root.entries("src")] == [("main.py", 15)]


def test_a_walk_yields_files_in_path_order_and_follows_no_links(root: Root) -> None:
    (root.path / "src" / "deep").mkdir()
    for name in ("src/deep/z.txt", "src/a.txt", "src-other.txt", "src/deep-er.txt"):
        (root.path / name).write_text("x")
    found = [entry.name for entry in root.walk()]
    assert found == sorted(found)
    assert "src/deep/z.txt" in found
    assert not [name for name in found if name.startswith(("folder-", "magic", "self", "link-"))]
    assert [entry.name for entry in root.walk("src/deep")] == ["src/deep/z.txt"]
    assert [entry.name for entry in root.walk("src/main.py")] == ["src/main.py"]


def test_a_walk_stops_at_its_limit_and_skips_unwanted_entries(root: Root) -> None:
    assert len(list(root.walk(limit=4))) < 4
    kept = [entry.name for entry in root.walk(keep=lambda entry: entry.name != "src")]
    assert "src/main.py" not in kept


def test_replacing_a_file_keeps_its_permissions_and_leaves_no_temporary_file(root: Root) -> None:
    target = root.path / "src" / "main.py"
    target.chmod(0o750)
    root.replace("src/main.py", b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in (root.path / "src").iterdir()] == ["main.py"]


def test_creates_the_folders_of_a_new_file_only_on_request(root: Root) -> None:
    with pytest.raises(ToolFailed):
        root.replace("new/deep/file.txt", b"x")
    root.replace("new/deep/file.txt", b"x", mode=0o600, create_dirs=True)
    assert (root.path / "new/deep/file.txt").read_bytes() == b"x"
    assert (root.path / "new/deep/file.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ToolFailed):
        root.replace("folder-out/deep/file.txt", b"x", create_dirs=True)
    assert not (root.path.parent / "outside" / "deep").exists()


def test_a_failed_write_leaves_no_temporary_file(root: Root) -> None:
    with pytest.raises(ToolFailed):
        root.replace("src", b"a folder is in the way")
    with pytest.raises(ToolFailed):
        root.replace("src/" + "x" * 300, b"name too long")
    assert [each.name for each in (root.path / "src").iterdir()] == ["main.py"]
    assert not [each.name for each in root.path.iterdir() if each.name.startswith(".")]


def test_a_closed_root_reads_nothing(root: Root) -> None:
    if isinstance(root._access, PlainPaths):
        pytest.skip("holds nothing that could be closed")
    root.close()
    root.close()
    with pytest.raises(ToolFailed):
        root.read("src/main.py")


def test_falls_back_to_opening_paths_step_by_step_without_openat2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(folder: int, name: str, flags: int, mode: int = 0) -> int:
        raise NotOnThisSystem("openat2")

    monkeypatch.setattr(path_access, "openat2", missing)
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("/etc/passwd")
    root = Root.open(tmp_path)
    assert root.read("file") == (b"content", False)
    with pytest.raises(AccessRefused):
        root.read("link")
    root.close()


def test_falls_back_to_plain_paths_without_folder_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_access, "has_folder_descriptors", lambda: False)
    (tmp_path / "file").write_text("content")
    root = Root.open(tmp_path)
    assert isinstance(root._access, PlainPaths)
    assert root.read("file") == (b"content", False)


def test_a_file_cannot_be_a_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    for way in WAYS:
        with pytest.raises(OSError):
            way(tmp_path / "file")


@pytest.mark.parametrize("way", [kernel, stepwise_root])
def test_a_folder_swapped_for_a_link_leaks_and_overwrites_nothing(tmp_path: Path, way: Callable[[Path], Root]) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "src").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    (inside / "src" / "file").write_bytes(b"inside")
    (inside / "swap").symlink_to(outside)
    root = way(inside)
    served = refused = 0
    with swap_names(inside / "src", inside / "swap"):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                assert root.read("src/file")[0] in (b"inside", b"written")
                root.replace("src/file", b"written")
                assert all(entry.size < len(SECRET) for entry in root.walk("src"))
                served += 1
            except ToolFailed:
                refused += 1
    root.close()
    assert served
    assert refused
    assert (outside / "file").read_bytes() == SECRET
    assert [each.name for each in outside.iterdir()] == ["file"]


@pytest.fixture(params=WAYS, ids=lambda way: str(way.__name__))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """A workspace with everything hostile in it, seen in each of the ways."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "src").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    (inside / "src" / "main.py").write_bytes(b"print('hello')\n")
    (inside / "link-out").symlink_to(outside / "secret")
    (inside / "link-in").symlink_to(inside / "src" / "main.py")
    (inside / "folder-out").symlink_to(outside)
    (inside / "folder-in").symlink_to(inside / "src")
    (inside / "magic").symlink_to("/proc/self/root")
    (inside / "self").symlink_to("self")
    (inside / "hard").hardlink_to(outside / "secret")
    os.mkfifo(inside / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = Path.cwd()
        os.chdir(inside)
        try:
            unix.bind("socket")
        finally:
            os.chdir(here)
    make: Callable[[Path], Root] = request.param
    root = make(inside)
    yield root
    root.close()
