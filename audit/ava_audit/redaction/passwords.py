"""Values that their context marks as secrets: a name, a header, a command."""

from __future__ import annotations

import re
from base64 import b64decode
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import islice
from typing import NamedTuple

from ava_audit.redaction.shapes import (
    FOUND,
    JUDGED,
    LOOK,
    STOCK_WORDS,
    WORDS_OF_VALUES,
    Looks,
    PlacesBefore,
    SecretSpan,
    Verdicts,
    as_one,
    find_values,
    is_code,
    is_mixed,
    is_mixed_case,
    is_password,
    is_placeholder,
    is_random,
    is_stock_phrase,
    matches_after,
    places_of,
)
from ava_audit.redaction.structures import (
    ANY_CELL,
    ANY_CONTINUED,
    ANY_LINES,
    ENDS_CELL,
    GOES_ON,
    ValuesElsewhere,
)

_USERINFO = re.compile(r"([^\s/?#@:\"'<>`]{0,100}+):([^\s/@\"'<>`]{3,300}+)@")


def find_url_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    for _at, match in matches_after(text, "://", _USERINFO):
        if not looks.take():
            yield from find_values(text, ("://",), _USERINFO)
            return
        if match[2] != match[1] and not is_placeholder(match[2]):
            yield SecretSpan("url-password", match.start(2), match.end(2))


_OPENING = r"(?:\"\"|\\?[\"'])?\s{0,3}[:=,]\s{0,3}[fbru]{0,2}(?:\"\"|\\?[\"'`])?"  # CSV doubles quotes
_AUTHORIZATION = re.compile(
    _OPENING
    + r"(?:([Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey)\s{1,3})?"
    + r"([A-Za-z0-9._~+/=-]{8,128}+)(?![(\[{])"
)
_COOKIE = re.compile(
    r"(?:\"\"|\\?[\"'])?:\s{0,3}(?:\"\"|\\?[\"'])?(?=[^\r\n\"'`<>{}\\0-9]{0,192}+[0-9])"
    r"([A-Za-z0-9_.-]{1,64}+=[^\r\n\"'`<>{}\\]{8,128}+)"
)


_TOKEN_REST = re.compile(r"[A-Za-z0-9_+/=.~-]*+")
_COOKIE_REST = re.compile(r"[^\r\n\"'`<>{}\\]*+")


_AUTHORIZATIONS, _COOKIES = ("uthorization", "UTHORIZATION"), ("ookie", "OOKIE")


def find_headers(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    alone, with_scheme = Verdicts(_is_bare_token), Verdicts(_is_token)
    places, start = PlacesBefore(text, _AUTHORIZATIONS, _AUTHORIZATION, low), 0
    while (found := places.find(start)) is not None:
        if not looks.take():
            yield from find_values(text, _AUTHORIZATIONS, _AUTHORIZATION)
            break
        at, match = found
        start = at + 1
        if (alone if match[1] is None else with_scheme)[match[2]]:
            start = _end(_TOKEN_REST, text, match.end(2))
            yield SecretSpan("authorization", match.start(2), start)
    mixed = Verdicts(is_mixed)
    places, start = PlacesBefore(text, _COOKIES, _COOKIE, low), 0
    while (found := places.find(start)) is not None:
        if not looks.take():
            yield from find_values(text, _COOKIES, _COOKIE)
            break
        at, match = found
        start = at + 1
        if mixed[match[1]]:
            start = _end(_COOKIE_REST, text, match.end(1))
            yield SecretSpan("cookie", match.start(1), start)


def _is_token(value: str) -> bool:
    return (is_mixed(value) or is_mixed_case(value)) and not is_placeholder(value)


def _is_bare_token(value: str) -> bool:
    return is_mixed(value) and not is_placeholder(value) and not is_code(value)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


NAMES = {
    literal: secret
    for secret, literals in {
        "key": ("key", "Key", "KEY"),
        "token": ("oken", "OKEN"),
        "secret": ("ecret", "ECRET"),
        "password": ("assword", "ASSWORD", "asswd", "ASSWD", "assphrase", "ASSPHRASE", "pwd", "Pwd", "PWD"),
        "credential": ("redential", "REDENTIAL"),
        "pass": ("_PASS",),
        "jwt": ("JWT",),
        "salt": ("SALT",),
    }.items()
    for literal in literals
}
_BY_LOWER: dict[str, list[str]] = {}
"""The literals of names that differ in their case only."""
for _literal in NAMES:
    _BY_LOWER.setdefault(_literal.lower(), []).append(_literal)
_KEY_OF = ("api", "access", "secret", "private", "auth", "account", "signing", "encryption", "master")
_NO_TOKEN_OF = ("next", "page", "continuation", "csrf", "xsrf", "sync", "cursor")
_ASSIGNED = re.compile(
    r"(?:[sS]|_?[0-9]{1,2}|[_-](?:value|base|prod|dev|test|live))?(?:\"\"|\\?[\"'`])?\]?"
    r"(?:\s{0,5}+(?::\s{0,3}(?:str|string|bytes|SecretStr)(?:\s?\|\s?None)?\s{0,3}=|=>|:=|=|:)\s{0,5}+|( |,\s{0,3}+))"
    r"(?:[fbruFBRU]{0,2}\\?(?P<quote>\"\"|[\"'`])(?P<quoted>[^\s\"'`\\]{8,}+)\\?(?P=quote)|"
    # without quotes, only with a digit and a letter
    r"(?=[A-Za-z0-9_+/=.~!@#%^&*-]{8})(?=[A-Za-z_+/=.~!@#%^&*-]{0,63}+[0-9])(?=[0-9_+/=.~!@#%^&*-]{0,63}+[A-Za-z])"
    r"(?P<unquoted>[A-Za-z0-9_+/=.~!@#%^&*-]{8,64}+)(?![(\[{]))"
)
_FLAG = re.compile(r"--[A-Za-z-]{0,24}")
_QUERY = re.compile(r"[?&][A-Za-z_-]{0,15}")


_PHRASE = re.compile(
    r"(?:\"\"|\\?[\"'`])?\]?\s{0,5}+(?P<phrase_sign>=>|:=|=|:)\s{0,5}+[fbruFBRU]{0,2}\\?(?P<phrase_quote>\"\"|[\"'`])"
    r"(?P<phrase>(?:[^\s\"'`\\]{1,64}+ ){1,7}+[^\s\"'`\\]{1,64}+)\\?(?P=phrase_quote)"
)
_ELEMENT_NAME = re.compile(r"<[A-Za-z0-9_:.-]{0,40}(?:\s(?:key|name)=([\"'])[A-Za-z0-9_:.-]{0,30})?")
_ELEMENT = re.compile(
    r"s?[\"']?(?:\s[^<>\n]{0,120}+)?>\s{0,40}(?:<!\[CDATA\[)?"
    r"([^\s<>\[\]]{3,300}+(?: [^\s<>\[\]]{1,64}+){0,7}+)(?:\]\]>)?\s{0,40}</"
)
_VALUE = re.compile(r"[\"']\s{1,4}value=[\"']([^\s\"'<>]{8,300}+)[\"']")

_PAIR = re.compile(
    r"[A-Za-z0-9_]{0,20}+(?:\\?[\"'])?(?:\s{0,3},\s{0,40}|\s{0,3}\n\s{0,40})\\?[\"']?[vV]alue\\?[\"']?\s{0,3}[:=]\s{0,3}"
    r"(?:\\?(?P<pair_quote>[\"'])([^\s\"'`\\]{8,300}+)\\?(?P=pair_quote)|([A-Za-z0-9_+/=.~!@#%^&*-]{8,128}+)(?=\s|\Z))"
)
_BLOCK = re.compile(
    r"[sS]?[\"']?:[ \t]{0,3}(?:[|>][+-]?[ \t]{0,3}\n[ \t]{1,40}|\n[ \t]{0,40}- )"
    r"[\"']?([^\s\"'<>{}\[\]]{8,300}+)[\"']?[ \t]{0,3}(?=\n|\Z)"
)
_DEFAULT = re.compile(
    r"[A-Za-z0-9_]{0,20}+\"\s{0,3}\{\s{0,3}(?:(?!default)[^{}\n]{0,99}+\n\s{0,9}){0,8}+default\s{0,9}=\s{0,3}\"([^\s\"\\]{8,300}+)\""
)
_SIGN_NEAR = r"(?=[A-Za-z0-9_-]{0,20}+[\s\"'`\\\]:=,>;*|│┃║])"
"""Each of the following begins so; most places of a name do not, and need no more than this look."""


_KEY_BEFORE = "|".join(f"(?<=(?i:{word}){sign}...)" for word in _KEY_OF for sign in ("", "[_ .-]"))
_IS_KEY = f"(?s:(?<=[a-zA-Z_ .-]...)(?:{_KEY_BEFORE}))"
"""What has to stand before the end of `key`: without it, a `key` is no secret, and many texts have very many."""


def _may_follow(*kinds: re.Pattern[str], before: str = "") -> re.Pattern[str]:
    return re.compile(f"{before}{_SIGN_NEAR}(?:{'|'.join(kind.pattern for kind in (*kinds, GOES_ON))})")


_FURTHER = (_PAIR, _BLOCK, _DEFAULT)
_IN_XML = (_ELEMENT, _VALUE)


@cache
def _pattern_after(name: str, *, elements: bool) -> re.Pattern[str]:
    """Return a pattern of what may follow the name of a secret, in a text with elements of XML or without."""
    kinds = [_ASSIGNED, *(_IN_XML if elements else ()), *_FURTHER]
    if name in ("password", "pass"):
        kinds.append(_PHRASE)
    return _may_follow(*kinds, before=_IS_KEY if name == "key" else "")


_ANY_QUOTED = as_one(r"(?m:[:=,;|\t]\s{0,5}+|^)[fbruFBRU]{0,2}\\?(?:\"\"|[\"'`])", r"[^\"'`\\\n]{8,400}+", r"\\?[\"'`]")
_ANY_ELEMENT = as_one(
    r">\s{0,40}+(?:<!\[CDATA\[)?",
    r"[^\s<>\[\]]{3,300}+(?: [^\s<>\[\]]{1,64}+){0,7}+",
    r"(?:\]\]>)?\s{0,40}+</",
)
"""What may be the value of a name, whatever stands before it."""
_NAMES_COLUMN = re.compile(f"(?:{'|'.join(NAMES)})(?:{ENDS_CELL.pattern})")


def find_assignments(text: str, looks: Looks, low: bytes) -> Iterator[SecretSpan]:
    """Find the values of names such as `api_key`, `password` or `client_secret`: assigned, or in an XML element."""
    elements = "<" in text
    elsewhere = ValuesElsewhere(text, looks)
    are_too_many = cache(lambda: looks.are_too_many(_number_of_names(low)))
    for literals in _BY_LOWER.values():
        name, size = NAMES[literals[0]], len(literals[0])
        values = _Values(name, size)
        places = PlacesBefore(text, tuple(literals), _pattern_after(name, elements=elements), low, are_too_many)
        start = 0
        while (found := places.find(start)) is not None:
            at, match = found
            start = at + size
            if not looks.take(LOOK if match.lastindex is None else JUDGED):
                yield from elsewhere.found()
                yield from _find_in_dense(text)
                return
            elsewhere.look(at, start)
            if match.lastindex is None:  # nothing else follows
                continue
            rejected = match.lastgroup == "unquoted" and not values.unquoted[match["unquoted"]]
            if rejected and not (elements and _in_element(text, at)):
                continue
            before = text[max(0, at - 40) : at]
            if not _may_name(name, before):
                continue
            place = _value_of(text, at, match, before, values, dense=places.dense)
            if place is not None:
                start = place[1]
                looks.take(FOUND)
                yield SecretSpan(name, *place)
        if places.gave_up:
            yield from _find_in_dense(text)
            break
    yield from elsewhere.found()


_SAMPLE_CHARS, _SAMPLES_APART = 512, 4_096


def _number_of_names(low: bytes) -> int:
    """Return about how many names a text has, by samples of it."""
    starts = range(0, len(low), _SAMPLES_APART)
    found = sum(low.count(name.encode(), at, at + _SAMPLE_CHARS) for name in _BY_LOWER for at in starts)
    return found * min(len(low), _SAMPLES_APART) // _SAMPLE_CHARS


def _find_in_dense(text: str) -> Iterator[SecretSpan]:
    """Find what may be the value of a name, in a text with names everywhere: each word that may be one, all quotes."""
    patterns = [WORDS_OF_VALUES, _ANY_QUOTED, _ANY_ELEMENT, ANY_LINES]
    if "\\" in text:
        patterns.append(ANY_CONTINUED)
    if _NAMES_COLUMN.search(text) is not None:
        patterns.append(ANY_CELL)
    for pattern in patterns:
        for match in pattern.finditer(text):
            yield SecretSpan("secret", *match.span(1))


def _value_of(
    text: str, at: int, match: re.Match[str], before: str, values: _Values, *, dense: bool
) -> tuple[int, int] | None:
    if match.lastgroup == "phrase":  # the last kind: it is none of the others
        return _phrase(match, values.phrases)
    after = at + values.size
    place, may_be_more = None, True
    if match.lastgroup in ("quoted", "unquoted"):
        place = _assigned(text, match, before, text[at:after], values, dense=dense)
        may_be_more = match[1] is not None and match[1][0] == ","  # `"DB_PASSWORD", value=…`
    if place is None and "<" in before:
        place = _element(text, after, before, values)
    if place is None and may_be_more:
        place = _further_on(text, after, values)
        if place is None and values.are_passwords and (phrase := _PHRASE.match(text, after)) is not None:
            place = _phrase(phrase, values.phrases)
    return place


class _Values:
    """Which values of a name are secrets."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.are_passwords = name in ("password", "pass")
        self._shortest = 8 if self.are_passwords or name == "salt" else 12

    @cached_property
    def unquoted(self) -> Verdicts[bool]:
        return Verdicts(partial(_is_value, shortest=self._shortest))

    @cached_property
    def quoted(self) -> Verdicts[bool]:
        return Verdicts(partial(is_random, shortest=16 if self.name == "token" else self._shortest))

    @cached_property
    def phrases(self) -> Verdicts[bool]:
        return Verdicts(_is_phrase)

    @cached_property
    def labels(self) -> Verdicts[bool]:
        return Verdicts(_is_random_label)

    @cached_property
    def elements(self) -> Verdicts[bool]:
        return Verdicts(_is_password_or_random if self.are_passwords else partial(is_random, shortest=12))


def _in_element(text: str, at: int) -> bool:
    return text.rfind("<", max(0, at - 40), at) >= 0


def _is_value(value: str, shortest: int) -> bool:
    return is_random(value, shortest) and is_mixed(value) and not is_code(value)


def _may_name(name: str, before: str) -> bool:
    """Tell whether a name means a secret, by the text before it: `api_key` does, and `next_token` does not."""
    if name == "key":
        return (before[:-1] if before[-1:] in ("_", " ", "-") else before).lower().endswith(_KEY_OF)
    if name == "token":
        word = before.lower().removesuffix("t")
        return not (word[:-1] if word[-1:] in ("_", "-") else word).endswith(_NO_TOKEN_OF)
    return name not in ("jwt", "salt") or not before[-1:].isalpha()  # not a part of another word


def _assigned(
    text: str, match: re.Match[str], before: str, literal: str, values: _Values, *, dense: bool
) -> tuple[int, int] | None:
    # After a space without `=` or `:`, only the value of a command-line flag or of a line of a Dockerfile counts.
    if match[1] is not None and not _takes_next_word(before):
        return None
    quoted, unquoted = match["quoted"], match["unquoted"]
    if literal == "PWD" and (quoted or unquoted).startswith("/"):  # the working folder
        return None
    if quoted is not None:
        return match.span("quoted") if values.quoted[quoted] else None
    if not values.unquoted[unquoted]:
        return None
    start, end = match.start("unquoted"), _unquoted_end(text, match, before, dense=dense)
    return (start, end) if end > start else None  # `?password=&user=…` has none


def _further_on(text: str, after: int, values: _Values) -> tuple[int, int] | None:
    """Return a value that stands apart from its name.

    `{"name": "DB_PASSWORD", "value": "…"}`, also in YAML; a block or the first item of a list of YAML; a default of
    Terraform.
    """
    for pattern in (_PAIR, _BLOCK, _DEFAULT):
        match = pattern.match(text, after)
        if match is None:
            continue
        group = match.lastindex or 0
        strict = pattern is _BLOCK or (pattern is _PAIR and match["pair_quote"] is None)
        known = values.unquoted if strict else values.quoted
        return match.span(group) if known[match[group]] else None
    return None


_DOCKERFILE = re.compile(r"(?:ENV|ARG) [A-Za-z0-9_]{0,30}")


def _takes_next_word(before: str) -> bool:
    if "--" in before and _FLAG.fullmatch(before, before.rindex("--")):
        return True
    if "ENV " not in before and "ARG " not in before:
        return False
    line = before.rfind("\n") + 1
    return _DOCKERFILE.fullmatch(before, line) is not None


def _element(text: str, after: int, before: str, values: _Values) -> tuple[int, int] | None:
    element = _ELEMENT_NAME.fullmatch(before, before.rindex("<"))
    if element is None:
        return None
    match = _ELEMENT.match(text, after) or (_VALUE.match(text, after) if element[1] else None)
    if match is None:
        return None
    # `<string name="password">` is as often a label, and so are several words.
    known = values.labels if element[1] or " " in match[1] else values.elements
    return match.span(1) if known[match[1]] else None


def _is_random_label(value: str) -> bool:
    return any(is_random(word, 6) for word in value.split(" "))


def _is_password_or_random(value: str) -> bool:
    return is_password(value, "") or is_random(value, 12)


def _phrase(match: re.Match[str], is_phrase: Verdicts[bool]) -> tuple[int, int] | None:
    return match.span("phrase") if is_phrase[f"{match['phrase_sign']} {match['phrase']}"] else None


def _is_phrase(given: str) -> bool:
    """Tell whether several words are a password, by the sign before them and the words."""
    sign, *words = given.split(" ")
    letters = all(len(word) >= 3 and word.isascii() and word.isalpha() for word in words)
    stock = any(word.lower() in STOCK_WORDS or word.upper() in _NO_ACCOUNTS for word in words)
    # After a colon, words are as often a label: `"password": "Mot de passe"`.
    plain = letters and not stock and sign != ":"
    return plain or any(len(word) >= 6 and is_mixed(word) and not is_placeholder(word) for word in words)


def _unquoted_end(text: str, match: re.Match[str], before: str, *, dense: bool) -> int:
    """Return the end of an unquoted value; in a URL query, the next parameter ends it.

    Not where names stand everywhere: there, one secret to the end of the query is found sooner than thousands.
    """
    value = match["unquoted"]
    sign = max(before.rfind("?"), before.rfind("&"))
    if not dense and sign >= 0 and "&" in value and _QUERY.fullmatch(before, sign) is not None:
        return match.start("unquoted") + value.index("&")
    return _end(_TOKEN_REST, text, match.end("unquoted"))


_IN_ENVIRONMENT_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_LONGEST_NAME = 40
_LETTERS = re.compile(
    r"=(?P<quote>[\"']?)(?P<letters>(?=[A-Za-z&!]{8})[A-Za-z]{1,64}+(?:[&!][A-Za-z]{1,64}+(?!=)){0,4}+)(?P=quote)(?=[\s\"';,]|\Z)"
)
_LETTERS_IN_YAML = re.compile(
    r"[\"']?:[ \t]{1,4}(?P<yaml_quote>[\"']?)(?P<in_yaml>[A-Za-z]{8,64}+)(?P=yaml_quote)(?=[\s\"',}]|\Z)"
)
_WITH_DOLLAR = re.compile(r"=(?P<dollar>[^\s\"'`;$<>]{1,64}+\$(?![A-Z_({])[^\s\"'`;<>(){}]{1,64}+)")
_MAY_BE_PLAIN = re.compile(f"(?:{_LETTERS.pattern}|{_LETTERS_IN_YAML.pattern}|{_WITH_DOLLAR.pattern})")
_CAMEL_CASE = re.compile(r"[a-z]{1,30}(?:[A-Z][a-z]{1,30}){1,4}")
_ACCOUNTS = frozenset({
    "ADMIN", "DATABASE", "DB", "EMAIL", "FTP", "IMAP", "LDAP", "MAIL", "MAILER", "MARIADB", "MONGO", "MONGODB", "MYSQL",
    "PG", "POSTGRES", "POSTGRESQL", "RABBITMQ", "REDIS", "ROOT", "SFTP", "SMTP", "SQL", "SSH", "USER",
})  # fmt: skip
"""The words before `_PASS` and `PASSWORD:` with which these mean an account's password."""
_NO_ACCOUNTS = frozenset({
    "CHANGE", "CONFIRM", "CREATE", "EMPTY", "ENABLE", "FEATURE", "FORGOT", "FORGOTTEN", "HIDE", "INCORRECT", "INVALID",
    "LABEL", "MISSING", "MSG", "NO", "REQUIRE", "RESET", "ROUTE", "SET", "SHOW", "SKIP", "UI", "UPDATE", "VERIFY",
    "WRONG",
})  # fmt: skip
"""The words with which `PASSWORD=` names an action, a message or an option."""


def find_plain_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find passwords without digits or with `$` in variables: `DB_PASSWORD=correcthorse`, `SMTP_PASS: correcthorse`."""
    for literal in ("PASSWORD", "_PASS", "PASSPHRASE"):
        verdicts = _PlainVerdicts(
            random=Verdicts(partial(is_random, shortest=8)),
            account=Verdicts(lambda name: not _ACCOUNTS.isdisjoint(name.split("_"))),
            is_no_label=Verdicts(_is_no_label),
        )
        places, start = PlacesBefore(text, (literal,), _MAY_BE_PLAIN), 0
        while (found := places.find(start)) is not None:
            if not looks.take():
                yield from find_values(text, (literal,), _MAY_BE_PLAIN)
                break
            at, match = found
            start = at + len(literal)
            name = _environment_name(text, at)
            if name is not None and _is_plain_password(match, name, literal, verdicts):
                start = match.end(match.lastgroup or "")
                yield SecretSpan("password", *match.span(match.lastgroup or ""))


def _environment_name(text: str, end: int) -> str | None:
    """Return what of a variable's name stands before a place; None where it is a part of another word."""
    before = text[max(0, end - _LONGEST_NAME - 1) : end]
    rest = before.rstrip(_IN_ENVIRONMENT_NAMES)
    name = before[len(rest) :]
    if len(name) > _LONGEST_NAME or not (rest[-1:] in ("", '"', "'") or rest[-1].isspace()):
        return None
    return name


def _is_no_label(assignment: str) -> bool:
    name, value = assignment.split("=")
    if not _NO_ACCOUNTS.isdisjoint(name.split("_")):
        return False
    given = value.lower()
    repeats = any(len(word) > 3 and word.lower() in given for word in (*name.split("_"), "password", "passwort"))
    return not repeats and not _CAMEL_CASE.fullmatch(value) and not is_stock_phrase(value)


def _is_plain_password(match: re.Match[str], name: str, literal: str, verdicts: _PlainVerdicts) -> bool:
    kind = match.lastgroup or ""
    if kind == "dollar":
        return verdicts.random[match[kind]]
    if (kind == "in_yaml" or literal == "_PASS") and not verdicts.account[name]:
        return False
    return verdicts.is_no_label[f"{name}={match[kind]}"]


class _PlainVerdicts(NamedTuple):
    random: Verdicts[bool]
    account: Verdicts[bool]
    is_no_label: Verdicts[bool]


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
            at = self._starts[number]
            last = at + _COMMAND_CHARS
            if number + 1 < len(self._starts):
                last = min(last, self._starts[number + 1])
            while (end := _COMMAND_END.search(self._text, at, last)) is not None:
                at = end.end()
                if end[0] in self._ends and not (end[0] == "\n" and self._is_continued(end.start())):
                    last = end.start()
            self._last[number] = last
        return last

    def _is_continued(self, line_end: int) -> bool:
        last = line_end - 2 if self._text[line_end - 1] == "\r" else line_end - 1
        return self._text[last] in _CONTINUES


_CURL_OPTIONS = (" -u", " -U", " --user", " --proxy-user", "u ", "U ")


def find_curl_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find the password in `curl -u user:password`, also after joined flags and for a proxy."""
    starts = [at for at, _after in places_of(text, "curl")]
    if not starts:
        return
    is_pair = Verdicts(lambda pair: is_password(pair.partition(":")[2], pair.partition(":")[0]))
    commands = _Commands(text, starts, "\n")
    for literal in _CURL_OPTIONS:
        for at, after in commands.places_of(literal):
            if not looks.take():
                yield from find_values(text, _CURL_OPTIONS, _CURL)
                return
            if literal[0] != " " and text[at - 1] in " -":
                continue
            flag = literal[0] == " " or _JOINED_FLAGS.fullmatch(text, max(0, text.rfind(" ", max(0, at - 14), at)), at)
            match = _CURL.match(text, after) if flag else None
            if match is not None and is_pair[f"{match[1]}:{match[2]}"]:
                yield SecretSpan("password", match.start(2), match.end(2))


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
    is_pair = Verdicts(lambda pair: is_password(pair.partition(" ")[2], pair.partition(" ")[0]))
    for at, match in matches_after(text, "machine", _NETRC_HOST):
        host, space = match[1], match[2]
        # `machine learning login …` is prose, and so is most that is not a line of its own.
        named = "." in host or host == "localhost" or not space.isspace() or "\n" in space
        if named or (host != "learning" and _begins_line(text, at)):
            yield from _netrc_password(text, match.end(2), is_pair)
    if text.startswith("default"):
        yield from _netrc_password(text, len("default"), is_pair)
    for _at, after in places_of(text, "\ndefault"):
        yield from _netrc_password(text, after, is_pair)


def _begins_line(text: str, at: int) -> bool:
    before = text[max(0, at - 42) : at]
    rest = before.rstrip(_NETRC_INDENT)
    indent = before[len(rest) :]
    return '"' in indent or "'" in indent or rest.endswith(("\n", "\\n")) or (not rest and at <= 42)


def _netrc_password(text: str, at: int, is_pair: Verdicts[bool]) -> Iterator[SecretSpan]:
    login = _NETRC_LOGIN.match(text, at)
    match = _NETRC_PASSWORD.match(text, login.end() if login else at)
    if login is None or match is None or not (login[1] or match[3]):
        return
    if is_pair[f"{login[1] or ''} {match[1] or match[2]}"]:
        yield SecretSpan("password", *match.span(1 if match[1] else 2))


_JDBC = re.compile(r"[^\s\"'<>`\\]{1,600}+")
_JDBC_USER = re.compile(r"[?&;](?:user|username|uid)=([^&;]{1,100}+)", re.IGNORECASE)
_JDBC_PASSWORD = re.compile(
    r"(?:[?&](?:password|passwd|pwd)=([^&;]{3,200}+)|;(?:password|passwd|pwd)=([^;]{3,200}+))", re.IGNORECASE
)
_JDBC_ORACLE = re.compile(r"oracle:(?:thin|oci8?):([^/@]{1,100}+)/([^@]{3,200}+)@")


def find_jdbc_passwords(text: str) -> Iterator[SecretSpan]:
    end = 0
    is_value = Verdicts(lambda value: is_password(value, ""))
    for _at, after in places_of(text, "jdbc:"):
        address = _JDBC.match(text, after) if after >= end else None
        if address is None:  # an address inside an address is not one
            continue
        start, end = address.span()
        user = _JDBC_USER.search(text, start, end)
        oracle = _JDBC_ORACLE.match(text, start, end)
        for match in _JDBC_PASSWORD.finditer(text, start, end):
            value = match[1] or match[2]
            if is_value[value] and not (user and value == user[1]):
                yield SecretSpan("password", *match.span(match.lastindex or 0))
        if oracle is not None and is_password(oracle[2], oracle[1]):
            yield SecretSpan("password", oracle.start(2), oracle.end(2))


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
PASSWORD_OPTIONS = {
    **_OPTIONS,
    **{f"{quote}{option}{quote}": (commands, _LISTED) for option, commands in _SEPARATE.items() for quote in "\"'"},
    **{f"{quote}-p": (_OPTIONS[" -p"][0], _LISTED_JOINED) for quote in "\"'"},
}
"""Options whose value is a password: how the names of their commands begin, and the value.

Also as items of a list: `["redis-cli", "-a", "…"]`.
"""


_DASH_AND_LETTER = re.compile(f"-[{''.join(sorted({option[2] for option in PASSWORD_OPTIONS if option[1] == '-'}))}]")
"""One quick search for it saves some twenty."""


def find_option_passwords(text: str, looks: Looks) -> Iterator[SecretSpan]:
    """Find passwords in command-line options: `mysql -p…`, `sshpass -p …`, `redis-cli -a …`."""
    is_given = Verdicts(lambda value: not value.isdigit() and is_password(value, ""))
    begun = {text[max(0, match.start() - 1) : match.end()] for match in _DASH_AND_LETTER.finditer(text)}
    options = [option for option in PASSWORD_OPTIONS if (option[1] != "-" or option[:3] in begun) and option in text]
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
            if match is not None and is_given[match[match.lastindex or 0]]:
                yield SecretSpan("password", *match.span(match.lastindex or 0))


_IN_COMMAND_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


_FEW_OPTIONS = 32
_LOGIN_CHARS = 16
"""More than a command, and the word `login` behind it, have."""


def _places_near(text: str, options: list[str]) -> list[tuple[int, int]]:
    """Return the parts of a text that can have the commands of some options: the whole text if these are many."""
    places = sorted(islice((at for option in options for at, _after in places_of(text, option)), _FEW_OPTIONS + 1))
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
    return sorted(at for at in starts if at == 0 or text[at - 1] not in _IN_COMMAND_NAMES)


_DIGEST = re.compile(r"\\?(?:[\"']{0,2}|&quot;)([0-9a-fA-F]{32,128}+)")


def find_digest_responses(text: str) -> Iterator[SecretSpan]:
    """Find the `response=` of a Digest authorization: with it, the password can be guessed offline."""
    for at, match in matches_after(text, "response=", _DIGEST):
        if "nonce=" in text[max(0, at - 600) : at + 500]:
            yield SecretSpan("authorization", match.start(1), match.end(1))


_SIGNATURE = re.compile(r"((?:[A-Za-z0-9+/]|%2[BbFf]){43}(?:=|%3[Dd]))(?![A-Za-z0-9%])")


def find_signatures(text: str) -> Iterator[SecretSpan]:
    """Find the signatures of Azure shared access: `&sig=…`, 32 bytes in base64."""
    for at, match in matches_after(text, "sig=", _SIGNATURE):
        if at and text[at - 1] in "?&;":
            yield SecretSpan("signature", *match.span(1))


_CRYPT = re.compile(
    r"\$(?:2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}"
    r"|6\$(?:rounds=[0-9]{1,9}\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{86}"
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
    for _at, match in matches_after(text, '"d', _JWK_KEY) if "kty" in text else ():
        if is_random(match[1], 40):
            yield SecretSpan("private-key", *match.span(1))
    for at, match in matches_after(text, ":AA", _BOT_TOKEN):
        number = text[max(0, at - 11) : at]
        digits = len(number) - len(number.rstrip("0123456789"))
        if 8 <= digits <= 10 and is_mixed(match[1]):
            yield SecretSpan("telegram-token", at - digits, match.end(1))


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
    is_pair = Verdicts(lambda pair: is_password(pair.partition(":")[2], pair.partition(":")[0]))
    for literal in ("@tcp(", "@unix(") if "@" in text else ():
        for at, _after in places_of(text, literal):
            if text.find(":", max(0, at - _LONGEST_DSN), at) < 0:
                continue
            if not looks.take():
                yield from (SecretSpan("secret", *word.span()) for word in _DSN_WORDS.finditer(text))
                break
            start = at - len(_last_word(text, at))
            match = _DSN.fullmatch(text, start, at)
            if match is not None and is_pair[f"{match[1]}:{match[2]}"]:
                yield SecretSpan("password", *match.span(2))
    for match in _PGPASS.finditer(text):
        at = match.start()
        line = text.rfind("\n", max(0, at - 90), at) + 1
        if (line or at <= 80) and _PGPASS_HOST.fullmatch(text, line, at) and is_password(match[2], match[1]):
            yield SecretSpan("password", *match.span(2))


_NO_BREAK = re.compile(r"[^ \n\t\"'`=]*+")


def _last_word(text: str, end: int) -> str:
    before = text[max(0, end - _LONGEST_DSN) : end]
    backwards = _NO_BREAK.match(before[::-1])
    return before[len(before) - (backwards.end() if backwards else 0) :]
