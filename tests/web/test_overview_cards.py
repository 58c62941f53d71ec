"""The cards of what waits on the first page: what each offers, and that its buttons do what they say."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from support.hosts.extensions import CAP, keep_noting
from support.model_server import Say
from support.pages.lab_pages import Browser, serve_lab_pages
from support.runtime import PRICED, hand_over, open_lab, submit

from ava_audit.events import Answered, SpawnDecided, UserMessage
from ava_server.web.deciding import NO_SEARCH

QUESTION = "In which currency?"
OPTIONS = ["EUR", "US <b>dollars"]


async def cards(browser: Browser) -> list[str]:
    """Return the cards of the first page."""
    page = (await browser.get("/")).text
    return re.findall(r'<li>(?:(?!<li>).)*?<div class="choose">.*?</li>', page, re.DOTALL)


def buttons(card: str) -> list[str]:
    """Return the words of the links and buttons with which a card can be decided."""
    shown = re.findall(r'<(?:a class="button[^>]*|button[^>]*)>(.*?)</(?:a|button)>', card)
    return [unescape(words) for words in shown]


async def test_a_proposal_is_approved_where_all_of_it_stands_and_declined_at_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        made = await lab.propose()
        [card] = await cards(browser)
        assert buttons(card) == ["Look and approve", "Reject"]
        assert made.subagent_id in card, "the list calls it so"
        assert f'href="/proposals/{made.pending_id}">Look and approve' in card
        assert 'value="approve"' not in card, "nothing is approved without a look at everything"
        page = (await browser.get(f"/proposals/{made.pending_id}")).text
        assert 'value="approve"' in page and ">Reject</button>" in page
        assert "<dt>How long</dt>" in page and "<dt>How much</dt>" not in page, "the price stands above"
        assert "reach the web" in page and "without web_search" in page and page.count(NO_SEARCH) == 1
        answer = await browser.send("/", "/proposals", decision="reject")
        assert answer.headers["location"] == "/?done=rejected", answer.text
        after = (await browser.get(answer.headers["location"])).text
        assert "Rejected. It cannot start any more." in after and made.pending_id not in after
        [decided] = await lab.facts(made.subagent_id, SpawnDecided)
        assert (decided.decision, decided.channel) == ("rejected", "browser")


async def test_a_card_takes_the_sessions_own_token_and_leads_to_no_other_site(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        made = await lab.propose()
        for wrong in ("", "0" * 64):
            answer = await browser.send("/", "/proposals", decision="reject", csrf=wrong)
            assert answer.status_code == 409 and "does not come from this page" in answer.text
            assert not await lab.facts(made.subagent_id, SpawnDecided)
        elsewhere = await browser.send("/", "/proposals", decision="reject", back="https://evil.example/")
        assert elsewhere.headers["location"] == f"/subagents/{made.subagent_id}?done=rejected"


async def test_each_option_of_a_question_is_a_button_on_the_card_and_on_the_run(tmp_path: Path) -> None:
    asked = {"question": QUESTION, "options": OPTIONS}
    script = [Say(calls=[("ask", asked)]), hand_over()]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        [card] = await cards(browser)
        assert buttons(card) == [*OPTIONS, "Other answer"]
        question, _, rest = card.partition("Not from your task, in the options: ")
        mark, _, choices = rest.partition("Choosing an option")
        assert QUESTION in question and "EUR" not in question, "an option stands on its button alone"
        assert mark.count("EUR") == 1 and choices.count("EUR") == 2, "and is marked once: no approved text has it"
        page = (await browser.get(f"/subagents/{run_id}")).text.partition('id="decide"')[2].partition("</section>")[0]
        assert [unescape(words) for words in re.findall(r'name="option"[^>]*>(.*?)</button>', page)] == OPTIONS
        answer = await browser.send("/", f"/subagents/{run_id}/message", option=OPTIONS[1])
        assert answer.headers["location"] == "/?done=sent", answer.text
        await lab.ended(run_id)
        answers = [said.text for said in await lab.facts(run_id, UserMessage) if said.kind == "answer"]
        assert answers == [OPTIONS[1]]


async def test_a_question_in_words_is_answered_on_the_page_of_the_run(tmp_path: Path) -> None:
    script = [Say(calls=[("ask", {"question": QUESTION})]), submit()]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        [card] = await cards(browser)
        assert buttons(card) == ["Answer"] and "<form" not in card, "what is being written would be swapped away"
        page = (await browser.get(f"/subagents/{run_id}")).text
        assert page.index(QUESTION) < page.index('name="message"') < page.index('id="figures"') < page.index("<meter")
        parts = (await browser.get(f"/subagents/{run_id}/head", part=True)).text
        assert parts.index('id="live"') < parts.index('hx-select-oob="#figures"') < parts.index('<div id="figures"')
        rows = (await browser.get("/subagents")).text
        assert re.search(r'<small class="when">started <time', rows), "it has started"
        await lab.call("message_subagent", subagent_id=run_id, message="In euros.")
        await lab.ended(run_id)


async def test_a_request_for_more_is_declined_on_the_card_and_raised_on_its_page(tmp_path: Path) -> None:
    async with open_lab(tmp_path, keep_noting, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        lab.session.channel = "terminal"
        run_id = await lab.start(**CAP)
        lab.session.channel = "host_call"
        await lab.logged(run_id, "Asked")
        [card] = await cards(browser)
        assert buttons(card) == ["Look and raise the cap", "Decline: it hands in what it has"]
        assert 'value="approve"' not in card
        answer = await browser.send("/", f"/subagents/{run_id}/extension", decision="decline")
        assert answer.headers["location"] == "/?done=declined", answer.text
        await lab.ended(run_id)
        [decided] = await lab.facts(run_id, Answered)
        assert (decided.decision, decided.channel) == ("declined", "browser")


async def test_a_plan_is_called_by_its_name_and_steps(tmp_path: Path) -> None:
    steps = [
        {"id": "find", "role": "researcher", "task": "List the contracts."},
        {"id": "write", "role": "researcher", "task": "Write one page from {{find}}"},
    ]
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        unnamed = await lab.call("spawn_subagent", steps=steps)
        named = await lab.call("spawn_subagent", steps=steps, name="Contracts")
        overview = unescape((await browser.get("/")).text)
        assert 'Plan of 2 steps: "find", "write"' in overview
        assert 'Plan "Contracts", 2 steps: "find", "write"' in overview and "List the contracts." not in overview
        page = unescape((await browser.get(f"/subagents/{named.group_id}")).text)
        assert '<h1 class="task" dir="auto">Plan "Contracts", 2 steps: "find", "write"</h1>' in page
        listed = unescape((await browser.get("/subagents")).text)
        assert listed.count('2 steps: "find", "write"') == 2 and unnamed.group_id in listed


async def test_several_cards_are_marked_for_one_look_together(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        both = [await lab.propose(task=f"Number {number}") for number in (1, 2)]
        page = (await browser.get("/")).text
        assert '<form method="get" action="/proposals" id="together">' in page
        for made in both:
            mark = re.search(rf'<input type="checkbox" name="id" value="{made.pending_id}"[^>]*>', page)
            assert mark is not None and 'form="together"' in mark[0] and "hx-preserve" in mark[0]
        forms = re.findall(r"<form.*?</form>", page, re.DOTALL)
        assert not any("<form" in form[5:] for form in forms), "no form is inside another"
