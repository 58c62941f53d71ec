"""Changing `config.toml`: checked as a start would check it, comments and order kept."""

from __future__ import annotations

import shlex
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from ava_server.config import checks
from ava_server.config.checks import Place, parse_setting_name, setting_name
from ava_server.config.settings import Configured
from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import reason, replace_file
from ava_server.core.ids import did_you_mean

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

LOCK_S = 10.0


def known_settings(configured: Configured) -> dict[Place, Any]:
    found: dict[Place, Any] = {}

    def add(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping) and (value or not path):
            for name, inner in cast("Mapping[str, object]", value).items():
                add(inner, (*path, name))
        else:
            found[path] = value

    add(configured.model_dump(mode="json"), ())
    return found


def parse_value(text: str) -> Any:
    """Return a value as a person types it: TOML (`true`, `5`, `["a"]`), and anything else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_name(name: str) -> Place:
    """Raises BadInput: no key in TOML; the error has the right spelling if there is one."""
    place = parse_setting_name(name)
    if place is None:
        better = "" if {'"', "'"} & set(name) else _with_quotes(name)
        raise BadInput(
            f"{name[:200]!r} is not a setting's name: as in TOML, put quotes around a part that has"
            f" characters other than letters, digits, _ and -{f': {shlex.quote(better)}' if better else ''}"
        )
    return place


def _with_quotes(name: str) -> str:
    """Return a name with quotes around the key of an entry, such as a model's id; empty for what has no entries."""
    head, _, rest = name.partition(".")
    if not (rest and isinstance(getattr(Configured(), head, None), dict)):
        return ""
    key, _, last = rest.rpartition(".")
    return setting_name(
        (head, key, last) if key and last in checks.fields_at(Configured, (head, key)) else (head, rest)
    )


def no_setting(name: str) -> BadInput:
    known = [setting_name(place) for place in known_settings(Configured())]
    better = "" if '"' in name else _with_quotes(name)
    hint = did_you_mean(name, known) if better in ("", name) else f"did you mean {shlex.quote(better)}? "
    return BadInput(f"{name} is not a setting; {hint}`ava config list` has all of them")


def change_settings(path: Path, changes: Mapping[Place, Any]) -> list[Any]:
    """Set values in `config.toml`, or remove them (None); return those before, None where there was none. Blocking.

    Raises BadInput: there is no such setting; ConfigError: a value or the file is invalid or unusable; nothing is
    changed.
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
    """Do what `change_settings` does, in a text; `path` is for errors."""
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
            raise BadInput(f"{setting_name(names)} is not a setting: {each} has no settings below it")
    before: Any = table.get(names[-1])
    before = before.unwrap() if hasattr(before, "unwrap") else before
    if value is not None:
        table[names[-1]] = value
    elif names[-1] in table:
        del table[names[-1]]
    return before


def _check(values: dict[str, Any], path: Path, places: Iterable[Place]) -> None:
    """Raises BadInput: there is no setting of this name; ConfigError: a value is invalid."""
    checks.refuse_secrets(values, str(path))
    try:
        Configured.model_validate(values)
    except ValidationError as error:
        for wrong in error.errors(include_url=False):
            unknown = tuple(map(str, wrong["loc"])) if wrong["type"] == "extra_forbidden" else None
            for place in places:
                if unknown and place[: len(unknown)] == unknown:
                    raise no_setting(setting_name(place)) from None
        raise checks.explained(error, cast("type[BaseModel]", Configured), str(path)) from None
