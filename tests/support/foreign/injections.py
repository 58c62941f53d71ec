"""The attacks of `tests/data/injections.toml`, and the ways by which each tool's texts bring them to the model.

`Ground` is where they are laid; `support.tool_examples` has the ways of each tool.
"""

from __future__ import annotations

import csv
import html
import io
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from support.foreign.documents import unicode_pdf
from support.model_server import Fail, Step
from support.network.web_site import Answer, Page, Site
from support.repository import REPOSITORY

ATTACKS: Sequence[str] = tuple(
    attack["text"]
    for attack in tomllib.loads((REPOSITORY / "tests" / "data" / "injections.toml").read_text("utf-8"))["attack"]
)


def mark(number: int) -> str:
    return f"Marker{number:02}x"


def attack_text(number: int) -> str:
    """An attack, each line of it with a word by which it is found again."""
    lines = ATTACKS[number].split("\n")
    return "\n".join(f"{mark(number)} {line}" for line in lines) + f" {mark(number)}"


def for_xml(text: str) -> str:
    """What office formats can hold of a text."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    return ILLEGAL_CHARACTERS_RE.sub("", text)


@dataclass
class Way:
    """One way by which foreign text reaches the model.

    Attributes:
        lay: Puts attack `number` where the tool finds it; returns the call's arguments.
        counted: How many invisible characters were taken out is told: all that the attack has (`exactly`), or that
            some were (a format or a list of lines holds not all of them), or nothing where something else takes them
            out before (the reader of HTML does, and names of files are shown with marks in their place).
    """

    lay: Callable[[Ground, int], dict[str, Any]]
    counted: Literal["exactly", "some", "not"] = "some"


@dataclass
class Ground:
    """Where attacks are laid: a workspace, a site, and the answers of a search engine."""

    workspace: Path
    web: Site
    hits: list[Step] = field(default_factory=list[Step])

    def file(self, name: str, data: bytes) -> str:
        (self.workspace / name).write_bytes(data)
        return name

    def note(self, number: int) -> str:
        folder = self.workspace.parent / "data" / "memory"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"note{number:02}.md").write_text(attack_text(number), "utf-8", newline="")
        return f"note{number:02}"

    def page(self, number: int, page: Answer) -> str:
        self.web.pages[f"/{number}"] = page
        return self.web.url(f"/{number}")


def plain_page(number: int) -> Page:
    return Page(attack_text(number), content_type="text/plain; charset=utf-8")


def html_page(number: int) -> Page:
    words = "".join(f"<p>{html.escape(line)}</p>" for line in attack_text(number).split("\n"))
    title = html.escape(f"{mark(number)} {ATTACKS[number]}")
    rest = f"<p>{'Further words about the quality of it all. ' * 8}</p>"
    return Page(f"<html><head><title>{title}</title></head><body><article>{words}{rest}</article></body></html>")


def pdf_page(number: int) -> Page:
    return Page(unicode_pdf(attack_text(number).split("\n")), content_type="application/pdf")


def docx_file(number: int) -> bytes:
    import docx

    document, made = docx.Document(), io.BytesIO()
    for line in for_xml(attack_text(number)).split("\n"):
        document.add_paragraph(line)
    document.add_table(1, 1).cell(0, 0).text = for_xml(attack_text(number))
    document.save(made)
    return made.getvalue()


def xlsx_file(number: int) -> bytes:
    import openpyxl

    book, made = openpyxl.Workbook(), io.BytesIO()
    sheet = book.active
    assert sheet is not None
    sheet.append([mark(number), for_xml(attack_text(number))])
    book.save(made)
    return made.getvalue()


def csv_file(number: int) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow([mark(number), attack_text(number), "end"])
    return text.getvalue().encode()


def text_file(at: Ground, number: int) -> str:
    return at.file(f"a{number:02}.txt", attack_text(number).encode())


def listing(at: Ground, number: int) -> dict[str, Any]:
    folder = at.workspace / f"folder{number:02}"
    folder.mkdir()
    name = attack_text(number).replace("/", "∕").replace("\0", "")
    while len(name.encode()) > 250:
        name = name[:-1]
    (folder / name).write_text("x")
    return {"path": folder.name}


def pattern(at: Ground, number: int) -> dict[str, Any]:
    return {"pattern": "*", **listing(at, number)}


def hit(at: Ground, number: int) -> dict[str, Any]:
    rows = [{"url": f"https://a.example/{number}", "title": attack_text(number), "content": attack_text(number)}]
    at.hits.append(Fail(200, {"results": rows, "unresponsive_engines": [[attack_text(number), "x"]]}))
    return {"query": "words"}
