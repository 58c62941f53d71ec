"""Make the picture of the README, examples/demo.svg, from a real run of `ava demo`: `python scripts/demo_picture.py`.

The demo runs over examples/notes, in a terminal of 88 columns so that the text is legible at a width of 800 pixels, and
is answered as a person would answer. Folders, ids and times are replaced by fixed ones. tests/test_demo_picture.py runs
the demo again and compares.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
from io import StringIO
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "examples" / "demo.svg"
QUESTION = "What does each provider charge for a payment?"
COMMAND = f'ava demo notes --task "{QUESTION}"'
COLUMNS = 88
_HEADING = re.compile(r"^(-- .+ --)$")
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_PREFIX = "ava-picture-"


def lines() -> list[str]:
    """Run the demo, and return what is on the screen when it has ended."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir="/tmp") as place:  # a short path, which no line breaks
        notes = Path(place).resolve() / "notes"
        shutil.copytree(REPOSITORY / "examples" / "notes", notes)
        shown = _on_terminal(["demo", str(notes), "--task", QUESTION], notes.parent)
    screen = [line.rpartition("\r\x1b[K")[2] for line in shown.replace("\r\n", "\n").rstrip().split("\n")]
    _proposal, _approval, _running, result, record, _next = (
        at for at, line in enumerate(screen) if _HEADING.match(line)
    )
    drawn = [_one_form(line) for line in screen[result:record]]  # laid out for these columns as it is
    return [f"$ {COMMAND}", *_broken_anew(screen[:result]), *drawn, *_broken_anew(screen[record:])]


def plain(line: str) -> str:
    """Return a line without its styles."""
    return _STYLE.sub("", line)


def svg(screen: list[str]) -> str:
    """Return the lines as a picture."""
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
    decoder = AnsiDecoder()  # a style may go on in the next line
    for line in screen:
        style = "bold cyan" if _HEADING.match(line) else "bold green" if line.startswith("$ ") else ""
        text = decoder.decode_line(line)
        text.stylize(style)
        console.print(text, soft_wrap=True)
    return console.export_svg(title="ava demo", theme=MONOKAI, unique_id="ava-demo")


def _on_terminal(args: list[str], folder: Path) -> str:
    """Run a command on a terminal, say yes to its question, and return all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "TERM": "xterm", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "ava_server", *args]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written, asked = b"", False
        while data := _read(ours):
            written += data
            if not asked and b"Start it?" in written:
                asked = True
                os.write(ours, b"y\n")
    os.close(ours)
    text = written.decode("utf-8", "replace")
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}:\n{text}")
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux says so when the other end is closed
        return b""


def _broken_anew(screen: list[str]) -> list[str]:
    """Bring lines into one form, and break anew what the length of a folder has broken."""
    whole: list[str] = []
    for line in screen:
        if line.startswith("  ") and not line.startswith("   ") and whole:
            whole[-1] += line[1:]
        else:
            whole.append(line)
    broken = [
        textwrap.wrap(_one_form(line), COLUMNS, subsequent_indent="  ", break_on_hyphens=False) or [""]
        for line in whole
    ]
    return [part for parts in broken for part in parts]


def _one_form(line: str) -> str:
    """Give the folders, ids and times of a line one form."""
    for pattern, instead in (
        (rf"/tmp/{_PREFIX}\w+/ava-demo-\w+", "/tmp/ava-demo"),
        (rf"/tmp/{_PREFIX}\w+", "/home/you"),
        (r"\S+/ava (key|init) ", r"ava \1 "),
        (r"S-[0-9a-f]{6}\b", "S-7f3a2b"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "2026-11-21 09:30:00Z"),
        (r"\d+ s of 600 s", "1 s of 600 s"),
    ):
        line = re.sub(pattern, instead, line)
    return line


if __name__ == "__main__":
    PICTURE.write_text(svg(lines()), encoding="utf-8")
