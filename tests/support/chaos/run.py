"""Play chaos, check everything that must hold after it, and say what was seen.

Checked are the entries of the log alone, beside what hosts and the model server have seen.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread

from ava_audit.entries import Entry
from ava_audit.events import (
    CostReserved,
    CostUpdate,
    MoneyAwaited,
    RunClaimed,
    RunEnded,
    RunPaused,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
)
from ava_audit.store.store import Store
from ava_audit.verify import verify
from support.chaos.play import LOW_CENTS, LOW_USERS, USER_CENTS, Chaos, Plan
from support.engines.servers import Engine
from support.logs.cutting import all_entries
from support.model_server import Received
from support.postgres import PostgresServer
from support.runtime import check_budgets, check_requests

CENT = 10_000


@dataclass
class Scope:
    """A cap and what counts against it, in micro-USD."""

    cap: int
    spent: int = 0
    held: int = 0
    most: int = 0


@dataclass
class Sums:
    """Every entry of a log, added up without the product's code."""

    user_cents: Mapping[str, int]
    others_cents: int
    all_cents: int
    faults: list[str] = field(default_factory=list[str])  # what must not be
    counts: Counter[str] = field(default_factory=Counter[str])
    # The reserved calls by the hash of their request, and how each was settled.
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    scopes: dict[str, Scope] = field(default_factory=dict[str, Scope])
    caps: dict[str, int] = field(default_factory=dict[str, int])
    approved: dict[str, int] = field(default_factory=dict[str, int])
    results: Counter[str] = field(default_factory=Counter[str])
    ended: dict[str, str] = field(default_factory=dict[str, str])
    # The entries of each run, for a person who reads a fault.
    lines: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _claims: dict[str, int] = field(default_factory=dict[str, int])
    _flight: dict[str, CostReserved] = field(default_factory=dict[str, CostReserved])
    _wraps: dict[str, CostReserved] = field(default_factory=dict[str, CostReserved])
    _attempts: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])

    def add(self, entry: Entry) -> None:
        fact, run = entry.fact, str(entry.run_id)
        line = f"{entry.seq} {entry.ts_us / 1e6:.2f} {fact!r}"
        self.lines.setdefault(run, []).append(f"{line[:200]} generation {entry.generation} cost {entry.cost_micros}")
        if entry.generation is not None and entry.generation != self._claims.get(run):
            self.faults.append(f"entry {entry.seq} of {run} is by generation {entry.generation}, not the owner's")
        if entry.generation is not None and run in self.ended:
            self.faults.append(f"entry {entry.seq} of {run} comes after its end")
        match fact:
            case SpawnProposed():
                self.caps[run] = int(fact.config["max_cost_micros"])
            case SpawnDecided(decision="approved"):
                self.approved[run] = entry.seq
                self.caps[run] = int(fact.changes.get("max_cost_micros", self.caps[run]))
            case RunClaimed():
                self._claim(entry.seq, run, fact)
            case RunPaused():
                self.counts["pauses"] += 1
            case CostReserved():
                self._reserve(entry.seq, run, fact)
            case CostUpdate():
                self._settle(entry, run, fact)
            case MoneyAwaited() if fact.returned:
                self._return(entry.seq, run, fact.returned)
            case SubagentComplete():
                self.results[run] += 1
            case RunEnded():
                self._end(entry.seq, run, fact)
            case _:
                pass

    def finish(self, acknowledged: Iterable[str]) -> None:
        self.faults += [
            f"{run} was approved, and the log does not know it" for run in set(acknowledged) - set(self.approved)
        ]
        self.faults += [f"{run} has not ended" for run in self.approved if run not in self.ended]
        self.faults += [f"{run} has {self.results[run]} results" for run in self.approved if self.results[run] != 1]
        self.faults += [f"a call of {run} was not settled" for run in self._flight]
        self.faults += [f"{name} holds {scope.held}" for name, scope in self.scopes.items() if scope.held]

    def _claim(self, seq: int, run: str, fact: RunClaimed) -> None:
        if run not in self.approved:
            self.faults.append(f"entry {seq}: {run} was claimed without an approval")
        if fact.generation <= self._claims.get(run, 0):
            self.faults.append(f"entry {seq}: {run} was claimed twice as generation {fact.generation}")
        self._claims[run] = fact.generation
        self.counts[f"claims: {fact.reason}"] += 1

    def _reserve(self, seq: int, run: str, fact: CostReserved) -> None:
        if run in self._flight:
            self.faults.append(f"entry {seq}: {run} has a second call in flight")
        key = (run, fact.turn, fact.attempt)
        if key in self._attempts:
            self.faults.append(f"entry {seq}: {key} was reserved twice")
        self._attempts.add(key)
        self._release_wrap(run)
        self._flight[run] = self._wraps[run] = fact
        for name in fact.scopes:
            scope = self.scopes.setdefault(name, Scope(self._cap_of(name)))
            scope.held += fact.micros + fact.wrap_micros
            self._weigh(seq, name, scope)
        if run not in fact.scopes or len(fact.scopes) < 3:
            self.faults.append(f"entry {seq}: a call of {run} counts against {fact.scopes} only")
        self.counts["calls reserved"] += 1

    def _settle(self, entry: Entry, run: str, fact: CostUpdate) -> None:
        if fact.replaces is not None:
            for name in fact.replaces.scopes:
                self.scopes[name].spent += (entry.cost_micros or 0) - fact.replaces.micros
                self._weigh(entry.seq, name, self.scopes[name])
            self.counts["calls answered late"] += 1
            return
        call = self._flight.pop(run, None)
        if call is None or (call.turn, call.attempt) != (fact.turn, fact.attempt):
            self.faults.append(f"entry {entry.seq} settles a call of {run} that is not in flight")
            return
        for name in call.scopes:
            self.scopes[name].held -= call.micros
            self.scopes[name].spent += entry.cost_micros or 0
            self._weigh(entry.seq, name, self.scopes[name])
        if fact.settlement == "unknown" and entry.cost_micros != call.micros:
            self.faults.append(f"entry {entry.seq}: an unknown call of {run} was not counted in full")
        self.calls.append((call.request_sha, fact.settlement))
        self.counts[f"calls {fact.settlement}"] += 1

    def _return(self, seq: int, run: str, micros: int) -> None:
        """The process of a run is gone, and what it held for its last turn goes back."""
        held = self._wraps.get(run)
        if run in self._flight or held is None or held.wrap_micros != micros:
            self.faults.append(f"entry {seq}: {run} returns {micros}, which is not what it held for its last turn")
        self._release_wrap(run)
        self.counts["last turns returned"] += 1

    def _end(self, seq: int, run: str, fact: RunEnded) -> None:
        if run in self.ended:
            self.faults.append(f"entry {seq}: {run} ended twice")
        if not fact.stop_reason:
            self.faults.append(f"entry {seq}: {run} ended without a reason")
        self.ended[run] = fact.status
        self._release_wrap(run)
        if run in self.approved:
            self.counts[f"ended: {fact.status}"] += 1

    def _release_wrap(self, run: str) -> None:
        held = self._wraps.pop(run, None)
        for name in held.scopes if held is not None else ():
            self.scopes[name].held -= held.wrap_micros if held is not None else 0

    def _weigh(self, seq: int, name: str, scope: Scope) -> None:
        scope.most = max(scope.most, scope.spent + scope.held)
        if scope.spent + scope.held > scope.cap:
            self.faults.append(f"entry {seq}: {name} has {scope.spent + scope.held} of {scope.cap} micro-USD")

    def _cap_of(self, name: str) -> int:
        kind, _, rest = name.partition(":")
        if kind == "all":
            return self.all_cents * CENT
        if kind == "user":
            return self.user_cents.get(rest.partition(":")[0], self.others_cents) * CENT
        return self.caps[name]


def compare_calls(sums: Sums, received: Iterable[Received], answered: Iterable[Received]) -> Iterator[str]:
    """Compare the log's calls with those that the model server got and answered, request by request."""
    got, good = (Counter(hashlib.sha256(each.body).hexdigest() for each in side) for side in (received, answered))
    reserved = Counter(sha for sha, _how in sums.calls)
    counted = Counter(sha for sha, how in sums.calls if how != "not_billed")
    billed = Counter(sha for sha, how in sums.calls if how == "billed")
    for words, more, fewer in (
        ("sent without a reservation", got, reserved),
        ("answered and not counted", good, counted),
        ("billed and not answered", billed, good),
    ):
        yield from (f"{number} requests {sha[:12]} were {words}" for sha, number in (more - fewer).items())
    sums.counts["requests received"], sums.counts["requests answered"] = got.total(), good.total()


async def play_and_check(plan: Plan, folder: Path, postgres: PostgresServer, engine: Engine | None = None) -> Chaos:
    """Play a plan, and return what was done and everything that was wrong; `engine` is what delivers runs."""
    chaos = Chaos(plan, folder, postgres, engine)
    models, hosts = await chaos.play()
    root = folder / "checker"
    root.mkdir(mode=0o700)
    address = chaos.direct.replace(f":{postgres.password}@", "@")
    (root / "config.toml").write_text(f'database_url = "{address}"\napproval = "ask"\n')
    sums = Sums(dict.fromkeys(LOW_USERS, LOW_CENTS), USER_CENTS, plan.day_cents)
    async with Store.open(root) as store:
        for entry in await all_entries(store):
            sums.add(entry)
        await store.read(check_budgets)
    sums.finish(hosts.approved)
    chaos.faults += [*sums.faults, *compare_calls(sums, models.requests, models.answered)]
    await check_requests(root, models.requests)
    faulty = set(re.findall("S-[0-9a-f]+", " ".join(chaos.faults)))
    chaos.faults += ["\n".join(sums.lines.get(run, [])) for run in sorted(faulty)[:3]]
    report = await anyio.to_thread.run_sync(verify, root)
    chaos.faults += [f"ava verify: {fault}" for fault in report.faults]
    if not report.projections:
        chaos.faults.append("ava verify: the projections differ from the log")
    chaos.counts.update(sums.counts)
    chaos.counts["runs approved"] = len(sums.approved)
    chaos.counts["runs that hosts know were approved"] = len(hosts.approved)
    chaos.counts["caps that hosts met"] = hosts.refused
    for kind, prefix in (("user days", "user:"), ("installation days", "all:"), ("runs", "S-")):
        full = [scope for name, scope in sums.scopes.items() if name.startswith(prefix)]
        chaos.counts[f"{kind} with calls"] = len(full)
        chaos.counts[f"{kind} at 90 % of their cap or more"] = sum(10 * each.most >= 9 * each.cap for each in full)
    return chaos
