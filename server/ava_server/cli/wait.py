"""`ava wait S-…`: wait for the end of runs that other processes have, with what they do meanwhile, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli.app import INTERRUPTED, NOT_APPROVED, heading
from ava_server.cli.completion import open_runs_and_groups
from ava_server.cli.terminal import interrupts, say, say_json, tell

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_server.cli.watching import Seen, Watching
    from ava_server.config.settings import Settings
    from ava_server.service.responses import RunAnswer
    from ava_server.service.status import Alive


def register(app: typer.Typer) -> None:
    """Add `ava wait` to the app."""
    app.command("wait", short_help="Wait for the end of runs, and show their results.")(wait_command)


def wait_command(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="S-ID…",
            help="Subagents, their proposals (P-…), or a group (G-…).",
            autocompletion=open_runs_and_groups,
        ),
    ],
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default=False, help="Wait at most so long: 90, 90s, 10m, 1h. The run goes on."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
) -> None:
    """Wait for all of these to end; Ctrl-C ends only the wait.

    The exit code is that of the ending; of several the highest, which is the worst. 130: the wait is over, by Ctrl-C
    or --timeout, and something goes on.
    """
    from ava_server.cli.option_values import parse_seconds
    from ava_server.config.settings import load_settings

    within_s = parse_seconds("--timeout", timeout)
    raise typer.Exit(anyio.run(_wait, load_settings(), ids, within_s, as_json))


async def _wait(settings: Settings, ids: list[str], within_s: float | None, as_json: bool) -> int:
    from ava_audit.store.locks import Instances
    from ava_server.budget.user_limits import Slots
    from ava_server.cli.log_access import find_runs, open_log
    from ava_server.cli.watching import Watching

    async with open_log(settings.paths) as store:
        runs = await find_runs(store, ids)
        assert store is not None
        if not as_json:
            heading(settings.paths)
        instances = Instances(settings.paths.instances)
        slots = Slots(settings.limits.running_per_user, settings.limits.running)
        watching = Watching(store, instances, slots, [run.id for run in runs])
        seen, why = await _until_over(watching, within_s)
        if why:
            seen = await watching.look()
            going_on = [one for one in seen if not one.over]
            tell("\n".join([why, *(f"Goes on: {one.line}" for one in going_on)]))
        return await _deliver(store, instances.alive, settings, seen, as_json)


async def _until_over(watching: Watching, within_s: float | None) -> tuple[list[Seen], str]:
    """Return the runs as they ended, or why the wait is over before."""
    seen: list[Seen] = []
    why = ""
    with interrupts() as signals:
        async with anyio.create_task_group() as tasks:

            async def on_signals() -> None:
                nonlocal why
                async for _number in signals:
                    why = "The wait was ended; nothing else was."
                    tasks.cancel_scope.cancel()

            tasks.start_soon(on_signals)
            with anyio.move_on_after(within_s) as time:
                seen = await watching.until_over()
            if time.cancelled_caught:
                why = f"The wait is over after {within_s:g} s; nothing else is."
            tasks.cancel_scope.cancel()
    watching.progress.end()
    return seen, why


async def _deliver(store: Store, alive: Alive, settings: Settings, seen: Sequence[Seen], as_json: bool) -> int:
    """Show the results, put on record that they were shown, and return the worst exit code."""
    from ava_audit.errors import StoreUnavailable
    from ava_server.cli.log_access import note_fetched, terminal_session, whole_answer
    from ava_server.cli.showing import show_results
    from ava_server.cli.views import exit_code

    codes: list[int] = []
    ended: list[RunAnswer] = []
    expired: list[str] = []
    answers = [(one, *await whole_answer(store, one.run.id, alive)) for one in seen]
    for one, run, answer in answers:
        if run.ended:
            codes.append(exit_code(run))
            ended.append(answer)
        elif one.over:  # a proposal whose time is over: nothing can come of it any more
            codes.append(NOT_APPROVED)
            expired.append(f"{answer.status_line}: its proposal {run.pending_id} has expired.")
        else:
            codes.append(INTERRUPTED)
    if as_json:
        runs = [answer.model_dump(mode="json", exclude_none=True) for _one, _run, answer in answers]
        say_json({"data_root": str(settings.data_root), "runs": runs})
    else:
        if ended:
            show_results(ended)
        if expired:
            say("\n\n".join(["", *expired] if ended else expired))
    session = terminal_session()
    for _one, run, answer in answers:
        if answer.untrusted_result is not None:
            try:
                await note_fetched(store, session, "ava wait", run)
            except StoreUnavailable as error:  # it was shown all the same
                tell(f"That it was shown is not on the record: {error}")
    return max(codes)
