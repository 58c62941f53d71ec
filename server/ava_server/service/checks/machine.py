"""Checks of the machine: Python, SQLite, git, sandboxes, and the hosts that start Ava."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.store.schema import open_in_memory
from ava_extras import EXTRAS, has_extra, install_command
from ava_roles.sandbox.git import git_program
from ava_roles.sandbox.linux import NotOnThisSystem, is_root, kernel_setting, landlock_abi
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import bubblewrap_program, sandbox_here
from ava_roles.sandbox.toolchains import HostFolders, find_toolchains
from ava_server import MODULE_ARGS
from ava_server.config.role_folders import checkout_here
from ava_server.config.settings import SandboxSettings
from ava_server.core.data_root import home_folder
from ava_server.core.errors import ConfigError, with_advice
from ava_server.service.checks import CheckFinding, Setup, data

if TYPE_CHECKING:
    from ava_server.hosts.known import Host, UserPlace

PROBE_S = 5.0
"""A program that does not answer within this time counts as missing."""
WAL_RESET_FIXED = (3, 51, 3)
NOBODY = 65_534
_NOT_HERE = "not on this system"
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def python(_setup: Setup) -> Iterator[CheckFinding]:
    """Report the versions of Python and Ava, and whether they are in a permanent place."""
    try:
        own = version("ava-subagents")
    except PackageNotFoundError:
        own = "(not installed)"
    text = f"{platform.python_version()}, Ava {own}, in {sys.prefix}"
    from ava_server.hosts.launching import why_temporary

    why = why_temporary(Path(sys.prefix))
    if why:
        step = "Install Ava in a permanent environment (the README says how), and run `ava init` from there."
        yield CheckFinding("python", "warning", f"{text}: {why}, so a host that was set up with it loses it", step)
        return
    yield CheckFinding("python", "ok", text)
    if sys.platform != "linux":
        system = f"{platform.system()} {platform.release()}: Ava is tested on Linux; the log and web roles work here"
        yield CheckFinding("system", "note", system)


def command(_setup: Setup) -> Iterator[CheckFinding]:
    """Report the path of the `ava` command, as hosts need it."""
    path = shutil.which("ava", path=sysconfig.get_path("scripts"))
    if path is not None:
        yield CheckFinding("command", "ok", f"hosts start {path} serve")
    else:
        step = f"Let hosts start {sys.executable} {' '.join(MODULE_ARGS)} serve"
        yield CheckFinding("command", "warning", f"there is no ava command beside {sys.executable}", step)


def extras(_setup: Setup) -> Iterator[CheckFinding]:
    lacking = [name for name in EXTRAS if not has_extra(name)]
    if lacking:
        step = f"If you need them: `{install_command(*lacking)}`"
        yield CheckFinding("extras", "note", f"without {', '.join(lacking)}; what needs one says so", step)


def sqlite(setup: Setup) -> Iterator[CheckFinding]:
    """Report SQLite's version, and whether it can hold the log; one in Postgres is none of its."""
    name = sqlite3.sqlite_version
    try:
        with contextlib.closing(open_in_memory()):
            pass
    except sqlite3.Error as error:
        text = f"SQLite {name} cannot hold the log, which needs FTS5 ({error})"
        yield CheckFinding("sqlite", "fault", text, "Use a Python with a full SQLite, such as uv's or python.org's.")
        return
    text = f"SQLite {name}, with full-text search"
    if sqlite3.sqlite_version_info >= WAL_RESET_FIXED or (setup.settings is not None and setup.settings.shares_log):
        yield CheckFinding("sqlite", "ok", text)
        return
    text += (
        "; a version before 3.51.3 can lose a change where two programs write to one file. Ava's processes take turns"
    )
    yield CheckFinding("sqlite", "note", text, "Let no other program write to ava.db while Ava runs.")


def git(_setup: Setup) -> Iterator[CheckFinding]:
    """Report git's version; without it no command can run on a checkout, and no coder at all."""
    program = git_program(checkout_here())
    number = _version_of(program) if program is not None else ""
    if number:
        use = "it lists what commands may see of a checkout, and keeps a coder's changes on a branch"
        yield CheckFinding("git", "ok", f"{number}; {use}")
    else:
        without = "without it no coder can work, and no command can run in a workspace that is a checkout"
        yield CheckFinding("git", "note", f"not found; {without}", "Install git if subagents are to run commands.")


def _version_of(program: str) -> str:
    try:
        process = subprocess.run(  # noqa: S603 - the program that runs use, and --version
            [program, "--version"], cwd="/", capture_output=True, timeout=PROBE_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    line = process.stdout.decode("utf-8", "replace").partition("\n")[0].strip()
    number = _NUMBER.search(line)
    return number[0] if number else line[:60]


# -- confinement ------------------------------------------------------------------------------------------------------


def confinement(setup: Setup) -> Iterator[CheckFinding]:
    """Report what confines commands here, or why nothing does and what to do."""
    settings = setup.settings.sandbox if setup.settings is not None else SandboxSettings()
    sandbox = sandbox_here(settings.mode)
    details = "; ".join((_bubblewrap(), _landlock(), _user_namespaces()))
    yield data.confinement(sandbox, details)
    if isinstance(sandbox, Unavailable) or sandbox.kind == "none":
        return
    closed = (setup.root.path,) if setup.root is not None else ()
    toolchains = find_toolchains(None, (), HostFolders(home_folder(), settings.read_only, closed))
    for why in toolchains.refused:
        yield CheckFinding("confinement", "warning", why, "Correct sandbox.read_only in config.toml.")


def _bubblewrap() -> str:
    """Return whether bubblewrap can make a sandbox here: it is tried, because kernels may forbid it."""
    path = bubblewrap_program()
    if sys.platform != "linux":
        return f"bubblewrap: {_NOT_HERE}"
    if path is None:
        return "bubblewrap is not installed"
    # Not as root, who would own the sandbox on the machine too.
    user = NOBODY if is_root() else None
    sandbox = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    try:
        process = subprocess.run(  # noqa: S603 - the program that was found, and fixed arguments
            [path, *sandbox, "--", "/bin/true"],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else (),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot be tried ({type(error).__name__})"
    name = f"bubblewrap {_version_of(path)}".rstrip()
    if process.returncode == 0:
        return f"{name} works"
    why = process.stderr.decode("utf-8", "replace").strip().partition("\n")[0].removeprefix("bwrap: ")
    return f"{name} cannot make a sandbox here ({why[:100] or 'it does not say why'})"


def _landlock() -> str:
    try:
        abi = landlock_abi()
    except NotOnThisSystem:
        return f"Landlock: {_NOT_HERE}"
    return f"Landlock ABI {abi}" if abi else "no Landlock"


def _user_namespaces() -> str:
    """Return whether an ordinary user may create user namespaces, by the kernel's settings."""
    try:
        most = kernel_setting("user/max_user_namespaces")
        allowed = kernel_setting("kernel/unprivileged_userns_clone")
        restricted = kernel_setting("kernel/apparmor_restrict_unprivileged_userns")
    except NotOnThisSystem:
        return f"user namespaces: {_NOT_HERE}"
    if most == 0 or allowed == 0:
        return "user namespaces off"
    if restricted:
        return "user namespaces restricted by AppArmor"
    return "user namespaces on" if most is not None else "user namespaces unknown"


# -- hosts ------------------------------------------------------------------------------------------------------------


def hosts(setup: Setup) -> Iterator[CheckFinding]:
    """Report which hosts start Ava, and whether what they start exists."""
    from ava_server.hosts.change import servers_of
    from ava_server.hosts.known import HOSTS, UserPlace

    any_found = False
    place = UserPlace(sys.platform, home_folder(), setup.env)
    for host in HOSTS.values():
        file = host.file(place)
        again = f"Run `ava init {host.name}` again, with the server's --name there if it is not ava."
        try:
            for server in servers_of(host, file):
                any_found = True
                start = server.command
                if shutil.which(start) is None:
                    text = f"{host.title} starts {start}, which does not exist ({file})"
                    yield CheckFinding("host", "warning", text, again)
                elif not Path(start).is_absolute():
                    text = f"{host.title} starts {start}, a name that it may not find ({file})"
                    yield CheckFinding("host", "note", text, f"{again} It writes the whole path.")
                else:
                    yield CheckFinding("host", "ok", f"{host.title} starts {start} ({file})")
                if server.without_address:
                    yield _without_address(host.title, file, server.without_address, again)
        except ConfigError as error:
            any_found = True
            step = f"Correct it; {host.title} may not be able to read it either."
            yield CheckFinding("host", "warning", f"{host.title}: {error}", step)
        yield from _skill_of_another_version(host, place)
    if not any_found:
        step = f"Run `ava init HOST`, with one of {', '.join(HOSTS)}."
        yield CheckFinding("hosts", "note", "none starts Ava yet", step)


def _skill_of_another_version(host: Host, place: UserPlace) -> Iterator[CheckFinding]:
    """Report a skill of Ava's that is not this version's: its host gets the whole instructions, as if it had none."""
    from ava_server.hosts.skill import installed_text, is_ours, skill_file, skill_text

    file = skill_file(host.name, place)
    try:
        text = installed_text(file) if file is not None else None
    except ConfigError as error:
        yield CheckFinding("host", "warning", f"{host.title}: {error}", "Correct it, or remove it.")
        return
    if text is not None and is_ours(text) and text != skill_text():
        said = f"{host.title} has the skill of another version of Ava, or a changed one ({file})"
        yield CheckFinding("host", "note", said, f"Run `ava init {host.name} --skill` for this version's.")


def _without_address(title: str, file: Path, missing: Mapping[str, tuple[str, ...]], again: str) -> CheckFinding:
    """Return the finding about a host that passes keys on without the variables for their addresses."""
    keys = ", ".join(missing)
    names = ", ".join(chain.from_iterable(missing.values()))
    text = f"{title} passes on {keys}, but not {names} ({file}): Ava would send a gateway's key to the provider"
    return CheckFinding("host", "warning", text, with_advice(again, "Or add these names to its list."))
