"""The policy `auto`: what is small and can only read starts at once; everything else waits as it does under `ask`."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.approval.auto import all_decisions, auto_config, propose_reviewer, why_waiting
from support.model_server import run_model_server
from support.runtime import PRICED, Lab, check_budgets, hand_over, open_lab, settings_of

from ava_audit.events import SpawnDecided, UserMessage
from ava_audit.rows import WAITING
from ava_audit.units import MICROS_PER_CENT
from ava_server.approval.decisions import Ceilings
from ava_server.core.errors import ConfigError
from ava_server.runs.owner.mode import LOOKING
from ava_server.service.access import Session
from ava_server.service.runtime import open_runtime
from ava_server.service.service import Service

# -- the ceilings -----------------------------------------------------------------------------------------------------


async def test_a_run_below_both_ceilings_starts_at_once_and_says_so(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=auto_config()) as lab:
        answer = await propose_reviewer(lab)
        assert answer.status == "approved" and "Started without a question, by the policy auto" in answer.message
        assert answer.approval_line is None and answer.expires_at is None
        assert "check_subagent" in answer.next and answer.subagent_id in answer.next
        assert (await lab.ended(answer.subagent_id)).state == "success"
        [decision] = await lab.facts(answer.subagent_id, SpawnDecided)
        assert (decision.channel, decision.decision, decision.changes) == ("auto", "approved", {})
        assert [fact.kind for fact in await lab.facts(answer.subagent_id, UserMessage)] == ["task"], "nobody decided"
        again = await lab.call("confirm_spawn", pending_ids=[answer.pending_id], approving=["any"])
        assert "approved already" in again.decisions[0].refused_because
        assert len(lab.server.requests) == 1


async def test_a_run_above_its_ceiling_waits_and_names_the_setting(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=auto_config(each=39)) as lab:
        answer = await propose_reviewer(lab)
        said = why_waiting(answer)
        assert "$0.40" in said and "$0.39" in said and "auto_approve_cents in config.toml" in said
        assert await all_decisions(lab) == [] and lab.server.requests == []
        assert (await lab.approve(answer)).status == "approved", "as under ask"
        [decision] = await all_decisions(lab)
        assert decision.channel == "host_call"
        await lab.ended(answer.subagent_id)


async def test_a_run_that_would_exceed_the_daily_ceiling_waits_and_names_the_setting(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(day=119), runs=False) as lab:
        assert [(await propose_reviewer(lab, task=f"number {each}")).status for each in range(2)] == ["approved"] * 2
        third = await propose_reviewer(lab, task="number 3")
        said = why_waiting(third)
        assert "$0.80" in said and "$1.19" in said and "auto_approve_daily_cents in config.toml" in said
        fourth = await propose_reviewer(lab, task="number 4", max_cost_cents=39)
        assert fourth.status == "approved", "exactly the rest"
        assert "auto_approve_daily_cents" in why_waiting(
            await propose_reviewer(lab, task="number 5", max_cost_cents=17)
        )


async def test_runs_approved_by_a_person_do_not_count_towards_the_ceiling(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=50, day=50), runs=False) as lab:
        dear = await propose_reviewer(lab, max_cost_cents=300)
        assert (await lab.approve(dear)).status == "approved"
        assert (await propose_reviewer(lab, task="small", max_cost_cents=50)).status == "approved"


async def test_fifty_simultaneous_runs_never_commit_more_than_the_daily_ceiling(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=50, day=350), runs=False) as lab:
        answers: list[Any] = []

        async def propose(number: int) -> None:
            answers.append(await propose_reviewer(lab, task=f"number {number}", max_cost_cents=20))

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(propose, number)
        statuses = [answer.status for answer in answers]
        assert statuses.count("approved") == 17 and statuses.count(WAITING) == 33, "17 times 20 is 340"
        for answer in answers:
            if answer.status == WAITING:
                assert "auto_approve_daily_cents" in why_waiting(answer)
        assert [fact.channel for fact in await all_decisions(lab)] == ["auto"] * 17


async def test_two_servers_share_one_daily_ceiling(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=50, day=50), runs=False, check=False) as lab:
        config = (lab.root / "config.toml").read_text()
        async with open_runtime(settings_of(lab.root, lab.server.base_url, config), LOOKING) as runtime:
            there = replace(
                lab, runtime=runtime, service=Service(runtime, Session(user=runtime.user, transport="memory"))
            )
            answers: list[str] = []

            async def propose(at: Lab, number: int) -> None:
                answers.append((await propose_reviewer(at, task=f"number {number}", max_cost_cents=20)).status)

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(propose, lab if number % 2 else there, number)
            assert sorted(answers) == ["approved"] * 2 + [WAITING] * 8
        await lab.store.read(check_budgets)


async def test_a_repeated_task_id_counts_and_starts_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=50, day=50), runs=False) as lab:
        answers: list[Any] = []

        async def propose() -> None:
            answers.append(await propose_reviewer(lab, task_id="order 66"))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(propose)
        assert len({answer.subagent_id for answer in answers}) == 1
        assert len(await all_decisions(lab)) == 1
        assert {answer.status for answer in answers} <= {"approved", "queued"}


async def test_a_run_that_cost_less_still_counts_with_its_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=auto_config(each=50, day=60)) as lab:
        answer = await propose_reviewer(lab)
        ended = await lab.ended(answer.subagent_id)
        assert ended.state == "success" and 0 < ended.cost_micros < 5 * MICROS_PER_CENT
        assert "runs with caps of $0.40" in why_waiting(await propose_reviewer(lab, task="another"))


async def test_a_cancelled_run_still_counts(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=50, day=60), runs=False) as lab:
        answer = await propose_reviewer(lab)
        await lab.call("cancel_subagent", subagent_id=answer.subagent_id)
        assert "auto_approve_daily_cents" in why_waiting(await propose_reviewer(lab, task="another"))


async def test_a_free_run_counts_as_one_cent(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(each=1, day=3, prices=""), runs=False) as lab:
        statuses = [
            (await propose_reviewer(lab, task=f"number {each}", max_cost_cents=500)).status for each in range(4)
        ]
        assert statuses == ["approved"] * 3 + [WAITING]


@pytest.mark.parametrize(("each", "day"), [(0, 1000), (1000, 0), (0, 0)])
@pytest.mark.parametrize("prices", [PRICED, ""], ids=["priced", "free"])
async def test_a_ceiling_of_zero_starts_nothing_automatically(tmp_path: Path, each: int, day: int, prices: str) -> None:
    async with open_lab(tmp_path, config=auto_config(each, day, prices), runs=False) as lab:
        answer = await propose_reviewer(lab)
        assert ("auto_approve_cents" if each == 0 else "auto_approve_daily_cents") in why_waiting(answer)
        assert await all_decisions(lab) == []


async def test_the_ceiling_resets_with_the_utc_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's clock is set, to 23:59 UTC of a day to come and then over midnight."""
    real, began = time.time_ns, time.time_ns()
    late = (datetime.now(UTC) + timedelta(days=1)).replace(hour=23, minute=59, second=0, microsecond=0)
    at = [int(late.timestamp()) * 1_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: at[0] + real() - began)
    async with open_lab(tmp_path, config=auto_config(each=50, day=50), runs=False) as lab:
        assert (await propose_reviewer(lab)).status == "approved"
        assert "auto_approve_daily_cents" in why_waiting(await propose_reviewer(lab, task="the same day"))
        at[0] += 61 * 1_000_000_000
        assert (await propose_reviewer(lab, task="the next day")).status == "approved"
        assert "auto_approve_daily_cents" in why_waiting(await propose_reviewer(lab, task="and one more"))


@given(
    each=st.integers(0, 10**7),
    day=st.integers(0, 10**7),
    caps=st.lists(st.integers(1, 10**6), max_size=40),
)
def test_the_ceilings_hold_for_any_sequence_of_requests(each: int, day: int, caps: list[int]) -> None:
    ceilings, before = Ceilings(each, day), 0
    for micros in caps:
        if ceilings.exceeded(micros, before) is None:
            assert micros <= each
            before += micros
        else:
            assert micros > each or before + micros > day, "nothing waits that would fit"
    assert before <= day


# -- what never starts by itself --------------------------------------------------------------------------------------


# -- who sets it ------------------------------------------------------------------------------------------------------


def test_the_environment_cannot_loosen_a_stricter_file(tmp_path: Path) -> None:
    for config in ("", 'approval = "ask"', 'approval = "human"'):
        with pytest.raises(ConfigError, match="AVA_APPROVAL"):
            settings_of(tmp_path / "data", None, config, {"AVA_APPROVAL": "auto"})
    for name in ("AVA_AUTO_APPROVE_CENTS", "AVA_AUTO_APPROVE_DAILY_CENTS"):
        with pytest.raises(ConfigError, match=name):
            settings_of(tmp_path / "data", None, auto_config(), {name: "1000"})


async def test_the_environment_may_tighten_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(), runs=False, env={"AVA_APPROVAL": "ask"}) as lab:
        answer = await propose_reviewer(lab)
        assert answer.status == WAITING and "by itself" not in answer.message
        assert await all_decisions(lab) == []


async def test_a_terminal_user_is_still_asked(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config(), runs=False) as lab:
        person = Session(user=lab.runtime.user, transport="terminal", channel="terminal")
        there = replace(lab, service=Service(lab.runtime, person), session=person)
        answer = await propose_reviewer(there)
        assert answer.status == WAITING and "by itself" not in answer.message
        assert await all_decisions(lab) == []


async def test_ceilings_without_the_auto_policy_start_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=auto_config().replace('"auto"', '"ask"'), runs=False) as lab:
        assert (await propose_reviewer(lab)).status == WAITING
        assert await all_decisions(lab) == []


async def test_the_hourly_spawn_limit_applies_here_too(tmp_path: Path) -> None:
    config = auto_config(each=50, day=1000).replace("spawns_per_hour = 1000", "spawns_per_hour = 2")
    async with open_lab(tmp_path, config=config, runs=False) as lab:
        assert [(await propose_reviewer(lab, task=f"number {each}")).status for each in range(2)] == ["approved"] * 2
        third = await propose_reviewer(lab, task="the third")
        said = why_waiting(third)
        assert "2 of 2 paid starts per hour without a person's answer are used (limits.spawns_per_hour in " in said
        assert f"/ava approve {third.pending_id}` in a terminal is not limited" in said
        assert "confirm_spawn cannot start it now" in third.next


async def test_confirming_an_expired_proposal_starts_nothing_here_either(tmp_path: Path) -> None:
    """The fresh proposal is one to look at: a call that is answered with "nothing was started" starts nothing."""
    with run_model_server([]) as models:
        strict = f"proposal_ttl_s = 1\n{auto_config().replace(chr(34) + 'auto' + chr(34), chr(34) + 'ask' + chr(34))}"
        async with open_lab(tmp_path, config=strict, server=models, runs=False) as lab:
            made = await propose_reviewer(lab)
        async with open_lab(tmp_path, config=f"proposal_ttl_s = 1\n{auto_config()}", server=models, runs=False) as lab:
            await anyio.sleep_until(anyio.current_time() + 1.05)  # the time that it has to live
            answer = await lab.approve(made)
            assert answer.status == "refused" and answer.next == "Nothing was started."
            fresh = answer.decisions[0].fresh
            assert fresh is not None and fresh["status"] == WAITING and fresh["approval_line"]
            assert [decision.decision for decision in await all_decisions(lab)] == ["expired"]
