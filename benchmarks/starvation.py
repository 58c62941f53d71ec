"""Measure how much of a day's cap eight equal runs can use that run side by side: 1, 3 and 8 at once.

One run alone shows what a run costs. The day's cap is then what eight cost, and a sixth more. Each run reads four
files, a turn each, and hands in a result; the provider takes a moment for each answer and reports about a token for
four bytes, as providers do.

python benchmarks/starvation.py [--at-once 1 3 8] [--times 1] [--answer-s 0.15]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.model_server import Gate, Say
from support.runtime import DONE, Lab, open_lab

RUNS = 8
SHARE = 0.86
"""The share of the day's cap that the runs need."""
FILES, FILE_CHARS = 4, 9_000
OUTPUT_TOKENS = 350
PRICES = """
[prices."custom:test"]
input = 3.4
output = 17.0
cache_read = 3.4
cache_write = 3.4
"""


def limits(day_cents: int, at_once: int) -> str:
    return f"""{PRICES}
[limits]
user_daily_cents = {day_cents}
installation_daily_cents = {day_cents}
running = {at_once}
running_per_user = {at_once}
spawns_per_hour = 1000
"""


def answer(answer_s: float) -> Any:
    def step(request: dict[str, Any]) -> Say:
        messages = request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        prompt = len(json.dumps(request)) // 4
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": prompt + OUTPUT_TOKENS,
        }
        last = "last turn" in json.dumps(messages[-1])
        calls = [DONE] if turn >= FILES or last else [("read_file", {"path": f"part-{turn}.txt"})]
        return Say(calls=calls, usage=usage, gate=Gate(answer_s))

    return step


async def play(folder: Path, day_cents: int, at_once: int, runs: int, answer_s: float) -> dict[str, Any]:
    async with open_lab(folder, answer(answer_s), config=limits(day_cents, at_once), check=False) as lab:
        for number in range(FILES):
            words = f"The price of part {number} is {number} euro. " * (FILE_CHARS // 36)
            (lab.workspace / f"part-{number}.txt").write_text(words)
        started: list[str] = []
        refused = 0
        for number in range(runs):
            run_id = await begin(lab, number)
            if run_id is None:
                refused += 1
            else:
                started.append(run_id)
        rows = [await lab.ended(run_id, within_s=300) for run_id in started]
        results = 0
        for row in rows:
            results += (await lab.result(row.id))["untrusted_result"]["output"] == DONE[1]["output"]
    spent = sum(row.cost_micros for row in rows)
    return {
        "at_once": at_once,
        "refused_at_start": refused,
        "endings": dict(Counter(row.state for row in rows)),
        "results": results,
        "spent_micro_usd": spent,
        "spent_share": round(spent / (day_cents * 10_000), 3),
    }


async def begin(lab: Lab, number: int) -> str | None:
    given = {"role": "researcher", "task": f"What do the parts cost? ({number})", "workspace": str(lab.workspace)}
    proposal = await lab.call("spawn_subagent", **given, max_cost_cents=50)
    if proposal.status != "awaiting_approval":
        return None
    confirmed = await lab.approve(proposal)
    return str(proposal.subagent_id) if confirmed.status == "approved" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 3, RUNS])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--answer-s", type=float, default=0.15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone = anyio.run(play, Path(folder), 10_000, 1, 1, options.answer_s)
        needed = RUNS * alone["spent_micro_usd"]
        day_cents = round(needed / SHARE / 10_000)
        print(json.dumps({"runs": RUNS, "needed_micro_usd": needed, "day_cents": day_cents}))
        for time in range(options.times):
            for at_once in options.at_once:
                place = Path(folder) / f"{time}-{at_once}"
                place.mkdir()
                print(json.dumps(anyio.run(play, place, day_cents, at_once, RUNS, options.answer_s)), flush=True)


if __name__ == "__main__":
    main()
