"""Where commands work: made once, at the first of them, and gone whenever it is let go of."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from pathlib import Path, PurePosixPath

import anyio
import pytest
from support.repositories.projects import checkout, git, names, tree, write
from support.sandboxes.attacks import needs, sandbox

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.command_workspace import CopiedWorkspace
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Command
from ava_roles.sandbox.toolchains import HostFolders


@pytest.fixture
def files(tmp_path: Path) -> Generator[Root]:
    checkout(tmp_path / "project", {"a.txt": "a\n", ".gitignore": "node_modules\n"})
    write(tmp_path / "project", {"node_modules/left/index.js": "left\n"})
    root = Root.open(tmp_path / "project")
    yield root
    root.close()


def workbench(tmp_path: Path, files: Root | None, without: frozenset[str] = frozenset()) -> CopiedWorkspace:
    return CopiedWorkspace(
        mounts=True,
        here=tmp_path / "scratch" / "bench-1",
        files=files,
        run_id="S-1",
        host=HostFolders(tmp_path / "home"),
        without=without,
    )


async def test_is_created_once_and_keeps_changes_until_it_is_closed(tmp_path: Path, files: Root) -> None:
    bench = workbench(tmp_path, files)
    assert not (tmp_path / "scratch").exists(), "nothing is made before the first command"
    async with anyio.create_task_group() as tasks:
        made: list[bool] = []

        async def ready() -> None:
            made.append((await bench.ready())[1])

        for _ in range(3):
            tasks.start_soon(ready)
    assert sorted(made) == [False, False, True]
    (bench.here / "copy" / "a.txt").write_text("changed\n")
    found, fresh = await bench.ready()
    assert not fresh and (bench.here / "copy" / "a.txt").read_text() == "changed\n"
    assert found.folder == PurePosixPath(tmp_path / "project")
    bench.close()
    bench.close()
    assert not bench.here.exists()


async def test_binds_packages_read_only_over_the_copy_and_nothing_else_of_the_workspace(
    tmp_path: Path, files: Root
) -> None:
    found, _fresh = await workbench(tmp_path, files).ready()
    own = [bind for bind in found.binds if bind.source.is_relative_to(tmp_path / "project")]
    assert [(bind.source, bind.writable) for bind in own] == [(tmp_path / "project" / "node_modules", False)]
    writable = {bind.source.name for bind in found.binds if bind.writable}
    assert writable == {"copy", "home"}


@pytest.mark.parametrize("copied", [True, False])
async def test_leaves_out_what_tells_an_agent_how_to_work(
    tmp_path: Path, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands, also as a link or a folder, in the copy and in a folder too large to be copied."""
    if not copied:
        monkeypatch.setattr("ava_roles.sandbox.workspace_copy.FOLDER_FILES", 2)
    project = tmp_path / "project"
    write(project, {"a.txt": "a\n", "sub/Claude.md": "EVIL\n", ".claude/commands/x.md": "EVIL\n", "rules.md": "r\n"})
    write(project, {".GitHub/Instructions/x.md": "EVIL\n", "instructions/y.md": "r\n"})
    (project / "AGENTS.md").symlink_to("rules.md")
    with closing(Root.open(project)) as files:
        bench = workbench(tmp_path, files)
        bench.without = frozenset({"agents.md", "claude.md", ".claude", ".github/instructions"})
        found, _fresh = await bench.ready()
        assert "left out: 4 files and folders that tell an agent how to work" in found.notes
        if copied:
            assert names(bench.here / "copy") == {"a.txt", "rules.md", "instructions/y.md"}
        else:
            over = {str(bind.target) for bind in found.binds if bind.source.is_relative_to(bench.here / "empty")}
            hidden = ("rules.md", "sub/Claude.md", ".claude", ".GitHub/Instructions")
            assert over == {str(project / name) for name in hidden}, "in place of the link, what it leads to"
        bench.close()


async def test_commands_read_nothing_through_a_link_in_a_folder_that_is_too_large_to_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    monkeypatch.setattr("ava_roles.sandbox.workspace_copy.FOLDER_FILES", 2)
    project = tmp_path / "project"
    write(project, {"a.txt": "plain\n", "rules.md": "EVIL\n", "sub/b.txt": "b\n", ".claude/more.md": "EVIL\n"})
    (project / "AGENTS.md").symlink_to("rules.md")
    (project / "sub" / "CLAUDE.md").symlink_to("../AGENTS.md")
    (project / "sub" / "AGENTS.md").symlink_to("../.claude/more.md")
    with closing(Root.open(project)) as files:
        bench = workbench(tmp_path, files, frozenset({"agents.md", "claude.md", ".claude"}))
        found, _fresh = await bench.ready()
        reads = "cat AGENTS.md rules.md sub/CLAUDE.md && echo read; cat sub/AGENTS.md; ls -A .claude; cat a.txt"
        command = Command(("/bin/sh", "-c", reads), found.folder, found.binds, found.environment, 20)
        done = await sandbox("bubblewrap", tmp_path / "state").run(command)
        lines = done.output.splitlines()
        assert (lines[0], lines[-1]) == ("read", "plain") and "No such file" in lines[1] and len(lines) == 3, done
        bench.close()


@pytest.mark.parametrize("target", ["../outside.md", "/etc/passwd", "sub", "missing.md", "AGENTS.md"])
async def test_a_link_that_cannot_be_covered_is_said_in_one_sentence(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_roles.sandbox.workspace_copy.FOLDER_FILES", 1)
    project = tmp_path / "project"
    write(project, {"a.txt": "a\n", "sub/b.txt": "b\n", "../outside.md": "EVIL\n"})
    (project / "AGENTS.md").symlink_to(target)
    with closing(Root.open(project)) as files:
        bench = workbench(tmp_path, files, frozenset({"agents.md"}))
        said = (
            rf"^{project} is too large to be copied, and AGENTS\.md in it, which must not be seen, is a link that does"
            r" not lead to a file of this folder, so it cannot be covered; replace or remove it, or have the subagent"
            r" started with a smaller folder as workspace$"
        )
        with pytest.raises(ToolFailed, match=said):
            await bench.ready()
        assert not bench.here.exists()


@pytest.mark.parametrize("tracked", [None, False, True])
async def test_covers_what_tells_an_agent_how_to_work_in_packages(tmp_path: Path, tracked: bool | None) -> None:
    """Packages are shown themselves, also without git, and where the change has put such files among them."""
    project = tmp_path / "project"
    write(project, {"a.txt": "a\n", "node_modules/x/CLAUDE.md": "EVIL\n", "node_modules/.claude/x.md": "EVIL\n"})
    (project / "node_modules" / "x" / "AGENTS.md").symlink_to("CLAUDE.md")
    if tracked is not None:
        git(project, "init", "-q")
        git(project, "add", "-A" if tracked else "a.txt")
        git(project, "commit", "-qm", "a change")
    write(project, {"node_modules/y.js": "y\n"})
    with closing(Root.open(project)) as files:
        bench = workbench(tmp_path, files)
        bench.without = frozenset({"agents.md", "claude.md", ".claude"})
        found, _fresh = await bench.ready()
        assert "left out: 3 files and folders that tell an agent how to work" in found.notes
        order = [(bind.source.name, str(bind.target.relative_to(found.folder))) for bind in found.binds[-3:]]
        assert order[0] == ("node_modules", "node_modules")
        assert set(order[1:]) == {("file", "node_modules/x/CLAUDE.md"), ("folder", "node_modules/.claude")}
        bench.close()
        (project / "node_modules" / "x" / "AGENTS.md").unlink()
        (project / "node_modules" / "x" / "AGENTS.md").symlink_to("../../a.txt")
        with pytest.raises(ToolFailed, match=r"node_modules/x/AGENTS\.md, as a link.* runner: in-process"):
            await (bench := workbench(tmp_path, files, bench.without)).ready()
        bench.close()


async def test_does_not_start_where_packages_cannot_be_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    write(project, {f"node_modules/{number}/CLAUDE.md": "EVIL\n" for number in range(3)})
    with closing(Root.open(project)) as files:
        bench = workbench(tmp_path, files, frozenset({"claude.md"}))
        bench.mounts = False
        with pytest.raises(ToolFailed, match="cannot be covered in this sandbox"):
            await bench.ready()
        bench.mounts = True
        monkeypatch.setattr("ava_roles.sandbox.command_workspace.MOST_COVERED", 2)
        with pytest.raises(ToolFailed, match="more than 2 files that instruct an agent; use runner: in-process"):
            await bench.ready()
        bench.close()


@pytest.mark.slow
async def test_a_cancelled_creation_leaves_nothing_and_can_be_retried(tmp_path: Path, files: Root) -> None:
    for number in range(3_000):
        (tmp_path / "project" / f"{number}.txt").touch()
    bench = workbench(tmp_path, files)
    with anyio.move_on_after(0.05) as scope:
        await bench.ready()
    assert scope.cancelled_caught
    assert not bench.here.exists()
    with anyio.fail_after(20):
        assert (await bench.ready())[1]
    assert (bench.here / "copy" / "2999.txt").exists()
    bench.close()


async def test_closing_during_creation_stops_it_and_leaves_nothing(tmp_path: Path, files: Root) -> None:
    for number in range(3_000):
        (tmp_path / "project" / f"{number}.txt").touch()
    bench = workbench(tmp_path, files)
    failed: list[ToolFailed] = []

    async def making() -> None:
        try:
            await bench.ready()
        except ToolFailed as error:
            failed.append(error)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(making)
            while not bench.here.exists():  # noqa: ASYNC110 - nothing tells that it has begun
                await anyio.sleep(0.005)
            await anyio.to_thread.run_sync(bench.close)
    assert len(failed) == 1 and not bench.here.exists()


async def test_leaves_out_packages_that_contain_a_pipe_or_socket(tmp_path: Path, files: Root) -> None:

    os.mkfifo(tmp_path / "project" / "node_modules" / "left" / "pipe")
    before = tree(tmp_path / "project" / ".git")
    found, _fresh = await workbench(tmp_path, files).ready()
    assert not [bind for bind in found.binds if bind.source.is_relative_to(tmp_path / "project")]
    assert "node_modules, because of the pipe, socket or device left/pipe" in found.notes
    assert tree(tmp_path / "project" / ".git") == before


async def test_a_run_without_a_folder_works_in_an_empty_one(tmp_path: Path) -> None:
    found, _fresh = await workbench(tmp_path, None).ready()
    assert found.folder == PurePosixPath("/scratch") and "empty folder" in found.notes
    assert {bind.source.name for bind in found.binds} == {"home", "code"}


async def test_the_environment_contains_no_server_variables(
    tmp_path: Path, files: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret-of-somebody")
    found, _fresh = await workbench(tmp_path, files).ready()
    assert "secret-of-somebody" not in str(found.environment)
    assert found.environment["AVA_RUN_ID"] == "S-1"
    assert found.environment["PATH"].startswith(f"{tmp_path}/project/node_modules/.bin:")


async def test_without_mounts_everything_is_used_at_its_original_path(tmp_path: Path, files: Root) -> None:
    here = tmp_path / "scratch" / "bench-1"
    found, _fresh = await CopiedWorkspace(
        mounts=False, here=here, files=files, run_id="S-1", host=HostFolders(tmp_path / "home")
    ).ready()
    assert found.folder == PurePosixPath(here / "copy")
    assert all(PurePosixPath(bind.source) == bind.target for bind in found.binds)
    assert (here / "copy" / "node_modules").readlink() == tmp_path / "project" / "node_modules"
    assert (here / "copy" / "node_modules" / "left" / "index.js").read_text() == "left\n"
