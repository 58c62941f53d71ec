"""The open parts of a process that runs use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ava_roles.memory import Memory
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.texts.kept import KeptTexts
from ava_roles.tool import Tool
from ava_roles.tools.registry import builtin_tools
from ava_server.approval.scope import sandbox_here
from ava_server.budget import user_limits
from ava_server.config.credentials import Credentials
from ava_server.runs.turn.run_tools import McpServers

if TYPE_CHECKING:
    from ava_audit.store.store import Store
    from ava_roles.net.fetch import Fetcher
    from ava_server.budget.user_limits import DayCaps
    from ava_server.config.settings import Settings
    from ava_server.models.http_clients import ClientPool


@dataclass
class RunResources(ABC):
    """The open parts of a process that runs use. The service's `Runtime` has the rest."""

    settings: Settings
    store: Store
    user: str
    clients: ClientPool
    credentials: Credentials = field(init=False)
    texts: KeptTexts = field(init=False)

    def __post_init__(self) -> None:
        """Make the shared objects now: two threads that need one at the same time would make two."""
        self.credentials = Credentials(self.settings)
        self.texts = KeptTexts(self.settings.paths.texts, self.settings.files.keep_mb * 1_000_000)

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The built-in tools; one set for all runs."""
        return builtin_tools()

    @cached_property
    def fetcher(self) -> Fetcher:
        """The guarded fetcher; one for all runs, because it spaces out the requests to a host."""
        from ava_roles.net.fetch import Fetcher

        return Fetcher(proxy=self.settings.fetch.proxy or None, hosts=self.settings.fetch.hosts)

    @cached_property
    def foreign(self) -> McpServers:
        return McpServers(self.settings, lambda: self.credentials.secrets, self.sandbox)

    @abstractmethod
    def render_result(self, result: dict[str, Any]) -> str:
        """Return a stored result as text, for a run that reads an earlier run's result."""

    def sandbox(self) -> Sandbox | Unavailable:
        """Return the sandbox for commands, or why there is none. The first call may take a second."""
        return sandbox_here(self.settings)

    def memory(self, user: str) -> Memory | None:
        """Return the notes of a user; only the owner of the data root has any."""
        return Memory(self.settings.paths.memory) if user == self.user else None

    def day_caps(self, user: str) -> DayCaps:
        return user_limits.day_caps(self.settings, user)
