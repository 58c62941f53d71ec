"""A suite that is killed in the middle, and goes on: real processes, a real model server."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.logs.store import runs_of
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED
from support.terminal import COMMAND, ava, environment

from ava_server.suites.round_results import SuiteResult

pytestmark = pytest.mark.slow

NAMES = ("ash", "birch", "cedar", "doum")
CASE = 'task = "What is {name}?"\n[arguments]\nmax_cost_cents = 50\n[[checks]]\nkind = "contains"\ntexts = ["tree"]\n'


def test_a_suite_that_is_killed_goes_on_and_pays_no_logged_answer_again(tmp_path: Path) -> None:
    root, suite = tmp_path / "data", tmp_path / "trees"
    root.mkdir()
    suite.mkdir()
    (root / "config.toml").write_text(f"[limits]\nrunning_per_user = 1\n{PRICED}")
    for name in NAMES:
        (suite / f"{name}.toml").write_text(CASE.format(name=name))
    gate, asked = Gate(), list[str]()

    def script(request: dict[str, Any]) -> Say:
        name = next(name for name in NAMES if f"What is {name}?" in json.dumps(request["messages"]))
        asked.append(name)
        done = Say("", [("submit_result", {"summary": "said", "output": "A tree."})])
        return Say(done.text, done.calls, gate=gate) if asked.count(name) == 1 and len(set(asked)) == 3 else done

    with run_model_server(script) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        args = ("eval", "run", str(suite), "--yes", "--max-cost", "1", "--json")
        killed = subprocess.Popen([*COMMAND, *args], env=environment(root, **env), stdout=-3, stderr=-3)
        assert gate.arrived.wait(60), "the third case has not begun"
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(20) == -signal.SIGKILL
        gate.released.set()
        before = {run.id: run.cost_micros for run in runs_of(root) if run.ended}
        assert len(before) == 2
        went_on = ava(root, *args, env=env)
        assert went_on.returncode == 0, went_on.stderr
    assert "trees, round 1: 4 tries of 4 cases, 2 in the log already, not paid again, 2 under way." in went_on.stderr
    found = SuiteResult.model_validate_json(went_on.stdout)
    assert [one.passed for one in found.verdicts] == [True] * 4
    rows = {run.id: run for run in runs_of(root)}
    assert len(rows) == 4 and len({run.plan_id for run in rows.values()}) == 1
    assert {run_id: rows[run_id].cost_micros for run_id in before} == before
    assert [asked.count(name) for name in dict.fromkeys(asked)] == [1, 1, 2, 1], "only the call in flight is made again"
    assert found.cost_micros == sum(run.cost_micros for run in rows.values())
