"""Having an interrupted run go on: `confirm_spawn` with the id of a run that has begun."""

from __future__ import annotations

import anyio.to_thread

from ava_audit.rows import RUNNING, RunRow
from ava_audit.times import format_ts
from ava_server.approval.questions import UNASKED, Person, Question
from ava_server.approval.requests import ConfirmArgs
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import label
from ava_server.runs.recovery import NotResumed, resume_line
from ava_server.service.access import Own
from ava_server.service.responses import ConfirmAnswer, OneDecision

ONLY_THERE = 'approval = "human" is set: a person resumes it in a terminal, with `ava resume {run_id}`'


class Resuming:
    """Takes the decision that an interrupted run goes on."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self._house = own.house
        self._session = own.session

    async def interrupted(self, args: ConfirmArgs) -> RunRow | None:
        """Return the interrupted run that is meant, or None: what is meant are proposals.

        Raises:
            BadInput: A run is among several ids, or is no proposal's.
        """
        for given in args.pending_ids:
            if not given.strip().lower().startswith("s-"):
                continue
            run = await self._own.run(given, "pending_ids")
            if run.state == RUNNING and await anyio.to_thread.run_sync(self._gone, run):
                if len(args.pending_ids) > 1:
                    raise BadInput(
                        f"pending_ids: {label(run)} is interrupted, and is resumed alone; give nothing beside it"
                    )
                return run
        return None

    def _gone(self, run: RunRow) -> bool:
        return bool(self._house.manager.endings.gone([run]))

    async def resume(self, args: ConfirmArgs, run: RunRow, person: Person | None) -> ConfirmAnswer:
        """Have it go on, if it was approved so, and the person agrees where one can be asked.

        Raises:
            BadInput: What cannot be decided about a run that has begun was asked for.
            Refused: It may not go on now, or not over this channel.
            AnsweredLater: The person is asked, and the client calls again.
        """
        settings = self._house.settings
        if args.decision == "reject":
            raise BadInput(f"decision: {label(run)} has begun, and cannot be rejected; cancel_subagent ends it")
        for field in ("changes", "group_max_cost_cents", "group_timeout"):
            if getattr(args, field) is not None:
                raise BadInput(f"{field}: {label(run)} has begun, and goes on as it was approved; leave it out")
        if not settings.enabled:
            raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was resumed")
        only_there = ONLY_THERE.format(run_id=run.id)
        await self._own.refuse_without_pin(only_there)
        decision = OneDecision(
            pending_id=run.pending_id, subagent_id=run.id, name=run.name, task_id=run.task_id, status="resumed"
        )
        approving, channel = "\n".join(args.approving or [""]), self._session.channel
        line = await self._house.store.read(lambda view: resume_line(view, run))
        if person is not None and approving == line:  # with another one it is refused, and nobody has to be asked
            # The moment, not how long ago: an answer counts for the very words that were shown.
            at = format_ts(run.last_us or run.created_us)
            text = f"{label(run)} was interrupted at {at}. Shall it go on? \n{line}"
            reply = await person.ask(Question(text, ()))
            if reply.action != "accept":
                decision.status, decision.refused_because = "refused", UNASKED[reply.action]
                hint = f"Nothing was resumed; a person has it go on with `ava resume {run.id}` in a terminal."
                return ConfirmAnswer(status="refused", decisions=[decision], next=hint)
            channel = "elicitation"
            await self._own.refuse_without_pin(only_there)  # a PIN may have been set while the question stood there
        found = await self._house.manager.endings.resume(
            run.id, self._session.who, channel, self._house.spawn_limits_of(run.user_id), line=approving
        )
        if isinstance(found, NotResumed):
            decision.status, decision.refused_because = "refused", found.why
            lines = [found.line] if found.line is not None else None
            hint = "Show the person approval_lines and give exactly that." if lines else "Nothing was resumed."
            return ConfirmAnswer(status="refused", decisions=[decision], approval_lines=lines, next=hint)
        self._house.manager.adopt_run(run.id)
        self._house.manager.poke()
        return ConfirmAnswer(
            status="resumed",
            decisions=[decision],
            next=f'It goes on where it was. Call check_subagent with subagent_id "{run.id}" for news.',
        )
