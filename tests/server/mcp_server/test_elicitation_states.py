"""The modern era: a client keeps the question's sealed state, and sends the answer with another call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.request_state import AESGCMRequestStateCodec
from mcp_types import ElicitResult, InputRequiredResult
from support.hosts.elicitation import accept, approval, decline, host, refusal_reason
from support.model_server import run_model_server
from support.runtime import PRICED, allow_workspace, hand_over, settings_of
from support.sample import sample
from support.stdio import MODERN, model_env, serve_stdio

from ava_audit.events import RunClaimed, SpawnDecided
from ava_audit.rows import WAITING
from ava_server.approval.start_form import LimitField, Question
from ava_server.config.root_key import root_key
from ava_server.mcp_server import elicitation
from ava_server.run_config.run_cap import COST, TIME

YES = ElicitResult(action="accept", content={})


async def test_an_answer_without_the_request_state_asks_again(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", decline) as at:
        given = approval(await at.propose())
        assert isinstance(await at.by_hand(given, answer=YES), InputRequiredResult), "never asked"
        await at.question(given)
        assert isinstance(await at.by_hand(given, answer=YES), InputRequiredResult), "asked, and nothing kept"
        await at.nothing_started()


async def test_a_state_without_an_answer_asks_again(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", decline) as at:
        given = approval(await at.propose())
        state = await at.question(given)
        assert isinstance(await at.by_hand(given, state=state), InputRequiredResult)
        await at.nothing_started()


@pytest.mark.parametrize("how", ["one letter", "cut", "none of ours", "empty", "the bare hash", "another root's"])
async def test_a_tampered_state_asks_again(tmp_path: Path, how: str) -> None:
    async with host(tmp_path, "auto", decline) as at:
        made = await at.propose()
        given = approval(made)
        asked = await at.by_hand(given)
        assert isinstance(asked, InputRequiredResult) and asked.request_state is not None
        state = asked.request_state
        middle = len(state) // 2
        config = allow_workspace(PRICED, at.workspace)
        path = settings_of(at.root, at.models.base_url, config).paths.question_key
        inside = AESGCMRequestStateCodec([root_key(path)]).unseal(state)
        form = asked.model_dump(by_alias=True)["inputRequests"]["approval"]["params"]
        tampered = {
            "one letter": state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :],
            "cut": state[:-4],
            "none of ours": "v1.aGVsbG8",
            "empty": "",
            "the bare hash": bare_hash(form),
            "another root's": AESGCMRequestStateCodec(["another root's key" * 4]).seal(inside),
        }[how]
        assert json.loads(inside)["s"].partition("@")[0] == bare_hash(form)
        assert isinstance(await at.by_hand(given, tampered, YES), InputRequiredResult)
        await at.nothing_started()


def bare_hash(form: dict[str, Any]) -> str:
    """The hash of a question, as a client that knows our code can make it, without the seal."""
    fields = form["requestedSchema"]["properties"]
    caps = {"max_cost_dollars": COST, "max_minutes": TIME}
    limits = (LimitField(caps[name], each["title"], each["minimum"], each["maximum"]) for name, each in fields.items())
    return Question(form["message"], tuple(limits)).sha()


async def test_a_state_from_a_call_with_other_arguments_asks_again(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", decline) as at:
        cheap, dear = await at.propose(task="one", max_cost_cents=16), await at.propose(task="two")
        state = await at.question(approval(cheap))
        assert isinstance(await at.by_hand(approval(dear), state, YES), InputRequiredResult)
        lowered = approval(dear, changes={dear["pending_id"]: {"caps": {"max_cost_cents": 16}}})
        state = await at.question(lowered)
        assert isinstance(await at.by_hand(approval(dear), state, YES), InputRequiredResult), "its own, lowered"
        await at.nothing_started(waiting=2)


async def test_an_expired_state_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elicitation, "ANSWER_S", 0.2)
    async with host(tmp_path, "auto", decline) as at:
        given = approval(await at.propose())
        state = await at.question(given)
        await anyio.sleep_until(anyio.current_time() + 0.25)  # the time that it has to live
        assert isinstance(await at.by_hand(given, state, YES), InputRequiredResult)
        await at.nothing_started()


async def test_another_server_on_the_same_data_root_accepts_the_answer_once(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as models:
        async with host(tmp_path, "auto", decline, server=models) as at:
            made = await at.propose()
            given = approval(made)
            state = await at.question(given)
        async with host(tmp_path, "auto", decline, server=models) as at:
            answer = await at.by_hand(given, state, YES)
            assert isinstance(answer, dict) and answer["status"] == "approved"
            assert (await at.started_once(made)).channel == "elicitation"
            replayed = await at.by_hand(given, state, YES)
            assert isinstance(replayed, dict) and "approved already" in refusal_reason(replayed)
            assert len(await at.facts(made, RunClaimed)) == 1 and len(models.requests) == 1
            assert at.person.asked == []


async def test_a_new_server_asks_again_when_the_key_is_gone(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as models:
        async with host(tmp_path, "auto", decline, server=models) as at:
            made = await at.propose()
            given = approval(made)
            state = await at.question(given)
        key = settings_of(at.root, models.base_url, allow_workspace(PRICED, at.workspace)).paths.question_key
        before = key.read_bytes()
        key.unlink()
        async with host(tmp_path, "auto", accept(), server=models) as at:
            assert isinstance(await at.by_hand(given, state, YES), InputRequiredResult)
            await at.nothing_started()
            assert key.read_bytes() != before and key.stat().st_mode & 0o077 == 0
            assert (await at.confirm(made))["status"] == "approved"
            await at.started_once(made)


@pytest.mark.parametrize("fault", ["open to others", "too short", "no TOML"])
async def test_reports_an_unusable_key_instead_of_asking_forever(tmp_path: Path, fault: str) -> None:
    with run_model_server([hand_over()]) as models:
        async with host(tmp_path, "auto", accept(), server=models) as at:
            made = await at.propose()
            await at.question(approval(made))
        key = settings_of(at.root, models.base_url, allow_workspace(PRICED, at.workspace)).paths.question_key
        good = key.read_bytes()
        if fault == "open to others":
            key.chmod(0o644)
        else:
            key.write_text('key = "short"\n' if fault == "too short" else "key = \n[")
        async with host(tmp_path, "auto", accept(), server=models) as at:
            answer = await at.confirm(made)
            assert answer["status"] == "failed" and str(key) in answer["message"]
            assert at.person.asked == []
            await at.nothing_started()
            key.write_bytes(good)
            key.chmod(0o600)
            assert (await at.confirm(made))["status"] == "approved", "mended, without a new server"
            await at.started_once(made)


async def test_an_answer_about_a_proposal_that_no_longer_exists_starts_nothing(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", decline) as at:
        made = await at.propose()
        state = await at.question(approval(made))
        await at.call("cancel_subagent", pending_id=made["pending_id"])
        answer = await at.by_hand(approval(made), state, YES)
        assert isinstance(answer, dict) and answer["status"] == "refused"
        assert at.models.requests == []


@pytest.mark.parametrize(
    "more",
    sample(
        [
            {"inputResponses": {"approval": {"action": "accept", "content": {}}}},
            {"inputResponses": {"approval": {"action": "accept", "content": {}}}, "requestState": None},
            {"inputResponses": {"approval": {"action": "yes"}}},
            {"inputResponses": {"approval": {"action": "accept", "content": {"max_minutes": {"at most": 1}}}}},
            {"inputResponses": {"approval": "accept"}},
            {"inputResponses": {"approval": None}},
            {"inputResponses": {"other": {"action": "accept", "content": {}}}},
            {"inputResponses": []},
            {"inputResponses": "approval"},
            {"requestState": 7},
            {"requestState": {"action": "accept"}},
            {"requestState": "v1." + "A" * 1_000_000},
            {"requestState": "\ud800", "inputResponses": {"approval": {"action": "accept"}}},
        ],
        2,
    ),
)
async def test_extra_data_from_a_hostile_client_starts_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    """Spoken line by line to a child process, whose stderr may have no traceback."""
    (tmp_path / "workspace").mkdir()
    with run_model_server([hand_over()]) as models:
        async with serve_stdio(tmp_path / "data", env=model_env(models.base_url), initialize=False) as wire:
            wire.meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "odd", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
            }
            await wire.request("server/discover")
            made = await wire.tool(
                "spawn_subagent", role="researcher", task="Look", workspace=str(tmp_path / "workspace")
            )
            call = {"name": "confirm_spawn", "arguments": approval(made)}
            asked = (await wire.request("tools/call", call))["result"]
            assert asked["resultType"] == "input_required"
            answer = await wire.request("tools/call", {**call, **more})
            assert "error" in answer or answer["result"]["resultType"] == "input_required", answer
            assert (await wire.tool("check_subagent", subagent_id=made["subagent_id"]))["status"] == WAITING
        assert models.requests == []


async def test_a_hundred_simultaneous_accepted_answers_start_one_run(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", decline) as at:
        made = await at.propose()
        given = approval(made)
        state = await at.question(given)
        statuses: list[str] = []

        async def again() -> None:
            answer = await at.by_hand(given, state, YES)
            assert isinstance(answer, dict)
            statuses.append(answer["status"])

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(again)
        # Whose question the first answer closed is told that it was approved; whoever came after it is refused.
        assert len(statuses) == 100 and "approved" in statuses and set(statuses) <= {"approved", "refused"}
        await at.started_once(made)
        assert len(await at.facts(made, SpawnDecided)) == 1
