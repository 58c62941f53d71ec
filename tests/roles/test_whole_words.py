"""A word is found and shown whole, whatever stands or begins in the middle of it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from support.foreign.office import p, pack_parts, r, slides_parts, sp, word_file
from support.foreign.opendocument import open_file
from support.foreign.opendocument import p as open_p
from support.foreign.word import notes_part

from ava_roles.sandbox.paths import Root
from ava_roles.texts.formats import read_docx, read_odt, read_pptx, read_rtf
from ava_roles.texts.passages import index_terms
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs

WEB = ("web", "hyperlink", "https://x.org/a")
COMMENT = '<w:commentRangeEnd w:id="1"/><w:r><w:commentReference w:id="1"/></w:r>'
PICTURE = '<w:r><w:drawing><wp:anchor><wp:docPr id="1" descr="a cat"/></wp:anchor></w:drawing></w:r>'
OPEN_COMMENT = f"<office:annotation>{open_p('too high')}</office:annotation>"
RTF_COMMENT = r"{\*\atnauthor B}\chatn{\*\annotation too high}"


@pytest.mark.parametrize(
    ("middle", "shown"),
    [
        (COMMENT, "Die Kündigung[comment 1], ja"),
        (COMMENT + r("di") + PICTURE, "Die Kündidigung[comment 1][picture: a cat], ja"),
        (PICTURE, "Die Kündigung[picture: a cat], ja"),
        (f'<w:hyperlink r:id="web">{r("di")}</w:hyperlink>', "Die Kündidigung (https://x.org/a), ja"),
        ('<w:bookmarkStart w:id="0" w:name="x"/><w:bookmarkEnd w:id="0"/>', "Die Kündigung, ja"),
        ('<w:proofErr w:type="spellStart"/><w:permStart w:id="1"/>', "Die Kündigung, ja"),
        ("<w:r><w:softHyphen/><w:lastRenderedPageBreak/></w:r>", "Die Kündigung, ja"),
        (f'<w:ins w:id="4">{r("di")}</w:ins>', "Die Kündidigung, ja"),
        ('<w:del w:id="4"><w:r><w:delText>xx</w:delText></w:r></w:del>', "Die Kündigung, ja"),
    ],
)
def test_a_word_of_a_letter_stays_whole(middle: str, shown: str) -> None:
    body = p(f"{r('Die Kün')}{middle}{r('digung, ja')}")
    found = read_docx(word_file(body, WEB, comments=notes_part("comment", "too high")))
    assert found.parts[0].text == shown
    assert found.parts[-1].text == "[comment 1] Ann: too high"


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("rent", " is due", "rent[comment 1] is due"),
        ("rent", ", due", "rent[comment 1], due"),
        ("rent ", "due", "rent [comment 1]due"),
        ("rent", "", "rent[comment 1]"),
        ("", "rent", "[comment 1]rent"),
        ("家賃", "は高い", "家賃[comment 1]は高い"),
    ],
)
def test_a_comment_that_is_in_no_word_stays_where_it_is(before: str, after: str, shown: str) -> None:
    body = p(f"{r(before)}{COMMENT}{r(after)}")
    assert read_docx(word_file(body, comments=notes_part("comment", "x"))).parts[0].text == shown


def test_words_of_other_formats_stay_whole() -> None:
    link = '<text:a xlink:href="https://x.org">di</text:a>'
    assert "Kündigung[comment 1], ja" in read_odt(open_file(open_p(f"Kün{OPEN_COMMENT}digung, ja"))).text()
    assert "Kündigung (https://x.org), ja" in read_odt(open_file(open_p(f"Kün{link}gung, ja"))).text()
    rtf_link = r'{\field{\*\fldinst HYPERLINK "https://x.org"}{\fldrslt di}}'
    assert "Kündigung[comment 1], ja" in read_rtf(rf"{{\rtf1 K\'fcn{RTF_COMMENT}digung, ja}}".encode()).text()
    assert "Kündigung (https://x.org), ja" in read_rtf(rf"{{\rtf1 K\'fcn{rtf_link}gung, ja}}".encode()).text()
    run = '<a:r><a:rPr><a:hlinkClick r:id="web"/></a:rPr><a:t>di</a:t></a:r>'
    line = f"<a:p><a:r><a:t>Kün</a:t></a:r>{run}<a:r><a:t>gung, ja</a:t></a:r></a:p>"
    assert "Kündigung (https://x.org/), ja" in read_pptx(pack_parts(slides_parts(sp(line)))).text()


@pytest.mark.parametrize("sign", ["\u00ad", "\u200c", "\u200d", "\u2060", "\ufeff"])
async def test_a_word_is_found_with_a_sign_in_it_that_nobody_sees(sign: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"Die Kün{sign}digung gilt.", "utf-8")
    (tmp_path / "b.html").write_text(f"<p>Die Kün{sign}digung gilt.</p>", "utf-8")
    (tmp_path / "c.docx").write_bytes(word_file(p(f"Die Kün{sign}digung gilt.")))
    (tmp_path / "d.odt").write_bytes(open_file(open_p(f"Die Kün{sign}digung gilt.")))
    root = Root.open(tmp_path)
    for question in ("Kündigung", f"Kün{sign}digung"):
        found = await SearchAndRead()(SearchAndReadArgs(query=question), ToolContext(files=root))
        assert found.count == 4, question
    root.close()


SIGNS = [char for char in map(chr, range(0x110000)) if unicodedata.category(char)[0] in "PSZ" and char != "_"]


def test_no_point_or_symbol_is_part_of_a_word() -> None:
    words = index_terms("\n".join(f"ab{sign}cd" for sign in SIGNS if sign == unicodedata.normalize("NFKC", sign)))
    assert sorted(words) == ["ab", "cd"]


@pytest.mark.parametrize(
    ("text", "word"),
    [("בית־ספר פתוח", "ספר"), ("বিল ৫০৳টাকা", "টাকা"), ("ကျောင်း။ဖွင့်", "ဖွင့်"), ("தமிழ்௹பணம்", "பணம்")],
    ids=["Hebrew", "Bengali", "Burmese", "Tamil"],
)
async def test_a_word_is_found_beside_a_sign_of_its_script(text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query=word), ToolContext(files=root))
    root.close()
    assert found.count == 1


async def test_a_word_with_a_comment_in_it_is_found(tmp_path: Path) -> None:
    body = p(f"{r('Die Kün')}{COMMENT}{r('digung gilt.')}")
    (tmp_path / "a.docx").write_bytes(word_file(body, comments=notes_part("comment", "too high")))
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="Kündigung"), ToolContext(files=root))
    assert "Die Kündigung[comment 1] gilt." in found.text
    root.close()
