"""Network namespaces as machines: what runs in one reaches this one by two links, one of them for the database.

with network_namespaces(2) as (here, there):
    ... [*there.command, "ava", "worker"] ... there.to_database, there.to_all_else ...
    there.unplug()   # neither end is told
    there.plug_in()

It takes Linux, root, and `ip`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

NETWORK = "10.213"
"""Each link is a /30 of it: this machine has the first address, the namespace the second."""
COMMON = f"{NETWORK}.0.5"
"""An address of this machine that is the same for all namespaces, and for this machine itself."""


@dataclass(frozen=True)
class NetworkNamespace:
    """A machine of its own, as far as the network is concerned.

    This machine's addresses are `to_database`, by the link that can be unplugged, and `to_all_else`, by the other, over
    which also `COMMON` is reached.
    """

    name: str
    to_database: str
    to_all_else: str
    _link: str

    @property
    def command(self) -> tuple[str, ...]:
        """What to put before a command, to run it there; the process keeps its id."""
        return ("ip", "netns", "exec", self.name)

    def without(self, folder: str) -> tuple[str, ...]:
        """As `command`, on a machine that does not have a folder of this one."""
        hide = 'mount -t tmpfs none "$1" && shift && exec "$@"'
        return (*self.command, "sh", "-c", hide, "sh", folder)

    def unplug(self) -> None:
        _ip("link", "set", self._link, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self._link, "up")


@cache
def why_missing() -> str:
    """Return why no namespace can be made here; empty if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces take Linux and root"
    name = f"ava-try-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"no network namespace can be made: {said}"
    return ""


@contextmanager
def network_namespaces(count: int) -> Generator[list[NetworkNamespace]]:
    """Make namespaces, and remove them with their links at the end. Nothing else may use `NETWORK` meanwhile."""
    with ExitStack() as made:
        yield [made.enter_context(_made(number)) for number in range(count)]


@contextmanager
def _made(number: int) -> Generator[NetworkNamespace]:
    name = f"ava-{os.getpid()}-{number}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        ends = []
        for which, purpose in enumerate("da"):
            near, far = f"av{os.getpid()}{purpose}{number}", f"{purpose}{number}"
            third, fourth = number, 4 * which
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            _ip("addr", "add", f"{NETWORK}.{third}.{fourth + 1}/30", "dev", near)
            _ip("-n", name, "addr", "add", f"{NETWORK}.{third}.{fourth + 2}/30", "dev", far)
            _ip("link", "set", near, "up")
            _ip("-n", name, "link", "set", far, "up")
            ends.append((near, f"{NETWORK}.{third}.{fourth + 1}"))
        (link, to_database), (_link, to_all_else) = ends
        if to_all_else != COMMON:
            _ip("-n", name, "route", "add", f"{COMMON}/32", "via", to_all_else)
        yield NetworkNamespace(name, to_database, to_all_else, link)
    finally:
        _ip("netns", "del", name)  # its links go with it


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=20)
