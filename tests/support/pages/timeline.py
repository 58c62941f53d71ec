"""A log in memory whose run is drawn on the page of a run."""

from __future__ import annotations

from collections.abc import Iterable

from ava_audit.entries import content_of
from ava_audit.events import CostReserved, CostUpdate, Fact, ToolCall, ToolResult
from ava_audit.store.schema import open_in_memory
from ava_audit.view import View
from ava_server.web.timeline import Item, Place, TimelinePage, read_page

RUN, OTHER = "S-aaaaaa", "S-bbbbbb"


def write_failed_turn(log: TimelineLog, turn: int, path: str = "gone.md") -> None:
    """A turn whose only call fails."""
    log.write(settlement(turn), cost=5)
    log.write(ToolCall(tool="read_file", call_id=f"c{turn}", args={"path": path}))
    log.write(ToolResult(tool="read_file", call_id=f"c{turn}", success=False, output=f"{path} does not exist"))


def write_turn(log: TimelineLog, turn: int) -> None:
    """Write a turn with a call that succeeds."""
    log.write(settlement(turn), cost=5)
    log.write(ToolCall(tool="read_file", call_id=f"c{turn}", args={"path": "a.md"}))
    log.write(ToolResult(tool="read_file", call_id=f"c{turn}", success=True, output="text"))


def settlement(turn: int = 1) -> CostUpdate:
    """Return the cost of a turn."""
    return CostUpdate(turn=turn, attempt=1, settlement="billed", tokens=9, cost_cents=1, reserved_micros=9)


def reservation(turn: int = 1) -> CostReserved:
    """Return what the call of a turn holds."""
    return CostReserved(
        turn=turn, attempt=1, scopes=(), micros=9, wrap_micros=1, prompt_tokens=1, max_output=1, upto_seq=1,
        request_sha="x",
    )  # fmt: skip


class TimelineLog:
    """A log in memory, and what its run has spent."""

    def __init__(self) -> None:
        self.db = open_in_memory()
        self.view = View(self.db)
        self.totals: dict[int, int] = {}
        self.spent = 0
        self._seq = 0

    def close(self) -> None:
        self.db.close()

    def write(
        self,
        fact: Fact | None,
        run_id: str = RUN,
        cost: int | None = None,
        agent: str = RUN,
        *,
        at_s: float | None = None,
        took_ms: int | None = None,
    ) -> int:
        """Append an entry; None is one whose content was erased. Without a time, it is its number in microseconds."""
        self._seq += 1
        content = None if fact is None else content_of(fact).decode()
        name = "ToolResult" if fact is None else fact.type
        at_us = self._seq if at_s is None else round(at_s * 1e6)
        row = (self._seq, at_us, "s", agent, "ben", name, 1, run_id, 1, cost, took_ms, content, b"", b"")
        self.db.execute(
            "INSERT INTO events (seq, ts_us, session_id, agent_id, user_id, type, v, run_id, generation, cost_micros,"
            " duration_ms, content, content_sha, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        if run_id == RUN:
            self.spent += cost or 0
            self.totals[self._seq] = self.spent
        return self._seq

    def grow(self, costs: Iterable[int | None]) -> None:
        """Append a call of a tool for None, else a settled call of the model; each with an entry of another run."""
        for cost in costs:
            self.write(ToolCall(tool="read_file", args={"path": "a"}) if cost is None else settlement(), cost=cost)
            self.write(ToolCall(tool="elsewhere"), OTHER, cost=7)

    def page(self, place: Place) -> TimelinePage:
        return read_page(self.view, RUN, place, self.spent)

    def check(self, items: Iterable[Item]) -> list[int]:
        """Compare the totals of rows with the log, and return the numbers of their entries."""
        numbers = []
        for item in items:
            assert item.total == self.totals[item.seq], item
            numbers.append(item.seq)
        return numbers
