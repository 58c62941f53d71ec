"""The pages of an open lab, over HTTP and behind the server's own door, in the test's process.

    async with open_lab(tmp_path, script) as lab, serve_lab_pages(lab) as browser:
        page = await browser.get(f"/subagents/{run_id}")

So a test can write any entry to the log, and look at what the pages make of it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any, cast

import anyio
import httpx2

from ava_server.config.sign_in import BrowserSessions, Passkeys
from ava_server.config.tokens import TokenFile
from ava_server.core.data_root import os_user
from ava_server.core.shutdown import GracefulShutdown
from ava_server.http.http_settings import Reach
from ava_server.http.limits import RequestLimits
from ava_server.http.server import _Paths, _Server
from ava_server.mcp_server.app import App
from ava_server.web.asgi import Pages
from ava_server.web.site import Site
from support.runtime import Lab

_FORM = re.compile(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', re.DOTALL)
_FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')


@dataclass
class Browser:
    """Somebody who has signed in, and follows no redirect by themselves."""

    http: httpx2.AsyncClient
    base: str

    async def get(self, path: str, *, part: bool = False) -> httpx2.Response:
        """Open an address; `part` asks as htmx does."""
        accepts = {"Accept": "*/*", "HX-Request": "true"} if part else {"Accept": "text/html,*/*"}
        return await self.http.get(path, headers=accepts)

    async def send(self, page: str, action: str, **fields: str) -> httpx2.Response:
        """Fill in the form of a page that has this action, and send it."""
        shown = (await self.get(page)).text
        form = next((body for found, body in _FORM.findall(shown) if found == action), None)
        assert form is not None, f"{page} has no form for {action}"
        hidden = {name: unescape(value) for name, value in _FIELD.findall(form)}
        return await self.post(action, {**hidden, **fields})

    async def post(self, action: str, fields: dict[str, str]) -> httpx2.Response:
        headers = {"Origin": self.base, "Sec-Fetch-Site": "same-origin"}
        return await self.http.post(action, data=fields, headers=headers)


@asynccontextmanager
async def serve_lab_pages(lab: Lab, *, terminal: bool = True, owned: bool = False) -> AsyncGenerator[Browser]:
    """Serve the pages of a lab as `ava ui` does, and open them as its user; `owned` as the owner of the data root."""
    paths = lab.runtime.settings.paths
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reach = Reach(port=port)
        app = App(lambda: lab.runtime.settings, "memory", reach.base_url)
        app._runtime = lab.runtime
        tokens, sessions = TokenFile(paths.tokens_file), BrowserSessions(paths.browser_sessions)
        site = Site(reach.base_url, True, sessions, tokens, Passkeys(paths.passkeys), owned)
        paths_of_clients = _Paths(app, cast("Any", None), GracefulShutdown(0))
        server = _Server(paths_of_clients, reach, tokens, RequestLimits(), Pages(app, site))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            try:
                async with httpx2.AsyncClient(base_url=reach.base_url, timeout=20, trust_env=False) as http:
                    code = sessions.issue_code(os_user(), terminal=terminal)
                    answer = await http.get(f"/enter?code={code}")
                    assert answer.status_code == 303, answer.text
                    yield Browser(http, reach.base_url)
            finally:
                server.should_exit = True
