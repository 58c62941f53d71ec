"""Runs that another coding agent does: from the proposal to the result, by the real gateway in the real sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agents.lab import USAGE, agent_lab, agent_run
from support.model_server import Say
from support.sandboxes.attacks import needs

from ava_audit.events import AgentNote, AgentRequest, AssistantMessage, CostReserved, CostUpdate, ToolCall, ToolResult

SUBMIT: dict[str, Any] = {
    "ava": "submit_result",
    "args": {"summary": "It costs twelve cents.", "output": "twelve cents", "confidence": 0.9},
}


async def test_a_run_goes_from_the_proposal_to_the_result(tmp_path: Path) -> None:
    needs("bubblewrap")
    answers = [Say("I look.", calls=[("Bash", {"command": "cat prices.md"})], usage=USAGE), Say("Done.", usage=USAGE)]
    steps: list[dict[str, Any]] = [
        {"ask": "What does it cost?"},
        {"tool": "call-0-0", "title": "cat prices.md"},
        {"run": "cat prices.md"},
        {"ask": "", "results": {"toolu_0_0": "twelve cents"}},
        SUBMIT,
    ]
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        (lab.workspace / "prices.md").write_text("twelve cents")
        proposal = await lab.propose(**agent_run())
        assert "by acp:scripted" in proposal.approval_line
        assert "metered" in str(proposal)
        run_id = await lab.start(**agent_run())
        run = await lab.ended(run_id, 60)
        result = await lab.result(run_id)
        assert (run.state, result["untrusted_result"]["output"]) == ("success", "twelve cents"), result
        assert len(lab.server.requests) == 2
        held = await lab.facts(run_id, CostReserved)
        settled = await lab.facts(run_id, CostUpdate)
        assert [each.beside for each in held] == [True, True]
        assert [each.settlement for each in settled] == ["billed", "billed"]
        assert run.cost_micros == 2 * (900 * 3 + 50 * 15) and run.in_flight is None
        said = await lab.facts(run_id, AssistantMessage)
        assert [each.text for each in said[-2:]] == ["I look.", "Done."]
        asked = await lab.facts(run_id, AgentRequest)
        assert [each.known for each in asked] == [0, 1] and asked[0].head is not None and asked[1].head is None
        calls = [each.tool for each in await lab.facts(run_id, ToolCall)]
        assert calls == ["Bash", "submit_result"]
        results = await lab.facts(run_id, ToolResult)
        assert [each.tool for each in results] == ["Bash", "submit_result"] and results[0].output == "twelve cents"
        notes = await lab.facts(run_id, AgentNote)
        assert notes[0].kind == "session" and notes[0].text == "scripted 1.0"
