"""The turns of a run's conversation, and the tokens that the provider's reports say about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ava_audit.events import OutlinePhase
from ava_server.models.base import ReportedUsage, Segment, ToolTurn, Turn


@dataclass(slots=True)
class HistoryItem:
    """One turn of the conversation.

    Attributes:
        seq: Its entry.
        turn: The complete turn; a request may show less of it.
        phase: The step of the outline at whose end it is dropped.
        written: For an answer, the reported tokens with which the model wrote it.
        report: The report that covers it.
        reported_chars: How many of its characters were shown at that report.
    """

    seq: int
    turn: Turn
    phase: OutlinePhase | None = None
    written: int | None = None
    report: int | None = None
    reported_chars: int = 0


class ReportedTokens:
    """The tokens of the turns, as the provider has reported them for several turns together.

    A report gives the tokens of a whole prompt. Minus the tokens of earlier turns that are shown unchanged in it, it
    gives those of all other turns together.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._shortened: set[int] = set()
        """Reports of which turns were dropped since."""
        self._newest = 0

    def add(self, prompt_tokens: int, items: Iterable[tuple[HistoryItem, Turn]]) -> None:
        """Add the report about a prompt with these turns, as they were shown in it."""
        shown = list(items)
        outdated: set[int | None] = {None, *self._shortened}
        outdated.update(item.report for item, turn in shown if _is_changed(item, turn))
        if all(item.report not in outdated for item, _turn in shown):
            outdated.add(self._newest)
        self._newest += 1
        for item, turn in shown:
            if item.report in outdated:
                self._cover(item, turn)
        self._tokens = {report: tokens for report, tokens in self._tokens.items() if report not in outdated}
        known = sum(self._tokens.values())
        if prompt_tokens < known:  # it contradicts earlier reports: only what all of them together say counts
            self._tokens = {self._newest: known}
            for item, turn in shown:
                self._cover(item, turn)
        else:
            self._tokens[self._newest] = prompt_tokens - known
        self._shortened.clear()

    def _cover(self, item: HistoryItem, turn: Turn) -> None:
        """Count a turn to the newest report."""
        item.report = self._newest
        item.reported_chars = _chars(turn)

    def shorten(self, reports: Iterable[int | None]) -> None:
        """Note that something that these reports cover was dropped."""
        self._shortened.update(report for report in reports if report is not None)

    def all(self) -> set[int]:
        return set(self._tokens)

    def usage(self, shown: Sequence[tuple[HistoryItem, Turn]]) -> ReportedUsage | None:
        """Return what the reports say about a request that shows these turns; None before the first report."""
        if not self._tokens:
            return None
        places: dict[int, list[int]] = {report: [] for report in self._tokens}
        changed = set(self._shortened)
        answers: dict[int, int] = {}
        for place, (item, turn) in enumerate(shown):
            if item.written is not None:
                answers[place] = item.written
            if item.report in places:
                places[item.report].append(place)
                if _is_changed(item, turn):
                    changed.add(item.report)
        first = shown[0][0].report  # the task's: it covers the system prompt too
        segments: list[Segment] = []
        for report in sorted(places, key=lambda report: (report != first, report)):
            if places[report] or report == first:
                segments.append(Segment(self._tokens[report], tuple(places[report]), report in changed))
        return ReportedUsage(tuple(segments), answers)


def _chars(turn: Turn) -> int:
    return len(turn.text) if isinstance(turn, ToolTurn) else 0


def _is_changed(item: HistoryItem, turn: Turn) -> bool:
    return item.report is not None and item.reported_chars != _chars(turn)
