"""`ava approve` and `ava reject`: a person decides in a terminal what starts, and which run near a cap gets more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_audit.errors import AuditError
from ava_audit.units import cap_micros, format_usd
from ava_server.cli.app import NOT_APPROVED, refuse_in_subagent
from ava_server.cli.approval_client import LocalApprovals, RemoteApprovals, RemoteServer, names_run, open_remote
from ava_server.cli.completion import proposals
from ava_server.cli.options import GroupMaxCost, GroupTimeout, parse_group_limits
from ava_server.cli.service_client import open_service, refuse_unless_approved
from ava_server.cli.terminal import agrees, ask, heading, say, someone_there, tell
from ava_server.core.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending
    from ava_server.config.settings import Settings
    from ava_server.runs.extension_answer import PendingExtension

ApprovalClient = LocalApprovals | RemoteApprovals

_NO_GROUP = "--group-max and --group-timeout are for two or more proposals; give their ids"
_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="P-ID…", help="Proposals, or subagents (S-…).", autocompletion=proposals),
]


def register(app: typer.Typer) -> None:
    """Add `ava approve` and `ava reject` to the app."""
    app.command("approve", short_help="Start proposals or raise a run's cap; without an id, one by one.")(
        approve_command
    )
    app.command("reject", short_help="Reject proposals; without an id, one by one.")(reject_command)


def approve_command(
    context: typer.Context,
    ids: _Ids = None,
    group_max_cost: GroupMaxCost = None,
    group_timeout: GroupTimeout = None,
) -> None:
    """Show proposals and start them if you agree; under the policy human this takes the approval PIN.

    Two or more ids are one group under one cap. Without an id, all waiting proposals are shown one by one, and then the
    runs near a cap that ask for more. `ava --url URL approve` decides on another server, with a token of the scope
    approve instead of the PIN.
    """
    limits = parse_group_limits(group_max_cost, group_timeout)
    if limits and len(set(ids or ())) < 2:
        raise BadInput(_NO_GROUP)
    opening = _begin(context, "ava approve", asked=True)
    if ids and not someone_there():
        raise Refused("There is no terminal to ask on, so nothing was approved: a person approves, in a terminal.")
    raise typer.Exit(anyio.run(_approve, opening, ids or [], limits))


def reject_command(context: typer.Context, ids: _Ids = None) -> None:
    """Reject proposals, so that they can no longer start. Without an id, you are asked about each that waits.

    If you reject a run's request for more, the run hands in what it has.
    """
    raise typer.Exit(anyio.run(_reject, _begin(context, "ava reject", asked=someone_there()), ids or []))


def _begin(context: typer.Context, command: str, *, asked: bool) -> AbstractAsyncContextManager[ApprovalClient]:
    """Print the first line, and return how to open the server of `--url`, or else this machine's data root."""
    from ava_server.config.settings import load_settings

    refuse_in_subagent(command)
    if context.obj is None:
        settings = load_settings()
        heading(settings.paths)
        return _open_local(settings, command, asked=asked)
    remote = RemoteServer(*context.obj)
    remote.token()  # an error comes before any question
    say(f"Server: {remote.address}")
    return open_remote(remote)


@asynccontextmanager
async def _open_local(settings: Settings, command: str, *, asked: bool) -> AsyncGenerator[LocalApprovals]:
    async with open_service(settings, command, asked=asked) as (runtime, service):
        yield LocalApprovals(runtime, service.session)


async def _approve(opening: AbstractAsyncContextManager[ApprovalClient], ids: list[str], limits: dict[str, Any]) -> int:
    async with opening as client:
        asked = await client.extensions(ids)
        others = _left(ids, asked)
        waiting = await client.waiting(others) if others or not ids else []
        if (waiting or asked) and someone_there():  # an error comes before any question
            await client.check_can_approve()
        if ids:
            codes = [await _extend(client, one) for one in asked]
            return max([*codes, await _approve_together(client, waiting, limits) if others else 0])
        return await _one_by_one(client, waiting, asked)


async def _one_by_one(client: ApprovalClient, waiting: list[Pending], asked: list[PendingExtension]) -> int:
    """Ask about each proposal that waits, then about each run that asks for more."""
    refused = False

    async def ask_about(question: str, carry_out: Callable[[bool], Awaitable[None]]) -> None:
        nonlocal refused
        if not someone_there():
            return
        answer = await ask(question)
        try:
            if answer in ("y", "yes", "r", "reject"):
                await carry_out(answer in ("y", "yes"))
        except (AvaError, AuditError) as error:  # the others can still be decided
            tell(f"ava: {error}")
            refused = True

    for number, one in enumerate(waiting, 1):
        _show(one, f"{number} of {len(waiting)}, {one.pending_id}:")
        await ask_about("Start it? [y = yes, r = reject it, Enter = leave it waiting]", partial(_decide, client, one))
    for more in asked:
        _show_extension(more)
        question = "Raise the cap? [y = yes; r = no, hand in the result so far; Enter = decide later]"
        await ask_about(question, partial(_decide_extension, client, more))
    _close([*waiting, *asked], [], "Approve in a terminal: ava approve P-ID")
    return NOT_APPROVED if refused else 0


async def _decide(client: ApprovalClient, one: Pending, approve: bool) -> None:
    if approve:
        await _start(client, [one], {})
    else:
        await _reject_one(client, one)


async def _decide_extension(client: ApprovalClient, one: PendingExtension, approve: bool) -> None:
    say(await client.decide_extension(one, approve=approve))


def _left(ids: list[str], asked: list[PendingExtension]) -> list[str]:
    """Return the ids that do not name a run that asks for more."""
    return [given for given in ids if not any(names_run(given, one) for one in asked)]


async def _extend(client: ApprovalClient, one: PendingExtension) -> int:
    """Show what a run asks for, and allow it if the person agrees."""
    _show_extension(one)
    if not await agrees("Raise the cap?"):
        say(f"Nothing was raised; it still waits. To have it hand in what it has: ava reject {one.subagent_id}")
        return NOT_APPROVED
    await _decide_extension(client, one, True)
    return 0


def _show_extension(one: PendingExtension) -> None:
    say(f"\n{one.subagent_id} asks for more:\n{one.message}")


async def _approve_together(client: ApprovalClient, waiting: list[Pending], limits: dict[str, Any]) -> int:
    if limits and len(waiting) < 2:  # several ids can name the same proposal
        raise BadInput(_NO_GROUP)
    check_group_cap(limits, sum(one.max_cost_micros for one in waiting))
    for one in waiting:
        _show(one, f"{one.pending_id}:")
    if len(waiting) > 1:
        say(f"All of them: {group_line(waiting, limits)}.")
    if not await agrees("Start it?" if len(waiting) == 1 else "Start them?"):
        say("Nothing was approved; it still waits.")
        return NOT_APPROVED
    await _start(client, waiting, limits)
    return 0


async def _reject(opening: AbstractAsyncContextManager[ApprovalClient], ids: list[str]) -> int:
    async with opening as client:
        asked = await client.extensions(ids)
        others = _left(ids, asked)
        waiting = await client.waiting(others) if others or not ids else []
        for more in asked:
            if not ids:
                _show_extension(more)
                if not someone_there() or not await agrees("Decline it?"):
                    continue
            await _decide_extension(client, more, False)
        for number, one in enumerate(waiting, 1):
            if not ids:
                _show(one, f"{number} of {len(waiting)}, {one.pending_id}:")
                if not someone_there() or not await agrees("Reject it?"):
                    continue
            await _reject_one(client, one)
        _close([*waiting, *asked], ids, "Reject one with: ava reject P-ID")
        return 0


def _close(waiting: Sequence[Pending | PendingExtension], ids: list[str], advice: str) -> None:
    if not waiting:
        say("Nothing waits for approval.")
    elif not ids and not someone_there():
        tell(advice)


async def _reject_one(client: ApprovalClient, one: Pending) -> None:
    answer = await client.decide([one], "reject")
    refused = [made.refused_because for made in answer.decisions if made.status == "refused"]
    if refused:
        raise Refused(f"Not rejected: {refused[0]}.")
    say(f"{one.pending_id} is rejected.")


def _show(one: Pending, title: str) -> None:
    say(f"\n{title}")
    say(one.message)
    say(one.approval_line)


def check_group_cap(limits: Mapping[str, Any], together_micros: int) -> None:
    """Refuse a cap for all together above the sum of their own.

    Raises:
        BadInput: It is above.
    """
    if cap_micros(limits.get("group_max_cost_cents", 0)) > together_micros:
        raise BadInput(
            f"--group-max: their own caps come to {format_usd(together_micros, exact=True)} together; give that or less"
        )


def group_line(waiting: list[Pending], limits: Mapping[str, Any]) -> str:
    """Return the approval line of all together, which an approval has to repeat."""
    from ava_server.approval.proposals import together_line

    cents = limits.get("group_max_cost_cents")
    return together_line(waiting, None if cents is None else cap_micros(cents), limits.get("group_timeout"))


async def _start(client: ApprovalClient, waiting: list[Pending], limits: dict[str, Any]) -> None:
    """Approve, and say whether it starts.

    Raises:
        Refused: It may not start; says why.
    """
    lines = [one.approval_line for one in waiting]
    if len(waiting) > 1:
        lines.append(group_line(waiting, limits))
    answer = await client.decide(waiting, "approve", approving=lines, **limits)
    refuse_unless_approved(answer, "Not approved")
    say("Approved." if len(waiting) == 1 else f"Approved, as the group {answer.group_id}.")
    say(await client.describe_start(waiting))
