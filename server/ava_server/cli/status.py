"""`ava status`: what waits, runs and has ended lately, what is left of today's money, and how everything is."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli.log_access import has_log
from ava_server.cli.terminal import columns, say_json, write
from ava_server.core.data_root import find_data_root

if TYPE_CHECKING:
    from rich.text import Text

    from ava_server.cli.dashboard.confined import Confined
    from ava_server.config.settings import Settings

MOST = 200
"""So many runs are looked at closely each second, of those that go on and of those that have ended."""
NO_LIMIT = sys.maxsize
SHOWN_WITHIN_S, JSON_WITHIN_S = 0.5, 5.0
"""How long finding out what confines commands may hold up what is shown once."""


def register(app: typer.Typer) -> None:
    """Add `ava status` to the app."""
    app.command("status", short_help="A dashboard: runs, today's spending, and how everything is.")(status_command)


def status_command(
    once: Annotated[bool, typer.Option("--once", help="Show it once; as it also is without a terminal.")] = False,
    everybody: Annotated[bool, typer.Option("--all", help="The runs of all users, not only yours.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what waits, runs and has ended within the hour, today's spending, and how everything is.

    On a terminal it is kept up to date until q or Ctrl-C. It writes nothing.
    """
    from ava_server.config.settings import load_settings

    has_log(find_data_root())
    settings = load_settings()
    from ava_server.cli.dashboard.confined import Confined

    confined = Confined(settings.sandbox.mode)
    try:
        if as_json or once or not _can_draw():
            confined.begin()
            return _once(settings, confined, everybody=everybody, as_json=as_json)
        code = _live(settings, confined, everybody=everybody)
    finally:
        confined.end()
    raise typer.Exit(code)


def _live(settings: Settings, confined: Confined, *, everybody: bool) -> int:
    from ava_server.cli.dashboard.live import Dashboard
    from ava_server.cli.dashboard.looking import Looker

    async def show() -> int:
        return await Dashboard(Looker(settings, everybody=everybody, most=MOST), confined).show()

    return anyio.run(show)


def _can_draw() -> bool:
    """Tell whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _once(settings: Settings, confined: Confined, *, everybody: bool, as_json: bool) -> None:
    from ava_server.cli.dashboard.health import health
    from ava_server.cli.dashboard.looking import Looker

    looker = Looker(settings, everybody=everybody, most=NO_LIMIT)
    overview = looker.look()
    if overview.trouble is not None:
        raise overview.trouble
    kind = confined.known(JSON_WITHIN_S if as_json else SHOWN_WITHIN_S)
    found = tuple(health(overview, looker.settings, kind))
    if as_json:
        from ava_server.cli.dashboard.as_json import as_object

        return say_json(as_object(looker.settings, overview, found, kind))
    from ava_server.cli.dashboard.page import Page

    page = Page(
        root=str(looker.settings.data_root),
        overview=overview,
        health=found,
        width=columns(),
        at_us=time.time_ns() // 1000,
        everybody=everybody,
    )
    return _write(page.whole())


def _write(lines: list[Text]) -> None:
    """Write lines that are known to be harmless to stdout; in colours on a terminal that has them."""
    if not _can_draw():
        return write("\n".join(line.plain.rstrip() for line in lines))
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with console.capture() as captured:
        for line in lines:
            console.print(line)
    return write(captured.get().removesuffix("\n"))
