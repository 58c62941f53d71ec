"""Each named host, played against the real server: its main job works, and its way of leaving costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.hosts.profiles import HOSTS, OTHERS_KEYS, Host, Profile, open_host
from support.model_server import Say, Step, run_model_server
from support.processes import children_of, environment_of, lives, processes_of_run
from support.stdio import assert_intact, make_root, model_env, read_log, state_of, until

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"), pytest.mark.slow]

TEXT = "Otter charges twelve cents a minute."
FOREVER = "(a+)+$"
ENDLESS, HARMLESS = "a" * 60 + "b\n", "nothing of the kind\n"
"""A line with which the expression takes hours, and one with which it takes no time."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "data")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "prices.md").write_text(f"{TEXT}\n")
    (folder / "lines.txt").write_text(ENDLESS)
    return folder


@pytest.fixture(params=HOSTS, ids=lambda profile: str(profile.name))
def profile(request: pytest.FixtureRequest) -> Profile:
    chosen: Profile = request.param
    return chosen


async def test_each_host_gets_its_result_and_the_run_it_leaves_behind_is_paid_once(
    root: Path, workspace: Path, profile: Profile
) -> None:
    asked: list[tuple[str, int]] = []
    with run_model_server(playing(asked)) as models:
        env = model_env(models.base_url)
        async with open_host(profile, root, workspace, env=env) as host:
            first = await start(host, "What are the prices?", workspace)
            assert await result_of(host, first) == "prices: twelve cents"
            told = await host.call("check_subagent", subagent_id="S-000000")
            assert "S-000000" in (host.reads.failure(told) or "")  # a failure is seen as one, whatever is shown

            second = await start(host, "An endless search", workspace)
            children = await until(lambda: set(processes_of_run(second)) & set(children_of(host.wire.pid)))
            assert [environment_of(child) for child in children] == [{"AVA_RUN_ID": second}]
            await host.leave()
            await until(lambda: not any(map(lives, children)))
        assert processes_of_run(second) == []
        assert state_of(root, second) == "running"
        assert asked == [("prices", 0), ("prices", 1), ("endless", 0)]

        (workspace / "lines.txt").write_text(HARMLESS)
        async with open_host(profile, root, workspace, env=env) as host:
            assert await result_of(host, second) == "endless: twelve cents"
            entries = await host.call("read_ava_logs", subagent_id=second)
            assert "search_codebase" in host.reads.entries(entries)
            assert len(await host.list_tools()) == 6
            await host.leave()
        assert asked == [("prices", 0), ("prices", 1), ("endless", 0), ("endless", 1)]
        sent = [[received.body, str(dict(received.headers)).encode()] for received in models.requests]
        assert secrets_in(chain.from_iterable(sent)) == []
    assert [entry.content["settlement"] for entry in read_log(root, "CostUpdate")] == ["billed"] * 4
    assert len(read_log(root, "RunEnded")) == 2
    starts = read_log(root, "SessionStart")
    assert {(start.content["client"], start.content["client_version"]) for start in starts} == {
        (profile.name, profile.version)
    }
    assert {start.content["protocol"] for start in starts} == {profile.protocol}
    assert {start.content["folder"] for start in starts} == {"/" if profile.from_root else str(workspace)}
    assert secrets_in(written_in(root)) == []
    assert processes_of_run(first) == processes_of_run(second) == []
    assert_intact(root)


def playing(asked: list[tuple[str, int]]) -> Callable[[dict[str, Any]], Step]:
    """A model that answers by task and turn, and notes what it was asked for and paid."""

    def step(request: dict[str, Any]) -> Step:
        words = str(request["messages"][1]["content"])
        task = "endless" if "endless" in words else "prices"
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        asked.append((task, turn))
        if turn:
            done = f"{task}: twelve cents"
            return Say(calls=[("submit_result", {"summary": f"{task} done", "output": done})])
        if task == "endless":
            return Say("I look.", [("search_codebase", {"query": FOREVER, "regex": True, "path": "lines.txt"})])
        tries = ("prices.md", "/proc/self/environ", "../../../../proc/self/environ")
        return Say("I look.", [("read_file", {"path": path}) for path in tries])

    return step


async def start(host: Host, task: str, workspace: Path) -> str:
    """Propose and approve a run with what this host's model can see; return its id."""
    proposed = await host.call("spawn_subagent", role="researcher", task=task, workspace=str(workspace))
    assert host.reads.failure(proposed) is None
    pending_id, run, line = host.reads.proposal(proposed)
    wrong = await host.call("confirm_spawn", pending_ids=[pending_id], approving=["yes"])
    assert host.reads.right_lines(wrong, 1) == [line]  # whoever lost the line finds it in the refusal
    confirmed = await host.call("confirm_spawn", pending_ids=[pending_id], approving=[line])
    assert host.reads.decision(confirmed, pending_id) in ("approved", "queued", "running")
    return run


async def result_of(host: Host, run: str) -> str:
    """Wait for a run's success, and return its output."""
    checked = await host.call("check_subagent", subagent_id=run, wait_seconds=30)
    assert host.reads.state(checked) == "success"
    return host.reads.output(checked)


def written_in(root: Path) -> Iterator[bytes]:
    """Everything that the server has written: log, mirror, scratch, whatever there is."""
    return (path.read_bytes() for path in root.rglob("*") if path.is_file())


def secrets_in(texts: Iterator[bytes]) -> list[str]:
    """The other programs' variables whose values stand in some text."""
    return [name for text in texts for name, value in OTHERS_KEYS.items() if value.encode() in text]
