"""`ava worker`: runs go on in it when their host has gone; servers start it by themselves under `background = true`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import typer

from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.config.settings import Settings
    from ava_server.service.runtime import Runtime


def register(app: typer.Typer) -> None:
    """Add `ava worker` to the app."""
    app.command("worker", short_help="Run approved subagents without a host; gone when idle for a minute.")(
        worker_command
    )


def worker_command() -> None:
    """Run the approved subagents of this data root, until there has been nothing to do for a minute.

    Under `background = true` servers start it by themselves, so that subagents outlive their host.
    """
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import hide, log_to_stderr
    from ava_server.service.runtime import refuse_recursion

    hide()

    if why := refuse_recursion():
        raise BadInput(f"ava worker: {why}.")
    log_to_stderr("%(asctime)s ava worker: %(message)s", "%Y-%m-%d %H:%M:%S")
    raise typer.Exit(anyio.run(_work, load_settings()))


async def _work(settings: Settings) -> int:
    from ava_server.core.shutdown import Shutdown, deaf_to_signals
    from ava_server.runs.worker_process import hold_worker_lock
    from ava_server.service.runtime import open_runtime

    await anyio.to_thread.run_sync(settings.paths.create)
    post = await anyio.to_thread.run_sync(hold_worker_lock, settings.paths)
    if post is None:
        sys.stderr.write(f"ava worker: {settings.data_root} has one already; nothing to do.\n")
        return 0
    with post:
        ending = Shutdown()
        async with anyio.create_task_group() as tasks:
            await tasks.start(ending.watch)
            with ending.serving:
                async with open_runtime(settings, worker=True, serves=_everybodys) as runtime:
                    await _until_idle(runtime)
            ending.begin(0)
            tasks.cancel_scope.cancel()
        deaf_to_signals()
    return ending.code or 0


def _everybodys(_run: RunRow) -> bool:
    """Every run of the data root is the worker's: users over HTTP have none of their own."""
    return True


async def _until_idle(runtime: Runtime) -> None:
    from ava_server.runs.worker_process import IDLE_S

    while True:
        since = runtime.manager.idle_since
        now = anyio.current_time()
        if since is not None and now - since >= IDLE_S:
            return
        await anyio.sleep(IDLE_S - (now - since) if since is not None else 1.0)
