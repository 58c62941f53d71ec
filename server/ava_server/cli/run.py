"""`ava run ROLE "task"`: a run without a host: the same proposal, the same approval, live progress, and the result.

The process is a server of its own on the data root. When it goes away, the run stays in the log as interrupted, and
the next Ava server of this user goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import NOT_APPROVED, heading
from ava_server.cli.at_desk import decide, propose, session, start
from ava_server.cli.attending import Attending, deliver
from ava_server.cli.terminal import agrees, interrupts, someone_there, tell
from ava_server.errors import AvaError, BadInput, Refused

if TYPE_CHECKING:
    from ava_server.desk import Desk
    from ava_server.house import House
    from ava_server.session import Session
    from ava_server.settings import Settings


def register(app: typer.Typer) -> None:
    """Add `ava run` to the app."""
    app.command("run", short_help="Propose a subagent, ask whether to start it, bring its result.")(run_command)


@dataclass(frozen=True)
class Order:
    """What was asked for on the command line."""

    spawn: dict[str, Any]
    yes: bool
    as_json: bool
    out: Path | None


def run_command(
    role: Annotated[str | None, typer.Argument(show_default=False, help="Kind of subagent, e.g. researcher.")] = None,
    task: Annotated[
        str | None, typer.Argument(show_default=False, help="The goal, what counts as done, the form of the answer.")
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="S-ID", show_default=False, help="Repeat an ended run; what is given beside it counts instead."
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(show_default=False, help="Background that it needs.")] = None,
    context_from: Annotated[
        list[str] | None,
        typer.Option(metavar="S-…,…", show_default=False, help="Ended runs whose results it may read."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="FOLDER", show_default=False, help="Folder that it may read.")
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", show_default=False, help="What a coder may change; once for each path."),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", show_default=False, help="What a coder's work must pass, e.g. 'pytest -q'."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="At most so long: 90, 90s, 10m, 1h.")
    ] = None,
    max_cost: Annotated[
        str | None, typer.Option(metavar="DOLLARS", show_default=False, help="At most so many US dollars, e.g. 0.50.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(show_default=False, help="At most so many tokens.")] = None,
    max_iterations: Annotated[int | None, typer.Option(show_default=False, help="At most so many turns.")] = None,
    model: Annotated[
        str | None, typer.Option(show_default=False, help="fast, balanced, deep, a model id, or provider:id.")
    ] = None,
    system_prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", show_default=False, help="What kind of subagent; role custom needs it."),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL,…", show_default=False, help="Only these of the role's tools."),
    ] = None,
    blocked_tools: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL,…", show_default=False, help="Not these of the role's tools."),
    ] = None,
    plan: Annotated[
        bool | None,
        typer.Option("--plan/--no-plan", show_default=False, help="It plans before it works; else as the role says."),
    ] = None,
    output_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="JSON schema that the output must match."),
    ] = None,
    name: Annotated[str | None, typer.Option(show_default=False, help="A label, shown wherever the run is.")] = None,
    task_id: Annotated[str | None, typer.Option(show_default=False, help="Your own reference.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the result into a file.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Start it without asking; only with --max-cost beside it.")
    ] = False,
) -> None:
    """Propose a subagent, ask whether to start it, and wait for its result."""
    from ava_server.cli.asked import cents_of, listed, schema_in, seconds_of
    from ava_server.hiding import hide
    from ava_server.house import refuse_recursion
    from ava_server.pin import policy_in_force
    from ava_server.settings import load_settings

    hide()
    if why := refuse_recursion():
        raise BadInput(f"ava run: {why}.")
    if yes and max_cost is None:
        raise BadInput("--yes: nobody is asked then, so say what it may cost at most: --max-cost 0.50")
    if (role is None) != (task is None) or (retry is None and role is None):
        raise BadInput('Give ROLE and TASK, such as researcher "What does it cost?"; or --retry S-ID alone.')
    given = {
        "retry_of": retry,
        "role": role,
        "task": task,
        "context": context,
        "context_from": listed(context_from),
        "workspace": str(Path(workspace).expanduser().absolute()) if workspace else None,
        "namespace": namespace or None,
        "verify": verify,
        "timeout": seconds_of("--timeout", timeout),
        "max_cost_cents": cents_of("--max-cost", max_cost),
        "max_tokens": max_tokens,
        "max_iterations": max_iterations,
        "model": model,
        "system_prompt": system_prompt,
        "tools": listed(tools),
        "blocked_tools": listed(blocked_tools),
        "plan": plan,
        "output_schema": schema_in("--output-schema", output_schema),
        "name": name,
        "task_id": task_id,
    }
    spawn = {key: value for key, value in given.items() if value is not None}
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise BadInput(f"--out: {out} cannot be written: it must be a file in a folder that exists")
    settings = load_settings()
    if yes and policy_in_force(settings) == "human":
        why = 'approval = "human"' if settings.approval == "human" else "there is an approval PIN"
        raise Refused(f"--yes: {why}, so only a person who knows the PIN starts anything; nothing was proposed")
    if not yes and not someone_there():
        raise Refused(
            "There is no terminal to ask on, so nothing was proposed. Run it in a terminal, or add --yes and"
            " --max-cost."
        )
    raise typer.Exit(anyio.run(_run, settings, Order(spawn, yes, as_json, out)))


async def _run(settings: Settings, order: Order) -> int:
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
