"""The card: a page of the extension `io.modelcontextprotocol/ui` (MCP Apps) that shows runs, and decides nothing.

Hosts that declare the extension show it beside the answers of the tools that have it. It is one page without a request
to any host: its policy allows only its own script and style, by their hashes. It calls no tool, and every tool is
listed as closed to pages, so a host refuses such a call. The page keeps itself up to date by reading `ava://runs/S-…`,
which marks no result as fetched and asks nobody.
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

EXTENSION, MIME = "io.modelcontextprotocol/ui", "text/html;profile=mcp-app"
URI = "ui://ava/run"
PAGE_META: dict[str, Any] = {"ui": {"prefersBorder": True}}
"""Without `csp` a host has to use its strictest policy: no request to any address."""
_CLOSED: dict[str, Any] = {"visibility": ["model"]}


def declares_apps(ctx: ServerRequestContext[App, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = (capabilities.extensions if capabilities is not None else None) or {}
    settings: Any = declared.get(EXTENSION)
    types_shown = cast("dict[str, Any]", settings).get("mimeTypes") if isinstance(settings, dict) else None
    return isinstance(types_shown, list) and MIME in types_shown


def with_card(tool: types.Tool) -> types.Tool:
    """Return a tool as clients of the extension list it: with the card, if it has one, and closed to pages."""
    from ava_server.service.tools import TOOLS

    shown = {"resourceUri": URI} if TOOLS[tool.name].card else {}
    return tool.model_copy(update={"meta": {**(tool.meta or {}), "ui": {**shown, **_CLOSED}}})


@cache
def page() -> str:
    """Blocking, the first time."""
    folder = Path(__file__).parent
    parts = {
        name: "\n".join(line.strip() for line in (folder / name).read_text("utf-8").splitlines())
        for name in ("card.css", "card.js")
    }
    policy = f"default-src 'none'; script-src {_hash(parts['card.js'])}; style-src {_hash(parts['card.css'])}"
    text = (folder / "card.html").read_text("utf-8")
    for name, part in {"policy": f"{policy}; base-uri 'none'; form-action 'none'", **parts}.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def _hash(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
