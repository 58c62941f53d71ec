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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


SHORTEST = 6
LONGEST = 64
TRIES = 5
LOCKED_S = 15 * 60.0
TERMINAL = "terminal"
"""Who tries in a terminal of the server's own user; on a page, a session or a token tries."""
TRIES_AN_HOUR = 30
"""Wrong tries of all sessions and tokens together: with more sessions, nobody has more tries."""
HOUR_S = 3600.0
COST = (2**15, 8, 1)
"""scrypt's n, r and p (RFC 7914): 32 MiB and about 0.1 s for each try."""
SET_ALREADY = "There is a PIN already. `ava pin change` replaces it, and asks for the old one."
NONE_YET = "There is no approval PIN yet, so nothing can be approved. Set one with `ava pin set`."
_GONE = "The PIN was removed in the meantime; nothing was done."
_TABLE = "pin"
_MEMORY = 2**26


class _Tries(NamedTuple):
    """The wrong tries of somebody since the last right one or lock. Times are in seconds since 1970; 0 means never."""

    tries: int
    locked_until: float
    last: float


@dataclass(frozen=True)
class _StoredPin:
    """What is stored of a PIN. `tries` and `locked_until` are those of the terminal."""

    salt: bytes
    hash: bytes = field(repr=False)
    cost: tuple[int, int, int]
    tries: int
    locked_until: float
    elsewhere: Mapping[str, _Tries]
    """By session or token."""
    tried: tuple[float, ...]
    """When sessions and tokens have tried in the last hour, the right tries left out."""

    def tries_of(self, who: str) -> _Tries:
        if who == TERMINAL:
            return _Tries(self.tries, self.locked_until, 0.0)
        return self.elsewhere.get(who, _Tries(0, 0.0, 0.0))


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
        """Raises Refused, before a person is asked for the PIN in a terminal: there is none, or it is locked there."""
        if not self.is_set:
            raise Refused(NONE_YET)
        self.refuse_locked()

    def refuse_locked(self) -> None:
        """Refuse while the PIN is locked in a terminal, and say how long; without one, a person can choose it."""
        stored = self._stored()
        if stored is not None:
            _refuse_locked(stored.locked_until - time.time())

    def check(self, pin: str, who: str = TERMINAL) -> None:
        """Raises Refused if the PIN is wrong, or locked for who tries.

        Each try is counted before it is checked, so there are never more than five, even with concurrent tries. The
        fifth wrong one locks the PIN for 15 minutes; then the right one is refused too. It locks the one who tried.
        """
        stored, now = self._count_try(who)
        if not hmac.compare_digest(_hash(pin, stored.salt, stored.cost), stored.hash):
            left = TRIES - stored.tries_of(who).tries
            if left <= 0:
                raise Refused(f"That is not the PIN; it is now locked for {LOCKED_S / 60:.0f} minutes.")
            tries_are = "try is" if left == 1 else "tries are"
            raise Refused(f"That is not the PIN; {left} {tries_are} left.")
        self._forget_tries(who, now)

    def change(self, old: str, new: str) -> None:
        """Raises BadInput if the new one is too weak; Refused if the old one is wrong, or locked."""
        refuse_weak(new)
        self.check(old)
        self._change(_entry(new))

    def remove(self, pin: str) -> None:
        """Raises Refused if it is wrong, or locked."""
        self.check(pin)
        self._change(None)

    def _count_try(self, who: str) -> tuple[_StoredPin, float]:
        """Count a try, and return the PIN with it, and when it was. Raises Refused: no PIN, or it is locked."""
        if not self.is_set:  # there may be no folder for the lock
            raise Refused(NONE_YET)
        now = 0.0

        def edit(document: TOMLDocument) -> None:
            nonlocal now
            now = time.time()  # once the file is held: a try that waited is not older than the lock
            stored = _read(document.unwrap(), self._file)
            if stored is None:
                raise Refused(NONE_YET)
            own = stored.tries_of(who)
            left_s = own.locked_until - now
            _refuse_locked(left_s)
            # After the clock was set back, the lock may seem to last for years: then it lasts 15 minutes from now.
            tries = TRIES if left_s > LOCKED_S else own.tries % TRIES + 1
            locked_until = now + LOCKED_S if tries == TRIES else 0.0
            if who == TERMINAL:
                _table(document).update({"tries": tries, "locked_until": locked_until})
                return
            tried = [at for at in stored.tried if abs(now - at) < HOUR_S]
            if len(tried) >= TRIES_AN_HOUR:
                raise Refused(_locked_on_pages(HOUR_S - (now - tried[0])))
            others = {name: each for name, each in stored.elsewhere.items() if abs(now - each.last) < HOUR_S}
            others[who] = _Tries(tries, locked_until, now)
            _write_others(document, others, [*tried, now])

        self._file.change(self._stored, edit)
        stored = self._stored()
        if stored is None:
            raise Refused(_GONE)
        return stored, now

    def _forget_tries(self, who: str, right_at: float) -> None:
        """Forget somebody's tries after a right one."""
        if who == TERMINAL:
            self._change({"tries": 0, "locked_until": 0.0})
            return

        def edit(document: TOMLDocument) -> None:
            stored = _read(document.unwrap(), self._file)
            if stored is None:
                raise Refused(_GONE)
            others = {name: each for name, each in stored.elsewhere.items() if name != who}
            _write_others(document, others, [at for at in stored.tried if at != right_at])

        self._file.change(self._stored, edit)

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


def _locked_on_pages(left_s: float) -> str:
    return (
        f"The PIN is locked on pages and for tokens for {max(1, round(left_s / 60))} more min, after {TRIES_AN_HOUR}"
        " wrong tries within an hour. `ava approve` in a terminal of the server's own user still takes it."
    )


def _write_others(document: TOMLDocument, others: Mapping[str, _Tries], tried: Sequence[float]) -> None:
    _table(document).update({"elsewhere": {name: list(each) for name, each in others.items()}, "tried": list(tried)})


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
            elsewhere={
                str(name): _Tries(int(tries), float(until), float(last))
                for name, (tries, until, last) in entry.get("elsewhere", {}).items()
            },
            tried=tuple(map(float, entry.get("tried", ()))),
        )
        if stored.cost != COST:  # no other was ever written; scrypt raises for some, and takes too long for others
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
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
        "elsewhere": {},
        "tried": [],
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
