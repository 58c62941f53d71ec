"""What an edit has changed, as its confirmation shows it: the lines with their numbers, and few around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

AROUND = 2
_REGIONS = 3
_LINES = 12
_CHARS = 200


class Region(NamedTuple):
    """Lines that took the place of others: from, and up to but without, counted from 0."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def shown_change(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    """Return the first regions, and where the others are."""
    parts = [change(old, new, region) for region in regions[:_REGIONS]]
    if rest := regions[_REGIONS:]:
        numbers = ", ".join(f"{region.new_from + 1:,}" for region in rest[:20]) + (", …" if len(rest) > 20 else "")
        parts.append(f"and in lines {numbers}")
    return "\n".join(parts)


def change(old: Sequence[str], new: Sequence[str], region: Region) -> str:
    """Return one region: `-` and `+` before what went and came, with the lines around it."""
    trimmed = _trimmed(old, new, region)
    before = [(" ", at, new[at]) for at in range(max(0, trimmed.new_from - AROUND), trimmed.new_from)]
    gone = [("-", at, old[at]) for at in range(trimmed.old_from, min(trimmed.old_to, len(old)))]
    came = [("+", at, new[at]) for at in range(trimmed.new_from, min(trimmed.new_to, len(new)))]
    after = [(" ", at, new[at]) for at in range(trimmed.new_to, min(trimmed.new_to + AROUND, len(new)))]
    return "\n".join((*_listed(before), *_listed(gone), *_listed(came), *_listed(after)))


def counted(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    """Return how many lines went and came."""
    trimmed = [_trimmed(old, new, region) for region in regions]
    removed = sum(min(each.old_to, len(old)) - min(each.old_from, len(old)) for each in trimmed)
    added = sum(min(each.new_to, len(new)) - min(each.new_from, len(new)) for each in trimmed)
    return f"{removed:,} {'line' if removed == 1 else 'lines'} removed, {added:,} added"


def numbered(sign: str, at: int, line: str) -> str:
    """Return one line with its number, cut where it is long."""
    shown = line if len(line) <= _CHARS else f"{line[:_CHARS]}… ({len(line):,} characters)"
    return f"{sign}{at + 1:>5}  {shown}".rstrip(" ") if not shown else f"{sign}{at + 1:>5}  {shown}"


def _trimmed(old: Sequence[str], new: Sequence[str], region: Region) -> Region:
    """Return a region without the lines at its beginning and end that are the same."""
    old_from, old_to, new_from, new_to = region
    old_to, new_to = min(old_to, len(old)), min(new_to, len(new))
    while old_from < old_to and new_from < new_to and old[old_from] == new[new_from]:
        old_from, new_from = old_from + 1, new_from + 1
    while old_from < old_to and new_from < new_to and old[old_to - 1] == new[new_to - 1]:
        old_to, new_to = old_to - 1, new_to - 1
    return Region(old_from, old_to, new_from, new_to)


def _listed(lines: Sequence[tuple[str, int, str]]) -> list[str]:
    if len(lines) <= _LINES:
        return [numbered(*line) for line in lines]
    head, tail = lines[: _LINES - 4], lines[-3:]
    left_out = f"{lines[0][0]}       … {len(lines) - len(head) - len(tail):,} lines …"
    return [*(numbered(*line) for line in head), left_out, *(numbered(*line) for line in tail)]
