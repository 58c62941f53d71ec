"""A process that plays a server: it runs one command in a sandbox, and says so once the command goes on.

python sandbox_server.py KIND FOLDER MARK
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from ava_roles.sandbox.sandbox import Kind
from support.attacks import python, sandbox

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
time.sleep(float(sys.argv[1]))
"""


async def main() -> None:
    kind, folder, mark = sys.argv[1:]
    here = Path(folder) / "here"
    chosen: Kind = kind  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    await sandbox(chosen, Path(folder)).run(python(here, NASTY, "60", timeout_s=60, AVA_RUN_ID=mark))


if __name__ == "__main__":
    anyio.run(main)
