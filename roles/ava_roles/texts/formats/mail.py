"""Emails: their headers, the text of their bodies, and the messages that they forward. Attachments are named."""

from __future__ import annotations

import base64
import re
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.policy import EmailPolicy
from typing import Any, cast

from ava_roles.errors import ToolFailed
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.addresses import count_of_addresses, unseen_addresses
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import parsing

_HEADERS = ("From", "To", "Cc", "Bcc", "Reply-To", "Date", "Subject")
_HEADER_CHARS = 4_000  # the time to parse an address list grows with the square of its length
_SAME_HEADERS = 10
_TEXT_CHARS = 5_000_000
_HTML_CHARS = 2_000_000
_MAX_BOUNDARIES = 1_000
_MAX_PARTS = 1_000
_MAX_DEPTH = 50
_MOST_NAMED = 50
_NAME_CHARS = 200
_NEW_WORDS = 5
_NEW_SHARE = 0.1
"""A page with more words that its plain form lacks, in number and as a share of its words, is read too."""
_WORD = re.compile(r"\w+")
_ESCAPE = "\x1b"  # begins a change of the character set in ISO-2022
_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
_HEAD_BYTES = 200
_ENCODED_WORD = r"=\?[^?\s]{1,100}\?[bBqQ]\?[^?]*\?="
_ENCODED_WORDS = re.compile(rf"{_ENCODED_WORD}(?:\s*{_ENCODED_WORD})*")
"""Words of a header in an encoding of their own (RFC 2047), which belong together without the blanks between them."""
_BOUNDARY = re.compile(rb"boundary\s{0,20}=", re.IGNORECASE)


class _Policy(EmailPolicy):
    """Parses headers within bounds; one that cannot be parsed is shown as it is written.

    `charset`: of the message's text; many programs write a header in it that has no encoding of its own.
    """

    charset = ""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        cut = _ENCODED_WORDS.sub(_in_utf8, self._decoded(value[:_HEADER_CHARS]))
        try:
            return super().header_fetch_parse(name, cut)
        except Exception:  # the parser has no list of its exceptions
            return " ".join(cut.encode("ascii", "replace").decode("ascii").split())

    def _decoded(self, value: str) -> str:
        """Return a header whose bytes are written as they are, which the parser has as lone surrogates, as text."""
        if value.isascii() and _ESCAPE not in value:
            return value
        decoded = decode(value.encode("utf-8", "surrogateescape"), self.charset)
        return value if decoded is None else decoded.text


def _in_utf8(words: re.Match[str]) -> str:
    """Return encoded words in UTF-8, which the parser decodes.

    It cannot decode words of Windows in ISO-2022-JP (①), and none of which a character continues in the next one.
    """
    try:
        pieces = decode_header(words[0])
    except (HeaderParseError, ValueError):
        return words[0]
    text = ""
    for piece, charset in pieces:
        if isinstance(piece, str):
            return words[0]
        decoded = decode(piece, (charset or "").partition("*")[0])  # a language may follow: utf-8*en
        if decoded is None:
            return words[0]
        text += decoded.text
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    return f"=?utf-8?B?{encoded}?="


@parsing("email")
def read_mail(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return an email as text: of two forms of a body the plain one, of a page its words. Raises ToolFailed."""
    if len(_BOUNDARY.findall(data)) > _MAX_BOUNDARIES:
        raise ToolFailed("this email has too many parts to read here; ask for a smaller one")
    message = message_from_bytes(_in_ascii(data), policy=_Policy())
    within = _parts_of(message)
    policy: Any = cast("Any", _Policy)(charset=_charset_of(within))
    for part in within:
        part.policy = policy
    if not any(message[name] for name in (*_HEADERS, "Content-Type", "Message-ID")):
        raise ToolFailed("this file has no headers of an email; it is damaged, or has the name of another kind")
    reader = _Reader()
    parts = reader.read(message)
    title = " ".join(str(message["Subject"] or "").split())[:_NAME_CHARS] or None
    return Extracted(tuple(parts), title, len(parts), reader.missing())


def _in_ascii(data: bytes) -> bytes:
    """Return an email as its parser takes it: one that was saved in UTF-16, or with a mark, becomes UTF-8."""
    if not data.startswith(_MARKS) and b"\0" not in data[:_HEAD_BYTES]:
        return data
    decoded = decode(data)
    return data if decoded is None else decoded.text.encode("utf-8", "replace")


def _parts_of(message: Message) -> list[Message]:
    """Return a message and what is in it, at most as many parts as are read."""
    parts: list[Message] = []
    pending = [message]
    while pending and len(parts) < _MAX_PARTS:
        part = pending.pop(0)
        parts.append(part)
        if part.is_multipart():
            pending += cast("list[Message]", part.get_payload())
    return parts


def _charset_of(parts: list[Message]) -> str:
    """Return the character set of the first text that names one."""
    for part in parts:
        charset = part.get_content_charset()
        if charset and part.get_content_maintype() == "text":
            return charset
    return ""


class _Reader:
    """Walks through the parts of an email."""

    def __init__(self) -> None:
        self._messages: list[list[str]] = []
        self._missing: list[str] = []
        self._parts = 0
        self._room = _TEXT_CHARS

    def read(self, message: Message) -> list[Part]:
        self._message(message, 0)
        parts: list[Part] = []
        for number, blocks in enumerate(self._messages):
            place = f"forwarded message {number}" if number else ""
            parts.append(Part(place, "\n\n".join(blocks)))
        return parts

    def missing(self) -> tuple[str, ...]:
        """Return phrases on what is in the email and not in its text."""
        more = len(self._missing) - _MOST_NAMED
        if more <= 0:
            return tuple(self._missing)
        return (*self._missing[:_MOST_NAMED], count_phrase(more, "more part"))

    def _message(self, message: Message, depth: int) -> None:
        blocks: list[str] = []
        self._messages.append(blocks)
        lines: list[str] = []
        for name in _HEADERS:
            values = message.get_all(name, [])
            if len(values) > _SAME_HEADERS:
                self._missing.append(f"{count_phrase(len(values) - _SAME_HEADERS, 'more header')} of the name {name}")
            for value in values[:_SAME_HEADERS]:
                lines.append(f"{name}: {' '.join(str(value).split())[:_HEADER_CHARS]}")
                if len(str(value)) >= _HEADER_CHARS:
                    self._missing.append(f"the rest of a long header ({name})")
        self._say(blocks, "\n".join(lines))
        self._part(message, blocks, depth)

    def _say(self, blocks: list[str] | None, text: str) -> None:
        if blocks is None:
            return
        if len(text) > self._room:
            self._missing.append(f"the text after the first {_TEXT_CHARS:,} characters")
        block = text[: self._room].strip()
        if block:
            blocks.append(block)
            self._room -= len(block)

    def _part(self, part: Message, blocks: list[str] | None, depth: int) -> None:
        """Read a part of a message; without `blocks`, only name what it has beside its text."""
        self._parts += 1
        if self._parts > _MAX_PARTS or depth > _MAX_DEPTH:
            self._missing.append("a part of too many, or nested too deep")
            return
        kind = part.get_content_type()
        if kind == "multipart/encrypted" or kind.endswith(("/pkcs7-mime", "/x-pkcs7-mime")):
            self._missing.append("an encrypted or sealed body")
        elif part.is_multipart():
            self._multipart(part, kind, blocks, depth)
        elif kind == "message/external-body":
            self._missing.append("a body that is kept elsewhere")
        else:
            self._leaf(part, kind, blocks)

    def _multipart(self, part: Message, kind: str, blocks: list[str] | None, depth: int) -> None:
        parts: Any = part.get_payload()
        if kind == "message/rfc822":
            self._message(_forwarded(part, parts[0]), depth + 1)
        elif kind == "message/delivery-status":
            lines: list[str] = []
            for each in parts:
                lines += [f"{name}: {value}" for name, value in each.items()]
            self._say(blocks, "\n".join(lines))
        elif kind == "multipart/alternative":
            self._alternatives(parts, blocks, depth)
        else:
            for each in parts:
                self._part(each, blocks, depth + 1)

    def _alternatives(self, parts: list[Message], blocks: list[str] | None, depth: int) -> None:
        """Read the alternatives of a body: the plain text, and of the others those that do not only repeat it."""
        plain_texts: dict[Message, str] = {}
        for part in parts:
            if part.get_content_type() == "text/plain":
                text = _words(part)
                if text.strip():
                    plain_texts[part] = text
        plain_words = set(_different_words("\n".join(plain_texts.values())))
        for part in parts:
            if part in plain_texts:
                self._part(part, blocks, depth + 1)
            elif part.get_content_type() != "text/plain":
                is_repeated = bool(plain_texts) and self._repeats(part, plain_words)
                if is_repeated:
                    self._part(part, None, depth + 1)
                else:
                    self._part(part, blocks, depth + 1)

    def _repeats(self, part: Message, plain_words: set[str]) -> bool:
        """Tell whether a part has pages, and they add little to the plain form."""
        pages = _pages_of(part)
        return bool(pages) and all(self._adds_little(page, plain_words) for page in pages)

    def _adds_little(self, page: Message, plain_words: set[str]) -> bool:
        """Tell whether nearly all words of a page are in its plain form; name the others."""
        words = _different_words(_words(page))
        new = [word for word in words if word not in plain_words]
        if len(new) > max(_NEW_WORDS, len(words) * _NEW_SHARE):
            return False
        if new:
            self._missing.append(f"words that only the body's form as a page has: {', '.join(new)[:_NAME_CHARS]}")
        return True

    def _leaf(self, part: Message, kind: str, blocks: list[str] | None) -> None:
        """Read a part without parts of its own: a text into `blocks`, anything else by its name only."""
        if kind.startswith("multipart/"):
            self._missing.append("what is damaged in a body of several parts")
            self._say(blocks, _words(part))
            return
        file_name = " ".join(str(part.get_filename() or "").split())[:_NAME_CHARS]
        is_attached = file_name != "" or part.get_content_disposition() == "attachment"
        is_text = kind.startswith("text/") and kind != "text/rtf"
        if not is_text or is_attached:
            self._name_attachment(part, kind, file_name)
            return
        if blocks is not None:
            self._say(blocks, _words(part, self._missing))
        if kind == "text/html":
            self._name_links(part)

    def _name_attachment(self, part: Message, media_type: str, file_name: str) -> None:
        noun = "an attachment"
        if media_type.startswith("image/"):
            noun = "a picture"
        name = file_name or media_type[:_NAME_CHARS]
        size = len(part.get_payload(decode=True) or b"")
        self._missing.append(f"{noun}: {name} ({count_phrase(size, 'byte')})")

    def _name_links(self, page: Message) -> None:
        """Name how many links lead to an address that is not shown."""
        data: Any = page.get_payload(decode=True)
        self._missing += count_of_addresses(unseen_addresses(data or b""))


def _forwarded(part: Message, read: Message) -> Message:
    """Return a forwarded message, which may be in base64.

    RFC 2046 (5.2.1) does not allow that, so the parser takes the encoded lines for the message; many mailers write it.
    """
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if encoding != "base64" or any(read[name] for name in _HEADERS):
        return read
    encoded = Message()
    encoded["Content-Transfer-Encoding"] = encoding
    encoded.set_payload(read.get_payload())
    data = encoded.get_payload(decode=True)
    assert isinstance(data, bytes)
    decoded = message_from_bytes(data, policy=_Policy())
    return decoded if any(decoded[name] for name in _HEADERS) else read


def _pages_of(part: Message) -> list[Message]:
    """Return a part that is a page, or the pages of one that has a page with its pictures."""
    parts: Any = [part]
    if part.get_content_type() == "multipart/related" and part.is_multipart():
        parts = part.get_payload()
    return [each for each in parts if each.get_content_type() == "text/html"]


def _different_words(text: str) -> list[str]:
    return list(dict.fromkeys(_WORD.findall(text.casefold())))


def _words(part: Message, missing: list[str] | None = None) -> str:
    """Return the text of a body; phrases on what is not in it are added to `missing`."""
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    if missing is None:
        missing = []
    decoded = decode(data, part.get_content_charset() or "")
    if decoded is None:
        text = data.decode("utf-8", "replace")
    else:
        text = decoded.text
    if part.defects:
        missing.append("what is damaged in a body")
    if part.get_content_type() != "text/html":
        return text
    if len(text) > _HTML_CHARS:
        missing.append(f"the text after the first {_HTML_CHARS:,} characters of a page")
    page = read_page_text(text[:_HTML_CHARS], mark_tables=True)
    missing.extend(page.missing)
    return page.text
