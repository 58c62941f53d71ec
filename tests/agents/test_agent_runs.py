"""Runs that another coding agent does: from the proposal to the result, by the real gateway in the real sandbox."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents.lab import SUBMIT, USAGE, agent_config, agent_lab, agent_run, priced_agent
from support.model_server import Fail, Gate, HangUp, ModelServer, Raw, Say, Step, run_model_server
from support.models.search_formats import FORMATS
from support.processes import lives, processes_of_run
from support.redaction import body_of, leaked_pieces, private_key
from support.repositories.coding import Untouched, branches, coder_task, project
from support.repositories.projects import git, write
from support.runtime import Lab, allow_workspace, check_budgets, open_lab, wait_for
from support.sample import sample
from support.sandboxes.attacks import needs
from support.stdio import assert_intact, make_root, read_log, serve_stdio, until

from ava_audit.entries import Entry
from ava_audit.events import (
    AgentNote,
    AgentRequest,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    RunClaimed,
    RunEnded,
    ToolCall,
    ToolResult,
    UserMessage,
    WorkChecked,
)
from ava_audit.redaction import RunRedactor
from ava_server.agents.metering import HAND_OVER_CALLS
from ava_server.agents.unpaid import KEPT_BYTES, MOST_UNPAID_BYTES, UnpaidBytes
from ava_server.config.agents import AgentSpec
from ava_server.config.keys import key_variables, set_key
from ava_server.core.untrusted import SHORT_CHARS
from ava_server.models.base import MoreUsage, ToolUse
from ava_server.runs.questions import Doubt
from ava_server.runs.tool_calls import ToolCalls

SECRET = "AKIAIOSFODNN7EXAMPLE"


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
        _run_id, result = await outcome(lab, max_iterations=4)
        assert result["status"] == "iteration_limit"
        assert len(lab.server.requests) == 4 + HAND_OVER_CALLS


async def test_nothing_is_paid_once_the_result_is_handed_over(tmp_path: Path) -> None:
    """Claude Code asks for a title beside its work, and again at the end; this one does not obey the cancel either."""
    needs("bubblewrap")
    steps: list[dict[str, Any]] = [{"ask": "look"}, SUBMIT, {"ask": "A title, please", "aside": True}, {"burst": 5}]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [steps], ignores_cancel=True) as lab:
        run_id, result = await outcome(lab)
        assert result["status"] == "success" and len(lab.server.requests) == 1
        assert len(await lab.facts(run_id, CostReserved)) == 1


async def test_no_secret_of_an_answer_is_in_the_log(tmp_path: Path) -> None:
    needs("bubblewrap")
    secret = "AKIAIOSFODNN7EXAMPLE"
    answers = [Say("x", calls=[(secret, {secret: secret})], usage=USAGE), Say("y", usage=USAGE)]
    async with agent_lab(tmp_path, answers, [[{"ask": "a"}, SUBMIT]]) as lab:
        run_id, _result = await outcome(lab)
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
        run_id, _result = await outcome(lab)
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
        run_id, result = await outcome(lab)
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
        run_id, _result = await outcome(lab)
        called, answered = (await lab.facts(run_id, ToolCall))[0], (await lab.facts(run_id, ToolResult))[0]
        assert (answered.output, answered.call_id) == ("prices.md", called.call_id) and called.call_id != secret
        assert "unreported" not in [note.kind for note in await lab.facts(run_id, AgentNote)]


async def outcome(lab: Lab, within_s: float = 60, **more: Any) -> tuple[str, dict[str, Any]]:
    """Start a run of the scripted agent, and return it with its result."""
    run_id = await lab.start(**agent_run(**more))
    await lab.ended(run_id, within_s)
    return run_id, await lab.result(run_id)


async def test_at_a_cap_the_agent_hands_over_what_it_has_and_nothing_is_spent_past_it(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": f"step {number}"} for number in range(60)]
    last = [{"ask": "the last one"}, SUBMIT]
    async with agent_lab(tmp_path, lambda _request: priced_agent(output=700), [asks, last]) as lab:
        run_id, result = await outcome(lab, max_cost_cents=20)
        run = await lab.run(run_id)
        assert result["status"] == "cost_exceeded", result
        assert result["untrusted_result"]["output"] == "twelve cents"
        assert 0 < run.cost_micros <= 200_000 and run.wrap_micros == 0
        held = await lab.facts(run_id, CostReserved)
        settled = await lab.facts(run_id, CostUpdate)
        assert len(held) == len(settled) == len(lab.server.requests) > 2
        assert held[-1].last is not None and "max_cost_cents" in held[-1].last.reason
        assert any("was not sent" in note.text for note in await lab.facts(run_id, AgentNote))


async def test_turns_and_tool_calls_are_capped_by_what_passes(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": f"step {number}"} for number in range(9)]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [asks, [SUBMIT]]) as lab:
        _run, result = await outcome(lab, max_iterations=4)
        assert result["status"] == "iteration_limit" and len(lab.server.requests) == 4
    calls = [("Bash", {"command": "ls"})] * 3
    steps: list[dict[str, Any]] = [{"ask": "look"}]
    for number in range(5):
        results = {f"toolu_{number}_{each}": "nothing" for each in range(3)}
        steps.append({"ask": "", "results": results})
    async with agent_lab(tmp_path / "b", lambda _request: priced_agent(calls=calls), [steps, [SUBMIT]]) as lab:
        _run, result = await outcome(lab, max_tool_calls=7)
        assert result["status"] == "tool_limit", result
        assert len(lab.server.requests) == 3


async def test_a_call_for_another_model_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    needs("bubblewrap")
    steps: list[dict[str, Any]] = [
        {"ask": "look"},
        {"ask": "A title, please", "model": "gpt-5.6-luna", "survives": True, "aside": True},
        SUBMIT,
    ]
    async with agent_lab(tmp_path, lambda _request: priced_agent(), [steps]) as lab:
        run_id, result = await outcome(lab)
        assert result["status"] == "success" and len(lab.server.requests) == 1
        refused = [note.text for note in await lab.facts(run_id, AgentNote) if note.kind == "refused"]
        assert len(refused) == 1 and "gpt-5.6-luna" in refused[0] and "was not approved" in refused[0]


OUTSIDE = [
    {"kind": kind, "title": title, "locations": [{"path": path} for path in paths]}
    for kind, title, paths in (
        *(("fetch", f"GET https://evil.example/{number}", ()) for number in range(10)),
        *(("edit", f"Edit {path}", (path,)) for path in (
            "/etc/passwd", "/root/.ssh/authorized_keys", "/usr/bin/python3", "/home/ann/.bashrc", "../../outside.md",
            "/agentx/file", "/tmp/x/../../etc/shadow", "/proc/self/mem", "/work", "relative.md")),
        *(("delete", f"Delete {path}", (path,)) for path in ("/", "/etc", "/var/lib", "/root", "/agent/../etc")),
        *(("move", f"Move to {to}", ("/agent/a", to)) for to in ("/etc/a", "/root/b", "/usr/c", "/opt/d", "/srv/e")),
        *(("switch_mode", f"Switch to mode {number}", ()) for number in range(5)),
        *(("other", title, ()) for title in (
            "mcp__github__create_issue", "mcp__evil__submit_result", "Deploy", "CronCreate(every minute)", "sign in",
            "install", "open a browser", "enable plugins", "share the session", "buy tokens",
            "mcp__evil__submit_everything",
            "start another agent", "upload", "change settings", "approve everything")),
    )
]  # fmt: skip


async def test_permission_is_given_only_within_what_was_approved_and_only_once(tmp_path: Path) -> None:
    """Fifty requests outside of it; the options have "always" first, and ids that say nothing."""
    needs("bubblewrap")
    assert len(OUTSIDE) == 50
    steps: list[dict[str, Any]] = [
        {"permit": {**each, "toolCallId": f"t{number}"}} for number, each in enumerate(OUTSIDE)
    ]
    steps += [
        {"permit": {"kind": "execute", "title": "ls", "toolCallId": "a"}},
        {"permit": {"kind": "edit", "title": "Edit", "toolCallId": "b", "locations": [{"path": "/agent/notes.md"}]}},
        {"permit": {"kind": "other", "title": "mcp__ava__submit_result", "toolCallId": "c"}},
        {"permit": {"kind": "execute", "title": "ls", "toolCallId": "d"},
         "options": [{"optionId": "1", "name": "Always", "kind": "allow_always"}]},
    ]  # fmt: skip
    async with agent_lab(tmp_path, [], [steps]) as lab:
        run_id, result = await outcome(lab)
        said = result["untrusted_result"]["output"].splitlines()
        answers = [json.loads(line) for line in said]
        assert [each.get("optionId") for each in answers[:50]] == ["3"] * 50, "none of them is granted"
        assert [each.get("optionId") for each in answers[50:53]] == ["2"] * 3, "once, never always"
        assert answers[53] == {"outcome": "cancelled"}
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "permission"]
        assert len(notes) == 54 and sum(note.detail["allowed"] for note in notes) == 4
        assert "did not call submit_result" in str(result["untrusted_result"]["caveats"])
        [ended] = await lab.facts(run_id, RunEnded)
        assert ended.stop_reason == "the agent ended its turn, and its last message is the result"


ELSEWHERE: list[dict[str, Any]] = [
    {"kind": "edit", "rawInput": {"file_path": "/etc/passwd"}, "locations": [{"path": "/agent/a.md"}]},
    {"kind": "edit", "rawInput": {"changes": {"/etc/passwd": {"type": "update"}}}},
    {"kind": "move", "rawInput": {"from": "/agent/a.md", "destination": "/root/a.md"}},
    {"kind": "edit", "rawInput": {"edits": [{"filePath": "../../etc/passwd"}]}},
    {"kind": "edit", "rawInput": {"uri": "https://evil.example/a"}},
    {"kind": "delete", "rawInput": {"paths": ["/agent/a.md", "~/b"]}},
    {"kind": "edit", "content": [{"type": "diff", "path": "/etc/passwd", "newText": "x"}]},
    {"kind": "read", "content": [{"type": "diff", "path": "/etc/passwd", "newText": "x"}]},
    {"kind": "edit"},
    {"kind": "delete", "rawInput": {"content": "x"}},
]
WITHIN: list[dict[str, Any]] = [
    {"kind": "edit", "rawInput": {"file_path": "/agent/a.md", "content": "see /etc/passwd"}},
    {"kind": "edit", "rawInput": {"path": "notes/a.md"}},
    {"kind": "edit", "content": [{"type": "diff", "path": "/agent/a.md", "oldText": "/etc", "newText": "x"}]},
]


async def test_permission_is_judged_by_every_path_that_is_named_and_logged_with_it(tmp_path: Path) -> None:
    needs("bubblewrap")
    steps = [
        {"permit": {"title": "Edit a.md", **each, "toolCallId": f"t{number}"}}
        for number, each in enumerate([*ELSEWHERE, *WITHIN])
    ]
    async with agent_lab(tmp_path, [], [steps]) as lab:
        run_id, _result = await outcome(lab)
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "permission"]
    assert [note.detail["allowed"] for note in notes] == [False] * len(ELSEWHERE) + [True] * len(WITHIN)
    assert notes[0].text == "refused: edit Edit a.md: /agent/a.md and 1 more"
    assert notes[0].detail["paths"] == ["/agent/a.md", "/etc/passwd"]
    assert notes[-1].text == "allowed once: edit Edit a.md: /agent/a.md"


async def test_an_agent_sends_no_piece_of_a_key_of_the_workspace(tmp_path: Path) -> None:
    """Not in its first request either: what it has read is in it."""
    needs("bubblewrap")
    body = body_of()
    ask = {"ask": f"The log says: {body[5]}, and {body[9][:30]}."}
    async with agent_lab(tmp_path, [priced_agent()], [[ask, {"say": "It costs twelve cents."}]]) as lab:
        (lab.workspace / "server.key").write_text(private_key())
        await outcome(lab)
        (request,) = lab.server.requests
    assert b"[redacted:private-key]" in request.body and leaked_pieces(request.body.decode(), body) == []


async def test_arguments_that_are_too_large_are_answered_and_stay_out_of_the_log(tmp_path: Path) -> None:
    needs("bubblewrap")
    large = {"ava": "submit_result", "args": {"summary": "x", "output": "y" * 300_000}}
    async with agent_lab(tmp_path, [], [[large, {"ava": "z" * 300_000}, {"say": "It costs twelve cents."}]]) as lab:
        run_id, result = await outcome(lab)
        assert result["untrusted_result"]["output"].count("HTTP Error 413") == 2
        assert await lab.facts(run_id, ToolCall) == []


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
        run_id, result = await outcome(lab)
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
        run_id, result = await outcome(lab)
        assert result["status"] == status, result
        assert says in json.dumps(result), result
        assert (await lab.run(run_id)).cost_micros == 0
        await until(lambda: not processes_of_run(run_id), 5)


async def test_the_last_message_is_the_result_where_nothing_was_handed_over(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_lab(
        tmp_path, [priced_agent()], [[{"ask": "look"}, {"say": "It costs "}, {"say": "twelve cents."}]]
    ) as lab:
        _run, result = await outcome(lab)
        assert result["untrusted_result"]["output"] == "It costs twelve cents."
    schema = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
    good = {"ava": "submit_result", "args": {"summary": "12", "output": {"cents": 12}}}
    bad = {"ava": "submit_result", "args": {"summary": "12", "output": {"cents": "twelve"}}}
    async with agent_lab(tmp_path / "b", [], [[{"say": "twelve"}], [bad, good]]) as lab:
        _run, result = await outcome(lab, output_schema=schema)
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
        _run, result = await outcome(lab)
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
        run_id, result = await outcome(lab)
        notes = {note.kind: note for note in await lab.facts(run_id, AgentNote)}
        assert notes["unreported"].text == "Bash" and notes["unreported"].detail["calls"] == 1
        assert notes["reported"].detail["total_tokens"] == 5
        assert (await lab.run(run_id)).tokens == 1_900, "what it tells is not what is booked"
        assert result["tokens_used"] == 1_900


async def test_what_a_provider_says_of_a_failed_call_and_a_second_reading_are_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")

    class Reader:
        def more(self, _reported: Any, _own: Any) -> MoreUsage:
            return MoreUsage(0, 60)

    async def found(_url: str, _speaks: str) -> Reader:
        return Reader()

    monkeypatch.setattr("ava_server.models.http_model.usage_reader", found)
    error = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    refusal = Fail(529, {**error, "usage": {"input_tokens": 800, "output_tokens": 40}})
    steps: list[dict[str, Any]] = [{"ask": "look", "survives": True}, {"ask": "again"}, SUBMIT]
    async with agent_lab(tmp_path, [refusal, priced_agent()], [steps]) as lab:
        run_id, _result = await outcome(lab)
        settled = await lab.facts(run_id, CostUpdate)
        assert [(fact.settlement, fact.tokens) for fact in settled] == [("billed", 840), ("billed", 1_010)]
        (said,) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.notes]
        assert "60 more output tokens" in said.notes[0]


async def test_many_calls_at_once_never_pass_the_cap(tmp_path: Path) -> None:
    """Twelve at once, again and again, of a provider that lies, says nothing, fails or hangs up."""
    needs("bubblewrap")
    chance = random.Random(7)

    def answer(_request: dict[str, Any]) -> Step:
        kind = chance.randrange(8)
        if kind == 0:
            return Say("no usage", usage=None)
        if kind == 1:
            return Fail(529)
        if kind == 2:
            return HangUp()
        return priced_agent(prompt=chance.randint(50, 900), output=chance.randint(1, 400))

    bursts: list[dict[str, Any]] = [
        {"burst": 12, "aside": True, "survives": True, "max_tokens": 400, "text": f"burst {number}"}
        for number in range(12)
    ]
    async with agent_lab(tmp_path, answer, [bursts, [SUBMIT]]) as lab:
        run_id, result = await outcome(lab, max_cost_cents=40, max_iterations=100)
        run = await lab.run(run_id)
        assert result["status"] in ("cost_exceeded", "iteration_limit"), result
        settled = await lab.facts(run_id, CostUpdate)
        held = await lab.facts(run_id, CostReserved)
        assert len(settled) == len(held) and not any(each.overrun for each in settled)
        assert run.cost_micros <= 400_000 and run.in_flight is None
        assert max(each.turn for each in held) <= 100


async def test_tool_calls_at_once_never_pass_their_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("bubblewrap")
    doubts = ToolCalls._doubts

    async def later(self: ToolCalls, call: ToolUse) -> tuple[Doubt, ...]:
        await anyio.sleep(0.5)  # so that they are all at the same point before one is on the record
        return await doubts(self, call)

    monkeypatch.setattr(ToolCalls, "_doubts", later)
    notes = [[{"ava": "scratchpad", "args": {"note": f"note {number}"}}] for number in range(30)]
    async with agent_lab(
        tmp_path, lambda _request: priced_agent(), [[{"ask": "look"}, {"at_once": notes}, SUBMIT]]
    ) as lab:
        run_id, result = await outcome(lab, max_tool_calls=3)
        assert result["status"] == "success"
        made = [call for call in await lab.facts(run_id, ToolCall) if call.tool == "scratchpad"]
        assert len(made) == 3
        refused = [each for each in await lab.facts(run_id, ToolResult) if "the cap of 3 tool calls" in each.output]
        assert len(refused) == 27


async def test_web_searches_beside_model_calls_are_held_and_booked_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by a model provider is paid for too, while the agent waits for its own model."""
    needs("bubblewrap")
    for name in key_variables(os.environ):
        monkeypatch.delenv(name)
    (tmp_path / "data").mkdir(mode=0o700)
    set_key("anthropic", "sk-search-0123456789abcdef", tmp_path / "data" / "keys.toml")
    gate, form = Gate(), FORMATS["anthropic"]
    looks = [{"ava": "web_search", "args": {"query": f"podcast prices {number}"}} for number in range(2)]
    steps: list[dict[str, Any]] = [{"at_once": [[{"ask": "look"}], [{"sleep": 1}, *looks]]}, {"ask": "more"}, SUBMIT]
    with run_model_server([Fail(200, form.answer)] * 2) as searches:
        more = (
            f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{searches.base_url}"\n'
            f'[prices."anthropic:{form.model}"]\ninput = 0.1\noutput = 0.5\n'
        )
        said = replace(priced_agent(output=1_900), gate=gate)
        async with agent_lab(tmp_path, [said, priced_agent(), priced_agent()], [steps], more) as lab:
            run_id = await lab.start(**agent_run(role="web_crawler", workspace=None))
            await wait_for(gate.arrived)
            await lab.logged(run_id, "CostUpdate", 2)
            run = await lab.run(run_id)
            assert len(run.calls_in_flight) == 1, "what the agent asks for stays held beside the searches"
            gate.released.set()
            run = await lab.ended(run_id)
            settled = [entry for entry in await lab.entries(run_id) if entry.type == "CostUpdate"]
            assert len(searches.requests) == 2 and run.state == "success"
            assert len(settled) == 4 == len(await lab.facts(run_id, CostReserved))
            assert run.cost_micros == sum(entry.cost_micros or 0 for entry in settled) > 1_900 * 15
            await lab.store.read(check_budgets)


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
        run_id, result = await outcome(lab)
        assert result["status"] == "success" and "The key is" in result["untrusted_result"]["output"], result
        assert secret not in json.dumps(result) and len(lab.server.requests) == 3
        assert not any(secret.encode() in request.body for request in lab.server.requests)
        assert not any(secret in entry.fact.model_dump_json() for entry in await lab.entries(run_id) if entry.fact)


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


async def test_the_time_is_over(tmp_path: Path) -> None:
    needs("bubblewrap")
    async with agent_lab(tmp_path, [priced_agent()], [[{"ask": "look"}, {"sleep": 60}], [SUBMIT]]) as lab:
        _run, result = await outcome(lab, timeout=6)
        assert (result["status"], result["untrusted_result"]["output"]) == ("timeout", "twelve cents"), result


def adding(operator: str) -> dict[str, Any]:
    return {"write": "adding.py", "text": f"def add(a, b):\n    return a {operator} b\n"}


HANDED: dict[str, Any] = {"ava": "submit_result", "args": {"summary": "Adding adds."}}


async def test_a_coders_work_counts_by_what_passes_and_not_by_what_the_agent_says(tmp_path: Path) -> None:
    needs("bubblewrap")
    repository = project(tmp_path)
    untouched = Untouched(repository)
    outside = {"write": "README.md", "text": "mine\n"}
    prompts = [[adding("*"), outside, HANDED], [{"say": "It works now."}], [adding("+"), HANDED]]
    async with agent_lab(tmp_path, [], prompts) as lab:
        run_id = await lab.start(**agent_run(**coder_task(plan=None)))
        await lab.ended(run_id, 90)
        result = await lab.result(run_id)
        assert result["status"] == "success", result
        checks = await lab.facts(run_id, WorkChecked)
        assert [check.verify.passed for check in checks] == [False, False, True]
        assert result["changes"]["verified"] and branches(repository) == {f"ava/{run_id}": result["changes"]["head"]}
        assert [each["path"] for each in result["untrusted_result"]["changed"]["files"]] == ["adding.py"]
    untouched.check()


async def test_a_coder_that_never_passes_is_given_up(tmp_path: Path) -> None:
    needs("bubblewrap")
    project(tmp_path)
    async with agent_lab(tmp_path, [], [[adding("*"), HANDED]] * 5) as lab:
        run_id = await lab.start(**agent_run(**coder_task(plan=None)))
        await lab.ended(run_id, 90)
        result = await lab.result(run_id)
        assert (result["status"], result["stop_reason"]) == ("error", "verification failed 4 times"), result


@asynccontextmanager
async def killable(
    tmp_path: Path, steps: list[dict[str, Any]]
) -> AsyncGenerator[tuple[Path, dict[str, Any], ModelServer]]:
    """A data root whose agent can go on with its session, the arguments of a run, and the model behind it."""
    folder = tmp_path / "installed"
    folder.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    (folder / "script.json").write_text(json.dumps({"prompts": [steps], "resumes": True}))
    with run_model_server(lambda _request: priced_agent()) as far:
        config = agent_config(folder, far.base_url, 'background = false\napproval = "ask"\n')
        root = make_root(tmp_path / "data", config_toml=allow_workspace(config, tmp_path / "workspace"))
        yield root, agent_run(task="What does it cost?", workspace=str(tmp_path / "workspace")), far


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    await until(lambda: not any(map(lives, pids)), 5)


async def finished_by_another(root: Path, run_id: str) -> None:
    """Have another server finish a run that its owner has left, and leave nothing behind."""
    async with serve_stdio(root) as second:
        found = await second.tool("check_subagent", subagent_id=run_id, wait_seconds=40)
        assert found["status"] == "success", found
        await until(lambda: not processes_of_run(run_id) and not (root / "scratch" / run_id).exists(), 5)
    assert_intact(root)


async def test_an_interrupted_run_goes_on_with_the_agents_session(tmp_path: Path) -> None:
    """Its owner is killed between two calls; what was paid for is not paid for again."""
    needs("bubblewrap")
    async with killable(tmp_path, [{"ask": "look"}, {"sleep": 2}, {"ask": "go on"}, SUBMIT]) as (root, spawn, far):
        async with serve_stdio(root) as first:
            run_id = await first.start_run(**spawn)
            await until(lambda: read_log(root, "AssistantMessage", run=run_id)[1:], 20)
            await anyio.sleep(0.5)
            pids = processes_of_run(run_id)
            assert pids
            first.process.kill()
        await gone(pids)
        await finished_by_another(root, run_id)
        assert len(far.requests) == 2
    settled = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run_id)]
    assert settled == ["billed", "billed"]


KILLS = [0.15 * number for number in range(1, 21)]
"""Seconds after the approval: while it starts, opens its session, calls its model, hands over."""


@pytest.mark.parametrize("after_s", sample(KILLS, 1))
async def test_a_server_killed_anywhere_leaves_no_process_and_pays_at_most_one_call_twice(
    tmp_path: Path, after_s: float
) -> None:
    needs("bubblewrap")
    steps: list[dict[str, Any]] = []
    for number in range(5):
        steps += [{"ask": f"step {number}"}, {"sleep": 0.15}]
    async with killable(tmp_path, [*steps, SUBMIT]) as (root, spawn, far):
        async with serve_stdio(root) as first:
            run_id = await first.start_run(**spawn)
            await anyio.sleep(after_s)
            pids = processes_of_run(run_id)
            first.process.kill()
        await gone(pids)
        await finished_by_another(root, run_id)
        assert 5 <= len(far.requests) <= 6
    ways = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=run_id)]
    assert ways.count("unknown") <= 1 and len(ways) == len(read_log(root, "CostReserved", run=run_id))


async def test_an_agent_whose_model_does_not_answer_is_stopped(tmp_path: Path) -> None:
    needs("bubblewrap")
    asks: list[dict[str, Any]] = [{"ask": "again", "survives": True, "aside": True}] * 40
    async with agent_lab(tmp_path, lambda _request: Fail(529), [asks]) as lab:
        _run, result = await outcome(lab, max_iterations=60)
        assert (result["status"], result["stop_reason"]) == ("error", "the agent's model failed"), result
        assert 6 <= len(lab.server.requests) <= 8


@pytest.mark.requirement("N-35")
async def test_an_agent_that_reviews_does_not_see_how_the_change_wants_to_be_reviewed(tmp_path: Path) -> None:
    """It would read these files by itself: so they are not in its copy, and it is told those of the default branch."""
    needs("bubblewrap")
    answers = [Say("I look.", usage=USAGE)]
    steps: list[dict[str, Any]] = [
        {"ask": "How does it look?"},
        {
            "run": "cat AGENTS.md CLAUDE.md CONTEXT.md sub/* .claude/settings.json .github/instructions/*;"
            " cat node_modules/x/CLAUDE.md node_modules/y.js; ls -A"
        },
    ]
    checkout = project(tmp_path)
    write(checkout, {"AGENTS.md": "OURS\n"})
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "rules")
    git(checkout, "branch", "-M", "main")
    git(checkout, "switch", "-qc", "change")
    write(checkout, {"AGENTS.md": "EVIL\n", "CLAUDE.md": "EVIL\n", ".claude/settings.json": "EVIL\n"})
    write(checkout, {"CONTEXT.md": "EVIL\n", "sub/CONTEXT.md": "EVIL\n", "sub/AGENTS.local.md": "EVIL\n"})
    write(checkout, {".github/instructions/x.instructions.md": "EVIL\n", "node_modules/x/CLAUDE.md": "EVIL\n"})
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "evil")
    write(checkout, {"node_modules/y.js": "a package"})
    async with agent_lab(tmp_path, answers, [steps]) as lab:
        run_id = await lab.start(**{**agent_run(), "role": "code_reviewer"})
        run = await lab.ended(run_id, 60)
        said = (await lab.result(run_id))["untrusted_result"]["output"]
        assert run.state == "success" and "adding.py" in said and "EVIL" not in said and "a package" in said
        sent = "\n".join(json.dumps(request.json) for request in lab.server.requests)
        told = json.dumps([fact.model_dump(mode="json") for fact in await lab.facts(run_id, UserMessage)])
        assert "OURS" in told and "EVIL" not in told and "EVIL" not in sent
