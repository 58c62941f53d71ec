"""A log's database as the rest of Ava knows it: one embedded in this process, or one on a Postgres server.

A `Backend` says how the database is opened, what its errors mean, and how commits of other processes are noticed.
`store.py` and `writer.py` know nothing else about it. Beside the log, it has:

- the live processes: each is an instance with a name, and a run's claim names the one that owns it. With the embedded
  database, an instance lives as long as it holds a lock file of the data root. On a server, it also has a lease, which
  shows processes on other machines that it lives (`postgres/leases.py`). An instance shows the others what its runs are
  doing at the moment: beside its lock or its lease, never in the log, and only for people to read;
- blobs: files that every machine can read, only on a server. A blob has no name but its SHA-256. Entries refer to it by
  that, and the digest is checked whenever a blob is read: a changed byte is never used. Which runs use a blob is kept
  beside it; without one, it is removed;
- shared files: small private texts that all servers share, only on a server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from ava_audit.database import Commit, Database
from ava_audit.model_calls import ModelCall

VARIABLE = "AVA_DATABASE_URL"
SETTING = "database_url"
"""The environment variable and the setting that say where a log is."""
MARK = "database.id"
"""The file of a data root whose log is in Postgres: the id of that log."""
LEASE_S = 15.0
"""How long a process counts as alive after it last renewed its lease."""
SHOWN_S = 8.0
"""How long an activity counts after its process last showed it: a stopped process shows nothing more."""
Kind = Literal["server", "worker", "command"]


@dataclass(frozen=True)
class Announcement:
    """What an instance tells the others about itself."""

    kind: Kind = "command"
    address: str = ""  # where other servers reach it, as `http://host:port`; empty if nowhere
    offers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what it can run, as JSON values


UNANNOUNCED = Announcement()


@dataclass(frozen=True)
class LiveInstance:
    """An instance that lives."""

    name: str
    host: str
    announcement: Announcement
    silent_s: float = 0.0  # since it last showed that it lives


@dataclass(frozen=True)
class LostInstance:
    """An instance that ended without saying so, and when it was last seen, in microseconds UTC."""

    name: str
    host: str
    kind: Kind
    seen_us: int


Activities = Mapping[tuple[str, str], str]
"""Activities by instance and run, only of instances that have shown theirs lately."""


class Membership(Protocol):
    """This process as an instance, with a name that no other instance has had."""

    name: str

    def announce(self, address: str) -> None:
        """Say where this process answers others; empty takes it back. *Blocking*. Raises StoreUnavailable, OSError."""
        ...

    def show(self, activities: Mapping[str, str], /) -> None:
        """Show the others what its runs are doing, in place of what it showed before. Blocking, for a moment.

        Repeat it before `SHOWN_S` is over. Where it cannot be written, nothing is shown, and nothing else happens.
        """
        ...

    def tell(self, facts: Mapping[str, Any], /) -> None:
        """Add to what this instance offers, for others to read once it has been renewed."""
        ...

    def holds(self) -> bool:
        """Tell whether others see that it lives; takes a few microseconds."""
        ...

    def renew(self) -> None:
        """Let others see that it lives; not after `release`. Blocking. Raises StoreUnavailable if they cannot."""
        ...

    def release(self) -> None:
        """Let others see at once that it owns nothing any more. Blocking, for a moment."""
        ...

    def remove(self) -> None:
        """Release it, and remove what it has left. Blocking, for a moment."""
        ...


class Instances(Protocol):
    """The live processes on one log."""

    def join(self, announcement: Announcement = UNANNOUNCED, /) -> Membership:
        """Become an instance. Blocking. Raises StoreUnavailable; OSError: the lock file cannot be made."""
        ...

    async def keep(self, membership: Membership, /) -> None:
        """Show that this process lives, until cancelled. A failure is logged once."""
        ...

    def alive(self, name: str) -> bool:
        """Tell whether an instance lives; unknown counts as yes. Blocking, for a moment."""
        ...

    def lasts_s(self, name: str, /) -> float:
        """Return in how many seconds an instance is dead if it renews nothing; infinite where that is not known."""
        ...

    def seen_us(self, name: str, /) -> int | None:
        """Return when an instance was last seen at work, in microseconds UTC; None where that is not known. Blocking.

        One with runs shows it every few seconds, and when it ends in order.
        """
        ...

    def shown_seen_us(self, name: str, /) -> int | None:
        """Return about when an instance was last seen, by this machine's clock; only for people to read.

        It is the same until the instance is seen again; None where it is not known. Blocking, for a moment.
        """
        ...

    @property
    def seen_every_s(self) -> float:
        """Within how many seconds an instance with runs is seen again while it works."""
        ...

    def address_of(self, name: str) -> str | None:
        """Return where a live instance answers; None if it is dead, or answers nobody. Blocking, for a moment."""
        ...

    def any_alive(self) -> bool:
        """Tell whether any instance lives. Blocking, for a moment."""
        ...

    def live(self) -> list[LiveInstance]:
        """Return the live instances that announce themselves. Blocking, for a moment. Raises StoreUnavailable."""
        ...

    def lost(self) -> list[LostInstance]:
        """Return the instances that were lost within the last minutes, the oldest first; none on one machine.

        Blocking, for a moment. Raises StoreUnavailable.
        """
        ...

    def workers(self) -> Mapping[str, str]:
        """Return the host of each live worker by the worker's name; none where all processes are on this machine.

        Blocking, for a moment.
        """
        ...

    def activities(self) -> Activities:
        """Return what runs are doing: untrusted lines for a person to read. Blocking, for a moment."""
        ...

    def remove_dead(self, keep: frozenset[str]) -> None:
        """Remove what dead instances have left, but not the files of those in `keep`, which a claim names. Blocking."""
        ...

    def close(self) -> None:
        """Close what it has opened to look at others. Blocking, for a moment."""
        ...


Use = Literal["input", "result", "artifact"]
"""Why a run has a blob. `input` is needed until the run's end, the others as long as its content is kept."""


class Blob(NamedTuple):
    """A stored file: its SHA-256 in hexadecimal, and its size in bytes."""

    sha256: str
    size: int


class Blobs(Protocol):
    """The files beside a log. Everything here blocks; see `PostgresBlobs` for the errors."""

    def put(self, path: Path, runs: Sequence[str], use: Use) -> Blob:
        """Store a file for some runs, all of it or nothing. A file that is there already is not sent again.

        Raises BlobRefused if the file changes while it is read; StoreUnavailable; OSError if it cannot be read.
        """
        ...

    def fetch(self, blob: Blob, run_id: str, path: Path) -> None:
        """Write a run's blob to a new file. Raises BlobRefused: missing or changed; StoreUnavailable; OSError."""
        ...

    def read(self, blob: Blob, run_id: str) -> bytes:
        """Raises BlobRefused if it is missing or was changed; StoreUnavailable."""
        ...

    def has(self, run_id: str, use: Use) -> bool: ...

    def release(self, runs: Sequence[str], use: Use | None = None) -> None:
        """Forget that runs use blobs, and remove those that no run uses."""
        ...

    def sweep(self, now_us: int) -> None:
        """Remove the inputs of ended runs and expired proposals, and what belongs to proposals that were never made."""
        ...


class SharedFileStore(Protocol):
    """Small private files that all servers of a log share. Every method blocks."""

    def newer(self, known: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        """Return the version and text of each file whose version is not the known one. Raises StoreUnavailable."""
        ...

    def take_over(self, texts: Mapping[str, str]) -> bool:
        """Store the first texts of all files, and tell whether there were none yet. Raises StoreUnavailable."""
        ...

    def changed_text(self, name: str) -> str | None:
        """Return the text of a file that this thread is changing; None if it is not."""

    def change(self, name: str, edit: Callable[[str], str]) -> tuple[int, str]:
        """Replace the text of a file while no other process does; return its version and text.

        Raises what `edit` raises, which leaves the file alone; StoreUnavailable: another process changes it, or it
        cannot be written; OutcomeUnknown: it may have been written.
        """
        ...

    def close(self) -> None: ...


class OlderSchema(Enum):
    """What to do with a log that an older program wrote."""

    REFUSE = "refuse it"
    COPY_AND_MIGRATE = "copy it, then migrate it"
    MIGRATE = "migrate it: it is a copy itself"


class Backend(Protocol):
    """The database of one log."""

    place: str  # what a person calls it; never with a password
    error: type[Exception]  # what its driver raises
    no_answer: str  # why the writer may not answer in time
    is_near: bool  # it is in this process: a few rows are read faster than a thread is woken

    def prepare(self, *, fresh: bool = False, older: OlderSchema = OlderSchema.REFUSE) -> str | None:
        """Create the database, or migrate it; return where a copy from before the migration is. Blocking.

        With `fresh`, it replaces another log of the data root. Raises SchemaOlder: an older program wrote it, and
        `older` refuses that; SchemaNewer: a newer program has migrated it; DataRootRefused: this data root cannot have
        its log there; StoreUnavailable: it cannot be opened or copied.
        """
        ...

    def connect(self, *, readonly: bool = False) -> Database: ...

    def open_to_check(self) -> Database:
        """Open a connection that only reads a log, to verify it. Blocking.

        Raises StoreUnavailable if there is no log; SchemaOlder, SchemaNewer if it has another schema.
        """
        ...

    def is_damage(self, error: Exception) -> bool:
        """Tell whether an error reports wrong bytes, and not that the database is unavailable right now."""
        ...

    def schema_changes(self, db: Database) -> dict[tuple[str, str], str]:
        """Return what was `removed`, `changed` or `added`, by kind and name, since the schema was made."""
        ...

    def shared_files(self) -> SharedFileStore | None:
        """Return None where they are in the data root."""

    def turn(self) -> AbstractContextManager[None]:
        """Wait until this process may write, and hold its turn."""
        ...

    def check_location(self) -> None:
        """Raise LogMoved if the log is not where, or what, it was when it was opened; takes a few microseconds."""
        ...

    def note_unlogged(self, calls: Sequence[ModelCall]) -> None:
        """Write down what model calls cost, once the log is found to be another that will not have them. Blocking.

        Raises OSError.
        """
        ...

    def instances(self, folder: Path, lease_s: float = LEASE_S) -> Instances:
        """Return the live processes on the log; `folder` has this machine's lock files, which need no `lease_s`."""
        ...

    def maintaining(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other machine maintains this log, and keep it so; on this machine, a lock file does that."""
        ...

    def translate_error(self, error: BaseException) -> BaseException:
        """Turn a driver's error of a write into one that says what to do; others stay."""
        ...

    def advice(self, error: Exception) -> str:
        """Return what to do about a driver's error of a read."""
        ...

    def heads(self, db: Database) -> AsyncGenerator[Sequence[Commit]]:
        """Yield what is known of other processes' commits when there are some, and from time to time. Closes `db`."""
        ...

    def blobs(self) -> Blobs | None:
        """Return None if they are in the data root alone."""
        ...

    def close(self) -> None: ...
