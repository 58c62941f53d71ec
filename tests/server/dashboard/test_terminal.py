"""The dashboard of `ava status` on a real terminal: kept up to date, and gone without a trace however it ends."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say
from support.runtime import PRICED, hand_over, open_lab
from support.terminal import COMMAND, CONTROLLED, WITHIN_S, Screen, environment, run_on_terminal

from ava_audit.events import SpawnDecided
from ava_server.cli.terminal import cells

pytestmark = pytest.mark.slow

ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"
SHOWS_CURSOR, HIDES_CURSOR = "\x1b[?25h", "\x1b[?25l"
ENDS_WITHIN_S = 3.0
FAULTY = "import sys; {fault}; from ava_server.cli import run; run(sys.argv[1:])"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_draws_in_place_until_q_and_creates_no_data_root(root: Path) -> None:
    with dashboard(root) as screen:
        assert not screen.echoes
        frame = screen.until_shown(lambda lines: any(line.startswith("Health") for line in lines))
        assert screen.text.count("\x1b[2J") <= 1, "it is cleared once at most, so that nothing flickers"
        screen.type("xq")
        assert screen.ended() == 0
        assert_left(screen)
    assert frame[0] == f"Data root: {root}"[: len(frame[0])] or frame[0].startswith("Data root: …")
    assert len(frame) == 24
    assert "No subagents: none waits, runs, or ended within the last hour." in frame
    before, _, after = screen.text.partition(ENTERS)
    rest = re.sub(r"\x1b\[[0-9;?<>=]*[A-Za-z]", "", after.rpartition(LEAVES)[2])
    assert not before.strip() and not rest.strip(), "nothing is left below the prompt"
    assert not root.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_and_restores_the_terminal(root: Path, number: signal.Signals, code: int) -> None:
    with dashboard(root) as screen:
        screen.process.send_signal(number)
        assert screen.ended() == code
        assert_left(screen)
    assert "Traceback" not in screen.text


def test_ctrl_c_typed_at_the_terminal_ends_it(root: Path) -> None:
    with run_on_terminal(root, "status", command=CONTROLLED) as screen:
        screen.until("q quit")
        screen.type("\x03")
        assert screen.ended() == 130
        assert_left(screen)


def test_can_be_suspended_and_resumed(root: Path) -> None:
    with dashboard(root) as screen:
        screen.process.send_signal(signal.SIGTSTP)
        screen.until(LEAVES)
        _pid, status = os.waitpid(screen.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert screen.echoes
        seen = len(screen.text)
        screen.process.send_signal(signal.SIGCONT)
        screen.until_shown(lambda lines: "q quit" in lines[-1] and ENTERS in screen.text[seen:])
        assert not screen.echoes
        screen.type("q")
        assert screen.ended() == 0
        assert_left(screen)


def test_ctrl_z_stops_it_and_fg_continues_it(root: Path) -> None:
    with run_on_terminal(root, command=("sh", "-c", ': <"$(tty)"; exec sh -i'), env={"PS1": "$ "}) as screen:
        screen.type(f"{sys.executable} -m ava_server status; echo status=$?\n")
        screen.until("q quit")
        screen.type("\x1a")
        screen.until(LEAVES)
        screen.until("Stopped")
        seen = len(screen.text)
        screen.type("fg; echo status=$?\n")
        screen.until_shown(lambda lines: "q quit" in lines[-1] and ENTERS in screen.text[seen:])
        screen.type("q")
        screen.until("status=0")
        assert_left(screen)
        screen.type("exit\n")
        assert screen.ended() == 0


def test_a_continue_signal_without_a_stop_changes_nothing(root: Path) -> None:
    with dashboard(root) as screen:
        screen.process.send_signal(signal.SIGCONT)
        screen.until_shown(lambda lines: any(line.startswith("Health") for line in lines))
        screen.type("q")
        assert screen.process.wait(ENDS_WITHIN_S) == 0
        screen.ended()
        assert_left(screen)
    assert screen.text.count(ENTERS) == 1


# -- a terminal that vanishes or does not read ------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """The processes below a process."""
    found = {int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()}
    return found.union(*map(descendants, found))


def until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"one of {pids} is left"
        time.sleep(0.01)


@pytest.mark.parametrize("command", [COMMAND, CONTROLLED], ids=["unnoticed", "with SIGHUP"])
def test_ends_when_the_terminal_vanishes(root: Path, command: tuple[str, ...]) -> None:
    with run_on_terminal(root, "status", command=command) as screen:
        screen.until("q quit")
        children = descendants(screen.process.pid)
        screen.vanish()
        assert screen.process.wait(ENDS_WITHIN_S) == 128 + signal.SIGHUP
        until_gone(children)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("tmux") is None, reason="it needs tmux and /proc")
def test_ends_when_its_tmux_session_is_killed(root: Path, tmp_path: Path) -> None:
    def tmux(*args: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", os.devnull, *args]
        return subprocess.run(command, env=environment(root), capture_output=True, text=True, check=True).stdout

    code = tmp_path / "code"
    ava = f"{sys.executable} -m ava_server status"
    tmux("new-session", "-d", "-s", "one", f"trap '' HUP; (trap - HUP; exec {ava}); echo $? >{code}")
    try:
        tmux("new-session", "-d", "-s", "other", "cat")  # so that the server outlives the first
        deadline = time.monotonic() + WITHIN_S
        while "q quit" not in tmux("capture-pane", "-p", "-t", "one"):
            assert time.monotonic() < deadline
        below = descendants(int(tmux("display-message", "-p", "-t", "one", "#{pane_pid}")))
        assert below
        tmux("kill-session", "-t", "one")
        until_gone(below)
        while not (code.exists() and code.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert code.read_text() == "129\n"
    finally:
        tmux("kill-server")


def test_ends_when_only_its_input_vanishes_and_restores_the_screen(root: Path) -> None:
    ours, theirs = pty.openpty()
    with run_on_terminal(root, "status", stdin=theirs) as screen:
        os.close(theirs)
        screen.until("q quit")
        os.close(ours)
        begun = time.monotonic()
        assert screen.ended() == 128 + signal.SIGHUP
        assert time.monotonic() - begun < ENDS_WITHIN_S
        assert_left(screen)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (None, 0)]
)
def test_ends_although_the_terminal_does_not_read_and_restores_it(
    root: Path, number: signal.Signals | None, code: int
) -> None:
    with run_on_terminal(root, "status", columns=300, rows=100) as screen:
        screen.until_full()
        children = descendants(screen.process.pid)
        if number is None:
            screen.type("q")
        else:
            screen.process.send_signal(number)
        assert screen.process.wait(ENDS_WITHIN_S) == code
        until_gone(children)
        screen.ended()
        assert_left(screen)


def test_stops_although_the_terminal_does_not_read_and_continues(root: Path) -> None:
    with run_on_terminal(root, "status", columns=300, rows=100) as screen:
        screen.until_full()
        screen.process.send_signal(signal.SIGTSTP)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while os.waitpid(screen.process.pid, os.WUNTRACED | os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline, "it has not stopped"
            time.sleep(0.01)
        assert screen.echoes
        screen.until(LEAVES)
        seen = len(screen.text)
        screen.process.send_signal(signal.SIGCONT)
        screen.until_shown(lambda lines: "q quit" in lines[-1] and ENTERS in screen.text[seen:])
        screen.type("q")
        assert screen.ended() == 0
        assert_left(screen)


def test_catches_up_with_a_terminal_that_reads_again(root: Path) -> None:
    with run_on_terminal(root, "status", columns=300, rows=100) as screen:
        screen.until_full()
        screen.until_shown(lambda lines: "q quit" in lines[-1] and any(line.startswith("Health") for line in lines))
        screen.type("q")
        assert screen.ended() == 0
        assert_left(screen)


def test_a_signal_ends_a_sandbox_check_that_hangs(root: Path) -> None:
    hangs = "import ava_roles.sandbox.selection as s, time; s.sandbox_here = lambda mode: time.sleep(600)"
    with run_on_terminal(root, "status", command=faulty(hangs)) as screen:
        screen.until("not known yet")
        begun = time.monotonic()
        screen.process.send_signal(signal.SIGTERM)
        assert screen.ended() == 143
        assert time.monotonic() - begun < ENDS_WITHIN_S
        assert_left(screen)


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "import ava_server.cli.status_overview as o; o.OverviewReader.look = lambda self: 1 / 0",
        "import ava_server.dashboard.live as p; p.LivePage.live = lambda self, height: 1 / 0",
        "import ava_server.dashboard.app as a; a.StatusApp.compose = lambda self: 1 / 0",
    ],
)
def test_an_internal_error_restores_the_terminal_and_is_reported_there(root: Path, fault: str) -> None:
    with run_on_terminal(root, "status", command=faulty(fault)) as screen:
        assert screen.ended() == 70
        assert LEAVES in screen.text and screen.echoes
        told = screen.text.rpartition(LEAVES)[2]
    assert "this is a fault of Ava's own" in told


def test_a_hanging_read_is_reported_and_blocks_neither_the_screen_nor_quitting(root: Path) -> None:
    hangs = "import ava_server.cli.status_overview as o, time; o.OverviewReader.look = lambda self: time.sleep(600)"
    with run_on_terminal(root, "status", command=faulty(hangs)) as screen:
        frame = screen.until_shown(lambda lines: any("has not answered for " in line for line in lines))
        screen.type("q")
        assert screen.ended() == 0
        assert_left(screen)
    assert frame[0].startswith("Data root: ")


def test_quitting_during_the_sandbox_check_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with run_on_terminal(root, "status", env={"TMPDIR": str(temporary)}) as screen:
        screen.until("q quit")
        screen.type("q")
        assert screen.ended() == 0
    assert list(temporary.iterdir()) == []


def test_follows_the_size_of_the_terminal(root: Path) -> None:
    with dashboard(root, columns=80, rows=24) as screen:
        screen.resize(120, 40)
        large = screen.until_shown(lambda lines: lines[39].endswith("q quit") and len(lines[1]) > 100)
        screen.resize(50, 8)
        small = screen.until_shown(lambda lines: lines[7].endswith("q quit") and lines[0].startswith("Data root"))
        screen.type("q")
        assert screen.ended() == 0
    assert cells(large[1]) == 119 and max(map(cells, large)) <= 120, "a column is the scroll bar's"
    assert cells(small[1]) == 49 and max(map(cells, small)) <= 50


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_one_plain_copy(root: Path, term: str) -> None:
    with run_on_terminal(root, "status", env={"TERM": term}) as screen:
        assert screen.ended() == 0
    assert screen.text.startswith(f"Data root: {root}\n")
    assert "Health" in screen.text and "\x1b" not in screen.text


def test_says_the_same_without_colors(root: Path) -> None:
    texts: list[str] = []
    patient = faulty("import ava_server.cli.status as s; s.SHOWN_WITHIN_S = 20")  # on a busy machine too
    for env in ({}, {"NO_COLOR": "1"}):
        terminal = {"TERM": "xterm-256color", **env}
        with run_on_terminal(root, "status", "--once", columns=80, env=terminal, command=patient) as screen:
            assert screen.ended() == 0
        texts.append(screen.text)
    colours = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    assert colours.search(texts[0]) and not colours.search(texts[1])
    plain = [re.sub(r"\d+\.\d [kMG]B", "", re.sub(r"\x1b\[[0-9;]*m", "", text)) for text in texts]
    assert plain[0] == plain[1]


async def test_follows_the_runs_and_shows_in_place_when_the_log_does_not_answer(tmp_path: Path) -> None:
    gate = Gate()

    def watch(root: Path) -> None:
        with dashboard(root, columns=100, rows=30) as screen:
            screen.until_shown(lambda lines: lines[1].startswith("1 running "))
            with closing(sqlite3.connect(root / "ava.db", isolation_level=None)) as other:
                screen.until_shown(lambda lines: any("Thinking" in line for line in lines))
                gate.released.set()
                screen.until_shown(lambda lines: any(re.match(r"[> ] . success +S-\w{6} ", line) for line in lines))
                assert other.execute("SELECT count(*) FROM runs").fetchone() == (1,)
            screen.type("q")
            assert screen.ended() == 0

    async with open_lab(tmp_path, [Say("so", gate=gate), hand_over()], config=PRICED) as lab:
        await lab.start(task="Goes on")
        await anyio.to_thread.run_sync(watch, lab.root)

    def held(root: Path) -> None:
        with dashboard(root, columns=100, rows=30) as screen:
            screen.until_shown(lambda lines: any(re.match(r"[> ] . success +S-\w{6} ", line) for line in lines))
            with closing(sqlite3.connect(root / "ava.db", isolation_level=None)) as other:
                # It uses the log as all do, with something in the write-ahead log, and then alone.
                (schema,) = other.execute("PRAGMA user_version").fetchone()
                other.execute(f"PRAGMA user_version = {schema}")
                other.execute("PRAGMA locking_mode = EXCLUSIVE")
                other.execute("BEGIN EXCLUSIVE")
                shown = screen.until_shown(
                    lambda lines: (
                        any(line.startswith("! as of ") for line in lines)
                        and any(line.startswith("  fault   log ") or "log unreadable" in line for line in lines)
                    )
                )
                other.execute("ROLLBACK")
            assert any(re.match(r"[> ] . success +S-\w{6} ", line) for line in shown), "what was there before stays"
            trouble = next(line for line in shown if line.startswith("! "))
            assert re.match(r"! as of \d\d:\d\d:\d\d: the log cannot be read: database is locked; ", trouble)
            screen.until_shown(lambda lines: not any(line.startswith("! ") for line in lines))
            screen.type("q")
            assert screen.ended() == 0

    await anyio.to_thread.run_sync(held, lab.root)


def test_shows_a_data_root_as_soon_as_it_exists(root: Path) -> None:
    with dashboard(root) as screen:
        root.write_text("no folder")
        shown = screen.until_shown(lambda lines: any("is not a folder" in line for line in lines))
        root.unlink()
        screen.type("q")
        assert screen.ended() == 0
    assert any(line.startswith("! ") for line in shown)


# -- decisions on a real terminal -------------------------------------------------------------------------------------


def named(screen: Screen, words: str) -> list[str]:
    """Wait until the terminal shows some words, wherever its lines break."""
    return screen.until_shown(lambda lines: words in " ".join(" ".join(lines).split()))


async def test_a_proposal_is_approved_and_a_resize_loses_nothing_that_was_typed(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        proposal = await lab.propose(task="May it?")

        def decide(root: Path) -> str:
            with dashboard(root, columns=100, rows=30) as screen:
                named(screen, "to approve")
                screen.type("a")
                named(screen, "Start it? [y/N]")
                screen.type("yes")
                named(screen, "Start it? [y/N] (more: m) yes")
                screen.resize(70, 24)
                screen.until_shown(lambda lines: "yes" in lines and lines[-2].startswith(("y,", "yes")))
                screen.type("\r")
                named(screen, "Approved. It has started.")
                screen.type("q")
                assert screen.ended() == 0
                assert_left(screen)
                return screen.text

        text = await anyio.to_thread.run_sync(decide, lab.root)
        assert "at most $0.50 and 10 min" in text
        [decided] = await lab.facts(proposal.subagent_id, SpawnDecided)
        assert (decided.decision, decided.channel) == ("approved", "terminal")
        await lab.ended(proposal.subagent_id)


async def test_a_terminal_that_vanishes_over_a_question_decides_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        proposal = await lab.propose(task="May it?")

        def vanish(root: Path) -> int:
            with dashboard(root, columns=100, rows=30) as screen:
                named(screen, "to approve")
                screen.type("a")
                named(screen, "Start it? [y/N]")
                screen.type("y")
                named(screen, "Start it? [y/N] (more: m) y")
                children = descendants(screen.process.pid)
                screen.vanish()
                code = screen.process.wait(ENDS_WITHIN_S)
                until_gone(children)
                return code

        assert await anyio.to_thread.run_sync(vanish, lab.root) == 128 + signal.SIGHUP
        assert await lab.facts(proposal.subagent_id, SpawnDecided) == []
        assert (await lab.run(proposal.subagent_id)).state == "awaiting_approval"


async def test_ctrl_c_while_a_decision_is_carried_out_says_how_to_see_whether_it_counted(tmp_path: Path) -> None:
    slow = (
        "import anyio; from ava_server.cli import service_client as c;"
        " c.Approvals.decide = lambda *a, **k: anyio.sleep(60)"
    )
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        proposal = await lab.propose(task="May it?")

        def interrupt(root: Path) -> tuple[int, str]:
            with run_on_terminal(root, "status", columns=100, rows=30, command=faulty(slow)) as screen:
                named(screen, "to approve")
                screen.type("a")
                named(screen, "Start it? [y/N]")
                screen.type("y\r")
                named(screen, "One moment …")
                screen.type("\x03")
                code = screen.ended()
                assert_left(screen)
                return code, " ".join(screen.text.rpartition(LEAVES)[2].split())

        code, text = await anyio.to_thread.run_sync(interrupt, lab.root)
        assert code == 130
        sentence = f"Approve {proposal.pending_id}: it is not known whether this was done. See: ava show "
        assert sentence + proposal.subagent_id in text


def faulty(fault: str) -> tuple[str, ...]:
    """The command with a fault of ours in it."""
    return (sys.executable, "-c", FAULTY.format(fault=fault))


def assert_left(screen: Screen) -> None:
    """The terminal is as it was: the same screen, its cursor and what is typed are seen, and nothing is reported."""
    assert screen.text.rindex(LEAVES) > screen.text.rindex(ENTERS)
    assert screen.text.rindex(SHOWS_CURSOR) > screen.text.rindex(HIDES_CURSOR)
    assert "\x1b[?1000h" not in screen.text, "the mouse stays the terminal's, to select text with"
    for mode in ("1004", "2004"):  # focus, and pasted text
        assert screen.text.rfind(f"\x1b[?{mode}l") >= screen.text.rfind(f"\x1b[?{mode}h")
    assert screen.echoes


@contextmanager
def dashboard(root: Path, columns: int = 100, rows: int = 24) -> Generator[Screen]:
    """A dashboard that has shown its first picture."""
    with run_on_terminal(root, "status", columns=columns, rows=rows) as screen:
        screen.until("q quit")
        yield screen
