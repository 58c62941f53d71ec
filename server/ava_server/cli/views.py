"""Words of a run as people read them: what it may cost and has cost, its texts under a title, and exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.service.responses import RunAnswer

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


def exit_code(run: RunRow) -> int:
    """Return the exit code of a command that waited for this run's end."""
    if run.state == "error":
        return _CODES_OF_ERRORS.get(run.error_kind or "", _MODEL)
    return ENDING_CODES[run.state]


def exit_code_of(state: str) -> int | None:
    """Return the exit code of an ending; None for a state that is none. That of an error depends on its kind."""
    return _MODEL if state == "error" else ENDING_CODES.get(state)


def cost_text(run: RunAnswer) -> str:
    """Return what a run has cost, and what for."""
    from ava_audit.units import format_usd, micros_from_cents

    text = format_usd(micros_from_cents(run.cost_cents))
    parts = [f"{name} {format_usd(micros_from_cents(value))}" for name, value in (run.cost_by or {}).items() if value]
    if parts:
        text += f" ({', '.join(parts)})"
    if run.uncosted:
        text += ", part of it booked at its worst case because the provider did not say"
    if run.overrun:
        text += "; a call cost more than it can by the provider's own limits"
    return text


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
    from ava_audit.units import format_usd
    from ava_server.approval.summary import minutes

    money = "free" if config.price.get("free") else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    return (
        f"{money}, {minutes(config.timeout_s)}, {config.max_tokens:,} tokens, {config.max_iterations} turns, "
        f"{config.max_tool_calls} tool calls"
    )
