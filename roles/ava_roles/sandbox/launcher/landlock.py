"""Landlock: what of the file system a command may reach, by rights that the kernel's version has."""

from __future__ import annotations

import os
import stat
import struct

from ava_roles.sandbox.launcher import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_MAKE_DEVICES = 1 << 6 | 1 << 11
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights over files there are, by version; later ones have one more, which is about devices."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_TCP, _TCP_FROM = 3, 4
_ABSTRACT_SOCKETS_AND_SIGNALS, _SCOPES_FROM = 3, 6
LEAST = 3
"""Without the right over truncation, files outside could be emptied."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf", "/etc/localtime")
NETWORK_SETTINGS = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/ssl/certs",
    "/etc/ca-certificates", "/etc/pki/tls", "/etc/pki/ca-trust",
)  # fmt: skip
READ_DEVICES, WRITE_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/random"), ("/dev/null",)


def confine(readable: list[str], writable: list[str], *, network: bool, abi: int) -> None:
    """Let this process reach nothing else from now on, nor what it starts. It must have given up new privileges.

    Args:
        readable: What may be read and executed, where it is there.
        writable: What may be written to beside.
        network: TCP is allowed.
        abi: The version of the kernel's.
    """
    rights = (1 << _RIGHTS.get(abi, 16)) - 1
    wanted = struct.pack("Q", rights)
    if abi >= _TCP_FROM:
        wanted += struct.pack("Q", 0 if network else _TCP)
    if abi >= _SCOPES_FROM:
        wanted += struct.pack("Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = kernel.landlock(_CREATE, wanted, len(wanted), 0)
    try:
        for paths, allowed in (
            ((*readable, *READ_DEVICES), _EXECUTE | _READ_FILE | _READ_FOLDER),
            ((*writable, *WRITE_DEVICES), rights & ~_MAKE_DEVICES),
        ):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        kernel.landlock(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        kernel.landlock(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
