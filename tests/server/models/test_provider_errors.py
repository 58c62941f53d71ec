"""What each provider's errors mean: kind, whether to ask again, until when, one sentence and one next step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.errors import Endpoint
from ava_server.models.retry_after import MOST_S

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
KEY = "sk-or-v1-0123456789abcdef0123"
ENDPOINT = Endpoint("https://api.example/v1/messages", "acme/model-1", KEY)
DECEMBER = 236 * 3600.0
LIMITS = "You have reached your specified %sAPI usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
RATE = "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29937. Please try again in 1m26.4s."


def anthropic(type_: str, message: str = "said", **details: str) -> dict[str, Any]:
    error = {"type": type_, "message": message, **({"details": details} if details else {})}
    return {"type": "error", "error": error, "request_id": "req_011CZLr"}


def openai(code: str | None, message: str = "said", type_: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def openrouter(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": metadata}}


@dataclass(frozen=True)
class Case:
    status: int
    body: Any
    kind: str
    says: str
    to_do: str
    again_s: float | None = None
    retryable: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


SPENT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795233660000"}
CASES = {
    # Anthropic
    "invalid request": Case(
        400, anthropic("invalid_request_error"), "bad_request", "refused the request", "the provider says"
    ),
    "wrong key": Case(401, anthropic("authentication_error"), "auth", "refused the key sk-…", "ava key set"),
    "no billing": Case(402, anthropic("billing_error"), "usage_limit", "has no credit left", "Add credit"),
    "not permitted": Case(403, anthropic("permission_error"), "auth", "refused the key sk-…", "what it may do"),
    "no such thing": Case(404, anthropic("not_found_error"), "bad_request", "knows no such path or model", "model id"),
    "too large": Case(413, anthropic("request_too_large"), "bad_request", "a prompt this long", "Give it less to read"),
    "rate": Case(
        429, anthropic("rate_limit_error"), "rate_limit", "allows no more calls for 7 s, until 2026-11-21T04:00:07Z"
        " (HTTP 429, request req_011CZLr): said [rate_limit_error].", "runs do so by themselves", 7.0, True,
        {"retry-after": "7"},
    ),
    "rate without a time": Case(
        429, anthropic("rate_limit_error"), "rate_limit", "does not say until when", "Wait a minute.", None, True
    ),
    "rate by the remaining tokens": Case(
        429, anthropic("rate_limit_error"), "rate_limit", "for 33 s, until 2026-11-21T04:00:33Z", "Wait", 33.0, True,
        {"anthropic-ratelimit-output-tokens-remaining": "0",
         "anthropic-ratelimit-output-tokens-reset": "2026-11-21T04:00:33Z"},
    ),
    "its fault": Case(500, anthropic("api_error"), "overloaded", "failed (HTTP 500", "provider's side", None, True),
    "its timeout": Case(504, anthropic("timeout_error"), "overloaded", "failed (HTTP 504", "later", None, True),
    "busy": Case(529, anthropic("overloaded_error"), "overloaded", "is overloaded", "later", None, True),
    "tier's cap": Case(
        429, anthropic("rate_limit_error", error_code="enforced_spend_limit_reached"), "usage_limit",
        "the spending limit of the key sk-…; it takes calls again at 2026-12-01T00:00:00Z", "Raise the limit", DECEMBER
    ),
    "own cap": Case(
        400, anthropic("invalid_request_error", LIMITS % ""), "usage_limit", "again at 2026-12-01T00:00:00Z",
        "Raise the limit in the provider's console, or propose it again with retry_of", DECEMBER,
    ),
    "workspace's cap": Case(
        400, anthropic("invalid_request_error", LIMITS % "workspace "), "usage_limit", "2026-12-01", "Raise", DECEMBER
    ),
    "no balance": Case(
        400, anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        "usage_limit", "has no credit left for the key sk-…", "Add credit",
    ),
    "long prompt": Case(
        400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), "bad_request",
        "cannot take a prompt this long with 'acme/model-1'", "larger context window",
    ),
    # OpenAI
    "milliseconds": Case(
        429, openai("rate_limit_exceeded"), "rate_limit", "for 300 ms, until 2026-11-21T04:00:01Z", "Wait", 0.3, True,
        {"retry-after-ms": "300", "retry-after": "1"},
    ),
    "try again in": Case(
        429, openai("rate_limit_exceeded", RATE, "tokens"), "rate_limit", "for 1 min 26 s", "Wait", 86.4, True
    ),
    "used up": Case(
        429, openai(None), "rate_limit", "for 6 min, until 2026-11-21T04:06:00Z", "Wait", 360.0, True,
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"},
    ),
    "no retry": Case(
        429, openai("slow_down"), "rate_limit", "for 7 s", "Wait", 7.0, False,
        {"retry-after": "7", "x-should-retry": "false"},
    ),
    "retry all the same": Case(
        400, openai(None), "bad_request", "refused the request", "the provider says", 2.0, True,
        {"retry-after": "2", "x-should-retry": "true"},
    ),
    "no retry of a failure": Case(
        500, openai(None), "overloaded", "failed", "later", None, False, {"x-should-retry": "false"}
    ),
    **{
        code: Case(
            429, openai(code, type_="insufficient_quota"), "usage_limit", says, to_do, None, False, {"retry-after": "9"}
        )
        for code, says, to_do in (
            ("insufficient_quota", "has no credit left", "Add credit"),
            ("credit_balance_exhausted", "has no credit left", "Add credit"),
            ("billing_hard_limit_reached", "the spending limit of the key", "Raise the limit"),
            ("organization_spend_limit_exceeded", "the spending limit of the key", "Raise the limit"),
            ("project_spend_limit_exceeded", "the spending limit of the key", "another `model`"),
        )
    },
    "context length": Case(
        400, openai("context_length_exceeded"), "bad_request", "a prompt this long", "larger context window"
    ),
    **{
        f"long prompt: {words[:20]}": Case(
            400, {"error": words}, "bad_request", "a prompt this long", "larger context window"
        )
        for words in (
            "prompt too long; exceeded max context length by 1234 tokens",  # Ollama
            "the input length exceeds the context length",
            "Prompt too long: 41911 tokens exceeds max context window of 32768 tokens",
            "User input tokens exceed the model's limit of 127072",
            "prompt token count of 93854 exceeds the limit of 90000",
            "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
            "Prompt tokens (9000) exceeds context size (4096)",
        )
    },
    "a limit on the answer": Case(
        400, openai("invalid_value", "max_tokens is too large: 99999. It supports at most 4096 completion tokens"),
        "bad_request", "refused the request", "Do what the provider says",
    ),
    "no such model": Case(
        404, openai("model_not_found"), "bad_request", "does not know the model 'acme/model-1', or not for the key",
        "model's id",
    ),
    "a minute's tokens": Case(
        429, openai("rate_limit_exceeded", "Request too large for gpt-5 on tokens per min (TPM): Limit 30000"),
        "rate_limit", "allows fewer tokens in a minute", "Give it less to read", None, False, {"retry-after": "9"}
    ),
    # OpenRouter
    "free models": Case(
        429, openrouter(429, "Rate limit exceeded: free-models-per-day", headers=SPENT), "rate_limit",
        "for 1 min, until 2026-11-21T04:01:00Z", "Wait", 60.0, True,
    ),
    "free models, by headers": Case(429, openrouter(429, "said"), "rate_limit", "1 min", "Wait", 60.0, True, SPENT),
    "behind it": Case(
        502, openrouter(502, "Provider returned error", raw="upstream is away", provider_name="Acme"), "overloaded",
        "Provider returned error: upstream is away [502].", "later", None, True,
    ),
    "no credits": Case(402, openrouter(402, "Insufficient credits"), "usage_limit", "no credit left", "Add credit"),
    "credits in flight": Case(
        402, openrouter(402, "This request requires more credits"), "usage_limit",
        "again at 2026-11-21T04:00:09Z", "credit", 9.0, False,
        {"retry-after": "9"},
    ),
    "the key's own limit": Case(
        403, openrouter(403, "Key limit exceeded (total limit)"), "usage_limit", "the spending limit", "Raise the limit"
    ),
    "tools": Case(
        404, openrouter(404, "No endpoints found that support tool use."), "bad_request",
        "does not support tools with 'acme/model-1'", "a `model` that supports them",
    ),
    "images": Case(
        404, openrouter(404, "No endpoints found that support image input"), "bad_request", "does not support images",
        "Leave",
    ),
    # Groq, Google, local servers, gateways
    "flex": Case(498, openai("capacity_exceeded"), "overloaded", "is overloaded", "later", None, True),
    "blocked": Case(400, openai("blocked_api_access"), "usage_limit", "the spending limit", "Raise the limit"),
    "Google": Case(
        429, [{"error": {"code": 429, "message": "You exceeded your current quota. Please retry in 58.5s.",
                         "status": "RESOURCE_EXHAUSTED"}}],
        "rate_limit", "for 58 s, until 2026-11-21T04:00:59Z", "Wait", 58.5, True,
    ),
    "llama.cpp loads": Case(
        503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "overloaded",
        "is still loading the model", "Wait until it is loaded", None, True,
    ),
    "llama.cpp context": Case(
        400, {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it",
                        "type": "exceed_context_size_error"}},
        "bad_request", "a prompt this long", "larger context window",
    ),
    "Ollama's memory": Case(
        500, {"error": {"message": "model requires more system memory (5.3 GiB) than is available (3.3 GiB)",
                        "type": "api_error"}},
        "bad_request", "has too little memory for 'acme/model-1'", "Free memory",
    ),
    "Ollama's tools": Case(
        400, openai(None, "registry.ollama.ai/library/gemma:2b does not support tools"), "bad_request",
        "does not support tools with", "a `model` that supports them",
    ),
    "Ollama's model": Case(
        404, {"error": 'model "acme/model-1" not found, try pulling it first'}, "bad_request",
        "does not know the model", "id",
    ),
    "subscription": Case(
        429, anthropic("rate_limit_error", "Claude AI usage limit reached|1795251600"), "usage_limit",
        "has reached the usage limit of the key sk-…; it takes calls again at 2026-11-21T09:00:00Z", "up to a day",
        18_000.0,
    ),
    "Codex": Case(
        429, {"error": {"type": "usage_limit_reached", "message": "The usage limit has been reached",
                        "resets_in_seconds": 4000}},
        "usage_limit", "again at 2026-11-21T05:06:40Z", "Wait until then", 4000.0,
    ),
    "usage without a time": Case(429, {"error": "usage limit reached"}, "usage_limit", "HTTP 429", "until it is over"),
}  # fmt: skip


def refused(case: Case) -> ModelError:
    return ENDPOINT.status_error(httpx2.Response(case.status, headers=case.headers), json_text.encode(case.body), NOW)


@pytest.mark.parametrize("name", CASES)
def test_maps_each_provider_error_to_its_meaning_for_that_provider(name: str) -> None:
    case = CASES[name]
    error = refused(case)
    assert case.says in str(error) and case.to_do in error.what_to_do, (str(error), error.what_to_do)
    assert (error.kind, error.retryable, error.answered) == (case.kind, case.retryable, False)
    assert error.again_after_s == (None if case.again_s is None else pytest.approx(case.again_s, abs=1e-6))
    assert "{" not in error.what_to_do


NOT_TAKEN = {
    ("does not take the roles of the messages", "chat template"): (
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "After the optional system message, conversation roles must alternate user/assistant/...",
        "Unexpected role 'tool' after role 'user'",
        "Developer instruction is not enabled for models/a",
        "System role not supported",
    ),
    ("found a tool call without its result", "look for a gateway before 'acme/model-1'"): (
        "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: call_1.",
        "An assistant message with 'tool_calls' must be followed by tool messages",
        "Messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
        "No tool output found for function call call_1.",
        "the number of function response parts is equal to the number of function call parts of the turn.",
        "Not the same number of function calls and responses",
    ),
    ("does not take what is attached", "Leave it out"): (
        "This model doesn't support the video content block that you provided.",
        "Invalid 'messages[3]'. Content blocks are expected to be either text or image_url type.",
        "Expected a base64-encoded data URL, but got unsupported MIME type 'audio/mpeg'.",
        "The file type you uploaded is not supported. Please try again with a pdf",
    ),
    ("does not take the request's content type", "Content-Type"): ("Unsupported Media Type",),
}
"""By what is said and advised: what providers write about a request that they do not take."""


@pytest.mark.parametrize(("says", "to_do"), NOT_TAKEN)
def test_a_request_that_is_not_taken_gets_advice_of_its_own(says: str, to_do: str) -> None:
    for words in NOT_TAKEN[says, to_do]:
        for body in (openai(None, words), {"object": "error", "message": words}, {"detail": words}):
            error = refused(Case(400, body, "bad_request", says, to_do))
            assert says in str(error) and words.rstrip(".") in str(error) and to_do in error.what_to_do
            assert str(error).endswith(".") and ".." not in str(error).replace("...", "") and ". [" not in str(error)
            assert error.kind == "bad_request" and not error.retryable
            within = ENDPOINT.error_in_body(body.get("error", body), {}, NOW)
            assert words.rstrip(".") in str(within) and to_do in within.what_to_do


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429])
def test_where_no_key_was_sent_the_sentence_says_so(status: int) -> None:
    endpoint = Endpoint("http://localhost:8000/v1/chat/completions", "acme/model-1", None)
    body = json_text.encode(openai("model_not_found" if status == 404 else None))
    error = endpoint.status_error(httpx2.Response(status), body, NOW)
    assert "no key" not in str(error)
    assert ("a call without a key" in str(error)) is (status != 429)


OWN_SHAPES = (
    {"object": "error", "message": "no such blue thing"},
    {"detail": "no such blue thing"},
    {"detail": [{"loc": ["body"], "msg": "no such blue thing"}]},
    {"title": "Bad", "reason": "no such blue thing"},
    {"errors": [{"text": "no such blue thing"}]},
    "no such blue thing",
)


@pytest.mark.parametrize("body", OWN_SHAPES)
def test_a_status_that_is_not_known_is_told_with_the_providers_own_words(body: Any) -> None:
    known = {401, 402, 403, 404, 408, 409, 413, 415, 425, 429, 498}
    for status in (*range(201, 207), *sorted(set(range(400, 500)) - known)):
        error = ENDPOINT.status_error(httpx2.Response(status), json_text.encode(body), NOW)
        assert f"(HTTP {status})" in str(error) and "no such blue thing" in str(error)
        assert "tool" not in f"{error} {error.what_to_do}" and error.what_to_do
        assert error.kind == ("bad_request" if status >= 400 else "bad_answer")
    empty = ENDPOINT.status_error(httpx2.Response(204), b"", NOW)
    assert str(empty).endswith("gave a status that comes without an answer (HTTP 204).")


IN_A_STREAM = {
    "overloaded_error": ("overloaded", True),
    "rate_limit_error": ("rate_limit", True),
    "api_error": ("overloaded", True),
    "timeout_error": ("overloaded", True),
    "authentication_error": ("auth", False),
    "permission_error": ("auth", False),
    "billing_error": ("usage_limit", False),
    "invalid_request_error": ("bad_request", False),
    "not_found_error": ("bad_request", False),
    "request_too_large": ("bad_request", False),
    "server_error": ("overloaded", True),
    "insufficient_quota": ("usage_limit", False),
    "something_new": ("bad_answer", False),
}


@pytest.mark.parametrize("type_", IN_A_STREAM)
def test_maps_a_stream_error_by_its_type(type_: str) -> None:
    error = ENDPOINT.error_in_body(anthropic(type_)["error"], {"request-id": "req_7"}, NOW)
    assert (error.kind, error.retryable, error.answered) == (*IN_A_STREAM[type_], True)
    assert f"answered 200 with an error in the body (request req_7): said [{type_}]." in str(error)
    assert error.request_id == "req_7" and error.what_to_do


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [(429, "rate_limit", True), ("502", "overloaded", True), (402, "usage_limit", False), (400, "bad_request", False),
     (1302, "bad_answer", False), (None, "bad_answer", False)],
)  # fmt: skip
def test_maps_a_stream_error_by_its_code(code: Any, kind: str, retryable: bool) -> None:
    error = ENDPOINT.error_in_body({"code": code, "message": "try again in 20s"}, {}, NOW)
    assert (error.kind, error.retryable) == (kind, retryable)
    waits = kind in ("rate_limit", "overloaded", "usage_limit")
    assert error.again_after_s == (20.0 if waits else None)
    assert ("; it takes calls again at 2026-11-21T04:00:20Z" in str(error)) is waits


@pytest.mark.parametrize(
    ("headers", "body", "request_id"),
    [
        ({"x-request-id": "req-1"}, {}, "req-1"),
        ({"request-id": "req_2", "x-request-id": "proxy-3"}, {}, "req_2"),
        ({}, {"request_id": "req_4", "error": {"message": "x"}}, "req_4"),
        ({}, {"request_id": ["req_4"], "error": {"message": "x"}}, None),
        ({"x-request-id": KEY}, {}, None),
        ({"x-request-id": "a b; {key}"}, {}, None),
        ({"x-request-id": "9" * 300}, {}, None),
    ],
)
def test_the_sentence_includes_the_providers_request_id(
    headers: dict[str, str], body: Any, request_id: str | None
) -> None:
    error = ENDPOINT.status_error(httpx2.Response(500, headers=headers), json_text.encode(body), NOW)
    assert error.request_id == request_id
    assert (f"(HTTP 500, request {request_id})" in str(error)) is (request_id is not None)
    assert KEY not in str(error)


WORDS = st.one_of(st.text(), st.sampled_from([case.body for case in CASES.values()]).map(str))
FIELDS = ("error", "message", "type", "code", "details", "error_code", "metadata", "raw", "headers", "request_id")
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(), st.sampled_from(FIELDS)), inner, max_size=6),
    ),
    max_leaves=12,
)


@given(st.integers(300, 599), JSON, st.dictionaries(st.sampled_from(
    ["retry-after", "retry-after-ms", "x-should-retry", "location", "x-request-id", "date"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126)), max_size=4,
))  # fmt: skip
def test_every_error_has_a_sentence(status: int, body: Any, headers: dict[str, str]) -> None:
    content = json_text.encode(json_text.storable(body)[0])
    for error in (
        ENDPOINT.status_error(httpx2.Response(status, headers=headers), content, NOW),
        ENDPOINT.error_in_body(body, headers, NOW),
    ):
        assert str(error).startswith("api.example/v1/messages ") and error.what_to_do
        assert error.again_after_s is None or 0 <= error.again_after_s <= MOST_S
