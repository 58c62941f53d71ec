"""Projects as people have them: a checkout, and toolchains below a home folder.

project = checkout(tmp_path / "workspace", {"src/main.py": "print(1)"})
before = tree(project)
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

_LEFT_OUT = shutil.ignore_patterns(
    "test", "__pycache__", "site-packages", "idlelib", "tkinter", "ensurepip", "config-*"
)


def git(folder: Path, *args: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *who, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files; one that begins with `#!` can be run."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def checkout(folder: Path, files: Mapping[str, str]) -> Path:
    """Make a checkout with one commit of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, files)
    if not (folder / ".git").exists():  # a second init spoils a repository with reftable
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def tree(folder: Path) -> dict[str, object]:
    """Return everything about a folder: names, kinds, contents and times; what links lead to is not part of it."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (status.st_mode, status.st_uid, status.st_ino, status.st_mtime_ns, content)
    return found


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def python_of_uv(home: Path) -> Path:
    """Install a Python below a home folder as uv does, and return it as uv calls it: through a link of its version."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    below = home / ".local" / "share" / "uv" / "python"
    real = below / f"cpython-{minor}.{sys.version_info.micro}-linux-x86_64-gnu"
    (real / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), real / "bin" / f"python{minor}")
    shutil.copytree(sysconfig.get_path("stdlib"), real / "lib" / f"python{minor}", ignore=_LEFT_OUT, symlinks=True)
    for library in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
        shutil.copy(library, real / "lib")
    (below / f"cpython-{minor}-linux-x86_64-gnu").symlink_to(real)
    return below / f"cpython-{minor}-linux-x86_64-gnu" / "bin" / f"python{minor}"


def linked_program(library: str, folders: str) -> bytes:
    """An ELF file that names a library which it needs, and folders where the loader looks for it."""
    strings = b"\0" + library.encode() + b"\0" + folders.encode() + b"\0"
    begin, base = 64 + 2 * 56, 0x400000
    entries = [(1, 1), (29, 2 + len(library)), (5, base + begin), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = begin + len(strings) + len(dynamic)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, size, size, 4096)
    at = begin + len(strings)
    section = struct.pack("<IIQQQQQQ", 2, 4, at, base + at, base + at, len(dynamic), len(dynamic), 8)
    return header + load + section + strings + dynamic


def environment_of(python: Path, project: Path, packages: Mapping[str, str]) -> Path:
    """Make a project's .venv with a Python, and put modules into it."""
    subprocess.run(
        [python, "-m", "venv", "--without-pip", "--symlinks", project / ".venv"], timeout=60, check=True, env={}
    )
    (site,) = (project / ".venv" / "lib").glob("python*/site-packages")
    write(site, packages)
    return project / ".venv"


def node_of_nvm(home: Path) -> Path:
    """Install this machine's Node below a home folder as nvm does."""
    real = shutil.which("node")
    assert real is not None
    prefix = home / ".nvm" / "versions" / "node" / "v20.0.0"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "include" / "node").mkdir(parents=True)
    shutil.copy(real, prefix / "bin" / "node")
    return prefix / "bin" / "node"
