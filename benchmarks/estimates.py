"""Estimates in proposals: how many held-back runs stay within them, and what one costs in a long log.

    python benchmarks/estimates.py [--held-back 5000] [--runs 100000]

The first table plays runs of three distributions in order: each is estimated from the 29 before it, as a proposal is.
Half of them should stay within the likely cost, and 87 to 93 % within nine in ten; of 20 that are proposed together,
more than that within the sum of the latter. The second times the query and the
estimate together, in a log of many runs of one user with configurations of 5 kB, in SQLite and in Postgres (Debian's
`postgresql`); the goal is 2 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
from audit_parts.report import quantile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.approval.past_runs import DISTRIBUTIONS, MODEL, config, coverage, group_coverage, stored_config
from support.postgres import postgres_server, why_missing

from ava_audit.database import Database
from ava_audit.projections import RUNS
from ava_audit.reducers import terms_of
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.approval.estimates import COUNTED, SIMILAR, with_estimate

ROLES = ("researcher", "coder", "data_extractor", "code_reviewer", "web_crawler")
MODELS = (MODEL, "custom:other", "custom:third")
TEXT = " ".join(f"Read file {number} and say what it costs." for number in range(125))
ENDINGS = ("success", "success", "success", "cost_exceeded", "cancelled", "error")
BATCH, TIMES, WARM = 1_000, 300, 20


def rows(first: int, count: int) -> Iterator[tuple[object, ...]]:
    """Yield the rows of runs that have ended, one each second."""
    for number in range(first, first + count):
        role, model, at_us = ROLES[number % 5], MODELS[number % 7 % 3], number * 1_000_000
        text = stored_config(role=role, model=model, role_text=f"{number} {TEXT}")
        row = RunRow(
            f"S-{number:06x}", f"P-{number:08x}", None, "ben", "sess-1", role, None, None, model, text, None,
            ENDINGS[number % 6], "done", None, at_us, at_us, None, at_us, at_us, at_us, at_us, active_us=90_000_000,
            cost_micros=10_000 + number * 7919 % 90_000, terms=terms_of(json.loads(text)),
        )  # fmt: skip
        yield RUNS.values(row)


async def times(url: str, runs: int) -> list[float]:
    """Return how long estimates took, in milliseconds, in a log of so many runs."""
    found: list[float] = []

    def measure(view: View) -> None:
        for number in range(TIMES + WARM):
            role, model = ROLES[number % 5], (*MODELS, "custom:new")[number % 4]
            proposed = config(role=role, model=model)
            began = time.perf_counter()
            estimate = with_estimate(proposed, view.past_runs("ben", role, model, COUNTED, SIMILAR)).estimate
            if number >= WARM:
                found.append((time.perf_counter() - began) * 1_000)
            assert estimate is not None and estimate.runs >= 9

    with tempfile.TemporaryDirectory() as folder:
        async with Store.open(Path(folder), url) as store:
            for first in range(0, runs, BATCH):

                def fill(db: Database, first: int = first) -> None:
                    RUNS.write(db, b"", list(rows(first, min(BATCH, runs - first))))

                await store.maintain(fill)
            await store.read(measure)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--held-back", type=int, default=5_000, help="runs of each distribution")
    options.add_argument("--runs", type=int, default=100_000, help="runs in the log")
    chosen = options.parse_args()
    print(f"{'held-back runs':20}{'within likely':>15}{'nine in ten':>15}{'20 together':>15}")
    for name in DISTRIBUTIONS:
        half, most = coverage(name, 1, chosen.held_back)
        _, all_of_them = group_coverage(name, 1, chosen.held_back // 5, 20)
        print(f"{name:20}{half:>15.1%}{most:>15.1%}{all_of_them:>15.1%}", flush=True)
    size = len(json.dumps(TEXT)) + len(stored_config())
    print(f"\n{chosen.runs:,} runs with configurations of {size:,} bytes; load {os.getloadavg()[0]:.1f}")
    print(f"{'an estimate, ms':20}{'p50':>10}{'p95':>10}{'best':>10}")
    urls = {"SQLite": ""} | ({} if why_missing() else {"Postgres": postgres_server().database(Path("estimates"))})
    for name, url in urls.items():
        took = anyio.run(times, url, chosen.runs)
        print(f"{name:20}{quantile(took, 0.5):>10.2f}{quantile(took, 0.95):>10.2f}{min(took):>10.2f}", flush=True)


if __name__ == "__main__":
    main()
