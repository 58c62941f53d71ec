"""The server's ends of a command's pipes, as streams, and what is kept of its output."""

from __future__ import annotations

import os
from contextlib import suppress

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream


class _End:
    """One end of a pipe; closing it twice does nothing."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    @property
    def _open(self) -> int:
        if self._descriptor < 0:
            raise anyio.ClosedResourceError
        return self._descriptor

    async def aclose(self) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close it; who waits for it is woken."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class PipeReader(_End, ByteReceiveStream):
    """Reads from a pipe, which it owns."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Return what is there, at least one byte."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                piece = os.read(self._open, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._open)
                continue
            if not piece:
                raise anyio.EndOfStream
            return piece


class PipeWriter(_End, ByteSendStream):
    """Writes to a pipe, which it owns."""

    async def send(self, item: bytes) -> None:
        """Write everything."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[os.write(self._open, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._open)
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error


class Output:
    """The beginning and the end of a command's output, together at most so many bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = max(0, limit) // 2
        self._tail_limit = max(0, limit) - self._head_limit
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        """Add what the command has written."""
        fits = self._head_limit - len(self._head)
        self._head += piece[:fits]
        self._tail += piece[fits:]
        if (over := len(self._tail) - self._tail_limit) > 0:
            del self._tail[:over]
            self._dropped += over

    def text(self) -> tuple[str, int]:
        """Return the output, and how many bytes were cut out of its middle."""
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace"), 0
        head, tail = (each.decode("utf-8", "replace") for each in (self._head, self._tail))
        return f"{head}\n… {self._dropped:,} bytes left out …\n{tail}", self._dropped

    async def drain(self, stream: ByteReceiveStream) -> None:
        """Add everything that a stream has until its end."""
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                self.add(await stream.receive(65_536))
                await anyio.lowlevel.checkpoint()
