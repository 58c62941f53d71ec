"""Which calls a person is asked about for what they do, whatever values they have.

Values tell with what a tool is called, not whether anybody wants it called at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ava_audit.events import ActReason
from ava_server.runs.origins.approved_texts import NUMBER_CHARS, number_readings
from ava_server.runs.origins.compared_text import plain_text

MOST_MATCHED = 100
"""Values of a call up to which each is matched with one of an earlier call; more are compared in one row."""
Passed = Sequence[tuple[str, Any]]
"""The values of a call, each with its argument."""


@dataclass(frozen=True)
class Act:
    """A call of another server's tool, as `reason_to_ask` judges it.

    Attributes:
        changes: The server does not say that the tool only reads.
        destroys: It says that the tool can destroy something.
        role_asks: A line of the role has a person asked about each.
        role_allows: A line of the role allows its calls.
        allowed_for_run: A person has allowed all its calls in this run.
        allowed_without_values: A person has allowed a call of it that passed nothing to compare.
        idempotent: The server says that an equal call again changes nothing more.
        repeated: An equal call has succeeded in this run, or may have.
        compared: The call passes a value that is compared with what a person approved.
    """

    changes: bool
    destroys: bool
    idempotent: bool
    repeated: bool
    role_asks: bool
    role_allows: bool
    allowed_for_run: bool
    allowed_without_values: bool
    compared: bool


def reason_to_ask(act: Act) -> ActReason:
    """Return why a person is asked about a call itself; empty if they are not. Nothing else decides it.

    | the first line that holds decides                              | asked         |
    |----------------------------------------------------------------|---------------|
    | a line of the role, or a person for this run, allows its calls | no            |
    | a line of the role wants it                                    | each time     |
    | its server says that it only reads                             | no            |
    | its server says that it can destroy something                  | each time     |
    | an equal call succeeded or may have, and is not idempotent     | each time     |
    | the call passes nothing that could be compared                 | once in a run |
    | any other                                                      | no            |
    """
    if act.role_allows or act.allowed_for_run:
        return ""
    if act.role_asks:
        return "role"
    if not act.changes:
        return ""
    if act.destroys:
        return "destroys"
    if act.repeated and not act.idempotent:
        return "again"
    if not act.compared and not act.allowed_without_values:
        return "no_values"
    return ""


def is_equal_call(first: Passed, second: Passed) -> bool:
    """Tell whether two calls of a tool pass the same, in whatever order and however it is written.

    `Origins` leaves out what is free in every call, such as true and false, unless a call has nothing else.
    """
    if len(first) != len(second):
        return False
    if len(first) > MOST_MATCHED:
        return _in_one_row(first) == _in_one_row(second)
    left = list(second)
    for argument, value in first:
        for each in left:
            if each[0] == argument and _is_equal_value(each[1], value):
                left.remove(each)
                break
        else:
            return False
    return True


def _is_equal_value(first: Any, second: Any) -> bool:
    first_plain, second_plain = plain_text(str(first)), plain_text(str(second))
    if first_plain == second_plain:
        return True
    first_numbers, second_numbers = _numbers(first_plain), _numbers(second_plain)
    if first_numbers and second_numbers:
        return not first_numbers.isdisjoint(second_numbers)
    letters = _letters(first_plain)
    return bool(letters) and letters == _letters(second_plain)


def _numbers(plain: str) -> set[Decimal]:
    return number_readings(plain) if len(plain) <= NUMBER_CHARS else set()


def _letters(plain: str) -> str:
    """Return the letters and digits of a text: blanks and signs between them make it no other value."""
    return "".join(filter(str.isalnum, plain))


def _in_one_row(passed: Passed) -> list[tuple[str, str]]:
    return sorted((argument, _letters(plain_text(str(value)))) for argument, value in passed)
