"""Where the client can ask its person, the person decides and the model cannot, in both eras of the protocol."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitRequestFormParams, ElicitResult, ErrorData
from support.hosts.elicitation import (
    Answering,
    Host,
    Person,
    accept,
    cancel,
    decline,
    decline_at_once,
    host,
    read_and_accept,
    refusal_reason,
)
from support.runtime import PRICED, connect, hand_over
from support.sample import sample

from ava_audit.entries import Entry
from ava_audit.events import SpawnDecided, UserMessage
from ava_audit.rows import WAITING
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.mcp_server import elicitation
from ava_server.mcp_server.elicitation import READ_S

# -- what the person answers ------------------------------------------------------------------------------------------


async def test_accepting_starts_one_run_and_logs_the_persons_decision(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert answer["status"] == "approved", answer
        decided = await at.started_once(made)
        assert decided.channel == "elicitation" and decided.changes == {}
        [said] = [fact for fact in await at.facts(made, UserMessage) if fact.kind == "decision"]
        assert said.text == f"approved {made['pending_id']}: {made['approval_line']}"
        assert len(at.person.asked) == 1
        again = await at.confirm(made)
        assert "approved already" in refusal_reason(again)
        assert len(at.person.asked) == 1, "what cannot start is no question"


async def test_a_persons_no_rejects_the_proposals_with_channel_and_time(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, decline) as at:
        made = [await at.propose(), await at.propose(task="What did it cost?", max_cost_cents=20)]
        began_us = now_us()
        answer = await at.confirm(*made, last="2 subagents together, at most $0.70")
        assert answer["status"] == "rejected"
        assert answer["next"] == "Nothing was started. Ask the person what they want instead."
        for each in made:
            entry = await rejection_of(at, each)
            assert isinstance(entry.fact, SpawnDecided)
            assert (entry.fact.decision, entry.fact.channel) == ("rejected", "elicitation")
            assert began_us + READ_S * 1_000_000 < entry.ts_us
        at.person.answers = accept()
        again = await at.confirm(made[0])
        assert "was rejected already, in the host at" in refusal_reason(again)
        assert len(at.person.asked) == 1, "what was rejected is no question"
        retried = await at.call("spawn_subagent", retry_of=made[0]["subagent_id"], max_cost_cents=20)
        assert retried["status"] == WAITING, retried
        assert (await at.confirm(retried))["status"] == "approved", "they may want it with other limits"


async def rejection_of(at: Host, made: dict[str, Any]) -> Entry:
    async with Store.open(at.root) as store:
        [entry] = await store.read(lambda view: view.entries(made["subagent_id"], 0, ("SpawnDecided",)))
    return entry


@pytest.mark.parametrize("answers", [decline_at_once, cancel], ids=["no person", "closed"])
async def test_without_a_persons_answer_the_proposal_waits_and_the_alternatives_are_named(
    tmp_path: Path, era: str, answers: Answering
) -> None:
    async with host(tmp_path, era, answers) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert "closed the question, or nobody saw it" in refusal_reason(answer)
        assert f"ava approve {made['pending_id']}" in answer["next"] and "policy auto" in answer["next"]
        await at.nothing_started()
        at.person.answers = accept()  # it still waits: another day, another mood
        assert (await at.confirm(made))["status"] == "approved"
        await at.started_once(made)


async def test_a_client_that_fails_to_show_its_form_starts_nothing(tmp_path: Path) -> None:
    def broken(_question: ElicitRequestFormParams) -> ErrorData:
        return ErrorData(code=-32603, message="no screen")

    async with host(tmp_path, "legacy", broken) as at:
        assert "closed the question" in refusal_reason(await at.confirm(await at.propose()))
        await at.nothing_started()


async def test_lower_limits_in_the_form_are_the_ones_approved(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.2, max_minutes=1.5)) as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        decided = await at.started_once(made)
        assert decided.changes == {"max_cost_micros": 200_000, "timeout_s": 90.0}


async def test_the_answer_says_which_limits_the_person_lowered(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.2, max_minutes=1.5)) as at:
        answer = await at.confirm(await at.propose())
        assert answer["message"] == (
            "The person lowered the cost cap from $0.50 to $0.20."
            " The person lowered the time limit from 10 min to 90 s."
        )
        at.person.answers = accept(max_cost_dollars=0.5, max_minutes=10)
        assert "message" not in await at.confirm(await at.propose(task="another")), "nothing was lowered"


async def test_the_answer_names_what_the_call_lowered_and_what_the_person_lowered_further(
    tmp_path: Path, era: str
) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.2)) as at:
        made = await at.propose()
        changes = {made["pending_id"]: {"caps": {"max_cost_cents": 32.5, "max_tokens": 20_000}}}
        answer = await at.confirm(made, changes=changes, wait_seconds=20)
        [asked] = at.person.asked
        assert asked.requested_schema["properties"]["max_cost_dollars"]["description"].startswith(
            "From $0.15 to $0.325"
        )
        assert answer["message"].split("\n")[0] == (
            "`changes` lowered the cost cap from $0.50 to $0.325."
            " `changes` lowered the token cap from 2,000,000 to 20,000."
            " The person lowered the cost cap from $0.325 to $0.20."
        )


async def test_a_cost_in_the_form_is_rounded_down_to_whole_cents(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.2579)) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert answer["message"] == "The person lowered the cost cap from $0.50 to $0.25."
        assert (await at.started_once(made)).changes == {"max_cost_micros": 250_000}


async def test_a_plan_is_one_question_and_its_cap_may_be_lowered(tmp_path: Path, era: str) -> None:
    line = "2 subagents together, at most $1.00"
    async with host(tmp_path, era, accept(max_cost_dollars=0.6)) as at:
        made = [await at.propose(task="Count the otters"), await at.propose(task="Count the seals")]
        answer = await at.confirm(*made, last=line)
        assert answer["status"] == "approved", answer
        assert answer["message"] == "The person lowered the cost cap of the plan from $1.00 to $0.60."
        [asked] = at.person.asked
        assert "Count the otters" in asked.message and "Count the seals" in asked.message
        first, tasks = asked.message.split(" \n")[:2]
        assert first == "Ava wants to start 2 subagents: at most $1.00; reach the web."
        assert re.fullmatch(r'In /\w+/…/workspace:  1\. "Count the otters"  2\. "Count the seals"', tasks)
        assert f"\nIt can read {at.workspace} and reach the web." in asked.message
        assert set(asked.requested_schema["properties"]) == {"max_cost_dollars"}
        for each in made:
            decided = await at.started_once(each, requests=2)
            assert decided.channel == "elicitation"
            assert (await at.plan_of(decided)).cap_micros == 600_000


async def test_a_plan_timeout_may_be_lowered_but_not_raised(tmp_path: Path, era: str) -> None:
    line = "2 subagents together, at most $1.00 and 15 min"
    async with host(tmp_path, era, accept(max_minutes=15.5)) as at:
        made = [await at.propose(task="one"), await at.propose(task="two")]
        refused = await at.confirm(*made, last=line, group_timeout=900)
        assert refused["status"] == "failed" and "max_minutes" in refused["message"]
        await at.nothing_started(waiting=2)
        at.person.answers = accept(max_minutes=5, max_cost_dollars=1)
        assert (await at.confirm(*made, last=line, group_timeout=900))["status"] == "approved"
        for each in made:
            decided = await at.started_once(each, requests=2)
            plan = await at.plan_of(decided)
            assert (plan.timeout_s, plan.cap_micros) == (300, 1_000_000)


@pytest.mark.parametrize("seconds", [1e308, 2_592_001])
async def test_a_plan_timeout_without_end_is_refused_before_anybody_is_asked(
    tmp_path: Path, era: str, seconds: float
) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = [await at.propose(task="one"), await at.propose(task="two")]
        refused = await at.confirm(*made, group_timeout=seconds)
        assert refused["status"] == "failed" and "is above the maximum of 2,592,000; give less" in refused["message"]
        assert at.person.asked == []
        await at.nothing_started(waiting=2)


@pytest.mark.parametrize("name", ["max_cost_dollars", "max_minutes"])
@pytest.mark.parametrize(
    "given", sample([1_000_000, 10**400, math.nan, math.inf, True, False, "0.1", "", 0, -1, 1e-9, ["1"]], 4)
)
async def test_an_invalid_limit_starts_nothing_and_names_the_field(
    tmp_path: Path, era: str, name: str, given: Any
) -> None:
    if name == "max_minutes" and given == 1e-9:
        given = -1e-9  # so short a time is a limit; so little money is none
    async with host(tmp_path, era, accept(**{name: given})) as at:
        answer = await at.confirm(await at.propose())
        assert answer["status"] == "failed" and f"{name}: " in answer["message"], answer
        assert [asked.message.startswith(f"{name}: ") for asked in at.person.asked] == [False, True, True]
        await at.nothing_started()


async def test_a_form_that_cannot_be_used_is_asked_again_and_says_why(tmp_path: Path, era: str) -> None:
    forms: list[Any] = ["", 9, 0.25]

    def answers(_asked: ElicitRequestFormParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"max_cost_dollars": forms.pop(0)})

    async with host(tmp_path, era, answers) as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        assert (await at.started_once(made)).changes == {"max_cost_micros": 250_000}
        first, second, third = (asked.message for asked in at.person.asked)
        assert second == f"max_cost_dollars: the form did not return a number; nothing was started. \n \n{first}"
        assert third.startswith("max_cost_dollars: the form returned 9, which is not between $0.15 and $0.50")
        assert third.endswith(first)


async def test_a_proposal_of_the_same_call_is_not_made_again_where_its_form_is_asked_again(
    tmp_path: Path, era: str
) -> None:
    forms: list[Any] = ["", 0.25]

    def answers(_asked: ElicitRequestFormParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"max_cost_dollars": forms.pop(0)})

    async with host(tmp_path, era, answers) as at:
        made = await at.call("spawn_subagent", role="researcher", task="What?", workspace=str(at.workspace), ask=True)
        assert made["status"] == "approved", made
        assert len(at.person.asked) == 2
        await at.started_once(made)
        async with Store.open(at.root) as store:
            assert len(await store.read(View.runs)) == 1


async def test_a_limit_slightly_above_the_shown_one_counts_as_raised(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=math.nextafter(0.5, 1))) as at:
        answer = await at.confirm(await at.propose())
        assert answer["status"] == "failed" and "max_cost_dollars" in answer["message"]
        await at.nothing_started()


async def test_ignores_fields_that_the_form_does_not_have(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_micros=9_000_000, timeout_s=3_600, max_cost_dollars=0.5)) as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        assert (await at.started_once(made)).changes == {}


# -- when nobody is asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approving", [None, [], ["something else"]])
async def test_asks_nobody_without_the_exact_line(tmp_path: Path, era: str, approving: list[str] | None) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = await at.propose()
        given = {} if approving is None else {"approving": approving}
        answer = await at.call("confirm_spawn", pending_ids=[made["pending_id"]], **given)
        assert "approving" in refusal_reason(answer) and answer["approval_lines"] == [made["approval_line"]]
        assert at.person.asked == []
        await at.nothing_started()


async def test_an_expired_proposal_asks_nothing_and_returns_a_new_one(tmp_path: Path, era: str) -> None:
    life_s = 3  # longer than the person of these tests reads the new one
    async with host(tmp_path, era, accept(), config=f"proposal_ttl_s = {life_s}\n{PRICED}") as at:
        made = await at.propose()
        await anyio.sleep_until(anyio.current_time() + life_s + 0.05)
        answer = await at.confirm(made)
        assert "expired" in refusal_reason(answer)
        fresh = answer["decisions"][0]["fresh"]
        assert fresh["pending_id"] != made["pending_id"] and fresh["status"] == WAITING
        assert at.person.asked == [] and at.models.requests == []
        assert (await at.confirm(fresh))["status"] == "approved"
        assert len(at.person.asked) == 1
        await at.started_once(fresh)


async def test_rejecting_asks_no_question(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = await at.propose()
        answer = await at.call("confirm_spawn", pending_ids=[made["pending_id"]], decision="reject")
        assert answer["status"] == "rejected" and at.person.asked == []
        [decided] = await at.facts(made, SpawnDecided)
        assert (decided.decision, decided.channel) == ("rejected", "host_call")


async def test_a_change_that_raises_a_limit_asks_no_question(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = await at.propose()
        answer = await at.confirm(made, changes={made["pending_id"]: {"caps": {"max_cost_cents": 51}}})
        assert "only lower" in refusal_reason(answer) and at.person.asked == []
        await at.nothing_started()


async def test_records_a_client_that_cannot_ask_as_a_host_call(tmp_path: Path, era: str) -> None:
    async with connect(tmp_path, [hand_over()], config=PRICED, mode=era) as (client, models):
        at = Host(client, Person(decline), models, tmp_path / "data", tmp_path / "workspace")
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        assert (await at.started_once(made)).channel == "host_call"
        assert [fact.kind for fact in await at.facts(made, UserMessage)] == ["task"]


# -- what the question says -------------------------------------------------------------------------------------------


async def test_the_question_shows_the_figures_of_the_proposal(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, decline) as at:
        made = await at.propose(task="Count the otters", max_cost_cents=37, timeout=420, rationale="You asked me to")
        await at.confirm(made)
        [asked] = at.person.asked
    for words in (
        "researcher", '"Count the otters"', "at most 7 min", "costs at most $0.37", "Model: custom:test.",
        f"can read {at.workspace} and reach the web", 'Why: "You asked me to".',
    ):  # fmt: skip
        assert words in asked.message
    fields = asked.requested_schema["properties"]
    assert {name: (each["default"], each["maximum"]) for name, each in fields.items()} == {
        "max_cost_dollars": (0.37, 0.37),
        "max_minutes": (7, 7),
    }
    assert "required" not in asked.requested_schema


def both_ends(asked: ElicitRequestFormParams) -> tuple[str, str]:
    """A window of 80 columns and 24 rows shows three cut lines of the beginning, or some lines of the end."""
    lines = asked.message.split("\n")
    first = "\n".join(line[:75] for line in lines[:3])
    return first, "\n".join([piece for line in lines for piece in textwrap.wrap(line, 78) or [""]][-13:])


@pytest.mark.parametrize("name", [None, "n" * 60], ids=["no name", "long name"])
async def test_both_ends_of_the_question_have_the_price_and_the_task(
    tmp_path: Path, era: str, name: str | None
) -> None:
    async with host(tmp_path, era, decline) as at:
        await at.confirm(await at.propose(task="Count the otters " * 50, max_cost_cents=20, name=name))
        [asked] = at.person.asked
    for shown in both_ends(asked):
        assert "at most $0.20" in shown and "Count the" in shown
    assert name is None or f'named "{name}"' in asked.message


async def test_both_ends_of_a_plans_question_have_the_price_and_each_task(tmp_path: Path, era: str) -> None:
    """A long path of the workspace, and a first task of many lines, leave room for the other tasks."""
    folder = tmp_path.joinpath("workspace", *["a-folder-with-a-long-name"] * 6)
    folder.mkdir(parents=True)
    async with host(tmp_path, era, decline) as at:
        wanted = {"workspace": str(folder), "max_cost_cents": 20, "name": "n" * 60}
        made = [await at.propose(task=f"{verb} the otters " * 50, **wanted) for verb in ("Count", "Watch", "Feed")]
        await at.confirm(*made, last="3 subagents together, at most $0.60")
        [asked] = at.person.asked
    first, last = both_ends(asked)
    assert "at most $0.60" in first and last.count("at most $0.20") == 3
    for shown in (first, last):
        assert all(f"{verb} the" in shown for verb in ("Count", "Watch", "Feed"))


UNCONFINED = f'[sandbox]\nmode = "none"\n{PRICED}'


async def test_the_first_three_lines_have_price_reach_and_what_must_not_be_overlooked(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, decline, config=UNCONFINED) as at:
        made = await at.propose(role="code_reviewer", task="Count the otters " * 50, max_cost_cents=20)
        await at.confirm(made)
        [asked] = at.person.asked
    first, _last = both_ends(asked)
    assert '"Count the' in first.split("\n")[0]
    assert re.search(r"\nAt most \$0\.20 and 10 min; reads /\w+/…/workspace, runs without a sandbox", first)
    assert f"\nIt can read {at.workspace}, run commands WITHOUT A SANDBOX" in asked.message
    assert "\nLook at this: Nothing confines what it runs here" in first
    assert asked.message.count("Nothing confines") == 1 and made["message"].count("Nothing confines") == 1


async def test_the_first_lines_of_a_plans_question_have_the_reach_and_whom_a_warning_is_about(
    tmp_path: Path, era: str
) -> None:
    async with host(tmp_path, era, decline, config=UNCONFINED) as at:
        made = [await at.propose(task="one"), await at.propose(role="code_reviewer", task="two", max_cost_cents=50)]
        await at.confirm(*made, last="2 subagents together, at most $1.00")
        [asked] = at.person.asked
    price, tasks, warning = (line.strip() for line in asked.message.split("\n")[:3])
    assert price.startswith("Ava wants to start 2 subagents: at most $1.00; reach the web, run without a sandbox")
    assert warning.startswith("Look at this: 2: Nothing confines what it runs here")
    assert re.fullmatch(r'In /\w+/…/workspace:  1\. "one"  2\. "two"', tasks)
    assert f"\n1: It can read {at.workspace} and reach the web." in asked.message
    assert f"\n2: It can read {at.workspace}, run commands WITHOUT A SANDBOX" in asked.message


async def test_the_question_shows_the_changes_of_the_call(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept()) as at:
        made = await at.propose()
        change = {"caps": {"max_cost_cents": 20, "timeout": 60}, "blocked_tools": ["read_webpages"]}
        assert (await at.confirm(made, changes={made["pending_id"]: change}))["status"] == "approved"
        [asked] = at.person.asked
        assert "at most $0.20" in asked.message and "at most 1 min" in asked.message
        assert "$0.50" not in asked.message and 'Taken away: the tool "read_webpages".' in asked.message
        assert asked.requested_schema["properties"]["max_cost_dollars"]["maximum"] == 0.2
        decided = await at.started_once(made)
        assert (decided.changes["max_cost_micros"], decided.changes["timeout_s"]) == (200_000, 60)
        assert "read_webpages" not in decided.changes["tools"]


async def test_the_form_can_lower_further_what_the_call_lowered(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=0.4)) as at:
        made = await at.propose()
        changes = {made["pending_id"]: {"caps": {"max_cost_cents": 30, "timeout": 60}}}
        raised = await at.confirm(made, changes=changes)
        assert raised["status"] == "failed" and "max_cost_dollars" in raised["message"], "above what was shown"
        await at.nothing_started()
        at.person.answers = accept(max_cost_dollars=0.25)
        assert (await at.confirm(made, changes=changes))["status"] == "approved"
        assert (await at.started_once(made)).changes == {"max_cost_micros": 250_000, "timeout_s": 60}


async def test_the_form_of_a_free_run_has_no_cost_field(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(max_cost_dollars=99), config="") as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        [asked] = at.person.asked
        assert "costs nothing" in asked.message and set(asked.requested_schema["properties"]) == {"max_minutes"}
        assert (await at.started_once(made)).changes == {}


async def test_the_question_mentions_no_form_where_the_host_shows_none(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, read_and_accept(decision="Yes"), name="codex-mcp-client") as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "approved"
        [asked] = at.person.asked
        assert "below" not in asked.message and asked.requested_schema["required"] == ["decision"]
        assert asked.requested_schema["properties"] == {
            "decision": {"type": "string", "title": "Your decision", "enum": ["Yes", "No"]}
        }
        assert asked.message.endswith("Start it? To lower limits, decline and tell your assistant which.")
        assert (await at.started_once(made)).changes == {}


@pytest.mark.parametrize("too_fast", [1, elicitation.ASKED_AGAIN + 1])
async def test_a_yes_that_nobody_can_have_read_is_asked_again(tmp_path: Path, era: str, too_fast: int) -> None:
    """Codex marks the yes when it asks: a key that was meant for something else would start the run."""
    answered: list[str] = []

    async def presses_enter(asked: ElicitRequestFormParams) -> ElicitResult:
        answered.append(asked.message)
        if len(answered) > too_fast:
            await anyio.sleep(elicitation.READ_S + 0.1)
        return ElicitResult(action="accept", content={"decision": "Yes"})

    async with host(tmp_path, era, presses_enter, name="codex-mcp-client") as at:
        made = await at.propose()
        status = (await at.confirm(made))["status"]
        assert [asked.startswith("A yes came less than a second") for asked in answered[:2]] == [False, True]
        if too_fast == 1:
            assert status == "approved" and len(answered) == 2
            await at.started_once(made)
        else:
            assert status == "refused" and len(answered) == elicitation.ASKED_AGAIN + 1
            await at.nothing_started()


async def test_a_persons_no_rejects_where_the_host_shows_a_choice(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, read_and_accept(decision="No"), name="codex-mcp-client") as at:
        made = await at.propose()
        assert (await at.confirm(made))["status"] == "rejected"
        [decided] = await at.facts(made, SpawnDecided)
        assert (decided.decision, decided.channel) == ("rejected", "elicitation")


@pytest.mark.parametrize("content", [{}, {"decision": True}, {"max_minutes": 1}])
@pytest.mark.parametrize("answering", [accept, read_and_accept], ids=["at once", "later"])
async def test_an_answer_without_the_persons_yes_starts_nothing_where_the_host_shows_a_choice(
    tmp_path: Path, era: str, content: dict[str, Any], answering: Callable[..., Answering]
) -> None:
    """With full access, Codex accepts a form without fields by itself; the choice is what a person adds."""
    async with host(tmp_path, era, answering(**content), name="codex-mcp-client") as at:
        assert "nobody saw it" in refusal_reason(await at.confirm(await at.propose()))
        await at.nothing_started()


@pytest.mark.parametrize(
    ("name", "status"), [("codex-mcp-client", "approved"), ("claude-code", "approved"), ("x", "refused")]
)
async def test_the_person_has_longer_where_the_host_waits_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: str
) -> None:
    monkeypatch.setattr(elicitation, "ASK_S", 0.2)

    async def thinks(_question: ElicitRequestFormParams) -> ElicitResult:
        await anyio.sleep(elicitation.READ_S + 0.1)
        return ElicitResult(action="accept", content={"decision": "Yes"})

    async with host(tmp_path, "legacy", thinks, name=name) as at:
        answer = await at.confirm(await at.propose())
        assert answer["status"] == status, answer


async def test_accepts_a_fractional_number_of_minutes_as_the_form_shows_it(tmp_path: Path) -> None:
    async with host(tmp_path, "auto", accept(max_minutes=1.6666)) as at:
        answer = await at.confirm(await at.propose(timeout=100))
        assert answer["status"] == "approved", answer
        assert at.person.asked[0].requested_schema["properties"]["max_minutes"]["maximum"] == 1.6666
