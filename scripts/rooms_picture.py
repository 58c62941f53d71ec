"""Draw the rooms of the code and what imports what, docs/rooms.svg: `python scripts/rooms_picture.py`.

The lines come from the import statements of the three packages and of the room `runs`, also those inside functions and
those for types only. A line that follows from others is left out: where `cli` leads to `service` and `service` to
`core`, none leads from `cli` to `core`. tests/test_rooms_picture.py draws it again and compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "docs" / "rooms.svg"
PACKAGES = {
    "ava_server": "server/ava_server",
    "ava_roles": "roles/ava_roles",
    "ava_audit": "audit/ava_audit",
    "ava_server.runs": "server/ava_server/runs",
}

Imports = Mapping[str, frozenset[str]]
"""For each room of a package, the rooms of the same package that it uses."""

BOX_WIDTH, BOX_HEIGHT = 118, 30
ROW_HEIGHT = 58
PADDING = 24
HEAD_HEIGHT = 64
"""From the top of a panel to its first row: its name and a sentence."""
STYLE = """
  .ground { fill: #ffffff } .panel { fill: #f2f5f7; stroke: #b7c3cb } .room { fill: #ffffff; stroke: #40687a }
  .line { stroke: #6b8795; fill: none; stroke-width: 1.4 } .tip { fill: #6b8795 }
  text { font: 14px system-ui, sans-serif; fill: #14262e } .name { font-weight: 600 } .note { font-size: 12.5px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #11181c } .panel { fill: #182228; stroke: #3d4f59 } .room { fill: #22323a; stroke: #7fa6b8 }
    .line { stroke: #8aa7b5 } .tip { fill: #8aa7b5 } text { fill: #e6eef2 }
  }
"""


class Panel(NamedTuple):
    """One package on the picture; lengths are in pixels."""

    package: str
    note: str
    left: int
    top: int
    width: int
    height: int = 0


SERVER = Panel("ava_server", "The server. A room uses what its lines lead to, and may use all below that.", 20, 20, 580)
ROLES = Panel("ava_roles", "Roles, their tools and the sandbox.", 640, 20, 580)
AUDIT = Panel("ava_audit", "The log.", 640, 20, 580)
RUNS = Panel("ava_server.runs", "One run: what is inside the room runs.", 640, 20, 580)
"""The height of each, and the top of the last two, follow from their rooms."""


# -- what imports what ------------------------------------------------------------------------------------------------


def imports_of(package: str) -> Imports:
    """Return what the rooms of a package import of each other; its single files belong to no room."""
    folder = REPOSITORY / PACKAGES[package]
    rooms = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for file in sorted((folder / room).rglob("*.py")):
            for module in imported_modules(file):
                used = module.removeprefix(f"{package}.").partition(".")[0]
                if module.startswith(f"{package}.") and used in found:
                    found[room].add(used)
        found[room].discard(room)
    return {room: frozenset(uses) for room, uses in found.items()}


def imported_modules(file: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports; the code has no relative imports."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def direct(imports: Imports) -> dict[str, list[str]]:
    """Return the imports without those that follow from others."""
    lines: dict[str, list[str]] = {}
    for room, uses in imports.items():
        implied = {below for each in uses for below in everything_below(imports, each)}
        lines[room] = sorted(uses - implied)
    return lines


def everything_below(imports: Imports, room: str) -> set[str]:
    """Return the rooms that a room uses, by however many steps. `lint-imports` keeps cycles out."""
    below: set[str] = set()
    for each in imports[room]:
        below |= {each} | everything_below(imports, each)
    return below


# -- where each room stands -------------------------------------------------------------------------------------------


def rows_of(imports: Imports) -> list[list[str]]:
    """Return the rooms in rows: each stands right below the lowest room that uses it."""
    depth: dict[str, int] = {}

    def depth_of(room: str) -> int:
        if room not in depth:
            users = [user for user, uses in imports.items() if room in uses]
            depth[room] = 1 + max(depth_of(user) for user in users) if users else 0
        return depth[room]

    rows: list[list[str]] = [[] for _ in range(1 + max(map(depth_of, imports)))]
    for room in sorted(imports):
        rows[depth[room]].append(room)
    return rows


def lines_of(imports: Imports) -> list[list[str]]:
    """Return each line as what it passes: a room, a gap in every row between, and the room that it leads to."""
    depth = {room: number for number, row in enumerate(rows_of(imports)) for room in row}
    lines: list[list[str]] = []
    for user, uses in sorted(direct(imports).items()):
        for used in uses:
            gaps = [f"{user} to {used} in row {row}" for row in range(depth[user] + 1, depth[used])]
            lines.append([user, *gaps, used])
    return lines


def places(panel: Panel, imports: Imports) -> dict[str, tuple[int, int]]:
    """Return the middle of the upper edge of each room and gap. In its row, each stands over what it leads to."""
    rows = rows_of(imports)
    leads_to: dict[str, list[str]] = {room: [] for room in imports}
    for line in lines_of(imports):
        first_row = next(number for number, row in enumerate(rows) if line[0] in row)
        for number, gap in enumerate(line[1:-1], start=first_row + 1):
            rows[number].append(gap)
        for above, below in pairwise(line):
            leads_to.setdefault(above, []).append(below)

    place: dict[str, tuple[int, int]] = {}

    def middle_below(name: str) -> tuple[float, str]:
        below = [place[each][0] for each in leads_to[name]]
        return (sum(below) / len(below) if below else panel.left + panel.width, name)

    for depth, row in reversed(list(enumerate(rows))):
        for number, name in enumerate(sorted(row, key=middle_below)):
            x = panel.left + panel.width * (2 * number + 1) // (2 * len(row))
            place[name] = (x, panel.top + HEAD_HEIGHT + depth * ROW_HEIGHT)
    return place


def height_of(imports: Imports) -> int:
    return HEAD_HEIGHT + len(rows_of(imports)) * ROW_HEIGHT


def bottom_of(panel: Panel) -> int:
    return panel.top + panel.height


# -- the drawing ------------------------------------------------------------------------------------------------------


def svg() -> str:
    """Return the picture; the same text for the same code."""
    server, roles, audit, runs = (imports_of(panel.package) for panel in (SERVER, ROLES, AUDIT, RUNS))
    server_panel = SERVER._replace(height=height_of(server))
    roles_panel = ROLES._replace(height=height_of(roles))
    audit_panel = AUDIT._replace(top=bottom_of(roles_panel) + 20, height=height_of(audit))
    runs_panel = RUNS._replace(top=bottom_of(audit_panel) + 20, height=height_of(runs))
    height = max(bottom_of(server_panel), bottom_of(runs_panel)) + 20
    width = ROLES.left + ROLES.width + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-label="The rooms of the code and what imports what">',
        "<!-- Generated by scripts/rooms_picture.py from the imports. Change the code and run it again. -->",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>',
        f'<rect class="ground" width="{width}" height="{height}"/>',
        *panel_parts(server_panel, server),
        *panel_parts(roles_panel, roles),
        *panel_parts(audit_panel, audit),
        *panel_parts(runs_panel, runs),
        between(server_panel, roles_panel),
        between(server_panel, audit_panel),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def panel_parts(panel: Panel, imports: Imports) -> Iterator[str]:
    """Yield a package with its rooms and lines."""
    place = places(panel, imports)
    yield (
        f'<rect class="panel" x="{panel.left}" y="{panel.top}" width="{panel.width}" height="{panel.height}" rx="10"/>'
    )
    yield f'<text class="name" x="{panel.left + PADDING}" y="{panel.top + 26}">{panel.package}</text>'
    yield f'<text class="note" x="{panel.left + PADDING}" y="{panel.top + 46}">{panel.note}</text>'
    for line in lines_of(imports):
        yield path_through([place[name] for name in line])
    for room in imports:
        x, y = place[room]
        yield (
            f'<rect class="room" x="{x - BOX_WIDTH // 2}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
            f'<text x="{x}" y="{y + 20}" text-anchor="middle">{room}</text>'
        )


def path_through(points: Sequence[tuple[int, int]]) -> str:
    """Return a line from the lower edge of the first place through the gaps to the upper edge of the last."""
    (x, top), *gaps, (last_x, last_top) = points
    steps = [f"M{x} {top + BOX_HEIGHT}"]
    steps += [f"L{gap_x} {gap_top}V{gap_top + BOX_HEIGHT}" for gap_x, gap_top in gaps]
    steps.append(f"L{last_x} {last_top}")
    return f'<path class="line" marker-end="url(#tip)" d="{"".join(steps)}"/>'


def between(user: Panel, used: Panel) -> str:
    """Return the line from the server to a package that it uses."""
    y = used.top + used.height // 2
    return f'<path class="line" marker-end="url(#tip)" d="M{user.left + user.width} {y}L{used.left} {y}"/>'


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
