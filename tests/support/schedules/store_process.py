"""Logs that other processes have open. Their commands and queries are made here, and travel as their code.

with store_processes(3) as processes:
    store = await processes[0].open(root)
    await store.do(command); await store.read(query)
"""

from __future__ import annotations

import importlib
import io
import marshal
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from types import CellType, FunctionType
from typing import IO, Any, TypeVar

import anyio
import anyio.to_thread

from ava_audit.store.store import Command, Query, Store
from ava_server.runs.record.submit import Hide, hide_shapes

T = TypeVar("T")
_LENGTH = struct.Struct(">Q")


class StoreProcess:
    """A child process that has at most one log open, and does one thing at a time."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "support.schedules.store_process"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def open(self, root: Path) -> ProcessStore:
        """Open the log of a data root there, instead of the one that was open."""
        await self.ask("open", root)
        return ProcessStore(self)

    async def close(self) -> None:
        await self.ask("close", None)

    async def call(self, work: Callable[[], T]) -> T:
        answer: T = await self.ask("call", work)
        return answer

    async def ask(self, what: str, value: object) -> Any:
        return await anyio.to_thread.run_sync(self._ask, what, value)

    def _ask(self, what: str, value: object) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        _send(self._child.stdin, (what, value))
        answer, error = _receive(self._child.stdout)
        if error is not None:
            raise error
        return answer

    def stop(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            assert self._child.wait(20) == 0
        finally:
            self._child.kill()
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()


class ProcessStore:
    """A log that a process has open: what its users here need of a `Store`."""

    def __init__(self, process: StoreProcess) -> None:
        self._process = process

    async def do(self, command: Command[T], _about: str | None = None) -> T:
        value: T = await self._process.ask("do", command)
        return value

    async def read(self, query: Query[T]) -> T:
        value: T = await self._process.ask("read", query)
        return value

    async def look(self, query: Query[T]) -> T:
        return await self.read(query)


@contextmanager
def store_processes(count: int) -> Generator[list[StoreProcess]]:
    """Start processes, and stop them at the end."""
    with ExitStack() as running:
        processes = [StoreProcess() for _ in range(count)]
        for each in processes:
            running.callback(each.stop)
        yield processes


class _Pickler(pickle.Pickler):
    """Pickles functions that have no name in their module, with what they have closed over."""

    def reducer_override(self, obj: Any) -> Any:
        if obj is hide_shapes:  # a method of an object with a lock; commands have it as a default
            return _hide_shapes, ()
        if not isinstance(obj, FunctionType) or "<" not in obj.__qualname__:
            return NotImplemented
        closed_over = tuple(cell.cell_contents for cell in obj.__closure__ or ())
        code = marshal.dumps(obj.__code__)
        return _function, (code, obj.__module__, obj.__defaults__, obj.__kwdefaults__, closed_over)


def _hide_shapes() -> Hide:
    return hide_shapes


def _function(
    code: bytes, module: str, defaults: Any, keyword_defaults: Any, closed_over: tuple[object, ...]
) -> FunctionType:
    names = importlib.import_module(module).__dict__
    made = FunctionType(marshal.loads(code), names, None, defaults, tuple(map(CellType, closed_over)))
    made.__kwdefaults__ = keyword_defaults
    return made


def _send(file: IO[bytes], value: object) -> None:
    data = io.BytesIO()
    _Pickler(data).dump(value)
    file.write(_LENGTH.pack(len(data.getbuffer())) + data.getvalue())
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(file.read(length))


async def _serve() -> None:
    """Do what the parent asks, until it closes the pipe."""
    async with AsyncExitStack() as last:
        opened, store = AsyncExitStack(), None
        last.push_async_callback(lambda: opened.aclose())
        while True:
            try:
                what, value = await anyio.to_thread.run_sync(_receive, sys.stdin.buffer)
            except EOFError:
                return
            answer: object = None
            try:
                if what in ("open", "close"):
                    await opened.aclose()
                    opened, store = AsyncExitStack(), None
                if what == "close":
                    pass
                elif what == "open":
                    store = await opened.enter_async_context(Store.open(value))
                elif what == "call":
                    answer = value()
                else:
                    assert store is not None, "no log is open"
                    answer = await (store.do(value) if what == "do" else store.read(value))
            except Exception as error:
                _send(sys.stdout.buffer, (None, error))
            else:
                _send(sys.stdout.buffer, (answer, None))


if __name__ == "__main__":
    anyio.run(_serve)
