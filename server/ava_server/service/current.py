"""What goes on now: today's budgets, the rows of current runs. Imports little: `ava status --once` starts with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ava_audit.rows import UNENDED, RunRow
from ava_audit.units import HOUR_US, day_of
from ava_audit.view import View
from ava_server.budget.held_words import spent_words
from ava_server.budget.user_limits import DayCaps, installation_scope, user_scope
from ava_server.render.entry_lines import Step

V = TypeVar("V")
"""A `RunView`: importing it takes as long as all of `ava status --once`, which needs none where nothing goes on."""
RECENT_US = HOUR_US


@dataclass(frozen=True)
class Budget:
    """What is spent and held of a day's budget; micro-USD."""

    whose: str
    spent: int
    held: int
    cap: int

    @property
    def words(self) -> str:
        """What is spent and reserved of it: `$0.80 of $10.00 (and $0.07 reserved for work in progress)`."""
        return spent_words(self.spent, self.cap, self.held)


@dataclass(frozen=True)
class TokenFacts:
    """A token as its server knows it: its user and scopes; and the version of the server's Ava."""

    user: str
    scopes: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class RefusedKey:
    """A provider that refused its key lately; `answered`: it has answered other calls since."""

    provider: str
    text: str
    what_to_do: str
    answered: bool


@dataclass(frozen=True)
class LogFacts:
    """How large the log is, and how many entries each of its copies lacks.

    `partial`: the newest entries are missing, as a process died while it wrote them. `refused`: the providers that
    refused their key lately.
    """

    entries: int
    database_bytes: int
    wal_bytes: int
    lags: Mapping[str, int]
    partial: bool
    refused: tuple[RefusedKey, ...] = ()


@dataclass(frozen=True)
class SelectedRun:
    """A run's last actions, and the text of its proposal that waits, or the summary of its result."""

    run_id: str
    steps: tuple[Step, ...]
    about: str


@dataclass(frozen=True)
class CurrentRuns(Generic[V]):
    """What `ava status` shows, out of one state of the log: the runs in the order of a list, and today's budgets.

    Attributes:
        at_us: When that was.
        counts: How many runs are in each state, and how many have `ended` lately; also those not in `runs`.
        token: The token that asked, over HTTP.
        others: How many unfinished runs of other users are left out.
        selected: More on the run that was asked for, if it is one of `runs`.
        log: The log itself, for the owner of its data root.
    """

    at_us: int
    counts: dict[str, int]
    runs: tuple[V, ...]
    budgets: tuple[Budget, ...]
    token: TokenFacts | None = None
    others: int = 0
    selected: SelectedRun | None = None
    log: LogFacts | None = None


def todays_budgets(
    view: View | None, user: str, whose: str, caps: DayCaps, at_us: int, *, everybody: bool
) -> tuple[Budget, ...]:
    """Return what is left of a user's budget today, under the name `whose`, and of everybody's together.

    Without a view there is no log yet, so nothing is spent.
    """
    day = day_of(at_us)
    caps_of_day = [(whose, user_scope(user, day), caps.user_micros)]
    if everybody:
        caps_of_day.append(("everybody", installation_scope(day), caps.installation_micros))
    budgets: list[Budget] = []
    for name, scope, cap in caps_of_day:
        if view is None:
            budgets.append(Budget(name, 0, 0, cap))
        else:
            bucket = view.bucket(scope)
            budgets.append(Budget(name, bucket.spent_micros, bucket.held_micros, cap))
    return tuple(budgets)


def current_rows(view: View, user: str | None, at_us: int) -> tuple[list[RunRow], list[RunRow]]:
    """Return the runs of a user (None: of everybody) that have not ended, and those that ended lately, newest first."""
    unended = view.runs(user=user, states=UNENDED, expired_before_us=at_us - RECENT_US, listed=True, limit=-1)
    # Found by their endings, the newest first, so that the number of all runs does not matter.
    endings = view.select("SELECT run_id, ts_us FROM events WHERE type = 'RunEnded' ORDER BY seq DESC")
    ended: list[RunRow] = []
    for run_id, ended_us in endings:
        if ended_us < at_us - RECENT_US:
            break
        row = view.run(run_id) if run_id is not None else None
        if row is not None and row.step is None and user in (None, row.user_id):
            ended.append(row)
    return unended, ended


def others_words(count: int) -> str:
    """Return a sentence on unfinished runs that a view limited to one user leaves out; empty for none."""
    if not count:
        return ""
    runs = "run belongs" if count == 1 else "runs belong"
    return f"{count} unfinished {runs} to other users."
