"""What a person is told before a subagent starts: the proposal in sentences, and the line that an approval repeats."""

from __future__ import annotations

import re
import unicodedata

from ava_audit.money import format_usd
from ava_server.earlier import listed
from ava_server.planning import TURNS as PLAN_TURNS
from ava_server.run_config import RunConfig, Texts

TASK_CHARS = 120
SHOWN_CHARS = 600
"""Characters of a task, and of a reason, that the proposal shows; the digest covers all of them."""
_QUOTES = dict.fromkeys(map(ord, '"“”„‟«»＂'), "'")
"""Marks that a reader may take for the end of a quotation."""


def approval_line(config: RunConfig, texts: Texts) -> str:
    """Return the line that an approval must repeat, letter for letter: role, caps, reach, and the task's beginning."""
    cost = "free" if config.price.get("free") else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    and_time = (
        f"{cost}, at most {minutes(config.timeout_s)}" if cost == "free" else f"{cost} and {minutes(config.timeout_s)}"
    )
    return f"{config.role}, {and_time}, {config.reach}: {beginning(texts.task)}"


def group_line(count: int, cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the last line of an approval of several: how many, under which caps; None is free."""
    parts = ["free" if cap_micros is None else f"at most {format_usd(cap_micros, exact=True)}"]
    if timeout_s is not None:
        parts.append(f"at most {minutes(timeout_s)}" if cap_micros is None else minutes(timeout_s))
    return f"{count} subagents together, {(', ' if cap_micros is None else ' and ').join(parts)}"


def beginning(task: str) -> str:
    """Return a task's first 120 characters, white space and invisible characters made one space, cut with `…`."""
    return one_line(task, TASK_CHARS)


def one_line(text: str, most: int) -> str:
    """Return a text's first characters as one line that can neither hide nor turn around anything, cut with `…`."""
    plain = "".join(" " if unicodedata.category(char) in ("Cf", "Cc", "Cn", "Co", "Cs") else char for char in text)
    plain = re.sub(r"\s+", " ", plain).strip()
    return plain if len(plain) <= most else plain[:most].rstrip() + "…"


def _quoted(text: str, most: int) -> str:
    """Return words that a model wrote, told apart from ours: one line, in quotes that nothing in it can close."""
    return f'"{one_line(text, most).translate(_QUOTES)}"'


def minutes(seconds: float) -> str:
    """Return a duration as an approval line has it: `10 min`, `45 s`."""
    whole = round(seconds)
    return f"{whole // 60} min" if whole >= 60 and whole % 60 == 0 else f"{seconds:g} s"


def proposal_message(config: RunConfig, texts: Texts) -> str:
    """Return the proposal for the person who approves: plain sentences, dollars, no JSON."""
    low, high = config.estimated_minutes
    free = bool(config.price.get("free"))
    label = f"{config.role} ({config.name})" if config.name else config.role
    lines = [f"Ava wants to start a {label}: {_quoted(texts.task, SHOWN_CHARS)}."]
    can = config.reach
    lines.append(f"It {can}." if config.workspace else f"It {can}; it cannot read your files.")
    if config.context_from:
        lines.append(f"Results that it may read: {listed(config.context_from)}.")
    if config.files_note:
        lines.append(f"No files because: {config.files_note}.")
    cost = "costs nothing" if free else f"costs at most {format_usd(config.max_cost_micros, exact=True)}"
    about = f"{low} to {high} minutes" if low < high else minutes(high * 60)
    lines.append(f"It takes about {about}, at most {minutes(config.timeout_s)}, and {cost}.")
    if config.model.startswith("offline/"):
        lines.append(
            "No language model is used: the offline reader finds passages that have words of the task, and quotes"
            " them; it writes nothing of its own."
        )
    else:
        lines.append(f"Model: {config.model}{' (free)' if free else ''}.")
    turns, calls, tokens = config.max_iterations, config.max_tool_calls, config.max_tokens
    lines.append(f"At most {turns:,} turns, {calls:,} tool calls and {tokens:,} tokens.")
    if config.plan:
        lines.append(_plan_line(config))
    lines.extend(_secret_lines(config))
    if config.unavailable_tools:
        lines.append(f"Not available here: {', '.join(config.unavailable_tools)}.")
    lines.extend(f"{note[0].upper()}{note[1:]}." for note in config.clamped)
    if texts.rationale:
        lines.append(f"Why: {_quoted(texts.rationale.rstrip('. '), SHOWN_CHARS)}.")
    return "\n".join(lines)


def _plan_line(config: RunConfig) -> str:
    if not config.plans:
        return "It does not plan first, because there is no language model to do it."
    return f"It plans first and then works: planning takes {PLAN_TURNS} of its {config.max_iterations} turns."


def _secret_lines(config: RunConfig) -> list[str]:
    """Return what the person must know of secrets: which may be sent where, and which the role would miss."""
    usable = [f"{name} (only for {', '.join(hosts)})" for name, hosts in config.secrets.items() if hosts]
    unbound = [name for name, hosts in config.secrets.items() if hosts == ()]
    missing = [name for name, hosts in config.secrets.items() if hosts is None]
    lines: list[str] = []
    if usable:
        lines.append(f"Its calls may use the secret{'s' if len(usable) > 1 else ''} {', '.join(usable)}.")
    if unbound:
        lines.append(f"Stored, but for no host, so that no call can use it: {', '.join(unbound)}.")
    if missing:
        lines.append(f"Its role lists secrets that nobody has stored: {', '.join(missing)} (`ava secret set NAME`).")
    return lines
