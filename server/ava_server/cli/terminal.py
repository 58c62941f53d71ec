"""Safe output to the terminal, and questions on it.

Results go to stdout and the conversation (proposals, questions, progress) to stderr, so that a pipe gets only results.
All output is cleaned: text from models and web pages must not steer a terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

import anyio
import typer

from ava_roles.wrap import BAR, INVISIBLE, clean
from ava_roles.wrap import one_line as one_line
from ava_server.core.columns import cells as cells
from ava_server.core.data_root import DataRoot, default_data_root
from ava_server.core.errors import BadInput, Refused
from ava_server.core.threads import read_apart, received, work_until

T = TypeVar("T")
U = TypeVar("U")

VERBOSE: ContextVar[bool] = ContextVar("verbose", default=False)
"""Whether -v was given."""
PLAIN_EVERY_S = 10.0
"""Seconds between lines of progress where they cannot be rewritten in place: in a file or a pipe."""
TERMINAL_EVERY_S = 0.1
PIPE_COLUMNS = 160
"""Columns of a screen that goes into a pipe or a file: it is cut less there than on a usual terminal."""
_TO_LINE_END, _TO_SCREEN_END = "\x1b[K", "\x1b[J"
SPINNERS = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
"""The frames of a spinner, and those for a terminal that may know nothing but ASCII."""
FRAME_S = 0.1
YES = ("y", "yes")
"""What a person who agrees types; anything else is no."""
_UNSEEN = re.compile(rf"{INVISIBLE.pattern}|[\t\r\ud800-\udfff]")
_ITEM = re.compile(r"(\s*)((?:\d+\.|-)\s+)?")
_HANGING = "  "
_WORDS = re.compile(r"\s*(?:`[^`]+`|\S)+")


class ReaderGone(Exception):
    """The reader of our output has closed it, as `head` does: the command ends silently."""


def say(text: str = "") -> None:
    """Write text to stdout, cleaned; on a terminal it is wrapped."""
    write(_wrapped_for(clean(text)[0], sys.stdout))


Place = DataRoot | str
"""Where what a screen shows comes from: a data root, or a server by its address."""


def heading(place: Place) -> None:
    """Write the first line of a screen: a server, or the data root unless it is the default one; with -v always."""
    if isinstance(place, str):
        write(f"Server: {clean(place)[0]}")
        return
    path = named_root(place)
    if path:
        write(f"Data root: {path}")


def named_root(root: DataRoot) -> str:
    """Return empty text for the default one, without -v."""
    if not VERBOSE.get() and root == default_data_root():
        return ""
    return str(root.path)


def place_json(place: Place) -> dict[str, str]:
    """Return what `heading` says as the first field of a JSON object."""
    if isinstance(place, str):
        return {"server": place}
    return {"data_root": str(place.path)}


def present(place: Place, as_json: bool, fields: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write one JSON object, or lines below the heading."""
    if as_json:
        say_json({**place_json(place), **fields})
        return
    heading(place)
    lines = list(lines)
    if lines:
        say("\n".join(lines))


def aligned(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Return rows of cells, equally many, as lines with columns; those numbered in `right` are aligned to the right."""
    rows = list(rows)
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        padded: list[str] = []
        for number, cell in enumerate(row):
            blanks = " " * (widths[number] - cells(cell))
            padded.append(blanks + cell if number in right else cell + blanks)
        lines.append(gap.join(padded).rstrip())
    return lines


def write(text: str) -> None:
    """Write text that is known to be harmless to stdout. Raises ReaderGone if the reader has closed our output."""
    _echo(text, sys.stdout)


def _echo(text: str, stream: TextIO) -> None:
    """Raises ReaderGone if the reader has closed this stream."""
    try:
        typer.echo(text, file=stream)
    except BrokenPipeError:
        raise ReaderGone from None


def write_lines(lines: bytes) -> None:
    """Write whole lines of JSON to stdout, byte for byte, so that they can be verified; escaped on a terminal.

    Raises ReaderGone if the reader has closed our output.
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
async def reader_gone(*streams: TextIO) -> AsyncGenerator[None]:
    """Raises ReaderGone when the reader closes one of these, also while there is nothing to write."""
    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(_until_reader_gone, stream.fileno())
        yield
        tasks.cancel_scope.cancel()


async def _until_reader_gone(descriptor: int) -> None:
    """Raises ReaderGone, if this is a pipe."""
    if sys.platform != "win32" and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        await anyio.wait_readable(descriptor)  # readable only once the reader has gone
        raise ReaderGone


def tell(text: str = "") -> None:
    """Write text of the conversation to stderr, cleaned; on a terminal it is wrapped. Raises as `write` does."""
    _echo(_wrapped_for(clean(text)[0], sys.stderr), sys.stderr)


def _wrapped_for(text: str, stream: TextIO) -> str:
    if not stream.isatty():
        return text
    return wrapped(text, columns(stream))


def wrapped(text: str, width: int) -> str:
    """Return the text in lines of at most `width` columns, broken at blanks; a longer word gets its own line.

    A command in backticks stays on one line if it fits, so that it can be copied. Continuation lines are indented as
    the line is, or to the text of a list item, else by two blanks. Untrusted text keeps its bar on each line; there,
    and with `breaks` of `wrapped_lines`, longer words are broken too: a terminal would continue them at the start of a
    row, where they can pass for a line of Ava's.
    """
    return "\n".join(wrapped_lines(text, width))


def wrapped_lines(text: str, width: int, *, breaks: bool = False) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        lines += _wrapped_line(line, width, breaks)
    return lines


def _wrapped_line(line: str, width: int, breaks: bool) -> list[str]:
    if not line.startswith(BAR):
        return _parts(line, width, breaks=breaks)
    width_after_bar = width - len(BAR)
    text = line.removeprefix(BAR).expandtabs(4)  # a terminal's own tab stops reach its last column
    indent = len(text) - len(text.lstrip())
    too_deep = max(0, indent - width_after_bar // 2)
    return [BAR + part for part in _parts(text[too_deep:], width_after_bar, breaks=True)]


def _words(line: str, width: int) -> list[str]:
    """Return the words of a line, each with the blanks before it; a command in backticks that fits is one word."""
    words: list[str] = []
    for word in _WORDS.findall(line):
        if cells(word.lstrip()) <= width:
            words.append(word)
        else:
            words += _plain_words(word)
    return words


def _plain_words(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _parts(line: str, width: int, *, breaks: bool = False) -> list[str]:
    if cells(line) <= width:
        return [line]
    begin = _ITEM.match(line)
    assert begin is not None
    hanging = " " * min(len(begin[0]), width // 2) or _HANGING
    hanging_width = width - len(hanging)
    if breaks:
        words: list[str] = []
        for word in _plain_words(line):
            words += _pieces(word, max(2, hanging_width))
    else:
        words = _words(line, hanging_width)
    lines: list[str] = []
    current, current_width = "", 0
    for word in words:
        if current.strip() and current_width + cells(word) > width:
            lines.append(current)
            word = hanging + word.lstrip()
            current, current_width = "", 0
        current += word
        current_width += cells(word)
    return [*lines, current]


def _pieces(word: str, width: int) -> list[str]:
    """Return a word in pieces of at most `width` columns; blanks before it do not count."""
    text = word.lstrip()
    blanks = word[: len(word) - len(text)]
    pieces, piece_width = [blanks], 0
    for char in text:
        if piece_width + cells(char) > width:
            pieces.append("")
            piece_width = 0
        pieces[-1] += char
        piece_width += cells(char)
    return pieces


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` columns; a shortened one ends with `…`."""
    if cells(text) <= width:
        return text
    used = 0
    for place, char in enumerate(text):
        used += cells(char)
        if used > width - 1:
            return text[:place] + "…"
    return text


def cut_front(text: str, width: int) -> str:
    """Return the end of a text in at most `width` columns, behind `…` if it was shortened: of a path, it tells most."""
    return cut(text[::-1], width)[::-1]


def say_json(value: Any) -> None:
    write(harmless_json(json.dumps(value, ensure_ascii=False, default=str)))


def harmless_json(text: str) -> str:
    r"""Write invisible characters as `\uXXXX`."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def someone_there() -> bool:
    """Tell whether a person can be asked: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: Any) -> str:
    if not text or not colours():
        return text
    return typer.style(text, **style)


def can_write(chars: str) -> bool:
    try:
        chars.encode(getattr(sys.__stdout__, "encoding", None) or "ascii")  # textual replaces sys.stdout
    except UnicodeError:
        return False
    return True


def columns(stream: TextIO | None = None) -> int:
    """Return the width of a stream's terminal, at least 40; by default of stdout's."""
    if stream is not None and "COLUMNS" not in os.environ:
        try:
            return max(40, os.get_terminal_size(stream.fileno()).columns or 80)
        except (OSError, ValueError):
            pass
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def screen_columns() -> int:
    """Return the width of a screen on stdout: `PIPE_COLUMNS` in a pipe or a file, unless COLUMNS says another."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return columns()
    return PIPE_COLUMNS


def rows(stream: TextIO) -> int:
    """Return the height of a stream's terminal; 24 where it is not known."""
    try:
        return os.get_terminal_size(stream.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


async def unless_interrupted(work: Callable[[], Awaitable[T]], otherwise: U) -> T | U:
    """Return what some work returns, or raise its error; Ctrl-C ends the work, and `otherwise` is returned."""
    with received(signal.SIGINT) as signals:

        async def interrupted() -> None:
            async for _number in signals:
                return

        return await work_until(interrupted, work, otherwise)


def forget_typed() -> None:
    """Drop what was typed ahead on a terminal."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return
    try:
        import termios
    except ImportError:
        return
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def ask(question: str) -> str:
    """Return the answer in lower case, empty at the end of input; what was typed before the question does not count."""
    return (await ask_words(question)).lower()


async def ask_words(question: str) -> str:
    """Return the answer as it was typed; otherwise as `ask`."""
    forget_typed()
    sys.stderr.write(f"{clean(question)[0]} ")
    sys.stderr.flush()
    if sys.platform == "win32":  # a console cannot be waited for
        return (await read_apart(sys.stdin.readline)).strip()
    # The event loop waits: a thread that hangs in a read would keep Ctrl-C from ending the process.
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    answer = os.read(descriptor, 4_096).decode("utf-8", "replace")
    if not answer:
        sys.stderr.write("\n")
    return answer.strip()


async def agrees(question: str) -> bool:
    return await ask(f"{question} [y/N]") in YES


async def confirm(question: str, done: str) -> None:
    """Ask before a step that cannot be undone; `done` is what it does, as a participle: `erased`.

    Raises BadInput if there is no terminal; Refused if the person did not agree.
    """
    if not someone_there():
        raise BadInput(f"There is no terminal to ask on, so nothing was {done}. Run it in a terminal, or add --yes.")
    if not await agrees(question):
        raise Refused(f"Nothing was {done}.")


class Progress:
    """Lines of progress: rewritten in place on a terminal, elsewhere written now and then."""

    def __init__(self, every_s: float = PLAIN_EVERY_S, *, err: bool = True) -> None:
        """`every_s` are the seconds between plain lines."""
        self._every_s = every_s
        self._stream = sys.stderr if err else sys.stdout
        self._in_place = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._written: list[str] = []
        self._written_s: float | None = None
        self._shown: list[str] = []
        self._width = self.width

    @property
    def width(self) -> int | None:
        """Return None if a line may have any length."""
        if not self._in_place:
            return None
        return columns(self._stream) - 1

    @property
    def spinner(self) -> str:
        locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG")
        ascii_only = locale in ("C", "POSIX") or "utf" not in self._stream.encoding.lower()
        frames = SPINNERS[ascii_only]
        return frames[int(time.monotonic() / FRAME_S) % len(frames)]

    def show(self, *lines: str) -> None:
        plain = [_UNSEEN.sub(" ", clean(line)[0].replace("\n", " ")).rstrip() for line in lines]
        if self._in_place:
            self._show_in_place(plain)
        elif plain != self._written:
            self._write_sometimes(plain)

    def wait_for(self, line: str) -> None:
        """Show what is awaited; plain output repeats it now and then."""
        self._written = []
        self.show(line)

    def end(self, *, keep: bool = False) -> None:
        """Stop: what follows replaces the lines, or with `keep` comes below them."""
        if self._shown and keep:
            self._stream.write("\n")
        elif self._shown:
            back = self._back()
            if not back.endswith(_TO_LINE_END):
                back += _TO_SCREEN_END
            self._stream.write(back)
        if self._shown:
            self._stream.flush()
        self._shown, self._written = [], []

    def _show_in_place(self, plain: Sequence[str]) -> None:
        lines = self._lines_that_fit(plain)
        if lines == self._shown:
            return
        # Each line replaces the one that stood there, because clearing them all first would flicker. After a resize
        # they are cleared: a terminal remembers which of them it has broken, and would join new ones.
        was_resized = self._width != self.width
        self._width = self.width
        self._stream.write(self._back())
        if was_resized:
            self._stream.write(_TO_SCREEN_END)
        self._stream.write(f"{_TO_LINE_END}\n".join(lines))
        if len(self._shown) > 1:
            self._stream.write(_TO_SCREEN_END)
        self._stream.flush()
        self._shown = lines

    def _write_sometimes(self, plain: list[str]) -> None:
        now_s = time.monotonic()
        if self._written_s is None or now_s - self._written_s >= self._every_s:
            self._written_s = now_s
            _echo("\n".join(plain), self._stream)
            self._written = plain

    def _lines_that_fit(self, lines: Sequence[str]) -> list[str]:
        """Return as many lines as the screen has, cut to its width: others could not be rewritten."""
        try:
            most = max(1, os.get_terminal_size(self._stream.fileno()).lines - 1)
        except (OSError, ValueError):
            most = len(lines)
        width = columns(self._stream) - 1
        if 0 < most < len(lines):
            lines = [*lines[: most - 1], f"… and {len(lines) - most + 1} more"]
        return [cut(line, width) for line in lines]

    def _back(self) -> str:
        """Return the control characters that go back to the first line; a single row is also cleared.

        A terminal that was made narrower has broken the lines into more rows.
        """
        width = columns(self._stream)
        rows = sum(max(1, math.ceil(cells(line) / width)) for line in self._shown)
        if rows > 1:
            return f"\x1b[{rows - 1}A\r"
        return f"\r{_TO_LINE_END}"


@contextmanager
def progress_on_terminal() -> Generator[Callable[[str], None]]:
    """Give a function that shows a line on a terminal, ten times a second at most, until the block ends."""
    if not sys.stderr.isatty():
        yield lambda _line: None
        return
    progress = Progress()
    shown_s = time.monotonic()

    def show(line: str) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= TERMINAL_EVERY_S:
            shown_s = time.monotonic()
            progress.show(line)

    try:
        yield show
    finally:
        progress.end()


@contextmanager
def steps_on_terminal(total: int) -> Generator[Callable[[str], None]]:
    """Give a function that says which of `total` steps begins.

    On a terminal, stderr has a line with that, how many are done, and the time; a dumb one gets a line for each step.
    Elsewhere nothing is shown.
    """
    if not sys.stderr.isatty():
        yield lambda _words: None
        return
    from rich.console import Console  # not needed to read the command line
    from rich.progress import MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    console = Console(stderr=True, no_color=not colours())
    if console.is_dumb_terminal:
        yield tell
        return
    words_column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    parts = (SpinnerColumn("line"), words_column, MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*parts, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("", total=total)
        steps = 0

        def begin(words: str) -> None:
            nonlocal steps
            progress.update(task, completed=steps, description=clean(words)[0])
            steps += 1

        yield begin
