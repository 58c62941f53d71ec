"""Two owners of runs on one data root, stopped and woken at random: what they lose, and what they pay twice.

A stopped owner loses its runs: its lock file is removed, or its lease in Postgres ends. When it wakes up, it does not
know that. Every request that reaches the model server is compared with the log.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ava_audit.entries import Entry
from ava_audit.events import AssistantMessage, RunClaimed, RunEnded
from ava_audit.units import US_PER_S, now_us
from ava_audit.view import View
from ava_server.runs.record.claims import waits_for_resume
from support import owner
from support.model_server import Gate, Say, Step, run_model_server
from support.runtime import PRICED, Lab, check_budgets, check_requests, open_lab

LEASE_S = 3
"""The shortest that the settings allow."""
LIMITS = (
    f"lease_s = {LEASE_S}\n[limits]\nrunning = 12\nrunning_per_user = 12\nspawns_per_hour = 100000\n"
    f"user_daily_cents = 10000000\ninstallation_daily_cents = 10000000\n{PRICED}"
)
NOTE = ("scratchpad", {"note": "half of it"})
DONE = ("submit_result", {"summary": "done", "output": "twelve cents"})
RUNS, TURNS = 4, 12
ANSWER_S = (0.001, 0.001, 0.01, 0.05, 0.3)
END_S = 120.0
LATE_S = 10.0
"""How long after its end a stop may still cost a run: others looked while the owner was stopped."""


@dataclass
class Stop:
    """An owner was stopped for a while, in seconds of the wall clock, and lost these runs."""

    owner: str
    begin: float
    end: float = float("inf")
    runs: set[str] = field(default_factory=set[str])


@dataclass
class Takeovers:
    seconds: float  # for how long owners are stopped and woken
    seed: int  # where chance begins
    url: str = ""  # the log's database, if it is in Postgres
    counts: Counter[str] = field(default_factory=Counter[str])  # what was seen
    faults: list[str] = field(default_factory=list[str])  # what must not be
    # The task and the turn of each request, and when it arrived.
    received: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    runs: dict[str, str] = field(default_factory=dict[str, str])  # the run of each task
    # Runs that waited for a person in the end; a call in progress may be lost with that.
    cancelled: set[str] = field(default_factory=set[str])
    stops: list[Stop] = field(default_factory=list[Stop])
    # The run and the generation of its claim, and when a check of the owner let a request go out.
    checks: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> Step:
        """Note a request as it arrives, and answer it some time later."""
        messages = request["messages"]
        task = re.search(r"task number \d+", str(messages[1]["content"]))
        assert task is not None
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        with self._lock:
            self.received.append((task[0], turn, time.time()))
            gate = Gate(within_s=self._random.choice(ANSWER_S))
        return Say("I look.", [DONE if turn >= TURNS else NOTE], gate=gate)

    async def play(self, tmp: Path) -> None:
        config = f'database_url = "{self.url}"\n{LIMITS}' if self.url else LIMITS
        output = tmp / "owners.log"
        with run_model_server(self.answer) as server, output.open("w") as out:
            async with open_lab(tmp, server=server, config=config, runs=False, check=False) as lab:
                with own_runs(lab.root, server.base_url, out) as one, own_runs(lab.root, server.base_url, out) as other:
                    async with anyio.create_task_group() as tasks:
                        for each in (one, other):
                            tasks.start_soon(self._stop_and_wake, lab.root, each)
                        await self._keep_busy(lab, time.monotonic() + self.seconds)
                    await self._all_end(lab)
                    self.faults += [
                        f"{each.name} has ended" for each in (one, other) if each.process.poll() is not None
                    ]
                entries = {run: await lab.entries(run) for run in self.runs.values()}
                await lab.store.read(check_budgets)
            await check_requests(lab.root, server.requests)
        if "Traceback" in (text := output.read_text("utf-8", "replace")):
            self.faults.append(text[text.index("Traceback") :][:3000])
        noted = re.findall(r"^checked (\S+) (\d+) (\S+)$", text, re.MULTILINE)
        self.checks = [(run, int(generation), float(at)) for run, generation, at in noted]
        for task, run in self.runs.items():
            self._compare(task, run, entries[run])

    async def _keep_busy(self, lab: Lab, end: float) -> None:
        while time.monotonic() < end:
            left = await lab.store.read(lambda view: view.runs(states=("queued", "running"), limit=-1))
            for _ in range(RUNS - len(left)):
                await self._start(lab, f"task number {len(self.runs)}")
            await anyio.sleep(0.2)

    async def _start(self, lab: Lab, task: str) -> None:
        """Start a run; not while an owner that was stopped as it wrote keeps all others from writing."""
        given = {"role": "researcher", "task": task, "workspace": str(lab.workspace), "max_cost_cents": 200}
        proposal = await lab.call("spawn_subagent", **given)
        if proposal.status == "awaiting_approval":
            self.runs[task] = proposal.subagent_id
            answer = await lab.approve(proposal)
            self.counts[f"starts: {answer.status}"] += 1

    async def _stop_and_wake(self, root: Path, stopped: Owner) -> None:
        """Stop an owner again and again; how long decides whether the other one takes its runs over meanwhile."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            await anyio.sleep(self._random.uniform(0.05, 3))
            stopped.process.send_signal(signal.SIGSTOP)
            self.stops.append(stop := Stop(stopped.name, time.time()))
            self.counts["stops"] += 1
            if self.url:
                await anyio.sleep(self._random.choice([0.5, LEASE_S, LEASE_S + 1]) * self._random.uniform(0.8, 1.2))
            else:
                (root / "instances" / f"{stopped.name}.lock").unlink(missing_ok=True)
                await anyio.sleep(self._random.choice([0.0, 0.2, 1.0, 1.5, 3.0]) * self._random.random())
            stopped.process.send_signal(signal.SIGCONT)
            stop.end = time.time()

    async def _all_end(self, lab: Lab) -> None:
        """Wait until all runs have ended; those that wait for a person after many lost calls are cancelled."""

        def left(view: View) -> list[tuple[str, bool]]:
            rows = view.runs(states=("queued", "running"), limit=-1)
            return [(row.id, row.state == "running" and waits_for_resume(view, row, now_us())) for row in rows]

        end = time.monotonic() + END_S
        while unended := await lab.store.read(left):
            for run, waits in unended:
                if waits:
                    self.cancelled.add(run)
                    await lab.call("cancel_subagent", subagent_id=run)
            if time.monotonic() > end:
                self.faults.append(f"these runs did not end: {unended}")
                return
            await anyio.sleep(0.3)

    # -- the comparison -----------------------------------------------------------------------------------------------

    def _compare(self, task: str, run: str, entries: list[Entry]) -> None:
        """Compare what arrived for a run with its log: its answers, its claims, and the stops of its owners."""
        requests = [(turn, at) for number, turn, at in self.received if number == task]
        answered: dict[int, tuple[float, int]] = {}
        faults: list[str] = []
        takeovers, owned_by = 0, ""
        for entry in entries:
            match entry.fact:
                case AssistantMessage(turn=int(turn)):
                    answered[turn] = entry.ts_us / US_PER_S, entry.generation or 0
                case RunClaimed(reason=reason, instance=instance):
                    if reason == "takeover" and not self._explained(run, owned_by, entry.ts_us / US_PER_S):
                        faults.append(f"it was taken from {owned_by}, which was not stopped, or for the second time")
                    takeovers += reason == "takeover"
                    owned_by = instance
                case RunEnded():
                    self.counts[f"ended: {entry.fact.status}"] += 1
                case _:
                    pass
        lost = len(requests) - len(answered)
        late = [(turn, at) for turn, at in requests if turn in answered and at > answered[turn][0]]
        before = [at for _turn, at in requests]
        twice = [turn for turn, at in late if not self._stopped_as_sent(run, answered[turn][1], before, at)]
        if lost > takeovers + (run in self.cancelled):
            faults.append(f"{lost} calls were lost in {takeovers} takeovers")
        if twice:
            faults.append(f"turns were paid for whose answers the log had: {twice}")
        if faults:
            self.faults.append("\n".join([run, *faults, *_story(requests, entries)]))
        self.counts.update({"requests": len(requests), "answers": len(answered), "takeovers": takeovers})
        self.counts.update({"calls lost": lost, "paid twice": len(twice), "sent late": len(late) - len(twice)})

    def _stopped_as_sent(self, run: str, generation: int, requests: list[float], at: float) -> bool:
        """Tell whether an earlier owner was stopped between a check and the request that it let go out.

        Nothing can be asked in between; that moment takes less than a millisecond.
        """
        checks = {old: checked for of, old, checked in self.checks if of == run and old < generation and checked <= at}
        return any(
            checked <= stop.begin <= at and not any(checked <= sent <= stop.begin for sent in requests)
            for checked in checks.values()
            for stop in self.stops
        )

    def _explained(self, run: str, owned_by: str, at: float) -> bool:
        """Tell whether a stop of its owner cost a run its owner at a time; each stop may do so once."""
        for stop in self.stops:
            if stop.owner == owned_by and stop.begin <= at <= stop.end + LATE_S and run not in stop.runs:
                stop.runs.add(run)
                return True
        return False


def _story(requests: list[tuple[int, float]], entries: list[Entry]) -> list[str]:
    lines = [(at, f"request of turn {turn}") for turn, at in requests]
    lines += [
        (entry.ts_us / US_PER_S, f"entry {entry.seq} by generation {entry.generation}: {entry.fact!r}"[:160])
        for entry in entries
        if entry.type in ("CostReserved", "AssistantMessage", "RunClaimed", "CostUpdate", "ErrorOccurred", "RunEnded")
    ]
    return [f"  {at:.3f} {text}" for at, text in sorted(lines)]


@dataclass
class Owner:
    """A process that owns runs, and its instance."""

    process: subprocess.Popen[str]
    name: str


@contextmanager
def own_runs(root: Path, base_url: str, output: Any = None) -> Generator[Owner]:
    """A process that owns runs until the block ends; what it reports goes to `output`, its checks too."""
    command = [sys.executable, owner.__file__, str(root), base_url, *(["checks"] if output is not None else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Owner(process, process.stdout.readline().removeprefix("open ").strip())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
