"""Where the commands of one run work: a copy of its workspace, made at the first of them and gone with the run."""

from __future__ import annotations

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
from ava_roles.sandbox.copies import FOLDER_BYTES, FOLDER_FILES, CopyReport, copy_workspace, odd_in
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.programs import child_environment
from ava_roles.sandbox.removal import remove_tree
from ava_roles.sandbox.sandbox import Bind
from ava_roles.sandbox.toolchains import SYSTEM_PATH, Toolchains, find_toolchains
from ava_roles.sandbox.workspace import repository_of
from ava_roles.threads import run_sync

SCRATCH = PurePosixPath("/scratch")
CODE = PurePosixPath("/code")


@dataclass(frozen=True)
class CommandSandbox:
    """What commands are given.

    Attributes:
        folder: The working folder as they see it.
        binds: What they see.
        environment: Their whole environment.
        code: Where a program's text is put here, and how commands call that folder.
        notes: What there is to know about the working folder, for the model.
        size: Bytes on the disk that its writable folders took when it was made; None where no command can run.
    """

    folder: PurePosixPath
    binds: tuple[Bind, ...]
    environment: Mapping[str, str]
    code: tuple[Path, PurePosixPath]
    notes: str
    size: int | None = None


@dataclass(frozen=True)
class CommandLayout:
    """Lays out what the commands of one run are given.

    Attributes:
        mounts: Commands can be shown a folder under another path than its own.
        run_id: Whose commands they are.
        home: Their home folder here.
        code: Where programs' texts are put here.
    """

    mounts: bool
    run_id: str
    home: Path
    code: Path

    def seen_as(self, source: Path, target: PurePosixPath) -> PurePosixPath:
        """Return how commands call a folder that is to be called so."""
        return target if self.mounts else PurePosixPath(source)

    @property
    def scratch(self) -> PurePosixPath:
        """How commands call their home folder."""
        return self.seen_as(self.home, SCRATCH)

    def beside(self, tools: Toolchains) -> list[Bind]:
        """Return what they see beside the working folder."""
        return [
            *(Bind(source, PurePosixPath(name)) for name, source in tools.shown.items()),
            Bind(self.home, self.scratch, writable=True),
            Bind(self.code, self.seen_as(self.code, CODE)),
        ]

    def folder(self, work: Path, project: Path, dependencies: Sequence[str]) -> tuple[PurePosixPath, list[Bind]]:
        """Show a folder as the project, with the project's packages in it to be read only.

        Returns:
            How commands call it, and what they have to be shown for it.
        """
        folder = self.seen_as(work, PurePosixPath(project))
        binds = [Bind(work, folder, writable=True)]
        for name in dependencies:
            place = work / name
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if self.mounts:
                place.mkdir(mode=0o755, exist_ok=True)
                binds.append(Bind(project / name, folder / name, direct=True))
            else:
                if place.is_dir() and not place.is_symlink():  # of a submodule
                    place.rmdir()
                if not place.is_symlink():
                    place.symlink_to(project / name)
                binds.append(Bind(project / name, PurePosixPath(project / name), direct=True))
        return folder, binds

    def bench(
        self, folder: PurePosixPath, binds: Sequence[Bind], tools: Toolchains, notes: str, *, measured: bool = True
    ) -> CommandSandbox:
        """Return all of it; `measured` with what its writable folders take on the disk."""
        environment = child_environment(
            self.run_id,
            {
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                "NO_COLOR": "1",
                "HOME": str(self.scratch),
                "TMPDIR": str(self.scratch / "tmp"),
                "GIT_CONFIG_NOSYSTEM": "1",
                **tools.variables,
                "PATH": ":".join(dict.fromkeys((*tools.path, *SYSTEM_PATH))),
            },
        )
        code = (self.code, self.seen_as(self.code, CODE))
        size = _size([bind.source for bind in binds if bind.writable]) if measured else None
        return CommandSandbox(folder, tuple(binds), environment, code, notes, size)


def without_odd(project: Path | None, copied: CopyReport, check: Callable[[], None]) -> tuple[str, ...]:
    """Return the folders of packages that can be shown: those without a way out of the sandbox in them."""
    kept: list[str] = []
    for name in copied.dependencies:
        assert project is not None
        if (odd := odd_in(project / name, check)) is not None:
            copied.left_out[f"{shown(name)}, because of the pipe, socket or device {shown(odd)}"] += 1
        else:
            kept.append(name)
    return tuple(kept)


def read_only_note(dependencies: Sequence[str]) -> list[str]:
    """Return the note that names what can only be read."""
    if not dependencies:
        return []
    return [f"read-only: {', '.join(map(shown, dependencies[:8]))}{', …' if len(dependencies) > 8 else ''}"]


def _size(folders: Sequence[Path]) -> int | None:
    """Return what folders take on the disk, measured as the supervisor of a command does."""
    if sys.platform != "linux":
        return None
    from ava_roles.sandbox.launcher import disk

    with suppress(disk.TooDeep):
        return disk.measure([str(folder) for folder in folders])
    return None


MAKE_S = 60.0
"""How long making the copy may take."""


class BenchMaker(Protocol):
    """Where the commands of one run work."""

    @property
    def network(self) -> bool:
        """Whether they reach the host's network."""
        ...

    async def ready(self) -> tuple[CommandSandbox, bool]:
        """Return what commands are given, and whether it was made just now.

        Raises:
            ToolFailed: It cannot be made; says what would help.
        """
        ...

    async def renew(self) -> str:
        """Make room where its commands have written too much; return what the next command finds."""
        ...

    async def after_command(self) -> str:
        """Take back what a command should not have changed; return a sentence on it for the model, or nothing."""
        ...


@dataclass
class Workbench:
    """Makes what commands are given, once, and takes it away.

    Attributes:
        mounts: Commands can be shown a folder under another path than its own.
        here: The folder for it, which is not there yet.
        files: The workspace, open; None is none, and commands then work in an empty folder.
        run_id: Whose commands they are.
        read_only: Folders of toolchains that the settings name.
        carry: Folders of the workspace that the role wants shown as they are.
        home: The user's home folder.
        closed: Folders that are shown in no case.
        network: Commands reach the host's network.
    """

    mounts: bool
    here: Path
    files: Root | None
    run_id: str
    read_only: Sequence[Path] = ()
    carry: Sequence[str] = ()
    home: Path = field(default_factory=Path.home)
    closed: Sequence[Path] = ()
    network: bool = False
    _made: CommandSandbox | None = field(default=None, init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _closing: bool = field(default=False, init=False)
    _busy: Lock = field(default_factory=Lock, init=False)

    async def ready(self) -> tuple[CommandSandbox, bool]:
        """Return what commands are given, and whether it was made just now.

        Raises:
            ToolFailed: It cannot be made; says what would help.
        """
        async with self._turn:
            if self._made is not None:
                return self._made, False
            self._made = await run_sync(self._make, abandon_on_cancel=False)
            return self._made, True

    async def renew(self) -> str:
        """Throw it away, so that the next command finds it as the first did; return a sentence of that."""
        async with self._turn:
            self._made = None
            with suppress(OSError):  # it is tried again when it is made
                await run_sync(self._remove, abandon_on_cancel=False)
        return "the next command finds a fresh copy"

    async def after_command(self) -> str:
        """Take nothing back: a copy that is thrown away may be changed everywhere."""
        return ""

    def close(self) -> None:
        """Remove it, also while it is being made. Blocking.

        Raises:
            OSError: Something of it cannot be removed.
        """
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
                return self._laid_out(check)
            except BaseException as error:
                with suppress(OSError):
                    remove_tree(self.here)
                if isinstance(error, OSError):
                    raise ToolFailed(f"the workspace could not be made ready for commands: {error.strerror}") from error
                raise

    def _laid_out(self, check: Callable[[], None]) -> CommandSandbox:
        for name in ("copy", "home/tmp", "code"):
            (self.here / name).mkdir(mode=0o755, parents=True)
        workspace = self.files.path.resolve() if self.files is not None else None
        copied = CopyReport()
        if self.files is not None:
            repository = repository_of(self.files.path.resolve(), self.home)
            copied = copy_workspace(
                self.files, self.here / "copy", repository=repository, home=self.home, carry=self.carry, check=check
            )
        dependencies = without_odd(workspace, copied, check)
        tools = find_toolchains(workspace, dependencies, read_only=self.read_only, home=self.home, closed=self.closed)
        laying = CommandLayout(self.mounts, self.run_id, self.here / "home", self.here / "code")
        folder, binds = laying.scratch, laying.beside(tools)
        if workspace is not None and copied.whole:
            folder, more = laying.folder(self.here / "copy", workspace, dependencies)
            binds += more
        elif workspace is not None:
            folder = PurePosixPath(workspace)
            binds += self._as_it_is(workspace, copied)
        return laying.bench(folder, binds, tools, self._notes(workspace, copied, dependencies, tools, laying))

    def _as_it_is(self, workspace: Path, copied: CopyReport) -> list[Bind]:
        """Show a workspace that is too large to be copied."""
        if copied.hidden and not self.mounts:
            raise ToolFailed(
                f"{workspace} is too large to be copied, and {shown(copied.hidden[0])} in it must not be seen by"
                " commands; have the subagent started with a smaller folder as workspace, or go on by reading"
            )
        return [
            Bind(workspace, PurePosixPath(workspace), direct=True),
            *(self._mask(workspace, name) for name in copied.hidden),
        ]

    def _mask(self, workspace: Path, name: str) -> Bind:
        """Lay something empty over what must not be seen."""
        empty = self.here / "empty"
        empty.mkdir(mode=0o755, exist_ok=True)
        if not (workspace / name).is_dir():
            empty = empty / "file"
            empty.touch(mode=0o644)
        else:
            empty = empty / "folder"
            empty.mkdir(mode=0o755, exist_ok=True)
        return Bind(empty, PurePosixPath(workspace / name))

    def _notes(
        self,
        workspace: Path | None,
        copied: CopyReport,
        dependencies: Sequence[str],
        tools: Toolchains,
        laying: CommandLayout,
    ) -> str:
        if workspace is None:
            return "[it works in an empty folder, which is gone with this run]"
        place = shown(str(workspace))
        if not copied.whole:
            what = f"more than {FOLDER_FILES:,} files or {FOLDER_BYTES // 1_000_000} MB"
            notes = [f"it works in {place} itself, which is too large to be copied ({what}): nothing can be written"]
            notes.append(f"write to {laying.scratch} instead")
        else:
            of = "of the checkout, without what git ignores and without .git" if copied.git else "of the folder"
            notes = [
                f"it works in a fresh copy of {place}: {copied.files:,} files {of}",
                "what it changes is thrown away",
            ]
        notes += read_only_note(dependencies)
        notes += [f"left out: {count:,} {why}" for why, count in copied.left_out.items()]
        if self.network:
            notes.append("commands reach the network")
        notes += tools.refused
        return f"[{'; '.join(notes)}]"
