"""Errors of the log.

AuditError
├── StoreUnavailable   the store did not answer in time, or its disk is full; nothing was written
│   ├── OutcomeUnknown the store started a command and did not finish; it may have been written
│   └── LogMoved       the log was removed, moved or replaced while it was open; nothing was written
│       └── LogForked  the log on the server lost entries that this process knows, or is another: until a restart
├── SchemaNewer        a newer program has migrated the database; restart this one
├── SchemaOlder        an older program wrote the database, and this caller may not migrate it
├── StaleOwner         an event of an older generation, or of a run that is not running; nothing was written
├── Contradiction      an event that contradicts the log; nothing was written
├── EntryTooLarge      an entry over 2 MB
├── BlobRefused        a file beside the log that is missing, or is not what its digest says
├── DataRootRefused    a data root that cannot hold the log (a network file system, not a folder, ...)
└── BadQuery           an invalid query; the text names what is allowed
    └── ImportRefused  a file that is not a whole log, or a log that is not empty (transfer.py)
"""

from typing import Self


class AuditError(Exception):
    """Base of all errors that this package raises on purpose. The text says what to do."""


def is_thread_shortage(error: BaseException) -> bool:
    """Tell whether an error means that the system starts no further thread for this process. It may pass."""
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")  # by CPython's own text


class StoreUnavailable(AuditError):
    """Raised when the store did not accept a command; nothing of it was written."""


class OutcomeUnknown(StoreUnavailable):
    """Raised when the store started a command and did not finish; it may or may not have been written."""


class LogMoved(StoreUnavailable):
    """Raised when the log was removed, moved or replaced while it was open; nothing was written."""


class LogForked(LogMoved):
    """Raised, until a restart, once the log on the server has lost entries that this process knows, or is another."""


class SchemaNewer(AuditError):
    """Raised when the database has a newer schema than this program."""


class SchemaOlder(AuditError):
    """Raised when an older program wrote the database, and the caller may not migrate it."""


class StaleOwner(AuditError):
    """Raised when an event's fence is older than the run's claim, or the run is not running."""

    @classmethod
    def of(cls, run_id: str, generation: int) -> Self:
        return cls(f"{run_id} is no longer owned by this claim (generation {generation})")


class Contradiction(AuditError):
    """Raised when an event contradicts the log, e.g. a second proposal with the same id."""


class EntryTooLarge(AuditError):
    """Raised when an entry's content exceeds the size limit."""


class BlobRefused(AuditError):
    """Raised when a file beside the log is missing, or is not what its digest says."""


class DataRootRefused(AuditError):
    """Raised when a folder cannot be used as the data root."""


class BadQuery(AuditError):
    """Raised when a query names something that does not exist, e.g. an unknown event type."""
