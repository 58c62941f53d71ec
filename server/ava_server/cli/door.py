"""Where a person decides: at the data root of this machine, or at a server elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending
    from ava_server.service.responses import ConfirmAnswer


class Door(Protocol):
    """What is decided about, and how."""

    async def waiting(self, ids: list[str]) -> list[Pending]:
        """Return the proposals that are meant, or all of this user that wait, the oldest first.

        Raises:
            BadInput: There is none of an id.
            Refused: One does not wait any more.
        """
        ...

    async def can_be_approved(self) -> None:
        """Look whether anything can be approved now, before anything is asked.

        Raises:
            Refused: It cannot.
        """
        ...

    async def decide(self, waiting: Sequence[Pending], decision: str, **more: Any) -> ConfirmAnswer:
        """Decide, with the PIN where it takes one.

        Raises:
            AvaError: It cannot be decided; says why.
        """
        ...

    async def begun(self, waiting: Sequence[Pending]) -> str:
        """Return what is said of what was approved: whether it begins."""
        ...
