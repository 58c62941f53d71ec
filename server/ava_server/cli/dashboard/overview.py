"""What one look finds: the runs, what is spent today, the log, and what works on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ava_audit.rows import WAITING

if TYPE_CHECKING:
    from ava_audit.errors import AuditError
    from ava_audit.rows import RunRow
    from ava_server.core.errors import AvaError
    from ava_server.service.responses import RunAnswer

EXPIRED = "expired"
ORDER = (WAITING, "interrupted", "running", "queued", EXPIRED)
"""The states of runs that have not ended, as they stand on the screen: first what waits for somebody."""


@dataclass(frozen=True)
class Budget:
    """What a day's budget has left; micro-USD."""

    whose: str
    spent: int
    held: int
    cap: int


@dataclass(frozen=True)
class Shown:
    """A run as the screen shows it.

    Attributes:
        run: Its row.
        answer: As everybody sees it.
        task: The beginning of its task.
        expires_us: When its proposal expires, for one that waits for approval.
        waits: What it waits for, in words of ours.
        held: What is held in its own budget for its calls, in micro-USD.
    """

    run: RunRow
    answer: RunAnswer
    task: str
    expires_us: int | None
    waits: str
    held: int


@dataclass(frozen=True)
class LogFacts:
    """The log itself: how large it is, and how many entries its copies lack; None where there is no mirror."""

    entries: int
    database_bytes: int
    wal_bytes: int
    index_lag: int
    mirror_lag: int | None
    partial: bool


@dataclass(frozen=True)
class Overview:
    """Everything that one look has found.

    Attributes:
        at_us: When it was.
        counts: How many runs are in each state, and how many have `ended` lately, those that are not shown too.
        runs: The runs, in the order of the screen.
        budgets: Today's.
        log: The log; None where there is none yet.
        processes: How many Ava processes are at work.
        keeper: One of them keeps index and mirror.
        free_bytes: What is left on the disk; None where nobody can tell.
        providers: Who can be asked for answers, and whether there is a key.
        faults: What is wrong with settings and keys.
        trouble: Why the log could not be read.
    """

    at_us: int
    budgets: tuple[Budget, ...]
    processes: int
    keeper: bool
    free_bytes: int | None
    providers: Mapping[str, bool]
    faults: tuple[str, ...] = ()
    trouble: AuditError | AvaError | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    runs: tuple[Shown, ...] = ()
    log: LogFacts | None = None
