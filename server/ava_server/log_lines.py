"""One line an event: local time, agent, type, tool, the most telling arguments, outcome with a count, cost."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from ava_audit.entries import Entry
from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    SettingsChanged,
    SubagentComplete,
    SubagentSpawn,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ava_audit.money import format_usd, micros_from_cents
from ava_audit.times import format_ts
from ava_roles.wrap import clean
from ava_server.words import compact

VALUE_CHARS = 80
_MARKED = re.compile(r"<(?P<tag>tool_output_\w+)[^>]*>\n(?P<body>.*)\n</(?P=tag)>", re.DOTALL)


def entry_line(entry: Entry, *, utc: bool = False, width: int = 160) -> str:
    """Return an entry on one line of at most `width` characters; control and invisible characters are out."""
    when = format_ts(entry.ts_us, utc)
    cost = f" {format_usd(entry.cost_micros)}" if entry.cost_micros else ""
    what = compact(clean(_what(entry))[0], 10_000)
    line = f"[{when}] {entry.who.agent_id} {entry.type} {what}{cost}".rstrip()
    return line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def is_error(entry: Entry) -> bool:
    """Tell whether an entry says that something went wrong, as `--type error` and the levels above info mean it."""
    match entry.fact:
        case None:
            return False
        case SubagentComplete(status=status):
            return status not in ("success", "cancelled")
        case fact:
            return fact.severity != "info"


def _what(entry: Entry) -> str:
    match entry.fact:
        case None:
            return "(erased)"
        case ToolCall(tool=tool, args=args):
            return f"{tool} {arguments_text(args)}"
        case ToolResult() as result:
            count = "" if result.count is None else f", {result.count} {'result' if result.count == 1 else 'results'}"
            return f"{result.tool} ({'success' if result.success else 'failed'}{count}) {unmarked(result.output)}"
        case CostUpdate() as spent:
            return f"turn {spent.turn}: {spent.tokens} tokens, {spent.settlement}{', overrun' if spent.overrun else ''}"
        case CostReserved() as held:
            return f"turn {held.turn} attempt {held.attempt}: at most {format_usd(held.micros)} held"
        case SubagentSpawn() as spawn:
            return f"{spawn.subagent_id} {spawn.role}{f' {spawn.name}' if spawn.name else ''}: {spawn.task}"
        case SubagentComplete() as done:
            cost = format_usd(micros_from_cents(done.cost_cents))
            return f"{done.subagent_id} {done.status} {done.tokens} tokens, {cost}, {done.duration:g} s: {done.summary}"
        case SettingsChanged() as changed:
            return f"{changed.setting}: {json.dumps(changed.before)} → {json.dumps(changed.after)}"
        case ErrorOccurred() as error:
            return f"{error.kind}: {error.error}"
        case UserMessage() as said:
            return f"({said.kind}) {said.text}"
        case AssistantMessage() as answer:
            calls = ", ".join(str(call.get("name")) for call in answer.calls)
            return f"{answer.text}{f' → {calls}' if calls else ''}"
        case fact:
            return fact.words()


def unmarked(output: str) -> str:
    """Return a tool's output without the mark around it, which only the model needs."""
    found = _MARKED.fullmatch(output.strip())
    return found["body"] if found else output


def arguments_text(args: Any) -> str:
    """Return the two most telling arguments: words and lists tell more than numbers, and these more than switches."""
    if not isinstance(args, dict):
        return compact(args, VALUE_CHARS)
    given = cast("dict[str, Any]", args)
    telling = [(name, value) for name, value in given.items() if value not in (None, "", [], {})]
    telling.sort(key=lambda item: 2 if isinstance(item[1], bool) else isinstance(item[1], int | float))
    return " ".join(f"{name}={compact(value, VALUE_CHARS)}" for name, value in telling[:2])
