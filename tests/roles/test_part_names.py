"""Names of the parts of an archive: whatever their spelling, a file reads as with the usual one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from support.foreign.epub import book_parts as epub_parts
from support.foreign.office import SHEETS, book_parts, element, p, pack_parts, slides_parts, sp, word_parts
from support.foreign.opendocument import open_parts
from support.foreign.opendocument import p as open_p

from ava_roles.texts.extracted import Extracted
from ava_roles.texts.formats import read_docx, read_epub, read_odt, read_pptx, read_xlsx

Parts = dict[str, str | bytes]


def workbook() -> Parts:
    comment = '<comment ref="A1" authorId="0"><text><t>too high</t></text></comment>'
    parts = book_parts("rent", ("c1", "comments", "../comments1.xml"))
    parts["xl/comments1.xml"] = (
        f'<comments xmlns="{SHEETS}"><authors><author>Ann</author></authors>'
        f"<commentList>{comment}</commentList></comments>"
    )
    return parts


FILES: dict[str, tuple[Callable[[], Parts], Callable[[bytes], Extracted], str]] = {
    "workbook": (workbook, read_xlsx, "rent [comment by Ann: too high]"),
    "letter": (lambda: word_parts(p("rent"), header=element("w:hdr", p("ACME"))), read_docx, "ACME"),
    "slides": (lambda: slides_parts(sp("rent"), notes=element("p:notes", sp("due"))), read_pptx, "rent"),
    "OpenDocument": (lambda: open_parts(open_p("rent")), read_odt, "rent"),
    "book": (lambda: epub_parts("<p>rent</p>"), read_epub, "rent"),
}
SPELLINGS: dict[str, Callable[[str], str]] = {
    "in capitals": str.upper,
    "with capitals": str.title,
    "with backslashes": lambda name: name.replace("/", "\\"),
    "from the root": lambda name: f"/{name}",
    "from here": lambda name: f"./{name}",
    "in percent": lambda name: name.replace("e", "%65"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", FILES)
def test_parts_are_found_by_any_spelling_of_their_names(kind: str, spelling: str) -> None:
    make, read, text = FILES[kind]
    parts = make()
    usual = read(pack_parts(parts))
    assert text in usual.text() and usual.missing == ()
    assert read(pack_parts({SPELLINGS[spelling](name): content for name, content in parts.items()})) == usual


def with_targets(parts: Mapping[str, str | bytes], spell: Callable[[str], str]) -> Parts:
    """Return the parts of an office file, with what its relations lead to in another spelling."""
    changed = dict(parts)
    for name, content in parts.items():
        if name.endswith(".rels"):
            changed[name] = re.sub(r'(?<=Target=")[^":]*(?=")', lambda target: spell(target[0]), str(content))
    return changed


@pytest.mark.parametrize("spelling", ["in capitals", "with backslashes", "in percent"])
@pytest.mark.parametrize("kind", ["workbook", "letter", "slides"])
def test_relations_lead_to_a_part_by_any_spelling_of_its_name(kind: str, spelling: str) -> None:
    make, read, _text = FILES[kind]
    changed = with_targets(make(), SPELLINGS[spelling])
    assert changed != make()
    assert read(pack_parts(changed)) == read(pack_parts(make()))


def test_a_part_has_its_own_name_before_another_spelling() -> None:
    other = element("w:document", f"<w:body>{p('another')}</w:body>")
    assert read_docx(pack_parts({"WORD/DOCUMENT.XML": other, **word_parts(p("rent"))})).text() == "rent"
