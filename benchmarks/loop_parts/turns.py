"""CPU time of a turn: one model call and one tool call, beside a bare loop and beside other people's agents."""

from __future__ import annotations

from pathlib import Path

from audit_parts.report import Report, median
from figures import Figure

from loop_parts.children import AVA, FLOOR, KEEPING, OURS, PEERS, STREAMED, endpoint, started

TURNS = 10
SIZES = {1: 10, 10: 3, 100: 1}
"""How many runs at once, and how often one after another in one measurement."""
RATIOS = {AVA: {1: 3.0, 10: 2.5, 100: 2.0}, STREAMED: {1: 4.0, 10: 3.0, 100: 2.5}}
"""How many times a bare loop's CPU time a turn may take, by how many runs are at once."""
GROWTH = 1.3

Taken = dict[tuple[str, int], list[dict[str, float]]]


def show(report: Report, rounds: int, peers: Path | None) -> list[Figure]:
    """Measure everybody, turn and turn about, and return the figures that have a goal."""
    names = [*OURS, *(PEERS if peers is not None else ())]
    taken: Taken = {(name, runs): [] for name in names for runs in SIZES}
    with endpoint(TURNS) as port:
        children = {name: started(name, port, peers) for name in names}
        try:
            for name in names:
                children[name].measured("turns", 10, 1, TURNS)  # fills the caches
            for number in range(rounds):
                for runs, times in SIZES.items():
                    for name in sorted(names, reverse=bool(number % 2)):  # nobody is always the first
                        taken[name, runs].append(children[name].measured("turns", runs, times, TURNS))
        finally:
            for child in children.values():
                child.end()
    report.say(f"{TURNS} turns a run, {rounds} rounds.")
    _turns(report, taken, names)
    _keeper(report, taken)
    _around(report, taken)
    figures = []
    for name, goals in RATIOS.items():
        for runs, goal in goals.items():
            ratio, floor = median(_ratios(taken, name, runs)), median(_cpu(taken, FLOOR, runs))
            report.verdict(f"{name} beside the bare loop, {runs} at once", ratio, goal, unit=" ×")
            figures.append(Figure(f"{name}: CPU of a turn, {runs} at once", ratio * floor, "ms", goal, floor))
    grown = [many / one for many, one in zip(_cpu(taken, AVA, 100), _cpu(taken, AVA, 1), strict=True)]
    report.verdict("Ava at 100 runs beside Ava at 1", median(grown), GROWTH, unit=" ×")
    one = median(_cpu(taken, AVA, 1))
    return [*figures, Figure("Ava: CPU of a turn at 100 runs beside 1", median(grown) * one, "ms", GROWTH, one)]


def _turns(report: Report, taken: Taken, names: list[str]) -> None:
    rows = []
    for name in names:
        if name == KEEPING:
            continue
        row = [name]
        for runs in SIZES:
            took = _cpu(taken, name, runs)
            row += [f"{min(took):.2f} / {median(took):.2f}", f"{median(_ratios(taken, name, runs)):.1f}"]
        wall = median([each["wall_ms"] for each in taken[name, 100]])
        rows.append([*row, f"{1000 / wall:,.0f}"])
    heads = [head for runs in SIZES for head in (f"{runs} run{'s' * (runs > 1)}", "× floor")]
    report.table("CPU ms per turn, min / median", ("", *heads, "turns/s at 100"), rows)


def _keeper(report: Report, taken: Taken) -> None:
    """What it costs to index and to mirror what a turn wrote: with a keeper beside, less without."""
    rows = []
    for runs in SIZES:
        pairs = zip(taken[KEEPING, runs], taken[AVA, runs], strict=True)
        shares = [kept["cpu_ms"] + kept["settled_ms"] - bare["cpu_ms"] for kept, bare in pairs]
        rows.append([f"{runs} at once", f"{min(shares):.2f} / {median(shares):.2f}"])
    report.table("The keeper's share of a turn, CPU ms, min / median", ("", "index and mirror"), rows)


def _around(report: Report, taken: Taken) -> None:
    rows = [
        [name, f"{median([each['around_ms'] for each in taken[name, 100]]):.1f}"]
        for name in dict.fromkeys(name for name, _runs in taken)
        if name != KEEPING
    ]
    report.table("What a run takes beside its turns, CPU ms (100 at once, opening included)", ("", "median"), rows)


def _cpu(taken: Taken, name: str, runs: int) -> list[float]:
    return [each["cpu_ms"] for each in taken[name, runs]]


def _ratios(taken: Taken, name: str, runs: int) -> list[float]:
    return [ours / floor for ours, floor in zip(_cpu(taken, name, runs), _cpu(taken, FLOOR, runs), strict=True)]
