"""Reducers: what follows from an event, by addition.

Each takes the connection, the entry's header columns and its fact, and changes the rows of `proposals`, `runs`,
`groups` and `budgets`. They read no clock, no setting and no cap, and nothing of a transcript's content, so that the
projections can be rebuilt from a log whose transcripts have been erased.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ava_audit.errors import StoreUnavailable
from ava_audit.events import (
    TRANSCRIPT_TYPES,
    CostReserved,
    CostUpdate,
    Fact,
    RunClaimed,
    RunEnded,
    SpawnDecided,
    SpawnProposed,
    Usage,
    read_fact,
)
from ava_audit.view import HEADER, loads

PROJECTIONS = ("proposals", "runs", "groups", "budgets")

IndexRow = tuple[int, str, str, str, str, str]
"""A row of the text index: `seq`, then the tokens of agent, session and user, those of type and severity, the text."""


@dataclass(frozen=True)
class Header:
    """The columns of an entry that a reducer may read."""

    seq: int
    ts_us: int
    session_id: str
    agent_id: str
    user_id: str
    type: str
    run_id: str | None
    generation: int | None
    usage: Usage | None
    cost_micros: int | None
    model: str | None


_READ = tuple(field.name for field in fields(Header) if field.name != "usage")


def reduce(db: sqlite3.Connection, header: Header, fact: Fact | None) -> None:
    """Bring the projections up to date with one entry; `fact` is None where a transcript was erased."""
    reducer = _REDUCERS.get(header.type)
    if reducer is not None:
        reducer(db, header, fact)
    if header.generation is not None:
        db.execute("UPDATE runs SET last_us = ? WHERE id = ?", (header.ts_us, header.run_id))


def fold(db: sqlite3.Connection, row: Sequence[Any]) -> None:
    """Bring the projections up to date with an entry as it is stored: the columns of its header, then its content."""
    value: dict[str, Any] = dict(zip(HEADER, row, strict=False))
    # Reducers read nothing of a transcript, so it is not parsed.
    transcript = value["type"] in TRANSCRIPT_TYPES
    fact = None if transcript else read_fact(value["type"], value["v"], row[len(HEADER)])
    usage = None
    if value["input_tokens"] is not None:
        usage = Usage(**{name: value[name] for name in HEADER if name.endswith("_tokens")})
    reduce(db, Header(usage=usage, **{name: value[name] for name in _READ}), fact)


def refold(db: sqlite3.Connection) -> None:
    """Make the projections anew from the whole log, in the caller's transaction; in memory is one entry at a time.

    Raises:
        StoreUnavailable: Nothing follows from an entry; names it.
    """
    for table in PROJECTIONS:
        db.execute(f"DELETE FROM {table}")  # noqa: S608
    transcripts = ", ".join(f"'{name}'" for name in sorted(TRANSCRIPT_TYPES))
    columns = f"{', '.join(HEADER)}, CASE WHEN type IN ({transcripts}) THEN NULL ELSE content END"
    for row in db.execute(f"SELECT {columns} FROM events ORDER BY seq"):  # noqa: S608
        try:
            fold(db, row)
        except (ValueError, TypeError, LookupError, sqlite3.IntegrityError) as error:
            raise StoreUnavailable(
                f"the log could not be brought up to date, and is as it was: nothing follows from its entry {row[0]}"
                f" ({str(error)[:200]}); the ava that wrote it still opens it, and its `ava verify` tells more"
            ) from error


def index_words(db: sqlite3.Connection, rows: Sequence[IndexRow], after: int, upto: int, erased: int) -> bool:
    """Put the words of the entries after `after` up to `upto` into the text index.

    Args:
        db: The writer's connection.
        rows: What to index, made in a reader's thread.
        after: How far the index had come when they were made.
        upto: How far it comes with them.
        erased: How many of these entries had no content then.

    Returns:
        False when the log has moved on in between (another keeper, an erasure), and nothing was done.
    """
    now = db.execute("SELECT seq FROM progress WHERE name = 'words'").fetchone()
    gone = db.execute(
        "SELECT count(*) FROM events WHERE seq > ? AND seq <= ? AND content IS NULL", (after, upto)
    ).fetchone()
    if (now[0] if now else 0) != after or gone[0] != erased:
        return False
    db.executemany("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, ?)", rows)
    db.execute("INSERT OR REPLACE INTO progress (name, seq) VALUES ('words', ?)", (upto,))
    return True


def forget_words(db: sqlite3.Connection, rows: Sequence[IndexRow], merge: bool = True) -> None:
    """Take the text of entries out of the index; what filters find them by stays.

    Args:
        db: The writer's connection.
        rows: Exactly the rows that `index_words` was given for them.
        merge: Rewrite the index, so that the words are gone from its older segments too.
    """
    for row in rows:
        db.execute(
            "INSERT INTO words (words, rowid, agent, session, user, marks, text) VALUES ('delete', ?, ?, ?, ?, ?, ?)",
            row,
        )
        db.execute("INSERT INTO words (rowid, agent, session, user, marks, text) VALUES (?, ?, ?, ?, ?, '')", row[:5])
    if merge:
        db.execute("INSERT INTO words (words) VALUES ('optimize')")


def merge_words(db: sqlite3.Connection, pages: int) -> bool:
    """Go on rewriting the index as one piece, so that forgotten words are gone from its older segments too.

    Args:
        db: The writer's connection.
        pages: About how many pages to write; a negative number begins, a positive one goes on.

    Returns:
        False when nothing is left to rewrite.
    """
    before = db.total_changes
    db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
    return db.total_changes - before >= 2  # as SQLite's own page tells to find out


def erase_entries(db: sqlite3.Connection, rows: Sequence[IndexRow], files: Iterable[str]) -> list[int]:
    """Take the content of entries out of the log and their words out of the index.

    Args:
        db: The writer's connection.
        rows: Those that `index_words` was given for them, or would be.
        files: The files of the mirror in which they stand, or will: these have to be healed.

    Returns:
        The `seq` of those that had content; nothing is erased twice.
    """
    done = db.execute("SELECT seq FROM progress WHERE name = 'words'").fetchone()
    indexed = done[0] if done else 0
    erased: list[int] = []
    for row in rows:
        if db.execute("UPDATE events SET content = NULL WHERE seq = ? AND content IS NOT NULL", row[:1]).rowcount:
            erased.append(row[0])
            if row[0] <= indexed:
                forget_words(db, [row], merge=False)
    db.executemany("INSERT OR REPLACE INTO mirrored (file, bytes) VALUES (?, -1)", [(file,) for file in files])
    return erased


def forget_live(db: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """Remove what ended runs were doing last."""
    db.executemany("DELETE FROM live WHERE run_id = ?", [(run_id,) for run_id in run_ids])


def note_progress(db: sqlite3.Connection, duty: str, seq: int) -> None:
    """Note how far the keeper has come with one of its duties."""
    db.execute("INSERT OR REPLACE INTO progress (name, seq) VALUES (?, ?)", (duty, seq))


def note_mirrored(db: sqlite3.Connection, upto: int, sizes: Mapping[str, int]) -> None:
    """Note that the mirror has every entry up to `upto`, and how long (bytes) the changed files are now.

    A file with erased content stays marked: what was appended may have been read before the erasure.
    """
    db.executemany(
        "INSERT INTO mirrored (file, bytes) VALUES (?, ?)"
        " ON CONFLICT (file) DO UPDATE SET bytes = excluded.bytes WHERE bytes >= 0",
        sizes.items(),
    )
    note_progress(db, "mirror", upto)


def note_healed(db: sqlite3.Connection, file: str, size: int, erasure: int) -> bool:
    """Note how long a healed file is; False when content was erased after the log was read for it.

    Args:
        db: The writer's connection.
        file: The file.
        size: Its length in bytes.
        erasure: The newest `LogErased` when it was read.
    """
    newest = db.execute("SELECT max(seq) FROM events WHERE type = 'LogErased'").fetchone()[0] or 0
    if newest != erasure:
        return False
    db.execute("INSERT OR REPLACE INTO mirrored (file, bytes) VALUES (?, ?)", (file, size))
    return True


def _proposed(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, SpawnProposed):  # of a newer version: the program that wrote it knows what follows
        return
    config = json.dumps(fact.config, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    db.execute(
        "INSERT INTO proposals (pending_id, run_id, user_id, session_id, state, digest, created_us, expires_us)"
        " VALUES (?, ?, ?, ?, 'awaiting_approval', ?, ?, ?)",
        (
            fact.pending_id,
            fact.subagent_id,
            header.user_id,
            header.session_id,
            fact.digest,
            header.ts_us,
            fact.expires_us,
        ),
    )
    db.execute(
        "INSERT INTO runs (id, pending_id, user_id, session_id, role, name, task_id, model, config, config_sha,"
        " retry_of, state, created_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'awaiting_approval', ?)",
        (
            fact.subagent_id,
            fact.pending_id,
            header.user_id,
            header.session_id,
            str(fact.config.get("role")),
            fact.config.get("name"),
            fact.config.get("task_id"),
            str(fact.config.get("model")),
            config,
            hashlib.sha256(config.encode()).hexdigest(),
            fact.retry_of,
            header.ts_us,
        ),
    )


def _said(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    # The first message of a run is its task: known by its place, because its content can be erased.
    db.execute("UPDATE runs SET task_seq = ? WHERE id = ? AND task_seq IS NULL", (header.seq, header.run_id))


def _decided(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, SpawnDecided):  # of a newer version: the program that wrote it knows what follows
        return
    db.execute(
        "UPDATE proposals SET state = ?, decided_us = ?, channel = ?, group_id = ? WHERE pending_id = ?",
        (fact.decision, header.ts_us, fact.channel, fact.group_id, fact.pending_id),
    )
    if fact.decision != "approved":
        return
    # By the key of `runs`: it has no index of `pending_id`, and reading all of it would cost more with every run.
    run_id, before = db.execute(
        "SELECT id, config FROM runs WHERE id = (SELECT run_id FROM proposals WHERE pending_id = ?)",
        (fact.pending_id,),
    ).fetchone()
    config = {**json.loads(before), **fact.changes}
    db.execute(
        "UPDATE runs SET state = 'queued', queued_us = ?, group_id = ?, config = ? WHERE id = ?",
        (
            header.ts_us,
            fact.group_id,
            json.dumps(config, ensure_ascii=False, separators=(",", ":"), sort_keys=True),
            run_id,
        ),
    )
    if fact.group_id is not None:
        db.execute(
            "INSERT INTO groups (id, user_id, cap_micros, timeout_s, created_us) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO NOTHING",
            (fact.group_id, header.user_id, fact.group_max_cost_micros or 0, fact.group_timeout_s, header.ts_us),
        )


def _claimed(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, RunClaimed):  # of a newer version: the program that wrote it knows what follows
        return
    # What the old owner was active ends with its last entry; a clock that was set back counts as no time.
    db.execute(
        "UPDATE runs SET active_us = active_us + max(0, coalesce(last_us - claimed_us, 0))"
        " WHERE id = ? AND generation > 0",
        (header.run_id,),
    )
    db.execute(
        "UPDATE runs SET state = 'running', generation = ?, instance = ?, claimed_us = ?, last_us = ?,"
        " started_us = coalesce(started_us, ?) WHERE id = ?",
        (fact.generation, fact.instance, header.ts_us, header.ts_us, header.ts_us, header.run_id),
    )
    db.execute(
        "UPDATE groups SET started_us = ? WHERE started_us IS NULL AND id = (SELECT group_id FROM runs WHERE id = ?)",
        (header.ts_us, header.run_id),
    )


def _started(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    db.execute("UPDATE runs SET started_seq = ? WHERE id = ?", (header.seq, header.run_id))


def _reserved(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, CostReserved):  # of a newer version: the program that wrote it knows what follows
        return
    _hold(db, (fact.scopes, fact.micros + fact.wrap_micros), *_released(db, header.run_id))
    db.execute(
        "UPDATE runs SET turns = max(turns, ?), in_flight = ?, wrap_micros = ?, wrap_scopes = ? WHERE id = ?",
        (
            fact.turn,
            fact.model_dump_json(include={"turn", "attempt", "scopes", "micros", "max_output", "prompt_tokens"}),
            fact.wrap_micros,
            json.dumps(fact.scopes),
            header.run_id,
        ),
    )


def _settled(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, CostUpdate):  # of a newer version: the program that wrote it knows what follows
        return
    row = db.execute("SELECT in_flight FROM runs WHERE id = ?", (header.run_id,)).fetchone()
    held = loads(row[0]) if row else None
    if held is None or (held["turn"], held["attempt"]) != (fact.turn, fact.attempt):
        return  # of a call that is not in flight (any more): what it cost was booked when it was given up
    cost = header.cost_micros or 0
    for scope in held["scopes"]:
        db.execute(
            "UPDATE budgets SET held_micros = held_micros - ?, spent_micros = spent_micros + ? WHERE scope = ?",
            (int(held["micros"]), cost, scope),
        )
    usage = header.usage or Usage()
    db.execute(
        "UPDATE runs SET in_flight = NULL, cost_micros = cost_micros + ?, uncosted_micros = uncosted_micros + ?,"
        " overrun = max(overrun, ?), tokens = tokens + ?, input_tokens = input_tokens + ?,"
        " output_tokens = output_tokens + ?, cache_read_tokens = cache_read_tokens + ?,"
        " cache_write_tokens = cache_write_tokens + ? WHERE id = ?",
        (
            cost,
            cost if fact.settlement == "unknown" else 0,
            int(fact.overrun),
            fact.tokens,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            header.run_id,
        ),
    )


def _called(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    if header.generation is not None:  # a subagent's call; the orchestrator's calls of our tools carry no claim
        db.execute("UPDATE runs SET tool_calls = tool_calls + 1 WHERE id = ?", (header.run_id,))


def _answered(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    # An answer of ours names a run in its header only when it carried that run's result.
    if header.generation is None and header.run_id is not None:
        db.execute(
            "UPDATE runs SET fetched_us = coalesce(fetched_us, ?) WHERE id = ? AND ended_us IS NOT NULL",
            (header.ts_us, header.run_id),
        )


def _cancelled(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    db.execute("UPDATE runs SET cancel_seq = coalesce(cancel_seq, ?) WHERE id = ?", (header.seq, header.run_id))


def _completed(db: sqlite3.Connection, header: Header, _fact: Any) -> None:
    db.execute("UPDATE runs SET result_seq = ? WHERE id = ?", (header.seq, header.run_id))


def _ended(db: sqlite3.Connection, header: Header, fact: Any) -> None:
    if not isinstance(fact, RunEnded):  # of a newer version: the program that wrote it knows what follows
        return
    row = db.execute("SELECT wrap_micros, wrap_scopes FROM runs WHERE id = ?", (header.run_id,)).fetchone()
    if row is not None and row[0] and row[1]:
        _hold(db, (json.loads(row[1]), -int(row[0])))
    db.execute(
        "UPDATE runs SET state = ?, stop_reason = ?, error_kind = ?, ended_us = ?, wrap_micros = 0, wrap_scopes = NULL,"
        " active_us = max(active_us, ?) WHERE id = ?",
        (fact.status, fact.stop_reason, fact.error_kind, header.ts_us, fact.active_us, header.run_id),
    )


def _released(db: sqlite3.Connection, run_id: str | None) -> Iterator[tuple[Sequence[str], int]]:
    """Yield scopes with how much less is held in them once a run's wrap-up and its call in flight are let go."""
    row = db.execute("SELECT wrap_scopes, wrap_micros, in_flight FROM runs WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        return
    if row[0] and row[1]:
        yield json.loads(row[0]), -int(row[1])
    if row[2] is not None:
        call = json.loads(row[2])
        yield call["scopes"], -int(call["micros"])


def _hold(db: sqlite3.Connection, *changes: tuple[Sequence[str], int]) -> None:
    """Hold so much more in each of the scopes, or less; one statement a scope, whatever it adds up from."""
    change: dict[str, int] = {}
    for scopes, micros in changes:
        for scope in scopes:
            change[scope] = change.get(scope, 0) + micros
    for scope, micros in change.items():
        db.execute(
            "INSERT INTO budgets (scope, held_micros) VALUES (?, ?)"
            " ON CONFLICT (scope) DO UPDATE SET held_micros = held_micros + excluded.held_micros",
            (scope, micros),
        )


_REDUCERS: dict[str, Callable[[sqlite3.Connection, Header, Any], None]] = {
    "SpawnProposed": _proposed,
    "UserMessage": _said,
    "SpawnDecided": _decided,
    "RunClaimed": _claimed,
    "RunStarted": _started,
    "CostReserved": _reserved,
    "CostUpdate": _settled,
    "ToolCall": _called,
    "ToolResult": _answered,
    "CancelRequested": _cancelled,
    "SubagentComplete": _completed,
    "RunEnded": _ended,
}
