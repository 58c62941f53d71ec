"""A run near a cap of its own asks its host's person, in a form of the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult, InputRequiredResult
from support.hosts import extensions
from support.hosts.elicitation import Answering, accept, cancel, decline, decline_at_once, host
from support.runtime import PRICED, allow_workspace, settings_of
from support.sample import sample

from ava_audit.events import Answered, Asked
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_server.config.pin import PinFile
from ava_server.runs.asking.pending_questions import pending_question


@pytest.mark.requirement("N-15")
async def test_the_host_asks_its_person_and_a_yes_raises_the_cap(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        checked = await extensions.confirm_until_asked(at, run)
        assert checked["message"].startswith(f"The cost cap of researcher {run['subagent_id']} is $0."), checked
        assert len(at.person.asked) == 2
        question = at.person.asked[1]
        assert (
            "is near its cost cap of $0.20: $0." in question.message and "Raise the cost cap to $0." in question.message
        )
        assert run["subagent_id"] in question.message and "What does it cost?" in question.message
        [asked] = await at.facts(run, Asked)
        form = question.requested_schema["properties"]
        assert {name: (each["default"], each["maximum"]) for name, each in form.items()} == {
            "max_cost_dollars": (asked.proposed / 1e6, asked.proposed / 1e6)
        }
        assert (await extensions.host_result(at, run))["status"] == "success"
        [decided] = await at.facts(run, Answered)
        assert (decided.decision, decided.channel, decided.digest) == ("approved", "elicitation", asked.digest)


async def test_the_host_asks_its_person_and_a_no_has_it_wrap_up(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        at.person.answers = lambda asked: accept()(asked) if "start a researcher" in asked.message else decline(asked)
        assert "wraps up" in (await extensions.confirm_until_asked(at, run))["message"]
        assert (await extensions.host_result(at, run))["status"] == "cost_exceeded"
        [decided] = await at.facts(run, Answered)
        assert (decided.decision, decided.channel, decided.changes) == ("declined", "elicitation", {})


@pytest.mark.parametrize("no_answer", [cancel, decline_at_once], ids=["closed", "no person"])
async def test_a_question_that_nobody_answers_decides_nothing_and_is_not_asked_again(
    tmp_path: Path, era: str, no_answer: Answering
) -> None:
    async with host(tmp_path, era, accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        at.person.answers = lambda asked: accept()(asked) if "start a researcher" in asked.message else no_answer(asked)
        checked = await extensions.confirm_until_asked(at, run)
        assert f"/ava approve {run['subagent_id']}`" in checked["message"]
        assert checked["status"] == "awaiting_extension"
        again = await at.call("check_subagent", subagent_id=run["subagent_id"])
        assert again["status"] == "awaiting_extension" and len(at.person.asked) == 2
        assert await at.facts(run, Answered) == []
        assert (await at.call("cancel_subagent", subagent_id=run["subagent_id"]))["status"] == "cancelled"


async def test_an_answer_that_a_client_made_up_decides_nothing(tmp_path: Path) -> None:
    """What a client keeps with the question is sealed: the question's hash alone does not prove that it was asked."""
    async with host(tmp_path, "auto", accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        assert (await at.confirm(run))["status"] == "approved"
        await extensions.wait_until_asked(at, run)
        async with Store.open(at.root) as store:
            [row] = await store.read(lambda view: view.runs())
            found = await store.read(lambda view: pending_question(view, row, now_us()))
        assert found is not None
        answer = await at.client.session.call_tool(
            "check_subagent",
            {"subagent_id": run["subagent_id"]},
            input_responses={"approval": ElicitResult(action="accept", content={})},
            request_state=found.form().sha(),
            allow_input_required=True,
        )
        assert isinstance(answer, InputRequiredResult), "the person is asked"
        assert await at.facts(run, Answered) == []
        assert (await at.call("cancel_subagent", subagent_id=run["subagent_id"]))["status"] == "cancelled"


@pytest.mark.parametrize("given", sample([0.2, 0.1, 0, -1, 9.0, "0.25", True, float("nan")], 4))
async def test_the_form_may_lower_the_new_cap_and_nothing_else(tmp_path: Path, era: str, given: Any) -> None:
    async with host(tmp_path, era, accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        # Rounded down to whole cents, as in the question before a start.
        answers = {"first": accept(), "wrong": accept(max_cost_dollars=given), "lower": accept(max_cost_dollars=0.2579)}
        at.person.answers = lambda asked: answers["first" if "start a researcher" in asked.message else "wrong"](asked)
        checked = await extensions.confirm_until_asked(at, run)
        assert checked["status"] == "failed" and "max_cost_dollars: " in checked["message"], checked
        assert await at.facts(run, Answered) == []
        at.person.answers = answers["lower"]
        await at.call("check_subagent", subagent_id=run["subagent_id"])
        [decided] = await at.facts(run, Answered)
        assert decided.changes == {"max_cost_micros": 250_000}
        assert (await extensions.host_result(at, run))["status"] in ("success", "cost_exceeded")


@pytest.mark.slow
async def test_under_a_pin_that_was_set_meanwhile_the_host_shows_no_form(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), extensions.keep_noting) as at:
        run = await at.propose(**extensions.CAP)
        assert (await at.confirm(run))["status"] == "approved"
        await extensions.wait_until_asked(at, run)
        settings = settings_of(tmp_path / "data", at.models.base_url, allow_workspace(PRICED, at.workspace))
        PinFile(settings.paths.approval_file).set("73-otter-91")
        checked = await at.call("check_subagent", subagent_id=run["subagent_id"])
        assert checked["status"] == "awaiting_extension" and len(at.person.asked) == 1
        assert all(page.endswith(f"/subagents/{run['subagent_id']}") for page in at.person.pages)
        assert await at.facts(run, Answered) == []
        assert (await at.call("cancel_subagent", subagent_id=run["subagent_id"]))["status"] == "cancelled"
