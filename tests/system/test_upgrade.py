"""A data root that servers of two versions use, upgraded under them, and given back: nothing is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.background import end_at_last
from support.model_server import Gate, Say, Step, run_model_server
from support.postgres import free_port
from support.processes import lives
from support.repository import REPOSITORY
from support.stdio import (
    AVA,
    Wire,
    assert_intact,
    environment,
    make_root,
    model_env,
    read_log,
    serve_stdio,
    state_of,
    until,
)
from support.terminal import ava

from ava_audit.store.locks import is_held
from ava_server.core.background import ProcessRecord, http_server, pages_server
from ava_server.core.data_root import DataRoot

RESULT = Say(calls=[("submit_result", {"summary": "found", "output": "twelve cents", "confidence": 0.5})])

pytestmark = pytest.mark.slow


LATER = "99.0"
"""The version of an Ava with the same schema."""


ALL = ("logs", "--json", "--last", "100000")


async def test_two_servers_are_upgraded_by_a_newer_version_and_a_downgrade_is_refused(
    newer: Path, tmp_path: Path
) -> None:
    root, folder = tmp_path / "data", tmp_path / "shop"
    folder.mkdir()
    (folder / "prices.md").write_text("Otter charges twelve cents.\n")
    gate = Gate()

    def script(request: dict[str, Any]) -> Step:
        held = "Badger" in str(request["messages"][1]["content"]) and not gate.arrived.is_set()
        return Say("lost", gate=gate) if held else RESULT

    command = [str(newer), "-m", "ava_server", "serve"]
    with run_model_server(script) as models:
        env = model_env(models.base_url)

        def host(command: Sequence[str] = AVA) -> AbstractAsyncContextManager[Wire]:
            return serve_stdio(root, env=env, cwd=folder, command=command)

        async with host() as one, host() as other:
            ended = await one.start_run(task="Otter: what does it cost?", workspace=str(folder))
            answer = await other.tool("check_subagent", subagent_id=ended, wait_seconds=30)
            assert answer["runs"][0]["status"] == "success"
            running = await one.start_run(task="Badger: what does it cost?", workspace=str(folder))
            waiting = await other.tool(
                "spawn_subagent", role="researcher", task="Heron: what does it cost?", workspace=str(folder)
            )
            await until(gate.arrived.is_set)
            before = lines(ava(root, *ALL))
            for words in (("status", "--once"), ("logs",), ("verify",), ("show", ended), ("report",)):
                done = new(newer, root, *words)
                assert done.returncode != 0 and "`ava migrate` copies" in done.stdout + done.stderr, (words, done)
            backup = new(newer, root, "backup", str(tmp_path / "backup"))
            assert backup.returncode == 0 and "copied as it is" in backup.stdout, backup
            assert not DataRoot(root).log_copies and lines(ava(root, *ALL)) == before, (
                "commands that read changed nothing"
            )

            async with host(command) as upgraded:
                [run] = (await upgraded.tool("check_subagent", subagent_id=ended))["runs"]
                assert run["untrusted_result"]["output"] == "twelve cents"
                refused = await other.tool_result("spawn_subagent", role="researcher", task="Crane: what does it cost?")
                assert "newer ava has migrated" in str(refused)
                one.process.kill()
                answer = await upgraded.tool("check_subagent", subagent_id=running, wait_seconds=30)
                assert answer["runs"][0]["status"] == "success", "it goes on where the old server left it"
                line = waiting["approval_line"]
                await upgraded.tool("confirm_spawn", pending_ids=[waiting["pending_id"]], approving=[line])
                answer = await upgraded.tool("check_subagent", subagent_id=waiting["subagent_id"], wait_seconds=30)
                assert answer["runs"][0]["status"] == "success", "what waited for approval can be approved"

    now = lines(new(newer, root, *ALL))
    assert now[: len(before)] == before, "every entry reads as it did"
    checked = new(newer, root, "verify")
    assert checked.returncode == 0, checked

    kept = files(root)
    for words in (("status", "--once"), ("logs",), ("verify",)):
        done = ava(root, *words)
        assert done.returncode != 0 and "newer" in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr
    async with serve_stdio(root, cwd=folder) as back:
        answer = await back.tool_result("check_subagent")
        assert answer["isError"] and "newer" in str(answer["content"])
    assert files(root) == kept, "the older version changed nothing"

    [copy] = DataRoot(root).log_copies
    for part in root.glob("ava.db*"):
        part.unlink()
    copy.rename(root / "ava.db")
    assert lines(ava(root, *ALL))[: len(before)] == before, "the copy is the log as it was"
    assert_intact(root)

    (tmp_path / "again").mkdir(mode=0o700)
    restored = new(newer, tmp_path / "again", "restore", str(tmp_path / "backup"), "--yes")
    assert restored.returncode == 0, restored
    assert lines(new(newer, tmp_path / "again", *ALL))[: len(before)] == before
    assert not DataRoot(tmp_path / "again").log_copies, "the backup is the copy"


class Changes:
    """Each process that was one background process of a data root, in order: its id and its version."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self.seen: list[tuple[int, str]] = []

    def look(self) -> None:
        found = ProcessRecord.read(self._record)
        if found is not None and (found.process, found.version) not in self.seen[-1:]:
            self.seen.append((found.process, found.version))

    async def watch(self) -> None:
        while True:
            self.look()
            await anyio.sleep(0.02)


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
            changes = Changes(root.worker_process)
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


NEWER = """
def novelty(db):
    db.execute("CREATE TABLE novelty (a integer)")


MIGRATIONS = (novelty, reducers_changed)
SCHEMA_VERSION = 3
"""
"""What the schema's module of the newer version has at its end: two migrations."""


def python_of(folder: Path) -> Path:
    """Return a Python with a copy of these sources, in which to change them, and the packages of this environment."""
    for source in ("server", "roles", "audit"):
        shutil.copytree(REPOSITORY / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    paths = [*(str(folder / root) for root in ("server", "roles", "audit")), sysconfig.get_path("purelib")]
    (packages_of(folder) / "newer.pth").write_text("\n".join(paths) + "\n")
    return folder / "venv" / "bin" / "python"


def packages_of(folder: Path) -> Path:
    return folder / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava is a newer version with migrations."""
    folder = tmp_path_factory.mktemp("newer")
    python = python_of(folder)
    schema = folder / "audit" / "ava_audit" / "store" / "schema.py"
    marked = "SCHEMA_VERSION = 1 + len(MIGRATIONS)\n"
    text = schema.read_text("utf-8")
    assert text.count(marked) == 1
    schema.write_text(text.replace(marked, NEWER), "utf-8")
    return python


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava has a newer version's number, and is otherwise this one."""
    folder = tmp_path_factory.mktemp("later")
    python = python_of(folder)
    described = packages_of(folder) / f"ava_subagents-{LATER}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ava-subagents\nVersion: {LATER}\n")
    return python


def new(python: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the newer version."""
    command = [str(python), "-m", "ava_server", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=200, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Every entry that `ava logs --json` prints."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files(root: Path) -> dict[str, str]:
    """The bytes of the log and of all that belongs to runs, without locks."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".db-shm"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
