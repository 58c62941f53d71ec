"""`ava init`: put Ava into a host's configuration, and take it out again."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.terminal import say
from ava_server.data_root import find_data_root
from ava_server.errors import BadInput

if TYPE_CHECKING:
    from ava_server.hosts.change import Change
    from ava_server.hosts.host import Host

_HOSTS = "claude-desktop, claude-code, codex, cursor, vscode, opencode or gemini"


def register(app: typer.Typer) -> None:
    """Add `ava init` to the app."""
    app.command("init", short_help="Put Ava into a host's configuration, or take it out again.")(init_command)


def init_command(
    host: Annotated[str, typer.Argument(metavar="HOST", help=f"{_HOSTS}.")],
    only_print: Annotated[
        bool, typer.Option("--print", help="Show what would be changed, and change nothing.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take Ava out again.")] = False,
    workspace: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The folder that subagents may read when a call names none."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the server is called in the host.")] = "ava",
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another configuration of that host, such as one of a project."),
    ] = None,
) -> None:
    """Put Ava into a host's configuration: shows the change, keeps a backup, and leaves all else as it is.

    Twice changes nothing. No key is ever written: `ava key set` stores them where every host's server finds them.
    """
    from ava_server.hosts import change as changes
    from ava_server.hosts.host import Place
    from ava_server.hosts.known import find_host
    from ava_server.hosts.launching import launch

    known = find_host(host)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name):  # Gemini CLI takes no `_`
        raise BadInput(f"--name is {name!r}; allowed are letters, digits and `-`.")
    path = file.expanduser().absolute() if file else known.file(Place(sys.platform, Path.home(), os.environ))
    heading(find_data_root())
    say(f"{known.title}: {path}")
    change = changes.removing(known, name, path) if remove else changes.adding(known, name, launch(workspace), path)
    _show(change, known, name, remove)
    if change.nothing or only_print:
        return
    backup = changes.apply(change)
    say(f"The file was {'removed: there was nothing else in it' if change.after is None else 'written'}.")
    if backup is not None:
        say(f"What it was before: {backup}")
    say("Ava is no longer there once the host is started anew." if remove else known.next)


def _show(change: Change, host: Host, name: str, remove: bool) -> None:
    if change.nothing:
        say(f"Nothing to change: {name} is {'not ' if remove else ''}there{'' if remove else ' as it should be'}.")
    if change.target != change.path:
        say(f"It is a link, which stays; what it leads to is {change.target}")
    if not change.nothing and change.before is None:
        say(f"There is no such file yet. Is {host.title} installed? It reads this one when it starts.")
    for line in change.lines:
        say(line)
    for note in change.notes:
        say(note)
