"""How much of a cap is used, as a figure and as a bar that can be read without colours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.units import format_usd
from ava_server.budget.run_config import config_of
from ava_server.service.status import clock_us, elapsed_s

if TYPE_CHECKING:
    from ava_server.cli.dashboard.overview import Shown

NEARLY = 0.8
"""From so much of a cap on a model is told what is left, and a bar has another colour."""
_BLOCKS, _PLAIN = ("█", "▒", "░"), ("#", "+", "-")


@dataclass(frozen=True)
class Cap:
    """How much of one of its caps a run has used.

    Attributes:
        name: Which one.
        used: What is used; seconds, turns, calls, tokens or micro-USD.
        most: The cap; 0 where there is none.
        words: Both in words.
        short: What is used, in words.
        held: What is held beside it for calls in flight.
    """

    name: str
    used: float
    most: float
    words: str
    short: str
    held: float = 0


def caps_of(shown: Shown, now_us: int) -> tuple[Cap, ...]:
    """Return a run's five caps at a moment: time, turns, tool calls, tokens and money."""
    run, config = shown.run, config_of(shown.run.config)
    time_s = elapsed_s(run, clock_us(run, shown.answer.state, now_us))
    turns, most_turns = run.turns, config.max_iterations
    calls, most_calls = run.tool_calls, config.max_tool_calls
    spent, most = format_usd(run.cost_micros), format_usd(config.max_cost_micros, exact=True)
    tokens, most_tokens = short_number(run.tokens), short_number(config.max_tokens)
    money = Cap("money", run.cost_micros, config.max_cost_micros, f"{spent}/{most}", spent, shown.held)
    if config.price.get("free"):
        money = Cap("money", 0, 0, "free", "free")
    return (
        Cap("time", time_s, config.timeout_s, f"{time_s:.0f}/{config.timeout_s:g} s", f"{time_s:.0f} s"),
        Cap("turns", turns, most_turns, f"turn {turns}/{most_turns}", f"turn {turns}"),
        Cap("tool_calls", calls, most_calls, f"{calls}/{most_calls} calls", f"{calls} call{'' if calls == 1 else 's'}"),
        Cap("tokens", run.tokens, config.max_tokens, f"{tokens}/{most_tokens} tok", f"{tokens} tok"),
        money,
    )


def short_number(number: int) -> str:
    """Return a number of tokens in few characters: `840`, `12k`, `1.2M`."""
    if number < 1_000:
        return str(number)
    return f"{number / 1_000:.0f}k" if number < 999_500 else f"{number / 1e6:.1f}M"


def bar(used: float, most: float, width: int, held: float = 0) -> Text:
    """Return a bar: what is used, what is held, and the rest; empty only at nothing, full only at the cap."""
    width = max(width, 1)
    full, reserved, empty = _BLOCKS if _draws("".join(_BLOCKS)) else _PLAIN
    filled = _part(used, most, width)
    both = max(_part(used + held, most, width), min(filled + 1, width) if held else filled)
    share = used / most if most > 0 else 1.0
    style = "red" if share >= 1 else "yellow" if share >= NEARLY else "green"
    return Text.assemble((full * filled, style), (reserved * (both - filled), style), (empty * (width - both), "dim"))


def _part(amount: float, most: float, width: int) -> int:
    if most <= 0 or amount >= most:
        return width
    return max(1, min(round(width * amount / most), width - 1)) if amount > 0 else 0


def _draws(chars: str) -> bool:
    """Tell whether what is written to stdout can have these characters."""
    try:
        chars.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        return False
    return True
