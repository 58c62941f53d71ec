"""A process that was stopped for a while (`docker pause`, Ctrl-Z, a debugger) goes on as before.

It has looked at nothing meanwhile, so it takes no time that has passed for idle, and nothing that it has not seen for
gone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from support.background import browser, end_at_last, headers, process_of, request_status, ui_address
from support.model_server import Gate, Say, Step, run_model_server
from support.postgres import free_port
from support.processes import lives, stop
from support.runtime import hand_over
from support.stdio import assert_intact, make_root, model_env, read_log, serve_stdio, state_of, until

from ava_server.core.background import http_server, pages_server
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow

SECONDS = [3, 7, 40]
LOOKS_S = 3.0
"""What a process does wrongly after a stop, it does within its next looks, which are a second apart."""


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    return DataRoot(make_root(tmp_path / "data"))


@asynccontextmanager
async def stopped(root: DataRoot, *pids: int) -> AsyncGenerator[None]:
    """Stop processes while the body runs."""
    for pid in pids:
        stop(pid, root.path)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("with_host", [True, False], ids=["host", "no host"])
@pytest.mark.parametrize("seconds", SECONDS)
async def test_a_background_process_that_was_stopped_serves_and_runs_as_before(
    root: DataRoot, seconds: int, with_host: bool
) -> None:
    gate, port = Gate(), free_port()
    script: list[Step] = [Say("x", calls=[("scratchpad", {"note": "half of it"})], gate=gate), hand_over()]
    with run_model_server(script) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        async with end_at_last(root), browser() as visitor, AsyncExitStack() as hosts:
            host = await hosts.enter_async_context(serve_stdio(root.path, env=env))
            run = await host.start_run()
            await until(gate.arrived.is_set)
            address, given = await ui_address(root), await headers(root, port)
            pages = address.partition("/enter")[0]
            await visitor.get(address)
            if not with_host:
                await hosts.aclose()
            process = process_of(root)
            async with stopped(root, process):
                await anyio.sleep(seconds)
            await anyio.sleep(LOOKS_S)
            assert lives(process) and process_of(root) == process
            assert pages_server(root).wanted_port() is not None and http_server(root).wanted_port() == port
            assert (await visitor.get(pages)).url.path == "/", "the open page goes on"
            assert await request_status(port, given) != 401, "a local host is answered"
            gate.released.set()
            await until(lambda: state_of(root.path, run) == "success", within_s=60)
            assert len(models.requests) == 2, "the call in flight was not lost"
    assert [entry.content["reason"] for entry in read_log(root.path, "RunClaimed", run=run)] == ["start"]
    assert root.worker_words.read_text() == ""
    assert_intact(root.path)


async def test_a_stop_counts_neither_as_idle_time_of_the_servers_nor_of_the_process(root: DataRoot) -> None:
    soon = (
        "import sys; from ava_server.core import background as b;"
        " b.PAGES_IDLE_S = b.HTTP_IDLE_S = b.WORKER_IDLE_S = 10.0;"
        " from ava_server.cli.app import main; main(sys.argv[1:])"
    )
    pages, hosts = pages_server(root), http_server(root)
    for server in (pages, hosts):
        server.want(0)
    command = [sys.executable, "-c", soon, "worker", "--listen"]
    env = {**os.environ, "AVA_DATA_ROOT": str(root.path)}
    async with await anyio.open_process(command, env=env, stdout=None, stderr=None) as process:
        await until(lambda: pages.port() is not None and hosts.port() is not None, within_s=60)
        async with stopped(root, process.pid):
            await anyio.sleep(12)
        await anyio.sleep(LOOKS_S)
        assert pages.port() is not None and hosts.port() is not None
        with anyio.fail_after(60):
            assert await process.wait() == 0, "it ends by itself, after its idle time"
    assert pages.wanted_port() is None


async def test_a_server_that_was_stopped_with_its_worker_leaves_the_run_to_that_worker(root: DataRoot) -> None:
    """As `docker pause` stops all processes of a container."""
    impatient = (
        "import sys; from ava_server.runs.owner import workers; workers.WORKER_TAKES_S = 20.0;"
        " from ava_server.cli.app import main; main(sys.argv[1:])"
    )
    with run_model_server([hand_over(), hand_over()]) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        command = (sys.executable, "-c", impatient, "serve")
        async with end_at_last(root), serve_stdio(root.path, env=env, command=command) as host:
            first = await host.start_run()
            await until(lambda: state_of(root.path, first) == "success", within_s=60)
            worker = process_of(root)
            async with stopped(root, worker):
                run = await host.start_run()
                await anyio.sleep(1)
                async with stopped(root, host.pid):
                    await anyio.sleep(22)
                await anyio.sleep(1.5)
            await until(lambda: state_of(root.path, run) == "success", within_s=60)
            assert process_of(root) == worker
    [before], [claimed] = (read_log(root.path, "RunClaimed", run=each) for each in (first, run))
    assert claimed.content == before.content, "no second worker was started beside it"
