"""The addresses of Ava's pages, for the person behind one call: this server's, or those of this machine with a code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import anyio
import anyio.to_thread

from ava_server.core import background
from ava_server.core.errors import AvaError
from ava_server.mcp_server.app import HTTP, token_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from ava_server.approval.start_form import LinkNeed
    from ava_server.mcp_server.app import App

LINK_S = 0.8
"""Seconds after its begin until which a call that proposes waits for the pages to start; it answers within a second."""
LEAST_LINK_S = 0.2
"""Seconds that such a call waits for them in any case."""
LATER_LINK_S = 8.0
"""Seconds that a later call, which gives the link, waits for them."""


class CallLinks:
    """The addresses of pages for the person behind one call; its `ProposalLinks`."""

    def __init__(self, ctx: ServerRequestContext[App, Any], began: float) -> None:
        """`began` is when the call came, as `anyio.current_time` tells it."""
        self._ctx = ctx
        self._began = began
        self.renewed: list[str] = []

    @property
    def possible(self) -> bool:
        from ava_extras import has_extra

        return has_extra("web")

    async def address(self) -> str | None:
        """Return the address of the pages; None where they cannot be served."""
        with suppress(AvaError, OSError), anyio.move_on_after(background.READY_S + 2):
            return await self._address()
        return None

    async def _address(self) -> str | None:
        """Return this server's address, or on this machine that of `ava ui`, which is started.

        Raises ConfigError if it cannot be started; says why.
        """
        from ava_server.config.tokens import OF_THIS_MACHINE
        from ava_server.core.data_root import os_user

        app = self._ctx.lifespan_context
        token = token_of(self._ctx) if app.transport == HTTP else None
        here = token is None or (token.name.startswith(OF_THIS_MACHINE) and token.user == os_user())
        if not here:  # another user may have a token with such a name
            return app.url
        return await app.pages.address()

    async def link(self, ids: Sequence[str], need: LinkNeed) -> str | None:
        """Return the page for proposals, which signs in the first person to open it.

        None while the pages start, or the last link is good. Raises ConfigError: the pages cannot be served; says why.
        """
        from ava_server.config.sign_in import BrowserSessions
        from ava_server.service.page_links import page_of

        app = self._ctx.lifespan_context
        address = None
        sessions = BrowserSessions(app.runtime.settings.paths.browser_sessions)
        again = need != "first"
        if again:
            linked = await anyio.to_thread.run_sync(lambda: sessions.linked(opened=need == "expired"))
            if linked.issuperset(ids):
                return None
        if self.possible:
            left_s = self._began + LINK_S - anyio.current_time()
            wait_s = LATER_LINK_S if again else max(left_s, LEAST_LINK_S)
            # The pages go on starting after that; until then, the person can decide in a terminal.
            with anyio.move_on_after(wait_s):
                address = await self._address()
        if address is None:
            return None
        if address == app.url:  # this server's own pages, for which a person signs in
            return None if again else page_of(address, ids)
        user = app.runtime.user
        code = await anyio.to_thread.run_sync(lambda: sessions.issue_code(user, only=ids))
        return f"{address}/enter?{urlencode({'code': code, 'to': page_of('', ids)})}"
