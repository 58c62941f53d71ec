"""Which models cache the beginning of a prompt, from which length on, and what marks its end."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

CacheMark = Literal["", "cache_control", "prompt_cache_breakpoint"]
"""The field of a part of a message after which the prompt is cached; "" marks none."""


@dataclass(frozen=True)
class PromptCache:
    """How a model's provider caches.

    Attributes:
        least: The tokens of the shortest beginning that is cached.
        breakpoints: It caches up to marks alone, besides the newest message.
    """

    least: int
    breakpoints: bool = False


def prompt_cache_of(model_id: str) -> PromptCache | None:
    """Return how a model's provider caches, by the model's id; None where it is not known."""
    name = model_id.rpartition("/")[2].lower().replace(".", "-")
    known = _table()
    found = max((begins for begins in known if name.startswith(begins)), key=len, default=None)
    return None if found is None else known[found]


@cache
def _table() -> Mapping[str, PromptCache]:
    table = tomllib.loads(files("ava_server.models").joinpath("prompt_cache.toml").read_text(encoding="utf-8"))
    return {
        begins: PromptCache(entry["least"], entry.get("breakpoints", False))
        for entry in table["models"]
        for begins in entry["begins"]
    }
