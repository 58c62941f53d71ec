"""The errors of roles and tools.

RolesError
├── RoleFileError      a role file cannot be read as a role; names file, line and key
├── UnknownRole        no role of that name; names the known ones
├── WorkspaceRefused   a folder may not be a workspace; says why and what may be given
├── BadNamespace       what a run may change cannot be meant so; says what is wrong
├── WorktreeFailed     a worktree cannot be made, checked or kept; says what to do
│   └── NoRepository   a folder has no commit that work could begin at; says what to do
└── ToolFailed         a tool could not do what it was asked: data for the model, never a crash
    ├── AccessRefused  a path or an address that the confinement does not let through
    └── NotThere       a file or folder that does not exist
"""


class RolesError(Exception):
    """Base of every error that this package raises on purpose; its text tells what to do."""


class RoleFileError(RolesError):
    """Raised when a role file cannot be read as a role.

    Args:
        source: How the file is called.
        reason: What is wrong with it, and what to do.
        line: Where, from 1 on; None is the whole file.
        key: Of which key.
    """

    def __init__(self, source: str, reason: str, line: int | None = None, key: str | None = None) -> None:
        at = (f", line {line}" if line is not None else "") + (f", {key}" if key is not None else "")
        super().__init__(f"{source}{at}: {reason}")
        self.source, self.reason, self.line, self.key = source, reason, line, key


class UnknownRole(RolesError):
    """Raised when a role is asked for by a name that no role file has."""


class WorkspaceRefused(RolesError):
    """Raised when a folder may not be used as a workspace."""


class ToolFailed(RolesError):
    """Raised by a tool that could not do its work; the text goes to the model as a failed result."""


class AccessRefused(ToolFailed):
    """Raised when a path or an address is outside of what the run may reach."""


class NotThere(ToolFailed):
    """Raised when a file or folder does not exist."""


class BadNamespace(RolesError):
    """Raised when the paths that a run may change cannot be meant so."""


class WorktreeFailed(RolesError):
    """Raised when a worktree cannot be made, checked or kept; nothing is half kept."""


class NoRepository(WorktreeFailed):
    """Raised when a folder has no commit that work could begin at."""
