"""Providers and keys, as they are now: a key that was stored meanwhile counts without a new start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.redact import Redactor
from ava_server.keys import find_key, list_keys
from ava_server.models.choose import KNOWN_URLS, ModelSettings, Provider
from ava_server.prices import UserPrice

if TYPE_CHECKING:
    from ava_server.settings import Settings


class Access:
    """What a process may ask models with, and what it must hide: read again when `keys.toml` is another."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: tuple[int, ...] | None = None
        self._read: tuple[ModelSettings, Redactor] | None = None

    @property
    def models(self) -> ModelSettings:
        """Providers, keys, tiers and prices. Blocking.

        Raises:
            ConfigError: `keys.toml` cannot be read, or holds what is no key.
        """
        return self._now()[0]

    @property
    def redactor(self) -> Redactor:
        """Replaces every key that this process holds. Blocking.

        Raises:
            ConfigError: `keys.toml` cannot be read, or holds what is no key.
        """
        return self._now()[1]

    def _now(self) -> tuple[ModelSettings, Redactor]:
        seen = _look(self._settings.paths.keys)
        if self._read is None or seen != self._seen:
            self._read = model_settings(self._settings), _redactor(self._settings)
            self._seen = seen
        return self._read


def model_settings(settings: Settings) -> ModelSettings:
    """Return what the settings and the stored keys say about models."""
    names = {*KNOWN_URLS, *settings.providers}
    providers = {
        name: Provider(
            base_url=own.base_url if (own := settings.providers.get(name)) else None,
            api_key=key.value if (key := find_key(name, settings.paths.keys)) else None,
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


def _redactor(settings: Settings) -> Redactor:
    keys = {key.provider: key.value for key in list_keys(settings.paths.keys)}
    if settings.model_api_key is not None:
        keys["AVA_MODEL_API_KEY"] = settings.model_api_key.get_secret_value()
    return Redactor(keys)


def _look(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another one in its place."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
