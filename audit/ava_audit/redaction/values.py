"""What a value is: a placeholder, a password, something random, or code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

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
_STOCK_LENGTHS: dict[str, list[int]] = {}
"""By the first two letters of stock words, or the only one: how long these words are."""
for _word in STOCK_WORDS:
    _STOCK_LENGTHS.setdefault(_word[:2], []).append(len(_word))
_REFERENCE = ("$", "{", "<", "%", "[", "(", "#", "*", "&lt;", "@")
_INSERTED = re.compile(r"\.\.\.|…|\$\{|\{\{")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")


def is_placeholder(value: str) -> bool:
    """Tell whether a value is only a placeholder for a secret (`$TOKEN`, `<key>`, `your-api-key`, `xxxx`)."""
    value = value[:64]
    if value.startswith(_REFERENCE) or _INSERTED.search(value):
        return True
    for part in _SPLIT.split(value):
        word = part.rstrip("0123456789").lower()
        is_one_char_repeated = len(set(word)) <= 1
        if word not in _PLACEHOLDER_WORDS and not is_one_char_repeated:
            return False
    return True


def is_stock_phrase(value: str) -> bool:
    """Tell whether letters are only stock words of passwords and examples: `mysecretpassword`, `postgres`."""
    word = value.lower()
    reached = [0]
    for start in reached:  # it grows while it is read
        for beginning in (word[start : start + 2], word[start : start + 1]):
            for length in _STOCK_LENGTHS.get(beginning, ()):
                end = start + length
                if end > len(word) or end in reached:
                    continue
                if word[start:end] in STOCK_WORDS:
                    reached.append(end)
    return len(word) in reached or len(set(word)) == 1


def is_password(value: str, user: str) -> bool:
    """Tell whether a value is more than a placeholder, the user's name, or stock words such as `postgres`."""
    if value == user or is_placeholder(value):
        return False
    for written in _SPLIT.split(value):
        word = written.rstrip("0123456789")
        if word and not is_stock_phrase(word):
            return True
    return False


def is_login(pair: str) -> bool:
    """Tell whether `user:password` has a password."""
    user, _, password = pair.partition(":")
    return is_password(password, user)


V = TypeVar("V")


class Verdicts(dict[str, V]):
    """Asks about each value of a text once: in a text made to be slow, the same ones come again and again."""

    def __init__(self, judge: Callable[[str], V]) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, value: str) -> V:
        verdict = self[value] = self._judge(value)
        return verdict


DIGIT = re.compile(r"[0-9]")
LETTER = re.compile(r"[A-Za-z]")
UPPER = re.compile(r"[A-Z]")
LOWER = re.compile(r"[a-z]")
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[_./-][A-Za-z]++)*+[_-]?[0-9]{0,3}")


def is_mixed(value: str) -> bool:
    return DIGIT.search(value) is not None and LETTER.search(value) is not None


def is_mixed_case(value: str) -> bool:
    """Tell whether a value is one long word with capitals throughout."""
    if not 16 <= len(value) <= 512:
        return False
    if not value.isalpha():
        return False
    return 4 <= sum(map(str.isupper, value)) <= len(value) - 4


def is_random(value: str, shortest: int) -> bool:
    """Tell whether a value looks random: long, mixed, with many different characters, and no placeholder."""
    if len(value) < shortest:
        return False
    if len(set(value)) < min(10, shortest - 2):
        return False
    if not is_mixed(value) and not is_mixed_case(value):
        return False
    if "://" in value or is_placeholder(value):
        return False
    return not _IDENTIFIER.fullmatch(value)


_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z_][A-Za-z0-9_]*+)++")
_SNAKE = re.compile(r"_*+[A-Za-z]++[0-9]{0,3}(?:_[A-Za-z]{0,20}+[0-9]{0,3}+)++")


def is_code(value: str) -> bool:
    """Tell whether an unquoted value looks like an expression or a path (`settings.key2`, `get_token_v2`)."""
    value = value.rstrip("=.,;!&")
    if value.startswith(("/", "./", "~/", "--")):
        return True
    if _DOTTED.fullmatch(value):
        return True
    return _SNAKE.fullmatch(value) is not None
