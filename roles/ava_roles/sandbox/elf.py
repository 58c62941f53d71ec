"""Where the loader finds the library of a Python interpreter, from the interpreter's own file (64-bit ELF)."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\w.]*")
_ORIGIN = re.compile(r"\$ORIGIN|\$\{ORIGIN\}")
_ELF = b"\x7fELF\x02\x01"  # 64 bits, the low byte first
_HEADER = struct.Struct("<16sHHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")
_SEGMENTS_MAX = 64
_DYNAMIC_MAX = 65_536
_TEXT_MAX = 4_096
# Kinds of segments.
_LOAD = 1
_DYNAMIC = 2
# Tags of the entries of a dynamic segment.
_END = 0
_NEEDED = 1
_STRINGS = 5
_RPATH = 15
_RUNPATH = 29


def python_library(program: Path) -> Path | None:
    """Return where the loader finds an interpreter's libpython (64-bit ELF); None if it needs none. Blocks.

    Also None if that path is relative to the program (`$ORIGIN`), in its own installation. No content is trusted.
    """
    try:
        libraries, folders = _read_links(program)
        for name in libraries:
            if _LIBRARY.fullmatch(name):
                return _library_in(folders, name, program.parent)
    except (OSError, OverflowError, ValueError, struct.error):  # not such a program, or not readable
        pass
    return None


def _library_in(folders: Sequence[str], name: str, origin: Path) -> Path | None:
    """Return the library that the loader finds; None where its folder is relative to the program's (`origin`)."""
    for folder in folders:
        place = _ORIGIN.sub(lambda _: str(origin), folder)
        library = Path(os.path.normpath(f"{place}/{name}"))
        if not library.is_absolute() or not library.is_file():
            continue
        if place != folder:
            return None
        return library if _LIBRARY.fullmatch(library.resolve().name) else None
    return None


def _read_links(program: Path) -> tuple[list[str], list[str]]:
    """Return an ELF program's libraries and the loader's folders. Anything else raises, or has neither."""
    descriptor = os.open(program, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return [], []
        segments = _segments(descriptor)
        entries = _dynamic_entries(descriptor, segments)
        strings = _strings_offset(segments, entries)
        if strings is None:
            return [], []

        def texts(tag: int) -> list[str]:
            return [_text(descriptor, strings + value) for each, value in entries if each == tag]

        libraries = texts(_NEEDED)
        folders: list[str] = []
        for paths in texts(_RUNPATH) or texts(_RPATH):
            folders += filter(None, paths.split(":"))
        return libraries, folders
    finally:
        os.close(descriptor)


class _Segment(NamedTuple):
    """A segment of a program: where it is in the file, and where it is loaded."""

    kind: int
    offset: int
    start: int
    length: int


def _segments(descriptor: int) -> list[_Segment]:
    header = _HEADER.unpack(_read(descriptor, 0, _HEADER.size))
    if not header[0].startswith(_ELF):
        return []
    table = header[5]
    size = header[9]
    count = min(header[10], _SEGMENTS_MAX)
    segments: list[_Segment] = []
    for number in range(count):
        data = _read(descriptor, table + number * size, _SEGMENT.size)
        kind, _flags, offset, start, _physical, length, *_ = _SEGMENT.unpack(data)
        segments.append(_Segment(kind, offset, start, length))
    return segments


def _dynamic_entries(descriptor: int, segments: list[_Segment]) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for segment in segments:
        if segment.kind == _DYNAMIC:
            entries += _entries(descriptor, segment.offset, segment.length)
    return entries


def _strings_offset(segments: list[_Segment], entries: list[tuple[int, int]]) -> int | None:
    """Return where the names of libraries and folders are in the file; None if no segment has them."""
    addresses = [value for tag, value in entries if tag == _STRINGS]
    if not addresses:
        return None
    for segment in segments:
        place = addresses[0] - segment.start
        if segment.kind == _LOAD and 0 <= place < segment.length:
            return segment.offset + place
    return None


def _entries(descriptor: int, at: int, size: int) -> Iterator[tuple[int, int]]:
    data = _read(descriptor, at, min(size, _DYNAMIC_MAX))
    for tag, value in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if tag == _END:
            return
        yield tag, value


def _text(descriptor: int, at: int) -> str:
    return _read(descriptor, at, _TEXT_MAX).partition(b"\0")[0].decode()


def _read(descriptor: int, at: int, size: int) -> bytes:
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)
