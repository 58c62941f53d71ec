"""What else comes over stdin than well-formed messages: answered as JSON-RPC wants, and the next call works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.stdio import AVA, MODERN, MODES, environment, read_log, serve_stdio, until

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602


NO_MESSAGES = {
    "no JSON": (b"{not json", None, PARSE_ERROR),
    "half a message": (b'{"jsonrpc":"2.0","id":5,"method":"tools/', None, PARSE_ERROR),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":5,"method":"\xff\xfe"}', None, PARSE_ERROR),
    "UTF-16": ('{"jsonrpc":"2.0","id":5,"method":"ping"}'.encode("utf-16").replace(b"\n", b""), None, PARSE_ERROR),
    "NUL bytes": (b"\0" * 100, None, PARSE_ERROR),
    "deep nesting": (b"[" * 200_000, None, PARSE_ERROR),
    "a number": (b"5", None, INVALID_REQUEST),
    "an empty batch": (b"[]", None, INVALID_REQUEST),
    "a batch": (b'[{"jsonrpc":"2.0","id":5,"method":"ping"}]', None, INVALID_REQUEST),
    "another version": (b'{"jsonrpc":"1.0","id":5,"method":"ping"}', 5, INVALID_REQUEST),
    "no version": (b'{"id":5,"method":"ping"}', 5, INVALID_REQUEST),
    "a method that is a number": (b'{"jsonrpc":"2.0","id":"five","method":5}', "five", INVALID_REQUEST),
    "half a surrogate": (
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"\\ud800"}}',
        5,
        INVALID_REQUEST,
    ),
}


@pytest.mark.slow
async def test_an_invalid_line_gets_an_error_and_the_next_call_works(root: Path) -> None:
    async with serve_stdio(root) as wire:
        for name, (line, request_id, code) in NO_MESSAGES.items():
            await wire.send(line)
            answer = await wire.next_answer()
            assert (name, answer["id"], answer["error"]["code"]) == (name, request_id, code)
            assert "result" not in answer
            listed = await wire.tool("check_subagent")
            assert listed["status"] == "list", name


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"", b"   ", b"\r"])
async def test_ignores_an_empty_line(root: Path, line: bytes) -> None:
    async with serve_stdio(root) as wire:
        await wire.send(line + b"\n")
        assert (await wire.tool("check_subagent"))["status"] == "list"


@pytest.mark.parametrize("pieces", [1, 2], ids=["in one piece", "in two pieces"])
async def test_a_byte_order_mark_before_the_first_message_is_no_part_of_it(root: Path, pieces: int) -> None:
    """In two pieces, the server itself answers; in one, what answers before the server is loaded."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    line = b"\xef\xbb\xbf" + json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode()
    async with serve_stdio(root, initialize=False) as wire:
        if pieces == 2:
            await wire.send(b"\xef\xbb\xbf\n")
        await wire.send(line)
        assert (await wire.next_answer())["result"]["serverInfo"]["name"] == "ava"
        await wire.notify("notifications/initialized")
        wire._next = 1
        assert (await wire.tool("check_subagent"))["status"] == "list"


ODD_TOKENS: list[Any] = [None, 1.5, 2.0, True, [], {}]


@pytest.mark.parametrize("mode", MODES)
async def test_a_progress_token_that_is_none_does_not_cost_the_call(root: Path, mode: str) -> None:
    meta: dict[str, Any] = {}
    if mode == "auto":
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1.0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    async with serve_stdio(root, initialize=False) as wire:
        first = {**meta, "progressToken": None}
        if mode == "legacy":
            answer = await wire.request("initialize", {**hello, "_meta": first})
            assert answer["result"]["protocolVersion"] == "2025-11-25"
            await wire.notify("notifications/initialized", {"_meta": first})
        else:
            answer = await wire.request("server/discover", {"_meta": first})
            assert MODERN in answer["result"]["supportedVersions"]
        for token in ODD_TOKENS:
            odd = {**meta, "progressToken": token}
            listed = await wire.request("tools/list", {"_meta": odd})
            assert len(listed["result"]["tools"]) == 6, token
            called = await wire.request("tools/call", {"name": "check_subagent", "arguments": {}, "_meta": odd})
            assert called["result"]["structuredContent"]["status"] == "list", token


async def test_accepts_windows_line_endings(root: Path) -> None:
    async with serve_stdio(root) as wire:
        await wire.send(b'{"jsonrpc":"2.0","id":"crlf","method":"ping"}\r\n')
        assert (await wire.answer("crlf"))["result"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"', b'"}}', 77),
        (b'{"method":"tools/call","params":{"name":"', b'"},"jsonrpc":"2.0","id":"last"}', "last"),
        (b'{"method":"tools/call","params":{"name":"', b'","arguments":{"id":3}},"jsonrpc":"2.0"}', None),
    ],
)
async def test_rejects_an_oversized_message_under_its_id(
    root: Path, before: bytes, after: bytes, request_id: int | str | None
) -> None:
    async with serve_stdio(root) as wire:
        await wire.send(before + b"x" * 20_000_000 + after)
        error = (await wire.answer(request_id))["error"]
        assert error["code"] == INVALID_REQUEST
        assert "longer than 16,777,216 bytes" in error["message"]
        assert (await wire.tool("check_subagent"))["status"] == "list"


@pytest.mark.slow
async def test_a_huge_but_allowed_message_reaches_the_tool(root: Path) -> None:
    async with serve_stdio(root) as wire:
        result = await wire.tool_result("spawn_subagent", role="researcher", task="x" * 8_000_000)
        assert result["isError"] is True
        text = result["content"][0]["text"]
        assert text.startswith("Failed: ")
        assert "at most 1,000,000 are allowed" in text
        assert len(text) < 2_000
        assert (await wire.tool("check_subagent"))["runs"] == []


async def test_unknown_methods_tools_and_arguments_get_different_errors(root: Path) -> None:
    async with serve_stdio(root) as wire:
        unknown = await wire.request("runs/list")
        assert unknown["error"]["code"] == METHOD_NOT_FOUND
        bad_params = await wire.request("tools/call", {"arguments": {}})
        assert bad_params["error"]["code"] == INVALID_PARAMS
        not_a_tool = await wire.request("tools/call", {"name": "delete_everything", "arguments": {}})
        assert not_a_tool["error"]["code"] == INVALID_PARAMS
        assert "there is no tool 'delete_everything'" in not_a_tool["error"]["message"]
        odd = await wire.tool_result("check_subagent", subagent="S-123456")
        assert odd["isError"] is True
        assert "subagent: check_subagent has no argument of that name" in odd["content"][0]["text"]
        await wire.notify("notifications/whatever", {"x": 1})
        assert (await wire.request("ping"))["result"] == {}


async def test_errors_for_unknown_resources_and_prompts_list_the_known_ones(root: Path) -> None:
    async with serve_stdio(root) as wire:
        for uri in ("ava://nothing", "ava://runs/S-aaaaaa", "ava://runs/S-aaaaaa/artifacts/..%2f..%2fkeys.toml"):
            error = (await wire.request("resources/read", {"uri": uri}))["error"]
            assert error["code"] == INVALID_PARAMS
            assert "ava://roles" in error["message"] or "S-aaaaaa" in error["message"]
        error = (await wire.request("prompts/get", {"name": "poem", "arguments": {"task": "x"}}))["error"]
        assert "delegate" in error["message"]
        error = (await wire.request("prompts/get", {"name": "delegate", "arguments": {}}))["error"]
        assert "task" in error["message"]
        assert (await wire.request("ping"))["result"] == {}


@pytest.mark.skipif(
    not Path("/proc").is_dir() or os.geteuid() != 0,
    reason="the files of a process are shown in /proc, and those of a server, which hides itself, to root alone",
)
async def test_stdout_carries_only_messages_and_child_processes_get_an_empty_stdin(root: Path) -> None:
    async with serve_stdio(root) as wire:
        await wire.tool("check_subagent")
        files = [str(await anyio.Path(f"/proc/{wire.pid}/fd/{number}").readlink()) for number in range(3)]
        assert files[0] == os.devnull
        assert files[1] == files[2]


async def test_messages_can_come_from_a_file_and_answers_can_go_to_one(root: Path, tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "file", "version": "1"}}
    asked = tmp_path / "asked"
    asked.write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n")
    with asked.open("rb") as source, (tmp_path / "said").open("wb") as sink:
        done = await anyio.run_process(AVA, stdin=source, stdout=sink, env=environment(root), check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [1]
    assert answers[0]["result"]["serverInfo"]["name"] == "ava"


@pytest.mark.slow
async def test_ends_at_once_without_a_host(root: Path) -> None:
    with anyio.fail_after(40):
        done = await anyio.run_process(AVA, stdin=subprocess.DEVNULL, env=environment(root), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.slow
async def test_a_host_that_stops_reading_does_not_keep_the_server_alive(root: Path) -> None:
    async with serve_stdio(root) as wire:
        for _ in range(30):  # far more than a pipe holds
            await wire.ask("tools/list")
        await wire.close_stdin()
        assert await wire.exited() == 0


@pytest.mark.slow
async def test_serves_a_host_that_closed_its_reading_end_until_stdin_closes(root: Path) -> None:
    async with serve_stdio(root) as wire:
        await wire.close_stdout()
        run = {
            "name": "spawn_subagent",
            "arguments": {"role": "researcher", "task": "Look up https://example.org/prices"},
        }
        for _ in range(3):
            await wire.ask("tools/call", run)
        await until(lambda: len(read_log(root, "SpawnProposed")) == 3)
        await wire.close_stdin()
        assert await wire.exited() == 0


@pytest.mark.slow
async def test_a_cancellation_after_the_answer_changes_nothing(root: Path) -> None:
    async with serve_stdio(root) as wire:
        for _ in range(5):
            request = await wire.ask("tools/call", {"name": "check_subagent", "arguments": {}})
            answer = await wire.answer(request)
            await wire.notify("notifications/cancelled", {"requestId": request, "reason": "AbortError"})
            assert answer["result"]["structuredContent"]["status"] == "list"
        await wire.notify("notifications/cancelled", {"requestId": 10_000})
        await wire.notify("notifications/cancelled", {})
        assert (await wire.tool("check_subagent"))["status"] == "list"


async def test_the_server_refuses_to_start_inside_a_run(root: Path) -> None:
    done = await anyio.run_process(AVA, input=b"", env=environment(root, AVA_RUN_ID="S-abcdef"), check=False)
    assert done.returncode == 2
    assert b"S-abcdef" in done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert not await anyio.Path(root).exists()


async def test_sigint_during_startup_causes_no_traceback(root: Path) -> None:
    async with serve_stdio(root, initialize=False) as wire:
        maps = Path(f"/proc/{wire.pid}/maps")
        await until(lambda: "_pydantic_core" in maps.read_text())
        wire.signal(signal.SIGINT)
        assert await wire.exited() == 130
    assert read_log(root) == []


SWALLOWED = """
import os, signal, sys
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic":
            Dropped()
sys.meta_path.insert(0, Finder())
sys.argv = ["ava", "serve"]
from ava_server.__main__ import main
main()
"""


async def test_sigint_works_even_where_an_exception_would_be_lost(root: Path) -> None:
    """What is raised in a callback of an object that goes is printed and forgotten; imports have such callbacks."""
    async with serve_stdio(root, initialize=False, command=(sys.executable, "-c", SWALLOWED)) as wire:
        with anyio.fail_after(20):
            assert await wire.process.wait() == 130
        assert wire.stderr == ""
    assert read_log(root) == []


@pytest.mark.parametrize("mode", MODES)
async def test_answers_both_protocol_eras_on_the_same_connection(root: Path, mode: str) -> None:
    async with serve_stdio(root, initialize=False) as wire:
        if mode == "legacy":
            result = (await wire.initialize())["result"]
            assert result["protocolVersion"] == "2025-11-25"
        else:
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1.0"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            result = (await wire.request("server/discover", {"_meta": meta}))["result"]
            assert MODERN in result["supportedVersions"]
        assert result["instructions"].startswith("Ava runs subagents in the background")
        assert len(result["instructions"]) <= 2_048
