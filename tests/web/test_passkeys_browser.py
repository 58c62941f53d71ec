"""A passkey from its creation to a sign-in, in Chromium, whose virtual authenticator stands for a device."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.foreign.origins import ALL, EVIL, SEND, send_mail
from support.foreign.servers import stdio_server, write_role
from support.model_server import Say
from support.pages.browser import PAID, PIN, There, open_pages, set_pin
from support.runtime import hand_over
from support.stdio import read_log

from ava_server.config.sign_in import Passkeys
from ava_server.core.data_root import DataRoot, os_user

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or ""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")]
DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
}
"""A device that recognises its owner."""


def test_a_person_adds_a_passkey_approves_rejects_and_signs_in_with_it(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data") as there, browsing(there) as browser:
        browser.add_passkey()
        assert len(browser.passkeys) == 1 and "laptop" in browser.page.content()
        one, two = there.host.propose(), there.host.propose(task="Two?")
        browser.go(f"/proposals/{one['pending_id']}")
        browser.press("Approve with passkey")
        browser.page.get_by_text("Approved.").wait_for()
        assert there.host.ended(one["subagent_id"])["status"] == "success"
        assert browser.passkeys[0]["signCount"] == Passkeys(DataRoot(there.root).passkeys).all()[0].counter
        used = browser.passkeys[0]["signCount"]
        browser.go(f"/proposals/{two['pending_id']}")
        browser.press("Reject")
        browser.page.get_by_text("Rejected. It cannot start any more.").wait_for()
        assert there.state(two) == "rejected" and browser.passkeys[0]["signCount"] == used
        browser.press("Sign out")
        browser.page.get_by_text("You are signed out.").wait_for()
        browser.go("/sign-in?to=/subagents")
        browser.press("Sign in with your passkey")
        browser.page.wait_for_url("**/subagents")


def test_several_are_approved_together_with_lower_limits(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data") as there, browsing(there) as browser:
        browser.add_passkey()
        both = [there.host.propose(), there.host.propose(task="Two?")]
        browser.go("/proposals?" + "&".join(f"id={each['pending_id']}" for each in both))
        browser.page.click("text=Lower the limits")
        browser.page.locator("input[name=cost]").fill("0,15")
        browser.press("Approve with passkey")
        browser.page.wait_for_url(f"{there.base}/")
        assert all(
            there.host.ended(each["subagent_id"])["status"] != "rejected" and there.starts(each) for each in both
        )
        proposed = [entry.content for entry in read_log(there.root, "SpawnProposed")]
        (plan,) = [one for one in proposed if one["subagent_id"].startswith("G-")]
        assert plan["config"]["max_cost_micros"] == 150_000


def test_a_device_that_does_not_recognise_its_owner_approves_nothing(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data") as there, browsing(there) as browser:
        browser.add_passkey()
        proposed = there.host.propose()
        browser.go(f"/proposals/{proposed['pending_id']}")
        browser.recognises(False)
        browser.press("Approve with passkey")
        browser.page.get_by_text("The passkey was not used, so nothing was sent.").wait_for()
        assert there.state(proposed) == "awaiting_approval"
        browser.recognises(True)
        browser.press("Approve with passkey")
        browser.page.get_by_text("Approved.").wait_for()


def test_a_yes_to_a_call_takes_the_passkey_and_a_no_takes_none(tmp_path: Path) -> None:
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL), send_mail("ann@example.net")])
    settings = f"{PAID}\n[limits]\nquestion_wait_s = 300\n{stdio_server('good', 'mail')}"
    with (
        open_pages(tmp_path / "data", settings, lambda _asked: next(steps, hand_over())) as there,
        browsing(there) as browser,
    ):
        write_role(there.root, ALL)
        browser.add_passkey()
        proposed = there.host.propose(role="guest", task="Write to bob@example.org about lunch.")
        run_id = proposed["subagent_id"]
        browser.go(f"/proposals/{proposed['pending_id']}")
        browser.press("Approve with passkey")
        browser.page.get_by_text("Approved.").wait_for()

        def asked(times: int) -> None:
            there.until(lambda: len(read_log(there.root, "Asked", run=run_id)) == times)
            browser.go(f"/subagents/{run_id}")

        asked(1)
        assert EVIL in browser.page.locator("#decide").inner_text()
        browser.recognises(False)
        browser.press("Allow it")
        browser.page.get_by_text("The passkey was not used, so nothing was sent.").wait_for()
        browser.page.evaluate("document.querySelector('#decide [name=passkey]').remove()")  # no script asks for it then
        browser.press("Allow it")
        browser.page.get_by_text("Use your passkey").wait_for()
        assert not read_log(there.root, "Answered")
        used = browser.passkeys[0]["signCount"]
        asked(1)
        browser.recognises(True)
        browser.press("Allow it")
        browser.page.wait_for_url("**?done=sent")
        assert browser.passkeys[0]["signCount"] == used + 1
        asked(2)
        browser.recognises(False)
        browser.press("Do not allow it")
        browser.page.wait_for_url("**?done=sent")
        assert browser.passkeys[0]["signCount"] == used + 1
        there.host.ended(run_id)
        answered = read_log(there.root, "Answered", run=run_id)
        assert [each.content["decision"] for each in answered] == ["answered", "declined"]
        results = [each.content for each in read_log(there.root, "ToolResult", run=run_id)]
        assert [each["success"] for each in results if each["tool"] == SEND] == [True, False]


def test_the_pin_adds_a_passkey_and_approves_in_its_place_and_the_passkey_removes_itself(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data") as there, browsing(there) as browser:
        set_pin(there.root)
        browser.go(f"/enter?code={there.code()}&to=/passkeys")
        browser.page.get_by_label("Its name").fill("laptop")
        browser.page.get_by_label("Approval PIN").fill("000000")
        browser.press("Add passkey")
        browser.page.get_by_text("4 tries are left").wait_for()
        browser.page.get_by_label("Approval PIN").fill(PIN)
        browser.press("Add passkey")
        browser.page.get_by_text("The passkey is added.").wait_for()
        one, two = there.host.propose(), there.host.propose(task="Two?")
        browser.go(f"/proposals/{one['pending_id']}")
        browser.page.get_by_label("Approval PIN").fill(PIN)
        browser.press("Approve")
        browser.page.get_by_text("Approved.").wait_for()
        assert browser.passkeys[0]["signCount"] == 1
        browser.go(f"/proposals/{two['pending_id']}")
        browser.press("Approve")
        browser.page.get_by_text("Approved.").wait_for()
        assert browser.passkeys[0]["signCount"] == 2
        browser.go("/passkeys")
        browser.press("Remove laptop")
        browser.page.get_by_text("The passkey is removed.").wait_for()
        assert not Passkeys(DataRoot(there.root).passkeys).all()


@dataclass
class Browser:
    """A page, and the device that holds its passkeys."""

    there: There
    page: Page
    device: CDPSession
    authenticator: str

    def go(self, path: str) -> None:
        self.page.goto(f"{self.there.base}{path}")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def recognises(self, owner: bool) -> None:
        self.device.send("WebAuthn.setUserVerified", {"authenticatorId": self.authenticator, "isUserVerified": owner})

    @property
    def passkeys(self) -> list[Any]:
        """The passkeys of the device."""
        found: list[Any] = self.device.send("WebAuthn.getCredentials", {"authenticatorId": self.authenticator})[
            "credentials"
        ]
        return found

    def add_passkey(self) -> None:
        code = self.there.sessions.issue_passkey_code(os_user(), "laptop")
        self.go(f"/enter?code={self.there.code()}&to=%2Fpasskeys%2Fnew%3Fcode%3D{code}")
        self.press("Add passkey")
        self.page.get_by_text("The passkey is added.").wait_for()


@contextmanager
def browsing(there: There) -> Generator[Browser]:
    """Chromium, which may load nothing that the pages' rules forbid."""
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        said: list[str] = []
        page.on("console", lambda line: said.append(line.text) if "Content Security Policy" in line.text else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        device = page.context.new_cdp_session(page)
        device.send("WebAuthn.enable")
        made = device.send(
            "WebAuthn.addVirtualAuthenticator", {"options": {**DEVICE, "automaticPresenceSimulation": True}}
        )
        yield Browser(there, page, device, made["authenticatorId"])
        assert not said, said
        chromium.close()
