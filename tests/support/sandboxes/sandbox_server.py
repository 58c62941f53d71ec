"""A process that plays a server: it runs commands in a sandbox, each of which makes a file once it goes on.

python sandbox_server.py KIND FOLDER MARK            # one command
python sandbox_server.py KIND FOLDER MARK --orders   # one for each line of stdin; says when it has ended

The kind `local` is bubblewrap, with one local server that the command reaches.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.sandbox import Kind, ReachableServer
from support.sandboxes.attacks import python, sandbox

NASTY = """
import os, signal, sys, time
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33):
        signal.signal(number, signal.SIG_IGN)
def again():
    while True:  # a new number all the time
        time.sleep(0.02)
        if os.fork():
            os._exit(0)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setsid()
        again()
for _ in range(3):
    os.wait()
open("going", "w").close()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and not os.path.exists("end"):
    time.sleep(0.001)
"""


async def main() -> None:
    kind, folder, mark, *orders = sys.argv[1:]
    here = Path(folder) / "here"
    local = ReachableServer(8_080, Path(folder) / "socket") if kind == "local" else None
    chosen: Kind = "bubblewrap" if local else kind  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    box, command = sandbox(chosen, Path(folder)), python(here, NASTY, "60", timeout_s=60, AVA_RUN_ID=mark)
    command = replace(command, local=local)
    if not orders:
        await box.run(command)
        return
    while await anyio.to_thread.run_sync(sys.stdin.readline):
        with suppress(ToolFailed):
            await box.run(command)
        print("ended", flush=True)


if __name__ == "__main__":
    anyio.run(main)
