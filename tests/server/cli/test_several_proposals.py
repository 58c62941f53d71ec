"""Several proposals before one question: a table with a row each, and what is said of some of them."""

from __future__ import annotations

import re

import pytest

from ava_server.approval.plan_summary import StepSummary
from ava_server.approval.proposals import Pending, ProposalSummary, WholeText
from ava_server.approval.summary import SummaryRow
from ava_server.cli.start_question import several_lines, several_screens
from ava_server.cli.terminal import cells

WIDTHS = (40, 60, 80, 120, 200)
LONG = "Read all of the notes, and say what each of them promises. " * 70
ARABIC = "ابحث عن أسعار المزودين الخمسة في المجلد وقل بأي عملة كل منها"
READS = "can read /srv/work and reach the web"
STEPS = tuple(
    StepSummary(id=name, most="$0.50", role="researcher", after="", task='"Find the contracts"', note="")
    for name in ("find", "read", "write")
)


def proposal(
    number: int,
    task: str,
    *,
    powers: tuple[str, ...] = ("reach the network", "read your files"),
    reach: str = READS,
    cents: int = 50,
    steps: tuple[StepSummary, ...] = (),
    warnings: tuple[str, ...] = (),
) -> Pending:
    rows = [
        SummaryRow("What", "Ava wants to start it."),
        SummaryRow("Where", f"It {reach}."),
        SummaryRow("How much", "It costs at most that."),
        SummaryRow("Who asked", "claude-code 2.1 asked for it."),
        SummaryRow("Limits", "At most 20 turns."),
    ]
    return Pending(
        pending_id=f"P-{number:08x}",
        subagent_id=f"S-{number:06x}",
        message="",
        approval_line="",
        digest="",
        max_cost_micros=cents * 10_000,
        free=False,
        expires_us=0,
        rows=tuple(rows),
        client="claude-code",
        whole=(WholeText(name="task", text=task, chars=len(task)),),
        summary=ProposalSummary(
            role="researcher",
            model="custom:test",
            limits=f"${cents / 100:.2f}, 10 min",
            task=f'"{task}"'
            if len(task) <= 120
            else f'"{task[:120].rstrip()}…" and {len(task) - 120:,} more characters',
            reach=reach,
            powers=powers,
            warnings=warnings,
            name="Contracts" if steps else "",
            steps=steps,
        ),
    )


WAITING = (
    proposal(1, "What does it cost?"),
    proposal(2, LONG, powers=("change files", "run commands"), reach="can change a copy of /srv/work", cents=200),
    proposal(3, ARABIC),
    proposal(4, "Find the contracts", steps=STEPS, cents=300),
)


@pytest.mark.parametrize("width", WIDTHS)
def test_each_is_one_row_a_plan_too_and_every_line_fits(width: int) -> None:
    lines = several_lines(WAITING, width)
    texts = [line.text for line in lines]
    assert max(map(cells, texts)) <= width, texts
    table = texts[: texts.index("")]
    rows = [line for line in table if re.match(r"[ !]  \d  ", line)]
    assert [re.findall(r"\d  +(\$\S+)", row) for row in rows] == [["$0.50"], ["$2.00"], ["$0.50"], ["$3.00"]]
    assert [row[0] for row in rows] == [" ", "!", " ", " "], "only the second can change something"
    assert len(table) <= 1 + 2 * len(WAITING), "at most a second line for the task"
    shown = "\n".join(table)
    assert '"What does it cost?"' in shown and 'plan "Contracts" of 3' in shown
    assert ("claude-code" in shown) == (width >= 60)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_said_of_some_stands_once_with_their_numbers(width: int) -> None:
    notes = " ".join(line.text.strip() for line in several_lines(WAITING, width))
    assert notes.count(READS) == 1 and f"1, 3, 4 {READS}." in notes
    assert "2 can change a copy of /srv/work." in notes
    assert "1, 3: researcher, custom:test, at most $0.50, 10 min." in notes
    assert "! Only some of them can change files (2), run commands (2)" in notes
    assert "A number opens one: 1 P-00000001, 2 P-00000002, 3 P-00000003, 4 P-00000004." in notes
    same = " ".join(line.text.strip() for line in several_lines(WAITING[::2], width))
    assert f"All of them {READS}." in same and "Each of them: researcher, custom:test, at most $0.50" in same


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_folded_is_counted_from_what_the_row_shows(width: int) -> None:
    screens = several_screens(WAITING, width)
    assert screens["P-00000001"].folded == "limits, 1 sentence; the line that is approved"
    assert screens["P-00000004"].folded == "3 steps; limits, 1 sentence; the line that is approved"
    screen = screens["P-00000002"]
    found = re.match(r"task, ([\d,]+) characters more; ", screen.folded)
    assert found is not None, screen.folded
    left = int(found[1].replace(",", ""))
    [row] = re.findall(r'"(Read all[^…"]*)', screen.text)
    assert len(row) + left == pytest.approx(len(LONG), abs=2), "of the task, the row shows the rest"
