"""Deciding about proposals: on this machine's data root, or on another server with a token and nothing else."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread

from ava_server.cli.log_access import find_runs
from ava_server.cli.options import parse_any_id
from ava_server.cli.secret_input import ReadPin, read_pin, unlock_session
from ava_server.cli.service_client import decide
from ava_server.cli.terminal import tell
from ava_server.core.errors import AvaError, BadInput, ConfigError, Refused

if TYPE_CHECKING:
    import httpx2

    from ava_audit.view import View
    from ava_server.approval.proposals import Pending
    from ava_server.runs.extension_answer import PendingExtension
    from ava_server.service.access import Session
    from ava_server.service.extensions import Extensions
    from ava_server.service.responses import ConfirmAnswer
    from ava_server.service.runtime import Runtime

STARTS_WITHIN_S = 3.0
"""How long to watch whether an approved run starts."""
ANSWER_S, WHOLE_ANSWER_S = 20.0, 60.0
"""How long a server may be silent, and take in all."""
LONGEST_ANSWER = 8 * 1024 * 1024
LONGEST_FILE = 1_024
LONGEST_REASON = 500
_MAY_BE_DECIDED = "The decision may still have counted; without an id, all that still wait are shown."


class LocalApprovals:
    """Decides on this machine's data root, in a session at its terminal; `RemoteApprovals` has the same methods.

    Args:
        runtime: What this process has open.
        session: The session.
        read: Returns the approval PIN, where one is needed.
    """

    def __init__(self, runtime: Runtime, session: Session, read: ReadPin = read_pin) -> None:
        self._runtime = runtime
        self._session = session
        self._read_pin = read

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, or all of this user that wait, the oldest first.

        Raises:
            BadInput: An id is unknown.
            Refused: A proposal no longer waits.
        """
        from ava_server.approval.proposals import pending_proposal, pending_proposals

        now_us = time.time_ns() // 1000
        found = await find_runs(self._runtime.store, ids) if ids else []

        def query(view: View) -> list[Pending]:
            if not ids:
                return pending_proposals(view, self._session.user, now_us)
            waiting: list[Pending] = []
            for run in found:
                if run.user_id != self._session.user:
                    raise Refused(f"{run.pending_id} is {run.user_id}'s proposal; only that user decides about it.")
                one = pending_proposal(view, run)
                if isinstance(one, str):
                    raise Refused(one)
                waiting.append(_unexpired(one, now_us))
            return waiting

        return await self._runtime.store.read(query)

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of this user's that ask, the oldest first."""
        return _named(await self._extensions().waiting(), ids)

    async def decide_extension(self, one: PendingExtension, *, approve: bool) -> str:
        """Raise the cap of a run, with the PIN where one is needed, or have it wrap up; return what came of it.

        Raises:
            AvaError: The decision was not accepted.
        """
        if approve:
            await self.unlock("Nothing was raised; it still waits.")
        answer = await self._extensions().decide(one.subagent_id, one.digest, approve=approve)
        if self._runtime.settings.background:
            await self._start_worker()
        return answer.text

    async def check_can_approve(self) -> None:
        """Check before any question that something can be approved.

        Raises:
            Refused: It needs a PIN, and there is none, or it is locked.
        """
        from ava_server.config.pin import PinFile

        if await self._runtime.policy() == "human":
            await anyio.to_thread.run_sync(PinFile(self._runtime.settings.paths.approval_file).ready)

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Approve or reject, with the PIN where one is needed.

        Raises:
            AvaError: The decision was not accepted.
        """
        from ava_server.service.service import Service

        if decision == "approve":
            await self.unlock("Nothing was started; it still waits.")
        return await decide(Service(self._runtime, self._session), waiting, decision, **more)

    def _extensions(self) -> Extensions:
        from ava_server.service.access import Access
        from ava_server.service.extensions import Extensions

        return Extensions(Access(self._runtime, self._session))

    async def unlock(self, outcome: str) -> None:
        """Ask for the PIN, once in a session, where only that may decide.

        Raises:
            Refused: It was not given; the text ends with the `outcome`.
        """
        from ava_server.config.pin import PinFile

        if await self._runtime.policy() != "human":
            return
        try:
            await unlock_session(PinFile(self._runtime.settings.paths.approval_file), self._session, self._read_pin)
        except AvaError as error:
            raise Refused(f"{error} {outcome}") from error

    async def describe_start(
        self, waiting: Sequence[Pending], *, then: str = "; `ava status` shows the progress"
    ) -> str:
        """Return a sentence on whether the approved runs start, after watching for a moment."""
        from ava_audit.rows import QUEUED

        if self._runtime.settings.background:
            await self._start_worker()
        ids = [one.subagent_id for one in waiting]
        with anyio.move_on_after(STARTS_WITHIN_S):
            while True:
                seen = self._runtime.store.head
                rows = await self._runtime.store.read(lambda view: [view.run(run_id) for run_id in ids])
                if all(row is not None and row.state != QUEUED for row in rows):
                    return f"{'It has' if len(rows) == 1 else 'They have'} started{then}."
                await self._runtime.store.wait_for_entry_after(seen)
        return (
            "It starts as soon as a server of this data root is running and has room: a host with Ava in it, or"
            " `ava worker`."
        )

    async def _start_worker(self) -> None:
        """Start a worker, which runs belong to here: there may be no host."""
        from ava_server.runs.worker_process import WorkerProcesses

        try:
            await WorkerProcesses(self._runtime.settings.paths)()
        except OSError as error:
            tell(f"No worker could be started: {error}")


@dataclass(frozen=True)
class RemoteServer:
    """The values of `--url` and `--token-file`; the token is read when it is needed."""

    url: str
    token_file: Path | None = None

    @property
    def address(self) -> str:
        """The server's address.

        Raises:
            BadInput: It is not an address, or would send the token unencrypted.
        """
        from urllib.parse import urlsplit

        from ava_server.http.settings import LOOPBACK_NAMES, public_url

        url = self.url.strip().rstrip("/").removesuffix("/mcp")
        try:
            address = public_url(url) or ""
        except BadInput:
            raise BadInput(
                f"--url: {self.url[:80]!r} is not a server's address; write it like https://ava.example.org"
            ) from None
        if address.startswith("http:") and urlsplit(address).hostname not in LOOPBACK_NAMES:
            raise BadInput(f"--url: over http anyone on the way to {address} can read the token; use https")
        return address

    def token(self, env: Mapping[str, str] | None = None) -> str:
        """Return the token from the given file, else from AVA_TOKEN.

        Raises:
            BadInput: There is none, or its file cannot be read or is open to others.
        """
        text = (os.environ if env is None else env).get("AVA_TOKEN", "").strip()
        if self.token_file is not None:
            text = _read_token_file(self.token_file)
        if not text:
            raise BadInput(
                "Give the server's token in AVA_TOKEN, or a file that holds it with --token-file; never as an"
                " argument, which others can see."
            )
        if not text.isascii() or not text.isprintable() or " " in text:
            raise BadInput("This is not a token: a token is one line, as `ava token create` showed it.")
        return text


@asynccontextmanager
async def open_remote(server: RemoteServer) -> AsyncGenerator[RemoteApprovals]:
    """Connect to the server of `--url`. Only that server gets the token: redirects are not followed.

    Raises:
        BadInput: Address or token cannot be used.
    """
    import httpx2

    address = server.address
    headers = {"Authorization": f"Bearer {server.token()}", "Accept-Encoding": "identity"}
    local = address.startswith("http:")  # this machine: the environment's proxies are for others
    async with httpx2.AsyncClient(
        headers=headers, timeout=ANSWER_S, follow_redirects=False, trust_env=not local
    ) as client:
        yield RemoteApprovals(client, address)


class RemoteApprovals:
    """Decides on another server, with a token of the scope `approve`."""

    def __init__(self, client: httpx2.AsyncClient, address: str) -> None:
        self._client = client
        self._address = address

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals with these ids, or all of the token's user that wait, the oldest first.

        Raises:
            BadInput: An id has the wrong form.
            Refused: A proposal does not wait.
        """
        from ava_server.approval.proposals import Pending

        wanted = [parse_any_id(given)[1] for given in ids]
        answer = await self._request("GET")
        try:
            found = [Pending.model_validate(one) for one in answer["proposals"]]
        except (KeyError, TypeError, ValueError):
            raise self._not_ava() from None
        if not wanted:
            return found
        by_id = {name: one for one in found for name in (one.pending_id, one.subagent_id)}
        if missing := [each for each in wanted if each not in by_id]:
            raise Refused(f"{missing[0]} does not wait at {self._address}; without an id, all that wait are shown.")
        return list({by_id[each].pending_id: by_id[each] for each in wanted}.values())

    async def extensions(self, ids: list[str]) -> list[PendingExtension]:
        """Return what runs with these ids ask for, or all of the token's user that ask, the oldest first."""
        from ava_server.runs.extension_answer import PendingExtension

        answer = await self._request("GET")
        try:  # an older server has none
            found = [PendingExtension.model_validate(one) for one in answer.get("extensions", [])]
        except (TypeError, ValueError):
            raise self._not_ava() from None
        return _named(found, ids)

    async def decide_extension(self, one: PendingExtension, *, approve: bool) -> str:
        """Raise the cap of a run, or have it wrap up; return what came of it.

        Raises:
            AvaError: The decision was not accepted.
        """
        decision = "approve" if approve else "reject"
        given = {"decision": decision, "subagent_id": one.subagent_id, "digest": one.digest}
        return str((await self._request("POST", given)).get("message", ""))

    async def check_can_approve(self) -> None:
        """Do nothing: the token replaces the PIN, and the server says what is missing."""

    async def unlock(self, outcome: str) -> None:
        """Do nothing: the token replaces the PIN."""

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Approve or reject.

        Raises:
            AvaError: The decision was not accepted.
        """
        from ava_server.service.responses import ConfirmAnswer

        given: dict[str, Any] = {"pending_ids": [one.pending_id for one in waiting], "decision": decision, **more}
        if decision == "approve":
            now_us = time.time_ns() // 1000
            given["digests"] = {one.pending_id: _unexpired(one, now_us).digest for one in waiting}
        answer = await self._request("POST", given)
        try:
            return ConfirmAnswer.model_validate(answer)
        except ValueError:
            raise self._not_ava() from None

    async def describe_start(self, waiting: Sequence[Pending]) -> str:
        """Return that the server has the runs; this token cannot read whether they start."""
        return f"The server at {self._address} has {'it' if len(waiting) == 1 else 'them'}."

    async def _request(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the server's answer; a refused decision is an answer too.

        Raises:
            AvaError: The server cannot be reached, or refuses the token.
        """
        import httpx2
        from pydantic_core import from_json

        try:
            with anyio.fail_after(WHOLE_ANSWER_S):
                async with self._client.stream(method, f"{self._address}/approvals", json=body) as response:
                    content = await self._content(response)
        except TimeoutError:
            raise ConfigError(
                f"{self._address} was still answering after {WHOLE_ANSWER_S:.0f} s. {_MAY_BE_DECIDED}"
            ) from None
        except httpx2.HTTPError as error:
            raise _connection_error(self._address, error) from error
        except httpx2.InvalidURL as error:
            raise BadInput(f"--url: {self._address} is not an address: {error}") from None
        try:
            answer: Any = from_json(content)  # also refuses deep nesting and lone surrogates
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._not_ava()
        fields = cast("dict[str, Any]", answer)
        if response.status_code == 200 or (response.status_code == 409 and "decisions" in fields):
            return fields
        why = " ".join(str(fields.get("error_description") or f"status {response.status_code}").split())
        why = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 1] + "…"
        if response.status_code == 400:
            raise BadInput(why)
        raise Refused(f"{self._address}: {why}")

    async def _content(self, response: httpx2.Response) -> bytes:
        """Return the whole body.

        Raises:
            ConfigError: It is longer than any of Ava's, or compressed.
        """
        content = b""
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self._not_ava()
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > LONGEST_ANSWER:
                raise self._not_ava()
        return content

    def _not_ava(self) -> ConfigError:
        return ConfigError(f"The server at {self._address} is not Ava; is something else in between?")


def names_run(given: str, one: PendingExtension) -> bool:
    """Tell whether an id names the run that asks for more."""
    try:
        return parse_any_id(given)[1] in (one.subagent_id, one.pending_id)
    except BadInput:  # whoever looks for a proposal with this id says what is wrong
        return False


def _named(waiting: list[PendingExtension], ids: list[str]) -> list[PendingExtension]:
    """Return those of these requests whose run has one of the ids; all of them without ids."""
    return [one for one in waiting if not ids or any(names_run(given, one) for given in ids)]


def _unexpired(proposal: Pending, now_us: int) -> Pending:
    """Return the proposal.

    Raises:
        Refused: It has expired.
    """
    if proposal.expires_us <= now_us:
        raise Refused(f"{proposal.pending_id} has expired; have it proposed again.")
    return proposal


def _read_token_file(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"--token-file: {path} is not a file; give a file that holds only the token.")
        if os.name == "posix" and status.st_mode & 0o077:
            raise BadInput(f"--token-file: others may read {path}. Fix it with: chmod 600 {path}")
        with path.open(encoding="utf-8") as file:
            return file.read(LONGEST_FILE).strip()
    except (OSError, UnicodeDecodeError) as failed:
        why = failed.strerror if isinstance(failed, OSError) else "it is not text"
        raise BadInput(f"--token-file: {path} cannot be read: {why}.") from None


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
    return ConfigError(f"{address} does not answer: {why}. Is `ava serve --http` running there?")
