"""Rows of a page's tables get the heads that the page names; where a column is not certain, they stay as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_roles.sandbox.paths import Root
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.table_rows import HeadRoom, with_heads
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs

HEADS = "<tr><th>Zone</th><th>Sales</th><th>Share</th></tr>"
EUR = "<tr><td>EUR</td><td>9,467</td><td>3%</td></tr>"
AOA = "<tr><td>AOA</td><td>1,200</td><td>4%</td></tr>"
EUR_SHOWN = "| Zone: EUR | Sales: 9,467 | Share: 3% |"


def shown(page: str) -> str:
    """Return the text of a page as a search shows it, each word in the line of its source."""
    return with_heads(read_page_text(page, keep_lines=True, mark_tables=True).text, "marks", "", HeadRoom())


def shown_as_markdown(page: str) -> str:
    """Return the text of a page in a book or an email as a search shows it."""
    return with_heads(read_page_text(page, mark_tables=True).text, "bars", "", HeadRoom())


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        (HEADS + EUR + AOA, EUR_SHOWN),
        (f"<thead>{HEADS.replace('th>', 'td>')}</thead><tbody>{EUR}</tbody>", EUR_SHOWN),
        ("<tr><td>Zone<td>Sales<tr><td>EUR<td>9,467<tr><td>AOA<td>8", "| Zone: EUR | Sales: 9,467 |"),
        ("<tr><th>Name<th>Town<tr><td>Ann<td>Ulm", "| Name: Ann | Town: Ulm |"),
        (HEADS + EUR.replace("<td>EUR</td>", "<th>EUR</th>"), EUR_SHOWN),
        (
            "<tr><th rowspan=2>Zone<th colspan=2>2023<tr><th>Sales<th>Share" + EUR,
            "| Zone: EUR | 2023 / Sales: 9,467 | 2023 / Share: 3% |",
        ),
        (
            f"{HEADS}<tr><td rowspan=2>EUR<td>1<td>2<tr><td>3<td>4</tr>",
            "| Zone: EUR | Sales: 3 | Share: 4 |",
        ),
        (f"{HEADS}<tr><td colspan=2>EUR<td>3%</tr>", "| Zone: EUR |  | Share: 3% |"),
        (f"{HEADS}<tr><td rowspan=2 colspan=2>EUR<td>1<tr><td>3%</tr>", "| Zone: EUR |  | Share: 3% |"),
        (f"{HEADS}<tr><td><p>EUR</p><p>or more</p><td>9 | 8<td></tr>", "| Zone: EUR or more | Sales: 9 \\| 8 |  |"),
        (f"{HEADS}{EUR}<tr><th>Town<th>Costs<th>Tax</th></tr>{AOA}", "| Town: AOA | Costs: 1,200 | Tax: 4% |"),
        (f"{HEADS}{EUR}<tfoot>{HEADS}</tfoot>", EUR_SHOWN),
    ],
)  # fmt: skip
def test_a_row_gets_the_heads_of_its_columns(rows: str, row: str) -> None:
    page = f"<p>above</p><table>{rows}</table><p>below</p>"
    assert row in shown(page)
    assert row in shown_as_markdown(page).split("\n")


@pytest.mark.parametrize(
    "table",
    [
        f"<table role=presentation>{HEADS}{EUR}</table>",
        f"<table>{HEADS}<tr><td>EUR<td><table><tr><td>9</table><td>3%</table>",
        "<table><tr><th>Name<td>Ann<tr><th>Employees<td>12<tr><th>Town<td>Ulm</table>",
        "<table><tr><th>Zone<th>Sales</table>",
        "<table><tr><td>EUR<td>9<tr><td>AOA<td>8</table>",
        f"<table>{HEADS}<tr><td hidden>EUR<td>9<td>3%</table>",
        f"<table>{HEADS}<tr><td rowspan=2>{'long ' * 30}<td>9<td>3%<tr><td>8<td>4%</table>",
        f"<table>{HEADS}<tr><td rowspan=0>EUR<td>9<td>3%<tr><td>8<td>4%</table>",
        f"<table>{HEADS}<tr><td>EUR<td><pre>a\nb</pre><td>3%</table>",
        f"<table>{HEADS}<tr><td>{'long ' * 600}<td>9<td>3%</table>",
        f"<table>{HEADS}<td>EUR<td>9<td>3%</table>",
        "<table>" + "<thead>" + HEADS * 5 + "</thead>" + EUR + "</table>",
        "<table><thead>" + HEADS + EUR + "</thead></table>",
        f"<table>{HEADS}<tr>stray<td>EUR<td>9<td>3%</table>",
        f"<table>{HEADS}<tr><p>stray</p><td>EUR<td>9<td>3%</table>",
        f"<table>{HEADS}<tr><img alt=stray><td>EUR<td>9<td>3%</table>",
        f"<table>{HEADS}{EUR}stray{AOA}</table>",
        f"<table>{HEADS}<tr><td>EUR<td>9<td>3%</td>stray</tr></table>",
        f"<table>{HEADS}{EUR}<caption>stray</caption>{AOA}</table>",
        f"<table>stray{HEADS}{EUR}</table>",
        f"<table><caption>Sales</caption>stray{HEADS}{EUR}</table>",
    ],
)
def test_a_table_without_certain_heads_stays_as_it_is(table: str) -> None:
    assert shown(table) == read_page_text(table, keep_lines=True).text
    text = shown_as_markdown(table)
    assert "Zone: " not in text and "Sales: " not in text and "Name: " not in text
    assert ("stray" in text) == ("stray" in table)


@pytest.mark.parametrize(
    ("above", "title"),
    [
        ("<caption>Sales in <b>2023</b></caption>", "Sales in 2023 · "),
        ("<tr><td colspan=3>In 2023</td></tr>", "In 2023 · "),
        ("<caption>Sales</caption><tr><th colspan=3>In 2023</th></tr>", "Sales · In 2023 · "),
        (f"<caption>{'long ' * 60}</caption>", f"{('long ' * 12)[:59]}… · "),
        ("<caption> </caption>", ""),
    ],
)
def test_a_row_has_the_title_of_its_table(above: str, title: str) -> None:
    row = f"| {title}Zone: EUR | Sales: 9,467 | Share: 3% |"
    assert row in shown(f"<p>before</p><table>\n{above}\n{HEADS}\n{EUR}</table>").split("\n")
    assert row in shown(f"<table>\n{above}\n{HEADS}\n{EUR}</table><table>{HEADS}{AOA}</table>")
    assert EUR_SHOWN in shown(f"<table>{above}{HEADS}{AOA}</table><table>\n{HEADS}\n{EUR}</table>").split("\n")


def test_a_table_in_a_table_for_layout_has_its_heads() -> None:
    page = f"<table><tr><td>menu<td><table>{HEADS}{EUR}</table></table>"
    assert EUR_SHOWN in shown(page)
    assert EUR_SHOWN in shown_as_markdown(page).split("\n")


def test_two_tables_beside_each_other_have_their_own_heads() -> None:
    towns = "<tr><td>Town<td>Costs<tr><td>Ulm<td>7<tr><td>Bonn<td>8"
    for page in (f"<table>{HEADS}{EUR}</table><table>{towns}</table>", f"<table>{towns}</table><table>{HEADS}{EUR}"):
        for text in (shown(page), shown_as_markdown(page)):
            assert EUR_SHOWN in text and "| Town: Ulm | Costs: 7 |" in text


@pytest.mark.parametrize(
    "table",
    [
        "<table><tr><td>Menu<td>Welcome<tr><td>News<td><p>one</p><p>two</p></table>",
        "<table><tr><td>Menu<td>Welcome<tr><td>News<td>one<br>two</table>",
        f"<table><tr><td>Menu<td>Welcome<tr><td>News<td>{'long ' * 100}</table>",
    ],
)
def test_a_table_for_the_layout_of_a_page_keeps_its_lines(table: str) -> None:
    assert shown(table) == read_page_text(table, keep_lines=True).text
    assert shown_as_markdown(table) == read_page_text(table).text


def test_a_cell_above_an_empty_row_is_no_title_of_a_table_without_heads() -> None:
    table = "<table><tr><td>Welcome<tr><td></td><td></td><tr><td>menu<td>content<tr><td>a<td>b</table>"
    assert shown(table) == read_page_text(table, keep_lines=True).text
    assert "Welcome ·" not in shown_as_markdown(table)


def test_a_row_on_several_lines_stands_in_the_line_in_which_it_begins() -> None:
    page = f"<table>\n{HEADS}\n<tr>\n<td>EUR</td>\n<td>9,467</td>\n<td>3%</td>\n</tr>\n</table>\n<p>below</p>"
    lines = shown(page).split("\n")
    assert lines[3:] == [EUR_SHOWN, "", "", "", "", " below"]
    assert [page.split("\n").index("<td>EUR</td>"), page.split("\n").index("<p>below</p>")] == [3, 8]


async def test_a_search_names_the_lines_of_the_page_in_which_a_row_is(tmp_path: Path) -> None:
    rows = "\n".join(f"<tr>\n<td>Z{number}</td>\n<td>{number}</td>\n</tr>" for number in range(300))
    page = f"<table>\n<tr><th>Zone</th><th>Sales</th></tr>\n{rows}\n</table>\n"
    (tmp_path / "a.html").write_text(page)
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="Z217"), ToolContext(files=root))
    root.close()
    place = re.search(r"lines (\d+) to \d+:\n", found.text)
    assert place is not None
    passage = found.text[place.end() :].split("\n")
    row = passage.index("| Zone: Z217 | Sales: 217 |")
    assert page.split("\n")[int(place[1]) + row - 1] == "<td>Z217</td>"


# -- attacks ----------------------------------------------------------------------------------------------------------

MARKS = "".join(map(chr, range(0xFDD0, 0xFDD6)))
PIECES = [
    *("<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<th>", "<thead>", "</thead>", "<tbody>", "<pre>"),
    *("<td colspan=3>", "<td rowspan=2>", "<th rowspan=2 colspan=2>", "<td colspan=99999>", "<td rowspan=99999>"),
    *("<td hidden>", "<tr hidden>", "<template>", "</template>", "<caption>", "<iframe srcdoc='&lt;table>&lt;td>a'>"),
    *("Zone", "12", "stray", "a | b", "\\|", "\n", " ", "<p>", "<br>", "|---|", "|:--|:--|"),
    *(*MARKS, "&#xfdd1;", "&#xFDD3;"),
    *(HEADS, EUR, AOA),
]
NO_WORDS = re.compile(r"[\s|\\]+")


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_no_page_loses_a_word_or_a_line_or_keeps_a_mark(page: str) -> None:
    plain = read_page_text(page, keep_lines=True).text
    found = shown(page)
    assert found.count("\n") == plain.count("\n") == page.count("\n")
    markdown = shown_as_markdown(page)
    assert not set(MARKS) & {*plain, *found, *markdown, *read_page_text(page).text}
    for text in (found, markdown):
        for old in NO_WORDS.split(plain):
            assert old in text


@pytest.mark.parametrize(
    "page",
    [
        "<table>" + "<tr><td rowspan=60000>abcdef" * 1_000,
        "<table><tr>" + "<td rowspan=60000></td>" * 50 + "<tr>" * 1_000,
        "<table>" + "<tr><td colspan=200>a" * 1_000,
        "<table>" + "<tr><th colspan=99999>a" * 1_000,
        "<table><tr><td>" * 1_000,
        f"<table>{HEADS}" + EUR * 1_000,
        f"<table>{HEADS}{EUR}</table>" * 1_000,
        f"<table><tr>{'<th>' + 'h' * 10_000}<th>b{EUR * 1_000}</table>",
    ],
    ids=["down", "empty", "wide", "wider", "nested", "long", "many", "heads"],
)
def test_a_hostile_page_gets_no_much_longer_text(page: str) -> None:
    assert len(read_page_text(page, keep_lines=True, mark_tables=True).text) <= 3 * len(page)
    assert len(read_page_text(page, mark_tables=True).text) <= 3 * len(page)
    assert len(shown(page)) <= 3 * len(page)
