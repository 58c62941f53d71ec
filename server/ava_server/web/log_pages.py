"""The pages of the log: search, newest first, and each entry with its whole text.

A person can type the filters among the words: `zebra type:error since:1h`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Literal, cast, get_args
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.events import (
    FACTS,
    Answered,
    Asked,
    CostUpdate,
    RunEnded,
    RunResumed,
    Severity,
    SpawnDecided,
    StepChanged,
    SubagentComplete,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ava_audit.search import SHORT_TYPES, EntryPage, LogQuery, search
from ava_audit.units import US_PER_S, format_duration, format_usd, now_us
from ava_audit.view import View
from ava_roles.wrap import clean
from ava_server.core.errors import BadInput
from ava_server.core.ids import AGENT, parse_number, parse_run_id, read_span, state_words
from ava_server.models.surcharges import named_words
from ava_server.render.approvals import CHANNELS
from ava_server.render.entry_lines import (
    BOOKKEEPING,
    EVENT_NAMES,
    SETTLED_WORDS,
    compact,
    is_trouble,
    name_of,
    named,
    names_of,
    replaced_words,
    what_happened,
)
from ava_server.render.reasons import reason_words
from ava_server.render.run_view import is_carried
from ava_server.runs.asking.question_kinds import KINDS
from ava_server.web.context import NotFound, PagePart, page, reader_of
from ava_server.web.site import Visitor

AT_ONCE = 100
TEXT_CHARS = 240
WORDS_CHARS = 1_000
_OF_TURN = ("AssistantMessage", "ExtendedThinking", "Activity", "ToolCall", "ToolResult", "PlanReady")
MOST_RUNS = 100
"""Runs of a role that are searched, the newest ones."""
_FILTERS = ("q", "type", "level", "run", "agent", "user", "since", "until")
"""The fields of the form, apart from its checkbox."""
_TYPED = {name: name for name in _FILTERS if name != "q"} | {"role": "agent"}
"""The names of filters that a person can type among the words, with their fields."""
_TYPED_WORD = re.compile(r'(\w+):("[^"]*"|[^\s"]+)|"[^"]*"?|[^\s"]+')

Family = Literal["model", "tool", "answer", "message", "question", "person", "begin", "end", "trouble", "other"]
SIGNS: Mapping[Family, str] = {
    "model": "◆",
    "tool": "→",
    "answer": "←",
    "message": "»",
    "question": "?",
    "person": "●",
    "begin": "▶",
    "end": "■",
    "trouble": "!",
    "other": "·",
}
"""The sign of each family of entries, which has a colour of its own too."""
_FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("CostUpdate", "AssistantMessage", "ExtendedThinking", "PlanReady", "AgentRequest"), "model"),
    "ToolCall": "tool",
    **dict.fromkeys(("ToolResult", "WorkChecked"), "answer"),
    "UserMessage": "message",
    "Asked": "question",
    **dict.fromkeys(("SpawnDecided", "Answered", "RunResumed", "CancelRequested"), "person"),
    **dict.fromkeys(("SpawnProposed", "SubagentSpawn", "RunClaimed", "RunStarted", "StepRunQueued"), "begin"),
    **dict.fromkeys(("SubagentComplete", "RunEnded"), "end"),
    **dict.fromkeys(("ErrorOccurred", "GuardrailTripped"), "trouble"),
}


@dataclass(frozen=True)
class EventsQuery:
    """What the address asks for: the text of each field, and `BOOKKEEPING` or everybody's entries too.

    `at_us` is when the first page was asked for: `1h` means the same on all pages. `upto` was the newest entry then,
    and `before` is the cursor.
    """

    fields: Mapping[str, str]
    bookkeeping: bool
    everybody: bool
    at_us: int
    before: int | None = None
    upto: int | None = None

    def __getitem__(self, name: str) -> str:
        return self.fields[name]

    def address(self, path: str = "/events", **more: Any) -> str:
        """Return the address of the first page of this search, with further parameters."""
        asked = {name: text for name, text in self.fields.items() if text}
        if self.bookkeeping:
            asked["bookkeeping"] = "1"
        if self.everybody:
            asked["all"] = ""
        return f"{path}?" + urlencode({**asked, **more})


@dataclass
class EventRow:
    """An entry in the list; `trouble` is `error`, `warning` or empty, `run` the run's name with its id, or empty.

    `inside` is what a turn has done, oldest first. `result` is what a tool call returned, and `after` how long that
    took; of a model call, how long it took.
    """

    entry: Entry
    trouble: str
    name: str
    text: str
    run: str
    after: str = ""
    inside: list[EventRow] = field(default_factory=list["EventRow"])
    result: EventRow | None = None

    @property
    def family(self) -> Family:
        if self.trouble == "error":
            return "trouble"
        if self.entry.type == "AssistantMessage" and self.entry.who.agent_id == AGENT:
            return "begin"
        return _FAMILIES.get(self.entry.type, "other")

    @property
    def sign(self) -> str:
        return SIGNS[self.family]


class Events(PagePart):
    """The log."""

    def routes(self) -> list[Route]:
        return [Route("/events", self.show), Route("/events/news", self.news), Route("/events/{seq}", self.one)]

    async def show(self, request: Request) -> Response:
        """Show a page of the log; where a field of the filter cannot be understood, say which, and show no entries."""
        visitor = reader_of(request)
        asked = lenient(request.query_params, visitor)
        found = EntryPage((), None, 0)
        rows: list[EventRow] = []
        problem = ""
        try:
            asked = asked_of(request.query_params, visitor)
            found = await self._search(await self._query(asked, visitor))
            rows = await self._context.store.read(lambda view: rows_of(view, found.entries))
        except BadInput as error:
            problem = str(error)
        older = ""
        if found.next is not None:
            older = asked.address(before=found.next, upto=asked.upto or found.upto, at=asked.at_us)
        is_live = not problem and asked.before is None and not asked["until"]
        values = {
            "asked": asked,
            "problem": problem,
            "rows": rows,
            "short_types": ("error", *SHORT_TYPES),
            "types": sorted(FACTS, key=lambda name: EVENT_NAMES[name]),
            "type_names": EVENT_NAMES,
            "zone": "" if self._context.site.local else "UTC",
            "older": older,
            "news": asked.address("/events/news", after=found.upto) if is_live else "",
            "stream": "/stream" if is_live else None,
        }
        status = 400 if problem else 200
        return self._context.show(request, "events.html", values, status)

    async def news(self, request: Request) -> Response:
        visitor = reader_of(request)
        asked = asked_of(request.query_params, visitor)
        after = _number("after", request.query_params.get("after", ""))
        query = replace(await self._query(asked, visitor), after_seq=after, limit=AT_ONCE)
        found = await self._search(query)
        values = {"count": len(found.entries), "more": found.next is not None, "address": asked.address()}
        return page("news.html", values)

    async def one(self, request: Request) -> Response:
        visitor = reader_of(request)
        given = request.path_params["seq"]
        missing = NotFound(f"There is no entry {given[:40]} of yours in this log.")
        try:
            seq = _number("entry", given)
        except BadInput:
            raise missing from None
        entry = await self._context.store.read(lambda view: visible_entry(view, seq, visitor))
        if entry is None:
            raise missing
        name = name_of(entry)
        return self._context.show(request, "entry.html", {"entry": entry, "name": name, "fields": fields_of(entry)})

    async def _search(self, query: LogQuery) -> EntryPage:
        try:
            return await search(self._context.store, query)
        except BadQuery as error:
            raise BadInput(f"type: {error}") from error

    async def _query(self, asked: EventsQuery, visitor: Visitor) -> LogQuery:
        """Return a query of own entries, or of a visible run. Raises BadInput if a field cannot be understood."""
        runs: tuple[str, ...] = ()
        users = () if asked.everybody else (visitor.user,)
        if asked["user"]:
            if not asked.everybody and asked["user"] != visitor.user:
                raise BadInput("user: the entries of other users need ?all and the right to see them")
            users = (asked["user"],)
        if asked["run"]:  # who may see a run sees its entries, whoever wrote them
            runs = (await self._run(asked["run"], visitor),)
            users = ()
        types: tuple[str, ...] = ()
        without: tuple[str, ...] = BOOKKEEPING
        if asked["type"]:
            types = (asked["type"],)
        if asked["type"] or asked.bookkeeping:
            without = ()
        zone = None if self._context.site.local else UTC
        since_us, until_us = read_span(asked["since"] or None, asked["until"] or None, asked.at_us, zone)
        return LogQuery(
            agents=await self._agents(asked, visitor),
            users=users,
            runs=runs,
            types=types,
            without=without,
            since_us=since_us,
            until_us=until_us,
            search=asked["q"] or None,
            level=_level(asked["level"]),
            limit=AT_ONCE,
            before_seq=asked.before,
            upto_seq=asked.upto,
        )

    async def _run(self, given: str, visitor: Visitor) -> str:
        try:
            return (await self._context.access(visitor).run(given, "run", reading=True)).id
        except BadInput:
            raise BadInput(f"run: there is no subagent {given[:40]!r} of yours; an id looks like S-7f3a2b") from None

    async def _agents(self, asked: EventsQuery, visitor: Visitor) -> tuple[str, ...]:
        """`ava`, a run, or the newest runs of a role."""
        given = asked["agent"]
        if not given:
            return ()
        if given.lower() == AGENT:
            return (AGENT,)
        try:
            return (parse_run_id(given),)
        except BadInput:
            user = None if asked.everybody else visitor.user
            runs = await self._context.store.read(lambda view: runs_of_role(view, given, user))
        if not runs:
            raise BadInput(f"agent: {given[:40]!r} is not ava, a subagent's id or the role of a subagent of yours")
        return tuple(runs)


def runs_of_role(view: View, role: str, user: str | None) -> list[str]:
    """Return the newest; with a user, only theirs."""
    theirs = "(CAST(? AS TEXT) IS NULL OR user_id = ?)"
    sql = f"SELECT id FROM runs WHERE role = ? AND {theirs} ORDER BY created_us DESC LIMIT ?"  # noqa: S608
    return [str(run_id) for (run_id,) in view.select(sql, role, user, user, MOST_RUNS)]


def visible_entry(view: View, seq: int, visitor: Visitor) -> Entry | None:
    """Return an entry if it is the visitor's own, belongs to their run, or they may see all."""
    entry = view.entry(seq)
    if entry is None or visitor.reads_all or entry.who.user_id == visitor.user:
        return entry
    if entry.run_id is None:
        return None
    run = view.run(entry.run_id)
    if run is None or run.user_id != visitor.user:
        return None
    return entry


def rows_of(view: View, entries: Sequence[Entry]) -> list[EventRow]:
    """Return entries, newest first, as rows of the list.

    What a turn has done is inside the model call, and what a tool returned is with its call.
    """
    names = names_of(view, entries)
    tree: list[EventRow] = []
    turns: dict[str, EventRow] = {}
    calls: dict[tuple[str, str], EventRow] = {}
    for entry in reversed(entries):
        row, run = _row(entry, names), entry.run_id or ""
        if entry.type == "ToolResult" and not is_carried(entry):
            called = calls.pop(_call_key(entry), None)
            if called is not None:
                called.result = row
                row.after = format_duration(max(0, entry.ts_us - called.entry.ts_us) / US_PER_S)
                continue
        if entry.type == "ToolCall":
            calls[_call_key(entry)] = row
        if entry.type == "CostUpdate":
            turns[run] = row
        elif entry.type in _OF_TURN and entry.who.agent_id == run and run in turns:
            turns[run].inside.append(row)
            continue
        tree.append(row)
    return tree[::-1]


def _call_key(entry: Entry) -> tuple[str, str]:
    """Return what a tool call and its result have in common; calls of hosts have no id, and follow one another."""
    caller = entry.run_id
    if caller is None or entry.who.agent_id == AGENT:
        caller = entry.session_id
    fact = entry.fact
    if not isinstance(fact, ToolCall | ToolResult):  # its content was erased
        return caller, ""
    return caller, fact.call_id or fact.tool


def page_words(entry: Entry, names: Mapping[str, str]) -> str:
    """Return what happened in people's words; the log itself has the names that programs use."""
    match entry.fact:
        case SpawnDecided() as decided:
            how = CHANNELS.get(decided.channel or decided.decision, "")
            words = f"{decided.pending_id} {state_words(decided.decision)} {how}".rstrip()
            if decided.folded:
                words += f"; not on the screen: {decided.folded}"
            return words
        case Asked() as question:
            return KINDS[question.kind].entry(question)[0]
        case StepChanged() as step:
            why = f": {reason_words(step.why)}" if step.why else ""
            return f'"{step.step}" {step.state}{why}'
        case Answered() as answered:
            return f"{KINDS[answered.kind].noun} {answered.decision} {CHANNELS[answered.channel]}"
        case RunResumed() as resumed:
            return CHANNELS[resumed.channel]
        case CostUpdate() as update:
            words = f"turn {update.turn}: {update.tokens:,} tokens"
            if entry.cost_micros:
                words += f", {format_usd(entry.cost_micros)}"
            return words + named_words(update.named) + SETTLED_WORDS[update.settlement] + replaced_words(update)
        case SubagentComplete() as done:
            run_name = named(done.subagent_id, names.get(done.subagent_id))
            return f"{run_name} {state_words(done.status)}: {done.summary}"
        case ToolResult() as result if is_carried(entry):
            run_id = entry.run_id or ""
            reader = "" if result.tool.startswith("ava ") else " the host"
            return f"{result.tool} has shown{reader} the result of {named(run_id, names.get(run_id))}"
        case ToolResult() if entry.who.agent_id == AGENT:
            return what_happened(entry, names).partition(" <subagent_result")[0]  # the run's own entry has it
        case UserMessage() as message:
            return message.text
        case RunEnded(status="superseded"):
            return "replaced by a newer proposal"
        case RunEnded() as ended:
            return f"{state_words(ended.status)}: {reason_words(ended.stop_reason or '')}"
        case _:
            return what_happened(entry, names)


def _row(entry: Entry, names: Mapping[str, str]) -> EventRow:
    run, text = entry.run_id or "", clean(page_words(entry, names))[0].strip()
    took = ""
    if entry.type == "CostUpdate" and entry.duration_ms:
        took = format_duration(entry.duration_ms / 1_000)
    trouble = ""
    if is_trouble(entry) and entry.fact is not None:
        trouble = "warning" if entry.fact.severity == "warning" else "error"
    return EventRow(
        entry,
        trouble,
        name_of(entry),
        compact(text, TEXT_CHARS),
        named(run, names.get(run)),
        took,
    )


def fields_of(entry: Entry) -> list[tuple[str, str]]:
    """Return no fields if the content was erased."""
    if entry.content is None:
        return []
    content: object = json.loads(entry.content)
    fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {"content": content}
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        found.append((name, text))
    return found


def lenient(query: QueryParams, visitor: Visitor) -> EventsQuery:
    """Return what the form shows, whatever is wrong with it."""
    fields = {name: query.get(name, "").strip()[:WORDS_CHARS] for name in _FILTERS}
    words, typed = typed_filters(fields["q"])
    fields |= {**typed, "q": words}
    return EventsQuery(fields, "bookkeeping" in query, "all" in query and visitor.reads_all, now_us())


def typed_filters(text: str) -> tuple[str, dict[str, str]]:
    """Return the words that a person typed, and the filters among them, by their fields: `type:error since:"2 h"`.

    What stands in quotes, and a word before a colon that is no filter's name, stay words.
    """
    words: list[str] = []
    typed: dict[str, str] = {}
    for found in _TYPED_WORD.finditer(text):
        name = _TYPED.get((found[1] or "").lower())
        if name is None:
            words.append(found[0])
        else:
            typed[name] = found[2].strip('"')
    if not typed:
        return text, {}
    return " ".join(words), typed


def asked_of(query: QueryParams, visitor: Visitor) -> EventsQuery:
    """Raises BadInput if a value cannot be understood."""
    for name in _FILTERS:
        if len(query.get(name, "")) > WORDS_CHARS:
            raise BadInput(f"{name}: it is longer than {WORDS_CHARS:,} characters")
    asked = lenient(query, visitor)
    place = {name: _number(name, query[name]) for name in ("before", "upto", "at") if name in query}
    return replace(asked, before=place.get("before"), upto=place.get("upto"), at_us=place.get("at", asked.at_us))


def _number(name: str, given: str) -> int:
    return parse_number(given, f"{name}: {given[:40]!r} is not a number of the log")


def _level(given: str) -> Severity | None:
    if not given:
        return None
    if given not in get_args(Severity):
        raise BadInput(f"level: {given[:40]!r} is not one of {', '.join(get_args(Severity))}")
    return cast("Severity", given)
