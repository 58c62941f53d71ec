"""Makes callable models, from a choice or from the parameters that the log keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, StrictBool

from ava_server.core.errors import ConfigError
from ava_server.models.base import Model
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import (
    KNOWN_URLS,
    OFFLINE,
    SCRIPTED,
    UNKNOWN,
    Choice,
    Thinking,
    host_of,
    is_vertex,
    marks_cache,
    thinking_of,
)
from ava_server.models.prompt_cache import CacheMark, prompt_cache_of
from ava_server.models.providers import PROVIDERS, habits_at, provider_at
from ava_server.models.surcharges import SERVICE_TIER, pinned_at

if TYPE_CHECKING:
    from ava_server.models.key_command import KeyCommand
    from ava_server.models.wires.wire import Wire


_OPENROUTER, _ANTHROPIC = (host_of(KNOWN_URLS[name]) for name in ("openrouter", "anthropic"))


def how_it_thinks(choice: Choice) -> Thinking:
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
    known = habits_at(choice.base_url, choice.like)
    common = {
        "wire": choice.wire,
        "base_url": choice.base_url,
        "stream": choice.streaming,
        "thinking": asdict(how_it_thinks(choice)),
    }
    if choice.like:
        common["like"] = choice.like
    if choice.wire == "google" and not known.takes_call_ids:
        return {**common, "call_ids": False}
    mark = _cache_mark(choice)
    if mark:
        common["cache_mark"] = mark
    tier = pinned_at(choice.base_url).get(SERVICE_TIER)
    if tier:
        common["service_tier"] = tier
    if choice.wire != "chat_completions":
        return common
    parts = {**common, "thinking_field": "reasoning_effort", "output_field": "max_tokens"}
    if known.long_limit:  # OpenAI's reasoning models refuse the older name, which all other servers expect
        parts["output_field"] = "max_completion_tokens"
    if known.tells_usage:
        parts["asks_usage"] = False
    parts["extra"] = {}
    if host == _OPENROUTER:
        parts["thinking_field"] = "reasoning"
        parts["extra"] = _for_openrouter(choice)
    return parts


def account_of(choice: Choice) -> str:
    """Return a mark of the account that a model's calls are billed to; empty where it has nothing to choose.

    It is the same for the same key at the same host, and says nothing about the key.
    """
    if not any(one.account for one in choice.price.surcharges):
        return ""
    key = choice.api_key or ""
    if choice.key_command is not None:
        key = " ".join(choice.key_command.command)
    return hashlib.sha256(f"{host_of(choice.base_url)} {key}".encode()).hexdigest()[:12]


def model_of(
    name: str,
    parameters: Mapping[str, Any],
    api_key: str | None,
    clients: ClientPool,
    key_command: KeyCommand | None = None,
) -> Model:
    """Return the model that sends the same bytes as when its parameters were stored (see `parameters`).

    Raises ConfigError if they are those of another version of Ava.
    """
    if parameters in ({"wire": "scripted"}, {"wire": "offline"}):
        from ava_server.models import offline
        from ava_server.models.offline import LocalModel, scripted_answer

        scripted = parameters["wire"] == "scripted"
        if scripted:
            return LocalModel(SCRIPTED, scripted_answer)
        return LocalModel(OFFLINE, offline.answer)
    try:
        wire = _wire(parameters)
    except ValueError:  # a ValidationError is one
        raise ConfigError(
            f"This version of Ava cannot call {name} as its run began (wire {parameters.get('wire')!r}, parameters "
            f"{', '.join(parameters) or 'none'}). Continue the run with the version that started it."
        ) from None
    from ava_server.models.http_model import HttpModel

    provider, _, model_id = name.partition(":")
    like = parameters.get("like", "")
    return HttpModel(
        provider, model_id, parameters["base_url"], api_key, clients, wire, key_command=key_command, like=like
    )


def _known(like: str) -> str:
    if like and like not in PROVIDERS:
        raise ValueError(f"no provider is called {like}")
    return like


class _StoredParameters(BaseModel):
    base_url: str
    stream: StrictBool
    thinking: Thinking
    cache_mark: CacheMark = ""
    like: Annotated[str, AfterValidator(_known)] = ""
    service_tier: str = ""


class _StoredChatParameters(_StoredParameters):
    thinking_field: Literal["reasoning_effort", "reasoning"]
    output_field: Literal["max_tokens", "max_completion_tokens"]
    extra: dict[str, Any]
    asks_usage: StrictBool = True


class _StoredGoogleParameters(_StoredParameters):
    call_ids: StrictBool = True


def _wire(parameters: Mapping[str, Any]) -> Wire:
    """Return the wire that the parameters describe. Raises ValueError if this version does not have it."""
    match parameters.get("wire"):
        case "chat_completions":
            from ava_server.models.wires.chat import ChatWire

            chat = _StoredChatParameters.model_validate(parameters)
            # Sorted, because the log may have sorted them.
            extra = json.loads(json.dumps(chat.extra, sort_keys=True))
            return ChatWire(
                chat.stream,
                chat.thinking,
                chat.output_field,
                extra,
                chat.thinking_field,
                chat.asks_usage,
                chat.cache_mark,
                service_tier=chat.service_tier,
            )
        case "messages":
            from ava_server.models.wires.messages import MessagesWire

            stored = _StoredParameters.model_validate(parameters)
            return MessagesWire(stored.stream, stored.thinking, bearer=host_of(stored.base_url) != _ANTHROPIC)
        case "responses":
            from ava_server.models.wires.responses import ResponsesWire

            stored = _StoredParameters.model_validate(parameters)
            return ResponsesWire(stored.stream, stored.thinking, stored.cache_mark, service_tier=stored.service_tier)
        case "google":
            from ava_server.models.wires.google import GoogleWire

            google = _StoredGoogleParameters.model_validate(parameters)
            token = is_vertex(google.base_url)
            return GoogleWire(google.stream, google.thinking, bearer=token, call_ids=google.call_ids)
        case other:
            raise ValueError(f"there is no wire {other!r}")


def _cache_mark(choice: Choice) -> CacheMark:
    """Return what marks the end of what other runs share, where the provider needs to be told and takes the mark.

    OpenRouter passes its mark on in the form of the model's maker. Anthropic's own format always has marks.
    """
    if choice.base_url is None or choice.wire not in ("responses", "chat_completions"):
        return ""
    cache = prompt_cache_of(choice.model_id)
    has_breakpoints = cache is not None and cache.breakpoints
    host = host_of(choice.base_url)
    if provider_at(choice.base_url) is PROVIDERS["openai"] and has_breakpoints:
        return "prompt_cache_breakpoint"
    if host != _OPENROUTER or choice.wire != "chat_completions":
        return ""
    if has_breakpoints or marks_cache(choice.wire, choice.base_url, choice.model_id):
        return "cache_control"
    return ""


def _for_openrouter(choice: Choice) -> dict[str, Any]:
    """Return the parts of a body that only OpenRouter gets.

    It must not pass a call on to a provider that costs more than was approved. Its prices are in USD per million
    tokens and in USD per request; where nothing may cost anything, the limit is 0. Anthropic's models cache only what
    is marked; the gateway moves this mark along with the conversation.
    """
    price = choice.price
    most = {"completion": price.output / 1000, "prompt": price.input / 1000, "request": price.per_request / 10**9}
    parts: dict[str, Any] = {"provider": {"max_price": most}}
    if marks_cache(choice.wire, choice.base_url or "", choice.model_id):
        parts["cache_control"] = {"type": "ephemeral"}
    return parts
