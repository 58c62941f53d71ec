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
from ava_server.approval.proposals import texts_of
from ava_server.approval.requests import SpawnArgs
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT, parse_id

_IDS = ("subagent_id", "subagent_ids", "pending_id", "pending_ids", "group_id", "changes")
_NOTICE = re.compile(r"^Notice: .*$", re.MULTILINE)


@dataclass(frozen=True)
class _Wanted:
    ids: frozenset[str]
    spoken: re.Pattern[str]
    task: str | None


def quoting_entries(view: View, run: RunRow) -> tuple[int, ...]:
    """Return the `seq` of the entries that quote a run without naming it in their header.

    An entry that quotes several runs counts too: its content can only be erased as a whole.
    """
    texts = texts_of(view, run)
    ids = frozenset(part for part in (run.id, run.pending_id, run.plan_id) if part)
    own = "|".join(re.escape(part) for part in (run.id, run.pending_id))
    wanted = _Wanted(ids, re.compile(rf"(?<!\w)(?:{own})(?!\w)"), texts.task if texts else None)
    mine = _call_that_made(view, run)
    found = [entry.seq for entry in _own_entries(view, run) if entry.seq == mine or _quotes(view, entry, run, wanted)]
    return tuple(dict.fromkeys([*found, *_entries_of_plan(view, run)]))


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


def _own_entries(view: View, run: RunRow) -> Iterator[Entry]:
    """Yield this user's calls of the six tools that name no run in their header, and their answers."""
    named = [part.partition("-")[2] for part in (run.id, run.pending_id, run.plan_id) if part]
    likely = " OR ".join(["content LIKE ?"] * (len(named) + 1))
    where = (
        "agent_id = ? AND run_id IS NULL AND type IN ('ToolCall', 'ToolResult') AND user_id = ? AND content IS NOT NULL"
        f" AND ({likely})"
    )
    for row in view.rows(where, AGENT, run.user_id, *(f"%{part}%" for part in (SpawnArgs.tool, *named))):
        yield entry_of(row[:-1])


def _quotes(view: View, entry: Entry, run: RunRow, wanted: _Wanted) -> bool:
    match entry.fact:
        case ToolCall(tool=tool) as call:
            given = _arguments(call)
            if tool != SpawnArgs.tool:  # check_subagent quotes nothing
                return tool != "check_subagent" and bool(wanted.ids & set(_ids_in(given)))
            same = wanted.task is not None and given.get("task") == wanted.task
            return same and _made(view, entry, run) in (run.id, None)
        case ToolResult(tool=tool, output=output):
            if tool == SpawnArgs.tool:  # another run is named only where the proposal repeats one
                return f"pending_id: {run.pending_id} " in output
            return wanted.spoken.search(_NOTICE.sub("", output)) is not None
        case _:
            return False


def _ids_in(args: dict[str, Any]) -> Iterator[str]:
    for name in _IDS:
        value = args.get(name)
        for given in cast("list[Any]", value) if isinstance(value, list | dict) else [value]:
            for field in ("subagent_id", "pending_id", "group_id"):
                try:
                    yield parse_id(field, str(given))
                except BadInput:
                    continue


def _call_that_made(view: View, run: RunRow) -> int | None:
    """Return the `seq` of the call that proposed a run; the call may have left the task out (retry_of)."""
    proposed = next(view.rows("run_id = ? AND type = 'SpawnProposed'", run.id, limit=1), None)
    if proposed is None:
        return None
    where = (
        "agent_id = ? AND run_id IS NULL AND type = 'ToolCall' AND session_id = ? AND seq < ? AND content IS NOT NULL"
    )
    calls = [entry_of(row[:-1]) for row in view.rows(where, AGENT, run.session_id, proposed[0])]
    for call in reversed(calls):
        if isinstance(call.fact, ToolCall) and call.fact.tool == SpawnArgs.tool and _fits(view, call, run):
            return call.seq if _made(view, call, run) == run.id else None
    return None


def _made(view: View, call: Entry, run: RunRow) -> str | None:
    """Return the first run that was proposed after a call in its session and fits it, or None."""
    where = "agent_id = ? AND type = 'SpawnProposed' AND session_id = ? AND seq > ?"
    for row in view.rows(where, AGENT, call.who.session_id, call.seq):
        fact = entry_of(row[:-1]).fact
        if isinstance(fact, SpawnProposed):
            other = run if fact.subagent_id == run.id else view.run(fact.subagent_id)
            if other is not None and _fits(view, call, other):
                return other.id
    return None


def _fits(view: View, call: Entry, run: RunRow) -> bool:
    assert isinstance(call.fact, ToolCall)
    texts = texts_of(view, run)
    return texts is not None and _arguments(call.fact).get("task") in (None, texts.task)


def _arguments(call: ToolCall) -> dict[str, Any]:
    args: object = call.args
    return cast("dict[str, Any]", args) if isinstance(args, dict) else {}
