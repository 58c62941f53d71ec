"""Makes callable models, from a choice or from the parameters that the log keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from ava_server.core.errors import ConfigError
from ava_server.models.base import Model
from ava_server.models.clients import ClientPool
from ava_server.models.selection import (
    KNOWN_URLS,
    OFFLINE,
    SCRIPTED,
    UNKNOWN,
    Choice,
    Thinking,
    host_of,
    marks_cache,
    thinking_of,
)

if TYPE_CHECKING:
    from ava_server.models.wires.base import Wire


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
    if parameters in ({"wire": "scripted"}, {"wire": "offline"}):
        from ava_server.models import demo, offline
        from ava_server.models.local import LocalModel

        scripted = parameters["wire"] == "scripted"
        return LocalModel(SCRIPTED, demo.answer) if scripted else LocalModel(OFFLINE, offline.answer)
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
