"""Prompts for models, in TOML files beside the code that sends them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def prompts(package: str, name: str) -> Mapping[str, str]:
    """Return the prompts in a TOML file of a package, such as `coding` in `ava_server.runs.coder`, by their names."""
    stored = tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
    return {key: str(text).strip() for key, text in stored.items()}
