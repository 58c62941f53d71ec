"""No secret of an agent's run reaches the log or the provider."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.agents.lab import SUBMIT, USAGE, agent_lab, priced_agent, run_agent
from support.model_server import Raw, Say, Step
from support.redaction import body_of, leaked_pieces, private_key
from support.sandboxes.attacks import needs

from ava_audit.events import AgentNote, AssistantMessage, CostUpdate, ToolCall, ToolResult
from ava_audit.redaction import RunRedactor
from ava_server.core.untrusted import SHORT_CHARS

SECRET = "AKIAIOSFODNN7EXAMPLE"


async def test_no_secret_of_an_answer_is_in_the_log(tmp_path: Path) -> None:
    needs("bubblewrap")
    secret = "AKIAIOSFODNN7EXAMPLE"
    answers = [Say("x", calls=[(secret, {secret: secret})], usage=USAGE), Say("y", usage=USAGE)]
    async with agent_lab(tmp_path, answers, [[{"ask": "a"}, SUBMIT]]) as lab:
        run_id, _result = await run_agent(lab)
        said = [*await lab.facts(run_id, AssistantMessage), *await lab.facts(run_id, ToolCall)]
        assert len(said) >= 3 and not [fact for fact in said if secret in str(fact)]


async def test_a_long_answer_is_searched_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("bubblewrap")
    searched: list[tuple[int, bool]] = []
    whole = RunRedactor.redact

    def redact(self: RunRedactor, text: str) -> tuple[str, int]:
        searched.append((len(text), threading.current_thread() is threading.main_thread()))
        return whole(self, text)

    monkeypatch.setattr(RunRedactor, "redact", redact)
    long = f"{SECRET} It costs twelve cents. " * 2_000
    name = f"{SECRET} " * 1_000
    async with agent_lab(tmp_path, [priced_agent(long, calls=[(name, {})])], [[{"ask": "a"}, SUBMIT]]) as lab:
        run_id, _result = await run_agent(lab)
        (said,) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn == 1]
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "unreported"]
    assert len(notes) == 1 and SECRET not in notes[0].text
    assert "[redacted:aws-key-id] It costs" in said.text and SECRET not in said.text
    assert max(searched)[0] >= len(long) and not [size for size, on_loop in searched if on_loop and size > SHORT_CHARS]


async def test_an_answer_whose_secrets_are_not_found_in_time_is_settled_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    monkeypatch.setattr("ava_server.agents.metering.RECORD_WITHIN_S", 0)
    answer = priced_agent(f"{SECRET} It costs twelve cents. " * 2_000, calls=[("Bash", {"command": SECRET})])
    async with agent_lab(tmp_path, [answer], [[{"ask": "a"}, SUBMIT]]) as lab:
        run_id, result = await run_agent(lab)
        (said,) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn == 1]
        (cost,) = await lab.facts(run_id, CostUpdate)
        called = [call.tool for call in await lab.facts(run_id, ToolCall)]
    assert result["status"] == "success" and (cost.settlement, cost.tokens) == ("billed", 950)
    assert said.text.startswith("[not in the log: the secrets of this answer") and "Bash" in called
    assert [call["name"] for call in said.calls] == ["Bash"] and SECRET not in str(said)


async def test_a_call_whose_id_looks_like_a_secret_keeps_its_result(tmp_path: Path) -> None:
    needs("bubblewrap")
    secret = "AKIAIOSFODNN7EXAMPLE"
    call = {"type": "tool_use", "id": secret, "name": "Bash", "input": {"command": "ls"}}
    usage = {"input_tokens": 900, "output_tokens": 50}
    said = {"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use", "usage": usage}
    answers: list[Step] = [Raw([json.dumps(said).encode()], "application/json"), priced_agent()]
    steps: list[dict[str, Any]] = [
        {"ask": "a"}, {"tool": secret}, {"ask": "", "results": {secret: "prices.md"}}, SUBMIT
    ]  # fmt: skip
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        run_id, _result = await run_agent(lab)
        called, answered = (await lab.facts(run_id, ToolCall))[0], (await lab.facts(run_id, ToolResult))[0]
        assert (answered.output, answered.call_id) == ("prices.md", called.call_id) and called.call_id != secret
        assert "unreported" not in [note.kind for note in await lab.facts(run_id, AgentNote)]


async def test_an_agent_sends_no_piece_of_a_key_of_the_workspace(tmp_path: Path) -> None:
    """Not in its first request either: what it has read is in it."""
    needs("bubblewrap")
    body = body_of()
    ask = {"ask": f"The log says: {body[5]}, and {body[9][:30]}."}
    async with agent_lab(tmp_path, [priced_agent()], [[ask, {"say": "It costs twelve cents."}]]) as lab:
        (lab.workspace / "server.key").write_text(private_key())
        await run_agent(lab)
        (request,) = lab.server.requests
    assert b"[redacted:private-key]" in request.body and leaked_pieces(request.body.decode(), body) == []


async def test_secrets_of_the_workspace_do_not_reach_the_provider(tmp_path: Path) -> None:
    needs("bubblewrap")
    secret = "AKIAIOSFODNN7EXAMPLE"
    steps: list[dict[str, Any]] = [
        {"ask": "", "file": "settings.env"},
        {"ask": f"again {secret}", "system": f"with {secret}"},
        {"ask": "", "results": {"toolu_1_0": f"AWS_ACCESS_KEY_ID={secret}"}},
        {"say": f"The key is {secret}."},
    ]
    answers = [priced_agent(), priced_agent(calls=[("Bash", {"command": "env"})]), priced_agent()]
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        (lab.workspace / "settings.env").write_text(f"AWS_ACCESS_KEY_ID={secret}\n")
        run_id, result = await run_agent(lab)
        assert result["status"] == "success" and "The key is" in result["untrusted_result"]["output"], result
        assert secret not in json.dumps(result) and len(lab.server.requests) == 3
        assert not any(secret.encode() in request.body for request in lab.server.requests)
        assert not any(secret in entry.fact.model_dump_json() for entry in await lab.entries(run_id) if entry.fact)
