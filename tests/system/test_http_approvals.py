"""Deciding from elsewhere: `/approvals`, and `ava --url URL approve` with a token and no shell on the server."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.from_thread
import anyio.to_thread
import pytest
from support.hosts.distant_person import DONE, open_distant_person
from support.http_server import token
from support.model_server import run_model_server
from support.network.certificates import issue
from support.network.web_site import make_certificate
from support.runtime import PRICED
from support.stdio import read_answer, read_log, state_of
from support.terminal import CONTROLLED, ava, run_on_terminal

pytestmark = pytest.mark.slow

PAID = PRICED.replace("custom:test", "custom:scripted")


@pytest.mark.requirement("S2-29")
async def test_with_policy_human_only_an_approve_token_can_approve_over_http(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        proposed = await there.propose()
        asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        with anyio.move_on_after(1):  # it waits for a person's decision
            raise AssertionError(await there.client.call_tool("confirm_spawn", asked))
        assert state_of(there.root, proposed["subagent_id"]) == "awaiting_approval"
        waiting = read_answer(await there.client.call_tool("check_subagent", {"subagent_id": proposed["subagent_id"]}))[
            0
        ]
        command = f"`ava --url {there.server.base} approve {proposed['pending_id']}`"
        assert command in proposed["next"] and command in waiting["runs"][0]["waits_for"]
        (shown,) = await there.shown()
        assert shown["approval_line"] == proposed["approval_line"] and shown["message"]
        digests = {shown["pending_id"]: shown["digest"]}
        status, answer = await there.decide(decision="approve", **asked, digests=digests)
        assert (status, answer["status"]) == (200, "approved")
        found = read_answer(await there.client.call_tool(
            "check_subagent", {"subagent_id": proposed["subagent_id"], "wait_seconds": 20}
        ))[0]  # fmt: skip
        assert found["status"] == "success"
        again, late = await there.decide(decision="approve", **asked, digests=digests)
        assert again == 409 and "was approved already, over HTTP at" in late["decisions"][0]["refused_because"]
    (decided,) = read_log(there.root, "SpawnDecided")
    assert decided.content["channel"] == "http" and decided.content["digest"] == shown["digest"]
    (said,) = [entry for entry in read_log(there.root, "UserMessage") if entry.content["kind"] == "decision"]
    assert proposed["approval_line"] in said.content["text"]


async def test_the_hourly_limit_does_not_apply_to_a_token_with_the_scope_approve(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data", PAID + "[users.ana]\nspawns_per_hour = 0\n") as there:
        proposed = await there.propose()
        asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        refused = read_answer(await there.client.call_tool("confirm_spawn", asked))[0]["decisions"][0]
        for said in (proposed["next"], refused["refused_because"]):
            assert "(users.ana.spawns_per_hour in the data root/config.toml)" in said
            assert str(there.root) not in said
        (shown,) = await there.shown()
        status, answer = await there.decide(decision="approve", **asked, digests={shown["pending_id"]: shown["digest"]})
        assert (status, answer["status"]) == (200, "approved")


async def test_a_wrong_line_digest_or_user_cannot_approve(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        proposed = await there.propose()
        (shown,) = await there.shown()
        pending, right = shown["pending_id"], {"approving": [shown["approval_line"]]}
        digests = {pending: shown["digest"]}
        bens = token(there.root, "ben", "approve")
        whole = {"decision": "approve", "pending_ids": [pending]}
        tries: list[tuple[str | None, dict[str, Any], int]] = [
            (None, {**whole, **right}, 400),
            (None, {**whole, **right, "digests": {pending: "0" * 64}}, 409),
            (None, {**whole, "approving": ["yes"], "digests": digests}, 409),
            (None, {**whole, "digests": digests}, 409),
            (None, {**whole, **right, "digests": digests, "wait_seconds": 45}, 400),
            (None, {**whole, **right, "digests": digests, "changes": {}}, 400),
            (None, {**whole, **right, "digests": digests, "pending_ids": [proposed["subagent_id"]]}, 400),
            (bens, {**whole, **right, "digests": digests}, 409),
            (bens, {"decision": "reject", "pending_ids": [pending]}, 409),
        ]
        for text, given, status in tries:
            found, answer = await there.decide_as(text or there.text, **given)
            assert found == status, (given, answer)
            assert "marmalade" not in json.dumps(answer)
        never = "P-0dd0dd0d"
        answers = [
            json.dumps(await there.decide_as(bens, decision="reject", pending_ids=[each])).replace(each, "ID")
            for each in (pending, never)
        ]
        assert answers[0] == answers[1]
        assert (await there.server.get("/approvals", bens)).json()["proposals"] == []
        assert state_of(there.root, proposed["subagent_id"]) == "awaiting_approval"
        assert (await there.server.request("DELETE", "/approvals", there.text)).status_code == 405


async def test_tells_only_its_user_what_became_of_a_proposal(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        proposed = await there.propose()
        pending, run_id = proposed["pending_id"], proposed["subagent_id"]
        bens, never = token(there.root, "ben", "approve"), "P-0dd0dd0d"
        shown = json.dumps([{"kind": "start", "id": pending}, {"kind": "extend", "id": run_id, "digest": "x"}])

        async def outcomes(text: str) -> dict[str, Any]:
            answer = await there.server.get(f"/approvals/outcomes?shown={quote(shown)}", text)
            assert answer.status_code == 200, answer.text
            return {**answer.json(), "upto": 0}

        assert pending not in (await outcomes(there.text))["sentences"], "it still waits"
        unknown = {one: f"{one} is not known any more." for one in (pending, run_id)}
        assert await outcomes(bens) == {"sentences": unknown, "approved": [], "upto": 0}
        assert (await there.decide(decision="reject", pending_ids=[pending]))[0] == 200
        found = await outcomes(there.text)
        assert "was rejected already, over HTTP at" in found["sentences"][pending] and found["approved"] == []
        assert (await outcomes(bens))["sentences"] == unknown
        for text, given, status, says in (
            (there.text, pending, 409, "was rejected already, over HTTP at"),
            (bens, pending, 400, f"{pending} does not wait here"),
            (bens, never, 400, f"{never} does not wait here"),
            (there.text, "nonsense", 400, "is not an id"),
        ):
            answer = await there.server.get(f"/approvals?id={given}", text)
            assert answer.status_code == status and says in answer.text, answer.text
        for query in ("outcomes?shown=[1]", "outcomes?shown={", "outcomes?shown=[{}]"):
            assert (await there.server.get(f"/approvals/{query}", there.text)).status_code == 400
        assert (await there.server.get("/approvals/other", there.text)).status_code == 404
        other = token(there.root, "ana", name="host2")
        assert (await there.server.get("/approvals/outcomes", other)).status_code == 403


async def test_a_question_that_was_decided_elsewhere_withdraws_itself_and_says_who_decided(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        proposed = await there.propose()
        pending = proposed["pending_id"]

        def asked() -> tuple[int, str]:
            words, own = ("--url", there.server.base, "approve", pending), {"AVA_TOKEN": there.text}
            with run_on_terminal(tmp_path / "elsewhere", *words, env=own, columns=200, command=CONTROLLED) as screen:
                screen.until("Start it? [y/N]")
                anyio.from_thread.run(partial(there.decide, decision="reject", pending_ids=[pending]))
                return screen.ended(), screen.text

        code, text = await anyio.to_thread.run_sync(asked)
        assert code == 10 and f"{pending} was rejected already, over HTTP at" in text, text


async def test_a_remote_person_sees_the_same_screen_and_starts_several_runs_as_a_plan(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        one, other = await there.propose("What does it cost?"), await there.propose("And the other?")
        ids = [one["pending_id"], other["subagent_id"]]
        code, text = await there.typed("approve", *ids, "--group-max", "0.5", answers=[("Start them?", "y")])
        assert code == 0, text
        assert f"Server: {there.server.base}" in text and "All of them can read the web." in text
        assert "2 subagents together" in text and "Approved, as the plan G-" in text
        assert await there.shown() == []
        assert (await there.typed("approve"))[1].count("Nothing waits") == 1
        gone = await there.typed("approve", one["pending_id"])
        assert gone[0] == 10 and "was approved already, over HTTP at" in gone[1]
    assert {entry.content["channel"] for entry in read_log(there.root, "SpawnDecided")} == {"http"}


async def test_a_plan_of_many_long_steps_is_approved_while_its_texts_are_folded(tmp_path: Path) -> None:
    """What was on the screen and what was folded may be longer than the log has of it."""
    steps = [
        {"id": f"step_{number}", "role": "researcher", "task": f"Question {number}? " + "why " * 90}
        for number in range(100)
    ]
    async with open_distant_person(tmp_path / "data") as there:
        plan = read_answer(await there.client.call_tool("spawn_subagent", {"steps": steps, "max_cost_cents": 100}))[0]
        code, text = await there.typed("approve", plan["pending_id"], answers=[("Start it?", "y")])
        assert code == 0 and "Folded: task of 100 steps, " in text, text[-2000:]
    (decided,) = [each.content for each in read_log(there.root, "SpawnDecided") if each.content.get("folded")]
    assert len(decided["folded"]) <= 2_000


async def test_proposals_can_be_started_rejected_or_left_one_by_one(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        runs = [await there.propose(f"Question {number}?") for number in range(3)]
        asked = [("Start them?", "o")]
        asked += [(f"{number} of 3: start it?", reply) for number, reply in enumerate(("y", "", "r"), 1)]
        code, text = await there.typed("approve", answers=asked)
        assert code == 0, text
        states = [state_of(there.root, run["subagent_id"]) for run in runs]
        assert states[0] != "awaiting_approval" and states[1:] == ["awaiting_approval", "rejected"]
        left = runs[1]["pending_id"]
        code, text = await there.typed("reject", left)
        assert code == 0 and f"{left} is rejected" in text


async def test_the_token_comes_from_a_file_or_the_environment_never_from_an_argument(tmp_path: Path) -> None:
    async with open_distant_person(tmp_path / "data") as there:
        await there.propose()
        file = tmp_path / "token"
        file.write_text(f"{there.text}\n")
        file.chmod(0o600)
        words = ("--url", there.server.base, "--token-file", str(file), "approve")

        def run(*args: str, **env: str) -> Any:
            return ava(tmp_path / "elsewhere", *args, env=env)

        listed = await anyio.to_thread.run_sync(run, *words)
        assert listed.returncode == 0 and "1 of 1, P-" in listed.stdout, listed.stderr
        file.chmod(0o644)
        readable = await anyio.to_thread.run_sync(run, *words)
        assert readable.returncode == 2 and "chmod 600" in readable.stderr
        none = await anyio.to_thread.run_sync(run, "--url", there.server.base, "approve")
        assert none.returncode == 2 and "AVA_TOKEN" in none.stderr
        wrong = await anyio.to_thread.run_sync(lambda: run("--url", there.server.base, "approve", AVA_TOKEN="x" * 40))
        assert wrong.returncode == 10 and "ava token create" in wrong.stderr
        scope = await anyio.to_thread.run_sync(
            lambda: run("--url", there.server.base, "approve", AVA_TOKEN=token(there.root, "ana", name="host"))
        )
        assert scope.returncode == 10 and "scope approve" in scope.stderr
        for args in (("--url", there.server.base, "roles"), ("--token-file", str(file), "approve"),
                     ("--url", "http://ava.example.org", "approve"), ("--url", "no address", "approve")):  # fmt: skip
            refused = await anyio.to_thread.run_sync(partial(run, *args, AVA_TOKEN=there.text))
            assert refused.returncode == 2 and there.text not in refused.stderr, args
        assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("fault", ["its own authority", "another name", "no server", "no TLS"])
def test_explains_a_certificate_fault_before_sending_the_token(tmp_path: Path, fault: str) -> None:
    text = "avatok_" + "Ab3" * 14 + "x"
    if fault == "another name":
        issued = issue(tmp_path, "other.example.org")
        certificate: Path | None = issued.server
        env = {"SSL_CERT_FILE": str(issued.authority)}
    else:
        certificate = make_certificate(tmp_path, "localhost") if fault == "its own authority" else None
        env = {}
    with run_model_server([DONE], certificate=certificate) as server:
        port = server.base_url.rpartition(":")[2].split("/")[0] if fault != "no server" else "1"
        done = ava(
            tmp_path / "elsewhere", "--url", f"https://localhost:{port}", "approve", env={"AVA_TOKEN": text, **env}
        )
        assert server.requests == []
    assert done.returncode == 30, done.stderr
    assert text not in done.stderr and "Traceback" not in done.stderr
    says = {"no server": "ava serve --http", "no TLS": "oken was"}.get(fault, "SSL_CERT_FILE")
    assert says in done.stderr.replace("\n", " ")
    assert os.environ.get("AVA_TOKEN") is None
