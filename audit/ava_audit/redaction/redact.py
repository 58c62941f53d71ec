"""Redaction: secrets out of text before a model sees it and before it is stored.

First the configured values, exactly, also URL-quoted, in base64 and JSON-escaped; then the shapes of keys
that nobody configured. Whole records are redacted, never pieces of a stream: a secret cut in two is not seen.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from itertools import chain
from urllib.parse import quote, quote_plus

from ava_audit.redaction.key_shapes import Found, prefixed, private_keys
from ava_audit.redaction.named_secrets import assignments, headers, url_passwords

SHORTEST = 8
"""A configured value of fewer characters is not replaced: it would be found in ordinary words."""


class Redactor:
    """Replaces the values that this process holds, and what looks like a key, by `[redacted:NAME]`.

    It may learn further ones while others use it, from any thread, and forgets none: a key that was replaced or
    removed may stand in a text that comes later.

    Attributes:
        too_short: Names of values that are not replaced because they have fewer than 8 characters.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.too_short: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self._learning = threading.Lock()
        self.learn(values)

    def learn(self, values: Mapping[str, str]) -> None:
        """Replace these values too from now on; each is known by the name that it was learned under first."""
        stripped = {name: value.strip() for name, value in values.items()}
        with self._learning:
            short = (name for name, value in stripped.items() if 0 < len(value) < SHORTEST)
            self.too_short = tuple(dict.fromkeys((*self.too_short, *short)))
            names = dict(self._names)
            for name, value in stripped.items():
                if len(value) >= SHORTEST:
                    names.setdefault(value, name)
            if len(names) == len(self._names):
                return
            forms: dict[str, str] = {}
            for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
                for form in written_forms(value):
                    forms.setdefault(form, name)
            self._names, self._forms = names, forms  # another one, not this one grown: somebody may be going over it

    def redact(self, text: str) -> tuple[str, int]:
        """Return the text with every secret replaced, and how many places were."""
        return _replaced(text, _merged(chain(self._configured(text), _shapes(text))))

    def redact_values(self, text: str) -> tuple[str, int]:
        """Return the text with the configured values alone replaced, and how many places were."""
        return _replaced(text, _merged(self._configured(text)))

    def find_shapes(self, text: str) -> list[Found]:
        """Return what looks like a key and is no configured value, in the order of the text.

        A task with such a place is refused: the person may store the key and name it instead.
        """
        configured = _merged(self._configured(text))
        return [
            found
            for found in _merged(_shapes(text))
            if not any(known.start < found.end and found.start < known.end for known in configured)
        ]

    def _configured(self, text: str) -> Iterator[Found]:
        for form, name in self._forms.items():
            at = text.find(form)
            while at >= 0:
                yield Found(name, at, at + len(form))
                at = text.find(form, at + 1)


def _shapes(text: str) -> Iterator[Found]:
    return chain(prefixed(text), private_keys(text), url_passwords(text), headers(text), assignments(text))


def _merged(places: Iterator[Found]) -> list[Found]:
    """Return places without overlaps, in order; of overlapping ones the first one found names the whole."""
    merged: list[Found] = []
    ranked = sorted(enumerate(places), key=lambda item: (item[1].start, item[0]))
    rank = 0
    for order, found in ranked:
        if merged and found.start < merged[-1].end:
            last = merged[-1]
            name = last.name if rank <= order else found.name
            rank = min(rank, order)
            merged[-1] = Found(name, last.start, max(last.end, found.end))
        else:
            merged.append(found)
            rank = order
    return merged


def _replaced(text: str, places: list[Found]) -> tuple[str, int]:
    if not places:
        return text, 0
    parts: list[str] = []
    done = 0
    for name, start, end in places:
        parts += (text[done:start], f"[redacted:{name}]")
        done = end
    parts.append(text[done:])
    return "".join(parts), len(places)


def written_forms(value: str) -> Iterator[str]:
    """Yield the ways in which a value may be written."""
    yield value
    quoted = (quote(value, safe=""), quote(value), quote_plus(value))
    yield from quoted
    yield from (_lower_escapes(form) for form in quoted)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield from _base64_forms(value.encode("utf-8", "surrogatepass"))


def _lower_escapes(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 that depends on the value alone, for each of its three places in a longer text."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        encoded = base64.b64encode(bytes(before) + data).decode()[first:last]
        if len(encoded) >= SHORTEST:
            yield encoded
            yield encoded.replace("+", "-").replace("/", "_")
