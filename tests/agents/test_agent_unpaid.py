"""What an agent does that nobody pays for is bounded in the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.agents.lab import agent_config, agent_lab, agent_run, priced_agent, run_agent
from support.model_server import Fail, run_model_server
from support.runtime import open_lab
from support.sandboxes.attacks import needs

from ava_audit.entries import Entry
from ava_audit.events import AgentNote, AgentRequest, RunClaimed, ToolCall, ToolResult
from ava_server.agents.unpaid import KEPT_BYTES, MOST_UNPAID_BYTES, UnpaidBytes


@pytest.fixture
def little_unpaid(monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes of a run that nobody paid for, in small."""
    most = 50_000
    monkeypatch.setattr("ava_server.agents.unpaid.MOST_UNPAID_BYTES", most)
    monkeypatch.setattr("ava_server.agents.unpaid.KEPT_BYTES", 0)
    monkeypatch.setattr("ava_server.agents.work.RESULT_BYTES", 5_000)
    return most


def unpaid_in(entries: list[Entry]) -> int:
    counted = UnpaidBytes()
    counted.add_earlier([entry.fact for entry in entries if entry.fact is not None])
    return counted.total


async def test_what_nobody_pays_for_is_bounded_in_the_log(tmp_path: Path, little_unpaid: int) -> None:
    needs("bubblewrap")
    calls = [{"ava": "submit_result", "args": {"summary": "x", "nothing": f"{number}" * 20_000}} for number in range(9)]
    async with agent_lab(tmp_path, [], [[*calls, {"say": "It costs twelve cents."}]]) as lab:
        run_id, result = await run_agent(lab)
        assert result["untrusted_result"]["output"].count("that no provider was paid for. Hand over what you") == 7
        assert len(await lab.facts(run_id, ToolCall)) == 2
        assert 40_000 < unpaid_in(await lab.entries(run_id)) <= little_unpaid


def test_what_the_log_has_counts_as_unpaid_with_the_results_of_avas_tools() -> None:
    counted = UnpaidBytes()
    counted.add_earlier(
        (
            ToolCall(tool="recall", args={"a": "b"}, call_id="ava-1-1"),
            ToolResult(tool="recall", success=True, output="é" * 50, call_id="ava-1-1"),
            ToolCall(tool="Bash", args={"command": "ls" * 99}, call_id="toolu_0_0"),
            ToolResult(tool="Bash", success=True, output="x" * 99, call_id="toolu_0_0"),
            AgentRequest(turn=1, model="m", head_sha="h", head={"a": 1}, items=("paid" * 99,)),
            AgentRequest(turn=2, model="m", head_sha="h", items=("refused",)),
            AgentNote(kind="refused", text="why"),
        )
    )
    assert counted.total == len("recall") + len('{"a": "b"}') + 100 + len("why{}")
    room = MOST_UNPAID_BYTES - KEPT_BYTES - counted.total
    assert not counted.has_room(room + 1) and counted.take(room) and not counted.take(1)
    assert counted.take(KEPT_BYTES, hands_over=True) and not counted.take(1, hands_over=True)
    counted.give_back(KEPT_BYTES)
    assert counted.has_room(0)


def refused_calls(size: int, count: int) -> list[dict[str, Any]]:
    """Calls that are refused, and in the log."""
    return [
        {"ava": "submit_result", "args": {"summary": "x", "nothing": "n" * size, "number": number}}
        for number in range(count)
    ]


async def test_what_nobody_pays_for_is_bounded_over_takeovers_too(tmp_path: Path, little_unpaid: int) -> None:
    """Each server that takes the run over counts what the earlier ones have logged."""
    needs("bubblewrap")
    folder = tmp_path / "installed"
    folder.mkdir()
    steps = [
        *refused_calls(3_500, 6),
        {"ask": "look"},
        {"sleep": 2},
        *refused_calls(3_600, 30),
        {"say": "It costs twelve."},
    ]
    (folder / "script.json").write_text(json.dumps({"prompts": [steps], "resumes": True}))
    with run_model_server(lambda _request: priced_agent()) as far:
        house: dict[str, Any] = {"server": far, "env": {"AVA_FAR_API_KEY": "k"}, "check": False}
        house["config"] = agent_config(folder, far.base_url)
        async with open_lab(tmp_path, **house) as lab:
            run_id = await lab.start(**agent_run())
            await lab.logged(run_id, "CostUpdate")
            before = unpaid_in(await lab.entries(run_id))
        async with open_lab(tmp_path, **house) as lab:
            await lab.ended(run_id, 60)
            assert len(await lab.facts(run_id, RunClaimed)) == 2
            total = unpaid_in(await lab.entries(run_id))
    assert 20_000 < before < total <= little_unpaid, (before, total)


async def test_requests_that_are_never_billed_are_bounded_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_unpaid: int
) -> None:
    needs("bubblewrap")
    monkeypatch.setattr("ava_server.agents.metering.MOST_NEW_BYTES", 50_000)
    monkeypatch.setattr("ava_server.agents.metering.FAILED_CALLS", 1_000)
    asks = [{"ask": f"{number}" * 20_000, "survives": True, "aside": True} for number in range(9)]
    refusal = Fail(400, {"error": {"type": "invalid_request_error", "message": "no"}})
    async with agent_lab(tmp_path, [refusal] * 9, [[*asks, {"say": "It costs twelve cents."}]]) as lab:
        run_id = await lab.start(**agent_run())
        await lab.ended(run_id, 60)
        logged = sum(len(each.model_dump_json()) for each in await lab.facts(run_id, AgentRequest))
        said = [note.text for note in await lab.facts(run_id, AgentNote) if note.kind == "refused"]
        assert unpaid_in(await lab.entries(run_id)) <= little_unpaid + len("".join(said))
    assert logged < 60_000 and len(lab.server.requests) < 9
    assert any("that no provider was paid for" in text for text in said)
