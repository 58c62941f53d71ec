"""The errors of roles and tools.

RolesError
├── RoleFileError      a role file cannot be read as a role; names file, line and key
├── UnknownRole        no role of that name; names the known ones
├── WorkspaceRefused   a folder may not be a workspace; says why and what may be given
└── ToolFailed         a tool could not do what it was asked: data for the model, never a crash
    └── AccessRefused  a path or an address that the confinement does not let through
"""


class RolesError(Exception):
    """Base of every error that this package raises on purpose; its text tells what to do."""


class RoleFileError(RolesError):
    """Raised when a role file cannot be read as a role."""


class UnknownRole(RolesError):
    """Raised when a role is asked for by a name that no role file has."""


class WorkspaceRefused(RolesError):
    """Raised when a folder may not be used as a workspace."""


class ToolFailed(RolesError):
    """Raised by a tool that could not do its work; the text goes to the model as a failed result."""


class AccessRefused(ToolFailed):
    """Raised when a path or an address is outside of what the run may reach."""
