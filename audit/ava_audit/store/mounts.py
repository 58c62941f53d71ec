"""Which file system a data root lies on: SQLite's locks and shared memory do not work over a network."""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path

from ava_audit.errors import DataRootRefused

# fmt: off
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "orangefs", "panfs", "smb3", "smbfs",
})
_NETWORK_FUSE = frozenset({
    "blobfuse", "blobfuse2", "ceph-fuse", "cephfs", "curlftpfs", "davfs2", "gcsfuse", "glusterfs",
    "gvfsd-fuse", "juicefs", "rclone", "s3fs", "smbnetfs", "sshfs",
})
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")


class NotOnThisSystem(OSError):
    """Raised by what only Linux can tell, elsewhere and where /proc is not there."""


def refuse_unfit(root: Path) -> None:
    """Refuse a folder that cannot be the data root.

    Raises:
        DataRootRefused: It is not a folder, or lies on a network file system.
    """
    if not root.is_dir():
        raise DataRootRefused(f"the data root {root} is not a folder: create it, or choose another AVA_DATA_ROOT")
    kind = network_file_system(root)
    if kind is not None:
        raise DataRootRefused(
            f"the data root {root} lies on a network file system ({kind}), where locks do not hold: "
            "set AVA_DATA_ROOT to a folder on a local disk"
        )


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that a path lies on; None on a local disk.

    Only Linux tells; elsewhere every disk is taken for a local one.
    """
    try:
        return _network_kind(mount_table(), path.resolve())
    except NotOnThisSystem:
        return None


def mount_table() -> str:
    """Return what is mounted where, as the kernel lists it.

    Raises:
        NotOnThisSystem: This is not Linux, or /proc cannot be read.
    """
    try:
        if sys.platform.startswith("linux"):
            return _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise NotOnThisSystem(error.errno or errno.ENOSYS, "not on this system", str(_MOUNTS)) from error
    raise NotOnThisSystem(errno.ENOSYS, "not on this system", str(_MOUNTS))


def _network_kind(mounts: str, path: Path) -> str | None:
    """Return the type of the mount that covers an absolute path if it is one over a network."""
    place, kind = Path("/"), ""
    for line in mounts.splitlines():
        before, found, after = line.partition(" - ")
        fields = before.split(" ")
        if not found or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= len(place.parts):
            place, kind = point, after.split(" ")[0]
    if kind == "9p" and place == Path("/"):
        return None  # a sandbox whose whole disk is 9p is one machine with itself
    family, _, driver = kind.partition(".")
    if family in ("fuse", "fuseblk"):
        return kind if driver in _NETWORK_FUSE else None
    return kind if family in _NETWORK else None
