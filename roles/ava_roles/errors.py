"""The errors of roles and tools.

RolesError
├── RoleFileError      a role file cannot be read as a role; names file, line and key
├── UnknownRole        no role of that name; names the known ones
├── WorkspaceRefused   a folder may not be a workspace; says why and what may be given
├── FolderReplaced     a folder is not the one that was approved; says what is there now
├── BadNamespace       the paths that a run may change cannot be used; says why
├── WorktreeFailed     a worktree cannot be created, checked or published; says what to do
│   └── NoRepository   a folder has no commit to start from; says what to do
└── ToolFailed         a tool failed: data for the model, never a crash
    ├── AccessRefused  a path or an address that the run may not reach
    ├── NotThere       a file or folder that does not exist
    ├── ParserEnded    a parser took too long, needed too much memory or crashed
    └── NotRequested   a page whose host was busy with other requests until the deadline
"""


class RolesError(Exception):
    """Base of every error that this package raises on purpose; its text says what to do."""


class RoleFileError(RolesError):
    """Raised when a role file cannot be read as a role. `line` counts from 1; without it, it is about the file."""

    def __init__(self, source: str, reason: str, line: int | None = None, key: str | None = None) -> None:
        at = (f", line {line}" if line is not None else "") + (f", {key}" if key is not None else "")
        super().__init__(f"{source}{at}: {reason}")
        self.source, self.reason, self.line, self.key = source, reason, line, key


class UnknownRole(RolesError):
    """Raised when no role has the requested name."""


class WorkspaceRefused(RolesError):
    """Raised when a folder may not be used as a workspace."""


class FolderReplaced(RolesError):
    """Raised when a folder is not the one that was approved, or may not be used any more."""


class ToolFailed(RolesError):
    """Raised by a tool that failed; the text goes to the model as a failed result.

    `unknown`: whether it did what it was called for is not known. `unread`: what exists and could not be read, as in
    `ToolOutput`.
    """

    def __init__(self, text: str, *, unknown: bool = False, unread: str = "") -> None:
        super().__init__(text)
        self.unknown = unknown
        self.unread = unread


class AccessRefused(ToolFailed):
    """Raised when the run may not reach a path or an address."""


class NotThere(ToolFailed):
    """Raised when a file or folder does not exist."""


class ParserEnded(ToolFailed):
    """Raised when a parser took too long, needed too much memory or crashed: another attempt may succeed."""


class NotRequested(ToolFailed):
    """Raised when a page was not requested, because other requests to its host took all the time."""


class BadNamespace(RolesError):
    """Raised when the paths that a run may change cannot be used."""


class WorktreeFailed(RolesError):
    """Raised when a worktree cannot be created, checked or published; nothing is published in part."""


class NoRepository(WorktreeFailed):
    """Raised when a folder has no commit to start from."""
