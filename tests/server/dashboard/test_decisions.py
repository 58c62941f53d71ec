"""Decisions in the dashboard of `ava status`: shown whole, asked for, and checked as in `ava approve`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from support.commands.dashboard import live_app, run_detail, screen, wait_until_hidden, wait_until_shown
from support.foreign.origins import ALL, EVIL, mails_of, send_mail, start_guest
from support.foreign.origins import config as origins
from support.foreign.servers import write_role
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Gate, Say
from support.runtime import PRICED, Lab, hand_over, open_lab, wait_for
from textual import events

from ava_audit.events import Answered, SpawnDecided, UserMessage
from ava_server.cli.service_client import Approvals
from ava_server.config.pin import PinFile
from ava_server.dashboard.app import StatusApp
from ava_server.dashboard.screens import QuestionScreen
from ava_server.runs.asking.extension import extension_limits
from ava_server.runs.asking.pending_questions import decide_question
from ava_server.runs.asking.question_kinds import Decider
from ava_server.service.access import Access

if TYPE_CHECKING:
    from textual.pilot import Pilot

PIN = "a-long-pin-4711"
NO_WORKER = "background = false\n"
ASKED = ("ask", {"question": "Which currency is meant?", "options": ["EUR", "USD"]})


# -- proposals --------------------------------------------------------------------------------------------------------


async def test_a_shows_the_whole_proposal_and_starts_it_after_a_yes(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N] (more: m)")
        await pilot.press("m", "enter")
        await wait_until_hidden(app, "(more: m)")
        text = " ".join(" ".join(await wait_until_shown(app, "In one line:")).split())
        for line in (*proposal.message.split("\n")[1:], proposal.approval_line):
            assert " ".join(line.split()) in text, line
        assert '"What does it cost?"' in text
        assert await decision(lab, proposal) is None
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Approved. It has started.")
        assert await decision(lab, proposal) == ("approved", "terminal")
        assert (await lab.ended(proposal.subagent_id)).state == "success"


async def test_what_was_folded_at_the_approval_is_on_record_with_what_was_on_the_screen(tmp_path: Path) -> None:
    long_task = " ".join(f"word{number}" for number in range(200))
    async with proposed(tmp_path, task=long_task, height=40) as (lab, proposal, app, pilot):
        await pilot.press("a")
        lines = await wait_until_shown(app, "Start it? [y/N] (more: m)")
        assert lines[1].startswith("At most $0.50") and "word199" not in "\n".join(lines)
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Approved. It has started.")
        [decided] = await lab.facts(proposal.subagent_id, SpawnDecided)
        said = await lab.facts(proposal.subagent_id, UserMessage)
        folded = decided.folded or ""
        assert folded.startswith(f"task, {len(long_task) - 300:,} characters more; ")
        [screen] = [message.screen for message in said if message.kind == "decision"]
        assert screen is not None and "At most $0.50" in screen and "word199" not in screen


async def test_nothing_was_folded_where_a_person_unfolded_it_first(tmp_path: Path) -> None:
    async with proposed(tmp_path, height=40) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "(more: m)")
        await pilot.press("m", "enter")
        await wait_until_hidden(app, "(more: m)")
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Approved. It has started.")
        [decided] = await lab.facts(proposal.subagent_id, SpawnDecided)
        assert decided.folded is None


async def test_keys_typed_before_the_rest_was_shown_do_not_approve_it(tmp_path: Path) -> None:
    async with proposed(tmp_path, height=60) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "(more: m)")
        early = [events.Key("y", "y"), events.Key("enter", "\r")]
        await pilot.press("m", "enter")
        await wait_until_hidden(app, "(more: m)")
        for key in early:
            app.post_message(key)
        await pilot.pause()
        assert isinstance(app.screen, QuestionScreen)
        assert await decision(lab, proposal) is None
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Approved. It has started.")


@pytest.mark.parametrize("keys", [["enter"], ["n", "enter"], ["escape"], ["a", "enter"], ["y", "y", "enter"], ["y"]])
async def test_anything_but_a_clear_yes_leaves_the_proposal_waiting(tmp_path: Path, keys: list[str]) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        await pilot.press(*keys)
        if keys != ["y"]:
            await wait_until_shown(app, "Nothing was approved; it still waits.")
        assert await decision(lab, proposal) is None
        await pilot.press("escape")


async def test_keys_typed_before_the_question_was_drawn_do_not_answer_it(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        early = [events.Key("y", "y"), events.Key("enter", "\r")]
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        for key in early:
            app.post_message(key)
        await pilot.pause()
        assert isinstance(app.screen, QuestionScreen)
        assert app.screen._input.value == ""  # pyright: ignore[reportPrivateUsage]
        assert await decision(lab, proposal) is None


async def test_a_long_proposal_counts_only_once_its_end_was_on_the_screen(tmp_path: Path) -> None:
    long_task = " ".join(f"word{number}" for number in range(80))
    async with proposed(tmp_path, width=60, height=12, task=long_task, rationale="It is needed. " * 15) as (
        lab, proposal, app, pilot,
    ):  # fmt: skip
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Read it to its end first")
        assert await decision(lab, proposal) is None
        for _ in range(10):
            await pilot.press("pagedown")
        assert "It takes about" not in "\n".join(screen(app)[1:3])
        await pilot.press("enter")
        await wait_until_shown(app, "Approved.")
        assert await decision(lab, proposal) == ("approved", "terminal")


async def test_nothing_is_decided_on_a_terminal_too_small_to_read_it(tmp_path: Path) -> None:
    async with proposed(tmp_path, width=30, height=6) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it?")
        for _ in range(40):
            await pilot.press("pagedown")
        await pilot.press("y", "enter")
        await wait_until_shown(app, "Make the terminal larger")
        assert await decision(lab, proposal) is None


@pytest.mark.parametrize("other", ["approve", "reject"])
async def test_a_question_whose_proposal_is_decided_elsewhere_withdraws_itself(tmp_path: Path, other: str) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        await lab.call(
            "confirm_spawn", pending_ids=[proposal.pending_id], decision=other,
            **({"approving": [proposal.approval_line]} if other == "approve" else {}),
        )  # fmt: skip
        await wait_until_shown(app, f"{proposal.pending_id} was")
        assert not isinstance(app.screen, QuestionScreen) and "still waits" not in app.said[0]
        assert len(await lab.facts(proposal.subagent_id, SpawnDecided)) == 1


async def test_a_proposal_that_differs_from_what_was_shown_is_refused(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        asked: Any = app.screen
        shown = asked._decision.shown
        for changed in ({"digest": "0" * 64}, {"line": "free"}, {"text": "Something harmless."}):
            asked._decision = replace(asked._decision, shown=replace(shown, **changed))
            await pilot.press("y", "enter")
            await wait_until_shown(app, "has changed since it was shown; look at it again.")
            assert await decision(lab, proposal) is None


async def test_r_rejects_a_proposal_after_a_yes(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("r")
        await wait_until_shown(app, "Reject it? [y/N]")
        assert await decision(lab, proposal) is None
        await pilot.press("y", "enter")
        await wait_until_shown(app, f"{proposal.pending_id} is rejected.")
        assert await decision(lab, proposal) == ("rejected", "terminal")


async def test_an_expired_proposal_is_not_offered(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (_lab, proposal, app, pilot):
        now = time.time_ns() // 1000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ava_server.service.decision_requests.now_us", lambda: now + 10**10)
            await pilot.press("a")
            await wait_until_shown(app, f"{proposal.pending_id} has expired; ask your host to propose it again.")


# -- who may decide ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_under_the_policy_human_only_the_right_pin_starts_it_and_the_pin_is_never_shown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=NO_WORKER + PRICED) as lab:
        pin_of(lab).set(PIN)
        proposal = await lab.propose()
        async with live_app(lab, 100, 30) as (app, pilot):
            await pilot.press("a")
            await wait_until_shown(app, "Start it? [y/N]")
            await pilot.press("y", "enter")
            await wait_until_shown(app, "Approval PIN (not shown):")
            await pilot.press(*"wrong-pin", "enter")
            await wait_until_shown(app, "That is not the PIN; 4 tries are left.")
            assert await decision(lab, proposal) is None
            await pilot.press(*PIN)
            assert PIN not in "\n".join(screen(app)) and "••••" in "\n".join(screen(app))
            await pilot.press("enter")
            await wait_until_shown(app, "Approved. It has started.")
        assert await decision(lab, proposal) == ("approved", "terminal")
        await lab.ended(proposal.subagent_id)
        assert not any(
            PIN in str(entry.content)
            for entry in await lab.store.read(lambda view: [*view.entries(proposal.subagent_id)])
        )


async def test_a_locked_pin_is_said_before_any_question(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=NO_WORKER + PRICED) as lab:
        pin_of(lab).set(PIN)
        await lab.propose()
        for _ in range(5):
            with pytest.raises(Exception, match="not the PIN"):
                pin_of(lab).check("another-pin")
        async with live_app(lab, 100, 30) as (app, pilot):
            await pilot.press("a")
            await wait_until_shown(app, "locked")
            assert not isinstance(app.screen, QuestionScreen)


async def test_a_pin_that_was_set_while_the_question_was_open_is_asked_for(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        pin_of(lab).set(PIN)
        await pilot.press("y", "enter")
        await wait_until_shown(app, "An approval PIN has been set meanwhile")
        assert await decision(lab, proposal) is None
        await pilot.press("escape", "a")
        await wait_until_shown(app, "Start it? [y/N]")
        await pilot.press("y", "enter", *PIN, "enter")
        await wait_until_shown(app, "Approved.")
        await lab.ended(proposal.subagent_id)


@pytest.mark.parametrize("key", ["a", "r", "c", "s"])
async def test_a_subagent_decides_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        monkeypatch.setenv("AVA_RUN_ID", "S-000001")
        await pilot.press(key)
        await wait_until_shown(app, "ava " + {"a": "approve", "r": "reject", "c": "cancel", "s": "send"}[key])
        assert not isinstance(app.screen, QuestionScreen)
        assert await decision(lab, proposal) is None


async def test_another_users_run_is_shown_with_all_and_not_decided_on(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=NO_WORKER + PRICED) as lab:
        proposal = await lab.propose()
        async with live_app(lab, 100, 30, everybody=True) as (app, pilot):
            app.reader.user = "another"
            for key in "arc":
                await pilot.press(key)
                await wait_until_shown(app, f"belongs to {lab.session.user}; only that user decides about it.")
        assert await decision(lab, proposal) is None


# -- a run near a cap -------------------------------------------------------------------------------------------------


async def near_its_cap(lab: Lab) -> str:
    """Start a run that a person has approved and that asks for more."""
    lab.session.channel = "terminal"
    run_id = await lab.start(**CAP)
    lab.session.channel = "host_call"
    await lab.logged(run_id, "Asked", within_s=60)
    return run_id


async def test_a_allows_a_run_near_its_cap_more_after_a_yes_and_r_declines(tmp_path: Path) -> None:
    for key, question, outcome, decided in (
        ("a", "Raise the cap?", "it continues", "approved"),
        ("r", "Decline it, so that the run hands in what it has?", "wraps up", "declined"),
    ):
        (tmp_path / key).mkdir()
        async with open_lab(tmp_path / key, keep_noting, config=NO_WORKER + PRICED, check=False) as lab:
            run_id = await near_its_cap(lab)
            async with live_app(lab, 100, 30) as (app, pilot):
                await wait_until_shown(app, "asks for more")
                await pilot.press(key)
                await wait_until_shown(app, question)
                await wait_until_shown(app, "is near its cost cap of $0.20")
                assert await lab.facts(run_id, Answered) == []
                await pilot.press("y", "enter")
                await wait_until_shown(app, outcome)
            [fact] = await lab.facts(run_id, Answered)
            assert (fact.decision, fact.channel) == (decided, "terminal")
            await lab.ended(run_id)
            whats = [one.what for one in (await run_detail(lab, run_id)).decided]
            assert whats == ["Approved", f"Request for more {decided}"], "the screen of a run has both decisions"


async def test_a_changed_request_for_more_is_refused(tmp_path: Path) -> None:
    async with open_lab(tmp_path, keep_noting, config=NO_WORKER + PRICED, check=False) as lab:
        run_id = await near_its_cap(lab)
        async with live_app(lab, 100, 30) as (app, pilot):
            await wait_until_shown(app, "asks for more")
            await pilot.press("a")
            await wait_until_shown(app, "Raise the cap?")
            asked: Any = app.screen
            changed = replace(asked._decision.shown, digest="0" * 64)
            asked._decision = replace(asked._decision, shown=changed)
            await pilot.press("y", "enter")
            await wait_until_shown(app, "has changed since it was shown")
            assert await lab.facts(run_id, Answered) == []
        await lab.call("cancel_subagent", subagent_id=run_id)


# -- messages, questions and cancelling -------------------------------------------------------------------------------


def asks(request: dict[str, Any]) -> Say:
    tools = [each["content"] for each in request["messages"] if each["role"] == "tool"]
    return hand_over(output=" | ".join(tools)) if tools else Say(calls=[ASKED])


async def test_s_answers_the_question_of_a_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, asks, config=NO_WORKER + PRICED) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        async with live_app(lab, 100, 30) as (app, pilot):
            await wait_until_shown(app, 'It asks: "Which currency is meant?"; s answers it')
            await pilot.press("s")
            for words in ("│ Which currency is meant?", "│ 1. EUR", "give no passwords or keys"):
                await wait_until_shown(app, words)
            await pilot.press("enter")
            await wait_until_shown(app, "Nothing is typed yet.")
            await pilot.press(*"EUR", "space", *"quite", "enter")
            await wait_until_shown(app, "has the answer to its question and continues.")
        [fact] = await lab.facts(run_id, Answered)
        assert (fact.decision, fact.channel) == ("answered", "terminal")
        await lab.ended(run_id)
        assert "EUR quite" in str((await lab.result(run_id))["untrusted_result"]["output"])


async def test_an_answer_to_a_question_that_is_gone_is_refused_and_stays_typed(tmp_path: Path) -> None:
    async with open_lab(tmp_path, asks, config=NO_WORKER + PRICED) as lab:
        run_id = await lab.start()
        entry = await lab.logged(run_id, "Asked")
        async with live_app(lab, 100, 30) as (app, pilot):
            await pilot.press("s")
            await wait_until_shown(app, "Answer (1, 2, or words):")
            access, fact = Access(lab.runtime, lab.session), entry.fact
            assert fact is not None
            row, who = await lab.run(run_id), lab.session.who
            question_id = fact.model_dump()["ask_id"]
            by = Decider(who, access.agent_of(row), "host_call", extension_limits(lab.runtime.settings, who.user_id))
            assert (await lab.store.do(decide_question(run_id, question_id, "USD", by))).status == "answered"
            await pilot.press(*"EUR", "enter")
            lines = await wait_until_shown(app, "was answered already, by a call of the host at")
            assert "EUR" in lines, "what was typed is not lost"
            access.wake(run_id)
        await lab.ended(run_id)
        said = [fact.text for fact in await lab.facts(run_id, UserMessage) if fact.kind in ("answer", "message")]
        assert said == ["USD"]


async def test_a_yes_to_a_call_takes_the_pin_and_a_no_does_not(tmp_path: Path) -> None:
    write_role(tmp_path / "data", ALL)
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL), send_mail("ann@example.net")])
    async with open_lab(tmp_path, lambda _request: next(steps, hand_over()), config=NO_WORKER + origins()) as lab:
        run_id = await start_guest(lab)
        await lab.logged(run_id, "Asked")
        pin_of(lab).set(PIN)
        async with live_app(lab, 120, 40) as (app, pilot):
            await wait_until_shown(app, "It asks")
            await pilot.press("s")
            await wait_until_shown(app, EVIL)
            await pilot.press(*"yes", "enter")
            await wait_until_shown(app, "Approval PIN (not shown):")
            await pilot.press(*"wrong-pin", "enter")
            await wait_until_shown(app, "That is not the PIN; 4 tries are left.")
            assert await lab.facts(run_id, Answered) == []
            await pilot.press(*PIN, "enter")
            await wait_until_shown(app, "has the answer to its question and continues.")
            await lab.logged(run_id, "Asked", 2)
            await wait_until_shown(app, "It asks")
            await pilot.press("s")
            await wait_until_shown(app, "ann@example.net")
            await pilot.press(*"no", "enter")
            await lab.logged(run_id, "Answered", 2)  # the words on the screen may be those about the first
        assert [each.success for each in await mails_of(lab, run_id)] == [True, False]


async def test_s_sends_a_message_and_c_cancels_after_a_yes(tmp_path: Path) -> None:
    gate = Gate(60)
    async with open_lab(tmp_path, [Say("so", gate=gate)], config=NO_WORKER + PRICED, check=False) as lab:
        run_id = await lab.start(task="Goes on")
        await wait_for(gate.arrived)
        async with live_app(lab, 100, 30) as (app, pilot):
            await pilot.press("s")
            await wait_until_shown(app, "reads the message before its next turn")
            await pilot.press(*"quick", "enter")
            await wait_until_shown(app, "reads it before its next turn. It may steer the work; limits and tools stay.")
            assert [fact.text for fact in await lab.facts(run_id, UserMessage) if fact.kind == "message"] == ["quick"]
            await pilot.press("c")
            await wait_until_shown(app, "Cancel it? [y/N]")
            await pilot.press("n", "enter")
            await wait_until_shown(app, "Nothing was cancelled.")
            assert (await lab.run(run_id)).state == "running"
            await pilot.press("enter")
            await wait_until_shown(app, "Steps: turn")
            await pilot.press("c")
            await wait_until_shown(app, "What it has so far is kept as its result.")
            await pilot.press("y", "enter")
            await wait_until_shown(app, "has ended: cancelled.")
            await wait_until_hidden(app, "Cancel it?")
            await pilot.press("c")
            await wait_until_shown(app, "has ended (cancelled).")
        assert (await lab.run(run_id)).state == "cancelled"
        gate.released.set()


async def test_c_withdraws_a_proposal(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("c")
        await wait_until_shown(app, "Withdraw it? [y/N]")
        await pilot.press("y", "enter")
        await wait_until_shown(app, "has ended: cancelled.")
        assert (await lab.run(proposal.subagent_id)).state == "cancelled"


@pytest.mark.slow
async def test_a_key_that_does_not_fit_the_run_says_why(tmp_path: Path) -> None:
    async with proposed(tmp_path) as (_lab, _proposal, app, pilot):
        await pilot.press("s")
        await wait_until_shown(app, "waits for approval; to change it, cancel it and propose it again.")
        await pilot.press("slash", "z", "z", "enter", "a")
        await wait_until_shown(app, "No run is selected.")


# -- leaving while something is decided -------------------------------------------------------------------------------


async def test_q_waits_for_a_decision_that_is_being_carried_out_and_esc_leaves_it_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Approvals.describe_start

    go_on = anyio.Event()

    async def slower(*args: Any, **more: Any) -> str:
        await go_on.wait()
        return await slow(*args, **more)

    monkeypatch.setattr(Approvals, "describe_start", slower)
    async with proposed(tmp_path) as (lab, proposal, app, pilot):
        await pilot.press("a")
        await wait_until_shown(app, "Start it? [y/N]")
        await pilot.press("y", "enter")
        await wait_until_shown(app, "One moment …")
        await pilot.press("escape")
        await wait_until_shown(app, "still being carried out …")
        await pilot.press("c")
        await wait_until_shown(app, f"One moment: Approve {proposal.pending_id} is still being carried out.")
        await pilot.press("q")
        await wait_until_shown(app, "It ends when this is done")
        go_on.set()
        while app.is_running:
            await pilot.pause(0.05)
        assert app.return_value == 0 and app.in_flight is None
        assert await decision(lab, proposal) == ("approved", "terminal")
        await lab.ended(proposal.subagent_id)


@asynccontextmanager
async def proposed(
    tmp: Path, *, config: str = "", width: int = 100, height: int = 30, **more: Any
) -> AsyncGenerator[tuple[Lab, Any, StatusApp, Pilot[int]]]:
    """A proposal that waits, and the screen that shows it."""
    async with open_lab(tmp, [hand_over()], config=NO_WORKER + config + PRICED) as lab:
        proposal = await lab.propose(**more)
        async with live_app(lab, width, height) as (app, pilot):
            yield lab, proposal, app, pilot


def pin_of(lab: Lab) -> PinFile:
    return PinFile(lab.runtime.settings.paths.approval_file)


async def decision(lab: Lab, proposal: Any) -> tuple[str, str | None] | None:
    """What was decided on a proposal, and over which channel."""
    found = await lab.facts(proposal.subagent_id, SpawnDecided)
    return (found[-1].decision, found[-1].channel) if found else None
