"""What a proposal was made under counts on the pages too: to start, to extend and to resume it.

The server of the pages has a looser policy than the one under which it was proposed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hosts.extensions import CAP, keep_noting
from support.hosts.stricter import ASK, UNDER, policy_of, propose_stricter, start_stricter
from support.model_server import Gate, Say, run_model_server
from support.pages.lab_pages import Browser, serve_lab_pages
from support.runtime import Lab, hand_over, open_lab, wait_for

from ava_audit.events import Answered, RunResumed, SpawnDecided
from ava_server.config.pin import PinFile
from ava_server.runs.record import claims

PIN = "48 21 07"


async def assert_takes_the_pin(lab: Lab, browser: Browser, page: str, action: str, **fields: str) -> None:
    """A session that was opened from a terminal is not enough, although the policy here is `ask`."""
    shown = (await browser.get(page)).text
    assert "Choose your approval PIN" in shown
    refused = await browser.send(page, action, **fields)
    assert refused.status_code == 409 and "Choose an approval PIN" in refused.text
    PinFile(lab.runtime.settings.paths.approval_file).set(PIN)


@UNDER
async def test_a_page_starts_it_only_with_the_pin(tmp_path: Path, under: str) -> None:
    config, env = policy_of(under)
    with run_model_server([hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=config, env=env, runs=False) as strict:
            run_id, pending_id, _line = await propose_stricter(strict, under)
        async with open_lab(tmp_path, server=models, config=ASK) as lab, serve_lab_pages(lab) as browser:
            page = f"/proposals/{pending_id}"
            await assert_takes_the_pin(lab, browser, page, "/proposals", decision="approve")
            assert await lab.facts(run_id, SpawnDecided) == []
            answer = await browser.send(page, "/proposals", decision="approve", pin=PIN)
            assert answer.status_code == 303, answer.text
            assert (await lab.ended(run_id)).state == "success"


@UNDER
async def test_a_page_extends_it_only_with_the_pin(tmp_path: Path, under: str) -> None:
    config, env = policy_of(under)
    async with open_lab(tmp_path, keep_noting, config=config, env=env) as lab, serve_lab_pages(lab) as browser:
        run_id = await start_stricter(lab, under, **CAP)
        lab.runtime.settings = lab.runtime.settings.model_copy(update={"approval": "ask"})
        await lab.logged(run_id, "Asked")
        page, action = f"/subagents/{run_id}", f"/subagents/{run_id}/extension"
        await assert_takes_the_pin(lab, browser, page, action, decision="approve")
        assert await lab.facts(run_id, Answered) == []
        answer = await browser.send(page, action, decision="approve", pin=PIN)
        assert answer.status_code == 303, answer.text
        assert (await lab.ended(run_id)).state == "success"


@UNDER
async def test_a_page_resumes_it_only_with_the_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under: str) -> None:
    config, env = policy_of(under)
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=config, env=env, check=False) as strict:
            run_id = await start_stricter(strict, under)
            await wait_for(gate.arrived)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp_path, server=models, config=ASK, check=False) as lab, serve_lab_pages(lab) as browser:
            page, action = f"/subagents/{run_id}", f"/subagents/{run_id}/resume"
            await assert_takes_the_pin(lab, browser, page, action)
            assert await lab.facts(run_id, RunResumed) == []
            answer = await browser.send(page, action, pin=PIN)
            assert answer.status_code == 303, answer.text
            assert (await lab.ended(run_id)).state == "success"
