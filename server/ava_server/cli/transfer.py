"""`ava export`, `ava import` and `ava migrate`: the whole log as a file, a log from such a file, and its schema."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import anyio
import typer

from ava_server.cli.log_access import checked_root, open_log
from ava_server.cli.logs import replacement_of
from ava_server.cli.terminal import progress_on_terminal, say
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput, Refused

_File = Annotated[str, typer.Argument(metavar="FILE", help="The file with the log.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("export")(export_command)
    app.command("import")(import_command)
    app.command("migrate")(migrate_command)


def export_command(
    file: _File, force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False
) -> None:
    """Write every entry of the log to a file, for `ava import`: its content, its hashes, and the chain.

    Stop servers first if the log is to move: what they write later is not in the file. Only you can read it.
    """
    root = checked_root("ava export")
    anyio.run(_export, root, Path(file), force)


async def _export(root: DataRoot, path: Path, force: bool) -> None:
    from ava_audit.transfer import export_log

    async with open_log(root) as store:
        if store is None:
            raise BadInput(f"There is no log in {root.path} yet; nothing was exported.")
        with replacement_of(path, force=force) as file, progress_on_terminal() as show:
            entries, head = await export_log(store, file, lambda done, of: show(f"{done:,} of {of:,} entries written"))
    say(f"{entries:,} {'entry' if entries == 1 else 'entries'} in {path}, readable only by you.")
    say(f"Head: {head}")
    say(f"To fill another log with it: ava import {path}")


def import_command(file: _File) -> None:
    """Fill the empty log of this data root from a file of `ava export`, and verify it: all of it or nothing.

    The log is where AVA_DATABASE_URL or `database_url` says: in a Postgres database, otherwise in ava.db.
    """
    from ava_audit.store.location import backend_of
    from ava_audit.transfer import import_log

    root = checked_root("ava import")
    path = Path(file)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise BadInput(f"{path} is not a regular file; nothing was imported.")
        lines = path.open("rb")
    except OSError as failed:
        raise BadInput(f"{path} cannot be read: {failed.strerror}; nothing was imported.") from None
    root.create()
    backend = backend_of(root.path)
    with lines, progress_on_terminal() as show:
        report = import_log(backend, lines, lambda done, of: show(f"{done:,} of {of:,}"))
    if not report.ok:
        raise Refused(f"The imported log has a fault: {report.faults[0].text}. `ava verify` tells more.")
    say(f"{report.entries:,} {'entry' if report.entries == 1 else 'entries'} imported into {backend.place}, verified.")
    say(f"Head: {report.head}")


def migrate_command() -> None:
    """Bring the log to the schema of this version, as the next server does when it starts; make a missing one."""
    from ava_audit.store.location import backend_of
    from ava_audit.store.schema import SCHEMA_VERSION

    root = checked_root("ava migrate")
    root.create()
    backend = backend_of(root.path)
    backend.prepare()
    backend.close()
    say(f"{backend.place} has schema {SCHEMA_VERSION}.")
