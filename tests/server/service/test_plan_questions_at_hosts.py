"""Several runs of a plan that ask the same, in a host's form: it opens once, and goes when the question is answered."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp_types import ElicitRequestFormParams, ElicitResult
from support.hosts.elicitation import ERAS, host
from support.runs.plan_questions import (
    QUESTION,
    STEPS,
    ask_and_hand_over,
    wait_for_questions,
)

from ava_audit.events import Answered, Asked, UserMessage
from ava_audit.store.store import Store


@pytest.mark.parametrize("era", ERAS)
async def test_a_host_asks_its_person_once_for_all_runs_of_a_plan(tmp_path: Path, era: str) -> None:
    def answers(asked: ElicitRequestFormParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"choice": "USD"} if QUESTION in asked.message else {})

    async with host(tmp_path, era, answers, ask_and_hand_over()) as at:
        made = await at.call("spawn_subagent", workspace=str(at.workspace), steps=STEPS)
        assert (await at.confirm(made))["status"] == "approved"
        await wait_for_questions(at, made["group_id"], 3)
        answer = await at.call("check_subagent", group_id=made["group_id"])
        assert "So do 2 other runs that asked the same." in answer["message"], answer
        with anyio.fail_after(30):
            while answer["status"] != "success":
                answer = await at.call("check_subagent", group_id=made["group_id"], wait_seconds=5)
        questions = [asked.message for asked in at.person.asked if QUESTION in asked.message]
        assert len(questions) == 1, "it was asked once"
        assert f"2 other runs of {made['group_id']} ask the same, and one answer goes to all: " in questions[0]
        async with Store.open(at.root) as store:
            rows = await store.read(lambda view: view.plan_runs(made["group_id"]))
        for row in rows:
            mine = {"subagent_id": row.id}
            [asked], [decided] = await at.facts(mine, Asked), await at.facts(mine, Answered)
            assert (decided.ask_id, decided.decision, decided.channel) == (asked.ask_id, "answered", "elicitation")
            assert [fact.text for fact in await at.facts(mine, UserMessage) if fact.kind == "answer"] == ["USD"]
            assert row.id == rows[0].id or row.id in questions[0] or rows[0].id in questions[0]


async def test_a_form_that_is_open_is_withdrawn_when_another_run_of_the_plan_is_answered(tmp_path: Path) -> None:
    async with host(
        tmp_path, "legacy", lambda _asked: ElicitResult(action="accept", content={}), ask_and_hand_over()
    ) as at:
        made = await at.call("spawn_subagent", workspace=str(at.workspace), steps=STEPS)
        await at.confirm(made)
        rows = await wait_for_questions(at, made["group_id"], 3)

        async def elsewhere(asked: ElicitRequestFormParams) -> ElicitResult:
            assert QUESTION in asked.message
            await at.call("message_subagent", subagent_id=rows[-1].id, message="EUR")
            await anyio.sleep_forever()
            raise AssertionError

        at.person.answers = elsewhere
        answer = await at.call("check_subagent", group_id=made["group_id"])
        assert "was answered already" in answer["message"], answer
        with anyio.fail_after(30):
            while answer["status"] != "success":
                answer = await at.call("check_subagent", group_id=made["group_id"], wait_seconds=5)
        assert sum(QUESTION in asked.message for asked in at.person.asked) == 1
