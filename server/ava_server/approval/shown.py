"""What a person is shown before something starts: the same for a single run and for a plan."""

from __future__ import annotations

from ava_server.approval.plan_summary import plan_line, plan_message, plan_rows
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
    """Return the proposal as one text for a host; that of a plan is cut to what a form can show."""
    if config.steps:
        return plan_message(config, brief, day, client)
    return message_of(run_rows(config, brief, day, client), config)
