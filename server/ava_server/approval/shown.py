"""What a person is shown before something starts: the same for a single run and for a plan."""

from __future__ import annotations

from ava_server.approval.choose import choose
from ava_server.approval.plan_summary import plan_line, plan_rows
from ava_server.approval.question_rows import question_rows
from ava_server.approval.summary import DayLeft, SummaryRow, message_of, run_line, run_rows
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig


def approval_line(config: RunConfig, brief: Brief) -> str:
    """Return the line that an approval must repeat exactly: what starts, its caps, its reach, and the first task."""
    return plan_line(config, brief) if config.steps else run_line(config, brief)


def proposal_rows(config: RunConfig, brief: Brief, day: DayLeft, client: str = "") -> tuple[SummaryRow, ...]:
    """Return the proposal for the person who approves: plain sentences, dollars, no JSON; the facts first.

    Every surface shows these rows. `client` is the program that asked for it; empty where it is not known.
    """
    if config.steps:
        return plan_rows(config, brief, day, client)
    return run_rows(config, brief, day, client)


def proposal_message(config: RunConfig, brief: Brief, day: DayLeft, client: str = "") -> str:
    """Return the proposal as one text for an answer; of a plan, at most `PLAN_LINES` sentences."""
    if config.steps:
        return plan_message(config, brief, day, client)
    return message_of(run_rows(config, brief, day, client), config)


PLAN_LINES = 36
"""Lines of a plan's text in an answer: with its line it stays within 40."""
_ONE_LINE = 1_000_000
"""Columns of a line that nothing is too long for."""


def plan_message(config: RunConfig, brief: Brief, day: DayLeft, client: str = "") -> str:
    """Return a plan as one text: what it costs, reaches and warns of, then the steps, like ones as one.

    It says what it leaves out; pages and `ava approve` show every text, and the digest covers them all.
    """
    rows = question_rows(plan_rows(config, brief, day, client), config, brief)
    chosen = choose(rows, _ONE_LINE, PLAN_LINES)
    if not chosen.missing:
        return "\n".join(chosen.lines)
    chosen = choose(rows, _ONE_LINE, PLAN_LINES - 1)
    return "\n".join([*chosen.lines, f"Not here: {chosen.missing}. `ava approve` and Ava's pages show all."])
