"""`ava ui`: opens the pages of this machine's data root in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.log_access import checked_root
from ava_server.cli.terminal import heading, say, someone_there
from ava_server.core.data_root import os_user


def register(app: typer.Typer) -> None:
    """Add `ava ui` to the app."""
    app.command("ui", short_help="See runs, costs and the log in a browser, and decide there.")(ui_command)


def ui_command(
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    sign_out: Annotated[bool, typer.Option("--sign-out", help="End all sessions of browsers, and open none.")] = False,
) -> None:
    """Open the pages of this machine's data root in the default browser.

    A server for them starts in the background, for this user alone, and stops 30 minutes after the last page was
    closed. The address has a code that works once, within 10 minutes. For the pages of a team's server, open the
    server's address and sign in with a token. --sign-out signs out every browser, also those of users over HTTP.
    """
    import webbrowser

    from ava_server.core.local_server import start_pages
    from ava_server.web.sessions import BrowserSessions

    refuse_in_subagent("ava ui")
    root = checked_root(show=False)
    sessions = BrowserSessions(root.browser_sessions)
    if sign_out:
        ended = sessions.end_all()
        say(f"Signed out {ended} {'browser' if ended == 1 else 'browsers'}. Unused codes do not work any more.")
        return
    address = start_pages(root)
    code = sessions.issue_code(os_user(), terminal=someone_there())
    opening = f"{address}/enter?code={code}"
    heading(root)
    if browser and webbrowser.open(opening):
        say(f"Opened {address} in your browser. If no page appears, open this address, which works once: {opening}")
    else:
        say(f"Open this address in a browser on this machine. It works once, within 10 minutes: {opening}")
