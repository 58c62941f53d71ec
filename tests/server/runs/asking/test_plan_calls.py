"""Calls of the runs of a plan that send something: each is asked about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.foreign.origins import ALL, EVIL, SEND, send_mail
from support.foreign.origins import config as origins
from support.foreign.servers import write_role
from support.model_server import Say, Step
from support.runs.plan_questions import (
    IDS,
    logged_answers,
    rows_that_ask,
    start_plan,
)
from support.runtime import hand_over, open_lab

from ava_audit.events import Asked
from ava_audit.units import now_us
from ava_server.approval.decide import PersonAnswer
from ava_server.runs.asking.pending_questions import OpenQuestions
from ava_server.service.access import Session
from ava_server.service.service import Service, decide


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
