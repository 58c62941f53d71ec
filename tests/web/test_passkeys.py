"""Passkeys: a browser approves with one exactly what was shown, and nothing else counts once a user has one."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from support.foreign.origins import ALL, EVIL, SEND, send_mail
from support.foreign.servers import stdio_server, write_role
from support.http_server import serve_pages, token
from support.model_server import Say
from support.pages.browser import PAID, PIN, Host, There, Visitor, finish_at_once, open_pages, open_team, set_pin
from support.pages.passkeys import Authenticator, DecisionForm, add_passkey, post_json
from support.runtime import hand_over
from support.stdio import read_log

from ava_server.config.sign_in import Passkeys, new_passkey
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import ConfigError, Refused
from ava_server.web.webauthn import Subject

HERE = os_user()
LETTERS = str.maketrans("0123456789", "ghijklmnop")
"""A name with many digits could be a secret."""
LATE = (
    "import sys, ava_server.web.webauthn as w; w.CHALLENGE_S = -1.0; from ava_server.cli.app import main;"
    " raise SystemExit(main(sys.argv[1:]))"
)
"""The command, with challenges that are too old at once."""


# -- approving --------------------------------------------------------------------------------------------------------


def test_a_passkey_approves_the_proposal_that_was_shown(armed: Armed) -> None:
    decision = DecisionForm(armed.visitor, armed.pending)
    options = decision.options()
    assert options["userVerification"] == "required" and options["rpId"] == "localhost"
    assert decision.send(armed.key.get(options))[0] == 303
    assert armed.there.host.ended(armed.proposed["subagent_id"])["status"] == "success"
    (decided,) = read_log(armed.there.root, "SpawnDecided", run=armed.proposed["subagent_id"])
    assert decided.content["channel"] == "browser"
    (passkey,) = stored(armed.there).of(HERE)
    assert passkey.counter == 1 and passkey.used_us is not None


def test_a_session_alone_no_longer_approves_but_still_rejects(armed: Armed) -> None:
    refused = armed.visitor.decide(armed.pending, "approve")
    assert refused.status_code == 409 and "Use your passkey" in refused.text and armed.waits()
    again = armed.there.signed_in()
    assert again.decide(armed.pending, "approve", pin="123456").status_code == 409 and armed.waits()
    assert armed.visitor.decide(armed.pending, "reject").status_code == 303
    assert armed.there.state(armed.proposed) == "rejected"


WRONG: dict[str, Callable[[Armed], dict[str, Any]]] = {
    "an invented challenge": lambda _armed: {"challenge": "A" * 43},
    "another origin": lambda _armed: {"origin": "http://localhost:1"},
    "another scheme": lambda armed: {"origin": armed.there.base.replace("http", "https")},
    "another site": lambda _armed: {"origin": "http://evil.localhost:1"},
    "another relying party": lambda _armed: {"host": "example.org"},
    "no verification of the user": lambda _armed: {"verified": False},
    "no presence of the user": lambda _armed: {"present": False},
    "the signature of a new passkey": lambda _armed: {"kind": "webauthn.create"},
    "a page inside another site's": lambda _armed: {"crossed": True},
    "another key": lambda armed: {"signed_by": Authenticator(armed.there.base)},
    "an unknown passkey": lambda _armed: {"credential": b"unknown passkey!"},
}


@pytest.mark.parametrize("what", WRONG)
def test_refuses_a_use_with_something_wrong(armed: Armed, what: str) -> None:
    decision = DecisionForm(armed.visitor, armed.pending)
    status, page = decision.send(armed.key.get(decision.options(), **WRONG[what](armed)))
    assert status == 409 and 'role="alert"' in page and armed.waits()
    assert decision.send(armed.key.get(decision.options()))[0] == 303  # the rest of it was right


@pytest.mark.parametrize("given", ["{}", "[]", "x", "null", '{"id": 1}', "[" * 9_000, '"' + "x" * 20_000 + '"'])
def test_refuses_what_is_not_from_a_browser(armed: Armed, given: str) -> None:
    status, page = DecisionForm(armed.visitor, armed.pending).send(given)
    assert status == 409 and "could not be checked" in page and armed.waits()


@pytest.mark.parametrize("part", ["clientDataJSON", "authenticatorData", "signature"])
@pytest.mark.parametrize("instead", ["", "AAAA", "!", None, 7])
def test_refuses_an_answer_with_a_broken_part(armed: Armed, part: str, instead: object) -> None:
    decision = DecisionForm(armed.visitor, armed.pending)
    answer = json.loads(armed.key.get(decision.options()))
    answer["response"][part] = instead
    assert decision.send(json.dumps(answer))[0] == 409 and armed.waits()


def test_a_challenge_counts_once_even_where_it_approved_nothing(armed: Armed) -> None:
    decision = DecisionForm(armed.visitor, armed.pending, cost="many")
    options = decision.options()
    assert decision.send(armed.key.get(options))[0] == 400 or armed.waits()
    status, page = decision.send(armed.key.get(options))
    assert status == 409 and "sent before" in page and armed.waits()


def test_a_use_for_one_proposal_approves_no_other(armed: Armed) -> None:
    second = armed.there.host.propose(task="Something else?")
    other = second["pending_id"]
    one, two, both = (DecisionForm(armed.visitor, *ids) for ids in ((armed.pending,), (other,), (armed.pending, other)))
    for asked_for, sent in ((two, one), (both, one), (one, both), (one, two)):
        status, page = sent.send(armed.key.get(asked_for.options()))
        assert status == 409 and "something else" in page and armed.waits()
    assert both.send(armed.key.get(both.options()))[0] == 303
    assert not armed.waits() and armed.there.state(second) != "awaiting_approval"


def test_a_use_counts_for_exactly_what_the_form_said(armed: Armed) -> None:
    shown = DecisionForm(armed.visitor, armed.pending, cost="0.05")
    for name, value in (("cost", "0.06"), ("digest", "0" * 64), ("decision", "approve")):
        sent = DecisionForm(armed.visitor, armed.pending, cost="0.05")
        sent.fields = [(each, value if each == name else text) for each, text in sent.fields]
        if name == "decision":
            sent.fields.append(("minutes", "1"))
        status, _page = sent.send(armed.key.get(shown.options()))
        assert status == 409 and armed.waits()


def test_a_remembered_challenge_holds_no_text_of_the_form() -> None:
    long = Subject.of("/proposals", [("message", "x" * 100_000)])
    assert len(repr(long)) < 500 and long != Subject.of("/proposals", [("message", "x" * 99_999)])
    assert Subject.of("/a", [("b", "c"), ("csrf", "1")]) == Subject.of("/a", [("csrf", "2"), ("b", "c")])
    assert Subject.of("/a", [("b", "c"), ("b", "d")]) != Subject.of("/a", [("b", "d"), ("b", "c")])


def test_a_use_in_one_session_counts_in_no_other(armed: Armed) -> None:
    elsewhere = armed.there.signed_in()
    options = DecisionForm(elsewhere, armed.pending).options()
    status, page = DecisionForm(armed.visitor, armed.pending).send(armed.key.get(options))
    assert status == 409 and "something else" in page and armed.waits()


def test_refuses_a_count_of_signatures_that_went_back(armed: Armed) -> None:
    first = armed.there.host.propose(task="First?")["pending_id"]
    decision = DecisionForm(armed.visitor, first)
    assert decision.send(armed.key.get(decision.options(), counter=7))[0] == 303
    again = DecisionForm(armed.visitor, armed.pending)
    for counter in (7, 3, 0):
        status, page = again.send(armed.key.get(again.options(), counter=counter))
        assert status == 409 and "there may be a copy" in page and armed.waits()
    assert again.send(armed.key.get(again.options(), counter=8))[0] == 303


def test_a_passkey_that_does_not_count_signatures_can_be_used_again(armed: Armed) -> None:
    for pending in (armed.there.host.propose(task="First?")["pending_id"], armed.pending):
        decision = DecisionForm(armed.visitor, pending)
        assert decision.send(armed.key.get(decision.options(), counter=0))[0] == 303


def test_a_removed_passkey_approves_nothing(armed: Armed) -> None:
    add_passkey(armed.there, armed.visitor, HERE, "phone")
    decision = DecisionForm(armed.visitor, armed.pending)
    options = decision.options()
    assert stored(armed.there).remove(HERE, "laptop") is not None
    assert decision.send(armed.key.get(options))[0] == 409 and armed.waits()


def test_another_users_passkey_approves_nothing(armed: Armed) -> None:
    theirs = Authenticator(armed.there.base)
    code = armed.there.sessions.issue_passkey_code(HERE, "phone")
    _status, options = post_json(armed.visitor, "/passkeys/new/options", {"code": code})
    armed.visitor.post("/passkeys", {"csrf": armed.visitor.csrf, "code": code, "passkey": theirs.create(options)})
    file = DataRoot(armed.there.root).passkeys
    (phone,) = [each for each in stored(armed.there).all() if each.name == "phone"]
    text = file.read_text()
    begin = text.index(f"[{phone.id}]")
    file.write_text(text[:begin] + text[begin:].replace(f'user = "{HERE}"', 'user = "somebody"', 1))
    decision = DecisionForm(armed.visitor, armed.pending)
    assert decision.send(theirs.get(decision.options()))[0] == 409 and armed.waits()


@contextmanager
def late(root: Path) -> Generator[There]:
    """A server of a data root that has no other, whose challenges are too old at once."""
    with start_blocking_portal() as portal, ExitStack() as stack:
        opened = serve_pages(root, start=(sys.executable, "-c", LATE))
        server = stack.enter_context(portal.wrap_async_context_manager(opened))
        yield There(root, server, portal, Host(portal, None), [], stack)


@pytest.mark.slow
def test_a_challenge_expires(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data") as there:
        key, proposed = add_passkey(there, there.signed_in(), HERE), there.host.propose()
    with late(there.root) as server:
        key.origin = server.base
        decision = DecisionForm(server.signed_in(), proposed["pending_id"])
        status, page = decision.send(key.get(decision.options()))
    assert status == 409 and "older than 5 minutes" in page and not there.starts(proposed)


def test_with_a_pin_a_passkey_and_the_pin_both_approve(there: There) -> None:
    set_pin(there.root)
    visitor = there.signed_in()
    key = add_passkey(there, visitor, HERE)
    one, two = there.host.propose(), there.host.propose(task="Two?")
    page = visitor.get(f"/proposals/{one['pending_id']}").text
    assert "Approval PIN, or leave it empty to use your passkey" in page
    decision = DecisionForm(visitor, one["pending_id"])
    assert decision.send("", pin="999999")[0] == 409 and decision.send("")[0] == 409 and not there.starts(one)
    assert decision.send(key.get(decision.options()))[0] == 303
    assert visitor.decide(two["pending_id"], "approve", pin=PIN).status_code == 303


@pytest.mark.slow
def test_a_passkey_is_asked_for_where_the_policy_is_human_without_a_pin(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", f'approval = "human"\n{PAID}') as there:
        visitor, proposed = there.signed_in(), there.host.propose()
        assert "Choose your approval PIN" in visitor.get(f"/proposals/{proposed['pending_id']}").text
        key = add_passkey(there, visitor, HERE)
        decision = DecisionForm(visitor, proposed["pending_id"])
        assert decision.send(key.get(decision.options()))[0] == 303


def test_a_damaged_file_of_passkeys_approves_nothing(armed: Armed) -> None:
    DataRoot(armed.there.root).passkeys.write_text("[x]\nname = 1\n")
    answer = armed.visitor.http.get(f"/proposals/{armed.pending}")
    assert answer.status_code == 503 and "passkeys.toml" in answer.text


@pytest.mark.slow
def test_a_use_for_one_answer_to_a_call_is_no_other_answer(tmp_path: Path) -> None:
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), send_mail(EVIL), send_mail("ann@example.net")])
    settings = f"{PAID}\n[limits]\nquestion_wait_s = 300\n{stdio_server('good', 'mail')}"
    with open_pages(tmp_path / "data", settings, lambda _asked: next(steps, hand_over())) as there:
        write_role(there.root, ALL)
        visitor = there.signed_in()
        key = add_passkey(there, visitor, HERE)
        proposed = there.host.propose(role="guest", task="Write to bob@example.org about lunch.")
        decision, run_id = DecisionForm(visitor, proposed["pending_id"]), proposed["subagent_id"]
        assert decision.send(key.get(decision.options()))[0] == 303
        path = f"/subagents/{run_id}/message"

        def question(number: int) -> dict[str, str]:
            there.until(lambda: len(read_log(there.root, "Asked", run=run_id)) == number)
            return {"question": read_log(there.root, "Asked", run=run_id)[-1].content["ask_id"]}

        def used(fields: dict[str, str], by: Visitor = visitor, to: str = path, **wrong: Any) -> str:
            status, options = post_json(by, "/passkeys/options", {"path": to, "fields": list(fields.items())})
            assert status == 200, options
            return key.get(options, **wrong)

        def sent(fields: dict[str, str], passkey: str) -> int:
            return visitor.post(path, {"csrf": visitor.csrf, **fields, "passkey": passkey}).status_code

        yes = {**question(1), "message": "yes"}
        for passkey in (
            "",
            used({**yes, "message": "no"}),
            used({**yes, "question": "Q-00000000"}),
            used(yes, to=f"/subagents/{run_id}/extension"),
            used(yes, by=there.signed_in()),
            used(yes, verified=False),
            used(yes, signed_by=Authenticator(there.base)),
        ):
            assert sent(yes, passkey) == 409, visitor.shown
        assert not read_log(there.root, "Answered")
        once = used(yes)
        assert sent(yes, once) == 303
        again = {**question(2), "message": "yes"}
        assert sent(again, once) == 409 and sent(again, used(yes)) == 409
        assert sent({**again, "message": "no"}, "") == 303
        there.host.ended(run_id)
        results = [each.content for each in read_log(there.root, "ToolResult", run=run_id)]
        assert [each["success"] for each in results if each["tool"] == SEND] == [True, False]


# -- adding and removing ----------------------------------------------------------------------------------------------


def test_a_session_alone_adds_no_passkey(there: There) -> None:
    visitor = there.signed_in()
    theirs = there.sessions.issue_passkey_code("somebody", "laptop")
    signs_in = there.code()
    for given in (
        {},
        {"name": "x"},
        {"name": "x", "pin": PIN},
        *({"code": c} for c in ("x", theirs, signs_in, "ü")),
    ):
        status, said = post_json(visitor, "/passkeys/new/options", given)
        assert status == 409 and "ava passkey add" in said["error"], given
    right = there.sessions.issue_passkey_code(HERE, "laptop")
    status, options = post_json(visitor, "/passkeys/new/options", {"code": right})
    made = Authenticator(there.base).create(options)
    for fields in ({}, {"name": "laptop"}, {"code": theirs}, {"name": "laptop", "pin": PIN}):
        answer = visitor.post("/passkeys", {"csrf": visitor.csrf, "passkey": made, **fields})
        assert answer.status_code == 409 and "ava passkey add" in answer.text
    outside = there.visitor()
    assert outside.post("/passkeys", {"code": right, "passkey": made}).status_code == 401
    assert outside.get(f"/passkeys/new?code={right}").status_code == 303
    assert visitor.post("/passkeys", {"code": right, "passkey": made}).status_code == 409
    assert not stored(there).all()
    assert visitor.post("/passkeys", {"csrf": visitor.csrf, "code": right, "passkey": made}).status_code == 303
    recorded = read_log(there.root, "SettingsChanged")[-1].content
    assert recorded["setting"] == "passkeys.laptop" and recorded["after"]["user"] == HERE and "before" not in recorded


def test_a_code_adds_one_passkey(there: There) -> None:
    visitor = there.signed_in()
    code = there.sessions.issue_passkey_code(HERE, "laptop")
    page = visitor.get(f"/passkeys/new?code={code}").text
    assert "Add the passkey laptop" in page and code in page
    tries = [post_json(visitor, "/passkeys/new/options", {"code": code})[1] for _ in range(2)]
    for index, options in enumerate(tries):
        fields = {"csrf": visitor.csrf, "code": code, "passkey": Authenticator(there.base).create(options)}
        assert visitor.post("/passkeys", fields).status_code == (303, 409)[index]
    assert [each.name for each in stored(there).all()] == ["laptop"]


def test_refuses_a_new_passkey_with_something_wrong(there: There) -> None:
    visitor, other = there.signed_in(), there.signed_in()

    def tried(passkey: Callable[[dict[str, Any]], str], sender: Visitor, name: str = "laptop") -> int:
        code = there.sessions.issue_passkey_code(HERE, name)
        _status, options = post_json(visitor, "/passkeys/new/options", {"code": code})
        fields = {"csrf": sender.csrf, "code": code, "passkey": passkey(options)}
        return sender.post("/passkeys", fields).status_code

    key = Authenticator(there.base)
    assert tried(lambda options: key.create(options, verified=False), visitor) == 409
    assert tried(lambda options: key.create(options, origin="http://localhost:1"), visitor) == 409
    assert tried(lambda options: key.create({**options, "challenge": "A" * 43}), visitor) == 409
    assert tried(lambda options: Authenticator("http://example.org").create(options, origin=there.base), visitor) == 409
    assert tried(key.create, other) == 409
    assert tried(lambda _options: "{}", visitor) == 409
    assert tried(lambda _options: "", visitor) == 409
    assert not stored(there).all()
    assert tried(key.create, visitor) == 303
    assert tried(key.create, visitor, "again") == 409
    code = there.sessions.issue_passkey_code(HERE, "laptop")
    status, said = post_json(visitor, "/passkeys/new/options", {"code": code})
    assert status == 409 and "already" in said["error"]


def test_the_pin_adds_a_passkey_and_five_wrong_ones_lock_it(there: There) -> None:
    set_pin(there.root)
    visitor = there.signed_in()
    assert "Five wrong PINs lock it" in visitor.get("/passkeys").text
    status, options = post_json(visitor, "/passkeys/new/options", {"name": "laptop", "pin": PIN})
    made = Authenticator(there.base).create(options)
    said = [post_json(visitor, "/passkeys/new/options", {"name": "x", "pin": "000000"})[1]["error"] for _ in range(3)]
    assert status == 200 and "4 tries are left" in said[0] and "2 tries are left" in said[2]
    fields = {"csrf": visitor.csrf, "name": "laptop", "passkey": made}
    wrong = [visitor.post("/passkeys", {**fields, "pin": "000000"}).text for _ in range(2)]
    assert "1 try is left" in wrong[0] and "locked for 15 minutes" in wrong[1]
    assert "The PIN is locked" in visitor.post("/passkeys", {**fields, "pin": PIN}).text
    assert not stored(there).all()


def test_the_right_pin_adds_a_passkey_under_a_valid_name(there: There) -> None:
    set_pin(there.root)
    visitor, key = there.signed_in(), Authenticator(there.base)
    for name in ("", "1", "a b", "x" * 65, "<b>"):
        status, said = post_json(visitor, "/passkeys/new/options", {"name": name, "pin": PIN})
        assert status == 409 and "name has letters" in said["error"]
    _status, options = post_json(visitor, "/passkeys/new/options", {"name": "laptop", "pin": PIN})
    fields = {"csrf": visitor.csrf, "pin": PIN, "passkey": key.create(options)}
    assert visitor.post("/passkeys", {**fields, "name": "other"}).status_code == 409
    _status, options = post_json(visitor, "/passkeys/new/options", {"name": "laptop", "pin": PIN})
    fields["passkey"] = key.create(options)
    assert visitor.post("/passkeys", {**fields, "name": "laptop"}).status_code == 303


def test_removing_a_passkey_takes_a_passkey_or_the_pin(armed: Armed) -> None:
    visitor, (passkey,) = armed.visitor, stored(armed.there).of(HERE)
    path = f"/passkeys/{passkey.id}/remove"
    decision = DecisionForm(visitor, armed.pending)
    for given in ("", "{}", armed.key.get(decision.options())):
        assert visitor.post(path, {"csrf": visitor.csrf, "passkey": given}).status_code == 409
    assert visitor.post("/passkeys/0000000000000000/remove", {"csrf": visitor.csrf}).status_code == 404
    assert stored(armed.there).of(HERE)
    _status, options = post_json(visitor, "/passkeys/options", {"path": path, "fields": []})
    assert visitor.post(path, {"csrf": visitor.csrf, "passkey": armed.key.get(options)}).status_code == 303
    assert not stored(armed.there).all()
    removed = read_log(armed.there.root, "SettingsChanged")[-1].content
    assert removed["setting"] == "passkeys.laptop" and removed["before"]["id"] == passkey.id and "after" not in removed


def test_the_pin_removes_a_passkey(there: There) -> None:
    visitor = there.signed_in()
    add_passkey(there, visitor, HERE)
    set_pin(there.root)
    (passkey,) = stored(there).of(HERE)
    path = f"/passkeys/{passkey.id}/remove"
    assert "3 tries" not in visitor.post(path, {"csrf": visitor.csrf, "pin": "000000"}).text and stored(there).all()
    assert visitor.post(path, {"csrf": visitor.csrf, "pin": PIN}).status_code == 303 and not stored(there).all()


def test_scripts_need_the_csrf_token_and_a_session(armed: Armed) -> None:
    body = {"path": "/proposals", "fields": []}
    for path, sent in (("/passkeys/options", body), ("/passkeys/new/options", {"code": "x"})):
        assert post_json(armed.visitor, path, sent, csrf="0" * 64)[0] == 409
        assert post_json(armed.there.visitor(), path, sent, csrf="0" * 64)[0] == 401
        assert post_json(armed.visitor, path, [1])[0] == 409 and post_json(armed.visitor, path, {"more": 1})[0] == 409
        foreign = {"Origin": "https://evil.example", "X-CSRF-Token": armed.visitor.csrf}
        assert armed.visitor.http.post(path, json=sent, headers=foreign).status_code == 403


# -- signing in -------------------------------------------------------------------------------------------------------


def test_a_passkey_signs_in_on_this_machine(armed: Armed) -> None:
    visitor = armed.there.visitor()
    assert "Sign in with your passkey" in visitor.get("/sign-in").text
    _status, options = post_json(visitor, "/sign-in/options", {}, csrf="-")
    answer = armed.key.get(options)
    assert visitor.post("/sign-in", {"passkey": answer, "to": "/health"}).headers["location"] == "/health"
    assert visitor.get("/").status_code == 200
    assert visitor.decide(armed.pending, "approve").status_code == 409 and armed.waits()
    assert armed.there.visitor().post("/sign-in", {"passkey": answer}).status_code == 403


def test_a_use_for_an_approval_signs_nobody_in_and_one_to_sign_in_approves_nothing(armed: Armed) -> None:
    decision, outside = DecisionForm(armed.visitor, armed.pending), armed.there.visitor()
    assert outside.post("/sign-in", {"passkey": armed.key.get(decision.options())}).status_code == 403
    _status, options = post_json(outside, "/sign-in/options", {}, csrf="-")
    assert decision.send(armed.key.get(options))[0] == 409 and armed.waits()
    path = {"path": "/sign-in", "fields": []}
    _status, options = post_json(armed.visitor, "/passkeys/options", path)
    assert outside.post("/sign-in", {"passkey": armed.key.get(options)}).status_code == 403


def test_without_a_passkey_there_is_nothing_to_sign_in_with(there: There) -> None:
    visitor = there.visitor()
    assert "Sign in with your passkey" not in visitor.get("/sign-in").text
    assert post_json(visitor, "/sign-in/options", {}, csrf="-") == (
        409,
        {"error": "You have no passkey for this site."},
    )


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_over_http_it_takes_the_token_and_the_passkey(team: Armed) -> None:
    assert team.visitor.decide(team.pending, "approve").status_code == 409 and team.waits()
    reader = team.there.with_token(some_token(team.there, "ana", "read"))
    decision = DecisionForm(reader, team.pending)
    status, page = decision.send(team.key.get(decision.options()))
    assert status == 409 and "lacks the scope approve" in page and team.waits()
    outside = team.there.visitor()
    assert post_json(outside, "/sign-in/options", {}, csrf="-")[0] == 409
    assert outside.post("/sign-in", {"passkey": "{}"}).status_code == 403
    decision = DecisionForm(team.visitor, team.pending)
    assert decision.send(team.key.get(decision.options()))[0] == 303
    assert team.there.host.ended(team.proposed["subagent_id"])["status"] == "success"


def test_approvals_refuses_the_token_alone_of_a_user_with_a_passkey(team: Armed) -> None:
    bearer = {"Authorization": f"Bearer {some_token(team.there, 'ana', 'approve')}"}
    http = team.there.visitor().http
    proposals = http.get("/approvals", headers=bearer).json()["proposals"]
    (shown,) = [each for each in proposals if each["pending_id"] == team.pending]
    given = {"pending_ids": [shown["pending_id"]], "digests": {shown["pending_id"]: shown["digest"]}}
    approve = {"decision": "approve", "approving": [shown["approval_line"]], **given}
    answer = http.post("/approvals", json=approve, headers=bearer)
    assert answer.status_code == 409 and team.there.base in answer.json()["error_description"] and team.waits()
    more = {"decision": "approve", "subagent_id": team.proposed["subagent_id"], "digest": "0" * 64}
    assert "passkey" in http.post("/approvals", json=more, headers=bearer).json()["error_description"]
    rejected = http.post("/approvals", json={"decision": "reject", **given}, headers=bearer)
    assert rejected.status_code == 200 and team.there.state(team.proposed) == "rejected"


def test_users_add_and_use_only_their_own_passkeys(team: Armed) -> None:
    ben = team.there.with_token(some_token(team.there, "ben", "read", "approve"))
    anas = team.there.sessions.issue_passkey_code("ana", "second")
    assert post_json(ben, "/passkeys/new/options", {"code": anas})[0] == 409
    assert post_json(ben, "/passkeys/options", {"path": "/proposals", "fields": []})[0] == 409
    (passkey,) = stored(team.there).of("ana")
    assert ben.post(f"/passkeys/{passkey.id}/remove", {"csrf": ben.csrf}).status_code == 404
    assert passkey.id not in ben.get("/passkeys").text
    own = add_passkey(team.there, ben, "ben")
    _status, options = post_json(ben, "/passkeys/options", {"path": "/proposals", "fields": []})
    assert ben.post("/proposals", {"csrf": ben.csrf, "passkey": own.get(options)}).status_code in (400, 409)
    decision = DecisionForm(team.visitor, team.pending)
    assert decision.send(own.get(decision.options()))[0] == 409 and team.waits()


def test_the_pin_adds_no_passkey_over_http(team: Armed) -> None:
    set_pin(team.there.root)
    status, said = post_json(team.visitor, "/passkeys/new/options", {"name": "phone", "pin": PIN})
    assert status == 409 and "ava passkey add" in said["error"]
    assert 'name="pin"' not in team.visitor.get("/passkeys").text.partition("Add a passkey")[2]


@pytest.mark.slow
def test_an_address_with_numbers_has_no_passkeys_and_says_so(tmp_path: Path) -> None:
    with open_team(tmp_path / "data") as there:
        visitor = there.with_token(token(there.root, "ana", "read", "approve", name="ana-phone"))
        assert "Browsers accept passkeys only over https or on localhost" in visitor.get("/passkeys").text
        code = there.sessions.issue_passkey_code("ana", "phone")
        status, said = post_json(visitor, "/passkeys/new/options", {"code": code})
        assert status == 409 and "--public-url" in said["error"]
        assert visitor.decide(there.host.propose()["pending_id"], "approve").status_code == 303


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_keeps_what_was_added_and_refuses_duplicates(tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "passkeys.toml"
    one = new_passkey("ana", "laptop", "localhost", b"credential", b"key", 3)
    Passkeys(file).add(one)
    assert Passkeys(file).all() == [one] and Passkeys(file).of("ben") == [] and file.stat().st_mode & 0o777 == 0o600
    for again in (one, new_passkey("ana", "laptop", "localhost", b"another", b"key", 0)):
        with pytest.raises(Refused):
            Passkeys(file).add(again)
    Passkeys(file).add(new_passkey("ben", "laptop", "localhost", b"bens", b"key", 0))
    for number in range(19):
        Passkeys(file).add(new_passkey("ana", f"key-{number}", "localhost", f"c{number}".encode(), b"key", 0))
    with pytest.raises(Refused, match="at most 20"):
        Passkeys(file).add(new_passkey("ana", "one-more", "localhost", b"c20", b"key", 0))
    assert Passkeys(file).remove("ana", "laptop") == one and Passkeys(file).remove("ana", "laptop") is None
    with pytest.raises(Refused, match="removed"):
        Passkeys(file).note_use(one, 9)
    text = file.read_text()
    file.write_text(re.sub(r'credential = "\w', 'credential = "!', text, count=1))
    with pytest.raises(ConfigError, match="not as `ava passkey add` writes it"):
        Passkeys(file).all()


@dataclass
class Armed:
    """Somebody with a passkey, and a proposal that waits for them."""

    there: There
    visitor: Visitor
    key: Authenticator
    proposed: dict[str, Any]

    @property
    def pending(self) -> str:
        found: str = self.proposed["pending_id"]
        return found

    def waits(self) -> bool:
        return self.there.state(self.proposed) == "awaiting_approval" and not self.there.starts(self.proposed)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("own") / "data") as there:
        yield there


@pytest.fixture
def there(pages: There) -> There:
    """The server of `ava ui`, without a PIN and without passkeys."""
    root = DataRoot(pages.root)
    for file in (root.passkeys, root.approval_file):
        file.unlink(missing_ok=True)
    return pages


@pytest.fixture
def armed(there: There) -> Armed:
    visitor = there.signed_in()
    return Armed(there, visitor, add_passkey(there, visitor, HERE), there.host.propose())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(
        tmp_path_factory.mktemp("team") / "data", PAID, finish_at_once, args=("--host", "localhost")
    ) as there:
        there.server.base = f"http://localhost:{there.server.port}"
        yield there


@pytest.fixture
def team(servers: There) -> Armed:
    """Ana's server: she has a token that approves, a passkey, and a proposal of her host."""
    root = DataRoot(servers.root)
    for file in (root.passkeys, root.approval_file):
        file.unlink(missing_ok=True)
    visitor = servers.with_token(some_token(servers, "ana", "read", "approve"))
    return Armed(servers, visitor, add_passkey(servers, visitor, "ana"), servers.host.propose())


def some_token(there: There, user: str, *scopes: Any) -> str:
    return token(there.root, user, *scopes, name=f"x{secrets.token_hex(4)}".translate(LETTERS))


def stored(there: There) -> Passkeys:
    return Passkeys(DataRoot(there.root).passkeys)
