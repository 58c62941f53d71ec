"""What an instance shows of its runs: who reads it, what of it counts, and what is left of it. On both databases."""

from __future__ import annotations

import os
import signal
import stat
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from support.log import child, look_at
from support.stdio import until

from ava_audit.store import backend, locks
from ava_audit.store.backend import Instances
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store

KEPT_S = 2 * locks.KNOWN_S
JOIN = """
import pathlib, sys, time
from ava_audit.store.sqlite import backend_of
root = pathlib.Path(sys.argv[1])
own = backend_of(root).instances(root / "instances").join()
own.show({"S-aaaaaa": "Thinking (43 tokens)"})
print(own.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A data root whose log exists."""
    async with Store.open(tmp_path):
        return tmp_path


@pytest.fixture
def here(root: Path) -> Generator[Instances]:
    with closing(backend_of(root).instances(root / "instances")) as found:
        yield found


@pytest.fixture
def there(root: Path) -> Generator[Instances]:
    """The same log, as another process sees it."""
    with closing(backend_of(root).instances(root / "instances")) as found:
        yield found


def files(root: Path) -> list[Path]:
    return list((root / "instances").glob(f"*{locks.SUFFIX}"))


async def test_others_read_what_was_shown_last_until_it_is_taken_back(
    root: Path, here: Instances, there: Instances
) -> None:
    own = here.join()
    assert there.activities() == {}
    own.show({})
    assert files(root) == [], "there is nothing to show"
    long = "x" * 9_000
    for shown in ({"S-aaaaaa": "Reading prices", "S-bbbbbb": long}, {"S-aaaaaa": "\x00 \ud83d"}, {}):
        own.show(shown)
        wanted = {(own.name, run): text for run, text in shown.items()}
        with anyio.fail_after(40):
            while there.activities() != wanted:  # noqa: ASYNC110 - it is read again after a moment
                await anyio.sleep(0.02)
    own.show({"S-aaaaaa": "Reading"})
    await until(there.activities)
    own.release()
    own.show({"S-aaaaaa": "late"})
    await until(lambda: not there.activities())
    assert files(root) == []
    own.remove()


async def test_it_does_not_count_when_it_was_not_shown_again(
    here: Instances, there: Instances, root: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = here.join()
    own.show({"S-aaaaaa": "Thinking"})
    await until(there.activities)
    if database == "sqlite":
        for old_s in (-2 * backend.SHOWN_S, 2 * backend.SHOWN_S):  # the clock may have been set back meanwhile
            (path,) = files(root)
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime + old_s))
            await until(lambda: not there.activities())
            own.show({"S-aaaaaa": "Thinking"})
            await until(there.activities)
    else:
        from ava_audit.postgres import leases as postgres_leases

        monkeypatch.setattr(postgres_leases, "SHOWN_S", 0.5)
        await until(lambda: not there.activities())
    own.remove()


async def test_nothing_is_left_of_a_killed_process(
    root: Path, there: Instances, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await anyio.open_process(child(JOIN, root), stderr=None) as process:
        assert process.stdout is not None
        name = (await process.stdout.receive()).decode().strip()
        assert there.activities() == {(name, "S-aaaaaa"): "Thinking (43 tokens)"}
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    assert not there.alive(name), "a view of a run shows no more of it"
    if database == "postgres":  # there it is removed when it counts no longer
        from ava_audit.postgres import leases as postgres_leases

        monkeypatch.setattr(postgres_leases, "SHOWN_S", 0.0)
    there.remove_dead(frozenset({name}))
    assert files(root) == [] and (root / "instances" / f"{name}.lock").exists()
    if database == "postgres":
        with look_at(root) as db:
            assert db.execute("SELECT count(*) FROM activities").fetchone() == (0,)


@pytest.mark.sqlite_only("the file is the embedded database's")
async def test_the_file_is_private_and_what_is_not_whole_does_not_count(
    root: Path, here: Instances, there: Instances
) -> None:
    own = here.join()
    own.show({"S-aaaaaa": "Thinking"})
    (path,) = files(root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    key = (own.name, "S-aaaaaa")

    def checked(body: bytes) -> bytes:
        return b"%08x" % zlib.crc32(body) + body

    bad: list[bytes] = [
        b"", whole[:-1], whole[:20], whole.replace(b"Thinking", b"Th1nking"), checked(b"[" * 100_000), checked(b"[1]"),
        checked(b'{"S-aaaaaa": 1}'), checked(b"\xff"), checked(b" " * (1 << 20)),
    ]  # fmt: skip
    for data in bad:
        path.write_bytes(data)
        await until(lambda: key not in there.activities())
        path.write_bytes(whole)
        await until(lambda: key in there.activities())
    for make in _in_its_place(root):
        path.unlink()
        make(path)
        await until(lambda: key not in there.activities())
    own.remove()


def _in_its_place(root: Path) -> list[Callable[[Path], object]]:
    """What somebody may put at the path of the file: none of it is read, and a pipe does not block."""
    secret = root / "elsewhere"
    secret.write_text("{}")
    return [lambda path: path.symlink_to(secret), lambda path: os.mkfifo(path)]
