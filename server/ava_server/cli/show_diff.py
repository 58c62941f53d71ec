"""`ava show S-… --diff`: what a run has changed, line by line, as its branch has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_roles.errors import RolesError
from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.service.responses import RunAnswer


def changes_in(run: RunRow, answer: RunAnswer) -> Mapping[str, Any]:
    """Return what the result of a run tells of its branch.

    Raises:
        Refused: There is none; says why.
    """
    from ava_server.budget.run_config import config_of
    from ava_server.core.ids import label

    who = label(run)
    if config_of(run.config).coding is None:
        raise Refused(f"{who} changes no files, so there is nothing to compare; `ava show {run.id}` has its result")
    if not run.ended:
        raise Refused(f"{who} has not ended: {answer.state}; its branch is made when it does")
    if run.result_seq is None:
        raise Refused(f"{who} never ran ({answer.state}), so it has changed nothing")
    if answer.changes is None:
        why = "its words were erased" if answer.untrusted_result is None else "its result says nothing of a branch"
        raise Refused(f"what {who} has changed is not known any more: {why}; look for the branch ava/{run.id}")
    if answer.changes["branch"] is None:
        raise Refused(f"{who} has no branch: {answer.changes['not_kept'] or 'it changed nothing'}")
    changes: Mapping[str, Any] = answer.changes
    return changes


def diff_of(changes: Mapping[str, Any], home: Path) -> str:
    """Return a run's changes as a unified diff, without anything that could steer a terminal. Blocking.

    Raises:
        Refused: They are not there any more.
    """
    from ava_roles.worktree.session import branch_diff
    from ava_roles.wrap import clean

    try:
        return clean(branch_diff(Path(changes["repository"]), changes["base"], changes["head"], home))[0]
    except RolesError as error:
        raise Refused(f"branch {changes['branch']} of {changes['repository']} cannot be shown: {error}") from error
