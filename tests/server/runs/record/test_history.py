"""Every request can be rebuilt from the log; what is left out is left out for good and can be read back."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Gate, Say, Step, run_model_server
from support.runs import histories
from support.runtime import check_requests, hand_over, open_lab, wait_for

from ava_audit.events import CostReserved, ErrorOccurred, ToolCall, ToolResult, UserMessage
from ava_audit.events import Usage as Used
from ava_roles.wrap import wrap_tool_output
from ava_server.models.base import AssistantTurn, ReportedUsage, Segment, ToolTurn, UserTurn
from ava_server.runs.record.history import History, Recipe

LEFT_OUT = "characters left out"


def test_orders_results_by_call_and_not_by_arrival() -> None:
    history = histories.first_turn()
    for seq, call_id in ((6, "b"), (7, "a")):
        history.add(seq, ToolCall(tool="read_file", call_id=call_id))
        history.add(seq + 10, histories.tool_result(call_id, f"this is {call_id}"))
    turns = history.turns(Recipe(0))
    assert [turn.text for turn in turns if isinstance(turn, ToolTurn)] == ["this is a", "this is b"]
    assert isinstance(turns[0], UserTurn) and isinstance(turns[1], AssistantTurn)


def test_places_a_message_once_after_the_results() -> None:
    history = histories.first_turn()
    history.add(6, histories.tool_result("a", "A"))
    history.add(7, histories.tool_result("b", "B"))
    history.add(8, UserMessage(text="and Otter", kind="message"))
    without = [turn for turn in history.turns(Recipe(0)) if isinstance(turn, UserTurn)]
    assert len(without) == 1, "a request that reads up to an earlier entry does not have it"
    history.add(9, histories.reservation(2, upto=8))
    turns = history.turns(Recipe(8))
    assert isinstance(turns[-1], UserTurn) and "and Otter" in turns[-1].text
    assert sum("and Otter" in str(turn) for turn in turns) == 1


def test_the_task_appears_once_however_often_it_is_read() -> None:
    history = histories.first_turn()
    assert history.last_message_seq >= 1, "it is not drained as a message"
    assert sum("the task" in str(turn) for turn in history.turns(Recipe(0))) == 1


def test_only_calls_of_the_last_answer_without_a_result_are_open() -> None:
    history = histories.first_turn()
    history.add(6, histories.tool_result("a", "A"))
    assert [call.call_id for call in history.open_calls()] == ["b"]
    history.add(7, histories.tool_result("b", "B"))
    history.add(8, histories.reservation(2))
    history.add(9, histories.settlement(), Used(input_tokens=10, output_tokens=5))
    history.add(10, histories.answer_with_calls("c"))
    assert [call.call_id for call in history.open_calls()] == ["c"]


def test_the_token_count_of_the_provider_includes_its_answer() -> None:
    known = histories.first_turn().reported(Recipe(0))
    assert known == ReportedUsage((Segment(10, (0,)),), {1: 5})


def test_the_token_count_excludes_an_answer_with_text_tool_calls() -> None:
    """It was counted as words, and goes back as calls, which may be more."""
    history = History("S-000001")
    history.add(1, UserMessage(text="the task", kind="task"))
    history.add(2, histories.run_start())
    history.add(3, histories.reservation(1))
    history.add(4, histories.settlement(), Used(input_tokens=10, output_tokens=5))
    history.add(5, histories.answer_with_calls("a").model_copy(update={"printed": True}))
    assert history.reported(Recipe(0)) == ReportedUsage((Segment(10, (0,)),), {})
    assert len(history.turns(Recipe(0))) == 2


def grown() -> History:
    """A history of three prompts of 10, 130 and 1,150 tokens; the results have 100 and 1,000 characters."""
    history = histories.first_turn()
    history.add(6, histories.tool_result("a", "A" * 100))
    history.add(7, histories.tool_result("b", "scratch"))
    history.add(8, histories.reservation(2))
    history.add(9, histories.settlement(), Used(input_tokens=30, cache_read_tokens=100, output_tokens=7))
    history.add(10, histories.answer_with_calls("c"))
    history.add(11, histories.tool_result("c", "C" * 1_000))
    history.add(12, histories.reservation(3))
    history.add(13, histories.settlement(), Used(input_tokens=1_150, output_tokens=9))
    return history


def test_each_report_gives_the_tokens_of_the_turns_that_are_new_in_its_prompt() -> None:
    known = grown().reported(Recipe(0))
    assert known is not None
    assert known.segments == (Segment(10, (0,)), Segment(120, (1, 2, 3)), Segment(1_020, (4, 5)))
    assert known.answers == {1: 5, 4: 7}


def test_what_is_left_out_marks_only_its_own_report_as_changed() -> None:
    history = grown()
    known = history.reported(Recipe(0, elide=(6,)))
    assert known is not None
    assert [segment.changed for segment in known.segments] == [False, True, False]
    history.add(14, histories.answer_with_calls("d"))
    history.add(15, histories.tool_result("d", "D"))
    history.add(16, histories.reservation(4, elide=(6,)))
    history.add(17, histories.settlement(), Used(input_tokens=1_100, output_tokens=3))
    again = history.reported(Recipe(0))
    assert again is not None, "the changed turns are reported again, together with the new ones"
    assert again.segments == (Segment(10, (0,)), Segment(1_020, (4, 5)), Segment(70, (1, 2, 3, 6, 7)))


def test_a_report_of_the_same_prompt_replaces_the_one_before() -> None:
    history = grown()
    history.add(14, histories.reservation(3, attempt=2))
    history.add(15, histories.settlement(), Used(input_tokens=1_200, output_tokens=9))
    known = history.reported(Recipe(0))
    assert known is not None
    assert known.segments[-1] == Segment(1_070, (4, 5))
    assert sum(segment.tokens for segment in known.segments) == 1_200


def test_a_report_below_earlier_ones_lowers_no_bound() -> None:
    history = grown()
    history.add(14, histories.answer_with_calls("d"))
    history.add(15, histories.tool_result("d", "D" * 2_000))
    history.add(16, histories.reservation(4))
    history.add(17, histories.settlement(), Used(input_tokens=900, output_tokens=3))
    known = history.reported(Recipe(0))
    assert known is not None
    assert known.segments == (Segment(1_150, (0, 1, 2, 3, 4, 5, 6, 7)),), "what was reported for them before counts"


def test_a_cut_result_keeps_its_marks_and_says_how_to_read_on() -> None:
    history = histories.first_turn()
    wrapped = wrap_tool_output("ж" * 5_000, tool="read_file", nonce="0123456789abcdef")
    history.add(6, histories.tool_result("a", wrapped + "\n[a note]"))
    history.add(7, histories.tool_result("b", "short"))
    shown = history.turns(Recipe(0, cut=((6, 1_000), (7, 1_000))))
    assert isinstance(shown[2], ToolTurn) and isinstance(shown[3], ToolTurn)
    assert shown[2].text.count("ж") == 1_000
    assert "</tool_output_0123456789abcdef>" in shown[2].text and "[a note]" in shown[2].text
    assert "[cut: 1,000 of 5,000 characters; read_tool_result R-6 with offset 1000 goes on]" in shown[2].text
    assert shown[3].text == "short"
    history.add(8, histories.reservation(2, cut=((6, 1_000),)))
    assert history.turns(Recipe(0))[2] == shown[2], "it stays cut"


def test_counts_attempts_with_unknown_outcome_per_turn() -> None:
    history = histories.first_turn()
    history.add(6, histories.tool_result("a", "A"))
    history.add(7, histories.tool_result("b", "B"))
    history.add(8, histories.reservation(2))
    history.add(9, histories.settlement(settlement="unknown", turn=2))
    assert history.unknown_attempts == 0, "its owner ended"
    history.add(9, ErrorOccurred(error="reset", kind="dropped", turn=2, attempt=1))
    assert history.unknown_attempts == 1
    history.add(10, histories.reservation(2, attempt=2))
    assert history.unknown_attempts == 1
    history.add(11, histories.settlement(), Used())
    history.add(12, histories.answer_with_calls("c"))
    history.add(13, histories.tool_result("c", "C"))
    history.add(14, histories.reservation(3))
    assert history.unknown_attempts == 0


# -- the bound of the next call -------------------------------------------------------------------------------------

words = st.text(alphabet="abc <>жд中\n", min_size=1, max_size=300)
steps = st.lists(
    st.tuples(
        st.lists(words, min_size=1, max_size=3),  # the results of a turn
        st.booleans(),  # leave out the oldest result that still stands
        st.none() | st.integers(1, 100),  # show only so many characters of each new result
        st.booleans(),  # the provider reports its usage
        st.booleans(),  # a first attempt failed
    ),
    min_size=1,
    max_size=6,
)


@given(steps, st.integers(0, 9))
def test_the_bound_of_the_next_call_is_never_below_what_any_tokenizer_needs(
    turns: list[tuple[list[str], bool, int | None, bool, bool]], seed: int
) -> None:
    run = histories.PlayedRun(seed)
    for number, (results, elides, most_shown, reports, fails) in enumerate(turns, 1):
        run.play_turn(number, results, reports=reports, fails=fails)
        run.trim(oldest=elides, most_shown=most_shown)
    run.ask()
    assert all(bound >= needed for bound, needed in run.calls), run.calls


# -- trimming, over a real run --------------------------------------------------------------------------------------


def counted(request: dict[str, Any], step: Say) -> Say:
    """Count as a provider with a cache does: the prompt was read from it."""
    size = len(json.dumps(request["messages"])) // 2
    usage = {
        "prompt_tokens": size,
        "completion_tokens": 50,
        "total_tokens": size + 50,
        "prompt_tokens_details": {"cached_tokens": size},
    }
    return Say(step.text, calls=step.calls, usage=usage, gate=step.gate)


def write_files(workspace: Path, count: int) -> None:
    workspace.mkdir(exist_ok=True)
    for number in range(count):
        lines = "".join(f"file {number} line {line} says twelve cents\n" for line in range(450))
        (workspace / f"{number}.md").write_text(lines)


async def test_trims_the_oldest_results_permanently_but_they_can_be_read_back(tmp_path: Path) -> None:
    write_files(tmp_path / "workspace", 18)

    def step(request: dict[str, Any]) -> Step:
        messages = request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        elided = re.search(rf"{LEFT_OUT}; read_tool_result (R-\d+)", json.dumps(messages))
        if turn >= 16 and elided and "read_tool_result" not in str(messages[-2]):
            return counted(request, Say(calls=[("read_tool_result", {"id": elided[1]})]))
        if turn >= 17:
            return counted(request, hand_over())
        return counted(request, Say(calls=[("read_file", {"path": f"{turn}.md"})]))

    async with open_lab(tmp_path, step) as lab:
        run_id = await lab.start(max_iterations=30, max_tokens=200_000)
        assert (await lab.ended(run_id)).state == "success"
        requests = [request.json["messages"] for request in lab.server.requests]
        assert await lab.facts(run_id, ToolResult)
    first, last = requests[0], requests[-1]
    assert last[:2] == first[:2], "system prompt and task are never cut"
    trimmed = [
        {place for place, message in enumerate(messages) if LEFT_OUT in str(message["content"])}
        for messages in requests
    ]
    assert trimmed[-1], "nothing was left out"
    for before, after in itertools.pairwise(trimmed):
        assert before <= after, "what is left out stays out"
    assert all(messages[-1]["role"] != "tool" or LEFT_OUT not in messages[-1]["content"] for messages in requests)
    lengths = [sum(1 for _ in filter(None, places)) for places in trimmed]
    assert len(set(lengths)) <= 4, "trimming is rare: each one costs the provider's cache"
    back = next(str(message["content"]) for message in last if "file 0 line 10" in str(message["content"]))
    assert "file 0 line 449" in back or "goes on" in back


async def test_keeps_results_whose_removal_would_free_few_tokens(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/a.md").write_text("twelve cents a minute\n" * 20)
    usage = {"prompt_tokens": 3_000, "completion_tokens": 200, "total_tokens": 3_200}

    def step(request: dict[str, Any]) -> Step:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if "last turn" in str(request["messages"][-1]["content"]):
            return hand_over()
        call = ("scratchpad", {"note": f"note {turn}"}) if turn else ("read_file", {"path": "a.md"})
        return Say(calls=[call], usage=usage)

    async with open_lab(tmp_path, step) as lab:
        run = await lab.ended(await lab.start(max_tokens=45_000))
        assert run.state == "token_exceeded" and run.turns > 5
        assert not any(LEFT_OUT.encode() in request.body for request in lab.server.requests[:-1])


async def test_a_resumed_run_sends_the_same_requests_as_its_first_owner(tmp_path: Path) -> None:
    """Message, resume and wrap-up in one run; the lab compares every request with the log."""
    write_files(tmp_path / "workspace", 6)
    gate = Gate()
    turns: list[int] = []

    def step(request: dict[str, Any]) -> Step:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        turns.append(turn)
        if "last turn" in str(request["messages"][-1]["content"]):
            return counted(request, hand_over())
        held = gate if turn == 2 and turns.count(2) == 1 else None
        return counted(request, Say(calls=[("read_file", {"path": f"{turn}.md"})], gate=held))

    with run_model_server(step) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(max_iterations=5, max_tokens=200_000)
            await wait_for(gate.arrived)
            await lab.call("message_subagent", subagent_id=run_id, message="look at Otter")
        gate.released.set()
        async with open_lab(tmp_path, server=server) as lab:
            run = await lab.ended(run_id)
            assert run.state == "iteration_limit" and run.generation == 2
            attempts = [(fact.turn, fact.attempt) for fact in await lab.facts(run_id, CostReserved)]
        assert attempts == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1)]
        assert any("look at Otter" in request.body.decode() for request in server.requests[3:])
        await check_requests(tmp_path / "data", server.requests)
