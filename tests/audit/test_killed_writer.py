"""A writer that is killed: nothing that it was told of is lost, and the log and its mirror are whole."""

from __future__ import annotations

from pathlib import Path

from support.logs.killing import kill_the_writer


def test_killing_the_writer_under_load_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    killed = kill_the_writer(root, rounds=4)  # benchmarks/audit.py does it twenty times
    assert (killed.lost, killed.faults) == ([], [])
    assert killed.rounds == 4 and killed.acknowledged > 100, "it was killed while it wrote, however slow the machine"
