"""A plan that goes on from an earlier one: what was done is not done again, and nothing of it is lost unseen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, Say
from support.runs import plans
from support.runtime import PRICED, open_lab, submit

from ava_audit.retention import erase_run
from ava_audit.view import View
from ava_server.cli.run import _folder_of
from ava_server.run_config.config import config_of
from ava_server.runs.turn.reuse import folder_state
from ava_server.service import session_plans as service_plans


async def test_a_plan_goes_on_from_an_earlier_one_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        first = await plans.finish(lab)
        asked = len(lab.server.requests)

        same = await plans.propose(lab, retry_of=first.id)
        assert same.status == "failed" and "nothing to run" in same.message

        edited = {**plans.WRITE, "task": "Write short notes from {{read}}."}
        second = await plans.propose(lab, [plans.FIND, plans.READ, edited], retry_of=first.id)
        assert "2 of 3 steps are done" in second.message, second.message
        await plans.approve(lab, second)
        assert len(lab.server.requests) == asked + 1, "only the edited step has run"
        rows = await plans.rows(lab, second.group_id)
        assert [row.step for row in rows] == ["write"]

        (lab.workspace / "new.txt").write_text("the folder has changed")
        third = await plans.propose(lab, retry_of=first.id)
        assert "are done" not in third.message

        fourth = await lab.call("spawn_subagent", retry_of=second.group_id, again=["find"])
        assert fourth.status == "awaiting_approval", fourth.message
        assert "are done" not in fourth.message


async def test_a_step_keeps_its_own_task_when_an_earlier_one_is_dropped(tmp_path: Path) -> None:
    steps = [
        plans.step("publish", "FIRST: publish everything."),
        plans.step("read", "SECOND: read only."),
    ]
    async with open_lab(tmp_path, lambda _request: submit("done"), config=PRICED) as lab:
        proposal = await plans.propose(lab, steps)
        await lab.approve(proposal, changes={proposal.pending_id: {"drop": ["publish"]}})
        plan = await lab.ended(proposal.group_id)
        [row] = await plans.rows(lab, plan.id)
        assert row.step == "read"
        again = await lab.call("spawn_subagent", retry_of=plan.id, again=["read"])
        assert again.status == "awaiting_approval", again.message
    [request] = lab.server.requests
    assert b"SECOND: read only." in request.body and b"FIRST" not in request.body


async def test_of_a_list_that_is_partly_done_the_other_items_run(tmp_path: Path) -> None:
    failing = True

    def work(request: dict[str, Any]) -> Say | Fail:
        body = json.dumps(request)
        if failing and "item 2 of the list" in body:
            return Fail(400)
        return plans.write_notes(request)

    async with open_lab(tmp_path, work, config=PRICED) as lab:
        first = await plans.finish(lab, state="partial")

        failing = False
        second = await lab.call("spawn_subagent", retry_of=first.id)
        assert "1 of 3 steps is done: the results of 2 earlier runs count" in second.message, second.message
        await plans.approve(lab, second)
        rows = await plans.rows(lab, second.group_id)
        assert [(row.step, row.item) for row in rows] == [("read", 2), ("write", None)]
        result = await lab.result(second.group_id)
        assert [(line["step"], line["runs"], line["not_done"]) for line in result["steps"]] == [
            ("find", 1, 0), ("read", 2, 0), ("write", 1, 0),
        ]  # fmt: skip
        items = await plans.inputs(lab, second.group_id, "write")
    text = "\n".join(each["text"] for each in items)
    assert len(items) == 3 and "core is new" in text and "web is gone" in text


async def test_the_mark_of_each_earlier_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each item it took 74 s with 300 of them."""
    count = 8
    reads: list[str] = []
    work = plans.hand_over_each([f"module {number}" for number in range(count)], "it is new")
    mark_of = service_plans._mark_of

    def counted(view: View, row: Any) -> str | None:
        reads.append(row.id)
        return mark_of(view, row)

    monkeypatch.setattr(service_plans, "_mark_of", counted)
    async with open_lab(tmp_path, work, config=f"{PRICED}\n[limits]\nspawns_per_hour = 30\n") as lab:
        first = await plans.finish(lab, [plans.FIND, {**plans.READ, "at_most": count}, plans.WRITE])
        second = await lab.call("spawn_subagent", retry_of=first.id, again=["write"])
        assert "2 of 3 steps are done" in second.message, second.message
    assert len(reads) == len(set(reads)) == count + 1


async def test_a_retry_refuses_what_it_would_lose_or_ignore(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        folder = str(lab.workspace)
        plan = await plans.finish(lab)
        assert await _folder_of(lab.runtime.settings, plan.id) == folder
        for beside in ({"task": "Something else"}, {"role": "custom"}):
            refused = await lab.call("spawn_subagent", retry_of=plan.id, again=["write"], **beside)
            assert refused.status == "failed" and "have their own; give `steps`" in refused.message
        alone = await lab.call("spawn_subagent", steps=[plans.FIND], again=["find"])
        assert alone.status == "failed" and "again: it names steps of an earlier plan" in alone.message
        named = await lab.call("spawn_subagent", retry_of=plan.pending_id, again=["write"], workspace=folder)
        assert named.group_id is not None and "2 of 3 steps are done" in named.message, "a proposal names its plan"

        rows = await plans.rows(lab, plan.id)
        runs = {row.step: row.id for row in rows}
        for step in ("read", "write"):
            lost = await lab.call("spawn_subagent", retry_of=runs[step])
            assert lost.status == "failed" and f'give retry_of "{plan.id}"' in lost.message, lost.message
        for given in ({"retry_of": runs["find"]}, {"retry_of": runs["write"], "task": "Write it anew."}):
            made = await lab.call("spawn_subagent", **given)
            assert made.status == "awaiting_approval", made.message


async def test_proposals_approved_together_are_a_plan_that_goes_on_where_one_failed(tmp_path: Path) -> None:
    failing = True

    def work(request: dict[str, Any]) -> Say | Fail:
        if "Count the seals" in json.dumps(request) and failing:
            return Fail(400)
        return submit("counted")

    async with open_lab(tmp_path, work, config=PRICED) as lab:
        folder = str(lab.workspace)
        made = [
            await lab.propose(task="Count the otters", workspace=folder, name="Item"),
            await lab.propose(task="Count the seals of {{item_2}}", workspace=folder, name="Größe 2!"),
            await lab.propose(task="Count the whales", workspace=folder, name="Item"),
        ]
        approved = await lab.approve(*made, last="3 subagents together, at most $1.50")
        plan = await lab.ended(approved.group_id)
        assert plan.state == "partial"
        rows = await plans.rows(lab, plan.id)
        names = {row.id: row.step for row in rows}
        assert [names[one.subagent_id] for one in made] == ["item_2", "gr_e_2", "item_3"], "`item` is taken"

        failing, asked = False, len(lab.server.requests)
        again = await lab.call("spawn_subagent", retry_of=plan.id)
        assert "2 of 3 steps are done" in again.message, again.message
        await plans.approve(lab, again)
        assert len(lab.server.requests) == asked + 1, "only the one that failed has run"
        assert b"Count the seals of {{item_2}}" in lab.server.requests[-1].body, "its task is no template"

        await erase_run(lab.store, made[0].subagent_id, (), lab.session.who, "no longer needed")
        erased = await lab.call("spawn_subagent", retry_of=plan.id)
        assert erased.status == "failed" and "were erased" in erased.message, erased.message


def test_a_new_commit_on_the_branch_changes_the_state_of_a_folder(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("aaaa refs/heads/main\n")
    before = folder_state(str(tmp_path))
    assert folder_state(str(tmp_path)) == before
    (git / "refs" / "heads" / "main").write_text("bbbb\n")
    after = folder_state(str(tmp_path))
    assert after != before
    (tmp_path / "new.txt").write_text("x")
    assert folder_state(str(tmp_path)) != after
    assert folder_state(None) == ""
    assert folder_state(str(tmp_path / "gone")) is None


async def test_each_result_counts_once_for_a_list_whose_task_names_no_item(tmp_path: Path) -> None:
    done = 0

    def work(request: dict[str, Any]) -> Say | Fail:
        nonlocal done
        if "List the changed modules" in json.dumps(request):
            return submit({"items": ["a", "b", "c", "d"]})
        done += 1
        return submit("yes") if done == 1 else Fail(400)

    vote = {"id": "vote", "role": "researcher", "foreach": "find.items", "at_most": 4, "task": "Vote yes or no."}
    async with open_lab(tmp_path, work, config=PRICED) as lab:
        first = await plans.finish(lab, [plans.FIND, vote], state="partial")
        again = await lab.call("spawn_subagent", retry_of=first.id)
        assert "the results of 2 earlier runs count" in again.message, again.message
        config = config_of((await lab.run(again.group_id)).config)
        assert [(step.id, len(step.reused), step.new_runs) for step in config.steps] == [("find", 1, 0), ("vote", 1, 3)]


async def test_a_note_in_memory_that_changed_makes_the_runs_that_read_it_run_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit("12 cents")] * 3, config=PRICED) as lab:
        notes = lab.runtime.settings.paths.memory
        notes.mkdir(mode=0o700, exist_ok=True)
        (notes / "prices.md").write_text("Otter: 12 cents\n")
        recalls = plans.step("recall", "What does it cost?", tools=["recall"])
        plain = plans.step("plain", "Look around.", tools=["read_file"])
        first = await plans.finish(lab, [recalls, plain])
        (notes / "prices.md").write_text("Otter: 13 cents\n")
        again = await lab.call("spawn_subagent", retry_of=first.id)
        assert "1 of 2 steps is done" in again.message, again.message
        config = config_of((await lab.run(again.group_id)).config)
    assert [step.again_why for step in config.steps] == ["the notes in memory have changed", ""]


async def test_what_counts_no_more_is_named_with_the_reason_and_the_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        (lab.workspace / "a.md").write_text("one")
        first = await plans.finish(lab)
        (lab.workspace / "a.md").write_text("another")
        again = await lab.call("spawn_subagent", retry_of=first.id)
        assert f"goes on from the plan {first.id}" in again.message, again.message
        config = config_of((await lab.run(again.group_id)).config)
        assert config.goes_on_from == first.id
        assert [step.again_why for step in config.steps] == [
            'the folder has changed: "a.md"', 'it needs the step "find"', 'it needs the step "read"',
        ]  # fmt: skip
        assert 'The step "find" runs again: the folder has changed: "a.md".' in again.message


async def test_the_file_with_the_steps_does_not_count_as_part_of_the_folder(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        (lab.workspace / "a.md").write_text("one")
        for name in ("plan.toml", "plan-2.toml"):
            file = lab.workspace / name
            file.write_text(f"the steps are in {name}")
            lab.session.steps_file = str(file)
            if name == "plan.toml":
                first = await plans.finish(lab)
        changed = [plans.FIND, plans.READ, {**plans.WRITE, "task": "Write the short notes from {{read}}."}]
        again = await plans.propose(lab, changed, retry_of=first.id)
        assert "2 of 3 steps are done" in again.message, again.message
        config = config_of((await lab.run(again.group_id)).config)
    assert [step.again_why for step in config.steps] == ["", "", "its task has changed"]


async def test_a_renamed_step_is_not_paid_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        first = await plans.finish(lab, [plans.FIND, plans.step("notes", "Write the notes.")])
        renamed = [{**plans.FIND, "id": "list_modules"}, plans.step("notes", "Write other notes.")]
        again = await plans.propose(lab, renamed, retry_of=first.id)
        assert "1 of 2 steps is done" in again.message, again.message


def test_a_link_that_leads_elsewhere_changes_the_state_of_a_folder(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.md").write_text(version)
    link = tmp_path / "current"
    link.symlink_to("v1")
    before = folder_state(str(tmp_path))
    link.unlink()
    link.symlink_to("v2")
    assert folder_state(str(tmp_path)) != before
    outside = tmp_path.with_name("linked")
    outside.symlink_to(tmp_path / "v1")
    of_first = folder_state(str(outside))
    outside.unlink()
    outside.symlink_to(tmp_path / "v2")
    assert folder_state(str(outside)) != of_first
