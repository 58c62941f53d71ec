"""What a command writes, in bounded memory: its beginning and its end."""

from __future__ import annotations

from collections import deque


class Output:
    """Keeps at most so many bytes.

    Attributes:
        dropped: How many bytes were left out.
    """

    def __init__(self, most: int) -> None:
        self._room = max(0, most) // 2
        self._last = max(0, most) - self._room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self.dropped = 0

    def add(self, piece: bytes) -> None:
        """Take a piece."""
        fits = self._room - len(self._head)
        if fits > 0:
            self._head += piece[:fits]
            piece = piece[fits:]
        if not piece:
            return
        self._tail.append(piece)
        self._in_tail += len(piece)
        while self._in_tail - len(self._tail[0]) >= self._last:
            gone = len(self._tail.popleft())
            self._in_tail -= gone
            self.dropped += gone
            if not self._tail:
                return

    def text(self) -> tuple[str, int]:
        """Return what was kept, and how many bytes were left out of its middle."""
        tail = b"".join(self._tail)
        over = max(0, len(tail) - self._last)
        dropped = self.dropped + over
        head, tail = bytes(self._head), tail[over:]
        if not dropped:
            return (head + tail).decode("utf-8", "replace"), 0
        told = f"\n… {dropped:,} bytes left out …\n"
        return head.decode("utf-8", "replace") + told + tail.decode("utf-8", "replace"), dropped
