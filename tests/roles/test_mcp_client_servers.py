"""Foreign servers as a run holds them: both protocol eras, slow ones, mute ones, calls that are given up."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.foreign.servers import SCRIPT
from support.processes import processes_of_run
from support.sandboxes.attacks import EVERY, needs
from support.sandboxes.attacks import sandbox as sandbox_of

from ava_roles.errors import ToolFailed
from ava_roles.mcp_client import run_servers
from ava_roles.mcp_client.connection import MAX_PAGES, LaunchContext
from ava_roles.mcp_client.run_servers import RunMcpServers, ToolDiscovery, list_tools
from ava_roles.mcp_client.server_tools import OfferedTool, ServerEntry
from ava_roles.sandbox.sandbox import Kind, Sandbox, Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.sandbox.toolchains import HostFolders

pytestmark = pytest.mark.slow

RAW = SCRIPT.with_name("mcp_raw.py")


@pytest.mark.parametrize("kind", EVERY)
async def test_a_server_works_in_each_sandbox_and_leaves_nothing_behind(tmp_path: Path, kind: Kind) -> None:
    needs(kind)
    (tmp_path / "shared").mkdir()
    own = entry("forks", read_write=(tmp_path / "shared",))
    async with held(tmp_path, own, "add", "write", kind=kind) as (servers, offers):
        assert "42" in (await servers.call("lab", offers["add"], {"a": 2, "b": 40})).text
        kept = {"path": str(tmp_path / "shared" / "kept"), "text": "kept"}
        assert (await servers.call("lab", offers["write"], kept)).success
        assert processes_of_run("S-000001"), "it lives while it is held"
    assert processes_of_run("S-000001") == []
    assert (tmp_path / "shared" / "kept").read_text() == "kept"
    assert left_in(tmp_path) == ["shared"], "its home went with it"


@pytest.mark.parametrize("ways", [(), ("mute",)])
async def test_a_server_of_the_handshake_era_works_and_all_its_requests_are_refused(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    async with held(tmp_path, entry(*ways, script=RAW), "ask") as (servers, offers):
        with anyio.fail_after(40):
            said = (await servers.call("lab", offers["ask"], {})).text
        assert said == ("sampling/createMessage: -32601; elicitation/create: -32601; roots/list: -32601; ping: {}")
        assert (await servers.call("lab", offers["ask"], {"what": "noise"})).text == "noisy"


async def test_an_invalid_answer_fails_the_call_and_restarts_the_server(tmp_path: Path) -> None:
    async with held(tmp_path, entry(script=RAW), "ask") as (servers, offers):
        with pytest.raises(ToolFailed, match="violates the MCP protocol"):
            await servers.call("lab", offers["ask"], {"what": "nonsense"})
        assert (await servers.call("lab", offers["ask"], {"what": "noise"})).success


async def test_limits_the_pages_of_an_endless_tool_list(tmp_path: Path) -> None:
    listing = await list_tools(entry("pages", script=RAW), await means(tmp_path))
    assert not listing.fault and len(listing.tools) == MAX_PAGES


async def test_cancelling_a_call_notifies_the_server_and_keeps_it_running(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    seen = shared / "seen"
    async with held(tmp_path, entry("good", read_write=(shared,)), "hold", "add", "pid") as (servers, offers):
        pid = (await servers.call("lab", offers["pid"], {})).text
        with anyio.move_on_after(1.5) as given_up:
            await servers.call("lab", offers["hold"], {"path": str(seen)})
        assert given_up.cancelled_caught
        assert (await servers.call("lab", offers["add"], {"a": 1, "b": 1})).text.startswith("2")
        assert seen.read_text() == "cancelled"
        assert (await servers.call("lab", offers["pid"], {})).text == pid, "it is the same one"


async def test_calls_to_one_server_run_concurrently(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    async with (
        held(tmp_path, entry("good", read_write=(shared,)), "hold", "add") as (servers, offers),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(servers.call, "lab", offers["hold"], {"path": str(shared / "seen")})
        with anyio.fail_after(40):
            assert (await servers.call("lab", offers["add"], {"a": 2, "b": 2})).text.startswith("4")
        tasks.cancel_scope.cancel()


async def test_waits_for_a_server_that_starts_slowly(tmp_path: Path) -> None:
    listing = await list_tools(entry("slow"), await means(tmp_path))
    assert not listing.fault and "add" in {tool.tool for tool in listing.tools}


async def test_a_silent_server_delays_a_run_only_until_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_servers, "START_S", 1.0)
    servers = RunMcpServers({"lab": entry("silent")}, {}, await means(tmp_path))
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            assert await servers.start(tasks) == 'the MCP server "lab" did not answer within 1 s'
            await servers.end()


async def test_a_proposal_waits_as_long_for_a_server_as_a_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_servers, "START_S", 0.5)
    with anyio.fail_after(8):
        listing = await list_tools(entry("silent"), await means(tmp_path))
    assert listing.fault == "did not answer within 0.5 s"


async def test_caches_the_tool_list_and_asks_a_server_only_once_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    async def counted(_entry: ServerEntry) -> LaunchContext:
        started.append("once")
        return await means(tmp_path)

    seen = ToolDiscovery(counted)
    async with anyio.create_task_group() as tasks:
        for _each in range(3):
            tasks.start_soon(seen.offers, [entry("good")])
    assert started == ["once"]
    seen.forget()
    assert not (await seen.offers([entry("good")]))["lab"].fault and len(started) == 2
    monkeypatch.setattr(run_servers, "FAULT_CACHE_S", 0.0)
    assert (await seen.offers([entry("exits")]))["lab"].fault == "ended before it answered"
    assert (await seen.offers([entry("exits")]))["lab"].fault and len(started) == 4, "a fault may pass"


def test_exposes_the_installation_of_a_program_but_never_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    programs = (home / ".local" / "bin", home / "tools" / "lab" / "bin")
    for folder in programs:
        folder.mkdir(parents=True)
        (folder / "serve-it").write_text("#!/bin/sh\n")
        (folder / "serve-it").chmod(0o755)
    script = home / "script.py"
    script.write_text("")
    monkeypatch.setenv("HOME", str(home))
    private = tmp_path / "private"
    private.mkdir()

    host = HostFolders(Path.home())
    launch = LaunchContext("S-000001", Unavailable("", ""), host, lambda _name: private, lambda values, _url: values)

    def seen(program: Path, *args: str) -> set[Path]:
        own = ServerEntry("lab", str(program), args)
        return {bind.source for bind in launch.command(own, {}, private).binds}

    assert seen(programs[0] / "serve-it", str(script)) == {programs[0] / "serve-it", script, private}
    assert seen(programs[1] / "serve-it", str(home)) == {programs[1].parent, private}


def entry(*ways: str, script: Path = SCRIPT, read_write: tuple[Path, ...] = ()) -> ServerEntry:
    return ServerEntry("lab", sys.executable, (str(script), *ways), read_write=read_write)


async def means(tmp: Path, kind: Kind | None = None) -> LaunchContext:
    """Return what servers are started with: in the sandbox that is found here, or in one of a kind."""
    if kind is not None:
        sandbox: Sandbox | Unavailable = sandbox_of(kind, tmp)
    else:
        sandbox = await anyio.to_thread.run_sync(find_sandbox, "auto", tmp / "sandbox")
    return LaunchContext(
        "S-000001",
        sandbox,
        HostFolders(Path.home()),
        lambda _name: Path(tempfile.mkdtemp(dir=tmp)),
        lambda values, _url: values,
    )


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@asynccontextmanager
async def held(
    tmp: Path, own: ServerEntry, *tools: str, kind: Kind | None = None
) -> AsyncGenerator[tuple[RunMcpServers, dict[str, OfferedTool]]]:
    """A run's servers, started, with the tools that they offered before."""
    offers = {tool.tool: tool for tool in (await list_tools(own, await means(tmp, kind))).tools}
    servers = RunMcpServers({"lab": own}, {"lab": [offers[name] for name in tools]}, await means(tmp, kind))
    async with anyio.create_task_group() as tasks:
        assert await servers.start(tasks) is None
        try:
            yield servers, offers
        finally:
            await servers.end()
