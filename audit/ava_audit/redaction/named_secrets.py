"""Secrets that only what stands around them gives away: headers, passwords in URLs, values of telling names.

Names such as `api_key` are found by their last letters, so that upper and lower case cost nothing; values
that stand for a secret (`$TOKEN`, `<key>`, `your-api-key`), expressions and paths are left alone. The rule
for speed is that of `key_shapes.py`: literals first, patterns bounded or possessive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ava_audit.redaction.key_shapes import Found

_USERINFO = re.compile(r"([^\s/?#@:\"'<>`]{0,100}+):([^\s/@\"'<>`]{3,300}+)@")


def url_passwords(text: str) -> Iterator[Found]:
    """Find the passwords of `scheme://user:password@host`."""
    at = text.find("://")
    while at >= 0:
        match = _USERINFO.match(text, at + 3)
        if match is not None and match[2] != match[1] and not is_placeholder(match[2]):
            yield Found("url-password", match.start(2), match.end(2))
        at = text.find("://", at + 3)


_OPENING = r"\\?[\"']?\s{0,3}[:=,]\s{0,3}[fbru]{0,2}\\?[\"'`]?"
_AUTHORIZATION = re.compile(
    _OPENING
    + r"(?:([Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey)\s{1,3})?"
    + r"([A-Za-z0-9._~+/=-]{8,128}+)(?![(\[{])"
)
_COOKIE = re.compile(r"\\?[\"']?:\s{0,3}\\?[\"']?([A-Za-z0-9_.-]{1,64}+=[^\r\n\"'`<>{}\\]{8,128}+)")


_TOKEN_REST = re.compile(r"[A-Za-z0-9_+/=.~-]*+")
_COOKIE_REST = re.compile(r"[^\r\n\"'`<>{}\\]*+")


def headers(text: str) -> Iterator[Found]:
    """Find the values of Authorization and Cookie headers."""
    for literal in ("uthorization", "UTHORIZATION"):
        done = 0
        for match in _after(text, literal, _AUTHORIZATION):
            scheme, value = match[1], match[2]
            secret = _mixed(value) or (scheme is not None and _jumbled(value))
            if match.start() >= done and secret and not is_placeholder(value) and (scheme or not _code(value)):
                done = _end(_TOKEN_REST, text, match.end(2))
                yield Found("authorization", match.start(2), done)
    for literal in ("ookie", "OOKIE"):
        done = 0
        for match in _after(text, literal, _COOKIE):
            if match.start() >= done and _mixed(match[1]):
                done = _end(_COOKIE_REST, text, match.end(1))
                yield Found("cookie", match.start(1), done)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where what the pattern matches from `at` on ends."""
    match = pattern.match(text, at)
    return match.end() if match else at


_NAMES = {
    literal: secret
    for secret, literals in {
        "key": ("key", "Key", "KEY"),
        "token": ("oken", "OKEN"),
        "secret": ("ecret", "ECRET"),
        "password": ("assword", "ASSWORD", "asswd", "ASSWD", "assphrase", "ASSPHRASE", "pwd", "PWD"),
        "credential": ("redential", "REDENTIAL"),
    }.items()
    for literal in literals
}
_KEY_OF = re.compile(r"(?:api|access|secret|private|auth|account|signing|encryption|master)[_ -]?\Z", re.IGNORECASE)
_NO_TOKEN_OF = re.compile(r"(?:next|page|continuation|csrf|xsrf|sync|nextpage|cursor)[_-]?t?\Z", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?:s|_?[0-9]{1,2}|[_-](?:value|base|prod|dev|test|live))?\\?[\"'`]?\]?"
    r"(?:\s{0,5}(?::\s{0,3}(?:str|string|bytes|SecretStr)(?:\s?\|\s?None)?\s{0,3}=|=>|:=|=|:)\s{0,5}|( ))"
    r"(?:[fbruFBRU]{0,2}\\?([\"'`])([^\s\"'`\\]{8,}+)\\?\2|([A-Za-z0-9_+/=.~!@#%^&*-]{8,128}+)(?![(\[{]))"
)
_FLAG = re.compile(r"--[A-Za-z-]{0,24}\Z")
_QUERY = re.compile(r"[?&][A-Za-z_-]{0,15}\Z")


def assignments(text: str) -> Iterator[Found]:
    """Find values given to a name such as `api_key`, `password` or `client_secret`."""
    for literal, name in _NAMES.items():
        done = 0
        for match in _after(text, literal, _ASSIGNED):
            start = match.start() - len(literal)
            before = text[max(0, start - 26) : start]
            if start < done:
                continue
            if name == "key" and _KEY_OF.search(before) is None:
                continue
            if name == "token" and _NO_TOKEN_OF.search(before) is not None:
                continue
            # After a mere space only the value of a command line's flag counts.
            if match[1] is not None and _FLAG.search(before) is None:
                continue
            shortest = 8 if name == "password" else 12
            if match[3] is not None:
                if _telling(match[3], max(shortest, 16 if name == "token" else 0)):
                    done = match.end(3)
                    yield Found(name, match.start(3), done)
            elif _mixed(match[4]) and _telling(match[4], shortest) and not _code(match[4]):
                done = _unquoted_end(text, match, before)
                yield Found(name, match.start(4), done)


def _unquoted_end(text: str, match: re.Match[str], before: str) -> int:
    """Return where an unquoted value ends: in a query at the next parameter, else where its characters do."""
    if _QUERY.search(before) is not None and "&" in match[4]:
        return match.start(4) + match[4].index("&")
    return _end(_TOKEN_REST, text, match.end(4))


def _after(text: str, literal: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    at = text.find(literal)
    while at >= 0:
        after = at + len(literal)
        match = pattern.match(text, after)
        if match is not None:
            yield match
        at = text.find(literal, after)


_STAND_INS = """
a access an and api apikey auth bar baz change changeit changeme client demo dummy enter env example
fake fill foo from goes here hidden id in insert is it key me my mypassword mysecret none not null
of optional or pass passphrase passwd password placeholder private put redacted replace required
sample secret set some string test testing the this to todo token undefined unset user username
value with your yourpassword
"""
_PLACEHOLDER_WORDS = frozenset(_STAND_INS.split())
_REFERENCE = ("$", "{", "<", "%", "[", "(", "#", "*", "&lt;", "@")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")


def is_placeholder(value: str) -> bool:
    """Tell whether a value stands for a secret (`$TOKEN`, `<key>`, `your-api-key`, `xxxx`) and is none."""
    value = value[:64]
    if value.startswith(_REFERENCE) or "..." in value or "…" in value or "${" in value or "{{" in value:
        return True
    words = (word.rstrip("0123456789").lower() for word in _SPLIT.split(value))
    return all(not word or word in _PLACEHOLDER_WORDS or len(set(word)) == 1 for word in words)


_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[_./-][A-Za-z]++)*+[_-]?[0-9]{0,3}")


def _mixed(value: str) -> bool:
    """Tell whether a value has letters and digits."""
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def _jumbled(value: str) -> bool:
    """Tell whether a value is one long word with capitals all over it."""
    return 16 <= len(value) <= 512 and value.isalpha() and 4 <= sum(map(str.isupper, value)) <= len(value) - 4


def _telling(value: str, shortest: int) -> bool:
    """Tell whether a value is random enough to be a secret: long, mixed, many characters, no placeholder."""
    if len(value) < shortest or not (_mixed(value) or _jumbled(value)) or len(set(value)) < min(10, shortest - 2):
        return False
    return not is_placeholder(value) and "://" not in value and not _IDENTIFIER.fullmatch(value)


_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z_][A-Za-z0-9_]*+)++")
_SNAKE = re.compile(r"_*+[A-Za-z]++[0-9]{0,3}(?:_[A-Za-z]{0,20}+[0-9]{0,3}+)++")


def _code(value: str) -> bool:
    """Tell whether an unquoted value reads as an expression or a path (`settings.key2`, `get_token_v2`)."""
    value = value.rstrip("=.,;!&")
    return bool(_DOTTED.fullmatch(value) or _SNAKE.fullmatch(value)) or value.startswith(("/", "./", "~/", "--"))
