"""git, called with a git directory of ours, and what it means when it fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ava_roles.errors import WorkshopFailed
from ava_roles.sandbox.git import OFF, Said, environment, run_git

GIT_S = 120.0
"""The most that one call of git may take: writing a tree of 20,000 files takes seconds."""
_ROOM = 200_000
_TOO_LARGE = getattr(signal, "SIGXFSZ", 0) or 1_000


@contextmanager
def told(doing: str) -> Generator[None]:
    """Say what a system error means for what was being done.

    Raises:
        WorkshopFailed: There was one.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise WorkshopFailed(f"{doing} failed: the disk is full; make room there, and start again") from error
        place = f" ({error.filename})" if error.filename else ""
        raise WorkshopFailed(f"{doing} failed: {error.strerror or error}{place}") from error


@contextmanager
def folder_aside(doing: str) -> Generator[Path]:
    """Hold a folder for the time of one piece of work; `doing` says what, as for `told`.

    Raises:
        WorkshopFailed: It cannot be made, or what is done in it failed.
    """
    with told(doing), tempfile.TemporaryDirectory(prefix="ava-git-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Git:
    """Calls git with one git directory of ours.

    Attributes:
        program: Where git is.
        own: The git directory.
        tree: The work tree; None is none.
        index: The index; None is the directory's own.
        variables: Further variables.
        check: Called again and again while git works.
        held: Descriptors that every git holds as long as it lives.
    """

    program: str
    own: Path
    tree: Path | None = None
    index: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    check: Callable[[], None] = lambda: None
    held: tuple[int, ...] = ()

    def said(self, *words: str, stdin: bytes = b"") -> Said:
        """Call git, and return how it ended.

        Raises:
            WorkshopFailed: It could not be started, or took too long.
        """
        at = [f"--git-dir={self.own}", *([f"--work-tree={self.tree}"] if self.tree is not None else [])]
        settings = [part for each in OFF for part in ("-c", each)]
        index = {"GIT_INDEX_FILE": str(self.index)} if self.index is not None else {}
        ended = False
        try:
            with told(f"git {words[0]}"):
                said = run_git(
                    [self.program, *at, *settings, *words],
                    folder=self.tree or self.own,
                    env={**environment(self.own), **index, **self.variables},
                    aside=self.own,
                    within_s=GIT_S,
                    check=self.check,
                    stdin=stdin,
                    held=self.held,
                )
            ended = said.code is not None
        finally:
            if self.index is not None and not ended:  # killed, it leaves its lock
                self.index.with_name(f"{self.index.name}.lock").unlink(missing_ok=True)
        if said.code is None:
            raise WorkshopFailed(f"git {words[0]} did not end within {GIT_S:g} s; look whether the disk is very slow")
        return said

    def __call__(self, *words: str, stdin: bytes = b"") -> Said:
        """Call git, which must not fail.

        Raises:
            WorkshopFailed: It failed; says what git said.
        """
        said = self.said(*words, stdin=stdin)
        if said.code != 0:
            places = [self.own, *(Path(place) for place in self.variables.values() if place.startswith("/"))]
            raise WorkshopFailed(_failed(words[0], said, full=any(map(_is_full, places))))
        return said

    def line(self, *words: str, stdin: bytes = b"") -> str:
        """Call git, which must not fail, and return the one line that it prints."""
        return os.fsdecode(self(*words, stdin=stdin).out).strip()

    def on(self, tree: Path, index: Path) -> Git:
        """Return the same for a work tree and its index."""
        return replace(self, tree=tree, index=index)


def _is_full(place: Path) -> bool:
    """Tell whether hardly anything can be written any more."""
    with suppress(OSError):
        return shutil.disk_usage(place).free < _ROOM
    return False


def _failed(what: str, said: Said, *, full: bool) -> str:
    """Say what it means that git failed."""
    why = " ".join(said.errors.split())[:400] or f"exit code {said.code}"
    if said.code == -_TOO_LARGE:
        why = "File too large, for there is a limit on the file size here"
    if full or "No space left" in why or "File too large" in why:
        return f"git {what} failed: the disk is full; make room there, and start again ({why})"
    if any(sign in why for sign in ("unable to read sha1", "unable to read tree", "missing", "bad object", "not our")):
        return (
            f"git {what} failed, because the repository does not have all that its commit consists of ({why});"
            " a partial clone has to fetch it first (git fetch --refetch, or a checkout of the whole tree)"
        )
    return f"git {what} failed: {why}"
