"""A backup of the data root, and its restoration: what is copied, what is checked, and which runs are held.

A backup is a folder with the log as it was at one moment, what the table of the data root (`core/data_root.py`) says of
its other places, and `backup.json`, which lists every file with its SHA-256. It appears under its name only when it is
complete and verified; so does a restored data root. Blocking.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shlex
import shutil
import sqlite3
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ava_audit.errors import AuditError
from ava_server.core.data_root import Backup, DataRoot, backup_table
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.threads import run_async

if TYPE_CHECKING:
    from ava_audit.entries import ProgressCallback, VerifyReport
    from ava_audit.rows import RunRow

MANIFEST = "backup.json"
LOG = "ava.db"
_TABLE = backup_table()
_PARTS = {
    name: what
    for name, what in _TABLE.items()
    if "/" not in name and what in (Backup.WHOLE, Backup.LINKED, Backup.FILES)
}
_LEFT_OUT = frozenset(name for name, what in _TABLE.items() if "/" in name and what is Backup.NOTHING)
_BLOCK = 1 << 20
_Show = Callable[[str], None]


@dataclass(frozen=True)
class Manifest:
    """The list in `backup.json`: the program, the time, the log's size and head, and each file's SHA-256.

    `verified`: the log was checked. One that an older version wrote is copied as it is, and checked when restored.
    """

    ava: str
    made: str
    entries: int
    head: str
    files: dict[str, str]
    verified: bool = True


@dataclass(frozen=True)
class Restored:
    """A backup that was restored, and its runs that are held or wait for approval."""

    manifest: Manifest
    held: list[RunRow]
    waiting: list[RunRow]
    back: list[RunRow] | None = None
    """Runs that were erased after the backup; None if there is no old data root to compare with."""
    aside: list[str] = field(default_factory=list[str])


# -- folders ----------------------------------------------------------------------------------------------------------


def is_free(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except FileNotFoundError:
        return not folder.is_symlink()
    except NotADirectoryError:
        return False
    except OSError as failed:
        raise BadInput(f"{folder} cannot be read: {failed.strerror}") from None


def refuse_overlap(root: Path, folder: Path) -> None:
    """Refuse a backup that is in the data root or contains it. Raises BadInput if it is."""
    inner = folder.resolve()
    outer = root.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise BadInput(f"{folder}: a backup cannot be in the data root {root} or contain it; give another folder")


def refuse_used(root: DataRoot) -> None:
    """Refuse to restore to a data root that is not empty. Raises Refused: says whether a process works on it."""
    from ava_audit.store.locks import is_held

    if is_free(root.path):
        return
    locks = [*root.instances.glob("*.lock"), root.http_lock, root.pages_lock, *root.worker_locks]
    if any(is_held(path) for path in locks):
        raise Refused(
            f"{root.path} is in use: an Ava process works on it. Quit your hosts, servers and workers; then move the"
            " folder away and restore again. Nothing was changed."
        )
    move = ("mv", str(root.path), f"{root.path}.before")
    raise Refused(
        f"{root.path} is not empty. Move it away first, e.g. with `{shlex.join(move)}`, or set"
        " AVA_DATA_ROOT to a new folder. Nothing was changed."
    )


@contextmanager
def prepared(target: Path, what: str) -> Generator[Path]:
    """Give a folder to fill, which becomes the target when the block ends, and is removed if it fails.

    It lies beside the target; in it where that exists, because an empty mount point can be neither replaced nor left.
    The log is moved last: a folder without it is not a data root.

    Raises:
        ConfigError: It cannot be written.
    """
    target = target.resolve()  # where the target is a link, the folder that it names
    there = target.is_dir()
    folder = target if there else target.parent
    partial = folder / f".{target.name}.{os.getpid()}.partial"
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.mkdir(mode=0o700)
        try:
            yield partial
            if not there:
                partial.rename(target)
                return
            if list(target.iterdir()) != [partial]:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            for part in sorted(partial.iterdir(), key=lambda each: (each.name in (LOG, MANIFEST), each.name)):
                part.rename(target / part.name)
            partial.rmdir()
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as failed:
        raise ConfigError(
            f"The {what} {target} cannot be written: {failed.strerror or failed}. Nothing was left there."
        ) from failed


def _place(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, and make the folders above it for this user alone."""
    *above, _last = Path(name).parts
    for part in above:
        folder = folder / part
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder / _last


def _open_regular(path: Path, *, links: bool) -> BinaryIO:
    """Open a file and then check it, so that nobody can replace it in between; a pipe does not block.

    Raises FileNotFoundError if there is no file, or it is something else.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        fd = os.open(path, flags)
    except OSError as failed:
        if failed.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "it is a link", str(path)) from None
        raise
    file = os.fdopen(fd, "rb")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "it is not a file", str(path))
    return file


def _copy_file(source: Path, target: Path, *, links: bool = False) -> str:
    """Copy a file with its mode, and return its SHA-256."""
    digest = hashlib.sha256()
    with _open_regular(source, links=links) as source_file, target.open("xb") as target_file:
        target.chmod(0o600)
        while block := source_file.read(_BLOCK):
            digest.update(block)
            target_file.write(block)
        target_file.flush()
        os.fsync(target_file.fileno())
        mode = os.fstat(source_file.fileno()).st_mode
    target.chmod(mode & 0o700)
    return digest.hexdigest()


# -- backup -----------------------------------------------------------------------------------------------------------


def back_up(root: DataRoot, partial: Path, show: _Show) -> Manifest:
    """Copy a data root to a folder, and verify the copy of its log, unless an older version wrote it.

    Raises:
        Refused: The log has a fault.
        BadInput: A file's name is not UTF-8.
        OSError: Something cannot be read or written.
    """
    from importlib.metadata import version

    from ava_audit.errors import SchemaOlder
    from ava_audit.store.sqlite import copy_log, newest_of_older
    from ava_audit.units import iso_second, now_us
    from ava_audit.verify import verify

    made = iso_second(now_us())
    copy_log(root.db, partial / LOG, lambda done, of: show(f"{done:,} of {of:,} pages copied"))
    verified = True
    try:
        report = verify(partial / LOG, on_progress=lambda done, of: show(f"{done:,} of {of:,} entries checked"))
        _refuse_faults(report, f"the log of {root.path}", "Nothing was kept. `ava verify` and `ava doctor` tell more")
        entries = report.seq
        head = report.head
    except SchemaOlder:
        verified = False
        entries, head = newest_of_older(partial / LOG)
    # After the log: it names only files that were there before it was copied, or that were erased since.
    files = {LOG: _sha256(partial / LOG)}
    for path in _files_of(root.path):
        name = path.relative_to(root.path).as_posix()
        target = _place(partial, name)
        try:
            name.encode()
            files[name] = _copy_file(path, target, links=_PARTS[Path(name).parts[0]] is Backup.LINKED)
        except UnicodeEncodeError:
            shown = os.fsencode(name).decode("utf-8", "backslashreplace")
            raise BadInput(
                f"{root.path / shown}: the name is not UTF-8, so no backup can list it; rename it. Nothing was kept."
            ) from None
        except FileNotFoundError:  # erased meanwhile
            target.unlink(missing_ok=True)
        show(f"{len(files):,} files copied")
    manifest = Manifest(version("ava-subagents"), made, entries, head, files, verified)
    (partial / MANIFEST).touch(mode=0o600)
    (partial / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", "utf-8")
    return manifest


def _files_of(root: Path) -> Iterator[Path]:
    """Yield the files of a data root that a backup has, without the log."""
    for part, what in _PARTS.items():
        place = root / part
        if place.is_file():
            yield place
        for folder, folders, names in os.walk(place):
            if what is Backup.FILES and Path(folder) != place:
                folders.clear()  # the copies of workspaces
            for name in sorted(names):
                path = Path(folder, name)
                left_out = path.relative_to(root).as_posix() in _LEFT_OUT
                if not left_out and path.is_file() and (what is Backup.LINKED or not path.is_symlink()):
                    yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_faults(report: VerifyReport, what: str, then: str) -> None:
    if not report.ok:
        raise Refused(f"The check of {what} found a fault: {report.faults[0].text}. {then}.")


# -- restore ----------------------------------------------------------------------------------------------------------


def read_manifest(source: Path) -> Manifest:
    """Return the list of a backup's files. Raises BadInput if it is not a backup, or damaged."""
    from pydantic import TypeAdapter, ValidationError

    try:
        manifest = TypeAdapter(Manifest).validate_json((source / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{source} is not a backup: it has no {MANIFEST}. `ava backup DIR` makes one.") from None
    except OSError as failed:
        raise BadInput(f"{source} cannot be read: {failed.strerror}") from None
    except ValidationError:
        raise BadInput(f"{source / MANIFEST} is damaged, so the backup cannot be checked; use another one") from None
    if LOG not in manifest.files or any(not _is_inside(name) for name in manifest.files):
        raise BadInput(f"{source / MANIFEST} names files that no backup has; use another one")
    return manifest


def _is_inside(name: str) -> bool:
    path = Path(name)
    if path.is_absolute() or "\0" in name or ".." in path.parts:
        return False
    if name == LOG:
        return True
    first = path.parts[0] if path.parts else ""
    return first in _PARTS


def restore(manifest: Manifest, source: Path, partial: Path, show: _Show) -> Restored:
    """Copy a backup to a folder, check each file and the log, and hold its unfinished runs.

    Raises:
        Refused: A file or the log is not as it was backed up.
        OSError: Something cannot be read or written.
    """
    from ava_audit.store.backend import OlderSchema
    from ava_audit.store.sqlite import SqliteBackend
    from ava_audit.verify import verify

    for done, (name, digest) in enumerate(manifest.files.items()):
        show(f"{done:,} of {len(manifest.files):,} files copied")
        if name in _LEFT_OUT:
            continue
        target = _place(partial, name)
        try:
            copied = _copy_file(source / name, target)
        except FileNotFoundError:
            copied = ""
        if copied != digest:
            why = "differs from what was backed up" if copied else "is missing"
            raise Refused(f"{source / name} {why}, so nothing was restored; use another backup.")
    checked: ProgressCallback = lambda done, of: show(f"{done:,} of {of:,} entries checked")  # noqa: E731
    what = f"the log in {source}"
    then = "Nothing was restored; use another backup"
    try:
        with closing(SqliteBackend(partial)) as backend:
            backend.prepare(older=OlderSchema.MIGRATE)
        # Before anything is written, which would mend a state that differs from the log instead of finding it.
        _refuse_faults(verify(partial / LOG, head=manifest.head, on_progress=checked), what, then)
        held, waiting = run_async(_hold_runs, partial)
        _refuse_faults(verify(partial / LOG, head=manifest.head, on_progress=checked), what, then)
    except AuditError as error:
        raise Refused(f"The log in {source} cannot be restored: {error}. Nothing was restored.") from error
    return Restored(manifest, held, waiting)


async def _hold_runs(root: Path) -> tuple[list[RunRow], list[RunRow]]:
    """Hold every unfinished run, and return these and the ones that wait for approval."""
    from ava_audit.store.store import Store
    from ava_server.runs.record.claims import hold_all, waiting_runs

    async with Store.open(root, "") as store:  # wherever the backup's settings, or a variable, have the log
        return await store.do(hold_all), await store.read(waiting_runs)


def erased_since(former: Path, restored: Path, manifest: Manifest) -> list[RunRow] | None:
    """Return the runs that were erased in the old data root after the backup, and whose content is back now.

    The old data root is beside the new one, with the same name and an ending, such as `ava.before`. Blocking.
    """
    from ava_audit.events import LogErased
    from ava_audit.store.sqlite import SqliteBackend
    from ava_audit.view import View

    for folder in sorted(former.parent.glob(f"{glob.escape(former.name)}.*/")):
        with suppress(AuditError, sqlite3.Error), closing(SqliteBackend(folder).open_to_check()) as db:
            entry = db.execute("SELECT hash FROM events WHERE seq = ?", (manifest.entries,)).fetchone()
            if entry is None or entry[0].hex() != manifest.head:
                continue
            erased: set[str] = set()
            for erasure in View(db).of_type("LogErased"):
                fact = erasure.fact
                if erasure.seq > manifest.entries and isinstance(fact, LogErased) and fact.whole and fact.run_id:
                    erased.add(fact.run_id)
            with closing(SqliteBackend(restored).open_to_check()) as restored_db:
                view = View(restored_db)
                runs = [view.run(run_id) for run_id in sorted(erased)]
                return [run for run in runs if run is not None]
    return None
