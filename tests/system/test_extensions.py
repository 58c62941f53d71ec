"""A person allows a run more or a call, or declines, from a terminal and over HTTP."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.foreign.origins import ALL, EVIL, SEND, config, send_mail
from support.foreign.servers import write_role
from support.hosts.asking_runs import (
    HERE,
    START,
    answer_at_terminal,
    ask_with_fault,
    decisions_of,
    open_asking_run,
    open_distant_run,
    start_own_run,
)
from support.hosts.extensions import keep_noting
from support.http_server import token
from support.model_server import Say, Step, run_model_server
from support.runtime import PRICED, hand_over
from support.stdio import make_root, model_env, read_log, state_of, until
from support.terminal import CONTROLLED, ava, run_on_terminal

from ava_server.config.pin import PinFile

pytestmark = pytest.mark.slow

PIN = "839217"
RAISE = "Raise the cap? [y/N]"


# -- in a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_a_person_at_a_terminal_raises_the_cap_and_the_server_goes_on(tmp_path: Path) -> None:
    async with open_asking_run(tmp_path) as (root, wire, run_id, _url):
        checked = await wire.tool("check_subagent", subagent_id=run_id)
        assert checked["status"] == "awaiting_extension"
        assert f"/ava approve {run_id}`" in checked["runs"][0]["waits_for"]
        code, text = await anyio.to_thread.run_sync(
            lambda: answer_at_terminal(root, "approve", run_id, answers=[(RAISE, "n")])
        )
        assert code != 0 and "Nothing was raised; it still waits" in text and decisions_of(root) == []
        code, text = await anyio.to_thread.run_sync(
            lambda: answer_at_terminal(root, "approve", run_id, answers=[(RAISE, "y")])
        )
        assert code == 0, text
        assert "is near its cost cap of $0.20" in text and "it continues." in text
        await until(lambda: state_of(root, run_id) == "success", 20)
        [decided] = decisions_of(root)
        assert (decided["decision"], decided["channel"]) == ("approved", "terminal")
        gone = await anyio.to_thread.run_sync(lambda: answer_at_terminal(root, "approve", run_id))
        assert gone[0] != 0 and "was approved already" in gone[1]
        shown = await anyio.to_thread.run_sync(ava, root, "show", run_id)
        assert "Request for more approved" in shown.stdout and "by a person at the terminal: at most $" in shown.stdout
        cost = await anyio.to_thread.run_sync(ava, root, "show", run_id, "--cost")
        assert "raised to $" in cost.stdout and "by a person near the cap" in " ".join(cost.stdout.split())


@pytest.mark.slow
async def test_without_an_id_all_that_ask_are_shown_and_reject_has_one_wrap_up(tmp_path: Path) -> None:
    async with open_asking_run(tmp_path) as (root, _wire, run_id, _url):
        listed = await anyio.to_thread.run_sync(ava, root, "approve")
        assert listed.returncode == 0 and f"{run_id} asks for more:" in listed.stdout, listed.stderr
        once = await anyio.to_thread.run_sync(ava, root, "status", "--once")
        assert re.search(rf"asks for more +{run_id} ", once.stdout), once.stdout
        assert f"`ava approve {run_id}`" in " ".join(once.stdout.split())
        as_json = json.loads((await anyio.to_thread.run_sync(ava, root, "status", "--json")).stdout)
        [run] = as_json["runs"]
        assert run["state"] == "awaiting_extension" and "raise its cost cap from $0.20" in run["waits_for"]
        waited = await anyio.to_thread.run_sync(ava, root, "wait", run_id, "--timeout", "1")
        assert "a person may raise its cost cap" in waited.stderr
        left = await anyio.to_thread.run_sync(
            lambda: answer_at_terminal(root, "approve", answers=[("decide later]", "")])
        )
        assert left[0] == 0 and decisions_of(root) == []
        rejected = await anyio.to_thread.run_sync(ava, root, "reject", run_id)
        assert rejected.returncode == 0 and "wraps up" in rejected.stdout, rejected.stderr
        await until(lambda: state_of(root, run_id) == "cost_exceeded", 20)
        [decided] = decisions_of(root)
        assert decided["decision"] == "declined" and decided["changes"] == {}


@pytest.mark.slow
async def test_with_a_pin_a_terminal_asks_for_it(tmp_path: Path) -> None:
    async with open_asking_run(tmp_path) as (root, _wire, run_id, _url):
        PinFile(root / "secrets" / "approval.toml").set(PIN)
        wrong = [(RAISE, "y"), ("Approval PIN (not shown): ", "111111")]
        code, text = await anyio.to_thread.run_sync(lambda: answer_at_terminal(root, "approve", run_id, answers=wrong))
        assert code != 0 and "Nothing was raised; it still waits." in text and decisions_of(root) == []
        right = [(RAISE, "y"), ("Approval PIN (not shown): ", PIN)]
        code, text = await anyio.to_thread.run_sync(lambda: answer_at_terminal(root, "approve", run_id, answers=right))
        assert code == 0, text
        await until(lambda: state_of(root, run_id) == "success", 20)


# -- in the terminal of `ava run` itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "state"), [("y", "success"), ("n", "cost_exceeded")])
def test_ava_run_asks_in_its_own_terminal_whether_its_run_gets_more(tmp_path: Path, answer: str, state: str) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        code, text = start_own_run(root, model.base_url, (HERE, answer))
    assert "is near its cost cap of $0.20" in text and (code == 0) == (answer == "y"), text
    [asked] = read_log(root, "Asked")
    assert state_of(root, asked.run_id or "") == state
    [decided] = decisions_of(root)
    assert (decided["decision"], decided["channel"]) == ("approved" if answer == "y" else "declined", "terminal")


def test_ava_run_takes_its_question_back_where_it_is_answered_elsewhere(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        env = {**model_env(model.base_url), "AVA_MODEL": "test"}
        args = ("run", "researcher", "What does it cost?", "--max-cost", "0.20")
        with run_on_terminal(root, *args, env=env, columns=200, command=CONTROLLED) as screen:
            screen.until(START[0])
            screen.type("y\r")
            screen.until(HERE)
            [asked] = read_log(root, "Asked")
            assert ava(root, "reject", asked.run_id or "").returncode == 0
            screen.until("was declined already, by a call of the host at")
            assert screen.ended() != 0
    assert [one["decision"] for one in decisions_of(root)] == ["declined"]


@pytest.mark.slow
def test_what_became_of_a_question_is_said_although_its_run_is_over_first(tmp_path: Path) -> None:
    slow = """
import sys
import anyio
from ava_server.cli import service_client as c
from ava_server.cli import wait as w
ask, look = w._ask_about, c.Approvals.decided_elsewhere
async def asked(*args):
    print("LOOKED", file=sys.stderr)
    return await ask(*args)
async def slowly(*args):
    await anyio.sleep(3)
    return await look(*args)
w._ask_about, c.Approvals.decided_elsewhere = asked, slowly
"""
    text, decided = ask_with_fault(tmp_path, slow)
    assert "was declined already, by a call of the host at" in text, text
    assert [one["decision"] for one in decided] == ["declined"]


def test_a_request_that_was_decided_since_ava_run_looked_is_not_asked(tmp_path: Path) -> None:
    gone = (
        "import sys; from ava_server.runs.asking import pending_questions as p\n"
        "p.pending_question = lambda *args: print('LOOKED', file=sys.stderr)"
    )
    text, decided = ask_with_fault(tmp_path, gone)
    assert "Traceback" not in text and "Ended as cost exceeded" in text
    assert [one["decision"] for one in decided] == ["declined"]


def test_an_answer_that_takes_long_to_pass_on_is_not_taken_back(tmp_path: Path) -> None:
    slow = """
import anyio
from ava_server.cli import service_client as c
decide = c.Approvals.decide
async def slowly(*args, **more):
    said = await decide(*args, **more)
    await anyio.sleep(1)
    return said
c.Approvals.decide = slowly
"""
    text, decided = ask_with_fault(tmp_path, slow)
    assert "already" not in text, text
    assert [one["decision"] for one in decided] == ["approved"]


def test_ava_run_asks_what_its_run_asks_and_passes_the_answer_on(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)

    def answers(asked: dict[str, Any]) -> Step:
        said = json.dumps(asked["messages"])
        asks = Say(calls=[("ask", {"question": "Which currency?", "options": ["EUR", "USD"]})])
        return hand_over() if "Swiss Francs" in said else asks

    with run_model_server(answers) as model:
        code, text = start_own_run(root, model.base_url, ("it continues without one):", "Swiss Francs"))
    assert code == 0 and "asks you:" in text and "Which currency?" in text, text


def test_ava_run_asks_once_what_several_runs_of_its_plan_ask(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=f"{PRICED}\n[limits]\nrunning_per_user = 3\n")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "".join(f'[[steps]]\nid = "{name}"\nrole = "researcher"\ntask = "Price {name}."\n' for name in "abc")
    )

    def answers(asked: dict[str, Any]) -> Step:
        said = json.dumps(asked["messages"])
        asks = Say(calls=[("ask", {"question": "Which currency?", "options": ["EUR", "USD"]})])
        return hand_over() if "Swiss Francs" in said else asks

    with run_model_server(answers) as model:
        env = {**model_env(model.base_url), "AVA_MODEL": "test"}
        with run_on_terminal(root, "run", "--steps", str(plan), env=env, columns=200, command=CONTROLLED) as screen:
            screen.until(START[0])
            screen.type("y\n")
            screen.until("it continues without one):")
            deadline = time.monotonic() + 30
            while len(read_log(root, "Asked")) < 3 and time.monotonic() < deadline:  # the others join it
                time.sleep(0.1)
            code, text = screen.ended_after([("", "Swiss Francs")]), screen.text
    assert code == 0, text
    assert text.count("it continues without one):") == 1 and "So do 2 other runs that asked the same." in text, text
    by_run = {entry.run_id: entry.content["channel"] for entry in read_log(root, "Answered")}
    assert list(by_run.values()) == ["terminal"] * 3


@pytest.mark.parametrize(
    ("answers", "decision"),
    [
        ([("yes", ""), (PIN, "has the answer to its question and continues.")], "answered"),
        ([("yes", ""), ("111111", "That is not the PIN; 4 tries are left. Nothing was allowed; it still waits.")], ""),
        ([("no", "has the answer to its question and continues.")], "declined"),
    ],
    ids=["the PIN", "a wrong PIN", "a no"],
)
def test_in_ava_run_a_yes_to_a_call_takes_the_pin(
    tmp_path: Path, answers: list[tuple[str, str]], decision: str
) -> None:
    root = make_root(tmp_path / "data", config_toml=config(wait_s=300))
    write_role(root, ALL)
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL)])
    with run_model_server(lambda _asked: next(steps, hand_over())) as model:
        env = {**model_env(model.base_url), "AVA_MODEL": "test"}
        args = ("run", "guest", "Write to bob@example.org about lunch.")
        with run_on_terminal(root, *args, env=env, columns=200, command=CONTROLLED) as screen:
            screen.until(START[0])
            screen.type("y\n")
            screen.until("it continues without one):")
            PinFile(root / "secrets" / "approval.toml").set(PIN)
            for words, says in answers:
                screen.type(f"{words}\n")
                screen.until(says or "Approval PIN (not shown): ")
            [asked] = read_log(root, "Asked")
            assert EVIL in screen.text and PIN not in screen.text
            if not decision:
                assert not read_log(root, "Answered")
                question = asked.content["ask_id"]
                assert answer_at_terminal(root, "send", asked.run_id or "", "no", "--question", question)[0] == 0
            assert screen.ended() == 0
    assert screen.text.count("Approval PIN") == len(answers) - 1 and "Traceback" not in screen.text
    assert [each.content["decision"] for each in read_log(root, "Answered")] == [decision or "declined"]
    results = [each.content for each in read_log(root, "ToolResult")]
    assert [each["success"] for each in results if each["tool"] == SEND] == [decision == "answered"]


# -- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_a_token_with_the_scope_approve_raises_the_cap_once(tmp_path: Path) -> None:
    async with open_distant_run(tmp_path) as at:
        bens, hosts = token(at.root, "ben", "approve"), token(at.root, "ana", name="other-host")
        [shown] = await at.shown()
        assert shown["subagent_id"] == at.run_id and "near its cost cap of $0.20" in shown["message"]
        assert await at.shown(bens) == []
        whole = {"decision": "approve", "subagent_id": at.run_id, "digest": shown["digest"]}
        for text, given, status in (
            (None, {**whole, "digest": "0" * 64}, 409),
            (None, {"decision": "approve", "subagent_id": at.run_id}, 400),
            (None, {**whole, "subagent_id": "S-zzzzzz"}, 400),
            (None, {**whole, "limit": 9}, 400),
            (bens, whole, 400),
            (hosts, whole, 403),
        ):
            found, answer = await at.decide(text, **given)
            assert found == status, (given, answer)
        assert decisions_of(at.root) == []
        status, answer = await at.decide(**whole)
        assert (status, answer["status"]) == (200, "approved"), answer
        assert (await at.decide(**whole))[0] == 409
        await until(lambda: state_of(at.root, at.run_id) == "success", 20)
        [decided] = decisions_of(at.root)
        assert (decided["channel"], decided["digest"]) == ("http", shown["digest"])


@pytest.mark.parametrize("answer", ["y", "r"])
async def test_a_remote_person_decides_with_ava_approve(tmp_path: Path, answer: str) -> None:
    async with open_distant_run(tmp_path) as at:
        args = ("--url", at.server.base, "approve")
        elsewhere = tmp_path / "elsewhere"

        def run() -> tuple[int, str]:
            return answer_at_terminal(elsewhere, *args, answers=[("decide later]", answer)], AVA_TOKEN=at.text)

        code, text = await anyio.to_thread.run_sync(run)
        assert code == 0 and f"{at.run_id} asks for more:" in text, text
        ended = "success" if answer == "y" else "cost_exceeded"
        await until(lambda: state_of(at.root, at.run_id) == ended, 20)
