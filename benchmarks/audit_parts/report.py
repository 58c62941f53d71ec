"""What the parts print: tables on stdout as they come, and the same as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from figures import Figure


@dataclass
class Report:
    """Collects what was shown."""

    markdown: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Show a sentence."""
        print(text, flush=True)
        self.markdown += [text, ""]

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table; the first column is text, the others are figures."""
        print(f"\n{title}")
        widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
        for row in (columns, *rows):
            cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            print("  ".join((row[0].ljust(widths[0]), *cells)), flush=True)
        lines = [f"| {' | '.join(row)} |" for row in (columns, ["---", *["---:"] * (len(columns) - 1)], *rows)]
        self.markdown += [f"**{title}**", "", *lines, ""]

    def verdict(
        self, what: str, value: float, goal: float, *, least: bool = False, unit: str = "", floor: float | None = None
    ) -> None:
        """Show and keep whether a goal was reached, for the value or its ratio to the floor; see `Figure`."""
        figure = Figure(what, value, unit.strip(), goal, floor, least)
        self.figures.append(figure)
        shown, unit = (value, unit) if figure.ratio is None else (figure.ratio, " × the floor")
        sign, reached = "≥" if least else "≤", "reached" if figure.reached else "MISSED"
        self.say(f"{what}: {shown:.3g}{unit}, target {sign} {goal:g}{unit}: {reached}")


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def ms(seconds: float) -> str:
    """Return milliseconds, without decimals from a second on."""
    return f"{seconds * 1000:,.2f}" if seconds < 1 else f"{seconds * 1000:,.0f}"
