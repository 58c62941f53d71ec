"""The source of a finding opens on what the run read, with the quote marked, and says what the file is now."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_server import Say
from support.runtime import Lab, open_lab, submit
from support.terminal import ava, run_on_terminal

from ava_audit.events import ToolResult, Who
from ava_audit.retention import erase_run
from ava_roles.sandbox.paths import Root, folder_identity
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs
from ava_roles.wrap import clean, wrap_tool_output
from ava_server.cli.terminal import cells
from ava_server.core.data_root import os_user
from ava_server.core.errors import BadInput, Refused
from ava_server.render.host_text import run_text
from ava_server.render.responses import RunAnswer
from ava_server.runs.quotes import NormalText, normalize
from ava_server.runs.sources import ReadSources, ReadText, SourcePassage, texts_of
from ava_server.service import sources
from ava_server.service.sources import OpenedSource, open_source

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


# -- from a real run to the browser and the terminal -------------------------------------------------------------------

NAME = "böse \u202e[31m<b>name&'.md"
EVIL = '<script>alert(1)</script> <img src="https://evil.example/x.png"> [a](https://evil.example) \x1b[31mred\x1b[0m'
TEXT = f"First line.\n{EVIL} \u202egnirts\nThe lamp is lit at dusk.\nLast line.\n"
SECRET = "sk-ant-api03-" + "Zq7Xw9" * 12
FINDINGS = [
    {"claim": "At dusk", "quote": "The lamp is lit at dusk.", "source_name": "the lamp book"},
    {"claim": "At dawn", "quote": "The lamp is lit at dawn, they say.", "source_url": "lamp.md"},
    {"claim": "Nothing quoted", "source_url": "lamp.md:4"},
    {"claim": "Nobody read it", "quote": "A text that nobody has read", "source_url": "other.md"},
    {"claim": "With a secret", "quote": "the harbour is closed", "source_url": "keys.md"},
    {"claim": "In a file with a name", "quote": "a name of its own", "source_url": NAME},
]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    reads = [("read_file", {"path": path}) for path in ("lamp.md", "keys.md", NAME)]
    async with open_lab(tmp_path, [Say(calls=reads), submit(findings=FINDINGS)], check=False) as lab:
        (lab.workspace / "lamp.md").write_text(TEXT)
        (lab.workspace / "keys.md").write_text(f"key = {SECRET}\nthe harbour is closed\n")
        (lab.workspace / NAME).write_text("# Names\n\na name of its own\n")
        yield lab


async def ended(lab: Lab) -> str:
    run_id = await lab.start()
    await lab.ended(run_id)
    return run_id


async def opened(lab: Lab, run_id: str, number: int) -> OpenedSource:
    return await open_source(lab.store, run_id, number, lab.runtime.settings, lab.runtime.user)


@pytest.mark.requirement("N-08")
async def test_each_source_opens_on_what_was_read_and_says_what_the_file_is_now(lab: Lab) -> None:
    run_id, file = await ended(lab), lab.workspace / "lamp.md"
    first = await opened(lab, run_id, 1)
    assert (first.location, first.place, first.marked) == ("lamp.md", "line 3", "The lamp is lit at dusk.")
    assert first.before.startswith("First line.\n<script>") and first.after == "\nLast line."
    assert first.note == sources.ELSEWHERE, "it names a book, and the quote stands in a file"
    assert (first.now, first.now_words) == ("same", sources.SAME)
    near, without, unread, secret, named = [await opened(lab, run_id, number) for number in range(2, 7)]
    assert near.verdict in ("near", "not_found") and near.location == "lamp.md"
    assert without.note == sources.NO_QUOTE and without.after == "Last line." and without.place == "lines 1 to 4"
    assert unread.note == sources.NOTHING and not unread.has_text
    assert secret.marked == "the harbour is closed" and SECRET not in secret.before
    assert (secret.now, secret.now_words) == ("unknown", sources.NOT_KEPT), "a hash would let it be guessed"
    assert (named.marked, named.place) == ("a name of its own", 'line 3, under "Names"')
    assert "\u202e" not in named.location and named.now == "unknown"
    results = await lab.facts(run_id, ToolResult)
    hashed = {each.sources[0]["location"] for each in results if each.sources and each.sources[0].get("sha256")}
    assert hashed == {"lamp.md"}

    file.write_text(TEXT.replace("dusk", "noon"))
    changed = await opened(lab, run_id, 1)
    assert (changed.now, changed.marked) == ("changed", "The lamp is lit at dusk."), "what was read is shown"
    file.write_text(TEXT)
    assert (await opened(lab, run_id, 1)).now == "same", "what counts is what is in it"
    file.unlink()
    assert (await opened(lab, run_id, 1)).now == "gone"
    file.symlink_to("/etc/hostname")
    assert (await opened(lab, run_id, 1)).now_words.startswith("The file cannot be looked at here: ")
    run, read = await lab.run(run_id), ReadText(1, "read_file", "lamp.md", "", "0" * 64, "", 1, TEXT)
    for changes, why in (
        ({"origin": "another"}, "its folder is on another machine"),
        ({"workspace": str(lab.root)}, "its folder is no longer allowed"),
        ({"workspace": None}, "the run had no folder"),
        ({"workspace": 7}, "a newer Ava proposed the run"),
    ):
        config = json.dumps({**json.loads(run.config), "workspace_identity": folder_identity(lab.root), **changes})
        now = sources._compare_file(lab.runtime.settings, replace(run, config=config), read, lab.runtime.user)
        assert now == ("unknown", sources._not_here(why))
    lab.workspace.rename(lab.workspace.with_name("moved"))
    assert (await opened(lab, run_id, 1)).now_words == sources._not_here("its folder cannot be opened")
    lab.workspace.mkdir()
    (lab.workspace / "lamp.md").write_text(TEXT)
    replaced = await opened(lab, run_id, 1)
    assert (replaced.now, replaced.marked) == ("unknown", first.marked) and "another folder" in replaced.now_words


@pytest.mark.requirement("N-08")
async def test_the_host_is_told_the_file_and_line_of_each_quote_inside_the_marks(lab: Lab) -> None:
    run_id = await ended(lab)
    answer = await lab.call("check_subagent", subagent_id=run_id)
    run = RunAnswer.model_validate(answer.runs[0].model_dump())
    told = run_text(run).partition("</subagent_result>")[0]
    assert "│    source: the lamp book\n│    quote found in: lamp.md:3\n" in told
    assert "│    quote found in: keys.md:2\n" in told and "found in: other.md" not in told
    assert "found in" not in run_text(run).partition("</subagent_result>")[2]


async def test_an_erased_run_an_unknown_number_and_an_unended_run_are_refused_in_words(lab: Lab) -> None:
    run_id = await ended(lab)
    for number in (0, 7, 10**17):
        with pytest.raises(BadInput, match="has 6 sources; there is no source"):
            await opened(lab, run_id, number)
    with pytest.raises(Refused, match="has no result, so it has no sources"):
        await opened(lab, (await lab.propose()).subagent_id, 1)
    assert "dusk" in ava(lab.root, "show", run_id, "--source", "1").stdout
    await erase_run(lab.store, run_id, (), Who("s", "ava", os_user()), "asked")
    with pytest.raises(Refused, match="was erased, and what it read with it; what it cost stays"):
        await opened(lab, run_id, 1)
    gone = ava(lab.root, "show", run_id, "--source", "1")
    assert gone.returncode and "was erased" in gone.stderr and "dusk" not in gone.stdout + gone.stderr


async def test_a_terminal_shows_it_as_plain_text_with_bars_within_its_columns(lab: Lab) -> None:
    run_id = await ended(lab)
    piped = ava(lab.root, "show", run_id, "--source", "1")
    assert piped.returncode == 0, piped.stderr
    assert "3 ┃ The lamp is lit at dusk.\n" in piped.stdout and "4 │ Last line.\n" in piped.stdout
    assert "\x1b" not in piped.stdout and "\u202e" not in piped.stdout and sources.SAME in piped.stdout
    told = json.loads(ava(lab.root, "show", run_id, "--source", "1", "--json").stdout)
    assert (told["marked"], told["now"], told["line"]) == ("The lamp is lit at dusk.", "same", 1)
    both = ava(lab.root, "show", run_id, "--source", "1", "--cost")
    assert both.returncode == 2 and "--cost and --source are 2 screens" in both.stderr
    with run_on_terminal(lab.root, "show", run_id, "--source", "1", columns=60) as screen:
        assert screen.ended() == 0
        assert "\x1b[33m\x1b[1mThe lamp is lit at dusk.\x1b[0m" in screen.text, "the quote stands out"
        assert "\x1b[31m" not in screen.text and "\u202e" not in screen.text
        ours = screen.text.partition("source 1 of 6")[2]  # the name of the data root above may be longer
        assert all(cells(clean(line)[0]) <= 60 for line in ours.splitlines())
        assert any(line.startswith("  │ ") or line.startswith("2 │ <script>") for line in screen.lines)
    result = ava(lab.root, "show", run_id).stdout
    assert f"`ava show {run_id} --source 1`" in result and "quote found in: lamp.md:3" in result
