"""Claude Code in a terminal (tmux): a scripted model, a person who types, and Ava as `ava init` connects it.

orchestrator = Orchestrator(delegation_rule())
with run_model_server([DONE]) as models, open_claude_code(tmp_path, orchestrator, models) as host:
    host.delegate()
    host.until(lambda: orchestrator.having("twelve cents"))
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from support.hosts.real_hosts import HOSTS, SPAWN, data_root, entries, priced_model_env
from support.model_server import Gate, ModelServer, Say, Step, run_model_server
from support.processes import lives
from support.runtime import hand_over
from support.terminal import CONTROLLED, ava, run_on_terminal

T = TypeVar("T")
WITHIN_S = 60.0
COLUMNS, ROWS = 150, 60
DELEGATE = "Have the prices looked up."
"""What the person types to start subagents."""
FORM = "requests your input"
"""What stands above a form."""
PREFIX = "mcp__ava__"
"""How Claude Code begins the names of the tools of the server `ava`."""
KEY = "sk-scripted"


# -- the model in Claude Code -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    at: float  # when it came, in seconds since the epoch
    news: str  # what was typed, and what Claude Code itself told the model, since the model's last answer
    results: tuple[str, ...]  # what the model's last calls returned

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Turn:
        news: list[str] = []
        results: list[str] = []
        for message in _since_last_answer(request["messages"]):
            for block in _blocks(message["content"]):
                (results if block["type"] == "tool_result" else news).append(_text(block))
        return cls(time.time(), "\n".join(news), tuple(results))

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Ava's answers to the model's last calls; texts of Claude Code's own are left out."""
        found: list[dict[str, Any]] = []
        for result in self.results:
            with suppress(ValueError):
                found.append(json.loads(result))
        return found


def _since_last_answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the user's side has said since; Claude Code's own rules are messages of the role `system`."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return [message for message in messages[last + 1 :] if message["role"] == "user"]


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(block: Mapping[str, Any]) -> str:
    if block["type"] == "tool_result":
        return "\n".join(_text(part) for part in _blocks(block.get("content") or ""))
    return str(block.get("text", ""))


Rule = Callable[[Turn], Step | None]


class Orchestrator:
    """Plays the model: the first rule that knows an answer gives it. Everything it was asked and did is kept.

    Attributes:
        rules: What it does.
        turns: The requests of the main conversation.
        sizes: Bytes of each of them.
        called: The tools of Ava that it has called, in order.
        requests: How many requests of any kind there were.
    """

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self.turns: list[Turn] = []
        self.sizes: list[int] = []
        self.called: list[str] = []
        self.requests = 0

    def __call__(self, request: dict[str, Any]) -> Step:
        self.requests += 1
        if f"{PREFIX}spawn_subagent" not in {tool["name"] for tool in request.get("tools") or ()}:
            return Say("ok")
        turn = Turn.of(request)
        self.turns.append(turn)
        self.sizes.append(len(json.dumps(request, ensure_ascii=False).encode()))
        step = next((step for rule in self.rules if (step := rule(turn)) is not None), Say("Noted."))
        assert isinstance(step, Say)
        self.called += [name.removeprefix(PREFIX) for name, _arguments in step.calls]
        return step

    def having(self, *texts: str) -> Turn | None:
        """Return the first turn whose news has these texts."""
        return next((turn for turn in self.turns if all(text in turn.news for text in texts)), None)

    def forget(self) -> None:
        self.turns.clear()
        self.sizes.clear()
        self.requests = 0


def call(tool: str, **arguments: Any) -> Say:
    return Say(calls=[(f"{PREFIX}{tool}", arguments)])


def delegation_rule(*spawns: Mapping[str, Any]) -> Rule:
    """Propose these subagents when the person asks for it, and confirm all of them with one call."""

    def rule(turn: Turn) -> Step | None:
        if DELEGATE in turn.news:
            wanted = [spawn if "steps" in spawn else {**SPAWN, **spawn} for spawn in spawns or ({},)]
            return Say(calls=[(f"{PREFIX}spawn_subagent", spawn) for spawn in wanted])
        if proposals := [answer for answer in turn.answers if "approval_line" in answer]:
            return confirm([each["pending_id"] for each in proposals], [each["approval_line"] for each in proposals])
        if lines := next((answer["approval_lines"] for answer in turn.answers if "approval_lines" in answer), None):
            decisions = next(answer["decisions"] for answer in turn.answers if "decisions" in answer)
            return confirm([each["pending_id"] for each in decisions], lines)  # now with the line of the group
        return None

    return rule


def confirm(pending_ids: Sequence[str], approving: Sequence[str]) -> Say:
    return call("confirm_spawn", approving=list(approving), pending_ids=list(pending_ids))


# -- the terminal -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """The window of tmux in which a host runs, on a data root."""

    root: Path
    socket: Path

    @property
    def screen(self) -> str:
        return tmux(self.socket, "capture-pane", "-p").stdout.replace("\xa0", " ")

    def until(self, found: Callable[[], T | None], within_s: float = WITHIN_S) -> T:
        """Look until something is there, and return it."""
        deadline = time.monotonic() + within_s
        while not (value := found()):
            assert time.monotonic() < deadline, f"it never came; the screen:\n{self.screen}"
            time.sleep(0.05)
        return value


@dataclass(frozen=True)
class ClaudeCode(Window):
    """Claude Code as its person sees it, and what a test may look at behind it."""

    orchestrator: Orchestrator

    def press(self, *keys: str) -> None:
        for key in keys:
            tmux(self.socket, "send-keys", key)
            time.sleep(0.3)

    def type(self, text: str) -> None:
        self.write(text)
        self.until_shown(f"❯ {text}"[:60])
        self.press("Enter")

    def write(self, text: str) -> None:
        tmux(self.socket, "send-keys", "-l", text)
        time.sleep(0.3)

    def until_shown(self, *texts: str) -> str:
        """Wait until all these texts stand on the screen, and return it."""
        return self.until(lambda: screen if all(text in (screen := self.screen) for text in texts) else None)

    def until_logged(self, *types: str) -> dict[str, Any]:
        return self.until(lambda: entries(self.root, *types)[-1:])[0]

    def greet(self) -> None:
        """Talk until Claude Code has connected its servers; it can be used before that."""
        deadline = time.monotonic() + 2 * WITHIN_S  # on a busy machine, Ava starts beside Claude Code itself
        while not self.orchestrator.turns:
            assert time.monotonic() < deadline, f"Ava was never connected; the screen:\n{self.screen}"
            asked = self.orchestrator.requests
            self.type("Hello.")
            self.until(lambda asked=asked: self.orchestrator.requests > asked)  # type: ignore[misc]
            time.sleep(0.5)
        self.orchestrator.forget()

    def accept(self, *shows: str) -> str:
        """Say yes in a form, which must have these texts, and return what the screen showed."""
        form = self.until_shown(FORM, *shows)
        keep_screen(form)
        while "❯ Accept" not in self.screen:
            self.press("Down")
        self.press("Enter")
        self.until(lambda: FORM not in self.screen)
        return form

    def delegate(self, *shows: str) -> str:
        """Have subagents started, with the person's approval; return the task's id, once its model has been told.

        `shows`: texts that stand in the form.
        """
        self.type(DELEGATE)
        self.accept("Ava wants to start", *shows)
        task_id = self.until(self._started)
        self.until_shown("Noted.", "1 MCP task")
        return task_id

    def _started(self) -> str | None:
        for result in (result for turn in self.orchestrator.turns for result in turn.results):
            if "started server-side task " in result:
                return result.partition("started server-side task ")[2].split()[0].rstrip(".")
        return None


@contextmanager
def open_claude_code(
    tmp_path: Path,
    orchestrator: Orchestrator,
    models: ModelServer,
    *,
    server: Mapping[str, Any] | None = None,
    allow: str | None = None,
    size: tuple[int, int] = (COLUMNS, ROWS),
) -> Generator[ClaudeCode]:
    """Start Claude Code in an empty home, with Ava over stdio or as `server` says; it is killed at the end.

    `models` has the language model of the subagents. All tools of Ava are allowed, or with an option of `ava init` as
    `allow` those that it allows.
    """
    root = data_root(tmp_path)
    with (
        run_model_server(orchestrator) as model,
        tempfile.TemporaryDirectory(prefix="tmux-") as folder,
    ):
        env, project = _prepare(tmp_path, model, models, server, allow)
        socket = Path(folder) / "socket"
        columns, rows = map(str, size)
        window = ("new-session", "-d", "-x", columns, "-y", rows, "-c", str(project))
        tmux(socket, "-f", os.devnull, *window, str(_program()), env=env)
        host = ClaudeCode(root, socket, orchestrator)
        try:
            host.until_shown("❯")
            host.greet()
            yield host
        finally:
            close_window(socket)


@dataclass(frozen=True)
class Headless:
    """`claude -p`, and its person at another terminal."""

    root: Path
    models: ModelServer
    env: Mapping[str, str]
    project: Path

    def ask(self, text: str, within_s: float = WITHIN_S) -> str:
        done = subprocess.run(
            [str(_program()), "-p", text], cwd=self.project, env=dict(self.env), capture_output=True, text=True,
            timeout=within_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def approve(self, *pending_ids: str) -> None:
        env = priced_model_env(self.models)
        with run_on_terminal(self.root, "approve", *pending_ids, env=env, command=CONTROLLED) as screen:
            assert screen.ended_after([("[y", "y")]) == 0, (
                screen.text
            )  # several together are asked about with "[y = all"


@contextmanager
def open_headless(tmp_path: Path, orchestrator: Orchestrator, models: ModelServer) -> Generator[Headless]:
    """Prepare Claude Code without a terminal; it runs when it is asked, and waits until Ava is connected."""
    root = data_root(tmp_path)
    with run_model_server(orchestrator) as model:
        env, project = _prepare(tmp_path, model, models)
        waits = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "40000"}
        yield Headless(root, models, {**env, **waits}, project)


def _prepare(
    tmp_path: Path,
    model: ModelServer,
    models: ModelServer,
    server: Mapping[str, Any] | None = None,
    allow: str | None = None,
) -> tuple[dict[str, str], Path]:
    """Write a home in which Claude Code asks nothing at its start; return the environment and the project's folder."""
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".claude").mkdir(parents=True)
    project.mkdir()
    configuration = home / ".claude.json"
    known: dict[str, Any] = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": [KEY], "rejected": []},
        "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
    }
    if server is not None:
        known["mcpServers"] = {"ava": dict(server)}
    configuration.write_text(json.dumps(known))
    rules = {"permissions": {"allow": [] if allow else ["mcp__ava"], "defaultMode": "default"}}
    (home / ".claude" / "settings.json").write_text(json.dumps(rules))
    if server is None:
        root = data_root(tmp_path)
        options = ["--file", str(configuration), *([allow] if allow else [])]
        done = ava(root, "init", "claude-code", *options, env={"HOME": str(home)})
        assert done.returncode == 0, done.stderr
        assert json.loads(configuration.read_text())["mcpServers"]["ava"]["args"] == ["serve"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "ANTHROPIC_BASE_URL": model.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **priced_model_env(models),
    }
    return env, project


def _program() -> Path:
    return next(HOSTS.glob("node_modules/@anthropic-ai/claude-code-*/claude"))


def tmux(socket: Path, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = ["tmux", "-S", str(socket), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=True)


def keep_screen(screen: str) -> None:
    """Add a screen to the test's transcript, in the folder that AVA_TEST_TRANSCRIPTS names."""
    folder = os.environ.get("AVA_TEST_TRANSCRIPTS")
    if folder is None:
        return
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9_]+", "-", test)
    lines = [line.rstrip() for line in screen.splitlines()]
    with (Path(folder) / f"{name}.txt").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines).strip("\n") + f"\n{'-' * 80}\n")


def close_window(socket: Path) -> None:
    keep_screen(tmux(socket, "capture-pane", "-p", "-S", "-").stdout)
    pid = int(tmux(socket, "display-message", "-p", "#{pane_pid}").stdout)
    tmux(socket, "kill-server")
    deadline = time.monotonic() + 10
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


OUTPUT = "twelve cents and a half"
RESULT = [("submit_result", {"summary": "done", "output": OUTPUT})]
QUESTION = "Which currency is meant?"
LOOK = "What did they find?"


def answer_questions_of_run(host: ClaudeCode, orchestrator: Orchestrator) -> list[str]:
    """Have a subagent work and its result fetched; say yes to every question, for good where that is offered."""
    ended, asked = len(entries(host.root, "RunEnded")) + 1, list[str]()
    orchestrator.called.clear()
    host.type(DELEGATE)
    looks = False
    deadline = time.monotonic() + 90
    while "check_subagent" not in orchestrator.called or "Noted." not in host.screen.rpartition(LOOK)[2]:
        assert time.monotonic() < deadline, host.screen
        screen = host.screen
        if FORM in screen:
            host.accept()
            asked.append("form")
        elif found := re.search(r"ava — (\w+ \w+) Tool", screen):
            asked.append(found[1])
            time.sleep(1)  # a key in a question's first moment is taken for a slip: it moves to No instead
            host.press("2")
            host.until(lambda title=found[0]: title not in host.screen)  # type: ignore[misc]
        elif not looks and len(entries(host.root, "RunEnded")) == ended and "Noted." in screen.rpartition(DELEGATE)[2]:
            host.type(LOOK)
            looks = True
        time.sleep(0.3)
    return asked


def approve_elsewhere(host: Headless, wait_seconds: float) -> Rule:
    """Have the person approve what Claude Code could not ask about, and ask for the result until it is there."""
    waiting: dict[str, Any] = {"wait_seconds": wait_seconds}

    def rule(turn: Turn) -> Step | None:
        for answer in turn.answers:
            if answer["status"] == "refused" and "approval_lines" not in answer:
                decisions: list[Mapping[str, str]] = answer["decisions"]
                host.approve(*(each["pending_id"] for each in decisions))
                waiting["subagent_id"] = decisions[0]["subagent_id"]
                return call("check_subagent", **waiting)
            if "runs" in answer:
                ended = all("untrusted_result" in run for run in answer["runs"])
                results = [run["untrusted_result"]["output"] for run in answer["runs"] if "untrusted_result" in run]
                return Say(", ".join(results)) if ended else call("check_subagent", **waiting)
        return None

    return rule


def hold_result(within_s: float = 120) -> tuple[Gate, Say]:
    """Return an answer that hands over the result, and the gate that holds it."""
    gate = Gate(within_s)
    return gate, Say(calls=RESULT, gate=gate)


def ask_then_hand_over(request: dict[str, Any]) -> Step:
    """Ask the person, then hand over what came back."""
    tools = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    return Say(calls=[("ask", {"question": QUESTION})]) if not tools else hand_over(output=tools[0])


def shown_run(root: Path, run_id: str) -> str:
    done = ava(root, "show", run_id)
    assert done.returncode == 0, done.stderr
    return done.stdout
