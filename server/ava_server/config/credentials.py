"""Providers, keys and secrets as they are now: a newly stored one counts without a restart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ava_roles.net.addresses import PROXY_VARIABLES, proxy_password
from ava_server.config.keys import (
    OWN_PREFIX,
    Key,
    is_placeholder,
    key_among,
    key_variables,
    provider_name,
    read_keys,
    why_unused,
)
from ava_server.config.secrets import Secret, read_secrets
from ava_server.core.files import WatchedFile
from ava_server.models.model_choice import KNOWN_URLS, ModelSettings, Provider
from ava_server.models.prices import UserPrice
from ava_server.models.providers import PROVIDERS, is_own_host, seller_of

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor
    from ava_roles.net.search_engines import Engine
    from ava_server.config.settings import ProviderSettings, Settings
    from ava_server.models.key_command import KeyCommand


DIGEST_CHARS = 12


class Credentials:
    """The keys and secrets of a process, read again when their files change.

    A file that cannot be read stops only what needs it: the `redactor`, which all runs and the service share, still
    replaces every value that this process has ever seen. The methods raise AvaError: a file cannot be read, or a file,
    a variable or a name is invalid.
    """

    def __init__(self, settings: Settings) -> None:
        from ava_audit.redaction import Redactor
        from ava_roles.wrap import seen_offsets
        from ava_server.core.threads import stop_if_cancelled

        self.redactor = Redactor({}, stop_if_cancelled, seen_offsets)
        for name, value in _in_environment(settings, os.environ):
            self.redactor.learn({name: value})
        self._settings = settings
        self._commands = key_commands(settings, self.redactor)
        self._keys = WatchedFile(settings.paths.keys, self._read_keys)
        self._secrets = WatchedFile(settings.paths.secrets_file, self._read_secrets)

    @property
    def models(self) -> ModelSettings:
        """Providers, keys, tiers and prices, all from one reading. Blocking."""
        return self._keys.current()[1]

    def search(self, name: str | None = None) -> Engine | None:
        """Return the configured search engine, or the one of this name if it is configured. Blocking."""
        from ava_server.config.search_engine import engine_of

        return engine_of(self._settings.search, self._keys.current()[0], name)

    @property
    def secrets(self) -> Mapping[str, Secret]:
        """The stored secrets by name, all from one reading. Blocking."""
        return self._secrets.current()

    def session_digest(self) -> str:
        """Return a hash of what a run may need of this process's settings and environment. Blocking.

        It covers addresses, and where the key of each provider comes from; no key, not even as a hash.
        """
        stored, models = self._keys.current()
        addresses = provider_addresses(self._settings)
        key_places: dict[str, str] = {}
        for name in (*PROVIDERS, *self._settings.providers):
            key = _key_of(name, self._settings, stored, addresses)
            if key is not None:
                key_places[name] = key.where
        facts = {
            "endpoint": [models.base_url, models.model, models.api_key is not None],
            "addresses": addresses,
            "keys": key_places,
            "key_commands": {name: command.command for name, command in self._commands.items()},
            "search": self._settings.search.model_dump(mode="json"),
            "labels": sorted(self._settings.labels),
            "sandbox": self._settings.sandbox.mode,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARS]

    async def refresh(self) -> None:
        """Learn what to redact from files that have changed; one that cannot be read changes nothing."""
        import anyio.to_thread

        for file in (self._keys, self._secrets):
            if file.is_changed:
                await anyio.to_thread.run_sync(file.refresh)

    def _read_keys(self) -> tuple[Mapping[str, Key], ModelSettings]:
        keys = read_keys(self._settings.paths.keys)
        self.redactor.learn({name: key.value for name, key in keys.items()})
        return keys, model_settings(self._settings, keys, self._commands)

    def _read_secrets(self) -> Mapping[str, Secret]:
        secrets = read_secrets(self._settings.paths.secrets_file)
        self.redactor.learn({name: secret.value for name, secret in secrets.items()})
        return secrets


def key_commands(settings: Settings, redactor: Redactor | None = None) -> dict[str, KeyCommand]:
    """Return the commands that print the keys of providers; `redactor` learns what they print."""
    with_command = {name: own for name, own in settings.providers.items() if own.key_command}
    if not with_command:
        return {}
    from ava_server.models.key_command import KeyCommand

    def learn(name: str, key: str) -> None:
        if redactor is not None:
            redactor.learn({name: key})

    commands: dict[str, KeyCommand] = {}
    for name, own in with_command.items():
        commands[name] = KeyCommand(name, own.key_command, own.key_ttl_s, partial(learn, name))
    return commands


def model_settings(
    settings: Settings, stored: Mapping[str, Key] | None = None, commands: Mapping[str, KeyCommand] | None = None
) -> ModelSettings:
    """Return what the settings say about models. Raises AvaError if a key or a name is invalid.

    `stored` None: read the keys; `commands` None: those of the settings, whose keys nothing learns to redact.
    """
    if stored is None:
        stored = read_keys(settings.paths.keys)
    if commands is None:
        commands = key_commands(settings)
    addresses = provider_addresses(settings)
    providers: dict[str, Provider] = {}
    for name in sorted({*KNOWN_URLS, *settings.providers}):
        own = settings.providers.get(name)
        key = _key_of(name, settings, stored, addresses)
        unused_key = why_unused(name, os.environ, addresses.get(name))
        provider = Provider(
            api_key=key.value if key else None,
            unused_key=unused_key or _why_not_stored(name, settings, stored, addresses),
            key_command=commands.get(name),
        )
        if own is not None:
            provider = replace(
                provider,
                base_url=_address(name, own),
                wire=own.wire,
                like=own.like,
                streaming=own.stream,
                price_as=own.price_as,
            )
        providers[name] = provider
    endpoint_key = None
    if settings.model_api_key:
        endpoint_key = settings.model_api_key.get_secret_value()
    return ModelSettings(
        base_url=settings.model_base_url,
        api_key=endpoint_key,
        model=settings.model,
        tiers={name: model for name, model in settings.models.model_dump().items() if model},
        providers=providers,
        prices={name: UserPrice(**price.model_dump()) for name, price in settings.prices.items()},
    )


def _key_of(name: str, settings: Settings, stored: Mapping[str, Key], addresses: Mapping[str, str]) -> Key | None:
    """Return a provider's key: its own, else that of the provider whose second table it is."""
    address = addresses.get(name)
    sent: Mapping[str, Key] = {}
    if _why_not_stored(name, settings, stored, addresses) is None:
        sent = stored
    own = key_among(sent, name, address)
    if own is not None or address is None:
        return own
    if ("providers", name, "base_url") in settings.from_environment:
        return None
    seller = seller_of(name, address)
    if seller is None:
        return None
    return key_among(stored, seller, address)


def _why_not_stored(
    name: str, settings: Settings, stored: Mapping[str, Key], addresses: Mapping[str, str]
) -> str | None:
    """Return why a stored key is not sent: a variable, which a project's files may set, names another address."""
    variable = settings.from_environment.get(("providers", name, "base_url"))
    if provider_name(name) not in stored or variable is None or is_own_host(name, addresses.get(name, "")):
        return None
    return f"the stored key is not sent to the address that {variable} names: set base_url in config.toml instead"


def _address(name: str, own: ProviderSettings) -> str | None:
    """Return the address of a provider that the settings name: a server on this machine has a usual one."""
    if own.base_url:
        return own.base_url
    known = PROVIDERS.get(name)
    if known is not None and known.kind == "this_machine":
        return known.base_url
    return None


def provider_addresses(settings: Settings) -> dict[str, str]:
    return {name: own.base_url for name, own in settings.providers.items() if own.base_url}


def _in_environment(settings: Settings, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what to redact in the environment: all keys and passwords except placeholders, valid or not."""
    for variable, name in key_variables(env).items():
        if not is_placeholder(env[variable]) or variable.startswith(OWN_PREFIX):
            yield name, env[variable]
    if settings.model_api_key is not None:
        yield "AVA_MODEL_API_KEY", settings.model_api_key.get_secret_value()
    for name in PROXY_VARIABLES:
        yield name, proxy_password(env.get(name, ""))
        yield name, proxy_password(env.get(name.lower(), ""))
    yield "fetch.proxy", proxy_password(settings.fetch.proxy)
