"""Spans of runs, by OpenTelemetry's conventions for generative AI: `invoke_agent`, and in it `chat` and `execute_tool`.

Without an SDK in the process they have no effect. No span contains text of a person, a model or a tool, or a key: the
log has the content of a call, under the run's id, which every span carries. (The conventions are in development; these
are as of July 2026: github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import Token
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, get_tracer, set_span_in_context

from ava_roles.errors import ToolFailed
from ava_roles.net.addresses import server_of_url
from ava_server.core.errors import ModelError

if TYPE_CHECKING:
    from typing import Self

    from ava_audit.events import CostReserved, RunStarted, Usage
    from ava_audit.rows import RunRow
    from ava_roles.tool import ToolOutput
    from ava_server.models.base import Completion


_tracer = get_tracer("ava")
_FAILED = frozenset({"error", "guardrail", "abandoned"})
"""Endings that are errors; a reached cap or a cancellation is not one."""
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_TOOL_ERROR = "tool_error"


class _Block:
    """A span that is current while a block runs. An error in it is recorded by its type, never with its text."""

    __slots__ = ("_span", "_token")

    def __init__(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], context: Context | None = None
    ) -> None:
        self._span = _tracer.start_span(
            name, context, kind, attributes, record_exception=False, set_status_on_exception=False
        )
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self._span.get_span_context().is_valid:  # without an SDK there is nothing to attach
            self._token = attach(set_span_in_context(self._span))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self._token is not None:
            detach(self._token)
        if error is not None:
            self._record_error(error)
        self._span.end()

    def _record_error(self, error: BaseException) -> None:
        _fail(self._span, error_type(error))


class _Run(_Block):
    """The span of one claim of a run. A cancellation leaves the run to another owner, and is not an error."""

    __slots__ = ()

    def _record_error(self, error: BaseException) -> None:
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            super()._record_error(error)


class _Chat(_Block):
    """The span of one attempt of a model call."""

    __slots__ = ()

    def answered(self, completion: Completion) -> None:
        """Record the answer's usage and stop reason."""
        if self._span.is_recording():
            if completion.usage is not None:
                self._span.set_attributes(_used(completion.usage))
            if completion.stop_reason is not None:
                self._span.set_attribute("gen_ai.response.finish_reasons", [_word(completion.stop_reason)])


class _Tool(_Block):
    """The span of one tool call."""

    __slots__ = ()

    def brought(self, output: ToolOutput) -> None:
        """Record whether the call succeeded."""
        if not output.success:
            _fail(self._span, _TOOL_ERROR)


def invoke_agent(run: RunRow) -> _Block:
    """Return the span of a run while one process owns it.

    It has no parent: the request that approved the run is over, perhaps in another process. A resumed run has a new
    span with the same `ava.run.id` and a higher `ava.run.claim`.
    """
    return _Run(
        f"invoke_agent {run.role}",
        SpanKind.INTERNAL,
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.role,
            **_of_run(run),
            "ava.run.claim": run.generation,
        },
        Context(),
    )


def chat(run: RunRow, prefix: RunStarted | None, reserved: CostReserved) -> _Chat:
    """Return the span of one attempt of a model call. A model without an address in `prefix` is in this process."""
    parameters: Mapping[str, Any] = {}
    if prefix is not None:
        parameters = prefix.parameters
    address = _address(str(parameters.get("base_url") or ""))
    kind = SpanKind.INTERNAL
    if address:
        kind = SpanKind.CLIENT
    attributes = {
        "gen_ai.operation.name": "chat",
        **_of_run(run),
        **address,
        "gen_ai.request.max_tokens": reserved.max_output,
        "ava.run.turn": reserved.turn,
        "ava.run.attempt": reserved.attempt,
    }
    if parameters.get("stream"):
        attributes["gen_ai.request.stream"] = True
    return _Chat(f"chat {_model_of(run)}", kind, attributes)


def execute_tool(tool: str, call_id: str, run_id: str) -> _Tool:
    """Return the span of one tool call; `tool` is the name of an existing tool, not what a model wrote."""
    return _Tool(
        f"execute_tool {tool}",
        SpanKind.INTERNAL,
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": _word(call_id),
            "ava.run.id": run_id,
        },
    )


def run_ended(run: RunRow, status: str, error_kind: str | None) -> None:
    """Record in the run's span, which is the current one, how the run ended and what it used."""
    span = get_current_span()
    if not span.is_recording():
        return
    span.set_attributes(
        {
            "ava.run.ending": status,
            "ava.run.cost_usd": run.cost_micros / 1_000_000,
            "gen_ai.usage.input_tokens": run.input_tokens + run.cache_read_tokens + run.cache_write_tokens,
            "gen_ai.usage.output_tokens": run.output_tokens,
        }
    )
    if status in _FAILED:
        _fail(span, error_kind or status)


def error_type(error: BaseException) -> str:
    """Return an error's type in one word: a `ModelErrorKind`, another fixed word, or the class of the exception."""
    if isinstance(error, ModelError):
        return error.kind
    if isinstance(error, ToolFailed):
        return _TOOL_ERROR
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return "cancelled"
    if isinstance(error, TimeoutError):
        return "timeout"
    return type(error).__name__


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _of_run(run: RunRow) -> dict[str, Any]:
    return {
        "gen_ai.provider.name": provider_of(run.model),
        "gen_ai.request.model": _model_of(run),
        "gen_ai.conversation.id": run.id,
        "ava.run.id": run.id,
    }


def provider_of(model: str) -> str:
    """The log names a model `provider:id`, or `offline/extractive`."""
    return model.partition(":")[0].partition("/")[0]


def _model_of(run: RunRow) -> str:
    """Return the provider's id of a run's model; for the offline reader, its whole name."""
    name, _, model = run.model.partition(":")
    return model or name


def _used(usage: Usage) -> dict[str, int]:
    """Return tokens as the conventions count them: input is the whole prompt, cached tokens included."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.thinking_tokens,
    }


def _word(text: str) -> str:
    """Return a provider's value if it is one short word, else `other`."""
    if _WORD.fullmatch(text):
        return text
    return "other"


@lru_cache(maxsize=64)
def _address(url: str) -> Mapping[str, Any]:
    """Return host and port of an address, without user, path and query."""
    server = server_of_url(url)
    if server is None:
        return {}
    return {"server.address": server[1], "server.port": server[2]}
