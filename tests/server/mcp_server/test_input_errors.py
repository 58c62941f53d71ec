"""Every kind of bad input has a sentence of its own: what was wrong, what was given, and one next step.

Over a real MCP client in memory and a real HTTP model server. Lines on the wire that are no message are tested with the
stdio transport.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult
from support.model_server import EVENTS, JSON, Fail, HangUp, Raw, Say, Step, events, whole_answer
from support.runtime import PRICED, connect, text

SECRET = "sk-or-" + "v1" + "0" * 30  # the form of a key, and nobody's


@pytest.fixture
async def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncGenerator[Bench]:
    async with connect(tmp_path, script, config=CONFIG) as (client, _server):
        yield Bench(client, tmp_path / "workspace", caplog.records)
        assert not [record for record in caplog.records if record.exc_info], "a traceback went to stderr"


@pytest.mark.slow
async def test_each_bad_argument_error_names_field_value_and_next_step(bench: Bench) -> None:
    sentences: dict[str, str] = {}
    for case in CASES:
        answer = await bench.call(case.tool, case.given)
        said = text(answer)
        assert answer.is_error, f"{case.name}: {said}"
        assert said.startswith("Failed: "), f"{case.name}: the text of a failure says that it failed"
        assert answer.structured_content is not None and answer.structured_content["status"] == "failed"
        assert f"Failed: {answer.structured_content['message']}" == said, case.name
        for part in case.says:
            assert part in said, f"{case.name}: {part!r} is not in {said!r}"
        assert SECRET not in said, case.name
        assert "Traceback" not in said and "Error executing" not in said
        assert said not in sentences.values(), f"{case.name} says what another case says: {said}"
        sentences[case.name] = said
        assert not (await bench.call("check_subagent", {})).is_error, f"after {case.name}"
        reason = said.removeprefix("Failed: ")[:40]
        await bench.logged(f"{case.tool} (failed) Failed: {reason}", types=["ToolResult"], last_n=60)
    assert SECRET not in await bench.log(last_n=500, search="api_key")


async def test_an_unknown_tool_is_a_protocol_error(bench: Bench) -> None:
    with pytest.raises(
        MCPError, match="there is no tool 'spawn_agent'; the tools are spawn_subagent, confirm_spawn"
    ) as error:
        await bench.call("spawn_agent", {})
    assert error.value.error.code == INVALID_PARAMS
    with pytest.raises(MCPError) as error:
        await bench.call(SECRET, {})
    assert SECRET not in str(error.value)


# -- approvals ------------------------------------------------------------------------------------------------------


async def proposed(bench: Bench, **more: Any) -> dict[str, Any]:
    answer = await bench.call("spawn_subagent", spawn(workspace=str(bench.workspace), **more))
    assert answer.structured_content is not None and not answer.is_error, text(answer)
    return dict(answer.structured_content)


async def refused(bench: Bench, given: dict[str, Any], says: str = "Nothing was started") -> tuple[str, CallToolResult]:
    """Confirm what cannot be; return the reason and the answer, which `says` that nothing was started."""
    answer = await bench.call("confirm_spawn", given)
    assert answer.structured_content is not None
    assert answer.structured_content["status"] == "refused"
    [decision] = answer.structured_content["decisions"]
    why = str(decision["refused_because"])
    assert why in text(answer) and says in text(answer)
    return why, answer


async def test_an_impossible_approval_names_what_is_wrong_and_starts_nothing(bench: Bench) -> None:
    made = await proposed(bench)
    pending, line = made["pending_id"], made["approval_line"]
    wrong, answer = await refused(bench, {"pending_ids": [pending], "approving": [line + "!"]})
    assert "letter for letter" in wrong
    assert answer.structured_content is not None and answer.structured_content["approval_lines"] == [line]
    assert line in text(answer)
    missing, _ = await refused(bench, {"pending_ids": [pending]})
    assert "left out" in missing
    unknown, _ = await refused(bench, {"pending_ids": ["P-00000000"], "approving": [line]})
    assert "P-00000000" in unknown and "check_subagent" in unknown
    approved = await bench.call("confirm_spawn", {"pending_ids": [pending], "approving": [line], "wait_seconds": 20})
    assert not approved.is_error
    approving = {"pending_ids": [pending], "approving": [line]}
    again, _ = await refused(bench, approving, says="Nothing new was started: researcher S-")
    assert pending in again and "approved already" in again and "check_subagent" in again
    assert len({wrong, missing, unknown, again}) == 4
    other = await proposed(bench, task="another")
    raised = {"pending_ids": [other["pending_id"]], "approving": [other["approval_line"]]}
    for cap in ("max_cost_cents", "timeout"):
        named, _ = await refused(bench, {**raised, "changes": {other["pending_id"]: {"caps": {cap: 10**6}}}})
        assert named.startswith(f"changes: {cap} would be raised")
    assert "refused" in await bench.log(search="letter")


# -- the model's endpoint -------------------------------------------------------------------------------------------

NO_CHOICES = json.dumps({"object": "list", "data": []}).encode()
EURO = events(Say("costs € 12"))
IN_CHARACTER = b"".join(EURO)[: b"".join(EURO).index("€".encode()) + 1]
NAN = b'{"choices": [{"message": {"role": "assistant", "content": "n", "tool_calls": NaN}, "finish_reason": "stop"}]}'
MADE_UP = {"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 1}
SURROGATE = json.dumps(whole_answer(Say("half \ud800 pair"))).encode()

FAULTS: dict[str, tuple[Step, str, tuple[str, ...]]] = {
    "401": (Fail(401, {"error": {"message": f"bad key {SECRET}"}}), "auth", ("HTTP 401", "correct AVA_MODEL_API_KEY")),
    "429 for a week": (Fail(429, retry_after="604800"), "rate_limit", ("HTTP 429", "for 7 d, until 20", "Wait")),
    "429 without": (Fail(429), "rate_limit", ("HTTP 429", "does not say until when", "Wait a minute")),
    "500": (Fail(500), "overloaded", ("HTTP 500", "scripted failure", "Try again later")),
    "half a body": (Raw([b'{"choices": [{"mess'], JSON), "dropped", ("half a body", "bytes", "Try again")),
    "body cut short": (Raw([b'{"choices": ['], JSON, missing=50), "dropped", ("broke off", "13 bytes", "Try again")),
    "HTML": (Raw([b"<!DOCTYPE html><p>Sign in"], "text/html"), "bad_answer", ("web page", "Sign in", "base URL")),
    "no JSON": (Raw([b"hello there"], "text/plain"), "bad_answer", ("not JSON", "hello there", "base URL")),
    "no choices": (Raw([NO_CHOICES], JSON), "bad_answer", ("without `choices`", "object, data", "chat completions")),
    "inside a character": (
        Raw([IN_CHARACTER], chunked=True, cut=True), "dropped", ("in the middle of a UTF-8 character", "Try again")),
    "no finish reason": (Raw(events(Say("a few words"))[:3], EVENTS), "dropped", ("finish reason", "Try again")),
    "hangs up": (HangUp(), "connection", ("hung up", "endpoint's own log")),
}  # fmt: skip

STRANGE: dict[str, tuple[Step, str]] = {
    "NaN": (Raw([NAN], JSON), "success"),
    "a lone surrogate": (Raw([SURROGATE], JSON), "success"),
    "10^30 tokens": (Say("plain words", usage=MADE_UP), "success"),
    "malformed arguments": (Say(calls=[("read_file", '{"path": ')]), "success"),
}


def script(request: dict[str, Any]) -> Step:
    """Answer as the task's name says; after a tool call with a plain answer."""
    task = str(request["messages"][1]["content"]).removeprefix("case: ")
    if request["messages"][-1]["role"] == "tool":
        return Say("done after all")
    if task in FAULTS:
        return FAULTS[task][0]
    return STRANGE[task][0] if task in STRANGE else Say("plain words")


async def finished(bench: Bench, **more: Any) -> tuple[dict[str, Any], CallToolResult]:
    """Run a subagent to its end; return it as `check_subagent` shows it."""
    made = await proposed(bench, timeout=2, max_cost_cents=100, **more)
    approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]], "wait_seconds": 30}
    confirmed = await bench.call("confirm_spawn", approval)
    assert not confirmed.is_error, text(confirmed)
    answer = await bench.call("check_subagent", {"subagent_id": made["subagent_id"], "wait_seconds": 30})
    assert answer.structured_content is not None
    [run] = answer.structured_content["runs"]
    return run, answer


@pytest.mark.slow
async def test_each_endpoint_error_has_a_sentence_with_endpoint_value_and_next_step(bench: Bench) -> None:
    ended: dict[str, tuple[dict[str, Any], CallToolResult]] = {}

    async def run(name: str, **more: Any) -> None:
        ended[name] = await finished(bench, task=f"case: {name}", **more)

    async with anyio.create_task_group() as tasks:
        for name in FAULTS:
            tasks.start_soon(run, name)
        tasks.start_soon(lambda: run("down", model="down:test"))
    wanted = {name: (kind, says) for name, (_step, kind, says) in FAULTS.items()}
    wanted["down"] = ("connection", ("No connection to 127.0.0.1:1", "Check that the endpoint runs"))
    sentences: dict[str, str] = {}
    for name, (run_answer, answer) in ended.items():
        kind, says = wanted[name]
        assert run_answer["state"] == "error", (name, run_answer)
        assert run_answer["error"]["kind"] == kind, name
        said = f"{run_answer['untrusted_result']['error_text']} {run_answer['error']['what_to_do']}"
        for part in ("127.0.0.1:", *says):
            assert part in said, f"{name}: {part!r} is not in {said!r}"
        assert SECRET not in said and SECRET not in text(answer), name
        for part in (run_answer["error"]["what_to_do"], run_answer["untrusted_result"]["error_text"]):
            assert part in text(answer), f"{name}: the text form says less"
        plain = " ".join(word for word in said.split() if not word.startswith("127.0.0.1:"))
        assert plain not in sentences.values(), f"{name} says what another says: {said}"
        sentences[name] = plain
        logged = await bench.log(subagent_id=run_answer["subagent_id"], types=["ErrorOccurred"])
        assert f"{kind}: " in logged, f"{name} is not in the log"
    assert not (await bench.call("check_subagent", {})).is_error


@pytest.mark.slow
async def test_notes_odd_figures_and_characters_and_the_run_continues(bench: Bench) -> None:
    for name, (_step, state) in STRANGE.items():
        run, answer = await finished(bench, task=f"case: {name}")
        assert run["state"] == state, (name, text(answer))
        json.dumps(answer.structured_content, allow_nan=False).encode("utf-8")
        text(answer).encode("utf-8")
        if name == "10^30 tokens":
            assert run["tokens"] < 100_000 and run["uncosted"] is True, "a figure that cannot be is not booked"
        logged = await bench.log(subagent_id=run["subagent_id"], types=["AssistantMessage"])
        assert "AssistantMessage" in logged
        assert not (await bench.call("check_subagent", {})).is_error


CONFIG = (
    """
[limits]
spawns_per_hour = 1000
running_per_user = 50
running = 50

[providers.down]
base_url = "http://127.0.0.1:1/v1"
"""
    + PRICED
)


def spawn(**more: Any) -> dict[str, Any]:
    return {"role": "researcher", "task": "What does it cost?", **more}


@dataclass(frozen=True)
class Case:
    """A call that cannot be served, and what its sentence must have: the field, the value given, the next step."""

    name: str
    tool: str
    given: dict[str, Any]
    says: tuple[str, ...]


CASES = [
    Case("unknown role", "spawn_subagent", spawn(role="pirate"), ("role", "pirate", "researcher")),
    Case("empty task", "spawn_subagent", spawn(task=""), ("task", "empty", "say what")),
    Case("blank task", "spawn_subagent", spawn(task=" \n "), ("task", "white space", "say what")),
    Case("missing task", "spawn_subagent", {"role": "researcher"}, ("task", "missing", "give it")),
    Case("task of the wrong kind", "spawn_subagent", spawn(task=7), ("task", "7", "text")),
    Case("half a character", "spawn_subagent", spawn(task="a\ud800b"), ("task", "ud800", "give text")),
    Case("negative cost", "spawn_subagent", spawn(max_cost_cents=-5), ("max_cost_cents", "-5", "above 0")),
    Case("zero cost", "spawn_subagent", spawn(max_cost_cents=0), ("max_cost_cents", "0", "leave it out")),
    Case("negative time", "spawn_subagent", spawn(timeout=-1), ("timeout", "-1", "above 0")),
    Case("zero tokens", "spawn_subagent", spawn(max_tokens=0), ("max_tokens", "0", "leave it out")),
    Case("fraction of a turn", "spawn_subagent", spawn(max_iterations=1.5), ("max_iterations", "1.5", "whole number")),
    Case("unknown argument", "spawn_subagent", spawn(budget=9), ("budget", "9", "spawn_subagent takes")),
    Case("argument misspelled", "spawn_subagent", spawn(max_cost_cent=9), ("max_cost_cent", "9", "max_cost_cents?")),
    Case("confirmed", "spawn_subagent", spawn(confirmed=True), ("confirmed", "confirm_spawn")),
    Case("key in an unknown argument", "spawn_subagent", spawn(api_key=SECRET), ("api_key", "ava secret set")),
    Case("key in the task", "spawn_subagent", spawn(task=f"use {SECRET}"), ("task: ", "key", "ava secret set NAME")),
    Case("unknown tool of the role", "spawn_subagent", spawn(tools=["rm"]), ("tools", "rm", "read_file")),
    Case("unknown model", "spawn_subagent", spawn(model="down:"), ("model", "down:", "write")),
    Case("workspace outside", "spawn_subagent", spawn(workspace="/"), ("workspace", "/", "give a folder")),
    Case("malformed id", "confirm_spawn", {"pending_ids": ["P-xyz"], "approving": ["x"]}, ("P-xyz", "looks like P-")),
    Case("no ids", "confirm_spawn", {"pending_ids": [], "approving": []}, ("pending_ids", "empty list")),
    Case("too long a wait", "check_subagent", {"subagent_id": "S-0", "wait_seconds": 900}, ("wait_seconds", "240")),
    Case("wait for nothing", "check_subagent", {"wait_seconds": 5}, ("wait_seconds", "subagent_id")),
    Case("unknown run", "check_subagent", {"subagent_id": "S-000000"}, ("subagent_id", "S-000000", "check_subagent")),
    Case("unknown group", "check_subagent", {"group_id": "G-0000000"}, ("group_id", "G-0000000", "confirm_spawn")),
    Case("wrong cursor", "read_ava_logs", {"cursor": "last"}, ("cursor", "last", "last answer")),
    Case("unknown type", "read_ava_logs", {"types": ["gossip"]}, ("types", "gossip", "error")),
    Case("unknown time", "read_ava_logs", {"since": "eventually"}, ("since", "eventually")),
    Case("an end before the start", "read_ava_logs", {"since": "1h", "until": "2h"}, ("until", "2h", "since", "1h")),
    Case("too many entries", "read_ava_logs", {"last_n": 501}, ("last_n", "501", "500")),
    Case("empty message", "message_subagent", {"subagent_id": "S-0", "message": ""}, ("message", "empty", "say")),
    Case("blank message", "message_subagent", {"subagent_id": "S-0", "message": " \n\u200b"},
         ("message", "blank", "say")),
    Case("no tools at all", "spawn_subagent", spawn(role="code_reviewer", tools=[]),
         ("tools", "empty list", "leave tools out")),
    Case("no entries", "read_ava_logs", {"last_n": 0}, ("last_n", "0", "the default of 50")),
    Case("changes of what", "confirm_spawn", {"pending_ids": ["P-00000000"], "changes": {"blocked_tools": ["x"]}},
         ("changes.blocked_tools", "'[\"x\"]'", "the pending_id as key", '{"P-…": {"caps"')),
    Case("caps of what", "confirm_spawn", {"pending_ids": ["P-00000000"], "changes": {"caps": {"timeout": 9}}},
         ("changes.caps", "9", "the pending_id as key", '{"P-…": {"caps"')),
    Case("changes as a list", "confirm_spawn", {"pending_ids": ["P-00000000"], "changes": []},
         ("changes:", "[]", "the pending_id as key", '{"P-…": {"caps"')),
    Case("zero in changes", "confirm_spawn",
         {"pending_ids": ["P-00000000"], "changes": {"P-00000000": {"caps": {"max_cost_cents": 0}}}},
         ("max_cost_cents", "0", "leave it out for the limit of the proposal")),
    Case("schema of the wrong kind", "spawn_subagent", spawn(output_schema="yes"),
         ("output_schema", "yes", "an object")),
    Case("nothing to cancel", "cancel_subagent", {}, ("subagent_id", "group_id", "pending_id")),
    Case("cancel what is not", "cancel_subagent", {"pending_id": "P-00000000"}, ("P-00000000", "check_subagent")),
]  # fmt: skip
"""An id that is another user's is answered like one that there is not, but for the id: so nobody can try out which ids
there are (tests/server/approval/test_decisions.py)."""


@dataclass
class Bench:
    client: Client
    workspace: Path
    records: list[logging.LogRecord]

    async def call(self, tool: str, given: dict[str, Any]) -> CallToolResult:
        return await self.client.call_tool(tool, given)

    async def log(self, **given: Any) -> str:
        return text(await self.client.call_tool("read_ava_logs", given))

    async def logged(self, words: str, **given: Any) -> None:
        """Wait until the log has these words: reading calls are logged without waiting for the commit."""
        with anyio.fail_after(20):
            while words not in await self.log(**given):  # noqa: ASYNC110 - it is read as a host reads it
                await anyio.sleep(0.02)  # a look is an entry too, and shall not push out what it looks for
