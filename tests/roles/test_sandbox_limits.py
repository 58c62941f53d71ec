"""What a command may take: memory, processes, disk, time and output."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.sandboxes.attacks import command, needs, python, sandbox
from support.stdio import until

from ava_roles.sandbox import linux
from ava_roles.sandbox.launcher.spec import ResourceLimits
from ava_roles.sandbox.sandbox import Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own with room for 100 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m,mode=0755", "none", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def test_stops_a_fork_bomb(kind: Kind, here: Path) -> None:
    if kind == "none" and linux.is_root():
        pytest.skip("the kernel counts no processes of root's")
    code = (
        "import os, time\n"
        "for number in range(300):\n"
        "    try: pid = os.fork()\n"
        "    except BlockingIOError: break\n"
        "    if pid == 0: time.sleep(60)\n"
        "print(number)\n"
    )
    done = await sandbox(kind, here.parent).run(python(here, code))
    assert done.ended == "exited"
    assert 10 < int(done.output) <= 64


async def test_refuses_too_much_memory_in_one_process(kind: Kind, here: Path) -> None:
    done = await sandbox(kind, here.parent).run(python(here, "bytearray(3 << 30)"))
    assert (done.ended, done.code) == ("exited", 1)
    assert "MemoryError" in done.output


async def test_ends_five_processes_that_together_use_too_much_memory(kind: Kind, here: Path) -> None:
    code = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0: break\n"
        "held = bytearray(b'x') * (60 << 20)\n"
        "time.sleep(60)\n"
    )
    done = await sandbox(kind, here.parent, memory=200 * MIB).run(python(here, code))
    assert (done.ended, done.code) == ("memory", None), done
    assert done.took_s < 5


async def test_counts_shared_memory_once(kind: Kind, here: Path) -> None:
    code = (
        "import os, time\n"
        "held = bytearray(b'x') * (60 << 20)\n"
        "children = [os.fork() for _ in range(3)]\n"
        "time.sleep(0.5)\n"
    )
    done = await sandbox(kind, here.parent, memory=160 * MIB).run(python(here, code))
    assert (done.ended, done.code) == ("exited", 0), done


async def test_a_command_can_have_limits_of_its_own(kind: Kind, here: Path) -> None:
    code = (
        "import mmap, resource\n"
        "mmap.mmap(-1, 8 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # reserved, and never used\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0]); bytearray(b'x') * (300 << 20)"
    )
    order = python(here, code, timeout_s=30)
    refused = await sandbox(kind, here.parent).run(order)
    assert "OSError" in refused.output, refused
    own = ResourceLimits(memory=900 * MIB, address_space=0, open_files=300)
    done = await sandbox(kind, here.parent, memory=200 * MIB).run(replace(order, limits=own))
    assert (done.code, done.output) == (0, "300\n"), done


async def test_a_limit_above_that_of_the_server_itself_is_lowered(kind: Kind, here: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    order = replace(python(here, code), limits=ResourceLimits(open_files=1 << 30))
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this process has no such limit")
    done = await sandbox(kind, here.parent).run(order)
    assert done.output == f"({hard}, {hard})\n", done


async def test_refuses_a_file_that_is_too_large(kind: Kind, here: Path) -> None:
    done = await sandbox(kind, here.parent).run(
        python(here, "import signal; signal.signal(25, signal.SIG_IGN); open('large', 'wb').truncate(300 << 20)")
    )
    assert (done.ended, done.code) == ("exited", 1)
    assert "File too large" in done.output


FILES = "import os, time\nfor n in range(12):\n    f = os.open(f'f{n}', os.O_RDWR | os.O_CREAT)\n    "


@pytest.mark.parametrize(
    "writes",
    [
        FILES + "os.posix_fallocate(f, 0, 50 << 20)\ntime.sleep(60)",
        FILES + "os.unlink(f'f{n}'); os.posix_fallocate(f, 0, 50 << 20)\ntime.sleep(60)",
        "import os, time\nfor n in range(400): os.mkdir('d'); os.chdir('d')\ntime.sleep(60)",
    ],
    ids=["files", "files without a name", "folders within folders"],
)
async def test_ends_a_command_that_fills_the_disk(kind: Kind, here: Path, writes: str) -> None:
    done = await sandbox(kind, here.parent, disk=200 * MIB).run(python(here, writes))
    assert (done.ended, done.code) == ("disk", None), done
    assert done.took_s < 5


async def test_does_not_count_disk_space_used_before_the_command(kind: Kind, here: Path) -> None:
    with (here / "before").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 50 * MIB)
    done = await sandbox(kind, here.parent, disk=20 * MIB).run(command(here, "/bin/sleep", "0.4"))
    assert (done.ended, done.code) == ("exited", 0)


async def test_counts_disk_growth_from_the_baseline_of_the_caller(kind: Kind, here: Path) -> None:
    """Commands that share a folder would else each have the whole of it."""
    with (here / "before").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 50 * MIB)
    sleeps = command(here, "/bin/sleep", "5")
    done = await sandbox(kind, here.parent, disk=20 * MIB).run(replace(sleeps, disk_from=0))
    assert done.ended == "disk" and done.took_s < 4


HIDDEN = "f = os.open('f', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 10 << 20); os.unlink('f')\n    "


@pytest.mark.parametrize(
    "hides",
    [
        "socket.send_fds(a, [b'x'], [f])",
        "mapped = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, f, ctypes.c_size_t(0))",
    ],
    ids=["under way", "mapped"],
)
async def test_ends_a_command_that_fills_the_disk_with_hidden_files(
    kind: Kind, small_disk: Path, tmp_path: Path, hides: str
) -> None:
    if kind == "landlock" and not linux.is_root() and "socket" in hides:
        pytest.skip("no sockets there")
    (small_disk / "here").mkdir()
    code = "import ctypes, os, socket, time\nlibc = ctypes.CDLL(None); a, b = socket.socketpair()\n"
    code += f"for n in range(20):\n    {HIDDEN}{hides}; os.close(f); time.sleep(0.05)\ntime.sleep(60)"
    done = await sandbox(kind, tmp_path).run(python(small_disk / "here", code))
    assert (done.ended, done.code) == ("disk", None), done

    def gone() -> bool:
        return os.statvfs(small_disk).f_bavail == os.statvfs(small_disk).f_blocks

    await until(gone)  # the kernel may still be taking apart the memory of what was killed


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/", "/dev"])
async def test_memory_cannot_be_filled_through_a_file_system(place: str, here: Path) -> None:
    needs("bubblewrap")
    code = f"import os; f = os.open('{place}/f', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 100 << 20)"
    done = await sandbox("bubblewrap", here.parent).run(python(here, code))
    assert done.code == 1
    assert "No space left" in done.output or "Read-only" in done.output


async def test_limits_processor_time(kind: Kind, here: Path) -> None:
    done = await sandbox(kind, here.parent, cpu_s=1).run(command(here, "/bin/sh", "-c", "while :; do :; done"))
    assert (done.ended, done.code) in [("signal", 128 + 9), ("signal", 128 + 24)]


@pytest.mark.slow
async def test_a_command_can_be_given_more_processor_time(kind: Kind, here: Path) -> None:
    code = "import time; began = time.process_time()\nwhile time.process_time() - began < 1.5: pass\nprint('done')"
    box = sandbox(kind, here.parent, cpu_s=1)
    assert (await box.run(replace(python(here, code), cpu_s=10))).output == "done\n"
    assert (await box.run(python(here, code))).ended == "signal"


async def test_a_hundred_megabytes_of_output_use_little_memory(kind: Kind, here: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = "import os\nfor n in range(1600): os.write(1, b'%7d\\n' % n + b'x' * 65527 + b'\\n')"
    order = replace(python(here, code), max_output=10_000)
    done = await sandbox(kind, here.parent).run(order)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert done.code == 0
    assert done.output.startswith("      0\nxxx")
    assert done.output.endswith("x\n")
    assert f"{done.dropped:,} bytes left out" in done.output
    assert done.dropped == 1600 * 65_536 - 10_000
    assert len(done.output) < 10_100
    assert grown < 30 * 1024


async def test_handles_binary_output_and_closed_streams(kind: Kind, here: Path) -> None:
    box = sandbox(kind, here.parent)
    odd = await box.run(command(here, "/bin/sh", "-c", r"printf 'a\377\376b\0c'; echo err >&2"))
    closed = await box.run(command(here, "/bin/sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4"))
    assert odd.output == "a\ufffd\ufffdb\0cerr\n"
    assert (closed.code, closed.output) == (4, "")
    assert closed.took_s >= 0.3
