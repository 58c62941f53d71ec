"""The most tokens that another agent's requests can use: what providers have reported, and the rest by its bytes."""

from __future__ import annotations

from dataclasses import replace

from ava_audit.events import Usage
from ava_server.agents.seam import AgentCall
from ava_server.models.base import Bound
from ava_server.models.json_text import objects_in
from ava_server.models.tokens import FIXED_TOKENS, MESSAGE_TOKENS, TOOL_TOKENS, TOOLS_TOKENS, escaped_bound, text_bound


class CountedBounds:
    """The bounds of one run (`seam.Bounds`): what a request begins with as reported, and then a token for each byte."""

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}
        self._last: tuple[AgentCall, Bound] | None = None

    def bound(self, call: AgentCall, output: int) -> Bound:
        """Return an upper bound of a call. The same call is asked about again and again."""
        if self._last is None or self._last[0] is not call:
            self._last = call, self._of(call)
        return replace(self._last[1], output_tokens=output)

    def report(self, call: AgentCall, usage: Usage) -> None:
        """Take the usage of a call; of two reports about one prompt, the higher counts."""
        end = call.chain[-1]
        self._reported[end] = max(self._reported.get(end, 0), usage.prompt_tokens)
        self._last = None

    def _of(self, call: AgentCall) -> Bound:
        shown = range(len(call.items), 0, -1)
        known = next((count for count in shown if call.chain[count] in self._reported), 0)
        new = sum(escaped_bound(item.decode()) for item in call.items[known:])
        around = MESSAGE_TOKENS * (len(call.items) - known)
        if known:
            return Bound(self._reported[call.chain[known]] + around + new, 0, new)
        tools = len(objects_in(call.body.get("tools")))
        head = text_bound(call.head.decode()) + escaped_bound(call.head.decode()) - len(call.head)
        around += FIXED_TOKENS + MESSAGE_TOKENS + (TOOLS_TOKENS + TOOL_TOKENS * tools if tools else 0)
        return Bound(around + head + new, 0, head + new)
