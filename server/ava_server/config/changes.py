"""Changes of `config.toml`, checked as a start would check them, with comments and order kept; and the limits of users.

Those are in `[users]` of `config.toml`, and with Postgres also in a file that all servers share. `ava user` and
administrators change the shared file where there is one. Each value in it goes before the same value in a machine's
`config.toml`.
"""

from __future__ import annotations

import json
import shlex
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from ava_server.config import checks
from ava_server.config.checks import Place, parse_setting_name, setting_name
from ava_server.config.settings import Configured, UserSettings, merge, read_config
from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import WatchedFile, reason, replace_file, writing_alone
from ava_server.core.ids import did_you_mean
from ava_server.core.shared_files import shared_file

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from ava_server.config.settings import Settings
    from ava_server.core.data_root import DataRoot


def known_settings(configured: Configured) -> dict[Place, Any]:
    values: dict[Place, Any] = {}

    def add(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping) and (value or not path):
            for name, inner in cast("Mapping[str, object]", value).items():
                add(inner, (*path, name))
        else:
            values[path] = value

    add(configured.model_dump(mode="json"), ())
    return values


def parse_value(text: str) -> Any:
    """Return a value as a person types it: TOML (`true`, `5`, `["a"]`), and anything else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_name(name: str) -> Place:
    """Raises BadInput: no key in TOML; the error has the right spelling if there is one."""
    place = parse_setting_name(name)
    if place is not None:
        return place
    example = ""
    if '"' not in name and "'" not in name:
        quoted = _with_quotes(name)
        if quoted:
            example = f": {shlex.quote(quoted)}"
    raise BadInput(
        f"{name[:200]!r} is not a setting's name: as in TOML, put quotes around a part that has"
        f" characters other than letters, digits, _ and -{example}"
    )


def _with_quotes(name: str) -> str:
    """Return a name with quotes around the key of an entry, such as a model's id; empty for what has no entries."""
    table, _, rest = name.partition(".")
    if not rest or not isinstance(getattr(Configured(), table, None), dict):
        return ""
    key, _, field = rest.rpartition(".")
    if key and field in checks.fields_at(Configured, (table, key)):
        return setting_name((table, key, field))
    return setting_name((table, rest))


def no_setting(name: str) -> BadInput:
    known = [setting_name(place) for place in known_settings(Configured())]
    quoted = ""
    if '"' not in name:
        quoted = _with_quotes(name)
    if quoted in ("", name):
        hint = did_you_mean(name, known)
    else:
        hint = f"did you mean {shlex.quote(quoted)}? "
    return BadInput(f"{name} is not a setting; {hint}`ava config list` has all of them")


def change_settings(path: Path, changes: Mapping[Place, Any]) -> list[Any]:
    """Set values in `config.toml`, or remove them (None); return the values before, None for unset ones. Blocking.

    Raises BadInput if there is no such setting; ConfigError if a value or the file is invalid or unusable; nothing is
    changed.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()  # a link to it stays a link
        with writing_alone(path.with_name(path.name + ".lock"), "ava config", path):
            text, mode = "", 0o600
            if path.exists():
                text, mode = path.read_text("utf-8"), stat.S_IMODE(path.stat().st_mode)
            text, before = change_document(text, changes, path)
            replace_file(path, text.encode(), mode)
            return before
    except UnicodeDecodeError as wrong:
        raise ConfigError(f"{path} is not valid TOML: {wrong}. Correct it there; nothing was changed.") from None
    except OSError as failed:
        raise ConfigError(f"{path} cannot be written: {reason(failed)}; nothing was changed.") from failed


def change_document(text: str, changes: Mapping[Place, Any], path: Path) -> tuple[str, list[Any]]:
    """Do what `change_settings` does, in a text; `path` is for errors."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    try:
        tomllib.loads(text)  # its errors are clearer than tomlkit's
        document = tomlkit.parse(text)
    except (tomllib.TOMLDecodeError, TOMLKitError) as wrong:
        raise ConfigError(f"{path} is not valid TOML: {wrong}. Correct it there; nothing was changed.") from None
    before = [_put(document, place, value) for place, value in changes.items()]
    _check(document.unwrap(), path, changes)
    return mark + tomlkit.dumps(document), before


def _put(document: TOMLDocument, place: Place, value: Any) -> Any:
    """Set a value, or remove it (None); return the value before."""
    import tomlkit

    table: Any = document
    *tables, last = place
    for name in tables:
        if name not in table:
            if value is None:
                return None
            table[name] = tomlkit.table()
        table = table[name]
        if not hasattr(table, "keys"):
            raise BadInput(f"{setting_name(place)} is not a setting: {name} has no settings below it")
    before: Any = table.get(last)
    if hasattr(before, "unwrap"):
        before = before.unwrap()
    if value is not None:
        table[last] = value
    elif last in table:
        del table[last]
    return before


def _check(values: dict[str, Any], path: Path, changes: Mapping[Place, Any]) -> None:
    """Raises BadInput if no setting has this name, or it needs others with it; ConfigError if a value is invalid."""
    checks.refuse_secrets(values, str(path))
    try:
        Configured.model_validate(values)
    except ValidationError as error:
        unknown: list[Place] = []
        missing: list[Place] = []
        for fault in error.errors(include_url=False):
            location = tuple(map(str, fault["loc"]))
            if fault["type"] == "extra_forbidden" and location:
                unknown.append(location)
            elif fault["type"] == "missing":
                missing.append(location)
        for location in unknown:
            for place in changes:
                if place[: len(location)] == location:
                    raise no_setting(setting_name(place)) from None
        for place, value in changes.items():
            others = [location[-1] for location in missing if location[:-1] == place[:-1]]
            if others:
                raise _needs_others(place, value, others) from None
        raise checks.settings_error(error, cast("type[BaseModel]", Configured), str(path)) from None


def _needs_others(place: Place, value: Any, others: Sequence[str]) -> BadInput:
    """Return the error of one setting of a table that counts only with others, with the command that works."""
    entry = setting_name(place[:-1])
    if value is None:
        command = f"ava config unset {shlex.quote(entry)}"
        return BadInput(f"{setting_name(place)} cannot be removed alone: to remove the whole entry, run `{command}`")
    placeholders = [name.upper() for name in others]
    pairs = [f"{place[-1]} = {json.dumps(value)}"]
    for name, placeholder in zip(others, placeholders, strict=True):
        pairs.append(f"{name} = {placeholder}")
    command = f"ava config set {shlex.quote(entry)} '{{{', '.join(pairs)}}}'"
    return BadInput(
        f"{setting_name(place)} counts only together with {', '.join(others)}: set them at once with `{command}`, and a"
        f" value for {', '.join(placeholders)}"
    )


# -- users ------------------------------------------------------------------------------------------------------------


def read_users(root: DataRoot) -> dict[str, UserSettings]:
    """Return the users that are limited. Blocking. Raises ConfigError: `config.toml` or the shared file is unusable."""
    values = read_config(root.config)
    stored = shared_file(root.shared_users)
    try:
        own = Configured.model_validate(values).users
        shared = {} if stored is None else tomllib.loads(stored.text)
        if not shared:
            return own
        both = merge({"users": values.get("users", {})}, shared)
        return Configured.model_validate(both).users
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"the limits of users in the database are not valid TOML: {wrong}") from None
    except ValidationError as wrong:
        raise checks.settings_error(wrong, Configured, str(root.config)) from None


def with_shared_users(settings: Settings) -> Settings:
    """Return settings with the limits that all servers share, if any. Blocking. Raises ConfigError."""
    if shared_file(settings.paths.shared_users) is None:
        return settings
    return settings.model_copy(update={"users": read_users(settings.paths)})


def change_users(root: DataRoot, changes: Mapping[Place, Any]) -> list[Any]:
    """Set limits of users, or remove them (None); return the values before. Blocking.

    A removal also takes them out of this machine's `config.toml`, where they would count again. Raises BadInput: there
    is no such limit; ConfigError: a limit is invalid, or cannot be stored; nothing is changed.
    """
    shared = shared_file(root.shared_users)
    if shared is None:
        return change_settings(root.config, changes)
    before: list[Any] = []

    def edit(text: str) -> str:
        text, values = change_document(text, changes, root.config)
        before.extend(values)
        return text

    shared.change(edit)
    tables = read_config(root.config)
    removals = {place: None for place, value in changes.items() if value is None and checks.holds(tables, place)}
    if not removals:
        return before
    index = {place: number for number, place in enumerate(changes)}
    for place, value in zip(removals, change_settings(root.config, removals), strict=True):
        at = index[place]
        if isinstance(value, dict):
            before[at] = merge(cast("dict[str, Any]", value), before[at] or {})
        else:
            before[at] = value
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
