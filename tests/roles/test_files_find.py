"""Files are listed by their patterns, as git does it, without ignored ones and links."""

import time
from pathlib import Path

import pytest
from support.foreign.searched_files import find_files

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.texts.text_files import patterns
from ava_roles.tool import ToolContext


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*b", "*[!b]*[!b]*[!b]*[!b]*[!b]*b"])
async def test_a_pattern_with_stars_takes_no_longer_for_a_long_name(at: ToolContext, pattern: str) -> None:
    assert at.files is not None
    (at.files.path / ("a" * 110)).write_text("x")  # with every attempt it took seconds, and stopped the whole process
    (at.files.path / ".gitignore").write_text(f"{pattern}\n")
    began = time.monotonic()
    assert (await find_files(at, pattern)).text == "0 files match"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("*a*b*c", ["abc", "xaxbxc", "a-abcc", "d/aabbcc"], ["acb", "abcx", "a/b/c"]),
        ("src/*_*_*.py", ["src/a_b_c.py", "src/_____.py"], ["src/a_b.py", "src/x/a_b_c.py"]),
        ("report.[0-9]*.[0-9]*.[0-9]*.json", ["report.20.1.2.json", "x/report.1.1.1.1.json"], ["report.1.2.json"]),
        ("*a[!b]*c", ["axc", "abadc"], ["abc", "a/c"]),
        ("a**b*c", ["abc", "axbxc"], ["a/b/c"]),
        ("**/a/**/b*.txt", ["a/b.txt", "x/a/y/z/bc.txt"], ["b.txt", "a/x.txt"]),
    ],
)
def test_patterns_match_as_git_does(pattern: str, matches: list[str], others: list[str]) -> None:
    found = patterns(pattern)
    assert found is not None
    assert [name for name in [*matches, *others] if found.match_file(name)] == matches


def test_patterns_with_many_folders_between_are_ignored() -> None:
    assert patterns("**/a/**/a/**/b") is None and patterns("**/a/**/b/**") is not None


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["src/main.py"]),
        ("src/*", ["src/.gitignore", "src/blob.bin", "src/keep.log", "src/main.py", "src/util.ts"]),
        ("**/guide.*", ["docs/guide.md"]),
        ("*.log", ["src/keep.log"]),
        ("config", []),
        ("*.rs", []),
    ],
)
async def test_lists_files_by_pattern_and_skips_ignored_ones_and_links(
    at: ToolContext, pattern: str, names: list[str]
) -> None:
    head, *lines = (await find_files(at, pattern)).text.split("\n")
    assert [line.rpartition(" (")[0] for line in lines] == names
    assert head == ("1 file matches" if len(names) == 1 else f"{len(names)} files match")


async def test_a_long_list_of_files_is_cut_and_says_so(at: ToolContext, tmp_path: Path) -> None:
    for number in range(201):
        (tmp_path / "docs" / f"{number:03}.txt").write_text("x")
    got = await find_files(at, "*.txt")
    assert got.count == 200 and got.text.startswith("200 files match; there are more: narrow the pattern or the path")
    assert (await find_files(at, "2??.txt", path="docs")).text.split("\n") == [
        "1 file matches",
        "docs/200.txt (1 byte)",
    ]
    for wrong in ("!", "#x"):
        with pytest.raises(ToolFailed, match="cannot be used"):
            await find_files(at, wrong)
    with pytest.raises(AccessRefused):
        await find_files(at, "*", path="../x")
