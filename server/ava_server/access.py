"""Providers and keys, as they are now: a key that was stored meanwhile counts without a new start."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_audit.redact import Redactor
from ava_server.errors import AvaError
from ava_server.keys import Key, key_among, key_variables, read_keys
from ava_server.models.choose import KNOWN_URLS, ModelSettings, Provider
from ava_server.prices import UserPrice

if TYPE_CHECKING:
    from ava_server.settings import Settings


class Access:
    """What a process may ask models with, and what it must hide: read again when `keys.toml` is another.

    What is hidden does not depend on what can be read: where the file is broken nothing new is asked of a model, and
    all the rest goes on, with every key hidden that this process has ever seen.

    Attributes:
        redactor: Replaces every key that this process holds or has held; one object for all runs and for the desk.
    """

    def __init__(self, settings: Settings) -> None:
        self.redactor = Redactor({})
        for name, value in _given(settings, os.environ):
            self.redactor.learn({name: value})
        self._settings = settings
        self._reading = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._models: ModelSettings | None = None

    @property
    def models(self) -> ModelSettings:
        """Providers, keys, tiers and prices, all of one reading. Blocking.

        Raises:
            AvaError: `keys.toml` cannot be read or holds what is no key, or a provider's variable or name is wrong.
        """
        with self._reading:
            seen = _look(self._settings.paths.keys)
            if self._models is None or seen != self._seen:
                self._read(seen)
            assert self._models is not None
            return self._models

    async def refresh(self) -> None:
        """Learn what is to be hidden, where `keys.toml` has changed; one that cannot be read changes nothing."""
        if _look(self._settings.paths.keys) != self._seen:
            await anyio.to_thread.run_sync(self._learn)

    def _learn(self) -> None:
        with self._reading:
            seen = _look(self._settings.paths.keys)
            if seen != self._seen:
                with contextlib.suppress(AvaError):  # told by `models`, to whoever needs a key
                    self._read(seen)

    def _read(self, seen: tuple[int, ...]) -> None:
        """Read the file once, for models and redactor alike; `seen` is how it looked before, so that none is missed."""
        self._models = None
        try:
            keys = read_keys(self._settings.paths.keys)
            self.redactor.learn({name: key.value for name, key in keys.items()})
            self._models = model_settings(self._settings, keys)
        finally:
            self._seen = seen  # last: whoever finds it so has nothing to wait for


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


def _look(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another one in its place, and from itself under other permissions."""
    try:
        status = path.lstat()
    except OSError as failed:
        return (failed.errno or 0,)
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
