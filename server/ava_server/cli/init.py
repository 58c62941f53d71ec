"""`ava init`: put Ava into a host's configuration, and take it out again."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.terminal import say, tell, write
from ava_server.core.data_root import find_data_root, home_folder
from ava_server.core.errors import AvaError, BadInput, ConfigError

if TYPE_CHECKING:
    from ava_server.hosts.change import Change
    from ava_server.hosts.known import Host, Launch

_HOSTS = "claude-desktop, claude-code, codex, cursor, vscode, opencode or gemini"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
"""What every host takes: Gemini CLI takes no `_`, and several make the names of tools from it."""


def register(app: typer.Typer) -> None:
    """Add `ava init` to the app."""
    app.command("init", short_help="Put Ava into a host's configuration, or take it out again.")(init_command)


def init_command(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help=f"{_HOSTS}.", show_default=False)] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Only show what would be changed.")] = False,
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
    from ava_server.hosts.known import find_host
    from ava_server.hosts.launching import launch

    if host is None:
        raise BadInput(f"ava init needs a host: {_HOSTS}. For any other, docs/hosts.md has the common form.")
    known = find_host(host)
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name is {name!r}; allowed are letters, digits and `-`, at most 40.")
    path, started = _file(known, file), launch(workspace)
    heading(find_data_root())
    say(f"{known.title}: {path}")
    try:
        change = changes.removing(known, name, path) if remove else changes.adding(known, name, started, path)
    except ConfigError:
        if not remove:
            tell("What belongs there:")
            tell("\n".join(known.format.shown((known.servers, name), known.entry(started))))
        raise
    _show(change, known, name, remove)
    if change.nothing or only_print:
        return
    backup = changes.apply(change)
    say(f"The file was {'removed: there was nothing else in it' if change.after is None else 'written'}.")
    if backup is not None:
        say(f"What it was before: {backup}")
    if remove:
        say(f"{known.title} no longer has Ava once it is started anew.")
    else:
        say(known.next)
        _what_else(started)


def _file(host: Host, given: Path | None) -> Path:
    from ava_server.hosts.known import UserPlace

    if given is None:
        return host.file(UserPlace(sys.platform, home_folder(), os.environ))
    try:
        return given.expanduser().absolute()
    except RuntimeError:
        raise BadInput(f"--file is {str(given)!r}; `~` stands for no home there.") from None


def _show(change: Change, host: Host, name: str, remove: bool) -> None:
    if change.nothing:
        say(f"Nothing to change: {name} is {'not ' if remove else ''}there.")
    if change.target != change.path:
        say(f"It is a link, which stays; what it leads to is {change.target}")
    if not change.nothing and change.before is None:
        say(f"There is no such file yet. Is {host.title} installed? It reads this one when it starts.")
    if change.lines:
        write("\n".join(change.lines))  # as they are: wrapped, they could not be copied
    for note in change.notes:
        say(note)


def _what_else(started: Launch) -> None:
    """Say what is still missing for a person's first subagent."""
    from ava_server.config.credentials import model_settings
    from ava_server.config.settings import load_settings
    from ava_server.hosts.launching import passing
    from ava_server.models.selection import is_configured

    if why := passing(Path(sys.prefix)):
        say(f"This Ava is in {sys.prefix}: {why}. Install it where it stays, and run `ava init` from there.")
    try:
        ready = is_configured(model_settings(load_settings()))
    except AvaError:  # the first call says what is wrong; `ava doctor` says it now
        ready = True
    if not ready:
        command = started.shell("key", "set", "openrouter")
        say(f"Without a language model Ava quotes passages, for nothing. For one: {command}")
