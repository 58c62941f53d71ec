"""Texts, slides and sheets in OpenDocument, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable

from support.foreign.office import Attack, Victim
from support.foreign.opendocument import cell, open_attacks, open_file, open_parts, p, row, sheet

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


def frame(*lines: str, kind: str = "") -> str:
    about = f' presentation:class="{kind}"' if kind else ""
    return f"<draw:frame{about}><draw:text-box>{''.join(map(p, lines))}</draw:text-box></draw:frame>"


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


def page_attacks(port: int) -> dict[str, Attack]:
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
