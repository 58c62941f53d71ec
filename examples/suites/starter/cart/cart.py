"""A shopping cart; amounts in cents."""

from dataclasses import dataclass, field


@dataclass
class Line:
    name: str
    cents: int
    count: int = 1


@dataclass
class Cart:
    lines: list[Line] = field(default_factory=list)

    def add(self, name: str, cents: int, count: int = 1) -> None:
        """Add goods; the same goods again raise the count."""
        for line in self.lines:
            if line.name == name and line.cents == cents:
                line.count += count
                return
        self.lines.append(Line(name, cents, count))

    def total(self) -> int:
        """Return the sum of all lines."""
        return sum(line.cents * line.count for line in self.lines)

    def discounted(self, percent: int) -> int:
        """Return the total, less a discount of 0 to 100 percent, rounded down."""
        if not 0 <= percent <= 100:
            raise ValueError("percent")
        return self.total() * (100 - percent) // 100

    def remove(self, name: str) -> None:
        """Remove every line of these goods."""
        for line in self.lines:
            if line.name == name:
                self.lines.remove(line)
