"""Redaction of real text: this project's own sources and those of Python's library."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from audit_parts.report import Report, median
from ava_audit.redaction import Redactor

MOST_MB = 12
ROUNDS = 5
TARGET = 25.0
VALUES = {f"SECRET_{number}": f"v{number:02d}-Zr8w-Qm41-Lk9x-{number * 7919:08x}" for number in range(10)}
"""Configured values, as many as a busy set-up has."""


def show(report: Report) -> None:
    """Redact everything, with and without configured values, turn and turn about."""
    texts = [path.read_text("utf-8", "replace") for path in _sources()]
    values = list(VALUES.values())
    texts = [f"{text}{values[number % len(values)]}\n" for number, text in enumerate(texts)]
    size_mb = sum(len(text.encode()) for text in texts) / 1e6
    redactors = {"no values": Redactor({}), "10 configured values": Redactor(VALUES)}
    took: dict[str, list[float]] = {name: [] for name in redactors}
    replaced: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, redactor in redactors.items():
            began = time.perf_counter()
            replaced[name] = sum(redactor.redact(text)[1] for text in texts)
            took[name].append(time.perf_counter() - began)
    rows = [
        [name, f"{size_mb / median(times):.1f}", f"{size_mb / min(times):.1f}", f"{replaced[name]:,}"]
        for name, times in took.items()
    ]
    report.table(
        f"Redaction of {len(texts):,} source files, {size_mb:.1f} MB",
        ("", "MB/s (median)", "MB/s (best)", "places replaced"),
        rows,
    )
    for name, times in took.items():
        report.verdict(f"redaction with {name}", size_mb / median(times), TARGET, least=True, unit=" MB/s")


def _sources() -> Iterator[Path]:
    """Yield files: our own, then the library's in order of their names, until it is enough."""
    here = Path(__file__).resolve().parents[2]
    library = Path(sysconfig.get_path("stdlib"))
    own = [path for folder in ("audit", "roles", "server", "tests", "docs") for path in (here / folder).rglob("*.*")]
    size = 0
    for path in (*sorted(own), *sorted(library.rglob("*.py"))):
        if path.suffix in (".py", ".md", ".sql", ".json", ".toml") and "site-packages" not in path.parts:
            size += path.stat().st_size
            if size > MOST_MB * 1_000_000:
                return
            yield path
