"""`ava eval`: a run as a case, and a folder of recorded runs as a regression test with exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import anyio.to_thread
import pytest
from support.databases import write_config
from support.model_server import Say
from support.runs import plans
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.terminal import ava


async def test_a_folder_of_recorded_runs_is_a_regression_test(tmp_path: Path) -> None:
    async with open_suite(tmp_path) as suite:
        done = await suite.replay(str(suite.folder))
        assert done.returncode == 0, done
        assert done.stdout.endswith("\n2 recorded runs: 2 the same, 0 differ. No call was made.\n"), done


async def test_a_replay_with_a_worse_role_names_what_differs_first(tmp_path: Path) -> None:
    worse = tmp_path / "worse.md"
    worse.write_text("---\nname: researcher\ndescription: Finds facts.\nmodel: balanced\n---\nGuess.\n")
    async with open_suite(tmp_path) as suite:
        done = await suite.replay(suite.runs[0], "--role", str(worse))
        assert done.returncode == 1 and "First in turn 1: the system prompt" in done.stdout, done
        assert "\n  +Guess.\n" in done.stdout


async def test_a_replay_at_another_price_or_with_another_model_says_what_it_would_cost(tmp_path: Path) -> None:
    async with open_suite(tmp_path) as suite:
        dearer = PRICED.replace("input = 3.0", "input = 4.0")
        workspace = json.dumps(str(suite.lab.workspace))
        write_config(suite.lab.root, f"{dearer}\n[workspace]\nroots = [{workspace}]\n")
        run_id = suite.runs[0]
        done = await suite.replay(run_id)
        assert done.returncode == 0 and "custom:test has another price by now" in done.stdout, done
        done = await suite.replay(run_id, "--model", "openrouter:anthropic/claude-haiku-4.5")
        assert done.returncode == 1 and f"{run_id}: differs; its requests are the same.\n" in done.stdout, done
        cost = re.search(r"Cost: \$([\d.]+) before; about \$([\d.]+) now. Calls: (\d) before; \3 now.\n", done.stdout)
        assert cost is not None and float(cost[1]) == pytest.approx(3 * float(cost[2])), done


async def test_a_recording_that_cannot_be_replayed_is_a_fault_with_its_reason(tmp_path: Path) -> None:
    async with open_suite(tmp_path) as suite:
        hostile = hostile_recordings((suite.folder / f"{suite.runs[1]}.jsonl").read_text())
        for name, (content, _why) in hostile.items():
            (suite.folder / f"{name}.jsonl").write_text(content)
        (suite.folder / "endless.jsonl").symlink_to("/dev/zero")
        done = await suite.replay(str(suite.folder), "--json")
        assert done.returncode == 2, done
        said = json.loads(done.stdout)
        assert [run["same"] for run in said["runs"]] == [True, True]
        faults = {each["name"]: each["fault"] for each in said["faults"]}
        assert "it is not a regular file" in faults.pop("endless")
        assert list(faults) == sorted(hostile)
        for name, (_content, why) in hostile.items():
            assert why in faults[name], faults


@dataclass
class Suite:
    """A lab with two runs, and a folder in which each is recorded as a case."""

    lab: Lab
    folder: Path
    runs: list[str]

    async def replay(self, *args: str) -> CompletedProcess[str]:
        return await self.command("replay", *args)

    async def command(self, *args: str) -> CompletedProcess[str]:
        return await anyio.to_thread.run_sync(partial(ava, self.lab.root, "eval", *args))


@asynccontextmanager
async def open_suite(tmp_path: Path) -> AsyncGenerator[Suite]:
    """Record two runs as cases; in the end nothing that a test does may have called the model or written to the log."""
    answers = [Say(calls=[("scratchpad", {"note": "half of it"})]), hand_over()]
    async with open_lab(tmp_path, [*answers, *answers], config=PRICED) as lab:
        suite = Suite(lab, tmp_path / "suite", [await lab.start(), await lab.start()])
        for run_id in suite.runs:
            await lab.ended(run_id)
        asked, head = len(lab.server.requests), lab.store.head
        for run_id in suite.runs:
            done = await suite.command("add", run_id, "--to", str(suite.folder), "--contains", "the answer")
            assert done.returncode == 0 and f"Case {run_id}:" in done.stdout, done.stderr
        yield suite
        assert (len(lab.server.requests), lab.store.head) == (asked, head)


def hostile_recordings(text: str) -> dict[str, tuple[str, str]]:
    """Return what a recording may be turned into, by name, each with the reason that is told."""
    lines = text.splitlines(keepends=True)
    return {
        "approval": (text.replace('"max_iterations":', '"max_iterations":"many","n":'), "is not valid (1 validation"),
        "ending": ("".join(line for line in lines if "RunEnded" not in line), "it has not ended yet"),
        "nested": ("[" * 100_000, "1: it is not an entry of a log"),
        "no-line": ("not a line\n", "1: it is not an entry of a log"),
        "task": ("".join(line for line in lines if "UserMessage" not in line), "proposal, task or approval"),
        "wire": (text.replace('"wire":', '"wired":'), "it cannot be run again (KeyError('wire'))"),
    }


async def test_a_run_of_a_plan_becomes_a_case_and_is_replayed(tmp_path: Path) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        plan = await plans.finish(lab)
        suite = Suite(lab, tmp_path / "suite", [])
        rows = {row.step: row.id for row in await plans.rows(lab, plan.id)}
        asked = len(lab.server.requests)
        for step, run_id in rows.items():
            done = await suite.command("add", run_id, "--to", str(suite.folder), "--contains", "o")
            assert done.returncode == 0 and f"Case {run_id}:" in done.stdout, done.stderr
            left_out = "what other runs of its plan handed over to it: input 1"
            assert (left_out in done.stdout) == (step != "find"), done.stdout
            assert (await suite.replay(run_id)).returncode == 0
        done = await suite.replay(str(suite.folder))
        assert done.returncode == 0 and "\n3 recorded runs: 3 the same, 0 differ." in done.stdout, done
        refused = await suite.replay(plan.id)
        assert f"{plan.id}: a plan asks no model itself" in refused.stderr, refused
        assert len(lab.server.requests) == asked
