"""Runs and groups as tasks, as hosts have them that wake their model when a task is over.

A task has no state of its own: it is read from the run's row at each request, by any server of the data root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ava_audit.rows import WAITING, RunRow
from ava_audit.units import format_usd, now_us
from ava_audit.view import View
from ava_server.approval.questions import Question, Reply
from ava_server.budget.run_config import config_of
from ava_server.core.errors import BadInput
from ava_server.render.responses import Answer, ConfirmAnswer, SpawnAnswer
from ava_server.render.run_view import RunView, status_line, view_run
from ava_server.runs.lifecycle import ABANDONED_US
from ava_server.service.access import Access, Operations
from ava_server.service.questions import PersonQuestions

TaskStatus = Literal["working", "input_required", "completed", "cancelled"]
POLL_MS = (2_000, 5_000)
"""Milliseconds between two looks at a run in its first minute, and after it."""
FIRST_S = 60.0
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Task:
    """A run, or the runs of a group, as a task.

    Attributes:
        id: `S-…` or `G-…`.
        ttl_ms: Milliseconds from `created_us` after which its result may be gone; None if results are kept for ever.
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
        rows = await self._rows(task_id)
        at_us = now_us()
        processes, manager = self._runtime.instances, self._runtime.manager

        def query(view: View) -> list[RunView]:
            now = (view.run(row.id) or row for row in rows)
            return [view_run(view, row, processes, at_us, manager=manager, result=False) for row in now]

        runs = await self._store.read(query)
        questions = await self._questions.open([run.row for run in runs]) if asks else {}
        days = self._runtime.settings.retention_days
        longest_s = max(config_of(row.config).timeout_s for row in rows)
        return Task(
            id=task_id_of(rows, task_id),
            status=_status(runs, asks=bool(questions)),
            message=_message(runs),
            created_us=min(run.row.created_us for run in runs),
            updated_us=max(max(run.row.created_us, run.row.last_us or 0, run.row.ended_us or 0) for run in runs),
            ttl_ms=days * DAY_MS + round(longest_s * 1_000) + ABANDONED_US // 1_000 if days else None,
            poll_ms=POLL_MS[all((run.caps[0].used if run.caps else 0) >= FIRST_S for run in runs)],
            questions=questions,
        )

    async def runs_of(self, task_id: str) -> tuple[str, frozenset[str]]:
        """Return a task's id in its normal form, and the runs that it stands for. Raises BadInput: there are none."""
        rows = await self._rows(task_id)
        return task_id_of(rows, task_id), frozenset(row.id for row in rows)

    async def answer(self, task_id: str, replies: Mapping[str, Reply]) -> None:
        """Carry out a person's answers to a task's questions. An answer to no open question changes nothing.

        Raises:
            BadInput: There is none of this id for this user, or the value of a form cannot be used; the question then
                stays open.
            Refused: What was asked for cannot be allowed any more.
        """
        rows = await self._rows(task_id)
        for key, reply in replies.items():
            await self._questions.answer(rows, key, reply)

    async def _rows(self, task_id: str) -> list[RunRow]:
        try:
            if task_id.strip().lower().startswith("g-"):
                rows = await self._access.group(task_id)
            elif task_id.strip().lower().startswith("s-"):
                rows = [await self._access.run(task_id, "taskId")]
            else:
                rows = []
        except BadInput:
            rows = []
        started = [row for row in rows if row.state != WAITING and (row.queued_us is not None or row.ended)]
        if not started:
            raise BadInput(f"no task {task_id[:80]!r} of yours is known; tasks are started by confirm_spawn")
        return started


def task_id_of(rows: list[RunRow], given: str) -> str:
    group = rows[0].group_id
    return group if group is not None and given.strip().lower().startswith("g-") else rows[0].id


def started_task(answer: Answer) -> str | None:
    """Return the id of the task that a call has started; None where the caller needs the answer itself.

    A client shows its model the task in place of the answer, so an answer that says more is given as it is.
    """
    if isinstance(answer, SpawnAnswer):
        return (answer.group_id or answer.subagent_id) if answer.asked else None
    if not isinstance(answer, ConfirmAnswer):
        return None
    ids = [decision.subagent_id for decision in answer.decisions]
    if answer.status not in ("approved", "resumed") or not ids or answer.runs is not None:
        return None
    if any(decision.refused_because is not None for decision in answer.decisions):
        return None
    return answer.group_id if answer.group_id is not None else ids[0] if len(ids) == 1 else None


def _status(runs: list[RunView], *, asks: bool) -> TaskStatus:
    if not all(run.row.ended for run in runs):
        return "input_required" if asks else "working"
    return "cancelled" if all(run.row.state == "cancelled" for run in runs) else "completed"


def _message(runs: list[RunView]) -> str:
    if len(runs) == 1:
        return status_line(runs[0], runs[0].doing if not runs[0].over else None)
    ended = sum(run.row.ended for run in runs)
    cost = format_usd(sum(run.row.cost_micros for run in runs))
    return f"{ended} of {len(runs)} subagents have ended · {cost}"
