"""The door of the HTTP server, attacked: tokens, names, origins, sizes, slowness, and what is written down of it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from support.http_server import PARSERS, changed_command, serve_http, token
from support.stdio import MODERN, MODES, make_root, read_answer, until
from support.terminal import ava

from ava_server.config.tokens import BEGINS, SCOPES, revoke_token
from ava_server.core.addresses import proxies_of, public_url
from ava_server.core.errors import BadInput
from ava_server.http import sessions
from ava_server.http.http_settings import Reach, refuse_open

HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}  # fmt: skip
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
ACCEPT = {"Accept": "application/json, text/event-stream"}
MODERN_LIST = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
ERAS = [(HELLO, ACCEPT), (LIST, MODERN_LIST)]
PATHS = [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/approvals"), ("POST", "/approvals"),
         ("GET", "/"), ("GET", "/.well-known/oauth-protected-resource"), ("OPTIONS", "/mcp"), ("GET", "/healthz/x"),
         ("GET", "//healthz"), ("GET", "/metrics")]  # fmt: skip


@pytest.mark.slow
async def test_every_address_requires_a_valid_token(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    gone, over = token(root, "ana", name="gone"), token(root, "ana", name="over", expires_us=time.time_ns() // 1000)
    revoke_token(root / "secrets" / "tokens.toml", "gone")
    async with serve_http(root, "--access-log") as server:
        for method, path in PATHS:
            for value in (None, gone, over, f"{text}x"):
                answer = await server.request(method, path, value, headers=ACCEPT)
                if (path, value) == ("/", None):  # a browser, which signs in on a page
                    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
                    continue
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith('Bearer realm="ava"')
                assert "ava token create" in answer.json()["error_description"]
        for headers in forged(text, root):
            async with httpx2.AsyncClient() as http:
                answer = await http.post(server.url, json=HELLO, headers=[*headers, *ACCEPT.items()])
            assert answer.status_code == 401, headers
        query = await server.post(f"/mcp?access_token={text}", json=HELLO, headers=ACCEPT)
        assert query.status_code == 401
        for body, accept in ERAS:
            let_in = await server.post("/mcp", text, json=body, headers=accept)
            assert let_in.status_code == 200, let_in.text
        lower = await server.post("/mcp", json=HELLO, headers={**ACCEPT, "authorization": f"bearer {text}"})
        assert lower.status_code == 200
        health = await server.get("/healthz")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        await until(lambda: "ana of-ana" in server.stderr and " 401 " in server.stderr)
        assert text not in server.stderr and "access_token" not in server.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_revoked_and_expired_tokens_fail_at_the_next_request(tmp_path: Path, mode: str) -> None:
    root = make_root(tmp_path / "data")
    path = root / "secrets" / "tokens.toml"
    revoked = token(root, "ana", name="one")
    async with serve_http(root) as server, server.client(revoked, mode=mode) as client:
        read_answer(await client.call_tool("check_subagent", {}))
        assert ava(root, "token", "revoke", "one").returncode == 0
        with pytest.raises(Exception, match=r"401|[Uu]nauthorized|error"):
            await client.call_tool("check_subagent", {})
        short = token(root, "ana", name="two", expires_us=time.time_ns() // 1000 + 700_000)
        assert (await server.get("/x", short)).status_code == 404
        await anyio.sleep(0.8)
        assert (await server.get("/x", short)).status_code == 401
        made_meanwhile = token(root, "ana", name="three")
        assert (await server.get("/x", made_meanwhile)).status_code == 404
        path.chmod(0o644)
        unsafe = await server.get("/x", made_meanwhile)
        assert unsafe.status_code == 503 and "ava token list" in unsafe.text and str(root) not in unsafe.text


TOOLS: dict[str, dict[str, Any]] = {
    "spawn_subagent": {"role": "researcher", "task": "x"},
    "confirm_spawn": {"pending_ids": ["P-0dd0dd0d"], "approving": ["x"]},
    "message_subagent": {"subagent_id": "S-0dd0dd", "message": "x"},
    "cancel_subagent": {"subagent_id": "S-0dd0dd"},
    "check_subagent": {},
    "read_ava_logs": {},
}
READS = ("check_subagent", "read_ava_logs")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_allows_only_what_it_names(tmp_path: Path, mode: str, scope: Any) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", scope)
    async with serve_http(root) as server:
        approvals = await server.get("/approvals", text)
        assert approvals.status_code == (200 if scope == "approve" else 403)
        if scope != "approve":
            assert 'error="insufficient_scope"' in approvals.headers["www-authenticate"]
            assert "ava token create NAME --user ana --scope approve" in approvals.json()["error_description"]
        if scope == "approve":
            refused = await server.post("/mcp", text, json=HELLO, headers=ACCEPT)
            assert refused.status_code == 403 and "scope spawn" in refused.text
            return
        async with server.client(text, mode=mode) as client:
            allowed: list[str] = []
            for tool in [each.name for each in (await client.list_tools()).tools]:
                result = await client.call_tool(tool, TOOLS[tool])
                said = json.dumps(result.structured_content)
                if not (result.is_error and "the token lacks the scope" in said):
                    allowed.append(tool)
                else:
                    assert "ava token create NAME --user ana --scope" in said
            more = ("cancel_subagent",) if scope == "admin" else ()
            expected = [each for each in TOOLS if (each in READS) == (scope != "spawn") or each in more]
            assert sorted(allowed) == sorted(expected)
            for read in (client.list_resources, lambda: client.read_resource("ava://roles")):
                if scope == "spawn":
                    with pytest.raises(Exception, match="scope read"):
                        await read()
                else:
                    await read()


@pytest.mark.slow
async def test_refuses_dns_rebinding_requests(tmp_path: Path) -> None:
    """DNS rebinding: the browser calls us by the attacker's name, and says so."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    async with serve_http(root, "--public-url", "https://ava.example.org") as server:

        async def status(**headers: str) -> list[int]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return [
                (await server.post("/mcp", text, json=body, headers={**accept, **named})).status_code
                for body, accept in ERAS
            ]

        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "ava.example.org.evil",
                     "localhost@evil.example", "0.0.0.0", "[::]", "127.0.0.1:x", "evil/127.0.0.1"):  # fmt: skip
            assert await status(Host=host) == [421, 421], host
        for host in (
            "localhost",
            f"127.0.0.1:{server.port}",
            "LOCALHOST:80",
            "[::1]:8642",
            "ava.example.org",
            "ava.example.org:443",
        ):
            assert await status(Host=host) == [200, 200], host
        for origin in ("https://evil.example", "null", "http://ava.example.org", "https://ava.example.org:444",
                       "file://", "https://ava.example.org.evil", "http://localhost.evil", "http://localhost:6274",
                       "http://127.0.0.1", "http://[::1]:80", f"https://127.0.0.1:{server.port}"):  # fmt: skip
            assert await status(Origin=origin) == [403, 403], origin
        for own in ("https://ava.example.org", "https://ava.example.org:443", f"http://localhost:{server.port}",
                    f"http://127.0.0.1:{server.port}", f"http://[::1]:{server.port}"):  # fmt: skip
            assert await status(Origin=own, Host=own.partition("://")[2]) == [200, 200], own
        # nginx leaves the port out of the public name ($host)
        assert await status(Origin="https://ava.example.org", Host="ava.example.org") == [200, 200]
        names = ("ava.example.org", *(f"{name}:{server.port}" for name in ("localhost", "127.0.0.1", "[::1]")))
        for host, origin in ((host, origin) for host in names for origin in names if origin != host):
            scheme = "https" if origin == names[0] else "http"
            assert await status(Host=host, Origin=f"{scheme}://{origin}") == [403, 403], (host, origin)
        assert await status(X_Forwarded_Host="ava.example.org", Host="evil.example") == [421, 421]
        assert (await server.get("/healthz", headers={"Host": "10.1.2.3"})).status_code == 200
        assert not re.search(r"evil", server.stderr)


@pytest.mark.slow
async def test_accepts_forwarded_headers_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    url = ("--public-url", "https://ava.example.org", "--access-log")
    forwarded = {"Host": "upstream", "X-Forwarded-Host": "evil, ava.example.org", "X-Forwarded-For": "6.6.6.6, 9.9.9.9"}
    async with serve_http(root, *url, "--trusted-proxy", "127.0.0.1") as server:
        there = await server.get("/x", text, headers={**forwarded, "X-Forwarded-Proto": "https"})
        assert there.status_code == 404
        clear = await server.get("/x", text, headers={**forwarded, "X-Forwarded-Proto": "http"})
        assert clear.status_code == 403 and "https" in clear.text
        assert (await server.get("/x", text, headers={"X-Forwarded-Host": "evil"})).status_code == 421
        await until(lambda: "9.9.9.9 GET /x 404" in server.stderr)
    async with serve_http(root, *url, "--trusted-proxy", "10.0.0.0/8") as server:
        other = await server.get("/x", text, headers=forwarded)
        assert other.status_code == 421
        await until(lambda: "127.0.0.1 GET /x 421" in server.stderr)
        assert "9.9.9.9" not in server.stderr


def test_a_public_address_requires_tokens_and_a_public_url(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        with pytest.raises(BadInput, match="ava token create"):
            refuse_open(Reach(host), tokens=False)
    for host in ("0.0.0.0", "::"):
        with pytest.raises(BadInput, match="--public-url"):
            refuse_open(Reach(host), tokens=True)
        refuse_open(Reach(host, public_url="https://ava.example.org"), tokens=True)
    refuse_open(Reach("192.0.2.7"), tokens=True)
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        refuse_open(Reach(host), tokens=False)
    refused = ava(tmp_path / "data", "serve", "--http", "--host", "0.0.0.0")
    assert refused.returncode == 2 and "ava token create" in refused.stderr
    for wrong in ("ava.example.org", "ftp://x", "https://", "https://u:p@x", "https://x/path", "https://x:0"):
        with pytest.raises(BadInput, match="--public-url"):
            public_url(wrong)
    with pytest.raises(BadInput, match="--trusted-proxy"):
        proxies_of(["proxy.example.org"])
    alone = ava(tmp_path / "data", "serve", "--port", "9000")
    assert alone.returncode == 2 and "--http" in alone.stderr


def test_reports_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = ava(tmp_path / "data", "serve", "--http", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 30 and "--port" in done.stderr and "Traceback" not in done.stderr


async def test_serves_localhost_at_both_of_its_addresses(tmp_path: Path) -> None:
    """A program of another user could listen at the one that a client tries first."""
    async with serve_http(make_root(tmp_path / "data"), "--host", "localhost") as server:
        for address in ("127.0.0.1", "[::1]"):
            async with httpx2.AsyncClient(base_url=f"http://{address}:{server.port}") as client:
                assert (await client.get("/healthz")).status_code == 200, address
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
            port = str(taken.getsockname()[1])
            done = await anyio.to_thread.run_sync(
                lambda: ava(tmp_path / "data", "serve", "--http", "--host", "localhost", "--port", port)
            )
    assert done.returncode == 30 and f"cannot listen on ::1 port {port}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
async def test_rejects_oversized_requests_and_serves_the_next_one(tmp_path: Path, parser: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    async with serve_http(root, program=changed_command(parser=parser)) as server:
        large = {**HELLO, "x": "y" * sessions.BODY_BYTES}
        assert (await server.post("/mcp", text, json=large, headers=ACCEPT)).status_code == 413

        async def pieces() -> Any:
            for _piece in range(6):
                yield b" " * 1024 * 1024

        streamed = await server.post(
            "/mcp", text, content=pieces(), headers={**ACCEPT, "Content-Type": "application/json"}
        )
        assert streamed.status_code == 413
        decided = await server.post("/approvals", text, json={"decision": "reject", "pending_ids": ["x" * 300_000]})
        assert decided.status_code == 400
        assert (await server.get("/x", text, headers={"X-Long": "y" * 60_000})).status_code == 431
        for body in (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"jsonrpc": "2.0"}', b"1" * 5000):
            for _body, accept in ERAS:
                answer = await server.post(
                    "/mcp", text, content=body, headers={**accept, "Content-Type": "application/json"}
                )
                assert 400 <= answer.status_code < 500, (body[:20], answer.status_code)
        for body in (b"", b"{", b"[]", b"\xff", b"{}", b'{"decision": "approve", "pending_ids": []}',
                     b'{"decision": "approve", "pending_ids": ["P-0dd0dd0d"], "more": 1}', b"[" * 100_000):  # fmt: skip
            assert (await server.post("/approvals", text, content=body)).status_code == 400, body[:20]
        assert (await server.get("/x", text)).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
async def test_disconnects_slow_and_silent_clients(tmp_path: Path, parser: str) -> None:
    """The deadlines are shortened in a server of its own; each connection is one that never comes to an end."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    names = "from ava_server.web import http_connection; from ava_server.http import limits"
    short = changed_command(names, "http_connection.HEADERS_WITHIN_S = limits.BODY_WITHIN_S = 0.6", parser=parser)
    async with serve_http(root, program=short) as server:
        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n"
        body = f"{head}Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: 100\r\n\r\n{{"
        kept = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

        def left(first: str, drip: str = "") -> tuple[float, bytes]:
            began = time.monotonic()
            got = b""
            with socket.create_connection(("127.0.0.1", server.port), timeout=8) as line:
                line.sendall(first.encode())
                line.settimeout(0.1)
                while time.monotonic() - began < 8:
                    try:
                        if drip:
                            line.sendall(drip.encode())
                        data = line.recv(65_536)
                        if not data:
                            break
                        got += data
                    except TimeoutError:
                        continue
                    except OSError:
                        break
            return time.monotonic() - began, got

        for first, drip, status in (
            (head, "", b""),
            (head, "X", b""),
            ("", "", b""),
            (body, "", b"408"),
            (kept + head, "X", b"200"),
        ):
            took, got = await anyio.to_thread.run_sync(left, first, drip)
            assert took < 4, (first[:10], took)
            assert status in got
        assert (await server.get("/healthz")).status_code == 200


def forged(text: str, root: Path) -> Iterator[list[tuple[str, str]]]:
    """Authorization headers that let nobody in."""
    file = (root / "secrets" / "tokens.toml").read_text()
    hashed = re.findall(r"[0-9a-f]{64}", file)[0]
    for value in ("", "Bearer", f"Basic {text}", text, f"Bearer {text[:-1]}", f"Bearer {text}x",
                  f"Bearer {text.upper()}", f"Bearer {hashed}", f"Bearer {BEGINS}{'A' * 43}", f"Bearer {text} {text}",
                  f"Bearer {'x' * 5000}", "Bearer null", f"Bearer {text},"):  # fmt: skip
        yield [("Authorization", value)]
    yield []
    yield [("Authorization", f"Bearer {text}"), ("Authorization", "Bearer x")]
    yield [("Cookie", f"token={text}")]
    yield [("X-Api-Key", text)]
