"""A token or session that ends while its request is answered: the client gets the whole answer or a 401, never half."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ava_server.http.http_settings import Reach, listen
from ava_server.http.limits import LOOK_EVERY_S, RequestInProgress, RequestLimits

BODY = b"the answer " * 1_000


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("watched", [False, True], ids=["at the next message", "between two messages"])
@pytest.mark.parametrize(("before", "status"), [(0, 401), (1, 401), (2, 200)])
async def test_an_answer_of_known_length_is_whole_or_refused(
    method: str, watched: bool, before: int, status: int
) -> None:
    app = Ending(before, whole=True, watched=watched)
    async with answering(app, lambda: app.valid) as base, httpx2.AsyncClient(timeout=20, trust_env=False) as http:
        more: dict[str, Any] = {"content": b"x" * 10_000} if method == "POST" else {}
        answer = await http.request(method, base, **more)  # raises where it is cut off
        assert answer.status_code == status, answer.text
        assert status == 401 or answer.content == BODY
        assert len(answer.content) == int(answer.headers["content-length"])
        app.valid, app.before = True, 9
        assert (await http.get(base)).content == BODY, "the connection can be used again"


@pytest.mark.parametrize("watched", [False, True], ids=["at the next message", "between two messages"])
async def test_a_stream_ends_where_the_token_ends(watched: bool) -> None:
    app = Ending(2, whole=False, watched=watched)
    async with answering(app, lambda: app.valid) as base, httpx2.AsyncClient(timeout=20, trust_env=False) as http:
        answer = await http.get(base)
        assert (answer.status_code, answer.content) == (200, BODY[: len(BODY) // 2])


@asynccontextmanager
async def answering(app: ASGIApp, counts: Callable[[], bool]) -> AsyncGenerator[str]:
    """A server whose requests `app` answers, as long as `counts` says that their token counts."""
    limits = RequestLimits()

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await RequestInProgress(scope, receive, send, limits).answered(app, "ana", counts)

    async def watched() -> None:
        pass

    server = uvicorn.Server(uvicorn.Config(served, lifespan="off", log_config=None, ws="none", http="h11"))
    socket = listen(Reach(port=0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [socket])
        tasks.start_soon(limits.watch_tokens, watched)
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            tasks.cancel_scope.cancel()
            socket.close()


class Ending:
    """An application in whose answer the token ends before a certain message."""

    def __init__(self, before: int, *, whole: bool, watched: bool) -> None:
        self.before, self.whole, self.watched = before, whole, watched
        self.valid = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/plain"), *([(b"content-length", b"%d" % len(BODY))] if self.whole else [])]
        messages: list[Message] = [{"type": "http.response.start", "status": 200, "headers": headers}]
        half = len(BODY) // 2
        messages += [{"type": "http.response.body", "body": BODY[:half], "more_body": True}]
        messages += [{"type": "http.response.body", "body": BODY[half:], "more_body": False}]
        for number, message in enumerate(messages):
            if number == self.before:
                self.valid = False
                if self.watched:  # the server notices between two messages
                    with anyio.move_on_after(2 * LOOK_EVERY_S):
                        await anyio.sleep_forever()
            await send(message)
