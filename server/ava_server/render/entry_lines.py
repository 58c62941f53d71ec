"""Entries of the log as lines, for a screen or an answer, and the last actions of a run, each with its outcome.

It reads, and imports nothing that writes or runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ava_audit import events
from ava_audit.entries import Entry, mirror_line
from ava_audit.units import format_duration, format_ts, format_usd, micros_from_cents
from ava_audit.view import Readable, View, placeholders
from ava_roles.wrap import clean
from ava_server.approval.channels import WAYS
from ava_server.core.errors import key_shapes
from ava_server.core.ids import AGENT
from ava_server.core.names import quote_name
from ava_server.models.surcharges import named_words

BOOKKEEPING = (
    "SessionStart", "SessionEnd", "SpawnProposed", "StepRunQueued", "RunClaimed", "RunStarted", "CostReserved",
    "AgentRequest", "Activity", "RunEnded",
)  # fmt: skip
"""Entries that a person's log leaves out until asked for: others tell the same, or nothing is in them."""
EVENT_NAMES: Mapping[str, str] = {
    "UserMessage": "Message",
    "AssistantMessage": "Answer of the model",
    "ToolCall": "Tool call",
    "ToolResult": "Result of a tool",
    "SubagentSpawn": "Start",
    "SubagentComplete": "Result",
    "ExtendedThinking": "Thinking",
    "CostUpdate": "Model call",
    "ErrorOccurred": "Error",
    "SessionStart": "Host connected",
    "SessionEnd": "Host disconnected",
    "SpawnProposed": "Proposal",
    "SpawnDecided": "Decision",
    "StepRunQueued": "Start of a step's run",
    "StepChanged": "Step of the plan",
    "RunClaimed": "Taken by a server",
    "RunPaused": "Paused",
    "MoneyAwaited": "Wait for money",
    "Asked": "Question to a person",
    "Answered": "Answer to a question",
    "RunResumed": "Resumed",
    "RunStarted": "Prompt and tools",
    "CostReserved": "Money reserved",
    "AgentRequest": "Request of the agent",
    "AgentNote": "The agent",
    "Activity": "Activity",
    "GuardrailTripped": "Guardrail",
    "PlanReady": "Plan",
    "WorktreeReady": "Worktree",
    "WorkChecked": "Check of the work",
    "CancelRequested": "Cancelled",
    "RunEnded": "End",
    "SettingsChanged": "Setting changed",
    "LogErased": "Content erased",
}
"""What people call each event."""
MESSAGE_NAMES: Mapping[str, str] = {
    "task": "Task",
    "message": "Message to the subagent",
    "answer": "Answer to its question",
    "decision": "What was decided",
}
"""What people call a message, by its kind."""
_NAMES_OF_AVA: Mapping[str, str] = {
    "AssistantMessage": "Proposal, as shown",
    "ToolCall": "Call of Ava",
    "ToolResult": "Answer of Ava",
}
"""What entries are called that are not a run's own: what was shown to a person, and what a host called."""
SETTLED_WORDS: Mapping[str, str] = {
    "billed": "",
    "not_billed": ", not billed",
    "unknown": ", cost unknown: the most that it can be",
}
"""What pages say of a model call behind its tokens or its turn, by how it was settled."""
_SETTLED: Mapping[str, str] = {"billed": "billed", "not_billed": "not billed", "unknown": "the most that it can be"}
_GUARDRAILS: Mapping[str, str] = {
    "same_call": "the same call with the same result",
    "failed_edits": "edits that failed",
    "origin": "values from a source that the role does not name",
}
_TRIPPED: Mapping[str, str] = {"told": "the model was told", "refused": "refused", "ended": "the run was ended"}
_CARRIED = "carried"
"""Begins what the log has where a result was shown."""
VALUE_CHARS = 80
PAGE_ENTRIES = 500
"""Entries that are read at once."""
_NO_NAMES: Mapping[str, str] = {}
_ID = re.compile(r"(?<!\()\bS-[0-9a-f]{6}\b")
"""The id of a run without its name; an id in parentheses has its name before it."""
_PLAIN_NAME = re.compile(r"[a-z]{1,20}(?:_[a-z]{1,20}){0,6}")
"""A tool's name that nothing takes for a key: words in lower case."""
_MARKED = re.compile(r"<(?P<tag>tool_output_\w+)[^>]*>\n(?P<body>.*)\n</(?P=tag)>", re.DOTALL)


def entry_line(entry: Entry, *, names: Mapping[str, str] = _NO_NAMES, utc: bool = False, width: int = 160) -> str:
    """Return an entry on one line of at most `width` characters, without control and invisible ones.

    `names` has the names of runs, from `names_of`; each is put beside its id.
    """
    what = f"{entry.type} {what_happened(entry, names)}".rstrip()
    line = f"[{format_ts(entry.ts_us, utc)}] {named(entry.who.agent_id, names.get(entry.who.agent_id))} {what}"
    if len(line) <= width:
        return line
    return line[: max(width - 1, 1)] + "…"


def what_happened(entry: Entry, names: Mapping[str, str] = _NO_NAMES) -> str:
    what = _what(entry)
    if entry.who.agent_id == AGENT:  # a run's own text stays as it is
        what = _ID.sub(lambda found: named(found[0], names.get(found[0])), what)
    what = compact(clean(what)[0], 10_000)
    if entry.cost_micros:
        what += f" {format_usd(entry.cost_micros)}"
    return what.strip()


def name_of(entry: Entry) -> str:
    """Return what people call an entry; a message by its kind, and calls of hosts otherwise than those of runs."""
    if isinstance(entry.fact, events.UserMessage):
        return MESSAGE_NAMES[entry.fact.kind]
    if entry.who.agent_id == AGENT and entry.type in _NAMES_OF_AVA:
        return _NAMES_OF_AVA[entry.type]
    return EVENT_NAMES.get(entry.type, entry.type)


def entry_words(entry: Entry) -> str:
    """Return an entry by its name for people, and what happened: `Task: List the prices`."""
    what = what_happened(entry)
    if isinstance(entry.fact, events.UserMessage):
        what = what.removeprefix(f"({entry.fact.kind}) ")  # its name says its kind
    return f"{name_of(entry)}: {what}"


def names_of(view: View, entries: Iterable[Entry]) -> dict[str, str]:
    """Return the names of the runs that these entries mention, by id; runs without a name are left out."""
    users: dict[str, str] = {}
    for entry in entries:
        for run_id in _mentioned(entry):
            users[run_id] = entry.who.user_id
    names: dict[str, str] = {}
    for run_id, user in users.items():
        run = view.run(run_id)
        if run is not None and run.name and run.user_id == user:
            names[run_id] = compact(clean(run.name)[0], VALUE_CHARS)
    return names


def _mentioned(entry: Entry) -> Iterator[str]:
    """Yield the runs that an entry is about or names."""
    if entry.who.agent_id == AGENT:
        yield from _ID.findall(_what(entry))
    else:
        yield entry.who.agent_id
    if entry.run_id is not None and entry.run_id != AGENT:
        yield entry.run_id


def named(run_id: str, name: str | None) -> str:
    return f"{quote_name(name)} ({run_id})" if name else run_id


def is_trouble(entry: Entry) -> bool:
    """Tell whether an entry reports an error or a warning, so that its line is shown whole."""
    match entry.fact:
        case None:
            return False
        case events.AssistantMessage(rejected=str()):
            return True
        case events.SubagentComplete(status=status):
            return status not in ("success", "cancelled")
        case fact:
            return fact.severity != "info"


def _what(entry: Entry) -> str:
    """Return what an entry says, in one text; the caller redacts and shortens it."""
    match entry.fact:
        case None:
            return "(erased)"
        case events.ToolCall(tool=tool, args=args):
            return f"{tool} {arguments_text(args)}"
        case events.ToolResult() as result:
            words = _result_words(result, by_ava=entry.who.agent_id == AGENT)
            return f"{result.tool} ({_success(result)}) {words}"
        case events.CostUpdate() as update:
            over = ", more than the provider's own limits allow" if update.overrun else ""
            named = named_words(update.named)
            settled = f"{_SETTLED[update.settlement]}{over}{replaced_words(update)}"
            return f"turn {update.turn}: {update.tokens} tokens{named}, {settled}"
        case events.CostReserved() as reserved:
            return f"turn {reserved.turn} attempt {reserved.attempt}: at most {format_usd(reserved.micros)} reserved"
        case events.GuardrailTripped() as tripped:
            guardrail = _GUARDRAILS.get(tripped.guardrail, tripped.guardrail)
            tool = f"{tripped.tool}, " if tripped.tool else ""
            return f"{guardrail}: {tool}{_TRIPPED[tripped.action]}"
        case events.AgentRequest() as request:
            text = f"turn {request.turn}: {request.model}, {len(request.items)} new messages after {request.known}"
            if request.dropped:
                text += f", without {', '.join(request.dropped)}"
            return text
        case events.UserMessage() as message:
            return f"({message.kind}) {message.text}"
        case events.AssistantMessage(rejected=str(rejected)):
            return refused_words(rejected)
        case events.AssistantMessage() as message:
            calls = ", ".join(_tool_name(str(call.get("name"))) for call in message.calls)
            if not calls:
                return message.text
            return f"{message.text} → {calls}"
        case events.SettingsChanged() as changed:
            return f"{changed.setting}: {json.dumps(changed.before)} → {json.dumps(changed.after)}"
        case events.ErrorOccurred() as error:
            return f"{error.kind}: {error.error}"
        case fact:
            return _run_step_words(fact, entry.run_id or "")


def _run_step_words(fact: events.Fact, run_id: str) -> str:
    """Return what an entry says about a run's proposal, decision, start or end; of any other kind, its search text."""
    match fact:
        case events.SpawnProposed() as proposed:
            text = f"{proposed.pending_id} {proposed.config.get('role', '')} {proposed.subagent_id}"
            task_id = proposed.config.get("task_id")
            if task_id:
                text += f", task_id {task_id}"
            return text
        case events.SpawnDecided() as decided:
            where = WAYS[decided.channel].where if decided.channel else ""
            text = f"{decided.pending_id} {run_id} {decided.decision} {where}".rstrip()
            if decided.folded:
                text += f"; not on the screen: {decided.folded}"
            return text
        case events.SubagentSpawn() as spawn:
            return f"{spawn.role} {named(spawn.subagent_id, spawn.name)}: {spawn.task}"
        case events.CancelRequested() as request:
            text = f"{request.subagent_id} by {request.by}"
            if request.reason:
                text += f": {request.reason}"
            return text
        case events.SubagentComplete() as done:
            cost = format_usd(micros_from_cents(done.cost_cents))
            return f"{done.subagent_id} {done.status} {done.tokens} tokens, {cost}, {done.duration:g} s: {done.summary}"
        case _:
            return fact.search_text()


def _result_words(result: events.ToolResult, *, by_ava: bool) -> str:
    words = unmarked(result.output)
    if by_ava and words.startswith(_CARRIED):
        return f"showed{words.removeprefix(_CARRIED)}"
    return words


def _tool_name(name: str) -> str:
    """Return the name of a tool that a model called, without what looks like a key: the model wrote it.

    Plain words are never hidden, so that most commands need not load what finds keys (20 ms).
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    return key_shapes().redact(name)[0]


def replaced_words(update: events.CostUpdate) -> str:
    """Return what a settlement takes the place of, after a comma; nothing where it is the only one of its call."""
    if update.replaces is None:
        return ""
    return f", in place of {format_usd(update.replaces.micros)} that was booked as unknown"


def refused_words(refused: str) -> str:
    """Return what became of an answer that the provider refused: the provider's words, and what the model wrote."""
    said, _, written = refused.partition("\n")
    words = f"refused by the provider, so nothing of it was used: {said}"
    if written:
        words += f"\nThe model had written: {written}"
    return words


def unmarked(output: str) -> str:
    """Return a tool's output without the words and tags around it, which only the model needs."""
    output = output.strip().removeprefix("Failed.\n")
    found = _MARKED.match(output)
    if found is None:
        return output
    return found["body"] + output[found.end() :]


def arguments_text(args: Any) -> str:
    """Return the two most telling arguments: texts and lists first, then numbers, then switches."""
    if not isinstance(args, dict):
        return compact(args, VALUE_CHARS)
    given = cast("dict[str, Any]", args)
    telling = [(name, value) for name, value in given.items() if value not in (None, "", [], {})]
    telling.sort(key=lambda item: _rank(item[1]))
    return " ".join(f"{name}={compact(value, VALUE_CHARS)}" for name, value in telling[:2])


def _rank(value: Any) -> int:
    """Return the place of an argument: texts and lists before numbers, and numbers before switches."""
    if isinstance(value, bool):
        return 2
    if isinstance(value, int | float):
        return 1
    return 0


def compact(value: Any, limit: int = 200) -> str:
    text = value
    if not isinstance(text, str):
        text = json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    return line[: limit - 1] + "…"


async def mirror_lines(store: Readable, entries: Sequence[Entry]) -> list[bytes]:
    lines: dict[int, bytes] = {}
    for start in range(0, len(entries), PAGE_ENTRIES):
        numbers = [entry.seq for entry in entries[start : start + PAGE_ENTRIES]]
        where = f"seq IN ({placeholders(numbers)})"
        rows = await store.read(lambda view, n=numbers, w=where: list(view.rows(w, *n)))  # type: ignore[misc]
        lines.update((row[0], mirror_line(row)) for row in rows)
    return [lines[entry.seq] for entry in entries if entry.seq in lines]


REASON_CHARS = 300


@dataclass(frozen=True)
class Step:
    """A tool call, or an answer that the provider refused: when, what, and its outcome (empty while it runs)."""

    at_us: int
    what: str
    outcome: str = ""
    failed: bool = False

    @property
    def text(self) -> str:
        """`14:05:02 read_file path=notes.md: success, 0.2 s`."""
        return f"{format_ts(self.at_us)[11:]} {self.what}: {self.outcome or 'in progress'}"


def recent_steps(view: View, run_id: str, most: int) -> tuple[Step, ...]:
    """Oldest first: tool calls, and answers that the provider refused."""
    entries = view.newest_entries(run_id, ("ToolCall", "ToolResult", "AssistantMessage"), 3 * most)
    return tuple(_steps(entries))[-most:]


def _steps(entries: Iterable[Entry]) -> Iterable[Step]:
    """A result without its call stands by itself."""
    steps: dict[str, Step] = {}
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, events.ToolCall):
            what = f"{compact(fact.tool, 40)} {arguments_text(fact.args)}".strip()
            steps[fact.call_id or str(entry.seq)] = Step(entry.ts_us, what)
        elif isinstance(fact, events.AssistantMessage):
            if fact.rejected is not None:
                outcome = compact(refused_words(fact.rejected), REASON_CHARS)
                steps[str(entry.seq)] = Step(entry.ts_us, "Answer of the model", outcome, failed=True)
        elif isinstance(fact, events.ToolResult):
            key = fact.call_id or str(entry.seq)
            called = steps.get(key, Step(entry.ts_us, compact(fact.tool, 40)))
            steps[key] = Step(called.at_us, called.what, _outcome(fact, entry.duration_ms), not fact.success)
        elif entry.type != "AssistantMessage":
            steps[str(entry.seq)] = Step(entry.ts_us, "(erased)", "(erased)")
    return steps.values()


def _outcome(result: events.ToolResult, duration_ms: int | None) -> str:
    outcome = _success(result)
    if duration_ms is not None:
        outcome += f", {format_duration(duration_ms / 1000)}"
    if not result.success:
        outcome += f": {compact(unmarked(result.output), REASON_CHARS)}"
    return outcome


def _success(result: events.ToolResult) -> str:
    words = "success" if result.success else "failed"
    if result.count is None:
        return words
    results = "1 result" if result.count == 1 else f"{result.count} results"
    return f"{words}, {results}"
