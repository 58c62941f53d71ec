"""How much reading goes on at the same time: each user has a share of its places, and its parsers a share of memory.

Reading a folder's documents takes minutes, and one small file of another user must not wait for it. So reading has
places of its own beside those of short work, and no user has more than a quarter of them: four users never wait for
each other. A search leaves one place of its user's to another run. A parser gets little memory, which nearly all files
need less than; one that needs more is read again in much, one such file at a time. So all parsers together stay within
half of the memory that this process may use.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio import from_thread
from anyio.lowlevel import RunVar

from ava_roles.errors import ParserEnded
from ava_roles.sandbox.linux import NotOnThisSystem, usable_memory
from ava_roles.threads import Places

USERS = 4
"""So many users read at once, each with a whole share."""
_OF_SEARCH_MOST = 4
_MEMORY_SHARE = 0.5
_MUCH_BYTES = 1_500_000_000
_LITTLE_BYTES = 256_000_000
"""A Word file and a workbook of the greatest size that is read here take 140 MB of address space."""
_LEAST_BYTES = 120_000_000
_UNKNOWN_BYTES = 8_000_000_000
WAIT_S = 30
_LOOK_EVERY_S = 0.1
_much = threading.Lock()


@dataclass(frozen=True)
class Share:
    """What each user has.

    `places`: how many threads of theirs read at once; `of_search`: how many of them one search takes; `little_bytes`:
    the memory of a parser; `much_bytes`: that of one parser of all users.
    """

    places: int
    of_search: int
    little_bytes: int
    much_bytes: int


def share_of(memory_bytes: int, cores: int) -> Share:
    """Return each user's share on a machine."""
    budget = int(memory_bytes * _MEMORY_SHARE)
    much = min(_MUCH_BYTES, budget // 2)
    places = min(_OF_SEARCH_MOST, cores) + 1
    while places > 1 and (budget - much) // (USERS * places) < _LEAST_BYTES:
        places -= 1
    little = min(_LITTLE_BYTES, (budget - much) // (USERS * places))
    return Share(places, max(1, places - 1), little, much)


def _share_here() -> Share:
    memory_bytes = _UNKNOWN_BYTES
    with suppress(NotOnThisSystem):
        memory_bytes = usable_memory()
    return share_of(memory_bytes, os.cpu_count() or 1)


SHARE = _share_here()


@contextmanager
def much_memory(what: str) -> Generator[int]:
    """Let the calling thread's parser have much memory, and yield how much (bytes); one thread at a time.

    `what`: the kind of file. Raises ParserEnded after `WAIT_S` seconds, and the cancellation of the thread's caller.
    """
    until = time.monotonic() + WAIT_S
    while not _much.acquire(timeout=_LOOK_EVERY_S):
        with suppress(RuntimeError):  # not a thread of anyio
            from_thread.check_cancelled()
        if time.monotonic() > until:
            raise ParserEnded(
                f"this {what} cannot be read now: it needs much memory, which other files have had for"
                f" {WAIT_S} s; read it again later"
            )
    try:
        yield SHARE.much_bytes
    finally:
        _much.release()


@dataclass(eq=False)
class _Waiting:
    ticket: object
    user: str
    served: anyio.Event


class ReadingPlaces:
    """The places of one event loop. Of those who wait, the user who has fewest is served first."""

    def __init__(self, places: int, each: int) -> None:
        """`places`: of all users; `each`: of one user, at most."""
        self._free = places
        self._each = each
        self._users: dict[object, str] = {}
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    async def acquire(self, ticket: object, user: str) -> None:
        waiting = _Waiting(ticket, user, anyio.Event())
        self._waiting.append(waiting)
        self._serve()
        try:
            await waiting.served.wait()
        except BaseException:
            if waiting.served.is_set():
                self.release(ticket)
            else:
                self._waiting.remove(waiting)
            raise

    def release(self, ticket: object) -> None:
        """Give a place back; does nothing if it was given back already."""
        user = self._users.pop(ticket, None)
        if user is None:
            return
        self._held[user] -= 1
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        while self._free:
            servable = [each for each in self._waiting if self._held[each.user] < self._each]
            if not servable:
                return
            first = min(servable, key=lambda each: self._held[each.user])  # of equals, the one that came first
            self._waiting.remove(first)
            self._free -= 1
            self._held[first.user] += 1
            self._users[first.ticket] = first.user
            first.served.set()


_places: RunVar[ReadingPlaces] = RunVar("ava_reading_places")


@dataclass(frozen=True)
class _PlacesOf:
    places: ReadingPlaces
    user: str

    async def acquire_on_behalf_of(self, ticket: object, /) -> None:
        await self.places.acquire(ticket, self.user)

    def release_on_behalf_of(self, ticket: object, /) -> None:
        self.places.release(ticket)


def places_of(user: str) -> Places:
    """Return a user's places in the running event loop, for `run_sync`."""
    try:
        places = _places.get()
    except LookupError:
        places = ReadingPlaces(USERS * SHARE.places, SHARE.places)
        _places.set(places)
    return _PlacesOf(places, user)
