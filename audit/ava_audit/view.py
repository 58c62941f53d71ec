"""The view: the current state as commands and queries read it, from one connection in one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, Protocol, TypeVar

from ava_audit.database import ALL_ROWS, Database, IndexQuery
from ava_audit.entries import ENTRY_COLUMNS, LINE_COLUMNS, Entry, entry_of
from ava_audit.errors import StaleOwner
from ava_audit.events import Event, Fence, SessionStart, StepChanged
from ava_audit.projections import RUNS, Projections
from ava_audit.rows import (
    RUNNING,
    UNENDED,
    WAITING,
    Bucket,
    PastRun,
    PlanCaps,
    ProposalRow,
    RunFacts,
    RunRow,
    StepRunRow,
    calls_of,
)

FOREVER_US = 2**62
"""After all times of a log."""
PAST_RUNS = 100
"""The runs of a user and role among which similar ones are looked for."""


@dataclass(frozen=True)
class MoneyHolder:
    """A running run as a claim on money that others wait for: what it holds in each scope, and what it waits for.

    Attributes:
        order: The order of age: when it was approved, and its id.
        calls: Its calls in flight, each with its scopes and its worst case in micro-USD.
        wait: What it waits for itself (`MoneyAwaited`); None for one that works.
    """

    id: str
    user: str
    plan_id: str | None
    instance: str | None
    order: tuple[int, str]
    wrap_micros: int
    wrap_scopes: frozenset[str]
    calls: tuple[tuple[frozenset[str], int], ...]
    wait: Mapping[str, Any] | None

    def wrap_in(self, scope: str) -> int:
        """Return what it holds in a scope for its last turn."""
        return self.wrap_micros if scope in self.wrap_scopes else 0

    def calls_in(self, scope: str) -> int:
        """Return what it holds in a scope for its calls in flight."""
        return sum(micros for scopes, micros in self.calls if scope in scopes)

    def held_in(self, scope: str) -> int:
        return self.wrap_in(scope) + self.calls_in(scope)


HOLDER_COLUMNS = (
    "id", "user_id", "plan_id", "instance", "queued_us", "wrap_micros", "wrap_scopes", "in_flight", "money_wait",
)  # fmt: skip


def holder_of(
    run_id: str,
    user: str,
    plan_id: str | None,
    instance: str | None,
    queued_us: int | None,
    wrap_micros: int,
    wrap_scopes: str | None,
    in_flight: str | None,
    money_wait: str | None,
) -> MoneyHolder:
    """Return a running run as a holder of money, from these columns of its row."""
    return MoneyHolder(
        id=run_id,
        user=user,
        plan_id=plan_id,
        instance=instance,
        order=(queued_us or 0, run_id),
        wrap_micros=wrap_micros,
        wrap_scopes=frozenset(loads(wrap_scopes) or ()),
        calls=tuple((frozenset(call["scopes"]), int(call["micros"])) for call in calls_of(in_flight)),
        wait=loads(money_wait),
    )


_PAST = ", ".join(field.name for field in fields(PastRun) if field.name != "terms")
_FACTS = ", ".join(field.name for field in fields(RunFacts))
_STEP_RUN = ", ".join(field.name for field in fields(StepRunRow))
F = TypeVar("F", bound=RunFacts)
RunPhase = Literal["waiting", "running", "ended", "failed"]
RunOrder = Literal["newest", "oldest", "cost", "time", "role", "state"]
ORDERS: Mapping[RunOrder, tuple[str, str]] = {
    "newest": ("created_us", "DESC"),
    "oldest": ("created_us", "ASC"),
    "cost": ("cost_micros", "DESC"),
    "time": ("active_us", "DESC"),
    "role": ("role", "ASC"),
    "state": ("state", "ASC"),
}
"""The column of each order of runs, and its direction; those that are alike come newest first."""
NOT_FAILED = ("success", "no_answer", "cancelled", "rejected", "expired", "superseded")
"""Endings of runs that did not fail."""
NOT_A_PLAN = "substr(id, 1, 2) <> 'G-'"
"""Runs without plans, which take no slot and cost what their runs do."""
_LISTED = "(+step IS NULL OR +state = 'queued' AND +waits_for IN ('more', 'answer', 'resume'))"
_UNEXPIRED = f"SELECT run_id FROM proposals WHERE state = '{WAITING}' AND expires_us > ?"  # noqa: S608
"""Runs that wait for an approval: found by when they expire, because expired ones keep their state."""
_QUEUED = "SELECT id FROM runs WHERE state = 'queued'"
_EXPIRES = "(SELECT expires_us FROM proposals WHERE proposals.pending_id = runs.pending_id)"
_PHASES: Mapping[RunPhase, str] = {
    "waiting": f"+state IN ('queued', '{WAITING}') AND id IN ({_QUEUED} UNION ALL {_UNEXPIRED})",
    "running": "state = 'running'",
    "ended": f"(+ended_us IS NOT NULL OR +state = 'awaiting_approval' AND {_EXPIRES} <= ?)",
    "failed": f"+ended_us IS NOT NULL AND +state NOT IN ({', '.join(repr(state) for state in NOT_FAILED)})",
}


class View:
    """The current state, as one connection sees it in one transaction, from memory where the writer itself reads."""

    def __init__(self, db: Database, projections: Projections | None = None, head: int | None = None) -> None:
        self._db = db
        self._projections = projections
        self._head = head

    def head(self) -> int:
        if self._head is not None:
            return self._head
        return int(self._one("SELECT coalesce(max(seq), 0) FROM events")[0])

    def sizes(self) -> dict[str, int]:
        return self._db.sizes()

    def after(self, entries: int) -> View:
        """Return this view as it will be after a number of further entries that change no projection."""
        return View(self._db, self._projections, self.head() + entries)

    # -- runs, proposals, plans, budgets -----------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRow | None:
        return self._rows.runs.copy(run_id)

    def owned_run(self, fence: Fence) -> RunRow:
        """Return the running run of a claim. Raises StaleOwner if it has another owner, or does not run."""
        run = self.run(fence.run_id)
        if run is None or (run.generation, run.state) != (fence.generation, RUNNING):
            raise StaleOwner.of(*fence)
        return run

    def unended_of_others(self, user: str, now_us: int) -> int:
        where, values = _unended(UNENDED, now_us)
        ((count,),) = self.select(f"SELECT count(*) FROM runs WHERE {where} AND +user_id <> ?", *values, user)  # noqa: S608
        return int(count)

    def runs(
        self,
        *,
        user: str | None = None,
        states: Iterable[str] | None = None,
        ended_since_us: int | None = None,
        paused_at_us: int | None = None,
        expired_before_us: int | None = None,
        listed: bool = False,
        of_plans: bool = True,
        limit: int = 1000,
    ) -> list[RunRow]:
        """Return runs, oldest first, at most the `limit` newest ones (-1: all).

        Not `of_plans`: without the runs of plans, for which their plan stands.

        `listed`: for a list, so without the runs of plans, which are shown with their plan, unless they wait for a
        person.

        `paused_at_us`: only those that nobody may start then. `expired_before_us`: without proposals that had expired
        by then: they keep their state for ever, so a long history has many.
        """
        where = ["1 = 1"]
        values: list[str | int] = []
        if user is not None:
            # The last hour's by when they ended, and those that wait by their ids.
            has_better_index = ended_since_us or expired_before_us
            where.append("+user_id = ?" if has_better_index else "user_id = ?")
            values.append(user)
        if states is not None:
            condition, state_values = _unended(list(states), expired_before_us)
            where.append(condition)
            values.extend(state_values)
        if ended_since_us is not None:
            where.append("ended_us >= ?")
            values.append(ended_since_us)
        if paused_at_us is not None:
            where.append("waits_until_us > ?")
            values.append(paused_at_us)
        if listed:
            where.append(_LISTED)
        if not of_plans:
            where.append("+step IS NULL")
        order = "created_us"
        if states is not None or ended_since_us is not None:
            order = "+created_us"
        newest = self._runs(f"{' AND '.join(where)} ORDER BY {order} DESC, id LIMIT ?", *values, _rows_of(limit))
        return newest[::-1]

    def owners(self, user: str) -> set[str]:
        """Return the instances that have claimed this user's running runs."""
        sql = "SELECT DISTINCT instance FROM runs WHERE user_id = ? AND state = 'running' AND instance IS NOT NULL"
        return {str(instance) for (instance,) in self.select(sql, user)}

    def queued_before(self, run: RunRow, now_us: int) -> int:
        """Return how many queued runs, of all users, may start now and come before this one.

        Plans take no slot, and their runs come after all others.
        """
        earlier = "(coalesce(queued_us, 0) < ? OR coalesce(queued_us, 0) = ? AND id < ?)"
        before = f"step IS NULL AND {earlier}"
        if run.step is not None:
            before = f"(step IS NULL OR {earlier})"
        due = f"state = 'queued' AND (waits_until_us IS NULL OR waits_until_us <= ?) AND {NOT_A_PLAN}"
        sql = f"SELECT count(*) FROM runs WHERE {due} AND {before}"  # noqa: S608
        queued_us = run.queued_us or 0
        ((count,),) = self.select(sql, now_us, queued_us, queued_us, run.id)
        return int(count)

    def runs_with_entries_after(self, seq: int) -> list[RunRow]:
        ids = "SELECT DISTINCT run_id FROM events WHERE seq > ? AND run_id IS NOT NULL"
        return self._runs(f"id IN ({ids})", seq)

    def newest_runs(
        self,
        phase: RunPhase | None,
        now_us: int,
        *,
        user: str | None = None,
        role: str | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 50,
        replaced: bool = True,
        order: RunOrder = "newest",
        value: int | str | None = None,
    ) -> list[RunRow]:
        """Return runs, newest first, after the one with the time and id `before`, as `runs` does for a list.

        `phase`: only those that wait for their start or for a person, that run, of which nothing more comes, or that
        failed. An expired proposal waits no longer. Not `replaced`: without proposals in whose place a newer one is.
        In another `order`, `value` is that run's in the order's column.
        """
        where, values = _phase_condition(phase, now_us)
        few = "+" if phase in ("waiting", "running") else ""
        for column, wanted in (("user_id", user), ("role", role)):
            if wanted is not None:
                where.append(f"{few}{column} = ?")
                values.append(wanted)
        if not replaced:
            where.append("+state <> 'superseded'")
        if order != "newest":
            return self._ordered_runs(where, values, order, before, value, limit)
        # Walks the runs by time and stops when it has enough; runs that wait or run are few, and found by that.
        if before is not None:
            where.append("(created_us < ? OR created_us = ? AND id > ?)")
            values += [before[0], before[0], before[1]]
        return self._runs(f"{' AND '.join(where)} ORDER BY {few}created_us DESC, id LIMIT ?", *values, limit)

    def _ordered_runs(
        self,
        where: list[str],
        values: list[Any],
        order: RunOrder,
        before: tuple[int, str] | None,
        value: int | str | None,
        limit: int,
    ) -> list[RunRow]:
        """Return a page of runs in an order that no index has: sorts ids alone, because the other columns are long.

        `before` (created_us, id) and `value` (in the ordering column) are those of the last run of the page before.
        `where` and `values` are extended.
        """
        column, direction = ORDERS[order]
        if before is not None:
            beyond = "<" if direction == "DESC" else ">"
            created_us, run_id = before
            alike = "created_us < ? OR created_us = ? AND id > ?"
            where.append(f"({column} {beyond} ? OR {column} = ? AND ({alike}))")
            values += [value, value, created_us, created_us, run_id]
        by = f"{column} {direction}, created_us DESC, id"
        ids = f"SELECT id FROM runs WHERE {' AND '.join(where)} ORDER BY {by} LIMIT ?"  # noqa: S608
        return self._runs(f"id IN ({ids}) ORDER BY {by}", *values, limit)

    def roles(self, user: str | None) -> list[str]:
        users = self.users() if user is None else {user}
        roles: set[str] = set()
        for each in users:
            roles.update(self._distinct("role", "user_id = ? AND", each))
        return sorted(roles)

    def running(self, gone: Iterable[str] = (), *, but: str = "") -> dict[str, int]:
        """Return the number of running runs by user; those of owners in `gone`, and the run `but`, do not count."""
        dead = frozenset(gone)
        counts: Counter[str] = Counter()
        for run, (user, owner) in self._rows.running().items():
            if run != but and owner not in dead:
                counts[user] += 1
        return dict(counts)

    def past_runs(
        self, user: str, role: str, model: str, endings: Sequence[str], limit: int, but: Sequence[str] = ()
    ) -> list[PastRun]:
        """Return the last runs of a user and role with one of these endings; those of another model fill what is left.

        It looks at the last `PAST_RUNS` that ended, whatever their ending and model, so a long history costs no more;
        those whose `stop_reason` begins with one of `but` are passed over.
        """
        unless, reasons = _unless(but)
        newest = (
            f"SELECT {_PAST} FROM runs WHERE user_id = ? AND role = ? AND started_us IS NOT NULL"  # noqa: S608
            f" AND ended_us IS NOT NULL{unless} ORDER BY ended_us DESC LIMIT {PAST_RUNS}"
        )
        with_ending = (
            f"SELECT {_PAST} FROM ({newest}) AS newest WHERE state IN ({placeholders(endings)})"  # noqa: S608
            " ORDER BY model <> ?, ended_us DESC LIMIT ?"
        )
        sql = f"SELECT {_PAST}, terms FROM ({with_ending}) AS wanted JOIN configs USING (id)"  # noqa: S608
        return [PastRun(*row) for row in self.select(sql, user, role, *reasons, *endings, model, limit)]

    def ended_runs(self, kind: type[F], since_us: int, until_us: int, user: str | None = None) -> Iterator[F]:
        """Yield the runs that ended in a time (end exclusive), of a user or of everybody (None).

        Plans do not count: what they cost and how they ended, their runs say.
        `kind`: `RunFacts`, or `PastRun` to read what estimates need besides.
        """
        columns = f"{_FACTS} FROM runs"
        if kind is PastRun:
            columns = f"{_PAST}, terms FROM runs JOIN configs USING (id)"
        sql = (
            f"SELECT {columns} WHERE ended_us >= ? AND ended_us < ? AND (CAST(? AS TEXT) IS NULL OR user_id = ?)"
            " AND +id LIKE 'S-%'"
        )
        for row in self.stream(sql, since_us, until_us, user, user):
            yield kind(*row)

    def run_facts(self, run_id: str) -> RunFacts | None:
        for row in self.select(f"SELECT {_FACTS} FROM runs WHERE id = ?", run_id):  # noqa: S608
            return RunFacts(*row)
        return None

    def users(self) -> set[str]:
        return {*self._distinct("user_id")}

    def changed_after(self, seq: int, types: Iterable[str]) -> list[tuple[str, str, bool]]:
        """Return id and user of each run with entries after `seq`, and whether one of these has any of the types."""
        names = list(types)
        any_has_type = f"max(CASE WHEN type IN ({placeholders(names)}) THEN 1 ELSE 0 END)"
        rows = self.select(
            f"SELECT runs.id, runs.user_id, {any_has_type} FROM events"  # noqa: S608
            " JOIN runs ON runs.id = events.run_id WHERE seq > ? GROUP BY runs.id",
            *names, seq,
        )  # fmt: skip
        return [(str(run_id), str(user), bool(has_type)) for run_id, user, has_type in rows]

    def unfetched(self, user: str, limit: int = 50) -> list[RunRow]:
        """Return this user's ended runs whose result was neither fetched nor erased, newest first; no plan's runs."""
        return self._runs(
            "user_id = ? AND result_seq IS NOT NULL AND fetched_us IS NULL AND step IS NULL"
            " AND (SELECT content FROM events WHERE seq = result_seq) IS NOT NULL ORDER BY ended_us DESC LIMIT ?",
            user, limit,
        )  # fmt: skip

    def proposal(self, pending_id: str) -> ProposalRow | None:
        return self._rows.proposals.copy(pending_id)

    def plan_caps(self, plan_id: str | None) -> PlanCaps | None:
        """Return what the runs of a plan share; None for no plan."""
        return None if plan_id is None else self._rows.plans.copy(plan_id)

    def plan_runs(self, plan_id: str) -> list[RunRow]:
        return self._runs("plan_id = ? ORDER BY created_us, id", plan_id)

    def step_runs(self, plan_id: str) -> list[StepRunRow]:
        """Return the runs of a plan's steps, without their configurations, in the order in which they were queued."""
        sql = f"SELECT {_STEP_RUN} FROM runs WHERE plan_id = ? AND step IS NOT NULL ORDER BY queued_us, id"  # noqa: S608
        return [StepRunRow(*row) for row in self.select(sql, plan_id)]

    def committed_by_step(self, plan_id: str, steps: Collection[str]) -> dict[str, int]:
        """Return what the runs of these steps of a plan have spent and hold, in micro-USD, of each that is not over."""
        left = set(steps)
        for entry in self.entries(plan_id, 0, ("StepChanged",)):
            if isinstance(entry.fact, StepChanged) and entry.fact.state != "begun":
                left.discard(entry.fact.step)
        committed = dict.fromkeys(sorted(left), 0)
        if not committed:
            return committed
        names = tuple(committed)
        columns = "step, cost_micros, wrap_micros, in_flight"
        sql = f"SELECT {columns} FROM runs WHERE plan_id = ? AND step IN ({placeholders(names)})"  # noqa: S608
        for step, cost, wrap, in_flight in self.select(sql, plan_id, *names):
            committed[step] += cost + wrap + sum(int(call["micros"]) for call in calls_of(in_flight))
        return committed

    def asking_runs(self, plan_id: str) -> list[RunRow]:
        """Return the runs of a plan's steps that wait for a person's answer, those first that asked first."""
        return self._runs("plan_id = ? AND +state = 'queued' AND +asked IS NOT NULL ORDER BY last_us, id", plan_id)

    def step_run(self, run_id: str) -> StepRunRow | None:
        """Return one run of a plan's step; None for any other."""
        sql = f"SELECT {_STEP_RUN} FROM runs WHERE id = ? AND step IS NOT NULL"  # noqa: S608
        row = next(self.select(sql, run_id), None)
        return None if row is None else StepRunRow(*row)

    def bucket(self, scope: str) -> Bucket:
        """Return what a scope has spent and held; an empty bucket for an unused scope."""
        return self._rows.budgets.copy(scope) or Bucket(scope)

    def is_money_awaited(self) -> bool:
        """Tell whether a running run waits for money that others hold."""
        sql = "SELECT 1 FROM runs WHERE state = 'running' AND money_wait IS NOT NULL LIMIT 1"
        return next(self.select(sql), None) is not None

    def money_holders(self) -> list[MoneyHolder]:
        """Return the running runs with what they hold and wait for."""
        columns = ", ".join(HOLDER_COLUMNS)
        return [holder_of(*row) for row in self.select(f"SELECT {columns} FROM runs WHERE state = 'running'")]  # noqa: S608

    def unended_holders(self) -> list[RunRow]:
        """Return the runs that hold money and go on, wait for a slot, or are paused."""
        return self._runs("state IN ('running', 'queued') AND wrap_scopes IS NOT NULL ORDER BY queued_us, id")

    def approved_over(self, channel: str, user: str, since_us: int) -> list[RunRow]:
        """Return this user's runs that were approved over a channel from `since_us` on, oldest first."""
        return self._runs(
            "user_id = ? AND queued_us >= ? AND"
            " (SELECT channel FROM proposals WHERE proposals.pending_id = runs.pending_id) = ? ORDER BY queued_us",
            user, since_us, channel,
        )  # fmt: skip

    def has_approved_over(self, channels: Collection[str], user: str, since_us: int) -> bool:
        """Tell whether a run of this user was approved over one of these channels from `since_us` on."""
        over = f"proposals.channel IN ({placeholders(tuple(channels))})"
        joined = "runs JOIN proposals ON proposals.pending_id = runs.pending_id"
        sql = f"SELECT 1 FROM {joined} WHERE runs.user_id = ? AND runs.queued_us >= ? AND {over} LIMIT 1"  # noqa: S608
        return next(self.select(sql, user, since_us, *channels), None) is not None

    def with_task_id(self, user: str, task_id: str) -> list[RunRow]:
        """Return this user's unended runs with a `task_id`, oldest first."""
        where = "user_id = ? AND task_id = ? AND state IN (?, ?, ?) ORDER BY created_us, id"
        return self._runs(where, user, task_id, *UNENDED)

    def with_task_prefix(self, user: str, prefix: str) -> list[RunRow]:
        """Return all of this user's runs whose `task_id` begins with a text, oldest first."""
        where = "user_id = ? AND task_id >= ? AND task_id < ? ORDER BY +created_us, id"
        return self._runs(where, user, prefix, f"{prefix}\U0010ffff")

    def live(self, run_id: str) -> tuple[str, int] | None:
        """Return what a run is doing right now and since when (microseconds UTC), or None."""
        return next(self.select("SELECT text, at_us FROM live WHERE run_id = ?", run_id), None)

    # -- entries ------------------------------------------------------------------------------------------------------

    def entry(self, seq: int) -> Entry | None:
        return next(self._entries("seq = ?", seq), None)

    def entries(self, run_id: str, after: int = 0, types: Sequence[str] | None = None) -> list[Entry]:
        # The plus stops SQLite from walking all entries of the type: a run has few, the log may have a million.
        names = types or ()
        only = f" AND +type IN ({placeholders(names)})" if names else ""
        return [*self._entries(f"run_id = ? AND seq > ?{only} ORDER BY seq", run_id, after, *names)]

    def newer_entries(self, run_id: str, after: int, limit: int) -> list[Entry]:
        """Return the oldest entries of a run with a greater `seq`, in order; at most `limit`."""
        return [*self._entries("run_id = ? AND seq > ? ORDER BY seq LIMIT ?", run_id, after, limit)]

    def older_entries(self, run_id: str, before: int | None, limit: int) -> list[Entry]:
        """Return the newest entries of a run with a smaller `seq` (None: of all), newest first; at most `limit`."""
        if before is None:
            return [*self._entries("run_id = ? ORDER BY seq DESC LIMIT ?", run_id, limit)]
        return [*self._entries("run_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?", run_id, before, limit)]

    def count_entries(self, run_id: str, most: int) -> int:
        """Return how many entries a run has; `most` if it has more."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM events WHERE run_id = ? LIMIT ?) AS few"
        return int(self._one(sql, run_id, most)[0])

    def rare_entries(self, run_id: str, types: Sequence[str]) -> list[Entry]:
        """Return a run's entries of these types, in order. It walks all of the types: they have to be rare."""
        return [*self._entries(f"type IN ({placeholders(types)}) AND +run_id = ? ORDER BY seq", *types, run_id)]

    def of_type(self, type_name: str) -> list[Entry]:
        return [*self._entries("type = ? ORDER BY seq", type_name)]

    def first_entry(self, run_id: str, type_name: str) -> Entry | None:
        return next(self._entries("run_id = ? AND +type = ? ORDER BY seq LIMIT 1", run_id, type_name), None)

    def last_entry(self, run_id: str, type_name: str, *, own: bool = False) -> Entry | None:
        only = " AND generation IS NOT NULL" if own else ""
        where = f"run_id = ? AND +type = ?{only} ORDER BY seq DESC LIMIT 1"
        return next(self._entries(where, run_id, type_name), None)

    def newest_entries(self, run_id: str, types: Sequence[str], limit: int) -> list[Entry]:
        only = f"generation IS NOT NULL AND +type IN ({placeholders(types)})"
        return [*self._entries(f"run_id = ? AND {only} ORDER BY seq DESC LIMIT ?", run_id, *types, limit)][::-1]

    def newest(self, types: Iterable[str]) -> int:
        """Return the newest `seq` of an entry of one of these types, 0 without one."""
        sql = "SELECT coalesce(max(seq), 0) FROM events WHERE type = ?"
        return max((int(self._one(sql, name)[0]) for name in types), default=0)

    def any_after(self, seq: int, types: Sequence[str]) -> bool:
        """Tell whether there is an entry after `seq` of one of these types."""
        sql = f"SELECT 1 FROM events WHERE seq > ? AND type IN ({placeholders(types)}) LIMIT 1"  # noqa: S608
        return next(self.select(sql, seq, *types), None) is not None

    def is_erased(self, run_id: str) -> bool:
        rows = self.select("SELECT 1 FROM events WHERE run_id = ? AND type = 'LogErased' LIMIT 1", run_id)
        return next(rows, None) is not None

    def last_erasure(self) -> int:
        """Return the `seq` of the newest `LogErased`, 0 without one."""
        return self.newest(("LogErased",))

    def newest_before(self, ts_us: int) -> int | None:
        """Return the newest time (microseconds UTC) of an entry at or before a time, or None."""
        (newest,) = self._one("SELECT max(ts_us) FROM events WHERE ts_us <= ?", ts_us)
        return None if newest is None else int(newest)

    def last_older(self, ts_us: int, before_seq: int) -> int:
        """Return the newest `seq` below `before_seq` whose time is before `ts_us`, 0 without one."""
        sql = "SELECT seq FROM events WHERE seq < ? AND +ts_us < ? ORDER BY seq DESC LIMIT 1"
        (seq,) = next(self.select(sql, before_seq, ts_us), (0,))
        return int(seq)

    def seq_bounds(self, since_us: int, until_us: int) -> tuple[int, int]:
        """Return the first and last `seq` of a time range (end exclusive), (0, -1) without one; 0.25 s a million."""
        low, high = self._one(
            "SELECT min(seq), max(seq) FROM events WHERE ts_us >= ? AND ts_us < ?", since_us, until_us
        )
        return (0, -1) if low is None else (int(low), int(high))

    def session_start(self, session_id: str) -> SessionStart | None:
        for entry in self._entries("type = 'SessionStart' AND session_id = ? LIMIT 1", session_id):
            if isinstance(entry.fact, SessionStart):
                return entry.fact
        return None

    def span(self, agent_id: str) -> tuple[int, int]:
        """Return the first and last `seq` of an agent's entries, (0, -1) without one."""
        first, last = self._one(  # two subqueries, so that each is one index look-up
            "SELECT (SELECT min(seq) FROM events WHERE agent_id = ?), (SELECT max(seq) FROM events WHERE agent_id = ?)",
            agent_id, agent_id,
        )  # fmt: skip
        return (0, -1) if first is None else (int(first), int(last))

    # -- maintenance, and the caller's own SQL ------------------------------------------------------------------------

    def progress(self, duty: str) -> int:
        (seq,) = next(self.select("SELECT seq FROM progress WHERE name = ?", duty), (0,))
        return int(seq)

    def mirrored(self) -> dict[str, int]:
        """Return the full length of each mirror file in bytes; -1 if content was erased since it was written."""
        return dict(self.select("SELECT file, bytes FROM mirrored"))

    def mirrored_size(self, file: str) -> int:
        """Return the full length of a mirror file in bytes, 0 if it has none yet; -1 as for `mirrored`."""
        (size,) = next(self.select("SELECT bytes FROM mirrored WHERE file = ?", file), (0,))
        return int(size)

    def rows(self, where: str, *values: object, limit: int = -1) -> Iterator[tuple[Any, ...]]:
        """Yield the rows (`LINE_COLUMNS`) that match an SQL condition, in order of `seq`; `limit` -1 means all."""
        sql = f"SELECT {LINE_COLUMNS} FROM events WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608
        yield from self.stream(sql, *values, _rows_of(limit))

    def select(self, sql: str, *values: object, **named: object) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a SELECT, whose parameters are all `?` or all named."""
        if self._projections is not None:
            self._projections.flush()
        # A generator would close its cursor when it is let go, which fails once an error has closed the database.
        return iter(self._db.execute(sql, named or values))

    def stream(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a SELECT that may be many or large, without having all of them in memory."""
        if self._projections is not None:
            self._projections.flush()
        return iter(self._db.stream(sql, values))

    @property
    def words_key(self) -> str:
        return self._db.words_key

    @property
    def words_in_order(self) -> bool:
        return self._db.words_in_order

    def words_condition(self, query: IndexQuery, near: tuple[int, int] | None = None) -> tuple[str, list[object]]:
        return self._db.words_condition(query, near)

    def _distinct(self, column: str, where: str = "", *values: object) -> Iterator[str]:
        """Yield the values of a column of the runs, each by one look-up: the number of runs does not matter."""
        sql = f"SELECT min({column}) FROM runs WHERE {where} {column} > ?"  # noqa: S608
        (value,) = self._one(sql, *values, "")
        while value is not None:
            yield str(value)
            (value,) = self._one(sql, *values, value)

    def _one(self, sql: str, *values: object) -> tuple[Any, ...]:
        return next(self.select(sql, *values))

    def _runs(self, where: str, *values: object) -> list[RunRow]:
        return [RunRow(*row) for row in self.select(f"{RUNS.select} WHERE {where}", *values)]

    def _entries(self, where: str, *values: object) -> Iterator[Entry]:
        return map(entry_of, self.select(f"SELECT {ENTRY_COLUMNS} FROM events WHERE {where}", *values))  # noqa: S608

    @property
    def _rows(self) -> Projections:
        if self._projections is None:
            self._projections = Projections(self._db)
        return self._projections


def placeholders(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _unended(states: Sequence[str], expired_before_us: int | None) -> tuple[str, list[str | int]]:
    """Return the condition that a run is in one of these states, and its values; see `View.runs` for the second."""
    if expired_before_us is None or WAITING not in states:
        return f"state IN ({placeholders(states)})", [*states]
    others = [state for state in states if state != WAITING]
    ids = _UNEXPIRED
    if others:
        ids = f"SELECT id FROM runs WHERE state IN ({placeholders(others)}) UNION ALL {_UNEXPIRED}"  # noqa: S608
    condition = f"+state IN ({placeholders(states)}) AND id IN ({ids})"
    return condition, [*states, *others, expired_before_us]


def _phase_condition(phase: RunPhase | None, now_us: int) -> tuple[list[str], list[Any]]:
    """Return the conditions for listed runs of a phase, and their values."""
    if phase is None:
        return [_LISTED], []
    condition = _PHASES[phase]
    return [_LISTED, condition], [now_us] * condition.count("?")


def _unless(but: Sequence[str]) -> tuple[str, list[str]]:
    """Return the condition that the `stop_reason` begins with none of these, and its values."""
    return " AND stop_reason NOT LIKE ?" * len(but), [f"{words}%" for words in but]


def _rows_of(limit: int) -> int:
    return limit if limit >= 0 else ALL_ROWS


def loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)


T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a command returns: a value for its caller, and the events to append."""

    value: T
    events: tuple[Event, ...] = ()


Command = Callable[[View, int], Outcome[T]]
"""A pure function: `(state, now in microseconds UTC) -> outcome`."""
Query = Callable[[View], T]


class Readable(Protocol):
    """A log that answers queries: a `Store`, or one state of the log that was opened to look at it."""

    async def read(self, query: Query[T], /, *, within_s: float | None = None, short: bool = False) -> T:
        """Run a query on one consistent state, as `Store.read`. Raises StoreUnavailable."""
        ...


def append(*events: Event) -> Command[None]:
    def command(_view: View, _now_us: int) -> Outcome[None]:
        return Outcome(None, events)

    return command
