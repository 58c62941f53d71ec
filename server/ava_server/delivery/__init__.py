"""How workers hear of runs: by the log itself, or by an engine in front of it.

The seam is `Delivery`. The engine proposes and the log decides: a message names a run, and the worker that gets it
claims that run as any other; admission, caps, cancels and the truth about a run stay in the log. `log.py` is the
reference: commits of the log are the messages. The modules of engines are extras, loaded by name (`ava_extras`); the
core never imports them.

Four rules make every engine safe, also one that is wrong about who lives (`tests/server/delivery/test_rules.py`):

1. A run's owner renews its lease in the log; a cancel, and that it has lost the run, reach it from there.
2. A worker shows the engine that it lives, and takes work, only while the log has answered it lately.
3. What was delivered and stays silent for four leases is delivered again, under a new id; what still waits in the
   engine, given to no worker, is not silent.
4. A claim is refused while the owner's lease is fresh, and silence counts from when the log answers again.

So a message may be forgotten only when the log says that its run has ended, or waits and will be delivered again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Protocol

from ava_server.core.errors import AvaError

SILENT_LEASES = 4
"""Leases after which what was delivered and shows no sign of life is delivered again."""
MOST_LABELS = 4
"""Labels of a worker under an engine: it listens to a queue for each set of them."""
ANY, PLANS = "any", "plans"
"""The queue of runs that need no label, and the one of plans, which take no slot."""
_LONGEST_QUEUE = 120


class DeliveryFailed(AvaError):
    """The engine could not be used; the text is one sentence that says what happened and what to do.

    `to_do`: more on what to do, for operators; empty where the sentence says it all.
    """

    def __init__(self, message: str, to_do: str = "") -> None:
        super().__init__(message)
        self.to_do = to_do


class Body(Protocol):
    """What a worker does with what it is given."""

    @property
    def settled_s(self) -> float:
        """Until when (on anyio's clock) it looks at nothing new: it has just looked."""
        ...

    def wake(self) -> None:
        """Have it look at the log: something has changed there."""
        ...

    def is_alive(self) -> bool:
        """Tell whether the log has answered lately, so that a sign of life may be given (rule 2)."""
        ...

    def takes_runs(self) -> bool:
        """Tell whether it may be given a run: it is alive and is not being stopped."""
        ...

    def show_fault(self, queue: str, why: str) -> None:
        """Show others why nothing can be taken from a queue; an empty `why` takes that back."""
        ...

    def show_missing(self, queue: str, *, missing: bool) -> None:
        """Show others whether nobody answers for a queue: it had no run yet, or this worker's account lacks it."""
        ...

    def count_bad_message(self) -> None:
        """Count a message that it could not use, for others to see."""
        ...

    async def __call__(self, run_id: str) -> bool:
        """Claim a run and drive it as far as this process can; return whether its message may be forgotten."""
        ...


@dataclass(frozen=True)
class EngineState:
    """What an engine says of itself.

    Attributes:
        fault: Why it cannot be used; empty while it can.
        to_do: What an operator does about that.
        waiting: Deliveries that no worker has taken, by queue.
        taken: Deliveries that a worker has and has not finished, by queue.
        full: Queues that take no more requests for runs, so that some workers get none.
        again: How many of these were given to a worker more than once; None where the engine does not say.
        counted: These counts are known; to a user without the right to see them, they are not.
        user: As whom this process asks the engine; empty where that is not known.
        delivers: This user may deliver runs, as a server does; one that may not can still take them.
    """

    fault: str = ""
    to_do: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict[str, int])
    taken: Mapping[str, int] = field(default_factory=dict[str, int])
    full: Collection[str] = ()
    again: int | None = None
    counted: bool = True
    user: str = ""
    delivers: bool = True


@dataclass(frozen=True)
class EnginePlace:
    """Where an engine is, and what it is asked for.

    Attributes:
        address: As the setting has it, without a password.
        name: What the engine calls the runs of this log: each log has its own.
        credentials: What the engine wants to see, such as `user:password`; None for none.
        ca_file: The certificates of authorities that are trusted besides the system's.
        lease_s: After how long without a sign of life a message goes to another worker.
        log_id: The log whose runs these are.
    """

    address: str
    name: str
    credentials: str | None = field(repr=False)
    ca_file: Path | None
    lease_s: float
    log_id: str


class Delivery(Protocol):
    """Carries runs to workers.

    Attributes:
        name: The engine's name, as the setting has it.
        carries: Workers take only what they are given; else they find runs in the log by themselves.
    """

    name: str
    carries: bool

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Keep what is needed to use the engine. An engine that is away raises nothing here: what it is asked fails."""
        ...

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        """Tell the engine of a run, and return whether this attempt was news to it. Raises DeliveryFailed.

        The same attempt twice is one message, also from several servers. A repeat (`is_repeat`) of what still waits in
        the engine is none: it would only lose its place there.
        """
        ...

    async def cancel(self, run_id: str) -> None:
        """Have workers look for a cancel, which the log has already. Raises DeliveryFailed."""
        ...

    async def work(self, name: str, queues: Sequence[str], slots: int, body: Body, /) -> None:
        """Give the body what comes, until cancelled; never more than `slots` at once, besides plans."""
        ...

    async def state(self) -> EngineState:
        """Return how the engine is; one that is away is a state too."""
        ...


def queue_of(labels: Collection[str], *, plan: bool = False) -> str:
    """Return the queue for a run that needs a machine with all of these labels."""
    if plan:
        return PLANS
    if not labels:
        return ANY
    name = "label-" + "+".join(sorted(set(labels)))
    if len(name) > _LONGEST_QUEUE:
        name = f"label-{sha256(name.encode()).hexdigest()[:40]}"
    return name


def queues_for(labels: Collection[str]) -> list[str]:
    """Return the queues of a worker: one for each set of its labels. Raises DeliveryFailed if it has too many."""
    own = sorted(set(labels))
    if len(own) > MOST_LABELS:
        raise DeliveryFailed(
            f"this worker has {len(own)} labels ({', '.join(own)}), and under an engine a worker has at most"
            f" {MOST_LABELS}: start it with fewer `--label`"
        )
    sets = [chosen for size in range(1, len(own) + 1) for chosen in combinations(own, size)]
    return [PLANS, ANY, *(queue_of(chosen) for chosen in sets)]


def attempt_of(generation: int, since_us: int, now_us: int, lease_s: float) -> str:
    """Return the attempt at which a run is delivered: the same in every process that reads the same log.

    It changes with each claim, and then after every four leases without a sign of life (rule 3).
    """
    silent_s = max(0, now_us - since_us) / 1e6
    return f"{generation}.{int(silent_s // (SILENT_LEASES * lease_s))}"


def is_repeat(attempt: str) -> bool:
    """Tell whether an attempt follows one that showed no sign of life (rule 3)."""
    return not attempt.endswith(".0")


def same_claim(attempt: str, other: str) -> bool:
    """Tell whether two attempts at a run are of one claim of it."""
    return attempt.partition(".")[0] == other.partition(".")[0]
