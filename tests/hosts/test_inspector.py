"""The MCP Inspector's two programs: the CLI, with a connection for each call, and mcpdo, which keeps one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.hosts.extensions import keep_noting
from support.hosts.inspector import ASKED, confirm_arguments, keep_connected, open_inspector
from support.hosts.real_hosts import SPAWN, entries, needs
from support.model_server import Gate, Say, run_model_server

from ava_server.mcp_server import card

pytestmark = [pytest.mark.slow, needs()]

OUTPUT = "twelve cents"
DONE = Say(calls=[("submit_result", {"summary": "done", "output": OUTPUT})])
TOOLS = [
    "spawn_subagent",
    "confirm_spawn",
    "check_subagent",
    "message_subagent",
    "cancel_subagent",
    "read_ava_logs",
]


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_cli_proposes_confirms_and_checks(tmp_path: Path, transport: str, era: str) -> None:
    with run_model_server([DONE]) as models, open_inspector(tmp_path, models, transport) as inspector:
        assert [tool["name"] for tool in inspector.once(era, "tools/list")["tools"]] == TOOLS
        proposal = inspector.tool_once(era, "spawn_subagent", **SPAWN)
        confirmed = inspector.tool_once(era, "confirm_spawn", **confirm_arguments(proposal))
        # In the stateless era the CLI has tasks: it follows this one, and prints its result as the call's.
        assert ("runs" in confirmed) == (era == "modern") and ("decisions" in confirmed) == (era == "legacy")
        checked = inspector.tool_once(era, "check_subagent", subagent_id=proposal["subagent_id"], wait_seconds=20)
        for answer in (checked, confirmed) if era == "modern" else (checked,):
            assert answer["runs"][0]["untrusted_result"]["output"] == OUTPUT


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_cli_finds_the_card_only_where_it_says_that_it_shows_pages(
    tmp_path: Path, transport: str, era: str
) -> None:
    with run_model_server([]) as models, open_inspector(tmp_path, models, transport) as inspector:
        assert inspector.pages(era) == dict.fromkeys(TOOLS)
        shown = dict.fromkeys(("confirm_spawn", "check_subagent"), card.URI)
        assert inspector.pages(era, "--advertise-apps") == {**dict.fromkeys(TOOLS), **shown}


def test_mcpdo_approves_in_a_form_raises_a_cap_in_another_and_gets_the_result(tmp_path: Path, transport: str) -> None:
    with (
        run_model_server(keep_noting) as models,
        open_inspector(tmp_path, models, transport) as inspector,
        keep_connected(inspector, "ava"),
    ):
        asked = inspector.confirm(inspector.propose())
        assert asked[ASKED]["origin"] == "input-required"
        asked = inspector.accept(asked, "Ava wants to start")
        assert asked[ASKED]["origin"] == "task-input-required"
        result = inspector.accept(asked, "Raise the cost cap to $0.28?")
        [run] = result["structuredContent"]["runs"]
        assert run["state"] == "success" and run["untrusted_result"]["output"] == "the answer"
        [decided] = entries(inspector.root, "Answered")
        assert decided["content"]["channel"] == "elicitation"


def test_another_connection_of_mcpdo_cancels_a_task(tmp_path: Path, transport: str) -> None:
    gate = Gate(60)
    with (
        run_model_server([Say("x", gate=gate)]) as models,
        open_inspector(tmp_path, models, transport) as inspector,
        keep_connected(inspector, "ava", "other"),
        ThreadPoolExecutor() as threads,
    ):
        proposal = inspector.propose()
        run_id = proposal["subagent_id"]
        asked = inspector.confirm(proposal)
        waiting = threads.submit(inspector.accept, asked, "Ava wants to start")
        assert gate.arrived.wait(20)
        assert inspector.mcpdo("@other", "tasks/get", run_id)["task"]["status"] == "working"
        inspector.mcpdo("@other", "tasks/cancel", run_id)
        assert gate.client_left.wait(10), "the call of the model was given up"
        assert inspector.mcpdo("@other", "tasks/get", run_id)["task"]["status"] == "cancelled"
        assert "was cancelled" in str(waiting.exception(30))
