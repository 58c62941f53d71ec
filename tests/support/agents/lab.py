"""A house in which another coding agent does the runs: a scripted one, behind the real gateway, in the sandbox."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.model_server import Say, Script
from support.runtime import Lab, open_lab

SCRIPTED = Path(__file__).with_name("scripted_agent.py")
MODEL = "far:far-sonnet"
USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}
"""What a provider tells of a call of the scripted agent, which has some 600 bytes at first."""


def agent_config(folder: Path, base_url: str, more: str = "") -> str:
    """The settings: a priced model that speaks Anthropic's format, and the agent `scripted`."""
    program = folder / "scripted-agent"
    shutil.copy(SCRIPTED, folder / "scripted_agent.py")
    script = str(folder / "scripted_agent.py")
    lines = ("import runpy, sys", f"sys.argv[0] = {script!r}", f"runpy.run_path({script!r}, run_name='__main__')")
    program.write_text("\n".join((f"#!{sys.executable} -I", *lines, "")))
    program.chmod(0o755)
    return f"""{more}
[providers.far]
base_url = "{base_url}"
wire = "messages"
[prices."{MODEL}"]
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75
[agents.scripted]
title = "The scripted agent"
command = ["{program}", "{folder / "script.json"}"]
wires = ["messages"]
variables = {{ ANTHROPIC_BASE_URL = "{{base}}", ANTHROPIC_API_KEY = "{{secret}}", ANTHROPIC_MODEL = "{{model}}" }}
off = ["CronCreate"]
first_bytes = 600
[sandbox]
read_only = ["{folder}"]
"""


@asynccontextmanager
async def agent_lab(
    tmp: Path,
    answers: Script,
    prompts: Sequence[Sequence[dict[str, Any]]],
    more: str = "",
    provider: str | None = None,
    **options: Any,
) -> AsyncGenerator[Lab]:
    """Open a house whose agent takes these steps for each prompt; `answers` are those of the model behind it.

    `provider` is the address of another one in its place.
    """
    from support.model_server import run_model_server

    folder = tmp / "installed"
    folder.mkdir(parents=True)
    (folder / "script.json").write_text(json.dumps({"prompts": prompts, **options}))
    with run_model_server(answers) as far:
        config = agent_config(folder, provider or far.base_url, more)
        async with open_lab(tmp, config=config, server=far, env={"AVA_FAR_API_KEY": "k"}, check=False) as lab:
            yield lab


def agent_run(**more: Any) -> dict[str, Any]:
    return {"role": "code_reviewer", "runner": "acp:scripted", "model": MODEL, **more}


SUBMIT: dict[str, Any] = {
    "ava": "submit_result",
    "args": {"summary": "It costs twelve cents.", "output": "twelve cents", "confidence": 0.9},
}


def priced_agent(text: str = "ok", prompt: int = 900, output: int = 50, calls: Any = ()) -> Say:
    """An answer that is billed with so many tokens."""
    return Say(text, calls=calls, usage={"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0})


async def run_agent(lab: Lab, within_s: float = 60, **more: Any) -> tuple[str, dict[str, Any]]:
    """Start a run of the scripted agent, and return it with its result."""
    run_id = await lab.start(**agent_run(**more))
    await lab.ended(run_id, within_s)
    return run_id, await lab.result(run_id)
