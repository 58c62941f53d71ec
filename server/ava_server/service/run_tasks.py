"""Runs and plans as tasks, for hosts that wake their model when a task is over.

A task has no state of its own: it is read from the run's row at each request, by any server of the data root.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ava_audit.rows import WAITING, RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.start_form import Question, Reply
from ava_server.core.errors import BadInput
from ava_server.render.responses import Answer, ConfirmAnswer, SpawnAnswer
from ava_server.render.run_view import RunView, status_line, view_run
from ava_server.run_config.config import config_of
from ava_server.runs.record.endings import ABANDONED_US
from ava_server.service.access import Access, Operations
from ava_server.service.run_questions import PersonQuestions

TaskStatus = Literal["working", "input_required", "completed", "cancelled"]
FIRST_S = 60.0
POLL_FIRST_MS = 2_000
"""Milliseconds between two looks at a run in its first minute."""
POLL_MS = 5_000
"""Milliseconds between two looks at a run after its first minute."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Task:
    """A run or a plan as a task.

    Attributes:
        id: `S-…` or `G-…`.
        ttl_ms: Milliseconds from `created_us` after which its result may be gone; None if results are never removed.
        poll_ms: Milliseconds after which it is worth looking again.
        questions: What it asks the person, by a key that is never used again.
    """

    id: str
    status: TaskStatus
    message: str
    created_us: int
    updated_us: int
    ttl_ms: int | None
    poll_ms: int
    questions: Mapping[str, Question]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"group_id" if self.id.startswith("G-") else "subagent_id": self.id}


class RunTasks(Operations):
    """Shows runs as tasks, and takes the answers to their questions."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._questions = PersonQuestions(access)

    async def task(self, task_id: str, *, asks: bool) -> Task:
        """Return a task as it is now; with `asks`, also what it asks a person. Raises BadInput: this user has none."""
        before = await self._run(task_id)
        at_us = now_us()
        processes = self._runtime.instances
        manager = self._runtime.manager

        def query(view: View) -> RunView:
            return view_run(view, view.run(before.id) or before, processes, at_us, manager=manager, result=False)

        run = await self._store.read(query)
        row = run.row
        questions = await self._questions.open([row]) if asks else {}
        used_s = run.caps[0].used if run.caps else 0
        return Task(
            id=row.id,
            status=_status(row, asks=bool(questions)),
            message=status_line(run, None if run.over else run.doing),
            created_us=row.created_us,
            updated_us=max(row.created_us, row.last_us or 0, row.ended_us or 0),
            ttl_ms=self._ttl_ms(row),
            poll_ms=POLL_FIRST_MS if used_s < FIRST_S else POLL_MS,
            questions=questions,
        )

    def _ttl_ms(self, row: RunRow) -> int | None:
        days = self._runtime.settings.retention_days
        longest_s = config_of(row.config).timeout_s
        if not days:
            return None
        return days * DAY_MS + round(longest_s * 1_000) + ABANDONED_US // 1_000

    async def id_of(self, task_id: str) -> str:
        """Return a task's id in its normal form. Raises BadInput if there is none."""
        return (await self._run(task_id)).id

    async def answer(self, task_id: str, replies: Mapping[str, Reply]) -> None:
        """Carry out a person's answers to a task's questions. An answer to no open question changes nothing.

        Raises:
            BadInput: There is none of this id for this user, or the value of a form cannot be used; the question then
                stays open.
            Refused: What was asked for cannot be allowed any more.
        """
        run = await self._run(task_id)
        for key, reply in replies.items():
            await self._questions.answer([run], key, reply)

    async def _run(self, task_id: str) -> RunRow:
        run: RunRow | None = None
        if task_id.strip().lower().startswith(("s-", "g-")):  # a proposal is no task
            with suppress(BadInput):
                run = await self._access.run(task_id, "taskId")
        if run is None or run.state == WAITING or (run.queued_us is None and not run.ended):
            raise BadInput(f"no task {task_id[:80]!r} of yours is known; tasks are started by confirm_spawn")
        return run


def started_task(answer: Answer) -> str | None:
    """Return the id of the task that a call has started; None where the caller needs the answer itself.

    A client shows its model the task in place of the answer, so an answer that says more is given as it is.
    """
    if isinstance(answer, SpawnAnswer):
        if not answer.asked:
            return None
        return answer.group_id or answer.subagent_id
    if not isinstance(answer, ConfirmAnswer):
        return None
    if answer.status not in ("approved", "resumed") or answer.runs is not None:
        return None
    if any(decision.refused_because is not None for decision in answer.decisions):
        return None
    if not answer.decisions:
        return None
    if answer.group_id is not None:
        return answer.group_id
    if len(answer.decisions) > 1:
        return None
    return answer.decisions[0].subagent_id


def _status(run: RunRow, *, asks: bool) -> TaskStatus:
    if not run.ended:
        return "input_required" if asks else "working"
    return "cancelled" if run.state == "cancelled" else "completed"
