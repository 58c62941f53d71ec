"""The redactors, what they know and how they replace it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast
from urllib.parse import quote, quote_plus

from ava_audit.redaction.commands import PASSWORD_OPTIONS, find_curl_passwords, find_option_passwords
from ava_audit.redaction.logins import find_addresses, find_jdbc_passwords, find_netrc_passwords, find_url_passwords
from ava_audit.redaction.passwords import NAMES, find_assignments, find_plain_passwords
from ava_audit.redaction.places import Looks, SecretSpan, end_of_match, lower_bytes
from ava_audit.redaction.private_keys import (
    KEY_TOKEN,
    PEM_BEGIN,
    PEM_END,
    PEM_LONGEST,
    find_key_ends,
    find_private_keys,
    is_plain_word,
    pem_keys,
)
from ava_audit.redaction.shapes import find_prefixed
from ava_audit.redaction.statements import STATEMENT_MARKS, find_in_statements
from ava_audit.redaction.structures import open_heading
from ava_audit.redaction.tokens import (
    find_by_member,
    find_digest_responses,
    find_headers,
    find_password_hashes,
    find_signatures,
)

SHORTEST_VALUE = 8
"""A shorter configured value is not replaced, because it may be part of ordinary words."""


PIECE_CHARS = 65_536
"""The most characters that are searched at once."""
_OVERLAP_CHARS = 4_096
"""How much of a piece is searched again with the next one."""
_OVERLAP_MARKED_CHARS = 8_192
"""The same where marks stand between the characters of a secret."""
_BEFORE_CHARS = 1_024
"""The most characters before a secret that say what it is."""
_CUT_CHARS = 256
"""A secret that ends so near to the end of a piece may go on behind it."""
_WORD_REST = re.compile(r"[^\s\"'`<>]*+")


def _spans_of(piece: Iterable[SecretSpan], start: int, seen: int) -> list[SecretSpan]:
    """Return what is found in a piece as spans of the text, from `seen` on; the piece before has everything before it.

    A span that begins before `seen` and ends after it is cut. In a text full of secrets, several are redacted as one,
    and not the same ones in both pieces.
    """
    if not start:
        return _merge_spans(piece)
    first = seen - start
    spans: list[SecretSpan] = []
    for span in piece:
        if span[2] > first:
            spans.append(span if span[1] >= first else span._replace(start=first))
    return [SecretSpan(name, begin + start, end + start) for name, begin, end in _merge_spans(spans)]


def _next_piece(text: str, start: int, end: int, cut: list[SecretSpan], *, marked: bool) -> int:
    """Return where the piece after one begins: so early that each secret that reaches its end is whole in it."""
    overlap = _OVERLAP_MARKED_CHARS if marked else _OVERLAP_CHARS
    last_word = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
    following = min(end - overlap, last_word - _BEFORE_CHARS)
    for span in cut:
        following = min(following, span.start - 2 * _BEFORE_CHARS)
    if text.find(PEM_END, end, end + PEM_LONGEST) >= 0:
        following = min(following, end - PEM_LONGEST)
    following = max(following, start + PIECE_CHARS // 2)
    line = text.rfind("\n", following - _BEFORE_CHARS, following)
    return line + 1 if line >= 0 else following


class Redactor:
    """Replaces configured values, and everything that looks like a key, by `[redacted:NAME]`.

    It may learn further values at any time, from any thread, and forgets none: a key that was removed may still be in a
    later text. `too_short` names values that are not replaced because they have fewer than 8 characters.

    A long text is searched in pieces. `between_pieces` is called after each: it may let others have their turn, and
    raise to give the search up.

    `seen_offsets` returns the places of the characters of a text that are seen, None if all are: colour codes and
    zero-width characters split a secret for a search, and not for who reads it. They stay where no secret is.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        between_pieces: Callable[[], None] = lambda: None,
        seen_offsets: Callable[[str], Sequence[int] | None] = lambda _text: None,
    ) -> None:
        self.between_pieces = between_pieces
        self.seen_offsets = seen_offsets
        self.too_short: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self._learn_lock = threading.Lock()
        self.learn(values)

    def learn(self, values: Mapping[str, str]) -> None:
        """Replace these values too from now on; a value keeps the first name it was learned under."""
        stripped = {name: value.strip() for name, value in values.items()}
        with self._learn_lock:
            too_short = dict.fromkeys(self.too_short)
            names = dict(self._names)
            for name, value in stripped.items():
                if len(value) >= SHORTEST_VALUE:
                    names.setdefault(value, name)
                elif value:
                    too_short[name] = None
            self.too_short = tuple(too_short)
            if len(names) == len(self._names):
                return
            forms: dict[str, str] = {}
            for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
                for form in written_forms(value):
                    forms.setdefault(form, name)
            self._names, self._forms = names, forms  # new objects, because another thread may iterate over the old ones

    def redact(self, text: str) -> tuple[str, int]:
        return _replace_spans(text, self._all(text))

    def redact_lines(self, text: str) -> tuple[str, int]:
        """Return the text as `redact` does, but keep its number of lines: each line of a secret becomes a mark."""
        return _replace_spans(text, self._all(text), lines=True)

    def redact_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)[0]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self.redact_json(str(key)): self.redact_json(item) for key, item in members.items()}
        if isinstance(value, list | tuple):
            return [self.redact_json(item) for item in cast("list[Any]", value)]
        return value

    def redact_values(self, text: str) -> tuple[str, int]:
        """Return the text with only the configured values replaced, and the number of replacements."""
        return _replace_spans(text, self._find_configured(text))

    def find_shapes(self, text: str) -> list[SecretSpan]:
        """Return, in order, what looks like a key but is not a configured value; a task that has one is refused."""
        configured = list(self._find_configured(text))
        shapes: list[SecretSpan] = []
        for span in self._search(text, lambda piece: self._find_seen(piece, _find_by_pattern)):
            if not any(_overlap(span, value) for value in configured):
                shapes.append(span)
        return shapes

    def _all(self, text: str) -> Iterator[SecretSpan]:
        return self._search(text, self._everything)

    def _find_configured(self, text: str) -> Iterator[SecretSpan]:
        return self._search(text, lambda piece: self._find_seen(piece, self._configured))

    def _everything(self, piece: str) -> Iterator[SecretSpan]:
        return self._find_seen(piece, lambda part: chain(self._configured(part), _find_by_pattern(part)))

    def _search(self, text: str, find: Callable[[str], Iterator[SecretSpan]]) -> Iterator[SecretSpan]:
        """Yield what is found in a text of any length, in order and without overlaps."""
        return _join_spans(self._in_pieces(text, find))

    def _find_seen(self, text: str, find: Callable[[str], Iterator[SecretSpan]]) -> Iterator[SecretSpan]:
        """Yield what is found in a text as it is, and without the marks that split a secret and that no reader sees."""
        yield from find(text)
        offsets = self.seen_offsets(text)
        if offsets is None:
            return
        for span in find("".join([text[at] for at in offsets])):
            yield SecretSpan(span.name, offsets[span.start], offsets[span.end - 1] + 1)

    def _in_pieces(self, text: str, find: Callable[[str], Iterator[SecretSpan]]) -> Iterator[SecretSpan]:
        """Yield what is found in a text, searched in pieces that overlap, so that each secret is whole in one of them.

        What reaches the end of a piece is looked at again in the next one, from a place before it. Where it is longer
        than a piece, it goes on to the end of its word.
        """
        heading = ""
        start = seen = 0
        while start + PIECE_CHARS < len(text):
            end = start + PIECE_CHARS
            spans = _spans_of(find(heading + text[start:end]), start - len(heading), seen)
            cut = [span for span in spans if span.end > end - _CUT_CHARS]
            marked = self.seen_offsets(text[end - _OVERLAP_MARKED_CHARS : end]) is not None
            following = _next_piece(text, start, end, cut, marked=marked)
            seen = following + _BEFORE_CHARS
            for span in spans:
                if span.start >= seen:  # the next piece has it too
                    break
                if span in cut:
                    yield span._replace(end=end_of_match(_WORD_REST, text, span.end))
                else:
                    yield span
            heading = open_heading(heading + text[start:following])
            start = following
            self.between_pieces()
        yield from _spans_of(find(heading + text[start:]), start - len(heading), seen)

    def _configured(self, text: str) -> Iterator[SecretSpan]:
        for form, name in self._forms.items():
            at = text.find(form)
            while at >= 0:
                yield SecretSpan(name, at, at + len(form))
                at = text.find(form, at + 1)


_PIECE = 8
_PIECE_CHARS = 6
"""The fewest different characters in a piece of a private key: `AAAAAAAA` is in many texts."""
_MOST_PIECES = 1_000_000
"""The most pieces of private keys that a run learns: about 90 MB, or 500 RSA keys with 2,048 bits."""
_NO_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
_ENCODED_KEY = re.compile(
    r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}+(?:(?:\\[nr]|\s){1,40}+[A-Za-z0-9+/]{40,}+)*+(?:\s{1,40}+[A-Za-z0-9+/]{1,100}+)?"
)
_PUBLIC_BLOCK = re.compile(r"-----BEGIN (?![A-Z0-9 ]{0,30}PRIVATE)[^-\n]{1,60}-----[^-]{0,20000}+-----END ")
_PUBLIC_RUN = re.compile(
    r"AAAA(?:B3NzaC1yc2EAAAADAQAB[A-Za-z0-9+/]{100,}+={0,2}|C3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}+"
    r"|E2VjZHNhLXNoYTItbmlzdHA(?:[A-Za-z0-9+/]{112}+=|[A-Za-z0-9+/]{155}+==|[A-Za-z0-9+/]{203}+==))"
)
"""A whole public key of OpenSSH: RSA, Ed25519 or ECDSA. A private key contains the same characters."""
_COMMON_BEGINNINGS = {"MII": 44, "b3Bl": 96}
"""By a private key's first letters: how many of its characters also begin public keys and other keys."""


_MOST_KEPT_SPANS = 10_000


class _Searched(NamedTuple):
    """A text that was searched, by its hash, and what was known then: all values, and how many pieces of keys."""

    sha256: bytes
    forms: Mapping[str, str]
    pieces: int
    spans: Sequence[SecretSpan]

    def is_of(self, sha256: bytes, forms: Mapping[str, str], pieces: int) -> bool:
        return self.sha256 == sha256 and self.forms is forms and self.pieces == pieces


class RunRedactor(Redactor):
    """Knows everything that a shared redactor knows, and the private keys in the files of one run.

    A command can print any part of a file. So every part of such a key with at least 16 characters of one line is
    replaced, also in base64. The shared redactor also learns the values given to `learn`, but no private keys. `full`:
    there were more of them than it can learn; `told_full`: its run's log says so.

    A run reads a long document piece by piece, and each time its whole text is redacted. So the places of secrets in
    the last long text are kept, until more is known that has to be hidden.
    """

    def __init__(self, shared: Redactor) -> None:
        self.full = self.told_full = False
        self._shared = shared
        self._pieces: set[str] = set()
        self._learned: set[int] = set()
        self._searched: _Searched | None = None
        super().__init__({}, shared.between_pieces, shared.seen_offsets)

    def learn(self, values: Mapping[str, str]) -> None:
        """Replace these values too from now on, also wherever the shared redactor is used."""
        self._shared.learn(values)

    def learn_private_keys(self, text: str) -> None:
        """Replace from now on every part of the PEM private keys in a text, also of keys that are in base64.

        Give it the run's own files only: a page could contain a key made of words, to blank these words elsewhere.
        """
        for source in (text, *_decoded_keys(text)):
            for _spans, words in pem_keys(source):
                if words:
                    data = "".join(_NO_BASE64.sub("", word.text) for word in words)
                    self._learn_key(data, source[words[0].start : words[-1].end])

    def _learn_key(self, data: str, written: str) -> None:
        with self._learn_lock:
            if hash(written) in self._learned:
                return
            if len(self._pieces) >= _MOST_PIECES:
                self.full = True
                return
            self._learned.add(hash(written))
            self._pieces.update(_pieces_of(data, written))

    def _all(self, text: str) -> Iterator[SecretSpan]:
        if len(text) <= PIECE_CHARS:
            yield from super()._all(text)
            return
        sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        forms, pieces = self._shared._forms, len(self._pieces)  # before the search: another thread may learn meanwhile
        last = self._searched
        if last is not None and last.is_of(sha256, forms, pieces):
            yield from last.spans
            return
        spans: list[SecretSpan] = []
        for span in super()._all(text):
            if len(spans) <= _MOST_KEPT_SPANS:
                spans.append(span)
            yield span
        if len(spans) <= _MOST_KEPT_SPANS:
            self._searched = _Searched(sha256, forms, pieces, spans)

    def _configured(self, text: str) -> Iterator[SecretSpan]:
        return chain(self._shared._configured(text), self._parts_of_keys(text))

    def _parts_of_keys(self, text: str) -> Iterator[SecretSpan]:
        pieces = self._pieces
        if not pieces:
            return
        public_blocks = [match.span() for match in _PUBLIC_BLOCK.finditer(text)]
        for token in KEY_TOKEN.finditer(text):
            word = token[0]
            offsets = range(len(word) - _PIECE + 1)
            has_piece = any(word[at : at + _PIECE] in pieces for at in offsets)
            if not has_piece:
                continue
            if _PUBLIC_RUN.fullmatch(word):
                continue
            is_public = any(start <= token.start() < end for start, end in public_blocks)
            if not is_public:
                yield SecretSpan("private-key", token.start(), token.end())


def _decoded_keys(text: str) -> Iterator[str]:
    """Yield the PEM texts that a text contains in base64, as Kubernetes and kubeconfig files do."""
    for match in _ENCODED_KEY.finditer(text):
        data = _NO_BASE64.sub("", match[0].replace("\\n", " ").replace("\\r", " "))
        yield base64.b64decode(data[: len(data) // 4 * 4]).decode("utf-8", "replace")


def _pieces_of(data: str, written: str) -> Iterator[str]:
    """Yield the pieces by which a private key is recognised: every part of 16 characters contains one of them.

    `data` is the key's base64 text without anything else, `written` the same as in the file, with its line ends.
    """
    common = 0
    for beginning, count in _COMMON_BEGINNINGS.items():
        if data.startswith(beginning):
            common = count
    for form in (data[common:], *_base64_forms(written[common:].encode("utf-8", "replace"))):
        for at in range(0, len(form) - _PIECE + 1, _PIECE // 2):
            piece = form[at : at + _PIECE]
            if len(set(piece)) >= _PIECE_CHARS and not is_plain_word(piece):
                yield piece


_FINDERS: tuple[Callable[..., Iterator[SecretSpan]], ...] = (
    find_private_keys,
    find_key_ends,
    find_url_passwords,
    find_headers,
    find_assignments,
    find_plain_passwords,
    find_in_statements,
    find_curl_passwords,
    find_option_passwords,
    find_netrc_passwords,
    find_jdbc_passwords,
    find_digest_responses,
    find_signatures,
    find_password_hashes,
    find_by_member,
    find_addresses,
)
_BY_NAME = frozenset({find_headers, find_assignments, find_in_statements})
"""Finders of names that are written in several cases; they search the text in lower case."""
_COUNTED = frozenset(
    (find_url_passwords, find_plain_passwords, find_curl_passwords, find_option_passwords, find_addresses)
)
"""Finders that count the places at which they look, as those of names do."""
_HASHES = ("$2", "$1$", "$5$", "$6$", "$y$", "$apr1$", "$argon2")
_MEMBERS = ('"auth', '"d', ":AA")
_ADDRESSES = ("@tcp(", "@unix(", ":5", ":6432:", ":*:")

MARKS = (
    *(*NAMES, PEM_BEGIN, PEM_END, "://", "uthorization", "UTHORIZATION", "ookie", "OOKIE", "PASSWORD", "_PASS"),
    *(*_HASHES, *_MEMBERS, *_ADDRESSES),
    *(
        "PASSPHRASE",
        "curl",
        "machine",
        "default",
        "jdbc:",
        "response=",
        "sig=",
        "ignature",
        "IGNATURE",
        *PASSWORD_OPTIONS,
    ),
    *STATEMENT_MARKS,
)
"""Each finder finds something only in a text with one of these."""
_SHORT_TEXT = 2_000
"""Characters up to which looking for the marks first is quicker than asking each finder."""


def _find_by_pattern(text: str) -> Iterator[SecretSpan]:
    if len(text) <= _SHORT_TEXT and not any(map(text.__contains__, MARKS)):
        return find_prefixed(text)
    looks, low = Looks(text), lower_bytes(text)
    searches = [find_prefixed(text)]
    for find in _FINDERS:
        if find in _BY_NAME:
            searches.append(find(text, looks, low))
        elif find in _COUNTED:
            searches.append(find(text, looks))
        else:
            searches.append(find(text))
    return chain.from_iterable(searches)


def _overlap(one: SecretSpan, other: SecretSpan) -> bool:
    return one.start < other.end and other.start < one.end


def _join_spans(spans: Iterable[SecretSpan]) -> Iterator[SecretSpan]:
    """Yield spans that are in order without overlaps, holding only one in memory: a long text may have very many."""
    last: SecretSpan | None = None
    for span in spans:
        if last is not None and span.start < last.end:
            last = last._replace(end=max(last.end, span.end))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _merge_spans(places: Iterable[SecretSpan]) -> list[SecretSpan]:
    """Merge overlapping places, in order of the text; the one found first gives the name."""
    merged: list[SecretSpan] = []
    ranked = [(span[1], order, span) for order, span in enumerate(places)]
    ranked.sort()
    rank = 0
    last_end = -1
    for start, order, span in ranked:
        if start >= last_end:
            merged.append(span)
            rank, last_end = order, span[2]
            continue
        last_end = max(last_end, span[2])
        last = merged[-1]
        if order < rank:
            rank = order
            merged[-1] = SecretSpan(span[0], last[1], last_end)
        elif last_end > last[2]:
            merged[-1] = SecretSpan(last[0], last[1], last_end)
    return merged


def _replace_spans(text: str, places: Iterable[SecretSpan], *, lines: bool = False) -> tuple[str, int]:
    parts: list[str] = []
    done = 0
    for name, start, end in places:
        mark = f"[redacted:{name}]"
        if lines:
            mark = "\n".join([mark] * (text.count("\n", start, end) + 1))
        parts += (text[done:start], mark)
        done = end
    if not parts:
        return text, 0
    count = len(parts) // 2
    parts.append(text[done:])
    return "".join(parts), count


def written_forms(value: str) -> Iterator[str]:
    yield value
    quoted = (quote(value, safe=""), quote(value), quote_plus(value))
    yield from quoted
    yield from (_lower_escapes(form) for form in quoted)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield html.escape(value)
    yield html.escape(value, quote=False)
    yield from _base64_forms(value.encode("utf-8", "surrogatepass"))


def _lower_escapes(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 characters that depend only on the value, for its three alignments in a longer text."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        encoded = base64.b64encode(bytes(before) + data).decode()[first:last]
        if len(encoded) >= SHORTEST_VALUE:
            yield encoded
            yield encoded.replace("+", "-").replace("/", "_")


_LONGEST_FRAGMENT = 8
_SHORTEST_FRAGMENT = 5
_SHORTEST_END = 3


def redact_fragments(text: str, name: str, value: str) -> tuple[str, int]:
    """Return the text with every fragment of a value replaced, and the number of replacements.

    A fragment has 8 characters; of a value under 16 characters half as many, but at least 5; at the end of the text 3.
    They are found in all forms of `written_forms`, in HTML and in hexadecimal digits.
    """
    size = min(_LONGEST_FRAGMENT, max(_SHORTEST_FRAGMENT, len(value) // 2))
    digits = value.encode("utf-8", "surrogatepass").hex()
    forms = {*written_forms(value), digits, digits.upper()}
    fragments = {form[at : at + size] for form in forms for at in range(len(form) - size + 1)}
    spans: list[SecretSpan] = []
    covered = -1
    for start in range(len(text) - size + 1):
        if text[start : start + size] not in fragments:
            continue
        if start <= covered:
            spans[-1] = spans[-1]._replace(end=start + size)
        else:
            spans.append(SecretSpan(name, start, start + size))
        covered = start + size
    for length in range(size - 1, _SHORTEST_END - 1, -1):
        start = len(text) - length
        if start < max(covered, 0):
            continue
        if any(text.endswith(form[:length]) for form in forms):
            spans.append(SecretSpan(name, start, len(text)))
            break
    return _replace_spans(text, spans)
