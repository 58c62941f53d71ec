"""Speaks the Agent Client Protocol with another agent's program, over its stdin and stdout.

The SDK's connection does the JSON-RPC; what an agent may send is bounded here, and every wait has a deadline but that
for a turn, whose caller has one. Nothing that an agent tells about itself is taken for measured.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, cast

import anyio
from acp import PROTOCOL_VERSION, schema
from acp.connection import Connection
from acp.exceptions import RequestError
from pydantic import BaseModel, ValidationError

from ava_roles.sandbox.sandbox import Pipes
from ava_roles.wrap import one_line
from ava_server.core.errors import AvaError
from ava_server.models.json_text import as_object, as_text, fields_of, join_surrogates

log = logging.getLogger("ava.agents")

START_S = 60.0
"""Seconds until an agent has answered `initialize` and opened a session: some read a large installation first."""
ANSWER_S = 20.0
"""Seconds for each other request, and for taking a message."""
LINE_BYTES = 8 * 1024 * 1024
MESSAGES_PER_S = 2_000
"""Messages that are read in a second; a program that writes more waits."""
MOST_ASKS = 1_000
"""Requests for permission of one agent that are answered; later ones are refused unread."""
MOST_OPEN = 32
"""Requests of an agent that wait for their answer; it is read on when it has taken some."""
_MOST_SESSION = 1_000
_MOST_TITLE, _MOST_PATH = 10_000, 4_096
"""Characters of a title that are looked at, far more than are shown, and of a path that permission is asked for."""
_MOST_PATHS = 1_000
_SIGN_IN = -32_000
"""The protocol's code of an error for who has not signed in."""
_STDERR_CHARS = 300
_MOST_JUNK = 200
"""Lines on stdout that are not messages: some programs greet, and one that writes nothing else is not an agent."""

T = TypeVar("T", bound=BaseModel)
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


class AgentFailed(AvaError):
    """Raised when an agent's program cannot go on; the text says what happened and what to do."""


class TurnFailed(AgentFailed):
    """Raised when an agent ends a turn with an error, and could take another one."""


@dataclass(frozen=True)
class Update:
    """What an agent tells while it works: a piece of text, a tool call by its id, or its own count of usage."""

    kind: Literal["text", "thought", "tool", "plan", "usage"]
    text: str = ""
    call_id: str = ""
    status: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class PermissionRequest:
    """What an agent asks permission for.

    `paths` are all that it names: as places, in the call's own arguments, and in the changes that it shows. `changes`
    tells whether it shows any, whatever kind it says.
    """

    call_id: str
    kind: str
    title: str
    paths: tuple[str, ...]
    changes: bool


class AcpAgent:
    """The conversation with a program that has been started; `name` and `version` are its own words.

    `hide` replaces secrets in what it writes, before it is cut.
    """

    def __init__(
        self,
        title: str,
        pipes: Pipes,
        on_update: Callable[[Update], None],
        permit: Callable[[PermissionRequest], Awaitable[bool]],
        hide: Callable[[str], str] = str,
    ) -> None:
        self._title = title
        self._pipes = pipes
        self._on_update = on_update
        self._permit = permit
        self._transport = _Lines(pipes)
        self._connection = Connection(self._handle, cast("Any", self._transport), listening=True)
        self._can = schema.AgentCapabilities()
        self._session = ""
        self._folder = ""
        self._hide = hide
        self._asks = 0
        self.name = self.version = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End the conversation, not the program."""
        with anyio.move_on_after(1, shield=True):
            await self._connection.close()

    # -- what Ava asks ------------------------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Agree on the protocol. Raises AgentFailed if it speaks another version, or does not answer."""
        client = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        asked = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": client}
        said = await self._request("initialize", asked, schema.InitializeResponse, START_S)
        if said.protocol_version != PROTOCOL_VERSION:
            raise AgentFailed(
                f"{self._title} speaks version {said.protocol_version} of the Agent Client Protocol, and Ava speaks"
                f" {PROTOCOL_VERSION}: update the older one of the two"
            )
        self._can = said.agent_capabilities or schema.AgentCapabilities()
        if said.agent_info is not None:
            self.name = self._line(said.agent_info.name, 80)
            self.version = self._line(said.agent_info.version, 40)

    @property
    def takes_provider(self) -> bool:
        """Whether the endpoint can be set by the protocol."""
        return self._can.providers is not None

    @property
    def takes_tools(self) -> bool:
        return bool(self._can.mcp_capabilities and self._can.mcp_capabilities.http)

    @property
    def resumes(self) -> bool:
        """Whether it can go on with a session of an earlier process."""
        return bool(
            self._can.load_session or (self._can.session_capabilities and self._can.session_capabilities.resume)
        )

    async def set_provider(self, url: str, secret: str, api_type: str) -> None:
        """Have every provider of an API's type ask at an address. Raises AgentFailed if it has none of that type."""
        listed = await self._request("providers/list", {}, schema.ListProvidersResponse, ANSWER_S)
        fitting = [each.provider_id for each in listed.providers if api_type in map(str, each.supported)]
        if not fitting:
            raise AgentFailed(
                f"{self._title} has no provider that speaks {api_type}: update it, or choose another model"
            )
        for provider in fitting:
            headers = {"Authorization": f"Bearer {secret}"}
            asked = {"providerId": provider, "apiType": api_type, "baseUrl": url, "headers": headers}
            await self._request("providers/set", asked, schema.SetProviderResponse, ANSWER_S)

    async def open_session(self, folder: str, mcp: tuple[str, str] | None) -> str:
        """Begin a session in a folder, with a server of tools (address, secret); return its id. Raises AgentFailed."""
        self._folder = folder
        asked = {"cwd": folder, "mcpServers": _servers(mcp)}
        said = await self._request("session/new", asked, schema.NewSessionResponse, START_S)
        if len(said.session_id) > _MOST_SESSION or self._hide(said.session_id) != said.session_id:
            raise self._failed("gave its session an id that is too long, or looks like a secret")
        self._session = said.session_id
        return said.session_id

    async def resume_session(self, session: str, folder: str, mcp: tuple[str, str] | None) -> None:
        """Go on with a session of an earlier process. Raises AgentFailed if it cannot."""
        self._folder = folder
        asked = {"sessionId": session, "cwd": folder, "mcpServers": _servers(mcp)}
        can = self._can.session_capabilities
        method = "session/resume" if can is not None and can.resume is not None else "session/load"
        if not self.resumes:
            raise AgentFailed(f"{self._title} cannot go on with a session of an earlier process")
        await self._request(method, asked, _Anything, START_S)
        self._session = session

    async def prompt(self, text: str) -> tuple[StopReason, Mapping[str, Any]]:
        """Have it take a turn; return why it stopped, and the usage that it tells. Its caller has a deadline."""
        asked = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        said = await self._request("session/prompt", asked, schema.PromptResponse, None)
        usage = said.usage.model_dump(exclude_none=True, by_alias=False) if said.usage is not None else {}
        return said.stop_reason, usage

    async def cancel(self) -> None:
        """Ask it to stop its turn; `prompt` then returns, if it obeys."""
        with suppress(ConnectionError), anyio.move_on_after(ANSWER_S):
            await self._connection.send_notification("session/cancel", {"sessionId": self._session})

    async def _request(self, method: str, asked: Mapping[str, Any], answer: type[T], within_s: float | None) -> T:
        try:
            with anyio.fail_after(within_s):
                said = await self._connection.send_request(method, dict(asked))
            return answer.model_validate(said if said is not None else {})
        except TimeoutError:
            raise self._failed(f"did not answer {method} within {within_s:g} s") from None
        except RequestError as error:
            details = fields_of(error.data).get("details", "")
            words = one_line(self._hide(f"{error} {details}"), 300)
            if error.code == _SIGN_IN and method != "session/prompt":
                raise self._failed(
                    f"wants a sign-in ({words}); it is run with a key through Ava, so check its setup"
                ) from error
            failed = self._failed(f"refused {method}: {words}")
            raise (TurnFailed(str(failed)) if method == "session/prompt" else failed) from error
        except ValidationError as error:
            raise self._failed(
                f"answered {method} in no form of the protocol ({error.error_count()} faults)"
            ) from error
        except (ConnectionError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise self._failed(self._transport.fault or f"ended while it was asked for {method}") from None

    def _line(self, text: str, most: int) -> str:
        return one_line(self._hide(text[:_MOST_TITLE]), most)

    def _failed(self, what: str) -> AgentFailed:
        sentence = f"{self._title} {what}"
        errors = one_line(self._hide(self._pipes.errors()))[-_STDERR_CHARS:].strip()
        if errors:
            sentence += f"; it wrote: {errors}"
        return AgentFailed(sentence)

    # -- what the agent asks and tells --------------------------------------------------------------------------------

    async def _handle(self, method: str, given: Any, notified: bool) -> Any:
        if method == "session/update":
            self._update(fields_of(fields_of(given).get("update")))
            return None
        if method == "session/request_permission" and not notified:
            return await self._permission(given)
        if notified:  # agents have extensions of their own
            return None
        raise RequestError.method_not_found(method)

    def _update(self, update: Mapping[str, Any]) -> None:
        content = fields_of(update.get("content"))
        text = join_surrogates(as_text(content.get("text")))[0]
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                self._on_update(Update("text", text))
            case "agent_thought_chunk":
                self._on_update(Update("thought", text))
            case "tool_call" | "tool_call_update":
                title = self._line(as_text(update.get("title")), 200)
                call_id = str(update.get("toolCallId", ""))[:200]
                self._on_update(Update("tool", title, call_id, str(update.get("status") or "")))
            case "plan":
                self._on_update(Update("plan"))
            case "usage_update":
                counts = {name: update.get(name) for name in ("used", "size")}
                usage = {name: count for name, count in counts.items() if isinstance(count, int)}
                self._on_update(Update("usage", usage=usage))
            case _:
                pass

    def _absolute(self, path: str) -> str:
        """Return a path of a call's arguments, which may begin in the session's folder; places have to be absolute."""
        if path.startswith(("/", "~")) or "://" in path:
            return path
        return f"{self._folder}/{path}"

    async def _permission(self, params: Any) -> dict[str, Any]:
        """Answer by the option's kind, whatever its place and its name; never for more than once."""
        try:
            request = schema.RequestPermissionRequest.model_validate(params)
        except ValidationError:
            return _CANCELLED
        self._asks += 1
        permission = self._permission_request(request.tool_call)
        if self._asks > MOST_ASKS or len(permission.paths) > _MOST_PATHS:
            return _CANCELLED
        if max(map(len, permission.paths), default=0) > _MOST_PATH:
            return _CANCELLED
        kind = "allow_once" if await self._permit(permission) else "reject_once"
        for option in request.options:
            if str(option.kind) == kind:
                return {"outcome": {"outcome": "selected", "optionId": option.option_id}}
        return _CANCELLED

    def _permission_request(self, call: schema.ToolCallUpdate) -> PermissionRequest:
        paths = [str(location.path) for location in call.locations or ()]
        changes = False
        for part in call.content or ():
            if isinstance(part, schema.FileEditToolCallContent):
                changes = True
                paths.append(str(part.path))
        paths += map(self._absolute, _paths_in(call.raw_input))
        return PermissionRequest(
            call.tool_call_id,
            str(call.kind or "other"),
            self._line(call.title or "", 300),
            tuple(dict.fromkeys(paths)),
            changes,
        )


_CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}
_NAMES_A_PATH = re.compile(
    r"path|file|dir(?:ectory)?(?:\b|_|\Z)|folder|\Acwd\Z|destination|target|source|\Afrom\Z|\Ato\Z|\Auri\Z|location",
    re.I,
)
"""Names of arguments that hold a path, as agents call them: file_path, filePath, notebook_path, destination."""
_HOLD_PATHS = frozenset(("changes", "edits", "files"))
"""Arguments whose keys are paths, as Codex has its changes."""


def _paths_in(given: Any, name: str = "") -> Iterator[str]:
    """Yield what stands in a call's arguments for a path."""
    if isinstance(given, str):
        if _NAMES_A_PATH.search(name) and "\n" not in given:
            yield given
        return
    if isinstance(given, list):
        for each in cast("list[Any]", given):
            yield from _paths_in(each, name)
        return
    for key, each in fields_of(given).items():
        if name in _HOLD_PATHS and isinstance(each, dict):
            yield key
        yield from _paths_in(each, key)


class _Anything(BaseModel, extra="allow"): ...


def _servers(mcp: tuple[str, str] | None) -> Sequence[Mapping[str, Any]]:
    if mcp is None:
        return []
    headers = [{"name": "Authorization", "value": f"Bearer {mcp[1]}"}]
    return [{"type": "http", "name": "ava", "url": mcp[0], "headers": headers}]


def _is_answerable(message: Mapping[str, Any]) -> bool:
    """Tell whether a message has the form that the SDK relies on."""
    if "method" in message:
        return isinstance(message["method"], str)
    return isinstance(message.get("id"), int) and (not message.get("error") or as_object(message["error"]) is not None)


class _Lines:
    """The SDK's transport over the pipes of a command: a message is a line of JSON.

    `fault`: why nothing more is read.
    """

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._rest = bytearray()
        self._writing = anyio.Lock()
        self._junk = 0
        self._unanswered = 0  # requests of the agent
        self._answered = anyio.Event()
        self._second, self._in_second = 0, 0
        self.fault = ""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write a message. Raises ConnectionError if the program does not read.

        A write that is late or cancelled ends the conversation: half a line may be written, and no line can follow it.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        is_answer = "method" not in message
        has_begun = False
        try:
            with anyio.fail_after(ANSWER_S):
                async with self._writing:
                    has_begun = True
                    await self._pipes.stdin.send(line)
            if is_answer:
                self._unanswered -= 1
                self._answered.set()
        except (TimeoutError, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            await self._break("does not take messages")
            raise ConnectionError(self.fault) from error
        except anyio.get_cancelled_exc_class():
            if has_begun:
                with anyio.CancelScope(shield=True):
                    await self._break("was interrupted while it was told something")
            raise

    async def _break(self, fault: str) -> None:
        """End the conversation, so that nobody waits for an answer."""
        self.fault = self.fault or fault
        self._answered.set()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError), anyio.move_on_after(1):
            await self._pipes.stdout.aclose()

    async def receive(self) -> dict[str, Any] | None:
        while True:
            line = await self._line()
            if line is None:
                return None
            with suppress(ValueError, RecursionError):
                message = as_object(json.loads(line))
                if message is not None and _is_answerable(message):
                    await self._slow_down()
                    if "method" in message and "id" in message:
                        await self._count()
                    return message
                if message is not None and "id" in message:  # somebody waits for this answer
                    self.fault = "answered in no form of the protocol"
                    return None
            self._junk += bool(line.strip())
            if self._junk > _MOST_JUNK:
                self.fault = (
                    "writes what is not a message of the Agent Client Protocol: is it started with the right arguments?"
                )
                return None

    async def _count(self) -> None:
        """Count a request, which the SDK keeps until it is answered; wait while there are too many."""
        self._unanswered += 1
        while self._unanswered > MOST_OPEN and not self.fault:
            self._answered = anyio.Event()
            await self._answered.wait()

    async def _slow_down(self) -> None:
        second = int(anyio.current_time())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > MESSAGES_PER_S:
            await anyio.sleep(0.2)

    async def _line(self) -> bytes | None:
        looked = 0
        while (end := self._rest.find(b"\n", looked)) < 0:
            looked = len(self._rest)
            if looked > LINE_BYTES:
                self.fault = f"sent a message of more than {LINE_BYTES:,} bytes"
                return None
            try:
                self._rest += await self._pipes.stdout.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    async def close(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError), anyio.move_on_after(1):
            await self._pipes.stdin.aclose()
