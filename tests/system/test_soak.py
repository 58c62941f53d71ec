"""Fifty runs at once against a provider that fails in every way it can: nothing stays reserved, and no line stays open.

It takes a few seconds in the gate. For longer:

    AVA_SOAK_S=180 pytest -s tests/system/test_soak.py
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.model_server import EVENTS, Fail, HangUp, Raw, Say, Step, events, run_model_server
from support.runtime import DONE, Lab, open_lab

from ava_audit.events import CostUpdate

pytestmark = pytest.mark.slow

RUNS = 50
SOAK_S = float(os.environ.get("AVA_SOAK_S", "5"))
SEED = int(os.environ.get("AVA_SOAK_SEED", "20261120"))
LIMITS = "[limits]\nrunning = 60\nrunning_per_user = 60\nspawns_per_hour = 100000\nmax_cost_cents = 500\n"
NO_DAY = "user_daily_cents = 100000000\ninstallation_daily_cents = 100000000\n"
MODELS = ("chatty:test", "wordy:claude-sonnet-5-5", "wordy:claude-haiku-4-5")
PRICE = "[prices.test]\ninput = 3\noutput = 15\n"
ENDINGS = {"success", "error", "cancelled", "cost_exceeded", "token_exceeded", "guardrail"}


async def test_after_many_faults_nothing_is_reserved_and_no_connection_is_open(tmp_path: Path) -> None:
    weather, ended = Weather(SEED), Counter[str]()
    with run_model_server(weather) as server:
        chatty = f'[providers.chatty]\nbase_url = "{server.base_url}"\n'
        wordy = f'[providers.wordy]\nbase_url = "{server.base_url}"\nwire = "messages"\n'
        prices = PRICE + "".join(f'[prices."{name}"]\ninput = 3\noutput = 15\n' for name in MODELS[1:])
        async with open_lab(tmp_path, server=server, config=LIMITS + NO_DAY + chatty + wordy + prices) as lab:
            for number in range(4):
                (lab.workspace / f"{number}.md").write_text("it costs twelve cents\n" * 20)
            until = time.monotonic() + SOAK_S
            async with anyio.create_task_group() as tasks:
                for number in range(RUNS):
                    tasks.start_soon(one_after_another, lab, number, until, ended)
            held = await lab.store.read(
                lambda view: {run.id: view.bucket(run.id).held_micros for run in view.runs(limit=-1) if run.ended}
            )
            settled = await lab.store.read(
                lambda view: Counter(
                    entry.fact.settlement for entry in view.of_type("CostUpdate") if isinstance(entry.fact, CostUpdate)
                )
            )
            asked = len(server.requests)
        with anyio.fail_after(20):
            while server.open:  # noqa: ASYNC110 (the server is a thread of its own)
                await anyio.sleep(0.02)
    print(f"\n{sum(ended.values())} runs in {SOAK_S:g} s: {dict(ended)}")
    print(f"{asked} calls: {dict(weather.steps)}; settled {dict(settled)}")
    print(f"reservations left {sum(1 for micros in held.values() if micros)}, connections left {server.open}")
    assert sum(ended.values()) >= RUNS
    assert set(ended) <= ENDINGS, ended
    assert ended["success"]
    assert not any(held.values())
    assert set(settled) == {"billed", "not_billed", "unknown"}


class Weather:
    """What the provider does next: mostly answers, in a fifth of all cases something else."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.steps: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> Step:
        with self._lock:
            step = self._next(request)
            self.steps[type(step).__name__] += 1
            return step

    def _next(self, request: dict[str, Any]) -> Step:
        rng = self._random
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        said = self._answer(turn)
        pieces = events(said, turn)
        odd: list[Step] = [
            Fail(429, retry_after="0.05"),
            Fail(429, headers={"retry-after-ms": "40"}),
            Fail(529),
            Fail(500),
            Fail(503, b"<html>busy</html>"),
            HangUp(),
            Raw(pieces[: rng.randrange(1, len(pieces))], EVENTS),
            Raw([*pieces[:2], b"data: {not json}\n\n"], EVENTS),
            Raw(pieces, EVENTS, chunked=True, cut=True),
            Raw([b"{}"], "application/json"),
        ]
        return rng.choice(odd) if rng.random() < 0.2 else said

    def _answer(self, turn: int) -> Say:
        rng = self._random
        thought = "hm " * rng.randrange(20)
        if turn > 5 or rng.random() < 0.25:
            return Say(calls=[DONE], reasoning=thought)
        if rng.random() < 0.1:
            return Say(rng.choice(["", "some words"]), reasoning=thought)
        names = [rng.choice(["read_file", "search_codebase", "no_such_tool"]) for _ in range(rng.randrange(1, 4))]
        args = {"read_file": {"path": f"{rng.randrange(4)}.md"}, "search_codebase": {"query": "cents"}}
        return Say("Looking.", [(name, args.get(name, {})) for name in names], reasoning=thought)


async def one_after_another(lab: Lab, number: int, until: float, ended: Counter[str]) -> None:
    """Start a run, perhaps cancel it or write to it, wait for its end, and again."""
    rng = random.Random(SEED + number)
    while time.monotonic() < until:
        cents = rng.choice([30, 50, 100, 200])
        model = rng.choice(MODELS)
        run_id = await lab.start(
            model=model,
            extended_thinking=model != MODELS[0] and rng.random() < 0.5,
            plan=rng.random() < 0.1,
            max_cost_cents=cents,
            task=f"What does {number} cost?",
        )
        if rng.random() < 0.2:
            await anyio.sleep(rng.random() * 0.2)
            await lab.call("cancel_subagent", subagent_id=run_id)
        elif rng.random() < 0.2:
            await lab.call("message_subagent", subagent_id=run_id, message="Hurry.")
        ended[(await lab.ended(run_id, within_s=60)).state] += 1
