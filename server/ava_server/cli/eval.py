"""`ava eval`: a run as a case, recorded runs that are run again without a model, and suites of cases."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_audit.units import counted, micros_from_cents
from ava_extras import load
from ava_server.cli.app import USAGE, in_event_loop, refuse_in_subagent
from ava_server.cli.log_access import checked_root, find_run, open_log, read_settings
from ava_server.cli.options import EndedRunId, Json, absolute_path, parse_cents, roles, tiers
from ava_server.cli.terminal import present, steps_on_terminal
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import AvaError, BadInput, leaves_of
from ava_server.core.names import quote_name
from ava_server.core.shutdown import prepare_to_run

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_server.config.settings import Settings
    from ava_server.evals.recording import Frozen, Recording
    from ava_server.evals.replay import ReplayChange, Replayed
    from ava_server.models.model_choice import ModelSettings

eval_command = typer.Typer(no_args_is_help=True)

AT_ONCE = 8
"""Replays at once: they wait for the same disk."""
DIFFERS = 1
"""Exit code of a replay that differs."""


@eval_command.callback()
def _help() -> None:
    """Cases, recorded runs that are run again without a model call, and suites that compare models."""


_Name = Annotated[str | None, typer.Option("--id", metavar="NAME", help="The case's name; default: the run's id.")]
_Contains = Annotated[
    list[str] | None,
    typer.Option("--contains", metavar="TEXT", help="What the answer has to contain, in place of proposed checks."),
]
_Whole = Annotated[bool, typer.Option("--whole", help="Keep all files of the workspace, not only those it read.")]
_NoWorkspace = Annotated[bool, typer.Option("--no-workspace", help="Keep no files, only the recording.")]


@eval_command.command("add", short_help="Make a case of a run.")
@in_event_loop
async def add_command(
    subagent: EndedRunId,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The folder of the suite.")],
    name: _Name = None,
    contains: _Contains = None,
    whole: _Whole = False,
    no_workspace: _NoWorkspace = False,
    as_json: Json = False,
) -> None:
    """Make a case of an ended run: its task, its recording, the files that it read, and checks from its result.

    Secrets are replaced in all of it. Read the files before you share them.
    """
    from ava_server.config.credentials import Credentials
    from ava_server.evals.recording import freeze

    root = checked_root("ava eval add", show=False)
    credentials = Credentials(read_settings())
    async with open_log(root) as store:
        recording = await _read_run(store, subagent)
    folder = absolute_path("--to", to)

    def work() -> Frozen:
        _ = credentials.secrets, credentials.models  # from now on, their values are hidden
        return freeze(
            recording,
            folder,
            name or recording.run_id,
            credentials.redactor,
            workspace=not no_workspace,
            whole=whole,
            contains=contains or (),
        )

    frozen = await anyio.to_thread.run_sync(work)
    checks = [check.model_dump(mode="json", by_alias=True) for check in frozen.case.checks]
    lines = [f"Case {frozen.case.id}: {frozen.path}", f"Kept: the recording, {_files_text(frozen)}."]
    lines += [f"Left out: {what}." for what in frozen.left_out]
    lines += [_check_text(check) for check in checks]
    fields = {
        "case": str(frozen.path),
        "files": frozen.files,
        "bytes": frozen.bytes,
        "left_out": frozen.left_out,
        "checks": checks,
    }
    present(root, as_json, fields, lines)


def _files_text(frozen: Frozen) -> str:
    """Return what of the run's files is with a case, and that it is source code where it is."""
    files = f"{counted(frozen.files, 'file')} ({frozen.bytes:,} bytes)"
    if frozen.base is None:
        return f"{files} of the workspace"
    commit = frozen.base[:12]
    return f"{files} that commit {commit} tracks. The case holds this source code: read it before you share it"


def _check_text(check: Mapping[str, Any]) -> str:
    """Return the kind of a check, and its first field."""
    kind, *fields = check.values()
    if not fields:
        return f"Check: {kind}"
    return f"Check: {kind} {', '.join(map(str, fields[0]))}".rstrip()


@eval_command.command("replay", short_help="Run recorded runs again: no call, no cost.")
@in_event_loop
async def replay_command(
    target: Annotated[str, typer.Argument(metavar="S-ID|FOLDER", help="A run of the log, or a folder of cases.")],
    role: Annotated[
        Path | None, typer.Option("--role", metavar="FILE", help="This role file; default: the role as it is now.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="This model, at its price of today.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run recorded runs again with the roles, prompts, tools and code of now, and say what differs.

    Answers and results of tools come from the recording: no model and no tool is called, and nothing is written to
    your log. Exit code 0: all the same; 1: something differs; 2 or 30: a recording cannot be run again.
    """
    from ava_server.evals.replay import report_lines

    root = checked_root("ava eval replay", show=False)
    settings = read_settings()
    recordings, faults = await _read_recordings(root, target)
    changes = await anyio.to_thread.run_sync(partial(_changes, root, settings, role, model))
    runs, replay_faults = await _replay_all(recordings, changes)
    faults = sorted([*faults, *replay_faults])
    several = len(recordings) > 1
    different = [name for name, replayed, _remarks in runs if not replayed.same]
    lines: list[str] = []
    for name, replayed, remarks in runs:
        if several and replayed.same:
            continue
        if several:
            lines.append(f"{name}:")
        lines += report_lines(replayed)
        lines += remarks
    lines += [f"{name}: {why}" for name, why in faults]
    if len(recordings) + len(faults) > 1:
        same = len(runs) - len(different)
        lines.append(
            f"{counted(len(runs), 'recorded run')}: {same} the same, {len(different)} differ. No call was made."
        )
    fields = {
        "runs": [{"name": name, "same": replayed.same, **asdict(replayed)} for name, replayed, _remarks in runs],
        "faults": [{"name": name, "fault": why} for name, why in faults],
    }
    present(root, as_json, fields, lines)
    if faults:
        raise typer.Exit(USAGE)
    if different:
        raise typer.Exit(DIFFERS)


Fault = tuple[str, str]
"""The name of a recording that cannot be run again, and why."""
Recordings = tuple[list[tuple[str, "Recording"]], list[Fault]]


async def _replay_all(
    recordings: list[tuple[str, Recording]], changes: Callable[[Recording], tuple[ReplayChange, list[str]]]
) -> tuple[list[tuple[str, Replayed, list[str]]], list[Fault]]:
    """Return what came of each recording, with remarks, in their order; and those that could not be run."""
    from ava_server.evals.replay import Replayer

    replays: dict[int, tuple[str, Replayed, list[str]]] = {}
    faults: list[Fault] = []
    with steps_on_terminal(len(recordings)) as begin:
        async with Replayer.open() as replayer, anyio.create_task_group() as tasks:
            at_once = anyio.CapacityLimiter(AT_ONCE)

            async def one(number: int, name: str, recording: Recording) -> None:
                async with at_once:
                    begin(f"Replaying {name}")
                    try:
                        change, remarks = await anyio.to_thread.run_sync(changes, recording)
                        replays[number] = name, await replayer.replay(recording, change), remarks
                    except Exception as error:  # a file of somebody else may say anything; the others are run as well
                        why = f"it cannot be run again ({next(leaves_of(error))!r}); record it again from its log"
                        faults.append((name, why))

            for number, (name, recording) in enumerate(recordings):
                tasks.start_soon(one, number, name, recording)
    return [replays[number] for number in sorted(replays)], faults


async def _read_recordings(root: DataRoot, target: str) -> Recordings:
    in_folder = await anyio.to_thread.run_sync(_read_folder, Path(target))
    if in_folder is not None:
        return in_folder
    async with open_log(root) as store:
        recording = await _read_run(store, target)
    return [(recording.run_id, recording)], []


def _read_folder(folder: Path) -> Recordings | None:
    """Return the recordings in a folder; None where it is none. Blocking."""
    from ava_server.evals.recording import read_recording

    if not folder.is_dir():
        return None
    recordings: list[tuple[str, Recording]] = []
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            recordings.append((path.stem, read_recording(path)))
        except AvaError as error:
            faults.append((path.stem, str(error)))
    if not recordings and not faults:
        raise BadInput(
            f"{folder}: there is no recorded run in it; `ava eval add S-… --to {shlex.quote(str(folder))}` adds one"
        )
    return recordings, faults


def _changes(
    root: DataRoot, settings: Settings, file: Path | None, model: str | None
) -> Callable[[Recording], tuple[ReplayChange, list[str]]]:
    """Return what gives the changes of a replay, with remarks about them. Blocking."""
    from ava_roles.catalog import read_chosen_file, text_of
    from ava_roles.role import parse_role
    from ava_server.config.credentials import model_settings
    from ava_server.config.role_folders import places_here
    from ava_server.evals.replay import ReplayChange
    from ava_server.models.model_choice import choose

    chosen_role = None
    if file is not None:
        text = text_of(read_chosen_file(file, str(file)), str(file))
        chosen_role = parse_role(text, str(file), file.stem)
    catalog = {role.name: role for role in places_here(root, settings).load().roles}
    models = model_settings(settings)
    choice = None
    if model is not None:
        choice = choose(model, "balanced", _without_keys(models))

    def change(recording: Recording) -> tuple[ReplayChange, list[str]]:
        name = recording.config.role
        role = chosen_role or catalog.get(name)
        remarks: list[str] = []
        if role is None:
            remarks.append(f"There is no role {quote_name(name)} here: it was replayed as it was recorded.")
        elif role.model != recording.role.model and choice is None and role.text != recording.config.role_text:
            remarks.append(f"The role now names the model {role.model}; --model replays with it.")
        if choice is None and _has_another_price(recording, models):
            remarks.append(f"{recording.config.model} has another price by now; --model replays with it.")
        return ReplayChange(role, choice), remarks

    return change


def _without_keys(models: ModelSettings) -> ModelSettings:
    """Return the settings as if every provider had a key: nothing is called, and a price needs none."""
    providers = {name: replace(each, api_key=each.api_key or "none") for name, each in models.providers.items()}
    return replace(models, providers=providers)


def _has_another_price(recording: Recording, models: ModelSettings) -> bool:
    """Blocking."""
    from ava_audit.events import RunStarted
    from ava_server.models.model_choice import price_over
    from ava_server.models.prices import Unpriced

    config = recording.config
    if config.base_url is None:
        return False
    wire = recording.first(RunStarted).parameters["wire"]
    try:
        price = price_over(wire, config.provider, config.model_id, config.base_url, models.prices)
    except Unpriced:
        return False
    then = config.price
    return replace(price, source=then.source, window=then.window, surcharges=then.surcharges) != then


async def _read_run(store: Store | None, run_id: str) -> Recording:
    from ava_server.evals.recording import recording_in

    run = await find_run(store, run_id)
    assert store is not None
    return await store.read(lambda view: recording_in(view, run))


@eval_command.command("run", short_help="Run a suite of cases under one cap, and compare models or roles.")
def run_command(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A folder with cases, or a shipped suite: starter.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--model", metavar="MODEL", help="A column for this model; repeatable.", autocompletion=tiers
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="A column for this role; repeatable.", autocompletion=roles),
    ] = None,
    tries: Annotated[int, typer.Option(min=1, max=50, metavar="K", help="How often each case is tried.")] = 1,
    max_cost: Annotated[
        str | None, typer.Option(metavar="DOLLARS", help="The most that the whole round may cost, e.g. 2.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Begin a new round: everything is run again.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Start without asking; requires --max-cost.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with a picture to a file.")] = None,
    as_json: Json = False,
) -> None:
    """Run what the log lacks of a suite, under one cap that you approve once, and show how its cases went.

    The same command goes on with a round that was interrupted or has reached its cap, adds models and tries to it, and
    shows a finished one again. What the log has is not paid again.
    """
    prepare_to_run()
    refuse_in_subagent("ava eval run")
    suites = load("eval")
    max_cents = parse_cents("--max-cost", max_cost)
    max_micros = None
    if max_cents is not None:
        max_micros = micros_from_cents(max_cents)
    models, role_names = tuple(model or ()), tuple(role or ())
    request = suites.SuiteRequest(
        suite, models, role_names, tries, max_micros, again=again, yes=yes, as_json=as_json, html=html
    )
    raise typer.Exit(suites.run_suite(request))


@eval_command.command("compare", short_help="Compare two results of `ava eval run --json`, case by case.")
def compare_command(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="The earlier result.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND.json", help="The later one.")],
    as_json: Json = False,
) -> None:
    """Show which cases went better and worse, for each column that both have, and whether that may be chance."""
    load("eval").compare_files(first, second, as_json)
