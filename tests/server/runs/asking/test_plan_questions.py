"""Several runs of a plan that ask a person the same: the person sees it once, and one answer is recorded for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_server import Gate
from support.pages.lab_pages import serve_lab_pages
from support.runs.plan_questions import (
    IDS,
    QUESTION,
    ask_and_hand_over,
    logged_answers,
    rows_that_ask,
    start_plan,
)
from support.runtime import PRICED, open_lab

from ava_audit.events import Asked, Channel
from ava_audit.units import now_us
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.render.run_view import view_run
from ava_server.runs.asking.pending_questions import pending_question
from ava_server.service.access import Access, Session
from ava_server.service.event_hook import _events  # pyright: ignore[reportPrivateUsage]
from ava_server.service.run_tasks import RunTasks
from ava_server.service.service import Service, decide


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
