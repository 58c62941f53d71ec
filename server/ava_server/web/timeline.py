"""The timeline of a run: what happened, each entry once, a page at a time, with what it has cost until then.

A page starts at a cursor: an entry's number, and what the run had spent there. So no page reads what comes before it,
and what is written meanwhile neither skips nor repeats an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from ava_audit import events
from ava_audit.entries import Entry
from ava_audit.view import View
from ava_roles.wrap import clean
from ava_server.budget.money_line import money_wait_words
from ava_server.core.ids import AGENT, parse_number, state_words
from ava_server.render.approvals import CHANNELS
from ava_server.render.entries import EVENT_NAMES, arguments_text, compact, entry_words, refused_words, unmarked
from ava_server.runs.changes import describe_command
from ava_server.runs.question_kinds import KINDS

Order = Literal["newest", "oldest"]

PAGE_ENTRIES = 200
PAGE_CHARS = 26_000
"""Characters of texts on one page; longer texts are cut, and open on a page of their own."""
_CUTS = (600, 400, 300, 200, 140, 100)
_LINE_CHARS = 160


@dataclass(frozen=True)
class Place:
    """Where a page of the timeline starts: beyond the entry `seq`; None is the first one of the order.

    `spent` is what the run has spent at that place, in micro-USD; None where it is not known yet.
    """

    order: Order
    seq: int | None = None
    spent: int | None = None

    @property
    def query(self) -> str:
        fields: dict[str, object] = {"order": self.order}
        if self.seq is not None:
            fields |= {"from": self.seq, "spent": self.spent or 0}
        return urlencode(fields)


@dataclass
class Item:
    """One row: an entry, or several that are folded into one, whose `shown` is None.

    `text` is as much as there is room for. `cost`, None if it is not a model call, and `total`, what the run had spent
    after it, are in micro-USD. `call_id` is the tool call's that it is or that it answers. In a tree, `inside` is what
    the turn has done, and `result` what the call has returned.
    """

    seq: int
    at_us: int
    shown: Detail | None = None
    text: str = ""
    took_ms: int | None = None
    cost: int | None = None
    total: int = 0
    folded: list[str] = field(default_factory=list[str])
    call_id: str | None = None
    brief: str = ""
    inside: list[Item] = field(default_factory=list["Item"])
    result: Item | None = None

    @property
    def of_turn(self) -> bool:
        """Whether it belongs to the model call before it."""
        return self.shown is not None and self.shown.kind in ("say", "think", "call", "result", "note", "plan")

    @property
    def cut(self) -> bool:
        return self.shown is not None and len(self.text) < len(self.shown.text)


@dataclass(frozen=True)
class TimelinePage:
    """One page: its rows in its order, and where the `next` one starts; None on the last one.

    `newer` is from where to ask for what is written later; None where entries lie between.
    """

    items: list[Item]
    next: Place | None
    newer: Place | None

    def tree(self, order: Order) -> list[Item]:
        """Return the rows as a tree in this order: what a turn has done is in it, oldest first, a result in its call.

        What belongs to a turn on another page stands alone.
        """
        tree, calls = list[Item](), dict[str | None, Item]()
        turn: Item | None = None
        for item in self.items if order == "oldest" else self.items[::-1]:
            call = calls.get(item.call_id) if item.shown is not None and item.shown.kind == "result" else None
            if call is not None and item.call_id is not None and call.result is None:
                call.result = item
                continue
            if item.shown is not None and item.shown.kind == "call":
                calls[item.call_id] = item
            if item.cost is not None:
                turn = item
            elif turn is not None and item.of_turn:
                turn.inside.append(item)
                continue
            tree.append(item)
        return tree if order == "oldest" else tree[::-1]


def place_of(query: QueryParams, default: Order) -> Place:
    """Raises BadInput: it is none."""
    order: Order = {"newest": "newest", "oldest": "oldest"}.get(query.get("order", ""), default)  # type: ignore[assignment]
    if "from" not in query:
        return Place(order)
    where = "the address names no place of the timeline"
    return Place(order, parse_number(query["from"], where), parse_number(query.get("spent", "0"), where))


def read_page(view: View, run_id: str, place: Place, spent: int) -> TimelinePage:
    """`spent` is what the run has spent by now, in micro-USD."""
    if place.order == "oldest":
        return _forward(view, run_id, place)
    entries = view.older_entries(run_id, place.seq, PAGE_ENTRIES + 1)
    more = len(entries) > PAGE_ENTRIES
    entries = entries[:PAGE_ENTRIES][::-1]
    after = spent if place.seq is None else place.spent or 0
    before = after - sum(entry.cost_micros or 0 for entry in entries)
    items = rows(entries, before)[::-1]
    older = Place("newest", entries[0].seq, before) if more else None
    newest = entries[-1].seq if entries else 0
    return TimelinePage(items, older, Place("newest", newest, after) if place.seq is None else None)


def _forward(view: View, run_id: str, place: Place) -> TimelinePage:
    entries = view.newer_entries(run_id, place.seq or 0, PAGE_ENTRIES + 1)
    more = len(entries) > PAGE_ENTRIES
    entries = entries[:PAGE_ENTRIES]
    before = place.spent or 0
    after = before + sum(entry.cost_micros or 0 for entry in entries)
    end = Place("oldest", entries[-1].seq if entries else place.seq or 0, after)
    return TimelinePage(rows(entries, before), end if more else None, None if more else end)


def read_newer(view: View, run_id: str, place: Place) -> TimelinePage:
    """Return what was written after a place, in its order; `newer` is always set."""
    page = _forward(view, run_id, place)
    end = page.next or page.newer
    assert end is not None
    items = page.items if place.order == "oldest" else page.items[::-1]
    return TimelinePage(items, None, Place(place.order, end.seq, end.spent))


def rows(entries: Sequence[Entry], spent: int) -> list[Item]:
    """Bookkeeping is folded into the model call beside it. Entries are oldest first.

    `spent` is what the run had spent before them, in micro-USD.
    """
    items: list[Item] = []
    folded: list[Entry] = []
    for entry in entries:
        spent += entry.cost_micros or 0
        shown = describe(entry)
        if shown is None:
            if items and items[-1].cost is not None and not folded:
                items[-1].folded.append(_line(entry))
            else:
                folded.append(entry)
            continue
        item = Item(entry.seq, entry.ts_us, shown, shown.text, entry.duration_ms, total=spent)
        if isinstance(fact := entry.fact, events.ToolCall | events.ToolResult):
            item.call_id = fact.call_id
            item.brief = clean(arguments_text(fact.args))[0] if isinstance(fact, events.ToolCall) else ""
        if shown.kind == "step":
            item.cost = entry.cost_micros or 0
            item.folded = [*map(_line, folded), _line(entry)]
        elif folded:
            items.append(_fold(folded, spent))
        folded = []
        items.append(item)
    if folded:
        items.append(_fold(folded, spent))
    _cut(items)
    return items


def _fold(folded: Sequence[Entry], spent: int) -> Item:
    return Item(folded[-1].seq, folded[-1].ts_us, total=spent, folded=[*map(_line, folded)])


def _line(entry: Entry) -> str:
    text = entry_words(entry)
    who = " by a host or a person" if entry.who.agent_id == AGENT and entry.type in ("ToolCall", "ToolResult") else ""
    tokens = ""
    if (usage := entry.usage) is not None:
        tokens = (
            f": {usage.input_tokens:,} in, {usage.cache_read_tokens:,} from the cache, "
            f"{usage.cache_write_tokens:,} to the cache, {usage.output_tokens:,} out"
        )
    return compact(f"{text}{who}{tokens}", _LINE_CHARS)


def _cut(items: Iterable[Item]) -> None:
    """Cut the texts so that all of them fit on the page; reasons of failures get most room."""
    texts = [item for item in items if item.text]
    most = next(
        (chars for chars in _CUTS if sum(min(len(each.text), chars) for each in texts) <= PAGE_CHARS), _CUTS[-1]
    )
    for item in texts:
        room = max(most, _CUTS[0]) if item.shown is not None and item.shown.failed else most
        if len(item.text) > room:
            item.text = item.text[:room]


ERASED = "The content was erased."
FOLDED = (
    events.AgentRequest, events.CostReserved, events.RunClaimed, events.RunStarted, events.SubagentSpawn,
    events.SpawnProposed, events.StepRunQueued,
)  # fmt: skip
"""Bookkeeping: its row is folded."""
_MESSAGES: Mapping[str, str] = {
    "task": "Task",
    "message": "Message to the subagent",
    "answer": "Answer to its question",
    "decision": "What was decided",
}
_GUARDRAILS = {"told": "warned the model", "refused": "refused a call", "ended": "ended the run"}


@dataclass(frozen=True)
class Detail:
    """What is shown of an entry; `kind` is its CSS class, `step` for a model call. `failed`: an error or a refusal.

    `title` has Ava's own words, but for a tool's name, which comes from a model; `text` is of a model, a tool or a
    person.
    """

    kind: str
    title: str
    text: str = ""
    failed: bool = False


def describe(entry: Entry) -> Detail | None:
    """Return None for bookkeeping."""
    fact = entry.fact
    if fact is None:
        folded = entry.type in (fact.__name__ for fact in FOLDED)
        return None if folded else Detail("gone", EVENT_NAMES.get(entry.type, entry.type), ERASED)
    if _is_bookkeeping(entry, fact):
        return None
    shown = _work(fact) or _event(fact)
    return Detail(shown.kind, clean(shown.title)[0], clean(shown.text)[0].strip(), shown.failed)


def _is_bookkeeping(entry: Entry, fact: events.Fact) -> bool:
    """Tell whether an entry is folded: money, what the page shows elsewhere, and calls that hosts made."""
    match fact:
        case events.AssistantMessage():
            return entry.who.agent_id == AGENT or not (fact.text.strip() or fact.rejected)
        case events.ToolCall() | events.ToolResult():
            return entry.who.agent_id == AGENT
        case events.UserMessage():
            return fact.kind == "task"
        case _:
            return isinstance(fact, FOLDED)


def _work(fact: events.Fact) -> Detail | None:
    match fact:
        case events.CostUpdate():
            return _cost(fact)
        case events.AssistantMessage(rejected=str(refused)):
            return Detail("say", "Answer of the model", refused_words(refused), failed=True)
        case events.AssistantMessage():
            return Detail("say", "Answer of the model", fact.text)
        case events.ExtendedThinking():
            return Detail("think", "Thinking", fact.thinking)
        case events.ToolCall():
            return Detail("call", fact.tool, _arguments(fact.args))
        case events.ToolResult():
            return _result(fact)
        case events.PlanReady():
            return Detail("plan", "Plan, reviewed" if fact.reviewed else "Plan", fact.plan or "No plan could be made.")
        case events.Activity():
            return Detail("note", "", fact.activity)
        case events.AgentNote():
            return Detail("note", _NOTES[fact.kind], fact.text)
        case events.WorktreeReady():
            return Detail("note", "Worktree ready", fact.told)
        case events.WorkChecked():
            how, failed = describe_command(fact.verify), not fact.verify.passed
            return Detail("result", f"Check {fact.number} of the work {how}", fact.verify.output, failed)
        case _:
            return None


def _cost(fact: events.CostUpdate) -> Detail:
    booked = {"billed": "", "not_billed": ", not billed", "unknown": ", cost unknown: the most that it can be"}
    again = f", attempt {fact.attempt}" if fact.attempt > 1 else ""
    over = ", more than was reserved" if fact.overrun else ""
    return Detail("step", f"Turn {fact.turn}{again}{booked[fact.settlement]}{over}", failed=fact.overrun)


_NOTES = {
    "session": "Session of the agent",
    "permission": "Permission",
    "refused": "Not sent",
    "unreported": "Tools that the agent has not told of",
    "reported": "The agent tells",
}


def _result(fact: events.ToolResult) -> Detail:
    found = [] if fact.count is None else [f"{fact.count:,} {'result' if fact.count == 1 else 'results'}"]
    found += [f"{fact.chars:,} characters"] if fact.chars is not None else []
    output = unmarked(fact.output)
    if fact.success:
        return Detail("result", f"{fact.tool} returned {', '.join(found) or 'an answer'}", output)
    what = "could not be called as requested" if fact.unusable else "failed"
    return Detail("result", f"{fact.tool} {what}", output or "It gave no reason.", failed=True)


def _event(fact: events.Fact) -> Detail:
    match fact:
        case events.UserMessage():
            screen = f"\n\nOn the screen was:\n{fact.screen}" if fact.screen else ""
            return Detail("person", _MESSAGES[fact.kind], f"{fact.text}{screen}")
        case events.SpawnDecided():
            how = CHANNELS.get(fact.channel or fact.decision, "")
            folded = f"Not on the screen: {fact.folded}" if fact.folded else ""
            return Detail("ask", f"{state_words(fact.decision).capitalize()} {how}".rstrip(), folded)
        case events.ErrorOccurred():
            text = "\n".join(filter(None, (fact.error, fact.what_to_do)))
            return Detail("error", f"Error: {fact.kind}", text, failed=True)
        case events.GuardrailTripped():
            where = f" ({fact.tool})" if fact.tool else ""
            times = f", {fact.count} times" if fact.count else ""
            what = f"Guardrail {fact.guardrail}{where} {_GUARDRAILS[fact.action]}{times}"
            return Detail("error", what, failed=fact.action != "told")
        case events.Asked():
            return Detail("ask", *KINDS[fact.kind].entry(fact))
        case events.Answered():
            return Detail("ask", f"{KINDS[fact.kind].noun} {fact.decision} {CHANNELS[fact.channel]}")
        case events.CancelRequested():
            return Detail("end", f"Cancelled by {fact.by}", fact.reason or "")
        case _:
            return _ending(fact)


def _ending(fact: events.Fact) -> Detail:
    match fact:
        case events.StepChanged():
            why = f": {fact.why}" if fact.why else ""
            return Detail("note", f"Step {fact.step} {fact.state}{why}", failed=fact.state == "failed")
        case events.RunPaused():
            return Detail("ask", f"Paused: {fact.why}")
        case events.MoneyAwaited():
            return Detail("ask", money_wait_words(fact).capitalize())
        case events.RunResumed():
            return Detail("ask", f"Resumed {CHANNELS[fact.channel]}{', from a live process' if fact.force else ''}")
        case events.SubagentComplete():
            failed = fact.status not in ("success", "cancelled")
            return Detail("end", f"Result: {state_words(fact.status)}", fact.summary, failed)
        case events.RunEnded():
            why = f": {fact.stop_reason}" if fact.stop_reason else ""
            return Detail("end", f"Ended as {state_words(fact.status)}{why}", failed=fact.severity != "info")
        case events.Unknown():
            return Detail("note", f"{fact.name}, which a newer Ava wrote", json.dumps(fact.content, ensure_ascii=False))
        case _:
            return Detail("note", EVENT_NAMES.get(fact.type, fact.type), fact.search_text())


def _arguments(args: Any) -> str:
    """Return one a line where there are several."""
    if not isinstance(args, dict):
        return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    given = cast("dict[str, Any]", args)
    return "\n".join(f"{name}: {_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
