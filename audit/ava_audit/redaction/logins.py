"""Logins with a password: in URLs and other addresses of servers, and in the files `.netrc` and `.pgpass`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ava_audit.redaction.places import Looks, SecretSpan, find_values, matches_after, places_of
from ava_audit.redaction.values import Verdicts, is_login, is_password, is_placeholder

_USERINFO = re.compile(r"([^\s/?#@:\"'<>`]{0,100}+):([^\s/@\"'<>`]{3,300}+)@")


def find_url_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    for _at, match in matches_after(text, "://", _USERINFO):
        if not looks.take():
            yield from find_values(text, ("://",), _USERINFO)
            return
        if match[2] != match[1] and not is_placeholder(match[2]):
            yield SecretSpan("url-password", match.start(2), match.end(2))


_SPACE = r"(?:\s|\\[nrt]){1,8}+"
_WORD = r"(?:[^\s\\]{1,200}+|\\(?![nrt\"])){1,20}+"
_NETRC_HOST = re.compile(f"{_SPACE}({_WORD})({_SPACE})(?=login|password)")
_NETRC_LOGIN = re.compile(f"(?:{_SPACE})?(?:login{_SPACE}({_WORD}){_SPACE}(?:account{_SPACE}{_WORD}{_SPACE})?)?")
_NETRC_PASSWORD = re.compile(
    rf"password{_SPACE}(?:\\?\"([^\"\n\\]{{3,200}}+)\\?\"|((?:[^\s\"'`\\]|\\(?![nrt\"])){{3,200}}+))"
    f"({_SPACE}login{_SPACE}{_WORD})?"
)
_NETRC_INDENT = "\"'> \t"


def find_netrc_passwords(text: str) -> Iterator[SecretSpan]:
    pairs = Verdicts(_is_netrc_login)
    for at, match in matches_after(text, "machine", _NETRC_HOST):
        if _is_netrc_entry(text, at, match[1], match[2]):
            yield from _find_netrc_password(text, match.end(2), pairs)
    if text.startswith("default"):
        yield from _find_netrc_password(text, len("default"), pairs)
    for _at, after in places_of(text, "\ndefault"):
        yield from _find_netrc_password(text, after, pairs)


def _is_netrc_entry(text: str, at: int, host: str, space: str) -> bool:
    """Tell `machine HOST login …` from prose, as in `machine learning login …`, by the white space behind the host."""
    if "." in host or host == "localhost":
        return True
    if not space.isspace() or "\n" in space:
        return True
    return host != "learning" and _begins_line(text, at)


def _is_netrc_login(pair: str) -> bool:
    """Tell whether `user password` has a password."""
    user, _, password = pair.partition(" ")
    return is_password(password, user)


def _begins_line(text: str, at: int) -> bool:
    before = text[max(0, at - 42) : at]
    rest = before.rstrip(_NETRC_INDENT)
    indent = before[len(rest) :]
    if not rest and at <= 42:  # the beginning of the text
        return True
    if '"' in indent or "'" in indent:
        return True
    return rest.endswith(("\n", "\\n"))


def _find_netrc_password(text: str, at: int, pairs: Verdicts[bool]) -> Iterator[SecretSpan]:
    login = _NETRC_LOGIN.match(text, at)
    if login is None:
        return
    match = _NETRC_PASSWORD.match(text, login.end())
    if match is None:
        return
    user = login[1] or ""
    has_login = user or match[3]
    if not has_login:
        return
    group = 1 if match[1] else 2  # with quotes, or without
    if pairs[f"{user} {match[group]}"]:
        yield SecretSpan("password", *match.span(group))


_JDBC = re.compile(r"[^\s\"'<>`\\]{1,600}+")
_JDBC_USER = re.compile(r"[?&;](?:user|username|uid)=([^&;]{1,100}+)", re.IGNORECASE)
_JDBC_PASSWORD = re.compile(
    r"(?:[?&](?:password|passwd|pwd)=([^&;]{3,200}+)|;(?:password|passwd|pwd)=([^;]{3,200}+))", re.IGNORECASE
)
_JDBC_ORACLE = re.compile(r"oracle:(?:thin|oci8?):([^/@]{1,100}+)/([^@]{3,200}+)@")


def find_jdbc_passwords(text: str) -> Iterator[SecretSpan]:
    end = 0
    passwords = Verdicts(lambda value: is_password(value, ""))
    for _at, after in places_of(text, "jdbc:"):
        if after < end:  # an address inside an address is not one
            continue
        address = _JDBC.match(text, after)
        if address is None:
            continue
        start, end = address.span()
        user = _JDBC_USER.search(text, start, end)
        oracle = _JDBC_ORACLE.match(text, start, end)
        for match in _JDBC_PASSWORD.finditer(text, start, end):
            value = match[1] or match[2]
            repeats_user = user is not None and value == user[1]
            if passwords[value] and not repeats_user:
                yield SecretSpan("password", *match.span(match.lastindex or 0))
        if oracle is not None and is_password(oracle[2], oracle[1]):
            yield SecretSpan("password", oracle.start(2), oracle.end(2))


_LONGEST_DSN = 170
_DSN = re.compile(r"([^\s:\"'`@/]{1,64}+):([^\s\"'`]{3,100}+)")
_DSN_WORD = r"(?<![^\s\"'`])(?=[^\s\"'`@]*+(?:@(?!(?:tcp|unix)\()[^\s\"'`@]*+)*+@(?:tcp|unix)\()[^\s\"'`]++"
_DSN_WORDS = re.compile(rf"{_DSN_WORD}(?:[\s\"'`]{{1,9}}+{_DSN_WORD}){{0,99}}+")
"""Words with a data source name in each."""
_PGPASS = re.compile(
    r":(?:5432|5433|6432|\*):[^:\s]{1,63}+:([^:\s]{1,63}+):((?:[^\s:\\\"']|\\[:\\]){4,200}+)(?=\r?\n|\Z)"
)
_PGPASS_HOST = re.compile(r"(?:[A-Za-z0-9.*-]{1,80}|/[A-Za-z0-9/._-]{1,80})")


def find_addresses(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find passwords in data source names of Go (`user:password@tcp(host)/db`) and in the lines of `.pgpass`."""
    if "@" in text:
        yield from _find_source_names(text, looks)
    for match in _PGPASS.finditer(text):
        start = match.start()
        line_start = text.rfind("\n", max(0, start - 90), start) + 1
        is_too_long = line_start == 0 and start > 80
        if is_too_long:
            continue
        if _PGPASS_HOST.fullmatch(text, line_start, start) is None:
            continue
        if is_password(match[2], match[1]):
            yield SecretSpan("password", *match.span(2))


def _find_source_names(text: str, looks: Looks) -> Iterator[SecretSpan]:
    pairs = Verdicts(is_login)
    for literal in ("@tcp(", "@unix("):
        for at, _after in places_of(text, literal):
            if text.find(":", max(0, at - _LONGEST_DSN), at) < 0:
                continue
            if not looks.take():
                for words in _DSN_WORDS.finditer(text):
                    yield SecretSpan("secret", *words.span())
                break
            start = at - len(_last_word(text, at))
            match = _DSN.fullmatch(text, start, at)
            if match is not None and pairs[f"{match[1]}:{match[2]}"]:
                yield SecretSpan("password", *match.span(2))


_NO_BREAK = re.compile(r"[^ \n\t\"'`=]*+")


def _last_word(text: str, end: int) -> str:
    before = text[max(0, end - _LONGEST_DSN) : end]
    reversed_word = _NO_BREAK.match(before[::-1])
    length = reversed_word.end() if reversed_word else 0
    return before[len(before) - length :]
