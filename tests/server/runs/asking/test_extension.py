"""A run near a cap of its own asks a person for more, and wraps up where nobody allows it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.hosts import extensions
from support.model_server import Gate, Say, Step, run_model_server
from support.runs.owners import owner_process
from support.runtime import PRICED, check_budgets, check_requests, hand_over, open_lab
from support.stdio import until

from ava_audit.events import Answered, Asked, CostReserved, UserMessage
from ava_audit.units import format_usd, local_second, now_us
from ava_audit.view import View
from ava_server.render.host_text import text_of
from ava_server.run_config.config import config_of
from ava_server.runs.asking.extension import MOST_ASKED
from ava_server.runs.asking.pending_questions import asked_of
from ava_server.runs.asking.question_kinds import PendingQuestion

# -- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("N-15")
async def test_a_run_that_is_allowed_more_goes_on_under_the_new_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        row = await extensions.wait_for_ask(lab, run_id)
        asked = asked_of(row)
        assert asked is not None and asked.cap == "max_cost_cents"
        assert (asked.limit, asked.used) == (200_000, row.cost_micros)
        assert asked.limit * 1.4 <= asked.proposed <= 2 * asked.limit and asked.proposed % 10_000 == 0
        assert abs(asked.expires_us - now_us() - 600_000_000) < 20_000_000
        shown = await extensions.pending(lab, run_id)
        assert f"near its cost cap of $0.20: {format_usd(200_000 - row.cost_micros)} left; about $0." in shown.message
        assert shown.message.endswith(f"if you do not answer, it does so at {local_second(asked.expires_us)}.")
        assert f"the run wraps up at {local_second(asked.expires_us)}" in PendingQuestion(row, asked).for_tools
        decided = await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
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
        assert told.turn == 6 and str(told.notice).startswith("A person has raised your limit: $")
        assert await lab.claim_reasons(run_id) == ["start", "resume"]


async def test_while_it_waits_its_clock_stands_its_slot_is_free_and_its_wrap_up_is_held(tmp_path: Path) -> None:
    config = f"{PRICED}\n[limits]\nrunning_per_user = 1\n"
    async with open_lab(tmp_path, extensions.keep_noting, config=config) as lab:
        run_id = await extensions.start(lab)
        row = await extensions.wait_for_ask(lab, run_id)
        assert (row.state, row.instance, row.in_flight) == ("queued", None, None) and row.active_us > 0
        last = (await lab.facts(run_id, CostReserved))[-1]
        assert row.wrap_micros == last.wrap_micros > 0
        for scope in last.scopes:
            bucket = await lab.store.read(partial(View.bucket, scope=scope))
            assert bucket.held_micros == row.wrap_micros
        other = await lab.ended(await lab.start(task="another", max_iterations=2))
        assert other.state == "iteration_limit", "the one slot"
        shown = await lab.call("check_subagent", subagent_id=run_id, wait_seconds=40)
        assert shown.status == "awaiting_extension", "nobody waits for it"
        assert (await lab.run(run_id)).active_us == row.active_us
        assert (await lab.call("cancel_subagent", subagent_id=run_id)).status == "cancelled"


@pytest.mark.requirement("N-15")
@pytest.mark.parametrize("declined", [True, False], ids=["declined", "no answer"])
async def test_without_a_yes_the_run_wraps_up_with_its_result(tmp_path: Path, declined: bool) -> None:
    config = PRICED if declined else extensions.config(1)
    async with open_lab(tmp_path, extensions.keep_noting, config=config) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        if declined:
            answer = await extensions.person(lab).questions.decide(run_id, shown.digest, approve=False)
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
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab, max_tokens=60_000, max_cost_cents=400)
        shown = await extensions.pending(lab, run_id)
        asked = asked_of(await lab.run(run_id))
        assert asked is not None and asked.cap == "max_tokens" and asked.proposed % 1_000 == 0
        assert "near its token cap of 60,000 tokens" in shown.message
        await extensions.person(lab, "http").questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.ended(run_id)).state == "success"


@pytest.mark.slow
async def test_asks_for_time_when_its_work_would_end_and_finishes_with_it(tmp_path: Path) -> None:
    slow = Say(calls=[("scratchpad", {"note": "slow"})], gate=Gate())
    async with open_lab(tmp_path, [extensions.note(0), slow, hand_over()], config=PRICED) as lab:
        run_id = await extensions.start(lab, timeout=3)
        shown = await extensions.pending(lab, run_id)
        row = await lab.run(run_id)
        asked = asked_of(row)
        assert asked is not None and (asked.cap, asked.limit) == ("timeout", 3.0) and asked.proposed >= 4.2
        assert row.active_us <= 3_000_000, "the time of the wrap-up is left"
        assert "near its time cap of 3 s" in shown.message
        await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
        run = await lab.ended(run_id)
        assert run.state == "success" and config_of(run.config).timeout_s == asked.proposed


@pytest.mark.slow
async def test_without_an_answer_about_time_it_wraps_up_in_the_time_left(tmp_path: Path) -> None:
    slow = Say(calls=[("scratchpad", {"note": "slow"})], gate=Gate())
    async with open_lab(tmp_path, [extensions.note(0), slow, hand_over()], config=extensions.config(1)) as lab:
        run_id = await extensions.start(lab, timeout=4)
        await extensions.wait_for_ask(lab, run_id)
        run = await lab.ended(run_id)
        assert run.state == "timeout" and run.active_us <= 4.3e6
        result = await lab.result(run_id)
        assert result["untrusted_result"]["output"] == "the answer"
        assert "timeout of 4 s; nobody answered its request to raise its time cap from 4 s to" in result["stop_reason"]


async def test_asks_again_after_a_yes_and_three_times_at_most(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.work_without_end, config=PRICED) as lab:
        run_id = await extensions.start(lab, max_cost_cents=20, max_iterations=60, max_tokens=200_000)
        limits = [200_000.0]
        for count in range(1, MOST_ASKED + 1):
            await lab.logged(run_id, "Asked", count)
            shown = await extensions.pending(lab, run_id)
            await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
            limits.append(config_of((await lab.run(run_id)).config).max_cost_micros)
        run = await lab.ended(run_id)
        assert run.state == "cost_exceeded" and limits == sorted(set(limits))
        asked = await lab.facts(run_id, Asked)
        assert len({fact.digest for fact in asked}) == len(asked) == MOST_ASKED


# -- while it waits ---------------------------------------------------------------------------------------------------


async def test_a_cancel_ends_it_at_once_and_holds_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        await extensions.wait_for_ask(lab, run_id)
        assert (await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")).status == "cancelled"
        row = await lab.run(run_id)
        assert (row.state, row.asked, row.wrap_micros) == ("cancelled", None, 0)
        assert (await lab.store.read(lambda view: view.bucket(run_id))).held_micros == 0
        assert (await lab.result(run_id))["untrusted_result"]["output"].startswith("note ")


@pytest.mark.slow
async def test_wraps_up_at_once_where_its_plan_has_no_time_to_wait(tmp_path: Path) -> None:
    def play(asked: dict[str, Any]) -> Step:
        return hand_over() if "the second" in json.dumps(asked["messages"]) else extensions.keep_noting(asked)

    async with open_lab(tmp_path, play, config=PRICED) as lab:
        lab.session.channel = "terminal"
        made = [
            await lab.propose(task="the first", timeout=15, **extensions.CAP),
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
    config = PRICED if approve else extensions.config(6)
    with run_model_server(extensions.keep_noting) as server:
        async with open_lab(tmp_path, server=server, config=config, runs=False, check=False) as lab:
            with owner_process(lab.root, server) as owner:
                run_id = await extensions.start(lab)
                shown = await extensions.pending(lab, run_id)
                owner.kill()
            if approve:
                await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
        async with open_lab(tmp_path, server=server, config=config, check=False) as lab:
            run = await lab.ended(run_id)
            assert run.state == ("success" if approve else "cost_exceeded")
            assert (await lab.result(run_id))["untrusted_result"]["output"] == "the answer"
            await lab.store.read(check_budgets)
        await check_requests(tmp_path / "data", server.requests)


# -- where it is shown ------------------------------------------------------------------------------------------------


async def test_every_tool_answer_says_what_it_waits_for(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        asked = asked_of(await extensions.wait_for_ask(lab, run_id))
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
    async with open_lab(tmp_path, extensions.keep_noting, config=config) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)

        def events() -> list[dict[str, Any]]:
            found = [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []
            return [event for event in found if event["event"] == "awaiting_extension"]

        await until(lambda: bool(events()), 15)
        [event] = events()
        assert (event["subagent_id"], event["status"]) == (run_id, "awaiting_extension")
        assert event["extension_id"] == shown.extension_id and event["request"].startswith("raise its cost cap from")
        await lab.call("cancel_subagent", subagent_id=run_id)
