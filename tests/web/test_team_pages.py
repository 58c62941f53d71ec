"""The pages of a team's server: people see their own runs only, and a token's scopes say what its session may do."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
from support.http_server import token
from support.model_server import Say, Step
from support.pages.browser import PAID, PIN, There, Visitor, finish_at_once, open_team, set_pin
from support.runtime import hand_over
from support.stdio import read_log

from ava_server.config.pin import PinFile
from ava_server.config.tokens import Scope
from ava_server.core.data_root import DataRoot
from ava_server.core.files import replace_file

SETTINGS = f'{PAID}\n[users.hal]\napproval = "human"\n'


def script(asked: dict[str, Any]) -> Step:
    """Ask where the task says so; else hand over a result."""
    if "TASK: ask" not in json.dumps(asked["messages"]):
        return finish_at_once(asked)
    results = [each["content"] for each in asked["messages"] if each["role"] == "tool"]
    return (
        hand_over(output=" | ".join(results)) if results else Say(calls=[("ask", {"question": "In which currency?"})])
    )


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(tmp_path_factory.mktemp("team") / "data", SETTINGS, script) as there:
        yield there


pytestmark = pytest.mark.slow
NUMBER = iter(range(1_000))


def visitor_of(team: There, user: str, *scopes: Scope) -> Visitor:
    return team.with_token(token(team.root, user, *scopes, name=f"{user}-{next(NUMBER)}"))


def test_what_belongs_to_another_user_does_not_exist(team: There) -> None:
    proposed = team.host.propose(task="What does marmalade cost?")
    ben, run_id = visitor_of(team, "ben", "spawn", "read", "approve"), proposed["subagent_id"]
    for path in (
        f"/subagents/{run_id}",
        f"/subagents/{run_id}/sources/1",
        f"/proposals/{proposed['pending_id']}",
        f"/proposals?id={proposed['pending_id']}",
        f"/proposals/{run_id}",
        f"/stream?run={run_id}",
    ):
        answer = ben.get(path)
        assert answer.status_code == 404 and "marmalade" not in answer.text, path
        unknown = ben.get(path.replace(run_id, "S-0dd0dd").replace(proposed["pending_id"], "P-0dd0dd0d"))
        same = unknown.text.replace("S-0dd0dd", run_id).replace("P-0dd0dd0d", proposed["pending_id"])
        assert unknown.status_code == 404 and same == answer.text, "the same answer as for an unknown id"
    for path in ("/", "/?all", "/subagents"):
        assert run_id not in ben.get(path).text and proposed["pending_id"] not in ben.shown
    (made,) = read_log(team.root, "SpawnProposed", run=run_id)
    form = {"csrf": ben.csrf, "id": proposed["pending_id"], "digest": made.content["digest"]}
    for word in ("approve", "reject"):
        answer = ben.post("/proposals", {**form, "decision": word})
        assert answer.status_code in (400, 404, 409) and "marmalade" not in answer.text
    for path in ("cancel", "message", "extension"):
        answer = ben.post(f"/subagents/{run_id}/{path}", {**form, "decision": "approve", "message": "x"})
        assert answer.status_code in (400, 404, 409) and "marmalade" not in answer.text
    assert team.state(proposed) == "awaiting_approval"


def test_nothing_of_another_user_reaches_a_stream(team: There) -> None:
    ben = visitor_of(team, "ben", "read")
    with ben.http.stream("GET", "/stream") as stream:
        pieces = stream.iter_text()
        assert "event: open" in next(pieces)
        team.host.propose(task="Something of Ana's")
        team.host_of(token(team.root, "ben", name=f"ben-{next(NUMBER)}")).propose(task="Something of Ben's")
        while "changed" not in (piece := next(pieces)):
            assert ":" in piece
        before = next(piece for piece in [piece])
        assert before.count("event: changed") == 1
        (bens,) = [e.seq for e in read_log(team.root, "SpawnProposed") if e.user == "ben"][-1:]
        assert int(before.partition("data: ")[2].split()[0]) >= bens, "the event is about Ben's, not about Ana's"


def test_a_token_without_the_scope_approve_looks_and_rejects(team: There) -> None:
    proposed = team.host.propose()
    visitor = visitor_of(team, "ana", "spawn", "read")
    assert "lacks the scope approve" in visitor.get(f"/proposals/{proposed['pending_id']}").text
    refused = visitor.decide(proposed["pending_id"], "approve")
    assert refused.status_code == 409 and "lacks the scope approve" in refused.text and team.starts(proposed) == 0
    assert visitor.decide(proposed["pending_id"], "reject").status_code == 303
    (found,) = read_log(team.root, "SpawnDecided", run=proposed["subagent_id"])
    assert found.content["channel"] == "host_call", "the token may be a host's"


def test_a_token_that_only_reads_changes_nothing(team: There) -> None:
    proposed = team.host.propose(task="TASK: ask")
    approver, reader = visitor_of(team, "ana", "read", "approve"), visitor_of(team, "ana", "read")
    refused = reader.decide(proposed["pending_id"], "reject")
    assert refused.status_code == 409 and team.state(proposed) == "awaiting_approval"
    assert approver.decide(proposed["pending_id"], "approve").status_code == 303
    run_id = proposed["subagent_id"]
    team.until(lambda: read_log(team.root, "Asked", run=run_id))
    for path in ("cancel", "message", "extension"):
        form = {"csrf": reader.csrf, "message": "EUR", "decision": "reject", "digest": "x"}
        answer = reader.post(f"/subagents/{run_id}/{path}", form)
        assert answer.status_code == 409 and "lacks the scope" in answer.text, path
    assert not read_log(team.root, "Answered", run=run_id)
    sent = approver.post(f"/subagents/{run_id}/message", {"csrf": approver.csrf, "message": "EUR"})
    assert sent.status_code == 303
    assert "The person answers" in json.dumps(team.host.ended(run_id))


def test_an_auditor_sees_all_runs_and_decides_about_none(team: There) -> None:
    proposed = team.host.propose(task="What does marmalade cost?")
    auditor = visitor_of(team, "ivy", "read", "audit", "approve")
    page = auditor.get(f"/proposals/{proposed['pending_id']}")
    assert page.status_code == 200 and "marmalade" in page.text and "belongs to another user" in page.text
    assert 'name="decision"' not in page.text and proposed["pending_id"] not in auditor.get("/").text
    (made,) = read_log(team.root, "SpawnProposed", run=proposed["subagent_id"])
    form = {"csrf": auditor.csrf, "id": proposed["pending_id"], "digest": made.content["digest"]}
    for word in ("approve", "reject"):
        assert auditor.post("/proposals", {**form, "decision": word}).status_code in (400, 404, 409)
    assert team.state(proposed) == "awaiting_approval"


def test_under_human_a_token_that_may_approve_is_asked_for_the_pin_where_there_is_one(team: There) -> None:
    hals = team.host_of(token(team.root, "hal", name=f"hal-{next(NUMBER)}"))
    visitor = visitor_of(team, "hal", "read", "approve")
    first = hals.propose()
    assert visitor.decide(first["pending_id"], "approve").status_code == 303
    set_pin(team.root)
    try:
        second = hals.propose(task="Another?")
        assert visitor.decide(second["pending_id"], "approve").status_code == 409
        assert visitor.decide(second["pending_id"], "approve", pin="00 00 01").status_code == 409
        assert team.starts(second) == 0
        assert visitor.decide(second["pending_id"], "approve", pin=PIN).status_code == 303
    finally:
        PinFile(DataRoot(team.root).approval_file).remove(PIN)


def test_a_page_of_another_user_never_names_the_token_of_a_host(team: There) -> None:
    visitor = visitor_of(team, "ana", "read", "approve")
    for path in ("/", "/subagents"):
        assert "avatok_" not in visitor.get(path).text
    assert visitor.cookie not in team.server.stderr


@pytest.mark.parametrize("file", ["tokens.toml", "browser.toml", "passkeys.toml", "approval.toml"])
def test_a_damaged_file_does_not_say_where_the_server_keeps_it(team: There, file: str) -> None:
    proposed = team.host.propose()
    visitor = visitor_of(team, "ana", "read", "approve")
    damaged = DataRoot(team.root).tokens_file.with_name(file)
    before = damaged.read_bytes() if damaged.exists() else None
    shown = [pair for pair in visitor.fields(f"/proposals/{proposed['pending_id']}") if pair[0] != "decision"]
    approval = [*shown, ("decision", "approve")]
    replace_file(damaged, b"not TOML")
    try:
        for who in (visitor, team.visitor()):
            answers = [who.get("/"), who.get("/passkeys"), who.post("/proposals", approval)]
            answers += [who.post("/sign-in", {"token": "avatok_x", "to": "/"}), who.post("/passkeys/options", {})]
            assert not [answer.text for answer in answers if str(team.root) in answer.text]
        assert team.state(proposed) == "awaiting_approval"
    finally:
        damaged.unlink()
        if before is not None:
            replace_file(damaged, before)
