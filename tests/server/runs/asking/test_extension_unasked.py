"""When a run near a cap asks nobody, and wraps up at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hosts import extensions
from support.runtime import PRICED, open_lab

from ava_audit.events import Asked, AssistantMessage, Channel, Event, Fence, RunClaimed, Who
from ava_audit.rows import RunRow
from ava_audit.store.store import append
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.runs.asking.extension import Shortage, _round_cap, extension_limits, extension_request


@pytest.mark.parametrize(
    ("channel", "config", "caps"),
    [
        pytest.param("host_call", PRICED, extensions.CAP, id="nobody's own answer approved it"),
        pytest.param("terminal", extensions.config(0), extensions.CAP, id="it is switched off"),
        pytest.param(
            "terminal",
            extensions.config(600, "max_cost_cents = 20"),
            extensions.CAP,
            id="the hard cap leaves no room",
        ),
        pytest.param(
            "terminal",
            extensions.config(600, "user_daily_cents = 20"),
            extensions.CAP,
            id="the day of the user leaves no room",
        ),
        pytest.param(
            "terminal",
            extensions.config(600, "installation_daily_cents = 20"),
            extensions.CAP,
            id="the installation's day",
        ),
        pytest.param("terminal", PRICED, {"max_iterations": 5}, id="another cap"),
    ],
)
async def test_wraps_up_at_once_where_it_may_not_ask(
    tmp_path: Path, channel: Channel, config: str, caps: dict[str, Any]
) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=config) as lab:
        run_id = await extensions.start(lab, channel, **caps)
        run = await lab.ended(run_id)
        assert run.state in ("cost_exceeded", "iteration_limit")
        assert await lab.facts(run_id, Asked) == []


async def test_asks_only_after_a_first_answer_and_never_after_an_overrun(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED, runs=False) as lab:
        row = await lab.run(await extensions.start(lab))
        limits = extension_limits(lab.runtime.settings, lab.session.user)

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
    async with open_lab(tmp_path, extensions.keep_noting, config=config) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="x", max_cost_cents=20)
        assert answer.status == "approved", answer
        assert (await lab.ended(answer.subagent_id)).state == "cost_exceeded"
        assert await lab.facts(answer.subagent_id, Asked) == []


async def test_a_plan_is_never_asked_for_more_than_its_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        lab.session.channel = "terminal"
        made = [await lab.propose(task="one", **extensions.CAP), await lab.propose(task="two", **extensions.CAP)]
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
def test_a_rounded_cap_is_never_above_what_it_may_be(cap: Any, wanted: float, most: float) -> None:
    value = _round_cap(cap, wanted, most)
    assert value <= max(most, 0) + (0.05 if cap == "timeout" else 0)
    unit = {"max_cost_cents": 10_000, "max_tokens": 1_000, "timeout": 60}[cap]
    assert value >= wanted or value > most - unit
