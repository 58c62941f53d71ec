"""Docs compare Ava with other projects: each cell can be checked, and the other projects win some rows."""

from __future__ import annotations

import re
import shlex
from datetime import date
from pathlib import Path

import pytest
from support.repository import REPOSITORY
from support.terminal import ava

PAGE = REPOSITORY / "docs" / "comparison.md"
TEXT = PAGE.read_text("utf-8")
ADDRESSES = dict(re.findall(r"^\[(\w+)\]: (\S+)$", TEXT, re.MULTILINE))
PINNED = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{40}/\S+")
MARKS = ("what Ava is for", "better elsewhere")


def table(mark: str) -> list[list[str]]:
    """Return the rows of a table, the first of which has the names."""
    found = re.search(rf"^<!-- comparison: {mark} -->\n\n((?:\|.+\n)+)", TEXT, re.MULTILINE)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]
    return [rows[0], *rows[2:]]


def cells() -> list[str]:
    return [cell for mark in MARKS for row in table(mark)[1:] for cell in row[1:]]


def test_every_row_compares_at_least_five_projects() -> None:
    for mark in MARKS:
        names, *rows = table(mark)
        assert names[1] == "Ava"
        assert len(set(names[2:])) >= 5
        assert all("https://github.com/" in name for name in names[2:])
        assert all(len(row) == len(names) for row in rows)


def test_names_the_version_and_date_of_each_project() -> None:
    for cell in table(MARKS[0])[1][1:]:
        found = re.fullmatch(r"\[(?:after )?(\d+\.\d+\.\d+)\]\S+, (\d{4}-\d\d-\d\d)", cell)
        assert found is not None, cell
        assert date.fromisoformat(found[2]).year >= 2025


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells())
def test_each_cell_links_to_its_source_or_shows_a_command(cell: str, tmp_path: Path) -> None:
    cell = re.sub(r",? ?\d{4}-\d\d-\d\d$", "", cell.strip("*"))
    if command := re.fullmatch(r"`ava ([^`]+)`", cell):
        done = ava(tmp_path / "data", *shlex.split(command[1]))
        assert done.returncode == 0, done.stderr
    elif ours := re.fullmatch(r"\[[^\]]+\]\(([^)#]+)[^)]*\)", cell):
        assert (PAGE.parent / ours[1]).exists()
    else:
        theirs = re.fullmatch(r"\[[^\]]+\]\[(\w+)\]", cell)
        assert theirs is not None, f"{cell} cannot be checked by anybody"
        assert PINNED.fullmatch(ADDRESSES[theirs[1]]), "a link that moves shows something else some day"


def test_every_link_definition_is_used() -> None:
    used = {name for cell in cells() for name in re.findall(r"\]\[(\w+)\]", cell)}
    assert used == set(ADDRESSES)


def test_other_projects_win_at_least_three_rows() -> None:
    better = [row for row in table(MARKS[1])[1:] if any(cell.startswith("**") for cell in row[2:])]
    assert len(better) >= 3
    assert not any(row[1].startswith("**") for row in better)
    assert not any("**" in cell for row in table(MARKS[0]) for cell in row)
