"""`ava logs`: the log of a run or of all, one line per entry, newest last; `ava logs export`: a file of JSON lines.

`ava export`, `ava import` and `ava migrate`: the whole log as a file, a log from such a file, and its schema.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import anyio
import anyio.to_thread
import typer

from ava_audit.errors import BadQuery
from ava_audit.rows import RunRow
from ava_audit.units import counted
from ava_server.cli import terminal
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, find_runs, open_log
from ava_server.cli.log_look import NoLog, run_at_once
from ava_server.cli.options import (
    TokenFile,
    Until,
    Url,
    Utc,
    agents,
    all_runs,
    event_types,
    split_names,
)
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.terminal import columns, heading, progress_on_terminal, say, styled, write_lines
from ava_server.core.commands import advice
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import AGENT, label, parse_id, read_span
from ava_server.core.threads import run_async

if TYPE_CHECKING:
    from ava_audit.entries import Entry
    from ava_audit.search import LogQuery
    from ava_audit.store.store import Store
    from ava_audit.view import View
    from ava_server.cli.record_client import Records

LAST = 50
LAST_FOLLOWED = 10
MOST = 10_000
"""Entries of a time range that are shown when `--last` does not say how many."""
PIPED_WIDTH = 1_000
STDOUT = "-"
_ROWS_AT_ONCE = 500
_NO_LOG = "There is no log in {} yet; nothing was exported."
_WHEN = re.compile(r"\[[\d :.-]+(Z|[+-]\d\d:?\d\d)?\]")

_LAST = f"So many of the newest entries; {LAST} by default, all with --since or --until."
_KINDS = "error, tool, cost, thinking, spawn, complete, message, session, or an event type, with commas."
Kinds = Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help=_KINDS, autocompletion=event_types)]
Since = Annotated[str | None, typer.Option(metavar="TIME", help='"1 hour ago", 30m, yesterday, 14:05, 2026-01-31 …')]
Search = Annotated[str | None, typer.Option(metavar="WORDS", help='All these words; "words together" in quotes.')]
Agents = Annotated[
    list[str] | None, typer.Option(metavar="ID", help="Only of this agent: ava, or S-….", autocompletion=agents)
]
Users = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only of this user.")]
Sessions = Annotated[list[str] | None, typer.Option(metavar="ID", help="Only of this host connection.")]
Level = Annotated[Literal["info", "warning", "error"] | None, typer.Option(help="At least this serious.")]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")]
_File = Annotated[str, typer.Argument(metavar="FILE", help="The file with the log.")]


def logs_command(
    context: typer.Context,
    subagent: Annotated[
        str | None, typer.Argument(metavar="[S-ID]", help="What this subagent did.", autocompletion=all_runs)
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, max=1_000_000, help=_LAST)] = None,
    kind: Kinds = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    agent: Agents = None,
    user: Users = None,
    session: Sessions = None,
    level: Level = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the bookkeeping: sessions, claims, reservations, rendered prompts.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what any process writes, until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as in the files under logs/.")
    ] = False,
    utc: Utc = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show the newest entries of the log, oldest first: of your last run, or of one run.

    With any option but --utc, it shows those of all runs. It leaves out the bookkeeping, unless --all, --type,
    --session or --json asks for it.
    """
    if follow and until is not None:
        raise BadInput("--until: nothing new is before a time; leave --follow or --until out.")
    from ava_audit.search import LogQuery
    from ava_server.render.entry_lines import BOOKKEEPING

    server = chosen_server(context, url, token_file)
    query = _query(kind, since, until, agent, user, session, search=search, level=level)
    has_filter = last is not None or query != LogQuery()
    of_last = subagent is None and not (everything or follow or as_json or has_filter)
    of_one_run = subagent is not None or of_last
    of_errors = level is not None or "error" in map(str.lower, query.types)
    shows_bookkeeping = everything or as_json or kind or session
    without = () if shows_bookkeeping else BOOKKEEPING
    query = replace(query, limit=last or _default_limit(query, follow), without=without)
    printer = _Printer(as_json, utc, whole_errors=of_one_run or of_errors)
    _run(server, follow, partial(_logs, query, subagent, of_last, printer, follow))


def _default_limit(query: LogQuery, follow: bool) -> int:
    if follow:
        return LAST_FOLLOWED
    if query.since_us is not None or query.until_us is not None:
        return MOST
    return LAST


def _run(
    server: Connection | None,
    follow: bool,
    show: Callable[[AbstractAsyncContextManager[Records]], Coroutine[Any, Any, None]],
) -> None:
    """Show a log of this machine without an event loop, where it is only to be looked at: that starts faster."""
    from ava_server.cli.record_client import look_at_records, open_records

    if server is None and not follow:
        records = look_at_records(find_data_root())
        if records is not None:
            return run_at_once(show(nullcontext(records)))
    return run_async(show, open_records(server, find_data_root, make=follow))


class _Printer:
    """Writes entries as lines for people, or as lines of the mirror; notes whether a line was cut."""

    def __init__(self, as_json: bool, utc: bool, *, whole_errors: bool) -> None:
        self.as_json = as_json
        self.was_cut = False
        self._utc = utc
        self._whole_errors = whole_errors
        self._terminal = sys.stdout.isatty()

    def remark(self, text: str) -> None:
        if not self.as_json:
            say(text)

    def entries(self, records: Records, entries: list[Entry]) -> None:
        if self.as_json:
            for start in range(0, len(entries), _ROWS_AT_ONCE):
                lines = [records.lines[entry.seq] for entry in entries[start : start + _ROWS_AT_ONCE]]
                write_lines(b"".join(lines))
            return
        from ava_server.render.entry_lines import entry_line

        for entry in entries:
            line = entry_line(entry, names=records.names, utc=self._utc, width=PIPED_WIDTH)
            if self._terminal:
                self._draw(line, entry)
            else:
                say(line)

    def _draw(self, line: str, entry: Entry) -> None:
        from ava_server.render.entry_lines import is_trouble

        if not self._whole_errors or not is_trouble(entry):
            fitting = terminal.cut(line, columns())
            self.was_cut |= fitting != line
            line = fitting
        parts = terminal.wrapped_lines(line, columns())
        terminal.write("\n".join(_in_colour(part, entry) for part in parts))


def _in_colour(line: str, entry: Entry) -> str:
    """Errors are red, warnings yellow, a time dim."""
    colour = None
    if entry.fact is not None:
        colour = {"error": "red", "warning": "yellow"}.get(entry.fact.severity)
    time, text = "", line
    when = _WHEN.match(line)
    if when is not None:
        time, text = line[: when.end()], line[when.end() :]
    if colour is not None:
        text = styled(text, fg=colour)
    return styled(time, dim=True) + text


async def _logs(
    query: LogQuery,
    subagent: str | None,
    of_last: bool,
    printer: _Printer,
    follow: bool,
    opened: AbstractAsyncContextManager[Records],
) -> None:
    async with opened as records:
        if not printer.as_json:
            heading(records.place)
        last = None
        if of_last:
            last = await records.find_last()
        if last is not None:
            subagent = last.id
            say(f"Your last run: {label(last)}. The log of all agents: {advice(f'ava logs --last {LAST}')}")
        if subagent is not None:
            run = await records.find_one(subagent)
            query = replace(query, agents=(*query.agents, run.id))
        try:
            page = await records.search(query)
        except NoLog:
            return printer.remark("Nothing is in the log yet.")
        if page.next is not None and not follow:
            count = len(page.entries)
            newest = "entry" if count == 1 else f"{count:,} entries"
            printer.remark(f"The newest {newest}; --last shows more.")
        printer.entries(records, list(reversed(page.entries)))
        if not page.entries and not follow:
            printer.remark("No entry matches.")
        if printer.was_cut:
            how = advice("`ava show S-…` shows a run with its whole result")
            say(f"Lines were cut to fit; --json shows them whole, and {how}.")
        if follow:
            progress = terminal.Progress()
            records.wait_for_server(progress.wait_for)
            async with terminal.reader_gone(sys.stdout):
                async for entry in records.follow(replace(query, after_seq=page.upto)):
                    progress.end()
                    printer.entries(records, [entry])


# -- the query ---------------------------------------------------------------------------------------------------------


def _query(
    kind: list[str] | None,
    since: str | None,
    until: str | None,
    agent: list[str] | None,
    user: list[str] | None,
    session: list[str] | None,
    **more: Any,
) -> LogQuery:
    """Return a query; `more` is what else it has. Raises BadInput: names an option that cannot be understood."""
    from ava_audit.search import LogQuery, type_filter

    types = tuple(split_names(kind) or ())
    if kind is not None and not types:
        raise BadInput("--type: it names no type; leave it out for all of them")
    try:
        type_filter(types)
    except BadQuery as error:
        raise BadInput(f"--type: {error}") from None
    since_us, until_us = read_span(since, until, dashes="--")
    return LogQuery(
        agents=tuple(_agent(name) for name in agent or ()),
        users=tuple(user or ()),
        sessions=tuple(session or ()),
        types=types,
        since_us=since_us,
        until_us=until_us,
        **more,
    )


def _agent(text: str) -> str:
    if text.strip().lower() == AGENT:
        return AGENT
    try:
        return parse_id("subagent_id", text)
    except BadInput:
        raise BadInput(f"--agent: {text[:40]!r} is not an agent; give ava, or a subagent's id like S-7f3a2b") from None


# -- export ------------------------------------------------------------------------------------------------------------


@in_event_loop
async def logs_export_command(
    out: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to; - is stdout.")],
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="S-ID", help="All of this run: what it did, and what was decided about it."),
    ] = None,
    kind: Kinds = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    agent: Agents = None,
    user: Users = None,
    session: Sessions = None,
    level: Level = None,
    force: Force = False,
) -> None:
    """Write entries as JSON lines, oldest first, as in the files under logs/: everything, or what the options say.

    Only you can read the file. It is written whole or not at all, and `ava verify --jsonl FILE` checks it.
    """
    root = find_data_root()
    query = _query(kind, since, until, agent, user, session, search=search, level=level)
    async with open_log(root) as store:
        runs = await find_runs(store, run or ())
        query = replace(query, runs=tuple(each.id for each in runs))
        if store is None:
            raise BadInput(_NO_LOG.format(root.path))
        if out == STDOUT:
            await _copy(store, query, sys.stdout.buffer)
            return
        path = Path(out)
        with replacement_of(path, "-o", force=force) as file:
            entries = await _copy(store, query, file)
    heading(root)
    say(_file_text(entries, path))
    say(f"Check it, here or elsewhere, with: ava verify --jsonl {shlex.quote(str(path))}")


async def _copy(store: Store, query: LogQuery, file: IO[bytes]) -> int:
    from ava_audit.search import export_lines

    entries = 0
    async with aclosing(export_lines(store, query)) as slices:
        with progress_on_terminal() as show:
            async for lines in slices:
                if file is sys.stdout.buffer:
                    write_lines(lines.data)
                else:
                    await anyio.to_thread.run_sync(file.write, lines.data)
                entries += lines.entries
                show(f"{entries:,} entries written; {lines.upto:,} of {lines.of:,} looked at")
    return entries


@contextmanager
def replacement_of(path: Path, option: str, *, force: bool) -> Generator[IO[bytes]]:
    """Open a new file, readable only by its owner; it replaces `path` if the block succeeds, else it is removed.

    Raises BadInput if a file exists and `force` is not set, or none can be written there; names the option.
    """
    _refuse_existing(path, option, force=force)
    beside = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _refuse_existing(path, option, force=force)  # it may have appeared meanwhile
        beside.replace(path)
    except OSError as error:
        raise BadInput(
            f"{option}: {path} cannot be written: {error.strerror}. Give a file in a folder that you may write to."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _refuse_existing(path: Path, option: str, *, force: bool) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there; what else is wrong shows when it is made
        return
    if not stat.S_ISREG(mode):
        instead = "give another name"
        if option == "-o":
            instead += ", or - for stdout"
        raise BadInput(f"{option}: {path} exists and is not a plain file; {instead}.")
    if not force:
        raise BadInput(f"{option}: {path} exists already; give another name, or --force to replace it.")


def _file_text(entries: int, path: Path) -> str:
    return f"{counted(entries, 'entry', 'entries')} in {path}, readable only by you."


# -- the whole log ----------------------------------------------------------------------------------------------------


@in_event_loop
async def export_command(file: _File, force: Force = False) -> None:
    """Write every entry of the log to a file, for `ava import`: its content, its hashes, and the chain.

    Stop servers first if the log is to move: what they write later is not in the file. Only you can read it.
    """
    from ava_audit.transfer import export_log

    if file == STDOUT:
        raise BadInput(f"FILE: the whole log goes to a file that only you can read, not to stdout; ./{file} is one.")
    root = checked_root("ava export")
    path = Path(file)
    async with open_log(root) as store:
        if store is None:
            raise BadInput(_NO_LOG.format(root.path))
        with replacement_of(path, "FILE", force=force) as lines, progress_on_terminal() as show:
            entries, head = await export_log(store, lines, lambda done, of: show(f"{done:,} of {of:,} entries written"))
    say(_file_text(entries, path))
    say(f"Head: {head}")
    say(f"To fill another log with it: ava import {shlex.quote(str(path))}")


def import_command(
    file: _File,
    go_on: Annotated[
        bool, typer.Option("--continue", help="I am moving my own log: unfinished subagents continue by themselves.")
    ] = False,
) -> None:
    """Fill the empty log of this data root from a file of `ava export`, and verify it: all of it or nothing.

    The log is where AVA_DATABASE_URL or `database_url` says: in a Postgres database, otherwise in ava.db. Unfinished
    subagents are held, because only the file says that they were approved: each continues, and spends, only after a
    person resumes it.
    """
    from ava_audit.store.sqlite import backend_of
    from ava_audit.transfer import import_log
    from ava_audit.view import Outcome
    from ava_server.cli.backup import held_lines
    from ava_server.runs.record.claims import hold_all

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

    def hold_none(_view: View, _now_us: int) -> Outcome[list[RunRow]]:
        return Outcome([])

    then = hold_none if go_on else hold_all
    with lines, progress_on_terminal() as show:
        imported = import_log(backend, lines, lambda done, of: show(f"{done:,} of {of:,}"), then)
    if not imported.report.ok:
        raise Refused(f"The imported log has a fault: {imported.report.faults[0].text}. `ava verify` tells more.")
    say(f"{counted(imported.entries, 'entry', 'entries')} imported into {backend.place}, verified.")
    say(f"Head: {imported.head}")
    for line in held_lines(imported.done):
        say(line)


def migrate_command() -> None:
    """Copy a log that an older version wrote and bring it to this version, as a server does; make a missing one."""
    from ava_audit.store.backend import OlderSchema
    from ava_audit.store.schema import SCHEMA_VERSION
    from ava_audit.store.sqlite import backend_of

    root = checked_root("ava migrate")
    root.create()
    backend = backend_of(root.path)
    copy = backend.prepare(older=OlderSchema.COPY_AND_MIGRATE)
    backend.close()
    say(f"{backend.place} has schema {SCHEMA_VERSION}.")
    if copy is not None:
        say(f"The log as it was before is in {copy}. Remove it once you no longer want to go back.")
