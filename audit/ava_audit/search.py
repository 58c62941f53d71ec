"""Log queries: search, newest first; follow and export, oldest first.

Every condition is a token in the text index, so a filter is an intersection. Entries that are not indexed yet are
indexed in memory and matched there. No query needs the write lock.

The text index: ids and names become one token each (a hash), so that they are neither split nor confused with words. In
texts, each character of a script without spaces (Chinese, Japanese, Thai, ...) is a word of its own, and emoji become
words: SQLite's tokenizer would treat the former as one long word, and drop the latter. Queries go through the same
functions as the texts they search.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, get_args

from ava_audit.database import ALL_ROWS, IndexQuery, IndexRow
from ava_audit.entries import ENTRY_COLUMNS, LINE_COLUMNS, Entry, entry_of, limit_content, mirror_line
from ava_audit.errors import BadQuery
from ava_audit.events import FACTS, WHOLE, Severity, SubagentComplete, ToolResult
from ava_audit.projections import index_words
from ava_audit.store.schema import open_in_memory
from ava_audit.view import FOREVER_US, Readable, View, placeholders

if TYPE_CHECKING:
    from ava_audit.store.store import Store


SLICE = 500
SLICE_CHARS = 8_000_000
SEARCH_S = 30.0
"""A longer search has met a stuck disk: the slowest measured one takes well under a second."""
FEW = 200
"""Entries of a page that is read at once, without a thread."""
MOST_COMPARED = 50_000
"""Entries whose times are compared to spare a search; that takes ten milliseconds."""
ALWAYS = "1 = 1"
NEAR = 400
"""Newest entries that are compared one by one where the text index is not in the order of the log."""
BLOCK = 16_384
"""Of how many entries before those the index is asked first."""
RARE = 5
"""Entries found among those, up to which the index is asked for all the rest."""


@dataclass(frozen=True)
class LogQuery:
    """A query of the log. An entry must meet all conditions; an empty tuple sets none."""

    agents: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    # runs that an entry belongs to, including their proposals, decisions and fetched results
    runs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # event types by name in any case, or the short names of `SHORT_TYPES`
    without: tuple[str, ...] = ()  # event types to leave out, by their exact names
    since_us: int | None = None  # only entries at or after this time (microseconds UTC)
    until_us: int | None = None  # only entries before this time
    search: str | None = None  # words that must all be in the entry; words in double quotes must be adjacent
    level: Severity | None = None  # at least this severity
    limit: int = 50
    before_seq: int | None = None  # only older entries: the cursor of the previous page
    after_seq: int | None = None  # only newer entries
    # no entry newer than this one: the `upto` of the first page, so that pages neither skip nor repeat
    upto_seq: int | None = None


@dataclass(frozen=True)
class EntryPage:
    """One page of results."""

    entries: tuple[Entry, ...]
    next: int | None  # the `before_seq` of the next (older) page, None on the last page
    upto: int  # the newest `seq` of the log at this time; pass it as `upto_seq` for the next page


@dataclass(frozen=True)
class ExportSlice:
    """A slice of an export."""

    data: bytes  # whole lines of JSON
    entries: int
    upto: int  # the `seq` up to which the log was searched
    of: int  # the `seq` at which the export ends


async def search(store: Readable, query: LogQuery) -> EntryPage:
    """Return the newest entries that match. Raises BadQuery: an unknown event type; StoreUnavailable."""
    page = partial(_page, query=query, conditions=Conditions(query))
    return await store.read(page, within_s=SEARCH_S, short=query.limit <= FEW)


async def follow(store: Store, query: LogQuery) -> AsyncIterator[Entry]:
    """Yield entries that match as any process writes them, oldest first. Raises as `search`."""
    conditions = Conditions(query)
    seen = store.head if query.after_seq is None else query.after_seq
    while True:
        head = await store.wait_for_entry_after(seen)
        while seen < head:
            upto = min(head, seen + SLICE)
            for row in await store.read(partial(_new_rows, conditions=conditions, after=seen, upto=upto)):
                yield entry_of(row)
            seen = upto


async def export_lines(store: Store, query: LogQuery) -> AsyncGenerator[ExportSlice]:
    """Yield everything that matches a query, oldest first, as mirror lines; `limit` and cursors are ignored.

    The export ends at the current end of the log. Each slice is read in a transaction of its own, so that a long export
    blocks nobody, and the write-ahead log can be emptied. Meanwhile, entries change only by erasure. Raises BadQuery:
    the query names an unknown event type; StoreUnavailable: the log cannot be read.
    """
    conditions = Conditions(query)
    low, high = await store.read(partial(_export_bounds, query=query), within_s=SEARCH_S)
    while low < high and not conditions.impossible:
        lines = await store.read(partial(_export_slice, conditions=conditions, low=low, high=high), within_s=SEARCH_S)
        yield lines
        low = lines.upto


class Conditions:
    """A query as SQL conditions and as queries of the text index.

    `where` are conditions on `events`; `rest` are those of them that are compared even with the index. `text_query` is
    type, text and severity alone, for an index of entries that meet `where`. `one_run`: the query asks for all entries
    of one run that meet `where`.
    """

    def __init__(self, query: LogQuery) -> None:
        types = type_filter(query.types)
        # A run belongs to one user and one session: asking the index for these too would only cost time.
        runs_only = _asks_for_runs(query)
        ids = query
        if runs_only:
            ids = replace(query, users=(), sessions=())
        parts = _conditions_of(query)
        self.where, self.values = _join_conditions(parts)
        # The index knows the agents. Who may read an entry is compared as it is stored: an index may have hashes.
        self.rest, self.rest_values = _join_conditions(parts[1:] if query.agents else parts)
        text = match_expression(types=types, level=query.level, search=query.search)
        self.impossible = text.impossible
        # All entries of one run are found in order by the log's own index of agents, in half the time.
        self.one_run = runs_only and len(query.agents) == 1 and text.expression is None
        self.text_query = text.expression
        self.index_query = match_expression(
            agents=ids.agents, users=ids.users, sessions=ids.sessions, types=types, level=query.level,
            search=query.search,
)  # fmt: skip


def _asks_for_runs(query: LogQuery) -> bool:
    """Tell whether a query names agents, and all of them are runs."""
    return bool(query.agents) and all(agent.startswith("S-") for agent in query.agents)


def _conditions_of(query: LogQuery) -> list[tuple[str, Sequence[Any]]]:
    """Return the SQL conditions of a query, each with its values; those on the agents come first."""
    conditions: list[tuple[str, Sequence[Any]]] = []
    for column, ids in (
        ("agent_id", query.agents),
        ("user_id", query.users),
        ("session_id", query.sessions),
        ("run_id", query.runs),
    ):
        if ids:
            # No id has a lone surrogate or NUL, which databases do not accept: the replacement matches nothing.
            values = [each.encode("utf-8", "replace").decode().replace("\0", "?") for each in ids]
            conditions.append((f"{column} IN ({placeholders(values)})", values))
    if query.without:
        conditions.append((f"type NOT IN ({placeholders(query.without)})", query.without))
    if query.since_us is not None:
        conditions.append(("+ts_us >= ?", [query.since_us]))
    if query.until_us is not None:
        conditions.append(("+ts_us < ?", [query.until_us]))
    return conditions


def _join_conditions(parts: Sequence[tuple[str, Sequence[Any]]]) -> tuple[str, list[Any]]:
    """Return conditions as one, and the values of all their parameters."""
    conditions = [ALWAYS]
    values: list[Any] = []
    for condition, condition_values in parts:
        conditions.append(condition)
        values += condition_values
    return " AND ".join(conditions), values


def _page(view: View, *, query: LogQuery, conditions: Conditions) -> EntryPage:
    head, indexed = view.head(), view.progress("words")
    if conditions.impossible:
        return EntryPage((), None, head)
    low, high = _bounds(view, query, head)
    limit = query.limit + 1  # one more tells whether there is a next page
    rows: list[Any] = []
    for after, upto in _spans(view, query, low, high):
        if upto > indexed:
            rows += _tail(view, conditions, max(after, indexed), upto, limit - len(rows))
        if len(rows) < limit:
            rows += _indexed(view, conditions, after, min(upto, indexed), limit - len(rows))
        if len(rows) == limit:
            break
    entries = tuple(map(entry_of, rows[: query.limit]))
    next_before = None
    if entries and len(rows) > query.limit:
        next_before = entries[-1].seq
    return EntryPage(entries, next_before, head)


def _indexed(view: View, conditions: Conditions, low: int, high: int, limit: int) -> list[Any]:
    """Return the newest matching entries of the text index.

    An index that is not in the order of the log reads all entries with a word before it knows the newest, and a
    database cannot know how rare a word is. So a frequent word is found among the newest entries; then the index is
    searched in ever longer ranges, and in everything once it finds little.
    """
    # An index in the log's order needs no ranges, the entries of one run are few, and without words there is no index.
    if view.words_in_order or conditions.one_run or not conditions.index_query:
        return list(_select(view, conditions, low, high, limit, use_index=not conditions.one_run))
    start = max(low, high - NEAR)
    rows = list(_select(view, conditions, start, high, limit, use_index=True))
    size = BLOCK
    while start > low and len(rows) < limit:
        high = start
        start = max(low, high - size)
        more_rows = list(_select_by_index(view, conditions, start, high, limit - len(rows)))
        rows += more_rows
        is_rare = len(more_rows) <= RARE
        if is_rare:
            size = high  # everything that is left
        else:
            size *= 2
    return rows


def _select_by_index(view: View, conditions: Conditions, low: int, high: int, limit: int) -> Iterator[Any]:
    """Yield the newest matching entries of a range, after the index has found all in it."""
    assert conditions.index_query is not None
    key = view.words_key
    condition, values = view.words_condition(conditions.index_query, (low, high))
    matches = f"SELECT {key} AS seq FROM words WHERE {condition} AND {key} > ? AND {key} <= ?"  # noqa: S608
    match_values = [*values, low, high]
    # Without "+ 0", Postgres may read all entries in their order until it has found enough.
    if conditions.rest == ALWAYS:
        newest = f"{matches} ORDER BY {key} + 0 DESC LIMIT ?"
        sql = f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq IN ({newest}) ORDER BY seq DESC"  # noqa: S608
        return view.select(sql, *match_values, limit)
    sql = (
        f"SELECT {ENTRY_COLUMNS} FROM events WHERE seq IN ({matches}) AND {conditions.rest}"  # noqa: S608
        " ORDER BY seq + 0 DESC LIMIT ?"
    )
    return view.select(sql, *match_values, *conditions.rest_values, limit)


def _bounds(view: View, query: LogQuery, head: int) -> tuple[int, int]:
    """Return which entries a query can match: those after the first `seq`, up to the second."""
    high = head
    if query.upto_seq is not None:
        high = min(high, query.upto_seq)
    if query.before_seq is not None:
        high = min(high, query.before_seq - 1)
    low = query.after_seq or 0
    if _asks_for_runs(query):
        # A run's entries are close together: the rest of the index need not be searched.
        firsts, lasts = zip(*map(view.span, query.agents), strict=True)
        low = max(low, min(firsts) - 1)
        high = min(high, max(lasts))
    return low, high


def _spans(view: View, query: LogQuery, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of `seq` in which entries of the query's time can be, the newest first.

    A range `(low, high)` has the entries after `low`, up to and including `high`. If a clock was set back, time and
    `seq` disagree: entries of the query's time can also be before the range that a correct clock gives. With `until_us`
    that range is found from the times of all entries, so there is only one.
    """
    if query.since_us is None:
        yield low, high
        return
    if query.until_us is not None:
        first, last = view.seq_bounds(query.since_us, query.until_us)
        yield max(low, first - 1), min(high, last)
        return
    row = next(view.select(_FIRST, query.since_us), None)
    if row is None:
        return
    first = int(row[0])
    yield max(low, first - 1), high
    # From here on only if the caller has not found enough entries above. With many entries since then, searching the
    # earlier ones costs less than asking whether one of them fits.
    has_many = high - first > MOST_COMPARED
    if has_many or next(view.select(_EARLIER, query.since_us, first), None) is not None:
        yield low, min(first - 1, high)


_FIRST = "SELECT seq FROM events WHERE ts_us >= ? ORDER BY ts_us LIMIT 1"
_EARLIER = "SELECT 1 FROM events WHERE ts_us >= ? AND +seq < ? LIMIT 1"


def _export_bounds(view: View, query: LogQuery) -> tuple[int, int]:
    low, high = _bounds(view, query, view.head())
    if query.since_us is not None:
        until_us = FOREVER_US if query.until_us is None else query.until_us
        first, last = view.seq_bounds(query.since_us, until_us)
        low, high = max(low, first - 1), min(high, last)
    return low, high


def _select(
    view: View,
    conditions: Conditions,
    low: int,
    high: int,
    limit: int,
    *,
    columns: str = ENTRY_COLUMNS,
    oldest_first: bool = False,
    use_index: bool = False,
) -> Iterator[Any]:
    """Yield the rows after `low`, up to `high`, that meet the conditions; those on the text only with `use_index`."""
    order = "ASC" if oldest_first else "DESC"
    if use_index and conditions.index_query:
        key = view.words_key
        matching, values = view.words_condition(conditions.index_query)
        # CROSS JOIN keeps the index as the outer loop, which returns rows in the right order.
        sql = (
            f"SELECT {columns} FROM words CROSS JOIN events ON events.seq = {key}"  # noqa: S608
            f" WHERE {matching} AND {key} > ? AND {key} <= ? AND {conditions.where}"
            f" ORDER BY {key} {order} LIMIT ?"
        )
        return view.stream(sql, *values, low, high, *conditions.values, limit)
    sql = (
        f"SELECT {columns} FROM events WHERE {conditions.where} AND events.seq > ? AND events.seq <= ?"  # noqa: S608
        f" ORDER BY events.seq {order} LIMIT ?"
    )
    return view.stream(sql, *conditions.values, low, high, limit)


def _tail(view: View, conditions: Conditions, low: int, high: int, limit: int) -> list[Any]:
    """Return the newest matching entries that the index does not have yet."""
    matches: list[Any] = []
    while len(matches) < limit:
        rows = list(_select(view, conditions, low, high, SLICE))
        matches += filter_rows(rows, conditions.text_query)
        if len(rows) < SLICE:
            break
        high = rows[-1][0] - 1
    return matches[:limit]


def _new_rows(view: View, *, conditions: Conditions, after: int, upto: int) -> list[Any]:
    if conditions.impossible:
        return []
    rows = list(_select(view, conditions, after, upto, ALL_ROWS, oldest_first=True))
    return filter_rows(rows, conditions.text_query)


def _export_slice(view: View, *, conditions: Conditions, low: int, high: int) -> ExportSlice:
    indexed = view.progress("words")
    use_index = bool(conditions.index_query) and low < indexed
    upto = high
    if use_index:
        upto = min(indexed, high)
    matches = _select(view, conditions, low, upto, SLICE, columns=LINE_COLUMNS, oldest_first=True, use_index=use_index)
    rows = list(limit_content(matches, SLICE_CHARS))
    reached = rows[-1][0] if rows else upto
    if not use_index:
        rows = filter_rows(rows, conditions.text_query)
    return ExportSlice(b"".join(map(mirror_line, rows)), len(rows), reached, high)


def filter_rows(rows: Sequence[Any], text_query: str | None) -> list[Any]:
    """Return the rows that a query finds in an index of these rows alone, in their order."""
    if text_query is None or not rows:
        return list(rows)
    with contextlib.closing(open_in_memory()) as db:
        index_rows = [index_row(entry_of(row)) for row in sorted(rows)]
        index_words(db, index_rows, after=0, erased=())
        matches = {seq for (seq,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", (text_query,))}
    return [row for row in rows if row[0] in matches]


SHORT_TYPES: dict[str, tuple[str, ...]] = {
    "tool": ("ToolCall", "ToolResult"),
    "cost": ("CostReserved", "CostUpdate"),
    "thinking": ("ExtendedThinking",),
    "spawn": ("SpawnProposed", "SpawnDecided", "SubagentSpawn"),
    "complete": ("SubagentComplete", "RunEnded"),
    "message": ("UserMessage", "AssistantMessage"),
    "session": ("SessionStart", "SessionEnd"),
}
"""Short names of event types. `error` is one more, but not a list of types."""
_LEVELS: tuple[str, ...] = get_args(Severity)
_FAILED = "failed"

_SINGLE_WORDS = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u30ff\u3130-\u318f\u31a0-\u9fff"
    "\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff]"
)
"""Characters of Thai, Lao, Burmese, Khmer, Chinese, Japanese, Yi and Korean."""
_SYMBOLS = "[\u2190-\u2bff\U00010000-\U0010ffff]"
"""Symbols, and all characters that SQLite's tokenizer may not know."""
_DROPPED = "[\x00\ud800-\udfff\ufe00-\ufe0f]"
_WORD_CHARS = re.compile("[0-9A-Za-z\u00e0-\u00f6\u0430-\u044f]")
"""Characters that are parts of words for every version of the tokenizer."""
_SEPARATORS = re.compile(r"[\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+")
"""ASCII characters that are in no word: a phrase can be cut there."""
_WORD_ENDS = frozenset({"Mc", "Mn", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Zs"})
LONGEST_PHRASE = 32
_LONG_WORD = 100
_PHRASE = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class TypeFilter:
    """Requested event types; with `failed`, also everything that counts as an error."""

    names: frozenset[str] = frozenset()
    failed: bool = False


def type_filter(names: Iterable[str]) -> TypeFilter:
    """Return the filter for type names: exact ones in any case, or short ones. Raises BadQuery if a name is unknown."""
    exact = {name.lower(): name for name in FACTS}
    types: set[str] = set()
    failed = False
    for name in names:
        low = name.strip().lower()
        if low == "error":
            failed = True
        elif low in SHORT_TYPES:
            types.update(SHORT_TYPES[low])
        elif low in exact:
            types.add(exact[low])
        else:
            near = difflib.get_close_matches(low, ("error", *SHORT_TYPES, *exact), n=1)
            hint = f"did you mean {exact.get(near[0], near[0])}? " if near else ""
            raise BadQuery(
                f"no event type {name[:60]!r}; {hint}short names are error, {', '.join(SHORT_TYPES)}; "
                f"exact ones are {', '.join(FACTS)}"
            )
    return TypeFilter(frozenset(types), failed)


def index_row(entry: Entry) -> IndexRow:
    marks = [_token(entry.type)]
    text = ""
    if entry.fact is not None:
        marks.append(f"level{entry.fact.severity}")
        if is_error(entry):
            marks.append(_FAILED)
        text = separate_words(entry.fact.search_text())
    who = entry.who
    return entry.seq, _token(who.agent_id), _token(who.session_id), _token(who.user_id), " ".join(marks), text


def is_error(entry: Entry) -> bool:
    """Tell whether an entry is an `ErrorOccurred`, a failed `ToolResult`, or an ending that went wrong.

    A run that found nothing (`no_answer`) or was cancelled did not.
    """
    fact = entry.fact
    if isinstance(fact, ToolResult):
        return not fact.success
    if isinstance(fact, SubagentComplete):
        return fact.status not in WHOLE and fact.status != "cancelled"
    return entry.type == "ErrorOccurred"


def match_expression(
    *,
    agents: Sequence[str] = (),
    users: Sequence[str] = (),
    sessions: Sequence[str] = (),
    types: TypeFilter | None = None,
    level: Severity | None = None,
    search: str | None = None,
) -> IndexQuery:
    """Return the query of the index; any text is safe as `search`."""
    filters: list[tuple[str, tuple[str, ...]]] = []
    for column, values in (("agent", agents), ("user", users), ("session", sessions)):
        if values:
            filters.append(_any_of(column, map(_token, values)))
    if types is not None:
        marks = [_token(name) for name in sorted(types.names)]
        if types.failed:
            marks.append(_FAILED)
        if marks:
            filters.append(_any_of("marks", marks))
    if level is not None and level != _LEVELS[0]:
        filters.append(_any_of("marks", [f"level{name}" for name in _LEVELS[_LEVELS.index(level) :]]))
    phrases: tuple[str, ...] = ()
    if search is not None and search.strip():
        phrases = tuple(_phrases(search))
        if not phrases:
            return IndexQuery(impossible=True)
    return IndexQuery(tuple(filters), phrases)


def types_query(type_name: str) -> IndexQuery:
    """Return the query for all entries of one type, by its exact name, also of one that this version does not know."""
    return IndexQuery((("marks", (_token(type_name),)),))


def separate_words(text: str) -> str:
    """Return a text for the index, with spaces around characters that are words by themselves."""
    if text.isascii() and "\x00" not in text:
        return text
    special, dropped, single_words, symbols = _patterns()
    if not special.search(text):
        return text
    text = dropped.sub(" ", text)
    text = single_words.sub(r" \g<0> ", text)
    return symbols.sub(lambda symbol: f" u{ord(symbol[0]):x} ", text)


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    """Return the patterns of all these characters, and of each kind; compiling them takes a while."""
    every = f"{_SINGLE_WORDS}{_SYMBOLS}{_DROPPED}".replace("][", "")
    return tuple(re.compile(chars) for chars in (every, _DROPPED, _SINGLE_WORDS, _SYMBOLS))


def _phrases(search: str) -> list[str]:
    """Return the phrases to search for, without those that have no word."""
    phrases: dict[str, None] = {}
    for quoted, word in _PHRASE.findall(search):
        text = separate_words(quoted or word).replace('"', " ")
        phrases.update(dict.fromkeys(_cut_phrase(text)))
    unsure = [phrase for phrase in phrases if not _WORD_CHARS.search(phrase)]
    if unsure:
        with_words = _with_words(unsure)
        for phrase in unsure:
            if phrase not in with_words:
                del phrases[phrase]
    return list(phrases)


def _cut_phrase(text: str) -> Iterator[str]:
    """Yield parts of at most `LONGEST_PHRASE` words: a longer phrase searches too long. The order is not checked."""
    words: list[str] = []
    for word in _SEPARATORS.split(text):
        words += _cut_word(word)
    for start in range(0, len(words), LONGEST_PHRASE):
        part = " ".join(words[start : start + LONGEST_PHRASE]).strip()
        if part:
            yield part


def _cut_word(word: str) -> list[str]:
    """Return a long word cut where every tokenizer ends a word, e.g. at the vowel signs of Indic scripts."""
    if len(word) <= _LONG_WORD:
        return [word]
    category = unicodedata.ucd_3_2_0.category  # every tokenizer knows the categories of this old version
    chars: list[str] = []
    for char in word:
        is_combining_mark = "\u0300" <= char <= "\u036f"
        ends_word = category(char) in _WORD_ENDS and not is_combining_mark
        chars.append(" " if ends_word else char)
    return "".join(chars).split()


def _with_words(phrases: Sequence[str]) -> set[str]:
    """Return the phrases in which this version of SQLite's tokenizer finds a word; one without matches nothing."""
    with contextlib.closing(open_in_memory()) as db:
        numbered = list(enumerate(phrases, 1))
        index_words(db, [(number, "x", "x", "x", "x", phrase) for number, phrase in numbered], after=0, erased=())
        sql = "SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?"
        with_words: set[str] = set()
        for number, phrase in numbered:
            if db.execute(sql, (f'text : "{phrase}"', number)).fetchone():
                with_words.add(phrase)
        return with_words


def _any_of(column: str, tokens: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    return column, tuple(dict.fromkeys(tokens))


@lru_cache(maxsize=4_096)
def _token(value: str) -> str:
    return "x" + hashlib.blake2s(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
