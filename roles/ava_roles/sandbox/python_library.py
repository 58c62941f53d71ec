"""The shared library that an interpreter is linked with, if it was built with one, as pyenv can build it.

Read from the program's ELF headers: to ask the dynamic loader would start the program.
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
    """Return the path by which an interpreter finds its libpython, None where it needs none.

    None as well where the path is relative to the program (`$ORIGIN`): it leads into the program's own installation.
    Only a 64-bit ELF program is understood. Blocking; whoever made the file chose what is in it.
    """
    try:
        descriptor = os.open(program, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            needed, folders = _linked(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ([], [])
        finally:
            os.close(descriptor)
        return _found(program, needed, folders)
    except (OSError, OverflowError, ValueError, struct.error):  # it is not what it should be, or closed to us
        return None


def _found(program: Path, needed: Sequence[str], folders: Sequence[str]) -> Path | None:
    """Return where the loader finds the library, unless that is relative to the program.

    Raises:
        OSError: A folder is closed to us.
    """
    name = next((each for each in needed if _LIBRARY.fullmatch(each)), None)
    for folder in folders if name is not None else ():
        place = _ORIGIN.sub(lambda _: str(program.parent), folder)
        library = Path(os.path.normpath(f"{place}/{name}"))
        if library.is_absolute() and library.is_file():
            return library if place == folder and _LIBRARY.fullmatch(library.resolve().name) else None
    return None


def _linked(descriptor: int) -> tuple[list[str], list[str]]:
    """Return the names of the libraries that a program needs, and the folders where it looks for them.

    Raises:
        OSError, OverflowError, ValueError, struct.error: It is not what it should be.
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
    """Yield the entries of a dynamic section: what each is, and its value."""
    data = _read(descriptor, at, min(size, _DYNAMIC_MAX))
    for tag, value in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if tag == _END:
            return
        yield tag, value


def _text(descriptor: int, at: int) -> str:
    """Return the text that begins there and ends with a zero."""
    return _read(descriptor, at, _TEXT_MAX).partition(b"\0")[0].decode()


def _read(descriptor: int, at: int, size: int) -> bytes:
    """Return so many bytes of a file, or fewer where it ends.

    Raises:
        OSError, OverflowError: There is nothing there.
    """
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)
