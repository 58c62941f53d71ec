"""Parses documents and pages in child processes, so that a hostile file cannot harm the process of the runs.

A parser in C that crashes ends its process; one that hangs holds Python's lock, and with it every run; and no library
bounds its memory. A child that is killed is only a file that cannot be read. What a file may cost this process is
bounded here, whatever the child says: seconds, and characters. A child ends when its call does.

Loading the parsers takes longer than most files do. So a child forks for each file (not on Windows): what a file does
to its parser ends with the fork, and the next file finds the packages loaded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, astuple
from importlib import import_module
from json import loads
from sys import stdin, stdout
from typing import IO, Any, cast

from ava_extras import EXTRAS, has_extra, load
from ava_roles.errors import ParserEnded, ToolFailed
from ava_roles.sandbox.linux import NotOnThisSystem, limit_memory, yield_processor
from ava_roles.texts import child, web_page
from ava_roles.texts.extracted import ALL, MOST_CHARS, Extracted, Format, Wanted, size_of
from ava_roles.texts.places import SHARE, much_memory
from ava_roles.texts.web_page import WebPage
from ava_roles.threads import ended_with_call

SECONDS = 30
"""A child is ended after this many seconds, whatever its parser does."""
ANSWER_BYTES = 30_000_000
"""The longest message of a child; a parser that a file has taken over may send anything."""
_PAGE = "page"
_ANOTHER = "ask for another copy"
_TOO_LONG = {"ended": "too long"}
_CRASHED: dict[str, object] = {"ended": "crashed"}
_NICE = 5
"""The niceness of a child: the process of the runs, which is mostly idle, goes first."""
_PATIENT_NICE = 15
_XML_NO_MEMORY = 2
_FORKS = hasattr(os, "fork")
_starter = ThreadPoolExecutor(1, "ava-parsers")


class ParserProcess:
    """A child for the files of one call, started with the first one. Blocks; it reads one file at a time."""

    def __init__(self, *, is_patient: bool = False) -> None:
        """`is_patient`: it reads many files, and lets the processor have other work first."""
        self._process: subprocess.Popen[bytes] | None = None
        self._niceness = _PATIENT_NICE if is_patient else _NICE

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)
            with suppress(OSError):  # it may have ended before it read everything
                self._process.__exit__(None, None, None)
            self._process = None

    def read_document(self, kind: Format, data: bytes, wanted: Wanted = ALL) -> Extracted:
        """Return the text of a document. Raises ToolFailed if it cannot be read."""
        if kind.extra and not has_extra("documents"):
            raise _failed(kind.name, "Ava has no extra `documents` here; `ava doctor` shows the command that adds it")
        answer = self._parse(kind.name, data, *astuple(wanted))
        try:
            document = Extracted.of(answer)
        except (KeyError, TypeError, ValueError):
            raise _failed(kind.name, f"its parser fails; {_ANOTHER}") from None
        if size_of(document.parts) + len(document.before) > MOST_CHARS:
            raise _failed(kind.name, f"it has more than {MOST_CHARS:,} characters; ask for a smaller one")
        return document

    def read_html(self, html: str, url: str) -> WebPage:
        return WebPage(**self._parse(_PAGE, html.encode("utf-8", "replace"), url))

    def _parse(self, what: str, data: bytes, *arguments: object) -> Any:
        """Return what a child makes of a file. Raises ToolFailed: unreadable; it crashed or took too much.

        A parser that crashes in little memory may only need more, so it has a second try in much.
        """
        order = {"parser": what, "bytes": len(data), "arguments": arguments, "niceness": self._niceness}
        answer = self._answer(what, {**order, "memory": SHARE.little_bytes}, data)
        if answer is None:
            with much_memory(what) as much:
                answer = self._answer(what, {**order, "memory": much}, data)
        if answer is None:
            raise ParserEnded(f"this {what} cannot be read: its parser fails, or needs too much memory; {_ANOTHER}")
        if "failed" in answer:
            raise ToolFailed(str(answer["failed"]))
        return answer["result"]

    def _answer(self, what: str, order: dict[str, object], data: bytes) -> dict[str, Any] | None:
        """Return a child's answer; None if it crashed. Raises ParserEnded if it took too long."""
        until = time.monotonic() + SECONDS
        if self._process is None:
            self._process = _started()
        process = self._process
        is_ended_from_here = False

        def end() -> None:
            nonlocal is_ended_from_here
            is_ended_from_here = True
            _end(process)

        clock = threading.Timer(SECONDS, end)
        clock.daemon = True
        clock.start()
        answer: dict[str, Any] | None = None
        try:
            with suppress(OSError), ended_with_call(end):
                answer = _exchange(process, order, data)
        finally:
            clock.cancel()
            if answer is None or not _FORKS:
                self.close()
        if answer is not None and "ended" not in answer:
            return answer
        is_late = answer == _TOO_LONG or time.monotonic() >= until
        if is_late or child.took_too_long(process.returncode):
            raise ParserEnded(f"this {what} cannot be read: its parser takes longer than {SECONDS} s; {_ANOTHER}")
        if is_ended_from_here:
            raise ParserEnded(f"this {what} was not read: its call was cancelled")
        return None


def read_document(kind: Format, data: bytes, wanted: Wanted = ALL) -> Extracted:
    """Return the text of a document, read by a child of its own. Blocks. Raises ToolFailed if it cannot be read."""
    with ParserProcess() as parser:
        return parser.read_document(kind, data, wanted)


def read_html(html: str, url: str) -> WebPage:
    with ParserProcess() as parser:
        return parser.read_html(html, url)


def _failed(what: str, why: str) -> ToolFailed:
    return ToolFailed(f"this {what} cannot be read: {why}")


def _started() -> subprocess.Popen[bytes]:
    """Start a child, which ends with the thread that started it (`end_with_parent`): one that never ends itself.

    The threads of tools end when they were idle for some seconds, while a child serves several of them.

    It has a process group of its own, not a session: where Linux shares the processor out by session (autogroup, in
    sched(7)), niceness counts only within one, and nine patient children left the tenth a ninth of it.
    """
    return _starter.submit(_start).result()


def _start() -> subprocess.Popen[bytes]:
    from ava_roles.sandbox.sandbox import child_environment

    return subprocess.Popen(  # noqa: S603 - this very program
        child.command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(""),
        process_group=0,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and its fork."""
    if _FORKS and process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _exchange(process: subprocess.Popen[bytes], order: object, data: bytes) -> dict[str, Any] | None:
    """Return a child's answer; None if it ends without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(child.message(order) + data)
    process.stdin.flush()
    return _read_answer(process.stdout)


def _read_answer(pipe: IO[bytes]) -> dict[str, Any] | None:
    size = int.from_bytes(pipe.read(child.HEAD_BYTES))
    if size > ANSWER_BYTES:
        return None
    try:
        value: Any = loads(pipe.read(size))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    answer = cast("dict[str, Any]", value)
    is_answer = "failed" in answer or "result" in answer or "ended" in answer
    return answer if is_answer else None


# -- the child --


def main() -> None:
    """Run the child: parse the files that come from stdin one after another, until the server closes it."""
    child.limit_lifetime(0 if _FORKS else SECONDS)
    is_nice = False
    while (order := child.receive()) is not None:
        data = stdin.buffer.read(order["bytes"])
        if not is_nice:
            with suppress(NotOnThisSystem):
                yield_processor(order["niceness"])
            is_nice = True
        if not _FORKS:
            child.send(_result(order, data))
            return
        if has_extra("documents"):
            load("documents").load_packages(order["parser"])
        stdout.buffer.write(_fork(order, data))
        stdout.buffer.flush()


def _fork(order: dict[str, Any], data: bytes) -> bytes:
    """Parse a file in a forked process and return its message, which is passed on unchanged."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    fork_pid = os.fork()
    if not fork_pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write_end, 1)
        child.limit_lifetime(SECONDS, parent)
        child.send(_result(order, data))
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as pipe:  # noqa: PTH123 - a descriptor
        message = bytearray()
        while len(message) <= child.HEAD_BYTES + ANSWER_BYTES:
            piece = pipe.read(1 << 20)
            if not piece:
                break
            message += piece
    with suppress(ProcessLookupError):
        os.kill(fork_pid, signal.SIGKILL)
    _pid, status = os.waitpid(fork_pid, 0)
    size = int.from_bytes(message[: child.HEAD_BYTES])
    if size and len(message) == child.HEAD_BYTES + size:
        return bytes(message)
    if child.took_too_long(os.waitstatus_to_exitcode(status)):
        return child.message(_TOO_LONG)
    return child.message(_CRASHED)


def _result(order: dict[str, Any], data: bytes) -> dict[str, object]:
    with suppress(NotOnThisSystem):
        limit_memory(order["memory"])
    try:
        return {"result": asdict(_run_parser(order["parser"], data, order["arguments"]))}
    except ToolFailed as failure:
        if _is_out_of_memory(failure.__cause__):
            return _CRASHED
        return {"failed": str(failure)}


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether memory was short; lxml calls that broken XML (XML_ERR_NO_MEMORY)."""
    is_xml = type(error).__name__ == "XMLSyntaxError"
    return isinstance(error, MemoryError) or (is_xml and getattr(error, "code", None) == _XML_NO_MEMORY)


def _run_parser(parser: str, data: bytes, arguments: list[Any]) -> Extracted | WebPage:
    if parser == _PAGE:
        return web_page.read_html(data.decode(), *arguments)
    documents: Any = import_module(EXTRAS["documents"].module)  # some of its parsers need only the core's packages
    document: Extracted = documents.PARSERS[parser](data, Wanted(*arguments))
    return document
