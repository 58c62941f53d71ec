"""Whatever ends a run, it brings something: one scripted run of a common shape against each cap, and a cancel.

The subagent reads two files, goes on, and meets the end that the case has for it. The last turn is answered as it
should be, or with another tool call, or there is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, ModelServer, Say, Step
from support.runtime import PRICED, Lab, open_lab, submit, wait_for

from ava_audit.events import CostReserved, CostUpdate, ToolCall, ToolResult
from ava_server.runs.record.result import LOOKED_AT

FILES = {"a.md": "Otter costs twelve cents a minute.\n", "b.md": "Descript costs twenty-four dollars a month.\n"}
FOUND = {"claim": "Otter is 12 cents", "source_url": "a.md", "quote": "Otter costs twelve cents a minute"}
USAGE = {"prompt_tokens": 3_000, "completion_tokens": 200, "total_tokens": 3_200}
COST_MICROS = 3_000 * 3 + 200 * 15
STATUS = {
    "cost": "cost_exceeded", "tokens": "token_exceeded", "turns": "iteration_limit", "tool calls": "tool_limit",
    "time": "timeout", "cancel": "cancelled",
}  # fmt: skip
CAPS: Mapping[str, Mapping[str, Any]] = {
    "cost": {"max_cost_cents": 25}, "tokens": {"max_tokens": 45_000}, "turns": {"max_iterations": 3},
    "tool calls": {"max_tool_calls": 2}, "time": {"timeout": 4}, "cancel": {},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in STATUS if what != "cancel"])
async def test_a_run_ended_by_a_cap_has_findings_its_true_cost_and_an_unchanged_prefix(
    tmp_path: Path, what: str
) -> None:
    subagent = Subagent(what, obeys=True)
    async with open_lab(tmp_path, subagent, config=PRICED) as lab:
        run_id = await ending(lab, subagent)
        result = await lab.result(run_id)
        await check_spend(lab, run_id, result)
        check_prefix(lab.server)
        assert [is_last(request) for request in subagent.sent] == [False] * (len(subagent.sent) - 1) + [True]
    assert result["status"] == STATUS[what]
    assert result["untrusted_result"]["summary"] == "Otter is cheaper."
    assert [finding["claim"] for finding in result["untrusted_result"]["findings"]] == ["Otter is 12 cents"]
    assert [quote["verdict"] for quote in result["quotes_checked"]] == ["found"]


@pytest.mark.slow
@pytest.mark.parametrize("what", STATUS)
async def test_without_a_final_answer_the_findings_are_the_sources_read(tmp_path: Path, what: str) -> None:
    subagent = Subagent(what, obeys=False)
    async with open_lab(tmp_path, subagent, config=PRICED) as lab:
        run_id = await ending(lab, subagent)
        result = await lab.result(run_id)
        await check_spend(lab, run_id, result)
        check_prefix(lab.server)
        calls, results = await lab.facts(run_id, ToolCall), await lab.facts(run_id, ToolResult)
        if what != "cancel":
            assert is_last(subagent.sent[-1])
            assert not results[-1].success and results[-1].output.startswith("Refused: ")
            assert len(results) == len(calls) + 1, "what was asked for in the last turn was not begun"
    assert result["status"] == STATUS[what]
    findings = result["untrusted_result"]["findings"]
    assert findings == [{"claim": LOOKED_AT, "source_url": name} for name in FILES]
    assert result["quotes_checked"] == []
    assert json.dumps(result["untrusted_result"]["caveats"]).count("before it handed over a result") == 1


async def test_a_run_cut_off_after_a_draft_keeps_the_valid_findings_of_the_draft(tmp_path: Path) -> None:
    gate = Gate()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/a.md").write_text(FILES["a.md"])
    draft = {"summary": "so far", "output": "words", "findings": [FOUND, {"quote": "no claim"}, "a word", 7]}
    script = [
        Say(calls=[("read_file", {"path": "a.md"})]),
        Say(calls=[("submit_result", draft)]),
        Say(calls=[], gate=gate),
    ]
    async with open_lab(tmp_path, script) as lab:
        run_id = await lab.start(output_schema={"type": "object"})
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)
        result = await lab.result(run_id)
    assert result["status"] == "cancelled"
    assert result["untrusted_result"]["findings"] == [{**FOUND, "found_in": "a.md:1"}]
    assert [quote["verdict"] for quote in result["quotes_checked"]] == ["found"], "a draft's quotes are looked up, too"
    assert "A draft that was not accepted." in result["untrusted_result"]["caveats"]


async def test_names_the_first_twenty_of_many_sources_and_counts_the_rest(tmp_path: Path) -> None:
    gate = Gate()
    (tmp_path / "workspace").mkdir()
    for number in range(23):
        (tmp_path / f"workspace/{number:02}.md").write_text(f"This is number {number}.\n")
    reads = [("read_file", {"path": f"{number:02}.md"}) for number in range(23)]
    script = [Say(calls=reads[:12]), Say(calls=[*reads[:3], *reads[12:]]), Say("x", gate=gate)]
    async with open_lab(tmp_path, script) as lab:
        run_id = await lab.start(max_tool_calls=60)
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)
        result = await lab.result(run_id)
    named = [finding["source_url"] for finding in result["untrusted_result"]["findings"]]
    assert len(named) == len(set(named)) == 20, "each once"
    assert any(
        caveat.startswith("Read: ") and caveat.endswith(".md and 3 more")
        for caveat in result["untrusted_result"]["caveats"]
    )


def is_last(request: Mapping[str, Any]) -> bool:
    """Whether a request says that its turn is the last one."""
    return "last turn" in str(request["messages"][-1]["content"])


@dataclass
class Subagent:
    """What the model does: reads both files, then takes notes for ever, or is long in answering."""

    what: str
    obeys: bool
    gate: Gate = field(default_factory=Gate)
    sent: list[Mapping[str, Any]] = field(default_factory=list)

    def __call__(self, request: dict[str, Any]) -> Step:
        self.sent.append(request)
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if is_last(request):
            handed_over = submit("12 cents", summary="Otter is cheaper.", findings=[FOUND]).calls
            calls = handed_over if self.obeys else [("read_file", {"path": "a.md", "offset": 1})]
            return Say(calls=calls, usage=USAGE)
        if turn < 2:
            return Say(calls=[("read_file", {"path": f"{'ab'[turn]}.md"})], usage=USAGE)
        waits = self.what in ("time", "cancel")
        return Say(calls=[("scratchpad", {"note": f"note {turn}"})], usage=USAGE, gate=self.gate if waits else None)


async def ending(lab: Lab, subagent: Subagent) -> str:
    """Start a run, see it to its end, and return its id."""
    for name, text in FILES.items():
        (lab.workspace / name).write_text(text)
    run_id = await lab.start(**CAPS[subagent.what])
    if subagent.what == "cancel":
        await wait_for(subagent.gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
    await lab.ended(run_id)
    return run_id


def check_prefix(server: ModelServer) -> None:
    """Each request begins, byte for byte, with the one before it, and offers the same tools."""
    for one, next_one in pairwise(server.requests):
        kept, _closing, rest = one.body.partition(b'],"tools":')
        assert next_one.body.startswith(kept), "the prefix has changed"
        tools, _more, _parameters = rest.partition(b',"max_tokens":')
        assert tools and b'],"tools":' + tools in next_one.body, "the tools have changed"


async def check_spend(lab: Lab, run_id: str, result: Mapping[str, Any]) -> None:
    """What the result says it cost is what the provider billed, and all that it can have for a call cut off."""
    reserved = {fact.turn * 100 + fact.attempt: fact for fact in await lab.facts(run_id, CostReserved)}
    settled = await lab.facts(run_id, CostUpdate)
    assert len(settled) == len(reserved) == len(lab.server.requests)
    micros = tokens = 0
    for fact in settled:
        held = reserved[fact.turn * 100 + fact.attempt]
        billed = fact.settlement == "billed"
        micros += COST_MICROS if billed else held.micros
        tokens += 3_200 if billed else held.prompt_tokens + held.max_output
    run = await lab.run(run_id)
    assert (run.cost_micros, run.tokens) == (micros, tokens)
    assert result["cost_cents"] == micros / 10_000 and result["tokens_used"] == tokens
    assert sum(result["cost_by"].values()) == pytest.approx(result["cost_cents"])
