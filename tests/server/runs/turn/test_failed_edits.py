"""A subagent that misquotes a file again and again is told so, then ended; a restart does not forget the count."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_server import Gate, Say, Step, run_model_server
from support.repositories.coding import branches, coder_task
from support.repositories.projects import checkout, git
from support.runtime import Lab, hand_over, open_lab, wait_for
from support.sandboxes.attacks import needs_confinement

from ava_audit.events import GuardrailTripped, RunEnded, ToolResult

ORDER = {"role": "editor", "task": "Set x to 0.", "namespace": ["."], "verify": "true", "max_iterations": 30}
ROLE = "---\nname: editor\ndescription: Edits.\ntools: [read_file, edit_file, write_file]\n---\nEdit.\n"


@pytest.fixture(autouse=True)
def edited(tmp_path: Path) -> None:
    """A role that edits, and a file to edit."""
    (tmp_path / "data" / "roles").mkdir(parents=True, mode=0o700)
    (tmp_path / "data" / "roles" / "editor.md").write_text(ROLE)
    needs_confinement(tmp_path / "state")
    checkout(tmp_path / "workspace", {"a.py": "x = 1\ny = 2\n", "b.py": "x = 1\n"})


def misquotes(number: int, path: str = "a.py") -> tuple[str, dict[str, str]]:
    return "edit_file", {"path": path, "old": f"x = {number + 2}", "new": "x = 0"}


def fails(number: int, path: str = "a.py") -> Say:
    return Say(calls=[misquotes(number, path)])


async def run(lab: Lab, **more: object) -> str:
    run_id = await lab.start(**coder_task(**ORDER, **more))
    await lab.ended(run_id)
    return run_id


def kept(tmp_path: Path, run_id: str, path: str) -> str:
    """What a file is on the branch of a run."""
    return git(tmp_path / "workspace", "show", f"ava/{run_id}:{path}")


async def tripped(lab: Lab, run_id: str) -> list[tuple[str, str, str | None, int | None]]:
    facts = await lab.facts(run_id, GuardrailTripped)
    return [(fact.guardrail, fact.action, fact.tool, fact.count) for fact in facts]


@pytest.mark.requirement("S2-19")
async def test_warns_at_the_third_failed_edit_of_a_file_and_ends_the_run_at_the_fifth(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [*map(fails, range(9)), hand_over()]) as lab:
        run_id = await run(lab)
        results = await lab.facts(run_id, ToolResult)
        assert await tripped(lab, run_id) == [
            ("failed_edits", "told", "edit_file", 3),
            ("failed_edits", "ended", "edit_file", 5),
        ]
        assert (await lab.result(run_id))["status"] == "guardrail"
        [ended] = await lab.facts(run_id, RunEnded)
    assert ended.stop_reason == "5 failed edits of one file in a row"
    assert len(results) == 5 and not any(result.success for result in results)
    assert ["[the 3rd edit of this file in a row that failed" in result.output for result in results] == [
        *(False, False, True, False, False)
    ]
    assert "Nearest" in results[0].output and "     1  x = 1" in results[0].output


@pytest.mark.slow
async def test_a_successful_edit_resets_the_count_but_reading_does_not(tmp_path: Path) -> None:
    read = Say(calls=[("read_file", {"path": "a.py"})])
    good = Say(calls=[("edit_file", {"path": "./a.py", "old": "y = 2", "new": "y = 3"})])
    script = [*map(fails, range(4)), good, *map(fails, range(4, 7)), read, fails(7), fails(8), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        run_id = await run(lab)
        assert [(action, count) for _name, action, _tool, count in await tripped(lab, run_id)] == [
            *(("told", 3), ("told", 3), ("ended", 5)),
        ]
        assert len(await lab.facts(run_id, ToolResult)) == 11
    assert kept(tmp_path, run_id, "a.py") == "x = 1\ny = 3\n"


@pytest.mark.slow
async def test_counts_each_file_separately_even_under_different_paths(tmp_path: Path) -> None:
    script = [
        *(fails(number, path) for number in range(4) for path in ("a.py", "b.py")),
        Say(calls=[("write_file", {"path": "b.py", "content": "x = 0\n"})]),
        fails(5, "b.py"),
        fails(6, "././a.py"),
        hand_over(),
    ]
    async with open_lab(tmp_path, script) as lab:
        run_id = await run(lab)
        assert (await tripped(lab, run_id))[-1] == ("failed_edits", "ended", "edit_file", 5)
        assert len(await lab.facts(run_id, ToolResult)) == 11


async def test_repeating_the_same_failed_edit_also_ends_the_run_at_the_fifth(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [fails(0)] * 9) as lab:
        run_id = await run(lab)
        found = await tripped(lab, run_id)
        assert found[-1] == ("failed_edits", "ended", "edit_file", 5)
        assert (await lab.result(run_id))["status"] == "guardrail"
        assert len(await lab.facts(run_id, ToolResult)) == 5


async def test_skips_calls_after_the_fifth_failed_edit_in_the_same_answer(tmp_path: Path) -> None:
    more = ("write_file", {"path": "c.py", "content": "x"})
    async with open_lab(tmp_path, [Say(calls=[*map(misquotes, range(5)), more])]) as lab:
        run_id = await run(lab)
        results = await lab.facts(run_id, ToolResult)
    assert "Refused: a guardrail has ended this run" in results[-1].output
    assert branches(tmp_path / "workspace") == {}, "nothing was changed"


async def test_counts_edits_refused_for_their_path_but_not_invalid_edit_calls(
    tmp_path: Path,
) -> None:
    unusable = Say(calls=[("edit_file", {"path": "a.py", "old": "x"}), ("read_file", {"path": "a.py"})])
    secret = Say(calls=[("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = {{secret:KEY}}"})])
    outside = [Say(calls=[("write_file", {"path": ".git/x", "content": str(number)})]) for number in range(6)]
    async with open_lab(tmp_path, [unusable, secret, *map(fails, range(4)), *outside, hand_over()]) as lab:
        run_id = await run(lab)
        results = await lab.facts(run_id, ToolResult)
    refused = [result.output for result in results if "{{secret:" in result.output]
    assert refused and "writes no {{secret:" in refused[0]
    assert len(results) == 3 + 4 + 5
    assert branches(tmp_path / "workspace") == {}, "nothing was changed"


async def test_the_count_continues_when_another_server_takes_over_the_run(tmp_path: Path) -> None:
    gate = Gate()
    script: list[Step] = [*map(fails, range(3)), Say("lost", gate=gate), *map(fails, range(3, 9))]
    with run_model_server(script) as server:
        async with open_lab(tmp_path, server=server, check=False) as lab:
            run_id = await lab.start(**coder_task(**ORDER))
            await wait_for(gate.arrived)
        async with open_lab(tmp_path, server=server, check=False) as lab:
            await lab.ended(run_id)
            assert (await lab.run(run_id)).generation == 2
            assert await tripped(lab, run_id) == [
                ("failed_edits", "told", "edit_file", 3),
                ("failed_edits", "ended", "edit_file", 5),
            ]
            assert len(await lab.facts(run_id, ToolResult)) == 5
