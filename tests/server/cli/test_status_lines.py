"""The lines of `ava status`: they fit the terminal, and no text of others takes one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from ava_audit.rows import RunRow
from ava_audit.units import format_bytes
from ava_server.cli.status_lines import bar, both_ends, cap_text, joined, terms
from ava_server.cli.status_rows import RunRows
from ava_server.cli.terminal import cells
from ava_server.render.run_view import Cap, RunView, figures, short_number


def test_a_status_line_and_a_bar_say_the_same_of_a_million_tokens() -> None:
    caps = Cap("seconds", 1, 600), Cap("turns", 1, 20), Cap("tool_calls", 1, 40), Cap("tokens", 1_234_567, 2_000_000)
    run = RunView(cast("Any", None), "running", 0, (*caps, Cap("cost", 0, 0)), free=True)
    assert cap_text(caps[-1]) == "1.2M/2.0M tok"
    assert cap_text(Cap("seconds", 61, 600)) == "61/600 s"
    assert cap_text(Cap("seconds", 61, 2_592_000)) == "1 min 1 s of 30 days"
    assert figures(run) == "1 s of 600 s · turn 1 of 20 · 1.2M tokens · free"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_row_fits_its_terminal_and_always_shows_the_cost(width: int) -> None:
    caps = Cap("seconds", 1, 600), Cap("turns", 1, 20), Cap("tool_calls", 1, 40), Cap("cost", 100_000, 500_000)
    row = RunRow(
        "S-000001", "P-00000001", None, "ana", "sess-1", "researcher", None, None, "fake:x", "{}", None, "success",
        None, None, created_us=1, started_us=1, ended_us=2, cost_micros=100_000,
    )  # fmt: skip
    run = RunView(row, "success", 0, caps, free=False, task="What does the \U0001f40d cost? " * 9)
    rows = RunRows([run], width, everybody=False)
    lines = [rows.head(), rows.row(run)]
    assert all(cells(line.plain) <= width for line in lines)
    assert "$0.10 of $0.50" in lines[1].plain and "✓" in lines[1].plain
    assert width < 60 or "success" in lines[1].plain


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (100, "100 s"), (600, "10 min")])
def test_a_waiting_proposal_has_its_time_in_the_words_of_the_proposal(seconds: int, words: str) -> None:
    run = RunView(cast("Any", None), "awaiting_approval", 0, (Cap("seconds", 0, seconds),), free=True)
    assert terms(run).startswith(f"free, at most {words}, expires ")


def test_a_bar_is_empty_only_at_zero_and_full_only_at_the_cap() -> None:
    drawn: list[Callable[[], str]] = [
        lambda: bar(0, 100, 10).plain,
        lambda: bar(0.1, 100, 10).plain,
        lambda: bar(50, 100, 10).plain,
        lambda: bar(99.9, 100, 10).plain,
        lambda: bar(100, 100, 10).plain,
        lambda: bar(140, 100, 10).plain,
        lambda: bar(20, 100, 10, held=30).plain,
        lambda: bar(0, 100, 10, held=1).plain,
        lambda: bar(0, 0, 10).plain,
    ]
    assert [one() for one in drawn] == [
        "░░░░░░░░░░", "█░░░░░░░░░", "█████░░░░░", "█████████░", "██████████", "██████████", "██▒▒▒░░░░░", "▒░░░░░░░░░",
        "██████████",
    ]  # fmt: skip
    assert [short_number(number) for number in (0, 999, 12_345, 999_499, 1_000_000)] == [
        "0",
        "999",
        "12k",
        "999k",
        "1.0M",
    ]
    assert [format_bytes(number) for number in (12, 1_500, 2_500_000, 3 * 10**9)] == [
        "12 bytes",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
    ]


def test_text_of_others_stays_on_one_line_and_both_ends_of_a_line_fit() -> None:
    assert joined("a\nb\tc\x1b[31m\r\nd").plain == "a b c d"
    assert joined(("[bold]x", "red")).plain == "[bold]x"
    for width in range(3, 30):
        line = both_ends(joined("some words of ours"), "12:00", width)
        assert line.plain.endswith("12:00")
        assert width < 7 or line.cell_len == width
