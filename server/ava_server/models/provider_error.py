"""Reading a provider's error, whatever its shape.

The shapes are those of OpenAI ({error: {message, type, code}}), Anthropic ({type: "error", error: {type, message,
details: {error_code}}, request_id}), OpenRouter ({error: {code, message, metadata: {raw, headers}}}), Google (the same
in a list), and servers that send no more than words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ava_server.core.errors import ModelErrorKind
from ava_server.models.wires import base
from ava_server.models.wires.base import as_list, as_object

_MOST_CHARS = 4_000
"""Characters of an error that are looked at."""


@dataclass(frozen=True)
class ProviderError:
    """An error as a provider said it.

    Attributes:
        words: Its message, with its code, for people.
        codes: Every type and code in it, in small letters.
        headers: What stands in it that is a header elsewhere.
        request_id: The provider's id of the call.
    """

    words: str = ""
    codes: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str | None = None


def read(content: bytes) -> ProviderError:
    """Read the body of an error."""
    text, _ = base.decode_text(content)
    try:
        answer = base.decode(text)
    except base.NotJsonError:
        return ProviderError("" if text.lstrip().startswith("<") else text[:_MOST_CHARS])
    if isinstance(answer, list) and len(as_list(answer)) == 1:  # Google
        answer = as_list(answer)[0]
    outer = as_object(answer) or {}
    return said_in(outer.get("error") or answer, outer.get("request_id"))


def said_in(error: Any, request_id: Any = None) -> ProviderError:
    """Read an error that stands in an answer's place."""
    fields = as_object(error)
    if fields is None:
        return ProviderError(str(error)[:_MOST_CHARS])
    metadata, details = as_object(fields.get("metadata")) or {}, as_object(fields.get("details")) or {}
    words = fields.get("message") or fields.get("detail") or ""
    code = details.get("error_code") or fields.get("code") or fields.get("type")
    if raw := metadata.get(
        "raw"
    ):  # what the provider behind OpenRouter said; its own message is "Provider returned error"
        words = f"{words}: {raw}"
    told = (fields.get("type"), fields.get("code"), details.get("error_code"), metadata.get("error_type"),
            fields.get("status"))  # fmt: skip
    own_id = fields.get("request_id") or request_id
    return ProviderError(
        words=f"{words[:_MOST_CHARS]} [{code}]" if code and isinstance(words, str) else str(words)[:_MOST_CHARS],
        codes=frozenset(str(one).lower() for one in told if isinstance(one, str | int)),
        headers=_headers_in(fields, metadata),
        request_id=own_id if isinstance(own_id, str) else None,
    )


def _headers_in(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that stand in an error (OpenRouter), and a wait that has a field of its own (Codex)."""
    found = dict(as_object(metadata.get("headers")) or {})
    if "resets_in_seconds" in fields:
        found["retry-after"] = fields["resets_in_seconds"]
    return {name.lower(): str(value) for name, value in found.items() if isinstance(value, str | int | float)}


_DATED = "; it takes calls again at {until}"
_AGAIN = "or propose it again with retry_of and another `model`"


@dataclass(frozen=True)
class ErrorMeaning:
    """What an error means; {key}, {model}, {to} (a redirect's target), {wait} and {until} may stand in its texts.

    Attributes:
        kind: Of the closed set.
        happened: What the provider did.
        to_do: One next step.
        retryable: Sending the same again can help.
        waits: When the provider takes calls again counts, where it says so.
        dated: What is added when it says so.
        undated: What is added when it does not.
        undated_to_do: The next step then, if it is another.
    """

    kind: ModelErrorKind
    happened: str
    to_do: str
    retryable: bool = False
    waits: bool = False
    dated: str = _DATED
    undated: str = ""
    undated_to_do: str = ""

    def in_a_body(self) -> ErrorMeaning:
        """Return the same, said of an error in the body of a 200."""
        return replace(self, happened="answered 200 with an error in the body", dated=_DATED, undated="")


@dataclass(frozen=True)
class _Rule:
    """A meaning that is told by a code, or by words: the status alone would say something else."""

    means: ErrorMeaning
    codes: frozenset[str]
    words: re.Pattern[str] | None = None
    below: int = 500  # of statuses from here on, words say nothing of this kind


def _rule(means: ErrorMeaning, codes: str = "", words: str | None = None, *, below: int = 500) -> _Rule:
    return _Rule(means, frozenset(codes.split()), re.compile(words, re.IGNORECASE) if words else None, below)


_RAISE = f"Raise the limit in the provider's console, {_AGAIN}."
_NO_CREDIT = ErrorMeaning("usage_limit", "has no credit left for {key}", "Add credit there, or use another key.")
# OpenRouter: calls under way hold credit, and a 402 with `retry-after` is over then (openrouter.ai/docs/api/errors).
_PAID_LATER = replace(_NO_CREDIT, waits=True)
_TOO_LONG = ErrorMeaning(
    "bad_request",
    "cannot take a prompt this long with {model}",
    f"Give it less to read, {_AGAIN} with a larger context window.",
)
_LOADING = ErrorMeaning(
    "overloaded", "is still loading the model", "Wait until it is loaded, then try again.", retryable=True, waits=True
)
_RULES = (
    # Anthropic binds it to what stood before it, OpenAI seals it: what came in between may have touched either.
    _rule(
        ErrorMeaning(
            "thinking",
            "no longer takes back what {model} has thought",
            "Runs go on without it by themselves, once; if that does not help, try another model.",
            retryable=True,
        ),
        "invalid_encrypted_content",
        r"invalid `?signature`? in `?thinking|thinking`?.{0,60} blocks .{0,80}cannot be modified|"
        r"bound to a different conversation|expected `thinking`|encrypted content .{0,200}could not be verified",
    ),
    # Of Anthropic, and both end at a time (see `limits.SPENT_FOR_THE_MONTH`; anthropics/claude-code#38035).
    _rule(
        ErrorMeaning("usage_limit", "has reached the spending limit of {key}", _RAISE, waits=True),
        "enforced_spend_limit_reached",
        r"specified (?:\w+ )?api usage limits",
    ),
    # Of OpenAI (help.openai.com/en/articles/6614457): "retrying these errors won't restore access". Groq: a 400.
    _rule(
        ErrorMeaning("usage_limit", "has reached the spending limit of {key}", _RAISE),
        "billing_hard_limit_reached organization_spend_limit_exceeded project_spend_limit_exceeded"
        " organization_usage_limit_exceeded blocked_api_access",
        r"\bkey limit exceeded",
    ),
    _rule(
        _NO_CREDIT,
        "insufficient_quota credit_balance_exhausted billing_not_active",
        r"\binsufficient_quota\b|credit balance is too low",
    ),
    _rule(_PAID_LATER, "insufficient_credits", r"insufficient (?:credits|balance)|requires more credits"),
    _rule(
        ErrorMeaning(
            "usage_limit",
            "has reached the usage limit of {key}",
            f"Wait until then (runs do so by themselves, up to a day), {_AGAIN}.",
            waits=True,
            undated_to_do=f"Wait until it is over, {_AGAIN}.",
        ),
        "usage_limit_reached",
        r"usage limit (?:has been )?reached|(?:hit|reached|exceeded) your (?:\w+ )?(?:usage|session) limit",
    ),
    # A 429 that no wait helps: the request alone is larger than what a minute allows.
    _rule(
        ErrorMeaning(
            "rate_limit",
            "allows fewer tokens in a minute than this request has",
            f"Give it less to read, {_AGAIN} that has a higher limit.",
        ),
        words=r"request too large for .{0,200}per min",
    ),
    _rule(
        _TOO_LONG,
        "context_length_exceeded exceed_context_size_error request_too_large",
        r"maximum context length|context (?:length|window|size) (?:is )?exceed|(?:prompt|input) is too long|"
        r"exceeds? (?:the )?(?:available |model's )?(?:maximum )?context",
    ),
    _rule(
        ErrorMeaning(
            "bad_request",
            "takes no tools with {model}",
            "A subagent needs tools: propose it again with retry_of and a `model` that takes them.",
        ),
        words=r"not support (?:\w+ ){0,2}(?:tools?|function)\b|endpoints found that support tool|"
        r"(?:tools?|tool use|function calling) (?:is|are) not supported",
    ),
    _rule(
        ErrorMeaning(
            "bad_request",
            "takes no images with {model}",
            "Leave the images out, or propose it again with retry_of and a `model` that takes them.",
        ),
        words=r"not support (?:\w+ ){0,2}images?\b|endpoints found that support image|images? (?:is|are) not supported",
    ),
    _rule(
        ErrorMeaning(
            "bad_request",
            "knows no model {model}, or not for {key}",
            f"Check the model's id and what the key may use, {_AGAIN}.",
        ),
        "model_not_found",
        r"\bmodel\b.{0,200}?(?:not found|does not exist)|not a valid model",
    ),
    _rule(
        ErrorMeaning(
            "bad_request",
            "has too little memory for {model}",
            f"Free memory where the model runs, {_AGAIN} that is smaller.",
        ),
        words=r"requires more (?:system )?memory",  # Ollama, as a 500
        below=600,
    ),
    _rule(_LOADING, words=r"\bloading model", below=600),  # llama.cpp, as a 503
)

_REDIRECT = ErrorMeaning("bad_request", "redirects to {to}", "Set the base URL to where the endpoint really is.")
_UNKNOWN = ErrorMeaning("bad_answer", "failed", "Do what it says, or choose another model than {model}.")
_BUSY = ErrorMeaning("overloaded", "is overloaded", "Try again later.", retryable=True, waits=True)
_FAILED = ErrorMeaning(
    "overloaded", "failed", "Try again later; the fault is on the provider's side.", retryable=True, waits=True
)
_LIMITED = ErrorMeaning(
    "rate_limit",
    "allows no more calls",
    f"Wait until then (runs do so by themselves, up to a day), {_AGAIN}.",
    retryable=True,
    waits=True,
    dated=" for {wait}, until {until}",
    undated=" now and does not say until when",
    undated_to_do="Wait a minute.",
)
_BY_STATUS: Mapping[int, ErrorMeaning] = {
    401: ErrorMeaning("auth", "refused {key}", "Store a valid key with `ava key set` and start again."),
    402: _PAID_LATER,
    403: ErrorMeaning(
        "auth",
        "refused {key}",
        "See in the provider's console what it may do, or store a valid key with `ava key set` and start again.",
    ),
    404: ErrorMeaning("bad_request", "knows no such path or model {model}", "Check base URL and model id."),
    408: _FAILED,
    409: _FAILED,
    413: _TOO_LONG,
    425: _FAILED,
    429: _LIMITED,
    498: _BUSY,  # Groq: no capacity for the flex tier
    503: _BUSY,
    529: _BUSY,  # Anthropic: overloaded_error
}
_REFUSED = ErrorMeaning("bad_request", "refused the request to {model}", "Check that the model takes tools.")

# What a stream that began with status 200 says in place of a status.
_STATUS_OF: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "slow_down": 429,
    "resource_exhausted": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def meaning(said: ProviderError, status: int | None = None) -> ErrorMeaning:
    """Return what an error means.

    Args:
        said: What the provider said.
        status: The HTTP status; None for an error in the body of a 200.
    """
    if status is not None and 300 <= status < 400:
        return _REDIRECT
    code = status if status is not None else _status_in(said.codes)
    for rule in _RULES:
        by_words = rule.words is not None and (code or 0) < rule.below and rule.words.search(said.words)
        if by_words or rule.codes & said.codes:
            return rule.means
    if code is None:
        return _UNKNOWN
    return _BY_STATUS.get(code) or (_FAILED if code >= 500 else _REFUSED)


def _status_in(codes: frozenset[str]) -> int | None:
    """Return the status that an error in the body of a 200 stands for."""
    numbers = [int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", code)]
    return max(numbers or [_STATUS_OF[code] for code in codes if code in _STATUS_OF], default=None)
