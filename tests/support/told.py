"""Processes of a log that are as a test says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ava_audit.store.backend import Activities


@dataclass
class ToldProcesses:
    """What a view of a run asks about the processes on the log.

    Attributes:
        lives: Whether each of them is alive.
        seen_us: When each was last seen; None where that is not known.
        seen_every_s: Within how many seconds one that works is seen.
        shows: What each shows of its runs.
        hosts: The host of each worker.
    """

    lives: bool = True
    seen_us: int | None = None
    seen_every_s: float = 1.0
    shows: Activities = field(default_factory=dict[tuple[str, str], str])
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])

    def alive(self, _name: str, /) -> bool:
        return self.lives

    def activities(self) -> Activities:
        return self.shows

    def workers(self) -> Mapping[str, str]:
        return self.hosts

    def shown_seen_us(self, _name: str, /) -> int | None:
        return self.seen_us
