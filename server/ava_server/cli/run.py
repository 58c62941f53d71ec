"""`ava run ROLE "task"`: a run without a host: the same proposal, the same approval, live progress, and the result.

The process is a server of its own on the data root. When it goes away, the run stays in the log as interrupted, and
the next Ava server of this user goes on with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from ava_server.cli.order import Order, spawns_of
from ava_server.cli.terminal import someone_there
from ava_server.core.errors import BadInput, Refused


def register(app: typer.Typer) -> None:
    """Add `ava run` to the app."""
    app.command("run", short_help="Propose a subagent, ask whether to start it, bring its result.")(run_command)


def run_command(
    role: Annotated[
        str | None, typer.Argument(metavar="ROLE", show_default=False, help="Kind of subagent, e.g. researcher.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK…",
            show_default=False,
            help="The goal, what counts as done, the form of the answer; several with --parallel.",
        ),
    ] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Run several tasks together, approved as one group.")
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="'ROLE: TASK'", show_default=False, help="Together with it, a task of another role."),
    ] = None,
    group_max_cost: Annotated[
        str | None,
        typer.Option("--group-max", metavar="DOLLARS", show_default=False, help="What several may cost together."),
    ] = None,
    group_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="How long several may take together."),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="S-ID", show_default=False, help="Repeat an ended run; what is given beside it counts instead."
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(show_default=False, help="Background that it needs.")] = None,
    context_from: Annotated[
        list[str] | None,
        typer.Option(metavar="S-…,…", show_default=False, help="Ended runs whose results it may read."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="FOLDER", show_default=False, help="Folder that it may read.")
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", show_default=False, help="What a coder may change; once for each path."),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", show_default=False, help="What a coder's work must pass, e.g. 'pytest -q'."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="At most so long: 90, 90s, 10m, 1h.")
    ] = None,
    max_cost: Annotated[
        str | None, typer.Option(metavar="DOLLARS", show_default=False, help="At most so many US dollars, e.g. 0.50.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(show_default=False, help="At most so many tokens.")] = None,
    max_iterations: Annotated[int | None, typer.Option(show_default=False, help="At most so many turns.")] = None,
    max_tool_calls: Annotated[int | None, typer.Option(show_default=False, help="At most so many tool calls.")] = None,
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
    extended_thinking: Annotated[
        bool | None,
        typer.Option(
            "--extended-thinking/--no-extended-thinking",
            show_default=False,
            help="The model thinks before it answers; else as the role says.",
        ),
    ] = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Run it also without a tool that its role needs and that is not there.")
    ] = False,
    output_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="JSON schema that the output must match."),
    ] = None,
    name: Annotated[str | None, typer.Option(show_default=False, help="A label, shown wherever the run is.")] = None,
    task_id: Annotated[str | None, typer.Option(show_default=False, help="Your own reference.")] = None,
    rationale: Annotated[str | None, typer.Option(show_default=False, help="Why; the proposal shows it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the result into a file.")
    ] = None,
    artifacts: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Copy the files that it hands over into a folder."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Start it without asking; only with --max-cost beside it.")
    ] = False,
) -> None:
    """Propose a subagent, ask whether to start it, and wait for its result.

    Several are one group: ava run --parallel researcher "task 1" "task 2" --also "code_reviewer: task 3". Limits are
    then those of each, --group-max and --group-timeout those of all together, and the exit code is that of the first
    that did not succeed.
    """
    from ava_server.cli.asked import cents_of, listed, schema_in, seconds_of
    from ava_server.config.pin import policy_in_force
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import hide
    from ava_server.service.runtime import refuse_recursion

    hide()
    if why := refuse_recursion():
        raise BadInput(f"ava run: {why}.")
    if yes and max_cost is None:
        raise BadInput("--yes: nobody is asked then, so say what it may cost at most: --max-cost 0.50")
    common = {
        "retry_of": retry,
        "context": context,
        "context_from": listed(context_from),
        "workspace": str(Path(workspace).expanduser().absolute()) if workspace else None,
        "namespace": namespace or None,
        "verify": verify,
        "timeout": seconds_of("--timeout", timeout),
        "max_cost_cents": cents_of("--max-cost", max_cost),
        "max_tokens": max_tokens,
        "max_iterations": max_iterations,
        "max_tool_calls": max_tool_calls,
        "model": model,
        "system_prompt": system_prompt,
        "tools": listed(tools),
        "blocked_tools": listed(blocked_tools),
        "plan": plan,
        "extended_thinking": extended_thinking,
        "output_schema": schema_in("--output-schema", output_schema),
        "name": name,
        "task_id": task_id,
        "rationale": rationale,
    }
    group = {
        "group_max_cost_cents": cents_of("--group-max", group_max_cost),
        "group_timeout": seconds_of("--group-timeout", group_timeout),
    }
    order = Order(
        spawns_of(role, task or (), also or (), parallel=parallel, common=common),
        {name: value for name, value in group.items() if value is not None},
        degraded=degraded,
        yes=yes,
        as_json=as_json,
        out=out,
        artifacts=artifacts,
    )
    order.check()
    settings = load_settings()
    if yes and policy_in_force(settings) == "human":
        why = 'approval = "human"' if settings.approval == "human" else "there is an approval PIN"
        raise Refused(f"--yes: {why}, so only a person who knows the PIN starts anything; nothing was proposed")
    if not yes and not someone_there():
        raise Refused(
            "There is no terminal to ask on, so nothing was proposed. Run it in a terminal, or add --yes and"
            " --max-cost."
        )
    from ava_server.cli.running import run

    raise typer.Exit(anyio.run(run, settings, order))
