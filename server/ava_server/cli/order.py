"""What is asked for with `ava run`: which subagents, and what shall become of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ava_server.core.errors import BadInput

MOST_TOGETHER = 20
"""Subagents of one approval, at most."""
_FOR_ONE = ("retry_of", "task_id", "name")
_OPTIONS = {"retry_of": "--retry", "task_id": "--task-id", "name": "--name"}


@dataclass(frozen=True)
class Order:
    """What was asked for on the command line.

    Attributes:
        spawns: The arguments of `spawn_subagent`, for each subagent.
        group: The limits of several together, as `confirm_spawn` takes them.
        degraded: They may go without tools that their roles need.
        yes: Nobody is asked.
        as_json: The results as one JSON object.
        out: A file for the results.
        artifacts: A folder for the files that are handed over.
    """

    spawns: tuple[dict[str, Any], ...]
    group: Mapping[str, Any] = field(default_factory=dict[str, Any])
    degraded: bool = False
    yes: bool = False
    as_json: bool = False
    out: Path | None = None
    artifacts: Path | None = None

    def check(self) -> None:
        """See that what shall become of the results can be done, before anything is proposed.

        Raises:
            BadInput: It cannot.
        """
        from ava_server.cli.saving import check_folder

        if self.group and len(self.spawns) < 2:
            raise BadInput("--group-max and --group-timeout are for two or more together; give more tasks")
        if self.out is not None and (self.out.is_dir() or not self.out.absolute().parent.is_dir()):
            raise BadInput(f"--out: {self.out} cannot be written: it must be a file in a folder that exists")
        if self.artifacts is not None:
            check_folder(self.artifacts)


def spawns_of(
    role: str | None, tasks: Sequence[str], also: Sequence[str], *, parallel: bool, common: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return the arguments of each subagent that is asked for.

    Args:
        role: The role of the tasks.
        tasks: One, or several to be run together.
        also: More of them, each `ROLE: task`.
        parallel: Several are meant.
        common: What all of them have.

    Raises:
        BadInput: It cannot be told what is meant.
    """
    given = {key: value for key, value in common.items() if value is not None}
    if (role is None) != (not tasks) or (role is None and (also or "retry_of" not in given)):
        raise BadInput('Give ROLE and TASK, such as researcher "What does it cost?"; or --retry S-ID alone.')
    if len(tasks) > 1 and not (parallel or also):
        raise BadInput(
            f"TASK: {len(tasks)} were given. Put one task in quotes; to run several together, add --parallel."
        )
    pairs = [*((role, task) for task in tasks), *map(_pair, also)]
    if len(pairs) > MOST_TOGETHER:
        raise BadInput(f"TASK: {len(pairs)} were given, and at most {MOST_TOGETHER} are approved together")
    if len(pairs) > 1 and (of_one := [key for key in _FOR_ONE if key in given]):
        raise BadInput(f"{_OPTIONS[of_one[0]]}: it is for one subagent, and {len(pairs)} were given; leave it out")
    if parallel and len(pairs) < 2:
        raise BadInput('--parallel: one task was given; give each of them in quotes: researcher "task 1" "task 2"')
    return tuple({"role": one, "task": task, **given} for one, task in pairs) or (given,)


def _pair(given: str) -> tuple[str, str]:
    """Return role and task of one that is written `ROLE: task`.

    Raises:
        BadInput: It is not.
    """
    role, colon, task = given.partition(":")
    if not colon or not role.strip() or " " in role.strip() or not task.strip():
        raise BadInput(f'--also: {given[:60]!r} names no role; write it like "code_reviewer: Is the parser safe?"')
    return role.strip(), task.strip()
