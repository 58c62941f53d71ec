"""The limits of users: `[users]` in `config.toml`, and with Postgres also a document that all servers share.

`ava user` and administrators change the shared document where there is one. Each value in it goes before the same value
in a machine's `config.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ava_server.config import checks
from ava_server.config.changing import change_document, change_settings
from ava_server.config.checks import Place
from ava_server.config.settings import Configured, UserSettings, merged, read_config
from ava_server.core.documents import shared_document
from ava_server.core.errors import ConfigError
from ava_server.core.files import WatchedFile

if TYPE_CHECKING:
    from ava_server.config.settings import Settings
    from ava_server.core.data_root import DataRoot


def read_users(root: DataRoot) -> dict[str, UserSettings]:
    """Return the users that are limited. Blocking. Raises ConfigError: `config.toml` or the document is unusable."""
    values = read_config(root.config)
    document = shared_document(root.shared_users)
    try:
        own = Configured.model_validate(values).users
        shared = {} if document is None else tomllib.loads(document.text)
        if not shared:
            return own
        both = merged({"users": values.get("users", {})}, shared)
        return Configured.model_validate(both).users
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"the limits of users in the database are not valid TOML: {wrong}") from None
    except ValidationError as wrong:
        raise checks.explained(wrong, Configured, str(root.config)) from None


def with_shared_users(settings: Settings) -> Settings:
    """Return settings with the limits that all servers share, if any. Blocking. Raises ConfigError."""
    if shared_document(settings.paths.shared_users) is None:
        return settings
    return settings.model_copy(update={"users": read_users(settings.paths)})


def change_users(root: DataRoot, changes: Mapping[Place, Any]) -> list[Any]:
    """Set limits of users, or remove them (None); return the values before. Blocking.

    A removal also takes them out of this machine's `config.toml`, where they would count again. Raises BadInput: there
    is no such limit; ConfigError: a limit is invalid, or cannot be stored; nothing is changed.
    """
    shared = shared_document(root.shared_users)
    if shared is None:
        return change_settings(root.config, changes)
    before: list[Any] = []

    def edit(text: str) -> str:
        text, found = change_document(text, changes, root.config)
        before.extend(found)
        return text

    shared.change(edit)
    tables = read_config(root.config)
    if removed := {place: None for place, value in changes.items() if value is None and checks.holds(tables, place)}:
        for place, value in zip(removed, change_settings(root.config, removed), strict=True):
            at = list(changes).index(place)
            before[at] = merged(cast("dict[str, Any]", value), before[at] or {}) if isinstance(value, dict) else value
    return before


class WatchedUsers:
    """The limits of users as they are now."""

    def __init__(self, root: DataRoot) -> None:
        self._root = root
        self._files = [WatchedFile(path, lambda: root) for path in (root.config, root.shared_users)]

    def changed(self) -> dict[str, UserSettings] | None:
        """Return None if their limits have not changed since the last call. Blocking. Raises ConfigError."""
        if not any(each.is_changed for each in self._files):
            return None
        for each in self._files:
            each.current()
        return read_users(self._root)
