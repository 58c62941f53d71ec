"""What tools say of one thing is in the singular."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ava_roles.sandbox.paths import Root
from ava_roles.texts.extracted import OLE_MAGIC
from ava_roles.texts.phrases import count_phrase
from ava_roles.tool import ToolArgs, ToolContext
from ava_roles.tools.files import (
    FindFiles,
    FindFilesArgs,
    ReadFile,
    ReadFileArgs,
    SearchAndRead,
    SearchAndReadArgs,
    SearchArgs,
    SearchCodebase,
)

PLURALS = re.compile(
    r"(?<![\d.,])1 (?:more |other )?"
    r"(?:bytes|characters|documents|entries|files|lines|pages|passages|rows|sheets|sources)\b"
)


@pytest.mark.parametrize(
    ("count", "one", "many", "shown"),
    [
        (0, "file", "", "0 files"),
        (1, "file", "", "1 file"),
        (2, "file", "", "2 files"),
        (2_000, "entry", "entries", "2,000 entries"),
        (1, "entry", "entries", "1 entry"),
    ],
)
def test_a_number_has_its_noun(count: int, one: str, many: str, shown: str) -> None:
    assert count_phrase(count, one, many) == shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("x")
    (folder / "old.doc").write_bytes(OLE_MAGIC + bytes(600))
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    return folder


async def test_tools_speak_of_one_file_in_the_singular(folder: Path) -> None:
    root = Root.open(folder.parent)
    at = ToolContext(files=root)
    calls: list[tuple[object, ToolArgs]] = [
        (SearchAndRead(), SearchAndReadArgs(query="x")),
        (SearchAndRead(), SearchAndReadArgs(query="zebra")),
        (SearchCodebase(), SearchArgs(query="x", glob="*.txt")),
        (SearchCodebase(), SearchArgs(query="x")),
        (FindFiles(), FindFilesArgs(pattern="a.*")),
        (ReadFile(), ReadFileArgs(path="docs/a.txt")),
        (ReadFile(), ReadFileArgs(path="")),
    ]
    said: list[str] = []
    for tool, args in calls:
        found = await tool(args, at)  # type: ignore[operator]
        said += [found.text, found.unread]
    root.close()
    assert "1 file fits best (1 searched); not searched: 1 document that cannot be read, 1 not text" in said[0]
    assert "1 line matches in 1 file (1 searched)" in said[4]
    assert [PLURALS.findall(text) for text in said] == [[]] * len(said)
