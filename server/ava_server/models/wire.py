"""The seam between a model over HTTP and the format that its provider speaks: how a request is written, an answer read.

A wire is a value: what shapes a request's bytes beside the request itself stands in its parameters, so that a request
can be made again from the log, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ava_server.models import wire_json
from ava_server.models.base import Completion, Delta, Request, ToolUse, Turn

MOST_CALLS = 128
"""Tool calls that are kept of one answer; no model asks for as many."""
_LONGEST_WORD = 200
"""Characters of a provider's id or reason that are kept: they are for people, and go into every log line."""


class Answer(Protocol):
    """An answer that grows with every event of a stream, or is taken whole."""

    @property
    def ended(self) -> bool:
        """Whether the provider has said why the answer ended: what comes after that takes nothing away from it."""
        ...

    @property
    def over(self) -> bool:
        """Whether the stream has said that nothing more comes."""
        ...

    def add(self, event: Mapping[str, Any], /) -> Delta:
        """Take in one event, or a whole answer, and return what it brought for the activity line."""
        ...

    def complete(
        self, *, request_id: str | None, sent_bytes: int, unseen: Callable[[], int], notes: tuple[str, ...] = ()
    ) -> Completion:
        """Return the answer as it is to be stored: everything in it is plain, finite JSON.

        Args:
            request_id: The id from the response's headers, for answers that carry none.
            sent_bytes: The size of the request's body.
            unseen: Returns how many of those bytes the model may not have seen: earlier thinking, signatures.
            notes: What was odd on the way.
        """
        ...


class Wire(Protocol):
    """A format of requests and answers."""

    @property
    def speaks(self) -> str:
        """What it is called, for people, e.g. `chat completions`."""
        ...

    @property
    def part(self) -> str:
        """The field that every whole answer has."""
        ...

    def url(self, base_url: str) -> str:
        """Return where answers are asked for, under an API's address."""
        ...

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers of a request beside its content type."""
        ...

    def message(self, turn: Turn) -> Mapping[str, Any]:
        """Return what a turn is on the wire, for counting its bytes."""
        ...

    def body(self, request: Request) -> dict[str, Any]:
        """Return the whole body of a request, in a fixed order; it depends on nothing but the request and the wire."""
        ...

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """Tell whether the model can be told to think about what follows these turns."""
        ...

    def answer(self) -> Answer:
        """Return an empty answer, to be filled."""
        ...

    def fault(self, event: Mapping[str, Any]) -> Any:
        """Return the error that stands in an event or in a whole answer's place, or None."""
        ...

    def is_answer(self, whole: Mapping[str, Any]) -> bool:
        """Tell whether JSON that came in one piece is an answer."""
        ...

    def unseen(self, raw: Mapping[str, Any]) -> int:
        """Return how many bytes of an earlier answer a provider need not show to the model again."""
        ...

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> dict[str, Any]:
        """Return an answer as a provider would have sent it."""
        ...


def tool_use(call_id: str, name: str, raw_args: str) -> ToolUse:
    """Return a tool call with its arguments read, as far as they are a JSON object.

    A pure function of three strings: the log keeps these three, and a resumed run reads the same call from them.
    """
    return ToolUse(call_id, name, wire_json.decode_object(raw_args), raw_args)


def word(said: str | None) -> str | None:
    """Return a provider's word as the log can hold it, on one line and with nothing in it that steers a screen."""
    text = wire_json.whole_text((said or "")[:_LONGEST_WORD])[0]
    return "".join(char if char.isprintable() else " " for char in text).strip() or None


def told_apart(ids: Iterable[str]) -> list[str]:
    """Return an id of its own for each call: results are matched by it, and servers send none, or one of them twice."""
    taken: dict[str, None] = {}
    for number, given in enumerate(ids):
        identity = given or f"call_{number}"
        while identity in taken:
            identity = f"{identity}_{number}"
        taken[identity] = None
    return list(taken)


def too_many(found: int) -> tuple[str, ...]:
    """Return the note about calls that were not kept, if there were any."""
    return (f"kept the first {MOST_CALLS} of {found:,} tool calls",) if found > MOST_CALLS else ()
