"""The beginning that prompts of a plan's runs share, and who sends it first.

A provider can read it from its cache once an answer to it has begun. Of runs that would send it at the same time, one
goes first, and the others wait for that moment, for 5 seconds at most: each would pay for writing it otherwise. They
wait before they reserve, so they hold no money meanwhile. Each process knows only what it has sent itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from ava_audit.events import RunStarted
from ava_audit.rows import RunRow
from ava_server.models.json_text import encode
from ava_server.models.prompt_cache import prompt_cache_of

WAIT_S = 5.0
"""Seconds that a run waits for another's call, in all."""
KEPT_S = 300.0
"""Seconds for which a provider keeps what it has read, after its last use."""
TOKENS_PER_BYTE = 0.25
"""An estimate, for English and JSON: a wrong one costs a short wait, or a saving."""


@dataclass(slots=True)
class _Cached:
    """One beginning of prompts.

    Attributes:
        until: When the provider forgets it, on the monotonic clock; 0 before its first answer.
        first: The run whose call is to write it, from `since` on.
        changed: Set, and replaced, when one of these changes.
    """

    until: float = 0.0
    first: str | None = None
    since: float = 0.0
    changed: anyio.Event = field(default_factory=anyio.Event)

    def release(self) -> None:
        self.first = None
        self.changed.set()
        self.changed = anyio.Event()


class PromptPrefixes:
    """The beginnings of prompts that this process has sent recently, for plans."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._known: dict[str, _Cached] = {}

    def of_run(self, run: RunRow, started: RunStarted) -> PromptPrefix | None:
        """Return the beginning of a run's prompts; None where no other run shares it, or no provider caches it."""
        cache = prompt_cache_of(started.model.partition(":")[2])
        if run.plan_id is None or cache is None:
            return None
        beginning = _bytes(started, started.system[: started.shared_chars])
        if len(beginning) * TOKENS_PER_BYTE < cache.least:
            beginning = _bytes(started, started.system)
        if len(beginning) * TOKENS_PER_BYTE < cache.least:
            return None
        at = f"{run.plan_id} {started.model} {started.parameters.get('base_url')} "
        return PromptPrefix(self, at + hashlib.sha256(beginning).hexdigest(), run.id)

    def cached(self, key: str) -> _Cached:
        now = self.now()
        for other, beginning in list(self._known.items()):
            is_forgotten = beginning.first is None and beginning.until < now
            if is_forgotten and other != key:
                del self._known[other]
        return self._known.setdefault(key, _Cached())


class PromptPrefix:
    """The beginning of one run's prompts."""

    def __init__(self, prefixes: PromptPrefixes, key: str, run_id: str) -> None:
        self._prefixes = prefixes
        self._key = key
        self._run_id = run_id
        self._left_s = WAIT_S

    async def wait(self, most_s: float) -> None:
        """Return when the provider has it in its cache, when this run is to send it first, or after the time."""
        began = self._prefixes.now()
        with anyio.move_on_after(min(self._left_s, most_s)):
            while (other_s := self._other_s()) > 0:
                changed = self._prefixes.cached(self._key).changed
                with anyio.move_on_after(other_s):
                    await changed.wait()
        self._left_s = max(self._left_s - (self._prefixes.now() - began), 0.0)
        cached = self._prefixes.cached(self._key)
        if cached.first is None and not self._is_cached(cached):
            cached.first = self._run_id
            cached.since = self._prefixes.now()

    @property
    def must_wait(self) -> bool:
        return self._left_s > 0 and self._other_s() > 0

    def answer_began(self) -> None:
        """From now on the provider can read it from its cache."""
        cached = self._prefixes.cached(self._key)
        cached.until = self._prefixes.now() + KEPT_S
        cached.release()

    def leave(self) -> None:
        """Let another run go first, if this one was to: its call has ended, or is not made."""
        cached = self._prefixes.cached(self._key)
        if cached.first == self._run_id:
            cached.release()

    def _other_s(self) -> float:
        """Return how many seconds are left to wait for another run's answer to begin; 0 where none is waited for."""
        cached = self._prefixes.cached(self._key)
        if cached.first in (None, self._run_id) or self._is_cached(cached):
            return 0.0
        return max(cached.since + WAIT_S - self._prefixes.now(), 0.0)

    def _is_cached(self, cached: _Cached) -> bool:
        return self._prefixes.now() < cached.until


def _bytes(started: RunStarted, system: str) -> bytes:
    return encode([list(started.tools), system])
