"""The values of names such as `api_key`, `password` or `client_secret`, however they are assigned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property, partial
from typing import NamedTuple

from ava_audit.redaction.places import (
    FOUND,
    JUDGED,
    LOOK,
    TOKEN_REST,
    WORDS_OF_VALUES,
    Looks,
    PlacesBefore,
    SecretSpan,
    as_one,
    end_of_match,
    find_values,
)
from ava_audit.redaction.structures import (
    ANY_CELL,
    ANY_CONTINUED,
    ANY_LINES,
    ENDS_CELL,
    GOES_ON,
    ValuesElsewhere,
)
from ava_audit.redaction.values import (
    STOCK_WORDS,
    Verdicts,
    is_code,
    is_mixed,
    is_password,
    is_placeholder,
    is_random,
    is_stock_phrase,
)

_LITERALS = {
    "key": ("key", "Key", "KEY"),
    "token": ("oken", "OKEN"),
    "secret": ("ecret", "ECRET"),
    "password": ("assword", "ASSWORD", "asswd", "ASSWD", "assphrase", "ASSPHRASE", "pwd", "Pwd", "PWD"),
    "credential": ("redential", "REDENTIAL"),
    "pass": ("_PASS", "_pass"),
    "jwt": ("JWT",),
    "salt": ("SALT",),
}
NAMES: dict[str, str] = {}
"""What kind of secret each literal in a name means."""
for _secret, _literals in _LITERALS.items():
    NAMES.update(dict.fromkeys(_literals, _secret))
_BY_LOWER: dict[str, list[str]] = {}
"""The literals of names that differ in their case only."""
for _literal in NAMES:
    _BY_LOWER.setdefault(_literal.lower(), []).append(_literal)
_KEY_OF = ("api", "access", "secret", "private", "auth", "account", "signing", "encryption", "master")
_NO_TOKEN_OF = ("next", "page", "continuation", "csrf", "xsrf", "sync", "cursor")
_ASSIGNED = re.compile(
    r"(?:[sS]|_?[0-9]{1,2}|[_-](?:value|base|prod|dev|test|live))?(?:\"\"|\\?[\"'`])?\]?"
    r"(?:\s{0,5}+(?::\s{0,3}(?:str|string|bytes|SecretStr)(?:\s?\|\s?None)?\s{0,3}=|=>|:=|=|[:\uff1a])\s{0,5}+"
    r"|( |,\s{0,3}+))"
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
_ELEMENT_NAME = re.compile(r"<[A-Za-z0-9_:.-]{0,40}(?:\s(?:key|name|type|id)=([\"'])[A-Za-z0-9_:.-]{0,30})?")
_ELEMENT = re.compile(
    r"s?[\"']?(?:\s[^<>\n]{0,120}+)?>\s{0,40}(?:<!\[CDATA\[)?"
    r"([^\s<>\[\]]{3,300}+(?: [^\s<>\[\]]{1,64}+){0,7}+)(?:\]\]>)?\s{0,40}</"
)
_VALUE = re.compile(
    r"[\"'](?:\s{1,4}[a-z-]{1,20}+=[\"'][^\"'<>]{0,40}+[\"']){0,4}?\s{1,4}value=[\"']([^\s\"'<>]{8,300}+)[\"']"
)

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
_SIGN_NEAR = r"(?=[A-Za-z0-9_-]{0,20}+[\s\"'`\\\]:\uff1a=,>;*|│┃║])"
"""Each of the following begins so; most places of a name do not, and are passed by this alone."""


_KEY_BEFORE = "|".join(f"(?<=(?i:{word}){sign}...)" for word in _KEY_OF for sign in ("", "[_ .-]"))
_IS_KEY = f"(?s:(?<=[a-zA-Z_ .-]...)(?:{_KEY_BEFORE}))"
"""What precedes the end of `key` in the name of a secret. Many texts have the word `key` very often without it."""


def _may_follow(*kinds: re.Pattern[str], before: str = "") -> re.Pattern[str]:
    return re.compile(f"{before}{_SIGN_NEAR}(?:{'|'.join(kind.pattern for kind in (*kinds, GOES_ON))})")


_PASSWORDS = ("password", "pass")
"""The kinds of secrets that people choose."""
_FURTHER = (_PAIR, _BLOCK, _DEFAULT)
_IN_XML = (_ELEMENT, _VALUE)


@cache
def _pattern_after(name: str, *, elements: bool) -> re.Pattern[str]:
    """Return a pattern of what may follow the name of a secret, in a text with elements of XML or without."""
    kinds = [_ASSIGNED]
    if elements:
        kinds += _IN_XML
    kinds += _FURTHER
    if name in _PASSWORDS:
        kinds.append(_PHRASE)
    if name == "key":
        return _may_follow(*kinds, before=_IS_KEY)
    return _may_follow(*kinds)


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
    are_too_many = cache(lambda: looks.are_too_many(_estimate_names(low)))
    for literals in _BY_LOWER.values():
        name = NAMES[literals[0]]
        size = len(literals[0])
        values = _Values(name, size)
        places = PlacesBefore(text, tuple(literals), _pattern_after(name, elements=elements), low, are_too_many)
        start = 0
        while (place := places.find(start)) is not None:
            at, match = place
            start = at + size
            has_value = match.lastindex is not None
            if not looks.take(JUDGED if has_value else LOOK):
                yield from elsewhere.spans()
                yield from _find_in_dense(text)
                return
            elsewhere.look(at, start)
            if not has_value:
                continue
            is_rejected = match.lastgroup == "unquoted" and not values.unquoted[match["unquoted"]]
            if is_rejected:
                may_be_in_element = elements and "<" in text[max(0, at - 40) : at]
                if not may_be_in_element:
                    continue
            before = text[max(0, at - 40) : at]
            if not _may_name(name, before):
                continue
            span = _value_span(text, at, match, before, values, dense=places.dense)
            if span is not None:
                start = span[1]
                looks.take(FOUND)
                yield SecretSpan(name, *span)
        if places.gave_up:
            yield from _find_in_dense(text)
            break
    yield from elsewhere.spans()


_SAMPLE_CHARS = 512
_SAMPLES_APART = 4_096


def _estimate_names(low: bytes) -> int:
    """Return about how many names a text has, by samples of it."""
    count = 0
    for name in _BY_LOWER:
        for start in range(0, len(low), _SAMPLES_APART):
            count += low.count(name.encode(), start, start + _SAMPLE_CHARS)
    return count * min(len(low), _SAMPLES_APART) // _SAMPLE_CHARS


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


def _value_span(
    text: str, at: int, match: re.Match[str], before: str, values: _Values, *, dense: bool
) -> tuple[int, int] | None:
    """Return where the secret value of a name is; None if it has none."""
    if match.lastgroup == "phrase":  # the last kind: it is none of the others
        return _phrase_span(match, values.phrases)
    after = at + values.size
    may_stand_apart = True
    if match.lastgroup in ("quoted", "unquoted"):
        span = _assigned_span(text, match, before, text[at:after], values, dense=dense)
        if span is not None:
            return span
        may_stand_apart = match[1] is not None and match[1][0] == ","  # `"DB_PASSWORD", value=…`
    if "<" in before:
        span = _element_span(text, after, before, values)
        if span is not None:
            return span
    if not may_stand_apart:
        return None
    span = _span_apart(text, after, values)
    if span is not None:
        return span
    if values.are_passwords:
        phrase = _PHRASE.match(text, after)
        if phrase is not None:
            return _phrase_span(phrase, values.phrases)
    return None


_SHORTEST = {"password": 8, "pass": 8, "salt": 8}
_SHORTEST_OTHER = 12
_SHORTEST_QUOTED_TOKEN = 16


class _Values:
    """Which values of a name are secrets."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.are_passwords = name in _PASSWORDS
        self._shortest = _SHORTEST.get(name, _SHORTEST_OTHER)

    @cached_property
    def unquoted(self) -> Verdicts[bool]:
        return Verdicts(partial(_is_value, shortest=self._shortest))

    @cached_property
    def quoted(self) -> Verdicts[bool]:
        shortest = _SHORTEST_QUOTED_TOKEN if self.name == "token" else self._shortest
        return Verdicts(partial(is_random, shortest=shortest))

    @cached_property
    def phrases(self) -> Verdicts[bool]:
        return Verdicts(_is_phrase)

    @cached_property
    def labels(self) -> Verdicts[bool]:
        return Verdicts(_is_random_label)

    @cached_property
    def elements(self) -> Verdicts[bool]:
        if self.are_passwords:
            return Verdicts(_is_password_or_random)
        return Verdicts(partial(is_random, shortest=_SHORTEST_OTHER))


def _is_value(value: str, shortest: int) -> bool:
    if not is_random(value, shortest):
        return False
    return is_mixed(value) and not is_code(value)


def _may_name(name: str, before: str) -> bool:
    """Tell whether a name means a secret, by the text before it: `api_key` does, and `next_token` does not."""
    if name == "key":
        word = before[:-1] if before[-1:] in ("_", " ", "-") else before
        return word.lower().endswith(_KEY_OF)
    if name == "token":
        word = before.lower().removesuffix("t")
        if word[-1:] in ("_", "-"):
            word = word[:-1]
        return not word.endswith(_NO_TOKEN_OF)
    if name in ("jwt", "salt"):
        return not before[-1:].isalpha()  # not a part of another word
    return True


def _assigned_span(
    text: str, match: re.Match[str], before: str, literal: str, values: _Values, *, dense: bool
) -> tuple[int, int] | None:
    """Return where the value of `NAME=value` or `NAME: value` is, quoted or not; None if it is no secret."""
    # After a space without `=` or `:`, only the value of a command-line flag or of a line of a Dockerfile counts.
    if match[1] is not None and not _takes_next_word(before):
        return None
    group = match.lastgroup or ""
    value = match[group]
    if literal == "PWD" and value.startswith("/"):  # the working folder
        return None
    if group == "quoted":
        if values.quoted[value]:
            return match.span("quoted")
        return None
    if not values.unquoted[value]:
        return None
    start = match.start("unquoted")
    end = _unquoted_end(text, match, before, dense=dense)
    if end == start:  # `?password=&user=…` has none
        return None
    return start, end


def _span_apart(text: str, after: int, values: _Values) -> tuple[int, int] | None:
    """Return where the secret value is if something separates it from its name.

    `{"name": "DB_PASSWORD", "value": "…"}`, also in YAML; a block or the first item of a list of YAML; a default of
    Terraform.
    """
    for pattern in (_PAIR, _BLOCK, _DEFAULT):
        match = pattern.match(text, after)
        if match is None:
            continue
        group = match.lastindex or 0
        is_unquoted = pattern is _BLOCK
        if pattern is _PAIR:
            is_unquoted = match["pair_quote"] is None
        verdicts = values.quoted
        if is_unquoted:
            verdicts = values.unquoted
        if verdicts[match[group]]:
            return match.span(group)
        return None
    return None


_DOCKERFILE = re.compile(r"(?:ENV|ARG) [A-Za-z0-9_]{0,30}")


_SETTER = re.compile(r"(?:\b(?:define|set|put|add|append|header)|Set|Put|Add)\w{0,16}\(\s{0,5}[\"'][\w.-]{0,30}\Z")


def _takes_next_word(before: str) -> bool:
    """Tell whether a name takes the next word: it is a `--flag`, in `set("NAME", …`, or in `ENV NAME` (Dockerfile)."""
    flag = before.rfind("--")
    if flag >= 0 and _FLAG.fullmatch(before, flag):
        return True
    if _SETTER.search(before) is not None:
        return True
    line = before.rfind("\n") + 1
    return _DOCKERFILE.fullmatch(before, line) is not None


def _element_span(text: str, after: int, before: str, values: _Values) -> tuple[int, int] | None:
    """Return where the password in an XML element is: from `after`, if the tag that `before` ends with names one."""
    tag = _ELEMENT_NAME.fullmatch(before, before.rindex("<"))
    if tag is None:
        return None
    has_attribute = tag[1] is not None
    match = _ELEMENT.match(text, after)
    if match is None and has_attribute:
        match = _VALUE.match(text, after)
    if match is None:
        return None
    value = match[1]
    # What stands in `<string name="password">` is as often a label as a password, and so are several words.
    verdicts = values.elements
    if has_attribute or " " in value:
        verdicts = values.labels
    if verdicts[value]:
        return match.span(1)
    return None


def _is_random_label(value: str) -> bool:
    return any(is_random(word, 6) for word in value.split(" "))


def _is_password_or_random(value: str) -> bool:
    return is_password(value, "") or is_random(value, 12)


def _phrase_span(match: re.Match[str], phrases: Verdicts[bool]) -> tuple[int, int] | None:
    sign_and_words = f"{match['phrase_sign']} {match['phrase']}"
    if phrases[sign_and_words]:
        return match.span("phrase")
    return None


def _is_phrase(sign_and_words: str) -> bool:
    """Tell whether several words are a password, by the sign before them and the words."""
    sign, *words = sign_and_words.split(" ")
    # After a colon, words are as often a label: `"password": "Mot de passe"`.
    if sign != ":" and all(map(_is_plain_phrase_word, words)):
        return True
    return any(map(_is_mixed_phrase_word, words))


def _is_mixed_phrase_word(word: str) -> bool:
    if len(word) < 6:
        return False
    return is_mixed(word) and not is_placeholder(word)


def _is_plain_phrase_word(word: str) -> bool:
    if len(word) < 3:
        return False
    if not (word.isascii() and word.isalpha()):
        return False
    if word.lower() in STOCK_WORDS:
        return False
    return word.upper() not in _NO_ACCOUNTS


def _unquoted_end(text: str, match: re.Match[str], before: str, *, dense: bool) -> int:
    """Return the end of an unquoted value; in a URL query, the next parameter ends it.

    In a `dense` text, which has names everywhere, the value goes to the end of the query: to find one long secret is
    faster than to find thousands.
    """
    value = match["unquoted"]
    if not dense and "&" in value:
        sign = max(before.rfind("?"), before.rfind("&"))
        if sign >= 0 and _QUERY.fullmatch(before, sign) is not None:
            return match.start("unquoted") + value.index("&")
    return end_of_match(TOKEN_REST, text, match.end("unquoted"))


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
        places = PlacesBefore(text, (literal,), _MAY_BE_PLAIN)
        start = 0
        while (place := places.find(start)) is not None:
            if not looks.take():
                yield from find_values(text, (literal,), _MAY_BE_PLAIN)
                break
            at, match = place
            start = at + len(literal)
            name = _environment_name(text, at)
            if name is None:
                continue
            if _is_plain_password(match, name, literal, verdicts):
                value_start, value_end = match.span(match.lastgroup or "")
                start = value_end
                yield SecretSpan("password", value_start, value_end)


def _environment_name(text: str, end: int) -> str | None:
    """Return the part of a variable's name before a place; None where it is a part of another word."""
    before = text[max(0, end - _LONGEST_NAME - 1) : end]
    before_name = before.rstrip(_IN_ENVIRONMENT_NAMES)
    name = before[len(before_name) :]
    if len(name) > _LONGEST_NAME:
        return None
    last_char = before_name[-1:]
    if last_char in ("", '"', "'") or last_char.isspace():
        return name
    return None


def _is_no_label(assignment: str) -> bool:
    """Tell whether the value of `NAME=value` is a password, and not what a screen shows."""
    name, value = assignment.split("=")
    words = name.split("_")
    if not _NO_ACCOUNTS.isdisjoint(words):
        return False
    value_low = value.lower()
    for word in (*words, "password", "passwort"):
        if len(word) > 3 and word.lower() in value_low:
            return False
    if _CAMEL_CASE.fullmatch(value):
        return False
    return not is_stock_phrase(value)


def _is_plain_password(match: re.Match[str], name: str, literal: str, verdicts: _PlainVerdicts) -> bool:
    group = match.lastgroup or ""
    value = match[group]
    if group == "dollar":
        return verdicts.random[value]
    needs_account = group == "in_yaml" or literal == "_PASS"
    if needs_account and not verdicts.account[name]:
        return False
    return verdicts.is_no_label[f"{name}={value}"]


class _PlainVerdicts(NamedTuple):
    random: Verdicts[bool]
    account: Verdicts[bool]
    is_no_label: Verdicts[bool]
