"""A run as people and orchestrators see it: its status line, its figures, and its result in pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ava_audit.events import Event, SubagentComplete, ToolCall, ToolResult, Who
from ava_audit.rows import QUEUED, RUNNING, WAITING, RunRow
from ava_audit.units import format_usd, iso_utc
from ava_audit.view import View
from ava_roles.wrap import clean
from ava_server.budget.run_config import config_of
from ava_server.core.ids import label
from ava_server.runs.lifecycle import left_to_be_resumed, pause_words, paused, resume_line
from ava_server.service.responses import LastTool, RunAnswer, Untrusted

RESULTS_CHARS = 7_500
"""Characters, as JSON, of the results in one answer; with all that is around them it stays under 10,000."""
AROUND_CHARS = 900
"""Characters of one run in an answer beside its result."""
LEAST_ROOM = 300
INTERRUPTED = "interrupted"
WAITS = "Waits for: "
"""With this begins what stands in `live` of a run that some process looked at and could not take."""

Alive = Callable[[str], bool]
"""Tells whether an instance lives."""


def shown_state(run: RunRow, alive: Alive) -> str:
    """Return a run's state; `interrupted` is not stored: it is a running run whose owner is gone."""
    if run.state == RUNNING and (run.instance is None or not alive(run.instance)):
        return INTERRUPTED
    return run.state


def clock_us(run: RunRow, state: str, now_us: int) -> int:
    """Return up to when a run's clock counts: that of an interrupted one stands still since its owner's last entry."""
    return run.last_us or now_us if state == INTERRUPTED else now_us


def elapsed_s(run: RunRow, now_us: int) -> float:
    """Return a run's active time in seconds, up to now if it is running."""
    if run.state == RUNNING and run.claimed_us is not None:
        return (run.active_us + max(0, now_us - run.claimed_us)) / 1e6
    return run.active_us / 1e6


def tokens_short(tokens: int) -> str:
    """Return a number of tokens as a status line has it: `840 tokens`, `12k tokens`."""
    return f"{tokens} tokens" if tokens < 1_000 else f"{tokens / 1_000:.0f}k tokens"


def status_line(run: RunRow, doing: str, now_us: int) -> str:
    """Return the status line; `doing` is the activity or the state."""
    return f"{label(run)}: {doing} · {figures(run, now_us)}"


def figures(run: RunRow, now_us: int) -> str:
    """Return how much of its caps a run has used: `45 s of 600 s · turn 4 of 20 · 12k tokens · $0.06 of $0.50`."""
    try:
        config = config_of(run.config)
    except ValueError:  # others are shown all the same
        return "a newer Ava has proposed it, and this one cannot read what was approved"
    cost = (
        "free"
        if config.price.get("free")
        else f"{format_usd(run.cost_micros)} of {format_usd(config.max_cost_micros, exact=True)}"
    )
    parts = (
        f"{elapsed_s(run, now_us):.0f} s of {config.timeout_s:g} s",
        f"turn {run.turns} of {config.max_iterations}",
        tokens_short(run.tokens),
        cost,
    )
    return " · ".join(parts)


def activity_of(view: View, run: RunRow) -> str:
    """Return what a run is doing this second: at most 80 characters, control characters out."""
    now = view.live(run.id)
    return clean(now[0])[0].replace("\n", " ")[:80] if now and not now[0].startswith(WAITS) else ""


def carried(who: Who, tool: str, run_id: str) -> Event:
    """Return the entry that says that a run's result was fetched: an answer of ours carried it."""
    return Event(who, ToolResult(tool=tool, success=True, output=f"carried the result of {run_id}"), run_id=run_id)


def run_answer(
    view: View, run: RunRow, alive: Alive, now_us: int, *, result: bool = True, offset: int = 0, room: int | None = None
) -> RunAnswer:
    """Return a run as `check_subagent` shows it.

    Args:
        view: The state that the run was read from.
        run: The run.
        alive: Tells whether an instance lives.
        now_us: Now.
        result: Show the result of an ended run.
        offset: Where a long output goes on.
        room: Characters, as JSON, that the result may take; None shows all of it at once.
    """
    state, at_us = shown_state(run, alive), now_us
    now_us = clock_us(run, state, now_us)
    proposal = view.proposal(run.pending_id) if run.state == WAITING else None
    if proposal is not None and proposal.expires_us <= now_us:
        state = "expired"
    answer = RunAnswer(
        subagent_id=run.id,
        role=run.role,
        name=run.name,
        task_id=run.task_id,
        group_id=run.group_id,
        state=state,
        status_line=status_line(run, state, now_us),
        iteration=run.turns,
        tokens=run.tokens,
        cost_cents=run.cost_micros / 10_000,
        elapsed_seconds=round(elapsed_s(run, now_us), 1),
        stop_reason=run.stop_reason,
        model=run.model,
    )
    if run.state == WAITING:
        answer.pending_id = run.pending_id
        answer.expires_at = iso_utc(proposal.expires_us) if proposal is not None else None
    elif paused(run, now_us):
        answer.not_before, answer.waits_for = iso_utc(run.not_before_us or 0), pause_words(run)
    elif run.state == QUEUED:
        rows = (row for row in view.runs(states=(QUEUED,), limit=-1) if not paused(row, now_us))
        queue = sorted(rows, key=lambda row: (row.queued_us or 0, row.id))
        answer.queue_position = 1 + [row.id for row in queue].index(run.id)
        answer.waits_for = said_to_wait_for(view, run)
    elif state == INTERRUPTED:
        answer.waits_for = _somebody(view, run) if left_to_be_resumed(run, at_us) else said_to_wait_for(view, run)
        _add_last_tool(answer, view)
    elif run.state == RUNNING:
        answer.untrusted_activity = activity_of(view, run) or None
        _add_last_tool(answer, view)
    elif result and run.result_seq is not None:
        entry = view.entry(run.result_seq)
        if entry is not None and isinstance(entry.fact, SubagentComplete):
            _add_result(answer, entry.fact.result, offset, room)
        elif entry is not None and entry.fact is None:
            answer.status = run.state
            answer.status_line = status_line(run, f"{state} (erased: its words are gone for good)", now_us)
    return answer


def said_to_wait_for(view: View, run: RunRow) -> str | None:
    """Return what a run that nobody has waits for, as the process that looked at it last has said."""
    said = view.live(run.id)
    return clean(said[0])[0].removeprefix(WAITS) if said is not None and said[0].startswith(WAITS) else None


def _somebody(view: View, run: RunRow) -> str:
    line = resume_line(view, run)
    how = f' and approving ["{line}"]' if line is not None else ""
    return f'somebody to have it go on: confirm_spawn with pending_ids ["{run.id}"]{how}, or `ava resume {run.id}`'


def _add_last_tool(answer: RunAnswer, view: View) -> None:
    called = view.last_entry(answer.subagent_id, "ToolCall", own=True)
    if called is not None and isinstance(called.fact, ToolCall):
        answer.last_tool = LastTool(name=called.fact.tool, at=iso_utc(called.ts_us))


def since_words(gone_us: int) -> str:
    """Return how long ago something was: `40 min`, `3 h`."""
    minutes = round(gone_us / 60_000_000)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"


def room_for(results: int) -> int:
    """Return the characters, as JSON, that each of so many results may take in one answer."""
    count = max(results, 1)
    return RESULTS_CHARS if count == 1 else max(LEAST_ROOM, RESULTS_CHARS // count - AROUND_CHARS)


def _add_result(answer: RunAnswer, result: dict[str, Any], offset: int, room: int | None) -> None:
    """Put a result into an answer, as much of it as there is room for; `cursor` goes on in the output."""
    fields = "status tokens_used iterations confidence duration_seconds error uncosted overrun cancel_reason"
    for field in fields.split():
        value = result.get(field)
        setattr(answer, field, None if value is False else value)  # 0 is a figure, and equal to False
    untrusted = Untrusted.model_validate(result["untrusted_result"])
    text = untrusted.output if isinstance(untrusted.output, str) else json.dumps(untrusted.output, ensure_ascii=False)
    if offset:
        untrusted = Untrusted(warning=untrusted.warning, output=text)
    else:
        answer.tool_receipts = result.get("tool_receipts") or None
        answer.cost_by = result.get("cost_by") or None
        answer.quotes_checked = result.get("quotes_checked") or None
        answer.changes = result.get("changes")
    answer.untrusted_result = untrusted
    if room is None:
        untrusted.output = text[offset:] if offset else untrusted.output
        return
    _shorten(answer, untrusted, room)
    left = room - sum(json_chars(part) for part in (untrusted.summary, untrusted.caveats, untrusted.findings))
    left -= sum(json_chars(part) for part in (untrusted.error_text, untrusted.changed, answer.changes) if part)
    end = offset + fitting(text[offset : offset + room], max(left, LEAST_ROOM // 2))
    if offset or end < len(text):
        untrusted.output = text[offset:end]
        answer.cursor = str(end) if end < len(text) else None


def _shorten(answer: RunAnswer, untrusted: Untrusted, room: int) -> None:
    """Bring everything but the output into its share of the room, and say what was left out."""
    whole = f"resource ava://runs/{answer.subagent_id}"
    findings, caveats = untrusted.findings, untrusted.caveats
    untrusted.summary = _cut(untrusted.summary, max(room // 4, 60))
    untrusted.findings = _first(findings, room // 4)
    untrusted.caveats = _first([_cut(caveat, max(room // 8, 60)) for caveat in caveats], room // 6)
    if untrusted.error_text:
        untrusted.error_text = _cut(untrusted.error_text, max(room // 6, 120))
    if untrusted.changed:
        untrusted.changed, more = _first_changes(untrusted.changed, room // 3)
        if more:
            untrusted.caveats = [*untrusted.caveats, f"{more} more changed files: ava show {answer.subagent_id} --diff"]
    if answer.changes and answer.changes.get("notes"):
        answer.changes = {**answer.changes, "notes": _first(answer.changes["notes"], room // 6)}
    if answer.quotes_checked:
        kept = len(untrusted.findings)
        answer.quotes_checked = [quote for quote in answer.quotes_checked if quote.get("finding", 0) <= kept]
    lost = {"caveats": len(caveats) - len(untrusted.caveats), "findings": len(findings) - len(untrusted.findings)}
    for what, left in lost.items():
        if left:
            untrusted.caveats = [*untrusted.caveats, f"{left} more {what}: {whole}"]


def _first_changes(changed: dict[str, Any], room: int) -> tuple[dict[str, Any], int]:
    """Return as much of what was changed as there is room for, tests first, and how many files were left out."""
    failing = {"failing": _end(changed["failing"], room // 2)} if changed.get("failing") else {}
    tests: dict[str, Any] = {name: _first(changed[name], room // 6) for name in changed if name.startswith("tests_")}
    files = _first(changed.get("files", []), room - json_chars(failing) - json_chars(tests))
    return {"files": files, **tests, **failing}, len(changed.get("files", [])) - len(files)


def _end(text: str, room: int) -> str:
    """Return the end of a text, as much as there is room for: of an output it says most."""
    return _cut(text[::-1], room)[::-1]


def _first(items: list[Any], room: int) -> list[Any]:
    """Return the first items, as many as there is room for."""
    kept: list[Any] = []
    used = 0
    for item in items:
        used += json_chars(item) + 2
        if used > room:
            break
        kept.append(item)
    return kept


def _cut(text: str, room: int) -> str:
    end = fitting(text, room)
    return text if end == len(text) else text[: max(end - 1, 0)] + "…"


def json_chars(value: Any) -> int:
    """Return how many characters a value has as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def fitting(text: str, room: int) -> int:
    """Return how many of a text's first characters fit, as JSON, into so many characters; at least one does."""
    low, high = min(1, len(text)), len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if json_chars(text[:middle]) - 2 <= room:
            low = middle
        else:
            high = middle - 1
    return low
