"""`ava cancel`, `ava send` and `ava resume`: a person steers runs, whichever process they are in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
import anyio.to_thread
import typer

from ava_audit.errors import AuditError
from ava_audit.rows import QUEUED, WAITING, RunRow
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.cli.app import in_event_loop, refuse_in_subagent
from ava_server.cli.log_access import find_run, open_log, read_settings
from ava_server.cli.options import Json, RunIdsOrLast, TokenFile, UnendedRunId, Url
from ava_server.cli.record_client import MemoryTransport, Records, open_records
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.results import show_results
from ava_server.cli.secret_input import ask_pin, needed_pin
from ava_server.cli.service_client import Approvals, SessionTransport, open_service
from ava_server.cli.terminal import agrees, heading, place_json, say, say_json, someone_there, tell
from ava_server.cli.wait import FollowedRuns, deliver, wait_for
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import label, parse_id, state_words
from ava_server.core.shutdown import prepare_to_run
from ava_server.core.threads import run_async
from ava_server.render.responses import answers_json

if TYPE_CHECKING:
    from ava_server.config.settings import Settings
    from ava_server.service.access import Session
    from ava_server.service.runtime import Runtime

T = TypeVar("T")

FORCE = "If that process is stopped or hangs, and cannot be ended: ava resume --force {run_id}"


@in_event_loop
async def cancel_command(
    context: typer.Context,
    ids: RunIdsOrLast = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the result shows it.")] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """End runs and show what they had, without a question, since it costs nothing. Exit code 0 when they have ended.

    Without an id, it asks about your last run that has not ended.
    """
    refuse_in_subagent("ava cancel")
    server = chosen_server(context, url, token_file)

    async def find(records: Records) -> list[RunRow]:
        if not ids:
            return [await _last_run(records)]
        return await records.find(ids)

    errors: list[AvaError | AuditError] = []
    async with _open_steering(server, "ava cancel", find, show=not as_json) as (runs, records, approvals):

        async def cancel(run: RunRow) -> None:
            try:
                decision = await approvals.decide([Shown("cancel", run.id)], PersonAnswer(True, reason))
                if decision.text:  # it ended by itself since it was looked at
                    tell(decision.text)
            except (AvaError, AuditError) as error:  # the others are still cancelled
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for run in runs:
                if run.ended:
                    tell(f"{label(run)} had ended before: {state_words(run.state)}.")
                else:
                    tasks.start_soon(cancel, run)
        answers = [(await records.record(run.id)).answer for run in runs]
    ended_before = [run.id for run in runs if run.ended]
    results = [answer for answer in answers if answer.subagent_id not in ended_before]
    if as_json:
        say_json({**place_json(records.place), "runs": answers_json(answers), "ended_before": ended_before})
    elif results:
        show_results(results)
    else:
        say("Nothing was done.")
    if errors:  # after the runs that did end
        raise errors[0]


@in_event_loop
async def send_command(
    context: typer.Context,
    subagent: UnendedRunId,
    message: Annotated[str, typer.Argument(help="The message. It may steer the work, and changes no limit.")],
    question: Annotated[
        str | None, typer.Option(metavar="Q-ID", help="The question that it answers; a yes to a call needs it.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Send a message to an unfinished run; it reads the message before its next turn."""
    refuse_in_subagent("ava send")
    question_id = ""
    if question is not None:
        question_id = parse_id("question_id", question, "--question")
    server = chosen_server(context, url, token_file)
    if server is not None and question_id:
        raise BadInput("--question: only on the server, in a terminal there")

    # A host's model can call this too: only at a terminal is the message a person's.
    opening = _open_steering(
        server, "ava send", lambda records: records.find_one(subagent), show=not as_json, asked=someone_there()
    )
    async with opening as (run, records, approvals):
        shown = Shown("answer" if question_id else "send", run.id, question_id)
        decision = await approvals.decide([shown], PersonAnswer(True, message))
    if as_json:
        say_json({**place_json(records.place), **decision.fields})
    else:
        say(decision.text or decision.status)


@asynccontextmanager
async def _open_steering(
    server: Connection | None,
    command: str,
    find: Callable[[Records], Awaitable[T]],
    *,
    show: bool = False,
    asked: bool = True,
) -> AsyncGenerator[tuple[T, Records, Approvals]]:
    """Open what a command steers runs with: what `find` returns, the records, and what decides.

    An error of `find` comes before a service is opened. `asked`: a person decides; otherwise the log claims no person's
    message.
    """

    async def look(records: Records) -> T:
        runs = await find(records)
        if show:
            heading(records.place)
        return runs

    if server is not None:
        from ava_server.cli.transport import reached

        async with reached(server) as transport:
            records = Records(transport)
            yield await look(records), records, Approvals(transport)
        return
    async with open_records(None, lambda: read_settings().paths) as looked_at:
        runs = await look(looked_at)
    settings = read_settings()
    async with open_service(settings, command, asked=asked) as (runtime, service):
        records = Records(MemoryTransport(settings.paths, runtime.store, runtime.instances))
        yield runs, records, Approvals(SessionTransport(runtime, service.session))


async def _last_run(records: Records) -> RunRow:
    """Return this user's last unfinished run, if a person at the terminal says that it is the one.

    Raises BadInput if there is none or nobody can be asked, and Refused if the person says no.
    """
    run = await records.find_one(None, unended=True)
    if not someone_there():
        raise BadInput(f"ava cancel: give an id where nobody can be asked; the last run is {run.id}")
    if not await agrees(f"Cancel {label(run)}?"):
        raise Refused("Nothing was cancelled.")
    return run


def resume_command(
    context: typer.Context,
    subagent: UnendedRunId,
    force: Annotated[
        bool, typer.Option("--force", help="Take it even from a live process, one that is stopped or hangs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Resume an interrupted subagent where it was, with what is left of its caps, and wait for its result.

    Answers that it already has are not requested again. Its previous owner can no longer write or spend.
    """
    prepare_to_run()
    refuse_in_subagent("ava resume")
    server = chosen_server(context, url, token_file)
    if server is not None:
        if force:
            raise BadInput("--force: only on the server, in a terminal there")
        raise typer.Exit(run_async(_resume_there, server, subagent, as_json))
    settings = read_settings()
    settings.refuse_off("nothing was resumed")
    raise typer.Exit(run_async(_resume, settings, subagent, force, as_json))


async def _resume_there(server: Connection, run_id: str, as_json: bool) -> int:
    """A run of another server that is held or interrupted has a line."""
    opening = _open_steering(server, "ava resume", lambda records: records.find_one(run_id))
    async with opening as (run, _records, approvals):
        if run.state == WAITING:  # its line would approve it
            raise Refused(f"Not resumed: {label(run)} waits for approval.")
        decision = await approvals.decide([Shown("resume", run.id)], PersonAnswer(True))
        line = "\n".join(map(str, decision.fields.get("approval_lines") or ()))
        if line:
            tell(line)
            decision = await approvals.decide([Shown("resume", run.id, line=line)], PersonAnswer(True))
        decision.expect("resumed", "Not resumed")
    return await wait_for(server, [run.id], None, as_json)


async def _resume(settings: Settings, run_id: str, force: bool, as_json: bool) -> int:
    from ava_server.approval.proposals import made_under
    from ava_server.budget.user_limits import policy_in_force

    async with open_log(settings.paths) as log:  # a wrong id is an error before anything is opened
        run = await find_run(log, run_id)
        assert log is not None  # the run was found in it
        proposed_under = await log.read(lambda view: made_under(view, [run.id]))
    policy, why = await anyio.to_thread.run_sync(
        lambda: policy_in_force(settings, os_user(), run.user_id, made_under=proposed_under)
    )
    pin = needed_pin(settings.paths, policy)
    if pin is not None and not someone_there():
        raise Refused(f"{why}, so only a person at a terminal, with the approval PIN, resumes a subagent")
    if not as_json:
        heading(settings.paths)
    # Ask before this process has a runtime, which would take over interrupted runs while a person still types.
    if pin is not None:
        await ask_pin(pin, choosing=True)
    async with open_service(settings, "ava resume", asked=someone_there(), runs=True) as (runtime, service):
        await _take_over(runtime, service.session, run, force)
        exit_code = await FollowedRuns(runtime, service, [run.id]).until_over()
        if exit_code is not None:
            return exit_code
        return await deliver(runtime, service.session, [run.id], "ava resume", as_json=as_json)


async def _take_over(runtime: Runtime, session: Session, run: RunRow, force: bool) -> None:
    """Resume the run, unless it is already running by itself. Raises Refused if it may not or cannot be resumed."""
    from ava_server.runs.record.claims import NotResumed, resume_line

    manager = runtime.manager
    line = await runtime.store.read(lambda view: resume_line(view, run) if not run.ended else None)
    manager.adopted.add(run.id)
    answer = await manager.control.resume(
        run.id,
        session.who,
        session.channel,
        runtime.spawn_limits_of(run.user_id),
        force=force,
        anyones=session.administers,
    )
    manager.wake()
    if not isinstance(answer, NotResumed):
        tell(line or f"{label(run)} continues.")
        return
    why = f"Not resumed: {answer.why}."
    now = await runtime.store.read(lambda view: view.run(run.id))
    if now is None:
        raise Refused(why)
    if now.ended:
        if run.ended:
            raise Refused(why)
        tell(f"{label(run)} has gone on by itself, and has ended.")  # another process, or this one, has taken it over
        return
    if now.state == QUEUED or now.instance == manager.instance:
        tell(f"{label(run)} goes on by itself.")  # it is queued, or this process has already taken it over
        return
    if now.instance is not None and not force:
        owner_lives = await anyio.to_thread.run_sync(runtime.instances.alive, now.instance)
        if owner_lives:
            why += f" {FORCE.format(run_id=run.id)}"
    raise Refused(why)
