"""From a model that was chosen to one that can be called: what shapes its requests is written down, and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ava_server.core.errors import ConfigError
from ava_server.models.base import Model
from ava_server.models.clients import ClientPool
from ava_server.models.selection import KNOWN_URLS, Choice, host_of, marks_cache
from ava_server.models.thinking import UNKNOWN, Thinking, thinking_of

if TYPE_CHECKING:
    from ava_server.models.wires.base import Wire

_OPENROUTER, _OPENAI, _ANTHROPIC = (host_of(KNOWN_URLS[name]) for name in ("openrouter", "openai", "anthropic"))


def build_model(choice: Choice, clients: ClientPool) -> Model:
    """Return the model that was chosen, ready to be called."""
    return model_of(choice.name, parameters(choice), choice.api_key, clients)


def how_it_thinks(choice: Choice) -> Thinking:
    """Return how the model that was chosen is told to think."""
    if choice.base_url is None:
        return UNKNOWN
    # OpenRouter leaves out what a model does not take; elsewhere a field that is not known may be refused.
    otherwise = Thinking("effort") if host_of(choice.base_url) == _OPENROUTER else UNKNOWN
    return thinking_of(choice.model_id, otherwise)


def parameters(choice: Choice) -> dict[str, Any]:
    """Return what shapes a request's bytes beside the request itself, and where it goes: plain JSON, for the log."""
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
        # OpenAI's reasoning models refuse the older name, which everybody else expects.
        "output_field": "max_completion_tokens" if host == _OPENAI else "max_tokens",
        "extra": _for_openrouter(choice) if host == _OPENROUTER else {},
    }


def model_of(name: str, parameters: Mapping[str, Any], api_key: str | None, clients: ClientPool) -> Model:
    """Return the model that sends the very bytes that it sent when its parameters were stored.

    Args:
        name: `provider:id`.
        parameters: What `parameters` returned, perhaps read back from a log.
        api_key: The provider's key, which no log has.
        clients: Where HTTP clients come from.

    Raises:
        ConfigError: The parameters are those of another version of Ava.
    """
    if parameters == {"wire": "scripted"}:
        from ava_server.models.scripted import ScriptedModel, demo_script

        return ScriptedModel(demo_script())
    if parameters == {"wire": "offline"}:
        from ava_server.models.offline import OfflineModel

        return OfflineModel()
    wire, base_url = _wire(parameters), parameters.get("base_url")
    if wire is None or not isinstance(base_url, str):
        raise ConfigError(
            f"This version of Ava cannot speak to {name} as its run began (wire {parameters.get('wire')!r}, "
            f"parameters {', '.join(parameters) or 'none'}); go on with the version that began it."
        )
    from ava_server.models.http_model import HttpModel

    provider, _, model_id = name.partition(":")
    return HttpModel(provider, model_id, base_url, api_key, clients, wire)


def _wire(parameters: Mapping[str, Any]) -> Wire | None:
    """Return the wire that was written down; None where it is not one of this version's."""
    match parameters:
        case {"stream": bool(streaming), "thinking": dict(), "base_url": str(base_url)}:
            thinking = Thinking.from_dict(parameters["thinking"])
        case _:
            return None
    if thinking is None:
        return None
    match parameters:
        case {
            "wire": "chat_completions",
            "thinking_field": ("reasoning_effort" | "reasoning") as thinking_field,
            "output_field": ("max_tokens" | "max_completion_tokens") as output_field,
            "extra": dict(),
        }:
            from ava_server.models.wires.chat import ChatWire

            # Sorted, because whoever stored them may have sorted them.
            extra = json.loads(json.dumps(parameters["extra"], sort_keys=True))
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
    """Return what only OpenRouter is told.

    A call is not to be passed on to a provider that costs more than was approved; tokens are in USD per million,
    requests in USD each, and where nothing may cost anything, that is a limit of 0. The models of Anthropic cache what
    they are told to cache; the gateway moves the mark along with the conversation.
    """
    price = choice.price
    most = {"completion": price.output / 1000, "prompt": price.input / 1000, "request": price.per_request / 10**9}
    told: dict[str, Any] = {"provider": {"max_price": most}}
    if marks_cache(choice.wire, choice.base_url or "", choice.model_id):
        told["cache_control"] = {"type": "ephemeral"}
    return told
