"""`ava ui`: opens the pages of this machine's data root, or of another server, in the browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated
from urllib.parse import quote, urlsplit

import typer

from ava_extras import require
from ava_roles.sandbox.sandbox import path_outside
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.log_access import checked_root, read_settings
from ava_server.cli.terminal import counted, heading, say, someone_there
from ava_server.config.role_folders import checkout_here
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput

_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Variables that a system with X11 or Wayland sets for programs with windows; an editor's terminal sets BROWSER."""
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")]


def ui_command(
    context: typer.Context,
    browser: Browser = True,
    sign_out: Annotated[bool, typer.Option("--sign-out", help="Sign every browser out instead.")] = False,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Open the pages of this server instead; default: AVA_URL.")
    ] = None,
) -> None:
    """Open the pages of this machine's data root in the default browser.

    A server for them starts in the background, for this user alone, and stops 30 minutes after the last page was
    closed. The address has a code that works once, within 10 minutes. With --url, the pages of a team's server open,
    where you sign in with a token.
    """
    from ava_server.cli.remote import given_server

    refuse_in_subagent("ava ui")
    if (server := given_server(context, url)) is not None:
        return _open_remote(server.address, browser=browser, sign_out=sign_out)
    root = checked_root()
    if not sign_out:
        return open_pages(root, browser=browser, terminal=someone_there())
    from ava_server.config.sign_in import BrowserSessions

    ended = BrowserSessions(root.browser_sessions).end_all()
    say(f"Signed out {counted(ended, 'browser')}. Addresses that were not opened yet are invalid.")
    return None


def open_pages(root: DataRoot, *, browser: bool, terminal: bool, page: str | None = None) -> None:
    """Serve the pages of this machine's data root, and open `page` (path and query), or say how.

    `terminal`: somebody at a terminal asked for it.
    """
    from ava_server.config.sign_in import BrowserSessions
    from ava_server.core.local_server import start_pages

    require("web")
    read_settings()  # what is wrong in them is said here, not in the server's output
    address = start_pages(root)
    code = BrowserSessions(root.browser_sessions).issue_code(os_user(), terminal=terminal)
    opening = f"{address}/enter?code={code}" + ("" if page is None else f"&to={quote(page, safe='')}")
    if browser and _opens(opening):
        say(f"Opened {address} in your browser. If no page appears, open this address, which works once: {opening}")
        return
    say(f"Open this address in a browser on this machine. It works once, within 10 minutes: {opening}")
    if forward := _forward(urlsplit(address).port or 0):
        say(f"To open it on the machine that you sit at, run this there first, and leave it open: {forward}")


def _open_remote(address: str, *, browser: bool, sign_out: bool) -> None:
    """The person signs in there. Raises BadInput: sessions there were to be ended."""
    if sign_out:
        raise BadInput(
            "--sign-out is for this machine's data root. On another server, sign out on its page; a token that is"
            " revoked ends its sessions."
        )
    heading(address)
    done = "Opened it in your browser" if browser and _opens(address) else f"Open {address} in a browser"
    say(f"{done}, and sign in with your token.")


def _opens(address: str) -> bool:
    """Tell whether a browser with a window was opened.

    In a session over SSH it would open on the wrong machine, and a text browser would take the terminal.
    """
    # The address signs whoever opens it in, so no program of the project may do that. The module looks at once.
    os.environ["PATH"] = path_outside(os.environ.get("PATH", os.defpath), checkout_here())
    import webbrowser

    graphical = any(os.environ.get(name) for name in _DISPLAYS)
    remote = bool(os.environ.get("SSH_CONNECTION"))
    if not graphical and (remote or sys.platform not in ("win32", "darwin")):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False


def _forward(port: int) -> str:
    """Return the command that forwards a port to the machine at the other end of SSH; empty without SSH."""
    parts = os.environ.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return ""
    _client, _client_port, host, ssh_port = parts
    other_port = "" if ssh_port == "22" else f"-p {ssh_port} "
    return f"ssh {other_port}-L {port}:localhost:{port} {os_user()}@{host}"
