"""A server as the transport of a command's requests: what it answers is cleaned, and names the server.

`record_client.MemoryTransport` and `service_client.SessionTransport` have the same requests answered in this process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar, cast

import anyio
from pydantic import TypeAdapter

from ava_audit.entries import entry_of_line
from ava_audit.search import LogQuery
from ava_roles.wrap import clean
from ava_server.approval.decide import Decided, PersonAnswer, Shown, tool_call
from ava_server.cli.remote import Connection
from ava_server.cli.terminal import Place
from ava_server.core.commands import advice_there
from ava_server.core.errors import ConfigError, leaves_of
from ava_server.render.responses import ConfirmAnswer
from ava_server.run_config.config import config_of
from ava_server.service.current import CurrentRuns
from ava_server.service.decision_requests import WAITING
from ava_server.service.record_requests import LogLines, RecordRequest
from ava_server.service.run_records import ListedRuns, RunDetail, RunRecord

if TYPE_CHECKING:
    from ava_server.cli.service_client import StartSeen
    from ava_server.config.pin import PinFile
    from ava_server.render.run_view import RunView
    from ava_server.service.run_records import CurrentViews

P = ParamSpec("P")
T = TypeVar("T")
AGAIN_S = 0.7
"""How often a server is asked for news."""
_MAY_BE_DECIDED = "The decision may still have been made; without an id, this command shows what still waits."
_WRONG = (ValueError, TypeError, LookupError, OverflowError, AttributeError)
"""What showing an answer raises that no Ava of this version gives."""


@asynccontextmanager
async def reached(server: Connection, every_s: float = AGAIN_S) -> AsyncGenerator[HttpTransport]:
    """Connect to a server. Raises AvaError if it cannot be used, or what it answered cannot be shown."""
    try:
        async with server.opened():
            yield HttpTransport(server, every_s)
    except Exception as error:
        leaves = list(leaves_of(error))
        if not all(isinstance(leaf, _WRONG) for leaf in leaves):
            raise
        raise ConfigError(
            f"The answer of {server.address} cannot be shown ({type(leaves[0]).__name__}). Does it run another version"
            " of Ava? Update the older one."
        ) from error


class HttpTransport:
    """Sends requests to a server, which answers as far as the token's user may read.

    What it returns can be shown: texts are cleaned, and commands in them name the server.

    Args:
        connection: The server.
        every_s: How often it is asked for news.
    """

    def __init__(self, connection: Connection, every_s: float = AGAIN_S) -> None:
        self.place: Place = connection.address
        self.every_s = every_s
        self.connection = connection

    async def send(self, request: RecordRequest[Any, P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises AvaError if the server does not answer, or refuses; ValueError if the answer is of another version."""
        from pkgutil import resolve_name

        assert not args, "the parameters of a request have names"
        kind: type[T] = resolve_name(request.kind)
        path = request.path.format(**kwargs)
        arguments: dict[str, Any] = {}
        for name, value in kwargs.items():
            in_path = f"{{{name}}}" in request.path
            if not in_path and value is not None and value is not False:
                arguments[name] = value
        if request.method == "GET":
            params = {name: _parameter(value) for name, value in arguments.items()}
            answer = await self.connection.request("GET", path, params=params)
        else:
            answer = await self.connection.request(request.method, path, body=arguments or None, doubt=request.lost)
        return self._to_show(validated(kind, answer))

    async def wait_for_entry(self, after: int) -> None:
        del after  # the next request asks for what is newer
        await anyio.sleep(self.every_s)

    async def decide(self, shown: Sequence[Shown], answer: PersonAnswer) -> Decided:
        """Send what a person has decided; what only steers a run is a call of a tool."""
        [one, *_others] = shown
        if one.kind == "extend":
            decision = "approve" if answer.agrees else "reject"
            body: dict[str, Any] = {"decision": decision, "subagent_id": one.id, "digest": one.digest}
            return Decided(await self.connection.request("POST", WAITING.path, body=body, doubt=_MAY_BE_DECIDED))
        tool, arguments = tool_call(shown, answer)
        if one.kind != "start":
            return Decided(await self.connection.call_tool(tool, arguments))
        if answer.agrees:
            arguments["digests"] = {each.id: each.digest for each in shown}
            screens = {pending_id: asdict(screen.cut()) for pending_id, screen in answer.screens.items()}
            if screens:
                arguments["screens"] = screens
        fields = await self.connection.request("POST", WAITING.path, body=arguments, doubt=_MAY_BE_DECIDED)
        return Decided(validated(ConfirmAnswer, fields).structured())

    async def needed_pin(self, shown: Sequence[Shown], words: str | None = None) -> PinFile | None:
        """The token replaces the PIN, and the server says what is missing."""

    def pin_was_given(self) -> None:
        """No PIN is asked for."""

    async def watch_start(self, run_ids: Sequence[str]) -> StartSeen | None:
        """A token that approves cannot read whether they start."""

    async def note_shown(self, command: str, shown: Sequence[RunRecord]) -> None:
        """The server has done so when it answered."""

    def _to_show(self, answer: T) -> T:
        """Return an answer whose commands name the server. Raises ValueError if it cannot be shown."""
        shown: Any = answer
        match shown:
            case ListedRuns():
                shown = ListedRuns(self._name_server(shown.runs))
            case CurrentRuns():
                now = cast("CurrentViews", shown)
                shown = replace(now, runs=tuple(self._name_server(now.runs)))
            case RunDetail():
                [run] = self._name_server([shown.run])
                shown = replace(shown, run=run)
            case RunRecord():
                config_of(shown.row.config)  # of a newer Ava, it could not be shown
                if shown.answer.waits_for is not None:
                    shown.answer.waits_for = advice_there(shown.answer.waits_for, self.connection.command)
            case LogLines():
                for line in shown.lines:
                    _refuse_unshowable(line.encode().rstrip(b"\n"))
            case _:
                pass
        return cast("T", shown)

    def _name_server(self, runs: Iterable[RunView]) -> list[RunView]:
        """Return runs whose commands name the server."""
        named: list[RunView] = []
        for run in runs:
            if run.wait is not None:
                run = replace(run, wait=replace(run.wait, command=self.connection.command))
            named.append(run)
        return named


def _parameter(value: Any) -> Any:
    """Return a parameter of a request as it is written in an address."""
    if isinstance(value, LogQuery):
        return TypeAdapter(LogQuery).dump_json(value, exclude_defaults=True, exclude_none=True).decode()
    if _are_shown(value):
        texts = {"__all__": {"line", "text"}}
        return TypeAdapter(list[Shown]).dump_json(value, exclude=texts).decode()
    return value


def _are_shown(value: Any) -> TypeGuard[list[Shown]]:
    return isinstance(value, list) and any(isinstance(one, Shown) for one in cast("list[Any]", value))


def _refuse_unshowable(line: bytes) -> None:
    """Raises ValueError if it is not a line of a log, or could steer a terminal."""
    entry = entry_of_line(line)
    who = entry.who
    for text in (entry.type, entry.run_id or "", who.session_id, who.agent_id, who.user_id):
        harmless, _count = clean(text)
        if harmless != text:
            raise ValueError("it is not a line of a log")
    if b"\n" in line:
        raise ValueError("it is not a line of a log")
    _ = entry.fact  # raises if it is not one of its type


def validated(kind: type[T], answer: Any) -> T:
    """Texts are cleaned. Raises ValueError if it has another form."""
    return TypeAdapter(kind).validate_python(_clean_texts(answer))


def _clean_texts(value: Any) -> Any:
    """The lines of a log are checked one by one, and stay as they are."""
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, list):
        return [_clean_texts(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields: dict[str, Any] = {}
    for name, one in cast("dict[str, Any]", value).items():
        if name != "lines":
            one = _clean_texts(one)
        fields[clean(name)[0]] = one
    return fields
