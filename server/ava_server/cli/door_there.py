"""Deciding at a server elsewhere: `ava --url URL approve`, with a token and nothing else of that machine."""

from __future__ import annotations

import os
import ssl
import stat
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_server.core.errors import BadInput, ConfigError, Refused

if TYPE_CHECKING:
    import httpx2

    from ava_server.approval.proposals import Pending
    from ava_server.service.responses import ConfirmAnswer

ANSWER_S, WHOLE_ANSWER_S = 20.0, 60.0
"""How long the server may be silent, and take in all."""
LONGEST_ANSWER = 8 * 1024 * 1024
LONGEST_FILE = 1_024
LONGEST_REASON = 500


@dataclass(frozen=True)
class Elsewhere:
    """What `--url` and `--token-file` say; the token itself is read when it is needed."""

    url: str
    token_file: Path | None = None

    @property
    def address(self) -> str:
        """The server's address.

        Raises:
            BadInput: It is none, or would send the token in the clear.
        """
        from urllib.parse import urlsplit

        from ava_server.http.settings import LOOPBACK_NAMES, public_url

        url = self.url.strip().rstrip("/").removesuffix("/mcp")
        try:
            address = public_url(url) or ""
        except BadInput:
            raise BadInput(
                f"--url: {self.url[:80]!r} is no address of a server; write it like https://ava.example.org"
            ) from None
        if address.startswith("http:") and urlsplit(address).hostname not in LOOPBACK_NAMES:
            raise BadInput(f"--url: over http everybody on the way to {address} reads the token; use https")
        return address

    def token(self, env: Mapping[str, str] | None = None) -> str:
        """Return the token: of the file that is given, else of AVA_TOKEN.

        Raises:
            BadInput: There is none, or its file cannot be read or is open to others.
        """
        text = (os.environ if env is None else env).get("AVA_TOKEN", "").strip()
        if self.token_file is not None:
            text = _in_file(self.token_file)
        if not text:
            raise BadInput(
                "Give the token of the server in AVA_TOKEN, or a file that holds it with --token-file; never as an"
                " argument, which others can see."
            )
        if not text.isascii() or not text.isprintable() or " " in text:
            raise BadInput("What was given as the token is none: it has one line, as `ava token create` showed it.")
        return text


@asynccontextmanager
async def there(elsewhere: Elsewhere) -> AsyncGenerator[There]:
    """Reach the server that `--url` names. The token goes to that one alone: no redirect is followed.

    Raises:
        BadInput: Address or token cannot be used.
    """
    import httpx2

    address = elsewhere.address
    headers = {"Authorization": f"Bearer {elsewhere.token()}", "Accept-Encoding": "identity"}
    own = address.startswith("http:")  # this machine: what the environment says of proxies is about others
    async with httpx2.AsyncClient(
        headers=headers, timeout=ANSWER_S, follow_redirects=False, trust_env=not own
    ) as client:
        yield There(client, address)


_MAY_BE_DECIDED = "What was decided may count all the same; without an id all that still waits is shown."


class There:
    """A server elsewhere, reached with a token of the scope `approve`."""

    def __init__(self, client: httpx2.AsyncClient, address: str) -> None:
        self._client = client
        self._address = address

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals that are meant, or all of the token's user that wait, the oldest first.

        Raises:
            BadInput: An id is none.
            Refused: One does not wait.
        """
        from ava_server.approval.proposals import Pending
        from ava_server.cli.asked import which_id

        wanted = [which_id(given)[1] for given in ids]
        said = await self._ask("GET")
        try:
            found = [Pending.model_validate(one) for one in said["proposals"]]
        except (KeyError, TypeError, ValueError):
            raise _no_ava(self._address) from None
        if not wanted:
            return found
        by_id = {name: one for one in found for name in (one.pending_id, one.subagent_id)}
        if missing := [each for each in wanted if each not in by_id]:
            raise Refused(f"{missing[0]} does not wait at {self._address}; without an id all that waits is shown.")
        return list({by_id[each].pending_id: by_id[each] for each in wanted}.values())

    async def can_be_approved(self) -> None:
        """Nothing to look for: the token stands for the PIN, and the server says what stands against it."""

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Decide.

        Raises:
            AvaError: It cannot be decided; says why.
        """
        from ava_server.service.responses import ConfirmAnswer

        now_us = time.time_ns() // 1000
        if decision == "approve" and (late := [one for one in waiting if one.expires_us <= now_us]):
            raise Refused(f"{late[0].pending_id} has expired; have it proposed anew.")
        given: dict[str, Any] = {"pending_ids": [one.pending_id for one in waiting], "decision": decision, **more}
        if decision == "approve":
            given["digests"] = {one.pending_id: one.digest for one in waiting}
        said = await self._ask("POST", given)
        try:
            return ConfirmAnswer.model_validate(said)
        except ValueError:
            raise _no_ava(self._address) from None

    async def begun(self, waiting: Sequence[Pending]) -> str:
        """Return how it can be seen whether it begins: this token reads nothing."""
        return f"The server at {self._address} has {'it' if len(waiting) == 1 else 'them'}."

    async def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the server answers; a decision that it refuses is an answer too.

        Raises:
            AvaError: It cannot be reached, or does not let this token in; says why.
        """
        import httpx2
        from pydantic_core import from_json

        try:
            with anyio.fail_after(WHOLE_ANSWER_S):
                async with self._client.stream(method, f"{self._address}/approvals", json=body) as answer:
                    content = await self._whole(answer)
        except TimeoutError:
            raise ConfigError(
                f"{self._address} was still answering after {WHOLE_ANSWER_S:.0f} s. {_MAY_BE_DECIDED}"
            ) from None
        except httpx2.HTTPError as error:
            raise _unreached(self._address, error) from error
        except httpx2.InvalidURL as error:
            raise BadInput(f"--url: {self._address} is no address: {error}") from None
        try:
            said: Any = from_json(content)  # refuses also what is too deep, and half characters
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise _no_ava(self._address)
        fields = cast("dict[str, Any]", said)
        if answer.status_code == 200 or (answer.status_code == 409 and "decisions" in fields):
            return fields
        why = " ".join(str(fields.get("error_description") or f"status {answer.status_code}").split())
        why = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 1] + "…"
        if answer.status_code == 400:
            raise BadInput(why)
        raise Refused(f"{self._address}: {why}")

    async def _whole(self, answer: httpx2.Response) -> bytes:
        """Return a whole answer.

        Raises:
            ConfigError: It is longer than any of Ava's.
        """
        content = b""
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _no_ava(self._address)
        async for piece in answer.aiter_raw():
            content += piece
            if len(content) > LONGEST_ANSWER:
                raise _no_ava(self._address)
        return content


def _in_file(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"--token-file: {path} is no file; give one that holds the token alone.")
        if os.name == "posix" and status.st_mode & 0o077:
            raise BadInput(f"--token-file: others may read {path}. Mend it with: chmod 600 {path}")
        with path.open(encoding="utf-8") as file:
            return file.read(LONGEST_FILE).strip()
    except (OSError, UnicodeDecodeError) as failed:
        why = failed.strerror if isinstance(failed, OSError) else "it is no text"
        raise BadInput(f"--token-file: {path} cannot be read: {why}.") from None


def _unreached(address: str, error: Exception) -> ConfigError:
    """Return why a server was not reached, and what to do."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of {address} is not trusted here: {cause.verify_message or cause.reason}. The token"
                " was not sent. If an authority of your own has signed it, name its file in SSL_CERT_FILE; if not, this"
                " may be another server."
            )
        if isinstance(cause, ssl.SSLError):
            return ConfigError(
                f"{address} speaks no TLS that is understood here: {cause.reason}. The token was not sent."
            )
    why = str(error) or type(error).__name__
    return ConfigError(f"{address} does not answer: {why}. Is `ava serve --http` running there?")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _no_ava(address: str) -> ConfigError:
    return ConfigError(f"What answers at {address} is no Ava server; is something else in between?")
