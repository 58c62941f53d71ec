"""Replay: a recorded run again, without a call; what differs is found, and where nothing does, nothing is said."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from support.approval.together import approve_together, propose_two
from support.model_server import Fail, Gate, Say, run_model_server
from support.models.surcharges import make_this_machine
from support.redaction import NAME, VALUE
from support.repositories.coding import RIGHT, RIGHTED, STILL_WRONG, WRONG, make_calls, project, run_coder
from support.runs import plans
from support.runtime import PRICED, Lab, hand_over, open_lab, wait_for

from ava_audit.events import RunClaimed, SpawnProposed, ToolResult, UserMessage
from ava_roles.role import Role, parse_role
from ava_roles.tool import Source, Tool, ToolContext, ToolOutput
from ava_server.core.errors import Refused
from ava_server.core.prompts import prompts
from ava_server.evals.recording import Recording, read_recording, recording_in, recording_of
from ava_server.evals.replay import ReplayChange, Replayed, Replayer
from ava_server.models.model_choice import choose
from ava_server.models.prices import UserPrice
from ava_server.run_config.config import config_of

LIST, READ = Say(calls=[("read_file", {"path": "."})]), Say(calls=[("read_file", {"path": "report.md"})])
NOTHING = ReplayChange()


async def recorded(lab: Lab, **more: Any) -> Recording:
    """Run one researcher to its end, and return its recording."""
    (lab.workspace / "report.md").write_text("The reactor cost 4.2 million.\n" * 40)
    run_id = await lab.start(**more)
    await lab.ended(run_id)
    return recording_of(run_id, await lab.entries(run_id))


async def replayed(recording: Recording, change: ReplayChange = NOTHING) -> Replayed:
    async with Replayer.open() as replayer:
        return await replayer.replay(recording, change)


def role_with(recording: Recording, before: str, after: str) -> Role:
    """The run's role with a change in its file."""
    text = recording.config.role_text
    assert before in text
    return parse_role(text.replace(before, after, 1), "changed.md", recording.config.role)


async def test_an_unchanged_run_is_the_same_and_calls_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [LIST, READ, hand_over()], config=PRICED) as lab:
        recording = await recorded(lab)
        asked, head = len(lab.server.requests), lab.store.head
        found = await replayed(recording)
        assert (len(lab.server.requests), lab.store.head) == (asked, head)
    assert found.same, found
    assert found.after.micros == found.before.micros > 0
    assert found.after.calls == 3


async def test_a_run_in_a_dearer_place_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_this_machine(monkeypatch, "anthropic")
    model = "claude-opus-4-6"
    config = f'[providers.custom]\nwire = "messages"\n{PRICED.replace("custom:test", f"custom:{model}")}'
    there = {"input_tokens": 2_000, "output_tokens": 100, "inference_geo": "us"}
    script = [replace(step, usage=there) for step in (LIST, hand_over(), LIST, hand_over())]
    async with open_lab(tmp_path, script, config=config, env={"AVA_MODEL": model}) as lab:
        for recording in (await recorded(lab), await recorded(lab)):
            found = await replayed(recording)
            assert found.same, found
            assert found.after.micros == found.before.micros == 2 * (2_000 * 33 + 100 * 165) // 10


async def test_a_planted_regression_in_a_roles_prompt_is_found_without_a_call(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, hand_over()], config=PRICED) as lab:
        recording = await recorded(lab)
        sentence = next(line for line in recording.role.body.splitlines() if len(line) > 40)
        found = await replayed(
            recording, ReplayChange(role_with(recording, sentence, "Guess, and do not read anything."))
        )
        assert len(lab.server.requests) == 2
    assert not found.same and found.first is not None
    [part] = found.first.parts
    assert (found.first.turn, part.name) == (1, "the system prompt")
    assert part.lines == (f"-{sentence[:200]}{'…' * (len(sentence) > 199)}", "+Guess, and do not read anything.")
    assert found.estimated and found.after.prompt_tokens < found.before.prompt_tokens
    assert found.after.micros < found.before.micros and found.after.output_tokens == found.before.output_tokens


async def test_a_changed_tool_description_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        recording = await recorded(lab)
    async with Replayer.open() as replayer:
        tool = replayer.tools["read_file"]
        monkeypatch.setattr(tool, "spec", replace(tool.spec, description="Reads. Never quote."))
        found = await replayer.replay(recording, NOTHING)
    assert found.first is not None
    assert [part.name for part in found.first.parts] == ["the system prompt", "the tool read_file"]
    assert "+Reads. Never quote." in found.first.parts[1].lines


async def test_a_changed_prompt_of_the_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        recording = await recorded(lab, plan=True)
    assert prompts("ava_server.runs.turn", "outline")["analysis"]
    monkeypatch.setitem(prompts("ava_server.runs.turn", "outline"), "analysis", "Think about it. You have {tools}.")
    found = await replayed(recording)
    assert found.first is not None
    assert [part.name for part in found.first.parts] == ["message 2 (from outside, or a notice)"]


async def test_a_lower_cap_ends_a_run_earlier_and_says_so(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [LIST, READ, LIST, hand_over()], config=PRICED) as lab:
        recording = await recorded(lab)
        role = role_with(recording, f"maxTurns: {recording.role.max_iterations}", "maxTurns: 2")
        found = await replayed(recording, ReplayChange(role))
    assert "turn 2 would be the last: max_iterations of 2" in found.notes, found
    assert found.notes[-1] == "it would end with iteration_limit (max_iterations of 2), not with success"
    assert found.after.calls == 2 < found.before.calls


async def test_a_tool_that_shows_less_cuts_what_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        recording = await recorded(lab)
    async with Replayer.open() as replayer:
        tool = replayer.tools["read_file"]
        monkeypatch.setattr(tool, "spec", replace(tool.spec, max_chars=200))
        found = await replayer.replay(recording, NOTHING)
    assert found.first is not None and found.first.turn == 2
    assert [part.name for part in found.first.parts] == ["message 3 (a result of read_file)"]
    assert any("[cut at 200 of" in line for line in found.first.parts[0].lines)


async def test_a_tool_that_this_version_lacks_is_left_out(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, hand_over()]) as lab:
        recording = await recorded(lab)
    entries = list(recording.entries)
    place = next(number for number, each in enumerate(entries) if isinstance(each.fact, SpawnProposed))
    content = json.loads(entries[place].content or "")
    content["config"]["tools"].append("a_tool_of_another_version")
    entries[place] = entries[place]._replace(content=json.dumps(content))
    found = await replayed(recording_of(recording.run_id, entries))
    assert found.same, found


async def test_another_model_is_the_same_run_at_another_price(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, hand_over()], config=PRICED) as lab:
        recording = await recorded(lab)
        settings = lab.runtime.credentials.models

    def at(times: float) -> ReplayChange:
        price = UserPrice(3.0 * times, 15.0 * times, 0.3 * times, 3.75 * times)
        return ReplayChange(choice=choose("custom:big", "balanced", replace(settings, prices={"custom:big": price})))

    found = await replayed(recording, at(2))
    assert found.first is None and found.estimated
    assert found.after.micros == pytest.approx(2 * found.before.micros, abs=2)
    found = await replayed(recording, at(20))
    assert found.after.calls == 0
    assert found.notes[-1].startswith("it would end with cost_exceeded (the run's max_cost_cents was reached")


CHANGED = [
    ("SubagentComplete", '"output":"the answer"', '"output":"another"', 'its text would differ: - "output": "another"'),
    ("SubagentComplete", '"verdict":"found"', '"verdict":"not_found"', "its quotes would differ:"),
    ("SubagentComplete", '"confidence":0.5', '"confidence":0.4', "its confidence would differ: -0.4 +0.5"),
    ("RunEnded", "handed over", "gave", "it would end with the subagent handed over its result, not with the subagent"),
    (
        "RunEnded",
        '"active_us"',
        '"error_kind":"internal","active_us"',
        "not with internal the subagent handed over its result",
    ),
    ("PlanReady", "", "", "the guardrail repeated_call would not have told read_file any more"),
]


async def test_a_result_that_differs_is_found_although_all_requests_are_the_same(tmp_path: Path) -> None:
    finding = {"claim": "cost", "source_url": "report.md", "quote": "The reactor cost 4.2 million."}
    async with open_lab(tmp_path, [READ, hand_over(output="the answer", findings=[finding])], config=PRICED) as lab:
        recording = await recorded(lab)
    assert (await replayed(recording)).same
    for kind, before, after, note in CHANGED:
        entries = list(recording.entries)
        if kind == "PlanReady":
            [told] = [entry for entry in entries if entry.type == "ToolCall"][:1]
            trip = {"guardrail": "repeated_call", "action": "told", "tool": "read_file"}
            entries.append(told._replace(type="GuardrailTripped", content=json.dumps(trip)))
        [at] = [number for number, entry in enumerate(entries) if entry.type == kind] if before else [0]
        content = entries[at].content or ""
        assert before in content, content
        entries[at] = entries[at]._replace(content=content.replace(before, after))
        found = await replayed(recording_of(recording.run_id, entries))
        assert not found.same and found.first is None, kind
        assert [each for each in found.notes if note in each], found.notes


async def test_a_registered_secret_in_an_answer_is_no_difference(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READ, hand_over(output=f"the door is {VALUE}")], config=PRICED) as lab:
        lab.runtime.credentials.redactor.learn({NAME: VALUE})
        recording = await recorded(lab)
    assert f"[redacted:{NAME}]" in str(recording.result)
    found = await replayed(recording)
    assert found.same, found


async def test_attempts_that_failed_are_made_again(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(500), READ, Fail(429, retry_after="0"), hand_over()], config=PRICED) as lab:
        recording = await recorded(lab)
    found = await replayed(recording)
    assert found.same and found.after.calls == 4, found


async def test_results_that_were_cut_and_read_again_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: dict[str, Any]) -> Say:
        place = re.search(r"read_tool_result (R-\w+) with offset (\d+)", str(request["messages"][-1]["content"]))
        if place is not None and len(request["messages"]) < 8:
            return Say(calls=[("read_tool_result", {"id": place[1], "offset": int(place[2])})])
        return hand_over() if len(request["messages"]) > 2 else Say(calls=[("read_file", {"path": "long.md"})])

    text = "".join(f"{number}: in\u200bvisible and long\n" for number in range(60))

    class Long:
        def __init__(self, real: Tool) -> None:
            self.real, self.spec = real, replace(real.spec, max_chars=400, both_ends=True)

        def activity(self, args: Any) -> str:
            return self.real.activity(args)

        async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
            return ToolOutput(text, sources=(Source("long.md"),))

    async with open_lab(tmp_path, script, config=PRICED) as lab, Replayer.open() as replayer:
        for tools in (lab.runtime.tools, replayer.tools):
            monkeypatch.setitem(cast("dict[str, Tool]", tools), "read_file", Long(tools["read_file"]))
        recording = await recorded(lab)
        found = await replayer.replay(recording, NOTHING)
    read, again, *_more = recording.facts(ToolResult)
    assert "[cut at 400 of" in read.output and 'invisible_characters_removed="60"' in read.output
    assert again.tool == "read_tool_result" and again.success
    assert found.same and found.before.micros > 0, found
    for told in (r'"chars":\d+', r"\[… \d+ characters left out", r"cut at \d+ of", r'removed=\\"\d+'):
        entries = list(recording.entries)
        at = next(number for number, entry in enumerate(entries) if entry.type == "ToolResult")
        content, times = re.subn(told, lambda match: re.sub(r"\d+", "9" * 12, match[0]), entries[at].content or "")
        assert times == 1, told
        entries[at] = entries[at]._replace(content=content)
        found = await replayed(recording_of(recording.run_id, entries))
        assert "internal" not in str(found.notes), found


async def test_a_run_that_another_process_went_on_with_after_a_kill_is_the_same(tmp_path: Path) -> None:
    gate = Gate()
    with run_model_server([READ, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            (lab.workspace / "report.md").write_text("The reactor cost 4.2 million.\n")
            run_id = await lab.start()
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, config=PRICED, check=False) as lab:
            await lab.ended(run_id)
            recording = recording_of(run_id, await lab.entries(run_id))
    assert [claim.reason for claim in recording.facts(RunClaimed)] == ["start", "takeover"]
    found = await replayed(recording)
    assert found.same and found.after.calls == 3, found


async def test_a_run_with_a_question_a_message_and_an_earlier_result_is_the_same(tmp_path: Path) -> None:
    gate = Gate()
    asks = Say(calls=[("ask", {"question": "In which currency?"})])
    script: list[Any] = [hand_over(), asks, Say(calls=[("scratchpad", {"note": "euro"})], gate=gate)]
    first = ""

    def answer(_request: dict[str, Any]) -> Any:
        if script:
            return script.pop(0)
        reads = Say(calls=[("read_subagent_result", {"id": first})])
        return reads if len(lab.server.requests) == 4 else hand_over()

    async with open_lab(tmp_path, answer, config=PRICED) as lab:
        first = (await recorded(lab)).run_id
        run_id = await lab.start(context_from=[first])
        await lab.logged(run_id, "Asked")
        await lab.call("message_subagent", subagent_id=run_id, message="EUR, please")
        await wait_for(gate.arrived)
        await lab.call("message_subagent", subagent_id=run_id, message="Only this year.")
        gate.released.set()
        await lab.ended(run_id)
        recording = recording_of(run_id, await lab.entries(run_id))
    assert [fact.kind for fact in recording.facts(UserMessage)] == ["task", "answer", "message"]
    assert {fact.tool for fact in recording.facts(ToolResult)} >= {"ask", "read_subagent_result"}
    found = await replayed(recording)
    assert found.same, found


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize(
    ("script", "ends"),
    [
        (make_calls(RIGHT), "success"),
        ([Say(calls=[WRONG]), hand_over(), Say(calls=[STILL_WRONG]), hand_over(), *make_calls(RIGHTED)], "success"),
        ([Say(calls=[WRONG]), *[hand_over()] * 4], "error"),
    ],
    ids=["it passes at once", "failures are shown to the model", "it never passes"],
)
async def test_a_coders_run_is_the_same_without_a_worktree_or_a_command(
    tmp_path: Path, script: list[Say], ends: str
) -> None:
    repository = project(tmp_path)
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        result = await run_coder(lab)
        run_id = result["subagent_id"]
        recording = recording_of(run_id, await lab.entries(run_id))
        asked = len(lab.server.requests)
        shutil.rmtree(repository)
        found = await replayed(recording)
        assert len(lab.server.requests) == asked
    assert (result["status"], found.same) == (ends, True), found


@pytest.mark.usefixtures("confined")
async def test_a_changed_prompt_of_a_coder_is_found(tmp_path: Path) -> None:
    project(tmp_path)
    async with open_lab(tmp_path, make_calls(RIGHT), config=PRICED) as lab:
        run_id = (await run_coder(lab))["subagent_id"]
        recording = recording_of(run_id, await lab.entries(run_id))
        sentence = next(line for line in recording.role.body.splitlines() if len(line) > 40)
        found = await replayed(recording, ReplayChange(role_with(recording, sentence, "Change whatever you like.")))
    assert found.first is not None and [part.name for part in found.first.parts] == ["the system prompt"]
    assert found.notes == () and found.before.calls == found.after.calls


async def test_runs_that_cannot_be_run_again_are_refused_in_a_sentence(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(), hand_over()]) as lab:
        recording = await recorded(lab)
        entries = recording.entries
        with pytest.raises(Refused, match=f"{recording.run_id}: its words were erased"):
            recording_of(recording.run_id, [entry._replace(content=None) for entry in entries])
        with pytest.raises(Refused, match="it has not ended yet"):
            recording_of(recording.run_id, [entry for entry in entries if entry.type != "SubagentComplete"])
        with pytest.raises(Refused, match="ended before it asked a model"):
            recording_of(recording.run_id, [entry for entry in entries if entry.type != "RunStarted"])
        theirs = [
            entry._replace(content=re.sub(r'"runner":"[^"]*"', '"runner":"acp:codex"', entry.content or ""))
            if entry.type == "SpawnProposed"
            else entry
            for entry in entries
        ]
        with pytest.raises(Refused, match=r"another agent \(acp:codex\) did its work"):
            recording_of(recording.run_id, theirs)


async def test_each_run_of_a_plan_is_replayed_from_the_log_and_from_a_file(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        proposal = await plans.propose(lab, [*plans.STEPS, plans.step("extra", "Say what {{read}} lacks.")])
        changes = {proposal.pending_id: {"caps": {"max_cost_cents": 60}, "drop": ["extra"]}}
        await lab.approve(proposal, changes=changes)
        plan = await lab.ended(proposal.group_id)
        rows = await plans.rows(lab, plan.id)
        asked = len(lab.server.requests)
        assert plan.state == "success" and len(rows) == 4
        for row in rows:
            run = await lab.run(row.id)
            recording = await lab.store.read(partial(recording_in, run=run))
            assert (recording.run_id, recording.config) == (run.id, config_of(run.config))
            file = tmp_path / f"{row.id}.jsonl"
            file.write_bytes(recording.lines(lab.runtime.credentials.redactor))
            for each in (recording, read_recording(file)):
                found = await replayed(each)
                assert found.same, found
                assert found.after.micros == found.before.micros == run.cost_micros > 0
        with pytest.raises(Refused, match="a plan asks no model itself"):
            await lab.store.read(partial(recording_in, run=plan))
        assert len(lab.server.requests) == asked


async def test_a_run_that_was_approved_with_others_is_replayed_alone(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: hand_over(), config=PRICED) as lab:
        made = await propose_two(lab)
        await approve_together(lab, *made, last="2 subagents together, at most $1.00")
        for proposal in made:
            run = await lab.ended(proposal.subagent_id)
            found = await replayed(await lab.store.read(partial(recording_in, run=run)))
            assert found.same, found


async def test_a_file_of_a_plans_run_without_its_step_is_refused(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        plan = await plans.finish(lab)
        [run_id, *_others] = [row.id for row in await plans.rows(lab, plan.id)]
        recording = await lab.store.read(partial(recording_in, run=await lab.run(run_id)))
        file = tmp_path / "other.jsonl"
        lines = recording.lines(lab.runtime.credentials.redactor)
        file.write_bytes(lines.replace(b'"id":"find"', b'"id":"seek"'))
        assert file.read_bytes() != lines
        with pytest.raises(Refused, match="has no step find"):
            read_recording(file)
