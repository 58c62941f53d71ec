"""The HTTP server, attacked by who has no token, and by who has one: shapes of requests, borrowed names, races."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.http_server import PARSERS, HttpServer, changed_command, serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.stdio import MODERN, MODES, Logged, make_root, model_env, read_answer, read_log, state_of, until

from ava_server.approval import proposals
from ava_server.config.tokens import SCOPES, TokenFile, create_token, read_tokens, revoke_token, user_name
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.http.limits import SKIP_WITHIN_S

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
ENV = model_env("http://127.0.0.1:9/v1")
BOTH = {"Accept": "application/json, text/event-stream"}
SPAWN = {"role": "researcher", "task": "What does it cost?"}


@pytest.mark.parametrize("parser", PARSERS)
async def test_no_malformed_request_gets_two_answers_or_causes_a_traceback(tmp_path: Path, parser: str) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    known = f"Host: localhost\r\nAuthorization: Bearer {text}\r\n"
    second = f"GET /metrics HTTP/1.1\r\n{known}\r\n"
    listen = json.dumps({"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
                         "params": {"notifications": {}, "_meta": meta()}})  # fmt: skip
    stream = (
        f"POST /mcp HTTP/1.1\r\n{known}Content-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {MODERN}\r\nMcp-Method: subscriptions/listen\r\nContent-Length: {len(listen)}\r\n\r\n"
    )
    post = f"POST /approvals HTTP/1.1\r\n{known}"
    strict = b" 400 " if parser == "httptools" else b""  # what h11 takes, though others read it differently
    tries: list[tuple[bytes, tuple[str, ...]]] = [
        (b" 400 ", (f"{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: chunked\r\nContent-Length: 400\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd{second}",)),
        (b" 400 ", (f"{post}Content-Length: +4\r\n\r\nabcd{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\n{known}Host: localhost\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\0\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.1\r\nHost: local\thost\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.1\r\nHost: localhost\\@evil\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 421 ", (f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 403 ", (f"GET /metrics HTTP/1.1\r\n{known}Origin: http://local\thost\r\n\r\n",)),
        (strict or b" 404 ", (f"GET http://evil.example/metrics HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"CONNECT evil.example:443 HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /metrics#x HTTP/1.1\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /x HTTP/2.0\r\n{known}\r\n",)),
        (strict or b" 404 ", (f"GET /x HTTP/1.1\n{known}\n".replace("\r\n", "\n"),)),
        (strict or b" 401 ", (f"GET /x HTTP/1.1\r\nHost: localhost\r\nX: a\r\n {known.splitlines()[1]}\r\n\r\n",)),
        (b" 400 ", (f"{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",)),
        (b" 400 ", (f"{post}Content-Length: -1\r\n\r\n{second}",)),
        (b" 400 ", (f"GET /metrics HTTP/1.1\r\n{known}X\0: y\r\n\r\n",)),
        (b" 400 ", (f"GET /metrics\0 HTTP/1.1\r\n{known}\r\n",)),
        (b" 400 ", (f"GET /x HTTP/1.1\r\nHost: localhost\rAuthorization: Bearer {text}\r\n\r\n",)),
        (b" 401 ", (f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
                    f"{known.splitlines()[1]}\r\n\r\n",)),
        (b" 421 ", (f"POST /x HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{known}\r\n",)),
        *((b" 404 ", (f"GET {path} HTTP/1.1\r\n{known}\r\n",))
          for path in ("//metrics", "/metrics/", "/./metrics", "/metrics;x", "/METRICS", "/metrics%00", "/x/metrics")),
        *((b" 401 ", (f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n",))
          for path in ("//healthz", "/healthz/", "/healthz/../metrics", "/healthz%2f", "/%6detrics", "/healthz;x")),
        (b"", ("POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "zz\r\n")),
        (b"", (f"POST /mcp HTTP/1.1\r\n{known}Transfer-Encoding: chunked\r\n\r\n", "zz\r\n")),
        (b"", (f"POST /mcp HTTP/1.1\r\n{known}Content-Length: 100\r\n\r\n{{",)),
        (b"", (f"{post}Content-Length: 100\r\n\r\n{{",)),
        (b"", (f"{post}Transfer-Encoding: chunked\r\n\r\n", f"5;x\ny\r\nabcde\r\n0\r\n\r\n{second}")),
        (b"", (f"{post}Transfer-Encoding: chunked\r\n\r\n", f"+5\r\nabcde\r\n0\r\n\r\n{second}")),
        (b" 200 ", (stream, listen, "\0\0no HTTP\r\n\r\n")),
    ]  # fmt: skip
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        for status, pieces in tries:
            got = await anyio.to_thread.run_sync(raw, server.port, *(piece.encode("latin-1") for piece in pieces))
            assert got.count(b"HTTP/1.1 ") == bool(status), pieces
            assert status in got.split(b"\r\n")[0] and b"ava_build_info" not in got, (pieces, got)
        assert (await server.get("/metrics", text)).status_code == 200
        assert server.stderr == "", "nothing of it can fill a disk with lines"


@pytest.mark.parametrize("parser", PARSERS)
async def test_what_never_ends_is_cut_off(tmp_path: Path, parser: str) -> None:
    """Whatever it is that a client without a token sends, the server keeps little of it."""
    get, post = "GET /x HTTP/1.1\r\nHost: localhost\r\n", "POST /x HTTP/1.1\r\nHost: localhost\r\n"
    chunked = f"{post}Transfer-Encoding: chunked\r\n\r\n"

    def cut_off(port: int, head: str, more: bytes) -> bool:
        """Send 64 MiB, or as much as is taken."""
        with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            try:
                line.sendall(head.encode())
                for _each in range(1024):
                    line.sendall(more * (65_536 // len(more)))
            except OSError:
                return True
        return False

    async with serve_http(make_root(tmp_path / "data"), env=ENV, program=changed_command(parser=parser)) as server:
        for head, more in (
            ("GET /", b"x"), ("G", b"G"), ("", b"\r\n"), (get, b"x"), (f"{get}X: ", b"x"), (get, b"x:\r\n"),
            (f"{get}X:", b" "), (chunked, b"0"), (f"{chunked}1;", b"x"), (f"{chunked}0\r\n", b"x:\r\n"),
            (f"{chunked}0\r\nX: ", b"x"), (f"{get}\r\n", f"{get}\r\n".encode()),
        ):  # fmt: skip
            assert await anyio.to_thread.run_sync(cut_off, server.port, head, more), (head, more)
        many = get + "".join(f"x{number}:\r\n" for number in range(5_000))
        assert b" 200 " not in await anyio.to_thread.run_sync(raw, server.port, f"{many}\r\n".encode())
        assert (await server.get("/healthz")).status_code == 200


@pytest.mark.parametrize("parser", PARSERS)
async def test_a_request_that_would_rather_speak_http_2_is_answered_with_its_body(tmp_path: Path, parser: str) -> None:
    """As Java's client asks with every first request."""
    root = make_root(tmp_path / "data")
    text = token(root, "ana", *SCOPES)
    ask = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    body = json.dumps({"decision": "reject", "pending_ids": ["P-0dd0dd0d"]})
    post = f"POST /approvals HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n"
    head, last = f"{post}{ask}Content-Length: {len(body)}\r\n\r\n", f"{post}Content-Length: {len(body)}\r\n\r\n{body}"
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        for pieces in ((f"{head}{body}", last), (head, body, last), (head[:50], head[50:] + body[:9], body[9:], last)):
            got = await anyio.to_thread.run_sync(raw, server.port, *map(str.encode, pieces))
            assert got.count(b"HTTP/1.1 409 ") == 2, got
        inside = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{ask}Authorization: Bearer {text}\r\n\r\n"
        early = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        # The rest of a request that has its 401 already, and in the same piece the beginning of another one.
        behind = (early, "abcdPOST /x HTTP/1.1\r\nX: ", inside)
        assert b"ava_build_info" not in await anyio.to_thread.run_sync(raw, server.port, *map(str.encode, behind))


async def test_a_client_that_leaves_with_a_request_behind_its_stream_keeps_no_place(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    body = json.dumps({"jsonrpc": "2.0", "id": 8, "method": "subscriptions/listen",
                       "params": {"notifications": {}, "_meta": meta()}})  # fmt: skip
    stream = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream, application/json\r\nMCP-Protocol-Version: {MODERN}\r\n"
        f"Mcp-Method: subscriptions/listen\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    few = changed_command("from ava_server.http import limits", "limits.STREAMS_OF_USER = 1")
    async with serve_http(root, env=ENV, program=few) as server:
        got = await anyio.to_thread.run_sync(raw, server.port, stream.encode(), b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 ")
        with anyio.fail_after(25):
            while not got.startswith(b"HTTP/1.1 404 "):
                got = await anyio.to_thread.run_sync(raw, server.port, stream.replace("POST /mcp", "GET /x").encode())
                await anyio.sleep(0.2)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("why", "status"), [("no token", 401), ("origin", 403), ("host", 421)])
async def test_a_refusal_waits_for_the_body_that_a_proxy_still_passes_on(
    tmp_path: Path, why: str, status: int, parser: str
) -> None:
    root = make_root(tmp_path / "data")
    host = "evil.example" if why == "host" else "localhost"
    lines = [f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"]
    if why != "no token":
        lines.append(f"Authorization: Bearer {token(root, 'ana', *SCOPES)}\r\n")
    if why == "origin":
        lines.append("Origin: https://evil.example\r\n")
    head, expects = "".join(lines).encode(), b"Expect: 100-continue\r\n"
    async with serve_http(root, env=ENV, program=changed_command(parser=parser)) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as line:
            await line.send(head + b"\r\n" + b" " * 50)
            with anyio.move_on_after(0.3) as waited:
                await line.receive()
            assert waited.cancelled_caught, "Go's proxies lose an answer that comes before the rest of the body"
            await line.send(b" " * 50)
            assert f"HTTP/1.1 {status} ".encode() in await line.receive()
        for never in (head + b"\r\n", head + expects + b"\r\n"):
            async with await anyio.connect_tcp("127.0.0.1", server.port) as line:
                await line.send(never)
                with anyio.fail_after(SKIP_WITHIN_S + 3):
                    got = await line.receive()
                assert got.startswith(f"HTTP/1.1 {status} ".encode()), got


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
            said = await called(server, text, tool, given)
            assert "report it" not in json.dumps(said), (tool, said)
        for number, client in enumerate(
            ({"name": half}, {"name": "n" * 3_000_000}, {"name": "v", "version": "v" * 3_000_000})
        ):
            assert not (await called(server, text, "check_subagent", {}, **client))["isError"]
            starts = await until(partial(started, root, number + 2))
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
                proposed = (await called(server, text, "spawn_subagent", SPAWN, name=name))["structuredContent"]
                given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                with anyio.move_on_after(1):  # it waits for a person's decision
                    raise AssertionError(await called(server, text, "confirm_spawn", given, name=name))
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
            proposed = (await called(server, host, "spawn_subagent", SPAWN))["structuredContent"]
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
        return ElicitResult(action="decline")

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
        hello: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
                 "params": {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
                            "clientInfo": {"name": "x", "version": "1"}}}  # fmt: skip
        opened = await server.post("/mcp", bens, json=hello, headers=BOTH)
        headers = {**BOTH, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
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
    runs: dict[str, str] = {}
    with run_model_server([*(Say("x", gate=gate) for gate in gates), DONE, DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            for user in users:
                given = {"role": "custom", "system_prompt": "x", "task": f"of {user}"}
                proposed = (await called(server, texts[user], "spawn_subagent", given))["structuredContent"]
                lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                assert not (await called(server, texts[user], "confirm_spawn", lines))["isError"]
                runs[user] = proposed["subagent_id"]
            heard: dict[str, str] = {}

            async def wait(user: str) -> None:
                asked = {"subagent_id": runs[user], "wait_seconds": 8}
                params = {"name": "check_subagent", "arguments": asked, "_meta": {**meta(), "progressToken": 1}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call",
                           "Mcp-Name": "check_subagent"}  # fmt: skip
                answer = await server.post("/mcp", texts[user], json=body, headers=headers)
                heard[user] = answer.text

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
            hello: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
                     "params": {"protocolVersion": "2025-11-25", "capabilities": {},
                                "clientInfo": {"name": "x", "version": "1"}}}  # fmt: skip
            opened = await server.post("/mcp", texts["ben"], json=hello, headers=BOTH)
            own = {"Accept": "text/event-stream", "Mcp-Session-Id": opened.headers["mcp-session-id"]}
            for last in ("0", "1", "_GET_stream", "x" * 5_000):
                line = f"Authorization: Bearer {texts['ben']}\r\nMcp-Session-Id: {own['Mcp-Session-Id']}\r\n"
                asked = f"GET /mcp HTTP/1.1\r\nHost: localhost\r\n{line}Accept: text/event-stream\r\n"
                got = await anyio.to_thread.run_sync(raw, server.port, f"{asked}Last-Event-ID: {last}\r\n\r\n".encode())
                assert b"jsonrpc" not in got or b"error" in got, got


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
            made_now = await called(server, anas, "spawn_subagent", {**SPAWN, "task": f"https://a.example/{number}"})
            ids.append(made_now["structuredContent"]["pending_id"])
        refused = await called(server, anas, "spawn_subagent", {**SPAWN, "task": "https://a.example/x"})
        assert refused["isError"] and "3 proposals of ana are waiting" in json.dumps(refused)
        assert not (await called(server, bens, "spawn_subagent", {**SPAWN, "task": "https://a.example"}))["isError"]
        await called(server, anas, "cancel_subagent", {"pending_id": ids[0]})
        assert not (await called(server, anas, "spawn_subagent", {**SPAWN, "task": "https://a.example/x"}))["isError"]


# -- the file of tokens -----------------------------------------------------------------------------------------------


def test_rejects_user_names_that_contain_paths_or_look_like_other_names() -> None:
    for name in ("..", ".", "../ana", "a/b", "a\\b", "ana\n", "an\0a", "аna", "ana\u200b", "ａna", "", " ", "a" * 65,
                 "-ana", "ana ben", 'ana"', "ana}", "ana=1", "avatok_x", "\x1b[31mana", "ana:ben", "~ana"):  # fmt: skip
        if name.strip() != "ana":
            with pytest.raises(BadInput):
                user_name(name)
    assert user_name("ana@example.org") == "ana@example.org"


def test_creating_and_revoking_tokens_in_two_processes_loses_nothing(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    token(root, "ana", name="kept")
    path = root / "secrets" / "tokens.toml"
    work = (
        "import sys; from pathlib import Path; from ava_server.config.tokens import create_token, revoke_token\n"
        "path, who = Path(sys.argv[1]), sys.argv[2]\n"
        "for n in range(15):\n"
        "    create_token(path, f'{who}{n}', 'ana', ['read'], None)\n"
        "    if n % 2: revoke_token(path, f'{who}{n}')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", work, str(path), who]) for who in ("a", "b", "c")]
    tokens = TokenFile(path)
    while any(one.poll() is None for one in running):
        assert tokens.any(), "whoever reads meanwhile finds a whole file"
    assert [one.wait(60) for one in running] == [0, 0, 0]
    assert set(read_tokens(path)) == {"kept", *(f"{who}{n}" for who in "abc" for n in range(0, 15, 2))}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_linked_corrupt_or_exposed_token_file_lets_nobody_in(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    path = root / "secrets" / "tokens.toml"
    whole = path.read_bytes()
    aside = tmp_path / "aside.toml"
    aside.write_bytes(whole)
    aside.chmod(0o600)

    def refused() -> None:
        with pytest.raises(ConfigError) as error:
            TokenFile(path).find(text)
        assert text not in str(error.value) and not re.search(r"[0-9a-f]{64}", str(error.value))

    path.unlink()
    path.symlink_to(aside)
    refused()
    with pytest.raises(ConfigError):
        create_token(path, "more", "ana", ["read"], None)
    path.unlink()
    for half in (whole[: len(whole) // 2], whole[:-3] + b"\xff", whole.replace(b'"read"', b'"root"'),
                 whole.replace(b'"ana"', b'"../ana"'), whole + b"[x]\n", b"[" * 5_000):  # fmt: skip
        path.write_bytes(half)
        path.chmod(0o600)
        refused()
        with pytest.raises((ConfigError, Refused)):
            revoke_token(path, "of-ana")
    path.write_bytes(whole)
    path.chmod(0o600)
    assert TokenFile(path).find(text) is not None
    path.parent.chmod(0o755)
    refused()


def test_token_lookup_time_does_not_depend_on_matching_characters(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    text = token(root, "ana")
    for number in range(20):
        token(root, "ana", name=f"n{number}")
    tokens = TokenFile(root / "secrets" / "tokens.toml")
    took: dict[str, float] = {}
    tries = {"begins": text[:-1] + ("a" if text[-1] != "a" else "b"), "other": "avatok_" + "z" * 43}
    for name, given in tries.items():
        assert tokens.find(given) is None
        best: list[float] = []
        for _each in range(300):
            began = time.perf_counter()
            tokens.find(given)
            best.append(time.perf_counter() - began)
        took[name] = sorted(best)[len(best) // 2]
    assert 0.5 < took["begins"] / took["other"] < 2
    assert tokens.find("x" * 1_000_000) is None and tokens.find("é" * 40) is None


def meta(name: str = "x", **more: Any) -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1", **more},
        "io.modelcontextprotocol/clientCapabilities": {},
    }


async def called(server: HttpServer, text: str, tool: str, given: Any, **client: Any) -> dict[str, Any]:
    """Call a tool in the stateless era, as whatever client."""
    params = {"name": tool, "arguments": given, "_meta": meta(**client)}
    body = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
    headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool,
               "Content-Type": "application/json"}  # fmt: skip
    answer = await server.post("/mcp", text, content=body.encode(), headers=headers)
    result: dict[str, Any] = answer.json()["result"]
    return result


def started(root: Path, number: int) -> list[Logged]:
    """The sessions on the record, once there are so many."""
    found = read_log(root, "SessionStart")
    return found if len(found) >= number else []


def raw(port: int, *pieces: bytes) -> bytes:
    """Send pieces one after the other, and return what comes until the server closes or is silent."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line, contextlib.suppress(OSError):
        for piece in pieces:
            line.sendall(piece)
            line.settimeout(0.4)
            with contextlib.suppress(TimeoutError):
                while data := line.recv(65_536):
                    got += data
    return got
