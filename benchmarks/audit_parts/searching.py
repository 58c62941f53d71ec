"""Searches as the product asks them, each beside `grep` and its like over the same entries as JSON lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from audit_parts.building import END_US, LAST_HOUR, Log
from audit_parts.mix import COMMON, RARE
from audit_parts.peers import Duck, duck
from audit_parts.report import Report, median, ms, quantile
from ava_audit.search import LogQuery, search
from ava_audit.store.store import Store
from ava_audit.view import View

SEARCHES = 300
SCANS = 3
TARGET_MS = 0.6
PAGE = 50
ERRORS = r'"eventType":"ErrorOccurred"|"tool":"[a-z_]+","success":false|"content":\{"status":"error","summary"'


@dataclass(frozen=True)
class Question:
    """One question, for us and in the words of others.

    Attributes:
        name: What is asked.
        query: For us.
        pattern: What `grep -P` or `rg` looks for in a line.
        sql: What DuckDB looks for: a condition on the columns of the JSON lines.
        same: Whether all of them mean exactly the same entries.
    """

    name: str
    query: LogQuery
    pattern: str
    sql: str
    same: bool = True


def questions(run: str, user: str) -> list[Question]:
    """Return what is asked; `user` is whom the session asks for, as `read_ava_logs` does."""
    mine = rf'"agentId":"{run}"'
    # In the log the words of an entry are searched; in a line of JSON also what no person reads, hence `same`.
    return [
        Question(
            "last 100 of a run", LogQuery(agents=(run,), users=(user,), limit=100), mine, f"agentId = '{run}'"
        ),
        Question(
            "errors of the last hour", LogQuery(types=("error",), since_us=END_US - 3_600_000_000, limit=PAGE),
            rf'^\{{"timestamp":"{LAST_HOUR}.*?(?:{ERRORS})',
            f"timestamp >= '{LAST_HOUR}00' AND (eventType = 'ErrorOccurred' OR (eventType = 'ToolResult' AND"
            " content->>'success' = 'false') OR (eventType = 'SubagentComplete' AND content->>'status' = 'error'))",
        ),
        Question(
            "a rare word", LogQuery(search=RARE, limit=PAGE), RARE, f"CAST(content AS VARCHAR) LIKE '%{RARE}%'"
        ),
        Question(
            "a common word", LogQuery(users=(user,), search=COMMON, limit=PAGE),
            rf'"userId":"{user}".*?\b(?i:{COMMON})\b',
            f"userId = '{user}' AND regexp_matches(CAST(content AS VARCHAR), '(?i)\\b{COMMON}\\b')", same=False,
        ),
        Question(
            "one word within one run", LogQuery(agents=(run,), users=(user,), search=COMMON, limit=PAGE),
            rf'{mine}.*?\b(?i:{COMMON})\b',
            f"agentId = '{run}' AND regexp_matches(CAST(content AS VARCHAR), '(?i)\\b{COMMON}\\b')", same=False,
        ),
    ]  # fmt: skip


def show(report: Report, log: Log) -> None:
    """Ask everything of everybody."""
    asked, ours, bare = anyio.run(_ask_us, log.folder)
    scanners = _scanners(log.lines)
    ducks = duck(log.lines)
    report.say(
        f"Searches: {SEARCHES} each, turn about, on an open store; others {SCANS} times each, the files in memory. "
        f"`{RARE}` stands in {_count(log.lines, RARE)} entries; a session asks for its own user's entries. "
        "grep and ripgrep: the quicker of the whole file with `tail` and of `tac` with the newest only. "
        + ("ripgrep is not installed and left out. " if "rg" not in scanners else "")
        + ("" if isinstance(ducks, Duck) else ducks)
    )
    rows = []
    for question in asked:
        seqs, waits, read = ours[question.name]
        theirs = {name: _scanned(scan, question, seqs) for name, scan in scanners.items()}
        if isinstance(ducks, Duck):
            theirs["DuckDB"] = ducks.asked(question.sql, question.query.limit, SCANS)
        p50 = median(waits)
        rows.append(
            [
                question.name, str(len(seqs)), ms(p50), ms(quantile(waits, 0.99)), ms(median(read)),
                *(f"{ms(took)} ({took / p50:,.0f} ×)" for took in theirs.values()),
            ]
        )  # fmt: skip
    columns = ("", "found", "p50 ms", "p99 ms", "p50, all read, ms", *(f"{name} ms" for name in theirs))
    report.table(f"Newest first, of {log.entries:,} entries", columns, rows)
    report.say(
        "Found: the page is there, each entry with its content; all read: each content was parsed and checked, too, of"
        " which a page of read_ava_logs shows 10,000 characters."
    )
    report.say(
        f"The reading without a question (a thread, a snapshot, the head): p50 {ms(median(bare))} ms, "
        f"p99 {ms(quantile(bare, 0.99))} ms."
    )
    for name, (_seqs, waits, _read) in ours.items():
        report.verdict(f"{name}, p50", median(waits) * 1000, TARGET_MS, unit=" ms")


async def _ask_us(
    root: Path,
) -> tuple[list[Question], dict[str, tuple[list[int], list[float], list[float]]], list[float]]:
    found: dict[str, list[int]] = {}
    waits: dict[str, list[float]] = {}
    read: dict[str, list[float]] = {}
    bare: list[float] = []
    async with Store.open(root) as store:
        asked = questions(*await store.read(_a_long_run))
        for number in range(SEARCHES + 3):
            for question in asked:
                began = time.perf_counter()
                page = await search(store, question.query)
                took = time.perf_counter() - began
                found[question.name] = [entry.seq for entry in page.entries]
                if number >= 3:  # the first ones only fill the caches
                    waits.setdefault(question.name, []).append(took)
            began = time.perf_counter()
            await store.read(View.head)
            bare.append(time.perf_counter() - began)
        for _ in range(SEARCHES):  # apart: while facts are made here, the thread that searches grows cold
            for question in asked:
                began = time.perf_counter()
                page = await search(store, question.query)
                assert all(entry.fact is not None for entry in page.entries)
                read.setdefault(question.name, []).append(time.perf_counter() - began)
    return asked, {name: (found[name], waits[name], read[name]) for name in found}, bare


def _a_long_run(view: View) -> tuple[str, str]:
    """Return a run in the middle of the log that has more than a hundred entries, and its user."""
    middle = view.head() // 2
    ((run, user, _count),) = view.select(
        "SELECT run_id, user_id, count(*) FROM events WHERE seq BETWEEN ? AND ? AND generation IS NOT NULL"
        " GROUP BY run_id ORDER BY count(*) DESC LIMIT 1",
        middle - 20_000,
        middle + 20_000,
    )
    return str(run), str(user)


Scan = Callable[[str, int], Sequence[str]]
"""Gives the shell's words for: these lines of the file, the newest so many."""


def _scanners(lines: Path) -> dict[str, list[Scan]]:
    file = f"'{lines}'"
    scanners: dict[str, list[Scan]] = {}
    if shutil.which("grep"):
        scanners["grep"] = [
            lambda pattern, limit: ("sh", "-c", f"LC_ALL=C grep -P '{pattern}' {file} | tail -n {limit}"),
            lambda pattern, limit: ("sh", "-c", f"tac {file} | LC_ALL=C grep -P -m {limit} '{pattern}'"),
        ]
    if shutil.which("rg"):
        scanners["rg"] = [
            lambda pattern, limit: ("sh", "-c", f"rg --no-config '{pattern}' {file} | tail -n {limit}"),
            lambda pattern, limit: ("sh", "-c", f"tac {file} | rg --no-config -m {limit} '{pattern}'"),
        ]
    return scanners


def _scanned(scans: Sequence[Scan], question: Question, ours: list[int]) -> float:
    """Return the median time of the quicker way, having seen that it finds what we found."""
    medians = []
    for number, scan in enumerate(scans):
        took = []
        for _ in range(SCANS):
            began = time.perf_counter()
            output = subprocess.run(scan(question.pattern, question.query.limit), capture_output=True, check=False)
            took.append(time.perf_counter() - began)
        seqs = [int(found) for found in re.findall(rb'"metadata":\{[^}]*\},"seq":(\d+)', output.stdout)]
        newest_first = seqs if number else seqs[::-1]
        if question.same and newest_first != ours:
            raise SystemExit(f"{question.name}: {scan('…', 0)[2]} found {newest_first[:5]}…, not {ours[:5]}…")
        medians.append(median(took))
    return min(medians)


def _count(lines: Path, word: str) -> int:
    with lines.open("rb") as file:
        return sum(word.encode() in line for line in file)
