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
            start = _end(_TOKEN_REST, text, match.end(2))
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
            start = _end(_COOKIE_REST, text, match.end(1))
            yield SecretSpan("cookie", match.start(1), start)


def _is_token(value: str) -> bool:
    return (is_mixed(value) or is_mixed_case(value)) and not is_placeholder(value)


def _is_bare_token(value: str) -> bool:
    return is_mixed(value) and not is_placeholder(value) and not is_code(value)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


_LITERALS = {
    "key": ("key", "Key", "KEY"),
    "token": ("oken", "OKEN"),
    "secret": ("ecret", "ECRET"),
    "password": ("assword", "ASSWORD", "asswd", "ASSWD", "assphrase", "ASSPHRASE", "pwd", "Pwd", "PWD"),
    "credential": ("redential", "REDENTIAL"),
    "pass": ("_PASS",),
    "jwt": ("JWT",),
    "salt": ("SALT",),
}
NAMES = {literal: secret for secret, literals in _LITERALS.items() for literal in literals}
"""What kind of secret each literal in a name means."""
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
"""Each of the following begins so; most places of a name do not, and are passed by this alone."""


_KEY_BEFORE = "|".join(f"(?<=(?i:{word}){sign}...)" for word in _KEY_OF for sign in ("", "[_ .-]"))
_IS_KEY = f"(?s:(?<=[a-zA-Z_ .-]...)(?:{_KEY_BEFORE}))"
"""What precedes the end of `key` in the name of a secret. Many texts have the word `key` very often without it."""


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
    are_too_many = cache(lambda: looks.are_too_many(_estimate_names(low)))
    for literals in _BY_LOWER.values():
        name, size = NAMES[literals[0]], len(literals[0])
        values = _Values(name, size)
        places = PlacesBefore(text, tuple(literals), _pattern_after(name, elements=elements), low, are_too_many)
        start = 0
        while (place := places.find(start)) is not None:
            at, match = place
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
            span = _value_span(text, at, match, before, values, dense=places.dense)
            if span is not None:
                start = span[1]
                looks.take(FOUND)
                yield SecretSpan(name, *span)
        if places.gave_up:
            yield from _find_in_dense(text)
            break
    yield from elsewhere.found()


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
    span = None
    may_stand_apart = True
    if match.lastgroup in ("quoted", "unquoted"):
        span = _assigned_span(text, match, before, text[at:after], values, dense=dense)
        may_stand_apart = match[1] is not None and match[1][0] == ","  # `"DB_PASSWORD", value=…`
    if span is None and "<" in before:
        span = _element_span(text, after, before, values)
    if span is not None or not may_stand_apart:
        return span
    span = _span_apart(text, after, values)
    if span is None and values.are_passwords:
        phrase = _PHRASE.match(text, after)
        if phrase is not None:
            span = _phrase_span(phrase, values.phrases)
    return span


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
        is_unquoted = pattern is _BLOCK or (pattern is _PAIR and match["pair_quote"] is None)
        verdicts = values.unquoted if is_unquoted else values.quoted
        return match.span(group) if verdicts[match[group]] else None
    return None


_DOCKERFILE = re.compile(r"(?:ENV|ARG) [A-Za-z0-9_]{0,30}")


def _takes_next_word(before: str) -> bool:
    if "--" in before and _FLAG.fullmatch(before, before.rindex("--")):
        return True
    if "ENV " not in before and "ARG " not in before:
        return False
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
    may_be_label = has_attribute or " " in value
    verdicts = values.labels if may_be_label else values.elements
    return match.span(1) if verdicts[value] else None


def _is_random_label(value: str) -> bool:
    return any(is_random(word, 6) for word in value.split(" "))


def _is_password_or_random(value: str) -> bool:
    return is_password(value, "") or is_random(value, 12)


def _phrase_span(match: re.Match[str], phrases: Verdicts[bool]) -> tuple[int, int] | None:
    sign_and_words = f"{match['phrase_sign']} {match['phrase']}"
    return match.span("phrase") if phrases[sign_and_words] else None


def _is_phrase(sign_and_words: str) -> bool:
    """Tell whether several words are a password, by the sign before them and the words."""
    sign, *words = sign_and_words.split(" ")
    # After a colon, words are as often a label: `"password": "Mot de passe"`.
    if sign != ":" and all(map(_is_plain_phrase_word, words)):
        return True
    return any(map(_is_mixed_phrase_word, words))


def _is_mixed_phrase_word(word: str) -> bool:
    return len(word) >= 6 and is_mixed(word) and not is_placeholder(word)


def _is_plain_phrase_word(word: str) -> bool:
    if len(word) < 3 or not word.isascii() or not word.isalpha():
        return False
    return word.lower() not in STOCK_WORDS and word.upper() not in _NO_ACCOUNTS


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
        places = PlacesBefore(text, (literal,), _MAY_BE_PLAIN)
        start = 0
        while (place := places.find(start)) is not None:
            if not looks.take():
                yield from find_values(text, (literal,), _MAY_BE_PLAIN)
                break
            at, match = place
            start = at + len(literal)
            name = _environment_name(text, at)
            if name is not None and _is_plain_password(match, name, literal, verdicts):
                span = match.span(match.lastgroup or "")
                start = span[1]
                yield SecretSpan("password", *span)


def _environment_name(text: str, end: int) -> str | None:
    """Return the part of a variable's name before a place; None where it is a part of another word."""
    before = text[max(0, end - _LONGEST_NAME - 1) : end]
    rest = before.rstrip(_IN_ENVIRONMENT_NAMES)
    name = before[len(rest) :]
    if len(name) > _LONGEST_NAME:
        return None
    sign = rest[-1:]
    begins_word = sign in ("", '"', "'") or sign.isspace()
    return name if begins_word else None


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
    return not _CAMEL_CASE.fullmatch(value) and not is_stock_phrase(value)


def _is_plain_password(match: re.Match[str], name: str, literal: str, verdicts: _PlainVerdicts) -> bool:
    kind = match.lastgroup or ""
    if kind == "dollar":
        return verdicts.random[match[kind]]
    needs_account = kind == "in_yaml" or literal == "_PASS"
    if needs_account and not verdicts.account[name]:
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
    pairs = Verdicts(_is_login)
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


def _is_login(pair: str) -> bool:
    """Tell whether `user:password` has a password."""
    user, _, password = pair.partition(":")
    return is_password(password, user)


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
        host, space = match[1], match[2]
        # `machine learning login …` is prose, and so is most that is not a line of its own.
        is_host = "." in host or host == "localhost"
        is_entry = is_host or not space.isspace() or "\n" in space
        if is_entry or (host != "learning" and _begins_line(text, at)):
            yield from _find_netrc_password(text, match.end(2), pairs)
    if text.startswith("default"):
        yield from _find_netrc_password(text, len("default"), pairs)
    for _at, after in places_of(text, "\ndefault"):
        yield from _find_netrc_password(text, after, pairs)


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
    is_quoted = '"' in indent or "'" in indent
    return is_quoted or rest.endswith(("\n", "\\n"))


def _find_netrc_password(text: str, at: int, pairs: Verdicts[bool]) -> Iterator[SecretSpan]:
    login = _NETRC_LOGIN.match(text, at)
    if login is None:
        return
    match = _NETRC_PASSWORD.match(text, login.end())
    if match is None:
        return
    user, login_behind = login[1] or "", match[3]
    group = 1 if match[1] else 2  # with quotes, or without
    if (user or login_behind) and pairs[f"{user} {match[group]}"]:
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
        address = _JDBC.match(text, after) if after >= end else None
        if address is None:  # an address inside an address is not one
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
    beginnings = {text[max(0, match.start() - 1) : match.end()] for match in _DASH_AND_LETTER.finditer(text)}
    options: list[str] = []
    for option in PASSWORD_OPTIONS:
        if option[1] == "-" and option[:3] not in beginnings:
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
    if "kty" in text:
        for _at, match in matches_after(text, '"d', _JWK_KEY):
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
    if "@" in text:
        yield from _find_source_names(text, looks)
    for match in _PGPASS.finditer(text):
        start = match.start()
        line = text.rfind("\n", max(0, start - 90), start) + 1
        begins_line = line > 0 or start <= 80
        if begins_line and _PGPASS_HOST.fullmatch(text, line, start) and is_password(match[2], match[1]):
            yield SecretSpan("password", *match.span(2))


def _find_source_names(text: str, looks: Looks) -> Iterator[SecretSpan]:
    pairs = Verdicts(_is_login)
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
