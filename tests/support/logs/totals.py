"""A log in memory whose entries are counted, projections and all."""

from __future__ import annotations

from ava_audit.entries import content_of, content_sha
from ava_audit.events import ErrorOccurred, Event, GuardrailTripped, SessionStart, ToolResult
from ava_audit.projections import Projections
from ava_audit.reducers import Header, reduce
from ava_audit.store.schema import open_in_memory
from ava_audit.totals import EntryCounts, count_new_entries
from ava_audit.view import View
from support.log import Life


class CountedLog:
    """A log in memory that events are put into, projections and all."""

    def __init__(self) -> None:
        self.db = open_in_memory()
        self._tables = Projections(self.db)
        self.head = 0

    def close(self) -> None:
        """Close the database."""
        self.db.close()

    def add(self, *events: Event) -> None:
        """Write events as the store does, without its checks."""
        for event in events:
            self.head += 1
            run_id = event.fence.run_id if event.fence else event.run_id
            generation = event.fence.generation if event.fence else None
            content = content_of(event.fact)
            self.db.execute(
                "INSERT INTO events (seq, ts_us, session_id, agent_id, user_id, type, v, run_id, generation, model,"
                " duration_ms, content, content_sha, hash) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, x'00')",
                (
                    self.head, self.head, *event.who[:3], event.fact.type, run_id, generation, event.model,
                    event.duration_ms, content.decode(), content_sha(content),
                ),
            )  # fmt: skip
            header = Header(
                self.head, self.head, event.who.session_id, event.who.user_id, event.fact.type, run_id, generation,
                event.usage, event.cost_micros,
            )  # fmt: skip
            reduce(self._tables, header, event.fact)
        self._tables.flush()

    def erase(self, type_name: str) -> None:
        """Erase the content of all entries of a type."""
        self.db.execute("UPDATE events SET content = NULL WHERE type = ?", (type_name,))

    @property
    def view(self) -> View:
        """The log as queries see it."""
        return View(self.db)


def tool_result(life: Life, tool: str = "read_file", *, success: bool = True) -> Event:
    """Return the result of a call that took 40 ms."""
    return life.entry(ToolResult(tool=tool, success=success, output="what it brought"))._replace(duration_ms=40)


def eventful_run(run_id: str) -> list[Event]:
    """A run that is going on, in which tools were called, a guardrail spoke and a call failed."""
    life = Life(run_id)
    return [
        Event(life.proposal().who, SessionStart(transport="stdio")),
        life.proposal(), life.task(), life.approval(), life.claim(),
        life.reservation(), life.settlement(), tool_result(life), tool_result(life, success=False),
        life.entry(GuardrailTripped(guardrail="same_call", action="told")),
        life.entry(ErrorOccurred(error="what went wrong", kind="timeout")),
    ]  # fmt: skip


def count_up(log: CountedLog, entry_counts: EntryCounts) -> EntryCounts:
    """Count what has come since the last time, and return the counts."""
    entry_counts.add(count_new_entries(log.view, entry_counts))
    return entry_counts
