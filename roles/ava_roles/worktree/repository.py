"""git, run with a git directory that Ava makes: nothing of the user's configuration can run anything.

`Git` runs it and explains failures. `UserRepository` is the user's checkout; `git_folder` makes a directory with its
objects.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ava_roles.errors import FolderReplaced, NoRepository, ToolFailed, WorktreeFailed
from ava_roles.sandbox import temporary
from ava_roles.sandbox.git import SAFE_CONFIG, GitOutput, copy_file, git_environment, git_program, run_git
from ava_roles.sandbox.git_folders import NOTHING_OUTSIDE, Accept, GitFolders, NoGitFolder, find_git_folders
from ava_roles.sandbox.path_access import make_folders, read_small
from ava_roles.sandbox.paths import Root, folder_identity, is_same_folder

GIT_S = 120.0
"""The longest that one git command may take; writing a tree of 20,000 files takes seconds."""
_FULL_DISK_BYTES = 200_000
_FILE_SIZE_SIGNAL = getattr(signal, "SIGXFSZ", 0) or 1_000


@contextmanager
def translate_os_errors(doing: str) -> Generator[None]:
    """Turn an OSError into a WorktreeFailed that says what failed, e.g. `reading the index`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise WorktreeFailed(f"{doing} failed: the disk is full; make room there, and start again") from error
        place = f" ({error.filename})" if error.filename else ""
        raise WorktreeFailed(f"{doing} failed: {error.strerror or error}{place}") from error


@contextmanager
def temporary_folder(doing: str) -> Generator[Path]:
    """Hold a temporary folder; an OSError becomes a WorktreeFailed, as in `translate_os_errors`."""
    with translate_os_errors(doing), temporary.temporary_folder("ava-git-") as folder:
        yield folder


@dataclass(frozen=True)
class Git:
    """Runs git with one git directory of Ava's, on a work tree if it has one, with `index` or the directory's own.

    `check` is called repeatedly while git runs; it raises to stop it. git inherits the descriptors in `inherited`.
    """

    program: str
    own: Path
    tree: Path | None = None
    index: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    check: Callable[[], None] = lambda: None
    inherited: tuple[int, ...] = ()

    def run(self, *words: str, stdin: bytes = b"") -> GitOutput:
        """Run git, and return how it ended. Raises WorktreeFailed if it could not be started, or took too long."""
        command = [self.program, f"--git-dir={self.own}"]
        if self.tree is not None:
            command.append(f"--work-tree={self.tree}")
        for setting in SAFE_CONFIG:
            command += ["-c", setting]
        command += words
        env = git_environment(self.own)
        if self.index is not None:
            env["GIT_INDEX_FILE"] = str(self.index)
        env |= self.variables
        ended = False
        try:
            with translate_os_errors(f"git {words[0]}"):
                done = run_git(
                    command,
                    folder=self.tree or self.own,
                    env=env,
                    aside=self.own,
                    within_s=GIT_S,
                    check=self.check,
                    stdin=stdin,
                    held=self.inherited,
                    outlives=words[0] == "update-ref",  # if it were killed, the user's repository would stay locked
                )
            ended = done.code is not None
        finally:
            if self.index is not None and not ended:  # a killed git leaves its lock
                self.index.with_name(f"{self.index.name}.lock").unlink(missing_ok=True)
        if done.code is None:
            raise WorktreeFailed(f"git {words[0]} did not end within {GIT_S:g} s; check whether the disk is very slow")
        return done

    def __call__(self, *words: str, stdin: bytes = b"") -> GitOutput:
        """Run git. Raises WorktreeFailed if it failed; quotes git."""
        done = self.run(*words, stdin=stdin)
        if done.code != 0:
            places = [self.own]
            places += [Path(value) for value in self.variables.values() if value.startswith("/")]
            raise WorktreeFailed(_explain_failure(words[0], done, full=any(map(_is_full, places))))
        return done

    def line(self, *words: str, stdin: bytes = b"") -> str:
        return os.fsdecode(self(*words, stdin=stdin).out).strip()

    def on(self, tree: Path, index: Path) -> Git:
        """Return the same git for a work tree and its index."""
        return replace(self, tree=tree, index=index)


@contextmanager
def temporary_index(git: Git) -> Generator[Git]:
    """Hold the same git with an index of its own, which is removed afterwards."""
    index = git.own / f"index-{os.urandom(6).hex()}"
    try:
        yield replace(git, index=index)
    finally:
        index.unlink(missing_ok=True)


def _is_full(place: Path) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(place).free < _FULL_DISK_BYTES
    return False


_FULL_DISK = ("No space left", "File too large")
_MISSING_OBJECTS = ("unable to read sha1", "unable to read tree", "missing", "bad object", "not our")


def _explain_failure(command: str, done: GitOutput, *, full: bool) -> str:
    why = " ".join(done.errors.split())[:400] or f"exit code {done.code}"
    if done.code == -_FILE_SIZE_SIGNAL:
        why = "File too large: a limit on the file size is set here"
    if full or any(phrase in why for phrase in _FULL_DISK):
        return f"git {command} failed: the disk is full; make room there, and start again ({why})"
    if any(phrase in why for phrase in _MISSING_OBJECTS):
        return (
            f"git {command} failed, because objects of the commit are missing from the repository ({why}); a partial"
            " clone has to fetch them first (git fetch --refetch, or a checkout of the whole tree)"
        )
    return f"git {command} failed: {why}"


_COPIED_SETTINGS = ("core.autocrlf", "core.eol", "core.ignorecase", "core.sharedrepository")
"""Settings of the user that say how files are written; none of them can run anything."""
_SIGNS = "commit.gpgsign"
_EXTENSIONS = {"objectformat": ("sha1", "sha256"), "refstorage": ("files", "reftable")}
"""How a repository is stored. Other values are left out: newer versions of git take a path for some."""
NO_GIT = "git is not installed here; ask a person to install it, or choose a role that needs no worktree"


@dataclass(frozen=True)
class UserRepository:
    """A checkout of the user, and its repository.

    `folder` is what `.git` is or points to: it contains HEAD and the index of this checkout. `common` is what all
    checkouts share: objects, branches, configuration. `approved` is the approved `identity`; empty accepts any
    repository. `accept` decides about a git folder outside of the checkout.
    """

    root: Path
    folder: Path
    common: Path
    program: str
    home: Path
    approved: tuple[str, ...] = ()
    accept: Accept = NOTHING_OUTSIDE

    @classmethod
    def at(
        cls, root: Path, home: Path, approved: tuple[str, ...] = (), accept: Accept = NOTHING_OUTSIDE
    ) -> UserRepository:
        """Return the repository of a checkout.

        Raises FolderReplaced if it is not the one that was approved; NoRepository if the folder is not the root of a
        checkout, or git would follow something in it elsewhere; says what to do; WorktreeFailed: git is not installed.
        """
        if approved:
            with translate_os_errors(f"opening {root}"):
                Root.open_approved(root, approved[0]).close()
        if not root.is_dir():
            raise NoRepository(f"{root} is not a folder; give the root of a git checkout as workspace")
        git = root / ".git"
        if not git.exists():
            raise NoRepository(_explain_no_checkout(root))
        program = git_program(root)
        if program is None:
            raise WorktreeFailed(NO_GIT)
        folders = _find_folders(root, accept)
        for place in (folders.folder / "HEAD", folders.common / "objects"):
            if not os.path.lexists(place):
                raise NoRepository(f"{root} is not a git checkout any more ({place} is missing); repair or clone it")
        checkout = cls(root, folders.folder, folders.common, program, home, approved, accept)
        checkout.recheck()
        return checkout

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells the checkout and its two git folders from any put in their places. Raises WorktreeFailed."""
        with translate_os_errors("looking at the repository"):
            return tuple(map(folder_identity, (self.root, self.folder, self.common)))

    def recheck(self) -> None:
        """Check that this is still the approved repository. Raises FolderReplaced; WorktreeFailed: it is unreadable."""
        if self.approved and not all(map(is_same_folder, self.approved, self.identity)):
            raise FolderReplaced(f"{self.root} is now a different repository")

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """What git's configuration says, the user's own included. It is only read: git never runs with it.

        The repository's own part comes with the repository, and may name files of anybody. So files that it includes
        are not read, and its list of names to ignore counts only if it lies in the repository. Raises WorktreeFailed:
        git cannot read it.
        """
        with temporary_folder("reading git's configuration") as aside:
            shared = aside / "common"
            for name in ("objects", "refs"):
                make_folders(shared / name, aside)
            env = {**git_environment(self.folder), "HOME": str(self.home), "GIT_COMMON_DIR": str(shared)}
            for name in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"):
                del env[name]

            def read(*source: str) -> dict[str, str]:
                done = run_git(
                    [self.program, f"--git-dir={self.folder}", "config", *source, "--list", "-z"],
                    folder=Path("/"),
                    env=env,
                    aside=aside,
                    within_s=10,
                )
                if done.code != 0:
                    why = f"git cannot read the configuration of {self.root}: {done.errors[:300]}; repair it"
                    raise WorktreeFailed(why)
                values: dict[str, str] = {}
                for entry in done.out.split(b"\0"):
                    if entry:
                        key, newline, value = os.fsdecode(entry).partition("\n")
                        if key == _SIGNS and not newline:  # a switch that is named without a value is on
                            value = "true"
                        values[key.lower()] = value
                return values

            user_settings = read()
            config = self.common / "config"
            repository_settings: dict[str, str] = {}
            if config.is_file():
                repository_settings = read("--file", str(config), "--no-includes")
        ignore = Path(repository_settings.pop("core.excludesfile", ""))
        if ignore.is_absolute():
            lies_in_repository = any(map(ignore.resolve().is_relative_to, (self.root, self.common)))
            if lies_in_repository:
                repository_settings["core.excludesfile"] = str(ignore)
        return user_settings | repository_settings

    @property
    def signs_commits(self) -> bool:
        """Tell whether git's configuration asks for signed commits (`commit.gpgsign`)."""
        value = self.settings.get(_SIGNS, "false").lower()
        if value in ("true", "yes", "on"):
            return True
        return value.lstrip("+-").isdecimal() and int(value) != 0

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    def git_folder(self, own: Path, *, joined: bool) -> Git:
        """Create a git directory that has this repository's objects, and none of its configuration.

        If `joined`, it shares this repository's branches, HEAD and object store. Otherwise it has no branches, and
        stores new objects itself. Raises FolderReplaced: this is not the approved repository; WorktreeFailed: it cannot
        be created.
        """
        self.recheck()
        folders = _find_folders(self.root, self.accept)
        if (folders.folder, folders.common) != (self.folder, self.common):
            raise FolderReplaced(f"{self.root} is now a different repository")
        with translate_os_errors("creating a git directory"):
            shared = own
            if joined and self._has_own_reftable():
                shared = own / "common"
                make_folders(shared, own.parent)
                (own / "commondir").write_text("common\n")
                (own / "reftable").symlink_to(self.folder / "reftable")
            for name in ("objects/info", "info"):
                make_folders(shared / name, own.parent)
            if not joined:
                make_folders(shared / "refs/heads", own.parent)
            (shared / "config").write_text(self._configuration(joined), "utf-8")
            for name in ("info/exclude", "info/attributes"):
                if (self.common / name).is_file():
                    copy_file(self.common, name, shared / name)
            if (self.common / "shallow").is_file():
                copy_file(self.common, "shallow", shared / "shallow")
            if not joined:
                (own / "HEAD").write_text("ref: refs/heads/none\n")
                (own / "objects/info/alternates").write_bytes(_quote_path(os.fsencode(self.objects)) + b"\n")
                return Git(self.program, own)
            (own / "HEAD").write_bytes(self._head())
            for name in ("refs", "packed-refs", "logs", "reftable"):
                if (self.common / name).exists():
                    (shared / name).symlink_to(self.common / name)
        return Git(self.program, own, variables={"GIT_OBJECT_DIRECTORY": str(self.objects)})

    def _has_own_reftable(self) -> bool:
        """Tell whether the HEAD of this checkout is in tables of its own: in a linked worktree with reftable."""
        return self.folder != self.common and (self.common / "reftable").exists()

    @contextmanager
    def joined(self) -> Generator[Git]:
        """Hold a temporary git directory that shares this repository's objects, branches and HEAD."""
        with temporary_folder("working with the repository") as aside:
            yield self.git_folder(aside / "git", joined=True)

    def head(self, git: Git) -> tuple[str, str | None]:
        """Return the checked-out commit and its branch (None: detached). Raises NoRepository: no commit."""
        commit = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        reference = git.run("symbolic-ref", "--quiet", "HEAD")
        branch = None
        if reference.code == 0:
            branch = os.fsdecode(reference.out).strip().removeprefix("refs/heads/")
        if commit.code == 0:
            return os.fsdecode(commit.out).strip(), branch
        missing = os.fsdecode(git.run("rev-parse", "--verify", "--quiet", "HEAD").out).strip()
        if missing:
            raise NoRepository(f"{self.root} does not have the commit {missing} that HEAD names; repair it (git fsck)")
        where = f" on {branch}" if branch else ""
        raise NoRepository(
            f"{self.root} has no commit{where} that work could start from; commit something first (git add, git commit)"
        )

    def excludes(self) -> str:
        """Return the path of the user's list of names to ignore."""
        path = self.settings.get("core.excludesfile", "")
        if not path:
            return str(self.home / ".config" / "git" / "ignore")
        if path.startswith("~/"):
            return str(self.home / path.removeprefix("~/"))
        return path

    def _head(self) -> bytes:
        head = self.folder / "HEAD"
        if head.is_symlink():
            return b"ref: " + os.fsencode(head.readlink()) + b"\n"
        return read_small(head, 5_000)

    def _configuration(self, joined: bool) -> str:
        extensions: dict[str, str] = {}
        for name in _EXTENSIONS if joined else ("objectformat",):
            value = self.settings.get(f"extensions.{name}", "")
            if value in _EXTENSIONS[name]:
                extensions[name] = value
        logs = "false"
        if joined and (self.common / "logs").is_dir():
            logs = self.settings.get("core.logallrefupdates", "true")
        version = 1 if extensions else 0
        lines = [
            "[core]",
            f"\trepositoryformatversion = {version}",
            "\tbare = false",
            f"\tlogallrefupdates = {_quote_value(logs)}",
            f"\texcludesfile = {_quote_value(self.excludes())}",
        ]
        for setting in _COPIED_SETTINGS:
            if setting in self.settings:
                lines.append(f"\t{setting.removeprefix('core.')} = {_quote_value(self.settings[setting])}")
        if extensions:
            lines.append("[extensions]")
        for name, value in extensions.items():
            lines.append(f"\t{name} = {_quote_value(value)}")
        return "\n".join(lines) + "\n"


def _find_folders(root: Path, accept: Accept) -> GitFolders:
    try:
        return find_git_folders(root, accept)
    except NoGitFolder as error:
        raise NoRepository(str(error)) from None
    except OSError as error:
        place = error.filename or root / ".git"
        why = f"{place} cannot be read ({error.strerror})"
        raise NoRepository(f"{why}; give a checkout that is your own") from None


def _explain_no_checkout(root: Path) -> str:
    """Say what a folder without `.git` is, and what to give instead."""
    if (root / "HEAD").is_file() and (root / "objects").is_dir():
        return f"{root} is a bare repository, without files; clone it, and give the clone as workspace"
    for above in root.parents:
        if (above / ".git").exists():
            return (
                f"{root} is inside the git checkout {above}; give that as workspace, and {root.name} in the namespace"
            )
    return f"{root} is not a git repository; run git init and commit in it first, or give another as workspace"


def _quote_value(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _quote_path(path: bytes) -> bytes:
    """Return a path as the `alternates` file takes it: in quotes if it would be misread."""
    is_misread = path.startswith((b'"', b"#")) or b"\n" in path
    if not is_misread:
        return path
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'


_MAX_BYTES = 100_000_000
SUBMODULE_MODE = "160000"


@dataclass(frozen=True)
class CommitFiles:
    """The files of a commit: the object id of each by path, submodules' folders, all attribute files' text."""

    submodules: tuple[str, ...]
    blobs: Mapping[str, str]
    attributes: bytes

    @classmethod
    def of(cls, git: Git, commit: str) -> CommitFiles:
        submodules: list[str] = []
        blobs: dict[str, str] = {}
        attribute_ids: list[str] = []
        for entry in git("ls-tree", "-r", "-z", "--full-tree", commit).names():
            fields, _, name = entry.partition("\t")
            mode, kind, object_id = fields.split()
            if mode == SUBMODULE_MODE:
                submodules.append(name)
            if kind == "blob":
                blobs[name] = object_id
                if name.rpartition("/")[2] == ".gitattributes":
                    attribute_ids.append(object_id)

        attributes = b""
        if attribute_ids:
            stdin = "".join(f"{each}\n" for each in attribute_ids).encode()
            attributes = git("cat-file", "--batch", stdin=stdin).out
        local = git.own / "info" / "attributes"
        if local.is_file():
            attributes += local.read_bytes()
        return cls(tuple(submodules), blobs, attributes)


@dataclass(frozen=True)
class ProtectedPaths:
    """The paths of a commit that no run may change, and the files that only seem changed.

    Git LFS keeps the `pointers`. git would store the files in `written` differently than it wrote them (line ends,
    `$Id$`); each has the digest of what it wrote.
    """

    submodules: frozenset[str] = frozenset()
    pointers: frozenset[str] = frozenset()
    written: Mapping[str, str] = field(default_factory=dict[str, str])


def find_protected_paths(git: Git, commit: str, tree: Path | None) -> ProtectedPaths:
    """Return the protected paths of a commit.

    `tree` is a folder into which git has just written the commit: the files that git nevertheless reports as changed
    are stored in the git directory. With `tree` None, the stored ones are used.
    """
    files = CommitFiles.of(git, commit)
    pointers: list[str] = []
    if b"lfs" in files.attributes:
        filtered = filtered_files(git, commit, list(files.blobs))
        pointers = [name for name, filter_name in filtered if filter_name == "lfs"]
    written_file = git.own / "written.json"
    if tree is not None:
        written: dict[str, str] = {}
        if files.attributes or _converts_line_ends(git):
            written = _seemingly_changed(git, commit, tree)
        written_file.write_text(json.dumps(written))
    return ProtectedPaths(frozenset(files.submodules), frozenset(pointers), json.loads(written_file.read_text()))


def _converts_line_ends(git: Git) -> bool:
    return any(git.run("config", key).code == 0 for key in ("core.autocrlf", "core.eol"))


def filtered_files(git: Git, commit: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files that pass through a git filter, by the attributes of a commit, each with the filter's name."""
    with temporary_index(replace(git, tree=None)) as indexed:
        indexed("read-tree", commit)
        stdin = b"".join(os.fsencode(name) + b"\0" for name in names)
        fields = indexed("check-attr", "-z", "--cached", "--stdin", "filter", stdin=stdin).names()
    filters = zip(fields[::3], fields[2::3], strict=True)  # the path, the word `filter`, and the value
    return [(name, value) for name, value in filters if value not in ("unspecified", "unset", "set")]


def _seemingly_changed(git: Git, commit: str, tree: Path) -> dict[str, str]:
    """Return the files that git reports as changed in a tree that it has just written."""
    with temporary_index(replace(git, tree=tree)) as indexed:
        indexed("read-tree", commit)
        indexed.run("update-index", "-q", "--really-refresh")
        changed = dict.fromkeys(indexed("ls-files", "-z", "--modified").names())
    digests: dict[str, str] = {}
    with closing(Root.open(tree)) as root:
        for name in changed:
            digest = file_digest(root, name)
            if digest:
                digests[name] = digest
    return digests


def file_digest(tree: Root, name: str) -> str:
    """Return the digest of a file's beginning; empty if it cannot be read."""
    try:
        data, _more = tree.read(name, _MAX_BYTES)
    except ToolFailed:
        return ""
    return hashlib.sha256(data).hexdigest()


_MANIFESTS = frozenset(
    {
        "package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock",
        "pyproject.toml", "setup.py", "setup.cfg", "poetry.lock", "uv.lock", "pdm.lock", "Pipfile", "Pipfile.lock",
        "environment.yml", "Cargo.toml", "Cargo.lock", "go.mod", "go.sum", "Gemfile", "Gemfile.lock",
        "composer.json", "composer.lock", "CMakeLists.txt",
    }
)  # fmt: skip
"""Files that say what a project depends on, besides `requirements*.txt`."""
_REQUIREMENTS = re.compile(r"requirements.*\.txt", re.DOTALL)


def manifests_digest(git: Git, tree: str) -> str:
    """Return a digest of a commit or tree that changes when a file that names dependencies does."""
    manifests: list[str] = []
    for entry in git("ls-tree", "-r", "-z", "--full-tree", tree).names():
        name = entry.partition("\t")[2].rpartition("/")[2]
        if name in _MANIFESTS or _REQUIREMENTS.fullmatch(name):
            manifests.append(entry)
    return hashlib.sha256("\0".join(manifests).encode("utf-8", "surrogateescape")).hexdigest()[:16]
