"""What the commands of a workshop are given: the worktree for the model's, the tree for checks for the verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ava_roles.sandbox.copies import dependencies_of
from ava_roles.sandbox.layout import Bench, Laying, read_only_note, without_odd
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.toolchains import Toolchains, find_toolchains
from ava_roles.worktree.git import told
from ava_roles.worktree.packages import stand
from ava_roles.worktree.trees import Trees


class Benches:
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
        with told("looking for the project's packages"):
            trees.dependencies = self._dependencies(home, check)
            trees.place.note(dependencies=trees.dependencies)
            self._tools: Toolchains = find_toolchains(
                self._project, trees.dependencies, read_only=read_only, home=home, closed=closed
            )

    def for_model(self) -> Bench:
        """Return what the model's commands are given; what they write counts from the first of them on."""
        place = self._trees.place
        bench = self._bench(place.tree, place.home, self.notes(), measured=self._size is None)
        self._size = bench.size if self._size is None else self._size
        return replace(bench, size=self._size)

    def for_check(self) -> Bench:
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

    def _bench(self, work: Path, home: Path, notes: str, *, measured: bool) -> Bench:
        place = self._trees.place
        with told("laying out the worktree"):
            for folder in (home / "tmp", place.code):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            standing = stand(work, self._project, self._trees.dependencies, place.trash, mounts=self._mounts)
            laying = Laying(self._mounts, self._trees.order.run_id, home, place.code)
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
