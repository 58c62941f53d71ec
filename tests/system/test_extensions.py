"""A person allows a run more or a call, or declines, from a terminal and over HTTP."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp import Client
from support.foreign.origins import ALL, EVIL, SEND, config, send_mail
from support.foreign.servers import write_role
from support.hosts.extensions import CAP, keep_noting
from support.http_server import HttpServer, serve_http, token
from support.model_server import Say, Step, run_model_server
from support.runtime import PRICED, hand_over
from support.stdio import Wire, make_root, model_env, read_answer, read_log, serve_stdio, state_of, until
from support.terminal import CONTROLLED, ava, run_on_terminal

from ava_server.config.pin import PinFile

pytestmark = pytest.mark.slow

HUMAN = f'[users.ana]\napproval = "human"\n{PRICED}'
PIN = "839217"
RAISE = "Raise the cap? [y/N]"


# -- in a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_a_person_at_a_terminal_raises_the_cap_and_the_server_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as (root, wire, run_id, _url):
        checked = await wire.tool("check_subagent", subagent_id=run_id)
        assert checked["status"] == "awaiting_extension"
        assert f"/ava approve {run_id}`" in checked["runs"][0]["waits_for"]
        code, text = await anyio.to_thread.run_sync(lambda: typed(root, "approve", run_id, answers=[(RAISE, "n")]))
        assert code != 0 and "Nothing was raised; it still waits" in text and decisions(root) == []
        code, text = await anyio.to_thread.run_sync(lambda: typed(root, "approve", run_id, answers=[(RAISE, "y")]))
        assert code == 0, text
        assert "is near its cost cap of $0.20" in text and "it continues." in text
        await until(lambda: state_of(root, run_id) == "success", 20)
        [decided] = decisions(root)
        assert (decided["decision"], decided["channel"]) == ("approved", "terminal")
        gone = await anyio.to_thread.run_sync(lambda: typed(root, "approve", run_id))
        assert gone[0] != 0 and "was approved already" in gone[1]
        shown = await anyio.to_thread.run_sync(ava, root, "show", run_id)
        assert "Request for more approved" in shown.stdout and "by a person at the terminal: at most $" in shown.stdout
        cost = await anyio.to_thread.run_sync(ava, root, "show", run_id, "--cost")
        assert "raised to $" in cost.stdout and "by a person near the cap" in " ".join(cost.stdout.split())


@pytest.mark.slow
async def test_without_an_id_all_that_ask_are_shown_and_reject_has_one_wrap_up(tmp_path: Path) -> None:
    async with asking(tmp_path) as (root, _wire, run_id, _url):
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
        left = await anyio.to_thread.run_sync(lambda: typed(root, "approve", answers=[("decide later]", "")]))
        assert left[0] == 0 and decisions(root) == []
        rejected = await anyio.to_thread.run_sync(ava, root, "reject", run_id)
        assert rejected.returncode == 0 and "wraps up" in rejected.stdout, rejected.stderr
        await until(lambda: state_of(root, run_id) == "cost_exceeded", 20)
        [decided] = decisions(root)
        assert decided["decision"] == "declined" and decided["changes"] == {}


@pytest.mark.slow
async def test_with_a_pin_a_terminal_asks_for_it(tmp_path: Path) -> None:
    async with asking(tmp_path) as (root, _wire, run_id, _url):
        PinFile(root / "secrets" / "approval.toml").set(PIN)
        wrong = [(RAISE, "y"), ("Approval PIN (not shown): ", "111111")]
        code, text = await anyio.to_thread.run_sync(lambda: typed(root, "approve", run_id, answers=wrong))
        assert code != 0 and "Nothing was raised; it still waits." in text and decisions(root) == []
        right = [(RAISE, "y"), ("Approval PIN (not shown): ", PIN)]
        code, text = await anyio.to_thread.run_sync(lambda: typed(root, "approve", run_id, answers=right))
        assert code == 0, text
        await until(lambda: state_of(root, run_id) == "success", 20)


# -- in the terminal of `ava run` itself ------------------------------------------------------------------------------

HERE = "hands in what it has. [y/N]"
START = ("[y/N]", "y")


def own_run(root: Path, url: str, *answers: tuple[str, str]) -> tuple[int, str]:
    args = ("run", "researcher", "What does it cost?", "--max-cost", "0.20")
    return typed(root, *args, answers=[START, *answers], **{**model_env(url), "AVA_MODEL": "test"})


@pytest.mark.parametrize(("answer", "state"), [("y", "success"), ("n", "cost_exceeded")])
def test_ava_run_asks_in_its_own_terminal_whether_its_run_gets_more(tmp_path: Path, answer: str, state: str) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        code, text = own_run(root, model.base_url, (HERE, answer))
    assert "is near its cost cap of $0.20" in text and (code == 0) == (answer == "y"), text
    [asked] = read_log(root, "Asked")
    assert state_of(root, asked.run_id or "") == state
    [decided] = decisions(root)
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
    assert [one["decision"] for one in decisions(root)] == ["declined"]


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
    text, decided = asked_with(tmp_path, slow)
    assert "was declined already, by a call of the host at" in text, text
    assert [one["decision"] for one in decided] == ["declined"]


START_AVA = "\nimport sys; from ava_server.cli import run; run(sys.argv[1:])"


def asked_with(tmp_path: Path, fault: str) -> tuple[str, list[dict[str, Any]]]:
    """Run `ava run` with a fault where its run asks for more; decline elsewhere where the fault asks nobody."""
    root = make_root(tmp_path / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        env = {**model_env(model.base_url), "AVA_MODEL": "test"}
        args = ("run", "researcher", "What does it cost?", "--max-cost", "0.20")
        with run_on_terminal(
            root, *args, env=env, columns=200, command=(sys.executable, "-c", fault + START_AVA)
        ) as screen:
            screen.until(START[0])
            screen.type("y\r")
            if "LOOKED" in fault:
                screen.until("LOOKED")
                [asked] = read_log(root, "Asked")
                assert ava(root, "reject", asked.run_id or "").returncode == 0
            else:
                screen.until(HERE)
                screen.type("y\r")
            screen.ended()
    return screen.text, decisions(root)


def test_a_request_that_was_decided_since_ava_run_looked_is_not_asked(tmp_path: Path) -> None:
    gone = (
        "import sys; from ava_server.runs import pending_questions as p\n"
        "p.pending_question = lambda *args: print('LOOKED', file=sys.stderr)"
    )
    text, decided = asked_with(tmp_path, gone)
    assert "Traceback" not in text and "cost_exceeded" in text and [one["decision"] for one in decided] == ["declined"]


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
    text, decided = asked_with(tmp_path, slow)
    assert "already" not in text, text
    assert [one["decision"] for one in decided] == ["approved"]


def test_ava_run_asks_what_its_run_asks_and_passes_the_answer_on(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml=PRICED)

    def answers(asked: dict[str, Any]) -> Step:
        said = json.dumps(asked["messages"])
        asks = Say(calls=[("ask", {"question": "Which currency?", "options": ["EUR", "USD"]})])
        return hand_over() if "Swiss Francs" in said else asks

    with run_model_server(answers) as model:
        code, text = own_run(root, model.base_url, ("it continues without one):", "Swiss Francs"))
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
                assert typed(root, "send", asked.run_id or "", "no", "--question", question)[0] == 0
            assert screen.ended() == 0
    assert screen.text.count("Approval PIN") == len(answers) - 1 and "Traceback" not in screen.text
    assert [each.content["decision"] for each in read_log(root, "Answered")] == [decision or "declined"]
    results = [each.content for each in read_log(root, "ToolResult")]
    assert [each["success"] for each in results if each["tool"] == SEND] == [decision == "answered"]


# -- over HTTP --------------------------------------------------------------------------------------------------------


@dataclass
class Away:
    """A server, a run of Ana's on it that asks for more, and her own token."""

    server: HttpServer
    root: Path
    client: Client
    text: str
    run_id: str

    async def shown(self, text: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.server.get("/approvals", text or self.text)).json()["extensions"]
        return found

    async def decide(self, text: str | None = None, **given: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.server.post("/approvals", text or self.text, json=given)
        return answer.status_code, answer.json()


@asynccontextmanager
async def away(tmp: Path) -> AsyncGenerator[Away]:
    root = make_root(tmp / "data", config_toml=HUMAN)
    hosts, own = token(root, "ana"), token(root, "ana", "approve", name="phone")
    with run_model_server(keep_noting) as model:
        async with (
            serve_http(root, env={**model_env(model.base_url), "AVA_MODEL": "test"}) as server,
            server.client(hosts) as client,
        ):
            given = {"role": "researcher", "task": "What does it cost?", **CAP}
            run = read_answer(await client.call_tool("spawn_subagent", given))[0]
            [shown] = (await server.get("/approvals", own)).json()["proposals"]
            decision = {
                "decision": "approve", "pending_ids": [run["pending_id"]], "approving": [shown["approval_line"]],
                "digests": {run["pending_id"]: shown["digest"]},
            }  # fmt: skip
            assert (await server.post("/approvals", own, json=decision)).status_code == 200
            await asks(root, run["subagent_id"])
            yield Away(server, root, client, own, run["subagent_id"])


@pytest.mark.requirement("N-15")
async def test_a_token_with_the_scope_approve_raises_the_cap_once(tmp_path: Path) -> None:
    async with away(tmp_path) as at:
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
        assert decisions(at.root) == []
        status, answer = await at.decide(**whole)
        assert (status, answer["status"]) == (200, "approved"), answer
        assert (await at.decide(**whole))[0] == 409
        await until(lambda: state_of(at.root, at.run_id) == "success", 20)
        [decided] = decisions(at.root)
        assert (decided["channel"], decided["digest"]) == ("http", shown["digest"])


@pytest.mark.parametrize("answer", ["y", "r"])
async def test_a_remote_person_decides_with_ava_approve(tmp_path: Path, answer: str) -> None:
    async with away(tmp_path) as at:
        args = ("--url", at.server.base, "approve")
        elsewhere = tmp_path / "elsewhere"

        def run() -> tuple[int, str]:
            return typed(elsewhere, *args, answers=[("decide later]", answer)], AVA_TOKEN=at.text)

        code, text = await anyio.to_thread.run_sync(run)
        assert code == 0 and f"{at.run_id} asks for more:" in text, text
        ended = "success" if answer == "y" else "cost_exceeded"
        await until(lambda: state_of(at.root, at.run_id) == ended, 20)


def typed(root: Path, *args: str, answers: Sequence[tuple[str, str]] = (), **env: str) -> tuple[int, str]:
    """Run a command at a terminal, with an answer to each thing that it asks; return its exit code and the screen."""
    with run_on_terminal(root, *args, env=env, columns=200, command=CONTROLLED) as screen:
        code = screen.ended_after(answers)
    assert "Traceback" not in screen.text
    return code, screen.text


def decisions(root: Path) -> list[dict[str, Any]]:
    return [entry.content for entry in read_log(root, "Answered")]


async def asks(root: Path, run_id: str) -> None:
    await until(lambda: bool(read_log(root, "Asked", run=run_id)), 20)


@asynccontextmanager
async def asking(tmp: Path) -> AsyncGenerator[tuple[Path, Wire, str, str]]:
    """A server with a run that a person has started at the terminal and that asks for more."""
    root = make_root(tmp / "data", config_toml=PRICED)
    with run_model_server(keep_noting) as model:
        async with serve_stdio(root, env={**model_env(model.base_url), "AVA_MODEL": "test"}, cwd=tmp) as wire:
            run = await wire.tool("spawn_subagent", role="researcher", task="What does it cost?", **CAP)
            started = await anyio.to_thread.run_sync(
                lambda: typed(root, "approve", run["pending_id"], answers=[("Start it? [y/N]", "y")])
            )
            assert started[0] == 0, started
            await asks(root, run["subagent_id"])
            yield root, wire, run["subagent_id"], model.base_url
