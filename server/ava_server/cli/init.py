"""`ava init`: adds Ava to a host's configuration, and removes it again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_extras import in_uv_cache, install_command, require
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import TokenFile, absolute_path, hosts
from ava_server.cli.terminal import agrees, heading, say, someone_there, steps_on_terminal, tell, write
from ava_server.core.data_root import find_data_root, home_folder, os_user
from ava_server.core.errors import AvaError, BadInput, ConfigError, Refused
from ava_server.core.threads import run_async

if TYPE_CHECKING:
    from ava_server.cli.remote import Connection
    from ava_server.hosts.change import HostChange
    from ava_server.hosts.known import Host, Launch, UserPlace

_HOSTS = (
    "claude-desktop, claude-code, codex, copilot, cursor, vscode, opencode, gemini, qwen-code, cline, continue or goose"
)
HANDSHAKE_S, INSTALL_S = 30.0, 600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
"""What every host accepts: Gemini CLI takes no `_`, and several build tool names from it."""


_Host = Annotated[str | None, typer.Argument(metavar="HOST", help=f"{_HOSTS}.", autocompletion=hosts)]
_Every = Annotated[
    bool,
    typer.Option(
        "--all",
        help=(
            "Without HOST: add Ava to every host that is found on this machine, after one question. With HOST: also"
            " show what else there is to know about it."
        ),
    ),
]
_Print = Annotated[bool, typer.Option("--print", help="Only show what would change.")]
_Remove = Annotated[bool, typer.Option("--remove", help="Remove Ava.")]
_Workspace = Annotated[
    str | None,
    typer.Option(
        "-w", "--workspace", metavar="FOLDER", help="The folder that subagents may read when a call names none."
    ),
]
_Http = Annotated[
    bool, typer.Option("--http", help="Connect it to an HTTP server that it starts on demand (claude-code).")
]
_Port = Annotated[int, typer.Option(min=1, max=65_535, help="The port of that server.")]
_Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Connect to a shared server, after a check of address and token."),
]
_Name = Annotated[str, typer.Option(metavar="NAME", help="The server's name in the host.")]
_File = Annotated[
    Path | None,
    typer.Option("-f", "--file", metavar="FILE", help="Another configuration file of that host, such as a project's."),
]
_AllowTools = Annotated[
    bool | None,
    typer.Option(
        "--allow-tools/--no-allow-tools",
        help="Let the host call tools that start and spend nothing without asking; default: ask in a terminal.",
    ),
]
_Skill = Annotated[
    bool | None,
    typer.Option(
        "--skill/--no-skill",
        help="Install a skill on when and how to delegate (claude-code, codex); default: ask in a terminal.",
    ),
]


def init_command(
    context: typer.Context,
    host: _Host = None,
    every: _Every = False,
    only_print: _Print = False,
    remove: _Remove = False,
    workspace: _Workspace = None,
    http: _Http = False,
    port: _Port = 8642,
    url: _Url = None,
    token_file: TokenFile = None,
    name: _Name = "ava",
    file: _File = None,
    allow_tools: _AllowTools = None,
    skill: _Skill = None,
) -> None:
    """Add Ava to a host's configuration: shows the change, keeps a backup, and leaves the rest as it is.

    At the end it lists what is left to do. Running it again changes nothing. It never writes a key: `ava key set`
    stores keys where every host's server finds them.
    """
    from ava_server.cli.remote import given_server
    from ava_server.hosts.launching import launch

    if every and host is None:
        if remove or http or url or file:
            raise BadInput("--all without HOST takes none of --remove, --http, --url and --file")
        return _add_to_all(name, _permanent(launch(workspace), only_print), only_print=only_print)
    known = _known(host, name)
    path = known.file(_place()) if file is None else absolute_path("--file", file)
    started = _permanent(launch(workspace), only_print or remove or url is not None)
    server = given_server(context, url, token_file, variable=False)  # AVA_URL is for commands on runs
    over = port if http else None
    known, started = _connection(known, started, server, over, workspace, remove=remove, only_print=only_print)
    heading(find_data_root() if server is None else server.address)
    say(f"{known.title}: {path}")
    if remove:
        return _remove(known, name, path, only_print)
    report = InitReport()
    _add(known, name, started, path, only_print, allow_tools, report)
    _offer_skill(known, skill, only_print)
    if only_print:
        return report.show_more()
    if http:
        _report_http(report)
    if server is None:
        _report_lacks(started, [known], report)
    return report.show(f"ava init {known.name} --all", every=every)


@dataclass
class InitReport:
    """What a person has to do next, what works already, and what else there is to know."""

    to_do: list[str] = field(default_factory=list[str])
    works: list[str] = field(default_factory=list[str])
    more: list[str] = field(default_factory=list[str])

    def show(self, again: str, *, every: bool) -> None:
        """`again`: the command that shows `more`; with `every` it is shown now."""
        lines = ["", "To do:" if self.to_do else "Nothing is left to do."]
        lines += [f"{number}. {step}" for number, step in enumerate(self.to_do, 1)]
        works = " · ".join(self.works)
        hint = f" (`{again}` tells more)" if self.more and not every else ""
        lines.append(f"Works already: {works}{hint}")
        say("\n".join(lines))
        if every:
            self.show_more()

    def show_more(self) -> None:
        for line in self.more:
            say(line)


def _known(host: str | None, name: str) -> Host:
    """Return a host that was named, to be given a server of this name. Raises BadInput."""
    from ava_server.hosts.known import find_host

    if host is None:
        raise BadInput(f"ava init needs a host: {_HOSTS}. For any other, docs/hosts.md has the common form.")
    known = find_host(host)
    if not _NAME.fullmatch(name):
        raise BadInput(f"--name is {name!r}; allowed are letters, digits and `-`, at most 40.")
    return known


def _connection(
    host: Host,
    started: Launch,
    server: Connection | None,
    port: int | None,
    workspace: str | None,
    *,
    remove: bool,
    only_print: bool,
) -> tuple[Host, Launch]:
    """Return the host as it reaches Ava (a `server`, or this machine's at an HTTP `port`), and what it starts."""
    from ava_server.hosts.launching import over_http

    if server is not None:
        if port is not None or workspace is not None:
            raise BadInput("--url: the server has its own folders and port; leave out --http and --workspace")
        host = host.connecting_to(f"{server.address}/mcp")
        if not (remove or only_print):
            say(run_async(_check, server))
    if port is None:
        return host, started
    if not remove:
        require("team")
    return over_http(host, started, port), replace(started, env={})


def _add(
    host: Host,
    name: str,
    started: Launch,
    path: Path,
    only_print: bool,
    allow_tools: bool | None,
    report: InitReport,
) -> None:
    from ava_server.hosts.change import change_to_add, is_remote

    try:
        change = change_to_add(host, name, started, path)
    except ConfigError:
        tell("This belongs there:")
        tell("\n".join(host.format.lines_of((host.servers, name), host.entry(started))))
        raise
    written = _carry_out(change, host, name, only_print)
    _offer_tool_rules(host, name, path, allow_tools, only_print, report, change.target if written else None)
    if written and host.remote is not None and is_remote(host.entry(started)):
        report.to_do.append(host.remote.token)
    if written:
        report.to_do.append(host.next)
    report.works.append(f"{host.title} has Ava")


def _remove(host: Host, name: str, path: Path, only_print: bool) -> None:
    from ava_server.hosts.change import change_to_remove

    change = change_to_remove(host, name, path)
    written = _remove_tool_rules(host, name, path, only_print)
    if written is not None:
        change = change_to_remove(host, name, path)  # the rules may have been in the same file
    if _carry_out(change, host, name, only_print, remove=True, written=written):
        say(f"{host.title} no longer has Ava after its next start.")
    _remove_skill(host, only_print)


def _carry_out(
    change: HostChange, host: Host, name: str, only_print: bool, *, remove: bool = False, written: Path | None = None
) -> bool:
    """Show a change and write it; tell whether it was written. `written`: a file that this command wrote before."""
    _show(change, host, name, remove)
    if change.nothing or only_print:
        return False
    _write(change, written)
    return True


def _permanent(started: Launch, as_it_is: bool) -> Launch:
    """Offer to install Ava first where it runs from uv's cache, so that the entry outlives the cache."""
    if as_it_is or not in_uv_cache(Path(sys.prefix)) or not someone_there():
        return started
    words = shlex.split(install_command())
    say(f"This Ava is in uv's cache, which is cleared from time to time. {shlex.join(words)} installs it permanently.")
    if not run_async(agrees, "Install it first?"):
        return started
    uv = os.environ.get("UV") or shutil.which("uv") or "uv"
    try:
        subprocess.run([uv, *words[1:]], check=True, timeout=INSTALL_S)  # noqa: S603 - the one that the person saw
        shown = subprocess.run(  # noqa: S603
            [uv, "tool", "dir", "--bin"], check=True, capture_output=True, text=True, timeout=INSTALL_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"uv could not install it ({error}). No host was changed.") from None
    program = "ava.exe" if sys.platform == "win32" else "ava"
    return replace(started, command=str(Path(shown.stdout.strip(), program)), args=("serve",))


def _add_to_all(name: str, started: Launch, *, only_print: bool) -> None:
    """Show what would change in each host that is found, ask once, write it, and connect as each host would."""
    heading(find_data_root())
    planned = list(_planned(name, started))
    if not planned:
        raise BadInput(f"No configuration of a known host was found. Name one: ava init HOST, with {_HOSTS}.")
    changes = sum(not change.nothing for _host, change in planned)
    if only_print or not changes:
        return
    if not someone_there():
        raise Refused("There is no terminal to ask on, so nothing was changed. Name one host: ava init HOST")
    if not run_async(agrees, f"Change {changes} files?"):
        say("Nothing was changed.")
        return
    report = InitReport()
    for host, change in planned:
        if not change.nothing:
            _write(change)
            report.to_do.append(f"{host.title}: {host.next}")
    with steps_on_terminal(1) as begin:
        begin("Starting Ava as these hosts start it")
        answered, words = run_async(_handshake, started)
    if answered:
        report.works.append(words)
    else:
        report.to_do.insert(0, words)
    report.works += [f"{host.title} has Ava" for host, _change in planned]
    _report_lacks(started, [host for host, _change in planned], report)
    report.show("ava hosts", every=False)


def _planned(name: str, started: Launch) -> Iterator[tuple[Host, HostChange]]:
    """Show and yield what would change in each host whose configuration, or the folder for it, exists."""
    from ava_server.hosts.change import change_to_add
    from ava_server.hosts.known import HOSTS

    place = _place()
    for host in HOSTS.values():
        file = host.file(place)
        if not (file.exists() or (file.parent.is_dir() and file.parent != place.home)):
            continue
        say(f"{host.title}: {file}")
        try:
            change = change_to_add(host, name, started, file)
        except ConfigError as error:
            say(f"It is left out: {error}")
            continue
        _show(change, host, name, False)
        yield host, change


async def _handshake(started: Launch) -> tuple[bool, str]:
    """Start Ava as hosts do; return whether it answered, and a sentence on that."""
    from mcp import Client, StdioServerParameters, stdio_client

    env = {**os.environ, **started.env}
    server = StdioServerParameters(command=started.command, args=list(started.args), env=env)
    try:
        with anyio.fail_after(HANDSHAKE_S), open(os.devnull, "w") as nowhere:  # noqa: ASYNC230, PTH123
            async with Client(stdio_client(server, errlog=nowhere)) as client:
                tools = await client.list_tools()
        return True, f"Ava answers, started as these hosts start it, with {len(tools.tools)} tools"
    except Exception as error:  # whatever it is, the files are written and doctor says more
        why = type(error).__name__
        return False, f"Ava did not answer when it was started as these hosts start it ({why}): ava doctor"


def _offer_pin(hosts: Sequence[Host], report: InitReport) -> None:
    """Offer to choose the approval PIN, where a person approves in Ava in one of these hosts."""
    from ava_server.budget.user_limits import policy_in_force
    from ava_server.cli.secret_input import choose_pin
    from ava_server.config.pin import PinFile
    from ava_server.hosts.clients import connection_of

    titles: list[str] = []
    with suppress(AvaError):  # the first call, or `ava doctor`, says what is wrong
        settings = read_settings()
        pin = PinFile(settings.paths.approval_file)
        for host in hosts:
            if policy_in_force(settings, os_user(), through=connection_of(host.name))[0] == "human":
                titles.append(host.title)
        if not titles:
            return
        where = f"In {', '.join(titles)} you approve in Ava, with a PIN: by a link, or `ava approve`."
        if pin.is_set:
            report.works.append("the approval PIN is set")
            report.more.append(where)
            return
        if someone_there():
            say(where)
            if run_async(agrees, "Choose the PIN now?"):
                run_async(choose_pin, pin)
                report.works.append("the approval PIN is set")
                return
        report.to_do.append(f"Choose the approval PIN before the first approval: `ava pin set`. {where}")


def _write(change: HostChange, written: Path | None = None) -> None:
    from ava_server.hosts.change import apply

    backup = apply(change, keep_backup=change.target != written)
    done = "The file was written." if change.after is not None else "The file was removed: nothing else was in it."
    say(done if backup is None else f"{done} Its previous version: {backup}")


def _offer_tool_rules(
    host: Host,
    name: str,
    path: Path,
    allow: bool | None,
    only_print: bool,
    report: InitReport,
    written: Path | None,
) -> None:
    """Allow the tools that start and spend nothing in the host's rules; `allow` None asks the person first.

    `written`: the file that this command has written before.
    """
    from ava_server.hosts.change import QUIET_TOOLS, change_to_allow

    if allow is False:
        return
    rules = host.tool_rules
    quiet = [host.quiet] if host.quiet else []
    if rules is None:  # only the person can do it
        if allow:
            report.to_do += quiet
        else:
            report.more += quiet
        return
    if not rules.needed and not allow:
        report.more += quiet
        return
    is_answerable = allow or only_print or someone_there()
    if not is_answerable:
        how = "--allow-tools allows those that start and spend nothing"
        report.more.append(f"{host.title} asks before each of Ava's tools; {how}.")
        return
    change = change_to_allow(host, name, path, _place())
    if change is not None:
        if not change.nothing and not _add_tool_rules(host, change, allow, only_print, written):
            return
        report.works.append(f"it calls {', '.join(QUIET_TOOLS[:-1])} and {QUIET_TOOLS[-1]} without asking")
    report.more += quiet


def _offer_skill(host: Host, wanted: bool | None, only_print: bool) -> None:
    """Install the skill where the host reads skills, after a question unless it was asked for."""
    from ava_server.hosts.installed_skill import FOLDERS, NAME
    from ava_server.hosts.skill import install_skill, installed_text, skill_file, skill_text

    file = skill_file(host.name, _place())
    if file is None:
        if wanted:
            raise BadInput(f"--skill: {host.title} is not known to read skills; {', '.join(FOLDERS)} are")
        return
    if wanted is False or installed_text(file) == skill_text():
        return
    if only_print:
        say(f"The skill {NAME}, on when and how to delegate, would be in {file}.")
        return
    question = f"Install the skill {NAME}, on when and how to delegate, in {file}?"
    if not wanted and not (someone_there() and run_async(agrees, question)):
        return
    install_skill(file)
    say(f"Wrote {file}. {host.title} reads it before it delegates, so Ava's instructions in each session are shorter.")


def _remove_skill(host: Host, only_print: bool) -> None:
    from ava_server.hosts.skill import remove_skill, skill_file

    file = skill_file(host.name, _place())
    if file is not None and not only_print and remove_skill(file):
        say(f"Removed {file}.")


def _add_tool_rules(host: Host, change: HostChange, allow: bool | None, only_print: bool, written: Path | None) -> bool:
    """Show the rules, ask unless they were asked for, and write them; tell whether they were written."""
    from ava_server.budget.user_limits import policy_in_force
    from ava_server.hosts.change import QUIET_TOOLS

    say(f"\n{host.title} can call {', '.join(QUIET_TOOLS[:-1])} and {QUIET_TOOLS[-1]} without asking: they")
    say("start and spend nothing by themselves. It still asks before confirm_spawn. These rules do that:")
    with suppress(AvaError):  # the first call, or `ava doctor`, says what is wrong
        policy, setting = policy_in_force(read_settings(), os_user())
        if policy == "auto":  # then the host's question is the only one
            say(f"But your setting {setting} starts cheap proposals without a question.")
    say(f"{change.path}:")
    write("\n".join(change.lines))
    if only_print or not (allow or run_async(agrees, "Add these rules?")):
        return False
    _write(change, written)
    return True


def _remove_tool_rules(host: Host, name: str, path: Path, only_print: bool) -> Path | None:
    """Remove the rules, and return the file in which they were; None if nothing was written."""
    from ava_server.hosts.change import change_to_forget

    change = change_to_forget(host, name, path, _place())
    if change is None or change.nothing:
        return None
    say(f"{change.path}:")
    write("\n".join(change.lines))
    if only_print:
        return None
    _write(change)
    return change.target


async def _check(server: Connection) -> str:
    """Return what the token may do on a server. Raises Refused if a host should not have it."""
    from ava_server.cli.record_client import open_server_records
    from ava_server.cli.remote import OlderServer
    from ava_server.service.record_requests import TOKEN

    try:
        async with open_server_records(server) as records:
            token = await records.get(TOKEN)
    except OlderServer:  # it knew the token
        return f"{server.address} answers, and the token is valid."
    if too_much := {"approve", "admin"} & set(token.scopes):
        raise Refused(
            f"This token has the scope {min(too_much)}, with which a host's model could decide in a person's place."
            " Nothing was changed. Give the host one without it: ava token create NAME"
            f" --user {token.user} --scope spawn,read"
        )
    lacking = [scope for scope in ("spawn", "read") if scope not in token.scopes]
    more = f" It lacks {' and '.join(lacking)}, so some tools will fail." if lacking else ""
    return f"{server.address} answers; the token is {token.user}'s, with {', '.join(token.scopes)}.{more}"


def _place() -> UserPlace:
    from ava_server.hosts.known import UserPlace

    return UserPlace(sys.platform, home_folder(), os.environ)


def _show(change: HostChange, host: Host, name: str, remove: bool) -> None:
    if change.nothing:
        say(f"Nothing to change: {name} is {'not ' if remove else 'already '}there.")
    if change.target != change.path:
        say(f"It is a link, which stays; it leads to {change.target}")
    if not change.nothing and change.before is None:
        question = "" if host.is_installed else f" Is {host.title} installed?"
        say(f"There is no such file yet.{question} {host.title} reads it when it starts.")
    if change.lines:
        write("\n".join(change.lines))  # not wrapped, so that they can be copied
    for note in change.notes:
        say(note)


def _report_http(report: InitReport) -> None:
    report.to_do.append(
        f"Name the folders that subagents may read in config.toml: [users.{os_user()}] workspaces. Over HTTP they read"
        " no others."
    )
    report.more.append("Any process of your user can read the token, which stays in the data root.")


def _report_lacks(started: Launch, hosts: Sequence[Host], report: InitReport) -> None:
    """Report what this installation lacks, and what of that is there."""
    from ava_server.config.credentials import model_settings
    from ava_server.hosts.launching import why_temporary
    from ava_server.models.model_choice import is_configured

    why = why_temporary(Path(sys.prefix))
    if why and Path(started.command).is_relative_to(sys.prefix):
        where = f"This Ava is in {sys.prefix}: {why}"
        report.to_do.insert(0, f"Install Ava in a permanent place, and run `ava init` from there. {where}.")
    _offer_pin(hosts, report)
    try:
        ready = is_configured(model_settings(read_settings()))
    except AvaError:  # the first call, or `ava doctor`, says what is wrong
        return
    if ready:
        report.works.append("a language model is set up")
        return
    command = started.typed("key", "set", "openrouter")
    report.to_do.append(f"Set up a language model: `{command}`. Without one Ava quotes passages, free of charge.")
