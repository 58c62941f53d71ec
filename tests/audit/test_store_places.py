"""Where the log may be: in a folder of this machine, in a file that is a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.log import AVA, message, write

from ava_audit.errors import DataRootRefused, StoreUnavailable
from ava_audit.events import Activity, Event, ToolResult, UserMessage
from ava_audit.store import locks
from ava_audit.store.store import Store


@pytest.mark.sqlite_only("a damaged file")
async def test_refuses_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "ava.db").write_bytes(b"not a database, but long enough to look at " * 50)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with Store.open(tmp_path):
            pass


async def test_refuses_a_data_root_that_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(DataRootRefused, match="not a folder"):
            async with Store.open(root):
                pass


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:50 / /home rw - nfs4 server:/home rw
41 22 0:51 / /mnt/my\\040share rw shared:7 - cifs //server/share rw
42 40 0:52 / /home/me/local rw - btrfs /dev/vdb rw
43 22 0:53 / /media/box rw - fuse.sshfs me@box: rw
44 22 0:54 / /media/usb rw - fuseblk /dev/sdb1 rw
45 22 0:55 / /mnt/c rw - 9p C: rw
46 22 0:56 / /twice rw - nfs server:/x rw
47 22 0:57 / /twice rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/.ava", "nfs4"),
        ("/mnt/my share/ava", "cifs"),
        ("/media/box", "fuse.sshfs"),
        ("/mnt/c/Users", "9p"),
        ("/home/me/local/ava", None),
        ("/media/usb/ava", None),
        ("/twice/ava", None),
        ("/homestead", None),
    ],
)
async def test_recognises_a_network_file_system_by_its_mount(
    folder: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(locks, "_MOUNTS", table)
    assert locks.network_file_system(Path(folder)) == kind


async def test_refuses_a_data_root_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr(locks, "_MOUNTS", table)
    with pytest.raises(DataRootRefused, match=r"network file system \(nfs\)"):
        async with Store.open(tmp_path):
            pass
    monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "no such system")
    async with Store.open(tmp_path) as log:
        await write(log, message("local"), Event(AVA, Activity(activity="x")))
        await write(log, Event(AVA, ToolResult(tool="t", success=True)), Event(AVA, UserMessage(text="y")))
