"""`spawn_subagent`: makes a proposal, and with `ask` has the person decide on it in the same call.

Under the policy `auto`, a proposal below the ceilings is approved at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError, OutcomeUnknown
from ava_audit.rows import WAITING, RunRow, is_plan_id
from ava_audit.units import DAY_US, iso_utc, micros_from_cents, now_us
from ava_audit.view import Outcome, View
from ava_roles.errors import RolesError
from ava_roles.mcp_client.tools import server_of
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
from ava_server.approval.proposals import Proposal, has_inputs, made_under, proposal_in, propose, texts_of
from ava_server.approval.questions import AnsweredLater
from ava_server.approval.requests import PlanArgs, SpawnArgs, check_context_from, parse
from ava_server.approval.resolve import resolve_run_config
from ava_server.approval.resolve_context import ResolveContext
from ava_server.approval.steps import read_steps
from ava_server.budget.run_config import COST, RUN_TOOLS, RunConfig, Texts, config_of
from ava_server.budget.user_limits import strictest
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.core.ids import label, new_pairs
from ava_server.models.selection import OFFLINE, is_configured
from ava_server.render.entries import named
from ava_server.render.responses import Answer, Minutes, OneDecision, SpawnAnswer
from ava_server.runs.context import ConfigNotSupported
from ava_server.service.access import Access, Answerer, Operations
from ava_server.service.client_approval import ClientApprovals, not_started_next
from ava_server.service.pages import PageDecisions
from ava_server.service.plans import PlanResolver
from ava_server.service.record import CallContext

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
_LIMITED = (
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


def _approved_only_in_hosts(view: View, user: str, now_us: int) -> bool:
    """Tell whether a user's approvals of the last month came by a host's call alone: they are told of the change."""
    since_us = now_us - 30 * DAY_US
    by_person = view.has_approved_over(PERSON_CHANNELS, user, since_us)
    return not by_person and view.has_approved_over(("host_call",), user, since_us)


class Spawns(Operations):
    """Makes proposals."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._client = ClientApprovals(access)
        self._pages = PageDecisions(access)
        self._plans = PlanResolver(access)

    async def spawn(self, given: dict[str, Any], caller: CallContext) -> Answer:
        """Do `spawn_subagent`. Raises BadInput, Refused, or AnsweredLater: the client asks and calls again."""
        retry_of: str | None = None
        given = await self._with_retried_run(given)
        if _is_plan(given):
            return await self._spawn_plan(given, caller)
        given = read_habits(SpawnArgs, given)  # what says nothing must not replace what the earlier run has
        if isinstance(given.get("retry_of"), str):
            retry_of, given = await self._retry(given)
        args = parse(SpawnArgs, given)
        if args.ask and caller.asking.proposal is not None:
            return await self._answered_now(caller.asking.proposal, caller)
        return await self._propose(args, caller, retry_of)

    async def _with_retried_run(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the id of a run or plan in `retry_of`, where they name its proposal."""
        retried = given.get("retry_of")
        if not isinstance(retried, str) or not retried.strip().lower().startswith("p-"):
            return given
        return {**given, "retry_of": (await self._access.run(retried, "retry_of")).id}

    async def _spawn_plan(self, given: dict[str, Any], caller: CallContext) -> SpawnAnswer:
        """Propose a plan, or go on with the proposal that this call made before it ended with a question."""
        retried = given.get("retry_of")
        before = await self._plans.before(str(retried)) if retried else None
        if before is not None and not given.get("steps"):
            earlier = await self._plans.arguments(before)
            _refuse_ineffective(given, earlier["steps"], before)
            given = {**earlier, **{key: each for key, each in given.items() if key != "steps"}}
        return await self._propose_plan(given, caller, before)

    async def _propose_plan(
        self, given: dict[str, Any], caller: CallContext, before: RunRow | None = None, *, fresh: bool = False
    ) -> SpawnAnswer:
        """Propose a plan from the arguments of a call; `before` is the one from which it goes on."""
        args = parse(PlanArgs, {name: value for name, value in given.items() if name in PlanArgs.model_fields})
        if args.ask and caller.asking.proposal is not None:
            return await self._answered_now(caller.asking.proposal, caller)
        if args.again and before is None:
            raise BadInput('again: it names steps of an earlier plan; give retry_of "G-…" too, or leave it out')
        self._runtime.closing.refuse_new()
        steps = await anyio.to_thread.run_sync(read_steps, args.steps, given)
        config, texts, context = await self._plans.resolve(args, steps, caller, before)
        retry_of = before.id if before is not None else None
        return await self._offer(config, texts, context, caller, ask=args.ask, retry_of=retry_of, fresh=fresh)

    async def _answered_now(self, pending_id: str, caller: CallContext) -> SpawnAnswer:
        """Go on with the proposal that this call made before it ended with a question."""
        self._runtime.closing.refuse_new()
        made = await self._store.look(lambda view: self._proposal_in(view, pending_id))
        if made is None:
            raise Refused(f"{pending_id} was erased; propose it again")
        answerer = caller.asking.answerer(await self._policy_on(made))
        answer = _proposal(made)
        self._advise(answer, answerer, as_task=caller.asking.as_task)
        return await self._ask(answer, caller) if answerer == "client" else answer

    async def _policy_on(self, made: Proposal) -> Policy:
        return await self._runtime.policy_on([made.pending_id], self._session.user, through=self._session.through)

    def _proposal_in(self, view: View, pending_id: str) -> Proposal | None:
        user = self._session.user
        return proposal_in(view, pending_id, user, self._runtime.spawn_limits_of(user), now_us())

    async def _ask(self, answer: SpawnAnswer, caller: CallContext) -> SpawnAnswer:
        """Have the person decide on a proposal that waits, and return its answer with what they decided.

        An error is part of the answer: without the ids, a caller would propose and pay for the same again.
        """
        if answer.status != WAITING:
            return answer
        pending_id, run_id, line = str(answer.pending_id), answer.run_id, str(answer.approval_line)
        try:
            decided = await self._client.decide(Approval((pending_id,), (line,)), caller)
            if decided is None:
                return answer
            (made,) = decided.decisions
            if made.status == "approved" and not decided.elsewhere:
                return await self._started(answer, decided)
            now = await self._store.look(lambda view: self._proposal_in(view, pending_id))
        except AnsweredLater as asked:
            raise AnsweredLater(asked.question, pending_id, asked.again) from None
        except OutcomeUnknown as error:
            _settle(answer, "unknown")
            answer.message = f"It may have started: {error}"
            answer.next = f'Call check_subagent with subagent_id "{run_id}"; do not propose it again.'
            return answer
        except (AvaError, AuditError) as error:
            answer.message = f"{answer.message}\nNot started: {self._access.explained(error)}."
            if isinstance(error, Refused):
                answer.next = "Nothing was started."
            return answer
        if made.expired:
            _settle(answer, "expired")
            answer.message = "It expired before the person agreed, and nothing was started."
            answer.next = "Propose it again, if the person still wants it."
        elif now is not None and now.state != WAITING:  # it was decided elsewhere
            return _proposal(now)
        else:
            again = f'call confirm_spawn with pending_ids ["{pending_id}"] and approving [the approval_line]'
            why = self._access.adapt_text(made.refused_because or made.status)
            answer.message = f"{answer.message}\nNot started: {why}."
            answer.next = self._access.adapt_text(not_started_next(decided, again))
        return answer

    async def _started(self, answer: SpawnAnswer, decided: ConfirmOutcome) -> SpawnAnswer:
        self._runtime.manager.wake()
        _settle(answer, "approved")
        answer.asked = True
        answer.message = " ".join(["The person has seen the proposal and approved it.", *decided.lowered])
        answer.next = started_next(answer.run_id)
        with suppress(AuditError):  # the message names what was lowered
            for row in await self._access.rows([answer.run_id]) if decided.lowered else ():
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
        config, texts = await self._resolved(args, context, caller.degraded)
        return await self._offer(config, texts, context, caller, ask=args.ask, retry_of=retry_of, fresh=fresh)

    async def _offer(
        self,
        config: RunConfig,
        texts: Texts,
        context: ResolveContext,
        caller: CallContext,
        *,
        ask: bool,
        retry_of: str | None = None,
        fresh: bool = False,
    ) -> SpawnAnswer:
        """Propose what was resolved, a run or a plan; `fresh` is as for `_propose`."""
        session, record = self._session, caller.record
        kind = "group_id" if config.steps else "subagent_id"
        candidates = new_pairs(kind)
        travel = self._runtime.run_setup.travel
        if travel.is_possible:
            await record.begin()
            config = await travel.send_input(config, [run_id for _pending_id, run_id in candidates])
        as_task = caller.asking.as_task and not fresh
        may_ask_now = ask and caller.asking.answerer(context.policy) == "client"
        # A terminal asks anyway, and a plan never starts without a question.
        starts = context.policy == "auto" and session.transport != "terminal" and not fresh and not config.steps
        limits = self._runtime.limits_under(context.policy, session.user)
        proposing = propose(config, texts, session.who, candidates, limits, policy=context.policy, retry_of=retry_of)
        needs_key = config.model == OFFLINE and not is_configured(context.models)

        def answerer_of(view: View, made: Proposal) -> Answerer:
            # The same task_id may have been proposed before, under a stricter policy.
            return caller.asking.answerer(strictest([context.policy, *made_under(view, [made.pending_id])]))

        def advise(view: View, at_us: int, made: Proposal, answer: SpawnAnswer) -> None:
            answerer = answerer_of(view, made)
            limited = self._limited(view, made, at_us) if answerer == "host" else None
            self._advise(answer, answerer, limited, as_task=as_task)
            if answerer == "link" and made.state == WAITING and _approved_only_in_hosts(view, session.user, at_us):
                answer.message = f"{answer.message}\n{_SINCE_NOW}"
            if needs_key and made.state == WAITING:
                key = self._access.key_advice("openrouter")
                answer.message = f"{answer.message}\nTo have a language model do it: {key}"

        def command(view: View, at_us: int) -> Outcome[tuple[Proposal, SpawnAnswer] | str]:
            outcome = proposing(view, at_us)
            made = outcome.value
            if isinstance(made, str):
                return Outcome(made, outcome.events)
            answer = _proposal(made)
            if not starts:
                advise(view, at_us, made, answer)
            return Outcome((made, answer), outcome.events)

        def whole(value: tuple[Proposal, SpawnAnswer] | str) -> SpawnAnswer | None:
            return None if isinstance(value, str) else value[1]

        value = await record.do(command, None if starts or may_ask_now or fresh else whole)
        if isinstance(value, str):
            await self._release(config, candidates, "")
            raise Refused(value)
        made, answer = value
        await self._release(config, candidates, made.subagent_id)
        self._runtime.proposed.set()
        if starts:
            await self._start_automatically(made, answer)
            await self._store.look(lambda view: advise(view, now_us(), made, answer))
        answerer = await self._store.look(lambda view: answerer_of(view, made))
        if answerer == "link" and not fresh:
            await self._pages.show_first(answer, caller)
        return await self._ask(answer, caller) if may_ask_now and answerer == "client" else answer

    async def _resolved(self, args: SpawnArgs, context: ResolveContext, degraded: bool) -> tuple[RunConfig, Texts]:
        named = [await self._access.run(run_id, "context_from") for run_id in dict.fromkeys(args.context_from or ())]
        rows = tuple({row.id: row for row in named}.values())
        earlier = await self._store.read(lambda view: check_context_from(view, rows)) if rows else ()

        def resolve() -> tuple[RunConfig, Texts]:
            config, texts = resolve_run_config(args, context, earlier, degraded)
            setup = self._runtime.run_setup
            return setup.with_figures(config, texts, self._session.user, context.tokens_per_byte), texts

        try:
            return await anyio.to_thread.run_sync(resolve)
        except ConfigNotSupported as error:
            raise Refused(str(error)) from error

    def _advise(self, answer: SpawnAnswer, answerer: Answerer, limited: str | None = None, *, as_task: bool) -> None:
        """Say in the answer how a proposal that waits is approved; `limited` says why the host cannot start it now."""
        if answer.status != WAITING:
            return
        if answerer == "host" and limited:
            answer.next = _LIMITED.format(why=limited)
            return
        answer.next = self._access.adapt_text(NEXT[answerer].format(pending_id=answer.pending_id))
        if as_task and answerer in ("host", "client"):
            answer.next = with_advice(answer.next, _AS_TASK.format(subagent_id=answer.run_id))

    async def _release(self, config: RunConfig, candidates: Sequence[tuple[str, str]], got: str) -> None:
        """Forget what was stored under ids that the proposal did not get."""
        if config.origin or any(step.config.origin for step in config.steps):
            unused = [run_id for _pending_id, run_id in candidates if run_id != got]
            await anyio.to_thread.run_sync(self._runtime.run_setup.travel.release, unused)

    async def _start_automatically(self, made: Proposal, answer: SpawnAnswer) -> None:
        """Approve a proposal below the ceilings of `auto`; any other waits, and the answer says why."""
        if made.state != WAITING:
            return
        settings = self._runtime.settings
        ceilings = Ceilings(
            micros_from_cents(settings.auto_approve_cents), micros_from_cents(settings.auto_approve_daily_cents)
        )
        why = auto_start_refusal(made.config, self._runtime.tools)
        policy = await self._policy_on(made)
        if policy != "auto":  # it was proposed before, or a PIN was set since
            why = f'approval = "{policy}" held when it was proposed, or holds now'
        if why is None:
            limits = self._runtime.spawn_limits_of(self._session.user)
            command = auto_approve(made.pending_id, self._session.who, limits, ceilings)
            (decision,) = (await self._store.do(command)).decisions
            # It is running where a call with the same task_id has just started it.
            started = decision.status == "approved" or bool(decision.before)
            why = None if started else decision.refused_because
        if why is not None:
            why = self._access.adapt_text(why)
            answer.message = f"{answer.message}\nIt does not start by itself: {why}."
            return
        self._runtime.manager.wake()
        _settle(answer, "approved")
        answer.message = f"Started without a question, by the policy auto.\n{answer.message}"
        answer.next = started_next(made.subagent_id)

    def _limited(self, view: View, made: Proposal, at_us: int) -> str | None:
        """Return why a confirmation by this session's host alone would be refused now, or None."""
        if self._session.channel in PERSON_CHANNELS:
            return None
        user, ids, paid = self._session.user, (made.pending_id,), 0 if made.config.free else made.config.most_runs
        why = hourly_refusal(view, user, ids, paid, self._runtime.spawn_limits_of(user), at_us)
        return why and self._access.adapt_text(why)

    async def _retry(self, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        run = await self._access.run(str(given["retry_of"]), "retry_of")
        if not run.ended:
            raise BadInput(f"retry_of: {label(run)} has not ended; wait for it, or cancel it first")
        texts = await self._store.read(lambda view: texts_of(view, run))
        if texts is None:
            raise BadInput(f"retry_of: the task of {label(run)} was erased; propose it again")
        if not given.get("task") and await self._store.read(lambda view: has_inputs(view, run)):
            raise BadInput(
                f"retry_of: the task of {label(run)} needs what other runs of its plan handed over; give retry_of"
                f' "{run.plan_id}", or a task of its own'
            )
        before = _arguments(run, texts)
        before.pop("task_id", None)
        return run.id, {**before, **given}

    async def renew(self, decision: OneDecision, run_id: str, caller: CallContext) -> None:
        """Add a new proposal to the refusal of an expired one, or why none can be made."""
        try:
            run = await self._store.read(lambda view: view.run(run_id))
            texts = await self._store.read(lambda view: texts_of(view, run)) if run else None
            if run is None or texts is None:
                return
            if run.is_plan:
                fresh = await self._propose_plan(await self._plans.arguments(run), caller, fresh=True)
            else:
                fresh = await self._propose(parse(SpawnArgs, _arguments(run, texts)), caller, fresh=True)
        except (AvaError, RolesError, AuditError) as error:  # the decision stands, and its answer is given
            decision.refused_because = f"it expired, and no new proposal can be made: {self._access.explained(error)}"
        else:
            decision.fresh = fresh.structured()


def _is_plan(given: Mapping[str, Any]) -> bool:
    """Tell whether a call gives steps, or repeats a plan; what says nothing counts as left out."""
    steps, retried = given.get("steps"), given.get("retry_of")
    if isinstance(retried, str) and is_plan_id(retried.strip().upper()):
        return True
    return steps is not None and not (isinstance(steps, str) and steps.strip() in ("", "null"))


def _refuse_ineffective(given: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], before: RunRow) -> None:
    """Refuse what is beside `retry_of` as the default of steps that have their own: it would change nothing."""
    for name, value in given.items():
        says_nothing = value is None or (isinstance(value, str) and not value.strip())
        if name in PlanArgs.model_fields or says_nothing:
            continue
        if any(step.get(name, value) != value for step in steps):
            raise BadInput(
                f"{name}: the steps of {label(before)} have their own; give `steps` to change it, or leave it out"
            )


def _proposal(made: Proposal) -> SpawnAnswer:
    config = made.config
    answer = SpawnAnswer(
        status=made.state,
        pending_id=made.pending_id,
        subagent_id=None if config.steps else made.subagent_id,
        group_id=made.subagent_id if config.steps else None,
        name=config.name,
        task_id=config.task_id,
        approval_line=made.line,
        message=made.message,
        estimated_minutes=Minutes(min=config.estimated_minutes[0], max=config.estimated_minutes[1]),
        model=config.model,
        tools=list(config.tools),
        unavailable_tools=list(config.unavailable_tools) or None,
        expires_at=iso_utc(made.expires_us),
        next=NEXT["host"].format(pending_id=made.pending_id),
    )
    _show_limits(answer, config)
    if made.state != WAITING:  # the same call or task_id again: its proposal has been decided already
        which = named(made.subagent_id, config.name)
        what = f"task_id {config.task_id}" if config.task_id is not None else made.pending_id
        answer.message = f"{what} is {which} already, and that is {made.state}."
        answer.next = f'Nothing new was proposed. Call check_subagent with subagent_id "{made.subagent_id}".'
        _settle(answer, made.state)
    return answer


def _settle(answer: SpawnAnswer, status: str) -> None:
    """Give an answer a status in which its proposal no longer waits: there is nothing to approve until a time."""
    answer.status, answer.approval_line, answer.expires_at = status, None, None


def _show_limits(answer: SpawnAnswer, config: RunConfig) -> None:
    answer.limits = config.limits
    answer.max_cost_cents = config.limits.get(COST.argument)


def _arguments(run: RunRow, texts: Texts) -> dict[str, Any]:
    config = config_of(run.config)
    return {**config.asked, **texts.model_dump(exclude_none=True, exclude={"steps", "project"})}


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
    unknown = [name for name in config.tools if name not in tools and name not in RUN_TOOLS]
    specs = [tools[name].spec for name in config.tools if name in tools]
    if foreign := sorted(filter(None, map(server_of, config.tools))):
        return f"only the MCP server {foreign[0]} itself says what its tools do"
    if unknown:
        return f"what {', '.join(unknown)} may do is not known here"
    if config.confinement == "none":
        return 'nothing confines its commands (sandbox.mode = "none")'
    if config.coding is not None:
        return f"it changes files of {config.coding.repository}, on a branch"
    if running := _with(specs, "commands"):
        return f"it may run commands; with blocked_tools {running} it goes without"
    if changing := [spec.name for spec in specs if not spec.read_only and not spec.artifacts]:
        return f"{', '.join(changing)} may change something"
    return _leak(config, specs)


def _leak(config: RunConfig, specs: Sequence[ToolSpec]) -> str | None:
    """Return why money that is not counted, or something private that a run reads, could leave this machine."""
    if config.search_micros and config.search_call is None:
        return "its web searches cost money, which the ceilings do not count"
    network, memory = _with(specs, "network"), _with(specs, "memory")
    if network and (config.workspace or config.context_from):
        return "it reads what is yours and reaches the web"
    if network and memory:
        return f"it reads the notes in memory and reaches the web (blocked_tools: {', '.join(memory)})"
    if any(config.secrets.values()):
        return "it may send a secret"
    searches = _with(specs, "search")
    if (pages := [name for name in network if name not in searches]) and not config.hosts:
        return (
            f"{', '.join(pages)} could send what the task says to any address; name the allowed hosts (`hosts` in the"
            " role file, or [fetch] hosts in config.toml)"
        )
    if config.workspace and not config.workspace_named:  # then a person who sees the path has to decide
        return f"only the call says that it may read {config.workspace} ([workspace] roots in config.toml)"
    return None


def _with(specs: Sequence[ToolSpec], flag: str) -> list[str]:
    return [spec.name for spec in specs if getattr(spec, flag)]
