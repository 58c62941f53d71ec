"""The modes of a process: what its run manager may do with the runs of a log, and what it leaves to other processes.

| process | mode | claims the runs of | and drives them |
|---|---|---|---|
| a command that looks, or decides | `LOOKING` | nobody | |
| `ava doctor --online` | `ASKING` | its own session | itself |
| `ava run --yes`, a server in its host's process | `DRIVING` | its user | itself |
| `ava mcp`, `ava run`, `ava resume`, with `background` | `serving` | its user | the worker, or itself if that cannot |
| the same, with `runs_on = "workers"` | `serving` | its user | any worker, on any machine |
| `ava serve` | `serving` | everybody | as the two above |
| `ava worker`, with or without `--stay` | `WORKING` | everybody | itself |
| the same, with the log in Postgres | `SHARING` | everybody | itself, beside other workers |

Each process that drives runs takes over those of its users whose owner is gone; only a worker that stays hands its own
over when it is stopped (`Manager.hand_over`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

GRACE_S = 1.0
"""Seconds for which only the instance that approved a run claims it."""
SPREAD = 8
"""Of so many of the oldest runs, workers that share a log take any one first, so that they rarely try the same run."""


@dataclass(frozen=True)
class Mode:
    """Which kind of process this is.

    Attributes:
        claims: Whose runs it claims.
        leaves_to: Who drives them: this data root's worker, or workers that may be on other machines; None: itself.
        grace_s: How long another process has to claim what it approved.
        spread: Of so many of the oldest runs, any one is taken first.
        only_worker: No other process drives these runs: servers take the ones that it says it cannot run.
        one_of_many: Other machines drive runs of this log too, so what it says about one names its machine.
    """

    claims: Literal["nobody", "its session", "its user", "everybody"]
    leaves_to: Literal["the worker", "workers"] | None = None
    grace_s: float = GRACE_S
    spread: int = 1
    only_worker: bool = False
    one_of_many: bool = False

    @property
    def keeps_root(self) -> bool:
        """Whether it also does what the data root of its users needs: events, settings on the record, cleaning up."""
        return self.claims in ("its user", "everybody")


LOOKING = Mode("nobody")
ASKING = Mode("its session")
DRIVING = Mode("its user")
WORKING = Mode("everybody", grace_s=0.0, only_worker=True)
"""Users over HTTP have no worker of their own."""
SHARING = Mode("everybody", grace_s=0.0, spread=SPREAD, one_of_many=True)


def serving(settings: Settings, *, everybody: bool = False) -> Mode:
    """Return the mode of a server, or of a command whose runs a person approves: by the settings, they outlive it."""
    mode = replace(DRIVING, claims="everybody") if everybody else DRIVING
    if settings.runs_on == "workers":
        return replace(mode, leaves_to="workers")
    return replace(mode, leaves_to="the worker") if settings.background else mode


def working(settings: Settings) -> Mode:
    return SHARING if settings.database_url else WORKING
