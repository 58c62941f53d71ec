"""A host of MCP Apps in a real browser: a page with the card in a sandboxed frame, and the bridge between the two.

async with browser() as chromium, card_host(chromium, read=client_reads) as host:
    await host.result({"structuredContent": {...}})
    await host.sees("success")
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from string import Template
from typing import TYPE_CHECKING, Any, Literal

import pytest
from playwright.async_api import Browser, Frame, Page, Route, async_playwright

from ava_server.mcp_server import card

if TYPE_CHECKING:
    from playwright.sync_api import Browser as SyncBrowser

Scheme = Literal["light", "dark"]
Read = Callable[[str], Awaitable[str]]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
ADDRESS = "http://host.test/"
WIDTH, DEADLINE_MS = 640, 10_000

_PAGE = Template("""<!doctype html><meta charset="utf-8"><body style="margin:0">
<script>
const frame = document.createElement("iframe");
frame.setAttribute("sandbox", "allow-scripts");
frame.style = "border:0; width:100%; height:150px";
const heard = [], context = $context;
const send = (message) => frame.contentWindow.postMessage({ jsonrpc: "2.0", ...message }, "*");
async function answer({ id, method, params }) {
  if (method === "ui/initialize") return { protocolVersion: "2026-01-26", hostInfo: { name: "test", version: "1" },
    hostCapabilities: $capabilities, hostContext: context };
  if (method === "resources/read") {
    const text = await readResource(params.uri);
    return { contents: [{ uri: params.uri, mimeType: "application/json", text }] };
  }
  throw new Error("not passed on");
}
addEventListener("message", async (event) => {
  if (event.source !== frame.contentWindow) return;
  heard.push(event.data);
  const { id, method, params } = event.data;
  if (method === "ui/notifications/size-changed") frame.style.height = params.height + "px";
  if (method === undefined || id === undefined) return;
  try { send({ id, result: await answer(event.data) }); }
  catch (error) { send({ id, error: { code: -32603, message: String(error) } }); }
});
frame.srcdoc = $html;
document.body.append(frame);
</script>""")


class CardHost:
    """The page of the host, and in it the card."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.problems: list[str] = []

    @property
    def card(self) -> Frame:
        [frame] = [frame for frame in self.page.frames if frame.parent_frame is not None]
        return frame

    async def result(self, result: dict[str, Any]) -> None:
        await self.notify("ui/notifications/tool-input", {"arguments": {}})
        await self.notify("ui/notifications/tool-result", result)

    async def runs(self, *runs: dict[str, Any]) -> None:
        await self.result({"content": [], "structuredContent": {"status": "list", "runs": list(runs)}})

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self.page.evaluate("(message) => send(message)", {"method": method, "params": params})

    async def heard(self) -> list[dict[str, Any]]:
        return list(await self.page.evaluate("heard"))

    async def until(self, condition: str) -> None:
        await self.page.wait_for_function(condition, timeout=DEADLINE_MS)

    async def sees(self, words: str) -> None:
        """Wait until the card shows these words."""
        shows = "(words) => document.body.innerText.includes(words)"
        await self.card.wait_for_function(shows, arg=words, timeout=DEADLINE_MS)

    async def becomes(self, condition: str) -> None:
        """Wait until this is true in the card, whose policy forbids Playwright to evaluate it anew at each look."""
        await self.card.wait_for_function(f"() => {condition}", timeout=DEADLINE_MS)

    async def text(self) -> str:
        return await self.card.locator("body").inner_text()

    async def value(self, script: str) -> Any:
        return await self.card.evaluate(script)


@contextmanager
def open_chromium() -> Generator[SyncBrowser]:
    """Chromium without a window, for what is not asynchronous; meanwhile this thread can run no event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root may need it
        try:
            yield opened
        finally:
            opened.close()


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root may need it
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def card_host(
    chromium: Browser,
    read: Read | None = None,
    context: dict[str, Any] | None = None,
    scheme: Scheme = "light",
    around: str = "{}",
) -> AsyncGenerator[CardHost]:
    """Open a host with the card; without `read` it passes on no reading of resources, and `around` wraps the page."""
    capabilities: dict[str, Any] = {"serverResources": {}} if read is not None else {}
    html = json.dumps(around.format(card.page())).replace("</", "<\\/")
    page_of_host = _PAGE.substitute(
        {"context": json.dumps(context or {}), "capabilities": json.dumps(capabilities), "html": html}
    )
    page = await chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
    try:
        page.set_default_timeout(DEADLINE_MS)
        host = CardHost(page)

        async def serve(route: Route) -> None:
            host.requests.append(route.request.url)
            if route.request.url == ADDRESS:
                await route.fulfill(body=page_of_host, content_type="text/html")
            else:
                await route.abort()

        async def unread(uri: str) -> str:
            raise AssertionError(f"{uri} was read without the capability")

        await page.route("**/*", serve)
        await page.expose_function("readResource", read or unread)
        page.on("pageerror", lambda error: host.problems.append(str(error)))
        page.on("dialog", lambda dialog: host.problems.append(dialog.message))
        await page.goto(ADDRESS)
        await host.until("heard.some((message) => message.method === 'ui/notifications/initialized')")
        yield host
        assert host.problems == []
        assert host.requests == [ADDRESS], "the card made a request"
        sent = {message.get("method", "answer") for message in await host.heard()}
        allowed = {"ui/initialize", "ui/notifications/initialized", "ui/notifications/size-changed", "answer"}
        assert sent <= allowed | ({"resources/read"} if read is not None else set())
    finally:
        await page.close()
