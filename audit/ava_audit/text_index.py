"""The text index: the tokens stored for an entry, and queries of them.

Ids and names become one token each (a hash), so that they are neither split nor confused with words. In texts, each
character of a script without spaces (Chinese, Japanese, Thai, ...) is a word of its own, and emoji become words:
SQLite's tokenizer would treat the former as one long word, and drop the latter. Queries go through the same functions
as the texts they search.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import get_args

from ava_audit.database import IndexQuery, IndexRow
from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.events import FACTS, Severity, SubagentComplete, ToolResult
from ava_audit.projections import index_words
from ava_audit.store.schema import open_in_memory

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
    """Return the filter for type names: exact ones in any case, or short ones. Raises BadQuery: a name is unknown."""
    exact = {name.lower(): name for name in FACTS}
    types: set[str] = set()
    failed = False
    for name in names:
        wanted = name.strip().lower()
        if wanted == "error":
            failed = True
        elif wanted in SHORT_TYPES:
            types.update(SHORT_TYPES[wanted])
        elif wanted in exact:
            types.add(exact[wanted])
        else:
            near = difflib.get_close_matches(wanted, ("error", *SHORT_TYPES, *exact), n=1)
            hint = f"did you mean {exact.get(near[0], near[0])}? " if near else ""
            raise BadQuery(
                f"no event type {name[:60]!r}; {hint}short names are error, {', '.join(SHORT_TYPES)}; "
                f"exact ones are {', '.join(FACTS)}"
            )
    return TypeFilter(frozenset(types), failed)


def index_row(entry: Entry) -> IndexRow:
    marks, text = [_token(entry.type)], ""
    if entry.fact is not None:
        marks.append(f"level{entry.fact.severity}")
        if is_error(entry):
            marks.append(_FAILED)
        text = separate_words(entry.fact.search_text())
    who = entry.who
    return entry.seq, _token(who.agent_id), _token(who.session_id), _token(who.user_id), " ".join(marks), text


def is_error(entry: Entry) -> bool:
    """Tell whether an entry is an `ErrorOccurred`, a failed `ToolResult`, or an ending but success or cancelled."""
    fact = entry.fact
    if isinstance(fact, ToolResult):
        return not fact.success
    if isinstance(fact, SubagentComplete):
        return fact.status not in ("success", "cancelled")
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
    for column, wanted in (("agent", agents), ("user", users), ("session", sessions)):
        if wanted:
            filters.append(_any_of(column, map(_token, wanted)))
    if types is not None and (types.names or types.failed):
        filters.append(_any_of("marks", [*map(_token, sorted(types.names)), *([_FAILED] if types.failed else [])]))
    if level is not None and level != _LEVELS[0]:
        filters.append(_any_of("marks", [f"level{name}" for name in _LEVELS[_LEVELS.index(level) :]]))
    phrases: tuple[str, ...] = ()
    if search is not None and search.strip():
        phrases = tuple(_phrases(search))
        if not phrases:
            return IndexQuery(impossible=True)
    return IndexQuery(tuple(filters), phrases)


def separate_words(text: str) -> str:
    """Return a text for the index, with spaces around characters that are words by themselves."""
    if text.isascii() and "\x00" not in text:
        return text
    special, dropped, single_words, symbols = _patterns()
    if not special.search(text):
        return text
    text = dropped.sub(" ", text)
    text = single_words.sub(r" \g<0> ", text)
    return symbols.sub(lambda found: f" u{ord(found[0]):x} ", text)


@cache
def _patterns() -> Sequence[re.Pattern[str]]:
    """Return the patterns of all these characters, and of each kind; compiling them takes a while."""
    every = f"{_SINGLE_WORDS}{_SYMBOLS}{_DROPPED}".replace("][", "")
    return tuple(re.compile(chars) for chars in (every, _DROPPED, _SINGLE_WORDS, _SYMBOLS))


def _phrases(search: str) -> list[str]:
    texts = (separate_words(quoted or word).replace('"', " ") for quoted, word in _PHRASE.findall(search))
    phrases = dict.fromkeys(part for text in texts for part in _cut_phrase(text))
    unsure = [phrase for phrase in phrases if not _WORD_CHARS.search(phrase)]
    wordless = set(unsure) - _with_words(unsure) if unsure else set[str]()
    return [phrase for phrase in phrases if phrase not in wordless]


def _cut_phrase(text: str) -> Iterator[str]:
    """Yield parts of at most `LONGEST_PHRASE` words: a longer phrase searches too long. The order is not checked."""
    words = [part for word in _SEPARATORS.split(text) for part in _cut_word(word)]
    for start in range(0, len(words), LONGEST_PHRASE):
        part = " ".join(words[start : start + LONGEST_PHRASE]).strip()
        if part:
            yield part


def _cut_word(word: str) -> list[str]:
    """Return a long word cut where every tokenizer ends a word, e.g. at the vowel signs of Indic scripts."""
    if len(word) <= _LONG_WORD:
        return [word]
    category = unicodedata.ucd_3_2_0.category  # every tokenizer knows the categories of this old version
    return "".join(
        " " if category(char) in _WORD_ENDS and not "\u0300" <= char <= "\u036f" else char for char in word
    ).split()


def _with_words(phrases: Sequence[str]) -> set[str]:
    """Return the phrases in which this version of SQLite's tokenizer finds a word; one without matches nothing."""
    with contextlib.closing(open_in_memory()) as db:
        numbered = list(enumerate(phrases, 1))
        index_words(db, [(number, "x", "x", "x", "x", phrase) for number, phrase in numbered], after=0, erased=())
        sql = "SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?"
        return {phrase for number, phrase in numbered if db.execute(sql, (f'text : "{phrase}"', number)).fetchone()}


def _any_of(column: str, tokens: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    return column, tuple(dict.fromkeys(tokens))


@lru_cache(maxsize=4_096)
def _token(value: str) -> str:
    return "x" + hashlib.blake2s(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
