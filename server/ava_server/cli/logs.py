"""`ava logs`: the log, one line an entry, newest last."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli import export
from ava_server.cli.app import heading
from ava_server.cli.completion import all_runs
from ava_server.cli.filters import Agents, Kinds, Level, Search, Sessions, Since, Until, Users, log_query
from ava_server.cli.terminal import columns, cut, reader_gone, say, write_lines
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.entries import Entry
    from ava_audit.search import LogQuery
    from ava_audit.store.store import Store
    from ava_server.core.data_root import DataRoot

LAST = 50
LAST_FOLLOWED = 10
MOST = 10_000
"""Entries of a time range that are shown when `--last` does not say how many."""
PIPED_WIDTH = 1_000


def register(app: typer.Typer) -> None:
    """Add `ava logs` and what stands below it to the app."""
    app.command("logs", short_help="The log of all agents, or of some; -f goes on with what is new.")(logs_command)
    export.register(app)


def logs_command(
    subagent: Annotated[
        str | None,
        typer.Argument(
            metavar="[S-ID]", show_default=False, help="Only what this subagent did.", autocompletion=all_runs
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            show_default=False,
            help=f"So many of the newest entries; {LAST} by default, all with --since or --until.",
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
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what any process writes, until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as in the files under logs/.")
    ] = False,
    utc: Annotated[bool, typer.Option("--utc", help="Times in UTC.")] = False,
) -> None:
    """Show the log of all agents, or of some: newest entries, oldest first."""
    if follow and until is not None:
        raise BadInput("--until: nothing new is before a time; leave --follow or --until out.")
    root = find_data_root()
    ranged = since is not None or until is not None
    query = log_query(
        kind=kind,
        since=since,
        until=until,
        search=search,
        agent=agent,
        user=user,
        session=session,
        level=level,
        limit=last or (LAST_FOLLOWED if follow else MOST if ranged else LAST),
    )
    if not as_json:
        heading(root)
    errors = subagent is not None or level is not None or "error" in (name.lower() for name in query.types)
    anyio.run(_logs, root, query, subagent, _Printer(as_json, utc, whole_errors=errors), follow)


class _Printer:
    """Writes entries as lines for people, or as lines of the mirror; notes whether a line was cut."""

    def __init__(self, as_json: bool, utc: bool, *, whole_errors: bool) -> None:
        self.as_json = as_json
        self.was_cut = False
        self._utc = utc
        self._whole_errors = whole_errors
        self._terminal = sys.stdout.isatty()

    async def entries(self, store: Store, entries: list[Entry]) -> None:
        """Write entries in the order given."""
        from ava_audit.entries import mirror_line
        from ava_server.service.logs import entry_line, is_trouble, names_of

        if not self.as_json:
            names = await store.read(lambda view: names_of(view, entries))
            for entry in entries:
                line = entry_line(entry, names=names, utc=self._utc, width=PIPED_WIDTH)
                shown = line
                if self._terminal and not (self._whole_errors and is_trouble(entry)):
                    shown = cut(line, columns())
                    self.was_cut |= shown != line
                say(shown)
            return
        for start in range(0, len(entries), 500):
            numbers = [entry.seq for entry in entries[start : start + 500]]
            marks = ", ".join("?" * len(numbers))
            rows = await store.read(lambda view, n=numbers, m=marks: list(view.rows(f"seq IN ({m})", *n)))  # type: ignore[misc]
            write_lines(b"".join(mirror_line(row) for row in rows))


async def _logs(root: DataRoot, query: LogQuery, subagent: str | None, printer: _Printer, follow: bool) -> None:
    from dataclasses import replace

    from ava_audit import search as log_search
    from ava_server.cli.log_access import find_run, open_log

    async with open_log(root, make=follow) as store:
        if subagent is not None:
            run = await find_run(store, subagent)
            query = replace(query, agents=(*query.agents, run.id))
        if store is None:
            if not printer.as_json:
                say("Nothing is in the log yet.")
            return
        page = await log_search.search(store, query)
        if page.next is not None and not printer.as_json and not follow:
            count = len(page.entries)
            say(f"The newest {'entry' if count == 1 else f'{count:,} entries'}; --last shows more.")
        await printer.entries(store, list(page.entries[::-1]))
        if not page.entries and not printer.as_json and not follow:
            say("No entry fits.")
        if printer.was_cut:
            say("Lines were cut to fit; --json has all of each, and `ava show S-…` a run with its whole result.")
        if follow:
            async with reader_gone():
                async for entry in log_search.follow(store, replace(query, after_seq=page.upto)):
                    await printer.entries(store, [entry])
