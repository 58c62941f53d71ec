"""`ava erase`: nothing of a run's words is left in any byte of the data root; what it was and what it cost is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

import anyio
import anyio.to_thread
import pytest
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
from support.model_server import Gate, Say, Step
from support.runtime import connect, hand_over, open_lab, text, wait_for
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_audit.events import TRANSCRIPT_TYPES, LogErased
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


async def test_works_without_a_server_and_says_when_already_erased(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    assert set(words_by_file(two.root)) == set(PLANTED)
    copy = two.root / "ava.schema-1.20261129T031000Z.db"
    copy.touch()
    first = await run_erase(two.root, two.run_id.removeprefix("S-").upper(), "--yes")
    assert f"{copy} is the log from before a migration" in first.stdout
    copy.unlink()
    again = await run_erase(two.root, two.run_id)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == f"Data root: {two.root}"
    assert "Erased for ever" in first.stderr and "Kept" in first.stderr and "Not reached" in first.stderr
    assert (again.returncode, "was already erased" in again.stderr) == (0, True)
    assert words_by_file(two.root) == {}
    await check_log(two.root)
    db = sqlite3.connect(two.root / "ava.db")
    facts = [
        LogErased.model_validate_json(row[0])
        for row in db.execute("SELECT content FROM events WHERE type = 'LogErased'")
    ]
    db.close()
    assert [(fact.run_id, fact.whole) for fact in facts] == [(two.run_id, True)]


@pytest.mark.slow
async def test_asks_for_confirmation_and_a_no_erases_nothing(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    root = two.root

    def on_screen(answer: str) -> int:
        with run_on_terminal(root, "erase", two.run_id) as screen:
            screen.until("for ever? [y/N]")
            screen.type(answer)
            return screen.ended()

    assert await anyio.to_thread.run_sync(on_screen, "\n") == 10
    piped = await run_erase(root, two.run_id)
    assert (piped.returncode, "--yes" in piped.stderr) == (2, True)
    assert set(words_by_file(root)) == set(PLANTED)
    assert await anyio.to_thread.run_sync(on_screen, "y\n") == 0
    assert words_by_file(root) == {}


async def test_refuses_a_running_run_and_erases_nothing(tmp_path: Path) -> None:
    gate = Gate()
    (tmp_path / "workspace").mkdir()
    async with open_lab(tmp_path, play_words(gate), check=False) as lab:
        waiting = await lab.propose(task=OTHERS[0])
        run_id = await lab.start(task=TASK)
        await wait_for(gate.arrived)
        entries = await lab.entries(run_id)
        for given in (run_id, waiting.pending_id):
            refused = await run_erase(lab.root, given, "--yes")
            assert (refused.returncode, "has not ended" in refused.stderr) == (2, True)
            assert "cancel" in refused.stderr
        assert await lab.entries(run_id) == entries
        gate.released.set()
        await lab.ended(run_id)
        await lab.call("cancel_subagent", pending_id=waiting.pending_id)
        assert (await run_erase(lab.root, waiting.pending_id, "--yes")).returncode == 0
    assert words_by_file(lab.root, OTHERS[:1]) == {}
    assert words_by_file(lab.root, [TASK]) != {}


async def test_reports_an_unknown_run_and_an_empty_data_root(tmp_path: Path) -> None:
    empty = await run_erase(tmp_path / "none", "S-aaaaaa", "--yes")
    assert (empty.returncode, "no subagent S-aaaaaa" in empty.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    assert (await run_erase(tmp_path, "nonsense", "--yes")).returncode == 2


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it is killed by a signal")
async def test_the_next_process_finishes_a_killed_erase(tmp_path: Path) -> None:
    async with open_two_runs(tmp_path) as two:
        pass
    killed = 0
    for tenths in range(4, 30):  # at another place each time, until one was not killed
        async with await anyio.open_process(
            [*COMMAND, "erase", two.run_id, "--yes"], env=environment(two.root), stdout=DEVNULL, stderr=DEVNULL
        ) as process:
            with anyio.move_on_after(tenths / 10):
                await process.wait()
                break
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended in this moment
                break
            killed += 1
    assert killed
    assert (await run_erase(two.root, two.run_id, "--yes")).returncode == 0
    assert words_by_file(two.root) == {}
    await check_log(two.root)


WORKSPACE_WORDS = ("numbatlantern", "quollharbour")


async def test_the_texts_of_files_are_erased_with_the_run_that_read_them_or_all_at_once(tmp_path: Path) -> None:
    def searches(path: str) -> list[Step]:
        return [Say("x", [("search_and_read", {"query": "timetable", "path": path})]), hand_over()]

    async with open_lab(tmp_path, [*searches("one"), *searches("two"), *searches("two")], check=False) as lab:
        for name, word in zip(("one", "two"), WORKSPACE_WORDS, strict=True):
            (lab.workspace / name).mkdir()
            (lab.workspace / name / "a.txt").write_text(f"The timetable of the {word}.")
        runs: list[str] = []
        for _ in range(3):  # one after the other: each has its own steps
            runs.append(await lab.start())
            await lab.ended(runs[-1])
        assert set(words_by_file(lab.root, WORKSPACE_WORDS)) == set(WORKSPACE_WORDS)
        for run_id in runs[:2]:
            assert (await run_erase(lab.root, run_id, "--yes")).returncode == 0
        left = words_by_file(lab.root, WORKSPACE_WORDS)
        assert set(left) == {WORKSPACE_WORDS[1]}, "the third run read it, too"
        assert any(name.startswith("texts.db") for name in left[WORKSPACE_WORDS[1]])
        done = await run_erase(lab.root, "--cache", "--yes")
        assert done.stdout.endswith("Erased: 1 text of files.\n"), done.stderr
        left = words_by_file(lab.root, WORKSPACE_WORDS)
        assert not any(name.startswith("texts.db") for names in left.values() for name in names)
        both = await run_erase(lab.root, runs[2], "--cache", "--yes")
        assert (both.returncode, "Give either a subagent" in both.stderr) == (2, True)


async def test_texts_that_another_machine_kept_are_erased_there_after_the_run(tmp_path: Path) -> None:
    script = [Say("x", [("search_and_read", {"query": "timetable"})]), hand_over()]
    async with open_lab(tmp_path, script, check=False) as lab:
        (lab.workspace / "a.txt").write_text(f"The timetable of the {WORKSPACE_WORDS[0]}.")
        run_id = await lab.start()
        await lab.ended(run_id)
    kept = shutil.copy(lab.root / "texts.db", tmp_path)
    assert (await run_erase(lab.root, run_id, "--yes")).returncode == 0
    shutil.copy(kept, lab.root / "texts.db")
    there = await run_erase(lab.root, run_id, "--yes")
    assert "already erased" in there.stderr and "nothing is left" not in there.stderr
    assert there.stdout.endswith("Erased: 1 text of files that only it read.\n")
    again = await run_erase(lab.root, run_id, "--yes")
    assert "nothing is left to erase" in again.stderr and "Erased" not in again.stdout
