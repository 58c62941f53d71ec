"""A measured figure beside its floor and its goal, as each script of this folder writes them with `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """What one figure came to.

    `value` is Ava's and `floor` what the least program for the same took, both in `unit` and in the same run. With a
    floor, the goal is for their ratio, without one for the value. With `least`, larger is better.
    """

    figure: str
    value: float
    unit: str
    goal: float
    floor: float | None = None
    least: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times the floor it is."""
        return None if self.floor is None else self.value / self.floor

    @property
    def reached(self) -> bool:
        """Whether the goal is reached."""
        compared = self.value if self.ratio is None else self.ratio
        return compared >= self.goal if self.least else compared <= self.goal


def write_json(path: Path, figures: Iterable[Figure]) -> None:
    """Write figures as a list of objects, each with its `ratio` and whether its goal was `reached`.

    Raises:
        OSError: The file cannot be written.
    """
    rows = [{**asdict(figure), "ratio": figure.ratio, "reached": figure.reached} for figure in figures]
    path.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
