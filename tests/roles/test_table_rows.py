"""A row of a table is searched and shown with the heads of its columns, where these are certain."""

from __future__ import annotations

import io
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path

import openpyxl
import pytest
from support.foreign.epub import book_parts
from support.foreign.office import pack_parts, word_file
from support.foreign.opendocument import cell, open_file, p, row, sheet
from support.foreign.word import table

from ava_roles.sandbox.paths import Root
from ava_roles.texts import reading
from ava_roles.texts.extracted import Extracted, Part
from ava_roles.texts.table_rows import ADDED_CHARS, HEAD_CHARS, HeadRoom, with_heads
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

ZONES = [["Zone", "Sales", "Share"], ["Zone AOA", "1,200", "4%"], ["Zone EUR", "9,467", "3%"]]


def book(name: str, *rows: list[str]) -> bytes:
    made = openpyxl.Workbook()
    page = made.active
    assert page is not None
    page.title = name
    for each in rows:
        page.append(each)
    written = io.BytesIO()
    made.save(written)
    return written.getvalue()


def word_cell(text: str, columns: int = 1) -> str:
    return f'<w:tc><w:tcPr><w:gridSpan w:val="{columns}"/></w:tcPr><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>'


def rtf(rows: Sequence[Sequence[str]]) -> bytes:
    lines = ["\\trowd" + "".join(f"\\intbl {each}\\cell" for each in cells) + "\\row" for cells in rows]
    return ("{\\rtf1\\ansi " + "\n".join(lines) + "}").encode()


def page(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as most programs write it in HTML: each cell in a line of its own, its text in a paragraph."""
    lines = ["<table>"]
    for number, cells in enumerate(rows):
        name = "td" if number else "th"
        lines += ["<tr>", *(f"<{name}><p>{each}</p></{name}>" for each in cells), "</tr>"]
    return "\n".join([*lines, "</table>"])


def mail(html: str) -> bytes:
    message = EmailMessage()
    message["Subject"] = "zones"
    message.set_content(html, "html")
    return message.as_bytes()


FILES = {
    "2023 H1.xlsx": book("2023 H1", *ZONES),
    "zones.ods": open_file(sheet(*(row(*map(cell, each)) for each in ZONES), name="2023 H1"), "spreadsheet"),
    "zones.docx": word_file(table(*("".join(map(word_cell, each)) for each in ZONES))),
    "zones.odt": open_file(
        f"<table:table>{''.join(row(*map(cell, each)) for each in ZONES)}</table:table>{p('end')}", "text"
    ),
    "zones.rtf": rtf(ZONES),
    "zones.html": page(ZONES).encode(),
    "zones.xhtml": page(ZONES).encode(),
    "zones.epub": pack_parts(book_parts(page(ZONES))),
    "zones.eml": mail(page(ZONES)),
    "zones.csv": "\n".join(";".join(each) for each in ZONES).encode(),
    "zones.tsv": "\n".join("\t".join(each) for each in ZONES).encode(),
}


@pytest.mark.parametrize("name", FILES)
async def test_a_row_is_found_and_shown_with_its_heads_in_each_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    root = Root.open(tmp_path)
    at = ToolContext(files=root)
    found = await SearchAndRead()(SearchAndReadArgs(query="share of Zone EUR"), at)
    read = await ReadFile()(ReadFileArgs(path=name), at)
    root.close()
    named = "| 3 | 2023 H1 · " if "2023 H1" in found.text.partition("\n\n## ")[2].replace(name, "") else "| "
    assert f"{named}Zone: Zone EUR | Sales: 9,467 | Share: 3% |" in found.text
    assert (named != "| ") == name.endswith((".xlsx", ".ods"))
    assert "Sales: " not in read.text and "9,467" in read.text


def rows_of(*rows: str, place: str = "sheet Plan") -> list[str]:
    """Return the rows of a sheet, which are written `a;b`, as a search shows them; an empty one is left out."""
    lines = [f"| {number} | {' | '.join(each.split(';'))} |" for number, each in enumerate(rows, 1) if each]
    return with_heads("\n".join(lines), "bars", place, HeadRoom()).split("\n")


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (("Zone;Sales", "EUR;9", "AOA;8"), "| 3 | Plan · Zone: AOA | Sales: 8 |"),
        ((";2022;2023", "Sales;9;8"), "| 2 | Plan · Sales | 2022: 9 | 2023: 8 |"),
        ((";31.12.2022;31.12.2023", "Sales;9;8"), "| 2 | Plan · Sales | 31.12.2022: 9 | 31.12.2023: 8 |"),
        (("In 2023", "", "", "Zone;Sales;x", "EUR;9;1"), "| 5 | Plan · In 2023 · Zone: EUR | Sales: 9 | x: 1 |"),
        (("Date;1.5.2023", "", "Zone;Sales;x", "EUR;9;1"), "| 4 | Plan · Zone: EUR | Sales: 9 | x: 1 |"),
        (("Zone;Sales;x", "EUR;9;1", "", "Sum;9;1"), "| 4 | Plan · Zone: Sum | Sales: 9 | x: 1 |"),
        (
            ("Zone;2023;;2022", "Zone (cell A1);Sales;Share;Sales;Share", "EUR;9;3%;8;2%"),
            "| 3 | Plan · Zone: EUR | 2023 / Sales: 9 | 2023 / Share: 3% | 2022 / Sales: 8 | 2022 / Share: 2% |",
        ),
        (("Zone;Sales;Share", ";EUR m;%", "EUR;9;3"), "| 3 | Plan · Zone: EUR | Sales / EUR m: 9 | Share / %: 3 |"),
        (("Name;Role;Town", "Ann;dev;Ulm", "Bob;ops;Bonn"), "| 3 | Plan · Name: Bob | Role: ops | Town: Bonn |"),
        (("Zone;Sales;x", "EUR;9;1", "", "Town;Costs;x", "Ulm;7;2"), "| 5 | Plan · Town: Ulm | Costs: 7 | x: 2 |"),
        (("Zone;Share", "EUR;3% (exactly 0.025)", "AOA;4%"), "| 2 | Plan · Zone: EUR | Share: 3% (exactly 0.025) |"),
        (("Zone;Sales", "EUR;9 [comment: why?]", "A;1"), "| 2 | Plan · Zone: EUR | Sales: 9 [comment: why?] |"),
        (("Zone;Sales", "EUR \\| A;9", "A;1"), "| 2 | Plan · Zone: EUR \\| A | Sales: 9 |"),
    ],
)  # fmt: skip
def test_heads_are_found_wherever_they_stand(rows: tuple[str, ...], shown: str) -> None:
    assert shown in rows_of(*rows)


@pytest.mark.parametrize(
    "rows",
    [
        ("1;2;3", "4;5;6"),
        ("Name;Ann", "Employees;12", "Street;Main St"),
        ("Name;Ann", "Employees;12"),
        ("Ann;1985;2003", "Bob;1990;2010"),
        ("Ann;dev;Ulm",),
        ("a long sentence that says what this and the next cells are about;b;c", "d;e;f", "g;h;i"),
    ],
)
def test_no_heads_are_made_up_where_a_table_has_none(rows: tuple[str, ...]) -> None:
    shown = rows_of(*rows, place="sheet Sheet1")
    assert shown == [f"| {number} | {' | '.join(each.split(';'))} |" for number, each in enumerate(rows, 1)]


def test_a_table_below_another_does_not_get_its_heads() -> None:
    assert (
        rows_of("Zone;Sales;x", "EUR;9;1", "", "Contact;Ann;Ulm", place="sheet Sheet1")[-1]
        == "| 4 | Contact | Ann | Ulm |"
    )


@pytest.mark.parametrize(
    ("place", "name"),
    [("sheet 2023 H1 (hidden)", "2023 H1 · "), ("sheet Tabelle1", ""), ("sheet Sheet", "")],
)
def test_a_row_has_the_name_of_its_sheet_if_somebody_gave_it(place: str, name: str) -> None:
    assert rows_of("EUR;9", place=place) == [f"| 1 | {name}EUR | 9 |"]


def test_a_record_of_a_csv_file_on_several_lines_stays_as_it_is() -> None:
    text = 'Zone,Sales,Note\nEUR,9,"two\nlines"\nAOA,8,"a, b"\n'
    assert with_heads(text, "commas", "", HeadRoom()) == (
        'Zone,Sales,Note\nEUR,9,"two\nlines"\n| Zone: AOA | Sales: 8 | Note: a, b |\n'
    )


async def test_a_cell_of_word_that_spans_columns_stands_above_those_below_it(tmp_path: Path) -> None:
    heads = word_cell("Zone") + word_cell("2023", 2) + word_cell("2022", 2)
    lower = "".join(map(word_cell, ["", "Sales", "Share", "Sales", "Share"]))
    data = "".join(map(word_cell, ["EUR", "9", "3%", "8", "2%"]))
    (tmp_path / "a.docx").write_bytes(word_file(table(heads, lower, data)))
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="EUR 2022 share"), ToolContext(files=root))
    root.close()
    assert "| Zone: EUR | 2023 / Sales: 9 | 2023 / Share: 3% | 2022 / Sales: 8 | 2022 / Share: 2% |" in found.text


def test_a_head_that_may_stand_above_other_columns_is_left_out() -> None:
    text = "| Zone | 2023 | 2022 |\n|---|---|---|\n|  | Sales | Share | Sales | Share |\n| EUR | 9 | 3% | 8 | 2% |"
    assert with_heads(text, "bars", "", HeadRoom()).endswith("| EUR | Sales: 9 | Share: 3% | Sales: 8 | Share: 2% |")


def test_text_without_tables_and_markdown_stay_as_they_are() -> None:
    text = "# Zones\n\n| Zone | Sales |\n|---|---|\n| EUR | 9 |\n"
    assert [each.text for each in reading.passages_of(Extracted((Part("", text),)))] == [text.rstrip("\n")]


# -- attacks ----------------------------------------------------------------------------------------------------------


def sheet_of(rows: Sequence[tuple[int, Sequence[str]]]) -> str:
    return "\n".join(f"| {number} | {' | '.join(cells)} |" for number, cells in rows)


ATTACKS = {
    "16,384 columns": lambda: sheet_of([(n, ["h" if n == 1 else "1"] * 16_384) for n in range(1, 60)]),
    "a million empty rows": lambda: sheet_of([(1, ["a", "b", "c"]), (2, ["", "1", ""]), (1_048_576, ["x", "1", "2"])]),
    "many empty rows": lambda: sheet_of([(n, [""]) for n in range(1, 300_000)]),
    "heads of 10,000 characters": lambda: sheet_of(
        [(n, ["h" * 10_000 if n == 1 else "1"] * 40) for n in range(1, 900)]
    ),
    "blocks of growing rows": lambda: sheet_of([(n + n // 20, ["a"] * (900 + n % 20)) for n in range(1, 1_000)]),
    "many small tables": lambda: sheet_of(
        [(3 * (n // 2) + n % 2, ["a", "1", "2"] if n % 2 else ["Zone", "Sales", "x"]) for n in range(100_000)]
    ),
    "long figures": lambda: sheet_of([(n, ["9 " * 16_000, "(" * 32_000]) for n in range(1, 80)]),
    "merged heads that lie": lambda: sheet_of([(n, ["x (cell A1)"] * 900) for n in range(1, 400)]),
    "numbers out of order": lambda: sheet_of([(5, ["a", "b"]), (1, ["1", "2"]), (0, ["", ""]), (5, ["3", "4"])]),
    "numbers of 9,000 digits": lambda: "| " + "9" * 9_000 + " | a | b |\n| 1 | c | 2 |",
    "bars in cells": lambda: sheet_of([(n, ["\\|" * 400, "1"]) for n in range(1, 2_000)]),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_table_is_read_in_bounds_and_loses_no_cell(name: str) -> None:
    text = ATTACKS[name]()
    room = HeadRoom()
    shown = with_heads(text, "bars", f"sheet {'s' * 10_000}", room)
    assert len(shown) <= len(text) + ADDED_CHARS
    before, after = text.split("\n"), shown.split("\n")
    assert len(before) == len(after)
    for old, new in zip(before[:50] + before[-50:], after[:50] + after[-50:], strict=True):
        cells = zip(old[2:-2].split(" | "), new[2:-2].split(" | "), strict=True)
        assert all(new_cell.endswith(old_cell) for old_cell, new_cell in cells)
        assert old == new or len(new) <= len(old) + 4_000


def test_rows_whose_heads_find_no_room_are_said() -> None:
    room = HeadRoom(left=50)
    with_heads(
        sheet_of([(1, ["Zone", "Sales"]), *((n, ["EUR", "9"]) for n in range(2, 20))]), "bars", "sheet Plan", room
    )
    assert room.is_short and 0 <= room.left < 50


async def test_a_file_whose_heads_find_no_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HeadRoom", lambda: HeadRoom(left=20))
    (tmp_path / "a.xlsx").write_bytes(FILES["2023 H1.xlsx"])
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="Zone EUR"), ToolContext(files=root))
    root.close()
    assert f"Not in the text:\n- a.xlsx: {reading.HEADS_LEFT_OUT}" in found.text


def test_heads_are_short() -> None:
    assert (
        rows_of("Zone;" + "h" * 99, "EUR;9", "AOA;8")[1] == f"| 2 | Plan · Zone: EUR | {'h' * (HEAD_CHARS - 1)}…: 9 |"
    )
