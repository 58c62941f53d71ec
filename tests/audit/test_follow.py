"""Following the log: the entries of all processes, in order, from an entry on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
from support.log import AVA, child, write_texts

from ava_audit.search import LogQuery, follow
from ava_audit.store.store import Store

TESTS = Path(__file__).parent.parent


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
