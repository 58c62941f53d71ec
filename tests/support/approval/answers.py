"""What an answer of confirm_spawn says."""

from __future__ import annotations

from typing import Any


def why_refused(answer: Any) -> str:
    """Return the one reason for which an approval was refused."""
    assert answer.status == "refused", answer
    return str(answer.decisions[0].refused_because)
