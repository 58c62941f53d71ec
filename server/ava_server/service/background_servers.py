"""The servers of the background process: one for each that somebody on this machine wants, until it is idle."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from ava_extras import ExtraMissing, load
from ava_server.core import background
from ava_server.core.background import LocalServer, http_server, pages_port, pages_server
from ava_server.core.errors import AvaError, leaves_of
from ava_server.core.shutdown import GracefulShutdown

if TYPE_CHECKING:
    from ava_server.service.runtime import Runtime

log = logging.getLogger("ava.worker")


path_exists = os.path.lexists
"""One system call, so it needs no thread; it is made several times a second."""


@dataclass
class _RunningServer:
    """One server of this process, until `over`."""

    ending: GracefulShutdown
    over: anyio.Event


class Listeners:
    """The servers for this machine in the background process.

    Attributes:
        newer: Set once a newer version takes over.
    """

    def __init__(self, runtime: Runtime, beside: str = "") -> None:
        """`beside`: the name of a worker beside the first one; that one does not listen."""
        self.newer = anyio.Event()
        self._runtime = runtime
        self._root = runtime.settings.paths
        self._servers = () if beside else (pages_server(self._root), http_server(self._root))
        self._running: dict[str, _RunningServer] = {}
        self._ends = False

    @property
    def active(self) -> bool:
        return bool(self._running)

    async def follow(self) -> None:
        """Start the servers that are wanted, until cancelled; one that fails does not affect the runs."""
        if not self._servers:  # a worker beside the first one
            return
        async with anyio.create_task_group() as tasks:
            while True:
                if path_exists(self._root.worker_leave):
                    self.newer.set()
                for server in self._servers:
                    is_new = server.what not in self._running and path_exists(server.wanted)
                    if is_new and not self._ends:
                        self._begin(server, tasks)
                await anyio.sleep(background.LOOK_EVERY_S)

    def _begin(self, server: LocalServer, tasks: anyio.abc.TaskGroup) -> None:
        port = server.wanted_port()
        if port is None:  # it was withdrawn at this moment
            return
        running = _RunningServer(GracefulShutdown(0), anyio.Event())
        self._running[server.what] = running
        tasks.start_soon(self._listen, server, port, running)

    async def end(self, *, for_good: bool) -> None:
        """Let calls in progress finish, and end all. Without `for_good`, the next process goes on listening."""
        self._ends = True
        if for_good:
            for server in self._servers:
                self._withdraw(server)
        for running in [*self._running.values()]:
            running.ending.hurry()
            running.ending.asked.set()
        for running in [*self._running.values()]:
            await running.over.wait()

    async def _listen(self, server: LocalServer, port: int, running: _RunningServer) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._withdraw_when_idle, server, running.ending)
                await self._serve(server, port, running.ending)
                tasks.cancel_scope.cancel()
            if not running.ending.asked.is_set():  # another process is that server
                self._withdraw(server)
        except Exception as failed:
            error = next(leaves_of(failed))
            expected = isinstance(error, AvaError | ExtraMissing | OSError)
            log.error("%s: %s", server.what, error, exc_info=None if expected else failed)
            self._withdraw(server)
        finally:
            del self._running[server.what]
            running.over.set()

    async def _withdraw_when_idle(self, server: LocalServer, ending: GracefulShutdown) -> None:
        """Remove the wish for a server as soon as it begins to end; a later wish starts the next one."""
        await ending.asked.wait()
        if not self._ends:
            self._withdraw(server)

    def _withdraw(self, server: LocalServer) -> None:
        with suppress(OSError):
            server.wanted.unlink(missing_ok=True)

    async def _serve(self, server: LocalServer, port: int, ending: GracefulShutdown) -> None:
        """Be a server until it has ended. Raises ExtraMissing if the package with its web server is not installed.

        `port`: where it is wanted; 0 leaves the choice to the server. The pages try the next ports if theirs is taken.
        """
        extra_name = "web" if server.serves_pages else "team"
        http_server_module = await anyio.to_thread.run_sync(load, extra_name)
        if server.serves_pages:
            first_port = port or await anyio.to_thread.run_sync(pages_port, self._root)
            reach = http_server_module.Reach(
                host="localhost", port=first_port, idle_s=server.idle_s, drain_s=server.drain_s
            )
        else:
            reach = http_server_module.Reach(port=port, idle_s=server.idle_s, drain_s=server.drain_s)
        await http_server_module.listen(self._runtime, server, reach, ending)
