"""Texts in a log at each state of its index, and what a search finds."""

from __future__ import annotations

import dataclasses

from ava_audit.maintenance import index_new_entries
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store
from support.log import write_texts


async def write_at_state(log: Store, state: str, *texts: str) -> None:
    """Write texts, and bring the index to the given state."""
    half = len(texts) // 2 if state == "half indexed" else len(texts)
    await write_texts(log, texts[:half])
    if state != "not indexed":
        await index_new_entries(log)
    if texts[half:]:
        await write_texts(log, texts[half:])


async def search_texts(log: Store, text: str) -> list[str]:
    """Return the texts of the entries that a search finds, the newest first."""
    page = await search(log, LogQuery(search=text))
    return [entry.fact.search_text() for entry in page.entries if entry.fact]


async def search_seqs(log: Store, query: LogQuery) -> list[int]:
    """Return the numbers of the entries that a query finds."""
    return [entry.seq for entry in (await search(log, query)).entries]


async def search_all_pages(log: Store, query: LogQuery) -> list[int]:
    """Return the numbers of the entries on all pages of a query."""
    page = await search(log, query)
    seqs = [entry.seq for entry in page.entries]
    while page.next is not None:
        page = await search(log, dataclasses.replace(query, before_seq=page.next, upto_seq=page.upto))
        seqs += [entry.seq for entry in page.entries]
    return seqs
