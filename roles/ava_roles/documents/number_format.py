"""Numbers as a workbook shows them: dates, durations, percent, currencies and leading zeros, by their format codes.

Names of months and days are English, the decimal sign is a point. A date whose order depends on the reader's country
(Excel's own short date) is shown as `2026-11-28`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import NamedTuple

GENERAL = "General"
_SHORT_DATES = {
    "mm-dd-yy": "yyyy-mm-dd",
    "m/d/yy": "yyyy-mm-dd",
    "m/d/yy h:mm": "yyyy-mm-dd hh:mm",
    "m/d/yyyy h:mm": "yyyy-mm-dd hh:mm",
}
_CODE_CHARS = 255  # the most that Excel allows
_MOST_DIGITS = 60
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_(?P<space>.)|\*(?P<fill>.)'
    r"|\[\$(?P<currency>[^\]-]*)(?:-[^\]]*)?\]|\[(?P<elapsed>h+|m+|s+)\]|\[(?P<bracket>[^\]]*)\]"
    r"|(?P<noon>AM/PM|A/P)|(?P<date>y+|m+|d+|h+|s+)|(?P<fraction>\.0+(?=\D|$))(?=[^#?]|$)"
    r"|(?P<general>General)|(?P<power>E[+-])|(?P<digit>[0#?])|(?P<sign>[.,%/@])|(?P<literal>.)",
    re.IGNORECASE | re.DOTALL,
)
_SECTION = re.compile(r'(?:"[^"]*"|\\.|\[[^\]]*\]|[^;"\\\[])*', re.DOTALL)
_CONDITION = re.compile(r"\[(<=|>=|<>|<|>|=)(-?[\d.]+)\]")
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_DAY_S = 86_400


class _Token(NamedTuple):
    kind: str
    text: str


def show_number(value: float, code: str, epoch_1904: bool = False) -> str:
    """Return a number as its format code shows it; as it is stored, if the code shows nothing or is not understood."""
    try:
        shown = _show(value, _SHORT_DATES.get(code, code)[:_CODE_CHARS], epoch_1904)
    except (ArithmeticError, ValueError, IndexError):
        shown = ""
    return shown.strip() or plain_number(value)


def plain_number(value: float) -> str:
    """Return a number with at most 15 digits, which is what Excel stores."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.15g}".replace("e", "E")


def _show(value: float, code: str, epoch_1904: bool) -> str:
    section, signed = _section(value, code)
    tokens = [_Token(found.lastgroup or "", found[found.lastgroup or 0]) for found in _TOKEN.finditer(section)]
    kinds = {token.kind for token in tokens}
    if kinds & {"elapsed"} or ("date" in kinds and "digit" not in kinds - {"fraction"}):
        return _show_date(value, tokens, epoch_1904)
    if not kinds & {"digit", "general"} and not any(token == _Token("sign", "@") for token in tokens):
        return _literals(tokens)
    sign = "-" if value < 0 and signed else ""
    return sign + _show_digits(Decimal(repr(abs(value))), tokens)


def _section(value: float, code: str) -> tuple[str, bool]:
    """Return the part of a code that is for this number, and whether a minus is to be added."""
    sections = [found[0] for found in _SECTION.finditer(code) if found[0]] or [GENERAL]
    for each in sections[:2]:
        condition = _CONDITION.search(each)
        if condition and _holds(value, condition[1], float(condition[2])):
            return each, True
    if _CONDITION.search(sections[0]):
        return sections[-1], True
    if value < 0 and len(sections) > 1:
        return sections[1], False
    if value == 0 and len(sections) > 2:
        return sections[2], False
    return sections[0], True


def _holds(value: float, comparison: str, limit: float) -> bool:
    return {
        "<": value < limit,
        ">": value > limit,
        "<=": value <= limit,
        ">=": value >= limit,
        "=": value == limit,
        "<>": value != limit,
    }[comparison]


def _literals(tokens: Sequence[_Token]) -> str:
    return "".join(_literal(token) for token in tokens)


def _literal(token: _Token) -> str:
    if token.kind in ("quoted", "escaped", "literal", "currency"):
        return token.text
    return " " if token.kind == "space" else ""


def _show_digits(value: Decimal, tokens: Sequence[_Token]) -> str:
    if any(token.kind == "general" or token == _Token("sign", "@") for token in tokens):
        number = plain_number(float(value) if value % 1 else int(value))
        return "".join(
            number if token.kind == "general" or token == _Token("sign", "@") else _literal(token) for token in tokens
        )
    if any(token == _Token("sign", "/") for token in tokens):
        return _show_fraction(value, tokens)
    power = next((at for at, token in enumerate(tokens) if token.kind == "power"), None)
    if power is not None:
        return _show_power(value, tokens[:power], tokens[power:])
    return _show_decimal(value, tokens)


def _show_decimal(value: Decimal, tokens: Sequence[_Token]) -> str:
    digits = [at for at, token in enumerate(tokens) if token.kind == "digit"]
    point = next((at for at, token in enumerate(tokens) if token == _Token("sign", ".")), len(tokens))
    fraction_token = next((at for at, token in enumerate(tokens) if token.kind == "fraction"), None)
    if fraction_token is not None:
        point = fraction_token
    whole = [at for at in digits if at < point]
    behind = "".join(tokens[at].text for at in digits if at > point)
    if fraction_token is not None:
        behind = tokens[fraction_token].text[1:] + behind
    commas = [at for at, token in enumerate(tokens) if token == _Token("sign", ",")]
    grouped = any(whole and whole[0] < at < whole[-1] for at in commas)
    last = max((*whole, -1))
    scale = sum(last < at <= point and at < point for at in commas) if whole else 0
    percent = sum(token == _Token("sign", "%") for token in tokens)
    value = value * 100**percent / 1000**scale
    places = min(len(behind), _MOST_DIGITS)
    rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    before, _, after = f"{rounded:f}".partition(".")
    least = sum(tokens[at].text == "0" for at in whole)
    before = before.lstrip("0").rjust(least, "0")
    while after and behind[len(after) - 1] != "0" and after.endswith("0"):
        after = after[:-1]
    if grouped:
        before = f"{int(before or 0):,}" if least <= len(before.lstrip("0")) or not before else _group(before)
    return _lay_out(tokens, whole, before, point, after)


def _group(digits: str) -> str:
    first = len(digits) % 3
    groups = [digits[:first]] if first else []
    groups += [digits[at : at + 3] for at in range(first, len(digits), 3)]
    return ",".join(groups)


def _lay_out(tokens: Sequence[_Token], whole: Sequence[int], before: str, point: int, after: str) -> str:
    """Return the literals of a code with the digits between them, e.g. a telephone number for `000-0000`."""
    parts: dict[int, str] = {}
    if "," in before or len(whole) < 2:
        if whole:
            parts[whole[0]] = before
    else:
        left = before
        for at in reversed(whole[1:]):
            left, parts[at] = left[:-1], left[-1:]
        parts[whole[0]] = left
    shown: list[str] = []
    for at, token in enumerate(tokens):
        if at == point:
            shown.append((before if not whole else "") + (f".{after}" if after else ""))
        elif at in parts:
            shown.append(parts[at])
        elif token == _Token("sign", "%"):
            shown.append("%")
        else:
            shown.append(_literal(token))
    return "".join(shown)


def _show_power(value: Decimal, mantissa: Sequence[_Token], power: Sequence[_Token]) -> str:
    places = sum(token.kind == "digit" for token in mantissa)
    text = "".join(token.text for token in mantissa)
    places = len(text.partition(".")[2]) if "." in text else 0
    width = sum(token.kind == "digit" for token in power)
    digits, _, exponent = f"{value:.{min(places, _MOST_DIGITS)}E}".partition("E")
    number = int(exponent)
    sign = "-" if number < 0 else "+" if power[0].text.endswith("+") else ""
    return f"{digits}E{sign}{abs(number):0{max(width, 1)}d}"


def _show_fraction(value: Decimal, tokens: Sequence[_Token]) -> str:
    code = "".join(token.text for token in tokens)
    _, _, below = code.partition("/")
    fixed = re.match(r"\s*(\d+)", below)
    width = sum(char in "?#0" for char in below)
    has_whole = re.search(r"[#0?]\s+[#0?]", code.partition("/")[0]) is not None
    whole, rest = divmod(Fraction(value), 1) if has_whole else (0, Fraction(value))
    if fixed and int(fixed[1]) > 0:
        bottom = int(fixed[1])
        top = round(rest * bottom)
    else:
        near = rest.limit_denominator(10 ** min(max(width, 1), 6) - 1)
        top, bottom = near.numerator, near.denominator
    if has_whole and top == bottom:
        whole, top = whole + 1, 0
    if has_whole and not top:
        return str(whole)
    return f"{whole} {top}/{bottom}" if has_whole and whole else f"{top}/{bottom}"


# -- dates and durations ----------------------------------------------------------------------------------------------


def _show_date(value: float, tokens: Sequence[_Token], epoch_1904: bool) -> str:
    places = max((len(token.text) - 1 for token in tokens if token.kind == "fraction"), default=0)
    seconds = round(value * _DAY_S, min(places, 3))
    if any(token.kind == "elapsed" for token in tokens):
        return _show_duration(seconds, tokens, places)
    if value < 0:
        raise ValueError("dates begin at 0")
    moment = _moment(seconds, epoch_1904)
    has_noon = any(token.kind == "noon" for token in tokens)
    return "".join(_show_part(token, at, tokens, moment, has_noon, places) for at, token in enumerate(tokens))


def _moment(seconds: float, epoch_1904: bool) -> datetime:
    if epoch_1904:
        return datetime(1904, 1, 1) + timedelta(seconds=seconds)
    days = seconds / _DAY_S
    start = datetime(1899, 12, 30) if days >= 60 else datetime(1899, 12, 31)  # Excel has a 29 February 1900
    return start + timedelta(seconds=seconds)


def _show_part(token: _Token, at: int, tokens: Sequence[_Token], moment: datetime, has_noon: bool, places: int) -> str:
    if token.kind == "noon":
        return "AM" if moment.hour < 12 else "PM"
    if token.kind == "fraction":
        return f"{moment.microsecond / 1_000_000:.{places}f}"[1:]
    if token.kind == "sign":
        return token.text if token.text in "./," else ""
    if token.kind != "date":
        return _literal(token) if token.kind != "digit" else ""
    letter, width = token.text[0].lower(), len(token.text)
    if letter == "y":
        return f"{moment.year:04d}" if width > 2 else f"{moment.year % 100:02d}"
    if letter == "d":
        name = _DAYS[moment.weekday()]
        return {1: str(moment.day), 2: f"{moment.day:02d}", 3: name[:3]}.get(width, name)
    if letter == "h":
        hour = (moment.hour % 12 or 12) if has_noon else moment.hour
        return f"{hour:0{min(width, 2)}d}"
    if letter == "s":
        return f"{moment.second:0{min(width, 2)}d}"
    if _is_minute(at, tokens):
        return f"{moment.minute:0{min(width, 2)}d}"
    name = _MONTHS[moment.month - 1]
    return {1: str(moment.month), 2: f"{moment.month:02d}", 3: name[:3], 5: name[0]}.get(width, name)


def _is_minute(at: int, tokens: Sequence[_Token]) -> bool:
    """Tell whether an `m` means minutes: it follows hours, or comes before seconds."""
    before = next((token.text[0].lower() for token in reversed(tokens[:at]) if token.kind in ("date", "elapsed")), "")
    after = next((token.text[0].lower() for token in tokens[at + 1 :] if token.kind == "date"), "")
    return len(tokens[at].text) <= 2 and (before == "h" or after == "s")


def _show_duration(seconds: float, tokens: Sequence[_Token], places: int) -> str:
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if not places:
        seconds = round(seconds)
    left = seconds
    shown: list[str] = []
    for token in tokens:
        letter = token.text[:1].lower()
        if token.kind in ("elapsed", "date") and letter in "hms":
            unit = {"h": 3_600, "m": 60, "s": 1}[letter]
            number, left = divmod(left, unit)
            shown.append(f"{int(number):0{len(token.text)}d}")
        elif token.kind == "fraction":
            shown.append(f"{left % 1:.{places}f}"[1:])
        else:
            shown.append(_literal(token))
    return sign + "".join(shown)
