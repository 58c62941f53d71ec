"""In a host that is not known to show what it starts, the person decides by a link; the link alone approves nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.pages.browser import PAID, PIN, There, Visitor, open_pages, set_pin
from support.sample import sample
from support.stdio import read_log

from ava_server.config.pin import PinFile
from ava_server.config.sign_in import CODE_US, MOST_OF_USER
from ava_server.core.data_root import DataRoot, os_user

BY_HOST = f'approval = "by_host"\n{PAID}'
_LINK = re.compile(r"(http://[^/\s]+)(/enter\?code=\S+)")
NEW = {"new_pin": PIN, "new_pin_again": PIN}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    with open_pages(tmp_path / "data", BY_HOST) as opened:
        yield opened


def link_of(proposed: dict[str, Any]) -> str:
    found = _LINK.search(proposed["next"])
    assert found is not None, proposed["next"]
    return found[2]


def followed(there: There, proposed: dict[str, Any]) -> Visitor:
    """Whoever opens the link first."""
    visitor = there.visitor()
    answer = visitor.get(link_of(proposed))
    assert (answer.status_code, answer.headers["location"]) == (303, f"/proposals/{proposed['pending_id']}")
    return visitor


def confirm(there: There, proposed: dict[str, Any]) -> dict[str, Any]:
    ids, lines = [proposed["pending_id"]], [proposed["approval_line"]]
    return there.host.tool("confirm_spawn", pending_ids=ids, approving=lines)


def test_a_person_chooses_a_pin_on_the_page_of_the_link_and_the_waiting_call_gets_the_run(there: There) -> None:
    proposed = there.host.propose()
    assert f"approve {proposed['pending_id']}" in proposed["next"], "the terminal is named too"
    visitor = followed(there, proposed)
    page = visitor.get(f"/proposals/{proposed['pending_id']}").text
    assert "Choose your approval PIN" in page and "$0.50" in page
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(confirm, there, proposed)
        answer = visitor.decide(proposed["pending_id"], "approve", **NEW)
        assert answer.status_code == 303, answer.text
        assert waiting.result(30)["status"] == "approved"
    assert there.host.ended(proposed["subagent_id"])["status"] == "success"
    [decided] = read_log(there.root, "SpawnDecided", run=proposed["subagent_id"])
    assert decided.content["channel"] == "browser"
    changes = [entry.content for entry in read_log(there.root, "SettingsChanged")]
    assert [each["after"] for each in changes if each["setting"] == "approval_pin"] == ["set"]
    assert visitor.get(answer.headers["location"]).status_code == 200, "who gave the PIN is signed in"
    PinFile(DataRoot(there.root).approval_file).check(PIN)


def test_the_log_has_no_code_of_a_link(there: There) -> None:
    code = link_of(there.host.propose()).partition("code=")[2].partition("&")[0]
    assert not [entry for entry in read_log(there.root) if code in str(entry.content)]


def test_a_link_works_once_and_shows_one_proposal_and_nothing_else(there: There) -> None:
    first, second = there.host.propose(), there.host.propose(task="Something else")
    visitor = followed(there, first)
    again = there.visitor().get(link_of(first))
    assert again.status_code == 403 and "used before" in again.text
    for path in ("/", "/subagents", f"/subagents/{first['subagent_id']}", "/costs", "/events", "/health", "/passkeys"):
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/sign-in"), path
    for path in (
        f"/proposals/{second['pending_id']}",
        f"/proposals?id={first['pending_id']}&id={second['pending_id']}",
    ):
        assert visitor.get(path).status_code == 404 and "Something else" not in visitor.shown
    fields = visitor.fields(f"/proposals/{first['pending_id']}")
    other = {**dict(fields), "id": second["pending_id"], "decision": "reject"}
    assert visitor.post("/proposals", other).status_code == 400
    assert there.state(second) == "awaiting_approval"
    assert visitor.decide(first["pending_id"], "reject").status_code == 200 and "rejected" in visitor.shown
    assert there.state(first) == "rejected"


def ten_minutes_later(there: There) -> None:
    """Let every code and session be 10 minutes older."""
    path = DataRoot(there.root).browser_sessions
    path.write_text(re.sub(r"(?<=_us = )\d+", lambda found: str(int(found[0]) - CODE_US), path.read_text()))


@pytest.mark.parametrize("opened", sample([False, True], 1))
def test_a_proposal_that_still_waits_gets_a_new_link_when_the_old_one_has_expired(there: There, opened: bool) -> None:
    proposed = there.host.propose()
    old, run = link_of(proposed), {"subagent_id": proposed["subagent_id"]}
    if opened:
        followed(there, proposed)
        assert "/enter?code=" in str(there.host.tool("check_subagent", **run)), "a preview may have opened it"
    assert "/enter?code=" not in str(there.host.tool("check_subagent", **run)), "the last one can still be used"
    ten_minutes_later(there)
    assert "/enter?code=" not in str(there.host.tool("check_subagent")), "a list is no question about a proposal"
    checked = there.host.tool("check_subagent", **run)
    renewed = {"next": checked["message"], "pending_id": proposed["pending_id"]}
    assert there.visitor().get(old).status_code == 403
    ten_minutes_later(there)
    renewed["next"] = confirm(there, proposed)["next"]
    visitor = followed(there, renewed)
    assert visitor.decide(proposed["pending_id"], "approve", **NEW).status_code == 303
    assert there.host.ended(proposed["subagent_id"])["status"] == "success"
    codes = [each for each in read_log(there.root) if "/enter?code=" in str(each.content)]
    assert not codes, "the log has none of the codes"


def test_many_links_sign_nobody_out(there: There) -> None:
    person = there.signed_in()
    links = [there.sessions.issue_code(os_user(), only=[f"P-{number:08x}"]) for number in range(MOST_OF_USER + 5)]
    for code in links[5:]:
        assert there.visitor().get(f"/enter?code={code}").status_code == 303
    assert person.get("/").status_code == 200
    assert there.visitor().get(f"/enter?code={links[0]}").status_code == 403, "the oldest links made room"


@pytest.mark.slow
@pytest.mark.parametrize("has_pin", [False, True])
def test_no_forged_decision_starts_a_run(there: There, has_pin: bool) -> None:
    """What a model can do that reads the answer, opens the link and sends what it likes, but does not know the PIN."""
    if has_pin:
        set_pin(there.root)
    tries = 0
    proposed = there.host.propose()
    link, pending = link_of(proposed), proposed["pending_id"]
    visitor = followed(there, proposed)
    fields = [pair for pair in visitor.fields(f"/proposals/{pending}") if pair[0] != "decision"]
    digest = dict(fields)["digest"]
    pins: list[dict[str, str]] = [
        {}, {"pin": ""}, {"pin": "000000"}, {"pin": pending}, {"new_pin": PIN}, {"new_pin": PIN, "new_pin_again": "x"},
        {"new_pin": "1", "new_pin_again": "1"}, {"new_pin": "123456", "new_pin_again": "123456"},
        {"new_pin": "", "new_pin_again": ""}, {"passkey": "{}"},
    ]  # fmt: skip
    if has_pin:  # a PIN that is set cannot be chosen again
        pins.append(NEW)
    headers: list[dict[str, str]] = [{}, {"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}]
    changes = [{}, {"csrf": ""}, {"csrf": "0" * 64}, {"digest": "0" * 64}, {"id": pending.lower()}, {"decision": "yes"}]
    for pin, header, change in itertools.product(pins, headers, changes):
        form = {**dict(fields), "decision": "approve", **pin, **change}
        assert visitor.post("/proposals", form, **header).status_code >= 400, (pin, header, change)
        tries += 1
    stranger = there.visitor()
    for path in (link, f"/proposals/{pending}?decision=approve&digest={digest}", f"/proposals?id={pending}"):
        assert stranger.get(path).status_code in (303, 403)
        assert (
            stranger.post("/proposals", {"id": pending, "digest": digest, "decision": "approve", **NEW}).status_code
            >= 400
        )
        tries += 2
    for code in ("", "x", "0" * 43, link.partition("code=")[2]):
        assert stranger.get(f"/enter?code={code}&to=/proposals/{pending}").status_code == 403
        tries += 1
    assert tries >= 185 and there.starts(proposed) == 0 and there.state(proposed) == "awaiting_approval"
    assert PinFile(DataRoot(there.root).approval_file).is_set == has_pin
