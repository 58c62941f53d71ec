"""How work becomes a branch of the user's repository: its objects first, then one reference, and nothing else.

The reference is made through a git directory of ours that has their branches and none of their configuration, so that
no hook runs; git itself locks what has to be locked.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ava_roles.errors import WorktreeFailed
from ava_roles.worktree.git import Git, UserRepository, translate_os_errors
from ava_roles.worktree.spec import Branch, ChangedFile
from ava_roles.worktree.state import WorktreeRecord
from ava_roles.worktree.trees import Trees
from ava_roles.worktree.verify import filtered_files

_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
_Kind = Literal["added", "changed", "removed"]
_KINDS: dict[str, _Kind] = {"A": "added", "D": "removed"}
_DECIDES = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
        "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "noxfile.py",
        "sitecustomize.py", "usercustomize.py", ".coveragerc", "package.json", ".npmrc", ".mocharc.json", ".mocharc.js",
        ".mocharc.cjs",
        ".mocharc.yml", ".mocharc.yaml", "makefile", "gnumakefile", "justfile", "cargo.toml", "build.rs",
        "go.mod", "go.work", "cmakelists.txt", "tsconfig.json", ".gitattributes", ".gitignore",
    }
)  # fmt: skip
_CONFIGURED = re.compile(r"(jest|vitest|vite|karma|playwright|cypress|ava|babel|nyc)(\.[a-z]+)*\.config\.[a-z]+", re.I)
_FOLDERS = frozenset(
    {"test", "tests", "__tests__", "spec", "specs", "testing", "testdata", "__snapshots__", "__mocks__"}
)
_TEST = re.compile(
    r"(test_.*|.*_test|.*_spec|tests?|.*[._-](test|tests|spec))\.[a-z0-9]+|.*(Test|Tests|Spec|IT)\.(java|kt|scala|cs|swift)",
)


_SAYS = (
    "Makefile", "makefile", "GNUmakefile", "justfile", "package.json", "tox.ini", "noxfile.py", "pyproject.toml",
    "setup.cfg",
)  # fmt: skip
"""Files at the root that say what a command such as `make test` runs."""
_NO_PART = re.compile(r"[\s;&|()<>'\"=,:\[\]{}`$]+")
_SAID_MOST = 200_000


def is_test(path: str, words: Iterable[str] = ()) -> bool:
    """Tell whether a path is a test, or decides what a verify command runs.

    Args:
        path: The file, relative to the root.
        words: The words of the commands, and of files that say what these run: a path, a program or a module.
    """
    if any(_is_meant(path, word) for word in words):
        return True
    *folders, name = path.split("/")
    if name.lower() in _DECIDES or _CONFIGURED.fullmatch(name) or path.startswith(".cargo/"):
        return True
    return not _FOLDERS.isdisjoint(folder.lower() for folder in folders) or _TEST.fullmatch(name) is not None


def _is_meant(path: str, word: str) -> bool:
    """Tell whether a word of a command means a file: by its path, or as a program or module that the file shadows."""
    word = word.removeprefix("./")
    if path == word:
        return True
    module = word.replace(".", "/")
    return "/" not in word and path in (f"{module}.py", *(f"{module}/{part}.py" for part in ("__main__", "__init__")))


def _words(git: Git, commit: str, commands: Sequence[str]) -> set[str]:
    """Return the words of commands, and of what they name or take their orders from, as a commit has it."""
    words = {word for line in commands for word in _NO_PART.split(line) if word}
    there = set(git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).names())
    says = [name for name in {*_SAYS, *(word.removeprefix("./") for word in words)} if name in there]
    for name in says:
        said = git("cat-file", "blob", f"{commit}:{name}").out[:_SAID_MOST].decode("utf-8", "replace")
        words |= {word.removeprefix("./") for word in _NO_PART.split(said) if "/" in word or "." in word}
    return words


def changed_files(git: Git, base: str, head: str, commands: Sequence[str] = ()) -> tuple[ChangedFile, ...]:
    """Return what differs between two commits or trees, file by file; a renamed one is removed and added.

    Args:
        git: git, with our directory.
        base: What the work began at.
        head: What it came to.
        commands: The command lines that decide whether the work passes.
    """
    status = git("diff-tree", "-r", "-z", "--name-status", *_PLAIN, base, head).names()
    kinds: dict[str, _Kind] = {}
    for letter, name in zip(status[::2], status[1::2], strict=True):
        kinds[name] = _KINDS.get(letter, "changed")
    counted: dict[str, tuple[int, int]] = {}
    for line in git("diff-tree", "-r", "-z", "--numstat", *_PLAIN, base, head).names():
        added, removed, name = line.split("\t", 2)
        counted[name] = (int(added) if added.isdigit() else 0, int(removed) if removed.isdigit() else 0)
    words = _words(git, base, commands)
    return tuple(
        ChangedFile(name, *counted.get(name, (0, 0)), kind, is_test(name, words))
        for name, kind in sorted(kinds.items())
    )


def unified_diff(git: Git, base: str, head: str) -> str:
    """Return the unified diff of two commits."""
    said = git("diff-tree", "-r", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", base, head)
    return said.out.decode("utf-8", "replace")


_NAMES = 50
_FALLBACK = ("Ava", "ava@localhost")


def publish_branch(trees: Trees, message: str) -> Branch | None:
    """Commit what differs from the base, and make the branch; None where nothing differs. Blocking.

    Called again, after a crash or not, it leads to the same branch; where more has been done since, the branch goes on.

    Raises:
        WorktreeFailed: It cannot be kept.
    """
    tree = trees.candidate()
    kept = trees.place.known()
    git = trees.git
    if tree == git.line("rev-parse", f"{kept.base}^{{tree}}"):
        return None
    notes: list[str] = []
    head = kept.head
    if head is None or _tree_of(git, head) != tree:
        head = _committed(trees.theirs, git, tree, kept.base, message, notes)
    with trees.theirs.joined() as joined:
        there = _branches(joined)
        kept = _named(trees, kept, head, there)
        assert kept.branch is not None
        found = changed_files(git, kept.base, head, (trees.order.verify, trees.order.setup or ""))
        _bring(trees, joined, git, kept.base, head)
        _refer(trees.theirs, joined, kept.branch, head, there.get(kept.branch))
    if through := filtered_files(
        git, head, [each.path for each in found if each.kind != "removed"]
    ):  # no names: not our words
        files = "1 changed file" if len(through) == 1 else f"{len(through):,} changed files"
        notes.append(f"no git filter was run, and {files} would have gone through one")
    return Branch(kept.branch, kept.base, head, found, tree, tuple(notes))


def _committed(theirs: UserRepository, git: Git, tree: str, base: str, message: str, notes: list[str]) -> str:
    """Make the commit, in our own objects, in the name of the user."""
    settings = theirs.settings
    name, email = _usable(settings.get("user.name", "")), _usable(settings.get("user.email", ""))
    if not name or not email:
        name, email = name or _FALLBACK[0], email or _FALLBACK[1]
        notes.append(f"git has no user.name or user.email here, so the commit's author is {name} <{email}>")
    when = f"{int(time.time())} {time.strftime('%z')}"
    variables = {**git.variables}
    for who in ("author", "committer"):
        variables |= {
            f"GIT_{who.upper()}_NAME": _usable(settings.get(f"{who}.name", "")) or name,
            f"GIT_{who.upper()}_EMAIL": _usable(settings.get(f"{who}.email", "")) or email,
            f"GIT_{who.upper()}_DATE": when,
        }
    ours = Git(git.program, git.own, variables=variables, held=git.held)
    return ours.line("commit-tree", tree, "-p", base, stdin=_clean(message).encode("utf-8", "replace"))


def _usable(who: str) -> str:
    """Return a name or an address; nothing where git would refuse it, for being only signs that it strips off."""
    return who if any(char > " " and char not in ".,:;<>\"\\'" for char in who) else ""


def _clean(message: str) -> str:
    return message.replace("\0", "").strip() + "\n"


def _tree_of(git: Git, commit: str) -> str:
    """Return the tree of a commit; empty where it is not there."""
    said = git.said("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
    return os.fsdecode(said.out).strip() if said.code == 0 else ""


def _named(trees: Trees, kept: WorktreeRecord, head: str, there: Mapping[str, str]) -> WorktreeRecord:
    """Find the branch's name, and write it down before the branch is there."""
    if kept.branch is not None:
        at = there.get(kept.branch)
        if at in (kept.head, kept.previous) if at is not None else _free(kept.branch, there):
            return kept if kept.head == head else trees.place.note(head=head, previous=at)
    run_id = trees.order.run_id
    first = (f"ava/{run_id}", f"ava-{run_id}")
    further = (f"{name}-{number}" for number in range(2, _NAMES) for name in first)
    name = next((name for name in (*first, *further) if _free(name, there)), None)
    if name is None:
        raise WorktreeFailed(f"{trees.theirs.root} has all of the branches ava/{run_id} to -{_NAMES - 1}; remove some")
    return trees.place.note(branch=name, head=head, previous=None)


def _branches(joined: Git) -> dict[str, str]:
    said = joined("for-each-ref", "--format=%(refname)%00%(objectname)%00", "refs/heads/").out
    words = os.fsdecode(said).replace("\n", "").split("\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name.removeprefix("refs/heads/"): object_id for name, object_id in pairs}


def _free(name: str, there: Iterable[str]) -> bool:
    """Tell whether a branch of this name can be: no other is called so, lies above it or beneath it."""
    low = name.lower()
    names = [each.lower() for each in there]  # as a file system has them that knows no case
    return not any(each == low or each.startswith(f"{low}/") or low.startswith(f"{each}/") for each in names)


def _bring(trees: Trees, joined: Git, git: Git, base: str, head: str) -> None:
    """Bring a commit's objects into the user's repository; what is there already stays as it is."""
    raw = git("diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames", base, head).names()
    new = [words[3] for entry in raw[::2] if (words := entry.split())[1] != "160000" and set(words[3]) != {"0"}]
    wanted = list(dict.fromkeys([head, git.line("rev-parse", f"{head}^{{tree}}"), *new]))
    asked = joined("cat-file", "--batch-check=%(objectname)", stdin=_ids(wanted)).out.decode().splitlines()
    missing = [each.removesuffix(" missing") for each in asked if each.endswith(" missing")]
    if not missing:
        return
    packed = git("pack-objects", "--stdout", "-q", "--window=0", stdin=_ids(missing)).out
    made = _made(trees.theirs, missing)
    joined("unpack-objects", "-q", stdin=packed)
    _hand_over(trees.theirs, made)


def _refer(theirs: UserRepository, joined: Git, name: str, head: str, at: str | None) -> None:
    """Make the branch, or move our own on from where it was seen to be."""
    if at == head:
        return
    made = [theirs.common / above / part for above in ("refs/heads", "logs/refs/heads") for part in _ways(name)]
    new = [path for path in made if not path.exists()]
    with translate_os_errors("making the branch"):  # nobody else makes it, so a lock on it is what a crash has left
        (theirs.common / "refs/heads" / f"{name}.lock").unlink(missing_ok=True)
    joined("update-ref", "--no-deref", "-m", "ava", f"refs/heads/{name}", head, at or "0" * len(head))
    _hand_over(theirs, new)


def _ways(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _ids(objects: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in objects).encode()


def _made(theirs: UserRepository, objects: Sequence[str]) -> list[Path]:
    """Return the files and folders that objects are going to be, as far as they are not there yet."""
    folders = {theirs.objects / each[:2] for each in objects}
    files = [theirs.objects / each[:2] / each[2:] for each in objects]
    return [path for path in (*sorted(folders), *files) if not path.exists()]


def _hand_over(theirs: UserRepository, made: Sequence[Path]) -> None:
    """Give what root has made in a repository to the user whose it is."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    with translate_os_errors("handing the branch over"):
        owner = theirs.objects.stat()
        if owner.st_uid == 0 and owner.st_gid == 0:
            return
        for path in made:
            if path.exists():
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
