"""Server-sent events out of bytes, however the network cut them."""

from __future__ import annotations

from collections.abc import Iterator

from ava_server.models.wire_json import decode_text


class LineTooLongError(ValueError):
    """Raised when a line of a stream passes the limit without an end."""


class EventReader:
    """Turns pieces of a stream into the data of its events.

    Lines are cut as bytes and decoded whole, so that a piece may end anywhere, also inside a character.

    Attributes:
        replaced: How many bytes or sequences were not UTF-8 and were read as U+FFFD.
    """

    def __init__(self, max_line: int = 8 * 1024 * 1024) -> None:
        """Start empty; `max_line` is the most bytes that a line may have."""
        self._max_line = max_line
        self._rest = bytearray()
        self._searched = 0
        self._data: list[str] = []
        self._first = True
        self.replaced = 0

    def feed(self, piece: bytes) -> list[str]:
        r"""Return the data of each event that `piece` completes; lines end with \n, \r or \r\n.

        Raises:
            LineTooLongError: A line has more bytes than it may have.
        """
        self._rest += piece
        events = [data for line in self._lines(at_end=False) for data in self._line(line)]
        if len(self._rest) > self._max_line:
            raise LineTooLongError(f"a line of more than {self._max_line:,} bytes")
        return events

    def finish(self) -> list[str]:
        """Return what the stream held back when it ended; an event without its blank line counts."""
        return [data for line in (*self._lines(at_end=True), b"") for data in self._line(line)]

    def _lines(self, *, at_end: bool) -> Iterator[bytes]:
        rest = self._rest
        start = 0
        while True:
            stop = _line_end(rest, max(start, self._searched))
            # A \r at the very end may be the first half of \r\n.
            if stop < 0 or (rest[stop] == 0x0D and stop + 1 == len(rest) and not at_end):
                break
            yield bytes(rest[start:stop])
            start = stop + (2 if rest.startswith(b"\r\n", stop) else 1)
        if at_end and start < len(rest):
            yield bytes(rest[start:])
            start = len(rest)
        del rest[:start]
        self._searched = max(len(rest) - 1, 0)

    def _line(self, line: bytes) -> Iterator[str]:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if not line:
            if self._data:
                data, self._data = "\n".join(self._data), []
                yield data
        elif line.startswith(b"data:"):
            text, replaced = decode_text(line[5:].removeprefix(b" "))
            self.replaced += replaced
            self._data.append(text)


def ends_inside_character(tail: bytes) -> bool:
    """Tell whether bytes end inside a UTF-8 character that the next ones could have completed."""
    for back in range(1, min(4, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:
            wants = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back < wants
    return False


def _line_end(text: bytearray, start: int) -> int:
    """Return where the next line end stands, or -1."""
    newline = text.find(b"\n", start)
    carriage = text.find(b"\r", start, newline if newline >= 0 else len(text))
    return carriage if carriage >= 0 else newline
