"""OpenDocument files: what a reader sees is read, what cannot be text is named, and no file harms more than itself."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from support.foreign.office import Attack, Victim, assert_withstands, pack_parts
from support.foreign.opendocument import cell, content, element, open_attacks, open_file, open_parts, p, row, sheet

from ava_roles.documents import read_odp, read_ods, read_odt
from ava_roles.tools import parser_process
from ava_roles.tools.extracted import Extracted, Wanted, format_of

NUMBERS = (
    '<text:list-style style:name="N">'
    '<text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>'
    '<text:list-level-style-number text:level="2" style:num-format="a" style:num-prefix="(" style:num-suffix=")"/>'
    '<text:list-level-style-number text:level="3" style:num-format="i" text:display-levels="3"/>'
    "</text:list-style>"
    '<text:list-style style:name="B"><text:list-level-style-bullet text:level="1" text:bullet-char="–"/>'
    "</text:list-style>"
    '<style:style style:name="Hidden" style:family="text"><style:text-properties text:display="none"/></style:style>'
    '<style:style style:name="P1" style:family="paragraph" style:parent-style-name="Title"/>'
)


def items(*texts: str, style: str = "", about: str = "") -> str:
    name = f' text:style-name="{style}"' if style else ""
    inside = "".join(f"<text:list-item>{each}</text:list-item>" for each in texts)
    return f"<text:list{name} {about}>{inside}</text:list>"


def note(kind: str, text: str) -> str:
    return (
        f'<text:note text:note-class="{kind}"><text:note-citation>9</text:note-citation>'
        f"<text:note-body>{p(text)}</text:note-body></text:note>"
    )


DELETED = (
    "<text:tracked-changes><text:changed-region><text:deletion><office:change-info><dc:creator>A</dc:creator>"
    "</office:change-info><text:p>GONE</text:p></text:deletion></text:changed-region></text:tracked-changes>"
)
FORM = (
    '<office:forms><form:form><form:checkbox form:id="c" form:label="agree" form:current-state="checked"/>'
    '<form:text form:id="t" form:name="tenant" form:current-value="Ada"/>'
    '<form:listbox form:id="l" form:name="floor"><form:option form:label="1st"/>'
    '<form:option form:label="2nd" form:current-selected="true"/></form:listbox></form:form></office:forms>'
)
COVERED = "<table:covered-table-cell/>"
BOX = f"<draw:frame><draw:text-box>{p('b')}</draw:text-box></draw:frame>"
TEXTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "headings": ('<text:h text:outline-level="2">Rent</text:h>', "## Rent", ()),
    "a title": ('<text:p text:style-name="P1">Lease</text:p>', "# Lease", ()),
    "blanks": (p("a  b\n c<text:s/><text:s text:c='2'/>d"), "a b c   d", ()),
    "tab and break": (p("a<text:tab/>b<text:line-break/>c"), "a\tb\nc", ()),
    "lists": (
        items(p("a"), p("b") + items(p("c"), p("d") + items(p("e"))), p("f") + p("more"), style="N"),
        "1. a\n\n2. b\n\n  (a) c\n\n  (b) d\n\n    2.b.i e\n\n3. f\n\nmore",
        (),
    ),
    "a list that goes on": (
        items(p("a"), style="N")
        + p("between")
        + items(p("b"), style="N", about='text:continue-numbering="true"')
        + items(p("c"), style="N"),
        "1. a\n\nbetween\n\n2. b\n\n1. c",
        (),
    ),
    "an item with a number of its own": (
        '<text:list text:style-name="N"><text:list-item text:start-value="7"><text:p>a</text:p></text:list-item>'
        "<text:list-header><text:p>b</text:p></text:list-header></text:list>",
        "7. a\n\nb",
        (),
    ),
    "bullets": (items(p("a"), style="B"), "– a", ()),
    "tracked changes": (DELETED + p("rent<text:change text:change-id='c'/>"), "rent", ("1 tracked deletion",)),
    "link": (p('see <text:a xlink:href="https://x.org/">the page</text:a>'), "see the page (https://x.org/)", ()),
    "hidden text": (p('a<text:span text:style-name="Hidden">two words</text:span>'), "a", ("2 words of hidden text",)),
    "hidden by a condition": (
        p('a<text:hidden-text text:is-hidden="true" text:string-value="b c"/>'),
        "a",
        ("2 words of hidden text",),
    ),
    "hidden section": (f'<text:section text:display="none">{p("x")}</text:section>', "", ("1 word of hidden text",)),
    "ruby": (
        p("<text:ruby><text:ruby-base>漢</text:ruby-base><text:ruby-text>かん</text:ruby-text></text:ruby>"),
        "漢(かん)",
        (),
    ),
    "box": (p(f"a{BOX}c"), "ac\n\nb", ()),
    "shape": (p(f"a<draw:custom-shape>{p('b')}</draw:custom-shape>"), "a\n\nb", ()),
    "picture": (
        p('<draw:frame><draw:image xlink:href="a.png"/><svg:desc>a dot</svg:desc></draw:frame>'),
        "[picture: a dot]",
        ("1 picture",),
    ),
    "video": (
        p('<draw:frame><draw:plugin xlink:href="a.mp4"/></draw:frame>'),
        "",
        ("a video, sound or other program's content (a.mp4)",),
    ),
    "formula": (
        p(
            "f: <draw:frame><draw:object><math:math><math:mfrac><math:mi>a</math:mi><math:mi>b</math:mi></math:mfrac>"
            "</math:math></draw:object></draw:frame>"
        ),
        "f: (a)/(b)",
        (),
    ),
    "form": (
        FORM + p('<draw:control draw:control="c"/><draw:control draw:control="t"/><draw:control draw:control="l"/>'),
        "☒ agree\n\n[field tenant] Ada\n\n[field floor] 2nd",
        (),
    ),
    "table": (
        sheet(row(cell("a"), cell("b")), row(cell("c", 'table:number-columns-spanned="2"'), COVERED)),
        "| a | b |\n|---|---|\n| c |",
        (),
    ),
    "table in a table": (
        sheet(row(cell("a"), f"<table:table-cell>{sheet(row(cell('b'), cell('c')))}</table:table-cell>")),
        "| a | b; c |\n|---|---|",
        (),
    ),
    "repeated cells": (sheet(row(cell("a", 'table:number-columns-repeated="3"'))), "| a | a | a |\n|---|---|---|", ()),
    "repeated row": (
        sheet(row(cell("a"), about='table:number-rows-repeated="3"')),
        "| a |\n|---|",
        ("a row of a table that comes several times, and is shown once",),
    ),
    "index": (
        "<text:table-of-content><text:table-of-content-source><text:index-title-template>NO</text:index-title-template>"
        f"</text:table-of-content-source><text:index-body>{p('Rent 3')}</text:index-body></text:table-of-content>",
        "Rent 3",
        (),
    ),
    "another file": (
        f'<text:section><text:section-source xlink:href="b.odt"/>{p("kept")}</text:section>',
        "kept",
        ("a section that comes from another file (b.odt)",),
    ),
    "script": (p("<text:script>x = 1</text:script>a"), "a", ("a script",)),
    "unknown element": (p("<text:new>kept</text:new>") + "<text:new>and kept</text:new>", "kept\n\nand kept", ()),
}


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


def frame(*lines: str, kind: str = "") -> str:
    about = f' presentation:class="{kind}"' if kind else ""
    return f"<draw:frame{about}><draw:text-box>{''.join(map(p, lines))}</draw:text-box></draw:frame>"


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


def text_attacks(port: int) -> dict[str, Attack]:
    attacks = open_attacks(
        Victim(lambda text: open_parts(p(text)), "content.xml", "content.xml", "text:section"), "text", port
    )
    kept = p("KEPTWORD")
    web = f"http://127.0.0.1:{port}/x"

    def made(body: str) -> Callable[[], bytes]:
        return lambda: open_file(body, styles=NUMBERS)

    lists, boxes, tables, notes, formula = p("x"), p("x"), p("x"), "x", "<math:mi>x</math:mi>"
    for _ in range(60):
        lists = items(lists, style="N")
        tables = sheet(row(f'<table:table-cell table:number-columns-repeated="99">{tables}</table:table-cell>'))
    for _ in range(40):
        boxes = p(f"<draw:frame><draw:text-box>{boxes}</draw:text-box></draw:frame>")
        notes = note("footnote", notes)
    for _ in range(150):
        formula = f"<math:mfrac>{formula}</math:mfrac>"
    return attacks | {
        "lists in lists": Attack(made(kept + lists), read="KEPTWORD"),
        "boxes in boxes": Attack(made(kept + boxes), "cannot be read", "KEPTWORD"),
        "repeated tables in tables": Attack(made(kept + tables), "cannot be read", "KEPTWORD"),
        "notes in notes": Attack(made(kept + p(notes)), "cannot be read", "KEPTWORD"),
        "a deep formula": Attack(made(kept + p(f"<math:math>{formula}</math:math>")), read="KEPTWORD"),
        "50,000 notes": Attack(made(kept + p(note("footnote", "y") * 50_000)), read="KEPTWORD"),
        "a row a billion times": Attack(
            made(kept + sheet(row(cell("a"), about='table:number-rows-repeated="1000000000"') * 100)),
            read="KEPTWORD",
            missing="shown once, 100 times",
        ),
        "a cell a billion times": Attack(
            made(kept + sheet(row(cell("a", 'table:number-columns-repeated="1000000000"')) * 1_000)), read="KEPTWORD"
        ),
        "a list that begins at a googol": Attack(
            made(f'{kept}<text:list><text:list-item text:start-value="{10**99}">{p("x")}</text:list-item></text:list>'),
            read="KEPTWORD",
        ),
        "a section of another place": Attack(
            made(kept + f'<text:section><text:section-source xlink:href="{web}"/></text:section>'),
            read="KEPTWORD",
            missing="comes from another file",
        ),
    }


def slide_attacks(port: int) -> dict[str, Attack]:
    victim = Victim(
        lambda text: open_parts(f"<draw:page>{frame(text)}</draw:page>", "presentation"),
        "content.xml",
        "content.xml",
        "draw:g",
    )
    groups = frame("KEPTWORD")
    for _ in range(100):
        groups = f"<draw:g>{groups}</draw:g>"
    return open_attacks(victim, "presentation", port) | {
        "groups in groups": Attack(
            lambda: open_file(f"<draw:page>{groups}</draw:page>", "presentation"), "cannot be read", "KEPTWORD"
        ),
        "100,000 slides": Attack(
            lambda: open_file(f"<draw:page>{frame('x')}</draw:page>" * 100_000, "presentation"), read="more slides are"
        ),
    }


def sheet_attacks(port: int) -> dict[str, Attack]:
    victim = Victim(
        lambda text: open_parts(sheet(row(cell(text))), "spreadsheet"), "content.xml", "content.xml", "text:span"
    )
    many = 'table:number-rows-repeated="1000000000"'

    def made(*rows: str) -> Callable[[], bytes]:
        return lambda: open_file(sheet(row(cell("KEPTWORD")), *rows), "spreadsheet")

    wide = cell("x" * 1_000, 'table:number-columns-repeated="1000000000"')
    return open_attacks(victim, "spreadsheet", port) | {
        "a cell a billion times a billion": Attack(
            made(row(wide, about=many) * 50), read="KEPTWORD", missing="columns after"
        ),
        "empty rows without end": Attack(made(row(cell(), about=many) * 1_000), read="KEPTWORD"),
        "hidden rows without end": Attack(
            made(row(cell("x"), about=f'{many} table:visibility="collapse"') * 100), read="KEPTWORD"
        ),
        "hidden columns without end": Attack(
            made(
                '<table:table-column table:visibility="collapse" table:number-columns-repeated="1000000000"/>' * 1_000
            ),
            read="KEPTWORD",
        ),
        "merged cells without end": Attack(
            made(row(cell("x", 'table:number-rows-spanned="100000000" table:number-columns-spanned="9999999"')) * 900),
            read="KEPTWORD",
        ),
        "10,000 sheets": Attack(
            lambda: open_file(sheet(row(cell("KEPTWORD"))) * 10_000, "spreadsheet"), read="KEPTWORD"
        ),
        "comments in a cell": Attack(
            made(row("<table:table-cell>" + "<office:annotation/>" * 50_000 + "</table:table-cell>")),
            read="KEPTWORD",
        ),
        "a sheet of another place": Attack(
            made(f'<table:table-source xlink:href="http://127.0.0.1:{port}/x"/>'),
            read="KEPTWORD",
            missing="another file",
        ),
    }


ATTACKS: dict[str, tuple[Callable[[int], dict[str, Attack]], Callable[[bytes, Wanted], Extracted]]] = {
    "text": (text_attacks, read_odt),
    "presentation": (slide_attacks, read_odp),
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
