"""How hosts call: with progress tokens of every kind, tools listed late, one form read, any folder, two at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hosts.profiles import CLAUDE_CODE, CLAUDE_DESKTOP, CODEX, GEMINI, HOSTS, OPENCODE, Host, Profile, open_host
from support.model_server import Gate, Say, run_model_server
from support.stdio import assert_intact, make_root, model_env, read_log, until

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
BOTH_FORMS = pytest.mark.parametrize("profile", [CODEX, GEMINI], ids=["structured form alone", "text alone"])
BOTH_ERAS = pytest.mark.parametrize("profile", [CLAUDE_CODE, OPENCODE], ids=["stateless era", "handshake era"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "data")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "prices.md").write_text("Otter charges twelve cents.\n")
    return folder


async def start(host: Host, workspace: Path, task: str = "Prices") -> str:
    proposed = await host.call("spawn_subagent", role="researcher", task=task, workspace=str(workspace))
    pending_id, run, line = host.reads.proposal(proposed)
    await host.call("confirm_spawn", pending_ids=[pending_id], approving=[line])
    return run


async def ask_to_wait(host: Host, run: str, seconds: int, **meta: Any) -> int:
    arguments = {"subagent_id": run, "wait_seconds": seconds}
    call = {"name": "check_subagent", "arguments": arguments, **({"_meta": meta} if meta else {})}
    return await host.wire.ask("tools/call", call)


@BOTH_ERAS
async def test_a_wait_reports_progress_to_each_token_and_only_if_there_is_one(
    root: Path, workspace: Path, profile: Profile
) -> None:
    gate = Gate()
    with run_model_server([Say(calls=DONE.calls, gate=gate)]) as models:
        async with open_host(replace(profile, token=None), root, workspace, env=model_env(models.base_url)) as host:
            run = await start(host, workspace)
            await until(gate.arrived.is_set)
            tokens: list[int | str] = [0, 7, "seven", "7", 7]  # the last is one that is in use
            waits = [await ask_to_wait(host, run, 30, progressToken=token) for token in tokens]
            waits.append(await ask_to_wait(host, run, 30))  # and one that wants no news
            short = await ask_to_wait(host, run, 8)
            answer = (await host.wire.answer(short))["result"]
            assert host.reads.state(answer) != "success"
            told = [note["params"] for note in host.wire.notifications if note["method"] == "notifications/progress"]
            # News at once and 5 s later for each wait that has a token, under its own token and of its own type.
            assert sorted(repr(note["progressToken"]) for note in told) == sorted(map(repr, 2 * tokens))
            assert all(run in note["message"] for note in told)
            assert sorted(note["progress"] for note in told) == [1] * len(tokens) + [2] * len(tokens), (
                "whole, and growing"
            )
            gate.released.set()
            for wait in waits:
                assert host.reads.output((await host.wire.answer(wait))["result"]) == "twelve cents"
            again = await host.wire.answer(await ask_to_wait(host, run, 5, progressToken=7))  # used up, and used again
            assert host.reads.output(again["result"]) == "twelve cents"
            later = [note for note in host.wire.notifications if note["method"] == "notifications/progress"]
            assert len(later) == len(told)  # no news of a call that has been answered
            await host.leave()
    assert_intact(root)


@BOTH_ERAS
async def test_tools_can_be_called_before_they_are_listed(root: Path, workspace: Path, profile: Profile) -> None:
    with run_model_server([DONE]) as models:
        late = replace(profile, lists_first=False)
        async with open_host(late, root, workspace, env=model_env(models.base_url)) as host:
            run = await start(host, workspace)
            waited = await host.call("check_subagent", subagent_id=run, wait_seconds=20)
            assert host.reads.output(waited) == "twelve cents"
            before = await host.list_tools()
            assert len(before) == 6
            again = await host.call("check_subagent", subagent_id=run)
            assert host.reads.output(again) == "twelve cents"
            assert await host.list_tools() == before
            await host.leave()
    assert_intact(root)


@BOTH_FORMS
async def test_each_host_can_approve_two_subagents_as_one_plan_from_what_it_shows(
    root: Path, workspace: Path, profile: Profile
) -> None:
    with run_model_server(lambda _request: DONE) as models:
        async with open_host(profile, root, workspace, env=model_env(models.base_url)) as host:
            made = [
                host.reads.proposal(
                    await host.call("spawn_subagent", role="researcher", task=task, workspace=str(workspace))
                )
                for task in ("Prices", "Terms")
            ]
            ids = [one.pending_id for one in made]
            wrong = await host.call("confirm_spawn", pending_ids=ids, approving=[one.line for one in made])
            lines = host.reads.right_lines(wrong, len(ids) + 1)
            assert lines[:2] == [one.line for one in made]
            assert lines[2].startswith("2 subagents together, ")
            assert models.requests == []
            await host.call("confirm_spawn", pending_ids=ids, approving=lines)
            for one in made:
                ended = await host.call("check_subagent", subagent_id=one.run, wait_seconds=20)
                assert host.reads.output(ended) == "twelve cents"
            await host.leave()
    assert_intact(root)


@pytest.mark.parametrize("profile", HOSTS, ids=lambda profile: str(profile.name))
@pytest.mark.parametrize("folder", ["/", "home"])
async def test_a_host_outside_a_project_is_told_why_there_is_no_workspace(
    tmp_path: Path, root: Path, profile: Profile, folder: str
) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    from_there = replace(profile, from_root=folder == "/", token=None)
    async with open_host(from_there, root, home, env={"HOME": str(home)}) as host:
        proposed = await host.call("spawn_subagent", role="researcher", task="Read https://example.org/prices")
        assert host.reads.proposal(proposed)
        refused = await host.call("spawn_subagent", role="code_reviewer", task="Review it")
        assert "workspace" in (host.reads.failure(refused) or "")
        why = "/ is the whole file system" if folder == "/" else f"{home} is a home folder"
        for shown in (str(proposed["structuredContent"]["message"]), proposed["content"][0]["text"]):
            assert "it cannot read your files" in shown
            assert why in shown
        await host.leave()
    assert_intact(root)


async def test_another_host_approves_and_gets_the_result_after_the_first_was_killed(
    root: Path, workspace: Path
) -> None:
    gate, requests = Gate(), list[int]()

    def step(request: dict[str, Any]) -> Say:
        requests.append(len(request["messages"]))
        return Say("lost", gate=gate) if len(requests) == 1 else DONE

    with run_model_server(step) as models:
        env = model_env(models.base_url)
        async with (
            open_host(CODEX, root, workspace, env=env) as codex,
            open_host(OPENCODE, root, workspace, env=env) as opencode,
            open_host(CLAUDE_DESKTOP, root, workspace, env=env) as desktop,
        ):
            task = {"role": "researcher", "task": "Prices", "workspace": str(workspace)}
            pending_id, run, line = codex.reads.proposal(await codex.call("spawn_subagent", **task))
            listed = await opencode.call("check_subagent")
            assert pending_id in listed["content"][0]["text"]  # all that this host's model sees of it
            wrong = await opencode.call("confirm_spawn", pending_ids=[pending_id], approving=["yes"])
            assert opencode.reads.right_lines(wrong, 1) == [line]
            await opencode.call("confirm_spawn", pending_ids=[pending_id], approving=[line])
            await until(gate.arrived.is_set)
            await codex.leave()
            await opencode.leave()
            # Whichever of the two had claimed it, the third goes on with it.
            ended = await desktop.call("check_subagent", subagent_id=run, wait_seconds=20)
            assert desktop.reads.output(ended) == "twelve cents"
            await desktop.leave()
    assert len(requests) == 2  # the call in flight is made again, and no other
    assert len(read_log(root, "RunEnded", run=run)) == 1
    assert_intact(root)
