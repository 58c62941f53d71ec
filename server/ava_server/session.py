"""One host connection: whom it acts for, and what the log says of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from ava_audit.events import CancelledBy, Channel, Who
from ava_server.ids import AGENT


@dataclass
class Session:
    """A host connection.

    Attributes:
        id: Its id in the log.
        user: Whom it acts for.
        transport: `stdio`, `memory`, `http` or `terminal`.
        channel: Over which channel a decision of this session comes; only a person's own counts as a person's.
        by: Whose word it is when this session ends a run.
        pin_given: The approval PIN was given to this session, so that it decides also under the policy `human`.
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
    started: bool = False
    seen: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])

    @property
    def who(self) -> Who:
        """The orchestrator of this session, as the log names it."""
        return Who(self.id, AGENT, self.user)
