"""A coder over HTTP from end to end: in the folders of `[users.NAME]` alone, and nothing of it for anybody else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference
from support.http_server import serve_http, token
from support.model_server import run_model_server
from support.repositories.coding import RIGHT, Untouched, branches, coder_task, make_calls, project, worktrees
from support.repositories.projects import checkout, git, tree
from support.stdio import MODES, make_root, model_env, read_answer, until
from support.terminal import ava

pytestmark = [
    pytest.mark.skipif("sys.platform != 'linux'", reason="commands are confined on Linux alone"),
    pytest.mark.slow,
]
NEVER = "S-0dd0dd"


@pytest.mark.parametrize("mode", MODES)
async def test_a_coder_over_http_commits_to_a_branch_hidden_from_other_users(tmp_path: Path, mode: str) -> None:
    repository = project(tmp_path)
    head = git(repository, "rev-parse", "HEAD")
    settings = f'[users.ana]\nworkspaces = ["{repository}"]\n[users.ben]\nworkspaces = ["{repository}"]\n'
    root = make_root(tmp_path / "data", config_toml=settings)
    untouched = Untouched(repository)
    with run_model_server(make_calls(RIGHT)) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            server.client(token(root, "ana"), mode=mode) as ana,
            server.client(token(root, "ben"), mode=mode) as ben,
            server.client(token(root, "cleo"), mode=mode) as cleo,
        ):
            refused = await cleo.call_tool("spawn_subagent", coder_task(workspace=str(repository)))
            assert refused.is_error and "no folder is set for this user" in json.dumps(refused.structured_content)
            proposed, _text = read_answer(await ana.call_tool("spawn_subagent", coder_task(workspace=str(repository))))
            run_id = proposed["subagent_id"]
            given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            assert read_answer(await ana.call_tool("confirm_spawn", given))[0]["status"] == "approved"
            for _each in range(3):
                look = {"subagent_id": run_id, "wait_seconds": 45}
                found, text = read_answer(await ana.call_tool("check_subagent", look))
                if found["status"] != "running":
                    break
            assert found["status"] == "success", text
            branch = f"ava/{run_id}"
            assert branch in json.dumps(found) and branch in text
            assert branches(repository).keys() == {branch}
            assert "a + b" in git(repository, "show", f"{branch}:adding.py")
            assert git(repository, "rev-parse", f"{branch}^") == head
            await until(lambda: not worktrees(root))
            untouched.check()

            diff = ("show", run_id, "--diff", "--url", server.base)
            for text, code in ((token(root, "ana", name="shell"), 0), (token(root, "ben", name="bens-shell"), 2)):
                call = partial(ava, tmp_path / "elsewhere", *diff, env={"AVA_TOKEN": text})
                shown = await anyio.to_thread.run_sync(call)
                assert shown.returncode == code and ("a + b" in shown.stdout) == (code == 0), shown.stderr

            for other in (ben, cleo):
                await sees_nothing(other, run_id, str(proposed["pending_id"]))


@pytest.mark.requirement("N-26")
async def test_a_folder_of_one_user_does_not_lead_to_the_repository_of_another(tmp_path: Path) -> None:
    theirs = checkout(tmp_path / "bens" / "main", {"secret.txt": "the key of Ben\n"})
    own = tmp_path / "anas"
    folders: dict[str, Path] = {}
    for name in ("file", "nothing", "objects", "alternates", "commondir"):
        folders[name] = checkout(own / name, {"own.txt": "own\n"})
        if name in ("file", "nothing"):
            (folders[name] / ".git").rename(own / f"git-of-{name}")
    (folders["file"] / ".git").write_text(f"gitdir: {theirs}/.git\n")
    (folders["nothing"] / ".git").write_text(f"gitdir: {tmp_path}/bens/none/.git\n")
    (folders["objects"] / ".git/objects").rename(own / "objects-away")
    (folders["objects"] / ".git/objects").symlink_to(theirs / ".git/objects")
    (folders["alternates"] / ".git/objects/info/alternates").write_text(f"{theirs}/.git/objects\n")
    (folders["commondir"] / ".git/commondir").write_text(f"{theirs}/.git\n")
    # A worktree that Ben has made of his repository in a folder of Ana's names this very checkout, and is still his.
    folders["worktree"] = own / "worktree"
    git(theirs, "worktree", "add", "-q", str(folders["worktree"]))
    linked = own / "linked"
    git(folders["file"].parent / "git-of-file", "worktree", "add", "-q", str(linked))
    root = make_root(
        tmp_path / "data", config_toml=f'[users.ana]\nworkspaces = ["{own}"]\n[users.ben]\nworkspaces = ["{theirs}"]\n'
    )
    before = tree(theirs)
    with run_model_server([]) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            server.client(token(root, "ana")) as ana,
            server.client(token(root, "ben")) as ben,
        ):
            for role in (coder_task(namespace=["."], verify="true"), {"role": "code_reviewer", "task": "Look."}):
                said: dict[str, str] = {}
                for name, folder in folders.items():
                    refused = await ana.call_tool("spawn_subagent", {**role, "workspace": str(folder)})
                    said[name] = json.dumps(refused.structured_content).replace(f"/{name}/", "/NAME/")
                    assert refused.is_error and "failed" in said[name], said[name]
                    assert "bens" not in said[name] and "key of Ben" not in said[name]
                assert said["file"] == said["nothing"], "the answer does not tell what exists"
                proposed, text = read_answer(await ana.call_tool("spawn_subagent", {**role, "workspace": str(linked)}))
                assert f"(git folder {own}/git-of-file)" in text and "approval_line" in proposed
                proposed, text = read_answer(await ben.call_tool("spawn_subagent", {**role, "workspace": str(theirs)}))
                assert "(git folder" not in text and "approval_line" in proposed
    assert tree(theirs) == before


async def sees_nothing(other: Any, run_id: str, pending_id: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check_subagent", {"subagent_id": "ID"}),
        ("read_ava_logs", {"subagent_id": "ID"}),
        ("message_subagent", {"subagent_id": "ID", "message": "x"}),
        ("cancel_subagent", {"subagent_id": "ID"}),
        ("spawn_subagent", {"role": "researcher", "task": "https://example.org", "context_from": ["ID"]}),
        ("spawn_subagent", {"role": "researcher", "task": "https://example.org", "retry_of": "ID"}),
    ]
    for tool, given in calls:
        said: list[str] = []
        for each in (run_id, NEVER):
            result = await other.call_tool(tool, json.loads(json.dumps(given).replace("ID", each)))
            said.append(json.dumps([result.structured_content, result.content[0].text]).replace(each, "ID"))
        assert said[0] == said[1], tool
    everything: list[tuple[str, dict[str, Any]]] = [
        ("check_subagent", {}),
        ("read_ava_logs", {}),
        ("read_ava_logs", {"search": "adding"}),
        ("read_ava_logs", {"types": ["tool", "message", "spawn", "complete"], "last_n": 500}),
    ]
    for tool, given in everything:
        result = await other.call_tool(tool, given)
        said_now = json.dumps([result.structured_content, result.content[0].text])
        assert f"ava/{run_id}" not in said_now and "a + b" not in said_now and "Adding adds" not in said_now, said_now
        assert pending_id not in said_now
    for address in ("", "/transcript", "/artifacts/changes.diff"):
        words: list[str] = []
        for each in (run_id, NEVER):
            with pytest.raises(MCPError) as refused:
                await other.read_resource(f"ava://runs/{each}{address}")
            words.append(json.dumps(refused.value.error.model_dump(mode="json")).replace(each, "ID"))
        assert words[0] == words[1]
    assert [str(one.uri) for one in (await other.list_resources()).resources] == ["ava://roles"]
    template: Any = ResourceTemplateReference(uri="ava://runs/{id}")
    assert (await other.complete(template, {"name": "id", "value": run_id[:4]})).completion.values == []
