"""What a proposal is resolved against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from pathlib import Path
from typing import TYPE_CHECKING

from ava_roles.catalog import Catalog
from ava_roles.errors import WorkspaceRefused
from ava_roles.mcp_client.run_servers import ToolListing
from ava_roles.mcp_client.server_tools import ServerEntry
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace
from ava_roles.tool import Tool
from ava_server.approval.scope import no_sandbox
from ava_server.budget.recent_calls import RecentCalls
from ava_server.config.secrets import Secret
from ava_server.core.errors import key_shapes
from ava_server.models.model_choice import ModelSettings, ProviderSearch

if TYPE_CHECKING:
    from ava_audit.rows import PastRun
    from ava_roles.net.search_engines import Engine
    from ava_server.config.settings import Policy, Settings


@dataclass(frozen=True)
class ResolveContext:
    """What a proposal is resolved against: everything that exists at this moment.

    Attributes:
        catalog: The role files, read just now.
        search: The search engine, if one is configured; a run may have the provider of its model instead.
        secrets: Reads what secrets are stored; asked only where a role lists some.
        sandbox: Finds what confines commands and MCP servers; asked only where a role has tools of either. Blocks.
        past: The user's last runs of the role, by which the proposal is estimated.
        notes: There are notes in memory: a tool that would find nothing is not offered.
        listings: What the servers offer that the role names.
        remote_roots: Folders of a user over HTTP, who gets no others; None for the person at this machine.
        recent: What the last calls of the model have shown.
        workspace: The workspace that the call gets, or why it is refused; None where it is not known yet.
        hide: Replaces keys and secrets in a text of the project's files.
    """

    settings: Settings
    models: ModelSettings
    catalog: Catalog
    tools: Mapping[str, Tool]
    search: Engine | ProviderSearch | None
    client_roots: Sequence[str]
    cwd: Path
    home: Path
    secrets: Callable[[], Mapping[str, Secret]] = dict
    sandbox: Callable[[], Sandbox | Unavailable] = no_sandbox
    past: Sequence[PastRun] = ()
    notes: bool = False
    servers: Mapping[str, ServerEntry] = member(default_factory=dict[str, ServerEntry])
    listings: Mapping[str, ToolListing] = member(default_factory=dict[str, ToolListing])
    background: bool = False
    remote_roots: tuple[Path, ...] | None = None
    policy: Policy = "ask"
    recent: RecentCalls = member(default_factory=RecentCalls)
    workspace: Workspace | WorkspaceRefused | None = None
    hide: Callable[[str], str] = lambda text: key_shapes().redact(text)[0]
