"""Small statistics."""

from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Return the median. Raises ValueError: there are no values."""
    if not values:
        raise ValueError("no values")
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return (values[middle - 1] + values[middle]) / 2
