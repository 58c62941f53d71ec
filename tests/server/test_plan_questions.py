"""Several runs of a plan that ask a person the same: the person sees it once, and one answer is recorded for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitRequestFormParams, ElicitResult
from support.foreign.origins import ALL, EVIL, SEND, send_mail
from support.foreign.origins import config as origins
from support.foreign.servers import write_role
from support.hosts.elicitation import ERAS, host
from support.model_server import Gate, Say, Step
from support.pages.lab_pages import serve_lab_pages
from support.runs.plan_questions import (
    IDS,
    QUESTION,
    STEPS,
    ask_and_hand_over,
    logged_answers,
    rows_that_ask,
    start_plan,
    wait_for_questions,
)
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import Answered, Asked, Channel, UserMessage
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.render.run_view import view_run
from ava_server.runs.pending_questions import OpenQuestions, pending_question
from ava_server.service.access import Access, Session
from ava_server.service.event_hook import _events  # pyright: ignore[reportPrivateUsage]
from ava_server.service.run_tasks import RunTasks
from ava_server.service.service import Service, decide


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


@pytest.mark.parametrize("channel", ["terminal", "host_call"])
async def test_one_answer_over_any_channel_is_the_answer_of_each(tmp_path: Path, channel: Channel) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        plan_id = await start_plan(lab)
        rows = await rows_that_ask(lab, plan_id, 3)
        service = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel=channel))
        shown = await lab.store.read(lambda view: pending_question(view, rows[1], now_us()))
        assert shown is not None and {other.run_id for other in shown.others} == {rows[0].id, rows[2].id}
        assert all(row.id in shown.message for row in rows) and not shown.first
        done = await decide(service, [Shown("answer", rows[1].id, shown.id)], PersonAnswer(True, "EUR"))
        assert done.text.endswith("So do 2 other runs that asked the same.")
        assert (await lab.ended(plan_id)).state == "success"
        for row in rows:
            [(_ask_id, decision, by)] = await logged_answers(lab, row.id)
            assert (decision, by) == ("answered", channel)
            assert str((await lab.result(row.id))["untrusted_result"]["output"]).endswith("EUR")
        assert len({(await logged_answers(lab, row.id))[0][0] for row in rows}) == 3, "each has its own entry"


async def test_a_no_is_a_no_of_each(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        plan_id = await start_plan(lab)
        rows = await rows_that_ask(lab, plan_id, 3)
        service = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel="terminal"))
        [asked] = await lab.facts(rows[0].id, Asked)
        await decide(service, [Shown("answer", rows[0].id, asked.ask_id)], PersonAnswer(False))
        await lab.ended(plan_id)
        for row in rows:
            assert [decision for _ask_id, decision, _by in await logged_answers(lab, row.id)] == ["declined"]


async def test_lists_tasks_and_events_have_it_once_and_a_page_answers_all(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        start = lab.store.head
        plan_id = await start_plan(lab)
        rows = await rows_that_ask(lab, plan_id, 3)
        overview = (await browser.get("/")).text
        assert overview.count(QUESTION) == 1 and f"2 other runs of {plan_id} ask the same" in overview
        listed = await lab.call("check_subagent")
        assert [run.subagent_id for run in listed.runs if run.untrusted_question] == [rows[0].id]
        assert sum("asks the person a question" in notice for notice in (await lab.call("read_ava_logs")).notices) == 1
        task = await RunTasks(Access(lab.runtime, lab.session)).task(plan_id, asks=True)
        [(key, form)] = task.questions.items()
        assert key == (await lab.facts(rows[0].id, Asked))[0].ask_id and f"2 other runs of {plan_id}" in form.text
        events = await lab.store.read(_events(start, lab.store.head))
        assert [event["subagent_id"] for event, _in_ava in events if "question_id" in event] == [rows[0].id]
        page = f"/subagents/{rows[2].id}"
        assert f"2 other runs of {plan_id} ask the same" in (await browser.get(page)).text
        assert (await browser.send(page, f"{page}/message", message="In euros.")).status_code == 303
        assert (await lab.ended(plan_id)).state == "success"
        for row in rows:
            assert [by for _ask_id, _decision, by in await logged_answers(lab, row.id)] == ["browser"]
        assert QUESTION not in (await browser.get("/")).text


async def test_a_run_that_asks_later_joins_what_is_open(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, ask_and_hand_over(gate=gate), config=PRICED) as lab:
        plan_id = await start_plan(lab)
        rows = await rows_that_ask(lab, plan_id, 2)
        service = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel="terminal"))
        shown = await lab.store.read(lambda view: pending_question(view, rows[0], now_us()))
        assert shown is not None and shown.also.startswith("Another run of ")
        gate.released.set()
        rows = await rows_that_ask(lab, plan_id, 3)
        await decide(service, [shown.shown], PersonAnswer(True, "EUR"))
        await lab.ended(plan_id)
        for row in rows:
            assert len(await logged_answers(lab, row.id)) == 1


async def test_other_questions_of_the_plan_are_asked_by_themselves(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over("two"), config=PRICED) as lab:
        plan_id = await start_plan(lab)
        rows = {row.step: row for row in await rows_that_ask(lab, plan_id, 3)}
        shown = await lab.store.read(
            lambda view: view_run(view, view.run(plan_id), lab.runtime.instances, now_us()).questions  # type: ignore[arg-type]
        )
        assert sorted(len(one.others) for one in shown) == [0, 1]
        await lab.call("message_subagent", subagent_id=rows["one"].id, message="EUR")
        assert [row.id for row in await rows_that_ask(lab, plan_id, 1)] == [rows["two"].id]
        assert await logged_answers(lab, rows["two"].id) == []
        await lab.call("message_subagent", subagent_id=rows["two"].id, message="2025")
        await lab.ended(plan_id)
        assert [len(await logged_answers(lab, row.id)) for row in rows.values()] == [1, 1, 1]


async def test_single_runs_that_ask_the_same_are_asked_one_by_one(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ask_and_hand_over(), config=PRICED) as lab:
        first, second = [await lab.start(task=f"Find the price of the {name} item.") for name in IDS[:2]]
        for run_id in (first, second):
            await lab.logged(run_id, "Asked")
        await lab.call("message_subagent", subagent_id=first, message="EUR")
        assert (await lab.run(second)).asked is not None and await logged_answers(lab, second) == []


async def test_a_call_that_sends_something_is_asked_for_each_run(tmp_path: Path) -> None:
    write_role(tmp_path / "data", ALL)
    steps = [{"id": name, "role": "guest", "task": "Write to bob@example.org about lunch."} for name in IDS[:2]]

    def script(request: dict[str, Any]) -> Step:
        calls = sum(each["role"] == "tool" for each in request["messages"])
        return (Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL), hand_over())[min(calls, 2)]

    async with open_lab(tmp_path, script, config=origins()) as lab:
        plan_id = await start_plan(lab, steps)
        first, second = await rows_that_ask(lab, plan_id, 2)
        found = await lab.store.read(lambda view: OpenQuestions(view, now_us()).once([first, second]))
        assert [one.others for one in found] == [(), ()] and found[0].text == found[1].text
        service = Service(lab.runtime, Session(user=lab.session.user, transport="memory", channel="terminal"))
        await decide(service, [found[0].shown], PersonAnswer(True, "yes"))
        assert (await lab.ended(first.id)).state == "success"
        assert (await lab.run(second.id)).asked is not None and await logged_answers(lab, second.id) == []
        await decide(service, [found[1].shown], PersonAnswer(True, "no"))
        await lab.ended(plan_id)
        assert SEND in json.dumps([fact.model_dump() for fact in await lab.facts(first.id, Asked)])
        decided = [decision for row in (first, second) for _ask, decision, _by in await logged_answers(lab, row.id)]
        assert decided == ["answered", "declined"]
