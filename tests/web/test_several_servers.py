"""The pages of several servers behind one address: each step of a person may be on another one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from mcp_types import ElicitRequestURLParams, ElicitResult
from support.http_server import HttpServer, serve_http, token
from support.model_server import run_model_server
from support.network.balancer import Balancer, make_postgres_root
from support.pages.browser import PAID, PIN, TEAM, Host, There, Visitor, finish_at_once, set_pin
from support.pages.passkeys import DecisionForm, add_passkey
from support.stdio import model_env, read_answer, read_log

from ava_server.config.pin import PinFile
from ava_server.config.sign_in import Passkeys
from ava_server.config.tokens import Scope
from ava_server.core.data_root import DataRoot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform == 'win32'", reason="the Postgres of the tests is started on Linux only"),
]

ADDRESS = "http://localhost:4711"
"""What people type; nothing listens there but the balancer."""
NUMBER = iter("abcdefghijklm")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[Team]:
    root = tmp_path_factory.mktemp("team") / "data"
    make_postgres_root(root, f'{PAID}\n[users.hal]\napproval = "human"\n')
    text = token(root, "ana", name="ana-host")
    with run_model_server(finish_at_once) as model, start_blocking_portal() as portal, ExitStack() as stack:
        servers = [
            stack.enter_context(portal.wrap_async_context_manager(opened))
            for opened in (
                serve_http(root, "--public-url", ADDRESS, env=model_env(model.base_url), command=TEAM) for _two in "ab"
            )
        ]
        with ExitStack() as visitors:
            there = Team(root, servers[0], portal, Host(portal, None), model.requests, visitors)
            there.servers = servers
            there.host = there.host_of(text)
            yield there


def test_a_person_signs_in_on_one_server_and_decides_on_another(team: Team) -> None:
    proposed = team.host.propose()
    ana = team.person("ana", "read", "approve")
    assert proposed["pending_id"] in ana.get("/").text, "the other server knows the session at once"
    assert ana.decide(proposed["pending_id"], "approve").status_code == 303, "and the form of the first"
    assert team.host.ended(proposed["subagent_id"])["status"] == "success"
    assert team.starts(proposed) == 1
    through = ana.http._transport
    assert isinstance(through, Balancer) and set(through.sent) == {server.port for server in team.servers}


def test_a_form_without_the_token_of_its_session_is_refused_on_every_server(team: Team) -> None:
    proposed = team.host.propose()
    ana, other = team.person("ana", "read", "approve"), team.person("ana", "read", "approve")
    fields = [
        pair for pair in ana.fields(f"/proposals/{proposed['pending_id']}") if pair[0] not in ("decision", "csrf")
    ]
    for _each_server in team.servers:
        forged = ana.post("/proposals", [*fields, ("csrf", other.csrf), ("decision", "approve")])
        assert forged.status_code == 409 and "form" in forged.text
    assert not team.starts(proposed)


def test_who_signs_out_on_one_server_is_soon_out_on_all(team: Team) -> None:
    ana = team.person("ana", "read")
    cookie = {"Cookie": f"ava-4711={ana.cookie}"}
    assert ana.post("/sign-out", {"csrf": ana.csrf}).status_code == 200
    stranger = team.visitor()
    team.until(lambda: [stranger.get("/", **cookie).status_code for _two in team.servers] == [303, 303], 5)


def test_a_passkey_is_asked_for_by_one_server_and_checked_by_another(team: Team) -> None:
    proposed = team.host.propose()
    ana = team.person("ana", "read", "approve")
    key = add_passkey(team, ana, "ana")
    try:
        team.until(lambda: [bool(ana.get("/passkeys").text.count("laptop")) for _two in team.servers] == [True, True])
        decision = DecisionForm(ana, proposed["pending_id"])
        signed = key.get(decision.options())
        assert decision.send(signed)[0] == 303 and team.starts(proposed) == 1
        again = DecisionForm(ana, team.host.propose()["pending_id"])
        for _each_server in team.servers:
            assert again.send(signed)[0] == 409, "a challenge counts once, whichever server issued it"
        fresh, options = key.get(again.options(), counter=1), again.options()
        assert again.send(fresh)[0] == 409, "the count of signatures that another server has seen"
        assert again.send(key.get(options))[0] == 303
    finally:
        assert Passkeys(DataRoot(team.root).passkeys).remove("ana", "laptop") is not None


def test_wrong_tries_of_the_pin_count_on_all_servers_together(team: Team) -> None:
    set_pin(team.root)
    try:
        ana, proposed = team.person("ana", "read", "approve"), team.host.propose()
        team.until(lambda: all("Approval PIN" in ana.get(f"/proposals/{proposed['pending_id']}").text for _two in "ab"))
        said = [ana.decide(proposed["pending_id"], "approve", pin="999999").text for _try in range(6)]
        assert "4 tries are left" in said[0] and "3 tries are left" in said[1]
        assert "locked for 15 minutes" in said[4] and "is locked for" in said[5]
        assert ana.decide(proposed["pending_id"], "approve", pin=PIN).status_code == 409 and not team.starts(proposed)
    finally:
        _unlock(team)


def _unlock(team: Team) -> None:
    from ava_server.core.shared_files import shared_file

    shared = shared_file(DataRoot(team.root).approval_file)
    assert shared is not None and not DataRoot(team.root).approval_file.exists()
    shared.change(lambda _text: "")
    team.until(lambda: not PinFile(DataRoot(team.root).approval_file).is_set)
    anyio.run(anyio.sleep, 1.2)  # the servers look once a second


def test_the_stream_of_one_server_tells_of_what_another_has_done(team: Team) -> None:
    ana = team.person("ana", "read")
    with ana.http.stream("GET", "/stream") as stream:
        assert stream.status_code == 200
        pieces = stream.iter_text()
        assert "event: open" in next(pieces)
        team.host.propose()
        seen = ""
        while "event: changed" not in seen:
            seen += next(pieces)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_sends_a_person_to_a_page_of_whichever_server(team: Team, mode: str) -> None:
    hal, text = team.person("hal", "read", "approve"), token(team.root, "hal", name=f"hal-{next(NUMBER)}")
    opened: list[str] = []

    async def open_page(_context: object, params: object) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        opened.append(params.url)
        path = params.url.removeprefix(ADDRESS)
        answer = await anyio.to_thread.run_sync(lambda: hal.decide(path, "approve"))
        assert answer.status_code == 303, answer.text
        return ElicitResult(action="accept")

    async def host() -> dict[str, Any]:
        balancer = Balancer(team.servers)
        async with team.server.client(text, mode=mode, ask=open_page, through=balancer) as client:
            proposed = read_answer(await client.call_tool("spawn_subagent", {"role": "researcher", "task": "What?"}))[0]
            asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            confirmed = read_answer(await client.call_tool("confirm_spawn", asked))[0]
            assert min(balancer.sent.count(server.port) for server in team.servers) > 1
            return {**confirmed, "run": proposed["subagent_id"]}

    confirmed = team.portal.call(host)
    assert confirmed["status"] == "approved" and len(opened) == 1 and opened[0].startswith(f"{ADDRESS}/proposals/")
    (decided,) = read_log(team.root, "SpawnDecided", run=confirmed["run"])
    assert decided.content["channel"] == "browser"


class Team(There):
    """A team's servers, each of whose visitors comes to another one with every request."""

    servers: list[HttpServer]

    def visitor(self, **headers: str) -> Visitor:
        through = Balancer(self.servers)
        client = httpx2.Client(base_url=ADDRESS, timeout=20, headers=headers, transport=through)
        return Visitor(ADDRESS, self.visitors.enter_context(client))

    def person(self, user: str, *scopes: Scope) -> Visitor:
        return self.with_token(token(self.root, user, *scopes, name=f"{user}-{next(NUMBER)}"))
