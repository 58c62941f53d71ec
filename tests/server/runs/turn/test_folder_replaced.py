"""If a folder is replaced after a person approved it, the run ends and reads nothing of the new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.model_server import Gate, Say, run_model_server
from support.repositories.coding import RIGHT, branches, coder_task, make_calls, project
from support.repositories.projects import git
from support.runtime import Lab, allow_workspace, hand_over, open_lab, settings_of, wait_for

from ava_audit.events import CostReserved, ToolResult
from ava_roles.errors import FolderReplaced
from ava_roles.sandbox.paths import Root, folder_identity, is_same_folder
from ava_server.service.runtime import open_runtime

SECRET = "the private key of somebody"
READ = Say(calls=[("read_file", {"path": "id"})])


def by_link(folder: Path, elsewhere: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.symlink_to(elsewhere)


def by_rename(folder: Path, elsewhere: Path) -> None:
    folder.rename(folder.with_name("away"))
    elsewhere.rename(folder)


def by_link_above(folder: Path, elsewhere: Path) -> None:
    """Replace the folder's parent with a link to one that has a folder of the same name."""
    above = folder.parent
    beside = above.with_name("beside")
    beside.mkdir()
    elsewhere.rename(beside / folder.name)
    above.rename(above.with_name("above_away"))
    above.symlink_to(beside)


def by_file(folder: Path, elsewhere: Path) -> None:
    folder.rename(folder.with_name("away"))
    (elsewhere / "id").rename(folder)


WAYS = [by_link, by_rename, by_link_above, by_file]
Way = Callable[[Path, Path], None]


@pytest.mark.parametrize("way", WAYS)
async def test_a_workspace_replaced_between_proposal_and_approval_is_not_read(tmp_path: Path, way: Way) -> None:
    folder, elsewhere = made(tmp_path)
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        proposed = await lab.propose(workspace=str(folder))
        way(folder, elsewhere)
        await lab.approve(proposed)
        result = await check_ended(lab, proposed.subagent_id)
        assert (
            str(folder) in result["untrusted_result"]["error_text"]
            and "propose the run again" in result["error"]["what_to_do"]
        )
        assert await lab.facts(proposed.subagent_id, CostReserved) == []


async def test_a_workspace_replaced_by_a_link_to_the_data_root_is_not_read(tmp_path: Path) -> None:
    folder, _elsewhere = made(tmp_path)
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        (lab.root / "id").write_text(SECRET)
        proposed = await lab.propose(workspace=str(folder))
        by_link(folder, lab.root)
        await lab.approve(proposed)
        await check_ended(lab, proposed.subagent_id)


@pytest.mark.parametrize("way", WAYS)
async def test_a_workspace_replaced_while_its_run_is_interrupted_is_not_read(tmp_path: Path, way: Way) -> None:
    folder, elsewhere = made(tmp_path)
    gate = Gate()
    with run_model_server([READ, Say("lost", gate=gate), READ, hand_over()]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(workspace=str(folder))
            await wait_for(gate.arrived)
        way(folder, elsewhere)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            await check_ended(lab, run_id)
            assert [fact.success for fact in await lab.facts(run_id, ToolResult)] == [True]


async def test_a_workspace_that_the_settings_no_longer_allow_is_not_read(tmp_path: Path) -> None:
    folder, elsewhere = made(tmp_path)
    with run_model_server([READ, hand_over()]) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            proposed = await lab.propose(workspace=str(folder))
            await lab.approve(proposed)
        settings = settings_of(lab.root, server.base_url, allow_workspace("background = false", elsewhere))
        async with open_runtime(settings) as runtime:
            ended = await runtime.manager.control.ended(proposed.subagent_id)
        assert ended.state == "error" and server.requests == []


async def test_a_run_waits_for_a_missing_workspace(tmp_path: Path) -> None:
    folder, _elsewhere = made(tmp_path)
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        proposed = await lab.propose(workspace=str(folder))
        folder.rename(folder.with_name("unmounted"))
        await lab.approve(proposed)
        with anyio.fail_after(40):
            while "cannot be opened" not in lab.runtime.manager.waiting_for.get(proposed.subagent_id, ""):
                await anyio.lowlevel.checkpoint()
        folder.with_name("unmounted").rename(folder)
        await lab.ended(proposed.subagent_id)
        assert (await lab.result(proposed.subagent_id))["status"] == "success"


async def test_an_unchanged_workspace_is_read(tmp_path: Path) -> None:
    folder, _elsewhere = made(tmp_path)
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        proposed = await lab.propose(workspace=str(folder))
        (folder / "id").write_text("changed meanwhile")
        (folder / "new").mkdir()
        await lab.approve(proposed)
        await lab.ended(proposed.subagent_id)
        [read, _handed] = await lab.facts(proposed.subagent_id, ToolResult)
        assert "changed meanwhile" in read.output


# -- a coder's repository ---------------------------------------------------------------------------------------------


def another_checkout(tmp: Path, of: Path) -> Path:
    """A clone also has the approved commit, so only its identity distinguishes it from the original."""
    git(tmp, "clone", "-q", str(of), "clone")
    return tmp / "clone"


def replace_checkout(repository: Path, other: Path) -> None:
    repository.rename(repository.with_name("away"))
    other.rename(repository)


def replace_git_folder(repository: Path, other: Path) -> None:
    (repository / ".git").rename(repository / "git-away")
    (repository / ".git").symlink_to(other / ".git")


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("replace", [replace_checkout, replace_git_folder])
async def test_a_repository_replaced_before_the_start_gets_no_branch(tmp_path: Path, replace: Way) -> None:
    repository = project(tmp_path)
    other = another_checkout(tmp_path, repository)
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab:
        proposed = await lab.propose(**coder_task())
        replace(repository, other)
        await lab.approve(proposed)
        await check_ended(lab, proposed.subagent_id)
    assert branches(repository) == {}


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("replace", [replace_checkout, replace_git_folder])
async def test_a_repository_replaced_during_the_work_gets_no_branch(tmp_path: Path, replace: Way) -> None:
    repository = project(tmp_path)
    other = another_checkout(tmp_path, repository)
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[RIGHT]), Say("done", gate=gate), hand_over()], check=False) as lab:
        run_id = await lab.start(**coder_task())
        await wait_for(gate.arrived, 30)
        replace(repository, other)
        gate.released.set()
        await lab.ended(run_id, 60)
        result = await lab.result(run_id)
    assert result["status"] == "error" and "is now a different repository" in str(result), result
    assert branches(repository) == {}
    assert list((lab.root / "worktrees").glob("S-*")), "the work is kept until it is on its branch"


def point_elsewhere(repository: Path, other: Path) -> None:
    (repository / ".git").rename(repository / "git-away")
    (repository / ".git").write_text(f"gitdir: {other / '.git'}\n")


def share_everything(repository: Path, other: Path) -> None:
    (repository / ".git" / "commondir").write_text(f"{other / '.git'}\n")


def link_objects(repository: Path, other: Path) -> None:
    (repository / ".git" / "objects").rename(repository / ".git" / "objects-away")
    (repository / ".git" / "objects").symlink_to(other / ".git" / "objects")


def link_branches(repository: Path, other: Path) -> None:
    (repository / ".git" / "refs" / "heads").rename(repository / ".git" / "heads-away")
    (repository / ".git" / "refs" / "heads").symlink_to(other / ".git" / "refs" / "heads")


def add_alternates(repository: Path, other: Path) -> None:
    (repository / ".git" / "objects" / "info" / "alternates").write_text(f"{other / '.git' / 'objects'}\n")


LEADING = [point_elsewhere, share_everything, link_objects, link_branches, add_alternates]
REVIEW = Say(calls=[("run_bash", {"command": "cat *"})])


@pytest.mark.usefixtures("confined")
@pytest.mark.requirement("N-26")
@pytest.mark.parametrize("lead", LEADING)
@pytest.mark.parametrize("role", ["coder", "code_reviewer"])
async def test_a_git_folder_that_leads_elsewhere_since_the_approval_is_not_used(
    tmp_path: Path, role: str, lead: Way
) -> None:
    repository = project(tmp_path)
    other = another_checkout(tmp_path, repository)
    given = coder_task() if role == "coder" else {"role": role}
    async with open_lab(tmp_path, make_calls(RIGHT) if role == "coder" else [REVIEW, hand_over()]) as lab:
        proposed = await lab.propose(**given)
        lead(repository, other)
        await lab.approve(proposed)
        result = await check_ended(lab, proposed.subagent_id)
        assert ".git" in result["untrusted_result"]["error_text"] and lab.server.requests == []
    assert branches(other) == {}


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("lead", [point_elsewhere, link_objects])
async def test_a_git_folder_that_leads_elsewhere_since_an_interruption_is_not_used(tmp_path: Path, lead: Way) -> None:
    repository = project(tmp_path)
    other = another_checkout(tmp_path, repository)
    gate = Gate()
    with run_model_server([REVIEW, Say("lost", gate=gate), REVIEW, hand_over()]) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(role="code_reviewer")
            await wait_for(gate.arrived, 30)
        lead(repository, other)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            await check_ended(lab, run_id)
            assert len(await lab.facts(run_id, ToolResult)) == 1


# -- the parts --------------------------------------------------------------------------------------------------------


def test_opens_only_the_folder_that_was_approved(tmp_path: Path) -> None:
    folder, elsewhere = made(tmp_path)
    identity = folder_identity(folder)
    Root.open_approved(folder, identity).close()
    with pytest.raises(FolderReplaced):
        Root.open_approved(elsewhere, identity)
    by_link(folder, elsewhere)
    with pytest.raises(FolderReplaced):
        Root.open_approved(folder, identity)
    with pytest.raises(FileNotFoundError):
        Root.open_approved(tmp_path / "missing", identity)


def test_after_a_reboot_a_folder_is_known_by_its_inode() -> None:
    assert is_same_folder("2049:7:aaaa", "2049:7:aaaa")
    assert is_same_folder("46:7:aaaa", "51:7:bbbb")
    assert not is_same_folder("46:7:aaaa", "51:7:aaaa")
    assert not is_same_folder("46:7:aaaa", "46:8:bbbb")
    assert not is_same_folder("46:7:", "51:7:")


def made(tmp: Path) -> tuple[Path, Path]:
    """A folder that may be read and one that may not, each with a file of the same name."""
    folder, elsewhere = tmp / "workspace" / "above" / "project", tmp / "elsewhere"
    for each, content in ((folder, "nothing"), (elsewhere, SECRET)):
        each.mkdir(parents=True)
        (each / "id").write_text(content)
    return folder, elsewhere


async def check_ended(lab: Lab, run_id: str) -> dict[str, Any]:
    await lab.ended(run_id)
    result = await lab.result(run_id)
    assert result["status"] == "error" and result["error"]["kind"] == "folder_replaced", result
    assert result["stop_reason"] == "its folder is not the one that was approved"
    assert not any(SECRET.encode() in request.body for request in lab.server.requests)
    assert SECRET not in str(await lab.entries(run_id))
    return result
