"""Texts that are made to be slow for the search for secrets, put together from the rules' own tables.

A new rule is in them as soon as its mark is in `redactor.MARKS` or its beginning in the table of keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ava_audit.redaction import redactor, shapes
from ava_audit.redaction.passwords import NAMES

CHARS = 16_384
WORDS = "The quick brown fox jumps over the lazy dog and then it goes home to sleep until the morning. "
BESIDE_MARKS = (
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "://a:", "Authorization: Bearer ", "Cookie: a="),
    *(
        "curl -u ",
        "curl -sSLu ",
        "machine a login b ",
        "login ",
        "nonce=",
        "DB_PASSWORD: ",
        "<password>",
        "</password>",
    ),
    *("password='", "mysql -p", "a:b1@tcp(", "docker login -p "),
)
"""Marks with what belongs to them."""
VALUES = (
    *("", " ", "\n", "=", "=1", ": ", "=a1b2c3d4", " a1b2c3d4 ", "a1b2c3d4", "='a b ", '="', "=abcdefgh\n", "=a$", "@"),
    *("<", "/", "=a1b2c3d4&", "=cor ", ': "Ab3Cd4Ef5Gh6Ij7K", ', "=Ab3Cd4Ef5Gh6I\n"),
)
"""What may follow a mark: nothing, signs, a value that is none, one that is."""
VALUES_ELSEWHERE = (
    *(",", ";", "|", "\t", "  a\n", ", ", ",a1b2c3d4\n", ";a1b2c3d4\n", "\ta1b2c3d4\n", "  a1b2c3d4\n", "s:\n- "),
    *("s:\n- a1b2c3d4e5f6\n", "s=['a',", "s=['a1',", "s=['a1b2c3d4e5f6',", '="a\n', '="a1b2c3d4\na"\n', "='a\n"),
    *("=a\\\n", "=a1b2\\\n", "=a1b2c3d4\\\n", "=a1b2c3d4\\\na\n"),
)
"""What may follow a name whose value stands on another line, or in another cell of a table."""
TABLES = (
    *("a,{}\na,hunter22\n\n", "a,{}\nb,a1b2c3d4e5f6g7h8\n\n", "a;{}\na;hunter22\n\n", "a\t{}\na\thunter22\n\n"),
    *(
        "a,{}\n",
        "a, {}\n",
        "a,{}\n\n",
        "a,{}\na\n\n",
        "{},{}\n",
        "{},a\na1b2c3d4e5,a\n",
        "| {} |\n",
        "| a | {} |\n|---|---|\n",
    ),
    *(
        "| {} |\n|---|\n",
        "| {} | a1b2c3d4e5f6 |\n",
        "| a | {} |\n|---|---|\n| a | a1b2c3d4e5f6 |\n\n",
        "a  {}\n",
        "a  {}\na  a\n\n",
    ),
    *("a  {}\nb  a1b2c3d4e5f6\n\n", "{},", "a,{}\n" + "a,hunter22\n" * 9 + "\n"),
)
"""Tables with the name of a secret in them."""
IN_ONE_PIECE = ("A", "a1", "=", "/", ".", "-", "_", "\n", "\\n", " ", "'", "<", "a1B2c3D4e5F6g7H8", "/" * 19 + "a")


def slow_pieces() -> Iterator[str]:
    """Yield what is to be repeated."""
    yield from IN_ONE_PIECE
    yield from ("mysql " * 60 + " -pa1b2c3d4", "mysql" + " -pa1b2c3d4" * 36, "curl" + " -u a:b1c2d3" * 32)
    for mark in dict.fromkeys((*redactor.MARKS, *BESIDE_MARKS)):
        for value in VALUES:
            yield mark + value
        yield f"/{mark}"
    for name in NAMES:
        for value in VALUES_ELSEWHERE:
            yield name + value
        for table in TABLES:
            yield table.replace("{}", f"api_{name}" if NAMES[name] == "key" else name)
    for literal in sorted({literal for pattern in shapes.key_patterns() for literal in pattern.literals}):
        for before in ("", "/", " "):
            yield before + literal
        yield f"/{literal}" + "a1B2c3D4e5F6g7H8" * 2
        yield f" {literal}" + "a1B2c3D4e5F6g7H8" * 2


def repeat(piece: str, chars: int = CHARS) -> str:
    return (piece * (chars // len(piece) + 1))[:chars]


def times_words(search: Callable[[str], object], piece: str, most: float, turns: int = 60, chars: int = CHARS) -> float:
    """Return how many times as long as words a repeated piece takes, in processor time, by turns in one run.

    The least of many turns counts, for other processes make a turn longer and never shorter; it ends as soon as the
    figure is at most `most`.
    """
    words, text = repeat(WORDS, chars), repeat(piece, chars)
    words_s = text_s = float("inf")
    for _ in range(turns):
        words_s = min(words_s, _spent_s(search, words))
        text_s = min(text_s, _spent_s(search, text))
        if text_s <= most * words_s:
            break
    return text_s / words_s


def _spent_s(search: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    search(text)
    return time.process_time() - began
