"""The exit code of each ending, for scripts that wait for it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, Gate, Say, Script
from support.runtime import PRICED, open_lab, submit
from typer.testing import CliRunner

from ava_audit.events import ENDINGS
from ava_server.approval.requests import SpawnArgs
from ava_server.cli.app import build
from ava_server.cli.options import name_options
from ava_server.cli.results import exit_code

NOTE = Say("", [("scratchpad", {"note": "a"})])


def always(step: Say) -> Callable[[dict[str, Any]], Say]:
    return lambda _request: step


ENDS: dict[str, tuple[int, Script, dict[str, Any]]] = {
    "success": (0, [submit()], {}),
    "no_answer": (17, [], {"model": "offline", "task": "Where do zebras sleep?"}),
    "cost_exceeded": (11, always(replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 90_000})), {}),
    "token_exceeded": (
        11,
        always(replace(NOTE, usage={"prompt_tokens": 9_000, "completion_tokens": 500})),
        {"max_tokens": 40_000},
    ),
    "timeout": (12, [NOTE, Say("late", gate=Gate()), submit()], {"timeout": 4}),
    "iteration_limit": (13, always(NOTE), {"max_iterations": 1}),
    "tool_limit": (13, always(NOTE), {"max_tool_calls": 1, "max_iterations": 10}),
    "guardrail": (14, always(Say("", [("read_file", {"path": "n.md"})])), {"max_iterations": 40, "max_tool_calls": 90}),
    "error": (20, [Fail(400)], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDS)
async def test_each_ending_of_a_run_has_its_exit_code(tmp_path: Path, ending: str) -> None:
    code, script, caps = ENDS[ending]
    async with open_lab(tmp_path, script, config=PRICED, check=False) as lab:
        (lab.workspace / "n.md").write_text("# Notes\n")
        run_id = await lab.start(**caps)
        run = await lab.ended(run_id)
    assert (run.state, exit_code(run)) == (ending, code)


async def test_other_endings_and_each_kind_of_error_have_an_exit_code(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say("", gate=Gate())], check=False) as lab:
        run_id = await lab.start()
        await lab.call("cancel_subagent", subagent_id=run_id)
        cancelled = await lab.run(run_id)
        rejected = await lab.propose()
        await lab.call("confirm_spawn", pending_ids=[rejected.pending_id], decision="reject")
        assert exit_code(cancelled) == 15
        assert exit_code(await lab.run(rejected.subagent_id)) == 10
    others = {"expired": 10, "superseded": 10, "abandoned": 16, "partial": 18}
    assert {state: exit_code(replace(cancelled, state=state)) for state in others} == others
    ours = {"verification": 21, "unread": 22, "workshop": 30, "internal": 70, "store": 70}
    kinds = {**ours, "overloaded": 20, "refusal": 20}
    errors = {kind: exit_code(replace(cancelled, state="error", error_kind=kind)) for kind in kinds}
    assert errors == kinds
    assert {*ENDS, *others, "cancelled", "rejected"} == set(ENDINGS)


def test_every_argument_of_a_spawn_can_be_given_on_the_command_line() -> None:
    shown = CliRunner().invoke(build(["run"]), ["run", "--help"], env={"COLUMNS": "300"}).output
    for field in SpawnArgs.model_fields.keys() - {"ask"}:  # the command always asks
        named = name_options(f"{field}: wrong").partition(":")[0]
        option = rf"^  (?:-\w, )?{re.escape(named)}\b"
        assert re.search(option, shown, re.MULTILINE | re.IGNORECASE), f"{field} has no option"
