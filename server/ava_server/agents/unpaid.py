"""The bytes of a run in the log that no provider was paid for: an agent could write them without end.

They are the calls of Ava's own tools with their results, requests that were not billed, and notes about what the agent
asked for. What earlier owners of the run wrote counts too: it is read from the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ava_audit.events import AgentNote, AgentRequest, CostUpdate, Fact, ToolCall, ToolResult
from ava_audit.view import View

MOST_UNPAID_BYTES = 16_000_000
"""Of one run, however often it is taken over."""
KEPT_BYTES = 512 * 1024
"""Of these, what is kept for handing over the result."""
RESULT_BYTES = 256 * 1024
"""Room for the result of one call of Ava's tools; most have a tenth of that."""
UNPAID_TYPES = ("AgentNote", "AgentRequest", "CostUpdate", "ToolCall", "ToolResult")
OWN_CALL = "ava-"
"""How the ids of the calls begin that an agent makes of Ava's tools."""
_OWN_CALL = re.compile(rf"{OWN_CALL}\d+-\d+")


class UnpaidBytes:
    """Counts the bytes of one run.

    A call takes room for the most that it may write before it begins, and gives back what it has not needed: so calls
    side by side stay below the bound together.
    """

    def __init__(self) -> None:
        self.total = 0

    def has_room(self, size: int, *, hands_over: bool = False) -> bool:
        """Tell whether bytes may be written; `hands_over`: with them the agent hands over its result."""
        kept = 0 if hands_over else KEPT_BYTES
        return self.total + size <= MOST_UNPAID_BYTES - kept

    def take(self, size: int, *, hands_over: bool = False) -> bool:
        """Count bytes that are to be written. Returns False, and counts nothing, if there is no room for them."""
        if not self.has_room(size, hands_over=hands_over):
            return False
        self.total += size
        return True

    @property
    def refusal(self) -> str:
        return f"this run has put {MOST_UNPAID_BYTES:,} bytes into the log that no provider was paid for"

    def give_back(self, size: int) -> None:
        self.total -= size

    def add_earlier(self, facts: Iterable[Fact]) -> None:
        """Count what the log has of a run that is taken over."""
        open_requests: dict[int, int] = {}
        for fact in facts:
            match fact:
                case AgentRequest():
                    open_requests[fact.turn] = json_bytes(fact.head) + json_bytes(list(fact.items))
                case CostUpdate(settlement="not_billed", turn=int() as turn):
                    self.total += open_requests.pop(turn, 0)
                case AgentNote():
                    self.total += note_bytes(fact)
                case ToolCall() if _is_own(fact.call_id):
                    self.total += len(fact.tool) + json_bytes(fact.args)
                case ToolResult() if _is_own(fact.call_id):
                    self.total += text_bytes(fact.output)
                case _:
                    pass


def earlier_facts(view: View, run_id: str) -> list[Fact]:
    """Return the facts of a run that may count as unpaid, or tell what was logged of its requests."""
    return [entry.fact for entry in view.entries(run_id, 0, UNPAID_TYPES) if entry.fact is not None]


def note_bytes(note: AgentNote) -> int:
    return text_bytes(note.text) + json_bytes(note.detail)


def text_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def json_bytes(value: Any) -> int:
    return 0 if value is None else text_bytes(json.dumps(value, ensure_ascii=False))


def _is_own(call_id: str | None) -> bool:
    return call_id is not None and _OWN_CALL.fullmatch(call_id) is not None
