"""`plan: true`: analysis, plan and review before the work, of which the plan stays; what fails is only left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.logs.cutting import all_entries, go_on_from
from support.model_server import Fail, Gate, HangUp, Say, Step, run_model_server
from support.runs import outlines
from support.runtime import PRICED, Lab, check_budgets, check_requests, hand_over, open_lab, wait_for
from support.sample import sample

from ava_audit.events import (
    Activity,
    AssistantMessage,
    CostReserved,
    CostUpdate,
    PlanReady,
    SpawnProposed,
    ToolCall,
    ToolResult,
)
from ava_server.runs.record.history import History, Recipe
from ava_server.runs.turn import reservation
from ava_server.runs.turn.reservation import DOING, NO_OUTLINE

# -- the ordinary way -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5-13")
async def test_a_run_analyses_plans_reviews_and_then_starts_work_with_the_plan(
    tmp_path: Path,
) -> None:
    outliner = outlines.Outliner()
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await outlines.run_with_plan(lab)
        requests = [request.json for request in lab.server.requests]
        assert outliner.asked == [outlines.ANALYSIS, outlines.PLAN, outlines.REVIEW, outlines.WORK, outlines.WORK]
        [ready] = await lab.facts(run_id, PlanReady)
        assert (ready.plan, ready.reviewed) == (outlines.BETTER_PLAN, True)
        assert [fact.phase for fact in await lab.facts(run_id, CostReserved)] == [*DOING, None, None]
        activities = [fact.activity for fact in await lab.facts(run_id, Activity)]
        assert activities[:3] == ["Analysing the task", "Planning", "Reviewing the plan"]
        run, result = await lab.run(run_id), await lab.result(run_id)
        assert (run.state, run.turns, result["iterations"]) == ("success", 5, 5), "they count as turns"
        parts = await outlines.check_parts(lab, run_id)
        assert set(parts) == {"plan", "input", "output"} and parts["plan"] > 0
    assert [outlines.roles_in(request) for request in requests[:3]] == [
        ["system", *["user"] * 2],
        ["system", "user", "user", "assistant", "user"],
        ["system", "user", "user", "assistant", "user", "assistant", "user"],
    ]
    assert requests[1]["messages"][-2]["content"] == outlines.ANALYSED.text
    assert requests[2]["messages"][-2]["content"] == outlines.FIRST_PLAN
    work = requests[3]["messages"]
    assert [message["role"] for message in work] == ["system", "user", "assistant", "user"]
    assert work[2]["content"] == outlines.BETTER_PLAN and work[3]["content"].startswith("Planning is over")
    assert requests[4]["messages"][:4] == work, "it stays there"


@pytest.mark.requirement("S5-13")
async def test_planning_and_work_send_identical_prefix_and_tool_bytes(tmp_path: Path) -> None:
    async with open_lab(tmp_path, outlines.Outliner()) as lab:
        await outlines.run_with_plan(lab)
        bodies = [request.body for request in lab.server.requests]
        plain = await lab.start(task="What does it cost?")
        await lab.ended(plain)
        requests = [json.loads(body) for body in bodies]
    task = bodies[0].index(b'"role":"user"')
    for body, request in zip(bodies, requests, strict=True):
        assert body[:task] == bodies[0][:task]
        assert json.dumps(request["tools"]) == json.dumps(requests[0]["tools"])
        assert {key: value for key, value in request.items() if key != "messages"} == {
            key: value for key, value in requests[0].items() if key != "messages"
        }, "nothing but the messages differs"
    for earlier, later in ((0, 1), (1, 2)):
        shared = bodies[earlier].index(b'],"tools"')
        assert bodies[later][:shared] == bodies[earlier][:shared], "each planning call goes on where the last one was"


@pytest.mark.requirement("S5-13")
async def test_the_review_lists_the_tools_that_are_available(tmp_path: Path) -> None:
    async with open_lab(tmp_path, outlines.Outliner()) as lab:
        await outlines.run_with_plan(
            lab, tools=["read_file", "search_codebase", "scratchpad"], blocked_tools=["scratchpad"]
        )
        review = lab.server.requests[2].json
    named = re.search(r"These are all the tools that there are: ([^.]+)\.", review["messages"][-1]["content"])
    assert named is not None
    assert named[1].split(", ") == [tool["function"]["name"] for tool in review["tools"]]
    assert named[1] == "read_file, search_codebase, submit_result"


@pytest.mark.parametrize("said", ["KEEP", "**Keep.**\n"])
async def test_a_review_that_approves_the_plan_leaves_it_unchanged(tmp_path: Path, said: str) -> None:
    async with open_lab(tmp_path, outlines.Outliner(review=Say(said))) as lab:
        run_id = await outlines.run_with_plan(lab)
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=outlines.FIRST_PLAN, reviewed=True)]
        work = lab.server.requests[3].json["messages"]
    assert [message["content"] for message in work[2:3]] == [outlines.FIRST_PLAN]
    assert [message["role"] for message in work] == ["system", "user", "assistant", "user"]


async def test_planning_is_off_by_default_and_the_proposal_shows_when_it_is_on(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "roles"
    folder.mkdir(parents=True)
    (folder / "thinker.md").write_text("---\ndescription: Thinks.\nplan: true\n---\nThink.\n", "utf-8")
    tells = "It plans first and then works: planning takes 3 of its 20 turns."
    async with open_lab(tmp_path) as lab:
        assert "plans first" not in (await lab.propose()).message
        assert tells in (await lab.propose(plan=True)).message
        assert tells in (await lab.propose(role="thinker")).message
        assert "plans first" not in (await lab.propose(role="thinker", plan=False)).message
        offline = await lab.propose(role="thinker", model="offline/extractive")
        assert "It does not plan first, because there is no language model to do it." in offline.message
        few = await lab.call("spawn_subagent", role="thinker", task="x", max_iterations=4, workspace=str(lab.workspace))
        assert few.status == "failed" and few.message.startswith("max_iterations: planning takes 3 turns")
        digests = [
            (await lab.facts((await lab.propose(plan=plan)).subagent_id, SpawnProposed))[0].digest
            for plan in (True, False)
        ]
        assert len(set(digests)) == 2, "it is part of what is approved"


async def test_the_offline_reader_does_not_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        run_id = await outlines.run_with_plan(lab, model="offline/extractive", task="What does Otter charge?")
        assert (await lab.run(run_id)).state == "success"
        assert await lab.facts(run_id, PlanReady) == []
        assert {fact.phase for fact in await lab.facts(run_id, CostReserved)} == {None}


async def test_a_retry_plans_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, outlines.Outliner()) as lab:
        again = await lab.call("spawn_subagent", retry_of=await outlines.run_with_plan(lab))
        assert "It plans first" in again.message


async def test_keeps_a_message_received_during_planning(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, outlines.Outliner(plan=Say(outlines.FIRST_PLAN, gate=gate))) as lab:
        (lab.workspace / "a.md").write_text("twelve\n")
        run_id = await lab.start(plan=True)
        await wait_for(gate.arrived)
        await lab.call("message_subagent", subagent_id=run_id, message="and Descript too")
        gate.released.set()
        await lab.ended(run_id)
        review, work = (lab.server.requests[number].json["messages"] for number in (2, 3))
    assert "and Descript too" in review[-2]["content"]
    assert [message["role"] for message in work] == ["system", "user", "user", "assistant", "user"]
    assert "and Descript too" in work[2]["content"] and work[3]["content"] == outlines.BETTER_PLAN


async def test_trimming_results_never_removes_the_plan(tmp_path: Path) -> None:
    outliner = outlines.Outliner()

    def step(request: dict[str, Any]) -> Step:
        if outlines.purpose_of(request) != outlines.WORK:
            return counted(request, outliner(request))
        turn = sum(message["role"] == "tool" for message in request["messages"])
        return counted(request, hand_over() if turn >= 14 else Say(calls=[("read_file", {"path": f"{turn}.md"})]))

    async with open_lab(tmp_path, step) as lab:
        for number in range(14):
            lines = "".join(f"file {number} line {line} says twelve cents\n" for line in range(450))
            (lab.workspace / f"{number}.md").write_text(lines)
        run_id = await outlines.run_with_plan(lab, max_iterations=30, max_tokens=200_000)
        assert (await lab.run(run_id)).state == "success"
        work = [request.json["messages"] for request in lab.server.requests[3:]]
    assert "characters left out" in json.dumps(work[-1])
    assert all(messages[2]["content"] == outlines.BETTER_PLAN for messages in work)


async def test_the_plan_comes_with_the_remaining_limits_if_planning_used_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservation, "NEARLY", 0.3)  # one call may use a quarter of what is left
    dear = {"prompt_tokens": 2_000, "completion_tokens": 1_500, "total_tokens": 3_500}
    steps = {outlines.ANALYSIS: outlines.ANALYSED, outlines.PLAN: outlines.PLANNED, outlines.REVIEW: outlines.REVIEWED}
    outliner = outlines.Outliner(**{name: replace(step, usage=dear) for name, step in steps.items()})
    config = PRICED.replace("input = 3.0", "input = 0.1").replace("cache_write = 3.75", "cache_write = 0.1")
    async with open_lab(tmp_path, outliner, config=config) as lab:
        run_id = await outlines.run_with_plan(lab, max_cost_cents=22)
        work = lab.server.requests[3].json["messages"][-1]["content"]
        told = [fact.notices for fact in await lab.facts(run_id, CostReserved)]
    assert re.fullmatch(r"Planning is over.*\n\nLeft of your limits: \$0\.\d+\. .*", work)
    assert told[:4] == [("plan:analysis",), ("plan:plan",), ("plan:review",), ("plan:work", "left:money")]


def counted(request: dict[str, Any], step: Step) -> Step:
    """Count as a provider with a cache does: the prompt was read from it."""
    size = len(json.dumps(request["messages"])) // 2
    usage = {
        "prompt_tokens": size,
        "completion_tokens": 50,
        "total_tokens": size + 50,
        "prompt_tokens_details": {"cached_tokens": size},
    }
    return Say(step.text, calls=step.calls, usage=usage) if isinstance(step, Say) else step


# -- what fails -----------------------------------------------------------------------------------------------------

NOTHING: Mapping[str, list[Step]] = {
    "nothing": [Say("")],
    "white space": [Say(" \n")],
    "a tool call": [outlines.CALLS],
    "a result": [hand_over()],
}
ERRORS: Mapping[str, list[Step]] = {
    "an error": [Fail(400)],
    "two dropped lines": [outlines.CUT, outlines.CUT],
    "a key that is none": [Fail(401)],
}
"""Two answers that break off are the most that one turn may have: what they cost is booked in full."""


@pytest.mark.requirement("S5-13")
@pytest.mark.parametrize(
    "said",
    [
        *NOTHING.values(),
        *ERRORS.values(),
        [Say("It looks good to me.")],
        *([Say(outlines.BETTER_PLAN, finish_reason=cut)] for cut in ("length", "max_output_tokens")),
    ],
    ids=[*NOTHING, *ERRORS, "no plan", "half a plan", "half a plan over responses"],
)
async def test_a_failed_review_leaves_the_plan_unchanged(tmp_path: Path, said: list[Step]) -> None:
    outliner = outlines.Outliner(review=list(said))
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await outlines.run_with_plan(lab)
        assert (await lab.run(run_id)).state == "success"
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=outlines.FIRST_PLAN, reviewed=False)]
        assert outliner.asked == [
            outlines.ANALYSIS,
            outlines.PLAN,
            *[outlines.REVIEW] * len(said),
            outlines.WORK,
            outlines.WORK,
        ], "it is not asked for again"
        work = lab.server.requests[-2].json["messages"]
        assert [message["role"] for message in work] == ["system", "user", "assistant", "user"]
        assert work[2]["content"] == outlines.FIRST_PLAN
        assert [fact.tool for fact in await lab.facts(run_id, ToolCall)] == ["read_file"], "only the work's own"
        parts = await outlines.check_parts(lab, run_id)
        assert parts["plan"] > 0 and "uncosted" not in parts


@pytest.mark.requirement("S5-13")
@pytest.mark.parametrize("said", [*NOTHING.values(), *ERRORS.values()], ids=[*NOTHING, *ERRORS])
async def test_a_run_whose_planning_fails_works_without_a_plan(tmp_path: Path, said: list[Step]) -> None:
    outliner = outlines.Outliner(plan=list(said))
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await outlines.run_with_plan(lab)
        assert (await lab.run(run_id)).state == "success"
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan="", reviewed=False)]
        assert NO_OUTLINE in [fact.activity for fact in await lab.facts(run_id, Activity)]
        assert outliner.asked == [outlines.ANALYSIS, *[outlines.PLAN] * len(said), outlines.WORK, outlines.WORK]
        assert [fact.tool for fact in await lab.facts(run_id, ToolResult) if fact.turn is not None] == [
            "read_file",
            "submit_result",
        ]
        work = lab.server.requests[-2].body
        await outlines.check_parts(lab, run_id)
        plain = await lab.start()
        await lab.ended(plain)
        assert lab.server.requests[-2].body == work, "byte for byte"


@pytest.mark.parametrize("said", NOTHING.values(), ids=NOTHING)
async def test_plans_even_if_the_analysis_fails(tmp_path: Path, said: list[Step]) -> None:
    outliner = outlines.Outliner(analysis=list(said))
    async with open_lab(tmp_path, outliner) as lab:
        run_id = await outlines.run_with_plan(lab)
        assert outliner.asked == [outlines.ANALYSIS, outlines.PLAN, outlines.REVIEW, outlines.WORK, outlines.WORK]
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=outlines.BETTER_PLAN, reviewed=True)]
        second = lab.server.requests[1].json["messages"]
    assert [message["role"] for message in second] == ["system", "user", "user"]
    assert second[-1]["content"].startswith(outlines.MARKS[outlines.PLAN])


async def test_skips_the_remaining_planning_if_the_model_is_unreachable(tmp_path: Path) -> None:
    outliner = outlines.Outliner(analysis=Fail(400), work=Fail(400))
    async with open_lab(tmp_path, outliner) as lab:
        run_id = await outlines.run_with_plan(lab)
        result = await lab.result(run_id)
        assert (result["status"], result["error"]["kind"]) == ("error", "bad_request")
    assert outliner.asked == [outlines.ANALYSIS, outlines.WORK]


async def test_retries_a_failed_attempt_within_the_same_planning_step(tmp_path: Path) -> None:
    outliner = outlines.Outliner(plan=[HangUp(), outlines.PLANNED])
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await outlines.run_with_plan(lab)
        assert outliner.asked == [
            outlines.ANALYSIS,
            outlines.PLAN,
            outlines.PLAN,
            outlines.REVIEW,
            outlines.WORK,
            outlines.WORK,
        ]
        reserved = [(fact.turn, fact.attempt, fact.phase) for fact in await lab.facts(run_id, CostReserved)]
        assert reserved[1:3] == [(2, 1, "plan"), (2, 2, "plan")]
        assert [fact.activity for fact in await lab.facts(run_id, Activity)].count("Planning") == 1
        await outlines.check_parts(lab, run_id)


# -- caps while it plans --------------------------------------------------------------------------------------------


async def lowered(lab: Lab, caps: dict[str, Any], **more: Any) -> str:
    """Run one that plans, its caps lowered in the approval."""
    (lab.workspace / "a.md").write_text("twelve\n")
    made = await lab.propose(plan=True, **more)
    answer = await lab.approve(made, changes={made.pending_id: {"caps": caps}})
    assert answer.status == "approved", answer
    await lab.ended(made.subagent_id)
    return str(made.subagent_id)


@pytest.mark.requirement("S5-13")
@pytest.mark.parametrize(
    ("turns", "asked", "ready"),
    [
        (1, [outlines.WRAP], []),
        (2, [outlines.ANALYSIS, outlines.WRAP], [PlanReady(plan="", reviewed=False)]),
        (3, [outlines.ANALYSIS, outlines.PLAN, outlines.WRAP], [PlanReady(plan=outlines.FIRST_PLAN, reviewed=False)]),
        (
            4,
            [outlines.ANALYSIS, outlines.PLAN, outlines.REVIEW, outlines.WRAP],
            [PlanReady(plan=outlines.BETTER_PLAN, reviewed=True)],
        ),
    ],
)
async def test_running_out_of_turns_during_planning_leads_to_the_wrap_up(
    tmp_path: Path, turns: int, asked: list[str], ready: list[PlanReady]
) -> None:
    outliner = outlines.Outliner()
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await lowered(lab, {"max_iterations": turns})
        result = await lab.result(run_id)
        assert (result["status"], result["untrusted_result"]["output"]) == ("iteration_limit", "what there is")
        assert outliner.asked == asked
        assert await lab.facts(run_id, PlanReady) == ready
        last = lab.server.requests[-1].json["messages"]
        plans = [message["content"] for message in last if message["role"] == "assistant"]
        assert plans == [fact.plan for fact in ready if fact.plan]
        await outlines.check_parts(lab, run_id)


def dear(prompt: int, answer: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


@pytest.mark.parametrize(
    ("caps", "status", "plan"),
    [({"max_cost_cents": 26}, "cost_exceeded", outlines.FIRST_PLAN), ({"max_tokens": 36_000}, "token_exceeded", "")],
    ids=["money", "tokens"],
)
async def test_running_out_of_money_or_tokens_during_planning_leads_to_the_wrap_up(
    tmp_path: Path, caps: dict[str, Any], status: str, plan: str
) -> None:
    outliner = outlines.Outliner(
        analysis=Say(outlines.ANALYSED.text, usage=dear(11_000, 3_500)),
        plan=Say(outlines.FIRST_PLAN, usage=dear(15_400, 1_200)),
    )
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await lowered(lab, caps)
        run, result = await lab.run(run_id), await lab.result(run_id)
        assert (result["status"], result["untrusted_result"]["output"]) == (status, "what there is")
        assert outliner.asked == (
            [outlines.ANALYSIS, outlines.PLAN, outlines.WRAP] if plan else [outlines.ANALYSIS, outlines.WRAP]
        )
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=plan, reviewed=False)]
        assert run.cost_micros <= 260_000 or "max_cost_cents" not in caps
        assert run.tokens <= 45_000 and (await outlines.check_parts(lab, run_id))["plan"] > 0


@pytest.mark.slow
async def test_a_timeout_during_planning_wraps_up_and_books_the_aborted_call_as_plan(
    tmp_path: Path,
) -> None:
    outliner = outlines.Outliner(review=Say("late", gate=Gate()))
    async with open_lab(tmp_path, outliner, config=PRICED) as lab:
        run_id = await outlines.run_with_plan(lab, timeout=5)
        result = await lab.result(run_id)
        assert (result["status"], result["untrusted_result"]["output"]) == ("timeout", "what there is")
        assert outliner.asked == [outlines.ANALYSIS, outlines.PLAN, outlines.REVIEW, outlines.WRAP]
        assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=outlines.FIRST_PLAN, reviewed=False)]
        settled = await lab.facts(run_id, CostUpdate)
        assert settled[2].settlement == "unknown" and settled[2].cost_by == {"plan": round(settled[2].cost_cents * 1e4)}
        assert result["uncosted"] is True
        assert "uncosted" not in await outlines.check_parts(lab, run_id)


async def test_a_run_cancelled_during_planning_keeps_its_partial_output(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, outlines.Outliner(review=Say("late", gate=gate)), config=PRICED) as lab:
        run_id = await lab.start(plan=True)
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id)
        run, result = await lab.run(run_id), await lab.result(run_id)
        assert run.state == "cancelled"
        assert outlines.FIRST_PLAN in result["untrusted_result"]["output"]
        await outlines.check_parts(lab, run_id)


# -- after a kill ---------------------------------------------------------------------------------------------------

STORIES: Mapping[str, dict[str, Step]] = {
    "all of it": {},
    "kept": {"review": Say("KEEP")},
    "no analysis, no review": {"analysis": outlines.CALLS, "review": outlines.CALLS},
    "no plan": {"plan": outlines.CALLS},
}


@pytest.mark.slow
@pytest.mark.requirement("S5-13")
@pytest.mark.parametrize("instead", STORIES.values(), ids=STORIES)
async def test_a_kill_during_planning_gives_the_same_plan_without_repeated_calls(
    tmp_path: Path, instead: dict[str, Step]
) -> None:
    """The log is cut behind each entry of a run in turn: that is what a kill at that moment leaves."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "a.md").write_text("twelve cents")
    with run_model_server(outlines.Outliner(**instead)) as server:
        async with open_lab(tmp_path, server=server, config=PRICED) as lab:
            run_id = await lab.start(plan=True)
            await lab.ended(run_id)
            wanted, calls = await lab.facts(run_id, PlanReady), len(server.requests)
            entries = await all_entries(lab.store)
        names = [entry.type for entry in entries]
        first, last = names.index("RunClaimed") + 1, names.index("ToolCall", names.index("RunClaimed"))
        for count in sample(range(first, last + 1), 4):
            before, kept = len(server.requests), entries[:count]
            async with go_on_from(tmp_path / f"cut-{count}", kept, server, config=PRICED) as lab:
                run = await lab.ended(run_id)
                place = f"cut behind {kept[-1].type} (entry {count})"
                assert (run.state, run.generation) == ("success", 2), place
                assert await lab.facts(run_id, PlanReady) == wanted, place
                logged = sum(isinstance(entry.fact, AssistantMessage) and entry.generation == 1 for entry in kept)
                assert len(server.requests) - before == calls - logged, f"{place}: a logged answer is asked for again"
                await outlines.check_parts(lab, run_id)
                await lab.store.read(check_budgets)
                in_flight = names[:count].count("CostReserved") > names[:count].count("CostUpdate")
                settled = await lab.facts(run_id, CostUpdate)
                assert [fact.settlement for fact in settled].count("unknown") == in_flight, place
            await check_requests(tmp_path / f"cut-{count}" / "data", server.requests[before:])


@pytest.mark.parametrize("instead", STORIES.values(), ids=STORIES)
async def test_the_token_count_covers_only_turns_still_in_the_conversation(
    tmp_path: Path, instead: dict[str, Step]
) -> None:
    """The next bound rests on it: a turn that is taken for covered and is not would be sent without being reserved."""
    async with open_lab(tmp_path, outlines.Outliner(**instead)) as lab:
        run_id = await outlines.run_with_plan(lab)
        history, entries = History(run_id), await lab.entries(run_id)
    seen = 0
    for entry, after in pairwise(entries):
        history.add_all([entry])
        if isinstance(after.fact, CostReserved) and (known := history.reported(Recipe(after.seq))) is not None:
            seen += 1
            stands = len(history.turns(Recipe(after.seq)))
            waiting = len(history.results)  # a result comes into the conversation with the next request
            covered = sorted([place for segment in known.segments for place in segment.turns])
            counted = sorted({*covered, *known.answers})
            assert len(covered) == len(set(covered)), "no turn is covered twice"
            assert counted == list(range(stands - waiting)), f"before entry {after.seq}"
    assert seen >= 3


async def test_another_runtime_finishes_planning_after_the_first_one_closes(tmp_path: Path) -> None:
    gate = Gate()
    outliner = outlines.Outliner(review=[Say("lost", gate=gate), outlines.REVIEWED])
    with run_model_server(outliner) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            (lab.workspace / "a.md").write_text("twelve cents")
            run_id = await lab.start(plan=True)
            await wait_for(gate.arrived)
        gate.released.set()
        async with open_lab(tmp_path, server=server, config=PRICED) as lab:
            run = await lab.ended(run_id)
            assert (run.state, run.generation) == ("success", 2)
            assert outliner.asked == [
                outlines.ANALYSIS,
                outlines.PLAN,
                outlines.REVIEW,
                outlines.REVIEW,
                outlines.WORK,
                outlines.WORK,
            ]
            assert await lab.facts(run_id, PlanReady) == [PlanReady(plan=outlines.BETTER_PLAN, reviewed=True)]
            await outlines.check_parts(lab, run_id)
