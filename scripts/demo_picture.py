"""Make the picture of the README, examples/demo.svg, from a real run of `ava demo`: `python scripts/demo_picture.py`.

The demo runs over examples/notes, in a terminal of 88 columns so that the text is legible at a width of 800 pixels, and
is answered as a person would answer. The picture shows the parts one after another, as they came, with time to read
each, three times; then all of it stays. Folders, ids and times are replaced by fixed ones. tests/test_demo_picture.py
runs the demo again and compares.
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
import time
from io import StringIO
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "examples" / "demo.svg"
QUESTION = "What does Otter charge for each payment?"
COMMAND = f'ava demo notes --task "{QUESTION}"'
COLUMNS = 88
_HEADING = re.compile(r"^(-- .+ --)$")
_ANSWER = "Start it? [y/N] (more: m) y"
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_PREFIX = "ava-picture-"
_READING_S = (1.0, 0.5, 6.0, 0.5, 5.0, 3.0, 6.0)
"""Time to read the command, the start, and what stands under each heading."""
_WAIT_S = 1.5
"""No wait in the picture is longer, however busy the machine was."""


def lines() -> list[str]:
    """Run the demo, and return what is on the screen when it has ended."""
    return recording()[0]


def recording() -> tuple[list[str], list[float]]:
    """Run the demo; return what is on the screen at its end, and how many seconds each part took to come."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir="/tmp") as place:  # a short path, which no line breaks
        notes = Path(place).resolve() / "notes"
        shutil.copytree(REPOSITORY / "examples" / "notes", notes)
        shown, arrived = _on_terminal(["demo", str(notes), "--task", QUESTION], notes.parent)
    screen = [line.rpartition("\r\x1b[K")[2] for line in shown.replace("\r\n", "\n").rstrip().split("\n")]
    _proposal, _running, result, record, _next = (at for at, line in enumerate(screen) if _HEADING.match(line))
    drawn = [_one_form(line) for line in screen[result:record]]  # laid out for these columns as it is
    parts = [0, *(shown.index(line) for line in screen if _HEADING.match(line))]
    came = [next(seconds for length, seconds in arrived if length > part) for part in parts]
    took = [after - before for before, after in zip([0.0, *came], came, strict=False)]
    return [f"$ {COMMAND}", *_broken_anew(screen[:result]), *drawn, *_broken_anew(screen[record:])], took


def plain(line: str) -> str:
    """Return a line without its styles."""
    return _STYLE.sub("", line)


def svg(screen: list[str], took: list[float] | None = None) -> str:
    """Return the lines as a picture, which moves if it is told how long each part took."""
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
    decoder = AnsiDecoder()  # a style may go on in the next line
    for line in screen:
        style = "bold cyan" if _HEADING.match(line) else "bold green" if line.startswith("$ ") else ""
        text = decoder.decode_line(line)
        text.stylize(style)
        if line.endswith(_ANSWER):
            text.stylize("bold green", len(text) - 1)  # a text of its own in the picture, which can come later
        console.print(text, soft_wrap=True)
    picture = console.export_svg(title="ava demo", theme=MONOKAI, unique_id="ava-demo")
    return picture if took is None else picture.replace("</style>", f"{_animation(screen, took)}</style>", 1)


def _animation(screen: list[str], took: list[float]) -> str:
    """Return the rules by which each part of the picture appears."""
    starts = [0, 1, *(at for at, line in enumerate(screen) if _HEADING.match(line)), len(screen)]
    moments = [0.0]
    for seconds, reading in zip(took, _READING_S, strict=False):
        moments.append(moments[-1] + min(seconds, _WAIT_S) + reading)
    whole = moments[-1] + _READING_S[-1]
    rules = ["@media (prefers-reduced-motion: no-preference) {"]
    for part, moment in enumerate(moments):
        selected = [f'[clip-path="url(#ava-demo-line-{at})"]' for at in range(starts[part], starts[part + 1])]
        rules.append(f"{','.join(selected)} {{ animation: ava-demo-part-{part} {whole:.1f}s step-end 3 }}")
        rules.append(f"@keyframes ava-demo-part-{part} {{ 0% {{ opacity: 0 }} {moment / whole:.1%} {{ opacity: 1 }} }}")
    (question,) = [at for at, line in enumerate(screen) if line.endswith(_ANSWER)]
    part = next(part for part, start in enumerate(starts) if start > question)
    answered = (moments[part] - 0.5) / whole
    rules.append(f'.ava-demo-r1[clip-path="url(#ava-demo-line-{question})"] {{ animation-name: ava-demo-answer }}')
    rules.append(f"@keyframes ava-demo-answer {{ 0% {{ opacity: 0 }} {answered:.1%} {{ opacity: 1 }} }}")
    return "\n".join([*rules, "}\n"])


def _on_terminal(args: list[str], folder: Path) -> tuple[str, list[tuple[int, float]]]:
    """Run a command on a terminal and say yes to its question.

    Returns all that it wrote, and how long that was after how many seconds.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "TERM": "xterm", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "ava_server", *args]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written, asked, began = b"", False, time.monotonic()
        arrived: list[tuple[int, float]] = []
        while data := _read(ours):
            written += data
            arrived.append((len(written.decode("utf-8", "replace")), time.monotonic() - began))
            if not asked and b"Start it?" in written:
                asked = True
                os.write(ours, b"y\n")
    os.close(ours)
    text = written.decode("utf-8", "replace")
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}:\n{text}")
    return text, arrived


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
        (r"answer after \d+\.\d s", "answer after 0.1 s"),
    ):
        line = re.sub(pattern, instead, line)
    return line


if __name__ == "__main__":
    PICTURE.write_text(svg(*recording()), encoding="utf-8")
