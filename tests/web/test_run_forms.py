"""What a person can do on the page of a run: cancel it, write to it, answer it, allow it more, and resume it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import pytest
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Gate, Say, run_model_server
from support.pages.lab_pages import Browser, serve_lab_pages
from support.runtime import PRICED, Lab, hand_over, open_lab, submit, wait_for

from ava_audit.events import Answered, CancelRequested, RunResumed, UserMessage
from ava_server.config.pin import PinFile
from ava_server.config.settings import UserSettings
from ava_server.config.sign_in import BrowserSessions
from ava_server.runs.record import claims

QUESTION = "In which currency?"
ASKS = [Say(calls=[("ask", {"question": QUESTION})]), submit("in euros")]
PIN = "48 21 07"


def set_pin(lab: Lab) -> None:
    PinFile(lab.runtime.settings.paths.approval_file).set(PIN)


async def decide_part(browser: Browser, run_id: str) -> str:
    return (await browser.get(f"/subagents/{run_id}/decide", part=True)).text


async def test_a_run_is_cancelled_with_a_reason(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([Say("slow", gate=gate)]) as server:
        async with (
            open_lab(tmp_path, server=server, config=PRICED, check=False) as lab,
            serve_lab_pages(lab) as browser,
        ):
            run_id = await lab.start()
            await wait_for(gate.arrived)
            page = f"/subagents/{run_id}"
            form = (await browser.get(page)).text.partition("<summary>Cancel it</summary>")[2]
            assert f'action="{page}/cancel"' in form.partition("</details>")[0], "it is confirmed without a script"
            answer = await browser.send(page, f"{page}/cancel", reason="not needed <b>")
            assert answer.headers["location"] == f"{page}?done=cancelled"
            await lab.ended(run_id)
            [asked] = await lab.facts(run_id, CancelRequested)
            assert (asked.by, asked.reason) == ("person", "not needed <b>")
            after = (await browser.get(page)).text
            assert "Ended as cancelled" in after and "/cancel" not in after and "not needed &lt;b&gt;" in after


async def test_a_message_reaches_a_run_and_stays_out_of_what_is_swapped(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        page = f"/subagents/{run_id}"
        text = (await browser.get(page)).text
        swapped = re.findall(r'<(?:div|section) id="(?:live|decide|result)".*?</(?:div|section)>', text, re.DOTALL)
        assert len(swapped) == 3 and not any("<textarea" in part for part in swapped)
        answer = await browser.send(page, f"{page}/message", message="Look at the second page too.")
        assert answer.headers["location"] == f"{page}?done=sent"
        assert "Look at the second page too." in [each.text for each in await lab.facts(run_id, UserMessage)]
        shown = (await browser.get(answer.headers["location"])).text
        assert "Sent. The run reads it" in shown and "Message to the subagent" in shown


async def test_the_answer_to_a_question_counts_for_that_question_only(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ASKS, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        page = f"/subagents/{run_id}"
        shown = (await browser.get(page)).text
        assert QUESTION in shown and "It waits for your answer:" in shown
        other = await browser.post(
            f"{page}/message",
            {"csrf": shown.partition('csrf" value="')[2].partition('"')[0], "question": "{}", "message": "x"},
        )
        assert other.status_code == 409 and "has changed since it was shown" in other.text
        answer = await browser.send(page, f"{page}/message", message="In euros.")
        assert answer.status_code == 303, answer.text
        await lab.ended(run_id)
        [decided] = await lab.facts(run_id, Answered)
        assert (decided.decision, decided.channel) == ("answered", "browser")


async def test_an_option_of_a_question_is_a_button(tmp_path: Path) -> None:
    asked = {"question": QUESTION, "options": ["EUR", "US <b>dollars"]}
    async with (
        open_lab(tmp_path, [Say(calls=[("ask", asked)]), hand_over()], config=PRICED) as lab,
        serve_lab_pages(lab) as browser,
    ):
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        page = f"/subagents/{run_id}"
        assert 'name="option" value="US &lt;b&gt;dollars"' in (await browser.get(page)).text
        answer = await browser.send(page, f"{page}/message", option="US <b>dollars", message="Not cents.")
        assert answer.status_code == 303, answer.text
        await lab.ended(run_id)
        answers = [said.text for said in await lab.facts(run_id, UserMessage) if said.kind == "answer"]
        assert answers == ["US <b>dollars\nNot cents."]


async def test_a_form_is_swapped_only_when_it_is_about_something_else(tmp_path: Path) -> None:
    async with open_lab(tmp_path, ASKS, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        part = await decide_part(browser, run_id)
        again = re.search(r'hx-get="([^"]+)"', part)
        assert again is not None and "It asks you" in part
        assert (await browser.get(again[1], part=True)).status_code == 204
        await lab.call("message_subagent", subagent_id=run_id, message="In euros.")
        await lab.ended(run_id)
        after = await browser.get(again[1], part=True)
        assert after.status_code == 200 and "It asks you" not in after.text and "hx-get" not in after.text


@pytest.mark.parametrize("pin", [False, True])
async def test_a_cap_is_raised_with_what_an_approval_takes(tmp_path: Path, pin: bool) -> None:
    async with open_lab(tmp_path, keep_noting, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        lab.session.channel = "terminal"
        run_id = await lab.start(**CAP)
        lab.session.channel = "host_call"
        await lab.logged(run_id, "Asked")
        if pin:
            set_pin(lab)
        page, action = f"/subagents/{run_id}", f"/subagents/{run_id}/extension"
        shown = (await browser.get(page)).text
        assert "is near its cost cap" in shown and ("Approval PIN" in shown) is pin
        overview = (await browser.get("/")).text
        assert "It is near a cap and asks for more" in overview and "It asks you" not in overview
        assert "hands in what it has" in overview
        if pin:
            for wrong in ({}, {"pin": "00 00 00"}):
                refused = await browser.send(page, action, decision="approve", **wrong)
                assert refused.status_code == 409 and not await lab.facts(run_id, Answered)
        proof = {"pin": PIN} if pin else {}
        answer = await browser.send(page, action, decision="approve", **proof)
        assert answer.headers["location"] == f"{page}?done=raised", answer.text
        await lab.ended(run_id)
        [decided] = await lab.facts(run_id, Answered)
        assert (decided.decision, decided.channel) == ("approved", "browser") and decided.changes
        after = (await browser.get(page)).text
        assert "Request for more approved by a person in the browser" in after


@asynccontextmanager
async def interrupted(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Lab, str]]:
    """A lab with a run whose owner is gone, and that only a person resumes."""
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over(), hand_over()]) as server:
        async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
            yield lab, run_id


async def test_an_interrupted_run_is_resumed_as_it_was_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with interrupted(tmp_path, monkeypatch) as (lab, run_id), serve_lab_pages(lab) as browser:
        set_pin(lab)
        page, action = f"/subagents/{run_id}", f"/subagents/{run_id}/resume"
        assert "A person has to resume it" in (await browser.get(page)).text
        refused = await browser.send(page, action)
        assert refused.status_code == 409 and "Enter the approval PIN" in refused.text
        other = await browser.send(page, action, pin=PIN, line="researcher, something else, resumed")
        assert other.status_code == 409 and not await lab.facts(run_id, RunResumed)
        answer = await browser.send(page, action, pin=PIN)
        assert answer.headers["location"] == f"{page}?done=resumed", answer.text
        assert (await lab.ended(run_id)).state == "success"
        [resumed] = await lab.facts(run_id, RunResumed)
        assert resumed.channel == "browser"
        again = await browser.post(action, {**await csrf(browser), "pin": PIN, "line": "x"})
        assert again.status_code == 409 and "Not resumed: " in again.text, "it does not wait to be resumed"


async def test_a_session_of_a_program_resumes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with interrupted(tmp_path, monkeypatch) as (lab, run_id), serve_lab_pages(lab, terminal=False) as browser:
        part = await decide_part(browser, run_id)
        assert "was not opened from a terminal" in part and "<form" not in part
        line = re.search(r'<p class="line" dir="auto">([^<]*)</p>', part)
        assert line is not None
        refused = await browser.post(f"/subagents/{run_id}/resume", {**await csrf(browser), "line": line[1]})
        assert refused.status_code == 409 and not await lab.facts(run_id, RunResumed)


async def test_resuming_another_users_run_takes_what_that_users_policy_demands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with interrupted(tmp_path, monkeypatch) as (lab, run_id), serve_lab_pages(lab, owned=True) as browser:
        paths = lab.runtime.settings.paths
        eve = BrowserSessions(paths.browser_sessions).issue_code("eve", terminal=True)
        assert (await browser.get(f"/enter?code={eve}")).status_code == 303
        assert '<form method="post"' in await decide_part(browser, run_id), "under ask, the owner's session is enough"
        lab.runtime.settings.users[lab.runtime.user] = UserSettings(approval="human")
        part = await decide_part(browser, run_id)
        assert "Choose your approval PIN" in part
        line = re.search(r'<p class="line" dir="auto">([^<]*)</p>', part)
        assert line is not None
        fields = {**await csrf(browser), "line": unescape(line[1])}
        refused = await browser.post(f"/subagents/{run_id}/resume", fields)
        assert refused.status_code == 409 and "Choose an approval PIN" in refused.text
        assert not await lab.facts(run_id, RunResumed)
        set_pin(lab)
        answer = await browser.post(f"/subagents/{run_id}/resume", {**fields, "pin": PIN})
        assert answer.status_code == 303 and await lab.facts(run_id, RunResumed), answer.text


async def csrf(browser: Browser) -> dict[str, str]:
    return {"csrf": (await browser.get("/")).text.partition('name="csrf" value="')[2].partition('"')[0]}
