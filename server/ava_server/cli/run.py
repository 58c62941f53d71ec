"""`ava run ROLE "task"`: a run without a host: the same proposal, the same approval, live progress, and the result.

The process is a server of its own on the data root. When it goes away, the run stays in the log as interrupted, and
the next Ava server of this user goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.abc
import anyio.to_thread
import typer

from ava_server.cli.app import INTERRUPTED, NOT_APPROVED, heading
from ava_server.cli.at_desk import decide, propose, session, silent, start
from ava_server.cli.terminal import agrees, ask, harmless_json, interrupts, say, someone_there, tell, write
from ava_server.cli.watching import Watching
from ava_server.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.answers import RunAnswer
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
    role: Annotated[str, typer.Argument(help="Kind of subagent, e.g. researcher.")],
    task: Annotated[str, typer.Argument(help="The goal, what counts as done, the form of the answer.")],
    context: Annotated[str | None, typer.Option(show_default=False, help="Background that it needs.")] = None,
    context_from: Annotated[
        list[str] | None,
        typer.Option(metavar="S-…,…", show_default=False, help="Ended runs whose results it may read."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="FOLDER", show_default=False, help="Folder that it may read.")
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
    from ava_server.house import refuse_recursion
    from ava_server.settings import load_settings

    if why := refuse_recursion():
        raise BadInput(f"ava run: {why}.")
    if yes and max_cost is None:
        raise BadInput("--yes: nobody is asked then, so say what it may cost at most: --max-cost 0.50")
    given = {
        "role": role,
        "task": task,
        "context": context,
        "context_from": listed(context_from),
        "workspace": str(Path(workspace).expanduser().absolute()) if workspace else None,
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
    if settings.approval == "human":
        raise Refused(
            'approval = "human" is set in config.toml: only the approval PIN approves then, which `ava run` cannot'
            " ask for; nothing was proposed"
        )
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
    roots = (str(order.spawn["workspace"]),) if "workspace" in order.spawn else ()
    async with open_house(settings) as house, session(house, "ava run", asked=not order.yes, roots=roots) as own:
        desk = Desk(house, own)
        run_id, code = await _approved(desk, order)
        if run_id is None:
            return code
        if (left := await _Watch(house, desk, run_id).until_it_ends()) is not None:
            return left
        return await _deliver(house, own, run_id, order)


async def _approved(desk: Desk, order: Order) -> tuple[str | None, int]:
    """Propose, ask, and approve or reject; return the run's id, or None and the exit code."""
    from ava_server.cli.asked import in_options

    try:
        proposal = await propose(desk, order.spawn)
    except BadInput as error:
        raise BadInput(in_options(str(error))) from error
    tell(proposal.message or "")
    tell(proposal.approval_line or "")
    if not order.yes and not await _yes("Start it?"):
        await decide(desk, proposal, "reject")
        tell("Not approved; nothing was started.")
        return None, NOT_APPROVED
    return await start(desk, proposal), 0


async def _yes(question: str) -> bool:
    """Ask; Ctrl-C and the end of input are a no."""
    agreed = False
    with interrupts() as signals:
        async with anyio.create_task_group() as tasks:

            async def on_signal() -> None:
                async for _number in signals:
                    tell()
                    tasks.cancel_scope.cancel()

            tasks.start_soon(on_signal)
            agreed = await agrees(question)
            tasks.cancel_scope.cancel()
    return agreed


class _Watch:
    """Shows what a run is doing until it has ended; Ctrl-C asks what shall become of it."""

    def __init__(self, house: House, desk: Desk, run_id: str) -> None:
        from ava_server.claims import Slots

        self._desk = desk
        self._run_id = run_id
        limits = house.settings.limits
        slots = Slots(limits.running_per_user, limits.running)
        self._watching = Watching(house.store, house.instances, slots, [run_id], house.manager)
        self._asking: anyio.CancelScope | None = None
        self._left: int | None = None

    async def until_it_ends(self) -> int | None:
        """Return None when the run has ended, and an exit code when it was left running."""
        with interrupts() as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._on_signals, signals, tasks)
                await self._watching.until_over(lambda: self._asking is not None)
                tasks.cancel_scope.cancel()
        self._watching.progress.end()
        if self._asking is not None and self._left is None:
            tell()  # the question stands on the line
        return self._left

    async def _on_signals(self, signals: AsyncIterator[int], tasks: anyio.abc.TaskGroup) -> None:
        async for _number in signals:
            if self._asking is not None or not someone_there():
                tasks.start_soon(self._cancel, tasks)  # nobody can be asked, or is asked already
                if self._asking is not None:
                    self._asking.cancel()
                continue
            tasks.start_soon(self._ask, tasks)
            self._asking = anyio.CancelScope()

    async def _ask(self, tasks: anyio.abc.TaskGroup) -> None:
        assert self._asking is not None
        self._watching.progress.end()
        with self._asking:
            tell(f"{self._run_id} goes on meanwhile. Cancel it (what it has is kept), or leave it?")
            tell("Left, it is interrupted until an Ava server of this user takes it up. Ctrl-C again cancels.")
            while (answer := await ask("[c]ancel or [l]eave:")) not in ("c", "cancel", "l", "leave", ""):
                tell("c or l.")
            if answer in ("c", "cancel"):
                await self._cancel(tasks)
            else:
                tell(f"Left. `ava show {self._run_id}` tells what became of it.")
                self._left = INTERRUPTED
                tasks.cancel_scope.cancel()
        self._asking = None

    async def _cancel(self, tasks: anyio.abc.TaskGroup) -> None:
        from ava_server.answers import FAILED

        tell("Cancelling.")
        given = {"subagent_id": self._run_id, "reason": "cancelled at the terminal"}
        answer = await self._desk.call("cancel_subagent", given, silent)
        if answer.status == FAILED:  # it was stopped all the same, and its record follows when the log can take it
            tell(f"Its end is not on the record: {answer.message}")
            self._left = INTERRUPTED
            tasks.cancel_scope.cancel()


async def _deliver(house: House, session: Session, run_id: str, order: Order) -> int:
    """Hand over the result, put on record that it was, and return the exit code of its ending."""
    from ava_server.cli.reading import note_fetched, whole_answer
    from ava_server.cli.views import exit_code, result_text

    run, answer = await whole_answer(house.store, run_id, house.instances.alive)
    text = _json_of(house, run, answer) if order.as_json else result_text(answer)
    if order.out is not None:
        await anyio.to_thread.run_sync(_write_out, order.out, text)
        (tell if order.as_json else say)(f"{run.id} {run.state}: written to {order.out}")
    elif order.as_json:
        write(text)
    else:
        say(text)
    await note_fetched(house.store, session, "ava run", run)
    return exit_code(run)


def _json_of(house: House, run: RunRow, answer: RunAnswer) -> str:
    value = {"data_root": str(house.settings.data_root), **answer.model_dump(mode="json", exclude_none=True)}
    return harmless_json(json.dumps(value, ensure_ascii=False))


def _write_out(path: Path, text: str) -> None:
    from ava_roles.wrap import clean

    try:
        path.write_text(clean(text)[0] + "\n", "utf-8")
    except OSError as error:
        raise BadInput(f"--out: {path} cannot be written: {error.strerror}; `ava show` has the result") from error
