"""Calls to the kernel that restrict a process, and how much disk a folder uses."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import stat
import struct

from ava_roles.sandbox.launcher.spec import PRLIMIT, USERS

TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal

    from ava_roles.sandbox.launcher.spec import ResourceLimits
else:
    import _signal as signal  # `signal` makes enums of its numbers


_LIBC = ctypes.CDLL(None, use_errno=True)
# What prctl sets.
_PARENT_DEATH_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_SUBREAPER = 36
_NO_NEW_PRIVS = 38
_FILTER = 2
# Namespaces.
NEW_MOUNTS = 0x0002_0000
NEW_USER = 0x1000_0000
NEW_NETWORK = 0x4000_0000
_GET_OWNER = 0xB701
# Flags of mounts.
READ_ONLY = 1
NO_SUID = 2
NO_DEVICES = 4
REMOUNT = 32
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 1 << 18


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def adopt_orphans() -> None:
    """Make every descendant whose parent ends a child of this process."""
    _prctl(_SUBREAPER, 1)


def continue_on_parent_death() -> None:
    """Make the kernel continue this process if it is stopped when its parent ends."""
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGCONT)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends. Changing the user undoes this."""
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def hide_process() -> None:
    """Hide this process's memory and environment from other processes of the same user."""
    _prctl(_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    _prctl(_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    structure = _Program(len(program) // 8, program)
    _checked(_LIBC.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(structure), 0, 0), "seccomp")


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags), "unshare")


def enter_network(namespace: int) -> None:
    """Enter a network namespace and the user namespace that owns it, if this user or root made them."""
    owner = fcntl.ioctl(namespace, _GET_OWNER)
    _checked(_LIBC.setns(owner, NEW_USER), "setns")
    _checked(_LIBC.setns(namespace, NEW_NETWORK), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    data = None if options is None else options.encode()
    _checked(_LIBC.mount(*texts, ctypes.c_ulong(flags), data), f"mount {target}")


def _landlock(number: int, *arguments: object) -> int:
    return _checked(_LIBC.syscall(number, *arguments), "Landlock")


def _prctl(what: int, value: int) -> None:
    _checked(_LIBC.prctl(what, value, 0, 0, 0), "prctl")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


# System calls of Landlock.
_CREATE = 444
_ADD = 445
_RESTRICT = 446
_PATH_BENEATH = 1
# Rights of Landlock.
_EXECUTE = 1
_WRITE_FILE = 2
_READ_FILE = 4
_READ_FOLDER = 8
_MAKE_DEVICES = 1 << 6 | 1 << 11
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""The number of file rights by Landlock version; later versions have 16, the last of which is about devices."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_TCP = 3
_TCP_FROM = 4  # the version of Landlock
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_SCOPES_FROM = 6  # the version of Landlock

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf", "/etc/localtime")
NETWORK_SETTINGS = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/ssl/certs",
    "/etc/ca-certificates", "/etc/pki/tls", "/etc/pki/ca-trust",
)  # fmt: skip
READ_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/random")
WRITE_DEVICES = ("/dev/null",)


def restrict_access(readable: list[str], writable: list[str], *, network: bool, abi: int) -> None:
    """Restrict this process, and all that it starts, by Landlock of version `abi`. Call `no_new_privileges` first.

    `readable` paths may be read and executed, missing ones are ignored; `writable` ones may also be written to. Without
    `network`, TCP is refused.
    """
    rights = (1 << _RIGHTS.get(abi, 16)) - 1
    handled = struct.pack("Q", rights)
    if abi >= _TCP_FROM:
        handled += struct.pack("Q", 0 if network else _TCP)
    if abi >= _SCOPES_FROM:
        handled += struct.pack("Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _landlock(_CREATE, handled, len(handled), 0)
    try:
        for path in (*readable, *READ_DEVICES):
            _allow(ruleset, path, (_EXECUTE | _READ_FILE | _READ_FOLDER) & rights)
        for path in (*writable, *WRITE_DEVICES):
            _allow(ruleset, path, rights & ~_MAKE_DEVICES)
        _landlock(_RESTRICT, ruleset, 0)
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
        _landlock(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


# System call numbers on x86-64 and aarch64.
_REFUSED: dict[str, tuple[int, int]] = {
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
_MISSING: dict[str, tuple[int, int]] = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
"""Answered with ENOSYS, as an older kernel does, so that programs use their fallback."""
_ATTRIBUTES: dict[str, tuple[int, int]] = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}  # fmt: skip
"""Landlock does not cover these."""
_BY_PATH: dict[str, tuple[int, int]] = {
    "chmod": (90, 53), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 54), "lchown": (94, 54),
    "fchownat": (260, 54), "utime": (132, 88), "utimes": (235, 88), "futimesat": (261, 88),
}  # fmt: skip
"""Landlock does not cover these either. They matter where the command's user owns files outside."""
_AARCH64_UTIMENSAT = 88  # also serves open files
_SOCKET = (41, 198)
_CLONE = (56, 220)
_NEW_NAMESPACES = 0x7E02_0000
# Families of sockets.
UNIX = 1
IPV4 = 2
IPV6 = 10
NETLINK = 16
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
# Instructions of a filter.
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# Answers of a filter.
_ALLOW = 0x7FFF_0000
_KILL = 0x8000_0000
_ERROR = 0x0005_0000
# Offsets in the kernel's seccomp_data.
_NUMBER = 0
_MACHINE = 4
_FIRST = 16
_X32_NUMBERS = 0x4000_0000  # on x86-64, numbers from here on are calls of the x32 ABI


def seccomp_filter(families: tuple[int, ...], *, attributes: bool = False, by_path: bool = False) -> bytes:
    """Return a seccomp filter that allows these socket families.

    With `attributes`, it also refuses to change extended attributes; with `by_path`, modes, owners and times by path.
    Raises OSError if the call numbers of this machine are unknown.
    """
    name = os.uname().machine
    if name not in _MACHINES:
        raise OSError(errno.ENOSYS, f"the system call numbers of this machine type are unknown ({name})", "seccomp")
    column, audit = _MACHINES[name]
    refused = _numbers(_REFUSED, column)
    if attributes:
        refused |= _numbers(_ATTRIBUTES, column)
    if by_path:
        numbers_by_path = _numbers(_BY_PATH, column)
        if name == "aarch64":
            numbers_by_path.discard(_AARCH64_UTIMENSAT)
        refused |= numbers_by_path
    steps = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if column == 0:
        steps += [(_AT_LEAST, 0, 1, _X32_NUMBERS), (_RETURN, 0, 0, _KILL)]
    for numbers, answer in ((_numbers(_MISSING, column), errno.ENOSYS), (refused, errno.EPERM)):
        for number in sorted(numbers):
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | answer)]
    steps += [
        (_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 2 + 2 * len(families), _SOCKET[column]), (_LOAD, 0, 0, _FIRST),
    ]  # fmt: skip
    for family in families:
        steps += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    steps += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _numbers(table: dict[str, tuple[int, int]], column: int) -> set[int]:
    return {numbers[column] for numbers in table.values()}


def _resource_limits(limits: ResourceLimits) -> tuple[tuple[str, int, int], ...]:
    """Return each limit with its option of prlimit and its number."""
    values = (
        ("fsize", resource.RLIMIT_FSIZE, limits.file),
        ("nproc", resource.RLIMIT_NPROC, limits.processes),
        ("nofile", resource.RLIMIT_NOFILE, limits.open_files),
        ("cpu", resource.RLIMIT_CPU, limits.cpu_s),
        ("core", resource.RLIMIT_CORE, 0),
    )
    if not limits.address_space:
        return values
    return (("as", resource.RLIMIT_AS, limits.address_space), *values)


def prlimit_command(limits: ResourceLimits) -> list[str]:
    """Return the command that sets limits and executes the rest; inside the sandbox, which counts its own processes."""
    options = [f"--{option}={_allowed(number, value)}" for option, number, value in _resource_limits(limits)]
    return [PRLIMIT, *options, "--"]


def set_limits(limits: ResourceLimits, uid: int) -> None:
    """Limit this process and all that it starts; the existing processes of the user `uid` come on top."""
    present = _count_tasks(uid)
    for _option, number, value in _resource_limits(limits):
        least = _allowed(number, value + present if number == resource.RLIMIT_NPROC else value)
        resource.setrlimit(number, (least, least))


def allow_open_files(count: int) -> None:
    """Raise this process's limit on open descriptors to `count`, as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_allowed(resource.RLIMIT_NOFILE, count), hard))


def _allowed(number: int, value: int) -> int:
    """Return a limit, or this process's own where that is lower: only root can raise it."""
    hard = resource.getrlimit(number)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def reset_signals() -> None:
    """Restore the default handling of the signals that this process ignores; an executed program would inherit it."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _count_tasks(uid: int) -> int:
    """Return how many threads the processes of a user have."""
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # the process has ended
            continue
    return count


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = 1024  # bytes counted for a name and its inode
DEEPEST = 200
"""Only a command that hides something nests folders deeper."""


class TooDeep(Exception):
    """Raised when folders are nested deeper than `DEEPEST`."""


def measure(folders: list[str], owner: int = 0) -> int:
    """Return the bytes that folders and files take on the disk; missing ones count nothing. Raises TooDeep.

    The user `owner` becomes the owner of what root or another of `USERS` owns there; 0 changes no owner.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        try:
            top = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(top)
            total += _size(status, seen)
            _give(None, f"/proc/self/fd/{top}", status, owner, follow=True)
            total += _measure_below(folder, seen, owner)
        finally:
            os.close(top)
    return total


def _measure_below(folder: str, seen: set[tuple[int, int]], owner: int) -> int:
    total = 0
    try:
        stack = [_list(folder, None)]
    except OSError:  # a file, or a folder that cannot be read
        return 0
    try:
        while stack:
            here, names = stack[-1]
            if not names:
                stack.pop()
                os.close(here)
                continue
            name = names.pop()
            try:
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                total += _size(status, seen)
                _give(here, name, status, owner)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                if len(stack) >= DEEPEST:
                    raise TooDeep
                stack.append(_list(name, here))
            except OSError:  # it is gone, or cannot be read
                continue
    finally:
        for here, _names in stack:
            os.close(here)
    return total


def _list(name: str, parent: int | None) -> tuple[int, list[str]]:
    flags = _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        return descriptor, os.listdir(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _size(status: os.stat_result, seen: set[tuple[int, int]]) -> int:
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        if (status.st_dev, status.st_ino) in seen:
            return _ENTRY
        seen.add((status.st_dev, status.st_ino))
    return status.st_blocks * 512 + _ENTRY


def _give(parent: int | None, name: str, status: os.stat_result, owner: int, *, follow: bool = False) -> None:
    """Make `owner` the owner of what root or another of `USERS` owns; with `owner` 0, do nothing.

    A file with several names (hard links) stays as it is: another of its names may be elsewhere.
    """
    if not owner or status.st_uid == owner:
        return
    is_of_sandbox = status.st_uid == 0 or status.st_uid in USERS
    has_one_name = stat.S_ISDIR(status.st_mode) or status.st_nlink == 1
    if is_of_sandbox and has_one_name:
        os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=follow)


def free(folders: list[str]) -> int:
    """Return the free bytes on the disk of the folders that has the fewest."""
    least = 1 << 62
    for folder in folders:
        try:
            status = os.statvfs(folder)
        except OSError:
            continue
        least = min(least, status.f_bavail * status.f_frsize)
    return least


def measure_unlinked(pids: list[int]) -> int:
    """Return the bytes of files that processes hold open and that no longer have a name."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                try:
                    status = os.stat(f"/proc/{pid}/fd/{number}")
                except OSError:  # it has been closed
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
        except OSError:  # the process has ended, or hides itself
            continue
    return sum(sizes.values())
