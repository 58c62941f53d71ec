"""Cables between processes and a server: each passes a connection's bytes on, and can be unplugged for a while.

with run_cables(5432, ["127.0.0.1"] * 5) as cables:
    ... cables[0].port ...
    cables[0].unplug("to server")
    cables[0].plug_in(reset=False)   # what was on its way arrives late, as after a retransmission

To both ends, an unplugged cable is silence: new connections get no answer, and no end is told that the other has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from support.threads import listen_in_thread

Way = Literal["to server", "from server"]
WAYS: tuple[Way, ...] = ("to server", "from server")


class Cable:
    """One process's way to the server: the `port` where it connects, and the `open` connections."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.open = 0
        self.loop: asyncio.AbstractEventLoop
        self._server_port = server_port
        self._flows = {way: asyncio.Event() for way in WAYS}
        self._ends: set[asyncio.StreamWriter] = set()
        for flows in self._flows.values():
            flows.set()

    def unplug(self, *ways: Way) -> None:
        """Hold what is sent these ways; both, if none is named."""
        for way in ways or WAYS:
            self.loop.call_soon_threadsafe(self._flows[way].clear)

    def plug_in(self, *, reset: bool) -> None:
        """Let bytes pass again: those that were held too, or with `reset`, only those of new connections."""
        self.loop.call_soon_threadsafe(self._plug_in, reset)

    def _plug_in(self, reset: bool) -> None:
        if reset:
            for end in self._ends:
                end.transport.abort()
        for flows in self._flows.values():
            flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the bytes of one connection, in both directions."""
        self.open += 1
        ends = [writer]
        self._ends.add(writer)
        try:
            await self._flows["to server"].wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            ends.append(far_writer)
            self._ends.add(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, far_writer, "to server"))
                tasks.create_task(self._pass_on(far_reader, writer, "from server"))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            for end in ends:
                self._ends.discard(end)
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        flows = self._flows[way]
        while data := await reader.read(65_536):
            await flows.wait()
            writer.write(data)
            await writer.drain()
        await flows.wait()
        if writer.can_write_eof():
            with suppress(OSError):
                writer.write_eof()


@contextmanager
def run_cables(server_port: int, hosts: Sequence[str]) -> Generator[list[Cable]]:
    """Run cables to a port of this machine, in a thread, until the block ends: one from each of some addresses."""
    cables = [Cable(server_port) for _ in hosts]
    with listen_in_thread("cables", *(cable.serve for cable in cables), hosts=hosts) as (ports, loop):
        for cable, port in zip(cables, ports, strict=True):
            cable.port, cable.loop = port, loop
        yield cables
