"""`ava approve` and `ava reject`: a person decides in a terminal what starts, in whatever process it was proposed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_audit.errors import AuditError
from ava_audit.money import format_usd, micros_from_cents
from ava_server.cli.app import NOT_APPROVED, heading
from ava_server.cli.terminal import agrees, ask, say, someone_there, tell
from ava_server.cli.unseen import give_pin
from ava_server.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.view import View
    from ava_server.house import House
    from ava_server.run_config import RunConfig
    from ava_server.session import Session
    from ava_server.settings import Settings

STARTS_WITHIN_S = 3.0
"""How long it is watched whether what was approved begins."""
_NO_GROUP = "--group-max and --group-timeout are for two or more proposals; give their ids"
_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="P-ID…", show_default=False, help="Proposals, or their subagents (S-…)."),
]


@dataclass(frozen=True)
class Waiting:
    """A proposal that waits: what is said of it, and the line of its approval."""

    run: RunRow
    config: RunConfig
    message: str
    line: str


def register(app: typer.Typer) -> None:
    """Add `ava approve` and `ava reject` to the app."""
    app.command("approve", short_help="Start what was proposed; without an id, one by one.")(approve_command)
    app.command("reject", short_help="Reject what was proposed; without an id, one by one.")(reject_command)


def approve_command(
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

    Two or more ids are one group under one cap. Without an id all that waits is shown, one after the other.
    """
    from ava_server.cli.asked import cents_of, seconds_of

    group = {
        "group_max_cost_cents": cents_of("--group-max", group_max_cost),
        "group_timeout": seconds_of("--group-timeout", group_timeout),
    }
    given = {name: value for name, value in group.items() if value is not None}
    if given and len(set(ids or ())) < 2:
        raise BadInput(_NO_GROUP)
    settings = _settings("ava approve")
    if ids and not someone_there():
        raise Refused("There is no terminal to ask on, so nothing was approved: a person approves, in a terminal.")
    raise typer.Exit(anyio.run(_approve, settings, ids or [], given))


def reject_command(ids: _Ids = None) -> None:
    """Reject what was proposed, so that it cannot start any more. Without an id it is asked about each that waits."""
    raise typer.Exit(anyio.run(_reject, _settings("ava reject"), ids or []))


def _settings(command: str) -> Settings:
    from ava_server.house import refuse_recursion
    from ava_server.settings import load_settings

    if why := refuse_recursion():
        raise BadInput(f"{command}: {why}.")
    settings = load_settings()
    heading(settings.paths)
    return settings


async def _approve(settings: Settings, ids: list[str], group: dict[str, Any]) -> int:
    from ava_server.cli.at_desk import session
    from ava_server.house import open_house

    async with open_house(settings, runs=False) as house, session(house, "ava approve", asked=True) as own:
        waiting = await _waiting(house, own, ids)
        if waiting and someone_there():  # told before anything is asked
            await _can_be_approved(house)
        if ids:
            return await _approve_these(house, own, waiting, group)
        refused = False
        for number, one in enumerate(waiting, 1):
            _show(one, f"{number} of {len(waiting)}, {one.run.pending_id}:")
            if not someone_there():
                continue
            answer = await ask("Start it? [y = yes, r = reject it, Enter = leave it waiting]")
            try:
                if answer in ("y", "yes"):
                    await _start(house, own, [one], {})
                elif answer in ("r", "reject"):
                    await _decide(house, own, [one], "reject")
                    say(f"{one.run.pending_id} is rejected.")
            except (AvaError, AuditError) as error:  # the others can be decided all the same
                tell(f"ava: {error}")
                refused = True
        if not waiting:
            say("Nothing waits for approval.")
        elif not someone_there():
            tell("Approve in a terminal: ava approve P-ID")
        return NOT_APPROVED if refused else 0


async def _approve_these(house: House, own: Session, waiting: list[Waiting], group: dict[str, Any]) -> int:
    if group and len(waiting) < 2:  # several ids can mean the same one
        raise BadInput(_NO_GROUP)
    together = sum(one.config.max_cost_micros for one in waiting)
    if micros_from_cents(group.get("group_max_cost_cents", 0)) > together:
        raise BadInput(f"--group-max: their own caps come to {format_usd(together)} together; give that or less")
    for one in waiting:
        _show(one, f"{one.run.pending_id}:")
    if len(waiting) > 1:
        say(f"All of them: {_group_line(waiting, group)}.")
    if not await agrees("Start it?" if len(waiting) == 1 else "Start them?"):
        say("Nothing was approved; it waits on.")
        return NOT_APPROVED
    await _start(house, own, waiting, group)
    return 0


async def _reject(settings: Settings, ids: list[str]) -> int:
    from ava_server.cli.at_desk import session
    from ava_server.house import open_house

    async with open_house(settings, runs=False) as house, session(house, "ava reject", asked=someone_there()) as own:
        waiting = await _waiting(house, own, ids)
        for number, one in enumerate(waiting, 1):
            if not ids:
                _show(one, f"{number} of {len(waiting)}, {one.run.pending_id}:")
                if not someone_there() or not await agrees("Reject it?"):
                    continue
            await _decide(house, own, [one], "reject")
            say(f"{one.run.pending_id} is rejected.")
        if not waiting:
            say("Nothing waits for approval.")
        elif not ids and not someone_there():
            tell("Reject one with: ava reject P-ID")
        return 0


async def _can_be_approved(house: House) -> None:
    """Look whether anything can be approved now.

    Raises:
        Refused: It takes a PIN, and there is none, or it is locked.
    """
    from ava_server.pin import PinFile

    if await house.policy() == "human":
        await anyio.to_thread.run_sync(PinFile(house.settings.paths.approval_file).ready)


async def _waiting(house: House, own: Session, ids: list[str]) -> list[Waiting]:
    """Return the proposals that are meant, or all of this user that wait, the oldest first.

    Raises:
        BadInput: There is none of an id.
        Refused: One does not wait any more.
    """
    from ava_audit.rows import WAITING
    from ava_server.cli.reading import find_runs
    from ava_server.ids import label
    from ava_server.proposal_words import approval_line, proposal_message
    from ava_server.proposing import texts_of
    from ava_server.run_config import config_of

    now_us = time.time_ns() // 1000
    found = await find_runs(house.store, ids) if ids else []

    def query(view: View) -> list[Waiting]:
        rows = found or ([] if ids else view.runs(user=own.user, states=(WAITING,), limit=-1))
        waiting: list[Waiting] = []
        for run in rows:
            proposal, texts = view.proposal(run.pending_id), texts_of(view, run)
            if run.user_id != own.user:
                raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
            if proposal is None or proposal.state != WAITING or texts is None:
                raise Refused(f"{run.pending_id} does not wait any more: {label(run)} is {run.state}.")
            if proposal.expires_us <= now_us:
                if ids:
                    raise Refused(f"{run.pending_id} has expired; have it proposed anew.")
                continue
            config = config_of(run.config)
            waiting.append(Waiting(run, config, proposal_message(config, texts), approval_line(config, texts)))
        return waiting

    return await house.store.read(query)


def _show(one: Waiting, heading_: str) -> None:
    say()
    say(heading_)
    say(one.message)
    say(one.line)


def _group_line(waiting: list[Waiting], group: dict[str, Any]) -> str:
    """Return the line of all of them together, as an approval has to repeat it."""
    from ava_server.proposal_words import group_line

    cap = sum(one.config.max_cost_micros for one in waiting)
    if (asked := group.get("group_max_cost_cents")) is not None:
        cap = micros_from_cents(asked)
    free = all(one.config.price.get("free") for one in waiting)
    return group_line(len(waiting), None if free else cap, group.get("group_timeout"))


async def _start(house: House, own: Session, waiting: list[Waiting], group: dict[str, Any]) -> None:
    """Approve, with the PIN where it takes one, and tell whether it begins.

    Raises:
        Refused: It may not start; says why.
    """
    from ava_audit.rows import QUEUED
    from ava_server.pin import PinFile
    from ava_server.weighing import ANOTHER

    if await house.policy() == "human":
        try:
            await give_pin(PinFile(house.settings.paths.approval_file), own)
        except AvaError as error:
            raise Refused(f"{error} Nothing was started, and it still waits.") from error
    lines = [one.line for one in waiting]
    if len(waiting) > 1:
        lines.append(_group_line(waiting, group))
    answer = await _decide(house, own, waiting, "approve", approving=lines, **group)
    if answer.status != "approved":
        reasons = dict.fromkeys(one.refused_because for one in answer.decisions if one.refused_because)
        telling = [why for why in reasons if why != ANOTHER] or list(reasons)
        raise Refused(f"Not approved: {'; '.join(telling)}.")
    run_ids = [one.run.id for one in waiting]
    say("Approved." if len(waiting) == 1 else f"Approved, as the group {answer.group_id}.")
    await _have_worker(house)
    with anyio.move_on_after(STARTS_WITHIN_S):
        while True:
            seen = house.store.head
            rows = await house.store.read(lambda view: [view.run(run_id) for run_id in run_ids])
            if all(row is not None and row.state != QUEUED for row in rows):
                say(f"{'It has' if len(rows) == 1 else 'They have'} begun; `ava status` shows how it goes.")
                return
            await house.store.newer_than(seen)
    say(
        "It starts as soon as a server of this data root is there and has room: a host with Ava in it, or `ava worker`."
    )


async def _have_worker(house: House) -> None:
    """Start the worker that is to do it, where a worker does: no host may be there."""
    from ava_server.hiring import Hiring
    from ava_server.manager import CannotHonour

    if not house.settings.background:
        return
    try:
        await Hiring(house.settings.paths)()
    except (CannotHonour, OSError) as error:
        tell(f"No worker could be started: {error}")


async def _decide(house: House, own: Session, waiting: list[Waiting], decision: str, **more: Any) -> Any:
    from ava_server.cli.at_desk import silent
    from ava_server.desk import Desk

    given = {"pending_ids": [one.run.pending_id for one in waiting], "decision": decision, **more}
    return await Desk(house, own).call("confirm_spawn", given, silent, raises=True)
