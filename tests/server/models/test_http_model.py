from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_server import Gate, Received, Say, Script, events, run_model_server

from ava_audit.errors import StaleOwner
from ava_audit.events import Usage
from ava_server.models.base import (
    AssistantTurn,
    Completion,
    MoreUsage,
    ReportedUsage,
    Request,
    Segment,
    ToolSchema,
    ToolTurn,
    UserTurn,
)
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.stream import Deadlines, EventReader

SEARCH = ToolSchema("search", "Finds things.", {"type": "object", "properties": {"q": {"type": "string"}}})
ASK = Request("test", "You are terse.", (SEARCH,), (UserTurn("Find the blue door."),), 256)


async def answers(
    script: Script, request: Request = ASK, *, streaming: bool = True, times: int = 1
) -> tuple[list[Completion], list[Received]]:
    """Ask a server that plays the script, and return its answers and what it received."""
    found: list[Completion] = []
    with anyio.fail_after(20), run_model_server(script) as server:
        async with ClientPool() as clients:
            model = HttpModel("custom", "test", server.base_url, "key-0123456789", clients, ChatWire(streaming))
            for _ in range(times):
                async with model.stream(request) as stream:
                    async for _ in stream:
                        pass
                found.append(stream.completion)
        return found, server.requests


async def test_assembles_text_and_tool_calls_from_their_fragments() -> None:
    calls = [("search", {"q": "blue döor ✓"}), ("search", {"q": "second"})]
    (completion,), _ = await answers([Say("I look for it.", calls, reasoning="Where?")])

    assert completion.text == "I look for it."
    assert [(call.name, call.args) for call in completion.calls] == calls
    assert completion.usage == Usage(input_tokens=100, output_tokens=20)
    assert completion.stop_reason == "tool_calls"
    assert completion.request_id == "chatcmpl-1"
    assert completion.notes == ()
    assert completion.raw["reasoning_content"] == "Where?"
    assert completion.raw["tool_calls"][1]["function"] == {"name": "search", "arguments": '{"q": "second"}'}


@pytest.mark.parametrize("say", [Say("whole", [("search", {"q": "x"})]), Say("whole", stream=False)])
async def test_an_unstreamed_answer_equals_the_streamed_one(say: Say) -> None:
    streaming = not say.stream
    (completion,), (received,) = await answers([say], streaming=streaming)

    assert completion.text == "whole"
    assert [call.args for call in completion.calls] == [args for _, args in say.calls]
    assert received.json["stream"] is streaming


BESIDE: dict[str, Any] = {
    "prompt_tokens": 90,
    "completion_tokens": 40,
    "total_tokens": 130,
    "prompt_tokens_details": {"cached_tokens": 80},
}


async def test_the_dearer_reading_of_an_ambiguous_cache_is_booked_for_a_first_answer_alone() -> None:
    found, _ = await answers([Say("One.", usage=BESIDE), Say("Two.", usage=BESIDE)], times=2)
    in_prompt = Usage(input_tokens=10, cache_read_tokens=80, output_tokens=40)
    assert [(one.usage, one.more) for one in found] == [(in_prompt, MoreUsage(80, 0)), (in_prompt, None)]
    later = replace(ASK, turns=(*ASK.turns, AssistantTurn({"role": "assistant", "content": "Wait."}), UserTurn("Go.")))
    ((resumed,), _) = await answers([Say("One.", usage=BESIDE)], later)
    assert (resumed.usage, resumed.more) == (in_prompt, None)


async def test_a_cache_once_seen_beside_the_prompt_stays_beside_it_in_the_run() -> None:
    clearly = {**BESIDE, "prompt_tokens_details": {"cached_tokens": 384}}
    found, _ = await answers([Say("One.", usage=clearly), Say("Two.", usage=BESIDE)], times=2)
    assert [(one.usage, one.more) for one in found] == [
        (Usage(input_tokens=90, cache_read_tokens=384, output_tokens=40), None),
        (Usage(input_tokens=90, cache_read_tokens=80, output_tokens=40), None),
    ]


async def test_sends_exactly_the_encoded_body() -> None:
    raw = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "extra": {"ü": 1}}],
        "odd": "kept",
    }
    turns = (UserTurn("Grüße \ud800 now"), AssistantTurn(raw), ToolTurn("a", "search", "nothing"))
    request = Request("test", "", (SEARCH,), turns, 512)
    _, (received,) = await answers([Say("ok")], request)

    model = HttpModel("custom", "test", "http://x/v1", None, ClientPool(), ChatWire())
    assert received.body == model.encode(request)
    assert received.path == "/v1/chat/completions"
    assert received.json["messages"][1] == raw
    assert received.json["messages"][0]["content"] == "Grüße \ufffd now"
    assert received.json["messages"][2] == {"role": "tool", "tool_call_id": "a", "content": "nothing"}
    assert received.json["max_tokens"] == 512
    assert "n" not in received.json


async def test_the_key_is_sent_only_in_the_header() -> None:
    _, (received,) = await answers([Say("ok")])

    assert received.headers["authorization"] == "Bearer key-0123456789"
    assert b"key-0123456789" not in received.body
    assert "key-0123456789" not in repr(HttpModel("p", "m", "http://x", "key-0123456789", ClientPool(), ChatWire()))


async def test_without_a_key_there_is_no_authorization_header(clients: ClientPool) -> None:
    with anyio.fail_after(20), run_model_server([Say("ok")]) as server:
        async with HttpModel("p", "m", server.base_url, None, clients, ChatWire()).stream(ASK) as stream:
            async for _ in stream:
                pass
        assert "authorization" not in server.requests[0].headers


async def test_the_next_call_reuses_the_connection(clients: ClientPool) -> None:
    with anyio.fail_after(20), run_model_server([Say("a"), Say("b"), Say("c", stream=False)]) as server:
        model = HttpModel("p", "m", server.base_url, None, clients, ChatWire())
        for _ in range(3):
            async with model.stream(ASK) as stream:
                async for _ in stream:
                    pass
        assert server.connections == 1


async def test_calls_at_the_same_time_get_a_client_each() -> None:
    clients = ClientPool()
    async with clients.client() as first, clients.client() as second:
        assert first is not second
    assert clients.size == 2
    async with clients.client() as again:
        assert again is first
    await clients.aclose()
    assert again.is_closed


async def test_closes_a_client_after_a_long_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_server.models.http_clients.KEEP_ALIVE_S", 0.0)
    clients = ClientPool()
    async with clients.client() as first, clients.client() as second:
        assert clients.size == 2
    async with clients.client() as again:
        assert again is first
    assert second.is_closed and not first.is_closed
    assert clients.size == 1
    await clients.aclose()


async def test_leaving_the_stream_closes_the_connection_at_once(clients: ClientPool) -> None:
    gate = Gate()
    with anyio.fail_after(20), run_model_server([Say("never", gate=gate)]) as server:
        model = HttpModel("p", "m", server.base_url, None, clients, ChatWire())

        async def ask() -> None:
            async with model.stream(ASK):
                pytest.fail("no answer was sent")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            assert await anyio.to_thread.run_sync(gate.arrived.wait, 5)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(gate.client_left.wait, 5)


async def test_text_arrives_as_deltas_while_the_answer_streams(clients: ClientPool) -> None:
    with (
        anyio.fail_after(20),
        run_model_server([Say("one two three", reasoning="hm", fragment=4)]) as server,
    ):
        async with HttpModel("p", "m", server.base_url, None, clients, ChatWire()).stream(ASK) as stream:
            with pytest.raises(RuntimeError, match="read to its end"):
                _ = stream.completion
            deltas = [delta async for delta in stream]
    assert "".join(delta.text for delta in deltas) == "one two three"
    assert "".join(delta.thinking for delta in deltas) == "hm"
    assert len([delta for delta in deltas if delta.text]) == 4


WHOLE = b"".join(events(Say("döor ✓ 🚪 fin", [("search", {"q": "ü🚪"})], fragment=3))).decode()


@given(st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_stream_parses_the_same_wherever_it_is_split(line_end: str, data: st.DataObject) -> None:
    wire = WHOLE.replace("\n", line_end).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    assert read_events([wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]) == read_events([wire])


def test_an_error_field_without_an_error_is_none() -> None:
    reader = EventReader()
    assert reader.feed(b'error: null\n\nerror:\ndata: {"a": 1}\n\n') == ['{"a": 1}'] and not reader.errors


def test_a_stream_parses_the_same_byte_by_byte() -> None:
    wire = WHOLE.encode()
    assert read_events([wire[n : n + 1] for n in range(len(wire))]) == read_events([wire])
    assert read_events([wire])[-1] == "[DONE]"


def read_events(pieces: Sequence[bytes]) -> list[str]:
    reader = EventReader()
    found = [data for piece in pieces for data in reader.feed(piece)] + reader.finish()
    assert reader.replaced == 0
    return found


def test_reported_usage_bounds_later_calls() -> None:
    model = HttpModel("p", "m", "http://x", None, ClientPool(), ChatWire(), deadlines=Deadlines(total_s=1))
    loose = model.bound(ASK, None)
    tight = model.bound(ASK, ReportedUsage((Segment(40, (0,)),), {}))
    assert loose.prompt_tokens > 1024 > tight.prompt_tokens == 40
    assert loose.output_tokens == tight.output_tokens == 256


async def test_calls_use_the_proxy_from_the_environment(clients: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with anyio.fail_after(20), run_model_server([Say("through the proxy")]) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        async with HttpModel("p", "m", "http://model.invalid/v1", None, clients, ChatWire()).stream(ASK) as stream:
            async for _ in stream:
                pass
        assert stream.completion.text == "through the proxy"
        assert server.requests[0].path == "http://model.invalid/v1/chat/completions"


@pytest.mark.parametrize("size", [10, 300_000])
async def test_a_request_that_the_check_refuses_never_arrives_whole(clients: ClientPool, size: int) -> None:
    checks = 0

    async def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 1:
            raise StaleOwner("somebody else has the run")

    asked = replace(ASK, turns=(UserTurn("x" * size),))
    with anyio.fail_after(20), run_model_server([Say("hello")]) as server:
        model = HttpModel("custom", "test", server.base_url, None, clients, ChatWire())
        with pytest.raises(StaleOwner):
            async with model.stream(asked, check):
                pass
        async with model.stream(asked, check) as stream:
            async for _ in stream:
                pass
        assert [each.body for each in server.requests] == [model.encode(asked)]
        assert stream.completion.text == "hello" and server.connections == 2
