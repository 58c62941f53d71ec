"""A data root that two servers of the previous version use, upgraded under them, and given back: nothing is lost."""

from __future__ import annotations

import hashlib
import json
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
from support.stdio import AVA, Wire, assert_intact, environment, serving, state_of, until, using
from support.terminal import ava

PREVIOUS = "8d45ebdfcb2dfca065ea5d98d0f3fe6e3f639fec"
"""The commit that stands for 0.1.0: tests/data/data-root-0.1.0.tar.xz was made with it."""
RESULT = Say(calls=[("submit_result", {"summary": "found", "output": "twelve cents", "confidence": 0.5})])

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose Ava is the previous version: its sources, with the packages of this environment."""
    folder = tmp_path_factory.mktemp("previous")
    asked = ["git", "archive", "--format=tar", PREVIOUS, "server", "roles", "audit"]
    sources = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, check=False)
    if sources.returncode != 0:
        pytest.skip("the repository's history is not here; a clone with all of it has it")
    subprocess.run(["tar", "xf", "-"], cwd=folder, input=sources.stdout, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    paths = [*(str(folder / root) for root in ("server", "roles", "audit")), sysconfig.get_path("purelib")]
    (packages / "previous.pth").write_text("\n".join(paths) + "\n")
    return folder / "venv" / "bin" / "python"


def old(python: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the previous version."""
    command = [str(python), "-m", "ava_server", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=200, check=False)


def lines(root: Path) -> list[dict[str, Any]]:
    """Every entry, as this version exports it."""
    exported = ava(root, "logs", "--json", "--last", "100000").stdout.splitlines()
    return [json.loads(line) for line in exported]


def files(root: Path) -> dict[str, str]:
    """The bytes of the log and of all that belongs to runs, without locks."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".db-shm"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


async def test_two_servers_of_the_previous_version_are_upgraded_and_a_downgrade_is_refused(
    previous: Path, tmp_path: Path
) -> None:
    root, folder = tmp_path / "data", tmp_path / "shop"
    folder.mkdir()
    (folder / "prices.md").write_text("Otter charges twelve cents.\n")
    gate = Gate()

    def script(request: dict[str, Any]) -> Step:
        held = "Badger" in str(request["messages"][1]["content"]) and not gate.arrived.is_set()
        return Say("lost", gate=gate) if held else RESULT

    command = [str(previous), "-m", "ava_server", "serve"]
    with running_model_server(script) as models:
        env = using(models.base_url)

        def host(command: Sequence[str] = AVA) -> AbstractAsyncContextManager[Wire]:
            return serving(root, env=env, cwd=folder, command=command)

        async with host(command) as one, host(command) as other:
            ended = await one.start_run(task="Otter: what does it cost?", workspace=str(folder))
            answer = await other.tool("check_subagent", subagent_id=ended, wait_seconds=30)
            assert answer["runs"][0]["status"] == "success"
            running = await one.start_run(task="Badger: what does it cost?", workspace=str(folder))
            waiting = await other.tool(
                "spawn_subagent", role="researcher", task="Heron: what does it cost?", workspace=str(folder)
            )
            await until(gate.arrived.is_set)
            before = old(previous, root, "logs", "--json", "--last", "100000").stdout.splitlines()

            async with host() as new:
                [run] = (await new.tool("check_subagent", subagent_id=ended))["runs"]
                assert run["untrusted_result"]["output"] == "twelve cents"
                refused = await other.tool_result("spawn_subagent", role="researcher", task="Crane: what does it cost?")
                assert "newer ava has migrated" in str(refused)
                one.process.kill()
                answer = await new.tool("check_subagent", subagent_id=running, wait_seconds=30)
                assert answer["runs"][0]["status"] == "success", "it goes on where the old server left it"
                line = waiting["approval_line"]
                await new.tool("confirm_spawn", pending_ids=[waiting["pending_id"]], approving=[line])
                answer = await new.tool("check_subagent", subagent_id=waiting["subagent_id"], wait_seconds=30)
                assert answer["runs"][0]["status"] == "success", "what waited for approval can be approved"

    now = lines(root)
    assert now[: len(before)] == [json.loads(line) for line in before], "every entry reads as it did"
    assert_intact(root)

    kept = files(root)
    for words in (("status", "--once"), ("logs",), ("verify",)):
        done = old(previous, root, *words)
        assert done.returncode != 0 and "newer" in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr
    async with serving(root, cwd=folder, command=command) as back:
        answer = await back.tool_result("check_subagent")
        assert answer["isError"] and "newer" in str(answer["content"])
    assert files(root) == kept, "the previous version changed nothing"
    assert lines(root) == now and state_of(root, running) == "success"
    assert_intact(root)
