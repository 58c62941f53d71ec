"""`ava doctor --online`: one small run a provider, through real processes against a real model server."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands.doctor import KEY, doctor, faults, read_findings
from support.model_server import Fail, Gate, Say, run_model_server
from support.terminal import ava, environment, logged_events, run_on_terminal

from ava_server.cli import doctor_online as online
from ava_server.cli.app import main
from ava_server.core.data_root import os_user

pytestmark = pytest.mark.slow

READY = Say("", [("submit_result", {"summary": "ready", "output": "ready."})])
PRICED = '[prices."custom:test"]\ninput = 1.0\noutput = 5.0\n'


def local(base_url: str) -> dict[str, str]:
    return {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"}


def test_a_provider_that_answers_is_ok_shows_its_cost_and_counts_towards_the_day(root: Path) -> None:
    (root / "config.toml").write_text(PRICED)
    with run_model_server([READY]) as server:
        done = ava(root, "doctor", "--online", "--json", env=local(server.base_url))
        assert len(server.requests) == 1
    found = read_findings(done)["online custom"]
    answered = re.fullmatch(r"answered in \d+\.\d s: custom:test, (\$0\.\d+), (S-[0-9a-f]{6})", found["text"])
    assert answered is not None, found
    assert "custom:test (at most $0.05)" in done.stderr

    status = json.loads(ava(root, "status", "--json").stdout)
    (run,) = status["runs"]
    assert (run["subagent_id"], run["state"], run["name"]) == (answered[2], "success", "doctor custom")
    assert run["cost_cents"] > 0
    assert {day["spent_cents"] for day in status["today"]} == {run["cost_cents"]}
    assert answered[1] in ava(root, "status", "--once").stdout
    (reserved,) = logged_events(root, answered[2], "--type", "CostReserved")
    assert reserved["content"]["micros"] + reserved["content"]["wrap_micros"] <= 50_000
    assert [event["content"]["channel"] for event in logged_events(root, "--type", "SpawnDecided")] == ["host_call"]


def test_a_custom_model_is_free_and_plain_text_counts_as_an_answer(root: Path) -> None:
    with run_model_server([Say("ready.")]) as server:
        done = ava(root, "doctor", "--online", env=local(server.base_url))
        assert len(server.requests) == 1
    assert done.returncode == 0
    assert re.search(r"^ok       online custom: answered in .*: custom:test, free,", done.stdout, re.MULTILINE)
    assert "It costs nothing." in done.stderr


def test_on_a_terminal_typing_the_command_is_the_approval(root: Path) -> None:
    with (
        run_model_server([READY]) as server,
        run_on_terminal(root, "doctor", "--online", env=local(server.base_url)) as screen,
    ):
        assert screen.ended() == 0
    assert screen.text.index("Asking for one word each") < screen.text.index("answered in")
    assert [event["content"]["channel"] for event in logged_events(root, "--type", "SpawnDecided")] == ["terminal"]


def test_asks_providers_one_after_another_each_with_its_own_model(root: Path) -> None:
    with run_model_server([READY]) as first, run_model_server([Fail(401)]) as second:
        (root / "config.toml").write_text(
            f'[providers.alpha]\nbase_url = "{first.base_url}"\n[providers.beta]\nbase_url = "{second.base_url}"\n'
            '[providers.gamma]\nbase_url = "http://127.0.0.1:9/v1"\n'
            '[models]\nfast = "alpha:tiny"\nbalanced = "beta:middle"\ndeep = "beta:large"\n'
        )
        findings = doctor(root, "--online", AVA_KEY_BETA=KEY)
        asked = [server.requests[0].json["model"] for server in (first, second)]
        assert [len(server.requests) for server in (first, second)] == [1, 1]
    assert asked == ["tiny", "middle"]
    assert findings["online alpha"]["state"] == "ok"
    assert findings["online gamma"]["state"] == "note" and "gamma:ID" in findings["online gamma"]["what_to_do"]
    assert faults(findings) == {"online beta"}
    assert "HTTP 401" in findings["online beta"]["text"] and "ava key set" in findings["online beta"]["what_to_do"]
    assert KEY not in json.dumps(findings)


def test_an_unreachable_endpoint_is_a_fault_with_a_next_step(root: Path) -> None:
    findings = doctor(root, "--online", **local("http://127.0.0.1:9/v1"))
    assert faults(findings) == {"online custom"}
    assert "No connection to 127.0.0.1:9" in findings["online custom"]["text"]
    assert "Check that the endpoint runs" in findings["online custom"]["what_to_do"]


def test_an_endpoint_that_is_too_slow_is_a_fault_and_does_not_block(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(online, "TIMEOUT_S", 2.0)
    monkeypatch.setenv("AVA_DATA_ROOT", str(root))
    with run_model_server(lambda _request: Say("late", gate=Gate())) as server:
        for name, value in local(server.base_url).items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", "--online", "--json"])
    shown = json.loads(capsys.readouterr().out)
    (found,) = [found for found in shown["findings"] if found["name"] == "online custom"]
    assert (code, found["state"]) == (1, "fault")
    assert "no whole answer within 2 s" in found["text"]
    assert found["what_to_do"].startswith("Try again")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (f"{PRICED}[limits]\nuser_daily_cents = 0\n", "your daily budget is $0.00"),
        (f"{PRICED}[limits]\nspawns_per_hour = 0\n", "not asked: Not started"),
        (f'approval = "human"\n{PRICED}', "only a person with the approval PIN"),
        (f'{PRICED}[users.{os_user()}]\napproval = "human"\n', "only a person with the approval PIN"),
        (f"enabled = false\n{PRICED}", "subagents are switched off"),
        (PRICED.replace("1.0", "100.0"), "a cost cap of $0.05 buys no useful work"),
        ("enabled = = true", "settings or keys are wrong"),
    ],
)
def test_what_forbids_other_runs_forbids_this_one_and_sends_no_request(root: Path, config: str, says: str) -> None:
    (root / "config.toml").write_text(config)
    with run_model_server([READY]) as server:
        findings = doctor(root, "--online", **local(server.base_url))
        assert server.requests == []
    (found,) = [found for name, found in findings.items() if name.startswith("online")]
    assert (found["state"], says in found["text"]) == ("warning", True), found
    if "= =" not in config:
        runs = json.loads(ava(root, "status", "--json").stdout)["runs"]
        assert {run["state"] for run in runs} <= {"rejected", "cost_exceeded"}, "no proposal is left to wait"


def test_without_a_provider_it_asks_nobody_and_creates_nothing(tmp_path: Path) -> None:
    findings = doctor(tmp_path / "new", "--online")
    assert findings["online"]["state"] == "note"
    assert not (tmp_path / "new").exists()


def test_a_subagent_process_asks_nobody(root: Path) -> None:
    with run_model_server([READY]) as server:
        findings = doctor(root, "--online", AVA_RUN_ID="S-123456", **local(server.base_url))
        assert server.requests == []
    assert "belongs to subagent S-123456" in findings["online"]["text"]


def test_a_data_root_that_cannot_store_the_log_is_a_finding(root: Path) -> None:
    (root / "ava.db").write_bytes(b"this is no database" * 1_000)
    with run_model_server([READY]) as server:
        findings = doctor(root, "--online", **local(server.base_url))
        assert server.requests == []
    assert faults(findings) == {"log", "online"}
    assert "cannot be opened" in findings["online"]["text"]


def test_resumes_no_other_run(root: Path, tmp_path: Path) -> None:
    """A run whose owner was killed waits for a server: the doctor is gone in a moment."""
    gate = Gate()

    def script(request: dict[str, Any]) -> Say:
        return READY if "Answer with the one word" in json.dumps(request) else Say("x", gate=gate)

    with run_model_server(script) as server:
        task = ("run", "custom", "Wait.", "--system-prompt", "You wait.", "--yes", "--max-cost", "0.10")
        process = subprocess.Popen(
            [sys.executable, "-m", "ava_server", *task],
            env=environment(root, **local(server.base_url)), cwd=tmp_path,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert gate.arrived.wait(20)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        findings = doctor(root, "--online", **local(server.base_url))
        assert findings["online custom"]["state"] == "ok"
        assert len(server.requests) == 2
    claimed = [event["runId"] for event in logged_events(root, "--type", "RunClaimed")]
    assert len(claimed) == len(set(claimed)) == 2


def test_ctrl_c_cancels_the_run_it_waits_for(root: Path) -> None:
    gate = Gate()
    with (
        run_model_server([Say("late", gate=gate)]) as server,
        run_on_terminal(root, "doctor", "--online", env=local(server.base_url)) as screen,
    ):
        assert gate.arrived.wait(20)
        screen.interrupt()
        assert screen.ended() == 130
    assert "Traceback" not in screen.text
    (ended,) = logged_events(root, "--type", "RunEnded")
    assert ended["content"]["status"] == "cancelled"
