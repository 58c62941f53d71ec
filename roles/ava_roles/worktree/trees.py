"""The two trees of a run: the worktree that it changes, and the check tree in which its changes are verified.

git writes both from commits, through a git directory of Ava's; nothing is registered in the user's repository while the
work goes on. The candidate is what would be committed: the base, with what differs in the worktree within the
namespace.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import RLock

from ava_roles.errors import BadNamespace, NoRepository, WorktreeFailed
from ava_roles.sandbox.command_workspace import CommandLayout, CommandSandbox, bindable_dependencies, read_only_note
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.toolchains import HostFolders, find_toolchains
from ava_roles.sandbox.workspace_copy import find_dependencies
from ava_roles.worktree.repository import (
    SUBMODULE_MODE,
    Git,
    ProtectedPaths,
    UserRepository,
    file_digest,
    find_protected_paths,
    translate_os_errors,
)
from ava_roles.worktree.spec import WorktreeSpec, within
from ava_roles.worktree.state import (
    WorktreeFolder,
    WorktreeRecord,
    cache_of,
    is_git_name,
    remove_names,
    remove_unwanted,
)
from ava_roles.wrap import list_names

_CLOCK_TOLERANCE_S = 0.05
"""File times lag behind the clock by this much at most."""
_RULE_FILES = (".gitignore", ".gitattributes")


def _no_check() -> None:
    """Never stop: the default of `check` parameters, which are called repeatedly and raise to stop the work."""


class Trees:
    """The trees of one run. Everything here blocks."""

    def __init__(self, spec: WorktreeSpec, folder: WorktreeFolder, repository: UserRepository) -> None:
        self.spec, self.folder, self.repository = spec, folder, repository
        self.dependencies: tuple[str, ...] = ()
        self._lock = RLock()
        self._git: Git | None = None
        self._protected = ProtectedPaths()
        self._base_index, self._check_index = folder.git / "index-base", folder.git / "index-check"

    @property
    def git(self) -> Git:
        assert self._git is not None, "the trees exist"
        return self._git

    @property
    def submodules(self) -> frozenset[str]:
        return self._protected.submodules

    # -- creating -----------------------------------------------------------------------------------------------------

    def reopen(self) -> WorktreeRecord | None:
        """Open the trees that an earlier owner left; None if there are none, or they are incomplete."""
        record = self.folder.load()
        if record is None or record.repository != str(self.repository.root):
            return None
        self._git = Git(self.repository.program, self.folder.git, inherited=self.folder.inherited)
        with translate_os_errors("opening the worktree again"):
            for lock in self.folder.git.glob("*.lock"):
                lock.unlink()
        if self.git.run("cat-file", "-e", f"{record.base}^{{commit}}").code != 0:
            raise WorktreeFailed(
                f"the commit {record.base} that this run began at is not in {self.repository.root} any more (git gc has"
                " removed it, or the repository is another one); start the run again"
            )
        self._protect(record.base)
        self.dependencies = record.dependencies
        return record

    def create(self, check: Callable[[], None] = _no_check) -> WorktreeRecord:
        """Create both trees from the approved commit, or from the checked-out one; if that fails, nothing is left.

        Raises NoRepository if there is no commit; BadNamespace if a path is in a submodule; WorktreeFailed.
        """
        with self.repository.joined() as joined:
            base = self.spec.base or self.repository.head(joined)[0]
            if joined.run("cat-file", "-e", f"{base}^{{commit}}").code != 0:
                raise NoRepository(
                    f"the commit {base} that was approved is not in {self.repository.root} any more; propose it again"
                )
        try:
            with translate_os_errors("creating the worktree"):
                self.folder.clear()
                git = replace(
                    self.repository.git_folder(self.folder.git, joined=False), inherited=self.folder.inherited
                )
                (self.folder.git / "HEAD").write_text(f"{base}\n")
                self._git = replace(git, check=check)
                for tree, index in ((self.folder.tree, self._base_index), (self.folder.check, self._check_index)):
                    tree.mkdir(mode=0o755)
                    self.git.on(tree, index)("read-tree", "--reset", "-u", base)
                self._protect(base, self.folder.tree)
                record = WorktreeRecord(base=base, repository=str(self.repository.root))
                self.folder.save(record)
        except BaseException:
            self.folder.clear()
            raise
        self._git = git
        return record

    def _protect(self, base: str, tree: Path | None = None) -> None:
        self._protected = find_protected_paths(self.git, base, tree)
        for path in self.spec.namespace:
            for submodule in self._protected.submodules:
                if within((submodule,), path):
                    raise BadNamespace(
                        f"{shown(path)} is in the submodule {shown(submodule)}, a repository of its own; give that as"
                        " workspace to change it"
                    )

    # -- the worktree -------------------------------------------------------------------------------------------------

    def undo_outside(self, check: Callable[[], None] = _no_check) -> str:
        """Undo changes outside of the namespace, and return a sentence about them; empty if there were none."""
        with self._lock, translate_os_errors("tidying the worktree"):
            removed = remove_unwanted(self.folder.tree, self.folder.trash, check)
            git = replace(self.git, check=check).on(self.folder.tree, self._base_index)
            git.run("update-index", "-q", "--really-refresh")  # fails for each name that differs
            restored = self._outside(self._changed(git))
            if restored:
                git("checkout-index", "--force", "--index", "-z", "--stdin", stdin=_lines(restored))
            # Rule files go first: they would hide others.
            rules = self._outside(self._rule_files(git))
            remove_names(self.folder.tree, rules, self.folder.trash)
            others = self._outside(self._untracked(git))
            remove_names(self.folder.tree, others, self.folder.trash)
        undone = [f"{shown(name)} (as it was)" for name in restored]
        for name in (*rules, *others):
            if cache_of(name) is None:
                undone.append(f"{shown(name)} (removed)")
        sentences: list[str] = []
        if undone:
            namespace = list_names(list(map(shown, self.spec.namespace)))
            sentences.append(f"only {namespace} may be changed, and this was undone: {list_names(undone)}")
        if removed:
            names = list_names(list(map(shown, removed)))
            sentences.append(f"removed, because it cannot be in a worktree: {names}")
        return "; ".join(sentences)

    def free_space(self) -> None:
        """Remove the ignored files of the worktree, and the home of its commands: neither is part of the work."""
        with self._lock, translate_os_errors("freeing space in the worktree"):
            git = self.git.on(self.folder.tree, self._base_index)
            ignored = git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").names()
            names = self._without_dependencies(name.rstrip("/") for name in ignored)
            remove_names(self.folder.tree, names, self.folder.trash)
            remove_tree(self.folder.home)

    def may_change(self, name: str) -> bool:
        """Tell whether the work may change a file: it is in the namespace, no pointer of Git LFS, in no submodule."""
        if not within(self.spec.namespace, name) or name in self._protected.pointers:
            return False
        return not within(tuple(self._protected.submodules), name)

    def candidate(self, check: Callable[[], None] = _no_check) -> str:
        with self._lock:
            self.undo_outside(check)
            git = replace(self.git, check=check)
            index = self.folder.git / "index-candidate"
            with translate_os_errors("reading the worktree"):
                shutil.copyfile(self._base_index, index)
            staged = git.on(self.folder.tree, index)
            update = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            untracked = self._new_files(git.on(self.folder.tree, self._base_index))
            if untracked:
                staged(*update, stdin=_lines(untracked))
            changed = list(filter(self.may_change, self._changed(staged)))
            if changed:
                staged(*update, stdin=_lines(changed))
            return staged.line("write-tree")

    def _new_files(self, git: Git) -> list[str]:
        """Return the untracked files that belong to the work; tool caches only if the base tracks their folder."""
        names = list(filter(self.may_change, self._untracked(git)))
        if not any(map(cache_of, names)):
            return names
        tracked_caches = {None, *map(cache_of, git("ls-files", "-z").names())}
        return [name for name in names if cache_of(name) in tracked_caches]

    def _outside(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.may_change(name)]

    def _changed(self, git: Git) -> list[str]:
        names = self._without_dependencies(git("ls-files", "-z", "--modified", "--deleted").names())
        written = self._protected.written
        if not written or git.tree is None:
            return names
        with closing(Root.open(git.tree)) as root:
            return [name for name in names if name not in written or file_digest(root, name) != written[name]]

    def _untracked(self, git: Git) -> list[str]:
        names = self._without_dependencies(git("ls-files", "-z", "--others", "--exclude-standard").names())
        return [name for name in names if not any(map(is_git_name, name.split("/")))]

    def _rule_files(self, git: Git) -> list[str]:
        """Return untracked files that tell git what to ignore, beside tracked files; others are a tool's own."""
        patterns = [f":(glob)**/{name}" for name in _RULE_FILES]
        names = git("ls-files", "-z", "--others", "--", *patterns).names()
        if not names:
            return []
        folders = {""}
        for tracked in git("ls-files", "-z").names():
            folder = tracked.rpartition("/")[0]
            while folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return [name for name in self._without_dependencies(names) if name.rpartition("/")[0] in folders]

    def _without_dependencies(self, names: Iterable[str]) -> list[str]:
        """Leave out the folders that are mounted over the tree, read-only."""
        return [name for name in dict.fromkeys(names) if not within(self.dependencies, name)]

    # -- the check tree -----------------------------------------------------------------------------------------------

    def check_out(self, candidate: str, check: Callable[[], None] = _no_check) -> None:
        """Make the check tree equal to a candidate; ignored files, such as a compiler's output, stay."""
        with self._lock, translate_os_errors("preparing the check tree"):
            tree, trash = self.folder.check, self.folder.trash
            tree.mkdir(mode=0o755, exist_ok=True)  # a crash may have left it removed
            remove_unwanted(tree, trash, check)
            git = replace(self.git, check=check).on(tree, self._check_index)
            before = int(self._check_index.stat().st_mtime)
            git.run("update-index", "-q", "--really-refresh")
            if git.line("write-tree") != candidate:
                # Python takes a compiled file for that of a new source if size and second are equal.
                while before <= time.time() < before + 1 + _CLOCK_TOLERANCE_S:
                    check()
                    time.sleep(0.02)
            git("read-tree", "--reset", "-u", candidate)
            remove_names(tree, self._rule_files(git), trash)
            keep = set(self.folder.record().beside)
            remove_names(tree, (name for name in self._untracked(git) if name not in keep), trash)
            differing = self._changed(git)
            if differing:
                raise WorktreeFailed(f"the check tree cannot be written: {list_names([*map(shown, differing)])}")

    def reset_check(self, candidate: str) -> None:
        """Empty the check tree and its home of other candidates; the record comes last, so a crash leads here again."""
        with self._lock, translate_os_errors("emptying the check tree"):
            self.folder.update(setup=None, beside=())
            remove_tree(self.folder.check_home)
            remove_tree(self.folder.check)
            self.folder.check.mkdir(mode=0o755)
            self.folder.update(checked=candidate)

    def setup_files(self) -> tuple[str, ...]:
        """Return the untracked files of the check tree: what the setup command created."""
        return tuple(self._untracked(self.git.on(self.folder.check, self._check_index)))

    def base_tree(self, check: Callable[[], None] = _no_check) -> str:
        check()
        return self.git.line("rev-parse", f"{self.folder.record().base}^{{tree}}")

    def has_files(self, name: str) -> bool:
        """Tell whether the base has files in a folder; a submodule does not count."""
        entries = self.git("ls-tree", "-r", "-z", "--full-tree", self.folder.record().base, "--", name).names()
        return any(not entry.startswith(f"{SUBMODULE_MODE} ") for entry in entries)


def _lines(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


class WorktreeSandboxes:
    """Where commands run: in the worktree and the check tree, with `mounts` of folders under other paths. Blocking.

    `check` is called repeatedly; it raises to stop.
    """

    def __init__(self, trees: Trees, mounts: bool, host: HostFolders, check: Callable[[], None]) -> None:
        self._trees, self._mounts = trees, mounts
        self._project = trees.repository.root
        self._notes: list[str] = []
        self._size: int | None = None
        with translate_os_errors("looking for the project's packages"):
            trees.dependencies = self._find_dependencies(host.home, check)
            trees.folder.update(dependencies=trees.dependencies)
            self._tools = find_toolchains(self._project, trees.dependencies, host)

    def for_model(self) -> CommandSandbox:
        """Return what the model's commands get; the space that they use counts from the first of them on."""
        folder = self._trees.folder
        sandbox = self._lay_out(folder.tree, folder.home, self.notes(), measured=self._size is None)
        if self._size is None:
            self._size = sandbox.size
        return replace(sandbox, size=self._size)

    def for_check(self) -> CommandSandbox:
        folder = self._trees.folder
        return self._lay_out(folder.check, folder.check_home, "", measured=False)

    def notes(self) -> str:
        namespace = self._trees.spec.namespace
        project = shown(str(self._project))
        notes = [f"it works in the worktree of this run, which is {project} at its last commit, without .git"]
        if namespace == (".",):
            notes.append("all of it may be changed")
        else:
            paths = ", ".join(map(shown, namespace[:20]))
            notes.append(f"only {paths} may be changed: what a command changes elsewhere is undone")
        notes.append("ignored files are not part of the result")
        notes += read_only_note(self._trees.dependencies)
        notes += self._notes
        notes += self._tools.refused
        return f"[{'; '.join(notes)}]"

    def _lay_out(self, work: Path, home: Path, notes: str, *, measured: bool) -> CommandSandbox:
        folder = self._trees.folder
        self._trees.repository.recheck()
        with translate_os_errors("laying out the worktree"):
            for path in (home / "tmp", folder.code):
                make_folders(path, folder.path, 0o755)
            dependencies = [name for name in self._trees.dependencies if self._place_dependency(work, name)]
            layout = CommandLayout(self._mounts, self._trees.spec.run_id, home, folder.code)
            seen, binds = layout.show_project(work, self._project, dependencies)
        return layout.command_sandbox(seen, binds, self._tools, notes, measured=measured)

    def _place_dependency(self, tree: Path, name: str) -> bool:
        """Prepare a package folder's place in a tree, to mount over or a link; False if a file or link is above it."""
        *folder_names, last_name = name.split("/")
        folder = tree
        for folder_name in folder_names:
            folder = folder / folder_name
            if not os.path.lexists(folder):
                folder.mkdir(mode=0o755, exist_ok=True)
            if not stat.S_ISDIR(folder.lstat().st_mode):
                return False
        target = folder / last_name
        source = self._project / name
        if os.path.lexists(target):
            if self._mounts:
                is_ready = stat.S_ISDIR(target.lstat().st_mode)
            else:
                is_ready = target.is_symlink() and target.readlink() == source
            if is_ready:
                return True
            remove_names(tree, [name], self._trees.folder.trash)
            make_folders(folder, tree, 0o755)
        if self._mounts:
            target.mkdir(mode=0o755, exist_ok=True)
        else:
            target.symlink_to(source)
        return True

    def _find_dependencies(self, home: Path, check: Callable[[], None]) -> tuple[str, ...]:
        """Return the package folders of the user's checkout, except those in which the commit has files."""
        aside = self._trees.folder.path / "aside"
        remove_tree(aside)
        aside.mkdir(mode=0o700)
        root = Root.open(self._project)
        try:
            spec = self._trees.spec
            report = find_dependencies(
                root,
                aside,
                repository=self._project,
                home=home,
                carry=spec.carry,
                check=check,
                git_folder=spec.git_folder,
            )
            untracked: list[str] = []
            for name in report.dependencies:
                if not self._trees.has_files(name) and ".git" not in name.split("/"):
                    untracked.append(name)
            report.dependencies = tuple(untracked)
            dependencies = bindable_dependencies(self._project, report, check)
        finally:
            root.close()
            remove_tree(aside)
        self._notes += [f"left out: {count:,} {why}" for why, count in report.left_out.items()]
        return dependencies
