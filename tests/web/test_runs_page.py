"""The page of one run and the list of runs, over HTTP and from a real log."""

from __future__ import annotations

from pathlib import Path

from support.lab_pages import serving_pages
from support.runtime import PRICED, open_lab, submits


async def test_an_ended_run_shows_its_task_its_approval_and_its_result(tmp_path: Path) -> None:
    script = [submits("# The answer\n\nSee `a.py`", summary="It costs **12**")]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serving_pages(lab) as browser:
        run_id = await lab.start(task="What does it cost?", context="in euros")
        await lab.ended(run_id)
        page = await browser.get(f"/subagents/{run_id}")
        assert page.status_code == 200, page.text
        print(page.text)
