"""One `ava run` from the proposals to the results, in a server of its own on the data root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_roles.errors import RolesError
from ava_server.cli.app import NOT_APPROVED, heading
from ava_server.cli.at_desk import decide, propose, session, start
from ava_server.cli.order import Order
from ava_server.cli.terminal import agrees, interrupts, tell
from ava_server.cli.wait import deliver, follow_runs
from ava_server.core.errors import AvaError, BadInput, Refused, ToolMissing

if TYPE_CHECKING:
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session
    from ava_server.service.responses import SpawnAnswer
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

TOLD_CHARS = 60
"""Characters of a task by which one of several is named."""


async def run(settings: Settings, order: Order) -> int:
    """Propose, ask, wait for the end, hand over the results, and return the exit code.

    Raises:
        AvaError: It may not be, or cannot.
    """
    from ava_server.service.runtime import open_house
    from ava_server.service.service import Service

    if not order.as_json:
        heading(settings.paths)
    # The folder that a person names is to this session what a root is to a host's; only configured roots are above it.
    folder = order.spawns[0].get("workspace") or await _folder_of(settings, order.spawns[0].get("retry_of"))
    roots = (str(folder),) if folder is not None else ()
    async with open_house(settings) as runtime, session(runtime, "ava run", asked=not order.yes, roots=roots) as own:
        service = Service(runtime, own)
        run_ids = await _approved(runtime, own, service, order)
        if not run_ids:
            return NOT_APPROVED
        if (left := await follow_runs(runtime, service, run_ids)) is not None:
            return left
        return await deliver(
            runtime, own, run_ids, "ava run", as_json=order.as_json, out=order.out, artifacts=order.artifacts
        )


async def _folder_of(settings: Settings, retried: str | None) -> str | None:
    """Return the folder of the run that is repeated: who repeats it names the folder with it.

    Raises:
        BadInput: There is no such run.
    """
    from ava_server.budget.run_config import config_of
    from ava_server.cli.reading import find_run, open_log

    if retried is None:
        return None
    async with open_log(settings.paths) as looking:
        return config_of((await find_run(looking, retried)).config).workspace


async def _approved(runtime: Runtime, own: Session, service: Service, order: Order) -> list[str]:
    """Propose, ask, and approve or reject; return the ids of the runs, none where it was not approved."""
    from ava_audit.rows import WAITING
    from ava_server.cli.unseen import give_pin
    from ava_server.config.pin import PinFile

    pin_file = PinFile(runtime.settings.paths.approval_file)
    if await runtime.policy() == "human":  # told before anything is asked
        await anyio.to_thread.run_sync(pin_file.ready)
    proposals = await _proposed(service, order)
    for number, proposal in enumerate(proposals, 1):
        if len(proposals) > 1:
            tell(f"\n{number} of {len(proposals)}, {proposal.pending_id}:")
        tell(proposal.message or "")
        if proposal.status == WAITING:
            tell(proposal.approval_line or "")
    if proposals[0].status != WAITING:  # the same task_id again: it is waited for, as if it had been started here
        return [proposals[0].subagent_id or ""]
    together = await _together(runtime, own, service, proposals, order)
    if together:
        tell(f"\nAll of them: {together}.")
    wrong: list[AvaError] = []

    async def knows_pin() -> bool:
        try:
            await give_pin(pin_file, own)
        except AvaError as error:
            wrong.append(error)
        return not wrong

    question = "Start them?" if together else "Start it?"
    agreed = order.yes or await _unless_interrupted(lambda: agrees(question))
    if not agreed or (await runtime.policy() == "human" and not await _unless_interrupted(knows_pin)):
        await decide(service, proposals, "reject")
        if wrong:
            raise Refused(f"{wrong[0]} Nothing was started.") from wrong[0]
        tell("Not approved; nothing was started.")
        return []
    try:
        group_id = await start(service, proposals, last=together, **order.group)
    except Refused:  # whoever asked has been answered: nothing shall wait for an approval that nobody will give
        await decide(service, proposals, "reject")
        raise
    if group_id is not None:
        tell(f"Approved, as the group {group_id}.")
    return [proposal.subagent_id or "" for proposal in proposals]


async def _proposed(service: Service, order: Order) -> list[SpawnAnswer]:
    """Propose all that was ordered; where one may not be, none waits on.

    Raises:
        AvaError: One may not be; says which, in the words of the command line.
    """
    from ava_server.cli.asked import in_options

    made: list[SpawnAnswer] = []
    for spawn in order.spawns:
        try:
            made.append(await propose(service, spawn, degraded=order.degraded))
        except (AvaError, RolesError, AuditError) as error:
            if made:
                await decide(service, made, "reject")
            which = ""
            if len(order.spawns) > 1:
                task = str(spawn.get("task", ""))
                short = task if len(task) <= TOLD_CHARS else task[: TOLD_CHARS - 1] + "…"
                which = f" (of {spawn.get('role')}: {short}; nothing was started)"
            if isinstance(error, BadInput):
                raise BadInput(in_options(str(error)) + which) from error
            if isinstance(error, ToolMissing):
                hint = " To run it all the same, without that: --degraded."
                raise Refused(f"{error}{hint}{which}", needs_key=error.needs_key) from error
            if isinstance(error, Refused) and which:
                raise Refused(f"{error}{which}", needs_key=error.needs_key) from error
            raise
    return made


async def _together(
    runtime: Runtime, own: Session, service: Service, proposals: Sequence[SpawnAnswer], order: Order
) -> str | None:
    """Return the line of several together, as their approval has to repeat it; None for one.

    Raises:
        BadInput: They may not cost so much together as was said.
    """
    from ava_audit.units import format_usd, micros_from_cents
    from ava_server.approval.proposals import together_line
    from ava_server.cli.door_here import Here

    if len(proposals) < 2:
        return None
    waiting = await Here(runtime, own).waiting([proposal.pending_id or "" for proposal in proposals])
    asked = order.group.get("group_max_cost_cents")
    cap = micros_from_cents(asked) if asked is not None else None
    sum_of_caps = sum(one.max_cost_micros for one in waiting)
    if cap is not None and cap > sum_of_caps:
        await decide(service, proposals, "reject")
        raise BadInput(
            f"--group-max: their own caps come to {format_usd(sum_of_caps)} together; give that or less. Nothing was"
            " started."
        )
    return together_line(waiting, cap, order.group.get("group_timeout"))


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
