"""The check of what delivers runs: the engine and its queues, and the workers on a shared log."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import anyio

from ava_audit.errors import AuditError
from ava_audit.store.backend import Kind
from ava_audit.store.sqlite import backend_of
from ava_audit.units import counted, format_ts
from ava_audit.view import View
from ava_server.service.checks import CheckFinding, Setup
from ava_server.service.engines import (
    LostWorker,
    WorkerFacts,
    engine_fault,
    lost_workers,
    read_engine,
    repeats_among,
    workers_among,
)

if TYPE_CHECKING:
    from ava_audit.store.backend import LiveInstance
    from ava_server.core.data_root import DataRoot
    from ava_server.delivery import EngineState

_START = "Start one with `ava worker --stay`."
_NEEDS = "See under Scale in the documentation what Ava needs of it."
_SERVER: tuple[Kind, ...] = ("server",)
_BAD_MESSAGES = (
    "What no Ava writes was removed; the rest comes again, and its error is in the workers' output. Give only servers"
    " the right to publish runs, and change the password of whoever else has it."
)
_FULL = (
    "Each worker makes one request at a time, so somebody else may make them with a worker's password: change it, and"
    " restart the engine and the workers. Runs wait and nothing is lost."
)
_WORKERS_USER = (
    "Runs that need them wait. Do on the worker's machine what it says, and start it again where its credentials or its"
    " settings change."
)
_SERVERS_USER = (
    "Store the password of a user that may, server:PASSWORD with the documented nats.conf, with `ava key set {engine}`,"
    " and start the server again."
)


def delivery(setup: Setup) -> Iterator[CheckFinding]:
    """Report the engine and the workers, where the log is shared. Blocking."""
    settings = setup.settings
    root = setup.usable_root
    if settings is None or root is None:
        return
    fault = engine_fault(settings)
    if fault is not None:
        yield CheckFinding("delivery", "fault", fault, setup.correct_settings)
        return
    if not settings.shares_log or settings.runs_on != "workers":
        return
    live, lost = _instances(root)
    if settings.delivery.engine != "none":
        state = anyio.run(partial(read_engine, settings))
        yield engine_finding(settings.delivery.engine, state, repeats_among(live or ()), _kinds_here(root, live or ()))
    if live is not None:
        yield from worker_findings(workers_among(live))
        yield from lost_findings(lost)


def _instances(root: DataRoot) -> tuple[Sequence[LiveInstance] | None, Sequence[LostWorker]]:
    """Return the processes on the log, and the workers that were lost lately.

    None where the log cannot be asked, which its own check reports.
    """
    backend = backend_of(root.path)
    try:
        with contextlib.closing(backend.instances(root.instances)) as instances:
            live, lost = instances.live(), instances.lost()
        if not lost:
            return live, ()
        with contextlib.closing(backend.open_to_check()) as db:
            return live, lost_workers(View(db), lost)
    except AuditError:
        return None, ()


def lost_findings(lost: Sequence[LostWorker]) -> Iterator[CheckFinding]:
    """Yield a note on each worker that was lost, and what became of its runs."""
    for worker in lost:
        text = f"a worker on {worker.host} was silent from {format_ts(worker.seen_us)[11:]}"
        if worker.taken_over:
            text += f"; taken over from it: {', '.join(worker.taken_over)}"
        if worker.left:
            text += f"; another worker is about to take over {', '.join(worker.left)}"
        yield CheckFinding("workers", "note", text, short="worker lost")


def _kinds_here(root: DataRoot, live: Sequence[LiveInstance]) -> frozenset[Kind]:
    """Return which kinds of live processes have this data root."""
    return frozenset(each.announcement.kind for each in live if (root.instances / f"{each.name}.lock").exists())


def engine_finding(
    engine: str, state: EngineState, repeated: int = 0, kinds: Collection[Kind] = _SERVER
) -> CheckFinding:
    """Return how the engine is, what waits in it, and how many deliveries servers have made again.

    `kinds`: of the processes that use the same credentials: a server has to deliver.
    """
    again = f"; delivered again, lost or silent for four leases: {repeated}" if repeated else ""
    if state.fault:
        return CheckFinding("delivery", "fault", state.fault, state.to_do or _NEEDS, short=f"{engine} down")
    if not state.delivers:
        return _takes_only(engine, state.user, kinds)
    if not state.counted:
        text = f"{engine} answers; what waits in it is not known: {state.user or 'this user'} may not see that{again}"
        return CheckFinding("delivery", "ok", text, short=f"{engine} up")
    if state.full:
        text = (
            f"{engine} answers, and takes no more requests for runs of {', '.join(state.full)}: workers get none there"
        )
        return CheckFinding("delivery", "fault", f"{text}{again}", _FULL, short=f"{engine} full")
    waiting = {queue: count for queue, count in state.waiting.items() if count}
    text = f"{engine} answers; runs at work: {sum(state.taken.values())}"
    if waiting:
        named = ", ".join(f"{queue}: {count}" for queue, count in sorted(waiting.items()))
        text += f", waiting: {named}"
    else:
        text += ", none waits"
    if state.again:
        text += f"; given to a worker again: {state.again}"
    return CheckFinding("delivery", "ok", f"{text}{again}", short=f"{engine}: {sum(waiting.values())} wait")


def _takes_only(engine: str, user: str, kinds: Collection[Kind]) -> CheckFinding:
    """Return what it means that the user of the engine may take runs and not deliver them."""
    if "server" in kinds:
        text = f"{engine} answers, and {user} may not deliver runs there, as a server has to: new runs wait"
        return CheckFinding("delivery", "fault", text, _SERVERS_USER.format(engine=engine), short=f"{engine} refuses")
    text = f"{engine} answers; {user} may take runs there, as a worker does"
    if "worker" in kinds:
        return CheckFinding("delivery", "ok", f"{text}, and not see what waits", short=f"{engine} up")
    text += ", and not deliver them, as a server has to"
    return CheckFinding(
        "delivery", "note", text, f"If a server is to run here: {_SERVERS_USER.format(engine=engine)}", f"{engine} up"
    )


def worker_findings(workers: Sequence[WorkerFacts]) -> Iterator[CheckFinding]:
    """Yield the workers, those of another version, and how many messages they could not use."""
    if not workers:
        yield CheckFinding("workers", "warning", "no worker is running: approved runs wait", _START, short="no worker")
        return
    shown = "; ".join(map(_worker_words, sorted(workers, key=lambda one: (one.host, one.labels))))
    count = counted(len(workers), "worker")
    if any(worker.faults for worker in workers):
        short = "workers take nothing"
        if any(worker.free_slots for worker in workers):
            short = "a worker cannot take all its runs"
        yield CheckFinding("workers", "fault", f"{count}: {shown}", _WORKERS_USER, short=short)
    elif all(worker.stopping for worker in workers):
        yield CheckFinding("workers", "warning", f"{count}: {shown}; approved runs wait", _START, short="no worker")
    else:
        yield CheckFinding("workers", "ok", f"{count}: {shown}", short=count)
    here = version("ava-subagents")
    others = sorted({one.version for one in workers if one.version and one.version != here})
    if others:
        text = f"workers run version {', '.join(others)}, and this is {here}"
        yield CheckFinding("workers", "warning", text, "Install the same version everywhere.", short="versions differ")
    bad = sum(worker.bad_messages for worker in workers)
    if bad:
        text = f"workers were given {counted(bad, 'message')} that no Ava writes, or that they could not handle"
        yield CheckFinding("workers", "warning", text, _BAD_MESSAGES, short="bad messages")


def _worker_words(worker: WorkerFacts) -> str:
    slots = "is stopping and takes no more" if worker.stopping else counted(worker.free_slots, "slot")
    words = [f"{worker.name} on {worker.host}", slots]
    if worker.labels:
        words.append(f"labels {', '.join(worker.labels)}")
    if worker.version:
        words.append(f"version {worker.version}")
    words.append(f"last beat {worker.silent_s:.0f} s ago")
    words += _fault_words(worker)
    if worker.missing:
        words.append(f"no queue yet for {', '.join(sorted(worker.missing))}")
    if worker.refused:
        words.append(f"{counted(worker.refused, 'offer')} left to the worker that had the run: nothing to do")
    return ", ".join(words)


def _fault_words(worker: WorkerFacts) -> list[str]:
    """Return what a worker can take nothing from, each reason once."""
    queues: dict[str, list[str]] = {}
    for queue, why in sorted(worker.faults.items()):
        queues.setdefault(why, []).append(queue)
    if len(queues) == 1 and not worker.queues and not worker.missing:
        return [f"takes nothing: {why}" for why in queues]
    return [f"takes nothing from {', '.join(of)}: {why}" for why, of in queues.items()]
