"""Under the policy `human`, a client that can open a page sends the person there, and only the log has the decision."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult, ErrorData, InputRequiredResult
from support.hosts.elicitation import Host, Person, approval, decline, refusal_reason
from support.hosts.pages import ADDRESS, HUMAN, PIN, PageHost, accept_page, answer_page, page_host, run_near_cap
from support.runtime import PRICED, connect, hand_over

from ava_audit.events import Answered
from ava_audit.rows import WAITING
from ava_audit.store.store import Store
from ava_server.approval import requests as limits_of_calls
from ava_server.config.pin import PinFile
from ava_server.core import background
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import ConfigError
from ava_server.mcp_server import elicitation
from ava_server.service import access


@pytest.fixture(autouse=True)
def known_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process starts no server for the pages; their address is known."""
    monkeypatch.setattr(background, "start_pages", lambda _root: ADDRESS)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may wait only for a moment."""
    monkeypatch.setattr(elicitation, "ASK_S", 0.5)
    monkeypatch.setattr(limits_of_calls, "WAIT_LIMIT_S", 0.5)


async def test_an_approval_on_the_page_starts_the_run_and_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        assert "a page of Ava" in made["next"]
        at.when_opened(at.decide, made)
        answer = await at.confirm(made)
        assert answer["status"] == "approved", answer
        assert answer["decisions"][0]["subagent_id"] == made["subagent_id"]
        assert (await at.started_once(made)).channel == "browser"
        [page] = at.browser.opened
        assert page.url == f"{ADDRESS}/proposals/{made['pending_id']}", "neither a token nor a code"
        assert made["approval_line"] in page.message and "PIN" in page.message
        again = await at.confirm(made)
        assert "approved already" in refusal_reason(again) and len(at.browser.opened) == 1


async def test_an_approval_with_wait_seconds_returns_the_result(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        at.when_opened(at.decide, made, changes={made["pending_id"]: {"max_cost_micros": 200_000}})
        answer = await at.confirm(made, wait_seconds=20)
        assert answer["runs"][0]["state"] == "success", answer
        assert answer["message"].startswith("The person lowered the cost cap from $0.50 to $0.20.")


async def test_a_rejection_on_the_page_is_the_answer(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        at.when_opened(at.decide, made, decision="reject")
        answer = await at.confirm(made)
        assert answer["status"] == "rejected", answer
        assert answer["decisions"][0]["refused_because"] == "the person rejected it"
        assert "Ask the person what they want instead" in answer["next"] and at.models.requests == []


async def test_a_decision_in_a_terminal_ends_a_question_that_is_still_open(tmp_path: Path) -> None:
    async with page_host(tmp_path, "legacy") as at:
        made = await at.propose()

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made, channel="terminal")
            await anyio.sleep_forever()
            raise AssertionError

        at.browser.opens = opens
        answer = await at.confirm(made)
        assert answer["status"] == "approved", answer
        assert (await at.started_once(made)).channel == "terminal"
        [page] = at.browser.opened
        assert at.browser.completed == [page.elicitation_id], "the client is told to close its question"


async def test_a_decision_after_the_page_was_opened_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        async with anyio.create_task_group() as tasks:

            async def decide_later() -> None:
                tasks.start_soon(at.decide, made)

            at.when_opened(decide_later)
            assert (await at.confirm(made))["status"] == "approved"
        await at.started_once(made)


@pytest.mark.usefixtures("short")
async def test_without_a_decision_the_call_ends_and_the_next_one_waits_on(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert refusal_reason(answer) == "it still waits for the person"
        for words in (
            f"can decide: {ADDRESS}/proposals/{made['pending_id']}", f"ava approve {made['pending_id']}",
            "Call confirm_spawn again with the same arguments to wait",
        ):  # fmt: skip
            assert words in answer["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        assert len(at.browser.opened) == 1, "the page is open already"
        await at.started_once(made)


async def test_a_host_that_opens_no_pages_is_given_the_link_with_the_proposal_and_then_waits(
    tmp_path: Path, era: str
) -> None:
    async with page_host(tmp_path, era, name="codex-mcp-client") as at:
        made = await at.propose()
        assert f"{ADDRESS}/enter?code=" in made["next"] and f"ava approve {made['pending_id']}" in made["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        assert at.browser.opened == []
        await at.started_once(made)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("pages", [True, False])
async def test_a_host_without_questions_is_told_the_ways_to_decide_and_not_to_wait_in_a_loop(
    tmp_path: Path, era: str, pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_root: DataRoot) -> str:
        raise ConfigError("the pages are not installed")

    monkeypatch.setattr(access, "WAIT_LIMIT_S", 0.5)
    if not pages:
        monkeypatch.setattr(background, "start_pages", missing)
    async with connect(tmp_path, [hand_over()], config=HUMAN, mode=era, name="some host") as (client, models):
        at = PageHost(client, Person(decline), models, tmp_path / "data", tmp_path / "workspace")
        made = await at.propose()
        assert ("/enter?code=" in made["next"]) == pages and f"ava approve {made['pending_id']}" in made["next"]
        answer = await at.confirm(made)
        assert refusal_reason(answer) == "it still waits for the person"
        assert "Do not wait in a loop" in answer["next"] and f"ava approve {made['pending_id']}" in answer["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        await at.started_once(made)


async def test_a_pin_set_while_a_form_is_open_sends_the_person_to_the_page(tmp_path: Path, era: str) -> None:
    asked: list[str] = []
    root = DataRoot(tmp_path / "data")

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.mode)
        if params.mode == "form":
            PinFile(root.approval_file).set(PIN)
            return ElicitResult(action="accept", content={})
        return ElicitResult(action="decline")

    async with connect(tmp_path, [hand_over()], config=PRICED, mode=era, asks=person) as (client, models):
        at = Host(client, Person(decline), models, root.path, tmp_path / "workspace")
        made = await at.propose()
        assert "declined to open the page" in refusal_reason(await at.confirm(made))
        assert asked == ["form", "url"]
        await at.nothing_started()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("content", [None, {}, {"decision": "Yes", "pin": PIN, "approved": True}])
async def test_a_client_that_accepts_by_itself_starts_nothing(
    tmp_path: Path, era: str, content: dict[str, Any] | None
) -> None:
    async with page_host(tmp_path, era, answer_page("accept", content)) as at:
        made = await at.propose()
        for _ in range(2):
            assert refusal_reason(await at.confirm(made)) == "it still waits for the person"
        await at.nothing_started()


@pytest.mark.parametrize(("action", "said"), [("decline", "declined to open the page"), ("cancel", "closed")])
async def test_a_person_who_does_not_open_the_page_ends_the_wait(
    tmp_path: Path, era: str, action: Any, said: str
) -> None:
    async with page_host(tmp_path, era, answer_page(action, {"decision": "Yes"})) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert said in refusal_reason(answer) and "If the person said no" in answer["next"]
        assert ADDRESS in answer["next"]
        await at.nothing_started()
        await at.confirm(made)
        assert len(at.browser.opened) == 2, "another call asks again"


async def test_a_client_that_fails_to_open_the_page_starts_nothing(tmp_path: Path) -> None:
    async def opens(_page: ElicitRequestURLParams) -> ErrorData:
        return ErrorData(code=-32603, message="no browser")

    async with page_host(tmp_path, "legacy", opens) as at:
        assert "closed the question" in refusal_reason(await at.confirm(await at.propose()))
        await at.nothing_started()


async def test_two_proposals_are_one_page(tmp_path: Path, era: str) -> None:
    line = "2 subagents together, at most $1.00"
    async with page_host(tmp_path, era) as at:
        made = [await at.propose(task="Count the otters"), await at.propose(task="Count the seals")]
        at.when_opened(at.decide, *made, last=line, plan_ids=(("P-4e1b2c30", "G-4e1b2c3"),))
        answer = await at.confirm(*made, last=line)
        assert answer["status"] == "approved" and answer["group_id"] == "G-4e1b2c3", answer
        first, second = (each["pending_id"] for each in made)
        assert at.browser.opened[0].url == f"{ADDRESS}/proposals?id={first}&id={second}"
        for each in made:
            assert (await at.started_once(each, requests=2)).channel == "browser"


async def test_a_plan_of_which_one_was_rejected_waits_no_longer(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = [await at.propose(task="one"), await at.propose(task="two")]
        at.when_opened(at.decide, made[0], decision="reject")
        answer = await at.confirm(*made, last="2 subagents together, at most $1.00")
        assert [one["status"] for one in answer["decisions"]] == ["rejected", "refused"], answer
        assert f"ava approve {made[1]['pending_id']}`" in answer["next"]
        assert at.models.requests == []


async def test_a_proposal_that_expires_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era, config=f"proposal_ttl_s = 2\n{HUMAN}") as at:
        made = await at.propose()
        with anyio.fail_after(40):
            answer = await at.confirm(made)
        assert "expired" in refusal_reason(answer), answer
        assert answer["decisions"][0]["fresh"]["status"] == WAITING
        assert at.models.requests == []


async def test_a_proposal_that_another_replaces_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose(task_id="prices")
        async with anyio.create_task_group() as tasks:

            async def replace_later() -> None:
                tasks.start_soon(partial(at.propose, task_id="prices", task="another"))

            at.when_opened(replace_later)
            assert "was replaced by a newer proposal" in refusal_reason(await at.confirm(made))
        assert at.models.requests == []


@pytest.mark.parametrize("approving", [[], ["something else"]])
async def test_a_wrong_line_opens_no_page(tmp_path: Path, era: str, approving: list[str]) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.call("confirm_spawn", pending_ids=[made["pending_id"]], approving=approving)
        assert "approving" in refusal_reason(answer) and at.browser.opened == []


async def test_limits_in_the_call_are_refused_because_the_page_has_its_own(tmp_path: Path, era: str) -> None:
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made, changes={made["pending_id"]: {"caps": {"max_cost_cents": 20}}})
        assert answer["status"] == "failed" and "on the page" in answer["message"]
        assert at.browser.opened == []


async def test_without_pages_the_person_is_told_the_commands(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_root: DataRoot) -> str:
        raise ConfigError("the server of `ava ui` did not start within 8 s")

    monkeypatch.setattr(background, "start_pages", fails)
    async with page_host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert answer["status"] == "failed" and f"ava approve {made['pending_id']}`" in answer["message"]
        assert "ava ui`" in answer["message"] and at.browser.opened == []
        await at.nothing_started()


async def test_an_answer_about_other_proposals_opens_the_right_page(tmp_path: Path) -> None:
    async with page_host(tmp_path, "auto") as at:
        one, other = await at.propose(task="one"), await at.propose(task="two")
        state = await at.question(approval(one))
        asked = await at.by_hand(approval(other), state, ElicitResult(action="accept"))
        assert isinstance(asked, InputRequiredResult) and asked.input_requests is not None
        [page] = [request.params for request in asked.input_requests.values()]
        assert isinstance(page, ElicitRequestURLParams) and page.url.endswith(other["pending_id"])
        await at.nothing_started(waiting=2)


async def test_a_connection_that_ends_ends_the_wait(tmp_path: Path, era: str) -> None:
    waits = anyio.Event()

    async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
        waits.set()
        return ElicitResult(action="accept")

    with anyio.fail_after(40):
        async with page_host(tmp_path, era, opens) as at, anyio.create_task_group() as tasks:
            made = await at.propose()
            tasks.start_soon(at.confirm, made)
            await waits.wait()
            tasks.cancel_scope.cancel()
        async with Store.open(at.root) as store:
            row = await store.read(lambda view: view.proposal(made["pending_id"]))
        assert row is not None and row.state == WAITING


# -- a run near a cap -------------------------------------------------------------------------------------------------


async def test_more_for_a_run_is_allowed_on_its_page(tmp_path: Path, era: str) -> None:
    async with run_near_cap(tmp_path, era) as (at, made, asked):
        run_id = made["subagent_id"]

        async def opens(page: ElicitRequestURLParams) -> ElicitResult:
            assert page.url == f"{ADDRESS}/subagents/{run_id}" and "Raise the cost cap" in page.message
            await at.allow_more(run_id, asked)
            return ElicitResult(action="accept", content={"max_cost_dollars": 9.0})

        at.browser.opens = opens
        checked = await at.call("check_subagent", subagent_id=run_id)
        assert checked["status"] != "awaiting_extension", checked
        ended = await at.call("check_subagent", subagent_id=run_id, wait_seconds=20)
        assert ended["status"] == "success", ended
        [decided] = await at.facts(made, Answered)
        assert (decided.decision, decided.channel) == ("approved", "browser")


@pytest.mark.usefixtures("short")
async def test_accepting_the_page_of_a_run_allows_it_nothing(tmp_path: Path, era: str) -> None:
    async with run_near_cap(tmp_path, era) as (at, made, _asked):
        at.browser.opens = accept_page
        run_id = made["subagent_id"]
        checked = await at.call("check_subagent", subagent_id=run_id)
        assert checked["status"] == "awaiting_extension", checked
        assert f"at {ADDRESS}/subagents/{run_id}, or " in checked["message"]
        assert (await at.call("check_subagent", subagent_id=run_id))["status"] == "awaiting_extension"
        assert len(at.browser.opened) == 2, "one page for the proposal, and one for this"
        assert await at.facts(made, Answered) == []
        await at.call("cancel_subagent", subagent_id=run_id)
