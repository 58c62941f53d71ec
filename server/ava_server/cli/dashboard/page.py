"""What `ava status` shows as lines of rich text, for any width; without colours they say the same."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import WAITING
from ava_audit.units import format_duration, format_ts, format_usd, now_us
from ava_roles.wrap import clean
from ava_server.approval.summary import one_line
from ava_server.cli.dashboard.health import WORST_FIRST, Health
from ava_server.cli.terminal import wrapped
from ava_server.runs.lifecycle import AWAITING_ANSWER, AWAITING_EXTENSION, HELD
from ava_server.service.records import ORDER
from ava_server.service.run_view import EXPIRED, others_words

if TYPE_CHECKING:
    from ava_server.cli.dashboard.overview import Overview
    from ava_server.cli.doctor.finding import State
    from ava_server.service.records import Budget
    from ava_server.service.run_view import Cap, RunView

NO_RUNS = "No subagents: none waits, runs, or ended within the last hour."
KEYS = "q quits"
NEARLY = 0.8
"""From this share of a cap on a bar has another colour; the model is told then what is left."""
BESIDE = 8
"""A bar that would be narrower than this beside its figure stands below it."""
GAP, NAME_CHARS, WHOSE_CHARS, MOST_TROUBLE = 2, 20, 12, 3
NOT_APPROVED = ("rejected", "expired", "superseded")
_SHORT = {WAITING: "to approve", AWAITING_EXTENSION: "asks for more", AWAITING_ANSWER: "asks you", HELD: "held"}
_BLOCKS, _PLAIN = ("█", "▒", "░"), ("#", "+", "-")
_BAD = ("fault", "warning")
_STATES = {
    WAITING: "bold yellow",
    AWAITING_EXTENSION: "bold yellow",
    AWAITING_ANSWER: "bold yellow",
    HELD: "bold magenta",
    "interrupted": "bold magenta",
    "running": "bold green",
    "queued": "cyan",
}
_HEALTH = {"fault": "bold red", "warning": "yellow", "note": "", "ok": "green"}
_HEALTH_INDENT = 23


@dataclass(frozen=True)
class Page:
    """What is to be shown, and how wide.

    Attributes:
        root: The data root.
        overview: What was found.
        health: The findings.
        width: Columns.
        trouble: Why what was found is out of date.
        everybody: The runs of all users.
    """

    root: str
    overview: Overview
    health: tuple[Health, ...]
    width: int
    trouble: str = ""
    everybody: bool = False

    def whole(self) -> list[Text]:
        """Return everything, to be shown once."""
        head = [joined(f"Data root: {self.root}")]
        return head + [fitted(line, self.width) for line in [*self._trouble(), *self._body(endings=True)]]

    def live(self, height: int) -> tuple[list[Text], list[Text], list[Text]]:
        """Return head, body and foot of a live screen; the body may be longer than the room between the others.

        There is everything where that fits, else less of each run, of today's spending and of the health.
        """
        counts = self.overview.counts
        words = [f"{counts[state]} {_SHORT.get(state, state)}" for state in (*ORDER, "ended") if counts.get(state)]
        now = both_ends(Text(" · ".join(words) or "nothing is going on"), format_ts(now_us())[11:], self.width)
        head = [self._root(), now, *self._trouble()]
        unlisted = sum(counts.values()) - len(self.overview.runs)
        more = f"… and {unlisted} more: ava status --once" if unlisted > 0 else ""
        foot = [both_ends(Text(more), KEYS, self.width)]
        body = self._body()
        if len(head) + len(body) + len(foot) > height:
            summary = [*self._today(brief=True), *self._health(brief=True)]
            foot = [*summary, *foot] if height >= len(head) + len(summary) + 3 else foot
            room = height - len(head) - len(foot)
            body = self._runs()
            body = body if len(body) <= room else self._runs(brief=True)
        cut = [[fitted(line, self.width) for line in part] for part in (head, body, foot)]
        return cut[0], cut[1], cut[2]

    # -- parts --------------------------------------------------------------------------------------------------------

    def _root(self) -> Text:
        """Return the line that names the data root; of a long path the end tells most."""
        line = f"Data root: {_plain(self.root)}"
        if len(line) > self.width:
            line = "Data root: …" + line[len(line) - self.width + len("Data root: …") :]
        return joined((line, "bold"))

    def _trouble(self) -> list[Text]:
        lines = wrapped(_plain(f"! {self.trouble}"), self.width).split("\n") if self.trouble else []
        return [joined((line, "bold red")) for line in lines[:MOST_TROUBLE]]

    def _body(self, *, endings: bool = False) -> list[Text]:
        parts = (self._runs(endings=endings), list(self._today()), list(self._health()))
        return [line for part in parts if part for line in (Text(), *part)][1:]

    def _runs(self, *, brief: bool = False, endings: bool = False) -> list[Text]:
        """Return the runs; an ended one in a line, or all that there is to say with `endings`."""
        runs, words = self.overview.runs, others_words(self.overview.others)
        others = [joined((f"{words} `ava status --all` shows them.", "dim"))] if words else []
        if not runs:
            return [] if self.trouble else [Text(NO_RUNS), *others]
        unended = [run for run in runs if not run.row.ended]
        ended = [run for run in runs if run.row.ended]
        lines = [line for run in unended for line in (self._brief(run) if brief else self._full(run))]
        if unended and ended and not brief:
            lines.append(Text())
        if ended:
            lines.append(joined(("Ended within the last hour:", "bold")))
        lines += [line for run in ended for line in (self._full(run) if endings else [self._ending(run)])]
        return lines + others

    def _today(self, *, brief: bool = False) -> Iterator[Text]:
        if not brief:
            yield joined(("Today (UTC):", "bold"))
        for budget in self.overview.budgets:
            yield Text.assemble("Today: " if brief else "  ", self._budget(budget))

    def _budget(self, budget: Budget) -> Text:
        held = f", {format_usd(budget.held)} held" if budget.held else ""
        over = "; nothing more is spent today" if budget.spent + budget.held >= budget.cap else ""
        whose = joined(budget.whose)
        whose.align("left", WHOSE_CHARS)
        drawn = bar(budget.spent, budget.cap, max(8, min(self.width // 5, self.width - 64)), budget.held)
        return Text.assemble(
            whose, " ", drawn, f" {format_usd(budget.spent)} of {format_usd(budget.cap)} spent{held}{over}"
        )

    def _health(self, *, brief: bool = False) -> Iterator[Text]:
        if brief:
            found = sorted(self.health, key=lambda one: WORST_FIRST.index(one.state) if one.state in _BAD else 9)
            state: State = found[0].state if found[0].state in _BAD else "ok"
            words = "".join(f" · {one.short}" for one in found if one.short)
            yield joined(("Health: ", "bold"), (state, _HEALTH[state]), words)
            return
        yield joined(("Health (ava doctor tells more):", "bold"))
        for one in self.health:
            text, *more = wrapped(_plain(one.text), max(self.width - _HEALTH_INDENT, 20)).split("\n")
            yield joined("  ", (f"{one.state:<8}", _HEALTH[one.state]), f"{one.name:<12} {text}")
            yield from (joined(" " * _HEALTH_INDENT + line.strip()) for line in more)

    # -- runs ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _state_widths(self) -> tuple[int, int]:
        """The columns of the longest state, and of the longest where runs are brief."""
        brief = (_SHORT.get(run.state, run.state) for run in self.overview.runs if not run.row.ended)
        return max(len(run.state) for run in self.overview.runs), max(map(len, brief), default=0)

    def _full(self, run: RunView) -> Iterator[Text]:
        """Yield all that there is to say of a run."""
        row = run.row
        ended = f", ended {clock(row.ended_us)}" if row.ended_us is not None else ""
        yield self._head(run, f", in {row.group_id}" if row.group_id else "")
        yield joined(f"  asked {clock(row.created_us)}{ended}: {run.task}")
        if run.state in (WAITING, EXPIRED):
            yield joined(f"  {row.pending_id}, {_terms(run)}")
            if self._can_decide(run):
                yield joined(f"  ava approve {row.pending_id}, or ava reject {row.pending_id}")
            return
        if run.activity:
            yield joined(f"  {run.activity}")
        if row.ended and row.started_us is not None and run.caps:
            yield joined("  " + " · ".join(cap_text(cap) for cap in run.caps))
        elif not row.ended and run.state != "queued":
            yield from self._bars(run.caps)
        words = run.wait.for_people() if run.wait is not None else why_ended(run)
        for line in wrapped(_plain(words), self.width - GAP).split("\n") if words else ():
            yield joined("  " + line)

    def _brief(self, run: RunView) -> Iterator[Text]:
        """Yield a run in a line or two."""
        if run.state in (WAITING, EXPIRED):
            how = "ava approve " if self._can_decide(run) else ""
            yield self._head(run, f" · {run.task}", brief=True)
            yield joined(f"  {how}{run.row.pending_id} · {_terms(run)}")
            return
        what = run.wait.for_people(brief=True) if run.wait is not None else run.activity
        yield self._head(run, _task_of_nameless(run) + (f" · {what}" if what else ""), brief=True)
        if run.state != "queued":
            yield from self._bars(run.caps, brief=True)

    def _ending(self, run: RunView) -> Text:
        """Return an ended run in a line: its duration and cost, and why it ended if that was not well."""
        cost = "free" if run.free else format_usd(run.row.cost_micros)
        took = format_duration(run.row.active_us / 1e6)
        figures = "" if run.row.started_us is None else f"{took} · {cost} · "
        why = why_ended(run) if run.state not in NOT_APPROVED else ""
        more = _task_of_nameless(run) + (f" · {why}" if why else "")
        return self._head(run, more, before=f"{clock(run.row.ended_us)} · {figures}")

    def _can_decide(self, run: RunView) -> bool:
        return run.state != EXPIRED and not self.everybody

    def _head(self, run: RunView, more: str, *, before: str = "", brief: bool = False) -> Text:
        row = run.row
        name = f" ({row.name})" if row.name else ""
        owner = f" of {row.user_id}" if self.everybody else ""
        style = _STATES.get(run.state, "" if run.state == "success" else "yellow" if row.ended else "dim")
        state = (_SHORT.get(run.state, run.state) if brief else run.state).ljust(self._state_widths[brief])
        return joined((f"{row.id}  ", "bold"), (f"{state}  ", style), f"{before}{row.role}{name}{owner}{more}")

    def _bars(self, caps: Sequence[Cap], *, brief: bool = False) -> Iterator[Text]:
        """Yield the caps' figures with their bars: beside each other where there is room, and where it is brief."""
        if not caps:
            return
        figures = [cap_text(cap, brief=brief) for cap in caps]
        column = (self.width - GAP * len(caps)) // len(caps)
        longest = max(8 if brief else 13, *map(len, figures))  # figures of several runs stand below each other
        beside = brief or column - longest > BESIDE
        width = column - longest - 1 if beside else column
        bars = [bar(cap.used, cap.most, width, cap.held) if cap.most > 0 else Text() for cap in caps]
        if beside:
            pairs = zip(figures, bars, strict=True)
            yield _row((Text.assemble(f"{figure:<{longest}} ", drawn) for figure, drawn in pairs), column)
        else:
            yield _row(map(Text, figures), column)
            yield _row(bars, column)


def cap_text(cap: Cap, *, brief: bool = False) -> str:
    """Return how much of a cap is used: `turn 4/20`, or `turn 4` where it is brief."""

    def of(used: str, most: str) -> str:
        return used if brief else f"{used}/{most}"

    match cap.name:
        case "seconds":
            return f"{of(f'{cap.used:.0f}', f'{cap.most:g}')} s"
        case "turns":
            return f"turn {of(f'{cap.used}', f'{cap.most}')}"
        case "tool_calls":
            return f"{of(f'{cap.used}', f'{cap.most}')} call{'' if brief and cap.used == 1 else 's'}"
        case "tokens":
            return f"{of(short_number(cap.used), short_number(cap.most))} tok"
        case _ if cap.most <= 0:
            return "free"
        case _:
            return of(format_usd(int(cap.used)), format_usd(int(cap.most), exact=True))


def short_number(number: float) -> str:
    """Return a number of tokens in few characters: `840`, `12k`, `1.2M`."""
    if number < 1_000:
        return f"{number}"
    return f"{number / 1_000:.0f}k" if number < 999_500 else f"{number / 1e6:.1f}M"


def bar(used: float, most: float, width: int, held: float = 0) -> Text:
    """Return a bar: what is used, what is held, and the rest; empty only at nothing, full only at the cap."""
    width = max(width, 1)
    full, reserved, empty = _BLOCKS if _can_write("".join(_BLOCKS)) else _PLAIN
    filled = _part(used, most, width)
    both = max(_part(used + held, most, width), min(filled + 1, width) if held else filled)
    share = used / most if most > 0 else 1.0
    style = "red" if share >= 1 else "yellow" if share >= NEARLY else "green"
    return Text.assemble((full * filled, style), (reserved * (both - filled), style), (empty * (width - both), "dim"))


def _part(amount: float, most: float, width: int) -> int:
    if most <= 0 or amount >= most:
        return width
    return max(1, min(round(width * amount / most), width - 1)) if amount > 0 else 0


def _can_write(chars: str) -> bool:
    try:
        chars.encode(getattr(sys.__stdout__, "encoding", None) or "ascii")  # textual replaces sys.stdout
    except UnicodeError:
        return False
    return True


def _row(cells: Iterable[Text], column: int) -> Text:
    row = Text()
    for cell in cells:
        cell.truncate(column, overflow="ellipsis", pad=True)
        row.append(" " * GAP).append_text(cell)
    row.rstrip()
    return row


def _terms(run: RunView) -> str:
    """Return what a proposal would cost at most, and until when it can be approved."""
    if run.state == EXPIRED:
        return f"expired {clock(run.expires_us)}"
    if not run.caps:
        return f"expires {clock(run.expires_us)}"
    most = "free" if run.free else f"at most {format_usd(int(run.caps[-1].most), exact=True)}"
    return f"{most} and {run.caps[0].most / 60:g} min, expires {clock(run.expires_us)}"


def _task_of_nameless(run: RunView) -> str:
    return "" if run.row.name else f' "{one_line(run.task, NAME_CHARS)}"'


def why_ended(run: RunView) -> str:
    """Return why a run ended; nothing for a success."""
    return _plain(run.row.stop_reason or "") if run.state != "success" else ""


def clock(ts_us: int | None) -> str:
    """Return a local time as `14:05`, with its day where that is not today."""
    if ts_us is None:
        return "?"
    day, _, time = format_ts(ts_us).partition(" ")
    return time[:5] if day == format_ts(now_us()).partition(" ")[0] else f"{day} {time[:5]}"


# -- lines ------------------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Return any text as one line without what could steer a terminal."""
    return clean(text)[0].replace("\n", " ").replace("\t", " ")


def joined(*parts: str | tuple[str, str]) -> Text:
    """Return a line of parts, each a text, or a text and its style; nothing in them is markup or steers a terminal."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        line.append(_plain(words), style or None)
    return line


def fitted(line: Text, width: int) -> Text:
    """Return a line that takes at most so many columns; where something is missing it ends with `…`."""
    short = line.copy()
    short.truncate(width, overflow="ellipsis")
    return short


def both_ends(left: Text, right: str, width: int) -> Text:
    """Return a line with something at its right end; the left is cut where both do not fit."""
    short = fitted(left, max(width - len(right) - 1, 1))
    return Text.assemble(short, " " * max(width - short.cell_len - len(right), 1), (right, "dim"))
