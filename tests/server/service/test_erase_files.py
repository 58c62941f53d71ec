"""What runs have read of files is erased with them, on each machine that kept it."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.logs.erasing import (
    run_erase,
    words_by_file,
)
from support.model_server import Say, Step
from support.runtime import hand_over, open_lab

WORKSPACE_WORDS = ("numbatlantern", "quollharbour")


async def test_the_texts_of_files_are_erased_with_the_run_that_read_them_or_all_at_once(tmp_path: Path) -> None:
    def searches(path: str) -> list[Step]:
        return [Say("x", [("search_and_read", {"query": "timetable", "path": path})]), hand_over()]

    async with open_lab(tmp_path, [*searches("one"), *searches("two"), *searches("two")], check=False) as lab:
        for name, word in zip(("one", "two"), WORKSPACE_WORDS, strict=True):
            (lab.workspace / name).mkdir()
            (lab.workspace / name / "a.txt").write_text(f"The timetable of the {word}.")
        runs: list[str] = []
        for _ in range(3):  # one after the other: each has its own steps
            runs.append(await lab.start())
            await lab.ended(runs[-1])
        assert set(words_by_file(lab.root, WORKSPACE_WORDS)) == set(WORKSPACE_WORDS)
        for run_id in runs[:2]:
            assert (await run_erase(lab.root, run_id, "--yes")).returncode == 0
        left = words_by_file(lab.root, WORKSPACE_WORDS)
        assert set(left) == {WORKSPACE_WORDS[1]}, "the third run read it, too"
        assert any(name.startswith("texts.db") for name in left[WORKSPACE_WORDS[1]])
        done = await run_erase(lab.root, "--cache", "--yes")
        assert done.stdout.endswith("Erased: 1 text of files.\n"), done.stderr
        left = words_by_file(lab.root, WORKSPACE_WORDS)
        assert not any(name.startswith("texts.db") for names in left.values() for name in names)
        both = await run_erase(lab.root, runs[2], "--cache", "--yes")
        assert (both.returncode, "Give either a subagent" in both.stderr) == (2, True)


async def test_texts_that_another_machine_kept_are_erased_there_after_the_run(tmp_path: Path) -> None:
    script = [Say("x", [("search_and_read", {"query": "timetable"})]), hand_over()]
    async with open_lab(tmp_path, script, check=False) as lab:
        (lab.workspace / "a.txt").write_text(f"The timetable of the {WORKSPACE_WORDS[0]}.")
        run_id = await lab.start()
        await lab.ended(run_id)
    kept = shutil.copy(lab.root / "texts.db", tmp_path)
    assert (await run_erase(lab.root, run_id, "--yes")).returncode == 0
    shutil.copy(kept, lab.root / "texts.db")
    there = await run_erase(lab.root, run_id, "--yes")
    assert "already erased" in there.stderr and "nothing is left" not in there.stderr
    assert there.stdout.endswith("Erased: 1 text of files that only it read.\n")
    again = await run_erase(lab.root, run_id, "--yes")
    assert "nothing is left to erase" in again.stderr and "Erased" not in again.stdout
