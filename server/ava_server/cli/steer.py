"""`ava cancel S-…` and `ava send S-… "message"`: a person steers runs, whichever process they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_audit.errors import AuditError
from ava_server.cli.app import Json, heading, refuse_in_subagent
from ava_server.cli.completion import open_runs_and_groups, unended_runs
from ava_server.cli.terminal import say, say_json, tell
from ava_server.core.errors import AvaError

if TYPE_CHECKING:
    from ava_audit.rows import RunRow


def register(app: typer.Typer) -> None:
    """Add `ava cancel` and `ava send` to the app."""
    app.command("cancel", short_help="End runs, or withdraw proposals; results so far are kept.")(cancel_command)
    app.command("send", short_help="Send a message to a run; it reads it before its next turn.")(send_command)


def cancel_command(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="S-ID…",
            help="Subagents, their proposals (P-…), or a group (G-…).",
            autocompletion=open_runs_and_groups,
        ),
    ],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the result shows it.")] = None,
    as_json: Json = False,
) -> None:
    """End runs and show what they had, without a question, since it costs nothing. Exit code 0 when they have ended."""
    refuse_in_subagent("ava cancel")
    anyio.run(_cancel, ids, reason, as_json)


def send_command(
    subagent: Annotated[
        str,
        typer.Argument(metavar="S-ID", help="The subagent, or its proposal (P-…).", autocompletion=unended_runs),
    ],
    message: Annotated[str, typer.Argument(help="The message. It may steer the work, and changes no limit.")],
    as_json: Json = False,
) -> None:
    """Send a message to an unfinished run; it reads the message before its next turn."""
    refuse_in_subagent("ava send")
    anyio.run(_send, subagent, message, as_json)


async def _cancel(ids: list[str], reason: str | None, as_json: bool) -> None:
    from ava_server.cli.log_access import find_runs, open_log, whole_answer
    from ava_server.cli.results import show_results
    from ava_server.cli.service_client import ignore_progress, open_session
    from ava_server.config.settings import load_settings
    from ava_server.core.ids import label
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    settings = load_settings()
    async with open_log(settings.paths) as log:  # a wrong id is an error before anything is opened
        before = await find_runs(log, ids)
    if not as_json:
        heading(settings.paths)
    failed: list[AvaError | AuditError] = []
    # This process takes over no other runs: it is gone in a moment.
    async with (
        open_runtime(settings, runs=False) as runtime,
        open_session(runtime, "ava cancel", asked=True) as session,
    ):
        service = Service(runtime, session)

        async def cancel(run: RunRow) -> None:
            given = {"subagent_id": run.id, **({"reason": reason} if reason is not None else {})}
            try:
                await service.call("cancel_subagent", given, ignore_progress, raises=True)
            except (AvaError, AuditError) as error:  # the others are still cancelled
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            for run in before:
                if run.ended:
                    tell(f"{label(run)} had ended before: {run.state}.")
                else:
                    tasks.start_soon(cancel, run)
        answers = [(await whole_answer(runtime.store, run.id, runtime.instances.alive))[1] for run in before]
    ended_before = [run.id for run in before if run.ended]
    if as_json:
        runs = [answer.model_dump(mode="json", exclude_none=True) for answer in answers]
        say_json({"data_root": str(settings.data_root), "runs": runs, "ended_before": ended_before})
    elif results := [answer for answer in answers if answer.subagent_id not in ended_before]:
        show_results(results)
    else:
        say("Nothing was done.")
    if failed:  # after the runs that did end
        raise failed[0]


async def _send(given: str, message: str, as_json: bool) -> None:
    from ava_server.cli.log_access import find_run, open_log
    from ava_server.cli.service_client import ignore_progress, open_session
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import open_runtime
    from ava_server.service.service import Service

    settings = load_settings()
    async with open_log(settings.paths) as log:
        run = await find_run(log, given)
    if not as_json:
        heading(settings.paths)
    async with open_runtime(settings, runs=False) as runtime, open_session(runtime, "ava send", asked=True) as session:
        asked = {"subagent_id": run.id, "message": message}
        answer = await Service(runtime, session).call("message_subagent", asked, ignore_progress, raises=True)
    if as_json:
        say_json({"data_root": str(settings.data_root), **answer.structured()})
    else:
        say(answer.message or answer.status)
