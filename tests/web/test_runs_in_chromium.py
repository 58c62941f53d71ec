"""A long run, the lists and the costs in a real browser: what fits on a screen, and what works without a script."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.http_server import token
from support.model_server import Say
from support.pages.browser import PAID, There, open_pages, open_team
from support.pages.watched_page import open_window, watch_page
from support.stdio import read_log

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow
TURNS = 40
COUNT = itertools.count(1)
"""The turns of the long run."""
SCREEN = 900
TASK = "Compare the notice periods. " * 140
ARABIC = "ما هي رسوم الدفع لكل مزود؟"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("long") / "data", PAID, script) as there:
        yield there


@pytest.fixture(scope="module")
def long(there: There) -> str:
    """The id of a run of forty turns."""
    folder = there.root.parent / "notes"
    folder.mkdir()
    for number in range(TURNS):
        (folder / f"c{number}.md").write_text(f"Contract {number}: six months.\n")
    caps = {"max_iterations": 60, "max_tool_calls": 80, "max_cost_cents": 500}
    return approved(there, task="Long work", workspace=str(folder), **caps)


@pytest.mark.parametrize("width", [1280, 1920])
def test_forty_turns_fit_on_two_screens_and_the_result_on_the_first(
    chromium: Browser, there: There, long: str, width: int
) -> None:
    with open_window(chromium, there, viewport={"width": width, "height": SCREEN}) as seen:
        page = seen.open(f"/subagents/{long}")
        assert place_of(page, "#result .written") < SCREEN / 2
        turns = page.locator(".timeline .step").count()
        assert turns == TURNS + 1 and page.locator(".timeline > .step").count() == TURNS - 2, "three are one row"
        assert height_of(page, ".timeline") <= 2 * SCREEN
        seen.assert_clean()


def test_the_waterfall_goes_on_to_the_right_and_opens_without_a_script(
    chromium: Browser, there: There, long: str
) -> None:
    with open_window(chromium, there, java_script_enabled=False) as seen:
        page = seen.open(f"/subagents/{long}")
        models = page.locator(".timeline > .step > details > summary svg.flow rect.model")
        boxes = [box for box in (models.nth(place).bounding_box() for place in range(models.count())) if box]
        assert len(boxes) == TURNS and all(box["width"] >= 0.5 for box in boxes)
        lefts = [box["x"] for box in boxes]
        assert lefts == sorted(lefts) and lefts[-1] > lefts[0] + 50
        line = page.locator(".timeline > .step", has_text="Turns 7 to 9")
        assert "read_file" in line.inner_text() and line.locator("summary").first.locator(".failed").count() == 1
        assert not page.locator("text=missing.md does not exist").nth(1).is_visible()
        line.locator("summary").first.click()
        inner = line.locator(".step").first
        inner.locator("summary").first.click()
        assert inner.locator("p", has_text="missing.md does not exist").first.is_visible()


def test_a_running_runs_lines_keep_one_scale(chromium: Browser, there: There) -> None:
    proposed = there.host.propose(task="Shall I?")
    there.signed_in().decide(proposed["pending_id"], "approve")
    run_id = proposed["subagent_id"]
    there.until(lambda: read_log(there.root, "Asked", run=run_id))
    with open_window(chromium, there) as seen:
        page = seen.open(f"/subagents/{run_id}")
        page.wait_for_selector(".timeline > .step")
        page.fill("#decide textarea", "Yes")
        page.click("button:has-text('Answer')")
        page.wait_for_selector(".timeline > .step >> nth=1")
        scales = page.eval_on_selector_all(".timeline svg.flow", "all => all.map(each => each.viewBox.baseVal.width)")
        assert len(scales) >= 2 and len(set(scales)) == 1
        seen.assert_clean()


def test_the_list_is_sorted_and_filtered_without_a_script(chromium: Browser, there: There, long: str) -> None:
    other = approved(there, task="A small thing")
    with open_window(chromium, there, java_script_enabled=False) as seen:
        page = seen.open("/subagents")
        page.click("nav.heads >> text=Cost")
        first = page.locator("ul.runs > li a").first.get_attribute("href")
        assert first == f"/subagents/{long}" and "order=cost" in page.url
        page.click("nav.heads >> text=When")
        page.click("nav[aria-label=States] >> text=Ended")
        assert f"/subagents/{other}" in page.content()
        page.click("nav[aria-label=States] >> text=Failed")
        assert page.locator("ul.runs").count() == 0 and "No subagent fits" in page.inner_text("main")
        seen.assert_clean()


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_row_of_the_list_is_one_line(chromium: Browser, there: There, long: str, width: int) -> None:
    there.host.propose(task=TASK)
    there.host.propose(task=ARABIC)
    with open_window(chromium, there, viewport={"width": width, "height": SCREEN}) as seen:
        page = seen.open("/subagents")
        rows = page.locator("ul.runs > li")
        heights = [box["height"] for box in (rows.nth(at).bounding_box() for at in range(rows.count())) if box]
        assert heights and max(heights) <= 30
        assert place_of(page, "ul.runs") + 30 * max(heights) <= SCREEN + 10, "thirty rows are on a screen"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_pages_have_no_barriers_and_none_scrolls_to_the_side(
    chromium: Browser, there: There, long: str, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    paths = ("/", "/subagents?order=cost", f"/subagents/{long}", "/costs", "/events?q=read_file", "/health")
    with open_window(chromium, there, color_scheme=scheme, viewport={"width": width, "height": SCREEN}) as seen:
        for path in paths:
            page = seen.open(path)
            for summary in page.locator("main summary").all()[:6]:
                summary.click()
            found = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in axe.run(page).response["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert not found, (path, found)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            seen.assert_clean()


def test_the_table_of_days_is_whole_on_a_telephone(chromium: Browser, there: There, long: str) -> None:
    with open_window(chromium, there, viewport={"width": 390, "height": 800}) as seen:
        page = seen.open("/costs")
        page.click("[aria-labelledby=days] details > summary")
        table = page.locator(".days table").first
        box = table.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        heads = [each for each in table.locator("thead th").all_inner_texts() if each]
        assert heads == ["Day", "Cost", "Calls", "Ended", "Failed"]
        assert page.locator("[aria-labelledby=days] svg.bars rect.part0").count() >= 1


def test_the_button_to_sign_in_is_clear_of_the_fields_focus_ring(chromium: Browser, tmp_path: Path) -> None:
    with open_team(tmp_path / "data") as team, watch_page(chromium, team.base) as seen:
        page = seen.open("/sign-in")
        page.focus("input[name=token]")
        field, button = page.locator("input[name=token]").bounding_box(), page.locator("form button").bounding_box()
        assert field is not None and button is not None
        ring = page.evaluate(
            "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
            " + parseFloat(getComputedStyle(document.activeElement).outlineOffset)"
        )
        assert ring > 0 and button["y"] - (field["y"] + field["height"]) >= ring + 8
        page.fill("input[name=token]", token(team.root, "ana", "read", name="reads"))
        page.click("form button")
        page.wait_for_url(f"{team.base}/")


WORDS = (
    "host_call",
    "elicitation",
    "uncosted",
    "superseded",
    "extractive",
    "confinement",
    "client approvals",
    "worst case",
)


def test_no_page_has_a_word_that_only_programs_use(there: There, long: str) -> None:
    from html import unescape
    from re import DOTALL, sub

    by_host = there.host.tool("spawn_subagent", role="researcher", task="By the host", task_id="same")
    there.host.tool("spawn_subagent", role="researcher", task="By the host again", task_id="same")
    visitor = there.signed_in()
    run, own = f"/subagents/{long}", f"/subagents/{by_host['subagent_id']}"
    lists = ("/", "/subagents?replaced=1", "/costs", "/costs/approvals", "/events", "/events?bookkeeping=1", "/health")
    for path in (*lists, run, f"{run}/costs", own):
        page = unescape(sub(r"<[^>]*>", " ", sub(r"<select.*?</select>", "", visitor.get(path).text, flags=DOTALL)))
        for word in (*WORDS, "carried the result"):
            assert word not in page, (path, word)


def test_a_time_has_the_form_that_terminals_use_on_the_readers_clock(
    chromium: Browser, there: There, long: str
) -> None:
    def in_kolkata(shown: Locator) -> str:
        utc = datetime.fromisoformat(shown.get_attribute("datetime") or "")
        return f"{utc.astimezone(timezone(timedelta(hours=5, minutes=30))):%Y-%m-%d %H:%M:%S}"

    with open_window(chromium, there, timezone_id="Asia/Kolkata", locale="en-US") as seen:
        page = seen.open("/costs/approvals")
        exact = page.locator("tbody th time").first
        assert exact.inner_text() == in_kolkata(exact)
        seen.open(f"/subagents/{long}")
        ago = page.locator(".timeline time").first
        assert ago.get_attribute("title") == in_kolkata(ago)


def test_the_steps_of_a_plan_have_signs_and_lie_one_after_the_other(chromium: Browser, there: There) -> None:
    first = {"id": "find", "role": "researcher", "task": "Find it"}
    second = {"id": "sum", "role": "researcher", "task": "Sum it up", "after": ["find"]}
    proposed = there.host.tool("spawn_subagent", steps=[first, second])
    assert there.signed_in().decide(proposed["pending_id"], "approve").status_code == 303
    plan_id = proposed["group_id"]
    there.until(lambda: read_log(there.root, "RunEnded", run=plan_id))
    with open_window(chromium, there, java_script_enabled=False) as seen:
        page = seen.open(f"/subagents/{plan_id}")
        signs = page.eval_on_selector_all(".steps .state", "all => all.map(each => each.dataset.sign)")
        assert signs == ["✓", "✓"]
        bars = page.locator(".steps svg.flow rect")
        places = [box for box in (bars.nth(at).bounding_box() for at in range(bars.count())) if box]
        assert len(places) == 2 and places[0]["x"] < places[1]["x"]
        seen.assert_clean()


def script(asked: dict[str, Any]) -> Say:
    """Forty turns: files that are there, three times in a row one that is not, and a question."""
    said = json.dumps([each for each in asked["messages"] if each["role"] == "user"])
    if "Shall I" in said and not any(each["role"] == "tool" for each in asked["messages"]):
        return Say(calls=[("ask", {"question": "Shall I go on?"})])
    turn = next(COUNT) if "Long" in said else TURNS
    if turn >= TURNS:
        return Say(calls=[("submit_result", {"summary": "Six months.", "output": "# Notice\n\nSix months."})])
    path = "missing.md" if turn in (7, 8, 9) else f"c{turn}.md"
    return Say("", [("read_file", {"path": path})])


def approved(there: There, **more: Any) -> str:
    proposed = there.host.propose(**more)
    assert there.signed_in().decide(proposed["pending_id"], "approve").status_code == 303
    assert there.host.ended(proposed["subagent_id"])["status"] == "success"
    run_id: str = proposed["subagent_id"]
    return run_id


def height_of(page: Page, what: str) -> float:
    box = page.locator(what).bounding_box()
    assert box is not None, what
    return box["height"]


def place_of(page: Page, what: str) -> float:
    box = page.locator(what).first.bounding_box()
    assert box is not None, what
    return box["y"]
