"""`ava resume S-…`: has an interrupted run go on, here, with what it does in view, and brings its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import heading
from ava_server.cli.terminal import someone_there, tell
from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session
    from ava_server.service.runtime import Runtime

FORCE = "If that process is stopped, or hangs, and cannot be ended: ava resume --force {run_id}"


def register(app: typer.Typer) -> None:
    """Add `ava resume` to the app."""
    app.command("resume", short_help="Have an interrupted subagent go on, and bring its result.")(resume_command)


def resume_command(
    subagent: Annotated[str, typer.Argument(metavar="S-ID", help="The subagent, or its proposal (P-…).")],
    force: Annotated[
        bool, typer.Option("--force", help="Also from a process that lives: one that is stopped, or hangs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Have an interrupted subagent go on where it was, with what is left of its caps, and wait for its result.

    What it was answered before is not asked again. Its old owner can neither write nor spend any more.
    """
    from ava_server.config.pin import policy_in_force
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import hide
    from ava_server.service.runtime import refuse_recursion

    hide()
    if why := refuse_recursion():
        raise BadInput(f"ava resume: {why}.")
    settings = load_settings()
    if not settings.enabled:
        raise Refused("subagents are switched off here (enabled = false in config.toml); nothing was resumed")
    if policy_in_force(settings) == "human" and not someone_there():
        raise Refused('approval = "human": only a person at a terminal, with the approval PIN, resumes a subagent')
    raise typer.Exit(anyio.run(_resume, settings, subagent, force, as_json))


async def _resume(settings: Settings, given: str, force: bool, as_json: bool) -> int:
    from ava_server.cli.at_desk import session
    from ava_server.cli.reading import find_run, open_log
    from ava_server.cli.unseen import check_pin
    from ava_server.cli.wait import deliver, follow_runs
    from ava_server.config.pin import PinFile, policy_in_force
    from ava_server.service.runtime import open_house
    from ava_server.service.service import Service

    async with open_log(settings.paths) as looking:  # a wrong id is told before anything is opened
        run = await find_run(looking, given)
    if not as_json:
        heading(settings.paths)
    # Before this process has a runtime: that would take up what was interrupted lately while somebody still types.
    if await anyio.to_thread.run_sync(policy_in_force, settings) == "human":
        await check_pin(PinFile(settings.paths.approval_file))
    async with open_house(settings) as runtime, session(runtime, "ava resume", asked=someone_there()) as own:
        await _go_on(runtime, own, run, force)
        if (left := await follow_runs(runtime, Service(runtime, own), [run.id])) is not None:
            return left
        return await deliver(runtime, own, [run.id], "ava resume", as_json=as_json)


async def _go_on(runtime: Runtime, session: Session, run: RunRow, force: bool) -> None:
    """Have the run go on, unless it does already.

    Raises:
        Refused: It may not, or cannot.
    """
    from ava_audit.rows import QUEUED
    from ava_server.core.ids import label
    from ava_server.runs.lifecycle import NotResumed, resume_line

    manager = runtime.manager
    line = await runtime.store.read(lambda view: resume_line(view, run) if not run.ended else None)
    manager.adopt_run(run.id)
    found = await manager.endings.resume(run.id, session.who, session.channel, runtime.spawn_limits, force=force)
    manager.poke()
    if not isinstance(found, NotResumed):
        tell(line or f"{label(run)} goes on.")
        return
    now = await runtime.store.read(lambda view: view.run(run.id))
    if now is not None and (now.state == QUEUED or now.instance == manager.instance):
        tell(f"{label(run)} goes on by itself.")  # it is queued, or this process has taken it over already
        return
    owner = now.instance if now is not None and not now.ended and not force else None
    lives = owner is not None and await anyio.to_thread.run_sync(runtime.instances.alive, owner)
    raise Refused(f"Not resumed: {found.why}." + (f" {FORCE.format(run_id=run.id)}" if lives else ""))
