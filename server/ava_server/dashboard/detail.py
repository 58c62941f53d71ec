"""One run in the dashboard: its task, steps, tools, cost and result; and its entries in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.events import ToolCall
from ava_audit.units import format_ts, now_us
from ava_roles.wrap import add_bars
from ava_server.approval.proposals import Pending, pending_proposal, spawn_limits, texts_of
from ava_server.cli.results import cost_text, drawn_result
from ava_server.cli.run_screens import asked_lines, decided_lines
from ava_server.cli.status.page import folded, joined, why_ended
from ava_server.render.entries import BOOKKEEPING, Step, compact, entry_words, is_trouble, recent_steps
from ava_server.render.run_view import RunView, cost_of, run_answer, view_run
from ava_server.runs.extension import WaitingExtension, waiting_extension

if TYPE_CHECKING:
    from ava_audit.entries import Entry
    from ava_audit.view import View
    from ava_server.budget.run_config import Texts
    from ava_server.config.settings import Settings
    from ava_server.dashboard.live import LivePage
    from ava_server.render.run_view import Processes

STEPS, ENTRIES, LINE_CHARS = 100, 1_000, 1_000
"""Actions and log entries of one run that are shown, the newest; and characters of an entry."""
_DECIDED = ("SpawnDecided", "ExtensionDecided")


@dataclass(frozen=True)
class RunDetail:
    """Everything about a run that its screen shows.

    `texts` is what was asked, None where it was erased; `waiting` is the proposal that waits, or what the run asks for.
    """

    run: RunView
    texts: Texts | None
    decided: tuple[Entry, ...]
    steps: tuple[Step, ...]
    tools: Counter[str]
    waiting: Pending | WaitingExtension | None


def read_detail(view: View, run_id: str, processes: Processes, settings: Settings, *, served: bool) -> RunDetail | None:
    """Return a run with everything that its screen shows. Blocking."""
    row, now = view.run(run_id), now_us()
    if row is None:
        return None
    run = view_run(view, row, processes, now, served=lambda: served, task=True)
    calls = (entry.fact for entry in view.entries(run_id, 0, ("ToolCall",)) if entry.generation is not None)
    proposal = pending_proposal(view, row, spawn_limits(settings, row.user_id), now)
    extension = waiting_extension(view, row, now)
    return RunDetail(
        run,
        texts_of(view, row),
        tuple(view.entries(run_id, 0, _DECIDED)),
        recent_steps(view, run_id, STEPS),
        Counter(compact(fact.tool, 40) for fact in calls if isinstance(fact, ToolCall)),
        proposal if isinstance(proposal, Pending) else extension if isinstance(extension, WaitingExtension) else None,
    )


def detail_lines(detail: RunDetail, page: LivePage) -> Iterator[Text]:
    run, answer = detail.run, run_answer(detail.run)
    row, width = run.row, page.width
    words = run.wait.for_people() if run.wait is not None else why_ended(run)
    yield from folded("\n".join(filter(None, (run.activity, words))), width)
    if row.started_us is not None:
        yield from page.bars(run.caps)
    yield Text()
    yield from folded("\n".join(asked_lines(row, detail.texts, False, width)), width)
    if isinstance(detail.waiting, Pending):
        yield from _titled("What would start", f"{detail.waiting.message}\n\n{detail.waiting.approval_line}", width)
    elif run.caps:
        yield from _titled("Approval", "\n".join(decided_lines(row, run.state, detail.decided, False)), width)
    if isinstance(detail.waiting, WaitingExtension):
        yield from _titled("It asks for more", detail.waiting.message, width)
    if row.started_us is not None:
        cost = cost_text(answer) if row.ended else cost_of(run)
        called = ", ".join(f"{tool} {count}" for tool, count in detail.tools.most_common()) or "none"
        yield from folded(f"Cost: {cost}\nTools called: {called}", width)
        yield from _steps(detail, page)
    if run.wait is not None and run.wait.question is not None:
        yield from _titled("It asks (s answers)", add_bars(run.wait.question.untrusted), width)
    if row.ended:
        yield Text()
        yield joined(("Result", "bold"))
        for line in drawn_result(answer, width, brief=True).split("\n"):
            yield Text.from_ansi(line)


def _steps(detail: RunDetail, page: LivePage) -> Iterator[Text]:
    yield Text()
    more = sum(detail.tools.values()) - len(detail.steps)
    yield joined((f"Steps: turn {detail.run.row.turns}", "bold"), f" ({more} earlier ones: l)" if more > 0 else "")
    yield from (page.step_line(step) for step in detail.steps)


def _titled(title: str, text: str, width: int) -> Iterator[Text]:
    yield Text()
    yield joined((title, "bold"))
    yield from folded(text, width)


@dataclass(frozen=True)
class LogPart:
    """Entries of a run as lines, each with whether it reports trouble, and the last `seq` that was read."""

    lines: tuple[tuple[str, bool], ...]
    upto: int


def read_log(view: View, run_id: str, after: int) -> LogPart:
    """Return what a run has in the log after an entry, without the bookkeeping. Blocking."""
    entries = view.entries(run_id, after)
    shown = [entry for entry in entries if entry.type not in BOOKKEEPING][-ENTRIES:]
    lines = tuple(
        (f"{format_ts(entry.ts_us)[11:]} {entry_words(entry)[:LINE_CHARS]}", is_trouble(entry)) for entry in shown
    )
    return LogPart(lines, entries[-1].seq if entries else after)


def log_lines(lines: tuple[tuple[str, bool], ...], width: int) -> Iterator[Text]:
    """Entries that report trouble are shown whole."""
    for line, trouble in lines:
        if not trouble:
            yield joined(line)
            continue
        yield from folded(line, width, "red")
