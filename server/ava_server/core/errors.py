"""The errors of the server.

AvaError
├── BadInput           an argument that cannot be used: field, what was given, what to do
├── Refused            a request that was understood and may not be done now; says when or how it may
│   ├── ToolMissing    a role would go without a tool that it needs, because that is not there
│   └── Unpriced       nobody says what a model costs; has the lines to add (prices.py)
├── ConfigError        a wrong setting or file, found at start
└── ModelError         a model call that brought no answer; knows whether it may have been billed
    └── ModelTimeout   the call's own deadline passed
"""

from __future__ import annotations

from typing import Literal


class AvaError(Exception):
    """Base of every error that this package raises on purpose; its text tells what to do.

    Attributes:
        needs_key: The provider whose key would mend it: how one is given differs, so the border adds that.
    """

    def __init__(self, message: str, *, needs_key: str | None = None) -> None:
        super().__init__(message)
        self.needs_key = needs_key


class BadInput(AvaError):
    """Raised at the border for an argument that cannot be used."""


class Refused(AvaError):
    """Raised when what was asked may not be done now; the text says when or how it may."""


class ToolMissing(Refused):
    """Raised when a role would go without a tool that it needs and that is not there: who says so has it go without.

    Attributes:
        tool: The tool.
    """

    def __init__(self, message: str, tool: str, *, needs_key: str | None = None) -> None:
        super().__init__(message, needs_key=needs_key)
        self.tool = tool


class ConfigError(AvaError):
    """Raised at start when a setting or a file of settings is wrong."""


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
]


class ModelError(AvaError):
    """Raised by a model adapter when an attempt brought no complete answer.

    Attributes:
        kind: What went wrong, from a closed set.
        sent: The request may have reached the provider.
        answered: A byte of an answer (a 200's body) arrived, so that it may have been billed.
        retryable: Trying the same request again can help.
        again_after_s: Seconds to wait before that, when the provider said so.
        request_id: The provider's id of the call, when it gave one with the error.
        what_to_do: One next step for a person.
    """

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
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent
        self.answered = answered
        self.retryable = retryable
        self.again_after_s = again_after_s
        self.request_id = request_id
        self.what_to_do = what_to_do


class ModelTimeout(ModelError):
    """Raised when the call's own deadline passed before the answer was complete."""
