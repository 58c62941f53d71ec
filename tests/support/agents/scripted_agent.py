"""A coding agent that speaks ACP and does what a script says: a real program, with the standard library alone.

    python scripted_agent.py SCRIPT.json

The script is a list of steps for each prompt, in order. {"ask": TEXT, "file": PATH, "betas": NAMES, …}: a model request
to the gateway that ANTHROPIC_BASE_URL names, whose tool calls are not carried out; with {"repeats": NUMBER} it repeats
a 429 so often, each time after the seconds of Retry-After, as the SDKs of agents do. {"burst": NUMBER}: so many at
once. {"at_once": [[STEP, …], …]}: these rows of steps side by side. {"say": TEXT}.
{"question": TEXT}: asks the person. {"tool": ID, "title": …}: tells of a tool call. {"permit": {…}}: asks for
permission. {"ava": NAME, "args": {…}}: calls a tool of Ava's. {"write": PATH, "text": …}. {"run": COMMAND}.
{"sleep": SECONDS}. {"raw": TEXT}. {"hang": true}. {"exit": CODE}. {"fork": true}. {"flood": NUMBER}. {"usage": {…}}:
its own count. {"daemon": true}: a process that has left its session and ignores signals. {"close": true}: its stdin.
{"bytes": TEXT}: sent to the gateway as they are. {"times": NUMBER} in a step repeats it. Options of the whole script:
"version", "resumes", "http" (MCP), "ignores_cancel", "auth", "mute": a method that it never answers.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BASE, SECRET = os.environ.get("ANTHROPIC_BASE_URL", ""), os.environ.get("ANTHROPIC_API_KEY", "")
MODEL = os.environ.get("ANTHROPIC_MODEL", "")
HOME = Path(os.environ["HOME"])
WRITING = threading.Lock()


def write(message: dict[str, Any]) -> None:
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


class Agent:
    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.prompts = list(script["prompts"])
        self.session = ""
        self.mcp: dict[str, Any] | None = None
        self.messages: list[dict[str, Any]] = []
        self.cancelled = threading.Event()
        self.answers: dict[Any, Any] = {}
        self.waiting = threading.Condition()
        self.numbers = iter(range(1_000_000))
        self.resumed = 0
        self.seen: list[str] = []

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                with self.waiting:
                    self.answers[message["id"]] = message.get("result", message.get("error"))
                    self.waiting.notify_all()
            elif message["method"] == "session/cancel":
                if not self.script.get("ignores_cancel"):
                    self.cancelled.set()
            else:
                threading.Thread(target=self.handle, args=(message,), daemon=True).start()

    def handle(self, message: dict[str, Any]) -> None:
        method, number = message["method"], message["id"]
        given: dict[str, Any] = message.get("params") or {}
        if method == self.script.get("mute"):
            return
        if method == "initialize":
            if self.script.get("auth"):
                write({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
                return
            capabilities: dict[str, Any] = {
                "loadSession": self.script.get("resumes", False),
                "mcpCapabilities": {"http": self.script.get("http", True)},
            }
            write(
                {
                    "id": number,
                    "result": {
                        "protocolVersion": self.script.get("version", 1),
                        "agentCapabilities": capabilities,
                        "agentInfo": {"name": "scripted", "version": "1.0"},
                    },
                }
            )
        elif method in ("session/new", "session/load"):
            servers: list[dict[str, Any]] = given.get("mcpServers") or []
            self.mcp = servers[0] if servers else None
            self.session = given.get("sessionId") or "session-1"
            begun = HOME / "progress"
            if method == "session/load" and begun.exists():  # it goes on with the step that was interrupted
                saved = json.loads(begun.read_text())
                self.messages = saved["messages"]
                self.prompts = self.script["prompts"][saved["prompt"] :]
                self.prompts[0] = self.prompts[0][saved["step"] :]
                self.resumed = saved["step"]
            write({"id": number, "result": {} if method == "session/load" else {"sessionId": self.session}})
        elif method == "session/prompt":
            self.prompt(number, given["prompt"][0]["text"])
        else:
            write({"id": number, "error": {"code": -32601, "message": "Method not found"}})

    def prompt(self, number: Any, text: str) -> None:
        self.cancelled.clear()
        self.seen.append(text)
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        steps = self.prompts.pop(0) if self.prompts else [{"say": "Nothing left to do."}]
        usage: dict[str, Any] = {}
        first, self.resumed = self.resumed, 0
        for place, step in enumerate(steps, first):
            if self.cancelled.is_set():
                break
            at = len(self.script["prompts"]) - len(self.prompts) - 1
            saved = HOME / "progress.new"
            saved.write_text(json.dumps({"prompt": at, "step": place, "messages": self.messages}))
            saved.replace(HOME / "progress")
            if any(self.step(step, usage) for _time in range(step.get("times", 1))):
                break
        reason = "cancelled" if self.cancelled.is_set() else next((s["stop"] for s in steps if "stop" in s), "end_turn")
        write({"id": number, "result": {"stopReason": reason, **({"usage": usage} if usage else {})}})

    def at_once(self, rows: list[list[dict[str, Any]]]) -> None:
        def play(steps: list[dict[str, Any]]) -> None:
            for step in steps:
                self.step(step, {})

        threads = [threading.Thread(target=play, args=(steps,)) for steps in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def step(self, step: dict[str, Any], usage: dict[str, Any]) -> bool:
        if "ask" in step:
            return self.ask(step)
        if "burst" in step:
            text = step.get("text", "burst")
            self.at_once([[{**step, "ask": f"{text} {number}"}] for number in range(step["burst"])])
        elif "at_once" in step:
            self.at_once(step["at_once"])
        elif "say" in step:
            self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": step["say"]}})
        elif "tool" in step:
            self.update(
                {
                    "sessionUpdate": "tool_call",
                    "toolCallId": step["tool"],
                    "title": step.get("title", "works"),
                    "status": "in_progress",
                    "kind": "execute",
                }
            )
        elif "permit" in step:
            answer = self.request(
                "session/request_permission",
                {
                    "sessionId": self.session,
                    "toolCall": step["permit"],
                    "options": step.get("options")
                    or [
                        {"optionId": "1", "name": "Always", "kind": "allow_always"},
                        {"optionId": "2", "name": "Yes", "kind": "allow_once"},
                        {"optionId": "3", "name": "No", "kind": "reject_once"},
                    ],
                },
            )
            self.update(
                {
                    "sessionUpdate": "agent_message_chunk",
                    "content": {"type": "text", "text": json.dumps(answer["outcome"]) + "\n"},
                }
            )
        elif "question" in step:
            answer = self.request("elicitation/create", {"sessionId": self.session, "message": step["question"]})
            said = json.dumps(answer)
            self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}})
        elif "ava" in step:
            said = self.call_ava(step["ava"], step.get("args", {}))
            self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}})
        elif "write" in step:
            try:
                Path(step["write"]).write_text(step["text"])
            except OSError as error:
                self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(error)}})
        elif "run" in step:
            done = subprocess.run(step["run"], shell=True, capture_output=True, text=True)
            self.update(
                {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": done.stdout + done.stderr}}
            )
        elif "sleep" in step:
            self.cancelled.wait(step["sleep"])
        elif "raw" in step:
            with WRITING:
                sys.stdout.write(step["raw"])
                sys.stdout.flush()
        elif "hang" in step:
            time.sleep(3_600)
        elif "fork" in step:
            for _each in range(20):
                subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True)
        elif "daemon" in step:
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.closerange(0, 64)
                time.sleep(3_600)
        elif "close" in step:
            os.close(0)
        elif "bytes" in step:
            with socket.create_connection(("127.0.0.1", int(BASE.rpartition(":")[2]))) as line:
                line.sendall(step["bytes"].replace("SECRET", SECRET).encode())
                line.settimeout(20)
                while line.recv(65_536):
                    pass
        elif "flood" in step:
            for _each in range(step["flood"]):
                self.update({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "x" * 200}})
        elif "usage" in step:
            usage.update(step["usage"])
        elif "exit" in step:
            sys.stderr.write("it broke\n")
            sys.stderr.flush()
            os._exit(step["exit"])
        return False

    def update(self, update: dict[str, Any]) -> None:
        write({"method": "session/update", "params": {"sessionId": self.session, "update": update}})

    def request(self, method: str, params: dict[str, Any]) -> Any:
        number = f"a{next(self.numbers)}"
        write({"id": number, "method": method, "params": params})
        with self.waiting:
            self.waiting.wait_for(lambda: number in self.answers, 60)
        return self.answers[number]

    def ask(self, step: dict[str, Any]) -> bool:
        """Ask the model; returns whether the turn is over because it was refused."""
        parts: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": name, "content": text}
            for name, text in step.get("results", {}).items()
        ]
        text = Path(step["file"]).read_text() if "file" in step else step["ask"]
        if text:
            parts.append({"type": "text", "text": text})
        messages = [*self.messages]
        if messages and messages[-1]["role"] == "user":
            parts = [*messages.pop()["content"], *parts]
        messages.append({"role": "user", "content": parts})
        body = {
            "model": step.get("model", MODEL),
            "max_tokens": step.get("max_tokens", 2_000),
            "messages": messages,
            "system": step.get("system", "You are the scripted agent."),
            "stream": step.get("stream", False),
            "tools": [{"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}}],
        }
        headers = {"content-type": "application/json", "x-api-key": SECRET}
        if "betas" in step:
            headers["anthropic-beta"] = step["betas"]
        request = urllib.request.Request(f"{BASE}/v1/messages", json.dumps(body).encode(), headers)
        try:
            with self.repeating(request, step.get("repeats", 0)) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            self.update(
                {
                    "sessionUpdate": "agent_message_chunk",
                    "content": {"type": "text", "text": f"[{error.code}: {said[:300]}]"},
                }
            )
            return not step.get("survives")
        except (OSError, http.client.HTTPException) as error:
            self.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"[{error}]"}})
            return not step.get("survives")
        if not step.get("aside"):
            self.messages = [*messages, {"role": "assistant", "content": json.loads(content)["content"]}]
        return False

    def repeating(self, request: urllib.request.Request, times: int) -> Any:
        for _time in range(times):
            try:
                return urllib.request.urlopen(request, timeout=60)
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                self.cancelled.wait(float(error.headers["retry-after"]))
        return urllib.request.urlopen(request, timeout=60)

    def call_ava(self, name: str, args: dict[str, Any]) -> str:
        if self.mcp is None:
            return "[no tools of Ava]"
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{each["name"]: each["value"] for each in self.mcp["headers"]},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": args}}
        request = urllib.request.Request(self.mcp["url"], json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                said = json.loads(answer.read())
        except OSError as error:
            return f"[{error}]"
        return str(said.get("result", {}).get("content", [{}])[0].get("text", json.dumps(said)))


if __name__ == "__main__":
    Agent(json.loads(Path(sys.argv[1]).read_text())).serve()
