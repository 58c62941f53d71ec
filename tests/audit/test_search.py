"""Log queries: whatever a person types is found as words, in the index and in what is not indexed yet."""

from __future__ import annotations

import dataclasses
import sqlite3
import string
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import AVA, Life, child, run_who, said, tampering, write, write_each, write_texts
from support.properties import BUSY_OR_SHARED

from ava_audit.database import Database, IndexRow
from ava_audit.entries import Entry
from ava_audit.errors import BadQuery, StoreUnavailable
from ava_audit.events import FACTS, Event, Usage, UserMessage, Who
from ava_audit.maintenance import index_new_entries
from ava_audit.projections import index_words, merge_words
from ava_audit.search import Conditions, LogQuery, filter_rows, follow, index_row, search, type_filter
from ava_audit.store.store import Store

TESTS = Path(__file__).parent.parent


@pytest.fixture(params=["indexed", "half indexed", "not indexed"])
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path) as store:
        yield store


async def fill(log: Store, state: str, *texts: str) -> None:
    """Write texts, and bring the index to the given state."""
    half = len(texts) // 2 if state == "half indexed" else len(texts)
    await write_texts(log, texts[:half])
    if state != "not indexed":
        await index_new_entries(log)
    if texts[half:]:
        await write_texts(log, texts[half:])


async def found(log: Store, text: str) -> list[str]:
    page = await search(log, LogQuery(search=text))
    return [entry.fact.search_text() for entry in page.entries if entry.fact]


async def seqs(log: Store, query: LogQuery) -> list[int]:
    return [entry.seq for entry in (await search(log, query)).entries]


async def test_returns_newest_entries_first_and_pages_with_a_cursor(log: Store, state: str) -> None:
    with anyio.fail_after(20):
        await fill(log, state, *(f"message {number}" for number in range(10)))
        first = await search(log, LogQuery(search="message", limit=4))
        assert [entry.seq for entry in first.entries] == [10, 9, 8, 7]
        await write_texts(log, ["message in between"])
        rest: list[int] = []
        cursor = first.next
        while cursor is not None:
            page = await search(log, LogQuery(search="message", limit=4, before_seq=cursor, upto_seq=first.upto))
            rest += [entry.seq for entry in page.entries]
            cursor = page.next
        assert rest == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("every", [1, 2, 5, 9, 30])
async def test_finds_frequent_and_rare_words_alike_newest_first(
    log: Store, every: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_audit.search.NEAR", 4)
    monkeypatch.setattr("ava_audit.search.BLOCK", 6)
    monkeypatch.setattr("ava_audit.search.RARE", 1)
    monkeypatch.setattr("ava_audit.postgres.database.BLOCK_BITS", 3)
    who = [run_who(f"S-00000{number}") for number in range(2)]
    texts = [f"{'otter' if number % every == 0 else 'heron'} {number}" for number in range(60)]
    await write(log, *(said(text, who[number % 2]) for number, text in enumerate(texts)))
    await index_new_entries(log)
    wanted = [number + 1 for number in range(60) if number % every == 0][::-1]
    query = LogQuery(search="otter", limit=limit)
    assert await all_seqs(log, query) == wanted
    of_one = dataclasses.replace(query, agents=(who[1].agent_id,))
    assert await all_seqs(log, of_one) == [seq for seq in wanted if seq % 2 == 0]


async def all_seqs(log: Store, query: LogQuery) -> list[int]:
    """The entries of all pages."""
    page = await search(log, query)
    seqs = [entry.seq for entry in page.entries]
    while page.next is not None:
        page = await search(log, dataclasses.replace(query, before_seq=page.next, upto_seq=page.upto))
        seqs += [entry.seq for entry in page.entries]
    return seqs


async def test_the_page_with_the_last_entry_has_no_next_cursor(log: Store) -> None:
    with anyio.fail_after(20):
        await fill(log, "indexed", "a", "b", "c")
        assert (await search(log, LogQuery(limit=3))).next is None
        assert (await search(log, LogQuery(limit=2))).next == 2


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("hello", "Well, HELLO there"),
        ("S-7f3a2b", "started S-7f3a2b now"),
        ("otter.ai/pricing", "Reading https://otter.ai/pricing…"),
        ('"connection reset"', "the connection reset by peer"),
        ("cafe", "at the Café"),
        ("Ünïcödé", "unicode here"),
        ("研究", "我们研究播客价格"),
        ("価格", "ポッドキャストの価格を調べる"),
        ("ราคา", "ตรวจสอบราคาแล้ว"),
        ("가격", "팟캐스트가격표"),
        ("😀", "done😀!"),
        ("❤️", "with ❤ from"),
        ("👩‍💻", "a 👩‍💻 at work"),
        ("web_search", "web_search {}"),
        ("C++", "written in C++ only"),
        ("a AND b", "a and b"),
        ("NEAR(a", "near a"),
        ("(((", None),
        ('"', None),
        ("***", None),
        ('say "unbalanced', "he would say unbalanced things"),
        ("text:secret", "text: secret"),
        ("-minus", "a minus b"),
        ("^first", "the first"),
        ("x' OR 1=1 --", "x or 1 1"),
        ("nul\x00byte", "a nul byte"),
        ("half \ud83d pair", "half a pair"),
        ("{a b}: c", "a b c"),
        ("\ua7ca", None),
    ],
)
async def test_finds_any_text_as_words_without_errors(typed: str, text: str | None, log: Store, state: str) -> None:
    with anyio.fail_after(20):
        await fill(log, state, "something else", "nothing", *([text] if text else []))
        assert await found(log, typed) == ([text] if text else [])


@settings(max_examples=150, suppress_health_check=BUSY_OR_SHARED)
@given(st.text(max_size=40))
def test_no_search_text_raises_an_error(text: str) -> None:
    conditions = Conditions(LogQuery(search=text))
    filter_rows([ROW], conditions.text_query)


ROW = (1, 1, "s", "ava", "ben", "UserMessage", 1, *[None] * 10, '{"text":"x"}', b"", b"")


async def test_searches_for_a_long_pasted_text(log: Store) -> None:
    pasted = " ".join(f"word{number}" for number in range(3_000))
    with anyio.fail_after(20):
        await fill(log, "indexed", pasted, "other")
        assert await found(log, pasted) == [pasted]


async def test_combines_all_filters(log: Store, state: str) -> None:
    eve = Who("sess-2", "ava", "eve")
    with anyio.fail_after(20):
        await write(log, said("one"), said("two", eve), Event(run_who("S-aaaaaa"), UserMessage(text="two")))
        if state != "not indexed":
            await index_new_entries(log)
        await write(log, said("two"))
        assert await seqs(log, LogQuery(users=("ben",))) == [4, 3, 1]
        assert await seqs(log, LogQuery(users=("ben",), search="two")) == [4, 3]
        assert await seqs(log, LogQuery(users=("ben", "eve"), agents=("ava",), search="two")) == [4, 2]
        assert await seqs(log, LogQuery(sessions=("sess-2",))) == [2]
        assert await seqs(log, LogQuery(agents=("S-aaaaaa",), users=("eve",))) == []
        assert await seqs(log, LogQuery(agents=("S-aaaaaa",))) == [3]
        assert await seqs(log, LogQuery(types=("toolcall",))) == []
        assert await seqs(log, LogQuery(types=("message",), after_seq=2)) == [4, 3]
        assert await seqs(log, LogQuery(users=("Ben",))) == []


async def test_the_error_type_matches_errors_failed_results_and_bad_endings(log: Store, state: str) -> None:
    good, bad = Life("S-aaaaaa"), Life("S-bbbbbb")
    with anyio.fail_after(20):
        await write_each(log, good.whole())
        if state != "not indexed":
            await index_new_entries(log)
        failing = [*bad.begun(), bad.failed(), *bad.tool(success=False), *bad.ended("cost_exceeded")]
        await write_each(log, failing)
        if state == "indexed":
            await index_new_entries(log)
        page = await search(log, LogQuery(types=("ERROR",)))
        assert [entry.type for entry in page.entries] == ["SubagentComplete", "ToolResult", "ErrorOccurred"]
        severe = await search(log, LogQuery(level="error"))
        assert [entry.type for entry in severe.entries] == ["ToolResult", "ErrorOccurred"]
        cost = await search(log, LogQuery(types=("error", "cost"), level="warning"))
        assert len(cost.entries) == 3


async def test_accepts_type_names_in_any_case_and_lists_them_for_an_unknown_one() -> None:
    for name in FACTS:
        assert type_filter([name.upper()]).names == {name}
    with pytest.raises(BadQuery, match=r"no event type 'pirate'.*thinking.*UserMessage"):
        type_filter(["pirate"])


async def test_a_time_range_works_after_the_clock_was_set_back(log: Store, state: str, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await write_texts(log, ["a"] * 6)
    with tampering(tmp_path) as db:
        for seq, ts in enumerate((100, 200, 300, 150, 250, 350), 1):
            db.execute("UPDATE events SET ts_us = ? WHERE seq = ?", (ts, seq))
    if state != "not indexed":
        await index_new_entries(log)
    assert await seqs(log, LogQuery(since_us=200)) == [6, 5, 3, 2]
    assert await seqs(log, LogQuery(since_us=200, search="a")) == [6, 5, 3, 2]
    assert await seqs(log, LogQuery(since_us=150, until_us=300, users=("ben",))) == [5, 4, 2]
    assert await seqs(log, LogQuery(since_us=400)) == []


@pytest.mark.sqlite_only("holds SQLite's own lock")
async def test_a_search_needs_no_write_lock(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await fill(log, "half indexed", "hello", "hello again")
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            assert await found(log, "hello") == ["hello again", "hello"]
        finally:
            other.close()


@pytest.mark.sqlite_only("the inner tables of SQLite's index")
async def test_reports_an_unreadable_search_index(log: Store, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        await fill(log, "indexed", "hello")
        other = sqlite3.connect(tmp_path / "ava.db", isolation_level=None)
        other.execute("DELETE FROM words_data")
        other.close()
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await found(log, "hello")
        assert await seqs(log, LogQuery()) == [1]


async def test_entries_include_usage_and_cost(log: Store) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        await write_each(log, [*life.begun(), life.reserved(), life.settled(cost=12_345)])
        (entry,) = (await search(log, LogQuery(types=("CostUpdate",)))).entries
    assert (entry.cost_micros, entry.usage) == (12_345, Usage(input_tokens=20, output_tokens=10))


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
        assert await seqs(log, LogQuery(search="zeppelin")) == []
        assert await seqs(log, LogQuery(search="xylophone")) == [1]
        assert await seqs(log, LogQuery(agents=("ava",))) == [2, 1]
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
        with tampering(tmp_path) as db:
            db.execute(
                "INSERT INTO events (seq, ts_us, session_id, agent_id, user_id, type, v, content,"
                " content_sha, hash)"
                " SELECT 2, ts_us, session_id, agent_id, user_id, 'Novelty', 7, '{\"what\":\"trombone\"}',"
                " content_sha, hash FROM events"
            )
        assert await seqs(log, LogQuery(search="trombone")) == [2]
        await index_new_entries(log)
        assert await seqs(log, LogQuery(search="trombone")) == [2]


async def test_follows_the_entries_of_all_processes_in_order_and_filtered(log: Store, tmp_path: Path) -> None:
    write_other = (
        "import sys, anyio\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\n"
        "from ava_audit.store.store import Store\nfrom support.log import write_texts\n"
        "async def main():\n"
        "    async with Store.open(Path(sys.argv[1])) as log:\n"
        "        await write_texts(log, ['wanted two', 'skip', 'wanted three'])\n"
        "anyio.run(main)\n"
    )
    with anyio.fail_after(40):
        await write_texts(log, ["wanted but old"])
        entries = follow(log, LogQuery(search="wanted", users=("ben",)))
        got: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(write_texts, log, ["wanted one"], AVA))
            async for entry in entries:
                assert entry.fact is not None
                got.append(entry.fact.search_text())
                if len(got) == 1:
                    tasks.start_soon(partial(anyio.run_process, child(write_other, tmp_path, TESTS)))
                if len(got) == 3:
                    break
        await entries.aclose()  # type: ignore[attr-defined]
    assert got == ["wanted one", "wanted two", "wanted three"]


async def test_following_from_an_entry_returns_later_entries(log: Store) -> None:
    with anyio.fail_after(20):
        await write_texts(log, ["a", "b", "c"])
        seen: list[int] = []
        async for entry in follow(log, LogQuery(after_seq=1)):
            seen.append(entry.seq)
            if len(seen) == 2:
                break
        assert seen == [2, 3]


def test_a_query_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogQuery().limit = 1  # type: ignore[misc]
