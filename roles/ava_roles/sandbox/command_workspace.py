"""Where the commands of one run work: a copy of its workspace, made for the first command and removed with the run.

Here too: the command that starts somebody else's coding agent there, with what it sees and what it may use.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Protocol

import anyio
from anyio.from_thread import check_cancelled

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.launcher.spec import MIB, ResourceLimits
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.sandbox import RUN_ID, Bind, Command, ReachableServer, child_environment, path_outside
from ava_roles.sandbox.toolchains import (
    SYSTEM_PATH,
    HostFolders,
    Toolchains,
    find_installation,
    find_toolchains,
    script_interpreter,
)
from ava_roles.sandbox.workspace import repository_of
from ava_roles.sandbox.workspace_copy import FOLDER_BYTES, FOLDER_FILES, CopyReport, copy_workspace, find_special_file
from ava_roles.threads import run_sync

SCRATCH = PurePosixPath("/scratch")
CODE = PurePosixPath("/code")
MAKE_S = 60.0
MOST_COVERED = 1_000
"""Files and folders in packages that are covered by something empty, each by a mount."""
_TELLS_AN_AGENT = "files and folders that tell an agent how to work"


@dataclass(frozen=True)
class CommandSandbox:
    """What every command of a run is given: its working folder as it sees it, what else it sees, and a note on both.

    `environment` is all that they get. `code` is the folder for the text of programs: its path here, and as commands
    see it. `size`: bytes in the writable folders when they were made; None where no command can run.
    """

    folder: PurePosixPath
    binds: tuple[Bind, ...]
    environment: Mapping[str, str]
    code: tuple[Path, PurePosixPath]
    notes: str
    size: int | None = None


class CommandWorkspace(Protocol):
    """Where the commands of one run work."""

    @property
    def network(self) -> bool: ...

    async def ready(self) -> tuple[CommandSandbox, bool]:
        """Make the working folder at the first call; return what commands get, and whether it is new."""
        ...

    async def renew(self) -> str:
        """Free the disk after commands wrote too much; return a sentence for the model on the next command's folder."""
        ...

    async def after_command(self) -> str:
        """Undo what a command must not change; return a sentence on it for the model, or nothing."""
        ...


@dataclass(frozen=True)
class CommandLayout:
    """The paths under which the commands of one run see their folders.

    `home` and `code`, for the text of programs, are the paths here. `mounts`: commands can see a folder under another
    path than its own.
    """

    mounts: bool
    run_id: str
    home: Path
    code: Path

    def _target(self, source: Path, target: PurePosixPath) -> PurePosixPath:
        return target if self.mounts else PurePosixPath(source)

    @property
    def scratch(self) -> PurePosixPath:
        return self._target(self.home, SCRATCH)

    def show_project(self, work: Path, project: Path, dependencies: Sequence[str]) -> tuple[PurePosixPath, list[Bind]]:
        """Show a folder under the project's path, with its read-only dependencies; return that path and the binds."""
        folder = self._target(work, PurePosixPath(project))
        binds = [Bind(work, folder, writable=True)]
        for name in dependencies:
            source, place = project / name, work / name
            make_folders(place.parent, work, 0o755)
            if self.mounts:
                place.mkdir(mode=0o755, exist_ok=True)
            elif not place.is_symlink():
                if place.is_dir():  # a submodule's, empty
                    place.rmdir()
                place.symlink_to(source)
            binds.append(Bind(source, self._target(source, folder / name), direct=True))
        return folder, binds

    def command_sandbox(
        self, folder: PurePosixPath, binds: Sequence[Bind], tools: Toolchains, notes: str, *, measured: bool = True
    ) -> CommandSandbox:
        """Return what commands are given; with `measured`, also the size of their writable folders."""
        code = self._target(self.code, CODE)
        caches = self.scratch / ".cache"
        every = [Bind(source, PurePosixPath(name)) for name, source in tools.shown.items()]
        every += [Bind(self.home, self.scratch, writable=True), Bind(self.code, code), *binds]
        environment = child_environment(
            self.run_id,
            {
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                "NO_COLOR": "1",
                "HOME": str(self.scratch),
                "TMPDIR": str(self.scratch / "tmp"),
                "GIT_CONFIG_NOSYSTEM": "1",
                # Tools keep their caches out of the project; otherwise they could end up in a coder's branch.
                "PYTHONDONTWRITEBYTECODE": "1",
                "MYPY_CACHE_DIR": str(caches / "mypy"),
                "RUFF_CACHE_DIR": str(caches / "ruff"),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(caches / "hypothesis"),
                **tools.variables,
                "PATH": ":".join(dict.fromkeys((*tools.path, *SYSTEM_PATH))),
            },
        )
        size = None
        if measured:
            size = _measure([bind.source for bind in every if bind.writable])
        return CommandSandbox(folder, tuple(every), environment, (self.code, code), notes, size)


def bindable_dependencies(project: Path, report: CopyReport, check: Callable[[], None]) -> tuple[str, ...]:
    """Return the dependencies that commands may see; others have a pipe, socket or device, a way out of the sandbox."""
    names: list[str] = []
    for name in report.dependencies:
        special = find_special_file(project / name, check)
        if special is None:
            names.append(name)
        else:
            report.left_out[f"{shown(name)}, because of the pipe, socket or device {shown(special)}"] += 1
    return tuple(names)


def read_only_note(dependencies: Sequence[str]) -> list[str]:
    if not dependencies:
        return []
    names = [shown(name) for name in dependencies[:8]]
    if len(dependencies) > 8:
        names.append("…")
    return [f"read-only: {', '.join(names)}"]


def _measure(folders: Sequence[Path]) -> int | None:
    """Return the bytes in folders, measured as a command's supervisor measures them."""
    if sys.platform != "linux":
        return None
    from ava_roles.sandbox.launcher import kernel

    with suppress(kernel.TooDeep):
        return kernel.measure([str(folder) for folder in folders])
    return None


@dataclass
class CopiedWorkspace:
    """A `CommandWorkspace` that is a copy of the workspace; changes in it are thrown away.

    The copy is made at `here`, which does not exist yet; without `files`, commands work in an empty folder. `carry`:
    folders of the workspace that the role wants shown themselves. `git_folder`: the approved one outside of the
    workspace's checkout. `mounts`: commands can see a folder under another path than its own. `without`: names of files
    and folders, in lower case, that are left out wherever they stand; also paths of two names.
    """

    mounts: bool
    here: Path
    files: Root | None
    run_id: str
    host: HostFolders
    carry: Sequence[str] = ()
    network: bool = False
    git_folder: str = ""
    without: frozenset[str] = frozenset()
    _current: CommandSandbox | None = field(default=None, init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _closing: bool = field(default=False, init=False)
    _busy: Lock = field(default_factory=Lock, init=False)

    async def ready(self) -> tuple[CommandSandbox, bool]:
        async with self._turn:
            if self.files is not None and not await run_sync(self.files.is_in_place):
                raise ToolFailed(f"{self.files.path} was moved or replaced, so no command can run; continue without")
            if self._current is not None:
                return self._current, False
            self._current = await run_sync(self._make, abandon_on_cancel=False)
            return self._current, True

    async def renew(self) -> str:
        async with self._turn:
            self._current = None
            with suppress(OSError):  # making the next one removes the rest
                await run_sync(self._remove, abandon_on_cancel=False)
        return "the next command finds a fresh copy"

    async def after_command(self) -> str:
        """Everything in the copy may be changed."""
        return ""

    def close(self) -> None:
        """Remove the copy, also while it is being made. Blocks. Raises OSError if something in it cannot be removed."""
        self._closing = True
        self._remove()

    def _remove(self) -> None:
        with self._busy:
            remove_tree(self.here)

    def _make(self) -> CommandSandbox:
        with self._busy:
            until = time.monotonic() + MAKE_S

            def check() -> None:
                check_cancelled()
                if self._closing or time.monotonic() > until:
                    raise ToolFailed(
                        f"the workspace could not be made ready for commands within {MAKE_S:g} s; go on by reading"
                    )

            remove_tree(self.here)
            try:
                return self._lay_out(check)
            except BaseException as error:
                with suppress(OSError):
                    remove_tree(self.here)
                if isinstance(error, OSError):
                    raise ToolFailed(f"the workspace could not be made ready for commands: {error.strerror}") from error
                raise

    def _lay_out(self, check: Callable[[], None]) -> CommandSandbox:
        work, home, code = (self.here / name for name in ("copy", "home", "code"))
        for folder in (work, home / "tmp", code):
            make_folders(folder, self.here.parents[2], 0o755)  # the data root
        layout = CommandLayout(self.mounts, self.run_id, home, code)
        if self.files is None:
            tools = find_toolchains(None, (), self.host)
            notes = "[it works in an empty folder, which is gone with this run]"
            return layout.command_sandbox(layout.scratch, (), tools, notes)
        project = self.files.path.resolve()
        user_home = self.host.home
        repository = repository_of(project, user_home)
        report = copy_workspace(
            self.files,
            work,
            repository=repository,
            home=user_home,
            carry=self.carry,
            check=check,
            git_folder=self.git_folder,
        )
        dependencies = bindable_dependencies(project, report, check)
        tools = find_toolchains(project, dependencies, self.host)
        self._leave_out(work, report, check)
        if report.whole:
            covered = self._find_in_packages(project, dependencies, report, check)
            seen, binds = layout.show_project(work, project, dependencies)
            binds += [Bind(self._empty(project / path), seen / path) for path in covered]
        else:
            seen, binds = PurePosixPath(project), self._show_itself(project, report)
        notes = self._notes(project, report, dependencies, tools, layout.scratch)
        return layout.command_sandbox(seen, binds, tools, notes)

    def _leave_out(self, work: Path, report: CopyReport, check: Callable[[], None]) -> None:
        """Leave out files by their names: remove them from a copy; hide them in a folder that is shown itself."""
        if not self.without or self.files is None:
            return
        if report.whole:
            paths = _paths_with_names(work, self.without, check)
            for relative in paths:
                path = work / relative
                if path.is_dir() and not path.is_symlink():
                    remove_tree(path)
                else:
                    path.unlink()
        else:
            paths = _paths_with_names(self.files.path, self.without, check)
            report.hidden = (*report.hidden, *paths)
        if paths:
            report.left_out[_TELLS_AN_AGENT] += len(paths)

    def _find_in_packages(
        self, project: Path, dependencies: Sequence[str], report: CopyReport, check: Callable[[], None]
    ) -> list[str]:
        """Return what to cover in folders that are shown themselves, since it is left out by its name.

        A link cannot be covered; it must lead to something that is. Raises ToolFailed if it cannot be left out.
        """
        if not self.without:
            return []
        links: list[str] = []
        covered: list[str] = []
        for name in dependencies:
            for path in _paths_with_names(project / name, self.without, check):
                place = f"{name}/{path}"
                if (project / place).is_symlink():
                    links.append(place)
                else:
                    covered.append(place)
        if len(covered) > MOST_COVERED:
            raise ToolFailed(
                f"its packages have more than {MOST_COVERED:,} files that instruct an agent; use runner: in-process"
            )
        targets = {(project / path).resolve() for path in covered}
        for link in links:
            if (project / link).resolve() not in targets:
                raise _instructs_agent(link, "as a link")
        if covered and not self.mounts:
            raise _instructs_agent(covered[0], "which cannot be covered in this sandbox")
        count = len(links) + len(covered)
        if count:
            report.left_out[_TELLS_AN_AGENT] += count
        return covered

    def _empty(self, path: Path) -> Path:
        """Return something empty to show in a path's place: a folder for a folder, else a file."""
        folder, file = self.here / "empty" / "folder", self.here / "empty" / "file"
        make_folders(folder, self.here, 0o755)
        file.touch(mode=0o644)
        return folder if path.is_dir() else file

    def _show_itself(self, project: Path, report: CopyReport) -> list[Bind]:
        """Show a workspace that is too large to be copied, with something empty over what commands must not see."""
        if report.hidden and not self.mounts:
            raise ToolFailed(
                f"{project} is too large to be copied, and {shown(report.hidden[0])} in it must not be seen by"
                " commands; have the subagent started with a smaller folder as workspace, or go on by reading"
            )
        binds = [Bind(project, PurePosixPath(project), direct=True)]
        for path in _paths_to_cover(project, report.hidden):
            binds.append(Bind(self._empty(path), PurePosixPath(path)))
        return binds

    def _notes(
        self, project: Path, report: CopyReport, dependencies: Sequence[str], tools: Toolchains, scratch: PurePosixPath
    ) -> str:
        folder = shown(str(project))
        if report.whole:
            source = "the folder"
            if report.git:
                source = "the checkout, without what git ignores and without .git"
            notes = [
                f"it works in a fresh copy of {folder}: {report.files:,} files of {source}",
                "what it changes is thrown away",
            ]
        else:
            size = f"more than {FOLDER_FILES:,} files or {FOLDER_BYTES // 1_000_000} MB"
            notes = [
                f"it works in {folder} itself, which is too large to be copied ({size}): nothing can be written",
                f"write to {scratch} instead",
            ]
        notes += read_only_note(dependencies)
        notes += [f"left out: {count:,} {why}" for why, count in report.left_out.items()]
        if self.network:
            notes.append("commands reach the network")
        return f"[{'; '.join((*notes, *tools.refused))}]"


def _instructs_agent(path: str, why: str) -> ToolFailed:
    return ToolFailed(f"its packages have {shown(path)}, {why}, that instructs an agent; use runner: in-process")


def _paths_to_cover(project: Path, hidden: Sequence[str]) -> list[Path]:
    """Return what to cover so that none of this can be read: in place of a link, the file in the project it leads to.

    Nothing can be mounted over a link. Raises ToolFailed if a link leads to something else.
    """
    paths: dict[Path, None] = {}
    for name in hidden:
        path = project / name
        if path.is_symlink():
            path = Path(os.path.realpath(path))
            if not path.is_relative_to(project) or not path.is_file():
                raise ToolFailed(
                    f"{shown(str(project))} is too large to be copied, and {shown(name)} in it, which must not be seen,"
                    " is a link that does not lead to a file of this folder, so it cannot be covered; replace or remove"
                    " it, or have the subagent started with a smaller folder as workspace"
                )
        paths[path] = None
    return [path for path in paths if paths.keys().isdisjoint(path.parents)]


def _paths_with_names(folder: Path, names: frozenset[str], check: Callable[[], None]) -> list[str]:
    """Return the paths of all files, folders and links in a folder that have one of these names, in any case.

    A name may have the name of its folder before it, as in `.github/instructions`. A folder that is returned is not
    searched.
    """
    paths: list[str] = []
    for here, folders, files in os.walk(folder):
        check()
        relative = Path(here).relative_to(folder)
        folder_name = Path(here).name.casefold()
        others: set[str] = set()
        for name in (*folders, *files):
            own_name = name.casefold()
            if names.isdisjoint((own_name, f"{folder_name}/{own_name}")):
                others.add(name)
            else:
                paths.append((relative / name).as_posix())
        folders[:] = [name for name in folders if name in others]  # os.walk enters only these
    return paths


HOME = PurePosixPath("/agent")
LIFE_S = 24 * 3600.0
"""Longer than any run: an agent ends with its run."""
LIMITS = ResourceLimits(
    memory=4 * 1024 * MIB,
    address_space=0,  # engines of JavaScript reserve far more than they use
    processes=512,
    open_files=4_096,
    cpu_s=int(LIFE_S),
)


def find_agent(name: str, project: Path | None) -> Path:
    """Return an agent's program, absolute or on the PATH. Blocking. Raises ToolFailed: none outside `project`."""
    program = Path(shutil.which(name, path=path_outside(os.environ.get("PATH", os.defpath), project)) or "")
    if not program.is_absolute():
        raise ToolFailed(f"the agent's program {name} is not found: install it, or give its full path")
    if project is None:
        return program
    for place in (program, program.resolve()):
        if place.is_relative_to(project.resolve()):
            raise ToolFailed(f"the agent's program {program} lies in the project; install it elsewhere")
    return program


def agent_command(
    argv: Sequence[str],
    bench: CommandSandbox,
    home: Path,
    local: ReachableServer,
    host: HostFolders,
    *,
    variables: Mapping[str, str] | None = None,
    project: Path | None = None,
) -> Command:
    """Return the command that starts an agent (`argv[0]` is from `find_agent`) for `Sandbox.start`. Blocking.

    It sees what the run's own commands see, at the same places and with the same rights, its own installation, and its
    home: `home`, a folder here of this run alone, since the agent writes to it. Nothing else of the person's home is
    there. `variables` are in addition to those of the run's commands. Raises ToolFailed if its program cannot be shown.
    """
    words, needed = _installed(Path(argv[0]), host, project)
    folders = [*bench.environment.get("PATH", "").split(":"), *SYSTEM_PATH, *needed.path]
    folders += [str(Path(word).parent) for word in (words[0], words[-1])]
    environment = {
        **bench.environment,
        **(variables or {}),
        "HOME": str(HOME),
        "PATH": ":".join(dict.fromkeys(filter(None, folders))),
    }
    targets = {bind.target for bind in bench.binds}
    binds = list(bench.binds)
    for name, source in needed.shown.items():
        target = PurePosixPath(name)
        if target not in targets:
            binds.append(Bind(source, target))
    binds.append(Bind(home, HOME, writable=True))
    return Command(
        argv=(*words, *argv[1:]),
        folder=bench.folder,
        binds=tuple(binds),
        environment=child_environment(bench.environment.get(RUN_ID, ""), environment),
        timeout_s=LIFE_S,
        stdin=True,
        limits=LIMITS,
        local=local,
    )


def _installed(program: Path, host: HostFolders, project: Path | None) -> tuple[tuple[str, ...], Toolchains]:
    """Return the words that start a program, and what it needs. Raises ToolFailed if it cannot be shown."""
    path = path_outside(os.environ.get("PATH", os.defpath), project)
    needed = find_installation(program, (), host, programs=path, workspace=project)
    started = program if _is_whole(program, needed) else program.resolve()
    if not _is_whole(started, needed) and started not in needed.shown:
        raise ToolFailed(
            f"the agent's program {program} cannot be shown in the sandbox; name the folder of its installation in"
            " sandbox.read_only"
        )
    # The project's own folders come first on the path of commands, so the interpreter is not looked up there.
    return (*script_interpreter(started, path), str(started)), needed


def _is_whole(program: Path, needed: Toolchains) -> bool:
    """Tell whether a program is seen with the folder that it lies in; alone, a link's target is seen in its place."""
    if any(map(program.is_relative_to, ("/usr", "/bin", "/sbin", "/lib", "/lib64"))):
        return True
    return not needed.shown.keys().isdisjoint(program.parents)
