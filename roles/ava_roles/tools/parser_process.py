"""Parses documents and pages in a child process, so that a hostile file cannot harm the process of the runs.

A parser in C that crashes ends its process; one that hangs holds Python's lock, and with it every run; and no library
bounds its memory. A child that is killed is only a file that cannot be read. What a file may cost this process is
bounded here, whatever the child says: seconds, and characters to hide secrets in. A child ends when its call does.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from json import loads
from sys import stdin
from typing import IO, Any, cast

from ava_extras import has_extra, load
from ava_roles.errors import ToolFailed
from ava_roles.sandbox.linux import NotOnThisSystem, limit_memory
from ava_roles.threads import ended_with_call
from ava_roles.tools import child, pages
from ava_roles.tools.pages import Pdf, WebPage

SECONDS = 30
"""A child is ended after this many seconds, whatever its parser does; hiding secrets counts too."""
HIDDEN_CHARS = 15_000_000
"""The most characters of one file in which secrets are hidden; twice what the parsers' own limits let through."""
MEMORY_BYTES = 1_500_000_000
ANSWER_BYTES = 30_000_000
"""The longest message of a child; a parser that a file has taken over may send anything."""


def read_pdf(data: bytes, first: int = 1, count: int | None = None, max_chars: int = 200_000) -> Pdf:
    found = _parse("PDF", data, first, count, max_chars)
    pages = tuple((int(number), str(text)) for number, text in found.pop("pages"))
    return Pdf(pages, **found)


def read_docx(data: bytes, hide: Callable[[str], str] = str) -> str:
    return _read_text("Word document", data, hide)


def read_xlsx(data: bytes, hide: Callable[[str], str] = str) -> str:
    return _read_text("workbook", data, hide)


def read_html(html: str, url: str) -> WebPage:
    return WebPage(**_parse("page", html.encode("utf-8", "replace"), url))


def _read_text(what: str, data: bytes, hide: Callable[[str], str]) -> str:
    limits = _Limits(what, hide)
    return limits.hide(str(_parse(what, data, limits=limits)))


class _Limits:
    """What one file may cost this process."""

    def __init__(self, what: str, hide: Callable[[str], str] = str) -> None:
        self._what = what
        self._hide = hide
        self._chars = HIDDEN_CHARS
        self._until = time.monotonic() + SECONDS

    def seconds_left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def hide(self, text: str) -> str:
        """Return a text of the file without secrets. Raises ToolFailed: it costs too much."""
        self._chars -= len(text)
        if self._chars < 0:
            raise self.failed(f"it has more than {HIDDEN_CHARS:,} characters to hide secrets in; ask for a smaller one")
        if not self.seconds_left():
            raise self.late()
        return self._hide(text)

    def failed(self, why: str) -> ToolFailed:
        return ToolFailed(f"this {self._what} cannot be read: {why}")

    def late(self) -> ToolFailed:
        return self.failed(f"its parser takes longer than {SECONDS} s; ask for another copy")


def _parse(what: str, data: bytes, *given: object, limits: _Limits | None = None) -> Any:
    """Return what a child makes of a file. Blocks. Raises ToolFailed: unreadable; it crashed or took too much."""
    from ava_roles.sandbox.sandbox import child_environment

    limits = limits or _Limits(what)
    if what != "page" and not has_extra("documents"):
        raise limits.failed("Ava has no extra `documents` here; `ava doctor` shows the command that adds it")
    process = subprocess.Popen(  # noqa: S603 - this very program
        child.command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(""),
        start_new_session=True,
    )
    clock = threading.Timer(limits.seconds_left(), process.kill)
    clock.daemon = True
    clock.start()
    answer = None
    try:
        with suppress(OSError), process, ended_with_call(process.kill):  # it may end before it has read everything
            answer = _exchange(process, {"parser": what, "bytes": len(data), "given": given}, data, limits.hide)
    finally:
        clock.cancel()
    if answer is None:
        if child.took_too_long(process.returncode) or not limits.seconds_left():
            raise limits.late()
        raise limits.failed("its parser fails, or needs too much memory; ask for another copy")
    if "failed" in answer:
        raise ToolFailed(str(answer["failed"]))
    return answer["result"]


def _exchange(
    process: subprocess.Popen[bytes], order: object, data: bytes, hide: Callable[[str], str]
) -> dict[str, Any] | None:
    """Return a child's answer, hiding secrets in each text that it sends before; None if it ends without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(child.message(order) + data)
        process.stdin.flush()
        while (answer := _next_answer(process.stdout)) is not None and "hide" in answer:
            process.stdin.write(child.message(hide(str(answer["hide"]))))
            process.stdin.flush()
        return answer
    finally:
        process.kill()


def _next_answer(sent: IO[bytes]) -> dict[str, Any] | None:
    size = int.from_bytes(sent.read(child.HEAD_BYTES))
    data = sent.read(size) if size <= ANSWER_BYTES else b""
    try:
        answer: Any = loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None


def main() -> None:
    """Run the child: read an order and a file from stdin, parse it, write the result."""
    child.limit_lifetime(SECONDS)
    with suppress(NotOnThisSystem):
        limit_memory(MEMORY_BYTES)
    order = child.receive()
    data = stdin.buffer.read(order["bytes"])
    known: dict[str, Callable[..., object]] = {
        "PDF": lambda *given: asdict(load("documents").read_pdf(data, *given)),
        "Word document": lambda: load("documents").read_docx(data, child.hide),
        "workbook": lambda: load("documents").read_xlsx(data, child.hide),
        "page": lambda *given: asdict(pages.read_html(data.decode(), *given)),
    }
    try:
        answer = {"result": known[order["parser"]](*order["given"])}
    except ToolFailed as failed:
        answer = {"failed": str(failed)}
    child.send(answer)
