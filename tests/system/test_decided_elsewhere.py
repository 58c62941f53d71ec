"""A question whose proposal is decided elsewhere withdraws itself, and says what was decided; real terminals."""

import re
from pathlib import Path

import pytest
from support.terminal import Screen, ava, run_on_terminal

pytestmark = pytest.mark.slow

TASK = "What is the transcription price of Otter?"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.md").write_text("The transcription price of Otter is twelve cents a minute.\n")
    return tmp_path / "data"


def proposal(root: Path) -> str:
    [waiting] = re.findall(r"P-[0-9a-f]{8}", ava(root, "approve").stdout)[:1]
    return str(waiting)


def decide(root: Path, what: str) -> None:
    """Decide in another terminal."""
    with run_on_terminal(root, what, proposal(root)) as other:
        if what == "approve":
            other.until("Start it? [y/N]")
            other.type("y\n")
        assert other.ended() == 0, other.text


def words(screen: Screen) -> str:
    return " ".join(screen.text.split())


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("approve", 0, "was approved already, in a terminal at"),
        ("reject", 10, "was rejected already, in a terminal at"),
    ],
)
def test_the_question_of_ava_run_withdraws_and_goes_on_with_the_decision(
    root: Path, tmp_path: Path, what: str, code: int, says: str
) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "-w", str(tmp_path / "work")) as screen:
        screen.until("Start it? [y/N]")
        decide(root, what)
        assert screen.ended() == code, screen.text
        seen = words(screen)
    assert says in seen
    assert ("nothing was started" in seen) == (what == "reject")
    assert ("twelve cents a minute" in seen) == (what == "approve")


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("approve", 0, "was approved already, in a terminal at"),
        ("reject", 10, "was rejected already, in a terminal at"),
    ],
)
def test_the_question_of_ava_approve_withdraws_and_says_what_was_decided(
    root: Path, tmp_path: Path, what: str, code: int, says: str
) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "-w", str(tmp_path / "work")) as proposer:
        proposer.until("Start it? [y/N]")
        with run_on_terminal(root, "approve", proposal(root)) as screen:
            screen.until("Start it? [y/N]")
            decide(root, what)
            assert screen.ended() == code, screen.text
            seen = words(screen)
        assert proposer.ended() == code
    assert says in seen and "still waits" not in seen


@pytest.mark.parametrize("command", ["approve", "reject"])
@pytest.mark.parametrize(
    ("what", "says"),
    [("approve", "was approved already, in a terminal at"), ("reject", "was rejected already, in a terminal at")],
)
def test_the_questions_about_all_that_wait_withdraw(
    root: Path, tmp_path: Path, command: str, what: str, says: str
) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "-w", str(tmp_path / "work")) as proposer:
        proposer.until("Start it? [y/N]")
        with run_on_terminal(root, command) as screen:
            screen.until("Start it? [y = yes" if command == "approve" else "Reject it? [y/N]")
            decide(root, what)
            assert screen.ended() == 0, screen.text
            seen = words(screen)
        proposer.ended()
    assert says in seen


def test_a_no_that_nobody_has_overtaken_still_starts_nothing(root: Path, tmp_path: Path) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "-w", str(tmp_path / "work")) as screen:
        screen.until("Start it? [y/N]")
        screen.type("n\n")
        assert screen.ended() == 10
        seen = words(screen)
    assert "Not approved; nothing was started." in seen and "already" not in seen
