"""PDFs: what a person sees or has filled in is read, what is not read is said, and no file harms more than itself."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pypdf
import pytest
from support.foreign.documents import pdf, unicode_pdf
from support.foreign.pdfs import FONT, IMAGE, line, make_pdf, page_of, stream

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts import parser_process
from ava_roles.texts.extracted import PDF, Extracted, Format, Wanted, page_ranges
from ava_roles.texts.formats import pdf as parser
from ava_roles.texts.formats import read_pdf
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs

RECT = "/Type /Annot /Rect [70 700 200 715]"


def text_of(data: bytes) -> str:
    return read_pdf(data).parts[0].text


def noted(*notes: str, text: str = "Body.", catalogue: str = "") -> bytes:
    """Return a PDF of one page with annotations."""
    numbers = " ".join(f"{7 + at} 0 R" for at in range(len(notes)))
    return page_of(line(text), IMAGE, *notes, page=f"/Annots [{numbers}]", catalogue=catalogue)


def form(*fields: str) -> bytes:
    numbers = " ".join(f"{7 + at} 0 R" for at in range(len(fields)))
    widgets = [f"<< {RECT} /Subtype /Widget {field} >>" for field in fields]
    return noted(*widgets, catalogue=f"/AcroForm << /Fields [{numbers}] >>")


def test_reads_what_is_filled_into_a_form() -> None:
    data = form(
        "/FT /Tx /T (tenant) /V (Ada Lovelace)",
        "/FT /Tx /T (phone)",
        "/FT /Btn /T (pets) /V /Yes /AS /Yes /AP << /N << /Yes 6 0 R /Off 6 0 R >> >>",
        "/FT /Btn /T (garden) /V /Off /AS /Off /AP << /N << /Yes 6 0 R /Off 6 0 R >> >>",
        "/FT /Ch /Ff 131072 /T (colour) /V (blue) /Opt [(red) (blue)]",
        "/FT /Ch /Ff 2097152 /T (rooms) /V [(hall) (attic)] /Opt [(hall) (cellar) (attic)]",
    )
    assert text_of(data) == (
        "Body.\n\n[field tenant] Ada Lovelace\n[field phone] (empty)\n[field pets] checked\n"
        "[field garden] not checked\n"
        "[field colour] blue\n[field rooms] hall, attic"
    )


def test_says_that_a_form_of_xfa_is_read_only_as_its_pages_show_it() -> None:
    data = page_of(line("Please wait."), stream(b"<xdp/>"), catalogue="/AcroForm << /Fields [] /XFA 6 0 R >>")
    assert read_pdf(data).missing == ("this is an XFA form: what only XFA has, and its pages do not show, is not read",)


def test_reads_comments_and_the_addresses_of_links_that_the_text_does_not_have() -> None:
    data = noted(
        f"<< {RECT} /Subtype /Text /Contents (Not agreed.) /T (Ann) >>",
        f"<< {RECT} /Subtype /FreeText /Contents (See the annex.) >>",
        f"<< {RECT} /Subtype /Highlight /Contents (Check this) >>",
        f"<< {RECT} /Subtype /Popup /Contents (Not agreed.) >>",
        "<< /Type /Annot /Rect [70 715 110 735] /Subtype /Link /A << /S /URI /URI (https://example.org/terms) >> >>",
        "<< /Type /Annot /Rect [112 715 300 735] /Subtype /Link /A << /S /URI /URI (https://example.com) >> >>",
        text="Our terms: example.com",
    )
    text = text_of(data)
    assert "[comment by Ann] Not agreed.\n[comment] See the annex.\n[comment] Check this\n[link" in text
    assert text.count("Not agreed.") == 1
    assert text.endswith("[link 'Our ter'] https://example.org/terms")


def test_says_which_pages_are_pictures_and_what_else_is_not_read() -> None:
    kids = " ".join(f"{number} 0 R" for number in range(4, 10))
    resources = "/MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> /XObject << /X 11 0 R >> >>"
    picture = f"<< /Type /Page /Parent 2 0 R /Contents 10 0 R {resources} >>"
    both = f"<< /Type /Page /Parent 2 0 R /Contents 12 0 R {resources} >>"
    data = make_pdf(
        [
            "<< /Type /Catalog /Pages 2 0 R /Names << /EmbeddedFiles << /Names [(a.xml) 13 0 R] >> >> >>",
            f"<< /Type /Pages /Kids [{kids}] /Count 6 >>",
            FONT,
            *[picture, picture, picture, both, f"<< /Type /Page /Parent 2 0 R {resources} >>", picture],
            stream(b"q 100 0 0 100 0 0 cm /X Do Q"),
            IMAGE,
            stream(line("Words.") + b"q 100 0 0 100 0 0 cm /X Do Q"),
            "<< /Type /Filespec /F (invoice.xml) /UF (invoice.xml) /EF << /F 14 0 R >> >>",
            stream(b"<a/>", "/Type /EmbeddedFile"),
        ]
    )
    assert read_pdf(data).missing == (
        "pages 1 to 3, 6 are pictures without text",
        "page 4 has pictures, which are not read",
        "page 5 is blank, or cannot be decoded",
        "attached files: invoice.xml",
    )
    assert page_ranges([3]) == "page 3"


LINES = b"".join(line(f"Line {at} of the page.", 720 - at) for at in range(200))
DAMAGED = "some of the file's data is damaged, so text of its pages may be missing"


@pytest.mark.parametrize("filters", ["/FlateDecode", "/LZWDecode", "/ASCIIHexDecode", "/ASCII85Decode"])
def test_says_that_the_content_of_a_page_cannot_be_decoded(filters: str) -> None:
    found = read_pdf(page_of(bytes(range(128, 256)) * 9, IMAGE, contents=f"/Filter {filters}"))
    assert found.missing[0] == "page 1 is blank, or cannot be decoded"


@pytest.mark.parametrize("filters", ["/FlateDecode", "[/FlateDecode]", "[ /Fl ]"])
def test_says_that_the_content_of_a_page_breaks_off(filters: str) -> None:
    whole = zlib.compress(LINES, 9)
    half = len(whole) // 2
    damaged = whole[:half] + bytes(each ^ 0x5A for each in whole[half : half + 30]) + whole[half + 30 :]
    for content in (damaged, whole[:half]):
        found = read_pdf(page_of(content, IMAGE, contents=f"/Filter {filters}"))
        assert "Line 9 of" in found.parts[0].text and "Line 199" not in found.parts[0].text
        assert found.missing == (DAMAGED,)
    for content in (whole, whole[:-4]):  # many programs leave the checksum out
        found = read_pdf(page_of(content, IMAGE, contents=f"/Filter {filters}"))
        assert "Line 199" in found.parts[0].text and not found.missing


def outline(titles: int, *, loop: bool = False) -> bytes:
    """Return a PDF of one page with bookmarks: objects 8 and following."""
    entries = []
    for number in range(8, 8 + titles):
        following = number + 1 if number + 1 < 8 + titles else 8 if loop else 0
        chain = f"/Next {following} 0 R" if following else ""
        entries.append(f"<< /Title (Part {number}) /Parent 7 0 R /Dest [4 0 R /Fit] {chain} >>")
    root = f"<< /Type /Outlines /First 8 0 R /Last {7 + titles} 0 R >>"
    return page_of(line("Part - 8 is here."), IMAGE, root, *entries, catalogue="/Outlines 7 0 R")


def test_reads_bookmarks_that_are_no_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_of(outline(2)) == "Part - 8 is here.\n\n[bookmark] Part 9"
    monkeypatch.setattr(parser, "_MOST_BOOKMARKS", 1)
    assert read_pdf(outline(2)).missing == ("bookmarks after the first 1 are not read",)


def test_names_pages_as_they_are_printed_beside_their_numbers() -> None:
    data = pdf("a", "b", "c").replace(b"/Type /Catalog", b"/Type /Catalog /PageLabels << /Nums [0 << /S /r >>] >>")
    assert [part.place for part in read_pdf(data).parts] == ["page 1 (i)", "page 2 (ii)", "page 3 (iii)"]
    assert [part.place for part in read_pdf(pdf("a", "b")).parts] == ["page 1", "page 2"]


def test_keeps_the_lines_of_a_turned_page_in_order_and_the_hyphens_at_their_ends() -> None:
    words = line("A well-", 720) + line("known pump", 706)
    assert text_of(page_of(words, IMAGE)) == "A well-\nknown pump"
    assert text_of(page_of(line("First", 720) + line("Second", 706), IMAGE, page="/Rotate 90")) == "First\nSecond"


@pytest.mark.parametrize("words", ["Ελληνικά και Русский", "日本語のテキスト", "efficient office"])
def test_reads_letters_as_the_file_names_them(words: str) -> None:
    assert words in text_of(unicode_pdf([words]))


def test_says_that_a_font_does_not_name_its_letters() -> None:
    assert read_pdf(unicode_pdf(["\ue001\ue002\ue003\ue004"])).missing == (
        "page 1 has text in a font that does not say which letters it shows",
    )


def test_a_password_is_asked_for_only_where_one_is_needed() -> None:
    assert text_of(locked("")) == "Body."
    assert str(_failure(locked("secret"))) == "this PDF needs a password; ask for a copy without one"


def locked(password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(page_of(line("Body."))))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def _failure(data: bytes) -> ToolFailed:
    with pytest.raises(ToolFailed) as raised:
        read_pdf(data)
    return raised.value


async def test_a_search_reads_on_after_a_hundred_pages_and_says_which_it_did_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.pdf").write_bytes(pdf(*["Nothing here."] * 149, "The zeppelin lands."))
    root = Root.open(tmp_path)
    at = ToolContext(files=root)
    got = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), at)
    assert "page 150, 1 line:\nThe zeppelin lands." in got.text
    read = parser_process.ParserProcess.read_document

    def late(self: parser_process.ParserProcess, kind: Format, data: bytes, wanted: Wanted) -> Extracted:
        return read(self, kind, data, replace(wanted, max_chars=100))

    monkeypatch.setattr(parser_process.ParserProcess, "read_document", late)
    got = await SearchAndRead()(SearchAndReadArgs(query="nothing"), at)
    assert "Read, but not to the end:\n- long.pdf: pages 9 to 150" in got.text
    assert "long.pdf: pages 9 to 150 not read" in got.unread
    root.close()


# -- attacks ----------------------------------------------------------------------------------------------------------


def flate(data: bytes) -> bytes:
    return stream(zlib.compress(data, 9), "/Filter /FlateDecode")


def nested(deep: int) -> bytes:
    return page_of(line("Body."), "[" * deep + "]" * deep, page="/Extra 6 0 R")


def tree(kids: str) -> bytes:
    return make_pdf(["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count 9 >>", FONT])


def twice(data: bytes) -> bytes:
    return zlib.compress(zlib.compress(data, 9), 9)


HUGE = b"BT /F1 12 Tf " + b"(a) Tj\n" * 3_000_000 + b"ET"
ATTACKS: dict[str, Callable[[], bytes]] = {
    "a page of drawing instructions": lambda: page_of(zlib.compress(HUGE, 9), contents="/Filter /FlateDecode"),
    "a stream of 500 MB": lambda: page_of(zlib.compress(bytes(500_000_000), 9), contents="/Filter /FlateDecode"),
    "packed twice": lambda: page_of(twice(bytes(200_000_000)), contents="/Filter [/FlateDecode /FlateDecode]"),
    "a run-length bomb": lambda: page_of(b"\x81 " * 2_000_000, contents="/Filter /RunLengthDecode"),
    "brackets": lambda: page_of(b"[" * 400_000),
    "states": lambda: page_of(b"q " * 2_000_000 + line("Body.")),
    "one stream 900 times": lambda: page_of(line("a"), page="/Contents [" + "5 0 R " * 900 + "]"),
    "a form that draws itself": lambda: page_of(
        b"/X Do " + line("Body."),
        stream(b"/X Do", "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >>"),
    ),
    "a page tree that contains itself": lambda: tree("2 0 R"),
    "a page tree of no pages": lambda: tree("3 0 R 9 0 R"),
    "a billion pages": lambda: pdf("a").replace(b"/Count 1", b"/Count 1000000000"),
    "a negative number of pages": lambda: pdf("a").replace(b"/Count 1", b"/Count -5"),
    "a table of objects that names itself": lambda: page_of(line("Body."), trailer="/Prev 9"),
    "a table of objects in a loop": lambda: pdf("a").replace(b"/Root", b"/XRefStm 9 /Prev 9 /Root"),
    "a size beyond all": lambda: pdf("a").replace(b"/Size 6", b"/Size 999999999"),
    "a million objects": lambda: make_pdf(["<< /Type /Catalog /Pages 2 0 R >>"] + ["null"] * 1_000_000),
    "arrays, deep": lambda: nested(100_000),
    "a length that lies": lambda: pdf("a").replace(b"/Length 3", b"/Length 999999999 %"),
    "a length that is itself": lambda: page_of(line("Body."), b"<< /Length 6 0 R >>\nstream\nx\nendstream"),
    "fields that contain themselves": lambda: noted(
        f"<< {RECT} /Subtype /Widget /FT /Tx /T (a) /Parent 7 0 R /Kids [7 0 R] >>",
        catalogue="/AcroForm << /Fields [7 0 R] >>",
    ),
    "100,000 comments": lambda: page_of(
        line("Body."), IMAGE, f"<< {RECT} /Subtype /Text /Contents (x) >>", page="/Annots [" + "7 0 R " * 100_000 + "]"
    ),
    "a comment of 5 MB": lambda: noted(f"<< {RECT} /Subtype /Text /Contents ({'x' * 5_000_000}) >>"),
    "labels in a loop": lambda: page_of(line("Body."), "<< /Kids [6 0 R] >>", catalogue="/PageLabels 6 0 R"),
    "100,000 bookmarks": lambda: outline(100_000),
    "bookmarks in a loop": lambda: outline(1_000, loop=True),
    "attached files in a loop": lambda: page_of(
        line("Body."), "<< /Kids [6 0 R] >>", catalogue="/Names << /EmbeddedFiles 6 0 R >>"
    ),
    "a script": lambda: page_of(line("Body."), catalogue="/OpenAction << /S /JavaScript /JS (while(true){}) >>"),
    "a program to start": lambda: page_of(
        line("Body."), catalogue="/OpenAction << /S /Launch /F (/bin/touch) /P (/tmp/x) >>"
    ),
    "a file of somebody else": lambda: page_of(
        b"", contents="/F << /FS /URL /F (http://127.0.0.1:9/x) >> /FFilter /FlateDecode"
    ),
    "a font that is no font": lambda: page_of(line("Body.")).replace(
        b"/BaseFont /Helvetica", b"/BaseFont /A /FirstChar 0 /LastChar 999999999 /Widths [1]"
    ),
    "a picture of a terapixel": lambda: page_of(
        b"/X Do " + line("Body."),
        stream(b"x", "/Type /XObject /Subtype /Image /Width 1000000 /Height 1000000 /ColorSpace /DeviceGray"),
    ),
    "only a head": lambda: b"%PDF-1.7\n",
    "noise": lambda: b"%PDF-1.7\n" + bytes(range(256)) * 4_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_costs_seconds_at_most_and_is_read_or_refused_with_a_sentence(name: str) -> None:
    try:
        found = parser_process.read_document(PDF, ATTACKS[name](), Wanted(max_chars=1_000_000))
    except ToolFailed as failed:
        assert str(failed).startswith("this PDF ")
        assert len(str(failed)) < 300
    else:
        assert sum(len(part.text) for part in found.parts) < 2_000_000
        assert len(found.parts) <= found.total


@pytest.mark.parametrize(("letters", "says"), [(3_000, ()), (40_000, (f"page 1 has {parser._CUT_STRING}",))])
def test_says_that_a_very_long_string_may_have_lost_its_end(letters: int, says: tuple[str, ...]) -> None:
    assert read_pdf(page_of(line("x" * letters))).missing == says


def test_a_comment_of_millions_of_characters_is_cut_and_not_lost() -> None:
    text = text_of(noted(f"<< {RECT} /Subtype /Text /Contents ({'x' * 2_000_000}) >>"))
    assert text.endswith("x (cut here: it is longer)")


def test_long_comments_are_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_MOST_ANNOTATIONS", 3)
    found = read_pdf(noted(*[f"<< {RECT} /Subtype /Text /Contents (note) >>"] * 5))
    assert found.parts[0].text.count("[comment] note") == 3
    assert found.missing == ("page 1 has more comments, links and form fields than are read",)
