"""What a proposal was made under counts in the terminal too: to extend and to resume it.

The terminal's own policy is looser. Without an approval PIN, a person chooses one there; a program is refused.
"""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from support.hosts.extensions import CAP, keep_noting
from support.hosts.stricter import ASK, UNDER, policy_of, start_stricter
from support.model_server import Gate, Say, run_model_server
from support.runtime import hand_over, open_lab, wait_for
from support.terminal import CONTROLLED, ava, run_on_terminal

from ava_audit.events import Answered, RunResumed

CHOOSES = "There is no approval PIN yet. Choose one now"


def text_at(root: Path, *args: str, answer: str = "") -> str:
    """Run a command on a terminal until it asks for the PIN, which is left with Ctrl-C; return the screen."""
    with run_on_terminal(root, *args, columns=200, command=CONTROLLED) as screen:
        if answer:
            screen.until("[y/N]")
            screen.type(f"{answer}\n")
        screen.until("(not shown)")
        screen.type("\x03")
        assert screen.ended() != 0
        return screen.text


@UNDER
async def test_the_terminal_extends_it_only_with_the_pin(tmp_path: Path, under: str) -> None:
    config, env = policy_of(under)
    async with open_lab(tmp_path, keep_noting, config=config, env=env) as lab:
        run_id = await start_stricter(lab, under, **CAP)
        await lab.logged(run_id, "Asked")
        (lab.root / "config.toml").write_text(ASK)
        shown = await anyio.to_thread.run_sync(lambda: text_at(lab.root, "approve", run_id, answer="y"))
        assert CHOOSES in shown and await lab.facts(run_id, Answered) == []
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)


@UNDER
async def test_the_terminal_resumes_it_only_with_the_pin(tmp_path: Path, under: str) -> None:
    config, env = policy_of(under)
    gate = Gate()
    with run_model_server([Say("lost", gate=gate), hand_over()]) as models:
        async with open_lab(tmp_path, server=models, config=config, env=env, check=False) as strict:
            run_id = await start_stricter(strict, under)
            await wait_for(gate.arrived)
        (strict.root / "config.toml").write_text(ASK)
        by_program = await anyio.to_thread.run_sync(ava, strict.root, "resume", run_id)
        assert by_program.returncode == 10, by_program.stderr
        assert 'it was proposed under approval = "human", so only a person at a terminal' in by_program.stderr
        assert CHOOSES in await anyio.to_thread.run_sync(text_at, strict.root, "resume", run_id)
        async with open_lab(tmp_path, server=models, config=ASK, runs=False, check=False) as lab:
            assert await lab.facts(run_id, RunResumed) == []
