"""The pages as a browser has them: the server's process, a host that proposes, and a visitor with a cookie.

    with open_pages(root) as there:
        visitor = there.signed_in()
        proposed = there.host.propose()
        visitor.decide(proposed["pending_id"], "approve")

Everything is called without `await`, because Playwright's own loop and pytest's would get in each other's way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal

from ava_server.config.pin import PinFile
from ava_server.config.sign_in import BrowserSessions
from ava_server.core.data_root import DataRoot, os_user
from support.commands.fork_server import COMMAND, command
from support.http_server import HttpServer, serve_http, serve_pages, token
from support.model_server import Say, Script, run_model_server
from support.runtime import PRICED
from support.stdio import Wire, make_root, model_env, read_answer, read_log, serve_stdio, state_of

TEAM = "serve", "--http", "--port", "0", "--access-log"
PIN = "48 21 07"
PAID = PRICED.replace("custom:test", "custom:scripted")
"""Prices for the scripted model, so that there is something to cap."""
_FIELD = re.compile(r'name="(\w+)"(?: \w+="[^"]*")*? value="([^"]*)"')


def finish_at_once(_asked: dict[str, Any]) -> Say:
    return Say(calls=[("submit_result", {"summary": "done", "output": "the answer"})])


class Host:
    def __init__(self, portal: BlockingPortal, tool: Any) -> None:
        self._portal = portal
        self._tool = tool

    def tool(self, name: str, /, **given: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._portal.call(lambda: self._tool(name, given))
        return found

    def confirm(self, **given: Any) -> bool:
        """Confirm by a call, and hang up after a second: where a person decides in Ava, it waits for them."""

        async def call() -> bool:
            with anyio.move_on_after(1):
                await self._tool("confirm_spawn", given)
                return True
            return False

        return bool(self._portal.call(call))

    def propose(self, **more: Any) -> dict[str, Any]:
        return self.tool("spawn_subagent", **{"role": "researcher", "task": "What does it cost?", **more})

    def ended(self, run_id: str) -> dict[str, Any]:
        """Wait for the end of a run; on a busy machine that takes more than one call."""
        for _call in range(8):
            found = self.tool("check_subagent", subagent_id=run_id, wait_seconds=10)
            if found["status"] not in ("queued", "running", "awaiting_answer"):
                break
        return found


@dataclass
class Visitor:
    """Somebody at a browser, without the browser."""

    base: str
    http: httpx2.Client
    shown: str = field(default="", repr=False)

    @property
    def cookie(self) -> str:
        return next(iter(self.http.cookies.jar)).value or ""

    def get(self, path: str, **headers: str) -> httpx2.Response:
        answer = self.http.get(path, headers=headers)
        self.shown = answer.text
        return answer

    def post(self, path: str, fields: Sequence[tuple[str, str]] | dict[str, str], **headers: str) -> httpx2.Response:
        """Send a form as a browser does that shows a page of this site."""
        pairs = list(fields.items()) if isinstance(fields, dict) else list(fields)
        body = str(httpx2.QueryParams(cast("Any", pairs)))
        own = {
            "Origin": self.base,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        answer = self.http.post(
            path, content=body, headers={**own, **{k.replace("_", "-"): v for k, v in headers.items()}}
        )
        self.shown = answer.text
        return answer

    def fields(self, path: str) -> list[tuple[str, str]]:
        """Return the fields of a page that have a value, such as the CSRF token and the digests."""
        page = self.get(path)
        assert page.status_code == 200, (page.status_code, page.text)
        form = page.text.partition('id="decision"')[2] or page.text
        return [(name, unescape(value)) for name, value in _FIELD.findall(form)]

    @property
    def csrf(self) -> str:
        return dict(self.fields("/"))["csrf"]

    def decide(self, path: str, decision: str, **more: str) -> httpx2.Response:
        """Open the page of proposals and press a button there."""
        path = path if path.startswith("/") else f"/proposals/{path}"
        fields = [pair for pair in self.fields(path) if pair[0] != "decision"]
        return self.post("/proposals", [*fields, ("decision", decision), *more.items()])


@dataclass
class There:
    """A server of pages, a host of its user, and what the model was asked."""

    root: Path
    server: HttpServer
    portal: BlockingPortal
    host: Host
    requests: list[Any]
    visitors: ExitStack

    @property
    def base(self) -> str:
        return self.server.base

    @property
    def sessions(self) -> BrowserSessions:
        return BrowserSessions(DataRoot(self.root).browser_sessions)

    def visitor(self, **headers: str) -> Visitor:
        client = httpx2.Client(base_url=self.base, timeout=20, trust_env=False, headers=headers)
        return Visitor(self.base, self.visitors.enter_context(client))

    def code(self, *, terminal: bool = True) -> str:
        return self.sessions.issue_code(os_user(), terminal=terminal)

    def signed_in(self, *, terminal: bool = True) -> Visitor:
        """The user of this machine, after `ava ui`."""
        visitor = self.visitor()
        answer = visitor.get(f"/enter?code={self.code(terminal=terminal)}")
        assert answer.status_code == 303, answer.text
        return visitor

    def with_token(self, text: str) -> Visitor:
        visitor = self.visitor()
        answer = visitor.post("/sign-in", {"token": text, "to": "/"})
        assert answer.status_code == 303, answer.text
        return visitor

    def host_of(self, text: str) -> Host:
        client = self.visitors.enter_context(self.portal.wrap_async_context_manager(self.server.client(text)))

        async def call(name: str, given: dict[str, Any]) -> dict[str, Any]:
            return read_answer(await client.call_tool(name, given))[0]

        return Host(self.portal, call)

    def state(self, proposed: dict[str, Any]) -> str:
        return state_of(self.root, proposed["subagent_id"])

    def until(self, found: Any, within_s: float = 40.0) -> Any:
        async def look() -> Any:
            with anyio.fail_after(within_s):
                while not (value := found()):  # noqa: ASYNC110 - it happens in another process
                    await anyio.sleep(0.05)
            return value

        return self.portal.call(look)

    def starts(self, proposed: dict[str, Any]) -> int:
        return len(read_log(self.root, "SubagentSpawn", run=proposed["subagent_id"]))


def set_pin(root: Path) -> None:
    PinFile(DataRoot(root).approval_file).set(PIN)


@contextmanager
def open_pages(
    root: Path,
    settings: str = PAID,
    script: Script = finish_at_once,
    *,
    pin: bool = False,
    forked: bool = True,
) -> Generator[There]:
    """The pages of `ava ui`, and a host of the same user over stdio. Not `forked`: `server.pid` is the server's."""
    make_root(root, config_toml=settings)
    if pin:
        set_pin(root)
    with run_model_server(script) as model, start_blocking_portal() as portal, ExitStack() as stack:
        env = model_env(model.base_url)
        start = command(env) if forked else COMMAND
        server = stack.enter_context(portal.wrap_async_context_manager(serve_pages(root, env=env, start=start)))
        wire: Wire = stack.enter_context(
            portal.wrap_async_context_manager(serve_stdio(root, env=env, command=(*start, "serve")))
        )
        host = Host(portal, lambda name, given: wire.tool(name, **given))
        with ExitStack() as visitors:
            yield There(root, server, portal, host, model.requests, visitors)


@contextmanager
def open_team(
    root: Path,
    settings: str = PAID,
    script: Script = finish_at_once,
    *,
    args: Sequence[str] = (),
    past: Callable[[Path], Awaitable[None]] | None = None,
) -> Generator[There]:
    """A team's server; its host has Ana's token, which may not approve. `past` writes the log before it starts."""
    make_root(root, config_toml=settings)
    if past is not None:
        anyio.run(past, root)
    text = token(root, "ana", name="ana-host")
    with run_model_server(script) as model, start_blocking_portal() as portal, ExitStack() as stack:
        env = model_env(model.base_url)
        opened = serve_http(root, *args, env=env, program=(*command(env)[1:], *TEAM))
        server = stack.enter_context(portal.wrap_async_context_manager(opened))
        with ExitStack() as visitors:
            there = There(root, server, portal, Host(portal, None), model.requests, visitors)
            there.host = there.host_of(text)
            yield there
