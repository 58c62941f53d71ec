"""`ava cancel S-…` and `ava send S-… "message"`: what a person says to runs, in whatever process they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_audit.errors import AuditError
from ava_server.cli.app import heading
from ava_server.cli.terminal import say, say_json, tell
from ava_server.core.errors import AvaError, BadInput

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.config.settings import Settings


def register(app: typer.Typer) -> None:
    """Add `ava cancel` and `ava send` to the app."""
    app.command("cancel", short_help="End runs, or take proposals back; what they have is kept.")(cancel_command)
    app.command("send", short_help="Say something to a run; it reads it before its next turn.")(send_command)


def cancel_command(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="S-ID…", help="Subagents, their proposals (P-…), or a group (G-…)."),
    ],
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="Why; it stands in the result.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What came of it as one JSON object.")] = False,
) -> None:
    """End runs and show what they had; nothing is asked, for it spends nothing. Exit code 0 when they have ended."""
    anyio.run(_cancel, _settings("ava cancel"), ids, reason, as_json)


def send_command(
    subagent: Annotated[str, typer.Argument(metavar="S-ID", help="The subagent, or its proposal (P-…).")],
    message: Annotated[str, typer.Argument(help="What to tell it. It may steer the work, and changes no limit.")],
    as_json: Annotated[bool, typer.Option("--json", help="What came of it as one JSON object.")] = False,
) -> None:
    """Send a message to a run that goes on; it reads it before its next turn."""
    anyio.run(_send, _settings("ava send"), subagent, message, as_json)


def _settings(command: str) -> Settings:
    """Return the settings, unless a subagent is asking: it steers no subagents.

    Raises:
        BadInput: A subagent is asking.
    """
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import refuse_recursion

    if why := refuse_recursion():
        raise BadInput(f"{command}: {why}.")
    return load_settings()


async def _cancel(settings: Settings, ids: list[str], reason: str | None, as_json: bool) -> None:
    from ava_server.cli.at_desk import session, silent
    from ava_server.cli.reading import find_runs, open_log, whole_answer
    from ava_server.cli.results import show_results
    from ava_server.core.ids import label
    from ava_server.service.runtime import open_house
    from ava_server.service.service import Service

    async with open_log(settings.paths) as looking:  # a wrong id is told before anything is opened
        before = await find_runs(looking, ids)
    if not as_json:
        heading(settings.paths)
    failed: list[AvaError | AuditError] = []
    # Nobody else's runs are taken up here: this process is gone in a moment.
    async with open_house(settings, runs=False) as runtime, session(runtime, "ava cancel", asked=True) as own:
        service = Service(runtime, own)

        async def cancel(run: RunRow) -> None:
            given = {"subagent_id": run.id, **({"reason": reason} if reason is not None else {})}
            try:
                await service.call("cancel_subagent", given, silent, raises=True)
            except (AvaError, AuditError) as error:  # the others are cancelled all the same
                failed.append(error)

        going_on = [run for run in before if not run.ended]
        for run in before:
            if run.ended:
                tell(f"{label(run)} had ended before: {run.state}.")
        async with anyio.create_task_group() as tasks:
            for run in going_on:
                tasks.start_soon(cancel, run)
        answers = [(await whole_answer(runtime.store, run.id, runtime.instances.alive))[1] for run in before]
    if as_json:
        runs = [answer.model_dump(mode="json", exclude_none=True) for answer in answers]
        ended_before = [run.id for run in before if run.ended]
        say_json({"data_root": str(settings.data_root), "runs": runs, "ended_before": ended_before})
    else:
        ended_now = {run.id for run in going_on}
        results = [answer for answer in answers if answer.subagent_id in ended_now]
        if results:
            show_results(results)
        else:
            say("Nothing was done.")
    if failed:  # said last, behind what did end
        raise failed[0]


async def _send(settings: Settings, given: str, message: str, as_json: bool) -> None:
    from ava_server.cli.at_desk import session, silent
    from ava_server.cli.reading import find_run, open_log
    from ava_server.service.runtime import open_house
    from ava_server.service.service import Service

    async with open_log(settings.paths) as looking:
        run = await find_run(looking, given)
    if not as_json:
        heading(settings.paths)
    async with open_house(settings, runs=False) as runtime, session(runtime, "ava send", asked=True) as own:
        asked = {"subagent_id": run.id, "message": message}
        answer = await Service(runtime, own).call("message_subagent", asked, silent, raises=True)
    if as_json:
        say_json({"data_root": str(settings.data_root), **answer.structured()})
    else:
        say(answer.message or answer.status)
