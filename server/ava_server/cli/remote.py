"""Another server, as `--url` names it: its address, its token, one request to it, and a call of one of its tools.

Only that server gets the token: redirects are not followed. Its answers are bounded, and a failure is a sentence.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from ava_server.cli.app import URL_VARIABLE
from ava_server.core.commands import name_server
from ava_server.core.errors import AvaError, BadInput, ConfigError, Refused, leaves_of
from ava_server.core.ids import UNKNOWN_ID

if TYPE_CHECKING:
    import httpx2
    import typer

ANSWER_S, WHOLE_ANSWER_S = 20.0, 60.0
"""How long a server may be silent, and take in all."""
LONGEST_ANSWER = 32 * 1024 * 1024
LONGEST_FILE = 1_024
LONGEST_REASON = 500


_AWAY = (429, 502, 503, 504)
"""Statuses of a server that will answer later."""


class Unreachable(ConfigError):
    """The server does not answer now; it may be restarting."""


class OlderServer(ConfigError):
    """The server's Ava does not know what was asked for."""


class Connection:
    """A connection to the server of `--url`, with its token; both are looked at when they are needed.

    `opened` must be entered before the first request.

    Args:
        url: The value of `--url`.
        token_file: The value of `--token-file`.
        source: Where the URL was.
    """

    def __init__(self, url: str, token_file: Path | None = None, source: str = "--url") -> None:
        self.url = url
        self.token_file = token_file
        self.source = source
        self._client: httpx2.AsyncClient | None = None

    @property
    def address(self) -> str:
        """Raises BadInput if it is not an address, or would send the token unencrypted."""
        from urllib.parse import urlsplit

        from ava_server.core.addresses import LOOPBACK_NAMES, public_url

        url = self.url.strip().rstrip("/").removesuffix("/mcp")
        try:
            address = public_url(url) or ""
        except BadInput:
            raise BadInput(
                f"{self.source}: {self.url[:80]!r} is not a server's address; write it like https://ava.example.org"
            ) from None
        if address.startswith("http:") and urlsplit(address).hostname not in LOOPBACK_NAMES:
            raise BadInput(f"{self.source}: over http anyone on the way to {address} can read the token; use https")
        return address

    @property
    def command(self) -> str:
        """How a command for this server begins, to be pasted: `ava --url URL`; `ava` where AVA_URL names it."""
        if self.source != "--url":
            return "ava"
        words = ["ava", "--url", self.address]
        if self.token_file is not None:
            words += ["--token-file", str(self.token_file)]
        return shlex.join(words)

    def token(self, env: Mapping[str, str] | None = None) -> str:
        """Raises BadInput if there is none, or its file cannot be read or is open to others."""
        if env is None:
            env = os.environ
        if self.token_file is not None:
            token = _read_token_file(self.token_file)
        else:
            token = env.get("AVA_TOKEN", "").strip()
        if not token:
            raise BadInput(
                "Give the server's token in AVA_TOKEN, or a file that holds it with --token-file; never as an"
                " argument, which others can see."
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise BadInput("This is not a token: a token is one line, as `ava token create` showed it.")
        return token

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Raises BadInput: address or token cannot be used."""
        import httpx2

        local = self.address.startswith("http:")  # this machine: the environment's proxies are for others
        headers = {"Authorization": f"Bearer {self.token()}", "Accept-Encoding": "identity"}
        async with httpx2.AsyncClient(
            headers=headers, timeout=ANSWER_S, follow_redirects=False, trust_env=not local
        ) as self._client:
            yield

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        doubt: str = "",
    ) -> dict[str, Any]:
        """Return the server's answer; a refused decision is an answer too.

        `doubt` says what may have happened even if no answer comes. Raises AvaError: none comes, or the token is
        refused.
        """
        import httpx2
        from pydantic_core import from_json

        assert self._client is not None, "it is opened first"
        try:
            with anyio.fail_after(WHOLE_ANSWER_S):
                async with self._client.stream(method, f"{self.address}{path}", json=body, params=params) as response:
                    content = await self._content(response)
        except TimeoutError:
            late = f"{self.address} was still answering after {WHOLE_ANSWER_S:.0f} s. {doubt}"
            raise Unreachable(late.rstrip()) from None
        except httpx2.HTTPError as error:
            raise _connection_error(self.address, error) from error
        except httpx2.InvalidURL as error:
            raise BadInput(f"--url: {self.address} is not an address: {error}") from None
        status = response.status_code
        try:
            answer: Any = from_json(content)  # also refuses deep nesting and lone surrogates
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if status in _AWAY:  # a proxy whose server is away
                raise Unreachable(f"{self.address} does not answer now (status {status}). Try again.")
            raise self.not_ava()
        fields = cast("dict[str, Any]", answer)
        is_decision = status == 409 and "decisions" in fields
        if status == 200 or is_decision:
            return fields
        raise self._refusal(status, path, fields)

    def _refusal(self, status: int, path: str, fields: Mapping[str, Any]) -> AvaError:
        description = fields.get("error_description") or f"status {status}"
        why = " ".join(str(description).split())
        if len(why) > LONGEST_REASON:
            why = why[: LONGEST_REASON - 1] + "…"
        unknown_id = fields.get("error") == UNKNOWN_ID
        if status == 400 or (status == 404 and unknown_id):
            return BadInput(why)
        if status == 404:
            return OlderServer(f"{self.address} runs an older Ava, which does not answer {path}. Update it there.")
        if status in _AWAY:
            return Unreachable(f"{self.address}: {why}")
        return Refused(f"{self.address}: {why}")

    async def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the structured answer. Raises AvaError if the server cannot be reached, or refuses the call."""
        import logging
        from importlib.metadata import version

        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client
        from mcp_types import Implementation

        from ava_server.hosts.clients import COMMAND_LINE

        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its warnings are our errors
        transport = streamable_http_client(f"{self.address}/mcp", http_client=self._client)
        info = Implementation(name=COMMAND_LINE, version=version("ava-subagents"))
        try:
            with anyio.fail_after(WHOLE_ANSWER_S):
                async with Client(transport, client_info=info, cache=None) as client:
                    answer = await client.call_tool(tool, dict(arguments))
        except Exception as error:  # the SDK raises many kinds, some of them in groups
            first = next(leaves_of(error))
            why = " ".join(str(first).split())[:LONGEST_REASON]
            raise Unreachable(
                f"{self.address} did not answer the call of {tool} ({why}). It may still have been carried out."
            ) from error
        structured: Any = answer.structured_content
        if not isinstance(structured, dict):
            raise self.not_ava()
        fields = cast("dict[str, Any]", structured)
        if answer.is_error:
            raise Refused(f"{self.address}: {fields.get('message') or 'the call failed'}")
        return fields

    async def _content(self, response: httpx2.Response) -> bytes:
        """Raises ConfigError if it is longer than any of Ava's, or compressed."""
        content = bytearray()
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self.not_ava()
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > LONGEST_ANSWER:
                raise self.not_ava()
        return bytes(content)

    def not_ava(self) -> ConfigError:
        return ConfigError(f"The server at {self.address} is not Ava; is something else in between?")


def given_server(
    context: typer.Context, url: str | None, token_file: Path | None = None, *, variable: bool = True
) -> Connection | None:
    """Return the server of `--url`, before or after the command; with `variable`, also that of AVA_URL.

    Raises BadInput if there is a token's file but no server.
    """
    url_before, file_before = context.obj or (None, None)
    if url is None:
        url = url_before
    if token_file is None:
        token_file = file_before
    source = "--url"
    if url is None and variable:
        url = os.environ.get(URL_VARIABLE, "").strip() or None
        source = URL_VARIABLE
    if url is None:
        if token_file is not None:
            raise BadInput("--token-file: it needs --url, the server that the token is for.")
        return None
    server = Connection(url, token_file, source)
    name_server(server.command)  # an error comes before anything else
    return server


def chosen_server(context: typer.Context, url: str | None, token_file: Path | None) -> Connection | None:
    """Return the server of `--url` or AVA_URL; None for this machine's data root. Raises BadInput if it is unusable."""
    server = given_server(context, url, token_file)
    if server is not None:
        _ = server.address, server.token()  # an error comes before anything else
    return server


def _read_token_file(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"--token-file: {path} is not a file; give a file that holds only the token.")
        if os.name == "posix" and status.st_mode & 0o077:
            raise BadInput(f"--token-file: others may read {path}. Fix it with: chmod 600 {shlex.quote(str(path))}")
        with path.open(encoding="utf-8") as file:
            return file.read(LONGEST_FILE).strip()
    except OSError as error:
        raise BadInput(f"--token-file: {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"--token-file: {path} cannot be read: it is not text.") from None


def _connection_error(address: str, error: BaseException) -> ConfigError:
    """Return why a server was not reached, and what to do."""
    import ssl

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of {address} is not trusted here: {cause.verify_message or cause.reason}. The token"
                " was not sent. If your own authority signed it, name its file in SSL_CERT_FILE; if not, this may be"
                " another server."
            )
        if isinstance(cause, ssl.SSLError):
            return ConfigError(f"No TLS connection to {address}: {cause.reason}. The token was not sent.")
        cause = cause.__cause__ or cause.__context__
    why = str(error) or type(error).__name__
    return Unreachable(f"{address} does not answer: {why}. Is `ava serve --http` running there?")
