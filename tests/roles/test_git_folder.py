"""A folder whose `.git` leads to another person's repository: nothing of that is read, and no branch is made there."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.repositories.projects import checkout, git, tree, write

from ava_roles.errors import NoRepository, ToolFailed, WorktreeFailed
from ava_roles.sandbox.git import list_checkout
from ava_roles.sandbox.git_folders import NoGitFolder, find_git_folders
from ava_roles.worktree.inspect import inspect_checkout
from ava_roles.worktree.repository import UserRepository
from ava_roles.worktree.snapshot import pack_snapshot

SECRET = {"secret.txt": "the key of somebody\n"}
Attack = Callable[[Path, Path], None]
"""Makes the `.git` of a folder lead to another repository's; the folder is a checkout of its own before."""


def everything(_folder: Path) -> None:
    """Accept every git folder outside, so that only what it says of itself can refuse it."""


def _file(text: str) -> Attack:
    def make(folder: Path, victim: Path) -> None:
        (folder / ".git").rename(folder / "git")
        (folder / ".git").write_text(text.format(victim=victim, folder=folder))

    return make


def _link(name: str, *, whole: bool = False) -> Attack:
    """Replace something of the git folder by a link to the same of the other one."""

    def make(folder: Path, victim: Path) -> None:
        place = folder / ".git" / name
        if place.exists():
            place.rename(folder / "away")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder / "away" if whole else victim / ".git" / name)

    return make


def _written(name: str, text: str) -> Attack:
    def make(folder: Path, victim: Path) -> None:
        write(folder / ".git", {name: text.format(victim=victim)})

    return make


def _file_through_a_link(folder: Path, victim: Path) -> None:
    (folder / "way").symlink_to(victim)
    _file("gitdir: way/.git")(folder, victim)


def _worktree_of_somebody(folder: Path, victim: Path) -> None:
    git(victim, "worktree", "add", "-q", str(victim.parent / "theirs"))
    _file("gitdir: {victim}/.git/worktrees/theirs")(folder, victim)


def _forged_worktree(within: bool) -> Attack:
    """Make what looks like the git folder of a linked worktree of the other repository, and names this checkout."""

    def make(folder: Path, victim: Path) -> None:
        forged = (folder if within else folder.parent) / "worktrees" / "forged"
        (folder / ".git").rename(folder / "git")
        write(
            forged,
            {"HEAD": "ref: refs/heads/main\n", "commondir": f"{victim}/.git\n", "gitdir": f"{folder / '.git'}\n"},
        )
        (folder / ".git").write_text(f"gitdir: {forged}\n")

    return make


def _forged_separate_folder(folder: Path, victim: Path) -> None:
    """Make a git folder elsewhere that names this checkout, and whose objects and branches are the other one's."""
    forged = folder.parent / "forged.git"
    (folder / ".git").rename(forged)
    (folder / ".git").write_text(f"gitdir: {forged}\n")
    git(folder, "config", "core.worktree", str(folder))
    for name in ("objects", "refs"):
        (forged / name).rename(folder.parent / f"away-{name}")
        (forged / name).symlink_to(victim / ".git" / name)


def _nested_alternates(folder: Path, victim: Path) -> None:
    _written("objects/info/alternates", "../between\n")(folder, victim)
    _written("between/info/alternates", "{victim}/.git/objects\n")(folder, victim)


def _alternates_through_a_link(folder: Path, victim: Path) -> None:
    (folder / "way").symlink_to(victim)
    _written("objects/info/alternates", "../../way/.git/objects\n")(folder, victim)


def _alternates_behind_many_lines(folder: Path, victim: Path) -> None:
    _written("objects/info/alternates", "# nothing\n" * 20_000 + "{victim}/.git/objects\n")(folder, victim)


def _link_as_branches_have_it(folder: Path, victim: Path) -> None:
    """git reads such a link as the name of a branch, but only where it looks for one."""
    (folder / ".git").rename(folder / "git")
    (folder / "refs").mkdir()
    (folder / "refs" / "theirs").symlink_to(victim / ".git")
    (folder / ".git").symlink_to("refs/theirs")


def _fifo(name: str) -> Attack:
    return lambda folder, _victim: os.mkfifo(folder / ".git" / name)


ATTACKS: Mapping[str, Attack] = {
    "a file": _file("gitdir: {victim}/.git\n"),
    "a file with a relative path": _file("gitdir: ../victim/.git\n"),
    "a file with a path through a link": _file_through_a_link,
    "a file that names somebody's linked worktree": _worktree_of_somebody,
    "a file that names a file": _file("gitdir: {victim}/secret.txt\n"),
    "a file that names what is not there": _file("gitdir: {victim}/nothing\n"),
    "a file that names too much": _file("gitdir: " + "{victim}/.git/../" * 2_000 + ".git\n"),
    "a link": _link(""),
    "a link within the folder": _link("", whole=True),
    "a link in the form of a branch": _link_as_branches_have_it,
    "a named pipe as commondir": _fifo("commondir"),
    "a named pipe as alternates": _fifo("objects/info/alternates"),
    "alternates that end in a zero byte": _written("objects/info/alternates", "../objects/77\0/..\n"),
    "commondir": _written("commondir", "{victim}/.git\n"),
    "a relative commondir": _written("commondir", "../../victim/.git\n"),
    "a linked commondir": lambda folder, victim: (folder / ".git/commondir").symlink_to(victim / "secret.txt"),
    "a forged worktree in the folder": _forged_worktree(within=True),
    "a forged worktree elsewhere": _forged_worktree(within=False),
    "a forged separate folder": _forged_separate_folder,
    "linked HEAD": _link("HEAD"),
    "linked config": _link("config"),
    "linked objects": _link("objects"),
    "a linked folder of objects": _link("objects/77"),
    "linked packs": _link("objects/pack"),
    "a linked pack": _link("objects/pack/pack-1.pack"),
    "linked information on objects": _link("objects/info"),
    "linked refs": _link("refs"),
    "linked branches": _link("refs/heads"),
    "a linked branch": _link("refs/heads/theirs"),
    "linked packed refs": _link("packed-refs"),
    "linked logs": _link("logs"),
    "linked logs of branches": _link("logs/refs/heads"),
    "linked reftable": _link("reftable"),
    "a table of refs elsewhere": _written("reftable/tables.list", "../../../victim/.git/reftable/1.ref\n"),
    "alternates": _written("objects/info/alternates", "{victim}/.git/objects\n"),
    "relative alternates": _written("objects/info/alternates", "../../../victim/.git/objects\n"),
    "nested alternates": _nested_alternates,
    "quoted alternates": _written("objects/info/alternates", '"{victim}/.git/objects"\n'),
    "alternates through a link": _alternates_through_a_link,
    "alternates behind many lines": _alternates_behind_many_lines,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout; somebody's repository is beside it."""
    checkout(tmp_path / "victim", SECRET)
    return checkout(tmp_path / "project", {"own.txt": "own\n"})


@pytest.mark.requirement("N-26")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_git_folder_that_leads_to_another_repository_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    ATTACKS[name](folder, victim)
    before = tree(victim)
    (tmp_path / "aside").mkdir()
    with pytest.raises(NoRepository, match=r"clone|a checkout that is your own"):
        inspect_checkout(folder, tmp_path)
    with pytest.raises(ToolFailed):
        list_checkout(folder, folder, tmp_path / "aside", tmp_path)
    with pytest.raises((NoGitFolder, OSError)):
        find_git_folders(folder, everything)
    assert tree(victim) == before


@pytest.mark.parametrize("name", ["commondir", "linked objects", "linked refs", "alternates"])
def test_a_git_folder_that_is_changed_after_the_check_is_not_used(name: str, folder: Path, tmp_path: Path) -> None:
    repository = UserRepository.at(folder, tmp_path)
    ATTACKS[name](folder, tmp_path / "victim")
    with pytest.raises(NoRepository), repository.joined():
        pass


def test_a_pack_index_that_names_somebodys_packs_is_not_used(folder: Path, tmp_path: Path) -> None:
    git(folder, "repack", "-adq")
    git(folder, "multi-pack-index", "write")
    for path in (folder / ".git/objects/pack").glob("pack-*"):
        path.rename(tmp_path / "victim" / f"p{path.suffix}")
    index = folder / ".git/objects/pack/multi-pack-index"
    index.chmod(0o644)
    data = index.read_bytes()
    at = data.index(b"pack-")
    elsewhere = b"../../../../victim/p.idx"
    index.write_bytes(data[:at] + elsewhere.ljust(data.index(b".idx", at) + 4 - at, b"\0") + data[at + 49 :])
    assert "own.txt" in git(folder, "ls-tree", "HEAD"), "plain git reads the packs of somebody"
    with pytest.raises(NoRepository, match="does not have the commit"):
        inspect_checkout(folder, tmp_path)


def test_variables_of_git_lead_nowhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(folder, "rev-parse", "HEAD").strip()
    victim = tmp_path / "victim" / ".git"
    for name, place in {
        "GIT_DIR": victim, "GIT_COMMON_DIR": victim, "GIT_WORK_TREE": victim.parent, "GIT_INDEX_FILE": victim / "index",
        "GIT_OBJECT_DIRECTORY": victim / "objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": victim / "objects",
        "GIT_CONFIG_GLOBAL": victim / "config", "GIT_NAMESPACE": "x", "GIT_CEILING_DIRECTORIES": folder.parent,
        "GIT_CONFIG_PARAMETERS": f"'core.worktree'='{victim.parent}'",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(place))
    (tmp_path / "aside").mkdir()
    assert inspect_checkout(folder, tmp_path).head == head
    assert list_checkout(folder, folder, tmp_path / "aside", tmp_path).tracked == ("own.txt",)


def test_the_configuration_of_a_repository_names_no_files_elsewhere(folder: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "victim" / "theirs.cfg"
    theirs.write_text("[user]\n\tname = Somebody\n")
    for key, value in {
        "include.path": str(theirs), f"includeIf.gitdir:{folder}/.path": str(theirs),
        "core.excludesFile": str(tmp_path / "victim" / "secret.txt"), "core.worktree": str(tmp_path / "victim"),
        "extensions.refstorage": f"files:{tmp_path}/victim/.git",
    }.items():  # fmt: skip
        git(folder, "config", key, value)
    repository = UserRepository.at(folder, tmp_path)
    assert "user.name" not in repository.settings
    assert repository.excludes() == str(tmp_path / ".config/git/ignore")
    assert repository.root == folder and inspect_checkout(folder, tmp_path).uncommitted == 0
    assert "victim" not in (repository.git_folder(tmp_path / "own", joined=True).own / "config").read_text()


def test_a_list_of_ignored_names_in_the_repository_itself_counts(folder: Path, tmp_path: Path) -> None:
    write(folder, {".git/info/ignore": "*.tmp\n", "x.tmp": ""})
    git(folder, "config", "core.excludesFile", str(folder / ".git/info/ignore"))
    assert inspect_checkout(folder, tmp_path).uncommitted == 0


def test_a_users_own_conditional_settings_count(folder: Path, tmp_path: Path) -> None:
    write(
        tmp_path, {".gitconfig": f'[includeIf "gitdir:{folder}/.git"]\n\tpath = work\n', "work": "[user]\n\tname=W\n"}
    )
    assert UserRepository.at(folder, tmp_path).settings["user.name"] == "W"


def test_a_nested_git_folder_does_not_tell_which_commit_somebody_has_checked_out(folder: Path, tmp_path: Path) -> None:
    theirs = git(tmp_path / "victim", "rev-parse", "HEAD").strip()
    write(folder, {"sub/.git": f"gitdir: {tmp_path}/victim/.git\n", "own.txt": "changed\n", "new.txt": "new\n"})
    for commit in (theirs, "1" * len(theirs)):
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
        assert inspect_checkout(folder, tmp_path).uncommitted == 2


@pytest.mark.parametrize("name", ["exclude", "attributes"])
def test_a_linked_list_of_names_does_not_travel(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / ".git/info" / name).unlink(missing_ok=True)
    (folder / ".git/info" / name).symlink_to(tmp_path / "victim" / "secret.txt")
    commit = git(folder, "rev-parse", "HEAD").strip()
    assert pack_snapshot(folder, tmp_path, commit, 10_000_000, tmp_path / "packed") is None
    assert SECRET["secret.txt"].encode() not in (tmp_path / "packed").read_bytes()


# -- what may lie elsewhere -------------------------------------------------------------------------------------------


def _linked(folder: Path, tmp_path: Path) -> Path:
    git(folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    return tmp_path / "linked"


def _separate(folder: Path, tmp_path: Path) -> Path:
    git(folder, "init", "-q", f"--separate-git-dir={tmp_path / 'separate.git'}")
    git(folder, "config", "core.worktree", str(folder))
    return folder


def _submodule(folder: Path, tmp_path: Path) -> Path:
    git(folder, "submodule", "add", "-q", str(tmp_path / "victim"), "sub")
    return folder / "sub"


LEGITIMATE = {"linked": _linked, "separate": _separate, "submodule": _submodule}


@pytest.mark.requirement("N-26")
@pytest.mark.parametrize("name", LEGITIMATE)
def test_a_git_folder_elsewhere_that_names_the_checkout_is_used_once_it_is_accepted(
    name: str, folder: Path, tmp_path: Path
) -> None:
    place = LEGITIMATE[name](folder, tmp_path)
    asked: list[Path] = []
    found = find_git_folders(place, asked.append)
    assert found.outside == str(found.common) and {found.folder, found.common} == set(asked)
    assert not found.common.is_relative_to(place)
    (tmp_path / "aside").mkdir()
    with pytest.raises(NoRepository, match="not approved"):
        inspect_checkout(place, tmp_path)
    listed = list_checkout(place, place, tmp_path / "aside", tmp_path, git_folder=found.outside)
    assert listed.tracked in (("own.txt",), ("secret.txt",))
    repository = UserRepository.at(place, tmp_path, accept=everything)
    with repository.joined() as joined:
        assert repository.head(joined)[0] == git(place, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("name", ["linked", "separate"])
def test_a_moved_checkout_is_refused_with_the_command_that_mends_it(name: str, folder: Path, tmp_path: Path) -> None:
    place = LEGITIMATE[name](folder, tmp_path)
    moved = place.rename(tmp_path / "moved to")
    with pytest.raises(NoGitFolder, match="does not name") as refused:
        find_git_folders(moved, everything)
    command = str(refused.value).split("`")[1]
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, timeout=20)
    assert find_git_folders(moved, everything).folder != moved / ".git"


def test_a_clone_that_shares_objects_is_refused_with_the_command_that_copies_them(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    git(tmp_path, "clone", "-q", "--shared", str(folder), str(shared))
    with pytest.raises(NoGitFolder) as refused:
        find_git_folders(shared)
    command = str(refused.value).split("`")[1]
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, timeout=20, env={**os.environ})
    assert find_git_folders(shared).outside == ""
    folder.rename(tmp_path / "gone")
    git(shared, "fsck", "--full")


@pytest.mark.parametrize("where", ["beneath", "beside"])
def test_a_git_folder_beneath_the_checkout_needs_no_approval(where: str, folder: Path, tmp_path: Path) -> None:
    if where == "beneath":
        (folder / ".git").rename(folder / ".bare")
        (folder / ".git").write_text("gitdir: ./.bare\n")
    else:
        (folder / ".git/objects").rename(folder / ".git/more")
        write(folder / ".git/objects", {"info/alternates": "../more\n"})
    assert inspect_checkout(folder, tmp_path).head and find_git_folders(folder).outside == ""


def test_head_as_a_link_to_a_branch_is_read_as_git_reads_it(folder: Path, tmp_path: Path) -> None:
    branch = git(folder, "symbolic-ref", "HEAD").strip()
    (folder / ".git/HEAD").unlink()
    (folder / ".git/HEAD").symlink_to(branch)
    assert inspect_checkout(folder, tmp_path).branch == branch.removeprefix("refs/heads/")


def test_the_error_of_a_folder_with_an_odd_name_has_a_command_that_works(tmp_path: Path) -> None:
    folder = checkout(tmp_path / 'it\'s "odd"', {"a": "a\n"})
    git(folder, "init", "-q", f"--separate-git-dir={tmp_path / 'x.git'}")
    with pytest.raises(NoGitFolder) as refused:
        find_git_folders(folder, everything)
    assert shlex.split(str(refused.value).split("`")[1])[-1] == str(folder)
    with pytest.raises(WorktreeFailed):
        inspect_checkout(folder, tmp_path)
