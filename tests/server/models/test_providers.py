"""The table of providers: each takes a turn, tools, a stream and errors as its row says, against a server on loopback.

The server is on this machine, so the row is looked up for the provider's own address, and only the call goes elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, ModelServer, Raw, Say, Step, events_at, run_model_server
from support.models.provider_settings import KEY

from ava_server.core.errors import ModelError
from ava_server.models.base import AssistantTurn, Completion, Request, ToolSchema, ToolTurn, UserTurn
from ava_server.models.errors import Endpoint, may_have_been_billed
from ava_server.models.factory import model_of, parameters
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel, key_headers
from ava_server.models.listing import ask_endpoint, model_catalogs
from ava_server.models.model_choice import Choice, ModelSettings, Provider, choose, default_tiers
from ava_server.models.prices import UserPrice
from ava_server.models.providers import PROVIDERS, key_header, may_count_cache_beside

SELLERS = [name for name, known in PROVIDERS.items() if known.models]
CALLED = [*SELLERS, "azure deployments", "bedrock anthropic", "vertex openapi"]
ADDRESSES = {
    "azure deployments": "https://r.openai.azure.com/openai/deployments/{model}?api-version=2024-10-21",
    "bedrock anthropic": "https://bedrock-runtime.us-east-1.amazonaws.com/anthropic",
    "vertex openapi": "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi",
}
SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
ASK = Request("test", "You are terse.", (SEARCH,), (UserTurn("Find the blue door."),), 256)
HEADERS = {
    "anthropic": "x-api-key",
    **dict.fromkeys(("google", "vertex", "vertex openapi"), "x-goog-api-key"),
    **dict.fromkeys(("azure", "azure deployments"), "api-key"),
}


def address_of(name: str) -> str:
    return ADDRESSES.get(name) or PROVIDERS[name].base_url.replace("REGION", "us-east-1")


@pytest.mark.parametrize("name", CALLED)
async def test_a_turn_with_tools_is_streamed_and_counted_within_its_bound(name: str) -> None:
    said = Say("I look for it.", [("search", {"q": "blue door"})])
    with run_model_server([said]) as server:
        async with ClientPool() as clients:
            called = Called(name, server, clients)
            completion = await called.ask()
            bound = called.model.bound(ASK, None)
    assert completion.text == "I look for it."
    assert [(call.name, call.args) for call in completion.calls] == [("search", {"q": "blue door"})]
    assert completion.usage is not None
    assert 0 < completion.usage.prompt_tokens <= bound.prompt_tokens
    assert 0 < completion.usage.output_tokens <= bound.output_tokens
    body = server.requests[0].json
    known = PROVIDERS[name.partition(" ")[0]]
    if called.choice.wire == "chat_completions":
        assert ("max_completion_tokens" in body, "max_tokens" in body) == (known.long_limit, not known.long_limit)
        assert ("stream_options" in body) != known.tells_usage
    assert not server.refused


MODELS = {
    "perplexity": "sonar",
    "vertex": "gemini-3.8-flash",
    "bedrock": "openai.gpt-oss-120b-1:0",
    "bedrock anthropic": "us.anthropic.claude-sonnet-4-6",
    "azure": "gpt-6.1-terra",
    "azure deployments": "our-own-name",
    "vertex openapi": "google/gemini-3.8-flash",
}
"""A model of each provider without tiers; those of servers on this machine are all alike."""
TASK = UserTurn("Find the blue door.")
DOORS = [("search", {"q": "blue door"}), ("search", {"q": "azure door"})]


def model_at(name: str) -> str:
    return MODELS.get(name) or default_tiers().get(name, {}).get("balanced", "qwen3:8b")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", CALLED)
async def test_a_conversation_with_thinking_and_tools_goes_on_as_the_provider_accepts_it(
    name: str, streaming: bool
) -> None:
    """The server refuses what the API of the path would, such as a result without its call, or a lost signature."""
    script = [Say("I look.", DOORS, reasoning="Which door?"), Say("It is behind the shelf.")]
    model_id = model_at(name)
    with run_model_server(script) as server:
        async with ClientPool() as clients:
            called = Called(name, server, clients, model_id, streaming=streaming)
            tokens = 2_048 if called.model.may_think([TASK]) else 0
            first = Request(model_id, "You are terse.", (SEARCH,), (TASK,), 8_192, tokens)
            answer = await called.ask(first)
            results = [ToolTurn(call.call_id, call.name, f"found {n}") for n, call in enumerate(answer.calls)]
            second = replace(first, turns=(TASK, AssistantTurn(answer.raw), *results))
            last = await called.ask(second)
            bounds = [called.model.bound(request, None) for request in (first, second)]
    assert server.refused == []
    assert (answer.text, last.text) == ("I look.", "It is behind the shelf.")
    assert [(call.name, call.args) for call in answer.calls] == DOORS
    if called.choice.wire != "responses":  # where summaries need a verified organization, none is asked for
        assert answer.thinking == "Which door?"
    sent = [received.json for received in server.requests]
    assert all(("stream" in received.path or body.get("stream", False)) == streaming for received, body in zip(
        server.requests, sent, strict=True))  # fmt: skip
    told = [f"found {n}" for n in range(len(DOORS))]
    positions = [server.requests[1].body.decode().index(text) for text in told]
    assert positions == sorted(positions), "the order says whose results they are, where ids are not accepted"
    if called.choice.wire == "google":
        assert ('"id"' in server.requests[1].body.decode()) == PROVIDERS[name].takes_call_ids
    for completion, bound, body in zip(
        (answer, last), bounds, map(len, (r.body for r in server.requests)), strict=True
    ):
        usage = completion.usage
        assert usage is not None and completion.cost_micros is None
        assert (usage.prompt_tokens, usage.output_tokens) == (max(100, body // 10), 20)
        assert usage.prompt_tokens <= bound.prompt_tokens and usage.output_tokens <= bound.output_tokens


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", CALLED)
async def test_whoever_leaves_while_it_waits_closes_the_connection(name: str, streaming: bool) -> None:
    gate = Gate()
    with run_model_server([Say("never read", gate=gate)]) as server:
        async with ClientPool() as clients, anyio.create_task_group() as tasks:
            called = Called(name, server, clients, streaming=streaming)
            tasks.start_soon(called.ask)
            assert await anyio.to_thread.run_sync(gate.arrived.wait, 10)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(gate.client_left.wait, 10)
    assert server.answered == []


BREAKS: Mapping[str, Mapping[str, Any]] = {
    "messages": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "responses": {"type": "error", "code": "server_error", "message": "Overloaded"},
    "chat_completions": {"error": {"code": 503, "message": "Overloaded"}},
    "google": {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded"}},
}


@pytest.mark.parametrize("how", ["an error", "cut", "left"])
@pytest.mark.parametrize("name", CALLED)
async def test_a_stream_that_does_not_end_may_have_been_billed(name: str, how: str) -> None:
    gate = Gate()
    with run_model_server([]) as server:
        async with ClientPool() as clients:
            called = Called(name, server, clients)
            path, body = called.model.wire.url(server.base_url, "test").partition("?")[0], called.model.wire.body(ASK)
            begun = events_at(path, Say("half of an answer " * 9), 0, body)[:-9]
            error = f"data: {json.dumps(BREAKS[called.choice.wire])}\n\n".encode()
            steps = {
                "an error": Raw([*begun, error]),
                "cut": Raw(begun, chunked=True, cut=True),
                "left": Raw(begun, chunked=True, cut=True, stall=gate),
            }
            server.script = [steps[how]]
            if how == "left":
                async with called.model.stream(ASK) as stream:
                    async for delta in stream:
                        if delta.text:
                            assert await anyio.to_thread.run_sync(gate.arrived.wait, 10)
                            break
                assert await anyio.to_thread.run_sync(gate.client_left.wait, 10)
                return
            with pytest.raises(ModelError) as failed:
                await called.ask()
    assert may_have_been_billed(failed.value)
    assert failed.value.kind == {"an error": "overloaded", "cut": "dropped"}[how]


@pytest.mark.parametrize("name", CALLED)
def test_the_key_goes_into_the_header_of_the_provider(name: str) -> None:
    with run_model_server([]) as server:
        called = Called(name, server, ClientPool())
    header = HEADERS.get(name, "authorization")
    assert called.headers[header] == (f"Bearer {KEY}" if header == "authorization" else KEY)


EXPRESS = "https://aiplatform.googleapis.com/v1/publishers/google"
"""Of Vertex's express mode, which has neither a project nor a region in its address."""


@pytest.mark.parametrize(
    "base_url", [EXPRESS, address_of("vertex"), "https://europe-west1-aiplatform.googleapis.com/v1"]
)
@pytest.mark.parametrize(
    ("key", "minted", "headers"),
    [
        ("AQ.Ab8RN6-stored", False, {"x-goog-api-key": "AQ.Ab8RN6-stored"}),
        ("AIzaSy-stored", False, {"x-goog-api-key": "AIzaSy-stored"}),
        ("ya29.stored", False, {"authorization": "Bearer ya29.stored"}),
        ("eyJhbGciOi.stored", False, {"authorization": "Bearer eyJhbGciOi.stored"}),
        ("ya29.minted", True, {"authorization": "Bearer ya29.minted"}),
        ("of-a-workforce-pool", True, {"authorization": "Bearer of-a-workforce-pool"}),
    ],
)
def test_a_stored_key_of_vertex_is_sent_as_a_key_and_a_token_as_one(
    base_url: str, key: str, minted: bool, headers: dict[str, str]
) -> None:
    settings = ModelSettings(providers={"vertex": Provider(base_url=base_url, api_key=KEY)})
    choice = choose("vertex:gemini-3.8-flash", "fast", settings)
    model = model_of(choice.name, parameters(choice), key, ClientPool())
    assert isinstance(model, HttpModel) and choice.price.input > 0
    url = model.wire.url(model.base_url, choice.model_id)
    assert url == f"{base_url}/models/gemini-3.8-flash:streamGenerateContent?alt=sse"
    assert key_headers(model.wire, Endpoint(url, choice.model_id, key, minted=minted)) == headers


@pytest.mark.parametrize(
    ("name", "model_id", "may"),
    [
        ("openai", "gpt-6.1-terra", False),
        ("azure", "our-gpt", False),
        ("azure", "grok-4.3", True),
        ("ollama", "qwen3", False),
        ("ours", "qwen3", True),
    ],
)
def test_where_the_cache_is_counted_is_known_of_known_addresses(name: str, model_id: str, may: bool) -> None:
    address = "https://models.example.org/v1" if name == "ours" else address_of(name)
    assert may_count_cache_beside(name, address, model_id) is may


FAILURES: Mapping[int, str] = {400: "bad_request", 401: "auth", 429: "rate_limit", 500: "overloaded", 503: "overloaded"}


@pytest.mark.parametrize("name", CALLED)
async def test_an_error_is_of_its_kind_and_has_no_key(name: str) -> None:
    said: list[Step] = [Fail(status, {"error": {"message": f"no, {KEY}"}}) for status in FAILURES]
    found: dict[int, str] = {}
    with run_model_server(said) as server:
        async with ClientPool() as clients:
            called = Called(name, server, clients)
            for status in FAILURES:
                with pytest.raises(ModelError) as failed:
                    await called.ask()
                found[status] = failed.value.kind
                assert KEY not in str(failed.value)
    assert found == FAILURES


URLS = {
    "mistral": "https://api.mistral.ai/v1/chat/completions",
    "deepseek": "https://api.deepseek.com/chat/completions",
    "perplexity": "https://api.perplexity.ai/chat/completions",
    "fireworks": "https://api.fireworks.ai/inference/v1/chat/completions",
    "bedrock": "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions",
    "bedrock anthropic": "https://bedrock-runtime.us-east-1.amazonaws.com/anthropic/v1/messages",
    "azure": "https://RESOURCE.openai.azure.com/openai/v1/chat/completions",
    "azure deployments": ("https://r.openai.azure.com/openai/deployments/test/chat/completions?api-version=2024-10-21"),
    "vertex": (
        "https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global/publishers/google/models/"
        "test:streamGenerateContent?alt=sse"
    ),
    "vertex openapi": (
        "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi/chat/completions"
    ),
    "ollama": "http://127.0.0.1:11434/v1/chat/completions",
}


@pytest.mark.parametrize("name", URLS)
def test_a_call_goes_to_the_documented_address(name: str) -> None:
    with run_model_server([]) as server:
        assert Called(name, server, ClientPool()).url == URLS[name]


@pytest.mark.parametrize("name", SELLERS)
async def test_a_provider_lists_its_models(name: str) -> None:
    with run_model_server([]) as server:
        catalog = model_catalogs(ModelSettings(providers={name: Provider(base_url=address_of(name), api_key=KEY)}))
        assert catalog[name].base_url == address_of(name)
        listed: dict[str, Any] = {"data": [{"id": "one"}], "models": [{"name": "models/one"}]}
    with run_model_server([Fail(200, listed)]) as server:
        async with ClientPool() as clients:
            assert await ask_endpoint(replace(catalog[name], base_url=server.base_url), clients) == ["one"]


def chosen(name: str, model_id: str = "test", *, streaming: bool = True) -> Choice:
    """The choice of a model at a provider's own address, with a stored key."""
    provider = name.partition(" ")[0]
    given = Provider(base_url=address_of(name), api_key=KEY, streaming=streaming)
    prices = {f"{provider}:{model_id}": UserPrice(input=1, output=2, per_request=0.01)}
    return choose(f"{provider}:{model_id}", "fast", ModelSettings(providers={provider: given}, prices=prices))


class Called:
    """A provider's model whose calls go to a server on loopback, with the headers of its own address."""

    def __init__(
        self, name: str, server: ModelServer, clients: ClientPool, model_id: str = "test", *, streaming: bool = True
    ) -> None:
        self.choice = chosen(name, model_id, streaming=streaming)
        model = model_of(self.choice.name, parameters(self.choice), KEY, clients)
        assert isinstance(model, HttpModel)
        self.url = model.wire.url(model.base_url, "test")
        self.headers = {**model.wire.headers(KEY), **key_header(model.base_url, KEY)}
        self.model = replace(model, base_url=server.base_url)

    async def ask(self, request: Request = ASK) -> Completion:
        with anyio.fail_after(20):
            async with self.model.stream(request) as stream:
                async for _delta in stream:
                    pass
        return stream.completion
