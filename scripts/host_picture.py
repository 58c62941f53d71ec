"""Make the picture of an approval in a host, examples/approval.svg: `python scripts/host_picture.py`.

Claude Code runs in a terminal of 84 columns, with a scripted model and Ava as `ava init` connects it, and shows Ava's
question. The picture is that form as it stands on the screen; only the folder's name is replaced, by one of the same
length. It needs what `python scripts/real_hosts.py` installs, and tmux. tests/hosts/test_claude_code.py draws the
question again and compares; tests/test_first_screen.py compares with what Ava asks.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.hosts.claude_code import (  # noqa: E402
    DELEGATE,
    FORM,
    ClaudeCode,
    Orchestrator,
    delegation_rule,
    open_claude_code,
    tmux,
)
from support.model_server import Say, run_model_server  # noqa: E402

PICTURE = REPOSITORY / "examples" / "approval.svg"
COLUMNS, ROWS = 84, 40
WIDTH = 600
"""Pixels in the README, so that the commands are on the same screen."""
TASK = "What does Otter charge for each payment?"
TOOLS = ("read_file", "find_files", "search_and_read")
CENTS = 30
NOTES = "/home/you/notes"
"""What the picture calls the folder."""
ENDS = "Esc to cancel"
"""The last line of a form."""


def screen() -> list[str]:
    """Return the lines of the form on Claude Code's screen, with their styles."""
    with (
        _folder() as notes,
        tempfile.TemporaryDirectory(prefix="ava-picture-") as place,
        run_model_server([Say("Never asked.")]) as models,
        open_claude_code(
            Path(place), Orchestrator(delegation_rule(spawn(notes))), models, size=(COLUMNS, ROWS)
        ) as host,
    ):
        host.type(DELEGATE)
        host.until_shown(FORM, ENDS)
        return [line.replace(notes, NOTES) for line in _form(host)]


def spawn(folder: str) -> dict[str, Any]:
    """Return the arguments of the proposal."""
    return {"role": "researcher", "task": TASK, "workspace": folder, "max_cost_cents": CENTS, "tools": [*TOOLS]}


@contextmanager
def _folder() -> Generator[str]:
    """Yield the path of a copy of the notes; it is as long as that in the picture, so that no line breaks elsewhere."""
    place = Path(f"/tmp/{secrets.token_hex(2)}")
    place.mkdir()
    try:
        notes = str(shutil.copytree(REPOSITORY / "examples" / "notes", place / "notes"))
        assert len(notes) == len(NOTES)
        yield notes
    finally:
        shutil.rmtree(place)


def _form(host: ClaudeCode) -> list[str]:
    """Return the lines from the rule above the form to its last one."""
    plain = host.screen.split("\n")
    styled = tmux(host.socket, "capture-pane", "-p", "-e").stdout.replace("\xa0", " ").split("\n")
    (title,) = [at for at, line in enumerate(plain) if FORM in line]
    (end,) = [at for at, line in enumerate(plain) if ENDS in line]
    return styled[title - 1 : end + 1]


def plain(lines: list[str]) -> list[str]:
    """Return lines without their styles."""
    decoder = AnsiDecoder()
    return [decoder.decode_line(line).plain.rstrip() for line in lines]


def svg(lines: list[str]) -> str:
    """Return the lines as a picture."""
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
    decoder = AnsiDecoder()  # a style may go on in the next line
    for line in lines:
        console.print(decoder.decode_line(line), soft_wrap=True)
    picture = console.export_svg(title="Claude Code", theme=MONOKAI, unique_id="ava-approval")
    return picture.replace("<svg ", f'<svg width="{WIDTH}" ', 1)


if __name__ == "__main__":
    PICTURE.write_text(svg(screen()), encoding="utf-8")
