"""Files beside the log, in its Postgres database, so that every machine can read what a run needs and delivers.

A blob has no name but its SHA-256. Entries of the log refer to it by that, and the digest is checked whenever a blob is
read: a changed byte is never used. Which runs use a blob is kept beside it; without one, it is removed. With the
embedded database there are no blobs: everything is on one machine, in the data root.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

Use = Literal["input", "result", "artifact"]
"""Why a run has a blob. `input` is needed until the run's end, the others as long as its content is kept."""


class Blob(NamedTuple):
    """A stored file: its SHA-256 in hexadecimal, and its size in bytes."""

    sha256: str
    size: int


class Blobs(Protocol):
    """The files beside a log. Everything here blocks; see `PostgresBlobs` for the errors."""

    def put(self, path: Path, runs: Sequence[str], use: Use) -> Blob:
        """Store a file for some runs, all of it or nothing."""
        ...

    def fetch(self, blob: Blob, run_id: str, path: Path) -> None:
        """Write a run's blob to a new file."""
        ...

    def read(self, blob: Blob, run_id: str) -> bytes:
        """Return the bytes of a run's blob."""
        ...

    def has(self, run_id: str, use: Use) -> bool:
        """Tell whether a run has a blob for this use."""
        ...

    def release(self, runs: Sequence[str], use: Use | None = None) -> None:
        """Forget that runs use blobs, and remove those that no run uses."""
        ...

    def sweep(self, now_us: int) -> None:
        """Remove the inputs of ended runs and expired proposals, and what belongs to proposals that were never made."""
        ...
