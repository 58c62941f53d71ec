"""Faults that a verification reports, and the diagnosis of a broken chain: what was done to the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ava_audit.entries import GENESIS, HEADER, entry_hash

WINDOW = 64
"""How many entries before and after a fault are searched for its cause."""

FaultKind = Literal[
    "changed", "missing", "inserted", "reordered", "damaged", "head", "projection", "line", "schema", "erased", "mirror"
]
ProgressCallback = Callable[[int, int], None]
"""Called with how much has been checked, and how much there is."""
Row = tuple[Any, ...]
"""A row of the log, selected with `ENTRY_COLUMNS`."""

_N = len(HEADER)
_SHA, _HASH = _N + 1, _N + 2


@dataclass(frozen=True)
class Fault:
    """Something that differs from what was written: its kind, its `seq`, and a sentence for a person."""

    kind: FaultKind
    seq: int
    text: str


@dataclass(frozen=True)
class Report:
    """What a verification found.

    Attributes:
        entries: How many entries were checked.
        seq: The newest `seq` that was checked, where the projections were compared.
        head: The hash of that entry in hex, to be noted elsewhere.
        faults: The first fault of the chain; if there is none, the faults of projections, head and triggers.
        projections: Whether the projections were compared.
        gaps: How often a file skips entries of the log. They are in other files, were not exported, or were removed;
            a file alone cannot tell which.
    """

    entries: int
    seq: int
    head: str
    faults: tuple[Fault, ...]
    projections: bool
    gaps: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no fault."""
        return not self.faults


def missing_hash(digest: bytes, seq: int) -> Fault:
    """Return the fault of a log, checked up to `seq`, that lacks the entry with a hash noted elsewhere."""
    text = f"the log has no entry with the hash {digest.hex()}: its end was cut off, or it was rewritten"
    return Fault("head", seq, text)


def diagnose(row: Row, near: list[Row]) -> Fault:
    """Say what happened at an entry whose hash does not continue the chain.

    Args:
        row: The entry.
        near: The entries around it, including itself, in order.
    """
    seq = row[0]
    hashes = {0: GENESIS, **{other[0]: other[_HASH] for other in near}}
    twin = next((number for number, digest in hashes.items() if 0 < number < seq and digest == row[_HASH]), None)
    if twin is not None and _follows(row, hashes.get(twin - 1, b""), twin):
        return Fault("inserted", seq, f"entry {seq} was inserted: it is a copy of entry {twin}")
    after = [other for other in near if other[0] > seq]
    if after and _follows(after[0], row[_HASH], after[0][0]):
        return Fault("changed", seq, f"entry {seq} was changed")
    for gone in range(1, WINDOW):  # renumbered down: the entry and its successor are still chained
        if after and _follows(after[0], row[_HASH], seq + 1 + gone):
            which = "an entry is" if gone == 1 else f"{gone} entries are"
            return Fault("missing", seq, f"{which} missing before entry {seq}")
    for other in (row, *after):  # renumbered up: the entry continues the chain from before the inserted ones
        for more in range(1, WINDOW):
            first = other[0] - more
            if 1 <= first <= seq and _follows(other, hashes.get(first - 1, b""), first):
                which = f"entry {first} was" if more == 1 else f"entries {first} to {other[0] - 1} were"
                if not _moved(near, first, hashes):
                    return Fault("inserted", first, f"{which} inserted")
    place = _place_of(row, near, hashes)
    if place is not None:
        return Fault("reordered", seq, f"entry {seq} was entry {place}: entries were reordered")
    return Fault("changed", seq, f"entry {seq} was changed or replaced")


def _follows(row: Row, before: bytes, seq: int) -> bool:
    """Tell whether an entry was written as entry `seq`, after the entry with the hash `before`."""
    return bool(entry_hash(before, (seq, *row[1:_N]), row[_SHA]) == row[_HASH])


def _moved(near: list[Row], seq: int, hashes: dict[int, bytes]) -> bool:
    """Tell whether the entry at `seq` was written under another number."""
    row = next((other for other in near if other[0] == seq), None)
    return row is not None and _place_of(row, near, hashes) is not None


def _place_of(row: Row, near: list[Row], hashes: dict[int, bytes]) -> int | None:
    """Return the number under which an entry was written, if it differs and is near."""
    for other in near:
        if other[0] != row[0]:
            for before in hashes.values():
                if _follows(row, before, other[0]):
                    return int(other[0])
    return None
