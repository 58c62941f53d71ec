"""Prompts and completion: what a person picks in a host, and what is offered while they type; only what is theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, PromptReference, ResourceTemplateReference, TextContent
from support.model_server import Say, Step
from support.runtime import connect, open_lab

RUN = "ava://runs/{id}"
ARTIFACT = "ava://runs/{id}/artifacts/{name}"


@pytest.fixture(params=["auto", "legacy"], ids=["stateless era", "handshake era"])
async def counter(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Counter]:
    async with open_lab(tmp_path, script, everybody=True) as lab:
        given = {"role": "researcher", "task": "secret", "workspace": str(lab.workspace)}
        first = await lab.call_as("mallory", "spawn_subagent", **given)
        lines = {"pending_ids": [first.pending_id], "approving": [first.approval_line]}
        await lab.call_as("mallory", "confirm_spawn", **lines, wait_seconds=30)
        theirs = await lab.call_as("mallory", "spawn_subagent", **given)
    async with connect(tmp_path, script, mode=request.param) as (client, _server):
        made = []
        for _ in range(2):
            answer = (await client.call_tool("spawn_subagent", {**given, "task": "prices"})).structured_content
            assert answer is not None
            made.append(answer)
        approval = {"pending_ids": [made[0]["pending_id"]], "approving": [made[0]["approval_line"]], "wait_seconds": 30}
        await client.call_tool("confirm_spawn", approval)
        yield Counter(client, made[0]["subagent_id"], made[1], (first, theirs))


async def test_completes_runs_and_proposals_only_for_their_user(counter: Counter) -> None:
    waiting = counter.waiting["subagent_id"]
    assert await counter.offered(RUN, "id") == [waiting, counter.ended]
    assert await counter.offered(f"{RUN}/transcript", "id", counter.ended.lower()) == [counter.ended]
    assert await counter.offered(RUN, "id", counter.ended[2:5]) == [counter.ended]
    assert await counter.offered("ask_on", "subagent_id") == [counter.ended]
    assert await counter.offered("decide", "pending_id", "p-") == [counter.waiting["pending_id"]]
    for foreign in counter.theirs:
        assert await counter.offered(RUN, "id", foreign.subagent_id) == []
        assert await counter.offered("ask_on", "subagent_id", foreign.subagent_id) == []
        assert await counter.offered("decide", "pending_id", foreign.pending_id) == []


async def test_completes_the_files_of_a_run_only_for_its_user(counter: Counter) -> None:
    assert await counter.offered(ARTIFACT, "name", id=counter.ended) == ["prices.csv"]
    assert await counter.offered(ARTIFACT, "name", "x", id=counter.ended) == []
    for run in (counter.theirs[0].subagent_id, "S-000000", "nonsense", ""):
        assert await counter.offered(ARTIFACT, "name", id=run) == []
    assert await counter.offered(ARTIFACT, "name") == []


async def test_completes_roles_and_models_with_prefix_matches_first(counter: Counter) -> None:
    roles = await counter.offered("delegate", "role")
    assert {"web_crawler", "researcher", "coder", "code_reviewer"} <= set(roles)
    assert await counter.offered("delegate", "role", "co") == ["code_reviewer", "coder"]
    assert await counter.offered("delegate", "role", "CODER") == ["coder"]
    assert await counter.offered("delegate", "role", "crawl") == ["web_crawler"]
    models = await counter.offered("delegate", "model")
    assert models[:4] == ["fast", "balanced", "deep", "custom:test"]


async def test_completion_is_empty_if_there_is_nothing_to_offer(counter: Counter) -> None:
    assert await counter.offered("delegate", "task", "pri") == []
    assert await counter.offered("delegate", "nothing") == []
    assert await counter.offered("poem", "role") == []
    assert await counter.offered("ava://poems/{id}", "id") == []


async def test_a_prompt_contains_its_arguments_and_asks_for_missing_ones(counter: Counter) -> None:
    listed = {prompt.name: prompt for prompt in (await counter.client.list_prompts()).prompts}
    needed = {
        name: [argument.name for argument in prompt.arguments or [] if argument.required]
        for name, prompt in listed.items()
    }
    assert needed == {"delegate": ["task"], "ask_on": ["subagent_id", "question"], "decide": ["pending_id"]}
    words = await counter.words("delegate", task="compare {prices}")
    assert "compare {prices}" in words and "confirm_spawn" in words and "Role:" not in words
    words = await counter.words("delegate", task="compare", role="researcher", model="deep")
    assert "Role: researcher" in words and "Model: deep" in words
    words = await counter.words("ask_on", subagent_id=counter.ended[2:].upper(), question="And in euros?")
    assert f"context_from {counter.ended}" in words and "And in euros?" in words
    assert counter.waiting["pending_id"] in await counter.words("decide", pending_id=counter.waiting["pending_id"])


async def test_an_invalid_prompt_request_says_what_is_required(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("delegate", {}, "delegate needs a task"),
        ("delegate", {"task": " "}, "what should be handed over?"),
        ("ask_on", {"subagent_id": "S-123456"}, "ask_on needs a question"),
        ("ask_on", {"subagent_id": "the last one", "question": "x"}, "S-7f3a2b"),
        ("decide", {"pending_id": "S-123456"}, "P-1c22b09d"),
        ("poem", {"task": "x"}, "there are delegate, ask_on, decide"),
    ]
    async with connect(tmp_path) as (client, _server):
        for prompt, given, told in wrong:
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(prompt, given)
            assert refused.value.error.code == INVALID_PARAMS
            assert told in str(refused.value)


def script(request: dict[str, Any]) -> Step:
    """Save a file, then answer."""
    if request["messages"][-1]["role"] == "tool":
        return Say("All is said.")
    return Say(calls=[("save_artifact", {"name": "prices.csv", "content": "otter,12\n"})])


@dataclass
class Counter:
    """A client whose user has a run that has ended and a proposal, as another user has."""

    client: Client
    ended: str
    waiting: dict[str, Any]
    theirs: Any

    async def offered(self, reference: str, argument: str, typed: str = "", **given: str) -> list[str]:
        """What is offered for an argument of a prompt, or a place in an address."""
        address = "://" in reference
        ref = ResourceTemplateReference(uri=reference) if address else PromptReference(name=reference)
        answer = await self.client.complete(ref, {"name": argument, "value": typed}, given or None)
        assert answer.completion.total == len(answer.completion.values) or answer.completion.has_more
        return answer.completion.values

    async def words(self, prompt: str, **given: str) -> str:
        """What a prompt says."""
        [message] = (await self.client.get_prompt(prompt, given)).messages
        assert isinstance(message.content, TextContent)
        return message.content.text
