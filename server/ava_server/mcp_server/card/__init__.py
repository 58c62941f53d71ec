"""The card: a page of the extension `io.modelcontextprotocol/ui` (MCP Apps) that shows runs, and decides nothing.

Hosts that declare the extension show it beside the answers of the tools that have it. It is one page without a request
to any host: its policy allows only its own script and style, by their hashes. It calls no tool, and every tool is
listed as closed to pages, so a host refuses such a call. The page keeps itself up to date by reading `ava://runs/…` of
a run or a plan, which marks no result as fetched and asks nobody.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext

if TYPE_CHECKING:
    from ava_server.mcp_server.app import App

EXTENSION = "io.modelcontextprotocol/ui"
MIME = "text/html;profile=mcp-app"
URI = "ui://ava/run"
PAGE_META: dict[str, Any] = {"ui": {"prefersBorder": True}}
"""Without `csp` a host has to use its strictest policy: no request to any address."""
_CLOSED: dict[str, Any] = {"visibility": ["model"]}


def declares_apps(ctx: ServerRequestContext[App, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or not capabilities.extensions:
        return False
    settings: Any = capabilities.extensions.get(EXTENSION)
    if not isinstance(settings, dict):
        return False
    mime_types = cast("dict[str, Any]", settings).get("mimeTypes")
    return isinstance(mime_types, list) and MIME in mime_types


def with_card(tool: types.Tool) -> types.Tool:
    """Return a tool as clients of the extension see it: with the card, if it has one, and closed to pages."""
    from ava_server.service.tool_registry import TOOLS

    ui: dict[str, Any] = {}
    if TOOLS[tool.name].card:
        ui["resourceUri"] = URI
    ui.update(_CLOSED)
    return tool.model_copy(update={"meta": {**(tool.meta or {}), "ui": ui}})


@cache
def page() -> str:
    """Return the page. Blocking, the first time."""
    folder = Path(__file__).parent
    style = _read_part(folder / "card.css")
    script = _read_part(folder / "card.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    text = (folder / "card.html").read_text("utf-8")
    text = text.replace("{{policy}}", policy)
    text = text.replace("{{card.css}}", style)
    return text.replace("{{card.js}}", script)


def _read_part(path: Path) -> str:
    """Return a file without indentation, and without lines that are comments of a script."""
    lines = map(str.strip, path.read_text("utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _hash(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
