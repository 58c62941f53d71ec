"""The main job as a host does it: the installed `ava serve` over stdio, the SDK's own client, both protocol eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import TextContent, TextResourceContents
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.stdio import MODERN, MODES, assert_intact, connect_stdio, model_env, read_answer, read_log, until

TEXT = "Otter charges twelve cents a minute for transcription."
USED = {"prompt_tokens": 5_000, "completion_tokens": 20, "total_tokens": 5_020}
FOUND: dict[str, Any] = {
    "summary": "Otter costs 12 cents a minute.",
    "output": "Otter: 12 cents a minute <b>of audio</b>.",
    "confidence": 0.9,
    "caveats": ["one source only"],
    "findings": [{"claim": "12 cents a minute", "source_name": "notes.md", "quote": TEXT}],
}
TOOLS = {
    "spawn_subagent",
    "confirm_spawn",
    "check_subagent",
    "message_subagent",
    "cancel_subagent",
    "read_ava_logs",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text(f"# Prices\n{TEXT}\nA line about cats.\n")
    return folder


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


async def test_propose_approve_run_check_and_read_the_log(tmp_path: Path, workspace: Path, mode: str) -> None:
    root, gate = tmp_path / "data", Gate()
    looks = [("read_file", {"path": "notes.md"}), ("search_codebase", {"query": "transcription"})]
    script = [
        Say("I look.", looks, usage=USED),
        Say(calls=[("scratchpad", {"note": "Otter: 12 cents"})], usage=USED),
        Say(calls=[("submit_result", FOUND)], gate=gate, usage=USED),
    ]
    lines: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message or "")
        gate.released.set()  # the wait has shown that it lives; now the model may answer

    with run_model_server(script) as models:
        async with connect_stdio(root, mode=mode, cwd=workspace, env=model_env(models.base_url)) as client:
            spawned = await _proposed(client, workspace)
            assert models.requests == []  # nothing runs before it is approved
            run = spawned["subagent_id"]
            await _approved_by_its_line_alone(client, spawned, models)
            await until(gate.arrived.is_set)
            await _shown_while_it_runs(client, run)
            given = {"subagent_id": run, "wait_seconds": 30}
            ended, text = read_answer(await client.call_tool("check_subagent", given, progress_callback=on_progress))
            assert lines and run in lines[0]
            _assert_complete(ended["runs"][0], text, run)
            _assert_sent([received.json for received in models.requests])
            await _shown_in_the_log(client, run)

    [start] = read_log(root, "SessionStart")
    assert (start.content["client"], start.content["client_version"]) == ("test-host", "1.0")
    assert start.content["protocol"] == ("2025-11-25" if mode == "legacy" else MODERN)
    assert [entry.session for entry in read_log(root, "SessionEnd")] == [start.session]
    assert_intact(root)


async def _proposed(client: Client, workspace: Path) -> dict[str, Any]:
    """Propose a run; both forms of the answer say all that a person needs."""
    given = {"role": "researcher", "task": "What does Otter cost?", "workspace": str(workspace)}
    answer = await client.call_tool("spawn_subagent", {**given, "task_id": "T-1", "max_cost_cents": 20})
    spawned, text = read_answer(answer)
    assert spawned["status"] == "awaiting_approval"
    for key in ("pending_id", "subagent_id", "approval_line", "message", "expires_at", "task_id"):
        assert spawned[key] in text
    assert spawned["model"] in text
    assert "read_file" in spawned["tools"]
    return spawned


async def _approved_by_its_line_alone(client: Client, spawned: dict[str, Any], models: ModelServer) -> None:
    given = {"pending_ids": [spawned["pending_id"]]}
    wrong = await client.call_tool("confirm_spawn", {**given, "approving": ["yes"]})
    assert read_answer(wrong)[0]["approval_lines"] == [spawned["approval_line"]]
    assert models.requests == []
    right = await client.call_tool("confirm_spawn", {**given, "approving": [spawned["approval_line"]]})
    confirmed, text = read_answer(right)
    assert confirmed["status"] == "approved"
    assert spawned["subagent_id"] in text


async def _shown_while_it_runs(client: Client, run: str) -> None:
    running, text = read_answer(await client.call_tool("check_subagent", {"subagent_id": run}))
    [now] = running["runs"]
    assert (now["state"], now["last_tool"]["name"]) == ("running", "scratchpad")
    head, figures = now["status_line"].split(": running · ")
    assert f"{head}: {now['untrusted_activity']} · {figures}" in text


def _assert_sent(asked: list[dict[str, Any]]) -> None:
    """What the model was sent: three streams, with the tools and with what they found."""
    assert len(asked) == 3
    assert all(request["stream"] for request in asked)
    assert any(TEXT in str(message["content"]) for message in asked[1]["messages"])
    assert {tool["function"]["name"] for tool in asked[0]["tools"]} >= {"read_file", "submit_result"}


async def _shown_in_the_log(client: Client, run: str) -> None:
    entries, text = read_answer(await client.call_tool("read_ava_logs", {"subagent_id": run, "last_n": 100}))
    assert any("read_file" in line for line in entries["untrusted_entries"])
    assert "What does Otter cost?" in text
    own, _ = read_answer(await client.call_tool("read_ava_logs", {}))
    assert any("confirm_spawn" in line for line in own["untrusted_entries"])


def _assert_complete(run: dict[str, Any], text: str, run_id: str) -> None:
    """Both forms say all of the result, and keep the subagent's words apart."""
    assert (run["state"], run["task_id"], run["confidence"]) == ("success", "T-1", 0.9)
    result = run["untrusted_result"]
    assert (result["summary"], result["output"], result["caveats"]) == (
        FOUND["summary"],
        FOUND["output"],
        FOUND["caveats"],
    )
    assert result["findings"][0]["quote"] == TEXT
    assert [quote["verdict"] for quote in run["quotes_checked"]] == ["found"]
    assert run["tool_receipts"]["read_file"]["ok"] == 1
    assert run["tokens"] == 3 * 5_020
    first, *_rest = text.splitlines()
    assert first == f"[{run_id} success]"
    inside = text[text.index(f'<subagent_result id="{run_id}" untrusted="true">') : text.index("</subagent_result>")]
    for words in ("Otter: 12 cents a minute", TEXT, "one source only", "12 cents a minute"):
        assert words in inside
    outside = {key: value for key, value in run.items() if key not in ("untrusted_result", "quotes_checked")}
    assert "12 cents" not in str(outside)


async def _started(client: Client, workspace: Path, **confirm: Any) -> tuple[str, dict[str, Any]]:
    """Propose a run and approve it; return its id, and what the approval was answered with."""
    task = {"role": "researcher", "task": "Compare the prices", "workspace": str(workspace)}
    spawned, _ = read_answer(await client.call_tool("spawn_subagent", task))
    assert spawned["status"] == "awaiting_approval", spawned
    lines = {"pending_ids": [spawned["pending_id"]], "approving": [spawned["approval_line"]]}
    confirmed, _ = read_answer(await client.call_tool("confirm_spawn", {**lines, **confirm}))
    assert confirmed["status"] == "approved", confirmed
    return spawned["subagent_id"], confirmed


@pytest.mark.slow
async def test_a_message_reaches_the_next_turn_and_a_cancellation_keeps_partial_results(
    tmp_path: Path, workspace: Path, mode: str
) -> None:
    root, first, second = tmp_path / "data", Gate(), Gate()
    script = [
        Say("A first thought.", [("read_file", {"path": "notes.md"})], gate=first),
        Say("never said", gate=second),
    ]
    with run_model_server(script) as models:
        async with connect_stdio(root, mode=mode, cwd=workspace, env=model_env(models.base_url)) as client:
            run, _ = await _started(client, workspace)
            await until(first.arrived.is_set)
            delivered, _ = read_answer(
                await client.call_tool("message_subagent", {"subagent_id": run, "message": "Only Otter, please."})
            )
            assert delivered["status"] == "delivered"
            first.released.set()
            await until(second.arrived.is_set)
            heard = models.requests[1].json["messages"]
            assert sum("Only Otter, please." in str(message["content"]) for message in heard) == 1

            with anyio.fail_after(20):
                cancelled, text = read_answer(
                    await client.call_tool("cancel_subagent", {"subagent_id": run, "reason": "no longer needed"})
                )
            assert cancelled["status"] == "cancelled"
            [ended] = cancelled["runs"]
            assert "A first thought." in str(ended["untrusted_result"])
            assert "A first thought." in text
            assert "no longer needed" in text
            await until(second.client_left.is_set)  # the model is not paid on
            again, _ = read_answer(await client.call_tool("cancel_subagent", {"subagent_id": run}))
            assert again["status"] == "cancelled"
            late = await client.call_tool("message_subagent", {"subagent_id": run, "message": "And?"})
            assert late.is_error
            assert "ask on with spawn_subagent" in read_answer(late)[1]
    assert len(read_log(root, "RunEnded", run=run)) == 1
    assert_intact(root)


@pytest.mark.slow
async def test_a_host_finds_tools_instructions_resources_and_prompts(
    tmp_path: Path, workspace: Path, mode: str
) -> None:
    root = tmp_path / "data"
    with run_model_server([Say(calls=[("submit_result", FOUND)])]) as models:
        async with connect_stdio(root, mode=mode, cwd=workspace, env=model_env(models.base_url)) as client:
            assert client.instructions is not None
            assert "untrusted_result" in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == TOOLS
            assert "web_crawler" in (tools["spawn_subagent"].description or "")
            assert all(tool.output_schema and tool.annotations for tool in tools.values())

            prompt = (await client.list_prompts()).prompts[0]
            said = await client.get_prompt(prompt.name, {"task": "Compare prices"})
            content = said.messages[0].content
            assert isinstance(content, TextContent)
            assert "Compare prices" in content.text

            run, done = await _started(client, workspace, wait_seconds=20)
            assert done["runs"][0]["state"] == "success"

            uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
            assert uris == {"ava://roles", f"ava://runs/{run}"}
            forms = {one.uri_template for one in (await client.list_resource_templates()).resource_templates}
            assert forms == {
                "ava://runs/{id}",
                "ava://runs/{id}/transcript",
                "ava://runs/{id}/artifacts/{name}",
            }
            assert "code_reviewer" in await _read(client, "ava://roles")
            assert FOUND["summary"] in await _read(client, f"ava://runs/{run}")
            assert "submit_result" in await _read(client, f"ava://runs/{run}/transcript")


async def _read(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


@pytest.mark.slow
async def test_cancelling_a_wait_does_not_end_the_run(tmp_path: Path, workspace: Path, mode: str) -> None:
    root, gate = tmp_path / "data", Gate()
    with run_model_server([Say(calls=[("submit_result", FOUND)], gate=gate)]) as models:
        async with connect_stdio(root, mode=mode, cwd=workspace, env=model_env(models.base_url)) as client:
            run, _ = await _started(client, workspace)
            await until(gate.arrived.is_set)
            with anyio.move_on_after(0.3) as wait:
                await client.call_tool("check_subagent", {"subagent_id": run, "wait_seconds": 45})
            assert wait.cancelled_caught
            now, _ = read_answer(await client.call_tool("check_subagent", {"subagent_id": run}))
            assert now["status"] == "running"
            gate.released.set()
            ended, _ = read_answer(await client.call_tool("check_subagent", {"subagent_id": run, "wait_seconds": 20}))
            assert ended["status"] == "success"
    assert read_log(root, "CancelRequested") == []
    assert_intact(root)
