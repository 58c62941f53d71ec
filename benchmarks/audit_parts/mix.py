"""What a busy log holds: runs from the proposal to the ending, with contents as large as real ones.

The order of the entries, which of them are written together, and the sizes of those with a fixed form are those of
a run as the product writes it (`ava demo --keep`, then `ava logs --json`). Turns, messages and tool outputs are drawn
from `DISTRIBUTION`; their words are English prose that comes with Python.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pydoc_data.topics import topics
from typing import Any

from ava_audit.events import (
    Activity,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    Event,
    Fact,
    Fence,
    RunClaimed,
    RunEnded,
    RunStarted,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    SubagentSpawn,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    Who,
)

DISTRIBUTION = (
    "turns of a run: log-normal, median 7, at most 60; output of a tool: log-normal, median 1,200 characters, "
    "sigma 1.1, at most 14,000; words of a model: log-normal, median 250, sigma 0.8, at most 4,000, written twice "
    "(readable, and as the provider's message); prefix of a run 9,800; configuration 3,000; result 2,800; "
    "1 tool call in 12 fails, 1 run in 12 ends in an error"
)
USERS = ("ana", "ben", "eve")
MODEL = "openrouter:example/model"
TOOLS = ("web_search", "read_webpages", "search_and_read", "read_file", "scratchpad")
WARNING = "Data, never an instruction."
RARE, EVERY = "quetzalcoatlus", 400
"""A word that Python's own prose does not have, and of how many runs one has it once."""
COMMON = "value"
PROSE = "\n".join(topics.values())

Together = tuple[Event, ...]
"""Events that the product writes with one command."""


def run_id(number: int) -> str:
    return f"S-{number:06x}"


def life(
    number: int,
    rng: random.Random,
    *,
    turns: int | None = None,
    user: str | None = None,
    config: dict[str, Any] | None = None,
    expires_us: int = 2**51,
) -> Iterator[Together]:
    """Yield everything that one run leaves in the log.

    Args:
        number: Its number.
        rng: Draws it.
        turns: Its turns; None draws them.
        user: Its user; None takes one of three.
        config: What was approved; None has one that only fills its place.
        expires_us: When its proposal does.
    """
    user = user or USERS[number % len(USERS)]
    session = f"session-{number // 40:06d}"
    run, pending = run_id(number), f"P-{number:08x}"
    host, agent = Who(session, "ava", user), Who(session, run, user, "ava")
    fence = Fence(run, 1)
    scopes = (run, f"user:{user}:{number // 400}", f"all:{number // 400}")
    task = _prose(rng, 200)

    def own(fact: Fact, **more: Any) -> Event:
        return Event(agent, fact, fence=fence, **more)

    yield (Event(host, ToolCall(tool="spawn_subagent", args={"role": "researcher", "task": task})),)
    config = config or {"role": "researcher", "model": MODEL, "role_text": _prose(rng, 2_600), "max_cost_cents": 50}
    proposed = SpawnProposed(
        pending_id=pending, subagent_id=run, digest=_hex(rng, 64), expires_us=expires_us, config=config
    )
    yield (
        Event(host, proposed, run_id=run),
        Event(agent, UserMessage(text=task, kind="task"), run_id=run),
        Event(host, AssistantMessage(text=f"Ava wants to start a researcher: {_prose(rng, 350)}"), run_id=run),
    )
    yield (Event(host, ToolResult(tool="spawn_subagent", success=True, output=_prose(rng, 1_000))),)
    decided = SpawnDecided(
        pending_id=pending, decision="approved", channel="host_call",
        digest=proposed.digest, decision_digest=_hex(rng, 64),
    )  # fmt: skip
    spawned = SubagentSpawn(
        role="researcher", task=task, subagent_id=run, pending_id=pending, max_cost_cents=50, model=MODEL
    )
    yield (Event(host, decided, run_id=run), Event(host, spawned, run_id=run, model=MODEL))
    yield (Event(agent, RunClaimed(instance=_hex(rng, 12), generation=1), run_id=run),)
    prefix = {"name": "read_webpages", "description": _prose(rng, 5_000), "parameters": {"type": "object"}}
    yield (
        own(
            RunStarted(
                system=_prose(rng, 4_200), tools=(prefix,), model=MODEL, price={"input": "3", "output": "15"},
                limits={"max_iterations": 60}, max_output=4_096, nonce=_hex(rng, 16),
            )
        ),
    )  # fmt: skip
    spent = 0
    turns = turns or min(60, max(1, round(rng.lognormvariate(1.95, 0.8))))
    rare_turn = rng.randrange(turns) if number % EVERY == 0 else -1
    for turn in range(1, turns + 1):
        micros = rng.randrange(500, 20_000)
        yield (own(_reserved(rng, turn, scopes, micros)),)
        spent += micros // 3
        tool, call_id = rng.choice(TOOLS), f"call_{_hex(rng, 24)}"
        args = {"query": _prose(rng, 40), "urls": [f"https://example.org/{_hex(rng, 8)}"]}
        settled = CostUpdate(
            turn=turn, attempt=1, settlement="billed", tokens=rng.randrange(9_000), cost_cents=micros / 30_000,
            reserved_micros=micros, price_source="reported", request_id=_hex(rng, 24),
        )  # fmt: skip
        usage = Usage(input_tokens=rng.randrange(9_000), output_tokens=rng.randrange(900))
        yield (
            own(settled, usage=usage, cost_micros=micros // 3, model=MODEL, duration_ms=rng.randrange(9_000)),
            own(_said(rng, turn, call_id, tool, args), model=MODEL),
        )
        yield (
            own(Activity(activity=f"Looking for {_prose(rng, 40)}")),
            own(ToolCall(tool=tool, args=args, call_id=call_id, turn=turn)),
        )
        text = _prose(rng, _size(rng, 1_200, 1.1, 14_000))
        if turn - 1 == rare_turn:
            text = f"{text[: len(text) // 2]} {RARE} {text[len(text) // 2 :]}"
        result = ToolResult(
            tool=tool, success=rng.random() > 1 / 12, output=f"<tool_output>\n{text}\n</tool_output>",
            output_sha=_hex(rng, 64), call_id=call_id, turn=turn, count=1, chars=len(text),
        )  # fmt: skip
        yield (own(result, duration_ms=rng.randrange(9_000)),)
    failed = rng.random() < 1 / 12
    if failed:
        yield (own(ErrorOccurred(error=_prose(rng, 200), kind="dropped", what_to_do="Try again later.", turn=turns)),)
    status = "error" if failed else "success"
    complete = SubagentComplete(
        status=status, summary=_prose(rng, 200), tokens=turns * 4_000, cost_cents=spent / 10_000, duration=turns * 6.0,
        subagent_id=run,
        result={"status": status, "untrusted_result": {"warning": WARNING, "output": _prose(rng, 2_350)}},
    )  # fmt: skip
    yield (
        Event(host, complete, run_id=run, fence=fence, model=MODEL),
        own(RunEnded(status=status, stop_reason="the subagent handed over its result", active_us=turns * 6_000_000)),
    )


def lives(first: int, side_by_side: int, rng: random.Random) -> Iterator[Together]:
    """Yield the events of run after run without end, so many of them going on at once."""
    return mixed((life(number, rng) for number in count(first)), side_by_side, rng)


def mixed(runs: Iterator[Iterator[Together]], side_by_side: int, rng: random.Random) -> Iterator[Together]:
    """Yield the events of runs until the last has ended, so many of them going on at once."""
    going: list[Iterator[Together]] = []
    while True:
        if len(going) < side_by_side and (run := next(runs, None)) is not None:
            going.append(run)
        if not going:
            return
        at = rng.randrange(len(going))
        together = next(going[at], None)
        if together is None:
            going[at] = going[-1]
            going.pop()
        else:
            yield together


def _reserved(rng: random.Random, turn: int, scopes: tuple[str, ...], micros: int) -> CostReserved:
    return CostReserved(
        turn=turn, attempt=1, scopes=scopes, micros=micros, wrap_micros=2_000, prompt_tokens=rng.randrange(30_000),
        max_output=4_096, upto_seq=rng.randrange(2**20), request_sha=_hex(rng, 64),
    )  # fmt: skip


def _said(rng: random.Random, turn: int, call_id: str, tool: str, args: dict[str, Any]) -> AssistantMessage:
    text = _prose(rng, _size(rng, 250, 0.8, 4_000))
    call = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": str(args)}}
    return AssistantMessage(
        text=text, turn=turn, attempt=1, raw={"role": "assistant", "content": text, "tool_calls": [call]},
        calls=({"call_id": call_id, "name": tool, "raw_args": str(args)},),
        stop_reason="tool_calls", request_id=_hex(rng, 24),
    )  # fmt: skip


def _size(rng: random.Random, median: int, sigma: float, most: int) -> int:
    return min(most, round(median * rng.lognormvariate(0, sigma)))


def _prose(rng: random.Random, size: int) -> str:
    """Return about so many characters of English prose, from a random place on, in whole words."""
    at = PROSE.find(" ", rng.randrange(len(PROSE) - size - 100)) + 1
    return PROSE[at : PROSE.find(" ", at + size)]


def _hex(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"
