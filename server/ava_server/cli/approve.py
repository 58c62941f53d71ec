"""`ava approve` and `ava reject`: a person decides in a terminal what starts, and which run near a cap gets more."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_audit.errors import AuditError
from ava_audit.units import cap_micros, format_usd
from ava_roles.wrap import clean
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.cli import terminal
from ava_server.cli.app import NOT_APPROVED, in_event_loop, refuse_in_subagent
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import GroupMaxCost, GroupTimeout, TokenFile, Url, parse_group_limits, proposals
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.service_client import (
    THERE_EVERY_S,
    Approvals,
    SessionTransport,
    names_run,
    open_service,
    unless_decided,
)
from ava_server.cli.terminal import YES, agrees, ask, heading, one_line, say, someone_there, tell
from ava_server.core.commands import advice
from ava_server.core.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending, ProposalSummary
    from ava_server.runs.pending_questions import PendingExtension

TASK_COLUMNS = 40
"""Columns that a task has beside the others of a table; with fewer, it is below them."""
REJECT = ("r", "reject")
_NO_GROUP = "--group-max and --group-timeout are for two or more proposals; give their ids"
_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="P-ID…", help="Proposals, or subagents (S-…).", autocompletion=proposals)
]


@in_event_loop
async def approve_command(
    context: typer.Context,
    ids: _Ids = None,
    group_max_cost: GroupMaxCost = None,
    group_timeout: GroupTimeout = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show proposals and start them if you agree; under the policy human this takes the approval PIN.

    Several are one table and one question. Two or more ids are one plan under one cap. Without an id, you see all
    waiting proposals, and then the runs near a cap that ask for more. `ava --url URL approve` decides on another
    server, with a token of the scope approve instead of the PIN.
    """
    limits = parse_group_limits(group_max_cost, group_timeout)
    if limits and len(set(ids or ())) < 2:
        raise BadInput(_NO_GROUP)
    server = chosen_server(context, url, token_file)
    refuse_in_subagent("ava approve")
    async with _open_client(server, "ava approve", asked=True, on_terminal=bool(ids)) as client:
        asking, waiting = await _waiting(client, ids or [])
        if (waiting or asking) and someone_there():  # an error comes before any question
            await client.check_can_approve([*(one.shown for one in waiting), *(one.shown for one in asking)])
        if ids:
            codes = [await _extend(client, one) for one in asking]
            code = max([*codes, await _approve_together(client, waiting, limits) if waiting else 0])
        else:
            code = await _all_waiting(client, waiting, asking)
    raise typer.Exit(code)


@in_event_loop
async def reject_command(
    context: typer.Context, ids: _Ids = None, url: Url = None, token_file: TokenFile = None
) -> None:
    """Reject proposals, so that they can no longer start. Without an id, you are asked about each that waits.

    If you reject a run's request for more, the run hands in what it has.
    """
    server = chosen_server(context, url, token_file)
    refuse_in_subagent("ava reject")
    async with _open_client(server, "ava reject", asked=someone_there()) as client:
        asking, waiting = await _waiting(client, ids or [])

        async def reject(one: Pending | PendingExtension, title: str, question: str) -> None:
            if not ids:
                _show(one, title)
                if not someone_there() or await _ask_while_open(client, [one.shown], f"{question} [y/N]") not in YES:
                    return
            await _decide(client, one, False)

        for more in asking:
            await reject(more, _asks_for_more(more), "Decline it?")
        for number, one in enumerate(waiting, 1):
            await reject(one, f"{number} of {len(waiting)}, {one.pending_id}:", "Reject it?")
        _close([*waiting, *asking], ids or [], "Reject one with: ava reject P-ID")


@asynccontextmanager
async def _open_client(
    server: Connection | None, command: str, *, asked: bool, on_terminal: bool = False
) -> AsyncGenerator[Approvals]:
    """Raises Refused: it asks `on_terminal`, and there is none."""

    def begin(place: terminal.Place) -> None:
        heading(place)
        if on_terminal and not someone_there():
            raise Refused("There is no terminal to ask on, so nothing was approved: a person approves, in a terminal.")

    if server is not None:
        begin(server.address)
        from ava_server.cli.transport import reached

        async with reached(server, THERE_EVERY_S) as there:
            yield Approvals(there)
    else:
        settings = read_settings()
        begin(settings.paths)
        async with open_service(settings, command, asked=asked) as (runtime, service):
            yield Approvals(SessionTransport(runtime, service.session))


async def _waiting(client: Approvals, ids: list[str]) -> tuple[list[PendingExtension], list[Pending]]:
    asking = await client.extensions(ids)
    others = [given for given in ids if not any(names_run(given, one) for one in asking)]
    return asking, await client.waiting(others) if others or not ids else []


async def _all_waiting(client: Approvals, waiting: list[Pending], asking: list[PendingExtension]) -> int:
    done: list[bool] = []

    async def ask_about(one: Pending | PendingExtension, title: str, question: str) -> None:
        _show(one, title)
        if someone_there() and (answer := await _ask_while_open(client, [one.shown], question)) in (*YES, *REJECT):
            done.append(await _attempt(_decide(client, one, answer in YES)))

    answer: str | None = "o"
    if _fits_table(waiting) and someone_there():
        show_table(waiting, {})
        shown = [one.shown for one in waiting]
        question = "Start them? [y = all, r = reject all, o = one by one, Enter = later]"
        answer = await _ask_while_open(client, shown, question)
        if answer is None:
            gone = await client.decided_elsewhere(shown)
            rest = [one for one in waiting if one.pending_id not in gone]
            return await _all_waiting(client, rest, asking) if rest or asking else 0
        if answer in YES:
            done += await _start_each(client, waiting)
        elif answer in REJECT:
            done += [await _attempt(_decide(client, one, False)) for one in waiting]
    for number, one in enumerate(waiting if answer == "o" else (), 1):
        question = "Start it? [y = yes, r = reject it, Enter = leave it waiting]"
        await ask_about(one, f"{number} of {len(waiting)}, {one.pending_id}:", question)
    for more in asking:
        question = "Raise the cap? [y = yes; r = no, hand in the result so far; Enter = decide later]"
        await ask_about(more, _asks_for_more(more), question)
    _close([*waiting, *asking], [], "Approve in a terminal: ava approve P-ID")
    return 0 if all(done) else NOT_APPROVED


async def _ask_while_open(client: Approvals, shown: Sequence[Shown], question: str) -> str | None:
    """Return the answer to a question; None, once it is said, where one of these was decided elsewhere.

    A clear answer that comes too late is returned: carrying it out says why that is refused.
    """
    answer = await unless_decided(client, shown, lambda: ask(question))
    if answer in (*YES, *REJECT):
        return answer or ""
    elsewhere = await client.decided_elsewhere(shown)
    if not elsewhere:
        return answer or ""
    if answer is None:
        tell()  # the question stands on the line
    say("\n".join(elsewhere.values()))
    return None


async def _attempt(decision: Awaitable[object]) -> bool:
    """Say why a decision is refused, because the others can still be made."""
    try:
        await decision
    except (AvaError, AuditError) as error:
        tell(f"ava: {error}")
        return False
    return True


async def _start_each(client: Approvals, waiting: list[Pending]) -> list[bool]:
    from ava_server.approval.proposals import agreement  # not needed to read the command line

    await client.unlock([one.shown for one in waiting], "Nothing was started; they still wait.")

    async def approve(one: Pending) -> None:
        decided = await client.decide([one.shown], agreement([one], {}))
        decided.expect("approved", f"{one.pending_id} is not approved")

    done = [await _attempt(approve(one)) for one in waiting]
    if started := [one for one, approved in zip(waiting, done, strict=True) if approved]:
        say(f"Approved: {', '.join(one.pending_id for one in started)}.")
        say(await client.describe_start(started))
    return done


async def _decide(client: Approvals, one: Pending | PendingExtension, approve: bool) -> None:
    from ava_server.runs.pending_questions import PendingExtension  # not needed to read the command line

    if isinstance(one, PendingExtension):
        say((await client.decide([one.shown], PersonAnswer(approve))).text)
    elif approve:
        await _start(client, [one], {})
    else:
        say(await reject_proposal(client, one))


async def reject_proposal(client: Approvals, one: Pending) -> str:
    """Raises Refused: it no longer waits; says why."""
    (await client.decide([one.shown], PersonAnswer(False))).expect("rejected", "Not rejected")
    return f"{one.pending_id} is rejected."


async def _extend(client: Approvals, one: PendingExtension) -> int:
    _show(one, _asks_for_more(one))
    answer = await _ask_while_open(client, [one.shown], "Raise the cap? [y/N]")
    if answer is None:
        return NOT_APPROVED
    if answer not in YES:
        how = advice(f"ava reject {one.subagent_id}")
        say(f"Nothing was raised; it still waits. To have it hand in what it has: {how}")
        return NOT_APPROVED
    await _decide(client, one, True)
    return 0


async def _approve_together(client: Approvals, waiting: list[Pending], limits: dict[str, Any]) -> int:
    if limits and len(waiting) < 2:  # several ids can name the same proposal
        raise BadInput(_NO_GROUP)
    check_group_cap(limits, sum(one.max_cost_micros for one in waiting))
    if len(waiting) > 1:
        show_table(waiting, limits)
    else:
        _show(waiting[0], f"{waiting[0].pending_id}:")

    async def choice() -> tuple[list[Pending], dict[str, Any]]:
        if len(waiting) > 1:
            return await choose(waiting, limits)
        return (waiting if await agrees("Start it?") else []), limits

    shown = [one.shown for one in waiting]
    answer = await unless_decided(client, shown, choice)
    elsewhere = await client.decided_elsewhere(shown)
    if elsewhere:
        return await _say_elsewhere(client, waiting, elsewhere, withdrawn=answer is None)
    chosen, limits = answer or ([], limits)
    if not chosen:
        say("Nothing was approved; it still waits." if len(waiting) == 1 else "Nothing was approved; they still wait.")
        return NOT_APPROVED
    await _start(client, chosen, limits)
    return 0


async def _say_elsewhere(
    client: Approvals, waiting: Sequence[Pending], elsewhere: Mapping[str, str], *, withdrawn: bool
) -> int:
    """Say what was decided while a question about these stood here, and return the exit code."""
    if withdrawn:
        tell()  # the question stands on the line
    say("\n".join(elsewhere.values()))
    if rest := [one.pending_id for one in waiting if one.pending_id not in elsewhere]:
        how = advice(f"ava approve {' '.join(rest)}")
        say(f"Nothing was approved here. Still waiting: {', '.join(rest)}; to decide, {how}")
        return NOT_APPROVED
    approved = await client.approved([one.shown for one in waiting])
    return 0 if len(approved) == len(waiting) else NOT_APPROVED


def _close(waiting: Sequence[Pending | PendingExtension], ids: list[str], how: str) -> None:
    if not waiting:
        say("Nothing waits for approval.")
    elif not ids and not someone_there():
        tell(advice(how))


def _asks_for_more(one: PendingExtension) -> str:
    return f"{one.subagent_id} asks for more:"


def _show(one: Pending | PendingExtension, title: str, show: Callable[[str], None] = say) -> None:
    show(f"\n{title}\n{one.message}")
    if one.shown.line:
        show(one.shown.line)


# -- several -----------------------------------------------------------------------------------------------------------


def show_table(waiting: Sequence[Pending], limits: Mapping[str, Any], *, err: bool = False) -> None:
    """Show several proposals before one question: as a table on a terminal, elsewhere each in full."""
    stream, show = (sys.stderr, tell) if err else (sys.stdout, say)
    if stream.isatty() and _fits_table(waiting):
        for line, striking in _table(waiting, terminal.columns(stream)):
            typer.echo(terminal.styled(clean(line)[0], fg="yellow") if striking else clean(line)[0], err=err)
    else:
        for number, one in enumerate(waiting, 1):
            _show(one, f"{number} of {len(waiting)}, {one.pending_id}:", show)
        show("")
    show(f"All of them: {_together(waiting, limits)}")


def _fits_table(waiting: Sequence[Pending]) -> bool:
    return len(waiting) > 1 and all(one.summary is not None for one in waiting)


def _table(waiting: Sequence[Pending], width: int) -> list[tuple[str, bool]]:
    """Return the lines of a table, and which of them belong to a proposal that needs a closer look."""
    rows = [one.summary for one in waiting if one.summary is not None]
    striking, remarks = _compared(rows)
    common = [line for line in rows[0].warnings if all(line in row.warnings for row in rows)]
    named = [(" ", "", "role", "at most", "model")]
    for number, row in enumerate(rows, 1):
        mark = "!" if number in striking else " "
        named.append((mark, str(number), one_line(row.role), one_line(row.limits), one_line(row.model)))
    heads = terminal.aligned(named)
    widest = max(map(terminal.cells, heads)) + 2
    beside = widest if width - widest >= TASK_COLUMNS else 0
    indent = " " * len(f"!  {len(rows)}  ")
    lines = [(heads[0].ljust(beside) + "task" * bool(beside), False)]
    for number, (head, row, one) in enumerate(zip(heads[1:], rows, waiting, strict=True), 1):
        own = [f"{one.pending_id} {row.reach}.", *(line for line in row.warnings if line not in common)]
        texts = _with_task(head, row.task, own, beside, width, indent)
        lines += [(part, number in striking) for part in _wrapped(texts, width)]
    after = _wrapped([*(f"Each of them: {line}" for line in common), *remarks], width)
    return [*lines, ("", False), *((part, False) for part in after)]


def _with_task(head: str, task: str, below: list[str], beside: int, width: int, indent: str) -> list[str]:
    """Return the lines of a row: its task from the column `beside` on, or below where there is no room (0)."""
    if beside:
        first, *more = terminal.wrapped_lines(task, width - beside, breaks=True)
    else:
        first, more, below = "", [], [task, *below]
    beginning = [head.ljust(beside) + first, *(" " * beside + line.lstrip() for line in more)]
    return [*beginning, *(indent + line for line in below)]


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    return [part for text in texts for part in terminal.wrapped_lines(text, width, breaks=True)]


def _compared(rows: Sequence[ProposalSummary]) -> tuple[set[int], list[str]]:
    """Return the numbers of the proposals that need a closer look, and what all or only some can do as lines.

    A closer look needs what can do something serious; if none can, what can do something that another cannot.
    """
    from ava_server.approval.summary import POWERS, SERIOUS

    everyone: list[str] = []
    some: dict[str, list[int]] = {}
    for power in POWERS:
        held = [number for number, row in enumerate(rows, 1) if power in row.powers]
        if 0 < len(held) < len(rows):
            some[power] = held
        elif held and power in SERIOUS:
            everyone.append(power)
    serious = {number for number, row in enumerate(rows, 1) if SERIOUS.intersection(row.powers)}
    remarks = [f"! All of them can {', '.join(everyone)}."] if everyone else []
    if some:
        apart = (f"{power} ({', '.join(map(str, held))})" for power, held in some.items())
        remarks.append(f"{'! ' * bool(SERIOUS & some.keys())}Only some of them can {', '.join(apart)}.")
    return serious or {number for held in some.values() for number in held}, remarks


async def choose(
    waiting: list[Pending], limits: dict[str, Any], *, err: bool = False
) -> tuple[list[Pending], dict[str, Any]]:
    """Return which proposals a person starts, after `show_table`, and the limits of these together.

    Raises BadInput: limits for several would be lost, because only one was chosen.
    """
    answer = await ask("Start them? [y = all, n = none, o = one by one]")
    if answer != "o":
        return (waiting if answer in YES else []), limits
    show = tell if err else say
    chosen: list[Pending] = []
    for number, one in enumerate(waiting, 1):
        _show(one, f"{number} of {len(waiting)}, {one.pending_id}:", show)
        chosen += [one] if await agrees("Start it?") else []
    together = sum(one.max_cost_micros for one in chosen)
    if cap_micros(limits.get("group_max_cost_cents", 0)) >= together:  # without the others it limits nothing
        limits = {name: value for name, value in limits.items() if name != "group_max_cost_cents"}
    if len(chosen) == 1 and limits:
        raise BadInput(
            "--group-max and --group-timeout limit two or more, and you chose one: start it alone, with its own limits."
            " Nothing was started."
        )
    if len(chosen) > 1:
        show(f"\nThese: {_together(chosen, limits)}")
    return chosen, limits


def check_group_cap(limits: Mapping[str, Any], together_micros: int) -> None:
    """Raises BadInput: the cap for all together is above the sum of their own."""
    if cap_micros(limits.get("group_max_cost_cents", 0)) > together_micros:
        raise BadInput(
            f"--group-max: their own caps come to {format_usd(together_micros, exact=True)} together; give that or less"
        )


def _together(waiting: Sequence[Pending], limits: Mapping[str, Any]) -> str:
    """Return the approval line of all together, and which shared cap keeps them from spending all of their own."""
    from ava_server.approval.proposals import together_line, together_note

    cap = cap_micros(limits["group_max_cost_cents"]) if "group_max_cost_cents" in limits else None
    note = together_note(waiting, cap)
    return f"{together_line(waiting, cap, limits.get('group_timeout'))}.{f' {note}' if note else ''}"


async def approve_proposals(client: Approvals, waiting: Sequence[Pending], limits: Mapping[str, Any]) -> str:
    """Raises Refused: they may not start; says why."""
    from ava_server.approval.proposals import agreement  # not needed to read the command line

    decided = await client.decide([one.shown for one in waiting], agreement(waiting, limits))
    decided.expect("approved", "Not approved")
    return "Approved." if len(waiting) == 1 else f"Approved, as the plan {decided.fields.get('group_id')}."


async def _start(client: Approvals, waiting: Sequence[Pending], limits: Mapping[str, Any]) -> None:
    say(await approve_proposals(client, waiting, limits))
    say(await client.describe_start(waiting))
