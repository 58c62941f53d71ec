"""Rows of a PDF's tables get their heads where the layout of the page is clear; else each line stays as it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign.pdfs import FONT, page_of

from ava_roles.sandbox.paths import Root
from ava_roles.texts.extracted import Extracted, Wanted
from ava_roles.texts.formats import pdf_tables, read_pdf
from ava_roles.texts.reading import passages_of
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

Row = Sequence[tuple[int, str]]
"""The cells of a line: where each begins, in points from the left, and its text."""

HEADS: Row = [(72, "Zone"), (200, "Sales"), (300, "Share")]
EUR: Row = [(72, "Euro area"), (200, "9,467"), (310, "3%")]
AOA: Row = [(72, "Angola"), (200, "1,200"), (310, "4%")]
USA: Row = [(72, "United States"), (206, "812"), (304, "12%")]
EUR_SHOWN = "| Zone: Euro area | Sales: 9,467 | Share: 3% |"


def content_of(rows: Sequence[Row], matrix: str = "1 0 0 1 {x} {y}") -> bytes:
    drawn: list[str] = []
    for number, row in enumerate(rows):
        for x, text in row:
            place = matrix.format(x=x, y=720 - 14 * number)
            drawn.append(f"BT /F1 10 Tf {place} Tm ({text}) Tj ET")
    return "\n".join(drawn).encode("latin-1")


def pdf_of(rows: Sequence[Row], matrix: str = "1 0 0 1 {x} {y}") -> bytes:
    """Return a PDF of a page with these lines; an empty one is a gap."""
    return page_of(content_of(rows, matrix), "<< >>")


def read(data: bytes) -> Extracted:
    return replace(read_pdf(data), tables="words")


def shown(data: bytes) -> str:
    """Return the text of a PDF as a search shows it."""
    return "\n".join(passage.text for passage in passages_of(read(data)))


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        ([HEADS, EUR, AOA, USA], EUR_SHOWN),
        ([[(72, "Sales by zone, in millions, of all of the group")], HEADS, EUR, AOA, USA], EUR_SHOWN),
        (
            [[(200, "Gross"), (300, "Share of")], [(72, "Zone"), (200, "sales"), (300, "total")], EUR, AOA, USA],
            "| Zone: Euro area | Gross sales: 9,467 | Share of total: 3% |",
        ),
        (
            [[(200, "2023"), (300, "2022")], EUR, AOA, USA],
            "| Euro area | 2023: 9,467 | 2022: 3% |",
        ),
        (
            [HEADS[1:], [(72, "2021"), *EUR[1:]], [(72, "2022"), *AOA[1:]], [(72, "2023"), *USA[1:]]],
            "| 2022 | Sales: 1,200 | Share: 4% |",
        ),
        ([HEADS, [(72, "Europe")], EUR, AOA, [(72, "Other")], USA], "| Euro area | Sales: 9,467 | Share: 3% |"),
        ([HEADS, EUR, AOA, USA, [(72, "Source: the report that the group published in March 2023")]], EUR_SHOWN),
        ([HEADS, EUR, [*AOA[:1], *AOA[2:]], USA], "| Zone: Angola |  | Share: 4% |"),
    ],
)  # fmt: skip
def test_a_row_gets_the_heads_of_its_columns(rows: Sequence[Row], row: str) -> None:
    assert row in shown(pdf_of(rows)).split("\n")


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([EUR, AOA, USA], id="no heads"),
        pytest.param([HEADS, EUR, AOA], id="only two rows"),
        pytest.param([HEADS[:2], EUR, AOA, USA], id="a column of figures without a head"),
        pytest.param([[(72, "Zone"), (200, "Sales and also Share")], EUR, AOA, USA], id="a head above two columns"),
        pytest.param([[(72, "Zone"), (200, "EUR"), (300, "EUR")], EUR, AOA, USA], id="two columns with one head"),
        pytest.param([[(200, "Group")], HEADS, EUR, AOA, USA], id="a head above one column or more"),
        pytest.param([[(150, "Group"), (250, "Parent")], HEADS, EUR, AOA, USA], id="heads between columns"),
        pytest.param([HEADS, [(72, "A zone of which the name is long"), *EUR[1:]], AOA, USA], id="no free stripe"),
        pytest.param(
            [HEADS, *([(72, name), (200, "12 pieces"), (243, "shipped"), (310, "3%")] for name in "ABC")],
            id="figures and words too close to tell whether they are one column",
        ),
        pytest.param([HEADS, [], [], EUR, AOA, USA], id="heads too far above"),
        pytest.param([HEADS, EUR, [], [], AOA, [], [], USA], id="rows too far from each other"),
        pytest.param([HEADS, USA, AOA, EUR][::-1], id="heads below"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_clear_stays_as_it_is(rows: Sequence[Row]) -> None:
    document = read(pdf_of(rows))
    assert shown(pdf_of(rows)).split("\n") == [line.rstrip() for line in document.parts[0].text.split("\n")]


@pytest.mark.parametrize(
    "matrix", ["0 1 -1 0 {y} {x}", "0 -1 1 0 {y} {x}", "-1 0 0 -1 {x} {y}", "0.7 0.7 -0.7 0.7 {x} {y}"]
)
def test_turned_text_is_no_table(matrix: str) -> None:
    assert not read(pdf_of([HEADS, EUR, AOA, USA], matrix)).word_tables


def test_prose_in_two_columns_is_no_table() -> None:
    left = ["In the year that ended", "in March of 2023 sales", "of the group rose by 3%", "to 9,467, and those of 12"]
    right = ["Costs of staff fell by", "3% and rent by 12", "percent, in 2021 by 8", "as it did in 2022"]
    rows: list[Row] = [[(72, some), (320, others)] for some, others in zip(left, right, strict=True)]
    assert not read(pdf_of(rows)).word_tables
    prose: list[Row] = [
        [(72, f"It sold {n} pieces more than in the year before, which was {n + 2000}")] for n in range(9)
    ]
    assert not read(pdf_of(prose)).word_tables


def test_a_head_in_which_a_secret_is_hidden_is_shown_nowhere() -> None:
    heads: Row = [(72, "Zone"), (200, "hunter2"), (300, "Share")]
    document = read(pdf_of([heads, EUR, AOA, USA]))
    assert "hunter2: 9,467" in "\n".join(passage.text for passage in passages_of(document))
    hidden = [passage.text for passage in passages_of(document, lambda text: text.replace("hunter2", "[hidden]"))]
    assert "Zone [hidden] Share\nEuro area 9,467 3%" in "\n".join(hidden)
    assert "hunter2" not in "\n".join(hidden)


def test_rows_are_found_below_lines_that_the_text_leaves_out_or_adds() -> None:
    rows: list[Row] = [[(72, " ")], [(72, "A word is parted\\255")], [(72, "at its end")], [], HEADS, EUR, AOA, USA]
    assert EUR_SHOWN in shown(pdf_of(rows)).split("\n")


def test_text_from_right_to_left_is_no_table() -> None:
    names = " ".join(f"/afii576{number}" for number in range(64, 90))  # the letters of Hebrew, in the place of A to Z
    font = FONT.replace(">>", f"/Encoding << /Differences [65 {names}] >> >>")
    rows: list[Row] = [[(300, "ABC"), (200, "DEF")], [(300, "GHI"), (200, "12")], [(300, "JKL"), (200, "34")]]
    rows.append([(300, "MNO"), (200, "56")])
    resources = "/Resources << /Font << /F1 7 0 R >> >>"
    data = page_of(content_of(rows), "<< >>", font, page=resources)
    document = read(data)
    assert "\u05d2\u05d1\u05d0" in document.parts[0].text
    assert not document.word_tables


async def test_a_search_shows_the_heads_and_the_text_stays(tmp_path: Path) -> None:
    (tmp_path / "sales.pdf").write_bytes(pdf_of([HEADS, EUR, AOA, USA]))
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="Euro area sales"), ToolContext(files=root))
    page = await ReadFile()(ReadFileArgs(path="sales.pdf"), ToolContext(files=root))
    root.close()
    assert EUR_SHOWN in found.text
    assert "[page 1]\nZone Sales Share\nEuro area 9,467 3%\nAngola 1,200 4%" in page.text


def test_some_pages_of_a_document_have_no_rows_of_others() -> None:
    document = read(pdf_of([HEADS, EUR, AOA, USA]))
    assert document.word_tables
    assert not document.of_pages(Wanted(1, 1)).word_tables


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.tuples(st.integers(10, 500), st.sampled_from(["Zone", "9,467", "3%", "2023", "(4)", "n.a."]))))
)
def test_no_page_loses_a_word(rows: list[list[tuple[int, str]]]) -> None:
    table: list[Row] = [HEADS, EUR, AOA, *map(sorted, rows), USA]
    data = pdf_of(table)
    lines = read(data).parts[0].text.split()
    words = iter(shown(data).split())
    assert all(word in words for word in lines)


def test_of_a_page_full_of_words_only_some_places_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    placed = [
        f"BT /F1 4 Tf 1 0 0 1 {rng.randrange(600)} {rng.randrange(790)} Tm ({n} {n}) Tj ET" for n in range(20_000)
    ]
    data = page_of("\n".join(placed).encode(), "<< >>")
    monkeypatch.setattr(pdf_tables, "_WORDS", 50)
    asked: list[int] = []
    place_words = pdf_tables._Page._place_words

    def counted(page: pdf_tables._Page, line: int) -> list[pdf_tables._Word]:
        words = place_words(page, line)
        asked.append(len(words))
        return words

    monkeypatch.setattr(pdf_tables._Page, "_place_words", counted)
    assert not read(data).word_tables
    assert 0 < sum(asked) <= 50
