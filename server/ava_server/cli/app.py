"""The `ava` command: its groups, registered when needed, and the border where errors become exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from ava_audit.errors import AuditError, BadQuery, DataRootRefused, SchemaNewer, StoreUnavailable
from ava_roles.errors import RoleFileError, RolesError, UnknownRole, WorkspaceRefused
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import AvaError, BadInput, ConfigError, ModelError, Refused

COMMANDS: Mapping[str, str] = {
    "serve": "ava_server.cli.serve",
    "run": "ava_server.cli.run",
    "approve": "ava_server.cli.approve",
    "reject": "ava_server.cli.approve",
    "resume": "ava_server.cli.resume",
    "worker": "ava_server.cli.worker",
    "status": "ava_server.cli.status",
    "show": "ava_server.cli.show",
    "report": "ava_server.cli.report",
    "wait": "ava_server.cli.wait",
    "send": "ava_server.cli.steer",
    "cancel": "ava_server.cli.steer",
    "logs": "ava_server.cli.logs",
    "erase": "ava_server.cli.erase",
    "verify": "ava_server.cli.verify",
    "pin": "ava_server.cli.pin",
    "models": "ava_server.cli.models",
    "roles": "ava_server.cli.roles",
    "key": "ava_server.cli.key",
    "secret": "ava_server.cli.secret",
    "memory": "ava_server.cli.memory",
    "token": "ava_server.cli.token",
    "user": "ava_server.cli.user",
    "demo": "ava_server.cli.demo",
    "init": "ava_server.cli.init",
    "doctor": "ava_server.cli.doctor.command",
    "completion": "ava_server.cli.completion",
}
"""Each first word, and the module that registers it: `register(app)` adds its commands to the app."""

ELSEWHERE = ("approve", "reject")
"""What `--url` is for."""
_WITH_VALUE = ("--url", "--token-file")
TWO_WORDS = ("logs export",)
"""Commands below a word that is a command itself."""

USAGE, NOT_APPROVED, MODEL, CONFIGURATION, OUR_FAULT, INTERRUPTED, READER_GONE = 2, 10, 20, 30, 70, 130, 141
"""Exit codes of errors; those of a run's endings stand in `views.py`."""


class ReaderGone(Exception):
    """Raised when whoever read our output has gone away, as `head` does: the command ends without a word."""


_CODES: Mapping[type, int] = {
    BadInput: USAGE,
    UnknownRole: USAGE,
    WorkspaceRefused: USAGE,
    BadQuery: USAGE,
    Refused: NOT_APPROVED,
    ModelError: MODEL,
    ConfigError: CONFIGURATION,
    RoleFileError: CONFIGURATION,
    DataRootRefused: CONFIGURATION,
    SchemaNewer: CONFIGURATION,
    AvaError: OUR_FAULT,
    RolesError: OUR_FAULT,
    StoreUnavailable: CONFIGURATION,
    AuditError: OUR_FAULT,
}


_NOWHERE_TO = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def main(args: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    An error of ours becomes one sentence on stderr, without a traceback; anything else is a fault of ours and
    keeps its traceback, for whoever mends it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 shows `?`, and ends nothing
            stream.reconfigure(errors="replace")
    try:
        build(args)(args=_one_word(args), prog_name="ava")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        return _report(error)
    return 0


def build(args: Sequence[str] = ()) -> typer.Typer:
    """Return the app with the commands that these arguments need; with all for help and unknown words."""
    app = typer.Typer(
        name="ava",
        help="Background subagents with a price tag: approved before they run, capped while they run.",
        no_args_is_help=True,
        add_completion=False,
        # Plain help starts faster, and reads the same in a terminal, a pipe and the docs.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    first = _first_word(args)
    for module in dict.fromkeys([COMMANDS[first]] if first in COMMANDS else COMMANDS.values()):
        import_module(module).register(app)
    return app


def _first_word(args: Sequence[str]) -> str:
    """Return the command that is meant: the first word that belongs to no option before it."""
    left = iter(args)
    for arg in left:
        if arg in _WITH_VALUE:
            next(left, None)
        elif not arg.startswith("-"):
            return arg
    return ""


def _one_word(args: Sequence[str]) -> list[str]:
    """Return the arguments with a command of two words as one, for its first word is a command by itself."""
    two = " ".join(args[:2])
    return [two, *args[2:]] if two in TWO_WORDS else list(args)


def heading(root: DataRoot) -> None:
    """Begin a screen: its first line names the data root."""
    typer.echo(f"Data root: {root.path}")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ava {version('ava-subagents')}")
        raise typer.Exit


def _options(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", show_default=False, help="Decide at a server elsewhere (approve, reject)."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", show_default=False, help="With --url: the token, else AVA_TOKEN."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take what stands before the command; the help text is the app's."""
    if url is None and token_file is None:
        return
    if url is None:
        raise BadInput("--token-file: it is for a server elsewhere; name it with --url.")
    if context.invoked_subcommand not in ELSEWHERE:
        raise BadInput(f"--url: only {' and '.join(ELSEWHERE)} work at a server elsewhere.")
    from ava_server.cli.door_there import Elsewhere

    context.obj = Elsewhere(url, token_file)


def _report(error: BaseException) -> int:
    """Tell a person of an error and return its exit code, also where a task group has wrapped it."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    if any(isinstance(leaf, ReaderGone) for leaf in leaves):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left unwritten goes nowhere
        return READER_GONE
    unwritten = [
        leaf for leaf in leaves if isinstance(leaf, OSError) and leaf.errno in _NOWHERE_TO and not leaf.filename
    ]
    if unwritten:  # it names no file: what could not be written is what was to be shown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"ava: the output could not be written: {unwritten[0].strerror}; what was done is done", err=True)
        return CONFIGURATION
    codes = [next((_CODES[kind] for kind in type(leaf).__mro__ if kind in _CODES), None) for leaf in leaves]
    if codes[0] is not None and None not in codes:
        from ava_server.cli.terminal import tell

        tell(f"ava: {_explained(leaves[0])}")
        return codes[0]
    from ava_server.core.shutdown import harmless

    sys.stderr.write(harmless("".join(traceback.format_exception(error))))
    typer.echo(
        f"ava: this is a fault of Ava's own ({type(leaves[0]).__name__}), not of yours. "
        "Please report it with the lines above.",
        err=True,
    )
    return OUR_FAULT


def _explained(error: BaseException) -> str:
    """Return an error's text, and where a key would mend it how one is given."""
    provider = error.needs_key if isinstance(error, AvaError) else None
    if provider is None:
        return str(error)
    from ava_server.hosts.launching import key_advice

    return f"{error} {key_advice(provider, None)}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
