"""What is approved of the work, which command verifies it, and what is read out of what that says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.repositories.projects import checkout, environment_of, git, write
from support.repositories.workshops import RUN, open_workshop, order, project
from support.sandboxes.attacks import needs, sandbox

from ava_roles.errors import BadNamespace
from ava_roles.worktree.inspect import VerifyCommand, find_verify_commands, inspect_checkout
from ava_roles.worktree.publish import is_test
from ava_roles.worktree.spec import WorktreeSpec, failing_part, namespace_of, within

NPM = json.dumps({"scripts": {"test": "node --test"}})
PLACEHOLDER = json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1'}})
CARGO = '[package]\nname = "x"\nversion = "0.1.0"\n'
GO = "module example.org/x\n"
MAKE = "all:\n\ttrue\n\ntest: all\n\tpytest\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("src", ("src",)),
        (["src/", "./docs//guide.md", "src"], ("src", "docs/guide.md")),
        (["src/a.py", "src", "srcs"], ("src", "srcs")),
        (["a", "."], (".",)),
        ("./", (".",)),
        ("with space/ü.py", ("with space/ü.py",)),
        (".github/workflows", (".github/workflows",)),
        ("...", ("...",)),
    ],
)
def test_normalizes_a_namespace(given: str | list[str], expected: tuple[str, ...]) -> None:
    assert namespace_of(given) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "names nothing"), ("", "empty path"), (" ", "empty path"), ("/etc", "not relative"),
        ("~/x", "not relative"),
        ("C:/x", "not relative"), ("\\\\host\\x", "not relative"), ("a/../b", r'has "\.\."'), ("..", r'has "\.\."'),
        (".git/config", r"lies in \.git"), ("a/.GIT", r"lies in \.git"), ("a\0b", "control character"),
        ("a\nb", "control character"), ("src/*.py", "is a pattern"), ("x" * 2_000, "longer than"),
        (["a"] * 300, "300 paths"),
    ],
)  # fmt: skip
def test_rejects_an_invalid_namespace_and_says_why(given: str | list[str], why: str) -> None:
    with pytest.raises(BadNamespace, match=why):
        namespace_of(given)


def test_distinguishes_a_path_within_a_folder_from_one_beside_it() -> None:
    assert within(("src", "a.py"), "src/x/y.py") and within(("src", "a.py"), "a.py") and within((".",), "x")
    assert not within(("src", "a.py"), "srcs/x") and not within(("src/a",), "src") and not within(("a.py",), "a.pyc")


PYTEST = "python3 -m pytest"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pytest.ini": "[pytest]\n"}, PYTEST),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, PYTEST),
        ({"tox.ini": "[tox]\n[pytest]\n"}, PYTEST),
        ({"setup.cfg": "[metadata]\n[tool:pytest]\n"}, PYTEST),
        ({"tests/conftest.py": ""}, PYTEST),
        ({"tests/unit/test_a.py": ""}, PYTEST),
        ({"test_a.py": "", "Makefile": MAKE}, PYTEST),
        ({"package.json": NPM}, "npm test"),
        ({"package.json": NPM, "Makefile": MAKE}, "npm test"),
        ({"package.json": NPM, "tests/test_helper.py": ""}, "npm test"),
        ({"package.json": PLACEHOLDER, "pytest.ini": ""}, PYTEST),
        ({"Cargo.toml": CARGO, "Makefile": MAKE}, "cargo test"),
        ({"go.mod": GO}, "go test ./..."),
        ({"Makefile": MAKE}, "make test"),
        ({"GNUmakefile": "test::\n\ttrue\n"}, "make test"),
    ],
)
def test_finds_the_single_command_that_verifies_a_project(
    files: Mapping[str, str], expected: str, tmp_path: Path
) -> None:
    (found,) = find_verify_commands(checkout(tmp_path / "project", {**files, "x": ""}), tmp_path)
    assert found.command == expected
    assert found.why.split()[-1] in files


@pytest.mark.parametrize(
    ("files", "both"),
    [
        ({"pytest.ini": "", "package.json": NPM}, [PYTEST, "npm test"]),
        ({"Cargo.toml": CARGO, "package.json": NPM}, ["npm test", "cargo test"]),
        ({"go.mod": GO, "Cargo.toml": CARGO, "Makefile": MAKE}, ["cargo test", "go test ./..."]),
    ],
)
def test_names_both_of_two_equally_suitable_commands(files: Mapping[str, str], both: list[str], tmp_path: Path) -> None:
    found = find_verify_commands(checkout(tmp_path / "project", files), tmp_path)
    assert [each.command for each in found] == both


@pytest.mark.parametrize(
    "files",
    [
        {"README.md": ""}, {"package.json": "{broken"}, {"package.json": PLACEHOLDER}, {"package.json": "[1]"},
        {"Makefile": "tested:\n\ttrue\ntest := 1\n"}, {"pyproject.toml": "[broken"}, {"src/test.py": ""},
        {"package.json": '{"scripts": {"test": ["x"]}}'},
    ],
)  # fmt: skip
def test_finds_no_command_in_a_project_that_names_none(files: Mapping[str, str], tmp_path: Path) -> None:
    assert find_verify_commands(checkout(tmp_path / "project", files), tmp_path) == ()


async def test_runs_pytest_with_the_interpreter_of_the_project_in_the_sandbox(tmp_path: Path) -> None:
    needs("bubblewrap")
    fake = "import sys\nprint('own pytest', sys.prefix, *sys.argv[1:])\n"
    repository = project(tmp_path / "project", {"tests/test_a.py": "", ".gitignore": ".venv/\n"})
    environment_of(Path(sys.executable), repository, {"pytest/__init__.py": "", "pytest/__main__.py": fake})
    (found,) = find_verify_commands(repository, tmp_path / "home")
    assert found == VerifyCommand(".venv/bin/python -m pytest", "tests/test_a.py")
    async with open_workshop("bubblewrap", tmp_path, order(repository, verify=found.command), baseline=False) as shop:
        verdict = await shop.check()
    assert verdict.passed and verdict.output == f"own pytest {repository}/.venv\n"
    assert sandbox("bubblewrap", tmp_path / "state").mounts


def test_inspecting_a_checkout_reports_its_state(tmp_path: Path) -> None:
    inner = project(tmp_path / "inner")
    files = {"a.txt": "a\n", "b.bin": "b\n", ".gitattributes": "*.bin filter=lfs\n*.txt filter=crypt\n"}
    repository = checkout(tmp_path / "project", files)
    state = inspect_checkout(repository, tmp_path)
    lfs = "files kept by Git LFS are pointers in the worktree and stay as they are: 1"
    filters = "git filters are not run: crypt"
    assert (state.uncommitted, state.notes) == (0, (lfs, filters))
    git(repository, "submodule", "add", "-q", str(inner), "sub")
    git(repository, "commit", "-qm", "submodule")
    write(repository, {"a.txt": "changed\n", "new.txt": "new\n", "staged.txt": "staged\n"})
    git(repository, "add", "staged.txt")
    (repository / "staged.txt").unlink()
    state = inspect_checkout(repository, tmp_path)
    assert state.head == git(repository, "rev-parse", "HEAD").strip() and state.branch == "master"
    assert state.uncommitted == 3
    assert state.notes == (
        "3 files have uncommitted changes; the work begins at the last commit, without them",
        "submodules are empty in the worktree and stay as they are: sub",
        lfs,
        filters,
    )
    git(repository, "checkout", "-q", "--detach")
    assert inspect_checkout(repository, tmp_path).branch is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/helper.py", True), ("src/__tests__/a.js", True), ("src/a.test.ts", True), ("a.spec.js", True),
        ("pkg/a_test.go", True), ("test_a.py", True), ("conftest.py", True), ("sub/conftest.py", True),
        ("pyproject.toml", True), ("package.json", True), ("Makefile", True), ("jest.config.js", True),
        ("vitest.config.ts", True), ("src/test/java/ATest.java", True), ("src/ATest.java", True),
        ("spec/a_spec.rb", True),
        ("src/contest.py", False), ("src/latest.js", False), ("src/testing_tools.md", False), ("README.md", False),
        ("src/attest/a.py", False), ("src/a.py", False), (".cargo/config.toml", True), ("tests.py", True),
    ],
)  # fmt: skip
def test_recognises_a_test_by_its_path(path: str, expected: bool) -> None:
    assert is_test(path) is expected


@pytest.mark.parametrize(
    ("verify", "path", "expected"),
    [
        ("bash ./check.sh", "check.sh", True), ("bash check.sh && true", "check.sh", True),
        ("bash check.sh", "src/check.sh", False), ("bash check.sh", "lib/helper.sh", True),
        ("bash check.sh", "lib/other.sh", False), ("make -s test", "ci/rules.mk", True),
        ("python3 -m pytest -q", "pytest.py", True), ("python3 -m tools.check", "tools/check.py", True),
        ("python3 -m tools.check", "tools/other.py", False), ("npm test", "scripts/run.js", True),
        ("npm test", "src/add.js", False), ("python3 -m unittest", "src/add.py", False),
    ],
)  # fmt: skip
async def test_marks_files_that_the_verify_command_or_what_it_runs_names(
    tmp_path: Path, verify: str, path: str, expected: bool
) -> None:
    needs("bubblewrap")
    names = ("check.sh", "src/check.sh", "lib/helper.sh", "lib/other.sh", "ci/rules.mk", "scripts/run.js", "src/add.js",
             "src/add.py", "tools/check.py", "tools/other.py")  # fmt: skip
    repository = checkout(
        tmp_path / "project",
        {
            **dict.fromkeys(names, "x\n"),
            "check.sh": ". lib/helper.sh\n",
            "Makefile": "include ci/rules.mk\ntest:\n\ttrue\n",
            "package.json": '{"scripts": {"test": "node scripts/run.js"}}\n',
        },
    )
    asked = WorktreeSpec(RUN, repository, (".",), verify)
    async with open_workshop("bubblewrap", tmp_path, asked, baseline=False) as shop:
        shop.edits.write(path, b"changed\n")
        branch = shop.keep("Change it")
    assert branch is not None
    assert [(each.path, each.named, each.test) for each in branch.changed] == [(path, expected, False)]


PYTEST_OUTPUT = """============================= test session starts ==============================
collected 900 items

{passed}
=================================== FAILURES ===================================
__________________________________ test_sum ___________________________________

    def test_sum():
>       assert add(1, 2) == 3
E       assert -1 == 3
{noise}
=============================== warnings summary ===============================
=========================== short test summary info ============================
FAILED test_a.py::test_sum - assert -1 == 3
========================= 1 failed, 899 passed in 1.00s ========================
"""


def test_keeps_the_part_of_a_long_output_that_explains_the_failure() -> None:
    text = PYTEST_OUTPUT.format(passed="test_x.py .....\n" * 3_000, noise="captured noise\n" * 3_000)
    part = failing_part(text, 2_000)
    assert len(part) <= 2_000 and "test_x.py" not in part
    for line in ("E       assert -1 == 3", "FAILED test_a.py::test_sum", "1 failed, 899 passed"):
        assert line in part


@pytest.mark.parametrize(
    "failure",
    [
        "FAIL: test_add (test_calc.TestAdd.test_add)\nAssertionError: -1 != 3",
        "not ok 3 - adds\n  ---\n  error: 'Expected values to be strictly equal'",
        "\u2716 failing tests:\n\ntest at add.test.js:4:1\n\u2716 adds",
        "  \u25cf Calc \u203a adds\n\n    expect(received).toBe(expected)",
        "failures:\n\n---- tests::adds stdout ----\nassertion `left == right` failed",
        "error[E0308]: mismatched types\n --> src/lib.rs:2:5",
        "--- FAIL: TestAdd (0.00s)\n    add_test.go:8: got -1",
        "# example.org/x\n./add.go:3:2: undefined: y",
    ],
)
def test_recognises_where_each_test_runner_starts_to_report_failures(failure: str) -> None:
    text = "it is fine\n" * 3_000 + failure + "\n" + "more of it\n" * 3_000 + "the last line"
    part = failing_part(text, 1_500)
    assert len(part) <= 1_500 and part.startswith(failure.split("\n")[0]) and part.endswith("the last line")
    assert failure in part


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", ""),
        ("short\n", "short"),
        ("x" * 50_000, "xxxxx"),
        ("\x1b[31mred\x1b[0m\r\n" * 2_000, "red"),
        ("\n" * 9_000 + "end", "end"),
    ],
)
@pytest.mark.parametrize("limit", [0, 1, 10, 300, 6_000])
def test_keeps_only_the_end_of_any_other_output(text: str, end: str, limit: int) -> None:
    part = failing_part(text, limit)
    assert len(part) <= limit and "\x1b" not in part
    assert limit < 10 or part.endswith(end)
