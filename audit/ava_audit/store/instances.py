"""The live processes on one log: each is an instance with a name, and a run's claim names the one that owns it.

With the embedded database, an instance lives as long as it holds a lock file of the data root. With a database on a
server, it also has a lease there, so that processes on other machines see whether it lives (`postgres_leases.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

LEASE_S = 15.0
"""How long a process counts as alive after it last renewed its lease."""
Kind = Literal["server", "worker", "command"]


@dataclass(frozen=True)
class Announcement:
    """What an instance tells the others about itself.

    Attributes:
        kind: What it is.
        address: Where other servers reach it, as `http://host:port`; empty if nowhere.
        offers: What it can run, as JSON values.
    """

    kind: Kind = "command"
    address: str = ""
    offers: Mapping[str, Any] = field(default_factory=dict[str, Any])


QUIET = Announcement()
"""A process that tells nothing about itself."""


@dataclass(frozen=True)
class LiveInstance:
    """An instance that lives.

    Attributes:
        name: Its name.
        host: The name of its machine.
        told: What it has told.
    """

    name: str
    host: str
    told: Announcement


class Membership(Protocol):
    """This process as an instance.

    Attributes:
        name: Its name, which no other instance has had.
    """

    name: str

    def announce(self, address: str) -> None:
        """Say where this process answers the others; empty takes that back. Blocking, for a moment.

        Raises:
            StoreUnavailable: The database cannot be written.
            OSError: The file cannot be written.
        """
        ...

    def release(self) -> None:
        """Let others see at once that it owns nothing any more. Blocking, for a moment."""
        ...

    def remove(self) -> None:
        """Release it, and remove what it has left. Blocking, for a moment."""
        ...


class Instances(Protocol):
    """The live processes on one log."""

    def join(self, told: Announcement = QUIET, /) -> Membership:
        """Become an instance. Blocking.

        Raises:
            StoreUnavailable: The database cannot be written.
            OSError: The lock file cannot be made.
        """
        ...

    async def keep(self, membership: Membership, /) -> None:
        """Show that this process lives, until cancelled."""
        ...

    def alive(self, name: str) -> bool:
        """Tell whether an instance lives; unknown counts as yes. Blocking, for a moment."""
        ...

    def address_of(self, name: str) -> str | None:
        """Return where a live instance answers; None if it is dead, or answers nobody. Blocking, for a moment."""
        ...

    def any_alive(self) -> bool:
        """Tell whether any instance lives. Blocking, for a moment."""
        ...

    def live(self) -> list[LiveInstance]:
        """Return the live instances, as far as they announce themselves. Blocking, for a moment.

        Raises:
            StoreUnavailable: The database cannot be read.
        """
        ...

    def remove_dead(self, keep: frozenset[str]) -> None:
        """Remove what dead instances have left. Blocking.

        Args:
            keep: Instances that a run's claim names; their files stay.
        """
        ...

    def close(self) -> None:
        """Close what it has opened to look at others. Blocking, for a moment."""
        ...
