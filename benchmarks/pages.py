"""The pages in a browser over a busy log: time to the first byte of each page, and its weight with all that it loads.

    python benchmarks/pages.py [--events 100000] [--rounds 15] [--keep FOLDER]

One run has so many events; for each hundred of them there is another run of usual length. All have ended.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path

import anyio
import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit_parts.mix import Together, life, run_id
from audit_parts.report import Report, median, ms
from support.http_server import serve_pages
from support.runtime import PRICED, open_lab, settings_of

from ava_audit.maintenance import index_new_entries
from ava_audit.store.store import Outcome, Store
from ava_server.config.sign_in import BrowserSessions
from ava_server.core.data_root import DataRoot, os_user

EVENTS_OF_A_TURN = 6
LONG, OTHERS_FROM = 1, 1_000
FIRST_BYTE_MS, WEIGHT_KB = 300, 150
AT_ONCE = 500
_LOADED = re.compile(r'(?:src|href)="(/static/[^"]+)"')


async def main(folder: Path, events: int, rounds: int) -> None:
    root, report = folder / "data", Report()
    if not root.exists():
        await build(folder, events)
    settings_of(root, None, "background = false\n")
    async with (
        serve_pages(root) as server,
        httpx2.AsyncClient(base_url=server.base, timeout=60) as http,
    ):
        code = BrowserSessions(DataRoot(root).browser_sessions).issue_code(os_user(), terminal=True)
        await http.get(f"/enter?code={code}")
        worst, heaviest, rows = 0.0, 0.0, []
        for path in [path async for path in paths(http)]:
            times, weight = await measured(http, path, rounds)
            worst, heaviest = max(worst, median(times)), max(heaviest, weight)
            rows.append([path, ms(median(times)), ms(max(times)), f"{weight / 1_000:.0f}"])
    report.table(f"Pages of a log with a run of {events:,} events", ("page", "first byte ms", "worst ms", "kB"), rows)
    report.verdict("slowest page", worst * 1_000, FIRST_BYTE_MS, unit=" ms")
    report.verdict("heaviest page", heaviest / 1_000, WEIGHT_KB, unit=" kB")


async def paths(http: httpx2.AsyncClient) -> AsyncIterator[str]:
    """Yield the pages; pages deep in the timeline and in the list are found by following their links."""
    for path in ("/", "/subagents", "/subagents?state=ended", "/subagents?text=value", "/costs", "/events", "/health"):
        if (await http.get(path)).status_code == 200:
            yield path
    one = f"/subagents/{run_id(LONG)}"
    for order in ("newest", "oldest"):
        page = (await http.get(f"{one}?order={order}")).text
        yield f"{one}?order={order}"
        link = re.search(rf'href="({one}\?order={order}&amp;from=[^"#]*)', page)
        assert link is not None, "a long run has a second page"
        yield link[1].replace("&amp;", "&")
    older = re.search(r'class="pager"><a href="([^"]*)"', (await http.get("/subagents")).text)
    assert older is not None, "the list has a second page"
    yield older[1].replace("&amp;", "&")
    yield f"{one}/costs"


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


async def build(folder: Path, events: int) -> None:
    """Build the log through the real store; the long run has the configuration of a real proposal."""
    print(f"building a log with a run of {events:,} events in {folder}", flush=True)
    async with open_lab(folder, config=PRICED, runs=False, check=False) as lab:
        proposal = await lab.propose()
        config = json.loads((await lab.run(proposal.subagent_id)).config)
        rng, user = random.Random(1), os_user()
        long = life(LONG, rng, turns=events // EVENTS_OF_A_TURN, user=user, config=config)
        await write(lab.store, long)
        for number in range(OTHERS_FROM, OTHERS_FROM + events // 100):
            await write(lab.store, life(number, rng, user=user, config=config))
        await index_new_entries(lab.store)
        await lab.store.checkpoint()


async def write(store: Store, source: Iterator[Together]) -> None:
    """Write what belongs together at once, and many of these side by side."""
    while some := list(islice(source, AT_ONCE)):
        async with anyio.create_task_group() as tasks:
            for together in some:
                tasks.start_soon(store.do, lambda _view, _now, made=together: Outcome(None, made))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--events", type=int, default=100_000, help="of the long run")
    options.add_argument("--rounds", type=int, default=15, help="of each page")
    options.add_argument("--keep", type=Path, help="where the built log is kept, and found again")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        anyio.run(main, chosen.keep or Path(temporary), chosen.events, chosen.rounds)
