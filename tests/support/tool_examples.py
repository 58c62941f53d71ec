"""One row for each tool that a subagent can have: what the tests of all rooms must know of it.

A new tool needs a row here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from support.foreign.documents import unicode_pdf
from support.foreign.injections import (
    Way,
    attack_text,
    csv_file,
    docx_file,
    hit,
    html_page,
    listing,
    mark,
    pattern,
    pdf_page,
    plain_page,
    text_file,
    xlsx_file,
)
from support.network.web_site import Page

HERE = "tests/support/tool_examples.py: EXAMPLES"
HOST = "docs.example.com"
PRICES = f"http://{HOST}/prices"
QUOTE = "Otter charges twelve cents a minute for transcription."
LONG = "/".join(f"part-{number}" for number in range(20))

FILES = ("web_crawler", "data_extractor", "researcher", "code_reviewer", "coder", "custom")
PAGES = ("web_crawler", "data_extractor", "researcher", "custom")
_Calls = tuple[tuple[Mapping[str, Any], str], ...]


@dataclass(frozen=True)
class ToolExample:
    """What tests know of a tool, and state a second time on purpose."""

    flags: str  # the flags of its spec that are set, without `default`: all that it can reach or change
    call: Mapping[str, Any]  # arguments with which it succeeds in `tests/server/test_event_coverage.py`
    says: _Calls  # arguments, and the sentence of its activity
    # How text of others reaches the model through it, by a label, for `tests/server/runs/turn/test_injections.py`.
    brings: Mapping[str, Way] | Literal["nothing of others", "tried in its own tests"]
    roles: tuple[str, ...] = ()  # the built-in roles that name it
    # What a built-in role calls it with in `tests/server/test_builtin_roles.py`, and what it must be shown.
    work: _Calls = ()


EXAMPLES: Mapping[str, ToolExample] = {
    "read_file": ToolExample(
        flags="read_only files",
        call={"path": "a.md"},
        brings={
            "text": Way(lambda at, n: {"path": text_file(at, n)}),
            "PDF": Way(lambda at, n: {"path": at.file(f"a{n:02}.pdf", unicode_pdf(attack_text(n).split("\n")))}),
            "DOCX": Way(lambda at, n: {"path": at.file(f"a{n:02}.docx", docx_file(n))}),
            "XLSX": Way(lambda at, n: {"path": at.file(f"a{n:02}.xlsx", xlsx_file(n))}),
            "CSV": Way(lambda at, n: {"path": at.file(f"a{n:02}.csv", csv_file(n))}),
            "names of files": Way(listing, counted="not"),
        },
        says=(
            ({"path": "docs/prices.md"}, "Reading docs/prices.md"),
            ({"path": "a\x1b[31m\nb\u202ec"}, "Reading a\ufffd[31m\ufffdb\ufffdc"),
            ({"path": LONG}, f"Reading {LONG}"[:79] + "…"),
        ),
        roles=FILES,
        work=(({"path": "prices.csv"}, "Otter"), ({"path": "long.txt"}, "line 17")),
    ),
    "find_files": ToolExample(
        flags="read_only files",
        call={"pattern": "*.md"},
        brings={"": Way(pattern, counted="not")},
        says=(({"pattern": "src/**/*.ts"}, "Looking for files src/**/*.ts"),),
        roles=FILES,
        work=(({"pattern": "*.csv"}, "prices.csv ("),),
    ),
    "search_codebase": ToolExample(
        flags="read_only files",
        call={"query": "twelve"},
        brings={"": Way(lambda at, n: {"query": mark(n), "path": text_file(at, n)})},
        says=(
            ({"query": "def  main\n("}, "Searching for def main ("),
            ({"query": "x" * 500}, "Searching for " + "x" * 65 + "…"),
        ),
        roles=FILES,
        work=(({"query": "def add"}, "adding.py"),),
    ),
    "search_and_read": ToolExample(
        flags="read_only files",
        call={"query": "twelve cents"},
        brings={"": Way(lambda at, n: {"query": mark(n), "max_files": 1, "_": text_file(at, n)})},
        says=(({"query": "What does it cost?"}, "Looking for What does it cost?"),),
        roles=FILES,
        work=(({"query": "assertEqual"}, "self.assertEqual(add(1, 2), 3)"),),
    ),
    "web_search": ToolExample(
        flags="read_only network search",
        call={"query": "what otters charge"},
        brings={"": Way(hit)},
        says=(({"query": "what  does\nit cost?"}, "Searching the web for what does it cost?"),),
        roles=("web_crawler", "researcher", "custom"),
        work=(({"query": "podcast transcription prices"}, PRICES),),
    ),
    "read_webpages": ToolExample(
        flags="read_only network",
        call={"urls": [PRICES]},
        brings={
            "text": Way(lambda at, n: {"urls": [at.page(n, plain_page(n))]}, counted="exactly"),
            "HTML": Way(lambda at, n: {"urls": [at.page(n, html_page(n))]}, counted="not"),
            "PDF": Way(lambda at, n: {"urls": [at.page(n, pdf_page(n))]}),
        },
        says=(
            ({"urls": ["https://example.org/pricing?plan=1#top"]}, "Reading example.org/pricing"),
            ({"urls": ["https://example.org:8443/"]}, "Reading example.org"),
            ({"urls": ["https://a.org/x", "b.org/y", "c"]}, "Reading a.org/x and 2 more"),
            ({"urls": [f"https://a.org/{LONG}", "b"]}, f"Reading 2 pages, first a.org/{LONG}"[:79] + "…"),
            ({"urls": ["http://["]}, "Reading a page"),
        ),
        roles=PAGES,
        work=(
            ({"urls": [PRICES, f"http://{HOST}/list.pdf"]}, QUOTE),
            ({"urls": [f"http://{HOST}/private"]}, "robots.txt"),
        ),
    ),
    "http_get": ToolExample(
        flags="read_only network",
        call={"url": PRICES},
        brings={
            "": Way(lambda at, n: {"url": at.page(n, plain_page(n))}, counted="exactly"),
            "an error": Way(
                lambda at, n: {"url": at.page(n, Page(attack_text(n), 500, "text/plain"))}, counted="exactly"
            ),
        },
        says=(
            ({"url": "https://user:pass@example.org/feed.xml?key=abc"}, "Reading example.org/feed.xml"),
            ({"url": "http:\\\\user:pass@example.org/feed.xml"}, "Reading example.org/feed.xml"),
            ({"url": "user:pass@example.org/feed.xml"}, "Reading example.org/feed.xml"),
            ({"url": "//user:p@ss@example.org"}, "Reading example.org"),
            (
                {
                    "url": "https://example.org/{{secret:KEY}}",
                    "headers": {"Authorization": "Bearer {{secret:KEY}}"},
                },
                "Reading example.org/{{secret:KEY}}",
            ),
        ),
        roles=("web_crawler", "data_extractor"),
        work=(({"url": f"http://{HOST}/feed.json"}, '{"minute": 12}'),),
    ),
    "edit_file": ToolExample(
        flags="files edits writes",
        call={"path": "b.md", "old": "twelve", "new": "thirteen"},
        brings="tried in its own tests",
        says=(
            ({"path": "src/a.py", "old": "never shown", "new": "neither"}, "Editing src/a.py"),
            ({"path": "a\x1b[31m\nb\u202ec", "old": "x", "new": "y"}, "Editing a\ufffd[31m\ufffdb\ufffdc"),
        ),
        roles=("coder",),
    ),
    "write_file": ToolExample(
        flags="files edits writes",
        call={"path": "c.md", "content": "thirteen"},
        brings="nothing of others",
        says=(({"path": LONG, "content": "never shown"}, f"Writing {LONG}"[:79] + "…"),),
        roles=("coder",),
    ),
    "run_bash": ToolExample(
        flags="files commands",
        call={"command": "cat a.md"},
        brings={"": Way(lambda at, n: {"command": f"cat {text_file(at, n)}"})},
        says=(
            ({"command": "\n  pytest -q\necho done"}, "Running pytest -q"),
            ({"command": "x" * 200}, "Running " + "x" * 71 + "…"),
        ),
        roles=("code_reviewer", "coder"),
        work=(({"command": "python3 -m unittest -q 2>&1 && echo changed > adding.py"}, "Ran 1 test"),),
    ),
    "python_exec": ToolExample(
        flags="commands",
        call={"code": "print(12)"},
        brings={"": Way(lambda at, n: {"code": f"print(open({text_file(at, n)!r}, encoding='utf-8').read())"})},
        says=(({"code": "import os\nprint(1)"}, "Running Python: import os"),),
        roles=("web_crawler", "data_extractor", "code_reviewer", "coder"),
        work=(
            (
                {"code": "import csv\nprint(sum(int(row['cents']) for row in csv.DictReader(open('prices.csv'))))"},
                "42",
            ),
        ),
    ),
    "save_artifact": ToolExample(
        flags="artifacts writes common",
        call={"name": "prices.csv", "content": "otter,12"},
        brings="nothing of others",
        says=(({"name": "prices.csv", "content": "never shown"}, "Saving prices.csv"),),
        work=(({"name": "prices.csv", "content": "Otter,12\n"}, "saved prices.csv"),),
    ),
    "recall": ToolExample(
        flags="read_only memory common",
        call={"query": "twelve"},
        brings={
            "a note": Way(lambda at, n: {"name": at.note(n)}),
            "passages": Way(lambda at, n: {"query": mark(n), "_": at.note(n)}),
        },
        says=(
            ({"query": "What does it cost?"}, "Looking in memory for What does it cost?"),
            ({"name": "prices\x1b[31m"}, "Recalling prices\ufffd[31m"),
            ({}, "Looking at what is in memory"),
        ),
        work=(({"query": "budget"}, "The budget is nine cents."),),
    ),
    "scratchpad": ToolExample(
        flags="read_only common",
        call={"note": "twelve"},
        brings="nothing of others",
        says=(({"note": "never shown"}, "Taking a note"), ({}, "Reading its notes")),
        work=(({"note": "twelve cents"}, "twelve cents"),),
    ),
    "ask": ToolExample(
        flags="read_only common",
        call={"question": "Whose prices?", "options": ["Otter's"]},
        brings="nothing of others",
        says=(({"question": "In which currency?\nEuro?", "options": ["EUR"]}, "Asking: In which currency? Euro?"),),
        work=(({"question": "Which prices?"}, "Nobody has answered."),),
    ),
    "read_tool_result": ToolExample(
        flags="read_only common",
        call={"id": "R-{sha}"},
        brings="tried in its own tests",
        says=(({"id": "R-12"}, "Reading an earlier result again"),),
        work=(({"id": "R-0"}, "the latest are R-"), ({"id": "R-{latest}"}, "<tool_output_")),
    ),
    "read_skill": ToolExample(
        flags="read_only",
        call={"name": "prices"},
        brings="tried in its own tests",
        says=(({"name": "pri\x1b[31mces", "file": "never shown"}, "Reading the skill pri\ufffd[31mces"),),
    ),
    "read_subagent_result": ToolExample(
        flags="read_only results common",
        call={"id": "S-{earlier}"},
        brings="tried in its own tests",
        says=(({"id": "S-7f3a2b"}, "Reading the result of an earlier subagent"),),
        work=(({"id": "{earlier}"}, "thirty cents"),),
    ),
}


def example_of(tool: str) -> ToolExample:
    """Return the row of a tool; fails with what to add."""
    must_list(HERE, EXAMPLES, [tool])
    return EXAMPLES[tool]


def must_list(table: str, listed: Iterable[str], names: Iterable[str], kind: str = "tool") -> None:
    """Fail with the table and the missing names, unless a table lists all of these tools (or what else `kind` says)."""
    listed = set(listed)
    missing = [name for name in names if name not in listed]
    assert not missing, f"{table} must list the {kind} {', '.join(missing)}"
