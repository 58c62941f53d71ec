"""`ava erase`: nothing of a run's words is left in any byte of the data root; what it was and what it cost is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from mcp import Client
from support.logs.erasing import (
    ARTIFACT,
    OTHERS,
    PLANTED,
    TASK,
    check_log,
    open_two_runs,
    play_words,
    run_erase,
    words_by_file,
)
from support.model_server import Gate
from support.runtime import connect, open_lab, text
from support.terminal import ava

from ava_audit.events import TRANSCRIPT_TYPES
from ava_audit.search import LogQuery, search
from ava_audit.view import View
from ava_server.service.erase import quoting_entries


async def test_an_erase_leaves_no_byte_of_the_content_and_keeps_that_of_other_runs(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        lab, root = two.lab, two.root
        before = words_by_file(root)
        assert set(before) == set(PLANTED)
        assert "artifacts/" + two.run_id + "/prices.csv" in before[ARTIFACT]
        kept = await lab.entries(two.other)
        row = await lab.run(two.run_id)

        done = await run_erase(root, two.run_id, "--yes")

        assert done.returncode == 0, done.stderr
        assert words_by_file(root) == {}
        assert not (root / "artifacts" / two.run_id).exists()
        assert set(words_by_file(root, OTHERS)) == set(OTHERS)
        assert await lab.entries(two.other) == kept
        assert await lab.run(two.run_id) == row  # a projection reads nothing of what was erased
        assert lab.store.path.with_name("ava.db-wal").stat().st_size < 100_000
        await check_log(root)
        left = [entry for entry in await lab.entries(two.run_id) if entry.type in TRANSCRIPT_TYPES]
        assert left and all(entry.content is None for entry in left)
    assert words_by_file(root) == {}


async def test_an_erased_run_is_shown_as_erased_everywhere_without_errors(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        lab, root, run_id = two.lab, two.root, two.run_id
        assert (await run_erase(root, run_id, "--yes")).returncode == 0

        checked = await lab.call("check_subagent", subagent_id=run_id)
        assert checked.status == "success"
        assert "erased" in checked.runs[0].status_line and checked.runs[0].untrusted_result is None
        listed = await lab.call("check_subagent")
        assert run_id in {run.subagent_id for run in listed.runs}
        read = await lab.call("read_ava_logs", subagent_id=run_id)
        assert any("(erased)" in line for line in read.untrusted_entries)
        again = await lab.call("spawn_subagent", role="researcher", retry_of=run_id)
        assert again.status == "failed" and "was erased" in again.message
        answer = await lab.call("message_subagent", subagent_id=run_id, message="hello?")
        assert "has ended" in answer.message

        for word in PLANTED:
            page = await search(lab.store, LogQuery(search=word))
            assert page.entries == (), word
        shown = await anyio.to_thread.run_sync(lambda: ava(root, "show", run_id))
        assert shown.returncode == 0 and "(erased)" in shown.stdout
        entries = await anyio.to_thread.run_sync(lambda: ava(root, "show", run_id, "--log"))
        assert "(erased)" in entries.stdout and "LogErased" in entries.stdout
        as_json = await anyio.to_thread.run_sync(lambda: ava(root, "show", run_id, "--json"))
        assert json.loads(as_json.stdout)["run"]["status"] == "success"
        for command in (("logs", run_id), ("logs", "--json"), ("logs", "--search", TASK), ("status", "--json")):
            result = await anyio.to_thread.run_sync(partial(ava, root, *command))
            assert result.returncode == 0, (command, result.stderr)
            assert not any(word in result.stdout for word in PLANTED), command
        unfetched = await lab.store.read(lambda view: view.unfetched(lab.runtime.user))
        assert run_id not in {run.id for run in unfetched}


async def test_the_resources_of_an_erased_run_still_answer(tmp_path: Path) -> None:
    gate = Gate()
    gate.released.set()
    async with connect(tmp_path, play_words(gate)) as (client, _server):
        run_id = await _one_run(client, tmp_path)
        assert (await run_erase(tmp_path / "data", run_id, "--yes")).returncode == 0
        for part in ("", "/transcript"):
            answer = await client.read_resource(f"ava://runs/{run_id}{part}")
            [content] = answer.contents
            assert "erased" in str(getattr(content, "text", ""))
        check = await client.call_tool("check_subagent", {"subagent_id": run_id})
        assert not check.is_error and "erased" in text(check)


async def _one_run(client: Client, tmp: Path) -> str:
    given = {"role": "researcher", "task": OTHERS[0], "workspace": str(tmp / "workspace")}
    made = (await client.call_tool("spawn_subagent", given)).structured_content
    assert made is not None
    approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]], "wait_seconds": 30}
    await client.call_tool("confirm_spawn", approval)
    return str(made["subagent_id"])


async def test_erases_what_the_orchestrator_wrote_about_a_run_but_not_what_only_names_it(tmp_path: Path) -> None:
    gate = Gate()
    gate.released.set()
    async with open_lab(tmp_path, play_words(gate), check=False) as lab:
        failed = await lab.call("spawn_subagent", role="nobody", task=OTHERS[0])
        assert failed.status == "failed"
        first = await lab.propose(task=OTHERS[0])
        second = await lab.propose(task=OTHERS[1])
        await lab.approve(first)
        await lab.ended(first.subagent_id)
        await lab.approve(second)
        await lab.ended(second.subagent_id)
        noticed = await lab.call("read_ava_logs", last_n=1)
        assert any(first.subagent_id in notice for notice in noticed.notices)
        await lab.call("check_subagent", subagent_id=first.subagent_id)
        retried = await lab.propose(retry_of=first.subagent_id, task=OTHERS[2])

        def found(view: View, run_id: str) -> list[tuple[str, str]]:
            run = view.run(run_id)
            assert run is not None
            entries = [view.entry(seq) for seq in quoting_entries(view, run)]
            return [(entry.type, str(entry.fact.model_dump()["tool"])) for entry in entries if entry and entry.fact]

        assert await lab.store.read(partial(found, run_id=first.subagent_id)) == [
            ("ToolCall", "spawn_subagent"),
            ("ToolCall", "spawn_subagent"),
            ("ToolResult", "spawn_subagent"),
            ("ToolCall", "confirm_spawn"),
            ("ToolResult", "confirm_spawn"),
            ("ToolResult", "check_subagent"),
        ]
        assert await lab.store.read(partial(found, run_id=retried.subagent_id)) == [
            ("ToolCall", "spawn_subagent"),
            ("ToolResult", "spawn_subagent"),
        ]
