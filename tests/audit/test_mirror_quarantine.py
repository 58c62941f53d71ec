"""A mirror that has what the log has not is the only record left of it: it is set aside, and never written over."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import anyio
import pytest
from support.log import AVA, Life, write_each, write_texts

from ava_audit import retention
from ava_audit.maintenance import run_maintenance
from ava_audit.mirror import Mirror, remove_old_quarantined
from ava_audit.store.store import Store
from ava_audit.verify import verify_lines


async def mirrored(root: Path, *texts: str, lives: tuple[Life, ...] = ()) -> dict[str, bytes]:
    """Open a log, write into it, bring its mirror up to date as a new keeper would, and return its files."""
    async with Store.open(root) as log:
        await write_texts(log, texts)
        for life in lives:
            await write_each(log, life.all_events())
        mirror = Mirror(log, root / "logs")
        await mirror.repair_all()
        await mirror.catch_up()
    return files(root / "logs")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.glob("*/*"))}


def remove_log(root: Path) -> None:
    for path in root.glob("ava.db*"):
        path.unlink()


@pytest.mark.sqlite_only("removes the file")
async def test_keeps_the_mirror_of_a_removed_log_beside_the_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ((name, before),) = (await mirrored(tmp_path, "one", "two")).items()
    for number in (1, 2):
        remove_log(tmp_path)
        after = await mirrored(tmp_path, f"new {number}")
        aside = name.replace(".jsonl", f".set-aside-{number}.jsonl")
        assert after[aside] == before, "as it was, byte for byte"
        assert f"it is kept as {Path(aside).name}" in caplog.text
        assert b"one" not in after[name] and verify_lines(tmp_path / "logs" / name).ok
        assert verify_lines(tmp_path / "logs" / aside).ok
        before = after[name]


@pytest.mark.sqlite_only("copies the file")
async def test_keeps_mirrored_entries_that_are_newer_than_a_restored_backup(tmp_path: Path) -> None:
    life = Life("S-aaaaaa")
    await mirrored(tmp_path, "one", lives=(life,))
    shutil.copy(tmp_path / "ava.db", tmp_path / "copy")
    before = await mirrored(tmp_path, "after the copy")
    name, run = before
    remove_log(tmp_path)
    shutil.copy(tmp_path / "copy", tmp_path / "ava.db")
    after = await mirrored(tmp_path, "something else")
    assert after[name.replace(".jsonl", ".set-aside-1.jsonl")] == before[name]
    assert b"after the copy" in before[name] and b"after the copy" not in after[name]
    assert after[run] == before[run] and len(after) == 3, "a file that the log has whole is left alone"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[:-20],
        lambda whole: whole.replace(b'"text":"two"', b'"text":"two, too"'),
        lambda whole: whole + whole.splitlines(keepends=True)[0],
        lambda whole: b"no line at all\n" + whole,
        lambda whole: whole + b'{"seq":7,"hash":"' + b"0" * 64 + b'"}\n',
        lambda whole: whole.replace(b'"hash":"', b'"hash":"0', 1),
    ],
    ids=["cut", "changed", "twice", "a line before", "a line after", "another hash"],
)
async def test_repairs_a_damaged_file_without_quarantining_it(spoil: object, tmp_path: Path) -> None:
    ((name, whole),) = (await mirrored(tmp_path, "one", "two", "three")).items()
    assert callable(spoil)
    (tmp_path / "logs" / name).write_bytes(spoil(whole))
    assert await mirrored(tmp_path, "four") == {name: (tmp_path / "logs" / name).read_bytes()}
    assert (tmp_path / "logs" / name).read_bytes().startswith(whole)


@pytest.mark.sqlite_only("removes the file")
async def test_erasing_a_run_removes_only_its_own_quarantined_files(tmp_path: Path) -> None:
    lives = Life("S-aaaaaa"), Life("S-bbbbbb")
    await mirrored(tmp_path, lives=lives)
    remove_log(tmp_path)
    after = await mirrored(tmp_path, lives=lives)
    aside = [f"subagents/{life.run_id}.set-aside-1.jsonl" for life in lives]
    assert set(aside) <= set(after)
    with anyio.fail_after(40):
        async with Store.open(tmp_path) as log, anyio.create_task_group() as tasks:
            await retention.erase_run(log, "S-aaaaaa", (), AVA, "a test")
            keep = retention.Retention(90, ())
            tasks.start_soon(partial(run_maintenance, log, tmp_path, mirror=True, retention=keep))
            while await log.read(retention.erasure_pending):
                await log.wait_for_entry_after(0)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert [(tmp_path / "logs" / path).exists() for path in aside] == [False, True]


async def test_removes_quarantined_files_past_the_retention_period(tmp_path: Path) -> None:
    folder = tmp_path / "ava"
    folder.mkdir()
    for name, written_s in (("old.set-aside-1.jsonl", 99), ("young.set-aside-1.jsonl", 101), ("old.jsonl", 99)):
        (folder / name).touch()
        os.utime(folder / name, (written_s, written_s))
    remove_old_quarantined(tmp_path, 100 * 1_000_000)
    assert {path.name for path in folder.iterdir()} == {"young.set-aside-1.jsonl", "old.jsonl"}
