"""Codex in its terminal (tmux): a scripted model, a person who always says yes, and Ava as `ava init` connects it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from support.hosts.claude_code import COLUMNS, DELEGATE, ROWS, close_window, keep_screen, tmux
from support.hosts.real_hosts import HOSTS, SPAWN, data_root, priced_model_env
from support.model_server import ModelServer, Say
from support.models.responses_format import events
from support.terminal import ava

ENDED = "Noted."
OWN, AVAS = "Allow the ava MCP server to run tool", "Ava wants to start"


@dataclass
class CodexModel:
    """Codex's model: proposes a subagent when the person asks for it, and confirms it once. Keeps what it called."""

    spawn: Mapping[str, Any] = field(default_factory=lambda: SPAWN)
    called: list[str] = field(default_factory=list[str])

    def step(self, request: Mapping[str, Any]) -> Say:
        """Answer a request of Codex."""
        said = "\n".join(_texts(request["input"]))
        if "spawn_subagent" not in str(request.get("tools")) or DELEGATE not in said:
            return Say("ok")
        if not self.called:
            return self._calls("spawn_subagent", self.spawn)
        pending_id = re.search(r'"pending_id": ?"(P-\w+)"', said)
        line = re.search(r'"approval_line": ?("(?:[^"\\]|\\.)+")', said)  # a plan's name stands in it in quotes
        if len(self.called) == 1 and pending_id and line:
            return self._calls("confirm_spawn", {"pending_ids": [pending_id[1]], "approving": [json.loads(line[1])]})
        return Say(ENDED)

    def _calls(self, tool: str, arguments: Mapping[str, Any]) -> Say:
        self.called.append(tool)
        return Say(calls=[(tool, dict(arguments))])


def _texts(value: object) -> Generator[str]:
    """Yield every text in a request; what a tool returned is one, even if it is JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(cast("dict[str, object]", value).values()))
    elif isinstance(value, list):
        for part in cast("list[object]", value):
            yield from _texts(part)


def _answer(step: Say, request: Mapping[str, Any]) -> bytes:
    """Return the events of an answer; Codex gives the tools of a server as a namespace, and calls need its name."""
    spaces = {tool["name"]: space["name"] for space in request.get("tools", []) for tool in space.get("tools", [])}
    text = b"".join(events(step, request)).decode()
    for tool, _arguments in step.calls:
        text = text.replace(f'"name": "{tool}"', f'"namespace": "{spaces[tool]}", "name": "{tool}"')
    return text.encode()


@contextmanager
def _model(orchestrator: CodexModel) -> Generator[str]:
    """Serve the model's API on loopback, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None: ...

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._send(b'{"models": [], "data": []}', "application/json")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._send(_answer(orchestrator.step(request), request), "text/event-stream")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Codex:
    """Codex as its person sees it."""

    socket: Path
    orchestrator: CodexModel
    root: Path

    @property
    def screen(self) -> str:
        return tmux(self.socket, "capture-pane", "-p").stdout

    def delegate(self, within_s: float = 90) -> list[str]:
        """Have a subagent started; say yes to every question, and return the questions in order."""
        deadline, asked, typed = time.monotonic() + within_s, list[str](), False
        while ENDED not in (screen := self.screen):
            assert time.monotonic() < deadline, screen
            if re.search(r"› 1\. \w", screen):
                keep_screen(screen)
                last = screen[max(screen.rfind(OWN), screen.rfind(AVAS)) :]
                asked.append(OWN if last.startswith(OWN) else AVAS if last.startswith(AVAS) else screen)
                self._press("Enter")
                self._wait_until_changed(screen, deadline)
            elif not self.orchestrator.called:
                if not typed and "Ask Codex to do anything" in screen:
                    tmux(self.socket, "send-keys", "-l", DELEGATE)
                typed = typed or DELEGATE in screen
                time.sleep(2)  # an Enter right after text counts as a part of it
                if typed:
                    self._press("Enter")
            time.sleep(0.3)
        return asked

    def _press(self, key: str) -> None:
        time.sleep(1.5)  # a yes within a second of a question decides nothing
        tmux(self.socket, "send-keys", key)

    def _wait_until_changed(self, screen: str, deadline: float) -> None:
        question = screen[screen.rfind("Field 1/1") :]
        while question in self.screen:
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)


@contextmanager
def open_codex(
    tmp_path: Path,
    models: ModelServer,
    *,
    mode: str = "",
    options: Sequence[str] = (),
    spawn: Mapping[str, Any] = SPAWN,
) -> Generator[Codex]:
    """Start Codex in an empty home; it is killed at the end. `mode` is the `approval_mode` of `confirm_spawn`."""
    root, home, project = data_root(tmp_path), tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    file, orchestrator = home / ".codex" / "config.toml", CodexModel(spawn)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8", "KEY": "sk-x"}
    done = ava(
        root, "init", "codex", env={**priced_model_env(models), "HOME": str(home), "CODEX_HOME": str(file.parent)}
    )
    assert done.returncode == 0, done.stderr
    rule = f'[mcp_servers.ava.tools.confirm_spawn]\napproval_mode = "{mode}"\n' if mode else ""
    with _model(orchestrator) as url, tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        settings = (
            'model = "scripted"\nmodel_provider = "fake"\ncheck_for_update_on_startup = false\n'
            f'[model_providers.fake]\nname = "fake"\nbase_url = "{url}"\nwire_api = "responses"\nenv_key = "KEY"\n'
            f'[projects."{project}"]\ntrust_level = "trusted"\n'
        )
        file.write_text(f"{settings}{file.read_text()}\n{rule}")
        socket = Path(folder) / "socket"
        window = ("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(project))
        tmux(socket, "-f", os.devnull, *window, str(_program()), *options, env=env)
        try:
            yield Codex(socket, orchestrator, root)
        finally:
            close_window(socket)


def _program() -> Path:
    """Return Codex's program for this machine."""
    return next(HOSTS.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"))
