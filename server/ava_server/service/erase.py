"""Finds the orchestrator's entries that quote a run without naming it in their header, for erasing the run.

A call of `spawn_subagent` has the task before the run exists, and one answer may carry several runs. What a plan's run
handed over is in the plan's result too, and in the tasks of later steps. An entry that only names a run (a notice that
it ended, a list of ids) stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from ava_audit.entries import Entry, entry_of
from ava_audit.events import SpawnProposed, ToolCall, ToolResult
from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_server.approval.proposals import brief_of
from ava_server.approval.requests import SpawnArgs
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT, parse_id

_ID_ARGUMENTS = ("subagent_id", "subagent_ids", "pending_id", "pending_ids", "group_id", "changes")
_NOTICE = re.compile(r"^Notice: .*$", re.MULTILINE)


@dataclass(frozen=True)
class _Traces:
    """How other entries quote a run: ids in arguments, ids in the text of an answer, and its task."""

    ids: frozenset[str]
    in_text: re.Pattern[str]
    task: str | None


def quoting_entries(view: View, run: RunRow) -> tuple[int, ...]:
    """Return the `seq` of the entries that quote a run without naming it in their header.

    An entry that quotes several runs counts too: its content can only be erased as a whole.
    """
    brief = brief_of(view, run)
    ids = frozenset(id for id in (run.id, run.pending_id, run.plan_id) if id)
    own_ids = f"{re.escape(run.id)}|{re.escape(run.pending_id)}"
    traces = _Traces(ids, re.compile(rf"(?<!\w)(?:{own_ids})(?!\w)"), brief.task if brief else None)
    proposing_call = _proposing_call(view, run)
    seqs: list[int] = []
    for entry in _calls_of_user(view, run):
        if entry.seq == proposing_call or _quotes(view, entry, run, traces):
            seqs.append(entry.seq)
    seqs.extend(_entries_of_plan(view, run))
    return tuple(dict.fromkeys(seqs))


def _entries_of_plan(view: View, run: RunRow) -> Iterator[int]:
    """Yield the `seq` of what carries the result of a plan's run: the plan's result, and the tasks of later steps."""
    if run.step is None or run.plan_id is None:
        return
    result = view.last_entry(run.plan_id, "SubagentComplete")
    if result is not None and result.content is not None:
        yield result.seq
    for row in view.step_runs(run.plan_id):
        other = view.run(row.id)
        if other is None or other.task_seq is None:
            continue
        earlier = json.loads(other.config).get("context_from") or ()
        task = view.entry(other.task_seq)
        if task is not None and task.content is not None and any(one.get("id") == run.id for one in earlier):
            yield task.seq


def _calls_of_user(view: View, run: RunRow) -> Iterator[Entry]:
    """Yield this user's calls of the six tools that name no run in their header, and their answers.

    Only those that may quote the run: their content has `spawn_subagent`, or an id of the run without its prefix.
    """
    patterns = [f"%{SpawnArgs.tool}%"]
    for id in (run.id, run.pending_id, run.plan_id):
        if id:
            patterns.append(f"%{id.partition('-')[2]}%")
    likely = " OR ".join(["content LIKE ?"] * len(patterns))
    where = (
        "agent_id = ? AND run_id IS NULL AND type IN ('ToolCall', 'ToolResult') AND user_id = ? AND content IS NOT NULL"
        f" AND ({likely})"
    )
    for row in view.rows(where, AGENT, run.user_id, *patterns):
        yield entry_of(row[:-1])


def _quotes(view: View, entry: Entry, run: RunRow, traces: _Traces) -> bool:
    match entry.fact:
        case ToolCall(tool=SpawnArgs.tool) as call:
            if traces.task is None or _arguments_of(call).get("task") != traces.task:
                return False
            return _proposed_run(view, entry, run) in (run.id, None)
        case ToolCall(tool="check_subagent"):  # quotes nothing
            return False
        case ToolCall() as call:
            return not traces.ids.isdisjoint(_ids_in(_arguments_of(call)))
        case ToolResult(tool=SpawnArgs.tool, output=output):
            # Another run is named only where the proposal repeats one.
            return f"pending_id: {run.pending_id} " in output
        case ToolResult(output=output):
            return traces.in_text.search(_NOTICE.sub("", output)) is not None
        case _:
            return False


def _ids_in(arguments: dict[str, Any]) -> Iterator[str]:
    for name in _ID_ARGUMENTS:
        value = arguments.get(name)
        texts = cast("list[Any]", value) if isinstance(value, list | dict) else [value]
        for text in texts:
            for field in ("subagent_id", "pending_id", "group_id"):
                try:
                    yield parse_id(field, str(text))
                except BadInput:
                    continue


def _proposing_call(view: View, run: RunRow) -> int | None:
    """Return the `seq` of the call that proposed a run; the call may have left the task out (retry_of)."""
    proposed = next(view.rows("run_id = ? AND type = 'SpawnProposed'", run.id, limit=1), None)
    if proposed is None:
        return None
    where = (
        "agent_id = ? AND run_id IS NULL AND type = 'ToolCall' AND session_id = ? AND seq < ? AND content IS NOT NULL"
    )
    calls = [entry_of(row[:-1]) for row in view.rows(where, AGENT, run.session_id, proposed[0])]
    for call in reversed(calls):
        if isinstance(call.fact, ToolCall) and call.fact.tool == SpawnArgs.tool and _fits(view, call.fact, run):
            return call.seq if _proposed_run(view, call, run) == run.id else None
    return None


def _proposed_run(view: View, call: Entry, run: RunRow) -> str | None:
    """Return the first run that was proposed after a call in its session and fits it, or None."""
    assert isinstance(call.fact, ToolCall)
    where = "agent_id = ? AND type = 'SpawnProposed' AND session_id = ? AND seq > ?"
    for row in view.rows(where, AGENT, call.who.session_id, call.seq):
        fact = entry_of(row[:-1]).fact
        if isinstance(fact, SpawnProposed):
            other = run if fact.subagent_id == run.id else view.run(fact.subagent_id)
            if other is not None and _fits(view, call.fact, other):
                return other.id
    return None


def _fits(view: View, call: ToolCall, run: RunRow) -> bool:
    brief = brief_of(view, run)
    return brief is not None and _arguments_of(call).get("task") in (None, brief.task)


def _arguments_of(call: ToolCall) -> dict[str, Any]:
    args: object = call.args
    return cast("dict[str, Any]", args) if isinstance(args, dict) else {}
