"""Retention: old words go from every byte of the data root, young ones and unfinished runs keep theirs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.log import AVA, Life, child, message, write, write_each, write_texts
from support.logs import retention
from support.logs.store import open_store

from ava_audit import maintenance
from ava_audit.events import TRANSCRIPT_TYPES, Event
from ava_audit.maintenance import run_maintenance
from ava_audit.mirror import Mirror
from ava_audit.projections import note_mirrored
from ava_audit.retention import (
    Retention,
    coming_erasures,
    erase_run,
    erasure_pending,
    finish_erasures,
    retention_horizon,
)
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store
from ava_audit.view import View


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> retention.LogClock:
    return retention.LogClock(monkeypatch)


async def test_erases_old_content_from_every_byte_and_keeps_everything_else(
    tmp_path: Path, clock: retention.LogClock
) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        own = retention.make_run_folders(tmp_path, "S-aaaaaa", "S-bbbbbb")
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        await write_texts(log, ["the orchestrator's wombatherring"])
        log.set_live("S-aaaaaa", "vexquokka")
        clock.days(3)
        await retention.write_run_about(log, "S-bbbbbb", "numbatsorrel")
        await retention.keep_once(log, tmp_path, own=own)
        assert await retention.words_in_files(tmp_path, "vexquokka", "wombatherring", "numbatsorrel") == {
            "vexquokka", "wombatherring", "numbatsorrel",
        }  # fmt: skip
        assert await retention.erasures(log) == []
        await retention.pass_days(log, clock, 80)
        clock.days(9)
        await write_texts(log, ["a day of use"])
        before = await log.read(lambda view: [row[:17] + row[18:] for row in view.rows("seq <= ?", view.head())])
        runs = await log.read(View.runs)
        clock.days(1)

        await retention.keep_once(log, tmp_path, own=own)

        assert await retention.words_in_files(tmp_path, "vexquokka", "wombatherring", "numbatsorrel") == {
            "numbatsorrel"
        }
        assert await retention.erasures(log) == [("S-aaaaaa", 5), (None, 1)]
        entries = await log.read(lambda view: view.entries("S-aaaaaa"))
        assert {entry.type for entry in entries if entry.content is None} <= TRANSCRIPT_TYPES
        assert all(entry.content is None for entry in entries if entry.type in TRANSCRIPT_TYPES)
        left = {str(path.relative_to(tmp_path)) for folder in own for path in folder.iterdir()}
        assert left == {"artifacts/S-bbbbbb", "scratch/S-bbbbbb"}
        after = await log.read(lambda view: [row[:17] + row[18:] for row in view.rows("seq <= ?", len(before))])
        assert after == before
        assert await log.read(View.runs) == runs
        assert (await search(log, LogQuery(search="vexquokka"))).entries == ()
        assert len((await search(log, LogQuery(search="numbatsorrel"))).entries) == 3
        await retention.assert_intact(tmp_path)


async def test_erases_nothing_twice(tmp_path: Path, clock: retention.LogClock) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        await retention.pass_days(log, clock, 100)
        await retention.keep_once(log, tmp_path)
        first, head = await retention.erasures(log), log.head
        await retention.keep_once(log, tmp_path)
        assert await retention.erasures(log) == first != []
        assert log.head == head
        assert not await log.read(erasure_pending)


async def test_keeps_the_history_of_an_unfinished_run_until_long_after_it_ends(
    tmp_path: Path, clock: retention.LogClock
) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        life = await retention.write_run_about(log, "S-aaaaaa", "vexquokka", ends=False)
        await retention.pass_days(log, clock, 200)
        await retention.keep_once(log, tmp_path)
        whole = await log.read(lambda view: view.entries("S-aaaaaa"))
        assert all(entry.content is not None for entry in whole)
        await write_each(log, life.ending())
        await retention.pass_days(log, clock, 80)
        await retention.keep_once(log, tmp_path)
        assert await retention.words_in_files(tmp_path, "vexquokka") == {"vexquokka"}
        await retention.pass_days(log, clock, 20)
        await retention.keep_once(log, tmp_path)
        assert await retention.words_in_files(tmp_path, "vexquokka") == set()
        await retention.assert_intact(tmp_path)


async def test_erases_the_content_of_an_undecided_proposal(tmp_path: Path, clock: retention.LogClock) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        for run_id, word, minutes in (("S-aaaaaa", "vexquokka", 10), ("S-bbbbbb", "numbatsorrel", 10**6)):
            life = Life(run_id)
            expires_us = (retention.NOON + minutes * 60) * 10**6
            fact = life.proposal().fact.model_copy(update={"expires_us": expires_us})
            await write(log, Event(AVA, fact, run_id=run_id), life.task(word))
        await retention.pass_days(log, clock, 100)
        await retention.keep_once(log, tmp_path)
        assert await retention.words_in_files(tmp_path, "vexquokka", "numbatsorrel") == {"numbatsorrel"}


async def test_erases_nothing_for_a_day_after_the_clock_jumps_a_year_ahead(
    tmp_path: Path, clock: retention.LogClock
) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        clock.days(2)
        await write_texts(log, ["the last of the right time"])
        clock.days(365)
        await retention.write_run_about(log, "S-bbbbbb", "numbatsorrel")
        clock.days(0.9)
        await retention.keep_once(log, tmp_path)
        assert await retention.erasures(log) == []
        clock.days(-365)  # and is set right again
        await retention.pass_days(log, clock, 80)
        await retention.keep_once(log, tmp_path)
        assert await retention.erasures(log) == []
        await retention.pass_days(log, clock, 20)
        await retention.keep_once(log, tmp_path)
        assert ("S-aaaaaa", 5) in await retention.erasures(log)


async def test_entries_written_while_the_clock_was_behind_do_not_count_as_old(
    tmp_path: Path, clock: retention.LogClock
) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await write_texts(log, ["before"])
        clock.days(-400)
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        clock.days(401)
        await write_texts(log, ["after"])
        clock.days(2)
        await retention.keep_once(log, tmp_path)
        assert await retention.erasures(log) == []
        await retention.pass_days(log, clock, 100)
        await retention.keep_once(log, tmp_path)
        assert ("S-aaaaaa", 5) in await retention.erasures(log)


async def test_the_retention_horizon_moves_once_a_day(tmp_path: Path, clock: retention.LogClock) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await write_texts(log, ["noon"])
        assert await log.read(partial(retention_horizon, now_us=clock.ns // 1_000, days=1)) == (0, 0)
        seen: list[int] = []
        for _ in range(10):
            clock.days(0.25)
            await write_texts(log, ["later"])
            seen.append((await log.read(partial(retention_horizon, now_us=clock.ns // 1_000, days=1)))[0])
        assert seen == [0, 0, 0, 0, 0, 2, 2, 2, 2, 6]


async def test_a_mirror_line_read_before_an_erasure_does_not_restore_content(tmp_path: Path) -> None:
    from ava_audit.mirror import _next_batch  # pyright: ignore[reportPrivateUsage]

    async with open_store(tmp_path, within_s=40) as log:
        mirror = Mirror(log, tmp_path / "logs")
        await mirror.repair_all()
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        batch = await log.read(_next_batch)
        assert await erase_run(log, "S-aaaaaa", (), AVA, "a test") == 5
        sizes = mirror._append(batch.lines)  # pyright: ignore[reportPrivateUsage]
        note = partial(note_mirrored, after=batch.after, upto=batch.upto, before=batch.sizes, sizes=sizes)
        assert await log.maintain(note)
        assert await retention.words_in_files(tmp_path, "vexquokka") == {"vexquokka"}
        await finish_erasures(log, mirror, (), mirrored=True)
        await mirror.catch_up()
        assert await retention.words_in_files(tmp_path, "vexquokka") == set()
        await retention.assert_intact(tmp_path)


async def test_clears_old_mirror_files_and_creates_none_when_the_mirror_is_off(tmp_path: Path) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
        mirror = Mirror(log, tmp_path / "logs")
        await mirror.repair_all()
        await mirror.catch_up()
        await retention.write_run_about(log, "S-bbbbbb", "numbatsorrel")
        for run_id in ("S-aaaaaa", "S-bbbbbb"):
            await erase_run(log, run_id, (), AVA, "a test")
        await finish_erasures(log, Mirror(log, tmp_path / "logs"), (), mirrored=False)
        assert await retention.words_in_files(tmp_path, "vexquokka", "numbatsorrel") == set()
        assert [path.stem for path in (tmp_path / "logs" / "subagents").iterdir()] == ["S-aaaaaa"]


async def test_never_erases_an_active_run(tmp_path: Path) -> None:
    async with open_store(tmp_path, within_s=40) as log:
        await retention.write_run_about(log, "S-aaaaaa", "vexquokka", ends=False)
        assert await erase_run(log, "S-aaaaaa", (1, 2), AVA, "a test") == 0
        assert await retention.erasures(log) == []


@pytest.mark.sqlite_only("the pages of SQLite")
async def test_an_erasure_clears_what_sqlite_left_in_unused_parts_of_pages(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
            await write_texts(log, ["wombat herring"])
            await retention.keep_once(log, tmp_path)
        await anyio.to_thread.run_sync(_plant_in_every_gap, tmp_path / "ava.db", b"numbatsorrel")
        assert await retention.words_in_files(tmp_path, "numbatsorrel") == {"numbatsorrel"}
        async with Store.open(tmp_path) as log:
            await erase_run(log, "S-aaaaaa", (), AVA, "a test")
            await retention.keep_once(log, tmp_path)
            assert await retention.words_in_files(tmp_path, "numbatsorrel", "vexquokka") == set()
            assert len((await search(log, LogQuery(search="wombat"))).entries) == 1
            await retention.assert_intact(tmp_path)


def _plant_in_every_gap(database: Path, text: bytes) -> None:
    """Write a text between the cell pointers and the cells of each b-tree page, as a page split may leave one there.

    See https://www.sqlite.org/fileformat.html, "B-tree Pages".
    """
    data = bytearray(database.read_bytes())
    size = int.from_bytes(data[16:18])
    planted = 0
    for page in range(size, len(data), size):  # the first page begins with the file's header
        kind, cells, content = data[page], int.from_bytes(data[page + 3 : page + 5]), data[page + 5 : page + 7]
        gap = page + (8 if kind in (10, 13) else 12) + 2 * cells
        if kind in (2, 5, 10, 13) and page + int.from_bytes(content) - gap > 2 * len(text):
            data[gap + 4 : gap + 4 + len(text)] = text
            planted += 1
    assert planted > 10
    database.write_bytes(data)


@pytest.mark.slow
async def test_erases_a_long_run_in_batches_while_others_write(tmp_path: Path) -> None:
    async with open_store(tmp_path) as log:
        life = await retention.write_run_about(log, "S-aaaaaa", "vexquokka", ends=False)
        for _ in range(20):
            await write(log, *(life.answer(f"vexquokka {'x' * 3_000}") for _ in range(50)))
        await write_each(log, life.ending())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(erase_run, log, "S-aaaaaa", (), AVA, "a test")
            for number in range(30):
                await write(log, message(f"in between {number}"))
        counts = await retention.erasures(log)
        assert len(counts) > 5 and sum(count for _run, count in counts) == 1_005
        await retention.keep_once(log, tmp_path)
        assert await retention.words_in_files(tmp_path, "vexquokka") == set()
        await retention.assert_intact(tmp_path)


DIE = """
import os, signal, sys, anyio
from functools import partial
from pathlib import Path
from ava_audit import mirror, retention
from ava_audit.store import store, writer
from ava_audit.events import Who

root, step, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
owner, name = {
    "heal": (mirror, "repair_file"), "note_healed": (mirror, "note_repaired"), "merge": (retention, "merge_words"),
    "remove": (retention.shutil, "rmtree"), "empty": (writer.Writer, "_checkpoint"),
    "note": (retention, "note_progress"), "words": (retention, "forget_live"),
}[step]
real = getattr(owner, name)

def dying(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with store.Store.open(root) as log:
        setattr(owner, name, dying)
        await retention.erase_run(log, "S-aaaaaa", (), Who("s", "ava", "ben"), "a test")
        files = mirror.Mirror(log, root / "logs")
        await retention.finish_erasures(log, files, (root / "artifacts", root / "scratch"), mirrored=True)

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["words", "heal", "note_healed", "merge", "remove", "empty", "note"])
async def test_maintenance_finishes_an_erasure_killed_at_any_step(tmp_path: Path, step: str, when: str) -> None:
    with anyio.fail_after(20):
        async with Store.open(tmp_path) as log:
            own = retention.make_run_folders(tmp_path, "S-aaaaaa")
            await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
            await retention.write_run_about(log, "S-bbbbbb", "numbatsorrel")
            await retention.keep_once(log, tmp_path)
        killed = await anyio.run_process(child(DIE, tmp_path, step, when), check=False, stderr=None)
        assert killed.returncode == -9
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            begun = await retention.erasures(log)
            assert begun == ([] if step == "words" else [("S-aaaaaa", 5)])
            tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True, retention=Retention(90, own)))
            if not begun:  # rolled back as a whole
                assert await erase_run(log, "S-aaaaaa", (), AVA, "a test") == 5
            while await log.read(erasure_pending):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert await retention.words_in_files(tmp_path, "vexquokka", "numbatsorrel", "zorillafile") == {
                "numbatsorrel"
            }
            assert await retention.erasures(log) == [("S-aaaaaa", 5)]
            tasks.cancel_scope.cancel()
        await retention.assert_intact(tmp_path)


async def test_maintenance_erases_at_startup_and_periodically(
    tmp_path: Path, clock: retention.LogClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ERASE_EVERY_S", 0.05)
    with anyio.fail_after(40):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
            clock.days(50)
            await retention.write_run_about(log, "S-bbbbbb", "numbatsorrel")
            await retention.pass_days(log, clock, 60)
            clock.days(1)
            tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True, retention=Retention(90)))

            async def gone(run_id: str) -> None:
                while (run_id, 5) not in await retention.erasures(log) or await log.read(erasure_pending):  # noqa: ASYNC110
                    await anyio.sleep(0.01)

            await gone("S-aaaaaa")
            assert await retention.words_in_files(tmp_path, "vexquokka", "numbatsorrel") == {"numbatsorrel"}
            await retention.pass_days(log, clock, 60)
            clock.days(1)
            await gone("S-bbbbbb")
            assert await retention.words_in_files(tmp_path, "numbatsorrel") == set()
            tasks.cancel_scope.cancel()


async def test_removes_a_link_in_place_of_a_run_folder_without_following_it(tmp_path: Path) -> None:
    with anyio.fail_after(40):
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file.txt").write_text("kept")
        root = tmp_path / "data"
        (root / "artifacts").mkdir(parents=True)
        (root / "artifacts" / "S-aaaaaa").symlink_to(precious)
        async with Store.open(root) as log:
            await retention.write_run_about(log, "S-aaaaaa", "vexquokka")
            await erase_run(log, "S-aaaaaa", (), AVA, "a test")
            await finish_erasures(log, Mirror(log, root / "logs"), (root / "artifacts",), mirrored=True)
        assert (precious / "file.txt").read_text() == "kept"
        assert list((root / "artifacts").iterdir()) == []


async def test_the_next_erasures_are_those_that_then_come(tmp_path: Path, clock: retention.LogClock) -> None:
    async with Store.open(tmp_path) as log:
        for number, ended in enumerate((0, 0, 2, 5)):
            clock.ns = retention.NOON * 10**9 + ended * retention.DAY_S * 10**9
            await retention.write_run_about(log, f"S-00000{number}", f"word{number}")
        now = time.time_ns() // 1_000
        coming = await log.read(lambda view: coming_erasures(view, now, 30, 2))
        first_day = retention.NOON // retention.DAY_S
        assert [(each.ended_on - first_day, each.erased_on - first_day, each.runs) for each in coming] == [
            (0, 31, 2),
            (2, 33, 1),
        ]
        assert await log.read(lambda view: coming_erasures(view, now, 30, 2, "nobody")) == []
        clock.ns = ((coming[0].erased_on - 1) * retention.DAY_S + 900) * 10**9
        await write_texts(log, ["a day before"])
        clock.ns = coming[0].erased_on * retention.DAY_S * 10**9 - 1_800 * 10**9
        before = await log.read(lambda view: retention_horizon(view, clock.ns // 1_000, 30)[1])
        clock.ns = coming[0].erased_on * retention.DAY_S * 10**9 + 1_800 * 10**9
        after = await log.read(lambda view: retention_horizon(view, clock.ns // 1_000, 30)[1])
        ended_us = retention.NOON * 10**6
        assert before <= ended_us < after, "the texts go on the day that was said, and not before"
