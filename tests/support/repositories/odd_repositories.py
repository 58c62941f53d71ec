"""Repositories that are odd or hostile, each with what it takes to make it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from support.repositories.projects import git, write
from support.repositories.workshops import PROJECT, project

Builder = Callable[[Path, Path], Path]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12345\n"
HOOKS = (
    "post-checkout", "pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-index-change",
    "pre-push",
    "post-merge", "post-rewrite", "pre-auto-gc", "prepare-commit-msg", "fsmonitor-watchman", "update", "post-update",
)  # fmt: skip


def _after(*command: str) -> Builder:
    """Return what makes a repository and runs one command of git in it."""

    def build(folder: Path, _mark: Path) -> Path:
        repository = project(folder)
        git(repository, *command)
        return repository

    return build


def write_marking_program(path: Path, mark: Path, then: str = "exit 1") -> Path:
    """Write a program that leaves a mark."""
    write(path.parent, {path.name: f"#!/bin/sh\ntouch '{mark}'\n{then}\n"})
    return path


def _hooks(folder: Path, mark: Path) -> Path:
    repository = project(folder)
    for name in HOOKS:
        write_marking_program(repository / ".git/hooks" / name, mark)
    return repository


def _hooks_elsewhere(folder: Path, mark: Path) -> Path:
    repository = project(folder)
    for name in HOOKS:
        write_marking_program(folder.parent / "hooks" / name, mark, "sleep 600")
    git(repository, "config", "core.hooksPath", str(folder.parent / "hooks"))
    return repository


def _fsmonitor(folder: Path, mark: Path) -> Path:
    repository = project(folder)
    git(repository, "config", "core.fsmonitor", str(write_marking_program(folder.parent / "monitor", mark)))
    return repository


def _filters(folder: Path, mark: Path) -> Path:
    repository = project(
        folder, {**PROJECT, "data.bin": "data\n", ".gitattributes": "*.bin filter=mine\ncalc.py filter=mine\n"}
    )
    program = write_marking_program(folder.parent / "filter", mark, "cat")
    for name in ("clean", "smudge", "process"):
        git(repository, "config", f"filter.mine.{name}", str(program))
    git(repository, "config", "filter.mine.required", "true")
    git(repository, "config", "include.path", str(folder.parent / "more"))
    (folder.parent / "more").write_text(
        f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\tsshCommand = {program}\n"
    )
    return repository


def _lfs(folder: Path, mark: Path) -> Path:
    files = {**PROJECT, "big.bin": POINTER, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"}
    repository = project(folder, files)
    program = write_marking_program(folder.parent / "lfs", mark)
    for name in ("clean", "smudge", "process"):
        git(repository, "config", f"filter.lfs.{name}", str(program))
    return repository


def _programs(folder: Path, mark: Path) -> Path:
    repository = project(folder, {**PROJECT, ".gitattributes": "*.py diff=mine merge=mine\n"})
    program = str(write_marking_program(folder.parent / "program", mark))
    names = "diff.external diff.mine.textconv diff.mine.command merge.mine.driver gpg.program core.editor"
    for name in (*names.split(), "core.alternateRefsCommand", "credential.helper", "uploadpack.packObjectsHook"):
        git(repository, "config", name, program)
    git(repository, "config", "commit.gpgSign", "true")
    git(repository, "config", "gc.auto", "1")
    return repository


def _sparse(folder: Path, _mark: Path) -> Path:
    repository = project(folder)
    git(repository, "stash", "push", "-q", "-u")
    git(repository, "sparse-checkout", "set", "--no-cone", "/docs/")
    assert not (repository / "calc.py").exists()
    return repository


def _sha256(folder: Path, _mark: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "--object-format=sha256")
    return project(folder)


def _linked(folder: Path, _mark: Path) -> Path:
    main = project(folder.parent / "main")
    git(main, "worktree", "add", "-q", "-b", "side", str(folder))
    return folder


def _shallow(folder: Path, _mark: Path) -> Path:
    main = project(folder.parent / "main")
    git(main, "commit", "-qm", "second")
    git(folder.parent, "clone", "-q", "--depth=1", main.as_uri(), str(folder))
    git(folder, "config", "user.name", "Kim Person")
    git(folder, "config", "user.email", "kim@example.org")
    return folder


def _alternates(folder: Path, _mark: Path) -> Path:
    main = project(folder.parent / "main")
    git(folder.parent, "clone", "-q", "--shared", str(main), str(folder))
    main.rename(folder / ".git" / "main")
    (folder / ".git/objects/info/alternates").write_text("../main/.git/objects\n")
    return folder


def _packed(folder: Path, _mark: Path) -> Path:
    repository = project(folder)
    git(repository, "gc", "-q", "--prune=now")
    git(repository, "pack-refs", "--all", "--prune")
    assert not (repository / ".git/refs/heads/master").exists()
    return repository


def _submodule(folder: Path, _mark: Path) -> Path:
    inner = project(folder.parent / "inner")
    repository = project(folder)
    git(repository, "submodule", "add", "-q", str(inner), "sub/inner")
    git(repository, "submodule", "add", "-q", str(inner), "sub/empty")
    git(repository, "commit", "-qm", "submodules")
    git(repository, "submodule", "deinit", "-q", "-f", "sub/empty")
    return repository


def _replaced(folder: Path, _mark: Path) -> Path:
    repository = project(folder)
    first = git(repository, "rev-parse", "HEAD").strip()
    (repository / "calc.py").write_text("replaced\n")
    git(repository, "commit", "-qam", "replacing")
    git(repository, "replace", first, "HEAD")
    git(repository, "reset", "-q", "--hard", first)
    second = git(repository, "rev-parse", "HEAD").strip()
    (repository / ".git/info/grafts").write_text(f"{second}\n")
    git(repository, "--no-replace-objects", "checkout", "-q", "--", ".")
    return repository


def make_odd_names(folder: Path, _mark: Path) -> Path:
    """Make a repository whose files have odd names."""
    repository = project(folder)
    names = ["new\nline.txt", 'qu"ote.txt', "-dash.txt", "tab\t.txt", "A.txt", "a.txt", "ü.txt", ":(glob)x", "a\\b.txt"]
    for name in names:
        (repository / name).write_text(f"{name}\n")
    Path(os.fsdecode(os.fsencode(repository) + b"/\xff\xfe.txt")).write_text("not a text\n")
    deep = repository / "/".join(["d" * 100] * 20)
    deep.mkdir(parents=True)
    (deep / "deep.txt").write_text("deep\n")
    write(repository, {"bin/run": "#!/bin/sh\necho run\n"})
    (repository / "out").symlink_to("/etc")
    (repository / "dangling").symlink_to("nowhere")
    (repository / "empty").mkdir()
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "odd names")
    return repository


def make_converted(folder: Path, _mark: Path) -> Path:
    """Make a repository whose attributes convert line ends and characters."""
    repository = project(folder)
    attributes = "*.bat eol=crlf\n*.u16 working-tree-encoding=UTF-16LE\n*.id ident\n*.mixed text\n"
    (repository / ".gitattributes").write_text(attributes)
    (repository / "run.bat").write_bytes(b"echo\r\nend\r\n")
    (repository / "text.u16").write_bytes("über\n".encode("utf-16-le"))
    (repository / "this.id").write_text("$Id$\n")
    git(repository, "add", "-A")
    (repository / "raw").write_bytes(b"one\r\ntwo\r\n")
    blob = git(repository, "hash-object", "-w", "--no-filters", "raw").strip()
    (repository / "raw").unlink()
    git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},odd.mixed")
    git(repository, "commit", "-qm", "converted")
    (repository / "this.id").unlink()
    git(repository, "checkout", "-q", "-f", "--", ".")
    return repository


def _autocrlf(folder: Path, _mark: Path) -> Path:
    repository = project(folder)
    git(repository, "config", "core.autocrlf", "true")
    return repository


def _locked(folder: Path, _mark: Path) -> Path:
    repository = project(folder)
    for name in ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "gc.pid", "shallow.lock"):
        (repository / ".git" / name).write_text("")
    return repository


def _odd_folder(folder: Path, _mark: Path) -> Path:
    return project(folder.parent / '"odd" #\n: \\folder')


def _separate(folder: Path, _mark: Path) -> Path:
    folder.mkdir()
    (folder.parent / "main").mkdir()
    git(folder, "init", "-q", f"--separate-git-dir={folder.parent / 'main' / '.git'}")
    git(folder, "config", "core.worktree", str(folder))
    return project(folder)


REPOSITORIES: Mapping[str, Builder] = {
    "odd folder": _odd_folder,
    "plain": lambda folder, _mark: project(folder),
    "hooks that fail": _hooks,
    "hooks elsewhere that hang": _hooks_elsewhere,
    "fsmonitor": _fsmonitor,
    "filters": _filters,
    "git lfs": _lfs,
    "programs": _programs,
    "detached": _after("checkout", "-q", "--detach"),
    "sparse": _sparse,
    "sha256": _sha256,
    "linked worktree": _linked,
    "separate git folder": _separate,
    "shallow": _shallow,
    "alternates": _alternates,
    "packed": _packed,
    "submodules": _submodule,
    "replaced and grafted": _replaced,
    "odd names": make_odd_names,
    "converted": make_converted,
    "autocrlf": _autocrlf,
    "locks": _locked,
    "split index": _after("update-index", "--split-index", "--untracked-cache"),
    "no logs": _after("config", "core.logAllRefUpdates", "false"),
}
