"""The pages start when a host connects whose person approves in Ava; where they cannot, every answer says why."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from mcp import Client
from mcp_types import CallToolRequestParams, Implementation
from support.hosts.elicitation import ERAS
from support.hosts.pages import ADDRESS
from support.model_server import run_model_server
from support.runtime import PRICED, connect, settings_of, wait_for
from support.stdio import read_answer

import ava_extras
from ava_audit.store.locks import try_hold
from ava_server.config.tokens import Token
from ava_server.core import background
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import ConfigError
from ava_server.mcp_server import elicitation
from ava_server.mcp_server.app import HTTP, OF_REQUEST
from ava_server.mcp_server.server import build_server

BY_HOST = f'approval = "by_host"\n{PRICED}'
ASKS_NOBODY = "opencode"
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up", "max_cost_cents": 20}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the server of the pages would be started."""
    begun = threading.Event()

    def start_pages(_root: DataRoot) -> str:
        begun.set()
        return "http://localhost:8643"

    monkeypatch.setattr(background, "start_pages", start_pages)
    return begun


@pytest.mark.parametrize("mode", ERAS)
async def test_the_pages_start_when_a_host_connects_whose_person_approves_in_ava(
    tmp_path: Path, started: threading.Event, mode: str
) -> None:
    async with on_stdio(tmp_path, mode, ASKS_NOBODY) as client:
        await client.list_tools()
        await wait_for(started)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("ava-command-line", BY_HOST),
        (ASKS_NOBODY, f'approval = "ask"\n{PRICED}'),
        (ASKS_NOBODY, f"enabled = false\n{BY_HOST}"),
    ],
)
async def test_the_pages_do_not_start_for_a_host_whose_person_approves_there(
    tmp_path: Path, started: threading.Event, name: str, config: str
) -> None:
    async with on_stdio(tmp_path, "legacy", name, config) as client:
        await client.call_tool("spawn_subagent", SPAWN)
    assert not started.is_set()


@pytest.mark.parametrize("mode", ERAS)
async def test_pages_that_cannot_start_are_told_with_the_reason_and_the_way_in_a_terminal(
    tmp_path: Path, mode: str
) -> None:
    root = DataRoot(tmp_path / "data")
    root.create()
    root.worker_words.mkdir()  # what the server says cannot be written
    async with connect(tmp_path, config=BY_HOST, mode=mode, name=ASKS_NOBODY) as (client, _models):
        made = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
        because = "There is no link, because Ava's pages cannot be served: the server of `ava ui` cannot be started: "
        assert because in made["next"] and str(root.worker_words) in made["next"]
        assert f"ava approve {made['pending_id']}" in made["next"] and "still starting" not in made["next"]
        checked = read_answer(await client.call_tool("check_subagent", {"subagent_id": made["subagent_id"]}))[0]
        assert because in checked["message"]
        assert f"ava approve {made['pending_id']}` in a terminal" in checked["message"]


async def test_pages_that_start_at_the_second_attempt_have_their_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter([ConfigError("the server of `ava ui` ended as soon as it was started; see worker.log")])

    def start_pages(_root: DataRoot) -> str:
        for error in outcomes:
            raise error
        return "http://localhost:8643"

    monkeypatch.setattr(background, "start_pages", start_pages)
    async with connect(tmp_path, config=BY_HOST, name=ASKS_NOBODY) as (client, _models):
        made = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
        assert "ended as soon as it was started; see worker.log" in made["next"] and "/enter?code=" not in made["next"]
        checked = read_answer(await client.call_tool("check_subagent", {"subagent_id": made["subagent_id"]}))[0]
        assert "/enter?code=" in checked["message"] and "no link" not in checked["message"]


async def test_without_the_extra_nothing_starts_and_no_link_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: threading.Event
) -> None:
    monkeypatch.setattr(ava_extras, "has_extra", lambda _name: False)
    async with on_stdio(tmp_path, "legacy", ASKS_NOBODY) as client:
        made = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
        assert f"ava approve {made['pending_id']}" in made["next"]
        assert "link" not in made["next"] and "page" not in made["next"]
        checked = read_answer(await client.call_tool("check_subagent", {"subagent_id": made["subagent_id"]}))[0]
        assert "link" not in (checked.get("message") or "")
    assert not started.is_set()


@pytest.mark.skipif(sys.platform == "win32", reason="there, nothing tells that it has ended")
def test_a_program_that_ends_at_once_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = DataRoot(tmp_path / "data")
    root.create()
    server = background.pages_server(root)
    monkeypatch.setattr(background, "MODULE_ARGS", ("-c", "raise SystemExit('no port is free')"))
    with pytest.raises(ConfigError, match=r"the server of `ava ui` ended as soon as it was started; see .*worker"):
        server.start(within_s=120)
    assert root.worker_words.read_text() == "no port is free\n"


def test_a_program_that_ended_because_another_one_is_starting_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = DataRoot(tmp_path / "data")
    root.create()
    server = background.pages_server(root)
    monkeypatch.setattr(background, "MODULE_ARGS", ("-c", "pass"))
    other = try_hold(root.worker_lock)
    assert other is not None
    with other, pytest.raises(ConfigError, match="did not start within"):
        server.start(within_s=0.5)


@pytest.mark.parametrize(("user", "address"), [(os_user(), ADDRESS), ("ana", "https://ava.example")])
async def test_only_a_host_of_this_machine_is_sent_to_the_pages_of_this_machine(user: str, address: str) -> None:
    named_alike = Token("local-aa", user, ("spawn",), "0" * 64, 0, None)
    pages = SimpleNamespace(address=AsyncMock(return_value=ADDRESS))
    app = SimpleNamespace(transport=HTTP, url="https://ava.example", runtime=MagicMock(), pages=pages)
    request = SimpleNamespace(scope={OF_REQUEST: named_alike})
    ctx: Any = SimpleNamespace(
        session=SimpleNamespace(client_params=None, client_capabilities=None), request=request, lifespan_context=app
    )
    person = elicitation.ClientPerson(ctx, CallToolRequestParams(name="confirm_spawn"), 0)
    assert await person.address() == address


@asynccontextmanager
async def on_stdio(tmp_path: Path, mode: str, name: str, config: str = BY_HOST) -> AsyncGenerator[Client]:
    """A server as it is on stdio, and a host of this name."""
    with run_model_server([]) as models:
        settings = settings_of(tmp_path / "data", models.base_url, config)
        server = build_server(lambda: settings, transport="stdio")
        async with Client(server, mode=mode, client_info=Implementation(name=name, version="1")) as client:
            yield client
