"""Where the time goes, as flame graphs: records what is asked for with py-spy and writes `benchmarks/profiles/*.svg`.

    pip install py-spy
    python benchmarks/profiles.py [turn] [spawn] [http_call] [--seconds 15] [--out FOLDER]

Each part is a function of `PARTS`, which starts a process, keeps it busy and yields its id; another part is another
function. Only what runs counts, not what waits. Paths are relative to the repository or to `site-packages`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from pathlib import Path

import http_load
import spawn
from loop_parts.children import AVA, Child, endpoint, started

ROOT = Path(__file__).parent.parent
RATE_HZ = 250
TURNS = 40
WIDTH, LINE, LEAST = 1_200, 16, 1.5
"""Pixels: of the picture, of a line, and of the narrowest box that is drawn."""
IDLE = re.compile(r"^(select|wait|_worker|_take|EpollSelector\.select|Condition\.wait|Writer\._take) ")
"""Leaves that wait, though py-spy counts them where the system does not tell."""
MEASURING = re.compile(r"^_turns \(loop_parts/")
"""What the measurement does itself: it begins runs and collects garbage."""
MACHINE = re.compile(r"\((?:[^()]*/)?(?:site-packages|lib/python3\.\d+|" + re.escape(ROOT.name) + r")/")


@contextmanager
def turn() -> Generator[int]:
    """One run after another in Ava, everything on the disk."""
    with endpoint(TURNS) as port:
        child = started(AVA, port, None)
        busy = threading.Thread(target=_keep_busy, args=(child,), daemon=True)
        child.measured("turns", 1, 1, TURNS)  # fills the caches
        busy.start()
        try:
            yield child.process.pid
        finally:
            child.process.kill()
            busy.join()
            child.end()


def _keep_busy(child: Child) -> None:
    try:
        while True:
            child.measured("turns", 1, 50, TURNS)
    except (RuntimeError, OSError, ValueError):  # it was ended
        return


PARTS: dict[str, Callable[[], AbstractContextManager[int]]] = {
    "turn": turn,
    "spawn": spawn.spawning,
    "http_call": http_load.busy,
}
STOPPED = {"turn", "spawn"}
"""Parts that py-spy stops for each sample, which is exact. A server is not: its short reads would seem to take over
5 ms, and it would go to threads for them."""


def recorded(pid: int, seconds: int, *, stopped: bool) -> dict[tuple[str, ...], int]:
    """Return how often each stack, outermost frame first, was seen to run."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        command = [spy, "record", "-p", str(pid), "-d", str(seconds), "-r", str(RATE_HZ), "-t", "-f", "raw", "-o", raw]
        command += [] if stopped else ["--nonblocking"]
        subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60)
        lines = raw.read_text("utf-8").splitlines()
    stacks: dict[tuple[str, ...], int] = {}
    for line in lines:
        frames, _space, count = line.rpartition(" ")
        stack = tuple(_frame(frame) for frame in frames.split(";"))
        if not IDLE.match(stack[-1]) and not any(map(MEASURING.match, stack)):
            stacks[stack] = stacks.get(stack, 0) + int(count)
    return stacks


def _frame(frame: str) -> str:
    """Return a frame as it is drawn: no thread's number, no line, and no path of this machine."""
    frame = re.sub(r"^thread \(\d+\): ", "", frame)
    frame = re.sub(r":\d+\)$", ")", frame)
    frame = MACHINE.sub("(", frame)
    return re.sub(r"\(/[^()]*/", "(", frame)


def drawn(title: str, stacks: dict[tuple[str, ...], int]) -> str:
    """Return a flame graph as SVG; equal stacks give equal pictures."""
    whole = sum(stacks.values()) or 1
    boxes: list[tuple[int, float, float, str]] = []
    _lay_out(stacks, 0, 0.0, WIDTH / whole, boxes)
    height = (max((depth for depth, *_ in boxes), default=0) + 3) * LINE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace"'
        ' font-size="11">',
        f'<text x="4" y="12">{escape(title)}, {whole:,} samples</text>',
    ]
    for depth, x, width, name in boxes:
        share = f"{width / WIDTH:.1%}"
        hue = 20 + sum(name.encode()) % 40
        text = escape(name.partition(" (")[0][: int((width - 4) / 6.7)]) if width > 30 else ""
        label = f'<text x="{x + 2:.0f}" y="{(depth + 2) * LINE - 4}">{text}</text>' if text else ""
        lines.append(
            f'<g><title>{escape(name)} {share}</title><rect x="{x:.1f}" y="{(depth + 1) * LINE}" width="{width:.1f}"'
            f' height="{LINE - 1}" fill="hsl({hue},80%,70%)"/>{label}</g>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _lay_out(
    stacks: dict[tuple[str, ...], int], depth: int, x: float, scale: float, boxes: list[tuple[int, float, float, str]]
) -> None:
    """Add the boxes of these stacks from a depth on; a box is as wide as its samples are many."""
    below: dict[str, dict[tuple[str, ...], int]] = {}
    for stack, count in sorted(stacks.items()):
        if len(stack) > depth:
            below.setdefault(stack[depth], {})[stack] = count
    for name, inner in below.items():
        width = sum(inner.values()) * scale
        if width >= LEAST:
            boxes.append((depth, x, width, name))
            _lay_out(inner, depth + 1, x, scale, boxes)
        x += width


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("parts", nargs="*", choices=[*PARTS, []], help="by default all")
    options.add_argument("--seconds", type=int, default=15)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "profiles")
    chosen = options.parse_args()
    chosen.out.mkdir(exist_ok=True)
    for name in chosen.parts or PARTS:
        with PARTS[name]() as pid:
            stacks = recorded(pid, chosen.seconds, stopped=name in STOPPED)
        picture = chosen.out / f"{name}.svg"
        picture.write_text(drawn(name, stacks), "utf-8")
        print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
