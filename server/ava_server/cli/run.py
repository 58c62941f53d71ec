"""`ava run ROLE "task"`: a run without a host: the same proposal and approval, live progress, and the result.

The process is a server of its own on the data root. If it goes away, the run stays in the log as interrupted, and the
next Ava server of this user resumes it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast, get_type_hints

import anyio
import typer

from ava_audit.errors import AuditError
from ava_audit.rows import WAITING
from ava_audit.units import MICROS_PER_CENT
from ava_roles.errors import RolesError
from ava_server.approval.decide import PersonAnswer, Shown, approval_needs
from ava_server.approval.requests import SpawnArgs
from ava_server.cli import options
from ava_server.cli.app import NOT_APPROVED, refuse_in_subagent
from ava_server.cli.approve import ChosenProposals, check_plan_cap, choose, shown_of
from ava_server.cli.log_access import find_run, open_log, read_settings
from ava_server.cli.options import ended_runs, roles, runs_with_result, tiers
from ava_server.cli.results import check_folder
from ava_server.cli.service_client import Approvals, SessionTransport, open_service, propose, unless_decided
from ava_server.cli.start_question import ShownProposals
from ava_server.cli.terminal import ReaderGone, heading, someone_there, tell, unless_interrupted
from ava_server.cli.wait import FollowedRuns, deliver
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError, BadInput, Refused, ToolMissing, with_advice
from ava_server.core.names import named_role
from ava_server.core.shutdown import prepare_to_run
from ava_server.core.threads import run_async
from ava_server.run_config.config import config_of

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.approval.proposals import Pending
    from ava_server.config.settings import Settings
    from ava_server.render.responses import SpawnAnswer
    from ava_server.service.runtime import Runtime
    from ava_server.service.service import Service

WITHDRAW_S = 10.0
"""Seconds that rejecting what is not started may take."""
MOST_TOGETHER = 20
"""The most subagents of one approval."""
SHOWN_CHARS = 60
"""Characters of a task that name one of several."""
STDIN = "-"
_FOR_ONE = ("retry_of", "task_id", "name")


@dataclass(frozen=True)
class RunRequest:
    """The command line of `ava run`.

    Attributes:
        spawns: The arguments of `spawn_subagent` for each subagent.
        plan_limits: The limits of several together, as `confirm_spawn` takes them.
        most_micros: The most that several may cost together, where their own caps come to more; micro-USD.
        degraded: Accept that tools which the roles need are missing.
        yes: Start without asking.
        capped: The person has named a cap; with `yes`, only what is free starts without one.
        as_json: Print the results as one JSON object.
        out: A file for the results.
        artifacts: A folder for the runs' files.
        steps_file: The file that has the steps of a plan.
        withdraws: What was proposed and is not started is rejected, also after an error or Ctrl-C.
    """

    spawns: tuple[dict[str, Any], ...]
    plan_limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    most_micros: int | None = None
    degraded: bool = False
    yes: bool = False
    capped: bool = True
    as_json: bool = False
    out: Path | None = None
    artifacts: Path | None = None
    withdraws: bool = False
    steps_file: str | None = None


class _Option(NamedTuple):
    """The option of an argument: its help, and what differs from the argument. `read` is given its name and value."""

    help: str
    metavar: str | None = None
    short: str | None = None
    complete: Callable[..., Any] | None = None
    kind: Any = None
    read: Callable[[str, Any], Any] | None = None


def _read_folder(option: str, text: str) -> str | None:
    """Raises BadInput if it does not exist, which only a person on this machine may learn of any folder."""
    if not text:
        return None
    folder = options.absolute_path(option, text)
    with suppress(OSError):  # what else is wrong with it shows when it is opened
        if not os.path.lexists(folder):
            raise BadInput(f"{option}: {folder} does not exist")
    return str(folder)


def _read_names(_option: str, values: list[str]) -> list[str] | None:
    return options.split_names(values)


_OPTIONS: Mapping[str, _Option] = {
    "retry_of": _Option("Repeat an ended run; options given here replace its own.", "S-ID", complete=ended_runs),
    "context": _Option("Background that it needs."),
    "context_from": _Option(
        "Ended runs whose results it may read.", "S-…,…", complete=runs_with_result, read=_read_names
    ),
    "workspace": _Option("Folder that it may read.", "FOLDER", "-w", read=_read_folder),
    "namespace": _Option("Path that a coder may change; repeat it for more.", "PATH"),
    "verify": _Option("Command that a coder's work must pass, e.g. 'pytest -q'.", "COMMAND"),
    "timeout": _Option("The longest time: 90, 90s, 10m, 1h.", "TIME", kind=str, read=options.parse_seconds),
    "max_cost_cents": _Option(
        "The most US dollars it may cost, e.g. 0.50.", "DOLLARS", kind=str, read=options.parse_cents
    ),
    "max_tokens": _Option("The most tokens."),
    "max_iterations": _Option("The most turns."),
    "max_tool_calls": _Option("The most tool calls."),
    "model": _Option("fast, balanced, deep, a model id, or provider:id.", short="-m", complete=tiers),
    "runner": _Option("Who does the work: in-process, or acp:NAME; see ava agents.", "NAME"),
    "system_prompt": _Option("What kind of subagent it is; required for the role custom.", "TEXT"),
    "tools": _Option("Use only these of the role's tools.", "TOOL,…", read=_read_names),
    "blocked_tools": _Option("Do not use these of the role's tools.", "TOOL,…", read=_read_names),
    "plan": _Option("Plan before the work; default: as the role says."),
    "extended_thinking": _Option("Let the model think before it answers; default: as the role says."),
    "project_instructions": _Option("AGENTS.md and CLAUDE.md of the folder; only --no leaves them out."),
    "degraded": _Option("Run even if a tool that the role needs is missing.", kind=bool),
    "output_schema": _Option("JSON schema that the output must match.", "FILE", kind=Path, read=options.read_schema),
    "name": _Option("A label, shown wherever the run is."),
    "task_id": _Option("Your own reference."),
    "rationale": _Option("Why; the proposal shows it."),
}
"""The options for arguments of `spawn_subagent`, in the order of the help; `degraded` is not one of its arguments."""


def _with_spawn_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put an option for each argument of `spawn_subagent` in the place of `spawn`; its type is the argument's."""
    kinds = get_type_hints(SpawnArgs)
    own = signature(command, eval_str=True).parameters.values()
    parameters = [each for each in own if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    for argument, option in _OPTIONS.items():
        parameters.append(_spawn_parameter(argument, option, kinds.get(argument)))
    parameters += [each for each in own if each.kind is Parameter.KEYWORD_ONLY]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _spawn_parameter(argument: str, option: _Option, kind: Any) -> Parameter:
    name = options.spawn_option(argument)
    if option.kind is not None:
        kind = option.kind | None
    elif kind == (bool | None):
        name = f"{name}/--no-{name[2:]}"
    names = [name]
    if option.short is not None:
        names = [option.short, name]
    declared = typer.Option(*names, metavar=option.metavar, help=option.help, autocompletion=option.complete)
    return Parameter(argument, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, declared])


_Role = Annotated[
    str | None, typer.Argument(metavar="ROLE", help="Kind of subagent, e.g. researcher.", autocompletion=roles)
]
_Tasks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK…",
        help="The goal, when it is reached, the form of the answer; - is stdin; several with --parallel.",
    ),
]
_Parallel = Annotated[bool, typer.Option("--parallel", help="Run several tasks together, approved as one plan.")]
_Files = Annotated[
    list[Path] | None, typer.Option("-f", "--file", metavar="FILE", help="A file with a task; repeatable.")
]
_Also = Annotated[
    list[str] | None, typer.Option(metavar="'ROLE: TASK'", help="A further task of another role, in the plan.")
]
_Steps = Annotated[
    Path | None, typer.Option("--steps", metavar="FILE", help="A plan of several steps, in TOML or JSON.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="The result as one JSON object.")]
_Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the result to a file.")]
_Artifacts = Annotated[Path | None, typer.Option(metavar="DIR", help="Copy the files that it delivers to a folder.")]
_Yes = Annotated[bool, typer.Option("-y", "--yes", help="Start without asking; if not free, with --max-cost.")]


@_with_spawn_options
def run_command(
    role: _Role = None,
    task: _Tasks = None,
    parallel: _Parallel = False,
    file: _Files = None,
    also: _Also = None,
    group_max_cost: options.PlanMaxCost = None,
    group_timeout: options.PlanTimeout = None,
    steps: _Steps = None,
    *,
    as_json: _AsJson = False,
    out: _Out = None,
    artifacts: _Artifacts = None,
    yes: _Yes = False,
    **spawn: Any,
) -> None:
    """Propose a subagent, ask whether to start it, and wait for its result.

    Several are one plan: ava run --parallel researcher "task 1" "task 2" --also "code_reviewer: task 3". Limits then
    apply to each, --group-max and --group-timeout to all together, and the exit code is that of the first that did not
    succeed. A plan is a file of steps (--steps): options are of the whole plan, or the defaults of its steps.
    """
    prepare_to_run()
    refuse_in_subagent("ava run")
    degraded = bool(spawn.pop("degraded"))
    common = _read_options(spawn)
    if steps is not None:
        if role is not None or file or also or parallel:
            raise BadInput(
                "--steps: the file has the roles and tasks; leave ROLE, TASK, --file, --also and --parallel out"
            )
        plan = plan_request(steps, common)
        spawns: tuple[dict[str, Any], ...] = (plan,)
        max_cost = plan.get("max_cost_cents")
    else:
        tasks = [*_read_stdin(task or ()), *map(_read_task, file or ())]
        spawns = spawn_requests(role, tasks, also or (), parallel=parallel, common=common)
        max_cost = common["max_cost_cents"]
    request = RunRequest(
        spawns,
        options.parse_plan_limits(group_max_cost, group_timeout),
        degraded=degraded,
        yes=yes,
        capped=max_cost is not None,
        as_json=as_json,
        out=out,
        artifacts=artifacts,
        steps_file=None if steps is None else str(steps.resolve()),
    )
    raise typer.Exit(run_async(_run, checked_settings(request), request))


def _read_options(spawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of `spawn_subagent`; None stays for each that was left out."""
    arguments = dict(spawn)
    for argument, value in spawn.items():
        read = _OPTIONS[argument].read
        if value is not None and read is not None:
            arguments[argument] = read(options.spawn_option(argument), value)
    return arguments


def _read_stdin(tasks: Sequence[str]) -> Sequence[str]:
    """Replace `-` by what stdin holds; questions then use the terminal.

    Raises BadInput if stdin is empty, or meant twice.
    """
    if STDIN not in tasks:
        return tasks
    if tasks.count(STDIN) > 1:
        raise BadInput("TASK: - is given twice, and stdin can be read once")
    content = sys.stdin.buffer.read(options.MOST_FILE_BYTES + 1)
    if len(content) > options.MOST_FILE_BYTES:
        raise BadInput(f"TASK: more than {options.MOST_FILE_BYTES:,} bytes came from stdin; give a shorter text")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise BadInput("TASK: what came from stdin is not UTF-8 text") from None
    if not text:
        raise BadInput("TASK: - is stdin, and nothing came from there; such as: ava run researcher - < task.md")
    with suppress(OSError):  # there may be no terminal; then nobody can be asked
        terminal = os.open("/dev/tty", os.O_RDWR)
        os.dup2(terminal, sys.stdin.fileno())
        os.close(terminal)
    read = list(tasks)
    read[read.index(STDIN)] = text
    return read


def _read_task(file: Path) -> str:
    """Raises BadInput if the file cannot be read, or holds no text."""
    text = options.read_given_text("--file", file).strip()
    if not text:
        raise BadInput(f"--file: {file} is empty")
    return text


def checked_settings(request: RunRequest) -> Settings:
    """Raises BadInput if the results cannot be delivered; Refused if nobody can approve the request here."""
    from ava_server.budget.user_limits import policy_in_force

    if request.plan_limits and len(request.spawns) < 2:
        raise BadInput("--group-max and --group-timeout are for two or more together; give more tasks")
    if request.out is not None and (request.out.is_dir() or not request.out.absolute().parent.is_dir()):
        raise BadInput(f"--out: {request.out} cannot be written: it must be a file in an existing folder")
    if request.artifacts is not None:
        check_folder(request.artifacts)
    settings = read_settings()
    policy, why = policy_in_force(settings, os_user())
    if request.yes and approval_needs("terminal", policy).pin:
        raise Refused(f"--yes: {why}, so only a person who knows the PIN starts anything; nothing was proposed")
    if not request.yes and not someone_there():
        raise Refused(
            "There is no terminal to ask on, so nothing was proposed. Run it in a terminal, or add --yes and"
            " --max-cost."
        )
    return settings


def spawn_requests(
    role: str | None, tasks: Sequence[str], also: Sequence[str], *, parallel: bool, common: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return the arguments of `spawn_subagent` for each subagent: `tasks` for the role, and `also` (each `ROLE: task`).

    `common` has the arguments of all. Raises BadInput if the command line is ambiguous or incomplete.
    """
    common = _without_none(common)
    repeats_only = role is None and not tasks and not also and "retry_of" in common
    if not repeats_only and (role is None or not tasks):
        raise BadInput('Give ROLE and TASK, such as researcher "What does it cost?"; or --retry S-ID alone.')
    if len(tasks) > 1 and not parallel and not also:
        raise BadInput(
            f"TASK: {len(tasks)} were given. Put one task in quotes; to run several together, add --parallel."
        )
    count = len(tasks) + len(also)
    spawns = [{"role": role, "task": task, **common} for task in tasks]
    for text in also:
        also_role, task = _role_and_task(text)
        spawns.append({"role": also_role, "task": task, **common})
    if count > 1:
        _check_several(count, common)
    elif parallel:
        raise BadInput('--parallel: one task was given; give each of them in quotes: researcher "task 1" "task 2"')
    if repeats_only:
        return (common,)
    return tuple(spawns)


def _without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def plan_request(file: Path, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `spawn_subagent` for a plan: those of a file, and the options in place of its own.

    The file is TOML (`[[steps]]`) or JSON: an object with `steps`, or only their list. Raises BadInput if it cannot be
    read, or is neither.
    """
    parsed = _parse_plan(file, options.read_given_text("--steps", file))
    plan: dict[str, Any] = {}
    if isinstance(parsed, dict):
        plan = cast("dict[str, Any]", parsed)
    elif isinstance(parsed, list):
        plan = {"steps": parsed}
    if not isinstance(plan.get("steps"), list):
        raise BadInput(
            f"--steps: {file} has no steps; begin each of them with [[steps]], or give a JSON list of objects"
        )
    return {**plan, **_without_none(common)}


def _parse_plan(file: Path, text: str) -> object:
    """Raises BadInput if it is neither TOML nor JSON, or has a key twice."""
    from ava_server.models.json_text import decode_given

    is_toml = file.suffix.lower() == ".toml" or text.lstrip().startswith("[[")
    kind = "TOML" if is_toml else "JSON"
    try:
        return tomllib.loads(text) if is_toml else decode_given(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"--steps: {file} is not {kind}: {error}; begin each step with [[steps]], or give JSON"
        ) from None


def _check_several(count: int, arguments: Mapping[str, Any]) -> None:
    """Raises BadInput: too many together, or an argument that only one can have."""
    if count > MOST_TOGETHER:
        raise BadInput(f"TASK: {count} were given, and at most {MOST_TOGETHER} are approved together")
    for argument in _FOR_ONE:
        if argument in arguments:
            option = options.spawn_option(argument)
            raise BadInput(f"{option}: it is for one subagent, and {count} were given; leave it out")


def _role_and_task(text: str) -> tuple[str, str]:
    """Raises BadInput if it is not `ROLE: task`."""
    before, _colon, after = text.partition(":")
    role, task = before.strip(), after.strip()
    if not role or " " in role or not task:
        raise BadInput(f'--also: {text[:60]!r} names no role; write it like "code_reviewer: Is the parser safe?"')
    return role, task


async def _run(settings: Settings, request: RunRequest) -> int:
    if not request.as_json:
        heading(settings.paths)
    # The folder that a person names is for this session what a root is for a host's.
    first = request.spawns[0]
    folder = first.get("workspace") or await _folder_of(settings, first.get("retry_of"))
    roots: tuple[str, ...] = ()
    if folder is not None:
        roots = (str(folder),)
    async with open_service(settings, "ava run", asked=not request.yes, runs=True, roots=roots) as (runtime, service):
        service.session.steps_file = request.steps_file
        run_ids = await approve(runtime, service, request)
        if not run_ids:
            return NOT_APPROVED
        if request.yes and settings.runs_on == "workers":
            tell("This process does the run (--yes), no worker: it ends with this command.")
        exit_code = await FollowedRuns(runtime, service, run_ids).until_over(piped=request.out is None)
        if exit_code is not None:
            return exit_code
        return await deliver(
            runtime,
            service.session,
            run_ids,
            "ava run",
            as_json=request.as_json,
            out=request.out,
            artifacts=request.artifacts,
        )


async def _folder_of(settings: Settings, retried: object) -> str | None:
    """Return the folder of the run to repeat, or the first of a plan's steps. Raises BadInput: there is no such run."""
    if not isinstance(retried, str):  # a plan's file may hold anything here; the proposal refuses what is no id
        return None
    async with open_log(settings.paths) as log:
        config = config_of((await find_run(log, retried)).config)
    if config.workspace is not None:
        return config.workspace
    for step in config.steps:
        if step.config.workspace is not None:
            return step.config.workspace
    return None


async def approve(runtime: Runtime, service: Service, request: RunRequest) -> list[str]:
    """Return the ids of the runs, none if they were not approved."""
    client = Approvals(SessionTransport(runtime, service.session))
    await client.check_can_approve(())  # an error comes before any question
    try:
        return await _propose_and_start(service, client, request)
    except BaseException:  # Ctrl-C as well
        if request.withdraws:
            with anyio.CancelScope(shield=True), anyio.move_on_after(WITHDRAW_S):
                await _withdraw(runtime, service, client)
        raise


async def _withdraw(runtime: Runtime, service: Service, client: Approvals) -> None:
    """Reject what this session has proposed and still waits, also a proposal whose answer never came back."""
    session = service.session

    def waiting(view: View) -> list[Shown]:
        runs = view.runs(user=session.user, states=(WAITING,), limit=-1)
        return [Shown("start", run.pending_id) for run in runs if run.session_id == session.id]

    for _ in range(2):  # one that was on its way is in the log once the first rejection is
        shown = await runtime.store.read(waiting)
        if shown:
            await client.decide(shown, PersonAnswer(False))


async def _propose_and_start(service: Service, client: Approvals, request: RunRequest) -> list[str]:
    """Propose the runs, ask, and return the ids of those that start."""
    answers = await _propose_all(service, client, request)
    if len(answers) == 1 and answers[0].status != WAITING:  # the same task_id again: as if it had been started here
        tell(answers[0].message or "")
        return [answers[0].run_id]
    proposals = await client.waiting([answer.pending_id or "" for answer in answers])
    chosen, limits, screens = await _choose(client, proposals, request)
    elsewhere = await client.decided_elsewhere(shown_of(proposals))
    if elsewhere:  # what was decided there holds, and the others are not started in part
        chosen = []
    others = [one.shown for one in proposals if one not in chosen]
    if others:
        await client.decide(others, PersonAnswer(False))
    if not chosen:
        return await _approved_elsewhere(client, proposals, elsewhere)
    from ava_server.approval.proposals import agreement

    decision = await client.decide(shown_of(chosen), agreement(chosen, limits, screens))
    if decision.status != "approved":
        run_ids = await _approved_elsewhere(client, chosen, None)
        if run_ids:
            return run_ids
    decision.expect("approved", "Not started")
    group_id = decision.fields.get("group_id")
    if group_id is not None:
        with suppress(ReaderGone):  # who follows the runs finds out, and cancels them
            tell(f"Approved, as the plan {group_id}.")
    return [proposal.subagent_id for proposal in chosen]


async def _approved_elsewhere(
    client: Approvals, proposals: Sequence[Pending], elsewhere: Mapping[str, str] | None
) -> list[str]:
    """Say what became of proposals that were not started here, and return the runs that were approved elsewhere.

    `elsewhere`: what was decided elsewhere before the answer here, which has rejected the others. None: an approval
    here was refused, whose own reason is left to say unless something was approved elsewhere.
    """
    run_ids = await client.approved(shown_of(proposals))
    if not run_ids and elsewhere is None:
        return []
    reasons = dict(elsewhere or {})
    reasons |= await client.decided_elsewhere([one.shown for one in proposals if one.subagent_id in run_ids])
    if reasons:
        tell("\n".join(reasons.values()))
    if not run_ids:
        tell("Not approved; nothing was started.")
        return []
    others = [one.pending_id for one in proposals if one.pending_id not in reasons]
    if others:
        tell(f"Not started: {', '.join(others)}.")
    tell("Waiting for what was approved; Ctrl-C asks whether to cancel.")
    return run_ids


async def _choose(client: Approvals, proposals: list[Pending], request: RunRequest) -> ChosenProposals:
    """Return what is started; an error rejects all of them.

    Raises Refused if the PIN was not given; BadInput if the cap of all is above the sum of their own, or would be lost.
    """
    limits = dict(request.plan_limits)
    try:
        if request.yes and not request.capped and not all(one.free for one in proposals):
            raise BadInput("--yes skips the question, so --max-cost is required; such as --max-cost 0.50")
        if len(proposals) > 1:
            limits = _limits_of(request, sum(one.max_cost_micros for one in proposals))
        if request.yes:
            ShownProposals(proposals, limits=limits, err=True, asks=False).show()
            return ChosenProposals(proposals, limits, {})
        return await _ask(client, proposals, limits)
    except AvaError:
        await client.decide(shown_of(proposals), PersonAnswer(False))
        raise


async def _ask(client: Approvals, proposals: list[Pending], limits: dict[str, Any]) -> ChosenProposals:
    """Return what the person starts; Ctrl-C means nothing."""

    async def choice() -> ChosenProposals:
        chosen = await choose(proposals, limits, err=True)
        if chosen.proposals:
            await client.unlock(shown_of(chosen.proposals), "Nothing was started.")
        return chosen

    async def choice_here() -> ChosenProposals | None:
        return await unless_decided(client, shown_of(proposals), choice)

    chosen = await unless_interrupted(choice_here, None)
    if chosen is None:
        tell()
        return ChosenProposals([], limits, {})
    return chosen


async def _propose_all(service: Service, client: Approvals, request: RunRequest) -> list[SpawnAnswer]:
    """If one is refused, the others are rejected. Raises AvaError: says which, with the options' names."""
    answers: list[SpawnAnswer] = []
    for spawn in request.spawns:
        try:
            answers.append(await propose(service, spawn, degraded=request.degraded))
        except (AvaError, RolesError, AuditError) as error:
            if answers:
                await client.decide([Shown("start", one.pending_id or "") for one in answers], PersonAnswer(False))
            which = ""
            if len(request.spawns) > 1:
                which = f" (of {named_role(str(spawn.get('role')))}: {_short_task(spawn)}; nothing was started)"
            text = options.name_options(str(error))
            if isinstance(error, BadInput):
                raise BadInput(text + which, needs_key=error.needs_key) from error
            if isinstance(error, Refused):
                hint = ""
                if isinstance(error, ToolMissing):
                    hint = "To run without it: --degraded."
                raise Refused(with_advice(text, hint) + which, needs_key=error.needs_key) from error
            raise
    return answers


def _short_task(spawn: Mapping[str, Any]) -> str:
    task = str(spawn.get("task", ""))
    if len(task) > SHOWN_CHARS:
        task = task[: SHOWN_CHARS - 1] + "…"
    return task


def _limits_of(request: RunRequest, together_micros: int) -> dict[str, Any]:
    """Return the limits of several together. Raises BadInput if their cap is above the sum of their own."""
    try:
        check_plan_cap(request.plan_limits, together_micros)
    except BadInput as error:
        raise BadInput(f"{error}. Nothing was started.") from None
    limits = dict(request.plan_limits)
    if request.most_micros is not None and request.most_micros < together_micros:
        limits["group_max_cost_cents"] = request.most_micros // MICROS_PER_CENT
    return limits
