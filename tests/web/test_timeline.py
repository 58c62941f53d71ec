"""The pages of a run's timeline: each entry once, in order, with the money that was spent until then."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams
from support.pages.timeline import RUN, TimelineLog, reservation, settlement, write_failed_turn, write_turn
from support.tool_examples import must_list

from ava_audit.events import (
    ENDINGS,
    FACTS,
    Activity,
    AssistantMessage,
    Ending,
    ErrorOccurred,
    LogErased,
    RunClaimed,
    RunEnded,
    SpawnDecided,
    SubagentComplete,
    ToolCall,
    ToolResult,
    UserMessage,
)
from ava_audit.rows import RunRow
from ava_audit.view import NOT_FAILED
from ava_server.core.errors import BadInput
from ava_server.render.approvals import decisions_on
from ava_server.render.entry_lines import EVENT_NAMES, recent_steps
from ava_server.render.turns import Span
from ava_server.web import timeline
from ava_server.web.timeline import Order, Place, Scale, place_of, read_newer

URL = "https://models.example.org/v1/chat/completions refused a call of this run"


@pytest.fixture
def log() -> Generator[TimelineLog]:
    with closing(TimelineLog()) as log:
        yield log


STEPS = st.lists(st.one_of(st.none(), st.integers(0, 1_000)), max_size=12)


@pytest.mark.slow
@given(
    first=STEPS, later=st.lists(STEPS, max_size=4), size=st.integers(1, 4), order=st.sampled_from(["newest", "oldest"])
)
def test_paging_shows_each_entry_once_while_others_are_written(
    first: list[int | None], later: list[list[int | None]], size: int, order: Order
) -> None:
    writes = iter(later)
    with closing(TimelineLog()) as log:
        log.grow(first)
        with patch.object(timeline, "PAGE_ENTRIES", size):
            page = log.page(Place(order))
            newer, seen = page.newer, log.check(page.items)
            while page.next is not None:
                log.grow(next(writes, []))
                page = log.page(page.next)
                seen += log.check(page.items)
                newer = page.newer or newer
            log.grow(next(writes, []))
            assert newer is not None
            while more := read_newer(log.view, RUN, newer):
                if not more.items:
                    break
                assert more.newer is not None
                found = log.check(more.items)
                seen = found + seen if order == "newest" else seen + found
                newer = more.newer
        assert seen == sorted(log.totals, reverse=order == "newest")


def test_what_was_written_between_two_pages_comes_with_the_newer_ones(log: TimelineLog) -> None:
    log.grow([None] * 3)
    with patch.object(timeline, "PAGE_ENTRIES", 2):
        page = log.page(Place("newest"))
        log.grow([5])
        assert page.next is not None and page.newer is not None
        assert [item.seq for item in log.page(page.next).items] == [1]
        assert [(item.seq, item.total) for item in read_newer(log.view, RUN, page.newer).items] == [(7, 5)]


def test_money_and_bookkeeping_are_folded_into_the_model_call(log: TimelineLog) -> None:
    log.write(UserMessage(text="the task", kind="task"), agent="ava")
    log.write(reservation())
    log.write(settlement(), cost=40)
    log.write(AssistantMessage(text=" ", turn=1))
    log.write(Activity(activity="Reading"))
    log.write(reservation(2))
    step, activity, held = log.page(Place("oldest")).items
    assert step.shown is not None and step.shown.title == "Turn 1" and (step.cost, step.total) == (40, 40)
    assert [line.partition(":")[0] for line in step.folded] == [
        "Task",
        "Money reserved",
        "Model call",
        "Answer of the model",
    ]
    assert activity.shown is not None and activity.text == "Reading"
    assert held.shown is None and len(held.folded) == 1


def test_an_answer_that_the_provider_refused_is_a_row_with_its_words_and_what_the_model_wrote(log: TimelineLog) -> None:
    log.write(settlement(), cost=40)
    seq = log.write(AssistantMessage(text="", turn=1, rejected='Tool call validation failed\n{"foo": "bar"}'))
    step, answer = log.page(Place("oldest")).items
    assert step.shown is not None and answer.shown is not None and answer.seq == seq
    assert answer.shown.failed and answer.text.split("\n") == [
        "refused by the provider, so nothing of it was used: Tool call validation failed",
        'The model had written: {"foo": "bar"}',
    ]
    [drawn] = recent_steps(log.view, RUN, 5)
    assert drawn.failed and "Tool call validation failed" in drawn.outcome and "foo" in drawn.outcome


def test_a_failed_tool_shows_its_reason_whole_where_other_texts_are_cut(log: TimelineLog) -> None:
    reason = "The file is a folder. " * 20
    for _ in range(150):
        log.write(ToolResult(tool="read_file", success=True, output="x" * 2_000))
    log.write(ToolResult(tool="read_file", success=False, output=f"Failed.\n{reason}"))
    *others, failed = log.page(Place("oldest")).items
    assert failed.shown is not None and failed.shown.title == "read_file failed" and failed.shown.failed
    assert failed.text == reason.strip() and not failed.cut
    assert all(item.cut for item in others)
    assert sum(len(item.text) for item in others) <= timeline.PAGE_CHARS


def test_erased_content_and_types_of_a_newer_ava_have_rows(log: TimelineLog) -> None:
    log.write(None)
    seq = log.write(ErrorOccurred(error="x", kind="dropped"))
    log.db.execute("DROP TRIGGER events_fixed")
    log.db.execute("""UPDATE events SET type = 'Later', content = '{"a": 1}' WHERE seq = ?""", (seq,))
    erased, later = log.page(Place("oldest")).items
    assert erased.shown is not None and erased.text == "The content was erased."
    assert later.shown is not None and later.shown.title == "Later, which a newer Ava wrote"


def test_an_event_type_without_words_of_its_own_has_its_name_for_people(log: TimelineLog) -> None:
    log.write(LogErased(run_id=RUN, entries=3, why="asked for"))
    [item] = log.page(Place("oldest")).items
    assert item.shown is not None and (item.shown.title, item.text) == ("Content erased", f"{RUN} asked for")


@pytest.mark.parametrize("status", sorted(ENDINGS - {"superseded"}))
def test_only_an_ending_that_counts_as_failed_is_drawn_as_failed(log: TimelineLog, status: Ending) -> None:
    result: dict[str, object] = {"status": status, "untrusted_result": {}}
    log.write(
        SubagentComplete(status=status, summary="", tokens=0, cost_cents=0, duration=0, subagent_id=RUN, result=result)
    )
    log.write(RunEnded(status=status, stop_reason="no passage answers the task"))
    items = log.page(Place("oldest")).items
    assert [item.failed for item in items] == [status not in NOT_FAILED] * 2


@pytest.mark.parametrize(
    ("decision", "title"),
    [
        ("expired", "Expired by itself: nobody decided in time"),
        ("rejected", "Rejected by cancelling it"),
        ("superseded", "Replaced"),
    ],
)
def test_a_decision_without_a_channel_says_how_it_came(log: TimelineLog, decision: str, title: str) -> None:
    fact = SpawnDecided.model_validate({"pending_id": "P-1", "decision": decision, "channel": None})
    log.write(fact)
    [item] = log.page(Place("oldest")).items
    assert item.shown is not None and item.shown.title == title
    run = RunRow(RUN, "P-1", None, "ana", "s", "researcher", None, None, "m", "{}", None, decision, None, None, 1)
    [found] = decisions_on(log.view, run)
    assert f"{found.what} {found.how}".rstrip() == title


@pytest.mark.parametrize("query", ["from=x", "from=-1", "from=1&spent=x", f"from={10**19}", "from=", "from=١"])
def test_an_address_that_names_no_place_is_refused(query: str) -> None:
    with pytest.raises(BadInput, match="no place"):
        place_of(QueryParams(query), "newest")


def test_a_place_survives_its_address() -> None:
    for place in (Place("newest"), Place("oldest", 12, 34), Place("newest", 7, 0)):
        assert place_of(QueryParams(place.query), "oldest") == place


def test_a_page_of_a_long_run_walks_only_its_own_entries(log: TimelineLog) -> None:
    plans: list[str] = []
    log.grow([None, 3])
    statements: list[str] = []
    log.db.set_trace_callback(statements.append)
    log.page(Place("newest", 3, 0))
    log.page(Place("oldest", 1, 0))
    log.db.set_trace_callback(None)
    for sql in statements:
        plans += [row[3] for row in log.db.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans and all("events_run" in plan for plan in plans), plans


def test_each_event_has_a_name_for_people() -> None:
    must_list("server/ava_server/render/entry_lines.py: EVENT_NAMES", EVENT_NAMES, FACTS, "event type")


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_tree_has_each_row_once_with_a_result_in_its_call_and_a_call_in_its_turn(
    log: TimelineLog, order: Order
) -> None:
    log.write(ToolCall(tool="before", call_id="a"))
    log.write(settlement(), cost=5)
    log.write(ToolCall(tool="first", call_id="b"))
    log.write(ToolCall(tool="second", call_id="c"))
    log.write(ToolResult(tool="second", call_id="c", success=True, output="2"))
    log.write(ErrorOccurred(error="x", kind="dropped"))
    log.write(ToolResult(tool="first", call_id="b", success=True, output="1"))
    log.write(ToolResult(tool="unknown", call_id="z", success=True, output="?"))
    tree = log.page(Place(order)).tree(order)
    tops = tree if order == "oldest" else tree[::-1]
    assert [item.seq for item in tops] == [1, 2, 6]
    turn = tops[1]
    assert [(item.seq, item.result and item.result.seq) for item in turn.inside] == [(3, 7), (4, 5), (8, None)]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_the_same_error_several_times_in_a_row_is_one_row(log: TimelineLog, order: Order) -> None:
    write_turn(log, 1)
    for turn in (2, 3, 4):
        write_failed_turn(log, turn)
    write_failed_turn(log, 5, "other.md")
    write_turn(log, 6)
    tree = log.page(Place(order)).tree(order)
    tops = tree if order == "oldest" else tree[::-1]
    assert [item.shown and item.shown.title for item in tops] == ["Turn 1", "Turns 2 to 4", "Turn 5", "Turn 6"]
    folded = tops[1]
    assert folded.failed and (folded.cost, folded.total, len(folded.inside)) == (15, 20, 3)
    assert [item.shown and item.shown.title for item in folded.inside] == ["Turn 2", "Turn 3", "Turn 4"]


def test_an_error_that_comes_again_later_is_counted(log: TimelineLog) -> None:
    for turn in range(1, 6):
        write_failed_turn(log, turn) if turn % 2 else write_turn(log, turn)
    calls = [item.actions[0] for item in log.page(Place("oldest")).tree("oldest")]
    assert [call.again for call in calls] == [0, 0, 2, 0, 3]


def test_an_error_without_a_turn_is_folded_too(log: TimelineLog) -> None:
    for _ in range(3):
        log.write(ErrorOccurred(error="the provider is down", kind="api"))
    [row] = log.page(Place("oldest")).tree("oldest")
    assert row.shown is not None and row.shown.title == "Error: api, 3 times" and len(row.inside) == 3


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_an_error_of_attempts_is_said_once_and_then_counted(log: TimelineLog, order: Order) -> None:
    for turn, why in (
        (1, "try 1 is refused"),
        (2, "try 2 is refused"),
        (3, "the host is gone"),
        (4, "try 9 is refused"),
    ):
        log.write(settlement(turn), cost=5)
        log.write(ErrorOccurred(error=f"{URL}: {why}", kind="api", what_to_do="Wait."))

    def words(said: str) -> list[str]:
        tree = log.page(Place(order)).tree(order, said)
        tops = tree if order == "oldest" else tree[::-1]
        return [item.again_words for item in tops if item.kind == "error"]

    assert words("") == ["", "the same error, number 2", "", "the same error, number 3"]
    assert words(f"{URL}: try 1 is refused")[0] == "as the result says"
    assert words(f"{URL}: the host is gone") == [
        "", "the same error, number 2", "as the result says", "the same error, number 3",
    ]  # fmt: skip
    assert words("something else")[0] == ""


def test_the_time_of_a_turn_is_that_of_the_model_and_of_its_tools(log: TimelineLog) -> None:
    log.write(settlement(), cost=5, at_s=10, took_ms=4_000)
    log.write(ToolCall(tool="read_file", call_id="c", args={}), at_s=10)
    log.write(ToolResult(tool="read_file", call_id="c", success=True, output="x"), at_s=13, took_ms=2_500)
    [turn] = log.page(Place("oldest")).tree("oldest")
    assert [(span.part, span.begin_us / 1e6, span.end_us / 1e6) for span in turn.all_spans] == [
        ("model", 6, 10),
        ("tools", 10.5, 13),
    ]
    assert turn.seconds == 7 and turn.time_words == "model 4 s, tools 2 s"


def test_what_a_run_waited_for_is_drawn_up_to_what_ended_the_wait(log: TimelineLog) -> None:
    log.write(SpawnDecided.model_validate({"pending_id": "P-1", "decision": "approved", "channel": "browser"}), at_s=1)
    log.write(RunClaimed(instance="x", generation=1, reason="start"), at_s=4)
    log.write(settlement(), cost=5, at_s=5, took_ms=500)
    decided, turn = [item for item in log.page(Place("oldest")).tree("oldest") if item.shown is not None]
    assert decided.time_words == "waited 3 s" and turn.time_words == "model 500 ms"


def test_tools_that_run_at_the_same_time_count_once_as_in_the_terminal(log: TimelineLog) -> None:
    log.write(settlement(), cost=5, at_s=10, took_ms=4_000)
    for call_id in ("c", "d"):
        log.write(ToolCall(tool="read_file", call_id=call_id, args={}), at_s=10)
    for call_id, ended_s in (("c", 12), ("d", 13)):
        took_ms = (ended_s - 10) * 1_000
        log.write(
            ToolResult(tool="read_file", call_id=call_id, success=True, output="x"), at_s=ended_s, took_ms=took_ms
        )
    [turn] = log.page(Place("oldest")).tree("oldest")
    assert turn.seconds == 7 and turn.time_words == "model 4 s, tools 3 s"


@given(begins=st.integers(-5, 200), long=st.integers(0, 200), span=st.integers(0, 100))
def test_a_part_lies_within_the_picture_and_can_be_seen(begins: int, long: int, span: int) -> None:
    scale = Scale(0, span * 1_000_000)
    x, wide = scale.place(Span("tools", begins * 1_000_000, (begins + long) * 1_000_000))
    assert x >= 0 and wide >= 1 and wide >= scale.span_ms // timeline.LEAST_SHARE
    assert x + wide <= max(scale.span_ms, wide)
