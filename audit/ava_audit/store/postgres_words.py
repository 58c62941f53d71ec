"""The words of a text for the index in Postgres: SQLite's own tokenizer makes them, so that both find the same."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable
from functools import lru_cache

from ava_audit.database import IndexQuery, IndexRow

_PARTS = re.compile("[0-9A-Za-z\x80-\U0010ffff]+")
"""Parts of a text between ASCII characters that are in no word: each is split by itself."""
BLOCK_BITS, MOST_BLOCKS = 14, 16
"""Each 2**14 entries are a block, and its number is a key of theirs: so the index finds the newest entries alone. A
condition names at most so many blocks."""
KNOWN_PARTS, LONGEST_PART = 20_000, 100
"""How many parts that are not ASCII are remembered, and up to which length."""


class Tokenizer:
    """Splits texts into words as the embedded database's text index does. One thread at a time may use it."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {}
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.execute(
            "CREATE VIRTUAL TABLE split USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2')"
        )
        self._db.execute("CREATE VIRTUAL TABLE found USING fts5vocab ('split', 'instance')")

    def words(self, text: str) -> list[str]:
        """Return the words of a text in their order."""
        words: list[str] = []
        for part in _PARTS.findall(text):
            if part.isascii():  # every tokenizer lets only these be parts of words
                words.append(part.lower())
            else:
                words += self._split(part)
        return words

    def _split(self, part: str) -> list[str]:
        found = self._known.get(part)
        if found is None:
            self._db.execute("BEGIN")
            try:
                self._db.execute("INSERT INTO split (rowid, text) VALUES (1, ?)", (part,))
                found = [word for (word,) in self._db.execute("SELECT term FROM found ORDER BY offset")]
            finally:
                self._db.execute("ROLLBACK")
            if len(self._known) >= KNOWN_PARTS:
                self._known.clear()
            if len(part) <= LONGEST_PART:
                self._known[part] = found
        return found

    def close(self) -> None:
        """Close the database in memory."""
        self._db.close()


@lru_cache(maxsize=20_000)
def key_of(column: str, token: str) -> int:
    """Return the number that stands for a token of a column: a hash of 64 bits."""
    digest = hashlib.blake2b(f"{column}:{token}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def keys_of(row: IndexRow, words: Iterable[str] = ()) -> list[int]:
    """Return the keys of a row of the index, with these words as its text."""
    seq, agent, session, user, marks, _text = row
    filters = [("agent", agent), ("session", session), ("user", user), *(("marks", mark) for mark in marks.split())]
    return sorted({*(key_of(*each) for each in filters), *(key_of("text", word) for word in words), block_of(seq)})


def block_of(seq: int) -> int:
    """Return the key of an entry's block."""
    return key_of("block", str(seq >> BLOCK_BITS))


def joined(words: Iterable[str]) -> str:
    """Return words as the index stores their order: adjacent words are a part of it."""
    return f" {' '.join(words)} "


def condition(query: IndexQuery, tokenizer: Tokenizer, near: tuple[int, int] | None = None) -> tuple[str, list[object]]:
    """Return the SQL condition on `words` for a query, and its values; with `near`, for the blocks of that range."""
    phrases = [tokenizer.words(phrase) for phrase in query.phrases]
    if not all(phrases):  # a phrase without a word is nowhere
        return "1 = 0", []
    needed = {key_of("text", word) for words in phrases for word in words}
    parts: list[str] = []
    values: list[object] = []
    low, high = near or (0, -1)
    blocks = range((low + 1) >> BLOCK_BITS, (high >> BLOCK_BITS) + 1)
    if len(blocks) == 1:
        needed.add(block_of(high))
    elif 0 < len(blocks) <= MOST_BLOCKS:
        parts.append("words.keys && CAST(? AS bigint[])")
        values.append([key_of("block", str(number)) for number in blocks])
    for column, tokens in query.filters:
        keys = [key_of(column, token) for token in tokens]
        if len(keys) == 1:
            needed.update(keys)
        else:
            parts.append("words.keys && CAST(? AS bigint[])")
            values.append(keys)
    if needed:
        parts.append("words.keys @> CAST(? AS bigint[])")
        values.append(sorted(needed))
    for words in phrases:
        if len(words) > 1:
            parts.append("strpos(words.text, ?) > 0")
            values.append(joined(words))
    return " AND ".join(parts), values
