"""More for a run near a cap: what it asks a person for before it wraps up.

A run asks where it would otherwise begin its last turn because of a cap of its own: cost, tokens or time. It then waits
like a paused run, and what its wrap-up needs stays reserved. Without an answer, the run wraps up. Only a person's own
answer raises a cap, once, and only to the value that was shown or below.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ava_audit.events import (
    CAP_OF_KIND,
    Answered,
    Asked,
    AskedKind,
    CostUpdate,
    ExtendedCap,
)
from ava_audit.rows import RunRow
from ava_audit.units import MICROS_PER_CENT, now_us
from ava_audit.view import View
from ava_server.approval.channels import PERSON_CHANNELS
from ava_server.approval.proposals import brief_of
from ava_server.budget.caps import CapReached, CapRequest, money_caps
from ava_server.budget.user_limits import DayCaps, day_caps
from ava_server.core.ids import new_id
from ava_server.run_config.config import RunConfig, config_of
from ava_server.run_config.digest import digest
from ava_server.run_config.run_cap import CAP_OF_ARGUMENT, TOKENS
from ava_server.runs.record.claims import Paused
from ava_server.runs.record.plan_time import plan_time, wait_for_person

if TYPE_CHECKING:
    from ava_server.config.settings import Limits, Settings
    from ava_server.runs.journal.log import RunLog

MOST_ASKED = 3
"""How often a run may ask; each time but the last a person must have agreed."""
GROWTH = 0.4
"""The share of a cap by which it asks for more, at least; and of its turns so far, how many more are estimated."""
LEAST_TURNS = 3
RECENT_CALLS = 5
"""Calls of the model from which the cost of a further turn is estimated."""
LONG_S = 300
"""Seconds from which a time cap is raised by whole minutes."""


UNITS: Mapping[ExtendedCap, int] = {"max_cost_cents": MICROS_PER_CENT, "max_tokens": 1_000, "timeout": 1}
"""In which steps a cap is raised: cents, thousands of tokens, seconds."""
_KIND_OF_CAP: Mapping[ExtendedCap, AskedKind] = {cap: kind for kind, cap in CAP_OF_KIND.items()}


@dataclass(frozen=True)
class ExtensionLimits:
    """What a run may ask for: up to the hard caps, and what may be spent in a day."""

    hard: Limits
    days: DayCaps


def extension_limits(settings: Settings, user: str) -> ExtensionLimits:
    return ExtensionLimits(settings.limits, day_caps(settings, user))


# -- asking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shortage:
    """What a run lacks.

    Attributes:
        step: What its next step and the wrap-up after it can take of that cap: less does not help.
    """

    cap: ExtendedCap
    step: float
    active_s: float


def extension_request(
    view: View, run: RunRow, short: Shortage, limits: ExtensionLimits, ask_id: str, now_us: int
) -> Asked | None:
    """Return what a run asks a person for, or None where it has to wrap up.

    It asks only if a person approved it by their own answer, at most `MOST_ASKED` times, and never again after a
    refusal or without an answer. What it proposes fits the hard caps, its plan's and the day's.
    """
    config, brief = config_of(run.config), brief_of(view, run)
    proposal = view.proposal(run.pending_id)
    if proposal is None or proposal.run_id != run.id:
        return None  # the person approved the cost and time of its plan, not of this run
    costs_nothing = short.cap == "max_cost_cents" and config.free
    if costs_nothing or brief is None or run.overrun:
        return None
    wait_s = math.floor(wait_for_person(view, run, limits.hard.extension_wait_s, now_us))
    if wait_s <= 0 or not _may_ask(view, run):
        return None
    limit = CAP_OF_ARGUMENT[short.cap].of(config)
    used = _used_of_cap(run, short.cap, short.active_s)
    per_turn = _per_turn(view, run, short)
    turns = min(config.max_iterations - run.turns, max(LEAST_TURNS, math.ceil(GROWTH * run.turns)))
    step = max(short.step, 0)
    if short.cap == "timeout":
        step = max(short.step, per_turn)
    needed = max(per_turn * turns, step)
    wanted = max(used + needed, limit * (1 + GROWTH))
    wanted = min(wanted, max(2 * limit, used + step))  # a person decides about one step after the other
    most, _why = most_now(view, run, config, short.cap, short.active_s, limits, now_us)
    proposed = _round_cap(short.cap, wanted, most)
    if proposed < used + step or proposed <= limit:
        return None
    extended = with_cap(config, short.cap, proposed)
    needed_unit = 1
    if short.cap == "max_tokens":
        needed_unit = 100  # an estimate has no false precision
    return Asked(
        kind=_KIND_OF_CAP[short.cap],
        ask_id=ask_id,
        limit=limit,
        proposed=proposed,
        used=used,
        needed=_in_units(short.cap, min(needed, proposed - used), needed_unit),
        expires_us=now_us + wait_s * 1_000_000,
        # What an approval covers: this request, and the configuration that it would make.
        digest=hashlib.sha256(f"{ask_id} {digest(extended, brief)}".encode()).hexdigest(),
    )


def with_cap(config: RunConfig, cap: ExtendedCap, value: float) -> RunConfig:
    return config.model_copy(update={CAP_OF_ARGUMENT[cap].field: value})


def cap_name(cap: ExtendedCap) -> str:
    """Return a cap as people are told it: `cost cap`."""
    return f"{CAP_OF_ARGUMENT[cap].word} cap"


def _may_ask(view: View, run: RunRow) -> bool:
    proposal = view.proposal(run.pending_id)
    if proposal is None or proposal.channel not in PERSON_CHANNELS:
        return False
    if view.last_entry(run.id, "AssistantMessage", own=True) is None:  # every call so far was lost
        return False
    requests = approvals = 0
    for entry in view.entries(run.id, 0, ("Asked", "Answered")):
        match entry.fact:
            case Asked(for_more=True):
                requests += 1
            case Answered(for_more=True, decision="approved"):
                approvals += 1
            case _:
                pass
    return requests == approvals and requests < MOST_ASKED


def _used_of_cap(run: RunRow, cap: ExtendedCap, active_s: float) -> float:
    if cap == "timeout":
        return round(active_s, 1)
    if cap == "max_cost_cents":
        return run.cost_micros
    return run.tokens


def _per_turn(view: View, run: RunRow, short: Shortage) -> float:
    """Return what a turn takes of a cap: the average of the last calls, or of all turns for the time."""
    if short.cap == "timeout":
        return short.active_s / run.turns
    calls: dict[tuple[int, int], float] = {}
    for entry in view.entries(run.id, 0, ("CostUpdate",)):
        fact = entry.fact
        if isinstance(fact, CostUpdate):  # of two for one call, the later one counts
            taken = fact.tokens if short.cap == "max_tokens" else entry.cost_micros
            calls[fact.turn, fact.attempt] = taken or 0
    recent = list(calls.items())[-RECENT_CALLS:]
    turns = {turn for (turn, _attempt), _taken in recent}
    return sum(taken for _call, taken in recent) / max(len(turns), 1)


def most_now(
    view: View, run: RunRow, config: RunConfig, cap: ExtendedCap, active_s: float, limits: ExtensionLimits, now_us: int
) -> tuple[float, str]:
    """Return the highest value that a cap of a run may have now, and what sets it."""
    own = CAP_OF_ARGUMENT[cap]
    hard = own.stored(own.most(limits.hard, config.tier)), f"limits.{own.setting(config.tier)}"
    if cap == "max_tokens":
        return hard
    if cap == "timeout":
        left_s = plan_time(view.plan_caps(run.plan_id), now_us)
        most_s = math.inf if left_s is None else active_s + left_s
        return min(hard, (most_s, "the plan's time"))
    names = {
        "group_max_cost": "the plan's cost cap",
        "user_daily_cents": "your budget of the day",
        "installation_daily_cents": "the installation's budget of the day",
    }
    highest = [hard]
    for each in money_caps(view, run, limits.days, now_us):
        if each.cap in names:
            highest.append((run.cost_micros + each.left, names[each.cap]))
    return min(highest)


def _round_cap(cap: ExtendedCap, wanted: float, most: float) -> int | float:
    """Return a cap in whole cents, thousands of tokens, seconds or minutes: rounded up, but to at most `most`."""
    unit = UNITS[cap]
    if cap == "timeout" and wanted >= LONG_S:
        unit = 60
    value = math.ceil(wanted / unit) * unit
    if value > most:
        value = math.floor(most / unit) * unit
    return _in_units(cap, value)


def _in_units(cap: ExtendedCap, value: float, unit: int = 1) -> int | float:
    """Return a value in tenths of seconds, or rounded up to a whole number of units."""
    if cap == "timeout":
        return round(value, 1)
    return math.ceil(value / unit) * unit


class CapExtensions:
    """Asks for more for one run, as its owner."""

    def __init__(self, run_log: RunLog, config: RunConfig, limits: ExtensionLimits) -> None:
        self._log = run_log
        self._config = config
        self._limits = limits

    async def more_of(self, reached: CapReached, call: CapRequest, active_s: float) -> Paused | None:
        """Return the pause in which a person is asked for more money or tokens, or None where the run wraps up."""
        if reached.cap == "max_cost_cents" or reached.cap == "max_tokens":
            return await self._more(Shortage(reached.cap, call.needs(reached.cap), active_s))
        return None

    async def more_time(self, active_s: float) -> Paused | None:
        """Return the pause in which a person is asked for more time, or None where the run wraps up."""
        return await self._more(Shortage("timeout", 0, active_s))

    async def _more(self, short: Shortage) -> Paused | None:
        def query(view: View) -> Asked | None:
            run = view.run(self._log.run.id)
            if run is None:
                return None
            return extension_request(view, run, short, self._limits, new_id("extension_id"), now_us())

        asked = await self._log.read(query) if self._limits.hard.extension_wait_s else None
        return None if asked is None else Paused(asked)

    def notice(self, active_s: float) -> tuple[str, tuple[str, ...]] | None:
        """Return the notice to the model after a cap was raised, which comes once, and its topic."""
        raised = self._log.history.raised
        topic = "" if raised is None else f"raised:{raised.ask_id}"
        if raised is None or topic in self._log.history.notices_sent:
            return None
        left = (
            cap_amount(cap, max(CAP_OF_ARGUMENT[cap].of(self._config) - _used_of_cap(self._log.run, cap, active_s), 0))
            for cap in get_args(ExtendedCap)
            if CAP_OF_ARGUMENT[cap].field in raised.changes
        )
        # It was told before that little is left.
        return f"A person has raised your limit: {', '.join(left)} left now. Go on with the task.", (topic,)


# -- in words ---------------------------------------------------------------------------------------------------------


def shortage_words(request: Asked) -> str:
    """Return what is left and what is missing: `$0.02 left; about $0.20 needed to continue`."""
    left = max(request.limit - request.used, 0)
    return f"{cap_amount(request.cap, left)} left; about {cap_amount(request.cap, request.needed)} needed to continue"


def request_words(request: Asked) -> str:
    """Return what a person is asked: `raise its cost cap from $0.50 to $0.70 ($0.02 left, …)`."""
    return f"{_raise_words(request)} ({shortage_words(request)})"


def _raise_words(request: Asked) -> str:
    low = cap_amount(request.cap, request.limit, exact=True)
    high = cap_amount(request.cap, request.proposed, exact=True)
    return f"raise its {cap_name(request.cap)} from {low} to {high}"


def in_vain(request: Asked, status: str, *, declined: bool) -> str:
    """Return how a request for more ended, to append to the reason of an ending by the same cap; else empty text."""
    if status != CAP_OF_ARGUMENT[request.cap].ending:
        return ""
    answer = "a person declined" if declined else "nobody answered"
    return f"; {answer} its request to {_raise_words(request)}"


def cap_amount(cap: ExtendedCap, value: float, *, exact: bool = False) -> str:
    """Return an amount of a cap for people: `$0.50`, `12,000 tokens`, `10 min`; an exact one is not rounded."""
    if cap == "max_tokens":
        return f"{TOKENS.text(int(value))} tokens"
    return CAP_OF_ARGUMENT[cap].text(value, exact=exact)
