"""Runs that wait for the money that another run's call holds."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from ava_audit.events import CostReserved, MoneyAwaited
from ava_audit.rows import RUNNING, RunRow
from ava_audit.units import format_usd, now_us
from ava_server.render.run_view import RunView, view_run
from support import owner
from support.model_server import Gate, ModelServer, Say
from support.runtime import DONE, Lab, open_lab, wait_for
from support.stdio import environment

PRICES = """
[prices."custom:test"]
input = 3.0
output = 15.0
cache_read = 3.0
cache_write = 3.0
"""


def day_limits(day_cents: int, more: str = "") -> str:
    """Return a configuration with a price and a daily budget, and `more` of its table of limits."""
    return f"{PRICES}\n[limits]\nuser_daily_cents = {day_cents}\ninstallation_daily_cents = {day_cents}\n{more}"


def spend(gate: Gate | None = None, tokens: int = 100) -> Say:
    """Return a last answer that spends so many tokens."""
    usage = {"prompt_tokens": 1_000, "completion_tokens": tokens, "total_tokens": 1_000 + tokens}
    return Say(calls=[DONE], usage=usage, gate=gate)


async def wait_for_money(lab: Lab, run_id: str) -> RunRow:
    """Return a run once the log says that it waits for money."""
    await lab.logged(run_id, "MoneyAwaited")
    row = await lab.run(run_id)
    assert row.state == RUNNING and row.money_wait is not None
    return row


def new_folder(tmp_path: Path, name: str) -> Path:
    """Make a folder of this name and return it."""
    made = tmp_path / name
    made.mkdir()
    return made


async def micros_of_first_call(tmp: Path) -> int:
    """Return what the first call of these runs holds with the last turn after it, in micro-USD."""
    async with open_lab(tmp, [spend()], config=day_limits(1_000)) as lab:
        run_id = await lab.start(max_cost_cents=50)
        await lab.ended(run_id)
        [fact] = await lab.facts(run_id, CostReserved)
        return fact.micros + fact.wrap_micros


@asynccontextmanager
async def open_waiting_run(tmp_path: Path, **more: Any) -> AsyncGenerator[tuple[Lab, Gate, str, str]]:
    """Open a lab where the call of a first run is in flight, and a second run waits for the money that it holds.

    `more` is of the second run's proposal.
    """
    held = await micros_of_first_call(new_folder(tmp_path, "first"))
    gate = Gate()
    cap = day_limits(held * 19 // 100_000)
    async with open_lab(new_folder(tmp_path, "second"), [spend(gate), spend()], config=cap) as lab:
        first = await lab.start(max_cost_cents=50)
        await wait_for(gate.arrived)
        waiter = await lab.start(max_cost_cents=50, **more)
        await wait_for_money(lab, waiter)
        yield lab, gate, first, waiter


async def holder_words(lab: Lab, holder_id: str, waiter_id: str) -> str:
    """Return what is said of a waiting run while one of the same user holds what it lacks."""
    [fact] = await lab.facts(waiter_id, MoneyAwaited)
    holds = format_usd((await lab.run(holder_id)).held_in(holder_id))
    how = f"wait for it, or `ava cancel {holder_id}`"
    return f"{format_usd(fact.missing)}; {holder_id} holds {holds} and is at work: {how}"


async def view_of_run(lab: Lab, run_id: str) -> RunView:
    """Return a run as every surface shows it."""
    row, processes = await lab.run(run_id), lab.runtime.instances
    return await lab.store.read(lambda view: view_run(view, row, processes, now_us(), task=True))


@asynccontextmanager
async def owning_process(root: Path, server: ModelServer) -> AsyncGenerator[anyio.abc.Process]:
    """Start another process that looks after the runs of a data root."""
    command = [sys.executable, owner.__file__, str(root), server.base_url]
    async with await anyio.open_process(command, env=environment(root), stderr=None) as process:
        assert process.stdout is not None and b"open" in await process.stdout.receive()
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
