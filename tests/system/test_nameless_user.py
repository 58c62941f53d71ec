"""A user of the operating system without a name: Windows has no list of them, and a host may hand none on."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

import pytest
from support.stdio import assert_intact, serve_stdio

from ava_server.core.data_root import os_user

LAUNCHER = Path(__file__).parents[1] / "support" / "commands" / "other_system.py"
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="plays the other systems on this one")
@pytest.mark.parametrize("system", ["win32", "darwin", "bare"])
async def test_serves_a_user_without_a_name(tmp_path: Path, system: str) -> None:
    root = tmp_path / "data"
    command = [sys.executable, str(LAUNCHER), system, "ava", "1", sys.executable, "serve"]
    async with serve_stdio(root, command=command) as wire:  # which hands on no variable with a name
        assert (await wire.tool("check_subagent"))["status"] == "list"
        await wire.tool("spawn_subagent", role="researcher", task="Read https://example.org/prices")
        await wire.close_stdin()
        assert await wire.exited() == 0
        assert wire.stderr == ""
    assert_intact(root)


def test_uses_the_user_name_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    assert os_user() == "somebody"


@pytest.mark.skipif(os.name != "posix", reason="users have numbers on POSIX")
def test_uses_the_user_id_when_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    known = {entry.pw_uid for entry in __import__("pwd").getpwall()}
    nameless = next(number for number in range(50_000, 60_000) if number not in known)
    monkeypatch.setattr(os, "getuid", lambda: nameless)
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()
    assert os_user() == f"uid-{nameless}"
