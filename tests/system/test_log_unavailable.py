"""What a person meets when the log cannot be had: each call is answered in a sentence, and what is over is over."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.log import child, write_texts
from support.logs.cutting import become_newer
from support.model_server import Say, run_model_server
from support.stdio import Wire, assert_intact, make_root, model_env, read_log, serve_stdio, until
from support.terminal import ava

from ava_audit.store.backend import OlderSchema
from ava_audit.store.locks import try_hold
from ava_audit.store.schema import reducers_changed
from ava_audit.store.store import Store
from ava_audit.view import View

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
HELD_S = 30.0 if os.environ.get("AVA_TEST_SETUP") else 3.0
"""How long another program holds the log: once in a while as long as it is asked for."""
ANSWERED_S = 13.0
"""The log is given 5 s to take what was asked, and 5 s to take the answer."""


# -- a file that is damaged -------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage!" * 12 + path.read_bytes()[96:])


def flipped_pages(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    for page in range(8, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 64] = bytes(byte ^ 0xFF for byte in raw[page * 4096 : page * 4096 + 64])
    path.write_bytes(raw)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3 + 100])


@pytest.mark.parametrize("damage", [garbage, flipped_pages, truncated])
async def test_every_call_that_meets_a_damaged_log_reports_it(damage: Callable[[Path], None], root: Path) -> None:
    damage(root / "ava.db")
    async with serve_stdio(root) as wire:
        said = await refusals(wire)
        assert said
        assert all("damaged" in text or "cannot be opened" in text for text in said), said
        await wire.close_stdin()
        assert await wire.exited() == 0


@pytest.mark.parametrize("command", ["status --once", "report approvals", "show", "logs", "wait", "approve"])
async def test_a_command_that_meets_a_damaged_log_says_what_to_do(root: Path, command: str) -> None:
    flipped_pages(root / "ava.db")
    done = await anyio.to_thread.run_sync(ava, root, *command.split())
    said = done.stderr.splitlines()
    assert (done.returncode, len(said)) == (30, 1), done.stderr
    assert "ava.db is damaged: put back a copy of it" in said[0] and "other program" not in said[0]


async def test_a_server_reports_a_log_damaged_while_it_runs_and_continues(root: Path) -> None:
    async with serve_stdio(root) as wire:
        await wire.tool("check_subagent")
        whole = (root / "ava.db").read_bytes()
        garbage(root / "ava.db")
        flipped_pages(root / "ava.db")
        await refusals(wire)
        (root / "ava.db").write_bytes(whole)
        assert (await wire.request("tools/list"))["result"]["tools"]


# -- a log that another program holds ---------------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_while_another_program_holds_the_log_writes_fail_in_time_and_reads_work(
    root: Path, tmp_path: Path
) -> None:
    with run_model_server(lambda _request: DONE) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            await wire.tool("check_subagent")
            before = len(read_log(root, "SpawnProposed"))
            async with await anyio.open_process(child(HOLD, root / "ava.db")) as holder:
                assert holder.stdin is not None and holder.stdout is not None
                await holder.stdout.receive()
                over = time.monotonic() + HELD_S
                while time.monotonic() < over:
                    began = time.monotonic()
                    refused = await wire.tool_result(
                        "spawn_subagent", role="researcher", task="Prices", workspace=str(tmp_path / "project")
                    )
                    assert refused["isError"] is True
                    said = refused["content"][0]["text"]
                    assert "another program may hold ava.db" in said and "nothing was written" in said
                    assert time.monotonic() - began < ANSWERED_S
                    assert (await wire.tool("check_subagent"))["status"] == "list"
                    assert (await wire.tool("read_ava_logs"))["status"] == "entries"
                await holder.stdin.aclose()
                await holder.wait()
            run = await wire.start_run(workspace=str(tmp_path / "project"))
            ended = await wire.tool("check_subagent", subagent_id=run, wait_seconds=20)
            assert ended["status"] == "success"
            await wire.close_stdin()
            assert await wire.exited() == 0
    assert len(read_log(root, "SpawnProposed")) == before + 1, "of what was refused nothing is stored"
    assert_intact(root)


# -- a log of a newer program, meanwhile ------------------------------------------------------------------------------


def is_kept(root: Path) -> bool:
    """Tell whether a process is the keeper of a data root."""
    held = try_hold(root / "keeper.lock")
    if held is not None:
        held.release()
    return held is None


async def test_stops_writing_and_says_restart_after_a_newer_program_migrated_the_log(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_stdio(root) as wire:
        await wire.tool("check_subagent")
        await until(lambda: is_kept(root))
        become_newer(monkeypatch, reducers_changed)
        async with Store.open(root, older=OlderSchema.COPY_AND_MIGRATE) as log:
            await write_texts(log, ["written by the newer one"])
            head = await log.read(View.head)
            refused = await wire.tool_result("spawn_subagent", role="researcher", task="Prices of https://example.org/")
            assert refused["isError"] is True
            assert "a newer ava has migrated this data root: restart this server" in refused["content"][0]["text"]
            assert (await wire.request("ping"))["result"] == {}
            await until(lambda: not is_kept(root))
            await wire.close_stdin()
            assert await wire.exited() == 0
            assert await log.read(View.head) == head
    assert_intact(root)


# -- a disk that is full ----------------------------------------------------------------------------------------------

SMALL_DISK = 'mount -t tmpfs -o size=3m none "$1"; shift 1; exec "$@"'


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a user namespace")
async def test_on_a_full_disk_proposals_fail_with_one_sentence_and_reads_still_work(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh", str(disk))
    if (await anyio.run_process([*before, "true"], check=False)).returncode:
        pytest.skip("no disk can be mounted in a user namespace here")
    async with serve_stdio(disk / "data", before=before, cwd=tmp_path) as wire:
        proposed = 0
        said = ""
        for number in range(60):
            result = await wire.tool_result(
                "spawn_subagent", role="researcher", task=f"https://example.org/{number} " + "x " * 45_000
            )
            if result.get("isError"):
                said = result["content"][0]["text"]
                break
            proposed += 1
        assert proposed > 2
        assert "the disk of the data root is full, so nothing was written: free some space and try again" in said, said
        looked = await wire.tool("check_subagent")
        assert len(looked["runs"]) == proposed
        assert (await wire.request("ping"))["result"] == {}


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A data root with a log of a megabyte, as the last server left it."""
    root = make_root(tmp_path / "data")
    (tmp_path / "project").mkdir()
    async with Store.open(root) as log:
        await write_texts(log, ["x " * 2_000] * 250)
        await log.checkpoint()
    return root


async def refusals(wire: Wire) -> list[str]:
    """What each of three calls says, if it fails: in one sentence, as an answer, within seconds."""
    said: list[str] = []
    for tool, arguments in (
        ("check_subagent", {}),
        ("spawn_subagent", {"role": "researcher", "task": "Prices of https://example.org/"}),
        ("read_ava_logs", {"last_n": 500}),
    ):
        began = time.monotonic()
        result = await wire.tool_result(tool, **arguments)
        assert time.monotonic() - began < ANSWERED_S
        text = result["content"][0]["text"]
        if result.get("isError"):
            assert text.startswith("Failed: ") and "\n" not in text and "Traceback" not in text
            said.append(text)
    assert (await wire.request("ping"))["result"] == {}
    return said
