"""A run in lines: all that there is to say, or as little as tells it from the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import WAITING
from ava_audit.units import format_duration, format_ts, format_usd, now_us
from ava_server.approval.summary import one_line
from ava_server.budget.run_config import config_of
from ava_server.cli.dashboard.bars import Cap, bar, caps_of
from ava_server.cli.dashboard.overview import EXPIRED
from ava_server.cli.dashboard.words import foreign, joined
from ava_server.cli.terminal import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ava_server.cli.dashboard.overview import Shown

INDENT, GAP, CAPS = 2, 2, 5
BESIDE = 20
"""From so many columns on a bar stands beside its figure, else below it."""
NAME_CHARS = 20
WORDS, SHORT_WORDS = 13, 8
"""So long figures are as a rule: bars of several runs stand below each other."""
SHORT_STATES = {WAITING: "to approve"}
ENDED_WELL = ("success",)
NOT_APPROVED = ("rejected", "expired", "superseded")
SAID_BY_STATE = re.compile(r"^nobody has it: | in the queue")
"""What need not be said of a run in few words, beside its state."""
_STYLES = {WAITING: "bold yellow", "interrupted": "bold magenta", "running": "bold green", "queued": "cyan"}


class RunLines:
    """Says runs in lines of one width.

    Args:
        width: Columns.
        at_us: Now.
        runs: Those that are said below each other.
        owners: Say whose each is.
    """

    def __init__(self, width: int, at_us: int, runs: Sequence[Shown], *, owners: bool) -> None:
        self._width = width
        self._at_us = at_us
        states = [(shown.answer.state, shown.run.ended) for shown in runs]
        self._states = max((len(state) for state, _ended in states), default=0)
        self._short = max((len(SHORT_STATES.get(state, state)) for state, ended in states if not ended), default=0)
        self._owners = owners
        self._column = (width - INDENT - GAP * (CAPS - 1)) // CAPS

    def full(self, shown: Shown) -> list[Text]:
        """Return all that there is to say of a run."""
        run, answer = shown.run, shown.answer
        group = f", in {run.group_id}" if run.group_id else ""
        ended = f", ended {clock(run.ended_us)}" if run.ended_us is not None else ""
        lines = [self._head(shown, group), _indented(f"asked {clock(run.created_us)}{ended}: {shown.task}")]
        if answer.state in (WAITING, EXPIRED):
            return [*lines, *_proposal(shown, can_decide=not self._owners)]
        if answer.state == "queued":
            return [*lines, *self._wrapped(shown.waits)]
        if answer.untrusted_activity:
            lines.append(_indented(answer.untrusted_activity))
        if run.ended:
            if run.started_us is not None:
                lines.append(_indented(" · ".join(cap.words for cap in caps_of(shown, self._at_us))))
            return lines + self._wrapped(why_ended(shown))
        lines += self._bars(caps_of(shown, self._at_us))
        return lines + self._wrapped(shown.waits)

    def short(self, shown: Shown) -> list[Text]:
        """Return a run in a line or two."""
        state = shown.answer.state
        if state in (WAITING, EXPIRED):
            proposal = _short_proposal(shown, can_decide=not self._owners)
            return [self._head(shown, f" · {shown.task}", short=True), proposal]
        what = SAID_BY_STATE.sub("", shown.waits) or shown.answer.untrusted_activity
        head = self._head(shown, called_so(shown) + (f" · {what}" if what else ""), short=True)
        return [head] if state == "queued" else [head, self._short_bars(caps_of(shown, self._at_us))]

    def ending(self, shown: Shown) -> list[Text]:
        """Return an ended run in a line: what it cost and took, and why it ended where that was not well."""
        cost, took = format_usd(shown.run.cost_micros), format_duration(shown.run.active_us / 1e6)
        if config_of(shown.run.config).price.get("free"):
            cost = "free"
        figures = "" if shown.run.started_us is None else f"{took} · {cost} · "
        why = why_ended(shown) if shown.answer.state not in NOT_APPROVED else ""
        more = called_so(shown) + (f" · {why}" if why else "")
        return [self._head(shown, more, before=f"{clock(shown.run.ended_us)} · {figures}")]

    def _head(self, shown: Shown, more: str, *, before: str = "", short: bool = False) -> Text:
        run, answer = shown.run, shown.answer
        name = f" ({answer.name})" if answer.name else ""
        owner = f" of {run.user_id}" if self._owners else ""
        style = _STYLES.get(answer.state, "" if answer.state in ENDED_WELL else "yellow" if run.ended else "dim")
        state = f"{answer.state:<{self._states}}"
        if short:
            state = f"{SHORT_STATES.get(answer.state, answer.state):<{self._short}}"
        return joined((f"{run.id}  ", "bold"), (f"{state}  ", style), f"{before}{run.role}{name}{owner}{more}")

    def _wrapped(self, words: str) -> list[Text]:
        """Return words of ours in as many lines as they take."""
        lines = wrapped(foreign(words), self._width - INDENT).split("\n")
        return [_indented(line) for line in lines if words]

    def _bars(self, caps: tuple[Cap, ...]) -> list[Text]:
        """Return the figures with their bars, beside each other where there is room."""
        if self._column >= BESIDE:
            longest = max(WORDS, *(len(cap.words) for cap in caps))
            return [self._row([_beside(cap, cap.words, longest, self._column) for cap in caps])]
        figures = [Text(cap.words) for cap in caps]
        return [self._row(figures), self._row([_bar(cap, self._column) for cap in caps])]

    def _short_bars(self, caps: tuple[Cap, ...]) -> Text:
        longest = max(SHORT_WORDS, *(len(cap.short) for cap in caps))
        return self._row([_beside(cap, cap.short, longest, self._column) for cap in caps])

    def _row(self, cells: list[Text]) -> Text:
        row = Text(" " * INDENT)
        for number, cell in enumerate(cells):
            cell.truncate(self._column, overflow="ellipsis", pad=True)
            row.append_text(cell)
            if number < len(cells) - 1:
                row.append(" " * GAP)
        row.rstrip()
        return row


def _bar(cap: Cap, width: int) -> Text:
    return bar(cap.used, cap.most, width, cap.held) if cap.most > 0 else Text()


def _beside(cap: Cap, words: str, longest: int, column: int) -> Text:
    return Text.assemble(f"{words:<{longest}} ", _bar(cap, column - longest - 1))


def _indented(words: str) -> Text:
    return joined(" " * INDENT + words)


def _proposal(shown: Shown, *, can_decide: bool) -> list[Text]:
    pending_id, terms = shown.run.pending_id, _terms(shown)
    if shown.answer.state == EXPIRED or not can_decide:
        return [_indented(f"{pending_id}, {terms}")]
    return [_indented(f"{pending_id}, {terms}"), _indented(f"ava approve {pending_id}, or ava reject {pending_id}")]


def _short_proposal(shown: Shown, *, can_decide: bool) -> Text:
    how = "ava approve " if can_decide and shown.answer.state != EXPIRED else ""
    return _indented(f"{how}{shown.run.pending_id} · {_terms(shown)}")


def _terms(shown: Shown) -> str:
    """Return what a proposal would cost at most, and until when it can be approved."""
    config = config_of(shown.run.config)
    if shown.answer.state == EXPIRED:
        return f"expired {clock(shown.expires_us)}"
    most = "free" if config.price.get("free") else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    return f"{most} and {config.timeout_s / 60:g} min, expires {clock(shown.expires_us)}"


def called_so(shown: Shown) -> str:
    """Return the beginning of the task of a run that has no name."""
    return "" if shown.answer.name else f' "{one_line(shown.task, NAME_CHARS)}"'


def why_ended(shown: Shown) -> str:
    """Return why a run ended as it did, where that is not said by its ending."""
    return foreign(shown.answer.stop_reason or "") if shown.answer.state not in ENDED_WELL else ""


def clock(ts_us: int | None) -> str:
    """Return a time as the clock on the wall has it; with its day where that is not today."""
    if ts_us is None:
        return "?"
    day, _, time = format_ts(ts_us).partition(" ")
    return time[:5] if day == format_ts(now_us()).partition(" ")[0] else f"{day} {time[:5]}"
