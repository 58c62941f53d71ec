"""The check of what delivers runs: the engine and its queues, and the workers on a shared log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import anyio

from ava_audit.errors import AuditError
from ava_audit.store.sqlite import backend_of
from ava_server.service.checks import CheckFinding, Setup
from ava_server.service.engines import WorkerFacts, engine_fault, read_engine, repeats_among, workers_among

if TYPE_CHECKING:
    from ava_audit.store.backend import LiveInstance
    from ava_server.core.data_root import DataRoot
    from ava_server.delivery import EngineState

_START = "Start one with `ava worker --stay`."
_AGAIN = "See under Scale in the documentation what Ava needs of it."


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
    live = _live_instances(root)
    if settings.delivery.engine != "none":
        state = anyio.run(partial(read_engine, settings))
        yield engine_finding(settings.delivery.engine, state, repeats_among(live or ()))
    if live is not None:
        yield from worker_findings(workers_among(live))


def _live_instances(root: DataRoot) -> Sequence[LiveInstance] | None:
    """Return the processes on the log; None where it cannot be asked, which its own check reports."""
    try:
        with contextlib.closing(backend_of(root.path).instances(root.instances)) as instances:
            return instances.live()
    except AuditError:
        return None


def engine_finding(engine: str, state: EngineState, repeated: int = 0) -> CheckFinding:
    """Return how the engine is, what waits in it, and how many deliveries servers have made again."""
    again = f"; delivered again after four silent leases: {repeated}" if repeated else ""
    if state.fault:
        return CheckFinding("delivery", "fault", state.fault, _AGAIN, short=f"{engine} down")
    if not state.counted:
        text = f"{engine} answers; what waits in it is not known: this user may not see that{again}"
        return CheckFinding("delivery", "ok", text, short=f"{engine} up")
    waiting = {queue: count for queue, count in state.waiting.items() if count}
    text = f"{engine} answers; with workers: {sum(state.taken.values())}"
    if waiting:
        named = ", ".join(f"{queue}: {count}" for queue, count in sorted(waiting.items()))
        text += f", waiting: {named}"
    else:
        text += ", none waits"
    if state.again:
        text += f"; given to a worker again: {state.again}"
    return CheckFinding("delivery", "ok", f"{text}{again}", short=f"{engine}: {sum(waiting.values())} wait")


def worker_findings(workers: Sequence[WorkerFacts]) -> Iterator[CheckFinding]:
    """Yield the workers, and those of another version."""
    if not workers:
        yield CheckFinding("workers", "warning", "no worker is running: approved runs wait", _START, short="no worker")
        return
    shown = "; ".join(map(_worker_words, sorted(workers, key=lambda one: (one.host, one.labels))))
    count = _counted(len(workers), "worker")
    yield CheckFinding("workers", "ok", f"{count}: {shown}", short=count)
    here = version("ava-subagents")
    others = sorted({one.version for one in workers if one.version and one.version != here})
    if others:
        text = f"workers run version {', '.join(others)}, and this is {here}"
        yield CheckFinding("workers", "warning", text, "Install the same version everywhere.", short="versions differ")


def _worker_words(worker: WorkerFacts) -> str:
    words = [f"on {worker.host}", _counted(worker.slots, "slot")]
    if worker.labels:
        words.append(f"labels {', '.join(worker.labels)}")
    if worker.version:
        words.append(f"version {worker.version}")
    words.append(f"last beat {worker.silent_s:.0f} s ago")
    if worker.refused:
        words.append(f"{_counted(worker.refused, 'second claim')} refused")
    return ", ".join(words)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
