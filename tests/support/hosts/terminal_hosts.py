"""Copilot CLI, Cline, qwen-code and Continue in their terminals: one row says how a host is set up and what it asks."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.hosts.claude_code import COLUMNS, DELEGATE, ROWS, Window, close_window, tmux
from support.hosts.real_hosts import HOSTS, NODE, SPAWN, data_root, entries, priced_model_env
from support.model_server import ModelServer, Say, run_model_server
from support.stdio import AVA
from support.terminal import CONTROLLED, run_on_terminal

LOOK, STOP, LOG = "What did they find?", "Stop it.", "What does the log say?"
ENDED = "Noted."
APPROVAL_LINE = r'approval_line(?:": ?"|: )([^"\\\n]+)'
"""In the text of an answer or in its structured form, of which some hosts pass on only one."""
CLASSIFIER = ["respond_in_schema"]
"""The only tool in a request of qwen-code that asks its model whether a call is safe."""
Prepare = Callable[[Path, str, Mapping[str, Any]], dict[str, str]]
"""Writes the host's files into a home, given the model's address and how Ava is started; returns variables."""


def _copilot(home: Path, url: str, server: Mapping[str, Any]) -> dict[str, str]:
    _write(home / ".copilot/mcp-config.json", {"mcpServers": {"ava": {**server, "type": "local", "tools": ["*"]}}})
    _write(home / ".copilot/config.json", {"trusted_folders": [str(home.parent / "project")], "banner": "never"})
    provider = {"COPILOT_PROVIDER_BASE_URL": url, "COPILOT_PROVIDER_API_KEY": "sk-x", "COPILOT_MODEL": "scripted"}
    return {"COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false", **provider}


def _cline(home: Path, url: str, server: Mapping[str, Any]) -> dict[str, str]:
    settings = home / ".cline/data/settings"
    _write(settings / "cline_mcp_settings.json", {"mcpServers": {"ava": server}})
    chosen = {"provider": "openai-compatible", "model": "scripted", "apiKey": "sk-x", "baseUrl": url}
    when = "2026-01-01T00:00:00.000Z"
    known = {"openai-compatible": {"settings": chosen, "updatedAt": when, "tokenSource": "manual"}}
    _write(settings / "providers.json", {"version": 1, "lastUsedProvider": "openai-compatible", "providers": known})
    return {}


def _qwen(home: Path, url: str, server: Mapping[str, Any]) -> dict[str, str]:
    quiet = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}
    auth = {"security": {"auth": {"selectedType": "openai"}}}
    _write(home / ".qwen/settings.json", {"mcpServers": {"ava": server}, **auth, **quiet})
    return {"OPENAI_API_KEY": "sk-x", "OPENAI_BASE_URL": url, "OPENAI_MODEL": "scripted"}


def _continue(home: Path, url: str, server: Mapping[str, Any]) -> dict[str, str]:
    how = {"provider": "openai", "model": "scripted", "apiBase": url, "apiKey": "sk-x"}
    model = {"name": "scripted", **how, "roles": ["chat"], "capabilities": ["tool_use"]}
    top = {"name": "local", "version": "1.0.0", "schema": "v1"}
    _write(home / ".continue/config.yaml", {**top, "models": [model], "mcpServers": [{"name": "ava", **server}]})
    return {"CONTINUE_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class TerminalHost:
    """A host."""

    name: str  # also the test's
    program: str  # below `node_modules`
    prepare: Prepare  # writes its files
    ready: str  # what its screen shows when something can be typed
    question: str | None = None  # what its own question before a call shows; None if it asks nobody by default
    options: tuple[str, ...] = ()  # what it is started with; `{home}` stands for its home
    greeting: str = "\0"  # what it may show first, until a key is pressed

    def command(self, home: Path) -> list[str]:
        options = (option.replace("{home}", str(home)) for option in self.options)
        return [str(HOSTS / "node_modules" / self.program), *options]


COPILOT = TerminalHost("copilot", ".bin/copilot", _copilot, "? help", question="Do you want to use this tool?")
CLINE = TerminalHost("cline", ".bin/cline", _cline, "Auto-approve all", greeting="any other key to close")
QWEN = TerminalHost("qwen-code", ".bin/qwen", _qwen, "Type your message")
CONTINUE = TerminalHost(
    "continue",
    ".bin/cn",
    _continue,
    "- ava",
    question="Would you like to continue?",
    options=("--config", "{home}/.continue/config.yaml"),
)
TABLE = (COPILOT, CLINE, QWEN, CONTINUE)
PIN = "7410852"


@dataclass
class TerminalModel:
    """A host's model: proposes and confirms when asked to, looks, cancels and reads the log."""

    spawn: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further arguments of `spawn_subagent`
    called: list[str] = field(default_factory=list[str])  # the tools of Ava that it has called, in order
    answers: list[str] = field(default_factory=list[str])  # what the calls returned, in order
    run_id: str = ""  # the run that it proposed last
    told: str = ""  # all messages of the last request

    def __call__(self, request: dict[str, Any]) -> Say:
        tools = [tool["function"]["name"] for tool in request.get("tools") or ()]
        if tools == CLASSIFIER:
            return Say(calls=[(CLASSIFIER[0], {"shouldBlock": False})])
        self.told = str(request.get("messages"))
        said, returned = _since_last_answer(request.get("messages") or [])
        if returned:
            self.answers.append(returned)
            return self._after(tools, returned)
        look = {"subagent_id": self.run_id, "wait_seconds": 20}
        for order, tool, arguments in (
            (DELEGATE, "spawn_subagent", {**SPAWN, **self.spawn}),
            (LOOK, "check_subagent", look),
            (STOP, "cancel_subagent", {"subagent_id": self.run_id}),
            (LOG, "read_ava_logs", {"subagent_id": self.run_id}),
        ):
            if order in said:
                return self._calls(tools, tool, arguments)
        return Say("ok")

    def _after(self, tools: list[str], returned: str) -> Say:
        if self.called[-1:] != ["spawn_subagent"]:
            return Say(ENDED)
        run = re.search(r"\bS-\w+", returned)
        assert run, returned
        self.run_id = run[0]
        if line := re.search(APPROVAL_LINE, returned):
            pending = re.search(r"\bP-\w+", returned)
            assert pending, returned
            return self._calls(tools, "confirm_spawn", {"approving": [line[1]], "pending_ids": [pending[0]]})
        return Say(ENDED)

    def _calls(self, tools: list[str], tool: str, arguments: dict[str, Any]) -> Say:
        name = next((name for name in tools if name.endswith(tool)), None)
        if name is None and f"mcp__ava__{tool}" not in self.told:
            return Say("ok")  # the host has not connected Ava yet
        self.called.append(tool)
        if name is None:  # qwen-code shows its model the names alone
            return Say(calls=[("tool_call", {"name": f"mcp__ava__{tool}", "arguments": arguments})])
        return Say(calls=[(name, arguments)])


def _since_last_answer(messages: list[dict[str, Any]]) -> tuple[str, str]:
    """Return what the person has said, and what tools returned, since the model's last answer."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    since = messages[last + 1 :]
    said, returned = (
        "\n".join(_text(message["content"]) for message in since if message["role"] == role)
        for role in ("user", "tool")
    )
    return said, returned


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@dataclass(frozen=True)
class OpenHost(Window):
    """A host in its terminal, and what its person types and sees."""

    host: TerminalHost
    orchestrator: TerminalModel

    def press(self, key: str) -> None:
        tmux(self.socket, "send-keys", key)

    def delegate(self) -> list[str]:
        """Have a subagent proposed and confirmed until Ava has the model's confirmation; return the host's questions.

        Ava may still hold its answer then, for a person.
        """
        return self._order(DELEGATE, lambda: "confirm_spawn" in self._logged())

    def order(self, text: str) -> str:
        """Type an order, and return what the one call that it leads to returned to the model."""
        self.until(lambda: len(self.orchestrator.answers) == len(self.orchestrator.called))
        called = len(self.orchestrator.called)
        self._order(text, lambda: len(self.orchestrator.answers) == called + 1)
        return self.orchestrator.answers[-1]

    def _order(self, text: str, found: Callable[[], bool]) -> list[str]:
        """Type an order; say yes to the host's own questions until something is so, and return their screens."""
        questions: list[str] = []
        self.begin(text)

        def done() -> bool:
            screen = self.screen
            if self.host.question is not None and self.host.question in screen:
                questions.append(screen)
                self.press("Enter")
                self.until(lambda: self.screen != screen)
                time.sleep(1)  # the question leaves the screen
            return found()

        self.until(done, 90)
        return questions

    def _logged(self) -> list[str]:
        return [entry["content"]["tool"] for entry in entries(self.root, "ToolCall")]

    def begin(self, text: str) -> None:
        """Type a line until the model is asked, as a person does while a host connects its servers."""
        deadline, called = time.monotonic() + 60, len(self.orchestrator.called)
        while len(self.orchestrator.called) == called:
            assert time.monotonic() < deadline, f"Ava was never connected; the screen:\n{self.screen}"
            if self.host.greeting in self.screen:
                self.press("x")
                time.sleep(1)
            tmux(self.socket, "send-keys", "-l", text)
            time.sleep(1.5)  # an Enter right after text counts as a part of it
            self.press("Enter")
            waits = time.monotonic() + 10
            while len(self.orchestrator.called) == called and time.monotonic() < waits:
                time.sleep(0.2)


@contextmanager
def open_terminal_host(
    host: TerminalHost, tmp_path: Path, orchestrator: TerminalModel, models: ModelServer, config: str
) -> Generator[OpenHost]:
    """Start a host in an empty home, with Ava over stdio; it is killed at the end."""
    root, home, project = data_root(tmp_path, config), tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    path = f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    ava = {"AVA_DATA_ROOT": str(root), "AVA_BACKGROUND": "false", "HOME": str(home), **priced_model_env(models)}
    server = {"command": AVA[0], "args": ["serve"], "env": {**ava, "PATH": os.environ["PATH"]}}
    base = {"PATH": path, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    with run_model_server(orchestrator) as model, tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        env = {**base, **host.prepare(home, model.base_url, server)}
        socket = Path(folder) / "socket"
        window = ("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(project))
        tmux(socket, "-f", os.devnull, *window, *host.command(home), env=env)
        at = OpenHost(root, socket, host, orchestrator)
        try:
            at.until(lambda: host.ready in at.screen or host.greeting in at.screen)
            yield at
        finally:
            close_window(socket)


def approve(at: OpenHost, models: ModelServer) -> None:
    """Approve what waits, in another window, where the first PIN is chosen."""
    proposal = entries(at.root, "SpawnProposed")[-1]["content"]["pending_id"]
    with run_on_terminal(at.root, "approve", proposal, env=priced_model_env(models), command=CONTROLLED) as screen:
        chosen = [("[y/N]", "y"), ("New approval PIN (not shown)", PIN), ("once more", PIN)]
        assert screen.ended_after(chosen) == 0, screen.text
