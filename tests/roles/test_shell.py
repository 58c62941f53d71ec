"""`run_bash` and `python_exec` themselves: what they are given, and what they say of how a command ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from support.repositories.projects import checkout, write

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.command_workspace import CopiedWorkspace
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Command, Finished, Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_roles.sandbox.toolchains import HostFolders
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.shell import PythonExec, PythonExecArgs, RunBash, RunBashArgs


@pytest.fixture
async def at(tmp_path: Path) -> AsyncGenerator[ToolContext]:
    """A checkout, and a sandbox to run commands in."""
    sandbox = await anyio.to_thread.run_sync(find_sandbox, "auto", tmp_path / "state")
    if isinstance(sandbox, Unavailable):
        pytest.skip(f"{sandbox.why}; {sandbox.what_to_do}")
    files = Root.open(checkout(tmp_path / "project", {"a.txt": "a\n"}))
    bench = CopiedWorkspace(
        mounts=sandbox.mounts,
        here=tmp_path / "scratch" / "bench-1",
        files=files,
        run_id="S-1",
        host=HostFolders(tmp_path / "home"),
    )
    yield ToolContext(files=files, sandbox=sandbox, bench=bench, run_id="S-1")
    bench.close()
    files.close()


async def bash(at: ToolContext, command: str, timeout: int = 20) -> ToolOutput:
    with anyio.fail_after(30):
        return await RunBash()(RunBashArgs(command=command, timeout=timeout), at)


async def python(at: ToolContext, code: str) -> ToolOutput:
    with anyio.fail_after(30):
        return await PythonExec()(PythonExecArgs(code=code, timeout=20), at)


async def test_only_the_first_command_explains_where_commands_run(at: ToolContext) -> None:
    first, second = await bash(at, "cat a.txt"), await bash(at, "cat a.txt")
    assert "fresh copy of" in first.text and "1 files of the checkout" in first.text
    assert "fresh copy" not in second.text and second.text.endswith("\na")


async def test_a_failing_command_returns_its_exit_code_and_both_outputs(at: ToolContext) -> None:
    failed = await bash(at, "echo out; echo err >&2; exit 7")
    assert not failed.success
    assert "[exit code 7, " in failed.text and "out\nerr" in failed.text
    quiet = await bash(at, "true")
    assert quiet.success and quiet.text.endswith("(no output)")
    assert not (await bash(at, "no-such-program")).success


async def test_rejects_text_that_no_program_accepts(at: ToolContext) -> None:
    for runs in (bash, python):
        with pytest.raises(ToolFailed, match="zero byte"):
            await runs(at, "echo \0")
        with pytest.raises(ValueError, match="unicode"):
            await runs(at, "echo \ud800")


async def test_passes_unusual_text_through_unchanged(at: ToolContext) -> None:
    assert (await bash(at, "printf '%s' 'ü \"$x\" 日本'")).text.endswith('ü "$x" 日本')
    assert (await python(at, "print('ü', chr(0x1F600))\n")).text.endswith("ü \U0001f600")
    garbled = await bash(at, "printf '\\xff\\xfe'")
    assert garbled.success and "\ufffd" in garbled.text


async def test_a_python_error_names_its_line(at: ToolContext) -> None:
    failed = await python(at, "x = 1\nx / 0\n")
    assert "line 2" in failed.text and "ZeroDivisionError" in failed.text


async def test_tells_a_run_that_it_may_not_run_commands(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="may not run commands"):
        await bash(ToolContext(), "true")
    with pytest.raises(ToolFailed, match="may not run commands"):
        await python(ToolContext(), "1")


@pytest.mark.parametrize(
    "given",
    [{"command": ""}, {"command": "x", "timeout": 121}, {"command": "x", "timeout": 0}, {"command": "x", "a": 1}],
)
def test_rejects_invalid_arguments(given: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError):
        RunBashArgs.model_validate(given)


class Ends:
    """A sandbox whose commands end in a way that is hard to bring about."""

    kind: Literal["bubblewrap"] = "bubblewrap"
    mounts = True

    def __init__(self, ended: Any) -> None:
        self.ended = ended

    async def run(self, command: Command) -> Finished:
        return Finished(None, "the output so far", 12_345, self.ended, 3.21)

    def start(self, command: Command) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        ("timeout", "ended after 20 s, with every process that it started; run less at once"),
        ("memory", "ended after 3.2 s: it took more than 2 GiB of memory"),
        ("disk", "ended after 3.2 s: all commands together wrote more than 1 GiB"),
        ("signal", "ended by a signal after 3.2 s"),
    ],
)
async def test_explains_what_ended_a_command_and_what_to_do(tmp_path: Path, ended: str, says: str) -> None:
    bench = CopiedWorkspace(
        mounts=True, here=tmp_path / "bench-1", files=None, run_id="S-1", host=HostFolders(tmp_path)
    )
    output = await bash(ToolContext(sandbox=Ends(ended), bench=bench), "true")
    assert not output.success and says in output.text
    assert "the output so far" in output.text and "12,345 bytes of output were not kept" in output.text


async def test_all_commands_of_a_run_share_one_disk_limit(at: ToolContext) -> None:
    written = await bash(at, "for n in 1 2 3; do fallocate -l 200M first-$n; done")
    assert written.success, written.text
    ended = await bash(at, "for n in 1 2 3; do fallocate -l 200M second-$n; done")
    if ended.success:  # on a busy machine, the disk is looked at before this command ends
        ended = await bash(at, "sleep 10")
    assert "all commands together wrote more than 1 GiB" in ended.text
    again = await bash(at, "ls; cat a.txt")
    assert again.success and "fresh copy" in again.text and again.text.endswith("a.txt\na")


async def test_too_deeply_nested_folders_do_not_stop_later_commands(at: ToolContext) -> None:
    made = await bash(at, "mkdir -p $(printf 'd/%.0s' $(seq 500))")
    if made.success:  # on a busy machine, the folders are looked at before this command ends
        made = await bash(at, "true")
    assert "nested too deep" in made.text
    assert (await bash(at, "cat a.txt")).text.endswith("\na")


async def test_packages_swapped_for_a_link_between_commands_are_not_exposed(at: ToolContext, tmp_path: Path) -> None:
    write(tmp_path, {"keys/id": "a key", "project/.gitignore": "node_modules\n", "project/node_modules/one": "one"})
    assert (await bash(at, "cat node_modules/one")).text.endswith("\none")
    packages = tmp_path / "project" / "node_modules"
    packages.rename(tmp_path / "away")
    packages.symlink_to(tmp_path / "keys")
    swapped = await bash(at, "cat node_modules/id")
    assert not swapped.success and "a key" not in swapped.text
    packages.unlink()
    (tmp_path / "away").rename(packages)
    assert (await bash(at, "cat node_modules/one")).text.endswith("\none")


class Watched(CopiedWorkspace):
    """Commands work in a copy, and one thing that they change is taken back."""

    async def after_command(self) -> str:
        taken = self.here / "copy" / "outside.txt"
        if not taken.exists():
            return ""
        taken.unlink()
        return "outside.txt was taken back: it is not yours to change"


async def test_reverts_forbidden_changes_and_reports_them_after_the_output(at: ToolContext) -> None:
    assert isinstance(at.bench, CopiedWorkspace)
    watched = replace(
        at, bench=Watched(mounts=at.bench.mounts, here=at.bench.here, files=at.files, run_id="S-1", host=at.bench.host)
    )
    got = await bash(watched, "echo changed; echo x > outside.txt")
    assert got.success and got.text.endswith("\nchanged\n[outside.txt was taken back: it is not yours to change]")
    got = await python(watched, "import sys, pathlib; pathlib.Path('outside.txt').write_text('x'); sys.exit(3)")
    assert not got.success and got.text.endswith("(no output)\n[outside.txt was taken back: it is not yours to change]")
    assert "taken back" not in (await bash(watched, "cat outside.txt")).text
    assert "taken back" not in (await bash(at, "echo x > outside.txt")).text


def test_the_tool_description_says_where_commands_run() -> None:
    copy, worktree = RunBash().spec, RunBash(in_worktree=True).spec
    assert "thrown away" in copy.description and "your worktree" not in copy.description
    assert "your worktree" in worktree.description and "thrown away" not in worktree.description
    assert replace(worktree, description=copy.description) == copy
