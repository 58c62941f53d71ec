"""Phrases that the readers of documents share."""

from __future__ import annotations

from collections import Counter
from itertools import islice


def count_phrase(count: int, noun: str) -> str:
    """Return e.g. `1 picture` or `2,000 pictures`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def object_phrases(objects: Counter[str], most: int) -> list[str]:
    """Return a phrase for each of the first objects, with how often it comes, and one for the others."""
    phrases: list[str] = []
    for name, count in islice(objects.items(), most):
        if count == 1:
            phrases.append(name)
        else:
            phrases.append(f"{name}, {count:,} times")
    if len(objects) > most:
        phrases.append(f"{len(objects) - most:,} more objects")
    return phrases


def comment_text(author: str, text: str) -> str:
    """Return a comment with its author in front, if it has one."""
    return f"{author}: {text}" if author else text
