"""What a claimed run works with: the seam between the house, which makes it, and the loop, which uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ava_audit.events import RunStarted
from ava_audit.redaction.redact import Redactor
from ava_roles.mcp_client.running import RunServers
from ava_roles.tools.base import Place, Tool
from ava_roles.worktree.session import Workshop
from ava_server.budget.caps import DayCaps
from ava_server.models.base import Model
from ava_server.runs.secret_injection import Lending
from ava_server.runs.worktrees import Worktrees


def _nothing(_ended: bool) -> None:
    """Close nothing."""


@dataclass(frozen=True)
class Prepared:
    """Everything that a claimed run works with.

    Attributes:
        started: The prefix for a new run; a resumed one keeps the one that its log has.
        servers: The run's other MCP servers, not yet started.
        window: Tokens that the model's context holds.
        workshop: Where it changes files; None for a run that changes none.
        worktrees: The folders of all such runs.
        artifacts: Lists the files that the run has handed over.
        close: Lets go of folders; of an ended run it also removes what was only the run's own.
    """

    model: Model
    started: RunStarted
    tools: Mapping[str, Tool]
    place: Place
    redactor: Redactor
    lending: Lending
    scratch: Path
    caps: DayCaps
    window: int
    worktrees: Worktrees
    servers: RunServers = field(default_factory=RunServers)
    workshop: Workshop | None = None
    artifacts: Callable[[], list[dict[str, Any]]] = field(default=list)
    close: Callable[[bool], None] = field(default=_nothing)
