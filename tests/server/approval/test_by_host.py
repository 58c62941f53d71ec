"""Who approves follows what the client is known to show its person; what is not known is asked by Ava itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData
from support.databases import write_config
from support.model_server import run_model_server
from support.runtime import PRICED, connect, hand_over
from support.stdio import read_answer

from ava_audit.events import SpawnProposed, Who
from ava_audit.store.store import Store
from ava_server.approval.decisions import Approval, approve
from ava_server.approval.proposals import SpawnLimits
from ava_server.budget.user_limits import DayCaps, policy_in_force
from ava_server.config.pin import PinFile
from ava_server.config.settings import Settings, load_settings
from ava_server.core import background
from ava_server.core.data_root import os_user
from ava_server.core.errors import ConfigError
from ava_server.hosts.clients import ConnectedHost, client_of, known_clients
from ava_server.hosts.known import HOSTS

SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}


def settings_of(root: Path, config: str = "", env: dict[str, str] | None = None) -> Settings:
    root.mkdir(mode=0o700, exist_ok=True)
    write_config(root, config if "approval" in config.partition("[")[0] else f'approval = "by_host"\n{config}')
    return load_settings(root, env or {})


def policy(settings: Settings, name: str | None, version: str = "1.0", **more: Any) -> str:
    return policy_in_force(settings, os_user(), through=ConnectedHost(name, version, **more))[0]


@pytest.mark.parametrize(
    ("name", "forms", "expected"),
    [
        ("gemini-cli-mcp-client", False, "human"),
        ("Visual Studio Code", False, "human"),
        ("Visual Studio Code", True, "ask"),
        ("ava-command-line", False, "ask"),
        ("claude-code", True, "ask"),
        ("claude-ai", False, "human"),
        ("opencode", False, "human"),
        ("@cline/core", False, "human"),
        ("qwen-cli-mcp-client-ava", False, "human"),
        ("continue-cli-client", False, "human"),
        ("copilot-cli", True, "ask"),
        ("Zed", False, "human"),
        ("a client of my own", False, "human"),
        ("a client of my own", True, "ask"),
        ("", False, "human"),
        (None, False, "human"),
    ],
)
def test_the_default_follows_what_the_client_shows(
    tmp_path: Path, name: str | None, forms: bool, expected: str
) -> None:
    assert policy(settings_of(tmp_path / "data"), name, forms=forms) == expected


def test_every_row_is_complete_and_each_host_of_ava_init_has_one() -> None:
    rows = [client for client in known_clients() if client.id]
    assert {client.id for client in rows} >= HOSTS.keys() - {"goose"}
    for client in rows:
        assert client.seen is not None and client.names, client
        assert client.seen.how == "driven" or client.seen.source, f"{client.id}: where was it read?"
        assert client.seen.how == "driven" or not client.shows_approval, f"{client.id}: who has seen its prompt?"
        assert not client.shows_approval or client.seen.window == "80x24", f"{client.id}: who has seen it in a window?"
        assert client_of(client.names[0], client.seen.version) is client
    names = [name.lower() for client in known_clients() for name in client.names]
    assert len(names) == len(set(names)) > 40


def test_a_client_that_lies_about_its_name_gets_what_an_honest_one_gets(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "data")
    for name in ("claude-code", "codex-mcp-client", "copilot-cli", "cursor-vscode", "mcp-use"):
        assert policy(settings, name) == "human" or client_of(name).shows_approval, "no question, no trust"


def test_a_setting_for_one_host_counts_there_and_nowhere_else(tmp_path: Path) -> None:
    own = '[hosts.cline]\napproval = "ask"\n[hosts.gemini]\napproval = "human"\n[hosts."my own"]\napproval = "auto"\n'
    settings = settings_of(tmp_path / "data", own)
    assert [policy(settings, name) for name in ("@cline/core", "gemini-cli-mcp-client", "My Own", "claude-ai")] == [
        "ask", "human", "auto", "human",
    ]  # fmt: skip
    PinFile(settings.paths.approval_file).set("839217")
    assert policy(settings, "@cline/core") == "human", "a PIN counts everywhere"


def test_a_general_policy_is_respected_and_a_variable_only_tightens(tmp_path: Path) -> None:
    for general in ("ask", "human", "auto"):
        settings = settings_of(tmp_path / general, f'approval = "{general}"\n')
        assert {policy(settings, "gemini-cli-mcp-client"), policy(settings, "unknown")} == {general}
    lax = settings_of(tmp_path / "data", '[hosts.cline]\napproval = "ask"\n', {"AVA_APPROVAL": "human"})
    assert policy(lax, "@cline/core") == "human"
    with pytest.raises(ConfigError, match="AVA_APPROVAL"):
        settings_of(tmp_path / "data", "", {"AVA_APPROVAL": "ask"})
    with pytest.raises(ConfigError, match="hosts"):
        settings_of(tmp_path / "data", "", {"AVA_HOSTS__CLINE__APPROVAL": "ask"})


def test_a_terminal_asks_for_the_pin_only_for_what_such_a_host_proposed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "data")
    assert policy_in_force(settings, os_user())[0] == "ask"
    proposed_under_human = ("human", 'it was proposed under approval = "human"')
    assert policy_in_force(settings, os_user(), made_under=["human"]) == proposed_under_human
    settings = settings_of(tmp_path / "data", 'approval = "ask"\n')
    assert policy_in_force(settings, os_user(), made_under=["ask", "human"]) == proposed_under_human
    assert policy_in_force(settings, os_user(), made_under=["auto"])[0] == "ask", "it loosens nothing"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_two_clients_of_one_data_root_each_have_their_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(background, "start_pages", lambda _root: "http://localhost:8643")

    async def yes(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ElicitResult(action="accept", content={})

    config = f'approval = "by_host"\n{PRICED}'
    with run_model_server([hand_over()]) as models:
        opened = connect(tmp_path, config=config, mode=mode, server=models, name="ava-command-line")
        async with opened as (shows, _models):
            made = read_answer(await shows.call_tool("spawn_subagent", SPAWN))[0]
            assert "when they agree, call confirm_spawn" in made["next"]
        async with connect(tmp_path, config=config, mode=mode, server=models, name="nobody knows") as (other, _models):
            refused = read_answer(await other.call_tool("spawn_subagent", SPAWN))[0]
            assert f"ava approve {refused['pending_id']}" in " ".join(refused["next"].split())
        opened = connect(tmp_path, config=config, mode=mode, server=models, name="asks", asks=yes)
        async with opened as (asking, _models):
            asked = read_answer(await asking.call_tool("spawn_subagent", SPAWN))[0]
            assert "only they can answer" in asked["next"]


async def test_who_has_approved_in_hosts_is_told_of_the_change_until_they_have_decided_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "start_pages", lambda _root: "http://localhost:8643")
    with run_model_server([hand_over(), hand_over()]) as models:

        async def propose(config: str, *, confirm: bool = False) -> dict[str, Any]:
            async with connect(tmp_path, config=config + PRICED, server=models, name="some host") as (client, _models):
                made = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
                if confirm:
                    given = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
                    answer = read_answer(await client.call_tool("confirm_spawn", {**given, "wait_seconds": 20}))[0]
                    assert answer["status"] == "approved"
                return made

        assert "Until now" not in (await propose('approval = "by_host"\n'))["message"], "nothing was approved yet"
        await propose('approval = "ask"\n', confirm=True)
        made = await propose('approval = "by_host"\n')
        assert "Until now you approved in your hosts" in made["message"]
        approval = Approval((made["pending_id"],), (made["approval_line"],))
        limits = SpawnLimits(0, "", DayCaps(10**9, 10**9), ("", ""), 10**9)
        async with Store.open(tmp_path / "data") as store:
            await store.do(approve(approval, Who("sess-1", "person", os_user()), "terminal", limits))
        assert "Until now" not in (await propose('approval = "by_host"\n'))["message"]


def test_logs_of_older_versions_have_no_policy() -> None:
    assert SpawnProposed(pending_id="P-1", subagent_id="S-1", digest="", expires_us=0, config={}).policy is None
