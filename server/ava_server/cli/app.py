"""The `ava` command: imports the module of the called command, and turns errors into exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TextIO, TypeVar

import typer
from typer.core import TyperGroup

from ava_audit.errors import AuditError, BadQuery, DataRootRefused, SchemaNewer, SchemaOlder, StoreUnavailable
from ava_extras import ExtraMissing
from ava_roles.errors import RoleFileError, RolesError, UnknownRole, WorkspaceRefused
from ava_server.core.commands import REMOTE_COMMANDS, TAKE_URL, TWO_WORDS, advice, forget_server
from ava_server.core.errors import AvaError, BadInput, ConfigError, ModelError, Refused, leaves_of, with_advice

P = ParamSpec("P")
T = TypeVar("T")

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Subagents": {
        "run": ("run", "Propose a subagent, ask whether to start it, show its result."),
        "approve": ("approve", "Start proposals or raise a run's cap; without an id, all that wait."),
        "reject": ("approve", "Reject proposals; without an id, one by one."),
        "status": ("status", "A dashboard of runs, spending and health; decide in it."),
        "ui": ("ui", "See runs, costs and the log in a browser, and decide there."),
        "show": ("show", "One run: its task, who approved it, what it did, its result."),
        "wait": ("wait", "Wait for the end of runs, and show their results."),
        "fetch": ("show", "Bring a coder's branch here from another machine."),
        "send": ("steer", "Send a message to a run; it reads it before its next turn."),
        "cancel": ("steer", "End runs, or withdraw proposals; results so far are kept."),
        "resume": ("steer", "Resume an interrupted subagent, and show its result."),
    },
    "Records": {
        "logs": ("logs", "The log of your last run, of one, or of all; -f follows it."),
        "logs export": ("logs", "Entries as a file of JSON lines, which can be verified by itself."),
        "report": ("report", "What was spent, by day, role, model and ending, and what failed."),
        "report approvals": ("report", "Who approved what, over which way, and what it cost."),
        "report estimates": ("report", "How good the estimates in past proposals were."),
        "eval": ("eval", "Cases of runs, recorded runs run again for nothing, and suites."),
        "verify": ("audit", "Check the log's hash chain and rebuild its state."),
        "erase": ("audit", "Erase a finished run's content; keep its metadata and cost."),
        "backup": ("backup", "Copy the data root, also while servers run."),
        "restore": ("backup", "Restore a backup; unfinished subagents wait for you."),
        "export": ("logs", "Write the whole log to a file, to move it."),
        "import": ("logs", "Fill an empty log from such a file."),
        "migrate": ("logs", "Bring the log to this version's schema."),
    },
    "Set-up": {
        "init": ("init", "Add Ava to a host's configuration, or remove it."),
        "agents": ("agents", "Other coding agents that can do a run, and whether they work here."),
        "hosts": ("hosts", "Known hosts: what each shows you, and who approves there."),
        "demo": ("demo", "Run a complete example: no key, no cost."),
        "doctor": ("doctor", "Check the installation, and say what to do."),
        "config": ("config", "The settings in config.toml: list, get, set, unset."),
        "key": ("credentials", "Keys of model and search providers."),
        "secret": ("credentials", "Secrets that tool calls of roles may send."),
        "models": ("models", "Models with prices, and which tier each serves."),
        "roles": ("roles", "Roles and their files; by itself, the list."),
        "memory": ("memory", "Notes that subagents may recall."),
        "pin": ("credentials", "The approval PIN, without which nothing starts."),
        "passkey": ("ui", "The passkeys with which people approve in a browser."),
        "completion": ("options", "Print the completion script for bash, zsh or fish."),
    },
    "Server": {
        "serve": ("serve", "Serve one MCP host over stdio (hosts start it), or many users with --http."),
        "connect": ("serve", "Start the HTTP server for hosts on this machine, and print its headers."),
        "worker": ("serve", "Run approved subagents without a host; ends after a minute without work."),
        "token": ("users", "The tokens for `ava serve --http`."),
        "user": ("users", "The users of this data root."),
    },
}
"""The commands by what they are for, each with its module, which has it as `NAME_command`, and its line in the help."""
COMMANDS: Mapping[str, str] = {
    name: f"ava_server.cli.{module}"
    for names in GROUPS.values()
    for name, (module, _line) in names.items()
    if name not in TWO_WORDS
}
"""Each first word, and its module."""

SHORT_HELP = """\
Subagents in the background, approved before they run and capped while they run.

  ava demo              See it work: free, without a key.
  ava init HOST         Add Ava to Claude Code, Codex, Cursor or another host.
  ava run ROLE "TASK"   Run a subagent here, and show its result.
  ava approve           Decide what starts.
  ava status            What waits, runs and has ended.
  ava show              The last run and its result.
  ava doctor            What is wrong, and what to do.

All commands: `ava --help`. One command: `ava COMMAND --help`."""
"""What `ava` alone prints."""
URL_VARIABLE = "AVA_URL"
_ANYWHERE = ("serve", "worker", "connect", "init", "demo", "doctor", "completion", "ui")
"""Commands that AVA_URL does not stop: they are not about a data root's runs, programs start them, or they open it."""
_OPTIONS_WITH_VALUE = ("--url", "--token-file")

USAGE, NOT_APPROVED, MODEL, CONFIGURATION, OUR_FAULT, INTERRUPTED, READER_GONE = 2, 10, 20, 30, 70, 130, 141
"""Exit codes of errors; the codes of a run's endings are in `results.py`."""


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
    SchemaOlder: CONFIGURATION,
    ExtraMissing: CONFIGURATION,
    AvaError: OUR_FAULT,
    RolesError: OUR_FAULT,
    StoreUnavailable: CONFIGURATION,
    AuditError: OUR_FAULT,
}
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


class GroupedCommands(TyperGroup):
    """The commands of `ava`, whose help lists them by what they are for; each takes -v too, as `ava` itself does."""

    def get_params(self, ctx: Any) -> Any:
        return [_check_if_given(each) for each in super().get_params(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Each takes -v too, without showing it in its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            flag = copy(next(each for each in self.params if "-v" in each.opts))
            flag.hidden, flag.expose_value = True, False  # type: ignore[attr-defined]
            for each in (command, *getattr(command, "commands", {}).values()):
                each.params.append(flag)
                for option in each.get_params(ctx):
                    _check_if_given(option)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # their types are private to typer
        widest = max(map(len, self.commands))
        for heading, names in GROUPS.items():
            width = formatter.width - 6 - widest
            lines: list[tuple[str, str]] = []
            for name in names:
                if name in self.commands:
                    lines.append((name.ljust(widest), self.commands[name].get_short_help_str(width)))
            with formatter.section(heading):
                formatter.write_dl(lines)


def _check_if_given(option: Any) -> Any:
    """Return an option that is checked only if it is given: typer makes a pydantic model of each check."""
    if "process_value" in vars(option):  # it is one already
        return option
    check = option.process_value
    takes_several = option.nargs == -1 or getattr(option, "multiple", False)
    nothing = () if takes_several else None

    def process(ctx: Any, value: Any) -> Any:
        if value is not None or option.required:
            return check(ctx, value)
        if option.callback is not None:
            return option.callback(ctx, option, nothing)
        return nothing

    option.process_value = process
    return option


def main(args: Sequence[str]) -> int:
    """Return the exit code. An expected error becomes one sentence on stderr; a bug in Ava keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 shows `?` instead of failing
            stream.reconfigure(errors="replace")
    forget_server()
    try:
        if not args:
            typer.echo(SHORT_HELP)
            return 0
        _refuse_elsewhere(args)
        build(args)(args=_join_two_words(args), prog_name="ava")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer ends so when help has no reader
            return _report(ended.__context__)
        if isinstance(ended.code, int):
            return ended.code
        return int(ended.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        try:
            return _report(error)
        except Exception as unwritten:
            return _report(unwritten)
    return 0


def _join_two_words(args: Sequence[str]) -> list[str]:
    """Return the arguments with a command of two words as one."""
    args = list(args)
    first = first_word(args)
    if not first:
        return args
    begin = args.index(first)
    two = " ".join(args[begin : begin + 2])
    if two not in TWO_WORDS:
        return args
    return [*args[:begin], two, *args[begin + 2 :]]


def build(args: Sequence[str] | None = None) -> typer.Typer:
    """Return the app with the commands that these arguments need; without arguments, with all of them.

    If they call none, as `ava --help` does, all have only their names and lines: nothing is imported.
    """
    app = new_app()
    first = None if args is None else first_word(args)
    lines = {name: line for names in GROUPS.values() for name, (_module, line) in names.items()}
    for name in (*COMMANDS, *TWO_WORDS):
        module = COMMANDS.get(name.split()[0], "")
        if first is None or module == COMMANDS.get(first):
            command = getattr(import_module(module), f"{name.replace(' ', '_')}_command")
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, help=lines[name])
            else:
                app.command(name)(command)
    if first is not None and first not in COMMANDS:
        for name, line in lines.items():
            # Shells offer one word, and none that is hidden; `format_commands` shows all.
            app.command(name, short_help=line, hidden=name in TWO_WORDS)(lambda: None)
    return app


def new_app() -> typer.Typer:
    app = typer.Typer(
        name="ava",
        help="Background subagents with a price tag: approved before they run, capped while they run.",
        no_args_is_help=True,
        add_completion=False,
        # Plain help starts faster, and reads the same in a terminal, a pipe and the docs.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        cls=GroupedCommands,
    )
    app.callback()(_options)
    return app


def first_word(args: Sequence[str]) -> str:
    """Return the first word that is neither an option nor an option's value."""
    left = iter(args)
    for arg in left:
        if arg in _OPTIONS_WITH_VALUE:
            next(left, None)
        elif not arg.startswith("-"):
            return arg
    return ""


def in_event_loop(command: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return an async command as typer calls it, with the same options."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from ava_server.core.threads import run_async

        return run_async(partial(command, *args, **kwargs))

    return run


def refuse_in_subagent(command: str) -> None:
    """Raises BadInput if this process belongs to a subagent."""
    if os.environ.get("AVA_RUN_ID"):
        from ava_server.service.runtime import refuse_recursion

        raise BadInput(f"{command}: {refuse_recursion()}.")


def _show_version(flag: bool) -> None:
    if flag:
        from importlib.metadata import version

        typer.echo(f"ava {version('ava-subagents')}")
        raise typer.Exit


def _be_verbose(flag: bool) -> None:
    from ava_server.cli.terminal import VERBOSE

    if flag:
        VERBOSE.set(True)


def _options(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server for commands on runs and users; also after them.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token for --url; default: AVA_TOKEN.")
    ] = None,
    _verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Name the data root even if it is the default one.", callback=_be_verbose),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """The help text is the app's."""
    if token_file is not None and context.invoked_subcommand not in (*REMOTE_COMMANDS, "init"):
        raise BadInput("--token-file: it needs --url, the server that the token is for.")
    context.obj = (url, token_file)


def _refuse_elsewhere(args: Sequence[str]) -> None:
    """Raises BadInput for a command that works only on a data root of this machine, while a server is named."""
    if "--" in args:
        args = args[: args.index("--")]
    words = _join_two_words(args)
    command = first_word(words)
    is_known = command in COMMANDS or command in TWO_WORDS
    if not is_known or command in REMOTE_COMMANDS or "--help" in words or "-h" in words:
        return
    there = f"`ava {command}` works only on the data root of its own machine; run it there, on the server."
    has_url = any(word.partition("=")[0] == "--url" for word in words)
    if has_url and command not in TAKE_URL:
        raise BadInput(f"--url: {there}")
    names_server = bool(os.environ.get(URL_VARIABLE, "").strip())
    if names_server and command not in _ANYWHERE:
        raise BadInput(f"{URL_VARIABLE} names another server. {there} For this machine's data root, unset it.")


def _report(error: BaseException) -> int:
    """Print an error and return its exit code."""
    from ava_server.cli.terminal import ReaderGone, tell

    leaves = list(leaves_of(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    if any(isinstance(leaf, ReaderGone | BrokenPipeError) for leaf in leaves):
        _drop(sys.stdout, sys.stderr)
        return READER_GONE
    for leaf in leaves:
        # An error of writing that names no file is one of writing our output.
        if isinstance(leaf, OSError) and leaf.errno in _UNWRITABLE and not leaf.filename:
            _drop(sys.stdout)
            typer.echo(f"ava: the output could not be written: {leaf.strerror}; the command's work is done", err=True)
            return CONFIGURATION
    from ava_server.core.shortage import shortage_in

    shortage = shortage_in(error)
    if shortage:
        tell(f"ava: {shortage}")
        return CONFIGURATION
    codes = [_code_of(leaf) for leaf in leaves]
    if codes[0] is not None and None not in codes:
        tell(f"ava: {advice(_error_text(leaves[0]))}")
        return codes[0]
    from ava_server.core.shutdown import harmless

    sys.stderr.write(harmless("".join(traceback.format_exception(error))))
    typer.echo(
        f"ava: this is a fault of Ava's own ({type(leaves[0]).__name__}), not yours. "
        "Please report it with the lines above.",
        err=True,
    )
    return OUR_FAULT


def _drop(*streams: TextIO) -> None:
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _code_of(error: BaseException) -> int | None:
    """Return the exit code of an expected error; None for a fault of Ava's."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return None


def _error_text(error: BaseException) -> str:
    provider = error.needs_key if isinstance(error, AvaError) else None
    if provider is None:
        return str(error)
    from ava_server.hosts.launching import key_advice

    return with_advice(str(error), key_advice(provider, None))
