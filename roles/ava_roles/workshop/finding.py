"""Which command a project is verified by, where nobody has said it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """The one that fits.

    Attributes:
        command: One line for bash.
        why: What of the project says so.
    """

    command: str
    why: str


@dataclass(frozen=True)
class Several:
    """More than one fits equally.

    Attributes:
        commands: Each of them, with why.
    """

    commands: tuple[Found, ...]


@dataclass(frozen=True)
class Nothing:
    """None fits."""


def find_verify(repository: Path, home: Path) -> Found | Several | Nothing:
    """Return which of pytest, npm test, cargo test, go test and make test verifies a project. Blocking; runs nothing.

    Raises:
        NoRepository: There is no commit to look at; says what to do.
        WorkshopFailed: git is not there, or cannot tell.
    """
    raise NotImplementedError
