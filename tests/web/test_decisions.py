"""What a person decides on the pages: exactly what was shown, once, and only with what an approval takes."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.foreign.origins import ALL, EVIL, send_mail
from support.foreign.servers import stdio_server, write_role
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Say, Step
from support.pages.browser import PAID, PIN, There, Visitor, finish_at_once, open_pages, set_pin
from support.runtime import hand_over
from support.stdio import read_log, state_of
from support.terminal import ava

from ava_audit.units import now_us
from ava_server.config.pin import PinFile
from ava_server.core.data_root import DataRoot

QUESTION = "In which currency?"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("here") / "data", script=script) as there:
        yield there


@pytest.fixture
def visitor(here: There) -> Visitor:
    return here.signed_in()


@pytest.mark.slow
def test_an_approval_starts_the_run_and_the_log_says_where_it_came_from(here: There, visitor: Visitor) -> None:
    proposed = here.host.propose()
    page = visitor.get(f"/proposals/{proposed['pending_id']}")
    assert proposed["approval_line"] in page.text.replace("&#34;", '"').replace("&#39;", "'")
    answer = visitor.decide(proposed["pending_id"], "approve")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/subagents/{proposed['subagent_id']}?done=approved"
    assert "Approved." in visitor.get(answer.headers["location"]).text
    assert here.host.ended(proposed["subagent_id"])["status"] == "success"
    found = decision(here, proposed)
    assert (found["decision"], found["channel"]) == ("approved", "browser")


def test_a_proposal_begins_with_its_facts_and_says_each_thing_once(here: There, visitor: Visitor) -> None:
    proposed = here.host.propose(task="What does it cost?", rationale="They asked", max_cost_cents=80, timeout=300)
    page = unescape(visitor.get(f"/proposals/{proposed['pending_id']}").text).partition('id="decision"')[2]
    assert "At most $0.80, 5 min" in page
    topics = re.findall(r"<dt>([^<]*)</dt>", page)
    assert topics[:4] == ["What", "Where", "How long", "Who asked"] and topics[-1] == "Limits"
    folded = page.partition("<details><summary>In one line")[2].partition("</details>")[0]
    assert folded.count(proposed["approval_line"]) == 1
    page = re.sub(r"</?code>", "`", page)
    assert "and costs at most $0.80." in proposed["message"]
    for row in filter(None, proposed["message"].split("\n")):
        row = row.removeprefix("Model: ").replace(", and costs at most $0.80.", ".")
        assert page.count(f'<p dir="auto">{row}</p>') == 1, row
    outside = page.replace(folded, "").partition('<details class="lower">')[0]
    assert outside.count("$0.80") == 1, "the price stands once, above the rest"
    assert re.search(r"The program .+ asked for it\.", page) and page.index("They asked") < page.index("<dt>Model</dt>")
    assert visitor.decide(proposed["pending_id"], "reject").status_code == 303


def test_the_person_marks_what_is_looked_at_together(here: There, visitor: Visitor) -> None:
    both = [here.host.propose(task=f"Number {number}") for number in (1, 2)]
    overview = visitor.get("/").text
    assert overview.count('<input type="checkbox" name="id"') >= 2 and " checked" not in overview
    nothing = visitor.get("/proposals")
    assert nothing.status_code == 404 and "mark 1 to 20 proposals" in nothing.text
    for each in both:
        assert visitor.decide(each["pending_id"], "reject").status_code == 303


def test_a_rejection_ends_the_proposal(here: There, visitor: Visitor) -> None:
    proposed = here.host.propose()
    assert visitor.decide(proposed["pending_id"], "reject").status_code == 303
    assert here.state(proposed) == "rejected" and decision(here, proposed)["channel"] == "browser"
    late = visitor.post("/proposals", {**dict(visitor.fields("/")), "id": proposed["pending_id"], "digest": "0" * 64,
                                       "decision": "approve"})  # fmt: skip
    assert late.status_code == 409 and here.starts(proposed) == 0


@pytest.mark.parametrize(
    ("form", "cap", "value"),
    [({"cost": "0.5"}, "max_cost_micros", 500_000), ({"cost": "0,5"}, "max_cost_micros", 500_000),
     ({"minutes": "2"}, "timeout_s", 120), ({"minutes": "1.5"}, "timeout_s", 90)],
)  # fmt: skip
def test_an_approval_may_lower_a_limit(
    here: There, visitor: Visitor, form: dict[str, str], cap: str, value: float
) -> None:
    proposed = here.host.propose(max_cost_cents=80, timeout=300)
    assert visitor.decide(proposed["pending_id"], "approve", **form).status_code == 303
    assert decision(here, proposed)["changes"] == {cap: value}


@pytest.mark.parametrize("form", [{"cost": "0.80"}, {"minutes": "5"}, {"cost": "", "minutes": ""}])
def test_an_approval_keeps_a_limit_that_was_not_lowered(here: There, visitor: Visitor, form: dict[str, str]) -> None:
    proposed = here.host.propose(max_cost_cents=80, timeout=300)
    assert visitor.decide(proposed["pending_id"], "approve", **form).status_code == 303
    assert not decision(here, proposed).get("changes")


@pytest.mark.parametrize(
    "form",
    [
        {"cost": bad}
        for bad in ("x", "-1", "0", "nan", "inf", "1e999", "$1", "1 000", "0.0000001", "0.000001", "1_0", "٣", "0.81")
    ]
    + [{"minutes": bad} for bad in ("x", "-1", "0", "nan", "1e-9", "0.00001", "0x10", "1;2", "5.1")],
)
def test_an_approval_with_a_limit_that_buys_nothing_or_is_no_number_starts_nothing(
    here: There, visitor: Visitor, form: dict[str, str]
) -> None:
    proposed = here.host.propose(max_cost_cents=80, timeout=300)
    answer = visitor.decide(proposed["pending_id"], "approve", **form)
    if answer.status_code == 303 and form.get("cost") == "٣":
        pytest.fail("only the digits of the form's own notation are read")
    assert answer.status_code == 409 and 'role="alert"' in answer.text, form
    assert here.state(proposed) == "awaiting_approval" and here.starts(proposed) == 0
    assert visitor.decide(proposed["pending_id"], "reject").status_code == 303


def together(proposed: list[dict[str, Any]]) -> str:
    return "/proposals?" + "&".join(f"id={each['pending_id']}" for each in proposed)


def test_several_are_approved_as_one_plan_with_a_lower_cap(here: There, visitor: Visitor) -> None:
    proposed = [here.host.propose(task=f"What does {name} cost?", max_cost_cents=80) for name in ("a", "b", "c")]
    assert visitor.decide(together(proposed), "approve", cost="1.5").headers["location"] == "/"
    for each in proposed:
        assert here.host.ended(each["subagent_id"])["status"] == "success"
    (plan_id,) = {decision(here, each)["group_id"] for each in proposed}
    (plan,) = read_log(here.root, "SpawnProposed", run=plan_id)
    assert plan.content["config"]["max_cost_micros"] == 1_500_000


def test_a_plan_with_one_that_no_longer_waits_starts_none(here: There, visitor: Visitor) -> None:
    proposed = [here.host.propose(task=f"What does {name} cost?") for name in ("d", "e")]
    fields = [pair for pair in visitor.fields(together(proposed)) if pair[0] != "decision"]
    here.host.tool("confirm_spawn", pending_ids=[proposed[0]["pending_id"]], decision="reject")
    answer = visitor.post("/proposals", [*fields, ("decision", "approve")])
    assert answer.status_code == 409 and here.state(proposed[1]) == "awaiting_approval"
    assert visitor.decide(proposed[1]["pending_id"], "reject").status_code == 303


def test_a_plan_can_be_rejected(here: There, visitor: Visitor) -> None:
    proposed = [here.host.propose(task=f"What does {name} cost?") for name in ("f", "g")]
    assert visitor.decide(together(proposed), "reject").status_code == 303
    assert [here.state(each) for each in proposed] == ["rejected"] * 2


def test_only_what_was_shown_can_be_approved(here: There, visitor: Visitor) -> None:
    first, second = here.host.propose(task="One?"), here.host.propose(task="Two?")
    shown = {each["pending_id"]: dict(visitor.fields(f"/proposals/{each['pending_id']}")) for each in (first, second)}
    one, two = shown[first["pending_id"]], shown[second["pending_id"]]
    csrf, approve = ("csrf", one["csrf"]), ("decision", "approve")
    tries: list[list[tuple[str, str]]] = [
        [("id", one["id"])],
        [("digest", one["digest"])],
        [("id", one["id"]), ("digest", two["digest"])],
        [("id", one["id"]), ("digest", "")],
        [("id", one["id"]), ("digest", one["digest"].upper())],
        [("id", one["id"]), ("digest", one["digest"]), ("id", two["id"])],
        [("id", one["id"]), ("digest", one["digest"]), ("id", one["id"]), ("digest", two["digest"])],
        [("id", "P-0dd0dd0d"), ("digest", one["digest"])],
        [("id", first["subagent_id"]), ("digest", one["digest"])],
        [("id", "../../x"), ("digest", one["digest"])],
        [],
    ]
    for fields in tries:
        assert visitor.post("/proposals", [csrf, approve, *fields]).status_code in (400, 404, 409), fields
    whole = [csrf, ("id", one["id"]), ("digest", one["digest"])]
    for word in ("", "Approve", "yes", "approve reject"):
        assert visitor.post("/proposals", [*whole, ("decision", word)]).status_code in (400, 409)
    for each in (first, second):
        assert here.state(each) == "awaiting_approval" and here.starts(each) == 0
        visitor.decide(each["pending_id"], "reject")


def test_a_proposal_that_was_decided_meanwhile_is_not_decided_again(here: There, visitor: Visitor) -> None:
    proposed = here.host.propose()
    fields = [pair for pair in visitor.fields(f"/proposals/{proposed['pending_id']}") if pair[0] != "decision"]
    confirmed = here.host.tool(
        "confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]]
    )
    assert confirmed["status"] == "approved"
    for word in ("approve", "reject"):
        answer = visitor.post("/proposals", [*fields, ("decision", word)])
        assert answer.status_code == 409 and "was approved already, by a call of the host at" in answer.text
    assert here.starts(proposed) == 1
    page = visitor.get(f"/proposals/{proposed['pending_id']}")
    assert page.status_code == 200 and "was approved already" in page.text and 'value="approve"' not in page.text


def test_an_open_page_leaves_a_proposal_that_was_decided_elsewhere(here: There, visitor: Visitor) -> None:
    proposed = here.host.propose()
    path = f"/proposals/{proposed['pending_id']}"
    looks = f"/proposals/open?id={proposed['pending_id']}"
    assert f'hx-get="{looks}"' in visitor.get(path).text
    waits = visitor.get(looks)
    assert waits.status_code == 204 and "hx-redirect" not in waits.headers
    signed_out = here.visitor().get(looks, **{"HX-Request": "true"})
    assert signed_out.status_code == 204 and "hx-redirect" not in signed_out.headers, "what was typed there stays"
    here.host.tool("confirm_spawn", pending_ids=[proposed["pending_id"]], decision="reject")
    assert visitor.get(looks).headers["hx-redirect"] == path
    page = visitor.get(path).text
    assert "was rejected already, by a call of the host at" in page and looks not in page


def test_a_superseded_proposal_cannot_be_approved(here: There, visitor: Visitor) -> None:
    first = here.host.propose(task="One?", task_id="same")
    fields = [pair for pair in visitor.fields(f"/proposals/{first['pending_id']}") if pair[0] != "decision"]
    second = here.host.propose(task="Another?", task_id="same")
    assert visitor.post("/proposals", [*fields, ("decision", "approve")]).status_code == 409
    assert here.state(first) == "superseded" and here.starts(first) == 0 and here.starts(second) == 0
    visitor.decide(second["pending_id"], "reject")


def test_two_people_at_once_start_it_once(here: There) -> None:
    proposed = here.host.propose()
    visitors = [here.signed_in() for _each in range(4)]
    path = f"/proposals/{proposed['pending_id']}"
    forms = [[pair for pair in each.fields(path) if pair[0] != "decision"] for each in visitors]
    with ThreadPoolExecutor(4) as at_once:
        sent = [
            at_once.submit(visitor.post, "/proposals", [*form, ("decision", "approve")])
            for visitor, form in zip(visitors, forms, strict=True)
        ]
        answers = [each.result() for each in sent]
    assert sorted(answer.status_code for answer in answers) == [303, 409, 409, 409]
    assert here.starts(proposed) == 1


@pytest.mark.slow
def test_an_erased_run_and_its_proposal_are_shown_without_their_texts(here: There, visitor: Visitor) -> None:
    proposed = approved(here, visitor, task="What does marmalade cost?")
    run_id = proposed["subagent_id"]
    here.host.ended(run_id)
    assert "marmalade" in visitor.get("/subagents").text
    done = ava(here.root, "erase", run_id, "--yes")
    assert done.returncode == 0, done.stderr
    for path in ("/", "/subagents", f"/subagents/{run_id}", f"/proposals/{proposed['pending_id']}"):
        answer = visitor.get(path)
        assert answer.status_code == 200 and "marmalade" not in answer.text, path


def test_a_run_is_cancelled(here: There, visitor: Visitor) -> None:
    proposed = approved(here, visitor, task="TASK: ask")
    run_id = proposed["subagent_id"]
    here.until(lambda: read_log(here.root, "Asked", run=run_id))
    answer = visitor.post(f"/subagents/{run_id}/cancel", {"csrf": visitor.csrf})
    assert answer.status_code == 303 and "told to end" in visitor.get(answer.headers["location"]).text
    assert here.host.ended(run_id)["status"] == "cancelled"
    again = visitor.post(f"/subagents/{run_id}/cancel", {"csrf": visitor.csrf})
    assert again.status_code == 409 and "Not cancelled:" in again.text and "has ended (cancelled)" in again.text


@pytest.mark.parametrize(("terminal", "who"), [(True, "The person answers"), (False, "The orchestrator answers")])
def test_an_answer_counts_as_a_persons_only_from_a_persons_session(here: There, terminal: bool, who: str) -> None:
    person, visitor = here.signed_in(), here.signed_in(terminal=terminal)
    run_id = approved(here, person, task="TASK: ask")["subagent_id"]
    here.until(lambda: read_log(here.root, "Asked", run=run_id))
    path, csrf, asked = f"/subagents/{run_id}/message", visitor.csrf, question(here, run_id)
    other = visitor.post(path, {"csrf": csrf, "message": "USD", "question": "Q-00000000"})
    assert other.status_code == 409 and "has changed since it was shown" in other.text
    empty = visitor.post(path, {"csrf": csrf, "message": " ", "question": asked})
    assert empty.status_code in (400, 409)
    sent = visitor.post(path, {"csrf": csrf, "message": "EUR", "question": asked})
    assert sent.status_code == 303
    output = json.dumps(here.host.ended(run_id))
    assert who in output and "EUR" in output and "USD" not in output


@pytest.mark.slow
def test_a_run_near_its_cap_gets_more_only_as_it_was_shown(here: There, visitor: Visitor) -> None:
    run_id = approved(here, visitor, task="TASK: work", **CAP)["subagent_id"]
    (asked,) = here.until(lambda: read_log(here.root, "Asked", run=run_id), within_s=60)
    path, csrf = f"/subagents/{run_id}/extension", visitor.csrf
    right = {"csrf": csrf, "digest": asked.content["digest"], "decision": "approve"}
    assert visitor.post(path, {**right, "digest": "0" * 64}).status_code == 409
    weak = here.signed_in(terminal=False)
    refused = weak.post(path, {**right, "csrf": weak.csrf})
    assert refused.status_code == 409 and "not opened from a terminal" in refused.text
    assert not read_log(here.root, "Answered", run=run_id)
    assert visitor.post(path, right).status_code == 303
    (decided,) = read_log(here.root, "Answered", run=run_id)
    assert (decided.content["decision"], decided.content["channel"]) == ("approved", "browser")
    assert visitor.post(path, right).status_code == 409, "once"
    assert here.host.ended(run_id)["status"] == "success"


@pytest.mark.slow
def test_a_run_near_its_cap_may_be_told_to_wrap_up(here: There, visitor: Visitor) -> None:
    run_id = approved(here, visitor, task="TASK: work", **CAP)["subagent_id"]
    (asked,) = here.until(lambda: read_log(here.root, "Asked", run=run_id), within_s=60)
    form = {"csrf": visitor.csrf, "digest": asked.content["digest"], "decision": "reject"}
    assert visitor.post(f"/subagents/{run_id}/extension", form).status_code == 303
    (decided,) = read_log(here.root, "Answered", run=run_id)
    assert decided.content["decision"] == "declined"


# -- what an approval takes -------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-17")
def test_under_ask_a_session_that_no_terminal_opened_looks_and_rejects_but_does_not_approve(here: There) -> None:
    proposed, model = here.host.propose(), here.signed_in(terminal=False)
    page = model.get(f"/proposals/{proposed['pending_id']}")
    assert "not opened from a terminal" in page.text and 'value="approve"' not in page.text
    refused = model.decide(proposed["pending_id"], "approve")
    assert refused.status_code == 409 and "not opened from a terminal" in refused.text
    forged = model.decide(proposed["pending_id"], "approve", terminal="true", pin=PIN, by="person")
    assert forged.status_code == 409 and here.starts(proposed) == 0
    assert model.decide(proposed["pending_id"], "reject").status_code == 303
    assert decision(here, proposed)["channel"] == "host_call", "a model may have done it"


@pytest.mark.requirement("N-17")
@pytest.mark.slow
def test_with_a_pin_every_approval_takes_it(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", pin=True) as there:
        proposed, visitor = there.host.propose(), there.signed_in()
        for given in ({}, {"pin": ""}, {"pin": "00 00 01"}):
            refused = visitor.decide(proposed["pending_id"], "approve", **given)
            assert refused.status_code == 409 and there.starts(proposed) == 0
        run_id = proposed["subagent_id"]
        more = visitor.post(
            f"/subagents/{run_id}/extension", {"csrf": visitor.csrf, "decision": "approve", "digest": "x"}
        )
        assert more.status_code == 409 and "Enter the approval PIN" in more.text
        weak = there.signed_in(terminal=False)
        assert weak.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 303, "the PIN proves a person"
        assert there.host.ended(run_id)["status"] == "success"
        assert PIN not in there.server.stderr


@pytest.mark.slow
def test_a_yes_to_a_call_takes_the_pin_and_its_question(tmp_path: Path) -> None:
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL), send_mail("ann@example.net")])
    settings = f"{PAID}\n{stdio_server('good', 'mail')}"
    with open_pages(tmp_path / "data", settings, lambda _request: next(steps, hand_over()), pin=True) as there:
        write_role(there.root, ALL)
        person = there.signed_in()
        proposed = there.host.propose(role="guest", task="Write to bob@example.org about lunch.")
        assert person.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 303
        run_id = proposed["subagent_id"]
        there.until(lambda: read_log(there.root, "Asked", run=run_id), within_s=60)
        page = person.get(f"/subagents/{run_id}").text
        assert EVIL in page and 'name="pin"' in page and question(there, run_id) in page
        path, given = f"/subagents/{run_id}/message", {"csrf": person.csrf, "question": question(there, run_id)}
        for wrong in ({}, {"pin": "00 00 01"}, {"pin": PIN, "question": "Q-00000000"}, {"pin": PIN, "question": ""}):
            assert person.post(path, {**given, "message": "yes", **wrong}).status_code == 409
        assert not read_log(there.root, "Answered", run=run_id)
        assert person.post(path, {**given, "message": "yes", "pin": PIN}).status_code == 303
        there.until(lambda: len(read_log(there.root, "Asked", run=run_id)) == 2, within_s=60)
        no = {**given, "message": "no", "question": question(there, run_id)}
        assert person.post(path, no).status_code == 303, "a no takes no PIN"
        answered = read_log(there.root, "Answered", run=run_id)
        assert [each.content["decision"] for each in answered] == ["answered", "declined"]
        there.host.ended(run_id)


@pytest.mark.slow
def test_all_calls_of_a_tool_can_be_allowed_for_the_run_with_the_pin(tmp_path: Path) -> None:
    steps = iter([send_mail("bob@example.org")] * 3)
    settings = f"{PAID}\n{stdio_server('good', 'mail')}"
    with open_pages(tmp_path / "data", settings, lambda _request: next(steps, hand_over()), pin=True) as there:
        write_role(there.root, ALL)
        person = there.signed_in()
        proposed = there.host.propose(role="guest", task="Write to bob@example.org about lunch.")
        assert person.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 303
        run_id = proposed["subagent_id"]
        there.until(lambda: read_log(there.root, "Asked", run=run_id), within_s=60)
        page = unescape(person.get(f"/subagents/{run_id}").text)
        assert "It has made the same call before, which succeeded or may have." in page
        assert "Allow all calls of it in this run" in page
        given = {"csrf": person.csrf, "question": question(there, run_id), "message": "run"}
        assert person.post(f"/subagents/{run_id}/message", given).status_code == 409, "it takes the PIN, as a yes does"
        assert person.post(f"/subagents/{run_id}/message", {**given, "pin": PIN}).status_code == 303
        assert there.host.ended(run_id)["status"] == "success"
        assert len(read_log(there.root, "Asked", run=run_id)) == 1


@pytest.mark.slow
def test_the_policy_human_without_a_pin_approves_nothing(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", f'approval = "human"\n{PAID}') as there:
        proposed, visitor = there.host.propose(), there.signed_in()
        refused = visitor.decide(proposed["pending_id"], "approve")
        assert refused.status_code == 409 and "Choose an approval PIN" in refused.text and there.starts(proposed) == 0
        set_pin(there.root)
        assert visitor.decide(proposed["pending_id"], "approve").status_code == 409, "a PIN counts at once"
        assert visitor.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 303
        PinFile(DataRoot(there.root).approval_file).remove(PIN)


@pytest.mark.slow
def test_an_expired_proposal_and_switched_off_subagents_start_nothing(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", f"proposal_ttl_s = 3\n{PAID}") as there:
        proposed, visitor = there.host.propose(), there.signed_in()
        fields = [pair for pair in visitor.fields(f"/proposals/{proposed['pending_id']}") if pair[0] != "decision"]
        (made,) = read_log(there.root, "SpawnProposed", run=proposed["subagent_id"])
        there.until(lambda: now_us() > made.content["expires_us"])
        answer = visitor.post("/proposals", [*fields, ("decision", "approve")])
        assert answer.status_code == 409 and there.starts(proposed) == 0
        page = visitor.get(f"/proposals/{proposed['pending_id']}")
        assert 'value="approve"' not in page.text and proposed["pending_id"] in page.text
        assert state_of(there.root, proposed["subagent_id"]) in ("awaiting_approval", "expired")


def script(asked: dict[str, Any]) -> Step:
    """Ask, or need more, where the task says so; else hand over a result."""
    task = json.dumps([each for each in asked["messages"] if each["role"] == "user"])
    results = [each["content"] for each in asked["messages"] if each["role"] == "tool"]
    if "TASK: ask" in task:
        return hand_over(output=" | ".join(results)) if results else Say(calls=[("ask", {"question": QUESTION})])
    return keep_noting(asked) if "TASK: work" in task else finish_at_once(asked)


def approved(there: There, visitor: Visitor, **spawn: Any) -> dict[str, Any]:
    """Propose, and approve on the page."""
    proposed = there.host.propose(**spawn)
    answer = visitor.decide(proposed["pending_id"], "approve")
    assert answer.status_code == 303, answer.text
    return proposed


def decision(there: There, proposed: dict[str, Any]) -> dict[str, Any]:
    (found,) = read_log(there.root, "SpawnDecided", run=proposed["subagent_id"])
    return found.content


def question(there: There, run_id: str) -> str:
    """The question that a run asks now, as its page carries it."""
    with contextlib.closing(sqlite3.connect(there.root / "ava.db", timeout=5)) as db:
        found = json.loads(db.execute("SELECT asked FROM runs WHERE id = ?", (run_id,)).fetchone()[0])
        return str(found["ask_id"])
