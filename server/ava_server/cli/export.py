"""`ava logs export`: entries of the log as a file of JSON lines that can be verified by itself."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import heading
from ava_server.cli.filters import Agents, Kinds, Level, Search, Sessions, Since, Until, Users, log_query
from ava_server.cli.terminal import Progress, say, write_lines
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.search import LogQuery
    from ava_audit.store.store import Store
    from ava_server.core.data_root import DataRoot

STDOUT = "-"


def register(app: typer.Typer) -> None:
    """Add `ava logs export` to the app."""
    app.command("logs export", short_help="Entries as a file of JSON lines, which can be verified by itself.")(
        export_command
    )


def export_command(
    out: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to; - is stdout.")],
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S-ID", show_default=False, help="All of this run: what it did, and what was decided about it."
        ),
    ] = None,
    kind: Kinds = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    agent: Agents = None,
    user: Users = None,
    session: Sessions = None,
    level: Level = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write entries as JSON lines, oldest first, as in the files under logs/: everything, or what the options say.

    The file is for you alone, is there as a whole or not at all, and `ava verify --jsonl FILE` checks it.
    """
    root = find_data_root()
    query = log_query(
        kind=kind, since=since, until=until, search=search, agent=agent, user=user, session=session, level=level
    )
    anyio.run(_export, root, query, run or [], out, force)


async def _export(root: DataRoot, query: LogQuery, runs: list[str], out: str, force: bool) -> None:
    from dataclasses import replace

    from ava_server.cli.log_access import find_run, open_log

    async with open_log(root) as store:
        query = replace(query, runs=tuple([(await find_run(store, given)).id for given in runs]))
        if store is None:
            raise BadInput(f"There is no log in {root.path} yet; nothing was exported.")
        if out == STDOUT:
            await _copy(store, query, sys.stdout.buffer)
            return
        path = Path(out)
        with _in_place_of(path, force=force) as file:
            entries = await _copy(store, query, file)
    heading(root)
    say(f"{entries:,} {'entry' if entries == 1 else 'entries'} in {path}, for you alone to read.")
    say(f"Check it, here or elsewhere, with: ava verify --jsonl {path}")


async def _copy(store: Store, query: LogQuery, file: IO[bytes]) -> int:
    """Write what fulfils the query, and return how many entries that were."""
    from ava_audit.search import export_lines

    entries = 0
    shown = Progress() if sys.stderr.isatty() else None
    try:
        async with aclosing(export_lines(store, query)) as slices:
            async for lines in slices:
                if file is sys.stdout.buffer:
                    write_lines(lines.data)
                else:
                    await anyio.to_thread.run_sync(file.write, lines.data)
                entries += lines.entries
                if shown is not None:
                    shown.show(f"{entries:,} entries written; {lines.upto:,} of {lines.of:,} looked at")
    finally:
        if shown is not None:
            shown.end()
    return entries


@contextmanager
def _in_place_of(path: Path, *, force: bool) -> Generator[IO[bytes]]:
    """Give a new file, for its owner alone, that takes the place of `path` when the block ends well, and else goes.

    Raises:
        BadInput: There is a file and `force` does not say that it may go, or none can be written there.
    """
    _look(path, force=force)
    beside = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _look(path, force=force)  # it may have come meanwhile
        beside.replace(path)
    except OSError as failed:
        raise BadInput(
            f"-o: {path} cannot be written: {failed.strerror}. Give a file in a folder that you may write to."
        ) from failed
    finally:
        beside.unlink(missing_ok=True)


def _look(path: Path, *, force: bool) -> None:
    """Refuse to write over what is there."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there; what else is wrong shows when it is made
        return
    if not stat.S_ISREG(mode):
        raise BadInput(f"-o: {path} is there and is no plain file; give another name, or - for stdout.")
    if not force:
        raise BadInput(f"-o: {path} is there already; give another name, or --force to replace it.")
