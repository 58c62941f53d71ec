"""What a foreign tool answered, as text: what is no text is said to be left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ava_roles.tools.base import ToolOutput

MOST_CHARS = 1_000_000
"""Of one result; the model is shown much less at once, and reads on where it wants to."""
MOST_BLOCKS = 500


def output_of(content: Sequence[Any], structured: Any, *, failed: bool) -> ToolOutput:
    """Return a result for the model.

    Args:
        content: The SDK's content blocks.
        structured: The structured content, any JSON; None where there is none.
        failed: The tool says that it failed.
    """
    parts: list[str] = []
    length = 0
    for number, block in enumerate(content):
        if number == MOST_BLOCKS or length > MOST_CHARS:
            parts.append(f"[{len(content) - number} more parts are left out]")
            break
        parts.append(_shown(block))
        length += len(parts[-1])
    if structured is not None and not _says_it(parts, structured):
        parts.append(json.dumps(structured, ensure_ascii=False, default=str))
    text = "\n\n".join(part for part in parts if part)
    if len(text) > MOST_CHARS:
        text = f"{text[:MOST_CHARS]}\n[{len(text) - MOST_CHARS:,} more characters are left out]"
    return ToolOutput(text or "(it answered nothing)", success=not failed)


def _says_it(parts: Sequence[str], structured: Any) -> bool:
    """Tell whether a text has the structured content already, as the protocol wants it for older clients."""
    for part in parts:
        if part.lstrip()[:1] in ("{", "["):
            try:
                if json.loads(part) == structured:
                    return True
            except (ValueError, RecursionError):
                continue
    return False


def _shown(block: Any) -> str:
    kind = getattr(block, "type", "")
    if kind == "text":
        return str(block.text)
    if kind in ("image", "audio"):
        return f"[{'an image' if kind == 'image' else 'a sound'} ({block.mime_type}) is left out]"
    if kind == "resource_link":
        return f"[a link: {block.uri} {block.name}]"
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        if text is None:
            return f"[{inner.uri}, {inner.mime_type or 'no text'}, is left out]"
        return f"[{inner.uri}]\n{text}"
    return "[a part of a kind that is not known here is left out]"
