"""The throw-away copy of a workspace: what of it is there, what is not, and that the workspace stays as it was."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.repositories.projects import checkout, git, names, tree, write

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.git import list_checkout
from ava_roles.sandbox.path_access import remove_tree
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.workspace import repository_of
from ava_roles.sandbox.workspace_copy import FOLDER_FILES, CopyReport, copy_workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    files = {"src/main.py": "print(1)\n", "run.sh": "#!/bin/sh\n", ".gitignore": ".env\n*.log\nnode_modules/\n/out/\n"}
    return checkout(tmp_path / "project", files)


def copied(
    folder: Path, tmp_path: Path, carry: tuple[str, ...] = (), home: Path | None = None, git_folder: str = ""
) -> tuple[Path, CopyReport]:
    """Copy a folder; return where to, and what came of it."""
    into = tmp_path / "bench" / "copy"
    into.mkdir(parents=True)
    home = home or tmp_path / "home"
    root = Root.open(folder)
    try:
        repository = repository_of(folder, home)
        done = copy_workspace(root, into, repository=repository, home=home, carry=carry, git_folder=git_folder)
        return into, done
    finally:
        root.close()


def test_copies_a_checkout_without_ignored_files_and_git_data(project: Path, tmp_path: Path) -> None:
    (project / "src" / "main.py").write_text("print(2)\n")
    (project / "new.py").write_text("new\n")
    (project / ".env").write_text("PASSWORD=hunter2\n")
    (project / "debug.log").write_text("noise\n")
    before = tree(project)
    into, done = copied(project, tmp_path)
    assert names(into) == {"src/main.py", "run.sh", ".gitignore", "new.py"}
    assert (into / "src" / "main.py").read_text() == "print(2)\n"
    assert os.access(into / "run.sh", os.X_OK) and not os.access(into / "new.py", os.X_OK)
    assert (done.whole, done.git, done.files) == (True, True, 4)
    assert tree(project) == before, "the checkout, its index and its times are as they were"
    assert [path.name for path in (tmp_path / "bench").iterdir()] == ["copy"]


def test_leaves_out_a_deleted_file_and_copies_a_staged_one(project: Path, tmp_path: Path) -> None:
    (project / "run.sh").unlink()
    (project / "staged.log").write_text("forced\n")
    git(project, "add", "-f", "staged.log")
    into, _done = copied(project, tmp_path)
    assert names(into) == {"src/main.py", ".gitignore", "staged.log"}


@pytest.mark.parametrize(
    "name", ["a\nb.txt", "? x.txt", "-rf", " lead", "ünï \t.txt", os.fsdecode(b"b\xff.txt"), '"q"']
)
@pytest.mark.parametrize("tracked", [True, False])
def test_copies_files_with_any_name(project: Path, tmp_path: Path, name: str, tracked: bool) -> None:
    (project / name).write_text("odd\n")
    if tracked:
        git(project, "add", "--", f"./{name}")
    into, _done = copied(project, tmp_path)
    assert (into / name).read_text() == "odd\n"


def test_copies_only_the_requested_part_of_a_checkout(project: Path, tmp_path: Path) -> None:
    (project / "src" / "more.py").write_text("more\n")
    (project / "src" / "x.log").write_text("ignored from above\n")
    into, _done = copied(project / "src", tmp_path)
    assert names(into) == {"main.py", "more.py"}


@pytest.mark.parametrize("within", ["out", "out/deep"])
def test_copies_all_files_of_a_folder_that_its_repository_ignores(project: Path, tmp_path: Path, within: str) -> None:
    write(project / within, {"a.txt": "a", "b.log": "b"})
    into, done = copied(project / within, tmp_path)
    assert names(into) == {"a.txt", "b.log"} and not done.git


def test_the_copy_of_a_checkout_with_only_ignored_files_is_empty(project: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    write(fresh, {".env": "PASSWORD=x", ".git/info/exclude": ".env\n"})
    git(fresh, "init", "-q")
    into, done = copied(fresh, tmp_path)
    assert names(into) == set() and done.git


def test_copies_a_worktree_like_any_checkout(project: Path, tmp_path: Path) -> None:
    git(project, "worktree", "add", "-q", str(tmp_path / "second"))
    (tmp_path / "second" / "x.log").write_text("ignored\n")
    into, _done = copied(tmp_path / "second", tmp_path, git_folder=str(project / ".git"))
    assert names(into) == {"src/main.py", "run.sh", ".gitignore"}


def test_copies_the_files_of_submodules_and_nested_repositories(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "lib.py").write_text("lib\n")
    git(library, "init", "-q")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "first")
    git(project, "submodule", "add", "-q", str(library), "sub")
    git(project, "clone", "-q", str(library), "nested")
    into, _done = copied(project, tmp_path)
    assert {"sub/lib.py", "nested/lib.py"} < names(into)
    assert not [name for name in names(into) if ".git" in name.split("/")]


def test_leaves_out_files_that_the_users_global_git_settings_ignore(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/mine\n")
    (home / "mine").write_text("secrets.json\n")
    (project / "secrets.json").write_text("{}")
    (project / ".git" / "info" / "exclude").write_text("notes.txt\n")
    (project / "notes.txt").write_text("mine\n")
    into, _done = copied(project, tmp_path, home=home)
    assert not {"secrets.json", "notes.txt"} & names(into)


@pytest.mark.parametrize("where", ["config", "attributes"])
def test_runs_nothing_that_a_repository_configures(project: Path, tmp_path: Path, where: str) -> None:
    planted = tmp_path / "planted"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {planted}\n")
    script.chmod(0o755)
    hooks = project / ".git" / "hooks"
    for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout", "pre-commit"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch {planted}\n")
        (hooks / hook).chmod(0o755)
    if where == "attributes":
        (project / ".gitattributes").write_text("* filter=evil diff=evil\n")
    with (project / ".git" / "config").open("a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {script}\n\thooksPath = {hooks}\n\tpager = {script}\n"
            f'[filter "evil"]\n\tclean = {script}\n\tsmudge = {script}\n\tprocess = {script}\n'
            f'[diff "evil"]\n\tcommand = {script}\n\ttextconv = {script}\n[alias]\n\tls-files = "!{script}"\n'
        )
    into, _done = copied(project, tmp_path)
    assert not planted.exists()
    assert (into / "src" / "main.py").is_file()


@pytest.mark.parametrize("first", ["node_modules/.bin", ".", "link"])
def test_does_not_run_a_git_program_from_the_project(
    project: Path, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = "" if first != "node_modules/.bin" else f"{first}/"
    write(project, {f"{folder}git": f'#!/bin/sh\ntouch {tmp_path}/ran\nexec /usr/bin/git "$@"\n'})
    (tmp_path / "link").symlink_to(project)
    named = {"node_modules/.bin": project / first, ".": Path(), "link": tmp_path / "link"}[first]
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{named}{os.pathsep}{os.environ['PATH']}")
    assert (copied(project, tmp_path)[0] / "src" / "main.py").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "commondir", "index"])
@pytest.mark.parametrize("what", ["a pipe", "a device", "a sparse gigabyte"])
def test_special_files_in_a_git_folder_do_not_block(project: Path, tmp_path: Path, name: str, what: str) -> None:
    at = project / ".git" / name
    at.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(at)
    elif what == "a device":
        at.symlink_to("/dev/zero")
    else:
        at.touch()
        os.truncate(at, 1 << 30)
    code = (
        "import resource, sys; from pathlib import Path; from ava_roles.sandbox.git import list_checkout\n"
        "from ava_roles.errors import ToolFailed\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29)); project, aside = map(Path, sys.argv[1:])\n"
        "try: list_checkout(project, project, aside, aside)\n"
        "except ToolFailed: pass\n"
        "print('ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, project, tmp_path], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "ended\n", done.stderr


def test_recreates_links_without_following_them(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret\n")
    (project / "to_file").symlink_to(outside / "secret")
    (project / "to_folder").symlink_to(outside)
    (project / "within").symlink_to("src/main.py")
    git(project, "add", "-A")
    into, _done = copied(project, tmp_path)
    assert (into / "to_file").readlink() == outside / "secret"
    assert (into / "to_folder").is_symlink() and (into / "within").read_text() == "print(1)\n"
    assert names(outside) == {"secret"}


def test_does_not_follow_a_folder_replaced_by_a_link(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "main.py").write_text("secret\n")
    (project / "src" / "main.py").unlink()
    (project / "src").rmdir()
    (project / "src").symlink_to(outside)  # git still knows of src/main.py
    into, _done = copied(project, tmp_path)
    assert not any("secret" in path.read_text() for path in into.rglob("*") if path.is_file() and not path.is_symlink())
    assert names(outside) == {"main.py"}


@contextmanager
def odd_things(folder: Path) -> Generator[None]:
    """A pipe, a socket, a device where we may make one, and a hard link to a file elsewhere."""
    os.mkfifo(folder / "pipe")
    with suppress(PermissionError):
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which has no end
    (folder.parent / "elsewhere").write_text("elsewhere\n")
    os.link(folder.parent / "elsewhere", folder / "second_name")
    here = Path.cwd()
    server = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder)  # a socket's path is short
        server.bind("sock")
        yield
    finally:
        os.chdir(here)
        server.close()


@pytest.mark.parametrize("in_git", [True, False])
def test_leaves_out_and_reports_pipes_sockets_and_hard_links(project: Path, tmp_path: Path, in_git: bool) -> None:
    if not in_git:
        remove_tree(project / ".git")
    with odd_things(project):
        into, done = copied(project, tmp_path)
    assert not {"pipe", "sock", "device", "second_name", "elsewhere"} & names(into)
    assert any("hard links" in why for why in done.left_out)
    assert in_git or done.left_out["pipes, sockets or devices"] >= 2


def test_leaves_a_huge_sparse_file_out_of_a_checkout(project: Path, tmp_path: Path) -> None:
    with (project / "huge.bin").open("wb") as file:
        file.truncate(1_000_000_000)
    into, done = copied(project, tmp_path)
    assert "huge.bin" not in names(into) and (into / "src/main.py").is_file()
    assert done.left_out == {"files of more than 100 MB": 1}


def test_a_huge_sparse_file_makes_a_folder_too_large(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(1_000_000_000)
    into, done = copied(folder, tmp_path)
    assert not done.whole and names(into) == set()


def test_does_not_copy_a_folder_of_too_many_files_and_lists_what_to_hide(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub" / ".git").mkdir(parents=True)
    for number in range(FOLDER_FILES + 1):
        (folder / f"{number}").touch()
    os.mkfifo(folder / "sub" / "pipe")
    into, done = copied(folder, tmp_path)
    assert not done.whole and names(into) == set()
    assert set(done.hidden) == {"sub/.git", "sub/pipe"}


def test_exposes_installed_packages_without_copying_them(project: Path, tmp_path: Path) -> None:
    for name in ("node_modules/left", "web/node_modules/right", ".venv/lib", "env/bin", "out"):
        (project / name).mkdir(parents=True)
        (project / name / "file.txt").write_text("x")
    (project / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    with (project / ".gitignore").open("a") as ignore:
        ignore.write("env/\n")
    into, done = copied(project, tmp_path, carry=("out", "nowhere"))
    assert set(done.dependencies) == {"node_modules", "web/node_modules", ".venv", "env", "out"}
    assert names(into) == {"src/main.py", "run.sh", ".gitignore"}


def test_does_not_expose_installed_packages_that_are_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / "node_modules").symlink_to(tmp_path / "elsewhere")
    _into, done = copied(project, tmp_path, carry=("node_modules",))
    assert done.dependencies == ()


def test_copying_can_be_cancelled(project: Path, tmp_path: Path) -> None:
    (tmp_path / "bench" / "copy").mkdir(parents=True)
    root = Root.open(project)
    count = 0

    def check() -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise ToolFailed("enough")

    with pytest.raises(ToolFailed, match="enough"):
        copy_workspace(root, tmp_path / "bench" / "copy", repository=project, home=tmp_path, check=check)
    root.close()


def test_reports_a_broken_repository(project: Path, tmp_path: Path) -> None:
    (project / ".git" / "index").write_bytes(b"DIRC nonsense")
    with pytest.raises(ToolFailed, match="git cannot list"):
        list_checkout(project, project, tmp_path, tmp_path)


@pytest.mark.parametrize("said", ["gitdir: a\0b\n", "gitdir: a\nb", "gitdir: ../other\n"])
def test_reports_a_repository_with_an_invalid_git_file(project: Path, tmp_path: Path, said: str) -> None:
    write(project, {"inner/.git": said})
    with pytest.raises(ToolFailed):
        list_checkout(project / "inner", project / "inner", tmp_path, tmp_path)


def test_removes_write_protected_and_deeply_nested_folders(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = tmp_path / "folder"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "file").touch()
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    (folder / "link").symlink_to(outside)
    deep = os.open(folder, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    remove_tree(folder)
    remove_tree(folder)
    assert not folder.exists() and (outside / "kept").exists()
