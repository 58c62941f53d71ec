"""Role files of a server that runs: what is in the folders counts from the next proposal on, as a person trusted it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from support.runtime import PRICED, connect, hand_over, open_lab, settings_of, text

from ava_audit.events import RunStarted
from ava_server.config import role_folders
from ava_server.config.role_folders import RolePlaces, change_trusted, places_of, read_trusted
from ava_server.core.errors import ConfigError

CLAUDE = "[roles]\nclaude_agents = true\n"


def role(says: str, more: str = "") -> str:
    return f"---\ndescription: Says {says}.\ntools: [read_file]\n{more}---\nSay {says}.\n"


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.md").write_text(content, encoding="utf-8")
    return folder


def trust(root: Path, folder: Path) -> None:
    """Trust what is in a folder now, as `ava roles trust` does after its question."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.md")}
    change_trusted(root / "secrets" / "trusted_roles.toml", {str(folder.resolve()): found})


async def spawned(client: Client, name: str, **more: Any) -> str:
    """What a spawn of a role is answered."""
    answer = await client.call_tool("spawn_subagent", {"role": name, "task": "Look.", **more})
    return text(answer)


async def listed(client: Client) -> dict[str, Any]:
    [content] = (await client.read_resource("ava://roles")).contents
    found: dict[str, Any] = json.loads(str(getattr(content, "text", "")))
    return found


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_role_file_changes_apply_from_the_next_proposal(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))  # the tools are listed before there is a call
    folder, workspace = tmp_path / "data" / "roles", str(tmp_path / "workspace")
    async with connect(tmp_path, mode=mode, config=PRICED) as (client, _server):
        assert 'no role "pirate"' in await spawned(client, "pirate", workspace=workspace)
        put(folder, pirate=role("arr"), parrot=role("polly"))
        assert "awaiting_approval" in await spawned(client, "pirate", workspace=workspace)
        assert "Says arr." in str((await client.list_tools()).tools)
        put(folder, pirate=role("ahoy", "max_cost_cents: 17\n"))
        [pirate] = [each for each in (await listed(client))["roles"] if each["name"] == "pirate"]
        assert (pirate["description"], pirate["max_cost_cents"]) == ("Says ahoy.", 17)
        assert "at most $0.17" in await spawned(client, "pirate", workspace=workspace)
        put(folder, pirate=role("ahoy", "timeout: soon\n"))
        assert "pirate.md, line 4, timeout: " in await spawned(client, "pirate", workspace=workspace)
        assert "awaiting_approval" in await spawned(client, "parrot", workspace=workspace)
        assert any("line 4, timeout" in problem for problem in (await listed(client))["problems"])
        (folder / "pirate.md").unlink()
        assert "cannot be used" not in await spawned(client, "pirate", workspace=workspace)
        assert (await listed(client))["problems"] == []


async def test_uses_a_project_role_only_as_it_was_when_a_person_trusted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "workspace"
    monkeypatch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("AVA_WORKSPACE", str(workspace))
    folder = put(workspace / ".ava" / "roles", pirate=role("arr, and OBEY"))
    async with connect(tmp_path, env={"AVA_WORKSPACE": str(workspace)}) as (client, _server):
        answer = await spawned(client, "pirate")
        assert "came with the project" in answer and "is not trusted" in answer
        assert f"ava roles trust {workspace.resolve()}" in answer
        found = await listed(client)
        assert [each["name"] for each in found["untrusted"]] == ["pirate"]
        assert "pirate" not in [each["name"] for each in found["roles"]]
        assert "OBEY" not in json.dumps(found)
        assert "OBEY" not in str((await client.list_tools()).tools)
        trust(tmp_path / "data", folder)
        assert "awaiting_approval" in await spawned(client, "pirate")
        assert (await listed(client))["untrusted"] == []
        put(folder, pirate=role("ahoy"), new=role("new"))
        assert "has changed since a person trusted it" in await spawned(client, "pirate")
        assert "is not trusted" in await spawned(client, "new")
        assert "awaiting_approval" in await spawned(client, "researcher")


async def test_the_workspace_of_the_call_determines_the_project(tmp_path: Path) -> None:
    one, two = tmp_path / "workspace" / "one", tmp_path / "workspace" / "two"
    for project in (one, two):
        put(project / ".ava" / "roles", pirate=role(project.name))
    async with connect(tmp_path) as (client, _server):
        trust(tmp_path / "data", one / ".ava" / "roles")
        assert "awaiting_approval" in await spawned(client, "pirate", workspace=str(one))
        assert "is not trusted" in await spawned(client, "pirate", workspace=str(two))
        assert "does not exist" in await spawned(client, "researcher", workspace=str(tmp_path / "workspace" / "gone"))


async def test_a_proposal_names_the_role_file_unless_the_role_is_built_in(
    tmp_path: Path,
) -> None:
    put(tmp_path / "data" / "roles", pirate=role("arr"))
    async with open_lab(tmp_path) as lab:
        made = await lab.propose(role="pirate")
        assert 'not built in; it comes from the file "roles of the data root/pirate.md".' in made.message
        assert "built-in" not in (await lab.propose()).message


async def test_role_file_changes_after_the_proposal_do_not_affect_the_run(tmp_path: Path) -> None:
    folder = put(tmp_path / "data" / "roles", pirate=role("arr"))
    async with open_lab(tmp_path, lambda _request: hand_over()) as lab:
        proposal = await lab.propose(role="pirate")
        put(folder, pirate=role("something else", "tools: [http_get]\n"))
        assert (await lab.approve(proposal)).status == "approved"
        await lab.ended(proposal.subagent_id)
        [started] = await lab.facts(proposal.subagent_id, RunStarted)
        assert "Say arr." in started.system and "something else" not in started.system


async def test_a_setting_enables_claude_code_agents_and_those_of_the_user_need_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    monkeypatch.setenv("HOME", str(home))
    put(home / ".claude" / "agents", mine=role("mine"), both=role("the user's"))
    theirs = put(workspace / ".claude" / "agents", theirs=role("theirs"), both=role("the project's"))
    given = {"workspace": str(workspace)}
    async with connect(tmp_path) as (client, _server):
        assert 'no role "mine"' in await spawned(client, "mine", **given)
    async with connect(tmp_path, config=CLAUDE) as (client, _server):
        assert "awaiting_approval" in await spawned(client, "mine", **given)
        assert "theirs.md came with the project" in await spawned(client, "theirs", **given)
        assert "awaiting_approval" in await spawned(client, "both", **given)
        trust(tmp_path / "data", theirs)
        assert "awaiting_approval" in await spawned(client, "theirs", **given)
        settings = settings_of(tmp_path / "data", None, CLAUDE)
        catalog = places_of(settings, client_roots=[str(workspace)], cwd=tmp_path, home=home).load()
        assert catalog.get("both").source == ".claude/agents/both.md"
        told = '~/.claude/agents/both.md: the name "both" is taken (.claude/agents/both.md); rename this role'
        assert [problem.text for problem in catalog.problems] == [told]


def project_of(tmp: Path, cwd: Path, **more: Any) -> Path | None:
    settings = settings_of(tmp / "data", None, **more)
    return places_of(settings, cwd=cwd, home=tmp / "home").project


def test_the_project_is_the_nearest_folder_with_role_files_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    repository = (tmp_path / "above" / "repository").resolve()
    inner = repository / "packages" / "a" / "src"
    inner.mkdir(parents=True)
    (repository / ".git").mkdir()
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    put(tmp_path / "above" / ".ava" / "roles", outside=role("outside"))
    assert project_of(tmp_path, inner) == inner
    put(repository / ".ava" / "roles")
    assert project_of(tmp_path, inner) == repository
    put(repository / "packages" / "a" / ".ava" / "roles")
    assert project_of(tmp_path, inner) == repository / "packages" / "a"


def test_uses_the_working_folder_as_project_only_inside_a_repository(tmp_path: Path) -> None:
    elsewhere, cwd = tmp_path / "elsewhere", tmp_path / "cwd"
    elsewhere.mkdir()
    put(cwd / ".ava" / "roles")
    config = f'[workspace]\nroots = ["{elsewhere}"]\n'
    assert project_of(tmp_path, cwd, config=config) is None
    (cwd / ".git").mkdir()
    (cwd / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert project_of(tmp_path, cwd, config=config) == cwd.resolve()


def test_loads_roles_of_the_data_root_for_a_user_without_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path / "data", None, CLAUDE)
    put(settings.paths.roles, pirate=role("arr"))
    monkeypatch.delenv("HOME")
    known = {entry.pw_uid for entry in __import__("pwd").getpwall()}
    monkeypatch.setattr(os, "getuid", lambda: next(number for number in range(50_000, 60_000) if number not in known))
    with pytest.raises(RuntimeError):
        Path.home()
    assert role_folders.places_here(settings.paths, settings).load().get("pirate").body == "Say arr."


def test_a_home_folder_is_not_a_project(tmp_path: Path) -> None:
    home = tmp_path / "home"
    put(home / ".claude" / "agents")
    (home / ".git").mkdir()
    (home / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert project_of(tmp_path, home) is None


def test_only_the_owner_can_read_the_trust_file_and_trust_can_be_revoked(tmp_path: Path) -> None:
    path = settings_of(tmp_path / "data", None).paths.trusted_roles
    one, two = {"a.md": "0" * 64}, {"b.md": "1" * 64}
    assert read_trusted(path) == {}
    assert change_trusted(path, {"/one/.ava/roles": one, "/two/.ava/roles": two}) == {}
    assert change_trusted(path, {"/one/.ava/roles": {}}) == {"/one/.ava/roles": one}
    assert read_trusted(path) == {"/two/.ava/roles": two}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("spoil", ["0644", "link", "no TOML", "no hash"])
async def test_an_unreadable_trust_file_disables_project_roles_but_no_others(tmp_path: Path, spoil: str) -> None:
    workspace = tmp_path / "workspace"
    folder = put(workspace / ".ava" / "roles", pirate=role("arr"))
    path = settings_of(tmp_path / "data", None).paths.trusted_roles
    trust(tmp_path / "data", folder)
    if spoil == "0644":
        path.chmod(0o644)
    elif spoil == "link":
        path.rename(tmp_path / "moved.toml")
        path.symlink_to(tmp_path / "moved.toml")
    else:
        path.write_text("[[[" if spoil == "no TOML" else f'["{folder.resolve()}"]\n"pirate.md" = "x"\n')
    with pytest.raises(ConfigError):
        read_trusted(path)
    async with connect(tmp_path) as (client, _server):
        assert "is not trusted" in await spawned(client, "pirate", workspace=str(workspace))
        assert "awaiting_approval" in await spawned(client, "researcher", workspace=str(workspace))


async def test_a_project_on_an_unresponsive_disk_delays_only_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, answers = tmp_path / "workspace", threading.Event()
    put(workspace / ".ava" / "roles", pirate=role("arr"))
    other = put(workspace / "other")
    plain = os.scandir

    def scandir(path: Any = ".") -> Any:
        if isinstance(path, int):  # what is read beneath a project
            answers.wait(20)
        return plain(path)

    monkeypatch.setattr(role_folders, "ROLES_S", 0.3)
    monkeypatch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("AVA_WORKSPACE", str(workspace))
    async with connect(tmp_path) as (client, _server):
        assert "awaiting_approval" in await spawned(client, "researcher", workspace=str(workspace))
        monkeypatch.setattr(os, "scandir", scandir)
        monkeypatch.setattr(os, "supports_fd", os.supports_fd | {scandir})
        try:
            with anyio.fail_after(40):
                answer = await spawned(client, "researcher", workspace=str(workspace))
                assert "were not read within" in answer
                assert "web_crawler: " in str((await client.list_tools()).tools)
                assert "awaiting_approval" in await spawned(client, "researcher", workspace=str(other))
        finally:
            answers.set()
            monkeypatch.setattr(os, "scandir", plain)


def test_role_folders_have_a_fixed_precedence(tmp_path: Path) -> None:
    root = settings_of(tmp_path / "data", None).paths
    project, home = (tmp_path / "project").resolve(), tmp_path / "home"
    places = [root.roles, project / ".ava/roles", project / ".claude/agents", home / ".claude/agents"]
    for number, place in enumerate(places):
        put(place, **{f"role-{name}": role(str(number)) for name in range(number + 1)})
    for place in places[1:3]:
        trust(root.path, place)
    catalog = RolePlaces(root, project, True, home).load()
    assert [catalog.get(f"role-{name}").body for name in range(4)] == ["Say 0.", "Say 1.", "Say 2.", "Say 3."]
    assert len(catalog.problems) == 6
