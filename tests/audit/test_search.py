"""Log queries: whatever a person types is found as words, in the index and in what is not indexed yet."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import Life, message, run_who, tamper_with, write, write_each, write_texts
from support.logs.searches import search_all_pages, search_seqs, search_texts, write_at_state
from support.properties import BUSY_OR_SHARED

from ava_audit.errors import BadQuery
from ava_audit.events import FACTS, Event, Usage, UserMessage, Who
from ava_audit.maintenance import index_new_entries
from ava_audit.search import Conditions, LogQuery, filter_rows, search, type_filter
from ava_audit.store.store import Store

TESTS = Path(__file__).parent.parent


@pytest.fixture(params=["indexed", "half indexed", "not indexed"])
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_returns_newest_entries_first_and_pages_with_a_cursor(log: Store, state: str) -> None:
    with anyio.fail_after(20):
        await write_at_state(log, state, *(f"message {number}" for number in range(10)))
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
    monkeypatch.setattr("ava_audit.postgres.server.BLOCK_BITS", 3)
    who = [run_who(f"S-00000{number}") for number in range(2)]
    texts = [f"{'otter' if number % every == 0 else 'heron'} {number}" for number in range(60)]
    await write(log, *(message(text, who[number % 2]) for number, text in enumerate(texts)))
    await index_new_entries(log)
    wanted = [number + 1 for number in range(60) if number % every == 0][::-1]
    query = LogQuery(search="otter", limit=limit)
    assert await search_all_pages(log, query) == wanted
    of_one = dataclasses.replace(query, agents=(who[1].agent_id,))
    assert await search_all_pages(log, of_one) == [seq for seq in wanted if seq % 2 == 0]


async def test_the_page_with_the_last_entry_has_no_next_cursor(log: Store) -> None:
    with anyio.fail_after(20):
        await write_at_state(log, "indexed", "a", "b", "c")
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
        await write_at_state(log, state, "something else", "nothing", *([text] if text else []))
        assert await search_texts(log, typed) == ([text] if text else [])


@settings(max_examples=150, suppress_health_check=BUSY_OR_SHARED)
@given(st.text(max_size=40))
def test_no_search_text_raises_an_error(text: str) -> None:
    conditions = Conditions(LogQuery(search=text))
    filter_rows([ROW], conditions.text_query)


ROW = (1, 1, "s", "ava", "ben", "UserMessage", 1, *[None] * 10, '{"text":"x"}', b"", b"")


async def test_searches_for_a_long_pasted_text(log: Store) -> None:
    pasted = " ".join(f"word{number}" for number in range(3_000))
    with anyio.fail_after(20):
        await write_at_state(log, "indexed", pasted, "other")
        assert await search_texts(log, pasted) == [pasted]


async def test_combines_all_filters(log: Store, state: str) -> None:
    eve = Who("sess-2", "ava", "eve")
    with anyio.fail_after(20):
        await write(log, message("one"), message("two", eve), Event(run_who("S-aaaaaa"), UserMessage(text="two")))
        if state != "not indexed":
            await index_new_entries(log)
        await write(log, message("two"))
        assert await search_seqs(log, LogQuery(users=("ben",))) == [4, 3, 1]
        assert await search_seqs(log, LogQuery(users=("ben",), search="two")) == [4, 3]
        assert await search_seqs(log, LogQuery(users=("ben", "eve"), agents=("ava",), search="two")) == [4, 2]
        assert await search_seqs(log, LogQuery(sessions=("sess-2",))) == [2]
        assert await search_seqs(log, LogQuery(agents=("S-aaaaaa",), users=("eve",))) == []
        assert await search_seqs(log, LogQuery(agents=("S-aaaaaa",))) == [3]
        assert await search_seqs(log, LogQuery(types=("toolcall",))) == []
        assert await search_seqs(log, LogQuery(types=("message",), after_seq=2)) == [4, 3]
        assert await search_seqs(log, LogQuery(users=("Ben",))) == []


async def test_the_error_type_matches_errors_failed_results_and_bad_endings(log: Store, state: str) -> None:
    good, bad = Life("S-aaaaaa"), Life("S-bbbbbb")
    with anyio.fail_after(20):
        await write_each(log, good.all_events())
        if state != "not indexed":
            await index_new_entries(log)
        failing = [*bad.beginning(), bad.error(), *bad.tool(success=False), *bad.ending("cost_exceeded")]
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
    with tamper_with(tmp_path) as db:
        for seq, ts in enumerate((100, 200, 300, 150, 250, 350), 1):
            db.execute("UPDATE events SET ts_us = ? WHERE seq = ?", (ts, seq))
    if state != "not indexed":
        await index_new_entries(log)
    assert await search_seqs(log, LogQuery(since_us=200)) == [6, 5, 3, 2]
    assert await search_seqs(log, LogQuery(since_us=200, search="a")) == [6, 5, 3, 2]
    assert await search_seqs(log, LogQuery(since_us=150, until_us=300, users=("ben",))) == [5, 4, 2]
    assert await search_seqs(log, LogQuery(since_us=400)) == []


async def test_entries_include_usage_and_cost(log: Store) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        await write_each(log, [*life.beginning(), life.reservation(), life.settlement(cost=12_345)])
        (entry,) = (await search(log, LogQuery(types=("CostUpdate",)))).entries
    assert (entry.cost_micros, entry.usage) == (12_345, Usage(input_tokens=20, output_tokens=10))


def test_a_query_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogQuery().limit = 1  # type: ignore[misc]
