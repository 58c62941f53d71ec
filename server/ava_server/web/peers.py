"""Which user of this machine a connection comes from, so that `ava ui` serves nobody else."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of these tables: the local and the remote address, the owner of the socket, and its inode."""


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Tell whether a connection within this machine comes from this process's user, or from root. Blocking.

    Where the system has no such table, as outside Linux, the answer is yes: the session is then the only protection.

    Args:
        client: Address and port of the other end.
        server: Address and port of this end.
    """
    if not all(table.exists() for table in _TABLES[:1]):
        return True
    owner = owner_of(client, server)
    return owner in (0, os.geteuid())


def owner_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the number of the user whose socket is the other end of a connection; None if it is not found. Blocking.

    A socket that its program has closed has no inode, and root for its owner: it counts as not found.

    The format is that of proc(5): addresses in hex, each group of four bytes in the order of this machine.
    """
    wanted = {(_in_hex(*client, mapped), _in_hex(*server, mapped)) for mapped in (False, True)}
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if (columns[_LOCAL], columns[_REMOTE]) in wanted and columns[_INODE] != "0":
                return int(columns[_UID])
    return None


def _in_hex(host: str, port: int, mapped: bool) -> str:
    """Return an address as the tables have it; `mapped` is an IPv4 address in an IPv6 socket."""
    address = ipaddress.ip_address(host)
    if mapped and address.version == 4:
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    packed = address.packed
    groups = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        groups = [group[::-1] for group in groups]
    return f"{b''.join(groups).hex().upper()}:{port:04X}"
