"""The machine: Python, SQLite, git, ripgrep, and what there is to confine commands with."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ava_audit.store.schema import open_in_memory
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.toolchains import find_toolchains
from ava_server.cli.doctor import confinement as probes
from ava_server.cli.doctor.check import Finding, Setup
from ava_server.config.settings import SandboxSettings
from ava_server.core.data_root import home_folder
from ava_server.hosts.launching import passing

PROBE_S = 5.0
"""A program that does not say its version within this long is as good as none."""
WAL_RESET_MENDED = (3, 51, 3)
_INSTALL = "Install Ava into an environment that stays (the README says how), and run `ava init` from there."


def python(_setup: Setup) -> list[Finding]:
    """Tell which Python and which Ava this is, and whether it stays where it is."""
    try:
        own = version("ava-subagents")
    except PackageNotFoundError:
        own = "(not installed)"
    text = f"{platform.python_version()}, Ava {own}, in {sys.prefix}"
    if why := passing(Path(sys.prefix)):
        why = f"{text}: {why}, so a host that was set up with it loses it"
        return [Finding("python", "warning", why, _INSTALL)]
    found = [Finding("python", "ok", text)]
    if sys.platform != "linux":
        system = f"{platform.system()} {platform.release()}: Ava is tested on Linux; the log and web roles work here"
        found.append(Finding("system", "note", system))
    return found


def command(_setup: Setup) -> list[Finding]:
    """Tell the path of the `ava` command, as hosts need it."""
    path = shutil.which("ava", path=sysconfig.get_path("scripts"))
    if path is not None:
        return [Finding("command", "ok", f"{path} serve is what a host starts")]
    text = f"there is no ava command beside {sys.executable}"
    return [Finding("command", "warning", text, f"Have hosts start {sys.executable} -m ava_server serve")]


def sqlite(_setup: Setup) -> list[Finding]:
    """Tell SQLite's version, and whether it can hold the log."""
    name = sqlite3.sqlite_version
    try:
        with contextlib.closing(open_in_memory()):
            pass
    except sqlite3.Error as error:
        text = f"SQLite {name} cannot hold the log, which needs FTS5 ({error})"
        return [Finding("sqlite", "fault", text, "Use a Python with a full SQLite, such as uv's or python.org's.")]
    text = f"SQLite {name}, with FTS5"
    if sqlite3.sqlite_version_info >= WAL_RESET_MENDED:
        return [Finding("sqlite", "ok", text)]
    text += (
        "; before 3.51.3 a checkpoint that meets a writer can lose a commit. Ava lets only one process make"
        " checkpoints, while nobody writes"
    )
    return [Finding("sqlite", "note", text, "Let no other program open ava.db for writing while Ava runs.")]


def git(_setup: Setup) -> list[Finding]:
    """Tell git's version; without it no command can run on a checkout, and no coder at all."""
    needed = "it says what of a checkout commands may see, and keeps what a coder changes on a branch"
    if says := _says("git", "--version"):
        return [Finding("git", "ok", f"{_number(says)}; {needed}")]
    without = "without it no coder can work, and no command can run in the workspace where that is a checkout"
    return [Finding("git", "note", f"not found; {without}", "Install git if subagents are to run commands.")]


def ripgrep(_setup: Setup) -> list[Finding]:
    """Tell whether ripgrep is here; this version searches files by itself."""
    says = _says("rg", "--version")
    here = _number(says) if says else "not found"
    return [Finding("ripgrep", "ok", f"{here}; not needed: Ava searches files by itself, with the same results")]


def confinement(setup: Setup) -> list[Finding]:
    """Tell what confines commands here, or why nothing does and how that is mended."""
    settings = setup.settings.sandbox if setup.settings is not None else SandboxSettings()
    found = probes.sandbox(settings.mode)
    has = "; ".join((probes.bubblewrap(), probes.landlock(), probes.user_namespaces()))
    if isinstance(found, Unavailable):
        off = "run_bash, python_exec and programs of MCP servers are off"
        text = f"commands cannot be confined here, so {off}: {found.why}"
        step = f"{found.what_to_do[0].upper()}{found.what_to_do[1:]}, then run `ava doctor` again."
        return [Finding("confinement", "warning" if sys.platform == "linux" else "note", text, step)]
    if found.kind == "none":
        text = 'commands are not confined (sandbox.mode = "none"): they can read, change and send whatever you can'
        return [Finding("confinement", "warning", text, 'Set sandbox.mode to "auto", or take it out.')]
    if found.kind == "landlock":
        text = f"commands run in Landlock, which hides less than bubblewrap would ({has})"
        confined = Finding("confinement", "note", text, "Install bubblewrap, or let it make user namespaces.")
    else:
        confined = Finding("confinement", "ok", f"commands run in bubblewrap ({has})")
    home = home_folder()
    refused = find_toolchains(None, (), read_only=settings.read_only, home=home, closed=_closed(setup)).refused
    step = "Correct sandbox.read_only in config.toml."
    return [confined, *(Finding("confinement", "warning", why, step) for why in refused)]


def _closed(setup: Setup) -> tuple[Path, ...]:
    return (setup.root.path,) if setup.root is not None else ()


def _says(*args: str) -> str:
    """Return the first line that a program prints, nothing where there is no such program."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed name and --version
            args, capture_output=True, timeout=PROBE_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").partition("\n")[0].strip()


def _number(says: str) -> str:
    found = re.search(r"\d+(?:\.\d+)+", says)
    return found[0] if found else says[:60]
