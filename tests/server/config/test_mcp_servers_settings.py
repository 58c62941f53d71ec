"""[mcp_servers.NAME]: what it takes, and what it refuses with the setting's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runtime import settings_of

from ava_server.core.errors import ConfigError
from ava_server.runs.turn.run_tools import configured_servers


def test_a_server_has_either_a_command_and_environment_or_a_url_and_headers(tmp_path: Path) -> None:
    config = """
[mcp_servers.notes]
command = "notes"
args = ["--quiet"]
env = { LANGUAGE = "en", TOKEN = "{{secret:NOTES}}" }
network = true
read_write = ["/srv/notes"]

[mcp_servers.far-away]
url = "https://example.com/mcp"
headers = { Authorization = "Bearer {{secret:FAR}}" }
"""
    entries = configured_servers(settings_of(tmp_path / "data", None, config))
    notes, far = entries["notes"], entries["far-away"]
    assert (notes.command, notes.args, notes.network) == ("notes", ("--quiet",), True)
    assert notes.read_write == (Path("/srv/notes"),) and notes.reaches_out
    assert far.url == "https://example.com/mcp" and far.reaches_out and far.command is None
    assert "secret" not in repr(notes) + repr(far), "what it is given is in no repr"
    assert notes.digest != far.digest


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("x", "", "either command"),
        ("x", 'command = "a"\nurl = "https://b"', "either command"),
        ("x", 'url = "https://b"\nenv = { A = "b" }', "only beside command"),
        ("x", 'url = "https://b"\nnetwork = true', "only beside command"),
        ("x", 'command = "a"\nheaders = { A = "b" }', "only beside url"),
        ("x", 'command = "a"\nargs = ["--token={{secret:A}}"]', "in env or headers only"),
        ("x", 'command = "a"\nenv = { API_KEY = "plain" }', "ava secret set NAME"),
        ("x", 'url = "https://b"\nheaders = { Authorization = "Bearer plain" }', "ava secret set NAME"),
        ("a__b", 'command = "a"', "names of MCP servers"),
        ('"a b"', 'command = "a"', "names of MCP servers"),
    ],
)
def test_rejects_an_invalid_server_at_startup(tmp_path: Path, name: str, config: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        settings_of(tmp_path / "data", None, f"[mcp_servers.{name}]\n{config}\n")
    assert "plain" not in str(refused.value)
