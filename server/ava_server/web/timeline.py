"""The timeline of a run: what happened and how long it took, each entry once, a page at a time, with its costs.

A page starts at a cursor: an entry's number, and what the run had spent there. So no page reads what comes before it,
and what is written meanwhile neither skips nor repeats an entry.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, cast
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from ava_audit import events
from ava_audit.entries import Entry
from ava_audit.rows import RunRow
from ava_audit.units import US_PER_S, format_duration
from ava_audit.view import NOT_FAILED, View
from ava_roles.wrap import clean
from ava_server.budget.money_line import money_wait_words
from ava_server.core.ids import AGENT, parse_number, state_words
from ava_server.render.approvals import CHANNELS
from ava_server.render.entry_lines import (
    EVENT_NAMES,
    MESSAGE_NAMES,
    SETTLED_WORDS,
    arguments_text,
    compact,
    entry_words,
    refused_words,
    replaced_words,
    unmarked,
)
from ava_server.render.reasons import reason_words
from ava_server.render.run_view import is_carried
from ava_server.render.turns import Part, Span, alike_words, took_us
from ava_server.runs.asking.question_kinds import KINDS
from ava_server.runs.record.changes import describe_command

Order = Literal["newest", "oldest"]

PAGE_ENTRIES, PAGE_ROWS = 260, 180
"""Most entries of one page, and most of them that are not folded: those of some forty turns."""
PAGE_CHARS = 20_000
"""Characters of texts on one page; longer texts are cut, and open on a page of their own."""
_CUTS = (600, 400, 300, 200, 140, 100)
_LINE_CHARS = 160
_DONE_CHARS = 200
"""Characters of what a turn did, on its one line."""
ALIKE_CHARS = 60
"""So many first characters of two errors are alike where they are the same one."""
LEAST_SHARE = 250
"""A part of the picture of time is at least this fraction of it wide, so that it can be seen."""

_WAIT_BEGINS = frozenset(("SpawnDecided", "Asked", "Answered", "RunPaused", "MoneyAwaited", "RunResumed"))
_WAIT_ENDS = frozenset(("RunClaimed", "Answered", "CostReserved", "CostUpdate", "RunEnded"))


@dataclass(frozen=True)
class Scale:
    """The time that the picture of a timeline covers; microseconds UTC."""

    begins_us: int
    ends_us: int

    @property
    def span_ms(self) -> int:
        return max(1, (self.ends_us - self.begins_us) // 1_000)

    def place(self, span: Span) -> tuple[int, int]:
        """Return where a span begins and how wide it is, in milliseconds."""
        return self.between(span.begin_us, span.end_us)

    def between(self, begins_us: int, ends_us: int) -> tuple[int, int]:
        """Return where a time begins and how wide it is, in milliseconds."""
        least = max(1, self.span_ms // LEAST_SHARE)
        begins = max(0, (begins_us - self.begins_us) // 1_000)
        wide = max(least, (ends_us - begins_us) // 1_000)
        return min(begins, max(0, self.span_ms - wide)), wide


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
    the turn has done, or what is folded into one row, and `result` what the call has returned. `spans` is where its
    time went, `tokens` what a model call read and wrote. `again` counts how often its error has come so far on this
    page, from 2. `in_result`: the result above says this error already.
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
    spans: list[Span] = field(default_factory=list[Span])
    tokens: str = ""
    again: int = 0
    in_result: bool = False

    @property
    def again_words(self) -> str:
        """Where the page says the same error already; empty where it does not."""
        if self.again:
            return f"the same error, number {self.again}"
        return "as the result says" if self.in_result else ""

    @property
    def of_turn(self) -> bool:
        """Whether it belongs to the model call before it."""
        return self.kind in ("say", "think", "call", "result", "note", "outline")

    @property
    def kind(self) -> str:
        """Its CSS class; empty for what is folded."""
        return "" if self.shown is None else self.shown.kind

    @property
    def cut(self) -> bool:
        return self.shown is not None and len(self.text) < len(self.shown.text)

    @property
    def failed(self) -> bool:
        if self.shown is not None and self.shown.failed:
            return True
        return self.result is not None and self.result.failed

    @property
    def all_spans(self) -> list[Span]:
        """Its own time, and that of what is inside it."""
        spans = list(self.spans)
        if self.result is not None:
            spans += self.result.spans
        for each in self.inside:
            spans += each.all_spans
        return spans

    @property
    def time_words(self) -> str:
        """`model 1 s, tools 2 s, waited 3 s`; empty where no time is known."""
        spans = self.all_spans
        words: list[str] = []
        for part, name in _PART_NAMES.items():
            if any(span.part == part for span in spans):
                words.append(f"{name} {format_duration(took_us(spans, part) / US_PER_S)}")
        return ", ".join(words)

    @property
    def seconds(self) -> float:
        """From the beginning of its first span to the end of its last one."""
        spans = self.all_spans
        if not spans:
            return 0.0
        return (max(span.end_us for span in spans) - min(span.begin_us for span in spans)) / US_PER_S

    @property
    def actions(self) -> list[Item]:
        """The calls and results of a turn."""
        return [each for each in self.inside if each.kind in ("call", "result")]

    @property
    def said(self) -> str:
        """The beginning of what the model said in a turn."""
        for each in self.inside:
            if each.kind in ("say", "outline"):
                return compact(each.text, _DONE_CHARS)
        return ""

    @property
    def reason(self) -> str:
        """Why a call failed, on one line."""
        if self.result is not None:
            return compact(self.result.text, _DONE_CHARS)
        return compact(self.text, _DONE_CHARS)

    @property
    def error(self) -> tuple[str, ...]:
        """What makes two errors the same one; empty for what did not fail, and for a turn that did something else."""
        if self.shown is None:
            return ()
        if self.cost is not None:
            errors = {each.error for each in self.actions}
            return errors.pop() if len(errors) == 1 else ()
        if not self.failed or self.shown.kind == "end":
            return ()
        if self.shown.kind == "error":
            return self.shown.kind, self.shown.title, alike_words(self.shown.text)
        return self.shown.kind, self.shown.title, self.brief, self.reason[:ALIKE_CHARS]


_PART_NAMES: Mapping[Part, str] = {"model": "model", "tools": "tools", "waiting": "waited"}


@dataclass(frozen=True)
class TimelinePage:
    """One page: its rows in its order, and where the `next` one starts; None on the last one.

    `newer` is from where to ask for what is written later; None where entries lie between.
    """

    items: list[Item]
    next: Place | None
    newer: Place | None

    def tree(self, order: Order, said: str = "") -> list[Item]:
        """Return the rows as a tree in this order: what a turn has done is in it, oldest first, a result in its call.

        What belongs to a turn on another page stands alone. `said` is the error that the result of the run says.
        """
        oldest_first = self.items if order == "oldest" else self.items[::-1]
        tree: list[Item] = []
        calls: dict[str, Item] = {}
        turn: Item | None = None
        for item in oldest_first:
            if item.kind == "result" and item.call_id is not None:
                call = calls.get(item.call_id)
                if call is not None and call.result is None:
                    call.result = item
                    continue
            if item.kind == "call" and item.call_id is not None:
                calls[item.call_id] = item
            if item.cost is not None:
                turn = item
            elif turn is not None and item.of_turn:
                turn.inside.append(item)
                continue
            tree.append(item)
        tree = fold_repeats(tree)
        for item in tree:
            if item.shown is not None and item.shown.kind == "error":
                item.in_result = bool(said) and item.shown.text.startswith(said)
        return tree if order == "oldest" else tree[::-1]


def fold_repeats(tree: Sequence[Item]) -> list[Item]:
    """Return rows, oldest first, in which one row stands for the same error several times in a row."""
    rows = list[Item]()
    for error, group in groupby(tree, key=lambda item: item.error):
        alike = list(group)
        if error and len(alike) > 1:
            rows.append(_repeats(alike))
        else:
            rows += alike
    _count_errors(rows)
    return rows


def _repeats(alike: Sequence[Item]) -> Item:
    """Return one row for several that are the same error."""
    first, last = alike[0], alike[-1]
    assert first.shown is not None and last.shown is not None
    is_turn = all(item.cost is not None for item in alike)
    title = f"{first.shown.title}, {len(alike)} times"
    if is_turn:
        title = f"Turns {_turn_number(first.shown)} to {_turn_number(last.shown)}"
    return Item(
        seq=last.seq,
        at_us=last.at_us,
        shown=Detail(first.shown.kind, title, failed=True),
        cost=sum(item.cost or 0 for item in alike) if is_turn else None,
        total=last.total,
        inside=list(alike),
    )


def _turn_number(turn: Detail) -> str:
    """Return the number in `Turn 3, attempt 2`."""
    return turn.title.split(",")[0].removeprefix("Turn ")


def _count_errors(rows: Iterable[Item]) -> None:
    """Tell what has an error that came before on the page, so that its reason need not be read again."""
    seen: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        has_own = row.kind == "error" and not row.inside
        for each in (row,) if has_own else row.actions:
            if not each.error:
                continue
            seen[each.error] += 1
            if seen[each.error] > 1:
                each.again = seen[each.error]


def scale_of(run: RunRow, now_us: int) -> Scale:
    """Return the time from a run's approval to its end, or until now where it has not ended."""
    begins_us = run.created_us if run.queued_us is None else run.queued_us
    ends_us = now_us if run.ended_us is None else run.ended_us
    return Scale(begins_us, max(begins_us, ends_us))


def place_of(query: QueryParams, default: Order) -> Place:
    """Raises BadInput if it is none."""
    order: Order = {"newest": "newest", "oldest": "oldest"}.get(query.get("order", ""), default)  # type: ignore[assignment]
    if "from" not in query:
        return Place(order)
    where = "the address names no place of the timeline"
    return Place(order, parse_number(query["from"], where), parse_number(query.get("spent", "0"), where))


def read_page(view: View, run_id: str, place: Place, spent: int) -> TimelinePage:
    """`spent` is what the run has spent by now, in micro-USD."""
    if place.order == "oldest":
        return _forward(view, run_id, place)
    return _backward(view, run_id, place, spent)


def _backward(view: View, run_id: str, place: Place, spent: int) -> TimelinePage:
    found = view.older_entries(run_id, place.seq, PAGE_ENTRIES + 1)
    entries = _of_one_page(found)
    is_more = len(entries) < len(found)
    entries.reverse()
    is_first_page = place.seq is None
    after = spent if is_first_page else _known(place.spent)
    before = after - _cost(entries)
    older, newer = None, None
    if is_more:
        older = Place("newest", entries[0].seq, before)
    if is_first_page:
        newer = Place("newest", entries[-1].seq if entries else 0, after)
    return TimelinePage(rows(entries, before)[::-1], older, newer)


def _forward(view: View, run_id: str, place: Place) -> TimelinePage:
    found = view.newer_entries(run_id, _known(place.seq), PAGE_ENTRIES + 1)
    entries = _of_one_page(found)
    is_more = len(entries) < len(found)
    before = _known(place.spent)
    last_seq = entries[-1].seq if entries else _known(place.seq)
    end = Place("oldest", last_seq, before + _cost(entries))
    shown = rows(entries, before)
    if is_more:
        return TimelinePage(shown, end, None)
    return TimelinePage(shown, None, end)


def _of_one_page(entries: Sequence[Entry]) -> list[Entry]:
    """Return as many of the first entries as one page shows."""
    taken: list[Entry] = []
    shown = 0
    for entry in entries[:PAGE_ENTRIES]:
        if entry.fact is None or not _is_bookkeeping(entry, entry.fact):
            shown += 1
        if shown > PAGE_ROWS:
            break
        taken.append(entry)
    return taken


def _known(number: int | None) -> int:
    return 0 if number is None else number


def _cost(entries: Iterable[Entry]) -> int:
    """Return what entries have cost together, in micro-USD."""
    return sum(entry.added_micros for entry in entries)


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
    waiting: Item | None = None
    for entry in entries:
        spent += entry.added_micros
        if waiting is not None and entry.type in _WAIT_ENDS:
            waiting.spans.append(Span("waiting", waiting.at_us, max(waiting.at_us, entry.ts_us)))
            waiting = None
        shown = describe(entry)
        if shown is None:
            follows_a_turn = bool(items) and items[-1].cost is not None and not folded
            if follows_a_turn:
                items[-1].folded.append(_line(entry))
            else:
                folded.append(entry)
            continue
        item = _item(entry, shown, spent)
        if entry.type in _WAIT_BEGINS:
            waiting = item
        if shown.kind == "step":
            item.cost = entry.cost_micros or 0
            item.tokens = _token_words(entry.usage)
            item.folded = [*map(_line, folded), _line(entry)]
        elif folded:
            items.append(_fold(folded, spent))
        folded = []
        items.append(item)
    if folded:
        items.append(_fold(folded, spent))
    _cut(items)
    return items


def _item(entry: Entry, shown: Detail, spent: int) -> Item:
    item = Item(entry.seq, entry.ts_us, shown, shown.text, entry.duration_ms, total=spent, spans=_spans(entry, shown))
    fact = entry.fact
    if isinstance(fact, events.ToolCall):
        item.call_id = fact.call_id
        item.brief = clean(arguments_text(fact.args))[0]
    elif isinstance(fact, events.ToolResult):
        item.call_id = fact.call_id
    return item


def _spans(entry: Entry, shown: Detail) -> list[Span]:
    """Return where the time of an entry went: an entry is written at the end of what it tells."""
    if not entry.duration_ms or shown.kind not in ("step", "result"):
        return []
    part: Part = "model" if shown.kind == "step" else "tools"
    return [Span(part, entry.ts_us - entry.duration_ms * 1_000, entry.ts_us)]


def _fold(folded: Sequence[Entry], spent: int) -> Item:
    return Item(folded[-1].seq, folded[-1].ts_us, total=spent, folded=[*map(_line, folded)])


def _line(entry: Entry) -> str:
    text = entry_words(entry)
    if is_carried(entry):
        text = "Its result was given to the host"
    if entry.who.agent_id == AGENT and entry.type in ("ToolCall", "ToolResult"):
        text += " by a host or a person"
    tokens = _token_words(entry.usage)
    if tokens:
        text += f": {tokens}"
    return compact(text, _LINE_CHARS)


def _token_words(usage: events.Usage | None) -> str:
    """Return the tokens of a model call, without kinds of which there were none; empty where they are not known."""
    if usage is None:
        return ""
    counts = {
        "in": usage.input_tokens,
        "from the cache": usage.cache_read_tokens,
        "to the cache": usage.cache_write_tokens,
        "out": usage.output_tokens,
    }
    found = [f"{tokens:,} {name}" for name, tokens in counts.items() if tokens]
    if not found:
        return ""
    return f"tokens: {', '.join(found)}"


def _cut(items: Iterable[Item]) -> None:
    """Cut the texts so that all of them fit on the page; reasons of failures get most room."""
    texts = [item for item in items if item.text]
    most = _CUTS[-1]
    for chars in _CUTS:
        if sum(min(len(each.text), chars) for each in texts) <= PAGE_CHARS:
            most = chars
            break
    for item in texts:
        room = most
        if item.shown is not None and item.shown.failed:
            room = max(most, _CUTS[0])
        item.text = item.text[:room]


ERASED = "The content was erased."
FOLDED = (
    events.AgentRequest, events.CostReserved, events.RunClaimed, events.RunStarted, events.SubagentSpawn,
    events.SpawnProposed, events.StepRunQueued,
)  # fmt: skip
"""Bookkeeping: its row is folded."""
_FOLDED_NAMES = frozenset(fact.__name__ for fact in FOLDED)
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
        if entry.type in _FOLDED_NAMES:
            return None
        return Detail("gone", EVENT_NAMES.get(entry.type, entry.type), ERASED)
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
            return _settled(fact)
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
            return Detail(
                "outline", "Plan, reviewed" if fact.reviewed else "Plan", fact.plan or "No plan could be made."
            )
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


def _settled(fact: events.CostUpdate) -> Detail:
    again = f", attempt {fact.attempt}" if fact.attempt > 1 else ""
    over = ", more than was reserved" if fact.overrun else ""
    how = f"{SETTLED_WORDS[fact.settlement]}{over}{replaced_words(fact)}"
    return Detail("step", f"Turn {fact.turn}{again}{how}", failed=fact.overrun)


_NOTES = {
    "session": "Session of the agent",
    "permission": "Permission",
    "refused": "Not sent",
    "unreported": "Tools that the agent has not told of",
    "reported": "The agent tells",
}


def _result(fact: events.ToolResult) -> Detail:
    found: list[str] = []
    if fact.count is not None:
        found.append("1 result" if fact.count == 1 else f"{fact.count:,} results")
    if fact.chars is not None:
        found.append(f"{fact.chars:,} characters")
    output = unmarked(fact.output)
    if fact.success:
        return Detail("result", f"{fact.tool} returned {', '.join(found) or 'an answer'}", output)
    what = "could not be called as requested" if fact.unusable else "failed"
    return Detail("result", f"{fact.tool} {what}", output or "It gave no reason.", failed=True)


def _event(fact: events.Fact) -> Detail:
    match fact:
        case events.UserMessage():
            text = fact.text
            if fact.screen:
                text += f"\n\nOn the screen was:\n{fact.screen}"
            return Detail("person", MESSAGE_NAMES[fact.kind], text)
        case events.SpawnDecided():
            how = CHANNELS.get(fact.channel or fact.decision, "")
            title = f"{state_words(fact.decision).capitalize()} {how}".rstrip()
            folded = f"Not on the screen: {fact.folded}" if fact.folded else ""
            return Detail("ask", title, folded)
        case events.ErrorOccurred():
            text = "\n".join(filter(None, (fact.error, fact.what_to_do)))
            return Detail("error", f"Error: {fact.kind}", text, failed=True)
        case events.GuardrailTripped():
            title = f"Guardrail {state_words(fact.guardrail)}"
            if fact.tool:
                title += f" ({fact.tool})"
            title += f" {_GUARDRAILS[fact.action]}"
            if fact.count:
                title += f", {fact.count} times"
            if fact.action == "told":
                return Detail("note", title)
            return Detail("error", title, failed=True)
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
            title = f'Step "{fact.step}" {fact.state}'
            if fact.why:
                title += f": {reason_words(fact.why)}"
            return Detail("note", title, failed=fact.state == "failed")
        case events.RunPaused():
            return Detail("ask", f"Paused: {fact.why}")
        case events.MoneyAwaited():
            return Detail("ask", money_wait_words(fact).capitalize())
        case events.RunResumed():
            title = f"Resumed {CHANNELS[fact.channel]}"
            if fact.force:
                title += ", from a live process"
            return Detail("ask", title)
        case events.SubagentComplete():
            failed = fact.status not in NOT_FAILED
            summary = fact.summary
            if summary == fact.result.get("stop_reason"):  # of a plan: the row of its ending says it
                summary = ""
            return Detail("end", f"Result: {state_words(fact.status)}", summary, failed)
        case events.RunEnded(status="superseded"):
            return Detail("end", "Replaced by a newer proposal")
        case events.RunEnded():
            title = f"Ended as {state_words(fact.status)}"
            if fact.stop_reason:
                title += f": {reason_words(fact.stop_reason)}"
            return Detail("end", title, failed=fact.status not in NOT_FAILED)
        case events.Unknown():
            return Detail("note", f"{fact.name}, which a newer Ava wrote", json.dumps(fact.content, ensure_ascii=False))
        case _:
            return Detail("note", EVENT_NAMES.get(fact.type, fact.type), fact.search_text())


def _arguments(args: Any) -> str:
    """Return one a line where there are several."""
    if not isinstance(args, dict):
        return _value(args)
    given = cast("dict[str, Any]", args)
    return "\n".join(f"{name}: {_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
