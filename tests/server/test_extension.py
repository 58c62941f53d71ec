"""A run near a cap of its own asks a person for more, and wraps up where nobody allows it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitResult, InputRequiredResult
from support import owner as owner_program
from support.hosts.elicitation import ERAS, Host, accept, cancel, decline, host
from support.hosts.extensions import CAP, note, works
from support.model_server import Gate, Say, Step, running_model_server
from support.runtime import (
    PRICED,
    USER,
    Lab,
    check_budgets,
    check_requests,
    hand_over,
    open_lab,
    settings_of,
    with_workspace,
)
from support.sample import sampled
from support.stdio import until

from ava_audit.events import (
    Answered,
    Asked,
    AssistantMessage,
    Channel,
    CostReserved,
    Event,
    Fence,
    RunClaimed,
    UserMessage,
    Who,
)
from ava_audit.rows import Bucket, RunRow
from ava_audit.store.store import Store, append
from ava_audit.units import format_usd, local_second, now_us
from ava_audit.view import View
from ava_server.budget.run_config import config_of
from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused
from ava_server.render.host_text import text_of
from ava_server.runs.extension import (
    MOST_ASKED,
    Shortage,
    _round_cap,
    extension_request,
)
from ava_server.runs.extension import extension_limits as limits_of
from ava_server.runs.pending_questions import PendingExtension, asked_of, decide_question, pending_question
from ava_server.runs.question_kinds import Decider, PendingQuestion
from ava_server.service.access import Session
from ava_server.service.service import Service


def works_on(asked: dict[str, Any]) -> Step:
    """Take notes without an end, whatever is allowed."""
    return hand_over() if "This is the last turn" in json.dumps(asked["messages"]) else note(len(asked["messages"]))


@pytest.fixture(params=ERAS, ids=["handshake era", "modern era"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def waits(seconds: int, more: str = "") -> str:
    return f"{PRICED}\n[limits]\nextension_wait_s = {seconds}\n{more}"


async def started(lab: Lab, channel: Channel = "terminal", **more: Any) -> str:
    """Start a run that a person approved over a channel; the session then is a host's again."""
    lab.session.channel = channel
    run_id = await lab.start(**(more or CAP))
    lab.session.channel = "host_call"
    return run_id


async def asking(lab: Lab, run_id: str) -> RunRow:
    """Wait until a run asks for more."""
    await lab.logged(run_id, "Asked")
    return await lab.run(run_id)


async def request(lab: Lab, run_id: str) -> PendingExtension:
    await asking(lab, run_id)
    [found] = [one for one in await lab.service.questions.waiting() if one.subagent_id == run_id]
    return found


def bucket_of(scope: str, view: View) -> Bucket:
    return view.bucket(scope)


def person(lab: Lab, channel: Channel = "terminal", user: str | None = None) -> Service:
    """A person at a channel of their own."""
    return Service(lab.runtime, Session(user=user or lab.session.user, transport="memory", channel=channel))


# -- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_a_run_that_is_allowed_more_goes_on_under_the_new_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        row = await asking(lab, run_id)
        asked = asked_of(row)
        assert asked is not None and asked.cap == "max_cost_cents"
        assert (asked.limit, asked.used) == (200_000, row.cost_micros)
        assert asked.limit * 1.4 <= asked.proposed <= 2 * asked.limit and asked.proposed % 10_000 == 0
        assert abs(asked.expires_us - now_us() - 600_000_000) < 20_000_000
        shown = await request(lab, run_id)
        assert f"near its cost cap of $0.20: {format_usd(200_000 - row.cost_micros)} left; about $0." in shown.message
        assert shown.message.endswith(f"if you do not answer, it does so at {local_second(asked.expires_us)}.")
        assert f"the run wraps up at {local_second(asked.expires_us)}" in PendingQuestion(row, asked).for_tools
        decided = await person(lab).questions.decide(run_id, shown.digest, approve=True)
        assert decided.status == "approved"
        run = await lab.ended(run_id)
        assert run.state == "success" and run.turns > row.turns
        assert config_of(run.config).max_cost_micros == asked.proposed
        [fact] = await lab.facts(run_id, Answered)
        assert (fact.decision, fact.channel, fact.digest) == ("approved", "terminal", asked.digest)
        assert fact.changes == {"max_cost_micros": asked.proposed} and fact.decision_digest != asked.digest
        said = [each.text for each in await lab.facts(run_id, UserMessage) if each.kind == "decision"]
        assert said[-1].startswith(f"approved {asked.ask_id}, cost cap: researcher, at most $0.2")
        [told] = [held for held in await lab.facts(run_id, CostReserved) if f"raised:{asked.ask_id}" in held.notices]
        assert (
            told.turn == 6 and told.notice is not None and told.notice.startswith("A person has raised your limit: $")
        )
        assert [claim.reason for claim in await lab.facts(run_id, RunClaimed)] == ["start", "resume"]


async def test_while_it_waits_its_clock_stands_its_slot_is_free_and_its_wrap_up_is_held(tmp_path: Path) -> None:
    config = f"{PRICED}\n[limits]\nrunning_per_user = 1\n"
    async with open_lab(tmp_path, works, config=config) as lab:
        run_id = await started(lab)
        row = await asking(lab, run_id)
        assert (row.state, row.instance, row.in_flight) == ("queued", None, None) and row.active_us > 0
        last = (await lab.facts(run_id, CostReserved))[-1]
        assert row.wrap_micros == last.wrap_micros > 0
        for scope in last.scopes:
            bucket = await lab.store.read(partial(bucket_of, scope))
            assert bucket.held_micros == row.wrap_micros
        assert (await lab.ended(await lab.start(task="another", max_iterations=2))).state == "iteration_limit", (
            "the one slot"
        )
        shown = await lab.call("check_subagent", subagent_id=run_id, wait_seconds=40)
        assert shown.status == "awaiting_extension", "nobody waits for it"
        assert (await lab.run(run_id)).active_us == row.active_us
        assert (await lab.call("cancel_subagent", subagent_id=run_id)).status == "cancelled"


@pytest.mark.requirement("N-15")
@pytest.mark.parametrize("declined", [True, False], ids=["declined", "no answer"])
async def test_without_a_yes_the_run_wraps_up_with_its_result(tmp_path: Path, declined: bool) -> None:
    config = PRICED if declined else waits(1)
    async with open_lab(tmp_path, works, config=config) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        if declined:
            answer = await person(lab).questions.decide(run_id, shown.digest, approve=False)
            assert answer.status == "declined"
        run = await lab.ended(run_id)
        assert run.state == "cost_exceeded" and run.cost_micros <= 200_000
        result = await lab.result(run_id)
        assert result["untrusted_result"]["output"] == "the answer"
        who = "a person declined" if declined else "nobody answered"
        assert f"; {who} its request to raise its cost cap from $0.20 to $0.2" in result["stop_reason"]
        assert config_of(run.config).max_cost_micros == 200_000
        decisions = [fact.decision for fact in await lab.facts(run_id, Answered)]
        assert decisions == (["declined"] if declined else [])
        assert len(await lab.facts(run_id, Asked)) == 1, "once refused or unanswered, never again"


async def test_asks_for_tokens(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab, max_tokens=60_000, max_cost_cents=400)
        shown = await request(lab, run_id)
        asked = asked_of(await lab.run(run_id))
        assert asked is not None and asked.cap == "max_tokens" and asked.proposed % 1_000 == 0
        assert "near its token cap of 60,000 tokens" in shown.message
        await person(lab, "http").questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.ended(run_id)).state == "success"


@pytest.mark.slow
async def test_asks_for_time_when_its_work_would_end_and_finishes_with_it(tmp_path: Path) -> None:
    slow = Say(calls=[("scratchpad", {"note": "slow"})], gate=Gate())
    async with open_lab(tmp_path, [note(0), slow, hand_over()], config=PRICED) as lab:
        run_id = await started(lab, timeout=3)
        shown = await request(lab, run_id)
        row = await lab.run(run_id)
        asked = asked_of(row)
        assert asked is not None and (asked.cap, asked.limit) == ("timeout", 3.0) and asked.proposed >= 4.2
        assert row.active_us <= 3_000_000, "the time of the wrap-up is left"
        assert "near its time cap of 3 s" in shown.message
        await person(lab).questions.decide(run_id, shown.digest, approve=True)
        run = await lab.ended(run_id)
        assert run.state == "success" and config_of(run.config).timeout_s == asked.proposed


@pytest.mark.slow
async def test_without_an_answer_about_time_it_wraps_up_in_the_time_left(tmp_path: Path) -> None:
    slow = Say(calls=[("scratchpad", {"note": "slow"})], gate=Gate())
    async with open_lab(tmp_path, [note(0), slow, hand_over()], config=waits(1)) as lab:
        run_id = await started(lab, timeout=4)
        await asking(lab, run_id)
        run = await lab.ended(run_id)
        assert run.state == "timeout" and run.active_us <= 4.3e6
        result = await lab.result(run_id)
        assert result["untrusted_result"]["output"] == "the answer"
        assert "timeout of 4 s; nobody answered its request to raise its time cap from 4 s to" in result["stop_reason"]


async def test_asks_again_after_a_yes_and_three_times_at_most(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works_on, config=PRICED) as lab:
        run_id = await started(lab, max_cost_cents=20, max_iterations=60, max_tokens=200_000)
        limits = [200_000.0]
        for count in range(1, MOST_ASKED + 1):
            await lab.logged(run_id, "Asked", count)
            shown = await request(lab, run_id)
            await person(lab).questions.decide(run_id, shown.digest, approve=True)
            limits.append(config_of((await lab.run(run_id)).config).max_cost_micros)
        run = await lab.ended(run_id)
        assert run.state == "cost_exceeded" and limits == sorted(set(limits))
        asked = await lab.facts(run_id, Asked)
        assert len({fact.digest for fact in asked}) == len(asked) == MOST_ASKED


# -- when nobody is asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "config", "caps"),
    [
        pytest.param("host_call", PRICED, CAP, id="nobody's own answer approved it"),
        pytest.param("terminal", waits(0), CAP, id="it is switched off"),
        pytest.param("terminal", waits(600, "max_cost_cents = 20"), CAP, id="the hard cap leaves no room"),
        pytest.param("terminal", waits(600, "user_daily_cents = 20"), CAP, id="the day of the user leaves no room"),
        pytest.param("terminal", waits(600, "installation_daily_cents = 20"), CAP, id="the installation's day"),
        pytest.param("terminal", PRICED, {"max_iterations": 5}, id="another cap"),
    ],
)
async def test_wraps_up_at_once_where_it_may_not_ask(
    tmp_path: Path, channel: Channel, config: str, caps: dict[str, Any]
) -> None:
    async with open_lab(tmp_path, works, config=config) as lab:
        run_id = await started(lab, channel, **caps)
        run = await lab.ended(run_id)
        assert run.state in ("cost_exceeded", "iteration_limit")
        assert await lab.facts(run_id, Asked) == []


async def test_asks_only_after_a_first_answer_and_never_after_an_overrun(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED, runs=False) as lab:
        row = await lab.run(await started(lab))
        limits = limits_of(lab.runtime.settings, lab.session.user)

        def asks(view: View, run: RunRow) -> bool:
            short = Shortage("max_cost_cents", 50_000, 10.0)
            return extension_request(view, run, short, limits, "E-00000001", now_us()) is not None

        worked = replace(row, turns=3, cost_micros=180_000)
        assert not await lab.store.read(lambda view: asks(view, worked)), "every call so far was lost"
        who, fence = Who(row.session_id, row.id, row.user_id), Fence(row.id, 1)
        await lab.store.do(append(Event(who, RunClaimed(instance="another", generation=1), run_id=row.id)))
        await lab.store.do(append(Event(who, AssistantMessage(text="so far", turn=1), fence=fence)))
        assert await lab.store.read(lambda view: asks(view, worked))
        assert not await lab.store.read(lambda view: asks(view, replace(worked, overrun=1)))


async def test_a_run_that_auto_started_wraps_up_at_once(tmp_path: Path) -> None:
    auto = 'approval = "auto"\nauto_approve_cents = 20\nauto_approve_daily_cents = 100\n'
    config = f'{auto}[fetch]\nhosts = ["example.org"]\n{PRICED}'
    async with open_lab(tmp_path, works, config=config) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="x", max_cost_cents=20)
        assert answer.status == "approved", answer
        assert (await lab.ended(answer.subagent_id)).state == "cost_exceeded"
        assert await lab.facts(answer.subagent_id, Asked) == []


async def test_a_group_is_never_asked_for_more_than_its_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        lab.session.channel = "terminal"
        made = [await lab.propose(task="one", **CAP), await lab.propose(task="two", **CAP)]
        line = "2 subagents together, at most $0.20"
        answer = await lab.approve(*made, last=line, group_max_cost_cents=20)
        assert answer.status == "approved", answer
        for proposal in made:
            assert (await lab.ended(proposal.subagent_id)).state in ("success", "cost_exceeded")
            assert await lab.facts(proposal.subagent_id, Asked) == []


@given(
    cap=st.sampled_from(["max_cost_cents", "max_tokens", "timeout"]),
    wanted=st.floats(1, 1e9),
    most=st.floats(0, 1e9),
)
def test_a_round_cap_cap_is_never_above_what_it_may_be(cap: Any, wanted: float, most: float) -> None:
    value = _round_cap(cap, wanted, most)
    assert value <= max(most, 0) + (0.05 if cap == "timeout" else 0)
    unit = {"max_cost_cents": 10_000, "max_tokens": 1_000, "timeout": 60}[cap]
    assert value >= wanted or value > most - unit


# -- who decides, and on what -----------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_an_answer_counts_once_and_only_for_what_was_shown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        with pytest.raises(Refused, match="has changed since it was shown"):
            await person(lab).questions.decide(run_id, "0" * 64, approve=True)
        await person(lab).questions.decide(run_id, shown.digest, approve=True)
        for again in (True, False):
            with pytest.raises(Refused, match=f"{shown.extension_id} of .* was approved already, in a terminal at "):
                await person(lab).questions.decide(run_id, shown.digest, approve=again)
        await lab.ended(run_id)
        with pytest.raises(Refused, match="has ended"):
            await person(lab).questions.decide(run_id, shown.digest, approve=True)
        assert len(await lab.facts(run_id, Answered)) == 1


async def test_an_answer_after_its_time_and_one_beyond_the_proposed_cap_are_refused(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        row = await lab.run(run_id)
        asked, who = asked_of(row), lab.session.who
        assert asked is not None and row.waits_until_us == asked.expires_us
        limits = limits_of(lab.runtime.settings, lab.session.user)
        for allow in (asked.proposed + 1, asked.limit, asked.limit - 1, 0):
            answer = await lab.store.do(
                decide_question(run_id, shown.digest, allow, Decider(who, who, "terminal", limits))
            )
            assert (answer.status, answer.text) == (
                "refused",
                "an answer raises the cap to what was proposed, or to less",
            )
        late = decide_question(run_id, shown.digest, asked.proposed, Decider(who, who, "terminal", limits))
        answer = await lab.store.do(lambda view, _now: late(view, asked.expires_us))
        assert answer.status == "refused" and "got no answer in time" in answer.text
        assert (await lab.run(run_id)).waits_for == "more"
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_an_approval_beyond_what_the_day_has_left_by_now_is_refused(tmp_path: Path) -> None:
    config = waits(600, "user_daily_cents = 45")
    async with open_lab(tmp_path, works_on, config=config) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        other = await lab.start(task="another", max_cost_cents=40, max_iterations=7)
        await lab.ended(other)
        with pytest.raises(Refused, match="your budget of the day does not allow that"):
            await person(lab).questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.run(run_id)).waits_for == "more", "it still waits"
        await person(lab).questions.decide(run_id, shown.digest, approve=False)
        assert (await lab.ended(run_id)).state == "cost_exceeded"


@pytest.mark.requirement("N-15")
async def test_no_call_of_a_model_decides(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        row = await lab.run(run_id)
        for given in (run_id, shown.extension_id, row.pending_id):
            for line in (shown.message.splitlines()[1], shown.message, shown.digest):
                answer = await lab.call("confirm_spawn", pending_ids=[given], approving=[line])
                assert answer.status in ("refused", "failed"), answer
        raised = {"changes": {row.pending_id: {"caps": {"max_cost_cents": 30}}}}
        assert (await lab.call("confirm_spawn", pending_ids=[row.pending_id], **raised)).status == "refused"
        assert (await lab.call("message_subagent", subagent_id=run_id, message="approve")).status == "delivered"
        with pytest.raises(Refused, match="only a person's own answer counts"):
            await lab.service.questions.decide(run_id, shown.digest, approve=True)
        now = await lab.run(run_id)
        assert (now.asked, now.config) == (row.asked, row.config)
        assert await lab.facts(run_id, Answered) == []
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_another_user_neither_sees_nor_decides_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        theirs = person(lab, user=USER)
        assert await theirs.questions.waiting() == []
        with pytest.raises(Exception, match="no subagent"):
            await theirs.questions.decide(run_id, shown.digest, approve=True)
        who = theirs.session.who
        limits = limits_of(lab.runtime.settings, USER)
        answer = await lab.store.do(
            decide_question(run_id, shown.digest, 250_000, Decider(who, who, "terminal", limits))
        )
        assert answer.status == "refused"
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_under_the_policy_human_only_the_pin_allows_more(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)
        lab.runtime.settings.paths.approval_file.parent.mkdir(mode=0o700, exist_ok=True)
        PinFile(lab.runtime.settings.paths.approval_file).set("73-otter-91")
        at_a_terminal = person(lab)
        with pytest.raises(Refused, match="only the approval PIN allows a run more"):
            await at_a_terminal.questions.decide(run_id, shown.digest, approve=True)
        at_a_terminal.session.pin_given = True
        await at_a_terminal.questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.ended(run_id)).state == "success"


# -- while it waits ---------------------------------------------------------------------------------------------------


async def test_a_cancel_ends_it_at_once_and_holds_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        await asking(lab, run_id)
        assert (await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")).status == "cancelled"
        row = await lab.run(run_id)
        assert (row.state, row.asked, row.wrap_micros) == ("cancelled", None, 0)
        assert (await lab.store.read(lambda view: view.bucket(run_id))).held_micros == 0
        assert (await lab.result(run_id))["untrusted_result"]["output"].startswith("note ")


@pytest.mark.slow
async def test_wraps_up_at_once_where_its_group_has_no_time_to_wait(tmp_path: Path) -> None:
    def play(asked: dict[str, Any]) -> Step:
        return hand_over() if "the second" in json.dumps(asked["messages"]) else works(asked)

    async with open_lab(tmp_path, play, config=PRICED) as lab:
        lab.session.channel = "terminal"
        made = [
            await lab.propose(task="the first", timeout=15, **CAP),
            await lab.propose(task="the second", max_cost_cents=480),
        ]
        answer = await lab.approve(*made, last="2 subagents together, at most $5.00 and 6 s", group_timeout=6)
        assert answer.status == "approved", answer
        run = await lab.ended(made[0].subagent_id, within_s=60)
        assert run.state == "cost_exceeded", "its last turn was not lost to the plan's time"
        assert await lab.facts(run.id, Asked) == []
        await lab.ended(made[1].subagent_id)


@pytest.mark.parametrize(
    "approve", [pytest.param(True, id="approved"), pytest.param(None, id="no answer", marks=pytest.mark.slow)]
)
async def test_another_process_continues_it_after_its_owner_was_killed(tmp_path: Path, approve: bool | None) -> None:
    config = PRICED if approve else waits(6)
    with running_model_server(works) as server:
        async with open_lab(tmp_path, server=server, config=config, runs=False, check=False) as lab:
            process = [sys.executable, owner_program.__file__, str(lab.root), server.base_url]
            async with await anyio.open_process(process) as owner:
                assert owner.stdout is not None and (await owner.stdout.receive()).startswith(b"open ")
                run_id = await started(lab)
                shown = await request(lab, run_id)
                owner.kill()
            if approve:
                await person(lab).questions.decide(run_id, shown.digest, approve=True)
        async with open_lab(tmp_path, server=server, config=config, check=False) as lab:
            run = await lab.ended(run_id)
            assert run.state == ("success" if approve else "cost_exceeded")
            assert (await lab.result(run_id))["untrusted_result"]["output"] == "the answer"
            await lab.store.read(check_budgets)
        await check_requests(tmp_path / "data", server.requests)


# -- where it is shown ------------------------------------------------------------------------------------------------


async def test_every_tool_answer_says_what_it_waits_for(tmp_path: Path) -> None:
    async with open_lab(tmp_path, works, config=PRICED) as lab:
        run_id = await started(lab)
        asked = asked_of(await asking(lab, run_id))
        assert asked is not None
        checked = await lab.call("check_subagent", subagent_id=run_id)
        [run] = checked.runs
        wanted = f"a person to raise its cost cap from $0.20 to ${asked.proposed / 1e6:.2f} ("
        assert (checked.status, run.state) == ("awaiting_extension", "awaiting_extension")
        assert run.waits_for.startswith(wanted) and f"/ava approve {run_id}`" in run.waits_for
        assert "a model cannot answer" in run.waits_for and "the run wraps up" in run.waits_for
        assert run.waits_for in text_of(checked)
        [noticed] = (await lab.call("read_ava_logs", subagent_id=run_id)).notices
        assert wanted in noticed and noticed.endswith("Tell the person")
        assert checked.notices is None, "the answer itself says it"
        [listed] = (await lab.call("check_subagent")).runs
        assert listed.waits_for == run.waits_for
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_the_event_hook_hears_of_it(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())", str(heard)]
    config = f"on_event = {json.dumps(program)}\n{PRICED}"
    async with open_lab(tmp_path, works, config=config) as lab:
        run_id = await started(lab)
        shown = await request(lab, run_id)

        def events() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []
            return [event for event in found if event["event"] == "awaiting_extension"]

        await until(lambda: bool(events()), 15)
        [event] = events()
        assert (event["subagent_id"], event["status"]) == (run_id, "awaiting_extension")
        assert event["extension_id"] == shown.extension_id and event["request"].startswith("raise its cost cap from")
        await lab.call("cancel_subagent", subagent_id=run_id)


# -- the host's question ----------------------------------------------------------------------------------------------


async def until_asked(at: Host, run: dict[str, Any]) -> None:
    async with Store.open(at.root) as store:
        with anyio.fail_after(20):
            while True:
                seen = store.head
                if await store.read(lambda view: view.entries(run["subagent_id"], 0, ("Asked",))):
                    return
                await store.wait_for_entry_after(seen)


async def asked_through(at: Host, run: dict[str, Any]) -> dict[str, Any]:
    """Start a run with the person's answer, and wait until it asks for more; return what check_subagent then says."""
    assert (await at.confirm(run))["status"] == "approved"
    await until_asked(at, run)
    return await at.call("check_subagent", subagent_id=run["subagent_id"])


async def result_of(at: Host, run: dict[str, Any]) -> dict[str, Any]:
    return await at.call("check_subagent", subagent_id=run["subagent_id"], wait_seconds=20)


@pytest.mark.requirement("N-15")
async def test_the_host_asks_its_person_and_a_yes_raises_the_cap(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), works) as at:
        run = await at.propose(**CAP)
        checked = await asked_through(at, run)
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
        assert (await result_of(at, run))["status"] == "success"
        [decided] = await at.facts(run, Answered)
        assert (decided.decision, decided.channel, decided.digest) == ("approved", "elicitation", asked.digest)


async def test_the_host_asks_its_person_and_a_no_has_it_wrap_up(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), works) as at:
        run = await at.propose(**CAP)
        at.person.answers = lambda asked: accept()(asked) if "start a researcher" in asked.message else decline(asked)
        assert "wraps up" in (await asked_through(at, run))["message"]
        assert (await result_of(at, run))["status"] == "cost_exceeded"
        [decided] = await at.facts(run, Answered)
        assert (decided.decision, decided.channel, decided.changes) == ("declined", "elicitation", {})


async def test_a_closed_question_decides_nothing_and_is_not_asked_again(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), works) as at:
        run = await at.propose(**CAP)
        at.person.answers = lambda asked: accept()(asked) if "start a researcher" in asked.message else cancel(asked)
        checked = await asked_through(at, run)
        assert f"/ava approve {run['subagent_id']}`" in checked["message"]
        assert checked["status"] == "awaiting_extension"
        again = await at.call("check_subagent", subagent_id=run["subagent_id"])
        assert again["status"] == "awaiting_extension" and len(at.person.asked) == 2
        assert await at.facts(run, Answered) == []
        assert (await at.call("cancel_subagent", subagent_id=run["subagent_id"]))["status"] == "cancelled"


async def test_an_answer_that_a_client_made_up_decides_nothing(tmp_path: Path) -> None:
    """What a client keeps with the question is sealed: the question's hash alone does not prove that it was asked."""
    async with host(tmp_path, "auto", accept(), works) as at:
        run = await at.propose(**CAP)
        assert (await at.confirm(run))["status"] == "approved"
        await until_asked(at, run)
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


@pytest.mark.parametrize("given", sampled([0.2, 0.1, 0, -1, 9.0, "0.25", True, float("nan")], 4))
async def test_the_form_may_lower_the_new_cap_and_nothing_else(tmp_path: Path, era: str, given: Any) -> None:
    async with host(tmp_path, era, accept(), works) as at:
        run = await at.propose(**CAP)
        # Rounded down to whole cents, as in the question before a start.
        answers = {"first": accept(), "wrong": accept(max_cost_dollars=given), "lower": accept(max_cost_dollars=0.2579)}
        at.person.answers = lambda asked: answers["first" if "start a researcher" in asked.message else "wrong"](asked)
        checked = await asked_through(at, run)
        assert checked["status"] == "failed" and "max_cost_dollars: " in checked["message"], checked
        assert await at.facts(run, Answered) == []
        at.person.answers = answers["lower"]
        await at.call("check_subagent", subagent_id=run["subagent_id"])
        [decided] = await at.facts(run, Answered)
        assert decided.changes == {"max_cost_micros": 250_000}
        assert (await result_of(at, run))["status"] in ("success", "cost_exceeded")


@pytest.mark.slow
async def test_under_a_pin_that_was_set_meanwhile_the_host_shows_no_form(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, accept(), works) as at:
        run = await at.propose(**CAP)
        assert (await at.confirm(run))["status"] == "approved"
        await until_asked(at, run)
        settings = settings_of(tmp_path / "data", at.models.base_url, with_workspace(PRICED, at.workspace))
        PinFile(settings.paths.approval_file).set("73-otter-91")
        checked = await at.call("check_subagent", subagent_id=run["subagent_id"])
        assert checked["status"] == "awaiting_extension" and len(at.person.asked) == 1
        assert all(page.endswith(f"/subagents/{run['subagent_id']}") for page in at.person.pages)
        assert await at.facts(run, Answered) == []
        assert (await at.call("cancel_subagent", subagent_id=run["subagent_id"]))["status"] == "cancelled"
