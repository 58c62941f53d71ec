"""Runs: the manager that claims them, the loop that drives one, and the life cycle that says what may happen to one.

The seams are `setup.RunSetup`, which makes what a run works with from the `RunResources` of a process, and the log: all
state of a run follows from its entries, so any process can go on with it. What must hold:
`lifecycle.TRANSITIONS` has every way in which a run may move; one instance owns a run at a time; a request can be
rebuilt from the log byte for byte; a run ends once, with a result, whatever ended it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def prompts(name: str) -> Mapping[str, str]:
    """Return the prompts in a TOML file of this folder, such as `planning`, by their names in it.

    Each module that tells the model something has such a file.
    """
    stored = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
    return {key: str(text).strip() for key, text in stored.items()}
