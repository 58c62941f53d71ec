"""The HTTP server that a host on this machine starts before it connects: `ava connect`, `ava init HOST --http`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.background import host_headers
from support.http_server import serve_http, token
from support.postgres import free_port
from support.stdio import AVA, read_log, until
from support.terminal import ava

from ava_audit.store.locks import try_hold
from ava_server.config.tokens import host_token, read_tokens
from ava_server.core.background import http_server, pages_server, start_detached
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    return free_port()


async def test_the_command_of_a_host_starts_the_server_once_and_gives_it_a_private_token(
    tmp_path: Path, port: int
) -> None:
    root = tmp_path / "data"
    async with ended_at_last(root):
        first = host_headers(root, port)
        pid = process_of(root)
        assert host_headers(root, port) == first and process_of(root) == pid
        assert answers(port, first) != 401 and answers(port, {}) == 401
        assert os.getsid(pid) != os.getsid(0)
        place = DataRoot(root)
        assert (
            stat.S_IMODE(place.local_token.stat().st_mode) == stat.S_IMODE(place.worker_words.stat().st_mode) == 0o600
        )
        [made] = read_tokens(place.tokens_file).values()
        assert made.scopes == ("spawn", "read"), "it approves nothing that needs a person"
        assert f"tokens.{made.name}" in str(read_log(root, "SettingsChanged")[-1].content)
        assert ava(root, "token", "revoke", made.name).returncode == 0
        assert host_headers(root, port) != first and process_of(root) == pid


async def test_a_killed_server_is_started_again_on_the_same_port(tmp_path: Path, port: int) -> None:
    root = tmp_path / "data"
    async with ended_at_last(root):
        given = host_headers(root, port)
        pid = process_of(root)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: process_of(root) != pid, within_s=60)
        assert answers(port, given) != 401


async def test_a_kept_program_is_started_again_after_a_crash_and_not_after_it_was_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, time\n"
        "again = os.path.exists(sys.argv[2])\n"
        "open(sys.argv[2], 'a').write('x')\n"
        "if not again:\n"
        "    time.sleep(10.5)\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    removed = tmp_path / "removed"
    removed.mkdir()
    for code, folder in (("1", tmp_path), ("0", tmp_path), ("130", tmp_path), ("2", removed)):
        command = [sys.executable, str(program), code, str(tmp_path / code)]
        start_detached(command, tmp_path / "words", folder, os.environ)
    await until((tmp_path / "2").exists, within_s=30)
    removed.rmdir()
    first = tmp_path / "1"
    await until(lambda: first.exists() and first.read_text() == "xx", within_s=60)
    await anyio.sleep(0.5)
    assert (tmp_path / "0").read_text() == (tmp_path / "130").read_text() == "x"
    assert (tmp_path / "2").read_text() == "x", "its folder was removed meanwhile"


async def test_a_kept_program_that_is_killed_at_once_comes_back_each_time_later(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys, time\n"
        "open(sys.argv[2], 'a').write(f'{time.monotonic()}\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == 'killed' else sys.exit(1)\n"
    )
    removed = tmp_path / "removed"
    removed.mkdir()
    for how in ("killed", "cannot start"):
        start_detached(
            [sys.executable, str(program), how, str(tmp_path / how)], tmp_path / "words", removed, os.environ
        )
    starts = tmp_path / "killed"
    await until(lambda: starts.exists() and len(starts.read_text().split()) == 3, within_s=60)
    removed.rmdir()
    first, second, third = map(float, starts.read_text().split())
    assert second - first >= 1 and third - second >= 2
    assert len((tmp_path / "cannot start").read_text().split()) == 1, "whoever has started it is told"


async def test_gives_the_token_to_nobody_who_listens_there_instead(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        done = ava(tmp_path / "data", "connect", "--port", str(stranger.getsockname()[1]))
    assert done.returncode == 30 and "avatok_" not in done.stdout + done.stderr
    assert "cannot listen" in done.stderr and "worker.log" in done.stderr


async def test_uses_a_server_that_a_person_has_started(tmp_path: Path) -> None:
    root = tmp_path / "data"
    async with serve_http(root) as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        assert answers(port, host_headers(root, port)) != 401
        assert process_of(root) == server.process.pid
        other = ava(root, "connect", "--port", "1")
        assert other.returncode == 30 and f"uses port {port}, not 1" in other.stderr


async def test_a_server_without_requests_ends(tmp_path: Path) -> None:
    async with serve_http(tmp_path / "data", "--idle", "1s") as server:
        assert await server.exited(15) == 0


async def test_a_server_that_ends_is_no_longer_found_while_it_still_holds_its_port(tmp_path: Path) -> None:
    root = tmp_path / "data"
    given = token(root, "ana")
    async with serve_http(root, "--drain", "5s") as server:
        assert http_server(DataRoot(root)).port() == server.port
        with socket.create_connection(("127.0.0.1", server.port)) as call:  # a call whose body never comes
            head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {given}\r\n"
            call.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 10\r\n\r\n".encode())
            await anyio.sleep(0.5)
            server.signal()
            await until(lambda: http_server(DataRoot(root)).port() is None, within_s=3)
            assert server.process.returncode is None, "it ends, and drains its calls"
            socket.create_connection(("127.0.0.1", server.port)).close()
        await server.exited(15)


def test_a_server_is_found_though_a_command_looked_for_one_as_it_started(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    looking = try_hold(root.http_lock)
    assert looking is not None
    over = threading.Timer(0.3, looking.release)
    over.start()
    with http_server(root).announced(8700):
        over.join()
        assert http_server(root).port() == 8700
    assert http_server(root).port() is None


def test_the_record_of_an_ended_server_does_not_count_while_the_next_one_starts(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    for server, lock in ((http_server(root), root.http_lock), (pages_server(root), root.pages_lock)):
        with server.announced(8700, keep=True):  # as a server that was killed leaves it; a stranger may use the port
            assert server.port() == 8700
        starting = try_hold(lock)
        assert starting is not None
        with starting:
            assert server.port() is None and server.last_port() == 8700
        with server.announced(8701):
            assert server.port() == 8701


@pytest.mark.skipif(sys.platform == "win32", reason="looks at fcntl's locks")
def test_commands_that_look_at_the_same_time_do_not_take_each_other_for_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    root, lock, found = DataRoot(tmp_path), fcntl.flock, list[int | None]()
    with http_server(root).announced(8700, keep=True):
        pass

    def looked(file: Any, flags: int) -> None:
        lock(file, flags)
        with monkeypatch.context() as once:
            once.setattr(fcntl, "flock", lock)
            found.append(http_server(root).port())  # as another command, while this one has the lock

    monkeypatch.setattr(fcntl, "flock", looked)
    assert http_server(root).port() is None and set(found) == {None}


def test_hosts_that_start_at_once_get_one_token(tmp_path: Path) -> None:
    root, begin = DataRoot(tmp_path / "data"), threading.Barrier(4)

    def connect(_number: int) -> str:
        begin.wait()
        return host_token(root)[0]

    with ThreadPoolExecutor(4) as hosts:
        assert len(set(hosts.map(connect, range(4)))) == 1
    assert len(read_tokens(root.tokens_file)) == 1


def test_init_writes_the_url_and_the_command_but_no_token(tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    env = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path)}
    root = tmp_path / "a folder" / "data"
    done = ava(root, "init", "claude-code", "--http", "--port", "8700", env=env)
    assert done.returncode == 0, done.stderr
    entry = json.loads(file.read_text())["mcpServers"]["ava"]
    assert entry.keys() == {"type", "url", "headersHelper"} and entry["url"] == "http://127.0.0.1:8700/mcp"
    assert shlex.split(entry["headersHelper"]) == [f"AVA_DATA_ROOT={root}", AVA[0], "connect", "--port", "8700"]
    assert "avatok_" not in file.read_text() and not root.exists()
    assert "Nothing to change" in ava(root, "init", "claude-code", "--http", "--port", "8700", env=env).stdout
    assert "--port 8701" in ava(root, "init", "claude-code", "--http", "--port", "8701", env=env).stdout
    assert ava(root, "init", "claude-code", env=env).returncode == 0
    assert json.loads(file.read_text())["mcpServers"]["ava"].keys() == {"type", "command", "args", "env"}
    assert ava(root, "init", "claude-code", "--http", "--port", "8701", env=env).returncode == 0
    entry = json.loads(file.read_text())["mcpServers"]["ava"]
    assert entry["type"] == "http" and "command" not in entry and "args" not in entry
    assert ava(root, "init", "claude-code", "--remove", env=env).returncode == 0
    assert not file.exists() or "ava" not in json.loads(file.read_text()).get("mcpServers", {})


def test_init_says_which_hosts_cannot_start_a_server(tmp_path: Path) -> None:
    done = ava(tmp_path / "data", "init", "codex", "--http", env={"HOME": str(tmp_path)})
    assert done.returncode == 2 and "nothing would start the server" in done.stderr
    given = ("init", "claude-code", "--http", "--workspace", str(tmp_path))
    done = ava(tmp_path / "data", *given, env={"HOME": str(tmp_path)})
    assert done.returncode == 2 and "[users.NAME] workspaces" in done.stderr


@asynccontextmanager
async def ended_at_last(root: Path) -> AsyncGenerator[None]:
    """End the server of a data root."""
    try:
        yield
    finally:
        with suppress(OSError):
            os.kill(process_of(root), signal.SIGTERM)
        await until(lambda: not (root / "http.port").exists(), within_s=10)


def process_of(root: Path) -> int:
    return int((root / "http.port").read_text().split()[1])


def answers(port: int, given: dict[str, str]) -> int:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    wanted = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25", **given}
    return httpx2.post(f"http://127.0.0.1:{port}/mcp", json=hello, headers=wanted, trust_env=False).status_code
