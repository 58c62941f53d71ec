"""A data root with everything that shows it: a host, pages, a server over HTTP, commands, and a scripted model.

The person who decides is played here, and what they did is noted here (`Yes`), as what the model server was asked is.
No figure that is expected of a surface comes from Ava's log.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from support.commands.fork_server import prepare_command
from support.http_server import HttpServer, serve_http, serve_pages, token
from support.model_server import Gate, ModelServer, usage_for
from support.pages.browser import TEAM, Visitor
from support.stdio import Wire, make_root, model_env, read_log, serve_stdio
from support.terminal import environment, run_on_terminal

from ava_server.config.sign_in import BrowserSessions
from ava_server.core.data_root import DataRoot, os_user

PLAIN = (sys.executable, "-m", "ava_server")
"""How a command of Ava begins."""
INPUT_MICROS, OUTPUT_MICROS = 3, 15
"""Prices of the scripted model, in micro-USD a token; `support.pages.browser.PAID` sets them."""
_ASKS = re.compile(r"\[y/N\]|\[y = all")
_WITHIN_S = 600
"""How long anything may take: the machine may be busy."""
_READS_S = 1.2
"""How long the person reads a host's form; a faster answer is taken for that of no person."""


def changed(*statements: str) -> tuple[str, ...]:
    """Return how a command of an Ava begins that first runs these statements."""
    lines = ["import sys", *statements, "from ava_server.cli import run", "run(sys.argv[1:])"]
    return (sys.executable, "-c", "\n".join(lines))


@dataclass(frozen=True)
class Yes:
    """A decision as the person made it: on which screen, in whose name, and in which minute.

    `screen` is `terminal`, `browser`, `form` (of the host), `http` or `call` (of the host, without a person).
    """

    screen: str
    user: str
    minutes: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """What a host was asked to show: the message of the form, and the titles and texts of its fields."""

    message: str
    fields: str

    @property
    def text(self) -> str:
        return f"{self.message}\n{self.fields}"


class Clock:
    """Notes in which minutes something was done."""

    def __init__(self) -> None:
        self._began = datetime.now()

    @property
    def minutes(self) -> tuple[str, ...]:
        """Return the minutes from the beginning until now, as `14:05`."""
        found: list[str] = []
        at = self._began
        while at < datetime.now() + timedelta(seconds=1):
            found.append(at.strftime("%H:%M"))
            at += timedelta(seconds=20)
        found.append(datetime.now().strftime("%H:%M"))
        return tuple(dict.fromkeys(found))


class Host:
    """A host over stdio whose person can be asked by a form."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.forms: list[Form] = []

    async def greet(self) -> None:
        """Say that forms can be shown."""
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "wire", "version": "1.0"},
        }
        await self.wire.request("initialize", hello)
        await self.wire.notify("notifications/initialized")

    async def call(self, tool: str, *, action: str = "accept", **arguments: Any) -> dict[str, Any]:
        """Call a tool, answer the forms that it shows by this action, and return the whole result."""
        number = await self.wire.ask("tools/call", {"name": tool, "arguments": arguments})
        with anyio.fail_after(_WITHIN_S):
            while True:
                message = await self.wire.receive()
                if message.get("method") == "elicitation/create":
                    await self._answer(message, action)
                elif message.get("id") == number and "method" not in message:
                    result: dict[str, Any] = message["result"]
                    return result

    async def _answer(self, message: dict[str, Any], action: str) -> None:
        params = message["params"]
        self.forms.append(Form(params["message"], json.dumps(params.get("requestedSchema", {}), ensure_ascii=False)))
        await anyio.sleep(_READS_S)
        answer: dict[str, Any] = {"action": action}
        if action == "accept":
            answer["content"] = {}
        await self.wire.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})

    async def tool(self, tool: str, *, action: str = "accept", **arguments: Any) -> dict[str, Any]:
        """Call a tool that succeeds, and return the structured form."""
        result = await self.call(tool, action=action, **arguments)
        assert not result.get("isError"), result["content"][0]["text"]
        content: dict[str, Any] = result["structuredContent"]
        return content

    async def read(self, uri: str) -> str:
        """Return the text of a resource, or the error that came."""
        answer = await self.wire.request("resources/read", {"uri": uri})
        if "error" in answer:
            return str(answer["error"]["message"])
        return str(answer["result"]["contents"][0]["text"])


@dataclass
class World:
    """A data root and what runs on it.

    Attributes:
        model: The model server; it is shared by all worlds, and its requests are the witness of calls and money.
        command: How commands of this world begin.
        yes: What the person decided, by the id of the run.
        text: A token of the person's, for `--url`.
        forms: The last form of a host that asked about a run, by the id of the run.
        asked_pages: The page that asked about a proposal, by the id of the run.
        shown_last: What `ava show` without an id showed when a run had ended, by its id.
    """

    root: Path
    notes: Path
    model: ModelServer
    env: dict[str, str]
    command: Sequence[str] = PLAIN
    host: Host | None = None
    pages: HttpServer | None = None
    team: HttpServer | None = None
    visitor: Visitor | None = None
    text: str = ""
    yes: dict[str, Yes] = field(default_factory=dict[str, Yes])
    forms: dict[str, Form] = field(default_factory=dict[str, Form])
    asked_pages: dict[str, str] = field(default_factory=dict[str, str])
    shown_last: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def start(self) -> Sequence[str]:
        """How a command begins; where it is that of this Ava, forked from a process that has imported it."""
        return prepare_command() if self.command is PLAIN else self.command

    async def ava(self, *words: str, stdin: str = "") -> str:
        """Return what a command prints, its errors below."""
        return await anyio.to_thread.run_sync(lambda: self._ava(self.root, words, stdin))

    async def ava_far(self, *words: str) -> str:
        """Return what a command prints with `--url`, on a machine without a data root."""
        assert self.team is not None
        given = ("--url", self.team.base, *words)
        elsewhere = self.root.parent / "elsewhere"
        return await anyio.to_thread.run_sync(lambda: self._ava(elsewhere, given, "", AVA_TOKEN=self.text))

    def _ava(self, root: Path, words: Sequence[str], stdin: str, **more: str) -> str:
        env = {**environment(root), **self.env, "COLUMNS": "120", **more}
        done = subprocess.run(
            [*self.start, *words], env=env, input=stdin, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
        return done.stdout + done.stderr

    # -- what the person does ------------------------------------------------------------------------------------------

    async def propose(self, **arguments: Any) -> dict[str, Any]:
        """Propose what the host's model wants; the answer has the ids."""
        assert self.host is not None
        given = {"workspace": str(self.notes), "max_cost_cents": 60, **arguments}
        if "steps" not in given:
            given = {"role": "researcher", **given}
        return await self.host.tool("spawn_subagent", **given)

    async def approve(self, screen: str, *made: dict[str, Any]) -> None:
        """Keep what the host's form and the page ask, say yes on a screen, and note it."""
        clock = Clock()
        await self.look_at(*made)
        if screen == "form":
            answer = await self._confirm("accept", *made)
            assert answer["status"] == "approved", answer
            if answer.get("group_id"):
                group = str(answer["group_id"])
                self.forms[group] = self.forms[run_of(made[0])]
                self.asked_pages[group] = self.asked_pages[run_of(made[0])]
                self.yes[group] = Yes("form", os_user(), clock.minutes)
        elif screen == "terminal":
            await anyio.to_thread.run_sync(lambda: self._type([each["pending_id"] for each in made]))
        elif screen == "browser":
            [one] = made
            assert self.visitor is not None
            visitor = self.visitor
            page = await anyio.to_thread.run_sync(lambda: visitor.decide(one["pending_id"], "approve"))
            assert page.status_code in (200, 303), page.text
        else:
            raise AssertionError(screen)
        for each in made:
            self.yes[run_of(each)] = Yes(screen, os_user(), clock.minutes)

    async def approve_over_http(self, made: dict[str, Any]) -> None:
        """Say yes as a program of the person's does, away from the server."""
        assert self.team is not None
        clock = Clock()
        pending = str(made["pending_id"])
        waiting = (await self.team.get("/approvals", self.text)).json()["proposals"]
        shown = next(each for each in waiting if each["pending_id"] == pending)
        given = {
            "decision": "approve",
            "pending_ids": [pending],
            "approving": [shown["approval_line"]],
            "digests": {pending: shown["digest"]},
        }
        answer = await self.team.post("/approvals", self.text, json=given)
        assert answer.status_code == 200, answer.text
        self.yes[run_of(made)] = Yes("http", os_user(), clock.minutes)

    async def look_at(self, *made: dict[str, Any]) -> None:
        """Keep the form and the page that ask about proposals; both are left without an answer."""
        await self._confirm("cancel", *made)
        if self.visitor is None:
            return
        visitor = self.visitor
        ids = [each["pending_id"] for each in made]
        path = f"/proposals/{ids[0]}" if len(ids) == 1 else f"/proposals?{'&'.join(f'id={each}' for each in ids)}"
        page = await anyio.to_thread.run_sync(lambda: visitor.get(path).text)
        for each in made:
            self.asked_pages[run_of(each)] = page

    async def _confirm(self, action: str, *made: dict[str, Any]) -> dict[str, Any]:
        """Confirm proposals in a call of the host, whose person is asked by a form."""
        assert self.host is not None
        lines = [each["approval_line"] for each in made]
        ids = [each["pending_id"] for each in made]
        shown = len(self.host.forms)
        answer = await self.host.tool("confirm_spawn", action=action, pending_ids=ids, approving=lines)
        if answer["status"] == "refused" and "approval_lines" in answer:
            lines = answer["approval_lines"]
            answer = await self.host.tool("confirm_spawn", action=action, pending_ids=ids, approving=lines)
        assert len(self.host.forms) > shown, f"the host's person was asked nothing: {answer}"
        for each in made:
            self.forms[run_of(each)] = self.host.forms[-1]
        return answer

    def _type(self, pending_ids: Sequence[str]) -> None:
        """Say yes at a terminal."""
        controlled = ("sh", "-c", ': <"$(tty)"; exec "$@"', "sh", *self.start)
        with run_on_terminal(self.root, "approve", *pending_ids, env=self.env, command=controlled, rows=100) as screen:
            screen.until_shown(lambda lines: any(_ASKS.search(line) for line in lines))
            screen.type("y\n")
            assert screen.ended() == 0, screen.text

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def logged(self, run_id: str, *types: str, count: int = 1) -> None:
        """Wait until a run has so many entries of one of these types."""
        await self.until(lambda: len(read_log(self.root, *types, run=run_id)) >= count, f"{types} of {run_id}")

    async def ended(self, *run_ids: str) -> None:
        """Wait until runs have ended."""
        for run_id in run_ids:
            await self.logged(run_id, "RunEnded", "PlanEnded", "SubagentComplete")

    async def until(self, found: Any, what: str, within_s: float = _WITHIN_S) -> Any:
        """Wait until something is there. Raises AssertionError: it never came."""
        deadline = time.monotonic() + within_s
        while not (value := await anyio.to_thread.run_sync(found)):
            assert time.monotonic() < deadline, f"{what} never came"
            await anyio.sleep(0.1)
        return value

    # -- the witness ---------------------------------------------------------------------------------------------------

    def calls(self, marker: str) -> int:
        """Return how many requests with a text among the user's messages the model server has answered well."""
        return len(self._answered(marker))

    def micros(self, marker: str) -> int:
        """Return what these answers cost by the prices, in micro-USD."""
        return sum(map(_price, self._answered(marker)))

    def _answered(self, marker: str) -> list[bytes]:
        return [each.body for each in self.model.answered if marker in task_of(each.json)]


def _price(body: bytes) -> int:
    usage = usage_for(body)
    return int(usage["prompt_tokens"]) * INPUT_MICROS + int(usage["completion_tokens"]) * OUTPUT_MICROS


def task_of(request: dict[str, Any]) -> str:
    """Return the first message of the user in a model request: the task with its inputs."""
    for message in request.get("messages", ()):
        if message["role"] == "user":
            return str(message["content"])
    return ""


def run_of(made: dict[str, Any]) -> str:
    return str(made.get("subagent_id") or made["group_id"])


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@asynccontextmanager
async def open_world(
    place: Path,
    model: ModelServer,
    settings: str,
    *,
    command: Sequence[str] = PLAIN,
    root: Path | None = None,
    host: bool = True,
    pages: bool = True,
    limits: dict[str, str] | None = None,
) -> AsyncGenerator[World]:
    """Open a data root with its servers.

    Args:
        root: One that is there already.
        host: Start a host.
        pages: Serve the pages, and MCP over HTTP.
        limits: Variables of the servers of the pages, which make their limits stricter.
    """
    notes = _made(place / "notes")
    if root is None:
        root = make_root(place / "data", config_toml=settings)
    env = model_env(model.base_url)
    world = World(root, notes, model, env, command)
    async with AsyncExitStack() as stack:
        if host:
            started = serve_stdio(root, env=env, initialize=False, command=(*world.start, "serve"))
            world.host = Host(await stack.enter_async_context(started))
            await world.host.greet()
        if pages:
            await show_pages(world, stack, limits or {})
        yield world


async def show_pages(world: World, stack: AsyncExitStack, limits: dict[str, str]) -> None:
    """Serve the pages of a data root, and MCP over HTTP, and sign the person in."""
    env = {**world.env, **limits}
    world.text = token(world.root, os_user(), "spawn", "read", "approve", name=f"of-{world.root.parent.name}")
    world.pages = await stack.enter_async_context(
        serve_pages(world.root, env=env, start=world.start, within_s=_WITHIN_S)
    )
    program = (*world.start[1:], *TEAM)
    world.team = await stack.enter_async_context(serve_http(world.root, env=env, program=program, within_s=_WITHIN_S))
    http = stack.enter_context(httpx2.Client(base_url=world.pages.base, timeout=30, trust_env=False))
    world.visitor = Visitor(world.pages.base, http)
    code = BrowserSessions(DataRoot(world.root).browser_sessions).issue_code(os_user(), terminal=True)
    answer = world.visitor.get(f"/enter?code={code}")
    assert answer.status_code == 303, answer.text


def holding_gate() -> Gate:
    """Return a gate that holds an answer until the end of the play."""
    return Gate(within_s=1_200)
