"""Requests that are malformed, never end or say nothing, at the HTTP server."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.http_server import PARSERS, changed_command, serve_http, token
from support.network.raw_http import client_meta, send_raw
from support.stdio import MODERN, make_root, model_env

from ava_server.config.tokens import SCOPES
from ava_server.http.limits import SKIP_WITHIN_S

pytestmark = pytest.mark.slow
ENV = model_env("http://127.0.0.1:9/v1")


@pytest.mark.parametrize("parser", PARSERS)
async def test_no_malformed_request_gets_two_answers_or_causes_a_traceback(tmp_path: Path, parser: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        for status, pieces in malformed_requests(parser, text):
            got = await anyio.to_thread.run_sync(send_raw, server.port, *(piece.encode("latin-1") for piece in pieces))
            assert got.count(b"HTTP/1.1 ") == bool(status), pieces
            assert status in got.split(b"\r\n")[0] and b"ava_build_info" not in got, (pieces, got)
        assert (await server.get("/metrics", text)).status_code == 200
        assert server.stderr == "", "nothing of it can fill a disk with lines"


@pytest.mark.parametrize("parser", PARSERS)
async def test_what_never_ends_is_cut_off(tmp_path: Path, parser: str) -> None:
    """Whatever it is that a client without a token sends, the server keeps little of it."""
    get, post = "GET /x HTTP/1.1\r\nHost: localhost\r\n", "POST /x HTTP/1.1\r\nHost: localhost\r\n"
    chunked = f"{post}Transfer-Encoding: chunked\r\n\r\n"

    def cut_off(port: int, head: str, more: bytes) -> bool:
        """Send 64 MiB, or as much as is taken."""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            try:
                line.sendall(head.encode())
                for _each in range(1024):
                    line.sendall(more * (65_536 // len(more)))
            except OSError:
                return True
        return False

    async with serve_http(make_root(tmp_path / "data"), env=ENV, program=changed_command(parser=parser)) as server:
        for head, more in (
            ("GET /", b"x"), ("G", b"G"), ("", b"\r\n"), (get, b"x"), (f"{get}X: ", b"x"), (get, b"x:\r\n"),
            (f"{get}X:", b" "), (chunked, b"0"), (f"{chunked}1;", b"x"), (f"{chunked}0\r\n", b"x:\r\n"),
            (f"{chunked}0\r\nX: ", b"x"), (f"{get}\r\n", f"{get}\r\n".encode()),
        ):  # fmt: skip
            assert await anyio.to_thread.run_sync(cut_off, server.port, head, more), (head, more)
        many = get + "".join(f"x{number}:\r\n" for number in range(5_000))
        assert b" 200 " not in await anyio.to_thread.run_sync(send_raw, server.port, f"{many}\r\n".encode())
        assert (await server.get("/healthz")).status_code == 200


@pytest.mark.parametrize("parser", PARSERS)
async def test_a_request_that_would_rather_speak_http_2_is_answered_with_its_body(tmp_path: Path, parser: str) -> None:
    """As Java's client asks with every first request."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    ask = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    body = json.dumps({"decision": "reject", "pending_ids": ["P-0dd0dd0d"]})
    post = f"POST /approvals HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n"
    head, last = f"{post}{ask}Content-Length: {len(body)}\r\n\r\n", f"{post}Content-Length: {len(body)}\r\n\r\n{body}"
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        for pieces in ((f"{head}{body}", last), (head, body, last), (head[:50], head[50:] + body[:9], body[9:], last)):
            got = await anyio.to_thread.run_sync(send_raw, server.port, *map(str.encode, pieces))
            assert got.count(b"HTTP/1.1 409 ") == 2, got
        inside = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{ask}Authorization: Bearer {text}\r\n\r\n"
        early = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        # The rest of a request that has its 401 already, and in the same piece the beginning of another one.
        behind = (early, "abcdPOST /x HTTP/1.1\r\nX: ", inside)
        assert b"ava_build_info" not in await anyio.to_thread.run_sync(send_raw, server.port, *map(str.encode, behind))


async def test_a_client_that_leaves_with_a_request_behind_its_stream_keeps_no_place(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    body = json.dumps({"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
                       "params": {"notifications": {}, "_meta": client_meta()}})  # fmt: skip
    stream = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream, application/json\r\nMCP-Protocol-Version: {MODERN}\r\n"
        f"Mcp-Method: subscriptions/listen\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    few = changed_command("from ava_server.http import limits", "limits.STREAMS_OF_USER = 1")
    async with serve_http(root, env=ENV, program=few) as server:
        got = await anyio.to_thread.run_sync(
            send_raw, server.port, stream.encode(), b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert got.startswith(b"HTTP/1.1 200 ")
        with anyio.fail_after(25):
            while not got.startswith(b"HTTP/1.1 404 "):
                got = await anyio.to_thread.run_sync(
                    send_raw, server.port, stream.replace("POST /mcp", "GET /x").encode()
                )
                await anyio.sleep(0.2)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("why", "status"), [("no token", 401), ("origin", 403), ("host", 421)])
async def test_a_refusal_waits_for_the_body_that_a_proxy_still_passes_on(
    tmp_path: Path, why: str, status: int, parser: str
) -> None:
    root = make_root(tmp_path / "data")
    host = "evil.example" if why == "host" else "localhost"
    lines = [f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"]
    if why != "no token":
        lines.append(f"Authorization: Bearer {token(root, 'ana', *SCOPES)}\r\n")
    if why == "origin":
        lines.append("Origin: https://evil.example\r\n")
    head, expects = "".join(lines).encode(), b"Expect: 100-continue\r\n"
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as line:
            await line.send(head + b"\r\n" + b" " * 50)
            with anyio.move_on_after(0.3) as waited:
                await line.receive()
            assert waited.cancelled_caught, "Go's proxies lose an answer that comes before the rest of the body"
            await line.send(b" " * 50)
            assert f"HTTP/1.1 {status} ".encode() in await line.receive()
        for never in (head + b"\r\n", head + expects + b"\r\n"):
            async with await anyio.connect_tcp("127.0.0.1", server.port) as line:
                await line.send(never)
                with anyio.fail_after(SKIP_WITHIN_S + 3):
                    got = await line.receive()
                assert got.startswith(f"HTTP/1.1 {status} ".encode()), got


def malformed_requests(parser: str, text: str) -> list[tuple[bytes, tuple[str, ...]]]:
    """Return the status of the only answer, if there is one, and what is sent piece by piece, with a token."""
    known = f"Host: localhost\r\nAuthorization: Bearer {text}\r\n"
    second = f"GET /metrics HTTP/1.1\r\n{known}\r\n"
    listen = json.dumps({"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
                         "params": {"notifications": {}, "_meta": client_meta()}})  # fmt: skip
    stream = (
        f"POST /mcp HTTP/1.1\r\n{known}Content-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: subscriptions/listen\r\nContent-Length: {len(listen)}\r\n\r\n"
    )
    post = f"POST /approvals HTTP/1.1\r\n{known}"
    strict = b" 400 " if parser == "httptools" else b""  # what h11 takes, though others read it differently
    return [
        (b" 400 ", (f"{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: chunked\r\nContent-Length: 400\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd{second}",)),
        (b" 400 ", (f"{post}Content-Length: +4\r\n\r\nabcd{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\n{known}Host: localhost\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\0\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.1\r\nHost: local\thost\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.1\r\nHost: localhost\\@evil\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 403 ", (f"GET /metrics HTTP/1.1\r\n{known}Origin: http://local\thost\r\n\r\n",)),
        (strict or b" 404 ", (f"GET http://evil.example/metrics HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"CONNECT evil.example:443 HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /metrics#x HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /x HTTP/2.0\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /x HTTP/1.1\n{known}\n".replace("\r\n", "\n"),)),
        (strict or b" 401 ", (f"GET /x HTTP/1.1\r\nHost: localhost\r\nX: a\r\n {known.splitlines()[1]}\r\n\r\n",)),
        (b" 400 ", (f"{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Content-Length: -1\r\n\r\n{second}",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\n{known}X\0: y\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics\0 HTTP/1.1\r\n{known}\r\n",)),
        (b" 400 ", (f"GET /x HTTP/1.1\r\nHost: localhost\rAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 401 ", (f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
                    f"{known.splitlines()[1]}\r\n\r\n",)),
        (b" 421 ", (f"POST /x HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{known}\r\n",)),
        *((b" 404 ", (f"GET {path} HTTP/1.1\r\n{known}\r\n",))
          for path in ("//metrics", "/metrics/", "/./metrics", "/metrics;x", "/METRICS", "/metrics%00", "/x/metrics")),
        *((b" 401 ", (f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n",))
          for path in ("//healthz", "/healthz/", "/healthz/../metrics", "/healthz%2f", "/%6detrics", "/healthz;x")),
        (b"", ("POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "zz\r\n")),
        (b"", (f"POST /mcp HTTP/1.1\r\n{known}Transfer-Encoding: chunked\r\n\r\n", "zz\r\n")),
        (b"", (f"POST /mcp HTTP/1.1\r\n{known}Content-Length: 100\r\n\r\n{{",)),
        (b"", (f"{post}Content-Length: 100\r\n\r\n{{",)),
        (b"", (f"{post}Transfer-Encoding: chunked\r\n\r\n", f"5;x\ny\r\nabcde\r\n0\r\n\r\n{second}")),
        (b"", (f"{post}Transfer-Encoding: chunked\r\n\r\n", f"+5\r\nabcde\r\n0\r\n\r\n{second}")),
        (b" 200 ", (stream, listen, "\0\0no HTTP\r\n\r\n")),
    ]  # fmt: skip
