"""Runs by the Responses API."""

from pathlib import Path

import anyio
import pytest
from support.model_server import Gate, Say, Script, run_model_server
from support.runtime import check_requests, hand_over, open_lab

from ava_audit.events import AssistantMessage, CostUpdate, RunClaimed

CONFIG = """
[providers.custom]
wire = "responses"
[prices."gpt-6.1-sol"]
input = 2.0
output = 10.0
cache_read = 0.1
cache_write = 2.5
"""
ENV = {"AVA_MODEL": "gpt-6.1-sol"}
CACHED = {
    "input_tokens": 9_000,
    "input_tokens_details": {"cached_tokens": 6_000, "cache_write_tokens": 2_000},
    "output_tokens": 500,
    "output_tokens_details": {"reasoning_tokens": 300},
}


async def test_a_run_calls_tools_and_sends_the_same_bytes_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    reads = Say("I read.", [("read_file", {"path": "0.md"})], reasoning="Where is it?", usage=CACHED)
    with run_model_server([reads, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            (lab.workspace / "0.md").write_text("twelve cents\n")
            run_id = await lab.start(extended_thinking=True)
            with anyio.fail_after(40):
                assert await anyio.to_thread.run_sync(gate.arrived.wait, 10)
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            run = await lab.ended(run_id)
            assert run.state == "success", run.stop_reason
            assert [fact.reason for fact in await lab.facts(run_id, RunClaimed)] == ["start", "takeover"]
            entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
            assert entries[0].cost_micros == 1_000 * 2 + 6_000 * 0.1 + 2_000 * 2.5 + 500 * 10
            (first, *_) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn]
            assert (first.text, first.stop_reason, first.request_id) == ("I read.", "completed", "resp_1")
        await check_requests(tmp_path / "data", server.requests)
        _, lost, again = server.requests
        assert again.body == lost.body
        thought, words, called, result = again.json["input"][-4:]
        assert again.path == "/v1/responses"
        assert again.json["reasoning"] == {"effort": "medium"}
        assert thought["encrypted_content"] and "id" not in thought
        assert words["content"][0]["text"] == "I read."
        assert called["call_id"] == result["call_id"] and "twelve cents" in result["output"]


async def test_a_plan_and_its_thinking_stay_after_the_planning_turn(tmp_path: Path) -> None:
    script: Script = [
        Say("It is about a price.", reasoning="analysing"),
        Say("1. Read the file.\n2. Hand over.", reasoning="planning"),
        Say("KEEP", reasoning="reviewing"),
        Say(calls=[("read_file", {"path": "0.md"})] * 2, reasoning="reading"),
        Say(reasoning="nothing but thinking", finish_reason="length"),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run = await lab.ended(await lab.start(extended_thinking=True, plan=True))
        assert run.state == "success", run.stop_reason
        sent = [request.json["input"] for request in lab.server.requests]
    kinds = [[item["type"] for item in items] for items in sent]
    assert kinds[3] == ["message", "reasoning", "message", "message"], "of the planning the plan alone stays"
    called = ["reasoning", *["function_call"] * 2, *["function_call_output"] * 2]
    assert kinds[4] == [*kinds[3], *called]
    assert kinds[5] == [*kinds[4], "message"], (
        "what follows an answer that was cut in its thinking is the word about it"
    )


async def test_a_run_translates_why_an_answer_ended_into_its_own_terms(tmp_path: Path) -> None:
    script: Script = [
        Say("I read it.", [("read_file", '{"path": "0')], finish_reason="length"),
        Say("I would rather not.", finish_reason="refusal"),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        run = await lab.ended(await lab.start())
        assert run.state == "success", run.stop_reason
        _, second, third = (request.json["input"] for request in lab.server.requests)
    assert "your answer was cut at its length" in second[-1]["output"]
    assert third[-2]["content"] == [{"type": "refusal", "refusal": "I would rather not."}]
    assert "declined" in third[-1]["content"][0]["text"]
