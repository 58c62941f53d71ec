"""The types of a check: what it is given, and what it finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ava_server.cli.root import has_log
from ava_server.config.settings import Settings, load_settings
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import AvaError, ConfigError

State = Literal["ok", "note", "warning", "fault"]
"""`note`: worth knowing, and nothing is wrong; `warning`: it works, and may not for long; `fault`: it does not work."""

REPORT = "Report it: this is a fault of Ava's own."


@dataclass(frozen=True)
class Finding:
    """One line of what was found.

    Attributes:
        name: What was looked at.
        state: How it is.
        text: What was found.
        what_to_do: One next step; every warning and fault has one.
    """

    name: str
    state: State
    text: str
    what_to_do: str = ""


@dataclass(frozen=True)
class Setup:
    """What there is to look at, as far as it can be read.

    Attributes:
        env: The environment.
        root: The data root; None when it is not known where it is.
        settings: What is configured; None when the settings are wrong.
        root_error: Why the data root is not known.
        settings_error: What is wrong with the settings.
    """

    env: Mapping[str, str]
    root: DataRoot | None = None
    settings: Settings | None = None
    root_error: str = ""
    settings_error: str = ""


Check = Callable[[Setup], list[Finding]]


def set_up(env: Mapping[str, str] | None = None) -> Setup:
    """Find the data root and read the settings, as far as they can be; creates nothing."""
    env = os.environ if env is None else env
    try:
        root = find_data_root(env=env)
    except (AvaError, OSError, RuntimeError) as error:
        return Setup(env, root_error=str(error), settings_error="the data root is not known")
    try:
        return Setup(env, root, load_settings(env=env))
    except (AvaError, OSError, RecursionError) as error:
        return Setup(env, root, settings_error=str(error))


def from_error(name: str, message: str, step: str, state: State = "fault") -> Finding:
    """Return a finding of an error: its whole text, and the check's own step, which is not told twice.

    Args:
        name: What was looked at.
        message: The error's text; what it says to do stays in it, for only a reader can tell where that begins.
        step: What to do next, whatever the text says.
        state: How bad it is.
    """
    return Finding(name, state, message.strip().removesuffix(step).rstrip(), step)


def correct(setup: Setup) -> str:
    """Return the step for what is configured wrongly; the text names the setting or the variable."""
    file = setup.root.config if setup.root is not None else "config.toml"
    return f"Correct it in {file}, or in the variable that is named, then run `ava doctor` again."


def log_path(setup: Setup) -> Path | None:
    """Return where the log is, None where the data root can be none: its own check says so."""
    if setup.root is None:
        return None
    try:
        has_log(setup.root)
    except ConfigError:
        return None
    return setup.root.db


def above(path: Path) -> Path:
    """Return the nearest folder above a path that exists."""
    return next(parent for parent in path.parents if parent.exists())
