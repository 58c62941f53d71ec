"""Publication of work: a branch in the user's repository.

Objects go into the user's repository, then one branch points to them, and nothing else. The branch is made through a
git directory of Ava's that shares the user's branches and none of their configuration, so no hook runs. git itself
takes the locks.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ava_roles.errors import WorktreeFailed
from ava_roles.texts.encodings import describe_change_of_encoding
from ava_roles.worktree.repository import (
    SUBMODULE_MODE,
    Git,
    UserRepository,
    filtered_files,
    translate_os_errors,
)
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
_MAX_COMPARED = 500
_MAX_BRANCHES = 50
_LINK_MODE = "120000"
_MAX_LINKS = 100
_MAX_LINK_BYTES = 500
_FALLBACK_NAME = "Ava"
_FALLBACK_EMAIL = "ava@localhost"


def is_test(path: str) -> bool:
    """Tell by its path from the root whether a file is a test, or a setting that decides which tests run."""
    *folders, name = path.split("/")
    if name.lower() in _TEST_SETTINGS or path.startswith(".cargo/"):
        return True
    if _TEST_CONFIG.fullmatch(name) or _TEST_FILE.fullmatch(name):
        return True
    return not _TEST_FOLDERS.isdisjoint(map(str.lower, folders))


def _is_named(path: str, words: Iterable[str]) -> bool:
    """Tell whether one of these words of commands and runners means a file. It may be the program that is verified."""
    return any(_names_file(word, path) for word in words)


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
        test = is_test(name)
        named = not test and _is_named(name, words)
        files.append(ChangedFile(name, added_lines, removed_lines, kind, test, links.get(name), named))
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
    user_name = _valid_ident(settings.get("user.name", ""))
    user_email = _valid_ident(settings.get("user.email", ""))
    name = user_name or _FALLBACK_NAME
    email = user_email or _FALLBACK_EMAIL
    if not user_name or not user_email:
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
