"""A coder from a terminal: the proposal in its options, the exit code of its ending, and what it changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.model_server import Say, run_model_server
from support.repositories.coding import RIGHT, VERIFY, WRONG, branches, project
from support.repositories.projects import git
from support.runtime import hand_over
from support.sandboxes.attacks import needs_confinement
from support.terminal import ava, run_on_terminal

ESCAPE = ("write_file", {"path": "odd.txt", "content": "\u001b]0;owned\u0007 red \u001b[31m \u202e\n"})


@pytest.fixture(scope="module", autouse=True)
def _confined(tmp_path_factory: pytest.TempPathFactory) -> None:
    needs_confinement(tmp_path_factory.mktemp("state"))


def options(repository: Path, *more: str) -> list[str]:
    given = ["--workspace", str(repository), "--context", "It subtracts.", "--verify", VERIFY, "--no-plan"]
    return ["run", "coder", "Make add add.", *given, "--yes", "--max-cost", "1", *more]


@pytest.mark.slow
@pytest.mark.requirement("S2-17")
def test_shows_the_changes_of_a_coder_line_by_line_without_terminal_escapes(tmp_path: Path) -> None:
    repository, root = project(tmp_path), tmp_path / "data"
    script = [Say(calls=[RIGHT]), Say(calls=[ESCAPE]), hand_over(summary="Adding adds.")]
    with run_model_server(script) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        done = ava(root, *options(repository, "--namespace", "adding.py", "--namespace", "odd.txt"), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"Branch (ava/(S-[0-9a-f]{6})) of ", done.stdout)
    assert found is not None, done.stdout
    branch, run_id = found[1], found[2]
    assert f"Merge it: git -C {repository} merge {branch}" in done.stdout
    assert f"Verified: `{VERIFY}` passed" in done.stdout
    diff = ava(root, "show", run_id, "--diff")
    assert diff.returncode == 0 and diff.stdout.startswith(f"Data root: {root}\n")
    assert "-    return a - b\n+    return a + b\n" in diff.stdout
    assert "\u241b]0;owned\u2407" in diff.stdout, "what a terminal would swallow is reviewed too"
    assert not set("\u001b\u0007\u202e").intersection(diff.stdout)
    as_json = json.loads(ava(root, "show", run_id, "--diff", "--json").stdout)
    assert as_json["changes"]["branch"] == branch and "+    return a + b" in as_json["diff"]
    shown = ava(root, "show", run_id).stdout
    assert f"Branch {branch} of {repository}" in shown and "Changed: adding.py +1 −1" in shown
    git(repository, "branch", "-qD", branch)
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "-q", "--prune=now")
    gone = ava(root, "show", run_id, "--diff")
    assert gone.returncode != 0 and f"branch {branch} of {repository} cannot be shown" in gone.stderr
    assert "Traceback" not in gone.stderr


@pytest.mark.slow
@pytest.mark.requirement("S2-17")
def test_a_failed_verification_exits_with_21_for_run_and_wait(tmp_path: Path) -> None:
    repository, root = project(tmp_path), tmp_path / "data"
    with run_model_server([Say(calls=[WRONG]), *[hand_over()] * 4]) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        done = ava(root, *options(repository, "--namespace", "adding.py"), env=env)
    assert done.returncode == 21, done.stdout + done.stderr
    assert "NOT VERIFIED by" in done.stdout and "AssertionError: 2 != 3" in done.stdout
    [branch] = branches(repository)
    run_id = branch.removeprefix("ava/")
    assert ava(root, "wait", run_id).returncode == 21
    told = ava(root, "show", run_id, "--diff", "--cost")
    assert told.returncode == 2 and "--cost and --diff are 2 screens" in told.stderr


def test_a_coder_that_is_not_approved_changes_nothing(tmp_path: Path) -> None:
    repository, root = project(tmp_path), tmp_path / "data"
    with run_model_server([]) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        given = [each for each in options(repository, "--namespace", "adding.py") if each != "--yes"]
        with run_on_terminal(root, *given, env=env) as screen:
            screen.until("Start it? [y/N]")
            screen.type("n\n")
            assert screen.ended() == 10
    run = json.loads(ava(root, "logs", "--type", "SpawnProposed", "--json").stdout.splitlines()[-1])
    told = ava(root, "show", run["content"]["subagent_id"], "--diff")
    assert told.returncode != 0 and "never ran" in told.stderr, told


def test_missing_options_of_a_coder_are_listed_together_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    env = {"AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1", "AVA_MODEL": "test"}
    done = ava(tmp_path / "data", "run", "coder", "Fix it.", "--yes", "--max-cost", "1", env=env, cwd=tmp_path / "work")
    assert done.returncode == 2, done
    named = [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("--")]
    assert named == ["--namespace", "--context", "--workspace", "--verify"]


def test_a_run_that_changes_no_files_has_no_diff(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with run_model_server([hand_over()]) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        given = ["run", "researcher", "Look.", "--workspace", str(tmp_path / "work"), "--yes", "--max-cost", "1"]
        done = ava(tmp_path / "data", *given, "--json", env=env)
    run_id = json.loads(done.stdout)["subagent_id"]
    told = ava(tmp_path / "data", "show", run_id, "--diff")
    assert told.returncode != 0 and "changes no files" in told.stderr
