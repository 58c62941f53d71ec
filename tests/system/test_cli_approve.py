"""`ava approve`, `ava reject` and the approval PIN: a person at a real terminal, and a server that has proposed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.hosts.terminal_server import only_error, open_terminal_server, without_styles
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED, open_lab, submit, wait_for
from support.stdio import Logged, instance_locks, make_root, read_log, state_of
from support.terminal import COMMAND, CONTROLLED, ava, environment, run_on_terminal

from ava_server.config.pin import PinFile
from ava_server.core.data_root import os_user
from ava_server.core.errors import Refused
from ava_server.runs.owner.mode import GRACE_S
from ava_server.service.runtime import USERS_EVERY_S

pytestmark = pytest.mark.slow

PIN, WRONG = "839217", "583920"
ALL_WAITING = "Start them? [y = all, r = reject all, o = one by one, Enter = later]"
OF_GROUP = "Start them? [y = all, n = none, o = one by one]"
STYLES = re.compile(r"\x1b\[[\d;]*m")
ASKS, ASKS_PIN = "[y/N]", "Approval PIN (not shown): "
SHELL = ("sh", "-c", 'trap : INT; : <"$(tty)"; "$@"; code=$?; stty -a; exit $code', "sh", *COMMAND)
"""A shell that stays on the terminal after the command, and shows then how it was left."""
PIPED = ("sh", "-c", f': <"$(tty)"; printf "y\\n{WRONG}\\n{WRONG}\\n" | "$@"', "sh", *COMMAND)
"""A command with a pipe as its input, and a terminal all the same."""


# -- under ask ---------------------------------------------------------------------------------------------------------


async def test_yes_in_a_terminal_starts_the_run_in_the_server_that_proposed_it(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose("What does transcription cost?")
        [server] = instance_locks(at.root)
        unfolds = [("(more: m)", "m"), ("Start it? [y/N]", "y")]
        code, screen = at.typed("approve", proposal["pending_id"], answers=unfolds)
        assert code == 0, screen
        before = without_styles(screen[: screen.rindex("Start it?")])
        [_what, *lines] = filter(None, proposal["message"].split("\n"))
        assert all(" ".join(line.split()) in before for line in (*lines, proposal["approval_line"])), before
        assert "Approved.\nIt has started; `ava status` shows the progress." in screen
        await at.succeeded(proposal)
        assert [(each["decision"], each["channel"]) for each in at.decided(proposal)] == [("approved", "terminal")]
        [claimed] = read_log(at.root, "RunClaimed", run=proposal["subagent_id"])
        assert f"{claimed.content['instance']}.lock" == server
        said = [each.content for each in read_log(at.root, "UserMessage", run=proposal["subagent_id"])]
        assert [each["kind"] for each in said] == ["task", "decision"]
        told = await at.wire.tool("check_subagent", subagent_id=proposal["subagent_id"])
        assert told["runs"][0]["untrusted_result"]["output"] == "the answer"


async def test_the_hourly_limit_does_not_apply_to_yes_in_a_terminal(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, "[limits]\nspawns_per_hour = 0\n") as at:
        proposal = await at.propose()
        assert f"/ava approve {proposal['pending_id']}` in a terminal is not limited" in await at.confirm(proposal)
        code, screen = at.typed("approve", proposal["pending_id"], answers=[(ASKS, "y")])
        assert code == 0, screen
        await at.succeeded(proposal)


@pytest.mark.parametrize("answer", ["n", "", "yes please", "Y E S", WRONG])
async def test_anything_but_yes_leaves_the_proposal_waiting(tmp_path: Path, answer: str) -> None:
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose()
        code, screen = at.typed("approve", proposal["pending_id"], answers=[(ASKS, answer)])
        assert (code, screen.endswith("Nothing was approved; it still waits.\n")) == (10, True), screen
        assert (at.state(proposal), at.decided(proposal), at.model.requests) == ("awaiting_approval", [], [])


async def test_ignores_input_typed_before_the_question_appears(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose()
        with at.terminal("approve", proposal["pending_id"]) as screen:
            screen.type("y\n")
            screen.until(f"Start it? {ASKS} ")
            screen.type("n\n")
            assert screen.ended() == 10, screen.text
        assert (at.state(proposal), at.decided(proposal), at.model.requests) == ("awaiting_approval", [], [])


async def test_run_with_the_task_id_of_a_running_run_waits_for_that_run(tmp_path: Path) -> None:
    root, gate = make_root(tmp_path / "data", config_toml=PRICED), Gate()
    words = ("run", "researcher", "What does it cost?", "--task-id", "T-9")
    with run_model_server([replace(submit(), gate=gate)]) as model:
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        with run_on_terminal(root, *words, env=env, command=CONTROLLED) as first:
            first.until(ASKS)
            first.type("y\n")
            await wait_for(gate.arrived)
            with run_on_terminal(root, *words, env=env, command=CONTROLLED) as second:
                second.until("task_id T-9 is S-")
                gate.released.set()
                assert (first.ended(), second.ended()) == (0, 0), second.text
        assert ASKS not in second.text and "the answer" in second.text
        assert len(model.requests) == 1, "it was started once"


async def test_ctrl_c_at_the_question_leaves_the_proposal_waiting(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose()
        with at.terminal("approve", proposal["pending_id"]) as screen:
            screen.until(ASKS)
            screen.type("\x03")
            assert screen.ended() == 130
        assert (at.state(proposal), at.decided(proposal), at.model.requests) == ("awaiting_approval", [], [])


async def test_approves_nothing_without_a_terminal_and_lists_waiting_proposals(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose("a task of its own")
        for given in (proposal["pending_id"], proposal["subagent_id"]):
            done = ava(at.root, "approve", given, stdin="y\ny\n")
            assert (done.returncode, done.stderr.count("\n")) == (10, 1)
            assert "There is no terminal to ask on, so nothing was approved" in done.stderr
        done = ava(at.root, "approve", stdin="y\ny\n")
        assert done.returncode == 0
        assert f"1 of 1, {proposal['pending_id']}:" in done.stdout and "a task of its own" in done.stdout
        assert "approve in a terminal: ava approve P-ID" in done.stderr
        assert (at.state(proposal), at.decided(proposal)) == ("awaiting_approval", [])


async def test_asks_about_each_waiting_proposal_oldest_first_if_wanted(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        starts, rejected, left = [await at.propose(f"task number {number}") for number in range(3)]
        with at.terminal("approve") as screen:
            screen.until(ALL_WAITING)
            screen.type("o\n")
            for number, answer in enumerate(("y", "r", "")):
                screen.until(f"{number + 1} of 3: start it? [y = yes, r = reject it, Enter = leave it waiting]")
                screen.type(f"{answer}\n")
            assert screen.ended() == 0, screen.text
        order = [f"{number} of 3, {each['pending_id']}:" for number, each in enumerate((starts, rejected, left), 1)]
        assert [screen.text.index(each) for each in order] == sorted(screen.text.index(each) for each in order)
        assert f"{rejected['pending_id']} is rejected." in screen.text
        await at.succeeded(starts)
        assert [at.state(each) for each in (rejected, left)] == ["rejected", "awaiting_approval"]
        assert [each["channel"] for each in at.decided(starts) + at.decided(rejected)] == ["terminal", "terminal"]
        assert at.decided(left) == []


async def test_says_when_no_proposal_is_waiting(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        for command in ("approve", "reject"):
            assert at.typed(command) == (0, f"Data root: {at.root}\nNothing waits for approval.\n")


async def test_two_ids_form_one_plan_under_one_limit(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        pair = [await at.propose(f"task {number}") for number in range(2)]
        ids = [each["pending_id"] for each in pair]
        more = ("--group-max", "0.90", "--group-timeout", "20m")
        code, screen = at.typed("approve", *ids, *more, answers=[(OF_GROUP, "y")])
        assert code == 0, screen
        assert "All of them: 2 subagents together, at most $0.90 and 20 min." in screen
        words = without_styles(screen)
        assert all(re.search(rf'{number} \$0\.50 network.* "task {number - 1}"', words) for number in (1, 2)), screen
        assert "Each of them: researcher, custom:test, at most $0.50, 10 min." in words, screen
        assert all(each["pending_id"] in words.partition("A number opens one: ")[2] for each in pair), screen
        group = re.search(r"Approved, as the plan (G-[0-9a-f]{7})\.", screen)
        assert group is not None, screen
        await at.succeeded(*pair)
        for each in pair:
            [decided] = at.decided(each)
            assert (decided["channel"], decided["group_id"]) == ("terminal", group[1])
        (proposed,) = read_log(at.root, "SpawnProposed", run=group[1])
        plan = proposed.content["config"]
        assert (plan["max_cost_micros"], plan["timeout_s"]) == (900_000, 1200)


@pytest.mark.parametrize(
    ("more", "answers", "code", "says"),
    [
        (["--group-max", "0.30"], [], 2, "for two or more proposals"),
        (["--group-timeout", "10m"], [], 2, "for two or more proposals"),
        (["{id}", "--group-max", "0.30"], [], 2, "for two or more proposals"),
        (["{run}", "--group-max", "0.30"], [], 2, "for two or more proposals"),
        (["{other}", "--group-max", "much"], [], 2, "--group-max: 'much'"),
        (["{other}", "--group-max", "9"], [], 2, "--group-max: their own caps come to $1.00 together"),
        (["P-00000000"], [], 2, "P-00000000"),
    ],
)
async def test_an_invalid_plan_starts_none_of_its_runs(
    tmp_path: Path, more: list[str], answers: list[tuple[str, str]], code: int, says: str
) -> None:
    async with open_terminal_server(tmp_path) as at:
        one, other = await at.propose("one"), await at.propose("other")
        ids = {"id": one["pending_id"], "run": one["subagent_id"], "other": other["pending_id"]}
        words = ["approve", one["pending_id"], *(each.format(**ids) for each in more)]
        got, screen = at.typed(*words, answers=answers)
        assert (got, says in " ".join(screen.split())) == (code, True), screen
        assert [at.state(each) for each in (one, other)] == ["awaiting_approval"] * 2


async def test_reject_takes_ids_and_asks_about_each_proposal_without_one(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        first, second, third, fourth = [await at.propose(f"task number {number}") for number in range(4)]
        code, screen = at.typed("reject", first["pending_id"], second["subagent_id"])
        assert code == 0
        assert screen.endswith(f"{first['pending_id']} is rejected.\n{second['pending_id']} is rejected.\n")
        questions = [("task number 2\nReject it? [y/N]", "y"), ("task number 3\nReject it? [y/N]", "")]
        code, screen = at.typed("reject", answers=questions)
        assert code == 0 and f"{third['pending_id']} is rejected.\n" in screen
        states = [at.state(each) for each in (first, second, third, fourth)]
        assert states == ["rejected", "rejected", "rejected", "awaiting_approval"]
        assert at.decided(first)[0]["channel"] == "terminal"
        assert "was rejected already, in a terminal at" in await at.confirm(first)

        assert ava(at.root, "reject", stdin="y\n").returncode == 0
        assert at.state(fourth) == "awaiting_approval", "without a terminal nobody was asked"
        assert ava(at.root, "reject", fourth["pending_id"]).returncode == 0
        assert at.decided(fourth)[0]["channel"] == "host_call", "and no person is claimed to have said so"
        assert at.model.requests == []


@pytest.mark.parametrize("command", ["approve", "reject"])
async def test_reports_a_proposal_that_is_not_waiting_in_one_sentence(tmp_path: Path, command: str) -> None:
    async with open_lab(tmp_path, config=PRICED, runs=False) as lab:
        service = lab.as_user("somebody-else")
        foreign: Any = await service.call("spawn_subagent", {"role": "researcher", "task": "not yours"}, quiet)
    other = tmp_path / "other"
    other.mkdir()
    async with open_terminal_server(other, "proposal_ttl_s = 60\n") as at:
        approved, rejected = await at.propose("a"), await at.propose("b")
        assert at.typed("approve", approved["pending_id"], answers=[(ASKS, "y")])[0] == 0
        await at.succeeded(approved)
        assert at.typed("reject", rejected["pending_id"])[0] == 0
        for given, code, says in (
            ("P-00000000", 2, "P-00000000 in this data root"),
            ("S-000000", 2, "There is no subagent S-000000"),
            ("seven", 2, "'seven' is not an id"),
            (approved["pending_id"], 10, "was approved already, in a terminal at"),
            (approved["subagent_id"], 10, "was approved already, in a terminal at"),
            (rejected["pending_id"], 10, "was rejected already, in a terminal at"),
        ):
            got, screen = at.typed(command, given)
            assert (got, says in only_error(screen)) == (code, True), screen
    with run_on_terminal(tmp_path / "data", command, foreign.pending_id) as view:
        assert view.ended() == 10
    assert "somebody-else's proposal; only that user decides about it" in only_error(view.text)
    with run_on_terminal(tmp_path / "data", command) as view:
        assert view.ended() == 0
    assert "Nothing waits for approval." in view.text, "another user's is not even listed"


async def quiet(_line: str) -> None:
    """Tell nobody how a wait goes on."""


async def test_neither_approves_nor_lists_an_expired_proposal(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, "proposal_ttl_s = 8\n") as at:
        proposal = await at.propose()
        expires = anyio.current_time() + 8
        with at.terminal("approve", proposal["pending_id"]) as screen:
            screen.until(ASKS)
            await anyio.sleep_until(expires + 0.1)  # its time has to pass, and no event tells that it has
            screen.type("y\n")
            assert screen.ended() == 10
        assert f"{proposal['pending_id']} has expired" in " ".join(screen.text.split())
        assert at.state(proposal) != "approved" and at.model.requests == []
        code, text = at.typed("approve", proposal["pending_id"])
        assert (code, "has expired" in only_error(text)) == (10, True)


# -- under human: the PIN ----------------------------------------------------------------------------------------------


async def test_a_pin_is_typed_twice_at_the_terminal_and_never_shown(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:
        with at.terminal("pin", "set", command=SHELL) as screen:
            for question in ("New approval PIN (not shown): ", "New approval PIN once more (not shown): "):
                screen.until(question)
                assert not screen.echoes
                screen.type(f"{PIN}\n")
            assert screen.ended() == 0
        assert "echo" in screen.text.split(), "it shows again what is typed"
        assert PIN not in screen.text
        assert "The policy is now human" in screen.text
        at.pin.check(PIN)
        code, text = at.typed("pin", "set")
        assert (code, "`ava pin change` replaces it" in text) == (10, True), "and nothing is asked"


@pytest.mark.parametrize(
    ("first", "second", "code", "says"),
    [
        (PIN, PIN[::-1], 2, "The two are not the same; nothing was stored."),
        ("123456", None, 2, "too easy to guess"),
        ("", None, 2, "No PIN was given"),
    ],
)
async def test_does_not_store_a_mistyped_or_weak_pin(
    tmp_path: Path, first: str, second: str | None, code: int, says: str
) -> None:
    async with open_terminal_server(tmp_path) as at:
        answers = [("PIN (not shown)", first), *([("once more (not shown)", second)] if second is not None else [])]
        got, screen = at.typed("pin", "set", answers=answers)
        assert (got, says in " ".join(screen.split())) == (code, True), screen
        assert not at.pin.is_set
        assert not first or first not in screen


async def test_with_a_pin_no_tool_can_approve_but_the_right_pin_in_a_terminal_can(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, 'approval = "auto"\nauto_approve_cents = 100\n', pin=PIN) as at:
        proposal = await at.propose()
        assert proposal["status"] == "awaiting_approval"
        command = f"/ava approve {proposal['pending_id']}`"
        assert command in proposal["next"]

        code, screen = at.typed("approve", proposal["pending_id"], answers=[(ASKS, "y"), (ASKS_PIN, WRONG)])
        said = "ava: That is not the PIN; 4 tries are left. Nothing was started; it still waits."
        assert (code, " ".join(screen.split()).endswith(said)) == (10, True), screen
        assert WRONG not in screen
        assert (at.state(proposal), at.decided(proposal), at.model.requests) == ("awaiting_approval", [], [])

        code, screen = at.typed("approve", proposal["pending_id"], answers=[(ASKS, "y"), (ASKS_PIN, PIN)])
        assert (code, PIN in screen) == (0, False), screen
        await at.succeeded(proposal)
        assert [(each["decision"], each["channel"]) for each in at.decided(proposal)] == [("approved", "terminal")]
        later = await at.propose("another one")
        assert "/ava approve P-" in later["next"], "the permission was only for that session"


async def test_asks_for_the_pin_once_for_all_proposals_and_never_for_a_rejection(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, pin=PIN) as at:
        one, rejected, other = [await at.propose(f"task number {number}") for number in range(3)]
        question = "start it? [y = yes, r = reject it, Enter = leave it waiting]"
        code, screen = at.typed(
            "approve",
            answers=[
                (ALL_WAITING, "o"),
                (f"1 of 3: {question}", "y"),
                (ASKS_PIN, PIN),
                (f"2 of 3: {question}", "r"),
                (f"3 of 3: {question}", "y"),
            ],
        )
        assert (code, screen.count(ASKS_PIN)) == (0, 1), screen
        await at.succeeded(one, other)
        assert at.state(rejected) == "rejected"
        by_model = await at.propose("the model may take it back")
        answer = await at.wire.tool("confirm_spawn", pending_ids=[by_model["pending_id"]], decision="reject")
        assert answer["status"] == "rejected"


async def test_five_wrong_pins_lock_both_approve_and_run(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, pin=PIN) as at:
        proposal = await at.propose()
        for _ in range(4):
            with pytest.raises(Refused):
                at.pin.check(WRONG)
        answers = [(ASKS, "y"), (ASKS_PIN, WRONG)]
        assert "it is now locked for 15 minutes" in at.typed("approve", proposal["pending_id"], answers=answers)[1]
        for words in (["approve"], ["approve", proposal["pending_id"]], ["run", "researcher", "x"]):
            code, screen = at.typed(*words)  # told before anything is asked
            assert (code, "The PIN is locked for 15 more min" in screen) == (10, True), screen
        assert (at.state(proposal), at.model.requests) == ("awaiting_approval", [])


async def test_does_not_accept_a_pin_from_a_pipe(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path) as at:

        def piped(*words: str) -> subprocess.CompletedProcess[str]:
            """A command with the PIN in its input, and no terminal that it could find."""
            return subprocess.run(
                [*COMMAND, *words], env=environment(at.root), input=f"{PIN}\n" * 3, capture_output=True, text=True,
                timeout=60, check=False, start_new_session=True,
            )  # fmt: skip

        proposal = await at.propose()
        done = piped("pin", "set")
        assert (done.returncode, at.pin.is_set) == (10, False)
        assert done.stderr == "ava: The approval PIN can only be typed at a terminal, and there is none here.\n"

        with at.terminal("pin", "set", command=PIPED) as screen:
            for _ in range(2):
                screen.until("(not shown): " if not _ else "once more (not shown): ")
                screen.type(f"{PIN}\n")
            assert screen.ended() == 0, screen.text
        at.pin.check(PIN)

        for words in (("pin", "change"), ("pin", "remove"), ("approve", proposal["pending_id"])):
            assert piped(*words).returncode == 10
        with at.terminal("approve", proposal["pending_id"], command=PIPED) as screen:
            assert screen.ended() == 10
        assert "There is no terminal to ask on" in screen.text
        at.pin.check(PIN)
        assert at.state(proposal) == "awaiting_approval"


@pytest.mark.parametrize(
    "words", [["approve", "{id}"], ["run", "researcher", "x"], ["pin", "remove"], ["pin", "change"]]
)
async def test_ctrl_c_at_the_pin_prompt_restores_the_echo_and_starts_nothing(tmp_path: Path, words: list[str]) -> None:
    async with open_terminal_server(tmp_path, pin=PIN) as at:
        proposal = await at.propose()
        with at.terminal(*(each.format(id=proposal["pending_id"]) for each in words), command=SHELL) as screen:
            if words[0] != "pin":
                screen.until(ASKS)
                screen.type("y\n")
            screen.until("(not shown): ")
            assert not screen.echoes
            screen.type(PIN[:3])
            screen.type("\x03")
            assert screen.ended() == (10 if words[0] == "run" else 130)  # there it is a no, as at its question
        assert "echo" in screen.text.split()
        assert PIN[:3] not in screen.text.split("(not shown): ")[1]
        assert (at.state(proposal), at.model.requests) == ("awaiting_approval", [])
        at.pin.check(PIN)
        if words[0] == "run":
            [_host, own] = read_log(at.root, "SpawnProposed")
            assert state_of(at.root, str(own.run_id)) == "rejected", "it does not wait on for somebody"


async def test_run_asks_for_the_pin_and_a_wrong_pin_rejects(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, pin=PIN) as at:
        done = ava(at.root, "run", "researcher", "x", "--yes", "--max-cost", "1")
        assert (done.returncode, "--yes: there is an approval PIN" in done.stderr) == (10, True)
        assert read_log(at.root, "SpawnProposed") == []

        code, screen = at.typed("run", "researcher", "x", answers=[(ASKS, "y"), (ASKS_PIN, WRONG)])
        assert (code, "That is not the PIN; 4 tries are left." in screen) == (10, True), screen
        decided = [each.content["decision"] for each in read_log(at.root, "SpawnDecided")]
        assert (decided, at.model.requests) == (["rejected"], [])

        code, screen = at.typed("run", "researcher", "x", answers=[(ASKS, "y"), (ASKS_PIN, PIN)])
        assert (code, "all is said" in screen) == (0, True), screen
        last: Logged = read_log(at.root, "SpawnDecided")[-1]
        assert (last.content["decision"], last.content["channel"]) == ("approved", "terminal")
        assert PIN not in screen


@pytest.mark.parametrize("long_ago", [False, True])
async def test_resume_asks_for_the_pin_before_anything_continues(tmp_path: Path, long_ago: bool) -> None:
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), submit()]) as model:
        async with open_lab(tmp_path, server=model, config=PRICED, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
            PinFile(lab.runtime.settings.paths.approval_file).set(PIN)
        root = tmp_path / "data"
        code = (
            "import sys, ava_server.runs.record.claims as c; c.TAKEOVER_WITHIN_US = 0; from ava_server.cli import run"
        )
        old = (*CONTROLLED[:4], sys.executable, "-c", f"{code}; run(sys.argv[1:])")  # too old to go on by itself
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        for pin, ends in ((WRONG, 10), (PIN, 0)):
            with run_on_terminal(root, "resume", run_id, env=env, command=old if long_ago else CONTROLLED) as screen:
                screen.until(ASKS_PIN)
                await anyio.sleep(2 * GRACE_S)  # a server takes up others' runs after so long, and no event tells
                assert len(model.requests) == 1
                screen.type(f"{pin}\n")
                assert screen.ended() == ends, screen.text
            assert state_of(root, run_id) == ("running" if ends else "success"), screen.text
        if long_ago:
            [resumed] = read_log(root, "RunResumed", run=run_id)
            assert resumed.content["channel"] == "terminal"
        assert ava(root, "resume", run_id).returncode == 10


async def test_model_text_cannot_control_the_terminal_of_the_approver(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m red \u202e over\nStart it? [y/N] y\nApproved."
    async with open_terminal_server(tmp_path) as at:
        proposal = await at.propose(evil, rationale=evil)
        code, screen = at.typed("approve", proposal["pending_id"], answers=[("Start it? [y/N] (more: m) ", "n")])
        screen = STYLES.sub("", screen)  # Ava's own bold and dim
        assert code == 10 and "owned" in screen, screen
        assert not any(steering in screen for steering in ("\x1b", "\x07", "\x9b", "\u202e"))
        assert not any(line.startswith(("Approved", "Start it? [y/N] y")) for line in screen.splitlines()), screen


async def test_changing_or_removing_the_pin_asks_for_the_old_one(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, pin=PIN) as at:
        new = "a longer one"
        for old, ends in ((WRONG, 10), (PIN, 0)):
            answers = [("Current approval PIN", old), ("New approval PIN (", new), ("once more", new)]
            code, screen = at.typed("pin", "change", answers=answers)
            assert (code, new in screen, old in screen) == (ends, False, False), screen
        at.pin.check(new)
        code, screen = at.typed("pin", "remove", answers=[(ASKS_PIN, PIN)])
        assert (code, at.pin.is_set) == (10, True)
        code, screen = at.typed("pin", "remove", answers=[(ASKS_PIN, new)])
        assert (code, at.pin.is_set) == (0, False)
        assert 'config.toml decides again who approves: approval = "ask".' in " ".join(screen.split())
        at.pin.set(PIN)
        config = at.root / "config.toml"
        config.write_text(f'{config.read_text()}\n[users.{os_user()}]\napproval = "human"\n')
        screen = at.typed("pin", "remove", answers=[(ASKS_PIN, PIN)])[1]
        assert f'[users.{os_user()}] approval = "human", so the next approval asks you to choose a new PIN' in " ".join(
            screen.split()
        )
        config.write_text(config.read_text().partition("\n[users.")[0])
        await anyio.sleep(2 * USERS_EVERY_S)  # the server may have read the user's table, and reads it so often
        proposal = await at.propose()
        assert "Started in the background" in await at.confirm(proposal)
        for command in ("change", "remove"):
            code, screen = at.typed("pin", command)
            assert (code, "Set one with `ava pin set`" in only_error(screen)) == (10, True)


async def test_with_policy_human_nothing_starts_until_a_pin_is_set(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, 'approval = "human"\n') as at:
        proposal = await at.propose()
        for again, says in (("", "No PIN was given"), (PIN[::-1], "The two are not the same")):
            answers = [(ASKS, "y"), ("New approval PIN (", PIN), ("once more", again)]
            code, screen = at.typed("approve", proposal["pending_id"], answers=answers)
            assert code == 10 and says in screen and "Nothing was started" in screen, screen
            assert at.state(proposal) == "awaiting_approval" and not at.pin.is_set
        at.pin.set(PIN)
        assert at.typed("approve", proposal["pending_id"], answers=[(ASKS, "y"), (ASKS_PIN, PIN)])[0] == 0
        await at.succeeded(proposal)


@pytest.mark.parametrize("words", [["approve"], ["reject"], ["pin", "set"], ["pin", "remove"]])
def test_a_subagent_process_cannot_decide_on_proposals(tmp_path: Path, words: list[str]) -> None:
    done = ava(tmp_path / "data", *words, env={"AVA_RUN_ID": "S-7f3a2b"})
    assert (done.returncode, "a subagent starts no subagents" in done.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


async def test_the_first_approval_for_a_host_that_shows_nothing_has_the_person_choose_a_pin(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, 'approval = "by_host"\n') as at:
        first, second = await at.propose("one"), await at.propose("two")
        answers = [(ASKS, "y"), ("New approval PIN (", PIN), ("once more", PIN)]
        code, screen = at.typed("approve", first["pending_id"], answers=answers)
        assert code == 0 and "There is no approval PIN yet" in screen and PIN not in screen, screen
        at.pin.check(PIN)
        code, screen = at.typed("approve", second["pending_id"], answers=[(ASKS, "y"), (ASKS_PIN, WRONG)])
        assert (code, at.state(second)) == (10, "awaiting_approval"), screen
        code, screen = at.typed("approve", second["pending_id"], answers=[(ASKS, "y"), (ASKS_PIN, PIN)])
        assert code == 0, screen
        await at.succeeded(first, second)
        assert [each["channel"] for each in at.decided(first)] == ["terminal"]


async def test_without_a_terminal_nobody_chooses_a_pin_and_nothing_starts(tmp_path: Path) -> None:
    async with open_terminal_server(tmp_path, 'approval = "by_host"\n') as at:
        proposal = await at.propose()
        typed = f"y\n{PIN}\n{PIN}\n".encode()
        for command in (["approve", proposal["pending_id"]], ["approve"], ["pin", "set"]):
            done = await anyio.run_process(
                [*COMMAND, *command], env=environment(at.root), input=typed, check=False, start_new_session=True
            )
            assert at.state(proposal) == "awaiting_approval" and not at.pin.is_set, done.stdout
