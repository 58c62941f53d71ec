"""A subagent's file of values as a table: whatever it wrote, within bounds."""

from __future__ import annotations

import pytest

from ava_server.web.tables import CELL_CHARS, MOST_COLUMNS, MOST_ROWS, read_table


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_file_of_values_is_rows_of_cells(delimiter: str) -> None:
    table = read_table(delimiter.join(("name", "cost")) + "\n" + delimiter.join(("a", '"1\n2"')) + "\n\nb\n")
    assert table is not None
    assert (table.head, table.rows) == (["name", "cost"], [["a", "1\n2"], ["b", ""]])
    assert (table.more_rows, table.more_columns) == (0, 0)


@pytest.mark.parametrize("text", ["", "\n\n", "one column\nmore\n", 'a,b\n"never ends', 'a,b\n"x"y,1\n'])
def test_a_text_that_is_no_table_is_none(text: str) -> None:
    assert read_table(text) is None


def test_a_large_file_is_cut_and_what_is_left_out_is_counted() -> None:
    row = ",".join(["x" * (CELL_CHARS + 1)] * (MOST_COLUMNS + 2))
    table = read_table("\n".join([row] * (MOST_ROWS + 4)))
    assert table is not None
    assert (len(table.rows), table.more_rows) == (MOST_ROWS, 3)
    assert (len(table.head), table.more_columns) == (MOST_COLUMNS, 2)
    assert {len(cell) for cell in table.rows[0]} == {CELL_CHARS + 1}, "with a sign that it is cut"
