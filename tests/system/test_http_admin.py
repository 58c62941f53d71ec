"""Administration of a shared server: who sees, cancels, resumes and limits what belongs to other users."""

from __future__ import annotations

import json
import shlex
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.http_server import token
from support.model_server import Gate, Say
from support.network.admin_team import SPAWN, open_admin_team, refusal_of
from support.stdio import AVA, environment, read_answer, read_log, state_of, until

from ava_audit.store.store import Store
from ava_server.config.sign_in import Passkeys, new_passkey
from ava_server.config.tokens import Scope, read_tokens
from ava_server.core.data_root import DataRoot, os_user
from ava_server.runs.record.claims import hold

pytestmark = pytest.mark.slow

DONE = Say(calls=[("submit_result", {"summary": "done", "output": "done"})])


async def test_an_administrator_sees_and_cancels_the_runs_of_all_users(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path) as (all_of, _gate):
        anas, bens = await all_of.start(all_of.ana), await all_of.start(all_of.ben)
        proposed, _text = read_answer(await all_of.ben.call_tool("spawn_subagent", SPAWN))
        seen, _text = read_answer(await all_of.admin.call_tool("check_subagent", {}))
        assert {run["subagent_id"] for run in seen["runs"]} == {anas, bens, proposed["subagent_id"]}
        own, _text = read_answer(await all_of.ana.call_tool("check_subagent", {}))
        assert [run["subagent_id"] for run in own["runs"]] == [anas]
        assert "belong" not in f"{own.get('message')}{seen.get('message')}", "only who may see all learns how many"

        ended, _text = read_answer(
            await all_of.admin.call_tool("cancel_subagent", {"subagent_id": anas, "reason": "stuck"})
        )
        assert ended["status"] == "cancelled"
        result, _text = read_answer(await all_of.ana.call_tool("check_subagent", {"subagent_id": anas}))
        assert "by the administrator ops: stuck" in str(result)
        [asked] = read_log(all_of.root, "CancelRequested", run=anas)
        assert (asked.user, asked.content["by"]) == ("ops", "model")
        given = {"pending_id": proposed["pending_id"]}
        ended, _text = read_answer(await all_of.admin.call_tool("cancel_subagent", given))
        assert ended["status"] == "cancelled"
        entries, _text = read_answer(await all_of.admin.call_tool("read_ava_logs", {"subagent_id": bens}))
        assert entries["status"] != "failed"


async def test_nobody_else_reaches_a_run_of_another_user(tmp_path: Path) -> None:
    """A user, an auditor, and an administrator who would spend or speak for somebody."""
    async with open_admin_team(tmp_path) as (all_of, gate):
        bens = await all_of.start(all_of.ben)
        proposed, _text = read_answer(await all_of.ben.call_tool("spawn_subagent", SPAWN))
        for given in ({"subagent_id": bens}, {"pending_id": proposed["pending_id"]}):
            assert "of yours" in await refusal_of(all_of.ana, "cancel_subagent", **given)
            assert "lacks the scope spawn" in await refusal_of(all_of.auditor, "cancel_subagent", **given)
        approving = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        answer, _text = read_answer(await all_of.admin.call_tool("confirm_spawn", approving))
        assert answer["status"] != "approved", "an administrator approves nothing for others"
        assert "lacks the scope spawn" in await refusal_of(all_of.admin, "spawn_subagent", **SPAWN)
        message = {"subagent_id": bens, "message": "Stop."}
        assert "lacks the scope spawn" in await refusal_of(all_of.admin, "message_subagent", **message)
        asked = {"pending_ids": [bens], "approving": ["x"]}
        assert "lacks the scope spawn" in await refusal_of(all_of.auditor, "confirm_spawn", **asked)
        state, _text = read_answer(await all_of.ben.call_tool("check_subagent", {"subagent_id": bens}))
        assert state["status"] == "running" and len(all_of.model.requests) == 1
        assert gate.arrived.is_set()


async def test_an_administrator_resumes_a_run_of_another_user(tmp_path: Path) -> None:
    """With its exact line, and within its user's caps; another user cannot."""
    async with open_admin_team(tmp_path, config="[limits]\nrunning_per_user = 1\n") as (all_of, gate):
        await all_of.start(all_of.ana)
        queued = await all_of.start(all_of.ana)
        async with Store.open(all_of.root) as store:
            assert await store.do(hold(queued, frozenset()))
        wrong = {"pending_ids": [queued], "approving": ["x"]}
        assert "of yours" in await refusal_of(all_of.ben, "confirm_spawn", **wrong)
        answer, _text = read_answer(await all_of.admin.call_tool("confirm_spawn", wrong))
        assert answer["status"] == "refused"
        right = {"pending_ids": [queued], "approving": answer["approval_lines"]}
        answer, _text = read_answer(await all_of.admin.call_tool("confirm_spawn", right))
        assert answer["status"] == "resumed"
        gate.released.set()
        [resumed] = read_log(all_of.root, "RunResumed", run=queued)
        assert resumed.user == "ops"


async def test_an_administrator_starts_nothing_of_its_own_user(tmp_path: Path) -> None:
    """The same person may hold a token that spawns; the one that administers does not approve what that proposed."""
    async with open_admin_team(tmp_path) as (all_of, _gate):
        text = token(all_of.root, "ops", "spawn", "read", name="spawns")
        async with all_of.server.client(text) as spawns:
            proposed, _text = read_answer(await spawns.call_tool("spawn_subagent", SPAWN))
            approving = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            for given in (approving, {"pending_ids": [proposed["pending_id"]], "decision": "reject"}):
                assert "lacks the scope spawn" in await refusal_of(all_of.admin, "confirm_spawn", **given)
            assert read_log(all_of.root, "SpawnDecided") == []
            answer, text = read_answer(await spawns.call_tool("confirm_spawn", approving))
            assert answer["status"] == "approved", text


async def test_an_administrator_does_not_resume_what_only_a_person_may_approve(tmp_path: Path) -> None:
    """The policy of the run's user counts as well as the administrator's own."""
    config = "[limits]\nrunning_per_user = 1\n"
    async with open_admin_team(tmp_path, config=config) as (all_of, gate):
        await all_of.start(all_of.ana)
        queued = await all_of.start(all_of.ana)
        async with Store.open(all_of.root) as store:
            assert await store.do(hold(queued, frozenset()))
        wrong = {"pending_ids": [queued], "approving": ["x"]}
        answer, _text = read_answer(await all_of.admin.call_tool("confirm_spawn", wrong))
        right = {"pending_ids": [queued], "approving": answer["approval_lines"]}
        code, _out, err = await all_of.ava("user", "limit", "ana", "--approval", "human")
        assert code == 0, err
        with anyio.fail_after(40):
            while read_answer(await all_of.admin.call_tool("confirm_spawn", wrong))[0]["status"] == "refused":  # noqa: ASYNC110 - another process
                await anyio.sleep(0.5)
        assert 'approval = "human" is set' in await refusal_of(all_of.admin, "confirm_spawn", **right)
        assert 'approval = "human"' in (await all_of.ava("resume", queued))[2]
        assert read_log(all_of.root, "RunResumed", run=queued) == []
        gate.released.set()


async def test_an_administrator_resumes_from_elsewhere_and_gets_the_result(tmp_path: Path) -> None:
    gate, calls = Gate(), count()
    script = lambda _asked: DONE if next(calls) else Say("thinking", gate=gate)  # noqa: E731
    async with open_admin_team(tmp_path, config="[limits]\nrunning_per_user = 1\n", script=script) as (all_of, _gate):
        await all_of.start(all_of.ana)
        queued = await all_of.start(all_of.ana)
        async with Store.open(all_of.root) as store:
            assert await store.do(hold(queued, frozenset()))
        texts = {name: token(all_of.root, name, *scopes, name=f"{name}-2") for name, scopes in OTHERS.items()}
        env = {**environment(tmp_path / "elsewhere"), "AVA_URL": all_of.server.base}
        for name, code, says in (("ben", 2, "no subagent"), ("eve", 10, "lacks the scope spawn"), ("ops", 0, "done")):
            done = await anyio.run_process(
                [AVA[0], "resume", queued], env={**env, "AVA_TOKEN": texts[name]}, check=False
            )
            said = done.stdout.decode() + done.stderr.decode()
            assert (done.returncode, says in said) == (code, True), said
            if name == "eve":
                gate.released.set()


OTHERS: dict[str, tuple[Scope, ...]] = {"ben": ("spawn", "read"), "eve": ("audit",), "ops": ("admin",)}


async def test_the_owner_of_the_data_root_steers_all_runs_in_a_terminal(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path, config="[limits]\nrunning_per_user = 1\n") as (all_of, gate):
        running = await all_of.start(all_of.ana)
        queued = await all_of.start(all_of.ana)
        await until(gate.arrived.is_set)
        code, out, err = await all_of.ava("status", "--once")
        assert code == 0 and "2 unfinished runs belong to other users." in out, err
        code, out, err = await all_of.ava("cancel", running, "--reason", "too dear")
        assert code == 0 and "cancelled" in out, err
        async with Store.open(all_of.root) as store:
            await store.do(hold(queued, frozenset()))
        gate.released.set()
        code, out, err = await all_of.ava("cancel", queued)
        assert code == 0, out + err
        result, _text = read_answer(await all_of.ana.call_tool("check_subagent", {"subagent_id": running}))
        assert "by the administrator" in str(result) and "too dear" in str(result)


async def test_a_user_is_added_limited_and_removed_beside_a_running_server(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path, script=lambda _asked: DONE) as (all_of, _gate):
        code, out, err = await all_of.ava("user", "add", "dora", "--running", "2", "--daily", "1.00", "--quiet")
        assert code == 0 and out.strip().startswith("avatok_") and len(out.splitlines()) == 1, err
        async with all_of.server.client(out.strip()) as dora:
            await all_of.start(dora)
            code, out, err = await all_of.ava("user", "limit", "dora", "--daily", "0")
            assert code == 0 and "$0.00 today" in out, err

            async def is_limited() -> bool:
                proposed, _text = read_answer(await dora.call_tool("spawn_subagent", SPAWN))
                if proposed["status"] == "failed":
                    return "users.dora.daily_cents" in str(proposed)
                given = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                answer, _text = read_answer(await dora.call_tool("confirm_spawn", given))
                return answer["status"] == "refused" and "users.dora.daily_cents" in str(answer)

            with anyio.fail_after(40):
                while not await is_limited():  # noqa: ASYNC110 - it happens in another process
                    await anyio.sleep(0.5)
            code, out, err = await all_of.ava("user", "add", "dora")
            assert code == 2 and "There is a user dora already" in err
            code, out, err = await all_of.ava("user", "remove", "dora")
            assert code == 0, err
            with pytest.raises(Exception):  # noqa: B017 - each era fails in its own way
                await dora.call_tool("check_subagent", {})
        changed = [entry.content for entry in read_log(all_of.root, "SettingsChanged")]
        dora_s = [(each["before"], each.get("after")) for each in changed if each["setting"] == "users.dora"]
        assert dora_s == [
            ({}, {"running": 2, "daily_cents": 100}),
            ({"daily_cents": 100}, {"daily_cents": 0}),
            ({"running": 2, "daily_cents": 0}, None),
        ]


async def test_a_broken_config_file_leaves_the_limits_as_they_were(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path, config="[users.ana]\ndaily_cents = 0\n", script=lambda _asked: DONE) as (
        all_of,
        _gate,
    ):
        (all_of.root / "config.toml").write_text("[users.ana]\ndaily_cents = 'much'\n")
        await until(lambda: "stay as they were" in all_of.server.stderr)
        result, text = read_answer(await all_of.ana.call_tool("spawn_subagent", SPAWN))
        if result["status"] != "failed":
            given = {"pending_ids": [result["pending_id"]], "approving": [result["approval_line"]]}
            result, text = read_answer(await all_of.ana.call_tool("confirm_spawn", given))
        assert result["status"] in ("failed", "refused") and "users.ana.daily_cents" in text
        assert all_of.model.requests == []


async def test_an_administrator_adds_limits_and_removes_users_from_elsewhere(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path) as (all_of, _gate):
        admin = token(all_of.root, "ops", "admin", name="ops-laptop")
        env = {**environment(tmp_path / "elsewhere"), "AVA_URL": all_of.server.base, "AVA_TOKEN": admin}

        async def there(*words: str, **more: str) -> tuple[int, str, str]:
            with anyio.fail_after(60):
                done = await anyio.run_process([AVA[0], *words], env={**env, **more}, check=False)
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        code, out, err = await there("user", "add", "dora", "--daily", "1.00", "-q")
        assert code == 0 and len(out.splitlines()) == 1, err
        async with all_of.server.client(out.strip()) as dora:
            run = await all_of.start(dora)
        code, out, err = await there("user", "limit", "dora", "--running", "0", "--approval", "human")
        assert code == 0 and "0 running" in out and "approval human" in out, err
        code, out, err = await there("user", "list", "--json")
        assert code == 0 and {"dora", "ana", "ben"} <= {one["name"] for one in json.loads(out)["users"]}, err
        assert json.loads(out)["server"] == all_of.server.base, "as other commands name it"
        for words in (("limit", "dora", "-w", "/etc"), ("limit", "dora", "--role", "coder"),
                      ("add", "eve2", "--scope", "admin"), ("add", "eve2", "--scope", "spawn"), ("add", "ana"),
                      ("remove", "nobody")):  # fmt: skip
            code, _out, err = await there("user", *words)
            assert code == 2 and "Traceback" not in err, err
        for words in (("limit", "dora", "--approval", "ask"), ("remove", "eve")):
            code, _out, err = await there("user", *words)
            assert code == 2 and "only in a terminal on the server" in err, err  # given by the owner
        code, out, err = await there("user", "remove", "dora")
        assert code == 0 and "Token dora of dora is revoked" in out and "The limits of dora stay" in out, err
        code, out, err = await all_of.ava("user", "remove", "dora")
        assert code == 0 and f"To cancel them: `ava cancel {run}`" in " ".join(out.split()), (out, err)
        code, _out, err = await there("user", "add", "dora", "--running", "1", "-q")
        assert code == 2 and "dora has runs in the log" in err, "another person would see them"
        code, text, err = await there("user", "add", "dora2", "--daily", "1.00", "-q")
        async with all_of.server.client(text.strip()) as dora:
            run = await all_of.start(dora)
        code, out, err = await there("user", "remove", "dora2")
        assert code == 0 and "is revoked" in out, err
        ends = shlex.split(" ".join(out.split()).partition("To cancel them: `")[2].partition("`")[0])
        assert ends == ["ava", "--url", all_of.server.base, "cancel", run]
        assert (await there(*ends[1:]))[0] == 0
        await until(lambda: state_of(all_of.root, run) == "cancelled")
        for text, scope in ((token(all_of.root, "eve", "audit", name="a2"), "admin"), ("avatok_wrong", "token")):
            code, out, err = await there("user", "list", AVA_TOKEN=text)
            assert code == 10 and scope in err and not out, err
        by = [entry.user for entry in read_log(all_of.root, "SettingsChanged") if "dora" in str(entry.content)]
        assert by.count("ops") == 7 and len({*by}) == 2, "the administrator's changes, and two of the owner's"


LIMITED = """
[users.gus]
roles = ["researcher"]
workspaces = ["/srv/gus"]
daily_cents = 100
running = 1
spawns_per_hour = 2
"""


async def test_an_administrator_lifts_no_limit_by_removing_and_adding_a_user(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path, config=LIMITED) as (all_of, _gate):
        admin = token(all_of.root, "ops", "admin", name="ops-laptop")
        gus = token(all_of.root, "gus", name="gus")

        async def limits() -> dict[str, Any]:
            listed = json.loads((await all_of.server.get("/users", admin)).text)["users"]
            [found] = [one for one in listed if one["name"] == "gus"]
            return {name: value for name, value in found.items() if name != "tokens"}

        before = await limits()
        assert (before["roles"], before["daily_cents"], before["workspaces"]) == (["researcher"], 100, ["/srv/gus"])
        answer = await all_of.server.request("DELETE", "/users/gus", admin)
        removed = {"revoked": ["gus"], "limited": True, "limits_stay": True, "passkeys": [], "unended": []}
        assert (answer.status_code, answer.json()) == (200, removed)
        assert (await all_of.server.get("/token", gus)).status_code == 401, "revoking a token is always possible"
        for method, body in (("POST", {}), ("POST", {"daily_cents": 900}), ("DELETE", None)):
            answer = await all_of.server.request(method, "/users/gus", admin, json=body)
            assert answer.status_code == 400, answer.text
        assert await limits() == before
        assert "[users.gus]" in (all_of.root / "config.toml").read_text()


async def test_an_administrator_gets_no_token_of_the_operator(tmp_path: Path) -> None:
    """Over HTTP, that user has the secrets, the MCP servers and the folders of this machine."""
    async with open_admin_team(tmp_path) as (all_of, _gate):
        admin = token(all_of.root, "ops", "admin", name="ops-laptop")
        answer = await all_of.server.request("POST", f"/users/{os_user()}", admin, json={})
        assert answer.status_code == 400 and "operator" in answer.text and "avatok_" not in answer.text
        changes = read_log(all_of.root, "SettingsChanged")
        assert [each for each in changes if each.content["setting"] != "approval"] == []


async def test_an_administrator_elsewhere_takes_nobodys_passkey_away(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path) as (all_of, _gate):
        admin, passkeys = token(all_of.root, "ops", "admin", name="ops-laptop"), DataRoot(all_of.root).passkeys
        token(all_of.root, "dan", "read", name="dans")
        Passkeys(passkeys).add(new_passkey("dan", "laptop", "localhost", b"dans", b"key", 0))
        answer = await all_of.server.request("DELETE", "/users/dan", admin)
        assert answer.status_code == 400 and "dan has a passkey" in answer.text
        assert Passkeys(passkeys).of("dan") and "dans" in read_tokens(DataRoot(all_of.root).tokens_file)
        Passkeys(passkeys).remove("dan", "laptop")
        assert (await all_of.server.request("DELETE", "/users/dan", admin)).status_code == 200


async def test_the_address_of_the_users_takes_only_what_restricts(tmp_path: Path) -> None:
    async with open_admin_team(tmp_path) as (all_of, _gate):
        admin = token(all_of.root, "ops", "admin", name="ops-laptop")
        before = (all_of.root / "config.toml").read_text()
        for body in ({"workspaces": ["/"]}, {"roles": ["coder"]}, {"scopes": ["approve"]}, {"running": -1},
                     {"daily_cents": "1"}, {"running": True}, {"approval": "never"}, {}, ["x"],
                     {"running": 1, "expires": "1d"}):  # fmt: skip
            answer = await all_of.server.request("PATCH", "/users/ana", admin, json=body)
            assert answer.status_code == 400, body
        for path in ("/users/a b", "/users/../ana", "/users/ana/x", "/users/" + "a" * 90):
            answer = await all_of.server.request("PATCH", path, admin, json={"running": 1})
            assert answer.status_code in (400, 404), path
        for name, texts in (("ana", ("spawn", "read")), ("eve", ("audit",)), ("ivo", ("approve",))):
            text = token(all_of.root, name, *texts, name=f"other-{name}")
            for method, path in (("GET", "/users"), ("PATCH", "/users/ana"), ("POST", "/users/x"),
                                 ("DELETE", "/users/ben")):  # fmt: skip
                answer = await all_of.server.request(method, path, text)
                assert answer.status_code == 403 and "admin" in answer.text, (name, method)
        assert (await all_of.server.get("/users")).status_code == 401
        assert (all_of.root / "config.toml").read_text() == before
