"""What commands are given of a project: a folder to work in, shown under the project's own path, and its packages.

Installed packages and programs know the project by that path. Where a sandbox cannot mount, everything is shown where
it is, and packages are linked into the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ava_roles.sandbox.copies import Copied, odd_in
from ava_roles.sandbox.environment import child_environment
from ava_roles.sandbox.paths import shown
from ava_roles.sandbox.sandbox import Bind
from ava_roles.sandbox.toolchains import SYSTEM_PATH, Toolchains

SCRATCH = PurePosixPath("/scratch")
CODE = PurePosixPath("/code")


@dataclass(frozen=True)
class Bench:
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
class Laying:
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
    ) -> Bench:
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
        return Bench(folder, tuple(binds), environment, code, notes, size)


def without_odd(project: Path | None, copied: Copied, check: Callable[[], None]) -> tuple[str, ...]:
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
        return disk.used([str(folder) for folder in folders])
    return None
