"""Who gets a session, and when it ends: codes, tokens, the PIN, cookies, expiry and revocation."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.http_server import token
from support.pages.browser import PIN, There, Visitor, open_pages, open_team, set_pin

from ava_server.config.pin import PinFile
from ava_server.config.sign_in import MOST_OF_USER, BrowserSessions
from ava_server.config.tokens import revoke_token
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.files import replace_file
from ava_server.http.limits import LOOK_EVERY_S
from ava_server.web import sign_in


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("here") / "data") as there:
        yield there


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(tmp_path_factory.mktemp("team") / "data") as there:
        yield there


def signed_in(visitor: Visitor) -> bool:
    return visitor.get("/").status_code == 200


def test_a_code_signs_in_once(here: There) -> None:
    code, first, second = here.code(), here.visitor(), here.visitor()
    answer = first.get(f"/enter?code={code}&to=/subagents")
    assert (answer.status_code, answer.headers["location"]) == (303, "/subagents")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie and "Domain" not in cookie
    assert signed_in(first)
    again = second.get(f"/enter?code={code}")
    assert again.status_code == 403 and "used before" in again.text and "set-cookie" not in again.headers
    assert not signed_in(second)


def test_a_program_that_only_looks_at_the_address_does_not_use_up_the_code(here: There) -> None:
    code, visitor = here.code(), here.visitor()
    looked = visitor.http.head(f"/enter?code={code}")
    assert looked.status_code == 200 and "set-cookie" not in looked.headers
    assert visitor.get(f"/enter?code={code}").status_code == 303


@pytest.mark.parametrize("code", ["", "x", "é", "a" * 5_000, "%00", "'; DROP TABLE", "session"])
def test_an_unknown_code_does_not_sign_in(here: There, code: str) -> None:
    visitor = here.visitor()
    answer = visitor.http.get("/enter", params={"code": code})
    assert answer.status_code in (403, 429) and "set-cookie" not in answer.headers
    assert not signed_in(visitor)


def test_a_session_is_no_code_and_a_code_no_session(here: There) -> None:
    cookie, code = here.signed_in().cookie, here.code()
    assert here.visitor().get(f"/enter?code={cookie}").status_code in (403, 429)
    assert here.visitor(Cookie=f"ava-{here.server.port}={code}").get("/").status_code == 303


def test_an_expired_code_and_an_expired_session_do_not_count(here: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_server.config.sign_in.CODE_US", -1)
    monkeypatch.setattr("ava_server.config.sign_in.SESSION_US", -1)
    assert here.visitor().get(f"/enter?code={here.code()}").status_code in (403, 429)
    cookie = here.sessions.open(os_user(), terminal=True)
    assert here.visitor(Cookie=f"ava-{here.server.port}={cookie}").get("/").status_code == 303


def test_signing_out_ends_the_session_everywhere(here: There) -> None:
    visitor = here.signed_in()
    stolen = here.visitor(Cookie=f"ava-{here.server.port}={visitor.cookie}")
    csrf = visitor.csrf
    assert signed_in(stolen)
    answer = visitor.post("/sign-out", {"csrf": csrf})
    assert answer.status_code == 200 and "Max-Age=0" in answer.headers["set-cookie"]
    assert not signed_in(stolen) and not signed_in(visitor)


def test_signing_out_is_answered_though_the_server_looks_at_the_session_meanwhile(
    here: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = BrowserSessions.end

    def end_slowly(sessions: BrowserSessions, hashed: str) -> None:
        end(sessions, hashed)
        time.sleep(1.5 * LOOK_EVERY_S)

    visitor = here.signed_in()
    monkeypatch.setattr(BrowserSessions, "end", end_slowly)
    assert visitor.post("/sign-out", {"csrf": visitor.csrf}).status_code == 200
    assert not signed_in(visitor)


def test_signing_in_again_leaves_other_sessions_alone_and_gives_a_new_cookie(here: There) -> None:
    visitor = here.signed_in()
    before = visitor.cookie
    visitor.get(f"/enter?code={here.code()}")
    assert visitor.cookie != before and signed_in(visitor)


@pytest.mark.parametrize(
    "cookie",
    [
        "NAME=",
        "NAME={value}x",
        "NAME={value}; NAME={value}",
        "NAME={value}; NAME=other",
        "name={value}",
        "NAME={long}",
        "x={long}; NAME={value}",
        "NAME=\xe9{value}",
        'NAME="{value}"',
        "NAME",
        ";;;=;=NAME",
        "other-NAME={value}",
    ],
)
def test_a_broken_cookie_is_no_session(here: There, cookie: str) -> None:
    value = here.sessions.open(os_user(), terminal=True)
    given = cookie.replace("NAME", f"ava-{here.server.port}").replace("name", f"AVA-{here.server.port}")
    given = given.replace("{value}", value).replace("{long}", "a" * 10_000)
    with httpx2.Client(base_url=here.base, trust_env=False) as http:
        answer = http.get("/", headers=[(b"cookie", given.encode("latin-1"))])
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


def test_the_form_is_given_what_was_asked_for(here: There) -> None:
    visitor = here.visitor()
    answer = visitor.get("/proposals?id=P-1&id=P-2")
    where = answer.headers["location"]
    assert visitor.get(where).status_code == 401
    code = here.code()
    to = where.partition("to=")[2]
    assert visitor.get(f"/enter?code={code}&to={to}").headers["location"] == "/proposals?id=P-1&id=P-2"


@pytest.mark.parametrize(
    "to",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\/evil", "javascript:alert(1)", "/x\r\nCookie: a",
     "/%0d%0aLocation:x\n", "///evil.example", "evil.example", "/" + "a" * 600, "/\t/evil.example", "/\u2028/evil"],
)  # fmt: skip
def test_signing_in_never_leads_to_another_site(here: There, to: str) -> None:
    answer = here.visitor().http.get("/enter", params={"code": here.code(), "to": to})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    form = here.visitor().http.get("/sign-in", params={"to": to})
    assert 'name="to"' not in form.text or 'name="to" value="/"' in form.text


def test_without_a_pin_the_sign_in_page_asks_for_nothing(here: There) -> None:
    visitor = here.visitor()
    page = visitor.get("/sign-in")
    assert page.status_code == 401 and "<form" not in page.text and "ava ui" in page.text
    assert visitor.post("/sign-in", {"pin": PIN, "to": "/"}).status_code == 403
    assert not signed_in(visitor)


def test_a_user_cannot_push_out_the_sessions_of_another(tmp_path: Path) -> None:
    sessions = BrowserSessions(DataRoot(tmp_path).browser_sessions)
    anas = sessions.open("ana", token="0" * 12)
    bens = [sessions.open("ben", token="1" * 12) for _each in range(MOST_OF_USER + 5)]
    assert sessions.find(anas) is not None
    assert [sessions.find(each) is not None for each in bens] == [False] * 5 + [True] * MOST_OF_USER


@pytest.mark.slow
def test_the_pin_signs_in_and_five_wrong_ones_lock_only_who_gave_them(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", pin=True) as there:
        right = there.visitor()
        assert 'name="pin"' in right.get("/sign-in").text
        assert right.post("/sign-in", {"pin": PIN, "to": "/subagents"}).headers["location"] == "/subagents"
        assert signed_in(right)
        wrong = there.visitor()
        said = [wrong.post("/sign-in", {"pin": f"99 88 {number}", "to": "/"}) for number in range(5)]
        assert {each.status_code for each in said} == {403}
        locked = wrong.post("/sign-in", {"pin": PIN, "to": "/"})
        assert locked.status_code == 403 and "locked" in locked.text and "set-cookie" not in locked.headers
        proposed = there.host.propose()
        assert right.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 303
        assert there.starts(proposed) == 1, "the lock is on whoever gave the wrong ones"
        for secret in (PIN, PIN.replace(" ", ""), "99 88 1", right.cookie):
            assert secret not in there.server.stderr


def test_a_token_signs_in_with_its_scopes(team: There) -> None:
    reads = team.with_token(token(team.root, "cyn", "read", name="cyn-reads"))
    assert signed_in(reads) and "cyn" in reads.shown
    nothing = team.with_token(token(team.root, "cyn", "approve", name="cyn-approves"))
    answer = nothing.get("/")
    assert answer.status_code == 404 and "scope read" in answer.text


@pytest.mark.parametrize("text", ["", "avatok_", "avatok_" + "A" * 43, "é" * 20, "a" * 10_000, "\x00", "' OR 1=1"])
def test_an_unknown_token_does_not_sign_in(team: There, text: str) -> None:
    visitor = team.visitor()
    answer = visitor.post("/sign-in", {"token": text, "to": "/"})
    assert answer.status_code in (403, 429) and "set-cookie" not in answer.headers
    assert not signed_in(visitor)


def test_many_wrong_tokens_are_told_to_wait_and_a_right_one_still_signs_in(team: There) -> None:
    visitor = team.visitor()
    tries = [visitor.post("/sign-in", {"token": "avatok_wrong", "to": "/"}) for _each in range(sign_in.FAILURES + 2)]
    assert tries[-1].status_code == 429 and sign_in.TOO_MANY in tries[-1].text
    assert signed_in(team.with_token(token(team.root, "dan", "read")))


def test_neither_the_pin_nor_a_code_signs_in_on_a_team_server(team: There) -> None:
    set_pin(team.root)
    try:
        visitor = team.visitor()
        assert visitor.post("/sign-in", {"pin": PIN, "to": "/"}).status_code in (403, 429)
        assert visitor.get(f"/enter?code={team.code()}").status_code in (403, 429)
        own = BrowserSessions(DataRoot(team.root).browser_sessions).open(os_user(), terminal=True)
        assert team.visitor(Cookie=f"ava-{team.server.port}={own}").get("/").status_code == 303
    finally:
        PinFile(DataRoot(team.root).approval_file).remove(PIN)


def test_a_tokens_session_is_none_on_this_machines_own_pages(here: There) -> None:
    foreign = here.sessions.open("ana", token="0" * 12)
    assert here.visitor(Cookie=f"ava-{here.server.port}={foreign}").get("/").status_code == 303


def test_revoking_a_token_ends_its_session_and_its_stream(team: There) -> None:
    visitor = team.with_token(token(team.root, "eve", "read", name="eve-reads"))
    other = team.with_token(token(team.root, "eve", "read", name="eve-too"))
    with visitor.http.stream("GET", "/stream") as stream:
        pieces = stream.iter_text()
        assert "event: open" in next(pieces)
        revoke_token(team.root / "secrets" / "tokens.toml", "eve-reads")
        began = time.monotonic()
        assert all("event: changed" not in piece for piece in pieces), "it ends without another event"
        assert time.monotonic() - began < 15
    assert not signed_in(visitor) and signed_in(other)


def test_ending_a_session_ends_its_stream(here: There) -> None:
    visitor = here.signed_in()
    csrf = visitor.csrf
    with visitor.http.stream("GET", "/stream") as stream:
        pieces = stream.iter_text()
        assert "event: open" in next(pieces)
        second = here.visitor(Cookie=f"ava-{here.server.port}={visitor.cookie}")
        assert second.post("/sign-out", {"csrf": csrf}).status_code == 200
        began = time.monotonic()
        assert [piece for piece in pieces if "changed" in piece] == []
        assert time.monotonic() - began < 15


def test_a_token_made_again_under_the_same_name_does_not_revive_a_session(team: There) -> None:
    visitor = team.with_token(token(team.root, "fay", "read"))
    revoke_token(team.root / "secrets" / "tokens.toml", "of-fay")
    token(team.root, "fay", "read")
    assert not signed_in(visitor)


def test_a_token_that_was_given_to_another_user_ends_the_session_of_the_first(team: There) -> None:
    visitor = team.with_token(token(team.root, "gil", "read"))
    file = team.root / "secrets" / "tokens.toml"
    assert signed_in(visitor)
    replace_file(file, file.read_bytes().replace(b'user = "gil"', b'user = "hugo"'))
    assert not signed_in(visitor)


def test_no_secret_is_in_an_access_log(team: There) -> None:
    text, code = token(team.root, "ida", "read"), "c" * 43
    visitor = team.with_token(text)
    visitor.get(f"/enter?code={code}&to=/subagents")
    csrf = visitor.csrf
    said = team.server.stderr
    assert "POST /sign-in 303" in said and "GET /enter " in said
    for secret in (text, code, visitor.cookie, csrf):
        assert secret not in said


def test_no_secret_is_in_a_log(here: There) -> None:
    code, visitor = here.code(), here.visitor()
    visitor.get(f"/enter?code={code}&to=/subagents")
    csrf = visitor.csrf
    visitor.post("/sign-out", {"csrf": "wrong"})
    said: Any = here.server.stderr
    stored = b"".join(path.read_bytes() for path in here.root.rglob("*") if path.is_file())
    for secret in (code, visitor.cookie, csrf):
        assert secret not in said and secret.encode() not in stored
