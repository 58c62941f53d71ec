"""A prompt cache as Anthropic has it: written where a request marks it, and found by looking back 20 blocks at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from support.model_server import Say

LOOKS_BACK = 20
BYTES_PER_TOKEN = 4


@dataclass
class MarkedCache:
    """Answers as a script says, and counts as the API does.

    Attributes:
        script: What is said; its usage is ours to say.
        used: For each request the tokens read, written and fresh.
    """

    script: Callable[[dict[str, Any]], Say]
    used: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    _kept: set[str] = field(default_factory=set[str])

    def __call__(self, request: dict[str, Any]) -> Say:
        step = self.script(request)
        blocks = _blocks(request)
        bare = [_text({name: value for name, value in block.items() if name != "cache_control"}) for block in blocks]
        prefixes = ["\n".join(bare[: number + 1]) for number in range(len(bare))]
        marks = [number for number, block in enumerate(blocks) if "cache_control" in block]
        found = [
            at for mark in marks for at in range(mark, max(mark - LOOKS_BACK, -1), -1) if prefixes[at] in self._kept
        ]
        read = _tokens(bare[: max(found, default=-1) + 1])
        upto = _tokens(bare[: max(marks, default=-1) + 1])
        self._kept.update(prefixes[mark] for mark in marks)
        self.used.append((read, max(upto - read, 0), _tokens(bare) - max(upto, read)))
        read, written, fresh = self.used[-1]
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": max(len(str(step.calls)) // BYTES_PER_TOKEN, 1),
        }
        return replace(step, usage=usage)


def _blocks(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that can be cached, in the order in which it counts: tools, system prompt, messages."""
    found = [*(request.get("tools") or []), *(request.get("system") or [])]
    for message in request["messages"]:
        found += [{"role": message["role"], **block} for block in message["content"]]
    return found


def _tokens(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts) // BYTES_PER_TOKEN


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
