"""Keys of providers: from the environment, else from `keys.toml`, which is for its owner's eyes alone.

Hosts often filter the environment of the servers that they start; `ava key set` is for them. A value is in no
repr and in no error text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


@dataclass(frozen=True)
class KnownProvider:
    """What is known of a provider by its name.

    Attributes:
        variable: Where people usually have its key.
        base_url: Where its models, or its searches, are asked.
        models: It has models, and not a web search.
    """

    variable: str
    base_url: str
    models: bool = True


PROVIDERS: Mapping[str, KnownProvider] = {
    "openrouter": KnownProvider("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "anthropic": KnownProvider("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    "openai": KnownProvider("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "groq": KnownProvider("GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "kagi": KnownProvider("KAGI_API_KEY", "https://kagi.com/api/v1", models=False),
    "brave": KnownProvider("BRAVE_API_KEY", "https://api.search.brave.com/res/v1", models=False),
}
"""In the order of preference where several have a key."""


WELL_KNOWN: Mapping[str, str] = {name: known.variable for name, known in PROVIDERS.items()}
"""The providers that are known by name, and the variable in which people usually have their key."""

SEARCHES = frozenset(name for name, known in PROVIDERS.items() if not known.models)
"""Those among them that search the web, and have no models."""

OWN_PREFIX = "AVA_KEY_"
SHORTEST = 8
LONGEST_SHOWN, MOST_DIGITS = 24, 6
"""A name with more characters, or more digits among them, may be a key in a name's place."""
_VARIABLE = re.compile(
    r"(?:export|set|setx|setenv)\s+\S|(?i:\$env:)"
    r"|[A-Z_][A-Z0-9_]*\s*=\s*[^\s=]"  # a key may end in `=`
    r"|(?i:[\w.-]*(?:key|token|secret))\s*[=:]\s*[^\s=]"
)
_QUOTES = "\"'`“”‘’«»"
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9_]{0,40}")


@dataclass(frozen=True)
class Key:
    """A key and where it came from: the name of a variable, or the path of `keys.toml`."""

    provider: str
    where: str
    value: str = field(repr=False)


def find_key(provider: str, keys_file: Path, env: Mapping[str, str] | None = None) -> Key | None:
    """Return a provider's key: `AVA_KEY_<PROVIDER>`, else the usual variable, else the one in the file.

    Args:
        provider: The provider's name; case does not matter, and `-` is `_`.
        keys_file: `keys.toml` of the data root; it need not exist.
        env: The environment; None is this process's.

    Raises:
        BadInput: The name can be no provider's.
        ConfigError: The key cannot be one, or the file may not be trusted or read.
    """
    name = provider_name(provider)
    return _from_environment(name, os.environ if env is None else env) or read_keys(keys_file).get(name)


def key_among(stored: Mapping[str, Key], provider: str, env: Mapping[str, str] | None = None) -> Key | None:
    """Return a provider's key as `find_key` does, with the file's keys already read.

    Raises:
        BadInput: The name can be no provider's.
        ConfigError: The key in the environment cannot be one.
    """
    name = provider_name(provider)
    return _from_environment(name, os.environ if env is None else env) or stored.get(name)


def key_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold a provider's key, each with the provider; what they hold is not looked at."""
    usual = {variable: provider for provider, variable in WELL_KNOWN.items()}
    return {
        name: usual.get(name) or name.removeprefix(OWN_PREFIX).lower()
        for name in env
        if name in usual or name.startswith(OWN_PREFIX)
    }


def list_keys(keys_file: Path, env: Mapping[str, str] | None = None) -> list[Key]:
    """Return the key that holds for each provider that has one, sorted by provider.

    Raises:
        ConfigError: A key cannot be one, or the file may not be trusted or read.
    """
    env = os.environ if env is None else env
    keys = read_keys(keys_file)
    for provider in {name for name in key_variables(env).values() if _PROVIDER.fullmatch(name)}:
        key = _from_environment(provider, env)
        if key is not None:
            keys[provider] = key
    return [keys[provider] for provider in sorted(keys)]


def set_key(provider: str, value: str, keys_file: Path) -> None:
    """Store a key in the file, atomically and for its owner alone; one that is there is replaced.

    Raises:
        BadInput: The name or the value cannot be one; the value is not shown.
        ConfigError: The file may not be trusted, read or written.
    """
    name = provider_name(provider)
    value = value.strip()
    fault = _copied_too_much(value) or _fault(value)
    if fault:
        whose = "this provider" if may_be_key(provider) else name
        raise BadInput(f"That is no key for {whose}: {fault}. Copy the key alone, in one piece.")
    _rewrite(keys_file, name, value)


def remove_key(provider: str, keys_file: Path) -> bool:
    """Remove a key from the file; False when it held none for this provider.

    Raises:
        BadInput: The name can be no provider's.
        ConfigError: The file may not be trusted, read or written.
    """
    name = provider_name(provider)
    if name not in read_keys(keys_file):
        return False
    _rewrite(keys_file, name, None)
    return True


def provider_name(provider: str) -> str:
    """Return a provider's name as keys are stored under it: lower case, `_` for `-`.

    Raises:
        BadInput: It can be no provider's name.
    """
    name = provider.strip().lower().replace("-", "_")
    if not _PROVIDER.fullmatch(name):
        # A key typed in the name's place must not be shown.
        raise BadInput(
            "A provider's name has letters, digits, `-` and `_`, at most 41 characters; "
            "`ava key set --help` names the known ones. Give the key itself only when you are asked for it."
        )
    return name


def may_be_key(provider: str) -> bool:
    """Tell whether what was given as a provider's name may be a key in its place, and is not to be repeated."""
    from ava_audit.redaction.redact import Redactor

    digits = sum(char.isdigit() for char in provider)
    return len(provider.strip()) > LONGEST_SHOWN or digits > MOST_DIGITS or bool(Redactor({}).find_shapes(provider))


def _from_environment(provider: str, env: Mapping[str, str]) -> Key | None:
    for variable in (OWN_PREFIX + provider.upper(), WELL_KNOWN.get(provider, "")):
        value = env.get(variable, "").strip()
        if value:
            fault = _fault(value)
            if fault:
                raise ConfigError(f"{variable} holds no key: {fault}. Correct or unset it.")
            return Key(provider, variable, value)
    return None


def read_keys(path: Path) -> dict[str, Key]:
    """Return the keys in the file by provider, all of one reading; none when there is no file.

    Raises:
        ConfigError: The file may not be trusted or read, or holds what is no key.
    """
    keys: dict[str, Key] = {}
    file = _file(path)
    for name, value in file.entries().items():
        if not isinstance(value, str) or _fault(value) or not _PROVIDER.fullmatch(name):
            raise ConfigError(f'{path}: an entry is not of the form provider = "key". {file.anew}')
        keys[name] = Key(name, str(path), value)
    return keys


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "keys", "ava key", "ava key set PROVIDER")


def _rewrite(path: Path, provider: str, value: str | None) -> None:
    def edit(document: TOMLDocument) -> None:
        if value is not None:
            document[provider] = value
        elif provider in document:
            del document[provider]

    _file(path).change(lambda: read_keys(path), edit)


def _copied_too_much(value: str) -> str | None:
    """Return what was copied along with a key, without showing either."""
    if _VARIABLE.match(value):
        return "it begins with the name of a variable, as in a file of variables"
    if value[:1] in _QUOTES or value[-1:] in _QUOTES:
        return "it stands in quotes"
    return None


def _fault(value: str) -> str | None:
    """Return why a value can be no key, without showing it."""
    if len(value) < SHORTEST:
        return f"it has fewer than {SHORTEST} characters"
    if any(char.isspace() for char in value):
        return "it has white space in it"
    if not value.isascii() or not value.isprintable():
        return "it has characters that no key has"
    return None
