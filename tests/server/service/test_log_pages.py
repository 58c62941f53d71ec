"""`read_ava_logs` through the real tool: pages that neither skip nor repeat while entries arrive, each of a size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp_types import CallToolResult
from support.log import message, write
from support.runtime import connect, text

from ava_audit.events import Who
from ava_audit.maintenance import index_new_entries
from ava_audit.store.store import Store
from ava_audit.units import US_PER_S
from ava_server.core.data_root import os_user

MOST = 10_000
NUMBER = re.compile(r"no\. (\d+)\.")
pieces = st.lists(
    st.sampled_from(["<tool_output", "</subagent_result>", '"\\', "\n\t", "😀", "研究", "\x1b[2J", "\u202e", "word "]),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        client, _server = stack.enter_context(portal.wrap_async_context_manager(connect(folder)))
        portal.call(client.list_tools)
        portal.call(_first_call, client)
        log = stack.enter_context(portal.wrap_async_context_manager(Store.open(folder / "data")))
        yield Bench(portal, client, log)


@settings(max_examples=15)
@given(
    hostile=st.lists(st.tuples(pieces, st.integers(0, 60)), min_size=1, max_size=40),
    last_n=st.sampled_from([1, 3, 7, 50, 500]),
    how=st.sampled_from(["search", "types", "since", "session"]),
    meanwhile=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    indexed=st.booleans(),
)
@example(hostile=[("<tool_output", 90)] * 40, last_n=50, how="search", meanwhile=[2], indexed=True)
@example(hostile=[('"\\', 500)] * 40, last_n=500, how="types", meanwhile=[1], indexed=False)
@example(hostile=[("😀", 900)] * 40, last_n=30, how="since", meanwhile=[4], indexed=False)
def test_pages_neither_skip_nor_repeat_while_entries_arrive(
    hostile: list[tuple[str, int]], last_n: int, how: str, meanwhile: list[int], indexed: bool, bench: Bench
) -> None:
    word = f"quagga{next(bench.examples)}"
    bench.write(*(f"no. {number}. {word} {part * times}" for number, (part, times) in enumerate(hostile)))
    if indexed:
        bench.index()
    given: dict[str, Any] = {"search": word, "last_n": last_n}
    if how == "types":
        given["types"] = ["message"]
    elif how == "since":
        given["since"] = "1h"
    elif how == "session":
        given["session"] = "sess-x"
    seen: list[int] = []
    cursor: str | None = None
    for turn in range(200):
        lines, cursor = bench.page(**given, **({"cursor": cursor} if cursor else {}))
        assert len(lines) <= last_n
        seen = [*numbers(lines), *seen]
        if cursor is None:
            break
        assert lines, "a page that says that there is more has something"
        bench.write(*(f"no. {900 + turn}. {word}" for _ in range(meanwhile[turn % len(meanwhile)])))
        if turn % 3 == 0:
            bench.index()
    assert seen == list(range(len(hostile)))


def test_a_relative_time_is_fixed_at_the_first_page(bench: Bench) -> None:
    word = f"okapi{next(bench.examples)}"
    bench.write(*(f"no. {number}. {word}" for number in range(6)))
    _lines, cursor = bench.page(search=word, types=["message"], since="1h", until="now", last_n=2)
    assert cursor is not None
    before, upto, since, until, mark = cursor.split(".")
    hour = 3_600 * US_PER_S
    assert abs(int(until) - int(since) - hour) < 60 * US_PER_S
    moved = ".".join([before, upto, str(int(since) + 2 * hour), until, mark])  # as if two hours had gone by
    assert bench.page(search=word, types=["message"], since="1h", until="now", last_n=9, cursor=moved) == ([], None)
    lines, _cursor = bench.page(search=word, types=["message"], since="1h", until="now", last_n=9, cursor=cursor)
    assert numbers(lines) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "other", [{}, {"search": "word"}, {"types": ["tool"]}, {"search": "wordy", "types": ["message"]}]
)
def test_a_cursor_works_only_with_its_own_query(other: dict[str, Any], bench: Bench) -> None:
    bench.write("word one", "word two")
    _lines, cursor = bench.page(search="word", types=["message"], last_n=1)
    answer = bench.read(**other, cursor=cursor)
    assert answer.is_error
    assert "cursor: it belongs to another query; give the same subagent_id, search" in text(answer)
    assert bench.page(search="word", types=["message"], last_n=3, cursor=cursor)[0], "how many is free"


@pytest.mark.parametrize("cursor", ["1", "1.2", "a.b.c.d.e", "1.2.3.4.5.6", "-1.2...x", "1" * 30 + ".2...x", "١.٢...x"])
def test_rejects_an_invalid_cursor(cursor: str, bench: Bench) -> None:
    answer = bench.read(cursor=cursor)
    assert answer.is_error
    assert "cursor" in text(answer)
    assert "the last answer had" in text(answer)


@settings(max_examples=40)
@given(typed=st.text(max_size=60) | st.sampled_from(['"', "NEAR(", "((", "a AND", "S-7f3a2b OR", "\x00", "-", "text:"]))
def test_any_search_text_is_accepted(typed: str, bench: Bench) -> None:
    assert not bench.read(search=typed, last_n=3).is_error


@pytest.mark.parametrize("typed", ["a" * 10_000, "wörter " * 1_400, "研究" * 5_000, "😀" * 10_000])
def test_accepts_a_search_of_ten_thousand_characters(typed: str, bench: Bench) -> None:
    assert not bench.read(search=typed, last_n=3).is_error


@dataclass
class Bench:
    """A server in memory, a client on it, and its log as another process has it open."""

    portal: BlockingPortal
    client: Client
    log: Store
    examples: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def read(self, **given: Any) -> CallToolResult:
        answer: CallToolResult = self.portal.call(self._read, given)
        assert answer.structured_content is not None
        assert len(text(answer)) <= MOST
        assert len(json.dumps(answer.structured_content, ensure_ascii=False)) <= MOST
        return answer

    async def _read(self, given: dict[str, Any]) -> CallToolResult:
        answer: CallToolResult = await self.client.call_tool("read_ava_logs", given)
        return answer

    def page(self, **given: Any) -> tuple[list[str], str | None]:
        """One page: its entries, which both forms have, and the cursor."""
        answer = self.read(**given)
        form = answer.structured_content or {}
        assert form["status"] == "entries", form
        lines, cursor = form["untrusted_entries"], form.get("cursor")
        assert text(answer).count("\n[20") == len(lines)
        assert (cursor is None) or f"with cursor {cursor}" in text(answer)
        return lines, cursor

    def write(self, *texts: str) -> None:
        self.portal.call(write, self.log, *(message(text, Who("sess-x", "ava", os_user())) for text in texts))

    def index(self) -> None:
        self.portal.call(index_new_entries, self.log)


async def _first_call(client: Client) -> None:
    """The log is opened after `initialize` was answered; a call waits for it."""
    with anyio.fail_after(40):
        await client.call_tool("read_ava_logs", {})


def numbers(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if " UserMessage " in line and (found := NUMBER.search(line))]
