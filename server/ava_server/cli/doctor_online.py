"""`ava doctor --online`: one small run for each provider, reserved, capped, logged and counted as any other.

This is the only check that writes: a run needs a log and an owner. The owner takes no other runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio

from ava_audit.errors import AuditError
from ava_audit.rows import RunRow
from ava_audit.store.backend import OlderSchema
from ava_audit.units import counted, format_usd, micros_from_cents
from ava_roles.errors import RolesError, ToolFailed
from ava_roles.net.search_engines import Engine, SearchResults
from ava_server.approval.decide import approval_needs
from ava_server.approval.proposals import agreement
from ava_server.budget.user_limits import policy_in_force
from ava_server.cli.log_access import note_fetched
from ava_server.cli.service_client import Approvals, SessionTransport, open_session, propose
from ava_server.cli.terminal import ReaderGone, someone_there
from ava_server.config.search_engine import ask_engine, search_cost
from ava_server.config.settings import Settings
from ava_server.core.errors import AvaError, ConfigError, leaves_of
from ava_server.core.threads import run_async
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import Choice, configured
from ava_server.render.responses import RunAnswer, SpawnAnswer
from ava_server.run_config.config import spent_text
from ava_server.runs.owner.mode import OWN_RUNS
from ava_server.service.access import Session, ignore_progress
from ava_server.service.checks import REPORT, CheckFinding, Setup, from_error
from ava_server.service.checks.models import cheapest, models_of, search_engine
from ava_server.service.run_records import run_record
from ava_server.service.runtime import Runtime, open_runtime, refuse_recursion
from ava_server.service.service import Service

MOST_CENTS = 5
TIMEOUT_S = 30.0
SLOT_S = 10.0
"""How much longer a run may take to get a free slot, or to end."""
MOST_TOKENS = 40_000
"""Twice the longest prompt and two answers: a reservation is for a call and its wrap-up."""
TASK = "Answer with the one word: ready."
SYSTEM = "You are asked whether you can be reached. Use no tools but submit_result; put the one word into output."
QUERY = "weather"
_COMMAND = "ava doctor"
_AGAIN = "After correcting that, run `ava doctor --online` again."
_ANSWERED = frozenset({"success", "iteration_limit", "tool_limit"})
_NO_ROOM = frozenset({"cost_exceeded", "token_exceeded"})

Tell = Callable[[str], None]
Report = Callable[[CheckFinding], None]


def ask_providers(setup: Setup, tell: Tell, report: Report) -> None:
    """Ask each configured provider in turn; `tell` is given the maximum cost first, `report` each finding at once.

    The person who typed `--online` has approved it.
    """
    if refused := _refusal(setup):
        return report(refused)
    models = models_of(setup)
    assert setup.settings is not None
    assert models is not None
    try:
        names = list(configured(models))
    except AvaError:  # the check of providers reports this
        return None
    choices: list[Choice] = []
    for name in names:
        tried = cheapest(name, models, setup)
        if isinstance(tried, CheckFinding):
            report(tried)
        else:
            choices.append(tried)
    if not choices:
        return report(CheckFinding("online", "note", "nothing was asked: no provider can be called"))
    tell(_announcement(choices, _cents(setup.settings)))
    try:
        return run_async(_ask_all, setup.settings, choices, report)
    except* ReaderGone:
        raise
    except* Exception as group:  # what was found is still shown
        error = next(leaves_of(group))
        expected = isinstance(error, AvaError | RolesError | AuditError | OSError)
        text = f"no further provider was asked: {'' if expected else f'{type(error).__name__}: '}{error}"
        report(from_error("online", text, _AGAIN if expected else REPORT))


def _refusal(setup: Setup) -> CheckFinding | None:
    """Return why nothing may be asked."""
    name, refused = "online", "nothing was asked"
    if why := refuse_recursion():
        return CheckFinding(name, "warning", f"{refused}: {why}", "Run it in your own terminal.")
    if setup.settings is None or models_of(setup) is None:
        return CheckFinding(name, "warning", f"{refused}: settings or keys are wrong", _AGAIN)
    try:
        policy, why = policy_in_force(setup.settings, setup.user)
    except ConfigError as error:
        return CheckFinding(name, "warning", f"{refused}: {error}", "Correct or remove that file.")
    if approval_needs("terminal", policy).pin:
        text = f"{refused}: {why}, so only a person with the approval PIN approves"
        return CheckFinding(name, "warning", text, 'Try a model with `ava run researcher "…"`, which asks for the PIN.')
    if setup.usable_root is None:
        return CheckFinding(name, "warning", f"{refused}: the data root cannot hold the log", _AGAIN)
    return None


def _cents(settings: Settings) -> float:
    return min(MOST_CENTS, settings.limits.max_cost_cents)


def _announcement(choices: list[Choice], most_cents: float) -> str:
    """Return who is asked, and what that costs at most."""
    each = format_usd(micros_from_cents(most_cents))
    asked: list[str] = []
    paid = 0
    for choice in choices:
        if choice.price.free:
            asked.append(f"{choice.name} (free)")
        else:
            asked.append(f"{choice.name} (at most {each})")
            paid += 1
    most = "nothing"
    if paid:
        most = f"at most {format_usd(micros_from_cents(most_cents * paid))}, from today's budgets"
    return f"Asking for one word each: {', '.join(asked)}. It costs {most}."


async def _ask_all(settings: Settings, choices: list[Choice], report: Report) -> None:
    async with (
        open_runtime(settings, OWN_RUNS, older=OlderSchema.REFUSE) as runtime,
        open_session(runtime, _COMMAND, asked=someone_there(), by="system") as session,
    ):
        for choice in choices:
            report(await _ask(runtime, Service(runtime, session), session, choice))


async def _ask(runtime: Runtime, service: Service, session: Session, choice: Choice) -> CheckFinding:
    title = f"online {choice.provider}"
    spawn: dict[str, Any] = {
        "role": "custom",
        "task": TASK,
        "system_prompt": SYSTEM,
        "name": f"doctor {choice.provider}"[:60],
        "model": choice.name,
        "tools": ["read_webpages"],  # a run with nothing to read is refused; no page is named for it
        "max_cost_cents": _cents(runtime.settings),
        "max_tokens": MOST_TOKENS,
        "max_iterations": 2,
        "max_tool_calls": 1,
        "timeout": min(TIMEOUT_S, runtime.settings.limits.max_timeout_s),
    }
    began = time.monotonic()
    proposal: SpawnAnswer | None = None
    approvals = Approvals(SessionTransport(runtime, session))
    try:
        proposal = await propose(service, spawn)
        run_id = proposal.subagent_id or ""
        [shown] = await approvals.waiting([run_id])
        (await approvals.decide([shown.shown], agreement([shown], {}))).expect("approved", "Not started")
    except (AvaError, RolesError, AuditError) as error:
        if proposal is not None:  # nobody else will approve it
            given = {"pending_ids": [proposal.pending_id], "decision": "reject"}
            await service.call("confirm_spawn", given, ignore_progress)
        return from_error(title, f"not asked: {error}", _AGAIN, "warning")
    if await _wait_for_end(runtime, service, run_id) is None:
        waits = runtime.manager.waiting_for.get(run_id, "it did not end in time")
        return CheckFinding(title, "warning", f"not asked: {waits}; cancelled", "Try again when fewer subagents run.")
    found = await runtime.store.read(lambda view: run_record(view, run_id, runtime.instances))
    await note_fetched(runtime.store, session, _COMMAND, found.row)
    return _finding(title, choice, found.row, found.answer, time.monotonic() - began)


async def _wait_for_end(runtime: Runtime, service: Service, run_id: str) -> RunRow | None:
    """Cancel a run that takes too long, and on Ctrl-C."""
    run: RunRow | None = None
    try:
        with anyio.move_on_after(TIMEOUT_S + SLOT_S):
            run = await runtime.manager.control.ended(run_id)
    finally:
        if run is None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SLOT_S):
                given = {"subagent_id": run_id, "reason": f"{_COMMAND} no longer waits for it"}
                await service.call("cancel_subagent", given, ignore_progress)
    return run


def _finding(title: str, choice: Choice, run: RunRow, answer: RunAnswer, took_s: float) -> CheckFinding:
    cost = spent_text(run)
    if run.uncosted_micros:
        cost += " (the most that it can be: the provider did not report it)"
    about = f"{choice.name}, {cost}, {run.id}"
    if run.state in _ANSWERED:
        return CheckFinding(title, "ok", f"answered in {took_s:.1f} s: {about}")
    if run.state in _NO_ROOM:
        text = f"not asked: the most that the call can cost does not fit its limits ({about})"
        step = "Set a cheaper model for the tier fast, or try it with `ava run` and a higher --max-cost."
        return CheckFinding(title, "warning", text, step)
    if run.state == "timeout":
        step = "Try again: a model may still be loading. If not, choose a faster one."
        return CheckFinding(title, "fault", f"no whole answer within {TIMEOUT_S:g} s: {about}", step)
    why = answer.untrusted_result.error_text if answer.untrusted_result is not None else None
    why = (why or answer.stop_reason or run.state).rstrip(".")
    step = str((answer.error or {}).get("what_to_do") or f"Look at `ava show {run.id}`.")
    return CheckFinding(title, "fault", f"{why} ({about})", step)


def try_search(setup: Setup, tell: Tell, report: Report) -> None:
    """Search once with the configured engine; the person who typed `--online` has approved it."""
    try:
        engine = search_engine(setup)
    except AvaError:  # the check of keys reports this
        engine = None
    if not isinstance(engine, Engine) or refuse_recursion():  # a model provider searches within a run's caps only
        return
    tell(f"Searching once by {engine.title}: {search_cost(engine.cost_micros)}.")
    title = f"online {engine.title}"
    try:
        results = run_async(_search, engine)
    except ToolFailed as failed:
        report(from_error(title, str(failed), _AGAIN))
        return
    count = len(results.hits)
    text = f"answered with {counted(count, 'result')} for {QUERY!r}"
    text += f" ({results.note})" if results.note else ""
    report(CheckFinding(title, "ok", text) if count else CheckFinding(title, "warning", text, _AGAIN))


async def _search(engine: Engine) -> SearchResults:
    async with ClientPool() as clients:
        return await ask_engine(engine, QUERY, 3, clients)
