"""`ava doctor` on other MCP servers: whether each starts, what it has, what it may; and it never hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.commands.doctor import Findings, doctor
from support.foreign.servers import stdio_server

from ava_roles.mcp_client.run_servers import START_S

pytestmark = pytest.mark.slow


def told(root: Path, config: str, *args: str) -> Findings:
    (root / "config.toml").write_text(config)
    found = doctor(root, *args)
    return Findings({name: each for name, each in found.items() if name.startswith("MCP server")})


def test_lists_each_server_with_its_tools_and_permissions(root: Path) -> None:
    folder = root.parent / "shared"
    folder.mkdir()
    found = told(root, stdio_server("hostile", more=f'read_write = ["{folder}"]'))["MCP server lab"]
    assert found["state"] == "ok"
    assert f"without a network, may write to {folder}" in found["text"]
    assert "declare that they only read: mcp__lab__add" in found["text"]
    assert "by their exact name: mcp__lab__burn, mcp__lab__write" in found["text"]
    assert "never given to a subagent: mcp__lab__spawn_subagent" in found["text"]
    assert "\u202e" not in found["text"] and len(found["text"]) < 3_000


def test_servers_that_do_not_start_are_faults_and_delay_nothing(root: Path) -> None:
    before = time.monotonic()
    config = "\n".join(
        [
            stdio_server("silent", name="one"),
            stdio_server("silent", name="two"),
            stdio_server("exits", name="three"),
            '[mcp_servers.me]\ncommand = "ava"\nargs = ["serve"]\n',
        ]
    )
    found = told(root, config)
    assert time.monotonic() - before < 2 * START_S, "side by side"
    assert {each["state"] for each in found.values()} == {"fault"}
    assert f"did not answer within {START_S:g} s" in found["MCP server one"]["text"]
    assert "ended before it answered" in found["MCP server three"]["text"]
    assert "is Ava itself" in found["MCP server me"]["text"]


def test_a_server_with_a_url_is_contacted_only_online(root: Path) -> None:
    config = '[mcp_servers.far]\nurl = "http://127.0.0.1:9/mcp"\n'
    assert told(root, config)["MCP server far"]["text"] == "not asked; see `ava doctor --online`"
    assert "cannot be reached" in told(root, config, "--online")["MCP server far"]["text"]
