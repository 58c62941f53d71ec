"""`ava ui` and `ava passkey`: the pages in a browser, of this machine or of another server, and who approves there."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from ava_audit.units import counted, iso_second
from ava_extras import require
from ava_roles.sandbox.sandbox import path_outside
from ava_server.cli.app import in_event_loop, refuse_in_subagent
from ava_server.cli.log_access import checked_root, read_settings, record_setting
from ava_server.cli.options import Json
from ava_server.cli.remote import given_server
from ava_server.cli.secret_input import require_person
from ava_server.cli.terminal import aligned, heading, present, say, someone_there
from ava_server.config import tokens
from ava_server.config.role_folders import checkout_here
from ava_server.config.sign_in import Passkeys, passkey_name
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput
from ava_server.core.threads import run_async

passkey_command = typer.Typer(no_args_is_help=True)

_Device = Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. the device that has it.")]
_Owner = Annotated[
    str | None,
    typer.Option("--user", metavar="USER", help="The user over HTTP whose passkey it is; default: you, in `ava ui`."),
]


# -- ava passkey ------------------------------------------------------------------------------------------------------


@passkey_command.command("add", short_help="Add a passkey, for approvals in the browser.")
def add_passkey_command(name: _Device, user: _Owner = None, browser: Browser = True) -> None:
    """Open the page of `ava ui` on which you add a passkey. From then on, approvals there take it.

    With --user, print a code instead. The user signs in at the server's address with their token, and enters the code
    under Passkeys. It works once, within 10 minutes. If an approval PIN is set, it is asked for.
    """
    from ava_server.config.sign_in import BrowserSessions

    require("web")
    root = checked_root("ava passkey add")
    name, owner = passkey_name(name), _owner(user)
    run_async(require_person, root, "ava passkey add")
    Passkeys(root.passkeys).check_new(owner, name)
    root.create()
    code = BrowserSessions(root.browser_sessions).issue_passkey_code(owner, name)
    if user is None:
        open_pages(root, browser=browser, terminal=True, page=f"/passkeys/new?code={code}")
        return
    say(f"{owner} signs in at the server's address, chooses Passkeys, and enters this code. It works once, within")
    say(f"10 minutes, and anyone with it and a token of {owner} can approve from then on:")
    say(code)


def _owner(user: str | None) -> str:
    """Return whose passkey a command is about. Raises BadInput if it is no user's name."""
    if user is None:
        return os_user()
    return tokens.user_name(user)


@passkey_command.command("list", short_help="List names, users, sites and last use.")
def list_passkeys_command(as_json: Json = False) -> None:
    """List the passkeys: their names, users, sites and last use."""
    root = checked_root(show=False)
    known = Passkeys(root.passkeys).all()
    entries: list[dict[str, Any]] = []
    rows: list[tuple[str, str]] = []
    for one in known:
        used, last_use = None, "never used"
        if one.used_us is not None:
            used = iso_second(one.used_us)
            last_use = f"last used {used}"
        entries.append({"name": one.name, **one.on_record(), "created": iso_second(one.created_us), "used": used})
        rows.append((one.name, f"{one.user}; for {one.host}; {last_use}"))
    none = ["No passkeys. Add one with `ava passkey add NAME`."]
    present(root, as_json, {"passkeys": entries}, aligned(rows) or none)


@passkey_command.command("remove", short_help="Remove a passkey.")
@in_event_loop
async def remove_passkey_command(name: _Device, user: _Owner = None) -> None:
    """Remove a passkey: it approves nothing more. If an approval PIN is set, it is asked for."""
    root = checked_root("ava passkey remove")
    name, owner = passkey_name(name), _owner(user)
    await require_person(root, "ava passkey remove")
    passkey = Passkeys(root.passkeys).remove(owner, name)
    if passkey is None:
        raise BadInput(f"{owner} has no passkey {name}. `ava passkey list` shows all.")
    await record_setting(root, f"passkeys.{name}", passkey.on_record(), None)
    say(f"The passkey {name} of {owner} is removed. Delete it on the device as well, where it is of no use any more.")


# -- ava ui -----------------------------------------------------------------------------------------------------------

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
    refuse_in_subagent("ava ui")
    server = given_server(context, url)
    if server is not None:
        if sign_out:
            raise BadInput(
                "--sign-out is for this machine's data root. On another server, sign out on its page; a token that is"
                " revoked ends its sessions."
            )
        heading(server.address)
        if browser and _open_browser(server.address):
            return say("Opened it in your browser, and sign in with your token.")
        return say(f"Open {server.address} in a browser, and sign in with your token.")
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
    from ava_server.core.background import start_pages

    require("web")
    read_settings()  # what is wrong in them is said here, not in the server's output
    address = start_pages(root)
    code = BrowserSessions(root.browser_sessions).issue_code(os_user(), terminal=terminal)
    entrance = f"{address}/enter?code={code}"
    if page is not None:
        entrance += f"&to={quote(page, safe='')}"
    if browser and _open_browser(entrance):
        say(f"Opened {address} in your browser. If no page appears, open this address, which works once: {entrance}")
        return
    say(f"Open this address in a browser on this machine. It works once, within 10 minutes: {entrance}")
    forward = _forward(urlsplit(address).port or 0)
    if forward:
        say(f"To open it on the machine that you sit at, run this there first, and leave it open: {forward}")


def _open_browser(address: str) -> bool:
    """Open a browser with a window, and tell whether that worked.

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
