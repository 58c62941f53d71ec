"""Which calls of the kernel a confined command may not make, as a seccomp filter.

What is left out is allowed: the list has what leads out of a namespace, into other processes and the kernel's rarely
used corners, and what holds memory that belongs to no process and so would not be counted.
"""

from __future__ import annotations

import errno
import os
import struct

# Numbers for x86-64 and for aarch64; None where the machine has no such call.
_REFUSED: dict[str, tuple[int | None, int]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "quotactl": (179, 60), "acct": (163, 89),
    "syslog": (103, 116), "swapon": (167, 224), "reboot": (169, 142), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "shmat": (30, 196), "shmctl": (31, 195),
    "msgctl": (71, 187), "msgsnd": (69, 189), "msgrcv": (70, 188), "semctl": (66, 191), "semop": (65, 193),
    "semtimedop": (220, 192), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
_MISSING: dict[str, tuple[int | None, int]] = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
"""Answered as an older kernel would, so that programs take their other way."""
_ATTRIBUTES: dict[str, tuple[int | None, int]] = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip
"""Landlock has no right for these."""
_BY_PATH: dict[str, tuple[int | None, int]] = {
    "chmod": (90, 53), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 54), "lchown": (94, 54),
    "fchownat": (260, 54), "utime": (132, 88), "utimes": (235, 88), "futimesat": (261, 88),
}  # fmt: skip
"""Nor for these, which matter where the command owns files outside."""
_SOCKET, _CLONE = (41, 198), (56, 220)
_NEW_NAMESPACES = 0x7E02_0000
UNIX, IPV4, IPV6, NETLINK = 1, 2, 10, 16
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER, _MACHINE, _FIRST = 0, 4, 16  # where the kernel puts them
_OTHER_NUMBERS = 0x4000_0000  # x86-64 has the calls of x32 from here on


def refusing(families: tuple[int, ...], *, attributes: bool = False, by_path: bool = False) -> bytes:
    """Return a filter.

    Args:
        families: The kinds of sockets that may be made.
        attributes: Refuse extended attributes.
        by_path: Refuse modes and owners by name.

    Raises:
        OSError: The numbers of this machine are not known.
    """
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(errno.ENOSYS, f"the calls of this kind of machine are not known ({name})", "seccomp")
    column, audit = _MACHINES[name]
    refused = _numbers(_REFUSED, column) | (_numbers(_ATTRIBUTES, column) if attributes else set[int]())
    if by_path:
        refused |= _numbers(_BY_PATH, column) - ({88} if column else set())  # 88 sets the times of open files too
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if column == 0:
        steps += [(_AT_LEAST, 0, 1, _OTHER_NUMBERS), (_RETURN, 0, 0, _KILL)]
    for number in sorted(_numbers(_MISSING, column)):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for number in sorted(refused):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    steps += [
        (_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 2 + 2 * len(families), _SOCKET[column]), (_LOAD, 0, 0, _FIRST),
    ]  # fmt: skip
    for family in families:
        steps += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    steps += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _numbers(table: dict[str, tuple[int | None, int]], column: int) -> set[int]:
    return {number for both in table.values() if (number := both[column]) is not None}
