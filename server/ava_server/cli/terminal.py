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
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import typer

from ava_roles.wrap import clean
from ava_server.cli.app import ReaderGone

PLAIN_EVERY_S = 10.0
"""How often progress is told where it cannot be rewritten in place: in a file, in a pipe."""
_START_OF_LINE = "\r\x1b[K"
_UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def say(text: str = "") -> None:
    """Write lines to stdout at once, without anything that could steer a terminal."""
    write(clean(text)[0])


def write(text: str) -> None:
    """Write text that is known to be harmless to stdout at once.

    Raises:
        ReaderGone: Nobody reads it any more.
    """
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise ReaderGone from None


def tell(text: str = "") -> None:
    """Write lines of the conversation to stderr."""
    typer.echo(clean(text)[0], err=True)


def say_json(value: Any) -> None:
    """Write a value to stdout as one line of JSON."""
    write(harmless_json(json.dumps(value, ensure_ascii=False, default=str)))


def harmless_json(text: str) -> str:
    r"""Return JSON in which every character that is not seen is written as `\uXXXX`: the same value."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def someone_there() -> bool:
    """Tell whether a person can be asked: input and conversation are both a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def columns() -> int:
    """Return how wide the terminal is."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


@contextmanager
def interrupts() -> Generator[AsyncIterator[int]]:
    """Deliver Ctrl-C as items to iterate over, in place of an exception; on Windows it stays an exception."""
    if sys.platform == "win32":
        yield _none()
        return
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        yield signals


async def _none() -> AsyncIterator[int]:
    await anyio.sleep_forever()
    yield 0


async def ask(question: str) -> str:
    """Return what a person answers to a question on the terminal, in lower case; nothing at the end of input."""
    sys.stderr.write(f"{clean(question)[0]} ")
    sys.stderr.flush()
    if sys.platform == "win32":  # there no console can be waited for
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return str(line).strip().lower()
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
    """What is going on: one line that is rewritten on a terminal, and a plain line now and then elsewhere."""

    def __init__(self, every_s: float = PLAIN_EVERY_S, *, err: bool = True) -> None:
        """Begin.

        Args:
            every_s: How often a plain line is written.
            err: To stderr, where the conversation is; False for stdout.
        """
        self._every_s = every_s
        self._stream = sys.stderr if err else sys.stdout
        self._in_place = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""
        self._told_s: float | None = None

    def show(self, line: str) -> None:
        """Show the line, if it says something new."""
        line = " ".join(clean(line)[0].split())
        if line == self._shown:
            return
        if self._in_place:
            width = columns() - 1
            self._stream.write(_START_OF_LINE + (line if len(line) <= width else line[: width - 1] + "…"))
            self._stream.flush()
        elif self._told_s is None or time.monotonic() - self._told_s >= self._every_s:
            self._told_s = time.monotonic()
            typer.echo(line, file=self._stream)
        else:
            return
        self._shown = line

    def end(self, *, keep: bool = False) -> None:
        """Leave the line: what follows stands in its place, or below it."""
        if self._in_place and self._shown:
            self._stream.write("\n" if keep else _START_OF_LINE)
            self._stream.flush()
        self._shown = ""
