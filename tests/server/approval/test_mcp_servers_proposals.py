"""What a proposal says of other MCP servers, which of their tools a role gets, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.foreign.servers import SCRIPT, stdio_server, write_role
from support.model_server import run_model_server
from support.runtime import Lab, hand_over, open_lab
from support.stdio import until

from ava_roles.mcp_client import run_servers
from ava_roles.mcp_client.server_tools import ServerEntry

pytestmark = pytest.mark.slow

GOOD = stdio_server("good")


async def proposed(lab: Lab, **more: Any) -> Any:
    """Propose the role `guest`, without a folder."""
    answer = await lab.call("spawn_subagent", role="guest", task="What is 1 + 1?", **more)
    assert answer.status == "awaiting_approval", answer.message
    return answer


def foreign(answer: Any) -> set[str]:
    return {name.removeprefix("mcp__lab__") for name in answer.tools if name.startswith("mcp__")}


@pytest.mark.parametrize("word", ["mcp__lab", "mcp__lab__*"])
async def test_a_server_wide_entry_grants_only_tools_declared_read_only(tmp_path: Path, word: str) -> None:
    write_role(tmp_path / "data", word)
    async with open_lab(tmp_path, config=GOOD, runs=False) as lab:
        answer = await proposed(lab)
        assert {"add", "look", "environment"} <= foreign(answer)
        assert not {"write", "burn"} & foreign(answer), "not annotated as read-only, or annotated as destructive too"
        assert "can change things" not in answer.approval_line and "can use the MCP server lab" in answer.approval_line


async def test_a_tool_that_is_not_read_only_requires_its_exact_name(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__write, mcp__lab__burn, mcp__lab__add")
    async with open_lab(tmp_path, config=GOOD, runs=False) as lab:
        answer = await proposed(lab)
        assert foreign(answer) == {"write", "burn", "add"}
        assert "can use the MCP server lab (can change things)" in answer.approval_line
        line = next(line for line in answer.message.splitlines() if line.startswith('MCP server "lab"'))
        assert 'can change things with the tools "write", "burn"' in line and 'only read: "add"' in line
        assert "without a network" in line and "sees none of your folders" in line and "confined by" in line


async def test_the_proposal_shows_the_network_and_the_folders_of_a_server(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    write_role(tmp_path / "data", "mcp__lab__add")
    config = stdio_server("good", more=f'network = true\nread_write = ["{shared}"]')
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        answer = await proposed(lab)
        assert "can use the MCP server lab (reaches the network)" in answer.approval_line
        assert f"with this machine's network; may write to {shared}" in answer.message
        assert "cannot read your files" not in answer.message


async def test_a_spawn_narrows_tools_by_name_and_by_server(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab, read_webpages")
    async with open_lab(tmp_path, config=GOOD, runs=False) as lab:
        assert foreign(await proposed(lab, tools=["mcp__lab__add", "mcp__lab__look"])) == {"add", "look"}
        assert foreign(await proposed(lab, blocked_tools=["mcp__lab__*"])) == set()
        assert "add" not in foreign(await proposed(lab, blocked_tools=["mcp__lab__add"]))
        refused = await lab.call("spawn_subagent", role="guest", task="x", tools=["mcp__lab__write"])
        assert refused.status == "failed" and "has no tool" in refused.message


async def test_a_role_can_deny_single_tools_of_a_server(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab", "disallowedTools: mcp__lab__look\n")
    async with open_lab(tmp_path, config=GOOD, runs=False) as lab:
        assert "look" not in foreign(await proposed(lab)) and "add" in foreign(await proposed(lab))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("", 'no MCP server "lab" is configured here'),
        (stdio_server("exits"), "ended before it answered"),
        (stdio_server("floods"), "lines that were not requested"),
        (stdio_server("endless"), "wrote a line of more than 4,000,000 bytes"),
        ('[mcp_servers.lab]\ncommand = "no-such-program-anywhere"\n', "its program is not found"),
        ('[mcp_servers.lab]\nurl = "http://127.0.0.1:9/mcp"\n', "cannot be reached"),
        (stdio_server("good", env={"A": "{{secret:NOBODY_STORED}}"}), "NOBODY_STORED is not stored here"),
    ],
)
async def test_omits_the_tools_of_an_unavailable_server_and_says_why(tmp_path: Path, config: str, why: str) -> None:
    write_role(tmp_path / "data", "mcp__lab__add, read_webpages")
    write_role(tmp_path / "data", "mcp__lab__add", "needs: [mcp__lab__add]\n", name="needy")
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        answer = await proposed(lab)
        assert foreign(answer) == set() and "mcp__lab__add" in answer.unavailable_tools
        assert why in answer.message
        refused = await lab.call("spawn_subagent", role="needy", task="x")
        assert refused.status == "failed" and why in refused.message


@pytest.mark.parametrize("tools", ["mcp__lab__add", "mcp__lab, scratchpad, recall", "mcp__lab__add, mcp__gone__find"])
async def test_refuses_a_role_none_of_whose_servers_is_there_and_says_why(tmp_path: Path, tools: str) -> None:
    write_role(tmp_path / "data", tools)
    async with open_lab(tmp_path, config=stdio_server("exits"), runs=False) as lab:
        refused = await lab.call("spawn_subagent", role="guest", task="x")
        assert refused.status == "failed" and "none of them can be used now" in refused.message
        assert 'the MCP server "lab" ended before it answered' in refused.message and "Try again" in refused.message
        assert "`ava doctor`" in refused.message


async def test_refuses_a_call_that_leaves_only_tools_of_a_server_that_is_not_there(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add, read_webpages")
    async with open_lab(tmp_path, config="", runs=False) as lab:
        refused = await lab.call("spawn_subagent", role="guest", task="x", tools=["mcp__lab__add"])
        assert refused.status == "failed" and 'no MCP server "lab" is configured here' in refused.message


async def test_what_is_missing_of_several_servers_is_said_in_the_proposal_and_the_result(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add, mcp__gone__find")
    missing = 'mcp__gone__find is not there: no MCP server "gone" is configured here'
    async with open_lab(tmp_path, [hand_over()], config=GOOD) as lab:
        answer = await proposed(lab)
        assert foreign(answer) == {"add"} and missing in answer.message
        await lab.approve(answer)
        await lab.ended(answer.subagent_id)
        (run,) = (await lab.call("check_subagent", subagent_id=answer.subagent_id)).runs
        assert run.status == "success" and any(missing in caveat for caveat in run.untrusted_result.caveats)


async def test_a_run_whose_servers_no_longer_start_ends_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    async with open_lab(tmp_path, config=GOOD) as lab:
        answer = await proposed(lab)
        monkeypatch.setattr(run_servers, "START_S", 0.0)
        await lab.approve(answer)
        row = await lab.ended(answer.subagent_id)
        assert (row.state, row.error_kind, row.cost_micros) == ("error", "mcp_server", 0)
        assert lab.server.requests == []


async def test_a_role_can_require_any_tool_of_a_server(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab", "needs: [mcp__lab]\n")
    async with open_lab(tmp_path, config=GOOD, runs=False) as lab:
        assert "add" in foreign(await proposed(lab))
        refused = await lab.call("spawn_subagent", role="guest", task="x", blocked_tools=["mcp__lab"])
        assert refused.status == "failed" and "which the call excludes" in refused.message


async def test_never_auto_approves_a_run_with_mcp_server_tools(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    config = f'approval = "auto"\nauto_approve_cents = 100\nauto_approve_daily_cents = 100\n{GOOD}'
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        assert 'only the MCP server "lab" itself says what its tools do' in (await proposed(lab)).message


async def test_refuses_a_server_that_identifies_itself_as_ava(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab, read_webpages")
    async with open_lab(tmp_path, config=stdio_server("ava"), runs=False) as lab:
        answer = await proposed(lab)
        assert "is Ava itself, and a subagent starts no subagents" in answer.message and foreign(answer) == set()


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("ava", ("serve",)),
        ("/opt/x/bin/ava", ()),
        ("C:\\tools\\ava.exe", ("serve",)),
        ("uvx", ("ava-subagents", "serve")),
        ("uvx", ("--from", "ava-subagents==0.1", "ava", "serve")),
        ("python3", ("-m", "ava_server", "serve")),
        ("sh", ("-c", "cd /tmp && exec ava serve")),
        ("env", ("-u", "AVA_RUN_ID", "ava", "serve")),
    ],
)
def test_refuses_a_server_whose_command_is_ava(command: str, args: tuple[str, ...]) -> None:
    assert ServerEntry("other", command, args).is_ava


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("npx", ("-y", "@modelcontextprotocol/server-filesystem", "/home/me/ava-subagents")),
        ("java", ("-jar", "server.jar")),
        ("lava", ("serve",)),
    ],
)
def test_does_not_mistake_other_servers_for_ava(command: str, args: tuple[str, ...]) -> None:
    assert not ServerEntry("other", command, args).is_ava


async def test_refuses_a_wrapped_ava_by_its_environment_variable(tmp_path: Path) -> None:
    """A wrapper with another name starts the real program, which finds AVA_RUN_ID and does not serve."""
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, sys\nfrom importlib import import_module\n"
        "sys.argv = ['x', 'ser' + 've']\nimport_module('ava_' + 'server.__main__').main()\n"
    )
    repository = SCRIPT.parents[2]
    config = (
        f'[mcp_servers.lab]\ncommand = "{sys.executable}"\nargs = ["{wrapper}"]\n'
        f'env = {{ AVA_RUN_ID = "", PYTHONPATH = "{repository}/server:{repository}/roles:{repository}/audit" }}\n'
        f'[sandbox]\nread_only = ["{repository}"]\n'
    )
    write_role(tmp_path / "data", "mcp__lab, read_webpages")
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        answer = await proposed(lab)
        assert 'the MCP server "lab" ended before it answered' in answer.message, answer.message
    said = await anyio.run_process([sys.executable, str(wrapper)], env={"AVA_RUN_ID": "S-1"}, check=False)
    assert b"a subagent starts no subagents" in said.stderr, "this is why"


async def test_a_run_waits_if_its_server_configuration_changed_since_approval(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    with run_model_server([]) as server:
        async with open_lab(tmp_path, config=GOOD, runs=False, server=server) as lab:
            answer = await proposed(lab)
            assert (await lab.approve(answer)).status == "approved"
        more = stdio_server("good", more="network = true")
        async with open_lab(tmp_path, config=more, server=server) as lab:
            lab.runtime.manager.adopted.add(answer.subagent_id)
            lab.runtime.manager.wake()
            waits_for = await until(lambda: lab.runtime.manager.waiting_for.get(answer.subagent_id))
            assert waits_for == 'the configuration of the MCP server "lab" has changed since this was approved'
