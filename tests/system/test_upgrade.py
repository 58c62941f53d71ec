"""A data root that servers of two versions use, upgraded under them, and given back: nothing is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands.versions import (
    ALL,
    NEWER,
    RESULT,
    file_digests,
    log_lines,
    make_python,
    run_newer,
)
from support.model_server import Gate, Say, Step, run_model_server
from support.stdio import Wire, assert_intact, model_env, serve_stdio, until
from support.terminal import ava

from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow


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

    with run_model_server(script) as models:
        serve = partial(serve_stdio, root, env=model_env(models.base_url), cwd=folder)
        async with serve() as one, serve() as other:
            ended = await one.start_run(task="Otter: what does it cost?", workspace=str(folder))
            answer = await other.tool("check_subagent", subagent_id=ended, wait_seconds=30)
            assert answer["runs"][0]["status"] == "success"
            running = await one.start_run(task="Badger: what does it cost?", workspace=str(folder))
            waiting = await other.tool(
                "spawn_subagent", role="researcher", task="Heron: what does it cost?", workspace=str(folder)
            )
            await until(gate.arrived.is_set)
            before = log_lines(ava(root, *ALL))
            check_reading_migrates_nothing(newer, root, ended, tmp_path / "backup")
            assert log_lines(ava(root, *ALL)) == before, "commands that read changed nothing"
            async with serve(command=[str(newer), "-m", "ava_server", "serve"]) as upgraded:
                await check_goes_on(upgraded, one, other, ended, running, waiting)

    now = log_lines(run_newer(newer, root, *ALL))
    assert now[: len(before)] == before, "every entry reads as it did"
    checked = run_newer(newer, root, "verify")
    assert checked.returncode == 0, checked
    await check_downgrade_is_refused(root, folder)
    give_back_copy(root)
    assert log_lines(ava(root, *ALL))[: len(before)] == before, "the copy is the log as it was"
    assert_intact(root)
    again = restore_backup(newer, tmp_path)
    assert log_lines(run_newer(newer, again, *ALL))[: len(before)] == before
    assert not DataRoot(again).log_copies, "the backup is the copy"


def check_reading_migrates_nothing(newer: Path, root: Path, ended: str, backup: Path) -> None:
    """Commands of the newer version that only read refuse the older log, or copy it as it is."""
    for words in (("status", "--once"), ("logs",), ("verify",), ("show", ended), ("report",)):
        done = run_newer(newer, root, *words)
        assert done.returncode != 0 and "`ava migrate` copies" in done.stdout + done.stderr, (words, done)
    copied = run_newer(newer, root, "backup", str(backup))
    assert copied.returncode == 0 and "copied as it is" in copied.stdout, copied
    assert not DataRoot(root).log_copies, "commands that read changed nothing"


async def check_goes_on(
    upgraded: Wire, one: Wire, other: Wire, ended: str, running: str, waiting: dict[str, Any]
) -> None:
    """The newer server has what ended, what runs and what waits; the older ones start nothing any more."""
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


async def check_downgrade_is_refused(root: Path, folder: Path) -> None:
    """No command and no server of the older version reads or changes what the newer one has migrated."""
    kept = file_digests(root)
    for words in (("status", "--once"), ("logs",), ("verify",)):
        done = ava(root, *words)
        assert done.returncode != 0 and "needs ava 0.9.0 or newer" in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr
    async with serve_stdio(root, cwd=folder) as back:
        answer = await back.tool_result("check_subagent")
        assert answer["isError"] and "newer" in str(answer["content"])
    assert file_digests(root) == kept, "the older version changed nothing"


def give_back_copy(root: Path) -> None:
    """Put the copy that the migration has made in the place of the log."""
    [copy] = DataRoot(root).log_copies
    for part in root.glob("ava.db*"):
        part.unlink()
    copy.rename(root / "ava.db")


def restore_backup(newer: Path, tmp_path: Path) -> Path:
    """Restore the backup into a data root of its own, and return that."""
    again = tmp_path / "again"
    again.mkdir(mode=0o700)
    restored = run_newer(newer, again, "restore", str(tmp_path / "backup"), "--yes")
    assert restored.returncode == 0, restored
    return again


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava is a newer version with migrations."""
    folder = tmp_path_factory.mktemp("newer")
    python = make_python(folder)
    schema = folder / "audit" / "ava_audit" / "store" / "schema.py"
    marked = "SCHEMA_VERSION = FIRST_SCHEMA + len(MIGRATIONS)\n"
    text = schema.read_text("utf-8")
    assert text.count(marked) == 1
    schema.write_text(text.replace(marked, NEWER), "utf-8")
    return python
