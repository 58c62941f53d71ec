"""What the timeline shows of one entry: a title of Ava's own, and the text that somebody wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ava_audit.entries import Entry
from ava_audit.events import (
    Activity,
    AssistantMessage,
    CancelRequested,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    ExtendedThinking,
    ExtensionAsked,
    ExtensionDecided,
    Fact,
    GuardrailTripped,
    PlanReady,
    QuestionAnswered,
    QuestionAsked,
    RunClaimed,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    SubagentSpawn,
    ToolCall,
    ToolResult,
    Unknown,
    UserMessage,
    WorkChecked,
    WorktreeReady,
)
from ava_roles.wrap import clean
from ava_server.core.ids import AGENT
from ava_server.runs.changes import describe_command
from ava_server.runs.extension import CAP_NAMES, cap_amount
from ava_server.service.decided import CHANNELS
from ava_server.service.log_lines import unmarked

ERASED = "The content was erased."
FOLDED = (CostReserved, RunClaimed, RunStarted, SubagentSpawn, SpawnProposed)
"""Bookkeeping: its row is folded."""
_MESSAGES: Mapping[str, str] = {
    "task": "Task",
    "message": "Message to the subagent",
    "answer": "Answer to its question",
    "decision": "What was decided",
}
_GUARDRAILS = {"told": "warned the model", "refused": "refused a call", "ended": "ended the run"}
_ERASED_TITLES: Mapping[str, str] = {
    "UserMessage": "Message",
    "AssistantMessage": "Answer of the model",
    "ToolCall": "Tool call",
    "ToolResult": "Result of a tool",
    "ExtendedThinking": "Thinking",
    "SubagentComplete": "Result",
    "ErrorOccurred": "Error",
    "PlanReady": "Plan",
    "Activity": "Activity",
    "CancelRequested": "Cancelled",
    "WorktreeReady": "Worktree",
    "WorkChecked": "Check of the work",
}


@dataclass(frozen=True)
class Shown:
    """What is shown of an entry.

    Attributes:
        kind: Its class in the page: `step`, `call`, `result`, `think`, `say`, `person`, `plan`, `ask`, `end`, `note`.
        title: Ava's own words; the name of a tool in it comes from a model.
        text: What a model, a tool or a person wrote.
        failed: It is an error or a refusal.
    """

    kind: str
    title: str
    text: str = ""
    failed: bool = False


def describe(entry: Entry) -> Shown | None:
    """Return what is shown of an entry; None for bookkeeping."""
    fact = entry.fact
    if fact is None:
        title = _ERASED_TITLES.get(entry.type)
        return Shown("gone", title, ERASED) if title is not None else None
    if _is_bookkeeping(entry, fact):
        return None
    shown = _work(fact) or _event(fact)
    return Shown(shown.kind, clean(shown.title)[0], clean(shown.text)[0].strip(), shown.failed)


def _is_bookkeeping(entry: Entry, fact: Fact) -> bool:
    """Tell whether an entry is folded: money, what the page shows elsewhere, and calls that hosts made."""
    match fact:
        case AssistantMessage():
            return entry.who.agent_id == AGENT or not fact.text.strip()
        case ToolCall() | ToolResult():
            return entry.who.agent_id == AGENT
        case UserMessage():
            return fact.kind == "task"
        case _:
            return isinstance(fact, FOLDED)


def _work(fact: Fact) -> Shown | None:
    """Return what the run itself has done."""
    match fact:
        case CostUpdate():
            booked = {"billed": "", "not_billed": ", not billed", "unknown": ", booked at the worst case"}
            again = f", attempt {fact.attempt}" if fact.attempt > 1 else ""
            over = ", more than was reserved" if fact.overrun else ""
            return Shown("step", f"Turn {fact.turn}{again}{booked[fact.settlement]}{over}", failed=fact.overrun)
        case AssistantMessage():
            return Shown("say", "Answer of the model", fact.text)
        case ExtendedThinking():
            return Shown("think", "Thinking", fact.thinking)
        case ToolCall():
            return Shown("call", fact.tool, _arguments(fact.args))
        case ToolResult():
            return _result(fact)
        case PlanReady():
            return Shown("plan", "Plan, reviewed" if fact.reviewed else "Plan", fact.plan or "No plan could be made.")
        case Activity():
            return Shown("note", "", fact.activity)
        case WorktreeReady():
            return Shown("note", "Worktree ready", fact.told)
        case WorkChecked():
            how, failed = describe_command(fact.verify), not fact.verify.passed
            return Shown("result", f"Check {fact.number} of the work {how}", fact.verify.output, failed)
        case _:
            return None


def _result(fact: ToolResult) -> Shown:
    found = [] if fact.count is None else [f"{fact.count:,} {'result' if fact.count == 1 else 'results'}"]
    found += [f"{fact.chars:,} characters"] if fact.chars is not None else []
    output = unmarked(fact.output)
    if fact.success:
        return Shown("result", f"{fact.tool} returned {', '.join(found) or 'an answer'}", output)
    what = "could not be called as requested" if fact.unusable else "failed"
    return Shown("result", f"{fact.tool} {what}", output or "It gave no reason.", failed=True)


def _event(fact: Fact) -> Shown:
    """Return what has happened to the run."""
    match fact:
        case UserMessage():
            return Shown("person", _MESSAGES[fact.kind], fact.text)
        case SpawnDecided():
            how = CHANNELS.get(fact.channel or "", "by itself: nobody decided in time")
            return Shown("ask", f"{fact.decision.capitalize()} {how}")
        case ErrorOccurred():
            text = "\n".join(filter(None, (fact.error, fact.what_to_do)))
            return Shown("error", f"Error: {fact.kind}", text, failed=True)
        case GuardrailTripped():
            where = f" ({fact.tool})" if fact.tool else ""
            times = f", {fact.count} times" if fact.count else ""
            what = f"Guardrail {fact.guardrail}{where} {_GUARDRAILS[fact.action]}{times}"
            return Shown("error", what, failed=fact.action != "told")
        case ExtensionAsked():
            low, high = cap_amount(fact.cap, fact.limit), cap_amount(fact.cap, fact.proposed)
            return Shown("ask", f"Near its {CAP_NAMES[fact.cap]} of {low}: asks for {high}")
        case ExtensionDecided():
            return Shown("ask", f"Request for more {fact.decision} {CHANNELS[fact.channel]}")
        case QuestionAsked():
            return Shown("ask", "Asks a question, and waits for the answer")
        case QuestionAnswered():
            return Shown("ask", f"Question {fact.decision} {CHANNELS[fact.channel]}")
        case CancelRequested():
            return Shown("end", f"Cancelled by {fact.by}", fact.reason or "")
        case _:
            return _ending(fact)


def _ending(fact: Fact) -> Shown:
    match fact:
        case RunPaused():
            return Shown("ask", f"Paused: {fact.why}")
        case RunResumed():
            return Shown("ask", f"Resumed {CHANNELS[fact.channel]}{', from a live process' if fact.force else ''}")
        case SubagentComplete():
            failed = fact.status not in ("success", "cancelled")
            return Shown("end", f"Result: {fact.status.replace('_', ' ')}", fact.summary, failed)
        case RunEnded():
            why = f": {fact.stop_reason}" if fact.stop_reason else ""
            return Shown("end", f"Ended as {fact.status.replace('_', ' ')}{why}", failed=fact.severity != "info")
        case Unknown():
            return Shown("note", f"{fact.name}, which a newer Ava wrote", json.dumps(fact.content, ensure_ascii=False))
        case _:
            return Shown("note", fact.type, fact.search_text())


def _arguments(args: Any) -> str:
    """Return the arguments of a call, one a line where there are several."""
    if not isinstance(args, dict):
        return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    given = cast("dict[str, Any]", args)
    return "\n".join(f"{name}: {_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
