"""The last actions of a run: its tool calls, each with its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_audit.events import ToolCall, ToolResult
from ava_audit.units import format_duration, format_ts
from ava_server.service.log_lines import arguments_text, compact, unmarked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ava_audit.entries import Entry
    from ava_audit.view import View

REASON_CHARS = 300


@dataclass(frozen=True)
class Step:
    """A tool call: when, what, and its outcome (empty while it runs)."""

    at_us: int
    what: str
    outcome: str = ""
    failed: bool = False

    @property
    def text(self) -> str:
        """The step on one line: `14:05:02 read_file path=notes.md: success, 0.2 s`."""
        return f"{format_ts(self.at_us)[11:]} {self.what}: {self.outcome or 'in progress'}"


def recent_steps(view: View, run_id: str, most: int) -> tuple[Step, ...]:
    """Return the last tool calls of a run, oldest first."""
    entries = view.newest_entries(run_id, ("ToolCall", "ToolResult"), 2 * most)
    return tuple(_steps(entries))[-most:]


def _steps(entries: Iterable[Entry]) -> Iterable[Step]:
    """Return the calls of these entries in order; a result without its call stands by itself."""
    steps: dict[str, Step] = {}
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, ToolCall):
            what = f"{compact(fact.tool, 40)} {arguments_text(fact.args)}".strip()
            steps[fact.call_id or str(entry.seq)] = Step(entry.ts_us, what)
        elif isinstance(fact, ToolResult):
            key = fact.call_id or str(entry.seq)
            called = steps.get(key, Step(entry.ts_us, compact(fact.tool, 40)))
            steps[key] = Step(called.at_us, called.what, _outcome(fact, entry.duration_ms), not fact.success)
        else:
            steps[str(entry.seq)] = Step(entry.ts_us, "(erased)", "(erased)")
    return steps.values()


def _outcome(result: ToolResult, duration_ms: int | None) -> str:
    count = "" if result.count is None else f", {result.count} result{'' if result.count == 1 else 's'}"
    took = "" if duration_ms is None else f", {format_duration(duration_ms / 1000)}"
    why = "" if result.success else f": {compact(unmarked(result.output), REASON_CHARS)}"
    return f"{'success' if result.success else 'failed'}{count}{took}{why}"
