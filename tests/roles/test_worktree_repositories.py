"""Work on repositories of every kind: nothing of them runs, nothing of them changes but for one branch."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.repositories.odd_repositories import REPOSITORIES, make_converted, make_odd_names, write_marking_program
from support.repositories.projects import checkout, git, write
from support.repositories.workshops import FIXED, PROJECT, RUN, checkout_state, open_workshop, order, project
from support.sample import sample
from support.sandboxes.attacks import needs

from ava_roles.errors import NoRepository, WorktreeFailed
from ava_roles.sandbox.git import find_git_folders, only
from ava_roles.worktree.inspect import inspect_checkout
from ava_roles.worktree.repository import UserRepository
from ava_roles.worktree.session import branch_diff, publish_leftover, remove_worktree
from ava_roles.worktree.spec import WorktreeSpec


def _common(repository: Path) -> Path:
    return repository.parent / "main" if (repository / ".git").is_file() else repository


def _outside(repository: Path) -> str:
    return find_git_folders(repository, lambda _folder: None).outside


@pytest.mark.slow
@pytest.mark.parametrize("name", REPOSITORIES)
async def test_runs_nothing_from_a_repository_and_only_adds_one_branch(name: str, tmp_path: Path) -> None:
    needs("bubblewrap")
    mark = tmp_path / "mark"
    repository = REPOSITORIES[name](tmp_path / "project", mark)
    mark.unlink(missing_ok=True)
    everywhere = {each: checkout_state(each) for each in {repository, _common(repository)}}
    outside = _outside(repository)
    state = inspect_checkout(repository, tmp_path / "home", only(outside))
    all_of_it = {"namespace": (".",), "git_folder": outside}
    async with open_workshop("bubblewrap", tmp_path, order(repository, **all_of_it)) as shop:
        assert shop.keep("nothing") is None, "nothing differs yet"
        assert await shop.bench.after_command() == ""
        shop.files.replace("calc.py", FIXED.encode())
        verdict = await shop.check()
        assert verdict.passed, verdict.output
        branch = shop.keep("Mend add")
    assert branch is not None and branch.base == state.head
    assert [each.path for each in branch.changed] == ["calc.py"]
    shown = branch_diff(repository, branch.base, branch.head, tmp_path / "home", git_folder=outside)
    assert "+    return a + b" in shown
    assert {each: checkout_state(each) for each in everywhere} == everywhere
    assert not mark.exists()
    for lock in (repository / ".git").glob("*.lock"):
        lock.unlink()
    for hooks in (repository / ".git/hooks", tmp_path / "hooks"):
        if hooks.is_dir():
            shutil.rmtree(hooks)
    assert git(repository, "--no-replace-objects", "rev-parse", f"{branch.name}^").strip() == branch.base
    assert git(repository, "show", "--no-ext-diff", f"{branch.name}:calc.py") == FIXED
    git(repository, "fsck", "--full", "--no-dangling")
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()


async def test_the_worktree_has_the_same_files_as_a_checkout(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = make_odd_names(tmp_path / "project", tmp_path / "mark")
    git(repository, "stash", "push", "-q", "-u")
    there = {path.relative_to(repository) for path in repository.rglob("*") if ".git" not in path.parts}
    there.discard(Path("empty"))
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        tree = shop.files.path
        assert {path.relative_to(tree) for path in tree.rglob("*")} == there
        assert (tree / "out").readlink() == Path("/etc") and os.access(tree / "bin/run", os.X_OK)
        for each in there:
            if (tree / each).is_file() and not (tree / each).is_symlink():
                assert (tree / each).read_bytes() == (repository / each).read_bytes()


async def test_line_endings_and_encodings_match_a_checkout_and_do_not_count_as_changes(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = make_converted(tmp_path / "project", tmp_path / "mark")
    async with open_workshop("bubblewrap", tmp_path, order(repository, namespace=(".",))) as shop:
        tree = shop.files.path
        for name in ("run.bat", "text.u16", "this.id", "odd.mixed"):
            assert (tree / name).read_bytes() == (repository / name).read_bytes(), name
        (tree / "odd.mixed").touch()
        (tree / "text.u16").write_bytes("größer\n".encode("utf-16-le"))
        await shop.check()
        branch = shop.keep("Say more")
    assert branch is not None and [each.path for each in branch.changed] == ["text.u16"]
    assert git(repository, "show", f"{branch.name}:text.u16") == "größer\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("none", "not a git repository"), ("bare", "bare"), ("empty", "no commit"), ("inside", "inside the git checkout"),
     ("file", "names no repository"), ("gone", "is not a folder"), ("broken", "not a git checkout any more")],
)  # fmt: skip
async def test_refuses_a_folder_without_a_commit_and_says_what_to_do(given: str, expected: str, tmp_path: Path) -> None:
    needs("bubblewrap")
    folder = tmp_path / "project"
    folder.mkdir()
    match given:
        case "bare":
            git(folder, "init", "-q", "--bare")
        case "empty":
            git(folder, "init", "-q")
        case "inside":
            folder = project(folder) / "docs"
        case "file":
            (folder / ".git").write_text("nonsense")
        case "gone":
            folder.rmdir()
        case "broken":
            (folder / ".git").mkdir()
        case _:
            pass
    with pytest.raises(NoRepository, match=expected):
        inspect_checkout(folder, tmp_path / "home")
    with pytest.raises(NoRepository, match=expected):
        async with open_workshop("bubblewrap", tmp_path, order(folder)):
            pass
    remove_worktree(tmp_path / "worktrees" / RUN)
    assert not (tmp_path / "worktrees" / RUN).exists()


async def test_refuses_a_partial_clone_with_missing_files_and_fetches_nothing(tmp_path: Path) -> None:
    needs("bubblewrap")
    main = project(tmp_path / "main")
    git(main, "config", "uploadpack.allowFilter", "true")
    folder = tmp_path / "project"
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", main.as_uri(), str(folder))
    before = checkout_state(folder)
    with pytest.raises(WorktreeFailed, match="partial clone"):
        async with open_workshop("bubblewrap", tmp_path, order(folder)):
            pass
    assert checkout_state(folder) == before
    assert not (tmp_path / "worktrees" / RUN / "tree").exists(), "nothing half-made is left"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["ava"], f"ava-{RUN}"),
        ([f"ava/{RUN}"], f"ava-{RUN}"),
        (["AVA"], f"ava-{RUN}"),
        ([f"ava/{RUN}/deeper"], f"ava-{RUN}"),
        (["ava", f"ava-{RUN}"], f"ava-{RUN}-2"),
        (["ava", f"ava-{RUN}/x", f"ava-{RUN}-2"], f"ava-{RUN}-3"),
    ],
)
@pytest.mark.parametrize("packed", sample([False, True], 1))
async def test_keeps_an_existing_branch_and_chooses_another_name(
    there: list[str], expected: str, packed: bool, tmp_path: Path
) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    for name in there:
        git(repository, "branch", name)
    if packed:
        git(repository, "pack-refs", "--all", "--prune")
    theirs = git(repository, "for-each-ref")
    new = tuple(f"{name}/" for name in (expected, *(["ava"] if expected.startswith("ava/") else [])))
    before = checkout_state(repository, but=new)
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        shop.files.replace("calc.py", FIXED.encode())
        branch, again = shop.keep("Mend add"), shop.keep("Mend add")
    assert branch is not None and branch.name == expected and branch == again
    assert checkout_state(repository, but=new) == before
    git(repository, "branch", "-q", "-D", expected)
    assert git(repository, "for-each-ref") == theirs


@pytest.mark.parametrize("ref_format", ["files", "reftable"])
def test_work_in_a_linked_worktree_starts_at_its_own_commit(tmp_path: Path, ref_format: str) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    try:
        git(main, "init", "-q", *(() if ref_format == "files" else (f"--ref-format={ref_format}",)))
    except subprocess.CalledProcessError:
        pytest.skip("git does not know reftable")
    checkout(main, PROJECT)
    git(main, "worktree", "add", "-q", "-b", "side", str(linked))
    git(linked, "commit", "-q", "--allow-empty", "-m", "second")
    for folder, branch in ((main, git(main, "branch", "--show-current").strip()), (linked, "side")):
        repository = UserRepository.at(folder, tmp_path, accept=only(_outside(folder)))
        with repository.joined() as joined:
            assert repository.head(joined) == (git(folder, "rev-parse", "HEAD").strip(), branch)


@pytest.mark.parametrize("linked", [False, True])
async def test_creates_a_branch_in_a_reftable_repository(tmp_path: Path, linked: bool) -> None:
    needs("bubblewrap")
    folder = tmp_path / "project"
    folder.mkdir()
    try:
        git(folder, "init", "-q", "--ref-format=reftable")
    except subprocess.CalledProcessError:
        pytest.skip("git does not know reftable")
    repository = project(folder)
    if linked:
        repository = tmp_path / "linked"
        git(folder, "worktree", "add", "-q", "-b", "side", str(repository))
    given = order(repository, git_folder=_outside(repository))
    async with open_workshop("bubblewrap", tmp_path, given, baseline=False) as shop:
        shop.files.replace("calc.py", FIXED.encode())
        branch = shop.keep("Mend add")
    assert branch is not None and git(folder, "show", f"{branch.name}:calc.py") == FIXED


def _left(order_of: WorktreeSpec, tmp_path: Path) -> object:
    return publish_leftover(order_of, tmp_path / "worktrees" / RUN, tmp_path / "home", "left")


async def test_uses_ava_as_author_and_says_so_when_git_has_no_user_name(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    git(repository, "config", "--unset", "user.name")
    git(repository, "config", "--unset", "user.email")
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        shop.files.replace("calc.py", FIXED.encode())
        branch = shop.keep("Mend add")
    assert branch is not None and "Ava <ava@localhost>" in branch.notes[0]
    assert git(repository, "log", "-1", "--format=%an <%ae>", branch.name).strip() == "Ava <ava@localhost>"


@pytest.mark.parametrize(
    ("own", "included", "local", "signs"),
    [
        ("", "", "", False),
        ("[commit]\n\tgpgSign = yes\n", "", "", True),
        ("", "[commit]\n\tgpgsign = true\n", "", True),
        ("", "", "[commit]\n\tgpgsign\n", True),
        ("[commit]\n\tgpgsign = true\n", "", "[commit]\n\tgpgsign = off\n", False),
        ("[commit]\n\tgpgsign = 1\n", "", "[commit]\n\tgpgsign =\n", False),
    ],
    ids=["nowhere", "own", "included", "local", "switched off", "emptied"],
)
def test_knows_whether_the_person_signs_commits(
    own: str, included: str, local: str, signs: bool, tmp_path: Path
) -> None:
    repository, home = project(tmp_path / "project"), tmp_path / "home"
    write(home, {".gitconfig": f"{own}[include]\n\tpath = more\n", "more": included})
    with (repository / ".git/config").open("a") as config:
        config.write(local)
    env = {**os.environ, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    asked = ["git", "config", "--type=bool", "--get", "commit.gpgsign"]
    of_git = subprocess.run(asked, cwd=repository, env=env, capture_output=True, text=True, timeout=20)
    assert (of_git.stdout.strip() == "true") is signs, "git itself says so"
    assert UserRepository.at(repository, home).signs_commits is signs


def _pasted(command: str, folder: Path, home: Path) -> int:
    env = {**os.environ, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, timeout=20)
    return done.returncode


async def test_does_not_sign_and_says_how_a_person_does(tmp_path: Path) -> None:
    needs("bubblewrap")
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    repository, home = project(tmp_path / "project"), tmp_path / "home"
    git(repository, "reset", "-q", "--hard")
    mark = tmp_path / "mark"
    key = tmp_path / "key"
    home.mkdir()
    assert _pasted(shlex.join(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]), tmp_path, home) == 0
    (tmp_path / "signers").write_text(f"kim@example.org {key.with_suffix('.pub').read_text()}")
    git(repository, "config", "commit.gpgsign", "true")
    git(repository, "config", "gpg.format", "ssh")
    git(repository, "config", "gpg.ssh.program", str(write_marking_program(tmp_path / "pinentry", mark)))
    git(repository, "config", "user.signingkey", str(key))
    git(repository, "config", "gpg.ssh.allowedSignersFile", str(tmp_path / "signers"))
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False, home=home) as shop:
        shop.files.replace("calc.py", FIXED.encode())
        branch = shop.keep("Mend add")
        again = shop.keep("Mend add")
    assert branch is not None and not mark.exists(), "the key is the person's"
    assert again is not None and again.notes == branch.notes, "also after a crash"
    (note,) = branch.notes
    assert note.startswith("the commit is not signed, although commit.gpgsign is set")
    git(repository, "config", "--unset", "gpg.ssh.program")
    command = note.split("`")[1]
    (repository / "calc.py").write_text("mine\n")
    assert _pasted(command, repository, home) != 0, "what a person has not committed does not come along"
    git(repository, "checkout", "-q", "calc.py")
    assert _pasted(command, repository, home) == 0
    assert git(repository, "log", "-1", "--format=%G? %an %s", branch.name).strip() == "G Kim Person Mend add"
    assert git(repository, "show", f"{branch.name}:calc.py") == FIXED


async def test_a_concurrent_git_gc_breaks_nothing(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        git(repository, "gc", "-q", "--prune=now", "--aggressive")
        shop.files.replace("calc.py", FIXED.encode())
        verdict = await shop.check()
        git(repository, "gc", "-q", "--prune=now")
        branch = shop.keep("Mend add")
    assert branch is not None and branch.tree == verdict.tree
    git(repository, "fsck", "--full")


async def test_reports_a_base_commit_that_the_user_has_deleted(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    async with open_workshop("bubblewrap", tmp_path, order(repository), baseline=False) as shop:
        shop.files.replace("calc.py", FIXED.encode())
        git(repository, "stash", "clear")
        git(repository, "commit", "-q", "--amend", "-m", "another")
        git(repository, "reflog", "expire", "--expire=now", "--all")
        git(repository, "gc", "-q", "--prune=now")
        before = checkout_state(repository)
        with pytest.raises(WorktreeFailed, match=r"not have all|git"):
            shop.keep("Mend add")
    with pytest.raises(WorktreeFailed, match="is not in"):
        _left(order(repository), tmp_path)
    assert checkout_state(repository) == before


@pytest.mark.slow
@pytest.mark.parametrize("first", ["node_modules/.bin", "."])
async def test_does_not_run_a_git_program_from_the_project(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    repository = project(tmp_path / "project")
    write(repository, {f"{first}/git": f'#!/bin/sh\ntouch {tmp_path}/ran\nexec /usr/bin/git "$@"\n'})
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", f"{first if first == '.' else repository / first}{os.pathsep}{os.environ['PATH']}")
    assert inspect_checkout(repository, tmp_path).head
    async with open_workshop("bubblewrap", tmp_path, order(repository)) as shop:
        shop.edits.write("calc.py", FIXED.encode())
        assert (await shop.check()).passed and shop.keep("Mend add") is not None
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "commondir", "index", "HEAD"])
@pytest.mark.parametrize("what", ["a pipe", "a device"])
def test_special_files_in_a_git_folder_do_not_block(tmp_path: Path, name: str, what: str) -> None:
    repository = project(tmp_path / "project")
    at = repository / ".git" / name
    at.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(at)
    else:
        at.symlink_to("/dev/zero")
    code = (
        "import resource, sys; from pathlib import Path; from ava_roles.errors import RolesError\n"
        "from ava_roles.worktree.inspect import inspect_checkout\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29)); project, home = map(Path, sys.argv[1:])\n"
        "try: inspect_checkout(project, home)\n"
        "except RolesError as error: print(error)\n"
        "print('ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(repository), str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("ended\n"), done.stderr
