"""What a user over HTTP may do: `[users.NAME]` only takes away, and nothing of the server's own machine is theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp_types import TextResourceContents
from support.http_server import serve_http, token
from support.model_server import Gate, Say, run_model_server
from support.stdio import MODES, make_root, model_env, read_answer, until
from support.terminal import ava

from ava_server.approval import over_http
from ava_server.budget import user_limits
from ava_server.config.settings import load_settings
from ava_server.core.data_root import os_user
from ava_server.core.errors import BadInput

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])
ROLE = "---\nname: {name}\ndescription: Does it.\ntools: http_get, read_file\n{more}---\nDo it.\n"
PRICES = '[prices."custom:scripted"]\ninput = 3.0\noutput = 15.0\n'


def test_ignores_user_settings_that_are_looser_than_the_general_ones(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'approval = "ask"\n[limits]\nuser_daily_cents = 100\nrunning_per_user = 2\n'
        '[users.lax]\ndaily_cents = 9999\nrunning = 99\napproval = "auto"\n'
        '[users.strict]\ndaily_cents = 7\nrunning = 0\napproval = "human"\n'
        '[users."ana@example.org"]\napproval = "human"\n'
    )
    settings = load_settings(tmp_path, env={})
    for user in ("lax", "nobody"):
        assert user_limits.day_cents(settings, user) == 100 and user_limits.running(settings, user) == 2
        assert user_limits.policy_in_force(settings, user, pin=False) == ("ask", 'approval = "ask"')
        assert user_limits.policy_in_force(settings, user, pin=True) == ("human", "there is an approval PIN")
        assert user_limits.day_setting(settings, user) == "limits.user_daily_cents in config.toml"
    own = ("human", '[users.strict] approval = "human"')
    assert user_limits.policy_in_force(settings, "strict", pin=False) == own
    assert user_limits.policy_in_force(settings, "lax", "strict", pin=False) == own
    quoted = '[users."ana@example.org"] approval = "human"'
    assert user_limits.policy_in_force(settings, "ana@example.org", pin=False) == ("human", quoted)
    assert user_limits.day_cents(settings, "strict") == 7
    assert user_limits.day_setting(settings, "strict") == "users.strict.daily_cents in config.toml"
    assert "slots of strict" in (user_limits.slots(settings).full({}, "strict") or "")
    assert user_limits.slots(settings).full({"lax": 1}, "lax") is None
    assert user_limits.slots(settings).full({"lax": 2}, "lax")


def test_only_a_users_own_setting_opens_a_system_folder(tmp_path: Path) -> None:
    def path(*roots: str) -> Path | None:
        places = tuple(map(Path, roots))
        return over_http.workspace_over_http("/etc", places, tmp_path / "data", tmp_path).path

    assert path("/etc") == Path("/etc")
    for roots in (("/",), ("/var", "/")):
        with pytest.raises(BadInput, match="may not use"):
            path(*roots)


@pytest.mark.parametrize("mode", MODES)
async def test_allows_only_configured_folders_and_a_refusal_reveals_nothing(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, secret = tmp_path / "project", tmp_path / "secret"
    for folder in (project / "sub", secret):
        folder.mkdir(parents=True)
    (project / "notes.md").write_text("x")
    (project / "out").symlink_to(secret)
    root = make_root(tmp_path / "data", config_toml=f'[users.ana]\nworkspaces = ["{project}"]\n')
    text, bens = token(root, "ana"), token(root, "ben")
    env = {**model_env("http://127.0.0.1:9/v1"), "AVA_WORKSPACE": str(project)}
    spawn = {"role": "code_reviewer", "task": "Look"}
    async with (
        serve_http(root, env=env, cwd=project) as server,
        server.client(text, mode=mode) as ana,
        server.client(bens, mode=mode) as ben,
    ):

        async def said(client: Any, workspace: str | None) -> str:
            given = {**spawn, "workspace": workspace} if workspace is not None else spawn
            result = await client.call_tool("spawn_subagent", given)
            found = json.dumps(result.structured_content) + result.content[0].text
            assert str(root) not in found or workspace == str(root)
            return found if not result.is_error else f"refused: {found}"

        for given in (str(project), str(project / "sub")):
            assert not (await said(ana, given)).startswith("refused")
        refusals = [
            (await said(ana, given)).replace(repr(given), "GIVEN")
            for given in (str(secret), str(tmp_path / "nothing"), str(project / "out"), str(root), "/", "/proc",
                          str(project / "missing"))
        ]  # fmt: skip
        assert len(set(refusals)) == 1 and refusals[0].startswith("refused") and str(project) in refusals[0]
        for given in ("~", "relative", "file:///etc", "../secret"):
            refused = await said(ana, given)
            assert refused.startswith("refused") and str(Path.home()) not in refused.replace(str(project), "")
        assert (await said(ana, None)).startswith("refused")  # not the server's own folder, nor AVA_WORKSPACE
        for given in (str(project), str(secret)):
            theirs = await said(ben, given)
            assert theirs.startswith("refused") and "no folder is set" in theirs


@pytest.mark.parametrize("mode", MODES)
async def test_roles_with_secrets_or_network_must_be_granted_to_a_user_by_name(tmp_path: Path, mode: str) -> None:
    project = tmp_path / "project"
    (project / ".ava" / "roles").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (project / ".ava" / "roles" / "ours.md").write_text(ROLE.format(name="ours", more=""))
    root = make_root(
        tmp_path / "data",
        config_toml=f'[users.ben]\nroles = ["researcher", "keyed"]\n[users.ana]\nworkspaces = ["{project}"]\n',
    )
    (root / "roles").mkdir()
    for name, more in (("plain", ""), ("keyed", "secrets: [TICKETS]\n"), ("wired", "network: true\n")):
        (root / "roles" / f"{name}.md").write_text(ROLE.format(name=name, more=more))
    (root / "roles" / "broken.md").write_text("no role")
    (root / "memory").mkdir(mode=0o700)
    (root / "memory" / "note.md").write_text("the operator's own words\n")
    expected = {
        "ana": {"plain"}, "ben": {"researcher", "keyed"}, os_user(): {"plain", "keyed", "wired"},
    }  # fmt: skip
    env = model_env("http://127.0.0.1:9/v1")
    async with serve_http(root, env=env, cwd=project) as server:
        for user, names in expected.items():
            async with server.client(token(root, user, name=f"of-{len(user)}-{user[0]}"), mode=mode) as client:
                (content,) = (await client.read_resource("ava://roles")).contents
                assert isinstance(content, TextResourceContents)
                said = json.loads(content.text)
                found = {role["name"] for role in said["roles"]}
                assert found >= names and "ours" not in found
                assert not ({"keyed", "wired", "plain"} - names) & found
                assert bool(said["problems"]) == (user == os_user()), "what is wrong is for who can mend it"
                (spawn, *_others) = (await client.list_tools()).tools
                assert all(f"{name}:" in (spawn.description or "") for name in names)
                for name in {"keyed", "wired", "ours"} - names:
                    assert f"{name}:" not in (spawn.description or "")
                    given = {"role": name, "task": "x", "workspace": str(project)}
                    refused = await client.call_tool("spawn_subagent", given)
                    assert refused.is_error and f'no role \\"{name}\\"' in json.dumps(refused.structured_content)
                given = {"role": "researcher", "task": "https://example.org"}
                tools = read_answer(await client.call_tool("spawn_subagent", given))[0]["tools"]
                assert ("recall" in tools) == (user == os_user())


async def test_nobody_over_http_can_run_commands_without_a_sandbox(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    root = make_root(
        tmp_path / "data", config_toml=f'[sandbox]\nmode = "none"\n[users.ana]\nworkspaces = ["{project}"]\n'
    )
    async with (
        serve_http(root, env=model_env("http://127.0.0.1:9/v1")) as server,
        server.client(token(root, "ana")) as client,
    ):
        given = {"role": "code_reviewer", "task": "Look", "workspace": str(project)}
        proposed, _text = read_answer(await client.call_tool("spawn_subagent", given))
        assert "run_bash" not in proposed["tools"] and "run_bash" in proposed["unavailable_tools"]


@pytest.mark.parametrize("mode", MODES)
async def test_run_and_daily_limits_apply_per_user(tmp_path: Path, mode: str) -> None:
    root = make_root(
        tmp_path / "data",
        config_toml=f"[users.ana]\nrunning = 1\n[users.ben]\ndaily_cents = 0\n{PRICES}",
    )
    ana, ben = token(root, "ana"), token(root, "ben")
    gate = Gate()
    with run_model_server([Say("x", gate=gate), DONE, DONE, DONE]) as model:
        async with (
            serve_http(root, env=model_env(model.base_url)) as server,
            server.client(ana, mode=mode) as client,
            server.client(ben, mode=mode) as other,
        ):
            spawn = {"role": "custom", "system_prompt": "x", "task": "x"}
            refused = await other.call_tool("spawn_subagent", spawn)
            assert refused.is_error and "users.ben.daily_cents" in json.dumps(refused.structured_content)
            runs: list[str] = []
            for _each in range(2):
                proposed, _text = read_answer(await client.call_tool("spawn_subagent", spawn))
                given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                read_answer(await client.call_tool("confirm_spawn", given))
                runs.append(proposed["subagent_id"])
            await until(gate.arrived.is_set)

            listed = ava(root, "user", "list")
            assert listed.returncode == 0, listed.stderr
            lines = {line.split()[0]: line for line in listed.stdout.splitlines()[1:]}
            assert set(lines) == {"ana", "ben", os_user()}
            assert "1 of 1 running, 1 waiting" in lines["ana"] and "1 token" in lines["ana"]
            assert "$0.00 of $0.00 today;" in lines["ben"]
            assert re.search(r"\$0\.00 of \$10\.00 today \(\$0\.\d\d reserved for work in progress\);", lines["ana"])
            (entry,) = [
                one for one in json.loads(ava(root, "user", "list", "--json").stdout)["users"] if one["name"] == "ana"
            ]
            assert entry["running"] == 1 and entry["running_limit"] == 1
            assert entry["spent_cents"] == 0 and entry["held_cents"] > 0
            second = read_answer(await client.call_tool("check_subagent", {"subagent_id": runs[1]}))[0]["runs"][0]
            assert second["state"] == "queued" and "1 slots of ana" in second["waits_for"]
            gate.released.set()
            for run_id in runs:
                asked = {"subagent_id": run_id, "wait_seconds": 30}
                assert read_answer(await client.call_tool("check_subagent", asked))[0]["status"] == "success"
