"""Budgets and ownership under any schedule: what several processes do to one log, in any order, against plain sums.

Hypothesis proposes, approves, claims, reserves, settles, fails, cancels, crashes and takes over, at any time of any
day. What each action must come to, and what must hold after it, stands in `support/schedules/play.py`. With
`--hypothesis-profile=long` it plays more than ten thousand steps (README.md).
"""

from __future__ import annotations

import faulthandler
from typing import get_args

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from support.schedules.play import DAY_CAPS, DAY_US, MOST_RUNS, PROCESSES, SETTLEMENTS, USERS, Processes, came, played
from support.schedules.store_process import store_processes

from ava_audit.events import Ending
from ava_server.budget.caps import CapName
from ava_server.budget.user_limits import Slots

PICK = st.integers(0, 999)
WORK = st.tuples(PICK, st.integers(1, 900), st.integers(1, 500), st.sampled_from(SETTLEMENTS), st.floats(0, 1))
"""Which owner goes on; how large its next call is, or how the one that is in flight is settled."""
STALE = ("reserve", "send", "settle", "append", "end")


PLAYED = (
    *(f"refused: {cap}" for cap in get_args(CapName)),
    *(f"settle: {how}" for how in SETTLEMENTS),
    *(f"stale: {what}" for what in STALE),
    "crash",
    "takeover",
    "pause",
    "asks",
    "answer approved",
    "answer declined",
    "answer refused",
    "resume",
    "resumed",
    "resumed by force",
    "abandoned",
    "forced end",
)
QUICK = settings(max_examples=10, stateful_step_count=40)


LONG_S = 3_000
ROUNDS = 4
"""How often the long profile plays at most, until everything of `PLAYED` was: some of it is rare."""


def test_no_schedule_exceeds_a_cap_or_gives_a_run_two_owners() -> None:
    long = settings.get_current_profile_name() == "long"
    Schedule.TestCase.settings = settings() if long else QUICK
    if long:
        faulthandler.dump_traceback_later(LONG_S, exit=True)  # instead of pytest's own, which is for one test of many
    with store_processes(PROCESSES) as Schedule.running:
        for number in range(ROUNDS if long else 1):
            if number:  # with the seed of the round before, it would play the same once more
                seed(number)(Schedule)
            Schedule.TestCase("runTest").runTest()
            missed = [kind for kind in PLAYED if not (played + came)[kind]]
            if not missed:
                break
    if long:
        print(f"{played.total():,} steps: {dict(played.most_common())}; of these {dict(came.most_common())}")
        assert played.total() >= 10_000
        assert not missed, "what is to be shown was not played"


class Schedule(Processes):
    """Any order of what can happen."""

    @initialize(per_user=st.integers(1, 3), total=st.integers(2, 5), days=st.sampled_from(DAY_CAPS[:3]))
    def begins(self, per_user: int, total: int, days: tuple[int, int]) -> None:
        self.slots, self.ledger.days = Slots(per_user, total), days
        for _ in range(2):
            self.joins()

    @precondition(lambda self: len(self.ledger.runs) < MOST_RUNS)
    @rule(
        user=st.sampled_from(USERS),
        sizes=st.lists(st.tuples(st.integers(1_000, 9_000), st.integers(1_000, 5_000)), min_size=1, max_size=3),
        plan_share=st.sampled_from([None, 1.0, 0.6, 0.3]),
        by=PICK,
    )
    def runs_are_started(self, user: str, sizes: list[tuple[int, int]], plan_share: float | None, by: int) -> None:
        """From the proposals to the claims, as it goes when nothing comes between."""
        for cap, max_tokens in sizes:
            self.proposes(user, cap, max_tokens)
            self.check()
        runs = self.waiting_of(user, len(sizes))
        if runs:
            self.approves(runs, plan_share)
            self.check()
        for number, run in enumerate(run for run in runs if run.state == "queued"):
            self.claims(run, self.living()[(by + number) % len(self.living())])
            self.check()

    @precondition(lambda self: len(self.ledger.runs) < MOST_RUNS)
    @rule(user=st.sampled_from(USERS), cap=st.integers(1, 6_000), max_tokens=st.integers(500, 12_000))
    def a_run_is_proposed(self, user: str, cap: int, max_tokens: int) -> None:
        self.proposes(user, cap, max_tokens)

    @precondition(lambda self: self.has("awaiting_approval"))
    @rule(
        number=PICK,
        count=st.integers(1, 3),
        plan_share=st.sampled_from([None, 1.0, 0.5, 0.2, 1.5]),
        lowered=st.sampled_from([None, 0.5, 2.0]),
        right=st.sampled_from([True, True, True, False]),
    )
    def runs_are_approved(
        self, number: int, count: int, plan_share: float | None, lowered: float | None, right: bool
    ) -> None:
        runs = self.waiting_of(self.pick(number, "awaiting_approval").user, count)
        self.approves(runs, plan_share, lowered=lowered, right=right)

    @precondition(lambda self: self.has("queued", "running"))
    @rule(number=PICK, by=PICK, looked=st.sampled_from([True, True, True, False]))
    def a_run_is_claimed(self, number: int, by: int, looked: bool) -> None:
        """A queued one, or one whose owner is gone, or by mistake one whose owner lives."""
        self.claims(self.pick(number, "queued", "running"), self.living()[by % len(self.living())], looked=looked)

    @rule(
        what=st.sampled_from(["clock", "clock", "midnight", "day caps", "join", "crash", "lock removed"]),
        seconds=st.sampled_from([1, 60, 60, 60, 300, 3_600, 43_200, -60]),
        days=st.sampled_from(DAY_CAPS),
        number=PICK,
    )
    def the_world_changes(self, what: str, seconds: int, days: tuple[int, int], number: int) -> None:
        """Time goes on, now and then into the next day; day caps change; an instance joins, dies or loses its lock."""
        if what in ("clock", "midnight"):
            self.begin(what)
            self.now_us += seconds * 1_000_000 if what == "clock" else DAY_US - self.now_us % DAY_US
        elif what == "day caps":
            self.begin(what)
            self.ledger.days = days
        elif what == "join" and len(self.instances) < 6:
            self.joins()
        elif what == "crash" and len(self.living()) > 1:
            self.dies(self.living()[number % len(self.living())])
        elif what == "lock removed":
            self.loses_its_lock(self.living()[number % len(self.living())])

    @precondition(lambda self: bool(self.owners))
    @rule(steps=st.lists(WORK, min_size=1, max_size=8))
    def owners_go_on(self, steps: list[tuple[int, int, int, str, float]]) -> None:
        """Whose turn it is reserves a call, or settles the one that it has in flight."""
        for number, prompt, output, how, share in steps:
            if not self.owners:
                return
            owner = self.owner(number)
            if owner.held is None:
                self.reserves(owner, prompt, output, last=how == "not billed")
            else:
                self.settles(owner, how, share)
            self.check()

    @precondition(lambda self: bool(self.ledger.runs))
    @rule(
        number=PICK,
        what=st.sampled_from(["cancel", "cancel", "reject", "forced end", "forced end of its own", "end"]),
        user=st.sampled_from(USERS),
        by=PICK,
        status=st.sampled_from(["success", "error", "cost_exceeded", "cancelled"]),
    )
    def somebody_ends_a_run(self, number: int, what: str, user: str, by: int, status: Ending) -> None:
        """Its user or another one, its owner, or an instance in its owner's place; also what has ended already."""
        if what == "cancel":
            self.cancels(self.pick(number, *{run.state for run in self.ledger.runs.values()}), user)
        elif what == "reject" and self.has("awaiting_approval"):
            self.rejects(self.pick(number, "awaiting_approval"))
        elif what.startswith("forced") and self.has("queued", "running"):
            instance = self.living()[by % len(self.living())]
            self.forces(
                self.pick(number, "queued", "running"), instance, "give up" if "own" in what else "cancel unanswered"
            )
        elif what == "end" and self.owners:
            self.ends(self.owner(number), status)

    @precondition(lambda self: bool(self.owners))
    @rule(number=PICK, seconds=st.sampled_from([1, 60, 3_600]))
    def a_run_is_paused(self, number: int, seconds: int) -> None:
        owner = self.owner(number)
        if owner.held is None:
            self.pauses(owner, seconds)

    @precondition(lambda self: bool(self.able_to_ask()))
    @rule(number=PICK, step=st.integers(1, 6_000))
    def a_run_asks_for_more(self, number: int, step: int) -> None:
        able = self.able_to_ask()
        self.asks(able[number % len(able)], step)

    @precondition(lambda self: bool(self.able_to_ask()))
    @rule(number=PICK)
    def a_run_asks_a_question(self, number: int) -> None:
        able = self.able_to_ask()
        self.asks_a_question(able[number % len(able)])

    @precondition(lambda self: bool(self.ledger.runs))
    @rule(number=PICK, text=st.sampled_from(["EUR", None]), shown=st.sampled_from([True, True, False]))
    def somebody_answers_a_question(self, number: int, text: str | None, shown: bool) -> None:
        """A run that asks one, if there is one; now and then any other."""
        asking = [run for run in self.ledger.in_state("queued") if run.question]
        states = {run.state for run in self.ledger.runs.values()}
        run = asking[number % len(asking)] if asking and number % 5 else self.pick(number, *states)
        self.answers_a_question(run, text, shown=shown)

    @precondition(lambda self: len(self.ledger.runs) < MOST_RUNS)
    @rule(user=st.sampled_from(USERS), cap=st.integers(1_000, 3_000), by=PICK, step=st.integers(1, 2_000))
    def a_run_is_started_works_and_asks_for_more(self, user: str, cap: int, by: int, step: int) -> None:
        self.proposes(user, cap, 9_000)
        self.check()
        runs = self.waiting_of(user, 1)
        if runs:
            self.approves(runs, None)
            self.check()
        if runs and runs[0].state == "queued":
            self.claims(runs[0], self.living()[by % len(self.living())])
            self.check()
        owner = self.owners.get(runs[0].id) if runs else None
        if owner is None:
            return
        self.reserves(owner, 100, 50, last=False)
        self.check()
        if owner.held is not None:
            self.settles(owner, "billed", 0.5)
            self.check()
        if owner in self.able_to_ask():
            self.asks(owner, step)

    @precondition(lambda self: bool(self.ledger.runs))
    @rule(
        number=PICK,
        user=st.sampled_from(USERS),
        share=st.sampled_from([None, 1.0, 1.0, 0.5, 0.0, 1.5]),
        shown=st.sampled_from([True, True, True, False]),
    )
    def a_person_answers(self, number: int, user: str, share: float | None, shown: bool) -> None:
        """A run that asks for more, if there is one; now and then any other, or for another user."""
        asking = [run for run in self.ledger.in_state("queued") if run.asks_for]
        if not asking or number % 5 == 0:
            self.answers(self.pick(number, *{run.state for run in self.ledger.runs.values()}), user, share, shown=shown)
            return
        run = asking[number % len(asking)]
        self.answers(run, run.user if number % 7 else user, share, shown=shown)

    @precondition(lambda self: bool(self.ledger.runs))
    @rule(
        number=PICK,
        what=st.sampled_from(["resume", "crash and resume", "resume by force", "abandon", "abandon a day later"]),
        user=st.sampled_from(USERS),
        looked=st.sampled_from([True, True, False]),
    )
    def a_run_without_an_owner_is_looked_at(self, number: int, what: str, user: str, looked: bool) -> None:
        """Its user, or another one, has it go on; or a server finds that nobody came for it. Also one that is owned."""
        often = number % 4 and self.has("running")
        run = self.pick(number, *(("running",) if often else {run.state for run in self.ledger.runs.values()}))
        if "crash" in what and len(self.living()) > 1:
            for instance in [each for each in self.living() if each.name == run.instance]:
                self.dies(instance)
        if "resume" in what:
            self.resumes(run, user, looked=looked, force="force" in what)
        else:
            self.nobody_comes(run, 2 * DAY_US if "later" in what else 0)

    @precondition(lambda self: bool(self.stale))
    @rule(number=PICK, what=st.sampled_from(STALE), share=st.floats(0, 1))
    def a_stale_owner_comes_back(self, number: int, what: str, share: float) -> None:
        able = [each for each in self.stale if each.held is not None or what not in ("send", "settle")] or self.stale
        self.comes_back(able[number % len(able)], what, share)

    @precondition(lambda self: bool(self.owners))
    @rule(number=PICK, prompt=st.integers(1, 900), output=st.integers(1, 500), by=PICK)
    def an_owner_is_stopped_between_its_reservation_and_its_request(
        self, number: int, prompt: int, output: int, by: int
    ) -> None:
        """Its instance is dead to others, one of which takes the run over, before it wakes up and sends."""
        owner = self.owner(number)
        if owner.held is None:
            self.reserves(owner, prompt, output, last=False)
            self.check()
        (instance,) = (each for each in self.instances if each.name == owner.instance)
        if owner.held is None or not instance.alive or len(self.living()) < 2:
            return
        self.dies(instance)
        self.claims(self.ledger.runs[owner.run_id], self.living()[by % len(self.living())])
        self.check()
        if owner in self.stale:
            self.comes_back(owner, "send", 1.0)

    @invariant()
    def everything_is_as_the_ledger_has_it(self) -> None:
        if not self.sound:
            self.check()
