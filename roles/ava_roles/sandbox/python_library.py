"""Finds the shared library that a Python interpreter is linked with, if it was built with one, as pyenv can build it.

The program's ELF headers name it. Asking the dynamic loader would start the program.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\w.]*")
_ORIGIN = re.compile(r"\$ORIGIN|\$\{ORIGIN\}")
_ELF = b"\x7fELF\x02\x01"  # 64 bits, the low byte first
_HEADER, _SEGMENT, _ENTRY = struct.Struct("<16sHHIQQQIHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<QQ")
_SEGMENTS_MAX, _DYNAMIC_MAX, _TEXT_MAX = 64, 65_536, 4_096
_LOAD, _DYNAMIC = 1, 2
_END, _NEEDED, _STRINGS, _RPATH, _RUNPATH = 0, 1, 5, 15, 29


def python_library(program: Path) -> Path | None:
    """Return the path where the loader finds an interpreter's libpython; None if it needs none.

    Also None if that path is relative to the program (`$ORIGIN`): then it is in the program's own installation. Reads
    64-bit ELF programs only. Blocks. The file's content is not trusted.
    """
    try:
        descriptor = os.open(program, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            needed, folders = _read_links(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ([], [])
        finally:
            os.close(descriptor)
        return _locate(program, needed, folders)
    except (OSError, OverflowError, ValueError, struct.error):  # not such a program, or not readable
        return None


def _locate(program: Path, needed: Sequence[str], folders: Sequence[str]) -> Path | None:
    """Return the path where the loader finds the library, unless that is relative to the program.

    Raises:
        OSError: A folder cannot be read.
    """
    name = next((each for each in needed if _LIBRARY.fullmatch(each)), None)
    for folder in folders if name is not None else ():
        place = _ORIGIN.sub(lambda _: str(program.parent), folder)
        library = Path(os.path.normpath(f"{place}/{name}"))
        if library.is_absolute() and library.is_file():
            return library if place == folder and _LIBRARY.fullmatch(library.resolve().name) else None
    return None


def _read_links(descriptor: int) -> tuple[list[str], list[str]]:
    """Return the names of the libraries that a program needs, and the folders where the loader looks for them.

    Raises:
        OSError, OverflowError, ValueError, struct.error: It is not a valid ELF program.
    """
    header = _HEADER.unpack(_read(descriptor, 0, _HEADER.size))
    if not header[0].startswith(_ELF):
        return [], []
    at, size, count = header[5], header[9], min(header[10], _SEGMENTS_MAX)
    segments = [_SEGMENT.unpack(_read(descriptor, at + number * size, _SEGMENT.size)) for number in range(count)]
    loaded = [(start, offset, length) for kind, _, offset, start, _, length, *_ in segments if kind == _LOAD]
    entries = [entry for each in segments if each[0] == _DYNAMIC for entry in _entries(descriptor, each[2], each[5])]
    strings = next((value for tag, value in entries if tag == _STRINGS), -1)
    begin = next((offset + strings - start for start, offset, length in loaded if 0 <= strings - start < length), None)
    if begin is None:
        return [], []

    def texts(wanted: int) -> list[str]:
        return [_text(descriptor, begin + value) for tag, value in entries if tag == wanted]

    folders = texts(_RUNPATH) or texts(_RPATH)
    return texts(_NEEDED), [folder for each in folders for folder in each.split(":") if folder]


def _entries(descriptor: int, at: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the tag and the value of each entry in a dynamic section."""
    data = _read(descriptor, at, min(size, _DYNAMIC_MAX))
    for tag, value in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if tag == _END:
            return
        yield tag, value


def _text(descriptor: int, at: int) -> str:
    """Return the zero-terminated text at an offset."""
    return _read(descriptor, at, _TEXT_MAX).partition(b"\0")[0].decode()


def _read(descriptor: int, at: int, size: int) -> bytes:
    """Return bytes of a file from an offset, fewer at its end.

    Raises:
        OSError, OverflowError: The offset is invalid.
    """
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)
