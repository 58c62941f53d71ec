"""Texts of models and strangers on the pages: they are only text, in every place where a page shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from support.model_server import Say, Step
from support.pages.browser import There, open_pages
from support.pages.hostile_texts import LONG_LINE, TEXTS
from support.pages.watched_page import watch_page
from support.runtime import hand_over
from support.stdio import read_log

from ava_server.render.result import UntrustedText
from ava_server.web.context import environment, finalize

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NUMBER = re.compile(r"TEXT (\d+)\b")


def text_of(asked: dict[str, Any]) -> str:
    number = int(_NUMBER.findall(json.dumps([each for each in asked["messages"] if each["role"] == "user"]))[0])
    return (*TEXTS, LONG_LINE)[number]


def script(asked: dict[str, Any]) -> Step:
    """Write the text into a note, and then into every field of a result; every tenth run asks it first."""
    text = text_of(asked)
    results = [each for each in asked["messages"] if each["role"] == "tool"]
    if not results:
        return Say(f"I think {text[:3_000]}", [("scratchpad", {"note": text[:5_000]})], reasoning=text[:3_000])
    if len(results) == 1 and text in TEXTS[::10]:
        return Say(calls=[("ask", {"question": text[:300], "options": [text[:50], "other"]})])
    finding = {"claim": text[:900], "source": f"https://evil.example/{text[:200]}", "quote": text[:200]}
    return replace(hand_over(output=text, summary=text[:900], findings=[finding]), fragment=50_000)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("here") / "data", "", script) as there:
        yield there


def test_there_are_enough_different_texts() -> None:
    assert len(set(TEXTS)) == len(TEXTS) >= 60


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_template_escapes_it(text: str) -> None:
    template = environment().from_string("<p title=\"{{ text }}\">{{ text }}</p><p title='{{ text }}'></p>")
    found = Parts(template.render(text=UntrustedText(text)))
    assert found.tags == [("p", [("title", finalize(text))])] * 2
    assert template.render(text=text) == template.render(text=UntrustedText(text)), "nor can a template forget it"
    assert "".join(found.texts) == finalize(text)
    assert not re.search("[\x00-\x08\x1b\u200b\u202a-\u202e\u2066-\u2069]", finalize(text))


class Parts(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def proposed(there: There, numbers: list[int]) -> dict[int, dict[str, Any]]:
    """Propose a run for each text; a few are refused, because their task cannot be shown to a person."""
    found: dict[int, dict[str, Any]] = {}
    for number in numbers:
        text = TEXTS[number] if number < len(TEXTS) else LONG_LINE
        try:
            found[number] = there.host.propose(task=f"TEXT {number} {text[:3_000]}", timeout=300)
        except AssertionError:
            found[number] = there.host.propose(task=f"TEXT {number}", timeout=300)
    return found


@pytest.mark.slow
@pytest.mark.requirement("N-17")
def test_no_text_runs_loads_or_hides_anything(chromium: Browser, here: There) -> None:
    everything = proposed(here, list(range(len(TEXTS) + 1)))
    person = here.signed_in()
    with watch_page(chromium, here.base, (f"ava-{here.server.port}", person.cookie)) as seen:
        page = seen.open("/")
        assert page.locator(".waiting li").count() == len(everything)
        for made in everything.values():
            page = seen.open(f"/proposals/{made['pending_id']}")
            assert page.locator("button").count() == 3, "approve, reject, sign out: no other button"
            assert page.locator("main form").count() == 1 and page.locator("h1").inner_text() == "Start it?"
            assert person.decide(made["pending_id"], "approve").status_code == 303
        page = seen.open("/")
        asking = [number for number in everything if number < len(TEXTS) and number % 10 == 0]
        for number in asking:
            run_id = everything[number]["subagent_id"]
            here.until(lambda run_id=run_id: read_log(here.root, "Asked", run=run_id), within_s=60)
            seen.open(f"/subagents/{run_id}")
            sent = person.post(f"/subagents/{run_id}/message", {"csrf": person.csrf, "message": TEXTS[number][:2_000]})
            assert sent.status_code in (303, 400, 409)
            if sent.status_code != 303:
                person.post(f"/subagents/{run_id}/cancel", {"csrf": person.csrf})
        for made in everything.values():
            here.host.ended(made["subagent_id"])
            page = seen.open(f"/subagents/{made['subagent_id']}")
            assert page.locator("header nav a").count() == 5 and page.locator("main").count() == 1
            assert page.locator("iframe, object, embed, img, style, base, main script, main meta").count() == 0
            assert page.locator("main a[href^='javascript:'], main a[href^='data:'], [onerror], [onload]").count() == 0
            assert page.locator("main a[href*='evil.example']:not([rel~='noreferrer'])").count() == 0
        for path in ("/", "/subagents", "/costs", "/costs/approvals", "/events", "/events?q=script", "/health"):
            seen.open(path)
        page.wait_for_timeout(300)
        seen.assert_clean(but="the server responded with a status of 404")
        assert page.evaluate("document.title") != "", "it still has its own title"
