"""`ava report`: what was spent, by day, role, model and ending, and what failed; or what a group has come to."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ava_server.cli.app import heading
from ava_server.cli.completion import groups
from ava_server.cli.log_access import has_log
from ava_server.cli.terminal import say, say_json
from ava_server.core.data_root import find_data_root, os_user
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.core.data_root import DataRoot

T = TypeVar("T")

DAYS = 30


def register(app: typer.Typer) -> None:
    """Add `ava report` to the app."""
    app.command("report", short_help="What was spent, by day, role, model and ending, and what failed.")(report_command)


def report_command(
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help=f"From the day of this time on; {DAYS} days by default."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="Only before this time.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="The runs of all users, not only yours.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="G-ID",
            show_default=False,
            help="What a group has come to: members, cap, time.",
            autocompletion=groups,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what was spent and what failed; whole days, in UTC as those of the budgets."""
    root = find_data_root()
    if group is not None:
        if since is not None or until is not None:
            raise BadInput("--group: a group is shown whole; leave --since and --until out")
        _group(root, group, everybody, as_json)
        return
    first, last = days_of(since, until, time.time_ns() // 1000)
    _report(root, first, last, everybody, as_json)


def days_of(since: str | None, until: str | None, now_us: int) -> tuple[int, int]:
    """Return the first and the last day that are meant, in days since 1970, UTC.

    Raises:
        BadInput: One is no time, or nothing lies between them.
    """
    from ava_audit.units import DAY_US, parse_time

    def day(option: str, given: str, before_us: int = 0) -> int:
        try:
            return (parse_time(given, now_us, UTC) - before_us) // DAY_US
        except ValueError as error:
            raise BadInput(f"{option}: {error}") from None

    last = now_us // DAY_US if until is None else day("--until", until, 1)
    first = last - DAYS + 1 if since is None else day("--since", since)
    if first > last:
        raise BadInput("no day lies in that time: --since is later than --until, or than today")
    return max(0, first), last


def _read(root: DataRoot, query: Callable[[View], T]) -> T | None:
    """Ask the log, and leave no trace of it; None where there is none yet.

    Raises:
        ConfigError: The data root can be none.
        StoreUnavailable: The log cannot be read.
        SchemaNewer: A newer program has migrated it.
    """
    import sqlite3

    from ava_audit.errors import SchemaNewer, StoreUnavailable
    from ava_audit.store.schema import SCHEMA_VERSION
    from ava_server.cli.log_access import open_snapshot

    if not has_log(root):
        return None
    try:
        with open_snapshot(root.db) as found:
            if found.schema > SCHEMA_VERSION:
                raise SchemaNewer("a newer ava has migrated this log: use that one, or another AVA_DATA_ROOT")
            return query(found.view) if found.schema else None
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"the log {root.db} cannot be read: {error}; `ava doctor` tells more") from error


def _report(root: DataRoot, first: int, last: int, everybody: bool, as_json: bool) -> None:
    from ava_audit.totals import spending
    from ava_audit.units import DAY_US
    from ava_server.cli.report_screen import screen
    from ava_server.cli.report_sums import report_json, report_of

    user = None if everybody else os_user()
    found = _read(root, lambda view: spending(view, first * DAY_US, (last + 1) * DAY_US, user))
    report = report_of(found, first, last, user)
    if as_json:
        say_json({"data_root": str(root.path), **report_json(report)})
        return
    heading(root)
    if found is None or found.first_us is None:
        say("Nothing is in the log yet.")
    else:
        screen(report)


def _group(root: DataRoot, given: str, everybody: bool, as_json: bool) -> None:
    from ava_audit.totals import group_sum
    from ava_server.cli.report_group import group_json, group_screen
    from ava_server.core.ids import parse_id

    group_id = parse_id("group_id", given, "--group")
    found = _read(root, lambda view: group_sum(view, group_id))
    if found is None or not (everybody or found.group.user_id == os_user()):
        others = "" if everybody else " of yours; --all looks at those of all users"
        raise BadInput(f"--group: there is no group {group_id}{others} in this data root.")
    now_us = time.time_ns() // 1000
    if as_json:
        say_json({"data_root": str(root.path), **group_json(found, now_us)})
    else:
        heading(root)
        group_screen(found, now_us)
