"""What foreign servers offer, asked before a run is proposed: started for a moment, and remembered for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio

from ava_roles.mcp_client.connection import Means, connected, why_not
from ava_roles.mcp_client.entry import ServerEntry
from ava_roles.mcp_client.tools import Offered

log = logging.getLogger("ava.foreign")

LIST_S = 10.0
"""How long a server may take from its start until its tools are known, while somebody waits for a proposal."""
REMEMBERED_S, FAULT_REMEMBERED_S = 300.0, 15.0


@dataclass(frozen=True)
class Listing:
    """What one server offers, or why nothing.

    Attributes:
        tools: What it offers.
        fault: Why it cannot be used, in words of ours, to be read after its name; empty where it can.
    """

    tools: tuple[Offered, ...] = ()
    fault: str = ""


class Known:
    """Asks servers what they offer, each configuration once for a while, and never twice at the same time.

    Args:
        means: Makes what a server is started with.
    """

    def __init__(self, means: Callable[[ServerEntry], Awaitable[Means]]) -> None:
        self._means = means
        self._seen: dict[str, tuple[float, Listing]] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def offers(self, entries: Iterable[ServerEntry]) -> Mapping[str, Listing]:
        """Return what servers offer, by name; all are asked side by side, each for 10 s at most."""
        found: dict[str, Listing] = {}

        async def one(entry: ServerEntry) -> None:
            found[entry.name] = await self._one(entry)

        async with anyio.create_task_group() as tasks:
            for entry in entries:
                tasks.start_soon(one, entry)
        return found

    def forget(self) -> None:
        """Ask again the next time."""
        self._seen.clear()

    async def _one(self, entry: ServerEntry) -> Listing:
        async with self._locks.setdefault(entry.digest, anyio.Lock()):
            until, listing = self._seen.get(entry.digest, (0.0, Listing()))
            if time.monotonic() < until:
                return listing
            listing = await look(entry, await self._means(entry))
            kept_s = FAULT_REMEMBERED_S if listing.fault else REMEMBERED_S
            self._seen[entry.digest] = (time.monotonic() + kept_s, listing)
            return listing


async def look(entry: ServerEntry, means: Means) -> Listing:
    """Start or reach a server for a moment, and return what it offers."""
    try:
        with anyio.move_on_after(LIST_S):
            async with connected(entry, means) as link:
                return Listing(await link.tools())
    except Exception as error:  # whatever a foreign program does is no fault of whoever asks
        why = why_not(error)
        log.info("the MCP server %s %s (%s)", entry.name, why, type(error).__name__)
        return Listing(fault=why)
    return Listing(fault=f"did not answer within {LIST_S:g} s")
