"""The gateway: what an agent sends is checked, forwarded once it is admitted, and settled once, whatever happens."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from support.agents.gateway import (
    KEY,
    PLANTED,
    SECRET,
    WIRES,
    agent_request,
    called_and_answered_body,
    forwarded_request,
    open_gateway,
    path_of_request,
    raw_request,
)
from support.model_server import EVENTS, Fail, Gate, HangUp, Raw, Say, events, run_model_server
from support.stdio import until

from ava_audit.errors import StaleOwner
from ava_audit.events import Usage
from ava_audit.redaction import Redactor
from ava_server.agents import gateway as gateways
from ava_server.agents.bodies import Bodies
from ava_server.agents.forms import FORMS
from ava_server.agents.gateway import BODY_BYTES, MOST_CALLS
from ava_server.agents.metering import CountedBounds, ShownResult, call_answered, results_in
from ava_server.agents.seam import AgentCall, CallRefused
from ava_server.models.base import Completion
from ava_server.models.clients import ClientPool
from ava_server.models.factory import model_of, parameters
from ava_server.models.http_model import HttpModel
from ava_server.models.json_text import encode
from ava_server.models.prices import Price
from ava_server.models.providers import PROVIDERS
from ava_server.models.selection import Choice
from ava_server.web import http_connection


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_comes_back_as_the_provider_gave_it(tmp_path: Path, wire: str, stream: bool) -> None:
    async with open_gateway(tmp_path, [Say("Done.", calls=[("Read", {"path": "a"})])], wire) as at:
        answer = await at.ask(agent_request(wire, stream=stream))
        assert answer.status_code == 200
        sent = at.far.requests[0]
        async with httpx2.AsyncClient(timeout=20) as direct:
            far = sent.json
            with run_model_server([Say("Done.", calls=[("Read", {"path": "a"})])]) as again:
                plain = await direct.post(f"{again.base_url}{sent.path.removeprefix('/v1')}", json=far)
        assert answer.content == plain.content
        assert at.settled() == ["billed"]
        completion: Completion = at.meter.settled[0][2]
        assert (completion.text, [call.name for call in completion.calls]) == ("Done.", ["Read"])
        if wire == "google":
            assert sent.path.startswith("/v1/models/far-sonnet:stream" if stream else "/v1/models/far-sonnet:generate")
            assert far["generationConfig"] == {"maxOutputTokens": 500} and not {"model", "stream"} & far.keys()
        else:
            assert far["model"] == "far-sonnet"
            limit = {"responses": "max_output_tokens"}.get(wire, "max_tokens")
            assert far[limit] == 500
        assert SECRET not in str(sent.headers) and KEY in str(sent.headers)


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY}, {"x-goog-api-key": KEY}, {"authorization": SECRET}],
)
async def test_nobody_without_the_secret_is_answered(tmp_path: Path, headers: dict[str, str]) -> None:
    async with open_gateway(tmp_path, [Say("no")]) as at:
        at.http.headers.pop("authorization")
        for path in ("/v1/messages", "/v1/models", "/mcp", "/"):
            answer = await at.http.post(path, json=agent_request("messages"), headers=headers)
            assert answer.status_code == 401, path
        assert at.far.requests == [] and at.meter.admitted == []


@pytest.mark.parametrize("wire", WIRES)
async def test_what_does_not_fit_is_refused_in_the_providers_form_and_not_sent(tmp_path: Path, wire: str) -> None:
    async with open_gateway(tmp_path, [Say("no")], wire) as at:
        for reason, status in (("cap", 400), ("model", 404), ("form", 400), ("over", 403)):
            at.meter.refuses = CallRefused(reason, "the run's max_cost_cents was reached")  # type: ignore[arg-type]
            answer = await at.ask(agent_request(wire))
            assert answer.status_code == status
            assert answer.json()["error"]["message"] == "the run's max_cost_cents was reached"
            assert answer.headers["x-should-retry"] == "false"
        assert at.far.requests == [] and at.meter.settled == []


@pytest.mark.parametrize("wire", WIRES)
async def test_an_agent_is_asked_to_repeat_what_waited_in_vain_for_money_of_others(tmp_path: Path, wire: str) -> None:
    async with open_gateway(tmp_path, [Say("no")], wire) as at:
        at.meter.refuses = CallRefused("busy", "this run waits for $0.12 that 2 other runs hold")
        answer = await at.ask(agent_request(wire))
        assert answer.status_code == 429 and answer.headers["x-should-retry"] == "true"
        assert int(answer.headers["retry-after"]) >= 1
        assert "that 2 other runs hold" in answer.json()["error"]["message"]
        assert at.far.requests == [] and at.meter.settled == []


@pytest.mark.parametrize(
    ("wire", "more", "said"),
    [
        ("messages", {"model": "gpt-5.6-luna"}, "was not approved"),
        ("messages", {"mcp_servers": [{"url": "https://evil.example"}]}, "mcp_servers"),
        ("messages", {"container": "c-1"}, "container"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]},
         "container_upload"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"conversation": "conv_1"}, "conversation"),
        ("responses", {"prompt": {"id": "p"}}, "prompt"),
        ("responses", {"background": True}, "background"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ("chat_completions", {"n": 2}, "n must be 1"),
        ("chat_completions", {"web_search_options": {"x": 1}}, "web_search_options"),
        ("google", {"model": "gemini-2.5-pro"}, "was not approved"),
        ("google", {"cachedContent": "cachedContents/1"}, "cachedContent"),
        ("google", {"cached_content": "cachedContents/1"}, "cachedContent"),
        ("google", {"generationConfig": {"candidateCount": 2}}, "candidateCount must be 1"),
        ("google", {"generation_config": {"candidate_count": 2}}, "candidateCount must be 1"),
    ],
)  # fmt: skip
async def test_what_ava_does_not_see_or_has_not_approved_is_not_sent(
    tmp_path: Path, wire: str, more: dict[str, Any], said: str
) -> None:
    async with open_gateway(tmp_path, [Say("no")], wire) as at:
        answer = await at.ask(agent_request(wire, **more))
        assert answer.status_code in (400, 404) and said in answer.json()["error"]["message"]
        assert at.far.requests == [] and at.meter.admitted == [] and said in at.meter.refused[0]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"model":"sonnet","a":' + b"[" * 5_000])
async def test_a_body_that_is_no_request_is_refused(tmp_path: Path, content: bytes) -> None:
    async with open_gateway(tmp_path, [Say("no")]) as at:
        answer = await at.http.post("/v1/messages", content=content)
        assert answer.status_code == 400 and at.far.requests == []


async def test_what_changes_the_price_or_runs_elsewhere_is_taken_out(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("ok")] * 3, off=frozenset({"Agent", "CronCreate"})) as at:
        tools: list[dict[str, Any]] = [
            {"name": "Read", "input_schema": {}}, {"name": "Agent", "input_schema": {}},
            {"name": "CronCreate", "input_schema": {}}, {"type": "web_search_20260209", "name": "web_search"},
            {"type": "code_execution_20250825", "name": "code_execution"},
        ]  # fmt: skip
        body = agent_request(
            "messages", tools=tools, service_tier="priority", speed="fast", inference_geo="us",
            metadata={"user_id": "ann"}, tool_choice={"type": "tool", "name": "Agent"}, system=[
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            thinking={"type": "enabled", "budget_tokens": 8_000},
        )  # fmt: skip
        await at.ask(body, **{"anthropic-beta": "context-1m-2025-08-07, claude-code-20250219,fast-mode-2026-01-01"})
        far = at.far.requests[0]
        assert [tool["name"] for tool in far.json["tools"]] == ["Read"]
        assert far.json.keys() == {"model", "max_tokens", "system", "tools", "messages"}
        assert far.json["system"][0]["cache_control"] == {"type": "ephemeral"}
        assert far.headers["anthropic-beta"] == "claude-code-20250219"
        dropped = at.meter.admitted[0].dropped
        assert {"tool Agent", "tool web_search", "service_tier", "speed", "metadata", "tool_choice"} <= {*dropped}
    async with open_gateway(tmp_path, [Say("ok")], "responses") as at:
        hosted = [
            {"type": kind} for kind in ("web_search", "file_search", "computer", "code_interpreter", "mcp", "shell")
        ]
        body = agent_request(
            "responses", service_tier="priority", store=True, include=["reasoning.encrypted_content", "file"]
        )
        body["tools"] += hosted
        function: dict[str, Any] = {"type": "function", "name": "submit", "parameters": {}}
        body["tools"].append({"type": "namespace", "name": "mcp__ava", "tools": [function, *hosted]})
        await at.ask(body)
        far = at.far.requests[0]
        assert [tool["type"] for tool in far.json["tools"]] == ["function", "namespace"]
        assert [tool["type"] for tool in far.json["tools"][1]["tools"]] == ["function"]
        assert (far.json["store"], far.json["include"]) == (False, ["reasoning.encrypted_content"])
        assert "service_tier" not in far.json
    async with open_gateway(tmp_path, [Say("ok")], "chat_completions") as at:
        await at.ask(agent_request("chat_completions", stream=True))
        assert at.far.requests[0].json["stream_options"] == {"include_usage": True}


SOLD = {name: known for name, known in PROVIDERS.items() if known.models}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", SOLD)
async def test_each_provider_gets_what_its_row_says_it_accepts(tmp_path: Path, name: str, stream: bool) -> None:
    """Whatever the agent itself would have sent: it was made for another endpoint."""
    known = SOLD[name]
    price = Price(1_000, 2_000, 1_000, 1_000)
    choice = Choice(name, "far-sonnet", f"{name}:far-sonnet", "fast", known.wire, price, known.base_url)
    model = model_of(choice.name, parameters(choice), KEY, ClientPool())
    assert isinstance(model, HttpModel)
    async with open_gateway(tmp_path, [Say("ok")], known.wire, endpoint=model.wire) as at:
        at.far.checks = False
        asked = agent_request(known.wire, stream=stream, stream_options={"include_usage": True, "x": 1})
        assert (await at.ask({**asked, **called_and_answered_body(known.wire)})).status_code == 200
        sent = at.far.requests[0].json
    assert at.meter.ways == ["billed"] and at.meter.settled[0][2].usage is not None
    asks_usage = known.wire == "chat_completions" and stream and not known.tells_usage
    assert sent.get("stream_options") == ({"include_usage": True} if asks_usage else None)
    if known.wire == "chat_completions":
        limits = {"max_tokens", "max_completion_tokens"} & sent.keys()
        assert limits == {"max_completion_tokens" if known.long_limit else "max_tokens"}
        assert ("provider" in sent) == (name == "openrouter"), "what limits the price there"
    if known.wire == "google":
        call, result = (content["parts"][0] for content in sent["contents"][1:])
        assert call["functionCall"].get("id") == result["functionResponse"].get("id")
        assert ("id" in call["functionCall"]) == known.takes_call_ids
        assert call["functionCall"]["args"] == result["functionResponse"]["response"] == {"id": "7"}
        assert call["thoughtSignature"] == "c2Vh"
    else:
        assert json.dumps(sent).count('"c1"') == 2


async def test_tools_that_google_runs_are_taken_out(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("ok")], "google", off=frozenset({"google_web_search"})) as at:
        allowed = {"mode": "ANY", "allowedFunctionNames": ["google_web_search", "Read"]}
        body = agent_request("google", serviceTier="priority", toolConfig={"functionCallingConfig": allowed})
        body["tools"][0]["function_declarations"] = [{"name": "google_web_search", "description": "x"}]
        body["tools"] += [{kind: {}} for kind in ("googleSearch", "url_context", "codeExecution", "fileSearch")]
        await at.ask(body)
        sent = at.far.requests[0].json
        assert [[each["name"] for each in tool["functionDeclarations"]] for tool in sent["tools"]] == [["Read"]]
        assert sent["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": ["Read"]}
        assert "serviceTier" not in sent
        taken = {*at.meter.admitted[0].dropped}
        assert {"serviceTier", "tool google_web_search", "tool googleSearch", "tool urlContext"} <= taken
        assert {"tool codeExecution", "tool fileSearch"} <= taken


@pytest.mark.parametrize("wire", WIRES)
async def test_planted_secrets_do_not_leave(tmp_path: Path, wire: str) -> None:
    """In each text of a request: instructions, tools, messages, arguments and results of tools, keys of objects."""
    secret = f"key {PLANTED} and hunter2-hunter2"
    async with open_gateway(tmp_path, [Say("ok")], wire) as at:
        body = agent_request(wire, secret)
        match wire:
            case "messages":
                body["system"] = [{"type": "text", "text": secret}]
                body["tools"][0]["description"] = secret
                body["messages"] += [
                    {"role": "assistant", "content": [
                        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": secret, PLANTED: 1}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": secret}]},
                        {"type": "text", "text": secret}]},
                ]  # fmt: skip
            case "responses":
                body["instructions"] = secret
                body["tools"][0]["description"] = secret
                body["input"] += [
                    {"type": "function_call", "call_id": "c1", "name": "Read", "arguments": json.dumps({"a": secret})},
                    {"type": "function_call_output", "call_id": "c1", "output": secret},
                    {"type": "custom_tool_call_output", "call_id": "c1", "output": [
                        {"type": "input_text", "text": secret}]},
                ]  # fmt: skip
            case "google":
                body["systemInstruction"]["parts"].append({"text": secret})
                body["tools"][0]["functionDeclarations"][0]["description"] = secret
                body["contents"] += [
                    {"role": "model", "parts": [
                        {"text": secret, "thought": True},
                        {"functionCall": {"id": "c1", "name": "Read", "args": {"a": secret, PLANTED: 1}},
                         "thoughtSignature": "c2Vh"}]},
                    {"role": "user", "parts": [
                        {"functionResponse": {"id": "c1", "name": "Read", "response": {"output": secret}}}]},
                ]  # fmt: skip
            case _:
                body["tools"][0]["function"]["description"] = secret
                body["messages"] += [
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {
                        "name": "Read", "arguments": json.dumps({"a": secret})}}]},
                    {"role": "tool", "tool_call_id": "c1", "content": secret},
                ]  # fmt: skip
        answer = await at.ask(body)
        assert answer.status_code == 200, answer.text
        far = at.far.requests[0].body.decode()
        assert PLANTED not in far and "hunter2" not in far
        assert PLANTED.encode() not in b"".join(at.meter.admitted[0].items) + at.meter.admitted[0].head


@pytest.mark.parametrize(
    ("step", "status", "way"),
    [
        (Fail(429, retry_after="7"), 429, "not_billed"),
        (Fail(529), 529, "not_billed"),
        (Fail(401), 401, "not_billed"),
        (Fail(400), 400, "not_billed"),
        (HangUp(), 502, "unknown"),
        (Raw([b"<html>"], "text/html"), 200, "unknown"),
        (Raw([b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'], EVENTS, missing=9), 200, "unknown"),
        (Say("no usage", usage=None), 200, "billed"),
        (Say("it lies", usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}), 200, "billed"),
    ],
    ids=["busy", "overloaded", "key", "bad", "gone", "page", "breaks", "silent", "lies"],
)
async def test_whatever_the_provider_does_a_call_is_settled_once(
    tmp_path: Path, step: Any, status: int, way: str
) -> None:
    async with open_gateway(tmp_path, [step], "chat_completions") as at:
        try:
            answer = await at.ask(agent_request("chat_completions", stream=True))
            assert answer.status_code == status
            if status == 429:
                assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("7", "true")
        except httpx2.RemoteProtocolError:  # half an answer is not passed off as a whole one
            assert status == 200 and way == "unknown"
        assert at.settled() == [way]
        if way == "billed":
            assert at.meter.settled[0][2].usage is None  # so the meter books all that was reserved


async def test_the_agent_hangs_up_in_mid_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "HUNG_UP_S", 0.5)
    gate = Gate()
    head = events(Say("half"))[:3]
    async with open_gateway(
        tmp_path, [Raw(head, chunked=True, cut=True, stall=gate), Say("on")], "chat_completions"
    ) as at:
        async with at.http.stream(
            "POST", "/v1/chat/completions", json=agent_request("chat_completions", stream=True)
        ) as answer:
            async for piece in answer.aiter_bytes():
                assert piece
                break
        await until(lambda: at.meter.settled, gateways.HUNG_UP_S + 5)
        assert at.settled() == ["unknown"]
        assert (await at.ask(agent_request("chat_completions"))).status_code == 200


async def test_an_answer_that_ends_soon_after_the_agent_hung_up_is_paid_at_its_price(tmp_path: Path) -> None:
    gate = Gate()
    async with open_gateway(tmp_path, [Say("all of it", gate=gate)], "chat_completions") as at:
        async with anyio.create_task_group() as tasks:

            async def asks() -> None:
                with anyio.move_on_after(0.5):
                    await at.ask(agent_request("chat_completions", stream=True))

            tasks.start_soon(asks)
            await anyio.to_thread.run_sync(gate.arrived.wait, 5)
        gate.released.set()
        await until(lambda: at.meter.settled)
        assert at.settled() == ["billed"]


async def test_a_run_that_has_lost_its_owner_sends_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("no")]) as at:
        at.meter.checks = StaleOwner("S-1 is no longer owned")
        answer = await at.ask(agent_request("messages"))
        assert answer.status_code == 403 and at.settled() == ["not_billed"]
        assert at.far.answered == []


async def test_calls_that_are_open_at_the_end_are_settled(tmp_path: Path) -> None:
    gates = [Gate() for _each in range(5)]
    async with anyio.create_task_group() as tasks:
        async with open_gateway(tmp_path, [Say("late", gate=gate) for gate in gates], "chat_completions") as at:

            async def asks() -> None:
                with suppress(httpx2.HTTPError):
                    await at.ask(agent_request("chat_completions"))

            for gate in gates:
                tasks.start_soon(asks)
                await anyio.to_thread.run_sync(gate.arrived.wait, 5)
            began = anyio.current_time()
        assert at.settled() == ["unknown"] * 5
        assert anyio.current_time() - began < 12
        tasks.cancel_scope.cancel()


async def test_more_calls_than_there_is_room_for_are_asked_to_come_later(tmp_path: Path) -> None:
    gates = [Gate() for _each in range(MOST_CALLS)]
    async with open_gateway(tmp_path, [Say("ok", gate=gate) for gate in gates], "chat_completions") as at:
        answers: list[int] = []

        async def asks() -> None:
            answers.append((await at.ask(agent_request("chat_completions"))).status_code)

        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(asks)
                await anyio.to_thread.run_sync(gate.arrived.wait, 5)
            refused = await at.ask(agent_request("chat_completions"))
            assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "true")
            for gate in gates:
                gate.released.set()
        assert answers == [200] * MOST_CALLS and at.settled() == ["billed"] * MOST_CALLS


async def test_a_body_that_is_too_long_or_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(tmp_path, [Say("no")]) as at:

        async def long() -> AsyncGenerator[bytes]:
            for _piece in range(BODY_BYTES // 2**20 + 1):
                yield b" " * 2**20

        answer = await at.http.post("/v1/messages", content=long())
        assert answer.status_code == 400 and "bytes" in answer.json()["error"]["message"]
        monkeypatch.setattr(gateways, "BODY_S", 0.2)

        async def slow() -> AsyncGenerator[bytes]:
            yield b"{"
            await anyio.sleep(1)
            yield b"}"

        answer = await at.http.post("/v1/messages", content=slow())
        assert answer.status_code == 400 and "did not arrive" in answer.json()["error"]["message"]
        assert at.far.requests == []


async def test_an_agent_may_look_who_is_there(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("no")]) as at:
        assert (await at.http.head("/")).status_code == 200
        assert [each["id"] for each in (await at.http.get("/v1/models")).json()["data"]] == ["sonnet", "far-sonnet"]
        assert (await at.http.get("/v1/files")).status_code == 404
        assert (await at.http.post("/v1/messages/batches", json={})).status_code == 404
        assert at.far.requests == []


async def test_googles_other_paths_cost_nothing_or_are_not_there(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("no")], "google") as at:
        at.http.headers["x-goog-api-key"] = at.http.headers.pop("authorization").removeprefix("Bearer ")
        counted = await at.http.post("/v1beta/models/sonnet:countTokens", json=agent_request("google", "word " * 800))
        assert 1_000 <= counted.json()["totalTokens"] <= 1_200
        names = [each["name"] for each in (await at.http.get("/v1beta/models")).json()["models"]]
        assert names == ["models/sonnet", "models/far-sonnet"]
        for path in (
            "cachedContents", "models/sonnet:embedContent", "models/sonnet:batchGenerateContent", "files",
            "models/sonnet:predict", "generateContent", "models/sonnet",
        ):  # fmt: skip
            assert (await at.http.post(f"/v1beta/{path}", json=agent_request("google"))).status_code == 404, path
        assert at.far.requests == [] and at.meter.admitted == []


@pytest.mark.parametrize("query", ["", "?alt=json", "?alt=", "?key=sse", "?alt=sse2"])
async def test_google_streams_nothing_that_was_not_asked_for_as_events(tmp_path: Path, query: str) -> None:
    """Google itself would stream the elements of a JSON array."""
    async with open_gateway(tmp_path, [Say("ok")], "google") as at:
        path = "/v1beta/models/sonnet:streamGenerateContent"
        refused = await at.http.post(f"{path}{query}", json=agent_request("google"))
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        sentence = (
            "streamGenerateContent is answered here as server-sent events alone: add ?alt=sse, or call generateContent"
        )
        assert refused.json()["error"] == {"code": 400, "status": "INVALID_ARGUMENT", "message": sentence}
        assert at.far.requests == [] and at.meter.admitted == [] and at.meter.refused == [sentence]
        answered = await at.http.post(f"{path}?alt=sse", json=agent_request("google"))
        assert answered.headers["content-type"].startswith("text/event-stream")
        assert at.settled() == ["billed"]


async def test_counting_has_the_room_of_a_call_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1beta/models/sonnet:countTokens"
    monkeypatch.setattr(gateways, "MOST_BYTES", 3_000)
    gates = [Gate() for _each in range(MOST_CALLS)]
    async with open_gateway(tmp_path, [Say("ok", gate=gate) for gate in gates], "google") as at:
        long = await at.http.post(path, json=agent_request("google", "a" * 4_000))
        assert long.status_code == 400 and "3,000 bytes" in long.json()["error"]["message"]
        monkeypatch.setattr(gateways, "MOST_BYTES", 10**6)
        async with anyio.create_task_group() as tasks:
            for gate in gates:
                tasks.start_soon(at.ask, agent_request("google"))
                await anyio.to_thread.run_sync(gate.arrived.wait, 5)
            refused = await at.http.post(path, json=agent_request("google"))
            assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "true")
            for gate in gates:
                gate.released.set()
        assert (await at.http.post(path, json=agent_request("google"))).status_code == 200
        await at.gateway.close()
        assert (await at.http.post(path, json=agent_request("google"))).status_code == 403
        assert len(at.far.requests) == len(at.meter.admitted) == MOST_CALLS


async def test_an_error_comes_in_googles_form_with_its_time(tmp_path: Path) -> None:
    busy = {"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}]}}  # fmt: skip
    async with open_gateway(tmp_path, [Fail(429, busy)], "google") as at:
        answer = await at.ask(agent_request("google", stream=True))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (429, 429, "RESOURCE_EXHAUSTED")
        assert error["details"][0]["retryDelay"] == "36s" and "Quota exceeded" in error["message"]
        assert at.settled() == ["not_billed"]


async def test_a_budget_for_thinking_leaves_room_for_the_answer(tmp_path: Path) -> None:
    thinks: dict[str, Any] = {
        "generation_config": {"thinking_config": {"thinking_budget": 8_000, "include_thoughts": True}}
    }
    async with open_gateway(tmp_path, [Say("ok")], "google") as at:
        assert (await at.ask(agent_request("google", **thinks))).status_code == 200
        assert at.far.requests[0].json["generationConfig"] == {
            "maxOutputTokens": 500,
            "thinkingConfig": {"thinkingBudget": 250, "includeThoughts": True},
        }
        assert at.meter.admitted[0].dropped == ()


@pytest.mark.parametrize(
    ("wire", "more"),
    [
        ("google", {"generationConfig": {"stopSequences": [PLANTED], "responseJsonSchema": {"description": PLANTED}}}),
        ("google", {"safety_settings": [{"category": PLANTED}], "labels": {"a": PLANTED}}),
        ("google", {"contents": [
            {"role": "model", "parts": [{"functionCall": {"id": PLANTED, "name": "Read", "args": {"a": "b"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": PLANTED, "name": "Read", "response": {
                "thoughtSignature": PLANTED}}}, {"inlineData": {"mimeType": "text/plain", "data": PLANTED}}]}]}),
        ("messages", {"stop_sequences": [PLANTED], "output_config": {"format": {"schema": {"description": PLANTED}}}}),
        ("messages", {"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {
                "id": PLANTED, "model": PLANTED, "type": PLANTED, "signature": PLANTED, "call_id": PLANTED,
                "thought": {"type": "thinking", "signature": PLANTED, "data": PLANTED}}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "y"}]}]}),
        ("messages", {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x", "model": PLANTED, "url": f"data:text/plain,{PLANTED}"}]}]}),
        ("responses", {"prompt_cache_key": PLANTED, "input": [
            {"type": "function_call", "call_id": PLANTED, "name": "Read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": PLANTED, "output": "y"}]}),
        ("chat_completions", {"stop": [PLANTED]}),
        ("messages", {"system": f"data:image/png;base64,{PLANTED}"}),
        ("chat_completions", {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "R", "arguments": f'{{"a":"\\u0041{PLANTED[1:]}"}}'}}]}]}),
    ],
)  # fmt: skip
async def test_secrets_do_not_leave_by_the_fields_that_are_no_text(
    tmp_path: Path, wire: str, more: dict[str, Any]
) -> None:
    sent, _call = await forwarded_request(tmp_path, wire, more)
    assert PLANTED[1:] not in sent


async def test_a_call_and_its_result_keep_one_id_also_if_it_looks_like_a_secret(tmp_path: Path) -> None:
    items = [
        {"type": "function_call", "call_id": PLANTED, "name": "Read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": PLANTED, "output": "y"},
    ]
    async with open_gateway(tmp_path, [Say("ok")], "responses") as at:
        at.far.checks = False
        await at.ask(agent_request("responses", input=items))
        sent = at.far.requests[0].json["input"]
        assert sent[0]["call_id"] == sent[1]["call_id"] != PLANTED


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


BASE64 = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
MEDIA: list[tuple[str, dict[str, Any]]] = [
    ("messages", content({"type": "image", "source": BASE64})),
    ("messages", content({"type": "image", "source": {"type": "url", "url": "https://evil.example/?x=1"}})),
    ("messages", content({"type": "image", "source": "x"})),
    ("messages", {"messages": [{"role": "user", "content": [[{"type": "image", "source": BASE64}]]}]}),
    ("messages", content({"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "image", "source": BASE64}]})),
    ("messages", content({"type": "document", "source": {"type": "file", "file_id": "f"}})),
    ("responses", {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;AA"}]}]}),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": [
        {"type": "input_file", "file_id": "f"}]}]}),
    ("chat_completions", content({"type": "image_url", "image_url": {"url": "https://evil.example/a.png"}})),
    ("chat_completions", content({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})),
    ("chat_completions", content({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}})),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "more"), MEDIA)
async def test_what_cannot_be_priced_by_its_bytes_becomes_a_sentence(
    tmp_path: Path, wire: str, more: dict[str, Any]
) -> None:
    """A blank image of 300 bytes can be 1,600 tokens, and a page of a document as many."""
    sent, call = await forwarded_request(tmp_path, wire, more)
    assert "Ava has taken out" in sent and len(call.dropped) == 1
    assert not [word for word in ("evil", "base64", "AA", "file_id", "iVBOR", '"source"') if word in sent]


def test_a_mark_in_a_tools_input_is_text_and_counts_as_it_is_sent() -> None:
    """Where the agent chooses the form, `cache_control` marks nothing: it is in the prompt."""
    bodies, bounds = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({})), CountedBounds()

    def read(each: dict[str, Any]) -> AgentCall:
        call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"a": [each] * 10_000}}
        return bodies.read(json.dumps(agent_request("messages", **content(call))).encode())

    plain, marked = read({}), read({"cache_control": 0})
    assert bounds.bound(marked, 1).prompt_tokens >= len(encode(bodies.limited(marked, 1))) - 200
    bounds.report(plain, Usage(input_tokens=10_000))
    assert bounds.bound(marked, 1).prompt_tokens >= 10_000 * len('{"cache_control":0}')


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_that_is_one_object_counts_and_is_recorded_as_a_list_of_one(wire: str) -> None:
    long = "word " * 1_000
    body = agent_request(wire, long)
    name = FORMS[wire].items
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    one, listed = (
        bodies.read(json.dumps({**body, "model": "sonnet", name: items}).encode())
        for items in (body[name][-1], [body[name][-1]])
    )
    assert one.body == listed.body and one.items == listed.items and one.chain == listed.chain
    assert CountedBounds().bound(one, 1).prompt_tokens > len(long)


def alone(value: Any) -> Any:
    """Return a body in which every list of one object is that object."""
    if isinstance(value, list):
        return alone(value[0]) if len(value) == 1 and isinstance(value[0], dict) else [alone(each) for each in value]
    return {name: alone(each) for name, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("wire", WIRES)
def test_each_list_that_is_one_object_counts_is_recorded_and_sent_as_the_list(wire: str) -> None:
    """At every depth: parts, tools, declarations, calls, results."""
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    body = {**agent_request(wire), **called_and_answered_body(wire), "model": "sonnet"}
    one, listed = (bodies.read(json.dumps(each).encode()) for each in (alone(body), body))
    assert one == listed and one.chain == listed.chain
    assert [found for item in one.items for found in results_in(json.loads(item))], "a result is one"


def test_a_result_is_of_its_call_also_if_google_gave_that_no_id() -> None:
    """Gemini CLI then makes up an id of its own, for the result alone."""
    called = {"r1_0": "Read", "r1_1": "Read", "r2_0": "Bash"}
    parts = [
        {"functionResponse": {"id": call_id, "name": name, "response": {"output": text}}}
        for call_id, name, text in (("Read-17", "Read", "one"), ("", "Read", "two"), ("x", "Bash", "three"))
    ]
    answered: set[str] = set()
    found: dict[str, str] = {}
    for result in results_in({"role": "user", "parts": [*parts, *parts]}):
        call_id = call_answered(result, called, answered)
        if call_id in called and call_id not in answered:
            found[call_id] = result.text
            answered.add(call_id)
    assert found == {"r1_0": "one", "r1_1": "two", "r2_0": "three"}
    known = ShownResult("r1_1", "two", failed=False, name="Read")
    assert call_answered(known, called, answered=()) == "r1_1", "an id that is known comes first"
    assert call_answered(known._replace(call_id="r1_7"), {}, answered=()) == "r1_7"
    assert call_answered(ShownResult("toolu_9", "x", failed=False), called, answered=()) == "toolu_9"


def test_a_text_for_a_conversation_is_a_message() -> None:
    bodies = Bodies("responses", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    message = {"type": "message", "role": "user", "content": "Do it."}
    text, listed = (
        bodies.read(json.dumps({**agent_request("responses"), "input": given}).encode())
        for given in ("Do it.", [message])
    )
    assert text == listed


NOT_LISTS: list[tuple[str, dict[str, Any], str]] = [
    ("google", {"contents": "Do it."}, "a str in contents"),
    ("google", {"contents": 7}, "a int in contents"),
    ("google", {"systemInstruction": "Be brief."}, "a str in systemInstruction"),
    ("google", {"system_instruction": ["Be brief."]}, "a list in systemInstruction"),
    ("google", {"contents": [{"role": "user", "parts": "x"}]}, "a str in contents.parts"),
    ("google", {"contents": [{"role": "user", "parts": [[{"text": "x"}]]}]}, "a list in contents.parts"),
    ("google", {"tools": "x"}, "a str in tools"),
    ("google", {"tools": [[{"googleSearch": {}}]]}, "a list in tools"),
    ("google", {"tools": [{"functionDeclarations": "x"}]}, "a str in tools.functionDeclarations"),
    ("messages", {"messages": "Do it."}, "a str in messages"),
    ("messages", {"messages": [["x"]]}, "a list in messages"),
    ("messages", {"tools": [["x"]]}, "a list in tools"),
    ("chat_completions", {"messages": "Do it."}, "a str in messages"),
    ("responses", {"input": [["x"]]}, "a list in input"),
    ("responses", {"tools": "x"}, "a str in tools"),
]


@pytest.mark.parametrize(("wire", "more", "said"), NOT_LISTS)
def test_what_is_neither_a_list_of_objects_nor_one_is_refused(wire: str, more: dict[str, Any], said: str) -> None:
    bodies = Bodies(wire, {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    with pytest.raises(CallRefused, match=re.escape(said)):
        bodies.read(json.dumps({**agent_request(wire), "model": "sonnet", **more}).encode())


@pytest.mark.parametrize("more", [{PLANTED: 1}, {"tools": [{"name": PLANTED, "type": "web_search_20250305"}]}])
def test_no_secret_is_in_the_names_of_what_was_taken_out(more: dict[str, Any]) -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    dropped = bodies.read(json.dumps(agent_request("messages", **more)).encode()).dropped
    assert dropped and PLANTED not in str(dropped)


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ("messages", b'"temperature":NaN'),
        ("messages", b'"temperature":1e999'),
        ("messages", b'"messages":[{"role":"user","content":[{"type":[]}]}]'),
        ("messages", b'"messages":5,"tools":"x"'),
        ("messages", b'"tools":[{"name":"a","type":["x"]}]'),
        ("responses", b'"input":[{"type":["x"]}]'),
        ("responses", b'"include":[[]]'),
        ("responses", b'"include":[{}]'),
        ("chat_completions", b'"n":NaN'),
    ],
)
async def test_a_field_of_a_wrong_kind_is_no_fault_of_the_gateways(tmp_path: Path, wire: str, field: bytes) -> None:
    """The SDKs of agents repeat a 500."""
    async with open_gateway(tmp_path, [Say("ok")], wire) as at:
        at.far.checks = False
        body = json.dumps(agent_request(wire)).encode()[:-1] + b"," + field + b"}"
        answer = await at.http.post(f"/v1{path_of_request(wire, {})}", content=body)
        assert answer.status_code in (200, 400), answer.text
        assert len(at.far.requests) == len(at.meter.admitted) == (answer.status_code == 200)


@pytest.mark.parametrize(
    ("kind", "most"), [("both", 1), ("two lengths", 0), ("short", 0), ("three", 3), ("other secret", 1), ("gzip", 1)]
)
async def test_one_connection_cannot_carry_a_call_past_the_meter(tmp_path: Path, kind: str, most: int) -> None:
    body = json.dumps(agent_request("messages")).encode()
    length = f"content-length: {len(body)}"
    sent = {
        "both": raw_request(
            "content-length: 5\r\ntransfer-encoding: chunked", f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        ),
        "two lengths": raw_request(f"{length}\r\ncontent-length: 5", body),
        "short": raw_request(f"content-length: {len(body) + 50}", body),
        "three": raw_request(length, body) * 3,
        "other secret": raw_request(length, body) + raw_request(length, body, "not-this-runs"),
        "gzip": raw_request(f"content-encoding: gzip\r\n{length}", body),
    }[kind]
    async with open_gateway(tmp_path, [Say("ok")] * 4) as at, await anyio.connect_unix(tmp_path / "gw.sock") as line:
        at.far.checks = False
        await line.send(sent)
        with anyio.move_on_after(1.5), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await line.receive()
        assert len(at.far.requests) == len(at.meter.admitted) <= most


@pytest.mark.parametrize("parser", [http_connection.H11Connection, http_connection.Connection])
async def test_a_connection_that_sends_no_request_is_closed_and_so_is_one_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parser: type[http_connection.LimitedConnection]
) -> None:
    """Each holds a file of the server's, which others' runs need."""
    monkeypatch.setattr(http_connection, "Connection", parser)
    monkeypatch.setattr(http_connection, "HEADERS_WITHIN_S", 0.5)
    async with open_gateway(tmp_path, [Say("on")]) as at, AsyncExitStack() as lines:
        opened: list[anyio.abc.SocketStream] = []
        for number in range(60):
            opened.append(await lines.enter_async_context(await anyio.connect_unix(tmp_path / "gw.sock")))
            if number < 3:  # at once: on a slow machine, the first is closed before the last is open
                await opened[-1].send(b"POST /v1/mess")
        with anyio.fail_after(20):
            for line in opened:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await line.receive()
        assert (await at.ask(agent_request("messages"))).status_code == 200


async def test_the_bodies_of_open_calls_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "MOST_BYTES", 3_000)
    gate = Gate()
    async with open_gateway(tmp_path, [Say("one", gate=gate), Say("two")]) as at, anyio.create_task_group() as tasks:
        tasks.start_soon(at.ask, agent_request("messages", "a" * 2_000))
        await anyio.to_thread.run_sync(gate.arrived.wait, 5)
        answer = await at.ask(agent_request("messages", "b" * 2_000))
        assert answer.status_code == 400 and "3,000 bytes" in answer.text
        gate.released.set()


async def test_an_agent_that_hangs_up_before_its_call_is_admitted_pays_nothing(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, [Say("no"), Say("on")]) as at:
        at.meter.holds = anyio.Event()
        with anyio.move_on_after(0.5):
            await at.ask(agent_request("messages"))
        await until(lambda: at.meter.waiting == 0)
        assert at.meter.admitted == [] and at.far.requests == []
        at.meter.holds = None
        assert (await at.ask(agent_request("messages"))).status_code == 200


async def test_an_agent_that_hung_up_while_its_call_was_admitted_pays_nothing(tmp_path: Path) -> None:
    """The reservation is committed by then: it is settled, and nothing is sent."""
    async with open_gateway(tmp_path, [Say("no"), Say("on")]) as at:
        at.meter.holds, at.meter.shielded = anyio.Event(), True
        with anyio.move_on_after(0.5):
            await at.ask(agent_request("messages"))
        await anyio.sleep(0.5)  # until the gateway has seen that
        at.meter.holds.set()
        await until(lambda: at.meter.settled)
        assert at.settled() == ["not_billed"] and at.far.requests == []


@pytest.mark.parametrize(
    ("wire", "more"),
    [
        ("responses", {"input": [{"id": "msg_1"}]}),
        ("responses", {"input": [{"type": "computer_call_output", "output": {"image_url": "https://evil.example"}}]}),
        ("responses", {"input": [{"type": "image_generation_call", "id": "ig_1"}]}),
        ("responses", {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp", "server_url": "https://x"}]}]}),
        ("chat_completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        ("chat_completions", content({"image_url": {"url": "https://evil.example"}})),
        ("chat_completions", content({"type": "text", "text": "x", "source": {"type": "url"}})),
        ("chat_completions", content({"type": "input_video", "video_url": {"url": "https://evil.example"}})),
        ("messages", content({"type": "mcp_tool_use", "name": "x", "input": {}})),
        ("messages", content({"type": "made_up"})),
    ],
)  # fmt: skip
async def test_nothing_that_stands_for_something_else_is_sent(tmp_path: Path, wire: str, more: dict[str, Any]) -> None:
    async with open_gateway(tmp_path, [Say("no")], wire) as at:
        assert (await at.ask(agent_request(wire, **more))).status_code == 400 and at.far.requests == []


async def test_every_field_that_reaches_the_prompt_counts_in_its_bound() -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    plain = bodies.read(json.dumps(agent_request("messages")).encode())
    schema = {"format": {"type": "json_schema", "schema": {"description": "x" * 400_000}}}
    long = bodies.read(json.dumps(agent_request("messages", output_config=schema)).encode())
    bounds = CountedBounds()
    bounds.report(plain, Usage(input_tokens=100))
    assert bounds.bound(long, 1).prompt_tokens > 400_000 and long.chain[-1] != plain.chain[-1]


async def test_what_is_remembered_of_bodies_is_bounded() -> None:
    bodies = Bodies("messages", {"sonnet": "far-sonnet"}, frozenset(), Redactor({}))
    for number in range(16):
        bodies.read(json.dumps(agent_request("messages", f"{number:x}" * 1_500_000)).encode())
    assert sum(map(len, bodies._clean)) < 17_000_000  # pyright: ignore[reportPrivateUsage]
