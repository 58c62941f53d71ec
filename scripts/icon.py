"""The icon of Ava, drawn here: one that hands over, three that do, and the lines between them.

`python scripts/icon.py FILE` writes it; the bundle has it as `icon.png`.
"""

from __future__ import annotations

import struct
import sys
import zlib
from math import hypot
from pathlib import Path

SIZE = 512
"""What Claude Desktop recommends; the drawing below is in these units."""
EDGE, CORNER = 16.0, 104.0
TOP, TOP_RADIUS = (256.0, 164.0), 66.0
BELOW = ((128.0, 364.0), (256.0, 364.0), (384.0, 364.0))
BELOW_RADIUS, LINE = 42.0, 11.0
GROUND, LINES, GIVER, DOERS = (18, 62, 74), (122, 178, 182), (250, 248, 240), (244, 168, 72)

Colour = tuple[int, int, int]


def png() -> bytes:
    """Return the icon as a PNG file with transparent corners; the same bytes each time."""
    half = [b"".join(_pixel(x + 0.5, y + 0.5) for x in range(SIZE // 2)) for y in range(SIZE)]
    rows = b"".join(b"\0" + left + _mirrored(left) for left in half)
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _pixel(x: float, y: float) -> bytes:
    colour = _over(GROUND, LINES, min(_to_line(x, y, *TOP, *end) for end in BELOW) - LINE)
    colour = _over(colour, DOERS, min(hypot(x - a, y - b) for a, b in BELOW) - BELOW_RADIUS)
    colour = _over(colour, GIVER, hypot(x - TOP[0], y - TOP[1]) - TOP_RADIUS)
    return bytes((*colour, round(255 * _inside(_to_plate(x, y)))))


def _inside(distance: float) -> float:
    """Return how much of a pixel is inside a shape whose edge is that far away, so that edges are smooth."""
    return min(max(0.5 - distance, 0.0), 1.0)


def _over(below: Colour, above: Colour, distance: float) -> Colour:
    share = _inside(distance)
    red, green, blue = (round(b + (a - b) * share) for a, b in zip(above, below, strict=True))
    return red, green, blue


def _to_line(x: float, y: float, ax: float, ay: float, bx: float, by: float) -> float:
    along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
    along = min(max(along, 0.0), 1.0)
    return hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay))


def _to_plate(x: float, y: float) -> float:
    middle, reach = SIZE / 2, SIZE / 2 - EDGE - CORNER
    across, down = abs(x - middle) - reach, abs(y - middle) - reach
    return hypot(max(across, 0.0), max(down, 0.0)) + min(max(across, down), 0.0) - CORNER


def _mirrored(row: bytes) -> bytes:
    return b"".join(row[at : at + 4] for at in range(len(row) - 4, -1, -4))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(png())
