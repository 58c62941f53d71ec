"""What spans cost: a turn of Ava without any, with those that go nowhere, and with those that an SDK records."""

from __future__ import annotations

from audit_parts.report import Report, median
from figures import Figure

from loop_parts.children import SPANS, endpoint, started
from loop_parts.turns import TURNS

NONE, SILENT, RECORDED = SPANS
SIZES = {1: 10, 10: 3, 100: 1}
RATIO = 1.02
"""More than that a turn may not cost for spans that nobody wants."""


def show(report: Report, rounds: int) -> list[Figure]:
    """Measure the three, turn and turn about, and return the figures that have a goal."""
    names = (NONE, SILENT, RECORDED)
    taken: dict[tuple[str, int], list[float]] = {(name, runs): [] for name in names for runs in SIZES}
    with endpoint(TURNS) as port:
        children = {name: started(name, port, None) for name in names}
        try:
            for child in children.values():
                child.measured("turns", 10, 1, TURNS)  # fills the caches
            for number in range(rounds):
                for runs, times in SIZES.items():
                    for name in sorted(names, reverse=bool(number % 2)):
                        taken[name, runs].append(children[name].measured("turns", runs, times, TURNS)["cpu_ms"])
        finally:
            for child in children.values():
                child.end()
    rows = []
    for name in names:
        row = [name]
        for runs in SIZES:
            own = taken[name, runs]
            row += [f"{min(own):.3f} / {median(own):.3f}", f"{median(_beside(taken, name, runs)):.3f}"]
        rows.append(row)
    heads = [head for runs in SIZES for head in (f"{runs} run{'s' * (runs > 1)}", "× none")]
    report.table("CPU ms per turn, min / median", ("", *heads), rows)
    figures = []
    for runs in SIZES:
        ratio, none = median(_beside(taken, SILENT, runs)), median(taken[NONE, runs])
        report.verdict(f"{SILENT}, {runs} at once", ratio, RATIO, unit=" ×")
        figures.append(Figure(f"{SILENT}: CPU of a turn, {runs} at once", ratio * none, "ms", RATIO, none))
    return figures


def _beside(taken: dict[tuple[str, int], list[float]], name: str, runs: int) -> list[float]:
    return [own / none for own, none in zip(taken[name, runs], taken[NONE, runs], strict=True)]
