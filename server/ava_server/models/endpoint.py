"""What can be wrong with an answer: a sentence for each case, with the endpoint, what came, and a next step.

Only the border knows httpx2's errors and status codes; the loop sees `ModelError`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ava_server.errors import ModelError, ModelErrorKind, ModelTimeout
from ava_server.models import wire_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

_KEY_SHAPE = re.compile(r"\b(?:sk|pk|rk|key|gsk|xai)-[A-Za-z0-9_\-]{8,}|\bBearer\s+\S+|\bAIza[\w\-]{20,}")
_SAID_CHARS = 200


def may_have_been_billed(error: ModelError) -> bool:
    """Tell how an attempt is to be settled: False is `not_billed`, True is `unknown`.

    Not billed is only what never reached the provider, or what it refused by an error status before any byte
    of an answer. A connection that broke in between leaves the outcome unknown.
    """
    return error.answered or (error.sent and error.kind in ("connection", "dropped", "timeout", "bad_answer"))


@dataclass(frozen=True)
class Endpoint:
    """Where a model is asked, and in which format, as errors name it: host and path, no user, no query, no key."""

    url: str
    model: str
    api_key: str | None
    speaks: str = "chat completions"

    @property
    def place(self) -> str:
        """Host, port and path."""
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] + parts.path

    @property
    def key(self) -> str:
        """The key, masked."""
        if not self.api_key:
            return "no key"
        return f"the key {self.api_key[:3]}…" if len(self.api_key) >= 20 else "the key …"

    def clean(self, text: str) -> str:
        """Return a provider's words on one line, without keys and control characters."""
        if self.api_key:
            text = text.replace(self.api_key, "…")
        text = _KEY_SHAPE.sub("…", wire_json.whole_text(text)[0])
        text = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
        text = " ".join(text.split())
        return text if len(text) <= _SAID_CHARS else text[: _SAID_CHARS - 1] + "…"

    # No answer

    def unreachable(self, error: Exception) -> ModelError:
        """No connection could be made."""
        return ModelError(
            f"No connection to {self.place}: {self.clean(str(error)) or type(error).__name__}.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=True,
            what_to_do="Check that the endpoint runs and that its URL, the proxy and the network are right.",
        )

    def connect_timeout(self, seconds: float) -> ModelError:
        """The connection took too long."""
        return ModelError(
            f"No connection to {self.place} within {seconds:g} s.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=True,
            what_to_do="Check the network and whether the endpoint is overloaded; then try again.",
        )

    def no_certificates(self, error: OSError) -> ModelError:
        """The certificates that servers are checked against cannot be read."""
        return ModelError(
            f"No connection to {self.place} can be made safe: {self.clean(str(error))}.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Correct SSL_CERT_FILE and SSL_CERT_DIR: they name the certificates to trust.",
        )

    def unsendable(self, error: Exception) -> ModelError:
        """The request cannot be sent as it is: a wrong URL or header."""
        return ModelError(
            f"The request to {self.place} with {self.key} cannot be sent: {self.clean(str(error))}.",
            kind="bad_request",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Correct the base URL or the key in the settings.",
        )

    def timeout(self, what: str, seconds: float, *, answered: bool) -> ModelTimeout:
        """A deadline of the call passed; `what` is what did not happen in time."""
        return ModelTimeout(
            f"{self.place} was given {seconds:g} s: {what}.",
            kind="timeout",
            sent=True,
            answered=answered,
            retryable=True,
            what_to_do="Try again, or choose a faster model.",
        )

    def hung_up(self, error: Exception) -> ModelError:
        """The connection broke before an answer began."""
        return ModelError(
            f"{self.place} hung up before it answered ({self.clean(str(error)) or type(error).__name__}).",
            kind="connection",
            sent=True,
            answered=False,
            retryable=True,
            what_to_do="Try again; when it happens each time, look into the endpoint's own log.",
        )

    # An error status

    def status(self, response: httpx2.Response, content: bytes, now: datetime | None = None) -> ModelError:
        """The endpoint answered with an error status."""
        code = response.status_code
        said = self.clean(_provider_words(content))
        words = f": {said}" if said else ""
        wait = retry_after(response.headers.get("retry-after"), now or datetime.now(UTC))
        kind, what_happened, what_to_do = self._status(code, said, wait, response.headers.get("location"))
        return ModelError(
            f"{self.place} {what_happened} (HTTP {code}){words}.",
            kind=kind,
            sent=True,
            answered=False,
            retryable=kind in ("rate_limit", "overloaded"),
            again_after_s=wait,
            what_to_do=what_to_do,
        )

    def _status(
        self, code: int, said: str, wait: float | None, location: str | None
    ) -> tuple[ModelErrorKind, str, str]:
        """Return kind, what happened and what to do for a status."""
        spent = "insufficient_quota" in said or "insufficient credits" in said.lower()
        if 300 <= code < 400:
            target = self.clean((location or "nowhere").split("?")[0])
            return (
                "bad_request",
                f"redirects to {target}",
                "Set the base URL to where the endpoint really is.",
            )
        if code in (401, 403):
            return "auth", f"refused {self.key}", "Store a valid key with `ava key set` and start again."
        if code == 402 or (code == 429 and spent):
            return (
                "usage_limit",
                f"has no credit left for {self.key}",
                "Add credit there, or use another key.",
            )
        if code == 429 and wait is not None:
            return (
                "rate_limit",
                f"allows no more calls for {wait:g} s",
                "Wait that long; runs do so by themselves.",
            )
        if code == 429:
            return "rate_limit", "allows no more calls now and does not say until when", "Wait a minute."
        if code == 404:
            return (
                "bad_request",
                f"knows no such path or model {self.model!r}",
                "Check base URL and model id.",
            )
        if code in (408, 409, 425) or code >= 500:
            return "overloaded", "failed", "Try again later; the fault is on the provider's side."
        return "bad_request", f"refused the request to {self.model!r}", "Check that the model takes tools."

    # An answer that is none

    def bad_answer(self, what: str, what_to_do: str, *, retryable: bool = False) -> ModelError:
        """The endpoint answered 200 with something that is no answer."""
        return ModelError(
            f"{self.place} answered {what}.",
            kind="bad_answer",
            sent=True,
            answered=True,
            retryable=retryable,
            what_to_do=what_to_do,
        )

    def dropped(self, what: str) -> ModelError:
        """An answer had begun and did not come to its end."""
        return ModelError(
            f"The answer of {self.place} {what}.",
            kind="dropped",
            sent=True,
            answered=True,
            retryable=True,
            what_to_do="Try again; it may have been billed all the same.",
        )

    def faulty(self, error: Exception, what: str, *, sent: bool, answered: bool) -> ModelError:
        """A fault of ours, or of a library below, met something that nobody had thought of."""
        said = self.clean(str(error))
        return ModelError(
            f"{what} {self.place} failed with {type(error).__name__}{': ' if said else ''}{said}.",
            kind="bad_answer" if sent else "bad_request",
            sent=sent,
            answered=answered,
            retryable=False,
            what_to_do=f"Choose another model than {self.model!r}, and report it with the server's own log.",
        )

    def html(self, content: bytes) -> ModelError:
        """A web page came."""
        begins = self.clean(content[:80].decode("utf-8", "replace"))
        return self.bad_answer(
            f"200 with a web page instead of an answer: {begins!r}",
            "Set the base URL to the API, often with /v1 at its end.",
        )

    def not_json(self, content: bytes) -> ModelError:
        """Something came that is neither JSON nor a stream."""
        begins = self.clean(content[:80].decode("utf-8", "replace"))
        return self.bad_answer(
            f"200 with text that is not JSON: {begins!r}",
            f"Check that the base URL is an API that speaks {self.speaks}.",
        )

    def no_answer(self, answer: Any, part: str) -> ModelError:
        """JSON came, but without the part that every answer has."""
        fields = wire_json.as_object(answer)
        keys = type(answer).__name__ if fields is None else ", ".join(fields)[:120]
        return self.bad_answer(
            f"200 with JSON without `{part}` (it has: {self.clean(keys) or 'nothing'})",
            f"Check that the endpoint speaks {self.speaks}.",
        )

    def error_body(self, error: Any) -> ModelError:
        """An error came where an answer should be: a status of 200 and an error in the body."""
        said = self.clean(_error_words(error))
        code = (wire_json.as_object(error) or {}).get("code")
        kinds: Mapping[str, ModelErrorKind] = {
            "401": "auth",
            "402": "usage_limit",
            "403": "auth",
            "429": "rate_limit",
        }
        overloaded = isinstance(code, int) and code >= 500
        kind: ModelErrorKind = "overloaded" if overloaded else kinds.get(str(code), "bad_answer")
        return ModelError(
            f"{self.place} answered 200 with an error in the body: {said or 'without words'}.",
            kind=kind,
            sent=True,
            answered=True,
            retryable=kind in ("overloaded", "rate_limit"),
            what_to_do=f"Do what it says, or choose another model than {self.model!r}.",
        )


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for; it holds seconds or an HTTP date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            seconds = (when - now).total_seconds()
        except (ValueError, OverflowError, TypeError):  # e.g. a year of eleven digits
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _provider_words(content: bytes) -> str:
    """Return what an error's body says, without its JSON."""
    text, _ = wire_json.decode_text(content)
    try:
        answer = wire_json.decode(text)
    except wire_json.NotJsonError:
        return "" if text.lstrip().startswith("<") else text
    return _error_words((wire_json.as_object(answer) or {}).get("error", answer))


def _error_words(error: Any) -> str:
    fields = wire_json.as_object(error)
    if fields is None:
        return str(error)
    words = fields.get("message") or fields.get("detail") or ""
    code = fields.get("code") or fields.get("type")
    return f"{words} [{code}]" if code and isinstance(words, str) else str(words)
