"""`--online`: one small run for each provider, reserved, capped, logged and counted like every other.

It is the only part of the doctor that writes: the runs need a log, and an owner. The owner takes none but its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_audit.errors import AuditError
from ava_audit.units import format_usd, micros_from_cents
from ava_roles.errors import RolesError
from ava_server.budget.user_limits import Slots
from ava_server.cli.app import ReaderGone
from ava_server.cli.at_desk import propose, session, start
from ava_server.cli.doctor.check import REPORT, Finding, Setup, from_error
from ava_server.cli.doctor.models import cheapest, models_of
from ava_server.cli.reading import note_fetched, whole_answer
from ava_server.cli.root import has_log
from ava_server.cli.terminal import someone_there
from ava_server.config.pin import policy_in_force
from ava_server.core.errors import AvaError, ConfigError
from ava_server.models.selection import Choice, configured
from ava_server.runs.manager import Manager
from ava_server.service.runtime import Runtime, open_runtime, refuse_recursion
from ava_server.service.service import Service

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session
    from ava_server.service.responses import RunAnswer, SpawnAnswer

MOST_CENTS = 5
TIMEOUT_S = 30.0
SLOT_S = 10.0
"""How much longer a run may take that waits for a free slot, or to end."""
MOST_TOKENS = 40_000
"""Twice what the whole prompt can be at worst, and two answers: less than it sounds, for a reservation is a pair."""
TASK = "Answer with the one word: ready."
SYSTEM = "You are asked whether you can be reached. Use no tools but submit_result; put the one word into output."
AGAIN = "When that is mended, run `ava doctor --online` again."
_COMMAND = "ava doctor"
_ANSWERED = frozenset({"success", "iteration_limit", "tool_limit"})
_NO_ROOM = frozenset({"cost_exceeded", "token_exceeded"})

Tell = Callable[[str], None]


def ask_all(setup: Setup, tell: Tell, found: Callable[[Finding], None]) -> None:
    """Ask every provider that is configured, one after another; whoever typed `--online` has approved it.

    Args:
        setup: What there is.
        tell: Told before it begins what it can cost at most.
        found: Given each finding as soon as there is one.
    """
    if refused := _refused(setup):
        return found(refused)
    models = models_of(setup)
    assert setup.settings is not None
    assert models is not None
    try:
        names = list(configured(models))
    except AvaError:  # told by the check of providers
        return None
    choices: list[Choice] = []
    for name in names:
        tried = cheapest(name, models, setup)
        if isinstance(tried, Finding):
            found(tried)
        else:
            choices.append(tried)
    if not choices:
        return found(Finding("online", "note", "nobody was asked: no provider can be called"))
    tell(_announced(choices, _cents(setup.settings)))
    try:
        return anyio.run(_ask_all, setup.settings, choices, found)
    except* ReaderGone:
        raise
    except* Exception as group:  # whatever is broken, what was found is shown
        error = _first(group)
        ours = isinstance(error, AvaError | RolesError | AuditError | OSError)
        text = f"nobody more was asked: {'' if ours else f'{type(error).__name__}: '}{error}"
        found(from_error("online", text, AGAIN if ours else REPORT))


def _refused(setup: Setup) -> Finding | None:
    """Return why nobody may be asked, or None."""
    if why := refuse_recursion():
        return Finding("online", "warning", f"nobody was asked: {why}", "Type it in a terminal of your own.")
    if setup.settings is None or models_of(setup) is None:
        return Finding("online", "warning", "nobody was asked: settings or keys are wrong", AGAIN)
    try:
        policy = policy_in_force(setup.settings)
    except ConfigError as error:
        return Finding("online", "warning", f"nobody was asked: {error}", "Mend or remove that file.")
    if policy == "human":
        text = "nobody was asked: the policy is human, and only a person with the approval PIN approves then"
        return Finding("online", "warning", text, 'Try a model with `ava run researcher "…"`, which asks for the PIN.')
    try:
        has_log(setup.settings.paths)
    except AvaError:
        return Finding("online", "warning", "nobody was asked: the data root cannot hold the log of it", AGAIN)
    return None


def _cents(settings: Settings) -> float:
    """Return what one run may cost."""
    return min(MOST_CENTS, settings.limits.max_cost_cents)


def _announced(choices: list[Choice], most_cents: float) -> str:
    """Return who will be asked, and what it can cost at most."""
    each = format_usd(micros_from_cents(most_cents))
    whom = ", ".join(f"{choice.name} ({'free' if choice.price.free else f'at most {each}'})" for choice in choices)
    paid = sum(not choice.price.free for choice in choices)
    most = f"at most {format_usd(micros_from_cents(most_cents * paid))}, from today's budgets" if paid else "nothing"
    return f"Asking for one word each: {whom}. It costs {most}."


async def _ask_all(settings: Settings, choices: list[Choice], found: Callable[[Finding], None]) -> None:
    async with (
        _own_house(settings) as (runtime, ours),
        session(runtime, _COMMAND, asked=someone_there(), by="system") as own,
    ):
        service = Service(runtime, own)
        for choice in choices:
            found(await _ask(runtime, service, own, choice, ours))


@asynccontextmanager
async def _own_house(settings: Settings) -> AsyncGenerator[tuple[Runtime, set[str]]]:
    """Open the data root, with a manager that runs none but the runs whose ids are put into the set."""
    ours: set[str] = set()
    limits = settings.limits
    async with open_runtime(settings, runs=False) as runtime:
        slots = Slots(limits.running_per_user, limits.running)
        instance = runtime.manager.instance
        # Every other run is left to the servers: this process is gone in a moment.
        runtime.manager = Manager(
            runtime.store, runtime.instances, instance, lambda row: row.id in ours, slots, runtime.run_setup
        )
        async with anyio.create_task_group() as running:
            running.start_soon(runtime.manager.run)
            yield runtime, ours
            running.cancel_scope.cancel()


async def _ask(runtime: Runtime, service: Service, own: Session, choice: Choice, ours: set[str]) -> Finding:
    """Ask one provider, and return what came of it."""
    title = f"online {choice.provider}"
    spawn: dict[str, Any] = {
        "role": "custom",
        "task": TASK,
        "system_prompt": SYSTEM,
        "name": f"doctor {choice.provider}"[:60],
        "model": choice.name,
        "tools": ["read_webpages"],  # a run without anything to read is not proposed; nothing names it a page
        "max_cost_cents": _cents(runtime.settings),
        "max_tokens": MOST_TOKENS,
        "max_iterations": 2,
        "max_tool_calls": 1,
        "timeout": min(TIMEOUT_S, runtime.settings.limits.max_timeout_s),
    }
    began = time.monotonic()
    proposal: SpawnAnswer | None = None
    try:
        proposal = await propose(service, spawn)
        ours.add(proposal.subagent_id or "")
        await start(service, [proposal])
        run_id = proposal.subagent_id or ""
    except (AvaError, RolesError, AuditError) as error:
        if proposal is not None:  # it shall not wait for an approval that nobody will give
            await service.call("confirm_spawn", {"pending_ids": [proposal.pending_id], "decision": "reject"}, _silent)
        return from_error(title, f"not asked: {error}", AGAIN, "warning")
    run = await _ended(runtime, service, run_id)
    if run is None:
        waits = runtime.manager.waiting_for.get(run_id, "it did not end in time")
        return Finding(title, "warning", f"not asked: {waits}; cancelled", "Try again when fewer subagents run.")
    run, answer = await whole_answer(runtime.store, run_id, runtime.instances.alive)
    await note_fetched(runtime.store, own, _COMMAND, run)
    return _finding(title, choice, run, answer, time.monotonic() - began)


async def _ended(runtime: Runtime, service: Service, run_id: str) -> RunRow | None:
    """Wait for the end of a run; cancel it when that does not come, or when this command is interrupted."""
    run: RunRow | None = None
    try:
        with anyio.move_on_after(TIMEOUT_S + SLOT_S):
            run = await runtime.manager.ended(run_id)
    finally:
        if run is None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SLOT_S):
                given = {"subagent_id": run_id, "reason": f"{_COMMAND} does not wait for it any longer"}
                await service.call("cancel_subagent", given, _silent)
    return run


async def _silent(_line: str) -> None:
    """Say nothing."""


def _finding(title: str, choice: Choice, run: RunRow, answer: RunAnswer, took_s: float) -> Finding:
    """Return what an ended run says of its provider."""
    cost = "free" if choice.price.free and not run.cost_micros else format_usd(run.cost_micros)
    if run.uncosted_micros:
        cost += " (its worst case: the provider did not say)"
    about = f"{choice.name}, {cost}, {run.id}"
    if run.state in _ANSWERED:
        return Finding(title, "ok", f"answered in {took_s:.1f} s: {about}")
    if run.state in _NO_ROOM:
        text = f"not asked: what the call could cost or use at worst does not fit its limits ({about})"
        advice = "Set a cheaper model for the tier fast, or try it with `ava run` and a higher --max-cost."
        return Finding(title, "warning", text, advice)
    if run.state == "timeout":
        text = f"no whole answer within {TIMEOUT_S:g} s: {about}"
        return Finding(title, "fault", text, "Try again: a model may still be loading. If not, choose a faster one.")
    said = answer.untrusted_result.error_text if answer.untrusted_result is not None else None
    said = (said or answer.stop_reason or run.state).rstrip(".")
    advice = str((answer.error or {}).get("what_to_do") or f"Look at `ava show {run.id}`.")
    return Finding(title, "fault", f"{said} ({about})", advice)


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group that may hold groups."""
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error
