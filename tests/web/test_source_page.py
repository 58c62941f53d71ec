"""The page of a finding's source: what was read, with the quote marked, as plain text for those who may see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.model_server import Say
from support.pages.browser import open_pages
from support.pages.lab_pages import serve_lab_pages
from support.pages.watched_page import watch_page
from support.runtime import hand_over, open_lab, submit

from ava_audit.retention import erase_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUOTE = "The lamp is lit at dusk"
EVIL = "<script>window.hacked = 1</script><img src='https://evil.example/a.png'> [a](https://evil.example) \u202egnirts"
TEXT = "\n".join([EVIL, *(f"Line {number} of the book." for number in range(2, 400)), f"{QUOTE} <b>by him</b>.", EVIL])
READS = Say(calls=[("read_file", {"path": "lamp & co.md", "offset": 300})])
FINDING = {"claim": "At dusk", "quote": QUOTE, "source_url": "lamp & co.md:399"}
MISSING = {"claim": "At dawn", "quote": "The lamp is lit at dawn, every day", "source_url": "javascript:alert(1)"}


async def test_it_shows_the_marked_text_escaped_and_404_or_409_for_what_there_is_not(tmp_path: Path) -> None:
    script = [READS, submit(findings=[FINDING, MISSING])]
    async with open_lab(tmp_path, script, check=False) as lab, serve_lab_pages(lab) as browser:
        (lab.workspace / "lamp & co.md").write_text(TEXT)
        run_id = await lab.start()
        await lab.ended(run_id)
        run = (await browser.get(f"/subagents/{run_id}")).text
        assert f'<a class="opens" href="/subagents/{run_id}/sources/1#quote">' in run
        page = (await browser.get(f"/subagents/{run_id}/sources/1")).text
        assert f'<mark id="quote">{QUOTE}</mark> &lt;b&gt;by him&lt;/b&gt;.\n&lt;script&gt;' in page
        assert "<script>window" not in page and "<img" not in page and "\u202e" not in page
        assert "evil.example</a>" not in page and "The file is the same now." in page
        assert "lamp &amp; co.md" in page and "line 400" in page
        other = (await browser.get(f"/subagents/{run_id}/sources/2")).text
        assert "Nothing that the run read is of this source" in other and "<mark" not in other
        assert "javascript:" not in "".join(part.partition(">")[0] for part in other.split("<a ")[1:])
        for number in ("0", "3", "x", "-1", "1" * 30):
            assert (await browser.get(f"/subagents/{run_id}/sources/{number}")).status_code == 404, number
        await erase_run(lab.store, run_id, (), lab.session.who, "asked for")
        erased = await browser.get(f"/subagents/{run_id}/sources/1")
        assert erased.status_code == 409 and "was erased" in erased.text and QUOTE not in erased.text


def script(asked: dict[str, Any]) -> Say:
    read = any(each["role"] == "tool" for each in asked["messages"])
    return hand_over(findings=[FINDING]) if read else READS


@pytest.mark.slow
@pytest.mark.requirement("N-17")
def test_a_click_on_a_finding_shows_its_quote_on_the_screen_and_loads_nothing(
    chromium: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "lamp & co.md").write_text(TEXT)
    with open_pages(tmp_path / "data", "", script) as there:
        proposed = there.host.propose(workspace=str(folder))
        person = there.signed_in()
        assert person.decide(proposed["pending_id"], "approve").status_code == 303
        assert there.host.ended(proposed["subagent_id"])["status"] == "success"
        cookie = (f"ava-{there.server.port}", person.cookie)
        for options in ({"viewport": {"width": 390, "height": 700}}, {"java_script_enabled": False}):
            with watch_page(chromium, there.base, cookie, **options) as seen:
                page = seen.open(f"/subagents/{proposed['subagent_id']}")
                page.click("a.opens")
                mark = page.locator("mark")
                assert mark.inner_text() == QUOTE
                box, size = mark.bounding_box(), page.viewport_size
                assert box is not None and size is not None and 0 <= box["y"] < size["height"], "it is on the screen"
                where = page.locator(".where")
                above = where.bounding_box()
                assert " ".join(where.inner_text().split()) == "lamp & co.md, line 400 The file is the same now."
                assert above is not None and 0 <= above["y"] < box["y"], "and so is where it stands"
                assert page.locator("main script, main img, main a[href*='evil']").count() == 0
                if "viewport" in options:
                    assert page.evaluate("document.documentElement.scrollWidth") <= 390
                    seen.assert_clean()
                assert not seen.foreign and not seen.dialogs
        (folder / "lamp & co.md").write_text("Another book.")
        changed = person.get(f"/subagents/{proposed['subagent_id']}/sources/1").text
        assert "The file has changed since it was read." in changed
