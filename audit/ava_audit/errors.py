"""The errors of the log.

AuditError
├── StoreUnavailable   the store did not answer in time, or its disk is full: nothing was written
│   └── OutcomeUnknown a command was begun and did not end: whether it was written is not known
├── SchemaNewer        a newer program has migrated the database: restart this one
├── StaleOwner         an event of an older generation, or of a run that has ended: nothing was written
├── Contradiction      an event that cannot follow what the log has: nothing was written
├── EntryTooLarge      an entry over 2 MB
├── DataRootRefused    a data root that cannot hold the log (a network file system, not a folder, ...)
└── BadQuery           a question to the log that cannot be understood; names what is allowed
"""


class AuditError(Exception):
    """Base of every error that this package raises on purpose; its text tells what to do."""


class StoreUnavailable(AuditError):
    """Raised when the store did not take a command: nothing of it was written."""


class OutcomeUnknown(StoreUnavailable):
    """Raised when the store began with a command and did not end: it may or may not have been written."""


class SchemaNewer(AuditError):
    """Raised when the database has a newer schema than this program knows."""


class StaleOwner(AuditError):
    """Raised when an event's fence is older than the run's claim, or the run has ended."""


class Contradiction(AuditError):
    """Raised when an event cannot follow what the log has, e.g. a second proposal with the id of the first."""


class EntryTooLarge(AuditError):
    """Raised when an entry's content is larger than an entry may be."""


class DataRootRefused(AuditError):
    """Raised when a folder cannot be the data root."""


class BadQuery(AuditError):
    """Raised when a query names something that the log does not have, e.g. an event type."""
