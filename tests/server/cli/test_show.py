"""`ava show`: the result first, then what was approved, each turn's money and time, and what went wrong, each once."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Say
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.terminal import ava, run_on_terminal

from ava_audit.events import Answered, Asked
from ava_server.cli.show import turn_lines
from ava_server.cli.terminal import cells
from ava_server.render.turns import PARTS, Span, Turn, TurnCall, took_us, troubles_of, turns_of, waterfall

READS = ("read_file", {"path": "notes.md"})
FAILS = ("read_file", {"path": "nowhere.md"})
SCRIPT = (Say("", [READS, FAILS]), Say("", [FAILS]), hand_over())


async def shown(lab: Lab, *args: str) -> str:
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", *args))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_result_stands_first_and_the_log_only_where_it_is_asked_for(tmp_path: Path) -> None:
    async with open_lab(tmp_path, SCRIPT, config=PRICED) as lab:
        (lab.workspace / "notes.md").write_text("twelve cents")
        run_id = (await lab.outcome(name="prices"))["subagent_id"]
        text, log = await shown(lab, run_id), await shown(lab, run_id, "--log")
        both = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run_id, "--log", "--cost"))
    order = [
        f"# researcher \"prices\" ({run_id}): success", "## Summary", "## Asked and approved", "Approved ", "Caps: ",
        "## Turns: 3", " turn      cost    model    tools", "read_file path=notes.md", "## What went wrong",
        "2 times from ", f"`ava show {run_id} --log`",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "AssistantMessage" not in text and text.count("nowhere.md does not exist") == 1
    assert "✗ read_file path=nowhere.md" in text and text.count("submit_result") == 1
    assert log.splitlines()[1] == f'researcher "prices" ({run_id}): success' and "CostReserved" in log
    assert log.count("## Summary") == 0 and log.count("list its folder with") == 2, "in a pipe, each line is whole"
    assert both.returncode == 2 and "--cost and --log are 2 screens" in both.stderr


async def test_the_turns_have_all_of_the_money_and_each_call_with_what_came_of_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, SCRIPT, config=PRICED) as lab:
        (lab.workspace / "notes.md").write_text("twelve cents")
        run = await lab.run((await lab.outcome())["subagent_id"])
        entries = await lab.entries(run.id)
    turns = turns_of(entries)
    assert [turn.number for turn in turns] == [1, 2, 3]
    assert sum(turn.cost_micros for turn in turns) == run.cost_micros > 0
    calls = [[(call.words, call.failed) for call in turn.calls] for turn in turns]
    read, failed = ("read_file path=notes.md", False), ("read_file path=nowhere.md", True)
    assert calls == [[read, failed], [failed], [("submit_result", False)]]
    assert all(turn.took_us("model") > 0 and turn.took_us("waiting") == 0 for turn in turns)
    assert turns[0].took_us("tools") > 0 and turns[2].took_us("tools") == 0
    [trouble] = troubles_of(entries)
    assert trouble.times == 2 and "nowhere.md" in trouble.words


async def test_a_run_that_asks_says_to_a_person_how_it_is_answered(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say("", [("ask", {"question": "Which year?"})])], check=False) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "Asked")
        while (await lab.run(run_id)).state != "queued":  # noqa: ASYNC110 - no entry tells
            await anyio.sleep(0.05)
        text = await shown(lab, run_id)
        approvals = await anyio.to_thread.run_sync(lambda: ava(lab.root, "report", "approvals"))
    assert f'Waits for: a person. Answer its question with `ava send {run_id} "…"`; without an answer' in text
    assert "message_subagent" not in text and "What went wrong" not in text
    assert "; asks you\n" in approvals.stdout and "queued" not in approvals.stdout


async def test_the_time_in_which_a_person_is_asked_is_waiting_and_no_work_of_a_tool(tmp_path: Path) -> None:
    script = [Say("", [("ask", {"question": "Which year?"})]), hand_over()]
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await lab.start()
        asked = await lab.logged(run_id, "Asked")
        await anyio.sleep(0.3)
        await lab.call("message_subagent", subagent_id=run_id, message="2026")
        await lab.ended(run_id)
        entries = await lab.entries(run_id)
    answered = next(entry for entry in entries if isinstance(entry.fact, Answered))
    assert isinstance(asked.fact, Asked)
    first = turns_of(entries)[0]
    assert first.took_us("waiting") == answered.ts_us - asked.ts_us >= 300_000
    assert first.took_us("tools") < 300_000


@pytest.mark.slow
async def test_on_a_terminal_of_each_width_no_line_is_broken_by_the_table(tmp_path: Path) -> None:
    async with open_lab(tmp_path, SCRIPT, config=PRICED) as lab:
        (lab.workspace / "notes.md").write_text("twelve cents")
        run_id = (await lab.outcome())["subagent_id"]

        def drawn(columns: int, **env: str) -> str:
            with run_on_terminal(lab.root, "show", run_id, columns=columns, env=env) as screen:
                assert screen.ended() == 0
            return screen.text

        for columns in (40, 80, 120, 200):
            text = await anyio.to_thread.run_sync(drawn, columns)
            rows = [line for line in text.split("Turns: 3")[1].splitlines()[1:6] if line]
            assert len(rows) == 5, "the sums of time, the heads, and three turns"
            assert ("✗ read_file" in text) == (columns > 40)
        plain = await anyio.to_thread.run_sync(lambda: drawn(80, NO_COLOR="1"))
        assert "\x1b[" not in plain


SPANS = st.builds(
    lambda part, begin, length: Span(part, begin, begin + length),
    st.sampled_from(PARTS), st.integers(0, 10_000), st.integers(0, 10_000),
)  # fmt: skip


@given(st.lists(SPANS, max_size=8))
def test_overlapping_time_counts_once_and_no_part_takes_longer_than_the_whole(spans: list[Span]) -> None:
    whole = max((span.end_us for span in spans), default=0) - min((span.begin_us for span in spans), default=0)
    took = [took_us(spans, part) for part in PARTS]
    assert all(0 <= each <= whole for each in took)
    for part, each in zip(PARTS, took, strict=True):
        assert each <= sum(span.end_us - span.begin_us for span in spans if span.part == part)


@given(st.lists(SPANS, min_size=1, max_size=8), st.integers(10, 60))
def test_the_picture_of_time_is_as_wide_as_it_may_be_and_leaves_nothing_out(spans: list[Span], width: int) -> None:
    begin, end = min(span.begin_us for span in spans), max(span.end_us for span in spans)
    for span in spans:
        drawn = waterfall([span], begin, end, width)
        assert len(drawn) == width and span.part in drawn
    longest_us = max(span.end_us - span.begin_us for span in spans)
    longest = {span.part for span in spans if span.end_us - span.begin_us == longest_us}
    assert longest & set(waterfall(spans, begin, end, width))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_row_of_a_turn_fits_and_forty_of_them_are_two_screens(width: int) -> None:
    call = TurnCall(f"read_file path={'long/' * 60}", failed=True)
    turns = [Turn(number, 12_345, [call] * 3, [Span("model", number, number + 1)]) for number in range(1, 41)]
    lines = turn_lines(turns, width)
    assert len(lines) == 42
    assert max(map(cells, lines)) <= width
    assert all("$0.0123" in line for line in lines[2:])
