"""A log that is read from its file alone, while a process opens it, changes it and goes again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.log import child

from ava_audit.view import View
from ava_server.cli.log_access import LogSnapshot, Snapshot, look_at_log, open_to_look, run_at_once
from ava_server.core.data_root import DataRoot

SERVE = """
import sys, anyio
from pathlib import Path
from ava_audit.events import Event, SettingsChanged, Who
from ava_audit.store.store import Store, append
async def main():
    who = Who("sess-1", "ava", "ann")
    async with Store.open(Path(sys.argv[1])) as store:
        await store.do(append(*[Event(who, SettingsChanged(setting=f"s{n}", after="x" * 600)) for n in range(1_000)]))
anyio.run(main)
"""


def serve(root: Path) -> None:
    """Open the log in another process, write so much that its pages move, and close it."""
    subprocess.run(child(SERVE, root), check=True, timeout=60)


def entries(view: View) -> int:
    """Count the entries by reading an index and all of their rows."""
    return len(view.of_type("SettingsChanged"))


@pytest.mark.parametrize("begun", [False, True], ids=["before the first query", "between two queries"])
def test_a_server_that_comes_and_goes_meanwhile_does_not_make_the_log_look_damaged(tmp_path: Path, begun: bool) -> None:
    serve(tmp_path)
    found: list[int] = []

    async def work(log: Snapshot) -> None:
        if begun:
            found.append(await log.read(View.head))
        serve(tmp_path)
        found.append(await log.read(entries))
        found.append(await log.read(View.head))

    with open_to_look(DataRoot(tmp_path)) as log:
        assert log is not None
        run_at_once(work(log))
    assert found == [*([1_000] if begun else []), 2_000, 2_000]


def test_what_was_read_while_the_file_changed_is_read_again(tmp_path: Path) -> None:
    serve(tmp_path)
    looks: list[int] = []

    def use(found: LogSnapshot) -> int:
        if not looks:
            serve(tmp_path)
        looks.append(found.schema)
        return entries(found.view)

    assert look_at_log(tmp_path / "ava.db", use) == 2_000
    assert len(looks) == 2


def test_a_log_whose_disk_was_full_when_it_was_opened_is_read_without_room(tmp_path: Path) -> None:
    serve(tmp_path)
    beside = [tmp_path / "ava.db-wal", tmp_path / "ava.db-shm"]  # SQLite leaves them empty then
    for path in beside:
        path.touch()
    assert look_at_log(tmp_path / "ava.db", lambda found: entries(found.view)) == 1_000
    assert [path.stat().st_size for path in beside] == [0, 0], "on a full disk, none of them can grow"


def test_an_error_of_a_log_that_nobody_changed_is_told(tmp_path: Path) -> None:
    serve(tmp_path)
    path = tmp_path / "ava.db"
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\0" * (path.stat().st_size - 8_192))
    with pytest.raises(Exception, match="malformed"):
        look_at_log(path, lambda found: entries(found.view))
