"""The sentence that the status line shows while a tool works."""

from __future__ import annotations

SENTENCE_CHARS = 80


def sentence(text: str) -> str:
    """Return text as the status line takes it: one line of printable characters, 80 at most."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[:1_000]).split())
    return line if len(line) <= SENTENCE_CHARS else line[: SENTENCE_CHARS - 1].rstrip() + "…"
