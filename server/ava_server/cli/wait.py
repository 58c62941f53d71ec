"""Wait for runs at a terminal, show what they do, and hand over their results; `ava wait S-…`.

`ava run` and `ava resume` wait here too (`FollowedRuns`, `deliver`): for them Ctrl-C asks whether to cancel the runs.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.abc
import anyio.to_thread
import typer

from ava_audit.errors import AuditError, StoreUnavailable
from ava_audit.events import Activity
from ava_audit.rows import RUNNING
from ava_audit.units import format_usd
from ava_roles.errors import RolesError
from ava_roles.wrap import clean
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.cli import terminal
from ava_server.cli.app import CONFIGURATION, INTERRUPTED, NOT_APPROVED
from ava_server.cli.log_access import note_fetched, read_settings
from ava_server.cli.options import LastRunIds, TokenFile, Url, parse_seconds
from ava_server.cli.record_client import MemoryTransport, Records, open_records
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.results import SavedFiles, exit_code, results_text, save_artifacts, show_results
from ava_server.cli.service_client import Approvals, SessionTransport, unless_decided
from ava_server.cli.terminal import ReaderGone, say, someone_there, tell
from ava_server.core.commands import advice
from ava_server.core.errors import AvaError, BadInput
from ava_server.core.ids import label, state_words
from ava_server.core.threads import received, run_async
from ava_server.render.responses import RunAnswer, answers_json

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.view import View
    from ava_server.render.run_view import RunView
    from ava_server.runs.asking.question_kinds import PendingQuestion
    from ava_server.runs.owner.manager import Manager
    from ava_server.service.access import Session
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

ONE_LINE = 110
"""Columns from which on a run's figures stand beside its name; below, they have a line of their own."""
STEPS = 5
"""The last steps of a run that are shown."""
WHAT_COLUMNS = 40
"""Columns of a name, or of a role and its task, in a list of several; on a terminal at most a quarter of its width."""


def wait_command(
    context: typer.Context,
    ids: LastRunIds = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait at most this long: 90, 90s, 10m, 1h. Runs go on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON object.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Wait for all of these to end; Ctrl-C ends only the wait. With --url, the server may restart meanwhile.

    Without an id, it waits for your last run. The exit code is that of the ending; of several the highest, which is
    the worst. 130: the wait is over, by Ctrl-C or --timeout, and something is still running.
    """
    within_s = parse_seconds("--timeout", timeout)
    raise typer.Exit(run_async(wait_for, chosen_server(context, url, token_file), ids or [], within_s, as_json))


async def wait_for(server: Connection | None, ids: list[str], within_s: float | None, as_json: bool) -> int:
    from ava_server.render.run_view import status_line

    async with open_records(server, lambda: read_settings().paths) as records:
        runs = await records.find(ids) if ids else [await records.find_one(None)]
        if not as_json:
            terminal.heading(records.place)
        watch = RunWatch(records, [run.id for run in runs])
        records.wait_for_server(watch.progress.wait_for)

        async def until_over() -> str:
            with anyio.move_on_after(within_s):
                await watch.until_over()
                return ""
            return f"The wait ended after {within_s:g} s; the runs did not."

        why = await terminal.unless_interrupted(until_over, "The wait was ended; the runs were not.")
        watch.progress.end()
        if why:
            records.wait_for_server(None)
        seen = await watch.look()
        if why:
            tell("\n".join([why, *(f"Still there: {status_line(run, run.doing)}" for run in seen if not run.over)]))
        return await _show_ended(records, seen, as_json)


async def _show_ended(records: Records, seen: Sequence[RunView], as_json: bool) -> int:
    """Show the runs' results, put on record that they were shown, and return the worst exit code."""
    found = [await records.record(run.row.id) for run in seen]
    if as_json:
        answers = answers_json(record.answer for record in found)
        terminal.say_json({**terminal.place_json(records.place), "runs": answers})
    else:
        ended = [record.answer for record in found if record.row.ended]
        if ended:
            show_results(ended)
        expired: list[str] = []
        for record, run in zip(found, seen, strict=True):
            if run.over and not record.row.ended:
                expired.append(f"{label(record.row)}: its proposal {record.row.pending_id} has expired.")
        if expired:
            text = "\n\n".join(expired)
            say(f"\n\n{text}" if ended else text)
    await records.note_shown("ava wait", found)
    return max(_code(run) for run in seen)


def _code(run: RunView) -> int:
    if run.row.ended:
        return exit_code(run.row)
    return NOT_APPROVED if run.over else INTERRUPTED


# -- watching ---------------------------------------------------------------------------------------------------------


class RunWatch:
    """Shows what runs do until they have ended.

    Args:
        records: Where they are.
        run_ids: The runs.
        manager: This process's own, where it has one: it knows more than the log.
    """

    def __init__(self, records: Records, run_ids: Sequence[str], manager: Manager | None = None) -> None:
        self.progress = terminal.Progress()
        self._records = records
        self._run_ids = run_ids
        self._manager = manager
        self._told: set[str] = set()
        self._steps: deque[str] = deque(maxlen=STEPS)
        self._steps_upto = 0

    async def look(self) -> list[RunView]:
        """Raises StoreUnavailable if the log cannot be read."""
        return await self._records.views(self._run_ids)

    async def until_over(
        self, quiet: Callable[[], bool] = lambda: False, attend: Callable[[Sequence[RunView]], None] | None = None
    ) -> None:
        """Show what they do until all of them are over; a log that cannot be read is waited for.

        `quiet` tells whether a question stands on the line. `attend` asks the person what the runs wait for; without
        it, they are told the command.
        """
        while True:
            try:
                seen = await self.look()
                await self._read_steps()
            except StoreUnavailable as error:
                if not quiet():
                    self.progress.wait_for(f"Waiting for the log: {error}")
            else:
                if attend is not None:
                    attend(seen)
                if all(run.over for run in seen):
                    self.progress.end()
                    return
                if attend is None and not quiet():
                    self._tell_questions(seen)
                if not quiet():
                    self._show(seen)
            await anyio.sleep(self._records.every_s)

    def _tell_questions(self, seen: list[RunView]) -> None:
        for run in seen:
            for asked in run.questions:
                if not asked.kind.in_words or not self._told.isdisjoint(asked.ids):
                    continue
                self._told.update(asked.ids)
                self.progress.end()
                tell(f"{asked.heading}:\n{asked.drawn}")
                how = advice(asked.in_a_terminal)
                tell(f"Answer in another terminal: {how.strip('`') if how.endswith('`') else how}")

    def _show(self, seen: list[RunView]) -> None:
        from ava_server.render.run_view import status_line

        width = self.progress.width
        hold = self._manager.out_of_reach if self._manager is not None else None
        if hold:
            called = label(next(run for run in seen if not run.over).row)
            self.progress.wait_for(f"{called}: waiting for the log: {hold}")
        elif len(seen) > 1:
            self.progress.show(*lines_of(seen, self.progress))
        elif width is None:
            self.progress.show(status_line(seen[0], seen[0].doing))
        else:
            self.progress.show(*self._screen_of(seen[0], width))

    async def _read_steps(self) -> None:
        """Read the steps that have come since the last look, where they are shown."""
        if len(self._run_ids) > 1 or self.progress.width is None:
            return

        new = await self._records.steps(self._run_ids[0], self._steps_upto)
        for entry in new:
            self._steps_upto = entry.seq
            if isinstance(entry.fact, Activity):
                self._steps.append(terminal.one_line(entry.fact.activity))

    def _screen_of(self, run: RunView, width: int) -> list[str]:
        from ava_server.render.run_view import figures

        called, used = label(run.row), figures(run)
        lines = [f"{called} · {used}"] if width >= ONE_LINE else [called, *_fitting(f"  {used}", width)]
        before = list(self._steps)
        if before and before[-1].startswith(run.doing):
            before.pop()  # it is what it does now
        lines += [f"  {step}" for step in before[1 - STEPS :]]
        return [*lines, *_fitting(f"{self.progress.spinner} {run.doing}", width)]


def lines_of(seen: Sequence[RunView], progress: terminal.Progress) -> list[str]:
    """Return a line for all runs, and a table; what a run does comes last, where a narrow terminal cuts it."""
    from ava_server.render.run_view import cost_of

    is_live = progress.width is not None
    rows: list[tuple[str, ...]] = []
    what_columns = WHAT_COLUMNS
    if progress.width is not None:
        rows.append(("", "run", "what", "time", "turn", "cost", "now"))
        what_columns = min(what_columns, progress.width // 4)
    waits: list[str] = []
    for run in seen:
        mark = progress.spinner if is_live and run.row.state == RUNNING else ""
        what = terminal.cut(run.row.name or f"{run.row.role}: {run.task}", what_columns)
        turn = _turn_of(run)
        if not is_live:  # there is no head that says so
            turn = f"turn {turn}"
        doing = run.doing
        if is_live and run.wait is not None and run.wait.cause not in ("money", "queue", "owner"):
            doing = state_words(run.state)  # what a person can do about it is below the table, uncut
            waits += _fitting(f"{run.row.id}: {run.wait.for_people()}", progress.width)
        rows.append((mark, run.row.id, what, f"{run.elapsed_s:.0f} s", turn, cost_of(run), doing))
    ended = sum(run.over for run in seen)
    spent = format_usd(sum(run.row.cost_micros for run in seen))
    head = f"{len(seen)} subagents, {ended} ended, {spent} spent:"
    return [head, *terminal.aligned(rows, right=(3, 4)), *waits]


def _turn_of(run: RunView) -> str:
    """`4/20`, or `4` where this Ava does not know the caps."""
    return f"{run.row.turns}/{run.caps[1].most:g}" if run.caps else f"{run.row.turns}"


def _fitting(line: str, width: int | None) -> list[str]:
    return [line] if width is None else terminal.wrapped_lines(line, width)


# -- following one's own runs -----------------------------------------------------------------------------------------


PLAN_END_S = 3.0
"""Seconds in which the plan of ended runs notes its own end."""


class FollowedRuns:
    """A command's own runs: what they ask a person is asked here, and Ctrl-C asks whether to cancel them."""

    def __init__(self, runtime: Runtime, service: Service, run_ids: Sequence[str]) -> None:
        self._service = service
        self._run_ids = run_ids
        self._runtime = runtime
        runtime.manager.adopted.update(run_ids)  # an earlier command may have begun them
        records = Records(MemoryTransport(runtime.settings.paths, runtime.store, runtime.instances, runtime.manager))
        self._watch = RunWatch(records, run_ids, runtime.manager)
        self._question: anyio.CancelScope | None = None
        self._asking: anyio.CancelScope | None = None
        self._asked: set[str] = set()
        self._left: int | None = None

    async def until_over(self, *, piped: bool = False) -> int | None:
        """Return None when all have ended and can be handed over, or the exit code.

        `piped`: the results go to the standard output. Raises ReaderGone if its reader or that of the conversation has
        gone, so nobody waits for them: a run of this process was cancelled, and one that a worker drives goes on.
        """
        try:
            async with terminal.reader_gone(*([sys.stdout] if piped else []), sys.stderr):
                return await self._until_over()
        except* ReaderGone:
            pass  # nothing may be awaited while the group that it ended is handled
        await self._without_reader()
        raise ReaderGone

    async def _until_over(self) -> int | None:
        with received(signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._on_signals, signals, tasks)
                # Without a terminal, and in a script that approves by --yes, nobody is asked.
                asks = someone_there() and self._service.session.channel == "terminal"
                async with anyio.create_task_group() as outcomes:  # each is said, although its run may be over first
                    await self._watch.until_over(
                        lambda: self._question is not None or self._asking is not None,
                        (lambda seen: self._attend(seen, outcomes)) if asks else None,
                    )
                tasks.cancel_scope.cancel()
        self._watch.progress.end()
        if self._question is not None and self._left is None:
            tell()  # the question stands on the line
        if self._left is None:
            await self._plans_over()
        return self._left

    async def _plans_over(self) -> None:
        """Let the plans end whose last runs have: a command that goes at once would leave that to another process."""
        store, manager = self._runtime.store, self._runtime.manager

        def own_open_plans(view: View) -> list[str]:
            plan_ids: set[str] = set()
            for run_id in self._run_ids:
                run = view.run(run_id)
                if run is not None and run.plan_id is not None:
                    plan_ids.add(run.plan_id)
            open_plans: list[str] = []
            for plan_id in plan_ids:
                plan = view.run(plan_id)
                if plan is not None and not plan.ended and manager.owns(plan.id):
                    open_plans.append(plan.id)
            return open_plans

        with anyio.move_on_after(PLAN_END_S):
            seen = store.head
            while await store.read(own_open_plans):
                seen = await store.wait_for_entry_after(seen)

    async def _on_signals(self, signals: AsyncIterator[int], tasks: anyio.abc.TaskGroup) -> None:
        async for _number in signals:
            if self._question is not None or not someone_there():
                tasks.start_soon(self._cancel, tasks)  # there is nobody to ask, or the question was asked already
                if self._question is not None:
                    self._question.cancel()
                continue
            if self._asking is not None:
                self._asking.cancel()
            self._question = anyio.CancelScope()
            tasks.start_soon(self._ask, tasks, self._question)

    @property
    def _driven_elsewhere(self) -> bool:
        """A worker drives what a person has approved, unless that is switched off."""
        return self._runtime.manager.leaves_runs

    async def _without_reader(self) -> None:
        if self._driven_elsewhere:
            here = [run_id for run_id in self._run_ids if self._runtime.manager.owns(run_id)]
            then = "approved runs continue"
            if here:
                then = f"an Ava server of this user with the same endpoint and keys takes over {', '.join(here)}"
            with suppress(ReaderGone):
                tell(f"Nobody reads the output any more; {then}.")
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel, tasks)
                await self._watch.until_over(lambda: True)

    def _attend(self, seen: Sequence[RunView], outcomes: anyio.abc.TaskGroup) -> None:
        """Ask the next question of a run."""
        if self._asking is not None or self._question is not None:
            return
        for one in (each for run in seen for each in run.questions):
            if self._asked.isdisjoint(one.ids):
                self._asked.update(one.ids)
                self._asking = anyio.CancelScope()
                outcomes.start_soon(self._answer, self._asking, one)
                return

    async def _answer(self, scope: anyio.CancelScope, one: PendingQuestion) -> None:
        self._watch.progress.end()
        try:
            with scope:
                await self._ask_person(one)
        except (AvaError, AuditError) as error:
            tell(f"ava: {error}")
        finally:
            self._asking = None

    async def _ask_person(self, one: PendingQuestion) -> None:
        """Ask what a run asks; where it is decided elsewhere first, the question withdraws itself."""
        client = Approvals(SessionTransport(self._runtime, self._service.session))
        given = await unless_decided(client, [one.shown], lambda: _ask_about(one))
        if given is None:
            found = await client.decided_elsewhere([one.shown])
            tell("\n" + "\n".join(found.values()))
            return
        tell((await client.decide([one.shown], given)).text)

    async def _ask(self, tasks: anyio.abc.TaskGroup, question: anyio.CancelScope) -> None:
        self._watch.progress.end()
        with question:
            running = [run.row for run in await self._watch.look() if not run.row.ended]
            which, them = f"{self._run_ids[0]} is still running", "it"
            if len(self._run_ids) > 1:
                which, them = f"{len(running)} of {len(self._run_ids)} subagents are still running", "them"
            tell(f"{which}. Cancel {them} (the results so far are kept), or leave {them}?")
            tell(await self._when_left(running))
            tell("Ctrl-C again cancels.")
            while (answer := await terminal.ask("[c]ancel or [l]eave:")) not in ("c", "cancel", "l", "leave", ""):
                tell("c or l.")
            if answer in ("c", "cancel"):
                await self._cancel(tasks)
            else:
                tell(f"Left. To see more: {', '.join(f'`ava show {run_id}`' for run_id in self._run_ids)}.")
                self._left = INTERRUPTED
                tasks.cancel_scope.cancel()
        self._question = None

    async def _when_left(self, running: Sequence[RunRow]) -> str:
        """Return what becomes of these runs once this process has left those that it drives."""
        from ava_server.service.checks.data import seems_held

        manager = self._runtime.manager
        here = [row for row in running if not self._driven_elsewhere or row.instance == manager.instance]
        if not here:
            they = "it" if len(running) == 1 else "they"
            return f"If left, {they} will go on."
        they, them = ("it", "it") if len(here) == 1 else ("they", "them")
        if len(here) < len(running):
            they = f"{' and '.join(row.id for row in here)} (the others go on)"
        resume = ", ".join(f"`ava resume {row.id}`" for row in here)
        for row in here:
            why = manager.why_not_worker(row.id)
            if why:
                return (
                    f"If left, {they} will be interrupted until you continue {them} with {resume}, or an Ava server of"
                    f" this user with the same endpoint and keys takes {them} over. No worker runs {them}, because"
                    f" {why.rstrip('.')}."
                )
        if await anyio.to_thread.run_sync(seems_held, self._runtime.settings.paths.worker_lock):
            return (
                f"If left, {they} will be interrupted, and the worker that is running takes {them} over if it has the"
                f" same endpoint and keys; else continue {them} with {resume}."
            )
        return (
            f"If left, {they} will be interrupted until an Ava server of this user with the same endpoint and keys"
            f" takes {them} over, at once if one is running, or until you continue {them} with {resume}."
        )

    async def _cancel(self, tasks: anyio.abc.TaskGroup) -> None:
        from ava_server.service.service import decide

        with suppress(ReaderGone):
            tell("Cancelling.")
        failed: list[str] = []

        async def cancel(run_id: str) -> None:
            try:
                await decide(self._service, [Shown("cancel", run_id)], PersonAnswer(True, "cancelled at the terminal"))
            except (AvaError, RolesError, AuditError) as error:
                failed.append(f"The end of {run_id} is not on the record: {error}")

        try:
            targets = await self._runtime.store.read(self._to_cancel)
        except AuditError:  # each cancel says so
            targets = list(self._run_ids)
        async with anyio.create_task_group() as cancelling:
            for run_id in targets:
                cancelling.start_soon(cancel, run_id)
        if failed:  # they were stopped; the log will say so when it can be written
            tell("\n".join(failed))
            self._left = INTERRUPTED
            tasks.cancel_scope.cancel()

    def _to_cancel(self, view: View) -> list[str]:
        """Return these runs, and in place of all that a plan still has the plan: it then ends as cancelled too."""
        own = set(self._run_ids)
        targets: dict[str, None] = {}
        for run_id in self._run_ids:
            run = view.run(run_id)
            plan_id = run.plan_id if run is not None else None
            if plan_id is not None and all(row.ended or row.id in own for row in view.step_runs(plan_id)):
                targets[plan_id] = None
            else:
                targets[run_id] = None
        return list(targets)


# -- handing over -----------------------------------------------------------------------------------------------------


async def _ask_about(one: PendingQuestion) -> PersonAnswer:
    """Ask on the terminal what a run asks; without a yes or words, it goes on without."""
    tell(f"{one.heading}:\n{one.drawn}")
    if not one.kind.in_words:
        return PersonAnswer(await terminal.agrees(one.kind.prompt))
    words = await terminal.ask_words(one.prompt)
    return PersonAnswer(bool(words), words or None)


async def deliver(
    runtime: Runtime,
    session: Session,
    run_ids: Sequence[str],
    command: str,
    *,
    as_json: bool,
    out: Path | None = None,
    artifacts: Path | None = None,
) -> int:
    """Hand over the results of ended runs, put that on record, and return the exit code.

    It is that of the first run that did not succeed. If all did and a file could not be copied, it says so. Of several
    runs, each gets a folder of its own in `artifacts`. Raises BadInput if the file `out` cannot be written.
    """
    from ava_server.render.plan_view import whole_plans

    records = Records(MemoryTransport(runtime.settings.paths, runtime.store, runtime.instances))
    runs = [await records.record(run_id) for run_id in run_ids]
    answers = [run.answer for run in runs]
    saved = await _save_all(runtime, answers, artifacts)
    if out is None and not as_json:
        show_results(answers, saved=saved)
    else:
        text = _json_of(runtime, answers, saved) if as_json else results_text(answers, saved)
        if out is None:
            terminal.write(text)
        else:
            await anyio.to_thread.run_sync(_write_out, out, text)
            write_line = tell if as_json else say
            for run in runs:
                write_line(f"{label(run.row)} {state_words(run.row.state)}: written to {out}")
        for copied in saved.values():
            tell("\n".join(copied.lines()))
    plans = await runtime.store.read(lambda view: [view.run(plan_id) for plan_id in whole_plans(view, run_ids)])
    rows = [run.row for run in runs]
    rows += [plan for plan in plans if plan is not None]
    for row in rows:
        await note_fetched(runtime.store, session, command, row)
    for run in runs:
        code = exit_code(run.row)
        if code:
            return code
    if any(copied.faults for copied in saved.values()):
        return CONFIGURATION
    return 0


async def _save_all(runtime: Runtime, answers: Sequence[RunAnswer], artifacts: Path | None) -> dict[str, SavedFiles]:
    from ava_server.service.run_records import DeliveredFiles

    saved: dict[str, SavedFiles] = {}
    if artifacts is None:
        return saved
    for answer in answers:
        run_id = answer.subagent_id
        source = DeliveredFiles(runtime.settings.paths.artifacts / run_id, run_id, runtime.store.blobs)
        folder = artifacts / answer.subagent_id if len(answers) > 1 else artifacts
        saved[answer.subagent_id] = await anyio.to_thread.run_sync(save_artifacts, answer, source, folder)
    return saved


def _json_of(runtime: Runtime, answers: Sequence[RunAnswer], saved: dict[str, SavedFiles]) -> str:
    values = answers_json(answers)
    for value in values:
        if copied := saved.get(value["subagent_id"]):
            value["artifacts_saved"] = copied.as_json()
    shown: dict[str, Any] = {"group_id": answers[0].group_id, "runs": values} if len(values) > 1 else values[0]
    shown = {"data_root": str(runtime.settings.data_root), **shown}
    return terminal.harmless_json(json.dumps(shown, ensure_ascii=False))


def _write_out(path: Path, text: str) -> None:

    try:
        path.write_text(clean(text)[0] + "\n", "utf-8")
    except OSError as error:
        raise BadInput(f"--out: {path} cannot be written: {error.strerror}; `ava show` has the result") from error
