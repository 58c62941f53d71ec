"""Which points of a long matrix the tests take: every one with --all, else a few, others with each commit."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SEED = "PYTEST_SAMPLE_SEED"
"""The variable with the commit; empty where everything runs, slow tests too."""


def commit() -> str:
    """Return the commit that is checked out; something fixed where there is no repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "no git"
    return done.stdout.strip() or "no repository"


def sample(points: Iterable[T], most: int) -> list[T]:
    """Return points in their order: all, or at most so many, chosen by the commit. A failure repeats on that commit."""
    every, seed = list(points), os.environ.get(SEED)
    if not seed or len(every) <= most:
        return every
    return [every[index] for index in sorted(random.Random(seed).sample(range(len(every)), most))]
