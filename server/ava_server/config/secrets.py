"""Secrets for tool calls: kept in `secrets/secrets.toml` of the data root, which only its owner can read.

No repr and no error text contains a value. Each secret has a list of hosts to which it may be sent: a page that talks a
model into sending it elsewhere gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ava_roles.net.addresses import bound_host
from ava_roles.placeholders import SECRET_NAME, has_placeholder
from ava_roles.wrap import clean
from ava_server.core.errors import BadInput, key_shapes
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

SHORTEST = 8
LONGEST = 8_192
MOST_DIGITS = 6
"""A name with more digits may be a secret given by mistake."""


@dataclass(frozen=True)
class Secret:
    """A stored secret."""

    name: str  # as role files and placeholders write it; case counts
    value: str = field(repr=False)
    hosts: tuple[str, ...]  # where it may be sent: `host`, or `host:port`. Without any, no tool can use it
    set_at: str  # when it was stored, in UTC, as ISO 8601


def secret_name(text: str) -> str:
    """Raises BadInput if it is not valid, or may be a secret itself; it is not shown."""
    name = text.strip()
    if not SECRET_NAME.fullmatch(name):
        raise BadInput(
            "A secret's name has letters, digits, `_`, `.` and `-`, a letter or `_` first, at most 64 characters, such"
            " as TICKETS_TOKEN. Give the value only when you are asked for it."
        )
    if may_be_secret(name):
        raise BadInput(
            "The given name may be a secret itself, and was refused. Choose a name with at most"
            f" {MOST_DIGITS} digits, such as TICKETS_TOKEN; you will be asked for the value."
        )
    return name


def may_be_secret(name: str) -> bool:
    """Tell whether a name may be a value given by mistake, which must not be repeated."""
    return sum(char.isdigit() for char in name) > MOST_DIGITS or bool(key_shapes().find_shapes(name))


def hosts_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return hosts as secrets are bound to them, each once; arguments may hold several, separated by commas.

    Raises BadInput if one of them is invalid.
    """
    hosts: list[str] = []
    for text in ",".join(arguments).split(","):
        if not text.strip():
            continue
        try:
            hosts.append(bound_host(text))
        except ValueError as wrong:
            host = clean(text.strip())[0][:80]
            host_text = "" if may_be_secret(host) else repr(host)
            raise BadInput(f"--for {host_text}: {wrong}") from None
    return tuple(dict.fromkeys(hosts))


def read_secrets(path: Path) -> dict[str, Secret]:
    """Return no secrets without a file. Raises ConfigError if it cannot be used."""
    return _file(path).read(_secret, "ava secret set")


def set_secret(name: str, value: str, hosts: Sequence[str] | None, path: Path) -> Secret:
    """Store a secret, without surrounding white space, atomically and for its owner alone.

    `hosts` None keeps those of the existing one. Raises BadInput: name, value or a host is invalid; the value is not
    shown; ConfigError: the file or its folder cannot be used.
    """
    name = secret_name(name)
    value = value.strip()
    fault = _fault(value)
    if fault is not None:
        raise BadInput(f"That cannot be the value of {name}: {fault}. Nothing was stored.")
    bound: tuple[str, ...] = ()
    if hosts is not None:
        bound = hosts_of(hosts)
    _file(path).make_folder()
    before = read_secrets(path).get(name)
    if hosts is None and before is not None:
        bound = before.hosts
    secret = Secret(name, value, bound, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    def edit(document: TOMLDocument) -> None:
        document[name] = {"value": value, "for": list(secret.hosts), "set": secret.set_at}

    _file(path).change(lambda: read_secrets(path), edit)
    return secret


def remove_secret(name: str, path: Path) -> bool:
    """Return False if there was none. Raises BadInput if an invalid name; ConfigError: an unusable file."""
    return _file(path).remove(secret_name(name), lambda: read_secrets(path)) is not None


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "secrets", "ava secret", "ava secret set NAME")


def _secret(name: str, stored: object) -> Secret:
    from ava_server.config.entries import SecretEntry

    entry = SecretEntry.model_validate(stored)  # a ValidationError is a ValueError
    if not SECRET_NAME.fullmatch(name) or _fault(entry.value):
        raise ValueError
    return Secret(name, entry.value, tuple(entry.hosts), entry.set_at[:40])


def _fault(value: str) -> str | None:
    """Say what is wrong without showing the value."""
    if len(value) < SHORTEST:
        return f"it has fewer than {SHORTEST} characters, and would be found in ordinary words"
    if len(value) > LONGEST:
        return f"it has more than {LONGEST:,} characters"
    if not value.isprintable() or clean(value)[0] != value:
        return "it contains a line break, a tab or an invisible character"
    if value != value.strip():
        return "it begins or ends with white space"
    if has_placeholder(value):
        return "it is a placeholder"
    return None
