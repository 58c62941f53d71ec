"""`ava eval run`: proposes what the log lacks of a suite, as one plan under one cap; waits; scores; and shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from pydantic import ValidationError

from ava_audit.units import MICROS_PER_CENT, counted, format_usd, now_us
from ava_server.approval.channels import PERSON_CHANNELS
from ava_server.approval.decisions import hourly_shortage
from ava_server.approval.proposals import MOST_WAITING
from ava_server.approval.requests import stored_result
from ava_server.cli.app import MODEL, NOT_APPROVED
from ava_server.cli.log_access import note_fetched
from ava_server.cli.results import ENDING_CODES
from ava_server.cli.run import RunRequest, approve, checked_settings
from ava_server.cli.service_client import open_service
from ava_server.cli.terminal import heading, place_json, say, say_json, tell
from ava_server.cli.wait import FollowedRuns
from ava_server.core.errors import BadInput, Refused
from ava_server.core.threads import run_async
from ava_server.models.model_choice import OFFLINE
from ava_server.suites.cells import (
    CAP,
    Cell,
    Column,
    Round,
    Suite,
    copy_workspaces,
    find_round,
    find_suite,
    has_verdict,
    plan_cells,
)
from ava_server.suites.report import comparison_lines, table, write_page
from ava_server.suites.round_results import SuiteResult, compare_columns, result_of, score

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.config.settings import Settings
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

COMMAND = "ava eval run"


@dataclass(frozen=True)
class SuiteRequest:
    """The command line of `ava eval run`.

    Attributes:
        suite: A folder, or the name of a shipped suite.
        models: The models of the columns; none: those of the roles.
        roles: The roles of the columns; none: those of the cases.
        tries: How often each case is tried.
        max_micros: The most that the round may cost in total, what it has cost before included; None: the sum of the
            runs' own caps.
        html: A file for the page.
    """

    suite: str
    models: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    tries: int = 1
    max_micros: int | None = None
    again: bool = False
    yes: bool = False
    as_json: bool = False
    html: Path | None = None

    @property
    def columns(self) -> list[Column]:
        """The columns: each model with each role."""
        columns: list[Column] = []
        for model in self.models or (None,):
            for role in self.roles or (None,):
                columns.append(Column(model, role))
        return columns


def run_suite(request: SuiteRequest) -> int:
    """Bring the log up to a suite, show what it says, and return the exit code.

    Raises:
        BadInput: The request is ambiguous, or too large for one approval.
        Refused: Nobody can approve it here.
        SuiteFaults: The suite is not valid.
    """
    suite = find_suite(request.suite)
    free = bool(request.models) and all(model in ("offline", OFFLINE) for model in request.models)
    if request.yes and request.max_micros is None and not free:
        raise BadInput("--yes skips the question, so --max-cost is required; such as --max-cost 2")
    if request.html is not None and (request.html.is_dir() or not request.html.parent.is_dir()):
        raise BadInput(f"--html: {request.html} is a folder, or in one that does not exist; give a file")
    settings = checked_settings(RunRequest((), yes=request.yes))
    return run_async(_run, settings, suite, request)


async def _run(settings: Settings, suite: Suite, request: SuiteRequest) -> int:
    if not request.as_json:
        heading(settings.paths)
    copies = await anyio.to_thread.run_sync(copy_workspaces, suite)
    # The folders of the cases are for this session what roots are for a host's.
    roots = tuple(sorted({str(copy) for copy, _sha in copies.values()}))
    opening = open_service(settings, COMMAND, asked=not request.yes, runs=True, roots=roots)
    async with opening as (runtime, service):
        catalog, models = await runtime.catalog(roots), runtime.credentials.models
        cells = plan_cells(suite, request.columns, request.tries, copies, catalog, models)
        find = partial(find_round, user=service.session.user, suite=suite, cells=cells)
        before = await runtime.store.read(partial(find, again=request.again))
        code = await _make_runs(runtime, service, suite, cells, before, request)
        if code is not None:
            return code
        after = await runtime.store.read(partial(find, which=before.number))
        result = await _score_round(runtime, suite, cells, after)
        for runs in after.runs.values():
            for run in runs:
                await note_fetched(runtime.store, service.session, COMMAND, run)
    if request.html is not None:
        await anyio.to_thread.run_sync(write_page, request.html, result)
    if request.as_json:
        say_json({**place_json(settings.paths), **result.model_dump(mode="json")})
    else:
        say("\n".join(table(result)))
    endings_without_verdict = {verdict.ending for verdict in result.verdicts if verdict.passed is None}
    if not endings_without_verdict:
        return 0
    if "cost_exceeded" in endings_without_verdict:
        return ENDING_CODES["cost_exceeded"]
    return MODEL


async def _make_runs(
    runtime: Runtime, service: Service, suite: Suite, cells: Sequence[Cell], current: Round, request: SuiteRequest
) -> int | None:
    """Have the missing runs of a round approved, and wait for all; return the exit code if that was ended before."""
    left = current.left(cells)
    running: list[str] = []
    for cell in cells:
        run = current.newest(cell)
        if run is not None and not run.ended:
            running.append(run.id)
    tell(f"{suite.name}, round {current.number}: {_counts(cells, left, running)}.")
    if left:
        spawns, most = _spawns(suite, left, current, request.max_micros)
        await _check_hourly_limit(runtime, service, left)
        proposal = RunRequest(spawns, most_micros=most, yes=request.yes, withdraws=True)
        try:
            approved = await approve(runtime, service, proposal)
        except Refused:
            await _check_hourly_limit(runtime, service, left)  # another program may have used it up meanwhile
            raise
        if not approved:
            return NOT_APPROVED
        running += approved
    if not running:
        return None
    exit_code = await FollowedRuns(runtime, service, running).until_over()
    if exit_code is not None:
        command = "The same command, without --again," if request.again else "The same command"
        tell(f"{command} goes on with this round; what the log has is not paid again.")
    return exit_code


async def _check_hourly_limit(runtime: Runtime, service: Service, left: Sequence[Cell]) -> None:
    """Raises Refused: not all of these may start within this hour without a person's answer; nothing is proposed."""
    session = service.session
    if session.channel in PERSON_CHANNELS:
        return
    paid = sum(not cell.free for cell in left)
    limits = runtime.spawn_limits_of(session.user)
    short = await runtime.store.read(lambda view: hourly_shortage(view, session.user, paid, limits, now_us()))
    if short is not None:
        raise Refused(
            f"--yes: {short.why}. This round needs {paid}, and {short.left} of them may start now, so none was started."
            " Run it in a terminal without --yes, where your answer starts all of them; or begin with fewer cases,"
            " models or tries: a later call adds more to the same round."
        )


def _counts(cells: Sequence[Cell], left: Sequence[Cell], running: Sequence[str]) -> str:
    cases = {cell.case.id for cell in cells}
    in_log = sum(not cell.refusal for cell in cells) - len(left) - len(running)
    parts = [f"{counted(len(cells), 'try', 'tries')} of {counted(len(cases), 'case')}"]
    if in_log and not left and not running:
        parts.append(f"{in_log} in the log already, not paid again; --again begins a new round")
    elif in_log:
        parts.append(f"{in_log} in the log already, not paid again")
    if running:
        parts.append(f"{len(running)} under way")
    if left:
        parts.append(f"{len(left)} to approve")
    return ", ".join(parts)


def _spawns(
    suite: Suite, left: Sequence[Cell], current: Round, max_micros: int | None
) -> tuple[tuple[dict[str, Any], ...], int | None]:
    """Return the arguments of the runs that a round lacks, and the most that they may cost together."""
    if len(left) > MOST_WAITING:
        raise BadInput(
            f"{suite.name}: {len(left)} runs are more than one approval takes ({MOST_WAITING}); give fewer models or"
            " tries first: a later call adds more to the same round"
        )
    spawns = [{**cell.spawn, "task_id": cell.task_id(suite.name, current.number)} for cell in left]
    if max_micros is None:
        return tuple(spawns), None
    held = current.held_micros
    rest = max_micros - current.spent_micros - held
    if rest < MICROS_PER_CENT:
        costs = f"round {current.number} of {suite.name} has cost {format_usd(current.spent_micros)}"
        if held:
            costs += f", and what is under way may cost {format_usd(held)}"
        raise BadInput(f"--max-cost: {costs}; give more than that, it is for the whole round")
    if len(spawns) == 1 and rest // MICROS_PER_CENT < left[0].cap_cents:
        spawns[0][CAP] = rest // MICROS_PER_CENT
    return tuple(spawns), rest


async def _score_round(runtime: Runtime, suite: Suite, cells: Sequence[Cell], current: Round) -> SuiteResult:
    runs: list[tuple[Cell, RunRow]] = []
    for cell in cells:
        run = current.newest(cell)
        if run is not None and run.ended and has_verdict(cell, run):
            runs.append((cell, run))
    results = await runtime.store.read(lambda view: [(cell, stored_result(view, run)) for cell, run in runs])
    scores = await score(suite.name, results)
    by_cell = {cell.id: each for (cell, _run), each in zip(runs, scores, strict=True)}
    return result_of(suite.name, suite.about, current, cells, by_cell)


def compare_files(first: Path, second: Path, as_json: bool) -> None:
    """Show two results case by case, for each column that both have; two single columns are the same one."""
    before, after = _read_result(first), _read_result(second)
    names_before = [column.name for column in before.columns]
    names_after = [column.name for column in after.columns]
    pairs = [(name, name) for name in names_before if name in names_after]
    if not pairs and len(names_before) == len(names_after) == 1:
        pairs = [(names_before[0], names_after[0])]
    if not pairs:
        raise BadInput(f"{first} and {second} have no column in common; run both with the same --model or --role")
    comparisons = [compare_columns((before, name), (after, name_after)) for name, name_after in pairs]
    if as_json:
        say_json({"comparisons": [each.model_dump(mode="json") for each in comparisons]})
        return
    lines: list[str] = []
    for comparison in comparisons:
        lines += comparison_lines(comparison)
    say("\n".join(lines))


def _read_result(path: Path) -> SuiteResult:
    try:
        return SuiteResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise BadInput(f"{path} is not a result of `ava eval run --json`: {error.errors()[0]['msg']}") from None
