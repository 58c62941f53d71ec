"""One cap for the installation over many logs: a simulation of allotments, which nobody has built.

    nice python benchmarks/shards.py [--nodes 1000] [--users 100000] [--per-node 20] [--seed 1] [--broken]

Users hash to nodes, each with a log of its own. The parent grants chunks of the installation's cap. A granted chunk is
out until its node *reports* what it spent: no clock gives money back. `--broken` gives it back when its lease ends, as
an obvious design would, and overspends.

Messages are lost, doubled and late; nodes are cut off and crash; clocks are wrong and jump. Before every call the sum
of what all nodes have spent and hold is compared with the cap, where the truth is: at the model's side.

It measures the violations (floor and goal 0), and what is stranded when the parent runs dry: granted, neither spent
nor held, in percent of the cap. Goal: at most 5 % where the cap is 20 worst-case calls a node.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

HOLD = 1_000
"""The worst case of a call, in money."""
TRUE_SHARE = 0.28
"""What a call costs of it in truth, on average."""
DAY_S = 3_600.0
LEASE_S = 300.0
LOST, DOUBLED, LATE_S = 0.02, 0.02, 3.0
CUT_S, CRASH_S = 600.0, 120.0
"""How long a node is cut from the parent, and down, on average."""
BEAT_S, IDLE_S = 10.0, 60.0
"""How often a node reports, and after how long without a call it gives back what it has."""
MOST_CALLS = 4
"""Calls of a chunk, at most."""
SHRINK = 12
"""A chunk is one call once less than twice so many calls a node are left."""
SCARCE = 1
"""Once less than so many calls a node are left, a node is granted what its next call lacks, and returns what no call
needs as soon as a call has ended."""
DEMAND = 8
"""How many times the cap all calls would cost that arrive in a day, at their worst case."""


@dataclass
class Node:
    """One log: what it may still spend of what it was granted, and what it knows of its messages to the parent.

    Attributes:
        skew_s: How wrong its clock is. It decides when money is given back early, and never whether it may be spent.
        chunk: How much it was granted last.
        scarce: The parent has said that little is left: what no call needs goes back at once.
        request: The number of its request for money; it changes only when an answer has come.
        taken: The requests whose answer it has booked: a doubled or late one counts once.
        returns: Money that it has given up, by number, until the parent says that it has it.
    """

    skew_s: float
    free: int = 0
    held: int = 0
    spent: int = 0
    cut_until_s: float = 0.0
    down_until_s: float = 0.0
    called_s: float = 0.0
    waits: bool = False
    lease_until_s: float = 0.0
    request: int = 1
    chunk: int = 0
    scarce: bool = False
    taken: set[int] = field(default_factory=set)
    returns: dict[int, int] = field(default_factory=dict)
    returned: int = 0

    def works(self, now_s: float) -> bool:
        return now_s >= self.down_until_s


@dataclass
class Books:
    """What the parent has of one node: grants by request, and the returns that it has booked."""

    granted: dict[int, int] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)
    out: int = 0
    reported: int = 0
    expires_s: float = 0.0


@dataclass
class Totals:
    """What a simulation found."""

    calls: int = 0
    refused: int = 0
    violations: int = 0
    spent: int = 0
    held: int = 0
    highest: int = 0
    grants: int = 0
    stranded_when_dry: float | None = None


class Simulation:
    """Nodes, a parent and a network, driven by events in the order of time."""

    def __init__(self, nodes: int, users: int, cap: int, seed: int, *, broken: bool) -> None:
        self.random = random.Random(seed)
        self.cap = cap
        self.broken = broken
        self.totals = Totals()
        self.nodes = [Node(self.random.uniform(-30, 30)) for _ in range(nodes)]
        self.books = [Books() for _ in range(nodes)]
        digests = (sha256(f"{seed}:{user}".encode()).digest() for user in range(users))
        self.home = [int.from_bytes(digest[:4], "big") % nodes for digest in digests]
        self.left = cap
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.now_s = 0.0

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, do))

    def run(self, calls: int) -> Totals:
        """Start calls of random users over a day, and every fault on the way."""
        for _ in range(calls):
            self.at(self.random.uniform(0, DAY_S), self._arrive)
        for node in self.nodes:
            for minute in range(0, int(DAY_S), 600):
                self._plan_faults(node, minute + self.random.uniform(0, 600))
        for number in range(len(self.nodes)):
            self.at(self.random.uniform(0, BEAT_S), partial(self._beat, number))
        if self.broken:
            self.at(1.0, self._return_expired)
        while self._events:
            self.now_s, _order, do = heapq.heappop(self._events)
            if self.now_s > DAY_S + 3 * CUT_S:
                break
            do()
        return self.totals

    # -- the network and its faults -----------------------------------------------------------------------------------

    def _plan_faults(self, node: Node, when_s: float) -> None:
        if self.random.random() < (0.2 if self.broken else 0.05):
            lasts_s = self.random.expovariate(1 / CUT_S)
            self.at(when_s, lambda: setattr(node, "cut_until_s", when_s + lasts_s))
        if self.random.random() < 0.02:
            lasts_s = self.random.expovariate(1 / CRASH_S)
            self.at(when_s, lambda: setattr(node, "down_until_s", when_s + lasts_s))
        if self.random.random() < 0.05:
            self.at(when_s, lambda: setattr(node, "skew_s", self.random.uniform(-120, 120)))

    def send(self, node: Node, do: Callable[[], None]) -> None:
        """Deliver a message between a node and the parent: perhaps not at all, perhaps twice, perhaps late."""
        if self.now_s < node.cut_until_s or self.random.random() < LOST:
            return
        for _ in range(2 if self.random.random() < DOUBLED else 1):
            self.at(self.now_s + self.random.expovariate(1 / LATE_S), lambda: self._deliver(node, do))

    def _deliver(self, node: Node, do: Callable[[], None]) -> None:
        if self.now_s >= node.cut_until_s and node.works(self.now_s):
            do()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        number = self.home[self.random.randrange(len(self.home))]
        node = self.nodes[number]
        if not node.works(self.now_s):
            self.totals.refused += 1
            return
        node.called_s = self.now_s
        if self.broken and self._by_its_clock(node) > node.lease_until_s:
            node.free = 0
        if node.free < HOLD:
            self.totals.refused += node.waits  # one call waits for money, as in a run; more are refused here
            node.waits = True
            self._ask(number)
            return
        self._begin(number)

    def _begin(self, number: int) -> None:
        node = self.nodes[number]
        node.free -= HOLD
        node.held += HOLD
        if node.free < HOLD < node.chunk:  # ahead of need; near the cap that would strand a call at each node
            self._ask(number)
        self.totals.calls += 1
        self.totals.held += HOLD
        self._check()
        cost = max(1, min(HOLD, int(self.random.gauss(TRUE_SHARE, 0.12) * HOLD)))
        self.at(self.now_s + self.random.uniform(1, 20), partial(self._settle, number, cost))

    def _begin_waiting(self, number: int) -> None:
        node = self.nodes[number]
        if node.waits and node.free >= HOLD and node.works(self.now_s):
            node.waits = False
            self._begin(number)

    def _settle(self, number: int, cost: int) -> None:
        """Book what a call cost; nobody saw the end of one whose node has crashed, and it counts in full."""
        node = self.nodes[number]
        cost = cost if node.works(self.now_s) else HOLD
        node.held -= HOLD
        node.spent += cost
        node.free += HOLD - cost
        self.totals.held -= HOLD
        self.totals.spent += cost
        self._check()
        self._begin_waiting(number)
        if node.scarce and not node.waits and node.works(self.now_s):
            self._give_up(number)

    def _by_its_clock(self, node: Node) -> float:
        return self.now_s + node.skew_s

    def _check(self) -> None:
        both = self.totals.spent + self.totals.held
        self.totals.highest = max(self.totals.highest, both)
        self.totals.violations += both > self.cap

    # -- allotments ---------------------------------------------------------------------------------------------------

    def _beat(self, number: int) -> None:
        node = self.nodes[number]
        if self.now_s < DAY_S:
            self.at(self.now_s + BEAT_S, partial(self._beat, number))
        if not node.works(self.now_s):
            return
        idle = self._by_its_clock(node) - node.called_s > IDLE_S
        if idle or (node.scarce and not node.waits):
            self._give_up(number)
        for which, money in node.returns.items():
            self.send(node, partial(self._take_return, number, which, money))
        self.send(node, partial(self._take_report, number, node.spent))
        if node.waits:
            self._ask(number)

    def _give_up(self, number: int) -> None:
        """Return what no call needs; it is given up before the parent is told, so a lost message only strands it."""
        node = self.nodes[number]
        if not node.free or self.broken:
            return
        node.returned += 1
        node.returns[node.returned] = node.free
        self.send(node, partial(self._take_return, number, node.returned, node.free))
        node.free = 0

    def _ask(self, number: int) -> None:
        node = self.nodes[number]
        self.send(node, partial(self._grant, number, node.request, max(1, HOLD - node.free)))

    def _grant(self, number: int, request: int, lacks: int) -> None:
        """Hold a chunk for a node, or say again what this request was answered with."""
        books = self.books[number]
        if request not in books.granted:
            money = self._chunk(lacks)
            if not money:
                if self.totals.stranded_when_dry is None:
                    self.totals.stranded_when_dry = self._stranded()
                return
            self.left -= money
            self.totals.grants += 1
            books.granted[request] = money
            books.out += money
            books.expires_s = self.now_s + LEASE_S
        node = self.nodes[number]
        self.send(node, partial(self._receive, number, request, books.granted[request], books.expires_s))
        self._say_scarce(node)

    def _chunk(self, lacks: int) -> int:
        """Return the size of the next chunk: smaller the less is left, what a call lacks near the cap, none at it."""
        calls = max(1, min(MOST_CALLS, self.left // (SHRINK * HOLD * len(self.nodes))))
        money = lacks if self._is_scarce() else calls * HOLD
        return money if money <= self.left else 0

    def _is_scarce(self) -> bool:
        return not self.broken and self.left < SCARCE * HOLD * len(self.nodes)

    def _say_scarce(self, node: Node) -> None:
        """Tell a node whether little is left."""
        if (scarce := self._is_scarce()) != node.scarce:  # a real parent says so in each answer
            self.send(node, partial(setattr, node, "scarce", scarce))

    def _receive(self, number: int, request: int, money: int, lease_until_s: float) -> None:
        node = self.nodes[number]
        if request in node.taken:
            return
        node.taken.add(request)
        node.request = max(node.request, request + 1)
        node.free += money
        node.chunk = money
        node.lease_until_s = lease_until_s
        self._begin_waiting(number)

    def _take_return(self, number: int, which: int, money: int) -> None:
        """Take money back, once; the answer lets the node forget the message."""
        books, node = self.books[number], self.nodes[number]
        if which not in books.returned:
            books.returned.add(which)
            books.out -= money
            self.left += money
        self.send(node, partial(node.returns.pop, which, None))

    def _take_report(self, number: int, spent: int) -> None:
        books = self.books[number]
        books.reported = max(books.reported, spent)
        self._say_scarce(self.nodes[number])

    def _stranded(self) -> float:
        out = self.cap - self.left
        return 100 * max(0, out - self.totals.spent - self.totals.held) / self.cap

    def _return_expired(self) -> None:
        """The fault: what was not reported comes back by the clock, and a node that is cut off has spent it."""
        for books in self.books:
            if books.out > books.reported and self.now_s > books.expires_s:
                self.left += books.out - books.reported
                books.out = books.reported
        if self.now_s < DAY_S:
            self.at(self.now_s + 1, self._return_expired)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--per-node", type=int, default=20, help="the cap, in worst-case calls a node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", action="store_true", help="give money back when a lease ends")
    given = parser.parse_args()
    cap = given.nodes * given.per_node * HOLD
    began = time.perf_counter()
    simulation = Simulation(given.nodes, given.users, cap, given.seed, broken=given.broken)
    found = simulation.run(DEMAND * given.nodes * given.per_node)
    dry = "never" if found.stranded_when_dry is None else f"{found.stranded_when_dry:.2f} %"
    print(
        f"calls {found.calls:,}, refused {found.refused:,}, grants {found.grants:,}\n"
        f"violations {found.violations:,}, highest spent + held {100 * found.highest / cap:.2f} % of the cap\n"
        f"stranded when the parent ran dry: {dry}\n"
        f"{time.perf_counter() - began:.0f} s"
    )
    return int(found.violations > 0)


if __name__ == "__main__":
    sys.exit(main())
