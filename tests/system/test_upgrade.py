"""A data root that two servers use, upgraded under them by a newer version, and given back: nothing is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, Say, Step, running_model_server
from support.repository import REPOSITORY
from support.stdio import AVA, Wire, assert_intact, environment, serving, until, using
from support.terminal import ava

from ava_server.core.data_root import DataRoot

NEWER = """
def novelty(db):
    db.execute("CREATE TABLE novelty (a integer)")


MIGRATIONS = (novelty, reducers_changed)
SCHEMA_VERSION = 3
"""
"""What the schema's module of the newer version has at its end: two migrations."""
RESULT = Say(calls=[("submit_result", {"summary": "found", "output": "twelve cents", "confidence": 0.5})])

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava is a newer version: these sources with migrations, and the packages of this environment."""
    folder = tmp_path_factory.mktemp("newer")
    for source in ("server", "roles", "audit"):
        shutil.copytree(REPOSITORY / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    schema = folder / "audit" / "ava_audit" / "store" / "schema.py"
    marked = "SCHEMA_VERSION = 1 + len(MIGRATIONS)\n"
    text = schema.read_text("utf-8")
    assert text.count(marked) == 1
    schema.write_text(text.replace(marked, NEWER), "utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    paths = [*(str(folder / root) for root in ("server", "roles", "audit")), sysconfig.get_path("purelib")]
    (packages / "newer.pth").write_text("\n".join(paths) + "\n")
    return folder / "venv" / "bin" / "python"


def new(python: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the newer version."""
    command = [str(python), "-m", "ava_server", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=200, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Every entry that `ava logs --json` prints."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


ALL = ("logs", "--json", "--last", "100000")


def files(root: Path) -> dict[str, str]:
    """The bytes of the log and of all that belongs to runs, without locks."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".db-shm"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


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
    with running_model_server(script) as models:
        env = using(models.base_url)

        def host(command: Sequence[str] = AVA) -> AbstractAsyncContextManager[Wire]:
            return serving(root, env=env, cwd=folder, command=command)

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
    async with serving(root, cwd=folder) as back:
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
