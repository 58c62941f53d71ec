"""Ava, whose background process is killed (SIGKILL) at a chosen point of a run.

python doomed.py FOLDER serve       # a host's server; the background process that it starts is this program too
python doomed.py FOLDER worker ...  # the background process

`FOLDER/point.json` names the next point, a `Point`; without it nothing is killed. The process removes it just before
it dies, so that the one that follows goes on, and adds to `FOLDER/killed.txt` what it was at. `FOLDER/commits.txt` has
a line for each commit of a run: its id and the types of its entries.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ava_audit.events import RunClaimed
from ava_audit.store.store import Store
from ava_server.core.background import WorkerProcesses
from ava_server.models.http_model import HttpModel

if TYPE_CHECKING:
    from ava_audit.view import View

Step = Literal["commit", "send"]
When = Literal["before", "after"]


@dataclass(frozen=True)
class Point:
    """Before or after the step of this number (from 1) of a run: a commit with its entries, or a request to the model.

    Before a commit, the command has run and nothing is on disk; after it, everything is, and nobody knows it yet.
    Before a request, its money is reserved; after it, the provider has the whole request and begins to answer.
    """

    run_id: str
    task: str  # a text that only the requests of this run have
    step: Step
    when: When
    number: int

    def write(self, folder: Path) -> None:
        new = folder / "point.new"
        new.write_text(json.dumps(asdict(self)))
        new.replace(folder / "point.json")

    @classmethod
    def read(cls, folder: Path) -> Point | None:
        try:
            return cls(**json.loads((folder / "point.json").read_text()))
        except FileNotFoundError:
            return None


class Doom:
    """Counts the steps of each run in this process, and ends the process at the chosen one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: Counter[tuple[str, Step]] = Counter()

    def watch_commits(self) -> None:
        do = Store.do

        async def watched(store: Store, command: Any, about: str | None = None) -> Any:
            written: dict[str, list[str]] = {}

            def command_watched(view: View, now_us: int) -> Any:
                outcome = command(view, now_us)
                written.clear()
                for event in outcome.events:
                    if event.fence is not None or isinstance(event.fact, RunClaimed):
                        run_id = event.run_id if event.fence is None else event.fence.run_id
                        written.setdefault(str(run_id), []).append(event.fact.type)
                for run_id, types in written.items():
                    self._steps[run_id, "commit"] += 1
                    self._reach(run_id, "commit", "before", " ".join(types))
                return outcome

            value = await do(store, command_watched, about)
            for run_id, types in written.items():
                with (self._folder / "commits.txt").open("a") as file:
                    file.write(f"{run_id} {' '.join(types)}\n")
                self._reach(run_id, "commit", "after", " ".join(types))
            return value

        Store.do = watched  # type: ignore[method-assign,assignment]

    def watch_sends(self) -> None:
        send = HttpModel._send

        async def watched(model: HttpModel, client: Any, endpoint: Any, body: list[bytes], *more: Any) -> Any:
            point = Point.read(self._folder)
            run_id = point.run_id if point is not None and point.task in body[0].decode() else ""
            self._steps[run_id, "send"] += 1
            self._reach(run_id, "send", "before", "request")
            response = await send(model, client, endpoint, body, *more)
            self._reach(run_id, "send", "after", "request")
            return response

        HttpModel._send = watched  # type: ignore[method-assign,assignment]

    def _reach(self, run_id: str, step: Step, when: When, what: str) -> None:
        point = Point.read(self._folder)
        if point is None or (run_id, step, when) != (point.run_id, point.step, point.when):
            return
        if self._steps[run_id, step] != point.number:
            return
        (self._folder / "point.json").unlink()
        with (self._folder / "killed.txt").open("a") as file:
            file.write(f"{when} {step} {point.number} ({what})\n")
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, *words: str) -> None:
    """Run a command of Ava."""
    from ava_server.cli.app import main as ava

    WorkerProcesses.__init__.__defaults__ = ((sys.executable, "-P", __file__, folder, "worker"),)
    if words[0] == "worker":
        doom = Doom(Path(folder))
        doom.watch_commits()
        doom.watch_sends()
    sys.exit(ava(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
