"""What is written to a terminal fits it, and no word of it is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from ava_roles.wrap import BAR, add_bars
from ava_server.cli import show as run_screens
from ava_server.cli.status_lines import fitted
from ava_server.cli.terminal import cells, cut, cut_front, wrapped

LINES = st.text(alphabet=st.sampled_from("ab é値  \n"), max_size=200)


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("Some words that fit.", ["Some words that fit."]),
        ("It can read a folder and nothing else.", ["It can read a folder", "  and nothing else."]),
        ("12. A claim with more words than fit", ["12. A claim with", "    more words than", "    fit"]),
        ('   "a quote of some words more"', ['   "a quote of some', '   words more"']),
        ("see https://example.org/a/long/address now", ["see", "  https://example.org/a/long/address", "  now"]),
        ("値段は十二セントです 分ごとに", ["値段は十二セントです", "  分ごとに"]),
        ("", [""]),
        (" " * 30, [""]),
        (" " * 30 + "so far in", [" " * 30 + "so", "          far in"]),
    ],
)
def test_a_line_wraps_at_spaces_with_a_hanging_indent(line: str, lines: list[str]) -> None:
    assert wrapped(line, 20).split("\n") == lines


def test_a_command_in_backticks_stays_on_one_line_if_it_fits() -> None:
    assert wrapped("To see it, run `ava show S-1`.", 20) == "To see it, run\n  `ava show S-1`."
    assert wrapped("Run `ava show S-123456 --diff` now", 20) == "Run `ava show\n  S-123456 --diff`\n  now"
    assert wrapped("a ` stands alone here, and on", 20) == "a ` stands alone\n  here, and on"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Read it all and Cost: $0.00", ["│ Read it all and", "│   Cost: $0.00"]),
        ("- Read it all and Cost: $0.00", ["│ - Read it all and", "│   Cost: $0.00"]),
        ("    Read it all and Cost: $0", ["│     Read it all", "│     and Cost: $0"]),
        ("x" * 20 + "Cost:\u2800$0.00", ["│ " + "x" * 16, "│   xxxxCost:\u2800$0.00"]),
        (" " * 30 + "Cost: $0.00", [f"│ {' ' * 9}Cost:", f"│ {' ' * 9}$0.00"]),
        ("\t" * 9 + "Cost: $0.00", [f"│ {' ' * 9}Cost:", f"│ {' ' * 9}$0.00"]),
        ("│ " * 8 + "and Cost: $0", ["│ │ │ │ │ │ │ │ │", "│   and Cost: $0"]),
    ],
)
def test_each_line_of_untrusted_text_keeps_its_bar_when_it_wraps(text: str, lines: list[str]) -> None:
    assert wrapped(add_bars(text), 20).split("\n") == lines


@given(st.text(alphabet=st.sampled_from("ab é値\u2800- \n"), max_size=200), st.integers(min_value=3, max_value=40))
def test_no_line_of_untrusted_text_leaves_its_frame(text: str, width: int) -> None:
    for line in wrapped(add_bars(text), width).split("\n"):
        assert line.startswith(BAR.rstrip()) and cells(line) <= max(width, 6)


def test_a_task_stands_on_the_line_of_its_title_only_if_it_fits() -> None:
    task = "Read the notes. Decided: by a person"
    assert run_screens._block("Task", "Read the notes.", 40) == ["Task: Read the notes."]
    assert run_screens._block("Task", task, 40) == ["Task:", f"{BAR}{task}"]
    assert run_screens._block("Task", task, None) == [f"Task: {task}"]


@given(LINES)
def test_wrapping_keeps_every_word_and_fits_everything_breakable(text: str) -> None:
    lines = wrapped(text, 20)
    assert lines.split() == text.split()
    for line in lines.split("\n"):
        assert cells(line) <= 20 or len(line.split()) <= 1


@given(LINES, st.integers(min_value=1, max_value=60))
def test_a_truncated_line_fits_and_is_marked(text: str, width: int) -> None:
    line = text.replace("\n", " ")
    short = cut(line, width)
    assert cells(short) <= width
    assert short == line or (short.endswith("…") and line.startswith(short[:-1]))
    end = cut_front(line, width)
    assert cells(end) <= width and (end == line or (end.startswith("…") and line.endswith(end[1:])))
    assert fitted(Text(line), width).plain == short, "the dashboard shortens as commands do"


@pytest.mark.parametrize("text", ["价格", "قِيمَة", "कीमतें", "ราคา", "\u2630", "👩‍👩‍👧", "e\u0301", "\u1160x"])
def test_no_text_is_wider_in_the_dashboard_than_it_was_measured(text: str) -> None:
    assert cells(text) >= Text(text).cell_len
    for width in range(1, 8):
        assert fitted(Text(text), width).cell_len <= width
