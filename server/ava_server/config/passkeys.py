"""Passkeys: the public keys with which people prove in a browser that it is them. Nothing stored here is a secret.

A passkey belongs to one user and to one host name: browsers offer it on no other site. Anyone who may write this file
can add a passkey, so it lies with the secrets, for its owner alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ava_audit.units import now_us
from ava_server.core.errors import BadInput, Refused
from ava_server.core.files import PrivateFile, WatchedFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

MOST_OF_USER = 20
REMOVED = "This passkey was removed; nothing was approved."
COPIED = (
    "This passkey has counted fewer signatures than before, so there may be a copy of it. It was not accepted; remove"
    " it with `ava passkey remove`, and add another."
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


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
        """Raises Refused: the name is used, or there are too many."""
        _refuse_another(self.of(user), name)

    def add(self, passkey: Passkey) -> None:
        """Raises Refused: the name or the passkey itself is known, or the user has too many."""
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
        """Raises Refused: it was removed meanwhile, or the count is not higher than before: then it may be a copy."""

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
        found = next((each for each in self.of(user) if each.name == name), None)
        return None if found is None else self._file.remove(found.id, self._read)

    def _read(self) -> dict[str, Passkey]:
        return self._file.read(_passkey, "ava passkey add")


def new_passkey(user: str, name: str, host: str, credential: bytes, public_key: bytes, counter: int) -> Passkey:
    """Raises BadInput: the name is invalid."""
    return Passkey(passkey_name(name), user, host, credential, public_key, counter, now_us())


def passkey_name(given: str) -> str:
    """Raises BadInput: it is invalid."""
    name = given.strip()
    if not _NAME.fullmatch(name):
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
    if len(known) >= MOST_OF_USER:
        raise Refused(f"A user has at most {MOST_OF_USER} passkeys. Remove one first.")


def _passkey(name: str, stored: object) -> Passkey:
    from ava_server.config.entries import PasskeyEntry

    entry = PasskeyEntry.model_validate(stored)  # a ValidationError is a ValueError, and so is what base64 raises
    credential, public_key = (base64.b64decode(text, validate=True) for text in (entry.credential, entry.public_key))
    fields = entry.model_dump(exclude={"credential", "public_key"})
    found = Passkey(credential=credential, public_key=public_key, **fields)
    if found.id != name or not credential or not _NAME.fullmatch(found.name):
        raise ValueError
    return found
