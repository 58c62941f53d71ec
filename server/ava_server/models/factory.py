"""Makes callable models: from a choice, from the parameters that the log keeps, or from a script for the demo."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import anyio
import anyio.lowlevel

from ava_audit.events import Usage
from ava_server.core.errors import ConfigError, ModelError
from ava_server.models import json_text, offline
from ava_server.models import tokens as bounds
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    Completion,
    Delta,
    Model,
    ReportedUsage,
    Request,
    ToolTurn,
    ToolUse,
    Turn,
    UserTurn,
)
from ava_server.models.clients import ClientPool
from ava_server.models.selection import KNOWN_URLS, UNKNOWN, Choice, Thinking, host_of, marks_cache, thinking_of
from ava_server.models.wires import chat
from ava_server.models.wires.base import tool_use

if TYPE_CHECKING:
    from ava_server.models.wires.base import Wire


NO_TOKENS = Usage()
_PLACE = re.compile(r"\{(?:words|source)\}")


@dataclass(frozen=True)
class Call:
    """A tool call that the script asks for; `raw`, instead of the arguments, makes a broken one."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw: str | None = None


@dataclass(frozen=True)
class Step:
    """One answer of the script.

    Attributes:
        text: The model's words; each line is one delta.
        calls: The tools it asks for.
        usage: Tokens that it reports; None reports none.
        cost_micros: The cost that it reports, in micro-USD.
        thinking: Shown as a delta before the words.
        error: Raised instead of an answer.
        reached: Set when the call has begun.
        until: The answer waits for this event.
        stop_reason: Why the answer ended; by default `tool_calls` with calls and `stop` without.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage | None = NO_TOKENS
    cost_micros: int | None = None
    thinking: str = ""
    error: ModelError | None = None
    reached: anyio.Event | None = field(default=None, compare=False)
    until: anyio.Event | None = field(default=None, compare=False)
    stop_reason: str | None = None


ScriptStep = Step | Callable[[Request], Step]
Script = Sequence[ScriptStep | Sequence[ScriptStep]]


class ScriptedModel:
    """Plays a script, and records the requests that it gets."""

    def __init__(self, steps: Script, *, name: str = "scripted:demo") -> None:
        """Take the script.

        Args:
            steps: One entry for each turn: a step, a function of the request that makes one, or a list of
                those for the attempts of that turn (the last one stays).
            name: `provider:id`, as the log has it.
        """
        self._steps = tuple(steps)
        self._name = name
        self._attempts: Counter[int] = Counter()
        self.requests: list[Request] = []

    @property
    def name(self) -> str:
        """`provider:id`."""
        return self._name

    def encode(self, request: Request) -> bytes:
        """Return the request's body as a chat endpoint would get it."""
        return json_text.encode({**chat.body(request), "max_tokens": request.max_output})

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """It never thinks."""
        return False

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        """Return an upper bound of what the call can use."""
        return bounds.bound(request, chat.message, known)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer with this text and these calls as the provider would have sent it."""
        return chat.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[ScriptedStream]:
        """Play the step for this request.

        Raises:
            ModelError: The step is an error, or the script is over.
        """
        self.requests.append(request)
        turn = sum(isinstance(turn, AssistantTurn) for turn in request.turns)
        step = self._step(turn, request)
        if step.reached is not None:
            step.reached.set()
        if step.until is not None:
            await step.until.wait()
        await anyio.lowlevel.checkpoint()
        if step.error is not None:
            raise step.error
        yield ScriptedStream(step, turn)

    def _step(self, turn: int, request: Request) -> Step:
        if turn >= len(self._steps):
            raise ModelError(
                f"The script of {self._name} has {len(self._steps)} steps and was asked for step {turn + 1}.",
                kind="bad_request",
                sent=False,
                answered=False,
                retryable=False,
                what_to_do="Write a longer script.",
            )
        entry = self._steps[turn]
        if not isinstance(entry, Step) and not callable(entry):
            entry = entry[min(self._attempts[turn], len(entry) - 1)]
            self._attempts[turn] += 1
        return entry if isinstance(entry, Step) else entry(request)


class ScriptedStream:
    """The deltas of a scripted answer, and then the answer."""

    def __init__(self, step: Step, turn: int) -> None:
        """Take the step and how many answers came before it."""
        self._step = step
        self._turn = turn
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The answer; only after the iteration has ended."""
        if self._completion is None:
            raise RuntimeError("the answer is complete only after the stream was read to its end")
        return self._completion

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the step's thinking and words."""
        step = self._step
        if step.thinking:
            yield Delta(thinking=step.thinking)
        for line in step.text.splitlines(keepends=True):
            await anyio.lowlevel.checkpoint()
            yield Delta(text=line)
        self._completion = complete(step, self._turn)


def demo_script() -> Script:
    """Return the script of `ava demo --scripted`: `demo_script.json`, filled in with what the tools returned."""
    steps = json.loads(files("ava_server.models").joinpath("demo_script.json").read_text(encoding="utf-8"))
    return [partial(_filled_in, step) for step in steps]


def _filled_in(step: Mapping[str, Any], request: Request) -> Step:
    """Return a step of the demo with `{words}`, `{source}` and `{findings}` replaced. Blocks for a moment."""
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    results = [turn for turn in request.turns if isinstance(turn, ToolTurn)]
    words = offline.salient(task)[:8]
    pieces = offline.quotes(piece for turn in results for piece in offline.passages(turn.name, turn.text))
    best = offline.best_passages(pieces, words, most=4, per_source=2)
    findings = [
        {
            "claim": f"{piece.source} has a passage about it",
            "quote": piece.text,
            "source_url": piece.location,
            "source_name": f"{piece.source}, {piece.place}" if piece.place else piece.source,
        }
        for piece in best
    ]
    values: dict[str, Any] = {
        "{words}": " ".join(words) or task[:80],
        "{source}": best[0].source if best else "no file",
        "{findings}": findings,
    }

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            if value in values:
                return values[value]
            return _PLACE.sub(lambda found: str(values[found[0]]), value)
        if isinstance(value, dict):
            return {key: fill(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [fill(item) for item in cast("list[Any]", value)]
        return value

    filled = fill(dict(step))
    return Step(text=filled["text"], calls=tuple(Call(call["name"], call["args"]) for call in filled["calls"]))


def complete(step: Step, turn: int) -> Completion:
    """Return the answer of a step; `turn` makes the ids of its calls unique."""
    written = [json_text.encode(dict(call.args)).decode() if call.raw is None else call.raw for call in step.calls]
    calls = tuple(
        tool_use(f"call_{turn}_{number}", call.name, raw_args)
        for number, (call, raw_args) in enumerate(zip(step.calls, written, strict=True))
    )
    return Completion(
        text=step.text,
        calls=calls,
        raw=chat.assistant_message(step.text, calls),
        usage=step.usage,
        cost_micros=step.cost_micros,
        stop_reason=step.stop_reason or ("tool_calls" if calls else "stop"),
        request_id=f"scripted-{turn}",
    )


_OPENROUTER, _OPENAI, _ANTHROPIC = (host_of(KNOWN_URLS[name]) for name in ("openrouter", "openai", "anthropic"))


def build_model(choice: Choice, clients: ClientPool) -> Model:
    """Return the chosen model, ready to be called."""
    return model_of(choice.name, parameters(choice), choice.api_key, clients)


def how_it_thinks(choice: Choice) -> Thinking:
    """Return how the chosen model is told to think."""
    if choice.base_url is None:
        return UNKNOWN
    # OpenRouter drops what a model does not support; other servers may refuse an unknown field.
    otherwise = Thinking("effort") if host_of(choice.base_url) == _OPENROUTER else UNKNOWN
    return thinking_of(choice.model_id, otherwise)


def parameters(choice: Choice) -> dict[str, Any]:
    """Return what shapes a request besides the request itself, and where it goes: plain JSON, for the log."""
    if choice.base_url is None:
        return {"wire": choice.wire}
    host = host_of(choice.base_url)
    common = {
        "wire": choice.wire,
        "base_url": choice.base_url,
        "stream": choice.streaming,
        "thinking": how_it_thinks(choice).as_dict(),
    }
    if choice.wire != "chat_completions":
        return common
    return {
        **common,
        "thinking_field": "reasoning" if host == _OPENROUTER else "reasoning_effort",
        # OpenAI's reasoning models refuse the older name, which all other servers expect.
        "output_field": "max_completion_tokens" if host == _OPENAI else "max_tokens",
        "extra": _for_openrouter(choice) if host == _OPENROUTER else {},
    }


def model_of(name: str, parameters: Mapping[str, Any], api_key: str | None, clients: ClientPool) -> Model:
    """Return the model that sends the same bytes as when its parameters were stored.

    Args:
        name: `provider:id`.
        parameters: What `parameters` returned, perhaps read back from a log.
        api_key: The provider's key, which no log has.
        clients: Where HTTP clients come from.

    Raises:
        ConfigError: The parameters are those of another version of Ava.
    """
    if parameters == {"wire": "scripted"}:
        pass

        return ScriptedModel(demo_script())
    if parameters == {"wire": "offline"}:
        from ava_server.models.offline import OfflineModel

        return OfflineModel()
    wire, base_url = _wire(parameters), parameters.get("base_url")
    if wire is None or not isinstance(base_url, str):
        raise ConfigError(
            f"This version of Ava cannot call {name} as its run began (wire {parameters.get('wire')!r}, parameters "
            f"{', '.join(parameters) or 'none'}). Continue the run with the version that started it."
        )
    from ava_server.models.http_model import HttpModel

    provider, _, model_id = name.partition(":")
    return HttpModel(provider, model_id, base_url, api_key, clients, wire)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _wire(parameters: Mapping[str, Any]) -> Wire | None:
    """Return the wire that the parameters describe; None if this version does not have it."""
    match parameters:
        case {"stream": bool(streaming), "thinking": stored, "base_url": str(base_url)} if _is_object(stored):
            thinking = Thinking.from_dict(stored)
        case _:
            return None
    if thinking is None:
        return None
    match parameters:
        case {
            "wire": "chat_completions",
            "thinking_field": ("reasoning_effort" | "reasoning") as thinking_field,
            "output_field": ("max_tokens" | "max_completion_tokens") as output_field,
            "extra": extra,
        } if _is_object(extra):
            from ava_server.models.wires.chat import ChatWire

            # Sorted, because the log may have sorted them.
            extra = json.loads(json.dumps(extra, sort_keys=True))
            return ChatWire(streaming, thinking, output_field, extra, thinking_field)
        case {"wire": "messages"}:
            from ava_server.models.wires.messages import MessagesWire

            return MessagesWire(streaming, thinking, bearer=host_of(base_url) != _ANTHROPIC)
        case {"wire": "responses"}:
            from ava_server.models.wires.responses import ResponsesWire

            return ResponsesWire(streaming, thinking)
        case _:
            return None


def _for_openrouter(choice: Choice) -> dict[str, Any]:
    """Return the parts of a body that only OpenRouter gets.

    It must not pass a call on to a provider that costs more than was approved. Its prices are in USD per million
    tokens and in USD per request; where nothing may cost anything, the limit is 0. Anthropic's models cache only what
    is marked; the gateway moves the mark along with the conversation.
    """
    price = choice.price
    most = {"completion": price.output / 1000, "prompt": price.input / 1000, "request": price.per_request / 10**9}
    parts: dict[str, Any] = {"provider": {"max_price": most}}
    if marks_cache(choice.wire, choice.base_url or "", choice.model_id):
        parts["cache_control"] = {"type": "ephemeral"}
    return parts
