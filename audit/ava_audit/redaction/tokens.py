"""Tokens, cookies, signatures and password hashes, known by what stands beside them or by their form."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress

from ava_audit.redaction.places import (
    TOKEN_REST,
    Looks,
    PlacesBefore,
    SecretSpan,
    end_of_match,
    find_values,
    matches_after,
)
from ava_audit.redaction.values import Verdicts, is_code, is_mixed, is_mixed_case, is_placeholder, is_random

_OPENING = r"(?:\"\"|\\?[\"'])?\s{0,3}[:=,]\s{0,3}[fbru]{0,2}(?:\"\"|\\?[\"'`])?"  # CSV doubles quotes
_AUTHORIZATION = re.compile(
    _OPENING + r"(?:((?i:bearer|basic|token|digest|apikey))\s{1,3})?" + r"([A-Za-z0-9._~+/=-]{8,128}+)(?![(\[{])"
)
_COOKIE = re.compile(
    r"(?:\"\"|\\?[\"'])?:\s{0,3}(?:\"\"|\\?[\"'])?(?=[^\r\n\"'`<>{}\\0-9]{0,192}+[0-9])"
    r"([A-Za-z0-9_.-]{1,64}+=[^\r\n\"'`<>{}\\]{8,128}+)"
)


_COOKIE_REST = re.compile(r"[^\r\n\"'`<>{}\\]*+")
_AUTHORIZATIONS = ("uthorization", "UTHORIZATION")
_COOKIES = ("ookie", "OOKIE")


def find_headers(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    yield from _find_authorizations(text, looks, low)
    yield from _find_cookies(text, looks, low)


def _find_authorizations(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    bare_tokens, tokens = Verdicts(_is_bare_token), Verdicts(_is_token)
    places = PlacesBefore(text, _AUTHORIZATIONS, _AUTHORIZATION, low)
    start = 0
    while (place := places.find(start)) is not None:
        if not looks.take():
            yield from find_values(text, _AUTHORIZATIONS, _AUTHORIZATION)
            return
        at, match = place
        start = at + 1
        scheme, value = match[1], match[2]
        is_secret = bare_tokens[value] if scheme is None else tokens[value]
        if is_secret:
            start = end_of_match(TOKEN_REST, text, match.end(2))
            yield SecretSpan("authorization", match.start(2), start)


def _find_cookies(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    mixed = Verdicts(is_mixed)
    places = PlacesBefore(text, _COOKIES, _COOKIE, low)
    start = 0
    while (place := places.find(start)) is not None:
        if not looks.take():
            yield from find_values(text, _COOKIES, _COOKIE)
            return
        at, match = place
        start = at + 1
        if mixed[match[1]]:
            start = end_of_match(_COOKIE_REST, text, match.end(1))
            yield SecretSpan("cookie", match.start(1), start)


def _is_token(value: str) -> bool:
    if not is_mixed(value) and not is_mixed_case(value):
        return False
    return not is_placeholder(value)


def _is_bare_token(value: str) -> bool:
    if not is_mixed(value) or is_placeholder(value):
        return False
    return not is_code(value)


_DIGEST = re.compile(r"\\?(?:[\"']{0,2}|&quot;)([0-9a-fA-F]{32,128}+)")


def find_digest_responses(text: str) -> Iterator[SecretSpan]:
    """Find the `response=` of a Digest authorization: with it, the password can be guessed offline."""
    for at, match in matches_after(text, "response=", _DIGEST):
        if "nonce=" in text[max(0, at - 600) : at + 500]:
            yield SecretSpan("authorization", match.start(1), match.end(1))


_SIGNATURE = re.compile(r"((?:[A-Za-z0-9+/]|%2[BbFf]){43}(?:=|%3[Dd]))(?![A-Za-z0-9%])")


_LONG_SIGNATURE = re.compile(r"(?:=|%3[Dd])((?:[A-Za-z0-9_~+/-]|%2[BbFf]){20,1200}+(?:=|%3[Dd]){0,2})")


_BEFORE_SIGNATURES = ("?", "&", ";", "-", ",", " ")


def find_signatures(text: str) -> Iterator[SecretSpan]:
    """Find signatures with which an address opens: `&sig=…` of Azure, `X-Amz-Signature=…` and others."""
    for literal in ("ignature", "IGNATURE"):
        for at, match in matches_after(text, literal, _LONG_SIGNATURE):
            if text[max(0, at - 2) : at - 1] in _BEFORE_SIGNATURES and is_mixed(match[1]) and not is_code(match[1]):
                yield SecretSpan("signature", *match.span(1))
    for at, match in matches_after(text, "sig=", _SIGNATURE):
        if at and text[at - 1] in "?&;":
            yield SecretSpan("signature", *match.span(1))


_CRYPT = re.compile(
    r"\$(?:2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}"
    r"|6\$(?:rounds=[0-9]{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{80,86}+"
    r"|5\$(?:rounds=[0-9]{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{43}"
    r"|(?:1|apr1)\$[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}"
    r"|y\$[./A-Za-z0-9]{1,9}\$[./A-Za-z0-9]{1,86}\$[./A-Za-z0-9]{43}"
    r"|argon2(?:id|i|d)\$v=[0-9]{1,3}\$m=[0-9]{1,9},t=[0-9]{1,5},p=[0-9]{1,4}"
    r"\$[A-Za-z0-9+/]{8,99}\$[A-Za-z0-9+/]{16,99})"
)


def find_password_hashes(text: str) -> Iterator[SecretSpan]:
    """Find hashes of passwords by crypt and Argon2: they can be guessed offline."""
    for match in _CRYPT.finditer(text):
        yield SecretSpan("password-hash", *match.span())


_DOCKER_AUTH = re.compile(r"\\?\"\s{0,3}:\s{0,3}\\?\"([A-Za-z0-9+/]{12,400}+={0,2})\\?\"")
_JWK_KEY = re.compile(r"\\?\"\s{0,3}:\s{0,3}\\?\"([A-Za-z0-9_-]{40,900}+)\\?\"")
_BOT_TOKEN = re.compile(r"([A-Za-z0-9_-]{33})(?![A-Za-z0-9_-])")


def find_by_member(text: str) -> Iterator[SecretSpan]:
    """Find the `auth` of Docker's configuration, the private part `d` of a JWK, and tokens of Telegram's bots."""
    for _at, match in matches_after(text, '"auth', _DOCKER_AUTH):
        with suppress(ValueError):
            if b":" in b64decode(match[1] + "=" * (-len(match[1]) % 4)):
                yield SecretSpan("password", *match.span(1))
    if "kty" in text:
        for _at, match in matches_after(text, '"d', _JWK_KEY):
            if is_random(match[1], 40):
                yield SecretSpan("private-key", *match.span(1))
    for at, match in matches_after(text, ":AA", _BOT_TOKEN):
        number = text[max(0, at - 11) : at]
        digits = len(number) - len(number.rstrip("0123456789"))
        if 8 <= digits <= 10 and is_mixed(match[1]):
            yield SecretSpan("telegram-token", at - digits, match.end(1))
