"""What a search passes over: version control, and what `.gitignore` files name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Entry, Root
from ava_roles.tools.texts import decoded

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_HIDDEN = frozenset({".git", ".hg", ".svn"})
_STARS_MAX = 6  # a pattern becomes a regular expression, whose stars can be made to take for ever


class Wanted:
    """Decides which entries of a walk are looked at; made for one walk.

    Args:
        root: The workspace, whose `.gitignore` files are read on the way.
        check: Called for every entry; raises to stop the walk.

    Attributes:
        asked: Entries that were asked about.
    """

    def __init__(self, root: Root, check: Callable[[], None] = lambda: None) -> None:
        self.asked = 0
        self._root = root
        self._check = check
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def __call__(self, entry: Entry) -> bool:
        """Tell whether an entry is wanted; the `.gitignore` nearest to it decides first."""
        self._check()
        self.asked += 1
        above, _, name = entry.name.rpartition("/")
        if name in _HIDDEN or entry.kind not in ("file", "folder"):
            return False
        while True:
            spec = self._spec(above)
            if spec is not None:
                rel = entry.name[len(above) + 1 :] if above else entry.name
                ignored = spec.check_file(rel + "/" if entry.kind == "folder" else rel).include
                if ignored is not None:
                    return not ignored
            if not above:
                return True
            above = above.rpartition("/")[0]

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            try:
                data, _ = self._root.read(f"{folder}/.gitignore" if folder else ".gitignore", 100_000)
                self._specs[folder] = patterns(*(decoded(data) or "").splitlines())
            except ToolFailed:
                self._specs[folder] = None
        return self._specs[folder]


def patterns(*lines: str) -> GitIgnoreSpec | None:
    """Return patterns as `.gitignore` has them, None when no line is one; other lines are passed over."""
    from pathspec import GitIgnoreSpec

    kept = [line for line in lines if line.strip() and not line.startswith("#") and line.count("*") <= _STARS_MAX]
    try:
        return GitIgnoreSpec.from_lines(kept) if kept else None
    except ValueError:
        good = [line for line in kept if _is_pattern(line)]
        return GitIgnoreSpec.from_lines(good) if good else None


def _is_pattern(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
