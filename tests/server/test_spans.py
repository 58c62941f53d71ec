"""Spans: what an SDK in the process is given of a run, what it never is, and that nothing happens without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import get_current
from support import traced
from support.runtime import PRICED, hand_over, open_lab

from ava_roles.errors import ToolFailed
from ava_server import telemetry

Span = dict[str, Any]
TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Made:
    """What a scenario told, and the spans that were made in it."""

    told: dict[str, Any]
    spans: list[Span]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span["name"] == name]

    def one(self, name: str) -> Span:
        (span,) = self.named(name)
        return span

    def below(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span["parent"] == parent["id"] and span["trace"] == parent["trace"]]


Play = Callable[[Callable[..., Any]], Made]


@pytest.mark.slow
def test_a_run_is_a_span_that_contains_spans_of_model_and_tool_calls(made: Play) -> None:
    all_of_it = made(traced.whole_run)
    run = all_of_it.one("invoke_agent researcher")
    assert run["parent"] is None and run["kind"] == "INTERNAL"
    assert [span["name"] for span in all_of_it.below(run)] == [
        "chat test", "execute_tool read_file", "execute_tool read_file", "chat test", "chat test"
    ]  # fmt: skip
    assert len(all_of_it.spans) == 6 and {span["scope"] for span in all_of_it.spans} == {"ava"}
    assert all(span["attributes"]["ava.run.id"] == all_of_it.told["run"] for span in all_of_it.spans)


@pytest.mark.slow
def test_spans_have_the_attributes_of_the_semantic_conventions(made: Play) -> None:
    all_of_it = made(traced.whole_run)
    run = all_of_it.one("invoke_agent researcher")["attributes"]
    run_id = all_of_it.told["run"]
    assert run["gen_ai.operation.name"] == "invoke_agent"
    assert run["gen_ai.agent.name"] == "researcher" and run["ava.run.id"] == run_id
    assert "gen_ai.agent.id" not in run  # the conventions keep it for remote agents
    assert (run["gen_ai.provider.name"], run["gen_ai.request.model"]) == ("custom", "test")
    assert run["gen_ai.usage.input_tokens"] == all_of_it.told["input"]
    assert run["gen_ai.usage.output_tokens"] == all_of_it.told["output"]
    assert run["ava.run.ending"] == "success" and run["ava.run.cost_usd"] > 0 and run["ava.run.claim"] == 1
    first, _failed, last = all_of_it.named("chat test")
    assert first["kind"] == "CLIENT" and first["status"] == "UNSET"
    chat = first["attributes"]
    assert chat["gen_ai.operation.name"] == "chat" and chat["gen_ai.conversation.id"] == run_id
    assert chat["server.address"] == "127.0.0.1" and chat["server.port"] > 0
    assert chat["gen_ai.request.max_tokens"] > 0 and chat["gen_ai.request.stream"] is True
    assert chat["gen_ai.usage.output_tokens"] == 20 and chat["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert (last["attributes"]["ava.run.turn"], last["attributes"]["ava.run.attempt"]) == (2, 2)
    tool = all_of_it.named("execute_tool read_file")[0]
    assert tool["kind"] == "INTERNAL" and tool["attributes"]["gen_ai.tool.name"] == "read_file"
    assert tool["attributes"]["gen_ai.operation.name"] == "execute_tool"
    assert tool["attributes"]["gen_ai.tool.call.id"].startswith("call_")


@pytest.mark.slow
def test_a_failed_span_has_its_error_kind(made: Play) -> None:
    all_of_it = made(traced.whole_run)
    assert [span["attributes"].get("error.type") for span in all_of_it.named("chat test")] == [None, "overloaded", None]
    of_tools = [span["attributes"].get("error.type") for span in all_of_it.named("execute_tool read_file")]
    assert sorted(of_tools, key=str) == [None, "tool_error"]
    refused = made(traced.failed)
    run = refused.one("invoke_agent researcher")
    assert run["status"] == "ERROR" and run["attributes"]["error.type"] == "auth"
    assert run["attributes"]["ava.run.ending"] == "error" == refused.told["state"]


@pytest.mark.slow
def test_a_cancelled_run_is_not_marked_as_failed(made: Play) -> None:
    all_of_it = made(traced.cancelled)
    run = all_of_it.one("invoke_agent researcher")
    assert run["status"] == "UNSET" and run["attributes"]["ava.run.ending"] == "cancelled"
    assert all_of_it.one("chat test")["attributes"]["error.type"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", traced.SCENARIOS.values(), ids=traced.SCENARIOS.keys())
def test_spans_contain_no_text_of_users_or_models(scenario: Callable[..., Any], made: Play) -> None:
    all_of_it = made(scenario)
    assert all_of_it.spans
    text = json.dumps(all_of_it.spans).lower()
    for word in ("quokka", "task", "a.md", "costs", "authorization", "workspace", "traceback"):
        assert word not in text, word
    assert [span for span in all_of_it.spans if span["said"] or span["events"]] == []


@pytest.mark.slow
def test_concurrent_runs_are_separate_traces(made: Play) -> None:
    all_of_it = made(traced.side_by_side)
    runs = all_of_it.named("invoke_agent researcher")
    assert {run["attributes"]["ava.run.id"] for run in runs} == set(all_of_it.told["runs"])
    assert len({run["trace"] for run in runs}) == 3
    for run in runs:
        below = all_of_it.below(run)
        assert sorted(span["name"] for span in below) == ["chat test", "chat test", "execute_tool scratchpad"]
        assert {span["attributes"]["ava.run.id"] for span in below} == {run["attributes"]["ava.run.id"]}


@pytest.mark.slow
def test_a_resumed_run_is_another_span_of_the_same_run(made: Play) -> None:
    all_of_it = made(traced.taken_up)
    first, second = all_of_it.named("invoke_agent researcher")
    assert first["attributes"]["ava.run.id"] == second["attributes"]["ava.run.id"] == all_of_it.told["run"]
    assert first["attributes"]["ava.run.claim"] < second["attributes"]["ava.run.claim"]
    assert "ava.run.ending" not in first["attributes"] and first["status"] == "UNSET", "it was left, it did not fail"
    assert second["attributes"]["ava.run.ending"] == "success" == all_of_it.told["state"]


@pytest.mark.slow
def test_a_request_to_an_mcp_server_is_a_span_within_the_tool_call(made: Play) -> None:
    all_of_it = made(traced.another_server)
    assert all_of_it.told["state"] == "success"
    call = all_of_it.one("execute_tool mcp__lab__add")
    assert [span["name"] for span in all_of_it.below(call)] == ["MCP send tools/call add"]


@pytest.mark.slow
def test_a_failed_request_marks_its_span_and_only_the_host_gets_the_message(made: Play) -> None:
    all_of_it = made(traced.requests)
    assert "quokka" in all_of_it.told["said"], "the host is told what it gave"
    read = all_of_it.one("resources/read")
    assert read["status"] == "ERROR" and read["attributes"]["error.type"] == "-32602"


async def test_creates_no_spans_without_an_sdk(tmp_path: Path) -> None:
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider", "nobody has set one here"
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        run = await lab.ended(await lab.start())
        before = get_current()
        with telemetry.invoke_agent(run), telemetry.execute_tool("read_file", "call_1", run.id):
            assert get_current() is before, "nothing is handed down"
            assert not trace.get_current_span().is_recording()


@pytest.mark.slow
def test_the_server_does_not_import_an_sdk() -> None:
    ask = (
        "import sys, ava_server.service.runtime, ava_server.mcp_server.app; "
        "print([each for each in sys.modules if '.sdk' in each])"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_spans_record_only_the_kind_of_an_error() -> None:
    given = (ToolFailed("the quokka"), TimeoutError("the quokka"), ValueError("the quokka"))
    assert [telemetry.error_type(error) for error in given] == ["tool_error", "timeout", "ValueError"]


def test_replaces_free_text_in_single_word_fields_of_a_provider() -> None:
    words = ("stop", "tool_calls", "the quokka said stop", "x" * 65, "")
    assert [telemetry._word(word) for word in words] == ["stop", "tool_calls", "other", "other", "other"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Callable[..., Any]], Made]]:
    """Plays a scenario in a process that has an SDK, once for all tests."""
    kept: dict[str, Made] = {}

    def play(scenario: Callable[..., Any]) -> Made:
        name = scenario.__name__
        if name not in kept:
            command = [sys.executable, traced.__file__, str(tmp_path_factory.mktemp(name)), name]
            env = {**os.environ, "PYTHONPATH": str(TESTS)}
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
            assert done.returncode == 0, done.stderr
            kept[name] = Made(**json.loads(done.stdout.splitlines()[-1]))
        return kept[name]

    yield play
