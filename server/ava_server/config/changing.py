"""Changing `config.toml`: checked as a start would check it, comments and order kept."""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from ava_server.config import checks
from ava_server.config.settings import Configured
from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import reason, replace_file
from ava_server.core.ids import did_you_mean

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

LOCK_S = 10.0


def known_settings(configured: Configured) -> dict[str, Any]:
    """Return every setting by its name in `config.toml`, such as `limits.running`, with its value as JSON."""
    found: dict[str, Any] = {}

    def add(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping) and (value or not path):
            for name, inner in cast("Mapping[str, object]", value).items():
                add(inner, (*path, name))
        else:
            found[".".join(path)] = value

    add(configured.model_dump(mode="json"), ())
    return found


def parse_value(text: str) -> Any:
    """Return a value as a person types it: TOML (`true`, `5`, `["a"]`), and anything else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


Place = tuple[str, ...]
"""Where a setting stands: `("limits", "running")`."""


def change_settings(path: Path, changes: Mapping[Place, Any]) -> list[Any]:
    """Set values in `config.toml`, or remove them (None); return the values before, None where there was none.

    The file is created if it is missing. Blocking.

    Args:
        path: The file.
        changes: The new values.

    Raises:
        BadInput: There is no such setting.
        ConfigError: The value or the file is invalid, or the file cannot be read or written; nothing is changed.
    """
    import portalocker

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()  # a link to it stays a link
        with portalocker.Lock(path.with_name(path.name + ".lock"), timeout=LOCK_S):
            there = path.exists()
            text, before = change_document(path.read_text("utf-8") if there else "", changes, path)
            mode = stat.S_IMODE(path.stat().st_mode) if there else 0o600
            replace_file(path, text.encode(), mode)
            return before
    except portalocker.LockException:
        raise ConfigError(f"Another `ava config` has been writing {path} for {LOCK_S:.0f} s; try again.") from None
    except UnicodeDecodeError as wrong:
        raise ConfigError(f"{path} is not valid TOML: {wrong}. Correct it there; nothing was changed.") from None
    except OSError as failed:
        raise ConfigError(f"{path} cannot be written: {reason(failed)}; nothing was changed.") from failed


def change_document(text: str, changes: Mapping[Place, Any], path: Path) -> tuple[str, list[Any]]:
    """Return settings in TOML with values set, or removed (None), and the values before.

    Args:
        text: The settings until now.
        changes: The new values.
        path: What errors call them.

    Raises:
        BadInput: There is no such setting.
        ConfigError: A value or the text is invalid.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except TOMLKitError as wrong:
        raise ConfigError(f"{path} is not valid TOML: {wrong}. Correct it there; nothing was changed.") from None
    before = [_put(document, place, value) for place, value in changes.items()]
    _check(document.unwrap(), path, changes)
    return tomlkit.dumps(document), before


def _put(document: TOMLDocument, names: Place, value: Any) -> Any:
    import tomlkit

    table: Any = document
    for each in names[:-1]:
        if each not in table:
            if value is None:
                return None
            table[each] = tomlkit.table()
        table = table[each]
        if not hasattr(table, "keys"):
            raise BadInput(f"{'.'.join(names)} is not a setting: {each} has no settings below it")
    before: Any = table.get(names[-1])
    before = before.unwrap() if hasattr(before, "unwrap") else before
    if value is not None:
        table[names[-1]] = value
    elif names[-1] in table:
        del table[names[-1]]
    return before


def _check(values: dict[str, Any], path: Path, places: Iterable[Place]) -> None:
    """Check the whole file.

    Raises:
        BadInput: There is no setting of this name.
        ConfigError: A value is invalid.
    """
    checks.refuse_secrets(values, str(path))
    try:
        Configured.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        if wrong["type"] == "extra_forbidden" and tuple(map(str, wrong["loc"])) in places:
            name = ".".join(map(str, wrong["loc"]))
            hint = did_you_mean(name, known_settings(Configured()))
            raise BadInput(f"{name} is not a setting; {hint}`ava config list` has all of them") from None
        raise checks.explained(error, cast("type[BaseModel]", Configured), str(path)) from None
