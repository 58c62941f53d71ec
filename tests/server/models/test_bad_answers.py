"""What an endpoint can do wrong: each case has a sentence of its own, and settles as what it is."""

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from support.model_server import Fail, Gate, HangUp, Raw, Say, Step, events, run_model_server

from ava_audit.events import Usage
from ava_server.core.errors import ModelError, ModelTimeout
from ava_server.models.base import Completion, Request, UserTurn
from ava_server.models.errors import Endpoint, may_have_been_billed
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.google import GoogleWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire
from ava_server.models.wires.stream import Deadlines
from ava_server.models.wires.wire import Wire

PATIENT = Deadlines()
KEY = "sk-or-v1-0123456789abcdef0123"
ASK = Request("acme/model-1", "", (), (UserTurn("hello"),), 256)
WORDS = events(Say("the blue döor"))
HALF = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "blu'
ERROR = {"error": {"message": f"no such thing for {KEY}", "code": 503}}


@dataclass(frozen=True)
class Case:
    step: Step
    kind: str
    says: str
    answered: bool = True
    billed: bool = True
    retryable: bool = True


def cut_in_character() -> bytes:
    whole = b"".join(WORDS)
    return whole[: whole.index("ö".encode()) + 1]


CASES = {
    "401": Case(Fail(401), "auth", "refused the key sk-… (HTTP 401)", False, False, False),
    "402": Case(Fail(402), "usage_limit", "has no credit left", False, False, False),
    "404": Case(Fail(404), "bad_request", "no such path or model 'acme/model-1'", False, False, False),
    "400": Case(Fail(400), "bad_request", "refused the request to 'acme/model-1'", False, False, False),
    "429 with seconds": Case(Fail(429, retry_after="7"), "rate_limit", "no more calls for 7 s", False, False),
    "429 without": Case(Fail(429), "rate_limit", "does not say until when", False, False),
    "500": Case(Fail(500), "overloaded", "failed (HTTP 500): scripted failure", False, False),
    "529": Case(Fail(529, b"<html>busy"), "overloaded", "is overloaded (HTTP 529).", False, False),
    "redirect": Case(
        Fail(308, headers={"location": f"https://x.example/v1?k={KEY}"}),
        "bad_request",
        "redirects to https://x.example/v1 (HTTP 308)",
        False,
        False,
        False,
    ),
    "hung up": Case(HangUp(), "connection", "hung up before it answered", False),
    "half a body": Case(Raw([HALF], "application/json", missing=99), "dropped", "broke off after 74 bytes"),
    "half a body, said to be whole": Case(Raw([HALF], "application/json"), "dropped", "is half a body: 74 bytes"),
    "html": Case(Raw([b"<!doctype html><p>Welcome"], "text/html"), "bad_answer", "a web page instead", retryable=False),
    "text": Case(Raw([b"OK"], "text/plain"), "bad_answer", "text that is not JSON: 'OK'", retryable=False),
    "no choices": Case(
        Raw([b'{"id": 1, "output": []}'], "application/json"),
        "bad_answer",
        "JSON without `choices` (it has: id, output)",
        retryable=False,
    ),
    "error in a body": Case(
        Raw([json.dumps(ERROR).encode()], "application/json"),
        "overloaded",
        "200 with an error in the body: no such thing for … [503]",
    ),
    "error in a stream": Case(
        Raw([*WORDS[:3], b'event: error\ndata: {"error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n']),
        "overloaded",
        "200 with an error in the body: Overloaded [overloaded_error]",
    ),
    "stream cut in a character": Case(
        Raw([cut_in_character()], chunked=True, cut=True),
        "dropped",
        "broke off in the middle of a UTF-8 character",
    ),
    "stream ends in a character": Case(
        Raw([cut_in_character()]), "dropped", "stopped in the middle of a UTF-8 character"
    ),
    "stream broken": Case(
        Raw(WORDS[:3], chunked=True, cut=True), "dropped", f"broke off after {sum(map(len, WORDS[:3]))} bytes"
    ),
    "stream without its end": Case(Raw(WORDS[:3]), "dropped", "ended without a finish reason"),
    "stream of something else": Case(
        Raw([b"data: pong\n\n"]), "bad_answer", "an event that is not JSON: 'pong'", retryable=False
    ),
    "stream of a list": Case(Raw([b"data: []\n\n"]), "bad_answer", "an event that is a list", retryable=False),
    "stream as plain text": Case(
        Raw(WORDS[:3], "text/plain"),
        "dropped",
        "(a stream sent as plain text) ended before its finish reason",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_describes_each_bad_answer_in_one_sentence(name: str, clients: ClientPool) -> None:
    case = CASES[name]
    with run_model_server([case.step, Say("fine")]) as server:
        error = await failure(server.base_url, clients)
        assert case.says in str(error)
        assert f"127.0.0.1:{server.port}/v1/chat/completions" in str(error)
        assert KEY not in f"{error} {error.what_to_do}"
        assert error.what_to_do
        assert (error.kind, error.sent, error.answered) == (case.kind, True, case.answered)
        assert error.retryable is case.retryable
        assert may_have_been_billed(error) is case.billed
        assert (await ask(server.base_url, clients)).text == "fine"
        assert len(server.requests) == 2


async def test_maps_an_anthropic_stream_error_event_by_its_type(clients: ClientPool) -> None:
    said = {"type": "error", "error": {"type": "rate_limit_error", "message": "try again in 3s"}, "request_id": "req_7"}
    begun = b'event: message_start\ndata: {"type": "message_start", "message": {"id": "msg_1", "content": []}}\n\n'
    broken = Raw([begun, f"event: error\ndata: {json.dumps(said)}\n\n".encode()])
    with run_model_server([broken]) as server:
        model = HttpModel("anthropic", "claude", server.base_url, KEY, clients, MessagesWire(), PATIENT)
        with pytest.raises(ModelError) as caught:
            async with model.stream(ASK) as stream:
                async for _ in stream:
                    pass
    error = caught.value
    assert (error.kind, error.retryable, error.answered) == ("rate_limit", True, True)
    assert error.again_after_s == 3.0 and "it takes calls again at 20" in str(error)


async def test_every_case_has_its_own_sentence(clients: ClientPool) -> None:
    sentences: set[str] = set()
    with run_model_server([case.step for case in CASES.values()]) as server:
        for _ in CASES:
            error = await failure(server.base_url, clients)
            sentences.add(re.sub(r"\d+", "0", re.sub(r"\(HTTP \d+\)", "", str(error))))
    assert len(sentences) == len(CASES)


async def test_an_unreachable_endpoint_is_not_billed(clients: ClientPool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = await failure(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", clients)
    assert "No connection to 127.0.0.1:" in str(error)
    assert (error.kind, error.sent, error.retryable) == ("connection", False, True)
    assert not may_have_been_billed(error)


async def test_a_host_whose_name_has_no_address_is_named_with_what_may_be_wrong(clients: ClientPool) -> None:
    error = await failure("https://bedrock-runtime.us-moon-9.amazonaws.invalid/openai/v1", clients)
    assert str(error) == (
        "No connection to bedrock-runtime.us-moon-9.amazonaws.invalid/openai/v1/chat/completions: the name of its host"
        " has no address."
    )
    assert "a region or resource in it (`base_url` in config.toml) may be wrong" in error.what_to_do
    assert (error.kind, error.sent, error.retryable) == ("connection", False, True)
    assert not may_have_been_billed(error)


@pytest.mark.parametrize(
    ("step", "deadlines", "says"),
    [
        (Say("x", gate=Gate()), Deadlines(first_byte_s=0.1), "0.1 s: no answer began"),
        (Raw(WORDS[:3], missing=9, stall=Gate()), Deadlines(between_s=0.1), "0.1 s: no further byte"),
        (
            Raw(WORDS[:3], missing=9, stall=Gate()),
            Deadlines(total_s=1),
            "1 s: the answer was not complete",
        ),
    ],
)
async def test_each_kind_of_wait_has_its_own_deadline(
    step: Step, deadlines: Deadlines, says: str, clients: ClientPool
) -> None:
    with run_model_server([step]) as server:
        error = await failure(server.base_url, clients, deadlines)
    assert isinstance(error, ModelTimeout)
    assert says in str(error)
    assert may_have_been_billed(error)


async def test_a_slow_trickle_does_not_outlast_the_total_deadline(clients: ClientPool) -> None:
    drip = Raw([b": still here\n\n"] * 1000, chunked=True, pause_s=0.02)
    with run_model_server([drip]) as server:
        error = await failure(server.base_url, clients, Deadlines(between_s=5, total_s=1))
    assert "the answer was not complete" in str(error)


async def test_an_error_after_the_finish_reason_is_only_a_note(clients: ClientPool) -> None:
    with run_model_server([Raw(WORDS[:-2], chunked=True, cut=True)]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.text == "the blue döor"
    assert completion.usage is None
    assert any(note.startswith("after the answer: ") for note in completion.notes)
    assert "the provider reported no usage" in completion.notes


def usage_case(usage: str, said: str) -> tuple[bytes, str]:
    answer = '{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": ' + usage + "}"
    return answer.encode(), said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        usage_case('{"prompt_tokens": NaN, "completion_tokens": 1}', "prompt_tokens is nan"),
        usage_case(f'{{"prompt_tokens": 1{"0" * 30}, "completion_tokens": 1}}', "prompt_tokens is 1000"),
        usage_case(f'{{"prompt_tokens": 1, "completion_tokens": 1{"0" * 5000}}}', "completion_tokens is inf"),
        usage_case('{"prompt_tokens": -3, "completion_tokens": 1}', "prompt_tokens is -3"),
        usage_case('{"prompt_tokens": "many", "completion_tokens": 1}', "prompt_tokens is many"),
        usage_case('{"completion_tokens": 1}', "prompt_tokens is missing"),
        usage_case('{"prompt_tokens": 0, "completion_tokens": 1}', "a prompt of 0 tokens for"),
        usage_case('{"prompt_tokens": 100, "completion_tokens": 0}', "0 tokens for an answer that is not empty"),
        usage_case("null", "reported no usage"),
    ],
)
async def test_ignores_impossible_usage_figures_and_adds_a_note(answer: bytes, said: str, clients: ClientPool) -> None:
    with run_model_server([Raw([answer], "application/json")]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.usage is None
    assert completion.text == "hi"
    assert any(said in note for note in completion.notes), completion.notes


async def test_replaces_a_lone_surrogate_with_a_storable_character_and_notes_it(clients: ClientPool) -> None:
    pieces = [r"a \ud83d", r"\ude00 b \ud800", " c"]
    chunks = ['data: {"choices": [{"delta": {"content": "' + piece + '"}}]}\n\n' for piece in pieces]
    chunks.append('data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
    with run_model_server([Raw([chunk.encode() for chunk in chunks])]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.text == completion.raw["content"] == "a \U0001f600 b \ufffd c"
    assert "replaced 1 lone surrogate by U+FFFD" in completion.notes


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '{"a": NaN}', '"text"', "[" * 100_000])
async def test_keeps_tool_arguments_that_are_not_an_object_as_text(arguments: str, clients: ClientPool) -> None:
    with run_model_server([Say(calls=[("search", arguments)], fragment=5000)]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.calls[0].args is None
    assert completion.calls[0].raw_args == arguments


async def test_missing_tool_arguments_become_an_empty_object(clients: ClientPool) -> None:
    with run_model_server([Say(calls=[("list", "")])]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.calls[0].args == {}


def test_names_an_endpoint_without_its_secrets() -> None:
    endpoint = Endpoint("https://user:pw@host.example:8/v1?k=1", "m", KEY)
    assert endpoint.place == "host.example:8/v1"
    assert KEY[3:] not in endpoint.key
    assert endpoint.clean(f"bad\n\x1b[31m {KEY} sk-proj-abcdefgh123 Bearer xyz") == "bad [31m … … …"


async def test_an_exhausted_account_is_a_usage_limit_not_a_rate_limit(clients: ClientPool) -> None:
    spent = Fail(429, {"error": {"message": "x", "code": "insufficient_quota"}})
    with run_model_server([spent]) as server:
        assert (await failure(server.base_url, clients)).kind == "usage_limit"


async def test_reports_unreadable_certificates_and_sends_nothing(
    clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/certificates.pem")
    with run_model_server([Say("never")]) as server:
        error = await failure(server.base_url, clients)
        assert server.requests == []
    assert (error.kind, error.sent, error.retryable) == ("connection", False, False)
    assert "SSL_CERT_FILE" in error.what_to_do
    assert not may_have_been_billed(error)


def sent(*chunks: Any) -> Raw:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in chunks]
    return Raw([f"data: {text}\n\n".encode() for text in texts])


def piece(**delta: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


USED = {"choices": [], "usage": {"prompt_tokens": 22, "completion_tokens": 5, "total_tokens": 27}}
CALL = {"index": 0, "id": "a", "function": {"name": "search", "arguments": '{"q": "x"}'}}
HALF_CALL = {"index": 0, "id": "a", "function": {"name": "search", "arguments": '{"q": '}}


@pytest.mark.parametrize("chunks", [(piece(content="4"), USED), (piece(tool_calls=[CALL]), USED)])
async def test_a_whole_stream_without_a_finish_reason_is_an_answer(chunks: Any, clients: ClientPool) -> None:
    with run_model_server([sent(*chunks, "[DONE]")]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.text == "4" or completion.calls[0].args == {"q": "x"}
    assert completion.usage is not None and completion.usage.output_tokens == 5
    assert any("without a finish reason" in note for note in completion.notes)


@pytest.mark.parametrize(
    "chunks",
    [
        (piece(content="4"), USED),
        (piece(content="4"), "[DONE]"),
        (USED, "[DONE]"),
        (piece(tool_calls=[HALF_CALL]), USED, "[DONE]"),
    ],
)
async def test_a_cut_stream_without_a_finish_reason_stays_dropped(chunks: Any, clients: ClientPool) -> None:
    with run_model_server([sent(*chunks)]) as server:
        assert (await failure(server.base_url, clients)).kind == "dropped"


async def test_events_that_are_no_json_are_skipped(clients: ClientPool) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    with run_model_server([sent("", "pong", "[]", piece(content="4"), end, USED, "[DONE]")]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.text == "4"
    assert "skipped 2 event(s) that are no JSON object" in completion.notes


async def test_an_answer_that_azures_filter_cut_off_is_booked_by_its_usage(clients: ClientPool) -> None:
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": {"hate": {"filtered": True}}}
    body = {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}}
    with run_model_server([Raw([json.dumps(body).encode()], "application/json")]) as server:
        completion = await ask(server.base_url, clients)
    assert (completion.stop_reason, completion.text) == ("content_filter", "")
    assert completion.usage == Usage(input_tokens=100)


async def test_usage_in_an_event_with_an_error_counts(clients: ClientPool) -> None:
    end = {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "length"}]}
    error = {"error": {"code": 400, "message": "Token limit reached"}, **USED}
    with run_model_server([sent(end, error, "[DONE]")]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.usage is not None and completion.usage.prompt_tokens == 22


@pytest.mark.parametrize(
    ("step", "kind", "says"),
    [
        (Fail(204), "bad_answer", "comes without an answer"),
        (Fail(418), "bad_request", "Do what the provider says"),
        (
            Fail(400, b'{"error": {"code": "content_filter", "message": "no"}}'),
            "bad_request",
            "did not let the content through its filter",
        ),
        (Fail(400, b'{"error": {"message": "Budget has been exceeded!"}}'), "usage_limit", "has no budget left"),
    ],
)
async def test_the_advice_fits_the_refusal(step: Step, kind: str, says: str, clients: ClientPool) -> None:
    with run_model_server([step]) as server:
        error = await failure(server.base_url, clients)
    assert error.kind == kind
    assert says in f"{error} {error.what_to_do}"
    assert "supports tools" not in error.what_to_do


@pytest.mark.parametrize(
    "step",
    [
        Raw([b'{"object": "error", "message": "no such luck", "code": 400}'], "application/json"),
        Raw([b'{"detail": "no such luck"}'], "application/json"),
        Raw([b'{"detail": [{"loc": ["body"], "msg": "no such luck"}]}'], "application/json"),
        Raw([b'{"detail": ', b'"no such luck"}'], "text/event-stream"),
        Raw([b'\n{"error": {"message": "no such luck"}}'], "text/event-stream"),
        Raw([b'data: {"object": "error", "message": "no such luck"}\n\n']),
        Raw([b'event: error\ndata: {"message": "no such luck"}\n\n']),
        Raw([b"event: error\ndata: no such luck\n\n"]),
        Raw([b'event: error\ndata: "no such luck"\n\n']),
        Raw([b'error: {"code": 400, "message": "no such luck", "type": "invalid_request_error"}\n\n']),
        Raw([b"error: no such luck\n\n"]),
        Raw([b'error: {"message": "no such luck"}\n\n'], "text/plain"),
        Raw([b"event: error\ndata: no such luck\n\n"], "text/plain"),
    ],
)
async def test_an_error_in_a_200_keeps_its_words(step: Step, clients: ClientPool) -> None:
    for wire in (ChatWire(), MessagesWire(), ResponsesWire(), GoogleWire()):
        with run_model_server([step]) as server:
            error = await failure(server.base_url, clients, wire=wire)
        assert "no such luck" in str(error), wire


@pytest.mark.parametrize(
    "step",
    [
        Fail(500, b'{"error": "error parsing tool call: raw=x"}'),
        Fail(400, b'{"error": {"code": "output_parse_failed", "message": "no"}}'),
    ],
)
async def test_what_the_model_wrote_and_the_provider_refused_may_be_billed(step: Step, clients: ClientPool) -> None:
    with run_model_server([step]) as server:
        error = await failure(server.base_url, clients)
    assert error.kind == "rejected"
    assert may_have_been_billed(error)


REFUSED = {"error": {"code": "tool_use_failed", "message": "no", "failed_generation": "x"}}
REPORTED = {"prompt_tokens": 22, "completion_tokens": 5, "total_tokens": 27}


@pytest.mark.parametrize(
    ("step", "output"),
    [
        (sent(piece(content="4"), {**ERROR, "usage": REPORTED}), 5),
        (Raw([json.dumps({**ERROR, "usage": REPORTED}).encode()], "application/json"), 5),
        (Fail(400, {**REFUSED, "usage": REPORTED}), 5),
        (Fail(503, {"error": {"message": "no", "usage": REPORTED}}), 5),
        (sent({**REFUSED, "x_groq": {"usage": REPORTED}}), 5),
        # Not to be believed: nothing of what was streamed, or a part of a prompt.
        (sent(piece(content="4"), {**ERROR, "usage": {**REPORTED, "completion_tokens": 0, "total_tokens": 22}}), None),
        (Fail(400, {**REFUSED, "usage": {"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 5}}), None),
        (sent(USED, piece(content="4"), ERROR), None),  # it was reported before the error, and may have grown
    ],
)
async def test_an_error_tells_what_the_call_used(step: Step, output: int | None, clients: ClientPool) -> None:
    with run_model_server([step]) as server:
        error = await failure(server.base_url, clients)
    assert may_have_been_billed(error)
    assert (error.usage.output_tokens if error.usage is not None else None) == output


@pytest.mark.parametrize("usage", [None, {}, dict.fromkeys(REPORTED, 0), {"total_time": 0.2}, "much"])
async def test_a_refusal_without_use_costs_nothing(usage: Any, clients: ClientPool) -> None:
    with run_model_server([Fail(400, {"error": {"message": "no"}, "usage": usage})]) as server:
        error = await failure(server.base_url, clients)
    assert error.usage is None
    assert not may_have_been_billed(error)


async def test_an_error_of_messages_and_responses_tells_what_the_call_used(clients: ClientPool) -> None:
    used = {"input_tokens": 22, "output_tokens": 5}
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no"}, "usage": used}}
    broken = {"type": "error", "error": {"type": "api_error", "message": "no"}, "usage": used}
    for wire, step in ((ResponsesWire(), sent(failed)), (MessagesWire(), sent(broken))):
        with run_model_server([step]) as server, pytest.raises(ModelError) as caught:
            model = HttpModel("custom", "acme/model-1", server.base_url, KEY, clients, wire)
            async with model.stream(ASK) as stream:
                async for _ in stream:
                    pass
        assert caught.value.usage is not None
        assert (caught.value.usage.input_tokens, caught.value.usage.output_tokens) == (22, 5)


async def test_usage_that_groq_gives_unasked_is_read(clients: ClientPool) -> None:
    end = {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "stop"}], "x_groq": {"usage": REPORTED}}
    with run_model_server([sent(end, "[DONE]")]) as server:
        completion = await ask(server.base_url, clients)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.output_tokens) == (22, 5)


async def ask(
    base_url: str, clients: ClientPool, deadlines: Deadlines = PATIENT, wire: Wire | None = None
) -> Completion:
    model = HttpModel("custom", "acme/model-1", base_url, KEY, clients, wire or ChatWire(), deadlines)
    with anyio.fail_after(20):
        async with model.stream(ASK) as stream:
            async for _ in stream:
                pass
        return stream.completion


async def failure(
    base_url: str, clients: ClientPool, deadlines: Deadlines = PATIENT, wire: Wire | None = None
) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(base_url, clients, deadlines, wire)
    return caught.value
