"""What a run hands over has the room of one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Gate, Say
from support.runtime import hand_over, open_lab, wait_for
from support.terminal import ava

from ava_audit.events import ToolResult
from ava_audit.rows import RUNNING, RunRow
from ava_server.models.prices import FREE_LOCAL
from ava_server.render.answer_size import (
    LEAST_ROOM,
    RESULTS_CHARS,
    fitting,
    json_chars,
    room_for,
)
from ava_server.render.host_text import text_of
from ava_server.run_config.config import RunConfig
from ava_server.runs.record.history import History
from ava_server.runs.record.result import FOUND, LOOKED_AT, RunResult, build_result


@given(st.text(max_size=400), st.integers(1, 300))
def test_truncates_to_the_longest_text_that_fits(text: str, room: int) -> None:
    end = fitting(text, room)
    assert end == len(text) or end >= 1
    if end > 1:
        assert json_chars(text[:end]) - 2 <= room
    if end < len(text):
        assert json_chars(text[: end + 1]) - 2 > room


@given(st.integers(0, 40))
def test_results_share_the_size_limit_of_one_answer(count: int) -> None:
    room = room_for(count)
    assert LEAST_ROOM <= room <= RESULTS_CHARS
    assert room_for(count + 1) <= room


async def test_says_that_no_tool_was_used(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(), Say(calls=[("scratchpad", {"note": "a"})]), hand_over()]) as lab:
        answers = []
        for task in ("without a tool", "with one"):
            run_id = (await lab.outcome(task=task))["subagent_id"]
            answers.append(await lab.call("check_subagent", subagent_id=run_id))
            lines = [line for line in ava(lab.root, "show", run_id).stdout.splitlines() if "Tools called: " in line]
            assert len(lines) == 1 and lines[0].endswith("none") == (task == "without a tool")
    assert answers[0].runs[0].tool_receipts == {}
    assert text_of(answers[0]).endswith("\nTools used: none")
    assert "\nTools used: scratchpad 1" in text_of(answers[1])


def unanswered(*results: ToolResult) -> dict[str, Any]:
    """What a run that was cancelled after these results hands over."""
    history = History("S-000001")
    for seq, fact in enumerate(results, 1):
        history.add(seq, fact)
    config = RunConfig(
        role="r", role_source="built-in", role_text="", model="far:model", provider="far", model_id="model",
        price=FREE_LOCAL, timeout_s=60, max_cost_micros=1, max_tokens=1, max_iterations=1, max_tool_calls=1,
        tools=(), reach="", estimated_minutes=(1, 1), input_bytes=1,
    )  # fmt: skip
    row = RunRow(
        "S-000001", "P-00000001", None, "somebody", "sess-1", "r", None, None, "far:model",
        config.model_dump_json(exclude_none=True), None, RUNNING, None, None, 1,
    )  # fmt: skip
    found: dict[str, Any] = build_result(row, history, RunResult("cancelled", ""), [], 1.0)["untrusted_result"]
    return found


def test_only_successful_results_count_as_read() -> None:
    refused = ToolResult(
        tool="read_file", success=False, output="Refused", call_id="1", sources=({"location": "secret.md"},)
    )
    read = ToolResult(tool="read_file", success=True, output="text", call_id="2", sources=({"location": "a.md"},))
    found = unanswered(refused, read)
    assert found["findings"] == [{"claim": LOOKED_AT, "source_url": "a.md"}]
    assert "Read: a.md" in found["caveats"] and "secret.md" not in str(found)
    assert unanswered(refused)["findings"] == []


def test_what_a_web_search_found_is_not_listed_as_read() -> None:
    hits = ({"location": "https://a.example/", "title": "A"}, {"location": "https://b.example/", "title": "B"})
    search = ToolResult(tool="web_search", success=True, output="1. A 2. B", call_id="1", sources=hits)
    page = ToolResult(tool="read_webpages", success=True, output="text", call_id="2", sources=hits[1:])
    found = unanswered(search, page)
    assert found["findings"] == [
        {"claim": LOOKED_AT, "source_url": "https://b.example/", "source_name": "B"},
        {"claim": FOUND, "source_url": "https://a.example/", "source_name": "A"},
    ]
    assert "Read: https://b.example/" in found["caveats"]
    only = unanswered(search)
    assert only["summary"] == "No result; the last tool output is given." and "Read: " not in str(only["caveats"])


async def test_what_was_cut_off_a_long_output_is_not_listed_as_read(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    for number in range(100):
        (tmp_path / f"workspace/{number:03}.md").write_text(f"otter {'x' * 400}\n")
    gate = Gate()
    script = [Say(calls=[("search_codebase", {"query": "otter", "max_results": 200})]), Say("x", gate=gate)]
    async with open_lab(tmp_path, script) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)
        result, *_ = await lab.facts(run_id, ToolResult)
    shown = [f"{number:03}.md" for number in range(100) if f"{number:03}.md" in result.output]
    assert 0 < len(shown) < 100
    assert [source["location"] for source in result.sources] == shown


async def test_shows_zero_confidence_but_omits_other_zero_values(
    tmp_path: Path,
) -> None:
    async with open_lab(tmp_path, [hand_over(confidence=0)]) as lab:
        result = await lab.outcome()
        answer = await lab.call("check_subagent", subagent_id=result["subagent_id"])
        (run,) = answer.runs
    assert run.confidence == 0 == result["confidence"]
    assert "Confidence (the model's own): 0" in text_of(answer)
    assert run.uncosted is None and run.overrun is None, "what is not so is not said"
