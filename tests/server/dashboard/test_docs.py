"""The documentation of `ava status`: its examples for jq work, and it quotes the live screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.commands.dashboard import look, plain_lines, sandbox_of
from support.repository import REPOSITORY
from support.runtime import PRICED, hand_over, open_lab

from ava_server.cli.status_overview import current_json, health, health_json
from ava_server.cli.terminal import cells
from ava_server.dashboard.live import KEYS, LivePage
from ava_server.service.current import Budget, CurrentRuns
from ava_server.service.run_records import CurrentViews

# -- health -----------------------------------------------------------------------------------------------------------


# -- the log is left alone --------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq here")
async def test_the_jq_examples_of_the_docs_work(tmp_path: Path) -> None:
    page_of_docs = (REPOSITORY / "docs" / "monitoring.md").read_text("utf-8")
    filters = re.findall(r"^ava status --json \| jq '(.*)'$", page_of_docs, re.MULTILINE)
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        await lab.outcome()
        settings, overview = lab.runtime.settings, await look(lab)
    health_now = health_json(overview, health(overview, settings, sandbox_of("none")), sandbox_of("none"))
    text = json.dumps({**current_json(overview.now), "health": health_now})

    def jq(words: str) -> list[dict[str, Any]]:
        done = subprocess.run(["jq", "-c", words], input=text, capture_output=True, text=True, check=True, timeout=10)
        return [json.loads(line) for line in done.stdout.splitlines()]

    runs, findings = [await anyio.to_thread.run_sync(jq, one) for one in filters]
    assert [(run["state"], run["cost"]["cap"]) for run in runs] == [("success", 50)]
    assert [one["name"] for one in findings] == ["confinement"]


def test_the_docs_quote_the_live_screen() -> None:
    page_of_docs = (REPOSITORY / "docs" / "monitoring.md").read_text("utf-8")
    quoted = page_of_docs.partition("```text\n")[2].partition("\n```")[0].split("\n")
    assert max(map(cells, quoted)) == 79, "a column of 80 is the scroll bar's"
    assert len(quoted) == 24
    assert quoted[-1] in KEYS
    (budget,) = (line for line in quoted if "everybody" in line)
    spent: CurrentViews = CurrentRuns(0, {}, (), (Budget("everybody", 200_000, 510_000, 25_000_000),))
    assert [budget] == plain_lines(list(LivePage("/srv/ava", spent, (), 79).today_lines(short=True)))
