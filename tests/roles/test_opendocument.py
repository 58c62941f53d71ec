"""OpenDocument files: what a reader sees is read, what cannot be text is named, and no file harms more than itself."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from support.foreign.office import Attack, assert_withstands, pack_parts
from support.foreign.open_texts import BOX, NUMBERS, TEXTS, frame, note, page_attacks, sheet_attacks, text_attacks
from support.foreign.opendocument import cell, content, element, open_file, open_parts, p, row, sheet

from ava_roles.texts import parser_process
from ava_roles.texts.extracted import Extracted, Wanted, format_of
from ava_roles.texts.formats import read_odp, read_ods, read_odt


@pytest.mark.parametrize("name", TEXTS)
def test_reads_or_names(name: str) -> None:
    body, text, missing = TEXTS[name]
    found = read_odt(open_file(body, styles=NUMBERS))
    assert (found.title, "\n\n".join(part.text for part in found.parts)) == ("The title", text)
    assert found.missing == missing


def test_headers_and_notes_follow_the_text() -> None:
    masters = f"<style:master-page><style:header>{p('ACME')}</style:header></style:master-page>" * 2
    said = (
        f"<office:annotation><dc:creator>Berta</dc:creator><dc:date>2026</dc:date>{p('too high')}</office:annotation>"
    )
    body = p(f"a{note('footnote', 'one')}{note('endnote', 'two')}{said}{note('footnote', 'three')}")
    assert [tuple(part) for part in read_odt(open_file(body, masters=masters)).parts] == [
        ("", "a[footnote 1][endnote 1][comment 1][footnote 2]"),
        ("headers and footers", "ACME"),
        ("footnotes", "[footnote 1] one\n\n[footnote 2] three"),
        ("endnotes", "[endnote 1] two"),
        ("comments", "[comment 1] Berta: too high"),
    ]


def test_headings_have_the_numbers_of_their_outline() -> None:
    outline = (
        '<text:outline-style><text:outline-level-style text:level="1" style:num-format="1"/>'
        '<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style>'
    )
    heads = "".join(
        f'<text:h text:outline-level="{level}">{name}</text:h>' for level, name in ((1, "a"), (2, "b"), (2, "c"))
    )
    assert read_odt(open_file(heads, styles=outline)).text() == "# 1 a\n\n## 1.1 b\n\n## 1.2 c"


def test_charts_and_embedded_files_are_named() -> None:
    chart = element(
        "office:document-content",
        f"<office:body><office:chart><chart:chart><chart:title>{p('Sales')}</chart:title></chart:chart></office:chart></office:body>",
    )
    frame = '<draw:frame><draw:object xlink:href="./Object {}"/><draw:image xlink:href="x.png"/></draw:frame>'
    parts = open_parts(p(frame.format(1) + frame.format(2)))
    parts |= {"Object 1/content.xml": chart, "Object 2/content.xml": content("", "spreadsheet")}
    assert read_odt(pack_parts(parts)).missing == ("a chart (Sales)", "an embedded object (spreadsheet)")


# -- slides -----------------------------------------------------------------------------------------------------------

HIDDEN_PAGE = (
    '<style:style style:name="H" style:family="drawing-page">'
    '<style:drawing-page-properties presentation:visibility="hidden"/></style:style>'
)


def test_slides_come_in_their_order_with_notes_comments_and_what_all_of_them_show() -> None:
    said = f"<office:annotation><dc:creator>Ann</dc:creator>{p('too long')}</office:annotation>"
    notes = (
        f"<presentation:notes>{frame('say this', kind='notes')}{frame('7', kind='page-number')}</presentation:notes>"
    )
    shapes = f"{frame('Rent', kind='title')}{frame('one', 'two')}<draw:g>{frame('in a group')}</draw:g>"
    first = f"<draw:page>{said}{shapes}{notes}</draw:page>"
    second = f'<draw:page draw:style-name="H">{frame("three")}{sheet(row(cell("a"), cell("b")))}</draw:page>'
    masters = f"<style:master-page>{frame('a hint', kind='outline')}{frame('The Company')}</style:master-page>"
    found = read_odp(open_file(first + second, "presentation", HIDDEN_PAGE, masters))
    assert [tuple(part) for part in found.parts] == [
        ("slide 1", "[comment] Ann: too long\n\n# Rent\n\none\ntwo\n\nin a group\n\nNotes:\nsay this"),
        ("slide 2 (hidden)", "three\n\n| a | b |\n|---|---|"),
        ("on several slides", "The Company"),
    ]


def test_reads_drawings_page_by_page() -> None:
    assert read_odp(open_file(f"<draw:page>{frame('kept')}</draw:page>", "drawing")).text() == "[slide 1]\nkept"


# -- sheets -----------------------------------------------------------------------------------------------------------


def test_a_sheet_shows_what_a_person_sees() -> None:
    said = f"<office:annotation><dc:creator>Ann</dc:creator>{p('why?')}</office:annotation>"
    rows = [
        row(cell("25%", 'office:value="0.25"'), f"<table:table-cell>{said}{p('two')}{p('lines')}</table:table-cell>"),
        row(cell("", 'table:formula="of:=[.A1]*2" office:value="0.5"'), cell("", 'table:formula="of:=SUM([.A1:.A2])"')),
        row(cell("merged", 'table:number-rows-spanned="2"'), cell("1")),
        row("<table:covered-table-cell/>", cell("2"), about='table:visibility="collapse"'),
        row(cell("", 'table:number-columns-repeated="9999"'), about='table:number-rows-repeated="3"'),
        row(cell("x", 'table:number-columns-repeated="2"')),
    ]
    columns = '<table:table-column/><table:table-column table:visibility="collapse"/>'
    style = (
        '<style:style style:name="H" style:family="table"><style:table-properties table:display="false"/></style:style>'
    )
    names = (
        '<table:named-expressions><table:named-range table:name="Rate" table:cell-range-address="$Plan.$A$1"/>'
        "</table:named-expressions>"
    )
    hidden = sheet(row(cell("cost")), name="Costs", about='table:style-name="H"')
    found = read_ods(open_file(sheet(columns, *rows) + hidden + names, "spreadsheet", style))
    assert [tuple(part) for part in found.parts] == [
        (
            "sheet Plan",
            "|  | A | B |\n|---|---|---|\n| 1 | 25% | two lines [comment by Ann: why?] |\n"
            "| 2 | 0.5 | =SUM([.A1:.A2]) |\n"
            "| 3 | merged | 1 |\n| 4 | merged (cell A3) | 2 |\n| 8 | x | x |\n[hidden rows: 4]\n[hidden columns: B]",
        ),
        ("sheet Costs (hidden)", "|  | A |\n|---|---|\n| 1 | cost |"),
        ("", "[name Rate] $Plan.$A$1"),
    ]
    assert found.missing == ()


def test_hidden_columns_are_named_by_their_spans() -> None:
    pair = '<table:table-column/><table:table-column table:visibility="{}"/><table:table-column table:visibility="{}"/>'
    columns = pair.format("collapse", "filter")
    text = read_ods(open_file(sheet(columns * 600, row(cell("1"))), "spreadsheet")).parts[0].text
    assert "[hidden columns: B to C, E to F, " in text and text.endswith(", and more]")
    assert text.count(" to ") == 500


def test_what_is_beside_the_cells_is_read_or_named() -> None:
    shapes = f"<draw:custom-shape>{p('a box')}</draw:custom-shape><draw:frame><draw:image/></draw:frame>"
    shapes = f"<table:shapes>{shapes}</table:shapes>"
    in_cell = f"<table:table-cell>{p('a')}{BOX}</table:table-cell>"
    masters = f'<style:master-page style:name="Default"><style:footer>{p("ACME")}</style:footer></style:master-page>'
    linked = sheet('<table:table-source xlink:href="file:///x.ods"/>', row(cell("cached")), name="Other")
    found = read_ods(open_file(sheet(shapes, row(in_cell)) + linked, "spreadsheet", masters=masters))
    assert found.parts[0].text.split("\n")[2:] == [
        "| 1 | a |",
        "[text box] b",
        "[text box] a box",
        "[footer of the printed page] ACME",
    ]
    assert found.missing == (
        "sheet Other has cells of another file, which is not opened (file:///x.ods)",
        "1 picture",
    )


@pytest.mark.parametrize(
    ("text", "about", "shown"),
    [
        ("3 %", 'office:value-type="percentage" office:value="0.025"', "3 % (exactly 0.025)"),
        ("1.234,50 €", 'office:value-type="currency" office:value="1234.5"', "1.234,50 €"),
        ("9 467", 'office:value-type="float" office:value="9467"', "9 467"),
        ("20", 'office:value-type="float" office:value="19.99"', "20 (exactly 19.99)"),
        ("2 of 3", 'office:value-type="float" office:value="2"', "2 of 3"),
        ("7", 'office:value-type="float" office:value="nan"', "7"),
        ("7", 'office:value-type="float" office:value="1e999"', "7"),
        ("7", 'office:value-type="float" office:value="x"', "7"),
        ("15.03.2023", 'office:value-type="date" office:date-value="2023-03-15" office:value="1"', "15.03.2023"),
    ],
)
def test_a_figure_has_its_exact_value_where_rounding_hides_it(text: str, about: str, shown: str) -> None:
    found = read_ods(open_file(sheet(row(cell(text, about))), "spreadsheet"))
    assert f"| 1 | {shown} |" in found.parts[0].text


def test_rows_that_are_the_same_are_counted() -> None:
    found = read_ods(open_file(sheet(row(cell("a"), about='table:number-rows-repeated="1000000000"')), "spreadsheet"))
    lines = found.parts[0].text.split("\n")
    assert len(lines) == 103 and lines[-1] == "[rows 101 to 1,000,000,000 are the same as row 1]"


def test_columns_beyond_the_bound_are_said() -> None:
    found = read_ods(open_file(sheet(row(cell("a", 'table:number-columns-repeated="1000000000"'))), "spreadsheet"))
    assert found.missing == ("columns after the first 1,000 of sheet Plan",)


@pytest.mark.parametrize(
    ("names", "body", "kind"),
    [
        (("a.ODT", "a.ott"), p("rent"), "text"),
        (("a.odp", "a.otp"), f"<draw:page>{frame('rent')}</draw:page>", "presentation"),
        (("a.odg",), f"<draw:page>{frame('rent')}</draw:page>", "drawing"),
        (("a.ods", "a.ots"), sheet(row(cell("rent"))), "spreadsheet"),
    ],
)
def test_knows_the_files_by_their_names_and_reads_them_in_a_child_without_the_extra(
    names: tuple[str, ...], body: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    for name in names:
        found = format_of(name)
        assert found is not None
        assert "rent" in parser_process.read_document(found, open_file(body, kind)).text()


# -- attacks ----------------------------------------------------------------------------------------------------------


ATTACKS: dict[str, tuple[Callable[[int], dict[str, Attack]], Callable[[bytes, Wanted], Extracted]]] = {
    "text": (text_attacks, read_odt),
    "presentation": (page_attacks, read_odp),
    "spreadsheet": (sheet_attacks, read_ods),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (made, _) in ATTACKS.items() for name in made(9)])
def test_a_hostile_file_is_refused_or_read_in_bounds_and_fetches_nothing(
    kind: str, name: str, listener: socket.socket
) -> None:
    made, read = ATTACKS[kind]
    attack = made(listener.getsockname()[1])[name]
    assert_withstands(attack, read, listener)
