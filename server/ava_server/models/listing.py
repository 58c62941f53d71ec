"""What each tier or role means here, which models a provider has, and what each costs.

`ava models`, `ava doctor` and `ava://roles` all use it; it asks the same `choose` that a run's model is chosen by.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from ava_server.core.errors import AvaError, ModelError, ModelErrorKind
from ava_server.models.base import Completion, Request, ToolTurn, UserTurn
from ava_server.models.errors import Endpoint, with_usage
from ava_server.models.http_model import key_headers
from ava_server.models.model_choice import (
    CUSTOM,
    KNOWN_URLS,
    SET_A_MODEL,
    TIERS,
    Choice,
    ModelSettings,
    Provider,
    WireName,
    check_address,
    choose,
    configured,
    is_vertex,
    meant_by,
    price_over,
    tiers_reviewed,
    wire_of,
)
from ava_server.models.prices import Price, Unpriced, known_ids, price_json
from ava_server.models.providers import PROVIDERS, is_local
from ava_server.models.tokens import shown_bytes
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.google import GoogleWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire

if TYPE_CHECKING:
    import httpx2

    from ava_server.models.http_clients import ClientPool
    from ava_server.models.key_command import KeyCommand
    from ava_server.models.wires.wire import Wire


Where = Callable[..., str]
"""Returns a setting, given as the steps of its path, with the place in which to change it."""
NOBODY = "nobody: no key and no endpoint is configured"
"""What says so where a tier leads to the offline reader."""


@dataclass(frozen=True)
class ResolvedModel:
    """What a tier, or a role's `model`, means here now."""

    wanted: str  # the tier's name, or the role's `model`
    choice: Choice | None  # the model; None where it cannot be used
    said_by: str  # what says so: a variable, a setting and its place, `tiers.toml` of a day, or the name itself
    error: AvaError | None = None


@dataclass(frozen=True)
class Offer:
    """A model that a provider has."""

    model_id: str
    price: Price | None
    unpriced: str  # why it cannot be used, with the lines to add to the settings; empty where it has a price
    tiers: tuple[str, ...]  # the tiers that mean it here


@dataclass(frozen=True)
class ModelCatalog:
    """A provider whose models can be listed."""

    name: str
    base_url: str
    api_key: str | None = field(repr=False)  # its key, if there is one; never shown
    wire: WireName
    configured: bool  # it can be called
    in_table: bool  # the price table lists its models; otherwise only the provider can
    key_command: KeyCommand | None = field(default=None, repr=False)  # what prints its key, in place of `api_key`
    price_as: Mapping[str, str] = field(default_factory=dict[str, str])
    like: str = ""

    @property
    def has_key(self) -> bool:
        return bool(self.api_key) or self.key_command is not None


def catalog_of(choice: Choice) -> ModelCatalog:
    """Return the provider of a chosen model at an address."""
    assert choice.base_url is not None, "a model in this process is listed nowhere"
    return ModelCatalog(
        choice.provider, choice.base_url, choice.api_key, choice.wire, True, False, choice.key_command,
        like=choice.like,
    )  # fmt: skip


def resolve_models(models: ModelSettings, where: Where, wanted: Iterable[str] = TIERS) -> list[ResolvedModel]:
    """Return what tiers or roles' models mean here now. Blocking: importing the price table takes a while."""
    return [_resolved(one, models, where) for one in wanted]


def _resolved(wanted: str, models: ModelSettings, where: Where) -> ResolvedModel:
    said_by = "its name"
    try:
        if wanted in TIERS:
            said_by = ""  # the configuration may name no model
            texts = {
                "AVA_MODEL_BASE_URL": "AVA_MODEL_BASE_URL and AVA_MODEL",
                "AVA_MODEL": "AVA_MODEL",
                "settings": where("models", wanted),
                "tiers.toml": f"tiers.toml of {tiers_reviewed()}",
                "nobody": NOBODY,
            }
            said_by = texts[meant_by(wanted, models, configured(models))[1]]
        return ResolvedModel(wanted, choose(None, wanted, models), said_by)
    except AvaError as error:
        return ResolvedModel(wanted, None, said_by, error)


def model_json(meant: ResolvedModel, what_to_do: str = "") -> dict[str, Any]:
    """Return it as plain JSON; `what_to_do` is the next step where the model cannot be used."""
    if meant.choice is None:
        return {"model": None, "problem": str(meant.error), "what_to_do": what_to_do, "chosen_by": meant.said_by}
    price = meant.choice.price
    return {
        "model": meant.choice.name,
        "price": price_json(price),
        "window": price.window,
        "chosen_by": meant.said_by,
        **({"what_to_do": SET_A_MODEL} if meant.said_by == NOBODY else {}),
    }


def model_catalogs(models: ModelSettings) -> dict[str, ModelCatalog]:
    """Return the providers with models to list, configured or known by name. Raises ConfigError if an invalid name."""
    usable = configured(models)
    found: dict[str, ModelCatalog] = {}
    for name, provider in {**{name: Provider() for name in KNOWN_URLS}, **usable}.items():
        url = provider.base_url or KNOWN_URLS[name]
        in_table = bool(known_ids(name, url))
        wire = wire_of(provider, url)
        found[name] = ModelCatalog(
            name, url, provider.api_key, wire, name in usable, in_table, provider.key_command,
            provider.price_as, provider.like,
        )  # fmt: skip
    return found


def named_ids(catalog: ModelCatalog, models: ModelSettings, tiers: Iterable[ResolvedModel]) -> list[str]:
    """Return the ids of a provider's models that serve tiers, then those that the user has named or priced."""
    ids: list[str] = []
    for tier in tiers:
        if tier.choice is not None and tier.choice.provider == catalog.name:
            ids.append(tier.choice.model_id)
    names = [*models.tiers.values(), *models.prices]
    if models.base_url and catalog.name == CUSTOM:
        ids.append(models.model or "")
    if not models.base_url:
        names.append(models.model or "")
    prefix = f"{catalog.name}:"
    ids += [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    ids += _priced_ids(catalog, models)
    return [one for one in dict.fromkeys(ids) if one]


def _priced_ids(catalog: ModelCatalog, models: ModelSettings) -> Iterator[str]:
    """Yield the user's prices by id alone: those in the provider's table, or without a table, those in no table."""
    names = {*KNOWN_URLS, *configured(models)}
    alone = [key for key in models.prices if key.partition(":")[0] not in names]
    if catalog.in_table:
        known = known_ids(catalog.name, catalog.base_url)
        yield from (model_id for model_id in alone if model_id in known)
    else:
        elsewhere = frozenset[str]().union(*(known_ids(name, url) for name, url in KNOWN_URLS.items()))
        yield from (model_id for model_id in alone if model_id not in elsewhere)


def table_ids(catalog: ModelCatalog) -> list[str]:
    return sorted(known_ids(catalog.name, catalog.base_url))


def offers(
    catalog: ModelCatalog, ids: Iterable[str], models: ModelSettings, tiers: Iterable[ResolvedModel]
) -> list[Offer]:
    """Return a provider's models, each with its price, or why it has none, and with the tiers that mean it here."""
    tiers_of_model: dict[str, list[str]] = {}
    for tier in tiers:
        if tier.choice is not None:
            tiers_of_model.setdefault(tier.choice.name, []).append(tier.wanted)
    found: list[Offer] = []
    for model_id in ids:
        price, unpriced = None, ""
        try:
            price = price_over(
                catalog.wire,
                provider=catalog.name,
                model_id=model_id,
                base_url=catalog.base_url,
                overrides=models.prices,
                price_as=catalog.price_as,
            )
        except Unpriced as error:
            unpriced = str(error)
        its_tiers = tiers_of_model.get(f"{catalog.name}:{model_id}", [])
        found.append(Offer(model_id, price, unpriced, tuple(its_tiers)))
    return found


DEADLINE_S = 3.0
"""For the whole request: a person waits, and the list is only a help."""
MOST_BYTES = 4_000_000
LONGEST_ID = 200


def wire_to_list(catalog: ModelCatalog) -> Wire:
    """Return the wire that asks for a list of models, with the key in every header that a server may read."""
    match catalog.wire:
        case "messages":
            return MessagesWire(bearer=True)
        case "responses":
            return ResponsesWire()
        case "google":
            return GoogleWire(bearer=is_vertex(catalog.base_url))
        case _:
            return ChatWire()


async def ask_endpoint(catalog: ModelCatalog, clients: ClientPool) -> list[str]:
    """Return the ids of the models that an endpoint lists, in its order. Raises AvaError: unreachable, or no list."""
    import httpx2

    check_address(catalog.name, catalog.base_url, catalog.api_key, has_key=catalog.has_key)
    wire = wire_to_list(catalog)
    endpoint = await _endpoint(wire.models_url(catalog.base_url), catalog)
    with anyio.move_on_after(DEADLINE_S):
        try:
            async with clients.client() as client:
                return _ids(await _fetch(client, endpoint, wire), endpoint, wire)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            why = f"cannot be asked for its models: {endpoint.cause(error)}"
            raise _failure(endpoint, why, "connection") from error
    raise _failure(endpoint, f"did not send the whole list of its models within {DEADLINE_S:g} s", "timeout")


LOOK_S = 1.0
"""For a server on this machine, which either answers at once or is not there."""
_LARGEST_WINDOW = 100_000_000
_WINDOWS = {
    "ollama": ("/api/ps", "models", "name", "context_length"),
    "lmstudio": ("/api/v0/models", "data", "id", "loaded_context_length"),
    "vllm": ("/v1/models", "data", "id", "max_model_len"),
}
"""Where servers on this machine tell with which context length a model is loaded: path, list, and the fields in it."""


async def loaded_windows(catalog: ModelCatalog, clients: ClientPool) -> dict[str, int]:
    """Return the context length of each loaded model of a server on this machine; nothing where it does not tell.

    llama.cpp has one model, whose name is not compared: its length is under the empty name.
    """
    known = PROVIDERS.get(catalog.name)
    if known is None or known.kind != "this_machine" or not is_local(catalog.base_url):
        return {}
    root = catalog.base_url.rstrip("/").removesuffix("/v1")
    try:
        if catalog.name == "llamacpp":
            props = await _look(f"{root}/props", catalog, clients)
            found = {"": props["default_generation_settings"]["n_ctx"]}
        else:
            path, place, name, length = _WINDOWS[catalog.name]
            answer = await _look(f"{root}{path}", catalog, clients)
            found = {str(one[name]): one.get(length) for one in answer[place]}
    except (AvaError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}
    return {name: size for name, size in found.items() if type(size) is int and 0 < size < _LARGEST_WINDOW}


async def loaded_window(catalog: ModelCatalog, model_id: str, clients: ClientPool) -> int | None:
    """Return the context length with which a model is loaded on this machine; None where no server tells it."""
    windows = await loaded_windows(catalog, clients)
    for name in (model_id, f"{model_id}:latest", ""):
        if name in windows:
            return windows[name]
    return None


_MOST_CHARS_OF_TOKEN = 6
"""No text has more characters a token, but for long lines of one sign; English has 4 to 5."""


async def find_cut(
    catalog: ModelCatalog, model_id: str, clients: ClientPool, request: Request, completion: Completion
) -> ModelError | None:
    """Return the error of an answer to a prompt whose beginning was left out without a word, as Ollama does."""
    if catalog.name != "ollama":
        return None
    texts = [request.system, *(turn.text for turn in request.turns if isinstance(turn, UserTurn | ToolTurn))]
    chars = sum(shown_bytes(text.encode("ascii", "ignore").decode()) for text in texts)
    least_tokens = chars // _MOST_CHARS_OF_TOKEN
    if completion.usage is not None and least_tokens <= completion.usage.prompt_tokens:
        return None  # what is reported is too little to be true where it was not counted
    window = await loaded_window(catalog, model_id, clients)
    if window is None or least_tokens <= window:
        return None
    endpoint = Endpoint(wire_to_list(catalog).url(catalog.base_url, model_id), model_id, None)
    return with_usage(endpoint.error("cut prompt", window=f"{window:,}"), completion)


async def _look(url: str, catalog: ModelCatalog, clients: ClientPool) -> Any:
    """Return the JSON at an address of a server. Raises AvaError, ValueError if there is none within a second."""
    import httpx2

    endpoint = await _endpoint(url, catalog)
    with anyio.move_on_after(LOOK_S):
        try:
            async with clients.client() as client:
                return json.loads(await _fetch(client, endpoint, wire_to_list(catalog)))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            raise _failure(endpoint, f"cannot be asked: {endpoint.cause(error)}", "connection") from error
    raise _failure(endpoint, f"did not answer within {LOOK_S:g} s", "timeout")


async def servers_here(models: ModelSettings, clients: ClientPool) -> dict[str, list[str]]:
    """Return the servers on this machine that the settings do not name, at their usual ports, with their models.

    Each is sent a request for its list of models, without a key. Nothing uses them before the settings name them.
    """
    taken = {(provider.base_url or "").rstrip("/") for provider in configured(models).values()}
    found: dict[str, list[str]] = {}

    async def look(name: str, base_url: str) -> None:
        catalog = ModelCatalog(name, base_url, None, "chat_completions", configured=False, in_table=False)
        with anyio.move_on_after(LOOK_S):
            try:
                ids = await ask_endpoint(catalog, clients)
            except AvaError:
                return
            if ids:
                found[name] = ids

    async with anyio.create_task_group() as tasks:
        for name, known in PROVIDERS.items():
            usual = known.base_url.replace("127.0.0.1", "localhost")
            if known.kind == "this_machine" and name != "vllm" and taken.isdisjoint((known.base_url, usual)):
                tasks.start_soon(look, name, known.base_url)
    return {name: found[name] for name in PROVIDERS if name in found}


async def _endpoint(url: str, catalog: ModelCatalog) -> Endpoint:
    minted = catalog.key_command is not None
    return Endpoint(url, "", await _key_of(catalog), minted=minted, like=catalog.like)


async def _key_of(catalog: ModelCatalog) -> str | None:
    """Raises ModelError if the command that prints the key failed."""
    if catalog.key_command is None:
        return catalog.api_key
    from ava_server.models.key_command import KeyCommandFailed

    try:
        return await catalog.key_command.key()
    except KeyCommandFailed as failed:
        text = f"The key of {catalog.name} comes from {catalog.key_command.command[0]}, and {failed}."
        step = "Run the key_command in a terminal (what it prints is a secret), or correct it in config.toml."
        raise ModelError(
            text, kind="auth", sent=False, answered=False, retryable=failed.again, what_to_do=step
        ) from None


async def _fetch(client: httpx2.AsyncClient, endpoint: Endpoint, wire: Wire) -> bytes:
    headers = {"accept": "application/json", **key_headers(wire, endpoint)}
    content = bytearray()
    async with client.stream("GET", endpoint.url, headers=headers) as response:
        status = response.status_code
        if status in (401, 403):
            raise _failure(endpoint, f"answered {status} with {endpoint.key}, not with a list of models", "auth")
        if status != 200:
            raise _failure(endpoint, f"answered {status}, not with a list of models", "bad_answer")
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MOST_BYTES:
                raise _failure(endpoint, f"answered more than {MOST_BYTES:,} bytes", "bad_answer")
    return bytes(content)


def _ids(content: bytes, endpoint: Endpoint, wire: Wire) -> list[str]:
    try:
        listed = wire.listed_ids(json.loads(content))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise _failure(endpoint, "answered something other than a list of models", "bad_answer") from None
    return list(dict.fromkeys(one for one in listed if _is_usable_id(one)))


def _is_usable_id(listed: Any) -> bool:
    if not isinstance(listed, str):
        return False
    return 0 < len(listed) <= LONGEST_ID and listed.isprintable() and " " not in listed


def _failure(endpoint: Endpoint, what: str, kind: ModelErrorKind) -> ModelError:
    step = "Check that it runs, and its address and key; a model can be named without being listed."
    text = f"{endpoint.place} {what}."
    return ModelError(text, kind=kind, sent=False, answered=False, retryable=False, what_to_do=step)
