"""The server as hosts run it: a child process on stdio, spoken to by the SDK's own client, or line by line.

async with connect_stdio(root, mode="legacy", cwd=workspace) as client: ...   # what well-behaved hosts do
async with serve_stdio(root) as wire: ...                                     # what all others do
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, Implementation

from ava_audit.store.backend import MARK
from ava_audit.store.locks import is_held
from ava_audit.verify import verify
from support.databases import write_config
from support.log import look_at
from support.processes import end, end_started_pages

AVA = (str(Path(sys.executable).with_name("ava")), "serve")
"""The installed command."""
MODES = ("legacy", "auto")
"""The handshake era, and the stateless one that a client which asks for it is given, as the SDK names them."""
MODERN = "2026-07-28"
ANSWER_S = 60.0
EXIT_S = 40.0
"""How long an answer and an end are waited for: many times what they take, because the machine may be busy."""
LONGEST_LINE = 32 * 1024 * 1024


def environment(root: Path, **more: str) -> dict[str, str]:
    """What hosts leave of the environment, the data root, and `more`; the server runs its runs itself."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "AVA_DATA_ROOT": str(root), "AVA_BACKGROUND": "false", **more}


def model_env(base_url: str) -> dict[str, str]:
    """The variables that make a server use the scripted model server."""
    return {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "scripted", "AVA_MODEL_API_KEY": "none-needed"}


class Stderr:
    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by `checked`

    @property
    def text(self) -> str:
        # pread: the position is shared with the child, which writes at it
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode("utf-8", "replace")

    @contextmanager
    def checked(self) -> Generator[Stderr]:
        try:
            yield self
            assert "Traceback" not in self.text, self.text
        finally:
            self.file.close()


@asynccontextmanager
async def connect_stdio(
    root: Path,
    *,
    mode: str = "legacy",
    cwd: Path,
    env: Mapping[str, str] | None = None,
    name: str = "test-host",
    command: Sequence[str] = AVA,
) -> AsyncGenerator[Client]:
    """The SDK's own client with a server of its own; nothing may be a traceback on the server's stderr."""
    prepare(root)
    program, *args = command
    server = StdioServerParameters(command=program, args=args, env=environment(root, **(env or {})), cwd=cwd)
    with Stderr().checked() as stderr:
        transport = stdio_client(server, errlog=stderr.file)
        info = Implementation(name=name, version="1.0")
        try:
            async with Client(transport, mode=mode, client_info=info, read_timeout_seconds=60, cache=None) as client:
                yield client
        finally:
            end_started_pages(root)


def read_answer(result: CallToolResult) -> tuple[dict[str, Any], str]:
    assert result.structured_content is not None
    assert result.content[0].type == "text"
    return result.structured_content, result.content[0].text


class Wire:
    """A server spoken to line by line, in the handshake era."""

    def __init__(self, process: anyio.abc.Process, stderr: Stderr) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.pid = process.pid
        self.notifications: list[dict[str, Any]] = []
        self.meta: Mapping[str, Any] = {}
        """What a host sends with each request; in the stateless era it says there who it is."""
        self.replies: dict[str, Callable[[], Mapping[str, Any]]] = {}
        """What a host answers when the server asks it something, by method."""
        self.reads_s = 0.0
        """How long its person reads before that."""
        self._in = process.stdin
        self._out = BufferedByteReceiveStream(process.stdout)
        self._stderr = stderr
        self._answers: dict[Any, dict[str, Any]] = {}
        self._next = 0

    @property
    def stderr(self) -> str:
        return self._stderr.text

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self._in.send(data if data.endswith(b"\n") else data + b"\n")

    async def receive(self) -> dict[str, Any]:
        """The next line of stdout; every one of them is a JSON-RPC message."""
        line = await self._out.receive_until(b"\n", LONGEST_LINE)
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._next += 1
        given = dict(params or {})
        if self.meta:
            given["_meta"] = {**self.meta, **given.get("_meta", {})}
        await self.send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": given})
        return self._next

    async def answer(self, request_id: int | str | None, within_s: float = ANSWER_S) -> dict[str, Any]:
        """The whole message that answers a request; what comes before it is kept."""
        with anyio.fail_after(within_s):
            while request_id not in self._answers:
                message = await self.receive()
                if "id" in message and message.get("method") in self.replies:
                    await anyio.sleep(self.reads_s)
                    reply = self.replies[message["method"]]()
                    await self.send({"jsonrpc": "2.0", "id": message["id"], "result": reply})
                elif "method" in message:
                    self.notifications.append(message)
                else:
                    assert message["id"] not in self._answers, "one request, one answer"
                    self._answers[message["id"]] = message
        return self._answers.pop(request_id)

    async def next_answer(self) -> dict[str, Any]:
        """The next message that answers anything, whatever its id."""
        with anyio.fail_after(ANSWER_S):
            while "method" in (message := await self.receive()):
                self.notifications.append(message)
        return message

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer(await self.ask(method, params))

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def initialize(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "wire", "version": "1.0"},
        }
        answer = await self.answer(await self.ask("initialize", hello), within_s)
        await self.notify("notifications/initialized")
        return answer

    async def tool(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that succeeds, and return the structured form."""
        found = await self.tool_result(tool, **arguments)
        assert not found.get("isError"), found["content"][0]["text"]
        content: dict[str, Any] = found["structuredContent"]
        return content

    async def tool_result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        result: dict[str, Any] = answer["result"]
        return result

    async def start_run(self, **spawn: Any) -> str:
        proposed = await self.tool("spawn_subagent", **{"role": "researcher", "task": "Look it up", **spawn})
        confirmed = await self.tool(
            "confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]]
        )
        assert confirmed["status"] == "approved", confirmed
        run_id: str = proposed["subagent_id"]
        return run_id

    async def close_stdin(self) -> None:
        await self._in.aclose()

    async def close_stdout(self) -> None:
        await self._out.aclose()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended meanwhile gets none."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def exited(self) -> int:
        with anyio.fail_after(EXIT_S):
            return await self.process.wait()


@asynccontextmanager
async def serve_stdio(
    root: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    initialize: bool = True,
    before: Sequence[str] = (),
    command: Sequence[str] = AVA,
    own_group: bool = False,
) -> AsyncGenerator[Wire]:
    """A server of one's own; killed if the test has not ended it. No traceback may be on its stderr.

    `before` is a program that starts it, with its arguments; `command` is another way to start it; `own_group` makes
    it the first of a process group.
    """
    if initialize:
        prepare(root)
    with Stderr().checked() as stderr:
        child = await anyio.open_process(
            [*before, *command],
            env=environment(root, **(env or {})),
            cwd=cwd or root.parent,
            stderr=stderr.file,
            start_new_session=own_group,
        )
        wire = Wire(child, stderr)
        try:
            if initialize:
                await wire.initialize()
            yield wire
        finally:
            if before:  # it may have given the server file systems of its own
                end_started_pages(Path(f"/proc/{child.pid}/root", *root.parts[1:]))
            await end(child)
            end_started_pages(root)


# -- what is on the record --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logged:
    seq: int
    agent: str
    session: str
    user: str
    type: str
    run_id: str | None
    content: dict[str, Any]


def read_log(root: Path, *types: str, run: str | None = None) -> list[Logged]:
    """The entries of the log, of these types, of this run; none while there is no log yet."""
    if not (root / "ava.db").exists() and not (root / MARK).exists():
        return []
    with look_at(root) as db:
        if db.schema_version() == 0:
            return []
        sql = "SELECT seq, agent_id, session_id, user_id, type, run_id, content FROM events ORDER BY seq"
        rows = db.execute(sql).fetchall()
    entries = [
        Logged(seq, agent, session, user, kind, run_id, json.loads(content or "{}"))  # it may be erased
        for seq, agent, session, user, kind, run_id, content in rows
    ]
    return [entry for entry in entries if (not types or entry.type in types) and (run is None or entry.run_id == run)]


def state_of(root: Path, run: str) -> str:
    with look_at(root) as db:
        state: str = db.execute("SELECT state FROM runs WHERE id = ?", (run,)).fetchone()[0]
        return state


def make_root(root: Path, mode: int = 0o700, **files: str) -> Path:
    """Make a data root before a server does, with files in it (`config_toml` is config.toml)."""
    root.mkdir(mode=mode)
    for name, text in files.items():
        (root / name.replace("_", ".")).write_text(text)
    write_config(root, files.get("config_toml", ""))
    return root


def prepare(root: Path) -> None:
    if not os.path.lexists(root) and root.parent.is_dir():
        make_root(root)


async def until(found: Callable[[], Any], within_s: float = 40.0) -> Any:
    with anyio.fail_after(within_s):
        while not (value := found()):  # noqa: ASYNC110 - it happens in another process
            await anyio.sleep(0.02)
    return value


def assert_intact(root: Path) -> None:
    """The chain holds, and the projections are what follows from the log."""
    report = verify(root)
    assert report.faults == ()
    assert report.projections


def instance_locks(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "instances").glob("*.lock"))


def stray_locks(root: Path) -> list[str]:
    """The locks that an orderly end should not leave: held ones, and those that no running run names."""
    with look_at(root) as db:
        named = {f"{name}.lock" for (name,) in db.execute("SELECT instance FROM runs WHERE state = 'running'")}
    return [name for name in instance_locks(root) if name not in named or is_held(root / "instances" / name)]
