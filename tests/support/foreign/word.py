"""Texts in Word's format, and hostile ones."""

from __future__ import annotations

from support.foreign.office import (
    Attack,
    Victim,
    element,
    office_attacks,
    p,
    pack_parts,
    r,
    relations,
    word_file,
    word_parts,
)

BOX = f"<w:txbxContent>{p('box text')}</w:txbxContent>"
NEW_BOX = (
    f"<w:drawing><wp:inline><a:graphic><wps:wsp><wps:txbx>{BOX}"
    "</wps:txbx></wps:wsp></a:graphic></wp:inline></w:drawing>"
)
OLD_BOX = f"<w:pict><v:shape><v:textbox>{BOX}</v:textbox></v:shape></w:pict>"
BOTH_BOXES = (
    f'<mc:AlternateContent><mc:Choice Requires="wps">{NEW_BOX}</mc:Choice>'
    f"<mc:Fallback>{OLD_BOX}</mc:Fallback></mc:AlternateContent>"
)
DELETED_END = '<w:rPr><w:del w:id="1"/></w:rPr>'


def field(instruction: str, result: str | None) -> str:
    shown = "" if result is None else f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{r(result)}'
    return (
        f'<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>{instruction}</w:instrText></w:r>{shown}'
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


def picture(alternative: str) -> str:
    return (
        f'<w:r><w:drawing><wp:inline><wp:docPr id="1" name="x" descr="{alternative}"/><a:graphic><a:graphicData>'
        f'<pic:pic><pic:nvPicPr><pic:cNvPr id="1" name="x" descr="{alternative}"/></pic:nvPicPr></pic:pic>'
        "</a:graphicData></a:graphic></wp:inline></w:drawing></w:r>"
    )


def cell(inside: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inside}</w:tc>"


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


BODIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "insertion": (p(r("rent ") + f'<w:ins w:id="1">{r("1150")}</w:ins>' + r(" euro")), "rent 1150 euro", ()),
    "deletion": (
        p(r("rent ") + '<w:del w:id="1"><w:r><w:delText>900</w:delText></w:r></w:del>' + r("1150")),
        "rent 1150",
        ("1 tracked deletion",),
    ),
    "move": (
        p(f'<w:moveFrom w:id="1">{r("moved")}</w:moveFrom>' + r("a "))
        + p(f'<w:moveTo w:id="2">{r("moved")}</w:moveTo>'),
        "a\n\nmoved",
        (),
    ),
    "deleted end of a paragraph": (p("one ", DELETED_END) + p("two"), "one two", ()),
    "deleted row": (
        f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr>{cell(p('old'))}</w:tr><w:tr>{cell(p('new'))}</w:tr></w:tbl>",
        "| new |\n|---|",
        (),
    ),
    "text box": (p(r("before") + f"<w:r>{NEW_BOX}</w:r>"), "before\n\nbox text", ()),
    "old text box": (p(r("before") + f"<w:r>{OLD_BOX}</w:r>"), "before\n\nbox text", ()),
    "text box in both forms": (p(r("before") + f"<w:r>{BOTH_BOXES}</w:r>"), "before\n\nbox text", ()),
    "only the older form gives text": (
        p(f"<w:r><mc:AlternateContent><mc:Choice/><mc:Fallback>{OLD_BOX}</mc:Fallback></mc:AlternateContent></w:r>"),
        "box text",
        (),
    ),
    "text box in a cell": (table(cell(p(f"<w:r>{BOTH_BOXES}</w:r>"))), "| box text |\n|---|", ()),
    "letters as a picture": (
        p('<w:r><w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict></w:r>'),
        "DRAFT",
        (),
    ),
    "content control in a line": (p(f"<w:sdt><w:sdtContent>{r('chosen')}</w:sdtContent></w:sdt>"), "chosen", ()),
    "content control around paragraphs": (f"<w:sdt><w:sdtContent>{p('chosen')}</w:sdtContent></w:sdt>", "chosen", ()),
    "content control around a cell": (
        table(f"<w:sdt><w:sdtContent>{cell(p('chosen'))}</w:sdtContent></w:sdt>"),
        "| chosen |\n|---|",
        (),
    ),
    "content control around a row": (
        f"<w:tbl><w:sdt><w:sdtContent><w:tr>{cell(p('chosen'))}</w:tr></w:sdtContent></w:sdt></w:tbl>",
        "| chosen |\n|---|",
        (),
    ),
    "simple field": (p(f'<w:fldSimple w:instr="PAGE">{r("7")}</w:fldSimple>'), "7", ()),
    "field": (p(field("DATE", "4 May")), "4 May", ()),
    "field in the instruction of a field": (
        p(field(f"IF </w:instrText></w:r>{field('X', 'no')}<w:r><w:instrText>", "yes")),
        "yes",
        (),
    ),
    "field without a value": (p(r("on ") + field("DATE", None)), "on", ("the value of a field (DATE)",)),
    "field of an index": (p(r("on ") + field('XE "on"', None)), "on", ()),
    "link by a field": (p(field('HYPERLINK "https://x.org/a b"', "here")), "here (https://x.org/a b)", ()),
    "ticked box of a form": (
        p(
            '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:checkBox><w:checked/></w:checkBox>'
            "</w:ffData></w:fldChar>"
            '<w:instrText>FORMCHECKBOX</w:instrText><w:fldChar w:fldCharType="end"/></w:r>'
        ),
        "☒",
        (),
    ),
    "chosen entry of a form": (
        p(
            '<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="a"/>'
            '<w:listEntry w:val="b"/></w:ddList></w:ffData></w:fldChar><w:fldChar w:fldCharType="end"/></w:r>'
        ),
        "b",
        (),
    ),
    "smart tag": (p(f'<w:smartTag w:element="place">{r("Bern")}</w:smartTag>'), "Bern", ()),
    "nested table": (
        table(cell(p("a")) + cell(table(cell(p("b")) + cell(p("c")), cell(p("d"))) + p("e"))),
        "| a | b; c / d e |\n|---|---|",
        (),
    ),
    "frame around a part": (table(cell(p("one") + table(cell(p("two"))))), "one\n\n| two |\n|---|", ()),
    "tab and line breaks": (
        p("<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:cr/><w:t>d</w:t></w:r>"),
        "a\tb\nc\nd",
        (),
    ),
    "hyphen that does not break": (p("<w:r><w:t>a</w:t><w:noBreakHyphen/><w:t>b</w:t></w:r>"), "a-b", ()),
    "signs": (
        p('<w:r><w:sym w:font="Wingdings" w:char="F0FE"/><w:sym w:font="Symbol" w:char="F061"/></w:r>'),
        "☑α",
        (),
    ),
    "unknown sign": (p('<w:r><w:sym w:font="Odd" w:char="F0FE"/></w:r>'), "[sign F0FE of Odd]", ()),
    "equation": (
        p("<m:oMath><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f></m:oMath>"),
        "(a)/(b)",
        (),
    ),
    "ruby": (
        p(f"<w:r><w:ruby><w:rt>{r('kan')}</w:rt><w:rubyBase>{r('漢')}</w:rubyBase></w:ruby></w:r>"),
        "漢(kan)",
        (),
    ),
    "hidden text": (p(r("seen ") + r("not seen", "<w:vanish/>")), "seen", ("2 words of hidden text",)),
    "text that is not hidden after all": (p(r("seen", '<w:vanish w:val="0"/>')), "seen", ()),
    "picture": (p(picture("")), "", ("1 picture",)),
    "picture with a description": (p(picture("a red dot")), "[picture: a red dot]", ("1 picture",)),
    "old picture": (
        p('<w:r><w:pict><v:shape><v:imagedata o:title="dot"/></v:shape></w:pict></w:r>'),
        "[picture: dot]",
        ("1 picture",),
    ),
    "embedded object": (
        p('<w:r><w:object><v:shape><v:imagedata/></v:shape><o:OLEObject ProgID="Excel.Sheet.12"/></w:object></w:r>'),
        "",
        ("an embedded object (Excel.Sheet.12)",),
    ),
    "inserted file": ('<w:altChunk r:id="none"/>' + p("a"), "a", ("an inserted file",)),
    "heading by its outline": (p("Rent", '<w:outlineLvl w:val="1"/>'), "## Rent", ()),
    "body text by its outline": (p("Rent", '<w:outlineLvl w:val="9"/>'), "Rent", ()),
    "unknown element": (f"<w:new><w:p>{r('kept')}</w:p></w:new>", "kept", ()),
}


def notes_part(kind: str, *texts: str, inside: str = "") -> str:
    separator = f'<w:{kind} w:id="0" w:type="separator">{p("-")}</w:{kind}>' if kind != "comment" else ""
    each = [f'<w:{kind} w:id="{n}" w:author="Ann">{p(text)}{inside}</w:{kind}>' for n, text in enumerate(texts, 1)]
    return element(f"w:{kind}s", separator + "".join(each))


LEVELS = (
    '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:pStyle w:val="Item"/><w:lvlText w:val="%1."/></w:lvl>'
    '<w:lvl w:ilvl="1"><w:start w:val="3"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1.%2)"/></w:lvl>'
    '<w:lvl w:ilvl="2"><w:numFmt w:val="bullet"/><w:lvlText w:val="&#xF0B7;"/></w:lvl>'
    '<w:lvl w:ilvl="3"><w:start w:val="4"/><w:numFmt w:val="upperRoman"/><w:lvlText w:val="(%4)"/></w:lvl>'
    '<w:lvl w:ilvl="4"><w:start w:val="1"/><w:numFmt w:val="hebrew1"/><w:lvlText w:val="%5"/></w:lvl>'
)
NUMBERING = element(
    "w:numbering",
    f'<w:abstractNum w:abstractNumId="5">{LEVELS}</w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="5"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="5"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="9"/>'
    "</w:lvlOverride></w:num>",
)


def item(level: int, text: str, list_id: int = 1) -> str:
    return p(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_id}"/></w:numPr>')


def word_attacks(port: int) -> dict[str, Attack]:
    attacks = office_attacks(Victim(lambda text: word_parts(p(text)), "word/document.xml", "word/document.xml"), port)
    web = f"http://127.0.0.1:{port}/x"
    kept = p("KEPTWORD")
    begin = '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    separate = '<w:r><w:instrText>HYPERLINK "x"</w:instrText><w:fldChar w:fldCharType="separate"/></w:r>'
    end = '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    boxes = kept
    for _ in range(30):
        boxes = p(f"<w:r><w:pict><w:txbxContent>{boxes}</w:txbxContent></w:pict></w:r>")
    tables = kept
    for _ in range(55):
        tables = table(cell(tables) + cell(p("x")))
    note = '<w:r><w:footnoteReference w:id="1"/></w:r>'
    parts = word_parts(
        kept,
        ("outside", "image", web),
        ("file", "image", "file:///etc/passwd"),
        ("up", "header", "../../../../etc/passwd"),
        ("share", "image", "//127.0.0.1/share/x"),
        ("self", "header", "document.xml"),
        settings=element("w:settings", '<w:attachedTemplate r:id="t"/>'),
    )
    parts["word/_rels/settings.xml.rels"] = relations(("t", "attachedTemplate", web))
    attacks |= {
        "relations outside and to itself": Attack(lambda: pack_parts(parts), read="KEPTWORD", missing="etc/passwd"),
        "60,000 open fields": Attack(
            lambda: word_file(p("KEPTWORD") + p((begin + "<w:r><w:t>x</w:t></w:r>") * 60_000)),
            read="KEPTWORD",
            missing="a field that has no end",
        ),
        "fields in fields": Attack(
            lambda: word_file(kept + p((begin + separate) * 20_000 + r("y") * 20_000 + end * 20_000)), read="KEPTWORD"
        ),
        "boxes in boxes": Attack(lambda: word_file(boxes), read="KEPTWORD"),
        "tables in tables": Attack(lambda: word_file(tables), read="KEPTWORD"),
        "a note that names itself": Attack(
            lambda: word_file(kept + p(note), footnotes=notes_part("footnote", "note", inside=p(note))), read="KEPTWORD"
        ),
        "30,000 notes": Attack(
            lambda: word_file(
                kept + p("".join(f'<w:footnoteReference w:id="{n}"/>' for n in range(1, 30_000))),
                footnotes=notes_part("footnote", *["x"] * 30_000),
            ),
            read="KEPTWORD",
        ),
        "100,000 references to one chart": Attack(
            lambda: word_file(
                kept + p('<c:chart r:id="xchart1"/>' * 100_000),
                chart1=element("c:chartSpace", "<c:title>" + "<a:t>x</a:t>" * 100_000 + "</c:title>"),
            ),
            read="KEPTWORD",
            missing="a chart",
        ),
        "styles based on each other": Attack(
            lambda: word_file(
                kept + "".join(p("x", f'<w:pStyle w:val="s{n}"/>') for n in range(20_000)),
                styles=element(
                    "w:styles",
                    "".join(
                        f'<w:style w:styleId="s{n}"><w:basedOn w:val="s{(n + 1) % 20_000}"/></w:style>'
                        for n in range(20_000)
                    ),
                ),
            ),
            read="KEPTWORD",
        ),
        "50,000 lists of one scheme": Attack(
            lambda: word_file(
                item(0, "KEPTWORD", 1),
                numbering=element(
                    "w:numbering",
                    f'<w:abstractNum w:abstractNumId="5">{LEVELS * 5_000}</w:abstractNum>'
                    + '<w:num w:numId="1"><w:abstractNumId w:val="5"/></w:num>' * 50_000,
                ),
            ),
            read="KEPTWORD",
        ),
        "numbers of a thousand digits": Attack(
            lambda: word_file(
                item(0, "KEPTWORD"),
                numbering=NUMBERING.replace('<w:start w:val="1"/>', f'<w:start w:val="{"9" * 1_000}"/>'),
            ),
            read="KEPTWORD",
        ),
        "an item at a level of 900 digits": Attack(
            lambda: word_file(
                p("KEPTWORD", f'<w:numPr><w:ilvl w:val="{"9" * 900}"/><w:numId w:val="1"/></w:numPr>'),
                numbering=NUMBERING,
            ),
            read="KEPTWORD",
        ),
        "20 million characters": Attack(
            lambda: word_file(kept + p("words " * 150_000) * 22), read="cut here: the rest is too long"
        ),
        "an author of a million characters": Attack(
            lambda: word_file(kept, comments=notes_part("comment", "x").replace("Ann", "A" * 900_000)), read="KEPTWORD"
        ),
    }
    return attacks
