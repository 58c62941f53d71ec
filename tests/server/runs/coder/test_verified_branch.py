"""A coder: what it changed comes back as a verified branch, and the person's checkout stays as it was."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import Say, Step
from support.repositories.coding import (
    PROJECT,
    RIGHT,
    RIGHTED,
    STILL_WRONG,
    VERIFY,
    WRONG,
    Untouched,
    branches,
    coder_task,
    make_calls,
    project,
    run_coder,
    worktrees,
)
from support.repositories.projects import checkout, environment_of, git, write
from support.runtime import Lab, hand_over, open_lab

from ava_audit.events import ToolResult, WorkChecked, WorktreeReady
from ava_server.render.host_text import text_of

pytestmark = pytest.mark.usefixtures("confined")


@pytest.mark.requirement("S2-17")
async def test_a_change_comes_back_as_a_verified_branch(tmp_path: Path) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        result = await run_coder(lab)
        [ready] = await lab.facts(result["subagent_id"], WorktreeReady)
        shown = text_of(await lab.call("check_subagent", subagent_id=result["subagent_id"]))
        await gone(lab)
    assert result["status"] == "success", result
    changes = result["changes"]
    run_id = result["subagent_id"]
    assert changes["branch"] == f"ava/{run_id}" and changes["verified"]
    assert branches(repository) == {f"ava/{run_id}": changes["head"]}
    assert changes["base"] == git(repository, "rev-parse", "HEAD").strip()
    assert (changes["files"], changes["added"], changes["removed"]) == (1, 1, 1)
    assert changes["verify"]["command"] == VERIFY
    assert not changes["verify"]["before"]["passed"] and changes["verify"]["before"]["code"] == 1
    assert changes["verify"]["after"]["passed"] and 0 <= changes["verify"]["after"]["seconds"] < 30
    assert changes["to_merge"] == f"git -C {repository} merge ava/{run_id}"
    [to_see] = re.findall(r"^See it: (.*)   Merge it: ", shown, re.M)
    assert to_see.startswith(f"AVA_DATA_ROOT={lab.root} /") and to_see.endswith(f" show {run_id} --diff")
    assert result["untrusted_result"]["changed"]["files"] == [
        {"path": "adding.py", "kind": "changed", "added": 1, "removed": 1}
    ]
    assert "FAILED (failures=1)" in ready.told and ready.verify is not None and not ready.verify.passed
    untouched.check()
    assert git(repository, "show", f"ava/{run_id}:adding.py") == "def add(a, b):\n    return a + b\n"
    message = git(repository, "log", "-1", "--format=%B", f"ava/{run_id}")
    assert message.startswith("Adding adds.\n\nTask: Make add add.\n\nVerified: ")
    assert message.rstrip().endswith(f"Ava-Run: {run_id}")
    git(repository, "merge", "-q", f"ava/{run_id}")
    assert (repository / "adding.py").read_text() == "def add(a, b):\n    return a + b\n"


@pytest.mark.slow
@pytest.mark.requirement("S2-17")
async def test_failing_work_is_fixed_with_the_failure_shown_to_the_model(tmp_path: Path) -> None:
    repository = project(tmp_path)
    script = [Say(calls=[WRONG]), hand_over(), Say(calls=[STILL_WRONG]), hand_over(), *make_calls(RIGHTED)]
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab)
        checks = await lab.facts(result["subagent_id"], WorkChecked)
        results = await lab.facts(result["subagent_id"], ToolResult)
    assert result["status"] == "success", result
    assert [(check.number, check.verify.passed) for check in checks] == [(1, False), (2, False), (3, True)]
    first, second, _accepted = [each for each in results if each.tool == "submit_result"]
    assert "AssertionError: 2 != 3" in first.output and "3 more attempts" in first.output and not first.success
    assert "0.5 != 3" in second.output and "2 more attempts" in second.output
    assert git(repository, "show", f"{result['changes']['branch']}:adding.py").endswith("a + b\n")


@pytest.mark.requirement("S2-17", "S2-19")
async def test_work_that_never_passes_ends_as_an_error_and_stays_on_its_branch(tmp_path: Path) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    async with open_lab(tmp_path, [Say(calls=[WRONG]), *[hand_over()] * 4]) as lab:
        result = await run_coder(lab)
        checks = await lab.facts(result["subagent_id"], WorkChecked)
        await gone(lab)
    assert (result["status"], result["error"]["kind"]) == ("error", "verification")
    assert len(checks) == 4
    changes = result["changes"]
    assert not changes["verified"] and not changes["verify"]["after"]["passed"]
    assert "AssertionError: 2 != 3" in result["untrusted_result"]["changed"]["failing"]
    assert git(repository, "show", f"{changes['branch']}:adding.py").endswith("a * b\n")
    assert "Not verified" in git(repository, "log", "-1", "--format=%B", changes["branch"])
    untouched.check()


async def test_lists_changed_and_removed_tests_separately_whatever_the_verification_says(tmp_path: Path) -> None:
    """The model makes the failing test pass by taking it away: it passes, and the result says how."""
    repository = project(tmp_path, **{"tests/test_more.py": "def test_more():\n    assert True\n"})
    script = make_calls(
        ("run_bash", {"command": "rm test_adding.py; echo 'def test_more(): pass' > tests/test_more.py"}),
        ("write_file", {"path": "setup.cfg", "content": "[tool:pytest]\n"}),
    )
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab, namespace=["."], verify="! ls test_a* || python3 -m unittest")
        checked = await lab.call("check_subagent", subagent_id=result["subagent_id"])
    assert result["status"] == "success" and result["changes"]["verified"]
    changes = result["changes"]
    assert (changes["tests_added"], changes["tests_changed"], changes["tests_removed"]) == (1, 1, 1)
    changed = result["untrusted_result"]["changed"]
    assert changed["tests_removed"] == ["test_adding.py"] and changed["tests_changed"] == ["tests/test_more.py"]
    text = text_of(checked)
    inside = text[text.index("<subagent_result") : text.index("</subagent_result>")]
    assert changed["tests_added"] == ["setup.cfg"]
    assert "what decides on them, removed: test_adding.py" in inside
    assert "what decides on them, changed: tests/test_more.py" in inside
    outside = text[text.index("</subagent_result>") :]
    assert "1 test file, or file that decides what is tested, was removed" in outside
    assert "test_adding.py" not in outside and f"Merge it: git -C {repository} merge ava/" in outside
    assert checked.runs[0].changes["branch"] == result["changes"]["branch"]


async def test_lists_the_program_that_the_verify_command_runs_apart_from_the_tests(tmp_path: Path) -> None:
    """It is the file that was to change; a script that tests is listed like it, since a command does not tell which."""
    project(tmp_path, **{"greet.py": "print('Goodbye')\n", "check.sh": "python3 greet.py | grep Hello\n"})
    script = make_calls(
        ("edit_file", {"path": "greet.py", "old": "Goodbye", "new": "Hello"}),
        ("write_file", {"path": "check.sh", "content": "true\n"}),
    )
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab, namespace=["."], verify="python3 greet.py | grep Hello && sh check.sh")
        text = text_of(await lab.call("check_subagent", subagent_id=result["subagent_id"]))
    changes = result["changes"]
    assert changes["verified"] and changes["tests_changed"] == 0 and changes["named_changed"] == 2
    changed = result["untrusted_result"]["changed"]
    assert changed["named_changed"] == ["check.sh", "greet.py"] and "tests_changed" not in changed
    inside = text[text.index("<subagent_result") : text.index("</subagent_result>")]
    assert "Named by the verify command, changed: check.sh, greet.py" in inside and "Tests" not in inside
    outside = text[text.index("</subagent_result>") :]
    assert "It changed 2 files that the verify command, or what that runs, names: if one is a check" in outside
    assert "test file" not in outside and "greet.py" not in outside.replace(changes["verify"]["command"], "")


async def test_lists_symbolic_links_as_links(tmp_path: Path) -> None:
    project(tmp_path)
    script = make_calls(("run_bash", {"command": "ln -s /etc/passwd users.txt; rm README.md; ln -s nowhere README.md"}))
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab, namespace=["."], verify="true")
        text = text_of(await lab.call("check_subagent", subagent_id=result["subagent_id"]))
    files = {file["path"]: file for file in result["untrusted_result"]["changed"]["files"]}
    assert (files["users.txt"]["link"], files["README.md"]["link"]) == ("/etc/passwd", "nowhere")
    inside = text[text.index("<subagent_result") : text.index("</subagent_result>")]
    assert "Added: users.txt is a symbolic link to /etc/passwd" in inside
    assert "Changed: README.md is a symbolic link to nowhere" in inside
    outside = text[text.index("</subagent_result>") :]
    assert "2 symbolic links were added or changed: check the target" in outside and "/etc/passwd" not in outside


@pytest.mark.parametrize(
    ("call", "says_no"),
    [
        (
            ("edit_file", {"path": "README.md", "old": "Adds.", "new": "Subtracts."}),
            "outside of what this run may change",
        ),
        (("write_file", {"path": "new.py", "content": "x"}), "outside of what this run may change"),
        (("write_file", {"path": "../outside", "content": "x"}), "outside"),
        (("write_file", {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}), "belongs to git"),
        (("run_bash", {"command": "echo x > new.py; echo x >> README.md; rm test_adding.py"}), "was undone"),
        (
            ("python_exec", {"code": "open('new.py', 'w').write('x'); open('README.md', 'a').write('x')"}),
            "was undone",
        ),
    ],
)
async def test_writes_outside_the_namespace_are_refused_or_reverted(
    tmp_path: Path, call: tuple[str, dict[str, Any]], says_no: str
) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    async with open_lab(tmp_path, make_calls(call, RIGHT)) as lab:
        result = await run_coder(lab)
        first, *_others = await lab.facts(result["subagent_id"], ToolResult)
    assert says_no in first.output, first.output
    assert result["status"] == "success", result
    assert [each["path"] for each in result["untrusted_result"]["changed"]["files"]] == ["adding.py"]
    assert not (tmp_path / "outside").exists() and not (lab.root / "outside").exists()
    untouched.check()


@pytest.mark.slow
async def test_a_planted_git_folder_runs_nothing_and_stays_off_the_branch(tmp_path: Path) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    planted = tmp_path / "planted"
    plant = (
        f"mkdir -p .git/hooks many/.git; printf '#!/bin/sh\\ntouch {planted}\\n' > .git/evil; chmod +x .git/evil;"
        "cp .git/evil .git/hooks/post-index-change; printf '[core]\\n\\tfsmonitor = .git/evil\\n' > .git/config;"
        f"echo '* filter=evil' > .gitattributes; ln -s {repository}/.git link; ls -A"
    )
    async with open_lab(tmp_path, make_calls(("run_bash", {"command": plant}), RIGHT)) as lab:
        result = await run_coder(lab, namespace=["."])
    assert result["status"] == "success", result
    paths = {each["path"] for each in result["untrusted_result"]["changed"]["files"]}
    assert "adding.py" in paths and not any(".git/" in path for path in paths)
    assert not planted.exists()
    untouched.check()


async def test_a_dirty_checkout_stays_unchanged_and_work_starts_at_its_last_commit(tmp_path: Path) -> None:
    repository = project(tmp_path)
    write(repository, {"adding.py": "def add(a, b):\n    return 3\n", "staged.py": "x = 1\n"})
    git(repository, "add", "staged.py")
    git(repository, "stash", "-q", "--keep-index")
    write(repository, {"adding.py": "broken\n", "new.txt": "new\n"})
    untouched = Untouched(repository)
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        result = await run_coder(lab)
    assert result["status"] == "success", result
    assert any("uncommitted" in note for note in result["changes"]["notes"])
    assert git(repository, "show", f"{result['changes']['branch']}:adding.py").endswith("a + b\n")
    assert "staged.py" not in git(repository, "ls-tree", "-r", "--name-only", result["changes"]["branch"])
    untouched.check()


@pytest.mark.slow
async def test_work_starts_at_the_approved_commit(tmp_path: Path) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        made = await lab.propose(**coder_task())
        base = git(repository, "rev-parse", "HEAD").strip()
        write(repository, {"adding.py": "def add(a, b):\n    return 3\n"})
        git(repository, "commit", "-qam", "later")
        await lab.approve(made)
        await lab.ended(made.subagent_id, within_s=60)
        result = await lab.result(made.subagent_id)
    assert (result["status"], result["changes"]["base"]) == ("success", base)
    assert git(repository, "rev-parse", f"ava/{made.subagent_id}^").strip() == base


@pytest.mark.slow
async def test_two_simultaneous_coders_in_one_repository_make_two_branches(tmp_path: Path) -> None:
    repository = project(tmp_path)
    untouched = Untouched(repository)
    script: list[Step] = [Say(calls=[RIGHT]), hand_over(summary="Adding adds.")]

    def answer(request: dict[str, Any]) -> Step:
        turn: int = sum(message["role"] == "assistant" for message in request["messages"])
        return script[turn]

    found: list[dict[str, Any]] = []
    async with open_lab(tmp_path, answer) as lab, anyio.create_task_group() as tasks:

        async def one() -> None:
            found.append(await run_coder(lab))

        tasks.start_soon(one)
        tasks.start_soon(one)
    assert [result["status"] for result in found] == ["success", "success"], found
    assert branches(repository) == {result["changes"]["branch"]: result["changes"]["head"] for result in found}
    untouched.check()


async def test_unchanged_work_is_still_verified_and_makes_no_branch(tmp_path: Path) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, [hand_over(summary="It adds already.")]) as lab:
        result = await run_coder(lab, verify="true")
        text = text_of(await lab.call("check_subagent", subagent_id=result["subagent_id"]))
    assert result["status"] == "success" and result["changes"]["verified"]
    assert result["changes"]["branch"] is None and branches(repository) == {}
    assert "Nothing was changed; there is no branch." in text


@pytest.mark.slow
async def test_many_changed_files_and_a_long_failure_fit_into_an_answer(tmp_path: Path) -> None:
    project(tmp_path)
    many = "for i in $(seq 1 400); do echo x > a-rather-long-name-of-a-file-$i.txt; done; seq 1 9 > test_odd.py"
    fails = "ls a-rather* >/dev/null 2>&1 || exit 0; seq 1 20000; echo the last line; false"
    async with open_lab(tmp_path, [Say(calls=[("run_bash", {"command": many})]), *[hand_over()] * 4]) as lab:
        result = await run_coder(lab, namespace=["."], verify=fails)
        checked = await lab.call("check_subagent", subagent_id=result["subagent_id"])
    assert (result["status"], result["changes"]["files"]) == ("error", 401)
    assert len(json.dumps(checked.structured(), ensure_ascii=False)) < 10_000 and len(text_of(checked)) < 10_000
    untrusted = checked.runs[0].untrusted_result
    assert 0 < len(untrusted.changed["files"]) < 401 and untrusted.changed["tests_added"] == ["test_odd.py"]
    assert any("more changed files: ava show" in caveat for caveat in untrusted.caveats)
    assert "the last line" in untrusted.changed["failing"]


async def test_a_secret_printed_while_verifying_reaches_neither_model_nor_log_nor_result(tmp_path: Path) -> None:
    key = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    repository = project(tmp_path, **{"leaked.txt": f"{key}\n"})
    async with open_lab(tmp_path, [*[hand_over()] * 4], env={"AVA_MODEL_API_KEY": key}) as lab:
        result = await run_coder(lab, verify="cat leaked.txt; false")
        received = b"".join(request.body for request in lab.server.requests)
        [ready] = await lab.facts(result["subagent_id"], WorktreeReady)
    assert key.encode() not in received and key not in json.dumps(result) and key not in ready.told
    assert "failed with exit code 1" in ready.told and branches(repository) == {}


@pytest.mark.slow
async def test_verifies_a_project_with_its_own_pytest(tmp_path: Path) -> None:
    """The project has a virtual environment of its own, which git ignores; nobody says how it is tested."""
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q'\n",
        "src/adding.py": PROJECT["adding.py"],
        "tests/test_adding.py": "import sys\nsys.path.insert(0, 'src')\nfrom adding import add\n\n\ndef test_adds():\n"
        "    assert add(1, 2) == 3\n",
        ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n",
    }
    repository = checkout(tmp_path / "workspace", files)
    give_pytest(repository)
    untouched = Untouched(repository)
    edit = ("edit_file", {"path": "src/adding.py", "old": "a - b", "new": "a + b"})
    script = [Say(calls=[edit]), Say(calls=[("run_bash", {"command": "python -m pytest"})]), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        given = {key: value for key, value in coder_task(namespace=["src"]).items() if key != "verify"}
        result = await lab.outcome(60, **given)
        [ready] = await lab.facts(result["subagent_id"], WorktreeReady)
        ran = [each for each in await lab.facts(result["subagent_id"], ToolResult) if each.tool == "run_bash"]
    assert result["status"] == "success", result
    assert "pytest" in result["changes"]["verify"]["command"]
    assert "assert -1 == 3" in ready.told and "1 passed" in ran[0].output
    assert [each["path"] for each in result["untrusted_result"]["changed"]["files"]] == ["src/adding.py"]
    untouched.check()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
async def test_verifies_a_node_project_with_its_own_test_runner(tmp_path: Path) -> None:
    files = {
        "package.json": '{"name": "x", "scripts": {"test": "node --test"}}\n',
        "add.js": "module.exports = (a, b) => a - b\n",
        "add.test.js": "const test = require('node:test')\nconst assert = require('node:assert')\n"
        "test('adds', () => assert.strictEqual(require('./add.js')(1, 2), 3))\n",
    }
    repository = checkout(tmp_path / "workspace", files)
    edit = ("edit_file", {"path": "add.js", "old": "a - b", "new": "a + b"})
    async with open_lab(tmp_path, [hand_over(), Say(calls=[edit]), hand_over()]) as lab:
        result = await run_coder(lab, namespace=["add.js"], verify="node --test")
        first, *_others = [
            each for each in await lab.facts(result["subagent_id"], ToolResult) if each.tool == "submit_result"
        ]
    assert result["status"] == "success", result
    assert "-1 !== 3" in first.output
    assert git(repository, "show", f"{result['changes']['branch']}:add.js") == "module.exports = (a, b) => a + b\n"


async def test_the_plan_is_made_with_the_baseline_shown(tmp_path: Path) -> None:
    project(tmp_path)
    script = [Say("It subtracts."), Say("1. edit_file adding.py."), Say("KEEP"), *make_calls(RIGHT)]
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab, plan=True)
        first = lab.server.requests[0].json["messages"]
    assert result["status"] == "success", result
    assert "AssertionError: -1 != 3" in json.dumps(first)


@pytest.mark.slow
async def test_repairs_of_a_malformed_result_count_separately_from_failed_verification(tmp_path: Path) -> None:
    """Three results that do not pass leave the two repairs of its form as they are."""
    project(tmp_path)
    malformed = Say(calls=[("submit_result", {"no_such_argument": 1})])
    script = [*[hand_over()] * 3, malformed, *make_calls(RIGHT)]
    async with open_lab(tmp_path, script) as lab:
        result = await run_coder(lab)
        checks = await lab.facts(result["subagent_id"], WorkChecked)
    assert result["status"] == "success", result
    assert [check.verify.passed for check in checks] == [False, False, False, True]


def give_pytest(repository: Path) -> None:
    """Give a project a virtual environment of its own, with the pytest that runs this."""
    environment_of(Path(sys.executable).resolve(), repository, {})
    (packages,) = (repository / ".venv" / "lib").glob("python*/site-packages")
    for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"):
        found = find_spec(name)
        assert found is not None and found.origin is not None
        source = Path(found.origin)
        if source.name == "__init__.py":
            shutil.copytree(source.parent, packages / name)
        else:
            shutil.copy(source, packages)


async def gone(lab: Lab) -> None:
    """Wait until nothing is left of worktrees: they go right after the ending."""
    with anyio.fail_after(40):
        while worktrees(lab.root):  # noqa: ASYNC110 - nothing tells when it goes
            await anyio.sleep(0.02)
