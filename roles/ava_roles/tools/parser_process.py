"""Parses documents and pages in a child process, so that a hostile file cannot harm the process of the runs.

A parser in C that crashes ends its process; one that hangs holds Python's lock, and with it every run; and no library
bounds its memory. A child that is killed is only a file that cannot be read.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from json import loads
from sys import stdin
from typing import IO, Any, cast

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.linux import NotOnThisSystem, limit_memory
from ava_roles.tools import child, parsers
from ava_roles.tools.parsers import Page, Pdf

SECONDS = 30
"""After so many seconds the kernel ends a child, whatever its parser does."""
MEMORY_BYTES = 1_500_000_000
ANSWER_BYTES = 64_000_000
"""The longest message of a child; a parser that a file has taken over may send anything."""


def read_pdf(data: bytes, first: int = 1, count: int | None = None, max_chars: int = 200_000) -> Pdf:
    """Return the text of pages, as `parsers.read_pdf` does."""
    found = _parse("PDF", data, first, count, max_chars)
    pages = tuple((int(number), str(text)) for number, text in found.pop("pages"))
    return Pdf(pages, **found)


def read_docx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a Word document as text, as `parsers.read_docx` does."""
    return str(_parse("Word document", data, hide=hide))


def read_xlsx(data: bytes, hide: Callable[[str], str] = str) -> str:
    """Return a workbook as tables, as `parsers.read_xlsx` does."""
    return str(_parse("workbook", data, hide=hide))


def read_html(html: str, url: str) -> Page:
    """Return the content of a page, as `parsers.read_html` does."""
    return Page(**_parse("page", html.encode("utf-8", "replace"), url))


def _parse(what: str, data: bytes, *given: object, hide: Callable[[str], str] = str) -> Any:
    """Return what a child makes of a file. Blocks.

    Raises:
        ToolFailed: The file cannot be read; or its parser crashed, took too long, or needed too much memory.
    """
    from ava_roles.sandbox.sandbox import child_environment

    process = subprocess.Popen(  # noqa: S603 - this very program
        child.command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(""),
        start_new_session=True,
    )
    answer = None
    with suppress(OSError), process:  # it may end before it has read everything
        answer = _exchange(process, {"parser": what, "bytes": len(data), "given": given}, data, hide)
    if answer is None:
        late = child.took_too_long(process.returncode)
        why = f"takes longer than {SECONDS} s" if late else "fails, or needs too much memory"
        raise ToolFailed(f"this {what} cannot be read: its parser {why}; ask for another copy")
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
    """Return a child's next message; None if it has ended or sends something else."""
    size = int.from_bytes(sent.read(child.HEAD_BYTES))
    data = sent.read(size) if size <= ANSWER_BYTES else b""
    try:
        answer: Any = loads(data)
    except ValueError:
        return None
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None


def main() -> None:
    """Run the child: read an order and a file from stdin, parse it, write the result."""
    child.limit_lifetime(SECONDS)
    with suppress(NotOnThisSystem):
        limit_memory(MEMORY_BYTES)
    order = child.receive()
    data = stdin.buffer.read(order["bytes"])
    hide = partial(child.hide, seconds=SECONDS)
    known: dict[str, Callable[..., object]] = {
        "PDF": lambda *given: asdict(parsers.read_pdf(data, *given)),
        "Word document": lambda: parsers.read_docx(data, hide),
        "workbook": lambda: parsers.read_xlsx(data, hide),
        "page": lambda *given: asdict(parsers.read_html(data.decode(), *given)),
    }
    try:
        answer = {"result": known[order["parser"]](*order["given"])}
    except ToolFailed as failed:
        answer = {"failed": str(failed)}
    child.send(answer)
