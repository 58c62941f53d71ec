"""The index of words: read without a lock, refused where it is unreadable, and without what was erased."""

from __future__ import annotations

import sqlite3
import string
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.log import tamper_with, write_texts
from support.logs.searches import search_seqs, search_texts, write_at_state

from ava_audit.database import Database, IndexRow
from ava_audit.entries import Entry
from ava_audit.errors import StoreUnavailable
from ava_audit.maintenance import index_new_entries
from ava_audit.projections import index_words, merge_words
from ava_audit.search import LogQuery, index_row
from ava_audit.store.store import Store


@pytest.mark.sqlite_only("holds SQLite's own lock")
async def test_a_search_needs_no_write_lock(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await write_at_state(log, "half indexed", "hello", "hello again")
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            assert await search_texts(log, "hello") == ["hello again", "hello"]
        finally:
            other.close()


@pytest.mark.sqlite_only("the inner tables of SQLite's index")
async def test_reports_an_unreadable_search_index(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await write_at_state(log, "indexed", "hello")
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        other.execute("DELETE FROM words_data")
        other.close()
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await search_texts(log, "hello")
        assert await search_seqs(log, LogQuery()) == [1]


@pytest.mark.sqlite_only("reads the file")
async def test_an_erased_entry_leaves_the_index_but_filters_still_find_it(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await write_texts(log, ["keep this xylophone", "erase that zeppelin"])
        await index_new_entries(log)
        entry = await log.read(lambda view: view.entry(2))
        assert entry is not None

        def erase(db: Database, entry: Entry) -> None:
            db.forget_words(index_row(entry))
            db.execute("UPDATE events SET content = NULL WHERE seq = ?", (entry.seq,))

        await log.maintain(partial(erase, entry=entry))
        pages = -1_000
        while await log.maintain(partial(merge_words, pages=pages)):
            pages = 1_000
        await log.checkpoint()
        assert await search_seqs(log, LogQuery(search="zeppelin")) == []
        assert await search_seqs(log, LogQuery(search="xylophone")) == [1]
        assert await search_seqs(log, LogQuery(agents=("ava",))) == [2, 1]
    raw = (tmp_path / "ava.db").read_bytes()
    assert b"zeppelin" not in raw
    assert b"xylophone" in raw


@pytest.mark.sqlite_only("merges of SQLite's index")
async def test_a_merge_of_the_index_ends_with_erased_words_gone_even_if_entries_are_added_meanwhile(
    log: Store, tmp_path: Path
) -> None:
    letters = string.ascii_lowercase
    vocabulary = [f"{first}{second}{third}quokka" for first in letters for second in letters for third in letters]
    texts = ["zeppelin", *(" ".join(vocabulary[start::701]) for start in range(701))]
    rows: list[IndexRow] = [(seq, "a", "s", "u", "m", text) for seq, text in enumerate(texts, 1)]
    added = len(rows)
    with anyio.fail_after(20):
        await log.maintain(lambda db: index_words(db, rows, 0, ()))
        while await log.maintain(partial(merge_words, pages=-1_000)):
            pass
        await log.maintain(lambda db: db.forget_words(rows[0]))
        pages = -5
        while await log.maintain(partial(merge_words, pages=pages)):
            pages = 5
            new: list[IndexRow] = [(added + 1, "a", "s", "u", "m", "something new")]
            assert await log.maintain(partial(index_words, rows=new, after=added, erased=())) == 1
            added += 1
        await log.checkpoint()
    assert b"zeppelin"[3:] not in (tmp_path / "ava.db").read_bytes()


async def test_finds_an_entry_whose_type_comes_from_a_newer_version(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await write_texts(log, ["a"])
        with tamper_with(tmp_path) as db:
            db.execute(
                "INSERT INTO events (seq, ts_us, session_id, agent_id, user_id, type, v, content,"
                " content_sha, hash)"
                " SELECT 2, ts_us, session_id, agent_id, user_id, 'Novelty', 7, '{\"what\":\"trombone\"}',"
                " content_sha, hash FROM events"
            )
        assert await search_seqs(log, LogQuery(search="trombone")) == [2]
        await index_new_entries(log)
        assert await search_seqs(log, LogQuery(search="trombone")) == [2]
