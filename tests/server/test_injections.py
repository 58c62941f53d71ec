"""Text that was written to steer a model goes through every tool that returns foreign text, and arrives as data."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import hand_over, open_lab
from support.model_server import Say
from support.web_site import Page, site

from ava_audit.events import ToolResult


@pytest.mark.parametrize("tool", ["read_webpages", "http_get"])
async def test_the_wrapper_says_how_many_invisible_characters_were_taken_out(tmp_path: Path, tool: str) -> None:
    async with site({"/x": Page("one\u200b two\u202e three", content_type="text/plain")}) as web:
        args = {"urls": [web.url("/x")]} if tool == "read_webpages" else {"url": web.url("/x")}
        async with open_lab(tmp_path, [Say(calls=[(tool, args)]), hand_over()]) as lab:
            lab.house.fetcher = web.fetcher
            run_id = await lab.start(role="web_crawler", task=f"Read {web.url('/x')}")
            await lab.ended(run_id)
            result, _handed_over = await lab.facts(run_id, ToolResult)
    assert result.output.split("\n")[0].endswith(' invisible_characters_removed="2">')
    assert "one two three" in result.output
