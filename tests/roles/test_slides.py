"""Presentations: the text of each slide, its notes and comments; what cannot be text is named."""

from __future__ import annotations

import re
import socket
import time

import pytest
from support.foreign.office import element, pack_parts, slides_parts, sp
from support.foreign.slides import SLIDES, slide_attacks

from ava_roles.errors import ToolFailed
from ava_roles.texts import parser_process
from ava_roles.texts.extracted import OLE_MAGIC, format_of
from ava_roles.texts.formats import read_pptx

CHART = element("c:chartSpace", "<c:title><a:t>Sales</a:t></c:title>")
DIAGRAM = element("dgm:dataModel", "<a:p><a:t>First</a:t></a:p><a:p><a:t>Second</a:t></a:p>")


@pytest.mark.parametrize("name", SLIDES)
def test_reads_or_names(name: str) -> None:
    shapes, text, missing = SLIDES[name]
    found = read_pptx(pack_parts(slides_parts(shapes, chart1=CHART, diagramData1=DIAGRAM)))
    assert [tuple(part) for part in found.parts] == [("slide 1", text)]
    assert found.missing == missing


def test_slides_come_in_their_order_with_notes_comments_and_what_all_of_them_show() -> None:
    notes = element("p:notes", sp("say this", place="body") + sp("1", place="sldNum"))
    comments = element("p:cmLst", "<p:cm><p:text>too long</p:text></p:cm>")
    layout = element("p:sldLayout", sp("a hint", place="body") + sp("The Company"))
    parts = slides_parts(sp("one"), sp("two"), notesSlide1=notes, comments1=comments, slideLayout1=layout)
    parts["ppt/slides/slide2.xml"] = str(parts["ppt/slides/slide2.xml"]).replace("<p:sld ", '<p:sld show="0" ', 1)
    found = read_pptx(pack_parts(parts))
    assert [tuple(part) for part in found.parts] == [
        ("slide 1", "one\n\nNotes:\nsay this\n\n[comment] too long"),
        ("slide 2 (hidden)", "two"),
        ("on several slides", "The Company"),
    ]


def test_knows_presentations_by_their_names_and_reads_them_in_a_child_without_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    kind = format_of("a.PPTX")
    assert kind is not None and kind is format_of("a.ppsx") is format_of("a.ppt", OLE_MAGIC)
    assert "rent" in parser_process.read_document(kind, pack_parts(slides_parts(sp("rent")))).text()


# -- attacks ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", slide_attacks(9))
def test_a_hostile_presentation_is_refused_or_read_in_bounds_and_fetches_nothing(
    name: str, listener: socket.socket
) -> None:
    attack = slide_attacks(listener.getsockname()[1])[name]
    data = attack.data()
    began = time.process_time()
    try:
        found = read_pptx(data)
    except ToolFailed as refused:
        assert attack.refused and re.search(attack.refused, str(refused))
    else:
        said = "; ".join(found.missing)
        assert not attack.refused or "ppt/slides/slide1.xml" in said  # a broken slide is named, and the others are read
        assert re.search(attack.read, found.text())
        assert attack.missing in said
        assert "root:" not in found.text()
        assert len(found.text()) < 6_000_000
    assert time.process_time() - began < 25
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_headers_and_footers_of_notes_are_read_once() -> None:
    margins = sp("Draft of May", place="hdr") + sp("The Company", place="ftr") + sp("7", place="sldNum")
    notes = element("p:notes", sp("say this", place="body") + margins)
    parts = slides_parts(sp("one"), sp("two"), notesSlide1=notes)
    parts["ppt/slides/_rels/slide2.xml.rels"] = parts["ppt/slides/_rels/slide1.xml.rels"]
    found = read_pptx(pack_parts(parts))
    assert [part.text for part in found.parts] == [
        "one\n\nNotes:\nsay this\n\n[header of the notes] Draft of May\n\n[footer of the notes] The Company",
        "two\n\nNotes:\nsay this",
    ]
