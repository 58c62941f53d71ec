"""The server of the pages on this machine, which starts before the first proposal needs a link to them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ava_server.core import background
from ava_server.core.errors import AvaError, ConfigError

if TYPE_CHECKING:
    from ava_server.core.data_root import DataRoot

log = logging.getLogger("ava.pages")


class _Attempt:
    """One attempt to start it: over when `done`, and failed where it has a reason."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.address = ""
        self.why_not = ""


class LocalPages:
    """Starts the server of the pages in one task, however many calls want it; each call waits as long as it likes."""

    def __init__(self) -> None:
        self._wanted = anyio.Event()
        self._attempt = _Attempt()
        self._told = ""

    async def serve(self, root: DataRoot) -> None:
        """Start it whenever it is wanted, until cancelled; a failure is logged once, and each waiting call has it."""
        while True:
            await self._wanted.wait()
            attempt = self._attempt
            try:
                attempt.address = await anyio.to_thread.run_sync(
                    lambda: background.start_pages(root), abandon_on_cancel=True
                )
            except (AvaError, OSError) as error:
                attempt.why_not = str(error)
                if attempt.why_not != self._told:
                    log.warning("the pages cannot be served: %s", error)
                self._told = attempt.why_not
            self._wanted, self._attempt = anyio.Event(), _Attempt()
            attempt.done.set()

    def begin(self) -> None:
        """Begin to start it; does not wait."""
        self._wanted.set()

    async def address(self) -> str:
        """Return the address, once it runs. Raises ConfigError if it cannot be started; says why."""
        attempt = self._attempt
        self._wanted.set()
        await attempt.done.wait()
        if attempt.why_not:
            raise ConfigError(attempt.why_not)
        return attempt.address
