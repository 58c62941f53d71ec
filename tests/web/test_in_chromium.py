"""The pages in a real browser: they work by mouse, by keyboard and without scripts, and come back after a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from support.http_server import serve_pages
from support.pages.browser import There, open_pages
from support.pages.watched_page import open_window, watch_page
from support.stdio import read_log

from ava_server.core.data_root import DataRoot
from ava_server.web.context import NAVIGATION

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route


@pytest.fixture(scope="module")
def here(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("here") / "data", forked=False) as there:
        yield there


def ended(there: There) -> dict[str, Any]:
    """A run that has ended."""
    proposed = there.host.propose(task="What did it cost?")
    assert there.signed_in().decide(proposed["pending_id"], "approve").status_code == 303
    there.host.ended(proposed["subagent_id"])
    return proposed


@pytest.mark.requirement("N-17")
def test_a_person_signs_in_approves_and_sees_the_run_end(chromium: Browser, here: There) -> None:
    proposed = here.host.propose()
    with watch_page(chromium, here.base) as seen:
        page = seen.open(f"/enter?code={here.code()}")
        assert page.url == f"{here.base}/", "the code is not in the address any more"
        page.click(f"text={proposed['pending_id']}")
        page.click("button:has-text('Approve')")
        page.wait_for_url(f"**/subagents/{proposed['subagent_id']}?done=approved")
        page.wait_for_selector(".state.success")
        assert page.evaluate("document.cookie") == "", "scripts cannot read the session"
        seen.assert_clean()


def paths(there: There) -> list[str]:
    proposed = [there.host.propose(task=f"What does {name} cost?") for name in "ab"]
    ids = [each["pending_id"] for each in proposed]
    run = ended(there)
    return [
        *(path for path, _name in NAVIGATION), f"/subagents/{run['subagent_id']}", f"/proposals/{run['pending_id']}",
        f"/proposals/{ids[0]}", f"/proposals?id={ids[0]}&id={ids[1]}", f"/subagents/{proposed[0]['subagent_id']}",
        f"/subagents/{run['subagent_id']}?order=oldest", f"/subagents/{run['subagent_id']}/costs", "/passkeys",
        "/passkeys/new?code=x", "/events?q=cost", "/subagents/S-0dd0dd",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_without_errors_and_without_barriers(chromium: Browser, here: There, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with (
        open_window(chromium, here, color_scheme=scheme) as seen,
        watch_page(chromium, here.base, color_scheme=scheme) as out,
    ):
        opened = [(seen, path) for path in paths(here)] + [(out, "/sign-in"), (out, "/enter?code=x")]
        for one, path in opened:
            page = one.open(path)
            found = axe.run(page).response["violations"]
            grave = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in found
                if each["impact"] in ("serious", "critical")
            ]
            assert not grave, (path, scheme, grave)
            one.assert_clean(but="the server responded with a status of 4")
            width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, f"{path} scrolls to the side"


@pytest.mark.slow
def test_no_page_is_wider_than_a_telephone(chromium: Browser, here: There) -> None:
    with open_window(chromium, here, viewport={"width": 390, "height": 800}) as seen:
        for path in paths(here):
            page = seen.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


@pytest.mark.slow
@pytest.mark.parametrize("task", ["What does it cost?", "多少钱" * 190, "<b>It costs nothing.</b> " * 20])
def test_what_how_much_and_the_buttons_are_on_the_first_screen_of_a_telephone(
    chromium: Browser, here: There, task: str
) -> None:
    proposed = here.host.propose(task=task, context="x" * 900, rationale="y" * 500)
    with open_window(chromium, here, viewport={"width": 390, "height": 700}) as seen:
        page = seen.open(f"/proposals/{proposed['pending_id']}")
        for what in (".most", ".what dt", "button[value=approve]", "button[value=reject]"):
            box = page.locator(what).first.bounding_box()
            assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 700, (what, box)
        seen.assert_clean()


@pytest.mark.slow
def test_what_happens_appears_without_a_reload(chromium: Browser, here: There) -> None:
    with open_window(chromium, here) as seen:
        page = seen.open("/")
        page.evaluate("window.same = true")
        proposed = here.host.propose()
        page.wait_for_selector(f"text={proposed['pending_id']}")
        here.host.tool("confirm_spawn", pending_ids=[proposed["pending_id"]], decision="reject")
        page.wait_for_selector(f"text={proposed['pending_id']}", state="detached")
        assert page.evaluate("window.same"), "the page was not loaded again"
        seen.assert_clean()


@pytest.mark.slow
def test_marks_and_the_focus_stay_while_the_overview_is_brought_up_to_date(chromium: Browser, here: There) -> None:
    marked, other = (here.host.propose(task=f"Which of {name}?")["pending_id"] for name in "xy")
    with open_window(chromium, here) as seen:
        page = seen.open("/")
        page.check(f"#mark-{marked}")
        page.focus(f"#reject-{other}")
        late = here.host.propose(task="Proposed meanwhile?")["pending_id"]
        page.wait_for_selector(f"#card-{late}")
        assert page.is_checked(f"#mark-{marked}") and not page.is_checked(f"#mark-{other}")
        assert page.evaluate("document.activeElement.id") == f"reject-{other}"
        page.keyboard.press("Enter")
        page.wait_for_url("**/?done=rejected")
        assert "Rejected." in page.inner_text("main") and page.locator(f"#card-{other}").count() == 0
        page.check(f"#mark-{marked}")
        page.click("button:has-text('Look at the marked ones together')")
        page.wait_for_url(f"**/proposals?id={marked}")
        assert page.locator("button[value=approve]").count() == 1
        seen.assert_clean()


@pytest.mark.slow
def test_two_windows_and_one_proposal(chromium: Browser, here: There) -> None:
    proposed = here.host.propose()
    path = f"/proposals/{proposed['pending_id']}"
    with open_window(chromium, here) as first, open_window(chromium, here) as second:
        first.open(path)
        page = second.open(path)
        first.page.click("button:has-text('Approve')")
        first.page.wait_for_url("**/subagents/*")
        page.wait_for_selector("text=was approved already, in the browser at")
        assert page.locator("button:has-text('Approve')").count() == 0, "the open question withdrew itself"
        assert here.starts(proposed) == 1


@pytest.mark.slow
def test_a_look_does_not_overtake_the_own_decision(chromium: Browser, here: There) -> None:
    proposed = here.host.propose()
    with open_window(chromium, here) as seen:
        page = seen.open(f"/proposals/{proposed['pending_id']}")

        def slowly(route: Route) -> None:
            answer = route.fetch(max_redirects=0)
            page.wait_for_timeout(4500)  # in which the page would look twice
            route.fulfill(response=answer)

        page.route("**/proposals", slowly)
        page.click("button:has-text('Approve')", no_wait_after=True)
        page.wait_for_url("**/subagents/*done=approved")
        assert here.starts(proposed) == 1


@pytest.mark.slow
def test_the_keyboard_is_enough(chromium: Browser, here: There) -> None:
    proposed = here.host.propose()
    with open_window(chromium, here) as seen:
        page = seen.open("/")

        def tab_to(what: str) -> None:
            for _press in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("what => document.activeElement.matches(what)", what):
                    return
            raise AssertionError(f"no tab stop at {what}")

        tab_to("a.skip")
        page.keyboard.press("Enter")
        tab_to(f"a[href='/proposals/{proposed['pending_id']}']")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/proposals/{proposed['pending_id']}")
        tab_to("button[value=approve]")
        shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown != "none", "the focus is visible"
        page.keyboard.press("Enter")
        page.wait_for_url("**/subagents/*")
        assert here.starts(proposed) == 1


@pytest.mark.slow
def test_everything_works_without_scripts(chromium: Browser, here: There) -> None:
    proposed, other = here.host.propose(), here.host.propose(task="Another?")
    with watch_page(chromium, here.base, java_script_enabled=False) as seen:
        page = seen.open(f"/enter?code={here.code()}")
        page.click(f"a:has-text('{proposed['pending_id']}')")
        page.click("button:has-text('Approve')")
        page.wait_for_url("**/subagents/*?done=approved")
        seen.open(f"/proposals/{other['pending_id']}")
        page.click("button:has-text('Reject')")
        page.wait_for_url("**/subagents/*?done=rejected")
        page.click("button:has-text('Sign out')")
        assert "signed out" in page.inner_text("main")
        assert seen.open("/").url.endswith("/sign-in")
    assert here.starts(proposed) == 1 and here.state(other) == "rejected"


@pytest.mark.slow
def test_a_session_that_ends_in_the_middle_is_said_and_nothing_is_done(chromium: Browser, here: There) -> None:
    proposed = here.host.propose()
    with open_window(chromium, here) as seen, open_window(chromium, here) as idle:
        page, other = seen.open(f"/proposals/{proposed['pending_id']}"), idle.open("/")
        DataRoot(here.root).browser_sessions.unlink()
        page.click("button:has-text('Approve')")
        assert "session has ended" in page.inner_text("main") and here.starts(proposed) == 0
        other.wait_for_selector("#connection:has-text('session has ended')")


@pytest.mark.slow
def test_a_page_comes_back_by_itself_after_the_server_was_away(chromium: Browser, here: There) -> None:
    with open_window(chromium, here) as seen:
        page = seen.open("/")
        page.evaluate("window.same = true")
        port = here.server.port
        os.kill(here.server.pid, signal.SIGTERM)
        page.wait_for_selector("#connection:not([hidden])")
        here.portal.call(here.server.exited)
        proposed = here.host.propose(task="Proposed meanwhile")
        with here.portal.wrap_async_context_manager(serve_pages(here.root, port=port)):
            page.wait_for_selector(f"text={proposed['pending_id']}")
            page.wait_for_selector("#connection", state="hidden")
            assert page.evaluate("window.same") and read_log(here.root, "SpawnProposed")
