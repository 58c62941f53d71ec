"""The conformance suite's tools, played by subagents of Ava behind a proxy."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from support.hosts.extensions import CAP, keep_noting
from support.model_server import Fail, Gate, Say, Step
from support.repository import REPOSITORY, script

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "the sum"})])
NAME = "mcp-name"
Body = dict[str, Any]
SUITE = REPOSITORY / "build" / "conformance"


def is_installed() -> bool:
    """Tell whether the suite is installed here."""
    conformance = script("conformance")
    stamp = SUITE / "installed"
    return stamp.is_file() and stamp.read_text("utf-8") == conformance.stamp_of(conformance.PINNED)


def answer_as_subagent(request: Body) -> Step:
    """Answer as the subagent's model: its task says what the suite's tool does."""
    said = json.dumps(request["messages"])
    if found := re.search(r"Take (\d+) seconds", said):
        return Say(calls=DONE.calls, gate=Gate(float(found[1]))) if found[1] != "0" else DONE
    if "Fail." in said:
        return Fail(400)
    if "Ask a question" in said:
        answered = any(message["role"] == "tool" for message in request["messages"])
        return DONE if answered else Say(calls=[("ask", {"question": "Which name?"})])
    return keep_noting(request)


def spawns_of(tool: str, arguments: Mapping[str, Any]) -> list[Body]:
    """Return the subagents that play one of the suite's tools; none for a tool that starts nothing."""
    common = {"role": "custom", "system_prompt": "Compute.", "timeout": 120, **CAP}
    match tool:
        case "slow_compute":
            return [{**common, "task": f"Take {arguments['seconds']} seconds. {arguments['label']}"}]
        case "failing_job":
            return [{**common, "task": "Fail."}]
        case "test_tool_with_task":
            return [{**common, "task": "Take 0 seconds."}]
        case "confirm_delete":
            return [{**common, "task": "Ask for more."}]
        case "multi_input":
            return [{**common, "task": f"Ask a question, {name}."} for name in ("first", "second")]
        case _:
            return []


class SuiteProxy(BaseHTTPRequestHandler):
    """One connection of the suite."""

    protocol_version = "HTTP/1.1"
    upstream: str
    token: str

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass a request without a body on."""
        self._answer(self._sent({}, b""))

    def do_POST(self) -> None:
        """Pass a request on, or play a tool of the suite."""
        raw = self.rfile.read(int(self.headers.get("content-length", "0")))
        body: Body = json.loads(raw)
        headers = {name.lower(): value for name, value in self.headers.items()}
        params: Body = body.get("params", {})
        tool, played = str(params.get("name")), body.get("method") == "tools/call"
        if played and tool == "greet":
            answer = self._sent(*_as_call(headers, body, "check_subagent", {}))
            self._answer(answer, greeting=f"Hello, {params['arguments']['name']}!")
        elif played and (spawns := spawns_of(tool, params.get("arguments", {}))) and "requestState" not in params:
            self._play(headers, body, spawns)
        else:
            if body.get("method") == "tasks/update":
                raw = _in_the_form(body)
            if played and tool == "test_tool_with_task":
                headers, raw = _as_call(headers, body, "confirm_spawn", self.server_state["confirm"])
            self._answer(self._sent(headers, raw))

    @property
    def server_state(self) -> Body:
        state: Body = self.server.__dict__.setdefault("state", {})
        return state

    def _play(self, headers: Mapping[str, str], body: Body, spawns: list[Body]) -> None:
        bare = {name: value for name, value in body["params"].items() if name == "_meta"}
        own = {**body, "params": bare}
        proposed = [_result(self._sent(*_as_call(headers, own, "spawn_subagent", spawn))) for spawn in spawns]
        forms = [one["structuredContent"] for one in proposed]
        confirm: Body = {
            "pending_ids": [form["pending_id"] for form in forms],
            "approving": [form["approval_line"] for form in forms],
        }
        answer = self._sent(*_as_call(headers, body, "confirm_spawn", confirm))
        if lines := _result(answer).get("structuredContent", {}).get("approval_lines"):  # with the line of the group
            confirm["approving"] = lines
            answer = self._sent(*_as_call(headers, body, "confirm_spawn", confirm))
        if body["params"]["name"] == "test_tool_with_task":
            self.server_state["confirm"] = confirm
        elif (asked := _result(answer)).get("resultType") == "input_required":
            yes: Body = {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]}
            given: Body = {**bare, "inputResponses": yes, "requestState": asked["requestState"]}
            answer = self._sent(*_as_call(headers, {**body, "params": given}, "confirm_spawn", confirm))
        self._answer(answer)

    def _sent(self, headers: Mapping[str, str], raw: bytes) -> httpx2.Response:
        kept = {name: value for name, value in headers.items() if name not in ("host", "content-length", "connection")}
        kept["authorization"] = f"Bearer {self.token}"
        with httpx2.Client(timeout=60) as client:
            return client.request(self.command, self.upstream, headers=kept, content=raw)

    def _answer(self, answer: httpx2.Response, greeting: str | None = None) -> None:
        content = answer.content
        if greeting is not None and "result" in (message := _message(answer)):
            message["result"]["content"] = [{"type": "text", "text": greeting}]
            content = json.dumps(message).encode()
        self.send_response(answer.status_code)
        kind = "application/json" if greeting is not None else answer.headers.get("content-type", "application/json")
        for name, value in (("content-type", kind), ("content-length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _as_call(headers: Mapping[str, str], body: Body, tool: str, arguments: Body) -> tuple[dict[str, str], bytes]:
    """Return a call of the suite as the call of one of Ava's tools; the header with the method stays as it is."""
    changed = {**headers, NAME: tool}
    call = {**body, "params": {**body["params"], "name": tool, "arguments": arguments}}
    return changed, json.dumps(call).encode()


def _in_the_form(body: Body) -> bytes:
    """Return a `tasks/update` with the names that the suite gives in the field of Ava's own form."""
    given: dict[str, Body] = body["params"].get("inputResponses", {})
    for response in given.values():
        if "name" in response.get("content", {}):
            response["content"] = {"answer": response["content"]["name"]}
    return json.dumps(body).encode()


def _message(answer: httpx2.Response) -> Body:
    """Return the message that answers a request, from JSON or from the last event of a stream."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        data = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
        message: Body = json.loads(data[-1])
        return message
    whole: Body = answer.json() if answer.content else {}
    return whole


def _result(answer: httpx2.Response) -> Body:
    result: Body = _message(answer).get("result", {})
    return result


@contextmanager
def play_suite(port: int, token: str) -> Generator[str]:
    """Run the proxy in front of a server; yields the address for the suite."""
    upstream = {"upstream": f"http://127.0.0.1:{port}/mcp", "token": token}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Playing", (SuiteProxy,), upstream))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
