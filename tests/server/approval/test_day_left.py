"""What a proposal says that its money buys, and the refusal of what cannot work, count every cap over the run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.approval.past_runs import check_approval_of, pending_of
from support.commands.dashboard import decision_question
from support.model_server import Say
from support.pages.browser import open_pages
from support.runtime import DONE, hand_over, open_lab

from ava_server.approval.decisions import CheckedApproval
from ava_server.approval.proposals import together_note
from ava_server.approval.start_form import question
from ava_server.cli.start_question import ShownProposals

PRICE = '[prices."custom:test"]\ninput = 2.0\noutput = 10.0\n'
CAP = "Its cost cap is enough for at least"
DAYS = {
    "user": ("user_daily_cents", "your budget for today (limits.user_daily_cents in config.toml)"),
    "installation": (
        "installation_daily_cents",
        "this installation's budget for today (limits.installation_daily_cents in config.toml)",
    ),
}
COSTLY = Say(calls=[DONE], usage={"prompt_tokens": 100, "completion_tokens": 20, "cost": 0.3})


def config(day: str, cents: int) -> str:
    return f"{PRICE}[limits]\n{DAYS[day][0]} = {cents}\nrunning_per_user = 10\n"


def turns_in(message: str) -> int:
    found = re.search(r"is enough for at least (\d+) of its \d+ turns, even if each model call costs", message)
    assert found, message
    return int(found[1])


@pytest.mark.parametrize("day", DAYS)
async def test_the_figure_counts_what_is_left_of_the_day_and_names_that_budget(
    tmp_path: Path, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_lab(tmp_path, [hand_over()], config=config(day, 20)) as lab:
        small = await lab.propose(max_cost_cents=20)
        made = await lab.propose(max_cost_cents=40)
        assert CAP in small.message and "is left of" not in small.message
        assert f"Only $0.20 is left of {DAYS[day][1]}, less than its cost cap." in made.message
        assert CAP not in made.message and turns_in(made.message) == turns_in(small.message)
        (_small, one) = await pending_of(lab)
        shown = await check_approval_of(lab, made)
        drawn = await decision_question(lab, "approve", made.subagent_id)
        assert one.summary is not None and any("is left of" in line for line in one.summary.warnings)
        for text in (one.message, " ".join(question(shown).text.split(" \n")), drawn.text.replace("\n", " ")):
            assert f"Only $0.20 is left of {DAYS[day][1]}" in text and turns_in(text) == turns_in(made.message)
        ShownProposals([one]).show()
        assert f"Only $0.20 is left of {DAYS[day][1]}" in capsys.readouterr().out


@pytest.mark.parametrize("day", DAYS)
async def test_refuses_a_run_for_which_too_little_of_the_day_is_left(tmp_path: Path, day: str) -> None:
    async with open_lab(tmp_path, [COSTLY], config=config(day, 34)) as lab:
        first, late = await lab.propose(max_cost_cents=34), await lab.propose(max_cost_cents=30)
        await lab.approve(first)
        assert (await lab.ended(first.subagent_id)).cost_micros == 300_000
        whose = DAYS[day][1].partition(" (")[0]
        says = f"$0.04 is left of {whose} ($0.30 of $0.34 are spent), which buys no useful work"
        answer = await lab.call("spawn_subagent", role="researcher", task="t", workspace=str(lab.workspace))
        assert says in answer.message and answer.status == "failed"
        assert re.search(r"that takes \$0\.\d\d; it is renewed at 00:00 UTC, or raise limits\.", answer.message)
        (shown,) = await pending_of(lab)
        assert f"Only $0.04 is left of {DAYS[day][1]}, less than its cost cap: it cannot start" in shown.message
        decided = await lab.approve(late)
        assert says in decided.decisions[0].refused_because
        assert (await lab.run(late.subagent_id)).state == "awaiting_approval", "it can start tomorrow"
    assert len(lab.server.requests) == 1, "nothing was sent for a run that could not work"


async def test_an_approval_with_a_lower_cap_shows_what_that_buys(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICE, runs=False) as lab:
        made = await lab.propose(max_cost_cents=40)
        found = await check_approval_of(lab, made)
        (member,) = found.members
        lowered = type(member)(member.row, member.run, member.config, member.brief, {"max_cost_micros": 150_000})
        text = question(CheckedApproval((lowered,), None, None, found.day)).text
    assert turns_in(text) < turns_in(made.message)


async def test_a_plan_names_the_cap_that_all_of_them_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_lab(tmp_path, [], config=config("user", 60), runs=False) as lab:
        made = [await lab.propose(task=f"Part {number}", max_cost_cents=40) for number in range(2)]
        says = f"Their caps add up to $0.80, but only $0.60 is left of {DAYS['user'][1]}: some may end early."
        text = question(await check_approval_of(lab, *made)).text
        waiting = await pending_of(lab)
        ShownProposals(waiting).show()
        limited = together_note(waiting, 500_000)
        answer = await lab.approve(*made, group_max_cost_cents=5)
    assert says in text and says in capsys.readouterr().out and says in together_note(waiting, None)
    assert "but together they may spend only $0.50" in limited
    assert "group_max_cost_cents: $0.05 buys no useful work" in answer.decisions[0].refused_because


async def test_a_free_run_needs_nothing_of_the_day(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config="[limits]\nuser_daily_cents = 0\n") as lab:
        made = await lab.propose()
        assert "budget for today" not in made.message
        await lab.approve(made)
        assert (await lab.ended(made.subagent_id)).state == "success"


@pytest.mark.slow
def test_the_page_of_proposals_says_it_too(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", config("user", 60).replace("custom:test", "custom:scripted")) as there:
        visitor = there.signed_in()
        made = [there.host.propose(task=f"Part {number}", max_cost_cents=70) for number in range(2)]
        page = visitor.get(f"/proposals?id={made[0]['pending_id']}&id={made[1]['pending_id']}").text
    assert page.count(f"Only $0.60 is left of {DAYS['user'][1]}, less than its cost cap.") == 2
    assert "Their caps add up to $1.40, but only $0.60 is left" in page
