"""Which models can be asked: keys, providers, tiers with their prices, and the way to them."""

from __future__ import annotations

from pathlib import Path

from ava_roles.net.proxies import PROXY_VARIABLES, proxy_place, proxy_url
from ava_server.cli.doctor.check import Finding, Setup, State, correct, from_error, log_path
from ava_server.config.credentials import model_settings
from ava_server.config.keys import SEARCHES, list_keys
from ava_server.core.errors import AvaError
from ava_server.hosts.launching import key_advice
from ava_server.models.listing import TierMeaning, tier_meanings
from ava_server.models.pricing.prices import price_words
from ava_server.models.selection import (
    CUSTOM,
    KNOWN_URLS,
    SET_A_MODEL,
    Choice,
    ModelSettings,
    choose,
    configured,
    default_tiers,
)

MEND_KEYS = "Mend that, then run `ava doctor` again; `ava key set PROVIDER` stores a key anew."


def models_of(setup: Setup) -> ModelSettings | None:
    """Return what is configured of models; None where settings or keys are wrong, which their own checks say."""
    if setup.settings is None:
        return None
    try:
        return model_settings(setup.settings)
    except AvaError:
        return None


def keys(setup: Setup) -> list[Finding]:
    """Tell whose keys there are and where from, never the keys."""
    if setup.root is None or log_path(setup) is None:
        return []
    try:
        found = list_keys(setup.root.keys, setup.env)
    except AvaError as error:
        return [from_error("keys", str(error), MEND_KEYS)]
    if not found:
        return [Finding("keys", "ok", "none is stored, and none is in the environment")]
    return [Finding("keys", "ok", ", ".join(f"{key.provider} from {key.where}" for key in found))]


def providers(setup: Setup) -> list[Finding]:
    """Tell which providers can be called."""
    models = models_of(setup)
    if models is None or setup.root is None:
        return [Finding("providers", "note", "not looked at: mend the data root, the settings or the keys first")]
    try:
        usable = configured(models)
    except AvaError as error:
        return [from_error("providers", str(error), correct(setup))]
    found: list[Finding] = []
    for name, provider in usable.items():
        with_key = "with a key" if provider.api_key else "without a key"
        from_env = " (AVA_MODEL_BASE_URL)" if name == CUSTOM and models.base_url else ""
        found.append(
            Finding(f"provider {name}", "ok", f"{provider.base_url or KNOWN_URLS[name]}{from_env}, {with_key}")
        )
    for key in list_keys(setup.root.keys, setup.env):
        if key.provider in usable or key.provider.replace("_", "-") in usable or key.provider in SEARCHES:
            continue
        why = f"config.toml has no [providers.{key.provider}] with its address"
        found.append(Finding(f"provider {key.provider}", "note", f"its key is not used: {why}"))
    if not usable and models.model is None:
        text = (
            "none can be called: subagents use the offline reader, which finds and quotes passages, costs nothing and"
            " writes nothing of its own"
        )
        found.append(
            Finding("providers", "note", text, f"For a language model: {SET_A_MODEL[0].lower()}{SET_A_MODEL[1:]}")
        )
    return found


def tiers(setup: Setup) -> list[Finding]:
    """Tell which model each tier leads to and what it costs, or why none does."""
    models = models_of(setup)
    if models is None:
        return []
    assert setup.settings is not None
    leads: dict[tuple[State, str, str], list[str]] = {}
    for meant in tier_meanings(models, setup.settings):
        found = _tier(meant, setup)
        leads.setdefault((found.state, found.text, found.what_to_do), []).append(meant.wanted)
    return [Finding(f"model {', '.join(names)}", state, text, advice) for (state, text, advice), names in leads.items()]


def _tier(meant: TierMeaning, setup: Setup) -> Finding:
    if meant.error is not None:
        return from_error(meant.wanted, str(meant.error), _mend(meant.error, setup))
    assert meant.choice is not None
    return Finding(meant.wanted, "ok", f"{meant.choice.name}, {price_words(meant.choice.price)}")


def _mend(error: AvaError, setup: Setup) -> str:
    """Return what to do where no model can be chosen: give the key that is missing, or correct what is configured."""
    return key_advice(error.needs_key, None, setup.env) if error.needs_key else correct(setup)


def cheapest(name: str, models: ModelSettings, setup: Setup) -> Choice | Finding:
    """Return the model with which a provider is tried: its fast one, else any that is set for it; or why none."""
    title = f"online {name}"
    failed: Finding | None = None
    for wanted in _named(name, models):
        try:
            choice = choose(wanted, "fast", models)
        except AvaError as error:
            failed = failed or from_error(title, str(error), _mend(error, setup), "warning")
            continue
        if choice.provider == name:
            return choice
    text = "not asked: no tier and no AVA_MODEL names a model of it"
    advice = f'To have it asked, add to config.toml: [models] fast = "{name}:ID"'
    return failed or Finding(title, "note", text, advice)


def _named(name: str, models: ModelSettings) -> list[str | None]:
    """Return the models that settings or defaults name, those first that are likely to be a provider's cheapest."""
    if name == CUSTOM and models.base_url:
        return [f"{CUSTOM}:{models.model}" if models.model else None]
    default = default_tiers().get(name, {}).get("fast")
    own = f"{name}:{default}" if default else None
    wanted = (models.tiers.get("fast"), own, models.tiers.get("balanced"), models.tiers.get("deep"), models.model)
    return [model for model in wanted if model]


def network(setup: Setup) -> list[Finding]:
    """Tell which way calls of models and fetched pages go out, where that is not the plain one."""
    found: list[Finding] = []
    for name in PROXY_VARIABLES:
        variable = next((one for one in (name, name.lower()) if setup.env.get(one, "").strip()), None)
        if variable is not None:
            found.append(_proxy(variable, setup.env[variable].strip()))
    for variable, is_there in (("SSL_CERT_FILE", Path.is_file), ("SSL_CERT_DIR", Path.is_dir)):
        given = setup.env.get(variable, "").strip()
        if given and not is_there(Path(given)):
            text = f"{variable} is {given}, and that is not there: no provider can be reached"
            found.append(Finding("network", "fault", text, f"Correct {variable}, or unset it."))
        elif given:
            found.append(Finding("network", "ok", f"certificates come from {variable}: {given}"))
    if setup.settings is not None and setup.settings.fetch.proxy:
        text = (
            f"pages are fetched through the proxy {proxy_place(setup.settings.fetch.proxy)} (fetch.proxy), which then"
            " decides which addresses can be reached: Ava looks up no name, and refuses only what a URL itself shows"
        )
        found.append(Finding("network", "ok", text))
    return found


def _proxy(variable: str, given: str) -> Finding:
    """Tell of a proxy, without the user and password that may stand in it."""
    place = proxy_place(given)
    at = f" ({place})" if place else ""
    try:
        proxy_url(given if "://" in given else f"http://{given}")
    except ValueError:
        what = "a SOCKS proxy" if given.lower().startswith("socks") else "what is no address of a proxy"
        text = f"{variable} names {what}{at}, and only HTTP proxies can be used: no provider behind it can be reached"
        return Finding("network", "fault", text, f"Write {variable} like http://host:3128, or unset it.")
    return Finding("network", "ok", f"calls of models go through the proxy {place} ({variable}); pages do not")
