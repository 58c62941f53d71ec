"""`ava init HOST --url URL`: a host gets a shared server's address, and its token from where it keeps secrets."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.http_server import HttpServer, serve_http, token
from support.stdio import make_root
from support.terminal import ava

from ava_server.hosts.known import HOSTS

pytestmark = pytest.mark.slow

REMOTE = [name for name, host in HOSTS.items() if host.remote is not None]
FILES = {
    "claude-code": ".claude.json", "codex": ".codex/config.toml", "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json", "opencode": ".config/opencode/opencode.jsonc",
    "gemini": ".gemini/settings.json",
}  # fmt: skip


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Machine]:
    root, home = make_root(tmp_path / "server"), tmp_path / "home"
    home.mkdir()
    async with serve_http(root) as server:
        yield Machine(server, root, home, token(root, "ana"))


@pytest.mark.parametrize("host", REMOTE)
async def test_writes_address_and_place_of_the_token_and_remove_undoes_it(machine: Machine, host: str) -> None:
    url = machine.server.base
    before = "# mine\nmodel = 'x'\n" if host == "codex" else '{\n  "mine": {"a": 1}\n}\n'
    file = machine.home / FILES[host]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    done = await machine.init("init", host, "--url", url)
    assert done.returncode == 0, done.stderr
    assert "the token is ana's, with spawn, read" in done.stdout
    assert "VS Code asks for the token" in done.stdout if host == "vscode" else "Set AVA_TOKEN" in done.stdout
    servers = HOSTS[host].servers
    assert machine.data(host)[servers]["ava"] == entry_for(host, f"{url}/mcp")
    written = file.read_text()
    for words in (("init", host, "--url", f"{url}/mcp"), ("--url", url, "init", host)):
        again = await machine.init(*words)
        assert again.returncode == 0 and "Nothing to change" in again.stdout and file.read_text() == written, words

    shown = await machine.init("init", host, "--url", "https://ava.example.org", "--print")
    assert "https://ava.example.org/mcp" in shown.stdout and file.read_text() == written
    local = await machine.init("init", host)
    assert local.returncode == 30 and "an Ava on another machine" in local.stderr and file.read_text() == written
    assert (await machine.init("init", host, "--name", "own")).returncode == 0
    assert set(machine.data(host)[servers]) == {"ava", "own"}
    assert (await machine.init("init", host, "--remove", "--name", "own")).returncode == 0
    removed = await machine.init("init", host, "--remove")
    assert removed.returncode == 0 and file.read_text() == before, "not a byte is left of it"


@pytest.mark.parametrize("host", REMOTE)
async def test_another_address_replaces_only_the_address(machine: Machine, host: str) -> None:
    assert (await machine.init("init", host, "--url", machine.server.base)).returncode == 0
    file, there = machine.home / FILES[host], machine.server.base.replace("127.0.0.1", "localhost")
    written = file.read_text()
    moved = await machine.init("init", host, "--url", there)
    assert moved.returncode == 0, moved.stderr
    assert file.read_text() == written.replace(machine.server.base, there) != written


@pytest.mark.parametrize("host", REMOTE)
async def test_a_local_ava_is_not_turned_into_another_one(machine: Machine, host: str) -> None:
    assert (await machine.init("init", host)).returncode == 0
    files = {file: file.read_bytes() for file in machine.files()}
    refused = await machine.init("init", host, "--url", machine.server.base)
    assert refused.returncode == 30 and "an Ava on this machine" in refused.stderr and "--name" in refused.stderr
    assert {file: file.read_bytes() for file in machine.files()} == files


async def test_writes_nothing_unless_server_and_token_work(machine: Machine) -> None:
    url, root = machine.server.base, machine.root
    approves = token(root, "ana", "approve", "spawn", "read", name="phone")
    for given, code, says in (
        ({"AVA_TOKEN": "x" * 40}, 10, "Unknown token"),
        ({"AVA_TOKEN": ""}, 2, "AVA_TOKEN"),
        ({"AVA_TOKEN": approves}, 10, "has the scope approve"),
    ):
        refused = await machine.init("init", "codex", "--url", url, **given)
        assert refused.returncode == code and says in refused.stderr and approves not in refused.stderr
    for args, code, says in (
        (("--url", "http://127.0.0.1:1"), 30, "ava serve --http"),
        (("--url", "http://ava.example.org"), 2, "use https"),
        (("--url", url, "--http"), 2, "leave out --http"),
        (("--url", url, "--workspace", str(root)), 2, "leave out --http and --workspace"),
        (("--token-file", "x"), 2, "--token-file: it needs --url"),
        (("--url", url, "--token-file", "/nowhere"), 2, "cannot be read"),
    ):
        refused = await machine.init("init", "codex", *args)
        assert refused.returncode == code and says in refused.stderr, (args, refused.stderr)
    desktop = await machine.init("init", "claude-desktop", "--url", url)
    assert desktop.returncode == 2 and "Claude Desktop takes no server on another machine" in desktop.stderr
    assert machine.files() == []
    lacking = await machine.init("init", "codex", "--url", url, AVA_TOKEN=token(root, "ana", "read", name="reads"))
    assert lacking.returncode == 0 and "It lacks spawn" in lacking.stdout


async def test_the_token_may_come_from_a_file(machine: Machine) -> None:
    file = machine.home.parent / "token"
    file.write_text(machine.text + "\n")
    file.chmod(0o600)
    done = await machine.init("init", "cursor", "--url", machine.server.base, "--token-file", str(file), AVA_TOKEN="")
    assert done.returncode == 0 and "Set AVA_TOKEN" in done.stdout


def entry_for(host: str, url: str) -> Any:
    """What each host's documentation says of a server with a bearer token from a variable or a prompt."""
    return {
        "claude-code": {"type": "http", "url": url, "headers": {"Authorization": "Bearer ${AVA_TOKEN}"}},
        "codex": {"url": url, "bearer_token_env_var": "AVA_TOKEN"},
        "cursor": {"url": url, "headers": {"Authorization": "Bearer ${env:AVA_TOKEN}"}},
        "vscode": {"type": "http", "url": url, "headers": {"Authorization": "Bearer ${input:ava-token}"}},
        "opencode": {
            "type": "remote", "enabled": True, "oauth": False, "url": url,
            "headers": {"Authorization": "Bearer {env:AVA_TOKEN}"},
        },
        "gemini": {"httpUrl": url, "headers": {"Authorization": "Bearer ${AVA_TOKEN}"}},
    }[host]  # fmt: skip


@dataclass
class Machine:
    """A person's machine, and a server elsewhere."""

    server: HttpServer
    root: Path
    home: Path
    text: str

    async def init(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = {"HOME": str(self.home), "AVA_TOKEN": self.text, **env}
        done = await anyio.to_thread.run_sync(partial(ava, self.home / "data", *args, env=given, cwd=self.home))
        assert "Traceback" not in done.stderr and self.text not in done.stdout + done.stderr
        for file in self.files():
            assert self.text not in file.read_text(), f"the token is in {file}"
        return done

    def files(self) -> list[Path]:
        return [file for file in self.home.rglob("*") if file.is_file()]

    def data(self, host: str) -> dict[str, Any]:
        file = self.home / FILES[host]
        data: dict[str, Any] = (tomllib if file.suffix == ".toml" else json).loads(file.read_text())
        return data
