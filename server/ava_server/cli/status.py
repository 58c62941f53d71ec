"""`ava status`: what waits, runs and has ended lately, what is left of today's money, and Ava's health.

`status_overview` looks at the data root without changing it and judges what it finds; `status_page` renders both as
lines of rich text. The dashboard of the extra shows the same, live.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_extras import load
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import Everybody, Json, TokenFile, Url
from ava_server.cli.remote import Connection, chosen_server
from ava_server.cli.terminal import Place, heading, named_root, place_json, say_json, screen_columns, write
from ava_server.core.data_root import find_data_root, has_log
from ava_server.core.threads import run_async

if TYPE_CHECKING:
    from rich.text import Text

    from ava_server.cli.status_overview import SandboxProbe
    from ava_server.config.settings import Settings
    from ava_server.service.checks import CheckFinding
    from ava_server.service.run_records import CurrentViews

MOST = 200
"""Runs that the dashboard reads in full each second, of those that have not ended and of those that have."""
SHOWN_WITHIN_S, JSON_WITHIN_S = 0.5, 5.0
"""How long the sandbox probe may delay `--once` and `--json`."""


def status_command(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Show it once; as it also is without a terminal.")] = False,
    everybody: Everybody = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show the runs that wait, work or ended within the hour, today's spending, and Ava's health.

    In a terminal it updates until q or Ctrl-C, and you can approve, reject, cancel and answer in it: ? explains the
    keys. With --url, it prints once.
    """
    if (server := chosen_server(context, url, token_file)) is not None:
        return run_async(_show_server, server, everybody, as_json)

    has_log(find_data_root())
    settings = read_settings()
    from ava_server.cli.status_overview import OverviewReader, SandboxProbe

    probe = SandboxProbe(settings.sandbox.mode)
    try:
        if as_json or once or not (_can_draw() and sys.stdin.isatty() and sys.stderr.isatty()):
            probe.begin()
            return _show_once(settings, probe, everybody=everybody, as_json=as_json)
        with closing(OverviewReader(settings, everybody=everybody, most=MOST)) as reader:
            code: int = run_async(load("dashboard").show, reader, probe)
    finally:
        probe.end()
    raise typer.Exit(code)


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _show_once(settings: Settings, probe: SandboxProbe, *, everybody: bool, as_json: bool) -> None:
    from ava_server.cli.log_look import run_at_once
    from ava_server.cli.status_overview import OverviewReader, health, health_json

    with closing(OverviewReader(settings, everybody=everybody, most=sys.maxsize)) as reader:
        overview = run_at_once(reader.look())
    if overview.trouble is not None:
        raise overview.trouble
    confined = probe.found(JSON_WITHIN_S if as_json else SHOWN_WITHIN_S)
    found = tuple(health(overview, reader.settings, confined))
    more = {"health": health_json(overview, found, confined)} if as_json else {}
    _show(reader.settings.paths, overview.now, found, everybody=everybody, as_json=as_json, more=more)


async def _show_server(server: Connection, everybody: bool, as_json: bool) -> None:
    from ava_server.cli.record_client import open_server_records
    from ava_server.service.checks import CheckFinding
    from ava_server.service.record_requests import CURRENT

    async with open_server_records(server) as records:
        now = await records.get(CURRENT, all=everybody)
        if (token := now.token) is None:
            raise server.not_ava()
        text = f"it answers, with Ava {token.version}; the token of {token.user} has {', '.join(token.scopes)}"
        answers = CheckFinding("server", "ok", text)
        more = {"user": token.user, "version": token.version}
        command = server.command
        _show(server.address, now, (answers,), everybody=everybody, as_json=as_json, more=more, command=command)


def _show(
    place: Place,
    now: CurrentViews,
    found: tuple[CheckFinding, ...],
    *,
    everybody: bool,
    as_json: bool,
    more: Mapping[str, Any],
    command: str = "ava",
) -> None:
    """Show what goes on at a place; `more` are fields that only its JSON has."""
    from ava_server.cli.status_overview import current_json
    from ava_server.cli.status_page import Page

    if as_json:
        return say_json({**place_json(place), **current_json(now), **more})
    root = "" if isinstance(place, str) else named_root(place)
    if isinstance(place, str):
        heading(place)
    page = Page(root, now, found, screen_columns(), everybody=everybody, command=command)
    return _write(page.whole())


def _write(lines: list[Text]) -> None:
    if not _can_draw():
        return write("\n".join(line.plain.rstrip() for line in lines))
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with console.capture() as captured:
        for line in lines:
            console.print(line)
    return write(captured.get().removesuffix("\n"))
