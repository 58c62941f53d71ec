"""Tests of a command are counted in its output while it runs, whatever runs them; only numbers are said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sandboxes.attacks import command, needs, sandbox

from ava_roles.sandbox.counted_tests import CountedTests, is_of_tests

OUTPUTS = {
    "pytest": (b"collected 7 items\n\ntests/test_a.py ..F.  [ 57%]\ntests/test_b.py .sE  [100%]\n", (4, 2)),
    "pytest -q": (b"....F.                    [100%]\n", (5, 1)),
    "pytest -v": (b"a.py::test_x PASSED   [ 50%]\na.py::test_y[1] FAILED [100%]\n", (1, 1)),
    "unittest": (b"..E\n=====\nERROR: test_x\nRan 3 tests in 0.1s\n", (2, 1)),
    "cargo test": (b"running 2 tests\ntest a::works ... ok\ntest a::fails ... FAILED\n", (1, 1)),
    "go test -v": (b"=== RUN TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestB/x (0.00s)\n", (1, 1)),
    "TAP": (b"1..2\nok 1 - adds\nnot ok 2 - divides\n", (1, 1)),
    "Jest": (b"PASS src/a.test.js\nFAIL src/b.test.js\n", (1, 1)),
    "Mocha": ("  ✓ adds (3ms)\r\n  ✖ divides\n".encode(), (1, 1)),
    "no tests": (b"Compiling otter v0.1.0\nFinished in 2 s\n\n", (0, 0)),
}


def said(*pieces: bytes) -> list[str]:
    sentences: list[str] = []
    counted = CountedTests(sentences.append)
    for piece in pieces:
        counted.hear(piece)
    return sentences


def last(passed: int, failed: int) -> list[str]:
    if not passed and not failed:
        return []
    return [f"Running tests: {passed} passed" + (f", {failed} failed" if failed else "")]


@pytest.mark.parametrize("name", OUTPUTS)
def test_counts_the_tests_of_each_runner_in_one_piece_and_byte_by_byte(name: str) -> None:
    output, counts = OUTPUTS[name]
    assert said(output)[-1:] == last(*counts)
    assert said(*(output[at : at + 1] for at in range(len(output))))[-1:] == last(*counts)


def test_a_line_that_is_not_finished_counts_as_far_as_it_goes_and_not_again() -> None:
    assert said(b"tests/test_a.py ..", b".F", b"  [100%]\n", b"") == [
        "Running tests: 2 passed", "Running tests: 3 passed, 1 failed",
    ]  # fmt: skip


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_output_is_survived_and_never_quoted(pieces: list[bytes]) -> None:
    for sentence in said(*pieces):
        assert re.fullmatch(r"Running tests: [\d,]+ passed(, [\d,]+ failed)?", sentence)


def test_a_line_without_an_end_is_not_kept_whole() -> None:
    counted = CountedTests(lambda _sentence: None)
    for _ in range(1_000):
        counted.hear(b"x" * 10_000)
    assert len(counted._line) <= 4_096


@pytest.mark.parametrize(
    ("command", "tests"), [("python3 -m pytest -q", True), ("npm test", True), ("ls -l", False), ("make", False)]
)
def test_only_commands_that_may_run_tests_are_listened_to(command: str, tests: bool) -> None:
    assert is_of_tests(command) is tests


async def test_a_command_in_the_sandbox_is_heard_while_it_runs_and_its_output_stays_whole(tmp_path: Path) -> None:
    needs("bubblewrap")
    here = tmp_path / "here"
    here.mkdir()
    said_at: dict[str, float] = {}

    def say(sentence: str) -> None:
        said_at[sentence] = anyio.current_time()

    script = "printf 'ok 1 - a\\n'; sleep 0.5; printf 'not ok 2 - b\\n'"
    heard = replace(command(here, "/bin/sh", "-c", script), heard=CountedTests(say).hear)
    finished = await sandbox("bubblewrap", tmp_path).run(heard)
    assert list(said_at) == ["Running tests: 1 passed", "Running tests: 1 passed, 1 failed"]
    first, second = said_at.values()
    assert second - first > 0.3, "the first was said while the command ran"
    assert finished.output == "ok 1 - a\nnot ok 2 - b\n"
