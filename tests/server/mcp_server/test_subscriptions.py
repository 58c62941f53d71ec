"""What has changed is told to who follows it, in both eras, and to nobody else; list by list and page by page."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from support.hosts.updates import Ear, follow_updates, subscribe, unsubscribe
from support.model_server import Gate, Say, run_model_server, slow_answer
from support.runtime import connect, hand_over, open_lab, wait_for

from ava_server.mcp_server.subscriptions import ROLES_EVERY_S

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["stateless era", "handshake era"])
ROLE = "---\ndescription: Counts things.\ntier: fast\n---\nCount.\n"


async def propose(client: Client, tmp_path: Path) -> dict[str, Any]:
    given = {"role": "researcher", "task": "prices", "workspace": str(tmp_path / "workspace")}
    made: dict[str, Any] | None = (await client.call_tool("spawn_subagent", given)).structured_content
    assert made is not None and made["status"] == "awaiting_approval", made
    return made


async def approve(client: Client, made: dict[str, Any], **more: Any) -> None:
    lines = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
    await client.call_tool("confirm_spawn", {**lines, **more})


@pytest.mark.slow
@ERAS
async def test_sends_updates_of_a_subscribed_run_until_it_ends(tmp_path: Path, mode: str) -> None:
    ear, gate = Ear(), Gate()
    with run_model_server([Say("", [("scratchpad", {"note": "x"})], gate=gate), hand_over()]) as models:
        async with connect(tmp_path, server=models, mode=mode, hears=ear.on_message) as (client, _server):
            made = await propose(client, tmp_path)
            run = f"ava://runs/{made['subagent_id']}"
            async with follow_updates(client, ear, mode, run, f"{run}/transcript", "ava://roles") as agreed:
                assert set(agreed) == {run, f"{run}/transcript", "ava://roles"}
                await approve(client, made)
                await ear.until(ResourceUpdated(run))
                await ear.until(ResourceUpdated(f"{run}/transcript"))
                await ear.until(ResourcesListChanged())
                await wait_for(gate.arrived)
                ear.heard.clear()
                gate.released.set()
                await ear.until(ResourceUpdated(run))
                while "success" not in str((await client.read_resource(run)).contents):
                    ear.heard.clear()
                    await ear.until(ResourceUpdated(run))
                assert ResourceUpdated("ava://roles") not in ear.heard


@ERAS
async def test_tells_of_what_a_followed_run_is_doing_although_the_log_has_nothing_new(
    tmp_path: Path, mode: str
) -> None:
    ear = Ear()
    with run_model_server([slow_answer(80, Gate())]) as models:
        async with connect(tmp_path, server=models, mode=mode, hears=ear.on_message) as (client, _server):
            made, other = await propose(client, tmp_path), await propose(client, tmp_path)
            run, second = (f"ava://runs/{each['subagent_id']}" for each in (made, other))
            async with follow_updates(client, ear, mode, run, second):
                await approve(client, made)
                shown: set[str | None] = set()
                with anyio.fail_after(20):
                    while "Thinking (20 tokens)" not in shown:
                        await ear.until(ResourceUpdated(run))
                        ear.heard.clear()
                        resource: Any = (await client.read_resource(run)).contents[0]
                        shown.add(json.loads(resource.text).get("untrusted_activity"))
                assert ResourceUpdated(second) not in ear.heard
            await client.call_tool("cancel_subagent", {"subagent_id": made["subagent_id"]})


@pytest.mark.slow
@ERAS
async def test_adding_a_role_file_announces_changed_tools_prompts_and_roles(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))  # lists are made before the data root is open
    ear = Ear()
    async with connect(tmp_path, mode=mode, hears=ear.on_message) as (client, _server):
        await client.call_tool("check_subagent", {})
        before = {tool.name: tool.description for tool in (await client.list_tools(cache_mode="bypass")).tools}
        async with follow_updates(client, ear, mode, "ava://roles"):
            (tmp_path / "data" / "roles").mkdir(exist_ok=True)
            (tmp_path / "data" / "roles" / "counter.md").write_text(ROLE)
            for event in (ToolsListChanged(), PromptsListChanged(), ResourceUpdated("ava://roles")):
                await ear.until(event)
            assert ResourcesListChanged() not in ear.heard
        assert "counter" not in (before["spawn_subagent"] or "")
        after = {tool.name: tool.description for tool in (await client.list_tools(cache_mode="bypass")).tools}
        assert "counter" in (after["spawn_subagent"] or "")
        [role] = [
            argument
            for prompt in (await client.list_prompts(cache_mode="bypass")).prompts
            for argument in prompt.arguments or []
            if argument.name == "role"
        ]
        assert "counter" in (role.description or "")


async def test_sends_no_updates_after_unsubscribing(tmp_path: Path) -> None:
    ear = Ear()
    async with connect(tmp_path, [hand_over()], mode="legacy", hears=ear.on_message) as (client, _server):
        made, other = await propose(client, tmp_path), await propose(client, tmp_path)
        run, second = (f"ava://runs/{each['subagent_id']}" for each in (made, other))
        await subscribe(client, run)
        await subscribe(client, second)
        await unsubscribe(client, run)
        await unsubscribe(client, "ava://runs/S-000000")
        for each in (made, other):
            await client.call_tool("cancel_subagent", {"pending_id": each["pending_id"]})
        await ear.until(ResourceUpdated(second))
        assert ResourceUpdated(run) not in ear.heard


async def test_a_stream_receives_only_the_updates_it_requested(tmp_path: Path) -> None:
    async with connect(tmp_path) as (client, _server):
        made = await propose(client, tmp_path)
        run = f"ava://runs/{made['subagent_id']}"
        async with (
            client.listen(resource_subscriptions=[run]) as narrow,
            client.listen(resources_list_changed=True) as wide,
        ):
            await client.call_tool("cancel_subagent", {"pending_id": made["pending_id"]})
            with anyio.fail_after(40):
                assert await anext(narrow) == ResourceUpdated(run)
                assert await anext(wide) == ResourcesListChanged()


@pytest.mark.slow
@ERAS
async def test_a_user_gets_no_updates_of_the_runs_of_others(tmp_path: Path, mode: str) -> None:
    ear = Ear()
    async with open_lab(tmp_path, runs=False, check=False) as lab:
        given = {"role": "researcher", "task": "secret", "workspace": str(lab.workspace)}
        theirs = await lab.call_as("mallory", "spawn_subagent", **given)
    async with connect(tmp_path, mode=mode, hears=ear.on_message) as (client, _server):
        mine = await propose(client, tmp_path)
        run, foreign = f"ava://runs/{mine['subagent_id']}", f"ava://runs/{theirs.subagent_id}"
        for uri in (foreign, "ava://runs/S-000000", "ava://runs/nonsense", "test://watched", f"{run}/artifacts/a.csv"):
            if mode == "legacy":
                with pytest.raises(MCPError) as refused:
                    await subscribe(client, uri)
                assert refused.value.error.code == INVALID_PARAMS
            else:
                async with client.listen(resource_subscriptions=[uri]) as stream:
                    assert not stream.honored.resource_subscriptions
        if mode == "legacy":  # every list counts there, and the user's own proposal stands in one
            await ear.until(ResourcesListChanged())
            ear.heard.clear()
        async with follow_updates(client, ear, mode, run), open_lab(tmp_path, runs=False, check=False) as lab:
            await lab.call_as("mallory", "cancel_subagent", pending_id=theirs.pending_id)
            await anyio.sleep(1.5)  # longer than the pace at which clients are told
            assert ear.heard == []
            await client.call_tool("cancel_subagent", {"pending_id": mine["pending_id"]})
            await ear.until(ResourceUpdated(run))
            assert set(ear.heard) == {ResourceUpdated(run), ResourcesListChanged()}


async def test_a_server_in_legacy_mode_declares_its_notifications_and_no_logging(tmp_path: Path) -> None:
    async with connect(tmp_path, mode="legacy") as (client, _server):
        can = client.server_capabilities
        assert can.resources is not None and can.resources.subscribe and can.resources.list_changed
        assert can.tools is not None and can.tools.list_changed
        assert can.prompts is not None and can.prompts.list_changed
        assert can.completions is not None and can.logging is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the stateless era has neither
            await client.send_ping()
            with pytest.raises(MCPError) as refused:
                await client.set_logging_level("debug")
        assert refused.value.error.code == METHOD_NOT_FOUND


@pytest.mark.slow
async def test_temporarily_unreadable_role_files_block_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ear, here = Ear(), tmp_path / "here"
    here.mkdir()
    async with connect(tmp_path, mode="legacy", hears=ear.on_message) as (client, _server):
        await subscribe(client, "ava://roles")
        monkeypatch.chdir(here)
        here.rmdir()
        await anyio.sleep(ROLES_EVERY_S + 0.5)  # longer than the pace of the looks
        assert not (await client.call_tool("check_subagent", {})).is_error
        monkeypatch.chdir(tmp_path)
        (tmp_path / "data" / "roles").mkdir(exist_ok=True)
        (tmp_path / "data" / "roles" / "counter.md").write_text(ROLE)
        await ear.until(ToolsListChanged())
