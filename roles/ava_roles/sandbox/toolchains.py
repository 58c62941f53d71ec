"""The toolchains that a project's commands need and that lie outside of the system's own folders.

Found by following the interpreters that are in use to the folder that each was installed into. Such a folder is shown
alone, to be read only: never a home folder, nor a folder of settings in one, where keys lie beside programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ava_roles.sandbox.paths import shown
from ava_roles.sandbox.programs import (
    channel_of,
    default_toolchain,
    first_word,
    path_apart_from,
    read_small,
    version_of,
)
from ava_roles.sandbox.python_library import python_library

_SYSTEM = tuple(Path(folder) for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where the system's own programs are."""
_HOMES = tuple(Path(folder) for folder in ("/home", "/var/home", "/export/home", "/Users"))
_ROOT_HOMES = (Path("/root"), Path("/var/root"))
_KERNEL = tuple(Path(folder) for folder in ("/proc", "/sys", "/dev"))
_CLOSED = tuple(Path(folder) for folder in ("/etc", "/run", "/var/run"))
_HOPS = 10


@dataclass
class Toolchains:
    """What commands get beside the system's own programs.

    Attributes:
        shown: Folders to be read only, each with the path under which commands see it.
        path: Folders of programs, the first found first.
        variables: What programs have to be told.
        refused: Folders that were asked for and are not shown, with why.
    """

    shown: dict[Path, Path] = field(default_factory=dict[Path, Path])
    path: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    refused: list[str] = field(default_factory=list[str])


def find_toolchains(
    workspace: Path | None,
    dependencies: Sequence[str],
    *,
    read_only: Sequence[Path],
    home: Path,
    closed: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
) -> Toolchains:
    """Return the toolchains of a project. Blocking: looks at the file system, and starts nothing.

    Args:
        workspace: The project; None is none.
        dependencies: Its folders of installed packages, relative to it.
        read_only: Folders that the settings name.
        home: The user's home folder.
        closed: Folders that are shown in no case.
        env: The server's environment, for its PATH.
    """
    env = os.environ if env is None else env
    workspace = workspace.resolve() if workspace is not None else None
    programs = path_apart_from(env.get("PATH", os.defpath), workspace)
    finding = _Finding(home.resolve(), tuple(folder.resolve() for folder in closed), programs, workspace)
    if workspace is not None:
        try:
            finding.project(workspace, dependencies)
        except OSError as error:  # what it leads to is closed to us, as another user's interpreter is
            what = f"{shown(str(error.filename))}: {error.strerror}"
            finding.found.refused.append(f"not all toolchains that the project leads to are there ({what})")
    finding.configured(read_only)
    return finding.found


def find_installation(
    program: Path, files: Iterable[Path], *, read_only: Sequence[Path], home: Path, closed: Sequence[Path] = ()
) -> Toolchains:
    """Return what one program needs beside the system's own. Blocking: looks at the file system, and starts nothing.

    Args:
        program: Its whole path.
        files: Files that somebody has named for it.
        read_only: Folders that the settings name.
        home: The user's home folder.
        closed: Folders that are shown in no case.
    """
    finding = _Finding(home.resolve(), tuple(folder.resolve() for folder in closed), os.defpath)
    finding.installation(program)
    for file in files:
        finding.file(file)
    finding.configured(read_only)
    return finding.found


@dataclass
class _Finding:
    """One search."""

    home: Path
    closed: tuple[Path, ...]
    programs: str
    workspace: Path | None = None
    found: Toolchains = field(default_factory=Toolchains)

    def project(self, workspace: Path, dependencies: Sequence[str]) -> None:
        """Find what a project's own files ask for."""
        environments = [workspace / name for name in dependencies if (workspace / name / "pyvenv.cfg").is_file()]
        modules = [name for name in dependencies if name.rpartition("/")[2] == "node_modules"]
        self.found.path += [str(environment / "bin") for environment in environments]
        self.found.path += [str(workspace / name / ".bin") for name in modules]
        for environment in environments:
            self._environment(environment)
        if environments:
            self.found.variables["VIRTUAL_ENV"] = str(environments[0])
        else:
            self._python(workspace)
        if modules or (workspace / "package.json").is_file():
            self._node()
        if (workspace / "Cargo.toml").is_file():
            self._rust(workspace)
        if (workspace / "go.mod").is_file():
            self._go()

    def installation(self, program: Path) -> None:
        """Show what a program was installed into, under every name that it is called by, or else the program alone."""
        for step in (program, *_hops(program)):
            root = step.parent.parent
            if step.parent.name != "bin" or not self._holds_one(root) or not self._show(root, root.resolve()):
                self.file(step)
            elif (root / "pyvenv.cfg").is_file():
                self._environment(root)
        self._library(Path(os.path.realpath(program)))

    def file(self, file: Path) -> None:
        """Show one file, unless it lies where nothing is shown."""
        real = file.resolve()
        refused = self._refusal(file, asked=True) or self._refusal(real, asked=True)
        if real.is_file() and refused is None and not _in_system(file):
            self.found.shown[file] = real

    def configured(self, folders: Iterable[Path]) -> None:
        """Show what the settings name."""
        for folder in folders:
            if not folder.is_dir():
                self.found.refused.append(f"{folder} (sandbox.read_only) is no folder")
            elif (why := self._refusal(folder.resolve(), asked=True)) is not None:
                self.found.refused.append(f"{folder} (sandbox.read_only) {why}")
            else:
                self.found.shown[folder] = folder.resolve()
                self.found.path.append(str(folder / "bin" if (folder / "bin").is_dir() else folder))

    # -- one kind of toolchain each -----------------------------------------------------------------------------------

    def _environment(self, environment: Path) -> None:
        """Show the interpreter that a virtual environment was made with, under every name that it is called by."""
        program = environment / "bin" / "python"
        real = Path(os.path.realpath(program))  # which says nothing of links that lead around in a circle
        if not _is_python(real):
            return
        for hop in _hops(program):
            if not hop.is_relative_to(environment):
                self._show(hop.parent.parent, real.parent.parent)
        home = _home_of(environment)
        if home is not None and Path(os.path.realpath(home)) == real.parent:
            self._show(home.parent, real.parent.parent)
        self._library(real)

    def _python(self, workspace: Path) -> None:
        """Show the Python that the user has first on the path; pyenv's is a script that chooses one."""
        program = shutil.which("python3", path=self.programs)
        if program is None:
            return
        path = Path(program)
        if path.parent.name == "shims" and (path.parent.parent / "versions").is_dir():
            version = first_word(workspace / ".python-version") or first_word(path.parent.parent / "version")
            path = path.parent.parent / "versions" / version / "bin" / "python3"
        real = path.resolve()
        if _is_python(real):
            self._program(real)
            self._library(real)

    def _node(self) -> None:
        """Show the Node that the user has: on the path, or the newest of nvm's."""
        program = shutil.which("node", path=self.programs)
        candidates = [Path(program).resolve()] if program is not None else []
        candidates += sorted((self.home / ".nvm/versions/node").glob("v*/bin/node"), key=version_of, reverse=True)
        for real in candidates:
            prefix = real.parent.parent
            if _in_system(real):
                return
            if (prefix / "lib/node_modules").is_dir() or (prefix / "include/node").is_dir():
                self._program(real)
                return

    def _rust(self, workspace: Path) -> None:
        """Show a toolchain of rustup's, and the packages that cargo has; nothing else of its folder, where keys lie."""
        toolchains = self.home / ".rustup" / "toolchains"
        names = [channel_of(workspace), default_toolchain(self.home / ".rustup" / "settings.toml"), ""]
        for name in names:
            for folder in sorted(toolchains.glob(f"{name}*" if name else "*")):
                if (folder / "bin" / "cargo").is_file():
                    self._program(folder / "bin" / "cargo")
                    for cache in ("registry", "git"):
                        self._show(self.home / ".cargo" / cache, self.home / ".cargo" / cache)
                    self.found.variables |= {"CARGO_HOME": str(self.home / ".cargo"), "CARGO_NET_OFFLINE": "true"}
                    return

    def _go(self) -> None:
        """Show Go, and the modules that it has."""
        program = shutil.which("go", path=self.programs) or "/usr/local/go/bin/go"
        real = Path(program).resolve()
        if real.is_file() and (real.parent.parent / "pkg").is_dir():
            self._program(real)
        modules = self.home / "go" / "pkg" / "mod"
        self._show(modules, modules)
        self.found.variables |= {"GOMODCACHE": str(modules), "GOPROXY": "off", "GOTOOLCHAIN": "local"}

    # -- showing ------------------------------------------------------------------------------------------------------

    def _program(self, real: Path) -> None:
        """Show what a program was installed into, and put its folder on the path."""
        shown = _in_system(real) or self._show(real.parent.parent, real.parent.parent)
        if shown and str(real.parent) not in SYSTEM_PATH:  # there it is found anyway, behind what others bring
            self.found.path.append(str(real.parent))

    def _show(self, name: Path, prefix: Path) -> bool:
        """Show a folder under a name; tells whether it may be."""
        if _in_system(prefix):
            return True
        if _in_system(name):  # it would cover the system's own programs; the link that leads on from there is shown
            return False
        if not prefix.is_dir() or self._refusal(prefix) is not None or self._refusal(name) is not None:
            return False
        self.found.shown[name] = prefix
        return True

    def _library(self, real: Path) -> None:
        """Show the library that an interpreter is linked with, under the name by which it looks for it.

        That name may be another one than those by which the interpreter is called: an installation has several.
        """
        library = python_library(real) if _is_python(real) else None
        if library is None or any(library.is_relative_to(name) for name in self.found.shown):
            return
        if self._refusal(library) is None:
            self.file(library)

    def _holds_one(self, root: Path) -> bool:
        """Tell whether a folder holds one installation alone: what is beside it is nobody's to see."""
        above = self.home if root.is_relative_to(self.home) else Path(root.root)
        return len(root.relative_to(above).parts) > 1 or (root / "pyvenv.cfg").is_file()

    def _refusal(self, folder: Path, *, asked: bool = False) -> str | None:
        """Return why a folder is not shown, or None."""
        if folder == Path(folder.root) or self.home.is_relative_to(folder) or folder in _HOMES:
            return "is or contains a home folder; name the toolchain in it alone"
        if folder.parent in _HOMES or folder in _ROOT_HOMES:
            return "is a home folder; name the toolchain in it alone"
        if any(overlap(folder, each) for each in self.closed):
            return "is, contains or lies in Ava's own folder"
        if folder in _CLOSED or any(folder.is_relative_to(kernel) for kernel in _KERNEL):
            return "belongs to the system"
        if not asked and self.workspace is not None and overlap(folder, self.workspace):
            return "contains the workspace, or lies in it"
        if not asked and folder.parent == self.home and folder.name.startswith("."):
            return "is a folder of settings; name the toolchain in it alone"
        return None


def _in_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _SYSTEM)


def overlap(one: Path, other: Path) -> bool:
    """Tell whether a folder is another one, or holds it, or lies in it."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def _is_python(real: Path) -> bool:
    """Tell whether a path is an interpreter in the folder that it was installed into, and not whatever a link names."""
    fits = real.is_file() and real.parent.name == "bin" and real.name.startswith(("python", "pypy"))
    return fits and any((real.parent.parent / "lib").glob("p*y*3*"))


def _hops(program: Path) -> Iterator[Path]:
    """Yield the paths by which a chain of links gets to a program."""
    for _ in range(_HOPS):
        try:
            says = program.readlink()
        except OSError:
            return
        program = Path(os.path.normpath(program.parent / says))
        yield program


def _home_of(environment: Path) -> Path | None:
    """Return the folder of the interpreter that an environment was made with, as its own file says."""
    with suppress(OSError, UnicodeDecodeError):
        for line in read_small(environment / "pyvenv.cfg", 10_000).decode().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home" and value.strip().startswith("/") and "\0" not in value:
                return Path(value.strip())
    return None
