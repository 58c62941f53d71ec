"""What a run of the verify command said."""

from __future__ import annotations

from dataclasses import dataclass

from ava_roles.sandbox.sandbox import Ended
from ava_roles.worktree.failing import failing_part


@dataclass(frozen=True)
class Verdict:
    """How one run of a command in the check tree ended.

    Attributes:
        passed: It ended by itself, with exit code 0.
        code: Its exit code; None where it was ended.
        ended: As `sandbox.Finished.ended`.
        output: What it wrote, as it came; at most 400,000 bytes.
        took_s: Seconds.
        tree: What was checked, as git calls it: the candidate.
    """

    passed: bool
    code: int | None
    ended: Ended
    output: str
    took_s: float
    tree: str = ""

    def failing(self, limit: int = 6_000) -> str:
        """Return the part of the output that says what failed, at most so many characters."""
        return failing_part(self.output, limit)
