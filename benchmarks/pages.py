"""The pages in a browser over a busy log: time to the first byte of each page, and its weight with all that it loads.

    python benchmarks/pages.py [--runs 10000] [--events 100000] [--rounds 15] [--keep FOLDER]

So many runs of usual length lie evenly in the last ninety days; one in twelve was proposed and never decided. One more
run, of the last hour, has so many events, and twenty proposals wait. The log's own writer builds it, for one user.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit_parts.building import write
from audit_parts.mix import COMMON, RARE, Together, life, mixed, run_id
from audit_parts.report import Report, median, ms
from support.http_server import serve_pages
from support.runtime import PRICED, open_lab

from ava_audit.units import DAY_US, HOUR_US, now_us
from ava_server.config.sign_in import BrowserSessions
from ava_server.core.data_root import DataRoot, os_user

EVENTS_OF_A_TURN = 6
LONG, OTHERS_FROM = 1, 1_000
UNDECIDED, WAITING = 12, 20
DAYS = 90
SIDE_BY_SIDE = 8
FIRST_BYTE_MS, WEIGHT_KB = 300, 150
_LOADED = re.compile(r'(?:src|href)="(/static/[^"]+)"')


async def main(root: Path, title: str, rounds: int) -> None:
    report = Report()
    async with (
        serve_pages(root) as server,
        httpx2.AsyncClient(base_url=server.base, timeout=60) as http,
    ):
        code = BrowserSessions(DataRoot(root).browser_sessions).issue_code(os_user(), terminal=True)
        await http.get(f"/enter?code={code}")
        worst, heaviest, rows = 0.0, 0.0, []
        async for path in paths(http):
            times, weight = await measured(http, path, rounds)
            worst, heaviest = max(worst, median(times)), max(heaviest, weight)
            rows.append([path, ms(median(times)), ms(max(times)), f"{weight / 1_000:.0f}"])
    report.table(title, ("page", "first byte ms", "worst ms", "kB"), rows)
    report.verdict("slowest page", worst * 1_000, FIRST_BYTE_MS, unit=" ms")
    report.verdict("heaviest page", heaviest / 1_000, WEIGHT_KB, unit=" kB")


async def paths(http: httpx2.AsyncClient) -> AsyncIterator[str]:
    """Yield the pages; pages deep in the timeline, the list and the log are found by following their links."""
    for path in ("/", "/subagents", "/subagents?state=ended", "/subagents?state=failed", "/subagents?order=cost"):
        yield path
    yield await linked(http, "/subagents", r'class="pager"><a href="([^"]*)"')
    for word in (COMMON, RARE):
        yield f"/subagents?text={word}"
    for days in (7, 30, 90):
        yield f"/costs?days={days}"
    yield "/costs/approvals"
    for path in ("/events", "/events?type=error", f"/events?q={COMMON}", f"/events?q={RARE}"):
        yield path
    yield await linked(http, "/events", r'<a href="([^"]*)" rel="next"')
    yield "/health"
    yield await linked(http, "/", r'href="(/proposals/[^"]*)"')
    one = f"/subagents/{run_id(LONG)}"
    for order in ("newest", "oldest"):
        yield f"{one}?order={order}"
        yield await linked(http, f"{one}?order={order}", rf'href="({one}\?order={order}&amp;from=[^"#]*)')
    yield f"{one}/costs"
    yield f"/subagents/{run_id(OTHERS_FROM + 1)}"


async def linked(http: httpx2.AsyncClient, path: str, link: str) -> str:
    """Return the address of a page's first link of this form."""
    page = await http.get(path)
    found = re.search(link, page.text)
    assert found is not None, f"{path} has no link {link}"
    return found[1].replace("&amp;", "&")


async def measured(http: httpx2.AsyncClient, path: str, rounds: int) -> tuple[list[float], int]:
    """Return the times to the first byte in seconds, and the bytes of a page with its scripts and styles."""
    times: list[float] = []
    body = b""
    for _ in range(rounds):
        began = time.perf_counter()
        async with http.stream("GET", path) as answer:
            times.append(time.perf_counter() - began)
            body = await answer.aread()
            assert answer.status_code == 200, (path, answer.status_code)
    loaded = {each: await http.get(each) for each in set(_LOADED.findall(body.decode()))}
    return times, len(body) + sum(len(each.content) for each in loaded.values())


# -- the log ----------------------------------------------------------------------------------------------------------


def build(folder: Path, runs: int, events: int) -> None:
    """Build the log; its runs have the configuration of a real proposal."""
    print(f"building a log of {runs:,} runs, and one of {events:,} events, in {folder}", flush=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config, root = anyio.run(approved, folder), folder / "data"
    (root / "ava.db").unlink()
    shutil.rmtree(root / "logs", ignore_errors=True)
    (root / "config.toml").write_text("background = false\nmirror = false\n", "utf-8")
    past = _Past(config, runs, events)
    took_s = write(root, mixed(past.runs(), SIDE_BY_SIDE, random.Random(1)), past.time_us)
    print(f"{took_s:.0f} s, {(root / 'ava.db').stat().st_size / 1e6:,.0f} MB", flush=True)


async def approved(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run as a proposal has it, in a new data root."""
    async with open_lab(folder, config=PRICED, runs=False, check=False) as lab:
        config: dict[str, Any] = json.loads((await lab.run((await lab.propose()).subagent_id)).config)
        return config


class _Past:
    """Runs of one user in the last days, then a long one, and proposals that wait."""

    def __init__(self, config: dict[str, Any], runs: int, events: int) -> None:
        self._config = config
        self._runs = runs
        self._events = events
        self._now_us = now_us()
        self._begun_us = self._now_us - DAYS * DAY_US

    def time_us(self, _entries: int) -> int:
        return self._begun_us

    def runs(self) -> Iterator[Iterator[Together]]:
        rng = random.Random(1)
        for begun in range(self._runs):
            self._begun_us = self._now_us - DAYS * DAY_US + begun * DAYS * DAY_US // self._runs
            run = self._life(OTHERS_FROM + begun, rng, self._begun_us + HOUR_US)
            yield islice(run, 3) if begun % UNDECIDED == 0 else run
        self._begun_us = self._now_us - HOUR_US
        yield self._life(LONG, rng, self._now_us, turns=self._events // EVENTS_OF_A_TURN)
        for number in range(WAITING):
            yield islice(self._life(OTHERS_FROM + self._runs + number, rng, self._now_us + DAY_US), 3)

    def _life(self, number: int, rng: random.Random, expires_us: int, turns: int | None = None) -> Iterator[Together]:
        return life(number, rng, turns=turns, user=os_user(), config=self._config, expires_us=expires_us)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=10_000, help="of usual length")
    options.add_argument("--events", type=int, default=100_000, help="of the long run")
    options.add_argument("--rounds", type=int, default=15, help="of each page")
    options.add_argument("--keep", type=Path, help="where the built log is kept, and found again")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place: Path = chosen.keep or Path(temporary)
        if not (place / "data").exists():
            build(place, chosen.runs, chosen.events)
        shown = f"Pages of a log of {chosen.runs:,} runs, and one of {chosen.events:,} events"
        anyio.run(main, place / "data", shown, chosen.rounds)
