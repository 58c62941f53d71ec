"""Every surface that draws a run's steps shows an answer that the provider refused: its words, and what was written."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from html import unescape
from pathlib import Path

import anyio.to_thread
import pytest
from support.commands.dashboard import live_app, wait_until_shown
from support.model_server import Fail
from support.pages.lab_pages import serve_lab_pages
from support.runtime import Lab, connect, hand_over, open_lab
from support.terminal import ava

REFUSED = {
    "message": "Tool call validation failed",
    "code": "tool_use_failed",
    "failed_generation": '{"name": "read_file", "arguments": {"foo": "bar"}}',
}


SURFACES: Mapping[str, Callable[[Lab, str], Awaitable[str]]] = {
    "ava show": lambda lab, run: by_command(lab, "show", run),
    "ava logs": lambda lab, run: by_command(lab, "logs", run),
    "the run's page": lambda lab, run: by_page(lab, f"/subagents/{run}"),
    "the page of the log": lambda lab, run: by_page(lab, f"/events?run={run}"),
    "the run as a resource": lambda lab, run: by_resource(lab, f"ava://runs/{run}"),
    "its transcript as a resource": lambda lab, run: by_resource(lab, f"ava://runs/{run}/transcript"),
    "the dashboard": lambda lab, _run: by_dashboard(lab),
}


@pytest.mark.parametrize("draw", SURFACES.values(), ids=SURFACES)
async def test_an_answer_that_the_provider_refused_is_drawn(
    tmp_path: Path, draw: Callable[[Lab, str], Awaitable[str]]
) -> None:
    async with open_lab(tmp_path, [Fail(400, json.dumps({"error": REFUSED}).encode()), hand_over()]) as lab:
        run_id = await lab.start()
        await lab.ended(run_id)
        drawn = " ".join((await draw(lab, run_id)).split())
    assert "refused by the provider" in drawn and "Tool call validation failed" in drawn
    assert 'had written: {"name": "read_file", "arguments": {"foo"' in drawn


async def by_command(lab: Lab, *words: str) -> str:
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, *words, env={"COLUMNS": "400"}))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def by_page(lab: Lab, address: str) -> str:
    async with serve_lab_pages(lab) as browser:
        return unescape((await browser.get(address)).text)


async def by_resource(lab: Lab, address: str) -> str:
    async with connect(lab.root.parent, server=lab.server) as (client, _server):
        [content] = (await client.read_resource(address)).contents
        return str(getattr(content, "text", "")).replace('\\"', '"')


async def by_dashboard(lab: Lab) -> str:
    async with live_app(lab, 300, 40) as (app, pilot):
        await pilot.press("enter")
        return "\n".join(await wait_until_shown(app, "Steps: turn"))
