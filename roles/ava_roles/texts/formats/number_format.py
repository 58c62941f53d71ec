"""Numbers as a workbook shows them: dates, durations, percent, currencies and leading zeros, by their format codes.

Names of months and days are English, the decimal sign is a point. A date whose order depends on the reader's country
(Excel's own short date) is shown as `2026-11-28`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
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
_TYPED_CHARS = 10
_DIGITS_SHOWN = 6
_SAME = 1e-12
_VISIBLY_OFF = 1e-3
_SHOWN_NUMBER = re.compile(r"\d(?:[\d.,'\u2019\u00a0\u202f ]*\d)?(?:E[+-]?\d+)?")
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
    """A piece of a format code. Its kind is the name of the group in `_TOKEN` that matched."""

    kind: str
    text: str


_POINT = _Token("sign", ".")
_COMMA = _Token("sign", ",")
_PERCENT = _Token("sign", "%")
_SLASH = _Token("sign", "/")
_AT = _Token("sign", "@")  # the text of the cell


def show_number(value: float, code: str, epoch_1904: bool = False) -> str:
    """Return a number as its format code shows it; as it is stored, if the code shows nothing or is not understood."""
    code = _SHORT_DATES.get(code, code)[:_CODE_CHARS]
    try:
        text = _show(value, code, epoch_1904)
    except (ArithmeticError, ValueError, IndexError):
        text = ""
    return text.strip() or plain_number(value)


def show_exactly(value: float, code: str, epoch_1904: bool = False) -> str:
    """Return a number as its format code shows it, and the exact value beside it where rounding hides that."""
    shown = show_number(value, code, epoch_1904)
    try:
        section, _ = _section(value, code)
    except (ArithmeticError, ValueError):
        return shown
    kinds = {token.kind for token in _tokens(section)}
    is_time = "elapsed" in kinds or ("date" in kinds and "digit" not in kinds)
    return shown if is_time else with_exact(shown, value)


def with_exact(shown: str, value: float) -> str:
    """Return a figure as it is shown, and the exact value beside it where rounding hides that: `3% (exactly 0.025)`.

    A value of more than ten characters, which a formula gave, stands there only if what is shown is off by more than a
    thousandth of it, and with its first six digits: `33% (exactly 0.333333…)`. A text with several numbers stays as it
    is.
    """
    numbers = _SHOWN_NUMBER.findall(shown[:_CODE_CHARS])
    if len(numbers) != 1 or not math.isfinite(value):
        return shown
    size = abs(value)
    off = min((abs(each - size) for each in _readings(numbers[0], shown)), default=0.0)
    exact = plain_number(value)
    is_short = len(exact.lstrip("-")) <= _TYPED_CHARS
    least = size * (_SAME if is_short else _VISIBLY_OFF)
    if off <= least:
        return shown
    return f"{shown} (exactly {exact if is_short else _first_digits(exact)})"


def _first_digits(number: str) -> str:
    """Return a long number up to its sixth digit, or to its second decimal; one with an exponent whole."""
    whole, point, decimals = number.partition(".")
    zeros = 0 if whole.lstrip("-0") else len(decimals) - len(decimals.lstrip("0"))
    kept = max(_DIGITS_SHOWN - len(whole.lstrip("-0")), 2) + zeros
    if not point or "E" in number or kept >= len(decimals):
        return number
    return f"{whole}.{decimals[:kept]}…"


def _readings(number: str, shown: str) -> Iterator[float]:
    """Yield what a shown number may mean: a point or a comma is a decimal sign, or groups digits."""
    scale = 100.0 if "%" in shown else 1000.0 if "\u2030" in shown else 1.0
    digits, power, exponent = re.sub(r"[^\d.,E+-]", "", number).rstrip(".,").partition("E")
    for decimal_sign in ".,":
        before, _, after = digits.rpartition(decimal_sign)
        whole = digits.replace(".", "").replace(",", "")
        candidates = [whole]
        if before and "," not in after and "." not in after and decimal_sign not in before:
            candidates.append(f"{before.replace('.', '').replace(',', '')}.{after}")
        for each in candidates:
            try:
                yield float(f"{each}E{exponent}" if power else each) / scale
            except ValueError:
                continue


def plain_number(value: float) -> str:
    """Return a number with at most 15 digits, which is what Excel stores."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.15g}".replace("e", "E")


def _show(value: float, code: str, epoch_1904: bool) -> str:
    """Return a number as a format code shows it. Raises ValueError for a negative date."""
    section, needs_sign = _section(value, code)
    tokens = _tokens(section)
    kinds = {token.kind for token in tokens}
    is_date = "date" in kinds and "digit" not in kinds
    if is_date or "elapsed" in kinds:
        return _show_date(value, tokens, epoch_1904)
    if not _has_number(tokens):
        return "".join(map(_literal, tokens))
    text = _show_digits(Decimal(repr(abs(value))), tokens)
    if value < 0 and needs_sign:
        return f"-{text}"
    return text


def _tokens(code: str) -> list[_Token]:
    tokens: list[_Token] = []
    for match in _TOKEN.finditer(code):
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind]))
    return tokens


def _has_number(tokens: Sequence[_Token]) -> bool:
    """Tell whether a code shows the number at all, and not only words."""
    return _AT in tokens or any(token.kind in ("digit", "general") for token in tokens)


def _section(value: float, code: str) -> tuple[str, bool]:
    """Return the part of a code that is for this number, and whether a minus is to be added."""
    sections = [match[0] for match in _SECTION.finditer(code) if match[0]]
    if not sections:
        sections = [GENERAL]
    for section in sections[:2]:
        condition = _CONDITION.search(section)
        if condition and _holds(value, condition[1], float(condition[2])):
            return section, True
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


def _literal(token: _Token) -> str:
    if token.kind in ("quoted", "escaped", "literal", "currency"):
        return token.text
    if token.kind == "space":
        return " "
    return ""


def _show_digits(value: Decimal, tokens: Sequence[_Token]) -> str:
    kinds = [token.kind for token in tokens]
    if _AT in tokens or "general" in kinds:
        return _show_general(value, tokens)
    if _SLASH in tokens:
        return _show_fraction(value, tokens)
    if "power" in kinds:
        power = kinds.index("power")
        return _show_power(value, tokens[:power], tokens[power:])
    return _show_decimal(value, tokens)


def _show_general(value: Decimal, tokens: Sequence[_Token]) -> str:
    if value % 1 == 0:
        number = plain_number(int(value))
    else:
        number = plain_number(float(value))
    shown: list[str] = []
    for token in tokens:
        if token == _AT or token.kind == "general":
            shown.append(number)
        else:
            shown.append(_literal(token))
    return "".join(shown)


def _show_decimal(value: Decimal, tokens: Sequence[_Token]) -> str:
    point = _point_index(tokens)
    integer: list[int] = []
    decimals = ""
    for index, token in enumerate(tokens):
        if index == point and token.kind == "fraction":
            decimals = token.text[1:]
        elif token.kind == "digit":
            if index < point:
                integer.append(index)
            else:
                decimals += token.text
    thousands, has_groups = _read_commas(tokens[:point], integer)
    value = value * 100 ** tokens.count(_PERCENT) / 1000**thousands

    places = min(len(decimals), _MOST_DIGITS)
    rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    before, _, after = f"{rounded:f}".partition(".")
    least_digits = sum(tokens[index].text == "0" for index in integer)
    before = before.lstrip("0").rjust(least_digits, "0")
    if has_groups:
        before = _group(before or "0")
    while after.endswith("0") and decimals[len(after) - 1] != "0":
        after = after[:-1]
    return _lay_out(tokens, integer, before, point, after)


def _read_commas(tokens: Sequence[_Token], integer: Sequence[int]) -> tuple[int, bool]:
    """Return how often a number is divided by a thousand, and whether its thousands are grouped.

    A comma between the digits groups; each one behind the last digit divides. `integer`: where the digits are.
    """
    thousands = 0
    has_groups = False
    if not integer:
        return thousands, has_groups
    for index, token in enumerate(tokens):
        if token != _COMMA:
            continue
        if index > integer[-1]:
            thousands += 1
        elif index > integer[0]:
            has_groups = True
    return thousands, has_groups


def _point_index(tokens: Sequence[_Token]) -> int:
    """Return where the decimals of a code begin; behind its end if it has none."""
    kinds = [token.kind for token in tokens]
    if "fraction" in kinds:
        return kinds.index("fraction")
    return tokens.index(_POINT) if _POINT in tokens else len(tokens)


def _group(digits: str) -> str:
    groups: list[str] = []
    end = len(digits)
    while end > 0:
        groups.insert(0, digits[max(0, end - 3) : end])
        end -= 3
    return ",".join(groups)


def _lay_out(tokens: Sequence[_Token], integer: Sequence[int], before: str, point: int, after: str) -> str:
    """Return the literals of a code with the digits between them, e.g. a telephone number for `000-0000`.

    Args:
        tokens: The code.
        integer: Where its digits before the point are.
        before: The number's digits before the point, perhaps in groups.
        point: Where its decimals begin.
        after: The number's decimals.
    """
    digits: dict[int, str] = {}
    if "," not in before:
        for index in reversed(integer[1:]):
            digits[index] = before[-1:]
            before = before[:-1]
    if integer:
        digits[integer[0]] = before

    shown: list[str] = []
    for index, token in enumerate(tokens):
        if index == point:
            if not integer:
                shown.append(before)
            if after:
                shown.append(f".{after}")
        elif index in digits:
            shown.append(digits[index])
        elif token == _PERCENT:
            shown.append("%")
        else:
            shown.append(_literal(token))
    return "".join(shown)


def _show_power(value: Decimal, mantissa: Sequence[_Token], power: Sequence[_Token]) -> str:
    mantissa_code = "".join(token.text for token in mantissa)
    places = len(mantissa_code.partition(".")[2])
    digits, _, exponent = f"{value:.{min(places, _MOST_DIGITS)}E}".partition("E")
    sign = ""
    if int(exponent) < 0:
        sign = "-"
    elif power[0].text.endswith("+"):
        sign = "+"
    width = sum(token.kind == "digit" for token in power)
    return f"{digits}E{sign}{abs(int(exponent)):0{max(width, 1)}d}"


def _show_fraction(value: Decimal, tokens: Sequence[_Token]) -> str:
    code = "".join(token.text for token in tokens)
    numerator_code, _, denominator_code = code.partition("/")
    has_integer = re.search(r"[#0?]\s+[#0?]", numerator_code) is not None
    if not has_integer:
        numerator, denominator = _nearest_fraction(Fraction(value), denominator_code)
        return f"{numerator}/{denominator}"
    integer, remainder = divmod(Fraction(value), 1)
    numerator, denominator = _nearest_fraction(remainder, denominator_code)
    if numerator == denominator:  # rounded up to a whole
        integer += 1
        numerator = 0
    if not numerator:
        return str(integer)
    if not integer:
        return f"{numerator}/{denominator}"
    return f"{integer} {numerator}/{denominator}"


def _nearest_fraction(value: Fraction, denominator_code: str) -> tuple[int, int]:
    """Return the numerator and denominator nearest to a value.

    The code has the denominator itself, as in `# ?/8`, or one sign for each of its digits, as in `# ?/??`.
    """
    fixed = re.match(r"\s*(\d+)", denominator_code)
    if fixed is not None and int(fixed[1]) > 0:
        denominator = int(fixed[1])
        return round(value * denominator), denominator
    width = sum(char in "?#0" for char in denominator_code)
    width = min(max(width, 1), 6)
    nearest = value.limit_denominator(10**width - 1)
    return nearest.numerator, nearest.denominator


# -- dates and durations ----------------------------------------------------------------------------------------------


def _show_date(value: float, tokens: Sequence[_Token], epoch_1904: bool) -> str:
    places = 0
    for token in tokens:
        if token.kind == "fraction":
            places = max(places, len(token.text) - 1)
    seconds = round(value * _DAY_S, min(places, 3))
    if any(token.kind == "elapsed" for token in tokens):
        return _show_duration(seconds, tokens, places)
    if value < 0:
        raise ValueError("dates begin at 0")
    moment = _moment(seconds, epoch_1904)
    return "".join(_show_part(tokens, index, moment, places) for index in range(len(tokens)))


def _moment(seconds: float, epoch_1904: bool) -> datetime:
    if epoch_1904:
        return datetime(1904, 1, 1) + timedelta(seconds=seconds)
    days = seconds / _DAY_S
    start = datetime(1899, 12, 30) if days >= 60 else datetime(1899, 12, 31)  # Excel has a 29 February 1900
    return start + timedelta(seconds=seconds)


def _show_part(tokens: Sequence[_Token], index: int, moment: datetime, places: int) -> str:
    token = tokens[index]
    if token.kind == "noon":
        return "AM" if moment.hour < 12 else "PM"
    if token.kind == "fraction":
        return f"{moment.microsecond / 1_000_000:.{places}f}"[1:]
    if token.kind == "sign" and token.text in "./,":
        return token.text
    if token.kind != "date":
        return _literal(token)
    width = len(token.text)
    match token.text[0].lower():
        case "y":
            return f"{moment.year:04d}" if width > 2 else f"{moment.year % 100:02d}"
        case "d":
            return _show_day(moment, width)
        case "h":
            return _show_hour(moment, width, tokens)
        case "s":
            return f"{moment.second:0{min(width, 2)}d}"
        case _ if _is_minute(tokens, index):
            return f"{moment.minute:0{min(width, 2)}d}"
        case _:
            return _show_month(moment, width)


def _show_day(moment: datetime, width: int) -> str:
    name = _DAYS[moment.weekday()]
    return {1: str(moment.day), 2: f"{moment.day:02d}", 3: name[:3]}.get(width, name)


def _show_month(moment: datetime, width: int) -> str:
    name = _MONTHS[moment.month - 1]
    return {1: str(moment.month), 2: f"{moment.month:02d}", 3: name[:3], 5: name[0]}.get(width, name)


def _show_hour(moment: datetime, width: int, tokens: Sequence[_Token]) -> str:
    hour = moment.hour
    if any(token.kind == "noon" for token in tokens):
        hour = hour % 12 or 12
    return f"{hour:0{min(width, 2)}d}"


def _is_minute(tokens: Sequence[_Token], index: int) -> bool:
    """Tell whether an `m` means minutes: it follows hours, or comes before seconds."""
    if len(tokens[index].text) > 2:
        return False
    before = ""
    for token in tokens[:index]:
        if token.kind in ("date", "elapsed"):
            before = token.text[0].lower()
    if before == "h":
        return True
    for token in tokens[index + 1 :]:
        if token.kind == "date":
            return token.text[0].lower() == "s"
    return False


def _show_duration(seconds: float, tokens: Sequence[_Token], places: int) -> str:
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if not places:
        seconds = round(seconds)
    remaining = seconds
    shown: list[str] = []
    for token in tokens:
        letter = token.text[:1].lower()
        if token.kind in ("elapsed", "date") and letter in "hms":
            unit = {"h": 3_600, "m": 60, "s": 1}[letter]
            number, remaining = divmod(remaining, unit)
            shown.append(f"{int(number):0{len(token.text)}d}")
        elif token.kind == "fraction":
            shown.append(f"{remaining % 1:.{places}f}"[1:])
        else:
            shown.append(_literal(token))
    return sign + "".join(shown)
