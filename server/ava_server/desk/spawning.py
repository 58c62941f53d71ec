"""Proposing and deciding: `spawn_subagent` and `confirm_spawn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.money import cents, micros_from_cents
from ava_audit.rows import WAITING, RunRow
from ava_audit.times import iso_utc
from ava_roles.errors import RolesError
from ava_server.answers import Answer, ConfirmAnswer, Minutes, OneDecision, SpawnAnswer
from ava_server.approval import Approval, Declined, Proposed, approve, propose, reject, texts_of
from ava_server.arguments import Changes, ConfirmArgs, SpawnArgs, parse
from ava_server.desk.looking import Looking, Progress, dumped, fitting
from ava_server.desk.own import Own
from ava_server.desk.resuming import Resuming
from ava_server.earlier import check_earlier
from ava_server.errors import AvaError, BadInput, Refused
from ava_server.ids import label, new_id, parse_id
from ava_server.models.choose import OFFLINE, is_configured
from ava_server.run_config import EarlierRun, Texts, config_of
from ava_server.spawning import resolve

NO_HUMAN = (
    'approval = "human" is set, so only a person\'s own channel can approve, and this version has none yet: nothing can'
    ' be approved; set approval = "ask" (config.toml, or AVA_APPROVAL)'
)
CANDIDATES = 4
"""Ids that a proposal may choose from: that all of them are taken happens once in 10^20 spawns."""


class Spawning:
    """Makes proposals, and takes decisions on them."""

    def __init__(self, own: Own, looking: Looking) -> None:
        self._own = own
        self._house = own.house
        self._store = own.store
        self._session = own.session
        self._looking = looking
        self._resuming = Resuming(own)

    async def spawn(self, given: dict[str, Any], _progress: Progress) -> Answer:
        """Do `spawn_subagent`.

        Raises:
            BadInput: An argument cannot be used.
            Refused: It may not be proposed, or cannot be run here.
        """
        retried: RunRow | None = None
        if isinstance(given.get("retry_of"), str):
            retried, given = await self._retry(given)
        args = parse(SpawnArgs, "spawn_subagent", given)
        return await self._propose(args, retried.id if retried else None)

    async def _propose(self, args: SpawnArgs, retry_of: str | None = None) -> SpawnAnswer:
        if self._house.settings.approval == "human":
            raise Refused(NO_HUMAN)
        around = await self._house.surroundings(self._session.roots, args.role)
        earlier = await self._earlier(args.context_from or ())
        config, texts = await anyio.to_thread.run_sync(resolve, args, around, earlier)
        candidates = tuple((new_id("pending_id"), new_id("subagent_id")) for _ in range(CANDIDATES))
        command = propose(config, texts, self._session.who, candidates, self._house.spawn_limits, retry_of=retry_of)
        made = await self._store.do(command)
        if isinstance(made, Declined):
            raise Refused(made.why)
        answer = _proposal(made)
        if made.state == WAITING and config.model == OFFLINE and not is_configured(around.models):
            answer.message = f"{answer.message}\nTo have a language model do it: {self._own.key_advice('openrouter')}"
        return answer

    async def _earlier(self, given: Sequence[str]) -> tuple[EarlierRun, ...]:
        """Return the ended runs of this user whose results are named."""
        rows = {row.id: row for row in [await self._own.run(each, "context_from") for each in given]}
        return await self._store.read(lambda view: check_earlier(view, tuple(rows.values())))

    async def _retry(self, given: dict[str, Any]) -> tuple[RunRow, dict[str, Any]]:
        """Return the run that is repeated, and its arguments with the given ones laid over."""
        run = await self._own.run(str(given["retry_of"]), "retry_of")
        if not run.ended:
            raise BadInput(f"retry_of: {label(run)} has not ended; wait for it, or cancel it first")
        texts = await self._store.read(lambda view: texts_of(view, run))
        if texts is None:
            raise BadInput(f"retry_of: the task of {label(run)} was erased; propose it anew")
        before = _arguments(run, texts)
        before.pop("task_id", None)
        return run, {**before, **given}

    async def confirm(self, given: dict[str, Any], progress: Progress) -> Answer:
        """Do `confirm_spawn`.

        Raises:
            BadInput: An argument cannot be used.
            Refused: Nothing can be approved over this channel.
        """
        args = parse(ConfirmArgs, "confirm_spawn", given)
        if (run := await self._resuming.interrupted(args)) is not None:
            answer = await self._resuming.resume(args, run)
            if answer.status == "resumed":
                await self._wait_for(answer, [run.id], args.wait_seconds, progress)
            return answer
        ids = tuple(dict.fromkeys([await self._own.pending_id(given) for given in args.pending_ids]))
        who = self._session.who
        if args.decision == "reject":
            decided = await self._store.do(reject(ids, who, self._session.channel))
        else:
            settings = self._house.settings
            if not settings.enabled:
                raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was started")
            if settings.approval == "human":  # proposed, perhaps, when it was not
                raise Refused(NO_HUMAN)
            changes = {parse_id("pending_id", key): _caps_of(value) for key, value in (args.changes or {}).items()}
            _refuse_what_hits_nothing(args, ids, changes)
            asked = Approval(
                pending_ids=ids,
                approving=tuple(args.approving) if args.approving is not None else None,
                changes=changes,
                group_max_micros=micros_from_cents(args.group_max_cost_cents) if args.group_max_cost_cents else None,
                group_timeout_s=args.group_timeout,
                group_id=new_id("group_id"),
            )
            decided = await self._store.do(approve(asked, who, self._session.channel, self._house.spawn_limits))
        self._house.manager.poke()
        decisions = [OneDecision(**_plain(decision)) for decision in decided.decisions]
        rows = {row.id: row for row in await self._own.rows([d.subagent_id for d in decisions if d.subagent_id])}
        for decision, made in zip(decisions, decided.decisions, strict=True):
            if row := rows.get(made.subagent_id or ""):
                decision.name, decision.task_id = row.name, row.task_id
            if made.expired and made.subagent_id and args.decision == "approve":
                await self._renew(decision, made.subagent_id)
        started = [made.subagent_id for made in decided.decisions if made.status == "approved" and made.subagent_id]
        answer = ConfirmAnswer(
            status="approved" if started else ("rejected" if args.decision == "reject" else "refused"),
            decisions=decisions,
            group_id=decided.group_id,
            approval_lines=list(decided.approval_lines) or None,
            next=_next(started, decided.group_id, any(made.running for made in decided.decisions)),
        )
        if started:
            await self._wait_for(answer, started, args.wait_seconds, progress)
        return answer

    async def _wait_for(self, answer: ConfirmAnswer, started: list[str], wait_s: float, progress: Progress) -> None:
        try:
            await self._after_approval(answer, started, wait_s, progress)
        except AuditError as error:  # what was approved is approved: it must not be proposed and paid for again
            answer.message = f"Approved; how it goes cannot be read at this moment: {error}"

    async def _after_approval(
        self, answer: ConfirmAnswer, started: list[str], wait_s: float, progress: Progress
    ) -> None:
        rows = await self._looking.wait(started, wait_s, progress)
        shown_runs = await self._looking.answers(rows)
        for decision in answer.decisions:
            run = next((run for run in shown_runs if run.subagent_id == decision.subagent_id), None)
            if run is not None:
                decision.status = run.state
                decision.queue_position = run.queue_position
        ended = [run for run, row in zip(shown_runs, rows, strict=True) if row.ended]
        if ended:
            shown, answer.message = fitting(ended)
            answer.runs = dumped(shown)
        if len(ended) == len(started):
            answer.next = "It has ended." if len(started) == 1 else "All of them have ended."

    async def _renew(self, decision: OneDecision, run_id: str) -> None:
        """Lay a fresh proposal beside the refusal of an expired one, or why none can be made."""
        try:
            fresh = await self._fresh(run_id)
        except (AvaError, RolesError, AuditError) as error:  # what was decided is decided, and its answer is given
            decision.refused_because = f"it expired, and no fresh proposal can be made: {self._own.explained(error)}"
        else:
            decision.fresh = fresh.structured() if fresh is not None else None

    async def _fresh(self, run_id: str) -> SpawnAnswer | None:
        """Make a fresh proposal, with new figures, of one that has expired."""
        run = await self._store.read(lambda view: view.run(run_id))
        texts = await self._store.read(lambda view: texts_of(view, run)) if run else None
        if run is None or texts is None:
            return None
        return await self._propose(parse(SpawnArgs, "spawn_subagent", _arguments(run, texts)))


def _proposal(made: Proposed) -> SpawnAnswer:
    config = made.config
    answer = SpawnAnswer(
        status=made.state,
        pending_id=made.pending_id,
        subagent_id=made.subagent_id,
        name=config.name,
        task_id=config.task_id,
        approval_line=made.line,
        message=made.message,
        estimated_minutes=Minutes(min=config.estimated_minutes[0], max=config.estimated_minutes[1]),
        max_cost_cents=cents(config.max_cost_micros),
        model=config.model,
        tools=list(config.tools),
        unavailable_tools=list(config.unavailable_tools) or None,
        limits={
            "timeout": config.timeout_s,
            "max_cost_cents": cents(config.max_cost_micros),
            "max_tokens": config.max_tokens,
            "max_iterations": config.max_iterations,
            "max_tool_calls": config.max_tool_calls,
        },
        expires_at=iso_utc(made.expires_us),
        next=(
            "Requested, not started. Show the person the message; when they agree, call confirm_spawn with "
            f'pending_ids ["{made.pending_id}"] and approving [the approval_line].'
        ),
    )
    if made.state != WAITING:  # the same task_id again: what it names has been approved already
        which = f"{config.name} ({made.subagent_id})" if config.name else made.subagent_id
        answer.message = f"task_id {config.task_id} is {which} already, and that is {made.state}."
        answer.next = f'Nothing new was proposed. Call check_subagent with subagent_id "{made.subagent_id}".'
        answer.approval_line = answer.expires_at = None
    return answer


def _arguments(run: RunRow, texts: Texts) -> dict[str, Any]:
    """Return the arguments with which a run was proposed."""
    config = config_of(run.config)
    return {**config.asked, **texts.model_dump(exclude_none=True)}


def _caps_of(changes: Changes) -> dict[str, Any]:
    caps = changes.caps.model_dump(exclude_none=True) if changes.caps else {}
    if "timeout" in caps:
        caps["timeout_s"] = caps.pop("timeout")
    if "max_cost_cents" in caps:
        caps["max_cost_micros"] = micros_from_cents(caps.pop("max_cost_cents"))
    if changes.blocked_tools:
        caps["blocked_tools"] = list(changes.blocked_tools)
    return caps


def _refuse_what_hits_nothing(args: ConfirmArgs, ids: tuple[str, ...], changes: dict[str, Any]) -> None:
    """Refuse limits that would be passed over in silence.

    Raises:
        BadInput: A change is of another proposal, or a group's limit was given for one.
    """
    for pending_id in changes:
        if pending_id not in ids:
            raise BadInput(f"changes: {pending_id} is not among pending_ids; give it there too, or leave it out")
    for field in ("group_max_cost_cents", "group_timeout"):
        if len(ids) == 1 and getattr(args, field) is not None:
            raise BadInput(
                f"{field}: it is for two or more together, and one was given; lower its own caps with"
                f' changes {{"{ids[0]}": {{"caps": …}}}}'
            )


def _plain(decision: Any) -> dict[str, Any]:
    return {
        "pending_id": decision.pending_id,
        "subagent_id": decision.subagent_id,
        "status": decision.status,
        "refused_because": decision.refused_because,
    }


def _next(started: list[str], group_id: str | None, running: bool) -> str:
    if not started:
        return "Nothing new was started; what was approved before goes on." if running else "Nothing was started."
    whom = f'group_id "{group_id}"' if group_id else f'subagent_id "{started[0]}"'
    return (
        f"Started in the background. You are not woken when it ends: tell the person to ask for news, then call"
        f" check_subagent with {whom}, not more often than every 30 s."
    )
