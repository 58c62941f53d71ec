"""Documents of strangers: a small file stays small in memory and in the answer, and what was cut is said."""

from __future__ import annotations

import io
import re
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.foreign.office import pack_parts

from ava_roles.errors import ToolFailed
from ava_roles.net.fetch import Response
from ava_roles.texts import formats as parsers
from ava_roles.texts import parser_process, web_page
from ava_roles.texts.extracted import MOST_CHARS, Wanted
from ava_roles.tools.web import read_page

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SHEET = f'<worksheet xmlns="{MAIN}">' + "%s<sheetData>%s</sheetData></worksheet>"
SHARED = '<c t="s"><v>%d</v></c>'
WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>%s</w:body></w:document>'


# -- tables -------------------------------------------------------------------------------------------------------


def test_one_wide_row_does_not_widen_other_rows() -> None:
    wide = ",".join(["h"] * 20_000) + "\n" + "a\n" * 2_000  # 44 kB, which gave 120 MB
    with bounded():
        text = web_page.read_csv(wide)
    assert len(text) < 30_000
    assert text.count("| a |") == 1_999
    assert text.endswith("\n(only the first 200 columns are shown)\n(1 more row is not shown)")


def test_limits_a_table_to_200_columns_2000_rows_and_a_million_characters() -> None:
    with bounded():
        text = web_page.render_table(["x" * 1_000] * 300 for _ in range(3_000))
    lines = text.splitlines()
    assert len(text) < 1_200_000
    assert lines[0].count("|") == lines[1].count("|") == 201
    assert max(len(cell.strip()) for cell in lines[0].split("|")) == 1_000
    assert lines[-2:] == ["(only the first 200 columns are shown)", "(cut here: the rest is too long to read)"]


def test_shows_a_table_of_the_maximum_size_without_a_note_about_cuts() -> None:
    text = web_page.render_table([f"{row}.{column}" for column in range(20)] for row in range(2_000))
    assert text.count("\n") == 2_000
    assert "| 1999.19 |" in text.splitlines()[-1]


def test_stops_reading_rows_when_no_more_are_shown() -> None:
    taken = 0

    def rows() -> Iterator[list[str]]:
        nonlocal taken
        while True:
            taken += 1
            yield ["x" * 400] * 200

    assert web_page.render_table(rows()).endswith("(cut here: the rest is too long to read)")
    assert taken < 50


@pytest.mark.slow
@pytest.mark.parametrize("text", ['"' * 8_192, ',"' * 4_096, "," * 2_000_000, "a,b\n" * 1_000_000])
def test_reads_unusual_csv_files_in_bounded_time_and_memory(text: str) -> None:
    with bounded(100):
        assert len(web_page.read_csv(text)) < 100_000


def test_reads_only_the_beginning_of_a_large_csv() -> None:
    hiding = Hiding()
    assert "(only the first 4,000,000 characters were read)" in web_page.read_csv("aaa,bbb\n" * 2_400_000, hiding)
    assert sum(hiding.texts) < 4_100_000


def test_a_csv_that_is_shorter_without_its_secrets_was_read_to_its_end() -> None:
    assert web_page.read_csv("a,b\nc,hunter2222222\n", lambda text: text.replace("hunter2222222", "-")) == (
        "| a | b |\n|---|---|\n| c | - |"
    )


# -- workbooks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ignores_the_size_that_a_sheet_claims() -> None:
    rows = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="B1048576"><v>2</v></c></row>'
    near = '<row r="1"><c r="A1"><v>1</v></c></row><row r="9000"><c r="B9000"><v>2</v></c></row>'
    claims = '<dimension ref="A1:XFD1048576"/>'
    with bounded():
        assert "| 1048576 |  | 2 |" in parsers.read_xlsx(workbook(SHEET % (claims, rows))).text()
    with bounded():
        text = parsers.read_xlsx(workbook(SHEET % (claims, near))).text()
    table = "[sheet Sheet]\n|  | A | B |\n|---|---|---|\n| 1 | 1 |\n| 9000 |  | 2 |"
    assert text == f"{table}\n\n[sheet Second]\n|  | A |\n|---|---|\n| 1 | second |"


def test_sheets_of_a_workbook_share_one_limit_and_omitted_ones_are_counted() -> None:
    cell = f'<c t="inlineStr"><is><t>{"x" * 500}</t></is></c>'
    found = parsers.read_xlsx(workbook(SHEET % ("", f"<row>{cell * 150}</row>" * 100)))
    assert len(found.text()) < MOST_CHARS
    assert found.unread
    assert found.missing == (
        "what comes from row 76 on in sheet Sheet is too long to read",
        "1 more sheet, which is not read: Second",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "text", "because"),
    [
        ("sheet1.xml", SHEET % ("", "<row>" + "<c/>" * 100_000 + "</row>"), "more than 50,000 elements in one row"),
        ("sheet1.xml", SHEET % ("", "<row><x:row xmlns:x='y'>" + "<c/>" * 60_000 + "</x:row></row>"), "in one row"),
        ("styles.xml", "<styleSheet><cellXfs>" + "<xf/>" * 600_000 + "</cellXfs></styleSheet>", "more than 500,000"),
        ("styles.xml", "<a>" * 300 + "</a>" * 300, "nested too deep"),
        ("styles.xml", "<a " + " ".join(f"a{number}=''" for number in range(300)) + "/>", "too many attributes"),
        (
            "styles.xml",
            "<a " + " ".join(f"a{number}=''" for number in range(200_000)) + "/>",
            "a tag of more than 1 MB",
        ),
        ("styles.xml", '<?xml version="1.0" encoding="GBK"?><a>' + "<b/>" * 300_000 + "</a>", "not plain XML"),
        ("sheet1.xml", '<!DOCTYPE a [<!ENTITY b "bb">]><a>&b;</a>', "its own document type"),
    ],
)
def test_refuses_an_oversized_part_before_parsing_it(part: str, text: str, because: str) -> None:
    bomb = workbook(text, part)
    assert len(bomb) < 800_000
    with bounded(), pytest.raises(ToolFailed, match=because):
        parsers.read_xlsx(bomb)


@pytest.mark.slow
def test_refuses_a_sheet_of_more_than_two_million_elements() -> None:
    with pytest.raises(ToolFailed, match="more than 2,000,000 elements in one part"):
        parsers.read_xlsx(workbook(SHEET % ("", "<row/>" * 2_000_000)))


def test_counts_the_elements_of_utf_16_parts_too() -> None:
    text = "<?xml version='1.0' encoding='utf-16'?><a>" + "<b/>" * 600_000 + "</a>"
    bomb = replaced(workbook(), "styles.xml", text.encode("utf-16"))
    with bounded(), pytest.raises(ToolFailed, match="more than 500,000 elements"):
        parsers.read_xlsx(bomb)


def test_a_long_text_that_many_cells_name_does_not_grow_the_answer() -> None:
    row = f"<row>{SHARED % 0 * 200}</row>"
    book = shared_texts(row * 20, "words " * 100_000)
    assert len(book) < 21_000
    with bounded():
        found = parsers.read_xlsx(book)
    assert " (cut here: the cell has more text) | words" in found.text()
    assert found.unread
    assert len(found.text()) < MOST_CHARS


def test_a_cell_is_read_to_its_end() -> None:
    cell = "words " * 5_000 + "and the last one"
    book = shared_texts(f"<row>{SHARED % 0}</row>", cell)
    assert f"| {cell} |" in parsers.read_xlsx(book).text()
    table = f"<w:tbl><w:tr>{(CELL % '').replace('>a<', f'>{cell}<')}</w:tr></w:tbl>"
    assert f"| {cell} |" in parsers.read_docx(word(table)).text()


# -- word documents -----------------------------------------------------------------------------------------------

CELL = "<w:tc><w:tcPr>%s</w:tcPr><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc>"
WIDE = '<w:gridSpan w:val="900000000"/>'


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (f"<w:tr>{CELL % WIDE}</w:tr>", "| a |\n|---|"),
        (f"<w:tr>{CELL % '<w:vMerge/>'}</w:tr>" * 1_500, "| a |\n|---|\n" + "\n".join(["| a |"] * 1_499)),
        (f"<w:tr>{CELL % '' * 300}</w:tr>", "(only the first 200 columns are shown)"),
    ],
)
def test_counts_a_table_cell_once_whatever_span_it_claims(rows: str, shown: str) -> None:
    with bounded():
        assert parsers.read_docx(word(f"<w:tbl>{rows}</w:tbl>")).text().endswith(shown)


@pytest.mark.slow
def test_refuses_a_document_of_too_many_elements_and_truncates_a_long_one() -> None:
    with bounded(), pytest.raises(ToolFailed, match="more than 500,000 elements"):
        parsers.read_docx(word("<w:p/>" * 600_000))
    paragraph = f"<w:p><w:r><w:t>{'words ' * 100_000}</w:t></w:r></w:p>"
    text = parsers.read_docx(word(paragraph * 20)).text()
    assert len(text) < 6_000_000
    assert text.endswith("(cut here: the rest is too long to read)")


# -- PDF and pages ------------------------------------------------------------------------------------------------


def test_truncates_the_text_of_a_long_page() -> None:
    [(place, text)] = parsers.read_pdf(
        pdf(b"BT /F1 12 Tf 14 TL " + (b"(" + b"a" * 1_000 + b") Tj T*\n") * 300 + b"ET")
    ).parts
    assert place == "page 1"
    assert text.startswith("aaaa")
    assert text.endswith("\n(cut here: the page has more text)")
    assert len(text) < 201_000


def test_hides_secrets_only_in_as_much_of_a_page_as_may_be_shown() -> None:
    html = f"<html><body>{'<p>words of a page that has no end</p>' * 20_000}</body></html>"
    page = parser_process.read_html(html, "https://example.org/")
    assert len(page.text) == 200_000


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["<p>a", "<a href=x>y</a>", "a<br>", "<div>", "<table><tr><td>a"])
def test_reads_a_page_of_a_million_tags_without_extracting_its_article(piece: str) -> None:
    html = "<html><body>first words " + piece * (4_000_000 // len(piece))
    got = Response(200, "https://example.org/", {}, "text/html", html.encode(), truncated=False)
    with bounded(200):
        page = read_page(got)
    assert page.text.startswith("first words")
    assert "very large" in (page.note or "")


@contextmanager
def bounded(megabytes: int = 64, seconds: float = 20) -> Iterator[None]:
    began = time.process_time()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < seconds


def replaced(document: bytes, part: str, text: str | bytes) -> bytes:
    """Return an office file with one part replaced."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(document)) as old,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for each in old.infolist():
            new.writestr(each.filename, text if each.filename.endswith(part) else old.read(each.filename))
    return made.getvalue()


def workbook(sheet: str | None = None, part: str = "sheet1.xml") -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.create_sheet("Second").append(["second"])
    made = io.BytesIO()
    book.save(made)
    return made.getvalue() if sheet is None else replaced(made.getvalue(), part, sheet)


def shared_texts(rows: str, *texts: str) -> bytes:
    """Return a workbook whose cells name texts by their numbers."""
    items = "".join(f"<si><t>{text}</t></si>" for text in texts)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    made = io.BytesIO(workbook(SHEET % ("", rows)))
    with zipfile.ZipFile(made) as archive:
        types = archive.read("[Content_Types].xml").decode()
    part = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    made = io.BytesIO(replaced(made.getvalue(), "[Content_Types].xml", types.replace("</Types>", part)))
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{MAIN}">{items}</sst>')
    return made.getvalue()


class Hiding:
    """Hides secrets, and counts in how many characters; ends a test in which that goes on and on."""

    def __init__(self) -> None:
        self.texts: list[int] = []

    def __call__(self, text: str) -> str:
        self.texts.append(len(text))
        assert sum(self.texts) < 30_000_000, "one file may cost only so much"
        return text.replace("hunter2", "[hidden]")


def word(body: str) -> bytes:
    import docx

    made = io.BytesIO()
    docx.Document().save(made)
    return replaced(made.getvalue(), "document.xml", WORD % body)


def pdf(instructions: bytes, contents: str = "5 0 R") -> bytes:
    """Return a PDF of one page with compressed drawing instructions."""
    packed = zlib.compress(instructions, 9)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents " + contents.encode() + b" "
        b"/Resources << /Font << /F1 3 0 R >> >> >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    places: list[int] = []
    for number, each in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, each))
    start = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % start)
    return out.getvalue()


@pytest.mark.parametrize("name", parsers.PARSERS)
def test_a_reason_has_no_words_of_python(name: str) -> None:
    for data in (b"", b"{", b"PK\x03\x04", b"%PDF-1.7", pack_parts({"a.xml": "<a"}), b"\xff\xfe\0\0", b'{"cells": ['):
        try:
            parsers.PARSERS[name](data, Wanted())
        except ToolFailed as refused:
            assert not re.search(r"[A-Z]\w+Error|codec|byte 0x|char \d|BadZipFile|NoneType|line \d", str(refused)), data
