"""The system prompt of a run: persona, role, capabilities, limits and the form of the answer. Never the task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ava_roles.role import Role, first_sentence
from ava_roles.tool import ToolSpec
from ava_roles.wrap import clean

_RULE = "\n\n---\n\n"
_SUBMIT = "submit_result"
_SENTENCE_CHARS = 300


def system_prompt(
    role: Role,
    *,
    system_prompt: str | None,
    context: str | None,
    tools: Sequence[ToolSpec],
    limits: Mapping[str, str],
    output_schema: Mapping[str, Any] | None,
    results: str = "",
) -> str:
    """Return the system prompt: equal bytes for equal input, whatever the order of tools and limits.

    It has three parts with `---` between them: the executor persona; the role's body and the spawn's own words
    (`system_prompt`), if any; then task context, capabilities, limits and the form of the answer. The task is the first
    user message. Of each tool, the prompt has the first sentence of the description; the request's tool list has all of
    it. `limits` are words, e.g. `{"cost": "at most $0.50"}`. `results` names the earlier subagents whose results the
    run may read, by id and role, without their words. The first call reads two data files.
    """
    special = "\n\n".join(part for part in (role.body.strip(), (system_prompt or "").strip()) if part)
    rest = [
        _context((context or "").strip(), results),
        _capabilities(tools),
        _limits(limits),
        _output_format(output_schema),
    ]
    parts = (_data("executor.md"), special, "\n\n".join(part for part in rest if part))
    return _RULE.join(part for part in parts if part) + "\n"


def _context(context: str, results: str) -> str:
    earlier = f"Results of earlier subagents, to be read with `read_subagent_result`: {results}." if results else ""
    parts = [part for part in (context, earlier) if part]
    return "\n\n".join(["## Task context", *parts]) if parts else ""


def _capabilities(tools: Sequence[ToolSpec]) -> str:
    own = sorted([(tool.name, _about(tool.description)) for tool in tools if tool.name != _SUBMIT])
    if not own:
        return "## Capabilities\n\nYou have no tools but `submit_result`: work with what the task gives you."
    lines = "\n".join([f"- `{name}`: {sentence}" for name, sentence in own])
    return f"## Capabilities\n\nYour tools, and there are no others:\n\n{lines}"


@lru_cache(maxsize=512)
def _about(description: str) -> str:
    """Return a tool's description as one short line; a foreign MCP server may have written it."""
    sentence = first_sentence(clean(description)[0])
    return sentence if len(sentence) <= _SENTENCE_CHARS else sentence[: _SENTENCE_CHARS - 1] + "…"


def _limits(limits: Mapping[str, str]) -> str:
    if not limits:
        return ""
    lines = "\n".join([f"- {name}: {limits[name]}" for name in sorted(limits)])
    return f"## Limits\n\nThe first of these that is reached ends your work:\n\n{lines}"


def _output_format(schema: Mapping[str, Any] | None) -> str:
    text = f"## Output format\n\n{_data('output.md')}"
    if schema is None:
        return text
    shown = json.dumps(schema, ensure_ascii=False, sort_keys=True)
    return f"{text}\n\n`output` must be JSON that is valid against this schema:\n\n{shown}"


@cache
def _data(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").strip()
