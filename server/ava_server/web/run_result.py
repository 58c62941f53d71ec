"""The result of a run for its page: what the subagent wrote apart from what Ava checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ava_audit.units import micros_from_cents
from ava_server.runs.changes import changed_lines, changes_lines
from ava_server.runs.result import FOUND, LOOKED_AT
from ava_server.service.findings import findings_of, quotes_line
from ava_server.service.markdown import as_markdown
from ava_server.service.render_text import receipts_text
from ava_server.service.responses import RunAnswer
from ava_server.service.run_view import RunView
from ava_server.web.markdown import html, is_web_address

MOST_FINDINGS = 200
_PARTS = {
    "input": "Prompts",
    "cache": "Cache",
    "output": "Answers",
    "thinking": "Thinking",
    "retries": "Retries",
    "plan": "Planning",
    "search": "Web searches",
    "uncosted": "Unknown, booked at the worst case",
}


def result_values(shown: RunView, answer: RunAnswer) -> dict[str, Any] | None:
    """Return what the page shows of a result; None where there is none yet, or it was erased."""
    result = answer.untrusted_result
    if result is None:
        return None
    every = findings_of(answer, result.findings)
    findings = [one for one in every if one.claim not in (LOOKED_AT, FOUND)]
    sources = [
        (title, [one for one in every if one.claim == claim])
        for claim, title in ((LOOKED_AT, "Opened, but not evaluated"), (FOUND, "Found by a search, but not read"))
    ]
    own = result.output is not None and result.output != result.summary
    return {
        "ended": "" if answer.state == "success" else answer.stop_reason or "no reason is known",
        "what_to_do": (answer.error or {}).get("what_to_do", ""),
        "error": result.error_text or "",
        "summary": html(result.summary) if result.summary else "",
        "output": html(as_markdown(result.output)) if own else "",
        "findings": findings[:MOST_FINDINGS],
        "more_findings": max(len(findings) - MOST_FINDINGS, 0),
        "quotes": quotes_line(findings),
        "sources": [(title, found[:MOST_FINDINGS]) for title, found in sources if found],
        "caveats": result.caveats,
        "artifacts": result.artifacts,
        "changes": changes_lines(answer.subagent_id, answer.changes) if answer.changes else [],
        "changed": changed_lines(result.changed or {}) if answer.changes else [],
        "branch": bool(answer.changes and answer.changes.get("branch")),
        "confidence": answer.confidence,
        "tools": receipts_text(answer.tool_receipts) if answer.tool_receipts is not None else "",
        "spent_on": [] if shown.free else spent_on(micros_by_part(answer)),
        "uncosted": answer.uncosted,
        "overrun": answer.overrun,
        "is_web_address": is_web_address,
    }


def micros_by_part(answer: RunAnswer) -> dict[str, int]:
    """Return what a result says that money was spent on, in micro-USD."""
    return {name: micros_from_cents(cents) for name, cents in (answer.cost_by or {}).items()}


def spent_on(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what money was spent on, in words, from micro-USD by part."""
    return [(_PARTS.get(name, name), micros) for name, micros in parts.items() if micros]
