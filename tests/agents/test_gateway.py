"""The gateway: what an agent sends is checked, forwarded once it is admitted, and settled once, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.agents.gateway import KEY, PLANTED, SECRET, WIRES, agent_request, called_and_answered_body, open_gateway
from support.model_server import Fail, Say, run_model_server

from ava_server.agents.seam import CallRefused
from ava_server.models.base import Completion
from ava_server.models.factory import model_of, parameters
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.model_choice import Choice
from ava_server.models.prices import Price
from ava_server.models.providers import PROVIDERS


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


async def test_an_agent_repeats_a_call_whose_limit_has_another_name(tmp_path: Path) -> None:
    no = Fail(400, {"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens' with this model."}})
    other = Fail(400, {"error": {"message": "Unrecognized request argument supplied: max_tokens"}})
    for refusal in (no, other):
        async with open_gateway(tmp_path, [refusal, Say("ok")], "chat_completions") as at:
            refused = await at.ask(agent_request("chat_completions"))
            assert refused.status_code == 529 and refused.headers["x-should-retry"] == "true"
            assert (await at.ask(agent_request("chat_completions"))).status_code == 200
            limits = [{"max_tokens", "max_completion_tokens"} & one.json.keys() for one in at.far.requests]
        assert limits == [{"max_tokens"}, {"max_completion_tokens"}]
        assert at.meter.ways == ["not_billed", "billed"]


async def test_a_format_with_one_name_for_the_limit_is_not_asked_again(tmp_path: Path) -> None:
    no = Fail(400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported."}})
    async with open_gateway(tmp_path, [no], "messages") as at:
        refused = await at.ask(agent_request("messages"))
    assert refused.status_code == 400 and refused.headers["x-should-retry"] == "false"


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
    async with open_gateway(tmp_path, [Say("ok")], wire) as at:
        body = body_with_secret(wire, f"key {PLANTED} and hunter2-hunter2")
        answer = await at.ask(body)
        assert answer.status_code == 200, answer.text
        far = at.far.requests[0].body.decode()
        assert PLANTED not in far and "hunter2" not in far
        assert PLANTED.encode() not in b"".join(at.meter.admitted[0].items) + at.meter.admitted[0].head


def body_with_secret(wire: str, secret: str) -> dict[str, Any]:
    """Return a request with a secret in each of its texts."""
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
    return body


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


async def test_an_error_comes_in_googles_form_with_its_time(tmp_path: Path) -> None:
    busy = {"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}]}}  # fmt: skip
    async with open_gateway(tmp_path, [Fail(429, busy)], "google") as at:
        answer = await at.ask(agent_request("google", stream=True))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (429, 429, "RESOURCE_EXHAUSTED")
        assert error["details"][0]["retryDelay"] == "36s" and "Quota exceeded" in error["message"]
        assert at.settled() == ["not_billed"]


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}
