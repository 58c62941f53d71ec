"""Workbooks of Excel before 2007: read as those of today, whatever their version, name and damage."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from support.foreign.office import assert_withstands, book_parts, pack_parts
from support.foreign.old_workbooks import (
    BIFF5,
    KEPT,
    container,
    label,
    listed_sheet,
    lone_sheet,
    number,
    number_format,
    old_book,
    old_book_attacks,
    record,
    stream,
    string,
    style,
    truth,
)

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts.extracted import format_of
from ava_roles.texts.formats import read_workbook, read_xls
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

STYLES = (
    number_format(164, "0.0%"),
    number_format(165, "dd.mm.yyyy"),
    number_format(166, '#,##0.00 "€"'),
    *map(style, (0, 164, 165, 166, 14)),
)


def test_shows_cells_as_a_workbook_of_today_does() -> None:
    cells = (
        number(1, 0, 0.256, 1),
        number(1, 1, 45_000, 2),
        number(1, 2, 1234.5, 3),
        number(1, 3, 45_000, 4),
        number(1, 4, 7),
        truth(1, 5, 1),
        truth(1, 6, 7, is_error=1),
        label(2, 0, "two\nlines | Zürich 東京"),
    )
    found = read_xls(old_book(*cells, shared=b"".join(STYLES)))
    assert found.text() == (
        "[sheet Plan]\n|  | A | B | C | D | E | F | G |\n|---|---|---|---|---|---|---|---|\n"
        f"| 1 | {KEPT} |\n"
        "| 2 | 25.6% | 15.03.2023 | 1,234.50 € | 2023-03-15 | 7 | TRUE | #DIV/0! |\n"
        "| 3 | two lines \\| Zürich 東京 |"
    )
    assert found.missing == () and not found.unread


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.025, "0%", "3% (exactly 0.025)"),
        (19.99, "#,##0", "20 (exactly 19.99)"),
        (1_234_567, "#,##0,", "1,235 (exactly 1234567)"),
        (2 / 3, "0%", "67% (exactly 0.666666…)"),
        (-1234.5, "#,##0.00_);[Red](#,##0.00)", "(1,234.50)"),
        (5_551_234, "000-0000", "555-1234"),
        (45_000.5, "dd.mm.yyyy", "15.03.2023"),
        (1.51, "[h]:mm", "36:14"),
    ],
)
def test_a_figure_has_its_exact_value_where_rounding_hides_it(value: float, code: str, shown: str) -> None:
    shared = number_format(164, code) + style(0) + style(164)
    assert f"| 2 | {shown} |" in read_xls(old_book(number(1, 0, value, 1), shared=shared)).text()


def test_dates_that_count_from_1904() -> None:
    shared = record(0x22, b"\1\0") + style(0) + style(14)
    assert "| 2 | 2027-03-16 |" in read_xls(old_book(number(1, 0, 45_000, 1), shared=shared)).text()


def test_merged_hidden_and_linked_cells_are_named() -> None:
    cells = (
        record(0x208, struct.pack("<HHHHHHI", 2, 0, 1, 255, 0, 0, 0x20)),
        record(0x7D, struct.pack("<HHHHHH", 1, 2, 2_000, 0, 1, 0)),
        number(1, 1, 1),
        number(2, 1, 2),
        record(0xE5, struct.pack("<H", 1) + struct.pack("<HHHH", 0, 2, 0, 0)),
    )
    text = read_xls(old_book(*cells)).text()
    assert f"| 2 | {KEPT} (cell A1) | 1 |\n| 3 | {KEPT} (cell A1) | 2 |" in text
    assert text.endswith("[hidden rows: 3]\n[hidden columns: B to C]")


def test_headers_and_text_boxes_are_read_and_other_objects_counted() -> None:
    def drawn(kind: int) -> bytes:
        return record(0x5D, struct.pack("<HHHHH", 0x15, 18, kind, 1, 0) + bytes(12) + bytes(4))

    box = record(0x1B6, struct.pack("<HH6xHHH", 0, 0, 7, 0, 0).ljust(18, b"\0")) + record(0x3C, b"\0box 100")
    cells = (record(0x14, string('&L&"Arial,Bold"&12Rent && more&RPage &P')), drawn(8), drawn(8), drawn(6), box)
    found = read_xls(old_book(*cells))
    assert "[header of the printed page] Rent & more Page" in found.text()
    assert "[text box] box 100" in found.text()
    assert found.missing == ("sheet Plan has 2 picture or embedded files, which are not read",)


def test_hidden_sheets_names_and_sheets_of_another_kind() -> None:
    assert "[sheet Plan (hidden)]" in read_xls(container(stream(("Plan", label(0, 0, "x")), hidden=2))).text()
    chart = listed_sheet(0, "Graph", kind=2)
    found = read_xls(old_book(shared=style(0) + chart))
    assert found.missing == ("charts, dialogs or macros that are sheets of their own (1 not read)",)
    name = record(0x18, struct.pack("<HBBHHHBBBB", 0, 0, 4, 3, 0, 0, 0, 0, 0, 0) + b"\0Rate" + b"\x1e\x2a\0")
    assert "[name Rate] 42" in read_xls(old_book(shared=style(0) + name)).text()


@pytest.mark.parametrize("data", [old_book(version=BIFF5, shared=style(0, BIFF5)), lone_sheet(3), lone_sheet(4)])
def test_earlier_versions_are_read(data: bytes) -> None:
    kind = format_of("plan.xls", data)
    assert kind is not None and kind.name == "workbook"
    assert KEPT in read_workbook(data).text()


@pytest.mark.parametrize("name", ["plan.xls", "PLAN.XLT"])
def test_a_new_workbook_with_an_old_name_is_read(name: str) -> None:
    data = pack_parts(book_parts(KEPT))
    kind = format_of(name, data)
    assert kind is not None and kind.name == "workbook" and KEPT in read_workbook(data).text()
    assert KEPT in read_workbook(old_book()).text(), "and an old one with a new name"


@pytest.mark.parametrize("text", [b"Zone\tSales\nEUR\t9467\n", b"<table><tr><td>Zone</td></tr></table>"])
def test_text_with_the_name_of_a_workbook_stays_text(text: bytes) -> None:
    assert format_of("zones.xls", text) is None


def test_a_damaged_sheet_is_named_and_the_others_are_read() -> None:
    broken = number(0, 0, 1)[:-6] + b"\xff"
    found = read_xls(container(stream(("Bad", broken), ("Good", label(0, 0, KEPT)), shared=style(0))))
    assert found.text() == f"[sheet Good]\n|  | A |\n|---|---|\n| 1 | {KEPT} |"
    assert found.missing == ("sheet Bad is damaged and not read",)


async def test_an_old_workbook_is_searched_and_read(tmp_path: Path) -> None:
    (tmp_path / "stock.xls").write_bytes(old_book(label(41, 2, "zeppelin")))
    root = Root.open(tmp_path)
    at = ToolContext(files=root)
    found = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
    assert "## stock.xls" in found.text and "| 42 |  |  | zeppelin |" in found.text
    assert "zeppelin" in (await ReadFile()(ReadFileArgs(path="stock.xls"), at)).text
    root.close()


# -- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", old_book_attacks())
def test_a_hostile_workbook_is_refused_or_read_in_bounds(name: str, listener: socket.socket) -> None:
    attack = old_book_attacks()[name]
    assert_withstands(attack, read_workbook, listener)


def test_a_reason_has_no_words_of_the_program() -> None:
    for name, attack in old_book_attacks().items():
        if attack.refused:
            with pytest.raises(ToolFailed) as refused:
                read_workbook(attack.data())
            assert "Error" not in str(refused.value) and "xlrd" not in str(refused.value), name
