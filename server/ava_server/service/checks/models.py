"""Checks of models and search: keys, providers, tiers and prices, the search engine, proxies and certificates."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from ava_roles.net.addresses import PROXY_VARIABLES, proxy_place, proxy_url
from ava_roles.net.search_engines import Engine
from ava_server.config.credentials import model_settings, provider_addresses
from ava_server.config.keys import DELIVERS, SEARCHES, WELL_KNOWN, list_keys, read_keys, why_unused
from ava_server.config.search_engine import any_search, search_text
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import AvaError
from ava_server.core.ids import model_about
from ava_server.hosts.launching import key_advice
from ava_server.models import model_choice
from ava_server.models.listing import resolve_models
from ava_server.models.model_choice import Choice, ModelSettings, Provider, ProviderSearch
from ava_server.models.prices import Unpriced, price_words
from ava_server.service.checks import CheckFinding, Setup, State, from_error

_FIX_KEYS = "Correct that, then run `ava doctor` again; `ava key set PROVIDER` replaces a key."
_NOT_CHECKED = "not checked: correct the data root, the settings or the keys first"
_SET_UP_SEARCH = (
    "Store a key with `ava key set brave` or `ava key set kagi`, name your own SearXNG (searxng under [search] in"
    " config.toml), or use a model of Anthropic, OpenAI or OpenRouter, which search themselves."
)


def models_of(setup: Setup) -> ModelSettings | None:
    """Return the model settings; None if settings or keys are wrong, which their own checks report."""
    if setup.settings is None:
        return None
    try:
        return model_settings(setup.settings)
    except AvaError:
        return None


def keys(setup: Setup) -> Iterator[CheckFinding]:
    """Report which providers have a key and where it comes from, never the keys."""
    root = setup.usable_root
    if root is None:
        return
    try:
        addresses = provider_addresses(setup.settings) if setup.settings else {}
        sources = [f"{key.provider} from {key.where}" for key in list_keys(root.keys, setup.env, addresses)]
    except AvaError as error:
        yield from_error("keys", str(error), _FIX_KEYS)
        return
    yield CheckFinding("keys", "ok", ", ".join(sources) or "none is stored, and none is in the environment")
    for provider in WELL_KNOWN:
        unused = why_unused(provider, setup.env, addresses.get(provider))
        if unused:
            yield CheckFinding("keys", "note", unused, f"If subagents are to use {provider}: `ava key set {provider}`.")


def providers(setup: Setup) -> Iterator[CheckFinding]:
    models = models_of(setup)
    if models is None or setup.root is None:
        yield CheckFinding("providers", "note", _NOT_CHECKED)
        return
    try:
        configured = model_choice.configured(models)
    except AvaError as error:
        yield from_error("providers", str(error), setup.correct_settings)
        return
    for name, provider in configured.items():
        yield _provider_finding(name, provider, models)
        yield from _wrong_prices(name, provider, models, setup)
    yield from _unused_keys(setup, setup.root, configured)
    if not configured and models.model is None:
        text = (
            "none is configured: without a language model, subagents find passages by words and quote them, free of"
            " charge; they write no text of their own"
        )
        advice = model_choice.SET_A_MODEL
        step = f"For a language model: {advice[0].lower()}{advice[1:]}"
        yield CheckFinding("providers", "note", text, step)


def _provider_finding(name: str, provider: Provider, models: ModelSettings) -> CheckFinding:
    address = provider.base_url or model_choice.KNOWN_URLS[name]
    if name == model_choice.CUSTOM and models.base_url:
        address += " (AVA_MODEL_BASE_URL)"
    if provider.key_command is not None:
        with_key = f"with the key that a command of yours prints: {provider.key_command.command[0]}"
    else:
        with_key = "with a key" if provider.api_key else "without a key"
    return CheckFinding(f"provider {name}", "ok", f"{address}, {with_key}")


def _wrong_prices(name: str, provider: Provider, models: ModelSettings, setup: Setup) -> Iterator[CheckFinding]:
    """Report each name that `price_as` prices as a model without a price."""
    address = provider.base_url or model_choice.KNOWN_URLS[name]
    wire = model_choice.wire_of(provider, address)
    for own, model in provider.price_as.items():
        try:
            model_choice.price_over(wire, name, own, address, models.prices, provider.price_as)
        except Unpriced as error:
            text = f"price_as of {name} prices {own} as {model}, which has no price: {error}"
            yield from_error(f"price of {name}:{own}", text, setup.correct_settings)


def _unused_keys(setup: Setup, root: DataRoot, configured: Container[str]) -> Iterator[CheckFinding]:
    """Report the keys of models' providers that are not configured."""
    addresses = provider_addresses(setup.settings) if setup.settings else {}
    for key in list_keys(root.keys, setup.env, addresses):
        if key.provider in SEARCHES | DELIVERS:
            continue
        if key.provider in configured or key.provider.replace("_", "-") in configured:
            continue
        why = f"config.toml has no [providers.{key.provider}] with its address"
        yield CheckFinding(f"provider {key.provider}", "note", f"its key is not used: {why}")


def tiers(setup: Setup) -> Iterator[CheckFinding]:
    """Report the model of each tier and its cost, or why there is none."""
    models = models_of(setup)
    if models is None or setup.settings is None:
        return
    tiers_by_finding: dict[tuple[State, str, str], list[str]] = {}
    for resolved in resolve_models(models, setup.settings.where):
        if resolved.choice is not None:
            price = "free" if resolved.choice.wire == "offline" else price_words(resolved.choice.price)
            finding = CheckFinding("", "ok", f"{model_about(resolved.choice.name)}, {price}")
        else:
            finding = from_error("", str(resolved.error), _fix_choice(resolved.error, setup))
        key = (finding.state, finding.text, finding.what_to_do)
        tiers_by_finding.setdefault(key, []).append(resolved.wanted)
    for (state, text, step), names in tiers_by_finding.items():
        yield CheckFinding(f"model {', '.join(names)}", state, text, step)


def _fix_choice(error: AvaError | None, setup: Setup) -> str:
    """Return the step if no model can be chosen: set the missing key, or correct the settings."""
    if error is not None and error.needs_key:
        return key_advice(error.needs_key, None, setup.env)
    return setup.correct_settings


def cheapest(name: str, models: ModelSettings, setup: Setup) -> Choice | CheckFinding:
    """Return the model with which to try a provider: its fast one, else any that is set; or why there is none."""
    title = f"online {name}"
    failed: CheckFinding | None = None
    for wanted in _candidates(name, models):
        try:
            choice = model_choice.choose(wanted, "fast", models)
        except AvaError as error:
            failed = failed or from_error(title, str(error), _fix_choice(error, setup), "warning")
            continue
        if choice.provider == name:
            return choice
    step = f'To try it, add to config.toml: [models] fast = "{name}:ID"'
    return failed or CheckFinding(title, "note", "not asked: no tier and no AVA_MODEL uses its models", step)


def _candidates(name: str, models: ModelSettings) -> list[str | None]:
    """Return the models of settings or defaults, those first that are likely a provider's cheapest."""
    if name == model_choice.CUSTOM and models.base_url:
        return [f"{model_choice.CUSTOM}:{models.model}" if models.model else None]
    default = model_choice.default_tiers().get(name, {}).get("fast")
    own = f"{name}:{default}" if default else None
    wanted = (models.tiers.get("fast"), own, models.tiers.get("balanced"), models.tiers.get("deep"), models.model)
    return [model for model in wanted if model]


def search_engine(setup: Setup) -> Engine | ProviderSearch | None:
    """Return what searches the web for a run with the default model; None where nothing does. Raises AvaError."""
    if setup.root is None or setup.settings is None:
        return None
    stored = read_keys(setup.root.keys)
    return any_search(setup.settings.search, stored, model_settings(setup.settings, stored))


def search(setup: Setup) -> Iterator[CheckFinding]:
    """Report which engine searches the web, and what it costs."""
    engine = None
    settings = setup.settings if setup.usable_root is not None else None
    try:
        engine = search_engine(setup)
    except AvaError:  # the check of keys reports this
        settings = None
    if settings is None:
        yield CheckFinding("search", "note", _NOT_CHECKED)
        return
    if engine is not None:
        yield CheckFinding("search", "ok", search_text(engine))
        return
    wanted = settings.search.engine
    pages = "subagents read the pages that their task names"
    if wanted == "none":
        yield CheckFinding("search", "note", f"switched off (search.engine is none); {pages}")
    elif wanted == "auto":
        yield CheckFinding("search", "note", f"none is set up; {pages}", _SET_UP_SEARCH)
    else:
        lacks = "search.searxng is empty" if wanted == "searxng" else "there is no key for it"
        step = "Name its address under [search] in config.toml." if wanted == "searxng" else f"`ava key set {wanted}`"
        yield CheckFinding("search", "warning", f"search.engine is {wanted}, and {lacks}; {pages}", step)


def network(setup: Setup) -> Iterator[CheckFinding]:
    """Report the proxies and certificates of calls to models and of fetched pages, if any are set."""
    for name in PROXY_VARIABLES:
        for variable in (name, name.lower()):
            value = setup.env.get(variable, "").strip()
            if value:
                yield _check_proxy(variable, value)
                break
    for variable, exists in (("SSL_CERT_FILE", Path.is_file), ("SSL_CERT_DIR", Path.is_dir)):
        path = setup.env.get(variable, "").strip()
        if path and not exists(Path(path)):
            text = f"{variable} is {path}, which does not exist: no provider can be reached"
            yield CheckFinding("network", "fault", text, f"Correct {variable}, or unset it.")
        elif path:
            yield CheckFinding("network", "ok", f"certificates come from {variable}: {path}")
    if setup.settings is not None and setup.settings.fetch.proxy:
        text = (
            f"pages are fetched through the proxy {proxy_place(setup.settings.fetch.proxy)} (fetch.proxy), which then"
            " decides which addresses can be reached: Ava looks up no name, and refuses only what a URL itself shows"
        )
        yield CheckFinding("network", "ok", text)


def _check_proxy(variable: str, address: str) -> CheckFinding:
    """Return whether a proxy can be used, without its user and password."""
    place = proxy_place(address)
    at = f" ({place})" if place else ""
    try:
        proxy_url(address if "://" in address else f"http://{address}")
    except ValueError:
        what = "a SOCKS proxy" if address.lower().startswith("socks") else "an invalid proxy address"
        text = f"{variable} names {what}{at}; only HTTP proxies can be used, so no provider behind it can be reached"
        return CheckFinding("network", "fault", text, f"Write {variable} like http://host:3128, or unset it.")
    return CheckFinding("network", "ok", f"calls to models use the proxy {place} ({variable}); fetched pages do not")
