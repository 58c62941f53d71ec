"""The workflows are thin: pinned actions, few permissions, and scripts that also run without them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.repository import REPOSITORY
from support.sample import sample

FOLDER = REPOSITORY / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
_PINNED = re.compile(r"uses: (?P<action>[\w/.-]+)@(?P<commit>[0-9a-f]{40}) # (?P<version>v\d+\.\d+\.\d+)\n")
_OURS = "./.github/workflows/job.yml"


def steps_of(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_action_is_pinned_by_commit_and_says_its_version(file: Path) -> None:
    text = file.read_text("utf-8")
    assert len(_PINNED.findall(text)) == text.count("uses: ") - text.count(f"uses: {_OURS}")


def test_an_action_has_one_commit_in_all_workflows() -> None:
    found = {match.groups() for file in FILES for match in _PINNED.finditer(file.read_text("utf-8"))}
    repositories = {("/".join(action.split("/")[:2]), commit, version) for action, commit, version in found}
    assert len(repositories) == len({repository for repository, _commit, _version in repositories})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_workflow_has_no_permission_of_its_own_and_runs_only_scripts_of_the_repository(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text("utf-8"))
    assert workflow["permissions"] == {}
    for step in steps_of(workflow):
        if "run" in step:
            script = step["run"].removeprefix("bash ").split()[0]
            assert script.startswith(".ci/") and (REPOSITORY / script).is_file(), step
            assert "${{" not in step["run"], "what a workflow is given never becomes part of a command"
        elif step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_every_job_of_the_script_runs_in_a_workflow_and_no_other_is_asked_for() -> None:
    script = (REPOSITORY / ".ci" / "job").read_text("utf-8")
    known = set(re.findall(r"^  ([a-z]+)\)", script, re.MULTILINE))
    asked: set[str] = set()
    for name in ("ci", "nightly"):
        for job in yaml.safe_load((FOLDER / f"{name}.yml").read_text("utf-8"))["jobs"].values():
            assert job["uses"] == _OURS
            one = job["with"]["job"]
            asked.update(job["strategy"]["matrix"]["job"] if "matrix.job" in one else [one])
    assert asked == known


@pytest.mark.skipif(sys.platform == "win32", reason="its bash has other paths")
@pytest.mark.parametrize("script", ["job", "nightly", "release", "run"])
@pytest.mark.parametrize("result", [0, 3])
def test_a_script_ends_with_its_own_result_and_leaves_nothing_behind(tmp_path: Path, script: str, result: int) -> None:
    options = re.findall("^set -.*$", (REPOSITORY / ".ci" / script).read_text("utf-8"), re.MULTILINE)
    lines = (*options, f'here="{REPOSITORY}"', '. "$here/.ci/common"', f"exit {result}")
    done = subprocess.run(["bash", "-c", "\n".join(lines)], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert options and done.returncode == result
    assert not [*tmp_path.iterdir()]


_STEP = """#!/bin/sh
echo "$(basename "$0") $*" >>"$STEPS"
[ "$(wc -l <"$STEPS")" -ne "$FAILING" ] || exit 7
case "$(basename "$0") $1 $2" in
  "uv venv "*) mkdir -p "$UV_PROJECT_ENVIRONMENT/bin" && cp "$0" "$UV_PROJECT_ENVIRONMENT/bin/" &&
    for name in python pytest ava; do ln -sf uv "$UV_PROJECT_ENVIRONMENT/bin/$name"; done ;;
  "uv python find") echo "$UV_PROJECT_ENVIRONMENT/bin/python" ;;
  "uv run "*) echo ava from the README ;;
esac
"""
"""A program that notes its call, fails if it is the call of that number, and else does what later steps rely on."""
_STEPS = {"core": 6, "all": 6, "readme": 6, "lowest": 5, "newest": 5, "beyond": 6, "conformance": 6, "hosts": 6}
_STEPS |= {"image": 2, "audit": 2, "workflows": 2}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with what the scripts start, and with what they would install where it is missing."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("uv", "uvx", "docker", "actionlint", "ava", "bwrap", "chromium", "ip", "tmux"):
        (folder / name).write_text(_STEP, "utf-8")
        (folder / name).chmod(0o700)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="its bash has other paths")
@pytest.mark.parametrize(("job", "steps"), sample(_STEPS.items(), 4))
def test_a_job_ends_at_the_first_step_that_fails_and_fails_with_it(
    tmp_path: Path, programs: Path, job: str, steps: int
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(REPOSITORY / ".ci", tree / ".ci")
    shutil.copy(REPOSITORY / "pyproject.toml", tree)
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=T", "-c", "user.email=t@t", "commit", "-qm", "1")):
        subprocess.run(["git", *command], cwd=tree, check=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("UV_PYTHON", "VIRTUAL_ENV")}
    for failing in range(steps + 1):  # the first time none
        log = tmp_path / f"steps-{failing}"
        env = {**kept, "PATH": f"{programs}:{kept['PATH']}", "STEPS": str(log), "FAILING": str(failing)}
        done = subprocess.run(["bash", ".ci/job", job], cwd=tree, env=env, capture_output=True, text=True, check=False)
        called = log.read_text("utf-8").splitlines()
        assert (done.returncode == 0, len(called)) == (not failing, failing or steps), (called, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="the nightly runs on Linux")
def test_the_nightly_fails_on_a_python_that_is_not_here(tmp_path: Path, programs: Path) -> None:
    env = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path)}
    command = ["bash", str(REPOSITORY / ".ci" / "nightly"), "3.0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "Not on this machine: Python 3.0\n")


def test_an_unknown_job_is_refused() -> None:
    done = subprocess.run([REPOSITORY / ".ci" / "publish", "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "no such part: nothing\n")


def test_zizmor_finds_no_weakness(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--no-progress", "--min-severity", "medium"]
    done = subprocess.run([*command, FOLDER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "bad.yml"
    bad.write_text("on: pull_request_target\njobs: {a: {runs-on: x, steps: [{run: 'echo ${{ github.head_ref }}'}]}}\n")
    done = subprocess.run([*command, bad], capture_output=True, text=True, check=False)
    assert done.returncode != 0, "and it does look"
