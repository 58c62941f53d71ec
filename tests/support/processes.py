"""Other processes: as /proc shows them (who started whom, who lives, what each was given), and how a child ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import Process

from ava_audit.store.locks import WriteLock
from ava_server.core.data_root import DataRoot

STARTS_WITHIN_S = 2.0
"""How long a program may take from the fork until it runs."""


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
    return [pid for pid in _all() if _variables(pid).get("AVA_RUN_ID") == run_id]


def _all() -> Iterable[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _variables(pid: int) -> dict[str, str]:
    try:
        return environment_of(pid)
    except OSError:  # another user's, or gone meanwhile
        return {}


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
    its command and environment tell, also of the program that starts it again. What such a program starts while this
    looks is ended by the next look.
    """
    with suppress(OSError, ValueError, IndexError):
        pid = int(DataRoot(root).pages_port.read_text().split()[1])
        if b"--listen" in _words(pid):
            os.kill(pid, signal.SIGTERM)
    _end_all(lambda: [pid for pid in _processes_of(root) if b"--listen" in _words(pid)], lambda: _is_starting(root))


def end_started_from(folder: Path) -> None:
    """End every process whose HOME or data root is inside a folder."""
    if sys.platform == "linux":  # elsewhere there is no /proc, and no host is started
        _end_all(lambda: [pid for pid in _all() if pid != os.getpid() and _is_from(folder, pid)])


def _end_all(find: Callable[[], list[int]], is_starting: Callable[[], bool] = lambda: False) -> None:
    """End what is found, until nothing is found that was not asked to end, and nothing is starting."""
    asked: set[int] = set()
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        starting = is_starting()  # first: what it becomes is then found
        new = set(find()) - asked
        for pid in new:
            with suppress(OSError):  # gone meanwhile
                os.kill(pid, signal.SIGTERM)
        asked |= new
        if not new and not starting:
            return
        time.sleep(0.002)


def _processes_of(root: Path) -> list[int]:
    return [pid for pid in _all() if _variables(pid).get("AVA_DATA_ROOT") == str(root)]


def _is_starting(root: Path) -> bool:
    """Tell whether a server that was killed has left a child that does not run its own program yet."""
    return any(_parent(pid) == 1 and b"worker" not in _words(pid) for pid in _processes_of(root))


def _is_from(folder: Path, pid: int) -> bool:
    variables = _variables(pid)
    return any(Path(variables.get(name, "/")).is_relative_to(folder) for name in ("HOME", "AVA_DATA_ROOT"))


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
