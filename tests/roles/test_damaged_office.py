"""Office files that are cut, or damaged in a part: what is whole is read, and what is missing is said."""

from __future__ import annotations

import io
import time
import zipfile
from typing import Any

import openpyxl
import pytest
from support.foreign.office import book_parts, p, pack_parts, r, slides_parts, sp, word_parts

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import Extracted
from ava_roles.texts.formats import read_docx, read_pptx, read_xlsx

SHEETS = 4
CUT = "the end of this file, which is cut off"


def workbook() -> bytes:
    """Return a workbook whose list of sheets comes before them, as Excel writes it."""
    book = openpyxl.Workbook()
    for number in range(SHEETS):
        sheet: Any = book.active if number == 0 else book.create_sheet()
        sheet["A1"], sheet["A2"] = 1_000 + number, f"{number}" * 50
    made = io.BytesIO()
    book.save(made)
    packed = io.BytesIO()
    with zipfile.ZipFile(made) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for part in sorted(source.infolist(), key=lambda part: ("worksheets" in part.filename, part.filename)):
            target.writestr(part.filename, source.read(part))
    return packed.getvalue()


def parts_of(data: bytes) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.infolist()


def damaged(data: bytes, part: zipfile.ZipInfo) -> bytes:
    """Return an archive with one byte changed in the middle of a part."""
    name_size = int.from_bytes(data[part.header_offset + 26 : part.header_offset + 28], "little")
    at = part.header_offset + 30 + name_size + part.compress_size // 2
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def numbers(found: Extracted) -> list[int]:
    return [number for number in range(SHEETS) if f"| {1_000 + number} |" in found.text()]


@pytest.mark.parametrize("whole", range(1, SHEETS + 1))
def test_the_sheets_before_the_place_where_a_workbook_is_cut_are_read(whole: int) -> None:
    data = workbook()
    sheets = [part for part in parts_of(data) if "worksheets" in part.filename]
    ends = [part.header_offset for part in sheets[1:]] + [len(data) - 40]
    found = read_xlsx(data[: ends[whole - 1] + 35])
    assert numbers(found) == list(range(whole))
    lost = [f"sheet {name} is listed but missing from the file" for name in ("Sheet", "Sheet1", "Sheet2", "Sheet3")]
    assert found.missing == (CUT, *lost[whole:])


def test_a_damaged_sheet_is_named_and_the_others_are_read() -> None:
    data = workbook()
    for part in parts_of(data):
        if "worksheets" not in part.filename:
            continue
        number = int(part.filename[-5]) - 1
        found = read_xlsx(damaged(data, part))
        assert numbers(found) == [each for each in range(SHEETS) if each != number]
        assert f"a damaged or absent part ({part.filename})" in found.missing


def test_of_each_part_of_a_workbook_the_damage_is_said_or_the_file_is_refused() -> None:
    data = workbook()
    for part in parts_of(data):
        try:
            found = read_xlsx(damaged(data, part))
        except ToolFailed as refused:
            assert str(refused).startswith("this workbook cannot be read: it is damaged")
        else:
            assert f"({part.filename})" in "; ".join(found.missing)
    for end in range(0, len(data), 211):
        try:
            found = read_xlsx(data[:end])
        except ToolFailed:
            continue
        assert CUT in found.missing


def test_the_slides_before_the_place_where_a_presentation_is_cut_are_read() -> None:
    talk = pack_parts(slides_parts(*(sp(f"slide number {number} {'x' * 40}") for number in range(SHEETS))))
    with_list_first = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(talk)) as source, zipfile.ZipFile(with_list_first, "w") as target:
        for part in sorted(source.namelist(), key=lambda name: ("/slides/slide" in name, name)):
            target.writestr(part, source.read(part))
    data = with_list_first.getvalue()
    last = parts_of(data)[-1]
    found = read_pptx(data[: last.header_offset + 60])
    assert "slide number 2" in found.text() and "slide number 3" not in found.text()
    assert CUT in found.missing and f"a damaged or absent part ({last.filename})" in found.missing
    broken = read_pptx(damaged(data, last))
    assert "slide number 2" in broken.text() and "slide number 3" not in broken.text()
    assert f"a damaged or absent part ({last.filename})" in broken.missing


def test_a_letter_whose_list_of_parts_is_cut_off_is_read() -> None:
    data = pack_parts(word_parts(p(r("The rent is due."))))
    found = read_docx(data[: data.index(b"PK\x01\x02")])
    assert "The rent is due." in found.text()
    assert CUT in found.missing


def test_a_cut_file_unpacks_within_bounds() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"xl/media/{number}.bin", bytes(20_000_000))
    began = time.process_time()
    with pytest.raises(ToolFailed):
        read_xlsx(packed.getvalue()[:-30])
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", ["ppt/media/logo.xml", "ppt/media/logo.img", "customXml/page.html"])
def test_a_document_type_in_a_part_that_nobody_reads_refuses_nothing(name: str) -> None:
    parts = book_parts("rent")
    parts[name] = '<!DOCTYPE svg [<!ENTITY n "x">]><svg>&n;</svg>'
    assert "rent" in read_xlsx(pack_parts(parts)).text()


def test_a_sheet_in_a_folder_of_pictures_has_no_document_type() -> None:
    parts = book_parts("rent")
    parts["xl/media/sheet.xml"] = '<!DOCTYPE x [<!ENTITY e "e">]>' + str(parts["xl/worksheets/sheet1.xml"])
    relations = str(parts["xl/_rels/workbook.xml.rels"])
    parts["xl/_rels/workbook.xml.rels"] = relations.replace("worksheets/sheet1.xml", "media/sheet.xml")
    found = read_xlsx(pack_parts(parts))
    assert found.missing == ("sheet Plan is listed but missing from the file",)
