"""Runs as people read them on a terminal: plain words, sources with what became of each quote, and exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.answers import RunAnswer

ENDING_CODES = {
    "success": 0,
    "rejected": 10,
    "expired": 10,
    "superseded": 10,
    "cost_exceeded": 11,
    "token_exceeded": 11,
    "timeout": 12,
    "iteration_limit": 13,
    "tool_limit": 13,
    "guardrail": 14,
    "cancelled": 15,
    "abandoned": 16,
}
"""Exit codes by ending; of an error the kind decides."""
_CODES_OF_ERRORS = {"verification": 21, "workshop": 30, "internal": 70, "store": 70}
_MODEL = 20
_VERDICTS = {
    "found": "found, word for word, in what the tools returned",
    "near": "nearly found in what the tools returned",
    "not_found": "NOT found in what the tools returned",
}


def exit_code(run: RunRow) -> int:
    """Return the exit code of a command that waited for this run's end."""
    if run.state == "error":
        return _CODES_OF_ERRORS.get(run.error_kind or "", _MODEL)
    return ENDING_CODES[run.state]


def result_text(run: RunAnswer, *, brief: bool = False) -> str:
    """Return an ended run's result for people; of one that goes on, what it does and waits for.

    Args:
        run: The run with its result.
        brief: Leave the output out where the findings say it, as those of the offline reader always do.
    """
    from ava_server.changes import changed_lines, changes_lines

    lines = [run.status_line]
    if run.state not in ENDING_CODES and run.state != "error":
        return "\n".join([*lines, *([f"Waits for: {run.waits_for}"] if run.waits_for else [])])
    if run.state != "success":
        lines.append(f"Ended as {run.state}: {run.stop_reason or 'no reason is known'}. It may be incomplete.")
    result = run.untrusted_result
    if result is None:
        return "\n".join(lines)
    if result.error_text:
        lines.append(f"Error: {result.error_text}")
    if run.error and run.error.get("what_to_do"):
        lines.append(f"What to do: {run.error['what_to_do']}")
    lines += ["", result.summary]
    output = (
        result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False, indent=2)
    )
    repeats = bool(result.findings) and (brief or (run.model or "").startswith("offline/"))
    if result.output is not None and output != result.summary and not repeats:
        lines += ["", output]
    if result.findings:
        lines += ["", "Findings, each with its source:", *_findings(run)]
    if result.caveats:
        lines += ["", *(f"Caveat: {caveat}" for caveat in result.caveats)]
    if run.changes:
        lines += ["", *changes_lines(run.subagent_id, run.changes), *changed_lines(result.changed or {})]
    lines += ["", *_figures(run)]
    return "\n".join(lines)


def _findings(run: RunAnswer) -> list[str]:
    lines: list[str] = []
    verdicts = {quote.get("finding"): str(quote.get("verdict")) for quote in run.quotes_checked or ()}
    for number, finding in enumerate(run.untrusted_result.findings if run.untrusted_result else (), 1):
        lines.append(f"{number}. {finding.get('claim', '')}")
        if finding.get("quote"):
            lines += _indented(f'"{finding["quote"]}"')
            lines.append(f"   quote: {_VERDICTS.get(verdicts.get(number, ''), 'not looked for')}")
        source = ", ".join(
            dict.fromkeys(str(finding[key]) for key in ("source_name", "source_url") if finding.get(key))
        )
        if source:
            lines.append(f"   source: {source}")
    return lines


def _figures(run: RunAnswer) -> list[str]:
    lines: list[str] = []
    if run.confidence is not None:
        lines.append(f"Confidence, as the model says: {run.confidence:g}")
    if run.tool_receipts:
        calls = ", ".join(f"{name} {_calls(counts)}" for name, counts in run.tool_receipts.items())
        lines.append(f"Tools called: {calls}")
    lines.extend(
        f"File: {artifact['name']} ({artifact['bytes']} bytes, sha256 {artifact['sha256']})"
        for artifact in (run.untrusted_result.artifacts if run.untrusted_result else ())
    )
    lines.append(f"Cost: {cost_text(run)}")
    return lines


def cost_text(run: RunAnswer) -> str:
    """Return what a run has cost, and what for."""
    from ava_audit.money import format_usd, micros_from_cents

    text = format_usd(micros_from_cents(run.cost_cents))
    parts = [f"{name} {format_usd(micros_from_cents(value))}" for name, value in (run.cost_by or {}).items() if value]
    if parts:
        text += f" ({', '.join(parts)})"
    if run.uncosted:
        text += ", part of it booked at its worst case because the provider did not say"
    if run.overrun:
        text += "; a call cost more than it can by the provider's own limits"
    return text


def _calls(counts: dict[str, int]) -> str:
    failed = f" and {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['ok']}{failed}"


def _indented(text: str, by: str = "   ") -> list[str]:
    return [f"{by}{line}" for line in text.splitlines()] or [by.rstrip()]


def block(title: str, text: str) -> list[str]:
    """Return a text under a title, indented; one line where it is short enough."""
    lines = text.strip().splitlines() or [""]
    if len(lines) == 1 and len(lines[0]) <= 100:
        return [f"{title}: {lines[0]}"]
    return [f"{title}:", *_indented(text.strip(), "  ")]


def limits_text(config: Any) -> str:
    """Return a run's caps in words, from its configuration."""
    from ava_audit.money import format_usd
    from ava_server.proposal_words import minutes

    money = "free" if config.price.get("free") else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    return (
        f"{money}, {minutes(config.timeout_s)}, {config.max_tokens:,} tokens, {config.max_iterations} turns, "
        f"{config.max_tool_calls} tool calls"
    )
