"""Several proposals in a terminal are one table and one question, for `ava run` and `ava approve`."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.model_server import run_model_server
from support.repositories.coding import coder_task, project
from support.runtime import PRICED, Lab, open_lab, submit
from support.stdio import make_root, read_log, state_of
from support.terminal import CONTROLLED, Screen, ava, run_on_terminal

from ava_server.config.pin import PinFile

pytestmark = pytest.mark.slow

PIN, WRONG = "839217", "583920"
ASKS_PIN = "Approval PIN (not shown): "
ALL_WAITING = "Start them? [y = all, r = reject all, o = one by one, Enter = later]"
OF_GROUP = "Start them? [y = all, n = none, o = one by one]"
YELLOW = "\x1b[33m"
BOLD = "\x1b[1m"


def shown_at(lab: Lab, *args: str, answers: list[tuple[str, str]], **more: Any) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns; return its exit code and everything that it wrote."""
    with run_on_terminal(lab.root, *args, columns=80, command=CONTROLLED, **more) as screen:
        code = screen.ended_after(answers)
    assert "Traceback" not in screen.text
    return code, screen.text


def decisions(root: Path, run: str) -> list[tuple[str, str | None]]:
    return [(each.content["decision"], each.content.get("channel")) for each in read_log(root, "SpawnDecided", run=run)]


async def three(lab: Lab, tmp_path: Path) -> list[Any]:
    """Propose two researchers and a coder."""
    repository = project(tmp_path)
    coder = await lab.propose(**coder_task(workspace=str(repository), max_cost_cents=200))
    return [await lab.propose(task="What does it cost?"), await lab.propose(task="Since when?"), coder]


async def test_yes_starts_all_that_wait_each_by_its_own_digest(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()] * 2, config=PRICED) as lab:
        pair = [await lab.propose(task=f"task {number}") for number in range(2)]
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "y")])
        assert code == 0, screen
        assert "task 0" in screen and "task 1" in screen and "2 subagents together, at most $1.00." in screen
        assert f"Approved: {pair[0].pending_id}, {pair[1].pending_id}." in screen
        for each in pair:
            row = await lab.ended(each.subagent_id)
            assert (row.state, row.plan_id) == ("success", None), "no group was asked for"
            [decided] = read_log(lab.root, "SpawnDecided", run=each.subagent_id)
            [proposed] = read_log(lab.root, "SpawnProposed", run=each.subagent_id)
            assert decided.content["digest"] == proposed.content["digest"]
            assert (decided.content["decision"], decided.content["channel"]) == ("approved", "terminal")


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
async def test_the_table_shows_each_reach_and_what_only_some_can_do(
    tmp_path: Path, env: dict[str, str], coloured: bool
) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        proposals = await three(lab, tmp_path)
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "")], env=env)
        assert code == 0, screen
        assert (f"{YELLOW}{BOLD}!" in screen) is coloured
        plain = re.sub(r"\x1b\[[\d;]*m", "", screen)
        assert all(len(line) <= 80 for line in plain.splitlines() if "/" not in line), plain
        words = " ".join(plain.split())
        rows = [line for line in plain.splitlines() if re.match(r"[ !]  \d ", line)]
        assert len(rows) == 3 and [line[0] for line in rows].count("!") == 1, plain
        assert re.search(r"! \d \$2\.00 change files, .* \"Make add add\.\"", words), words
        assert re.search(r" \d \$0\.50 network, read files.* \"What does it cost\?\"", words), words
        dense = "".join(plain.split())  # a long path is broken at the end of a line
        assert re.search(rf"\d,\dcanread{re.escape(str(lab.workspace))}andreachtheweb\.", dense), words
        assert re.search(r"\d: coder, custom:test, at most \$2\.00, 30 min\.", words), words
        assert all(f" {each.pending_id}" in words.partition("A number opens one:")[2] for each in proposals)
        assert 'may change only these paths: "adding.py".' in words and "must pass `python3 -m unittest`" in words
        assert re.search(r"! Only some of them can change files \(\d\), run commands \(\d\), reach the network", words)
        assert "3 subagents together, at most $3.00." in words
        assert {state_of(lab.root, each.subagent_id) for each in proposals} == {"awaiting_approval"}


@pytest.mark.parametrize("command", ["approve", "reject"])
async def test_several_are_one_table_in_a_pipe_with_the_id_in_each_row(tmp_path: Path, command: str) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        proposals = await three(lab, tmp_path)
        done = ava(lab.root, command)
        ids = re.findall(r"^[ !]  \d  (P-\w+)  +\$\d\.\d\d  ", done.stdout, re.MULTILINE)
        assert sorted(ids) == sorted(each.pending_id for each in proposals), done.stdout
        assert "! Only some of them can change files" in done.stdout and "may change only these paths" in done.stdout
        assert "A number opens one" not in done.stdout and "Folded" not in done.stdout, "nobody is asked"
        assert f"ava {command} P-ID" in done.stderr and "ava show P-ID" in done.stderr
        assert {state_of(lab.root, each.subagent_id) for each in proposals} == {"awaiting_approval"}


async def test_no_task_can_pass_for_a_line_of_the_table(tmp_path: Path) -> None:
    """Neither for a row, by a word that the terminal would break, nor for a reach."""
    fake, reach = "2__$0.01_read_files", "1, 2, 3 can reach neither files nor the web."
    tasks = ["_" * 71 + fake, "_" * 70 + f" {reach}", reach]
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        for task in tasks:
            await lab.propose(task=task, rationale=f"{'_' * 60} {fake} {'_' * 60} {reach}")
        for width in (40, 80, 140):
            with run_on_terminal(lab.root, "approve", columns=width, command=CONTROLLED) as screen:
                assert screen.ended_after([(ALL_WAITING, "")]) == 0
            lines = re.sub(r"\x1b\[[\d;]*m", "", screen.text).splitlines()
            table = [line for line in lines if not line.startswith(("Data root", "Start them?"))]
            assert max(map(len, table)) <= width, lines
            rows = [len(line) - len(line.lstrip()) for line in lines if re.match(r"[ !]  [123] ", line)]
            assert rows == [3, 3, 3], lines
            begins = [line for line in lines if line.lstrip().startswith(("2__", "1, 2, 3 can reach neither"))]
            assert all(line.startswith("      ") for line in begins), lines


async def test_a_run_without_a_sandbox_stands_out_even_if_all_are_like_it(tmp_path: Path) -> None:
    config = f'{PRICED}\n[sandbox]\nmode = "none"\n'
    async with open_lab(tmp_path, [], config=config, runs=False) as lab:
        for task in ("one", "two"):
            await lab.propose(role="data_extractor", task=task)
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "r")])
    words = " ".join(screen.split())
    assert code == 0 and screen.count(f"{YELLOW}{BOLD}!") == 2, screen
    assert "! All of them can run without a sandbox, run commands." in words
    assert words.count("WITHOUT A SANDBOX") == 1, words
    assert words.count("Each of them: Nothing confines what it runs here") == 1, "what all share stands once"


async def test_a_number_opens_one_and_the_question_stands_and_only_the_others_were_folded(tmp_path: Path) -> None:
    tasks = [f"Task {number}: {'long ' * 200}." for number in range(2)]
    async with open_lab(tmp_path, [submit()] * 2, config=PRICED) as lab:
        pair = [await lab.propose(task=task) for task in tasks]
        with run_on_terminal(lab.root, "approve", columns=80, command=CONTROLLED) as screen:
            screen.until(ALL_WAITING)
            screen.type("2\n")
            screen.until_shown(lambda _lines: screen.text.count(ALL_WAITING) == 2)
            screen.type("y\n")
            assert screen.ended() == 0, screen.text
        assert f"2 of 2, {pair[1].pending_id}:" in screen.text
        assert f"1 of 2, {pair[0].pending_id}:" not in screen.text
        for each in pair:
            assert (await lab.ended(each.subagent_id)).state == "success"
        [first], [second] = (read_log(lab.root, "SpawnDecided", run=each.subagent_id) for each in pair)
        assert "task, " in first.content["folded"] and not second.content.get("folded")


async def test_all_can_be_rejected_at_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        proposals = await three(lab, tmp_path)
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "r")])
        assert code == 0 and screen.count(" is rejected.") == 3, screen
        assert [decisions(lab.root, each.subagent_id) for each in proposals] == [[("rejected", "terminal")]] * 3


async def test_one_that_was_decided_elsewhere_meanwhile_does_not_stop_the_others(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED) as lab:
        gone, other = await lab.propose(task="gone"), await lab.propose(task="other")
        with run_on_terminal(lab.root, "approve", command=CONTROLLED) as screen:
            screen.until(ALL_WAITING)
            await lab.call("confirm_spawn", pending_ids=[gone.pending_id], decision="reject")
            screen.type("y\n")
            found, heard = f"ava: {gone.pending_id} is not approved: ", f"{gone.pending_id} was rejected already"
            screen.until_shown(lambda _lines: found in screen.text or heard in screen.text)
            if found not in screen.text:  # it heard of the rejection before it read the answer: it asks about the other
                screen.until("Start it?")
                screen.type("y\n")
            code, said = (10, f"Approved: {other.pending_id}.") if found in screen.text else (0, "Approved.")
            assert screen.ended() == code, screen.text
        assert said in screen.text
        assert (await lab.ended(other.subagent_id)).state == "success"


async def test_the_pin_is_asked_once_for_all_and_a_wrong_one_starts_none(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()] * 2, config=PRICED) as lab:
        PinFile(lab.root / "secrets" / "approval.toml").set(PIN)
        pair = [await lab.propose(task=f"task {number}") for number in range(2)]
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "y"), (ASKS_PIN, WRONG)])
        assert (code, screen.count(ASKS_PIN)) == (10, 1), screen
        assert "Nothing was started; they still wait." in " ".join(screen.split())
        assert [decisions(lab.root, each.subagent_id) for each in pair] == [[], []]
        code, screen = shown_at(lab, "approve", answers=[(ALL_WAITING, "y"), (ASKS_PIN, PIN)])
        assert (code, screen.count(ASKS_PIN)) == (0, 1), screen
        for each in pair:
            assert (await lab.ended(each.subagent_id)).state == "success"
            assert decisions(lab.root, each.subagent_id) == [("approved", "terminal")]


# -- a group ----------------------------------------------------------------------------------------------------------


@contextmanager
def group(tmp_path: Path, *limits: str, script: Any = ()) -> Generator[tuple[Path, Screen]]:
    """Run three researchers together."""
    root = make_root(tmp_path / "data", config_toml=PRICED)
    tasks = ("--parallel", "researcher", "task 1", "task 2", "task 3", "--max-cost", "0.50")
    with run_model_server(script) as model:
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        with run_on_terminal(root, "run", *tasks, *limits, columns=80, env=env, command=CONTROLLED) as screen:
            screen.until(OF_GROUP)
            yield root, screen
        assert "Traceback" not in screen.text


def decided(root: Path) -> list[dict[str, Any]]:
    return [each.content for each in read_log(root, "SpawnDecided")]


def test_one_by_one_shows_each_in_full_and_starts_those_that_were_chosen(tmp_path: Path) -> None:
    with group(tmp_path, "--group-max", "1.20", "--group-timeout", "5m", script=[submit()] * 2) as (root, screen):
        screen.type("o\n")
        for number, answer in enumerate(("y", "n", "y"), 1):
            screen.until(f"{number} of 3: start it? [y/N]")
            screen.type(f"{answer}\n")
        assert screen.ended() == 0, screen.text
    assert all(f'researcher: "task {number}"' in screen.text for number in (1, 2, 3))
    assert "These: 2 subagents together, at most $1.00 and 5 min." in screen.text, "1.20 limits two of 0.50 no more"
    decisions = decided(root)
    assert sorted(each["decision"] for each in decisions) == ["approved", "approved", "approved", "rejected"]
    assert len({each["group_id"] for each in decisions if each.get("step")}) == 1, "two steps of the plan, and the plan"


def test_a_limit_for_several_is_not_lost_when_only_one_is_chosen(tmp_path: Path) -> None:
    with group(tmp_path, "--group-max", "0.40") as (root, screen):
        screen.type("o\n")
        for number, answer in enumerate(("y", "n", ""), 1):
            screen.until(f"{number} of 3: start it? [y/N]")
            screen.type(f"{answer}\n")
        assert screen.ended() == 2, screen.text
    assert "you chose one: start it alone, with its own limits. Nothing was started." in " ".join(screen.text.split())
    assert [each["decision"] for each in decided(root)] == ["rejected"] * 3


@pytest.mark.parametrize("answer", ["n", "", "yes please", "\x03"])
def test_anything_but_yes_starts_none_of_a_plan(tmp_path: Path, answer: str) -> None:
    with group(tmp_path) as (root, screen):
        screen.type(answer if answer == "\x03" else f"{answer}\n")
        assert screen.ended() == 10, screen.text
    assert "Not approved; nothing was started." in screen.text
    assert [each["decision"] for each in decided(root)] == ["rejected"] * 3
