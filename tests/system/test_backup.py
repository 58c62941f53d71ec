"""`ava backup` and `ava restore`: a whole copy beside a working server, and a way back that spends nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.logs.backups import StateScript, back_up, run_ava
from support.model_server import ModelServer, run_model_server
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.stdio import AVA, assert_intact, model_env, read_log

from ava_audit.verify import verify
from ava_server.core.data_root import Backup, DataRoot, backup_table

pytestmark = pytest.mark.slow


UNFINISHED = ("paused", "awaiting_answer", "awaiting_extension", "running", "queued")


async def test_a_backup_beside_a_working_server_is_restored_and_spends_nothing(tmp_path: Path) -> None:
    copy, root = tmp_path / "copy", tmp_path / "new" / "data"
    script = StateScript()
    with run_model_server(script) as server:
        runs = await back_up(tmp_path, server, script)
        files = listed(copy)
        assert {"ava.db", "backup.json", "config.toml", "keys.toml", f"artifacts/{runs['ended']}/table.csv"} <= {*files}
        assert not {"secrets/local_token", "secrets/browser.toml"} & {*files}
        assert f"artifacts/{runs['ended']}/browser.toml" in files and not [
            name for name in files if name.startswith("instances")
        ]
        assert not any((copy / name).stat().st_mode & 0o077 for name in (".", *files)), "for its owner alone"
        assert verify(copy / "ava.db").ok

        (tmp_path / "new" / "workspace").mkdir(parents=True)
        code, out, err = await run_ava(root, "restore", str(copy), "--yes", "--json")
        assert code == 0, err
        assert {*json.loads(out)["held"]} == {runs[state] for state in UNFINISHED}
        assert (root / "keys.toml").read_text() == (tmp_path / "data" / "keys.toml").read_text()
        assert_intact(root)
        sent = len(server.requests)
        async with open_lab(
            tmp_path / "new", server=server, config=PRICED, check=False, everybody=True, beneath=tmp_path
        ) as lab:
            await release(lab, server, sent, runs)
    settled = [entry.content["settlement"] for entry in read_log(root, "CostUpdate", run=runs["running"])]
    assert settled == ["unknown", "billed"], "the call in flight counts with its worst case"
    assert_intact(root)


async def release(lab: Lab, server: ModelServer, sent: int, runs: dict[str, str]) -> None:
    """See that a restored server spends nothing until a person resumes a run, and then only for that run."""
    root = lab.runtime.settings.data_root
    env = {**model_env(server.base_url), "AVA_MODEL": "test", "AVA_WORKSPACE": str(root.parents[1])}
    await anyio.sleep(3)
    assert len(server.requests) == sent, "a restored server spends nothing by itself"
    states = {run.subagent_id: run for run in (await lab.call("check_subagent")).runs}
    assert {states[runs[state]].state for state in UNFINISHED} == {"held"}
    assert states[runs["proposed"]].state == "awaiting_approval"
    assert f"ava resume {runs['running']}`" in (states[runs["running"]].waits_for or "")
    # Neither an answer, nor more money, nor a message releases it.
    await lab.call("message_subagent", subagent_id=runs["awaiting_answer"], message="EUR")
    code, _out, err = await run_ava(root, "approve", runs["awaiting_extension"], "--yes", **env)
    assert code != 0, err
    await anyio.sleep(0.5)
    assert len(server.requests) == sent
    # A person resumes one in a terminal, the host's person another one, and ends the others.
    code, out, err = await run_ava(root, "resume", runs["queued"], **env)
    assert code == 0 and len(server.requests) == sent + 1, out + err
    refused = await lab.call("confirm_spawn", pending_ids=[runs["running"]], approving=["yes"])
    assert refused.status == "refused" and len(server.requests) == sent + 1
    released = await lab.call("confirm_spawn", pending_ids=[runs["running"]], approving=refused.approval_lines)
    assert released.status == "resumed", released
    assert (await lab.ended(runs["running"])).state == "success"
    for state in ("paused", "awaiting_answer", "awaiting_extension"):
        code, _out, err = await run_ava(root, "cancel", runs[state])
        assert code == 0 and (await lab.run(runs[state])).state == "cancelled", err
    assert len(server.requests) == sent + 2


async def test_a_held_run_is_shown_as_held_and_keeps_no_server_busy(tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    script = StateScript()
    with run_model_server(script) as server:
        runs = await back_up(tmp_path, server, script)
        (tmp_path / "new" / "workspace").mkdir(parents=True)
        assert (await run_ava(root, "restore", str(tmp_path / "copy"), "--yes"))[0] == 0
        code, out, err = await run_ava(root, "status", "--once")
        assert code == 0 and out.count("held") >= len(UNFINISHED), out + err
        code, out, err = await run_ava(root, "show", runs["running"])
        assert "restored or imported; resume it with `ava resume" in out, out + err
        async with open_lab(tmp_path / "new", server=server, config=PRICED, check=False) as lab:
            await lab.call("cancel_subagent", pending_id=(await lab.run(runs["proposed"])).pending_id)
            with anyio.fail_after(40):
                while lab.runtime.manager.idle_since is None:  # noqa: ASYNC110 - it is set without an event
                    await anyio.sleep(0.05)


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a small data root."""
    tmp = tmp_path_factory.mktemp("backup")

    async def make() -> None:
        async with open_lab(tmp, [hand_over()], config=PRICED) as lab:
            await lab.outcome()
        code, _out, err = await run_ava(tmp / "data", "backup", str(tmp / "copy"))
        assert code == 0, err

    (tmp / "workspace").mkdir()
    anyio.run(make)
    return tmp / "copy"


async def test_a_backup_has_of_each_folder_of_a_data_root_what_the_table_says(backup: Path, tmp_path: Path) -> None:
    """A folder that is new to the table is filled and compared here, too."""
    root, copy = tmp_path / "data", tmp_path / "copy"
    shutil.copytree(backup, root)
    (root / "backup.json").unlink()
    expected: set[str] = set()
    for name, what in backup_table().items():
        if "/" in name or Path(name).suffix:
            continue
        file, deeper = f"{name}/x/of-a-test.md", f"{name}/x/deeper/of-a-test.sh"
        (root / deeper).parent.mkdir(parents=True)
        for each in (file, deeper):
            (root / each).write_text("x")
        if what is not Backup.NOTHING:
            expected.add(file)
        if what in (Backup.WHOLE, Backup.LINKED):
            expected.add(deeper)
    assert (await run_ava(root, "backup", str(copy)))[0] == 0
    assert {name for name in listed(copy) if "of-a-test" in name} == expected
    restored = tmp_path / "restored"
    assert (await run_ava(restored, "restore", str(copy), "--yes"))[0] == 0
    assert (restored / "skills" / "x" / "deeper" / "of-a-test.sh").read_text() == "x"


def test_each_folder_of_a_used_data_root_is_in_the_table(backup: Path) -> None:
    used = {path.name for path in (backup.parent / "data").iterdir() if path.is_dir()}
    assert used <= backup_table().keys()


def copied(backup: Path, tmp: Path) -> Path:
    return Path(shutil.copytree(backup, tmp / "copy"))


def nothing_left(folder: Path) -> bool:
    return not list(folder.glob(".*.partial"))


async def test_a_backup_overwrites_nothing_and_lies_outside_the_data_root(backup: Path, tmp_path: Path) -> None:
    root = backup.parent / "data"
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    for target, says in ((full, "is not empty"), (full / "mine.txt", "is not empty"), (root / "b", "cannot be in"),
                         (root.parent, "cannot be in"), (Path("/proc/nowhere"), "cannot be written")):  # fmt: skip
        code, _out, err = await run_ava(root, "backup", str(target))
        assert code in (2, 30) and says in err and "Traceback" not in err, err
    assert listed(full) == ["mine.txt"] and nothing_left(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (await run_ava(root, "backup", str(empty)))[0] == 0, "an empty folder will do"
    code, _out, err = await run_ava(tmp_path / "none", "backup", str(tmp_path / "x"))
    assert code == 2 and "nothing to back up" in err


async def test_a_name_that_no_backup_can_hold_is_named_and_nothing_is_left(backup: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(backup.parent / "data", tmp_path / "data"))
    (root / "roles").mkdir(exist_ok=True)
    (root / "roles" / os.fsdecode(b"caf\xe9.md")).write_text("x")
    code, _out, err = await run_ava(root, "backup", str(tmp_path / "copy"))
    assert code == 2 and "caf\\xe9.md" in err and "rename it" in err, err
    assert "Traceback" not in err
    assert not (tmp_path / "copy").exists() and nothing_left(tmp_path)


async def test_sessions_of_browsers_are_not_restored(backup: Path, tmp_path: Path) -> None:
    copy, data = copied(backup, tmp_path), b"a session that has ended since"
    (copy / "secrets").mkdir(exist_ok=True)
    (copy / "secrets" / "browser.toml").write_bytes(data)
    manifest = json.loads((copy / "backup.json").read_text())
    manifest["files"]["secrets/browser.toml"] = hashlib.sha256(data).hexdigest()
    (copy / "backup.json").write_text(json.dumps(manifest))
    code, _out, err = await run_ava(tmp_path / "new", "restore", str(copy), "--yes")
    assert code == 0 and not (tmp_path / "new" / "secrets" / "browser.toml").exists(), err


async def test_a_link_to_an_empty_folder_is_restored_to(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    code, _out, err = await run_ava(tmp_path / "data", "restore", str(backup), "--yes")
    assert code == 0 and (tmp_path / "data").is_symlink(), err
    assert verify(tmp_path / "disk" / "ava.db").ok and nothing_left(tmp_path)


async def test_restores_into_an_empty_folder_that_cannot_be_replaced(backup: Path, tmp_path: Path) -> None:
    """Such as the mount point of a container's volume."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    volume = tmp_path / "volume"
    volume.mkdir()
    if (await anyio.run_process(["mount", "-t", "tmpfs", "tmpfs", str(volume)], check=False)).returncode:
        pytest.skip("this machine mounts no file system")
    try:
        code, _out, err = await run_ava(volume, "restore", str(backup), "--yes")
        assert code == 0 and verify(volume / "ava.db").ok and nothing_left(volume), err
    finally:
        await anyio.run_process(["umount", str(volume)])


async def test_a_full_disk_leaves_no_half_backup(backup: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mounted = await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no file system")
    try:
        code, _out, err = await run_ava(backup.parent / "data", "backup", str(small / "copy"))
        assert code == 30 and "Traceback" not in err and list(small.iterdir()) == [], err
    finally:
        await anyio.run_process(["umount", str(small)])


async def test_a_restore_refuses_a_folder_that_is_in_use_or_not_empty(backup: Path, tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab:
        head = lab.store.head
        code, _out, err = await run_ava(tmp_path / "data", "restore", str(backup), "--yes")
        assert code == 10 and "is in use" in err and lab.store.head == head
    before = listed(tmp_path / "data")
    code, _out, err = await run_ava(tmp_path / "data", "restore", str(backup), "--yes")
    assert code == 10 and "is not empty" in err and f"mv {tmp_path / 'data'}" in err
    assert listed(tmp_path / "data") == before and nothing_left(tmp_path)


def _changed_file(copy: Path) -> None:
    (copy / "config.toml").write_text('approval = "auto"\n')


def _lost_file(copy: Path) -> None:
    (copy / "config.toml").unlink()


def _linked_file(copy: Path) -> None:
    (copy / "config.toml").rename(copy.parent / "elsewhere")
    (copy / "config.toml").symlink_to(copy.parent / "elsewhere")


def _no_manifest(copy: Path) -> None:
    (copy / "backup.json").unlink()


def _cut_manifest(copy: Path) -> None:
    (copy / "backup.json").write_text((copy / "backup.json").read_text()[:100])


OUTSIDE = ("../../escaped", "roles/../../escaped", "/escaped", "", ".", "roles/a\0b", "ava.db/x", "instances/x.lock")


def _pipe(copy: Path) -> None:
    """A pipe that nobody writes to."""
    (copy / "config.toml").unlink()
    os.mkfifo(copy / "config.toml")


def _names(name: str) -> Callable[[Path], None]:
    def harm(copy: Path) -> None:
        manifest = json.loads((copy / "backup.json").read_text())
        manifest["files"][name] = "0" * 64
        (copy / "backup.json").write_text(json.dumps(manifest))

    return harm


def _changed_log(copy: Path) -> None:
    """Somebody has changed an entry, and written the new digest into the manifest."""
    import hashlib

    with closing(sqlite3.connect(copy / "ava.db")) as db:
        db.execute("DROP TRIGGER events_fixed")
        db.execute("UPDATE events SET user_id = 'mallory' WHERE seq = 5")
        db.commit()
    manifest = json.loads((copy / "backup.json").read_text())
    manifest["files"]["ava.db"] = hashlib.sha256((copy / "ava.db").read_bytes()).hexdigest()
    (copy / "backup.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_changed_file, "differs from what was backed up"),
        (_lost_file, "is missing"),
        (_linked_file, "is missing"),
        (_no_manifest, "is not a backup"),
        (_cut_manifest, "is damaged"),
        (_pipe, "is missing"),
        *((_names(name), "names files that no backup has") for name in OUTSIDE),
        (_changed_log, "found a fault"),
    ],
)
async def test_a_harmed_backup_is_refused_and_nothing_is_restored(
    backup: Path, tmp_path: Path, harm: Any, says: str
) -> None:
    copy = copied(backup, tmp_path)
    harm(copy)
    code, _out, err = await run_ava(tmp_path / "new", "restore", str(copy), "--yes")
    assert code in (2, 10) and says in err and "Traceback" not in err, err
    assert not (tmp_path / "new").exists() and nothing_left(tmp_path)


async def test_a_subagent_can_neither_back_up_nor_restore(backup: Path, tmp_path: Path) -> None:
    for words in (("backup", str(tmp_path / "x")), ("restore", str(backup))):
        code, _out, err = await run_ava(tmp_path / "data", *words, AVA_RUN_ID="S-7f3a2b")
        assert code == 2 and "subagent" in err
    assert listed(tmp_path) == []


async def test_a_write_ahead_log_that_a_killed_server_left_is_in_the_backup(backup: Path, tmp_path: Path) -> None:
    root = DataRoot(Path(shutil.copytree(backup.parent / "data", tmp_path / "data")))
    write = "INSERT INTO live VALUES ('S-1', 'x', 1)"
    code = f"""
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("{write}")
os._exit(0)
"""
    await anyio.run_process([str(Path(AVA[0]).with_name("python")), "-c", code, str(root.db)], check=True)
    assert root.db.with_name("ava.db-wal").stat().st_size > 0
    assert (await run_ava(root.path, "backup", str(tmp_path / "copy")))[0] == 0
    assert verify(tmp_path / "copy" / "ava.db").ok


def listed(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
