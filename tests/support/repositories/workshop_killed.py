"""A run with a workshop in a process of its own, which says what it is about to do, so that it can be killed there.

python -m support.repositories.workshop_killed KIND FOLDER    # FOLDER/project is the checkout
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import anyio

from ava_roles.sandbox.sandbox import Kind
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.worktree.session import WorktreeSession
from ava_roles.worktree.spec import WorktreeSpec
from support.repositories.workshops import FIXED, RUN
from support.sandboxes.attacks import sandbox

PHASES = ("make", "setup", "baseline", "edit", "command", "check", "keep", "kept")


def killed_order(folder: Path) -> WorktreeSpec:
    """What was approved: each command says that it has begun, and takes a while where it is told to."""
    slow = "if [ -e slow.local ]; then sleep 30; fi"
    return WorktreeSpec(
        run_id=RUN,
        repository=folder / "project",
        namespace=("calc.py", "more"),
        verify=f"{slow}; python3 -c 'import calc; assert calc.add(1, 2) == 3'",
        setup=f"{slow}; touch set-up.local",
        verify_timeout_s=60.0,
    )


async def _run(kind: Kind, folder: Path) -> None:
    host = HostFolders(folder / "home")
    shop = WorktreeSession(killed_order(folder), folder / "worktrees" / RUN, sandbox(kind, folder / "state"), host)
    shop.say = lambda doing: _say({"Creating": "make", "Running": "running"}.get(doing.split()[0], doing))
    await shop.prepare()
    _say("edit")
    for number in range(50):
        shop.edits.write(f"more/{number}.txt", b"x" * 100_000)
    shop.edits.write("calc.py", FIXED.encode())
    _say("command")
    bench, _fresh = await shop.bench.ready()
    from ava_roles.sandbox.sandbox import Command

    line = "echo x > outside.txt; mkdir .git; for i in 1 2 3 4 5 6 7 8 9; do echo $i > more/$i.txt; sleep 0.02; done"
    box = sandbox(kind, folder / "state")
    await box.run(Command(("/bin/bash", "-c", line), bench.folder, bench.binds, bench.environment, 20.0))
    await shop.bench.after_command()
    _say("check")
    await shop.check()
    _say("keep")
    await anyio.to_thread.run_sync(shop.keep, "Kept by the run itself")
    _say("kept")
    await anyio.sleep(60)


def _say(phase: str) -> None:
    sys.stdout.write(f"{phase}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(_run, cast("Kind", sys.argv[1]), Path(sys.argv[2]))
