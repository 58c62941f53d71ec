"""`ava approve` and `ava reject`: a person decides in a terminal what starts, in whatever process it was proposed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ava_audit.errors import AuditError
from ava_audit.units import format_usd, micros_from_cents
from ava_server.cli.app import NOT_APPROVED, heading
from ava_server.cli.terminal import agrees, ask, say, someone_there, tell
from ava_server.core.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending
    from ava_server.cli.door import Door
    from ava_server.cli.door_there import Elsewhere

_NO_GROUP = "--group-max and --group-timeout are for two or more proposals; give their ids"
_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="P-ID…", show_default=False, help="Proposals, or their subagents (S-…)."),
]


def register(app: typer.Typer) -> None:
    """Add `ava approve` and `ava reject` to the app."""
    app.command("approve", short_help="Start what was proposed; without an id, one by one.")(approve_command)
    app.command("reject", short_help="Reject what was proposed; without an id, one by one.")(reject_command)


def approve_command(
    context: typer.Context,
    ids: _Ids = None,
    group_max_cost: Annotated[
        str | None,
        typer.Option(
            "--group-max", metavar="USD", show_default=False, help="For two or more: what they may cost together."
        ),
    ] = None,
    group_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="For two or more: how long they may take together."),
    ] = None,
) -> None:
    """Show what was proposed and start it when you agree; under the policy human that takes the approval PIN.

    Two or more ids are one group under one cap. Without an id all that waits is shown, one after the other. With `ava
    --url URL approve` it is a server elsewhere, reached with a token of the scope approve in place of the PIN.
    """
    from ava_server.cli.asked import cents_of, seconds_of

    group = {
        "group_max_cost_cents": cents_of("--group-max", group_max_cost),
        "group_timeout": seconds_of("--group-timeout", group_timeout),
    }
    given = {name: value for name, value in group.items() if value is not None}
    if given and len(set(ids or ())) < 2:
        raise BadInput(_NO_GROUP)
    elsewhere = _where(context, "ava approve")
    if ids and not someone_there():
        raise Refused("There is no terminal to ask on, so nothing was approved: a person approves, in a terminal.")
    raise typer.Exit(anyio.run(_approve, elsewhere, ids or [], given))


def reject_command(context: typer.Context, ids: _Ids = None) -> None:
    """Reject what was proposed, so that it cannot start any more. Without an id it is asked about each that waits."""
    raise typer.Exit(anyio.run(_reject, _where(context, "ava reject"), ids or []))


def _where(context: typer.Context, command: str) -> Elsewhere | None:
    """Return the server that `--url` names; None is this machine's data root. Begins the screen with it."""
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import refuse_recursion

    if why := refuse_recursion():
        raise BadInput(f"{command}: {why}.")
    elsewhere: Elsewhere | None = context.obj
    if elsewhere is None:
        heading(load_settings().paths)
        return None
    elsewhere.token()  # a mistake is told before anything is asked
    say(f"Server: {elsewhere.address}")
    return elsewhere


@asynccontextmanager
async def _door(elsewhere: Elsewhere | None, command: str, *, asked: bool) -> AsyncGenerator[Door]:
    """Open the place where it is decided: this machine's data root, or the server that `--url` names."""
    if elsewhere is not None:
        from ava_server.cli.door_there import there

        async with there(elsewhere) as door:
            yield door
        return
    from ava_server.cli.at_desk import session
    from ava_server.cli.door_here import Here
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import open_runtime

    async with open_runtime(load_settings(), runs=False) as runtime, session(runtime, command, asked=asked) as own:
        yield Here(runtime, own)


async def _approve(elsewhere: Elsewhere | None, ids: list[str], group: dict[str, Any]) -> int:
    async with _door(elsewhere, "ava approve", asked=True) as door:
        waiting = await door.waiting(ids)
        if waiting and someone_there():  # told before anything is asked
            await door.can_be_approved()
        if ids:
            return await _approve_these(door, waiting, group)
        refused = False
        for number, one in enumerate(waiting, 1):
            _show(one, f"{number} of {len(waiting)}, {one.pending_id}:")
            if not someone_there():
                continue
            answer = await ask("Start it? [y = yes, r = reject it, Enter = leave it waiting]")
            try:
                if answer in ("y", "yes"):
                    await _start(door, [one], {})
                elif answer in ("r", "reject"):
                    await _reject_one(door, one)
            except (AvaError, AuditError) as error:  # the others can be decided all the same
                tell(f"ava: {error}")
                refused = True
        if not waiting:
            say("Nothing waits for approval.")
        elif not someone_there():
            tell("Approve in a terminal: ava approve P-ID")
        return NOT_APPROVED if refused else 0


async def _approve_these(door: Door, waiting: list[Pending], group: dict[str, Any]) -> int:
    if group and len(waiting) < 2:  # several ids can mean the same one
        raise BadInput(_NO_GROUP)
    together = sum(one.max_cost_micros for one in waiting)
    if micros_from_cents(group.get("group_max_cost_cents", 0)) > together:
        raise BadInput(f"--group-max: their own caps come to {format_usd(together)} together; give that or less")
    for one in waiting:
        _show(one, f"{one.pending_id}:")
    if len(waiting) > 1:
        say(f"All of them: {_group_line(waiting, group)}.")
    if not await agrees("Start it?" if len(waiting) == 1 else "Start them?"):
        say("Nothing was approved; it waits on.")
        return NOT_APPROVED
    await _start(door, waiting, group)
    return 0


async def _reject(elsewhere: Elsewhere | None, ids: list[str]) -> int:
    async with _door(elsewhere, "ava reject", asked=someone_there()) as door:
        waiting = await door.waiting(ids)
        for number, one in enumerate(waiting, 1):
            if not ids:
                _show(one, f"{number} of {len(waiting)}, {one.pending_id}:")
                if not someone_there() or not await agrees("Reject it?"):
                    continue
            await _reject_one(door, one)
        if not waiting:
            say("Nothing waits for approval.")
        elif not ids and not someone_there():
            tell("Reject one with: ava reject P-ID")
        return 0


async def _reject_one(door: Door, one: Pending) -> None:
    answer = await door.decide([one], "reject")
    refused = [made.refused_because for made in answer.decisions if made.status == "refused"]
    if refused:
        raise Refused(f"Not rejected: {refused[0]}.")
    say(f"{one.pending_id} is rejected.")


def _show(one: Pending, heading_: str) -> None:
    say()
    say(heading_)
    say(one.message)
    say(one.approval_line)


def _group_line(waiting: list[Pending], group: dict[str, Any]) -> str:
    """Return the line of all of them together, as an approval has to repeat it."""
    from ava_server.approval.proposals import together_line

    asked = group.get("group_max_cost_cents")
    return together_line(waiting, None if asked is None else micros_from_cents(asked), group.get("group_timeout"))


async def _start(door: Door, waiting: list[Pending], group: dict[str, Any]) -> None:
    """Approve, and tell whether it begins.

    Raises:
        Refused: It may not start; says why.
    """
    from ava_server.approval.decisions import OTHER_REFUSED

    lines = [one.approval_line for one in waiting]
    if len(waiting) > 1:
        lines.append(_group_line(waiting, group))
    answer = await door.decide(waiting, "approve", approving=lines, **group)
    if answer.status != "approved":
        reasons = dict.fromkeys(one.refused_because for one in answer.decisions if one.refused_because)
        telling = [why for why in reasons if why != OTHER_REFUSED] or list(reasons)
        raise Refused(f"Not approved: {'; '.join(telling)}.")
    say("Approved." if len(waiting) == 1 else f"Approved, as the group {answer.group_id}.")
    say(await door.begun(waiting))
