"""The parts of a run's money, whatever was reserved, billed or lost: they sum to what the run has cost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime import USER

from ava_audit.events import CostReserved, CostUpdate, Settlement, Usage, Who
from ava_audit.rows import RUNNING, RunRow
from ava_audit.units import format_usd
from ava_server.budget.caps import HeldCall, Purpose, settlement_event
from ava_server.models.prices import COST_PARTS, FREE_LOCAL, Price
from ava_server.render.host_text import run_text
from ava_server.render.responses import RunAnswer
from ava_server.run_config.config import RunConfig
from ava_server.runs.record.history import History
from ava_server.runs.record.result import RunResult, build_result

WHO = Who("sess-1", "S-000001", USER)
rates = st.integers(0, 10**5)
prices = st.builds(Price, rates, rates, rates, rates, per_request=rates)
counts = st.integers(0, 10**5)
usages = st.builds(
    lambda fresh, read, write, output, thinking: Usage(
        input_tokens=fresh,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output + thinking,
        thinking_tokens=thinking,
    ),
    *[counts] * 5,
)
attempts = st.tuples(
    st.booleans(),
    st.sampled_from(["billed", "not_billed", "unknown"]),
    usages,
    st.none() | st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.sampled_from([None, None, "plan"]),
)


CONFIG = RunConfig(
    role="researcher", role_source="built in", role_text="", model="custom:test", provider="custom", model_id="test",
    price=FREE_LOCAL, timeout_s=600, max_cost_micros=500_000, max_tokens=100_000, max_iterations=20, max_tool_calls=25,
    tools=(), reach="can reach neither files nor the web", estimated_minutes=(1, 2), input_bytes=1,
).model_dump_json()  # fmt: skip


@pytest.mark.requirement("N-08")
@settings(max_examples=200)
@given(price=prices, steps=st.lists(attempts, max_size=25))
def test_the_parts_of_a_result_sum_to_the_cost_of_the_run_however_calls_were_settled(
    price: Price, steps: list[tuple[bool, Settlement, Usage, int | None, int, Purpose | None]]
) -> None:
    history, turn, attempt, cost, uncosted = History("S-000001"), 0, 0, 0, 0
    for seq, (again, settlement, usage, reported, reserved, purpose) in enumerate(steps, 1):
        turn, attempt = (turn, attempt + 1) if again and turn else (turn + 1, 1)
        held = CostReserved(
            turn=turn, attempt=attempt, scopes=(), micros=reserved, wrap_micros=0, prompt_tokens=1, max_output=1,
            upto_seq=0, request_sha="0" * 64,
        )  # fmt: skip
        history.add(seq, held)
        event = settlement_event(
            None, "S-000001", WHO, "far:model", price, HeldCall(turn, attempt, reserved, 2), settlement,
            usage=usage, reported_micros=reported, purpose=purpose or history.purpose,
        )  # fmt: skip
        assert isinstance(event.fact, CostUpdate)
        assert event.cost_micros is not None
        assert sum(event.fact.cost_by.values()) == event.cost_micros
        if event.cost_micros and (purpose or history.purpose):
            assert list(event.fact.cost_by) == [purpose or history.purpose]
        history.add(seq, event.fact, event.usage)
        cost += event.cost_micros
        uncosted += event.cost_micros if event.fact.settlement == "unknown" else 0

    result = build_result(run_row(cost, uncosted), history, RunResult("success", "done"), [], 1.0)

    assert sum(round(part * 10_000) for part in result["cost_by"].values()) == cost
    assert round(sum(result["cost_by"].values()) * 10_000) == round(result["cost_cents"] * 10_000) == cost
    assert list(result["cost_by"]) == [name for name in COST_PARTS if name in result["cost_by"]]
    stored = json.loads(json.dumps(result))
    assert sum(round(part * 10_000) for part in stored["cost_by"].values()) == cost
    answer = RunAnswer(
        subagent_id="S-000001", role="r", state="success", status_line="", cost_by=result["cost_by"] or None,
        untrusted_result=result["untrusted_result"],
    )  # fmt: skip
    told = re.search(r"^Cost: (.*)$", run_text(answer), re.MULTILINE)
    shown = [
        f"{'unknown' if name == 'uncosted' else name} {format_usd(round(part * 10_000))}"
        for name, part in result["cost_by"].items()
    ]
    assert (told[1] if told else "") == ", ".join(shown)


def test_costs_of_an_unreadable_history_count_as_input() -> None:
    result = build_result(run_row(123, 0), History("S-000001"), RunResult("error", "a fault"), [], 1.0)
    assert result["cost_by"] == {"input": 0.0123}


def run_row(cost_micros: int, uncosted_micros: int) -> RunRow:
    return RunRow(
        "S-000001", "P-00000001", None, USER, "sess-1", "researcher", None, None, "far:model", CONFIG, None, RUNNING,
        None, None, 1, cost_micros=cost_micros, uncosted_micros=uncosted_micros,
    )  # fmt: skip
