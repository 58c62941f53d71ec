"""Places of secrets in a text, and whether a value looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class SecretSpan(NamedTuple):
    """The place of a secret in a text, and its name; never its value."""

    name: str
    start: int
    end: int


def matches_after(text: str, literal: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for _at, after in places_of(text, literal):
        match = pattern.match(text, after)
        if match is not None:
            yield match


def places_of(text: str, literal: str) -> Iterator[tuple[int, int]]:
    at = text.find(literal)
    while at >= 0:
        after = at + len(literal)
        yield at, after
        at = text.find(literal, after)


_PLACEHOLDERS = """
a access an and api apikey auth bar baz bit change changeit changeme client demo dummy enter env example
fake fill foo from goes here hidden id in insert is it key me my mypassword mysecret none not null
of optional or pass passphrase passwd password placeholder private put redacted replace required
sample secret set some string test testing the this to todo token undefined unset user username
value with your yourpassword
"""
_PLACEHOLDER_WORDS = frozenset(_PLACEHOLDERS.split())
_STOCK_PHRASES = """
admin administrator always app application ask contrasena database db default development disabled enabled encrypted
external false file generate guest heslo hidden inherit input kennwort local localhost mariadb masked mongo mongodb
mysql never new old own passwort pg plain plaintext postgres postgresql prod production prompt pw pwd rabbit rabbitmq
random read redis root same scott secure senha server service staging stdin strong super temp temporary tiger true
unused vault very wachtwoord web wordpress yes
"""
STOCK_WORDS = _PLACEHOLDER_WORDS | frozenset(_STOCK_PHRASES.split())
_REFERENCE = ("$", "{", "<", "%", "[", "(", "#", "*", "&lt;", "@")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")


def is_placeholder(value: str) -> bool:
    """Tell whether a value is only a placeholder for a secret (`$TOKEN`, `<key>`, `your-api-key`, `xxxx`)."""
    value = value[:64]
    if value.startswith(_REFERENCE) or "..." in value or "…" in value or "${" in value or "{{" in value:
        return True
    words = (word.rstrip("0123456789").lower() for word in _SPLIT.split(value))
    return all(not word or word in _PLACEHOLDER_WORDS or len(set(word)) == 1 for word in words)


def is_stock_phrase(value: str) -> bool:
    """Tell whether letters are only stock words of passwords and examples: `mysecretpassword`, `postgres`."""
    word = value.lower()
    reached = {0}
    for end in range(1, len(word) + 1):
        if any(word[start:end] in STOCK_WORDS for start in reached):
            reached.add(end)
    return len(word) in reached or len(set(word)) == 1


def is_password(value: str, user: str) -> bool:
    """Tell whether a value is more than a placeholder, the user's name, or stock words such as `postgres`."""
    words = (word.rstrip("0123456789") for word in _SPLIT.split(value))
    return value != user and not is_placeholder(value) and any(word and not is_stock_phrase(word) for word in words)


DIGIT = re.compile(r"[0-9]")
LETTER = re.compile(r"[A-Za-z]")
UPPER = re.compile(r"[A-Z]")
LOWER = re.compile(r"[a-z]")
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[_./-][A-Za-z]++)*+[_-]?[0-9]{0,3}")


def is_mixed(value: str) -> bool:
    return DIGIT.search(value) is not None and LETTER.search(value) is not None


def is_mixed_case(value: str) -> bool:
    """Tell whether a value is one long word with capitals throughout."""
    return 16 <= len(value) <= 512 and value.isalpha() and 4 <= sum(map(str.isupper, value)) <= len(value) - 4


def is_random(value: str, shortest: int) -> bool:
    """Tell whether a value looks random: long, mixed, with many different characters, and no placeholder."""
    if (
        len(value) < shortest
        or not (is_mixed(value) or is_mixed_case(value))
        or len(set(value)) < min(10, shortest - 2)
    ):
        return False
    return not is_placeholder(value) and "://" not in value and not _IDENTIFIER.fullmatch(value)


_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z_][A-Za-z0-9_]*+)++")
_SNAKE = re.compile(r"_*+[A-Za-z]++[0-9]{0,3}(?:_[A-Za-z]{0,20}+[0-9]{0,3}+)++")


def is_code(value: str) -> bool:
    """Tell whether an unquoted value looks like an expression or a path (`settings.key2`, `get_token_v2`)."""
    value = value.rstrip("=.,;!&")
    return bool(_DOTTED.fullmatch(value) or _SNAKE.fullmatch(value)) or value.startswith(("/", "./", "~/", "--"))
