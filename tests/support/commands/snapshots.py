"""A dashboard with runs in every state, and its screens compared with what is kept of them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from difflib import unified_diff
from pathlib import Path

from ava_server.core.data_root import os_user
from ava_server.dashboard.app import StatusApp
from support.commands.dashboard import screen
from support.model_server import Gate, Say
from support.repository import REPOSITORY
from support.runtime import PRICED, USER, Lab, hand_over, open_lab, wait_for

SNAPSHOTS = REPOSITORY / "tests" / "server" / "dashboard" / "snapshots"
ONE_AT_ONCE = "[limits]\nrunning_per_user = 1\n" + PRICED
LONG = "Go on and on, reading the notes in the folder again and again until somebody releases the answer that is held"
READS = ("read_file", {"path": "notes.md"})
FAILS = ("read_file", {"path": "nowhere.md"})


@asynccontextmanager
async def open_full_lab(tmp: Path) -> AsyncGenerator[tuple[Lab, Gate]]:
    """A run that has ended, one that runs, two in the queue, and two that wait for approval."""
    gate = Gate(120)
    script = [hand_over(summary="All is **said**."), Say("", [READS, FAILS]), Say("so", gate=gate)]
    async with open_lab(tmp, [*script, *[hand_over()] * 4], config=ONE_AT_ONCE, check=False) as lab:
        (lab.workspace / "notes.md").write_text("twelve cents")
        await lab.outcome(task="All is done here", name="done")
        await lab.start(task=LONG, name="busy", max_cost_cents=40)
        await wait_for(gate.arrived)
        await lab.start(task="Comes later", name="patient")
        await lab.start(task="Comes even later")
        await lab.propose(task="May it?", name="new")
        await lab.propose(task="May this one, too?")
        yield lab, gate
        gate.released.set()


def run_lines(app: StatusApp) -> list[str]:
    """The lines of the runs: a mark, and a state that begins with its sign."""
    return [line for line in screen(app) if re.match(r"[> ] \S .*\bS-\w{6} ", line)]


def selected_line(app: StatusApp) -> str:
    """The line of the selected run."""
    return next((line for line in screen(app) if line.startswith("> ")), "")


def steady_lines(lines: list[str]) -> str:
    """A screen without what differs from run to run: ids, times, amounts, the user; columns keep their places."""
    text = "\n".join(lines)
    text = re.sub(r"ava-shot-\w{8}", "ava-shot-xxxxxxxx", text)
    text = re.sub(r"\b([SP])-[0-9a-f]{6,8}\b", lambda found: f"{found[1]}-{'0' * (len(found[0]) - 2)}", text)
    text = text.replace(f"{os_user():<12}", f"{USER:<12}").replace(f"by {os_user()} (sess-", f"by {USER} (sess-")
    text = re.sub(r"sess-[0-9a-f]{12}", "sess-000000000000", text)
    text = re.sub(r"\d\d:\d\d", "00:00", re.sub(r":\d\d\b", ":00", text))
    text = re.sub(r"\d{4}-\d\d-\d\d", "2026-01-01", text)
    text = re.sub(r"\d+/600 s( {2,}|)", lambda found: "0/600 s".ljust(len(found[0]) if found[1] else 0), text)
    text = re.sub(r" *\b\d+ s of ", lambda found: "0 s of ".rjust(len(found[0])), text)
    text = re.sub(r" *\b\d+ s$", lambda found: "0 s".rjust(len(found[0])), text, flags=re.MULTILINE)
    text = re.sub(r", \d[\d.]* m?s\b.*", ", 0 s", text)
    text = re.sub(r"\d+k?/2\.0M", lambda found: "0/2.0M".rjust(len(found[0]), "0"), text)
    text = re.sub(r"(?<!,)\b\d+ tokens", "0 tokens", text)
    text = re.sub(r"(\$0\.\d{3})(/\$0\.\d+) ( +)", r"\g<1>0\2\3", text)
    # From a cent on, an amount has a digit less; in the list it is aligned to the right.
    text = re.sub(r"(?<= ) (\$0\.\d{3})(?![\d/])|(\$0\.\d{3})(?!\d)", r"\g<1>\g<2>0", text)
    text = re.sub(r"\$0\.\d+", lambda found: re.sub(r"\d", "0", found[0]), text).replace("▒", "░")
    text = re.sub(r"(?<=server · ).*|[\d.]+ [kMG]B\b.*", "…", text)
    return re.sub(r"[\d,]+ entries.*", "0 entries", text) + "\n"


def compare_screen(name: str, lines: list[str]) -> None:
    """Compare a screen with its snapshot; AVA_WRITE_SNAPSHOTS=1 writes it instead."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("AVA_WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(steady_lines(lines), encoding="utf-8")
    kept, now = path.read_text("utf-8").splitlines(), steady_lines(lines).splitlines()
    assert now == kept, "\n".join(unified_diff(kept, now, path.name, "the screen now", lineterm=""))
