"""Where nothing special to Linux is there: the server starts, web roles do their work, the log holds, Ctrl-C ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.network.web_site import HOST, Site, site
from support.processes import children_of, lives
from support.repository import REPOSITORY
from support.stdio import (
    Wire,
    assert_intact,
    instance_locks,
    make_root,
    model_env,
    read_log,
    serve_stdio,
    state_of,
    stray_locks,
    until,
)

from ava_roles.texts import child

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="plays the other systems on this one"),
    pytest.mark.slow,
]

LAUNCHER = Path(__file__).parents[1] / "support" / "commands" / "other_system.py"
SYSTEMS = ("win32", "darwin", "bare")
TEXT = "Otter charges twelve cents a minute for transcription."
URL = f"http://{HOST}/prices"
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])


async def test_a_web_role_works_and_its_log_verifies(root: Path, system: str) -> None:
    keys = make_root(root, keys_toml='openrouter = "a-key-that-nobody-has"\n') / "keys.toml"
    keys.chmod(0o600)
    reads = Say(calls=[("read_webpages", {"urls": [URL]})])
    with run_model_server([reads, DONE]) as models:
        async with elsewhere(system, root, models) as there:
            run = await there.wire.start_run(role="web_crawler", task=f"What does Otter cost? {URL}")
            assert await there.result(run) == "twelve cents"
            assert there.web.paths == ["/robots.txt", "/prices"]
            assert TEXT in str(models.requests[1].json["messages"])
            entries = await there.wire.tool("read_ava_logs", subagent_id=run, last_n=100)
            assert any("read_webpages" in line for line in entries["untrusted_entries"])
            await there.end()
    assert len(read_log(root, "SessionEnd")) == 1
    assert stray_locks(root) == []
    mirrored = "".join(file.read_text() for file in (root / "logs" / "ava").glob("*.jsonl"))  # two around midnight
    assert mirrored.count('"SessionEnd"') == 1
    assert_intact(root)


async def test_files_are_read_as_safely_as_the_system_allows(root: Path, workspace: Path, system: str) -> None:
    outside = ("link.txt", "away/secret.txt", "../secret.txt", "/etc/passwd")
    looks = [
        ("read_file", {"path": "notes.md"}),
        ("search_codebase", {"query": "TRANSCRIPTION"}),
        ("search_codebase", {"query": "tw[a-z]lve", "regex": True}),
        ("search_and_read", {"query": "What does transcription cost?"}),
        *(("read_file", {"path": path}) for path in outside),
        ("save_artifact", {"name": "prices.md", "content": TEXT}),
    ]
    with run_model_server([Say(calls=looks), DONE]) as models:
        async with elsewhere(system, root, models) as there:
            run = await there.wire.start_run(task="Prices", workspace=str(workspace))
            assert await there.result(run) == "twelve cents"
            assert "the secret outside" not in str(models.requests[1].json)
            await there.end()
    results = [entry.content for entry in read_log(root, "ToolResult", run=run) if entry.agent == run][: len(looks)]
    assert [result["success"] for result in results] == [True] * 4 + [False] * 4 + [True], results
    assert all("twelve" in result["output"] for result in results[:4])
    assert (root / "artifacts" / run / "prices.md").read_text() == TEXT
    assert_intact(root)


@pytest.mark.parametrize("asked", [{"role": "coder"}, {"role": "code_reviewer", "tools": ["read_file", "run_bash"]}])
async def test_a_coder_is_refused_and_a_reviewer_goes_without_a_shell_with_the_reason(
    root: Path, workspace: Path, system: str, asked: dict[str, Any]
) -> None:
    with run_model_server([]) as models:
        async with elsewhere(system, root, models) as there:
            refused = await there.wire.tool_result("spawn_subagent", **asked, task="Fix it", workspace=str(workspace))
            assert refused["isError"] is (asked["role"] == "coder")
            reason = "confined on Linux only; run Ava on Linux, in WSL 2 or in a container"
            assert reason in str(refused["content"]), refused
            await there.end()
    assert models.requests == []
    assert read_log(root, "RunStarted") == []


async def test_ctrl_c_ends_the_server_at_once_and_the_next_one_continues_the_run(root: Path, system: str) -> None:
    gate = Gate()
    with run_model_server([Say("never said", gate=gate), DONE]) as models:
        async with elsewhere(system, root, models) as there:
            run = await there.wire.start_run(task=f"Prices at {URL}")
            await until(gate.arrived.is_set)
            began = time.monotonic()
            there.wire.signal(signal.SIGINT)
            assert await there.wire.exited() == 130
            assert time.monotonic() - began < 4  # before the last moment, at which it would be ended by force
            assert there.wire.stderr == ""
        assert state_of(root, run) == "running"
        assert len(read_log(root, "SessionEnd")) == 1
        async with elsewhere(system, root, models) as there:
            assert await there.result(run) == "twelve cents"
            await there.end()
    assert_intact(root)


async def test_two_servers_share_a_data_root(root: Path, system: str) -> None:
    with run_model_server(lambda _request: DONE) as models:
        async with elsewhere(system, root, models) as one, elsewhere(system, root, models) as other:
            runs = [await each.wire.start_run(task=f"Prices at {URL}") for _ in range(3) for each in (one, other)]
            for run in runs:
                for each in (one, other):
                    assert await each.result(run) == "twelve cents"
            one.wire.signal(signal.SIGKILL)
            await one.wire.exited()
            await other.end()
        async with elsewhere(system, root, models) as there:
            await there.wire.tool("check_subagent")
            await until(lambda: len(instance_locks(root)) == 1)  # the dead one's lock file is swept away
            await there.end()
    assert len(models.requests) == len(runs)
    assert_intact(root)


async def test_a_cancelled_search_leaves_no_process(root: Path, workspace: Path, system: str) -> None:
    (workspace / "evil.txt").write_text("a" * 60 + "b\n")
    endless = Say(calls=[("search_codebase", {"query": "(a+)+$", "regex": True, "path": "evil.txt"})])
    with run_model_server([endless]) as models:
        async with elsewhere(system, root, models) as there:
            run = await there.wire.start_run(task="Prices", workspace=str(workspace))
            children = await until(lambda: children_of(there.wire.pid))
            cancelled = await there.wire.tool("cancel_subagent", subagent_id=run)
            assert cancelled["status"] == "cancelled"
            await until(lambda: not any(map(lives, children)))
            await there.end()
    assert_intact(root)


@pytest.mark.parametrize(("alone", "code"), [("win32", 1), ("darwin", -signal.SIGALRM), ("bare", 1)])
def test_an_endless_search_whose_server_is_gone_ends_at_its_time_limit(workspace: Path, alone: str, code: int) -> None:
    (workspace / "evil.txt").write_text("a" * 60 + "b\n")
    order = {"path": str(workspace), "descriptor": None, "query": {"text": "(a+)+$", "regex": True, "path": "evil.txt"}}
    start = "from ava_roles.tools import grep; grep.CHILD_SECONDS = 1; grep.main()"
    command: Sequence[str] = [sys.executable, str(LAUNCHER), alone, "python", "-I", "-c", start]
    done = subprocess.run(command, input=child.message(order), capture_output=True, timeout=20, check=False)
    assert done.returncode == code, done
    assert done.stdout == b""
    assert code < 0 or done.stderr.startswith(b"Timeout (")


@pytest.mark.parametrize(("alone", "code"), [("win32", 1), ("darwin", -signal.SIGALRM), ("bare", 1)])
def test_the_time_limit_of_a_search_runs_again_after_secrets_were_hidden(
    workspace: Path, alone: str, code: int
) -> None:
    (workspace / "a.txt").write_text("aaa\n")
    (workspace / "evil.txt").write_text("a" * 60 + "b\n")
    order = {"path": str(workspace), "descriptor": None, "query": {"text": "^(a+)+$", "regex": True, "glob": "*.txt"}}
    start = "from ava_roles.tools import grep; grep.CHILD_SECONDS = 1; grep.main()"
    command: Sequence[str] = [sys.executable, str(LAUNCHER), alone, "python", "-I", "-c", start]
    given = child.message(order) + child.message("aaa\n")
    done = subprocess.run(command, input=given, capture_output=True, timeout=20, check=False)
    assert done.returncode == code, done
    assert done.stdout == child.message({"hide": "aaa\n"})


@pytest.mark.parametrize("alone", ["win32", "darwin"])
def test_every_module_imports(alone: str) -> None:
    text = (REPOSITORY / "scripts" / "import_all.py").read_text("utf-8")
    command = [sys.executable, str(LAUNCHER), alone, "python", "-I", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{alone}: [3-6]\d\d modules, 0 faults, [78] left out\n", done.stdout)


def test_the_simulated_systems_really_lack_linux_features() -> None:
    look = (
        "import os, signal, sys\n"
        "names = [name for name in ('O_NOFOLLOW', 'O_PATH', 'geteuid', 'fchmod') if hasattr(os, name)]\n"
        "names += [name for name in ('SIGALRM', 'SIGKILL', 'SIGHUP', 'SIGINT') if hasattr(signal, name)]\n"
        "for module in ('fcntl', 'resource', 'pwd', 'termios', 'ctypes'):\n"
        "    try:\n"
        "        __import__(module, globals())\n"
        "        names.append(module)\n"
        "    except ImportError:\n"
        "        pass\n"
        "print(sys.platform, *names, len(os.supports_dir_fd) > 0, os.path.exists('/proc/self/stat'))\n"
    )
    seen = {}
    for system in SYSTEMS:
        command = [sys.executable, str(LAUNCHER), system, "python", "-I", "-c", look]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        seen[system] = done.stdout.split()
    common = ["O_NOFOLLOW", "geteuid", "fchmod", "SIGALRM", "SIGKILL", "SIGHUP", "SIGINT", "True", "True"]
    assert seen == {
        "win32": ["win32", "SIGINT", "False", "True"],
        "darwin": ["darwin", *common[:-2], "fcntl", "resource", "pwd", "termios", "ctypes", *common[-2:]],
        "bare": ["linux", "O_NOFOLLOW", "O_PATH", *common[1:]],
    }


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text(f"# Prices\n{TEXT}\n")
    (tmp_path / "secret.txt").write_text("the secret outside")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "away").symlink_to(tmp_path)
    return folder


@dataclass
class Elsewhere:
    """A server that believes in another system, and the web site that is all that it can reach."""

    wire: Wire
    web: Site

    async def result(self, run: str) -> str:
        ended = await self.wire.tool("check_subagent", subagent_id=run, wait_seconds=30)
        assert ended["status"] == "success", ended
        output: str = ended["runs"][0]["untrusted_result"]["output"]
        return output

    async def end(self) -> None:
        await self.wire.close_stdin()
        assert await self.wire.exited() == 0
        assert self.wire.stderr == ""


@asynccontextmanager
async def elsewhere(system: str, root: Path, models: ModelServer) -> AsyncGenerator[Elsewhere]:
    python = root.parent / "python"  # what the server starts as its own interpreter: of that system too
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I {LAUNCHER} {system} python "$@"\n')
    python.chmod(0o755)
    async with site({"/prices": f"<html><title>Prices</title><body><p>{TEXT}</p></body></html>"}) as web:
        command = [sys.executable, str(LAUNCHER), system, "ava", str(web.port), str(python), "serve"]
        env = {**model_env(models.base_url), "USERNAME": "somebody"}  # as Windows has it
        async with serve_stdio(root, env=env, command=command) as wire:
            yield Elsewhere(wire, web)
