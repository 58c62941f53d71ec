"""Workbooks, written part by part, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable

from support.foreign.office import (
    DECLARED,
    SHEETS,
    Attack,
    Victim,
    book_list,
    book_parts,
    office_attacks,
    pack_changed,
    pack_parts,
    sheet,
)

DRAWN = "http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing"


def book(rows: str = "", below: str = "", *related: tuple[str, str, str], **others: str) -> Callable[[], bytes]:
    """Return what makes a workbook with these rows; `others`: parts that its sheet refers to."""

    def make() -> bytes:
        own = [(f"x{name}", name, f"../x/{name}.xml") for name in others]
        parts = book_parts("KEPTWORD", *own, *related, rows=rows, below=below)
        return pack_parts({**parts, **{f"xl/x/{name}.xml": content for name, content in others.items()}})

    return make


def only(inside: str) -> Callable[[], bytes]:
    """Return what makes a workbook whose sheet has only this."""
    return lambda: pack_changed(book_parts("KEPTWORD"), **{"xl/worksheets/sheet1.xml": sheet(inside)})


def many(tag: str, each: str, count: int) -> str:
    """Return an element with so many equal ones in it."""
    return f"<{tag}>{each * count}</{tag}>"


def same_sheet(count: int) -> str:
    """Return the sheets of a workbook that names its only one so many times."""
    return "".join(f'<sheet name="n{n}" sheetId="{n}" r:id="s1"/>' for n in range(1, count))


def workbook_of(sheets: str, names: str = "", **others: str) -> Callable[[], bytes]:
    """Return what makes a workbook with these sheets, names and parts."""
    parts = {**book_parts("KEPTWORD"), "xl/workbook.xml": book_list(sheets, names)}
    parts |= {f"xl/{name}.xml": content for name, content in others.items()}
    return lambda: pack_parts(parts)


def number_in_format(value: str, code: str) -> Callable[[], bytes]:
    """Return what makes a workbook with a number in a format."""
    styles = (
        f'<numFmts><numFmt numFmtId="164" formatCode="{code}"/></numFmts><cellXfs><xf/><xf numFmtId="164"/></cellXfs>'
    )
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.styles+xml"
    parts = book_parts("KEPTWORD", rows=f'<row r="2"><c r="A2" s="1"><v>{value}</v></c></row>')
    parts["xl/styles.xml"] = f'<styleSheet xmlns="{SHEETS}">{styles}</styleSheet>'
    named = f'<Override PartName="/xl/styles.xml" ContentType="{kind}"/></Types>'
    parts["[Content_Types].xml"] = str(parts["[Content_Types].xml"]).replace("</Types>", named)
    return lambda: pack_parts(parts)


def cells(count: int, inside: str) -> str:
    """Return rows of so many equal cells."""
    return "".join(f'<row r="{row}">{inside}</row>' for row in range(2, count + 2))


def comments(count: int, text: str) -> str:
    """Return a part with so many equal comments."""
    each = "".join(
        f'<comment ref="B{row}" authorId="0"><text><t>{text}</t></text></comment>' for row in range(1, count)
    )
    authors = "<authors><author>Ann</author></authors>"
    return f'<comments xmlns="{SHEETS}">{authors}<commentList>{each}</commentList></comments>'


def inline(text: str) -> str:
    """Return a cell with a text in it."""
    return f'<c t="inlineStr"><is><t>{text}</t></is></c>'


PLAN = '<sheet name="Plan" sheetId="1" r:id="s1"/>'
LONG = "+".join(["A1"] * 2_500)


def book_attacks(port: int) -> dict[str, Attack]:
    """Return hostile workbooks; a port of this machine may be asked for nothing."""
    attacks = office_attacks(Victim(book_parts, "xl/workbook.xml", "xl/sharedStrings.xml"), port)
    attacks["no main part"] = attacks["no main part"]._replace(refused="this workbook cannot be read")
    for name in ("an encoding that nobody knows", "a wrong checksum"):  # of the part with the texts
        missing = "a damaged or absent part (xl/sharedStrings.xml); texts of cells of sheet Plan"
        attacks[name] = Attack(attacks[name].data, read="[sheet Plan]", missing=missing)
    attacks["a main part of another kind"] = attacks["a main part of another kind"]._replace(refused="no sheets")
    web = f"http://127.0.0.1:{port}/x"
    shape = "<xdr:sp><xdr:txBody><a:p><a:r><a:t>x</a:t></a:r></a:p></xdr:txBody></xdr:sp>"
    drawing = f'<xdr:wsDr xmlns:xdr="{DRAWN}" {DECLARED}>{shape * 60_000}</xdr:wsDr>'
    outside = (
        ("a", "comments", "../../../../etc/passwd"),
        ("b", "drawing", web),
        ("c", "hyperlink", "file:///etc/passwd"),
    )
    kept, number = "KEPTWORD", "<c><v>7</v></c>"
    shared = '<row r="2"><c r="B2"><f t="shared" si="0" ref="B2:B30000">' + f"{LONG}</f></c></row>"
    shared += "".join(f'<row r="{n}"><c r="B{n}"><f t="shared" si="0"/></c></row>' for n in range(3, 30_000))
    in_row = f'<row r="2"><c r="B2"><f t="shared" si="0">{LONG}</f></c>'
    in_row += (
        "".join(f'<c r="{letters}2"><f t="shared" si="0"/></c>' for letters in ["C", "ZZ", "AAA"] * 4_000) + "</row>"
    )
    links = many("hyperlinks", '<hyperlink ref="A1" r:id="l"/>', 500)
    wide = "".join(f'<row r="{row}"><c r="ALL{row}"><v>1</v></c></row>' for row in range(2, 20_000))
    attacks |= {
        "relations outside": Attack(book("", "", *outside), read=kept),
        "a sheet that is a file elsewhere": Attack(
            workbook_of(PLAN + '<sheet name="Far" sheetId="2" r:id="none"/>'), read=kept, missing="sheet Far is listed"
        ),
        "one sheet 5,000 times": Attack(workbook_of(same_sheet(5_000)), read=kept),
        "one long sheet 500 times": Attack(
            lambda: pack_changed(
                book_parts(kept, rows=cells(5_000, number * 20)), **{"xl/workbook.xml": book_list(same_sheet(500))}
            ),
            read=kept,
            missing="more sheets",
        ),
        "a million elements before the rows": Attack(only("<x/>" * 1_900_000 + "<sheetData/>"), read="(empty)"),
        "a size beyond all": Attack(only('<dimension ref="A1:XFD1048576"/><sheetData/>'), read="(empty)"),
        "a formula that 30,000 cells share": Attack(book(shared), read=kept),
        "a formula that 12,000 cells of a row share": Attack(book(in_row), read=kept),
        "formulas that share themselves": Attack(
            book(
                '<row r="2"><c r="A2"><f t="shared" si="9"/></c><c r="B2"><f t="dataTable" ref="A1:XFD9999"/></c></row>'
            ),
            read=kept,
        ),
        "a program as a formula": Attack(
            book("<row r='2'><c r='A2'><f>cmd|' /C calc'!A0</f></c></row>"), read="=cmd\\|"
        ),
        "a column beyond all": Attack(book('<row r="2"><c r="ZZZZZZ2"><v>1</v></c></row>'), "cannot be read"),
        "a row beyond all": Attack(book(f'<row r="{"9" * 4_000}"><c><v>1</v></c></row>'), read=kept),
        "rows backwards and twice": Attack(
            book(f'<row r="9">{number}</row><row r="3">{number}</row><row r="9">{number}</row>'), read="| 9 | 7 |"
        ),
        "texts that are not there": Attack(
            book('<row r="2"><c t="s"><v>99999999</v></c></row>'),
            read="KEPTWORD",
            missing="texts of cells of sheet Plan that are not in the file (1)",
        ),
        "a number of a million digits": Attack(
            book(f'<row r="2"><c><v>{"9" * 900_000}</v></c></row>'), read="9 (cut here: the cell has more text) |"
        ),
        "a number beyond all": Attack(number_in_format("1e999999", "0.00"), read=kept),
        "a duration beyond all": Attack(number_in_format("1e308", "[h]:mm:ss"), read=kept),
        "a date beyond all": Attack(number_in_format("1e18", "dd.mm.yyyy"), read=kept),
        "a format of thousands of digits": Attack(number_in_format("0.1", "0." + "0" * 60_000), read=kept),
        "a format of brackets": Attack(number_in_format("0.1", "[" * 30_000 + "&quot;" * 9), read=kept),
        "a fraction of many digits": Attack(number_in_format("0.123456789", "?" * 100 + "/" + "?" * 100), read=kept),
        "a style that is not there": Attack(book('<row r="2"><c s="99999999"><v>1</v></c></row>'), read=kept),
        "100,000 merged ranges": Attack(
            book(cells(2_000, number), many("mergeCells", '<mergeCell ref="A1:XFD1048576"/>', 100_000)), read=kept
        ),
        "a merged cell over 30,000 rows that is long": Attack(
            book(
                f'<row r="2">{inline("x" * 2_000)}</row>' + cells(30_000, f"<c/>{number}"),
                many("mergeCells", '<mergeCell ref="A2:A40000"/>', 1),
            ),
            read=kept,
            missing="the text of merged cells",
        ),
        "20,000 rows that come again and are wide": Attack(
            book(cells(20_000, number) + '<row r="40000"><c r="ALL40000"><v>1</v></c></row>' + wide),
            read=kept,
            missing="too long to read",
        ),
        "16,384 heads over as many figures": Attack(
            book(f'<row r="40">{inline("head") * 16_384}</row><row r="41">{number * 16_384}</row>'),
            read=kept,
            missing="columns after the first 1,000",
        ),
        "heads of 10,000 characters": Attack(
            book(f'<row r="40">{inline("h" * 10_000) * 400}</row><row r="41">{number * 400}</row>'), read=kept
        ),
        "merged areas that overlap": Attack(
            book(
                f'<row r="2">{inline("head") * 900}</row>' + cells(900, f"<c/>{number}"),
                many("mergeCells", '<mergeCell ref="A2:ZZ900"/><mergeCell ref="B1:XFD9"/>', 5_000),
            ),
            read=kept,
        ),
        "a last row of 200 long cells": Attack(
            book(f'<row r="2">{inline("y" * 32_000) * 200}</row>'), read=kept, missing="from row 2 on"
        ),
        "500 long links of 20 sheets": Attack(
            lambda: pack_changed(
                book_parts(kept, ("l", "hyperlink", f"{web}/{'z' * 1_900}"), below=links),
                **{"xl/workbook.xml": book_list(same_sheet(20))},
            ),
            read=kept,
            missing="more links of sheet",
        ),
        "500 long defined names": Attack(
            workbook_of(PLAN, f'<definedName name="{"n" * 2_000}">Plan!A1</definedName>' * 500),
            read=kept,
            missing="more defined names",
        ),
        "a name of a megabyte for a sheet": Attack(
            workbook_of(f'<sheet name="{"n" * 1_000_000}" sheetId="1" r:id="s1"/>'), read=kept
        ),
        "50,000 links": Attack(
            book("", many("hyperlinks", '<hyperlink ref="A1:XFD9" r:id="l"/>', 50_000), ("l", "hyperlink", web)),
            read="49,500 more links",
        ),
        "40,000 comments": Attack(book("", "", comments=comments(40_000, "x")), read=kept, missing="comments"),
        "a comment of 9 MB": Attack(book("", "", comments=comments(2, "x " * 4_500_000)), read="it is longer"),
        "60,000 text boxes": Attack(book("", "", drawing=drawing), read=kept, missing="more text box"),
        "100,000 hidden columns": Attack(
            only(many("cols", '<col min="1" max="999999999" hidden="1"/>', 100_000) + "<sheetData/>"), read="(empty)"
        ),
        "50,000 defined names": Attack(
            workbook_of(PLAN, "".join(f'<definedName name="n{n}">Plan!A1</definedName>' for n in range(50_000))),
            read=kept,
            missing="more defined names",
        ),
        "a text of 100,000 pieces": Attack(
            book("<row><c t='inlineStr'>" + many("is", "<r><t>x</t></r>", 15_000) + "</c></row>"), read=kept
        ),
        "cells that look like rows": Attack(
            book('<row r="2"><c t="inlineStr"><is><t>a\n| 99 | forged |\n[sheet Other]</t></is></c></row>'),
            read="| 2 | a \\| 99 \\| forged \\| [sheet Other] |",
        ),
    }
    return attacks
