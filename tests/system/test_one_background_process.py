"""One background process of a data root drives runs, serves the pages, and answers hosts over HTTP.

Each of its servers has its own secret and idle time, and a newer version takes all of it over at once.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.background import browser, end_at_last, headers, process_of, request_status, ui_address
from support.model_server import Gate, Say, run_model_server
from support.postgres import free_port
from support.processes import lives
from support.stdio import assert_intact, environment, make_root, model_env, read_log, serve_stdio, state_of, until

from ava_server.core.background import http_server, pages_server
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow

NOTE = [("scratchpad", {"note": "half of it"})]
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    return DataRoot(make_root(tmp_path / "data"))


@pytest.fixture
def port() -> int:
    return free_port()


async def test_one_process_runs_and_listens_and_each_server_has_its_own_secret(root: DataRoot, port: int) -> None:
    gate = Gate()
    with run_model_server([Say("x", calls=NOTE, gate=gate), DONE]) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        async with end_at_last(root), serve_stdio(root.path, env=env) as host:
            run = await host.start_run()
            await until(gate.arrived.is_set)
            before = process_of(root)
            address, given = await ui_address(root), await headers(root, port)
            assert process_of(root) == before, "the worker listens"
            pages = address.partition("/enter")[0]
            async with browser() as visitor:
                await visitor.get(address)
                assert (await visitor.get(pages)).url.path == "/", "the code has opened a session"
                assert await request_status(port, given) != 401
                assert (await visitor.get(f"http://127.0.0.1:{port}/")).url.path == "/sign-in", "only of the pages"
                assert (await visitor.get(f"http://localhost:{port}/")).url.path == "/sign-in", "of this port"
            text = given["Authorization"].removeprefix("Bearer ")
            async with browser() as stranger:
                assert (await stranger.get(pages)).url.path == "/sign-in"
                stranger.headers["Authorization"] = f"Bearer {text}"
                assert (await stranger.get(pages)).status_code == 404, "a host's token opens no page"
            gate.released.set()
            await until(lambda: state_of(root.path, run) == "success")
            assert process_of(root) == before
    assert_intact(root.path)


async def test_each_server_ends_after_its_own_idle_time_and_the_process_after_the_last(
    root: DataRoot, port: int
) -> None:
    soon = (
        "import sys; from ava_server.core import background as b; b.PAGES_IDLE_S, b.HTTP_IDLE_S = 2.0, 12.0;"
        " b.WORKER_IDLE_S = 1.0; from ava_server.cli.app import main; main(sys.argv[1:])"
    )
    servers = pages_server(root), http_server(root)
    for server, wanted in zip(servers, (0, port), strict=True):
        server.want(wanted)
    command, env = [sys.executable, "-c", soon, "worker", "--listen"], environment(root.path)
    async with await anyio.open_process(command, env=env, stdout=None, stderr=None) as process:
        pages, hosts = servers
        await until(lambda: pages.port() is not None and hosts.port() == port, within_s=60)
        await until(lambda: pages.port() is None, within_s=10)
        assert hosts.port() == port and pages.wanted_port() is None and hosts.wanted_port() == port
        pages.want(0)
        await until(lambda: pages.port() is not None, within_s=10)
        with anyio.fail_after(60):
            assert await process.wait() == 0
    assert hosts.port() is None and hosts.wanted_port() is None


async def test_a_newer_version_takes_over_and_no_call_is_paid_twice(root: DataRoot, port: int) -> None:
    gate = Gate()
    with run_model_server([Say("x", calls=NOTE, gate=gate), DONE]) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        async with end_at_last(root), serve_stdio(root.path, env=env) as host:
            run = await host.start_run()
            await until(gate.arrived.is_set)
            address, given = await ui_address(root), await headers(root, port)
            older = process_of(root)
            async with browser() as visitor:
                await visitor.get(address)
                root.worker_process.write_text(f"{older} 0.0.1\n")
                again = await ui_address(root, env)
                assert process_of(root) != older and lives(older), "it still waits for the answer of the model"
                assert again.partition("/enter")[0] == address.partition("/enter")[0]
                assert (await visitor.get(address.partition("/enter")[0])).url.path == "/", "an open page goes on"
            await until(lambda: http_server(root).port() == port, within_s=30)
            assert await request_status(port, given) != 401, "a host's connection is answered on the same port"
            gate.released.set()
            await until(lambda: state_of(root.path, run) == "success", within_s=60)
            await until(lambda: not lives(older), within_s=30)
            newer = process_of(root)
            await ui_address(root)
            assert process_of(root) == newer, "once"
        assert len(models.requests) == 2
    assert len(read_log(root.path, "RunClaimed", run=run)) == 2
    assert_intact(root.path)


async def test_a_process_that_crashes_twice_within_seconds_listens_again_on_the_same_ports(
    root: DataRoot, port: int
) -> None:
    async with end_at_last(root):
        address = await ui_address(root)
        given = await headers(root, port)
        pages = address.partition("/enter")[0]
        async with browser() as visitor:
            await visitor.get(address)
            for _ in range(2):
                before = process_of(root)
                os.kill(before, signal.SIGKILL)
                await until(partial(_listens_again, root, before), within_s=60)
            assert (await visitor.get(pages)).url.path == "/" and await request_status(port, given) != 401


def _listens_again(root: DataRoot, before: int) -> bool:
    ports = [server.port() for server in (pages_server(root), http_server(root))]
    return process_of(root) != before and None not in ports


async def test_a_signal_ends_all_for_good(root: DataRoot, port: int) -> None:
    async with end_at_last(root):
        await ui_address(root)
        await headers(root, port)
        process = process_of(root)
        os.kill(process, signal.SIGTERM)
        await until(lambda: not lives(process), within_s=10)
        assert pages_server(root).wanted_port() is None and http_server(root).wanted_port() is None
        assert root.worker_words.read_text() == ""
