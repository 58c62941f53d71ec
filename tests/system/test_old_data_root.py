"""A data root written by 0.1.0 still reads, verifies and resumes: ended runs, and four that a killed server left.

tests/data/make_old_data_root.py made it. The tests name a run by the first word of its task.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.logs.old_root import OldRoot, reached, same_places, unpacked
from support.model_server import Fail, ModelServer, Say, Step, running_model_server
from support.runtime import sent_requests
from support.stdio import Wire, assert_intact, serving
from support.terminal import on_terminal

HOUR_S = 3600.0
RENDERED = {"status_line", "waits_for", "warning", "message"}
"""Fields worded at reading time. All other fields come from the log, and must not change."""
RESULT = Say(calls=[("submit_result", {"summary": "found", "output": "seven cents", "confidence": 0.5})])


@pytest.fixture(params=["0.1.0"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldRoot:
    return unpacked(request.param, tmp_path)


@pytest.fixture
def places() -> Generator[None]:
    with same_places():
        yield


def name_of(request: Mapping[str, Any]) -> str:
    """The first word of the task that a request is about."""
    task = str(request["messages"][1]["content"])
    return next(name for name in ("Weasel", "Shrew", "Crane", "Ibis") if f"{name}: what does it cost?" in task)


def script(request: dict[str, Any]) -> Step:
    """Hand over a result at once. The interrupted run must send its logged answer and tool results with the request."""
    if name_of(request) == "Weasel":
        said = [message for message in request["messages"] if message["role"] == "assistant"]
        tools = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        if [message["content"] for message in said] != ["I look at the weasel."] or "Otter charges" not in str(tools):
            return Fail(400)
    return RESULT


def asked(model: ModelServer) -> dict[str, int]:
    """How many requests came for each run."""
    names = [name_of(request.json) for request in model.requests]
    return {name: names.count(name) for name in names}


def written(value: Any) -> Any:
    """Drop the fields that are worded at reading time."""
    if isinstance(value, dict):
        return {name: written(each) for name, each in value.items() if name not in RENDERED}
    return [written(each) for each in value] if isinstance(value, list) else value


def known(now: Any, then: Any) -> Any:
    """Drop the fields that a newer version added to a report."""
    if isinstance(now, dict):
        return {name: known(each, then[name]) for name, each in now.items() if name in then}
    if isinstance(now, list) and len(now) == len(then):
        return [known(one, other) for one, other in zip(now, then, strict=True)]
    return now


def lines_below(root: Path) -> list[dict[str, Any]]:
    """Every line of the files below logs/, in the order of the log."""
    lines = [json.loads(line) for path in root.glob("logs/*/*.jsonl") for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line["seq"]))


def settlements(old: OldRoot, run_id: str) -> list[str]:
    """How each call of a run was settled."""
    done = old.ava("logs", run_id, "--type", "CostUpdate", "--json", "--last", "100")
    return [json.loads(line)["content"]["settlement"] for line in done.stdout.splitlines()]


async def ended(host: Wire, run_id: str) -> dict[str, Any]:
    """Wait for the end of a run, and return it."""
    with anyio.fail_after(20):
        while True:
            answer = await host.tool("check_subagent", subagent_id=run_id, wait_seconds=5)
            [run] = answer["runs"]
            if "status" in run:
                found: dict[str, Any] = run
                return found


@pytest.mark.slow
def test_log_verifies_and_runs_and_money_are_unchanged(old: OldRoot) -> None:
    lines = old.ava("logs", "--json", "--last", "1000000").stdout.splitlines()  # migrates it, which the others do not
    assert [json.loads(line) for line in lines] == lines_below(old.path), "an entry reads as it did"
    verified = old.json("verify", "--head", old.facts["verified"]["head"], "--json")
    assert verified["ok"] and verified["projections"] and verified["faults"] == []
    assert verified["entries"] == old.facts["verified"]["entries"] > 400
    status = old.json("status", "--all", "--json")
    states = {run["subagent_id"]: (run["state"], run["cost_cents"]) for run in status["runs"]}
    told = {name: old.facts["shown"][name]["run"] for name in old.facts["runs"]}
    assert states == {run["subagent_id"]: (run["state"], run["cost_cents"]) for run in told.values()}
    assert status["today"] == old.facts["today"]
    report = old.json("report", "--all", "--json")
    for name, then in old.facts["report"].items():
        assert known(report[name], then) == then, name
    for name in ("Badger", "Newt", "Ermine", "Adder", "Weasel", "Crane"):
        shown = old.json("show", old.facts["runs"][name], "--json")
        for part, then in old.facts["shown"][name].items():
            now = written(shown[part])
            assert (then is None and now is None) or now | written(then) == now, name


@pytest.mark.slow
async def test_host_reads_every_run_and_finds_words(old: OldRoot) -> None:
    """Without a model and the folder, the server cannot continue the unfinished runs."""
    runs = old.facts["runs"]
    async with serving(old.path, cwd=old.home, env=old.env()) as host:
        for name, run_id in runs.items():
            if name == "Ermine":
                other = await host.tool_result("check_subagent", subagent_id=run_id)
                assert other.get("isError"), "it is another user's"
                continue
            [run] = (await host.tool("check_subagent", subagent_id=run_id))["runs"]
            (run.get("changes") or {}).pop("to_see", None)  # 0.1.0 did not name the command
            assert written(run) | written(old.facts["shown"][name]["run"]) == written(run), name
        [found] = (await host.tool("read_ava_logs", search="weasel look"))["untrusted_entries"]
        assert f"{runs['Weasel']} AssistantMessage I look at the weasel." in found
    assert_intact(old.path)
    await sent_requests(old.path)


@pytest.mark.slow
def test_search_export_and_show_work(old: OldRoot, tmp_path: Path) -> None:
    runs = old.facts["runs"]

    def found(*words: str) -> set[str]:
        lines = old.ava("logs", "--json", "--search", *words).stdout.splitlines()
        return {json.loads(line).get("runId") for line in lines}

    assert runs["Badger"] in found("thirty cents")
    assert runs["Mole"] in found("in euros, please")
    assert runs["Newt"] not in found("secret newt"), "it was erased"
    for words in (
        ("export", "-o", str(tmp_path / "all.jsonl")),
        ("export", "--run", runs["Adder"], "-o", str(tmp_path / "adder.jsonl")),
    ):
        done = old.ava("logs", *words)
        assert done.returncode == 0, done.stderr
        checked = old.json("verify", "--jsonl", words[-1], "--json")
        assert checked["ok"], checked
    exported = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["hash"] for line in exported if "hash" in line] == [line["hash"] for line in lines_below(old.path)]
    for name, says in (("Adder", "Adding adds."), ("Heron", "Heron is free."), ("Marten", "the marten is not wanted")):
        story = old.ava("show", runs[name])
        assert story.returncode == 0 and says in story.stdout, story.stdout + story.stderr
    costs = old.json("show", runs["Heron"], "--cost", "--json")
    assert costs["cost_cents"] == old.facts["shown"]["Heron"]["run"]["cost_cents"]


def money(old: OldRoot, after_s: float = 60.0) -> tuple[float, float]:
    """What the user has spent on this day and what is held, in cents."""
    [mine, _everybody] = old.json("status", "--json", after_s=after_s)["today"]
    return mine["spent_cents"], mine["held_cents"]


async def check(old: OldRoot, model: ModelServer) -> None:
    """Verify the log, and find every received request in it."""
    assert_intact(old.path)
    sent, _erased = await sent_requests(old.path)
    assert not Counter(item.body for item in model.requests) - sent


@pytest.mark.usefixtures("places")
@pytest.mark.slow
async def test_terminal_resumes_the_interrupted_run_and_approves_the_proposal(old: OldRoot) -> None:
    runs, waits = old.facts["runs"], old.facts["waits"]
    assert settlements(old, runs["Weasel"]), "and `ava logs` migrates the log, which `ava status` asks for"
    spent, _held = money(old)
    with running_model_server(script) as model, reached(model) as way:
        answer = old.json("resume", runs["Weasel"], "--json", env=way)
        assert answer["state"] == "success" and answer["untrusted_result"]["output"] == "seven cents"
        assert asked(model) == {"Weasel": 1}, "what was answered is not asked and paid for again"
        assert settlements(old, runs["Weasel"]) == ["billed", "unknown", "billed"]
        with on_terminal(old.path, "approve", waits["pending_id"], cwd=old.home, env={**old.env(), **way}) as screen:
            assert "at most $0.50" in screen.until("[y/N]")
            screen.type("y\n")
            assert screen.ended() == 0, screen.text
        async with serving(old.path, cwd=old.home, env={**old.env(), **way}) as host:
            results = {name: await ended(host, runs[name]) for name in ("Crane", "Shrew")}
        assert {run["untrusted_result"]["output"] for run in results.values()} == {"seven cents"}
        assert asked(model) == {"Weasel": 1, "Crane": 1, "Shrew": 1}
        new = [answer["cost_cents"] - old.facts["shown"]["Weasel"]["run"]["cost_cents"]]
        new += [run["cost_cents"] for run in results.values()]
        assert money(old)[0] == pytest.approx(spent + sum(new)), "what is spent is what the runs have cost"
        await check(old, model)


@pytest.mark.slow
@pytest.mark.usefixtures("places")
async def test_server_continues_all_unfinished_runs(
    old: OldRoot,
) -> None:
    runs, waits = old.facts["runs"], old.facts["waits"]
    settings = old.path / "config.toml"
    settings.write_text(f'approval = "ask"\n{settings.read_text()}')
    with running_model_server(script) as model, reached(model) as way:
        async with serving(old.path, cwd=old.home, env={**old.env(), **way}) as host:
            pending = {"pending_ids": [waits["pending_id"]]}
            refused = await host.tool("confirm_spawn", **pending, approving=["yes"])
            assert refused["status"] != "approved" and len(refused["approval_lines"]) == 1, refused
            confirmed = await host.tool("confirm_spawn", **pending, approving=refused["approval_lines"])
            assert confirmed["status"] == "approved", confirmed
            for name in ("Weasel", "Shrew", "Crane"):
                run = await ended(host, runs[name])
                assert run["status"] == "success" and run["untrusted_result"]["output"] == "seven cents", run
            [paused] = (await host.tool("check_subagent", subagent_id=runs["Ibis"]))["runs"]
            assert paused["not_before"] == old.facts["shown"]["Ibis"]["run"]["not_before"]
            earlier = [runs["Badger"], runs["Adder"]]
            proposed = await host.tool("spawn_subagent", role="researcher", task="Compare.", context_from=earlier)
            assert proposed["status"] == "awaiting_approval", "old results can be read by new runs"
            again = await host.tool("spawn_subagent", retry_of=runs["Lynx"])
            assert again["status"] == "awaiting_approval", "an old run can be repeated"
        async with serving(old.path, cwd=old.home, env={**old.env(after_s=HOUR_S + 60), **way}) as host:
            assert (await ended(host, runs["Ibis"]))["status"] == "success"
        assert asked(model) == {"Weasel": 1, "Shrew": 1, "Crane": 1, "Ibis": 1}
        assert money(old, HOUR_S + 60)[1] == 0, "nothing is held for what has ended"
        await check(old, model)


@pytest.mark.slow
async def test_unfinished_runs_are_abandoned_after_a_day(old: OldRoot) -> None:
    runs, day = old.facts["runs"], 25 * HOUR_S
    async with serving(old.path, cwd=old.home, env=old.env(after_s=day)) as host:
        given_up = [await ended(host, runs[name]) for name in ("Weasel", "Shrew", "Ibis")]
        [waiting] = (await host.tool("check_subagent", subagent_id=runs["Crane"]))["runs"]
    assert [run["status"] for run in given_up] == ["abandoned"] * 3 and waiting["state"] == "expired"
    assert given_up[0]["untrusted_result"]["output"] == "half of it", "it hands over what it had noted"
    assert money(old, after_s=day) == (0, 0)
    assert old.json("report", "--json", after_s=day)["total"]["cost_cents"] == pytest.approx(
        old.facts["today"][0]["spent_cents"]
        + given_up[0]["cost_cents"]
        - old.facts["shown"]["Weasel"]["run"]["cost_cents"]
    )
    assert_intact(old.path)
