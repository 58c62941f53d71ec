"""What confines commands here, and what Linux offers for it: tried, and changing nothing in this process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

from ava_roles.sandbox.linux import NotOnThisSystem, kernel_setting, landlock_abi
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_server.core.files import is_root

PROBE_S = 5.0
NOT_HERE = "not on this system"
NOBODY = 65_534
_USER_NAMESPACES = (
    "user/max_user_namespaces",
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)


@cache
def sandbox(mode: Literal["auto", "none"]) -> Sandbox | Unavailable:
    """Return what confines commands under a setting, or why nothing does; tried once, in a folder that is gone then."""
    with tempfile.TemporaryDirectory(prefix="ava-doctor-") as state:
        return find_sandbox(mode, Path(state))


def bubblewrap() -> str:
    """Return whether bubblewrap is here, and whether it can make a sandbox: tried, because kernels forbid it."""
    path = shutil.which("bwrap")
    if sys.platform != "linux" or path is None:
        return "bubblewrap is not installed" if sys.platform == "linux" else f"bubblewrap: {NOT_HERE}"
    # Not as root: there a sandbox's owner would be the machine's.
    user = NOBODY if is_root() else None
    sandbox = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    try:
        says = subprocess.run(  # noqa: S603 - the program that was found, and fixed arguments
            [path, "--version"], env={}, capture_output=True, timeout=PROBE_S, check=True
        )
        tried = subprocess.run(  # noqa: S603 - the same
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
    found = re.search(rb"\d+(?:\.\d+)+", says.stdout)
    name = f"bubblewrap {found[0].decode()}" if found else "bubblewrap"
    if tried.returncode == 0:
        return f"{name} works"
    why = tried.stderr.decode("utf-8", "replace").strip().partition("\n")[0].removeprefix("bwrap: ")
    return f"{name} cannot make a sandbox here ({why[:100] or 'it does not say why'})"


def landlock() -> str:
    """Return which version of Landlock the kernel has."""
    try:
        abi = landlock_abi()
    except NotOnThisSystem:
        return f"Landlock: {NOT_HERE}"
    return f"Landlock ABI {abi}" if abi else "no Landlock"


def user_namespaces() -> str:
    """Return whether an ordinary user may make user namespaces, as the kernel's settings say."""
    try:
        most, allowed, restricted = (kernel_setting(name) for name in _USER_NAMESPACES)
    except NotOnThisSystem:
        return f"user namespaces: {NOT_HERE}"
    if most == 0 or allowed == 0:
        return "user namespaces off"
    if restricted:
        return "user namespaces restricted by AppArmor"
    return "user namespaces on" if most is not None else "user namespaces unknown"
