"""What one user, and who has no token at all, can use up of a server over HTTP: not what the others need."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.subscriptions import ResourcesListChanged, ServerEvent
from support.http_server import BOTH, HELLO, META, PARSERS, HttpServer, bearer, changed_command, serve_http, token
from support.stdio import MODERN, MODES, make_root, model_env, read_answer, read_log, until

pytestmark = pytest.mark.slow

LISTEN = {"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
          "params": {"notifications": {"resourcesListChanged": True}, "_meta": META}}  # fmt: skip
LISTENS = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
ENV = model_env("http://127.0.0.1:9/v1")


def lowered(*settings: str, parser: str = "httptools") -> tuple[str, ...]:
    """A server of its own, with lower limits."""
    names = "from ava_server.web import http_connection; from ava_server.http import limits, server, sessions"
    names += "; from ava_server.mcp_server import app"
    return changed_command(names, *settings, parser=parser)


async def opened(server: HttpServer, text: str) -> httpx2.Response:
    return await server.post("/mcp", text, json=HELLO, headers=BOTH)


async def test_limits_sessions_per_user_and_ends_idle_ones_without_affecting_others(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    anas, again, bens = token(root, "ana"), token(root, "ana", name="again"), token(root, "ben")
    few = lowered("sessions.SESSIONS_OF_USER = 3", "sessions.IDLE_S = 3.0")
    async with serve_http(root, env=ENV, program=few) as server:
        sessions = [(await opened(server, anas)).headers["mcp-session-id"] for _each in range(2)]
        sessions.append((await opened(server, again)).headers["mcp-session-id"])
        for text in (anas, again):  # it is the user's limit, whatever the token
            refused = await opened(server, text)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
            assert "3 sessions of ana" in refused.json()["error_description"]
        assert (await opened(server, bens)).status_code == 200
        async with server.client(anas) as client:  # the stateless era needs none
            read_answer(await client.call_tool("check_subagent", {}))
        headers = {**BOTH, "Mcp-Session-Id": sessions[0]}
        assert (await server.request("DELETE", "/mcp", anas, headers=headers)).status_code == 200
        assert (await opened(server, anas)).status_code == 200
        await until_open(server, anas)
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        gone = await server.post("/mcp", anas, json=listing, headers={**BOTH, "Mcp-Session-Id": sessions[1]})
        assert gone.status_code == 404, "the session that was idle for longest has ended"


async def until_open(server: HttpServer, text: str) -> None:
    with anyio.fail_after(40):
        while (await opened(server, text)).status_code != 200:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.2)


async def test_limits_streams_and_calls_per_user_without_affecting_others(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    anas, bens = token(root, "ana"), token(root, "ben")
    few = lowered("limits.STREAMS_OF_USER = 3", "limits.CALLS_OF_USER = 4")
    async with serve_http(root, env=ENV, program=few) as server, httpx2.AsyncClient(timeout=20) as http:
        async with contextlib.AsyncExitStack() as streams:
            for _each in range(3):
                stream = http.stream("POST", server.url, json=LISTEN, headers={**LISTENS, **bearer(anas)})
                assert (await streams.enter_async_context(stream)).status_code == 200
            refused = await server.post("/mcp", anas, json=LISTEN, headers=LISTENS)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
            assert "3 streams are open for ana" in refused.json()["error_description"]
            assert (await server.get("/approvals", anas)).status_code == 429, "every GET may be a stream"
            async with server.client(anas) as client:
                read_answer(await client.call_tool("check_subagent", {}))
            async with http.stream("POST", server.url, json=LISTEN, headers={**LISTENS, **bearer(bens)}) as other:
                assert other.status_code == 200
        lines = [half_sent(server, anas) for _each in range(4)]
        try:
            await anyio.sleep(0.3)
            refused = await server.post("/mcp", anas, json=HELLO, headers=BOTH)
            assert refused.status_code == 429 and "4 requests are being answered for ana" in refused.text
            assert (await opened(server, bens)).status_code == 200
        finally:
            for line in lines:
                line.close()
        await until_open(server, anas)


def half_sent(server: HttpServer, text: str) -> socket.socket:
    """A request whose body does not come."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=8)
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n"
    line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
    return line


@contextlib.contextmanager
def silent(server: HttpServer, number: int, first: bytes = b"") -> Generator[list[socket.socket]]:
    """Connections of somebody without a token."""
    lines: list[socket.socket] = []
    try:
        for _each in range(number):
            line = socket.create_connection(("127.0.0.1", server.port), timeout=8)
            line.sendall(first)
            lines.append(line)
        yield lines
    finally:
        for line in lines:
            line.close()


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "first",
    ["", "GET /healthz {}", "POST /mcp {}Content-Length: 9\r\n\r\n"],
    ids=["silent", "without the rest of its headers", "unauthorized and without its body"],
)
async def test_too_many_connections_are_closed_and_those_without_a_request_give_their_place_back(
    tmp_path: Path, first: str, parser: str
) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    few = lowered("server.CONNECTIONS = 40", "http_connection.HEADERS_WITHIN_S = 2.0", parser=parser)
    async with serve_http(root, env=ENV, program=few) as server, httpx2.AsyncClient(timeout=20) as http:
        stream = http.stream("POST", server.url, json=LISTEN, headers={**LISTENS, **bearer(text)})
        async with stream as listening:
            assert listening.status_code == 200
            with silent(server, 150, first.format("HTTP/1.1\r\nHost: localhost\r\n").encode()) as lines:
                await until(lambda: sum(gone(line) for line in lines) >= 110, within_s=1.5)
                await until_answered(server, text)
                async with server.client(text, mode="auto") as client:
                    proposed = await client.call_tool(
                        "spawn_subagent", {"role": "web_crawler", "task": "https://a.example"}
                    )
                    assert not proposed.is_error
                news = b""
                async for piece in listening.aiter_bytes():
                    news += piece
                    if b"list_changed" in news:
                        break
        assert server.stderr == ""


async def until_answered(server: HttpServer, text: str) -> None:
    """Wait until a connection finds a place."""
    with anyio.fail_after(40):
        while True:
            with contextlib.suppress(httpx2.TransportError):
                assert (await server.get("/x", text)).status_code == 404
                return
            await anyio.sleep(0.2)


@pytest.mark.parametrize("parser", PARSERS)
async def test_a_burst_of_connections_is_over_when_the_time_for_headers_is(tmp_path: Path, parser: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    few = lowered("server.CONNECTIONS = 300", "http_connection.HEADERS_WITHIN_S = 2.0", parser=parser)
    async with serve_http(root, env=ENV, program=few) as server:
        with silent(server, 700):
            began = time.monotonic()
            await until_answered(server, text)
            assert time.monotonic() - began < 15
            assert server.stderr == ""


def gone(line: socket.socket) -> bool:
    line.settimeout(0.01)
    try:
        while data := line.recv(65_536):
            assert data
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


async def test_requests_without_a_token_are_cheap(tmp_path: Path) -> None:
    """Whoever has none costs the server a fraction of a call, and reaches nothing behind the door."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root, env=ENV) as server, httpx2.AsyncClient(timeout=20) as http:
        body = b'{"x": "' + b"y" * 3_000_000

        async def took(headers: dict[str, str], content: bytes, number: int) -> float:
            began = time.monotonic()
            for _each in range(number):
                await http.post(server.url, content=content, headers={**BOTH, **headers})
            return (time.monotonic() - began) / number

        listing = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list", "Content-Type": "application/json"}
        await took(bearer(text), listing, 3)
        refused = await took({**modern, **bearer(f"{text}x")}, listing, 200)
        assert refused < 0.02, refused
        before = len(read_log(root, "SessionStart", "ToolCall"))
        line = socket.create_connection(("127.0.0.1", server.port), timeout=8)
        with line:
            head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n"
            began = time.monotonic()
            line.sendall(head.encode())
            assert b" 401 " in line.recv(65_536), "it is answered before the body has come"
            assert time.monotonic() - began < 10
        assert len(read_log(root, "SessionStart", "ToolCall")) == before


async def test_a_client_that_invents_names_displaces_only_its_own_entries(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    anas, bens = token(root, "ana"), token(root, "ben")
    few = lowered("app.MOST_OF_TOKEN = 3")
    async with serve_http(root, env=ENV, program=few) as server, server.client(bens, name="bens-host") as ben:
        read_answer(await ben.call_tool("check_subagent", {}))
        for number in range(6):
            async with server.client(anas, name=f"made-up-{number}") as ana:
                read_answer(await ana.call_tool("check_subagent", {}))
        await until(lambda: len(read_log(root, "SessionEnd")) == 3)
        read_answer(await ben.call_tool("check_subagent", {}))
        starts = [entry.content["client"] for entry in read_log(root, "SessionStart")]
        assert starts.count("bens-host") == 1 and len(starts) == 7


@pytest.mark.parametrize("mode", MODES)
async def test_clients_are_told_at_shutdown_that_their_streams_end(tmp_path: Path, mode: str) -> None:
    """The SDK's client raises where a stream is broken off, and comes to an end where it was told of it."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root, "--drain", "2s", env=ENV) as server:
        async with server.client(text, mode=mode) as client:
            if mode == "legacy":  # its stream has no end but that of the connection
                server.signal()
            else:
                heard: list[ServerEvent] = []
                async with client.listen(resources_list_changed=True) as stream:
                    read_answer(
                        await client.call_tool("spawn_subagent", {"role": "web_crawler", "task": "https://a.example"})
                    )
                    began = time.monotonic()
                    async for event in stream:
                        heard.append(event)
                        server.signal()
                assert heard == [ResourcesListChanged()] and time.monotonic() - began < 15
        assert await server.exited() == 0


async def test_a_message_for_a_session_that_ends_meanwhile_leaves_no_traceback(tmp_path: Path) -> None:
    """As when a client reports that it is ready and leaves at once."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    ends = (
        "from mcp.server.streamable_http import StreamableHTTPServerTransport as T; told = T._message_metadata",
        "T._message_metadata = lambda self, request, **more: (request.headers.get('x-leave')"
        " and self._read_stream_writer.close(), told(self, request, **more))[1]",
    )
    async with serve_http(root, env=ENV, program=lowered(*ends)) as server:
        headers = {**BOTH, "Mcp-Session-Id": (await opened(server, text)).headers["mcp-session-id"], "X-Leave": "yes"}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await server.post("/mcp", text, json=ready, headers=headers)).status_code == 202
        assert (await server.request("GET", "/healthz")).status_code == 200, "serves on"


def test_the_limits_are_consistent_with_each_other() -> None:
    from ava_server.http import limits
    from ava_server.http import server as connection
    from ava_server.http import sessions as http_sessions

    of_one: Any = limits.CALLS_OF_USER + limits.STREAMS_OF_USER
    assert of_one * 6 < connection.CONNECTIONS
    assert http_sessions.SESSIONS_OF_USER * 6 < http_sessions.SESSIONS
    assert limits.STREAMS_OF_USER >= http_sessions.SESSIONS_OF_USER, "a client of the handshake era has one open"
