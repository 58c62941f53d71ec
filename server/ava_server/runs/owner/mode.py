"""The modes of a process: whose runs its run manager claims, and whether it drives them or leaves them to another one.

| process | mode | claims the runs of | and drives them |
|---|---|---|---|
| a command that looks, or decides | `LOOKING` | nobody | |
| `ava run --yes`, `ava doctor --online`, and whatever else asks nobody | `OWN_RUNS` | its own session | itself |
| a server, and `ava run` and `ava resume`, whose runs a person approves | `SERVER` | its users | as the settings say |
| `ava worker`, with or without `--stay` | `BACKGROUND` | everybody | itself |
| the same, with the log in Postgres | `SHARED_BACKGROUND` | everybody | itself, beside other workers |

The users of a server are those that its transport admits: over stdio this user of the system, over HTTP everybody.
`driver_of` says who drives the runs that they approve: this process, the worker of the data root, or workers on any
machine. A background process that was only started to listen is a `SERVER`, unless those runs are the worker's.

Every process that drives runs takes over runs of its users whose owner is gone. When a worker with `--stay` is stopped,
or a newer version takes over, the process hands its own runs over (`Manager.hand_over`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

GRACE_S = 1.0
"""Seconds for which only the instance that approved a run claims it."""
SPREAD = 8
"""Workers that share a log start with a random one of this many oldest runs, so that they rarely try the same run."""


@dataclass(frozen=True)
class Mode:
    """Which kind of process this is.

    Attributes:
        claims: Whose runs it claims.
        leaves: It leaves approved runs to whom the settings name (`driver_of`); else it drives them itself.
        keeps_root: It also does what the data root of its users needs: events, settings on the record, cleaning up.
        outlives_host: Its runs outlive the host that asked for them.
        shares_log: Processes on other machines drive runs of this log too, so what it says about one names its machine.
        beside: The name of a worker beside the data root's first one; else empty.
    """

    claims: Literal["nobody", "its session", "its users", "everybody"]
    leaves: bool = False
    keeps_root: bool = True
    outlives_host: bool = False
    shares_log: bool = False
    beside: str = ""

    @property
    def grace_s(self) -> float:
        """How long another process has to claim what it approved."""
        return 0.0 if self.outlives_host else GRACE_S

    @property
    def reports_unable(self) -> bool:
        """Whether it says which runs it cannot do: where the log is shared, workers on other machines may do them."""
        return self.outlives_host and not self.shares_log

    @property
    def spread(self) -> int:
        """Of how many of the oldest runs any one is taken first."""
        return SPREAD if self.shares_log else 1


LOOKING = Mode("nobody", keeps_root=False)
OWN_RUNS = Mode("its session")
"""It ends with its own runs: one of another process, taken over, would be left again in the middle of a paid call."""
SERVER = Mode("its users", leaves=True)
BACKGROUND = Mode("everybody", outlives_host=True)
"""Users over HTTP have no worker of their own."""
SHARED_BACKGROUND = replace(BACKGROUND, shares_log=True)


def working(settings: Settings, beside: str = "") -> Mode:
    return replace(SHARED_BACKGROUND if settings.shares_log else BACKGROUND, beside=beside)


Driver = Literal["this process", "the worker", "workers"]


def driver_of(settings: Settings) -> Driver:
    """Return who drives an approved run: the server, this data root's worker, or workers on any machine."""
    if settings.runs_on == "workers":
        return "workers"
    return "the worker" if settings.background else "this process"
