"""What is in a document, what of it is read, and what is said to be missing: one table for all kinds of document.

    python benchmarks/formats.py [--keep FOLDER]

The documents are made by programs that know nothing of Ava: LibreOffice and pandoc (Debian's packages
`libreoffice-writer-nogui`, `libreoffice-calc-nogui`, `libreoffice-impress-nogui` and `pandoc`), openpyxl, python-docx,
python-pptx, reportlab and xlwt (these three and pillow are installed by hand: Ava does not need them), and Python's own
`email` and `json`. What is made by a program that is not installed is left out, and the last line says so. A feature
is lost in silence if its words are neither in the text nor in what is said to be missing; the goal is 0, and the exit
code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from email.message import EmailMessage
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import openpyxl
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.chart import BarChart, Reference
from openpyxl.comments import Comment
from openpyxl.workbook.defined_name import DefinedName

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "roles"))

from ava_roles.texts import parser_process
from ava_roles.texts.extracted import format_of

PARTS = Path(__file__).with_suffix("")
_PROGRAM_S = 300
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6364f8cf500f000386018"
    "05a347d6b0000000049454e44ae426082"
)


class Feature(NamedTuple):
    """Something in a document: its words, what is said if it is missing, and whether it was deleted."""

    what: str
    words: str = ""
    missing: str = ""
    deleted: bool = False


def run(*command: str | Path, folder: Path) -> None:
    subprocess.run(list(map(str, command)), cwd=folder, check=True, capture_output=True, timeout=_PROGRAM_S)


def by_libreoffice(folder: Path, name: str) -> None:
    source, target = _CONVERTED[name]
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    run("soffice", profile, "--headless", "--convert-to", target, PARTS / source, folder=folder)
    (folder / source).with_suffix(Path(name).suffix).rename(folder / name)


_CONVERTED = {
    "libreoffice.docx": ("letter.fodt", "docx"),
    "libreoffice.xlsx": ("plan.fods", "xlsx"),
    "libreoffice.pptx": ("talk.fodp", "pptx"),
    "libreoffice.odt": ("letter.fodt", "odt"),
    "libreoffice.ods": ("plan.fods", "ods"),
    "libreoffice.odp": ("talk.fodp", "odp"),
    "libreoffice.epub": ("letter.fodt", "epub"),
    "libreoffice.rtf": ("letter.fodt", "rtf"),
    "libreoffice.pdf": ("letter.fodt", 'pdf:writer_pdf_Export:{"ExportNotes":{"type":"boolean","value":"true"}}'),
}


def by_pandoc(folder: Path, name: str) -> None:
    source = "cells.md" if name.endswith(".ipynb") else "paper.md"
    shutil.copy(PARTS / source, folder)
    (folder / "dot.png").write_bytes(DOT)
    run("pandoc", "-s", source, "-o", name, folder=folder)


def by_python_docx(folder: Path, name: str) -> None:
    import docx
    from docx.enum.text import WD_BREAK

    document = docx.Document()
    document.core_properties.title = "TITLEWORD"
    document.add_heading("HEADINGWORD", 2)
    paragraph = document.add_paragraph("before")
    paragraph.add_run("\tTABWORD").add_break(WD_BREAK.LINE)
    paragraph.add_run("BREAKWORD").bold = True
    paragraph.add_run(" HIDDENWORD").font.hidden = True
    document.add_comment(paragraph.runs, "COMMENTWORD", "Berta", "B")
    document.add_paragraph("LISTWORD", style="List Number")
    document.add_paragraph("BULLETWORD", style="List Bullet")
    document.sections[0].header.paragraphs[0].text = "HEADERWORD"
    document.sections[0].footer.paragraphs[0].text = "FOOTERWORD"
    table = document.add_table(2, 2)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "MERGEDWORD"
    table.cell(1, 0).text = "CELLWORD"
    table.cell(1, 1).add_table(1, 1).cell(0, 0).text = "NESTEDWORD"
    document.add_picture(io.BytesIO(DOT))
    document.save(str(folder / name))


def by_python_pptx(folder: Path, name: str) -> None:
    pptx: Any = import_module("pptx")  # not among the dependencies of development
    chart_data: Any = import_module("pptx.chart.data").CategoryChartData()
    chart_data.categories = ["a"]
    chart_data.add_series("b", (1,))
    bars = import_module("pptx.enum.chart").XL_CHART_TYPE.BAR_CLUSTERED
    talk = pptx.Presentation()
    talk.core_properties.title = "TITLEWORD"
    slide = talk.slides.add_slide(talk.slide_layouts[1])
    slide.shapes.title.text = "SLIDETITLEWORD"
    body = slide.placeholders[1].text_frame
    body.text = "BODYWORD"
    deeper = body.add_paragraph()
    deeper.text, deeper.level = "LEVELWORD", 1
    body.add_paragraph().text = "BREAKWORD\vone"
    link = body.add_paragraph().add_run()
    link.text, link.hyperlink.address = "link", "https://example.org/LINKWORD"
    slide.notes_slide.notes_text_frame.text = "NOTESWORD"
    place = (914_400, 914_400, 914_400, 914_400)
    table = slide.shapes.add_table(2, 2, *place).table
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(0, 0).text, table.cell(1, 1).text = "MERGEDWORD", "CELLWORD"
    slide.shapes.add_picture(io.BytesIO(DOT), 0, 0)
    chart = slide.shapes.add_chart(bars, *place, chart_data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "CHARTWORD"
    slide.shapes.add_ole_object(io.BytesIO(b"x"), "Some.Program", 0, 0)
    slide.shapes.add_group_shape().shapes.add_textbox(*place).text_frame.text = "GROUPWORD"
    talk.save(str(folder / name))


def by_openpyxl(folder: Path, name: str) -> None:
    book = openpyxl.Workbook()
    book.properties.title = "TITLEWORD"
    sheet: Any = book.active
    sheet.append(["BODYWORD", 1234.5, 0.25, datetime(2026, 3, 4), timedelta(hours=30, minutes=5), 7, True])
    for cell, code in (("B1", '#,##0.00 "€"'), ("C1", "0%"), ("D1", "dd.mm.yyyy"), ("E1", "[h]:mm"), ("F1", "00000")):
        sheet[cell].number_format = code
    sheet["B2"] = "=SUM(B1:B1)"
    sheet["A3"], sheet["A5"], sheet["B6"] = "note", "MERGEDWORD", 2
    sheet["A3"].comment = Comment("COMMENTWORD", "Ann")
    sheet.merge_cells("A5:A6")
    sheet.row_dimensions[6].hidden = sheet.column_dimensions["C"].hidden = True
    sheet["A7"] = "our site"
    sheet["A7"].hyperlink = "https://example.org/LINKWORD"
    sheet["A8"] = "two lines\nLINEWORD"
    sheet["A9"] = CellRichText("a ", TextBlock(InlineFont(b=True), "RICHWORD"))
    sheet.oddHeader.center.text, sheet.oddFooter.left.text = "HEADERWORD", "FOOTERWORD"
    chart: Any = BarChart()
    chart.add_data(Reference(sheet, min_col=2, min_row=1))
    sheet.add_chart(chart, "J1")
    sheet.defined_names["Own"] = DefinedName("Own", attr_text="Sheet!$A$1")
    hidden: Any = book.create_sheet("Costs")
    hidden.sheet_state = "hidden"
    hidden["A1"] = "HIDDENSHEETWORD"
    book.create_chartsheet("Graph")
    book.defined_names["Rate"] = DefinedName("Rate", attr_text="Sheet!$B$1")
    book.save(folder / name)


def by_xlwt(folder: Path, name: str) -> None:
    xlwt: Any = import_module("xlwt")  # not among the dependencies of development

    def in_format(code: str) -> Any:
        style = xlwt.XFStyle()
        style.num_format_str = code
        return style

    book = xlwt.Workbook()
    sheet = book.add_sheet("Sheet")
    values = ("BODYWORD", 1234.5, 0.256, datetime(2026, 3, 4), 30.0833 / 24, 7, True)
    for column, (value, code) in enumerate(
        zip(values, ("General", '#,##0.00 "€"', "0.0%", "dd.mm.yyyy", "[h]:mm", "00000", "General"), strict=True)
    ):
        sheet.write(0, column, value, in_format(code))
    sheet.write(2, 0, "two lines\nLINEWORD")
    sheet.write_rich_text(3, 0, ["a ", ("RICHWORD", xlwt.Font())])
    sheet.write_merge(4, 5, 0, 0, "MERGEDWORD")
    sheet.write(5, 1, 2)
    sheet.row(5).hidden = sheet.col(2).hidden = True
    sheet.header_str, sheet.footer_str = b"&LHEADERWORD", b"&RFOOTERWORD"
    hidden = book.add_sheet("Costs")
    hidden.visibility = 1
    hidden.write(0, 0, "HIDDENSHEETWORD")
    book.save(str(folder / name))


def by_reportlab(folder: Path, name: str) -> None:
    reader: Any = import_module("reportlab.lib.utils").ImageReader  # not among the dependencies of development
    page: Any = import_module("reportlab.pdfgen.canvas").Canvas(str(folder / name))
    page.setTitle("TITLEWORD")
    page.drawString(50, 750, "BODYWORD")
    page.acroForm.textfield(name="tenant", value="FIELDWORD", x=50, y=700)
    page.acroForm.textfield(name="EMPTYWORD", x=300, y=650)
    page.acroForm.checkbox(name="pets", checked=True, x=50, y=650)
    page.acroForm.choice(name="colour", value="CHOICEWORD", options=["red", "CHOICEWORD"], x=50, y=600)
    page.acroForm.listbox(name="sizes", value="LISTWORD", options=["a", "LISTWORD"], x=50, y=520)
    page.acroForm.radio(name="pay", value="cash", selected=True, x=50, y=480)
    page.acroForm.radio(name="pay", value="card", selected=False, x=80, y=480)
    page.drawString(50, 450, "our site")
    page.linkURL("https://example.org/LINKWORD", (50, 445, 120, 465))
    page.textAnnotation("COMMENTWORD", (300, 700, 320, 720))
    page.highlightAnnotation("HIGHLIGHTWORD", (50, 745, 120, 765))
    page.bookmarkPage("here")
    page.addOutlineEntry("OUTLINEWORD", "here")
    page.saveState()
    page.translate(300, 300)
    page.rotate(90)
    page.drawString(0, 0, "TURNEDWORD")
    page.restoreState()
    invisible = page.beginText(50, 400)
    invisible.setTextRenderMode(3)
    invisible.textOut("SCANNEDWORD")
    page.drawText(invisible)
    page.beginForm("stamp")
    page.drawString(50, 350, "FORMWORD")
    page.endForm()
    page.doForm("stamp")
    page.showPage()
    page.drawImage(reader(io.BytesIO(DOT)), 50, 50)
    page.showPage()
    page.drawString(50, 750, "beside a picture")
    page.drawImage(reader(io.BytesIO(DOT)), 50, 50)
    page.showPage()
    page.addPageLabel(0, style="ROMAN_LOWER", start=4)
    page.save()


def by_email(folder: Path, name: str) -> None:
    inner = EmailMessage()
    inner["Subject"] = "INNERSUBJECTWORD"
    inner.set_content("FORWARDEDWORD")
    message = EmailMessage()
    message["From"], message["To"], message["Cc"] = "FROMWORD <a@x.org>", "TOWORD <b@x.org>", "CCWORD <c@x.org>"
    message["Subject"], message["Date"] = "Kündigung SUBJECTWORD", "Sat, 28 Nov 2026 12:00:00 +0000"
    message.set_content("BODYWORD zum 31. März\n", cte="base64")
    page = '<p>BODYWORD <a href="https://example.org/">zum</a> 31. März PAGEWORD</p>'
    message.add_alternative(page, subtype="html")
    message.add_attachment("NOTEWORD\n", filename="notes.txt")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="lease.pdf")
    message.add_attachment(DOT, maintype="image", subtype="png", filename="dot.png")
    message.add_attachment("BEGIN:VCALENDAR", subtype="calendar", filename="date.ics")
    message.add_attachment(inner)
    (folder / name).write_bytes(message.as_bytes())


def by_json(folder: Path, name: str) -> None:
    def code(source: str, *outputs: object) -> object:
        return {"cell_type": "code", "source": source, "metadata": {}, "outputs": outputs, "execution_count": 1}

    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# MARKDOWNWORD\n"], "attachments": {"dot.png": {}}},
        code("CODEWORD = 1", {"output_type": "stream", "name": "stdout", "text": ["STREAMWORD\n"]}),
        code("x", {"output_type": "execute_result", "data": {"text/plain": ["VALUEWORD"]}}),
        code("x", {"output_type": "display_data", "data": {"text/html": "<b>PAGEWORD</b>"}}),
        code("x", {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mERRORWORD\x1b[0m"]}),
        code("x", {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo="}}),
        code("x", {"output_type": "display_data", "data": {"application/vnd.widget+json": {}}}),
        code("x", {"output_type": "display_data", "data": {"text/latex": "$LATEXWORD$"}}),
        code("x", {"output_type": "stream", "name": "stderr", "text": "WARNINGWORD"}),
        {"cell_type": "raw", "metadata": {}, "source": "RAWWORD"},
    ]
    (folder / name).write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


MAKERS: dict[str, Callable[[Path, str], None]] = {
    **dict.fromkeys(_CONVERTED, by_libreoffice),
    **dict.fromkeys(
        ("pandoc.docx", "pandoc.pptx", "pandoc.ipynb", "pandoc.odt", "pandoc.epub", "pandoc.rtf"), by_pandoc
    ),
    "python-docx.docx": by_python_docx,
    "python-pptx.pptx": by_python_pptx,
    "openpyxl.xlsx": by_openpyxl,
    "xlwt.xls": by_xlwt,
    "reportlab.pdf": by_reportlab,
    "python.eml": by_email,
    "python.ipynb": by_json,
}


def features() -> dict[str, list[Feature]]:
    """Return what is in each document."""
    found = tomllib.loads((PARTS / "features.toml").read_text())
    return {name: [Feature(what, **about) for what, about in each.items()] for name, each in found.items()}


def outcome(feature: Feature, text: str, missing: str) -> str:
    """Return what became of a feature: read, said to be missing, left out rightly, or lost."""
    words = bool(feature.words) and feature.words in text
    said = bool(feature.missing) and feature.missing in missing
    if feature.deleted:
        return "LOST: read though deleted" if words else "left out, and said" if said else "LOST"
    if words and feature.missing:
        return "read, and said" if said else "read"
    return "read" if words else "said" if said else "LOST"


def check(name: str, folder: Path, expected: list[Feature]) -> int:
    """Print the rows of a document, and return how many features were lost."""
    data = (folder / name).read_bytes()
    kind = format_of(name, data)
    assert kind is not None
    found = parser_process.read_document(kind, data)
    text, missing = f"{found.title}\n{found.text()}", "; ".join(found.missing)
    lost = 0
    for feature in expected:
        became = outcome(feature, text, missing)
        lost += became.startswith("LOST")
        said = feature.missing if "said" in became else ""
        read = became if became.startswith(("LOST", "left")) else "yes" if "read" in became else ""
        print(f"| {name} | {feature.what} | {read} | {said} |")
    return lost


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="make the documents here, and keep them")
    chosen = options.parse_args()
    lost = 0
    looked_for: Counter[str] = Counter()
    absent: list[str] = []
    print("| document | what is in it | read | said to be missing |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for name, expected in features().items():
            try:
                MAKERS[name](folder.resolve(), name)
            except (FileNotFoundError, ImportError):
                absent.append(name)
                continue
            lost += check(name, folder, expected)
            looked_for[Path(name).suffix] += len(expected)
    print(f"\nlooked for: {', '.join(f'{count} in {suffix}' for suffix, count in looked_for.items())}")
    print(f"lost in silence: {lost}; not made here: {', '.join(absent) or 'none'}")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
