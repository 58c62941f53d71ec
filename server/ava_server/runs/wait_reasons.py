"""What a run that does not run waits for, in words, as far as any process can tell."""

from __future__ import annotations

from collections.abc import Callable

from ava_audit.rows import QUEUED, RUNNING, WAITING, RunRow
from ava_audit.store.locks import Instances
from ava_audit.view import View
from ava_server.runs.claims import Slots, left_to_be_resumed
from ava_server.service.responses import RunAnswer
from ava_server.service.status import INTERRUPTED, Alive

NOBODY = "nobody has it: the next Ava server of this user goes on with it"
NO_SERVER = "no Ava server is there: the next one of this user takes it up"


def waits_for(
    view: View, run: RunRow, answer: RunAnswer, alive: Alive, slots: Slots, serving: Callable[[], bool], now_us: int
) -> str:
    """Return what a run waits for, and nothing for one that runs or has ended.

    Args:
        view: The state that the run was read from.
        run: The run.
        answer: The run as it is shown.
        alive: Tells whether an instance lives.
        slots: How many runs may be running.
        serving: Tells whether any instance lives.
        now_us: Now.
    """
    if answer.state == WAITING:
        return f"a person has to approve it ({run.pending_id})"
    if answer.state == INTERRUPTED:
        return interrupted_words(run, answer.waits_for, now_us)
    if answer.state != QUEUED:
        return ""
    if not serving():
        return NO_SERVER if answer.not_before is None else f"{answer.waits_for}, and {NO_SERVER}"
    if answer.queue_position is None:
        return answer.waits_for or ""
    place = f"number {answer.queue_position} in the queue"
    if answer.waits_for:
        return f"{place}, {answer.waits_for}"
    owners = (row.instance for row in view.runs(states=(RUNNING,), limit=-1) if row.instance is not None)
    full = slots.full(view.running([name for name in set(owners) if not alive(name)]), run.user_id)
    return f"{place}, {full}" if full else f"{place}, a server takes it up"


def interrupted_words(run: RunRow, waits_for: str | None, now_us: int) -> str:
    """Return what an interrupted run waits for, as it is said to a person at a terminal."""
    if left_to_be_resumed(run, now_us):
        return f"nobody has it for long: `ava resume {run.id}` has it go on"
    return f"nobody has it: {waits_for}" if waits_for else NOBODY


def any_alive(instances: Instances | None) -> bool:
    """Tell whether any process looks after runs on this data root; without one, none does."""
    return instances is not None and any(instances.alive(path.stem) for path in instances.folder.glob("*.lock"))
