"""Checks of everything that Ava needs, for `ava doctor`, the page `/health` and `ava status`.

A check takes a `Setup` and yields `CheckFinding`s, each with what to do. It reads files and tries locks; it creates and
writes nothing. `data` and `models` are cheap and safe in a running server; `machine` and `roles` start programs for a
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ava_server.config.settings import Settings, load_settings
from ava_server.core.data_root import DataRoot, find_data_root, has_log, os_user
from ava_server.core.errors import AvaError, ConfigError

State = Literal["ok", "note", "warning", "fault"]
"""`note`: nothing is wrong; `warning`: it works, but may stop working; `fault`: it does not work."""

WORST_FIRST: tuple[State, ...] = ("fault", "warning", "note", "ok")
REPORT = "Please report it: this is a fault of Ava's own."


@dataclass(frozen=True)
class CheckFinding:
    """What was found about one thing: a line of `ava doctor`, of the page `/health` or of `ava status`.

    `short` is the text in a word or two, for the one line of `ava status`; empty to leave it out there.
    """

    name: str
    state: State
    text: str
    what_to_do: str = ""
    short: str = ""

    @property
    def title(self) -> str:
        """What people call it; `name` is its name in JSON."""
        return title_of(self.name)

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "state": self.state, "text": self.text, "what_to_do": self.what_to_do}


_TITLES: Mapping[str, str] = {"confinement": "sandbox"}


def title_of(name: str) -> str:
    """Return what people call a check; `name` is its name in JSON."""
    return _TITLES.get(name, name)


@dataclass(frozen=True)
class Setup:
    """What there is to check, as far as it can be read.

    Attributes:
        root: The data root; None if it is unknown.
        settings: The settings; None if they are wrong.
        user: Whose rules are shown.
    """

    env: Mapping[str, str]
    root: DataRoot | None = None
    settings: Settings | None = None
    user: str = field(default_factory=os_user)
    root_error: str = ""
    settings_error: str = ""

    @property
    def usable_root(self) -> DataRoot | None:
        """The data root if it can be used; its own check says why it cannot."""
        if self.root is not None:
            try:
                has_log(self.root, writes=True)
            except ConfigError:
                return None
        return self.root

    @property
    def correct_settings(self) -> str:
        file = self.root.config if self.root is not None else "config.toml"
        return f"Correct it in {file}, or in the named variable, then run `ava doctor` again."


Check = Callable[[Setup], Iterable[CheckFinding]]


def run_checks(checks: Iterable[tuple[str, Check]], setup: Setup, *, in_full: bool) -> Iterator[CheckFinding]:
    """Run checks one by one, each with the name of a finding about its failure; one that fails ends no other.

    With `in_full`, that finding has the text of the error, not only its type. Blocking.
    """
    for name, check in checks:
        try:
            yield from check(setup)
        except Exception as error:
            text = f"this check failed: {type(error).__name__}"
            if in_full:
                text += f": {error}"
            yield CheckFinding(name, "fault", text, REPORT)


def read_setup() -> Setup:
    """Find the data root and read the settings, as far as possible; creates nothing."""
    env = os.environ
    try:
        root = find_data_root(env=env)
    except (AvaError, OSError, RuntimeError) as error:
        return Setup(env, root_error=str(error), settings_error="the data root is unknown")
    try:
        return Setup(env, root, load_settings(env=env))
    except (AvaError, OSError, RecursionError) as error:
        return Setup(env, root, settings_error=str(error))


def from_error(name: str, message: str, step: str, state: State = "fault") -> CheckFinding:
    """Return a finding with an error's whole text and the check's own step, which is not repeated."""
    return CheckFinding(name, state, message.strip().removesuffix(step).rstrip(), step)


def nearest_folder(path: Path) -> Path:
    """Return the path if it exists, else the nearest folder above it that does."""
    if path.exists():
        return path
    return next(parent for parent in path.parents if parent.exists())
