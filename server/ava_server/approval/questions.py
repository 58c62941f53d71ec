"""The question that a person is asked before subagents start, where the client can ask one: its words and its form.

Its figures are the proposal's, as the log has them. What a person may change in the form are limits, downwards.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ava_audit.units import MICROS_PER_USD
from ava_server.approval.decisions import Approval, CheckedApproval, GroupLimits
from ava_server.approval.summary import approval_line, group_line, proposal_message
from ava_server.core.errors import BadInput

COST, TIME = "max_cost_dollars", "max_minutes"
_LARGEST = 1e15
"""What is above it is no amount and no time: infinity, NaN, or a whole number that no float can be."""


UNASKED = {
    "decline": "the question to the person was declined",
    "cancel": "the person closed the question, or nobody was there to see it",
    "silent": "the person was asked, and has not answered within 45 s; an answer that comes later starts nothing",
}
"""Why nothing started, by what came of the question."""


@dataclass(frozen=True)
class LimitField:
    """A limit in the form: its name, what it is called, and the most that may be put in, which stands there already."""

    name: str
    title: str
    most: float


@dataclass(frozen=True)
class Question:
    """What a person is asked. Lines end in a blank, for clients that show them joined (Codex 0.169 does)."""

    text: str
    fields: tuple[LimitField, ...]

    def schema(self) -> dict[str, Any]:
        """Return the form as the JSON schema that a client shows: numbers, none of which has to be given."""
        return {
            "type": "object",
            "properties": {
                each.name: {
                    "type": "number",
                    "title": each.title,
                    "description": f"Up to {each.most:.10g}; you may put in less.",
                    "minimum": min(0.01, each.most),
                    "maximum": each.most,
                    "default": each.most,
                }
                for each in self.fields
            },
        }

    def sha(self) -> str:
        """Return the hash of everything that is shown: an answer counts for this question, and for no other."""
        shown = json.dumps([self.text, self.schema()], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What came of a question. `silent`: nobody has answered in the time that a call may take."""

    action: Literal["accept", "decline", "cancel", "silent"]
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AnsweredLater(Exception):
    """Raised to end a call with a question: the client asks its person, and calls again with the answer."""

    def __init__(self, question: Question) -> None:
        super().__init__("the person is asked, and the client calls again with the answer")
        self.question = question


class Person(Protocol):
    """Somebody whom a client can ask in the middle of a call."""

    async def ask(self, question: Question) -> Reply:
        """Ask, and return what came of it.

        Raises:
            AnsweredLater: The answer comes with another call.
        """
        ...


def question(weighed: CheckedApproval) -> Question:
    """Return the question about an approval that nothing else stands against."""
    parts = [proposal_message(member.changed, member.texts) for member in weighed.members]
    for number, member in enumerate(weighed.members):
        without = [name for name in member.config.tools if name not in member.changed.tools]
        if without:
            parts[number] += f"\nTaken away: {', '.join(without)}."
    if weighed.group_cap is not None:
        cap = None if weighed.free else weighed.group_cap
        lines = [f"Ava wants to start {group_line(len(weighed.members), cap, weighed.group_timeout_s)}:"]
        for number, member in enumerate(weighed.members, 1):
            lines.append(f"{number}. {approval_line(member.changed, member.texts)}")
            parts[number - 1] = f"{number}. {parts[number - 1]}"
        parts.insert(0, "\n".join(lines))
    fields = _fields(weighed)
    parts.append("Start it?" if len(weighed.members) == 1 else "Start them?")
    if fields:
        parts[-1] += " You may lower its limits below." if weighed.group_cap is None else " You may lower their limits."
    return Question(" \n".join("\n\n".join(parts).split("\n")), fields)


def apply_reply(weighed: CheckedApproval, asked: Approval, reply: Reply) -> Approval:
    """Return the approval with the limits that the person has put into the form.

    Raises:
        BadInput: One of them is no number, nothing, or more than was asked for; nothing is started.
    """
    found: dict[str, float] = {}
    for limit in _fields(weighed):
        given = reply.content.get(limit.name)
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= _LARGEST:
            raise BadInput(f"{limit.name}: the form brought no number; nothing was started")
        least = 1 / MICROS_PER_USD if limit.name == COST else 0.0
        if not least <= given <= limit.most or given == 0:
            raise BadInput(
                f"{limit.name}: the form brought {given:g}, and it may be lowered from {limit.most:g} to anything above"
                " 0; nothing was started"
            )
        if given < limit.most:
            found[limit.name] = float(given)
    if not found:
        return asked
    micros = math.floor(found[COST] * MICROS_PER_USD) if COST in found else None
    seconds = found[TIME] * 60 if TIME in found else None
    if weighed.group_cap is not None:
        return replace(asked, group_lowered=GroupLimits(micros, seconds))
    (member,) = weighed.members
    changes = dict(asked.changes.get(member.row.pending_id, {}))
    if micros is not None:
        changes["max_cost_micros"] = micros
    if seconds is not None:
        changes["timeout_s"] = seconds
    return replace(asked, changes={**asked.changes, member.row.pending_id: changes})


def _fields(weighed: CheckedApproval) -> tuple[LimitField, ...]:
    fields: list[LimitField] = []
    if weighed.group_cap is not None:
        if not weighed.free:
            fields.append(LimitField(COST, "At most, all together, in dollars", weighed.group_cap / MICROS_PER_USD))
        if weighed.group_timeout_s is not None:
            fields.append(LimitField(TIME, "At most, all together, in minutes", _minutes(weighed.group_timeout_s)))
        return tuple(fields)
    (member,) = weighed.members
    if not weighed.free:
        fields.append(LimitField(COST, "At most, in dollars", member.changed.max_cost_micros / MICROS_PER_USD))
    fields.append(LimitField(TIME, "At most, in minutes", _minutes(member.changed.timeout_s)))
    return tuple(fields)


def _minutes(seconds: float) -> float:
    """Return seconds as the minutes that a form shows: rounded down, so that what it shows can be put in."""
    return math.floor(seconds / 60 * 10_000) / 10_000
