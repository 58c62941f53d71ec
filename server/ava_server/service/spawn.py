"""`spawn_subagent`: makes a proposal, and with `ask` has the person decide on it in the same call.

Under the policy `auto`, a proposal below the ceilings is approved at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError, OutcomeUnknown
from ava_audit.rows import WAITING, RunRow, is_plan_id
from ava_audit.units import DAY_US, iso_utc, micros_from_cents, now_us
from ava_audit.view import Command, Outcome, View
from ava_roles.errors import RolesError
from ava_roles.mcp_client.server_tools import server_of
from ava_roles.tool import Tool, ToolSpec
from ava_server.approval.channels import PERSON_CHANNELS
from ava_server.approval.decisions import (
    Approval,
    Ceilings,
    ConfirmOutcome,
    auto_approve,
    hourly_refusal,
)
from ava_server.approval.host_habits import read_habits
from ava_server.approval.proposals import Proposal, brief_of, has_inputs, made_under, proposal_in, propose
from ava_server.approval.requests import PlanArgs, SpawnArgs, parse, read_context_runs
from ava_server.approval.resolve import resolve_run_config
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.start_form import AnsweredLater
from ava_server.approval.steps import read_steps
from ava_server.budget.user_limits import strictest
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.core.ids import label, new_pairs
from ava_server.core.names import named_all, quote_name
from ava_server.models.model_choice import OFFLINE, is_configured
from ava_server.render.entry_lines import named
from ava_server.render.responses import Answer, Minutes, OneDecision, SpawnAnswer
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RUN_TOOLS, RunConfig, config_of
from ava_server.run_config.parts import EarlierRun
from ava_server.run_config.run_cap import COST
from ava_server.runs.owner.mode import driver_of
from ava_server.runs.turn.context import ConfigNotSupported
from ava_server.service.access import Access, Answerer, Asking, Operations
from ava_server.service.client_approval import ClientApprovals, not_started_next
from ava_server.service.page_links import PageDecisions
from ava_server.service.record import CallContext, CallRecord
from ava_server.service.session_plans import PlanResolver

if TYPE_CHECKING:
    from ava_server.config.settings import Policy

NEXT: Mapping[Answerer, str] = {
    "host": (
        "Requested, not started. Show the person the message; when they agree, call confirm_spawn with "
        'pending_ids ["{pending_id}"] and approving [the approval_line].'
    ),
    "client": (
        'Requested, not started. Call confirm_spawn with pending_ids ["{pending_id}"] and approving [the'
        " approval_line]: the person is shown the message then, and only they can answer."
    ),
    "page": (
        'Requested, not started. Call confirm_spawn with pending_ids ["{pending_id}"] and approving [the'
        " approval_line]: it gives the person the address of a page of Ava, where only they can approve, and waits for"
        " that. They can also run `ava approve {pending_id}` in a terminal."
    ),
    "link": (
        "Requested, not started. Show the person the message and the last line of this text; then call confirm_spawn"
        ' once, with pending_ids ["{pending_id}"] and approving [the approval_line]: it waits for their decision, which'
        " no tool can make (`ava hosts` says where, and why).\nTo start it: `ava approve {pending_id}` in a terminal"
    ),
    "terminal": (
        "Requested, not started. Show the person the message, and that they start it with `ava approve {pending_id}`"
        " in a terminal, or in a browser with `ava ui`: no tool can. Then check_subagent tells how it goes."
    ),
}
"""What a caller does with a proposal that waits, by who answers it."""
_NOT_NOW = (
    "Requested, not started, and confirm_spawn cannot start it now: {why}. Show the person the message and that"
    " command."
)
_SINCE_NOW = (
    "Until now you approved in your hosts. This one is not known to show you what starts, so here you approve in Ava;"
    " `ava hosts` lists them, and [hosts.NAME] in config.toml changes that for one."
)
_AS_TASK = (
    "Your host then shows it as a task ({subagent_id}; several approved together have one task, G-…) and gives you the"
    " result when it ends: do not poll."
)
_OUTLIVES_HOST = (
    " Leaving the host does not stop it, also where its dialog says that it stops tasks: cancel_subagent does, or `ava"
    " cancel {subagent_id}` in a terminal; tell the person so if they leave."
)


@dataclass(frozen=True)
class _Offer:
    """What follows a proposal that a call makes, and what its answer says.

    Attributes:
        asking: Who can answer it through the client of the call.
        policy: The policy under which it is resolved. A repeated task_id may be under a stricter one.
        starts: It starts without a question, below the ceilings of the policy `auto`.
        as_task: The client shows an approval as a task.
        needs_key: It can only be done offline, because no model is configured.
    """

    asking: Asking
    policy: Policy
    starts: bool
    as_task: bool
    needs_key: bool

    def answerer(self, view: View, proposal: Proposal) -> Answerer:
        earlier = made_under(view, [proposal.pending_id])
        return self.asking.answerer(strictest([self.policy, *earlier]))


class Spawns(Operations):
    """Makes proposals."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._client = ClientApprovals(access)
        self._pages = PageDecisions(access)
        self._plans = PlanResolver(access)

    async def spawn(self, arguments: dict[str, Any], caller: CallContext) -> Answer:
        """Do `spawn_subagent`. Raises BadInput, Refused, or AnsweredLater: the client asks and calls again."""
        retry_of: str | None = None
        arguments = await self._with_run_id(arguments)
        if _is_plan_call(arguments):
            return await self._spawn_plan(arguments, caller)
        arguments = read_habits(SpawnArgs, arguments)  # an empty value must not replace that of the earlier run
        if isinstance(arguments.get("retry_of"), str):
            retry_of, arguments = await self._arguments_of_retry(arguments)
        args = parse(SpawnArgs, arguments)
        if args.ask and caller.asking.proposal is not None:
            return await self._continue(caller.asking.proposal, caller)
        return await self._propose(args, caller, retry_of)

    async def _with_run_id(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the id of a run or plan in `retry_of`, where they name its proposal."""
        retry_of = arguments.get("retry_of")
        if not isinstance(retry_of, str) or not retry_of.strip().lower().startswith("p-"):
            return arguments
        run = await self._access.run(retry_of, "retry_of")
        return {**arguments, "retry_of": run.id}

    async def _spawn_plan(self, arguments: dict[str, Any], caller: CallContext) -> SpawnAnswer:
        """Propose a plan, or go on with the proposal that this call made before it ended with a question."""
        retry_of = arguments.get("retry_of")
        before = await self._plans.before(str(retry_of)) if retry_of else None
        if before is not None and not arguments.get("steps"):
            earlier = await self._plans.arguments(before)
            _refuse_ineffective(arguments, earlier["steps"], before)
            own = {name: value for name, value in arguments.items() if name != "steps"}
            arguments = {**earlier, **own}
        return await self._propose_plan(arguments, caller, before)

    async def _propose_plan(
        self, arguments: dict[str, Any], caller: CallContext, before: RunRow | None = None, *, fresh: bool = False
    ) -> SpawnAnswer:
        """Propose a plan from the arguments of a call; `before` is the one from which it goes on."""
        of_plan = {name: value for name, value in arguments.items() if name in PlanArgs.model_fields}
        args = parse(PlanArgs, of_plan)
        if args.ask and caller.asking.proposal is not None:
            return await self._continue(caller.asking.proposal, caller)
        if args.again and before is None:
            raise BadInput('again: it names steps of an earlier plan; give retry_of "G-…" too, or leave it out')
        self._runtime.closing.refuse_new()
        steps = await anyio.to_thread.run_sync(read_steps, args.steps, arguments)
        config, brief, context = await self._plans.resolve(args, steps, caller, before)
        retry_of = before.id if before is not None else None
        return await self._offer(config, brief, context, caller, ask=args.ask, retry_of=retry_of, fresh=fresh)

    async def _continue(self, pending_id: str, caller: CallContext) -> SpawnAnswer:
        """Go on with the proposal that this call made before it ended with a question."""
        self._runtime.closing.refuse_new()
        proposal = await self._store.look(lambda view: self._proposal_in(view, pending_id))
        if proposal is None:
            raise Refused(f"{pending_id} was erased; propose it again")
        answerer = caller.asking.answerer(await self._policy_on(proposal))
        answer = _answer_of(proposal)
        self._advise(answer, answerer, as_task=caller.asking.as_task)
        if answerer != "client":
            return answer
        return await self._ask(answer, caller)

    async def _policy_on(self, proposal: Proposal) -> Policy:
        return await self._runtime.policy_on([proposal.pending_id], self._session.user, through=self._session.through)

    def _proposal_in(self, view: View, pending_id: str) -> Proposal | None:
        user = self._session.user
        return proposal_in(view, pending_id, user, self._runtime.spawn_limits_of(user), now_us())

    async def _ask(self, answer: SpawnAnswer, caller: CallContext) -> SpawnAnswer:
        """Have the person decide on a proposal that waits, and return its answer with what they decided.

        An error is part of the answer: without the ids, a caller would propose and pay for the same again.
        """
        if answer.status != WAITING:
            return answer
        pending_id = str(answer.pending_id)
        run_id = answer.run_id
        line = str(answer.approval_line)
        try:
            outcome = await self._client.decide(Approval((pending_id,), (line,)), caller)
            if outcome is None:
                return answer
            (decision,) = outcome.decisions
            if decision.status == "approved" and not outcome.elsewhere:
                return await self._approved_answer(answer, outcome)
            now = await self._store.look(lambda view: self._proposal_in(view, pending_id))
        except AnsweredLater as later:
            raise AnsweredLater(later.question, pending_id, later.again) from None
        except OutcomeUnknown as error:
            _settle(answer, "unknown")
            answer.message = f"It may have started: {error}"
            answer.next = f'Call check_subagent with subagent_id "{run_id}"; do not propose it again.'
            return answer
        except (AvaError, AuditError) as error:
            answer.message = f"{answer.message}\nNot started: {self._access.explain(error)}."
            if isinstance(error, Refused):
                answer.next = "Nothing was started."
            return answer
        if decision.expired:
            _settle(answer, "expired")
            answer.message = "It expired before the person agreed, and nothing was started."
            answer.next = "Propose it again, if the person still wants it."
        elif decision.status == "rejected" and not outcome.elsewhere:
            _settle(answer, "rejected")
            answer.message = "The person has seen the proposal and rejected it."
            answer.next = not_started_next(outcome)
        elif now is not None and now.state != WAITING:  # it was decided elsewhere
            return _answer_of(now)
        else:
            again = f'call confirm_spawn with pending_ids ["{pending_id}"] and approving [the approval_line]'
            why = self._access.adapt_text(decision.refused_because or decision.status)
            answer.message = f"{answer.message}\nNot started: {why}."
            answer.next = self._access.adapt_text(not_started_next(outcome, again))
        return answer

    async def _approved_answer(self, answer: SpawnAnswer, outcome: ConfirmOutcome) -> SpawnAnswer:
        self._runtime.manager.wake()
        _settle(answer, "approved")
        answer.asked = True
        answer.message = " ".join(["The person has seen the proposal and approved it.", *outcome.lowered])
        answer.next = started_next(answer.run_id)
        if outcome.lowered:
            with suppress(AuditError):  # the message names what was lowered
                for row in await self._access.rows([answer.run_id]):
                    _show_limits(answer, config_of(row.config))
        return answer

    async def _propose(
        self, args: SpawnArgs, caller: CallContext, retry_of: str | None = None, *, fresh: bool = False
    ) -> SpawnAnswer:
        """Make a proposal, and have it answered at once where the policy or the call says so.

        A `fresh` one replaces an expired one in the answer of another call: nobody answers it now.
        """
        self._runtime.closing.refuse_new()
        session = self._session
        context = await self._runtime.resolve_context(
            args, session.user, session.folders, caller.record.begin, session.through
        )
        config, brief = await self._resolve(args, context, caller.degraded)
        return await self._offer(config, brief, context, caller, ask=args.ask, retry_of=retry_of, fresh=fresh)

    async def _offer(
        self,
        config: RunConfig,
        brief: Brief,
        context: ResolveContext,
        caller: CallContext,
        *,
        ask: bool,
        retry_of: str | None = None,
        fresh: bool = False,
    ) -> SpawnAnswer:
        """Propose what was resolved, a run or a plan; `fresh` is as for `_propose`."""
        session = self._session
        record = caller.record
        is_plan = bool(config.steps)
        candidates = new_pairs("group_id" if is_plan else "subagent_id")
        travel = self._runtime.run_setup.travel
        if travel.is_possible:
            await record.begin()
            config = await travel.send_input(config, [run_id for _pending_id, run_id in candidates])
        # Somebody is asked anyway about a plan, in a terminal, and where the proposal replaces an expired one.
        is_asked_anyway = is_plan or session.transport == "terminal" or fresh
        offer = _Offer(
            asking=caller.asking,
            policy=context.policy,
            starts=context.policy == "auto" and not is_asked_anyway,
            as_task=caller.asking.as_task and not fresh,
            needs_key=config.model == OFFLINE and not is_configured(context.models),
        )
        asks_now = ask and caller.asking.answerer(context.policy) == "client"
        limits = self._runtime.limits_under(context.policy, session.user)
        command = propose(config, brief, session.who, candidates, limits, policy=context.policy, retry_of=retry_of)
        answer_changes_later = offer.starts or asks_now or fresh
        recorded = await self._record_offer(record, offer, command, is_final=not answer_changes_later)
        if isinstance(recorded, str):  # why it was refused
            await self._release(config, candidates, "")
            raise Refused(recorded)
        proposal, answer = recorded
        await self._release(config, candidates, proposal.subagent_id)
        if config.model != OFFLINE:
            self._runtime.calls_model.set()
        if offer.starts:
            await self._start_automatically(proposal, answer)
            await self._store.look(lambda view: self._advise_offer(view, now_us(), offer, proposal, answer))
        answerer = await self._store.look(lambda view: offer.answerer(view, proposal))
        if answerer == "link" and not fresh:
            await self._pages.show_first(answer, caller)
        if asks_now and answerer == "client":
            return await self._ask(answer, caller)
        return answer

    async def _record_offer(
        self, record: CallRecord, offer: _Offer, propose_command: Command[Proposal | str], *, is_final: bool
    ) -> tuple[Proposal, SpawnAnswer] | str:
        """Make a proposal, and return it with its answer, or why there is none.

        `is_final`: nothing changes the answer later, so it is recorded with the proposal.
        """

        def command(view: View, at_us: int) -> Outcome[tuple[Proposal, SpawnAnswer] | str]:
            outcome = propose_command(view, at_us)
            proposal = outcome.value
            if isinstance(proposal, str):
                return Outcome(proposal, outcome.events)
            answer = _answer_of(proposal)
            if not offer.starts:
                self._advise_offer(view, at_us, offer, proposal, answer)
            return Outcome((proposal, answer), outcome.events)

        def answer_in(value: tuple[Proposal, SpawnAnswer] | str) -> SpawnAnswer | None:
            return None if isinstance(value, str) else value[1]

        return await record.do(command, answer_in if is_final else None)

    def _advise_offer(self, view: View, at_us: int, offer: _Offer, proposal: Proposal, answer: SpawnAnswer) -> None:
        """Say in an answer what a caller does with a proposal that waits, and what the person should know."""
        answerer = offer.answerer(view, proposal)
        why_not_now = self._why_not_now(view, proposal, at_us) if answerer == "host" else None
        self._advise(answer, answerer, why_not_now, as_task=offer.as_task)
        if proposal.state != WAITING:
            return
        if answerer == "link" and _approved_only_in_hosts(view, self._session.user, at_us):
            answer.message = f"{answer.message}\n{_SINCE_NOW}"
        if offer.needs_key:
            key = self._access.key_advice("openrouter")
            answer.message = f"{answer.message}\nTo have a language model do it: {key}"

    async def _resolve(self, args: SpawnArgs, context: ResolveContext, degraded: bool) -> tuple[RunConfig, Brief]:
        rows: dict[str, RunRow] = {}
        for run_id in dict.fromkeys(args.context_from or ()):
            row = await self._access.run(run_id, "context_from")
            rows[row.id] = row
        earlier: tuple[EarlierRun, ...] = ()
        if rows:
            earlier = await self._store.read(lambda view: read_context_runs(view, tuple(rows.values())))

        def resolve() -> tuple[RunConfig, Brief]:
            config, brief = resolve_run_config(args, context, earlier, degraded)
            setup = self._runtime.run_setup
            return setup.with_cost_figures(config, brief, self._session.user, context.recent), brief

        try:
            return await anyio.to_thread.run_sync(resolve)
        except ConfigNotSupported as error:
            raise Refused(str(error)) from error

    def _advise(
        self, answer: SpawnAnswer, answerer: Answerer, why_not_now: str | None = None, *, as_task: bool
    ) -> None:
        """Say in the answer how a proposal that waits is approved, or why the host cannot start it now."""
        if answer.status != WAITING:
            return
        if answerer == "host" and why_not_now:
            answer.next = _NOT_NOW.format(why=why_not_now)
            return
        answer.next = self._access.adapt_text(NEXT[answerer].format(pending_id=answer.pending_id))
        if as_task and answerer in ("host", "client"):
            advice = _AS_TASK
            if driver_of(self._runtime.settings) != "this process":
                advice += _OUTLIVES_HOST
            as_task_advice = self._access.adapt_text(advice.format(subagent_id=answer.run_id))
            answer.next = with_advice(answer.next, as_task_advice)

    async def _release(self, config: RunConfig, candidates: Sequence[tuple[str, str]], run_id: str) -> None:
        """Forget what was stored for a proposal under ids other than the one that it has, `run_id`."""
        if config.origin or any(step.config.origin for step in config.steps):
            unused = [candidate for _pending_id, candidate in candidates if candidate != run_id]
            await anyio.to_thread.run_sync(self._runtime.run_setup.travel.release, unused)

    async def _start_automatically(self, proposal: Proposal, answer: SpawnAnswer) -> None:
        """Approve a proposal below the ceilings of `auto`; any other waits, and the answer says why."""
        if proposal.state != WAITING:
            return
        why = await self._approve_automatically(proposal)
        if why is not None:
            why = self._access.adapt_text(why)
            answer.message = f"{answer.message}\nIt does not start by itself: {why}."
            return
        self._runtime.manager.wake()
        _settle(answer, "approved")
        answer.message = f"Started without a question, by the policy auto.\n{answer.message}"
        answer.next = started_next(proposal.subagent_id)

    async def _approve_automatically(self, proposal: Proposal) -> str | None:
        """Approve a proposal if the policy `auto` allows it; return why it does not, or None."""
        settings = self._runtime.settings
        why = auto_start_refusal(proposal.config, self._runtime.tools)
        policy = await self._policy_on(proposal)
        if policy != "auto":  # it was proposed before, or a PIN was set since
            return f'approval = "{policy}" held when it was proposed, or holds now'
        if why is not None:
            return why
        ceilings = Ceilings(
            micros_from_cents(settings.auto_approve_cents), micros_from_cents(settings.auto_approve_daily_cents)
        )
        limits = self._runtime.spawn_limits_of(self._session.user)
        outcome = await self._store.do(auto_approve(proposal.pending_id, self._session.who, limits, ceilings))
        (decision,) = outcome.decisions
        if decision.status == "approved" or decision.before:  # `before`: a call with the same task_id has started it
            return None
        return decision.refused_because

    def _why_not_now(self, view: View, proposal: Proposal, at_us: int) -> str | None:
        """Return why a confirmation by this session's host alone would be refused now, or None."""
        if self._session.channel in PERSON_CHANNELS:
            return None
        user = self._session.user
        paid_runs = 0 if proposal.config.free else proposal.config.most_runs
        limits = self._runtime.spawn_limits_of(user)
        why = hourly_refusal(view, user, (proposal.pending_id,), paid_runs, limits, at_us)
        return why and self._access.adapt_text(why)

    async def _arguments_of_retry(self, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the id of the run that `retry_of` names, and its arguments, replaced by those of the call."""
        run = await self._access.run(str(arguments["retry_of"]), "retry_of")
        if not run.ended:
            raise BadInput(f"retry_of: {label(run)} has not ended; wait for it, or cancel it first")
        brief = await self._store.read(lambda view: brief_of(view, run))
        if brief is None:
            raise BadInput(f"retry_of: the task of {label(run)} was erased; propose it again")
        if not arguments.get("task") and await self._store.read(lambda view: has_inputs(view, run)):
            raise BadInput(
                f"retry_of: the task of {label(run)} needs what other runs of its plan handed over; give retry_of"
                f' "{run.plan_id}", or a task of its own'
            )
        earlier = _arguments_of(run, brief)
        earlier.pop("task_id", None)
        return run.id, {**earlier, **arguments}

    async def renew(self, decision: OneDecision, run_id: str, caller: CallContext) -> None:
        """Add a new proposal to the refusal of an expired one, or why none can be made."""
        try:
            run = await self._store.read(lambda view: view.run(run_id))
            brief = await self._store.read(lambda view: brief_of(view, run)) if run else None
            if run is None or brief is None:
                return
            if run.is_plan:
                fresh = await self._propose_plan(await self._plans.arguments(run), caller, fresh=True)
            else:
                args = parse(SpawnArgs, _arguments_of(run, brief))
                fresh = await self._propose(args, caller, fresh=True)
        except (AvaError, RolesError, AuditError) as error:  # the decision stands, and its answer is given
            decision.refused_because = f"it expired, and no new proposal can be made: {self._access.explain(error)}"
        else:
            decision.fresh = fresh.structured()


def _approved_only_in_hosts(view: View, user: str, now_us: int) -> bool:
    """Tell whether all approvals of a user in the last month came by a host's call: then the change is explained."""
    since_us = now_us - 30 * DAY_US
    by_person = view.has_approved_over(PERSON_CHANNELS, user, since_us)
    return not by_person and view.has_approved_over(("host_call",), user, since_us)


def _is_plan_call(arguments: Mapping[str, Any]) -> bool:
    """Tell whether a call gives steps or repeats a plan. Empty steps count as left out."""
    retry_of = arguments.get("retry_of")
    if isinstance(retry_of, str) and is_plan_id(retry_of.strip().upper()):
        return True
    steps = arguments.get("steps")
    if isinstance(steps, str):
        return steps.strip() not in ("", "null")
    return steps is not None


def _refuse_ineffective(arguments: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], before: RunRow) -> None:
    """Refuse a default beside `retry_of` where the steps have values of their own: it would change nothing."""
    for name, value in arguments.items():
        is_empty = value is None or (isinstance(value, str) and not value.strip())
        if name in PlanArgs.model_fields or is_empty:
            continue
        if any(step.get(name, value) != value for step in steps):
            raise BadInput(
                f"{name}: the steps of {label(before)} have their own; give `steps` to change it, or leave it out"
            )


def _answer_of(proposal: Proposal) -> SpawnAnswer:
    config = proposal.config
    answer = SpawnAnswer(
        status=proposal.state,
        pending_id=proposal.pending_id,
        subagent_id=None if config.steps else proposal.subagent_id,
        group_id=proposal.subagent_id if config.steps else None,
        name=config.name,
        task_id=config.task_id,
        approval_line=proposal.line,
        message=proposal.message,
        estimated_minutes=Minutes(min=config.estimated_minutes[0], max=config.estimated_minutes[1]),
        model=config.model,
        tools=list(config.tools),
        unavailable_tools=list(config.unavailable_tools) or None,
        expires_at=iso_utc(proposal.expires_us),
        next=NEXT["host"].format(pending_id=proposal.pending_id),
    )
    _show_limits(answer, config)
    if proposal.state != WAITING:  # the same call or task_id again: its proposal has been decided already
        which = named(proposal.subagent_id, config.name)
        what = f"task_id {config.task_id}" if config.task_id is not None else proposal.pending_id
        answer.message = f"{what} is {which} already, and that is {proposal.state}."
        answer.next = f'Nothing new was proposed. Call check_subagent with subagent_id "{proposal.subagent_id}".'
        _settle(answer, proposal.state)
    return answer


def _settle(answer: SpawnAnswer, status: str) -> None:
    """Give an answer the status of a proposal that no longer waits: no line to approve, no time when it expires."""
    answer.status, answer.approval_line, answer.expires_at = status, None, None


def _show_limits(answer: SpawnAnswer, config: RunConfig) -> None:
    answer.limits = config.limits
    answer.max_cost_cents = config.limits.get(COST.argument)


def _arguments_of(run: RunRow, brief: Brief) -> dict[str, Any]:
    config = config_of(run.config)
    return {**config.asked, **brief.model_dump(exclude_none=True, exclude={"steps", "project"})}


def started_next(run_id: str, group_id: str | None = None) -> str:
    group_id = run_id if is_plan_id(run_id) else group_id
    whom = f'group_id "{group_id}"' if group_id else f'subagent_id "{run_id}"'
    return (
        f"Started in the background. You are not woken when it ends: tell the person to ask for news, then call"
        f" check_subagent with {whom}, not more often than every 30 s."
    )


def auto_start_refusal(config: RunConfig, tools: Mapping[str, Tool]) -> str | None:
    """Return why a run may not start without a question, whatever it costs, or None.

    It may have no effect beyond its own result, and nothing private that it reads may leave this machine.
    """
    specs: list[ToolSpec] = []
    unknown: list[str] = []
    servers: list[str] = []
    for name in config.tools:
        if name in tools:
            specs.append(tools[name].spec)
        elif name not in RUN_TOOLS:
            unknown.append(name)
        server = server_of(name)
        if server:
            servers.append(server)
    if servers:
        return f"only the MCP server {quote_name(min(servers))} itself says what its tools do"
    if unknown:
        return f"what {named_all('tool', unknown, len(unknown))} may do is not known here"
    if config.confinement == "none":
        return 'nothing confines its commands (sandbox.mode = "none")'
    if config.coding is not None:
        return f"it changes files of {config.coding.repository}, on a branch"
    return _effect_refusal(specs) or _leak_refusal(config, specs)


def _effect_refusal(specs: Sequence[ToolSpec]) -> str | None:
    """Return which tools could change something outside Ava; None if none could."""
    commands = [spec.name for spec in specs if spec.commands]
    if commands:
        return f"it may run commands; with blocked_tools {commands} it goes without"
    changing = [spec.name for spec in specs if not spec.read_only and not spec.artifacts]
    if changing:
        return f"{', '.join(changing)} may change something"
    return None


def _leak_refusal(config: RunConfig, specs: Sequence[ToolSpec]) -> str | None:
    """Return why a run could spend money that is not counted, or send something private away; None if it cannot."""
    if config.search_micros and config.search_call is None:
        return "its web searches cost money, which the ceilings do not count"
    web_tools = [spec for spec in specs if spec.network]
    if web_tools:
        if config.workspace or config.context_from:
            return "it reads what is yours and reaches the web"
        memory_tools = [spec.name for spec in specs if spec.memory]
        if memory_tools:
            return f"it reads the notes in memory and reaches the web (blocked_tools: {', '.join(memory_tools)})"
    if any(config.secrets.values()):
        return "it may send a secret"
    page_tools = [spec.name for spec in web_tools if not spec.search]
    if page_tools and not config.hosts:
        return (
            f"{', '.join(page_tools)} could send what the task says to any address; name the allowed hosts (`hosts` in"
            " the role file, or [fetch] hosts in config.toml)"
        )
    if config.workspace and not config.workspace_named:  # a person who sees the path has to decide
        return f"only the call says that it may read {config.workspace} ([workspace] roots in config.toml)"
    return None
