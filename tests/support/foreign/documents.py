"""Real documents, made by hand."""

import io
from collections.abc import Sequence


def pdf(*pages: str) -> bytes:
    """A small real PDF with one line of text a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    return _pdf(*objects)


def unicode_pdf(lines: Sequence[str]) -> bytes:
    """A small real PDF of one page whose font maps codes of its own to any characters."""
    chars = sorted({char for line in lines for char in line})
    codes = {char: f"{number:04X}" for number, char in enumerate(chars, 1)}
    maps = [f"<{code}> <{char.encode('utf-16-be').hex()}>" for char, code in codes.items()]
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Own def /CMapType 2 def\n"
        "1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
        + "".join(
            f"{len(part)} beginbfchar\n" + "\n".join(part) + "\nendbfchar\n"
            for part in (maps[start : start + 100] for start in range(0, len(maps), 100))
        )
        + "endcmap end end"
    )
    shown = " ".join(f"<{''.join(codes[char] for char in line)}> Tj T*" for line in lines)
    stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET"
    return _pdf(
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [7 0 R] /Count 1 >>",
        "<< /Type /Font /Subtype /Type0 /BaseFont /Own /Encoding /Identity-H"
        " /DescendantFonts [4 0 R] /ToUnicode 5 0 R >>",
        "<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Own /DW 500"
        " /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>",
        f"<< /Length {len(cmap)} >>\nstream\n{cmap}\nendstream",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 6 0 R"
        " /Resources << /Font << /F1 3 0 R >> >> >>",
    )


def _pdf(*objects: str) -> bytes:
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.4\n")
    places: list[int] = []
    for number, text in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{text}\nendobj\n".encode())
    start = out.tell()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode())
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode())
    return out.getvalue()
