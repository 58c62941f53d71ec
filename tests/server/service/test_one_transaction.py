"""A proposal and a decision are one transaction each with the call, and a proposal does little work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from support.model_server import Gate, Say
from support.runtime import Lab, open_lab

from ava_audit.database import Commit
from ava_audit.store.store import Store
from ava_audit.store.writer import Job
from ava_audit.view import View
from ava_roles.mcp_client.run_servers import ToolListing
from ava_roles.role import Role
from ava_server.runs.turn.run_tools import McpServers

CALLS = 4_500
"""Python functions that a proposal may call; with version 0.1.0 it called 33,000."""


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The newest entry after each transaction that wrote one."""
    found: list[int] = []
    done = Store._on_done

    def on_done(store: Store, jobs: list[Job], commits: list[Commit]) -> None:
        found.extend(commit.head for commit in commits if commit.head > commit.before)
        done(store, jobs, commits)

    monkeypatch.setattr(Store, "_on_done", on_done)
    return found


async def transactions(lab: Lab, heads: list[int], after: int) -> list[list[str]]:
    """Return the types of the entries after one of them, by transaction."""
    rows = await lab.store.read(lambda view: list(view.select("SELECT seq, type FROM events WHERE seq > ?", after)))
    ends = [head for head in heads if head > after]
    starts = [after, *ends]
    return [
        [name for seq, name in sorted(rows) if start < seq <= end] for start, end in zip(starts, ends, strict=False)
    ]


async def test_a_proposal_is_one_transaction_with_its_call_and_its_answer(tmp_path: Path, heads: list[int]) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.propose()
        before = lab.store.head
        await lab.propose()
        written = await transactions(lab, heads, before)
    assert written == [["ToolCall", "SpawnProposed", "UserMessage", "AssistantMessage", "ToolResult"]]


async def test_a_refused_proposal_is_one_transaction_with_its_call(tmp_path: Path, heads: list[int]) -> None:
    async with open_lab(tmp_path) as lab:
        await lab.propose()
        before = lab.store.head
        answer = await lab.call("spawn_subagent", role="nobody", task="look it up")
        written = await transactions(lab, heads, before)
    assert answer.status == "failed" and 'no role "nobody"' in answer.message
    assert written == [["ToolCall", "ToolResult"]]


async def test_a_decision_is_one_transaction_with_its_call(tmp_path: Path, heads: list[int]) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("done", gate=gate)], check=False) as lab:
        made = await lab.propose()
        before = lab.store.head
        await lab.approve(made)
        written = await transactions(lab, heads, before)
        gate.released.set()
    assert written[0] == ["ToolCall", "SpawnDecided", "SubagentSpawn"]


async def test_a_call_is_in_the_log_before_an_mcp_server_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def listings(_servers: McpServers, _role: Role) -> Mapping[str, ToolListing]:
        seen.extend(await lab.store.read(_types))
        return {}

    monkeypatch.setattr("ava_server.service.runtime.server_of", lambda _tool: "files")
    monkeypatch.setattr(McpServers, "listings", listings)
    async with open_lab(tmp_path, runs=False) as lab:
        await lab.propose()
        rows = await lab.store.read(_types)
    assert seen == ["ToolCall"]
    assert rows == ["ToolCall", "SpawnProposed", "ToolResult"], "it is recorded once"


def _types(view: View) -> list[str]:
    wanted = "SELECT type FROM events WHERE type IN ('ToolCall', 'SpawnProposed', 'ToolResult') ORDER BY seq"
    return [str(name) for (name,) in view.select(wanted)]


@contextmanager
def counted() -> Generator[list[int]]:
    """Count the Python functions that are called in all threads meanwhile."""
    count = [0]

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        count[0] += event == "call"

    if sys.version_info < (3, 12):
        raise RuntimeError("threads that run cannot be profiled")
    threading.setprofile_all_threads(called)
    try:
        yield count
    finally:
        threading.setprofile_all_threads(None)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="threads that run cannot be profiled")
async def test_a_proposal_calls_few_functions(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        for _ in range(2):  # what is loaded once does not count
            await lab.propose()
        with counted() as count:
            await lab.propose()
    assert 0 < count[0] < CALLS
