"""Where a project's packages stand in a tree: an empty folder that they are laid over, or a link to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ava_roles.worktree.cleanup import remove_names


def stand(tree: Path, project: Path, names: Sequence[str], trash: Path, *, mounts: bool) -> tuple[str, ...]:
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
