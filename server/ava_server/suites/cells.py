"""What a suite asks for: its cases times the columns times the tries, and which of that the log has already.

A cell is one try of one case in one column. Its `task_id` names the suite, the round and a hash of all that decides the
answer: the arguments, the files, the role's text and the model. So the log alone says what was done and paid. A changed
role or case is another cell, and a changed check is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ava_audit.rows import WAITING, RunRow
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_server.budget.caps import SHARED_CAPS
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError, BadInput, ConfigError
from ava_server.core.files import is_own, make_private_folder
from ava_server.core.names import named
from ava_server.evals.case import SUITE, Case, SuiteFaults, TomlFile, argument_faults, load_cases, read_toml
from ava_server.models.model_choice import OFFLINE, Choice, ModelSettings, choose
from ava_server.run_config.config import config_of

if TYPE_CHECKING:
    from ava_roles.catalog import Catalog
    from ava_roles.role import Role

_PACKAGE = Path(__file__).parents[1]
SHIPPED = (_PACKAGE / "_suites", _PACKAGE.parents[1] / "examples" / "suites")
"""Where the shipped suites are: in the installed package, or beside it in a checkout."""
_NAME = re.compile(r"[^a-z0-9-]+")
_NAME_CHARS, _ID_CHARS = 24, 60
CAP = "max_cost_cents"
_OWN_FAULTS = frozenset({"bad_output", "bad_answer", "refusal", "verification"})
"""Kinds of errors that tell something about the model; after any other, a try has no verdict and is made again."""


class _SuiteFile(TomlFile):
    """`suite.toml`: what the suite is about, and arguments for all of its cases that do not give their own."""

    about: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])

    def faults(self) -> list[tuple[tuple[str | int, ...], str]]:
        return list(argument_faults(self.arguments, "researcher", "a task"))


@dataclass(frozen=True)
class Suite:
    """A suite: its name, as the log has it, and its cases."""

    name: str
    folder: Path
    about: str
    arguments: Mapping[str, Any]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Column:
    """One way to do each case: a model and a role, or None for the case's own."""

    model: str | None = None
    role: str | None = None


@dataclass(frozen=True)
class Cell:
    """One try of a case in a column.

    Attributes:
        number: The try, from 1.
        spawn: The arguments of `spawn_subagent`, without `task_id`.
        id: The hash of what decides the answer, and the try.
        cap_cents: The run's own cap on its cost.
        refusal: Why it cannot be done in this column, so that it counts as not passed; else empty.
        free: Its model costs nothing.
    """

    case: Case
    column: str
    number: int
    spawn: Mapping[str, Any]
    id: str
    cap_cents: float
    refusal: str = ""
    free: bool = False

    def task_id(self, suite: str, round_number: int) -> str:
        return f"{prefix_of(suite)}{round_number}:{self.id}"


def prefix_of(suite: str) -> str:
    return f"eval:{suite}:"


def find_suite(folder_or_name: str) -> Suite:
    """Return the suite in a folder, or the shipped one of this name. Blocking.

    Raises:
        BadInput: There is no such folder, and no shipped suite of this name.
        SuiteFaults: The suite is not valid; has every fault with its line.
    """
    folder = Path(folder_or_name)
    with contextlib.suppress(RuntimeError):  # there is no such user
        folder = folder.expanduser()
    if not folder.is_dir():
        shipped = _shipped_suites()
        if folder_or_name not in shipped:
            raise BadInput(
                f"SUITE: there is no folder {folder_or_name!r}; give one with cases, or a shipped suite:"
                f" {', '.join(shipped)}"
            )
        folder = shipped[folder_or_name]
    folder = folder.resolve()
    faults: list[str] = []
    file: _SuiteFile | list[str] = _SuiteFile()
    if (folder / SUITE).exists():
        file = read_toml(folder / SUITE, _SuiteFile)
    if isinstance(file, list):
        faults += file
    cases: Sequence[Case] = ()
    try:
        cases = load_cases(folder)
    except SuiteFaults as error:
        faults.append(str(error))
    if faults or isinstance(file, list):
        raise SuiteFaults("\n".join(faults))
    name = _NAME.sub("-", folder.name.lower()).strip("-")[:_NAME_CHARS] or "suite"
    return Suite(name, folder, file.about, file.arguments, tuple(cases))


def _shipped_suites() -> dict[str, Path]:
    """Return the folders of the shipped suites by their names."""
    suites: dict[str, Path] = {}
    for place in SHIPPED:
        if place.is_dir():
            suites.update((path.name, path) for path in place.iterdir() if path.is_dir())
    return suites


def copy_workspaces(suite: Suite) -> dict[str, tuple[Path, str]]:
    """Return a copy of each case's workspace, and the hash of its files. Blocking. Raises ConfigError if one failed."""
    copies: dict[str, tuple[Path, str]] = {}
    for case in suite.cases:
        folder = None
        if case.workspace is not None:
            folder = case.path(case.workspace)
        copies[case.id] = frozen_copy(folder, repository="namespace" in _arguments(suite, case))
    return copies


def plan_cells(
    suite: Suite,
    columns: Sequence[Column],
    tries: int,
    copies: Mapping[str, tuple[Path, str]],
    catalog: Catalog,
    models: ModelSettings,
) -> list[Cell]:
    """Return all cells, case by case.

    `columns`: its columns; two that mean the same count once. `tries`: how often each case is tried.

    Raises:
        BadInput: A role or a model is not known; says of which case.
    """
    cells: dict[tuple[str, str], Cell] = {}
    choices_of_columns = [(column, _choices(suite, column, catalog, models)) for column in columns]
    for case in suite.cases:
        copy, sha = copies[case.id]
        arguments = _arguments(suite, case)
        request: dict[str, Any] = {"task": case.task}
        if case.context is not None:
            request["context"] = case.context
        if case.system_prompt is not None:
            request["system_prompt"] = case.system_prompt
        request |= arguments
        for column, choices in choices_of_columns:
            role, choice = choices[case.id]
            models_of_column = {each.name for _role, each in choices.values()}
            label = ", ".join(sorted(models_of_column))
            if column.role is not None:
                label = f"{label} · {column.role}"
            spawn = {**request, "role": role.name, "workspace": str(copy), "name": case.id[:_ID_CHARS]}
            if column.model is not None:
                spawn["model"] = column.model
            basis = [case.id, {**request, "model": choice.name}, sha, catalog.get(role.name).text]
            key = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:16]
            cap = float(arguments.get(CAP, role.max_cost_cents))
            refusal = ""
            if choice.name == OFFLINE:
                refusal = _refusal(role, arguments)
            for number in range(1, tries + 1):
                cell_id = f"{key}:{number}"
                cells[label, cell_id] = Cell(case, label, number, spawn, cell_id, cap, refusal, choice.price.free)
    return list(cells.values())


def _choices(suite: Suite, column: Column, catalog: Catalog, models: ModelSettings) -> dict[str, tuple[Role, Choice]]:
    """Return the role and the model of each case in a column."""
    choices: dict[str, tuple[Role, Choice]] = {}
    for case in suite.cases:
        model = column.model or _arguments(suite, case).get("model")
        try:
            role = catalog.get(column.role or case.role)
            choices[case.id] = role, choose(model, role.model, models)
        except (AvaError, RolesError) as error:
            raise BadInput(f"{case.id}: {error}") from error
    return choices


def _arguments(suite: Suite, case: Case) -> dict[str, Any]:
    return {**suite.arguments, **case.arguments}


def _refusal(role: Role, arguments: Mapping[str, Any]) -> str:
    """Return why the offline reader cannot be asked: it is the floor, and has not solved what it cannot do."""
    if role.needs_model:
        return f"{named('role', role.name)} needs a language model"
    if "output_schema" in arguments:
        return "the offline reader writes no output in a given form"
    return ""


@dataclass(frozen=True)
class Round:
    """One pass over a suite.

    Attributes:
        runs: The runs of each cell that is asked for and has any, by `Cell.id`, the newest last.
        every: All of its runs, also those of cells that nobody asks for any more: their money is spent.
    """

    number: int
    runs: Mapping[str, Sequence[RunRow]]
    every: Sequence[RunRow] = ()

    def newest(self, cell: Cell) -> RunRow | None:
        """Return the run that counts for a cell."""
        runs = self.runs.get(cell.id)
        if not runs:
            return None
        return runs[-1]

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that have to be proposed: without a run, or whose run says nothing about the model."""
        unproposed: list[Cell] = []
        for cell in cells:
            if cell.refusal:
                continue
            run = self.newest(cell)
            if run is None or (run.ended and not has_verdict(cell, run)):
                unproposed.append(cell)
        return unproposed

    @property
    def spent_micros(self) -> int:
        """What all of its runs have cost, those without a verdict too; micro-USD."""
        return sum(run.cost_micros for run in self.every)

    @property
    def held_micros(self) -> int:
        """What its runs that go on may still cost; micro-USD."""
        held = 0
        for run in self.every:
            if not run.ended:
                held += max(0, config_of(run.config).max_cost_micros - run.cost_micros)
        return held


def has_verdict(cell: Cell, run: RunRow) -> bool:
    """Tell whether an ended run can be scored: nobody and nothing but the run itself ended it.

    A cap over several runs did not, nor did the amount for the suite, of which the last run may have only the rest.
    """
    if run.result_seq is None or run.state in ("cancelled", "abandoned"):
        return False
    if run.state == "error":
        return run.error_kind in _OWN_FAULTS
    if (run.stop_reason or "").startswith(SHARED_CAPS):
        return False
    if run.state == "cost_exceeded":
        return bool(config_of(run.config).asked.get(CAP) == cell.spawn.get(CAP))
    return True


def find_round(
    view: View, user: str, suite: Suite, cells: Sequence[Cell], *, again: bool = False, which: int = 0
) -> Round:
    """Return the newest round, the one of this number, or with `again` a new one."""
    rounds: dict[int, list[tuple[str, RunRow]]] = {}
    for row in view.with_task_prefix(user, prefix_of(suite.name)):
        number, _colon, cell_id = str(row.task_id).removeprefix(prefix_of(suite.name)).partition(":")
        if number.isdecimal():
            approved = rounds.setdefault(int(number), [])
            if row.state != WAITING:
                approved.append((cell_id, row))
    number_of_round = which
    if not number_of_round:
        newest = max(rounds, default=0)
        if again:
            newest += 1
        number_of_round = max(1, newest)
    runs: dict[str, list[RunRow]] = {cell.id: [] for cell in cells}
    every: list[RunRow] = []
    for cell_id, row in rounds.get(number_of_round, []):
        every.append(row)
        if cell_id in runs:
            runs[cell_id].append(row)
    return Round(number_of_round, runs, every)


# -- workspaces -------------------------------------------------------------------------------------------------------
#
# Copies in a fixed place, so that each try finds the same files. A copy is named by the hash of its files, lies in the
# folder for temporary files and belongs to its user alone. A case that changes files (`namespace`) gets a git
# repository with one commit, always the same one.

_DATE = "2026-01-01T00:00:00Z"
_GIT_S = 60


def frozen_copy(folder: Path | None, *, repository: bool) -> tuple[Path, str]:
    """Return a copy of a folder, and the hash of its files; of an empty folder where there is none. Blocking.

    `repository`: the copy is a git repository whose only commit has the files.

    Raises:
        ConfigError: It cannot be made, or somebody else could change it.
    """
    name = "empty"
    if folder is not None:
        name = folder.name
    try:
        sha = tree_hash(folder)
        key = hashlib.sha256(f"{sha} {name}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        if repository:
            key += "-git"
        copy = _private_place() / key / name
        if not _is_copy(copy, sha):
            _copy(folder, copy, sha, repository=repository)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the workspace {folder or 'of a case without one'} cannot be copied: {error}") from error
    return copy, sha


def tree_hash(folder: Path | None) -> str:
    """Return the hash of the names, contents and executable bits in a folder, without its `.git`. Blocking."""
    digest = hashlib.sha256()
    if folder is None:
        return digest.hexdigest()
    for path in _files(folder):
        if path.is_symlink():
            kind, content = "link", str(path.readlink()).encode()
        else:
            kind = "program" if os.access(path, os.X_OK) else "file"
            content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{kind} {len(content)} {name}\0".encode() + content)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if ".git" not in path.relative_to(folder).parts and (path.is_symlink() or path.is_file()):
            yield path


def _private_place() -> Path:
    get_uid = getattr(os, "getuid", None)  # Windows has none, and its folder for temporary files is the user's own
    user = get_uid() if get_uid is not None else os_user()
    place = Path(tempfile.gettempdir()).resolve() / f"ava-evals-{user}"
    make_private_folder(place)
    status = place.lstat()
    is_open_to_others = get_uid is not None and bool(status.st_mode & 0o077)
    if not stat.S_ISDIR(status.st_mode) or not is_own(status) or is_open_to_others:
        raise ConfigError(f"{place} is open to others, so no workspace is copied there; remove it, or set TMPDIR.")
    return place


def _is_copy(copy: Path, sha: str) -> bool:
    return copy.is_dir() and tree_hash(copy) == sha


def _copy(folder: Path | None, target: Path, sha: str, *, repository: bool) -> None:
    """Put a copy in its place at once. One that another process has put there meanwhile stays: runs may read it."""
    place = target.parent
    new = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
    old = new.with_name(f"{new.name}-old")
    try:
        copy = new / target.name
        if folder is None:
            copy.mkdir()
        else:
            shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if repository:
            _commit(copy)
        if place.exists() and not _is_copy(target, sha):
            place.rename(old)  # somebody has changed it
        try:
            new.rename(place)
        except OSError:
            if not _is_copy(target, sha):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _commit(folder: Path) -> None:
    """Make a repository of a folder; no configuration, template or hook of this machine has a say in it."""
    git = shutil.which("git")
    if git is None:
        raise ConfigError("git is not installed, and a case of a coder needs it")
    env = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "suite", f"GIT_{role}_EMAIL": "suite@localhost", f"GIT_{role}_DATE": _DATE}
    for words in (
        ("init", "-q", "-b", "main", "--template="),
        ("add", "-A", "-f"),
        ("-c", "core.hooksPath=/dev/null", "commit", "-q", "--no-verify", "--allow-empty", "-m", "The case"),
    ):
        subprocess.run([git, *words], cwd=folder, env=env, check=True, capture_output=True, timeout=_GIT_S)  # noqa: S603
