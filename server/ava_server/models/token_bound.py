"""An upper bound of a model call's tokens, from the bytes of the request.

Every token of a byte-level tokenizer covers at least one byte of the text that it sees. That text is not the
request's: servers normalise Unicode, render tools indented, escape characters, and add words of their own.
So each character is counted in its longest form, and constants stand for the fixed text. It is a bound under
these assumptions, loose on purpose, and needed for a run's first call only: later ones rest on what the
provider reported (`Known`). Pictures, files and server-side tools, whose tokens have nothing to do with
bytes, are never sent.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ava_server.models.base import AssistantTurn, Bound, Known, Request, ToolSchema, Turn
from ava_server.models.usage import FLOOR_BYTES

FIXED_TOKENS = 1024
"""What a chat template and a gateway may add to any request."""
MESSAGE_TOKENS = 16
"""What a template adds around one message."""
TOOLS_TOKENS = 1024
"""What a provider's own prompt about tools may take."""
TOOL_TOKENS = 32
"""What a template adds around one tool."""

_ESCAPED = "<>&'\x7f"  # templates escape the first four, JSON in ASCII the last
_ESCAPE_GROWTH = 5  # `<` becomes \u003c
_UNKNOWN_GROWTH = 11  # the longest normal form there is: U+FDFA, from 3 bytes to 33


def text_bound(text: str) -> int:
    """Return the most bytes that a text, as it stands in a request, can have when a tokenizer sees it."""
    if text.isascii():
        return len(text) + _ESCAPE_GROWTH * sum(map(text.count, _ESCAPED))
    return sum(_longest(character) * count for character, count in Counter(text).items())


def prompt_bound(messages: Iterable[str], tools: Sequence[ToolSchema] = ()) -> int:
    """Return a bound of a whole prompt's tokens.

    Args:
        messages: The JSON of each message, the system prompt among them, as the request has it.
        tools: The tools on offer.
    """
    total = FIXED_TOKENS
    for message in messages:
        total += text_bound(message) + MESSAGE_TOKENS
    if tools:
        total += TOOLS_TOKENS + sum(_tool_bound(tool) for tool in tools)
    return total


class Covered:
    """How many bytes the messages have that an earlier call covers: counted once, though each request has them all."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Turn, int]] = {}

    def bytes(self, turns: Sequence[Turn], wire: Callable[[Turn], Mapping[str, Any]]) -> int:
        """Return the bytes of these turns' messages together."""
        known, self._sizes = self._sizes, {}
        total = 0
        for turn in turns:
            found = known.get(id(turn)) or (turn, _bytes(_json(wire(turn))))  # whose turn lives, or its id is no name
            self._sizes[id(turn)] = found
            total += found[1]
        return total


def bound(
    request: Request,
    wire: Callable[[Turn], Mapping[str, Any]],
    known: Known | None,
    counted: Covered | None = None,
) -> Bound:
    """Return an upper bound of one call.

    Args:
        request: The call.
        wire: Makes the message that a turn becomes in the request.
        known: What the provider reported for an earlier call of this run; None for the first.
        counted: What was counted of this run's messages before.
    """
    turns = request.turns
    if known is None:
        system = {"role": "system", "content": request.system}
        messages = [_json(system), *(_json(wire(turn)) for turn in turns)]
        return Bound(prompt_bound(messages, request.tools), request.max_output)
    covered = (counted or Covered()).bytes(turns[: known.turns], wire)
    total = max(known.prompt_tokens, covered // FLOOR_BYTES)  # what is known is a report, and a report can be wrong
    for turn in turns[known.turns :]:
        total += text_bound(_json(wire(turn))) + MESSAGE_TOKENS
    # The answer was counted as it was written; as part of a prompt a template may escape it.
    last = turns[known.turns - 1] if 0 < known.turns <= len(turns) else None
    if isinstance(last, AssistantTurn):
        answer = _json(wire(last))
        total += text_bound(answer) - _bytes(answer) + MESSAGE_TOKENS
    return Bound(total, request.max_output)


def _tool_bound(tool: ToolSchema) -> int:
    """Return the bound of a tool's rendering: indented, as templates show it."""
    shown = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    rendered = json.dumps({"type": "function", "function": shown}, ensure_ascii=False, indent=4)
    return text_bound(rendered) + TOOL_TOKENS


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=65536)
def _longest(character: str) -> int:
    """Return the bytes of a character's longest form: as it is, escaped, or normalised."""
    if character.isascii():
        return 1 + (_ESCAPE_GROWTH if character in _ESCAPED else 0)
    code = ord(character)
    if 0xD800 <= code < 0xE000:
        return 6  # half a pair, sent as U+FFFD
    size = len(character.encode())
    if unicodedata.category(character) == "Cn":
        # A newer Unicode than ours may give it any normal form.
        return size * _UNKNOWN_GROWTH
    escaped = 12 if code > 0xFFFF else 6
    normal = (len(unicodedata.normalize(form, character).encode()) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    return max(size, escaped, *normal)
