"""Other processes: as /proc shows them (who started whom, who lives, what each was given), and how a child ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import Process

from ava_audit.store.locks import WriteLock
from ava_server.core.data_root import DataRoot


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not fetched yet does not."""
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except (ProcessLookupError, FileNotFoundError):
        return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    return bool(mask >> (number - 1) & 1)


def stop(pid: int, root: Path) -> None:
    """Stop a process between its entries in the log: in the middle of one, nobody else could write."""
    lock = WriteLock(root / "write.lock")
    with lock.held():
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
    lock.close()


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text("utf-8", "replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def processes_of_run(run_id: str) -> list[int]:
    """The processes of this machine that carry the mark of a run, whoever started them."""
    return [pid for pid in _all() if _mark(pid) == run_id]


def _all() -> Iterable[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _mark(pid: int) -> str | None:
    with suppress(OSError):  # another user's, or gone meanwhile
        return environment_of(pid).get("AVA_RUN_ID")
    return None


async def end(process: Process) -> None:
    """Kill a process if it still runs, and wait for its end, though its caller was cancelled."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()


def end_started_pages(root: Path) -> None:
    """End the server of the pages that a host's server of this data root has started, if it has.

    It may be starting still, without a record: a host whose person decides in Ava starts it when it connects. Then
    its command and environment tell, also of the program that starts it again.
    """
    with suppress(OSError, ValueError, IndexError):
        pid = int(DataRoot(root).pages_port.read_text().split()[1])
        if b"--listen" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    for pid in _all():
        with suppress(OSError):  # another user's, or gone meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--listen" in words and environment_of(pid).get("AVA_DATA_ROOT") == str(root):
                os.kill(pid, signal.SIGTERM)


def end_started_from(folder: Path) -> None:
    """End every process whose HOME is inside a folder."""
    for pid in _all():
        with suppress(OSError):  # another user's, or gone meanwhile
            if Path(environment_of(pid).get("HOME", "/")).is_relative_to(folder):
                os.kill(pid, signal.SIGTERM)
