"""How a model is told to think, or not to think, before it answers: `thinking.toml`, by how its id begins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

On = Literal["budget", "adaptive", "effort", "none"]
Off = Literal["default", "disabled", "between_tools", "low"]
EFFORT = "medium"
"""The effort that a model is told; at OpenRouter, for models with a budget, half of an answer's tokens."""
LOW = "low"


@dataclass(frozen=True)
class Thinking:
    """How a model is told to think, and not to think; `thinking.toml` explains the values."""

    on: On = "none"
    off: Off = "default"
    bound: bool = False

    @property
    def possible(self) -> bool:
        """Whether it can be told to think."""
        return self.on != "none"

    @property
    def always(self) -> bool:
        """Whether it always thinks, whatever it is told."""
        return self.off in ("between_tools", "low")

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON, for the log."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Thinking | None:
        """Return what `as_dict` stored, or None if another version stored it."""
        match stored:
            case {
                "on": ("budget" | "adaptive" | "effort" | "none") as on,
                "off": ("default" | "disabled" | "between_tools" | "low") as off,
                "bound": bool(bound),
            }:
                return cls(on, off, bound)
            case _:
                return None


UNKNOWN = Thinking()


def thinking_of(model_id: str, otherwise: Thinking = UNKNOWN) -> Thinking:
    """Return how a model is told to think; `otherwise` is for ids that are not in the table."""
    name = model_id.rpartition("/")[2].lower().replace(".", "-")
    known = _table()
    found = max((begins for begins in known if name.startswith(begins)), key=len, default=None)
    return otherwise if found is None else known[found]


@cache
def _table() -> Mapping[str, Thinking]:
    table = tomllib.loads(files("ava_server.models").joinpath("thinking.toml").read_text(encoding="utf-8"))
    return {
        begins: Thinking(entry["on"], entry["off"], entry.get("bound", False))
        for entry in table["models"]
        for begins in entry["begins"]
    }
