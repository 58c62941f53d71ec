"""A process that owns runs, killed behind the COUNT-th commit of one: `python owner_killed.py ROOT BASE_URL COUNT`.

The kill is a real one (SIGKILL), at the moment at which a command of a claimed run was acknowledged: what was in the
same transaction stands in the log, and nothing that comes after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from ava_audit.events import RunClaimed
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.config.settings import load_settings
from ava_server.service.runtime import open_runtime

COMMITS = "commits.txt"
"""The file in the data root that says how many there were, if none was killed behind."""


def kill_behind(count: int) -> Callable[[], int]:
    """Have this process killed behind so many commands that wrote something about a run, its claim the first.

    Returns:
        What says how many there were so far.
    """
    ask = Store.do
    seen = 0

    async def do(self: Store, command: Any) -> Any:
        nonlocal seen

        wrote = False

        def watched(view: View, now_us: int) -> Any:
            nonlocal wrote
            outcome = command(view, now_us)
            facts = [event.fact for event in outcome.events]
            fenced = any(event.fence is not None for event in outcome.events)
            wrote = fenced or any(isinstance(fact, RunClaimed) for fact in facts)
            return outcome

        value = await ask(self, watched)
        if wrote:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
        return value

    Store.do = do  # type: ignore[method-assign]
    return lambda: seen


async def own(root: Path, base_url: str) -> None:
    """Look after the runs of a data root until none is left."""
    settings = load_settings(root, env={"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"})
    async with open_runtime(settings) as runtime:
        for run in await runtime.store.read(lambda view: view.runs()):
            await runtime.manager.ended(run.id)


if __name__ == "__main__":
    commits = kill_behind(int(sys.argv[3]))
    anyio.run(own, Path(sys.argv[1]), sys.argv[2])
    Path(sys.argv[1], COMMITS).write_text(str(commits()))
