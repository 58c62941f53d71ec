"""The prompts of runs: TOML files in this folder, one for each module that tells the model something."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def prompts(name: str) -> Mapping[str, str]:
    """Return the texts of a file, such as `planning`, by their names in it."""
    stored = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
    return {key: str(text).strip() for key, text in stored.items()}
