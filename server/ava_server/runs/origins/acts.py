"""Which calls a person is asked about for what they do, whatever values they have.

Values tell with what a tool is called, not whether anybody wants it called at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from ava_audit.events import ActReason


@dataclass(frozen=True)
class Act:
    """A call of another server's tool, as `reason_to_ask` judges it.

    Attributes:
        changes: The server does not say that the tool only reads.
        role_allows: A line of the role allows its calls.
        allowed_for_run: A person has allowed all its calls in this run.
        allowed_without_values: A person has allowed a call of it that passed nothing to compare.
        compared: The call passes a value that is compared with what a person approved.
    """

    changes: bool
    role_allows: bool
    allowed_for_run: bool
    allowed_without_values: bool
    compared: bool


def reason_to_ask(act: Act) -> ActReason:
    """Return why a person is asked about a call itself; empty if they are not. Nothing else decides it.

    | the first line that holds decides                              | asked         |
    |----------------------------------------------------------------|---------------|
    | a line of the role, or a person for this run, allows its calls | no            |
    | its server says that it only reads                             | no            |
    | the call passes nothing that could be compared                 | once in a run |
    | any other                                                      | no            |
    """
    if act.role_allows or act.allowed_for_run:
        return ""
    if not act.changes:
        return ""
    if not act.compared and not act.allowed_without_values:
        return "no_values"
    return ""
