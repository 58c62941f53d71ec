"""Publication of work: a branch in the user's repository, and a commit that travels to another machine and back.

Objects go into the user's repository, then one branch points to them, and nothing else. The branch is made through a
git directory of Ava's that shares the user's branches and none of their configuration, so no hook runs. git itself
takes the locks.

A snapshot is a tar file with the objects of one commit (no history), and how the owner's git writes files and names
them as the author. What is unpacked is a checkout without files whose only commit is the approved one, so work on it
leads to the same commits, byte for byte, as in the owner's repository. The branch comes back as a pack of its new
objects. Nothing of either is believed: digests are compared before, and git computes each object's name again.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ava_roles.encodings import describe_change_of_encoding
from ava_roles.errors import NoRepository, ToolFailed, WorktreeFailed
from ava_roles.sandbox.git import git_program
from ava_roles.sandbox.git_folders import NOTHING_OUTSIDE, Accept, only
from ava_roles.sandbox.path_access import make_folders, remove_tree
from ava_roles.sandbox.paths import Root, shown
from ava_roles.worktree.repository import (
    NO_GIT,
    SUBMODULE_MODE,
    Git,
    UserRepository,
    filtered_files,
    temporary_folder,
    translate_os_errors,
)
from ava_roles.worktree.spec import Branch, ChangedFile, within
from ava_roles.worktree.state import WorktreeRecord
from ava_roles.worktree.trees import Trees

_DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_Kind = Literal["added", "changed", "removed"]
_KINDS: dict[str, _Kind] = {"A": "added", "D": "removed"}
_TEST_SETTINGS = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
        "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "noxfile.py",
        "sitecustomize.py", "usercustomize.py", ".coveragerc", "package.json", ".npmrc", ".mocharc.json", ".mocharc.js",
        ".mocharc.cjs", ".mocharc.yml", ".mocharc.yaml", "makefile", "gnumakefile", "justfile", "cargo.toml",
        "build.rs", "go.mod", "go.work", "cmakelists.txt", "tsconfig.json", ".gitattributes", ".gitignore",
    }
)  # fmt: skip
"""Files that can change what a verify command runs, wherever they are."""
_TEST_CONFIG = re.compile(r"(jest|vitest|vite|karma|playwright|cypress|ava|babel|nyc)(\.[a-z]+)*\.config\.[a-z]+", re.I)
_TEST_FOLDERS = frozenset(
    {"test", "tests", "__tests__", "spec", "specs", "testing", "testdata", "__snapshots__", "__mocks__"}
)
_TEST_FILE = re.compile(
    r"(test_.*|.*_test|.*_spec|tests?|.*[._-](test|tests|spec))\.[a-z0-9]+|.*(Test|Tests|Spec|IT)\.(java|kt|scala|cs|swift)"
)
_RUNNERS = (
    "Makefile", "makefile", "GNUmakefile", "justfile", "package.json", "tox.ini", "noxfile.py", "pyproject.toml",
    "setup.cfg",
)  # fmt: skip
"""Files at the root that define what a command such as `make test` runs."""
_SEPARATORS = re.compile(r"[\s;&|()<>'\"=,:\[\]{}`$]+")
_MAX_FILE_CHARS = 200_000
_MAX_COMPARED = 500
_MAX_BRANCHES = 50
_LINK_MODE = "120000"
_MAX_LINKS = 100
_MAX_LINK_BYTES = 500
_FALLBACK_NAME = "Ava"
_FALLBACK_EMAIL = "ava@localhost"


def is_test(path: str, words: Iterable[str] = ()) -> bool:
    """Tell whether a file (from the root) is a test, or controls a verify command, by words of commands and runners."""
    if any(_names_file(word, path) for word in words):
        return True
    *folders, name = path.split("/")
    if name.lower() in _TEST_SETTINGS or path.startswith(".cargo/"):
        return True
    if _TEST_CONFIG.fullmatch(name) or _TEST_FILE.fullmatch(name):
        return True
    return not _TEST_FOLDERS.isdisjoint(map(str.lower, folders))


def _names_file(word: str, path: str) -> bool:
    """Tell whether a word of a command means a file: its path, or a program or module that the file shadows."""
    word = word.removeprefix("./")
    if path == word:
        return True
    module = word.replace(".", "/")
    return "/" not in word and path in (f"{module}.py", f"{module}/__main__.py", f"{module}/__init__.py")


def _command_words(git: Git, commit: str, commands: Sequence[str]) -> set[str]:
    """Return the words of commands, and those with a dot or slash of the files that these commands run."""
    words: set[str] = set()
    for command in commands:
        words.update(filter(None, _SEPARATORS.split(command)))
    scripts = {*_RUNNERS, *(word.removeprefix("./") for word in words)}
    files = git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names()
    for name in scripts.intersection(files):
        text = git("cat-file", "blob", f"{commit}:{name}").out[:_MAX_FILE_CHARS].decode("utf-8", "replace")
        for word in _SEPARATORS.split(text):
            if "/" in word or "." in word:
                words.add(word.removeprefix("./"))
    return words


def changed_files(git: Git, base: str, head: str, commands: Sequence[str] = ()) -> tuple[ChangedFile, ...]:
    """Return the files that differ between commits or trees, a renamed one twice; `commands` decide on the work."""
    raw = git("diff-tree", "-r", "-z", "--raw", "--no-abbrev", *_DIFF_OPTIONS, base, head).names()
    kinds: dict[str, _Kind] = {}
    links: dict[str, str] = {}
    for entry, name in zip(raw[::2], raw[1::2], strict=True):
        _old_mode, mode, _old, blob, letter = entry.removeprefix(":").split()
        kinds[name] = _KINDS.get(letter, "changed")
        if mode != _LINK_MODE:
            continue
        target = b"?"
        if len(links) < _MAX_LINKS:
            target = git("cat-file", "blob", blob).out[:_MAX_LINK_BYTES]
        links[name] = target.decode("utf-8", "replace")
    counts: dict[str, tuple[int, int]] = {}
    for line in git("diff-tree", "-r", "-z", "--numstat", *_DIFF_OPTIONS, base, head).names():
        added, removed, name = line.split("\t", 2)
        if added.isdigit() and removed.isdigit():  # of a binary file, both are a dash
            counts[name] = int(added), int(removed)
    words = _command_words(git, base, commands)
    files: list[ChangedFile] = []
    for name, kind in sorted(kinds.items()):
        added_lines, removed_lines = counts.get(name, (0, 0))
        files.append(ChangedFile(name, added_lines, removed_lines, kind, is_test(name, words), links.get(name)))
    return tuple(files)


def unified_diff(git: Git, base: str, head: str, context: int) -> str:
    """Return the unified diff of two commits, with `context` unchanged lines around each change."""
    options = ("-r", "-M", f"-U{context}", "--no-color", "--no-ext-diff", "--no-textconv")
    done = git("diff-tree", *options, base, head)
    return done.out.decode("utf-8", "replace")


def publish_branch(trees: Trees, message: str) -> Branch | None:
    """Commit what differs from the base, and make the branch; None if nothing differs. Blocking. Raises WorktreeFailed.

    Calling it again, also after a crash, leads to the same branch; after further work the branch moves on.
    """
    tree = trees.candidate()
    record = trees.folder.record()
    git = trees.git
    if tree == git.line("rev-parse", f"{record.base}^{{tree}}"):
        return None
    notes: list[str] = []
    head = record.head
    if head is None or _tree_of(git, head) != tree:
        head = _commit(trees.repository, git, tree, record.base, message, notes)
    with trees.repository.joined() as joined:
        branches = list_branches(joined)
        record = _record_branch(trees, record, head, branches)
        assert record.branch is not None
        changed = changed_files(git, record.base, head, (trees.spec.verify, trees.spec.setup or ""))
        copy_objects(trees.repository, joined, git, record.base, head)
        update_branch(trees.repository, joined, record.branch, head, branches.get(record.branch))
    filtered = filtered_files(git, head, [each.path for each in changed if each.kind != "removed"])
    if filtered:
        # Only their number: the model chose the names.
        files = _count_changed_files(len(filtered))
        notes.append(f"no git filter was run, although {files} would pass through one")
    notes += _changes_of_encoding(git, record.base, head, changed)
    if trees.repository.signs_commits:
        notes.append(_unsigned(record.base, record.branch))
    return Branch(record.branch, record.base, head, changed, tree, tuple(notes))


def _changes_of_encoding(git: Git, base: str, head: str, changed: Sequence[ChangedFile]) -> list[str]:
    """Return a sentence for each kind of change; only how many files, for the model chose their names."""
    kinds: Counter[str] = Counter()
    files = [each.path for each in changed if each.kind == "changed" and each.link is None]
    for path in files[:_MAX_COMPARED]:
        old_bytes = int(git("cat-file", "-s", f"{base}:{path}").out)
        new_bytes = int(git("cat-file", "-s", f"{head}:{path}").out)
        if max(old_bytes, new_bytes) > _MAX_FILE_CHARS:
            continue
        old = git("cat-file", "blob", f"{base}:{path}").out
        new = git("cat-file", "blob", f"{head}:{path}").out
        kinds[describe_change_of_encoding(old, new)] += 1
    sentences: list[str] = []
    for change, count in kinds.items():
        if change:
            sentences.append(f"the encoding of {_count_changed_files(count)} was {change}")
    return sentences


def _count_changed_files(count: int) -> str:
    return "1 changed file" if count == 1 else f"{count:,} changed files"


def _commit(repository: UserRepository, git: Git, tree: str, base: str, message: str, notes: list[str]) -> str:
    settings = repository.settings
    name = _valid_ident(settings.get("user.name", ""))
    email = _valid_ident(settings.get("user.email", ""))
    if not name or not email:
        name = name or _FALLBACK_NAME
        email = email or _FALLBACK_EMAIL
        notes.append(f"git has no user.name or user.email here, so the commit's author is {name} <{email}>")
    when = f"{int(time.time())} {time.strftime('%z')}"
    variables = {**git.variables}
    for who in ("author", "committer"):
        prefix = f"GIT_{who.upper()}"
        variables[f"{prefix}_NAME"] = _valid_ident(settings.get(f"{who}.name", "")) or name
        variables[f"{prefix}_EMAIL"] = _valid_ident(settings.get(f"{who}.email", "")) or email
        variables[f"{prefix}_DATE"] = when
    plain = Git(git.program, git.own, variables=variables, inherited=git.inherited)
    text = message.replace("\0", "").strip() + "\n"
    return plain.line("commit-tree", tree, "-p", base, stdin=text.encode("utf-8", "replace"))


def _unsigned(base: str, branch: str) -> str:
    # `git commit --amend` would take along what the person has staged; `git rebase` refuses then.
    command = f"git rebase --force-rebase -S {base[:12]} {branch}"
    return (
        "the commit is not signed, although commit.gpgsign is set: Ava never uses your key; to check the branch out and"
        f" sign it, in its repository: `{command}`"
    )


def _valid_ident(text: str) -> str:
    """Return a name or an address; empty if it only has characters that git strips, because git would refuse it."""
    for char in text:
        if char > " " and char not in ".,:;<>\"\\'":
            return text
    return ""


def _tree_of(git: Git, commit: str) -> str:
    done = git.run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
    return os.fsdecode(done.out).strip() if done.code == 0 else ""


def _record_branch(trees: Trees, record: WorktreeRecord, head: str, branches: Mapping[str, str]) -> WorktreeRecord:
    if record.branch is not None:
        at = branches.get(record.branch)
        is_own = _is_free(record.branch, branches) if at is None else at in (record.head, record.previous)
        if is_own and record.head == head:
            return record
        if is_own:
            return trees.folder.update(head=head, previous=at)
    name = free_name(trees.repository.root, trees.spec.run_id, branches)
    return trees.folder.update(branch=name, head=head, previous=None)


def names_of(run_id: str) -> tuple[str, ...]:
    """Return the names that the branch of a run may have, best first."""
    names = [f"ava/{run_id}", f"ava-{run_id}"]
    for number in range(2, _MAX_BRANCHES):
        names += [f"ava/{run_id}-{number}", f"ava-{run_id}-{number}"]
    return tuple(names)


def free_name(root: Path, run_id: str, branches: Iterable[str]) -> str:
    """Return a name for a run's branch that no branch of the repository has. Raises WorktreeFailed: all are taken."""
    for name in names_of(run_id):
        if _is_free(name, branches):
            return name
    raise WorktreeFailed(f"{root} already has all branches from ava/{run_id} to -{_MAX_BRANCHES - 1}; remove some")


def list_branches(joined: Git) -> dict[str, str]:
    out = joined("for-each-ref", "--format=%(refname)%00%(objectname)%00", "refs/heads/").out
    fields = os.fsdecode(out).replace("\n", "").split("\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return {name.removeprefix("refs/heads/"): object_id for name, object_id in pairs}


def _is_free(name: str, branches: Iterable[str]) -> bool:
    """Tell whether a branch can have this name: none has it, is above it or is below it."""
    name = name.lower()  # a file system may ignore case
    for branch in branches:
        other = branch.lower()
        if f"{other}/".startswith(f"{name}/") or f"{name}/".startswith(f"{other}/"):
            return False
    return True


def new_objects(git: Git, base: str, head: str) -> list[str]:
    """Return a commit's objects that its parent does not have: the commit, trees and files."""
    raw = git("diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames", base, head).names()
    objects = [head, git.line("rev-parse", f"{head}^{{tree}}")]
    for entry in raw[::2]:
        _old_mode, mode, _old, object_id, _kind = entry.split()
        is_removed = set(object_id) == {"0"}
        if mode != SUBMODULE_MODE and not is_removed:
            objects.append(object_id)
    return list(dict.fromkeys(objects))


def copy_objects(repository: UserRepository, joined: Git, git: Git, base: str, head: str) -> None:
    objects = new_objects(git, base, head)
    lines = joined("cat-file", "--batch-check=%(objectname)", stdin=lines_of(objects)).out.decode().splitlines()
    missing = [line.removesuffix(" missing") for line in lines if line.endswith(" missing")]
    if not missing:
        return
    packed = git("pack-objects", "--stdout", "-q", "--window=0", stdin=lines_of(missing)).out
    folders = sorted({repository.objects / each[:2] for each in missing})
    files = [repository.objects / each[:2] / each[2:] for each in missing]
    created = [path for path in (*folders, *files) if not path.exists()]
    joined("unpack-objects", "-q", stdin=packed)
    _give_to_owner(repository, created)


def update_branch(repository: UserRepository, joined: Git, name: str, head: str, at: str | None) -> None:
    """Make the branch, or move it on from the commit where it was seen."""
    if at == head:
        return
    parts = name.split("/")
    created: list[Path] = []
    for folder in ("refs/heads", "logs/refs/heads"):
        for depth in range(1, len(parts) + 1):
            path = repository.common.joinpath(folder, *parts[:depth])
            if not path.exists():
                created.append(path)
    # Only this run makes it, so a lock is left over from a crash. With reftable, refs/heads is a file.
    with translate_os_errors("making the branch"), suppress(NotADirectoryError):
        (repository.common / "refs/heads" / f"{name}.lock").unlink(missing_ok=True)
    joined("update-ref", "--no-deref", "-m", "ava", f"refs/heads/{name}", head, at or "0" * len(head))
    _give_to_owner(repository, [*created, *(repository.common / "reftable").glob("*")])


def lines_of(objects: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in objects).encode()


def _give_to_owner(repository: UserRepository, created: Sequence[Path]) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    with translate_os_errors("changing the owner of the branch"):
        owner = repository.objects.stat()
        if owner.st_uid == 0 and owner.st_gid == 0:
            return
        for path in created:
            if path.exists():
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


PACK = "commit.pack"
SETTINGS = "settings.json"
_MEMBERS = (PACK, SETTINGS, "exclude", "attributes", "ignore")
"""What a snapshot has: the objects, the settings, and the three files that say what git ignores and converts."""
_SMALL_BYTES = 1_000_000
_UNPACKED = 8
"""How much larger than its bound the content of a commit may be before it is compressed."""
_DEFAULTS: Mapping[str, str] = {
    "core.autocrlf": "false", "core.eol": "native", "core.ignorecase": "false",
    "user.name": "", "user.email": "", "author.name": "", "author.email": "",
    "committer.name": "", "committer.email": "", "commit.gpgsign": "false",
}  # fmt: skip
"""The settings that travel, all of them: otherwise those of the other machine's user would apply."""
_FORMAT = "extensions.objectformat"
_PACKING = ("pack-objects", "-q", "--window=0", "--no-reuse-object", "--threads=1")
"""Without deltas, so that the same objects always make the same file."""


def pack_snapshot(
    repository: Path, home: Path, commit: str, limit: int, path: Path, git_folder: str = ""
) -> str | None:
    """Write the snapshot of a commit, of at most `limit` bytes; return None, or why it does not travel. Blocking.

    It runs nothing of the repository's and changes nothing in it. The same commit and settings make the same bytes.
    `git_folder` is the approved one outside of the checkout. Raises NoRepository if the repository is gone;
    WorktreeFailed: the objects cannot be read, or the file not be written.
    """
    checkout = UserRepository.at(repository, home, accept=only(git_folder))
    with temporary_folder("packing the repository") as aside:
        git = checkout.git_folder(aside / "git", joined=False)  # git writes temporary files beside its objects
        objects = _objects_of(git, commit)
        sizes = git("cat-file", "--batch-check=%(objectsize)", stdin=lines_of(objects)).out.split()
        unpacked = sum(map(int, sizes))
        if unpacked > _UNPACKED * limit:
            return f"its files have {unpacked / 1e6:,.0f} MB"
        name = git.line("-c", "pack.compression=6", *_PACKING, str(aside / "pack"), stdin=lines_of(objects))
        pack = aside / f"pack-{name}.pack"
        size = pack.stat().st_size
        if size > limit:
            return f"it has {size / 1e6:,.0f} MB compressed"
        small = _small_members(checkout)
        with tarfile.open(path, "x", format=tarfile.USTAR_FORMAT) as tar:
            for member, data in small.items():
                tar.addfile(_member(member, len(data)), io.BytesIO(data))
            with pack.open("rb") as file:
                tar.addfile(_member(PACK, size), file)
    return None


def _small_members(checkout: UserRepository) -> dict[str, bytes]:
    """Return the content of a snapshot's files besides the pack."""
    settings = {name: checkout.settings.get(name, default) for name, default in _DEFAULTS.items()}
    object_format = checkout.settings.get(_FORMAT, "")
    if object_format:
        settings[_FORMAT] = object_format
    ignore = Path(checkout.excludes())
    return {
        SETTINGS: json.dumps(settings, sort_keys=True).encode(),
        "exclude": _info(checkout, "exclude"),
        "attributes": _info(checkout, "attributes"),
        "ignore": _read(ignore) if ignore.is_absolute() else b"",
    }


def unpack_snapshot(snapshot: Path, place: Path, beneath: Path, commit: str) -> None:
    """Make the repository of a snapshot whose bytes were checked, unless it is complete. Blocking."""
    if place.exists():
        return
    new = place.with_name(f"{place.name}.new")
    with translate_os_errors("unpacking the repository"):
        remove_tree(new)
        try:
            _check_complete(_unpack(snapshot, new / ".git", place / ".git", beneath, commit), commit)
            new.rename(place)
        except (tarfile.TarError, ValueError) as error:
            raise WorktreeFailed(f"the copy of the repository cannot be unpacked: {error}") from error
        finally:
            remove_tree(new)


def pack_branch(repository: Path, home: Path, branch: Branch, path: Path) -> None:
    """Write the new objects of a branch to a file. Blocking. Raises WorktreeFailed if this cannot be done."""
    with UserRepository.at(repository, home).joined() as git, temporary_folder("packing the branch") as aside:
        objects = new_objects(git, branch.base, branch.head)
        name = git.line(*_PACKING, str(aside / "pack"), stdin=lines_of(objects))
        shutil.copyfile(aside / f"pack-{name}.pack", path)


@dataclass(frozen=True)
class TravelledBranch:
    """A branch from another machine, as the log has it: one commit `head` on the approved `base`, in `namespace`."""

    run_id: str
    base: str
    head: str
    namespace: Sequence[str]


def has_commit(repository: Path, home: Path, commit: str, identity: tuple[str, ...] = (), git_folder: str = "") -> bool:
    """Tell whether a repository has a commit. Blocking. Raises FolderReplaced, NoRepository, WorktreeFailed."""
    with UserRepository.at(repository, home, identity, only(git_folder)).joined() as git:
        return git.run("cat-file", "-e", f"{commit}^{{commit}}").code == 0


def bring_branch(
    pack: Path,
    branch: TravelledBranch,
    repository: Path,
    home: Path,
    identity: tuple[str, ...] = (),
    accept: Accept = NOTHING_OUTSIDE,
) -> str:
    """Make a branch of a repository from a pack; return its name. Blocking; the checkout and the index stay.

    The bytes of the pack were checked. An existing branch is never changed: if it is another one, the new branch gets
    another name. `identity` is the approved one of the repository; empty accepts any that has the approved commit.
    `accept` decides about a git folder outside of the checkout. Raises FolderReplaced if the repository is not the
    approved one; NoRepository: it is gone, or lacks the commit that the branch begins at; WorktreeFailed: the pack is
    not that branch.
    """
    checkout = UserRepository.at(repository, home, identity, accept)
    with temporary_folder("bringing the branch") as aside:
        git = checkout.git_folder(aside / "git", joined=False)
        if git.run("cat-file", "-e", f"{branch.base}^{{commit}}").code != 0:
            raise NoRepository(f"{repository} lacks the commit {branch.base} that the branch begins at; fetch it first")
        _index(git, pack)
        _check_branch(git, branch)
        with checkout.joined() as joined:
            branches = list_branches(joined)
            for name in names_of(branch.run_id):
                if branches.get(name) == branch.head:
                    return name
            name = free_name(repository, branch.run_id, branches)
            copy_objects(checkout, joined, git, branch.base, branch.head)
            update_branch(checkout, joined, name, branch.head, None)
    return name


def _check_branch(git: Git, branch: TravelledBranch) -> None:
    """Raise WorktreeFailed unless a commit follows the approved one, and changes only what was approved."""
    if git.run("cat-file", "-e", f"{branch.head}^{{commit}}").code != 0:
        raise WorktreeFailed(f"what was stored as the branch of {branch.run_id} lacks its commit {branch.head}")
    parents = git.line("rev-parse", f"{branch.head}^@").split()
    if parents != [branch.base]:
        raise WorktreeFailed(f"the commit {branch.head} does not follow the approved commit {branch.base}")
    for file in changed_files(git, branch.base, branch.head):
        if not within(branch.namespace, file.path):
            raise WorktreeFailed(f"the branch changes {shown(file.path)}, which {branch.run_id} may not change")


def _objects_of(git: Git, commit: str) -> list[str]:
    objects: set[str] = set()
    for entry in git("ls-tree", "-r", "-t", "-z", "--full-tree", commit).names():
        _mode, kind, object_id = entry.partition("\t")[0].split()
        if kind != "commit":
            objects.add(object_id)
    return [commit, git.line("rev-parse", f"{commit}^{{tree}}"), *sorted(objects)]


def _info(checkout: UserRepository, name: str) -> bytes:
    with closing(Root.open(checkout.common)) as root, suppress(ToolFailed):
        return root.read(f"info/{name}", _SMALL_BYTES)[0]
    return b""


def _read(path: Path) -> bytes:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= _SMALL_BYTES:
            return path.read_bytes()
    return b""


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


def _unpack(snapshot: Path, own: Path, later: Path, beneath: Path, commit: str) -> Git:
    """Write the files of a snapshot into a new git directory, which is moved to `later` afterwards."""
    program = git_program(beneath)
    if program is None:
        raise WorktreeFailed(NO_GIT)
    for name in ("objects/pack", "info", "refs/heads"):
        make_folders(own / name, beneath)
    files: dict[str, bytes] = {}
    pack = own / "objects" / "pack" / f"pack-{commit}.pack"
    with tarfile.open(snapshot, "r:") as tar:
        for member in tar:
            is_expected = member.name in _MEMBERS and member.name not in files
            if not is_expected or not member.isreg():
                raise ValueError(f"it has {shown(member.name)}")
            source = tar.extractfile(member)
            assert source is not None, "it is a regular file"
            if member.name == PACK:
                with pack.open("xb") as file:
                    shutil.copyfileobj(source, file, _SMALL_BYTES)
                files[PACK] = b""
            else:
                files[member.name] = source.read(_SMALL_BYTES)
    if set(files) != set(_MEMBERS):
        raise ValueError(f"it lacks {min(set(_MEMBERS) - set(files))}")
    for name in ("exclude", "attributes"):
        (own / "info" / name).write_bytes(files[name])
    (own / "info" / "ignore").write_bytes(files["ignore"])
    (own / "shallow").write_text(f"{commit}\n")
    (own / "config").write_text(_config_text(json.loads(files[SETTINGS]), later / "info" / "ignore"), "utf-8")
    (own / "HEAD").write_text(f"{commit}\n")
    return Git(program, own)


def _config_text(settings_json: Any, ignore: Path) -> str:
    values = cast("dict[str, Any]", settings_json) if isinstance(settings_json, dict) else {}
    settings = {name: str(values.get(name, default)) for name, default in _DEFAULTS.items()}
    settings["core.excludesfile"] = str(ignore)
    version = 1 if values.get(_FORMAT) else 0
    lines = ["[core]", f"\trepositoryformatversion = {version}", "\tbare = false"]
    if str(values.get(_FORMAT, "")):
        object_format = "sha256" if values[_FORMAT] == "sha256" else "sha1"
        lines.append(f'[extensions]\n\tobjectformat = "{object_format}"')
    for name, value in settings.items():
        section, _dot, key = name.partition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("\0", "")
        lines.append(f'[{section}]\n\t{key} = "{escaped}"')
    return "\n".join(lines) + "\n"


def _index(git: Git, pack: Path) -> None:
    """Add a pack to a git directory; git computes the name of each object from its bytes."""
    folder = git.own / "objects" / "pack"
    make_folders(folder, git.own)
    place = folder / "pack-0.pack"
    with translate_os_errors("copying the pack"):
        shutil.copyfile(pack, place)
    git("index-pack", "--strict", str(place))


def _check_complete(git: Git, commit: str) -> None:
    git("index-pack", str(git.own / "objects" / "pack" / f"pack-{commit}.pack"))
    objects = _objects_of(git, commit)
    lines = git("cat-file", "--batch-check=%(objectname)", stdin=lines_of(objects)).out.split(b"\n")
    if any(line.endswith(b" missing") for line in lines):
        raise WorktreeFailed(f"the copy of the repository lacks files of the commit {commit}")
