"""Tokens of the HTTP server: whom a request acts for, and what it may do. Only their hashes are kept.

A token is 256 random bits, shown once. Its plain SHA-256 is what is stored: salt and a slow hash protect secrets that
somebody can guess, and nobody guesses one of 2^256; a slow hash on every request would only be a way to keep the
server busy.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ava_audit.units import iso_utc
from ava_server.config.secrets import may_be_secret
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.files import PrivateFile, WatchedFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Scope = Literal["spawn", "read", "audit", "approve"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
BEGINS = "avatok_"
"""How every token begins: so it is known for what it is wherever it turns up, and replaced."""
_BYTES = 32
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIFE = re.compile(r"([1-9][0-9]{0,4})(m|h|d)")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST = 200


@dataclass(frozen=True)
class Token:
    """What is kept of a token.

    Attributes:
        name: What people call it.
        user: Whom its requests act for.
        scopes: What it may do.
        hash: The SHA-256 of the token, in hex; in no repr.
        created_us: When it was made, in microseconds since 1970.
        expires_us: From when on it is worth nothing; None is never.
    """

    name: str
    user: str
    scopes: tuple[Scope, ...]
    hash: str = field(repr=False)
    created_us: int
    expires_us: int | None

    @property
    def id(self) -> str:
        """Tells it from another token that had its name before."""
        return self.hash[:12]

    def over(self, now_us: int) -> bool:
        """Tell whether it has expired."""
        return self.expires_us is not None and self.expires_us <= now_us

    def on_record(self) -> dict[str, Any]:
        """Return what the log says of it."""
        expires = None if self.expires_us is None else iso_utc(self.expires_us)
        return {"id": self.id, "user": self.user, "scopes": list(self.scopes), "expires": expires}


class Tokens:
    """The tokens as they are at this moment: one that was made or revoked meanwhile counts at once.

    Args:
        path: `tokens.toml` in the folder of secrets.
    """

    def __init__(self, path: Path) -> None:
        self._followed: WatchedFile[dict[str, Token]] = WatchedFile(path, lambda: read_tokens(path))

    def any(self) -> bool:
        """Tell whether there is one that is worth something. Blocking.

        Raises:
            ConfigError: The file may not be trusted or read.
        """
        now_us = time.time_ns() // 1000
        return any(not token.over(now_us) for token in self._followed.current().values())

    def find(self, given: str) -> Token | None:
        """Return the token that a request shows; None for one that is none, was revoked or has expired. Blocking.

        Each is compared in the same time, whatever it shares with the one given: the hashes, and all of them.

        Raises:
            ConfigError: The file may not be trusted or read: then nobody is let in.
        """
        stored = self._followed.current()
        if len(given) > _LONGEST or not given.isascii():
            return None
        hashed = _hash(given)
        found: Token | None = None
        for token in stored.values():
            if hmac.compare_digest(token.hash, hashed):
                found = token
        return None if found is None or found.over(time.time_ns() // 1000) else found

    def holds(self, token: Token) -> bool:
        """Tell whether a token that was found counts still, and for the same; not where it cannot be read. Blocking."""
        try:
            stored = self._followed.current()
        except ConfigError:
            return False
        return stored.get(token.name) == token and not token.over(time.time_ns() // 1000)

    def holds_id(self, token_id: str) -> bool:
        """Tell it of the one with this id. Blocking."""
        try:
            stored = self._followed.current()
        except ConfigError:
            return False
        now_us = time.time_ns() // 1000
        return any(token.id == token_id and not token.over(now_us) for token in stored.values())


def read_tokens(path: Path) -> dict[str, Token]:
    """Return the stored tokens by name; none when there is no file. Blocking.

    Raises:
        ConfigError: The file or its folder may not be trusted or read, or it holds what is no token.
    """
    file = _file(path)
    file.check_folder()
    return {name: _token(name, entry, file) for name, entry in file.entries().items()}


def create_token(
    path: Path, name: str, user: str, scopes: Sequence[Scope], expires_us: int | None
) -> tuple[Token, str]:
    """Make a token, and return it with its text, which is kept nowhere. Blocking.

    Raises:
        BadInput: Name, user or scopes cannot be ones.
        Refused: There is one of this name.
        ConfigError: The file or its folder may not be trusted, read or written.
    """
    name, user = token_name(name), user_name(user)
    if not scopes:
        raise BadInput(f"scope: a token that may do nothing is of no use; give some of {', '.join(SCOPES)}")
    text = BEGINS + secrets.token_urlsafe(_BYTES)
    ordered: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in scopes)
    token = Token(name, user, ordered, _hash(text), time.time_ns() // 1000, expires_us)
    _file(path).make_folder()

    def edit(document: TOMLDocument) -> None:
        if name in document:
            raise Refused(f"There is a token {name} already. Choose another, or revoke it: ava token revoke {name}")
        entry: dict[str, Any] = {
            "user": user,
            "scopes": list(ordered),
            "sha256": token.hash,
            "created_us": token.created_us,
        }
        document[name] = entry if expires_us is None else {**entry, "expires_us": expires_us}

    _file(path).change(lambda: read_tokens(path), edit)
    return token, text


def revoke_token(path: Path, name: str) -> Token | None:
    """Remove a token, and return it; None when there is none of this name. Blocking.

    Raises:
        BadInput: The name can be none.
        ConfigError: The file or its folder may not be trusted, read or written.
    """
    name = token_name(name)
    if name not in read_tokens(path):
        return None
    removed: list[Token] = []

    def edit(document: TOMLDocument) -> None:
        if name in document:
            removed.append(_token(name, document[name].unwrap(), _file(path)))
            del document[name]

    _file(path).change(lambda: read_tokens(path), edit)
    return removed[0] if removed else None


def token_name(given: str) -> str:
    """Return a token's name.

    Raises:
        BadInput: It can be none, or may be a token itself; it is not shown.
    """
    name = given.strip()
    if not _NAME.fullmatch(name) or name.startswith(BEGINS) or may_be_secret(name):
        raise BadInput(
            "A token's name has letters, digits, `_`, `.` and `-`, a letter first, at most 64 characters and no more"
            " than 6 digits, such as laptop. The token itself is made by Ava."
        )
    return name


def user_name(given: str) -> str:
    """Return the name of a user.

    Raises:
        BadInput: It can be none.
    """
    user = given.strip()
    if not _USER.fullmatch(user) or user.startswith(BEGINS) or may_be_secret(user):
        raise BadInput(
            "A user's name has letters, digits, `_`, `.`, `@`, `+` and `-`, at most 64 characters and no more than 6"
            " digits, such as ana or ana@example.org."
        )
    return user


def scopes_in(given: Sequence[str]) -> tuple[Scope, ...]:
    """Return scopes that were written with commas between them, or one by one.

    Raises:
        BadInput: One of them is none.
    """
    names = [name.strip() for part in given for name in part.split(",") if name.strip()]
    for name in names:
        if name not in SCOPES:
            raise BadInput(f"--scope: there is no scope {name[:40]!r}; there are {', '.join(SCOPES)}")
    return cast("tuple[Scope, ...]", tuple(dict.fromkeys(names)))


def expiry(given: str | None, now_us: int) -> int | None:
    """Return when a token expires that lives for `90d`, `12h` or `30m`; None for one that lives until it is revoked.

    Raises:
        BadInput: It is no time.
    """
    if given is None:
        return None
    match = _LIFE.fullmatch(given.strip().lower())
    if match is None:
        raise BadInput(f"--expires: {given[:40]!r} is no length of time; write it like 90d, 12h or 30m")
    return now_us + int(match[1]) * _SECONDS[match[2]] * 1_000_000


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "tokens", "ava token", "ava token create NAME")


def _token(name: str, entry: object, file: PrivateFile) -> Token:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    user, hashed, scopes = fields.get("user"), fields.get("sha256"), fields.get("scopes")
    created, expires = fields.get("created_us"), fields.get("expires_us")
    if (
        not _NAME.fullmatch(name)
        or not isinstance(user, str)
        or not _USER.fullmatch(user)
        or not isinstance(hashed, str)
        or not _SHA256.fullmatch(hashed)
        or not isinstance(scopes, list)
        or not all(scope in SCOPES for scope in cast("list[object]", scopes))
        or type(created) is not int
        or not (expires is None or type(expires) is int)
    ):
        raise ConfigError(f"{file.path}: an entry is not as `ava token create` writes it. {file.anew}")
    return Token(name, user, tuple(cast("list[Scope]", scopes)), hashed, created, expires)
