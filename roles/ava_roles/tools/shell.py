"""`run_bash` and `python_exec`: commands that a model writes, in the sandbox.

Neither is read-only, although they work on a copy: the copy lasts as long as the run, so a second call does not find
what the first one found. After a crash, a call that had begun is answered "outcome unknown"; the next one gets a fresh
copy and says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from pydantic import Field

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.command_workspace import MAKE_S, CommandSandbox
from ava_roles.sandbox.counted_tests import CountedTests, is_of_tests
from ava_roles.sandbox.sandbox import Command, Finished
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_sandbox

COMMAND_S = 120
_CALL_S = COMMAND_S + MAKE_S + 10.0  # making the copy and ending the command take extra time
_MAX_OUTPUT_BYTES = 400_000
_PROGRAM = "python_exec.py"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


_BASH = (
    "Run a bash command in a sandbox: no network, 2 GiB of memory, 120 s. It works in {where}; installed packages "
    "(.venv, node_modules) can be read. {changes} Returns the exit code, and stdout and stderr together."
)
_BASH_IN_WORKTREE = _BASH.format(
    where="your worktree, without .git and what git ignores",
    changes="Changes outside of what you may change are undone, and you are told.",
)


class RunBashArgs(ToolArgs):
    """Arguments of `run_bash`."""

    command: str = Field(min_length=1, max_length=20_000, description="What bash runs (bash -c), in the workspace.")
    timeout: int = Field(default=COMMAND_S, ge=1, le=COMMAND_S, description="Time limit in seconds.")


class RunBash:
    """Runs a bash command, where `in_worktree` in the run's worktree."""

    _on_a_copy = ToolSpec(
        name="run_bash",
        description=_BASH.format(
            where="a copy of the workspace that is thrown away with this run, without .git and what git ignores",
            changes="Changes last from call to call; the user's files stay untouched.",
        ),
        args=RunBashArgs,
        read_only=False,
        timeout_s=_CALL_S,
        both_ends=True,
        files=True,
        commands=True,
        aliases=("Bash",),
    )

    def __init__(self, *, in_worktree: bool = False) -> None:
        self.spec = replace(self._on_a_copy, description=_BASH_IN_WORKTREE) if in_worktree else self._on_a_copy

    def activity(self, args: RunBashArgs) -> str:
        return f"Running {_first_line(args.command)}"

    async def __call__(self, args: RunBashArgs, at: ToolContext) -> ToolOutput:
        _encode(args.command)
        heard = CountedTests(at.say).hear if is_of_tests(args.command) else None
        return await _run(at, lambda _bench: ("/bin/bash", "-c", args.command), args.timeout, heard=heard)


class PythonExecArgs(ToolArgs):
    """Arguments of `python_exec`."""

    code: str = Field(min_length=1, max_length=100_000, description="A Python program; print what you want to see.")
    timeout: int = Field(default=COMMAND_S, ge=1, le=COMMAND_S, description="Time limit in seconds.")


class PythonExec:
    """Runs a Python program."""

    spec = ToolSpec(
        name="python_exec",
        description=(
            "Run a Python program with the system's Python (standard library) in a sandbox: no network, 2 GiB of "
            "memory, 120 s. It works where run_bash does; in a run without a workspace, in an empty folder. Variables "
            "do not last from call to call. Returns the exit code and what it printed."
        ),
        args=PythonExecArgs,
        read_only=False,
        timeout_s=_CALL_S,
        commands=True,
        both_ends=True,
    )

    def activity(self, args: PythonExecArgs) -> str:
        return f"Running Python: {_first_line(args.code)}"

    async def __call__(self, args: PythonExecArgs, at: ToolContext) -> ToolOutput:
        program = _encode(args.code)

        def argv(bench: CommandSandbox) -> tuple[str, ...]:
            here, seen = bench.code
            (here / _PROGRAM).write_bytes(program)
            python = shutil.which("python3", path=_SYSTEM_PATH)
            if python is None:
                raise ToolFailed("this system has no Python of its own (/usr/bin/python3); use run_bash if you have it")
            return (python, str(seen / _PROGRAM))

        return await _run(at, argv, args.timeout, importable=True)


async def _run(
    at: ToolContext,
    argv: Callable[[CommandSandbox], tuple[str, ...]],
    timeout_s: int,
    *,
    importable: bool = False,
    heard: Callable[[bytes], None] | None = None,
) -> ToolOutput:
    """Run a command where the commands of this run work. Raises ToolFailed: it could not be started.

    `argv` returns the program and its arguments; it may write files. `importable`: Python modules in the working folder
    can be imported, although the program is elsewhere.
    """
    sandbox, workbench = need_sandbox(at)
    bench, fresh = await workbench.ready()
    environment = bench.environment
    if importable:
        environment = {**environment, "PYTHONPATH": str(bench.folder)}
    command = Command(
        argv=await run_sync(argv, bench),
        folder=bench.folder,
        binds=bench.binds,
        environment=environment,
        timeout_s=float(timeout_s),
        max_output=_MAX_OUTPUT_BYTES,
        network=workbench.network,
        disk_from=bench.size,
        heard=heard,
    )
    finished = await sandbox.run(command)
    renewed = ""
    if finished.ended == "disk":  # else each further command could write as much again, or could write nothing
        renewed = await workbench.renew()
    parts = [_describe_end(finished, timeout_s, renewed), finished.output.rstrip("\n") or "(no output)"]
    if fresh:
        parts.insert(0, bench.notes)
    undone = await workbench.after_command()
    if undone:
        parts.append(f"[{undone}]")
    if finished.dropped:
        parts.append(f"[{finished.dropped:,} bytes of output were not kept; write to a file and read parts of it]")
    return ToolOutput("\n".join(parts), success=finished.ended == "exited" and finished.code == 0)


def _describe_end(finished: Finished, timeout_s: int, renewed: str) -> str:
    took = f"{finished.took_s:.1f} s"
    match finished.ended:
        case "timeout":
            return f"[ended after {timeout_s} s, with every process that it started; run less at once]"
        case "memory":
            return f"[ended after {took}: it took more than 2 GiB of memory; run less at once]"
        case "disk":
            return (
                f"[ended after {took}: all commands together wrote more than 1 GiB, the disk is nearly full, or folders"
                f" are nested too deep; {renewed}; write less]"
            )
        case "signal":
            return f"[ended by a signal after {took}: it crashed, or met a limit of the sandbox; run less at once]"
        case "exited":
            return f"[exit code {finished.code}, {took}]"


def _encode(text: str) -> bytes:
    if "\0" in text:
        raise ToolFailed("it contains a zero byte; write it as an escape sequence of the language")
    return text.encode()


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
