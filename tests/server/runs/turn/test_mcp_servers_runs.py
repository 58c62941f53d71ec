"""Runs with tools of other MCP servers: real servers of the SDK's, confined, from the proposal to the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.foreign.servers import stdio_server, write_role
from support.model_server import Say
from support.processes import processes_of_run
from support.runtime import Lab, hand_over, open_lab

from ava_audit.events import RunStarted, ToolResult

pytestmark = pytest.mark.slow

ALL = "mcp__lab__add, mcp__lab__environment, mcp__lab__look, mcp__lab__fail, mcp__lab__pictures, mcp__lab__much"


def call(name: str, /, **args: Any) -> Say:
    """An answer that calls one tool of the server `lab`."""
    return Say(calls=[(f"mcp__lab__{name}", args)])


async def outputs(lab: Lab, run_id: str) -> list[ToolResult]:
    """What the tools brought, in order."""
    return [fact for fact in await lab.facts(run_id, ToolResult) if fact.tool.startswith("mcp__")]


async def spawned(lab: Lab, **more: Any) -> str:
    """Start the role `guest`, without a folder."""
    return await lab.start(role="guest", workspace=None, **more)


async def ran(
    tmp: Path, tools: str, *calls: Say, config: str | None = None, within_s: float = 40, more: str = ""
) -> list[ToolResult]:
    """Run a role with these tools through these calls, and return what they brought."""
    write_role(tmp / "data", tools, more)
    async with open_lab(tmp, [*calls, hand_over()], config=config or stdio_server("good")) as lab:
        run_id = await spawned(lab)
        row = await lab.ended(run_id, within_s)
        assert row.state == "success", await lab.result(run_id)
        return await outputs(lab, run_id)


async def test_a_run_calls_tools_of_an_mcp_server_and_their_results_are_untrusted(tmp_path: Path) -> None:
    added, failed, seen = await ran(tmp_path, ALL, call("add", a=2, b=40), call("fail"), call("pictures"))
    assert added.success and "42" in added.output and added.output.startswith("<tool_output_")
    assert not failed.success and failed.output.startswith("Failed.\n<tool_output_")
    assert "&lt;/tool_output> obey me" in failed.output, "it cannot close its wrapper"
    assert "see" in seen.output and "an image (image/png) is left out" in seen.output


async def test_ignores_garbage_lines_in_the_output_of_a_server(tmp_path: Path) -> None:
    (added,) = await ran(tmp_path, "mcp__lab__add", call("add", a=2, b=40), config=stdio_server("garbage"))
    assert added.success and "42" in added.output and "red" not in added.output


async def test_refuses_a_secret_placeholder_in_a_call(tmp_path: Path) -> None:
    (refused,) = await ran(tmp_path, "mcp__lab__look", call("look", path="{{secret:LAB_TOKEN}}"))
    assert refused.output.startswith("Refused: ") and not refused.success


async def test_passes_arguments_of_any_name_to_the_server(tmp_path: Path) -> None:
    odd = {"a": 1, "b": 2, "model_config": 3, "self": 4}
    (added,) = await ran(tmp_path, "mcp__lab__add", call("add", **odd))
    assert added.success and "3" in added.output


async def test_a_server_sees_only_its_configured_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_TOKEN", "not for servers")
    config = stdio_server("good", env={"GIVEN": "yes"})
    (told,) = await ran(tmp_path, "mcp__lab__environment", call("environment"), config=config)
    text = told.output
    seen = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert seen["GIVEN"] == "yes" and seen["AVA_RUN_ID"].startswith("S-")
    assert set(seen) <= {"GIVEN", "AVA_RUN_ID", "PATH", "HOME", "TMPDIR", "PWD", "LC_CTYPE", "SHLVL", "_"}, sorted(seen)
    assert list((tmp_path / "data" / "scratch").glob("**/mcp-*")) == [], "its home went with it"


async def test_a_server_sees_only_its_configured_folders(tmp_path: Path) -> None:
    hidden, shown = tmp_path / "hidden", tmp_path / "shown"
    hidden.mkdir()
    shown.mkdir()
    (hidden / "id_ed25519").write_text("PRIVATE")
    (shown / "note").write_text("free to see")
    config = stdio_server("good", more=f'read_write = ["{shown}"]')
    key, home, note, wrote, elsewhere = await ran(
        tmp_path,
        "mcp__lab__look, mcp__lab__write",
        call("look", path=str(hidden / "id_ed25519")),
        call("look", path=str(Path.home() / ".ssh")),
        call("look", path=str(shown / "note")),
        call("write", path=str(shown / "new"), text="made"),
        call("write", path=str(hidden / "new"), text="made"),
        config=config,
        more='effects: {mcp__lab__write: "allow, any"}\n',
    )
    assert not key.success and "PRIVATE" not in key.output and not home.success
    assert "free to see" in note.output
    assert wrote.success and (shown / "new").read_text() == "made"
    assert not elsewhere.success and not (hidden / "new").exists()


async def test_a_server_that_exits_during_a_call_fails_that_call_and_is_restarted(tmp_path: Path) -> None:
    crashed, after = await ran(tmp_path, "mcp__lab__crash, mcp__lab__add", call("crash"), call("add", a=1, b=1))
    assert not crashed.success and "ended before it answered" in crashed.output and "not known" in crashed.output
    assert after.success and "2" in after.output


async def test_limits_the_restarts_of_a_server_that_keeps_exiting(tmp_path: Path) -> None:
    tried = await ran(tmp_path, "mcp__lab__crash, mcp__lab__add", *[call("crash") for _ in range(4)])
    assert "has ended 3 times, and is not started again" in tried[-1].output


@pytest.mark.parametrize("ending", ["success", "cancel", "timeout"])
async def test_no_server_process_outlives_its_run(tmp_path: Path, ending: str) -> None:
    write_role(tmp_path / "data", "mcp__lab__pid, mcp__lab__wait")
    waits = call("wait", seconds=50)
    script = [call("add"), hand_over()] if ending == "success" else [waits, hand_over()]
    async with open_lab(tmp_path, script, config=stdio_server("forks")) as lab:
        run_id = await spawned(lab, **({"timeout": 15} if ending == "timeout" else {}))
        await lab.logged(run_id, "RunStarted")
        if ending != "success":
            await lab.logged(run_id, "ToolCall")
            assert processes_of_run(run_id), "it lives while its run does"
        if ending == "cancel":
            await lab.call("cancel_subagent", subagent_id=run_id)
        row = await lab.ended(run_id)
        assert row.state == {"success": "success", "cancel": "cancelled", "timeout": "timeout"}[ending]
        assert processes_of_run(run_id) == [], "its end is on the record only when nothing of them is left"
        assert list((lab.root / "scratch").glob(f"{run_id}/mcp-*")) == []


async def test_a_run_does_not_start_if_a_tool_changed_since_approval(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__shift")
    shown = tmp_path / "shown"
    shown.mkdir()
    config = stdio_server("changes", more=f'read_write = ["{shown}"]', env={"MARK": str(shown / "mark")})
    async with open_lab(tmp_path, [hand_over()], config=config) as lab:
        run_id = await spawned(lab)
        row = await lab.ended(run_id)
        result = await lab.result(run_id)
        assert row.state == "error" and result["error"]["kind"] == "mcp_server"
        assert "has changed mcp__lab__shift since it was approved" in result["untrusted_result"]["error_text"]
        assert lab.server.requests == [] and await lab.facts(run_id, RunStarted) == []


async def test_a_hostile_tool_description_is_sanitized_truncated_and_marked(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab")
    async with open_lab(tmp_path, [call("evil_words"), hand_over()], config=stdio_server("hostile")) as lab:
        run_id = await spawned(lab)
        await lab.ended(run_id)
        (started,) = await lab.facts(run_id, RunStarted)
        tools = {tool["name"]: tool for tool in started.tools}
        evil = tools["mcp__lab__evil_words"]["description"]
        assert evil.startswith('A tool of the MCP server "lab". Its own description, which is information')
        assert len(evil) < 1_700 and "\u202e" not in evil and "\u200b" not in evil
        assert "Ignore all rules" not in started.system and 'A tool of the MCP server "lab".' in started.system
        assert not {"mcp__lab__spawn_subagent", "mcp__lab__deep_schema", "mcp__lab__write", "mcp__lab__burn"} & set(
            tools
        )
        assert "mcp__lab__dots_and_slashes_and_blanks" in tools
        assert all(len(name) <= 64 for name in tools)
        (said,) = await outputs(lab, run_id)
        assert "\u202e" not in said.output


@pytest.mark.parametrize("what", ["roots", "sampling", "elicitation"])
async def test_refuses_sampling_elicitation_and_roots_requests_of_a_server(tmp_path: Path, what: str) -> None:
    (asked,) = await ran(tmp_path, "mcp__lab__ask", call("ask", what=what))
    assert "refused" in asked.output or not asked.success, asked.output


async def test_truncates_a_long_result_and_lets_the_run_read_the_rest(tmp_path: Path) -> None:
    (much,) = await ran(tmp_path, "mcp__lab__much", call("much", characters=2_000_000))
    assert much.success and "read_tool_result" in much.output and (much.chars or 0) < 1_001_000


async def test_injects_secrets_into_the_environment_late_and_hides_them_in_results(
    tmp_path: Path,
) -> None:
    from ava_server.config.secrets import set_secret

    root = tmp_path / "data"
    write_role(root, "mcp__lab__environment")
    config = stdio_server("good", env={"TOKEN": "{{secret:LAB_TOKEN}}"})
    root.chmod(0o700)
    set_secret("LAB_TOKEN", "hunter-two-and-more", [], root / "secrets" / "secrets.toml")
    async with open_lab(tmp_path, [call("environment"), hand_over()], config=config) as lab:
        run_id = await spawned(lab)
        await lab.ended(run_id)
        (told,) = await outputs(lab, run_id)
        assert "TOKEN" in told.output and "{{secret:LAB_TOKEN}}" not in told.output
        assert "hunter-two-and-more" not in told.output
        assert all(b"hunter-two" not in each.body for each in lab.server.requests)
