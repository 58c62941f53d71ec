"""Keys of providers: from the environment, else from `keys.toml`, which only its owner can read.

Hosts often filter the environment of the servers that they start; `ava key set` is for them. No repr and no error text
contains a value.

Other programs use the usual variables too. So Ava ignores a value that is not a key, and a key for a gateway.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ava_roles.net.addresses import server_of_url
from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import PrivateFile
from ava_server.models.providers import PROVIDERS

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

WELL_KNOWN: Mapping[str, str] = {name: known.variable for name, known in PROVIDERS.items() if known.variable}
"""The providers with a variable that usually holds their key."""

TAKES_KEYS = frozenset(name for name, known in PROVIDERS.items() if known.kind != "this_machine")

VARIABLES: Mapping[str, tuple[str, ...]] = {
    name: (variable, *PROVIDERS[name].also) for name, variable in WELL_KNOWN.items()
}
"""All variables that usually hold their keys, for each in the order in which they are looked at."""

KEY_VARIABLES: Mapping[str, str] = {one: name for name, variables in VARIABLES.items() for one in variables}
"""The provider of each of these variables."""

DEFAULT_ADDRESSES: Mapping[str, str] = {}
"""No addresses in the settings: each provider is called at its own."""

DELIVERS = frozenset({"nats", "temporal"})
"""The engines that deliver runs (`[delivery]`): their credentials are stored as a key is."""

SEARCHES = frozenset(name for name, known in PROVIDERS.items() if not known.models)

OWN_PREFIX = "AVA_KEY_"
SHORTEST = 8
LONGEST_SHOWN = 24
"""A name with more characters may be a key given by mistake."""
_VARIABLE = re.compile(
    r"(?:export|set|setx|setenv)\s+\S|(?i:\$env:)"
    r"|[A-Z_][A-Z0-9_]*\s*=\s*[^\s=]"  # a key may end in `=`
    r"|(?i:[\w.-]*(?:key|token|secret))\s*[=:]\s*[^\s=]"
)
_QUOTES = "\"'`“”‘’«»"
_WORDS = re.compile(r"[a-z]+(?:[-_][a-z]+)*|[A-Z]+(?:[-_][A-Z]+)*")
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9_]{0,40}")


@dataclass(frozen=True)
class Key:
    """A key and where it came from: the name of a variable, or the path of `keys.toml`."""

    provider: str
    where: str
    value: str = field(repr=False)


def find_key(
    provider: str,
    keys_file: Path,
    env: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] = DEFAULT_ADDRESSES,
) -> Key | None:
    """Return a provider's key: `AVA_KEY_<PROVIDER>`, else the usual variable, else the one in the file, if it exists.

    Case does not matter in the name, and `-` is `_`. A provider that is not in `addresses` is called at its own. Raises
    BadInput: the name is invalid; ConfigError: the key is, or the file cannot be used.
    """
    if env is None:
        env = os.environ
    name = provider_name(provider)
    key = _from_environment(name, env, addresses.get(name))
    return key or read_keys(keys_file).get(name)


def key_among(stored: Mapping[str, Key], provider: str, address: str | None = None) -> Key | None:
    name = provider_name(provider)
    return _from_environment(name, os.environ, address) or stored.get(name)


def key_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold a provider's key, each with the provider; the values are not checked."""
    providers: dict[str, str] = {}
    for name in env:
        if name in KEY_VARIABLES:
            providers[name] = KEY_VARIABLES[name]
        elif name.startswith(OWN_PREFIX):
            providers[name] = name.removeprefix(OWN_PREFIX).lower()
    return providers


def list_keys(
    keys_file: Path, env: Mapping[str, str] | None = None, addresses: Mapping[str, str] = DEFAULT_ADDRESSES
) -> list[Key]:
    """Return the key in force for each provider, sorted. Raises ConfigError: a key is invalid, or the file unusable."""
    if env is None:
        env = os.environ
    keys = read_keys(keys_file)
    for provider in set(key_variables(env).values()):
        if not _PROVIDER.fullmatch(provider):
            continue
        key = _from_environment(provider, env, addresses.get(provider))
        if key is not None:
            keys[provider] = key
    return [keys[provider] for provider in sorted(keys)]


def set_key(provider: str, value: str, keys_file: Path) -> None:
    """Store a key in the file, atomically and for its owner alone.

    Raises BadInput: name or value is invalid; it is not shown; ConfigError: the file cannot be used.
    """
    name = provider_name(provider)
    value = value.strip()
    fault = _copied_too_much(value) or _fault(value)
    if fault:
        whose = "this provider" if may_be_key(provider) else name
        raise BadInput(f"That is not a key for {whose}: {fault}. Copy only the key, in one piece.")

    def edit(document: TOMLDocument) -> None:
        document[name] = value

    _file(keys_file).change(lambda: read_keys(keys_file), edit)


def remove_key(provider: str, keys_file: Path) -> bool:
    """Return False if there was none. Raises BadInput if an invalid name; ConfigError: an unusable file."""
    return _file(keys_file).remove(provider_name(provider), lambda: read_keys(keys_file)) is not None


def provider_name(provider: str) -> str:
    """Return a provider's name as keys have it: lower case, `_` for `-`. Raises BadInput if it is invalid."""
    name = provider.strip().lower().replace("-", "_")
    if not _PROVIDER.fullmatch(name):
        # A key typed instead of the name must not be shown.
        raise BadInput(
            "A provider's name has letters, digits, `-` and `_`, at most 41 characters; `ava key set --help` lists the"
            " known ones. Give the key itself only when you are asked for it."
        )
    return name


def may_be_key(provider: str) -> bool:
    """Tell whether a provider's name may be a key given by mistake, which must not be repeated."""
    from ava_server.config.secrets import may_be_secret

    return len(provider.strip()) > LONGEST_SHOWN or may_be_secret(provider)


def address_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that tell other programs where to send the key in a known provider's usual variable."""
    programs = WELL_KNOWN[provider].removesuffix("API_KEY")
    if programs == WELL_KNOWN[provider]:
        return PROVIDERS[provider].address_variables
    return f"{programs}BASE_URL", f"{programs}API_BASE", *PROVIDERS[provider].address_variables


def set_variables(provider: str, env: Mapping[str, str]) -> list[str]:
    """Return which of a provider's usual variables are set."""
    return [variable for variable in VARIABLES.get(provider, ()) if env.get(variable, "").strip()]


def why_unused(provider: str, env: Mapping[str, str], address: str | None = None) -> str | None:
    """Return why a provider's usual variable is set but not used; None if none is set, or one is used.

    `address` is the one at which the provider is called; None for its own. Of several variables, the first one's reason
    is returned.
    """
    reasons = [_why_unused(provider, variable, env, address) for variable in set_variables(provider, env)]
    if not reasons or None in reasons:
        return None
    return reasons[0]


def _why_unused(provider: str, variable: str, env: Mapping[str, str], address: str | None) -> str | None:
    for name in address_variables(provider):
        other = env.get(name, "").strip()
        if not other:
            continue
        server = server_of_url(other)
        if server != server_of_url(address or PROVIDERS[provider].base_url):
            host = "another address"
            if server is not None:
                _scheme, host, *_ = server
            return f"{variable} is not used: {name} is set, so that key is for {host}"
    value = env[variable].strip()
    fault = _fault(value)
    if is_placeholder(value):
        fault = "it is a placeholder"
    if fault is None:
        return None
    return f"{variable} is not used, because its value is not a key: {fault}"


def is_placeholder(value: str) -> bool:
    """Tell whether a value is only words, such as `dummy` or `your-api-key-here`; no real key is."""
    return _WORDS.fullmatch(value.strip()) is not None


def _from_environment(provider: str, env: Mapping[str, str], address: str | None) -> Key | None:
    variable = OWN_PREFIX + provider.upper()
    value = env.get(variable, "").strip()
    if value:
        fault = _fault(value)
        if fault is not None:
            raise ConfigError(f"{variable} does not hold a key: {fault}. Correct or unset it.")
        return Key(provider, variable, value)
    for usual in set_variables(provider, env):
        if _why_unused(provider, usual, env, address) is None:
            return Key(provider, usual, env[usual].strip())
    return None


def read_keys(path: Path) -> dict[str, Key]:
    """Return no keys without a file. Raises ConfigError if it cannot be used."""
    keys: dict[str, Key] = {}
    file = _file(path)
    for name, value in file.entries().items():
        if not isinstance(value, str) or _fault(value) or not _PROVIDER.fullmatch(name):
            raise ConfigError(f'{path}: an entry does not have the form provider = "key". {file.remedy}')
        keys[name] = Key(name, str(path), value)
    return keys


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "keys", "ava key", "ava key set PROVIDER")


def _copied_too_much(value: str) -> str | None:
    """Say what is wrong without showing either."""
    if _VARIABLE.match(value):
        return "it begins with the name of a variable, as in a file of variables"
    if value[:1] in _QUOTES or value[-1:] in _QUOTES:
        return "it is in quotes"
    return None


def _fault(value: str) -> str | None:
    """Say what is wrong without showing the value."""
    if len(value) < SHORTEST:
        return f"it has fewer than {SHORTEST} characters"
    if any(char.isspace() for char in value):
        return "it contains white space"
    if not value.isascii() or not value.isprintable():
        return "it contains characters that keys never have"
    return None
