"""Office files made by hand, and attacks that every kind of office file has to withstand."""

from __future__ import annotations

import io
import re
import socket
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import Extracted, Wanted

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
NAMESPACES = {
    "w": W,
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
    "c": "http://schemas.openxmlformats.org/drawingml/2006/chart",
    "dgm": "http://schemas.openxmlformats.org/drawingml/2006/diagram",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "v": "urn:schemas-microsoft-com:vml",
    "o": "urn:schemas-microsoft-com:office:office",
}
DECLARED = " ".join(f'xmlns:{prefix}="{namespace}"' for prefix, namespace in NAMESPACES.items())
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_KIND = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def element(name: str, inside: str) -> str:
    return f"<{name} {DECLARED}>{inside}</{name}>"


def relations(*given: tuple[str, str, str]) -> str:
    """Return a part of relations: id, kind and target of each; a target with a scheme or at a server is outside."""
    each = [
        f'<Relationship Id="{name}" Type="{_KIND}{kind}" Target="{target}"{_mode(target)}/>'
        for name, kind, target in given
    ]
    return f'<Relationships xmlns="{_RELATIONS}">{"".join(each)}</Relationships>'


def _mode(target: str) -> str:
    return ' TargetMode="External"' if ":" in target or target.startswith("//") else ""


def content_types(main: str, kind: str) -> str:
    own = f"application/vnd.openxmlformats-officedocument.{kind}+xml"
    return (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="{main}" ContentType="{own}"/></Types>'
    )


def pack_parts(parts: Mapping[str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return made.getvalue()


def word_parts(body: str, *related: tuple[str, str, str], **others: str) -> dict[str, str | bytes]:
    """Return the parts of a Word document; `others` are XML parts by their names, e.g. `footnotes`."""
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": content_types("/word/document.xml", "wordprocessingml.document.main"),
        "_rels/.rels": relations(("r1", "officeDocument", "word/document.xml")),
        "word/document.xml": element("w:document", f"<w:body>{body}</w:body>"),
    }
    kinds = [(f"x{name}", name.rstrip("0123456789"), f"{name}.xml") for name in others]
    parts["word/_rels/document.xml.rels"] = relations(*kinds, *related)
    parts.update({f"word/{name}.xml": content for name, content in others.items()})
    return parts


def word_file(body: str, *related: tuple[str, str, str], **others: str) -> bytes:
    return pack_parts(word_parts(body, *related, **others))


SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def book_parts(text: str, *related: tuple[str, str, str], rows: str = "", below: str = "") -> dict[str, str | bytes]:
    """Return the parts of a workbook: a sheet with a text, then rows; `related`: what the sheet refers to."""
    types = content_types("/xl/workbook.xml", "spreadsheetml.sheet.main")
    own = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    strings = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{own}"/></Types>'
    cell = '<row r="1"><c r="A1" t="s"><v>0</v></c></row>'
    return {
        "[Content_Types].xml": types.replace("</Types>", strings),
        "_rels/.rels": relations(("r1", "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": book_list('<sheet name="Plan" sheetId="1" r:id="s1"/>'),
        "xl/_rels/workbook.xml.rels": relations(
            ("s1", "worksheet", "worksheets/sheet1.xml"), ("t1", "sharedStrings", "sharedStrings.xml")
        ),
        "xl/worksheets/sheet1.xml": sheet(f"<sheetData>{cell}{rows}</sheetData>{below}"),
        "xl/worksheets/_rels/sheet1.xml.rels": relations(*related),
        "xl/sharedStrings.xml": f'<sst xmlns="{SHEETS}" {DECLARED}><si><t>{text}</t></si></sst>',
    }


def sheet(inside: str) -> str:
    return f'<worksheet xmlns="{SHEETS}" {DECLARED}>{inside}</worksheet>'


def book_list(sheets: str, names: str = "") -> str:
    """Return the main part of a workbook: its sheets and defined names."""
    names = f"<definedNames>{names}</definedNames>" if names else ""
    return f'<workbook xmlns="{SHEETS}" {DECLARED}><sheets>{sheets}</sheets>{names}</workbook>'


def slides_parts(*shapes: str, **others: str) -> dict[str, str | bytes]:
    """Return the parts of a presentation: a slide for each text of shapes; `others` belong to the first one."""
    numbers = range(1, len(shapes) + 1)
    ids = "".join(f'<p:sldId id="{255 + n}" r:id="s{n}"/>' for n in numbers)
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": content_types("/ppt/presentation.xml", "presentationml.presentation.main"),
        "_rels/.rels": relations(("r1", "officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": element("p:presentation", f"<p:sldIdLst>{ids}</p:sldIdLst>"),
        "ppt/_rels/presentation.xml.rels": relations(*((f"s{n}", "slide", f"slides/slide{n}.xml") for n in numbers)),
        "ppt/slides/_rels/slide1.xml.rels": relations(
            ("web", "hyperlink", "https://x.org/"),
            *((f"x{name}", name.rstrip("0123456789"), f"../x/{name}.xml") for name in others),
        ),
    }
    for number, inside in zip(numbers, shapes, strict=True):
        tree = f"<p:cSld><p:spTree>{inside}</p:spTree></p:cSld>"
        parts[f"ppt/slides/slide{number}.xml"] = element("p:sld", tree)
    parts.update({f"ppt/x/{name}.xml": content for name, content in others.items()})
    return parts


def sp(*lines: str, place: str = "", about: str = "") -> str:
    """Return a shape of a slide with lines of text; `place`: what it is for in the layout, e.g. `title`."""
    kind = f'<p:ph type="{place}"/>' if place else ""
    text = "".join(line if line.startswith("<") else f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in lines)
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="1" name="x"{about}/><p:nvPr>{kind}</p:nvPr></p:nvSpPr>'
        f"<p:txBody>{text}</p:txBody></p:sp>"
    )


def p(inside: str, properties: str = "") -> str:
    """Return a paragraph of Word; a text that is no XML becomes a run."""
    content = inside if inside.startswith("<") else r(inside)
    return f"<w:p>{f'<w:pPr>{properties}</w:pPr>' if properties else ''}{content}</w:p>"


def r(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


class Attack(NamedTuple):
    """A hostile file: the refusal that it must meet, or words that are still read from it."""

    data: Callable[[], bytes]
    refused: str = ""
    read: str = ""
    missing: str = ""


def assert_withstands(attack: Attack, read: Callable[[bytes, Wanted], Extracted], listener: socket.socket) -> None:
    """Assert that a reader refuses a hostile file or reads it within its bounds, and asks for nothing elsewhere."""
    data = attack.data()
    began = time.process_time()
    try:
        found = read(data, Wanted())
    except ToolFailed as refused:
        assert attack.refused and re.search(attack.refused, str(refused))
    else:
        assert attack.read and re.search(attack.read, found.text())
        assert attack.missing in "; ".join(found.missing)
        assert "root:" not in found.text() and "lollol" not in found.text()
        assert len(found.text()) < 6_000_000
    assert time.process_time() - began < 25
    with pytest.raises(BlockingIOError):
        listener.accept()


class Victim(NamedTuple):
    """A kind of office file: its parts with some text, the name of its main part, and one that holds text."""

    parts: Callable[[str], dict[str, str | bytes]]
    main: str
    text: str
    """The part with the text, which may be the main one."""
    tag: str = "w:sdt"
    """An element that may be in itself."""


def pack_changed(parts: Mapping[str, str | bytes], **new: str | bytes) -> bytes:
    return pack_parts({**parts, **new})


def cut_short(parts: Mapping[str, str | bytes]) -> Attack:
    """Return an office file without the list of its parts, which are whole: they are read, and that is said."""
    return Attack(lambda: pack_parts(parts)[:-60], read="KEPTWORD", missing="the end of this file, which is cut off")


def office_attacks(victim: Victim, port: int) -> dict[str, Attack]:
    """Return attacks on a kind of Office's files; those that fetch something ask a server at this port."""
    parts = victim.parts("KEPTWORD")
    elsewhere = f'<!DOCTYPE x SYSTEM "http://127.0.0.1:{port}/x">'
    attacks = archive_attacks(victim, port)
    attacks |= {
        "cut short": cut_short(parts),
        "a document type elsewhere": Attack(
            lambda: pack_changed(parts, **{victim.text: elsewhere + str(parts[victim.text])}), "document type"
        ),
        "an entity among the relations": Attack(
            lambda: pack_changed(
                parts, **{"_rels/.rels": '<!DOCTYPE x [<!ENTITY f "y">]>' + str(parts["_rels/.rels"])}
            ),
            "document type",
        ),
        "macros": Attack(lambda: pack_changed(parts, **{"x/vbaProject.bin": OLE}), read="KEPTWORD", missing="macros"),
    }
    return attacks


def archive_attacks(victim: Victim, port: int) -> dict[str, Attack]:
    """Return attacks on XML in a zip archive; those that fetch something ask a server at this port."""
    parts = victim.parts("KEPTWORD")
    text = str(parts[victim.text])
    web = f"http://127.0.0.1:{port}/x"

    def with_text(content: str | bytes) -> Callable[[], bytes]:
        return lambda: pack_parts({**parts, victim.text: content})

    def with_doctype(doctype: str, reference: str, encoding: str = "utf-8") -> Callable[[], bytes]:
        declared = f'<?xml version="1.0" encoding="{encoding}"?>{doctype}{text.replace("KEPTWORD", reference)}'
        return with_text(declared.encode(encoding))

    def truncated() -> bytes:
        return pack_parts(parts)[:-60]

    def wrong_checksum() -> bytes:
        data = bytearray(pack_parts(parts))
        at = data.index(victim.text.encode()) + len(victim.text) + 20
        data[at] ^= 0xFF
        return bytes(data)

    def locked() -> bytes:
        data = bytearray(pack_parts(parts))
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = data.find(mark)
            while at >= 0:
                data[at + offset] |= 1
                at = data.find(mark, at + 1)
        return bytes(data)

    def twice() -> bytes:
        made = io.BytesIO(pack_parts(parts))
        with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings(action="ignore"):
            archive.writestr(victim.text, "<a>" * 300 + "</a>" * 300)
        return made.getvalue()

    bomb = pack_parts({"a": b"\0" * 30_000_000})
    deep = f"<{victim.tag}>" * 300 + f"</{victim.tag}>" * 300
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return {
        "a part that unpacks to 150 MB": Attack(with_text(text + " " * 150_000_000), "unpacks to more than 100 MB"),
        "many small bombs": Attack(
            lambda: pack_parts({**parts, **{f"x{n}.xml": b" " * 30_000_000 for n in range(5)}}), "more than 100 MB"
        ),
        "20,000 parts": Attack(lambda: pack_parts({**parts, **{f"x/{n}": "" for n in range(20_000)}}), "10,000 parts"),
        "a million elements": Attack(
            with_text(text.replace("KEPTWORD", f"<{victim.tag}/>" * 1_000_000)), "500,000 elements"
        ),
        "300 levels": Attack(with_text(text.replace("KEPTWORD", deep)), "nested too deep"),
        "an attribute of 2 MB": Attack(with_text(text.replace("KEPTWORD", f'<a b="{"x" * 2_000_000}"/>')), "1 MB"),
        "300 attributes": Attack(
            with_text(text.replace("KEPTWORD", "<a " + " ".join(f'b{n}=""' for n in range(300)) + "/>")), "attributes"
        ),
        "entities of entities": Attack(
            with_doctype(f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]>', "&l9;"), "document type"
        ),
        "a local file as an entity": Attack(
            with_doctype('<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>', "&f;"), "document type"
        ),
        "a web page as an entity": Attack(
            with_doctype(f'<!DOCTYPE x [<!ENTITY f SYSTEM "{web}">]>', "&f;"), "document type"
        ),
        "an entity in UTF-16": Attack(with_doctype('<!DOCTYPE x [<!ENTITY f "y">]>', "&f;", "utf-16"), "document type"),
        "an encoding that nobody knows": Attack(
            with_text('<?xml version="1.0" encoding="x-evil"?>' + text), "cannot be read|no text of its kind", "", ""
        ),
        "an include": Attack(
            with_text(
                text.replace(
                    "KEPTWORD",
                    'KEPTWORD<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/passwd"'
                    ' parse="text"/>',
                )
            ),
            read="KEPTWORD",
        ),
        "cut short": Attack(truncated, "damaged"),
        "a wrong checksum": Attack(wrong_checksum, "cannot be read|no text of its kind"),
        "locked with a password": Attack(locked, "encrypted"),
        "encrypted by Office": Attack(lambda: OLE + b"\0" * 600 + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        "of an old Office": Attack(lambda: OLE + b"\0" * 600, "old binary format"),
        "the same part twice": Attack(twice, "nested too deep"),
        "no main part": Attack(lambda: pack_parts({"a.xml": "<a/>"}), "no text of its kind"),
        "a main part of another kind": Attack(
            lambda: pack_changed(parts, **{victim.main: "<html>KEPTWORD</html>"}), "no text of its kind"
        ),
        "archives in an archive": Attack(
            lambda: pack_changed(parts, **{"x/inner.docx": pack_parts({f"{n}.zip": bomb for n in range(10)})}),
            read="KEPTWORD",
        ),
        "not a zip": Attack(lambda: b"KEPTWORD " * 100, "damaged"),
        "empty": Attack(lambda: b"", "damaged"),
    }
