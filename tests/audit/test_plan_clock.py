"""The time of a plan counts from its first run, and stands still while all that is left of it waits for a person."""

from __future__ import annotations

from support.log import Life, plan_events

from ava_audit.events import Answered, Asked, Fact, RunClaimed, RunEnded, RunPaused
from ava_audit.reducers import Header, MemoryState, reduce
from ava_audit.rows import HELD_UNTIL_US

PLAN = "G-0000001"
S = 1_000_000


class Log:
    """Entries in memory, at times in seconds."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self._seq = 0

    def add(self, at_s: int, run_id: str, fact: Fact, generation: int | None = None) -> None:
        self._seq += 1
        header = Header(self._seq, at_s * S, "sess", "somebody", fact.type, run_id, generation, None, None)
        reduce(self.state, header, fact)

    def approve(self, at_s: int, *runs: str) -> None:
        for event in plan_events(PLAN, 2_000, timeout_s=100) if self.state.runs.get(PLAN) is None else ():
            self.add(at_s, PLAN, event.fact)
        for run_id in runs:
            life = Life(run_id)
            for event in (life.proposal(max_cost_micros=1_000, timeout_s=60), life.approval(PLAN)):
                self.add(at_s, run_id, event.fact)

    def claim(self, at_s: int, run_id: str) -> None:
        self.add(at_s, run_id, RunClaimed(instance="here", generation=1), 1)

    def ask(self, at_s: int, run_id: str) -> None:
        asked = Asked(kind="question", ask_id="Q-1", digest="d", expires_us=10**15)
        self.add(at_s, run_id, asked, 1)

    def answer(self, at_s: int, run_id: str) -> None:
        said = Answered(kind="question", ask_id="Q-1", decision="answered", channel="terminal", digest="d")
        self.add(at_s, run_id, said)

    def end(self, at_s: int, run_id: str) -> None:
        self.add(at_s, run_id, RunEnded(status="success", stop_reason="done"))

    def passed_s(self, at_s: int) -> float:
        clock = self.state.plans.get(PLAN)
        assert clock is not None
        return clock.passed_us(at_s * S) / S


def test_the_time_begins_with_the_first_run() -> None:
    log = Log()
    log.approve(0, "S-1", "S-2")
    assert log.passed_s(50) == 0
    log.claim(60, "S-1")
    assert log.passed_s(70) == 10


def test_it_stands_still_only_while_nothing_can_go_on() -> None:
    log = Log()
    log.approve(0, "S-1", "S-2")
    log.claim(0, "S-1")
    log.claim(0, "S-2")
    log.ask(10, "S-1")
    assert log.passed_s(20) == 20, "the other one works"
    log.end(30, "S-2")
    assert log.passed_s(90) == 30, "all that is left waits for a person"
    log.answer(100, "S-1")
    assert log.passed_s(110) == 40
    log.end(120, "S-1")
    assert log.passed_s(130) == 60


def test_it_stands_since_the_last_work_where_a_process_is_gone() -> None:
    log = Log()
    log.approve(0, "S-1", "S-2")
    log.claim(0, "S-1")
    log.claim(0, "S-2")
    log.ask(10, "S-2")
    lost = RunPaused(not_before_us=HELD_UNTIL_US, why="its process is gone", stands_us=30 * S)
    log.add(2_000, "S-1", lost)
    assert log.passed_s(3_000) == 30
    log.answer(4_000, "S-2")
    assert log.passed_s(4_010) == 40


def test_a_wait_that_ends_with_the_run_counts_no_more() -> None:
    log = Log()
    log.approve(0, "S-1")
    log.claim(0, "S-1")
    log.ask(10, "S-1")
    log.end(40, "S-1")
    assert log.passed_s(50) == 20
