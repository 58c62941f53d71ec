"""Where in a file something like a text stands, and how that differs: for a model that misquotes it.

Every line of the file that has a word of the text in it votes for where the text would begin then, the more the rarer
the word is; the places with the most votes are compared in full. So the time depends on the length of the file once,
and not on that of the text.
"""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby

from ava_roles.tools.changes import numbered
from ava_roles.wrap import INVISIBLE

_PLACES = 3
_COMPARED = 12
_LIKE = 0.6
_BEHIND = 0.25
_LINES = 60
_TOKENS = 300
_LINE_CHARS = 400
_VOTES = 400
_SHOWN = 10
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_LOOKALIKES = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u2212", "''\"\"------")


def nearest(text: str, old: str) -> list[str]:
    """Return up to three places of a text that are like another, the likest first: each with its lines, as they are."""
    lines = text.split("\n")
    wanted = _without_blank_ends(old.split("\n"))[:_LINES]
    tokens = [_tokens(line) for line in wanted]
    whole = [token for line in tokens for token in line][:_TOKENS]
    if not whole:
        return []
    matcher: SequenceMatcher[str] = SequenceMatcher(autojunk=False)
    matcher.set_seq2(whole)
    found: list[tuple[float, int]] = []
    for start in _candidates(lines, tokens):
        here = [token for line in _window(lines, start, wanted) for token in _tokens(line)][:_TOKENS]
        matcher.set_seq1(here)
        same = sum(block.size for block in matcher.get_matching_blocks())
        like = 0.75 * same / len(whole) + 0.5 * same / (len(whole) + len(here))  # it may be a part of a long line
        if like >= _LIKE:
            found.append((like, start))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [_told(lines, start, wanted) for like, start in found[:_PLACES] if like >= found[0][0] - _BEHIND]


def _candidates(lines: Sequence[str], wanted: Sequence[Sequence[str]]) -> list[int]:
    """Return the lines at which the text may begin, none close to another."""
    stands: dict[str, list[int]] = {token: [] for line in wanted for token in line}
    for number, line in enumerate(lines):
        for token in set(_tokens(line)) & stands.keys():
            stands[token].append(number)
    votes: dict[int, float] = defaultdict(float)
    for offset, said in enumerate(wanted):
        for token in set(said) & stands.keys():
            weight = len(token) / max(1, len(stands[token]))
            for number in stands[token][:_VOTES]:
                votes[max(0, number - offset)] += weight
    chosen: list[int] = []
    apart = max(1, len(wanted) // 2)
    for start in heapq.nlargest(_COMPARED * 10, votes, key=lambda start: (votes[start], -start)):
        if len(chosen) < _COMPARED and all(abs(start - other) >= apart for other in chosen):
            chosen.append(start)
    return chosen


def _window(lines: Sequence[str], start: int, wanted: Sequence[str]) -> list[str]:
    """Return as many lines as the text has, blank ones not counted."""
    missing = sum(bool(line.strip()) for line in wanted)
    here: list[str] = []
    for line in lines[start : start + 2 * len(wanted) + 10]:
        if not missing:
            break
        here.append(line)
        missing -= bool(line.strip())
    return here


def _told(lines: Sequence[str], start: int, wanted: Sequence[str]) -> str:
    here = _window(lines, start, wanted)
    first, why = _difference(here, wanted, start)
    head = f"lines {start + 1:,} to {start + len(here):,}" if len(here) > 1 else f"line {start + 1:,}"
    begin = max(0, min(first - 3, len(here) - _SHOWN))
    shown = [numbered(" ", start + at, here[at]) for at in range(begin, min(begin + _SHOWN, len(here)))]
    if begin or len(here) > _SHOWN:
        head += f", of which {len(shown)} are shown"
    return "\n".join([f"{head}{f' ({why})' if why else ''}:", *shown])


def _difference(here: Sequence[str], wanted: Sequence[str], start: int) -> tuple[int, str]:
    """Return the first line that differs, counted from the place, and how, where that can be named."""
    if _squeezed("\n".join(here)) == _squeezed("\n".join(wanted)):
        only = "only white space differs: "
        if [bool(line.strip()) for line in here] != [bool(line.strip()) for line in wanted]:
            return 0, f"{only}blank lines, or where lines end"
    else:
        only = ""
    for at, (line, other) in enumerate(zip(here, wanted, strict=False)):
        if line != other:
            return at, only + _how(line, other, f"line {start + at + 1:,}")
    return 0, "the lines are the same: what differs is before or behind them, blank lines too"


def _how(line: str, other: str, name: str) -> str:
    """Say how a line of the file differs from a line of the text."""
    if line.strip() == other.strip():
        if line.rstrip() != other.rstrip():
            return f"{name} begins with {_blanks(_lead(line))}, in old with {_blanks(_lead(other))}"
        return f"{name} ends in {_blanks(_tail(line))}, in old in {_blanks(_tail(other))}"
    if _squeezed(line) == _squeezed(other):
        return f"white space within {name}"
    if (unseen := INVISIBLE.findall(line)) and INVISIBLE.sub("", line) == INVISIBLE.sub("", other):
        codes = ", ".join(dict.fromkeys(f"U+{ord(char):04X}" for char in unseen[:5]))
        return f"{name} has characters that are not shown to you ({codes}): quote only the lines around it"
    if line.casefold() == other.casefold():
        return f"upper and lower case in {name}"
    if _plain(line) == _plain(other):
        differing = next(((a, b) for a, b in zip(line, other, strict=False) if a != b), None)
        if differing is not None:
            return f"{name} has U+{ord(differing[0]):04X} where old has U+{ord(differing[1]):04X}, which looks alike"
        return f"{name} has characters that look alike"
    return f"{name} differs"


def _lead(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _tail(line: str) -> str:
    return line[len(line.rstrip()) :]


def _blanks(white: str) -> str:
    """Return white space in words: `4 blanks`, `1 tab and 2 blanks`."""
    runs = [(char, sum(1 for _ in run)) for char, run in groupby(white)]
    words = [f"{count} {_name(char)}{'' if count == 1 else 's'}" for char, count in runs[:6]]
    return " and ".join(words) or "no white space"


def _name(char: str) -> str:
    return {" ": "blank", "\t": "tab"}.get(char) or f"U+{ord(char):04X}"


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _plain(line: str) -> str:
    return unicodedata.normalize("NFKC", line).translate(_LOOKALIKES)


def _tokens(line: str) -> list[str]:
    """Return the words, numbers and signs of a line, of a long one of its beginning."""
    return _TOKEN.findall(line[:_LINE_CHARS].casefold())


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[filled[0] : filled[-1] + 1]) if filled else []
