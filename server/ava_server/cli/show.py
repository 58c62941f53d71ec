"""`ava show S-…`: a run from its beginning: what was asked, who approved it, what it did, what it brought."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import heading
from ava_server.cli.completion import all_runs
from ava_server.cli.showing import show_results
from ava_server.cli.terminal import columns, cut, say, say_json, tell, write
from ava_server.cli.views import block, limits_text
from ava_server.core.data_root import find_data_root, home_folder
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.entries import Entry
    from ava_audit.rows import RunRow
    from ava_server.budget.run_config import Texts
    from ava_server.core.data_root import DataRoot
    from ava_server.service.responses import RunAnswer

_CHANNELS = {
    "host_call": "by the host's call (host_call): the log knows of no person's own answer",
    "elicitation": "by a person, asked by the server through the host (elicitation)",
    "terminal": "by a person at the terminal (terminal)",
    "auto": "by the policy auto: nobody was asked",
    "http": "by a person over HTTP (http)",
}


def register(app: typer.Typer) -> None:
    """Add `ava show` to the app."""
    app.command("show", short_help="One run: its task, who approved it, what it did, its result.")(show_command)


def show_command(
    subagent: Annotated[
        str, typer.Argument(metavar="S-ID", help="The subagent, or its proposal (P-…).", autocompletion=all_runs)
    ],
    cost: Annotated[bool, typer.Option("--cost", help="Why it cost what it did: turns, tool outputs, caps.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="What a coder changed, line by line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, with every entry.")] = False,
    utc: Annotated[bool, typer.Option("--utc", help="Times in UTC.")] = False,
) -> None:
    """Show a run: what was asked, who approved it under which caps, what it did, and its result.

    With --cost what it cost, and with --diff what it changed.
    """
    root = find_data_root()
    if cost and diff:
        raise BadInput("--cost and --diff are two screens; give one of them")
    if diff:
        anyio.run(_show_diff, root, subagent, as_json)
    elif cost:
        anyio.run(_show_cost, root, subagent, as_json, utc)
    else:
        anyio.run(_show, root, subagent, as_json, utc)


async def _show_cost(root: DataRoot, given: str, as_json: bool, utc: bool) -> None:
    from ava_audit.store.locks import Instances
    from ava_server.cli.log_access import find_run, open_log, whole_answer
    from ava_server.cli.show_cost import cost_json, cost_screen
    from ava_server.runs.costs import costs_of

    async with open_log(root) as store:
        found = await find_run(store, given)
        assert store is not None
        run, answer = await whole_answer(store, found.id, Instances(root.instances).alive)
        costs = await store.read(lambda view: costs_of(run, view.entries(run.id), view.of_type("SettingsChanged")))
    if as_json:
        say_json({"data_root": str(root.path), **cost_json(run, answer, costs)})
    else:
        heading(root)
        say("\n".join(cost_screen(run, answer, costs, utc)))


async def _show_diff(root: DataRoot, given: str, as_json: bool) -> None:
    from ava_audit.store.locks import Instances
    from ava_server.cli.log_access import find_run, open_log, whole_answer
    from ava_server.cli.show_diff import changes_in, diff_of

    async with open_log(root) as store:
        found = await find_run(store, given)
        assert store is not None
        run, answer = await whole_answer(store, found.id, Instances(root.instances).alive)
    changes = changes_in(run, answer)
    text = await anyio.to_thread.run_sync(diff_of, changes, home_folder())
    if as_json:
        say_json({"data_root": str(root.path), "subagent_id": run.id, "changes": changes, "diff": text})
    else:
        heading(root)
        write(text.rstrip("\n"))


async def _show(root: DataRoot, given: str, as_json: bool, utc: bool) -> None:
    from ava_audit.entries import mirror_line
    from ava_audit.errors import StoreUnavailable
    from ava_audit.store.locks import Instances
    from ava_server.approval.proposals import texts_of
    from ava_server.cli.log_access import find_run, note_fetched, open_log, terminal_session, whole_answer

    async with open_log(root) as store:
        found = await find_run(store, given)
        assert store is not None
        run, answer = await whole_answer(store, found.id, Instances(root.instances).alive)
        entries = await store.read(lambda view: view.entries(run.id))
        texts = await store.read(lambda view: texts_of(view, run))
        if as_json:
            lines = await store.read(lambda view: [mirror_line(row) for row in view.rows("run_id = ?", run.id)])
            say_json(
                {
                    "data_root": str(root.path),
                    "run": answer.model_dump(mode="json", exclude_none=True),
                    "asked": texts.model_dump(mode="json", exclude_none=True) if texts else None,
                    "entries": [json.loads(line) for line in lines],
                }
            )
        else:
            heading(root)
            say("\n".join(_screen(run, answer, texts, entries, utc)))
            show_results([answer])
        if answer.untrusted_result is not None:  # an erased one is no news to anybody
            try:
                await note_fetched(store, terminal_session(), "ava show", run)
            except StoreUnavailable as error:  # it was shown all the same
                tell(f"That it was shown is not on the record: {error}")


def _screen(run: RunRow, answer: RunAnswer, texts: Texts | None, entries: list[Entry], utc: bool) -> list[str]:
    from ava_server.core.ids import label
    from ava_server.service.logs import entry_line, is_trouble

    terminal = sys.stdout.isatty()
    width = columns() if terminal else 200
    names = {run.id: run.name} if run.name else {}
    lines = [f"{label(run)}: {answer.state}", ""]
    lines += _asked(run, texts, utc)
    lines += _decided(run, answer.state, entries, utc)
    lines += ["", "What happened:"]
    for entry in entries:
        line = entry_line(entry, names=names, utc=utc, width=1_000 if terminal else width)
        lines.append(line if not terminal or is_trouble(entry) else cut(line, width))
    return [*lines, "", "Result:" if run.ended else "So far:"]


def _asked(run: RunRow, texts: Texts | None, utc: bool) -> list[str]:
    from ava_audit.units import format_ts

    asked = f"Asked {format_ts(run.created_us, utc)} by {run.user_id} ({run.session_id})"
    if texts is None:
        return [f"{asked}: (erased)"]
    parts = block(asked, texts.task)
    for title, text in (("Context", texts.context), ("Specialisation", texts.system_prompt), ("Why", texts.rationale)):
        if text:
            parts += block(title, text)
    if run.task_id:
        parts.append(f"task_id: {run.task_id}")
    return parts


def _decided(run: RunRow, state: str, entries: list[Entry], utc: bool) -> list[str]:
    from ava_audit.events import SpawnDecided
    from ava_audit.units import format_ts
    from ava_server.budget.run_config import config_of

    config = config_of(run.config)
    lines: list[str] = []
    for entry in entries:
        match entry.fact:
            case SpawnDecided(decision=decision) as fact:
                how = _CHANNELS.get(fact.channel or "", "by nobody: its time was over" if decision == "expired" else "")
                lines.append(f"{decision.capitalize()} {format_ts(entry.ts_us, utc)} {how}".rstrip())
                if fact.changes:
                    lines.append(f"Changed by the approval: {_changes(fact.changes)}")
                if fact.group_id:
                    lines.append(f"Approved together with others as {fact.group_id}")
            case _:
                pass
    if not lines:
        lines = [f"Not decided: {run.pending_id} {'has expired' if state == 'expired' else 'waits for approval'}"]
    lines.append(f"Caps: {limits_text(config)}")
    lines.append(f"Model: {config.model}. It {config.reach}.")
    return lines


def _changes(changes: dict[str, Any]) -> str:
    """Return what an approval has lowered, as people say it."""
    from ava_audit.units import format_usd
    from ava_server.approval.summary import minutes

    said: list[str] = []
    for name, value in changes.items():
        match name:
            case "max_cost_micros":
                said.append(f"at most {format_usd(value, exact=True)}")
            case "timeout_s":
                said.append(f"at most {minutes(value)}")
            case "tools":
                said.append(f"only the tools {', '.join(value) or 'that every run has'}")
            case _:
                said.append(f"{name} {value:,}")
    return ", ".join(said)
