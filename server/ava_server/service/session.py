"""One host connection: whom it acts for, and what the log says of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ava_audit.events import CancelledBy, Channel, Who
from ava_server.core.ids import AGENT

if TYPE_CHECKING:
    from ava_server.config.tokens import Scope, Token


@dataclass
class Session:
    """A host connection.

    Attributes:
        id: Its id in the log.
        user: Whom it acts for.
        transport: `stdio`, `memory`, `http` or `terminal`.
        channel: Over which channel a decision of this session comes; only a person's own counts as a person's.
        by: Whose word it is when this session ends a run.
        pin_given: The approval PIN was given to this session, or its token stands for one (scope approve), so that it
            decides also under the policy `human`.
        token: With which it came, over HTTP.
        client: The client's name and version, once it has said them.
        roots: Folders that the client named.
        seen: What each run looked like when this session last polled it: a poll that saw nothing new is not logged.
    """

    user: str
    transport: str
    id: str = field(default_factory=lambda: f"sess-{secrets.token_hex(6)}")
    client: str | None = None
    client_version: str | None = None
    protocol: str | None = None
    roots: tuple[str, ...] = ()
    channel: Channel = "host_call"
    by: CancelledBy = "model"
    pin_given: bool = False
    token: Token | None = None
    started: bool = False
    seen: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])

    @property
    def remote(self) -> bool:
        """Whether it comes from another machine: then what is at hand here is not its user's."""
        return self.transport == "http"

    @property
    def audits(self) -> bool:
        """Whether it may read what belongs to others."""
        return self.token is not None and "audit" in self.token.scopes

    def may(self, scope: Scope) -> bool:
        """Tell whether it may do what takes a scope; on this machine everything is allowed."""
        if not self.remote:
            return True
        if self.channel == "http":  # a person who decides from elsewhere, and does nothing else
            scope = "approve"
        return self.token is not None and scope in self.token.scopes

    @property
    def who(self) -> Who:
        """The orchestrator of this session, as the log names it."""
        return Who(self.id, AGENT, self.user)
