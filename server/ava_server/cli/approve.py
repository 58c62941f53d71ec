"""`ava approve` and `ava reject`: a person decides in a terminal what starts, and which run near a cap gets more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ava_audit.errors import AuditError
from ava_audit.units import cap_micros, format_usd
from ava_server.approval.decide import FoldedScreen, PersonAnswer, Shown
from ava_server.cli import terminal
from ava_server.cli.app import NOT_APPROVED, in_event_loop, refuse_in_subagent
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import PlanMaxCost, PlanTimeout, TokenFile, Url, parse_plan_limits, proposals
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.service_client import (
    THERE_EVERY_S,
    Approvals,
    SessionTransport,
    names_run,
    open_service,
    unless_decided,
)
from ava_server.cli.start_question import ShownProposals, fits_table, say_table, together
from ava_server.cli.terminal import YES, ask, heading, say, someone_there, tell
from ava_server.core.commands import advice
from ava_server.core.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending
    from ava_server.runs.asking.pending_questions import PendingExtension

REJECT = ("r", "reject")
DECISIONS = (*YES, *REJECT)
_FOR_SEVERAL = "--group-max and --group-timeout are for two or more proposals; give their ids"
_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="P-ID…", help="Proposals, or subagents (S-…).", autocompletion=proposals)
]


@in_event_loop
async def approve_command(
    context: typer.Context,
    ids: _Ids = None,
    group_max_cost: PlanMaxCost = None,
    group_timeout: PlanTimeout = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show proposals and start them if you agree; under the policy human this takes the approval PIN.

    Several are one table and one question. Two or more ids are one plan under one cap. Without an id, you see all
    waiting proposals, and then the runs near a cap that ask for more. `ava --url URL approve` decides on another
    server, with a token of the scope approve instead of the PIN.
    """
    limits = parse_plan_limits(group_max_cost, group_timeout)
    if limits and len(set(ids or ())) < 2:
        raise BadInput(_FOR_SEVERAL)
    server = chosen_server(context, url, token_file)
    refuse_in_subagent("ava approve")
    async with _open_client(server, "ava approve", asked=True, on_terminal=bool(ids)) as client:
        extensions, waiting = await _read_waiting(client, ids or [])
        shown = shown_of([*waiting, *extensions])
        if shown and someone_there():  # an error comes before any question
            await client.check_can_approve(shown)
        if ids:
            codes = [await _extend(client, one) for one in extensions]
            if waiting:
                codes.append(await _approve_together(client, waiting, limits))
            code = max(codes, default=0)
        else:
            code = await _decide_all(client, waiting, extensions)
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
        extensions, waiting = await _read_waiting(client, ids or [])

        async def reject(one: Pending | PendingExtension, title: str, question: str) -> None:
            if not ids:
                _show(one, title)
                if not someone_there():
                    return
                answer = await _ask_while_open(client, [one.shown], f"{question} [y/N]")
                if answer not in YES:
                    return
            await _decide(client, one, False)

        for extension in extensions:
            await reject(extension, _asks_for_more(extension), "Decline it?")
        if not ids and not someone_there() and fits_table(waiting):
            say_table(waiting)
        else:
            for number, proposal in enumerate(waiting, 1):
                await reject(proposal, _title(proposal, number, len(waiting)), "Reject it?")
        _close([*waiting, *extensions], ids or [], "Each in full: ava show P-ID; reject one with: ava reject P-ID")


@asynccontextmanager
async def _open_client(
    server: Connection | None, command: str, *, asked: bool, on_terminal: bool = False
) -> AsyncGenerator[Approvals]:
    """Raises Refused if it asks `on_terminal`, and there is none."""

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


async def _read_waiting(client: Approvals, ids: list[str]) -> tuple[list[PendingExtension], list[Pending]]:
    """Return the requests for more and the proposals that wait: those with these ids, or without ids all."""
    extensions = await client.extensions(ids)
    others = [each for each in ids if not any(names_run(each, one) for one in extensions)]
    if ids and not others:
        return extensions, []
    return extensions, await client.waiting(others)


async def _decide_all(client: Approvals, waiting: list[Pending], extensions: list[PendingExtension]) -> int:
    """Ask about all proposals at once, or one by one, and then about each request for more; return the exit code."""
    succeeded: list[bool] = []
    answer: str | None = "o"
    folds = True
    if fits_table(waiting) and someone_there():
        proposals = ShownProposals(waiting)
        proposals.show()
        shown = shown_of(waiting)
        question = "Start them? [y = all, r = reject all, o = one by one, Enter = later]"
        answer = await _ask_while_open(client, shown, question, proposals)
        folds = proposals.folded
        if answer is None:
            gone = await client.decided_elsewhere(shown)
            rest = [one for one in waiting if one.pending_id not in gone]
            if not rest and not extensions:
                return 0
            return await _decide_all(client, rest, extensions)
        if answer in YES:
            succeeded += await _start_each(client, waiting, proposals.screens)
        elif answer in REJECT:
            succeeded += [await _attempt(_decide(client, one, False)) for one in waiting]
    if answer == "o":
        succeeded += await _decide_each(client, waiting, folds)
    for extension in extensions:
        question = "Raise the cap? [y = yes; r = no, hand in the result so far; Enter = decide later]"
        _show(extension, _asks_for_more(extension))
        if someone_there():
            answer = await _ask_while_open(client, [extension.shown], question)
            if answer in DECISIONS:
                succeeded.append(await _attempt(_decide(client, extension, answer in YES)))
    _close([*waiting, *extensions], [], "Each in full: ava show P-ID; approve in a terminal: ava approve P-ID")
    if not all(succeeded):
        return NOT_APPROVED
    return 0


async def _decide_each(client: Approvals, waiting: list[Pending], folds: bool) -> list[bool]:
    """Ask about one proposal after the other; return of each decision whether it was carried out."""
    if fits_table(waiting) and not someone_there():
        say_table(waiting)
        return []
    succeeded: list[bool] = []
    for number, one in enumerate(waiting, 1):
        question = f"{_start_it(number, len(waiting))} [y = yes, r = reject it, Enter = leave it waiting]"
        proposal = ShownProposals([one], _title(one, number, len(waiting)), folds=folds)
        proposal.show()
        if not someone_there():
            continue
        answer = await _ask_while_open(client, [one.shown], question, proposal)
        if answer in DECISIONS:
            succeeded.append(await _attempt(_decide(client, one, answer in YES, proposal.screens)))
    return succeeded


async def _ask_while_open(
    client: Approvals, shown: Sequence[Shown], question: str, proposals: ShownProposals | None = None
) -> str | None:
    """Return the answer to a question; None, once it is said, where one of these was decided elsewhere.

    A clear answer that comes too late is returned: carrying it out says why that is refused. `proposals` are unfolded
    first where that is asked for.
    """
    ask_person = partial(ask, question)
    if proposals is not None:
        ask_person = partial(ask_unfolding, question, proposals)
    answer = await unless_decided(client, shown, ask_person)
    if answer in DECISIONS:
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


async def _start_each(client: Approvals, waiting: list[Pending], screens: Mapping[str, FoldedScreen]) -> list[bool]:
    from ava_server.approval.proposals import agreement  # not needed to read the command line

    await client.unlock(shown_of(waiting), "Nothing was started; they still wait.")

    async def approve(one: Pending) -> None:
        decision = await client.decide([one.shown], agreement([one], {}, screens))
        decision.expect("approved", f"{one.pending_id} is not approved")

    succeeded: list[bool] = []
    approved: list[Pending] = []
    for one in waiting:
        succeeded.append(await _attempt(approve(one)))
        if succeeded[-1]:
            approved.append(one)
    if approved:
        say(f"Approved: {', '.join(one.pending_id for one in approved)}.")
        say(await client.describe_start(approved))
    return succeeded


async def _decide(
    client: Approvals,
    one: Pending | PendingExtension,
    approve: bool,
    screens: Mapping[str, FoldedScreen] | None = None,
) -> None:
    from ava_server.runs.asking.pending_questions import PendingExtension  # not needed to read the command line

    if isinstance(one, PendingExtension):
        decision = await client.decide([one.shown], PersonAnswer(approve))
        say(decision.text)
    elif approve:
        await _start(client, [one], {}, screens or {})
    else:
        say(await reject_proposal(client, one))


async def reject_proposal(client: Approvals, one: Pending) -> str:
    """Raises Refused: it no longer waits; says why."""
    decision = await client.decide([one.shown], PersonAnswer(False))
    decision.expect("rejected", "Not rejected")
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
        raise BadInput(_FOR_SEVERAL)
    check_plan_cap(limits, sum(one.max_cost_micros for one in waiting))

    async def choice() -> ChosenProposals:
        return await choose(waiting, limits)

    shown = shown_of(waiting)
    answer = await unless_decided(client, shown, choice)
    elsewhere = await client.decided_elsewhere(shown)
    if elsewhere:
        return await _say_elsewhere(client, waiting, elsewhere, withdrawn=answer is None)
    if answer is None or not answer.proposals:
        still = "it still waits" if len(waiting) == 1 else "they still wait"
        say(f"Nothing was approved; {still}.")
        return NOT_APPROVED
    await _start(client, answer.proposals, answer.limits, answer.screens)
    return 0


async def _say_elsewhere(
    client: Approvals, waiting: Sequence[Pending], elsewhere: Mapping[str, str], *, withdrawn: bool
) -> int:
    """Say what was decided while a question about these stood here, and return the exit code."""
    if withdrawn:
        tell()  # the question stands on the line
    say("\n".join(elsewhere.values()))
    rest = [one.pending_id for one in waiting if one.pending_id not in elsewhere]
    if rest:
        how = advice(f"ava approve {' '.join(rest)}")
        say(f"Nothing was approved here. Still waiting: {', '.join(rest)}; to decide, {how}")
        return NOT_APPROVED
    approved = await client.approved(shown_of(waiting))
    if len(approved) < len(waiting):
        return NOT_APPROVED
    return 0


def shown_of(waiting: Sequence[Pending | PendingExtension]) -> list[Shown]:
    """Return what a person was shown of each."""
    return [one.shown for one in waiting]


def _close(waiting: Sequence[Pending | PendingExtension], ids: list[str], how: str) -> None:
    if not waiting:
        say("Nothing waits for approval.")
    elif not ids and not someone_there():
        tell(advice(how))


def _start_it(number: int, count: int) -> str:
    if count == 1:
        return "Start it?"
    return f"{number} of {count}: start it?"


def _title(one: Pending, number: int, count: int) -> str:
    return f"{number} of {count}, {one.pending_id}:"


def _asks_for_more(one: PendingExtension) -> str:
    return f"{one.subagent_id} asks for more:"


def _show(one: Pending | PendingExtension, title: str) -> None:
    say(f"\n{title}\n{one.message}")
    if one.shown.line:
        say(one.shown.line)


# -- several -----------------------------------------------------------------------------------------------------------


class ChosenProposals(NamedTuple):
    """Which proposals a person starts, the limits of these together, and what was folded on their screen."""

    proposals: list[Pending]
    limits: dict[str, Any]
    screens: dict[str, FoldedScreen]


async def ask_unfolding(question: str, proposals: ShownProposals) -> str:
    """Return the answer to a question about proposals; one that asks to see more of them is asked again."""
    while True:
        answer = await ask(f"{question}{proposals.hint}")
        if not proposals.reveal(answer):
            return answer


async def choose(waiting: list[Pending], limits: dict[str, Any], *, err: bool = False) -> ChosenProposals:
    """Show proposals, and return which of them a person starts.

    Raises BadInput: limits for several would be lost, because only one was chosen.
    """
    several = len(waiting) > 1
    title = "" if several else f"{waiting[0].pending_id}:"
    question = "Start them? [y = all, n = none, o = one by one]" if several else "Start it? [y/N]"
    proposals = ShownProposals(waiting, title, limits, err=err)
    proposals.show()
    answer = await ask_unfolding(question, proposals)
    if answer in YES:
        return ChosenProposals(waiting, limits, proposals.screens)
    if answer != "o" or not several:
        return ChosenProposals([], limits, proposals.screens)
    chosen: list[Pending] = []
    screens: dict[str, FoldedScreen] = {}
    for number, one in enumerate(waiting, 1):
        alone = ShownProposals([one], _title(one, number, len(waiting)), err=err, folds=proposals.folded)
        alone.show()
        if await ask_unfolding(f"{_start_it(number, len(waiting))} [y/N]", alone) in YES:
            chosen.append(one)
            screens |= alone.screens
    combined = sum(one.max_cost_micros for one in chosen)
    if cap_micros(limits.get("group_max_cost_cents", 0)) >= combined:  # without the others it limits nothing
        limits = {name: value for name, value in limits.items() if name != "group_max_cost_cents"}
    if len(chosen) == 1 and limits:
        raise BadInput(
            "--group-max and --group-timeout limit two or more, and you chose one: start it alone, with its own limits."
            " Nothing was started."
        )
    if len(chosen) > 1:
        write_line = tell if err else say
        write_line(f"\nThese: {together(chosen, limits)}")
    return ChosenProposals(chosen, limits, screens)


def check_plan_cap(limits: Mapping[str, Any], together_micros: int) -> None:
    """Raises BadInput if the cap for all together is above the sum of their own."""
    if cap_micros(limits.get("group_max_cost_cents", 0)) > together_micros:
        raise BadInput(
            f"--group-max: their own caps come to {format_usd(together_micros, exact=True)} together; give that or less"
        )


async def approve_proposals(
    client: Approvals, waiting: Sequence[Pending], limits: Mapping[str, Any], screens: Mapping[str, FoldedScreen]
) -> str:
    """Raises Refused if they may not start; says why."""
    from ava_server.approval.proposals import agreement  # not needed to read the command line

    decision = await client.decide(shown_of(waiting), agreement(waiting, limits, screens))
    decision.expect("approved", "Not approved")
    if len(waiting) == 1:
        return "Approved."
    return f"Approved, as the plan {decision.fields.get('group_id')}."


async def _start(
    client: Approvals, waiting: Sequence[Pending], limits: Mapping[str, Any], screens: Mapping[str, FoldedScreen]
) -> None:
    say(await approve_proposals(client, waiting, limits, screens))
    say(await client.describe_start(waiting))
