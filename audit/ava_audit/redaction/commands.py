"""Passwords in command lines: of `curl -u`, and in the options of other commands."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from ava_audit.redaction.places import Looks, SecretSpan, find_values, places_of
from ava_audit.redaction.values import Verdicts, is_login, is_password

_CURL = re.compile(r"[ =]?[\"']?([^\s:\"'$<{]{1,100}+):([^\s\"'`]{3,200}+)")
_JOINED_FLAGS = re.compile(r" -[A-Za-z#]{1,12}")
_COMMAND_END = re.compile(r"[|;&\n]")
_CONTINUES = ("\\", "^", "`")
"""What continues a command on the next line, as the last character of this one."""
_COMMAND_CHARS = 400


class _Commands:
    """Finds the options of commands, by where commands start.

    A command ends after 400 characters, where the next one starts, with its line unless that is continued, and at one
    of `ends`.
    """

    def __init__(self, text: str, starts: list[int], ends: str) -> None:
        self._text = text
        self._starts = starts
        self._ends = ends
        self._last: dict[int, int] = {}

    def places_of(self, option: str) -> Iterator[tuple[int, int]]:
        """Yield where an option of a command begins and ends."""
        text, starts, size = self._text, self._starts, len(option)
        at = text.find(option, starts[0] + 1) if starts else -1
        while at >= 0:
            number = bisect_left(starts, at)
            if at <= self._last_place(number - 1):
                yield at, at + size
                at = text.find(option, at + size)
            elif number == len(starts):
                return
            else:
                at = text.find(option, starts[number] + 1)

    def _last_place(self, number: int) -> int:
        """Return where the last option of a command may begin."""
        last = self._last.get(number)
        if last is None:
            last = self._find_last_place(number)
            self._last[number] = last
        return last

    def _find_last_place(self, number: int) -> int:
        start = self._starts[number]
        last = start + _COMMAND_CHARS
        if number + 1 < len(self._starts):
            last = min(last, self._starts[number + 1])
        for end in _COMMAND_END.finditer(self._text, start, last):
            sign = end[0]
            if sign not in self._ends:
                continue
            if sign == "\n" and self._is_continued(end.start()):
                continue
            return end.start()
        return last

    def _is_continued(self, line_end: int) -> bool:
        last = line_end - 1
        if self._text[last] == "\r":
            last -= 1
        return self._text[last] in _CONTINUES


_CURL_OPTIONS = (" -u", " -U", " --user", " --proxy-user", "u ", "U ")


def find_curl_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find the password in `curl -u user:password`, also after joined flags and for a proxy."""
    starts = [at for at, _after in places_of(text, "curl")]
    if not starts:
        return
    pairs = Verdicts(is_login)
    commands = _Commands(text, starts, "\n")
    for literal in _CURL_OPTIONS:
        for at, after in commands.places_of(literal):
            if not looks.take():
                yield from find_values(text, _CURL_OPTIONS, _CURL)
                return
            if literal[0] != " " and not _follows_flags(text, at):
                continue
            match = _CURL.match(text, after)
            if match is not None and pairs[f"{match[1]}:{match[2]}"]:
                yield SecretSpan("password", match.start(2), match.end(2))


def _follows_flags(text: str, at: int) -> bool:
    """Tell whether flags are joined before a place, as in `-sSu`."""
    if text[at - 1] in " -":
        return False
    blank = max(0, text.rfind(" ", max(0, at - 14), at))
    return _JOINED_FLAGS.fullmatch(text, blank, at) is not None


_ARGUMENT = (
    r"(?:\"(?=[^\s,;:.)+\]}])([^\"\n]{4,200}+)\"|'(?=[^\s,;:.)+\]}])([^'\n]{4,200}+)'"
    r"|[\"']?((?:\\[$;&|<>]|[^\s\"'`$<>{}|;&:]){4,200}+))"
)
_LISTED = re.compile(r",\s{0,3}[\"']([^\"'\n]{4,200}+)[\"']")
_LISTED_JOINED = re.compile(r"([^\"'\s,][^\"'\n]{3,200}+)[\"']")
_LOGIN = re.compile(r"[ \"',]{1,5}login")
_OPTIONS = {
    " -p": ("mysql mariadb 7z sshpass", re.compile(_ARGUMENT)),
    " -p ": ("sshpass mongo docker podman registry oc", re.compile(_ARGUMENT)),
    " -P": ("zip unzip sqlcmd", re.compile(" ?" + _ARGUMENT)),
    " -w": ("ldap", re.compile(" ?" + _ARGUMENT)),
    " -a ": ("redis-cli", re.compile(_ARGUMENT)),
    " -U": ("smbclient", re.compile(r" ?[\"']?[^\s%]{1,100}+%" + _ARGUMENT)),
    " pass:": ("openssl", re.compile(_ARGUMENT)),
}
_LOGIN_FIRST = ("docker", "podman", "registry", "oc")
"""Commands whose `-p` is a password only after their word `login`."""
_WITH_LOGIN = {name: re.compile(f"{name}(?={_LOGIN.pattern})") for name in _LOGIN_FIRST}
_SEPARATE = {option.strip(): _OPTIONS[option][0] for option in (" -p ", " -P", " -w", " -a ")}
PASSWORD_OPTIONS = dict(_OPTIONS)
"""Options whose value is a password: how the names of their commands begin, and the value.

Also as items of a list: `["redis-cli", "-a", "…"]`.
"""
for _option, _names in _SEPARATE.items():
    for _quote in ('"', "'"):
        PASSWORD_OPTIONS[f"{_quote}{_option}{_quote}"] = (_names, _LISTED)
for _quote in ('"', "'"):
    PASSWORD_OPTIONS[f"{_quote}-p"] = (_OPTIONS[" -p"][0], _LISTED_JOINED)


_OPTION_LETTERS = sorted({option[2] for option in PASSWORD_OPTIONS if option[1] == "-"})
_DASH_AND_LETTER = re.compile(f"-[{''.join(_OPTION_LETTERS)}]")
"""One quick search for it saves some twenty."""


def find_option_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find passwords in command-line options: `mysql -p…`, `sshpass -p …`, `redis-cli -a …`."""
    passwords = Verdicts(lambda value: not value.isdigit() and is_password(value, ""))
    beginnings = set(_DASH_AND_LETTER.findall(text))
    options: list[str] = []
    for option in PASSWORD_OPTIONS:
        if option[1] == "-" and option[1:3] not in beginnings:
            continue
        if option in text:
            options.append(option)
    near = _places_near(text, options)
    commands: dict[str, _Commands] = {}
    for option in options:
        names, value = PASSWORD_OPTIONS[option]
        if names not in commands:
            commands[names] = _Commands(text, _command_starts(text, names, near), "|;&\n")
        for _at, after in commands[names].places_of(option):
            if not looks.take():
                yield from find_values(text, (option,), value)
                break
            match = value.match(text, after)
            if match is None:
                continue
            group = match.lastindex or 0
            if passwords[match[group]]:
                yield SecretSpan("password", *match.span(group))


_IN_COMMAND_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


_FEW_OPTIONS = 32
_LOGIN_CHARS = 16
"""More than a command, and the word `login` behind it, have."""


def _places_near(text: str, options: list[str]) -> list[tuple[int, int]]:
    """Return the parts of a text that can have the commands of some options: the whole text if these are many."""
    all_places = (at for option in options for at, _after in places_of(text, option))
    places = sorted(islice(all_places, _FEW_OPTIONS + 1))
    if len(places) > _FEW_OPTIONS:
        return [(0, len(text))]
    near: list[tuple[int, int]] = []
    for at in places:
        start, end = max(0, at - _COMMAND_CHARS), at + _LOGIN_CHARS
        if near and start <= near[-1][1]:
            start = near.pop()[0]
        near.append((start, end))
    return near


def _command_starts(text: str, names: str, near: list[tuple[int, int]]) -> list[int]:
    starts: list[int] = []
    for name in names.split():
        for start, end in near:
            if name in _WITH_LOGIN:
                starts += [match.start() for match in _WITH_LOGIN[name].finditer(text, start, end)]
            else:
                starts += [at for at, _after in places_of(text, name, start, end)]
    begin_word = [at for at in starts if at == 0 or text[at - 1] not in _IN_COMMAND_NAMES]
    return sorted(begin_word)
