"""What only some systems have stands behind one function each, and nothing else in the source uses it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ava_audit.store import locks
from ava_roles.sandbox import linux

REPOSITORY = Path(__file__).resolve().parents[1]
MODULES = {"ctypes", "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "msvcrt", "winreg", "syslog"}
METHODS = {"add_signal_handler", "connect_read_pipe", "connect_write_pipe", "open_signal_receiver", "wait_readable"}
"""What the event loop of Windows does not do for signals, consoles and pipes."""
KEYWORDS = {"dir_fd", "src_dir_fd", "dst_dir_fd", "pass_fds", "preexec_fn", "start_new_session", "process_group"}
PLACES = ("/proc/", "/sys/")

CONFINE = "roles/ava_roles/sandbox/"
PROGRAMS = (f"{CONFINE}launcher/", f"{CONFINE}attacker.py")
"""Separate programs for Linux; they are started, and parts of them imported, only where `selection.py` found Linux."""
PATHS, STDIO = "roles/ava_roles/sandbox/path_access.py", "server/ava_server/mcp_server/stdio.py"
LINUX = "roles/ava_roles/sandbox/linux.py"


@pytest.mark.slow
def test_only_the_listed_functions_use_platform_specific_features() -> None:
    strays = [f"{name}:{line}: {use}" for name, line, use in uses() if (name, use) not in BEHIND]
    assert strays == [], "put it behind a function that says `not on this system`, or ask with getattr"


@pytest.mark.slow
def test_every_exception_is_still_needed() -> None:
    found = {(name, use) for name, _line, use in uses()}
    assert [where for where in BEHIND if where not in found] == []


def test_detects_each_kind_of_platform_specific_use() -> None:
    source = (
        '"""Reads /proc/self/stat."""\n'
        "import os, fcntl\n"
        "from signal import SIGKILL\n"
        "a = os.O_PATH\n"
        "b = getattr(os, 'O_PATH', 0)\n"
        "c = open('/proc/self/stat')\n"
        "run(['true'], preexec_fn=None)\n"
        "loop.add_signal_handler(2, print)\n"
    )
    assert sorted(uses_in(ast.parse(source))) == [
        (2, "fcntl"),
        (3, "signal.SIGKILL"),
        (4, "os.O_PATH"),
        (6, "/proc/"),
        (7, "preexec_fn"),
        (8, "add_signal_handler"),
    ]


SPECIAL: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "openat2": (lambda: linux.openat2(0, "x", 0), ("win32", "darwin", "freebsd14")),
    "prctl": (linux.end_with_parent, ("win32", "darwin", "freebsd14")),
    "hiding": (linux.hide_from_others, ("win32", "darwin", "freebsd14")),
    "alarm": (lambda: linux.end_within(600), ("win32",)),
    "memory": (linux.usable_memory, ("win32", "darwin", "freebsd14")),
    "niceness": (lambda: linux.yield_processor(0), ("win32",)),
    "Landlock": (linux.landlock_abi, ("win32", "darwin", "freebsd14")),
    "the kernel's settings": (lambda: linux.kernel_setting("user/max_user_namespaces"), ("win32", "darwin")),
    "the mount table": (locks.mount_table, ("win32", "darwin", "freebsd14")),
}


@pytest.mark.parametrize(
    ("call", "platform"), [(call, platform) for call, platforms in SPECIAL.values() for platform in platforms]
)
def test_each_platform_specific_call_raises_a_clear_error_elsewhere(
    call: Callable[[], object], platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises((linux.NotOnThisSystem, locks.UnsupportedSystem), match="not on this system"):
        call()


NAMES = {
    "os": {
        "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_NOCTTY", "O_PATH", "O_CLOEXEC", "O_SYNC", "O_BINARY",
        "geteuid", "getuid", "getegid", "getgid", "getgroups", "setuid", "setgid", "setsid", "getpgid", "killpg",
        "fchmod", "fchown", "chown", "lchown", "mkfifo", "mknod", "pread", "pwrite", "fork", "forkpty", "openpty",
        "pidfd_open", "memfd_create", "sched_getaffinity", "statvfs", "uname", "wait4", "waitid", "nice", "sysconf",
        "unshare", "setns", "ttyname", "getloadavg", "posix_spawn", "pipe2", "sendfile", "setxattr", "getxattr",
        "WIFSIGNALED", "WTERMSIG", "EX_USAGE",
    },
    "signal": {
        "SIGALRM", "SIGHUP", "SIGKILL", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGCONT",
        "SIGWINCH", "SIGTSTP", "SIGBREAK", "SIGURG",
        "alarm", "setitimer", "pause", "sigwait", "pthread_kill", "pthread_sigmask",
    },
    "socket": {"AF_UNIX", "SO_PEERCRED", "SCM_RIGHTS"},
}  # fmt: skip
"""Names that some system lacks; `getattr` with a default is the way to ask for one."""


BEHIND: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        (
            (LINUX, name)
            for name in (
                "ctypes",
                "/proc/",
                "/sys/",
                "resource",
                "signal.SIGALRM",
                "signal.alarm",
                "os.nice",
                "os.sysconf",
            )
        ),
        "the one place for it: each function there says when it is not on this system",
    ),
    (
        "audit/ava_audit/store/locks.py",
        "/proc/",
    ): "the one place for it: mount_table says when it is not on this system",
    ("audit/ava_audit/store/locks.py", "fcntl"): "the one place for it; portalocker does it on Windows",
    ("roles/ava_roles/sandbox/temporary.py", "fcntl"): "not on Windows, where there are no sandboxes",
    (
        "audit/ava_audit/postgres/backend.py",
        "wait_readable",
    ): "anyio uses a thread for it where the event loop cannot",
    **dict.fromkeys(
        (("server/ava_server/web/site.py", name) for name in ("/proc/", "os.geteuid")),
        "is_own answers yes where the system has no such table",
    ),
    **dict.fromkeys(
        ((PATHS, name) for name in ("os.O_DIRECTORY", "os.fchmod", "dir_fd", "src_dir_fd", "dst_dir_fd")),
        "used only where has_folder_descriptors() says so; PlainPaths and shutil do it elsewhere",
    ),
    **dict.fromkeys(
        (
            (f"{CONFINE}{file}", name)
            for file, name in (
                ("supervised.py", "pass_fds"),
                ("supervised.py", "start_new_session"),
                ("supervised.py", "socket.AF_UNIX"),
                ("supervised.py", "wait_readable"),
                ("selection.py", "/proc/"),
            )
        ),
        "imported, or called, only where selection.py has found Linux",
    ),
    (f"{CONFINE}git.py", "pass_fds"): "empty where no workshop is held, and none is where no command is confined",
    (f"{CONFINE}git.py", "os.memfd_create"): "asked for before; a file on the disk does it elsewhere",
    **dict.fromkeys(
        (
            (f"roles/ava_roles/worktree/{file}", name)
            for file, name in (
                ("publish.py", "os.geteuid"),
                ("publish.py", "os.chown"),
                ("state.py", "fcntl"),
                ("state.py", "dir_fd"),
                ("state.py", "src_dir_fd"),
            )
        ),
        "a worktree is made only where commands are confined",
    ),
    ("roles/ava_roles/tools/files.py", "pass_fds"): "empty where there is no folder descriptor to hand on",
    **dict.fromkeys(
        ((STDIO, name) for name in ("connect_read_pipe", "connect_write_pipe")),
        "on Windows threads read and write",
    ),
    ("server/ava_server/__main__.py", "signal.SIGHUP"): "not on Windows",
    ("server/ava_server/core/shutdown.py", "signal.SIGHUP"): "on Windows there is Ctrl-C alone",
    **dict.fromkeys(
        (("server/ava_server/core/own_program.py", name) for name in ("os.killpg", "signal.SIGKILL")),
        "on Windows the program alone is ended",
    ),
    **dict.fromkeys(
        (("server/ava_server/core/own_program.py", name) for name in ("grp", "pwd", "os.geteuid")),
        "asked only after Windows has had its answer",
    ),
    **dict.fromkeys(
        (
            (file, "start_new_session")
            for file in (
                "roles/ava_roles/sandbox/git.py",
                "roles/ava_roles/tools/files.py",
                "server/ava_server/core/own_program.py",
            )
        ),
        "Windows passes it over",
    ),
    ("roles/ava_roles/texts/parser_process.py", "process_group"): "Windows passes it over",
    **dict.fromkeys(
        (("roles/ava_roles/texts/parser_process.py", name) for name in ("os.fork", "os.killpg", "signal.SIGKILL")),
        "only where _FORKS has found os.fork; elsewhere the child itself parses, and ends",
    ),
    ("roles/ava_roles/texts/formats/pdf.py", "ctypes"): "pypdfium2 is called through it on each system",
    (
        "server/ava_server/core/background.py",
        "start_new_session",
    ): "Windows passes it over; creationflags do it there",
    ("server/ava_server/core/background.py", "pass_fds"): "empty on Windows, where no pipe is made",
    ("server/ava_server/core/threads.py", "open_signal_receiver"): "on Windows a handler of the interpreter's does it",
    **dict.fromkeys(
        (("server/ava_server/core/threads.py", name) for name in ("add_signal_handler", "signal.SIGURG")),
        "on Windows the event loop wakes at signals by itself",
    ),
    **dict.fromkeys(
        (("server/ava_server/agents/gateway.py", name) for name in ("os.O_DIRECTORY", "/proc/")),
        "another agent is started only where commands are confined, which is Linux",
    ),
    (f"{CONFINE}workspace.py", "pwd"): "Windows has no such database, and none of these folders",
    ("server/ava_server/core/shortage.py", "resource"): "on Windows a process has no such limit",
    **dict.fromkeys(
        (("server/ava_server/dashboard/driver.py", name) for name in ("termios", "signal.SIGSTOP")),
        "imported only where the system is not Windows",
    ),
    ("server/ava_server/cli/secret_input.py", "termios"): "on Windows getpass reads the console",
    ("server/ava_server/cli/terminal.py", "termios"): "on Windows what was typed ahead is an answer",
    ("server/ava_server/cli/terminal.py", "wait_readable"): "on Windows a thread reads the console",
}
"""Where each use stands, and what keeps it from other systems."""


def uses_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The uses in a source of what some system lacks, with their lines."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings say what they like
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, one.name) for one in node.names if one.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)):
                if module.partition(".")[0] in MODULES:
                    yield node.lineno, module
                yield from (
                    (node.lineno, f"{module}.{one.name}") for one in node.names if one.name in NAMES.get(module, ())
                )
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NAMES.get(module, ()):
                yield node.lineno, f"{module}.{name}"
            case ast.Attribute(attr=name) if name in METHODS:
                yield node.lineno, name
            case ast.keyword(arg=str(name)) if name in KEYWORDS:
                yield node.value.lineno, name
            case ast.Constant(value=str(text)) if id(node) not in texts:
                yield from ((node.lineno, place) for place in PLACES if text.startswith(place))
            case _:
                pass


def uses() -> Iterator[tuple[str, int, str]]:
    for top in ("audit", "roles", "server"):
        for path in sorted((REPOSITORY / top).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            if not name.startswith(PROGRAMS):
                yield from ((name, line, use) for line, use in uses_in(ast.parse(path.read_text("utf-8"))))
