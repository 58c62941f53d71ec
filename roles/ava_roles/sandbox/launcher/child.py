"""The supervisor's child: it confines itself and then executes the command."""

from __future__ import annotations

import errno
import os
import stat

from ava_roles.sandbox.launcher import kernel
from ava_roles.sandbox.launcher.kernel import NETWORK_SETTINGS, READ_DEVICES, SETTINGS, SYSTEM, WRITE_DEVICES
from ava_roles.sandbox.launcher.spec import TEMPORARY

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

    from ava_roles.sandbox.launcher.spec import LaunchSpec


# Exit codes as in shells.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OBSTRUCTED = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT)


def exec_command(spec: LaunchSpec, status_at: int, relay: tuple[str, int, str, int] | tuple[()]) -> NoReturn:
    """Confine this process and execute the command. Raises OSError if it cannot be confined.

    Bubblewrap reports to the descriptor `status_at`; `relay` has its options for the relay, if there is one (`Relay`).
    """
    os.setsid()
    kernel.reset_signals()
    runs_as_root = os.getuid() == 0 and spec.uid == 0
    if spec.kind != "none" and runs_as_root:
        raise PermissionError(errno.EPERM, "nothing is confined that runs as root", "setresuid")
    # No bind from a folder that others may write to, where the path now leads through a link.
    dropped = {source for source in spec.direct if os.path.realpath(source) != source}
    spec.binds = [bind for bind in spec.binds if bind[0] not in dropped]
    if spec.kind == "bubblewrap" or (spec.kind == "landlock" and spec.uid):
        _make_mount_points(spec)
    if spec.kind == "bubblewrap":
        _exec_bubblewrap(spec, ("--json-status-fd", status_at, *relay))
    if spec.kind == "landlock":
        _apply_landlock(spec)
    else:
        _translate_paths(spec)
        kernel.set_limits(spec.limits, os.getuid())
        os.chdir(spec.folder)
    _exec_program(spec)


def _exec_bubblewrap(spec: LaunchSpec, reports: tuple[str | int, ...]) -> NoReturn:
    sources = [source for source, _target, _writable in spec.binds]
    if spec.uid:
        sources = _mount_sources(spec)
        drop_to_user(spec.uid)
    os.chdir("/")
    kernel.no_new_privileges()
    families: tuple[int, ...] = (kernel.IPV4, kernel.IPV6, kernel.NETLINK)
    if not spec.network:
        families = (kernel.UNIX, *families)
    filter_at = _in_memory(kernel.seccomp_filter(families))
    options = _bubblewrap_options(spec, sources, ("--seccomp", filter_at, *reports))
    options_at = _in_memory(b"".join(word + b"\0" for word in options))  # hides the environment from other users
    for report in reports:
        if isinstance(report, int):
            os.set_inheritable(report, True)
    command = [os.fsencode(word) for word in (*kernel.prlimit_command(spec.limits), *spec.argv)]
    os.execve(spec.bwrap, [b"bwrap", b"--args", str(options_at).encode(), b"--", *command], {})


def _bubblewrap_options(spec: LaunchSpec, sources: list[str], descriptors: tuple[str | int, ...]) -> list[bytes]:
    """Return bubblewrap's options, with those that name descriptors."""
    words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if not spec.network:
        words.append("--unshare-net")
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for path in _settings(spec):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys", "--dev", "/dev"]
    for path in ("/dev/shm", "/tmp"):  # noqa: S108 - the sandbox's own
        words += ["--size", str(TEMPORARY), "--tmpfs", path]
    for (_source, target, writable), source in zip(spec.binds, sources, strict=True):
        words += ["--bind" if writable else "--ro-bind", source, target]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", spec.folder]
    for name, value in spec.environment.items():
        words += ["--setenv", name, value]
    words += map(str, descriptors)
    return [os.fsencode(word) for word in words]


def _settings(spec: LaunchSpec) -> tuple[str, ...]:
    """Return the system's files of settings that the command may read."""
    if spec.network:
        return (*SETTINGS, *NETWORK_SETTINGS)
    return tuple(SETTINGS)


def _apply_landlock(spec: LaunchSpec) -> None:
    kernel.set_limits(spec.limits, spec.uid or os.getuid())
    if spec.uid:
        _enter_new_root(spec)
        readable = ["/"]  # the new root, which holds only what the command may see
        writable = [target for _source, target, may_write in spec.binds if may_write]
        drop_to_user(spec.uid)
        writable.append("/tmp")  # noqa: S108 - in the new root
    else:
        readable = [source for source, _target, _writable in spec.binds]
        writable = [source for source, _target, may_write in spec.binds if may_write]
        _translate_paths(spec)
    kernel.no_new_privileges()
    readable += [*SYSTEM, *_settings(spec)]
    families = (kernel.IPV4, kernel.IPV6, kernel.NETLINK) if spec.network else ()
    program = kernel.seccomp_filter(families, attributes=True, by_path=not spec.uid)
    kernel.restrict_access(readable, writable, network=spec.network, abi=spec.abi)
    os.chdir(spec.folder)
    kernel.install_filter(program)


def _exec_program(spec: LaunchSpec) -> NoReturn:
    """Look the program up on the PATH and execute it; `os.execvpe` imports a module, which cannot be read any more."""
    name = spec.argv[0]
    folders = [""] if "/" in name else spec.environment.get("PATH", "").split(":")
    failure: OSError = FileNotFoundError(errno.ENOENT, "No such file or directory")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name), spec.argv, spec.environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    os.write(2, f"{name}: {failure.strerror}\n".encode())
    os._exit(NOT_FOUND if isinstance(failure, FileNotFoundError) else NOT_EXECUTABLE)


def _translate_paths(spec: LaunchSpec) -> None:
    """Replace targets of binds by their sources: without mounts, nothing is at its target."""
    longest_first = sorted(spec.binds, key=lambda bind: -len(bind[1]))

    def translate(path: str) -> str:
        for source, target, _writable in longest_first:
            if path == target or path.startswith(f"{target}/"):
                return source + path[len(target) :]
        return path

    spec.folder = translate(spec.folder)
    spec.argv = [translate(word) for word in spec.argv]
    for name, value in spec.environment.items():
        spec.environment[name] = ":".join(map(translate, value.split(":")))


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("ava", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def drop_to_user(uid: int) -> None:
    """Become another user permanently. Raises PermissionError if the process would keep an id of root."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if {*os.getresuid(), *os.getresgid(), *os.getgroups()} != {uid}:
        raise PermissionError(1, "this process is still root", "setresuid")


# -- mounts -----------------------------------------------------------------------------------------------------------

_PLACE = "/tmp"  # noqa: S108 - exists everywhere; covered by a mount that no other process sees
_PLACE_SIZE = 1024 * 1024
_PLAIN = kernel.NO_SUID | kernel.NO_DEVICES


def _make_mount_points(spec: LaunchSpec) -> None:
    """Make the folders and files on which binds within other binds are mounted; follow no link.

    A bind is dropped where an earlier command has put something else at its mount point, in a folder that commands may
    write to. No command may be running in these folders meanwhile. Raises OSError if something else is at a mount point
    in a read-only folder: what the bind was to hide would be visible.
    """
    binds: list[tuple[str, str, bool]] = []
    for source, target, writable in spec.binds:
        outer_binds = [bind for bind in binds if target.startswith(f"{bind[1]}/")]
        if outer_binds:
            outer, outer_target, may_write = max(reversed(outer_binds), key=lambda bind: len(bind[1]))
            owner = spec.uid if may_write else None
            try:
                _make_mount_point(source, outer, target[len(outer_target) :], owner)
            except OSError as error:
                if may_write and error.errno in _OBSTRUCTED:
                    continue
                raise
        binds.append((source, target, writable))
    spec.binds = binds


def _make_mount_point(source: str, outer: str, path: str, owner: int | None) -> None:
    """Make a folder for a folder, else a file, at a path beneath `outer`. Raises OSError; see `_open_or_make`."""
    *folders, last = [name for name in path.split("/") if name]
    is_folder = stat.S_ISDIR(os.stat(source).st_mode)
    parent = _walk(os.open(outer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), folders, owner=owner)
    try:
        os.close(_open_or_make(parent, last, is_folder=is_folder, owner=owner))
    finally:
        os.close(parent)


def _mount_sources(spec: LaunchSpec) -> list[str]:
    """Mount each source where every user can reach it; return the places. Raises OSError: refused, as in containers."""
    _leave_mounts()
    places = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _target, _writable in spec.binds]
    _cover_place()
    return [_bind(place, f"/{number}", writable=True) for number, place in enumerate(places)]


def _enter_new_root(spec: LaunchSpec) -> None:
    """Make a root of the system's programs and the binds, and enter it. Raises OSError: refused, as in a container."""
    _leave_mounts()
    links: dict[str, str] = {}
    mounts: list[tuple[str, int, bool]] = []
    for path in (*SYSTEM, *_settings(spec), *READ_DEVICES, *WRITE_DEVICES):
        if path in SYSTEM and os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.exists(path):
            mounts.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC), path in WRITE_DEVICES))
    binds: list[tuple[str, int, bool]] = []
    for source, target, writable in spec.binds:
        is_in_system = any(target == path or target.startswith(f"{path}/") for path in SYSTEM)
        if not is_in_system:
            binds.append((target, os.open(source, os.O_PATH | os.O_CLOEXEC), writable))
    _cover_place()
    for path, place, writable in mounts:
        _bind(place, path, writable=writable)
    for path, link_target in links.items():
        os.symlink(link_target, _PLACE + path)
    temporary = _PLACE + "/tmp"  # noqa: S108 - in the new root
    os.mkdir(temporary)
    kernel.mount("tmpfs", temporary, "tmpfs", _PLAIN, f"mode=1777,size={TEMPORARY}")
    for target, place, writable in binds:
        _bind(place, target, writable=writable)
    os.chroot(_PLACE)
    os.chdir("/")


def _leave_mounts() -> None:
    """Enter a mount namespace of our own. Only what is opened after this can be mounted."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)


def _cover_place() -> None:
    kernel.mount("tmpfs", _PLACE, "tmpfs", _PLAIN, f"mode=0755,size={_PLACE_SIZE}")


def _bind(place: int, target: str, *, writable: bool) -> str:
    """Mount a descriptor's folder or file at a target beneath `_PLACE`, and return the whole path.

    It follows no link: a command may have made what is there. Raises OSError if something else is in the way.
    """
    *folders, last = target.strip("/").split("/")
    parent = _walk(os.open(_PLACE, _FOLDER), folders, owner=0)
    point = _open_or_make(parent, last, is_folder=stat.S_ISDIR(os.fstat(place).st_mode), owner=0)
    kernel.mount(f"/proc/self/fd/{place}", f"/proc/self/fd/{point}", None, kernel.BIND | kernel.RECURSIVE)
    os.close(point)
    if not writable:
        mounted = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        kernel.mount(None, f"/proc/self/fd/{mounted}", None, kernel.BIND | kernel.REMOUNT | kernel.READ_ONLY)
        os.close(mounted)
    os.close(parent)
    return _PLACE + target


def _walk(top: int, names: list[str], *, owner: int | None) -> int:
    """Close a folder's descriptor and return that of a folder beneath it; see `_open_or_make`."""
    here = top
    try:
        for name in names:
            below = _open_or_make(here, name, is_folder=True, owner=owner)
            os.close(here)
            here = below
        return here
    except BaseException:
        os.close(here)
        raise


def _open_or_make(parent: int, name: str, *, is_folder: bool, owner: int | None) -> int:
    """Return a descriptor of a folder, or of a file of any kind; follow no link. Raises OSError.

    A missing one is made, unless `owner` is None, and given to the owner, unless that is 0.
    """
    if owner is not None:
        try:
            if is_folder:
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))
            if owner:
                os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)
        except FileExistsError:
            pass
    if is_folder:
        return os.open(name, _FOLDER, dir_fd=parent)
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        os.close(descriptor)
        raise OSError(errno.ENOTDIR, "something else is in the way", name)
    return descriptor
