"""The errors of the server.

AvaError
├── BadInput           an invalid argument: names the field, what was given, and what to do
│   ├── NoLog          there is no log yet (cli/log_access.py)
│   └── UnknownId      no such run or plan for this user (service/record_requests.py)
├── Refused            a valid request that is not allowed now; says when or how it is
│   ├── NeedsAudit     it belongs to others, and the token may not read that (service/record_requests.py)
│   ├── ToolMissing    a role needs a tool that is not available
│   └── Unpriced       no price is known for a model; contains the lines to add (prices.py)
├── ConfigError        an invalid setting or file, found at start
│   ├── OlderServer    the server of --url does not know what was asked for (remote.py)
│   ├── SuiteFaults    cases of a suite are not valid (evals/case.py)
│   └── Unreachable    the server of --url does not answer now; it may be restarting (remote.py)
├── NotFound           no page at this address, or nothing that its visitor may see (web/context.py)
├── SignedOut          a page needs a session (web/context.py)
├── DeliveryFailed     the engine that delivers runs cannot be used; they wait (delivery/)
├── AgentFailed        another agent's program cannot go on; says what to do (agents/acp.py)
│   └── TurnFailed     it ended a turn with an error, and could take another one
└── ModelError         a model call without an answer; says whether it may have been billed
    └── ModelTimeout   the call's own deadline passed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from ava_audit.events import Usage
    from ava_audit.redaction import Redactor


@cache
def key_shapes() -> Redactor:
    """Return what finds and hides texts that look like keys, for places that do not know the stored ones."""
    from ava_audit.redaction import Redactor  # this takes a hundredth of a second
    from ava_roles.wrap import seen_offsets

    return Redactor({}, seen_offsets=seen_offsets)


_SENTENCE_ENDS = (".", "!", "?", ":", ";", "…", ".)", ".`", '."')


def with_advice(problem: str, advice: str) -> str:
    """Return a text about a problem, and the sentence that says what to do, as two sentences."""
    problem = problem.rstrip()
    if not advice or not problem:
        return problem or advice
    end = "" if problem.endswith(_SENTENCE_ENDS) else "."
    return f"{problem}{end} {advice}"


class AvaError(Exception):
    """Base of every error that this package raises on purpose; its text says what to do.

    `needs_key` is the provider whose key is missing. How to give one depends on the host, so the border adds that.
    """

    def __init__(self, message: str, *, needs_key: str | None = None) -> None:
        super().__init__(message)
        self.needs_key = needs_key


class BadInput(AvaError):
    """Raised at the border for an invalid argument."""


class Refused(AvaError):
    """Raised when a request is not allowed now; the text says when or how it is."""


class ToolMissing(Refused):
    """Raised when a role needs a tool that is not available; naming the tool makes the role go without it."""

    def __init__(self, message: str, tool: str, *, needs_key: str | None = None) -> None:
        super().__init__(message, needs_key=needs_key)
        self.tool = tool


class ConfigError(AvaError):
    """Raised at start when a setting or a file of settings is invalid."""


ModelErrorKind = Literal[
    "connection",
    "auth",
    "rate_limit",
    "overloaded",
    "bad_request",
    "bad_answer",
    "dropped",
    "timeout",
    "usage_limit",
    "thinking",
    "limit_name",
    "rejected",
    "tier",
]


class ModelError(AvaError):
    """Raised by a model adapter when an attempt brought no complete answer.

    `sent`: the request may have reached the provider. `answered`: a byte of an answer (a 200's body) arrived, so it may
    have been billed. `retryable`: sending the same request again can help, after `again_after_s` seconds if the
    provider said so. `what_to_do` is one next step for a person. `written` is what the model wrote, where the provider
    refused that (`rejected`). `usage` and `cost_micros` are what the call used, where the error says so plausibly, and
    `named` is what it says of the tier and the place (`Completion.named`).
    """

    usage: Usage | None = None
    cost_micros: int | None = None
    named: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind,
        sent: bool,
        answered: bool,
        retryable: bool,
        again_after_s: float | None = None,
        request_id: str | None = None,
        what_to_do: str = "",
        written: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent
        self.answered = answered
        self.retryable = retryable
        self.again_after_s = again_after_s
        self.request_id = request_id
        self.what_to_do = what_to_do
        self.written = written


class ModelTimeout(ModelError):
    """Raised when the call's own deadline passed before the answer was complete."""


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group that may contain groups; another error is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves_of(inner)
    else:
        yield error
