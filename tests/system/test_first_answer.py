"""The first answer of `ava serve`, given before the server is loaded: the server's own, once, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from support.hosts.profiles import HOSTS, Profile
from support.repository import script
from support.stdio import AVA, MODERN, environment, make_root, read_log, serve_stdio

from ava_server.mcp_server import first_answer
from ava_server.mcp_server.first_answer import answer_to

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there the server answers everything itself")

KNOWN: dict[str, Any] = json.loads(Path(first_answer.__file__).with_name("first_answers.json").read_text("utf-8"))
CLIENT = {"name": "x", "version": "1"}
META = "io.modelcontextprotocol/"


def initialize(version: str = "2025-11-25", client: Mapping[str, Any] = CLIENT, **capabilities: Any) -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def discover(version: str = MODERN, client: Mapping[str, Any] = CLIENT, **capabilities: Any) -> dict[str, Any]:
    meta = {META + "protocolVersion": version, META + "clientInfo": client, META + "clientCapabilities": capabilities}
    return {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}


def first_request(host: Profile) -> dict[str, Any]:
    client = {"name": host.name, "version": host.version}
    asked = discover if host.protocol == MODERN else initialize
    return asked(host.protocol, client, **host.capabilities)


EVERY: dict[str, Any] = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": {"a": {"b": [1, None]}},
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
}
FULL = {**CLIENT, "title": "É", "description": "d", "websiteUrl": "no address"}
ANSWERED: dict[str, dict[str, Any]] = {
    **{version: initialize(version) for version in HANDSHAKE_PROTOCOL_VERSIONS},
    **{f"{version}, all": initialize(version, FULL, **EVERY) for version in HANDSHAKE_PROTOCOL_VERSIONS},
    MODERN: discover(),
    f"{MODERN}, all": discover(MODERN, FULL, **EVERY),
    **{host.name: first_request(host) for host in HOSTS},
    "an id of text": {**initialize(), "id": "é-1"},
}


def line_of(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


@pytest.mark.parametrize("request_", ANSWERED.values(), ids=ANSWERED)
async def test_the_early_answer_is_the_servers_own(request_: dict[str, Any]) -> None:
    early = answer_to(line_of(request_), KNOWN)
    assert early is not None
    result = await script("gen_docs").answer_in_memory(request_)
    assert early[0] == request_["id"]
    assert json.loads(early[1]) == {"jsonrpc": "2.0", "id": request_["id"], "result": result}


DEEP = json.loads("[" * 99 + "]" * 99)
LEFT: dict[str, bytes] = {
    "an unknown version": line_of(initialize("2099-01-01")),
    "the version of the other era": line_of(initialize(MODERN)),
    "discover with an old version": line_of(discover("2025-11-25")),
    "discover without an envelope": line_of({**discover(), "params": {}}),
    "another request": line_of({**initialize(), "method": "ping"}),
    "a notification": line_of({key: value for key, value in initialize().items() if key != "id"}),
    "a batch": line_of([initialize()]),
    "no JSON": b'{"jsonrpc":',
    "not UTF-8": line_of(initialize(client={"name": "x", "version": "é"})).replace(b"\xc3\xa9", b"\xff"),
    "half a surrogate": json.dumps({**initialize(), "id": "\ud800"}).encode(),
    "an unknown member": line_of({**initialize(), "more": 1}),
    "an unknown capability": line_of(initialize(tasks={})),
    "a malformed capability": line_of(initialize(roots=True)),
    "a malformed extension": line_of(initialize(extensions={"x": 1})),
    "a client without a version": line_of(initialize(client={"name": "x"})),
    "deep nesting": line_of(initialize(experimental={"x": {"y": DEEP}})),
    "NaN": line_of(initialize(experimental={"x": {"y": float("nan")}})),
    "an id that is a fraction": line_of({**initialize(), "id": 1.5}),
    "an id that is true": line_of({**initialize(), "id": True}),
    "a long number as its id": line_of({**initialize(), "id": 2**64}),
    "another version of JSON-RPC": line_of({**initialize(), "jsonrpc": "1.0"}),
}  # fmt: skip


@pytest.mark.parametrize("line", LEFT.values(), ids=LEFT)
def test_leaves_anything_unusual_to_the_server(line: bytes) -> None:
    assert answer_to(line, KNOWN) is None


def serve(tmp_path: Path, data: bytes, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a server that is given these bytes, and then the end of stdin."""
    return subprocess.run(
        AVA, input=data, capture_output=True, env=environment(tmp_path / "data", **env), timeout=60, check=False
    )


def test_the_end_of_stdin_after_the_first_request_ends_the_server_well(tmp_path: Path) -> None:
    early = answer_to(line_of(initialize()), KNOWN)
    assert early is not None
    done = serve(tmp_path, line_of(initialize()) + b"\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == early[1]  # once
    assert serve(tmp_path, b"\n" + line_of(initialize()) + b"\n").stdout == early[1]  # by the server itself


@pytest.mark.parametrize("first", [initialize(), discover()], ids=["initialize", "discover"])
async def test_answers_each_of_several_requests_that_come_at_once_in_one_piece(
    tmp_path: Path, first: dict[str, Any]
) -> None:
    ask = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**first["params"], "name": "check_subagent"}}
    known = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with serve_stdio(make_root(tmp_path / "data"), initialize=False) as wire:
        await wire.send(b"\n".join(map(line_of, (first, known, ask))) + b"\n")
        assert [(await wire.next_answer())["id"] for _ in range(2)] == [1, 2]
        wire.meta = first["params"].get("_meta", {})
        wire._next = 2
        assert (await wire.request("tools/list"))["id"] == 3  # nothing else came between
        await wire.close_stdin()
        assert await wire.exited() == 0
    (session,) = read_log(tmp_path / "data", "SessionStart")
    version = MODERN if first["method"] == "server/discover" else "2025-11-25"
    assert (session.content["client"], session.content["client_version"]) == ("x", "1")
    assert session.content["protocol"] == version


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the process in /proc")
def test_a_line_that_comes_in_pieces_is_answered_by_the_server(tmp_path: Path) -> None:
    line = line_of(initialize()) + b"\n"
    process = subprocess.Popen(
        AVA, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(tmp_path / "data"), bufsize=0
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(line[:40])
        while process.poll() is None and not loaded(process.pid):
            time.sleep(0.01)
        process.stdin.write(line[40:])
        answer = json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == b""
    assert answer["result"]["protocolVersion"] == "2025-11-25"


def loaded(pid: int) -> bool:
    """Whether a process has begun to load what the server needs."""
    return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()


async def test_a_signal_right_after_the_answer_ends_the_server_well(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        async with serve_stdio(tmp_path / "data") as wire:
            wire.signal(number)
            assert await wire.exited() == code


def test_a_server_in_a_subagent_answers_nothing(tmp_path: Path) -> None:
    done = serve(tmp_path, line_of(initialize()) + b"\n", AVA_RUN_ID="S-1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"ava serve: " in done.stderr


def test_other_versions_of_the_packages_are_left_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    names = [tmp_path / f"{name}.dist-info" for name in KNOWN["packages"]]
    for name in names:
        assert first_answer._known_answers() is None
        name.mkdir()
    assert first_answer._known_answers() == KNOWN
    names[0].rename(tmp_path / "mcp-99.dist-info")
    assert first_answer._known_answers() is None


def test_nothing_but_a_little_of_the_standard_library_is_loaded_before_the_answer() -> None:
    program = (
        "import sys\nfrom ava_server.mcp_server.first_answer import answer_first\n"
        "assert answer_first()\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        input=line_of(initialize()) + b"\n",
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=60,
        check=False,
    )
    loaded_names = done.stderr.decode().split()
    assert done.returncode == 0, loaded_names
    others = {name for name in loaded_names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {
        "__main__",
        "ava_server",
        "ava_server.hosts",
        "ava_server.hosts.installed_skill",
        "ava_server.mcp_server",
        "ava_server.mcp_server.first_answer",
    }
    assert not {"asyncio", "dataclasses", "inspect", "importlib.metadata", "pathlib", "typing_extensions"} & {
        *loaded_names
    }
