"""A run as people and orchestrators see it: its status line, its figures, and its result in pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ava_audit.events import Event, SubagentComplete, ToolCall, ToolResult, Who
from ava_audit.money import format_usd
from ava_audit.times import iso_utc
from ava_audit.view import QUEUED, RUNNING, WAITING, RunRow, View
from ava_roles.wrap import clean
from ava_server.answers import LastTool, RunAnswer, Untrusted
from ava_server.run_config import RunConfig

PAGE_CHARS = 5_000
"""Characters of output that one answer carries; with everything around it an answer stays under 10,000."""
FINDINGS_CHARS = 2_400
INTERRUPTED = "interrupted"

Alive = Callable[[str], bool]
"""Tells whether an instance lives."""


def shown_state(run: RunRow, alive: Alive) -> str:
    """Return a run's state; `interrupted` is not stored: it is a running run whose owner is gone."""
    if run.state == RUNNING and (run.instance is None or not alive(run.instance)):
        return INTERRUPTED
    return run.state


def elapsed_s(run: RunRow, now_us: int) -> float:
    """Return a run's active time in seconds, up to now if it is running."""
    if run.state == RUNNING and run.claimed_us is not None:
        return (run.active_us + max(0, now_us - run.claimed_us)) / 1e6
    return run.active_us / 1e6


def tokens_short(tokens: int) -> str:
    """Return a number of tokens as a status line has it: `840 tokens`, `12k tokens`."""
    return f"{tokens} tokens" if tokens < 1_000 else f"{tokens / 1_000:.0f}k tokens"


def label(run: RunRow) -> str:
    """Return how a run is called: role and id, with its name where it has one."""
    return f"{run.role} {run.name} ({run.id})" if run.name else f"{run.role} {run.id}"


def status_line(run: RunRow, doing: str, now_us: int) -> str:
    """Return the status line; `doing` is the activity or the state."""
    return f"{label(run)}: {doing} · {figures(run, now_us)}"


def figures(run: RunRow, now_us: int) -> str:
    """Return how much of its caps a run has used: `45 s of 600 s · turn 4 of 20 · 12k tokens · $0.06 of $0.50`."""
    config = RunConfig.model_validate_json(run.config)
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
    return clean(now[0])[0].replace("\n", " ")[:80] if now else ""


def carried(who: Who, tool: str, run_id: str) -> Event:
    """Return the entry that says that a run's result was fetched: an answer of ours carried it."""
    return Event(who, ToolResult(tool=tool, success=True, output=f"carried the result of {run_id}"), run_id=run_id)


def run_answer(
    view: View, run: RunRow, alive: Alive, now_us: int, *, result: bool = True, offset: int = 0, whole: bool = False
) -> RunAnswer:
    """Return a run as `check_subagent` shows it.

    Args:
        view: The state that the run was read from.
        run: The run.
        alive: Tells whether an instance lives.
        now_us: Now.
        result: Show the result of an ended run.
        offset: Where a long output goes on.
        whole: Show all of the result at once.
    """
    state = shown_state(run, alive)
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
        proposal = view.proposal(run.pending_id)
        if proposal is not None:
            answer.expires_at = iso_utc(proposal.expires_us)
            if proposal.expires_us <= now_us:
                answer.state = "expired"
    elif run.state == QUEUED:
        queue = sorted(view.runs(states=(QUEUED,)), key=lambda row: row.queued_us or 0)
        answer.queue_position = 1 + [row.id for row in queue].index(run.id)
    elif run.state == RUNNING:
        answer.untrusted_activity = activity_of(view, run) or None
        called = view.last_entry(run.id, "ToolCall")
        if called is not None and isinstance(called.fact, ToolCall):
            answer.last_tool = LastTool(name=called.fact.tool, at=iso_utc(called.ts_us))
    elif result and run.result_seq is not None:
        entry = view.entry(run.result_seq)
        if entry is not None and isinstance(entry.fact, SubagentComplete):
            _add_result(answer, entry.fact.result, offset, whole=whole)
    return answer


def _add_result(answer: RunAnswer, result: dict[str, Any], offset: int, *, whole: bool) -> None:
    """Put a result into an answer, as much of it as one answer carries; `cursor` goes on in the output."""
    for field in ("confidence", "duration_seconds", "error", "artifacts", "uncosted", "overrun"):
        value = result.get(field)
        setattr(answer, field, value if value not in (False, []) else None)
    untrusted = Untrusted.model_validate(result["untrusted_result"])
    page, most = (10**9, 10**9) if whole else (PAGE_CHARS, FINDINGS_CHARS)
    text = untrusted.output if isinstance(untrusted.output, str) else json.dumps(untrusted.output, ensure_ascii=False)
    if offset or len(text) > page:
        untrusted.output = text[offset : offset + page]
        if offset + page < len(text):
            answer.cursor = str(offset + page)
    if offset:
        answer.untrusted_result = Untrusted(warning=untrusted.warning, output=untrusted.output)
        return
    answer.tool_receipts = result.get("tool_receipts") or None
    answer.cost_by = result.get("cost_by") or None
    answer.quotes_checked = result.get("quotes_checked") or None
    kept: list[dict[str, Any]] = []
    used = 0
    for finding in untrusted.findings:
        used += len(json.dumps(finding, ensure_ascii=False))
        if used > most:
            left = len(untrusted.findings) - len(kept)
            untrusted.caveats = [*untrusted.caveats, f"{left} more findings: resource ava://runs/{answer.subagent_id}"]
            break
        kept.append(finding)
    untrusted.findings = kept
    if answer.quotes_checked:
        answer.quotes_checked = answer.quotes_checked[: max(len(kept), 1)]
    answer.untrusted_result = untrusted
