"""Workbooks: cells as a person sees them, each with its row, and nothing that is not read is passed over."""

from __future__ import annotations

import io
import re
import socket
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import openpyxl
import pytest
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.worksheet import Worksheet
from support.foreign.office import DECLARED, SHEETS, book_list, book_parts, pack_parts, relations
from support.foreign.workbooks import DRAWN, book, book_attacks, only

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts.extracted import MOST_CHARS, OLE_MAGIC, format_of, row_places
from ava_roles.texts.formats import read_xlsx
from ava_roles.texts.formats.number_format import show_number
from ava_roles.texts.reading import passages_of
from ava_roles.texts.table_rows import ADDED_CHARS
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs


def book_of(fill: Callable[[Worksheet], object]) -> bytes:
    book = openpyxl.Workbook()
    sheet = book.active
    assert isinstance(sheet, Worksheet)
    sheet.title = "Plan"
    fill(sheet)
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.256, "0.0%", "25.6%"),
        (45000.5, "dd.mm.yyyy hh:mm", "15.03.2023 12:00"),
        (45000, "mm-dd-yy", "2023-03-15"),
        (45000, "[$-407]d. mmmm yyyy", "15. March 2023"),
        (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
        (-1500, "$#,##0", "-$1,500"),
        (-1234.5, "#,##0.00_);[Red](#,##0.00)", "(1,234.50)"),
        (7, "00000", "00007"),
        (5551234, "000-0000", "555-1234"),
        (1.5, "[h]:mm:ss", "36:00:00"),
        (0.5, "h:mm AM/PM", "12:00 PM"),
        (0, '0;(0);"none"', "none"),
        (2.75, "# ?/?", "2 3/4"),
        (12345, "0.00E+00", "1.23E+04"),
        (1.005, "0.00", "1.01"),
        (1_234_567, "#,##0,", "1,235"),
        (5, '[>=10]"big" 0;[<10]"small" 0', "small 5"),
        (0.1 + 0.2, "General", "0.3"),
        (99, ";;;", "99"),
        (3, "[", "3"),
    ],
)
def test_shows_numbers_as_their_format_says(value: float, code: str, shown: str) -> None:
    assert show_number(value, code) == shown


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.025, "0%", "3% (exactly 0.025)"),
        (19.99, "#,##0", "20 (exactly 19.99)"),
        (-0.4, "0.0", "-0.4"),
        (1_234_567, "#,##0,", "1,235 (exactly 1234567)"),
        (2 / 3, "0%", "67% (exactly 0.666666…)"),
        (-1 / 300, "0%", "-0% (exactly -0.00333333…)"),
        (1_234_567 + 1 / 3, "#,##0,", "1,235 (exactly 1234567.33…)"),
        (1.23456789012e-7, "0.00", "0.00 (exactly 1.23456789012E-07)"),
        (9467 + 1 / 3, "#,##0", "9,467"),
        (-1234.5, "#,##0.00_);[Red](#,##0.00)", "(1,234.50)"),
        (5551234, "000-0000", "555-1234"),
        (45000.5, "dd.mm.yyyy", "15.03.2023"),
        (1.51, "[h]:mm", "36:14"),
        (0.3, '0;(0);"none"', "0 (exactly 0.3)"),
    ],
)
def test_a_figure_has_its_exact_value_where_rounding_hides_it(value: float, code: str, shown: str) -> None:
    def fill(sheet: Worksheet) -> None:
        sheet["A1"] = value
        sheet["A1"].number_format = code

    assert f"| 1 | {shown} |" in read_xlsx(book_of(fill)).text()


def test_shows_a_sheet_as_a_person_sees_it() -> None:
    def fill(sheet: Worksheet) -> None:
        sheet.append(["desk", 1234.5, datetime(2026, 3, 4), timedelta(hours=30, minutes=5), True])
        sheet["B1"].number_format = '#,##0.00 "€"'
        sheet["C1"].number_format = "dd.mm.yyyy"
        sheet["D1"].number_format = "[h]:mm"
        sheet["A3"] = "total"
        sheet["B3"] = "=SUM(B1:B2)"
        sheet["A3"].comment = Comment("not final", "Ann")
        sheet["A5"] = "North"
        sheet["B5"], sheet["B6"] = 1, 2
        sheet.merge_cells("A5:A6")
        sheet.row_dimensions[6].hidden = True
        sheet.column_dimensions["C"].hidden = True

    assert read_xlsx(book_of(fill)).text() == (
        "[sheet Plan]\n|  | A | B | C | D | E |\n|---|---|---|---|---|---|\n"
        "| 1 | desk | 1,234.50 € | 04.03.2026 | 30:05 | TRUE |\n"
        "| 3 | total [comment by Ann: not final] | =SUM(B1:B2) |\n"
        "| 5 | North | 1 |\n| 6 | North (cell A5) | 2 |\n[hidden rows: 6]\n[hidden columns: C]"
    )


def test_hidden_columns_are_named_by_their_spans() -> None:
    hidden = [(7, 9), (2, 2), (3, 3), (8, 12), (16_383, 20_000)]
    columns = "".join(f'<col min="{first}" max="{last}" hidden="1"/>' for first, last in hidden)
    cell = '<row r="1"><c r="A1"><v>5</v></c></row>'
    text = read_xlsx(only(f"<cols>{columns}</cols><sheetData>{cell}</sheetData>")()).text()
    assert text.endswith("[hidden columns: B to C, G to L, XFC to XFD]")


def test_names_hidden_sheets_and_what_is_not_read() -> None:
    def fill(sheet: Worksheet) -> None:
        book = sheet.parent
        assert book is not None
        sheet.append([1])
        hidden = book.create_sheet("Costs")
        hidden.sheet_state = "veryHidden"
        hidden.append(["secret rate"])
        chart = BarChart()
        chart.add_data(Reference(sheet, min_col=1, min_row=1))
        sheet.add_chart(chart)
        book.create_chartsheet("Graph")
        book.defined_names["Rate"] = DefinedName("Rate", attr_text="Plan!$A$1")
        sheet["A1"].hyperlink = "https://example.org/x"

    found = read_xlsx(book_of(fill))
    assert "[sheet Costs (hidden)]\n|  | A |\n|---|---|\n| 1 | secret rate |" in found.text()
    assert "[name Rate] Plan!$A$1" in found.text()
    assert "[link at A1] https://example.org/x" in found.text()
    assert found.missing == (
        "sheet Graph is a chart; charts are not read",
        "sheet Plan has 1 chart or diagram, which is not read",
    )


@pytest.mark.parametrize(
    ("name", "data"), [("a.xls", OLE_MAGIC + bytes(600)), ("a.xlsb", pack_parts({"xl/workbook.bin": b"\x83\x01"}))]
)
def test_says_what_to_do_about_a_binary_workbook(name: str, data: bytes) -> None:
    kind = format_of(name, data)
    assert kind is not None and kind.name == "workbook"
    with pytest.raises(ToolFailed, match=r"binary format; ask for a copy saved as \.xlsx"):
        read_xlsx(data)


def test_names_a_sheet_that_is_not_in_the_file_and_names_of_one_sheet() -> None:
    parts = book_parts("kept")
    sheets = '<sheet name="Plan" sheetId="1" r:id="s1"/><sheet name="Gone" sheetId="2" r:id="s2"/>'
    parts["xl/workbook.xml"] = book_list(sheets, '<definedName name="Rate" localSheetId="0">Plan!$A$1</definedName>')
    parts["xl/_rels/workbook.xml.rels"] = str(parts["xl/_rels/workbook.xml.rels"]).replace(
        "</R",
        relations(("s2", "worksheet", "worksheets/gone.xml")).partition(">")[2].replace("</Relationships>", "</R"),
    )
    found = read_xlsx(pack_parts(parts))
    assert found.missing == ("sheet Gone is listed but missing from the file",)
    assert found.text() == "[sheet Plan]\n|  | A |\n|---|---|\n| 1 | kept |\n\n[name Rate] Plan!$A$1"


def test_names_the_rows_of_each_passage() -> None:
    pieces = ["|  | A |\n|---|---|\n| 1 | a |\n| 2 | b |", "| 3 | long", "rest |", "[hidden rows: 6]"]
    assert list(row_places("sheet Plan", pieces)) == [
        "sheet Plan, rows 1 to 2",
        "sheet Plan, row 3",
        "sheet Plan, row 3",
        "sheet Plan",
    ]
    assert list(row_places("page 2", ["| 3 | a |"])) == ["page 2"]


async def test_a_workbook_is_searched_and_read_to_its_last_row(tmp_path: Path) -> None:
    def fill(sheet: Worksheet) -> None:
        for number in range(2_500):
            sheet.append([f"item {number}", "zeppelin" if number == 2_400 else "boat"])

    (tmp_path / "stock.xlsx").write_bytes(book_of(fill))
    root = Root.open(tmp_path)
    at = ToolContext(files=root)
    found = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
    assert "| 2401 | Plan · item 2400 | zeppelin |" in found.text
    assert "sheet Plan, rows " in found.text
    read = await ReadFile()(ReadFileArgs(path="stock.xlsx", offset=2_503), at)
    assert read.text.endswith("\n\n[sheet Plan]\n| 2500 | item 2499 | boat |")
    root.close()


# -- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", book_attacks(9))
def test_a_hostile_workbook_is_refused_or_read_in_bounds_and_fetches_nothing(
    name: str, listener: socket.socket
) -> None:
    attack = book_attacks(listener.getsockname()[1])[name]
    data = attack.data()
    began = time.process_time()
    if attack.refused:
        with pytest.raises(ToolFailed, match=attack.refused):
            read_xlsx(data)
    else:
        found = read_xlsx(data)
        assert attack.read in found.text() or found.unread  # its time is up on a machine that is very busy
        assert attack.missing in "; ".join(found.missing)
        assert "root:" not in found.text()
        assert len(found.text()) < MOST_CHARS
        passages = passages_of(replace(found, tables="bars"))
        assert sum(len(each.text) for each in passages) < len(found.text()) + ADDED_CHARS
    assert time.process_time() - began < 25
    with pytest.raises(BlockingIOError):
        listener.accept()


def strict(parts: dict[str, str | bytes]) -> dict[str, str | bytes]:
    """Return parts of an office file in the strict form of ISO/IEC 29500."""
    changed: dict[str, str | bytes] = {}
    for name, content in parts.items():
        assert isinstance(content, str)
        changed[name] = re.sub(
            r"http://schemas\.openxmlformats\.org/(\w+)/2006/(?!content)", r"http://purl.oclc.org/ooxml/\1/", content
        )
        changed[name] = str(changed[name]).replace(
            "purl.oclc.org/ooxml/package/", "schemas.openxmlformats.org/package/2006/"
        )
    return changed


ROWS = '<row r="2"><c r="A2" s=""><v>1150</v></c><c r="B2" t="d"><v>2026-03-02T00:00:00</v></c></row>'


def test_reads_a_strict_workbook_as_the_usual_one() -> None:
    usual = book_parts("rent", rows=ROWS)
    in_strict = strict(usual)
    assert "purl.oclc.org" in str(in_strict["xl/workbook.xml"])
    found = read_xlsx(pack_parts(in_strict))
    assert found == read_xlsx(pack_parts(usual))
    assert "rent" in found.text() and "| 1150 | 2026-03-02 |" in found.text()


def test_a_strict_workbook_has_the_same_bounds() -> None:
    row = '<row r="2">' + "<c><v>1</v></c>" * 30_000 + "</row>"
    with pytest.raises(ToolFailed, match="more than 50,000 elements in one row"):
        read_xlsx(pack_parts(strict(book_parts("rent", rows=row))))


def test_reads_parts_whose_names_have_backslashes() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in book_parts("rent").items():
            part = zipfile.ZipInfo()
            part.filename = name.replace("/", "\\")
            archive.writestr(part, content)
    assert "rent" in read_xlsx(packed.getvalue()).text()


def test_a_sheet_that_calls_itself_a_drawing_is_not_read() -> None:
    parts = book_parts("rent")
    parts["xl/worksheets/sheet.svg"] = "<!DOCTYPE x [<!ENTITY e 'e'>]>" + str(parts["xl/worksheets/sheet1.xml"])
    parts["xl/_rels/workbook.xml.rels"] = str(parts["xl/_rels/workbook.xml.rels"]).replace("sheet1.xml", "sheet.svg")
    found = read_xlsx(pack_parts(parts))
    assert "rent" not in found.text()
    assert found.missing == ("sheet Plan is listed but missing from the file",)


def test_the_runs_of_a_text_box_are_one_word_and_its_paragraphs_are_not() -> None:
    runs = "<a:p><a:r><a:t>Kün</a:t></a:r><a:r><a:t>digung</a:t></a:r></a:p><a:p><a:r><a:t>im März</a:t></a:r></a:p>"
    drawing = f'<d:wsDr xmlns:d="{DRAWN}" {DECLARED}><d:sp><d:txBody>{runs}</d:txBody></d:sp></d:wsDr>'
    assert "[text box] Kündigung im März" in read_xlsx(book(drawing=drawing)()).text()


LENIENT_CELLS = {
    "a style that is no number": ('<c r="A2" s=" "><v>5</v></c>', "5"),
    "a style that the file lacks": ('<c r="A2" s="99"><v>5</v></c>', "5"),
    "a style with too many digits": (f'<c r="A2"><v>4</v></c><c r="B2" s="{"9" * 5_000}"><v>5</v></c>', "4 | 5"),
    "empty attributes": ('<c r="" s="" t=""><v>5</v></c>', "5"),
    "a name in small letters": ('<c r="$a$2"><v>5</v></c>', "5"),
    "a number that is none": ('<c r="A2"><v>five</v></c>', "five"),
    "a truth in words": ('<c r="A2" t="b"><v>true</v></c>', "true"),
    "a date that is none": ('<c r="A2" t="d"><v>2026</v></c>', "2026"),
    "a kind that nobody knows": ('<c r="A2" t="new"><v>5</v></c>', "5"),
}


@pytest.mark.parametrize("case", LENIENT_CELLS)
def test_a_cell_that_excel_shows_is_shown(case: str) -> None:
    cell, shown = LENIENT_CELLS[case]
    found = read_xlsx(pack_parts(book_parts("rent", rows=f'<row r="2" ht="" hidden="">{cell}</row>')))
    assert found.text().endswith(f"| 1 | rent |\n| 2 | {shown} |") and found.missing == ()


@pytest.mark.parametrize("last", ["", "x", "2.0", "-1", "9" * 5_000])
def test_a_column_without_a_last_one_hides_itself_only(last: str) -> None:
    columns = f'<cols><col min="2" max="{last}" hidden="1"/></cols>'
    rows = '<sheetData><row r="1"><c r="A1"><v>5</v></c></row></sheetData>'
    assert read_xlsx(only(columns + rows)()).text().endswith("| 1 | 5 |\n[hidden columns: B]")


@pytest.mark.parametrize("number", ["x", "9" * 5_000, "99999999"])
def test_a_row_with_a_bad_number_follows_the_one_above(number: str) -> None:
    rows = f'<row r="{number}"><c><v>5</v></c></row><row r="3"><c r="A3"><v>6</v></c></row>'
    assert read_xlsx(pack_parts(book_parts("rent", rows=rows))).text().endswith("| 1 | rent |\n| 2 | 5 |\n| 3 | 6 |")


LENIENT_STYLES = {
    "a font family": '<fonts><font><family val="18"/></font></fonts>',
    "a border": '<borders><border><left style=""/></border></borders>',
    "a colour": '<fonts><font><color rgb="FF"/></font></fonts>',
    "a fill": '<fills><fill><patternFill patternType="Solid"/></fill></fills>',
    "an alignment": '<dxfs><dxf><alignment horizontal="Middle"/></dxf></dxfs>',
}


@pytest.mark.parametrize("case", LENIENT_STYLES)
def test_an_odd_style_changes_no_figure(case: str) -> None:
    parts = book_parts("rent", rows='<row r="2"><c r="A2" s="1"><v>0.256</v></c></row>')
    formats = f'<numFmts><numFmt numFmtId="200" formatCode="0.0%"/></numFmts>{LENIENT_STYLES[case]}'
    formats += '<cellXfs><xf numFmtId=""/><xf numFmtId="200"/></cellXfs>'
    parts["xl/styles.xml"] = f'<styleSheet xmlns="{SHEETS}">{formats}</styleSheet>'
    found = read_xlsx(pack_parts(parts))
    assert "| 2 | 25.6% |" in found.text() and found.missing == ()


def test_what_is_not_read_of_a_workbook_refuses_nothing() -> None:
    parts = book_parts("rent", below='<autoFilter ref=""/><pageMargins left=""/><pageSetup orientation=""/>')
    parts["xl/workbook.xml"] = book_list('<sheet name="Plan" r:id="s1" state=""/>').replace(
        "</sheets>", '</sheets><calcPr calcId=""/><bookViews><workbookView activeTab="9"/></bookViews>'
    )
    sheet = str(parts["xl/worksheets/sheet1.xml"])
    views = '<dimension ref=""/><sheetViews><sheetView workbookViewId=""/></sheetViews><sheetData>'
    parts["xl/worksheets/sheet1.xml"] = sheet.replace("<sheetData>", views)
    parts["docProps/core.xml"] = "<gone/>"
    parts["xl/theme/theme1.xml"] = "<<<"
    del parts["[Content_Types].xml"]
    found = read_xlsx(pack_parts(parts))
    assert found.text() == "[sheet Plan]\n|  | A |\n|---|---|\n| 1 | rent |" and found.missing == ()


@pytest.mark.parametrize(
    "below", ['<hyperlinks><hyperlink r:id=""/></hyperlinks>', "<mergeCells><mergeCell/></mergeCells>"]
)
def test_what_is_damaged_beside_the_cells_is_said(below: str) -> None:
    found = read_xlsx(pack_parts(book_parts("rent", below=below)))
    assert "rent" in found.text()
    assert found.missing == ("headers, links or merged cells of sheet Plan that are damaged",)


@pytest.mark.parametrize("part", ["xl/styles.xml", "xl/sharedStrings.xml", "xl/comments1.xml"])
def test_a_damaged_part_is_named_and_the_cells_are_read(part: str) -> None:
    parts = book_parts(
        "rent", ("c1", "comments", "../comments1.xml"), rows='<row r="2"><c r="A2"><v>1150</v></c></row>'
    )
    parts[part] = "<broken"
    found = read_xlsx(pack_parts(parts))
    assert "| 2 | 1150 |" in found.text()
    assert f"a damaged or absent part ({part})" in found.missing
