"""PDFs made by hand of numbered objects: the first is the catalogue."""

from __future__ import annotations

import io
from collections.abc import Sequence

FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def make_pdf(objects: Sequence[str | bytes], trailer: str = "") -> bytes:
    """Return a PDF of these objects, which are numbered from 1 on."""
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n")
    places: list[int] = []
    for number, each in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, each.encode("latin-1") if isinstance(each, str) else each))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    head = f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF"
    out.write(head.encode())
    return out.getvalue()


def stream(data: bytes, entries: str = "") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries.encode(), data)


def page_of(
    text: bytes, *more: str | bytes, page: str = "", catalogue: str = "", contents: str = "", trailer: str = ""
) -> bytes:
    """Return a PDF of one page: objects 1 to 5 are its own, `more` are those from 6 on."""
    return make_pdf(
        [
            f"<< /Type /Catalog /Pages 2 0 R {catalogue} >>",
            "<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            FONT,
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R"
            f" /Resources << /Font << /F1 3 0 R >> /XObject << /X 6 0 R >> >> {page} >>",
            stream(text, contents),
            *more,
        ],
        trailer,
    )


def line(text: str, at: int = 720) -> bytes:
    return f"BT /F1 12 Tf 72 {at} Td ({text}) Tj ET\n".encode("latin-1")


IMAGE = stream(
    b"\xff\0\0", "/Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceRGB /BitsPerComponent 8"
)
