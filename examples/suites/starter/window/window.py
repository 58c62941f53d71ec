"""A sliding window over the last values."""

from collections import deque


class Window:
    """Keeps the last `size` values and their sum."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("size")
        self._values: deque[float] = deque()
        self._size = size

    def add(self, value: float) -> None:
        """Add a value; the oldest one goes where there is no room."""
        if len(self._values) == self._size:
            self._values.popleft()
        self._values.append(value)

    def mean(self) -> float | None:
        """Return the mean of the kept values; None where there is none."""
        return sum(self._values) / len(self._values) if self._values else None
