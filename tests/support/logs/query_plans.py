"""What SQLite does for each statement."""

from __future__ import annotations

from ava_audit.store.connection import SqliteDatabase


class QueryPlans:
    """The statements that a connection runs, and what SQLite does for each of them."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db
        self._seen: list[str] = []
        db.set_trace_callback(self._seen.append)

    def all(self) -> list[str]:
        """Stop watching, and return one line for each step of each statement so far."""
        self._db.set_trace_callback(None)
        asked = [sql for sql in self._seen if sql.startswith(("SELECT", "UPDATE", "INSERT"))]
        assert asked
        return [f"{row[3]} for {sql}" for sql in asked for row in self._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
