"""What Ava costs as its log grows: a year of use on one machine, at a tenth, a hundredth, and all of it.

    python benchmarks/growth.py [--runs 1000 10000 100000] [--rounds 7] [--keep FOLDER] [--only NAME] [--build]

A run has a hundred entries and comes every five minutes, so that a log of 100,000 runs covers a year and has ten
million entries: 15 GB, and in a log of up to 10,000 runs as much again for the mirror. The log's own writer builds it,
for one user; one proposal in twelve was never decided, and one result in ten never fetched.

Goal: nothing that a person waits for takes more than twice as long in the largest log as in the one before it. What
reads the whole log or a whole period is shown, too, and so are the background's duties, for which nobody waits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import anyio
import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit_parts.building import write
from audit_parts.mix import COMMON, RARE, Together, life, mixed, run_id
from audit_parts.report import Report, median, ms
from figures import Figure
from pages import measured
from startup import AVA, FIRST, Server, used_by
from support.http_server import serve_pages
from support.runtime import PRICED, open_lab

from ava_audit import events
from ava_audit.mirror import Mirror
from ava_audit.retention import erase_expired, finish_erasures
from ava_audit.store.sqlite import backend_of
from ava_audit.store.store import Store
from ava_audit.units import DAY_US, HOUR_US, day_of, now_us
from ava_audit.view import View
from ava_server.config.sign_in import BrowserSessions
from ava_server.core.data_root import DataRoot, os_user
from ava_server.render.run_view import carried

GROWTH = 2
SPAN = "SELECT (SELECT min(ts_us) FROM events), (SELECT max(ts_us) FROM events)"
PHRASE = "special method"
MODEL = {
    "AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1",
    "AVA_MODEL": "test",
    "AVA_MODEL_API_KEY": "none-needed",
    "AVA_BACKGROUND": "false",
}
"""The model of the runs, which nobody calls."""
RUN_US = 365 * DAY_US // 100_000
SIDE_BY_SIDE = 8
UNDECIDED, UNFETCHED = 12, 10
"""One run in so many."""
MIRRORED = 10_000
"""A log of more runs has no mirror: it takes as much of the disk again."""


# -- the log ----------------------------------------------------------------------------------------------------------


def grown(keep: Path, runs: int) -> Path:
    """Return the folder with a log of so many runs, which is built unless it is kept from another time."""
    folder = keep / f"growth-{runs}"
    note = folder / "built.json"
    if not note.is_file():
        if folder.exists():
            raise SystemExit(f"{folder} was left half built: remove it")
        folder.mkdir(mode=0o700, parents=True)
        note.write_text(json.dumps(build(folder, runs)), "utf-8")
    print(f"{runs:,} runs: {note.read_text('utf-8')}", flush=True)
    return folder


def build(folder: Path, runs: int) -> dict[str, Any]:
    """Build the log; its runs have the configuration of a real proposal, and the last ones end now."""
    print(f"building a log of {runs:,} runs in {folder}", flush=True)
    config, root = anyio.run(approved, folder), folder / "data"
    (root / "ava.db").unlink()
    shutil.rmtree(root / "logs", ignore_errors=True)
    year = _Year(config, range(runs), now_us() - runs * RUN_US)
    built_s = write(root, mixed(year.runs(), SIDE_BY_SIDE, random.Random(1)), year.time_us)
    if runs <= MIRRORED:
        anyio.run(mirror, root)
    else:
        settings = root / "config.toml"
        settings.write_text(f"mirror = false\n{settings.read_text('utf-8')}", "utf-8")
    return {"built_s": round(built_s), "db_bytes": (root / "ava.db").stat().st_size}


async def approved(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run as a proposal has it, in a new data root."""
    async with open_lab(folder, config=PRICED, runs=False, check=False) as lab:
        config: dict[str, Any] = json.loads((await lab.run((await lab.propose()).subagent_id)).config)
        return config


async def mirror(root: Path) -> None:
    """Write the mirror of a log."""
    async with Store.open(root) as store:
        await Mirror(store, root / "logs").catch_up()


def freshen(root: Path) -> None:
    """Add an hour's runs, unless some are there: a person looks at a log that is in use."""

    def last(view: View) -> tuple[int, int, str]:
        sql = "SELECT count(*), max(created_us), (SELECT config FROM configs ORDER BY id DESC LIMIT 1) FROM runs"
        return next(view.select(sql))

    with closing(backend_of(root).connect(readonly=True)) as db:
        runs, created_us, config = last(View(db))
    if now_us() - created_us > HOUR_US // 3:
        count = HOUR_US // RUN_US
        hour = _Year(json.loads(config), range(runs, runs + count), now_us() - HOUR_US)
        write(root, mixed(hour.runs(), SIDE_BY_SIDE, random.Random(1)), hour.time_us)


class _Year:
    """Runs of one user from a time on, at regular intervals."""

    def __init__(self, config: dict[str, Any], numbers: range, beginning_us: int) -> None:
        self._config = config
        self._numbers = numbers
        self._beginning_us = beginning_us
        self._begun = 0

    def time_us(self, _entries: int) -> int:
        return self._beginning_us + self._begun * RUN_US

    def runs(self) -> Iterator[Iterator[Together]]:
        rng, user = random.Random(self._numbers.start), os_user()
        for begun, number in enumerate(self._numbers):
            self._begun = begun
            turns = min(60, max(1, round(rng.lognormvariate(2.5, 0.8))))
            expires_us = self.time_us(0) + HOUR_US
            run = life(number, rng, turns=turns, user=user, config=self._config, expires_us=expires_us)
            if number % UNDECIDED == 0:
                yield islice(run, 3)
            elif number % UNFETCHED == 0:
                yield run
            else:
                host = events.Who(f"session-{number // 40:06d}", "ava", user)
                fetched = carried(host, "check_subagent", run_id(number))
                call = events.ToolCall(tool="check_subagent", args={"subagent_id": run_id(number)})
                yield chain(run, [(events.Event(host, call),), (fetched,)])


# -- what it costs ----------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What one thing took in each round, in seconds: on the clock, and of the processor where that is known."""

    wall_s: list[float] = field(default_factory=list[float])
    cpu_s: list[float] = field(default_factory=list[float])

    def add(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s.append(wall_s)
        self.cpu_s.append(cpu_s)


Costs = dict[str, Cost]


def middle(root: Path) -> str:
    """Return a run in the middle of the log that has ended."""

    with closing(backend_of(root).connect(readonly=True)) as db:
        sql = "SELECT run_id FROM events WHERE type = 'RunEnded' AND seq > ? ORDER BY seq LIMIT 1"
        ((run,),) = View(db).select(sql, View(db).head() // 2)
        return str(run)


def commands(root: Path, rounds: int, costs: Costs) -> None:
    """Start what a person types, in turns; the first round only fills the caches."""
    run = middle(root)
    typed = {
        "`ava status --once`": ("status", "--once"),
        "`ava logs`, the newest": ("logs", "--last", "20"),
        "`ava logs`, a common word": ("logs", "--search", COMMON),
        "`ava logs`, a rare word": ("logs", "--search", RARE),
        "`ava logs`, a phrase": ("logs", "--search", f'"{PHRASE}"'),
        "`ava logs`, the last hour": ("logs", "--since", "1 hour ago", "--last", "50"),
        "`ava logs`, a word in one run": ("logs", run, "--search", COMMON),
        "`ava show`, a run": ("show", run),
        "`ava report`, two days": ("report", "--since", "1 day ago"),
        "`ava report`, 30 days": ("report",),
        "`ava report estimates`, 30 days": ("report", "estimates"),
        "`ava report approvals`, 30 days": ("report", "approvals"),
    }
    for number in range(rounds + 1):
        for what, words in typed.items():
            took = used_by((AVA, *words), {**os.environ, "AVA_DATA_ROOT": str(root)})
            if number:
                costs.setdefault(what, Cost()).add(*took)
    cold = costs["`ava status --once`, the log not in memory"] = Cost()
    for _ in range(rounds):
        uncached(root)
        cold.add(*used_by((AVA, "status", "--once"), {**os.environ, "AVA_DATA_ROOT": str(root)}))


def uncached(root: Path) -> None:
    """Drop the log from the system's cache."""
    with (root / "ava.db").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def server(root: Path, rounds: int, costs: Costs) -> None:
    """Start a server as a host does, and call its tools; the first round only fills the caches."""
    for number in range(rounds + 1):
        session = _Session(root)
        try:
            session.talk(str(root.parent / "workspace"))
        finally:
            session.there.end()
        for what, took in session.took.items() if number else ():
            costs.setdefault(what, Cost()).add(*took)


class _Session:
    """A host's connection to a server of its own, and what each answer took."""

    def __init__(self, root: Path) -> None:
        self.took: dict[str, tuple[float, float]] = {}
        self._began = time.perf_counter()
        self.there = Server((AVA, "serve"), root)

    def talk(self, workspace: str) -> None:
        self._ask("a server's first answer", "initialize", FIRST["initialize"], self._began)
        self.there.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._call("its first tool call, with the log opened", "check_subagent")
        self._call("`check_subagent`: all that goes on", "check_subagent")
        proposed = self._call(
            "`spawn_subagent`: a proposal with its estimate", "spawn_subagent",
            role="researcher", task="What does it cost?", workspace=workspace,
        )  # fmt: skip
        self._call("`read_ava_logs`, a common word", "read_ava_logs", search=COMMON)
        self._call("`cancel_subagent`", "cancel_subagent", subagent_id=proposed["subagent_id"])
        self.took["memory of the server"] = resident_bytes(self.there.process.pid), 0.0

    def _call(self, what: str, tool: str, **given: Any) -> dict[str, Any]:
        answer = self._ask(what, "tools/call", {"name": tool, "arguments": given}, time.perf_counter())
        assert not answer.get("isError"), answer
        return dict(answer["structuredContent"])

    def _ask(self, what: str, method: str, params: dict[str, Any], began: float) -> dict[str, Any]:
        used = used_s(self.there.process.pid)
        answer: dict[str, Any] = self.there.ask(method, params)
        self.took[what] = time.perf_counter() - began, used_s(self.there.process.pid) - used
        return answer


async def pages(root: Path, rounds: int, costs: Costs) -> None:
    """Open the pages, without a browser."""
    run = middle(root)
    paths = {
        "the overview page": "/",
        "the page of all runs": "/subagents",
        "the page of runs with a word": f"/subagents?text={COMMON}",
        "a run's page": f"/subagents/{run}",
        "the page of costs, two days": f"/costs?from={day_of(now_us() - DAY_US)}",
        "the page of costs, 30 days": "/costs",
    }
    async with (
        serve_pages(root) as there,
        httpx2.AsyncClient(base_url=there.base, timeout=120) as http,
    ):
        code = BrowserSessions(DataRoot(root).browser_sessions).issue_code(os_user(), terminal=True)
        await http.get(f"/enter?code={code}")
        for what, path in paths.items():
            await measured(http, path, 1)
            before = used_s(there.pid)
            times, _weight = await measured(http, path, rounds)
            cpu_s = (used_s(there.pid) - before) / rounds
            costs[what] = Cost(times, [cpu_s])
        costs["memory of the pages' server"] = Cost([resident_bytes(there.pid)], [0.0])


def used_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    after_name = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def whole(root: Path, _rounds: int, costs: Costs) -> None:
    """Read the whole log, once each."""
    env = {**os.environ, "AVA_DATA_ROOT": str(root)}
    costs["`ava verify`"] = cost = Cost()
    cost.add(*used_by((AVA, "verify"), env))
    copy = root.parent / "backup"
    costs["`ava backup`"] = cost = Cost()
    try:
        cost.add(*used_by((AVA, "backup", str(copy)), env))
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    costs["bytes of the log"] = Cost([float((root / "ava.db").stat().st_size)], [0.0])
    mirrored = sum(each.stat().st_size for each in (root / "logs").glob("*/*.jsonl"))
    costs["bytes of the mirror"] = Cost([float(mirrored)], [0.0])


async def retention(root: Path, _rounds: int, costs: Costs) -> None:
    """Erase the oldest month, or the oldest tenth of a shorter log, as the keeper does."""
    async with Store.open(root) as store:
        oldest, newest_us = await store.read(
            lambda view: next(view.select("SELECT min(ts_us), max(ts_us) FROM events"))
        )
        span = (newest_us - oldest) // DAY_US
        kept = span - min(30, max(1, span // 10))
        began, used = time.perf_counter(), time.process_time()
        while not await erase_expired(store, kept, batches=1_000):
            pass
        costs["retention: the oldest month erased"] = Cost([time.perf_counter() - began], [time.process_time() - used])
        began, used = time.perf_counter(), time.process_time()
        await finish_erasures(store, Mirror(store, root / "logs"), (), mirrored=True)
        costs["… and its mirror, index and files finished"] = Cost(
            [time.perf_counter() - began], [time.process_time() - used]
        )


# -- the table --------------------------------------------------------------------------------------------------------

LINEAR = "linear"
BACKGROUND = "nobody waits"
PERIOD = "by its period"
KINDS = {
    "`ava report`, 30 days": PERIOD,
    "`ava report estimates`, 30 days": PERIOD,
    "`ava report approvals`, 30 days": PERIOD,
    "the page of costs, 30 days": PERIOD,
    "`ava verify`": LINEAR,
    "`ava backup`": LINEAR,
    "retention: the oldest month erased": BACKGROUND,
    "… and its mirror, index and files finished": BACKGROUND,
    "memory of the server": "MB",
    "memory of the pages' server": "MB",
    "bytes of the log": "MB",
    "bytes of the mirror": "MB",
}
"""What is no wait of a person that has to stay."""
PARTS: dict[str, Callable[[Path, int, Costs], Any]] = {
    "commands": commands,
    "server": server,
    "pages": lambda root, rounds, costs: anyio.run(pages, root, rounds, costs),
    "whole": whole,
    "retention": lambda root, rounds, costs: anyio.run(retention, root, rounds, costs),
}


def measure(folder: Path, rounds: int, parts: Sequence[str]) -> Costs:
    """Measure some parts of a log, and return these and what was measured of it before."""
    root, note = folder / "data", folder / "measured.json"
    costs = {what: Cost(**took) for what, took in json.loads(note.read_text("utf-8")).items()} if note.is_file() else {}
    for part in parts:
        freshen(root)
        print(f"measuring {part} of {folder.name}", flush=True)
        found = Costs()
        PARTS[part](root, rounds, found)
        costs |= found
        note.write_text(json.dumps({what: asdict(cost) for what, cost in costs.items()}), "utf-8")
    return costs


def show(report: Report, found: Mapping[int, Costs]) -> None:
    """Show the cost of each thing by size, and how often the last is the one before it."""
    sizes = sorted(found)
    rows: list[list[str]] = []
    for what in found[sizes[-1]]:
        kind = KINDS.get(what)  # None: a person waits for it
        costs = [found[size].get(what) for size in sizes]
        cells = ["" if cost is None else shown(cost, kind) for cost in costs]
        growth = ""
        if len(costs) > 1 and costs[-2] is not None and costs[-1] is not None:
            wall, cpu = (median(large) / max(1e-9, median(small)) for large, small in pairs(costs[-1], costs[-2]))
            growth = f"{wall:.2f}"
            if kind is None:
                report.figures.append(Figure(f"growth: {what}", min(wall, cpu), "times", GROWTH))
        if kind is None:
            note = "yes"
        elif kind == "MB":
            note = ""
        else:
            note = kind
        rows.append([what, *cells, growth, note])
    columns = ("wall (processor), ms", *(f"{size:,} runs" for size in sizes), "× the one before", "a person waits")
    report.table("Cost by size of the log", columns, rows)
    missed = [figure.figure for figure in report.figures if not figure.reached]
    report.say(f"Grew more than {GROWTH:g} times: {', '.join(missed) or 'nothing that a person waits for'}.")


def pairs(large: Cost, small: Cost) -> tuple[tuple[list[float], list[float]], tuple[list[float], list[float]]]:
    """Return what is compared: the times on the clock, and of the processor."""
    return (large.wall_s, small.wall_s), (large.cpu_s, small.cpu_s)


def shown(cost: Cost, kind: str | None) -> str:
    """Return a cell: megabytes, or milliseconds on the clock with those of the processor."""
    if kind == "MB":
        return f"{median(cost.wall_s) / 1e6:,.0f} MB"
    return f"{ms(median(cost.wall_s))} ({ms(median(cost.cpu_s))})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, nargs="+", default=(1_000, 10_000, 100_000))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--keep", type=Path, help="where the built logs and what was measured are kept")
    options.add_argument("--only", action="append", choices=PARTS, help="one of the parts; may be repeated")
    options.add_argument("--build", action="store_true", help="measure nothing")
    options.add_argument("--out", type=Path, help="write the table here too, as Markdown")
    chosen = options.parse_args()
    os.environ |= MODEL
    report = Report()
    with tempfile.TemporaryDirectory() as temporary:
        folders = {runs: grown(chosen.keep or Path(temporary), runs) for runs in chosen.runs}
        if not chosen.build:
            show(report, {runs: measure(at, chosen.rounds, chosen.only or [*PARTS]) for runs, at in folders.items()})
    if chosen.out is not None:
        chosen.out.write_text("\n".join(report.markdown), "utf-8")


if __name__ == "__main__":
    main()
