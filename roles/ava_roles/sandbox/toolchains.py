"""Finds the toolchains that a project's commands need and that lie outside the system's own folders.

An interpreter in use leads to the folder that it was installed into. That folder is shown alone and read-only: never a
home folder, nor a folder of settings in one, where keys lie beside programs.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ava_roles.sandbox.elf import python_library
from ava_roles.sandbox.path_access import read_small
from ava_roles.sandbox.paths import shown
from ava_roles.sandbox.sandbox import path_outside
from ava_roles.sandbox.workspace import HOMES, KERNEL, ROOT_HOMES

_SYSTEM = tuple(Path(folder) for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The folders of the system's own programs."""
_CLOSED = tuple(Path(folder) for folder in ("/etc", "/run", "/var/run"))
_LINKS_MAX = 10
_NAME_ALONE = "name the toolchain in it alone"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,80}")


@dataclass
class Toolchains:
    """What commands are shown beside the system's own programs.

    `shown` are read-only folders and files, by the path under which commands see them; `path` are folders of programs,
    in the order of lookup. `refused`: why folders that were asked for are not shown.
    """

    shown: dict[Path, Path] = field(default_factory=dict[Path, Path])
    path: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    refused: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class HostFolders:
    """What confined programs may see here: `read_only` toolchains of the settings, never `closed` folders."""

    home: Path
    read_only: Sequence[Path] = ()
    closed: Sequence[Path] = ()


def find_toolchains(
    workspace: Path | None, dependencies: Sequence[str], host: HostFolders, env: Mapping[str, str] | None = None
) -> Toolchains:
    """Return the toolchains of a project. Blocks: reads the file system, and starts nothing."""
    env = os.environ if env is None else env
    workspace = workspace.resolve() if workspace is not None else None
    programs = path_outside(env.get("PATH", os.defpath), workspace)
    search = _Search(host, programs, workspace)
    if workspace is not None:
        try:
            search.add_project(workspace, dependencies)
        except OSError as error:  # for example another user's interpreter
            why = f"{shown(str(error.filename))}: {error.strerror}"
            search.toolchains.refused.append(f"some toolchains of the project cannot be read ({why})")
    search.add_configured()
    return search.toolchains


def find_installation(
    program: Path,
    files: Iterable[Path],
    host: HostFolders,
    *,
    programs: str = os.defpath,
    workspace: Path | None = None,
) -> Toolchains:
    """Return what a program (absolute path) needs beside the system's own, and `files`. Blocks; starts nothing.

    A script's interpreter is looked up on `programs`. Nothing that contains `workspace` or lies in it is shown.
    """
    search = _Search(host, programs, workspace.resolve() if workspace is not None else None)
    search.add_installation(program)
    for interpreter in script_interpreter(program, programs)[:1]:
        search.add_installation(Path(interpreter))
    for file in files:
        search.add_file(file)
    search.add_configured()
    return search.toolchains


def script_interpreter(script: Path, programs: str) -> list[str]:
    """Return the words that start a script, looking through `env`; none for a program of another kind. Blocks."""
    try:
        start = read_small(script, 256).partition(b"\n")[0]
    except OSError:
        return []
    if not start.startswith(b"#!"):
        return []
    words = os.fsdecode(start).removeprefix("#!").split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S"]
    if not words:
        return []
    interpreter = shutil.which(words[0], path=programs)
    if interpreter is None:
        return []
    return [interpreter, *words[1:]]


class _Search:
    def __init__(self, host: HostFolders, programs: str, workspace: Path | None = None) -> None:
        self.home = host.home.resolve()
        self.read_only = host.read_only
        self.closed = [folder.resolve() for folder in host.closed]
        self.programs = programs
        self.workspace = workspace
        self.toolchains = Toolchains()

    def add_project(self, workspace: Path, dependencies: Sequence[str]) -> None:
        environments: list[Path] = []
        modules: list[Path] = []
        for name in dependencies:
            folder = workspace / name
            if (folder / "pyvenv.cfg").is_file():
                environments.append(folder)
            if name.rpartition("/")[2] == "node_modules":
                modules.append(folder)
        self.toolchains.path += [str(folder / "bin") for folder in environments]
        self.toolchains.path += [str(folder / ".bin") for folder in modules]
        for environment in environments:
            self._add_environment(environment)
        if environments:
            self.toolchains.variables["VIRTUAL_ENV"] = str(environments[0])
        else:
            self._add_python(workspace)
        if modules or (workspace / "package.json").is_file():
            self._add_node()
        if (workspace / "Cargo.toml").is_file():
            self._add_rust(workspace)
        if (workspace / "go.mod").is_file():
            self._add_go()

    def add_installation(self, program: Path) -> None:
        """Show a program's installation under each name, as npm's packages need the others; else the program alone."""
        for step in (program, *_link_chain(program)):
            packages = [folder for folder in step.parents if folder.name == "node_modules"]
            if packages and self._show(packages[-1], packages[-1].resolve()):
                continue
            root = step.parent.parent
            if not self._show_installation(step, root):
                self.add_file(step)
            elif (root / "pyvenv.cfg").is_file():
                self._add_environment(root)
        self._add_library(Path(os.path.realpath(program)))

    def _show_installation(self, program: Path, root: Path) -> bool:
        """Show the folder of a program's installation; tell whether it is one, and may be shown."""
        if program.parent.name != "bin" or not self._holds_one(root):
            return False
        return self._show(root, root.resolve())

    def add_file(self, file: Path) -> None:
        real = file.resolve()
        refusal = self._refusal(file) or self._refusal(real)
        if real.is_file() and refusal is None and not _in_system(file):
            self.toolchains.shown[file] = real

    def add_configured(self) -> None:
        for folder in self.read_only:
            refusal = self._refusal(folder.resolve()) if folder.is_dir() else "is not a folder"
            if refusal is not None:
                self.toolchains.refused.append(f"{folder} (sandbox.read_only) {refusal}")
                continue
            self.toolchains.shown[folder] = folder.resolve()
            programs = folder / "bin"
            if programs.is_dir():
                self.toolchains.path.append(str(programs))
            else:
                self.toolchains.path.append(str(folder))

    # -- one kind of toolchain each -----------------------------------------------------------------------------------

    def _add_environment(self, environment: Path) -> None:
        """Show the interpreter that a virtual environment was made with, under each of its names."""
        program = environment / "bin" / "python"
        real = Path(os.path.realpath(program))  # unlike resolve(), it does not fail on a loop of links
        if not _is_python(real):
            return
        for hop in _link_chain(program):
            if not hop.is_relative_to(environment):
                self._show(hop.parent.parent, real.parent.parent)
        home = _interpreter_folder(environment)
        if home is not None and Path(os.path.realpath(home)) == real.parent:
            self._show(home.parent, real.parent.parent)
        self._add_library(real)

    def _add_python(self, workspace: Path) -> None:
        """Show the first Python on the user's PATH; pyenv's is a script that selects a version."""
        program = shutil.which("python3", path=self.programs)
        if program is None:
            return
        path = Path(program)
        pyenv = path.parent.parent
        if path.parent.name == "shims" and (pyenv / "versions").is_dir():
            version = _first_word(workspace / ".python-version") or _first_word(pyenv / "version")
            path = pyenv / "versions" / version / "bin" / "python3"
        real = path.resolve()
        if _is_python(real):
            self._add_program(real)
            self._add_library(real)

    def _add_node(self) -> None:
        """Show the user's Node: the one on the PATH, or else nvm's newest."""

        def version(node: Path) -> tuple[int, ...]:
            return tuple(map(int, re.findall(r"\d+", node.parent.parent.name)))

        candidates = sorted((self.home / ".nvm/versions/node").glob("v*/bin/node"), key=version, reverse=True)
        program = shutil.which("node", path=self.programs)
        if program is not None:
            candidates.insert(0, Path(program).resolve())
        for real in candidates:
            if _in_system(real):
                return
            if _is_node_installation(real.parent.parent):
                self._add_program(real)
                return

    def _add_rust(self, workspace: Path) -> None:
        """Show a toolchain of rustup and cargo's packages, but not the rest of cargo's folder, where keys lie."""
        installed = self.home / ".rustup" / "toolchains"
        settings = self.home / ".rustup" / "settings.toml"
        default = _find_version(settings, 100_000, r'default_toolchain\s*=\s*"([^"]+)"') or "none"
        for name in (_rust_channel(workspace), default, ""):
            for folder in sorted(installed.glob(f"{name}*")):
                cargo = folder / "bin" / "cargo"
                if cargo.is_file():
                    self._add_program(cargo)
                    self._add_packages_of_cargo(self.home / ".cargo")
                    return

    def _add_packages_of_cargo(self, folder: Path) -> None:
        for name in ("registry", "git"):
            self._show(folder / name, folder / name)
        self.toolchains.variables |= {"CARGO_HOME": str(folder), "CARGO_NET_OFFLINE": "true"}

    def _add_go(self) -> None:
        program = shutil.which("go", path=self.programs) or "/usr/local/go/bin/go"
        real = Path(program).resolve()
        if real.is_file() and (real.parent.parent / "pkg").is_dir():
            self._add_program(real)
        modules = self.home / "go" / "pkg" / "mod"
        self._show(modules, modules)
        self.toolchains.variables |= {"GOMODCACHE": str(modules), "GOPROXY": "off", "GOTOOLCHAIN": "local"}

    # -- showing ------------------------------------------------------------------------------------------------------

    def _add_program(self, real: Path) -> None:
        if not _in_system(real) and not self._show(real.parent.parent, real.parent.parent):
            return
        if str(real.parent) not in SYSTEM_PATH:  # those come last on the PATH anyway
            self.toolchains.path.append(str(real.parent))

    def _show(self, name: Path, prefix: Path) -> bool:
        if _in_system(prefix):
            return True
        if _in_system(name):  # it would hide the system's own programs
            return False
        if not prefix.is_dir():
            return False
        refusal = self._refusal_of_found(prefix) or self._refusal_of_found(name)
        if refusal is not None:
            return False
        self.toolchains.shown[name] = prefix
        return True

    def _add_library(self, real: Path) -> None:
        """Show an interpreter's library where the loader looks, which is maybe not under the program's names."""
        if not _is_python(real):
            return
        library = python_library(real)
        if library is None or any(map(library.is_relative_to, self.toolchains.shown)):
            return
        if self._refusal_of_found(library) is None:
            self.add_file(library)

    def _holds_one(self, root: Path) -> bool:
        """Tell whether a folder holds only one installation: nothing beside it may be seen."""
        above = self.home if root.is_relative_to(self.home) else Path(root.root)
        return len(root.relative_to(above).parts) > 1 or (root / "pyvenv.cfg").is_file()

    def _refusal(self, path: Path) -> str | None:
        """Return why no command may see a path, even one that a setting names; None if it may."""
        if _is_or_contains_home(path, self.home):
            return f"is or contains a home folder; {_NAME_ALONE}"
        if str(path.parent) in HOMES or str(path) in ROOT_HOMES:
            return f"is a home folder; {_NAME_ALONE}"
        if any(overlap(path, folder) for folder in self.closed):
            return "is, contains or lies in Ava's own folder"
        if path in _CLOSED or any(map(path.is_relative_to, KERNEL)):
            return "belongs to the system"
        return None

    def _refusal_of_found(self, path: Path) -> str | None:
        """Return why no command may see a path to which links or programs lead; None if it may."""
        refusal = self._refusal(path)
        if refusal is not None:
            return refusal
        if self.workspace is not None and overlap(path, self.workspace):
            return "contains the workspace, or lies in it"
        if path.parent == self.home and path.name.startswith("."):
            return f"is a folder of settings; {_NAME_ALONE}"
        return None


def _in_system(path: Path) -> bool:
    return any(map(path.is_relative_to, _SYSTEM))


def _is_or_contains_home(path: Path, home: Path) -> bool:
    if path == Path(path.root) or home.is_relative_to(path):
        return True
    return str(path) in HOMES


def _is_node_installation(prefix: Path) -> bool:
    return (prefix / "lib/node_modules").is_dir() or (prefix / "include/node").is_dir()


def overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _is_python(real: Path) -> bool:
    """Tell whether a path is a Python interpreter in its installation, not just something that a link names."""
    if not _is_file(real) or real.parent.name != "bin":
        return False
    if not real.name.startswith(("python", "pypy")):
        return False
    return any((real.parent.parent / "lib").glob("p*y*3*"))


def _is_file(path: Path) -> bool:
    """Tell whether a path is a file. Raises PermissionError, as `Path.is_file` no longer does from Python 3.14 on."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:
        raise
    except OSError:
        return False


def _link_chain(program: Path) -> Iterator[Path]:
    for _ in range(_LINKS_MAX):
        try:
            target = program.readlink()
        except OSError:
            return
        program = Path(os.path.normpath(program.parent / target))
        yield program


def _interpreter_folder(environment: Path) -> Path | None:
    with suppress(OSError, UnicodeDecodeError):
        for line in read_small(environment / "pyvenv.cfg", 10_000).decode().splitlines():
            key, _, value = line.partition("=")
            if key.strip() != "home":
                continue
            folder = value.strip()
            if folder.startswith("/") and "\0" not in folder:
                return Path(folder)
    return None


def _first_word(file: Path) -> str:
    """Return the first word of a small file if it can be a version's name, else an empty text."""
    return _find_version(file, 200, r"\A\s*(\S+)") or ""


def _rust_channel(workspace: Path) -> str:
    """Return the Rust toolchain that a project asks for, or `none`."""
    for name in ("rust-toolchain.toml", "rust-toolchain"):
        version = _find_version(workspace / name, 10_000, r'channel\s*=\s*"([^"]+)"', r"\A\s*(\S+)\s*\Z")
        if version is not None:
            return version or "none"
    return "none"


def _find_version(file: Path, most: int, *patterns: str) -> str | None:
    """Return what the first matching pattern finds in a file; empty if it cannot be a version; None if none matches."""
    with suppress(OSError, UnicodeDecodeError):
        text = read_small(file, most).decode()
        for pattern in patterns:
            match = re.search(pattern, text)
            if match:
                return match[1] if _VERSION.fullmatch(match[1]) else ""
    return None
