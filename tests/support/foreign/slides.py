"""Slides in PowerPoint's format, and hostile ones."""

from __future__ import annotations

from support.foreign.office import Attack, Victim, element, office_attacks, pack_parts, relations, slides_parts, sp


def line(text: str, properties: str) -> str:
    return f"<a:p><a:pPr {properties}<a:r><a:t>{text}</a:t></a:r></a:p>"


def frame(inside: str) -> str:
    about = '<p:nvGraphicFramePr><p:cNvPr id="1" name="x"/></p:nvGraphicFramePr>'
    return f"<p:graphicFrame>{about}<a:graphic><a:graphicData>{inside}</a:graphicData></a:graphic></p:graphicFrame>"


CELL = "<a:tc><a:txBody><a:p><a:r><a:t>%s</a:t></a:r></a:p></a:txBody></a:tc>"
PICTURE = '<p:pic><p:nvPicPr><p:cNvPr id="1" name="x"%s/><p:nvPr>%s</p:nvPr></p:nvPicPr></p:pic>'
LINK = '<a:p><a:r><a:rPr><a:hlinkClick r:id="web"/></a:rPr><a:t>the page</a:t></a:r></a:p>'
FIELD = '<a:p><a:fld type="slidenum"><a:t>7</a:t></a:fld></a:p>'
NUMBER = '<a:buAutoNum type="%s"/></a:pPr>'
SLIDES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "title": (sp("Rent", place="title"), "# Rent", ()),
    "lines of a shape": (sp("one", "two"), "one\ntwo", ()),
    "levels and bullets": (
        sp(line("a", 'lvl="0"><a:buChar char="•"/></a:pPr>'), line("b", 'lvl="1"/>')),
        "• a\n  b",
        (),
    ),
    "numbers": (
        sp(
            line("a", ">" + NUMBER % "arabicPeriod"),
            line("b", ">" + NUMBER % "arabicPeriod"),
            line("c", 'lvl="1">' + NUMBER % "alphaLcParenR"),
            line("d", ">" + NUMBER % "arabicPeriod"),
        ),
        "1. a\n2. b\n  a) c\n3. d",
        (),
    ),
    "line break": (sp("<a:p><a:r><a:t>a</a:t></a:r><a:br/><a:r><a:t>b</a:t></a:r></a:p>"), "a\nb", ()),
    "field": (sp(FIELD), "7", ()),
    "link": (sp(LINK), "the page (https://x.org/)", ()),
    "group": (f"<p:grpSp>{sp('one')}<p:grpSp>{sp('two')}</p:grpSp></p:grpSp>", "one\n\ntwo", ()),
    "table": (frame(f"<a:tbl><a:tr>{CELL % 'a'}{CELL % 'b'}</a:tr></a:tbl>"), "| a | b |\n|---|---|", ()),
    "picture": (PICTURE % ("", ""), "", ("1 picture",)),
    "picture with a description": (PICTURE % (' descr="a dot"', ""), "[picture: a dot]", ("1 picture",)),
    "video": (PICTURE % ("", "<a:videoFile/>"), "", ("1 picture", "a video")),
    "embedded object": (frame('<p:oleObj progId="Excel.Sheet.12"/>'), "", ("an embedded object (Excel.Sheet.12)",)),
    "hidden shape": (sp("two words", about=' hidden="1"'), "", ("2 words of hidden shapes",)),
    "chart": (frame('<c:chart r:id="xchart1"/>'), "", ("a chart (Sales)",)),
    "diagram": (frame('<dgm:relIds r:dm="xdiagramData1"/>'), "First\nSecond", ()),
    "equation": (sp("<a:p><m:oMath><m:r><m:t>x+y</m:t></m:r></m:oMath></a:p>"), "x+y", ()),
    "either form": (
        f"<mc:AlternateContent><mc:Choice>{sp('once')}</mc:Choice><mc:Fallback>{sp('once')}</mc:Fallback>"
        "</mc:AlternateContent>",
        "once",
        (),
    ),
    "unknown element": (f"<p:new>{sp('kept')}</p:new>", "kept", ()),
}


def slide_attacks(port: int) -> dict[str, Attack]:
    victim = Victim(lambda text: slides_parts(sp(text)), "ppt/presentation.xml", "ppt/slides/slide1.xml")
    attacks = office_attacks(victim, port)
    web = f"http://127.0.0.1:{port}/x"
    kept = sp("KEPTWORD")
    elsewhere = slides_parts(kept + PICTURE % (' descr="x"', f'<a:videoFile r:link="{web}"/>'))
    elsewhere["ppt/slides/_rels/slide1.xml.rels"] = relations(
        ("a", "image", web), ("b", "notesSlide", "../../../../etc/passwd"), ("c", "notesSlide", "slide1.xml")
    )
    again = slides_parts(kept)
    again["ppt/presentation.xml"] = element(
        "p:presentation", "<p:sldIdLst>" + '<p:sldId id="256" r:id="s1"/>' * 100_000 + "</p:sldIdLst>"
    )
    groups = kept
    for _ in range(180):
        groups = f"<p:grpSp>{groups}</p:grpSp>"
    row = f"<a:tr>{CELL % 'x' * 300}</a:tr>"
    charts = frame('<c:chart r:id="xchart1"/>' * 50_000)
    big = element("c:chartSpace", "<c:title>" + "<a:t>x</a:t>" * 50_000 + "</c:title>")
    attacks |= {
        "relations outside and to itself": Attack(lambda: pack_parts(elsewhere), read="KEPTWORD", missing="etc/passwd"),
        "one slide 100,000 times": Attack(lambda: pack_parts(again), read="more slides are not shown"),
        "groups in groups": Attack(lambda: pack_parts(slides_parts(groups)), read="KEPTWORD"),
        "a wide table": Attack(
            lambda: pack_parts(slides_parts(kept + frame(f"<a:tbl>{row * 200}</a:tbl>"))), read="KEPTWORD"
        ),
        "50,000 references to one chart": Attack(
            lambda: pack_parts(slides_parts(kept + charts, chart1=big)), read="KEPTWORD", missing="a chart"
        ),
        "20 million characters": Attack(
            lambda: pack_parts(slides_parts(*[kept + sp("words " * 150_000)] * 22)), read="too long to read|not shown"
        ),
        "numbers of a thousand digits": Attack(
            lambda: pack_parts(
                slides_parts(
                    sp(line("KEPTWORD", f'lvl="{"9" * 999}"><a:buAutoNum type="x" startAt="{"9" * 999}"/></a:pPr>'))
                )
            ),
            read="KEPTWORD",
        ),
    }
    return attacks
