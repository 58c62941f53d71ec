"""The `ava` command as people run it: in a pipe, and on a real terminal (a pty).

done = ava(root, "status", "--once")
with run_on_terminal(root, "demo") as screen:
    screen.until("Start it?")
    screen.type("y\n")
    assert screen.ended() == 0
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

from support.commands.fork_server import COMMAND as COMMAND
from support.commands.fork_server import command

CONTROLLED = ("sh", "-c", ': <"$(tty)"; exec "$@"', "sh", *COMMAND)
"""The command as a shell starts it: its terminal is also /dev/tty, and Ctrl-C typed there interrupts it."""
WITHIN_S = 90.0


def environment(root: Path | str, **more: str) -> dict[str, str]:
    """No keys, no settings but the data root; commands run their runs themselves."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "AVA_DATA_ROOT": str(root), "AVA_BACKGROUND": "false", "TERM": "xterm", "LANG": "C.UTF-8", **more}


def ava(
    root: Path | str, *args: str, cwd: Path | None = None, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(env or {}), *args],
        env=environment(root, **(env or {})),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WITHIN_S * 2,
        check=False,
    )


class Screen:
    """A command on a terminal, and everything that it has written there."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int, columns: int, rows: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._bytes = b""
        self._typed_at = 0
        self._shown = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._shown)

    @property
    def text(self) -> str:
        return self._bytes.decode("utf-8", "replace").replace("\r\n", "\n")

    def until(self, text: str, within_s: float = WITHIN_S, begin: int = 0) -> str:
        """Read until a text stands on the screen, behind the first `begin` characters, and return everything."""
        deadline = time.monotonic() + within_s
        while text not in self.text[begin:]:
            assert self._more(deadline), f"{text!r} never came; there was: {self.text}"
        return self.text

    def until_asked(self, question: str) -> str:
        """Read until a question was written after what was typed last: Ava drops what is typed before it asks."""
        return self.until(question, begin=self._typed_at)

    def type(self, text: str) -> None:
        self._typed_at = len(self.text)
        os.write(self._descriptor, text.encode())

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def resize(self, columns: int, rows: int) -> None:
        """What pulling at a corner of the window does."""
        self._shown.resize(rows, columns)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def vanish(self) -> None:
        """What closing the window does."""
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), self._descriptor)

    def until_full(self) -> None:
        """Wait, without reading, until the terminal can take no more output."""
        deadline = time.monotonic() + WITHIN_S
        while self.echoes or self._unread() < 4_095:
            assert time.monotonic() < deadline and self.process.poll() is None, "the terminal never filled"
            time.sleep(0.01)

    def _unread(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0" * 4))[0])

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._shown.display]

    def colour(self, line: int, column: int) -> str:
        """Return the colour of a sign on the screen by its name in ANSI, such as `yellow`; both count from 0."""
        name = str(self._shown.buffer[line][column].fg)
        return "yellow" if name == "brown" else name

    def until_shown(self, shows: Callable[[list[str]], bool]) -> list[str]:
        """Read until the screen shows something, and return its lines."""
        deadline = time.monotonic() + WITHIN_S
        while not shows(self.lines):
            assert self._more(deadline), f"it never came; there was last: {self.lines}"
        return self.lines

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended_after(self, answers: Iterable[tuple[str, str]]) -> int:
        """Type an answer to each thing that the command asks, and return its exit code."""
        for question, answer in answers:
            self.until_asked(question)
            self.type(f"{answer}\n")
        return self.ended()

    def ended(self, within_s: float = WITHIN_S) -> int:
        deadline = time.monotonic() + within_s
        while self._more(deadline):
            pass
        return self.process.wait(WITHIN_S)

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more came in time; there was: {self.text}"
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self._bytes += data
        self._stream.feed(data)
        return bool(data)


@contextmanager
def run_on_terminal(
    root: Path | str,
    *args: str,
    cwd: Path | None = None,
    columns: int = 100,
    rows: int = 24,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    stdin: int | None = None,
) -> Generator[Screen]:
    """Run a command on a terminal of its own, of which another may replace the input.

    It is killed if it has not ended when the block does.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [*command, *args],
        env=environment(root, **(env or {})),
        cwd=cwd,
        stdin=theirs if stdin is None else stdin,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours, columns, rows)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def logged_events(root: Path, *args: str) -> list[dict[str, Any]]:
    """Return the log as `ava logs --json` prints it."""
    return [json.loads(line) for line in ava(root, "logs", "--json", "--last", "1000", *args).stdout.splitlines()]
