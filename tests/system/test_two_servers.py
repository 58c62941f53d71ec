"""Two hosts on one data root, and roots that are no good: nothing is lost, and each call says what is wrong."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Gate, Raw, Say, Step, events, run_model_server
from support.stdio import assert_intact, make_root, model_env, read_log, serve_stdio, until

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
READ = Say("I look.", [("read_file", {"path": "notes.md"})])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text("Otter charges twelve cents.\n")
    return folder


def scripted(answers: list[Step], served: list[int]) -> Callable[[dict[str, Any]], Step]:
    """A model that answers by the turn that a request stands at, and counts how often each turn was asked for."""

    def step(request: dict[str, Any]) -> Step:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        served.append(turn)
        return answers[turn] if served.count(turn) == 1 else DONE

    return step


@pytest.mark.requirement("S1-03")
async def test_both_servers_show_the_progress_of_a_model_within_a_second(root: Path, workspace: Path) -> None:
    stall = Gate()
    begun = events(Say("w" * 640, reasoning="t" * 720, fragment=40))[:-3]
    with run_model_server([Raw(begun, chunked=True, cut=True, stall=stall)]) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as one, serve_stdio(root, env=env) as other:
            proposed = await one.tool("spawn_subagent", role="researcher", task="Prices", workspace=str(workspace))
            run = proposed["subagent_id"]
            await one.tool("confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]])
            assert await anyio.to_thread.run_sync(stall.arrived.wait, 10)
            asked_until = anyio.current_time() + 1
            seen: dict[str, str] = {}
            while set(seen.values()) != {"Thinking (340 tokens)"}:
                last = anyio.current_time() >= asked_until
                for name, host in (("one", one), ("other", other)):
                    [now] = (await host.tool("check_subagent", subagent_id=run))["runs"]
                    seen[name] = now.get("untrusted_activity", "")
                if last:
                    break
                await anyio.sleep(0.05)
            assert seen == dict.fromkeys(("one", "other"), "Thinking (340 tokens)")
            await other.tool("cancel_subagent", subagent_id=run)
            assert await anyio.to_thread.run_sync(stall.client_left.wait, 5)
    assert_intact(root)


async def test_one_host_can_approve_steer_await_and_cancel_what_another_proposed(root: Path, workspace: Path) -> None:
    first, second = Gate(), Gate()
    script: list[Step] = [Say("I look.", [("read_file", {"path": "notes.md"})], gate=first), Say("x", gate=second)]
    with run_model_server(script) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as one, serve_stdio(root, env=env) as other:
            proposed = await one.tool("spawn_subagent", role="researcher", task="Prices", workspace=str(workspace))
            run = proposed["subagent_id"]
            [seen] = (await other.tool("check_subagent"))["runs"]
            assert (seen["subagent_id"], seen["state"]) == (run, "awaiting_approval")
            confirmed = await other.tool(
                "confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]]
            )
            assert confirmed["status"] == "approved"
            again = await one.tool(
                "confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]]
            )
            assert again["status"] == "refused"  # an approval is used once, wherever it was given
            await until(first.arrived.is_set)
            for host in (one, other):
                await host.tool("message_subagent", subagent_id=run, message=f"From {host.pid}.")
            wait = {"subagent_id": run, "wait_seconds": 30}
            waiting = await one.ask("tools/call", {"name": "check_subagent", "arguments": wait})
            first.released.set()
            await until(second.arrived.is_set)
            heard = str(models.requests[1].json["messages"])
            assert f"From {one.pid}." in heard
            assert f"From {other.pid}." in heard
            owner = read_log(root, "RunClaimed", run=run)[0].content["instance"]
            assert owner
            for host in (one, other):  # one of them does not own it, whichever it is
                with anyio.fail_after(20):
                    ended = await host.tool("cancel_subagent", subagent_id=run)
                assert ended["status"] == "cancelled"
            waited = await one.answer(waiting)
            assert waited["result"]["structuredContent"]["status"] == "cancelled"
            assert len(models.requests) == 2
    assert len(read_log(root, "RunEnded", run=run)) == 1
    assert len({entry.session for entry in read_log(root, "SessionStart")}) == 2
    assert_intact(root)


async def test_a_run_of_a_killed_server_continues_in_the_other_without_repeated_calls(
    root: Path, workspace: Path
) -> None:
    gate, served = Gate(), list[int]()
    answers: list[Step] = [READ, Say(calls=[("scratchpad", {"note": "12"})]), Say("lost", gate=gate)]
    with run_model_server(scripted(answers, served)) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as one, serve_stdio(root, env=env) as other:
            run = await one.start_run(workspace=str(workspace))
            await until(gate.arrived.is_set)
            one.signal(signal.SIGKILL)
            await one.exited()
            with anyio.fail_after(20):
                await until(lambda: len(read_log(root, "RunClaimed", run=run)) == 2)
            ended = await other.tool("check_subagent", subagent_id=run, wait_seconds=20)
            assert ended["status"] == "success"
            [shown] = ended["runs"]
            assert shown["untrusted_result"]["output"] == "twelve cents"
            assert shown["tool_receipts"]["read_file"]["ok"] == 1
        # The answers that the log has are not asked for again; the one in flight is.
        assert served == [0, 1, 2, 2]
        before, after = models.requests[2].body, models.requests[3].body
        assert after == before
    generations = [entry.content["generation"] for entry in read_log(root, "RunClaimed", run=run)]
    assert generations == [1, 2]
    assert_intact(root)


async def test_two_concurrent_hosts_lose_nothing(root: Path, workspace: Path) -> None:
    with run_model_server(lambda _request: DONE) as models:
        env = model_env(models.base_url)
        async with serve_stdio(root, env=env) as one, serve_stdio(root, env=env) as other:
            asked = {"role": "researcher", "task": "Prices", "workspace": str(workspace)}
            requests = [
                (host, await host.ask("tools/call", {"name": "spawn_subagent", "arguments": asked}))
                for _ in range(10)
                for host in (one, other)
            ]
            answers = [await host.answer(request) for host, request in requests]
            proposed = [answer["result"]["structuredContent"]["subagent_id"] for answer in answers]
            assert len(set(proposed)) == 20
            listed = (await one.tool("check_subagent"))["runs"]
            assert {run["subagent_id"] for run in listed} == set(proposed)
            runs = [await host.start_run(workspace=str(workspace)) for _ in range(2) for host in (one, other)]
            for run in runs:
                for host in (one, other):
                    ended = await host.tool("check_subagent", subagent_id=run, wait_seconds=20)
                    assert ended["status"] == "success"
            assert len(models.requests) == 4
            for host in (one, other):
                await host.close_stdin()
                assert await host.exited() == 0
    assert len(read_log(root, "SpawnProposed")) == 24
    assert len(read_log(root, "SessionEnd")) == 2
    assert_intact(root)


@pytest.mark.parametrize("folder", ["/", "home"])
async def test_a_root_or_home_working_folder_gives_no_workspace(tmp_path: Path, root: Path, folder: str) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    (home / "diary.md").write_text("dear diary")
    with run_model_server([DONE]) as models:
        env = {**model_env(models.base_url), "HOME": str(home)}
        cwd = Path("/") if folder == "/" else home
        async with serve_stdio(root, cwd=cwd, env=env) as wire:
            proposed = await wire.tool("spawn_subagent", role="researcher", task="Read https://example.org/prices")
            assert "it cannot read your files" in proposed["message"]
            assert "read_file" in proposed["unavailable_tools"]
            asked = await wire.tool_result("spawn_subagent", role="code_reviewer", task="x", workspace=str(cwd))
            assert asked["isError"] is True
            assert "workspace: " in asked["content"][0]["text"]
    assert_intact(root)


# -- roots that are no good -------------------------------------------------------------------------------------------


async def _says_at_each_call(root: Path, words: str, **process: Any) -> None:
    """The server starts, lists its tools, and each call says what is wrong in one sentence."""
    async with serve_stdio(root, **process) as wire:
        assert len((await wire.request("tools/list"))["result"]["tools"]) == 6
        for tool, arguments in (
            ("check_subagent", {}),
            ("spawn_subagent", {"role": "researcher", "task": "x"}),
            ("read_ava_logs", {}),
        ):
            result = await wire.tool_result(tool, **arguments)
            assert result["isError"] is True
            text = result["content"][0]["text"]
            assert words in text
            assert text.startswith("Failed: ")
            assert "\n" not in text
            assert result["structuredContent"]["status"] == "failed"
        listed = await wire.request("resources/list")
        assert words in listed["error"]["message"]
        read = await wire.request("resources/read", {"uri": "ava://roles"})
        assert words in read["error"]["message"]
        assert (await wire.request("ping"))["result"] == {}
        await wire.close_stdin()
        assert await wire.exited() == 0


async def test_reports_a_data_root_that_is_a_file(root: Path) -> None:
    await _says_at_each_call(make_root(root, file="x") / "file", "is not a folder")


async def test_reports_a_data_root_beneath_a_file(tmp_path: Path) -> None:
    await _says_at_each_call(make_root(tmp_path / "x", file="x") / "file" / "data", "cannot be made", cwd=tmp_path)


async def test_reports_a_log_that_is_not_a_database(root: Path) -> None:
    await _says_at_each_call(make_root(root, ava_db="no database, whatever its name says " * 100), str(root))


async def test_reports_a_log_of_a_newer_version(root: Path) -> None:
    async with serve_stdio(root) as wire:
        await wire.tool("check_subagent")
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute("PRAGMA user_version = 999")
    await _says_at_each_call(root, "newer")


async def test_reports_invalid_settings(root: Path) -> None:
    await _says_at_each_call(make_root(root, config_toml="[limits]\nrunning = 'many'\n"), "limits.running")


async def test_corrected_settings_apply_without_a_restart(root: Path) -> None:
    config = make_root(root, config_toml="[limits]\nrunning = 'many'\n") / "config.toml"
    async with serve_stdio(root) as wire:
        assert "limits.running" in (await wire.tool_result("check_subagent"))["content"][0]["text"]
        config.write_text("[limits]\nrunning = 2\n", "utf-8")
        assert (await wire.tool_result("check_subagent"))["structuredContent"]["status"] == "list"
        await wire.close_stdin()
        assert await wire.exited() == 0
    assert_intact(root)


async def test_rejects_a_relative_data_root(tmp_path: Path) -> None:
    await _says_at_each_call(Path("relative/data"), "AVA_DATA_ROOT", cwd=tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="modes of folders as POSIX has them")
async def test_reports_a_read_only_data_root(root: Path) -> None:
    make_root(root, 0o555)
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root writes everywhere, unless it gives that right away
        before = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")
        if shutil.which("setpriv") is None:
            pytest.skip("as root this needs setpriv")
    await _says_at_each_call(root, "not writable", before=before)


@pytest.mark.skipif(os.name != "posix", reason="limits as POSIX has them")
async def test_reports_a_full_disk_until_there_is_space_again(root: Path, workspace: Path) -> None:
    import resource

    with run_model_server([DONE]) as models:
        async with serve_stdio(root, env=model_env(models.base_url)) as wire:
            await wire.tool("check_subagent")
            size = (root / "ava.db").stat().st_size
            free = resource.prlimit(wire.pid, resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))
            refused = await wire.tool_result(
                "spawn_subagent", role="researcher", task="x " * 50_000, workspace=str(workspace)
            )
            assert refused["isError"] is True
            text = refused["content"][0]["text"]
            assert "nothing was" in text, text
            assert "\n" not in text
            resource.prlimit(wire.pid, resource.RLIMIT_FSIZE, free)
            run = await wire.start_run(workspace=str(workspace))
            ended = await wire.tool("check_subagent", subagent_id=run, wait_seconds=20)
            assert ended["status"] == "success"
    assert len(read_log(root, "SpawnProposed")) == 1
    assert_intact(root)
