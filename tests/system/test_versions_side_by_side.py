"""Servers and workers of two versions side by side: one takes over from the other, once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.background import end_at_last
from support.commands.versions import (
    LATER,
    RESULT,
    ProcessChanges,
    make_python,
    packages_of,
)
from support.model_server import Gate, Say, run_model_server
from support.postgres import free_port
from support.processes import lives
from support.stdio import Wire, assert_intact, environment, make_root, model_env, read_log, serve_stdio, state_of, until

from ava_audit.store.locks import is_held
from ava_server.core.background import ProcessRecord, http_server, pages_server
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow


async def test_two_versions_side_by_side_for_a_minute_take_over_once(later: Path, tmp_path: Path) -> None:
    """Hosts of both start subagents all the time, and both open pages and connect local hosts."""
    root, port = DataRoot(make_root(tmp_path / "data")), free_port()
    commands = (sys.executable, "-P", "-m", "ava_server"), (str(later), "-P", "-m", "ava_server")

    def script(request: dict[str, Any]) -> Say:
        turns = sum(message["role"] == "assistant" for message in request["messages"])
        return RESULT if turns else Say("I look.", [("scratchpad", {"note": "half of it"})])

    runs: list[str] = []
    with run_model_server(script) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        own_environment = environment(root.path, **env)

        async def run_all(host: Wire, end: float) -> None:
            while anyio.current_time() < end:
                run_id = await host.start_run()
                runs.append(run_id)
                await until(partial(ended, run_id), within_s=60)

        def ended(run_id: str) -> bool:
            return state_of(root.path, run_id) not in ("queued", "running")

        async def use_all(command: Sequence[str], end: float) -> None:
            while anyio.current_time() < end:
                for words in (("ui", "--no-browser"), ("connect", "--port", str(port))):
                    done = await anyio.run_process([*command, *words], env=own_environment, check=False)
                    assert done.returncode == 0, (words, done.stderr, root.worker_words.read_text())

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(end_at_last(root))
            serve = partial(serve_stdio, root.path, env=env)
            older = await stack.enter_async_context(serve(command=(*commands[0], "serve")))
            await run_all(older, anyio.current_time() + 0.1)
            changes = ProcessChanges(root.worker_process)
            changes.look()
            upgraded = await stack.enter_async_context(serve(command=(*commands[1], "serve")))
            async with anyio.create_task_group() as watching:
                watching.start_soon(changes.watch)
                end = anyio.current_time() + 60
                async with anyio.create_task_group() as tasks:
                    for host in (older, upgraded):
                        tasks.start_soon(run_all, host, end)
                    for command in commands:
                        tasks.start_soon(use_all, command, end)
                watching.cancel_scope.cancel()
            assert [its_version for _process, its_version in changes.seen] == [version("ava-subagents"), LATER]
            assert lives(changes.seen[1][0]) and not lives(changes.seen[0][0])
            assert pages_server(root).port() is not None and http_server(root).port() == port
            requests = len(models.requests)
    assert len(runs) > 10 and {state_of(root.path, run_id) for run_id in runs} == {"success"}
    assert requests == 2 * len(runs), "nothing was paid twice"
    assert_intact(root.path)


async def test_a_worker_beside_the_first_one_keeps_its_version_until_it_ends(later: Path, tmp_path: Path) -> None:
    """A newer host of its environment leaves it its runs; only the first one is taken over."""
    root, gate = DataRoot(make_root(tmp_path / "data")), Gate()
    script = [Say("x", [("scratchpad", {"note": "half of it"})], gate=gate), RESULT, RESULT]
    with run_model_server([RESULT, RESULT]) as models, run_model_server(script) as elsewhere:
        near, far = ({**model_env(one.base_url), "AVA_BACKGROUND": ""} for one in (models, elsewhere))
        newer_ava = str(later), "-P", "-m", "ava_server", "serve"

        async def finish(host: Wire) -> None:
            run_id = await host.start_run()
            await until(lambda: state_of(root.path, run_id) == "success", within_s=60)

        async with end_at_last(root), serve_stdio(root.path, env=near) as one, serve_stdio(root.path, env=far) as other:
            await finish(one)
            run = await other.start_run()
            await until(gate.arrived.is_set)
            [beside] = set(root.worker_locks) - {root.worker_lock}
            opened = await anyio.run_process(
                [*newer_ava[:-1], "ui", "--no-browser"], env=environment(root.path, **near), check=False
            )
            assert opened.returncode == 0, opened.stderr
            record = ProcessRecord.read(root.worker_process)
            assert record is not None and record.version == LATER
            async with serve_stdio(root.path, env=far, command=newer_ava) as upgraded:
                await finish(upgraded)
            gate.released.set()
            await until(lambda: state_of(root.path, run) == "success")
            assert is_held(beside) and ProcessRecord.read(root.worker_process) == record
    claims = [entry.content for entry in read_log(root.path, "RunClaimed")]
    assert [(claim["reason"], claim["with_host"]) for claim in claims] == [("start", "")] * 3
    assert_intact(root.path)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava has a newer version's number, and is otherwise this one."""
    folder = tmp_path_factory.mktemp("later")
    python = make_python(folder)
    described = packages_of(folder) / f"ava_subagents-{LATER}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ava-subagents\nVersion: {LATER}\n")
    return python
