"""A Postgres server that holds the log: connections that come back after a loss, and one writer at a time.

A transaction that writes holds an advisory lock of the database until its end, so writers form a queue over all
processes. Its statements are sent without waiting for each answer; the answers are awaited where one is needed, and at
the latest before the commit is acknowledged. Other processes hear of commits by NOTIFY, and look from time to time.

The words of the text index come from SQLite's own tokenizer, so that both databases find the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, LiteralString, cast

import psycopg

from ava_audit.database import NEWEST_ENTRY, Busy, Commit, FoundRows, IndexQuery, IndexRow, Values
from ava_audit.errors import OutcomeUnknown
from ava_audit.postgres.session import STATE, LogPlace, LogState, dial, first_line, passes

log = logging.getLogger("ava.store")


_COMMENT = re.compile(r"--[^\n]*")
_TEXT = re.compile(r"('(?:[^']|'')*')")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\?"), "%s"),
    (re.compile(r"(?<!:):([a-z_]+)"), r"%(\1)s"),
    (re.compile(r"(?<![\w)])(\s*)\+(?=[a-z_])"), r"\1"),  # hints for SQLite's planner
    (re.compile(r"\bCROSS JOIN (\w+(?: AS \w+)?) ON\b"), r"JOIN \1 ON"),
    (re.compile(r"\bLIKE\b"), "ILIKE"),  # SQLite's LIKE ignores case
)


@lru_cache(maxsize=2_000)
def translate(sql: str) -> str:
    """Return a statement with psycopg's placeholders, and without hints for SQLite's planner."""
    parts = _TEXT.split(_COMMENT.sub("", sql).replace("%", "%%"))
    for place in range(0, len(parts), 2):  # the others are texts in quotes
        for pattern, by in _RULES:
            parts[place] = pattern.sub(by, parts[place])
    return "".join(parts)


LOCK = 0x61_76_61
CHANNEL = "ava_log"
_NOTICE = re.compile(r"(\d+)(?: (\d+) ([A-Za-z ]*))?")
"""A commit as other processes are told of it: the newest entry; from 0.2.0 on also the newest before, and the types."""
COMPARE_S = 1.0
"""How often a process that only reads compares the log with the newest entry that it knows."""
COMMIT = "COMMIT"
FETCHED = 50
"""Rows that a stream fetches at once; a row may have 2 MB."""
HELD_S = 10.0
"""How long a process that was stopped or unplugged inside a transaction keeps the others from writing."""
_END_STUCK = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = %s AND datname = current_database()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND wait_event IN ('ClientRead', 'ClientWrite')
    AND greatest(state_change, query_start) < clock_timestamp() - %s * interval '1 second'
"""
_INSERT = re.compile(r"(INSERT INTO .* VALUES )(\([?, ]+\))( ON CONFLICT .*)?")
TOGETHER = 64
"""Rows that one statement inserts; none of them has the key of another."""
_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")
PAUSE_S = 0.2
SETTLE_S = 20.0
"""How long the fate of a commit is looked for after the connection was lost."""
REWRITE_BYTES = 100_000_000
"""Tables of a larger database are not rewritten after an erasure, because writers would wait too long."""


class PostgresDatabase:
    """A connection as `Database` describes it; it is opened when it is first needed, and again after a loss."""

    words_key = "words.entry"
    words_in_order = False

    def __init__(self, conninfo: Mapping[str, Any], place: LogPlace, *, readonly: bool = False) -> None:
        self._conninfo = conninfo
        self._place = place
        self._readonly = readonly
        self._listens = False
        self._conn: psycopg.Connection[Any] | None = None
        self._pipeline: Any = None
        self._spent = False
        self._version = 0
        self._newest: tuple[int, bytes] | None = None
        self._seen = -1
        self._changes = 0
        self._compared_s = float("-inf")
        self._streams = 0
        self._tokenizer: Tokenizer | None = None

    # -- the connection -----------------------------------------------------------------------------------------------

    def _open_connection(self) -> psycopg.Connection[Any] | None:
        """Return the connection as long as it is open; else None."""
        if self._conn is None or self._conn.closed:
            return None
        return self._conn

    @property
    def lost(self) -> bool:
        return self._spent or self._open_connection() is None

    @property
    def in_transaction(self) -> bool:
        conn = self._open_connection()
        if conn is None:
            return False
        in_progress = (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.ACTIVE)
        return conn.info.transaction_status in in_progress

    @property
    def socket(self) -> int | None:
        conn = self._open_connection()
        return None if conn is None else conn.fileno()

    def open(self) -> psycopg.Connection[Any]:
        """Return the connection, a new one after a loss. Raises psycopg.Error: it cannot be made; LogForked."""
        conn = self._open_connection()
        if conn is not None:
            return conn
        self._conn = None
        self._seen = -1
        channel = CHANNEL if self._listens else None
        conn = dial(self._conninfo, self._place, readonly=self._readonly, channel=channel)
        self._conn = conn
        return conn

    def listen(self) -> None:
        """Hear of commits, from the next opening on."""
        self._listens = True

    def interrupt(self) -> None:
        """Stop the running statement without waiting. The connection is not used again: the order may arrive late."""
        self._spent = True
        conn = self._open_connection()
        if conn is not None:
            threading.Thread(target=_cancel, args=(conn,), name="ava-cancel", daemon=True).start()

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
        if self._tokenizer is not None:
            self._tokenizer.close()

    # -- statements ---------------------------------------------------------------------------------------------------

    def execute(self, sql: str, values: Values = (), /) -> FoundRows:
        """Run a statement; a query for a text that the database cannot have finds nothing."""
        conn = self._connection_for_statements()
        if sql.lstrip().startswith("SELECT"):
            values = findable(values)
        return cast("FoundRows", conn.execute(cast("LiteralString", translate(sql)), values))

    def _connection_for_statements(self) -> psycopg.Connection[Any]:
        """Return the connection; in a pipeline the one that it began with, even if that was lost meanwhile."""
        if self._pipeline is None:
            return self.open()
        assert self._conn is not None
        return self._conn

    def run_script(self, script: str) -> None:
        self.open().execute(cast("LiteralString", script))

    def executemany(self, sql: str, values: Iterable[Sequence[object]], /) -> None:
        """Run a statement for each of some values; one statement inserts many rows, if it only inserts."""
        conn = self._connection_for_statements()
        insert = _INSERT.fullmatch(sql)
        if insert is None:
            conn.cursor().executemany(cast("LiteralString", translate(sql)), values)
            return
        for rows in _batches(values):
            several = f"{insert[1]}{', '.join([insert[2]] * len(rows))}{insert[3] or ''}"
            conn.execute(cast("LiteralString", translate(several)), [*chain.from_iterable(rows)])

    def stream(self, sql: str, values: Values = (), /) -> Iterable[Any]:
        """Yield the rows of a SELECT in portions. The end of the transaction closes a stream that was left early."""
        if self._pipeline is not None or not self.in_transaction:
            return self.execute(sql, values)
        return self._portions(sql, values)

    def _portions(self, sql: str, values: Values) -> Iterator[Any]:
        assert self._conn is not None
        self._streams += 1
        name = f"stream_{self._streams}"
        declare = cast("LiteralString", f"DECLARE {name} NO SCROLL CURSOR FOR {translate(sql)}")
        psycopg.ClientCursor(self._conn).execute(declare, findable(values))
        while True:
            rows = self.execute(f"FETCH {FETCHED} FROM {name}").fetchall()
            yield from rows
            if len(rows) < FETCHED:
                break
        self.execute(f"CLOSE {name}")

    # -- transactions -------------------------------------------------------------------------------------------------

    def begin_read(self) -> None:
        """Begin a transaction that sees one state of the log; a connection that was cut meanwhile is replaced."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        try:
            self.open().execute(begin)
        except psycopg.OperationalError:
            if not self.lost:
                raise
            self.open().execute(begin)

    def begin_write(self, ask: Callable[[], None] | None = None, /) -> None:
        known = self._place.newest
        try:
            self._place.refuse_moved()
            conn = self.open()
            self._pipeline = conn.pipeline()
            self._pipeline.__enter__()
            conn.execute("BEGIN")
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            cursor = conn.execute(STATE, known[:1])
            if ask is not None:
                ask()
            row = cursor.fetchone()
            state = LogState(*row) if row is not None else LogState("", 0, None, None, None)
            if not self._place.has(state, known):
                self.rollback()
                self._place.meet(self.open())
                raise Busy("the Postgres server had another log for a moment")
            self._version = state.version
            self._newest = None
            head = 0
            if state.seq is not None and state.hash is not None:
                head = state.seq
                self._newest = head, state.hash
                self._place.know(*self._newest)
        except psycopg.Error as error:
            self.rollback()
            if not passes(error, self.lost):
                raise
            if isinstance(error, psycopg.errors.LockNotAvailable):
                self.end_stuck_writer()
            elif self.lost:
                time.sleep(PAUSE_S)
            raise Busy(f"the Postgres server is not available ({first_line(error)})") from error
        except BaseException:
            self.rollback()
            raise
        if head != self._seen:
            self._changes += 1
        self._seen = head

    def end_stuck_writer(self) -> None:
        """End the session of a silent writer: no timeout of the server covers it, as a pipeline counts as active."""
        with contextlib.suppress(psycopg.Error):  # it is another user's, or gone by now
            if self.open().execute(_END_STUCK, (LOCK, HELD_S)).fetchall():
                log.warning("a writer that was silent for %g s was disconnected, so that others can write", HELD_S)

    def begin_bulk(self) -> None:
        self.begin_write()
        self._leave()
        self.execute("SET LOCAL statement_timeout = 0")
        self.execute("SET LOCAL idle_in_transaction_session_timeout = 0")

    def commit(self, commit: Commit | None = None, /) -> None:
        assert self._conn is not None
        wrote: Commit | None = None
        if commit is not None and commit.head > commit.before:
            wrote = commit
        if wrote is not None:
            self._conn.execute(cast("LiteralString", f"SELECT pg_notify('{CHANNEL}', '{_notice_of(wrote)}')"))
        try:
            done = self._conn.execute(cast("LiteralString", COMMIT))
            self._leave()
        except psycopg.Error as error:
            if not self.lost and _is_refusal(error):
                raise
            self._conn.close()
            self._settle(wrote, error)
        else:
            if done.statusmessage != "COMMIT":
                self._conn.close()
                raise psycopg.errors.InFailedSqlTransaction("the transaction had failed before its end")
        if wrote is not None:
            self._seen = wrote.head
            self._place.know(wrote.head, wrote.hash, wrote.calls)

    def _settle(self, commit: Commit | None, error: psycopg.Error) -> None:
        """Return if a commit was done whose answer was lost: the lock is free once the server ended it, either way."""
        self.rollback()
        end = time.monotonic() + SETTLE_S
        while commit is not None and time.monotonic() < end:
            try:
                self.begin_write()
                row = self.execute("SELECT hash FROM events WHERE seq = ?", (commit.head,)).fetchone()
            except (Busy, psycopg.Error):
                continue
            finally:
                self.rollback()
            if row is not None and row[0] == commit.hash:
                return
            raise Busy(f"the connection to Postgres was lost before a commit ({first_line(error)})") from error
        text = "the connection to Postgres was lost during a commit; it may or may not have been written"
        raise OutcomeUnknown(f"{text}; look before you try again") from error

    def rollback(self) -> None:
        """End the transaction without writing; errors do not matter.

        After a failed statement the connection is closed: the server has skipped those that were sent after it, and
        psycopg would take some of them for prepared.
        """
        with contextlib.suppress(psycopg.Error):
            self._leave()
        conn = self._open_connection()
        if conn is None:
            return
        try:
            status = conn.info.transaction_status
            if status == psycopg.pq.TransactionStatus.INERROR:
                conn.close()
            elif status != psycopg.pq.TransactionStatus.IDLE:
                conn.execute("ROLLBACK")
        except psycopg.Error:
            conn.close()

    def _leave(self) -> None:
        """Leave the pipeline. Raises psycopg.Error: a statement failed in it, or the connection was lost."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)

    def schema_version(self) -> int:
        if self._pipeline is not None:
            return self._version
        if not self.execute("SELECT to_regclass('ava.meta') IS NOT NULL").fetchone()[0]:
            return 0
        row = self.execute("SELECT version FROM meta").fetchone()
        return 0 if row is None else int(row[0])

    def newest_entry(self) -> tuple[int, bytes] | None:
        """Return the newest entry as it was when the transaction began."""
        if self._pipeline is not None:
            return self._newest
        row: tuple[int, bytes] | None = self.execute(NEWEST_ENTRY).fetchone()
        return row

    def data_version(self) -> object:
        return self._changes

    def sizes(self) -> dict[str, int]:
        """Return bytes on the disk: the server's write-ahead log is that of all its databases."""
        (size,) = self.execute("SELECT pg_database_size(current_database())").fetchone()
        return {"database": int(size)}

    def empty_log(self, rewrite: bool, /) -> bool:
        """Rewrite the tables that had the erased text; the write-ahead log is the server's own concern."""
        if rewrite:
            sizes = "pg_total_relation_size('events') + pg_total_relation_size('words')"
            (size,) = self.execute(f"SELECT {sizes}").fetchone()
            full = "(FULL)" if size <= REWRITE_BYTES else ""
            self.execute("SET statement_timeout = 0")
            try:
                for table in ("events", "words", "live"):
                    self.execute(f"VACUUM {full} {table}")
            finally:
                self.execute("SET statement_timeout = '30s'")
        return True

    def stop_at(self, time_s: float | None, /) -> None:
        """Do nothing: only queries in the thread of the event loop need it, and here are none."""

    def accept_any_text(self) -> bool:
        """Postgres stores no invalid text."""
        return False

    def commits(self) -> list[Commit]:
        """Return what was heard of, or the newest entry. Raises psycopg.Error; LogForked: it is another log."""
        replaced, conn = self.lost, self.open()
        heard = _drain(conn)
        # What is heard has no hash: the log is compared now and then also where much is heard.
        if heard and not replaced and time.monotonic() < self._compared_s + COMPARE_S:
            return heard
        self._place.meet(conn)
        self._compared_s = time.monotonic()
        return [*heard, Commit(self._place.newest[0]), *_drain(conn)]

    # -- the text index -----------------------------------------------------------------------------------------------

    def add_words(self, rows: Sequence[IndexRow], /) -> None:
        split = [(row, self._split().words(row[-1])) for row in rows]
        added = [(row[0], keys_of(row, words), joined(words)) for row, words in split]
        self.executemany("INSERT INTO words (entry, keys, text) VALUES (?, ?, ?)", added)

    def forget_words(self, row: IndexRow, /) -> None:
        self.execute("UPDATE words SET keys = ?, text = '' WHERE entry = ?", (keys_of(row), row[0]))

    def merge_words(self, _pages: int, /) -> bool:
        """Rewriting the tables does it."""
        return False

    def words_condition(self, query: IndexQuery, near: tuple[int, int] | None = None, /) -> tuple[str, list[object]]:
        return condition(query, self._split(), near)

    def _split(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer()
        return self._tokenizer


def _batches(values: Iterable[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    """Yield rows in batches of `TOGETHER`, then of powers of two: the few statements are prepared once."""
    rest = iter(values)
    while rows := list(islice(rest, TOGETHER)):
        while rows:
            size = 1 << (len(rows).bit_length() - 1)
            yield rows[:size]
            rows = rows[size:]


def findable(values: Values) -> Values:
    """Return values without NUL and lone surrogates, for which the log has U+FFFD: psycopg calls them a failure."""
    if isinstance(values, Mapping):
        return {name: _findable(value) for name, value in values.items()}
    return [_findable(value) for value in values]


def _findable(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        return _UNSTORABLE.sub("\ufffd", value)
    return value


def _is_refusal(error: psycopg.Error) -> bool:
    """Tell whether an error says that a commit was not done; `FATAL` comes after what the server has done."""
    if isinstance(error, psycopg.errors.PipelineAborted):
        return True
    return error.diag.severity_nonlocalized == "ERROR"


def _notice_of(commit: Commit) -> str:
    """Return a commit as it is told to other processes; `_drain` reads it."""
    if commit.types is None:
        return str(commit.head)
    return f"{commit.head} {commit.before} {' '.join(commit.types)}"


def _drain(conn: psycopg.Connection[Any]) -> list[Commit]:
    """Return the commits of which other processes have told this connection."""
    commits: list[Commit] = []
    for notice in conn.notifies(timeout=0):
        match = _NOTICE.fullmatch(notice.payload)
        if match is None:
            continue
        head, before, types = match.groups()
        if before is None:
            commits.append(Commit(int(head)))
        else:
            commits.append(Commit(int(head), int(before), frozenset(types.split())))
    return commits


def _cancel(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.cancel_safe(timeout=5)
    except psycopg.Error as error:
        log.debug("a query could not be stopped: %s", first_line(error))


_PARTS = re.compile("[0-9A-Za-z\x80-\U0010ffff]+")
"""Parts of a text between ASCII characters that are in no word: each is split by itself."""
BLOCK_BITS = 14
"""Each 2**14 entries are a block, and its number is a key of theirs: so the index finds the newest entries alone."""
MOST_BLOCKS = 16
"""The most blocks that a condition names."""
KNOWN_PARTS = 20_000
"""How many parts that are not ASCII are remembered."""
LONGEST_PART = 100
"""Characters of a part that is remembered."""


class Tokenizer:
    """Splits texts into words as the embedded database's text index does. One thread at a time may use it."""

    def __init__(self) -> None:
        self._known: dict[str, list[str]] = {}
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.execute(
            "CREATE VIRTUAL TABLE split USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2')"
        )
        self._db.execute("CREATE VIRTUAL TABLE found USING fts5vocab ('split', 'instance')")

    def words(self, text: str) -> list[str]:
        words: list[str] = []
        for part in _PARTS.findall(text):
            if part.isascii():  # every tokenizer lets only these be parts of words
                words.append(part.lower())
            else:
                words += self._split(part)
        return words

    def _split(self, part: str) -> list[str]:
        words = self._known.get(part)
        if words is None:
            self._db.execute("BEGIN")
            try:
                self._db.execute("INSERT INTO split (rowid, text) VALUES (1, ?)", (part,))
                words = [word for (word,) in self._db.execute("SELECT term FROM found ORDER BY offset")]
            finally:
                self._db.execute("ROLLBACK")
            if len(self._known) >= KNOWN_PARTS:
                self._known.clear()
            if len(part) <= LONGEST_PART:
                self._known[part] = words
        return words

    def close(self) -> None:
        self._db.close()


@lru_cache(maxsize=20_000)
def key_of(column: str, token: str) -> int:
    """Return the number that stands for a token of a column: a hash of 64 bits."""
    digest = hashlib.blake2b(f"{column}:{token}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def keys_of(row: IndexRow, words: Iterable[str] = ()) -> list[int]:
    """Return the keys of a row of the index, with these words as its text."""
    seq, agent, session, user, marks, _text = row
    keys = {key_of("agent", agent), key_of("session", session), key_of("user", user), block_of(seq)}
    keys.update(key_of("marks", mark) for mark in marks.split())
    keys.update(key_of("text", word) for word in words)
    return sorted(keys)


def block_of(seq: int) -> int:
    return key_of("block", str(seq >> BLOCK_BITS))


def joined(words: Iterable[str]) -> str:
    """Return words as the index stores their order: adjacent words are a part of it."""
    return f" {' '.join(words)} "


def condition(query: IndexQuery, tokenizer: Tokenizer, near: tuple[int, int] | None = None) -> tuple[str, list[object]]:
    """Return the SQL condition on `words` for a query, and its values; with `near`, for the blocks of that range."""
    phrases = [tokenizer.words(phrase) for phrase in query.phrases]
    if not all(phrases):  # a phrase without a word is nowhere
        return "1 = 0", []
    needed: set[int] = set()
    for words in phrases:
        needed.update(key_of("text", word) for word in words)
    parts: list[str] = []
    values: list[object] = []
    low, high = near or (0, -1)
    blocks = range((low + 1) >> BLOCK_BITS, (high >> BLOCK_BITS) + 1)
    if len(blocks) == 1:
        needed.add(block_of(high))
    elif 0 < len(blocks) <= MOST_BLOCKS:
        parts.append("words.keys && CAST(? AS bigint[])")
        values.append([key_of("block", str(number)) for number in blocks])
    for column, tokens in query.filters:
        keys = [key_of(column, token) for token in tokens]
        if len(keys) == 1:
            needed.update(keys)
        else:
            parts.append("words.keys && CAST(? AS bigint[])")
            values.append(keys)
    if needed:
        parts.append("words.keys @> CAST(? AS bigint[])")
        values.append(sorted(needed))
    for words in phrases:
        if len(words) > 1:
            parts.append("strpos(words.text, ?) > 0")
            values.append(joined(words))
    return " AND ".join(parts), values
