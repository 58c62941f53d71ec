"""Workbooks of old Excels (BIFF8, BIFF5, BIFF4), written record by record, and hostile ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from ava_roles.texts.extracted import OLE_MAGIC
from support.foreign.office import Attack, book_parts, pack_parts

_SECTOR = 512
_END, _FAT, _FREE = 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFF
BIFF8, BIFF5 = 0x600, 0x500
KEPT = "KEPTWORD"


def record(number: int, content: bytes = b"") -> bytes:
    return struct.pack("<HH", number, len(content)) + content


def string(text: str, size: str = "<H") -> bytes:
    """Return a string of BIFF8 with its length before it."""
    if text.isascii():
        return struct.pack(size, len(text)) + b"\0" + text.encode("ascii")
    return struct.pack(size, len(text)) + b"\x01" + text.encode("utf-16-le")


def begin(kind: int, version: int = BIFF8) -> bytes:
    content = struct.pack("<HHHHII", version, kind, 0x0DBB, 1996, 0, 6)
    return record(0x809, content if version == BIFF8 else content[:8])


END = record(0x0A)


def style(number_format: int, version: int = BIFF8) -> bytes:
    size = 20 if version == BIFF8 else 16
    return record(0xE0, struct.pack("<HHH", 0, number_format, 0).ljust(size, b"\0"))


def number_format(number: int, code: str) -> bytes:
    return record(0x41E, struct.pack("<H", number) + string(code))


def label(row: int, column: int, text: str, version: int = BIFF8) -> bytes:
    coded = string(text) if version == BIFF8 else struct.pack("<H", len(text)) + text.encode("cp1252")
    return record(0x204, struct.pack("<HHH", row, column, 0) + coded)


def number(row: int, column: int, value: float, used_style: int = 0) -> bytes:
    return record(0x203, struct.pack("<HHHd", row, column, used_style, value))


def truth(row: int, column: int, value: int, is_error: int = 0) -> bytes:
    return record(0x205, struct.pack("<HHHBB", row, column, 0, value, is_error))


def listed_sheet(position: int, title: str, hidden: int = 0, kind: int = 0, version: int = BIFF8) -> bytes:
    name = string(title, "<B") if version == BIFF8 else bytes([len(title)]) + title.encode("cp1252")
    return record(0x85, struct.pack("<IBB", position, hidden, kind) + name)


def stream(*sheets: tuple[str, bytes], shared: bytes = b"", version: int = BIFF8, hidden: int = 0) -> bytes:
    """Return the stream of a workbook with sheets (title, records); `shared`: styles and more for all."""
    head = begin(5, version) + record(0x42, struct.pack("<H", 1200 if version == BIFF8 else 1252)) + shared
    length = len(head) + sum(len(listed_sheet(0, title, version=version)) for title, _content in sheets) + len(END)
    listed = b""
    contents = b""
    for title, content in sheets:
        listed += listed_sheet(length + len(contents), title, hidden, version=version)
        contents += begin(0x10, version) + content + END
    return head + listed + END + contents


def container(content: bytes, name: str = "Workbook", next_sector: Callable[[int, int], int] | None = None) -> bytes:
    """Return an OLE container with one stream. `next_sector` changes the chain: from a sector and what follows it."""
    content = content.ljust(4096, b"\0")
    count = -(-len(content) // _SECTOR)
    fats = -(-(count + 2) // 127)
    chain = [_FAT] * fats + [_END] + [fats + 2 + each for each in range(count)]
    chain[-1] = _END
    if next_sector is not None:
        chain = [next_sector(at, each) for at, each in enumerate(chain)]
    chain += [_FREE] * (fats * 128 - len(chain))
    head = OLE_MAGIC + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(10)
    head += struct.pack("<IIIIIIII", fats, fats, 0, 4096, _END, 0, _END, 0)
    head += struct.pack("<109I", *range(fats), *([_FREE] * (109 - fats)))
    folder = _entry("Root Entry", 5, 1, _END, 0) + _entry(name, 2, _FREE, fats + 1, len(content)) + bytes(256)
    return head + struct.pack(f"<{len(chain)}I", *chain) + folder + content.ljust(count * _SECTOR, b"\0")


def _entry(name: str, kind: int, child: int, start: int, size: int) -> bytes:
    coded = name.encode("utf-16-le")
    head = coded.ljust(64, b"\0") + struct.pack("<HBBIII", len(coded) + 2, kind, 1, _FREE, _FREE, child)
    return head + bytes(36) + struct.pack("<III", start, size, 0)


def old_book(*contents: bytes, shared: bytes = style(0), **options: int) -> bytes:
    """Return a workbook with one sheet that has a kept word in its first cell, and these records."""
    version = options.get("version", BIFF8)
    kept = label(0, 0, KEPT, version)
    name = "Workbook" if version == BIFF8 else "Book"
    return container(stream(("Plan", kept + b"".join(contents)), shared=shared, **options), name)


def lone_sheet(version: int) -> bytes:
    """Return a worksheet of Excel 3 or 4, which is in no container."""
    start = {3: 0x209, 4: 0x409}[version]
    content = struct.pack("<HHH", version * 0x100, 0x10, 0)
    cell = record(0x204, struct.pack("<HHHH", 0, 0, 0, len(KEPT)) + KEPT.encode("ascii"))
    return record(start, content) + cell + END


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


_DAMAGED = "damaged, or in another binary format"
_BOOK = old_book()


def old_book_attacks() -> dict[str, Attack]:
    """Return hostile workbooks of old Excels, each with what becomes of it."""
    names = b"".join(
        record(0x18, struct.pack("<HBBHHHBBBB", 0, 0, 4, 11, 0, 0, 0, 0, 0, 0) + b"\0" + b"Rate" + formula)
        for formula in (b"\x2d" * 11, b"\x03" * 11, b"\x15" * 11)
    )
    deep = record(
        0x18, struct.pack("<HBBHHHBBBB", 0, 0, 4, 8000, 0, 0, 0, 0, 0, 0) + b"\0Deep" + b"\x1e\1\0\x03" * 2000
    )
    wide = b"".join(number(row, 255, 1) for row in range(1, 65_536))
    text = "x" * 4_000
    cells = b"".join(label(row, 0, text) for row in range(1, 1_600))
    merged = record(0xE5, struct.pack("<H", 1_000) + struct.pack("<HHHH", 0, 65_535, 0, 255) * 1_000)
    many = [(f"s{each}", label(0, 0, KEPT)) for each in range(3_000)]
    outside = begin(5) + style(0) + listed_sheet(0x7FFFFFF0, "Plan") + END
    own_end = begin(5) + style(0) + listed_sheet(0, "Plan") + END
    data = {
        "only the magic": (OLE_MAGIC, _DAMAGED, ""),
        "cut in its head": (_BOOK[:300], _DAMAGED, ""),
        "cut in its sectors": (_BOOK[:1_700], _DAMAGED, ""),
        "zeros after the magic": (OLE_MAGIC + bytes(9_000), _DAMAGED, ""),
        "a chain that is a ring": (
            container(stream(("P", b"")), next_sector=lambda at, to: 2 if at == 5 else to),
            _DAMAGED,
            "",
        ),
        "a sector that follows itself": (
            container(stream(("P", b"")), next_sector=lambda at, to: at if at == 4 else to),
            _DAMAGED,
            "",
        ),
        "a sector outside of the file": (
            container(stream(("P", b"")), next_sector=lambda at, to: 99_999 if at == 4 else to),
            _DAMAGED,
            "",
        ),
        "sectors of 2^60 bytes": (_with(_BOOK, 30, b"\x3c\0"), "", KEPT),
        "four billion sectors of the list of sectors": (_with(_BOOK, 44, b"\xff\xff\xff\xff"), "", KEPT),
        "a stream of 4 GB": (_with(_BOOK, 1024 + 128 + 120, b"\xff\xff\xff\xff"), _DAMAGED, ""),
        "no stream of a workbook": (container(b"", "WordDocument"), _DAMAGED, ""),
        "an encrypted one": (old_book(shared=record(0x2F, b"\1\0" + bytes(52)) + style(0)), "is encrypted", ""),
        "an encrypted one of today": (container(b"", "EncryptedPackage"), "is encrypted", ""),
        "a sheet behind the end": (container(outside), _DAMAGED, ""),
        "a sheet that is the book itself": (container(own_end), _DAMAGED, ""),
        "a record longer than the file": (container(stream(("P", b""))[:-4] + b"\x03\x02\xff\xff"), _DAMAGED, ""),
        "a string longer than its record": (
            container(stream(("P", record(0x204, bytes(6) + b"\xff\xff\1a")))),
            _DAMAGED,
            "",
        ),
        "a shared text that does not exist": (
            old_book(record(0xFD, struct.pack("<HHHI", 1, 0, 0, 9**9))),
            _DAMAGED,
            "",
        ),
        "formulas of names that are none": (old_book(shared=names + style(0)), "", KEPT),
        "a formula of a name that is deep": (old_book(shared=deep + style(0)), _DAMAGED, ""),
        "a cell in the last column of each row": (old_book(wide), "", KEPT),
        "six million characters": (old_book(cells), "", KEPT),
        "merged cells all over, a thousand times": (old_book(merged, number(9, 0, 1)), "", KEPT),
        "three thousand sheets": (container(stream(*many, shared=style(0))), "", KEPT),
        "a style that does not exist": (old_book(number(1, 0, 0.5, 4_000)), _DAMAGED, ""),
        "a format of 30,000 signs": (
            old_book(number(1, 0, 1e300, 1), shared=number_format(164, "#" * 30_000)[:8_000] + style(0) + style(164)),
            _DAMAGED,
            "",
        ),
        "numbers that are none": (old_book(number(1, 0, float("nan")), number(2, 0, float("inf"))), "", KEPT),
        "a date before all time": (old_book(number(1, 0, -1e308, 1), shared=style(0) + style(14)), "", KEPT),
        "an error that does not exist": (old_book(truth(1, 0, 99, 1)), "", "#ERROR"),
        "a drawing without content": (old_book(record(0x5D), record(0x1B6)), _DAMAGED, ""),
        "a comment on nothing": (old_book(record(0x1C, b"\1")), _DAMAGED, ""),
        "Excel 4, cut": (lone_sheet(4)[:12], _DAMAGED, ""),
        "a formula that calls": (old_book(label(1, 0, '=cmd|"/c calc"!A1')), "", "=cmd"),
        "a new one with an old name": (pack_parts(book_parts(KEPT)), "", KEPT),
    }
    return {name: Attack(partial(bytes, each), refused, read) for name, (each, refused, read) in data.items()}
