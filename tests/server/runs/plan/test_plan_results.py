"""A plan's result says what its runs have done together: turns, tools, money, branches, and why they failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.model_server import Fail, Say
from support.pages.lab_pages import serve_lab_pages
from support.repositories.coding import RIGHT, branches, coder_task, project
from support.runs import plans
from support.runtime import PRICED, Lab, hand_over, open_lab, submit
from support.terminal import ava

from ava_audit.units import micros_from_cents
from ava_server.render.host_text import text_of
from ava_server.runs.record.plan_result import complete_result

SUMMED = ("iterations", "tool_receipts", "cost_by", "overrun", "branches")


def read_then_hand_over(request: dict[str, Any]) -> Say:
    """Read one file that is there and one that is not, and then hand over what the task asks for."""
    if not plans.tool_results(request):
        return Say(calls=[("read_file", {"path": "notes.md"}), ("read_file", {"path": "nowhere.md"})])
    return plans.write_notes(request)


async def whole_text(lab: Lab, *args: str, code: int = 0) -> str:
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, *args))
    assert done.returncode == code, done.stderr
    return done.stdout


async def test_a_plan_counts_the_turns_tools_and_money_of_its_runs(tmp_path: Path) -> None:
    async with open_lab(tmp_path, read_then_hand_over, config=PRICED) as lab:
        (lab.workspace / "notes.md").write_text("core and web\n")
        plan = await plans.finish(lab)
        result = await lab.result(plan.id)
        text = await whole_text(lab, "show", plan.id)
        answer = await lab.call("check_subagent", group_id=plan.id)
        calls = len(lab.server.requests)
    assert result["iterations"] == calls == 8, "four runs of two turns"
    assert result["tool_receipts"]["read_file"] == {"ok": 4, "failed": 4}
    spent = sum(micros_from_cents(each) for each in result["cost_by"].values())
    assert abs(spent - plan.cost_micros) <= 4 and plan.cost_micros > 0, "each run's parts are rounded on their own"
    assert "read_file 8 (4 failed)" in text and "Tools called: none" not in text
    assert "read_file 8 (4 failed)" in text_of(answer)


async def test_a_plan_of_an_older_log_is_shown_with_the_same_sums(tmp_path: Path) -> None:
    async with open_lab(tmp_path, read_then_hand_over, config=PRICED) as lab:
        plan = await plans.finish(lab)
        result = await lab.result(plan.id)
        older = {name: value for name, value in result.items() if name != "branches"}
        older |= {"iterations": 0, "tool_receipts": {}, "cost_by": {}}
        shown = await lab.store.read(lambda view: complete_result(view, plan, older))
        single = await lab.run((await plans.rows(lab, plan.id))[0].id)
        of_single = await lab.result(single.id)
        same = await lab.store.read(lambda view: complete_result(view, single, of_single))
    assert {name: shown[name] for name in SUMMED} == {name: result[name] for name in SUMMED}
    assert shown["iterations"] == 8 and same == of_single


@pytest.mark.usefixtures("confined")
async def test_a_plan_ends_with_the_branch_of_each_coder_and_how_to_merge_it(tmp_path: Path) -> None:
    project(tmp_path)

    def work(request: dict[str, Any]) -> Say:
        if any(message["role"] == "assistant" for message in request["messages"]):
            return hand_over()
        return Say(calls=[RIGHT])

    async with open_lab(tmp_path, work, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        steps = [{**coder_task(), "id": name} for name in ("fix", "again")]
        plan = await plans.finish(lab, steps)
        made = branches(lab.workspace)
        rows = await plans.rows(lab, plan.id)
        texts = [
            await whole_text(lab, "show", plan.id),
            text_of(await lab.call("check_subagent", group_id=plan.id)),
            unescape((await browser.get(f"/subagents/{plan.id}")).text),
        ]
        refused = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", plan.id, "--diff"))
    assert len(rows) == 2 and {f"ava/{row.id}" for row in rows} <= set(made)
    for text in texts:
        for row in rows:
            [line] = [line for line in text.splitlines() if f'Step "{row.step}": Branch ava/{row.id} of' in line]
            assert made[f"ava/{row.id}"][:12] in line
            assert f"Merge it: git -C {lab.workspace} merge ava/{row.id}" in text
    assert refused.returncode == 10 and all(row.id in refused.stderr for row in rows), refused.stderr


def refuse_key(_request: dict[str, Any]) -> Fail:
    return Fail(401, {"error": {"message": "this key was revoked"}})


def refuse_second_item(request: dict[str, Any]) -> Say | Fail:
    if "item 2 of the list" in json.dumps(request):
        return Fail(400, {"error": {"message": "this model does not exist"}})
    return plans.write_notes(request)


@pytest.mark.parametrize(
    ("work", "state", "code", "words", "advice"),
    [
        (refuse_key, "error", 20, 'Step "find" (', "this key was revoked"),
        (refuse_second_item, "partial", 18, 'Step "read" (', "this model does not exist"),
    ],
)
async def test_a_plan_that_failed_says_why_and_what_to_do(
    tmp_path: Path, work: Callable[[dict[str, Any]], Say | Fail], state: str, code: int, words: str, advice: str
) -> None:
    async with open_lab(tmp_path, work, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        plan = await plans.finish(lab, state=state)
        [failed] = [row for row in await plans.rows(lab, plan.id) if row.state == "error"]
        error = (await lab.result(failed.id))["error"]
        texts = [
            await whole_text(lab, "show", plan.id),
            text_of(await lab.call("check_subagent", group_id=plan.id)),
            unescape((await browser.get(f"/subagents/{plan.id}")).text),
        ]
    assert error["what_to_do"]
    for text in texts:
        assert f"{words}{failed.id}): " in text and advice in text
        assert "What to do" in text


async def test_one_error_of_several_runs_stands_once_with_their_number(tmp_path: Path) -> None:
    steps = [plans.step(f"look{number}", f"Look at {number}.") for number in range(5)]
    async with open_lab(tmp_path, refuse_key, config=PRICED) as lab:
        plan = await plans.finish(lab, steps, state="error")
        error_text = (await lab.result(plan.id))["untrusted_result"]["error_text"]
    assert error_text.startswith("5 runs (S-") and ", 2 more): " in error_text
    assert error_text.count("this key was revoked") == 1


async def test_a_plan_whose_runs_all_succeeded_has_no_error(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: submit(), config=PRICED) as lab:
        plan = await plans.finish(lab, [plans.step("look", "Look around.")])
        result = await lab.result(plan.id)
    assert result["error"] is None and "error_text" not in result["untrusted_result"] and result["branches"] == []
