"""Runs that another coding agent does: from the proposal to the result, by the real gateway in the real sandbox."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents.lab import SUBMIT, USAGE, agent_config, agent_lab, agent_run, priced_agent, run_agent
from support.model_server import Fail, Gate, Say, run_model_server
from support.processes import processes_of_run
from support.runtime import open_lab, wait_for
from support.sandboxes.attacks import needs
from support.stdio import until

from ava_audit.events import (
    AgentNote,
    AgentRequest,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ToolCall,
    ToolResult,
)
from ava_server.agents.metering import HAND_OVER_CALLS
from ava_server.config.agents import AgentSpec


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
        assert result["tool_receipts"]["the agent's own"] == {"ok": 1, "failed": 0}, result
        notes = await lab.facts(run_id, AgentNote)
        assert notes[0].kind == "session" and notes[0].text == "scripted 1.0"


async def test_an_agent_works_in_a_data_root_with_a_long_path(tmp_path: Path) -> None:
    needs("bubblewrap")
    deep = tmp_path / ("deep" * 30)  # a socket's address has 107 bytes
    async with agent_lab(deep, [Say("Done.", usage=USAGE)], [[{"ask": "What does it cost?"}, SUBMIT]]) as lab:
        run_id = await lab.start(**agent_run())
        assert (await lab.ended(run_id, 60)).state == "success"
        assert not list(deep.glob("**/gateway")), "the socket is removed"


async def test_a_run_waits_if_its_agents_configuration_changed_since_approval(tmp_path: Path) -> None:
    needs("bubblewrap")
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "script.json").write_text(json.dumps({"prompts": [[{"ask": "What does it cost?"}, SUBMIT]]}))
    with run_model_server([Say("Twelve.", usage=USAGE)] * 2) as far:
        approved = agent_config(folder, far.base_url)
        house: dict[str, Any] = {"server": far, "env": {"AVA_FAR_API_KEY": "k"}, "check": False}
        async with open_lab(tmp_path, config=approved, runs=False, **house) as lab:
            proposal = await lab.propose(**agent_run())
            run_id = proposal.subagent_id
        other = approved.replace("script.json", "another.json")
        async with open_lab(tmp_path, config=other, **house) as lab:
            assert (await lab.approve(proposal)).status == "approved"
            waits_for = await until(lambda: lab.runtime.manager.waiting_for.get(run_id))
            assert waits_for == "the configuration of the agent scripted has changed since this was approved"
        async with open_lab(tmp_path, config=approved, **house) as lab:
            lab.runtime.manager.adopted.add(run_id)
            lab.runtime.manager.wake()
            assert (await lab.ended(run_id, 60)).state == "success"


@pytest.mark.parametrize(
    "change",
    [{"command": ("other",)}, {"wires": ()}, {"providers": "x"}, {"variables": {}}, {"files": {"a": "b"}}, {"off": ()}],
)
def test_an_agents_digest_covers_what_it_runs_and_may_use_and_nothing_else(change: dict[str, Any]) -> None:
    known = AgentSpec("a", "A", ("a",), ("messages",), 1, variables={"A": "1"}, off=("Cron",))
    assert replace(known, **change).digest != known.digest
    assert replace(known, title="B", first_bytes=2, first_tools=3, npm="b").digest == known.digest


async def test_a_hand_over_takes_few_calls(tmp_path: Path) -> None:
    """The agent goes on asking when it has been told to hand over."""
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": f"step {number}"} for number in range(9)]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [asks, [*asks * 4, SUBMIT]]) as lab:
        _run_id, result = await run_agent(lab, max_iterations=4)
        assert result["status"] == "iteration_limit"
        assert len(lab.server.requests) == 4 + HAND_OVER_CALLS


async def test_nothing_is_paid_once_the_result_is_handed_over(tmp_path: Path) -> None:
    """Claude Code asks for a title beside its work, and again at the end; this one does not obey the cancel either."""
    needs("bubblewrap")
    steps: list[dict[str, Any]] = [{"ask": "look"}, SUBMIT, {"ask": "A title, please", "aside": True}, {"burst": 5}]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [steps], ignores_cancel=True) as lab:
        run_id, result = await run_agent(lab)
        assert result["status"] == "success" and len(lab.server.requests) == 1
        assert len(await lab.facts(run_id, CostReserved)) == 1


async def test_a_call_for_another_model_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    needs("bubblewrap")
    steps: list[dict[str, Any]] = [
        {"ask": "look"},
        {"ask": "A title, please", "model": "gpt-5.6-luna", "survives": True, "aside": True},
        SUBMIT,
    ]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [steps]) as lab:
        run_id, result = await run_agent(lab)
        assert result["status"] == "success" and len(lab.server.requests) == 1
        refused = [note.text for note in await lab.facts(run_id, AgentNote) if note.kind == "refused"]
        assert len(refused) == 1 and "gpt-5.6-luna" in refused[0] and "was not approved" in refused[0]


@pytest.mark.parametrize("obeys", [True, False], ids=["obeys", "ignores"])
async def test_a_cancel_ends_the_whole_tree_within_two_seconds(tmp_path: Path, obeys: bool) -> None:
    needs("bubblewrap")
    steps: list[dict[str, Any]] = [{"ask": "look"}, {"fork": True}, {"say": "forked"}, {"hang": True}]
    async with agent_lab(tmp_path, [priced_agent()], [steps], ignores_cancel=not obeys) as lab:
        run_id = await lab.start(**agent_run())
        await lab.logged(run_id, "AssistantMessage")
        await anyio.sleep(1)
        assert processes_of_run(run_id), "it runs"
        began = anyio.current_time()
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id, 60)
        await until(lambda: not processes_of_run(run_id), 5)
        assert anyio.current_time() - began < 10, "two, and what looking takes"
        assert (await lab.run(run_id)).state == "cancelled"
    assert not (tmp_path / "data" / "scratch" / run_id).exists(), "nothing is left behind"


@pytest.mark.parametrize(
    ("steps", "options", "status", "says"),
    [
        ([{"exit": 3}], {}, "error", "it broke"),
        ([], {"version": 9}, "error", "speaks version 9"),
        ([], {"auth": True}, "error", "wants a sign-in"),
        ([{"raw": "x" * 9_000_000}], {}, "error", "a message of more than"),
        ([{"raw": "no message\n" * 300}, {"hang": True}], {}, "error", "not a message of the Agent Client Protocol"),
        ([{"say": "twelve cents"}, {"flood": 3_000}], {}, "success", "did not call submit_result"),
        ([{"raw": '{"id":2,"error":"text"}\n'}, {"hang": True}], {}, "error", "no form of the protocol"),
        ([{"raw": '{"id":2,"result":[]}\n'}, {"hang": True}], {}, "error", "no form of the protocol"),
        ([{"raw": '{"id":[2],"result":{}}\n'}, {"hang": True}], {}, "error", "no form of the protocol"),
        ([{"question": "Which currency?"}], {}, "success", "Method not found"),
        ([{"say": "twelve \ud800 cents"}], {}, "success", "did not call submit_result"),
        ([{"say": "twelve cents"}], {"http": False}, "success", "did not call submit_result"),
        ([], {}, "error", "handed nothing over"),
        ([{"say": "No."}, {"stop": "refusal"}], {}, "error", "refused the task"),
        ([{"ask": "look"}], {}, "error", "model failed"),
    ],
    ids=["exits", "version", "sign-in", "long", "junk", "floods", "error is text", "result is a list", "id is a list",
         "asks", "surrogate", "no tools", "wordless", "refuses", "no model"],
)  # fmt: skip
async def test_whatever_an_agent_does_its_run_ends_with_a_sentence(
    tmp_path: Path, steps: list[dict[str, Any]], options: dict[str, Any], status: str, says: str
) -> None:
    needs("bubblewrap")
    async with agent_lab(tmp_path, [Fail(401)], [steps, [], [], []], **options) as lab:
        run_id, result = await run_agent(lab)
        assert result["status"] == status, result
        assert says in json.dumps(result), result
        assert (await lab.run(run_id)).cost_micros == 0
        await until(lambda: not processes_of_run(run_id), 5)


async def test_the_last_message_is_the_result_where_nothing_was_handed_over(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_lab(
        tmp_path, [priced_agent()], [[{"ask": "look"}, {"say": "It costs "}, {"say": "twelve cents."}]]
    ) as lab:
        _run, result = await run_agent(lab)
        assert result["untrusted_result"]["output"] == "It costs twelve cents."
    schema = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
    good = {"ava": "submit_result", "args": {"summary": "12", "output": {"cents": 12}}}
    bad = {"ava": "submit_result", "args": {"summary": "12", "output": {"cents": "twelve"}}}
    async with agent_lab(tmp_path / "b", [], [[{"say": "twelve"}], [bad, good]]) as lab:
        _run, result = await run_agent(lab, output_schema=schema)
        assert (result["status"], result["untrusted_result"]["output"]) == ("success", {"cents": 12}), result


async def test_quotes_count_only_from_what_went_through_avas_tools(tmp_path: Path) -> None:
    needs("bubblewrap")
    finding = {"claim": "twelve", "quote": "exactly twelve cents", "source_url": "prices.md"}
    submit = {"ava": "submit_result", "args": {"summary": "12", "output": "12", "findings": [finding]}}
    answers = [priced_agent(calls=[("Bash", {"command": "cat prices.md"})]), priced_agent()]
    steps: list[dict[str, Any]] = [
        {"ask": "look"},
        {"ask": "", "results": {"toolu_0_0": "exactly twelve cents"}},
        submit,
    ]
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        _run, result = await run_agent(lab)
        assert [each["verdict"] for each in result["quotes_checked"]] == ["not_found"]


async def test_what_an_agent_does_not_tell_is_found_out(tmp_path: Path) -> None:
    needs("bubblewrap")
    answers = [priced_agent(calls=[("Bash", {"command": "ls"}), ("Bash", {"command": "id"})]), priced_agent()]
    results = {"toolu_0_0": "a", "toolu_0_1": "b"}
    usage = {"usage": {"totalTokens": 5, "inputTokens": 4, "outputTokens": 1}}
    steps: list[dict[str, Any]] = [
        {"ask": "look"},
        {"tool": "toolu_0_0"},
        {"ask": "", "results": results},
        usage,
        {"say": "done"},
    ]
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        run_id, result = await run_agent(lab)
        notes = {note.kind: note for note in await lab.facts(run_id, AgentNote)}
        assert notes["unreported"].text == "Bash" and notes["unreported"].detail["calls"] == 1
        assert notes["reported"].detail["total_tokens"] == 5
        assert (await lab.run(run_id)).tokens == 1_900, "what it tells is not what is booked"
        assert result["tokens_used"] == 1_900


async def test_a_message_reaches_the_agent_before_its_result_is_taken(tmp_path: Path) -> None:
    needs("bubblewrap")
    gate = Gate()
    first = [{"ask": "look"}, {"say": "Prices in cents."}]
    async with agent_lab(tmp_path, [Say("ok", usage=USAGE, gate=gate)], [first, [SUBMIT]]) as lab:
        run_id = await lab.start(**agent_run())
        await wait_for(gate.arrived)
        await lab.call("message_subagent", subagent_id=run_id, message="In dollars, please")
        gate.released.set()
        await lab.ended(run_id, 60)
        result = await lab.result(run_id)
        assert result["untrusted_result"]["output"] == "twelve cents", "the second prompt had the message"


async def test_an_agent_whose_model_does_not_answer_is_stopped(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": "again", "survives": True, "aside": True}] * 40
    async with agent_lab(tmp_path, lambda _request: Fail(529), [asks]) as lab:
        _run, result = await run_agent(lab, max_iterations=60)
        assert (result["status"], result["stop_reason"]) == ("error", "the agent's model failed"), result
        assert 6 <= len(lab.server.requests) <= 8
