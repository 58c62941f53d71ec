"""Search: whatever word of an entry's text is asked for finds the entry, in the index and in the unindexed tail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import write_texts

from ava_audit import search as searching
from ava_audit.errors import StoreUnavailable
from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, match_expression, search
from ava_audit.store.store import Store

SYNTAX = [
    "AND",
    "OR",
    "NOT",
    "NEAR",
    "NEAR(a",
    "(",
    "))",
    "^x",
    "text:a",
    "-a",
    "a*",
    '"',
    'a"b',
    "'",
    "{a}",
    "+",
    "\\",
]
SCRIPTS = [
    "S-7f3a2b",
    "P-1c22b09d",
    "研究する",
    "가격표",
    "ราคา",
    "हिन्दी",
    "Ünïcödé",
    "İstanbul",
    "ﬁn",
    "😀",
    "👩‍💻",
    "❤️",
    "𝔘𝔫",
    "\ue000",
]
ODD = [
    "\x00",
    "a\x00b",
    "\ud83d",
    "x\udfffy",
    "\ua7ca",
    "\u19b0",
    "\u058d",
    "֍",
    "\u0301",
    "ß",
    "Σίσυφος",
    "\u2028",
    "\ufeff",
]

words = st.one_of(
    st.sampled_from(SYNTAX + SCRIPTS + ODD), st.text(min_size=1, max_size=12), st.from_regex(r"\A[a-z0-9_.:/-]{1,12}\Z")
)
stored = words.map(lambda word: word.encode("utf-8", "ignore").decode())  # the border lets no half surrogate in


@pytest.mark.slow
@settings(max_examples=80)
@given(parts=st.lists(stored, min_size=1, max_size=8), odd=st.lists(words, max_size=3), data=st.data())
def test_finds_an_entry_by_any_of_its_words(
    parts: list[str], odd: list[str], data: st.DataObject, log: tuple[BlockingPortal, Store]
) -> None:
    portal, store = log
    text = " ".join(parts)
    portal.call(write_texts, store, [text])
    if data.draw(st.booleans(), label="indexed"):
        portal.call(index_new_entries, store)
    there = text.split() or ["nothing"]
    wanted = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3), label="asked")
    typed = " ".join(data.draw(st.permutations(wanted)))
    if text.split() and not match_expression(search=typed).impossible:
        page = portal.call(search, store, LogQuery(search=typed, limit=1))
        assert [entry.seq for entry in page.entries] == [store.head], typed
    assert match_expression(search=typed).impossible <= (not any(char.isalnum() and char < "\u0250" for char in typed))
    portal.call(search, store, LogQuery(search=" ".join([*odd, *wanted])))


@settings(max_examples=100)
@given(typed=st.lists(st.one_of(words, st.sampled_from([" ", "\n", '"', "("])), max_size=40).map("".join))
def test_accepts_any_search_text(typed: str, log: tuple[BlockingPortal, Store]) -> None:
    portal, store = log
    portal.call(search, store, LogQuery(search=typed, limit=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", ["a", "a ", "w1 w2 ", "的", "研究", "😀", "a-", "(", '"', "NEAR(", "\x00", "\ud800", "é", "हि", "֍", "- "]
)
def test_a_search_for_ten_thousand_characters_ends_soon(unit: str, tmp_path: Path) -> None:
    typed = (unit * 10_000)[:10_000]
    text = " ".join([typed.replace("\ud800", "-")] * 20)
    with open_log(tmp_path) as (portal, store):
        portal.call(write_texts, store, [text])
        portal.call(index_new_entries, store)
        portal.call(write_texts, store, [text])
        begun = time.monotonic()
        page = portal.call(search, store, LogQuery(search=typed))
        assert time.monotonic() - begun < 15
    found = [entry.seq for entry in page.entries]
    assert found == ([] if unit in ("(", '"', "\x00", "\ud800", "- ") else [2, 1])


def test_splits_words_like_sqlite_where_unicode_versions_differ(
    log: tuple[BlockingPortal, Store],
) -> None:
    portal, store = log
    for char in ("\u19b0", "\ua7ca", "֍", "\u0378"):  # letters to the one and not to the other
        portal.call(write_texts, store, [f"quagga {char} okapi{char}"])
        for typed in (f"quagga {char}", f"{char} {char} okapi{char}", f'"quagga {char}"'):
            page = portal.call(search, store, LogQuery(search=typed, limit=1))
            assert [entry.seq for entry in page.entries] == [store.head], (char, typed)


@pytest.mark.parametrize("field", ["agents", "users", "sessions", "runs"])
def test_an_id_that_is_not_valid_text_matches_nothing(field: str, log: tuple[BlockingPortal, Store]) -> None:
    portal, store = log
    for wanted in ("half \ud83d", "\udcff", "\x00", "x" * 10_000):
        asked: dict[str, Any] = {field: (wanted,)}
        page = portal.call(search, store, LogQuery(**asked))
        assert page.entries == ()


@pytest.mark.sqlite_only("a phrase that is slow in SQLite's index")
def test_a_slow_search_is_stopped_and_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SEARCH_S", 0.2)
    monkeypatch.setattr("ava_audit.search.LONGEST_PHRASE", 10**6)
    with open_log(tmp_path) as (portal, store):
        portal.call(write_texts, store, ["的" * 500_000] * 3)
        portal.call(index_new_entries, store)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer within"):
            portal.call(search, store, LogQuery(search="的" * 2_000))
    assert time.monotonic() - begun < 10, "what was broken off went on working"


@contextmanager
def open_log(folder: Path) -> Iterator[tuple[BlockingPortal, Store]]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Store.open(folder)) as store:
        yield portal, store


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BlockingPortal, Store]]:
    with open_log(tmp_path_factory.mktemp("log")) as opened:
        yield opened
