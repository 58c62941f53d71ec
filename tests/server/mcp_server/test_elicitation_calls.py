"""The handshake era: the question is asked inside the call, which ends in time, whatever the client answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult
from support.hosts.elicitation import accept, approval, cancel, host, refusal_reason
from support.hosts.raw_client import open_raw_client
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED, allow_workspace, hand_over, settings_of
from support.sample import sample
from support.stdio import model_env, serve_stdio

from ava_audit.rows import WAITING
from ava_server.mcp_server import elicitation
from ava_server.mcp_server.server import build_server
from ava_server.service import access


async def test_an_answer_after_the_deadline_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes no notice of a cancelled question and answers it all the same."""
    monkeypatch.setattr(elicitation, "ASK_S", 0.3)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with run_model_server([hand_over()]) as models:
        settings = settings_of(tmp_path / "data", models.base_url, allow_workspace(PRICED, workspace))
        async with open_raw_client(build_server(lambda: settings, transport="memory")) as client:
            made = await client.tool("spawn_subagent", role="researcher", task="Look", workspace=str(workspace))
            call = await client.request("tools/call", name="confirm_spawn", arguments=approval(made))
            question = await client.hear(lambda message: message.get("method") == "elicitation/create")
            told = (await client.result(call))["structuredContent"]
            assert "has not answered" in refusal_reason(told) and "ava approve" in told["next"]
            await client.say(id=question["id"], result={"action": "accept", "content": {}})
            checked = await client.tool("check_subagent", subagent_id=made["subagent_id"])
            assert checked["status"] == WAITING
            assert models.requests == []


async def test_the_wait_after_a_question_gets_the_remaining_time_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "WAIT_LIMIT_S", 1.0)
    gate = Gate()
    async with host(tmp_path, "legacy", accept(), [Say("late", gate=gate), hand_over()]) as at:
        began = anyio.current_time()
        answer = await at.confirm(await at.propose(), wait_seconds=40)
        assert answer["status"] == "approved" and anyio.current_time() - began < 10
        gate.released.set()


@pytest.mark.parametrize(
    "reply",
    sample(
        [
            {},
            {"action": "yes"},
            {"action": "ACCEPT", "content": {}},
            {"action": "accept", "content": {"max_minutes": {"at most": 1}}},
            {"action": "accept", "content": "all of it"},
            {"action": ["accept"]},
        ],
        2,
    ),
)
async def test_an_invalid_answer_starts_nothing_and_is_not_an_internal_error(
    tmp_path: Path, reply: dict[str, Any]
) -> None:
    (tmp_path / "workspace").mkdir()
    with run_model_server([hand_over()]) as models:
        async with serve_stdio(tmp_path / "data", env=model_env(models.base_url), initialize=False) as wire:
            hello = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "odd", "version": "1"}}
            await wire.request("initialize", {**hello, "capabilities": {"elicitation": {}}})
            await wire.notify("notifications/initialized")
            wire.replies["elicitation/create"] = lambda: reply
            made = await wire.tool(
                "spawn_subagent", role="researcher", task="Look", workspace=str(tmp_path / "workspace")
            )
            answer = await wire.tool("confirm_spawn", **approval(made))
            assert "closed the question" in refusal_reason(answer)
            assert (await wire.tool("check_subagent", subagent_id=made["subagent_id"]))["status"] == WAITING
        assert models.requests == []


async def test_in_the_handshake_era_an_answer_sent_with_the_call_is_ignored(tmp_path: Path) -> None:
    async with host(tmp_path, "legacy", cancel) as at:
        made = await at.propose()
        answer = await at.by_hand(approval(made), answer=ElicitResult(action="accept", content={}))
        assert isinstance(answer, dict)
        assert "closed the question" in refusal_reason(answer) and len(at.person.asked) == 1
        await at.nothing_started()
