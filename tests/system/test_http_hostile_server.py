"""`ava --url … approve` against a server that is none of ours: it gets the token it was meant for, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.terminal import ava

from ava_server.cli import remote
from ava_server.cli.remote import Connection
from ava_server.cli.service_client import Approvals
from ava_server.cli.transport import reached
from ava_server.core.errors import BadInput, ConfigError

pytestmark = pytest.mark.slow

TOKEN = "avatok_" + "Ab3" * 14 + "x"
WAITS = {
    "pending_id": "P-0dd0dd0d", "subagent_id": "S-0dd0dd", "message": "m", "approval_line": "l", "digest": "d",
    "max_cost_micros": 1, "free": False, "expires_us": 4_000_000_000_000_000,
}  # fmt: skip
NONE: dict[str, Any] = {"user": "ana", "proposals": [], "extensions": []}
Writes = Callable[[socket.socket], None]


def answer(body: Any, status: str = "200 OK", headers: str = "") -> Writes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nContent-Type: application/json\r\n{headers}\r\n"
    return lambda line: line.sendall(head.encode() + content)


def endless(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        line.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_does_not_follow_a_redirect(status: str) -> None:
    with hostile(answer({"proposals": []})) as (elsewhere, stolen):
        to = f"Location: http://localhost:{elsewhere}/approvals\r\n"
        with hostile(answer({}, status, to)) as (port, _seen):
            done = asked(port)
        assert done.returncode == 10 and "status 30" in done.stderr and stolen == []


NESTED = b'{"proposals":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "write",
    [
        endless,
        answer(NESTED),
        answer(b"{" * 3),
        answer(b"\xff\xfe"),
        answer({**NONE, "proposals": [{**WAITS, "digest": "\ud800"}]}),
        answer({**NONE, "proposals": [{**WAITS, "max_cost_micros": "9" * 5000}]}),
        answer(b'{"proposals": [' + b"9" * 5_000 + b"]}"),
        answer({**NONE, "proposals": {"x": 1}}),
        answer({**NONE, "proposals": None}),
        answer([]),
        answer(b"\x1f\x8b\x08", headers="Content-Encoding: gzip\r\n"),
        lambda line: line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"),
        lambda line: line.sendall(b"nothing of HTTP\r\n\r\n"),
        lambda line: line.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000),
        lambda line: None,
    ],
    ids=range(15),
)
def test_reports_any_answer_in_one_sentence(write: Writes) -> None:
    with hostile(write) as (port, _seen):
        done = asked(port)
    assert done.returncode in (10, 30) and done.stderr.startswith("ava: ") and len(done.stderr) < 1_000


def test_server_text_cannot_control_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\u200bok\rava: Approved.\n"
    with hostile(answer({"error_description": evil + "x" * 100_000}, "403 Forbidden")) as (port, _seen):
        done = asked(port)
    assert done.returncode == 10 and len(done.stderr) < 1_000 and done.stderr.count("\n") == 1
    said = {**WAITS, "message": evil, "approval_line": evil}
    with hostile(answer({**NONE, "proposals": [said]})) as (port, _seen):
        shown = asked(port)
    assert shown.returncode == 0, shown.stderr
    for text in (done.stderr, shown.stdout, shown.stderr):
        assert not set("\x1b\x07\u202e\u200b\r") & set(text)


def test_gives_up_on_a_slow_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    def drips(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            line.sendall(b"1\r\n \r\n")
            time.sleep(0.1)

    monkeypatch.setattr(remote, "WHOLE_ANSWER_S", 1.0)
    monkeypatch.setenv("AVA_TOKEN", TOKEN)

    async def ask(port: int) -> None:
        async with reached(Connection(f"http://127.0.0.1:{port}")) as there:
            await Approvals(there).waiting([])

    with hostile(drips) as (port, _seen), pytest.raises(ConfigError, match="still answering after 1 s"):
        anyio.run(ask, port)


def test_over_plain_http_the_token_goes_only_to_this_machine_and_bypasses_proxies(tmp_path: Path) -> None:
    with hostile(answer(NONE)) as (proxy, stolen), hostile(answer(NONE)) as (port, seen):
        names = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), f"http://127.0.0.1:{proxy}")
        assert asked(port, **names, NO_PROXY="", no_proxy="").returncode == 0
        assert stolen == [] and TOKEN.encode() in seen[0]
    for url in ("http://ava.example.org", "http://localhost.example.org", "http://127.0.0.1.example.org",
                "http://localhost@example.org", "http://localhost\\@example.org", "http://example.org#localhost",
                "http://[::ffff:192.0.2.1]", "http://0.0.0.0", "http://2130706433", "http://localhost.", "ftp://localhost",
                "http://ⓛocalhost", "http://local\thost.example.org", "//localhost", "http:localhost"):  # fmt: skip
        with pytest.raises(BadInput):
            _ = Connection(url).address


VERBS = (
    ("status",), ("status", "--json"), ("logs",), ("logs", "--json"), ("show", "S-0dd0dd"),
    ("show", "S-0dd0dd", "--json"), ("wait", "S-0dd0dd"), ("cancel", "S-0dd0dd"), ("send", "S-0dd0dd", "x"),
    ("report",), ("report", "--group", "G-0dd0dd0"), ("report", "approvals"), ("report", "approvals", "--csv"),
)  # fmt: skip
EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\u200bok"
ROW: dict[str, Any] = {
    "id": EVIL, "pending_id": EVIL, "group_id": EVIL, "user_id": EVIL, "session_id": EVIL, "role": EVIL, "name": EVIL,
    "task_id": EVIL, "model": EVIL, "config": "{}", "retry_of": None, "state": "success", "stop_reason": EVIL,
    "error_kind": None, "created_us": 10**30,
}  # fmt: skip
SUMS = {"counts": {EVIL: 1, "approved": 10**40}, "cost_micros": 1, "uncosted_micros": 1}
DECISION: dict[str, Any] = {
    "seq": 1, "at_us": 1, "decision": EVIL, "by": EVIL, "kind": EVIL, "channel": EVIL, "how": EVIL, "client": EVIL,
    "token": EVIL, "run_id": EVIL, "pending_id": EVIL, "group_id": EVIL, "user": EVIL, "role": EVIL, "name": EVIL,
    "task": EVIL, "cap": EVIL, "cap_micros": 1, "digest": EVIL, "cost_micros": 1, "state": EVIL, "ended": True,
}  # fmt: skip
VIEW = {"row": ROW, "state": "success", "at_us": 1, "caps": [["cost", 1, 10**40, 0]], "free": False, "task": EVIL}
ANSWERS: dict[str, Any] = {
    "nothing": {},
    "escapes in what can be shown": {
        "runs": [{**VIEW, "row": {**ROW, "created_us": 1}, "at_us": 1, "caps": []}] * 3, "at_us": 1, "budgets": [],
        "counts": {}, "token": {"user": EVIL, "scopes": [EVIL], "version": EVIL},
    },
    "another form": {"runs": [{"row": 1}], "lines": 7, "user": {}, "spending": []},
    "runs with escapes": {
        "runs": [VIEW], "at_us": 10**25, "counts": {EVIL: 1}, "budgets": [], "row": ROW, "texts": None,
        "token": {"user": EVIL, "scopes": [EVIL], "version": EVIL},
        "answer": {"subagent_id": EVIL, "role": EVIL, "state": "success", "status_line": EVIL,
                   "untrusted_result": {"warning": EVIL, "output": EVIL}},
    },
    "lines with escapes": {
        "lines": [json.dumps({"timestamp": EVIL, "sessionId": EVIL, "agentId": EVIL, "userId": EVIL, "eventType": EVIL,
                              "content": {}, "metadata": {}, "seq": 1, "v": 1, "timestampUs": 10**30,
                              "contentSha": "00", "prevHash": "00", "hash": "00"})],
        "names": {}, "next": None, "upto": 1,
    },
    "pages without end": {"lines": [], "names": {}, "next": 10**9, "upto": 1},
    "decisions without end": {"user": EVIL, "sums": SUMS, "rows": [DECISION], "next": [10**9, 1]},
    "a decision at no time": {"user": EVIL, "sums": SUMS, "rows": [{**DECISION, "at_us": 10**30}], "next": None},
    "a cost beyond all": {"user": EVIL, "sums": SUMS, "rows": [{**DECISION, "cost_micros": 10**40}], "next": None},
    "two lines in one": {"lines": ["{}\n{}"], "names": {}, "next": None, "upto": 1},
}  # fmt: skip


@pytest.mark.parametrize("kind", ANSWERS)
def test_no_answer_to_a_command_on_runs_causes_a_traceback_or_steers_the_terminal(kind: str) -> None:
    with hostile(answer(ANSWERS[kind])) as (port, seen):
        for words in VERBS:
            done = ava("/nonexistent", *words, "--url", f"http://localhost:{port}", env={"AVA_TOKEN": TOKEN})
            said = done.stdout + done.stderr
            assert "Traceback" not in said and "fault of Ava" not in said and TOKEN not in said, (words, said)
            assert not set("\x1b\x07\u202e\u200b\r") & set(said), words
            assert done.returncode in (0, 2, 10, 30), (words, done.returncode)
    assert seen and all(b"127.0.0.1" not in request.split(b"\r\n")[0] for request in seen)


def test_an_older_server_is_named_as_that() -> None:
    there = {"error": "not found", "error_description": "Not found. Paths: /mcp for MCP clients."}
    with hostile(answer(there, "404 Not Found")) as (port, _seen):
        for words in VERBS:
            done = ava("/nonexistent", *words, "--url", f"http://localhost:{port}", env={"AVA_TOKEN": TOKEN})
            assert done.returncode == 30 and "runs an older Ava" in done.stderr and done.stderr.count("\n") == 1, words


@pytest.mark.parametrize("words", [("status",), ("show", "S-0dd0dd"), ("send", "S-0dd0dd", "x")])
def test_commands_on_runs_follow_no_redirect_either(words: tuple[str, ...]) -> None:
    with hostile(answer({})) as (elsewhere, stolen):
        to = f"Location: http://localhost:{elsewhere}/runs\r\n"
        with hostile(answer({}, "307 Temporary Redirect", to)) as (port, _seen):
            done = ava("/nonexistent", *words, "--url", f"http://localhost:{port}", env={"AVA_TOKEN": TOKEN})
        assert done.returncode == 10 and stolen == []


@contextmanager
def hostile(write: Writes) -> Generator[tuple[int, list[bytes]]]:
    """A server that answers each connection as it likes."""
    seen: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError):
                line, _address = listener.accept()
                line.settimeout(20)
                with line, suppress(OSError):
                    seen.append(line.recv(65_536))
                    write(line)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], seen
        finally:
            over.set()
            thread.join(25)


def asked(port: int, **env: str) -> Any:
    began = time.monotonic()
    done = ava("/nonexistent", "--url", f"http://localhost:{port}", "approve", env={"AVA_TOKEN": TOKEN, **env})
    assert time.monotonic() - began < 15
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr
    return done
