"""The sentence that the status line shows while a tool works."""

from __future__ import annotations

from collections.abc import Callable

SENTENCE_CHARS = 80
_READ_CHARS = 2_000


def sentence(text: str, hide: Callable[[str], str] | None = None) -> str:
    """Return text as the status line takes it: one line of printable characters, 80 at most.

    Args:
        text: What is being done; as long as whatever a model gave.
        hide: Replaces secrets, before anything is cut: a half is not recognised.
    """
    cut = len(text) > _READ_CHARS
    text = text[:_READ_CHARS] if cut else text
    text = hide(text) if hide is not None else text
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    if len(line) > SENTENCE_CHARS:
        return line[: SENTENCE_CHARS - 1].rstrip() + "…"
    return line.rpartition(" ")[0] + "…" if cut else line  # so much of it was blank that its end would show
