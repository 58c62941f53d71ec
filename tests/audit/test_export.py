"""Exports: what a search finds, all of it, in order, in slices, whatever is indexed meanwhile."""

from __future__ import annotations

import io
import json
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import Life, message, write, write_each, write_texts
from support.properties import BUSY_OR_SHARED

from ava_audit import search as exporting
from ava_audit.errors import BadQuery
from ava_audit.events import Who
from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, export_lines, search
from ava_audit.store.store import Store
from ava_audit.verify import verify_lines

QUERIES = st.builds(
    LogQuery,
    agents=st.sampled_from([(), ("ava",), ("S-aaaaaa",), ("S-aaaaaa", "ava")]),
    users=st.sampled_from([(), ("ben",), ("eve",)]),
    sessions=st.sampled_from([(), ("sess-2",)]),
    runs=st.sampled_from([(), ("S-aaaaaa",), ("S-aaaaaa", "S-bbbbbb"), ("S-ffffff",)]),
    types=st.sampled_from([(), ("error",), ("tool", "cost"), ("message",)]),
    search=st.sampled_from([None, "found", "prices", "zebra", "***", '"zebra walks"']),
    level=st.sampled_from([None, "warning", "error"]),
    limit=st.just(1_000),
)


async def seqs(log: Store, query: LogQuery) -> list[int]:
    data = b"".join([part.data async for part in export_lines(log, query)])
    report = verify_lines(io.BytesIO(data))
    assert report.ok, report
    return [json.loads(line)["seq"] for line in data.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [0, 15, 100])
@settings(max_examples=12, suppress_health_check=BUSY_OR_SHARED)
@given(queries=st.lists(QUERIES, min_size=4, max_size=4))
def test_exports_the_same_entries_as_a_search_oldest_first(
    queries: list[LogQuery], indexed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SLICE", 3)

    async def compare() -> None:
        one, two = Life("S-aaaaaa"), Life("S-bbbbbb", user="eve")
        events = [
            *one.all_events(),
            message("the zebra walks", Who("sess-2", "ava", "eve")),
            *two.beginning(),
            two.error(),
        ]
        async with Store.open(tmp_path_factory.mktemp("log")) as log:
            await write_each(log, [*events, *two.tool("no zebra", success=False), *two.ending("timeout")][:indexed])
            await index_new_entries(log)
            await write_each(log, [*events, *two.tool("no zebra", success=False), *two.ending("timeout")][indexed:])
            for query in queries:
                found = await search(log, query)
                assert await seqs(log, query) == [entry.seq for entry in found.entries[::-1]], query

    anyio.run(compare)


async def test_a_run_export_includes_the_decisions_about_the_run(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        await write_each(log, [*Life("S-bbbbbb").beginning(), *Life("S-aaaaaa").all_events()])
        assert await seqs(log, LogQuery(runs=("S-aaaaaa",))) == list(range(5, 16))
        assert len(await seqs(log, LogQuery(agents=("S-aaaaaa",)))) < 11


@pytest.mark.parametrize("index", [False, True])
async def test_concurrent_writes_and_indexing_do_not_change_an_export(
    index: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SLICE", 4)
    for name, query in (("a", LogQuery()), ("b", LogQuery(search="entry")), ("c", LogQuery(users=("ben",)))):
        folder = tmp_path / name
        folder.mkdir()
        async with Store.open(folder) as log:
            await write_texts(log, [f"entry {number}" for number in range(30)])
            seen: list[int] = []
            async for part in export_lines(log, query):
                seen += [json.loads(line)["seq"] for line in part.data.splitlines()]
                assert (part.entries, part.of) == (len(part.data.splitlines()), 30)
                await write(log, message("entry in between"))
                if index:
                    await index_new_entries(log)
            assert seen == list(range(1, 31))


async def test_a_slice_of_large_entries_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "SLICE_CHARS", 100_000)
    async with Store.open(tmp_path) as log:
        await write_texts(log, ["x" * 30_000] * 60)
        parts = [part async for part in export_lines(log, LogQuery())]
    assert sum(part.entries for part in parts) == 60
    assert max(len(part.data) for part in parts) < 800_000


async def test_rejects_an_unknown_event_type(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as log:
        with pytest.raises(BadQuery, match="pirate"):
            async for _part in export_lines(log, LogQuery(types=("pirate",))):
                pass
