"""Values that their context marks as secrets: a name, a header, a command."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from ava_audit.redaction.shapes import (
    STOCK_WORDS,
    SecretSpan,
    Verdicts,
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

_USERINFO = re.compile(r"([^\s/?#@:\"'<>`]{0,100}+):([^\s/@\"'<>`]{3,300}+)@")


def find_url_passwords(text: str) -> Iterator[SecretSpan]:
    for _at, match in matches_after(text, "://", _USERINFO):
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


def find_headers(text: str) -> Iterator[SecretSpan]:
    for literal in ("uthorization", "UTHORIZATION"):
        done = 0
        for at, match in matches_after(text, literal, _AUTHORIZATION):
            scheme, value = match[1], match[2]
            secret = is_mixed(value) or (scheme is not None and is_mixed_case(value))
            if at >= done and secret and not is_placeholder(value) and (scheme or not is_code(value)):
                done = _end(_TOKEN_REST, text, match.end(2))
                yield SecretSpan("authorization", match.start(2), done)
    for literal in ("ookie", "OOKIE"):
        done = 0
        for at, match in matches_after(text, literal, _COOKIE):
            if at >= done and is_mixed(match[1]):
                done = _end(_COOKIE_REST, text, match.end(1))
                yield SecretSpan("cookie", match.start(1), done)


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
_KEY_OF = ("api", "access", "secret", "private", "auth", "account", "signing", "encryption", "master")
_NO_TOKEN_OF = ("next", "page", "continuation", "csrf", "xsrf", "sync", "cursor")
_ASSIGNED = re.compile(
    r"(?:[sS]|_?[0-9]{1,2}|[_-](?:value|base|prod|dev|test|live))?(?:\"\"|\\?[\"'`])?\]?"
    r"(?:\s{0,5}(?::\s{0,3}(?:str|string|bytes|SecretStr)(?:\s?\|\s?None)?\s{0,3}=|=>|:=|=|:)\s{0,5}|( |,\s{0,3}))"
    r"(?:[fbruFBRU]{0,2}\\?(?P<quote>\"\"|[\"'`])([^\s\"'`\\]{8,}+)\\?(?P=quote)|"
    # without quotes, only with a digit and a letter
    r"(?=[A-Za-z_+/=.~!@#%^&*-]{0,127}+[0-9])(?=[0-9_+/=.~!@#%^&*-]{0,127}+[A-Za-z])"
    r"([A-Za-z0-9_+/=.~!@#%^&*-]{8,128}+)(?![(\[{]))"
)
_FLAG = re.compile(r"--[A-Za-z-]{0,24}")
_QUERY = re.compile(r"[?&][A-Za-z_-]{0,15}\Z")


_PHRASE = re.compile(
    r"(?:\"\"|\\?[\"'`])?\]?\s{0,5}(=>|:=|=|:)\s{0,5}[fbruFBRU]{0,2}\\?(?P<phrase_quote>\"\"|[\"'`])"
    r"((?:[^\s\"'`\\]{1,64}+ ){1,7}+[^\s\"'`\\]{1,64}+)\\?(?P=phrase_quote)"
)
_ELEMENT_NAME = re.compile(r"<[A-Za-z0-9_:.-]{0,40}(?:\s(?:key|name)=([\"'])[A-Za-z0-9_:.-]{0,30})?")
_ELEMENT = re.compile(
    r"s?(?:[\s\"'][^<>\n]{0,120}+)?>\s{0,40}(?:<!\[CDATA\[)?"
    r"([^\s<>\[\]]{3,300}+(?: [^\s<>\[\]]{1,64}+){0,7}+)(?:\]\]>)?\s{0,40}</"
)
_VALUE = re.compile(r"[\"']\s{1,4}value=[\"']([^\s\"'<>]{8,300}+)[\"']")

_PAIR = re.compile(
    r"[A-Za-z0-9_]{0,20}(?:\\?[\"'])?(?:\s{0,3},\s{0,40}|\s{0,3}\n\s{0,40})\\?[\"']?[vV]alue\\?[\"']?\s{0,3}[:=]\s{0,3}"
    r"(?:\\?(?P<pair_quote>[\"'])([^\s\"'`\\]{8,300}+)\\?(?P=pair_quote)|([A-Za-z0-9_+/=.~!@#%^&*-]{8,128}+)(?=\s|\Z))"
)
_BLOCK = re.compile(
    r"[sS]?[\"']?:[ \t]{0,3}(?:[|>][+-]?[ \t]{0,3}\n[ \t]{1,40}|\n[ \t]{0,40}- )"
    r"[\"']?([^\s\"'<>{}\[\]]{8,300}+)[\"']?[ \t]{0,3}(?=\n|\Z)"
)
_DEFAULT = re.compile(
    r"[A-Za-z0-9_]{0,20}\"\s{0,3}\{\s{0,3}(?:(?!default)[^{}\n]{0,99}+\n\s{0,9}){0,8}+default\s{0,9}=\s{0,3}\"([^\s\"\\]{8,300}+)\""
)
_MAY_FOLLOW = re.compile(
    f"(?:{_ASSIGNED.pattern}|{_ELEMENT.pattern}|{_VALUE.pattern}|{_PAIR.pattern}|{_BLOCK.pattern}|{_DEFAULT.pattern})"
)
_MAY_FOLLOW_PASSWORD = re.compile(f"(?:{_MAY_FOLLOW.pattern}|{_PHRASE.pattern})")


def find_assignments(text: str) -> Iterator[SecretSpan]:
    """Find the values of names such as `api_key`, `password` or `client_secret`: assigned, or in an XML element."""
    elements = "<" in text
    for literal, name in NAMES.items():
        password = name in ("password", "pass")
        values = _Values(name)
        done = 0
        for at, match in matches_after(text, literal, _MAY_FOLLOW_PASSWORD if password else _MAY_FOLLOW):
            if at < done:
                continue
            if match[4] is not None and not values.unquoted[match[4]] and not (elements and _in_element(text, at)):
                continue
            before = text[max(0, at - 40) : at]
            if not _may_name(name, before):
                continue
            after = at + len(literal)
            place = None
            if match[3] is not None or match[4] is not None:
                place = _assigned(text, match, before, literal, values)
            if place is None and "<" in before:
                place = _element(text, after, before, name)
            if place is None:
                place = _further_on(text, after, values)
            if place is None and password:
                place = _phrase(text, after, values.phrases)
            if place is not None:
                done = place[1]
                yield SecretSpan(name, *place)


class _Values:
    """Which values of a name are secrets."""

    def __init__(self, name: str) -> None:
        shortest = 8 if name in ("password", "pass", "salt") else 12
        self.unquoted = Verdicts(partial(_is_value, shortest=shortest))
        self.quoted = Verdicts(partial(is_random, shortest=16 if name == "token" else shortest))
        self.phrases = Verdicts(_is_phrase)


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


def _assigned(text: str, match: re.Match[str], before: str, literal: str, values: _Values) -> tuple[int, int] | None:
    # After a space without `=` or `:`, only the value of a command-line flag or of a line of a Dockerfile counts.
    if match[1] is not None and not _takes_next_word(before):
        return None
    quoted, unquoted = match[3], match[4]
    if literal == "PWD" and (quoted or unquoted).startswith("/"):  # the working folder
        return None
    if quoted is not None:
        return match.span(3) if values.quoted[quoted] else None
    if not values.unquoted[unquoted]:
        return None
    start, end = match.start(4), _unquoted_end(text, match, before)
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
    line = before.rfind("\n") + 1
    return _DOCKERFILE.fullmatch(before, line) is not None


def _element(text: str, after: int, before: str, name: str) -> tuple[int, int] | None:
    element = _ELEMENT_NAME.fullmatch(before, before.rindex("<"))
    if element is None:
        return None
    match = _ELEMENT.match(text, after) or (_VALUE.match(text, after) if element[1] else None)
    if match is None:
        return None
    # `<string name="password">` is as often a label, and so are several words.
    if element[1] or " " in match[1]:
        return match.span(1) if any(is_random(word, 6) for word in match[1].split(" ")) else None
    password = name in ("password", "pass") and is_password(match[1], "")
    return match.span(1) if password or is_random(match[1], 12) else None


def _phrase(text: str, after: int, is_phrase: Verdicts) -> tuple[int, int] | None:
    match = _PHRASE.match(text, after)
    if match is None or not is_phrase[f"{match[1]} {match[3]}"]:
        return None
    return match.span(3)


def _is_phrase(given: str) -> bool:
    """Tell whether several words are a password, by the sign before them and the words."""
    sign, *words = given.split(" ")
    letters = all(len(word) >= 3 and word.isascii() and word.isalpha() for word in words)
    stock = any(word.lower() in STOCK_WORDS or word.upper() in _NO_ACCOUNTS for word in words)
    # After a colon, words are as often a label: `"password": "Mot de passe"`.
    plain = letters and not stock and sign != ":"
    return plain or any(len(word) >= 6 and is_mixed(word) and not is_placeholder(word) for word in words)


def _unquoted_end(text: str, match: re.Match[str], before: str) -> int:
    """Return the end of an unquoted value; in a URL query, the next parameter ends it."""
    if _QUERY.search(before) is not None and "&" in match[4]:
        return match.start(4) + match[4].index("&")
    return _end(_TOKEN_REST, text, match.end(4))


_IN_ENVIRONMENT_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_LONGEST_NAME = 40
_LETTERS = re.compile(
    r"=(?P<quote>[\"']?)((?=.{8})[A-Za-z]{1,64}+(?:[&!][A-Za-z]{1,64}+(?!=)){0,4}+)(?P=quote)(?=[\s\"';,]|\Z)"
)
_LETTERS_IN_YAML = re.compile(
    r"[\"']?:[ \t]{1,4}(?P<yaml_quote>[\"']?)([A-Za-z]{8,64}+)(?P=yaml_quote)(?=[\s\"',}]|\Z)"
)
_WITH_DOLLAR = re.compile(r"=([^\s\"'`;$<>]{1,64}+\$(?![A-Z_({])[^\s\"'`;<>(){}]{1,64}+)")
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


def find_plain_passwords(text: str) -> Iterator[SecretSpan]:
    """Find passwords without digits or with `$` in variables: `DB_PASSWORD=correcthorse`, `SMTP_PASS: correcthorse`."""
    for literal in ("PASSWORD", "_PASS", "PASSPHRASE"):
        is_no_label = Verdicts(_is_no_label)
        for at, _found in matches_after(text, literal, _MAY_BE_PLAIN):
            after = at + len(literal)
            name = _environment_name(text, at)
            if name is not None and (place := _plain_password(text, after, name, literal, is_no_label)):
                yield SecretSpan("password", *place)


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
    given = value.lower()
    repeats = any(len(word) > 3 and word.lower() in given for word in (*name.split("_"), "password", "passwort"))
    return not repeats and not _CAMEL_CASE.fullmatch(value) and not is_stock_phrase(value)


def _plain_password(text: str, after: int, name: str, literal: str, is_no_label: Verdicts) -> tuple[int, int] | None:
    words = name.split("_")
    account = not _ACCOUNTS.isdisjoint(words)
    match = _WITH_DOLLAR.match(text, after)
    if match is not None and is_random(match[1], 8):
        return match.span(1)
    match = _LETTERS.match(text, after) if account or literal != "_PASS" else None
    match = match or (_LETTERS_IN_YAML.match(text, after) if account else None)
    if match is None or not _NO_ACCOUNTS.isdisjoint(words):
        return None
    return match.span(2) if is_no_label[f"{name}={match[2]}"] else None


_CURL = re.compile(r"[ =]?[\"']?([^\s:\"'$<{]{1,100}+):([^\s\"'`]{3,200}+)")
_JOINED_FLAGS = re.compile(r" -[A-Za-z#]{1,12}")
_COMMAND_END = re.compile(r"[|;&\n]")
_CONTINUES = ("\\", "^", "`")
"""What continues a command on the next line, as the last character of this one."""
_COMMAND_CHARS = 400


class _Commands:
    """Finds the command to which an option belongs; ask it about places in the order of the text.

    A command ends after 400 characters, with its line unless that is continued, and at one of `ends`.
    """

    def __init__(self, text: str, starts: list[int], ends: str) -> None:
        self._text = text
        self._starts = starts
        self._ends = ends
        self._next = 0  # of the starts: the first one behind the last place asked about
        self._open_until = 0  # from the last start to here, nothing ends the command

    def includes(self, at: int) -> bool:
        """Tell whether a place belongs to a command."""
        starts, first = self._starts, self._next
        while self._next < len(starts) and starts[self._next] < at:
            self._next += 1
        if not self._next or at - starts[self._next - 1] > _COMMAND_CHARS:
            return False
        if self._next != first:
            self._open_until = starts[self._next - 1]
        while (end := _COMMAND_END.search(self._text, self._open_until, at)) is not None:
            if end[0] in self._ends and not (end[0] == "\n" and self._is_continued(end.start())):
                self._open_until = end.start()
                return False
            self._open_until = end.end()
        self._open_until = at
        return True

    def _is_continued(self, line_end: int) -> bool:
        last = line_end - 2 if self._text[line_end - 1] == "\r" else line_end - 1
        return self._text[last] in _CONTINUES


def find_curl_passwords(text: str) -> Iterator[SecretSpan]:
    """Find the password in `curl -u user:password`, also after joined flags and for a proxy."""
    starts = [at for at, _after in places_of(text, "curl")]
    if not starts:
        return
    is_pair = Verdicts(lambda pair: is_password(pair.partition(":")[2], pair.partition(":")[0]))
    for literal in (" -u", " -U", " --user", " --proxy-user", "u ", "U "):
        commands = _Commands(text, starts, "\n")
        for at, after in places_of(text, literal):
            if literal[0] != " " and text[at - 1] in " -":
                continue
            if not commands.includes(at):
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
_NETRC_BEGINS = re.compile(r"(?:\A|[\"'\n]|\\n)[\"'> \t]{0,40}+\Z")


def find_netrc_passwords(text: str) -> Iterator[SecretSpan]:
    for at, match in matches_after(text, "machine", _NETRC_HOST):
        begins_line = _NETRC_BEGINS.search(text, max(0, at - 42), at) is not None
        # `machine learning login …` is prose, and so is most that is not a line of its own.
        plain = begins_line and match[1] != "learning"
        if plain or "." in match[1] or match[1] == "localhost" or not match[2].isspace() or "\n" in match[2]:
            yield from _netrc_password(text, match.end(2))
    for at, after in places_of(text, "default"):
        if text[at - 1 : at] in ("", "\n"):
            yield from _netrc_password(text, after)


def _netrc_password(text: str, at: int) -> Iterator[SecretSpan]:
    login = _NETRC_LOGIN.match(text, at)
    match = _NETRC_PASSWORD.match(text, login.end() if login else at)
    if login is None or match is None or not (login[1] or match[3]):
        return
    if is_password(match[1] or match[2], login[1] or ""):
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
_SEPARATE = {option.strip(): _OPTIONS[option][0] for option in (" -p ", " -P", " -w", " -a ")}
PASSWORD_OPTIONS = {
    **_OPTIONS,
    **{f"{quote}{option}{quote}": (commands, _LISTED) for option, commands in _SEPARATE.items() for quote in "\"'"},
    **{f"{quote}-p": (_OPTIONS[" -p"][0], _LISTED_JOINED) for quote in "\"'"},
}
"""Options whose value is a password: how the names of their commands begin, and the value.

Also as items of a list: `["redis-cli", "-a", "…"]`.
"""


_OPTION_LETTER = re.compile(r" -([pPwaU])")


def find_option_passwords(text: str) -> Iterator[SecretSpan]:
    """Find passwords in command-line options: `mysql -p…`, `sshpass -p …`, `redis-cli -a …`."""
    lists = [quote for quote in ('"-', "'-") if quote in text]  # two quick searches save ten
    is_given = Verdicts(lambda value: not value.isdigit() and is_password(value, ""))
    given = set(_OPTION_LETTER.findall(text))  # one search saves six
    for option, (names, value) in PASSWORD_OPTIONS.items():
        if (option[0] != " " and option[:2] not in lists) or (option[:2] == " -" and option[2] not in given):
            continue
        starts = _command_starts(text, names) if option in text else []
        if not starts:
            continue
        commands = _Commands(text, starts, "|;&\n")
        for at, after in places_of(text, option):
            match = value.match(text, after) if commands.includes(at) else None
            if match is not None and is_given[match[match.lastindex or 0]]:
                yield SecretSpan("password", *match.span(match.lastindex or 0))


_IN_COMMAND_NAMES = re.compile(r"[A-Za-z0-9_-]")


def _command_starts(text: str, names: str) -> list[int]:
    starts = [
        at
        for name in names.split()
        for at, after in places_of(text, name)
        if (name not in _LOGIN_FIRST or _LOGIN.match(text, after))
        and (at == 0 or not _IN_COMMAND_NAMES.match(text, at - 1))
    ]
    return sorted(starts)


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
    for _at, match in matches_after(text, '"d', _JWK_KEY):
        if is_random(match[1], 40) and "kty" in text:
            yield SecretSpan("private-key", *match.span(1))
    for at, match in matches_after(text, ":AA", _BOT_TOKEN):
        number = text[max(0, at - 11) : at]
        digits = len(number) - len(number.rstrip("0123456789"))
        if 8 <= digits <= 10 and is_mixed(match[1]):
            yield SecretSpan("telegram-token", at - digits, match.end(1))


_DSN = re.compile(r"([^\s:\"'`@/]{1,64}+):([^\s\"'`]{3,100}+)")
_PGPASS = re.compile(
    r":(?:5432|5433|6432|\*):[^:\s]{1,63}+:([^:\s]{1,63}+):((?:[^\s:\\\"']|\\[:\\]){4,200}+)(?=\r?\n|\Z)"
)
_PGPASS_HOST = re.compile(r"(?:[A-Za-z0-9.*-]{1,80}|/[A-Za-z0-9/._-]{1,80})")


def find_addresses(text: str) -> Iterator[SecretSpan]:
    """Find passwords in data source names of Go (`user:password@tcp(host)/db`) and in the lines of `.pgpass`."""
    for literal in ("@tcp(", "@unix(") if "@" in text else ():
        for at, _after in places_of(text, literal):
            start = at - len(_last_word(text, at))
            match = _DSN.fullmatch(text, start, at)
            if match is not None and is_password(match[2], match[1]):
                yield SecretSpan("password", *match.span(2))
    for match in _PGPASS.finditer(text):
        at = match.start()
        line = text.rfind("\n", max(0, at - 90), at) + 1
        if (line or at <= 80) and _PGPASS_HOST.fullmatch(text, line, at) and is_password(match[2], match[1]):
            yield SecretSpan("password", *match.span(2))


def _last_word(text: str, end: int) -> str:
    before = text[max(0, end - 170) : end]
    return before[max(before.rfind(sign) for sign in " \n\t\"'`=") + 1 :]
