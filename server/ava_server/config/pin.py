"""The approval PIN: its hash, the tries that are left, and the policy that stands beside it.

While there is a PIN the policy is `human`, whatever `config.toml` or the environment say: to loosen that, somebody has
to know the PIN. It holds against everything that comes through MCP, not against a program that may write the data root
as the same user of the system.
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

    from ava_server.config.settings import Policy, Settings

SHORTEST, LONGEST = 6, 64
TRIES = 5
LOCKED_S = 15 * 60.0
COST = (2**15, 8, 1)
"""scrypt's n, r and p (RFC 7914): 32 MiB and about a tenth of a second for each try."""
SET_ALREADY = "There is a PIN already. `ava pin change` replaces it, and asks for the old one."
NONE_YET = "There is no approval PIN yet, so nothing can be approved. Set one with `ava pin set`."
_GONE = "The PIN was removed meanwhile; nothing was done."
_TABLE = "pin"
_MEMORY = 2**26


@dataclass(frozen=True)
class _Stored:
    """What is kept of a PIN. `locked_until` is in seconds since 1970; 0 is not locked."""

    salt: bytes
    hash: bytes = field(repr=False)
    cost: tuple[int, int, int]
    tries: int
    locked_until: float


class PinFile:
    """The PIN of one data root. Everything here blocks, for a tenth of a second where a PIN is looked at.

    Args:
        path: `approval.toml` in the folder of secrets.
    """

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path, "approval PIN", "ava pin", "ava pin set")

    @property
    def path(self) -> Path:
        """Where it stands."""
        return self._file.path

    @property
    def is_set(self) -> bool:
        """Whether there is a PIN, and with it the policy `human`.

        Raises:
            ConfigError: The file may not be trusted or read: nobody knows then what may be approved.
        """
        return self._stored() is not None

    def set(self, pin: str) -> None:
        """Store the first PIN.

        Raises:
            BadInput: It can be none.
            Refused: There is one already.
            ConfigError: It cannot be stored.
        """
        refuse_weak(pin)
        self._file.make_folder()

        def edit(document: TOMLDocument) -> None:
            if _TABLE in document:
                raise Refused(SET_ALREADY)
            document[_TABLE] = _entry(pin)

        self._file.change(self._stored, edit)

    def ready(self) -> None:
        """Look whether a PIN can be taken at all, before somebody is asked for one.

        Raises:
            Refused: There is none, or it is locked.
            ConfigError: The file cannot be used.
        """
        stored = self._stored()
        if stored is None:
            raise Refused(NONE_YET)
        _refuse_locked(stored.locked_until - time.time())

    def check(self, pin: str) -> None:
        """Take a PIN that somebody has given.

        Each try is counted before it is looked at: whatever happens meanwhile, and however many try at once, there are
        five. The fifth wrong one locks it for 15 minutes, for the right one too.

        Raises:
            Refused: It is wrong, or the PIN is locked.
            ConfigError: The file cannot be used.
        """
        stored = self._counted()
        if not hmac.compare_digest(_hash(pin, stored.salt, stored.cost), stored.hash):
            left = TRIES - stored.tries
            if left <= 0:
                raise Refused(f"That is not the PIN; it is locked for {LOCKED_S / 60:.0f} minutes now.")
            raise Refused(f"That is not the PIN; {left} {'try is' if left == 1 else 'tries are'} left.")
        self._change({"tries": 0, "locked_until": 0.0})

    def change(self, old: str, new: str) -> None:
        """Replace the PIN.

        Raises:
            BadInput: The new one can be none.
            Refused: The old one is wrong, or locked.
            ConfigError: The file cannot be used.
        """
        refuse_weak(new)
        self.check(old)
        self._change(_entry(new))

    def remove(self, pin: str) -> None:
        """Remove the PIN, and with it the policy `human`.

        Raises:
            Refused: It is wrong, or locked.
            ConfigError: The file cannot be used.
        """
        self.check(pin)

        def edit(document: TOMLDocument) -> None:
            if _TABLE not in document:
                raise Refused(_GONE)
            document.remove(_TABLE)

        self._file.change(self._stored, edit)

    def _counted(self) -> _Stored:
        """Count a try, and return what is stored with it counted.

        Raises:
            Refused: There is no PIN, or it is locked.
        """
        if not self.is_set:  # there may be no folder for a lock either
            raise Refused(NONE_YET)

        def edit(document: TOMLDocument) -> None:
            stored = _read(document.unwrap(), self._file)
            if stored is None:
                raise Refused(NONE_YET)
            now = time.time()
            left_s = stored.locked_until - now
            _refuse_locked(left_s)
            # A clock that was set back may not lock it for years: it is locked for as long as a fifth try locks it.
            tries = TRIES if left_s > LOCKED_S else stored.tries % TRIES + 1
            locked_until = now + LOCKED_S if tries == TRIES else 0.0
            _table(document).update({"tries": tries, "locked_until": locked_until})

        self._file.change(self._stored, edit)
        stored = self._stored()
        if stored is None:
            raise Refused(_GONE)
        return stored

    def _change(self, fields: dict[str, Any]) -> None:
        def edit(document: TOMLDocument) -> None:
            if _TABLE not in document:
                raise Refused(_GONE)
            _table(document).update(fields)

        self._file.change(self._stored, edit)

    def _stored(self) -> _Stored | None:
        self._file.check_folder()
        return _read(self._file.entries(), self._file)


def policy_in_force(settings: Settings) -> Policy:
    """Return who may approve at this moment: `human` while there is a PIN, else what is configured. Blocking.

    Raises:
        ConfigError: Whether there is a PIN cannot be told.
    """
    return "human" if PinFile(settings.paths.approval_file).is_set else settings.approval


def _refuse_locked(left_s: float) -> None:
    """Refuse while the PIN is locked; a clock that was set back is told apart by whoever counts a try.

    Raises:
        Refused: It is; says for how long.
    """
    if 0 < left_s <= LOCKED_S:
        raise Refused(f"The PIN is locked for {max(1, round(left_s / 60))} more min, after {TRIES} wrong tries.")


def _table(document: TOMLDocument) -> dict[str, Any]:
    return cast("dict[str, Any]", document[_TABLE])


def _read(entries: dict[str, Any], file: PrivateFile) -> _Stored | None:
    """Return what is stored.

    Raises:
        ConfigError: It is not as `ava pin` writes it.
    """
    if not entries:
        return None
    try:
        entry = entries[_TABLE]
        n, r, p = entry["cost"]
        stored = _Stored(
            salt=bytes.fromhex(entry["salt"]),
            hash=bytes.fromhex(entry["hash"]),
            cost=(int(n), int(r), int(p)),
            tries=int(entry["tries"]),
            locked_until=float(entry["locked_until"]),
        )
        if stored.cost != COST:  # the only one that was ever written; scrypt raises for some, and takes others' time
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{file.path} is not as `ava pin set` writes it, so nothing can be approved. {file.anew}"
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
    """Refuse a PIN that is guessed in five tries.

    Raises:
        BadInput: It is too short, too long, or one that everybody tries first; it is not shown.
    """
    if not SHORTEST <= len(pin) <= LONGEST or not pin.isprintable() or pin != pin.strip():
        raise BadInput(
            f"A PIN has {SHORTEST} to {LONGEST} characters, digits or others, without white space around them."
        )
    steps = {ord(after) - ord(before) for before, after in itertools.pairwise(pin)}
    if len(set(pin)) <= 2 or (len(steps) == 1 and abs(next(iter(steps))) <= 1):
        raise BadInput("That PIN is one of the first that anybody tries. Choose one without such an order.")
