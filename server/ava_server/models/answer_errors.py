"""What can be wrong with an answer: a sentence for each case, with the endpoint, what came, and a next step.

Only the border knows httpx2's errors and status codes; the loop sees `ModelError`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ava_audit.times import US_PER_S, format_duration, iso_second
from ava_server.core.errors import ModelError, ModelTimeout
from ava_server.models import error_meaning, rate_limits, wire_json
from ava_server.models.provider_error import Said, read, said_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

_KEY_SHAPE = re.compile(r"\b(?:(?:sk|pk|rk|key|xai)-|gsk_)[A-Za-z0-9_\-]{8,}|\bBearer\s+\S+|\bAIza[\w\-]{20,}")
_ID_SHAPE = re.compile(r"[A-Za-z0-9][\w.:\-]{2,127}", re.ASCII)
_VERIFY_WORDS = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|$)")
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
        from ava_roles.net.proxied import ProxyRefused

        if why := _VERIFY_WORDS.search(str(error)):
            return self._not_trusted(why[1])
        if isinstance(error, ProxyRefused):
            return ModelError(
                f"No connection to {self.place}: {self.clean(str(error))}.",
                kind="connection",
                sent=False,
                answered=False,
                retryable=False,
                what_to_do="Correct the proxy in HTTPS_PROXY (http://user:password@host:port), or name the endpoint's"
                " host in NO_PROXY to go around it.",
            )
        return ModelError(
            f"No connection to {self.place}: {self.clean(str(error)) or type(error).__name__}.",
            kind="connection",
            sent=False,
            answered=False,
            retryable=True,
            what_to_do="Check that the endpoint runs and that its URL, the proxy and the network are right.",
        )

    def _not_trusted(self, why: str) -> ModelError:
        """Whoever answers at the address has a certificate from nobody that this machine trusts."""
        return ModelError(
            f"No connection to {self.place}: its certificate is not trusted ({self.clean(why)}).",
            kind="connection",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Check the address. If the endpoint, or a proxy on the way, has a certificate from an authority"
            " of its own, have SSL_CERT_FILE name the file with that authority's certificate.",
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

    # An error of the provider

    def status(self, response: httpx2.Response, content: bytes, now: datetime | None = None) -> ModelError:
        """The endpoint answered with an error status."""
        said = read(content)
        refusal = error_meaning.meaning(said, response.status_code)
        # The SDKs of OpenAI and Anthropic obey it whatever the status is (`_should_retry`).
        again = {"true": True, "false": False}.get(response.headers.get("x-should-retry", "").strip().lower())
        if again is not None:
            refusal = replace(refusal, retryable=again, waits=refusal.waits or again)
        through = response.extensions.get("ava_proxy")  # whose status this is, only the proxy knows
        return self._refused(said, refusal, response.headers, now, response.status_code, through)

    def error_body(self, error: Any, headers: Mapping[str, str], now: datetime | None = None) -> ModelError:
        """An error came where an answer should be: a status of 200 and an error in the body."""
        said = said_in(error)
        return self._refused(said, error_meaning.meaning(said), headers, now)

    def _refused(
        self,
        said: Said,
        refusal: error_meaning.Refusal,
        headers: Mapping[str, str],
        now: datetime | None,
        status: int | None = None,
        through: str | None = None,
    ) -> ModelError:
        """Return an error of the provider as a sentence; with no status it came in the body of a 200."""
        now = now or datetime.now(UTC)
        wait = rate_limits.again_after({**said.headers, **headers}, said.words, now) if refusal.waits else None
        fields = {
            "key": self.key,
            "model": repr(self.model),
            "to": self.clean(headers.get("location", "nowhere").split("?")[0]),
            "wait": format_duration(wait or 0),
            "until": iso_second(round((now.timestamp() + (wait or 0)) * US_PER_S)),
        }
        request_id = self._call_id(headers.get("request-id") or headers.get("x-request-id") or said.request_id)
        words = self.clean(said.words)
        if status is None:
            refusal, words = refusal.in_a_body(), words or "without words"
        told = refusal.happened + (refusal.undated if wait is None else refusal.dated)
        noted = (
            f"HTTP {status}" if status else "",
            f"through the proxy {through}" if through else "",
            f"request {request_id}" if request_id else "",
        )
        told += f" ({', '.join(filter(None, noted))})" if any(noted) else ""
        to_do = refusal.to_do if wait is not None else refusal.undated_to_do or refusal.to_do
        return ModelError(
            f"{self.place} {told.format_map(fields)}{': ' if words else ''}{words}.",
            kind=refusal.kind,
            sent=True,
            answered=status is None,
            retryable=refusal.retryable,
            again_after_s=wait,
            request_id=request_id,
            what_to_do=to_do.format_map(fields),
        )

    def _call_id(self, said: str | None) -> str | None:
        """Return a provider's id of the call, which its support asks for, as far as it looks like one."""
        return said if said and _ID_SHAPE.fullmatch(said) and self.clean(said) == said else None

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
