"""Secrets in statements and settings: SQL, `define(…)` of PHP, property lists, and files of servers.

What a value is there is said by a word before it (`IDENTIFIED BY`, `requirepass`), by the name of a column, or by the
element beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from ava_audit.redaction.places import LOOK, TABLE, Looks, PlacesBefore, SecretSpan, as_one, find_values
from ava_audit.redaction.structures import secret_name
from ava_audit.redaction.values import Verdicts, is_code, is_mixed, is_password, is_random

_BEFORE_CHARS = 200
"""How far before a mark it may be said what the statement is about."""


class _Rule(NamedTuple):
    """What marks a secret: the mark in its spellings, what follows it, and whether that is a secret."""

    literals: tuple[str, ...]
    after: re.Pattern[str]
    """Its last group that matched is the value."""
    is_secret: Callable[[str, str, re.Match[str]], bool]
    """By what stands before the mark, the mark, and what follows it."""


def _value(match: re.Match[str]) -> str:
    return match[match.lastindex or 0]


_QUOTED = r"(?:'([^'\n]{4,200}+)'|\"([^\"\n]{4,200}+)\")"
_WORD_ALONE = r"([^\s;,'\"()<>]{6,200}+)[ \t\r;]{0,9}+(?=\n|\\n|\Z)"
"""A value without quotes that ends its line."""
_IDENTIFIED = re.compile(
    r"\s{1,9}+(?:with\s{1,9}+[\"'`]?\w{1,40}+[\"'`]?\s{1,9}+)?(?:by|as|using)\s{1,9}+(?:(?:password|values)\s{1,9}+)?"
    rf"(?:{_QUOTED}|{_WORD_ALONE})",
    re.IGNORECASE,
)
_OF_USERS = re.compile(
    r"\b(?:(?:create|alter|add)\s{1,9}(?:public\s|database\s|if\s|not\s|exists\s|or\s|replace\s){0,4}"
    r"(?:user|role|login|group|link)\b|grant\s[^\n;]{1,160}\sto\s)",
    re.IGNORECASE,
)
_SQL_PASSWORD = re.compile(rf"(?:(?:\s{{0,9}}+=)?\s{{0,9}}+[NE]?{_QUOTED}|\s{{0,3}}+\(\s{{0,3}}+{_QUOTED}\s{{0,3}}+\))")
_SETS_PASSWORD = re.compile(r"\b(?:set|update)\s[^\n;]{0,190}=\s{0,3}(?:old_)?p\Z", re.IGNORECASE)
_SECURE_STRING = re.compile(rf"(?:\s{{1,3}}-(?:String|AsPlainText|Force)){{0,3}}\s{{1,3}}{_QUOTED}", re.IGNORECASE)
_DEFINED = re.compile(
    r"\s{0,5}+([\"'])(\w{3,40}+)\1\s{0,5}+,\s{0,5}+(?:'((?:[^'\\\n]|\\.){8,200}+)'|\"((?:[^\"\\\n]|\\.){8,200}+)\")"
)
_WORDPRESS = re.compile(r"(?:SECURE_)?(?:AUTH|LOGGED_IN|NONCE)_(?:KEY|SALT)")
_NEXT_ELEMENT = re.compile(r"\s{0,40}+<(?:string|value|data)>\s{0,40}+([^\s<>]{6,300}+)\s{0,40}+</")
_OPTION = re.compile(rf"[ \t]{{1,9}}+(?:{_QUOTED}|{_WORD_ALONE})")
_BEGINS_OPTION = re.compile(r"(?:\A|[\n\"'+>]|\\n|--|\bset |\bSET )[ \t]{0,40}\Z")
_PSK = re.compile(
    r"(?:\s{0,3}+=\s{0,3}+|[ \t]{1,9}+(?=[\"']))(?:\"([^\"\n]{8,64}+)\"|'([^'\n]{8,64}+)'"
    r"|([^\s\"'`;,()<>\[\]{}]{8,64}+)(?![(\[]))"
)
_FOREIGN = re.compile(
    r"[A-Za-zñ]{0,2}[\"']?\s{0,3}+(?:[(\uff08][^()\uff08\uff09\n]{0,20}[)\uff09]\s{0,3}+)?(?:=>|[:=\uff1a\uff1d])\s{0,5}+"
    r"[\"'`\u300c\u300e\u201c]?([A-Za-z0-9_+/=.~!@#%^&*?-]{8,64}+)(?![(\[])"
)
_KEY_TEXT = re.compile(r"([\w. -]{3,60}+)\Z")


def _is_of_user(before: str, mark: str, match: re.Match[str]) -> bool:
    is_statement = mark.isupper() or _OF_USERS.search(before) is not None
    return is_statement and is_password(_value(match), "")


def _is_sql_password(before: str, _mark: str, match: re.Match[str]) -> bool:
    if _OF_USERS.search(before) is None and _SETS_PASSWORD.search(before) is None:
        return False
    return is_password(_value(match), "")


def _is_password(_before: str, _mark: str, match: re.Match[str]) -> bool:
    return is_password(_value(match), "")


def _is_defined(_before: str, _mark: str, match: re.Match[str]) -> bool:
    name = match[2]
    if not secret_name(name) and not _WORDPRESS.fullmatch(name):
        return False
    words = _value(match).replace(" ", "")
    return is_random(words, 8) and is_mixed(words)


def _is_in_next_element(before: str, _mark: str, match: re.Match[str]) -> bool:
    words = _KEY_TEXT.search(before)
    name = secret_name(words[1].strip()) if words is not None else ""
    if name in ("password", "pass") and is_password(_value(match), ""):
        return True
    return bool(name) and is_random(_value(match), 12)


def _is_option(before: str, _mark: str, match: re.Match[str]) -> bool:
    value = _value(match)
    return _BEGINS_OPTION.search(before) is not None and is_password(value, "") and not is_code(value)


def _is_shared_key(before: str, _mark: str, match: re.Match[str]) -> bool:
    if before[-1:].isalnum() or is_code(_value(match)):
        return False
    return is_password(_value(match), "")


def _is_foreign(_before: str, _mark: str, match: re.Match[str]) -> bool:
    value = _value(match)
    return is_random(value, 8) and is_mixed(value) and not is_code(value)


_RULES = (
    _Rule(("dentified", "DENTIFIED"), _IDENTIFIED, _is_of_user),
    _Rule(("assword", "ASSWORD"), _SQL_PASSWORD, _is_sql_password),
    _Rule(("SecureString", "securestring", "SECURESTRING"), _SECURE_STRING, _is_password),
    _Rule(("define(", "DEFINE("), _DEFINED, _is_defined),
    _Rule(("</key>",), _NEXT_ELEMENT, _is_in_next_element),
    _Rule(("</name>",), _NEXT_ELEMENT, _is_in_next_element),
    _Rule(("requirepass",), _OPTION, _is_option),
    _Rule(("masterauth",), _OPTION, _is_option),
    _Rule(("bindpw", "BINDPW"), _OPTION, _is_option),
    _Rule(("rootpw", "rootPW"), _OPTION, _is_option),
    _Rule(("psk", "PSK"), _PSK, _is_shared_key),
    _Rule(("asswort", "ASSWORT"), _FOREIGN, _is_foreign),
    _Rule(("ennwort", "ENNWORT"), _FOREIGN, _is_foreign),
    _Rule(("de passe", "de Passe", "DE PASSE"), _FOREIGN, _is_foreign),
    _Rule(("achtwoord", "ACHTWOORD"), _FOREIGN, _is_foreign),
    _Rule(("contrase", "Contrase", "CONTRASE"), _FOREIGN, _is_foreign),
    _Rule(("senha", "Senha", "SENHA"), _FOREIGN, _is_foreign),
)
_NOT_ASCII = (
    *("\u5bc6\u7801", "\u5bc6\u78bc", "\u53e3\u4ee4", "\u30d1\u30b9\u30ef\u30fc\u30c9"),  # Chinese, Japanese
    *("\ube44\ubc00\ubc88\ud638", "\uc554\ud638"),  # Korean
    *("\u0430\u0440\u043e\u043b\u044c", "as\u0142o"),  # Russian, Polish
)
"""Words for a password in other scripts."""
_INSERT = re.compile(
    r"\s{1,9}+[^\s(]{1,120}+\s{0,9}+\(([^()]{1,2000}+)\)\s{0,9}+(?:OUTPUT[^()]{1,99}\s)?values?\s{0,9}+(?=\()",
    re.IGNORECASE,
)
_COPY = re.compile(
    r"[^\s(]{1,120}+\s{0,9}+\(([^()\n]{1,2000}+)\)\s{0,9}+FROM\s{1,9}+STDIN[^\n]{0,99}+\n", re.IGNORECASE
)
_IN_QUOTES = r"'(?:[^'\\\n]|''|\\[^\n]){0,2000}+'|\"(?:[^\"\\\n]|\"\"|\\[^\n]){0,2000}+\""
_CELL = rf"\s{{0,9}}+(?:[NE]?(?:{_IN_QUOTES})|(?:[^,()'\"\n]|\([^()'\"\n]{{0,99}}+\)){{0,200}}+)\s{{0,9}}+"
_ANY_STRING = as_one(r"[(,]\s{0,9}+[NE]?", _IN_QUOTES)
_ANY_WORD = as_one(r"(?:^|\t)", r"[^\t\n]{6,300}+", r"(?:\t|\n|\Z)", re.MULTILINE)
_INSERTS = (("nsert into", "NSERT INTO", "nsert INTO"), ("eplace into", "EPLACE INTO", "eplace INTO"))
_COPIES = ("COPY ", "copy ")
STATEMENT_MARKS = (
    *(literal for rule in _RULES for literal in rule.literals),
    *(literal for literals in (*_INSERTS, _COPIES) for literal in literals),
    *_NOT_ASCII,
)


def find_in_statements(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    """Find secrets by words that say so: `IDENTIFIED BY '…'`, `requirepass …`, `Passwort: …`, columns of an INSERT."""
    for rule in _RULES:
        if rule.after is not _NEXT_ELEMENT or "</" in text:
            yield from _find_by_rule(text, looks, low, rule)
    if not text.isascii():
        for word in _NOT_ASCII:
            yield from _find_by_rule(text, looks, None, _Rule((word,), _FOREIGN, _is_foreign))
    for literals in _INSERTS:
        yield from _find_in_rows(text, looks, low, literals, _INSERT)
    yield from _find_in_rows(text, looks, low, _COPIES, _COPY)


def _find_by_rule(text: str, looks: Looks, low: bytes | None, rule: _Rule) -> Iterator[SecretSpan]:
    places = PlacesBefore(text, rule.literals, rule.after, low)
    start = 0
    while (place := places.find(start)) is not None:
        if not looks.take():
            yield from find_values(text, rule.literals, rule.after)
            return
        at, match = place
        start = at + len(rule.literals[0])
        mark = text[at:start]
        if rule.is_secret(text[max(0, at - _BEFORE_CHARS) : at], mark, match):
            begin, start = match.span(match.lastindex or 0)
            yield SecretSpan("password", begin, start)


def _find_in_rows(
    text: str, looks: Looks, low: bytes, literals: tuple[str, ...], statement: re.Pattern[str]
) -> Iterator[SecretSpan]:
    """Find the values of columns with secrets, in the rows of INSERT and COPY statements."""
    places = PlacesBefore(text, literals, statement, low)
    judge = Verdicts(lambda name: Verdicts(lambda value: _is_cell(name, value)))
    start = 0
    while (place := places.find(start)) is not None:
        _at, match = place
        start = match.end()
        columns = [secret_name(column.strip(" \t\r\n\"'`[]")) for column in match[1].split(",")]
        if not any(columns):
            continue
        has_looks = looks.take(TABLE)
        row_pattern = _row_of(tuple(map(bool, columns)), copied=statement is _COPY)
        names = [name for name in columns if name]
        while has_looks and (row := row_pattern.match(text, start)) is not None:
            start = row.end()
            has_looks = looks.take(LOOK)
            for number, name in enumerate(names, 1):
                begin, end = row.span(number)
                if statement is not _COPY:
                    begin, end = _without_quotes(text, begin, end)
                if begin < end and judge[name][text[begin:end]]:
                    yield SecretSpan(name, begin, end)
        if not has_looks:
            for string in (_ANY_WORD if statement is _COPY else _ANY_STRING).finditer(text):
                yield SecretSpan("secret", *string.span(1))
            return


def _without_quotes(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return where the text of a value in quotes is; nothing where it has none."""
    cell = text[begin:end].strip()
    if len(cell) < 2 or cell[-1] not in "'\"":
        return begin, begin
    quote = text.index(cell[-1], begin, end)
    return quote + 1, text.rindex(cell[-1], begin, end)


@cache
def _row_of(secret_columns: tuple[bool, ...], *, copied: bool) -> re.Pattern[str]:
    """Return a pattern for a row up to its last column with a secret, whose cells with secrets are the groups."""
    cell, between = _CELL, ","
    if copied:
        cell, between = r"[^\t\n]*+", r"\t"
    cells: list[str] = []
    last = max(number for number, is_secret in enumerate(secret_columns) if is_secret)
    for is_secret in secret_columns[: last + 1]:
        cells.append(f"({cell})" if is_secret else cell)
    row = between.join(cells)
    if copied:
        return re.compile(rf"(?!\\\.){row}[^\n]*+(?:\n|\Z)")
    return re.compile(rf"\s{{0,9}}+,?\s{{0,9}}+\({row}(?:,{_CELL}){{0,200}}+\)")


def _is_cell(name: str, value: str) -> bool:
    if name in ("password", "pass"):
        return len(value) >= 6 and is_password(value, "")
    return is_random(value, 16 if name == "token" else 12) and not is_code(value)
