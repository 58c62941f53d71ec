"""The rows of a host's question whether proposals start, in the order in which a person must see them.

The first three have what starts with its first task, price, time and reach, and what must not be overlooked, each in
short where a line is too narrow for it: a small window shows only these. `choose` decides which others fit. Pages and
terminals show the rows of `summary.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ava_server.approval.choose import Row
from ava_server.approval.plain_text import one_line, quoted
from ava_server.approval.plan_summary import folded_steps, plan_size
from ava_server.approval.reach import short_reach
from ava_server.approval.summary import (
    ATTENTION,
    SHOWN_CHARS,
    STEPS,
    WINDOW_COLUMNS,
    SummaryRow,
    capitalized,
    cost_line,
    short_line,
    start_of,
)
from ava_server.core.names import quote_name
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.run_config.run_cap import caps_text

TASK_SEEN = 16
"""Characters of the first task that must be seen."""


def question_rows(rows: Iterable[SummaryRow], config: RunConfig, brief: Brief) -> list[Row]:
    """Return the rows of a proposal with those first that lead; like steps of a plan are one row."""
    others = [Row(row.topic, row.text) for row in rows if row.topic != STEPS]
    title = _take(others, "What")
    where = _take(others, "Where")
    how_much = _take(others, "How much")
    warnings = warning_rows([row.text for row in others if row.topic == ATTENTION])
    others = [row for row in others if row.topic != ATTENTION]
    caps = capitalized(caps_text(config.cost_cap(), config.timeout_s))
    room = WINDOW_COLUMNS - len(caps) - len("; .")
    in_short = f"{caps}; {short_reach([step.config for step in config.steps] or [config], room)}."
    where = replace(where, short=in_short, seen=len(where.text))
    if config.steps or warnings:  # the row about cost and time does not lead
        where = replace(where, longer=f"{caps}. {where.text}")
    if config.steps:
        return _with_steps(config, brief, title, [where, how_much], warnings, others)
    task = quoted(brief.task, SHOWN_CHARS)
    before = start_of(config)
    what = Row("What", f"{before}{task}.", f"Ava wants to start a subagent: {task}", len(before) + TASK_SEEN)
    name = [Row("What", f"It is named {quote_name(config.name)}")] if config.name else []  # not lost behind the task
    how_much = replace(how_much, short=f"{caps}.", seen=len(cost_line(config)))
    return [what, where, *warnings[:1], how_much, *name, *warnings[1:], *others]


def _take(rows: list[Row], topic: str) -> Row:
    """Remove the first row of a topic, and return it."""
    row = next(row for row in rows if row.topic == topic)
    rows.remove(row)
    return row


def warning_rows(sentences: Sequence[str]) -> list[Row]:
    """Return the rows of what a person must not overlook, numbered where they are several."""
    rows: list[Row] = []
    for number, sentence in enumerate(sentences, 1):
        of = f" ({number} of {len(sentences)})" if len(sentences) > 1 else ""
        rows.append(Row(ATTENTION, f"{ATTENTION}{of}: {sentence}"))
    return rows


def _with_steps(
    config: RunConfig, brief: Brief, what: Row, facts: Sequence[Row], warnings: Sequence[Row], others: Sequence[Row]
) -> list[Row]:
    """Return the rows of a plan: its first task leads with what starts, or without a warning as a row of its own."""
    where, how_much = facts
    task = quoted(brief.of_step(config.steps[0].id).task, SHOWN_CHARS)
    steps = [Row(STEPS, f"{step}: {first_task}") for step, first_task in folded_steps(config, brief)]
    if warnings:
        in_short = f"Ava wants to start a plan, {plan_size(config)}: {task}"
        what = replace(what, short=in_short, seen=WINDOW_COLUMNS + 1)  # its task is not in the text
        return [what, where, warnings[0], how_much, *warnings[1:], *steps, *others]
    seen = len(steps[0].text) - len(task) + TASK_SEEN
    steps[0] = replace(steps[0], short=f"The first task: {task}", seen=seen)
    return [what, where, steps[0], how_much, *steps[1:], *others]


def last_line(config: RunConfig, brief: Brief, number: str = "") -> str:
    """Return the last line about a proposal, with price and task: some windows show only the end of a question."""
    if not config.steps:
        return short_line(config, brief, number)
    caps = caps_text(config.cost_cap(), config.timeout_s)
    task = brief.of_step(config.steps[0].id).task
    return one_line(f"plan, {plan_size(config)}, {caps}: {task}", WINDOW_COLUMNS - 1)
