"""What a person is shown of a plan in one line: its name, its caps, and the reach of all of its steps together."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories.projects import checkout
from support.runs import plans
from support.runtime import PRICED, open_lab

from ava_audit.units import minutes
from ava_server.run_config.config import config_of

NAMES = {
    "x\uff1a 3 steps\uff0c at most \uff040.01": "x 3 steps at most 0.01",
    "x\u2236 1 step\u201a \ufe690.01\ua789": "x 1 step 0.01",
    "x\ufe13 free\u02d0 \u20ac1 \uff02 \u00ab\u0589": "x free 1",
    'x": 1 step, free; $0': "x 1 step free 0",
    "Größe 2, Vertrag (neu) & 契約 v1.2": "Größe 2 Vertrag (neu) & 契約 v1.2",
}
"""Names that look like the rest of their line, and what the line has of them."""


@pytest.mark.parametrize("name", list(NAMES))
async def test_a_name_cannot_look_like_the_rest_of_its_line(tmp_path: Path, name: str) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        proposal = await plans.propose(lab, name=name)
    assert proposal.approval_line.startswith(f'plan "{NAMES[name]}": 3 steps, up to 5 runs, at most $2.50 and ')


async def test_the_reach_of_several_folders_is_said_as_if_one_run_could_do_it_all(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        first, second = lab.workspace / "first", lab.workspace / "second one"
        first.mkdir()
        second.mkdir()
        steps = [
            plans.step("one", "Read it.", workspace=str(first), tools=["read_file"]),
            plans.step("two", "Read that.", workspace=str(second), tools=["read_file"]),
            plans.step("send", "Ask about {{one}}.", tools=["read_webpages"]),
        ]
        proposal = await lab.call("spawn_subagent", steps=steps)
        assert proposal.status == "awaiting_approval", proposal.message
        line = proposal.approval_line
        assert f'can read {first} and "{second}", reach the web' in line
        assert ";" not in line


CODER = {"role": "coder", "namespace": ["a.py"], "verify": "true", "context": "None."}


async def test_a_folder_that_is_changed_is_told_apart_from_those_that_are_read(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        repository = checkout(lab.workspace / "repository", {"a.py": "x = 1\n"})
        notes = lab.workspace / "notes"
        notes.mkdir()
        steps = [
            plans.step("look", "Read it.", workspace=str(notes)),
            {**plans.step("change", "Change it, by {{look}}."), **CODER, "workspace": str(repository)},
        ]
        proposal = await lab.call("spawn_subagent", steps=steps)
        assert proposal.status == "awaiting_approval", proposal.message
        assert f"can read {repository}, change a.py on a new branch of it, read {notes}, reach the web" in (
            proposal.approval_line
        )
        assert "on worktrees and copies of them" in proposal.approval_line


async def test_a_cost_cap_that_its_runs_cannot_reach_is_lowered_aloud(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab:
        lowered = await plans.propose(lab, max_cost_cents=1_000_000)
        kept = await plans.propose(lab, max_cost_cents=100)
        config = config_of((await lab.run(lowered.group_id)).config)
    assert "at most $2.50" in lowered.approval_line and config.clamped
    assert "Max_cost_cents was asked as $10000.00, and lowered to what its runs may cost, $2.50." in lowered.message
    assert "at most $1.00" in kept.approval_line and "lowered" not in kept.message


def test_a_long_time_is_told_in_whole_seconds() -> None:
    assert [minutes(2_000_000), minutes(90), minutes(0.5)] == ["2,000,000 s", "90 s", "0.5 s"]
