"""What a hostile provider answers, and how each call is booked then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ava_server.models.wires.wire import MOST_CALLS
from support.model_server import Gate, Raw, Say, Step, events
from support.runtime import DONE

USAGE = {"prompt_tokens": 3_000, "completion_tokens": 200}
BY_TABLE = 3_000 * 3 + 200 * 15
FULL: Literal["full"] = "full"
"""Booked as much as was reserved."""


def answer(**usage: Any) -> Say:
    """The result, handed over with these figures."""
    return Say(calls=[DONE], usage={**USAGE, **usage})


def stream(*chunks: bytes) -> Raw:
    return Raw(chunks)


def data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


GOOD = answer()
WHOLE = events(GOOD)
HEAD, REPORT, STOP = WHOLE[:-2], WHOLE[-2], WHOLE[-1]
"""An answer in pieces: its words up to the finish reason, its figures, and the word that it is over."""
ERROR = {"error": {"message": "the engine has crashed", "code": 503}}


def report(**usage: Any) -> bytes:
    return data({"choices": [], "usage": {**USAGE, **usage}})


def name_calls(identity: str, number: int = 1) -> Raw:
    """A note taken under this id, and the same id for each of some more."""
    say = Say(calls=[("scratchpad", {"note": f"note {n}"}) for n in range(number)], usage=USAGE, fragment=999)
    return stream(*(_renamed(chunk, identity, number) for chunk in events(say)))


def _renamed(chunk: bytes, identity: str, number: int) -> bytes:
    for n in range(number):
        chunk = chunk.replace(f'"id": "call_0_{n}"'.encode(), f'"id": "{identity}"'.encode())
    return chunk


OVERRUN = "cost more than the provider's own limits allow"


@dataclass(frozen=True)
class Case:
    """What the provider does, what is booked for each call, and what is said about it.

    `booked` has for each call its cost in micro-USD, or that it is booked in full.
    """

    steps: Sequence[Step]
    booked: Sequence[int | Literal["full"]]
    says: str = ""
    status: str = "success"
    overrun: bool = False
    start: dict[str, Any] = field(default_factory=dict)


CASES = {
    # -- tokens
    "more tokens than there can be": Case([answer(prompt_tokens=10**12)], [FULL], "prompt_tokens is 1000000000000"),
    "tokens beyond any number": Case([answer(completion_tokens=float("inf"))], [FULL], "completion_tokens is inf"),
    "more output than was asked for": Case(
        [answer(completion_tokens=50_000)], [9_000 + 750_000], OVERRUN, overrun=True
    ),
    "a prompt far beyond what was sent": Case(
        [answer(prompt_tokens=400_000)], [1_200_000 + 3_000], OVERRUN, overrun=True
    ),
    "negative tokens": Case([answer(completion_tokens=-200)], [FULL], "completion_tokens is -200"),
    "a negative prompt": Case([answer(prompt_tokens=-1)], [FULL], "prompt_tokens is -1"),
    "negative cached tokens": Case(
        [answer(prompt_tokens_details={"cached_tokens": -9_999})], [FULL], "cached_tokens is -9999"
    ),
    "everything was cached, and more": Case(
        [answer(prompt_tokens_details={"cached_tokens": 5_000})],
        [3_000 * 3 + 1_500 + 200 * 15],
        "cached tokens reported beside the prompt",
    ),
    "fewer than none: an answer of no tokens": Case(
        [answer(completion_tokens=0)], [FULL], "0 tokens for an answer that is not empty"
    ),
    "tokens as words": Case([answer(prompt_tokens="three thousand")], [FULL], "prompt_tokens is three thousand"),
    "no usage": Case([Say(calls=[DONE], usage=None)], [FULL], "the provider reported no usage"),
    "an empty usage": Case([Say(calls=[DONE], usage={})], [FULL], "the provider reported no usage"),
    # -- when the figures come
    "figures in the last piece only": Case([stream(*HEAD, report(), STOP)], [BY_TABLE]),
    "figures that grow with every piece": Case(
        [stream(*(piece for n, chunk in enumerate(HEAD) for piece in (chunk, report(completion_tokens=n))),
                report(), STOP)],
        [BY_TABLE],
    ),
    "figures that are taken back": Case(
        [stream(*HEAD, report(), report(prompt_tokens=2_000, completion_tokens=1), STOP)], [BY_TABLE]
    ),
    "a cost that is taken back": Case([stream(*HEAD, report(cost=0.05), report(cost=0.001), STOP)], [50_000]),
    "figures after the end": Case([stream(*HEAD, STOP, report())], [FULL], "the provider reported no usage"),
    # -- cost
    "a cost in the reply": Case([answer(cost=0.0123)], [12_300]),
    "a cost of nothing for a model with a price": Case([answer(cost=0)], [BY_TABLE]),
    "a negative cost": Case([answer(cost=-5)], [BY_TABLE], "reported cost not counted: -5"),
    "a cost that is no number": Case([answer(cost=float("nan"))], [BY_TABLE], "reported cost not counted: nan"),
    "a cost in words": Case([answer(cost="0.0001")], [BY_TABLE], "reported cost not counted: 0.0001"),
    "a cost beyond all money": Case([answer(cost=10**30)], [BY_TABLE], "reported cost not counted: 1000"),
    "a cost of a thousand dollars": Case([answer(cost=1_000)], [10**9], OVERRUN, overrun=True),
    "a cost without figures": Case([Say(calls=[DONE], usage={"cost": 0.0001})], [FULL], "prompt_tokens is missing"),
    "a cost above the worst case, without figures": Case(
        [Say(calls=[DONE], usage={"cost": 0.45})], [450_000], OVERRUN, overrun=True
    ),
    # -- time, and lines
    "slower than the run's time": Case(
        [Raw(HEAD[:3], missing=9, stall=Gate()), GOOD], [FULL, BY_TABLE], "timeout of 3 s", "timeout",
        start={"timeout": 3},
    ),
    "a drip without an end": Case(
        [Raw([b": still here\n\n"] * 400, chunked=True, pause_s=0.02), GOOD], [FULL, BY_TABLE], "timeout of 3 s",
        "timeout", start={"timeout": 3},
    ),
    "a line that drops in the middle": Case(
        [Raw(HEAD[:4], chunked=True, cut=True), GOOD], [FULL, BY_TABLE], "broke off after"
    ),
    "a line that drops before the figures": Case(
        [Raw(HEAD, chunked=True, cut=True)], [FULL], "after the answer: "
    ),
    "a line that drops within the figures": Case(
        [Raw([*HEAD, REPORT[:30]], chunked=True, cut=True)], [FULL], "the provider reported no usage"
    ),
    "an end without a reason": Case([stream(*HEAD[:-1], STOP), GOOD], [FULL, BY_TABLE], "without a finish reason"),
    # -- the answer
    "the answer twice in one stream": Case(
        [stream(*HEAD, REPORT, *HEAD, REPORT, STOP), GOOD], [BY_TABLE, BY_TABLE], "the arguments are not a JSON object"
    ),
    "the answer twice, the second after the end": Case([stream(*WHOLE, *WHOLE)], [BY_TABLE]),
    "every piece twice": Case(
        [stream(*(chunk for chunk in WHOLE[:-1] for _ in range(2)), STOP), GOOD], [BY_TABLE, BY_TABLE],
        "the arguments are not a JSON object",
    ),
    "an error as the answer": Case(
        [Raw([json.dumps(ERROR).encode()], "application/json"), GOOD], [FULL, BY_TABLE], "the engine has crashed"
    ),
    "an error after the answer": Case([stream(*HEAD, REPORT, data(ERROR))], [BY_TABLE], "the engine has crashed"),
    "an error in the middle of the answer": Case(
        [stream(*HEAD[:4], data(ERROR)), GOOD], [FULL, BY_TABLE], "the engine has crashed"
    ),
    "an error that says what it used": Case(
        [stream(*HEAD[:4], data({**ERROR, "usage": USAGE})), GOOD], [BY_TABLE, BY_TABLE], "the engine has crashed"
    ),
    "an error that says it used more than it can have": Case(
        [stream(*HEAD[:4], data({**ERROR, "usage": {**USAGE, "prompt_tokens": 400_000}})), GOOD], [FULL, BY_TABLE],
        "the engine has crashed",
    ),
    "an error that says what it cost": Case(
        [Raw([json.dumps({**ERROR, "usage": {**USAGE, "cost": 0.0123}}).encode()], "application/json"), GOOD],
        [12_300, BY_TABLE], "the engine has crashed",
    ),
    "an error with every answer": Case(
        [Raw([json.dumps(ERROR).encode()], "application/json")] * 2, [FULL, FULL], "the engine has crashed", "error"
    ),
    "a huge id": Case([name_calls("x" * 30_000), GOOD], [BY_TABLE, BY_TABLE]),  # no model need see it
    "one id for all calls": Case([name_calls("same", 3), GOOD], [BY_TABLE, BY_TABLE]),
    "an id that no entry can hold": Case(
        [name_calls("x" * 2_500_000)], [BY_TABLE], "an answer too large to be kept", "error"
    ),
    "a line that nothing can hold": Case(
        [name_calls("x" * 9_000_000)], [FULL], "a line of more than", "error"
    ),
    "a huge id of the answer": Case(
        [stream(*(chunk.replace(b"chatcmpl-1", b"y" * 9_999) for chunk in WHOLE))], [BY_TABLE]
    ),
    "two hundred calls at once": Case(
        [Say(calls=[("scratchpad", {"note": str(n)}) for n in range(200)], usage=USAGE), GOOD], [BY_TABLE, BY_TABLE],
        f"kept the first {MOST_CALLS} of 200 tool calls", "tool_limit", start={"max_tool_calls": 10},
    ),
}  # fmt: skip
