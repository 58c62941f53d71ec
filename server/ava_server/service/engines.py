"""The engine that delivers runs, as the settings name it; without one, the log does."""

from __future__ import annotations

import re
import ssl
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from ava_audit.events import RunClaimed
from ava_audit.rows import RUNNING
from ava_audit.store.backend import MARK
from ava_extras import ExtraMissing, load
from ava_server.config.keys import find_key
from ava_server.core.errors import AvaError, ConfigError
from ava_server.delivery import PLANS, DeliveryFailed, EnginePlace, EngineState, queues_for
from ava_server.delivery.outbox import REPEATED
from ava_server.runs.owner.offers import BAD_MESSAGES, REFUSED, STOPPING, faults_in, missing_in

if TYPE_CHECKING:
    from ava_audit.store.backend import LiveInstance, LostInstance
    from ava_audit.view import View
    from ava_server.config.settings import Settings
    from ava_server.delivery import Delivery

ADDRESSES = {"nats": ("nats://", "tls://"), "temporal": ("temporal://", "tls://")}
"""How the address of each engine begins."""
STATE_S = 3.0
"""How long an engine has to say how it is: the metrics, a page or a command wait for it."""
_HOST = re.compile(r"[\w.:%-]+")


def engine_fault(settings: Settings) -> str | None:
    """Return why the engine that the settings name cannot be used, as one sentence; None where it can."""
    chosen = settings.delivery
    if chosen.engine == "none":
        return None
    setting = f'engine = "{chosen.engine}" under [delivery]'
    if not settings.shares_log:
        return f"{setting} needs a log in Postgres: set database_url, or remove the engine"
    if settings.runs_on != "workers":
        return f'{setting} needs runs_on = "workers": set it, or remove the engine'
    address_fault = _address_fault(chosen.engine, chosen.address)
    if address_fault is not None:
        return f"{setting} needs {address_fault}; given: {_without_user(chosen.address)!r}"
    authority_fault = None if chosen.ca_file is None else _authority_fault(chosen.ca_file)
    if authority_fault is not None:
        given = f"{setting} has the ca_file {chosen.ca_file}"
        return f"{given}, which {authority_fault}: give the certificates of the authority"
    return None


def _authority_fault(file: Path) -> str | None:
    """Return why a file cannot say which authorities are trusted; None where it can."""
    if not file.is_file():
        return "is not a file"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return "has no certificates in PEM format"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _address_fault(engine: str, address: str) -> str | None:
    """Return what an engine's address has to be, where it is not; None where it fits."""
    begins = ADDRESSES[engine]
    if not address.startswith(begins) or "@" in address:
        return (
            f"an address that begins with {' or '.join(begins)} and has no password in it"
            f" (`ava key set {engine}` stores that)"
        )
    parts = [one.strip() for one in address.split(",")] if engine == "nats" else [address]
    if len({one.partition("://")[0] for one in parts}) > 1:
        return "addresses that all begin alike, as each of them is encrypted or none"
    if not all(map(_is_place, parts)):
        return "an address of a host and a port from 1 to 65535"
    return None


def _is_place(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    if not _HOST.fullmatch(parts.hostname or ""):
        return False
    return port != 0 and not parts.query and not parts.fragment


def open_engine(settings: Settings) -> Delivery | None:
    """Return the adapter of the engine, not connected yet; None where the log delivers. Blocking.

    Raises ConfigError if the settings do not fit, its extra is missing, or its key cannot be read.
    """
    chosen = settings.delivery
    if chosen.engine == "none":
        return None
    fault = engine_fault(settings)
    if fault is not None:
        raise ConfigError(f"{fault}.")
    try:
        module = load(chosen.engine)
    except ExtraMissing as missing:
        raise ConfigError(str(missing)) from None
    key = find_key(chosen.engine, settings.paths.keys)
    place = EnginePlace(
        address=chosen.address,
        name=chosen.name,
        credentials=None if key is None else key.value,
        ca_file=chosen.ca_file,
        lease_s=float(settings.lease_s),
        log_id=_log_id(settings.data_root),
    )
    opened: Delivery = module.open_delivery(place)
    return opened


def _log_id(root: Path) -> str:
    """Return the id of the log; empty before a process here has opened it: then only the engine's state is asked."""
    try:
        return (root / MARK).read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"{root / MARK} cannot be read ({error.strerror}): correct its rights.") from None


def _without_user(address: str) -> str:
    return f"***@{address.rpartition('@')[2]}" if "@" in address else address


# -- what operators see -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerFacts:
    """A worker as it announces itself: `silent_s` since its last beat, `refused` offers of runs that others have.

    One that is `stopping` takes nothing more. `faults` says by queue why it can take nothing from it, and
    `bad_messages` of its engine could not be used. Nobody answers it for the queues that are `missing`: they had no
    run yet, or its account lacks them.
    """

    name: str
    host: str
    labels: tuple[str, ...]
    version: str
    slots: int
    refused: int
    silent_s: float
    stopping: bool = False
    bad_messages: int = 0
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    missing: frozenset[str] = frozenset()

    @property
    def queues(self) -> Sequence[str]:
        """The queues of an engine that it can take runs from; none where its labels are too many, or it is stopping."""
        if self.stopping:
            return ()
        try:
            queues = queues_for(self.labels)
        except DeliveryFailed:
            return ()
        return [queue for queue in queues if queue not in self.faults and queue not in self.missing]

    @property
    def free_slots(self) -> int:
        """How many runs it takes at once; none where it is stopping, or can take nothing but plans from its engine."""
        usable = {*self.queues, *self.missing} - {PLANS}
        if self.stopping or (self.faults and not usable):
            return 0
        return self.slots


def workers_among(instances: Sequence[LiveInstance]) -> list[WorkerFacts]:
    workers: list[WorkerFacts] = []
    for instance in instances:
        if instance.announcement.kind != "worker":
            continue
        offers = instance.announcement.offers
        workers.append(
            WorkerFacts(
                name=instance.name,
                host=instance.host,
                labels=tuple(map(str, offers.get("labels", ()))),
                version=str(offers.get("version", "")),
                slots=int(offers.get("runs", 0)),
                refused=int(offers.get(REFUSED, 0)),
                silent_s=instance.silent_s,
                stopping=bool(offers.get(STOPPING)),
                bad_messages=int(offers.get(BAD_MESSAGES, 0)),
                faults=faults_in(offers),
                missing=missing_in(offers),
            )
        )
    return workers


@dataclass(frozen=True)
class LostWorker:
    """A worker that ended without a word in the log.

    Attributes:
        host: The machine that it ran on.
        seen_us: When it was last known to run.
        taken_over: The runs that other workers took over from it.
        left: Its runs that still wait for another worker.
    """

    host: str
    seen_us: int
    taken_over: tuple[str, ...]
    left: tuple[str, ...]


def lost_workers(view: View, lost: Sequence[LostInstance]) -> list[LostWorker]:
    """Return the workers among lost instances, with the runs that others took over and those that still wait."""
    workers = [instance for instance in lost if instance.kind == "worker"]
    if not workers:
        return []
    since_us = min(worker.seen_us for worker in workers)
    taken_over: defaultdict[str, list[str]] = defaultdict(list)
    for run_id in _claimed_since(view, since_us):
        facts = [entry.fact for entry in view.entries(run_id, 0, ("RunClaimed",))]
        claims = [fact for fact in facts if isinstance(fact, RunClaimed)]
        for before, after in pairwise(claims):
            if after.reason == "takeover":
                taken_over[before.instance].append(run_id)
    left: defaultdict[str | None, list[str]] = defaultdict(list)
    for run in view.runs(states=(RUNNING,), limit=-1):
        left[run.instance].append(run.id)
    lost_with_runs: list[LostWorker] = []
    for worker in workers:
        taken = tuple(taken_over[worker.name])
        lost_with_runs.append(LostWorker(worker.host, worker.seen_us, taken, tuple(left[worker.name])))
    return lost_with_runs


def _claimed_since(view: View, since_us: int) -> list[str]:
    """Return the runs that were claimed since then, found from the newest claim."""
    found: dict[str, None] = {}
    for run_id, ts_us in view.select("SELECT run_id, ts_us FROM events WHERE type = 'RunClaimed' ORDER BY seq DESC"):
        if ts_us < since_us:
            break
        found[run_id] = None
    return list(found)


def repeats_among(live: Sequence[LiveInstance]) -> int:
    """Return how many deliveries live servers have made again, because a run showed no sign of life."""
    return sum(int(each.announcement.offers.get(REPEATED, 0)) for each in live)


async def engine_state(engine: Delivery) -> EngineState:
    """Return how a connected engine is; one that does not say so in time is down."""
    with anyio.move_on_after(STATE_S):
        return await engine.state()
    return EngineState(
        f"{engine.name} has not said for {STATE_S:.0f} s how it is; runs wait until it answers",
        "See whether its server, or the network to it, is overloaded; runs wait and nothing is lost.",
    )


async def read_engine(settings: Settings) -> EngineState:
    """Connect to the engine and return how it is, also where it cannot be used."""
    try:
        engine = open_engine(settings)
    except AvaError as error:
        return EngineState(str(error).rstrip("."))
    if engine is None:
        return EngineState()
    async with engine.connected():
        return await engine_state(engine)
