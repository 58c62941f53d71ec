"""What confines the programs of other MCP servers: named in the proposal, kept to by whoever runs it, never less."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.foreign.servers import stdio_server, write_role
from support.model_server import Say, run_model_server
from support.processes import processes_of_run
from support.runtime import hand_over, open_lab
from support.stdio import until

from ava_audit.events import RunStarted, ToolResult
from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.run_config.config import NO_COMMANDS, config_of

pytestmark = pytest.mark.slow

GOOD = stdio_server("good")
UNCONFINED = '[sandbox]\nmode = "none"\n'
ADDS = Say(calls=[("mcp__lab__add", {"a": 2, "b": 40})])


@pytest.fixture
def no_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap."""
    monkeypatch.setattr(selection, "_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(selection, "_sandboxes", {})


@pytest.fixture
def nothing_confines(no_bubblewrap: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap and without Landlock."""
    monkeypatch.setattr(linux, "landlock_abi", lambda: 0)


async def test_the_approval_and_the_log_name_the_sandbox_of_a_server(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    async with open_lab(tmp_path, [ADDS, hand_over()], config=GOOD) as lab:
        sandbox = lab.runtime.sandbox()
        assert not isinstance(sandbox, Unavailable)
        run_id = await lab.start(role="guest", workspace=None)
        row = await lab.ended(run_id)
        assert row.state == "success" and config_of(row.config).confinement == sandbox.kind
        (started,) = await lab.facts(run_id, RunStarted)
        assert started.confinement == sandbox.kind


async def test_a_run_with_only_remote_servers_needs_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_sandboxes", {})
    write_role(tmp_path / "data", "mcp__far__add, read_webpages")
    config = '[mcp_servers.far]\nurl = "http://127.0.0.1:9/mcp"\n'
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        answer = await lab.call("spawn_subagent", role="guest", task="x")
        assert config_of((await lab.run(answer.subagent_id)).config).confinement == NO_COMMANDS
        assert selection._sandboxes == {}, "nobody has tried one"


async def test_the_proposal_names_both_commands_and_mcp_servers(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "run_bash, mcp__lab__add")
    script = [Say(calls=[("run_bash", {"command": "echo is-run"})]), ADDS, hand_over()]
    async with open_lab(tmp_path, script, config=GOOD) as lab:
        answer = await lab.propose(role="guest")
        assert f"can read {lab.workspace}, run commands in a sandbox on a copy of it, use the MCP server lab" in (
            answer.approval_line
        )
        await lab.approve(answer)
        assert (await lab.ended(answer.subagent_id)).state == "success"
        ran, added, _submitted = await lab.facts(answer.subagent_id, ToolResult)
        assert "is-run" in ran.output and "42" in added.output


@pytest.mark.usefixtures("nothing_confines")
async def test_never_starts_a_server_without_a_sandbox_and_the_proposal_says_why(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    write_role(tmp_path / "data", "mcp__lab__add, read_webpages")
    write_role(tmp_path / "data", "mcp__lab__add", "needs: [mcp__lab__add]\n", name="needy")
    program = f'[mcp_servers.lab]\ncommand = "/usr/bin/touch"\nargs = ["{mark}"]\n'
    async with open_lab(tmp_path, config=program, runs=False) as lab:
        answer = await lab.call("spawn_subagent", role="guest", task="x")
        assert "mcp__lab__add" in answer.unavailable_tools and "mcp__lab__add" not in answer.tools
        (why,) = [line for line in answer.message.splitlines() if line.startswith("mcp__lab__add is not there: ")]
        assert "nothing can confine it here" in why and "install bubblewrap" in why
        refused = await lab.call("spawn_subagent", role="needy", task="x")
        assert refused.status == "failed" and "nothing can confine it here" in refused.message
    assert not mark.exists()


async def test_the_approval_line_says_when_there_is_no_sandbox(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    auto = 'approval = "auto"\nauto_approve_cents = 100\nauto_approve_daily_cents = 100\n'
    async with open_lab(tmp_path, [ADDS, hand_over()], config=auto + GOOD + UNCONFINED) as lab:
        answer = await lab.call("spawn_subagent", role="guest", task="x")
        assert answer.status == "awaiting_approval"
        assert "use the MCP server lab (WITHOUT A SANDBOX, with all your own permissions)" in answer.approval_line
        assert "Nothing confines what it runs here" in answer.message and "not confined at all" in answer.message
        assert "cannot read your files" not in answer.message and "without a network" not in answer.message
        await lab.approve(answer)
        assert (await lab.ended(answer.subagent_id)).state == "success"
        (started,) = await lab.facts(answer.subagent_id, RunStarted)
        assert started.confinement == "none" and processes_of_run(answer.subagent_id) == []


async def test_a_run_waits_if_the_sandbox_is_weaker_than_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_role(tmp_path / "data", "mcp__lab__add")
    with run_model_server([ADDS, hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=GOOD, runs=False, check=False) as lab:
            strong = lab.runtime.sandbox()
            if isinstance(strong, Unavailable) or strong.kind != "bubblewrap":
                pytest.skip("there is nothing weaker here")
            run_id = await lab.start(role="guest", workspace=None)
        for weaker in ("", UNCONFINED):
            with monkeypatch.context() as patch:
                patch.setattr(selection, "_PROGRAMS", str(tmp_path))
                patch.setattr(selection, "_sandboxes", {})
                async with open_lab(tmp_path, server=server, config=GOOD + weaker, check=False) as lab:
                    lab.runtime.manager.adopted.add(run_id)
                    lab.runtime.manager.wake()
                    waits_for = await until(partial(lab.runtime.manager.waiting_for.get, run_id))
                    assert "approved to run in bubblewrap" in waits_for
                    assert (await lab.run(run_id)).state == "queued" and processes_of_run(run_id) == []
        async with open_lab(tmp_path, server=server, config=GOOD) as lab:
            assert (await lab.ended(run_id)).state == "success"


@pytest.mark.usefixtures("no_bubblewrap")
async def test_landlock_restricts_a_server_to_its_configured_folders(tmp_path: Path) -> None:
    hidden, shown = tmp_path / "hidden", tmp_path / "shown"
    for folder in (hidden, shown):
        folder.mkdir()
        (folder / "note").write_text("READ")
    write_role(tmp_path / "data", "mcp__lab__look, mcp__lab__write", 'effects: {mcp__lab__write: "allow, any"}\n')
    calls = [Say(calls=[("mcp__lab__look", {"path": str(folder / "note")})]) for folder in (hidden, shown)] + [
        Say(calls=[("mcp__lab__write", {"path": str(folder / "new"), "text": "made"})]) for folder in (hidden, shown)
    ]
    config = stdio_server("good", more=f'read_write = ["{shown}"]')
    async with open_lab(tmp_path, [*calls, hand_over()], config=config) as lab:
        sandbox = lab.runtime.sandbox()
        if isinstance(sandbox, Unavailable):
            pytest.skip(sandbox.why)
        assert sandbox.kind == "landlock"
        run_id = await lab.start(role="guest", workspace=None)
        assert (await lab.ended(run_id)).state == "success" and processes_of_run(run_id) == []
        saw, sees, wrote, writes, _submitted = await lab.facts(run_id, ToolResult)
        assert not saw.success and "READ" not in saw.output and "READ" in sees.output
        assert not wrote.success and not (hidden / "new").exists()
        assert writes.success and (shown / "new").read_text() == "made"


async def test_no_server_can_access_the_data_root(tmp_path: Path) -> None:
    write_role(tmp_path / "data", "mcp__lab__add, read_webpages")
    config = stdio_server("good", more=f'read_write = ["{tmp_path}"]')
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        answer = await lab.call("spawn_subagent", role="guest", task="x")
        assert f"its folder {tmp_path} is, contains or lies in Ava's own folder" in answer.message
