"""What a question asks for, as its question words say: a figure, a date or a name.

These words are not among the fillers (`passages.filler_words`), which need no approval in values that runs send.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

FIGURE, DATE, NAME = "figure", "date", "name"
_ANY = "any"
_BETWEEN = "…"
_BETWEEN_CHARS = 100
"""The most characters that stand between the words of an entry."""
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_HIRAGANA = re.compile("[\u3040-\u309f]+")


class Asked(NamedTuple):
    """What a question asks, read in one language.

    Attributes:
        found: How many words of the language's entries it has; each word counts once.
        kind: FIGURE, DATE or NAME; empty where its words do not say.
        rest: The question, with blanks in place of the words of these entries.
    """

    found: int
    kind: str
    rest: str


class _Entry(NamedTuple):
    kind: str
    words: str
    first: str  # of its words
    size: int  # in words
    stays: bool
    """Whether it is only read: hiragana has no borders (`どう` stands in `ぶどう酒`), and alone is never searched."""


def asked_in(language: str, question: str) -> Asked:
    """Return what a question, in lower case, asks if it is in this language."""
    found = 0
    kind = ""
    rest = question
    for entry in _entries().get(language, ()):
        if entry.first not in rest:  # most patterns are never compiled
            continue
        match = _pattern(entry.words).search(rest)
        if match is None:
            continue
        found += entry.size
        if not kind and entry.kind != _ANY:
            kind = entry.kind
        if not entry.stays:
            rest = _without_groups(rest, match)
    return Asked(found, kind, rest)


def entries_of_list() -> list[tuple[str, str, str]]:
    """Return the list: each entry's language, kind and words."""
    text = files("ava_roles.texts").joinpath("question_words.txt").read_text(encoding="utf-8")
    entries: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        heading, _, words = line.partition(":")
        language, kind = heading.split()
        entries += [(language, kind, each.strip()) for each in words.split(",")]
    return entries


@cache
def _entries() -> dict[str, list[_Entry]]:
    """Return the entries by language, the longest first."""
    by_language: dict[str, list[_Entry]] = {}
    longest_first = sorted(entries_of_list(), key=lambda entry: -len(entry[2]))
    for language, kind, words in longest_first:
        single_words = words.replace(_BETWEEN, " ").split()
        stays = _HIRAGANA.fullmatch(words) is not None
        entry = _Entry(kind, words, single_words[0], len(single_words), stays)
        by_language.setdefault(language, []).append(entry)
    return by_language


@cache
def _pattern(words: str) -> re.Pattern[str]:
    """Return a pattern with a group for each row of words without a gap."""
    if _UNSPACED.search(words):
        return re.compile(f"(?<!任)({words})")  # `任何时候` is any time
    rows = [r"\s+".join(map(re.escape, row.split())) for row in words.split(_BETWEEN)]
    between = rf"\b[^.!?]{{1,{_BETWEEN_CHARS}}}?\b"
    return re.compile(rf"\b{between.join(f'({row})' for row in rows)}\b")


def _without_groups(text: str, match: re.Match[str]) -> str:
    for group in range(1, (match.lastindex or 0) + 1):
        start, end = match.span(group)
        text = text[:start] + " " * (end - start) + text[end:]
    return text
