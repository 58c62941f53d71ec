"""A process that owns runs, to be stopped and killed.

python owner.py ROOT BASE_URL                        # looks after runs until stdin ends; says `open INSTANCE` first
python owner.py ROOT BASE_URL site PORT CERTIFICATE  # the same; every public name leads to a test's site on 127.0.0.1
python owner.py ROOT BASE_URL checks                 # the same; says on stderr when a check let a request go out
python owner.py ROOT BASE_URL killed COUNT           # killed (SIGKILL) behind the COUNT-th commit of a run; 0 is never

A kill comes at the moment at which a command of a claimed run was acknowledged: what was in the same transaction stands
in the log, and nothing that comes after it.
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ava_audit.events import RunClaimed
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.config.settings import load_settings
from ava_server.runs.journal.log import RunLog
from ava_server.service.runtime import open_runtime

if TYPE_CHECKING:
    from ava_roles.net.fetch import Fetcher

COMMITS = "commits.txt"
"""The file in the data root that says how many there were, if none was killed behind."""


def kill_behind(count: int) -> Callable[[], int]:
    """Have this process killed behind so many commands that wrote something about a run, its claim the first.

    Returns:
        What says how many there were so far.
    """
    ask = Store.do
    seen = 0

    async def do(self: Store, command: Any, about: str | None = None) -> Any:
        nonlocal seen
        wrote = False

        def watched(view: View, now_us: int) -> Any:
            nonlocal wrote
            outcome = command(view, now_us)
            facts = [event.fact for event in outcome.events]
            fenced = any(event.fence is not None for event in outcome.events)
            wrote = fenced or any(isinstance(fact, RunClaimed) for fact in facts)
            return outcome

        value = await ask(self, watched, about)
        if wrote:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
        return value

    Store.do = do  # type: ignore[method-assign]
    return lambda: seen


def note_checks() -> None:
    """Note each request that a check of the owner lets go out, by the wall clock: `checked RUN GENERATION TIME`."""
    check = RunLog.check_owner

    async def noted(self: RunLog) -> None:
        await check(self)
        sys.stderr.write(f"checked {self.fence.run_id} {self.fence.generation} {time.time()}\n")

    RunLog.check_owner = noted  # type: ignore[method-assign]


def fetcher_of(port: str, certificate: str) -> Fetcher:
    """Return a fetcher that reaches a test's site, whatever the name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.network.web_site import Site

    return Site({}, int(port), "https", context=ssl.create_default_context(cafile=certificate)).fetcher


async def own(root: Path, base_url: str, how: str = "", *more: str) -> None:
    """Look after the runs of a data root until standard input ends; with `killed`, until none is left."""
    env = {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test", "AVA_BACKGROUND": "false"}
    settings = load_settings(root, env=env)
    async with open_runtime(settings) as runtime:
        if how == "killed":
            for run in await runtime.store.read(lambda view: view.runs()):
                await runtime.manager.control.ended(run.id)
            return
        if how == "checks":
            note_checks()
        if how == "site":
            runtime.fetcher = fetcher_of(*more)
        sys.stdout.write(f"open {runtime.manager.instance}\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.read)


def main(root: str, base_url: str, how: str = "", *more: str) -> None:
    """Own runs, and write down how many commits there were if none was killed behind."""
    commits = kill_behind(int(more[0])) if how == "killed" else None
    anyio.run(own, Path(root), base_url, how, *more)
    if commits is not None:
        Path(root, COMMITS).write_text(str(commits()))


if __name__ == "__main__":
    main(*sys.argv[1:])
