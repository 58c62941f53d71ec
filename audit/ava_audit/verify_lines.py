"""Verification of JSONL: a file of the mirror, or an export, without the log that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from ava_audit.chain import GENESIS
from ava_audit.faults import Fault, Report, Told
from ava_audit.line import checked_line

LONGEST_LINE = 16_000_000
"""Several times what the largest entry takes; a longer line is none, and is not read to its end."""
_EVERY = 1_000


def verify_lines(lines: Path | BinaryIO, told: Told | None = None) -> Report:
    """Check a file of the mirror or an export: each line for itself, the order, and how lines are linked.

    Args:
        lines: The file, or what it is read from.
        told: Is told now and then how many bytes have been checked, and how many there are (0: not known).

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(lines, Path):
        with lines.open("rb") as opened:
            return _verify_lines(opened, lines.stat().st_size, told)
    return _verify_lines(lines, 0, told)


def _verify_lines(lines: BinaryIO, size: int, told: Told | None) -> Report:
    seq = entries = gaps = done = 0
    digest = ""
    while line := lines.readline(LONGEST_LINE):
        value = _checked(line, seq, digest)
        if isinstance(value, str):
            return Report(entries, seq, digest, (Fault("line", seq, f"line {entries + 1}: {value}"),), False, gaps)
        gaps += bool(entries) and value["seq"] != seq + 1
        seq, digest = value["seq"], value["hash"]
        entries += 1
        done += len(line)
        if told is not None and entries % _EVERY == 0:
            told(done, size)
    return Report(entries, seq, digest, (), False, gaps)


def _checked(line: bytes, seq: int, digest: str) -> dict[str, Any] | str:
    """Return the line that stands after the entry `seq` with the hash `digest`, or what is wrong with it."""
    if len(line) >= LONGEST_LINE:
        return f"it is longer than any entry ({LONGEST_LINE:,} bytes)"
    value = checked_line(line)
    if isinstance(value, str):
        return value if line.endswith(b"\n") else f"it is cut off; where a server is writing it, try again ({value})"
    if value["seq"] <= seq:
        return f"entry {value['seq']} stands after entry {seq}"
    before = GENESIS.hex() if value["seq"] == 1 else digest if value["seq"] == seq + 1 else ""
    if before and value["prevHash"] != before:
        return f"entry {value['seq']} does not follow the entry before it"
    return value
