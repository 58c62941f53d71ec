"""Errors and broken answers of Google's format: their kind, their time, and what they may have cost."""

import json
from typing import Any

import anyio
import pytest
from support.model_server import EVENTS, JSON, Fail, Gate, Raw, run_model_server
from support.models.google_wire import (
    MODEL,
    WIRE,
    ask_google,
    candidate,
    google_error,
    google_events,
    read_answers,
    usage_of,
    whole_event,
)

from ava_audit.events import Usage
from ava_server.core.errors import ModelError
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import ClientPool
from ava_server.models.http_model import HttpModel

RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
QUOTA = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaMetric": "requests"}]}
NO_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
ERRORS: dict[str, tuple[int, Any, str, float | None, bool]] = {
    "wrong key": (400, google_error(400, "INVALID_ARGUMENT", "API key not valid.", NO_KEY), "auth", None, False),
    "no right": (403, google_error(403, "PERMISSION_DENIED", "No access."), "auth", None, False),
    "no model": (404, google_error(404, "NOT_FOUND", "models/x is not found."), "bad_request", None, False),
    "bad field": (400, google_error(400, "INVALID_ARGUMENT", "Unknown name."), "bad_request", None, False),
    "too long": (
        400,
        google_error(400, "INVALID_ARGUMENT", "The input token count (2000000) exceeds the maximum number of tokens"),
        "bad_request",
        None,
        False,
    ),
    "quota": (429, google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", QUOTA, RETRY), "rate_limit", 36.5, True),
    "quota in a list": (429, [google_error(429, "RESOURCE_EXHAUSTED", "Quota.", RETRY)], "rate_limit", 36.5, True),
    "quota in words": (
        429,
        google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded. Please retry in 27.37s."),
        "rate_limit",
        27.37,
        True,
    ),
    "quota without a time": (429, google_error(429, "RESOURCE_EXHAUSTED", "Exhausted."), "rate_limit", None, True),
    "its fault": (500, google_error(500, "INTERNAL", "Internal error."), "overloaded", None, True),
    "busy": (503, google_error(503, "UNAVAILABLE", "The model is overloaded."), "overloaded", None, True),
    "too slow": (504, google_error(504, "DEADLINE_EXCEEDED", "Deadline."), "overloaded", None, True),
    "signature": (
        400,
        google_error(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts."),
        "thinking",
        None,
        True,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_each_error_has_its_kind_and_time(name: str) -> None:
    status, body, kind, again_s, retryable = ERRORS[name]
    with pytest.raises(ModelError) as caught:
        await read_answers([Fail(status, body)])
    error = caught.value
    assert (error.kind, error.again_after_s, error.retryable) == (kind, again_s, retryable)
    assert not may_have_been_billed(error)
    assert error.what_to_do
    assert "key-0123456789" not in str(error)


@pytest.mark.parametrize("name", ["quota", "busy", "its fault", "bad field"])
async def test_an_error_in_the_middle_of_a_stream_may_have_been_billed(name: str) -> None:
    _, body, kind, again_s, _ = ERRORS[name]
    with pytest.raises(ModelError) as caught:
        await read_answers([google_events({**candidate({"text": "half"}), "usageMetadata": usage_of(90, 2)}, body)])
    assert (caught.value.kind, caught.value.again_after_s) == (kind, again_s)
    assert may_have_been_billed(caught.value)


BROKEN = {
    "no finish reason": (google_events(candidate({"text": "half a sent"})), "ended without a finish reason"),
    "nothing at all": (Raw([], EVENTS), "ended without a finish reason"),
    "half an event": (Raw([b'data: {"candidates": [{"content"'], EVENTS), "not JSON"),
    "half a body": (Raw([b'{"candidates": ['], JSON), "half a body"),
    "another format": (whole_event({"choices": []}), "JSON without `candidates`"),
    "an empty list": (whole_event({"candidates": []}), "JSON without `candidates`"),
    "a list of nothing": (Raw([b"[]"], JSON), "JSON without `candidates`"),
    "a list of something else": (Raw([b'[{"choices": []}]'], JSON), "JSON without `candidates`"),
    "half a list": (Raw([b'[{"candidates": [{"content": {"parts": [{"text": "a"}]}}]},'], JSON), "half a body"),
    "a list without an end": (Raw([json.dumps([candidate({"text": "half"})]).encode()], JSON), "finish reason"),
    "a list with an error": (
        Raw(
            [json.dumps([candidate({"text": "half"}), google_error(503, "UNAVAILABLE", "Overloaded.")]).encode()], JSON
        ),
        "Overloaded",
    ),
    "a page": (Raw([b"<html>Welcome"], "text/html"), "a web page"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_answer_is_an_error_that_may_have_been_billed(name: str) -> None:
    step, words = BROKEN[name]
    with pytest.raises(ModelError, match=words) as caught:
        await read_answers([step])
    assert may_have_been_billed(caught.value)


async def test_a_stream_that_breaks_after_its_end_is_an_answer() -> None:
    said = {**candidate({"text": "all"}, finish="STOP"), "usageMetadata": usage_of(90, 5)}
    broken = Raw([f"data: {json.dumps(said)}\n\n".encode()], EVENTS, chunked=True, cut=True)
    (completion,), _ = await read_answers([broken])
    assert completion.text == "all"
    assert completion.usage == Usage(input_tokens=90, output_tokens=5)


async def test_leaving_in_the_middle_of_a_stream_closes_the_connection() -> None:
    gate = Gate()
    begun = [f"data: {json.dumps(candidate({'text': 'half'}))}\n\n".encode()]
    with anyio.fail_after(20), run_model_server([Raw(begun, EVENTS, chunked=True, stall=gate)]) as server:
        async with ClientPool() as clients:
            model = HttpModel("google", MODEL, server.base_url, None, clients, WIRE)
            async with model.stream(ask_google()) as stream:
                async for delta in stream:
                    if delta.text:
                        break
        assert await anyio.to_thread.run_sync(gate.client_left.wait, 10)
