"""The SDK's own spans of requests: they tell which method and which tool, and how it ended, but nobody's words.

`mcp` makes a span of each request and writes into it what an error says; what ours say quotes what was given.
"""

from __future__ import annotations

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import ValidationError


def keep_words_out(server: Server[Any]) -> None:
    """Have errors pass through the middleware that a server has by now without their words."""
    server.middleware.insert(0, _with_words)
    server.middleware.append(_without_words)


class _Wordless(MCPError):
    """Raised in place of an error while it passes through a span."""

    def __init__(self, code: int, instead_of: Exception) -> None:
        super().__init__(code=code, message="")
        self.instead_of = instead_of


async def _without_words(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except ValidationError:  # of which the SDK says nothing
        raise
    except MCPError as error:
        passing = _Wordless(error.code, error)
    except Exception as error:
        passing = _Wordless(INTERNAL_ERROR, error)
    raise passing


async def _with_words(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except _Wordless as passing:
        error = passing.instead_of
    raise error
