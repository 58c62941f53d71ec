"""Money that is held is no money spent: one figure, beside what is spent, on every surface.

The run waits for a person meanwhile, so that it holds nothing but its last turn.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands.dashboard import look, plain_lines, sandbox_of
from support.hosts.extensions import DEAR, keep_noting
from support.model_server import Step
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.rows import AWAITING_EXTENSION
from ava_audit.totals import plan_sum
from ava_audit.units import format_usd, now_us
from ava_server.cli.report import _plan_json, _plan_screen
from ava_server.cli.show import _sums
from ava_server.cli.status_overview import health
from ava_server.cli.users import _describe_user
from ava_server.dashboard.live import LivePage
from ava_server.runs.record.costs import fold_costs
from ava_server.service.checks.data import budgets
from ava_server.service.user_accounts import list_users
from ava_server.web.context import environment


def one_works(asked: dict[str, Any]) -> Step:
    return keep_noting(asked) if "number 1" in json.dumps(asked["messages"]) else hand_over(usage=DEAR)


SURFACES = (
    "ava user list", "ava report --group", "ava show --costs", "ava status", "the dashboard", "ava doctor",
    "the pages of costs, health and runs", "the page of a run", "check_subagent and its card",
)  # fmt: skip


async def test_a_run_that_asks_its_person_shows_one_figure_for_money_held_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_lab(tmp_path, one_works, config=PRICED) as lab:
        lab.session.channel = "terminal"
        proposals = [await lab.propose(task=f"number {number}", max_cost_cents=20) for number in range(2)]
        approved = await lab.approve(*proposals, last="2 subagents together, at most $0.40")
        assert approved.status == "approved", approved
        runs = [proposal.subagent_id for proposal in proposals]
        await lab.ended(runs[0])
        await lab.logged(runs[1], "Asked")
        done, asks = [await lab.run(run_id) for run_id in runs]
        plan_id = asks.plan_id
        assert plan_id is not None and asks.in_flight is None
        spent, held = done.cost_micros + asks.cost_micros, asks.held_micros
        assert done.cost_micros > 0 and held == asks.wrap_micros > 0 == done.held_micros

        overview = await look(lab)
        settings = lab.runtime.settings
        [shown] = [one for one in overview.now.runs if one.row.id == asks.id]
        [user] = [one for one in await list_users(settings, lab.store) if one.name == lab.session.user]
        found = await lab.store.read(partial(plan_sum, plan_id=plan_id))
        assert found is not None
        _plan_screen(found, now_us())
        entries = await lab.entries(asks.id)
        checked = await lab.call("check_subagent", subagent_id=asks.id)
        assert checked.status == AWAITING_EXTENSION
        screen = LivePage(
            str(lab.root), overview.now, tuple(health(overview, settings, sandbox_of("bubblewrap"), "")), 120
        )
        parts = environment().get_template("parts.html").module
        surfaces = {
            "ava user list": _describe_user(user),
            "ava report --group": capsys.readouterr().out,
            "ava status": "\n".join(plain_lines(list(screen.today_lines()))),
            "the dashboard": "\n".join(plain_lines(list(screen.today_lines(short=True)))),
            "ava doctor": budgets(overview.now.budgets, ("the user's", "everybody's")).text,
            "the pages of costs, health and runs": parts.budgets(overview.now.budgets),  # type: ignore[attr-defined]
        }
        together = format_usd(spent + held)
        for name, words in surfaces.items():
            set_aside = (f"{format_usd(held)} held", f"{format_usd(held)} reserved")
            assert format_usd(spent) in words and any(one in words for one in set_aside), (name, words)
            assert together not in words, (name, words)

        of_one = {
            "ava show --costs": "\n".join(_sums(asks, fold_costs(asks, entries))),
            "the page of a run": parts.caps(shown),  # type: ignore[attr-defined]
        }
        for name, words in of_one.items():
            assert f"{format_usd(held)} reserved for work in progress" in words, (name, words)
            assert format_usd(asks.cost_micros + held) not in words, (name, words)
        costs = [run.cost_cents for run in checked.runs]
        assert costs == [asks.cost_micros / 10_000], "the card draws this figure alone"
        as_json = _plan_json(found, now_us())
        assert (as_json["spent_cents"], as_json["held_cents"]) == (spent / 10_000, held / 10_000)
        assert (user.spent_cents, user.held_cents) == (spent / 10_000, held / 10_000)
        assert {*surfaces, *of_one, "check_subagent and its card"} == {*SURFACES}
        await lab.call("cancel_subagent", subagent_id=asks.id)
