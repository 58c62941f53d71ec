"""Everything that can happen is driven once, and what stands in the log then is what the page of events says.

The registries are asked what there is: a tool, an ending, a kind of error or an event type that comes later fails
here by name, until it is driven too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest
from support.coverage import record
from support.coverage.acts import play_everything
from support.coverage.script import ENDINGS_PLAYED, ERRORS
from support.tool_examples import EXAMPLES, HERE, must_list

from ava_audit.entries import HEADER
from ava_audit.events import ENDINGS, FACTS
from ava_roles.tools.registry import builtin_tools
from ava_server.core.errors import ModelErrorKind
from ava_server.run_config.config import RUN_TOOLS
from ava_server.runs.record.submit import NAME as SUBMIT

UNWRITTEN: set[str] = set()
"""Types that nothing writes yet."""
UNREACHED: set[str] = set()
"""Endings (and decisions) that no run of this version comes to."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root in which all of it has happened."""
    tmp = tmp_path_factory.mktemp("record")
    await play_everything(tmp)
    return tmp / "data"


# -- what stands in the log then --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_documented_and_logged_event_types_match(root: Path) -> None:
    written = {entry["type"] for entry in record.log_entries(root)}
    assert set(record.documented_fields()) == set(FACTS)
    driven = "tests/support/coverage: plays() in script.py, or acts.py,"
    must_list(driven, written | UNWRITTEN, FACTS, "event type")
    assert set(FACTS) - written == UNWRITTEN
    assert written <= set(FACTS)


async def test_documented_and_stored_event_fields_match(root: Path) -> None:
    stored: dict[str, Counter[str]] = defaultdict(Counter)
    count: Counter[str] = Counter()
    for entry in record.log_entries(root):
        count[entry["type"]] += 1
        stored[entry["type"]].update(entry["content"].keys())
    faults: list[str] = []
    for name, fields in record.documented_fields().items():
        if name in UNWRITTEN:
            continue
        faults += [f"{name}.{field} is not on the page" for field in stored[name] if field not in fields]
        for field, absent in fields.items():
            if not stored[name][field] and (name, field) not in UNSET:
                faults.append(f"{name}.{field} was never stored")
            if stored[name][field] and (name, field) in UNSET:
                faults.append(f"{name}.{field} is stored now: take it out of UNSET")
            if not absent and stored[name][field] != count[name]:
                faults.append(f"{name}.{field} is absent from some, which the page does not say")
    assert faults == []


async def test_some_event_fills_every_header_column(root: Path) -> None:
    rows = record.log_entries(root)
    assert [column for column in HEADER if all(row[column] is None for row in rows)] == []


async def test_every_enum_value_is_logged_or_listed_as_unused(root: Path) -> None:
    said: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in record.log_entries(root):
        for field, value in entry["content"].items():
            if isinstance(value, str):
                said[entry["type"], field].add(value)
    for name, fact in FACTS.items():
        if name in UNWRITTEN:
            continue
        for field, info in fact.model_fields.items():
            words = {word for each in (info.annotation, *get_args(info.annotation)) for word in record.literals(each)}
            unsaid = UNSAID.get((name, field), set())
            says = f"{name}.{field}: play each value that the left set shows, or list it in UNSAID"
            assert words - said[name, field] == unsaid & words, says


async def test_reaches_every_ending(root: Path) -> None:
    reached = {entry["content"]["status"] for entry in record.log_entries(root) if entry["type"] == "RunEnded"}
    assert reached == {*ENDINGS_PLAYED, "abandoned", "superseded", "partial"} == ENDINGS - UNREACHED


async def test_logs_every_kind_of_model_error(root: Path) -> None:
    kinds = {entry["content"]["kind"] for entry in record.log_entries(root) if entry["type"] == "ErrorOccurred"}
    assert set(ERRORS) == set(get_args(ModelErrorKind))
    assert set(ERRORS) <= kinds


async def test_logs_call_result_and_refusal_of_every_tool_of_a_run(root: Path) -> None:
    calls, results = record.tool_entries(root, of_runs=True)
    tools = {*builtin_tools(), *RUN_TOOLS}
    assert set(calls) == tools == set(EXAMPLES)
    both = {tool for tool, outcomes in results.items() if outcomes == {True, False}}
    assert both == {*tools, SUBMIT}, f"`call` of {HERE} must succeed here: {sorted(tools - both)} failed"


async def test_logs_call_answer_and_failure_of_every_mcp_tool(root: Path) -> None:
    calls, results = record.tool_entries(root, of_runs=False)
    tools = set(re.findall(r"^## `?(\w+)`?", (record.PAGE.parent / "tools.md").read_text("utf-8"), re.MULTILINE))
    assert len(tools) == 6 and set(calls) == tools
    assert {tool for tool, outcomes in results.items() if outcomes == {True, False}} == tools


async def test_every_call_has_a_result_and_every_reservation_a_settlement(root: Path) -> None:
    rows = record.log_entries(root)
    ends = {row["run_id"]: row["seq"] for row in rows if row["type"] == "RunEnded"}

    def keys(type_name: str, *fields: str) -> Counter[tuple[Any, ...]]:
        return Counter(
            (row["run_id"], *(row["content"][field] for field in fields))
            for row in rows
            if row["type"] == type_name and row["generation"] is not None and row["run_id"] in ends
        )

    reserved, settled = keys("CostReserved", "turn", "attempt"), keys("CostUpdate", "turn", "attempt")
    assert len(reserved) > 40 and set(reserved.values()) == {1}
    abandoned = record.runs_without_owner(rows)
    assert {key for key in reserved if key not in settled} <= {key for key in reserved if key[0] in abandoned}
    assert not keys("ToolCall", "call_id") - keys("ToolResult", "call_id")


# -- one wrapper each, and lists that do not rot ----------------------------------------------------------------------


@pytest.mark.slow
def test_model_and_tool_calls_have_one_wrapper_each() -> None:
    assert record.files_with(r"\bmodel\.stream\(|\b_model\.stream\(") == {"runs/turn/model_call.py"}
    assert record.files_with(r"\btool\(args") == {"runs/turn/tool_calls.py"}
    assert record.files_with(r"\bhandler\(") == {"service/service.py"}
    made = {name: record.files_that_call(name) for name in ("CostReserved", "CostUpdate", "ToolCall")}
    assert made == {
        "CostReserved": {"runs/turn/model_call.py", "runs/turn/reservation.py", "agents/metering.py"},
        "CostUpdate": {"budget/caps.py"},
        "ToolCall": {"runs/turn/tool_calls.py", "service/record.py", "agents/metering.py", "agents/work.py"},
    }


def test_nothing_writes_the_values_listed_as_unused() -> None:
    for path in [path for folder in ("server", "audit") for path in (record.ROOT / folder).rglob("*.py")]:
        for call in record.calls_in(path):
            where = f"{path.name}:{call.lineno}"
            assert record.called_name(call) not in UNWRITTEN, (
                f"{where} writes {record.called_name(call)}: play it in tests/support/coverage"
            )
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            words = {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
            assert not words & UNREACHED, (
                f"{where} ends a run as {words & UNREACHED}: play it in tests/support/coverage"
            )


ACCOUNTS = "tests/server/runs/turn/test_account_prices.py"
UNSET = {
    ("RunPaused", "stands_us"): "where a plan's runs were interrupted: tests/server/runs/plan/test_interrupted_plan.py",
    ("ToolResult", "unread"): "where a tool did not finish: tests/server/runs/record/test_no_answer.py",
    ("ToolResult", "unread_little"): "where a file cannot be read: tests/server/runs/record/test_no_answer.py",
    ("CostReserved", "no_tier"): "where a provider refuses the tier that it was asked for: " + ACCOUNTS,
    ("CostUpdate", "account"): "where an account can have a tier or a place of its own: " + ACCOUNTS,
    ("CostUpdate", "replaces"): "where an answer comes late: tests/server/budget/test_late_answers.py",
    ("ToolResult", "unknown"): "where a call that changes something was lost: tests/server/runs/origins/test_acts.py",
    ("SpawnDecided", "folded"): "where a person left a text folded: tests/system/test_cli_approve.py",
    ("UserMessage", "screen"): "where a person left a text folded: tests/system/test_cli_approve.py",
}
"""Fields that no entry here has, and why."""


UNSAID = {
    ("RunResumed", "channel"): {"auto", "http", "browser"},
    ("CancelRequested", "by"): {"system"},
    # A call takes a server whose tools change something: tests/server/runs/origins/test_values.py
    ("Asked", "kind"): {"call"},
    ("Asked", "act"): {"role", "destroys", "again", "no_values"},
    ("Answered", "kind"): {"call"},
    ("Answered", "channel"): {"auto"},
    ("SubagentComplete", "status"): {"superseded", "rejected", "expired"},
}
"""Words of a closed set that no entry here has: most of them nothing says yet. A proposal ends without a result."""
