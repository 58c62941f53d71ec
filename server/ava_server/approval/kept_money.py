"""What a step over a list leaves of its plan's money to the steps that come after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ava_server.run_config.config import StepConfig


def all_needs(steps: Sequence[StepConfig]) -> Mapping[str, frozenset[str]]:
    """Return for each step all that have to end before it starts, directly or not."""
    needs: dict[str, frozenset[str]] = {}
    for step in steps:  # each comes after all that it needs
        needs[step.id] = frozenset(step.needs).union(*(needs[name] for name in step.needs))
    return needs


def later_steps(steps: Sequence[StepConfig], step: StepConfig, begun: Collection[str] = ()) -> list[StepConfig]:
    """Return the steps that have not begun and come after a step over a list, be it this one or another.

    Steps over lists can be at work at the same time, so each leaves money to what comes after any of them.
    """
    needs = all_needs(steps)
    lists = {each.id for each in steps if each.foreach is not None}
    later: list[StepConfig] = []
    for other in steps:
        is_later = other.id != step.id and other.id not in needs[step.id] and not lists.isdisjoint(needs[other.id])
        if is_later and other.id not in begun and other.new_runs and not other.config.free:
            later.append(other)
    return later


def kept_steps(later: Sequence[StepConfig], room_micros: int) -> list[StepConfig]:
    """Return the first of these steps whose least costs fit together into an amount, in micro-USD."""
    kept: list[StepConfig] = []
    for step in later:
        room_micros -= step.config.least_micros
        if room_micros < 0:
            break
        kept.append(step)
    return kept
