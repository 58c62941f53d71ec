"""Every request can be rebuilt from the log; what is left out is left out for good and can be read back."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Gate, Say, Step, running_model_server
from support.runtime import arrived, check_requests, hand_over, open_lab

from ava_audit.events import (
    AssistantMessage,
    CostReserved,
    CostUpdate,
    ErrorOccurred,
    RunStarted,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ava_audit.events import Usage as Used
from ava_roles.wrap import wrap_tool_output
from ava_server.models import tokens
from ava_server.models.base import AssistantTurn, ReportedUsage, Segment, ToolTurn, UserTurn
from ava_server.models.wires.base import tool_use
from ava_server.models.wires.chat import assistant_message, message
from ava_server.runs.history import History, Recipe

LEFT_OUT = "characters left out"


def started() -> RunStarted:
    return RunStarted(
        system="You are one.", tools=({"name": "read_file", "description": "Reads.", "parameters": {}},), model="far:m",
        price={}, limits={}, max_output=100, nonce="0123456789abcdef",
    )  # fmt: skip


def reserved(turn: int, upto: int = 0, **more: Any) -> CostReserved:
    fields: dict[str, Any] = {"attempt": 1, **more}
    return CostReserved(
        turn=turn, scopes=(), micros=1, wrap_micros=0, prompt_tokens=1, max_output=1, upto_seq=upto,
        request_sha="0" * 64, **fields,
    )  # fmt: skip


def said(*names: str, text: str = "") -> AssistantMessage:
    calls = tuple({"call_id": name, "name": "read_file", "args": {}, "raw_args": "{}"} for name in names)
    return AssistantMessage(text=text, raw={"role": "assistant", "content": text or None}, calls=calls, turn=1)


def settled(**more: Any) -> CostUpdate:
    fields: dict[str, Any] = {"turn": 1, "settlement": "billed", "tokens": 1, **more}
    return CostUpdate(attempt=1, cost_cents=0, reserved_micros=1, **fields)


def result(call_id: str, output: str) -> ToolResult:
    return ToolResult(tool="read_file", success=True, output=output, call_id=call_id, output_sha=output)


def begun() -> History:
    """A history with its prefix, its task and one answer that asks for two files."""
    history = History("S-000001")
    history.add(1, UserMessage(text="the task", kind="task"))
    history.add(2, started())
    history.add(3, reserved(1))
    history.add(4, settled(), Used(input_tokens=10, output_tokens=5))
    history.add(5, said("a", "b"))
    return history


def test_orders_results_by_call_and_not_by_arrival() -> None:
    history = begun()
    for seq, call_id in ((6, "b"), (7, "a")):
        history.add(seq, ToolCall(tool="read_file", call_id=call_id))
        history.add(seq + 10, result(call_id, f"this is {call_id}"))
    turns = history.turns(Recipe(0))
    assert [turn.text for turn in turns if isinstance(turn, ToolTurn)] == ["this is a", "this is b"]
    assert isinstance(turns[0], UserTurn) and isinstance(turns[1], AssistantTurn)


def test_places_a_message_once_after_the_results() -> None:
    history = begun()
    history.add(6, result("a", "A"))
    history.add(7, result("b", "B"))
    history.add(8, UserMessage(text="and Otter", kind="message"))
    without = [turn for turn in history.turns(Recipe(0)) if isinstance(turn, UserTurn)]
    assert len(without) == 1, "a request that reads up to an earlier entry does not have it"
    history.add(9, reserved(2, upto=8))
    turns = history.turns(Recipe(8))
    assert isinstance(turns[-1], UserTurn) and "and Otter" in turns[-1].text
    assert sum("and Otter" in str(turn) for turn in turns) == 1


def test_the_task_appears_once_however_often_it_is_read() -> None:
    history = begun()
    assert history.last_message_seq >= 1, "it is not drained as a message"
    assert sum("the task" in str(turn) for turn in history.turns(Recipe(0))) == 1


def test_only_calls_of_the_last_answer_without_a_result_are_open() -> None:
    history = begun()
    history.add(6, result("a", "A"))
    assert [call.call_id for call in history.open_calls()] == ["b"]
    history.add(7, result("b", "B"))
    history.add(8, reserved(2))
    history.add(9, settled(), Used(input_tokens=10, output_tokens=5))
    history.add(10, said("c"))
    assert [call.call_id for call in history.open_calls()] == ["c"]


def test_the_token_count_of_the_provider_includes_its_answer() -> None:
    known = begun().reported(Recipe(0))
    assert known == ReportedUsage((Segment(10, (0,)),), {1: 5})


def test_the_token_count_excludes_an_answer_with_text_tool_calls() -> None:
    """It was counted as words, and goes back as calls, which may be more."""
    history = History("S-000001")
    history.add(1, UserMessage(text="the task", kind="task"))
    history.add(2, started())
    history.add(3, reserved(1))
    history.add(4, settled(), Used(input_tokens=10, output_tokens=5))
    history.add(5, said("a").model_copy(update={"printed": True}))
    assert history.reported(Recipe(0)) == ReportedUsage((Segment(10, (0,)),), {})
    assert len(history.turns(Recipe(0))) == 2


def grown() -> History:
    """A history of three prompts of 10, 130 and 1,150 tokens; the results have 100 and 1,000 characters."""
    history = begun()
    history.add(6, result("a", "A" * 100))
    history.add(7, result("b", "scratch"))
    history.add(8, reserved(2))
    history.add(9, settled(), Used(input_tokens=30, cache_read_tokens=100, output_tokens=7))
    history.add(10, said("c"))
    history.add(11, result("c", "C" * 1_000))
    history.add(12, reserved(3))
    history.add(13, settled(), Used(input_tokens=1_150, output_tokens=9))
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
    history.add(14, said("d"))
    history.add(15, result("d", "D"))
    history.add(16, reserved(4, elide=(6,)))
    history.add(17, settled(), Used(input_tokens=1_100, output_tokens=3))
    again = history.reported(Recipe(0))
    assert again is not None, "the changed turns are reported again, together with the new ones"
    assert again.segments == (Segment(10, (0,)), Segment(1_020, (4, 5)), Segment(70, (1, 2, 3, 6, 7)))


def test_a_report_of_the_same_prompt_replaces_the_one_before() -> None:
    history = grown()
    history.add(14, reserved(3, attempt=2))
    history.add(15, settled(), Used(input_tokens=1_200, output_tokens=9))
    known = history.reported(Recipe(0))
    assert known is not None
    assert known.segments[-1] == Segment(1_070, (4, 5))
    assert sum(segment.tokens for segment in known.segments) == 1_200


def test_a_report_below_earlier_ones_lowers_no_bound() -> None:
    history = grown()
    history.add(14, said("d"))
    history.add(15, result("d", "D" * 2_000))
    history.add(16, reserved(4))
    history.add(17, settled(), Used(input_tokens=900, output_tokens=3))
    known = history.reported(Recipe(0))
    assert known is not None
    assert known.segments == (Segment(1_150, (0, 1, 2, 3, 4, 5, 6, 7)),), "what was reported for them before counts"


def test_a_cut_result_keeps_its_marks_and_says_how_to_read_on() -> None:
    history = begun()
    wrapped = wrap_tool_output("ж" * 5_000, tool="read_file", nonce="0123456789abcdef")
    history.add(6, result("a", wrapped + "\n[a note]"))
    history.add(7, result("b", "short"))
    shown = history.turns(Recipe(0, cut=((6, 1_000), (7, 1_000))))
    assert isinstance(shown[2], ToolTurn) and isinstance(shown[3], ToolTurn)
    assert shown[2].text.count("ж") == 1_000
    assert "</tool_output_0123456789abcdef>" in shown[2].text and "[a note]" in shown[2].text
    assert "[cut: 1,000 of 5,000 characters; read_tool_result R-6 with offset 1000 goes on]" in shown[2].text
    assert shown[3].text == "short"
    history.add(8, reserved(2, cut=((6, 1_000),)))
    assert history.turns(Recipe(0))[2] == shown[2], "it stays cut"


def test_counts_attempts_with_unknown_outcome_per_turn() -> None:
    history = begun()
    history.add(6, result("a", "A"))
    history.add(7, result("b", "B"))
    history.add(8, reserved(2))
    history.add(9, settled(settlement="unknown", turn=2))
    assert history.unknown_attempts == 0, "its owner ended"
    history.add(9, ErrorOccurred(error="reset", kind="dropped", turn=2, attempt=1))
    assert history.unknown_attempts == 1
    history.add(10, reserved(2, attempt=2))
    assert history.unknown_attempts == 1
    history.add(11, settled(), Used())
    history.add(12, said("c"))
    history.add(13, result("c", "C"))
    history.add(14, reserved(3))
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


def true_tokens(text: str, seed: int) -> int:
    """The tokens of a text for some tokenizer: at most one for each byte, and other ones for other texts."""
    data = text.encode()
    return len(data) * (zlib.crc32(data[:40], seed) % 100 + 1) // 100


@given(steps, st.integers(0, 9))
def test_the_bound_of_the_next_call_is_never_below_what_any_tokenizer_needs(
    turns: list[tuple[list[str], bool, int | None, bool, bool]], seed: int
) -> None:
    def needed(recipe: Recipe) -> int:
        request = history.request(recipe, 512)
        tools = json.dumps([tool.as_dict() for tool in request.tools], ensure_ascii=False)
        messages = [json.dumps(message(turn), ensure_ascii=False) for turn in request.turns]
        return sum(true_tokens(text, seed) for text in (request.system, tools, *messages))

    def answer(number: int, calls: int) -> AssistantMessage:
        uses = [tool_use(f"{number}-{call}", "read_file", "{}") for call in range(calls)]
        raw = assistant_message(f"turn {number}", uses)
        given = tuple({"call_id": each.call_id, "name": each.name, "raw_args": "{}"} for each in uses)
        return AssistantMessage(text=f"turn {number}", raw=raw, calls=given, turn=number)

    history = History("S-000001")
    history.add(1, UserMessage(text="the task", kind="task"))
    history.add(2, started())
    seq = 3
    recipe = Recipe(0)
    for number, (results, elides, most_shown, reports, fails) in enumerate(turns, 1):
        for attempt in (1, 2) if fails else (1,):
            bound = tokens.bound(history.request(recipe, 512), message, history.reported(recipe)).prompt_tokens
            assert bound >= needed(recipe)
            prompt = needed(recipe)
            history.add(seq, reserved(number, attempt=attempt, elide=recipe.elide, cut=recipe.cut))
            recipe = Recipe(0)
            if fails and attempt == 1:
                history.add(seq + 1, settled(settlement="not_billed"))
                seq += 2
        said_now = answer(number, len(results))
        written = true_tokens(json.dumps(said_now.raw, ensure_ascii=False), seed)
        used = Used(input_tokens=prompt, output_tokens=written) if reports else None
        history.add(seq + 1, settled(settlement="billed" if reports else "unknown"), used)
        history.add(seq + 2, said_now)
        seq += 3
        for call, text in enumerate(results):
            history.add(seq, result(f"{number}-{call}", text))
            seq += 1
        old = [each for each, _saved in history.elidable()][: int(elides)]
        fresh = [each for each, text in history.fresh_results() if most_shown is not None and len(text) > most_shown]
        recipe = Recipe(0, tuple(old), tuple((each, most_shown or 0) for each in fresh))
    bound = tokens.bound(history.request(recipe, 512), message, history.reported(recipe)).prompt_tokens
    assert bound >= needed(recipe)


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

    with running_model_server(step) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(max_iterations=5, max_tokens=200_000)
            await arrived(gate.arrived)
            await lab.call("message_subagent", subagent_id=run_id, message="look at Otter")
        gate.released.set()
        async with open_lab(tmp_path, server=server) as lab:
            run = await lab.ended(run_id)
            assert run.state == "iteration_limit" and run.generation == 2
            attempts = [(fact.turn, fact.attempt) for fact in await lab.facts(run_id, CostReserved)]
        assert attempts == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1)]
        assert any("look at Otter" in request.body.decode() for request in server.requests[3:])
        await check_requests(tmp_path / "data", server.requests)
