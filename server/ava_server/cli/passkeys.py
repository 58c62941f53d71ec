"""`ava passkey`: the passkeys with which people approve in a browser."""

from __future__ import annotations

from typing import Annotated

import anyio
import anyio.to_thread
import typer

from ava_audit.units import iso_second
from ava_server.cli.log_access import checked_root, record_setting
from ava_server.cli.options import Json
from ava_server.cli.secret_input import ask_pin
from ava_server.cli.terminal import aligned, present, say, someone_there
from ava_server.cli.ui import open_pages
from ava_server.config.passkeys import Passkey, Passkeys, passkey_name
from ava_server.config.pin import PinFile
from ava_server.config.tokens import user_name
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import BadInput, Refused

NO_TERMINAL = "{}: only a person may do this, at a terminal, and there is none here."
NONE_YET = "No passkeys. Add one with `ava passkey add NAME`."
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name for it, e.g. the device that has it.")]
_User = Annotated[
    str | None,
    typer.Option("--user", metavar="USER", help="The user over HTTP whose passkey it is; default: you, in `ava ui`."),
]


def register(app: typer.Typer) -> None:
    """Add `ava passkey` to the app."""
    passkey = typer.Typer(no_args_is_help=True)
    passkey.command("add", short_help="Add a passkey, for approvals in the browser.")(add_command)
    passkey.command("list", short_help="List names, users, sites and last use.")(list_command)
    passkey.command("remove", short_help="Remove a passkey.")(remove_command)
    app.add_typer(passkey, name="passkey")


def add_command(
    name: _Name,
    user: _User = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
) -> None:
    """Open the page of `ava ui` on which you add a passkey. From then on, approvals there take it.

    With --user, print a code instead. The user signs in at the server's address with their token, and enters the code
    under Passkeys. It works once, within 10 minutes. If an approval PIN is set, it is asked for.
    """
    root = checked_root("ava passkey add")
    name, user = passkey_name(name), None if user is None else user_name(user)
    anyio.run(require_person, root, "ava passkey add")
    Passkeys(root.passkeys).check_new(user or os_user(), name)
    if user is None:
        _open_page(root, name, browser=browser)
    else:
        _print_code(root, name, user)


def list_command(as_json: Json = False) -> None:
    """List the passkeys: their names, users, sites and last use."""
    root = checked_root(show=False)
    known = Passkeys(root.passkeys).all()
    entries = [
        {
            "name": one.name,
            **one.on_record(),
            "created": iso_second(one.created_us),
            "used": None if one.used_us is None else iso_second(one.used_us),
        }
        for one in known
    ]
    lines = aligned((one.name, f"{one.user}; for {one.host}; {_last_use(one)}") for one in known)
    present(root, as_json, {"passkeys": entries}, lines or [NONE_YET])


def remove_command(name: _Name, user: _User = None) -> None:
    """Remove a passkey: it approves nothing more. If an approval PIN is set, it is asked for."""
    root = checked_root("ava passkey remove")
    anyio.run(_remove, root, passkey_name(name), os_user() if user is None else user_name(user))


async def _remove(root: DataRoot, name: str, user: str) -> None:
    await require_person(root, "ava passkey remove")
    removed = await anyio.to_thread.run_sync(Passkeys(root.passkeys).remove, user, name)
    if removed is None:
        raise BadInput(f"{user} has no passkey {name}. `ava passkey list` shows all.")
    await record_setting(root, f"passkeys.{name}", removed.on_record(), None)
    say(f"The passkey {name} of {user} is removed. Delete it on the device as well, where it is of no use any more.")


async def require_person(root: DataRoot, command: str) -> None:
    """Check that a person calls a command, and ask for the approval PIN where one is set.

    Raises:
        Refused: There is no terminal, so it may be a program; or the PIN is wrong.
    """
    if not someone_there():
        raise Refused(NO_TERMINAL.format(command))
    pin = PinFile(root.approval_file)
    if await anyio.to_thread.run_sync(lambda: pin.is_set):
        await ask_pin(pin)


def _open_page(root: DataRoot, name: str, *, browser: bool) -> None:
    from ava_server.web.sessions import BrowserSessions

    root.create()
    code = BrowserSessions(root.browser_sessions).issue_passkey_code(os_user(), name)
    open_pages(root, browser=browser, terminal=True, page=f"/passkeys/new?code={code}")


def _print_code(root: DataRoot, name: str, user: str) -> None:
    from ava_server.web.sessions import BrowserSessions

    root.create()
    code = BrowserSessions(root.browser_sessions).issue_passkey_code(user, name)
    say(f"{user} signs in at the server's address, chooses Passkeys, and enters this code. It works once, within")
    say(f"10 minutes, and anyone with it and a token of {user} can approve from then on:")
    say(code)


def _last_use(one: Passkey) -> str:
    return "never used" if one.used_us is None else f"last used {iso_second(one.used_us)}"
