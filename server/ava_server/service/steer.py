"""Steering runs: `message_subagent` and `cancel_subagent`."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

from ava_audit.events import Event, UserMessage
from ava_audit.rows import QUEUED, RUNNING, WAITING
from ava_audit.store.store import Command, Outcome
from ava_audit.view import View
from ava_server.approval.requests import CancelArgs, MessageArgs, parse
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import label, parse_id
from ava_server.service.access import Own
from ava_server.service.call_context import Caller
from ava_server.service.check import Looking, dumped, fitting
from ava_server.service.responses import Answer, CancelAnswer, MessageAnswer
from ava_server.service.status import INTERRUPTED, shown_state

_WHEN = {
    QUEUED: "when it starts",
    RUNNING: "before its next turn",
    INTERRUPTED: "when an Ava server has taken it up; nobody has it at the moment",
}


class Steering:
    """Talks to runs, and ends them."""

    def __init__(self, own: Own, looking: Looking) -> None:
        self._own = own
        self._house = own.house
        self._store = own.store
        self._looking = looking

    async def message(self, given: dict[str, Any], _caller: Caller) -> Answer:
        """Do `message_subagent`.

        Raises:
            BadInput: An argument cannot be used.
            Refused: The run waits for approval, or has ended.
        """
        args = parse(MessageArgs, "message_subagent", given)
        run = await self._own.run(args.subagent_id, "subagent_id")
        event = Event(self._own.agent_of(run), UserMessage(text=args.message, kind="message"), run_id=run.id)
        delivered = await self._store.do(_deliver(run.id, event))
        if delivered == "waiting":
            raise Refused(f"{label(run)} waits for approval; to change it, cancel it and propose it anew")
        if delivered == "ended":
            raise Refused(f"{label(run)} has ended; ask on with spawn_subagent and context_from")
        state = await anyio.to_thread.run_sync(shown_state, run, self._house.instances.alive)
        paused = state == QUEUED and run.generation > 0
        when = "when it goes on" if paused else _WHEN[INTERRUPTED if state == INTERRUPTED else delivered]
        return MessageAnswer(
            status="delivered",
            subagent_id=run.id,
            name=run.name,
            task_id=run.task_id,
            message=f"{label(run)} reads it {when}. It may steer the work; limits and tools stay.",
        )

    async def cancel(self, given: dict[str, Any], _caller: Caller) -> Answer:
        """Do `cancel_subagent`.

        Raises:
            BadInput: An argument cannot be used.
        """
        args = parse(CancelArgs, "cancel_subagent", given)
        given_ids = [value for value in (args.subagent_id, args.group_id, args.pending_id) if value is not None]
        if len(given_ids) != 1:
            raise BadInput("cancel_subagent: give exactly one of subagent_id, group_id and pending_id")
        if args.group_id is not None:
            targets = [row.id for row in await self._own.group(args.group_id)]
        elif args.pending_id is not None:
            pending_id = parse_id("pending_id", args.pending_id)
            row = await self._store.read(lambda view: view.proposal(pending_id))
            if row is None or row.user_id != self._own.session.user:
                raise BadInput(f"pending_id: no proposal {pending_id} of yours; check_subagent lists what waits")
            targets = [row.run_id]
        else:
            targets = [(await self._own.run(args.subagent_id or "", "subagent_id")).id]
        over = [label(row) for row in await self._own.rows(targets) if row.ended]
        failed: list[Exception] = []

        async def cancel(run_id: str) -> None:
            try:
                await self._house.manager.cancel(run_id, self._own.session.who, args.reason, self._own.session.by)
            except Exception as error:  # the others are cancelled all the same; the first is told below
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            for run_id in targets:
                tasks.start_soon(cancel, run_id)
        if failed:
            raise failed[0]
        rows = await self._own.rows(targets)
        runs = await self._looking.answers(rows)
        status = runs[0].state if len(runs) == 1 else "cancelled"
        runs, message = fitting(runs)
        if over:
            message = " ".join(part for part in (f"Ended before already: {', '.join(over)}.", message) if part)
        return CancelAnswer(status=status, message=message, runs=dumped(runs))


def _deliver(run_id: str, event: Event) -> Command[str]:
    def command(view: View, _now_us: int) -> Outcome[str]:
        run = view.run(run_id)
        if run is None or run.ended:
            return Outcome("ended")
        if run.state == WAITING:
            return Outcome("waiting")
        return Outcome(run.state, (event,))

    return command
