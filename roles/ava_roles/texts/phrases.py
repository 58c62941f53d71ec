"""Phrases that readers and tools share."""

from __future__ import annotations

from collections import Counter
from itertools import islice


def count_phrase(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 picture`, `2,000 pictures`. `many`: the plural, where it is not with `s`."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or one + 's'}"


def object_phrases(objects: Counter[str], most: int) -> list[str]:
    """Return a phrase for each of the first objects, with how often it comes, and one for the others."""
    phrases: list[str] = []
    for name, count in islice(objects.items(), most):
        if count == 1:
            phrases.append(name)
        else:
            phrases.append(f"{name}, {count:,} times")
    if len(objects) > most:
        phrases.append(count_phrase(len(objects) - most, "more object"))
    return phrases


def comment_text(author: str, text: str) -> str:
    """Return a comment with its author in front, if it has one."""
    return f"{author}: {text}" if author else text
