"""A run asks the person a question, waits for the answer without its clock, and goes on with it or without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Raw, Say, Step, whole_answer
from support.runs.questions import ASK, ask_and_hand_over, question_config, result_output, start_until_asked
from support.runtime import PRICED, hand_over, open_lab
from support.terminal import ava

from ava_audit.events import Answered, Asked, Channel, ToolCall, ToolResult, UserMessage
from ava_server.runs.asking.question_kinds import chosen_option
from ava_server.service.access import Session
from ava_server.service.service import Service

# -- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-14")
@pytest.mark.parametrize(
    ("channel", "who"),
    [("host_call", "The orchestrator answers; whether the person said so is not known"), ("terminal", "The person")],
)
async def test_a_message_answers_the_question_and_the_run_goes_on_with_it(
    tmp_path: Path, channel: Channel, who: str
) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        run_id = await start_until_asked(lab)
        row = await lab.run(run_id)
        assert (row.state, row.instance, row.in_flight) == ("queued", None, None)
        answering = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel=channel))

        async def ignore(_line: str) -> None:
            pass

        told = await answering.call("message_subagent", {"subagent_id": run_id, "message": "EUR, please"}, ignore)
        assert told.message is not None and "has the answer to its question and continues" in told.message
        assert (await result_output(lab, run_id)).startswith(f"{who}")
        assert (await result_output(lab, run_id)).endswith("changes no limit:\nEUR, please")
        [asked], [decided] = await lab.facts(run_id, Asked), await lab.facts(run_id, Answered)
        assert (decided.ask_id, decided.decision, decided.channel) == (asked.ask_id, "answered", channel)
        assert [each.text for each in await lab.facts(run_id, UserMessage) if each.kind == "answer"] == ["EUR, please"]
        [call] = [each for each in await lab.facts(run_id, ToolCall) if each.tool == "ask"]
        assert call.args == ASK[1] and call.call_id == asked.call_id
        assert await lab.claim_reasons(run_id) == ["start", "resume"]
        assert (await lab.run(run_id)).asked is None


async def test_a_message_of_a_command_without_a_terminal_is_not_taken_for_the_persons(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        run_id = await start_until_asked(lab)
        root = lab.runtime.settings.data_root
        sent = await anyio.to_thread.run_sync(ava, root, "send", run_id, "EUR")  # as a host's model does in its shell
        assert sent.returncode == 0, sent.stderr
        assert (await result_output(lab, run_id)).startswith("The orchestrator answers")
        assert [each.channel for each in await lab.facts(run_id, Answered)] == ["host_call"]


async def test_its_clock_stops_its_slot_is_free_and_a_second_message_is_no_answer(tmp_path: Path) -> None:
    config = f"{PRICED}\n[limits]\nrunning_per_user = 1\n"
    async with open_lab(tmp_path, ask_and_hand_over(), config=config) as lab:
        run_id = await start_until_asked(lab, timeout=30)
        before = (await lab.run(run_id)).active_us
        other = await start_until_asked(lab, task="Another one")  # it has the only slot now
        assert (await lab.run(run_id)).active_us == before > 0
        for text in ("EUR", "and quickly"):
            await lab.call("message_subagent", subagent_id=run_id, message=text)
        await lab.ended(run_id)
        kinds = [each.kind for each in await lab.facts(run_id, UserMessage) if each.kind != "decision"]
        assert kinds == ["task", "answer", "message"]
        await lab.call("cancel_subagent", subagent_id=other)
        assert (await lab.run(other)).state == "cancelled" and (await lab.run(other)).asked is None


@pytest.mark.requirement("N-14")
async def test_without_an_answer_it_goes_on_and_is_told(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=question_config(1)) as lab:
        run_id = await start_until_asked(lab)
        assert "Nobody has answered. Go on with what is most likely meant" in await result_output(lab, run_id)
        assert await lab.facts(run_id, Answered) == []
        late = await lab.call("message_subagent", subagent_id=run_id, message="EUR")
        assert late.status == "failed"


@pytest.mark.requirement("N-14")
async def test_only_one_question_by_default_and_the_rest_are_refused(tmp_path: Path) -> None:
    second = ("ask", {"question": "And which year?"})
    async with open_lab(tmp_path, ask_and_hand_over(ASK, second), config=PRICED) as lab:
        run_id = await start_until_asked(lab)
        await lab.call("message_subagent", subagent_id=run_id, message="EUR")
        text = await result_output(lab, run_id)
        assert "EUR |" in text and "a run may ask 1 question, and you have" in text
        assert len(await lab.facts(run_id, Asked)) == 1


async def test_each_question_is_asked_where_the_provider_gives_every_call_the_same_id(tmp_path: Path) -> None:
    role(tmp_path, questions="2", tools="read_file")
    questions = ("Which currency is meant?", "May I delete the folder?", "And what else?")

    def script(request: dict[str, Any]) -> Step:
        told = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        if len(told) == len(questions):
            return hand_over(output=" | ".join(told))
        asked = whole_answer(Say(calls=[("ask", {"question": questions[len(told)]})]))
        return Raw([json.dumps(asked).encode()], content_type="application/json")

    async with open_lab(tmp_path, script, config=PRICED) as lab:
        proposal = await lab.propose(role="asker")
        await lab.approve(proposal)
        for number, text in enumerate(("EUR", "no"), 1):
            await lab.logged(proposal.subagent_id, "Asked", number)
            [run] = (await lab.call("check_subagent", subagent_id=proposal.subagent_id)).runs
            assert run.untrusted_question == questions[number - 1]
            await lab.call("message_subagent", subagent_id=proposal.subagent_id, message=text)
        first, second, third = (await result_output(lab, proposal.subagent_id)).split(" | ")
        assert first.endswith("\nEUR") and second.endswith("\nno")
        assert "a run may ask 2 questions, and you have" in third


def role(tmp: Path, **keys: str) -> None:
    (tmp / "data" / "roles").mkdir(parents=True)
    lines = "".join(f"{key}: {value}\n" for key, value in keys.items())
    (tmp / "data" / "roles" / "asker.md").write_text(f"---\ndescription: Asks.\n{lines}---\nBe brief.\n")


async def test_a_role_may_allow_more_questions_and_the_proposal_says_so(tmp_path: Path) -> None:
    role(tmp_path, questions="2", tools="read_file")
    async with open_lab(
        tmp_path, ask_and_hand_over(ASK, ("ask", {"question": "And which year?"})), config=PRICED
    ) as lab:
        proposal = await lab.propose(role="asker")
        assert "It may ask you up to 2 questions." in proposal.message
        await lab.approve(proposal)
        for number, text in enumerate(("EUR", "2025"), 1):
            await lab.logged(proposal.subagent_id, "Asked", number)
            await lab.call("message_subagent", subagent_id=proposal.subagent_id, message=text)
        text = await result_output(lab, proposal.subagent_id)
        assert text.index("EUR") < text.index("2025")


@pytest.mark.parametrize("how", ["the role", "the settings", "the call"])
async def test_a_run_without_questions_has_no_tool_to_ask(tmp_path: Path, how: str) -> None:
    role(tmp_path, tools="read_file", **({"questions": "0"} if how == "the role" else {}))
    async with open_lab(
        tmp_path, ask_and_hand_over(), config=question_config(0 if how == "the settings" else 600)
    ) as lab:
        more = {"blocked_tools": ["ask"]} if how == "the call" else {}
        proposal = await lab.propose(role="asker", **more)
        assert "ask" not in proposal.tools
        await lab.approve(proposal)
        assert "there is no tool" in await result_output(lab, proposal.subagent_id)


async def test_other_calls_of_the_same_answer_are_done_first_and_once(tmp_path: Path) -> None:
    script = ask_and_hand_over(
        ASK, ("scratchpad", {"note": "first"}), ("save_artifact", {"name": "a.txt", "content": "x"})
    )
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await start_until_asked(lab)
        done = [each.tool for each in await lab.facts(run_id, ToolResult)]
        assert sorted(done) == ["save_artifact", "scratchpad"]
        await lab.call("message_subagent", subagent_id=run_id, message="EUR")
        await lab.ended(run_id)
        calls = [each.tool for each in await lab.facts(run_id, ToolCall) if each.call_id is not None]
        assert sorted(calls) == ["ask", "save_artifact", "scratchpad"]


async def test_a_plan_without_time_to_wait_refuses_the_question(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        one, two = await lab.propose(), await lab.propose(task="Another")
        line = (await lab.approve(one, two, group_timeout=50)).approval_lines[-1]
        assert (await lab.approve(one, two, last=line, group_timeout=50)).status == "approved"
        assert "no time is left to wait" in await result_output(lab, one.subagent_id)


async def test_a_run_with_hardly_any_time_left_does_not_ask(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        run_id = await lab.start(timeout=12)  # less than ten seconds of it are for work
        assert "no time is left to wait" in await result_output(lab, run_id)
        assert await lab.facts(run_id, Asked) == []


async def test_an_answer_with_a_key_is_refused_and_the_question_stays(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        run_id = await start_until_asked(lab)
        key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
        refused = await lab.call("message_subagent", subagent_id=run_id, message=f"Use {key}")
        assert refused.status == "failed" and "looks like a key" in refused.message and key not in refused.message
        assert (await lab.run(run_id)).asked is not None


@pytest.mark.parametrize(
    ("typed", "options", "answer"),
    [
        ("2", ["EUR", "USD"], "USD"),
        ("USD", ["EUR", "USD"], "USD"),
        ("3", ["EUR", "USD"], "3"),
        ("in euros", ["EUR", "USD"], "in euros"),
        ("2", ["3", "2", "1"], "2"),
        ("a", ["3", "2", "1"], "3"),
        ("1", [], "1"),
        ("1", ["2 weeks", "1 week"], "1"),
        ("b", ["2 weeks", "1 week"], "1 week"),
        ("eur ", ["USD", "EUR"], "EUR"),
        ("B", ["b", "1"], "b"),
        ("c", ["b", "1"], "1"),
        ("us", ["us", "US"], "us"),
        ("Us", ["us", "US"], "Us"),
    ],
)
def test_the_key_of_an_option_stands_for_it_and_never_for_another(typed: str, options: list[str], answer: str) -> None:
    assert chosen_option(typed, options) == answer
