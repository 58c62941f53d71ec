"""The source of a finding opens on what the run read, with the quote marked, and says what the file is now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit.events import ToolResult
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs
from ava_roles.wrap import wrap_tool_output
from ava_server.runs.record.quotes import NormalText, check_quotes, normalize
from ava_server.runs.record.sources import ReadSources, SourcePassage, texts_of
from ava_server.runs.record.submit import Finding

NONCE = "0123456789abcdef"
LINES = "The lamp is old.\n\nIt is lit every evening,\nat dusk, by the keeper.\nNobody else may.\n\nThe end."
QUOTE = "lit every evening, at dusk"


def output(tool: str, text: str, *locations: str, success: bool = True) -> ToolResult:
    """A tool's result as it is in the log."""
    body = wrap_tool_output(text, tool=tool, nonce=NONCE)
    found = tuple({"location": location, "title": None} for location in locations)
    return ToolResult(tool=tool, success=success, output=body, call_id="c", sources=found)


def passage(finding: dict[str, Any], *results: ToolResult, verdict: str = "found") -> SourcePassage:
    found = ReadSources(enumerate(results, 10)).passage(finding, verdict, 10)
    assert found is not None
    return found


def marked(found: SourcePassage) -> str:
    return found.read.text[slice(*found.span)]


FILE = output("read_file", "a/b.md (text, 90 bytes): lines 1 to 7 of 7\n\n" + LINES, "a/b.md")
OLD = output(
    "read_file",
    "b.docx (Word document, 90 bytes): lines 1 to 7 of 7\nNot in the text: a picture\n\n" + LINES,
    "b.docx",
)
PAGES = output(
    "read_file",
    "c.pdf (PDF, 9 bytes): pages 1 to 2 of 2\n\n[page 1]\nThe lamp is lit every evening, at dawn.\n\n"
    "[page 2 (ii)]\nIt is lit every evening, at dusk.",
    "c.pdf",
)
SHEETS = output(
    "read_file",
    "d.xlsx (workbook, 9 bytes): lines 1 to 5 of 5\n\n[sheet Plan]\n|   | A | B |\n|---|---|---|\n"
    "| 3 | lit every evening, at dusk | 4 |\n| 4 | off | 5 |",
    "d.xlsx",
)
FOUND = output(
    "search_and_read",
    "2 files fit best (2 searched)\nOf 9 passages have: lamp 2\n\n## e.md\n\nlines 3 to 5:\nIt is\nlit every evening,\n"
    "at dusk\n\n## f.md\n\nline 9:\nlit every evening, at dusk",
    "e.md",
    "f.md",
)
GREP = output("search_codebase", "1 lines match in 1 files (2 searched)\n\ng.md:12: lit every evening, at dusk", "g.md")
PAGE = output(
    "read_webpages",
    "# Lamps\nURL: https://lamps.example/old\nstatus 200 · text/html · 9 chars\n\nIt is lit every evening, at dusk.",
    "https://lamps.example/old",
)
GET = output("http_get", "GET https://x.example/a: status 200\n\nlit every evening, at dusk", "https://x.example/a")
HITS = output(
    "web_search",
    "engine: 2 results\n\n1. Other\n   https://o.example/\n   nothing\n\n"
    "2. Lamps\n   https://h.example/\n   lit every evening, at dusk",
    "https://o.example/",
    "https://h.example/",
)
BACK = output("read_tool_result", "… lit every evening, at dusk", "h.md")


@pytest.mark.parametrize(
    ("result", "located"),
    [
        (FILE, "a/b.md:3"),
        (OLD, "b.docx:3"),
        (PAGES, "c.pdf, page 2 (ii)"),
        (SHEETS, "d.xlsx, sheet Plan, cell A3"),
        (FOUND, "e.md:4"),
        (GREP, "g.md:12"),
        (PAGE, "https://lamps.example/old"),
        (GET, "https://x.example/a"),
        (HITS, "https://h.example/"),
        (BACK, "h.md"),
    ],
)
def test_finds_the_place_of_a_quote_in_the_output_of_each_tool(result: ToolResult, located: str) -> None:
    found = passage({"quote": QUOTE}, result)
    assert found.located == located and not found.elsewhere
    assert normalize(marked(found)) == QUOTE
    assert "read_file" not in found.read.text and "tool_output" not in found.read.text


@pytest.mark.parametrize(
    ("quote", "place"),
    [
        ("two \\| three", "cell B4"),
        ("four", "cell C4"),
        ("one | two", "row 4"),
        ("4 | one", "row 4"),
        ("four | | 5 | five", "rows 4 to 5"),
        ("[link at C4] https://x.example/", ""),
    ],
)
def test_names_the_cell_of_a_quote_that_stands_in_one(quote: str, place: str) -> None:
    table = "[sheet Plan (hidden)]\n| 4 | one | two \\| three | four |\n| 5 | five |\n[link at C4] https://x.example/"
    result = output("read_file", f"d.xlsx (workbook, 9 bytes): lines 1 to 4 of 4\n\n{table}", "d.xlsx")
    assert passage({"quote": quote}, result).located == ", ".join(filter(None, ("d.xlsx, sheet Plan (hidden)", place)))


def test_the_head_of_a_file_that_no_text_follows_takes_no_time() -> None:
    head = "a (" * 300 + "): lines 1 to 2 of " + "1" * 400
    began = time.process_time()
    assert texts_of(1, output("read_file", head + "\n" + "x\n" * 20_000, "a"))[0].line is None
    assert time.process_time() - began < 2


HEADED = "# One\n\n## Two: *lamps*\n\n```\n# no heading\n```\n\nIt is lit every evening, at dusk."


@pytest.mark.parametrize(
    ("name", "quote", "heading"),
    [
        ("a.md", QUOTE, "Two: *lamps*"),
        ("a.DOCX", QUOTE, "Two: *lamps*"),
        ("a.py", QUOTE, ""),
        ("a.md", "Two: *lamps*", ""),
        ("a.md", "# One", ""),
    ],
)
def test_names_the_heading_above_a_quote_in_a_file_that_has_headings(name: str, quote: str, heading: str) -> None:
    result = output("read_file", f"{name} (text, 9 bytes): lines 1 to 9 of 9\n\n{HEADED}", name)
    found = passage({"quote": quote}, result)
    assert found.read.heading_of(found.span) == heading


async def test_the_line_of_a_quote_is_that_of_the_file_and_what_was_not_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n" + "first " * 1_000 + "\n\nIt is lit every evening, at dusk.\n")
    root = Root.open(tmp_path)
    for asked, missing in (
        ({}, "the end of line 3, which has 6,000 characters"),
        ({"offset": 3, "column": 3_001}, "line 3 before column 3,001"),
        ({"offset": 4}, ""),
    ):
        read = await ReadFile()(ReadFileArgs(path="a.txt", **asked), ToolContext(files=root))
        found = passage({"quote": QUOTE}, output("read_file", read.text, "a.txt"))
        assert (found.located, found.read.missing) == ("a.txt:5", missing)
    assert passage({"quote": QUOTE}, OLD).read.missing == "a picture"
    root.close()


@pytest.mark.parametrize(
    ("named", "location", "elsewhere"),
    [
        ({"source_url": "f.md"}, "f.md:9", False),
        ({"source_url": "./a/b.md"}, "a/b.md:3", False),
        ({"source_url": "/home/me/a/b.md, line 3"}, "a/b.md:3", False),
        ({"source_name": "Lamps", "source_url": "https://lamps.example/old/#dusk"}, "https://lamps.example/old", False),
        ({"source_url": "c.pdf, page 2"}, "c.pdf, page 2 (ii)", False),
        ({"source_url": "b.md"}, "a/b.md:3", True),
        ({"source_name": "My grandmother"}, "a/b.md:3", True),
    ],
)
def test_prefers_the_source_that_the_finding_names_and_says_where_else_it_is(
    named: dict[str, str], location: str, elsewhere: bool
) -> None:
    found = passage({"quote": QUOTE, **named}, FOUND, FILE, PAGES, PAGE, HITS)
    assert (found.located, found.elsewhere) == (location, elsewhere)


def test_of_ten_findings_of_one_file_each_opens_at_its_own_line() -> None:
    lines = [f"{number}. Total: five lamps" if number % 10 == 0 else "-" for number in range(1, 101)]
    result = output("read_file", "t.md (text, 9 bytes): lines 1 to 100 of 100\n\n" + "\n".join(lines), "t.md")
    for number in range(10, 101, 10):
        finding = {"quote": "Total: five lamps", "source_url": f"t.md:{number}"}
        assert passage(finding, result).located == f"t.md:{number}"


def test_a_quote_over_two_pages_and_one_that_is_only_near_are_marked() -> None:
    across = passage({"quote": "at dawn. [page 2 (ii)] It is lit", "source_url": "c.pdf"}, PAGES)
    assert across.located == "c.pdf" and marked(across) == "at dawn.\n\n[page 2 (ii)]\nIt is lit"
    near = passage({"quote": "It is lit each evening, at dusk, by the keeper"}, FILE, verdict="near")
    assert near.located == "a/b.md:3" and marked(near) == "It is lit every evening,\nat dusk, by the keeper"


def test_without_a_quote_it_opens_where_the_finding_points_and_nothing_of_another_source() -> None:
    found = passage({"source_url": "a/b.md:5"}, FOUND, FILE, verdict="")
    assert found.read.text[found.span.start :].startswith("Nobody") and marked(found) == ""
    assert ReadSources([(1, FILE)]).passage({"source_url": "z.md", "quote": "x"}, "not_found") is None
    assert ReadSources([(1, FILE.model_copy(update={"success": False}))]).passage({"source_url": "a/b.md"}, "") is None


@given(st.text(alphabet=st.sampled_from("aB ﬁ…\n\t`“é\u0301\u00a0\u2003´㎏&lt;①<𝒳"), max_size=60), st.data())
def test_every_piece_of_a_normalized_text_is_found_again_in_the_text_itself(text: str, data: st.DataObject) -> None:
    normal = NormalText(text)
    assert " ".join(word for _start, word, _span in normal._words) == normal.text == normalize(text)
    if not normal.text:
        return
    start = data.draw(st.integers(0, len(normal.text) - 1))
    end = data.draw(st.integers(start + 1, len(normal.text)))
    span = normal.original(start, end)
    assert normal.text[start:end].strip() in normalize(text[slice(*span)])


@pytest.mark.parametrize(
    ("quote", "place"),
    [
        ("| 2 | Zone: EUR | Sales: 9,467 |", "row 2"),
        ("Sales: 9,467", "cell B2"),
        ("| 2 | EUR | 9,467 |", "row 2"),
        ("| 1 | Zone | Sales |", "row 1"),
    ],
)
@pytest.mark.parametrize("kind", ["workbook", "OpenDocument spreadsheet"])
def test_a_row_of_a_sheet_is_found_as_it_was_read_and_with_its_heads(kind: str, quote: str, place: str) -> None:
    table = "[sheet Sheet1]\n|  | A | B |\n|---|---|---|\n| 1 | Zone | Sales |\n| 2 | EUR | 9,467 |\n| 3 | AOA | 8 |"
    result = output("read_file", f"d.xlsx ({kind}, 9 bytes): lines 1 to 6 of 6\n\n{table}", "d.xlsx")
    [verdict] = check_quotes([Finding(claim="c", quote=quote)], [(10, result)])
    assert verdict == {"finding": 1, "verdict": "found", "event": 10}
    assert passage({"quote": quote}, result).located == f"d.xlsx, sheet Sheet1, {place}"


@pytest.mark.parametrize("quote", ["| 2 | Zone: EUR | Costs: 9,467 |", "| 2 | Sales: EUR | Zone: 9,467 |"])
def test_a_row_with_other_heads_is_not_found(quote: str) -> None:
    table = "[sheet Sheet1]\n| 1 | Zone | Sales |\n| 2 | EUR | 9,467 |\n| 3 | AOA | 8 |"
    result = output("read_file", f"d.xlsx (workbook, 9 bytes): lines 1 to 4 of 4\n\n{table}", "d.xlsx")
    [verdict] = check_quotes([Finding(claim="c", quote=quote)], [(10, result)])
    assert verdict["verdict"] == "not_found"


# -- from a real run to the browser and the terminal -------------------------------------------------------------------
