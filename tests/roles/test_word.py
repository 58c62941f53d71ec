"""Word documents: what a reader sees is in the text, and what cannot be text is named. Hostile ones harm nothing."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.foreign.office import element, p, pack_parts, r, word_file, word_parts
from support.foreign.word import BODIES, NUMBERING, field, item, notes_part, word_attacks

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts.extracted import OLE_MAGIC, format_of
from ava_roles.texts.formats import read_docx
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs


@pytest.mark.parametrize("name", BODIES)
def test_reads_or_names(name: str) -> None:
    body, text, missing = BODIES[name]
    found = read_docx(word_file(body))
    assert (found.text(), found.missing) == (text, missing)


def test_notes_have_the_numbers_of_their_marks_and_comments_their_author() -> None:
    body = p(
        r("a") + '<w:r><w:footnoteReference w:id="2"/></w:r>' + r("b") + '<w:r><w:footnoteReference w:id="1"/></w:r>'
        '<w:r><w:endnoteReference w:id="1"/></w:r><w:r><w:commentReference w:id="1"/></w:r>'
    )
    found = read_docx(
        word_file(
            body,
            footnotes=notes_part("footnote", "second", "first", "without a mark"),
            endnotes=notes_part("endnote", "at the end"),
            comments=notes_part("comment", "too high"),
        )
    )
    assert [tuple(part) for part in found.parts] == [
        ("", "a[footnote 1]b[footnote 2][endnote 1][comment 1]"),
        ("footnotes", "[footnote 1] Ann: first\n\n[footnote 2] Ann: second\n\n[footnote 3] Ann: without a mark"),
        ("endnotes", "[endnote 1] Ann: at the end"),
        ("comments", "[comment 1] Ann: too high"),
    ]
    assert read_docx(word_file(body)).missing == (
        "a footnote that is not in the file, 2 times",
        "a endnote that is not in the file",
        "a comment that is not in the file",
    )


def test_headers_and_footers_come_once() -> None:
    data = word_file(
        p("body"),
        header1=element("w:hdr", p("Lease")),
        header2=element("w:hdr", p("Lease")),
        footer1=element("w:ftr", p(field("PAGE", "1"))),
    )
    assert read_docx(data).text() == "body\n\n[headers and footers]\nLease\n\n1"


STYLES = element(
    "w:styles",
    '<w:style w:type="paragraph" w:styleId="H"><w:name w:val="heading 2"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="Kapitel"/><w:basedOn w:val="H"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Out"><w:name w:val="x"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Item"><w:name w:val="y"/><w:pPr>'
    '<w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
    '</w:style><w:style w:type="character" w:styleId="Secret"><w:name w:val="z"/><w:rPr><w:vanish/></w:rPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="A"><w:name w:val="a"/><w:basedOn w:val="B"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="B"><w:name w:val="b"/><w:basedOn w:val="A"/></w:style>',
)


def test_items_of_lists_have_their_numbers() -> None:
    body = item(0, "a") + item(1, "b") + item(1, "c") + item(2, "d") + item(3, "e") + item(0, "f") + item(1, "g")
    body += item(0, "h", 2) + item(4, "i") + p("j", '<w:pStyle w:val="Item"/>')
    found = read_docx(word_file(body, numbering=NUMBERING, styles=STYLES))
    assert found.text().split("\n\n") == [
        "1. a",
        "  1.c) b",
        "  1.d) c",
        "    • d",
        "      (IV) e",
        "2. f",
        "  2.c) g",
        "9. h",
        "        1 i",
        "10. j",
    ]
    assert found.missing == ("numbers of lists as hebrew1 (shown as 1, 2, 3)",)


def test_headings_follow_the_style_and_those_that_it_is_based_on() -> None:
    styles = ("T", "Own", "Out", "A", "none")
    body = "".join(p(style, f'<w:pStyle w:val="{style}"/>') for style in styles)
    body += p(r("shown ") + r("secret", '<w:rStyle w:val="Secret"/>'))
    found = read_docx(word_file(body, styles=STYLES))
    assert found.text().split("\n\n") == ["# T", "## Own", "# Out", "A", "none", "shown"]
    assert found.missing == ("1 word of hidden text",)


def test_links_charts_and_diagrams() -> None:
    chart = element("c:chartSpace", "<c:title><a:t>Sales by </a:t><a:t>year</a:t></c:title>")
    diagram = element("dgm:dataModel", "<a:p><a:t>First</a:t></a:p><a:p><a:t>Second</a:t></a:p>")
    body = p(
        f'<w:hyperlink r:id="web">{r("the page")}</w:hyperlink>{r(" ")}'
        f'<w:hyperlink r:id="same">{r("a@x.org")}</w:hyperlink>'
        '<w:r><w:drawing><wp:inline><c:chart r:id="xchart1"/></wp:inline></w:drawing></w:r>'
        '<w:r><w:drawing><wp:inline><dgm:relIds r:dm="xdiagramData1"/></wp:inline></w:drawing></w:r>'
    )
    related = (("web", "hyperlink", "https://x.org/"), ("same", "hyperlink", "mailto:a@x.org"))
    found = read_docx(word_file(body, *related, chart1=chart, diagramData1=diagram))
    assert found.text() == "the page (https://x.org/) a@x.org\n\nFirst\nSecond"
    assert found.missing == ("a chart (Sales by year)",)


def test_reads_the_strict_form_of_the_standard_and_the_title() -> None:
    strict = {
        name: str(text)
        .replace(
            "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
            "http://purl.oclc.org/ooxml/wordprocessingml/main",
        )
        .replace(
            "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
            "http://purl.oclc.org/ooxml/officeDocument/relationships",
        )
        for name, text in word_parts(p("strict")).items()
    }
    kind = "http://schemas.openxmlformats.org/package/2006/relationships/metadata/core-properties"
    title = f'<Relationship Id="t" Type="{kind}" Target="core.xml"/>'
    strict["_rels/.rels"] = strict["_rels/.rels"].replace("</R", f"{title}</R")
    strict["core.xml"] = '<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The lease</dc:title></c>'
    found = read_docx(pack_parts({**strict}))
    assert (found.text(), found.title) == ("strict", "The lease")


@pytest.mark.parametrize("name", ["a.docx", "a.docm", "a.dotx", "a.DOTM"])
def test_knows_word_documents_by_their_names(name: str) -> None:
    kind = format_of(name)
    assert kind is not None and kind.name == "Word document"


def test_an_old_document_is_known_by_its_bytes_and_a_text_of_its_name_stays_text() -> None:
    kind = format_of("a.doc", OLE_MAGIC)
    assert kind is not None and kind.name == "Word document"
    assert format_of("a.doc", b"plain text") is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.doc", "ask for a copy saved as .docx, or open it in Word or LibreOffice and save it so"),
        ("a.docx", "ask for a copy saved as .docx, or open it in Word or LibreOffice and save it so"),
        ("a.ppt", "ask for a copy saved as .pptx, or open it in PowerPoint or LibreOffice and save it so"),
        ("a.odt", "ask for a copy saved as .odt, or open it in LibreOffice and save it so"),
        ("a.rtf", "ask for a copy saved as .rtf, or open it in Word or LibreOffice and save it so"),
    ],
)
async def test_an_old_document_is_named_with_what_to_do(name: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(OLE_MAGIC + bytes(600))
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="rent"), ToolContext(files=root))
    root.close()
    assert found.unread.endswith(f"it is in an old binary format; {advice}")


@pytest.mark.parametrize("name", ["a.doc", "a.DOT", "a.docx"])
async def test_a_file_named_as_one_of_word_may_be_rtf(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(rb"{\rtf1\ansi Die Miete f\'fcr M\'e4rz.\par}")
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="Miete"), ToolContext(files=root))
    root.close()
    assert found.text.endswith("\nDie Miete für März.") and not found.unread


# -- attacks ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", word_attacks(9))
def test_a_hostile_document_is_refused_or_read_in_bounds_and_fetches_nothing(
    name: str, listener: socket.socket
) -> None:
    attack = word_attacks(listener.getsockname()[1])[name]
    data = attack.data()
    began = time.process_time()
    if attack.refused:
        with pytest.raises(ToolFailed, match=attack.refused):
            read_docx(data)
    else:
        found = read_docx(data)
        assert attack.read in found.text()
        assert attack.missing in "; ".join(found.missing)
        assert "root:" not in found.text()
        assert len(found.text()) < 6_000_000
    assert time.process_time() - began < 25
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize(
    "doctype", ["", '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "x.dtd">', "<!DOCTYPE svg [<!ENTITY n 'x'>]>"]
)
def test_a_picture_in_svg_does_not_keep_the_text_from_being_read(doctype: str) -> None:
    parts = word_parts(p(r("The rent is 1150 euro.")))
    parts["word/media/image1.svg"] = f'{doctype}<svg xmlns="http://www.w3.org/2000/svg"/>'
    assert read_docx(pack_parts(parts)).text() == "The rent is 1150 euro."
