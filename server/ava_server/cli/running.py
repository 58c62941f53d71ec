"""One `ava run` from the proposal to the result, in a server of its own on the data root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_server.cli.app import NOT_APPROVED, heading
from ava_server.cli.at_desk import decide, propose, session, start
from ava_server.cli.attending import Attending, deliver
from ava_server.cli.terminal import agrees, interrupts, tell
from ava_server.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.desk import Desk
    from ava_server.house import House
    from ava_server.session import Session
    from ava_server.settings import Settings


@dataclass(frozen=True)
class Order:
    """What was asked for on the command line."""

    spawn: dict[str, Any]
    yes: bool
    as_json: bool
    out: Path | None


async def run(settings: Settings, order: Order) -> int:
    """Propose, ask, wait for the end, hand over the result, and return the exit code.

    Raises:
        AvaError: It may not be, or cannot.
    """
    from ava_server.desk import Desk
    from ava_server.house import open_house

    if not order.as_json:
        heading(settings.paths)
    # The folder that a person names is to this session what a root is to a host's; only configured roots are above it.
    folder = order.spawn.get("workspace") or await _folder_of(settings, order.spawn.get("retry_of"))
    roots = (str(folder),) if folder is not None else ()
    async with open_house(settings) as house, session(house, "ava run", asked=not order.yes, roots=roots) as own:
        desk = Desk(house, own)
        run_id, code = await _approved(house, own, desk, order)
        if run_id is None:
            return code
        if (left := await Attending(house, desk, run_id).until_it_ends()) is not None:
            return left
        return await deliver(house, own, run_id, "ava run", as_json=order.as_json, out=order.out)


async def _folder_of(settings: Settings, retried: str | None) -> str | None:
    """Return the folder of the run that is repeated: who repeats it names the folder with it.

    Raises:
        BadInput: There is no such run.
    """
    from ava_server.cli.reading import find_run, open_log
    from ava_server.run_config import config_of

    if retried is None:
        return None
    async with open_log(settings.paths) as looking:
        return config_of((await find_run(looking, retried)).config).workspace


async def _approved(house: House, own: Session, desk: Desk, order: Order) -> tuple[str | None, int]:
    """Propose, ask, and approve or reject; return the run's id, or None and the exit code."""
    from ava_audit.rows import WAITING
    from ava_server.cli.asked import in_options
    from ava_server.cli.unseen import give_pin
    from ava_server.pin import PinFile

    pin_file = PinFile(house.settings.paths.approval_file)
    if await house.policy() == "human":  # told before anything is asked
        await anyio.to_thread.run_sync(pin_file.ready)
    try:
        proposal = await propose(desk, order.spawn)
    except BadInput as error:
        raise BadInput(in_options(str(error))) from error
    tell(proposal.message or "")
    if proposal.status != WAITING:  # the same task_id again: it is waited for, as if it had been started here
        return proposal.subagent_id, 0
    tell(proposal.approval_line or "")
    wrong: list[AvaError] = []

    async def knows_pin() -> bool:
        try:
            await give_pin(pin_file, own)
        except AvaError as error:
            wrong.append(error)
        return not wrong

    agreed = order.yes or await _unless_interrupted(lambda: agrees("Start it?"))
    if not agreed or (await house.policy() == "human" and not await _unless_interrupted(knows_pin)):
        await decide(desk, proposal, "reject")
        if wrong:
            raise Refused(f"{wrong[0]} Nothing was started.") from wrong[0]
        tell("Not approved; nothing was started.")
        return None, NOT_APPROVED
    return await start(desk, proposal), 0


async def _unless_interrupted(asks: Callable[[], Awaitable[bool]]) -> bool:
    """Ask; Ctrl-C is a no."""
    agreed = False
    with interrupts() as signals:
        async with anyio.create_task_group() as tasks:

            async def on_signal() -> None:
                async for _number in signals:
                    tell()
                    tasks.cancel_scope.cancel()

            tasks.start_soon(on_signal)
            agreed = await asks()
            tasks.cancel_scope.cancel()
    return agreed
