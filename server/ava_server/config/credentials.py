"""Providers, keys and secrets, as they are now: one that was stored meanwhile counts without a new start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_audit.redaction.redact import Redactor
from ava_roles.net.proxies import PROXY_VARIABLES, proxy_password
from ava_server.config.keys import Key, key_among, key_variables, read_keys
from ava_server.config.search_engines import engine_of
from ava_server.config.secrets import Secret, read_secrets
from ava_server.core.files import WatchedFile
from ava_server.models.pricing.prices import UserPrice
from ava_server.models.selection import KNOWN_URLS, ModelSettings, Provider

if TYPE_CHECKING:
    from ava_roles.net.search_engines import Engine
    from ava_server.config.settings import Settings


@dataclass(frozen=True)
class _Keyed:
    """What one reading of `keys.toml` brought: the keys in it, and what the settings and they say about models."""

    stored: Mapping[str, Key]
    models: ModelSettings


class Credentials:
    """What a process may ask models with, what its calls may send, and what it must hide: read again when it changes.

    What is hidden does not depend on what can be read: where a file is broken, only what needs it stops, and all the
    rest goes on, with every value hidden that this process has ever seen.

    Attributes:
        redactor: Replaces every key and secret that this process holds or has held; one object for all runs and for
            the service.
    """

    def __init__(self, settings: Settings) -> None:
        self.redactor = Redactor({})
        for name, value in _given(settings, os.environ):
            self.redactor.learn({name: value})
        self._settings = settings
        self._keyed = WatchedFile(settings.paths.keys, self._read_keys)
        self._secrets = WatchedFile(settings.paths.secrets_file, self._read_secrets)

    @property
    def models(self) -> ModelSettings:
        """Providers, keys, tiers and prices, all of one reading. Blocking.

        Raises:
            AvaError: `keys.toml` cannot be read or holds what is no key, or a provider's variable or name is wrong.
        """
        return self._keyed.current().models

    def search(self, name: str | None = None) -> Engine | None:
        """Return the search engine that is set up, or the one of this name where it is; else None. Blocking.

        Raises:
            AvaError: `keys.toml` cannot be read or holds what is no key, or the key's variable is wrong.
        """
        return engine_of(self._settings.search, self._keyed.current().stored, name)

    @property
    def secrets(self) -> Mapping[str, Secret]:
        """The stored secrets by name, all of one reading. Blocking.

        Raises:
            AvaError: `secrets.toml` cannot be read or holds what is no secret.
        """
        return self._secrets.current()

    async def refresh(self) -> None:
        """Learn what is to be hidden, where a file has changed; one that cannot be read changes nothing."""
        for followed in (self._keyed, self._secrets):
            if followed.is_another:
                await anyio.to_thread.run_sync(followed.learn)

    def _read_keys(self) -> _Keyed:
        keys = read_keys(self._settings.paths.keys)
        self.redactor.learn({name: key.value for name, key in keys.items()})
        return _Keyed(keys, model_settings(self._settings, keys))

    def _read_secrets(self) -> Mapping[str, Secret]:
        secrets = read_secrets(self._settings.paths.secrets_file)
        self.redactor.learn({name: secret.value for name, secret in secrets.items()})
        return secrets


def model_settings(settings: Settings, stored: Mapping[str, Key] | None = None) -> ModelSettings:
    """Return what the settings and the keys say about models.

    Args:
        settings: What is configured.
        stored: The keys in `keys.toml`; None reads them.

    Raises:
        AvaError: A key cannot be one or cannot be read, or a name can be no provider's.
    """
    stored = read_keys(settings.paths.keys) if stored is None else stored
    names = {*KNOWN_URLS, *settings.providers}
    providers = {
        name: Provider(
            base_url=own.base_url if (own := settings.providers.get(name)) else None,
            api_key=key.value if (key := key_among(stored, name)) else None,
            wire=own.wire if own else None,
            streaming=own.stream if own else True,
        )
        for name in sorted(names)
    }
    tiers = settings.models
    given = {"fast": tiers.fast, "balanced": tiers.balanced, "deep": tiers.deep}
    return ModelSettings(
        base_url=settings.model_base_url,
        api_key=settings.model_api_key.get_secret_value() if settings.model_api_key else None,
        model=settings.model,
        tiers={name: model for name, model in given.items() if model},
        providers=providers,
        prices={name: UserPrice(**price.model_dump()) for name, price in settings.prices.items()},
    )


def _given(settings: Settings, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what the environment holds as keys, whether they can be any or not: nobody is to see them."""
    for variable, name in key_variables(env).items():
        yield name, env[variable]
    if settings.model_api_key is not None:
        yield "AVA_MODEL_API_KEY", settings.model_api_key.get_secret_value()
    for name in PROXY_VARIABLES:
        yield name, proxy_password(env.get(name, ""))
        yield name, proxy_password(env.get(name.lower(), ""))
    yield "fetch.proxy", proxy_password(settings.fetch.proxy)
