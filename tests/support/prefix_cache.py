"""A provider that charges by prefix: what a request has in common with an earlier one of its run is read from cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from support.model_server import Say

BYTES_PER_TOKEN = 4


@dataclass
class PrefixCache:
    """Answers as a script says, and counts as a provider with a prompt cache does.

    The tools and the system prompt are the beginning of a prompt. A request reads the longest run of whole messages
    that some earlier request of its run began with; the rest is fresh, or written to the cache where `writes`.

    Attributes:
        script: What is said; its usage is ours to say.
        writes: Fresh input is charged as written to the cache.
        read: For each request the tokens that were read, and those of its whole prompt.
    """

    script: Callable[[dict[str, Any]], Say]
    writes: bool = False
    read: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _seen: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])

    def __call__(self, request: dict[str, Any]) -> Say:
        step = self.script(request)
        pieces = [_text(request.get("tools")), *map(_text, request["messages"])]
        earlier = self._seen.setdefault("".join(pieces[:3]), [])  # tools, system prompt and task: one run's
        common = max((_common(pieces, other) for other in earlier), default=0)
        earlier.append(pieces)
        prompt, cached = _tokens(pieces), _tokens(pieces[:common])
        self.read.append((cached, prompt))
        output = max(len(step.text) + sum(len(_text(call)) for call in step.calls), 1) // BYTES_PER_TOKEN + 1
        details = {"cached_tokens": cached, "cache_write_tokens": prompt - cached if self.writes else 0}
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
        return replace(step, usage=usage)


def _common(one: list[str], other: list[str]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _tokens(pieces: list[str]) -> int:
    return sum(len(piece.encode()) for piece in pieces) // BYTES_PER_TOKEN


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
