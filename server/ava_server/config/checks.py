"""Checks of settings before and after pydantic reads them, and the error texts for wrong ones."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError

from ava_roles.net.addresses import masked, proxy_place, server_of_url
from ava_roles.placeholders import PLACEHOLDER
from ava_server.config.host_placeholders import placeholder_in
from ava_server.core.errors import ConfigError, key_shapes

PREFIX = "AVA_"
OWN_NAMES = frozenset({
    "DATA_ROOT", "MODEL_BASE_URL", "MODEL_API_KEY", "MODEL", "WORKSPACE", "DAILY_USD", "HOST", "RUN_ID", "TOKEN", "URL",
})  # fmt: skip
"""Variables that are not settings: they belong to one process, never to `config.toml`."""

FILE_ONLY = ("on_event", "prices", "users", "hosts", "mcp_servers")
"""Settings that run programs, set prices, admit users or trust hosts: no process's environment may set them."""

PROGRAMS = ("on_event", "key_command")
"""Settings that are a command, which Ava runs outside the sandbox."""

_FILE_ONLY_OF_PROVIDERS = {
    "key_command": "runs a program",
    "key_ttl_s": "runs a program",
    "price_as": "sets prices",
}
"""Settings of a provider that no process's environment may set, and why."""

FOR_EVERYBODY = ("enabled", "approval", "hosts", "auto_approve_cents", "auto_approve_daily_cents", "limits", "sandbox")
"""Limits for all users: the log has changes of them and of `workspace.allow`, and a variable may only tighten them."""

PROXY = ("fetch", "proxy")

_STRICTEST_FIRST: dict[tuple[str, ...], tuple[object, ...]] = {
    ("enabled",): (False, True),
    ("approval",): ("human", "by_host", "ask", "auto"),
    ("sandbox", "mode"): ("auto", "none"),
}
_LOWER_IS_STRICTER = (("limits",), ("auto_approve_cents",), ("auto_approve_daily_cents",))
_FEWER_IS_STRICTER = (("sandbox", "read_only"), ("workspace", "allow"))
_ROOTS = ("workspace", "roots")
_HOSTS = ("fetch", "hosts")

_SECRET_NAME = re.compile(
    r"(?:\A|[_.-])(?:api_?key|secret_?key|access_?key|private_?key|key|token|secret|password|passwd|passphrase"
    r"|credentials?|authorization|cookie)\Z",
    re.IGNORECASE,
)
_DOLLARS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,2}))?")

Place = tuple[str, ...]
"""The place of a setting in the tables: `("limits", "running")`."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = r"""\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"""
_NAME = re.compile(rf"(?:{_BARE.pattern}|{_QUOTED})(?:\.(?:{_BARE.pattern}|{_QUOTED}))*")
_VARIABLE_PART = re.compile(rf"({_QUOTED}|(?:(?!__)[^\"'])+)(?:__|\Z)")


def setting_name(path: Place) -> str:
    """`prices."local:qwen3".input`."""
    return ".".join(part if _BARE.fullmatch(part) else _quote(part) for part in path)


def _quote(part: str) -> str:
    return json.dumps(part, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML allows no DEL character


def holds(tables: object, place: Place) -> bool:
    """Tell whether nested tables have a value at a place."""
    for name in place:
        if not isinstance(tables, Mapping) or name not in tables:
            return False
        tables = cast("Mapping[str, object]", tables)[name]
    return True


def parse_setting_name(name: str) -> Place | None:
    """Return None if TOML does not allow the key."""
    if not _NAME.fullmatch(name.strip()):
        return None
    try:
        value: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(value, dict):
        [(part, value)] = cast("dict[str, Any]", value).items()
        path.append(part)
    return tuple(path)


def environment_tree(env: Mapping[str, str], model: type[BaseModel]) -> tuple[dict[str, Any], dict[Place, str]]:
    """Return the settings that `AVA_A__B` variables hold, as nested tables of text and JSON lists, and where each is.

    A part of a variable's name is a key in lower case, or in quotes one as it is written. Empty variables count as
    unset: install dialogs pass them for blank fields. Unknown ones are ignored. Raises ConfigError: a variable looks
    like a misspelt setting, or holds broken JSON or an unfilled placeholder.
    """
    _refuse_unfilled(env.get("AVA_WORKSPACE", ""))
    tree: dict[str, Any] = {}
    variables: dict[Place, str] = {}
    for name in sorted(env):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in OWN_NAMES or rest.startswith("KEY_") or not env[name].strip():
            continue
        path = _variable_path(rest)
        if path is None or path[0] not in model.model_fields:
            _refuse_misspelt(name, rest, model)
            continue
        table = tree
        for part in path[:-1]:
            below: object = table.setdefault(part, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{name}: {part} is set as a single value as well; unset one of them.")
            table = cast("dict[str, Any]", below)
        table[path[-1]] = _read(name, env[name].strip())
        variables[path] = name
    return tree, variables


def _variable_path(rest: str) -> Place | None:
    if '"' not in rest and "'" not in rest:
        return tuple(rest.lower().split("__"))
    parts = _VARIABLE_PART.findall(rest)
    if "__".join(parts) != rest:
        return None
    path: list[str] = []
    for part in parts:
        if part[0] in "\"'":
            names = parse_setting_name(part)
            if names is None:
                return None
            path.extend(names)
        else:
            path.append(part.lower())
    return tuple(path)


def _refuse_unfilled(folder: str) -> None:
    """Refuse a folder with a placeholder: it would be ignored as one that does not exist."""
    placeholder = placeholder_in(folder)
    if placeholder:
        raise ConfigError(
            f"AVA_WORKSPACE is {value_text(folder.strip())}; allowed is an absolute folder, e.g. /srv/code. This host"
            f" did not fill in {value_text(placeholder)}: write the folder there, or leave the variable out."
        )


def _refuse_misspelt(name: str, rest: str, model: type[BaseModel]) -> None:
    known = [*(field.upper() for field in model.model_fields), *OWN_NAMES]
    first, *_ = rest.split("__")
    near = difflib.get_close_matches(first, known, n=1, cutoff=0.75)
    if not near and "__" not in rest:  # it may belong to another program
        return
    hint = "."
    if near:
        hint = f"; did you mean {PREFIX}{near[0]}{rest.removeprefix(first)}?"
    raise ConfigError(f"The environment variable {name} is not a setting of Ava{hint} Correct or unset it.")


def _read(name: str, text: str) -> Any:
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f'{name} is {value_text(text)}; give a list or table as JSON, e.g. ["/srv/code"].') from None


def cents(name: str, dollars: str) -> int:
    """Raises ConfigError: dollars that are negative, a fraction of a cent, or no amount."""
    match = _DOLLARS.fullmatch(dollars)
    if match is None:
        raise ConfigError(
            f"{name} is {value_text(dollars)}; allowed is an amount in dollars from 0 up with at most two decimals, "
            "such as 5 or 2.50, without a sign."
        )
    return int(match[1]) * 100 + int((match[2] or "").ljust(2, "0"))


def refuse_secrets(data: Mapping[str, Any], origin: str) -> None:
    """Raise ConfigError if a setting holds a key or a password, which the error does not show.

    `{{secret:NAME}}` is allowed, and `{secret}` in `agents`: they only name the place of a secret.
    """
    for path, value in leaves(data):
        table = path[0]
        is_placeholder = PLACEHOLDER.search(str(value)) or (table == "agents" and value == "{secret}")
        if is_placeholder:
            continue
        has_secret_name = _SECRET_NAME.search(path[-1])
        name = setting_name(path)
        if table == "mcp_servers":
            if has_secret_name or _looks_like_key(value):
                raise ConfigError(
                    f"{origin}: {name} holds a secret, which does not belong in settings. "
                    "Store it with `ava secret set NAME` and write {{secret:NAME}} instead."
                )
        elif has_secret_name and table != "prices":
            raise ConfigError(
                f"{origin}: {name} is a key, which does not belong in settings. "
                f"Remove it and use `ava key set {_provider_of_key(path)}`."
            )
        elif _looks_like_key(value):
            raise ConfigError(
                f"{origin}: the value of {name} looks like a key or contains a password, which does not belong in"
                f" settings. Use `ava key set PROVIDER` for a key, {variable(path)} for an address."
            )


def _provider_of_key(path: tuple[str, ...]) -> str:
    """Return the provider to which a key among the settings seems to belong, for `ava key set`."""
    *_tables, name = path
    if path[0] == "providers" and len(path) > 2:
        return path[1]
    return re.sub(r"[_-]?(?:api)?[_-]?(?:key|token|secret)\Z", "", name.lower()) or "PROVIDER"


def _looks_like_key(value: object) -> bool:
    return isinstance(value, str) and bool(key_shapes().find_shapes(value))


def leaves(data: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every value in nested tables and lists with the names that lead to it, at least one.

    An empty list is a value, and so is each item of any other list.
    """
    for key, value in data.items():
        items: list[object] = [value]
        if isinstance(value, list) and value:
            items = cast("list[object]", value)
        for item in items:
            if isinstance(item, Mapping):
                yield from leaves(cast("Mapping[str, object]", item), (*path, key))
            else:
                yield (*path, key), item


def refuse_looser(
    environment: Mapping[str, Any], variables: Mapping[Place, str], before: BaseModel, after: BaseModel, config: str
) -> None:
    """Raise ConfigError if a variable sets what only the file may set, or loosens a limit.

    `before` has the settings of `config.toml` and the defaults, `after` also those of the environment.
    """
    paths = [path for path, _value in leaves(environment)]
    for path in dict.fromkeys(paths):  # each item of a list has the path of the list
        name = variable_of(path, variables)
        if path[0] in FILE_ONLY:
            raise ConfigError(f"{name} is set in the environment, but {path[0]} is only allowed in {config}. Unset it.")
        if path[0] == "providers":
            _refuse_for_key_command(path, name, before, config)
        old = _at(before, path)
        new = _at(after, path)
        if path == PROXY and server_of_url(new) != server_of_url(old):
            raise ConfigError(
                f"{name} names the proxy {proxy_place(new)}, and fetch.proxy in {config} {proxy_place(old) or 'none'}."
                " Pages go only through a proxy that the file names: set it there, without a password. The variable may"
                " add user and password to it; otherwise unset it."
            )
        names_first_hosts = path == _HOSTS and new and not old
        if names_first_hosts and _at(before, ("approval",)) == "auto":
            raise ConfigError(
                f"{name} names hosts, and {config} none. Under approval = auto only fetch.hosts there, or a role file,"
                " may name those from which pages are read without a question. Set it there, or unset the variable."
            )
        if _looser(path, old, new, otherwise=path[0] in FOR_EVERYBODY):
            what = name
            if path not in variables:
                what += f": {setting_name(path)}"
            raise ConfigError(
                f"{what} is {value_text(new)}, looser than the {value_text(old)} that applies to everybody. "
                f"The environment may only tighten it; to loosen it, set {setting_name(path)} in {config}."
            )


def _refuse_for_key_command(path: Place, name: str, before: BaseModel, config: str) -> None:
    """Refuse a variable that names a program, or that moves a provider whose key a command of the file prints."""
    setting = ""
    if len(path) > 2:
        setting = path[2]
    if setting in _FILE_ONLY_OF_PROVIDERS:
        raise ConfigError(
            f"{name} is set in the environment, but {setting} {_FILE_ONLY_OF_PROVIDERS[setting]}: only {config} may"
            " have it. Unset it."
        )
    if _at(before, (*path[:2], "key_command")) and setting == "base_url":
        raise ConfigError(
            f"{name} would send the key that key_command prints to another address than the one in {config}. Unset it."
        )


def may_loosen(path: tuple[str, ...], before: BaseModel, after: BaseModel) -> bool:
    """Tell whether a change of `config.toml` may allow more: every change that is not known to tighten something."""
    old = _at(before, path)
    new = _at(after, path)
    if path[0] == "users":  # a user's table only restricts, but for its folders
        return path[-1] == "workspaces"
    return _looser(path, old, new, otherwise=True)


def _looser(path: tuple[str, ...], old: Any, new: Any, *, otherwise: bool) -> bool:
    """Tell whether a change allows more; `otherwise` says it of a change where nothing here says what is stricter."""
    if path in _STRICTEST_FIRST:
        order = _STRICTEST_FIRST[path]
        return order.index(new) > order.index(old)
    if path[:1] in _LOWER_IS_STRICTER:
        return bool(new > old)
    if path in _FEWER_IS_STRICTER:
        return not set(new) <= set(old)
    if path == _HOSTS:
        return not _all_within(new, old, lambda host, allowed: host == allowed)
    if path == _ROOTS and not otherwise:
        return not _all_within(new, old, lambda root, allowed: root.is_relative_to(allowed))
    return otherwise and bool(old != new)


def _all_within(new: Any, old: Any, is_within: Callable[[Any, Any], bool]) -> bool:
    """Tell whether each item of the new list is within one of the old list. An empty list allows everything."""
    if not old:
        return True
    if not new:
        return False
    return all(any(is_within(item, allowed) for allowed in old) for item in new)


def _at(settings: BaseModel, path: tuple[str, ...]) -> Any:
    value: Any = settings
    for part in path:
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(part)
        else:
            value = getattr(value, part, None)
    return value


def variable(path: Place) -> str:
    """Return the variable that sets a setting: `AVA_LIMITS__RUNNING`."""
    parts: list[str] = []
    for part in path:
        is_plain = _BARE.fullmatch(part) and part == part.lower() and "__" not in part
        parts.append(part.upper() if is_plain else _quote(part))
    return PREFIX + "__".join(parts)


def variable_of(path: Place, variables: Mapping[Place, str]) -> str:
    """Return the variable that holds a setting, or its table as JSON, or else that could hold it."""
    for end in range(len(path), 0, -1):
        if path[:end] in variables:
            return variables[path[:end]]
    return variable(path)


def settings_error(
    error: ValidationError, model: type[BaseModel], origin: str | None, variables: Mapping[Place, str] | None = None
) -> ConfigError:
    """Return the error for an invalid setting.

    `origin` is the file that has it. Without one it is from the environment, whose `variables` say which has it.
    """
    faults = error.errors(include_url=False)
    first = faults[0]
    path = tuple(str(part) for part in first["loc"])
    if variables and variable_of(path[:-1], variables) in variables.values():  # a variable has the table as JSON
        origin = variable_of(path, variables)
    place = variable(path)
    if origin:
        place = f"{origin}: {setting_name(path)}"
    if not path:
        text = f"{origin or 'The environment'} does not fit; needed is {_what_is_allowed(dict(first))}."
    elif first["type"] == "extra_forbidden":
        text = f"{place} is not a setting; {_known_there(model, path, as_variables=not origin)}"
    elif first["type"] == "missing":
        text = f"{place} is missing; add it."
    else:
        value = first["input"]
        if path == PROXY and isinstance(value, str):
            value = masked(value)
        text = f"{place} is {value_text(value)}; allowed is {_what_is_allowed(dict(first))}."
    if len(faults) > 1:
        text += f" ({len(faults) - 1} more after this one.)"
    return ConfigError(text)


def _known_there(model: type[BaseModel], path: Place, *, as_variables: bool) -> str:
    """Return a sentence on what an unknown setting may mean: a similar name, or all that its table has."""
    *table, name = path
    fields = sorted(fields_at(model, tuple(table)))
    known = {field: field for field in fields}
    if as_variables:
        known = {field: variable((*table, field)) for field in fields}
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
    if near:
        return f"did you mean {known[near[0]]}?"
    return f"known there: {', '.join(known.values())}."


def fields_at(model: type[BaseModel], path: Place) -> list[str]:
    """Return the fields of the table at a place; none where the place has a value."""
    current: Any = model
    for part in path:
        if _is_model(current):
            current = current.model_fields[part].annotation
        else:  # of a union without None, or of a dict's values
            types = [arg for arg in get_args(current) if arg is not type(None)]
            current = types[-1] if types else None
    if not _is_model(current):
        return []
    return list(current.model_fields)


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _what_is_allowed(error: dict[str, Any]) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    kind = str(error["type"])
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    for start, text in _KINDS.items():
        if kind.startswith(start):
            return text.format(**context)
    message = str(error["msg"])
    return message[:1].lower() + message[1:]


_KINDS = {
    "value_error": "{error}",
    "greater_than_equal": "a number from {ge} up",
    "less_than_equal": "a number up to {le}",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string_too_long": "text of up to {max_length} characters",
    "string_too_short": "text of {min_length} or more characters",
    "string": "text in quotes",
    "path": "a path in quotes",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}


_QUERY = re.compile(r"""([?#])(?!api-version=[\w.-]{1,40}")[^\s"]*=[^\s"]*""")
"""In an address: the query, which may have a key, but for the version of an API."""


def value_text(value: object) -> str:
    """Short, and without what looks like a key; addresses are without their query."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, tuple | list | set):
        value = [str(item) for item in cast("list[object]", value)]
    text, _ = key_shapes().redact(json.dumps(value, ensure_ascii=False, default=str))
    text = _QUERY.sub(r"\1…", text)
    if len(text) > 80:
        text = text[:80] + "…"
    return text
