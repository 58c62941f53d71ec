"""Answers as tool results."""

from __future__ import annotations

import mcp_types as types

from ava_server.render.responses import FAILED, Answer


def result_of(answer: Answer) -> types.CallToolResult:
    """Return an answer as hosts get it, in both forms."""
    from ava_server.render.host_text import text_of

    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text_of(answer))],
        structured_content=answer.structured(),
        is_error=answer.status == FAILED,
    )
