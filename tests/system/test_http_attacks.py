"""The HTTP server, attacked by who has no token, and by who has one: shapes of requests, borrowed names, races."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.http_server import HttpServer, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.network.raw_http import BOTH, call_by_hand, client_meta, send_raw, start_by_hand
from support.stdio import MODERN, MODES, make_root, model_env, read_answer, read_log, state_of, until

from ava_server.approval import proposals
from ava_server.config.tokens import SCOPES

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
ENV = model_env("http://127.0.0.1:9/v1")
SPAWN = {"role": "researcher", "task": "What does it cost?"}


async def test_unusual_arguments_and_names_are_client_errors_not_internal_ones(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    deep: Any = 1
    for _level in range(700):
        deep = [deep]
    half = "\ud800x"
    async with serve_http(root, env=ENV) as server:
        for tool, given in (
            *(("read_ava_logs", {name: half}) for name in ("search", "session", "since", "cursor", "subagent_id")),
            ("read_ava_logs", {"types": [half]}),
            ("check_subagent", {"subagent_id": deep}),
            ("spawn_subagent", {**SPAWN, "output_schema": {"x": deep}}),
            ("spawn_subagent", {**SPAWN, half: 1}),
            ("spawn_subagent", {**SPAWN, "task": half}),
        ):
            said = await call_by_hand(server, text, tool, given)
            assert "report it" not in json.dumps(said), (tool, said)
        for number, client in enumerate(
            ({"name": half}, {"name": "n" * 3_000_000}, {"name": "v", "version": "v" * 3_000_000})
        ):
            assert not (await call_by_hand(server, text, "check_subagent", {}, **client))["isError"]
            starts = await until(partial(start_by_hand, root, number + 2))
            assert len(json.dumps(starts[-1].content)) < 2_000, "and it is on the record"


async def test_a_client_name_does_not_turn_a_client_into_a_person(tmp_path: Path) -> None:
    """A token that may do everything decides through MCP as a host does, whatever the client calls itself."""
    root = make_root(tmp_path / "data", config_toml='approval = "human"\n')
    text = token(root, "ana", *SCOPES)
    with run_model_server([DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            assert (
                await server.post("/approvals", text, json={"decision": "reject", "pending_ids": ["P-0dd0dd0d"]})
            ).status_code == 409
            for name in ("\0approvals", "approvals", "", "ava approve"):
                proposed = (await call_by_hand(server, text, "spawn_subagent", SPAWN, name=name))["structuredContent"]
                given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                with anyio.move_on_after(1):  # it waits for a person's decision
                    raise AssertionError(await call_by_hand(server, text, "confirm_spawn", given, name=name))
                assert state_of(root, proposed["subagent_id"]) == "awaiting_approval"
    assert not [one for one in read_log(root, "SpawnDecided") if one.content["decision"] == "approved"]


async def test_only_one_of_several_concurrent_approvals_counts_and_none_can_be_replayed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data", config_toml='approval = "human"\n')
    host, person, other = (
        token(root, "ana"),
        token(root, "ana", "approve", name="p"),
        token(root, "ana", "approve", name="q"),
    )
    with run_model_server([DONE] * 3) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            proposed = (await call_by_hand(server, host, "spawn_subagent", SPAWN))["structuredContent"]
            (shown,) = (await server.get("/approvals", person)).json()["proposals"]
            pending_id = proposed["pending_id"]
            given = {"decision": "approve", "pending_ids": [pending_id], "approving": [shown["approval_line"]],
                     "digests": {pending_id: shown["digest"]}}  # fmt: skip
            statuses: list[int] = []

            async def decide(text: str) -> None:
                statuses.append((await server.post("/approvals", text, json=given)).status_code)

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(decide, (person, other)[number % 2])
            assert sorted(statuses) == [200] + [409] * 9
            assert (await server.post("/approvals", host, json=given)).status_code == 403
            lines = [pending_id.lower(), pending_id.removeprefix("P-"), f" {pending_id} "]
            for each in lines:
                assert (await server.post("/approvals", person, json={**given, "pending_ids": [each]})).status_code in (
                    400,
                    409,
                )
            await until(lambda: state_of(root, proposed["subagent_id"]) == "success", 20)
    assert len([one for one in read_log(root, "SpawnDecided") if one.content["decision"] == "approved"]) == 1
    assert len(read_log(root, "RunStarted")) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_to_the_question_of_another_user_has_no_effect(tmp_path: Path, mode: str) -> None:
    """Ana is asked; Ben answers: in his own session with every id there may be, or with what her client was given."""
    from mcp_types import ElicitResult

    root = make_root(tmp_path / "data")
    anas, bens = token(root, "ana"), token(root, "ben")
    asked, over = anyio.Event(), anyio.Event()
    run_id = ""

    async def ana_waits(_context: Any, _params: Any) -> ElicitResult:
        asked.set()
        await over.wait()
        return ElicitResult(action="cancel")

    async def ben_agrees(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": "approve"})

    async with (
        serve_http(root, env=ENV) as server,
        server.client(anas, mode=mode, ask=ana_waits) as ana,
        server.client(bens, mode=mode, ask=ben_agrees) as ben,
        anyio.create_task_group() as tasks,
    ):
        proposed, _text = read_answer(
            await ana.call_tool("spawn_subagent", {"role": "web_crawler", "task": "https://a.example"})
        )
        run_id = proposed["subagent_id"]
        given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        tasks.start_soon(ana.call_tool, "confirm_spawn", given)
        await asked.wait()
        refused = await ben.call_tool("confirm_spawn", given)
        assert "Nothing was started" in json.dumps(refused.structured_content)
        headers = {**BOTH, "Mcp-Session-Id": await open_session(server, bens, elicitation={})}
        for number in (*range(12), "1", "x"):
            yes = {"action": "accept", "content": {"decision": "approve"}}
            sent = await server.post(
                "/mcp", bens, json={"jsonrpc": "2.0", "id": number, "result": yes}, headers=headers
            )
            assert sent.status_code == 202
        assert state_of(root, run_id) == "awaiting_approval"
        over.set()
    assert state_of(root, run_id) == "awaiting_approval"


async def test_equal_ids_used_by_two_clients_do_not_interfere(tmp_path: Path) -> None:
    """Ids of requests, tokens of progress and ids of events are the clients' own choice: another's are nothing."""
    root = make_root(tmp_path / "data")
    gates = [Gate(), Gate()]
    users = ("ana", "ben")
    texts = {user: token(root, user) for user in users}
    heard: dict[str, str] = {}
    with run_model_server([*(Say("x", gate=gate) for gate in gates), DONE, DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            runs = {user: await start_by_confirming(server, texts[user], user) for user in users}

            async def wait(user: str) -> None:
                heard[user] = await wait_with_id_one(server, texts[user], runs[user])

            async with anyio.create_task_group() as tasks:
                for user in users:
                    tasks.start_soon(wait, user)
                await anyio.sleep(6)  # longer than the pace of progress
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
                headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "notifications/cancelled"}
                assert (await server.post("/mcp", texts["ben"], json=cancel, headers=headers)).status_code == 202
                for gate in gates:
                    gate.released.set()
            for user, other in (users, users[::-1]):
                assert heard[user].count("notifications/progress") >= 1 and '"result"' in heard[user]
                assert runs[user] in heard[user] and runs[other] not in heard[user]
            await check_no_event_is_replayed(server, texts["ben"])


async def start_by_confirming(server: HttpServer, text: str, user: str) -> str:
    """Propose a run of a user and confirm it; return its id."""
    given = {"role": "custom", "system_prompt": "x", "task": f"of {user}"}
    proposed = (await call_by_hand(server, text, "spawn_subagent", given))["structuredContent"]
    lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
    assert not (await call_by_hand(server, text, "confirm_spawn", lines))["isError"]
    run_id: str = proposed["subagent_id"]
    return run_id


async def wait_with_id_one(server: HttpServer, text: str, run_id: str) -> str:
    """Wait for a run in a request whose id and progress token are 1; return all that is heard."""
    asked = {"subagent_id": run_id, "wait_seconds": 8}
    params = {"name": "check_subagent", "arguments": asked, "_meta": {**client_meta(), "progressToken": 1}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    names = {"Mcp-Method": "tools/call", "Mcp-Name": "check_subagent"}
    answer = await server.post("/mcp", text, json=body, headers={**BOTH, "MCP-Protocol-Version": MODERN, **names})
    return answer.text


async def check_no_event_is_replayed(server: HttpServer, text: str) -> None:
    """Whatever the last event is said to be, a session hears nothing of another one."""
    session = await open_session(server, text)
    for last in ("0", "1", "_GET_stream", "x" * 5_000):
        line = f"Authorization: Bearer {text}\r\nMcp-Session-Id: {session}\r\n"
        asked = f"GET /mcp HTTP/1.1\r\nHost: localhost\r\n{line}Accept: text/event-stream\r\n"
        got = await anyio.to_thread.run_sync(send_raw, server.port, f"{asked}Last-Event-ID: {last}\r\n\r\n".encode())
        assert b"jsonrpc" not in got or b"error" in got, got


async def open_session(server: HttpServer, text: str, **capabilities: Any) -> str:
    """Open a session of the handshake era, and return its id."""
    client = {"capabilities": capabilities, "clientInfo": {"name": "x", "version": "1"}}
    params = {"protocolVersion": "2025-11-25", **client}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = await server.post("/mcp", text, json=hello, headers=BOTH)
    return opened.headers["mcp-session-id"]


async def test_one_user_cannot_pile_up_proposals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root(tmp_path / "data")
    anas, bens = token(root, "ana"), token(root, "ben")
    main = "from ava_server.cli.app import main; sys.exit(main(sys.argv[1:]))"
    lower = "import sys; from ava_server.approval import proposals as proposing; proposing.MOST_WAITING = 3"
    few = "-c", f"{lower}; {main}", "serve", "--http", "--port", "0"
    assert proposals.MOST_WAITING > 50
    async with serve_http(root, env=ENV, program=few) as server:
        ids: list[str] = []
        for number in range(3):
            made_now = await call_by_hand(
                server, anas, "spawn_subagent", {**SPAWN, "task": f"https://a.example/{number}"}
            )
            ids.append(made_now["structuredContent"]["pending_id"])
        refused = await call_by_hand(server, anas, "spawn_subagent", {**SPAWN, "task": "https://a.example/x"})
        assert refused["isError"] and "3 proposals of ana are waiting" in json.dumps(refused)
        assert not (await call_by_hand(server, bens, "spawn_subagent", {**SPAWN, "task": "https://a.example"}))[
            "isError"
        ]
        await call_by_hand(server, anas, "cancel_subagent", {"pending_id": ids[0]})
        assert not (await call_by_hand(server, anas, "spawn_subagent", {**SPAWN, "task": "https://a.example/x"}))[
            "isError"
        ]
