"""Publication of work: its objects go into the user's repository, then one branch points to them, and nothing else.

The branch is made through a git directory of Ava's that shares the user's branches and none of their configuration, so
no hook runs. git itself takes the locks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ava_roles.errors import WorktreeFailed
from ava_roles.worktree.repository import Git, UserRepository, filtered_files, translate_os_errors
from ava_roles.worktree.spec import Branch, ChangedFile
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
_MAX_BRANCHES = 50
_LINK_MODE, _MAX_LINKS, _MAX_LINK_BYTES = "120000", 100, 500
_FALLBACK_AUTHOR = ("Ava", "ava@localhost")


def is_test(path: str, words: Iterable[str] = ()) -> bool:
    """Tell whether a file (from the root) is a test, or controls a verify command, by words of commands and runners."""
    if any(_names_file(word, path) for word in words):
        return True
    *folders, name = path.split("/")
    if name.lower() in _TEST_SETTINGS or _TEST_CONFIG.fullmatch(name) or path.startswith(".cargo/"):
        return True
    return not _TEST_FOLDERS.isdisjoint(map(str.lower, folders)) or _TEST_FILE.fullmatch(name) is not None


def _names_file(word: str, path: str) -> bool:
    """Tell whether a word of a command means a file: its path, or a program or module that the file shadows."""
    word = word.removeprefix("./")
    if path == word:
        return True
    module = word.replace(".", "/")
    return "/" not in word and path in (f"{module}.py", f"{module}/__main__.py", f"{module}/__init__.py")


def _command_words(git: Git, commit: str, commands: Sequence[str]) -> set[str]:
    words = {word for line in commands for word in _SEPARATORS.split(line) if word}
    files = set(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names())
    for name in files & {*_RUNNERS, *(word.removeprefix("./") for word in words)}:
        text = git("cat-file", "blob", f"{commit}:{name}").out[:_MAX_FILE_CHARS].decode("utf-8", "replace")
        words |= {word.removeprefix("./") for word in _SEPARATORS.split(text) if "/" in word or "." in word}
    return words


def changed_files(git: Git, base: str, head: str, commands: Sequence[str] = ()) -> tuple[ChangedFile, ...]:
    """Return the files that differ between commits or trees, a renamed one twice; `commands` decide on the work."""
    raw = git("diff-tree", "-r", "-z", "--raw", "--no-abbrev", *_DIFF_OPTIONS, base, head).names()
    kinds: dict[str, _Kind] = {}
    links: dict[str, str] = {}
    for entry, name in zip(raw[::2], raw[1::2], strict=True):
        _old_mode, mode, _old, blob, letter = entry.removeprefix(":").split()
        kinds[name] = _KINDS.get(letter, "changed")
        if mode == _LINK_MODE:
            target = git("cat-file", "blob", blob).out[:_MAX_LINK_BYTES] if len(links) < _MAX_LINKS else b"?"
            links[name] = target.decode("utf-8", "replace")
    counts: dict[str, tuple[int, int]] = {}
    for line in git("diff-tree", "-r", "-z", "--numstat", *_DIFF_OPTIONS, base, head).names():
        added, removed, name = line.split("\t", 2)
        counts[name] = (int(added) if added.isdigit() else 0, int(removed) if removed.isdigit() else 0)
    words = _command_words(git, base, commands)
    return tuple(
        ChangedFile(name, *counts.get(name, (0, 0)), kind, is_test(name, words), links.get(name))
        for name, kind in sorted(kinds.items())
    )


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
    if filtered := filtered_files(git, head, [each.path for each in changed if each.kind != "removed"]):
        # Only their number: the model chose the names.
        files = "1 changed file" if len(filtered) == 1 else f"{len(filtered):,} changed files"
        notes.append(f"no git filter was run, although {files} would pass through one")
    return Branch(record.branch, record.base, head, changed, tree, tuple(notes))


def _commit(repository: UserRepository, git: Git, tree: str, base: str, message: str, notes: list[str]) -> str:
    settings = repository.settings
    name, email = _valid_ident(settings.get("user.name", "")), _valid_ident(settings.get("user.email", ""))
    if not name or not email:
        name, email = name or _FALLBACK_AUTHOR[0], email or _FALLBACK_AUTHOR[1]
        notes.append(f"git has no user.name or user.email here, so the commit's author is {name} <{email}>")
    when = f"{int(time.time())} {time.strftime('%z')}"
    variables = {**git.variables}
    for who in ("author", "committer"):
        variables |= {
            f"GIT_{who.upper()}_NAME": _valid_ident(settings.get(f"{who}.name", "")) or name,
            f"GIT_{who.upper()}_EMAIL": _valid_ident(settings.get(f"{who}.email", "")) or email,
            f"GIT_{who.upper()}_DATE": when,
        }
    plain = Git(git.program, git.own, variables=variables, inherited=git.inherited)
    text = message.replace("\0", "").strip() + "\n"
    return plain.line("commit-tree", tree, "-p", base, stdin=text.encode("utf-8", "replace"))


def _valid_ident(text: str) -> str:
    """Return a name or an address; empty if it only has characters that git strips, because git would refuse it."""
    return text if any(char > " " and char not in ".,:;<>\"\\'" for char in text) else ""


def _tree_of(git: Git, commit: str) -> str:
    done = git.run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
    return os.fsdecode(done.out).strip() if done.code == 0 else ""


def _record_branch(trees: Trees, record: WorktreeRecord, head: str, branches: Mapping[str, str]) -> WorktreeRecord:
    if record.branch is not None:
        at = branches.get(record.branch)
        if at in (record.head, record.previous) if at is not None else _is_free(record.branch, branches):
            return record if record.head == head else trees.folder.update(head=head, previous=at)
    name = free_name(trees.repository.root, trees.spec.run_id, branches)
    return trees.folder.update(branch=name, head=head, previous=None)


def names_of(run_id: str) -> tuple[str, ...]:
    first = (f"ava/{run_id}", f"ava-{run_id}")
    return (*first, *(f"{name}-{number}" for number in range(2, _MAX_BRANCHES) for name in first))


def free_name(root: Path, run_id: str, branches: Iterable[str]) -> str:
    """Return a name for a run's branch that no branch of the repository has. Raises WorktreeFailed: all are taken."""
    name = next((name for name in names_of(run_id) if _is_free(name, branches)), None)
    if name is None:
        raise WorktreeFailed(f"{root} already has all branches from ava/{run_id} to -{_MAX_BRANCHES - 1}; remove some")
    return name


def list_branches(joined: Git) -> dict[str, str]:
    out = joined("for-each-ref", "--format=%(refname)%00%(objectname)%00", "refs/heads/").out
    fields = os.fsdecode(out).replace("\n", "").split("\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return {name.removeprefix("refs/heads/"): object_id for name, object_id in pairs}


def _is_free(name: str, branches: Iterable[str]) -> bool:
    """Tell whether a branch can have this name: none has it, is above it or is below it."""
    low = name.lower()  # a file system may ignore case
    others = [each.lower() for each in branches]
    return not any(each == low or each.startswith(f"{low}/") or low.startswith(f"{each}/") for each in others)


def new_objects(git: Git, base: str, head: str) -> list[str]:
    """Return a commit's objects that its parent does not have: the commit, trees and files."""
    raw = git("diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames", base, head).names()
    new = [words[3] for entry in raw[::2] if (words := entry.split())[1] != "160000" and set(words[3]) != {"0"}]
    return list(dict.fromkeys([head, git.line("rev-parse", f"{head}^{{tree}}"), *new]))


def copy_objects(repository: UserRepository, joined: Git, git: Git, base: str, head: str) -> None:
    wanted = new_objects(git, base, head)
    listed = joined("cat-file", "--batch-check=%(objectname)", stdin=lines_of(wanted)).out.decode().splitlines()
    missing = [each.removesuffix(" missing") for each in listed if each.endswith(" missing")]
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
    ways = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    paths = [repository.common / above / way for above in ("refs/heads", "logs/refs/heads") for way in ways]
    created = [path for path in paths if not path.exists()]
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
