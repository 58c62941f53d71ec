"""A second reading of a call's usage, by genai-prices: for the providers and formats that it knows.

Only whole prompts and whole answers are compared, because the two readings sort the cache differently. Where the
provider has said what the call cost, nothing is compared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ava_audit.events import Usage
from ava_server.models.base import MoreUsage
from ava_server.models.providers import is_local
from ava_server.models.tokens import MOST_TOKENS

if TYPE_CHECKING:
    from genai_prices.types import UsageExtractor

log = logging.getLogger("ava.models")

_readers: dict[tuple[str, tuple[str, ...]], UsageReader | None] = {}


async def usage_reader(url: str, flavors: tuple[str, ...]) -> UsageReader | None:
    """Return the second reader for an address and a wire, or None; the first search loads the table, in a thread.

    `flavors`: what genai-prices calls the wire (`Wire.flavors`).
    """
    if is_local(url):
        return None
    key = url, flavors
    if key not in _readers:
        _readers[key] = await anyio.to_thread.run_sync(_find, url, flavors)
    return _readers[key]


def _find(url: str, flavors: tuple[str, ...]) -> UsageReader | None:
    """Blocking: importing the table takes a third of a second."""
    from genai_prices.data_snapshot import get_snapshot

    known = next((one for one in get_snapshot().providers if re.match(one.api_pattern, url)), None)
    extractors = {} if known is None else {one.api_flavor: one for one in known.extractors or ()}
    for flavor in flavors:
        if flavor in extractors:
            return UsageReader(extractors[flavor])
    return None


@dataclass(frozen=True)
class UsageReader:
    """Reads the usage of one provider in one format."""

    extractor: UsageExtractor

    @property
    def _root(self) -> str:
        """Where the provider has the usage, which all have in one field."""
        root = self.extractor.root
        return root if isinstance(root, str) else str(root[0])

    def more(self, reported: Mapping[str, Any], own: Usage) -> MoreUsage | None:
        """Return what this reading has more than our `own`; None for nothing, or where it fails.

        `reported` is the provider's usage as it came.
        """
        try:
            _, read = self.extractor.extract({self._root: reported})
            prompt = _count(read.input_tokens)
            output = _count(read.output_tokens)
        except Exception:  # it checks less than we do, and may raise anything
            log.debug("genai-prices cannot read a usage", exc_info=True)
            return None
        more = MoreUsage(max(prompt - own.prompt_tokens, 0), max(output - own.output_tokens, 0))
        if more.prompt_tokens or more.output_tokens:
            return more
        return None


def _count(value: object) -> int:
    """Return a count of tokens. Raises ValueError if it is none."""
    if not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"no count of tokens: {value!r}")
    return value


def more_words(more: MoreUsage) -> str:
    sides = ((more.prompt_tokens, "prompt"), (more.output_tokens, "output"))
    found = " and ".join(f"{count:,} more {side} tokens" for count, side in sides if count)
    return f"genai-prices reads {found} in the reported usage: booked as far as they were reserved"
