"""The two trees of a workshop: the worktree, and the tree that its changes are checked in.

Both are written by git from commits, through a git directory of ours; nothing is registered in the user's repository
while the work goes on. What would be committed (the candidate) is made of the base and of what differs in the worktree
within the namespace.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock

from ava_roles.errors import BadNamespace, NoRepository, WorktreeFailed
from ava_roles.sandbox.copies import dependencies_of
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.toolchains import Toolchains, find_toolchains
from ava_roles.sandbox.workbench import CommandLayout, CommandSandbox, read_only_note, without_odd
from ava_roles.worktree.cleanup import is_git_name, remove_names, remove_unwanted
from ava_roles.worktree.git import Git, UserRepository, translate_os_errors
from ava_roles.worktree.spec import WorktreeSpec, within
from ava_roles.worktree.state import WorktreeFolder, WorktreeRecord
from ava_roles.worktree.verify import ProtectedPaths, find_protected_paths, is_as_written

_SHOWN = 8
_COARSE_S = 0.05
"""By so much the times of files are behind the clock, or less."""
_RULES = (".gitignore", ".gitattributes")


class Trees:
    """The trees of one run. Everything here blocks.

    Args:
        order: What was approved.
        place: Where they are, taken hold of.
        theirs: The user's repository.
        check: Called again and again while git works.
    """

    def __init__(self, order: WorktreeSpec, place: WorktreeFolder, theirs: UserRepository) -> None:
        self.order, self.place, self.theirs = order, place, theirs
        self.dependencies: tuple[str, ...] = ()
        self._turn = RLock()
        self._git: Git | None = None
        self._protected = ProtectedPaths()

    @property
    def git(self) -> Git:
        """git, with our directory."""
        assert self._git is not None, "the trees are there"
        return self._git

    @property
    def submodules(self) -> frozenset[str]:
        """The repositories of their own in it."""
        return self._protected.submodules

    # -- making -------------------------------------------------------------------------------------------------------

    def take_up(self) -> WorktreeRecord | None:
        """Take up the trees that an earlier owner left; None where there are none, or only a part of them."""
        kept = self.place.kept()
        if kept is None or kept.repository != str(self.theirs.root):
            return None
        self._git = Git(self.theirs.program, self.place.git, held=self.place.held)
        with translate_os_errors("taking up the worktree"):
            for lock in self.place.git.glob("*.lock"):
                lock.unlink()
        if self.git.said("cat-file", "-e", f"{kept.base}^{{commit}}").code != 0:
            raise WorktreeFailed(
                f"the commit {kept.base} that this run began at is not in {self.theirs.root} any more (a git gc has"
                " removed it, or the repository is another one); start the run again"
            )
        self._know(kept.base)
        self.dependencies = kept.dependencies
        return kept

    def make(self, check: Callable[[], None] = lambda: None) -> WorktreeRecord:
        """Make both trees from the commit that was approved, else from what the user has checked out.

        Raises:
            NoRepository: There is no commit.
            BadNamespace: It lies in a submodule.
            WorktreeFailed: They cannot be made; nothing of them is left.
        """
        with self.theirs.joined() as joined:
            base = self.order.base or self.theirs.head(joined)[0]
            if joined.said("cat-file", "-e", f"{base}^{{commit}}").code != 0:
                raise NoRepository(
                    f"the commit {base} that was approved is not in {self.theirs.root} any more; have it proposed anew"
                )
        try:
            with translate_os_errors("making the worktree"):
                self.place.clear()
                git = self.theirs.git_folder(self.place.git, joined=False)
                (self.place.git / "HEAD").write_text(f"{base}\n")
                self._git = replace(git, held=self.place.held, check=check)
                for tree, index in ((self.place.tree, self._base_index), (self.place.check, self._check_index)):
                    tree.mkdir(mode=0o755)
                    self.git.on(tree, index)("read-tree", "--reset", "-u", base)
                self._know(base, self.place.tree)
                kept = WorktreeRecord(base=base, repository=str(self.theirs.root))
                self.place.keep(kept)
        except BaseException:
            self.place.clear()
            raise
        self._git = replace(git, held=self.place.held)
        return kept

    def _know(self, base: str, tree: Path | None = None) -> None:
        """Look which paths are not to be touched."""
        self._protected = find_protected_paths(self.git, base, tree)
        for path in self.order.namespace:
            inside = next((name for name in self._protected.submodules if within((name,), path)), None)
            if inside is not None:
                raise BadNamespace(
                    f"{shown(path)} lies in the submodule {shown(inside)}, a repository of its own; give that as"
                    " workspace to change it"
                )

    @property
    def _base_index(self) -> Path:
        return self.place.git / "index-base"

    @property
    def _check_index(self) -> Path:
        return self.place.git / "index-check"

    # -- the worktree -------------------------------------------------------------------------------------------------

    def tidy(self, check: Callable[[], None] = lambda: None) -> str:
        """Take back what was changed outside of the namespace, and return what that was, as a sentence or nothing."""
        with self._turn, translate_os_errors("tidying the worktree"):
            removed = remove_unwanted(self.place.tree, self.place.trash, check)
            git = replace(self.git, check=check).on(self.place.tree, self._base_index)
            git.said("update-index", "-q", "--really-refresh")  # it fails for every name that is to be looked at
            back = [name for name in self._touched(git) if not self.may_change(name)]
            if back:
                git("checkout-index", "--force", "--index", "-z", "--stdin", stdin=_lines(back))
            rules = [name for name in self._rules(git) if not self.may_change(name)]
            remove_names(self.place.tree, rules, self.place.trash)
            others = [name for name in self._others(git) if not self.may_change(name)]
            remove_names(self.place.tree, others, self.place.trash)
        return self._told_back(removed, back, [*rules, *others])

    def clear(self) -> None:
        """Remove what git ignores of the worktree, and the home of its commands: none of it is part of the work."""
        with self._turn, translate_os_errors("making room in the worktree"):
            git = self.git.on(self.place.tree, self._base_index)
            ignored = git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").names()
            remove_names(self.place.tree, self._ours(name.rstrip("/") for name in ignored), self.place.trash)
            remove_tree(self.place.home)

    def may_change(self, name: str) -> bool:
        """Tell whether a path may be changed."""
        return (
            within(self.order.namespace, name)
            and name not in self._protected.pointers
            and not any(within((each,), name) for each in self._protected.submodules)
        )

    def candidate(self, check: Callable[[], None] = lambda: None) -> str:
        """Return what would be committed, as a tree: the base, and what differs within the namespace."""
        with self._turn:
            self.tidy(check)
            git = replace(self.git, check=check)
            base = git.on(self.place.tree, self._base_index)
            index = self.place.git / "index-candidate"
            with translate_os_errors("reading the worktree"):
                shutil.copyfile(self._base_index, index)
            now = git.on(self.place.tree, index)
            update = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            if others := list(filter(self.may_change, self._others(base))):
                now(*update, stdin=_lines(others))
            if touched := list(filter(self.may_change, self._touched(now))):
                now(*update, stdin=_lines(touched))
            return now.line("write-tree")

    def _touched(self, git: Git) -> list[str]:
        """Return the names of the index that differ in the tree, or are gone from it."""
        found = self._ours(git("ls-files", "-z", "--modified", "--deleted").names())
        written = self._protected.written
        if not written or git.tree is None:
            return found
        root = Root.open(git.tree)
        try:
            return [name for name in found if name not in written or not is_as_written(root, name, written[name])]
        finally:
            root.close()

    def _others(self, git: Git) -> list[str]:
        """Return what is in the tree and not in the index, and is not ignored."""
        found = self._ours(git("ls-files", "-z", "--others", "--exclude-standard").names())
        return [name for name in found if not any(map(is_git_name, name.split("/")))]

    def _rules(self, git: Git) -> list[str]:
        """Return files that would tell git what to ignore, and are not in the index, beside files that are.

        One beside nothing that is tracked is a tool's own, such as in a folder of caches, and tells only of that.
        """
        found = git("ls-files", "-z", "--others", "--", *(f":(glob)**/{name}" for name in _RULES)).names()
        if not found:
            return []
        folders = {""}
        for name in git("ls-files", "-z").names():
            while (name := name.rpartition("/")[0]) and name not in folders:
                folders.add(name)
        return [name for name in self._ours(found) if name.rpartition("/")[0] in folders]

    def _ours(self, names: Iterable[str]) -> list[str]:
        """Leave out what is laid over the tree to be read only."""
        return [name for name in dict.fromkeys(names) if not any(within((each,), name) for each in self.dependencies)]

    def _told_back(self, removed: Sequence[str], back: Sequence[str], others: Sequence[str]) -> str:
        parts: list[str] = []
        outside = [*(f"{shown(name)} (as it was)" for name in back), *(f"{shown(name)} (removed)" for name in others)]
        if outside:
            where = ", ".join(map(shown, self.order.namespace[:_SHOWN]))
            parts.append(f"only {where} may be changed, and this was taken back: {_some(outside)}")
        if removed:
            parts.append(f"removed, because no worktree has it: {_some([shown(name) for name in removed])}")
        return "; ".join(parts)

    # -- the tree for checks ------------------------------------------------------------------------------------------

    def bring(self, candidate: str, check: Callable[[], None] = lambda: None) -> None:
        """Bring the tree for checks to a candidate: what is tracked as it is there, and nothing besides.

        What the candidate has git ignore stays from check to check, such as what a compiler has made.
        """
        with self._turn, translate_os_errors("making the tree for the check"):
            tree, trash = self.place.check, self.place.trash
            tree.mkdir(mode=0o755, exist_ok=True)  # a crash may have come after it was removed
            remove_unwanted(tree, trash, check)
            git = replace(self.git, check=check).on(tree, self._check_index)
            before = self._check_index.stat().st_mtime
            git.said("update-index", "-q", "--really-refresh")
            if git.line("write-tree") != candidate:
                _let_a_second_pass(int(before), check)
            git("read-tree", "--reset", "-u", candidate)
            remove_names(tree, self._rules(git), trash)
            beside = set(self.place.known().beside)
            remove_names(tree, (name for name in self._others(git) if name not in beside), trash)
            if wrong := self._touched(git):
                raise WorktreeFailed(f"the tree for the check cannot be written: {_some(list(map(shown, wrong)))}")

    def anew(self, candidate: str) -> None:
        """Empty the tree for checks, and the home of its commands: what other candidates have left is gone.

        What is written down comes last, so that a crash on the way leads here again.
        """
        with self._turn, translate_os_errors("making the tree for the check anew"):
            self.place.note(setup=None, beside=())
            remove_tree(self.place.check_home)
            remove_tree(self.place.check)
            self.place.check.mkdir(mode=0o755)
            self.place.note(checked=candidate)

    def beside(self) -> tuple[str, ...]:
        """Return what is in the tree for checks besides, and is not ignored: what the setup command has made."""
        return tuple(self._others(self.git.on(self.place.check, self._check_index)))

    def base_tree(self, check: Callable[[], None] = lambda: None) -> str:
        """Return what the base consists of."""
        check()
        return self.git.line("rev-parse", f"{self.place.known().base}^{{tree}}")

    def has_files(self, name: str) -> bool:
        """Tell whether the base has files in a folder; a submodule is none."""
        said = self.git("ls-tree", "-r", "-z", "--full-tree", self.place.known().base, "--", name).names()
        return any(not entry.startswith("160000 ") for entry in said)


def remove_folder(here: Path) -> None:
    """Remove all of it.

    Raises:
        WorktreeFailed: Something of it cannot be removed.
    """
    with translate_os_errors(f"removing {here}"):
        remove_tree(here)


def _let_a_second_pass(before: int, check: Callable[[], None]) -> None:
    """Wait until files that are written now have another time than those of the check before.

    What was compiled of a file stays, and Python takes it for that of the new one where size and second are equal.
    """
    while before <= time.time() < before + 1 + _COARSE_S:
        check()
        time.sleep(0.02)


def _lines(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def prepare_dependency_folders(
    tree: Path, project: Path, names: Sequence[str], trash: Path, *, mounts: bool
) -> tuple[str, ...]:
    """Make ready where folders of packages are to stand, through no link; return those that can.

    Args:
        tree: The tree, in which no process is at work.
        project: Where the packages are.
        names: The folders, relative to both.
        trash: A folder that is not there, on the tree's file system; it is gone afterwards.
        mounts: They are laid over an empty folder; otherwise linked.

    Raises:
        OSError: The tree cannot be read or written.
    """
    return tuple(name for name in names if _stands(tree, project, name, trash, mounts))


def _stands(tree: Path, project: Path, name: str, trash: Path, mounts: bool) -> bool:
    *above, last = name.split("/")
    here = tree
    for part in above:
        here = here / part
        here.mkdir(mode=0o755, exist_ok=True) if not os.path.lexists(here) else None
        if not stat.S_ISDIR(here.lstat().st_mode):
            return False
    place = here / last
    if mounts:
        if os.path.lexists(place) and not stat.S_ISDIR(place.lstat().st_mode):
            remove_names(tree, [name], trash)
        here.mkdir(mode=0o755, exist_ok=True)
        place.mkdir(mode=0o755, exist_ok=True)
        return True
    if not place.is_symlink() or place.readlink() != project / name:
        if os.path.lexists(place):
            remove_names(tree, [name], trash)
        here.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.symlink_to(project / name)
    return True


class WorktreeSandboxes:
    """Both of them. Everything here blocks.

    Args:
        trees: The trees, which are there.
        mounts: Commands can be shown a folder under another path than its own.
        home: The user's home folder.
        read_only: Folders of toolchains that the settings name.
        closed: Folders that are shown in no case.
        check: Called again and again.
    """

    def __init__(
        self,
        trees: Trees,
        mounts: bool,
        home: Path,
        read_only: Sequence[Path],
        closed: Sequence[Path],
        check: Callable[[], None],
    ) -> None:
        self._trees, self._mounts = trees, mounts
        self._project = trees.theirs.root
        self._notes: list[str] = []
        self._size: int | None = None
        with translate_os_errors("looking for the project's packages"):
            trees.dependencies = self._dependencies(home, check)
            trees.place.note(dependencies=trees.dependencies)
            self._tools: Toolchains = find_toolchains(
                self._project, trees.dependencies, read_only=read_only, home=home, closed=closed
            )

    def for_model(self) -> CommandSandbox:
        """Return what the model's commands are given; what they write counts from the first of them on."""
        place = self._trees.place
        bench = self._bench(place.tree, place.home, self.notes(), measured=self._size is None)
        self._size = bench.size if self._size is None else self._size
        return replace(bench, size=self._size)

    def for_check(self) -> CommandSandbox:
        """Return what the setup and the verify command are given."""
        place = self._trees.place
        return self._bench(place.check, place.check_home, "", measured=False)

    def notes(self) -> str:
        """Return what there is to know about the worktree, for the model."""
        order = self._trees.order
        may = ", ".join(map(shown, order.namespace[:20]))
        notes = [
            f"it works in the worktree of this run, which is {shown(str(self._project))} at its last commit, without"
            " .git",
            f"only {may} may be changed: what a command changes elsewhere is taken back"
            if order.namespace != (".",)
            else "all of it may be changed",
            "what git ignores is no part of the result",
        ]
        notes += read_only_note(self._trees.dependencies)
        return f"[{'; '.join([*notes, *self._notes, *self._tools.refused])}]"

    def _bench(self, work: Path, home: Path, notes: str, *, measured: bool) -> CommandSandbox:
        place = self._trees.place
        with translate_os_errors("laying out the worktree"):
            for folder in (home / "tmp", place.code):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            standing = prepare_dependency_folders(
                work, self._project, self._trees.dependencies, place.trash, mounts=self._mounts
            )
            laying = CommandLayout(self._mounts, self._trees.order.run_id, home, place.code)
            seen, binds = laying.folder(work, self._project, standing)
        return laying.bench(seen, [*laying.beside(self._tools), *binds], self._tools, notes, measured=measured)

    def _dependencies(self, home: Path, check: Callable[[], None]) -> tuple[str, ...]:
        """Return the folders of packages of the user's checkout; none that the commit itself has files in."""
        aside = self._trees.place.here / "aside"
        remove_tree(aside)
        aside.mkdir(mode=0o700)
        root = Root.open(self._project)
        try:
            found = dependencies_of(
                root, aside, repository=self._project, home=home, carry=self._trees.order.carry, check=check
            )
            found.dependencies = tuple(
                name for name in found.dependencies if not self._trees.has_files(name) and ".git" not in name.split("/")
            )
            kept = without_odd(self._project, found, check)
        finally:
            root.close()
            remove_tree(aside)
        self._notes += [f"left out: {count:,} {why}" for why, count in found.left_out.items()]
        return kept
