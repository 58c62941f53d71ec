"""What was measured, and how it is shown: a row for each figure, a column for each log."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLUMNS = ("SQLite", "Postgres", "pgqueuer and the log", "pgqueuer")


@dataclass
class Figures:
    """All values of each figure by column, and the load of the machine while they were taken.

    Attributes:
        columns: What is compared, from left to right.
        ratio_to: The column to which medians are also shown as a ratio; empty for none.
    """

    columns: Sequence[str] = COLUMNS
    ratio_to: str = ""
    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    loads: list[float] = field(default_factory=list[float])

    def note(self, name: str, column: str, *values: float) -> None:
        """Add values of a figure."""
        self.rows.setdefault(name, {}).setdefault(column, []).extend(values)
        self.loads.append(os.getloadavg()[0])

    def note_times(self, name: str, column: str, seconds: Sequence[float]) -> None:
        """Add the median and the 99th percentile of some times."""
        ordered = sorted(seconds)
        self.note(f"{name}, p50 ms", column, statistics.median(ordered) * 1_000)
        self.note(f"{name}, p99 ms", column, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1_000)

    def show(self, part: str) -> None:
        """Print the medians since the last time, with the lowest and highest values where there are several."""
        print(f"\n{part}, load {min(self.loads):.1f} to {max(self.loads):.1f}")
        print(f"{'':50}" + "".join(f"{column:>30}" for column in self.columns))
        for name, found in self.rows.items():
            cells = [f"{self._cell(found, column):>30}" for column in self.columns]
            print(f"{name:50}" + "".join(cells), flush=True)
        self.rows.clear()
        self.loads.clear()

    def _cell(self, found: Mapping[str, list[float]], column: str) -> str:
        values, base = found.get(column, []), found.get(self.ratio_to, [])
        text = shown(values)
        if not values or not base or column == self.ratio_to or not statistics.median(base):
            return text
        return f"{text} = {statistics.median(values) / statistics.median(base):.2f} x"


def shown(values: Sequence[float]) -> str:
    """Return a figure as text; empty where nothing was measured."""
    if not values:
        return ""
    span = f" ({min(values):,.1f} to {max(values):,.1f})" if len(values) > 1 else ""
    return f"{statistics.median(values):,.1f}{span}"


def note_rates(times: Sequence[float], workers: int, column: str, figures: Figures) -> None:
    """Note how fast some workers have taken what was waiting, at the beginning and at the end; `times` are in order."""
    name, quarter = f"drain, {workers} workers", len(times) // 4
    figures.note(f"{name}: claims/s", column, rate(times))
    figures.note(f"{name}: claims/s, first quarter", column, rate(times[:quarter]))
    figures.note(f"{name}: claims/s, last quarter", column, rate(times[-quarter:]))


def rate(times: Sequence[float]) -> float:
    """Return how many there were a second."""
    return (len(times) - 1) / max(times[-1] - times[0], 0.001)
