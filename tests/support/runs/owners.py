"""Owners that come and go: processes that own runs, and what a run is left as when its owner has gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ava_audit.entries import Entry
from ava_audit.events import Event, SpawnDecided, SpawnProposed, Who
from ava_audit.rows import RunRow
from ava_server.budget.user_limits import Slots
from ava_server.runs.record import claims
from ava_server.runs.record.claims import NotResumed, claim
from support import owner
from support.logs.cutting import all_entries
from support.model_server import Gate, ModelServer, Say, run_model_server
from support.runtime import PRICED, Lab, check_budgets, check_requests, hand_over, open_lab, wait_for

NOTE = Say(calls=[("scratchpad", {"note": "half of it"})])


@contextmanager
def owner_process(root: Path, server: ModelServer) -> Generator[subprocess.Popen[str]]:
    """A process of its own that claims the runs of a data root."""
    command = [sys.executable, owner.__file__, str(root), server.base_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("open ")
            yield process
        finally:
            process.kill()


async def approve_runs(tmp: Path, server: ModelServer, config: str = "", count: int = 1) -> list[str]:
    """Approve runs in a runtime that claims none."""
    async with open_lab(tmp, server=server, config=config, runs=False, check=False) as lab:
        return [await lab.start(task=f"number {number}") for number in range(count)]


async def approve_run_as(lab: Lab, user: str, task: str) -> None:
    """Propose and approve a researcher as another user."""
    given = {"role": "researcher", "task": task, "workspace": str(lab.workspace)}
    proposal = await lab.call_as(user, "spawn_subagent", **given)
    ids, lines = [proposal.pending_id], [proposal.approval_line]
    assert (await lab.call_as(user, "confirm_spawn", pending_ids=ids, approving=lines)).status == "approved"


async def claim_as(
    lab: Lab, run_id: str, instance: str, *, gone: Iterable[str] = (), per_user: int = 9, total: int = 9
) -> RunRow | str:
    """Claim a run for an instance, for which those `gone` are dead; return the run, or why it cannot be claimed."""
    who = Who("sess-x", "ava", lab.runtime.user)
    return await lab.store.do(claim(run_id, instance, who, frozenset(gone), Slots(per_user, total)), run_id)


async def resume_at_terminal(lab: Lab, run_id: str, *, force: bool = False) -> RunRow | NotResumed:
    """Resume a run as `ava resume` does; return the run, or why it was not resumed."""
    limits = lab.runtime.spawn_limits_of(lab.runtime.user)
    return await lab.runtime.manager.control.resume(run_id, lab.session.who, "terminal", limits, force=force)


async def wait_reason(lab: Lab, run_id: str) -> str:
    """Wait until `check_subagent` says what a run waits for, and return that."""
    with anyio.fail_after(40):
        while not (reason := (await lab.check(run_id)).waits_for):
            await lab.store.wait_for_entry_after(lab.store.head - 1)
    return str(reason)


def future_run_events(user: str) -> tuple[Event, Event]:
    """A run that was proposed and approved by a program whose configurations this one cannot read."""
    config = {"role": "researcher", "model": "fake:of-a-version-to-come"}
    proposed = SpawnProposed(pending_id="P-00000001", subagent_id="S-000001", digest="0", expires_us=0, config=config)
    decided = SpawnDecided(pending_id="P-00000001", decision="approved")
    who = Who("s", "ava", user)
    return Event(who, proposed, run_id="S-000001"), Event(who, decided, run_id="S-000001")


@asynccontextmanager
async def open_interrupted_run(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, *, config: str = PRICED, runs: bool = True, **more: Any
) -> AsyncGenerator[tuple[Lab, str, ModelServer]]:
    """A lab with a run whose owner has gone so long ago that nobody takes it over by himself."""
    gate = Gate()
    with run_model_server([NOTE, Say("lost", gate=gate), hand_over(), hand_over()]) as server:
        async with open_lab(tmp, server=server, config=config, check=False) as lab:
            run_id = await lab.start(**more)
            await wait_for(gate.arrived)
        monkeypatch.setattr(claims, "TAKEOVER_WITHIN_US", 0)
        async with open_lab(tmp, server=server, config=config, runs=runs, check=False) as lab:
            yield lab, run_id, server
            await lab.store.read(check_budgets)
        await check_requests(tmp / "data", server.requests)


async def own_until_call(tmp: Path, server: ModelServer, gate: Gate, run_id: str | None = None, **more: Any) -> str:
    """Own a run until its call has been sent, then end."""
    async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
        run_id = run_id or await lab.start(**more)
        await wait_for(gate.arrived)
    return run_id


async def leave_paid_run(tmp: Path, server: ModelServer) -> tuple[str, list[Entry], list[Entry]]:
    """A run up to the answer that hands its result over: what came up to its claim, and what came after it."""
    await anyio.Path(tmp).mkdir()
    async with open_lab(tmp, server=server, config=PRICED, check=False) as lab:
        run_id = await lab.start(timeout=3)
        await lab.ended(run_id)
        entries = await all_entries(lab.store)
    said = max(at for at, entry in enumerate(entries) if entry.type == "AssistantMessage" and entry.generation)
    claimed = next(at for at, entry in enumerate(entries) if entry.type == "RunClaimed") + 1
    return run_id, entries[:claimed], entries[claimed : said + 1]
