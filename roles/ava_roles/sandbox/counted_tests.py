"""How many tests a command has run so far, read from its output while it runs.

What is said has only numbers: the output is the command's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_LINE_BYTES = 4_096
"""The longest line that is read; of a longer one, the rest is left out."""
_DOTS = re.compile(rb"(?:\S+\.py )?(?P<dots>[.FEsxX]+)(?: +\[?[ \d]*%?\]?)?\s*")
"""A line of pytest or unittest: a character for each test."""
_BEGUN = re.compile(rb"\S+\.py |\.")
"""How such a line begins that counts before its end: a letter alone may begin a word."""
_PASSED = re.compile(
    rb"test .+ \.\.\. ok"  # cargo
    rb"| *--- PASS: .*"  # go test -v
    rb"|ok \d+.*"  # TAP
    rb"|.+ PASSED(?: .*)?"  # pytest -v
    rb"|PASS .+"  # Jest
    rb"|\s*(?:\xe2\x9c\x93|\xe2\x9c\x94) .+"  # Mocha, node --test
)
_FAILED = re.compile(
    rb"test .+ \.\.\. FAILED"
    rb"| *--- FAIL: .*"
    rb"|not ok \d+.*"
    rb"|.+ FAILED(?: .*)?"
    rb"|FAIL .+"
    rb"|\s*(?:\xe2\x9c\x97|\xe2\x9c\x98|\xe2\x9c\x96) .+"
)


def is_of_tests(command: str) -> bool:
    """Tell whether a command may run tests, by its words."""
    return re.search(r"test|spec|jest|mocha|tox|nox", command) is not None


class CountedTests:
    """Counts tests in the output of a command, and says how many ran: `Running tests: 12 passed, 1 failed`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._line = b""
        self._passed = self._failed = 0
        self._said = (0, 0)

    def hear(self, piece: bytes) -> None:
        """Read the next piece of the output."""
        *lines, rest = (self._line + piece).split(b"\n")
        for line in lines:
            passed, failed = _counts(line[:_LINE_BYTES])
            self._passed += passed
            self._failed += failed
        self._line = rest[:_LINE_BYTES]
        begun = _counts(self._line) if _BEGUN.match(self._line) and _DOTS.fullmatch(self._line) else (0, 0)
        self._tell(self._passed + begun[0], self._failed + begun[1])

    def _tell(self, passed: int, failed: int) -> None:
        if (passed, failed) == self._said:
            return
        self._said = passed, failed
        also = f", {failed:,} failed" if failed else ""
        self._say(f"Running tests: {passed:,} passed{also}")


def _counts(line: bytes) -> tuple[int, int]:
    """Return how many tests passed and failed by a line of the output."""
    line = line.rstrip(b"\r")
    if (dots := _DOTS.fullmatch(line)) is not None:
        shown = dots["dots"]
        return shown.count(b"."), shown.count(b"F") + shown.count(b"E")
    if _FAILED.fullmatch(line):
        return 0, 1
    return (1, 0) if _PASSED.fullmatch(line) else (0, 0)
