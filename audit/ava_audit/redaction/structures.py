"""Secrets that stand on other lines than their names: columns of tables, items of lists, values over several lines.

Tables are CSV and TSV, Markdown, and what databases and shells print. A line is a header if it has several cells, each
a short title, and one of them names a secret. Below it, down to the first empty line, that column has secrets. A row
without such a header has one if its first cell names it and the next one looks random. Lines are compared by regular
expressions only, and each table is looked at once, so that the cost is linear and small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from ava_audit.redaction.places import JUDGED, LOOK, TABLE, Looks, SecretSpan, as_one
from ava_audit.redaction.values import Verdicts, is_code, is_mixed, is_password, is_random

ENDS_CELL = re.compile(
    r"[sS]?(?:[_ -][0-9]{1,2})?[\"'`*_]{0,3}+[ \t\r]{0,40}+"
    r"(?:[,;|│┃║]|\n(?=[^\n,;|│┃║├╞╟╠\t +]{0,99}+[,;|│┃║├╞╟╠\t +])|(?<=  )|(?<=\t))"
)
"""What follows the name of a secret where a cell ends; at the end of a line, the next one has several cells too."""
_ITEMS = re.compile(r"[sS]?[\"']?\s{0,3}+[:=](?:\s{0,3}+\[\s{0,40}+(?=[\"'])|[ \t]{0,3}+\r?\n(?=[ \t]{0,40}+- ))")
_ITEM = re.compile(
    r"(?:[ \t]{0,40}- [\"']?([^\s\"'<>{}\[\]]{1,300}+)[\"']?[ \t\r]{0,3}(?:#[^\n]{0,200}+)?(?:\n|\Z)"
    r"|(?P<item_quote>[\"'])([^\s\"'\\]{1,300}+)(?P=item_quote)\s{0,40},?\s{0,40})"
)
"""An item of a list in YAML, on its line, or in brackets, with quotes."""
_LINES = re.compile(
    r"[sS]?[ ]{0,3}+=[ ]{0,3}+(?:\"(?=[^\s\"])((?:[^\"\\]|\\.){8,4000}+)\"|'(?=[^\s'])([^']{8,4000}+)')(?=[\s;]|\Z)",
    re.DOTALL,
)
_LINE_END = re.compile(r"\s|\\[nr]")
_UNQUOTED = r"[A-Za-z0-9_+/=.~!@#%^&*-]{1,128}+"
_SHORT_PART = r"[A-Za-z0-9_+/=.~!@#%^&*-]{1,40}+"
_CONTINUED = re.compile(rf"[sS]?=({_UNQUOTED}(?:\\\r?\n[ \t]{{0,40}}(?!-){_UNQUOTED}){{1,20}}+)")
_CONTINUATION = re.compile(r"\\\r?\n[ \t]{0,40}")
ANY_LINES = as_one(
    r"=[ ]{0,3}+", r"\"(?=[^\s\"])(?:[^\"\\]++|\\.){1,999}+\"|'(?=[^\s'])[^']{8,4000}+'", r"(?:[\s;]|\Z)", re.DOTALL
)
ANY_CONTINUED = as_one("=", rf"{_UNQUOTED}(?:\\\r?\n[ \t]{{0,40}}(?!-){_UNQUOTED}){{1,20}}+")
ANY_CELL = as_one(
    r"(?:^|[,;|│┃║]|\t|  )[ \t]{0,40}+[\"'`*]{0,2}+",
    r"[^\s,;|│┃║\"'`*]{6,64}+",
    r"[\"'`*]{0,2}[ \t\r]{0,40}(?:[,;|│┃║\n]|\Z)",
    re.MULTILINE,
)
"""What may be a value over several lines, one that a backslash continues, or a cell, whatever its name is."""
GOES_ON = re.compile(rf"(?:{_ITEMS.pattern}|(?s:{_LINES.pattern})|[sS]?={_SHORT_PART}\\\r?\n|{ENDS_CELL.pattern})")
"""What follows a name whose values stand elsewhere."""
_WORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_NAME_CHARS = 40
_LINE_CHARS = 2_000
_CELL_CHARS = 300
_HEADING_LINES = 4
_SECRET_NAME = re.compile(
    r"(?:[a-z0-9]{1,20}[_ .-]){0,4}(?:"
    r"(?P<password>(?:db|user|root|admin|smtp|ftp|wifi)?(?:password|passwd|passphrase|pwd))"
    r"|(?P<pass>(?<=[_.-])pass)"
    r"|(?P<token>(?:access|auth|api|bearer|refresh|session|bot)?token)"
    r"|(?P<secret>(?:client|app|api|shared|consumer)?secret)"
    r"|(?P<credential>credential)"
    r"|(?P<key>(?:api|access|secret|private|auth|account|signing|encryption|master)[_ .-]?key)"
    r")s?(?:[_ .-][0-9]{1,2})?"
)
_NO_SECRET = re.compile(
    r"(?:next|page|continuation|csrf|xsrf|sync|cursor|max|min|num|input|output|total|prompt|has|is|public|change|forgot"
    r"|reset|confirm|no|show|hide|require)[_ .-]"
)
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_QUOTE = r"[\"'`*]{0,2}"
_TITLE = rf"{_QUOTE}[A-Za-z#][\w./#()-]{{0,39}}+(?: [\w./#()-]{{1,39}}+){{0,5}}+{_QUOTE}"
_PLAIN_TITLE = rf"{_QUOTE}[A-Za-z][\w.-]{{0,39}}+{_QUOTE}"
"""A title in a line such as `name, password`, which may be code or prose."""
_PIPE = "[|│┃║]"
_HEADERS = {
    "comma": rf"{_TITLE}(?:,{_TITLE}){{1,199}}+",
    "comma_apart": rf"{_PLAIN_TITLE}(?:, {{0,3}}{_PLAIN_TITLE}){{1,199}}+",
    "semicolon": rf"{_TITLE}(?:;{_TITLE}){{1,199}}+",
    "tab": rf"{_TITLE}(?:\t{_TITLE}){{1,199}}+",
    "pipe": rf"[ \t]{{0,99}}+(?:{_TITLE})?(?:[ \t]{{0,99}}+{_PIPE}[ \t]{{0,99}}+(?:{_TITLE})?){{1,199}}+",
    "blanks": rf"[ \t]{{0,99}}+{_TITLE}(?:[ \t]{{2,99}}+{_TITLE}){{1,199}}+",
}
_HEADER = re.compile(f"(?:{'|'.join(f'(?P<{name}>{line})' for name, line in _HEADERS.items())})[ \\t\\r]{{0,99}}+\\n")
_MAY_BE_HEADER = re.compile(r"[\w./#()\"'`*,;|│┃║ \t\r-]++\n")
"""A quick look first: most lines of code have other signs."""
_RULE = re.compile(r"[ \t|+:=─━│┃┼├┤┌┐└┘┬┴╪╞╡╔╗╚╝║═╬╠╣╦╩-]{3,2000}+\r?\n")
_QUOTED = r"\"(?:[^\"\n]|\"\")*+\""
_CELLS = {
    "comma": (rf"(?:{_QUOTED}(?=[,\r\n]|\Z)|[^,\n]*+)", ","),
    "semicolon": (rf"(?:{_QUOTED}(?=[;\r\n]|\Z)|[^;\n]*+)", ";"),
    "tab": (r"[^\t\n]*+", r"\t"),
    "pipe": (r"(?:[^|│┃║\\\n]|\\[^\n])*+", _PIPE),
    "blanks": (r"[^\s]++(?: [^\s]++)*+", r"[ \t]{2,99}+"),
}
"""By the layout of a table: the pattern of a cell, and of what separates two cells."""
_NAMED_ROW = re.compile(
    rf"[ \t]{{0,99}}+(?:{_PIPE}[ \t]{{0,99}}+)?{_QUOTE}(?P<name>[A-Za-z][\w.-]{{0,39}}+){_QUOTE}"
    rf"(?:[ \t]{{0,99}}+{_PIPE}[ \t]{{0,99}}+{_QUOTE}(?P<in_pipes>[^\s|│┃║`\"*']{{8,300}}+){_QUOTE}"
    rf"(?=[ \t]{{0,99}}+(?:{_PIPE}|\n|\Z))"
    r"|(?:[,;]|\t|[ ]{2,99}+)[\"']?(?P<alone>[^\s,;\"']{8,300}+)[\"']?[ \t\r]{0,9}(?=\n|\Z))"
)
"""A row such as `| DB_PASSWORD | xk29… |` or `password    xk29…`."""
_ALGORITHM = re.compile(
    r"(?:sha|md|pbkdf|aes|utf|base|oauth|ipv|int|char|varchar|ntlmv|http)[-_]?[0-9]{1,4}(?:[-_/].*+)?"
)
_EMPTY_LINE = re.compile(r"\n[ \t\r]{0,99}+(?=\n)")


class _Header(NamedTuple):
    """The layout of a table, and what secrets its columns have by their numbers.

    `offsets` is how far from the beginning of its line each title is. `apart`: blanks follow the commas, so that it may
    be code such as `user, password = given`.
    """

    layout: str
    secrets: Mapping[int, str]
    offsets: Sequence[int]
    apart: bool

    def may_have_words(self) -> bool:
        """Tell whether a password in this table may be letters only."""
        return not self.apart and self.layout not in ("pipe", "blanks")


def secret_name(text: str) -> str:
    """Return what kind of secret a text names (`password`, `key`), empty if it names none."""
    words = _CAMEL_HUMP.sub("_", text).lower()
    match = _SECRET_NAME.fullmatch(words)
    if match is None or _NO_SECRET.match(words):
        return ""
    return match.lastgroup or ""


class ValuesElsewhere:
    """Collects the values of names that stand on other lines than these, or in other cells of a table.

    Tell it each place of a name, those of one literal in order.
    """

    def __init__(self, text: str, looks: Looks) -> None:
        self._text = text
        self._looks = looks
        self._judge = _Judge()
        self._spans: list[SecretSpan] = []
        self._looked: dict[int, int] = {}
        """By the beginnings of lines: where the table ends, or the line."""
        self._last = self._done = 0
        self._start = self._end = -1

    def spans(self) -> Iterator[SecretSpan]:
        yield from self._spans

    def look(self, at: int, after: int) -> None:
        """Look for values of the name that begins, or goes on, at a place and ends before another."""
        if self._start <= at < self._end:
            return
        if ENDS_CELL.match(self._text, after) is not None:
            if self._may_be_title(at, after):
                self._look_at_line(at)
        elif GOES_ON.match(self._text, after) is not None:
            self._look_behind(at, after)

    def _look_behind(self, at: int, after: int) -> None:
        if at < self._last:  # another literal
            self._done = 0
        self._last = at
        if at < self._done:
            return
        name = self._kind_of_name(at, after)
        if not name:
            return
        self._looks.take(TABLE)
        for start, end in _lines_of_value(self._text, after, self._judge.values[name]):
            self._done = end
            if start < end:
                self._spans.append(SecretSpan(name, start, end))

    def _kind_of_name(self, at: int, after: int) -> str:
        """Return what kind of secret the name at a place means, empty if it means none."""
        return self._judge.names[_word_before(self._text, at) + self._text[at:after]]

    def _may_be_title(self, at: int, after: int) -> bool:
        word = self._text[at:after]
        return word.lower() == "key" or bool(self._kind_of_name(at, after))

    def _look_at_line(self, at: int) -> None:
        text = self._text
        self._start = text.rfind("\n", max(0, at - _LINE_CHARS), at) + 1
        known = self._looked.get(self._start)
        if known is not None:
            self._end = known
            return
        line_end = text.find("\n", at)
        self._end = len(text) if line_end < 0 else line_end
        self._looks.take(LOOK)
        beside = _value_beside(text, self._start, self._judge)
        if beside is not None:
            self._looks.take(JUDGED)
            self._spans.append(beside)
        else:
            self._look_at_table()
        self._looked[self._start] = self._end

    def _look_at_table(self) -> None:
        text = self._text
        table = _table_at(text, self._start, self._judge, self._looks)
        if table is None:
            return
        header, body = table
        empty_line = _EMPTY_LINE.search(text, body - 1)
        self._end = len(text) if empty_line is None else empty_line.start() + 1
        self._spans += _secrets_of(text, header, body, self._end, self._judge)


def open_heading(text: str) -> str:
    """Return the header of a table with secrets that may go on behind the end of a text, or nothing."""
    empty = max(text.rfind("\n\n"), text.rfind("\n\r\n"))
    start = 0
    if empty >= 0:
        start = text.index("\n", empty + 1) + 1
    line = start
    judge = _Judge()
    for _ in range(_HEADING_LINES):
        table = _table_at(text, line, judge)
        if table is not None:
            return text[start : table[1]]
        line = text.find("\n", line, line + _LINE_CHARS) + 1
        if not line:
            break
    return ""


def _word_before(text: str, at: int) -> str:
    before = text[max(0, at - _NAME_CHARS) : at]
    return before[len(before.rstrip(_WORD)) :]


def _lines_of_value(text: str, at: int, is_value: Verdicts[bool]) -> Iterator[tuple[int, int]]:
    """Yield where a value over several lines is, or each item of a list. An empty span tells how far was read."""
    match = _ITEMS.match(text, at)
    if match is not None:
        end = match.end()
        while (item := _ITEM.match(text, end)) is not None:
            end = item.end()
            group = 3
            if item[1] is not None:
                group = 1
            if is_value[item[group]]:
                yield item.span(group)
        yield end, end
        return
    match = _LINES.match(text, at)
    if match is not None:
        group = match.lastindex or 0
        words = _LINE_END.split(match[group])
        if len(words) > 1 and any(is_value[word] for word in words):
            yield match.span(group)
        return
    match = _CONTINUED.match(text, at)
    if match is not None:
        start, end = match.span(1)
        if not is_value[_CONTINUATION.sub("", match[1])]:
            start = end
        yield start, end


def _value_beside(text: str, start: int, judge: _Judge) -> SecretSpan | None:
    """Return the secret in a row whose first cell is the name of one; None if there is none."""
    row = _NAMED_ROW.match(text, start)
    if row is None:
        return None
    name = judge.names[row["name"]]
    if not name:
        return None
    group = "alone"
    if row["in_pipes"]:
        group = "in_pipes"
    if not judge.values[name][row[group]]:
        return None
    return SecretSpan(name, *row.span(group))


def _table_at(text: str, start: int, judge: _Judge, looks: Looks | None = None) -> tuple[_Header, int] | None:
    """Return the header in the line at a place, and where its rows begin; None if the line is not one."""
    if _MAY_BE_HEADER.match(text, start) is None:
        return None
    match = _HEADER.match(text, start)
    if match is None:
        return None
    line, body = match[0], match.end()
    if body == len(text):
        return None
    if line not in judge.headers:
        judge.headers[line] = _read_header(line, match.lastgroup or "", judge)
    header = judge.headers[line]
    if not header.secrets:
        return None
    if looks is not None:
        looks.take(TABLE)
    rule = _RULE.match(text, body)
    if rule is not None:
        return header, rule.end()
    if header.layout == "pipe":
        return None
    if header.layout == "blanks":
        if not _row_pattern("blanks", 1).match(text, body):
            return None
        return header, body
    row = _row_pattern(header.layout, len(header.offsets) - 1)
    if not row.match(text, body):
        return None
    line_before = text.rfind("\n", max(0, start - _LINE_CHARS), max(0, start - 1)) + 1
    if line_before < start and row.match(text, line_before):  # the line is a row, as the one before
        return None
    return header, body


def _read_header(line: str, kind: str, judge: _Judge) -> _Header:
    layout, _, apart = kind.partition("_")
    secrets: dict[int, str] = {}
    offsets: list[int] = []
    for number, title in enumerate(_cell_pattern(layout).finditer(line[:-1])):
        offsets.append(title.start())
        text, _before = _bare(title[0])
        name = judge.names[text]
        if name:
            secrets[number] = name
    return _Header(layout, secrets, offsets, bool(apart))


@cache
def _cell_pattern(layout: str) -> re.Pattern[str]:
    cell, between = _CELLS[layout]
    if layout != "blanks":
        cell = f"(?:(?<={between})|\\A|^){cell}"
    return re.compile(cell, re.MULTILINE)


@cache
def _row_pattern(layout: str, number: int) -> re.Pattern[str]:
    """Return a pattern for a row of a table up to a column, whose cell is the group."""
    cell, between = _CELLS[layout]
    return re.compile(f"^[ \\t]{{0,99}}+(?:{cell}{between}){{{number}}}({cell})", re.MULTILINE)


@cache
def _place_pattern(offset: int) -> re.Pattern[str]:
    """Return a pattern for a row with a cell at `offset` in its line, where its title is."""
    cell, _between = _CELLS["blanks"]
    before = f"[^\\n]{{{offset - 1}}} " if offset else ""
    return re.compile(f"^{before}({cell})", re.MULTILINE)


def _secrets_of(text: str, header: _Header, body: int, end: int, judge: _Judge) -> Iterator[SecretSpan]:
    for number, name in header.secrets.items():
        patterns = [_row_pattern(header.layout, number)]
        if header.layout == "blanks":
            patterns.append(_place_pattern(header.offsets[number]))
        is_secret = judge.secrets[name]
        if name == "password" and header.may_have_words():
            is_secret = judge.words
        for pattern in patterns:
            for row in pattern.finditer(text, body, end):
                cell = row[1]
                if is_secret[cell]:
                    value, before = _bare(cell)
                    start = row.start(1) + before
                    yield SecretSpan(name, start, start + len(value))


def _bare(cell: str) -> tuple[str, int]:
    """Return a cell without blanks and quotes, and how many characters of it stand before that."""
    if cell[:1].isalnum() and cell[-1:].isalnum():
        return cell, 0
    text = cell.strip(" \t\r")
    before = len(cell) - len(cell.lstrip(" \t\r"))
    for mark in ("**", '"', "'", "`"):
        size = len(mark)
        is_marked = text.startswith(mark) and text.endswith(mark)
        if is_marked and len(text) > 2 * size:
            text = text[size:-size]
            before += size
    return text, before


class _Judge:
    """What the texts of cells are: names, values, and the whole cells of columns with secrets."""

    def __init__(self) -> None:
        self.names = Verdicts(secret_name)
        self.headers: dict[str, _Header] = {}
        self.values = Verdicts(lambda name: Verdicts(partial(_is_value, name)))
        self.secrets = Verdicts(lambda name: Verdicts(partial(_is_secret, name)))
        self.words = Verdicts(_may_be_word)


_SHORTEST = {"password": 8, "pass": 8, "token": 16}
_SHORTEST_OTHER = 12


def _is_value(name: str, text: str) -> bool:
    if not _may_be_secret(text):
        return False
    return is_random(text, _SHORTEST.get(name, _SHORTEST_OTHER)) and is_mixed(text)


def _is_secret(name: str, cell: str) -> bool:
    text, _before = _bare(cell)
    if name != "password" or len(text) < 6:
        return _is_value(name, text)
    if not _may_be_secret(text) or not is_mixed(text):
        return False
    if "://" in text or _ALGORITHM.fullmatch(text.lower()):
        return False
    return is_password(text, "")


def _may_be_secret(text: str) -> bool:
    """Tell whether a text is short, one word, and no code."""
    if len(text) > _CELL_CHARS or any(map(str.isspace, text)):
        return False
    return not is_code(text)


def _may_be_word(cell: str) -> bool:
    """Tell whether a cell is a password, which may also have letters only."""
    text, _before = _bare(cell)
    if 8 <= len(text) <= 64 and text.isascii() and text.isalpha():
        return is_password(text, "")
    return _is_secret("password", cell)
