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
from functools import cached_property
from pathlib import Path

from ava_roles.errors import NoRepository, WorktreeFailed
from ava_roles.sandbox.git import OFF, GitOutput, NoGitFolder, environment, folders_of, git_program, run_git, take
from ava_roles.sandbox.programs import read_small

GIT_S = 120.0
"""The most that one call of git may take: writing a tree of 20,000 files takes seconds."""
_ROOM = 200_000
_TOO_LARGE = getattr(signal, "SIGXFSZ", 0) or 1_000


@contextmanager
def translate_os_errors(doing: str) -> Generator[None]:
    """Say what a system error means for what was being done.

    Raises:
        WorktreeFailed: There was one.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise WorktreeFailed(f"{doing} failed: the disk is full; make room there, and start again") from error
        place = f" ({error.filename})" if error.filename else ""
        raise WorktreeFailed(f"{doing} failed: {error.strerror or error}{place}") from error


@contextmanager
def temporary_folder(doing: str) -> Generator[Path]:
    """Hold a folder for the time of one piece of work; `doing` says what, as for `told`.

    Raises:
        WorktreeFailed: It cannot be made, or what is done in it failed.
    """
    with (
        translate_os_errors(doing),
        tempfile.TemporaryDirectory(prefix="ava-git-", ignore_cleanup_errors=True) as folder,
    ):
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

    def said(self, *words: str, stdin: bytes = b"") -> GitOutput:
        """Call git, and return how it ended.

        Raises:
            WorktreeFailed: It could not be started, or took too long.
        """
        at = [f"--git-dir={self.own}", *([f"--work-tree={self.tree}"] if self.tree is not None else [])]
        settings = [part for each in OFF for part in ("-c", each)]
        index = {"GIT_INDEX_FILE": str(self.index)} if self.index is not None else {}
        ended = False
        try:
            with translate_os_errors(f"git {words[0]}"):
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
            raise WorktreeFailed(f"git {words[0]} did not end within {GIT_S:g} s; look whether the disk is very slow")
        return said

    def __call__(self, *words: str, stdin: bytes = b"") -> GitOutput:
        """Call git, which must not fail.

        Raises:
            WorktreeFailed: It failed; says what git said.
        """
        said = self.said(*words, stdin=stdin)
        if said.code != 0:
            places = [self.own, *(Path(place) for place in self.variables.values() if place.startswith("/"))]
            raise WorktreeFailed(_failed(words[0], said, full=any(map(_is_full, places))))
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


def _failed(what: str, said: GitOutput, *, full: bool) -> str:
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


_KEPT = ("core.autocrlf", "core.eol", "core.ignorecase", "core.sharedrepository")
"""What of the user's configuration says how files are written; nothing in it can run anything."""
_NO_GIT = "git is not installed here; have a person install it, or choose a role that needs no worktree"


@dataclass(frozen=True)
class UserRepository:
    """A repository of the user.

    Attributes:
        root: The root of the checkout.
        folder: What `.git` there is, or leads to: it has HEAD and the index of this checkout.
        common: What all checkouts of it share: objects, branches, configuration.
        program: Where git is.
        home: The user's home folder.
    """

    root: Path
    folder: Path
    common: Path
    program: str
    home: Path

    @classmethod
    def at(cls, root: Path, home: Path) -> UserRepository:
        """Return the repository of a checkout.

        Raises:
            NoRepository: It is not the root of a checkout; says what to do.
            WorktreeFailed: git is not there.
        """
        if not root.is_dir():
            raise NoRepository(f"{root} is no folder; give the root of a git checkout as workspace")
        git = root / ".git"
        if not git.exists():
            _refuse(root)
        program = git_program(root)
        if program is None:
            raise WorktreeFailed(_NO_GIT)
        try:
            folder, common = folders_of(root)
        except NoGitFolder as error:
            raise NoRepository(f"{error}; repair the checkout, or give another as workspace") from None
        except OSError as error:
            raise NoRepository(f"{git} cannot be read ({error.strerror}); give a checkout that is your own") from None
        for place in (folder / "HEAD", common / "objects"):
            if not os.path.lexists(place):
                raise NoRepository(f"{root} is no git checkout any more ({place} is not there); repair it, or clone it")
        return cls(root, folder.resolve(), common.resolve(), program, home)

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """The whole configuration that git has here, the user's own too: read, and never worked with.

        Raises:
            WorktreeFailed: git cannot read it.
        """
        with temporary_folder("reading git's configuration") as aside:
            env = {**environment(self.folder), "HOME": str(self.home)}
            for name in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"):
                del env[name]
            said = run_git(
                [self.program, f"--git-dir={self.folder}", "config", "--list", "-z"],
                folder=Path("/"),
                env=env,
                aside=Path(aside),
                within_s=10,
            )
        if said.code != 0:
            raise WorktreeFailed(f"git cannot read the configuration of {self.root}: {said.errors[:300]}; mend it")
        pairs = (os.fsdecode(each).partition("\n") for each in said.out.split(b"\0") if each)
        return {key.lower(): value for key, _newline, value in pairs}

    @property
    def objects(self) -> Path:
        """Where its objects are."""
        return self.common / "objects"

    def git_folder(self, own: Path, *, joined: bool) -> Git:
        """Make a git directory of ours that has this repository's objects.

        Args:
            own: The folder, which is not there yet.
            joined: It has this repository's branches and HEAD too, and what is written goes there; nothing else is
                theirs, and no configuration. Otherwise it has none, and objects of its own.

        Raises:
            WorktreeFailed: It cannot be made.
        """
        with translate_os_errors("making a git directory"):
            for name in ("objects/info", "info", *(() if joined else ("refs/heads",))):
                (own / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            (own / "config").write_text(self._configuration(joined), "utf-8")
            for name in ("info/exclude", "info/attributes"):
                if (self.common / name).is_file():
                    take(self.common, name, own / name)
            if (self.common / "shallow").is_file():
                take(self.common, "shallow", own / "shallow")
            if not joined:
                (own / "HEAD").write_text("ref: refs/heads/none\n")
                (own / "objects/info/alternates").write_bytes(_quoted(os.fsencode(self.objects)) + b"\n")
                return Git(self.program, own)
            (own / "HEAD").write_bytes(self._head())
            for name in ("refs", "packed-refs", "logs", "reftable"):
                if (self.common / name).exists():
                    (own / name).symlink_to(self.common / name)
        return Git(self.program, own, variables={"GIT_OBJECT_DIRECTORY": str(self.objects)})

    @contextmanager
    def joined(self) -> Generator[Git]:
        """Hold a git directory of ours that has this repository's objects, branches and HEAD."""
        with temporary_folder("working with the repository") as aside:
            yield self.git_folder(aside / "git", joined=True)

    def head(self, git: Git) -> tuple[str, str | None]:
        """Return the commit that is checked out, and its branch; None is none.

        Args:
            git: A git directory that is joined to this repository.

        Raises:
            NoRepository: There is no commit.
        """
        said = git.said("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        branch = git.said("symbolic-ref", "--quiet", "HEAD")
        name = os.fsdecode(branch.out).strip().removeprefix("refs/heads/") if branch.code == 0 else None
        if said.code == 0:
            return os.fsdecode(said.out).strip(), name
        at = os.fsdecode(git.said("rev-parse", "--verify", "--quiet", "HEAD").out).strip()
        if at:
            raise NoRepository(f"{self.root} does not have the commit {at} that it is at; repair it (git fsck)")
        on = f" on {name}" if name else ""
        raise NoRepository(
            f"{self.root} has no commit{on} that work could begin at; commit something first (git add, git commit)"
        )

    def excludes(self) -> str:
        """Return the file of names that the user has git ignore everywhere."""
        given = self.settings.get("core.excludesfile", "")
        if not given:
            return str(self.home / ".config" / "git" / "ignore")
        return str(self.home / given[2:]) if given.startswith("~/") else given

    def _head(self) -> bytes:
        head = self.folder / "HEAD"
        if head.is_symlink():
            return b"ref: " + os.fsencode(head.readlink()) + b"\n"
        return read_small(head, 5_000)

    def _configuration(self, joined: bool) -> str:
        """Return a configuration that says how objects and files are written, and nothing that runs."""
        extensions = {
            name: self.settings[f"extensions.{name}"]
            for name in ("objectformat", "refstorage")
            if self.settings.get(f"extensions.{name}", "") and (joined or name == "objectformat")
        }
        lines = ["[core]", f"\trepositoryformatversion = {1 if extensions else 0}", "\tbare = false"]
        logs = self.settings.get("core.logallrefupdates", "true") if (self.common / "logs").is_dir() else "false"
        lines.append(f"\tlogallrefupdates = {_value(logs if joined else 'false')}")
        lines.append(f"\texcludesfile = {_value(self.excludes())}")
        for name in _KEPT:
            if name in self.settings:
                lines.append(f"\t{name.partition('.')[2]} = {_value(self.settings[name])}")
        if extensions:
            lines += ["[extensions]", *(f"\t{name} = {_value(value)}" for name, value in extensions.items())]
        return "\n".join(lines) + "\n"


def _refuse(root: Path) -> None:
    """Say what a folder without `.git` is.

    Raises:
        NoRepository: Always.
    """
    if (root / "HEAD").is_file() and (root / "objects").is_dir():
        raise NoRepository(f"{root} is a bare repository, without files; clone it, and give the clone as workspace")
    for above in root.parents:
        if (above / ".git").exists():
            raise NoRepository(
                f"{root} lies in the git checkout {above}; give that as workspace, and {root.name} in the namespace"
            )
    raise NoRepository(
        f"{root} is no git repository; run git init and commit in it first, or give another as workspace"
    )


def _value(text: str) -> str:
    """Return a value as a configuration file has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _quoted(path: bytes) -> bytes:
    """Return a path as `alternates` has it; one that would be read otherwise in quotes."""
    if not path.startswith((b'"', b"#")) and b"\n" not in path:
        return path
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'
