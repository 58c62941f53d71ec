"""The approval PIN: its hash, the remaining tries, and the policy that goes with it.

While a PIN is set the policy is `human`, even if `config.toml` or the environment say otherwise: only someone who knows
the PIN can loosen it. It protects against everything that comes through MCP, not against a program that runs as the
same user and may write to the data root.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


SHORTEST = 6
LONGEST = 64
TRIES = 5
LOCKED_S = 15 * 60.0
COST = (2**15, 8, 1)
"""scrypt's n, r and p (RFC 7914): 32 MiB and about 0.1 s for each try."""
SET_ALREADY = "There is a PIN already. `ava pin change` replaces it, and asks for the old one."
NONE_YET = "There is no approval PIN yet, so nothing can be approved. Set one with `ava pin set`."
_GONE = "The PIN was removed in the meantime; nothing was done."
_TABLE = "pin"
_MEMORY = 2**26


@dataclass(frozen=True)
class _StoredPin:
    """What is stored of a PIN. `locked_until` is in seconds since 1970; 0 means not locked."""

    salt: bytes
    hash: bytes = field(repr=False)
    cost: tuple[int, int, int]
    tries: int
    locked_until: float


class PinFile:
    """The PIN of one data root, in `approval.toml`. Every method blocks, for about 0.1 s where a PIN is checked.

    All raise ConfigError: the file is not safe to use or cannot be read or written, so nothing can be approved.
    """

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path, "approval PIN", "ava pin", "ava pin set")

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self._file.place

    @property
    def is_set(self) -> bool:
        """Whether there is a PIN, and with it the policy `human`."""
        return self._stored() is not None

    def set(self, pin: str) -> None:
        """Raises BadInput if it is too weak; Refused if there is one already."""
        refuse_weak(pin)
        self._file.make_folder()

        def edit(document: TOMLDocument) -> None:
            if _TABLE in document:
                raise Refused(SET_ALREADY)
            document[_TABLE] = _entry(pin)

        self._file.change(self._stored, edit)

    def ready(self) -> None:
        """Raises Refused, before a person is asked for the PIN: there is none, or it is locked."""
        if not self.is_set:
            raise Refused(NONE_YET)
        self.refuse_locked()

    def refuse_locked(self) -> None:
        """Refuse while the PIN is locked, and say for how long; without one, a person can choose it."""
        stored = self._stored()
        if stored is not None:
            _refuse_locked(stored.locked_until - time.time())

    def check(self, pin: str) -> None:
        """Raises Refused if the PIN is wrong, or locked.

        Each try is counted before it is checked, so there are never more than five, even with concurrent tries. The
        fifth wrong one locks the PIN for 15 minutes; then the right one is refused too.
        """
        stored = self._count_try()
        if not hmac.compare_digest(_hash(pin, stored.salt, stored.cost), stored.hash):
            left = TRIES - stored.tries
            if left <= 0:
                raise Refused(f"That is not the PIN; it is now locked for {LOCKED_S / 60:.0f} minutes.")
            tries_are = "try is" if left == 1 else "tries are"
            raise Refused(f"That is not the PIN; {left} {tries_are} left.")
        self._change({"tries": 0, "locked_until": 0.0})

    def change(self, old: str, new: str) -> None:
        """Raises BadInput if the new one is too weak; Refused if the old one is wrong, or locked."""
        refuse_weak(new)
        self.check(old)
        self._change(_entry(new))

    def remove(self, pin: str) -> None:
        """Raises Refused if it is wrong, or locked."""
        self.check(pin)
        self._change(None)

    def _count_try(self) -> _StoredPin:
        """Count a try, and return the PIN with it. Raises Refused if there is no PIN, or it is locked."""
        if not self.is_set:  # there may be no folder for the lock
            raise Refused(NONE_YET)

        def edit(document: TOMLDocument) -> None:
            stored = _read(document.unwrap(), self._file)
            if stored is None:
                raise Refused(NONE_YET)
            now = time.time()
            left_s = stored.locked_until - now
            _refuse_locked(left_s)
            # After the clock was set back, the lock may seem to last for years: then it lasts 15 minutes from now.
            tries = TRIES if left_s > LOCKED_S else stored.tries % TRIES + 1
            locked_until = now + LOCKED_S if tries == TRIES else 0.0
            _table(document).update({"tries": tries, "locked_until": locked_until})

        self._file.change(self._stored, edit)
        stored = self._stored()
        if stored is None:
            raise Refused(_GONE)
        return stored

    def _change(self, fields: dict[str, Any] | None) -> None:
        def edit(document: TOMLDocument) -> None:
            if _TABLE not in document:
                raise Refused(_GONE)
            if fields is None:
                document.remove(_TABLE)
            else:
                _table(document).update(fields)

        self._file.change(self._stored, edit)

    def _stored(self) -> _StoredPin | None:
        self._file.check_folder()
        return _read(self._file.entries(), self._file)


def _refuse_locked(left_s: float) -> None:
    """A longer time than `LOCKED_S` means that the clock was set back."""
    if 0 < left_s <= LOCKED_S:
        raise Refused(f"The PIN is locked for {max(1, round(left_s / 60))} more min, after {TRIES} wrong tries.")


def _table(document: TOMLDocument) -> dict[str, Any]:
    return cast("dict[str, Any]", document[_TABLE])


def _read(entries: dict[str, Any], file: PrivateFile) -> _StoredPin | None:
    """Raises ConfigError if it is not as `ava pin` writes it."""
    if not entries:
        return None
    try:
        entry = entries[_TABLE]
        n, r, p = entry["cost"]
        stored = _StoredPin(
            salt=bytes.fromhex(entry["salt"]),
            hash=bytes.fromhex(entry["hash"]),
            cost=(int(n), int(r), int(p)),
            tries=int(entry["tries"]),
            locked_until=float(entry["locked_until"]),
        )
        if stored.cost != COST:  # no other was ever written; scrypt raises for some, and takes too long for others
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{file.path} is not as `ava pin set` writes it, so nothing can be approved. {file.remedy}"
        ) from None
    return stored


def _entry(pin: str) -> dict[str, Any]:
    salt = secrets.token_bytes(16)
    return {
        "policy": "human",
        "salt": salt.hex(),
        "hash": _hash(pin, salt, COST).hex(),
        "cost": list(COST),
        "tries": 0,
        "locked_until": 0.0,
    }


def _hash(pin: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(pin.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def refuse_weak(pin: str) -> None:
    """Raises BadInput for a PIN that can be guessed in five tries; the error does not show it."""
    has_length = SHORTEST <= len(pin) <= LONGEST
    if not has_length or not pin.isprintable() or pin != pin.strip():
        raise BadInput(
            f"A PIN has {SHORTEST} to {LONGEST} characters, digits or others, without white space around them."
        )
    steps = {ord(after) - ord(before) for before, after in itertools.pairwise(pin)}
    is_repetition = len(set(pin)) <= 2
    is_sequence = steps in ({-1}, {0}, {1})
    if is_repetition or is_sequence:
        raise BadInput("That PIN is too easy to guess. Choose one that is not a repetition or a sequence.")
