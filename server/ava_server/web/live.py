"""Server-sent events: tell an open page that something on it has changed. The page then fetches that part again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ava_server.web.context import PageContext, found_or_404, reader_of
from ava_server.web.requests import HEADERS
from ava_server.web.site import Visitor

AT_MOST_EVERY_S = 0.5
"""Seconds between two events: a busy run writes a hundred entries a second."""
ALIVE_EVERY_S = 15.0
"""Seconds after which a comment shows that the connection lives: proxies close silent ones."""
RECONNECT_MS = 1_000
MOST_LOOKED_AT = 5_000
"""Entries since a page was made; after more, the page is told to look again without a look at them."""


class Live:
    """The stream of changes."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the path."""
        return [Route("/stream", found_or_404(self.stream), methods=["GET"])]

    async def stream(self, request: Request) -> Response:
        """Send `changed` for each change of the visitor's runs, or of the run that `run` names.

        With `after`, a change since that `seq` counts too: one that happened while the page was on its way.
        """
        visitor, head = reader_of(request), self._context.store.head
        after = request.query_params.get("after", "")
        seen = min(int(after), head) if after.isascii() and after.isdigit() and len(after) < 19 else head
        only = request.query_params.get("run")
        if only is not None:
            only = (await self._context.access(visitor).run(only, "run", reading=True)).id
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # nobody would read the stream, and it would stay open
            return Response(headers=headers, media_type="text/event-stream")
        return StreamingResponse(self._changes(visitor, only, seen), headers=headers, media_type="text/event-stream")

    async def _changes(self, visitor: Visitor, only: str | None, seen: int) -> AsyncGenerator[str]:
        store, told = self._context.store, anyio.current_time()
        yield f"retry: {RECONNECT_MS}\nevent: open\ndata: {seen}\n\n"
        while True:
            head = seen
            with anyio.move_on_at(told + ALIVE_EVERY_S):  # whatever other users do meanwhile
                head = await store.wait_for_entry_after(seen)
            if anyio.current_time() >= told + ALIVE_EVERY_S:
                told = anyio.current_time()
                yield ": alive\n\n"
            if head == seen:
                continue
            concerned = head - seen > MOST_LOOKED_AT
            if not concerned:
                head, concerned = await self._look(visitor, only, seen)
            seen = head
            if concerned:
                yield f"event: changed\ndata: {seen}\n\n"
                await anyio.sleep(AT_MOST_EVERY_S)

    async def _look(self, visitor: Visitor, only: str | None, after: int) -> tuple[int, bool]:
        """Return the newest `seq`, and whether something since `after` concerns the visitor: both of one state."""
        head, changed = await self._context.store.read(
            lambda view: (view.head(), view.changed_after(after, ("RunEnded",)))
        )
        return head, any(self._concerns(visitor, only, run_id, user) for run_id, user, _ended in changed)

    def _concerns(self, visitor: Visitor, only: str | None, run_id: str, user: str) -> bool:
        return run_id == only if only is not None else visitor.reads_all or user == visitor.user
