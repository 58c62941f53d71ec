"""A planted run and another one, and where the words of either still stand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.verify import verify, verify_lines
from support.log import child
from support.model_server import Gate, Say, Step
from support.runtime import Lab, open_lab, wait_for
from support.terminal import ava

TASK, CONTEXT, MESSAGE, THOUGHT, FOUND, SUMMARY, OUTPUT, ARTIFACT, QUERY, CAVEAT = PLANTED = (
    "vexquokkalily", "wombatherring", "numbatsorrel", "dingopumice", "possumgravel",
    "bilbyorchard", "quollthistle", "echidnamarble", "bandicootfern", "cassowarymoss",
)  # fmt: skip
OTHERS = tuple(f"{word}other" for word in ("heron", "ibis", "stork", "egret", "bittern"))
_SEARCH = """
import json, sys
from pathlib import Path
root, words = Path(sys.argv[1]), sys.argv[2:]
files = {str(path.relative_to(root)): path.read_bytes().lower() for path in root.rglob("*") if path.is_file()}
found = {word: [name for name, data in files.items() if word[3:].encode() in data] for word in words}
print(json.dumps({word: names for word, names in found.items() if names}))
"""


def words_by_file(root: Path, words: Iterable[str] = PLANTED) -> dict[str, list[str]]:
    """Which words stand in which files of a data root, as bytes; the index stores a word without what it shares.

    Read by another process: closing a file that SQLite has open here would let go of its locks.
    """
    found = subprocess.run(child(_SEARCH, root, *words), capture_output=True, text=True, check=True, timeout=30)
    standing: dict[str, list[str]] = json.loads(found.stdout)
    return standing


def play_words(gate: Gate) -> Any:
    """The model: one run reads, saves and hands over what is planted, any other one other words."""

    def script(request: dict[str, Any]) -> Step:
        said = json.dumps(request)
        turns = sum(message["role"] == "assistant" for message in request["messages"])
        if TASK not in said:
            _task, _context, thought, summary, output = OTHERS
            return Say(thought, calls=[("submit_result", {"summary": summary, "output": output})])
        if turns == 0:
            look = ("read_file", {"path": "notes.txt"})
            seek = ("search_codebase", {"pattern": QUERY})
            save = ("save_artifact", {"name": "prices.csv", "content": ARTIFACT})
            return Say(THOUGHT, calls=[look, seek, save], gate=gate)
        return Say(calls=[("submit_result", {"summary": SUMMARY, "output": OUTPUT, "caveats": [CAVEAT]})])

    return script


@dataclass
class TwoRuns:
    """A root on which the planted run and another one have ended, both were looked at, and a runtime is open."""

    lab: Lab
    run_id: str
    other: str

    @property
    def root(self) -> Path:
        return self.lab.root


@asynccontextmanager
async def open_two_runs(tmp: Path) -> AsyncGenerator[TwoRuns]:
    """Open a lab in which the planted run and another one have ended."""
    gate = Gate()
    (tmp / "workspace").mkdir()
    (tmp / "workspace" / "notes.txt").write_text(f"It says {FOUND}.\n")
    async with open_lab(tmp, play_words(gate), check=False) as lab:
        run_id = await lab.start(task=f"Look up {TASK}", context=f"Background: {CONTEXT}", rationale=f"For {TASK}")
        await wait_for(gate.arrived)
        await lab.call("message_subagent", subagent_id=run_id, message=f"Mind {MESSAGE}")
        gate.released.set()
        await lab.ended(run_id)
        other = await lab.start(task=f"Look up {OTHERS[0]}", context=OTHERS[1])
        await lab.ended(other)
        for each in (run_id, other):
            await lab.call("check_subagent", subagent_id=each)
        yield TwoRuns(lab, run_id, other)


async def run_erase(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `ava erase`."""
    return await anyio.to_thread.run_sync(lambda: ava(root, "erase", *args))


async def check_log(root: Path) -> None:
    """The log verifies with its projections, and so does every file of the mirror."""
    report = await anyio.to_thread.run_sync(verify, root / "ava.db")
    assert report.ok and report.projections, report
    for path in (root / "logs").rglob("*.jsonl"):
        lines = await anyio.to_thread.run_sync(verify_lines, path)
        assert lines.ok and lines.entries, (path, lines)
