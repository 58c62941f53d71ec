"""`read_file`: every kind of file is answered sensibly, in pieces that fit."""

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from support.foreign.documents import pdf

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts import web_page
from ava_roles.tool import ToolContext, ToolOutput
from ava_roles.tools.files import ReadFile, ReadFileArgs


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ToolContext]:
    root = Root.open(tmp_path)
    yield ToolContext(files=root)
    root.close()


async def read(
    at: ToolContext, path: str, offset: int = 1, limit: int | None = None, column: int | None = None
) -> ToolOutput:
    with anyio.fail_after(20):
        return await ReadFile()(ReadFileArgs(path=path, offset=offset, limit=limit, column=column), at)


async def test_returns_a_text_file_unchanged_under_a_header_line(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("first  line\n\tsecond — ü\n")
    got = await read(at, "notes.txt")
    head, _, text = got.text.partition("\n\n")
    assert head == "notes.txt (text, 27 bytes): lines 1 to 2 of 2"
    assert text == "first  line\n\tsecond — ü"
    assert [source.location for source in got.sources] == ["notes.txt"]


async def test_reads_a_long_file_in_pages_without_gaps(at: ToolContext, tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * 90 for number in range(1, 501)]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    collected: list[str] = []
    while True:
        got = await read(at, "long.txt", offset=len(collected) + 1)
        assert len(got.text) <= ReadFile.spec.max_chars
        body = got.text.partition("\n\n")[2]
        text, more, _ = body.partition("\n\n[goes on: offset ")
        collected += text.split("\n")
        if not more:
            break
    assert collected == lines


async def test_offset_and_limit_select_lines(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n3\n4\n")
    got = await read(at, "a.txt", offset=2, limit=2)
    assert "lines 2 to 3 of 4\n\n2\n3\n\n[goes on: offset 4]" in got.text
    with pytest.raises(ToolFailed, match="has 4 lines"):
        await read(at, "a.txt", offset=5)


async def test_truncates_one_enormous_line_and_says_so(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("x" * 100_000)
    got = await read(at, "min.js")
    assert "cut: line 1 (of 100,000)" in got.text and "[goes on: offset 1, column 4001]" in got.text
    assert len(got.text) < 5_000


async def test_a_csv_that_is_too_large_for_a_table_is_read_to_its_end_as_text(at: ToolContext, tmp_path: Path) -> None:
    for name, text in {
        "rows.csv": "".join(f"{number},name\n" for number in range(5_000)),
        "row.csv": ",".join(f"c{number}" for number in range(9_000)),
    }.items():
        (tmp_path / name).write_text(text)
        assert "; with column 1 all of it as text" in (await read(at, name)).text
        got, place = "", {"offset": 1, "column": 1}
        for _call in range(60):
            body, more, rest = (await read(at, name, **place)).text.partition("\n\n")[2].partition("\n\n[goes on: ")
            got += body
            if not more:
                break
            numbers = re.findall(r"\d+", rest)
            place = {"offset": int(numbers[0]), "column": int(numbers[1])}
            got += "\n" * (place["column"] == 1)
        assert got == text.rstrip("\n")
    (tmp_path / "small.csv").write_text("a,b\n1,2\n")
    assert "CSV as a table, 8 bytes" in (await read(at, "small.csv")).text


async def test_handles_binary_files_empty_files_and_other_encodings(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "old.txt").write_bytes("Grüße".encode("cp1252"))
    (tmp_path / "wide.txt").write_bytes("Grüße".encode("utf-16"))
    binary = await read(at, "data.bin")
    assert (binary.success, "binary (2,560 bytes)" in binary.text) == (False, True)
    assert "empty" in (await read(at, "empty")).text
    assert (await read(at, "old.txt")).text.endswith("Grüße")
    assert (await read(at, "wide.txt")).text.endswith("Grüße")


async def test_lists_a_folder(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in (".", "", str(tmp_path)):
        got = await read(at, path)
        assert got.text == ". (folder): 3 entries\n\na.txt  3 bytes\nlink  (link, not followed)\nsrc/"
        assert [source.location for source in got.sources] == ["."]


async def test_reads_a_pdf_by_pages(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "paper.pdf").write_bytes(pdf("Page one", "Page two", "Page three"))
    got = await read(at, "paper.pdf")
    assert "pages 1 to 3 of 3" in got.text
    assert "[page 2]\nPage two" in got.text
    got = await read(at, "paper.pdf", offset=2, limit=1)
    assert "Page one" not in got.text
    assert got.text.endswith("[page 2]\nPage two\n\n[goes on: offset 3]")
    with pytest.raises(ToolFailed, match="has 3 pages"):
        await read(at, "paper.pdf", offset=9)


async def test_keeps_the_order_of_headings_text_and_tables_in_a_word_document(at: ToolContext, tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    document.add_heading("Offer", level=1)
    document.add_paragraph("Prices are net.")
    table = document.add_table(rows=2, cols=2)
    for row, cells in enumerate([("Item", "Price"), ("Service", "300")]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    document.add_paragraph("Kind regards")
    document.save(str(tmp_path / "offer.docx"))
    text = (await read(at, "offer.docx")).text
    assert text.endswith("# Offer\n\nPrices are net.\n\n| Item | Price |\n|---|---|\n| Service | 300 |\n\nKind regards")


async def test_renders_each_sheet_of_a_workbook_as_a_table(at: ToolContext, tmp_path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    first = book.active
    assert first is not None
    first.title = "Sales"
    first.append(["Month", "Sum"])
    first.append(["May", 12.5])
    book.create_sheet("Empty")
    book.save(tmp_path / "book.xlsx")
    text = (await read(at, "book.xlsx")).text
    assert "[sheet Sales]\n|  | A | B |\n|---|---|---|\n| 1 | Month | Sum |\n| 2 | May | 12.5 |" in text
    assert "[sheet Empty]\n(empty)" in text


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
async def test_renders_a_csv_with_any_separator_as_a_table(at: ToolContext, tmp_path: Path, separator: str) -> None:
    rows = [["name", "size"], ["a b", "1"], ["c", "2"]]
    (tmp_path / "t.csv").write_text("\n".join(separator.join(row) for row in rows))
    assert (await read(at, "t.csv")).text.endswith("| name | size |\n|---|---|\n| a b | 1 |\n| c | 2 |")


def test_reports_how_many_table_rows_are_omitted() -> None:
    text = web_page.render_table([str(number), "x"] for number in range(2_500))
    assert text.endswith("(500 more rows are not shown)")


@pytest.mark.parametrize("name", ["x.pdf", "x.docx", "x.xlsx"])
async def test_names_a_document_that_cannot_be_read(at: ToolContext, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"%PDF-1.4 rubbish" if name == "x.pdf" else b"PK\x03\x04 rubbish")
    with pytest.raises(ToolFailed, match=rf"{name}: this .* cannot be read"):
        await read(at, name)


async def test_refuses_an_office_file_that_unpacks_to_too_much(at: ToolContext, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(11):
            archive.writestr(f"xl/{number}.xml", bytes(10_000_000))
    with pytest.raises(ToolFailed, match="more than 100 MB"):
        await read(at, "bomb.xlsx")


async def test_refuses_paths_outside_the_workspace_and_reports_a_missing_workspace(
    at: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in ("../x", "/etc/passwd", "link"):
        with pytest.raises(AccessRefused):
            await read(at, path)
    with pytest.raises(ToolFailed, match="no workspace"):
        await read(ToolContext(), "x")


async def test_hides_a_secret_before_a_cell_is_cut(tmp_path: Path) -> None:
    import docx
    import openpyxl

    secret, cell = "s3cret-" + "z" * 20, "x" * 490 + " s3cret-" + "z" * 20
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.append(["a", cell])
    book.save(tmp_path / "a.xlsx")
    document = docx.Document()
    document.add_table(1, 1).cell(0, 0).text = cell
    document.save(str(tmp_path / "a.docx"))
    (tmp_path / "a.csv").write_text(f"a,{cell}\n")
    root = Root.open(tmp_path)
    at = ToolContext(files=root, hide=lambda text: text.replace(secret, "[redacted:X]"))
    for name in ("a.xlsx", "a.docx", "a.csv"):
        got = await ReadFile()(ReadFileArgs(path=name), at)
        assert "[redacte" in got.text and "s3cret" not in got.text, name
    root.close()


async def test_counts_lines_as_editors_do(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_bytes(b"one\r\ntwo\x0cstill two\rthree\n\xe2\x80\xa8still four\n")
    root = Root.open(tmp_path)
    got = await ReadFile()(ReadFileArgs(path="a.c", offset=3), ToolContext(files=root))
    assert "lines 3 to 4 of 4\n\nthree\n" in got.text
    root.close()
