"""A plan whose approval took steps or tools away: each surface shows it, with what was taken."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.pages.lab_pages import serve_lab_pages
from support.runs import plans
from support.runtime import PRICED, open_lab
from support.terminal import ava

DROP = ({"drop": ["read"]}, ["without the steps", "read", "write"])
BLOCK = ({"blocked_tools": ["read_file", "search_codebase"]}, ["without the tools", "read_file", "search_codebase"])
BOTH = ({"drop": ["write"], "blocked_tools": ["read_file"], "caps": {"max_cost_cents": 60}}, ["the step ", "the tool "])


@pytest.mark.parametrize(("changes", "words"), [DROP, BLOCK, BOTH], ids=["drop", "blocked_tools", "both"])
async def test_an_approval_that_takes_away_is_shown_with_what_it_took(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    async with open_lab(tmp_path, plans.write_notes, config=PRICED) as lab:
        proposal = await plans.propose(lab)
        assert (await lab.approve(proposal, changes={proposal.pending_id: changes})).status == "approved"
        plan = await lab.ended(proposal.group_id)
        for command in (("show", plan.id), ("show", plan.id, "--log"), ("report", "approvals")):
            done = await anyio.to_thread.run_sync(partial(ava, lab.root, *command))
            assert done.returncode == 0, done.stderr
            if command == ("show", plan.id):
                assert all(word in done.stdout for word in words), done.stdout
        async with serve_lab_pages(lab) as browser:
            page = await browser.get(f"/subagents/{plan.id}")
            assert page.status_code == 200 and all(word in page.text for word in words), page.text
