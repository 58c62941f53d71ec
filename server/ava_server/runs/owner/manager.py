"""The run manager of one process: claims runs, drives those that it owns, and takes over those whose owner is gone.

It claims queued runs while slots are free, takes over running ones whose owner's lock is free, learns of cancels from
the log, and holds every run that it owns in one task group.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from ava_audit.errors import AuditError, SchemaNewer, StoreUnavailable
from ava_audit.events import CancelledBy, Who
from ava_audit.rows import QUEUED, RUNNING, PlanCaps, RunRow
from ava_audit.store.backend import Instances, Membership
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import View
from ava_roles.errors import FolderReplaced
from ava_server import telemetry
from ava_server.budget import user_limits
from ava_server.core.background import WorkerProcesses
from ava_server.core.ids import AGENT
from ava_server.core.shortage import find_shortage, shortage_in
from ava_server.core.threads import each_at_once
from ava_server.delivery import Delivery, attempt_of, queue_of, queues_for
from ava_server.delivery.log import LogDelivery, settle_s
from ava_server.delivery.outbox import Message, Outbox
from ava_server.run_config.config import config_of
from ava_server.runs.owner import workers
from ava_server.runs.owner.activities import ActivityBoard
from ava_server.runs.owner.blockers import Blocker
from ava_server.runs.owner.control import GoneOwners, RunControl
from ava_server.runs.owner.mode import Driver, Mode, driver_of
from ava_server.runs.owner.offers import Offers
from ava_server.runs.owner.run_notes import RunNotes
from ava_server.runs.owner.workers import BackgroundWorkers, LiveWorkers
from ava_server.runs.plan.plan import PlanInputs
from ava_server.runs.plan.plan_run import PlanRun
from ava_server.runs.record.claims import claim, waits_for_resume
from ava_server.runs.record.endings import ON_REQUEST, cancel_reason, overdue
from ava_server.runs.record.history import History
from ava_server.runs.record.lifecycle import (
    agent_of,
    idle_since_us,
    needs_resume,
    pause_words,
    paused,
    situation,
)
from ava_server.runs.record.money_holders import start_wait
from ava_server.runs.record.plan_time import plan_time
from ava_server.runs.record.result import RunResult
from ava_server.runs.record.unended import Unended, read_unended, share_texts
from ava_server.runs.turn.context import ConfigNotSupported
from ava_server.runs.turn.loop import AgentRun

if TYPE_CHECKING:
    from ava_server.runs.turn.resources import RunResources
    from ava_server.runs.turn.setup import RunSetup

log = logging.getLogger("ava.manager")
T = TypeVar("T")

LOOK_EVERY_S = 1.0
"""Seconds between two looks at owners' locks and queued runs without news from the log, at most."""
LOOK_AFTER_S = 0.1
"""Seconds between them at least, where an owner's lease is about to end."""
AHEAD = 100
"""Above this many waiting runs, a look goes only through the first of each user, up to this many: a user with thousands
of runs slows down nobody else."""
WHOLE_TIMES = 10
"""All waiting runs are looked through again after a second, or after this many times what the last such look took."""
TAKEN_AT_ONCE = 16
"""Runs that are taken at once: their claims share commits."""
LEAVE_EVERY_S = 0.1
"""How often it is checked whether all runs have been left."""
CLOSE_S = 3.0
"""Seconds that removing a run's folders may take; a copy of a workspace has many files."""
INTERNAL = "a fault of Ava itself, written to the server's standard error"
KEEPS_RUNS = "this process runs its subagents itself (`background = false`, or `--yes`)"
FAULTS = 2
"""Internal errors after which this process gives up a run."""


class Manager:
    """Claims and drives the runs of one process.

    Attributes:
        waiting_for: By run, why this instance cannot take it.
        idle_since: Since when (on anyio's clock) nothing has run or waited for its turn; None while something does.
        out_of_reach: Why the log could not be used at the last look for work, or None.
        slots: How many runs may be running; with fewer, those that run go on.
        outdated: A newer program has migrated the log: this process claims nothing more.
        sessions: The sessions of this process: their runs are claimed at once, others' after a grace.
        adopted: Runs that were resumed here: they are claimed at once too.
        driver: Who drives the runs that it claims.
    """

    def __init__(
        self,
        mode: Mode,
        resources: RunResources,
        instances: Instances,
        membership: Membership,
        setup: RunSetup,
        *,
        delivery: Delivery | None = None,
        everybody: bool = False,
    ) -> None:
        """`everybody`: all users of the log are users of this process, not only the system's.

        `delivery`: how workers hear of runs; None is the log itself.
        """
        store, settings = resources.store, resources.settings
        self.mode = mode
        self.driver: Driver = "this process"
        if mode.leaves:
            self.driver = driver_of(settings)
        self.instance = membership.name
        self._notes = _run_notes(store, mode, membership.name)
        self.waiting_for = self._notes.waiting_for
        self._settings = settings
        self._set_delivery(store, delivery, membership)
        on_cancel = None
        if self._uses_engine:
            on_cancel = self.outbox.put_cancel
        self.control = RunControl(store, instances, membership.name, setup, on_cancel)
        self.idle_since: float | None = None
        self.out_of_reach: str | None = None
        self.outdated = False
        self.sessions: set[str] = set()
        self.adopted: set[str] = set()
        self._store = store
        self._user = None if everybody else resources.user
        self.slots = user_limits.slots(settings)
        self._setup = setup
        self._day_caps = resources.day_caps
        self._plan_inputs = PlanInputs(resources.render_result, resources.day_caps)
        self._live_workers = LiveWorkers(instances)
        self._background = BackgroundWorkers(store, instances, WorkerProcesses(settings.paths), resources.credentials)
        self._gone_owners = GoneOwners(store, self.control, settings.lease_s)
        self._membership = membership
        self._owned: dict[str, AgentRun | PlanRun | None] = {}
        self._board = ActivityBoard(membership, lambda: {run.id: run.activity for run in self._driven()})
        self._without_slot: set[str] = set()  # runs that wait for one
        self._short_of_money = frozenset[str]()  # runs that have not begun and wait for money that others hold
        self._woken = anyio.Event()
        self._unended: Unended | None = None
        self._settle_s = 0.0
        self._look_at_all_from_s = 0.0
        self._next_look_in_s = 0.0

    def _set_delivery(self, store: Store, engine: Delivery | None, membership: Membership) -> None:
        """Decide how this process hears of runs and hands them out: by the engine, or by the log itself."""
        log_itself = LogDelivery(store)
        self.delivery: Delivery = engine or log_itself
        self.outbox = Outbox(self.delivery, membership.tell)
        self.offers = Offers(self.wake, membership)
        self._uses_engine = self.delivery.carries and self.driver == "workers"
        self._takes_only_offers = self.delivery.carries and self.mode.shares_log
        self._offer_source: Delivery = log_itself
        if self._takes_only_offers:
            self._offer_source = self.delivery

    @property
    def leaves_runs(self) -> bool:
        """Whether other processes drive the runs that it claims, so that these outlive it."""
        return self.driver != "this process"

    def wake(self) -> None:
        self._woken.set()

    async def hand_over(self, within_s: float) -> None:
        """Claim nothing more, and leave each run to another process before its next model call.

        What has been paid for is on the record by then. Runs that take longer are left as they are.
        """
        self.offers.stop_taking()
        with anyio.move_on_after(within_s):
            with contextlib.suppress(StoreUnavailable):  # the next renewal tells others
                await anyio.to_thread.run_sync(self._membership.renew, abandon_on_cancel=True)
            while self._owned:
                for run in self._driven():
                    run.leave()
                await anyio.sleep(LEAVE_EVERY_S)

    def activity(self, run_id: str) -> str | None:
        run = self._owned.get(run_id)
        return None if run is None else run.activity

    def owns(self, run_id: str) -> bool:
        return run_id in self._owned

    def why_not_worker(self, run_id: str) -> str:
        """Return why no worker runs a run of this process, although what was approved continues; else empty."""
        if run_id not in self._owned:
            return ""
        return self._notes[run_id].why_with_host

    def _driven(self) -> list[AgentRun | PlanRun]:
        """Return the runs that it owns, without those that are being made ready."""
        return [run for run in self._owned.values() if run is not None]

    async def run(self) -> None:
        """Serve runs until cancelled; every run is a task of this call.

        It returns once a newer program has migrated the log and the last run here has stopped: this process then owns
        nothing, and the newer one may take its runs over.
        """
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._hear)
            if self._uses_engine:
                watching.start_soon(self.outbox.run)
            watching.start_soon(self._board.keep)
            async with anyio.create_task_group() as tasks:
                await self._serve(tasks)
            watching.cancel_scope.cancel()

    async def _hear(self) -> None:
        """Hear of runs: from the engine in a worker, else from the log."""
        queues = queues_for(self._settings.labels) if self._takes_only_offers else []
        most = self._settings.delivery.slots or max(self.slots.total, 1)
        await self._offer_source.work(self.instance, queues, most, self.offers)

    async def _serve(self, tasks: anyio.abc.TaskGroup) -> None:
        while self._owned or not self.outdated:
            woken = self._woken = anyio.Event()
            self._next_look_in_s = LOOK_EVERY_S
            try:
                if not self.outdated:
                    await self._look(tasks)
                self.out_of_reach = None
            except SchemaNewer as error:
                self._stop_claiming(error)
                continue
            except Exception as error:  # the log is out of reach: nothing is claimed until the next look
                if not isinstance(error, AuditError) and not shortage_in(error):
                    raise
                if self.out_of_reach is None:
                    log.warning("looking for runs: %s", error)
                self.out_of_reach = str(error)
                self._note_idle(busy=bool(self._owned))
            self.offers.settled_s = anyio.current_time() + self._settle_s
            with anyio.move_on_after(self._next_look_in_s):
                await woken.wait()
        self._note_idle(busy=False)

    def _stop_claiming(self, newer: SchemaNewer) -> None:
        if not self.outdated:
            self.outdated = True
            self.offers.leave()
            log.error("the runs of this server are left to the newer program: %s", newer)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        began_s = anyio.current_time()
        offered = self.offers.open()
        query = partial(read_unended, head=self._store.head, known=self._unended)
        unended = await self._store.read(query, short=True)
        self._unended = unended
        rows = list(unended.runs.values())
        looks_at_all = began_s >= self._look_at_all_from_s
        if not looks_at_all:
            rows = self._front(rows, offered)
        await self._check_all_owned(rows, unended)
        others = [row for row in rows if row.id not in self._owned and self._serves(row)]
        gone = frozenset[str]()
        if others:
            gone = await self._gone_among(rows)
        if looks_at_all:
            self._tidy_notes(unended.runs, gone)
        free = await self._free(others, unended.plans, gone)
        free = await self._affordable(free, gone)
        self._settle_s = settle_s(began_s)
        if looks_at_all and len(rows) > AHEAD:
            took_s = anyio.current_time() - began_s
            self._look_at_all_from_s = began_s + max(LOOK_EVERY_S, WHOLE_TIMES * took_s)
        if self._takes_only_offers:
            free = [row for row in free if row.id in offered or row.instance == self.instance]
        await self._fill_slots(free, rows, gone, tasks)
        await self._answer_offers(offered, unended.runs)
        self._note_idle(busy=bool(self._owned) or self._has_due(others))

    async def _check_all_owned(self, rows: Sequence[RunRow], unended: Unended) -> None:
        for row in rows:
            await self._check_owned(row)
        for run in self._driven():
            if run.id not in unended.runs:  # another process has ended it, or this one just now
                run.lose()

    async def _gone_among(self, rows: Sequence[RunRow]) -> frozenset[str]:
        """Return which owners of these runs are gone; the next look is before the lease of another one ends."""
        if all(row.instance in (None, self.instance) for row in rows):
            return frozenset()
        gone = await anyio.to_thread.run_sync(self.control.gone, rows)
        lease_ends_s = min(self.control.lasts_s(rows, gone), default=LOOK_EVERY_S)
        self._next_look_in_s = max(LOOK_AFTER_S, min(LOOK_EVERY_S, lease_ends_s))
        return gone

    async def _free(self, rows: Sequence[RunRow], plans: Mapping[str, PlanCaps], gone: frozenset[str]) -> list[RunRow]:
        """Return the runs that may be taken, and end those whose time is over."""
        free: list[RunRow] = []
        busy_us = _last_work_us(rows)
        changed_plans = await self._interrupt_runs(rows, gone)
        for row in rows:
            if (row.plan_id or row.id) in changed_plans:  # the next look has them as they are now
                continue
            without_owner = gone
            if row.instance == self.instance:  # this process has dropped it: it has no owner, though that is alive
                without_owner = gone | {self.instance}
            plan = plans.get(row.plan_id or "")
            if overdue(row, plan, without_owner, now_us(), busy_us.get(row.id, 0)) is not None:
                await self._end_overdue(row, without_owner)
            elif row.state == QUEUED and row.cancel_seq is not None:  # no claim takes it
                await self._end_cancelled(row)
            elif await self._may_take(row, gone):
                free.append(row)
        return free

    async def _interrupt_runs(self, rows: Sequence[RunRow], gone: frozenset[str]) -> set[str]:
        """Record which runs of plans only a person resumes, before their plan's time is looked at; return the plans."""
        lost = [row for row in rows if row.plan_id is not None and row.state == RUNNING and row.instance in gone]
        if not lost:
            return set()
        now = now_us()
        waiting = await self._store.look(lambda view: [row for row in lost if waits_for_resume(view, row, now)])
        changed: set[str] = set()
        for plan_id in {row.plan_id or "" for row in waiting}:
            members = [row for row in rows if row.plan_id == plan_id]
            if await self.control.interrupt_runs(plan_id, members, gone):
                changed.add(plan_id)
        return changed

    async def _affordable(self, free: Sequence[RunRow], gone: frozenset[str]) -> list[RunRow]:
        """Leave out runs that have not begun and wait for money that others hold."""
        now = now_us()
        new = [row for row in free if row.generation == 0]

        def query(view: View) -> dict[str, str]:
            waits: dict[str, str] = {}
            for row in new:
                try:
                    why = start_wait(view, row, self._day_caps(row.user_id), now, gone)
                except ValueError:  # a newer Ava wrote its configuration; taking it says so
                    continue
                if why is not None:
                    waits[row.id] = why
            return waits

        waits = await self._store.look(query) if new else {}
        if waits:  # what runs hold whose process is gone comes back; the next look finds it
            await self._gone_owners.now()
        for run_id, why in waits.items():
            self._notes.wait_for_turn(run_id, why)
        self._short_of_money = frozenset(waits)
        return [row for row in free if row.id not in waits]

    def _has_due(self, rows: Sequence[RunRow]) -> bool:
        """Tell whether one of these runs goes on by itself: after a pause, or once a slot or money is free."""
        now = now_us()
        waits_for_turn = self._without_slot | self._short_of_money
        for row in rows:
            goes_on = paused(row, now) and not needs_resume(row)
            if goes_on or row.id in waits_for_turn:
                return True
        return False

    async def _answer_offers(self, offered: frozenset[str], runs: Mapping[str, RunRow]) -> None:
        """Say of each offer that this process has not taken, or no longer drives, whether it may be forgotten."""
        for run_id in offered - self._owned.keys():
            run = runs.get(run_id) or await self._store.look(partial(View.run, run_id=run_id))
            self.offers.answer(run, run_id, now_us())

    def _front(self, rows: Sequence[RunRow], offered: frozenset[str]) -> list[RunRow]:
        """Leave out runs that wait behind many others of their user, but none that was offered."""
        ahead: Counter[str] = Counter()
        front: list[RunRow] = []
        now = now_us()
        for row in rows:
            if row.state == QUEUED and (row.waits_until_us or 0) <= now:
                ahead[row.user_id] += 1
                if ahead[row.user_id] > AHEAD and row.id not in offered:
                    continue
            front.append(row)
        return front

    def _tidy_notes(self, runs: Mapping[str, RunRow], gone: frozenset[str]) -> None:
        """Forget the runs that have ended."""
        self._notes.tidy(runs, gone)
        self.outbox.keep_only(runs)
        self.adopted &= runs.keys()

    def _serves(self, row: RunRow) -> bool:
        match self.mode.claims:
            case "everybody":
                mine = True
            case "its users":
                mine = self._user in (None, row.user_id)
            case "its session":
                mine = row.session_id in self.sessions
            case "nobody":
                mine = False
        return mine or row.id in self.adopted

    def _note_idle(self, *, busy: bool) -> None:
        if busy:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = anyio.current_time()

    async def _end_overdue(self, row: RunRow, gone: frozenset[str]) -> None:
        """End a run whose time is over."""
        await self._end_unowned(row.id, partial(self.control.end_overdue, row.id, gone))

    async def _end_cancelled(self, row: RunRow) -> None:
        """End a run in the queue that no claim takes, because it was cancelled."""
        reason = await self._store.look(lambda view: cancel_reason(view, row.id))
        ended = RunResult("cancelled", ON_REQUEST, reason=reason)
        await self._end_unowned(row.id, partial(self.control.end, row.id, ended))

    async def _end_unowned(self, run_id: str, end: Callable[[], Awaitable[bool]]) -> None:
        """End a run that nobody owns; an unreadable run waits for a program that can read it."""
        if not self._notes[run_id].is_due:
            return
        try:
            await end()
        except AuditError:
            raise
        except Exception as error:
            shortage = shortage_in(error)
            self._retry_later(run_id, shortage or INTERNAL)
            if not shortage:
                log.exception("%s cannot be ended", run_id)

    async def _check_owned(self, row: RunRow) -> None:
        """Pass a cancel on to a run that this process owns, and end the run where it does not stop."""
        owned = self._owned.get(row.id)
        if owned is None:
            return
        if row.state == RUNNING and row.instance != self.instance:
            owned.lose()
            return
        if row.cancel_seq is not None:
            owned.cancel(await self._store.look(lambda view: cancel_reason(view, row.id)))
        ended = owned.overdue() if row.state == RUNNING else None
        if ended is not None:
            log.error("%s does not stop and is ended by the manager (%s)", row.id, ended.status)
            await self.control.end(row.id, ended, "give up")

    async def _fill_slots(
        self, free: list[RunRow], rows: Sequence[RunRow], gone: frozenset[str], tasks: anyio.abc.TaskGroup
    ) -> None:
        """Take runs while slots are free: each time the oldest of the user who has the fewest running."""
        if self.offers.leaving:
            return
        if self.driver == "workers":
            await self._leave_to_workers(free, rows, gone)
            return
        in_line = self._line_up(free)
        count = self._running(rows, gone)
        if self.mode.spread > 1:
            for line in in_line.values():
                oldest = [line.popleft() for _ in range(min(self.mode.spread, len(line)))]
                line.extendleft(random.sample(oldest, len(oldest)))
        self._without_slot.clear()
        while in_line:
            chosen = self._next_in_line(in_line, count, gone)
            for row in await self._take_all(chosen, gone, tasks):
                count[row.user_id] += _needs_slot(row, gone)

    @staticmethod
    def _running(rows: Sequence[RunRow], gone: frozenset[str]) -> Counter[str]:
        """Return how many runs each user has running."""
        running = [row for row in rows if row.state == RUNNING and row.instance not in gone and not row.is_plan]
        return Counter(row.user_id for row in running)

    @staticmethod
    def _line_up(free: Sequence[RunRow]) -> dict[str, deque[RunRow]]:
        """Return each user's free runs, the oldest first."""
        in_line: dict[str, deque[RunRow]] = {}
        # A plan's runs wait behind others: two hundred steps hold up no single run.
        for row in sorted(free, key=lambda row: (row.step is not None, row.queued_us or 0, row.id)):
            in_line.setdefault(row.user_id, deque()).append(row)
        return in_line

    def _next_in_line(
        self, in_line: dict[str, deque[RunRow]], count: Mapping[str, int], gone: frozenset[str]
    ) -> list[RunRow]:
        """Take the next runs out of the line, as many as have a slot if all of them are taken; note those without.

        `count`: how many slots each user has in use.
        """
        chosen: list[RunRow] = []
        count = Counter(count)
        while in_line and len(chosen) < TAKEN_AT_ONCE:
            user = min(in_line, key=lambda user: (count[user], in_line[user][0].queued_us or 0))
            row = in_line[user][0]
            is_due = self._notes[row.id].is_due
            why_no_slot: str | None = None
            if is_due and _needs_slot(row, gone):
                why_no_slot = self.slots.full(count, user)
            if why_no_slot and chosen:  # there is a slot if one of those is not taken
                break
            in_line[user].popleft()
            if not in_line[user]:
                del in_line[user]
            if why_no_slot:
                self._without_slot.add(row.id)
                self._notes.wait_for_turn(row.id, why_no_slot)
            elif is_due:
                chosen.append(row)
                count[user] += _needs_slot(row, gone)
        return chosen

    async def _take_all(self, rows: Sequence[RunRow], gone: frozenset[str], tasks: anyio.abc.TaskGroup) -> list[RunRow]:
        """Try to take runs at the same time, and return those that were taken. Raises AuditError: the first one."""
        taken: list[RunRow] = []

        async def take(row: RunRow) -> None:
            if await self._try_to_take(row, gone, tasks):
                taken.append(row)

        await each_at_once(take, rows)
        return taken

    async def _leave_to_workers(self, free: list[RunRow], rows: Sequence[RunRow], gone: frozenset[str]) -> None:
        """Leave runs to the workers, by the engine if there is one.

        Each queue has a line and slots of its own: what waits for a machine that nobody has holds up no other queue.
        The claim keeps the slots of all queues together.
        """
        if not free:
            return
        await self._live_workers.look()
        if not self._uses_engine:
            for row in free:
                self._notes.wait_for_worker(row.id, self._live_workers.none_at_all())
            return
        await self._take_back_old_notes(free)
        queues: dict[str, list[RunRow]] = {}
        for row in free:
            queues.setdefault(self._queue(row), []).append(row)
        self._without_slot.clear()
        running = self._running(rows, gone)
        for queue, waiting in queues.items():
            in_line, count = self._line_up(waiting), running.copy()
            while in_line:
                for row in self._next_in_line(in_line, count, gone):
                    count[row.user_id] += _needs_slot(row, gone)
                    self._hand_out(row, queue)

    def _queue(self, row: RunRow) -> str:
        """Return the engine's queue for a run."""
        note = self._notes[row.id]
        if note.labels is None:
            note.labels = frozenset()
            if not row.is_plan:
                with contextlib.suppress(ValueError):  # a newer Ava wrote its configuration: any worker says so
                    note.labels = frozenset(config_of(row.config).labels)
        return queue_of(note.labels, plan=row.is_plan)

    def _hand_out(self, row: RunRow, queue: str) -> None:
        """Have the engine deliver a run, and say what it waits for while no worker has it."""
        attempt = attempt_of(row.generation, idle_since_us(row), now_us(), self._settings.lease_s)
        self.outbox.put(Message(row.id, queue, attempt))
        why = self.outbox.fault_of(queue) or self._live_workers.none_for(self._notes[row.id], queue)
        self._notes.wait_for_worker(row.id, why)

    async def _take_back_old_notes(self, rows: Sequence[RunRow]) -> None:
        """Remove what another server, or this one before it was started again, has said of runs that wait."""
        new = [row.id for row in rows if self._notes[row.id].no_worker is None]
        if not new:
            return
        noted = await self._store.look(lambda view: [run_id for run_id in new if view.live(run_id) is not None])
        for run_id in new:
            self._notes[run_id].no_worker = ""
        for run_id in noted:
            self._store.set_live(run_id, "")

    async def _try_to_take(self, row: RunRow, gone: frozenset[str], tasks: anyio.abc.TaskGroup) -> bool:
        """Take a run, or start a worker that does; an error with one run affects no other."""
        shortage = find_shortage()
        if shortage is not None:
            self._retry_later(row.id, shortage)
            return False

        async def take() -> bool:
            await self._setup.check_config(row)
            why_with_host = await self._why_with_host(row)
            return why_with_host is not None and await self._take(row, gone, tasks, why_with_host)

        return await self._guarded(row.id, take) or False

    async def _guarded(self, run_id: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what work with a run returns; an error with one run affects no other. Raises AuditError: the log's."""
        try:
            return await work()
        except AuditError:
            raise
        except (ConfigNotSupported, OSError) as error:  # it may pass: tried again, less and less often
            self._retry_later(run_id, str(error), unable=True)
        except Exception as error:
            shortage = shortage_in(error)
            self._retry_later(run_id, shortage or INTERNAL)
            if not shortage:
                log.exception("%s cannot be taken", run_id)
                await self._count_fault(run_id)
        return None

    def _retry_later(self, run_id: str, why: str, *, unable: bool = False) -> None:
        """Note why a run cannot be taken now, and leave it alone for a while."""
        self._notes.wait(run_id, why, unable=unable)
        self._notes[run_id].retry_later()

    async def _why_with_host(self, row: RunRow) -> str | None:
        """Return None where a run is left to a worker; else why it ends with this process, or "" if it may."""
        if self.driver == "the worker":
            return await self._background.leave(row.id, self._notes[row.id])
        if config_of(row.config).background and not self.mode.outlives_host:
            return KEEPS_RUNS
        return ""

    async def _count_fault(self, run_id: str) -> None:
        """Count an internal error of a run, and end the run after too many, so that it never hangs."""
        self._notes[run_id].faults += 1
        if self._notes[run_id].faults < FAULTS:
            return
        why = "it was dropped twice by a fault, written to the server's standard error"
        ended = RunResult(
            "error", "a fault of Ava itself", error_kind="internal", error_message=why, what_to_do="Report it."
        )
        try:
            await self.control.end(run_id, ended, "give up")
        except AuditError:
            raise
        except Exception:  # not even what was approved can be read: it is left to a program that can read it
            log.exception("%s cannot be ended", run_id)

    async def _may_take(self, row: RunRow, gone: frozenset[str]) -> bool:
        now = now_us()
        match situation(row, now, gone=gone, instance=self.instance):
            case "running here":  # dropped by an internal error, or because the log could not take its ending
                return True
            case "interrupted":
                return not await self._store.look(lambda view: waits_for_resume(view, row, now))
            case "waiting":
                if row.waits_for == "provider":  # of all else, the log has what it waits for
                    self._notes.wait(row.id, pause_words(row))
                return False
            case "queued":
                pass
            case _:
                return False
        if row.session_id in self.sessions or row.id in self.adopted:
            return True
        return self._notes[row.id].waited_s() >= self._grace_s(row)

    def _grace_s(self, row: RunRow) -> float:
        """Return how long others have to claim a run; a worker has time to start, where the run outlives its host."""
        if self.mode.outlives_host or self.leaves_runs:
            return self.mode.grace_s
        try:
            in_background = config_of(row.config).background
        except ValueError:  # a newer Ava wrote it; taking it says so
            return self.mode.grace_s
        return workers.WORKER_TAKES_S if in_background else self.mode.grace_s

    # -- owning -------------------------------------------------------------------------------------------------------

    async def _take(
        self, row: RunRow, gone: frozenset[str], tasks: anyio.abc.TaskGroup, why_with_host: str = ""
    ) -> bool:
        """Claim a run and start it in a task of its own; False where another instance has it.

        `why_with_host`: why it ends with this process, although it was approved to outlive its host.
        """
        if not self._membership.holds():  # it was stopped: to others it is dead, and they would take the run at once
            await anyio.to_thread.run_sync(self._membership.renew)
        if row.instance in gone and not await anyio.to_thread.run_sync(self.control.gone, [row]):
            return False  # it is alive again: this process may have been stopped since it looked
        who = Who(row.session_id, AGENT, row.user_id)
        seen_us: int | None = None
        if row.instance is not None:
            seen_us = await anyio.to_thread.run_sync(self.control.seen_us, row)
        command = claim(row.id, self.instance, who, gone, self.slots, why_with_host=why_with_host, seen_us=seen_us)
        got = await self._store.do(command, row.id)
        if isinstance(got, str):
            self._notes.wait(row.id, got)
            return False
        self.waiting_for.pop(row.id, None)
        self._notes[row.id].why_with_host = why_with_host
        self._owned[row.id] = None
        log.info("%s", _taken(got))
        tasks.start_soon(self._start, row.id, got.generation + 1, tasks)
        return True

    async def _start(self, run_id: str, generation: int, tasks: anyio.abc.TaskGroup) -> None:
        """Make a claimed run ready and drive it; where that fails, a later look takes it again."""
        ready = None
        try:
            ready = await self._guarded(run_id, partial(self._prepare, run_id, generation, tasks))
        except SchemaNewer as error:
            self._stop_claiming(error)
        except AuditError as error:
            log.error("%s: %s", run_id, error)
        finally:
            if ready is None:
                del self._owned[run_id]
        if ready is not None:
            self._owned[run_id] = ready[0]
            self._board.change()
            await self._drive(*ready)

    async def _prepare(
        self, run_id: str, generation: int, tasks: anyio.abc.TaskGroup
    ) -> tuple[AgentRun | PlanRun, RunRow, Callable[[bool], None]] | None:
        """Return a claimed run with all that it works with; None where another instance has it."""
        ask = self._store.look if generation == 1 else self._store.read  # a run that was begun has many entries
        run, entries, noted = await ask(lambda view: (view.run(run_id), view.entries(run_id), view.live(run_id)))
        if noted is not None:
            self._store.set_live(run_id, "")  # it waits no more
        claimed = (RUNNING, self.instance, generation)
        if run is None or (run.state, run.instance, run.generation) != claimed:  # another instance has taken it
            return None
        if self._unended is not None:
            share_texts(run, self._unended.runs.get(run_id))
        if run.is_plan:
            plan = PlanRun(self._store, run, self._plan_inputs, self._board.change, self._cancel_step)
            return plan, run, _close_nothing
        history = History(run.id)
        history.add_all(entries)
        try:
            context = await self._setup.prepare(run, history)
        except FolderReplaced as error:
            await self.control.end(run.id, _replaced(error), "give up")
            return None
        owned = AgentRun(
            self._store, run, agent_of(run), history, context, tasks, self._board.change, self._gone_owners.now
        )
        return owned, run, context.close

    async def _cancel_step(self, run_id: str, who: Who, reason: str) -> None:
        """Cancel a run of a plan of this process."""
        await self.cancel(run_id, who, reason, "system")

    async def _drive(self, owned: AgentRun | PlanRun, run: RunRow, close: Callable[[bool], None]) -> None:
        try:
            notes = self._notes[run.id]
            if notes.cancelled:  # the cancel came while the log was out of reach
                owned.cancel(notes.cancel_reason)
            elif run.cancel_seq is not None:
                owned.cancel(await self._store.look(lambda view: cancel_reason(view, run.id)))
            with telemetry.invoke_agent(run):
                caps = await self._store.look(lambda view: view.plan_caps(run.plan_id))
                await owned.drive(plan_time(caps, now_us()))
        except StoreUnavailable as error:  # the log is out of reach: the run stays for the next look or another owner
            log.error("%s: %s", run.id, error)
        except SchemaNewer as error:
            self._stop_claiming(error)
        except Exception as error:
            shortage = shortage_in(error)
            if shortage:  # temporary, like a log that is out of reach
                log.error("%s: %s", run.id, shortage)
                self._notes[run.id].retry_later()
                return
            log.exception("%s was dropped", run.id)
            with contextlib.suppress(AuditError):  # the next look counts it again
                await self._count_fault(run.id)
        finally:
            del self._owned[run.id]
            self._board.change()
            if owned.done:
                log.info("%s has ended", run.id)
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                try:
                    await _in_thread(partial(close, owned.done))
                except OSError as error:
                    log.warning("%s left something behind: %s", run.id, error)
            self.wake()

    async def cancel(
        self, run_id: str, who: Who, reason: str | None, by: CancelledBy = "model", *, anyones: bool = False
    ) -> RunRow | None:
        """Cancel a run and return it as it ended, within 5 s; None where the user has none of this id.

        With `anyones`, it may belong to another user.
        """
        owned = self._owned.get(run_id)
        if owned is not None and (anyones or owned.user == who.user_id):  # act in memory first, the record follows
            note = self._notes[run_id]
            note.cancelled = True
            note.cancel_reason = reason
            owned.cancel(reason)
        return await self.control.cancel(run_id, who, reason, by, anyones=anyones)


def _run_notes(store: Store, mode: Mode, instance: str) -> RunNotes:
    place = f"on {socket.gethostname()}: " if mode.shares_log else ""
    unable = Blocker(unable=instance, beside=mode.beside) if mode.reports_unable else None
    return RunNotes(store, place, unable)


def _last_work_us(rows: Sequence[RunRow]) -> dict[str, int]:
    """Return when a run of each plan was last at work."""
    last_us: dict[str, int] = {}
    for row in rows:
        if row.step is not None and row.plan_id is not None:
            last_us[row.plan_id] = max(last_us.get(row.plan_id, 0), row.last_us or 0, row.queued_us or 0)
    return last_us


def _taken(before: RunRow) -> str:
    """Return that a run was taken, from how it was before."""
    if before.generation == 0:
        return f"{before.id} taken"
    if before.state == RUNNING:
        return f"{before.id} taken over from {before.instance}"
    return f"{before.id} taken again, after it waited"


def _needs_slot(row: RunRow, gone: frozenset[str]) -> bool:
    """Tell whether taking a run takes a slot; one that was dropped by an internal error has its own."""
    return not row.is_plan and (row.state != RUNNING or row.instance in gone)


def _close_nothing(_ended: bool) -> None:
    """Close nothing: a plan has no folders of its own."""


def _replaced(error: FolderReplaced) -> RunResult:
    """Return the ending of a run whose folder is not the approved one; nothing in the new folder was read."""
    return RunResult(
        "error",
        "its folder is not the one that was approved",
        error_kind="folder_replaced",
        error_message=str(error),
        what_to_do="Nothing was read there. Find out who replaced the folder and why; then propose the run again.",
    )


async def _in_thread(work: Callable[[], None]) -> None:
    """Do blocking work in a thread; in the event loop's where no other can be started: it has to be done."""
    try:
        await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except RuntimeError as error:
        if not shortage_in(error):
            raise
        work()
