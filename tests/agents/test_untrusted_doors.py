"""Each door by which others send long text: the event loop has its turn, others are served, and an end is an end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.agents.gateway import agent_request, open_gateway
from support.agents.lab import agent_lab, agent_run, priced_agent
from support.gaps import MOST_GAP_S, most_gap
from support.http_server import META, serve_http, token
from support.model_server import Say
from support.runtime import hand_over, open_lab
from support.sandboxes.attacks import needs
from support.stdio import MODERN, make_root, until

from ava_audit.events import ToolResult
from ava_audit.redaction import Redactor
from ava_server.core import untrusted
from ava_server.core.threads import stop_if_cancelled
from ava_server.core.untrusted import hide_apart

WORST = "mysql -pa1b2c3d4 "
LONG = WORST * (4_000_000 // len(WORST))


def searches() -> int:
    """Return how many threads look for secrets."""
    limiter = untrusted._limiter.get(None)  # pyright: ignore[reportPrivateUsage]
    return limiter.borrowed_tokens if limiter is not None else 0


@pytest.mark.slow
async def test_a_body_at_the_gateway(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("ok")]) as at:
        text = {"type": "text", "text": LONG[:1_300_000]}
        parts = [{"role": role, "content": [text]} for role in ("user", "assistant", "user")]
        body = json.dumps(agent_request("messages", messages=parts)).encode()
        gaps: list[float] = []
        async with most_gap(gaps):
            answer = await at.http.post("/v1/messages", content=body, timeout=120)
    assert answer.status_code == 200, answer.text[:300]
    assert max(gaps) < MOST_GAP_S


@pytest.mark.slow
async def test_arguments_of_an_agents_call(tmp_path: Path) -> None:
    needs("bubblewrap")
    long = {"ava": "submit_result", "args": {"summary": "It costs.", "output": WORST * (200_000 // len(WORST))}}
    async with agent_lab(tmp_path, [priced_agent()], [[{"ask": "look"}, long]]) as lab:
        run_id = await lab.start(**agent_run())
        await lab.logged(run_id, "AssistantMessage")
        gaps: list[float] = []
        async with most_gap(gaps):
            await lab.ended(run_id, 60)
        assert "[redacted:password]" in (await lab.result(run_id))["untrusted_result"]["output"]
    assert max(gaps) < MOST_GAP_S


@pytest.mark.slow
async def test_a_long_file(tmp_path: Path) -> None:
    read = Say(calls=[("read_file", {"path": "long.txt"})])
    async with open_lab(tmp_path, [read, hand_over()]) as lab:
        (lab.workspace / "long.txt").write_text(LONG.replace(f"{WORST}{WORST}", f"{WORST}\n"))
        gaps: list[float] = []
        async with most_gap(gaps):
            run_id = await lab.start(tools=["read_file"], workspace=str(lab.workspace))
            await lab.ended(run_id, 120)
        result, *_ = await lab.facts(run_id, ToolResult)
    assert result.success and "[redacted:password]" in result.output and "a1b2c3d4" not in result.output
    assert max(gaps) < MOST_GAP_S


async def test_others_have_their_threads_while_long_texts_are_searched() -> None:
    redactor = Redactor({}, stop_if_cancelled)
    async with anyio.create_task_group() as tasks:
        for _ in range(50):  # more than the shared threads
            tasks.start_soon(hide_apart, lambda: redactor.redact(LONG), len(LONG))
        await until(lambda: searches() == 2, 10)
        began = time.process_time()
        await anyio.to_thread.run_sync(lambda: None)
        assert time.process_time() - began < MOST_GAP_S
        tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.skipif("sys.platform != 'linux'", reason="reads /proc")
async def test_arguments_of_a_call_over_http(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    reader, writer = token(root, "ana", "read"), token(root, "ben")
    named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "spawn_subagent"}
    headers = {"Accept": "application/json, text/event-stream", **named}
    async with serve_http(root) as server:
        spent = spent_by(server.pid)

        async def send(text: str, chars: int) -> str:
            call = {"name": "spawn_subagent", "arguments": {"task": LONG[:chars]}, "_meta": META}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            answer = await server.post("/mcp", text, json=message, headers=headers)
            return str(answer.text)

        await send(writer, 100)  # it loads what the first call needs
        began = spent()
        assert "lacks the scope" in await send(reader, 2_000_000)
        assert spent() - began < 1, "its scope is checked first"
        gaps: list[float] = []
        async with anyio.create_task_group() as tasks:

            async def others() -> None:
                while True:
                    began = spent()
                    await server.get("/healthz")
                    gaps.append(spent() - began)

            tasks.start_soon(others)
            assert "what looks like a key" in await send(writer, 250_000)
            tasks.cancel_scope.cancel()
        assert max(gaps) < 2 * MOST_GAP_S, "an answer takes several turns of the loop, beside the search"


def spent_by(pid: int) -> Callable[[], float]:
    """Return what tells the processor time of a process, in steps of a hundredth of a second."""

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    return spent


@pytest.mark.slow
async def test_no_work_of_a_run_goes_on_after_its_end(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_lab(tmp_path, [priced_agent()], [[{"ask": "look"}, {"ask": WORST * 1_500_000}]]) as lab:
        run_id = await lab.start(**agent_run())
        await lab.logged(run_id, "AssistantMessage")
        await until(lambda: searches() > 0, 60)
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id, 60)
        began = time.process_time()
        await until(lambda: searches() == 0, 30)
        assert time.process_time() - began < 1


FIRST_RUN = """
import importlib.abc, sys, threading
from pathlib import Path
import anyio
from support.agents.lab import agent_lab, agent_run
from support.model_server import Say

loaded = []

class Notes(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if threading.current_thread() is threading.main_thread():
            loaded.append(name)

async def main():
    async with agent_lab(Path(sys.argv[1]), [Say("ok")], [[{"ask": "look"}, {"say": "Twelve cents."}]]) as lab:
        run_id = await lab.start(**agent_run())
        sys.meta_path.insert(0, Notes())
        await lab.ended(run_id, 60)
        assert "ava_server.agents.work" in sys.modules

anyio.run(main)
print(*loaded)
"""


@pytest.mark.slow
async def test_the_first_run_of_another_agent_loads_nothing_large_on_the_event_loop(tmp_path: Path) -> None:
    needs("bubblewrap")
    command = [sys.executable, "-c", FIRST_RUN, str(tmp_path)]
    tests = str(Path(__file__).parents[1])
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": tests})
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
