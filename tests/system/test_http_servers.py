"""Several HTTP servers on one log in Postgres, behind a load balancer: any of them answers any request."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
import pytest
from mcp.client.subscriptions import ResourceUpdated
from mcp_types import ElicitResult
from support.hosts.updates import Ear, follow_updates
from support.http_server import BOTH, HELLO, META, HttpServer, bearer, token
from support.model_server import Gate, Say, run_model_server
from support.network.balancer import Balancer, make_postgres_root, serve_each
from support.stdio import MODERN, assert_intact, model_env, read_answer, read_log, until

from ava_server.config.tokens import revoke_token
from ava_server.http.http_settings import Reach, inner_url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform == 'win32'", reason="the Postgres of the tests is started on Linux only"),
]

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}
ERAS = ("legacy", "auto")


async def opened(server: HttpServer, text: str) -> dict[str, str]:
    """Open a session of the handshake era; the headers of its further requests."""
    answer = await server.post("/mcp", text, json=HELLO, headers=BOTH)
    assert answer.status_code == 200, answer.text
    headers = {**BOTH, "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await server.post("/mcp", text, json=ready, headers=headers)).status_code == 202
    return headers


async def agree(_context: object, params: object) -> ElicitResult:
    assert "Look it up" in getattr(params, "message", "")
    return ElicitResult(action="accept", content={})


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_whose_requests_alternate_works_as_with_one_server(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text, ear, gate = token(root, "ana"), Ear(), Gate()
    with run_model_server([Say("I look.", [("scratchpad", {"note": "x"})], gate=gate), DONE, Say("y")]) as model:
        async with serve_each(root, root, env=model_env(model.base_url)) as servers:
            balancer = Balancer(servers)
            kept: dict[str, Any] = {"mode": mode, "ask": agree, "hears": ear.on_message, "through": balancer}
            async with servers[0].client(text, **kept) as client:
                assert len((await client.list_tools()).tools) == 6
                proposed = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
                run, uri = proposed["subagent_id"], f"ava://runs/{proposed['subagent_id']}"
                async with follow_updates(client, ear, mode, uri):
                    asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                    assert read_answer(await client.call_tool("confirm_spawn", asked))[0]["status"] == "approved"
                    await until(gate.arrived.is_set)
                    given = {"subagent_id": run, "message": "In which currency?"}
                    for _each in range(2):  # on each server
                        assert not (await client.call_tool("message_subagent", given)).is_error
                    seen: set[str] = set()
                    for _each in range(4):
                        checked = await client.call_tool("check_subagent", {"subagent_id": run})
                        seen.add(read_answer(checked)[0]["runs"][0]["state"])
                    assert seen == {"running"}
                    gate.released.set()
                    waiting = {"subagent_id": run, "wait_seconds": 20}
                    ended = read_answer(await client.call_tool("check_subagent", waiting))[0]
                    assert ended["runs"][0]["untrusted_result"]["output"] == "twelve cents"
                    await ear.until(ResourceUpdated(uri))
                other = read_answer(await client.call_tool("spawn_subagent", {**SPAWN, "task": "Look it up again"}))[0]
                cancelled = await client.call_tool("cancel_subagent", {"subagent_id": other["subagent_id"]})
                assert not cancelled.is_error
            assert min(balancer.sent.count(server.port) for server in servers) > 4, balancer.sent
            assert "In which currency?" in str(model.requests[1].json["messages"])
    assert len(read_log(root, "SpawnDecided", run=run)) == 1
    assert_intact(root)


@pytest.mark.parametrize("kind", ["postgres", "files"])
async def test_a_request_for_another_servers_session_is_answered_there(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "data"
    if kind == "postgres":
        make_postgres_root(root)
    anas, bens = token(root, "ana"), token(root, "ben")
    with run_model_server([DONE]) as model:
        async with serve_each(root, root, env=model_env(model.base_url)) as (one, two):
            session = await opened(one, anas)
            for server in (one, two, one, two):
                answer = await server.post("/mcp", anas, json=LIST, headers=session)
                assert answer.status_code == 200 and '"spawn_subagent"' in answer.text
            foreign = await two.post("/mcp", bens, json=LIST, headers=session)
            assert foreign.status_code == 404, "the owner knows whose session it is"
            assert (await two.post("/mcp", "avatok_x", json=LIST, headers=session)).status_code == 401
            long = {**LIST, "params": {"x": "y" * 5_000_000}}
            assert (await two.post("/mcp", anas, json=long, headers=session)).status_code == 413
            marked = await two.post("/mcp", anas, json=LIST, headers={**session, "X-Ava-Passed-On": "x"})
            assert marked.status_code == 404, "what was passed on is not passed on again"
            assert (await two.request("DELETE", "/mcp", anas, headers=session)).status_code == 200
            for server in (one, two):
                assert (await server.post("/mcp", anas, json=LIST, headers=session)).status_code == 404


async def test_a_stream_comes_through_another_server_until_one_side_ends(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text = token(root, "ana")
    with run_model_server([DONE]) as model:
        async with serve_each(root, root, env=model_env(model.base_url)) as (one, two):
            session = await opened(one, text)
            async with httpx2.AsyncClient(timeout=20, headers={**bearer(text), **session}) as http:
                async with http.stream("GET", two.url) as stream:
                    assert stream.headers["content-type"].startswith("text/event-stream")
                    again = await one.get("/mcp", text, headers=session)
                    assert again.status_code == 409, "the owner has one such stream, whichever way it came"
                with anyio.fail_after(40):  # the owner notices that the client has gone
                    while True:
                        async with http.stream("GET", two.url) as stream:
                            if stream.status_code == 200:
                                one.signal(signal.SIGKILL)
                                with pytest.raises(httpx2.TransportError):
                                    async for _piece in stream.aiter_raw():
                                        pass
                                break
                        await anyio.sleep(0.1)
            assert (await two.post("/mcp", text, json=LIST, headers=session)).status_code == 404, "the owner is dead"


MADE_UP = ["x", "-", "0" * 32, f"{'0' * 32}-", f"{'0' * 32}-none", f"{'0' * 32}-../../etc/passwd",
           f"{'0' * 32}-127.0.0.1:1", f"{'0' * 32}-{'a' * 65}", f"{'0' * 32}-http://127.0.0.1:1/"]  # fmt: skip


async def test_a_made_up_session_leads_nowhere(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text = token(root, "ana")
    async with serve_each(root, root) as (one, two):
        owner = (await opened(one, text))["Mcp-Session-Id"].rpartition("-")[2]
        for made_up in (*MADE_UP, f"{'0' * 32}-{owner}"):
            headers = {**BOTH, "Mcp-Session-Id": made_up}
            answer = await two.post("/mcp", text, json=LIST, headers=headers)
            assert answer.status_code == 404, made_up


async def test_a_token_never_reaches_an_address_of_a_dead_server(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text = token(root, "ana")
    heard: list[bytes] = []
    async with (
        serve_each(root, root) as (one, two),
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
    ):
        session = await opened(one, text)
        owner = session["Mcp-Session-Id"].rpartition("-")[2]
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        one.signal(signal.SIGKILL)
        await one.exited()
        (root / "instances" / f"{owner}.address").write_text(f"http://127.0.0.1:{port}")

        async def listen(stream: anyio.abc.SocketStream) -> None:
            heard.append(await stream.receive())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, listen)
            assert (await two.post("/mcp", text, json=LIST, headers=session)).status_code == 404
            tasks.cancel_scope.cancel()
    assert not heard


@pytest.mark.parametrize("mode", ERAS)
async def test_after_the_kill_of_a_server_its_clients_go_on_with_another(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text, gate = token(root, "ana"), Gate()
    with run_model_server([Say("lost", gate=gate), DONE, DONE]) as model:
        async with serve_each(root, root, env=model_env(model.base_url)) as servers:
            sessions = {(await opened(server, text))["Mcp-Session-Id"]: server for server in servers}
            async with servers[0].client(text, mode=mode, ask=agree, through=Balancer(servers)) as client:
                proposed = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
                run = proposed["subagent_id"]
                asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                assert read_answer(await client.call_tool("confirm_spawn", asked))[0]["status"] == "approved"
                await until(gate.arrived.is_set)
                (claimed,) = read_log(root, "RunClaimed", run=run)
                session = next(each for each in sessions if each.endswith(claimed.content["instance"]))
                killed = sessions.pop(session)
                (left,) = sessions.values()
                killed.signal(signal.SIGKILL)
                await killed.exited()
                gone = await left.post("/mcp", text, json=LIST, headers={**BOTH, "Mcp-Session-Id": session})
                assert gone.status_code == 404 and "Session not found" in gone.text
                if mode == "auto":  # no session: the same client goes on
                    waiting = {"subagent_id": run, "wait_seconds": 20}
                    ended = read_answer(await client.call_tool("check_subagent", waiting))[0]
                    assert ended["runs"][0].get("untrusted_result", {}).get("output") == "twelve cents", ended
            async with left.client(text, mode=mode, through=Balancer(servers)) as client:
                ended = read_answer(await client.call_tool("check_subagent", {"subagent_id": run, "wait_seconds": 20}))[
                    0
                ]
                assert ended["runs"][0].get("untrusted_result", {}).get("output") == "twelve cents", ended
    assert len(read_log(root, "RunClaimed", run=run)) == 2
    assert_intact(root)


TASKS = "io.modelcontextprotocol/tasks"
CLIENT = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}, "elicitation": {}}}


async def test_each_step_of_a_task_can_be_on_another_server(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    text, gate = token(root, "ana"), Gate()
    script = [Say(calls=[("ask", {"question": "In which currency?"})]), Say("x", gate=gate), DONE]
    with run_model_server(script) as model:
        async with serve_each(root, root, env=model_env(model.base_url)) as servers:
            balancer = Balancer(servers)
            async with httpx2.AsyncClient(headers=bearer(text), timeout=30, transport=balancer) as http:

                async def ask(method: str, **params: Any) -> dict[str, Any]:
                    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": CLIENT}}
                    named = str(params.get("taskId") or params["name"])
                    headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": named}
                    answer: dict[str, dict[str, Any]] = (
                        await http.post(servers[0].url, json=body, headers=headers)
                    ).json()
                    return answer["result"]

                async def until_status(status: str) -> dict[str, Any]:
                    with anyio.fail_after(30):
                        while (now := await ask("tasks/get", taskId=run))["status"] != status:  # noqa: ASYNC110
                            await anyio.sleep(0.1)
                    return now

                proposed = (await ask("tools/call", name="spawn_subagent", arguments=SPAWN))["structuredContent"]
                run = proposed["subagent_id"]
                lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                confirm = {"name": "confirm_spawn", "arguments": lines}
                question = await ask("tools/call", **confirm)
                assert question["resultType"] == "input_required", question
                agreed = {key: {"action": "accept", "content": {}} for key in question["inputRequests"]}
                kept = {"requestState": question["requestState"], "inputResponses": agreed}
                started = await ask("tools/call", **confirm, **kept)
                assert started["resultType"] == "task" and started["taskId"] == run, started
                waiting = await until_status("input_required")
                ((key, request),) = waiting["inputRequests"].items()
                assert "In which currency?" in str(request)
                field = next(iter(request["params"]["requestedSchema"]["properties"]))
                reply = {key: {"action": "accept", "content": {field: "In cents"}}}
                await ask("tasks/update", taskId=run, inputResponses=reply)
                await until(gate.arrived.is_set)
                assert (await ask("tasks/get", taskId=run))["status"] == "working"
                await ask("tasks/cancel", taskId=run)
                await until_status("cancelled")
            assert min(balancer.sent.count(server.port) for server in servers) >= 4
            assert "In cents" in str(model.requests[1].json["messages"])
    assert len(read_log(root, "SpawnDecided", run=run)) == 1


async def test_a_token_counts_on_every_server_at_once_and_a_revoked_one_on_none(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    first = token(root, "ana")
    async with serve_each(root, root) as servers:
        text = token(root, "ben")
        for server in servers:
            assert (await server.get("/token", text)).status_code == 200, "no moment in which it is unknown"
        await anyio.to_thread.run_sync(revoke_token, root / "secrets" / "tokens.toml", "of-ben")
        with anyio.fail_after(3):
            for server in servers:
                while (await server.get("/token", text)).status_code != 401:  # noqa: ASYNC110 - another process
                    await anyio.sleep(0.05)
        assert [(await server.get("/token", first)).status_code for server in servers] == [200, 200]
        admin = token(root, "olga", "admin", name="olga-admin")
        added = (await servers[0].post("/users/carl", admin, json={"daily_cents": 7})).json()
        assert (await servers[1].get("/token", added["token"])).json()["user"] == "carl"
        with anyio.fail_after(20):
            while True:
                users = {one["name"]: one for one in (await servers[1].get("/users", admin)).json()["users"]}
                if users["carl"]["daily_cents"] == 7:
                    break
                await anyio.sleep(0.1)
    assert not (root / "secrets").exists() or not list((root / "secrets").glob("*.toml"))


async def test_a_server_without_its_database_lives_and_is_not_ready(tmp_path: Path) -> None:
    from support.postgres import PostgresServer, why_missing

    if (why := why_missing()) is not None:
        pytest.skip(why)
    own, root = PostgresServer.make(), tmp_path / "data"
    try:
        root.mkdir(mode=0o700)
        address = own.url("postgres").replace(f":{own.password}@", "@")
        (root / "config.toml").write_text(f'database_url = "{address}"\n')
        text = token(root, "ana")
        async with serve_each(root) as (server,):

            async def readiness(status: int) -> None:
                with anyio.fail_after(40):
                    while (await server.get("/healthz")).status_code != status:
                        assert (await server.get("/livez")).status_code == 200
                        await anyio.sleep(0.1)

            await readiness(200)
            own.stop(signal.SIGQUIT)
            await readiness(503)
            own.start()
            await readiness(200)
            assert (await server.get("/token", text)).status_code == 200
    finally:
        own.remove()


@pytest.mark.parametrize(
    ("reach", "of_this_machine", "inner"),
    [
        (Reach("10.0.0.5", 8642), "10.0.0.7", "http://10.0.0.5:8642"),
        (Reach("fd00::5", 8642), "10.0.0.7", "http://[fd00::5]:8642"),
        (Reach("0.0.0.0", 8642), "10.0.0.7", "http://10.0.0.7:8642"),
        (Reach("::", 8642), "10.0.0.7", "http://10.0.0.7:8642"),
        (Reach("0.0.0.0", 8642), "127.0.1.1", None),
        (Reach("0.0.0.0", 8642, inner_url="http://a.b:1"), "127.0.1.1", "http://a.b:1"),
    ],
)
def test_announces_an_address_that_other_machines_can_reach_or_none(
    monkeypatch: pytest.MonkeyPatch, reach: Reach, of_this_machine: str, inner: str | None
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda _name: of_this_machine)
    assert inner_url(reach) == inner
