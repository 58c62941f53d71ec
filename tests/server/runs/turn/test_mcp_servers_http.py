"""Foreign MCP servers over HTTP: both eras, headers with secrets, and servers that answer what they should not."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from support.foreign.servers import http_server, write_role
from support.model_server import Say
from support.runtime import hand_over, open_lab

from ava_audit.events import ToolResult
from ava_roles.net.transports import authorities
from ava_server.config.secrets import set_secret

READS = ToolAnnotations(read_only_hint=True)
SECRET = "hunter-two-and-more"


def honest() -> MCPServer[Any]:
    """A server that tells what headers it was sent."""
    server: MCPServer[Any] = MCPServer("remote")

    @server.tool(annotations=READS)
    def authorization(ctx: Context) -> str:
        """Tell whether the right header came."""
        headers = dict(ctx.headers or {})
        return "the right one" if headers.get("authorization") == f"Bearer {SECRET}" else f"not: {sorted(headers)}"

    return server


@pytest.mark.parametrize("legacy", [True, False])
async def test_calls_an_http_server_with_its_headers_without_exposing_secrets(tmp_path: Path, legacy: bool) -> None:
    root = tmp_path / "data"
    write_role(root, "mcp__far__authorization")
    root.chmod(0o700)
    set_secret("FAR", SECRET, [], root / "secrets" / "secrets.toml")
    script = [Say(calls=[("mcp__far__authorization", {})]), hand_over()]
    with http_server(honest(), legacy=legacy) as url:
        config = f'[mcp_servers.far]\nurl = "{url}"\nheaders = {{ Authorization = "Bearer {{{{secret:FAR}}}}" }}\n'
        async with open_lab(tmp_path, script, config=config) as lab:
            proposal = await lab.call("spawn_subagent", role="guest", task="Who am I?")
            assert f'MCP server "far" ({url})' in proposal.message
            assert "(reaches the network)" in proposal.approval_line
            await lab.approve(proposal)
            assert (await lab.ended(proposal.subagent_id)).state == "success"
            results = await lab.facts(proposal.subagent_id, ToolResult)
            assert any("the right one" in result.output for result in results), results
            assert all(SECRET not in result.output for result in results)


async def test_certificate_authorities_are_read_once_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    read = httpx2.create_ssl_context

    def noted() -> ssl.SSLContext:
        readers.append(threading.current_thread())
        return read()

    write_role(tmp_path / "data", "mcp__far__authorization")
    call = Say(calls=[("mcp__far__authorization", {})])
    with http_server(honest()) as url:
        async with open_lab(
            tmp_path, [call, hand_over(), call, hand_over()], config=f'[mcp_servers.far]\nurl = "{url}"\n'
        ) as lab:
            monkeypatch.setattr(httpx2, "create_ssl_context", noted)
            authorities.cache_clear()
            for _each in range(2):
                run_id = await lab.start(role="guest", task="Who am I?", workspace=None)
                assert (await lab.ended(run_id)).state == "success"
    assert authorities.cache_info().misses == 1
    assert readers and threading.current_thread() not in readers


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers every POST as the test says, and notes what came."""

    status: ClassVar[int] = 200
    headers_out: ClassVar[dict[str, str]] = {}
    body: ClassVar[bytes] = b""
    came: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.came.append(str(self.headers.get("X-Own")))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        for name, value in self.headers_out.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes) -> Generator[tuple[str, list[str]]]:
    """Run a server that gives one answer to everything; yields its address, and the headers of ours that came."""
    came: list[str] = []
    own = type("Own", (_Answers,), {"status": status, "headers_out": headers, "body": body, "came": came})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", came
        finally:
            server.shutdown()
            thread.join(5)


async def refused(tmp: Path, url: str, more: str = "") -> str:
    """What the proposal says of a server at this address."""
    write_role(tmp / "data", "mcp__far, read_webpages")
    async with open_lab(tmp, config=f'[mcp_servers.far]\nurl = "{url}"\n{more}', runs=False) as lab:
        answer = await lab.call("spawn_subagent", role="guest", task="x")
        assert not [name for name in answer.tools if name.startswith("mcp__")]
        return str(answer.message)


async def test_does_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    with answering(200, {}, b"{}") as (other, came), answering(307, {"Location": other}, b"") as (url, own):
        said = await refused(tmp_path, url, 'headers = { X-Own = "for this host alone" }')
        assert 'the MCP server "far"' in said and came == [], "nothing, and no header, came there"
        assert "for this host alone" in own


async def test_cuts_off_an_endless_response(tmp_path: Path) -> None:
    huge = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": "y" * 5_000_000}}).encode()
    with answering(200, {"Content-Type": "application/json"}, huge) as (url, _came):
        assert "answered with more than 4,000,000 bytes" in await refused(tmp_path, url)


async def test_rejects_a_compressed_response(tmp_path: Path) -> None:
    with answering(200, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, b"\x1f\x8b") as (url, _c):
        assert "compressed" in await refused(tmp_path, url)


async def test_sends_a_secret_only_to_its_hosts_and_only_over_https(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    set_secret("FAR", SECRET, ["api.example.com"], root / "secrets" / "secrets.toml")
    headers = 'headers = { Authorization = "Bearer {{secret:FAR}}" }'
    assert "is sent over https alone" in await refused(tmp_path, "http://api.example.com/mcp", headers)
    assert "is for api.example.com, not for example.org" in await refused(tmp_path, "https://example.org/mcp", headers)


async def test_refuses_an_http_server_that_identifies_itself_as_ava(tmp_path: Path) -> None:
    server: MCPServer[Any] = MCPServer("Ava")
    with http_server(server) as url:
        assert "is Ava itself" in await refused(tmp_path, url)
