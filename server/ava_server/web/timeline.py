"""The timeline of a run: what happened, each entry once, a page at a time, with what it has cost until then.

A page starts at a cursor: an entry's number, and what the run had spent there. So no page reads what comes before it,
and what is written meanwhile neither skips nor repeats an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from ava_audit.entries import Entry
from ava_audit.view import View
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT
from ava_server.service.log_lines import entry_text
from ava_server.web.timeline_items import Shown, describe

Order = Literal["newest", "oldest"]

PAGE_ENTRIES = 200
PAGE_CHARS = 26_000
"""Characters of texts on one page; longer texts are cut, and open on a page of their own."""
_CUTS = (600, 400, 300, 200, 140, 100)
_LINE_CHARS = 160
_DIGITS = 18


@dataclass(frozen=True)
class Place:
    """Where a page of the timeline starts.

    Attributes:
        order: Newest or oldest first.
        seq: Only entries beyond this one; None starts at the first one of the order.
        spent: What the run has spent at that place, in micro-USD; None where it is not known yet.
    """

    order: Order
    seq: int | None = None
    spent: int | None = None

    @property
    def query(self) -> str:
        """Return it as the query of an address."""
        fields: dict[str, object] = {"order": self.order}
        if self.seq is not None:
            fields |= {"from": self.seq, "spent": self.spent or 0}
        return urlencode(fields)


@dataclass
class Item:
    """One row: an entry, or several that are folded into one.

    Attributes:
        seq: The number of its entry.
        at_us: When it was.
        shown: What is shown of it; None for a row of folded entries alone.
        text: Its text, as much as there is room for.
        took_ms: How long it took.
        cost: What it cost, in micro-USD; None if it is not a model call.
        total: What the run had spent after it.
        folded: Lines of bookkeeping.
    """

    seq: int
    at_us: int
    shown: Shown | None = None
    text: str = ""
    took_ms: int | None = None
    cost: int | None = None
    total: int = 0
    folded: list[str] = field(default_factory=list[str])

    @property
    def cut(self) -> bool:
        """Whether its text is longer than what is shown."""
        return self.shown is not None and len(self.text) < len(self.shown.text)


@dataclass(frozen=True)
class TimelinePage:
    """One page.

    Attributes:
        items: Its rows, in its order.
        next: Where the next page starts; None on the last one.
        newer: From where to ask for what is written later; None where entries lie between.
    """

    items: list[Item]
    next: Place | None
    newer: Place | None


def place_of(query: QueryParams, default: Order) -> Place:
    """Return the place that an address names.

    Raises:
        BadInput: It is none.
    """
    order: Order = {"newest": "newest", "oldest": "oldest"}.get(query.get("order", ""), default)  # type: ignore[assignment]
    if "from" not in query:
        return Place(order)
    given = [query["from"], query.get("spent", "0")]
    if not all(each.isascii() and each.isdecimal() and len(each) <= _DIGITS for each in given):
        raise BadInput("the address names no place of the timeline")
    return Place(order, int(given[0]), int(given[1]))


def read_page(view: View, run_id: str, place: Place, spent: int) -> TimelinePage:
    """Return a page of a run's timeline.

    Args:
        view: The state.
        run_id: The run.
        place: Where it starts.
        spent: What the run has spent by now, in micro-USD.
    """
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
    """Return entries, oldest first, as rows; bookkeeping is folded into the model call beside it.

    Args:
        entries: The entries.
        spent: What the run had spent before them, in micro-USD.
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
    text = entry_text(entry)
    who = " by a host or a person" if entry.who.agent_id == AGENT and entry.type in ("ToolCall", "ToolResult") else ""
    tokens = ""
    if (usage := entry.usage) is not None:
        tokens = (
            f": {usage.input_tokens:,} in, {usage.cache_read_tokens:,} from the cache, "
            f"{usage.cache_write_tokens:,} to the cache, {usage.output_tokens:,} out"
        )
    line = f"{text}{who}{tokens}"
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…"


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
