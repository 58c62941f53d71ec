"""`ava doctor` where nothing is broken: what it shows, and that looking creates and changes nothing."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Generator
from pathlib import Path

import pytest
from support import owner as owner_program
from support.commands.doctor import KEY, doctor, faults, files, read_findings, use_root
from support.model_server import Say, run_model_server
from support.repositories.projects import checkout, write
from support.runtime import PRICED
from support.stdio import until
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_server.cli import doctor_checks as checks
from ava_server.cli.app import main
from ava_server.core.data_root import os_user
from ava_server.service.checks import WORST_FIRST, CheckFinding, Setup

pytestmark = pytest.mark.slow


def test_reports_the_fetch_proxy_and_what_it_decides_without_its_password(root: Path) -> None:
    (root / "config.toml").write_text('[fetch]\nproxy = "http://proxy.example:3128"\n')
    done = ava(root, "doctor", "--json", env={"AVA_FETCH__PROXY": "http://ava:s3cr3t-password@proxy.example:3128"})
    found = read_findings(done)["network"]
    assert found["state"] == "ok"
    assert "pages are fetched through the proxy proxy.example:3128 (fetch.proxy)" in found["text"]
    assert "decides which addresses can be reached" in found["text"]
    assert "s3cr3t" not in done.stdout + done.stderr


def test_a_missing_data_root_is_a_note_and_is_not_created(tmp_path: Path) -> None:
    findings = doctor(tmp_path / "new")
    assert findings["data root"]["state"] == findings["log"]["state"] == "note"
    assert "created at the first start" in findings["data root"]["text"]
    assert "can run now: data_extractor, researcher, custom" in findings["roles"]["text"]
    assert "no language model is set up" in findings["role code_reviewer"]["text"]
    coder = findings["role coder"]["text"]
    assert "no language model is set up" in coder or "cannot be confined here" in coder
    assert "ava key set openrouter" in findings["providers"]["what_to_do"]
    assert findings["model fast, balanced, deep"]["text"] == "no language model (finds passages by words), free"
    assert not faults(findings)
    assert not (tmp_path / "new").exists()


def states(lines: list[str]) -> list[str]:
    """The states in the order of the screen."""
    return [line.split()[0] for line in lines if line.startswith(("fault ", "warning ", "note ", "ok "))]


def test_the_screen_begins_with_what_is_wrong_and_tells_what_works_in_one_line(root: Path) -> None:
    root.chmod(0o755)
    done = ava(root, "doctor", env={"COLUMNS": "200", "SSL_CERT_FILE": "/nowhere.pem"})
    first, verdict, *lines = done.stdout.splitlines()
    assert first == f"Data root: {root}"
    assert [line for line in lines if len(line) > 80 and "/" not in line] == []
    assert verdict.startswith("1 fault and ") and "data root" in verdict and "network" in verdict
    shown = states(lines)
    assert shown == sorted(shown, key=WORST_FIRST.index) and shown.count("ok") == 1 and shown[0] == "fault"
    at = next(number for number, line in enumerate(lines) if line.startswith("warning  data root: "))
    assert any(line.strip().startswith("To do: Fix it with: chmod 700") for line in lines[at : at + 4])
    works = " ".join(" ".join(lines).partition("ok       ")[2].split())
    assert "git · " in works and works.endswith("(`ava doctor --all` tells more)")
    assert done.returncode == 1

    every = ava(root, "doctor", "--all").stdout
    assert re.search(r"^(ok     |warning)  python: \d+\.\d+", every, re.MULTILINE), (
        "a Python in a temporary folder has a warning"
    )
    assert states(every.splitlines()).count("ok") > 5
    assert "confinement" not in every and "sandbox: commands " in every


def test_roles_that_lack_the_same_are_one_line(root: Path) -> None:
    lines = ava(root, "doctor").stdout
    assert lines.count("no language model is set up") == 1 and "note     role code_reviewer, coder: cannot run" in lines


def test_shows_on_a_terminal_which_check_runs_and_nothing_of_it_in_a_pipe(root: Path) -> None:
    assert ava(root, "doctor").stderr == ""
    with run_on_terminal(root, "doctor") as screen:
        assert screen.ended() in (0, 1)
    assert "Checking " in screen.text and "Checking " not in "\n".join(screen.lines), "the line is taken away"
    with run_on_terminal(root, "doctor", env={"TERM": "dumb"}) as screen:
        assert screen.ended() in (0, 1)
    assert "Checking python\n" in screen.text and "\x1b[" not in screen.text


def test_a_warning_alone_exits_with_0(root: Path) -> None:
    root.chmod(0o755)
    findings = doctor(root)
    assert (findings["data root"]["state"], faults(findings)) == ("warning", set())
    assert f"chmod 700 {root}" in findings["data root"]["what_to_do"]


def test_reads_a_log_without_creating_or_changing_a_file(root: Path, tmp_path: Path) -> None:
    use_root(root, tmp_path)
    before = files(root)
    findings = doctor(root)
    assert findings["log"]["state"] == findings["upkeep"]["state"] == "ok"
    assert "entries" in findings["log"]["text"]
    assert "are up to date" in findings["upkeep"]["text"]
    assert "no Ava server is running" in findings["processes"]["text"]
    assert "you $0.00 of $10.00, everybody $0.00 of $25.00" in findings["budget"]["text"]
    assert files(root) == before


async def test_counts_a_live_server_and_leaves_its_locks(root: Path) -> None:
    with owner(root) as process:
        await until(lambda: (root / "logs" / "subagents").exists())  # it has become the keeper
        names = set(files(root))
        findings = doctor(root)
        assert findings["processes"]["text"].startswith("1 Ava process is running here; one of them updates")
        assert set(files(root)) == names
        assert process.poll() is None
    assert "no Ava server" in doctor(root)["processes"]["text"]


def test_reads_the_log_of_a_killed_process_without_changing_it(root: Path, tmp_path: Path) -> None:
    use_root(root, tmp_path)
    with owner(root) as process:  # its entries stand in the write-ahead log alone
        assert ava(root, "run", "pirate", "x", "--yes", "--max-cost", "0.1").returncode == 2
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert (root / "ava.db-wal").stat().st_size > 0
    names = set(files(root))
    assert doctor(root)["log"]["state"] == "ok"
    assert set(files(root)) == names

    (root / "ava.db-shm").unlink()
    findings = doctor(root)
    assert findings["log"]["state"] == "note" and "a process died while writing" in findings["log"]["text"]
    assert not (root / "ava.db-shm").exists()


def test_reports_settings_that_limit_what_can_be_done(root: Path) -> None:
    (root / "config.toml").write_text('approval = "human"\nenabled = false\n[limits]\nuser_daily_cents = 0\n')
    findings = doctor(root, AVA_LIMITS__RUNNING="1")
    assert "there is no approval PIN yet" in findings["approval"]["text"]
    assert "AVA_LIMITS__RUNNING" not in findings["approval"]["text"]
    assert findings["budget"]["state"] == findings["approval"]["state"] == findings["settings"]["state"] == "warning"
    assert findings["budget"]["what_to_do"] == "Raise limits.user_daily_cents in config.toml."
    screen = ava(root, "doctor", "--all", env={"AVA_LIMITS__RUNNING": "1"}).stdout
    assert "AVA_LIMITS__RUNNING" in screen


def test_says_which_policy_holds_for_this_user(root: Path) -> None:
    own = f'[users.{os_user()}] approval = "human"'
    (root / "config.toml").write_text('approval = "auto"\n' + own.replace("] ", "]\n"))
    assert doctor(root)["approval"]["text"].startswith(f"{own}, and there is no approval PIN yet")
    (root / "config.toml").write_text('approval = "auto"\n[users.somebody-else]\napproval = "human"\n')
    assert doctor(root)["approval"]["text"].startswith('approval = "auto"')


def test_reports_a_used_up_daily_cap_with_the_setting_that_defines_it(root: Path, tmp_path: Path) -> None:
    budget = doctor(root, AVA_DAILY_USD="0")["budget"]
    assert (budget["state"], "only free models can run" in budget["text"]) == ("warning", True)
    assert budget["what_to_do"] == "Raise AVA_DAILY_USD where Ava is given its variables."

    (root / "config.toml").write_text(PRICED + "[limits]\nuser_daily_cents = 17\n")
    dear = Say("expensive", usage={"prompt_tokens": 200_000, "completion_tokens": 1, "total_tokens": 200_001})
    with run_model_server([dear]) as server:
        model = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        task = ("run", "custom", "Look.", "--system-prompt", "You look.", "--yes", "--max-cost", "0.17")
        ava(root, *task, cwd=tmp_path, env=model)
    mend = doctor(root)["budget"]["what_to_do"]
    assert mend == "Wait until 00:00 UTC, or raise limits.user_daily_cents in config.toml."
    mend = doctor(root, AVA_LIMITS__INSTALLATION_DAILY_CENTS="0")["budget"]["what_to_do"]
    assert mend.startswith("Raise limits.user_daily_cents in config.toml, and AVA_LIMITS__INSTALLATION_DAILY_CENTS ")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_user_without_a_name_gets_the_same_budget_as_on_the_server(root: Path) -> None:
    nameless = ["unshare", "--user", "--map-user=4321", "--map-group=4321"]
    if subprocess.run([*nameless, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*nameless, *COMMAND, "doctor", "--json"],
        env=environment(root), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    findings = read_findings(done)
    assert (findings["budget"]["state"], faults(findings)) == ("ok", set())


def test_missing_git_is_no_fault(root: Path) -> None:
    findings = doctor(root, PATH=str(root))
    assert findings["git"]["state"] == "note" and "not found" in findings["git"]["text"]
    assert not faults(findings)


@pytest.mark.parametrize("first", ["bin", ".", "link"])
def test_runs_no_program_of_the_project_that_the_path_names(root: Path, tmp_path: Path, first: str) -> None:
    folder = checkout(tmp_path / "project", {"README.md": "x\n", "deep/a.txt": "x\n"})
    place = folder / "deep" if first == "." else folder / "bin"
    write(place, dict.fromkeys(("git", "rg", "bwrap", "ava", "uname"), f"#!/bin/sh\ntouch '{tmp_path}/ran'\n"))
    (tmp_path / "link").symlink_to(folder / "bin")
    named = {"bin": str(folder / "bin"), ".": ".", "link": str(tmp_path / "link")}[first]
    env = {"PATH": f"{named}{os.pathsep}{os.environ['PATH']}"}
    findings = read_findings(ava(root, "doctor", "--json", cwd=folder / "deep", env=env))
    assert not (tmp_path / "ran").exists()
    assert findings["git"]["state"] == "ok"


def test_reports_the_sandbox_and_warns_if_there_is_none(root: Path) -> None:
    found = doctor(root)["confinement"]
    if found["state"] != "warning":
        assert found["text"].startswith(("commands run in bubblewrap", "commands run in Landlock"))
    else:
        assert "run_bash and python_exec are off" in found["text"] and found["what_to_do"]
    (root / "config.toml").write_text('[sandbox]\nmode = "none"\n')
    found = doctor(root)["confinement"]
    assert found["state"] == "warning" and "not confined" in found["text"] and "auto" in found["what_to_do"]


def test_warns_about_a_home_folder_in_the_read_only_setting_of_the_sandbox(root: Path) -> None:
    (root / "config.toml").write_text(f'[sandbox]\nread_only = ["{Path.home()}"]\n')
    if doctor(root, AVA_SANDBOX__READ_ONLY="[]")["confinement"]["state"] == "warning":
        pytest.skip("nothing confines commands here")
    found = doctor(root)["confinement"]
    assert found["state"] == "warning" and "home folder" in found["text"] and "read_only" in found["what_to_do"]


def test_warns_about_an_environment_in_a_cache_and_about_its_missing_command(root: Path, tmp_path: Path) -> None:
    place = tmp_path / ".cache" / "archive-v0" / "abc"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    env = {**environment(root), "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    done = subprocess.run(
        [python, "-m", "ava_server", "doctor", "--json"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    findings = read_findings(done)
    assert findings["python"]["state"] == "warning" and "cache" in findings["python"]["text"]
    assert findings["command"]["what_to_do"].endswith(f"{python} -P -m ava_server serve")


def test_a_check_that_fails_internally_is_its_own_fault_and_the_next_one_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_setup: Setup) -> list[CheckFinding]:
        raise ZeroDivisionError(f"with {KEY}")

    monkeypatch.setenv("AVA_DATA_ROOT", str(root))
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    works = ("second", lambda _setup: [CheckFinding("second", "ok", "here")])
    monkeypatch.setattr(checks, "CHECKS", (("first", fails), works))
    assert main(["doctor", "--all"]) == 1
    shown = capsys.readouterr().out
    assert "first: this check failed: ZeroDivisionError" in shown
    assert "ok       second: here" in shown
    assert KEY not in shown


@contextlib.contextmanager
def owner(root: Path) -> Generator[subprocess.Popen[str]]:
    """A process that has the data root open and looks after its runs."""
    process = subprocess.Popen(
        [sys.executable, owner_program.__file__, str(root), "http://127.0.0.1:9/v1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline().startswith("open ")
        yield process
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
