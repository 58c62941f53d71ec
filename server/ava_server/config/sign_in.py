"""How people sign in with a browser: sessions, the one-time codes that begin one, and passkeys.

Of a code and a session only hashes are stored, for their lifetime: they are 256 random bits, so a plain SHA-256 is
enough. Nothing stored of a passkey is a secret. It belongs to one user and to one host name: browsers offer it on no
other site. Anyone who may write the file of passkeys can add one, so it lies with the secrets, for its owner alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from ava_audit.units import now_us
from ava_server.config.tokens import NAME, hash_of
from ava_server.core.errors import BadInput, Refused
from ava_server.core.files import PrivateFile, WatchedFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

CODE_US = 10 * 60 * 1_000_000
"""How long a one-time code can be used."""
SESSION_US = 12 * 3_600 * 1_000_000
"""How long a browser stays signed in."""
MOST_STORED = 500
"""How many codes and sessions are stored, and as many challenges; the oldest make room."""
MOST_OF_USER = 25
"""How many of these are stored of one user."""
_BYTES = 32
_LONGEST = 100


@dataclass(frozen=True)
class BrowserSession:
    """What is stored of a session, or of a code that begins one."""

    hash: str  # the SHA-256 of the cookie or the code, in hex
    # `session`, `code`, `passkey` for a code that lets its user add a passkey, or `challenge` for one that a passkey
    # signs.
    kind: str
    user: str
    token: str | None
    terminal: bool  # it was opened with what only a person has: a terminal, the PIN or a passkey
    created_us: int  # when it was made, in microseconds since 1970
    expires_us: int  # when it ends
    # The name of the passkey that the code is for, what the challenge is for, or the only proposals that a code and its
    # session show.
    name: str | None = None

    @property
    def id(self) -> str:
        """Names it in the log."""
        return self.hash[:12]

    @property
    def only(self) -> frozenset[str]:
        """The only proposals that a session shows and decides on; empty is everything."""
        if self.kind != "session":
            return frozenset()
        return frozenset((self.name or "").split())

    @property
    def sort(self) -> str:
        """With which others it is counted: challenges, what a proposal's link stands for, or the rest."""
        if self.kind == "challenge":
            return "challenge"
        if self.kind in ("code", "session") and self.name is not None:
            return "link"
        return "own"

    @property
    def is_valid(self) -> bool:
        return self.expires_us > now_us()


class _Entry(BaseModel, extra="forbid", strict=True):
    kind: str
    user: str
    token: str | None = None
    terminal: bool = False
    created_us: int
    expires_us: int
    name: str | None = None


class BrowserSessions:
    """The sessions and codes of one data root, in `browser.toml`.

    Every method blocks, and raises ConfigError: unusable.
    """

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path, "browser sessions", "ava ui", "ava ui")
        self._watched = WatchedFile(path, self._read)

    def issue_code(self, user: str, *, terminal: bool = False, only: Sequence[str] = ()) -> str:
        """Return a one-time code for this machine's user, who asked at a `terminal`; `only` as in its session."""
        return self._make("code", user, CODE_US, terminal=terminal, name=" ".join(only) or None)

    def linked(self, *, opened: bool) -> frozenset[str]:
        """Return the proposals with a link that can be used; with `opened`, also one that was opened a short time ago.

        A program that shows a preview may have opened it, and not the person.
        """
        since_us = now_us() - CODE_US
        proposals: set[str] = set()
        for stored in self._read().values():
            counts = stored.kind == "code" or opened
            if stored.sort == "link" and counts and stored.created_us > since_us:
                proposals.update((stored.name or "").split())
        return frozenset(proposals)

    def issue_passkey_code(self, user: str, name: str) -> str:
        """Return a one-time code with which a user can add one passkey."""
        return self._make("passkey", user, CODE_US, name=name)

    def passkey_code(self, code: str, user: str) -> BrowserSession | None:
        """Return what a code for adding a passkey stands for; None if it is not valid for this user."""
        stored = self._stored_for(code)
        if stored is None or not _is_passkey_code(stored, user):
            return None
        return stored

    def take_passkey_code(self, code: str, user: str) -> BrowserSession | None:
        """Use up a code for adding a passkey; None if it is not valid for this user."""
        if self.passkey_code(code, user) is None:
            return None
        stored = self._take(code, "passkey")
        if stored is None or not _is_passkey_code(stored, user):
            return None
        return stored

    def issue_challenge(self, user: str, purpose: str, life_us: int) -> str:
        """Return a challenge for one purpose. Raises ConfigError if it cannot be stored."""
        return self._make("challenge", user, life_us, name=purpose)

    def take_challenge(self, challenge: str) -> str | None:
        """Use up a challenge, and return what it was for; None if it is not valid."""
        stored = self._take(challenge, "challenge")
        if stored is None:
            return None
        return stored.name

    def open(self, user: str, *, token: str | None = None, terminal: bool = False, only: str | None = None) -> str:
        """Return the value of the new session's cookie."""
        return self._make("session", user, SESSION_US, token=token, terminal=terminal, name=only)

    def redeem(self, code: str) -> str | None:
        """Exchange a code for a session, once, and return the value of its cookie; None if the code is not valid."""
        stored = self._take(code, "code")
        if stored is None:
            return None
        return self.open(stored.user, terminal=stored.terminal, only=stored.name)

    def find(self, cookie: str) -> BrowserSession | None:
        return _valid_session(self._stored_for(cookie))

    def current(self, hashed: str) -> BrowserSession | None:
        """Return None if it has ended. Raises ConfigError if the file cannot be read."""
        return _valid_session(self._watched.current().get(hashed))

    def end(self, hashed: str) -> None:
        """Raises ConfigError if the file cannot be read or written."""
        self._change(lambda document: document.pop(hashed, None))

    def end_all(self) -> int:
        """Make all codes useless too, and return how many sessions there were."""
        count = sum(_valid_session(stored) is not None for stored in self._read().values())
        if self._read():
            self._change(lambda document: document.clear())
        return count

    def _take(self, text: str, kind: str) -> BrowserSession | None:
        """Remove a code or challenge, and return what it stands for; None if there is none, or it has expired."""
        if self._stored_for(text) is None:
            return None
        hashed = hash_of(text)
        removed: BrowserSession | None = None

        def edit(document: MutableMapping[str, Any]) -> None:
            nonlocal removed
            stored = self._read().get(hashed)
            if stored is not None and stored.kind == kind:
                del document[hashed]
                removed = stored

        self._change(edit)
        return _if_valid(removed)

    def _make(
        self,
        kind: str,
        user: str,
        life_us: int,
        *,
        token: str | None = None,
        terminal: bool = False,
        name: str | None = None,
    ) -> str:
        text = secrets.token_urlsafe(_BYTES)
        now = now_us()
        new = BrowserSession(hash_of(text), kind, user, token, terminal, now, now + life_us, name)
        self._file.make_folder()

        def edit(document: MutableMapping[str, Any]) -> None:
            for name in document.keys() - self._hashes_beside(new):
                del document[name]
            fields = {name: value for name, value in asdict(new).items() if value is not None}
            del fields["hash"]
            document[new.hash] = fields

        self._change(edit)
        return text

    def _hashes_beside(self, new: BrowserSession) -> set[str]:
        """Return the hashes of what stays stored when a new one is added: the oldest of its sort make room.

        Challenges come and go, and a model can make any number of links: neither may take a session's place.
        """
        hashes: set[str] = set()
        of_user: list[str] = []
        of_all: list[str] = []
        for stored in sorted(self._read().values(), key=lambda stored: stored.created_us):
            if not stored.is_valid:
                continue
            if stored.sort != new.sort:
                hashes.add(stored.hash)
                continue
            of_all.append(stored.hash)
            if stored.user == new.user:
                of_user.append(stored.hash)
        surplus = of_user[: -(MOST_OF_USER - 1)]
        of_sort = [each for each in of_all if each not in surplus]
        return hashes.union(of_sort[-(MOST_STORED - 1) :])

    def _stored_for(self, text: str) -> BrowserSession | None:
        """Return what a code or a cookie stands for, even if another server has just stored it."""
        if not _has_form(text):
            return None
        hashed = hash_of(text)
        stored = self._watched.current().get(hashed)
        if stored is None and self._watched.look_again():
            return self._watched.current().get(hashed)
        return stored

    def _change(self, edit: Callable[[MutableMapping[str, Any]], Any]) -> None:
        self._file.change(self._read, edit)

    def _read(self) -> dict[str, BrowserSession]:
        return self._file.read(_session, "ava ui")


def csrf_token(cookie: str) -> str:
    """Return the CSRF token of a session: its forms carry it, and another site cannot know it."""
    return hmac.new(cookie.encode(), b"ava csrf", hashlib.sha256).hexdigest()


def _session(name: str, stored: object) -> BrowserSession:
    entry = _Entry.model_validate(stored)  # a ValidationError is a ValueError
    return BrowserSession(hash=name, **entry.model_dump())


def _if_valid(stored: BrowserSession | None) -> BrowserSession | None:
    if stored is None or not stored.is_valid:
        return None
    return stored


def _valid_session(stored: BrowserSession | None) -> BrowserSession | None:
    if stored is None or stored.kind != "session":
        return None
    return _if_valid(stored)


def _is_passkey_code(code: BrowserSession, user: str) -> bool:
    return code.kind == "passkey" and code.user == user and code.name is not None and code.is_valid


def _has_form(text: str) -> bool:
    """Tell whether a text may be a code or a cookie: then it is looked up by its hash."""
    return 0 < len(text) <= _LONGEST and text.isascii()


# -- passkeys ---------------------------------------------------------------------------------------------------------


MOST_PASSKEYS = 20
REMOVED = "This passkey was removed; nothing was approved."
COPIED = (
    "This passkey has counted fewer signatures than before, so there may be a copy of it. It was not accepted; remove"
    " it with `ava passkey remove`, and add another."
)


@dataclass(frozen=True)
class Passkey:
    """What is stored of a passkey."""

    name: str  # its name, for people; no other passkey of this user has it
    user: str  # whose it is
    host: str  # the host name of the site that it is for; WebAuthn calls it the id of the relying party
    credential: bytes  # the id by which the authenticator knows it
    public_key: bytes = field(repr=False)  # the public key, in COSE's format
    counter: int  # how many signatures the authenticator had counted; always 0 for those that do not count
    created_us: int  # when it was added, in microseconds since 1970
    used_us: int | None = None  # when it was last used; None is never

    @property
    def id(self) -> str:
        """Names it in the file, in the log and on pages."""
        return hashlib.sha256(self.credential).hexdigest()[:16]

    def on_record(self) -> dict[str, Any]:
        return {"id": self.id, "user": self.user, "host": self.host}


class Passkeys:
    """The passkeys of a data root, in `passkeys.toml`; changes count at once.

    Methods block; ConfigError: it is unusable.
    """

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path, "passkeys", "ava passkey", "ava passkey add NAME")
        self._watched = WatchedFile(path, self._read)

    def all(self) -> list[Passkey]:
        return sorted(self._watched.current().values(), key=lambda each: (each.user, each.name))

    def of(self, user: str, host: str | None = None) -> list[Passkey]:
        """Return those of a user, by default for all hosts."""
        return [each for each in self.all() if each.user == user and host in (None, each.host)]

    def check_new(self, user: str, name: str) -> None:
        """Raises Refused if the name is used, or there are too many."""
        _refuse_another(self.of(user), name)

    def add(self, passkey: Passkey) -> None:
        """Raises Refused if the name or the passkey itself is known, or the user has too many."""
        self._file.make_folder()

        def edit(document: TOMLDocument) -> None:
            if passkey.id in document:
                raise Refused("This passkey was added before.")
            _refuse_another([each for each in self._read().values() if each.user == passkey.user], passkey.name)
            document[passkey.id] = {
                "name": passkey.name,
                "user": passkey.user,
                "host": passkey.host,
                "credential": base64.b64encode(passkey.credential).decode(),
                "public_key": base64.b64encode(passkey.public_key).decode(),
                "counter": passkey.counter,
                "created_us": passkey.created_us,
            }

        self._file.change(self._read, edit)

    def note_use(self, passkey: Passkey, counter: int) -> None:
        """Raises Refused if it was removed meanwhile, or the count is not higher than before: then it may be a copy."""

        def edit(document: TOMLDocument) -> None:
            stored = self._read().get(passkey.id)
            if stored is None or stored.public_key != passkey.public_key:
                raise Refused(REMOVED)
            if (stored.counter or counter) and counter <= stored.counter:
                raise Refused(COPIED)
            entry: Any = document[passkey.id]
            entry.update({"counter": counter, "used_us": now_us()})

        self._file.change(self._read, edit)

    def remove(self, user: str, name: str) -> Passkey | None:
        """Return None if there is none of this name."""
        for passkey in self.of(user):
            if passkey.name == name:
                return self._file.remove(passkey.id, self._read)
        return None

    def _read(self) -> dict[str, Passkey]:
        return self._file.read(_passkey, "ava passkey add")


def new_passkey(user: str, name: str, host: str, credential: bytes, public_key: bytes, counter: int) -> Passkey:
    """Raises BadInput if the name is invalid."""
    return Passkey(passkey_name(name), user, host, credential, public_key, counter, now_us())


def passkey_name(text: str) -> str:
    """Raises BadInput if it is invalid."""
    name = text.strip()
    if not NAME.fullmatch(name):
        raise BadInput(
            "A passkey's name has letters, digits, `_`, `.` and `-`, a letter first, and at most 64 characters, such"
            " as laptop or blue-key."
        )
    return name


def passkey_host(url: str) -> str:
    return urlsplit(url).hostname or "localhost"


def _refuse_another(known: list[Passkey], name: str) -> None:
    if any(each.name == name for each in known):
        raise Refused(f"There is a passkey {name} already. Choose another name, or remove that one first.")
    if len(known) >= MOST_PASSKEYS:
        raise Refused(f"A user has at most {MOST_PASSKEYS} passkeys. Remove one first.")


def _passkey(name: str, stored: object) -> Passkey:
    from ava_server.config.entries import PasskeyEntry

    entry = PasskeyEntry.model_validate(stored)  # a ValidationError is a ValueError, and so is what base64 raises
    credential = base64.b64decode(entry.credential, validate=True)
    public_key = base64.b64decode(entry.public_key, validate=True)
    fields = entry.model_dump(exclude={"credential", "public_key"})
    passkey = Passkey(credential=credential, public_key=public_key, **fields)
    if passkey.id != name or not credential or not NAME.fullmatch(passkey.name):
        raise ValueError
    return passkey
