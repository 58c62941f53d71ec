"""The terminal: what is written to it, safely, and what is asked on it.

Results go to stdout, the conversation about them (proposal, question, progress) to stderr, so that a pipe gets the
result alone. Whatever is written is cleaned: text of models and pages must not steer a terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import sys
import time
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TextIO

import anyio
import typer

from ava_roles.wrap import INVISIBLE, clean
from ava_server.cli.app import ReaderGone
from ava_server.core.threads import read_apart, received

PLAIN_EVERY_S = 10.0
"""How often progress is told where it cannot be rewritten in place: in a file, in a pipe."""
_START_OF_LINE = "\r\x1b[K"
_UP_TO_IT = "\x1b[{}A\r\x1b[J"
_UNSEEN = re.compile(rf"{INVISIBLE.pattern}|[\t\r\ud800-\udfff]")
_ITEM = re.compile(r"(\s*)((?:\d+\.|-)\s+)?")
_HANGING = "  "


def say(text: str = "") -> None:
    """Write lines to stdout at once, without anything that could steer a terminal; on one they are wrapped."""
    write(_fitted(clean(text)[0], sys.stdout))


def write(text: str) -> None:
    """Write text that is known to be harmless to stdout at once.

    Raises:
        ReaderGone: Nobody reads it any more.
    """
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise ReaderGone from None


def write_lines(lines: bytes) -> None:
    """Write whole lines of JSON to stdout, byte for byte as they are, so that they can be verified.

    On a terminal nobody does that, and every character that is not seen is written as an escape.

    Raises:
        ReaderGone: Nobody reads them any more.
    """
    if sys.stdout.isatty():
        write(harmless_json(lines.decode().removesuffix("\n")))
        return
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


@asynccontextmanager
async def reader_gone() -> AsyncGenerator[None]:
    """End the block when whoever reads our output has gone away, also while there is nothing to write.

    Raises:
        ReaderGone: Nobody reads it any more.
    """
    if sys.platform == "win32" or not stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        yield
        return

    async def watch() -> None:
        await anyio.wait_readable(sys.stdout.fileno())  # nothing ever comes out of this end but its reader's farewell
        raise ReaderGone

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        yield
        tasks.cancel_scope.cancel()


def tell(text: str = "") -> None:
    """Write lines of the conversation to stderr; on a terminal they are wrapped."""
    typer.echo(_fitted(clean(text)[0], sys.stderr), err=True)


def _fitted(text: str, stream: TextIO) -> str:
    return wrapped(text, columns(stream)) if stream.isatty() else text


def wrapped(text: str, width: int) -> str:
    """Return lines of at most `width` columns, broken at blanks alone; a longer word keeps a line of its own.

    What follows a break hangs under the line's beginning: under an indented one as deep as that, under the words of a
    numbered one, else two blanks deep.
    """
    return "\n".join(part for line in text.split("\n") for part in _wrapped_line(line, width))


def _wrapped_line(line: str, width: int) -> list[str]:
    if cells(line) <= width:
        return [line]
    begins = _ITEM.match(line)
    assert begins is not None
    hanging = " " * min(len(begins[0]), width // 2) or _HANGING
    lines: list[str] = []
    current, used = "", 0
    for word in re.findall(r"\s*\S+", line):
        takes = cells(word)
        if current.strip() and used + takes > width:
            lines.append(current)
            word = hanging + word.lstrip()
            current, used = "", 0
            takes = cells(word)
        current += word
        used += takes
    return [*lines, current]


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(line: str, width: int) -> str:
    """Return a line that takes at most `width` columns; where something is missing it ends with `…`."""
    if cells(line) <= width:
        return line
    kept, used = 0, 0
    for kept, char in enumerate(line):  # noqa: B007 - the place where it is full is what is wanted
        used += cells(char)
        if used > width - 1:
            break
    return line[:kept] + "…"


def say_json(value: Any) -> None:
    """Write a value to stdout as one line of JSON."""
    write(harmless_json(json.dumps(value, ensure_ascii=False, default=str)))


def harmless_json(text: str) -> str:
    r"""Return JSON in which every character that is not seen is written as `\uXXXX`: the same value."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def someone_there() -> bool:
    """Tell whether a person can be asked: input and conversation are both a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def columns(stream: TextIO | None = None) -> int:
    """Return how wide the terminal is that a stream leads to; stdout's when none is given."""
    if stream is not None and "COLUMNS" not in os.environ:
        try:
            return max(40, os.get_terminal_size(stream.fileno()).columns or 80)
        except (OSError, ValueError):
            pass
    return max(40, shutil.get_terminal_size((80, 24)).columns)


@contextmanager
def interrupts() -> Generator[AsyncIterator[int]]:
    """Deliver Ctrl-C as items to iterate over, in place of an exception."""
    with received(signal.SIGINT) as signals:
        yield signals


def forget_typed() -> None:
    """Drop what was typed ahead; input that is no terminal stays as it is."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return
    try:
        import termios
    except ImportError:  # a system without it: there it is an answer
        return
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def ask(question: str) -> str:
    """Return what a person answers to a question on the terminal, in lower case; nothing at the end of input.

    What was typed before the question was shown is no answer to it.
    """
    forget_typed()
    sys.stderr.write(f"{clean(question)[0]} ")
    sys.stderr.flush()
    if sys.platform == "win32":  # there no console can be waited for
        return (await read_apart(sys.stdin.readline)).strip().lower()
    # A thread that hangs in a read would keep the process from ending at Ctrl-C: the event loop waits instead.
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    answer = os.read(descriptor, 4_096).decode("utf-8", "replace")
    if not answer:
        sys.stderr.write("\n")
    return answer.strip().lower()


async def agrees(question: str) -> bool:
    """Tell whether a person answers yes; anything else is no."""
    return await ask(f"{question} [y/N]") in ("y", "yes")


class Progress:
    """What is going on: lines that are rewritten on a terminal, and plain ones now and then elsewhere."""

    def __init__(self, every_s: float = PLAIN_EVERY_S, *, err: bool = True) -> None:
        """Begin.

        Args:
            every_s: How often plain lines are written.
            err: To stderr, where the conversation is; False for stdout.
        """
        self._every_s = every_s
        self._stream = sys.stderr if err else sys.stdout
        self._in_place = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._given: tuple[str, ...] = ()
        self._shown: list[str] = []
        self._told_s: float | None = None

    @property
    def width(self) -> int | None:
        """Columns that there are for a line; None where it may be of any length."""
        return columns(self._stream) - 1 if self._in_place else None

    def show(self, *lines: str) -> None:
        """Show the lines, if they say something new."""
        given = tuple(_UNSEEN.sub(" ", clean(line)[0].replace("\n", " ")).rstrip() for line in lines)
        if self._in_place:
            fitting = self._fitting(given)
            if fitting != self._shown:
                self._stream.write(self._back() + "\n".join(fitting))
                self._stream.flush()
                self._shown = fitting
            return
        if given == self._given:
            return
        if self._told_s is None or time.monotonic() - self._told_s >= self._every_s:
            self._told_s = time.monotonic()
            typer.echo("\n".join(given), file=self._stream)
            self._given = given

    def wait_for(self, line: str) -> None:
        """Show what is waited for; where lines are not rewritten in place it is said again, now and then."""
        self._given = ()
        self.show(line)

    def end(self, *, keep: bool = False) -> None:
        """Leave the lines: what follows stands in their place, or below them."""
        if self._shown:
            self._stream.write("\n" if keep else self._back())
            self._stream.flush()
        self._shown, self._given = [], ()

    def _fitting(self, lines: Sequence[str]) -> list[str]:
        """Return what of them has room: what does not stand on the screen cannot be rewritten."""
        try:
            most = max(1, os.get_terminal_size(self._stream.fileno()).lines - 1)
        except (OSError, ValueError):
            most = len(lines)
        room = columns(self._stream) - 1
        if 0 < most < len(lines):
            lines = [*lines[: most - 1], f"… and {len(lines) - most + 1} more"]
        return [cut(line, room) for line in lines]

    def _back(self) -> str:
        """Return what leads to where the lines begin, and wipes them off.

        A terminal that has become narrower since has broken them into more rows.
        """
        width = columns(self._stream)
        rows = sum(max(1, -(-cells(line) // width)) for line in self._shown)
        return _UP_TO_IT.format(rows - 1) if rows > 1 else _START_OF_LINE
