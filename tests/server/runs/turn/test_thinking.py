"""Extended thinking: what is asked for, what is reserved for it, what goes back, and what is on the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Fail, Say, Script
from support.runtime import DONE, Lab, hand_over, open_lab
from support.terminal import ava

from ava_audit.events import CostReserved, CostUpdate, ExtendedThinking, SubagentComplete, ToolResult
from ava_server.runs.turn import reservation

WIRE = '[providers.custom]\nwire = "messages"\n'
PRICES = '[prices."{0}"]\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n'


def model(name: str) -> dict[str, Any]:
    return {"config": WIRE + PRICES.format(name), "env": {"AVA_MODEL": name}}


def sent(lab: Lab) -> list[dict[str, Any]]:
    return [request.json for request in lab.server.requests]


def thought(body: dict[str, Any]) -> list[str]:
    """The thinking blocks of a request, by their words."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def reads(number: int, **more: Any) -> Say:
    return Say(calls=[("read_file", {"path": f"{number}.md"})], reasoning=f"thought {number}", **more)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("claude-sonnet-5-5", {"type": "adaptive", "display": "summarized"}),
        ("claude-haiku-4-5", {"type": "enabled", "budget_tokens": 4096}),
    ],
)
async def test_requests_extended_thinking_and_logs_it(tmp_path: Path, name: str, told: dict[str, Any]) -> None:
    async with open_lab(tmp_path, [reads(0), hand_over()], **model(name)) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        made = await lab.propose(extended_thinking=True)
        assert f"Model: custom:{name}, which is told to think before it answers." in made.message
        await lab.approve(made)
        run = await lab.ended(made.subagent_id)
        assert run.state == "success", run.stop_reason
        reserved = await lab.facts(run.id, CostReserved)
        thinking = await lab.facts(run.id, ExtendedThinking)
        shown = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run.id, "--log"))
    assert "ExtendedThinking thought 0" in shown.stdout
    assert [(fact.max_output, fact.thinking) for fact in reserved] == [(8192, 4096)] * 2
    assert [fact.thinking for fact in thinking] == ["thought 0"]
    first, second = sent(lab)
    assert first["thinking"] == second["thinking"] == told
    assert first["max_tokens"] == 8192
    assert thought(second) == ["thought 0"], "it goes back as it came, or the API would have refused it"


@pytest.mark.parametrize(("cents", "thinks"), [(26, True), (17, False)])
async def test_thinking_counts_toward_every_cap_and_turns_off_when_it_does_not_fit(
    tmp_path: Path, cents: int, thinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "LEAST_TO_THINK", 3_000)
    async with open_lab(tmp_path, [reads(0), hand_over()], **model("claude-sonnet-5-5")) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        made = await lab.propose(extended_thinking=True, max_cost_cents=cents)
        await lab.approve(made)
        run = await lab.ended(made.subagent_id)
        reserved = await lab.facts(run.id, CostReserved)
    assert all(fact.micros + fact.wrap_micros <= cents * 10_000 for fact in reserved)
    room = [fact.max_output // 2 if fact.max_output >= 3_000 and fact.last is None else 0 for fact in reserved]
    assert [fact.thinking for fact in reserved] == [tokens if thinks else 0 for tokens in room]
    assert 512 < reserved[0].max_output < 8192
    assert bool(reserved[0].thinking) == thinks
    for body, fact in zip(sent(lab), reserved, strict=True):
        assert body["thinking"]["type"] == ("adaptive" if fact.thinking else "between_tools")


async def test_the_wrap_up_disables_thinking_or_gets_more_tokens_where_it_cannot(tmp_path: Path) -> None:
    script = [reads(0), Say(calls=[DONE], reasoning="at last")]
    for number, (name, told, room) in enumerate(
        [("claude-sonnet-5", "disabled", 1024), ("claude-opus-5-5", "adaptive", 2048)]
    ):
        (folder := tmp_path / str(number)).mkdir()
        async with open_lab(folder, script, **model(name)) as lab:
            (lab.workspace / "0.md").write_text("twelve cents\n")
            run_id = await lab.start(extended_thinking=True, max_iterations=2)
            run = await lab.ended(run_id)
            assert run.state == "iteration_limit", run.stop_reason
            reserved = await lab.facts(run_id, CostReserved)
        assert [fact.thinking for fact in reserved] == [4096, 0]
        assert (sent(lab)[1]["thinking"]["type"], sent(lab)[1]["max_tokens"]) == (told, room)
        assert sent(lab)[1].get("output_config") == ({"effort": "low"} if told == "adaptive" else None)


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "claude-haiku-5-5"])
async def test_thinking_stays_off_once_turned_off(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "LEAST_TO_THINK", 2_800)

    def script(request: dict[str, Any]) -> Say:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return reads(turn, usage={"input_tokens": 2000, "output_tokens": 30}) if turn < 3 else hand_over()

    async with open_lab(tmp_path, script, **model(name)) as lab:
        for number in range(3):
            (lab.workspace / f"{number}.md").write_text("twelve cents\n")
        # The first call's bound is loose: it fits only without thinking, and the later ones would fit with it.
        run_id = await lab.start(extended_thinking=True, max_cost_cents=22, context="More. " * 1_500)
        run = await lab.ended(run_id)
        reserved = await lab.facts(run_id, CostReserved)
        assert run.state == "success", run.stop_reason
    assert reserved[0].thinking == 0
    assert any(fact.max_output >= 2_800 for fact in reserved[1:]), "there would be room again"
    assert not any(fact.thinking for fact in reserved)


class Reader:
    """Reads file after file until some are left out, then hands over."""

    def __init__(self, files: int) -> None:
        self.files = files

    def __call__(self, request: dict[str, Any]) -> Say:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        usage = {"input_tokens": len(str(request)) // 4, "output_tokens": 40}
        return reads(turn, usage=usage) if turn < self.files else Say(calls=[DONE], reasoning="done", usage=usage)


@pytest.mark.slow
async def test_does_not_send_back_thinking_that_follows_trimmed_results(
    tmp_path: Path,
) -> None:
    config = model("claude-sonnet-5-5")
    async with open_lab(tmp_path, Reader(26), **config) as lab:
        for number in range(26):
            (lab.workspace / f"{number}.md").write_text(f"file {number}: twelve cents\n" * 700)
        run_id = await lab.start(extended_thinking=True, max_cost_cents=500, max_iterations=40)
        run = await lab.ended(run_id)
        reserved = await lab.facts(run_id, CostReserved)
        assert run.state == "success", run.stop_reason
    trims = [number for number, fact in enumerate(reserved) if fact.elide]
    assert trims, "something was left out"
    at = trims[0]
    assert thought(sent(lab)[at - 1]) == [f"thought {number}" for number in range(at - 1)]
    assert thought(sent(lab)[at]) == ["thought 0"], "the rest stood behind the first result that was left out"
    assert thought(sent(lab)[at + 1]) == ["thought 0", f"thought {at}"], "what came after it is sound"


@pytest.mark.parametrize("name", ["claude-sonnet-5-5", "claude-haiku-4-5"])
async def test_keeps_a_plan_after_planning_without_its_thinking(tmp_path: Path, name: str) -> None:
    script: Script = [
        Say("It is about a price.", reasoning="analysing"),
        Say("1. Read the file.\n2. Hand over.", reasoning="planning"),
        Say("KEEP", reasoning="reviewing"),
        reads(0),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, **model(name)) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run_id = await lab.start(extended_thinking=True, plan=True)
        run = await lab.ended(run_id)
        assert run.state == "success", run.stop_reason
    kept = [] if name == "claude-sonnet-5-5" else ["planning"]
    assert thought(sent(lab)[3]) == kept
    assert thought(sent(lab)[4]) == [*kept, "thought 0"] if kept else ["thought 0"]


async def test_sends_redacted_thinking_back_without_showing_it(tmp_path: Path) -> None:
    script = [reads(0, redacted="c2VjcmV0"), hand_over()]
    async with open_lab(tmp_path, script, **model("claude-sonnet-5-5")) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run_id = await lab.start(extended_thinking=True)
        await lab.ended(run_id)
        thinking = await lab.facts(run_id, ExtendedThinking)
        (done,) = await lab.facts(run_id, SubagentComplete)
    assert [block["type"] for block in sent(lab)[1]["messages"][1]["content"]][:2] == ["thinking", "redacted_thinking"]
    assert "c2VjcmV0" not in str(thinking) + str(done.result)


@pytest.mark.parametrize("asked", [True, None])
async def test_rejects_or_reports_a_model_without_known_thinking_support(tmp_path: Path, asked: bool | None) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        more = {} if asked is None else {"extended_thinking": asked}
        answer = await lab.call(
            "spawn_subagent", role="code_reviewer", task="Look.", workspace=str(lab.workspace),
            tools=["read_file"], **more,
        )  # fmt: skip
        if asked:
            assert answer.status == "failed"
            assert "extended_thinking: it is not known how to make custom:test think" in answer.message
            return
        assert 'It does not think first: the role "code_reviewer" asks its model to think first' in answer.message
        await lab.approve(answer)
        await lab.ended(answer.subagent_id)
        assert [fact.thinking for fact in await lab.facts(answer.subagent_id, CostReserved)] == [0]


async def test_places_tool_results_between_thinking_blocks(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [reads(0), reads(0), hand_over()], **model("claude-haiku-4-5")) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run_id = await lab.start(extended_thinking=True)
        await lab.ended(run_id)
        results = await lab.facts(run_id, ToolResult)
    kinds = [block["type"] for message in sent(lab)[2]["messages"] for block in message["content"]]
    assert kinds == ["text", "thinking", "tool_use", "tool_result", "thinking", "tool_use", "tool_result"]
    assert len(results) == 3


REFUSED = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["claude-sonnet-5-5", "claude-opus-4-7", "claude-haiku-4-5"])
async def test_drops_thinking_that_the_api_rejects_and_continues_the_run(tmp_path: Path, name: str) -> None:
    no = Fail(400, {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSED}})
    async with open_lab(tmp_path, [reads(0), reads(1), no, reads(0), hand_over()], **model(name)) as lab:
        for number in range(2):
            (lab.workspace / f"{number}.md").write_text("twelve cents\n")
        run_id = await lab.start(extended_thinking=True)
        run = await lab.ended(run_id)
        assert run.state == "success", run.stop_reason
        reserved = await lab.facts(run_id, CostReserved)
        settled = await lab.facts(run_id, CostUpdate)
    assert [(fact.turn, fact.attempt, fact.thinking > 0) for fact in reserved] == [
        (1, 1, True), (2, 1, True), (3, 1, True), (3, 2, False), (4, 1, False),
    ]  # fmt: skip
    assert [fact.settlement for fact in settled] == ["billed", "billed", "not_billed", "billed", "billed"]
    assert thought(sent(lab)[2]) == ["thought 0", "thought 1"]
    assert thought(sent(lab)[3]) == []
    assert thought(sent(lab)[4]) == ([] if name == "claude-haiku-4-5" else ["thought 0"]), "only what came after it"


async def test_a_second_rejection_of_thinking_ends_the_run_with_partial_output(tmp_path: Path) -> None:
    no = Fail(400, {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSED}})
    async with open_lab(tmp_path, [reads(0), no, no, hand_over()], **model("claude-sonnet-5-5")) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        result = await lab.outcome(extended_thinking=True)
    assert (result["status"], result["error"]["kind"]) == ("error", "thinking")
    assert "no longer accepts the earlier thinking of 'claude-sonnet-5-5'" in result["untrusted_result"]["error_text"]
    assert len(sent(lab)) == 3
