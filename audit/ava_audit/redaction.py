"""Redaction of secrets in text, before a model sees it and before it is stored.

First come the configured values, as they are, URL-quoted, in base64 and JSON-escaped; then everything that looks like
a key. Redact whole texts, never chunks of a stream: a secret that is cut in two is not found. The output of a command
may be only a part of a text; for that case, a run knows the private keys in its files (`RunRedactor`). The time to
search a text grows linearly with its length, whatever the text is.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, cast
from urllib.parse import quote, quote_plus


class SecretSpan(NamedTuple):
    """The place of a secret in a text, and its name; never its value."""

    name: str
    start: int
    end: int


class KeyPattern(NamedTuple):
    """The literals that start a kind of key, and the pattern that must follow."""

    name: str
    literals: tuple[str, ...]
    rest: str


def _shape(name: str, literals: str, rest: str) -> KeyPattern:
    return KeyPattern(name, tuple(literals.split()), rest)


_END = r"(?![A-Za-z0-9])"
_LONG_LINES = r"[A-Za-z0-9+/]{16,}+(?:(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{40,}+)*+={0,2}"
_KEY_LINES = (
    r"(?:[A-Za-z0-9+/]{16,100}+(?![A-Za-z0-9+/=])(?:(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{40,100}+)*+"
    r"(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{1,100}+={0,2}(?![^\s\"'\\,<])|" + _LONG_LINES + ")"
)
"""What follows the beginning of a private key: long lines, with or without a shorter last one."""
KEY_PATTERNS = (
    _shape("anthropic-key", "sk-ant-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openrouter-key", "sk-or-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-", r"(?=[A-Za-z]{0,31}[0-9])[A-Za-z0-9]{32,}+"),
    _shape("ava-token", "avatok_", r"[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("groq-key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    _shape("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}+"),
    _shape("github-token", "github_pat_", r"[A-Za-z0-9_]{50,}+"),
    _shape("gitlab-token", "glpat-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("aws-key-id", "AKIA ASIA", r"[A-Z0-9]{16}" + _END),
    _shape("google-key", "AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _shape("google-key", "GOCSPX-", r"[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])"),
    _shape("google-token", "ya29.", r"[A-Za-z0-9_-]{30,}+"),
    _shape(
        "slack-token",
        "xoxb- xoxp- xoxa- xoxr- xoxs- xoxc- xoxe. xapp-",
        r"(?=[A-Za-z-]{0,20}[0-9])[A-Za-z0-9.-]{20,}+",
    ),
    _shape("slack-webhook", "hooks.slack.com/services/T", r"[A-Z0-9]{6,16}+/B[A-Z0-9]{6,16}+/[A-Za-z0-9]{16,}+"),
    _shape("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}+"),
    _shape("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9]{16,}+"),
    _shape("npm-token", "npm_", r"[A-Za-z0-9]{36}" + _END),
    _shape("pypi-token", "pypi-AgE", r"[A-Za-z0-9_-]{50,}+"),
    _shape("jwt", "eyJ", r"[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"),
    _shape("sendgrid-key", "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}" + _END),
    _shape("vault-token", "hv", r"[sbr]\.(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{24,}+"),
    _shape("xai-key", "xai-", r"[A-Za-z0-9]{60,}+"),
    _shape("replicate-token", "r8_", r"[A-Za-z0-9]{37}" + _END),
    _shape("age-key", "AGE-SECRET-KEY-", r"(?:PQ-)?1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58,}+"),
    # The beginning of the data of a private key whose BEGIN line is missing: RSA, DSA and EC; EC; Ed25519; OpenSSH.
    _shape(
        "private-key",
        "MI",
        r"(?:I[A-Za-z0-9+/]{2}[AQgw]IBA(?:AJB|AK[BC]|DANBgkqhkiG9w0BAQEF)|GkAgEBBD|HcAgEBBEI"
        r"|[GH][A-Za-z0-9+/]AgEAMB[AM]GByqGSM49AgEG)" + _KEY_LINES,
    ),
    _shape("private-key", "MH", r"[cQ]CAQEEI" + _KEY_LINES),
    _shape("private-key", "MC4CAQAwBQYDK2V b3BlbnNzaC1rZXktdjE", _KEY_LINES),
    # The BEGIN lines of RSA, PKCS #8, EC and OpenSSH keys in base64, as in a kubeconfig.
    _shape(
        "private-key",
        "LS0tLS1CRUdJTi",
        r"(?:BSU0EgUFJJVkFURSBLRVkt|BQUklWQVRFIEtFWS0t|BFQyBQUklWQVRFIEtFWS|BPUEVOU1NIIFBSSVZBVEUgS0VZ)" + _LONG_LINES,
    ),
)
_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def find_prefixed(text: str) -> Iterator[SecretSpan]:
    """Find keys that start with a known literal."""
    for shape in KEY_PATTERNS:
        for literal in shape.literals:
            at = text.find(literal)
            while at >= 0:
                after = at + len(literal)
                if at == 0 or text[at - 1] not in _WORD or _escaped(text, at):
                    match = re.compile(shape.rest).match(text, after)  # compiled once, at the first use
                    if match is not None:
                        after = match.end()
                        yield SecretSpan(shape.name, at, after)
                at = text.find(literal, after)


def _escaped(text: str, at: int) -> bool:
    """Tell whether the letter before a key belongs to an escape, e.g. the `D` of `%3D`."""
    return text[at - 2 : at - 1] == "\\" or text[at - 3 : at - 2] == "%"


_PEM_BEGIN = "-----BEGIN "
_PEM_END = "-----END "
_PEM_KIND = re.compile(r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_LAST = re.compile(r"[A-Z0-9 ]{0,40}-----")
_PEM_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr])*+")
_PEM_LONGEST = 20_000
_PEM_HEADERS = re.compile(
    r"(?:[\s\"'`+,#*>|.-]|\\[nrt])*+(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [A-Za-z0-9 .,:/@-]{0,100}+"
    r"(?:[\s\"'`+,#*>|.-]|\\[nrt])++){1,5}+"
)
_PEM_BREAK = re.compile(r"(?:\s|\\[nrt])++")
_DECORATION = r"[\"'`+,#*>|/.\\-]*+"
_BASE64_CHAR = r"(?:[A-Za-z0-9+/]|\\/|&#x?[0-9A-Fa-f]{2,4};|%[0-9A-Fa-f]{2}|\\u00[0-9a-f]{2})"
_PEM_WORD = re.compile(
    r"(?:(?:[A-Za-z0-9_.-]{1,60}[:-])?[0-9]{1,6}[:|-])?" + _DECORATION + f"({_BASE64_CHAR}*+={{0,2}})" + _DECORATION
)
"""A word of a private key: a piece of base64 with quotes, signs or a line number around it, or only these."""
_LONG_BASE64 = re.compile(_BASE64_CHAR + "{40,}+={0,2}")
_KEY_WIDTH, _SHORT_KEY_WIDTH, _CUT_KEY_WIDTH = 40, 16, 20
_FEWEST_KEY_CHARS = 60
"""A whole private key has more characters; the names in `BEGIN + base64Key + END` have fewer."""


class _KeyWord(NamedTuple):
    """A piece of the base64 text of a private key, and its place."""

    text: str
    start: int
    end: int


def find_private_keys(text: str) -> Iterator[SecretSpan]:
    """Find PEM private keys, including one whose end was cut off."""
    for spans, _words in _pem_keys(text):
        yield from spans


def _pem_keys(text: str) -> Iterator[tuple[list[SecretSpan], list[_KeyWord]]]:
    """Yield what to hide of each PEM private key, and its words; no words where other text stands between its marks."""
    at = text.find(_PEM_BEGIN)
    end = -2
    while at >= 0:
        after = at + len(_PEM_BEGIN)
        kind = _PEM_KIND.match(text, after)
        if kind is not None:
            after = kind.end()
            if end != -1 and end < after:
                end = text.find(_PEM_END, after)
            spans, words = _pem(text, at, after, end)
            if spans:
                yield spans, words
                after = spans[-1].end
        at = text.find(_PEM_BEGIN, after)


def _pem(text: str, start: int, after: int, end: int) -> tuple[list[SecretSpan], list[_KeyWord]]:
    if 0 <= end - after <= _PEM_LONGEST and text.find(_PEM_BEGIN, after, end) < 0:
        words, stop = _key_words(text, after, end)
        if stop == end and sum(len(word.text) for word in words) >= _FEWEST_KEY_CHARS:
            last = _PEM_LAST.match(text, end + len(_PEM_END))
            return [SecretSpan("private-key", start, last.end() if last else end)], words
        return list(_long_base64(text, after, end)), []
    body = _PEM_BODY.match(text, after)
    words, _stop = _key_words(text, after, body.end() if body else after)
    if not any(len(word.text) >= _CUT_KEY_WIDTH for word in words):
        return [], []
    return [SecretSpan("private-key", start, words[-1].end)], words


def _key_words(text: str, at: int, end: int) -> tuple[list[_KeyWord], int]:
    """Return the words of a private key from a place on, and where they stop: at `end` if there is no other text.

    Lines of code between the marks must not count as a key: a coder could hide them from the person who reviews them.
    """
    headers = _PEM_HEADERS.match(text, at, end)
    at = headers.end() if headers else at
    words: list[_KeyWord] = []
    last = False
    while at < end:
        gap = _PEM_BREAK.search(text, at, end)
        stop = gap.start() if gap else end
        match = _PEM_WORD.fullmatch(text, at, stop)
        if match is None:
            return words, at
        word = match[1]
        if word and not (word.isdigit() and len(word) <= 6):
            if last or not _may_end_a_key(word):
                return words, at
            last = not _is_key_line(word)
            words.append(_KeyWord(word, match.start(1), match.end(1)))
        at = gap.end() if gap else end
    return words, end


def _is_key_line(word: str) -> bool:
    """Tell whether a word can be any line of a private key."""
    varied = _UPPER.search(word) is not None and _LOWER.search(word) is not None
    return varied and (len(word) >= _KEY_WIDTH or (len(word) >= _SHORT_KEY_WIDTH and _DIGIT.search(word) is not None))


def _may_end_a_key(word: str) -> bool:
    """Tell whether a word can be the last line of a private key: `exit` and `return` cannot."""
    plain = word.isalpha() and (word[1:].islower() or word.isupper())
    return not plain if len(word) < _SHORT_KEY_WIDTH else _is_key_line(word)


def _long_base64(text: str, start: int, end: int) -> Iterator[SecretSpan]:
    for match in _LONG_BASE64.finditer(text, start, end):
        if _is_key_line(match[0]) and _DIGIT.search(match[0]):
            yield SecretSpan("private-key", match.start(), match.end())


_KEY_TOKEN = re.compile(r"[A-Za-z0-9+/]{16,}+={0,2}")
_BETWEEN = re.compile(
    r"={0,2}[\"'`+,;|.\\ \t-]{0,12}(?:[\r\n]|\\[nr]){1,4}(?:[A-Za-z0-9_./-]{1,60}[:-](?=[0-9]))?"
    r"(?:[\s\"'`+#*>|.-]|\\[nrt]){0,40}(?:[0-9]{1,6}[:|\t -])?(?:[\s\"'`+#*>|.-]|\\[nrt]){0,40}"
)
_LINE_WIDTH = 40
"""The fewest characters of a line of a private key, except for the last line."""
_BETWEEN_LINES = 40
"""The most characters between two lines of a private key: line ends, quotes, a line number."""


def find_key_ends(text: str) -> Iterator[SecretSpan]:
    """Find the end of a PEM private key whose beginning is missing: lines of one width before an END line."""
    done = 0
    at = text.find(_PEM_END)
    while at >= 0:
        after = at + len(_PEM_END)
        kind = _PEM_KIND.match(text, after)
        if kind is not None:
            after = kind.end()
            low = max(done, at - _PEM_LONGEST)
            start, width = _key_start(text, low, at)
            # The last line alone counts only if the BEGIN line is missing: between both, it may be a name in code.
            if start is not None and (width or text.rfind(_PEM_BEGIN, low, at) < 0):
                yield SecretSpan("private-key", start, after)
            done = after
        at = text.find(_PEM_END, after)


def _key_start(text: str, low: int, end: int) -> tuple[int | None, int]:
    """Return where the lines of a key that ends at `end` begin, None if there is no key; and how wide they are.

    The width is 0 if only the last line is there.
    """
    width, start, next_start = 0, None, end
    for token in reversed(list(_KEY_TOKEN.finditer(text, low, end))):
        size = len(token[0])
        between = text[token.end() : next_start]
        if len(between) > _BETWEEN_LINES or not _BETWEEN.fullmatch(between) or "---" in between:
            break
        if start is None and not _is_mixed(token[0]):
            break
        if start is not None:
            if not width and size >= max(_LINE_WIDTH, end - start - _BETWEEN_LINES):
                width = size
            elif size != width:
                # The first line of an output may begin in the middle of a line of the key.
                return (token.start() if width and size < width and _is_mixed(token[0]) else start), width
        start = next_start = token.start()
    return start, width


_USERINFO = re.compile(r"([^\s/?#@:\"'<>`]{0,100}+):([^\s/@\"'<>`]{3,300}+)@")


def find_url_passwords(text: str) -> Iterator[SecretSpan]:
    """Find the passwords in `scheme://user:password@host`."""
    for match in _matches_after(text, "://", _USERINFO):
        if match[2] != match[1] and not is_placeholder(match[2]):
            yield SecretSpan("url-password", match.start(2), match.end(2))


_OPENING = r"(?:\"\"|\\?[\"'])?\s{0,3}[:=,]\s{0,3}[fbru]{0,2}(?:\"\"|\\?[\"'`])?"  # CSV doubles quotes
_AUTHORIZATION = re.compile(
    _OPENING
    + r"(?:([Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest|[Aa]pi[Kk]ey)\s{1,3})?"
    + r"([A-Za-z0-9._~+/=-]{8,128}+)(?![(\[{])"
)
_COOKIE = re.compile(r"(?:\"\"|\\?[\"'])?:\s{0,3}(?:\"\"|\\?[\"'])?([A-Za-z0-9_.-]{1,64}+=[^\r\n\"'`<>{}\\]{8,128}+)")


_TOKEN_REST = re.compile(r"[A-Za-z0-9_+/=.~-]*+")
_COOKIE_REST = re.compile(r"[^\r\n\"'`<>{}\\]*+")


def find_headers(text: str) -> Iterator[SecretSpan]:
    """Find the values of Authorization and Cookie find_headers."""
    for literal in ("uthorization", "UTHORIZATION"):
        done = 0
        for match in _matches_after(text, literal, _AUTHORIZATION):
            scheme, value = match[1], match[2]
            secret = _is_mixed(value) or (scheme is not None and _is_mixed_case(value))
            if match.start() >= done and secret and not is_placeholder(value) and (scheme or not _is_code(value)):
                done = _end(_TOKEN_REST, text, match.end(2))
                yield SecretSpan("authorization", match.start(2), done)
    for literal in ("ookie", "OOKIE"):
        done = 0
        for match in _matches_after(text, literal, _COOKIE):
            if match.start() >= done and _is_mixed(match[1]):
                done = _end(_COOKIE_REST, text, match.end(1))
                yield SecretSpan("cookie", match.start(1), done)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the pattern's match at a position."""
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
        "pass": ("_PASS",),
        "jwt": ("JWT",),
        "salt": ("SALT",),
    }.items()
    for literal in literals
}
_KEY_OF = re.compile(r"(?:api|access|secret|private|auth|account|signing|encryption|master)[_ -]?\Z", re.IGNORECASE)
_NO_TOKEN_OF = re.compile(r"(?:next|page|continuation|csrf|xsrf|sync|nextpage|cursor)[_-]?t?\Z", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?:[sS]|_?[0-9]{1,2}|[_-](?:value|base|prod|dev|test|live))?(?:\"\"|\\?[\"'`])?\]?"
    r"(?:\s{0,5}(?::\s{0,3}(?:str|string|bytes|SecretStr)(?:\s?\|\s?None)?\s{0,3}=|=>|:=|=|:)\s{0,5}|( ))"
    r"(?:[fbruFBRU]{0,2}\\?(\"\"|[\"'`])([^\s\"'`\\]{8,}+)\\?\2|([A-Za-z0-9_+/=.~!@#%^&*-]{8,128}+)(?![(\[{]))"
)
_FLAG = re.compile(r"--[A-Za-z-]{0,24}\Z")
_QUERY = re.compile(r"[?&][A-Za-z_-]{0,15}\Z")


def find_assignments(text: str) -> Iterator[SecretSpan]:
    """Find values assigned to names such as `api_key`, `password` or `client_secret`."""
    for literal, name in _NAMES.items():
        if literal not in text:
            continue
        done = 0
        for match in _matches_after(text, literal, _ASSIGNED):
            start = match.start() - len(literal)
            before = text[max(0, start - 26) : start]
            if start < done:
                continue
            if name == "key" and _KEY_OF.search(before) is None:
                continue
            if name == "token" and _NO_TOKEN_OF.search(before) is not None:
                continue
            if name in ("jwt", "salt") and before[-1:].isalpha():  # a part of another word
                continue
            # After a space without `=` or `:`, only the value of a command-line flag counts.
            if match[1] is not None and _FLAG.search(before) is None:
                continue
            if literal == "PWD" and (match[3] or match[4]).startswith("/"):  # the working folder
                continue
            shortest = 8 if name in ("password", "pass", "salt") else 12
            if match[3] is not None:
                if _is_random(match[3], max(shortest, 16 if name == "token" else 0)):
                    done = match.end(3)
                    yield SecretSpan(name, match.start(3), done)
            elif _is_mixed(match[4]) and _is_random(match[4], shortest) and not _is_code(match[4]):
                done = _unquoted_end(text, match, before)
                yield SecretSpan(name, match.start(4), done)


def _unquoted_end(text: str, match: re.Match[str], before: str) -> int:
    """Return the end of an unquoted value; in a URL query, the next parameter ends it."""
    if _QUERY.search(before) is not None and "&" in match[4]:
        return match.start(4) + match[4].index("&")
    return _end(_TOKEN_REST, text, match.end(4))


_ENVIRONMENT_NAME = re.compile(r"(?<![^\s\"'])[A-Z0-9_]{0,40}+\Z")
_LETTERS = re.compile(r"=([\"']?)([A-Za-z]{8,64}+)\1(?=[\s\"';,]|\Z)")
_LETTERS_IN_YAML = re.compile(r"[\"']?:[ \t]{1,4}([\"']?)([A-Za-z]{8,64}+)\1(?=[\s\"',}]|\Z)")
_WITH_DOLLAR = re.compile(r"=([^\s\"'`;$<>]{1,64}+\$(?![A-Z_({])[^\s\"'`;<>(){}]{1,64}+)")
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
        for at, after in _places_of(text, literal):
            name = _ENVIRONMENT_NAME.search(text, max(0, at - 41), at) if text[after : after + 1] in "=:\"'" else None
            if name is not None and (place := _plain_password(text, after, name[0].split("_"), literal)):
                yield SecretSpan("password", *place)


def _plain_password(text: str, after: int, words: list[str], literal: str) -> tuple[int, int] | None:
    account = not _ACCOUNTS.isdisjoint(words)
    match = _WITH_DOLLAR.match(text, after)
    if match is not None and _is_random(match[1], SHORTEST_VALUE):
        return match.span(1)
    match = _LETTERS.match(text, after) if account or literal != "_PASS" else None
    match = match or (_LETTERS_IN_YAML.match(text, after) if account else None)
    if match is None or not _NO_ACCOUNTS.isdisjoint(words):
        return None
    value = match[2]
    repeats = any(len(word) > 3 and word.lower() in value.lower() for word in (*words, "password", "passwort"))
    if repeats or _CAMEL_CASE.fullmatch(value) or _is_stock_phrase(value):
        return None
    return match.span(2)


_CURL = re.compile(r"[ =]?[\"']?([^\s:\"'$<{]{1,100}+):([^\s\"'`]{3,200}+)")
_JOINED_FLAGS = re.compile(r" -[A-Za-z#]{1,12}\Z")
_LINE_BREAK = re.compile(r"(?<![\\^`])\r?\n")
_COMMAND_CHARS = 400


def find_curl_passwords(text: str) -> Iterator[SecretSpan]:
    """Find the password in `curl -u user:password`, also after joined flags and for a proxy."""
    for literal in (" -u", " -U", " --user", " --proxy-user", "u ", "U "):
        for at, after in _places_of(text, literal):
            flag = literal[0] == " " or _JOINED_FLAGS.search(text, max(0, at - 14), at) is not None
            match = _CURL.match(text, after) if flag else None
            if match is not None and _is_password(match[2], match[1]) and _in_curl(text, at):
                yield SecretSpan("password", match.start(2), match.end(2))


def _in_curl(text: str, at: int) -> bool:
    """Tell whether an option belongs to a curl command, which may span several lines."""
    start = text.rfind("curl", max(0, at - _COMMAND_CHARS), at)
    return start >= 0 and _LINE_BREAK.search(text, start, at) is None


_NETRC_HOST = re.compile(r"\s{1,8}([^\s]{1,200}+)(\s{1,8})(?=login|password)")
_NETRC_LOGIN = re.compile(r"\s{0,8}(?:login\s{1,8}([^\s]{1,200}+)\s{1,8}(?:account\s{1,8}[^\s]{1,200}+\s{1,8})?)?")
_NETRC_PASSWORD = re.compile(r"password\s{1,8}([^\s\"'`]{3,200}+)(\s{1,8}login\s{1,8}[^\s]{1,200}+)?")


def find_netrc_passwords(text: str) -> Iterator[SecretSpan]:
    """Find the passwords of a netrc file."""
    for match in _matches_after(text, "machine", _NETRC_HOST):
        if "." in match[1] or match[1] == "localhost" or "\n" in match[2]:  # `machine learning login …` is prose
            yield from _netrc_password(text, match.end())
    for at, after in _places_of(text, "default"):
        if text[at - 1 : at] in ("", "\n"):
            yield from _netrc_password(text, after)


def _netrc_password(text: str, at: int) -> Iterator[SecretSpan]:
    login = _NETRC_LOGIN.match(text, at)
    match = _NETRC_PASSWORD.match(text, login.end() if login else at)
    if login is None or match is None or not (login[1] or match[2]):
        return
    if _is_password(match[1], login[1] or ""):
        yield SecretSpan("password", match.start(1), match.end(1))


_JDBC = re.compile(r"[^\s\"'<>`\\]{1,600}+")
_JDBC_USER = re.compile(r"[?&;](?:user|username|uid)=([^&;]{1,100}+)", re.IGNORECASE)
_JDBC_PASSWORD = re.compile(r"[?&;](?:password|passwd|pwd)=([^&;]{3,200}+)", re.IGNORECASE)
_JDBC_ORACLE = re.compile(r"oracle:(?:thin|oci8?):([^/@]{1,100}+)/([^@]{3,200}+)@")


def find_jdbc_passwords(text: str) -> Iterator[SecretSpan]:
    """Find the passwords in JDBC URLs."""
    end = 0
    for address in _matches_after(text, "jdbc:", _JDBC):
        if address.start() < end:  # an address inside an address
            continue
        start, end = address.span()
        user = _JDBC_USER.search(text, start, end)
        oracle = _JDBC_ORACLE.match(text, start, end)
        for match in _JDBC_PASSWORD.finditer(text, start, end):
            if _is_password(match[1], user[1] if user else ""):
                yield SecretSpan("password", match.start(1), match.end(1))
        if oracle is not None and _is_password(oracle[2], oracle[1]):
            yield SecretSpan("password", oracle.start(2), oracle.end(2))


_SIGNATURE = re.compile(r"((?:[A-Za-z0-9+/]|%2[BbFf]){43}(?:=|%3[Dd]))(?![A-Za-z0-9%])")


def find_signatures(text: str) -> Iterator[SecretSpan]:
    """Find the signatures of Azure shared access: `&sig=…`, 32 bytes in base64."""
    for match in _matches_after(text, "sig=", _SIGNATURE):
        if text[match.start() - 5 : match.start() - 4] in ("?", "&", ";"):
            yield SecretSpan("signature", match.start(), match.end())


def _matches_after(text: str, literal: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for _at, after in _places_of(text, literal):
        match = pattern.match(text, after)
        if match is not None:
            yield match


def _places_of(text: str, literal: str) -> Iterator[tuple[int, int]]:
    """Yield where a literal begins and ends, each time that a text has it."""
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
_STOCK_WORDS = _PLACEHOLDER_WORDS | frozenset(_STOCK_PHRASES.split())
_REFERENCE = ("$", "{", "<", "%", "[", "(", "#", "*", "&lt;", "@")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")


def is_placeholder(value: str) -> bool:
    """Tell whether a value is only a placeholder for a secret (`$TOKEN`, `<key>`, `your-api-key`, `xxxx`)."""
    value = value[:64]
    if value.startswith(_REFERENCE) or "..." in value or "…" in value or "${" in value or "{{" in value:
        return True
    words = (word.rstrip("0123456789").lower() for word in _SPLIT.split(value))
    return all(not word or word in _PLACEHOLDER_WORDS or len(set(word)) == 1 for word in words)


def _is_stock_phrase(value: str) -> bool:
    """Tell whether letters are only stock words of passwords and examples: `mysecretpassword`, `postgres`."""
    word = value.lower()
    reached = {0}
    for end in range(1, len(word) + 1):
        if any(word[start:end] in _STOCK_WORDS for start in reached):
            reached.add(end)
    return len(word) in reached or len(set(word)) == 1


def _is_password(value: str, user: str) -> bool:
    """Tell whether a value is more than a placeholder, the user's name, or stock words such as `postgres`."""
    words = (word.rstrip("0123456789") for word in _SPLIT.split(value))
    return value != user and not is_placeholder(value) and any(word and not _is_stock_phrase(word) for word in words)


_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_UPPER = re.compile(r"[A-Z]")
_LOWER = re.compile(r"[a-z]")
_IDENTIFIER = re.compile(r"[A-Za-z]++(?:[_./-][A-Za-z]++)*+[_-]?[0-9]{0,3}")


def _is_mixed(value: str) -> bool:
    """Tell whether a value has both letters and digits."""
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def _is_mixed_case(value: str) -> bool:
    """Tell whether a value is one long word with capitals throughout."""
    return 16 <= len(value) <= 512 and value.isalpha() and 4 <= sum(map(str.isupper, value)) <= len(value) - 4


def _is_random(value: str, shortest: int) -> bool:
    """Tell whether a value looks random: long, mixed, with many different characters, and no placeholder."""
    if (
        len(value) < shortest
        or not (_is_mixed(value) or _is_mixed_case(value))
        or len(set(value)) < min(10, shortest - 2)
    ):
        return False
    return not is_placeholder(value) and "://" not in value and not _IDENTIFIER.fullmatch(value)


_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z_][A-Za-z0-9_]*+)++")
_SNAKE = re.compile(r"_*+[A-Za-z]++[0-9]{0,3}(?:_[A-Za-z]{0,20}+[0-9]{0,3}+)++")


def _is_code(value: str) -> bool:
    """Tell whether an unquoted value looks like an expression or a path (`settings.key2`, `get_token_v2`)."""
    value = value.rstrip("=.,;!&")
    return bool(_DOTTED.fullmatch(value) or _SNAKE.fullmatch(value)) or value.startswith(("/", "./", "~/", "--"))


SHORTEST_VALUE = 8
"""A shorter configured value is not replaced, because it may be part of ordinary words."""


class Redactor:
    """Replaces configured values, and everything that looks like a key, by `[redacted:NAME]`.

    It may learn further values at any time, from any thread. It forgets none: a key that was replaced or removed may
    still be in a later text.

    Attributes:
        too_short: Names of values that are not replaced because they have fewer than 8 characters.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.too_short: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self._learn_lock = threading.Lock()
        self.learn(values)

    def learn(self, values: Mapping[str, str]) -> None:
        """Replace these values too from now on; a value keeps the first name it was learned under."""
        stripped = {name: value.strip() for name, value in values.items()}
        with self._learn_lock:
            short = (name for name, value in stripped.items() if 0 < len(value) < SHORTEST_VALUE)
            self.too_short = tuple(dict.fromkeys((*self.too_short, *short)))
            names = dict(self._names)
            for name, value in stripped.items():
                if len(value) >= SHORTEST_VALUE:
                    names.setdefault(value, name)
            if len(names) == len(self._names):
                return
            forms: dict[str, str] = {}
            for value, name in sorted(names.items(), key=lambda item: -len(item[0])):
                for form in written_forms(value):
                    forms.setdefault(form, name)
            self._names, self._forms = names, forms  # new objects, because another thread may iterate over the old ones

    def redact(self, text: str) -> tuple[str, int]:
        """Return the text with all secrets replaced, and the number of replacements."""
        return _replace_spans(text, self._all(text))

    def redact_lines(self, text: str) -> tuple[str, int]:
        """Return the text as `redact` does, but keep its number of lines: each line of a secret becomes a mark."""
        return _replace_spans(text, self._all(text), lines=True)

    def redact_json(self, value: Any) -> Any:
        """Return a JSON-like value with all secrets in its texts replaced."""
        if isinstance(value, str):
            return self.redact(value)[0]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self.redact_json(str(key)): self.redact_json(item) for key, item in members.items()}
        if isinstance(value, list | tuple):
            return [self.redact_json(item) for item in cast("list[Any]", value)]
        return value

    def redact_values(self, text: str) -> tuple[str, int]:
        """Return the text with only the configured values replaced, and the number of replacements."""
        return _replace_spans(text, _merge_spans(self._configured(text)))

    def find_shapes(self, text: str) -> list[SecretSpan]:
        """Return everything that looks like a key and is not a configured value, in the order of the text.

        A task with such a key is refused; the person can store the key and use its name instead.
        """
        configured = _merge_spans(self._configured(text))
        return [
            found
            for found in _merge_spans(_find_by_pattern(text))
            if not any(known.start < found.end and found.start < known.end for known in configured)
        ]

    def _all(self, text: str) -> list[SecretSpan]:
        return _merge_spans(chain(self._configured(text), _find_by_pattern(text)))

    def _configured(self, text: str) -> Iterator[SecretSpan]:
        for form, name in self._forms.items():
            at = text.find(form)
            while at >= 0:
                yield SecretSpan(name, at, at + len(form))
                at = text.find(form, at + 1)


_PIECE = 8
_PIECE_CHARS = 6
"""The fewest different characters in a piece of a private key: `AAAAAAAA` is in many texts."""
_MOST_PIECES = 1_000_000
"""The most pieces of private keys that a run learns: about 90 MB, or 500 RSA keys with 2,048 bits."""
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/]{16,}+={0,2}")
_NO_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
_ENCODED_KEY = re.compile(
    r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}+(?:(?:\\[nr]|\s){1,40}+[A-Za-z0-9+/]{40,}+)*+(?:\s{1,40}+[A-Za-z0-9+/]{1,100}+)?"
)
_PUBLIC_BLOCK = re.compile(r"-----BEGIN (?![A-Z0-9 ]{0,30}PRIVATE)[^-\n]{1,60}-----[^-]{0,20000}+-----END ")
_PUBLIC_RUN = re.compile(
    r"AAAA(?:B3NzaC1yc2EAAAADAQAB[A-Za-z0-9+/]{100,}+={0,2}|C3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}+"
    r"|E2VjZHNhLXNoYTItbmlzdHA(?:[A-Za-z0-9+/]{112}+=|[A-Za-z0-9+/]{155}+==|[A-Za-z0-9+/]{203}+==))"
)
"""A whole public key of OpenSSH: RSA, Ed25519 or ECDSA. A private key contains the same characters."""
_COMMON_BEGINNINGS = {"MII": 44, "b3Bl": 96}
"""By a private key's first letters: how many of its characters also begin public keys and other keys."""


class RunRedactor(Redactor):
    """Knows everything that a shared redactor knows, and the private keys in the files of one run.

    A command can print any part of a file. So every part of such a key with at least 16 characters of one line is
    replaced, also in base64.

    Args:
        shared: The shared redactor. It also learns the values given to `learn`, but no private keys.

    Attributes:
        full: There were more private keys than it can learn.
    """

    def __init__(self, shared: Redactor) -> None:
        self.full = False
        self._shared = shared
        self._pieces: set[str] = set()
        self._learned: set[int] = set()
        super().__init__({})

    def learn(self, values: Mapping[str, str]) -> None:
        """Replace these values too from now on, also wherever the shared redactor is used."""
        self._shared.learn(values)

    def learn_private_keys(self, text: str) -> None:
        """Replace every part of the PEM private keys in a file from now on, also of keys that are in base64.

        Give it the run's own files only: a page could contain a key made of words, to blank these words elsewhere.
        """
        for given in (text, *_decoded_keys(text)):
            for _spans, words in _pem_keys(given):
                if words:
                    data = "".join(_NO_BASE64.sub("", word.text) for word in words)
                    self._learn_key(data, given[words[0].start : words[-1].end])

    def _learn_key(self, data: str, written: str) -> None:
        with self._learn_lock:
            if hash(written) in self._learned:
                return
            if len(self._pieces) >= _MOST_PIECES:
                self.full = True
                return
            self._learned.add(hash(written))
            self._pieces.update(_pieces_of(data, written))

    def _configured(self, text: str) -> Iterator[SecretSpan]:
        return chain(self._shared._configured(text), self._parts_of_keys(text))

    def _parts_of_keys(self, text: str) -> Iterator[SecretSpan]:
        if not (pieces := self._pieces):
            return
        public = [match.span() for match in _PUBLIC_BLOCK.finditer(text)]
        for run in _BASE64_RUN.finditer(text):
            word = run[0]
            if (
                any(word[at : at + _PIECE] in pieces for at in range(len(word) - _PIECE + 1))
                and not _PUBLIC_RUN.fullmatch(word)
                and not any(start <= run.start() < end for start, end in public)
            ):
                yield SecretSpan("private-key", run.start(), run.end())


def _decoded_keys(text: str) -> Iterator[str]:
    """Yield the PEM texts that a text contains in base64, as Kubernetes and kubeconfig files do."""
    for match in _ENCODED_KEY.finditer(text):
        data = _NO_BASE64.sub("", match[0].replace("\\n", " ").replace("\\r", " "))
        yield base64.b64decode(data[: len(data) // 4 * 4]).decode("utf-8", "replace")


def _pieces_of(data: str, written: str) -> Iterator[str]:
    """Yield the pieces by which a private key is recognised: every part with 16 characters contains one of them.

    Args:
        data: The key's base64 text without anything else.
        written: The same as it is in the file, with its line ends.
    """
    skipped = next((count for first, count in _COMMON_BEGINNINGS.items() if data.startswith(first)), 0)
    for form in (data[skipped:], *_base64_forms(written[skipped:].encode("utf-8", "replace"))):
        for at in range(0, len(form) - _PIECE + 1, _PIECE // 2):
            piece = form[at : at + _PIECE]
            plain_word = piece.isalpha() and (piece[1:].islower() or piece.isupper())
            if len(set(piece)) >= _PIECE_CHARS and not plain_word:
                yield piece


_FINDERS = (
    find_prefixed,
    find_private_keys,
    find_key_ends,
    find_url_passwords,
    find_headers,
    find_assignments,
    find_plain_passwords,
    find_curl_passwords,
    find_netrc_passwords,
    find_jdbc_passwords,
    find_signatures,
)


_MARKS = tuple(
    {literal for shape in KEY_PATTERNS for literal in shape.literals}
    | {*_NAMES, _PEM_BEGIN, _PEM_END, "://", "uthorization", "UTHORIZATION", "ookie", "OOKIE"}
    | {"PASSWORD", "_PASS", "PASSPHRASE", "curl", "machine", "default", "jdbc:", "sig="}
)
"""Each finder finds something only in a text with one of these."""
_SHORT_TEXT = 2_000
"""Characters up to which looking for the marks first is quicker than asking each finder."""


def _find_by_pattern(text: str) -> Iterator[SecretSpan]:
    if len(text) <= _SHORT_TEXT and not any(map(text.__contains__, _MARKS)):
        return iter(())
    return chain.from_iterable([find(text) for find in _FINDERS])


def _merge_spans(places: Iterator[SecretSpan]) -> list[SecretSpan]:
    """Merge overlapping places, in order of the text; the one found first gives the name."""
    merged: list[SecretSpan] = []
    ranked = sorted([(found.start, order, found) for order, found in enumerate(places)])
    rank = 0
    for _start, order, found in ranked:
        if merged and found.start < merged[-1].end:
            last = merged[-1]
            name = last.name if rank <= order else found.name
            rank = min(rank, order)
            merged[-1] = SecretSpan(name, last.start, max(last.end, found.end))
        else:
            merged.append(found)
            rank = order
    return merged


def _replace_spans(text: str, places: list[SecretSpan], *, lines: bool = False) -> tuple[str, int]:
    if not places:
        return text, 0
    parts: list[str] = []
    done = 0
    for name, start, end in places:
        mark = f"[redacted:{name}]"
        parts += (text[done:start], "\n".join([mark] * (text.count("\n", start, end) + 1)) if lines else mark)
        done = end
    parts.append(text[done:])
    return "".join(parts), len(places)


def written_forms(value: str) -> Iterator[str]:
    """Yield the forms in which a value may be written."""
    yield value
    quoted = (quote(value, safe=""), quote(value), quote_plus(value))
    yield from quoted
    yield from (_lower_escapes(form) for form in quoted)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield from _base64_forms(value.encode("utf-8", "surrogatepass"))


def _lower_escapes(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 characters that depend only on the value, for its three alignments in a longer text."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        encoded = base64.b64encode(bytes(before) + data).decode()[first:last]
        if len(encoded) >= SHORTEST_VALUE:
            yield encoded
            yield encoded.replace("+", "-").replace("/", "_")


_LONGEST_FRAGMENT, _SHORTEST_FRAGMENT, _SHORTEST_END = 8, 5, 3


def redact_fragments(text: str, name: str, value: str) -> tuple[str, int]:
    """Return the text with every fragment of a value replaced, and the number of replacements.

    A fragment has 8 characters; of a value under 16 characters it has half as many, but at least 5. At the end of the
    text, the first 3 characters of the value are enough. Fragments are found in all forms of `written_forms`, in HTML
    and in hexadecimal digits.
    """
    size = min(_LONGEST_FRAGMENT, max(_SHORTEST_FRAGMENT, len(value) // 2))
    digits = value.encode("utf-8", "surrogatepass").hex()
    written = {*written_forms(value), html.escape(value), digits, digits.upper()}
    fragments = {form[at : at + size] for form in written for at in range(len(form) - size + 1)}
    spans: list[SecretSpan] = []
    for start in range(len(text) - size + 1):
        if text[start : start + size] in fragments:
            first = spans.pop().start if spans and start <= spans[-1].end else start
            spans.append(SecretSpan(name, first, start + size))
    covered = spans[-1].end if spans else 0
    for length in range(size - 1, _SHORTEST_END - 1, -1):
        if covered <= len(text) - length and any(text.endswith(form[:length]) for form in written):
            spans.append(SecretSpan(name, len(text) - length, len(text)))
            break
    return _replace_spans(text, spans)
