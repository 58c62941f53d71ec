"""Requests that do not come from a page of this site, and requests that are broken: what they get, and its headers."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest
from support.http_server import token
from support.pages.browser import There, open_pages

from ava_server.core.data_root import os_user
from ava_server.web import site as sites
from ava_server.web.context import NAVIGATION, static_files
from ava_server.web.site import FORM_BYTES, HEADERS


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("here") / "data") as there:
        yield there


@pytest.fixture(scope="module")
def proposed(here: There) -> dict[str, str]:
    found: dict[str, str] = here.host.propose()
    return found


POSTS = ("/proposals", "/sign-out", "/subagents/{run}/cancel", "/subagents/{run}/message", "/subagents/{run}/extension")


@pytest.mark.parametrize("path", POSTS)
def test_a_change_takes_the_sessions_own_csrf_token(here: There, proposed: dict[str, str], path: str) -> None:
    visitor, other = here.signed_in(), here.signed_in()
    path = path.format(run=proposed["subagent_id"])
    fields = [pair for pair in visitor.fields(f"/proposals/{proposed['pending_id']}") if pair[0] in ("id", "digest")]
    fields += [("decision", "approve"), ("message", "hello")]
    for csrf in ([], [("csrf", "")], [("csrf", "0" * 64)], [("csrf", other.csrf)], [("csrf", "é")]):
        answer = visitor.post(path, [*fields, *csrf])
        assert answer.status_code == 409 and "does not come from this page" in answer.text, csrf
    right = [*fields, ("csrf", visitor.csrf)]
    for headers in (
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": ""},
        {"Origin": f"http://localhost:{here.server.port + 1}"}, {"Origin": here.base.replace("http", "https")},
        {"Origin": f"http://localhost.evil.example:{here.server.port}"}, {"Origin": f"{here.base}@evil.example"},
        {"Origin": f"http://[::1]:{here.server.port}"}, {"Origin": f"http://127.0.0.1:{here.server.port}"},
        {"Host": f"127.0.0.1:{here.server.port}"}, {"Host": "localhost"},
    ):  # fmt: skip
        assert visitor.post(path, right, **headers).status_code in (403, 409), headers
    without = httpx2.post(
        f"{here.base}{path}", content="x=1", headers={"Cookie": f"ava-{here.server.port}={visitor.cookie}"},
        trust_env=False,
    )  # fmt: skip
    assert without.status_code == 409, "a form without an Origin comes from no browser"
    assert here.state(proposed) == "awaiting_approval" and visitor.get("/").status_code == 200


def test_a_change_takes_a_session(here: There, proposed: dict[str, str]) -> None:
    csrf = here.signed_in().csrf
    for path in POSTS:
        answer = here.visitor().post(path.format(run=proposed["subagent_id"]), {"csrf": csrf, "decision": "approve"})
        assert answer.status_code == 401 and "nothing was done" in answer.text
    assert here.state(proposed) == "awaiting_approval"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:80", "localhost@evil", "", "a b"]
)
def test_another_host_name_is_refused_so_that_no_other_site_can_become_this_one(here: There, host: str) -> None:
    visitor = here.signed_in()
    for path in ("/", "/sign-in", "/stream", "/static/ava.js", "/enter?code=x"):
        answer = visitor.get(path, Host=host)
        assert answer.status_code in (400, 421) and "set-cookie" not in answer.headers


def test_a_form_that_is_too_large_or_no_form_is_refused(here: There) -> None:
    visitor = here.signed_in()
    csrf = visitor.csrf
    too_large = visitor.post("/proposals", {"csrf": csrf, "x": "a" * FORM_BYTES})
    assert too_large.status_code == 400 and "longer than" in too_large.text
    many = visitor.post("/proposals", [("csrf", csrf), *[("id", "x")] * 1_000])
    assert many.status_code == 400 and "cannot be read" in many.text
    own = {"Origin": here.base}
    for body in (b"\xff\xfe\x00", b'{"csrf": 1}', b"csrf=%ff%fe", b"=&=&&;", b""):
        answer = visitor.http.post("/proposals", content=body, headers=own)
        assert answer.status_code in (400, 409) and "Ava itself" not in answer.text, body


def test_only_the_methods_of_a_page_are_answered(here: There) -> None:
    visitor = here.signed_in()
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "POST", "TRACE"):
        answer = visitor.http.request(method, "/", headers={"Origin": here.base})
        assert answer.status_code == 405, (method, answer.status_code)
        assert_headers(answer)
    for path in ("/sign-out", "/subagents/S-1/cancel"):
        assert visitor.get(path).status_code == 405
    for path in ("/", "/subagents", "/stream", "/static/ava.css"):
        looked = visitor.http.head(path)
        assert looked.status_code == 200 and looked.content == b""
        assert_headers(looked)


def assert_headers(answer: httpx2.Response) -> None:
    for name, value in HEADERS.items():
        assert answer.headers[name] == value or name == "Cache-Control", (answer.request.url, name)
    assert "no-store" in answer.headers["cache-control"] or answer.request.url.path.startswith("/static/")
    assert "server" not in answer.headers


def test_every_answer_has_the_headers_that_protect_it(here: There, proposed: dict[str, str]) -> None:
    visitor, html = here.signed_in(), {"Accept": "text/html"}
    signed_in = [
        ("/", 200), ("/?all", 200), *((path, 200) for path, _name in NAVIGATION),
        ("/subagents", 200), (f"/subagents/{proposed['subagent_id']}", 200),
        (f"/proposals/{proposed['pending_id']}", 200), ("/subagents/S-0dd0dd0d", 404), ("/subagents/x", 404),
        ("/proposals", 404), ("/nothing", 404), ("/subagents/", 404), ("/static/none.js", 404), ("/sign-in", 303),
        ("/stream?run=S-0dd0dd0d", 404),
    ]  # fmt: skip
    for path, status in signed_in:
        answer = visitor.get(path, **html)
        assert answer.status_code == status, (path, answer.status_code)
        assert_headers(answer)
    stranger = here.visitor()
    for path, status in [("/", 303), ("/sign-in", 401), ("/subagents/S-1", 303), ("/stream", 303), ("/x", 404)]:
        answer = stranger.get(path, **html)
        assert answer.status_code == status, (path, answer.status_code)
        assert_headers(answer)
        assert "ava-" not in answer.text
    part = stranger.get("/", **{"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in")
    assert_headers(part)


def test_the_policy_allows_no_inline_script_no_other_host_and_no_frame() -> None:
    policy = dict(each.split(" ", 1) for each in HEADERS["Content-Security-Policy"].split("; "))
    assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("frame-ancestors") == "'none'"
    assert set(policy.values()) == {"'self'"}


@pytest.mark.parametrize(
    "path", sorted(Path("server/ava_server/web/templates").glob("*.html")), ids=lambda path: path.name
)
def test_no_template_has_inline_code_or_marks_text_as_safe(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:|\|\s*safe\b|autoescape", text)
    assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", text)


@pytest.mark.parametrize(
    "name",
    ["../web/asgi.py", "..%2fasgi.py", "%2e%2e%2f%2e%2e%2fpyproject.toml", "..\\asgi.py", "ava.js%00", "%00.js",
     "ava.js/", "/etc/passwd", ".", "..", "", "htmx.LICENSE", "a" * 5_000 + ".js", "%ff.js", "AVA.JS"],
)  # fmt: skip
def test_only_the_static_files_are_served(here: There, name: str) -> None:
    with socket.create_connection(("127.0.0.1", here.server.port), timeout=10) as line:
        line.sendall(f"GET /static/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: line.recv(65_536), b""))
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]


def test_static_files_are_kept_only_under_their_own_version(here: There) -> None:
    visitor = here.visitor()
    page = visitor.get("/sign-in").text
    for address in re.findall(r'"(/static/[^"]+)"', page):
        assert "immutable" in visitor.get(address).headers["cache-control"]
        assert visitor.get(address.partition("?")[0]).headers["cache-control"] == "no-cache"
        assert visitor.get(f"{address}0").headers["cache-control"] == "no-cache"
    assert set(static_files()) >= {"ava.js", "ava.css", "htmx.min.js", "icon.svg"}


def test_a_name_that_nobody_has_is_not_remembered() -> None:
    assert static_files().get("none.js") is None and "none.js" not in static_files()


def test_broken_addresses_are_answered_with_a_page(here: There) -> None:
    for target in (
        b"/subagents/\xff\xfe",
        b"/?\xff=\xfe",
        b"/enter?code=\xff",
        b"/sign-in?to=\xff\xfe",
        b"/proposals?id=\xff",
    ):
        for accept in (b"text/html", b"*/*"):
            with socket.create_connection(("127.0.0.1", here.server.port), timeout=10) as line:
                line.sendall(
                    b"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\nConnection: close\r\n\r\n" % (target, accept)
                )
                answer = b"".join(iter(lambda: line.recv(65_536), b""))
            assert answer.split(b" ")[1] in (b"303", b"400", b"401", b"403", b"404", b"429"), (target, answer[:200])


def test_bearer_tokens_are_answered_as_before_at_the_same_paths(here: There) -> None:
    text = token(here.root, os_user(), "read")
    http = here.server
    answers = {path: here.portal.call(http.get, path, text) for path in ("/", "/subagents", "/proposals", "/log")}
    assert answers["/"].status_code == 404 and "Paths: /mcp" in answers["/"].json()["error_description"]
    assert answers["/subagents"].status_code == answers["/proposals"].status_code == 404
    assert answers["/log"].headers["content-type"].startswith("application/json")
    wrong = here.portal.call(http.get, "/", "avatok_wrong")
    assert wrong.status_code == 401 and json.loads(wrong.text)["error"] == "invalid_token"
    bare = here.portal.call(http.post, "/mcp")
    assert bare.status_code == 401 and "www-authenticate" in bare.headers


def test_a_link_on_another_site_leads_to_the_page_and_keeps_the_session(here: There) -> None:
    visitor = here.visitor()
    answer = visitor.get("/subagents?done=%22%3E%3Cscript%3E", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200 and "url=/subagents?done=%22%3E%3Cscript%3E" in answer.text
    assert "<script" not in answer.text


def test_only_a_socket_that_this_user_still_holds_proves_whose_connection_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = ("127.0.0.1", 40_000), ("127.0.0.1", 8_643)
    table = tmp_path / "tcp"
    monkeypatch.setattr(sites, "_TABLES", (table,))

    def ends(owner: int, inode: int) -> str:
        addresses = " ".join(
            f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}" for host, port in (client, server)
        )
        return f"sl  local_address\n   0: {addresses} 01 00000000:00000000 00:00000000 00000000 {owner:5} 0 {inode} 1\n"

    for owner, inode, own in ((0, 77, True), (58_500, 77, False), (0, 0, False)):
        table.write_text(ends(owner, inode))
        assert sites.is_own(client, server) is own, "a closed socket has root for its owner, and no inode"
    table.write_text("sl  local_address\n")
    assert not sites.is_own(client, server)


def test_a_connection_of_this_process_is_found_in_the_systems_table() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as line:
        accepted, _address = listening.accept()
        with accepted:
            assert sites.is_own(line.getsockname(), accepted.getsockname())
