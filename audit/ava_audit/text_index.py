"""The words of the text index: what is put in for an entry, and how a question to it is spelled.

Ids and names become one token each (a hash), so that they neither fall apart nor meet by chance. In texts,
each character of a script without spaces (Chinese, Japanese, Thai, ...) is a word of its own, and emoji
become words: SQLite's tokenizer would take the former as one long word and drop the latter. A question is
spelled by the same function as what it looks for.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from ava_audit.entries import Entry
from ava_audit.errors import BadQuery
from ava_audit.events import FACTS, Severity, SubagentComplete, ToolResult
from ava_audit.projections import IndexRow, index_words
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
"""Short names of event types; `error` is one more, and no list of types."""
_LEVELS: tuple[str, ...] = get_args(Severity)
_FAILED = "failed"

_ALONE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u30ff\u3130-\u318f\u31a0-\u9fff"
    "\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese, Yi and Korean."""
_NAMED = re.compile("[\u2190-\u2bff\U00010000-\U0010ffff]")
"""Symbols, and everything beyond the characters that SQLite's tokenizer surely knows."""
_DROPPED = re.compile("[\x00\ud800-\udfff\ufe00-\ufe0f]")
_SURE = re.compile("[0-9A-Za-z\u00e0-\u00f6\u0430-\u044f]")
"""Characters that are words, or parts of words, to every tokenizer."""
_BETWEEN = re.compile(r"[\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+")
"""ASCII that is in no word: where a phrase can be cut."""
_ENDING = frozenset({"Mc", "Mn", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Zs"})
LONGEST_PHRASE = 32
_LONG = 100
_PHRASE = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class TypeFilter:
    """Which event types are asked for; with `failed`, also whatever counts as an error."""

    names: frozenset[str] = frozenset()
    failed: bool = False


@dataclass(frozen=True)
class IndexQuery:
    """A question to the index: None asks nothing; an `impossible` one is fulfilled by no entry."""

    expression: str | None
    impossible: bool = False


def type_filter(names: Iterable[str]) -> TypeFilter:
    """Return the filter that a person means by type names: exact ones in any case, or short ones.

    Raises:
        BadQuery: There is no such type.
    """
    exact = {name.lower(): name for name in FACTS}
    types: set[str] = set()
    failed = False
    for name in names:
        asked = name.strip().lower()
        if asked == "error":
            failed = True
        elif asked in SHORT_TYPES:
            types.update(SHORT_TYPES[asked])
        elif asked in exact:
            types.add(exact[asked])
        else:
            near = difflib.get_close_matches(asked, ("error", *SHORT_TYPES, *exact), n=1)
            hint = f"did you mean {exact.get(near[0], near[0])}? " if near else ""
            raise BadQuery(
                f"no event type {name[:60]!r}; {hint}short names are error, {', '.join(SHORT_TYPES)}; "
                f"exact ones are {', '.join(FACTS)}"
            )
    return TypeFilter(frozenset(types), failed)


def index_row(entry: Entry) -> IndexRow:
    """Return what the index keeps of an entry."""
    marks = [_token(entry.type)]
    if entry.fact is not None:
        marks.append(f"level{entry.fact.severity}")
        if is_error(entry):
            marks.append(_FAILED)
    who = entry.who
    text = "" if entry.fact is None else separate_words(entry.fact.search_text())
    return (
        entry.seq,
        _token(who.agent_id),
        _token(who.session_id),
        _token(who.user_id),
        " ".join(marks),
        text,
    )


def is_error(entry: Entry) -> bool:
    """Tell whether the short type `error` means an entry.

    That is an `ErrorOccurred`, a failed `ToolResult`, and any ending other than success or cancelled.
    """
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
    """Return the question to the index; any text is safe as `search`."""
    parts: list[str] = []
    for column, wanted in (("agent", agents), ("user", users), ("session", sessions)):
        if wanted:
            parts.append(_any(column, map(_token, wanted)))
    if types is not None and (types.names or types.failed):
        parts.append(_any("marks", [*map(_token, sorted(types.names)), *([_FAILED] if types.failed else [])]))
    if level is not None and level != _LEVELS[0]:
        parts.append(_any("marks", [f"level{name}" for name in _LEVELS[_LEVELS.index(level) :]]))
    if search is not None and search.strip():
        phrases = _phrases(search)
        if not phrases:
            return IndexQuery(None, impossible=True)
        parts.append(f"text : ({' AND '.join(phrases)})")
    return IndexQuery(" AND ".join(parts) if parts else None)


def separate_words(text: str) -> str:
    """Return a text as the index takes it: characters that are words by themselves stand alone."""
    if text.isascii() and "\x00" not in text:
        return text
    text = _DROPPED.sub(" ", text)
    text = _ALONE.sub(r" \g<0> ", text)
    return _NAMED.sub(lambda found: f" u{ord(found[0]):x} ", text)


def _phrases(search: str) -> list[str]:
    """Return the words and quoted phrases of a search, each as a phrase of the index, once each."""
    found = (separate_words(quoted or word).replace('"', " ") for quoted, word in _PHRASE.findall(search))
    pieces = dict.fromkeys(piece for phrase in found for piece in _pieces(phrase))
    odd = [piece for piece in pieces if not _SURE.search(piece)]
    wordless = set(odd) - _with_words(odd) if odd else set[str]()
    return [f'"{piece}"' for piece in pieces if piece not in wordless]


def _pieces(phrase: str) -> Iterator[str]:
    """Yield a phrase in pieces of at most `LONGEST_PHRASE` words: looking for a longer one takes too long.

    That they follow on each other is not asked; an entry that has the phrase has them all.
    """
    words = [part for word in _BETWEEN.split(phrase) for part in _parts(word)]
    for start in range(0, len(words), LONGEST_PHRASE):
        piece = " ".join(words[start : start + LONGEST_PHRASE]).strip()
        if piece:
            yield piece


def _parts(word: str) -> list[str]:
    """Return a long word cut where every tokenizer ends one: at the vowel signs of India's scripts, say."""
    if len(word) <= _LONG:
        return [word]
    category = unicodedata.ucd_3_2_0.category  # the old ones are in each tokenizer's tables
    return "".join(
        " " if category(char) in _ENDING and not "\u0300" <= char <= "\u036f" else char for char in word
    ).split()


def _with_words(pieces: Sequence[str]) -> set[str]:
    """Return those in which SQLite's tokenizer finds a word, which only it can tell: a phrase without matches nothing.

    Its tables of characters are those of its version, and not Python's.
    """
    with contextlib.closing(open_in_memory()) as db:
        rows = [(number, "x", "x", "x", "x", piece) for number, piece in enumerate(pieces, 1)]
        index_words(db, rows, after=0, erased=())
        asked = "SELECT 1 FROM words WHERE words MATCH ? AND rowid = ?"
        return {
            piece
            for number, piece in enumerate(pieces, 1)
            if db.execute(asked, (f'text : "{piece}"', number)).fetchone()
        }


def _any(column: str, tokens: Iterable[str]) -> str:
    return f"{column} : ({' OR '.join(dict.fromkeys(tokens))})"


@lru_cache(maxsize=4_096)
def _token(value: str) -> str:
    """Return the one token that stands for an id or a name."""
    return "x" + hashlib.blake2s(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
