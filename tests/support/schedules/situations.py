"""One run after the other, brought into any situation of the table of transitions and moved by any cause.

with open_log() as log:
    run_id = log.bring("queued", "resume", cancel_asked=False, in_flight=False, timed=False)
    log.move(run_id, "claim", "resume")
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, get_args

from anyio.from_thread import start_blocking_portal

from ava_audit.errors import StaleOwner
from ava_audit.events import Asked, CostReserved, Event, Fact, Fence, RunPaused, Who
from ava_audit.rows import HELD_UNTIL_US, RUNNING, RunRow, WaitsFor
from ava_audit.store.store import Command, Outcome, Store, append
from ava_audit.units import DAY_US
from ava_audit.verify import verify
from ava_audit.view import View
from ava_server.approval.decisions import Approval, approve, reject
from ava_server.approval.proposals import Proposal, SpawnLimits, propose
from ava_server.approval.shown import approval_line
from ava_server.approval.summary import several_line
from ava_server.budget.caps import CapRequest, reserve, settle_unknown
from ava_server.budget.user_limits import DayCaps, Slots
from ava_server.config.settings import Limits
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.run_config.digest import digest
from ava_server.runs.asking.extension import ExtensionLimits
from ava_server.runs.asking.pending_questions import asked_of, decide_question
from ava_server.runs.asking.question_kinds import Decider
from ava_server.runs.record.claims import TAKEOVER_WITHIN_US, claim, hold, interrupt_runs, pause, resume
from ava_server.runs.record.endings import cancel, end_for_owner, end_overdue, ending_events, stop_paused
from ava_server.runs.record.history import History
from ava_server.runs.record.lifecycle import Cause, Situation, transition
from ava_server.runs.record.result import RunResult, build_result
from support.schedules.ledger import RunBefore, compare, fact_types, run_before
from support.schedules.play import config

HERE, ELSEWHERE, DEAD = "here", "elsewhere", "dead"
GONE = frozenset({DEAD})
SLOTS = Slots(10_000, 10_000)
USER = "ann"
WHO = Who("sess-1", "ava", USER)
TTL_US = 60_000_000
LIMITS = SpawnLimits(10**6, "[limits]", DayCaps(10**12, 10**12), ("[budgets]", "[budgets]"), TTL_US)
GROUP_S = 600.0
HARD = Limits(extension_wait_s=60, max_cost_cents=1_000, max_tokens=10**7, max_tokens_deep=10**7, max_timeout_s=10**5)
EXTENSIONS = ExtensionLimits(HARD, LIMITS.days)
OWNER = {"running here": HERE, "running elsewhere": ELSEWHERE, "interrupted": DEAD}
CAUSES: tuple[Cause, ...] = get_args(Cause)
SITUATIONS: tuple[Situation, ...] = get_args(Situation)
WAITS: tuple[WaitsFor, ...] = get_args(WaitsFor)


class SituationLog:
    """A log on which one run after the other is brought anywhere, with a clock of its own.

    Attributes:
        ahead_us: How far its clock is ahead.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.portal = stack.enter_context(start_blocking_portal())
        self.store = stack.enter_context(self.portal.wrap_async_context_manager(Store.open(self.root)))
        self.proposals = 0
        self.ahead_us = 0
        self.endings: dict[str, str] = {}

    @property
    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us

    def do(self, command: Command[Any]) -> Any:
        """Run a command by this log's clock and return its value."""
        now_us = self.now_us
        return self.portal.call(self.store.do, lambda view, _now_us: command(view, now_us))

    def row(self, run_id: str) -> RunRow:
        """Return a run's row."""
        row: RunRow | None = self.portal.call(self.store.read, lambda view: view.run(run_id))
        assert row is not None
        return row

    def agent(self, run_id: str) -> Who:
        """Return who writes for a run."""
        return Who("sess-1", run_id, USER, "ava")

    # -- bringing a run somewhere --------------------------------------------------------------------------------------

    def propose(self, task_id: str | None = None, timeout_s: float = 600) -> Proposal:
        """Propose a run under a reference, by default a new one, and return its proposal."""
        self.proposals += 1
        wanted = self.config(task_id or f"task-{self.proposals}").model_copy(update={"timeout_s": timeout_s})
        ids = ((f"P-{self.proposals:08x}", f"S-{self.proposals:06x}"),)
        made = self.do(propose(wanted, Brief(task="look"), WHO, ids, LIMITS))
        assert isinstance(made, Proposal)
        return made

    def config(self, task_id: str) -> RunConfig:
        """Return the configuration of a run with ample caps."""
        return config(10**6, 10**6).model_copy(update={"task_id": task_id})

    def request_for_more(self, row: RunRow) -> Asked:
        """Return the entry with which a run near its cost cap asks for more."""
        wanted = self.config(row.task_id or "").model_copy(update={"max_cost_micros": 2 * 10**6})
        return Asked(
            kind="money", ask_id="E-00000001", limit=10**6, proposed=2 * 10**6, used=9 * 10**5,
            needed=5 * 10**5, expires_us=self.now_us + 3 * DAY_US, digest=digest(wanted, Brief(task="look")),
            active_us=1,
        )  # fmt: skip

    def approve_together(self, proposals: list[Proposal], plan_s: float | None) -> None:
        """Approve proposals together, with a time limit of its own if `plan_s` is given."""
        lines = [approval_line(each.config, Brief(task="look")) for each in proposals]
        lines.append(several_line(len(proposals), len(proposals) * 10**6, plan_s))
        ids = tuple(each.pending_id for each in proposals)
        plan_ids = ((f"P-9{self.proposals:07x}", f"G-{self.proposals:07x}"),)
        asked = Approval(ids, tuple(lines), plan_timeout_s=plan_s, plan_ids=plan_ids)
        assert self.do(approve(asked, WHO, "host_call", LIMITS)).plan_id is not None

    def claim(self, run_id: str, instance: str) -> None:
        """Make an instance the owner of a run."""
        assert isinstance(self.do(claim(run_id, instance, WHO, GONE, SLOTS)), RunRow)

    def bring(
        self, where: Situation, waits_for: WaitsFor, *, cancel_asked: bool, in_flight: bool, timed: bool
    ) -> str | None:
        """Bring a new run somewhere and return its id; None where no run can be there like that.

        Args:
            where: Where it shall stand.
            waits_for: What it shall wait for, where that is `waiting`.
            cancel_asked: Somebody has asked for its end.
            in_flight: A model call has been reserved and not been settled.
            timed: Its group has a time, which is running.
        """
        if (cancel_asked and where in ("proposed", "expired")) or (in_flight and where not in OWNER):
            return None
        if cancel_asked and where == "waiting" and waits_for != "resume":  # nobody claims it, so it cannot wait again
            return None
        mine = self.propose()
        run_id = mine.subagent_id
        if where in ("proposed", "expired"):
            self.ahead_us += 2 * TTL_US if where == "expired" else 0
            return run_id
        sibling = self.propose()
        self.approve_together([mine, sibling], GROUP_S if timed else None)
        self.claim(sibling.subagent_id, HERE)
        if where in ("queued", "waiting") and cancel_asked:  # asked for while it ran, and given back by force
            self.claim(run_id, ELSEWHERE)
            self.do(cancel(run_id, WHO, "enough", "person"))
            assert isinstance(self.do(resume(run_id, WHO, "terminal", GONE, LIMITS, force=True)), RunRow)
        if where == "waiting" and waits_for == "resume":
            assert self.do(hold(run_id, GONE))
        elif where == "waiting":
            self.claim(run_id, HERE)
            fact = self.wait_fact(self.row(run_id), waits_for)
            self.do(append(Event(self.agent(run_id), fact, fence=self.fence(run_id))))
        if where in OWNER:
            self.claim(run_id, OWNER[where])
            if in_flight:
                self.reserve(run_id)
            if cancel_asked:
                self.do(cancel(run_id, WHO, "enough", "person"))
        if where == "ended":
            self.do(cancel(run_id, WHO, "enough", "person"))
            assert self.row(run_id).ended
        return run_id

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run's present owner."""
        return Fence(run_id, self.row(run_id).generation)

    def reserve(self, run_id: str) -> None:
        """Hold the worst case of a run's next model call."""
        fact = CostReserved(
            turn=self.row(run_id).turns + 1, attempt=1, scopes=(), micros=1_000, wrap_micros=500, prompt_tokens=10,
            max_output=10, upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        asked = CapRequest(fact, 20, 20)
        self.do(reserve(self.fence(run_id), self.agent(run_id), asked, LIMITS.days))

    # -- what may happen to it -----------------------------------------------------------------------------------------

    def move(self, run_id: str, cause: Cause, about: WaitsFor) -> bool:
        """Let something happen to a run as the product does it, compare with the table, and tell whether it moved.

        `about`: for what it is to wait, or what is answered.
        """
        if cause == "wait" and about == "owner":  # by then nobody takes it over by himself
            self.ahead_us += TAKEOVER_WITHIN_US
        if cause in ("plan timeout", "abandon"):
            row = self.row(run_id)
            group = self.portal.call(self.store.read, lambda view: view.plan_caps(row.plan_id or ""))
            timed = group is not None and group.timeout_s == GROUP_S
            over_us = int(GROUP_S * 10**6) if timed else DAY_US
            since_us = max(row.queued_us or 0, row.last_us or 0, self.now_us)
            if since_us < (row.waits_until_us or 0) <= since_us + over_us:  # the pause is over by then, and counts
                since_us = row.waits_until_us or 0
            self.ahead_us += since_us + over_us + 10**6 - self.now_us
            cause = "plan timeout" if timed else "abandon"
        seen: list[tuple[RunBefore, list[type[Fact]]]] = []
        command = self.command(run_id, cause, about)

        def watched(view: View, now_us: int) -> Outcome[Any]:
            was = run_before(view, run_id, cause, now_us, GONE, HERE)
            if was.where == "expired" and cause == "approve":  # what an approval that comes too late does
                was = run_before(view, run_id, "expire", now_us, GONE, HERE)
            outcome = command(view, now_us)
            seen.append((was, fact_types(run_id, outcome.events)))
            return outcome

        try:
            self.do(watched)
        except StaleOwner:
            assert seen[-1][0].where != "running here", "an owner may write"
            seen[-1] = (seen[-1][0], [])
        (was, written), after = seen[-1], self.row(run_id)
        done = compare(was, written, after)
        may = transition(was.run, was.cause, was.where) is not None
        if was.cause == "answer" and about != was.run.waits_for:  # an answer to something else
            may = False
        if was.cause == "wait" and about == "resume" and was.where == "running here":  # a restored log has no owner
            may = False
        only_its_owner = about not in ("resume", "owner")
        if was.cause == "wait" and only_its_owner and was.where != "running here":
            may = False
        lost = was.where == "interrupted" and was.run.cancel_seq is None
        if was.cause == "wait" and about == "owner" and not lost:
            may = False
        assert done is may, (was.where, was.run.waits_for, was.cause, about)
        self.check_ending(after)
        return done

    def check_ending(self, row: RunRow) -> None:
        """Assert that a run that has ended keeps its ending and holds no money."""
        assert self.endings.get(row.id, row.state) == row.state, "it has moved after its end"
        if row.ended:
            self.endings[row.id] = row.state
            held = self.portal.call(self.store.read, lambda view: view.bucket(row.id)).held_micros
            assert (held, row.in_flight, row.wrap_micros) == (0, None, 0), "an ending holds money"

    def command(self, run_id: str, cause: Cause, about: WaitsFor) -> Command[Any]:
        """Return the command that the product runs for a cause."""
        row = self.row(run_id)
        ended = RunResult("cancelled", "cancelled on request")
        # An owner that has lost the run, where this instance does not have it, writes under its old claim.
        fence = Fence(run_id, row.generation - (row.state == RUNNING and row.instance != HERE))
        line = approval_line(self.config(row.task_id or ""), Brief(task="look"))
        result = build_result(row, History(run_id), ended, [], 1.0)
        lost = settle_unknown(row, self.agent(run_id), fence)
        ending = (*lost, *ending_events(row, result, ended, self.agent(run_id), fence, 10**6))
        commands: dict[Cause, Callable[[], Command[Any]]] = {
            "approve": lambda: approve(Approval((row.pending_id,), (line,)), WHO, "host_call", LIMITS),
            "reject": lambda: reject((row.pending_id,), WHO, "terminal"),
            "expire": lambda: approve(Approval((row.pending_id,), ("a wrong line",)), WHO, "host_call", LIMITS),
            "supersede": lambda: self.propose_again(row),
            "cancel": lambda: cancel(run_id, WHO, "enough", "person"),
            "stop": lambda: stop_paused(run_id, WHO, "a step failed"),
            "claim": lambda: claim(run_id, HERE, WHO, GONE, SLOTS),
            "wait": lambda: self.wait(row, fence, about),
            "answer": lambda: self.answer_request(row) if about == "more" else self.answer_question(row),
            "resume": lambda: resume(run_id, WHO, "terminal", GONE, LIMITS),
            "force resume": lambda: resume(run_id, WHO, "terminal", GONE, LIMITS, force=True),
            "end": lambda: lambda _view, _now_us: Outcome(None, ending),
            "cancel unanswered": lambda: end_for_owner(run_id, HERE, ended, "cancel unanswered"),
            "give up": lambda: end_for_owner(run_id, HERE, ended, "give up"),
            "plan timeout": lambda: end_overdue(run_id, GONE),
            "abandon": lambda: end_overdue(run_id, GONE),
        }
        return commands[cause]()

    def wait(self, row: RunRow, fence: Fence, about: WaitsFor) -> Command[Any]:
        """Return the command by which a run waits: for a resume, of whoever restores its log or sees its owner gone."""
        if about == "resume":
            return hold(row.id, GONE)
        if about == "owner":
            return interrupt_runs(row.plan_id or "", GONE, {})
        return pause(fence, self.agent(row.id), self.wait_fact(row, about))

    def wait_fact(self, row: RunRow, about: WaitsFor) -> RunPaused | Asked:
        """Return the entry with which a run begins to wait, for three days."""
        until_us = self.now_us + 3 * DAY_US
        if about == "more":
            return self.request_for_more(row)
        if about == "answer":
            return Asked(kind="question", ask_id="Q-00000001", call_id="c1", expires_us=until_us, active_us=1)
        if about == "owner":
            return RunPaused(not_before_us=HELD_UNTIL_US, why="its owner is gone", stands_us=self.now_us)
        return RunPaused(not_before_us=until_us, why="a limit", active_us=1)

    def answer_question(self, row: RunRow) -> Command[Any]:
        """Return an answer to a run's question; every second run gets a no."""
        text = None if int(row.id[2:], 16) % 2 else "EUR"
        return decide_question(row.id, "Q-00000001", text, Decider(WHO, self.agent(row.id), "terminal", EXTENSIONS))

    def answer_request(self, row: RunRow) -> Command[Any]:
        """Return a person's answer to what a run asks for; every second run gets a no."""
        asked = asked_of(row)
        shown = asked.digest if asked is not None else ""
        allow = None if int(row.id[2:], 16) % 2 else 2 * 10**6
        return decide_question(row.id, shown, allow, Decider(WHO, self.agent(row.id), "terminal", EXTENSIONS))

    def propose_again(self, row: RunRow) -> Command[Any]:
        """Return another proposal under the same reference."""
        self.proposals += 1
        wanted = self.config(row.task_id or "").model_copy(update={"timeout_s": 600 + self.proposals})
        ids = ((f"P-{self.proposals:08x}", f"S-{self.proposals:06x}"),)
        return propose(wanted, Brief(task="look"), WHO, ids, LIMITS)


@contextmanager
def open_log() -> Iterator[SituationLog]:
    """Open an empty log; at its end, each run has ended at most once and the log is intact."""
    with ExitStack() as stack:
        log = SituationLog(stack)
        yield log
        endings = log.portal.call(log.store.read, lambda view: list(view.select(
            "SELECT run_id, count(*) FROM events WHERE type = 'RunEnded' GROUP BY run_id"
        )))  # fmt: skip
        assert all(count == 1 for _run, count in endings), "a run ends once"
        report = verify(log.store.path)
        assert report.ok, report


PLACES = [(where, waits) for where in SITUATIONS for waits in (WAITS if where == "waiting" else WAITS[:1])]
ABOUT: dict[Cause, tuple[WaitsFor, ...]] = {"wait": WAITS, "answer": ("more", "answer")}
HAPPENINGS = [(cause, about) for cause in CAUSES for about in ABOUT.get(cause, WAITS[:1])]
"""Each situation and cause, with everything that a run can wait for."""


def settles_first(cause: Cause, about: WaitsFor) -> bool:
    """Return whether the run's owner is the cause: it settles a call in flight first."""
    return cause == "wait" and about not in ("resume", "owner")
