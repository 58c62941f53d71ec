"""Who decided about a run, and how: for the screens of a terminal and the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ava_audit.entries import Entry
from ava_audit.events import ExtensionDecided, SpawnDecided
from ava_audit.units import format_usd
from ava_server.approval.summary import minutes
from ava_server.budget.run_config import RunConfig

CHANNELS: Mapping[str, str] = {
    "host_call": "by the host's call (host_call); the log has no answer of a person",
    "elicitation": "by a person, asked by the server through the host (elicitation)",
    "terminal": "by a person at the terminal",
    "auto": "by the policy auto, without a question",
    "http": "by a person over HTTP",
    "browser": "by a person in the browser",
}
"""How a decision came, by its channel."""


@dataclass(frozen=True)
class Decision:
    """A decision about a run.

    Attributes:
        at_us: When it was made.
        what: What was decided: `Approved`.
        how: Who decided, over which channel.
        changes: What it has changed, in words; empty where nothing was.
        group_id: The group that was approved together.
        more: It answers a request for more.
    """

    at_us: int
    what: str
    how: str
    changes: str = ""
    group_id: str | None = None
    more: bool = False


def decisions_in(entries: Iterable[Entry]) -> list[Decision]:
    """Return the decisions in the entries of a run: first those on the proposal, then those on requests for more."""
    first: list[Decision] = []
    raised: list[Decision] = []
    for entry in entries:
        if isinstance(fact := entry.fact, ExtensionDecided):
            how, changes = CHANNELS[fact.channel], _changes(fact.changes)
            raised.append(Decision(entry.ts_us, f"Request for more {fact.decision}", how, changes, more=True))
        elif isinstance(fact, SpawnDecided):
            alone = "by itself: nobody decided in time" if fact.decision == "expired" else ""
            how = CHANNELS.get(fact.channel or "", alone)
            what = fact.decision.capitalize()
            first.append(Decision(entry.ts_us, what, how, _changes(fact.changes), fact.group_id))
    return first + raised


def _changes(changes: dict[str, Any]) -> str:
    """Return what a decision has changed."""
    texts: dict[str, Callable[[Any], str]] = {
        "max_cost_micros": lambda value: f"at most {format_usd(value, exact=True)}",
        "timeout_s": lambda value: f"at most {minutes(value)}",
        "tools": lambda value: f"only the tools {', '.join(value) or 'that every run has'}",
    }  # fmt: skip
    return ", ".join(texts[name](value) if name in texts else f"{name} {value:,}" for name, value in changes.items())


def limits_text(config: RunConfig) -> str:
    """Return the caps of a run on one line."""
    money = "free" if config.free else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    return (
        f"{money}, {minutes(config.timeout_s)}, {config.max_tokens:,} tokens, {config.max_iterations} turns, "
        f"{config.max_tool_calls} tool calls"
    )
