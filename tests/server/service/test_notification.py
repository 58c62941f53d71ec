"""A notification on the desktop says that a subagent waits, where its host is not known to show it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import pytest
from support.runtime import PRICED, connect
from support.stdio import read_answer, until

from ava_server.service import event_hook, runtime
from ava_server.service.event_hook import desktop_program, notice_of

SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Ask Ada about sk-live-7", "max_cost_cents": 20}
PROGRAM = """
import json, os, sys
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(sys.argv[2:]) + "\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more", "shown"), [
    ("a host", "", True), ("ava-command-line", "", False), ("a host", "desktop_notifications = false\n", False),
])  # fmt: skip
async def test_a_person_hears_of_what_they_approve_in_ava(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: str, shown: bool
) -> None:
    script, heard = tmp_path / "shows.py", tmp_path / "heard"
    script.write_text(PROGRAM)
    monkeypatch.setattr(runtime, "desktop_program", lambda: (sys.executable, "-I", str(script), str(heard)))
    async with connect(tmp_path, config=f'approval = "by_host"\n{more}{PRICED}', name=name) as (client, _models):
        made = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
        if shown:
            await until(heard.exists)
        else:
            await anyio.sleep(1.5)
        lines = heard.read_text().splitlines() if heard.exists() else []
    assert len(lines) == shown
    for title, text in map(json.loads, lines):
        assert title == "Ava: a subagent waits for you" and f"ava approve {made['pending_id']}" in text
        assert "$0.20" in text and "Ada" not in text and "code" not in text, "others may see the screen"


def test_without_a_desktop_there_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "notify-send"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setattr(event_hook, "_LINUX", str(tmp_path))
    assert desktop_program({"PATH": str(tmp_path)}, "linux") is None
    assert desktop_program({"DISPLAY": ":0"}, "linux") == (str(tool), "--app-name=Ava", "--")
    monkeypatch.setattr(event_hook, "_LINUX", str(tmp_path / "nowhere"))
    assert desktop_program({"DISPLAY": ":0", "PATH": str(tmp_path)}, "linux") is None, "a project's own is not run"
    for system in ("darwin", "win32"):
        program = desktop_program({}, system)
        assert (program is not None and Path(program[0].replace("\\", "/")).is_absolute()) or system == "win32"


def test_an_end_needs_no_notification() -> None:
    event = {"event": "ended", "role": "x", "max_cost_cents": 0.0, "pending_id": "P-1", "subagent_id": "S-1"}
    assert notice_of(event) is None
    assert notice_of({**event, "event": "awaiting_approval"}) == (
        "Ava: a subagent waits for you", 'the role "x", free. Open the link in your host, or run: ava approve P-1',
    )  # fmt: skip


@pytest.mark.parametrize(("cents", "price"), [(32.55, "$0.3255"), (0.31, "$0.0031"), (50.0, "$0.50")])
def test_a_notification_names_the_cap_unrounded(cents: float, price: str) -> None:
    event = {"event": "awaiting_approval", "role": "x", "max_cost_cents": cents, "pending_id": "P-1"}
    shown = notice_of(event)
    assert shown is not None and f'the role "x", at most {price}. ' in shown[1]
