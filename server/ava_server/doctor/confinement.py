"""What Linux offers to confine a command with: asked cheaply, and changing nothing in this process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROBE_S = 5.0
NOT_HERE = "not on this system"
NOBODY = 65_534
_LANDLOCK_CREATE_RULESET = 444
_ASK_VERSION = 1
_USERNS = Path("/proc/sys/user/max_user_namespaces")
_UNPRIVILEGED = Path("/proc/sys/kernel/unprivileged_userns_clone")
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def bubblewrap() -> str:
    """Return whether bubblewrap is here, and whether it can make a sandbox: tried, because kernels forbid it."""
    path = shutil.which("bwrap")
    if sys.platform != "linux" or path is None:
        return "bubblewrap is not installed" if sys.platform == "linux" else f"bubblewrap: {NOT_HERE}"
    # Not as root: there a sandbox's owner would be the machine's.
    user = NOBODY if os.geteuid() == 0 else None
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
    """Return which version of Landlock the kernel has; asking makes no ruleset."""
    if sys.platform != "linux":
        return f"Landlock: {NOT_HERE}"
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        abi = int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))
    except (OSError, AttributeError) as error:
        return f"Landlock cannot be asked ({type(error).__name__})"
    return f"Landlock ABI {abi}" if abi > 0 else f"no Landlock ({os.strerror(ctypes.get_errno())})"


def user_namespaces() -> str:
    """Return whether an ordinary user may make user namespaces, as the kernel's settings say."""
    if sys.platform != "linux":
        return f"user namespaces: {NOT_HERE}"
    most, allowed, restricted = (_setting(path) for path in (_USERNS, _UNPRIVILEGED, _APPARMOR))
    if most == 0 or allowed == 0:
        return "user namespaces off"
    if restricted:
        return "user namespaces restricted by AppArmor"
    return "user namespaces on" if most is not None else "user namespaces unknown"


def _setting(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
