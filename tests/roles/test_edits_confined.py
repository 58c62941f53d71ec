"""What a run may change in its worktree: its namespace, nothing else by any name, link or race, and never in part."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.sandboxes.roots import WAYS, kernel, stepwise_root, swap_names

from ava_roles.errors import AccessRefused, NotThere, ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.worktree.spec import BYTES_MAX, Edits, belongs_to_git

SECRET = b"the secret outside"


HOSTILE = [
    *("..", "../outside/secret", "src/../../outside/secret", "src/..", "/etc/passwd", "//etc/passwd", "", ".", "./"),
    *(
        "link-out",
        "src/link-out",
        "link-in",
        "src/link-in",
        "folder-out/secret",
        "folder-out/new",
        "src/folder-out/new",
    ),
    *("dangling", "src/dangling", "hard", "src/hard", "pipe", "src/pipe", "src/main.py\0.txt", "a/" * 3000 + "b"),
    *(
        "src/main.py/below",
        "src",
        "src\\main.py",
        "src\\..\\..\\outside\\secret",
        "C:\\new",
        "src/new\n.py",
        "src/\x1bx",
    ),
    *(".git", ".git/config", ".git/hooks/pre-commit", "src/.git", "src/.git/config", "src/.GIT/config", ".Git/config"),
    *(".git /config", ".git./config", ".git. . /x", ".git::$INDEX_ALLOCATION/config", ".git:x", "git~1/config"),
    *(
        "GIT~2",
        ".g\u200cit/config",
        ".gi\u200dt/x",
        "\ufeff.git/config",
        ".git\u2060/x",
        "src/\uff0e\uff47\uff49\uff54/x",
    ),
    *("src/\ud800.py", "src/" + "x" * 300),
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_neither_writes_nor_reads_a_hostile_path(root: Root, name: str) -> None:
    for namespace in (".", "src"):
        with pytest.raises(ToolFailed) as refused:
            edits(root, namespace).write(name, b"overwritten")
        assert SECRET.decode() not in str(refused.value) and str(refused.value).isprintable()
        with pytest.raises(ToolFailed):
            edits(root, namespace).read(name)
        assert unharmed(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_neither_writes_nor_reads_a_device(root: Root) -> None:
    os.mknod(root.path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for act in (lambda: edits(root).write("null", b"x"), lambda: edits(root).read("null")):
        with pytest.raises(AccessRefused, match="not a regular file"):
            act()


@pytest.mark.parametrize(
    ("name", "is_git"),
    [
        *(
            (".gitignore", False),
            (".github", False),
            ("git", False),
            ("git~", False),
            ("a.git", False),
            ("x:.git", False),
        ),
        *((".gitmodules", False), (".git2", False), ("digit~1", False), (".g it", False), ("git~1x", False)),
        *((".git", True), (".gIt...", True), ("git~12", True), (".git:stream", True), (".git \u200e", True)),
    ],
)
def test_distinguishes_git_names_from_similar_ones(name: str, is_git: bool) -> None:
    assert belongs_to_git(name) is is_git


@pytest.mark.parametrize(
    ("namespace", "allowed", "refused"),
    [
        (["src"], ["src/main.py", "src/new/deep.py", "./src//main.py"], ["src2/a.py", "srcs", "README.md", "Src/a.py"]),
        (["src/"], ["src/main.py"], ["src2/a.py"]),
        (["./src/main.py"], ["src/main.py"], ["src/main.py2", "src/main", "src/new.py"]),
        (["new/folder"], ["new/folder/a.py", "new/folder/b/c.py"], ["new/a.py", "new/folder2/a.py", "a/new/folder/x"]),
        (["src", "README.md"], ["README.md", "src/x"], ["README.md2", "docs/README.md"]),
        (["."], ["anything", "src2/a.py", "a/b/c"], []),
        (["../outside"], [], ["src/main.py", "outside/secret"]),
    ],
)
def test_allows_writes_only_in_the_namespace(
    root: Root, namespace: list[str], allowed: list[str], refused: list[str]
) -> None:
    own = edits(root, *namespace)
    for name in allowed:
        own.write(name, b"new")
        assert own.read(name) == b"new"
        (root.path / name).unlink()
    for name in refused:
        before = (root.path / name).read_bytes() if (root.path / name).is_file() else None
        with pytest.raises(AccessRefused, match="outside of") as said:
            own.write(name, b"new")
        assert namespace[0] in str(said.value) and "say in the result" in str(said.value)
        assert ((root.path / name).read_bytes() if (root.path / name).is_file() else None) == before


def test_leaves_submodules_and_git_lfs_pointers_unchanged(root: Root) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 5\n"
    (root.path / "big.bin").write_bytes(pointer)
    own = edits(root, submodules=("lib/other",))
    with pytest.raises(AccessRefused, match="Git LFS"):
        own.read("big.bin")
    with pytest.raises(AccessRefused, match="the submodule lib/other"):
        own.write("lib/other/a.c", b"x")
    own.write("lib/other2/a.c", b"x")
    (root.path / "about.md").write_bytes(pointer + b"x" * 1024)
    assert own.read("about.md").endswith(b"xx"), "what only begins like one is none"


def test_keeps_file_permissions_but_removes_setuid(root: Root) -> None:
    own = edits(root)
    (root.path / "run.sh").write_bytes(b"old")
    (root.path / "run.sh").chmod(0o4755)
    own.write("run.sh", b"new")
    own.write("made/here.txt", b"new")
    assert stat.S_IMODE((root.path / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((root.path / "made/here.txt").stat().st_mode) == 0o644


def test_distinguishes_missing_oversized_and_blocked_paths(root: Root) -> None:
    own = edits(root)
    with pytest.raises(NotThere, match="does not exist"):
        own.read("src/nothing.py")
    with (root.path / "huge").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(ToolFailed, match="too large"):
        own.read("huge")
    with pytest.raises(ToolFailed, match="more than 2,000,000"):
        own.write("src/main.py", b"x" * (BYTES_MAX + 1))
    with pytest.raises(ToolFailed, match="src is a folder"):
        own.write("src", b"x")
    assert (root.path / "src/main.py").read_bytes() == b"print('hello')\n"


@pytest.mark.parametrize("way", [kernel, stepwise_root])
def test_a_folder_swapped_for_a_link_during_writes_leads_nowhere(tmp_path: Path, way: Callable[[Path], Root]) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "src").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    (tree / "swap").symlink_to(outside)
    root = way(tree)
    own = edits(root, "src", "swap")
    written = refused = 0
    with swap_names(tree / "src", tree / "swap"):
        began = time.monotonic()
        while (took := time.monotonic() - began) < 0.5 or (took < 20 and not (written and refused)):
            try:
                own.write("src/file", b"written")
                own.write(f"src/deep{written}/file", b"written")
                written += 1
            except ToolFailed:
                refused += 1
    root.close()
    assert written and refused
    assert (outside / "file").read_bytes() == SECRET and [each.name for each in outside.iterdir()] == ["file"]
    assert list((tmp_path / "edits").iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from ava_roles.sandbox.paths import Root
from ava_roles.worktree.spec import Edits
here = Path(sys.argv[1])
edits = Edits(Root.open(here / "tree"), ["src"], here / "edits")
print("ready", flush=True)
while True:
    for letter in b"ab":
        edits.write("src/file", bytes([letter]) * 1_900_000)
"""


def test_a_kill_during_a_write_leaves_the_old_or_the_new_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree/src/file").write_bytes(b"a" * 1_900_000)
    left = 0
    for round_ in range(60):
        if round_ >= 12 and left:
            break
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(0.003 * round_)
            writer.send_signal(signal.SIGKILL)
        content = (tmp_path / "tree/src/file").read_bytes()
        assert len(content) == 1_900_000 and set(content) in ({ord("a")}, {ord("b")})
        assert [path.name for path in (tmp_path / "tree").rglob("*")] == ["src", "file"]
        left += len(list((tmp_path / "edits").iterdir()))
    assert left, "no kill came while something was being written"
    root = Root.open(tmp_path / "tree")
    edits(root)
    root.close()
    assert list((tmp_path / "edits").iterdir()) == [], "the next start removes it"


FULL = """
import sys
from pathlib import Path
from ava_roles.sandbox.paths import Root
from ava_roles.errors import ToolFailed
from ava_roles.worktree.spec import Edits
here = Path(sys.argv[1])
(here / "tree").mkdir()
edits = Edits(Root.open(here / "tree"), ["."], here / "edits")
edits.write("file", b"old" * 100_000)
try:
    edits.write("file", b"new" * 600_000)
except ToolFailed as error:
    print(error)
assert (here / "tree/file").read_bytes() == b"old" * 100_000
assert not list((here / "edits").iterdir())
assert [path.name for path in (here / "tree").iterdir()] == ["file"]
"""
SMALL_DISK = 'mount -t tmpfs -o size=1m none "$1" || exit 77; shift; exec "$@"'


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_reports_a_full_disk_and_leaves_the_file_unchanged(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh", str(tmp_path)]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "file was not written: the disk is full; say so in the result\n"


@pytest.fixture(params=WAYS, ids=lambda way: str(way.__name__))
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """A worktree with everything hostile in it, seen in each of the ways."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "src").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    (tree / "src" / "main.py").write_bytes(b"print('hello')\n")
    (tree / "src2").mkdir()
    (tree / "README.md").write_bytes(b"read me\n")
    for folder in (tree, tree / "src"):
        (folder / "link-out").symlink_to(outside / "secret")
        (folder / "link-in").symlink_to(tree / "src" / "main.py")
        (folder / "folder-out").symlink_to(outside)
        (folder / "dangling").symlink_to(outside / "new")
        (folder / "hard").hardlink_to(outside / "secret")
        os.mkfifo(folder / "pipe")
    (tree / ".git").mkdir()
    (tree / ".git" / "config").write_bytes(b"[core]\n")
    make: Callable[[Path], Root] = request.param
    found = make(tree)
    yield found
    found.close()


def edits(root: Root, *namespace: str, submodules: tuple[str, ...] = ()) -> Edits:
    return Edits(root, namespace or (".",), root.path.parent / "edits", submodules)


def unharmed(root: Root) -> bool:
    outside = root.path.parent / "outside"
    assert (outside / "secret").read_bytes() == SECRET
    assert (root.path / ".git" / "config").read_bytes() == b"[core]\n"
    assert list((root.path.parent / "edits").iterdir()) == []
    return [each.name for each in outside.iterdir()] == ["secret"]
