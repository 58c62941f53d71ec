"""Tokens of the HTTP server: which user a request acts for, and what it may do. Only their hashes are stored.

A token is 256 random bits, shown once. A plain SHA-256 is enough to store it: salt and a slow hash protect secrets that
can be guessed, and a slow hash on every request would make it easy to overload the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ava_audit.store.locks import hold_within
from ava_audit.units import iso_utc, now_us
from ava_server.config.secrets import may_be_secret
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.files import PrivateFile, WatchedFile, create_file

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Scope = Literal["spawn", "read", "audit", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
BEGINS = "avatok_"
"""How every token begins, so that it is recognised and redacted wherever it appears."""
OF_THIS_MACHINE = "local-"
"""How the name of a token begins that `ava connect` makes for hosts on this machine."""
LOCK_S = 5.0
"""Seconds for which a command waits for another one that makes the token of this machine's hosts."""
_BYTES = 32
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIFE = re.compile(r"([1-9][0-9]{0,4})(m|h|d)")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST = 200


@dataclass(frozen=True)
class Token:
    """What is stored of a token."""

    name: str  # its name, for people
    user: str
    scopes: tuple[Scope, ...]
    hash: str = field(repr=False)  # the SHA-256 of the token, in hex; in no repr
    created_us: int  # when it was made, in microseconds since 1970
    expires_us: int | None  # when it expires; None is never

    @property
    def reads_all(self) -> bool:
        """Whether it may read the runs and the log of all users."""
        return not {"audit", "admin"}.isdisjoint(self.scopes)

    @property
    def id(self) -> str:
        """Distinguishes it from an earlier token of the same name."""
        return self.hash[:12]

    def expired(self, now_us: int | None = None) -> bool:
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        return self.expires_us is not None and self.expires_us <= now_us

    def on_record(self) -> dict[str, Any]:
        expires = None if self.expires_us is None else iso_utc(self.expires_us)
        return {"id": self.id, "user": self.user, "scopes": list(self.scopes), "expires": expires}


class TokenFile:
    """The tokens in force, in `tokens.toml`: one that is made or revoked counts at once.

    Its methods block, and raise ConfigError: the file cannot be used; then every request is refused.
    """

    def __init__(self, path: Path) -> None:
        self._file: WatchedFile[dict[str, Token]] = WatchedFile(path, lambda: read_tokens(path))

    @property
    def is_shared(self) -> bool:
        """Whether other servers make tokens, which this process learns of by `find` or within a second."""
        return self._file.is_shared

    def any(self) -> bool:
        return any(not token.expired() for token in self._file.current().values())

    def find(self, text: str) -> Token | None:
        """Return None if it is unknown, revoked or expired."""
        token = self.known(text)
        if token is None and self._file.look_again():
            return self.known(text)
        return token

    def known(self, text: str) -> Token | None:
        """Do what `find` does, without a token that another server has made in this second.

        All hashes are compared, each in constant time, so the time says nothing about a stored token.
        """
        stored = self._file.current()
        if len(text) > _LONGEST or not text.isascii():
            return None
        hashed = hash_of(text)
        match: Token | None = None
        for token in stored.values():
            if hmac.compare_digest(token.hash, hashed):
                match = token
        if match is None or match.expired():
            return None
        return match

    def holds(self, token: Token) -> bool:
        """Tell whether a token is still valid and unchanged; not if the file cannot be read. Blocking."""
        return self._readable().get(token.name) == token and not token.expired()

    def with_id(self, token_id: str) -> Token | None:
        for token in self._file.current().values():
            if token.id == token_id and not token.expired():
                return token
        return None

    def holds_id(self, token_id: str) -> bool:
        """Tell whether there is a token of this id; False if the file cannot be read. Blocking."""
        return any(stored.id == token_id and not stored.expired() for stored in self._readable().values())

    def _readable(self) -> Mapping[str, Token]:
        try:
            return self._file.current()
        except ConfigError:
            return {}


def read_tokens(path: Path) -> dict[str, Token]:
    """Return no tokens without a file. Blocking. Raises ConfigError if it cannot be used."""
    return _file(path).read(_token, "ava token create")


def create_token(
    path: Path, name: str, user: str, scopes: Sequence[Scope], expires_us: int | None
) -> tuple[Token, str]:
    """Return a new token with its text, which is stored nowhere. Blocking.

    Raises BadInput: name, user or scopes are invalid; Refused: the name is used; ConfigError: the file cannot be used.
    """
    name = token_name(name)
    user = user_name(user)
    if not scopes:
        raise BadInput(f"scope: a token without a scope is useless; give some of {', '.join(SCOPES)}")
    text = BEGINS + secrets.token_urlsafe(_BYTES)
    ordered: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in scopes)
    token = Token(name, user, ordered, hash_of(text), now_us(), expires_us)
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


def host_token(root: DataRoot) -> tuple[str, Token | None]:
    """Return the token of this machine's hosts, and what is stored of it if it was made just now. Blocking.

    A host knows only a URL. Claude Code runs a command before it connects (`headersHelper`), and sends what that
    prints: `ava connect` starts the server unless it runs, and prints this token, which is in no configuration file.
    Another user could listen on the port while the server does not run. So it is printed only while a process holds the
    lock in the data root and has recorded that very port: that process listens there.

    Of several hosts that start at once, one makes it. Raises ConfigError if its file cannot be read or written.
    """
    root.create()
    held = hold_within(root.local_token_lock, LOCK_S)
    if held is None:
        raise ConfigError(f"another `ava connect` has held {root.local_token_lock} for {LOCK_S:.0f} s; try again")
    with held:
        try:
            text = root.local_token.read_text("ascii").strip()
        except FileNotFoundError:
            text = ""
        except (OSError, ValueError) as error:
            raise ConfigError(f"{root.local_token} cannot be read: {error}") from error
        if text and TokenFile(root.tokens_file).find(text) is not None:
            return text, None
        name = f"{OF_THIS_MACHINE}{secrets.token_hex(3)}"
        token, text = create_token(root.tokens_file, name, os_user(), ("spawn", "read"), None)
        root.local_token.unlink(missing_ok=True)
        create_file(root.local_token, f"{text}\n".encode(), 0o600)
        return text, token


def revoke_token(path: Path, name: str) -> Token | None:
    """Blocking. Raises BadInput if the name is invalid; ConfigError: unusable file."""
    return _file(path).remove(token_name(name), lambda: read_tokens(path))


def token_name(text: str) -> str:
    """Raises BadInput if it is invalid, or may be a token itself; it is not shown."""
    rule = "letters, digits, `_`, `.` and `-`, a letter first, at most 64 characters and no more than 6 digits"
    return _parse_name(text, NAME, f"A token's name has {rule}, such as laptop. Ava makes the token itself.")


def user_name(text: str) -> str:
    """Raises BadInput if it is invalid."""
    rule = "letters, digits, `_`, `.`, `@`, `+` and `-`, at most 64 characters and no more than 6 digits"
    return _parse_name(text, _USER, f"A user's name has {rule}, such as ana or ana@example.org.")


def _parse_name(text: str, form: re.Pattern[str], error: str) -> str:
    name = text.strip()
    if not form.fullmatch(name) or name.startswith(BEGINS) or may_be_secret(name):
        raise BadInput(error)
    return name


def scopes_in(arguments: Sequence[str]) -> tuple[Scope, ...]:
    """Return scopes that were given one by one or separated by commas. Raises BadInput: one of them does not exist."""
    scopes: dict[str, None] = {}
    for text in ",".join(arguments).split(","):
        name = text.strip()
        if not name:
            continue
        if name not in SCOPES:
            raise BadInput(f"--scope: there is no scope {name[:40]!r}; there are {', '.join(SCOPES)}")
        scopes[name] = None
    return cast("tuple[Scope, ...]", tuple(scopes))


def expiry(duration: str | None, now_us: int) -> int | None:
    """Return when a token expires that is valid for `90d`, `12h` or `30m`; None: never. Raises BadInput."""
    if duration is None:
        return None
    match = _LIFE.fullmatch(duration.strip().lower())
    if match is None:
        raise BadInput(f"--expires: {duration[:40]!r} is not a duration; write it like 90d, 12h or 30m")
    return now_us + int(match[1]) * _SECONDS[match[2]] * 1_000_000


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "tokens", "ava token", "ava token create NAME")


def _token(name: str, stored: object) -> Token:
    from ava_server.config.entries import TokenEntry

    entry = TokenEntry.model_validate(stored)  # a ValidationError is a ValueError
    if not (NAME.fullmatch(name) and _USER.fullmatch(entry.user) and _SHA256.fullmatch(entry.sha256)):
        raise ValueError
    if not set(entry.scopes) <= set(SCOPES):
        raise ValueError
    return Token(
        name,
        entry.user,
        cast("tuple[Scope, ...]", tuple(entry.scopes)),
        entry.sha256,
        entry.created_us,
        entry.expires_us,
    )
