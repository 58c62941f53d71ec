"""An answer as it arrives over HTTP: server-sent events cut anywhere by the network, or JSON in one piece."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import anyio

from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import Completion, Delta
from ava_server.models.errors import Endpoint, with_usage
from ava_server.models.tokens import CachePlace

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.usage_reader import UsageReader
    from ava_server.models.wires.wire import Wire

log = logging.getLogger("ava.models")

MOST_BYTES = 64 * 1024 * 1024
"""No answer is longer; an endpoint that sends more is broken."""
MOST_LINE_BYTES = 8 * 1024 * 1024
READ = Delta()  # yielded when all that a piece of a stream completes has been read
_AFTER_END_S = 0.25
_FED_BYTES = 64 * 1024
"""How much of a whole body is split into lines at a time."""
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A \\r at the very end may be the first half of \\r\\n."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a call may take; local servers read a long prompt for minutes before the first byte."""

    connect_s: float = 10.0
    first_byte_s: float = 180.0
    between_s: float = 90.0
    total_s: float = 600.0


class LineTooLongError(ValueError):
    """Raised when a line of a stream exceeds the limit without an end."""


class EventReader:
    """Reads server-sent events: turns pieces of a stream, cut anywhere, into the data of its events.

    Attributes:
        replaced: How many invalid UTF-8 sequences were replaced.
        errors: The data of events that are named `error`, or whose data stands in a field of this name.
    """

    def __init__(self) -> None:
        self.replaced = 0
        self.errors: set[str] = set()
        self._rest = bytearray()  # the beginning of a line whose end has not come
        self._ends_with_cr = False
        self._first = True  # no line was read yet: a byte order mark may stand before the first
        self._name = ""  # of the event that is being read
        self._data: list[str] = []  # its lines of data

    def feed(self, piece: bytes) -> list[str]:
        """Return the data of each event that `piece` completes; lines end as in SSE. Raises LineTooLongError."""
        self._rest += piece
        events: list[str] = []
        if self._ends_with_cr or b"\n" in piece or b"\r" in piece:  # else a long line is not searched again
            *lines, rest = _LINE_END.split(self._rest)
            self._rest = bytearray(rest)
            events = self._read(lines)
        self._ends_with_cr = self._rest.endswith(b"\r")
        if len(self._rest) > MOST_LINE_BYTES:
            raise LineTooLongError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
        return events

    def finish(self) -> list[str]:
        """Return the events that were still incomplete when the stream ended; a missing blank line is accepted."""
        return self._read((*_LINE_END.split(self._rest.removesuffix(b"\r")), b""))

    def _read(self, lines: Iterable[bytes]) -> list[str]:
        events: list[str] = []
        for line in lines:
            if self._first:
                line = line.removeprefix(b"\xef\xbb\xbf")
                self._first = False
            if line.startswith(b"data:"):
                text, replaced = json_text.decode_text(line[5:].removeprefix(b" "))
                self.replaced += replaced
                self._data.append(text)
            elif line.startswith(b"error:"):  # llama.cpp and what stands on it
                text, _ = json_text.decode_text(line[6:].strip())
                if text not in ("", "null"):
                    self._name = "error"
                    self._data.append(text)
            elif line.startswith(b"event:"):
                self._name = line[6:].strip().decode("utf-8", "replace")
            elif not line and self._data:
                event = "\n".join(self._data)
                if self._name == "error":
                    self.errors.add(event)
                events.append(event)
                self._data = []
            if not line:
                self._name = ""
        return events


def ends_inside_character(tail: bytes) -> bool:
    """Tell whether bytes end inside a UTF-8 character that further bytes could complete."""
    for back in range(1, min(4, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:
            return back < _character_bytes(byte)
    return False


def _character_bytes(first: int) -> int:
    """Return how many bytes a UTF-8 character has that begins with this one."""
    if first >= 0xF0:
        return 4
    if first >= 0xE0:
        return 3
    return 2 if first >= 0xC0 else 1


class AnswerStream:
    """An answer on its way: an event stream, or JSON in one piece. `tap` gets each piece before it is read."""

    def __init__(
        self,
        response: httpx2.Response,
        wire: Wire,
        endpoint: Endpoint,
        deadlines: Deadlines,
        end: float,
        sent_bytes: int,
        seen: Callable[[], int] | None,
        most_bytes: int = MOST_BYTES,
        most_output: int | None = None,
        reader: UsageReader | None = None,
        offered: frozenset[str] = frozenset(),
        cache: CachePlace | None = None,
    ) -> None:
        """Take over a response with status 200, read up to its headers.

        `end` is the call's deadline on the event loop's clock. `sent_bytes`, the size of the request's body, bounds the
        usage from below; `seen` returns how many bytes of text in it the model was certainly shown, and `most_output`
        is the answer's own limit. `reader` reads the usage a second time. `offered` are the names of the tools that the
        model may call, as far as they are known. `cache` is what earlier answers have shown of how it is counted.
        """
        self._most_bytes = most_bytes
        self._sent_bytes = sent_bytes
        self._seen = seen
        self._most_output = most_output
        self._reader = reader
        self._wire = wire
        self.headers = response.headers
        self.tap: Callable[[bytes], object] = bytes
        # Asked for `identity`, few endpoints encode the answer; where none does, nothing has to be decoded.
        self._body = response.aiter_bytes() if "content-encoding" in self.headers else response.aiter_raw()
        self._endpoint = endpoint
        self._deadlines = deadlines
        self._end = end
        self._received = 0
        self._tail = b""
        self._answer = wire.answer()
        self._answer.offered = offered
        if cache is not None:
            self._answer.cache = cache
        self._notes: list[str] = []
        self._late_error = False
        self._odd: ModelError | None = None  # the first event that is no JSON object
        self._skipped = 0
        self._any_usable = False
        self._completion: Completion | None = None

    @property
    def ended(self) -> bool:
        return self._answer.ended

    @property
    def completion(self) -> Completion:
        """The complete answer; only after the iteration has ended by itself."""
        if self._completion is None:
            raise RuntimeError("the answer is complete only after the stream was read to its end")
        return self._completion

    async def __aiter__(self) -> AsyncGenerator[Delta]:
        """Yield what arrives; raises ModelError, and nothing else, when the answer breaks off or is not one."""
        try:
            async for delta in self._read():
                yield delta
        except ModelError:
            raise
        except Exception as error:  # the call was sent and has to be settled, whatever is wrong with the answer
            log.exception("reading the answer of %s failed", self._endpoint.place)
            raise self._fault(error) from error

    async def _read(self) -> AsyncGenerator[Delta]:
        content_type = self.headers.get("content-type", "").lower()
        if content_type.startswith("text/event-stream"):
            async for delta in self._events():
                yield delta
        else:
            yield self._read_whole(b"".join([piece async for piece in self._pieces()]), content_type)
        self._completion = self._complete()

    def _complete(self) -> Completion:
        request_id = self.headers.get("x-request-id") or self.headers.get("request-id")
        return self._answer.complete(
            request_id=request_id,
            sent_bytes=self._sent_bytes,
            seen=self._seen,
            most_output=self._most_output,
            notes=tuple(self._notes),
            reader=self._reader,
        )

    async def _events(self) -> AsyncGenerator[Delta]:
        reader = EventReader()
        pieces = self._pieces()
        try:
            async for piece in pieces:
                is_first = self._received == len(piece)
                if is_first and piece.lstrip().startswith((b"{", b"[", b"<")):  # no line of an event begins so
                    rest = [later async for later in pieces]
                    yield self._read_whole(b"".join([piece, *rest]), content_type="")
                    return
                for data in reader.feed(piece):
                    is_done = data.strip() == "[DONE]"
                    if not is_done:
                        yield self._event(data, is_error=data in reader.errors)
                    if is_done or self._answer.over:
                        self._close()
                        self._check_ended(reader)
                        await self._drain()
                        return
                yield READ
        except LineTooLongError as error:
            raise self._endpoint.error("too large", what=error) from None
        self._check_tail()
        for data in reader.finish():
            if data.strip() == "[DONE]":
                self._close()
            else:
                yield self._event(data, is_error=data in reader.errors)
        self._check_ended(reader)

    def _close(self) -> None:
        """Take an answer that came to its end without a finish reason, if it is whole."""
        if not self._answer.ended and self._answer.close():
            self._notes.append("the stream ended without a finish reason; the answer looks whole")

    def _check_ended(self, reader: EventReader) -> None:
        if not self._answer.ended and self._odd is not None and not self._any_usable:
            raise self._odd
        if self._skipped:
            self._notes.append(f"skipped {self._skipped} event(s) that are no JSON object")
        if not self._answer.ended:
            raise self._dropped(f"ended without a finish reason after {self._received:,} bytes")
        self._note_replaced(reader.replaced)

    async def _drain(self) -> None:
        """Read the little that is left, so that the next call can use the connection."""
        end = self._end
        self._end = min(self._end, anyio.current_time() + _AFTER_END_S)
        async for _ in self._pieces():
            pass
        self._end = end

    def _note_replaced(self, replaced: int) -> None:
        if replaced:
            self._notes.append(f"replaced {replaced} invalid UTF-8 sequence(s) by U+FFFD")

    def _event(self, data: str, *, is_error: bool = False) -> Delta:
        """Take in one event; an error after the finish reason is only noted, because the answer is complete."""
        try:
            return self._chunk(data, is_error=is_error)
        except ModelError as error:
            if not self._answer.ended:
                raise
            if not self._late_error:  # there may be a million more
                self._late_error = True
                self._notes.append(f"after the answer: {error}")
            return Delta()

    def _chunk(self, data: str, *, is_error: bool) -> Delta:
        """Take in one event; one that is no JSON object is skipped, as servers send those to keep a stream alive."""
        if not data.strip():
            return Delta()
        try:
            chunk = json_text.decode(data)
        except json_text.NotJsonError:
            if is_error:
                raise self._endpoint.error_in_body(data, self.headers) from None
            begins = repr(self._endpoint.clean(data[:80]))
            return self._skip(self._endpoint.error("event not JSON", begins=begins))
        fields = json_text.as_object(chunk)
        if fields is None and is_error:
            raise self._endpoint.error_in_body(chunk, self.headers)
        if fields is None:
            return self._skip(self._endpoint.error("event not an object", what=type(chunk).__name__))
        self._any_usable = True
        error = self._wire.fault(fields)
        if not error and is_error:
            error = fields
        if error:
            raise self._error_in(fields, error)
        return self._answer.add(fields)

    def _error_in(self, fields: Mapping[str, Any], error: Any) -> ModelError:
        """Return the error in an event or a body, with the usage that the provider reports in it."""
        claims_use = self._answer.read_usage_of(fields)
        failure = self._endpoint.error_in_body(error, self.headers)
        return with_usage(failure, self._complete()) if claims_use else failure

    def _skip(self, why: ModelError) -> Delta:
        self._odd = self._odd or why
        self._skipped += 1
        return Delta()

    def _read_whole(self, content: bytes, content_type: str) -> Delta:
        head = content[:64].lstrip().lower()
        if head.startswith(b"<") or (content_type.startswith("text/html") and not head.startswith(b"{")):
            raise self._endpoint.error("web page", begins=self._endpoint.begins(content))
        if head.startswith((b"data:", b"event:", b"error:", b"id:", b":")):
            return self._unlabelled_events(content)
        text, replaced = json_text.decode_text(content)
        self._note_replaced(replaced)
        try:
            answer = json_text.decode(text)
        except json_text.NotJsonError:
            if head.startswith((b"{", b"[")):
                raise self._endpoint.error(
                    "dropped", what=f"is half a body: {self._received:,} bytes of JSON without an end"
                ) from None
            raise self._endpoint.error("not JSON", begins=self._endpoint.begins(content)) from None
        if isinstance(answer, list):
            return self._listed_events(answer)
        fields = json_text.fields_of(answer)
        error = self._wire.fault(fields)
        if error:
            raise self._error_in(fields, error)
        if not self._wire.is_answer(fields):
            raise self._endpoint.no_answer(answer, self._wire.part)
        return self._answer.add(fields)

    def _listed_events(self, answer: Any) -> Delta:
        """Take in the events of a stream as one list: what Google sends where `alt=sse` gets lost."""
        events = json_text.objects_in(answer)
        if not events or not any(self._wire.fault(event) or self._wire.is_answer(event) for event in events):
            raise self._endpoint.no_answer(answer, self._wire.part)
        deltas: list[Delta] = []
        for event in events:
            error = self._wire.fault(event)
            if error:
                raise self._error_in(event, error)
            deltas.append(self._answer.add(event))
        if not self._answer.ended:
            raise self._dropped("(a list of events) ended before its finish reason")
        return Delta(*("".join(pieces) for pieces in zip(*map(astuple, deltas), strict=True)))

    def _unlabelled_events(self, content: bytes) -> Delta:
        reader = EventReader()
        pieces = (content[at : at + _FED_BYTES] for at in range(0, len(content), _FED_BYTES))
        for data in chain(*map(reader.feed, pieces), reader.finish()):
            if data.strip() == "[DONE]":
                self._close()
            else:
                self._event(data, is_error=data in reader.errors)
        self._check_tail()
        if not self._answer.ended and self._odd is not None and not self._any_usable:
            raise self._odd
        if not self._answer.ended:
            raise self._dropped("(a stream sent as plain text) ended before its finish reason")
        return Delta()

    def _check_tail(self) -> None:
        if ends_inside_character(self._tail) and not self._answer.ended:
            raise self._endpoint.error(
                "dropped", what=f"stopped in the middle of a UTF-8 character, after {self._received:,} bytes"
            )

    def _dropped(self, what: str) -> ModelError:
        return self._endpoint.error("dropped", what=what)

    def _fault(self, error: Exception) -> ModelError:
        return self._endpoint.fault(error, "Reading the answer of", sent=True, answered=self._received > 0)

    async def _pieces(self) -> AsyncGenerator[bytes]:
        """Yield what arrives, until the end or a deadline. What breaks after the finish reason is only noted."""
        import httpx2

        error: ModelError
        while True:
            left = self._end - anyio.current_time()
            allowed = min(self._deadlines.between_s, left)
            piece = None
            try:
                with anyio.move_on_after(max(allowed, 0)) as waiting:
                    piece = await anext(self._body, None)
            except httpx2.HTTPError as broken:
                if ends_inside_character(self._tail):
                    what = f"broke off in the middle of a UTF-8 character, after {self._received:,} bytes"
                else:
                    what = f"broke off after {self._received:,} bytes ({self._endpoint.cause(broken)})"
                error = self._dropped(what)
                break
            except Exception as unexpected:
                log.exception("receiving the answer of %s failed", self._endpoint.place)
                error = self._fault(unexpected)
                break
            if waiting.cancelled_caught:
                what, seconds = "no further byte of the answer came", self._deadlines.between_s
                if left <= self._deadlines.between_s:
                    what, seconds = "the answer was not complete", self._deadlines.total_s
                error = self._endpoint.error("timeout", what=what, seconds=f"{seconds:g}", answered=self._received > 0)
                break
            if piece is None:
                return
            self._received += len(piece)
            self._tail = (self._tail + piece)[-4:]
            if self._received > self._most_bytes:
                raise self._endpoint.error("too large", what=f"more than {self._most_bytes:,} bytes")
            self.tap(piece)
            yield piece
        if not self._answer.ended:
            raise error
        self._notes.append(f"after the answer: {error}")
