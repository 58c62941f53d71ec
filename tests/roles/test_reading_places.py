"""Reading is shared: no user's searches keep another user's file waiting, and parsers have a bound on their memory."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.foreign.office import p, r, word_file
from support.processes import children_of

from ava_roles.errors import ParserEnded
from ava_roles.sandbox.paths import Root
from ava_roles.texts import parser_process, places
from ava_roles.texts.extracted import format_of
from ava_roles.texts.parser_process import ParserProcess
from ava_roles.texts.places import USERS, ReadingPlaces, Share, places_of, share_of
from ava_roles.threads import run_sync
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

GB = 1_000_000_000
WORD = format_of("a.docx")


@pytest.mark.parametrize(
    ("memory", "cores", "share"),
    [
        (64 * GB, 16, Share(5, 4, 256_000_000, 1_500_000_000)),
        (16 * GB, 2, Share(3, 2, 256_000_000, 1_500_000_000)),
        (8 * GB, 2, Share(3, 2, 208_333_333, 1_500_000_000)),
        (2 * GB, 4, Share(1, 1, 125_000_000, 500_000_000)),
        (GB // 2, 1, Share(1, 1, 31_250_000, 125_000_000)),
    ],
)
def test_all_parsers_together_have_at_most_half_of_the_memory(memory: int, cores: int, share: Share) -> None:
    assert share_of(memory, cores) == share
    assert USERS * share.places * share.little_bytes + share.much_bytes <= memory // 2


class Reads:
    """Blocking reads that are stuck until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()
        assert self.go_on.wait(20)


async def test_users_with_endless_reads_keep_no_other_user_waiting() -> None:
    reads = Reads()
    try:
        async with anyio.create_task_group() as tasks:
            for user in ("ann", "ben", "cy"):
                for _ in range(20):
                    tasks.start_soon(partial(run_sync, reads, places=places_of(user)))
            for _ in range(3 * places.SHARE.places):
                assert await anyio.to_thread.run_sync(reads.begun.acquire, True, 5)
            with anyio.fail_after(10):
                assert await run_sync(lambda: "read", places=places_of("dora")) == "read"
                assert await run_sync(lambda: "short work") == "short work"
            assert not reads.begun.acquire(blocking=False), "no user has more than a share"
            reads.go_on.set()
    finally:
        reads.go_on.set()


async def test_of_those_who_wait_the_user_with_fewest_is_served_first() -> None:
    shared = ReadingPlaces(2, 2)
    served: list[str] = []

    async def wait(ticket: str) -> None:
        await shared.acquire(ticket, ticket[0])
        served.append(ticket)

    await shared.acquire("a0", "a")
    await shared.acquire("a1", "a")
    async with anyio.create_task_group() as tasks:
        for ticket in ("a2", "a3", "b1", "c1"):
            tasks.start_soon(wait, ticket)
            await anyio.wait_all_tasks_blocked()
        shared.release("a0")
        await anyio.wait_all_tasks_blocked()
        shared.release("a1")
        await anyio.wait_all_tasks_blocked()
        assert served == ["b1", "a2"], "of two who have none, the one that came first"
        for ticket in ("b1", "a2"):
            shared.release(ticket)
            shared.release(ticket)  # twice is once
            await anyio.wait_all_tasks_blocked()
    assert served == ["b1", "a2", "c1", "a3"]


async def test_whoever_is_cancelled_while_waiting_takes_no_place_along() -> None:
    shared = ReadingPlaces(1, 1)
    await shared.acquire("first", "a")
    with anyio.move_on_after(0.01) as limit:
        await shared.acquire("second", "b")
    assert limit.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared.acquire, "third", "c")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        shared.release("first")  # it is served and cancelled at once
    with anyio.fail_after(5):
        await shared.acquire("fourth", "d")


# -- with real parsers ------------------------------------------------------------------------------------------------


def word(lines: int, words: str = "of the lease") -> bytes:
    return word_file("".join(p(r(f"Line {number} {words}")) for number in range(lines)))


def test_a_file_that_needs_more_memory_is_read_again_in_much(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORD is not None
    data = word(40_000)
    wanted = parser_process.read_document(WORD, data)
    for megabytes in (60, 70, 80):  # it fails in the archive, in the XML, and in the text
        monkeypatch.setattr(parser_process, "SHARE", replace(places.SHARE, little_bytes=megabytes * 1_000_000))
        assert parser_process.read_document(WORD, data) == wanted


def test_one_file_at_a_time_has_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORD is not None
    monkeypatch.setattr(parser_process, "SHARE", replace(places.SHARE, little_bytes=45_000_000))
    monkeypatch.setattr(places, "WAIT_S", 1)
    with (
        places.much_memory("PDF"),
        pytest.raises(ParserEnded, match="it needs much memory, which other files have had for 1 s"),
    ):
        parser_process.read_document(WORD, word(10_000))
    assert parser_process.read_document(WORD, word(10)).parts


@pytest.mark.skipif(sys.platform != "linux", reason="it is looked up in /proc")
@pytest.mark.parametrize(("is_patient", "niceness"), [(False, 5), (True, 15)])
def test_parsers_let_the_server_have_the_processor_first_and_a_searchs_other_parsers(
    is_patient: bool, niceness: int
) -> None:
    """Linux shares the processor out by session first (autogroup), so niceness alone is not enough."""
    assert WORD is not None
    others = set(children_of(os.getpid()))
    with ParserProcess(is_patient=is_patient) as parser:
        parser.read_document(WORD, word(3))
        (child,) = set(children_of(os.getpid())) - others
        assert os.getsid(child) == os.getsid(0)
        assert os.getpgid(child) == child
        its_own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, child) == min(its_own + niceness, 19)


@pytest.mark.slow
async def test_beside_searches_of_three_users_another_reads_a_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The searches are held in their parsers; before, they took all places, and the run ended at its time limit."""
    held, go_on = threading.Semaphore(0), threading.Event()
    read_document = ParserProcess.read_document

    def held_read(parser: ParserProcess, kind: object, data: bytes, *more: object) -> object:
        if b"HELD" in data:
            held.release()
            assert go_on.wait(60)
        return read_document(parser, kind, data, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(ParserProcess, "read_document", held_read)
    contexts: dict[str, ToolContext] = {}
    for user in ("ann", "ben", "cy", "dora"):
        folder = tmp_path / user
        folder.mkdir()
        for number in range(40 if user != "dora" else 0):
            (folder / f"{number}.eml").write_bytes(b"Subject: HELD\n\nThe zeppelin leaves at noon.")
        (folder / "small.docx").write_bytes(word(3, "of the zeppelin"))
        (folder / "small.txt").write_text("The zeppelin leaves at noon.")
        contexts[user] = ToolContext(files=Root.open(folder), user=user)
    try:
        async with anyio.create_task_group() as tasks:
            for user in ("ann", "ben", "cy"):
                for _ in range(4):
                    args = SearchAndReadArgs(query="when does the zeppelin leave")
                    tasks.start_soon(SearchAndRead(), args, contexts[user])
            for _ in range(3 * places.SHARE.of_search):
                assert await anyio.to_thread.run_sync(held.acquire, True, 20)
            with anyio.fail_after(20):
                for name in ("small.txt", "small.docx"):
                    found = await ReadFile()(ReadFileArgs(path=name), contexts["dora"])
                    assert "zeppelin" in found.text
            go_on.set()
    finally:
        go_on.set()
        for each in contexts.values():
            assert each.files is not None
            each.files.close()


def test_memory_of_a_container_bounds_that_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ava_roles.sandbox import linux

    try:
        machine = linux.usable_memory()
    except linux.NotOnThisSystem:
        pytest.skip("not on this system")
    monkeypatch.setattr(linux, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert linux.usable_memory() >= machine
    (tmp_path / "memory.max").write_text("300000000\n")
    assert linux.usable_memory() == 300_000_000
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("200000000\n")
    assert linux.usable_memory() == 200_000_000
